"""Executes the notebooks, each from its first cell to its last in a kernel of its own, and says which do not hold.

Usage: python3 -m notebooks.run [--write] [NAME...]      NAME as 2, 2_tiles or 2_tiles.ipynb; none: all

A notebook holds when no cell fails and it asserts something, when it is laid out as notebooks/README.md says, and when
the outputs that it is stored with are of the code that it has. Nothing is changed, except with --write: that stores the
outputs, the same for the same code. ./ladder notebooks --run calls it in the environment that it needs.
"""

from __future__ import annotations

import argparse
import ast
import base64
import hashlib
import io
import os
import re
import sys
import tempfile
import time
from pathlib import Path

from common.course.program import Parser
from common.course.program import run as ended

FOLDER = Path(__file__).resolve().parent
LARGEST = 400_000  # bytes of a notebook
SECONDS_A_CELL = 300
EXERCISES = range(3, 6)  # how many a notebook has
# The first cell of code, of every notebook.
ENVIRONMENT = '''\
try:
    import flashladder, helpers, matplotlib, numpy
except ImportError as missing:
    sentence = f"{missing}: start this notebook with ./ladder notebooks, which makes all that it needs."
    missing._render_traceback_ = lambda: [sentence]
    raise'''

try:
    import nbclient
    import nbformat
    from PIL import Image
except ImportError as missing:
    sys.exit(f"run: {missing}: ./ladder notebooks --run makes the environment that has it, and runs this in it.")


class Broken(Exception):
    """A notebook that does not hold: one sentence, and perhaps what Python said."""


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def read(name: str) -> nbformat.NotebookNode:
    try:
        return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    except (OSError, ValueError, AttributeError, nbformat.ValidationError) as error:
        raise Broken(f"it cannot be read as a notebook: {str(error).splitlines()[0]}") from None


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def code_hash(notebook: nbformat.NotebookNode) -> str:
    """Of what the outputs follow from, as far as it is in the notebook."""
    return hashlib.sha256("\0".join(cell.source for cell in code_cells(notebook)).encode()).hexdigest()[:16]


def exercises(notebook: nbformat.NotebookNode) -> list[int]:
    """The numbers of the exercises: each has the cells exercise-N, exercise-N-answer and exercise-N-check."""
    found = [re.fullmatch(r"exercise-(\d+)(-answer|-check)?", cell.id) for cell in notebook.cells]
    order = [(int(match[1]), match[2] or "") for match in found if match]
    numbers = list(range(1, len(order) // 3 + 1))
    if order != [(number, part) for number in numbers for part in ("", "-answer", "-check")]:
        raise Broken("its exercises are not cells exercise-N, exercise-N-answer, exercise-N-check, in this order.")
    return numbers


def check_layout(notebook: nbformat.NotebookNode) -> None:
    """Raises Broken where the notebook is not laid out as all are."""
    cells = code_cells(notebook)
    if not cells or cells[0].source != ENVIRONMENT:
        raise Broken("its first cell of code is not the one that says how to get the environment (run.py has it).")
    count = len(exercises(notebook))
    if count not in EXERCISES or notebook.cells[-1].id != f"exercise-{count}-check":
        raise Broken(f"it has {count} exercises, and should end in 3 to 5 of them.")
    if assertions(notebook) == 0:
        raise Broken("it asserts nothing.")
    ids = [cell.id for cell in notebook.cells]
    if len(set(ids)) != len(ids) or any(re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f-]+)?", one) for one in ids):
        raise Broken("the ids of its cells are not names, each of one cell.")


def assertions(notebook: nbformat.NotebookNode) -> int:
    count = 0
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type == "code":
            try:
                count += sum(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(cell.source)))
            except SyntaxError as error:
                where = f"cell {number} ({cell.id})"
                raise Broken(f"{where} is not Python: {error.msg}, its line {error.lineno}.") from None
    return count


def check_stored(notebook: nbformat.NotebookNode, executed: nbformat.NotebookNode) -> None:
    """Raises Broken where the stored outputs are not of the code that was executed.

    A warning that a library gave now is said and changes nothing: some depend on the processor."""
    def kinds(cell: nbformat.NotebookNode) -> list:
        return [one.get("name") or sorted(one.get("data", {})) for one in cell.outputs if one.get("name") != "stderr"]

    def printed(cell: nbformat.NotebookNode, *names: str) -> str:
        return "".join(one.text for one in cell.outputs if one.get("name") in names)

    mend = "./ladder notebooks --run --write makes them anew."
    if notebook.metadata.get("flashladder", {}).get("code") != code_hash(notebook):
        raise Broken(f"its stored outputs are not of the code that it has: {mend}")
    for cell, run in zip(code_cells(notebook), code_cells(executed), strict=True):
        if warning := printed(run, "stderr"):
            print(f"cell {cell.id} warns:\n{warning}", file=sys.stderr)
        if kinds(cell) != kinds(run):
            raise Broken(f"cell {cell.id} has outputs {kinds(cell)} stored, and {kinds(run)} when it is executed: {mend} "
                         f"It printed now: {printed(run, 'stdout', 'stderr') or 'nothing.'}")


