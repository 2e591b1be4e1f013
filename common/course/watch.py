"""./ladder watch: one stage, or two side by side, at work: a page that plays what each tile, warp and byte does when.

    ./ladder watch {after}                    # writes watch_{after}.html, and opens it where there is a browser
    ./ladder watch {before} {after}                 # two stages on the same clock
    ./ladder watch {after} --random 1,1,1024,64 --full --out page.html
    ./ladder watch sliding_window --variant window:128
    ./ladder watch my_lab                # a kernel of a lab, until its end or its error

The emulator runs the kernels; a model of time says what is when, or, with --measured, what a GPU's warps have stamped. Needs no
GPU. The page is one file, which needs no network.
"""

import argparse
import functools
import json
import subprocess
import sys
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.results import stamps as measured
from bench.results.stamps import Stamps
from common.course import program, registry
from common.course.diff import find, make_folder, with_example, write
from common.course.diff_model import pairs
from common.course.ledger import watched_with
from common.course.registry import Failure, Stage, all_stages
from common.course.stamped_time import Stamped
from common.course.time_model import Model

DEFAULT = {"forward": "1,2,512,64", "backward": "1,2,256,64"}
NOT_MEASURED = ("random", "kv_heads", "key_len", "dtype", "variant", "full", "backward")  # options of another problem
MOST_TILES = 1 << 13  # of a problem: more would take minutes, and a page of many megabytes


def parser() -> argparse.ArgumentParser:
    made = program.Parser(prog="./ladder watch", description=with_example(__doc__.split("\n\n", 1)[1]),
                          formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS)
    made.add_argument("stages", nargs="*", metavar="STAGE", help="one or two: a number or a name of a stage of kernels")
    made.add_argument("--out", metavar="FILE", help="the page to write (default: watch_STAGE.html here)")
    made.add_argument("--random", metavar="B,H,N,d", help=f"the problem (default: {DEFAULT['forward']}; for a backward pass "
                      f"{DEFAULT['backward']})")
    made.add_argument("--kv-heads", metavar="N", help="heads of keys and values (default: H)")
    made.add_argument("--key-len", metavar="N", help="keys (default: N)")
    made.add_argument("--dtype", metavar="TYPE", help="fp32, fp16 or bf16 (default: what the stage takes)")
    made.add_argument("--variant", metavar="NAME[:VALUE]", help="not plain attention, of stages that take it: window:128, "
                      "prefix:200, documents:100, blocks:0.5, softcap:30, bias, alibi, sinks, dropout:0.1; several with "
                      "commas between them (./ladder ledger --help says more)")
    made.add_argument("--full", action="store_true", help="without the causal mask")
    made.add_argument("--backward", action="store_true", help="the backward pass, of stages that have both")
    made.add_argument("--measured", action="store_true", help="in the time of a GPU: of stages whose clock stamps are in "
                      "bench/results, at the problem that they are of")
    made.add_argument("--row", metavar="I", help="the row of the first head whose m, l and O~ are shown (default: the last)")
    made.add_argument("--no-open", action="store_true", help="only write the page")
    made.add_argument("--site", metavar="DIR", help="write a page of each stage, and of each pair of neighbours, into this "
                      "folder")
    return made


@dataclass(frozen=True)
class Subject:
    """What is watched: a stage, or what is in the folder of its lab."""

    stage: Stage
    folder: Path | None = None

    @property
    def name(self) -> str:
        return self.folder.resolve().name if self.folder else self.stage.digits

    @property
    def label(self) -> str:
        return str(self.folder) if self.folder else self.stage.label


def chosen(names: list[str]) -> list[Subject]:
    if len(names) > 2:
        raise Failure(f"a page shows one stage or two, not {len(names)}: leave out '{names[2]}' and what follows.")
    found = [subject(name) for name in names]
    for one in found:
        if not one.stage.kernels:
            raise Failure(f"stage {one.stage.label} is C++ for the CPU, and no emulator sees what it does: watch a stage of "
                          f"kernels, such as {next(stage for stage in all_stages() if stage.kernels).digits}.")
    if len(found) == 2 and found[0] == found[1]:
        raise Failure(f"{found[0].label} beside itself shows nothing: name two stages.")
    return found


