"""What the atomics of the tuned backward pass cost, what it costs the deterministic stage to do without, and what it
costs to compute P again: times of variants, in turns, on a GPU.

    python3 -m bench.measure.atomics --out bench/results/h200/atomics.json

bench.report.gpu_report makes the table and the charts of docs/theory/atomics.md of that file. Two of the variants write dQ
wrongly, by design: they are there for their time alone, and are not checked. All others are.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from bench.measure.facts import gpu, new_file, nvidia_smi, write_result
from bench.results.gpu import TOKENS, WIDTH
from bench.variants.tuned import deterministic, tuned
from bench.variants.variants import (VariantError, make_all, measure, new_table, problem, read_table, small_problems,
                                     with_rows)
from common.course.registry import ROOT

HEAD_DIMS, LENGTHS, HEADS = (64, 128), (512, 1024, 2048, 4096, 8192, 16384), (1, 2, 4, 8, 16)
PATCHES = ROOT / "bench/variants/atomics"
# Name, stage, patch, whether dQ is right.
WHOLE, STORES, APART, FOUR_BYTES, STORED_P, ROLLED, DETERMINISTIC = (
    f"stage {tuned('backward').number}", "stores", "stores apart", "4-byte atomics", "stored P", "not unrolled",
    f"stage {deterministic('backward').number}")
VARIANTS = [(WHOLE, tuned("backward"), None, True), (STORES, tuned("backward"), "1_stores.patch", False),
            (APART, tuned("backward"), "2_stores_apart.patch", False),
            (FOUR_BYTES, tuned("backward"), "3_four_bytes.patch", True),
            (STORED_P, tuned("backward"), "4_stored_P.patch", True),
            (ROLLED, tuned("backward"), "5_not_unrolled.patch", True),
            (DETERMINISTIC, deterministic("backward"), None, True)]


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
    for i, (name, stage, patch, _) in enumerate(VARIANTS):
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
    wanted, whole = orders(facts, folder, args.build), tuned("backward")
    say(f"Compiling {len(wanted)} variants ...")
    made = {one["name"]: one for one in make_all(list(wanted.values()), say)}
    libraries = {name: made[order["name"]]["library"] for name, order in wanted.items()}
    kernels = [{"variant": name, **kernel} for name, order in wanted.items()
               for kernel in made[order["name"]]["kernels"]]
    right = [libraries[name] for name, _, _, is_right in VARIANTS if is_right]
    tiles = {(row["d"], row["causal"]): row["tile"] for row in rows_for(whole, facts)}
    tasks, shapes = [], []
    for d in HEAD_DIMS:
        for causal in (False, True):
            Bc = tiles[d, causal][whole.fields.index("Bc")]
            tasks.append({"libraries": right, "time": [], "check": small_problems(whole, d, causal, "bf16")})
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
