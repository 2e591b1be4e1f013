"""./ladder diff: what changes from one stage to the next, in a terminal or as a page.

    ./ladder diff                          # the pairs of neighbours, with their counted lines
    ./ladder diff {after}                       # stage {after} against the one before it
    ./ladder diff {before} {after}                    # any two, also by name: {name}, {folder}
    ./ladder diff {before} {after} --html change.html # one file that needs no network
    ./ladder diff --site DIR               # a page for each pair of neighbours, and an index; part of the guide

Beside the changed lines of code stand what the ledger counts, what was measured, and what the stage's README says of
the hunks.
"""

import argparse
import os
import re
import shutil
import sys
from pathlib import Path

from common.course import program, registry
from common.course.diff_facts import counts_of, measured
from common.course.diff_model import BUDGET, Diff, pairs, plural
from common.course.diff_readme import explained
from common.course.diff_terminal import Terminal, render
from common.course.registry import Failure, Stage, all_stages


def with_example(text: str) -> str:
    """The text with the numbers and the name of two neighbours in."""
    before, after = (folder.name.partition("_") for folder in registry.example())
    return text.format(before=before[0], after=after[0], name=after[2], folder="".join(after))


def parser() -> argparse.ArgumentParser:
    made = program.Parser(prog="./ladder diff", description=with_example(__doc__.split("\n\n", 1)[1]),
                          formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS)
    made.add_argument("stages", nargs="*", metavar="STAGE", help="a number or a name; one: against the one before it")
    made.add_argument("--html", metavar="FILE", help="write a page instead")
    made.add_argument("--site", metavar="DIR", help="write the pages of all neighbours, and an index, into this folder")
    made.add_argument("--color", "--colour", choices=("auto", "always", "never"), default="auto",
                      metavar="WHEN", help="colour: auto (the default; NO_COLOR turns it off), always or never")
    return made


def find(name: str, stages: list[Stage]) -> Stage:
    """The stage of this number, name or folder."""
    wanted = name.rstrip("/").rsplit("/", 1)[-1]
    for stage in stages:
        if int(wanted) == stage.number if wanted.isdecimal() else wanted in (stage.name, stage.folder.name, stage.label):
            return stage
    shown = name if name.isdecimal() else f"'{name}'"
    spelt = wanted.lower().replace("-", "_").replace(" ", "_")
    if likely := [stage.label for stage in stages if len(spelt) > 2 and spelt in stage.name]:
        raise Failure(f"stage {shown} does not exist: is it {' or '.join(likely)}?")
    raise Failure(f"stage {shown} does not exist: the stages are {numbers(stages)}; ./ladder list shows their names.")


def numbers(stages: list[Stage]) -> str:
    """"00-02, 10, 11", as the program says it: three or more without a gap between them are a range."""
    parts: list[list[str]] = []
    for before, stage in zip([None, *stages], stages):
        if before is None or stage.number != before.number + 1:
            parts.append([])
        parts[-1].append(stage.digits)
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 2 else ", ".join(part) for part in parts)


def chosen(names: list[str], stages: list[Stage]) -> tuple[Stage, Stage]:
    if len(names) > 2:
        raise Failure(f"a diff is of two stages, not of {len(names)}: leave out '{names[2]}' and what follows.")
    if len(names) == 1 and re.fullmatch(r"\d+-\d+", names[0]):
        names = names[0].split("-")
    found = [find(name, stages) for name in names]
    if len(found) == 1:
        before = next(stage for stage in stages if stage.number == found[0].before)
        if before is found[0]:
            raise Failure(f"stage {before.digits} is the first, and has none before it: name two stages.")
        found.insert(0, before)
    if found[0] is found[1]:
        raise Failure(f"{found[0].label} does not differ from itself: name two stages.")
    return found[0], found[1]


def wants_colour(choice: str) -> bool:
    if choice != "auto":
        return choice == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def list_pairs(stages: list[Stage], width: int) -> str:
    """Every pair of neighbours: lines that change, the idea, and why they are more than a stage aims at."""
    terminal = Terminal(width, colour=False)
    lines = [*terminal.wrapped(f"lines that change from a stage to the next, as diff -w counts; a stage aims at {BUDGET}"),
             ""]
    for before, after in pairs(stages):
        diff = Diff(before, after)
        head = f"  {before.digits} {after.digits}  {diff.counted:>4}  (-{diff.removed} +{diff.added})"
        lines += terminal.wrapped(after.idea, f"{head:28}", " " * 28)
        if (explanation := explained(diff)) and explanation.reason:
            lines += terminal.wrapped(f"More than {BUDGET}: {explanation.reason}.", " " * 28, " " * 28)
    lines += ["", *terminal.wrapped(with_example("./ladder diff {before} {after} shows one of them, --html FILE as a page."))]
    return "\n".join(lines) + "\n"


def write(path: Path, text: str | bytes) -> None:
    """All of it or nothing."""
    try:
        program.write_file(path, text)
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}.") from error


def run(arguments: argparse.Namespace) -> None:
    for option in ("html", "site"):
        if getattr(arguments, option) == "":
            raise Failure(f"--{option} is empty: say where to write.")
    stages = all_stages()
    if arguments.site is not None:
        if arguments.stages or arguments.html is not None:
            raise Failure("--site writes all pairs: leave out the stages and --html.")
        write_site(Path(arguments.site), stages)
        return
    width = shutil.get_terminal_size((120, 24)).columns
    if not arguments.stages:
        if arguments.html is not None:
            raise Failure(with_example("--html is the page of two stages: name them, such as ./ladder diff {before} {after} --html "
                                       "FILE."))
        sys.stdout.write(list_pairs(stages, width))
        return
    diff = Diff(*chosen(arguments.stages, stages))
    facts = explained(diff), counts_of(diff.before, diff.after), measured(diff.before, diff.after)
    if arguments.html is None:
        sys.stdout.write(render(diff, *facts, Terminal(width, wants_colour(arguments.color))))
        return
    from common.course.diff_page import page  # Pygments is for pages alone

    text = page(diff, *facts)
    write(Path(arguments.html), text)
    lines, kilobytes = plural(diff.counted, "line changes", "lines change"), len(text.encode()) / 1000
    print(f"{arguments.html}: {lines}, {kilobytes:.0f} kB")


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"cannot make the folder {folder}: {error.strerror}.") from error


def write_site(folder: Path, stages: list[Stage]) -> None:
    from common.course.diff_page import index, page

    make_folder(folder)
    diffs = [Diff(before, after) for before, after in pairs(stages)]
    found = [(diff, explained(diff), counts_of(diff.before, diff.after), measured(diff.before, diff.after))
             for diff in diffs]
    for one in found:
        write(folder / f"{one[0].name}.html", page(*one, site=diffs))
    write(folder / "index.html", index(found))
    print(f"{folder}/index.html and {len(found)} pages")


if __name__ == "__main__":
    program.run_verb(parser, run)
