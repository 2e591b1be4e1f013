"""The autotuner: finds, on the GPU present, the fastest tile of a stage for each dtype, head dimension and mask.

    ./ladder tune                       # minutes; rewrites this GPU's rows of table.hpp in each stage that has one
    ./ladder tune --d 128 --dry-run     # only look

Each candidate is the stage itself, compiled with another table. One that spills registers, does not fit or is not right
is rejected, and the reason is kept; so is one that takes much longer than the fastest at a middle length. The others
are timed in turns, on the same tensors, over the sequence lengths of the papers' grid. The best has the smallest
geometric mean of its time over the fastest time at each length.
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
    args.stage = list(dict.fromkeys(args.named + args.stage)) or list(TUNED)
    for number in args.stage:
        has = head_dims(TUNED[number])
        if unknown := sorted(set(args.d or []) - set(has)):
            parser.error(f"stage {number} has no tiles for d = {unknown[0]}, only for {' '.join(map(str, has))}")
    return args


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
        for d in args.d or head_dims(stage):
            why = stage.does_not_fit(tile, d, shared_bytes)
            for dtype in args.dtype:
                for causal in (False, True):
                    row = {"architecture": facts["architecture"], "dtype": dtype, "d": d, "causal": causal,
                           "tile": tile}
                    if why:
                        rejected.append({"stage": stage.number, **row, "rejected": why})
                    else:
                        rows.append(row)
        if rows:
            wanted.append({"stage": stage, "folder": folder, "name": f"{stage.number}_" + "x".join(map(str, tile)),
                           "build": args.build, "backend": "cuda", "architecture": facts["architecture"],
                           "table": with_rows(text, rows)})
    return wanted, rejected


def score(times, others):
    """Geometric mean over the lengths of a candidate's median time over the fastest of all."""
    ratios = [statistics.median(mine) / min(statistics.median(all_[i]) for all_ in others)
              for i, mine in enumerate(times)]
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def search(stage, args, facts, folder, say):
    """All candidates, each with its score or why it was rejected."""
    wanted, candidates = orders(stage, args, facts, folder)
    say(f"Stage {stage.number}: compiling {len(wanted)} tiles ...")
    made = make_all(wanted, say)
    keys = [(d, causal, dtype) for d in args.d or head_dims(stage) for causal in (False, True) for dtype in args.dtype]
    groups = {key: {} for key in keys}  # by library the candidate in it
    for one in made:
        for kernel in one["kernels"]:
            row = {"stage": stage.number, "architecture": facts["architecture"], **kernel}
            candidates.append(row)
            if kernel["spilled"]:
                row["rejected"] = f"spills {kernel['spilled']} bytes of registers"
            else:
                groups[kernel["d"], kernel["causal"], kernel["dtype"]][one["library"]] = row

    def results(rounds, lengths, check=False):
        """Each group with its milliseconds; who is checked and not right is rejected and leaves it."""
        tasks = [{"libraries": list(group), "check": small_problems(stage, *key) if check else [],
                  "time": [problem(*key, N) for N in lengths]} for key, group in groups.items()]
        for group, result in zip(groups.values(), measure(args.build, folder, tasks, rounds, say), strict=True):
            for library in list(group):
                if result[library]["wrong"]:
                    group.pop(library)["rejected"] = f"is not right: {result[library]['wrong']}"
            yield group, {library: result[library]["ms"] for library in group}

    middle = sorted(args.N)[len(args.N) // 2]
    say(f"Checking {sum(map(len, groups.values()))} kernels in {len(groups)} groups, and looking at N = {middle} ...")
    # Checked first: a wrong kernel may be fast, and must not decide how long the others may take.
    for group, ms in results(3, [middle], check=True):
        least = {library: min(times[0]) for library, times in ms.items()}
        for library, time in least.items():
            if time > MUCH_LONGER * min(least.values()):
                row = group.pop(library)
                row["rejected"] = f"takes {time / min(least.values()):.2f} times the fastest at N = {middle}"
    say(f"Timing the {sum(map(len, groups.values()))} that are left ...")
    for group, ms in results(args.rounds, args.N):
        for library, row in group.items():
            row["ms"] = dict(zip(map(str, args.N), map(statistics.median, ms[library]), strict=True))
            row["score"] = score(ms[library], list(ms.values()))
            if not row["score"] >= 1:
                raise VariantError(f"the times of tile {row['tile']} at d = {row['d']} are no numbers")
    return candidates


def chosen(stage, args, facts, candidates):
    """The best of the candidates for each dtype, head dimension and mask, each printed beside the table's until now."""
    before = {(row["dtype"], row["d"], row["causal"]): row["tile"] for row in until_now(stage, facts["architecture"])}
    best = []
    print(f"Stage {stage.number} on {facts['gpu']}: the best tile ({', '.join(stage.fields)}), and the table's until "
          "now with its time over the best")
    for d in args.d or head_dims(stage):
        for causal in (False, True):
            for dtype in args.dtype:
                group = [row for row in candidates if (row["d"], row["causal"], row["dtype"]) == (d, causal, dtype)]
                timed = sorted((row for row in group if "score" in row), key=lambda row: row["score"])
                if not timed:
                    raise VariantError(f"no tile of stage {stage.number} is right and fits at d = {d}")
                best.append(timed[0])
                old = before[dtype, d, causal]
                was = next((f"{row['score'] / timed[0]['score']:.3f}" for row in timed if row["tile"] == old), "not timed")
                print(f"  d = {d:3} {'causal' if causal else 'full  '} {dtype}   {tile_text(timed[0]['tile']):24} "
                      f"{timed[0]['registers']} registers   until now {tile_text(old):24} {was}")
    return best


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
    stages = [TUNED[number] for number in args.stage]
    winners = []
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
    numbers = " ".join(map(str, args.stage))
    print(f"The tables of {numbers} have these tiles now. Next: ./ladder test {numbers}, then ./ladder bench; where "
          "the counts have changed, python3 -m bench.report.ledger_tables writes those of the READMEs, and Hopper's tiles "
          "are in a table there")


if __name__ == "__main__":
    run(main)
