#!/usr/bin/env python3
"""The autotuner of stage 19: finds, on the GPU present, the fastest tile for each dtype, head dimension and mask.

    ./ladder tune                      # minutes; rewrites this GPU's rows of stages/19_tuned/table.hpp
    ./ladder tune --d 128 --dry-run    # only look

Each candidate is stage 19 itself, compiled with another table. One that spills registers, does not fit or is not right
is rejected, and the reason is kept; the others are timed in turns, on the same tensors, over the sequence lengths of
the papers' grid. The best has the smallest geometric mean of its time over the fastest time at each length.
"""

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from variants import (ROOT, TABLE, VariantError, make_all, measure, read_table, small_problems,  # noqa: E402
                      with_rows, write_result)

TOKENS, WIDTH = 16384, 2048  # batch * N and heads * d of the papers' grid
HEAD_DIMS = (32, 64, 96, 128, 192, 256)
# Br, Bc, warps: a warp has 16, 32 or 48 rows.
SHAPES = [(64, 32, 4), (64, 64, 4), (64, 128, 4), (128, 32, 4), (128, 64, 4), (128, 96, 4), (128, 128, 4),
          (192, 64, 4), (128, 32, 8), (128, 64, 8), (128, 128, 8), (256, 64, 8), (256, 128, 8)]
BUFFERS = (1, 2)
# Shared memory that a block can have, by compute capability (CUDA C++ Programming Guide, Technical Specifications).
SHARED_BYTES = {80: 163 << 10, 86: 99 << 10, 87: 163 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10,
                103: 227 << 10, 110: 227 << 10, 120: 99 << 10, 121: 99 << 10}


def arguments():
    parser = argparse.ArgumentParser(prog="./ladder tune", description=__doc__.split("\n")[0])
    parser.add_argument("--d", nargs="+", type=int, choices=HEAD_DIMS, default=list(HEAD_DIMS), metavar="D",
                        help="head dimensions: 32 64 96 128 192 256 (all)")
    parser.add_argument("--dtype", nargs="+", choices=["fp16", "bf16"], default=["fp16", "bf16"])
    parser.add_argument("--N", nargs="+", type=int, default=[512, 1024, 2048, 4096, 8192, 16384], metavar="N",
                        help="sequence lengths that are timed (512 1024 ... 16384)")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each candidate at each length (7)")
    parser.add_argument("--dry-run", action="store_true", help="say what is best, and leave the table as it is")
    parser.add_argument("--out", type=Path, help="also write all candidates and their times to this JSON file")
    parser.add_argument("--commit", help="what is tuned, for that file; asked of git where left out")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", help="build folder (build/release)")
    args = parser.parse_args()
    if any(n < 1 or TOKENS % n for n in args.N):
        parser.error(f"--N takes divisors of {TOKENS}")
    if args.rounds < 1:
        parser.error("--rounds takes a number from 1 on")
    return args


def does_not_fit(shape, buffers, d, shared_bytes):
    """Why a tile cannot be a kernel, "" where it can be tried."""
    Br, Bc, warps = shape
    M = Br // warps // 16
    need = 2 * (Br + 2 * buffers * Bc) * d
    if need > shared_bytes:
        return f"takes {need >> 10} KiB of shared memory, and a block can have {shared_bytes >> 10}"
    registers = M * (d // 2 + Bc // 2)  # for O~ and S alone
    return f"takes {registers} registers for O~ and S" if registers > 216 else ""


def gpu():
    """Name, driver and architecture of the first GPU."""
    try:
        line = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader",
                               "--id=0"], capture_output=True, text=True, check=True).stdout.strip()
        name, driver, capability = (word.strip() for word in line.split(","))
        return {"gpu": name, "driver": driver, "architecture": int(capability.replace(".", ""))}
    except (OSError, subprocess.CalledProcessError, ValueError):
        raise VariantError("the autotuner measures on a GPU, and none can be used here (nvidia-smi finds none); "
                           "stage 19 keeps the table that it has") from None


def problem(d, causal, dtype, N):
    return {"batch": TOKENS // N, "heads": max(1, WIDTH // d), "Nq": N, "Nk": N, "d": d, "causal": causal,
            "dtype": dtype}


def orders(args, facts, folder):
    """What is to be compiled: a tile for all head dimensions that it can serve; and why others are not tried."""
    shared_bytes = SHARED_BYTES.get(facts["architecture"])
    if shared_bytes is None:
        raise VariantError(f"compute capability {facts['architecture'] / 10} is not in SHARED_BYTES of bench/tune.py: "
                           "add what a block can have of shared memory there")
    text, wanted, rejected = TABLE.read_text(), [], []
    for shape in SHAPES:
        for buffers in BUFFERS:
            tile = [*shape, buffers]
            rows = []
            for d in args.d:
                why = does_not_fit(shape, buffers, d, shared_bytes)
                for dtype in args.dtype:
                    for causal in (False, True):
                        row = {"architecture": facts["architecture"], "dtype": dtype, "d": d, "causal": causal,
                               "tile": tile}
                        if why:
                            rejected.append({**row, "rejected": why})
                        else:
                            rows.append(row)
            if rows:
                wanted.append({"folder": folder, "name": "x".join(map(str, tile)), "build": args.build,
                               "backend": "cuda", "architecture": facts["architecture"], "table": with_rows(text, rows)})
    return wanted, rejected