def execute(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy with the outputs of a run in a fresh kernel. Broken when a cell fails."""
    notebook = nbformat.from_dict(notebook)
    client = nbclient.NotebookClient(notebook, timeout=SECONDS_A_CELL, kernel_name="python3", record_timing=False,
                                     # An output that is late is waited for; nbclient would go on without it.
                                     iopub_timeout=SECONDS_A_CELL, raise_on_iopub_timeout=True,
                                     extra_arguments=["--IPKernelApp.log_level=ERROR"], coalesce_streams=True,
                                     resources={"metadata": {"path": str(FOLDER)}})
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # the kernel is this Python's, whatever else is called python3
    with tempfile.TemporaryDirectory() as home:
        # Nothing of the user's own set-up takes part.
        environment = {**os.environ, "IPYTHONDIR": home, "MPLBACKEND": "module://matplotlib_inline.backend_inline",
                       "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(FOLDER.parent)}
        environment.pop("PYTHONSAFEPATH", None)  # of ./ladder: a notebook imports what lies beside it
        try:
            client.execute(env=environment)
        except nbclient.exceptions.CellTimeoutError:
            raise Broken(f"a cell runs for more than {SECONDS_A_CELL} s.") from None
        except nbclient.exceptions.CellExecutionError:
            raise Broken(failure(notebook)) from None
        except nbclient.exceptions.DeadKernelError:
            raise Broken("its kernel died.") from None
    return notebook


def failure(notebook: nbformat.NotebookNode) -> str:
    for number, cell in enumerate(notebook.cells, 1):
        for output in cell.get("outputs", ()):
            if output.output_type == "error":
                # Of the frames, the first is the cell's; those of libraries would hide it.
                shown = output.traceback[2:3] * (len(output.traceback) > 3) + output.traceback[-1:]
                said = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(shown)).strip()
                return f"cell {number} ({cell.id}) fails: {output.ename}.\n" + re.sub("(?m)^", "    ", said)
    return "a cell fails."


def clean(executed: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """What is stored: nothing of the machine, the day and the version of Python."""
    for cell in code_cells(executed):
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = smaller(output.data["image/png"])
    executed.metadata = nbformat.from_dict({
        "flashladder": {"code": code_hash(executed)},
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python",
                          "pygments_lexer": "ipython3"}})
    return executed


def check_text(text: str) -> None:
    if len(text.encode()) > LARGEST:
        raise Broken(f"it has {len(text.encode()):,} bytes with its outputs, more than {LARGEST:,}.")
    if str(FOLDER.parent) in text or re.search(r"(?<![\w./])/(home|root|tmp|usr|Users)/", text):
        raise Broken("a path of a machine is in it.")


def smaller(png: str) -> str:
    """A picture with a palette of 256 colours, which takes a third of the bytes."""
    picture, buffer = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB"), io.BytesIO()
    picture.quantize(256, dither=Image.Dither.NONE).save(buffer, "png", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def store(name: str, notebook: nbformat.NotebookNode) -> None:
    """Writes the notebook, whole or not at all."""
    text = nbformat.writes(notebook) + "\n"
    check_text(text)
    if any(one.get("name") == "stderr" for cell in code_cells(notebook) for one in cell.outputs):
        raise Broken("a cell prints a warning, which would be stored: mend what it warns of.")
    path = FOLDER / f"{name}.ipynb"
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=FOLDER, suffix=".part", delete=False) as file:
        part = Path(file.name)
    try:
        part.write_text(text, encoding="utf-8")
        part.chmod(path.stat().st_mode & 0o777)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def run(name: str, write: bool) -> str:
    """Executes a notebook; what to say of it. Raises Broken."""
    notebook = read(name)
    check_layout(notebook)
    start = time.monotonic()
    executed = execute(notebook)
    if write:
        store(name, clean(executed))
    else:
        check_text((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
        check_stored(notebook, executed)
    return (f"{len(code_cells(notebook))} cells of code, {assertions(notebook)} assertions, "
            f"{time.monotonic() - start:.0f} s{', stored' * write}")


def find(given: str) -> str:
    name = Path(given).name.removesuffix(".ipynb")
    found = [one for one in names() if name in (one, one.partition("_")[0])]
    if not found:
        raise argparse.ArgumentTypeError(f"there is no notebook {given!r}: there are {', '.join(names())}")
    return found[0]


def main() -> None:
    parser = Parser(prog="./ladder notebooks --run", description=__doc__.partition("\n")[0],
                                     epilog="Without --write nothing is changed.")
    parser.add_argument("names", metavar="NAME", nargs="*", type=find, help="such as 2 or 2_tiles (default: all)")
    parser.add_argument("--write", action="store_true", help="store the outputs in the notebooks")
    arguments = parser.parse_args()
    broken = 0
    for name in arguments.names or names():
        print(f"{name:<20}", end="", flush=True)
        try:
            print(run(name, arguments.write), flush=True)
        except Broken as why:
            broken += 1
            print(f"does not hold: {why}", flush=True)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    ended(main)
