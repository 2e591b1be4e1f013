"""Tests of the notebooks: that all of them hold, that their exercises are judged as they should be, and that run.py and
check() see what does not hold. With FLASHLADDER_TURN=2/3 in the environment the second of three parts of the notebooks.

Usage: python3 -m tests.notebooks_test SOURCE_DIR [unittest options]. CheckTest alone needs no Jupyter,
and takes a second.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
NOTEBOOKS = SOURCE / "notebooks"
try:
    import numpy as np
    from notebooks.helpers import check
except ImportError as missing:
    sys.exit(f"notebooks_test: {missing}: ./ladder setup makes a Python that has it, .venv/bin/python")
from tests.notebook_solutions import SOLUTIONS
from tests.turn import in_turn

has_jupyter = importlib.util.find_spec("nbclient")
if has_jupyter:
    import nbformat
    from notebooks import run
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
with_jupyter = unittest.skipUnless(has_jupyter, "this Python has no Jupyter: ./ladder notebooks makes one that has")

nan, inf = float("nan"), float("inf")


class CheckTest(unittest.TestCase):
    """check() of helpers.py."""

    def accepts(self, answer, right, **options):
        verdict = check(1, answer, right, **options)
        self.assertTrue(verdict, verdict)
        self.assertEqual(repr(verdict), "Exercise 1: right.")

    def rejects(self, said, answer, right, **options):
        verdict = check(1, answer, right, **options)
        self.assertFalse(verdict)
        self.assertTrue(verdict.text.startswith("Exercise 1: not yet. "), verdict)
        self.assertIn(said, verdict.text)
        self.assertEqual(verdict.text.count("\n"), 0)

    def test_it_accepts_what_is_right(self):
        for answer, right in ((2, 2), (2.0, 2), (np.float32(2), 2), (2 + 1e-12, 2), (-inf, -inf), (True, True),
                              (np.True_, True), ("FA2 ", "fa2"), ([1, 2], (1, 2)), (np.arange(3), np.arange(3)),
                              ([0, 1, 2], np.arange(3)), ((1, np.ones(2)), (1, np.ones(2)))):
            self.accepts(answer, right)
        self.accepts(lambda n: n * n, lambda n: n**2, on=[(1,), (3,)])
        self.accepts(104, 100, within=0.05)

    def test_it_rejects_what_is_wrong(self):
        for said, answer, right in (
                ("too large", 3, 2), ("too small", 1.9, 2), ("nan, not a number", nan, 2), ("nan", nan, nan),
                ("inf", inf, 2), ("should be a number", "two", 2), ("should be a number", [2], 2),
                ("should be a number", True, 1),
                ("None", None, 2), ("is a function", lambda: 2, 2), ("True or False", 1, True),
                ("is False", False, True), ("2 values", 1, (1, 2)), ("value 1 is 3, too large", (1, 3), (1, 2)),
                ("shape (2,)", np.ones(2), np.ones(3)),
                ("element [1] is nan", np.array([0, nan]), np.zeros(2)), ("'fa1'", "fa1", "fa2"),
                ("should be", 1j, 2)):
            with self.subTest(said=said, answer=answer):
                self.rejects(said, answer, right)
        self.rejects("too large", 106, 100, within=0.05)

    def test_it_rejects_functions_that_are_wrong(self):
        for said, function in ((" is 4, too large", lambda n: n + 1), ("raises ValueError: no", self.raises),
                               ("None", lambda n: None), ("generator", self.generates)):
            self.rejects(said, function, lambda n: n, on=[(3,)])
        self.rejects("raises TypeError", lambda: 3, lambda n: n, on=[(3,)])
        self.rejects("should be a function", 3, lambda n: n, on=[(3,)])

    @staticmethod
    def raises(n):
        raise ValueError("no.")

    @staticmethod
    def generates(n):
        yield n

    def test_no_answer_is_neither(self):
        for answer, options in ((..., {}), ((1, ...), {"right": (1, 2)}), (..., {"on": [(1,)]}),
                                (lambda n: ..., {"on": [(1,)]})):
            verdict = check(3, answer, **{"right": lambda n: n, **options})
            self.assertFalse(verdict)
            self.assertTrue(verdict.text.startswith("Exercise 3: not answered yet."), verdict)

    def test_a_slip_is_named_and_a_hint_is_given(self):
        options = {"slips": [(4, "Halve it."), (9, "Not the square.")], "hint": "Think."}
        self.rejects("Halve it.", 4, 2, **options)
        self.rejects("Think.", 5, 2, **options)
        self.assertNotIn("Think", check(1, 4, 2, **options).text)
        self.rejects("Add.", lambda a, b: a - b, lambda a, b: a + b, on=[(1, 2)], slips=[(lambda a, b: a - b, "Add.")])

    def test_a_function_that_changes_its_arguments_spoils_nothing(self):
        def spoils(x):
            x += 1
            return x - 1

        x = np.arange(3.0)
        self.accepts(spoils, lambda x: x, on=[(x,)])
        self.assertTrue((x == np.arange(3)).all())

    def test_it_does_not_tell_the_answer(self):
        self.assertNotIn("1234", check(1, 7, 1234).text + check(1, lambda n: n, lambda n: 1234, on=[(1,)]).text)


@with_jupyter
class NotebookTest(unittest.TestCase):
    """The notebooks as they are shipped."""

    def holds(self, name):
        """Executes it, and after it each solution with its check."""
        notebook = run.read(name)
        run.check_layout(notebook)
        run.check_text((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
        cells = {cell.id: cell for cell in notebook.cells}
        self.assertEqual(sorted(SOLUTIONS[name]), run.exercises(notebook))
        tried, more = [], []
        for number, solution in SOLUTIONS[name].items():
            self.assertTrue(solution.wrong)
            for answer, said in ((solution.right, None), *solution.wrong.items()):
                tried.append((number, answer, said))
                more += [new_code_cell(answer), new_code_cell(cells[f"exercise-{number}-check"].source)]
        executed = run.execute({**notebook, "cells": [*notebook.cells, *more]})
        done, checks = executed.cells[:len(notebook.cells)], executed.cells[len(notebook.cells) + 1::2]
        run.check_stored(notebook, type(notebook)({**executed, "cells": done}))
        for cell in done:
            if cell.id.endswith("-check"):
                self.assertIn("not answered yet", self.verdict(cell), cell.id)
        self.assertEqual(len(checks), len(tried))
        for (number, answer, said), cell in zip(tried, checks):
            verdict = self.verdict(cell)
            with self.subTest(exercise=number, answer=answer):
                if said is None:
                    self.assertEqual(verdict, f"Exercise {number}: right.")
                else:
                    self.assertTrue(verdict.startswith(f"Exercise {number}: not yet. "), verdict)
                    self.assertIn(said, verdict)

    def verdict(self, cell):
        """What check(), the last line of the cell, shows."""
        self.assertEqual(cell.outputs[-1].output_type, "execute_result", cell.source)
        return cell.outputs[-1].data["text/plain"]

    def test_there_are_seven(self):
        self.assertEqual([name.partition("_")[0] for name in run.names()], list("1234567"))
        self.assertEqual(sorted(SOLUTIONS), run.names())


for path in in_turn(sorted(NOTEBOOKS.glob("*.ipynb"))):
    setattr(NotebookTest, f"test_{path.stem}", lambda self, name=path.stem: self.holds(name))


@with_jupyter
class RunTest(unittest.TestCase):
    """run.py, on small notebooks that do not hold."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name) / "notebooks"
        self.folder.mkdir()
        for name in ("__init__.py", "run.py", "helpers.py"):
            shutil.copy(NOTEBOOKS / name, self.folder)
        for name in ("__init__.py", "course/__init__.py", "course/program.py", "course/registry.py"):
            (self.folder.parent / "common" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCE / "common" / name, self.folder.parent / "common" / name)
        self.write()

    def write(self, code="assert 1 + 1 == 2", environment=None, exercises=3, more=()):
        cells = [new_code_cell(run.ENVIRONMENT if environment is None else environment, id="environment"),
                 new_code_cell(code, id="code")]
        for number in range(1, exercises + 1):
            cells += [new_markdown_cell("What?", id=f"exercise-{number}"),
                      new_code_cell("answer = ...", id=f"exercise-{number}-answer"),
                      new_code_cell(f"helpers.check({number}, answer, 2)", id=f"exercise-{number}-check")]
        nbformat.write(new_notebook(cells=[*cells, *more]), self.folder / "1_small.ipynb")

    def call(self, *arguments):
        as_ladder_calls = {**os.environ, "PYTHONPATH": str(self.folder.parent), "PYTHONSAFEPATH": "yes"}
        return subprocess.run([sys.executable, "-B", "-m", "notebooks.run", *arguments], capture_output=True,
                              text=True, cwd=self.folder.parent, env=as_ladder_calls, timeout=120)

    def content(self):
        return {path.name: path.read_bytes() for path in self.folder.iterdir()}

    def refuses(self, said, *arguments):
        """It fails, says why, and changes nothing."""
        before = self.content()
        done = self.call(*arguments)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn(said, done.stdout)
        self.assertEqual(self.content(), before)

    def test_it_stores_the_same_each_time_and_else_changes_nothing(self):
        self.refuses("its stored outputs are not of the code")
        self.assertEqual(self.call("--write").returncode, 0)
        first = self.content()
        self.assertIn(b"not answered yet", first["1_small.ipynb"])
        done = self.call("1_small.ipynb")
        self.assertEqual((done.returncode, self.content()), (0, first), done.stdout)
        self.assertEqual(self.call("--write", "1").returncode, 0)
        self.assertEqual(self.content(), first)

    def test_code_that_was_changed_after_it_ran(self):
        self.assertEqual(self.call("--write").returncode, 0)
        path = self.folder / "1_small.ipynb"
        path.write_text(path.read_text().replace("1 + 1 == 2", "1 + 1 == 3 - 1"))
        self.refuses("its stored outputs are not of the code")

    def test_what_a_cell_shows_now_and_did_not_when_it_was_stored(self):
        shown = self.folder / "shown"
        code = "assert True\nimport pathlib, sys\nshown = pathlib.Path('shown')\n"
        self.write(code + "if shown.exists():\n    print('more')")
        self.assertEqual(self.call("--write").returncode, 0)
        shown.touch()
        self.refuses("cell code has outputs [] stored, and ['stdout'] when it is executed")
        shown.unlink()
        self.write(code + "if shown.exists():\n    print('slow', file=sys.stderr)")
        self.assertEqual(self.call("--write").returncode, 0)
        shown.touch()
        done = self.call()
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("cell code warns:\nslow", done.stderr)
        self.refuses("a cell prints a warning", "--write")

    def test_a_cell_that_fails(self):
        self.write("assert 1 + 1 == 2\nthis_is_not_there")
        self.refuses("cell 2 (code) fails: NameError.", "--write")
        self.write("assert 1 + 1 == 3")
        self.refuses("cell 2 (code) fails: AssertionError.", "--write")
        self.write("assert True\nimport os\nos._exit(1)")
        self.refuses("its kernel died", "--write")

    def test_a_notebook_that_is_not_as_all_are(self):
        for said, options in (("it asserts nothing", {"code": "1 + 1"}),
                              ("its first cell of code", {"environment": "import helpers"}),
                              ("it has 2 exercises", {"exercises": 2}), ("it has 6 exercises", {"exercises": 6}),
                              ("should end in", {"more": [new_markdown_cell("The end.", id="end")]}),
                              ("is not Python", {"code": "assert ("}),
                              ("a path of a machine", {"code": "assert True\nprint('/home' + '/someone/x')"}),
                              ("bytes with its outputs", {"code": "assert True\nprint(('x' * 99 + chr(10)) * 5000)"})):
            with self.subTest(said=said):
                self.write(**options)
                self.refuses(said, "--write")
        (self.folder / "1_small.ipynb").write_text("{")
        self.refuses("it cannot be read as a notebook")

    def test_without_the_environment_one_sentence_says_the_command(self):
        (self.folder / "flashladder.py").write_text("import no_such_module")
        self.refuses("start this notebook with ./ladder notebooks")
        said = self.call().stdout.partition("\n")[2].strip()
        self.assertEqual(len(said.splitlines()), 1, said)

    def test_a_notebook_that_is_not_there(self):
        done = self.call("7")
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no notebook '7': there are 1_small", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