def subject(name: str) -> Subject:
    folder = Path(name)
    try:
        return Subject(registry.stage_of(json.loads((folder / "lab.json").read_text())["stage"]), folder)
    except (OSError, ValueError, KeyError, TypeError):
        if folder.is_dir() and (folder / "lab.json").exists():
            answer(["lab", "trace", name])  # it says what is wrong with the folder
    return Subject(find(name, all_stages()))


def pass_of(subjects: list[Subject], backward: bool) -> str:
    stages = [one.stage for one in subjects]
    which = "backward" if backward or not any(stage.forward for stage in stages) else "forward"
    for stage in stages:
        if not getattr(stage, which):
            raise Failure(f"stage {stage.label} has no {which} pass: watch it alone"
                          f"{', without --backward' if backward else ', or beside a stage that has the same'}.")
    return which


def problem_of(arguments: argparse.Namespace, which: str) -> list[str]:
    """The options for the ledger."""
    sizes = DEFAULT[which] if arguments.random is None else arguments.random
    try:
        batch, heads, rows, _ = (int(size) for size in sizes.split(","))
        keys = int(arguments.key_len or rows)
    except ValueError:
        pass  # the program says what is wrong
    else:
        if batch * heads * -(-rows // 64) * -(-keys // 64) > MOST_TILES:
            raise Failure(f"--random {sizes} has more than {MOST_TILES} tiles of 64 x 64: a page of it would be too large to "
                          "play. Fewer heads, or a shorter sequence, show the same.")
    options = ["--random", sizes]
    for name in ("kv_heads", "key_len", "dtype", "variant", "row"):
        value = getattr(arguments, name)
        if value is not None:
            options += [f"--{name.replace('_', '-')}", value]
    return options + ([] if arguments.full else ["--causal"])


def stamps_of(subjects: list[Subject], arguments: argparse.Namespace) -> tuple[str, list[Stamps]]:
    """The GPU whose time is played, and what was stamped there of each stage; "" and nothing without --measured."""
    if not arguments.measured:
        return "", []
    given = [f"--{name.replace('_', '-')}" for name in NOT_MEASURED if getattr(arguments, name)]
    if given:
        raise Failure(f"--measured plays what was measured, at the problem that it was measured at: leave {given[0]} out.")
    found = [None if one.folder else measured.of_stage(one.stage.number) for one in subjects]
    if None in found:
        raise Failure(f"of {subjects[found.index(None)].label} there are no clock stamps in bench/results: leave --measured out, or take "
                      "some on a GPU, with python3 -m bench.measure.stamps.")
    gpus = {gpu for gpu, _ in found}
    if len(gpus) > 1:
        raise Failure(f"the clock stamps are of {' and of '.join(sorted(gpus))}: watch one stage alone.")
    return gpus.pop(), [taken for _, taken in found]


def traced(one: Subject, options: list[str], which: str, stamps: Stamps | None = None) -> dict[str, Any]:
    """What the emulator saw, as a part of the page."""
    from common.course.movie import movie
    from common.course.watch_page import html_lines, shown_path

    if one.folder:
        found = answer(["lab", "trace", str(one.folder), *options])
        source, error = one.folder / found["file"], found["error"]
        if "trace" not in found["stages"][0]:
            raise Failure(f"there is nothing to play of {one.label}: {error or 'it ran no kernel'}")
    else:
        backward = ["--backward"] if which == "backward" else []
        found = answer(["ledger", one.stage.digits, *options, *backward, "--json", "--trace"])
        source, error = source_of(one.stage, found["stages"][0]["trace"]), ""
    lines = registry.lines_of(source)
    timed = Model if stamps is None else functools.partial(Stamped, stamps=stamps)
    return movie(one.stage, one.name, found, (shown_path(lines), html_lines(lines)), error, timed)


def answer(arguments: list[str]) -> Any:
    """What the program says as JSON. A Failure with its own sentence, which names this verb's help."""
    done = subprocess.run([registry.program(), *arguments], capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().replace("./ladder ledger --help lists", "./ladder watch --help lists")
        raise Failure(said.splitlines()[-1].removeprefix("ladder: ") if said
                      else f"the program ended with status {done.returncode}")
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        raise Failure(f"the program's trace cannot be read: {error}.") from error


def source_of(stage: Stage, trace: dict[str, Any]) -> Path:
    """The file that its steps are in: where a kernel.hpp has the kernel, that; a variant has the one of another stage."""
    kernels = [Path(file) for file in trace["files"] if Path(file).name == "kernel.hpp"]
    return registry.ROOT / "stages" / kernels[0].parent.name / kernels[0].name if kernels else stage.source


def run(arguments: argparse.Namespace) -> None:
    from common.course.movie import together
    from common.course.watch_page import page  # Pygments is for pages alone

    if arguments.site is not None:
        if not arguments.site or any(value not in (None, False, []) for name, value in vars(arguments).items() if name != "site"):
            raise Failure("--site writes the pages of all stages into a folder: name the folder, and nothing else.")
        write_site(Path(arguments.site))
        return
    if not arguments.stages:
        raise Failure(with_example("name one stage of kernels, or two: ./ladder watch {after}, ./ladder watch {before} {after}."))
    subjects = chosen(arguments.stages)
    if arguments.out == "":
        raise Failure("--out is empty: say where to write.")
    which = pass_of(subjects, arguments.backward)
    for one in subjects:
        if one.folder and which != passes_of(one.stage):
            raise Failure(f"{one.label} is a lab of the {passes_of(one.stage)} pass: leave --backward out.")
    gpu, stamps = stamps_of(subjects, arguments)
    options = measured.OPTIONS if gpu else problem_of(arguments, which)
    path = Path(arguments.out or f"watch_{'_'.join(one.name for one in subjects)}.html")
    for one in subjects:
        if one.folder and any(path.resolve() == (one.folder / own).resolve() for own in (one.stage.source.name, "lab.json")):
            raise Failure(f"--out {path} would take the place of that file: name another.")
    rungs = []
    for one, own in zip(subjects, stamps or [None] * len(subjects)):
        if sys.stderr.isatty():
            print(f"{one.label}: running on the emulator ...", file=sys.stderr)
        rungs.append(traced(one, options, which, own))
    text = page(together(rungs, gpu))
    write(path, text)
    print(f"{path}: {len(text.encode()) / 1000:.0f} kB; open it in a browser")
    if not arguments.no_open and sys.stdout.isatty():
        webbrowser.open(path.resolve().as_uri())


def passes_of(stage: Stage) -> str:
    return "forward" if stage.forward else "backward"


def write_site(folder: Path) -> None:
    """A page of each stage of kernels, and of each pair of neighbours that have the same pass; part of the guide. A stage is
    played with the problem that its README names, such as what makes it a variant of attention, and so is the one before it
    beside it."""
    from common.course.movie import together
    from common.course.watch_page import page

    @functools.cache
    def rung(stage: Stage, shown_with: Path) -> dict[str, Any]:
        which = passes_of(stage)
        return traced(Subject(stage), problem_of(parser().parse_args(watched_with(shown_with)), which), which)

    make_folder(folder)
    stages = all_stages()
    for stage in stages:
        if stage.kernels:
            write(folder / f"{stage.digits}.html", page(together([rung(stage, stage.readme)])))
    for before, after in watched_pairs(stages):
        alike = watched_with(before.readme) == watched_with(after.readme)
        beside = rung(before, before.readme if alike else after.readme)
        write(folder / f"{before.digits}-{after.digits}.html", page(together([beside, rung(after, after.readme)])))


def watched_pairs(stages: list[Stage]) -> list[tuple[Stage, Stage]]:
    """The neighbours that can be watched side by side."""
    return [(before, after) for before, after in pairs(stages)
            if before.kernels and after.kernels and passes_of(before) == passes_of(after)]


if __name__ == "__main__":
    program.run_verb(parser, run)