def score(times, others):
    """Geometric mean over the lengths of a candidate's median time over the fastest of all."""
    ratios = [statistics.median(mine) / min(statistics.median(all_[i]) for all_ in others)
              for i, mine in enumerate(times)]
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def search(args, facts, folder, say):
    """All candidates, each with its score or why it was rejected."""
    wanted, candidates = orders(args, facts, folder)
    say(f"Compiling {len(wanted)} tiles ...")
    made = make_all(wanted, say)
    groups = [(d, causal, dtype) for d in args.d for causal in (False, True) for dtype in args.dtype]
    tasks, members = [], []
    for d, causal, dtype in groups:
        group = []
        for one in made:
            for kernel in one["kernels"]:
                if (kernel["d"], kernel["causal"], kernel["dtype"]) == (d, causal, dtype):
                    row = {"architecture": facts["architecture"], **kernel}
                    candidates.append(row)
                    if kernel["spilled"]:
                        row["rejected"] = f"spills {kernel['spilled']} bytes of registers"
                    else:
                        group.append((one["library"], row))
        members.append(group)
        tasks.append({"libraries": [library for library, _ in group], "check": small_problems(d, causal, dtype),
                      "time": [problem(d, causal, dtype, N) for N in args.N]})
    say(f"Checking and timing {sum(map(len, members))} kernels, {len(tasks)} groups ...")
    for group, result in zip(members, measure(args.build, folder, tasks, args.rounds, say), strict=True):
        all_times = [found["ms"] for found in result.values() if not found["wrong"]]
        for library, row in group:
            if result[library]["wrong"]:
                row["rejected"] = f"is not right: {result[library]['wrong']}"
                continue
            row["ms"] = dict(zip(map(str, args.N), map(statistics.median, result[library]["ms"]), strict=True))
            row["score"] = score(result[library]["ms"], all_times)
            if not row["score"] >= 1:
                raise VariantError(f"the times of tile {row['tile']} at d = {row['d']} are no numbers")
    return candidates


def new_table(rows, best, architecture):
    """The rows of the table with the best tiles in. What was not tuned of a new architecture is as it was there."""
    mine = [row for row in rows if row["architecture"] == architecture]
    if not mine:
        older = [row["architecture"] for row in rows if row["architecture"] <= architecture]
        like = max(older, default=min(row["architecture"] for row in rows))
        mine = [{**row, "architecture": architecture} for row in rows if row["architecture"] == like]
    chosen = {(row["dtype"], row["d"], row["causal"]): row["tile"] for row in best}
    mine = [{**row, "tile": chosen.get((row["dtype"], row["d"], row["causal"]), row["tile"])} for row in mine]
    others = [row for row in rows if row["architecture"] != architecture]
    return sorted(others + mine, key=lambda row: (row["architecture"], row["dtype"] != "fp16", row["d"], row["causal"]))


def main():
    args = arguments()

    def say(text):
        print(text, file=sys.stderr, flush=True)

    facts = gpu()
    with tempfile.TemporaryDirectory(prefix="flashladder-tune-") as folder:
        candidates = search(args, facts, folder, say)
    text = TABLE.read_text()
    rows = read_table(text)
    before = {(row["dtype"], row["d"], row["causal"]): row["tile"] for row in new_table(rows, [], facts["architecture"])}
    best = []
    print(f"{facts['gpu']}: the best tile (Br x Bc, warps, buffers), and the table's until now with its time over the best")
    for d in args.d:
        for causal in (False, True):
            for dtype in args.dtype:
                group = [row for row in candidates if (row["d"], row["causal"], row["dtype"]) == (d, causal, dtype)]
                timed = sorted((row for row in group if "score" in row), key=lambda row: row["score"])
                if not timed:
                    raise VariantError(f"no tile is right and fits at d = {d}")
                best.append(timed[0])
                old = before[dtype, d, causal]
                was = next((f"{row['score'] / timed[0]['score']:.3f}" for row in timed if row["tile"] == old), "not timed")
                show = "{}x{}, {}, {}".format
                print(f"  d = {d:3} {'causal' if causal else 'full  '} {dtype}   {show(*timed[0]['tile']):14} "
                      f"{timed[0]['registers']} registers   until now {show(*old):14} {was}")
    if args.out is not None:
        write_result(args.out, facts, args.commit, lengths=args.N, rounds=args.rounds, candidates=candidates)
    if not args.dry_run:
        TABLE.write_text(with_rows(text, new_table(rows, best, facts["architecture"])))
        print(f"{TABLE.relative_to(ROOT)} has these tiles now. Next: ./ladder test 19, then ./ladder bench; where the "
              "counts have changed, bench/ledger_tables.py writes the README's")


if __name__ == "__main__":
    try:
        main()
    except VariantError as error:
        sys.exit(f"tune: {error}")
