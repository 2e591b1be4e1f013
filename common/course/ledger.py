"""What the ledger says of one stage or of two side by side: the counts, the closed forms of their claims, the ratio."""

import functools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

from common.course.registry import Failure, Stage, digits

PROBLEM = ["--random", "1,2,256,64"]
# A stage that shows all that it changes only with other options says so in its README: <!-- ledger options: --causal -->.
# A problem among them takes the place of the usual one.
OPTIONS = re.compile(r"<!-- ledger options: (.+) -->")
# How the guide shows a variant of attention at work, where that is not the problem above: <!-- watch options: ... -->.
WATCHED = re.compile(r"<!-- watch options: (.+) -->")
TOTALS = {f"{memory}, all {what}: {end}": (f"{memory}.", f".{end}")
          for memory, what, ends in (("global", "buffers", ("read_bytes", "written_bytes", "atomic_bytes")),
                                     ("shared", "arrays", ("read_bytes", "written_bytes"))) for end in ends}


def answer(program: str | Path, arguments: list[str]) -> Any:
    """What the program says as JSON."""
    return json.loads(said(str(program), *arguments, "--json"))


@functools.cache  # a stage is on several pages of the guide, and the program always says the same of it
def said(program: str, *arguments: str) -> str:
    try:
        result = subprocess.run([program, *arguments], capture_output=True, text=True)
    except OSError as error:
        raise Failure(f"{program} cannot be run ({error.strerror}): ./ladder setup builds it") from error
    if result.returncode != 0:
        raise Failure(f"{program} {' '.join(arguments)} failed: {result.stderr.strip()}")
    return result.stdout


def ledgers(program: str | Path, numbers: list[int], more: list[str]) -> tuple[list[dict[str, Any]], str]:
    """What the program says of these stages, in the order of their numbers, and the command that asks it. --variant among
    the options is for the last of them, and those that take all that it takes: the others do plain attention."""
    problem = [*([] if "--random" in more else PROBLEM), *more]
    asked = [(numbers, problem)]
    if "--variant" in more:
        takes = {stage["number"]: {*stage["features"]} for stage in answer(program, ["list"])}
        plain = [number for number in numbers if not takes[numbers[-1]] <= takes[number]]
        if plain:
            at = problem.index("--variant")
            others = [number for number in numbers if number not in plain]
            asked = [(plain, [*problem[:at], *problem[at + 2:]]), (others, problem)]
    stages = [stage for of, options in asked for number in sorted(of)
              for stage in answer(program, ["ledger", digits(number), *options])["stages"]]
    command = "` beside `".join(" ".join(["./ladder ledger", *map(digits, of), *options]) for of, options in asked)
    if [s["number"] for s in stages] != numbers:
        raise Failure(f"{command} --json told of other stages than it was asked for")
    return stages, command


def forms_of(stage: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The closed forms by counter. Each must be what was counted, or says that it is less: a table of others would be a
    lie."""
    for form in stage["closed_forms"]:
        if form["random_too"] and form["value"] < form["measured"]:
            form["text"] = form["text"] if form["text"].startswith("at least ") else "at least " + form["text"]
        elif form["value"] != form["measured"]:
            raise Failure(f"stage {digits(stage['number'])}: {form['counter']} is {form['measured']}, and its closed form "
                          f"{form['text']} is {form['value']}")
    return {form["counter"]: form for form in stage["closed_forms"]}


def count(stage: dict[str, Any], forms: dict[str, dict[str, Any]], counter: str) -> int:
    """The count of this name, "..._elements" included; 0 where there is none."""
    if counter in TOTALS:
        start, end = TOTALS[counter]
        return sum(value for name, value in stage["counts"].items() if name.startswith(start) and name.endswith(end))
    if counter in forms:
        return forms[counter]["measured"]
    if counter.endswith("_elements"):  # all of fp32 here
        return stage["counts"].get(counter.removesuffix("_elements") + "_bytes", 0) // 4
    return stage["counts"].get(counter, 0)


def counters(stages: list[dict[str, Any]], all_forms: list[dict[str, dict[str, Any]]]) -> tuple[list[str], list[str]]:
    """Every counter that may get a line: those of this stage's claim first, then of the one's before, then others."""
    named = dict.fromkeys(name for forms in reversed(all_forms) for name in forms)
    claimed_bytes = {name.removesuffix("_elements") + "_bytes" for name in named if name.endswith("_elements")}
    others = dict.fromkeys(name for stage in reversed(stages) for name in stage["counts"]
                           if not name.startswith("shared.") and name not in claimed_bytes and name not in named
                           and name != "most_tiles_of_multiprocessor")  # a model, shown where a claim is about it
    return list(named), [*others, *TOTALS]


def ratio(before: float, after: float) -> str:
    if before == after:
        return "="
    if before == 0 or after == 0:
        return "new" if before == 0 else "gone"
    factor = f"{max(after / before, before / after):.3g}"
    return "≈" if factor == "1" else f"{'×' if after > before else '÷'} {factor}"


def watched_with(readme: Path) -> list[str]:
    """The options with which ./ladder watch plays a stage in the guide. Where its counts are of a variant of attention,
    they are theirs; none for its usual problem."""
    text = readme.read_text() if readme.exists() else ""
    if found := WATCHED.search(text):
        return found[1].split()
    found = OPTIONS.search(text)
    options = found[1].split() if found else []
    if "--variant" not in options:
        return []
    return [*(option for option in options if option != "--causal"), *([] if "--causal" in options else ["--full"])]


def options_of(stage: Stage, forward: bool) -> list[str]:
    """What the ledger is asked of this stage beside the problem; without `forward` it counts the backward pass."""
    found = OPTIONS.search(stage.readme.read_text()) if stage.readme.exists() else None
    return (found[1].split() if found else []) + ([] if forward else ["--backward"])
