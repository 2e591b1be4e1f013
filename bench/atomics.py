#!/usr/bin/env python3
"""What stage 23's atomics cost, what it costs stage 24 to do without, and what it costs to compute P again: times of
variants, in turns, on a GPU.

    bench/atomics.py --out bench/results/h200/atomics.json --commit HASH

bench/gpu_report.py makes the table and the charts of docs/theory/atomics.md of that file. Two of the variants write dQ
wrongly, by design: they are there for their time alone, and are not checked. All others are.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from markers import ROOT, new_file, nvidia_smi  # noqa: E402
from tune import TOKENS, WIDTH, gpu, new_table, problem  # noqa: E402
from tuned import TUNED  # noqa: E402
from variants import (VariantError, make_all, measure, read_table, small_problems, with_rows,  # noqa: E402
                      write_result)

HEAD_DIMS, LENGTHS, HEADS = (64, 128), (512, 1024, 2048, 4096, 8192, 16384), (1, 2, 4, 8, 16)
PATCHES = ROOT / "bench/atomics"
# Name, stage, patch, whether dQ is right.
WHOLE, STORES, APART, FOUR_BYTES, STORED_P, ROLLED, DETERMINISTIC = (
    "stage 23", "stores", "stores apart", "4-byte atomics", "stored P", "not unrolled", "stage 24")
VARIANTS = [(WHOLE, 23, None, True), (STORES, 23, "1_stores.patch", False), (APART, 23, "2_stores_apart.patch", False),
            (FOUR_BYTES, 23, "3_four_bytes.patch", True), (STORED_P, 23, "4_stored_P.patch", True),
            (ROLLED, 23, "5_not_unrolled.patch", True), (DETERMINISTIC, 24, None, True)]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=new_file, required=True, help="the JSON file to write")
    parser.add_argument("--commit", help="what is measured; asked of git where left out")
    parser.add_argument("--rounds", type=int, default=11, help="runs of each variant and shape (11)")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", help="build folder (build/release)")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds takes a number from 1 on")
    return args


def rows_for(stage, facts):
    """The rows of the stage's table that serve this GPU, of the shapes that are measured."""
    rows = new_table(read_table(stage), [], facts["architecture"])
    return [row for row in rows if (row["architecture"], row["dtype"]) == (facts["architecture"], "bf16")
            and row["d"] in HEAD_DIMS]


def orders(facts, folder, build):
    """What is to be compiled, by name."""
    result = {}
    for i, (name, number, patch, _) in enumerate(VARIANTS):
        stage = TUNED[number]
        result[name] = {"stage": stage, "folder": folder, "name": str(i), "build": build, "backend": "cuda",
                        "architecture": facts["architecture"],
                        "table": with_rows(stage.table.read_text(), rows_for(stage, facts)),
                        "patch": PATCHES / patch if patch else None}
    return result


def problems(d, causal):
    """Over the sequence length, and over the heads at the longest one."""
    grid = [problem(d, causal, "bf16", N) for N in LENGTHS]
    return grid + [one for heads in HEADS if (one := {**grid[-1], "batch": 1, "heads": heads}) not in grid]


def extra_bytes(one, Bc):
    """Memory that two variants take beside: a dQ in fp32 for each tile of keys, and P in 16 bits."""
    heads = one["batch"] * one["heads"]
    return {APART: -(-one["Nk"] // Bc) * 4 * heads * one["Nq"] * one["d"], STORED_P: 2 * heads * one["Nq"] * one["Nk"]}


def free_bytes():
    """Of the first GPU."""
    mib, = nvidia_smi("memory.free") or [""]
    if not mib.isdigit():
        raise VariantError("nvidia-smi does not say how much memory the GPU has free")
    return int(mib) << 20


def measured(args, facts, memory, folder, say):
    """The kernels, with the registers of each; and a row for each shape: its numbers, and the median milliseconds of
    each variant. One that would take more than a third of the free memory is left out."""
    wanted = orders(facts, folder, args.build)
    say(f"Compiling {len(wanted)} variants ...")
    made = {one["name"]: one for one in make_all(list(wanted.values()), say)}
    libraries = {name: made[order["name"]]["library"] for name, order in wanted.items()}
    kernels = [{"variant": name, **kernel} for name, order in wanted.items()
               for kernel in made[order["name"]]["kernels"]]
    right = [libraries[name] for name, _, _, is_right in VARIANTS if is_right]
    tiles = {(row["d"], row["causal"]): row["tile"] for row in rows_for(TUNED[23], facts)}
    tasks, shapes = [], []
    for d in HEAD_DIMS:
        for causal in (False, True):
            Bc = tiles[d, causal][TUNED[23].fields.index("Bc")]
            tasks.append({"libraries": right, "time": [], "check": small_problems(TUNED[23], d, causal, "bf16")})
            shapes.append([])
            by_names = {}
            for one in problems(d, causal):
                too_large = {name for name, size in extra_bytes(one, Bc).items() if size > memory / 3}
                by_names.setdefault(tuple(name for name in libraries if name not in too_large), []).append(one)
            for names, time in by_names.items():
                tasks.append({"libraries": [libraries[name] for name in names], "check": [], "time": time})
                shapes.append(time)
    say("Checking and timing ...")
    rows = []
    for time, result in zip(shapes, measure(args.build, folder, tasks, args.rounds, say), strict=True):
        for name, library in libraries.items():
            if result.get(library, {}).get("wrong"):
                raise VariantError(f"{name} is not right: {result[library]['wrong']}")
        for i, one in enumerate(time):
            rows.append({**{key: one[key] for key in ("d", "causal", "batch", "heads")}, "N": one["Nq"],
                         "ms": {name: statistics.median(result[library]["ms"][i])
                                for name, library in libraries.items() if library in result}})
    return kernels, rows


def counts(row, kernels):
    """Of a shape, with the tiles of stages 23 and 24 there: how many blocks add to a row of dQ at most, bytes of fp32
    that all add, splits of stage 24 and the bytes that these take."""
    d, N, causal, BH = row["d"], row["N"], row["causal"], row["batch"] * row["heads"]
    of = {one["variant"]: one["tile"] for one in kernels if (one["d"], one["causal"]) == (d, causal)}
    Br, Bc = of[WHOLE][:2]
    Tr, Tc = -(-N // Br), -(-N // Bc)
    live = sum(-(-min(N, (i + 1) * Br) // Bc) if causal else Tc for i in range(Tr))
    Br_24, Bc_24 = of[DETERMINISTIC][:2]
    rows_24, Tc_24 = -(-N // Br_24) * Br_24, -(-N // Bc_24)
    most = min(-(-256 // BH), -(-Tc_24 // 2))
    splits = -(-Tc_24 // -(-Tc_24 // most))
    return {"blocks": Tc, "added": 4 * BH * live * Br * d, "splits": splits,
            "split_bytes": 4 * splits * BH * rows_24 * d}


def main():
    args = arguments()
    facts, memory = gpu(), free_bytes()
    with tempfile.TemporaryDirectory(prefix="flashladder-atomics-") as folder:
        kernels, rows = measured(args, facts, memory, folder, lambda text: print(text, file=sys.stderr, flush=True))
    write_result(args.out, facts, args.commit, rounds=args.rounds, tokens=TOKENS, width=WIDTH, dtype="bf16",
                 not_checked=[name for name, _, _, is_right in VARIANTS if not is_right], kernels=kernels, rows=rows)


if __name__ == "__main__":
    try:
        main()
    except VariantError as error:
        sys.exit(f"atomics: {error}")
