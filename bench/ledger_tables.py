"""Writes the tables of counts into the READMEs of the stages that have a ledger: this stage beside the one before.

    python3 bench/ledger_tables.py                 # rewrites what stands between the markers
    python3 bench/ledger_tables.py --check         # changes nothing; exits 1 and names each README that is stale

A table has the counters of either stage's claim and all others that differ, but not those that are 0 in both. What is
read and written is added up over all buffers and over all shared arrays; a shared array has lines of its own only where
a claim names it.
"""

import argparse
import json
import subprocess
import sys

from markers import ROOT, NoMarkers, with_block

PROBLEM = ["--random", "1,2,256,64"]
# Stages that show all that they change only with it; a problem takes the place of the usual one.
MORE = {15: ["--causal"], 21: ["--causal"], 24: ["--random", "1,2,512,64"]}
TOTALS = {f"{memory}, all {what}: {end}": (f"{memory}.", f".{end}")
          for memory, what, ends in (("global", "buffers", ("read_bytes", "written_bytes", "atomic_bytes")),
                                     ("shared", "arrays", ("read_bytes", "written_bytes"))) for end in ends}


class Failure(Exception):
    """One sentence for the user."""


def answer(program, arguments):
    """What the program says as JSON."""
    try:
        result = subprocess.run([program, *arguments, "--json"], capture_output=True, text=True)
    except OSError as error:
        raise Failure(f"{program} cannot be run ({error.strerror}): build it, or name one with --program") from error
    if result.returncode != 0:
        raise Failure(f"{program} {' '.join(arguments)} --json failed: {result.stderr.strip()}")
    return json.loads(result.stdout)


def ledgers(program, numbers, more):
    """What the program says of these stages, in the order of their numbers, and the command that asks it."""
    arguments = ["ledger", *(f"{n:02d}" for n in numbers), *([] if "--random" in more else PROBLEM), *more]
    stages = sorted(answer(program, arguments)["stages"], key=lambda s: s["number"])
    if [s["number"] for s in stages] != numbers:
        raise Failure(f"{program} {' '.join(arguments)} --json told of other stages than it was asked for")
    return stages, "./ladder " + " ".join(arguments)


def forms_of(stage):
    """The closed forms by counter. Each must be what was counted: a table of others would be a lie."""
    for form in stage["closed_forms"]:
        if form["value"] != form["measured"]:
            raise Failure(f"stage {stage['number']:02d}: {form['counter']} is {form['measured']}, and its closed form "
                          f"{form['text']} is {form['value']}")
    return {form["counter"]: form for form in stage["closed_forms"]}


def count(stage, forms, counter):
    """The count of this name, "..._elements" included; 0 where there is none."""
    if counter in TOTALS:
        start, end = TOTALS[counter]
        return sum(value for name, value in stage["counts"].items() if name.startswith(start) and name.endswith(end))
    if counter in forms:
        return forms[counter]["measured"]
    if counter.endswith("_elements"):  # all of fp32 here
        return stage["counts"].get(counter.removesuffix("_elements") + "_bytes", 0) // 4
    return stage["counts"].get(counter, 0)


def counters(stages, all_forms):
    """Every counter that may get a line: those of this stage's claim first, then of the one's before, then others."""
    named = dict.fromkeys(name for forms in reversed(all_forms) for name in forms)
    claimed_bytes = {name.removesuffix("_elements") + "_bytes" for name in named if name.endswith("_elements")}
    others = dict.fromkeys(name for stage in reversed(stages) for name in stage["counts"]
                           if not name.startswith("shared.") and name not in claimed_bytes and name not in named)
    return list(named), [*others, *TOTALS]


def ratio(before, after):
    if before == after:
        return "="
    if before == 0 or after == 0:
        return "new" if before == 0 else "gone"
    factor = f"{max(after / before, before / after):.3g}"
    return "≈" if factor == "1" else f"{'×' if after > before else '÷'} {factor}"


def table(program, number, before, more):
    """The Markdown of stage `number`; `before` is None where the stage before has no ledger."""
    numbers = [number] if before is None else [before, number]
    stages, command = ledgers(program, numbers, more)
    all_forms = [forms_of(stage) for stage in stages]
    claimed, others = counters(stages, all_forms)
    heads = [f"{n:02d}" for n in numbers] + ([] if before is None else ["ratio"])
    lines = [f"`{command}`:", "", f"| counter | {' | '.join(heads)} | closed form of {number:02d} |",
             "|---" + "|--:" * len(heads) + "|---|"]
    for counter in claimed + others:
        values = [count(stage, forms, counter) for stage, forms in zip(stages, all_forms)]
        if not any(values) or (counter in others and len(values) == 2 and values[0] == values[1]):
            continue
        cells = [f"{value:,}" for value in values] + ([] if before is None else [ratio(*values)])
        form = all_forms[-1].get(counter, {"text": ""})["text"]
        lines.append(f"| {counter} | {' | '.join(cells)} | {form} |")
    return "\n".join(lines)


def more_for(number, has_forward):
    """What is asked of the ledger for this stage beside the problem; a stage without a forward pass is counted going
    backward."""
    return MORE.get(number, []) + ([] if has_forward else ["--backward"])


def readmes(program):
    """(number, the number before or None, options, README) of each stage with a claim on the ledger."""
    counted = {int(kernel.parent.name[:2]): kernel.parent / "README.md"
               for kernel in sorted(ROOT.glob("stages/[0-9][0-9]_*/attention.cu"))}
    listed = {stage["number"]: stage for stage in answer(program, ["list"])}
    for number, readme in counted.items():
        before = listed[number]["before"]
        yield number, before if before in counted else None, more_for(number, listed[number]["forward"]), readme


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/release/flashladder"),
                        help="the program behind ./ladder (default: build/release/flashladder)")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a README is stale")
    chosen = parser.parse_args()
    stale = []
    for number, before, more, readme in readmes(chosen.program):
        old, new = with_block(readme, "ledger", table(chosen.program, number, before, more))
        if old == new:
            continue
        stale.append(str(readme.relative_to(ROOT)))
        if not chosen.check:
            readme.write_text(new)
    if chosen.check and stale:
        raise Failure(f"stale: {', '.join(stale)}; python3 bench/ledger_tables.py writes them anew")
    for name in stale:
        print(f"{name} updated", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except (Failure, NoMarkers) as failure:
        sys.exit(f"ledger_tables: {failure}")
