"""When the warps of a block do what on the GPU present: clock stamps of a build that takes them.

    python3 -m bench.measure.stamps --out bench/results/h200/stamps.json     # the stages whose READMEs have a time line

Each stage is compiled twice, as it is and with stamps. Both are checked and timed in turns: what stamps cost is kept beside
them. The stamps of the first block are held against the emulator's trace of the same block. Where a warp did other steps, those
of its stage are left out of FILE, kept beside it to be looked at, and the exit status is 1. bench.report.timeline draws what is
in FILE, and ./ladder watch --measured plays it.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from bench.measure.facts import gpu, new_file, write_result
from bench.results.stamps import D, DTYPE, TIME_LINES, N, packed
from bench.variants.variants import VariantError, Varied, make_all, measure, problem, small_problems
from common.course import registry
from common.course.program import write_file
from common.course.registry import ROOT, Failure
from common.course.stamped_time import FENCE, GOES_ON, STAMPED, Stamped, first_block

FIRST_DRAWN = 49  # of Hopper's forward pass: from here on blocks draw their row tiles, on a GPU not those of the emulator's blocks


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("stages", nargs="*", type=int, metavar="STAGE",
                        help="stages of Hopper's forward pass (default: those that have a time line, and those before them)")
    parser.add_argument("--out", type=new_file, required=True, help="the JSON file to write")
    parser.add_argument("--commit", help="what is measured; asked of git where left out")
    parser.add_argument("--rounds", type=int, default=11, help="runs of each build (11)")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", help="build folder (build/release)")
    return parser.parse_args()


def chosen(numbers):
    stages = {stage.number: stage for stage in registry.all_stages()}
    wanted = numbers or sorted({*TIME_LINES, *(stages[number].before for number in TIME_LINES)})
    known = [number for number in registry.for_hopper("forward") if number < FIRST_DRAWN]
    if other := [number for number in wanted if number not in known]:
        raise VariantError(f"stage {other[0]} cannot be stamped: those that can are {', '.join(map(str, known))}")
    return [Varied(number, stages[number].source.parent, "hopper", "", True) for number in wanted]


def main():
    args, facts = arguments(), gpu()
    os.environ.setdefault("FLASHLADDER_PROGRAM", str(args.build.resolve() / "flashladder"))  # which has the emulator
    stages = chosen(args.stages)
    steps = {stage.number: first_block(stage.number) for stage in stages}
    kinds = sorted({*STAMPED, FENCE, GOES_ON})

    def say(text):
        print(text, file=sys.stderr, flush=True)

    timed = problem(D, False, DTYPE, N)  # with more blocks than multiprocessors
    with tempfile.TemporaryDirectory(prefix="flashladder-stamps-") as folder:
        say(f"Compiling {len(stages)} stages, each with stamps and without ...")
        orders = [{"stage": stage, "folder": folder, "name": f"{stage.number}{'_stamped' * stamped}", "build": args.build,
                   "backend": "cuda", "architecture": facts["architecture"], "only": [(DTYPE, D)], "stamped": stamped}
                  for stage in stages for stamped in (False, True)]
        library = {one["name"]: one["library"] for one in make_all(orders, say)}
        tasks = [{"libraries": [library[f"{stage.number}"], library[f"{stage.number}_stamped"]],
                  "check": [one for one in small_problems(stage, D, False, DTYPE) if one["d"] == D],
                  "time": [timed]} for stage in stages]
        say("Checking, timing and stamping ...")
        results = measure(args.build, folder, tasks, args.rounds, say, rested=True)
    rows, costs, wrong = [], [], []
    for stage, task, result in zip(stages, tasks, results, strict=True):
        plain, stamped = (result[path] for path in task["libraries"])
        if why := plain["wrong"] or stamped["wrong"]:
            raise VariantError(f"stage {stage.number} is not right: {why}")
        stamps = {int(warp): [(what, clock) for what, clock in own] for warp, own in stamped["stamps"][0].items()}
        try:
            Stamped(steps[stage.number], stamps)
        except Failure as failure:
            beside = args.out.with_name(f"{args.out.stem}_{stage.number}_refused.json")
            write_file(beside, json.dumps(stamps))
            wrong.append(f"stage {stage.number}: {failure} ({beside} has them)")
            continue
        costs.append({"stage": stage.number, "ms": statistics.median(plain["ms"][0]), "stamped_ms": statistics.median(stamped["ms"][0])})
        rows += [{"stage": stage.number, "warp": warp, "stamps": packed(own, kinds)}
                 for warp, own in sorted(stamps.items())]
    write_result(args.out, facts, args.commit, problem=timed, pace="rested", rounds=args.rounds, kinds=kinds, costs=costs, rows=rows)
    if wrong:
        raise VariantError("\n".join(wrong))


if __name__ == "__main__":
    try:
        main()
    except (VariantError, Failure) as error:
        sys.exit(f"stamps: {error}")
