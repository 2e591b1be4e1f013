"""The autotuner: finds, on the GPU present, the fastest tile of a stage for each dtype, head dimension and mask.

    ./ladder tune                       # minutes; rewrites this GPU's rows of table.hpp in each stage that has one
    ./ladder tune --d 128 --dry-run     # only look

Each candidate is the stage itself, compiled with another table. One that spills registers, whose wgmma ptxas reorders,
that does not fit or is not right is rejected, and the reason is kept; so is one that takes much longer than the fastest
at a middle length. The others are timed in turns, on the same tensors, over the sequence lengths of the papers' grid. The
best has the smallest geometric mean of its time over the fastest time at each length. On Hopper alone one kernel serves
both dtypes and masks: there the mean is over those, too.
"""

import math
import os
import statistics
import sys
import tempfile
from argparse import ArgumentTypeError
from pathlib import Path

from bench.measure.facts import gpu, new_file, write_result
from bench.results.gpu import TOKENS
from bench.variants.tuned import SHARED_BYTES, TUNED
from bench.variants.variants import (VariantError, make_all, measure, new_table, problem, read_table, small_problems,
                                     until_now, with_rows)
from common.course.program import Parser, run, write_file
from common.course.registry import ROOT

MUCH_LONGER = 1.1  # than the fastest at the middle length: not timed further


def head_dims(stage):
    """Those that its table has rows for."""
    return sorted({row["d"] for row in read_table(stage)})


def tuned_stage(word):
    """The number of the stage of this number, name or folder, as an argument's type."""
    wanted = word.rstrip("/").rsplit("/", 1)[-1]
    for number, stage in TUNED.items():
        if int(wanted) == number if wanted.isdecimal() else wanted in (stage.name, stage.place.name):
            return number
    raise ArgumentTypeError(f"stage {word} has no table of tiles; those that have are {', '.join(map(str, TUNED))}")


def arguments():
    parser = Parser(prog="./ladder tune", description=__doc__.split("\n")[0])
    parser.add_argument("named", nargs="*", type=tuned_stage, metavar="STAGE",
                        help=f"those with a table of tiles, by number or name: {' '.join(map(str, TUNED))} (all)")
    parser.add_argument("--stage", nargs="+", type=tuned_stage, default=[], metavar="STAGE", help="the same")
    parser.add_argument("--d", nargs="+", type=int, metavar="D", help="head dimensions (all of the tables)")
    parser.add_argument("--dtype", nargs="+", choices=["fp16", "bf16"], default=["fp16", "bf16"])
    parser.add_argument("--N", nargs="+", type=int, default=[512, 1024, 2048, 4096, 8192, 16384], metavar="N",
                        help="sequence lengths that are timed (512 1024 ... 16384)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each candidate at each length (5)")
    parser.add_argument("--dry-run", action="store_true", help="say what is best, and leave the tables as they are")
    parser.add_argument("--out", type=new_file, help="also write the best tiles and their times to this JSON file")
    parser.add_argument("--commit", help="what is tuned, for that file; asked of git where left out")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", help="build folder (build/release)")
    args = parser.parse_args()
    if any(n < 1 or TOKENS % n for n in args.N):
        parser.error(f"--N takes divisors of {TOKENS}")
    if args.rounds < 1:
        parser.error("--rounds takes a number from 1 on")
    args.stage = list(dict.fromkeys(args.named + args.stage))
    for number in args.stage or TUNED:
        has = head_dims(TUNED[number])
        if unknown := sorted(set(args.d or []) - set(has)):
            parser.error(f"stage {number} has no tiles for d = {unknown[0]}, only for {' '.join(map(str, has))}")
    return args


def kernels_of(stage, args, facts):
    """What the stage's kernels are asked to serve, {architecture, dtype, d, causal}, in order."""
    return [{"architecture": facts["architecture"], "dtype": dtype, "d": d, "causal": causal}
            for d in args.d or head_dims(stage) for causal in (False, True) for dtype in args.dtype]


def orders(stage, args, facts, folder):
    """What is to be compiled: a tile for all head dimensions that it can serve; and why others are not tried."""
    shared_bytes = SHARED_BYTES.get(facts["architecture"])
    if shared_bytes is None:
        raise VariantError(f"compute capability {facts['architecture'] / 10} is not in SHARED_BYTES of "
                           "bench/variants/tuned.py: add what a block can have of shared memory there")
    text, wanted, rejected = stage.table.read_text(), [], []
    tiles = stage.candidates
    for row in until_now(stage, facts["architecture"]):  # is tried, too
        if row["tile"] not in tiles:
            tiles.append(row["tile"])
    for tile in tiles:
        rows = []
        for kernel in kernels_of(stage, args, facts):
            row = stage.row(kernel, tile)
            why = stage.does_not_fit(tile, row["d"], shared_bytes)
            known = rejected if why else rows
            row = {"stage": stage.number, **row, "rejected": why} if why else row
            if row not in known:
                known.append(row)
        if rows:
            wanted.append({"stage": stage, "folder": folder, "name": f"{stage.number}_" + "x".join(map(str, tile)),
                           "build": args.build, "backend": "cuda", "architecture": facts["architecture"],
                           "table": with_rows(text, rows)})
    return wanted, rejected


def score(times, others, of=statistics.median):
    """Geometric mean over the problems of a candidate's time over the fastest of all; a time is the median of runs."""
    ratios = [of(mine) / min(of(all_[i]) for all_ in others) for i, mine in enumerate(times)]
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def search(stage, args, facts, folder, say):
    """All candidates, each with its score or why it was rejected."""
    wanted, candidates = orders(stage, args, facts, folder)
    say(f"Stage {stage.number}: compiling {len(wanted)} tiles ...")
    made = make_all(wanted, say)
    served = {}  # by what has a tile of its own what that serves
    for kernel in kernels_of(stage, args, facts):
        served.setdefault(of_row(stage, kernel), []).append((kernel["d"], kernel["causal"], kernel["dtype"]))
    groups = {key: {} for key in served}  # by library the candidate in it
    for one in made:
        for kernel in one["kernels"]:
            kernel = {"architecture": facts["architecture"], **kernel}
            row = groups[of_row(stage, kernel)].setdefault(one["library"], {
                "stage": stage.number, **stage.row(kernel, kernel["tile"]), "registers": 0, "spilled": 0})
            row["registers"] = max(row["registers"], kernel["registers"])
            row["spilled"] = max(row["spilled"], kernel["spilled"])
            if row["spilled"]:
                row["rejected"] = f"spills {row['spilled']} bytes of registers"
            elif kernel["reordered"]:
                row["rejected"] = f"has wgmma that ptxas reorders: {kernel['reordered']}"
    for group in groups.values():
        candidates += group.values()
        for library in [library for library, row in group.items() if "rejected" in row]:
            del group[library]

    def results(rounds, lengths, check=False):
        """Each group with its milliseconds; who is checked and not right is rejected and leaves it."""
        asked = [(key, problems) for key in groups for problems in served[key]]
        tasks = [{"libraries": list(groups[key]), "check": small_problems(stage, *problems) if check else [],
                  "time": [problem(*problems, N) for N in lengths]} for key, problems in asked]
        ms = {key: {library: [] for library in group} for key, group in groups.items()}
        for (key, _), result in zip(asked, measure(args.build, folder, tasks, rounds, say), strict=True):
            for library, found in result.items():
                ms[key][library] += found["ms"]
                if found["wrong"] and library in groups[key]:
                    groups[key].pop(library)["rejected"] = f"is not right: {found['wrong']}"
        for key, group in groups.items():
            yield group, {library: ms[key][library] for library in group}

    middle = sorted(args.N)[len(args.N) // 2]
    say(f"Checking {sum(map(len, groups.values()))} kernels in {len(groups)} groups, and looking at N = {middle} ...")
    # Checked first: a wrong kernel may be fast, and must not decide how long the others may take.
    for group, ms in results(3, [middle], check=True):
        takes = {library: score(times, ms.values(), min) for library, times in ms.items()}
        for library, times in takes.items():
            if times > MUCH_LONGER * min(takes.values()):
                row = group.pop(library)
                row["rejected"] = f"takes {times / min(takes.values()):.2f} times the fastest at N = {middle}"
    say(f"Timing the {sum(map(len, groups.values()))} that are left ...")
    for (key, problems), (group, ms) in zip(served.items(), results(args.rounds, args.N), strict=True):
        for library, row in group.items():
            row["ms"] = dict(zip(names_of(problems, args.N), map(statistics.median, ms[library]), strict=True))
            row["score"] = score(ms[library], list(ms.values()))
            if not row["score"] >= 1:
                raise VariantError(f"the times of tile {row['tile']} at d = {row['d']} are no numbers")
    return candidates


def chosen(stage, args, facts, candidates):
    """The best of the candidates for each row of the table, printed beside the table's until now."""
    before = {of_row(stage, row): row["tile"] for row in until_now(stage, facts["architecture"])}
    best = []
    print(f"Stage {stage.number} on {facts['gpu']}: the best tile ({', '.join(stage.fields)}), and the table's until "
          "now with its time over the best")
    for key in dict.fromkeys(of_row(stage, kernel) for kernel in kernels_of(stage, args, facts)):
        group = [row for row in candidates if of_row(stage, row) == key]
        timed = sorted((row for row in group if "score" in row), key=lambda row: row["score"])
        if not timed:
            raise VariantError(f"no tile of stage {stage.number} is right and fits at d = {key[stage.of.index('d')]}")
        best.append(timed[0])
        old = before[key]
        was = next((f"{row['score'] / timed[0]['score']:.3f}" for row in timed if row["tile"] == old), "not timed")
        print(f"  {row_text(timed[0])}   {tile_text(timed[0]['tile']):24} {timed[0]['registers']} registers   "
              f"until now {tile_text(old):24} {was}")
    return best


def of_row(stage, row):
    """What a row of the table, or a kernel, is of."""
    return tuple(row[name] for name in stage.of)


def names_of(problems, lengths):
    """What the times of a candidate are of: lengths, and where its tile serves several kinds of problems those, too."""
    return [str(N) if len(problems) == 1 else f"{dtype} {'causal' if causal else 'full'} {N}"
            for _, causal, dtype in problems for N in lengths]


def row_text(row):
    """What a row is of, for people."""
    return f"d = {row['d']:3}" + (f" {'causal' if row['causal'] else 'full  '} {row['dtype']}" if "dtype" in row else "")


def tile_text(tile):
    return ", ".join(map(str, tile))


def main():
    try:
        tune()
    except VariantError as error:
        sys.exit(f"tune: {error}")


def tune():
    args = arguments()
    if os.environ.get("FLASHLADDER_ONLY_CHECK"):  # ./ladder, before it compiles what this runs
        return

    def say(text):
        print(text, file=sys.stderr, flush=True)

    facts = gpu()
    stages, winners = [], []
    for stage in (TUNED[number] for number in args.stage or TUNED):
        if why := stage.does_not_run(facts["architecture"]):
            if args.stage:
                raise VariantError(why)
            say(f"left out: {why}")
        else:
            stages.append(stage)
    with tempfile.TemporaryDirectory(prefix="flashladder-tune-") as folder:
        for stage in stages:
            best = chosen(stage, args, facts, search(stage, args, facts, folder, say))
            winners += best
            if args.out is not None:  # after each stage: what is known must not be lost
                write_result(args.out, facts, args.commit, lengths=args.N, rounds=args.rounds,
                             tiles={stage.number: stage.fields for stage in stages}, winners=winners)
            if not args.dry_run:
                rows = new_table(read_table(stage), best, facts["architecture"])
                write_file(stage.table, with_rows(stage.table.read_text(), rows))
    if args.dry_run:
        return
    numbers = " ".join(str(stage.number) for stage in stages)
    print(f"The tables of {numbers} have these tiles now. Next: ./ladder test {numbers}, then ./ladder bench; where "
          "the counts have changed, python3 -m bench.report.ledger_tables writes those of the READMEs, and Hopper's tiles "
          "are in a table there")


if __name__ == "__main__":
    run(main)
