#!/usr/bin/env python3
"""What each idea of a tuned stage is worth: the stage without one of them at a time, timed in turns with the whole.

    bench/ablation.py --stage 19 --out bench/results/h200/ablation_19.json --commit HASH    # on a GPU
    bench/ablation.py                                       # writes the tables of the READMEs from these files
    bench/ablation.py --check                               # fails where one is stale

Without an idea means: one of bench/ablations/STAGE/*.patch, or another tile for all head dimensions.
"""

import argparse
import math
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import gpu_results  # noqa: E402
from markers import ROOT, NoMarkers, new_file, with_block  # noqa: E402
from tuned import SHARED_BYTES, TUNED  # noqa: E402
from tune import TOKENS, WIDTH, gpu, problem  # noqa: E402
from variants import (VariantError, make_all, measure, read_table, small_problems, with_rows,  # noqa: E402
                      write_result)

HEAD_DIMS, LENGTHS = (64, 128, 256), (1024, 4096, 16384)
# Ideas that are a tile: what they leave out, and what changes in the tile without.
TILES = {
    19: {"16 rows a warp, not 32, and so 64 a tile, not 128: each fragment of K and V serves one product, and twice as "
         "many bytes of K and V are copied": lambda t: {"Br": 16 * t["warps"]},
         "the other number of buffers of K and V": lambda t: {"stages": 3 - t["stages"]},
         "another number of steps over d unrolled, 4 for 2, else half":
             lambda t: {"unroll": t["unroll"] // 2 if t["unroll"] > 2 else 4}},
    23: {"half as many keys a tile: a fragment of Q and dO serves half the products, and twice as many bytes of Q, dO "
         "and dQ travel": lambda t: {"Bc": t["Bc"] // 2},
         "the other number of buffers of Q and dO": lambda t: {"stages": 3 - t["stages"]},
         "half as many rows of S at a time": lambda t: {"step": max(16, t["step"] // 2)},
         "another number of steps over d unrolled, 2 for 1, else half": lambda t: {"unroll": t["unroll"] // 2 or 2}}}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stage", type=int, choices=list(TILES), help="what is measured: 19 or 23")
    parser.add_argument("--out", type=new_file, help="measure on the GPU present, and write this JSON file")
    parser.add_argument("--commit", help="what is measured; asked of git where left out")
    parser.add_argument("--rounds", type=int, default=11, help="runs of each variant and shape (11)")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", help="build folder (build/release)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a README is stale")
    args = parser.parse_args()
    if args.out is not None and args.check:
        parser.error("--check measures nothing: leave out --out")
    if (args.out is None) != (args.stage is None):
        parser.error("--stage says what is measured, --out where that goes: give both, or none to write the READMEs")
    return args


def result_of(stage):
    return ROOT / f"bench/results/h200/ablation_{stage.number}.json"


def patches(stage):
    return sorted((ROOT / f"bench/ablations/{stage.number}").glob("*.patch"))


def variants(stage, facts):
    """Name and what is to be compiled of each: the whole, without a patch, with another tile."""
    text = stage.table.read_text()
    rows = [row for row in read_table(stage) if (row["architecture"], row["dtype"]) == (facts["architecture"], "bf16")
            and row["d"] in HEAD_DIMS]
    if not rows:
        raise VariantError(f"the table of stage {stage.number} has no rows for this GPU: ./ladder tune makes them")
    yield "", {"table": with_rows(text, rows)}
    for path in patches(stage):
        yield path.read_text().splitlines()[0], {"table": with_rows(text, rows), "patch": path}
    for what, change in TILES[stage.number].items():
        fit = []
        for row in rows:
            tile = dict(zip(stage.fields, row["tile"], strict=True))
            other = [*{**tile, **change(tile)}.values()]
            if other != row["tile"] and not stage.does_not_fit(other, row["d"], SHARED_BYTES[facts["architecture"]]):
                fit.append({**row, "tile": other})
        if fit:
            yield what, {"table": with_rows(text, fit)}


def measured(args, facts, folder, say):
    stage, names, orders = TUNED[args.stage], {}, []
    for i, (what, order) in enumerate(variants(stage, facts)):
        names[f"{i:02}"] = what
        orders.append({"stage": stage, "folder": folder, "name": f"{i:02}", "build": args.build, "backend": "cuda",
                       "architecture": facts["architecture"], **order})
    say(f"Compiling {len(orders)} variants ...")
    made = {one["name"]: one for one in make_all(orders, say)}
    groups = [(d, causal) for d in HEAD_DIMS for causal in (False, True)]
    tasks = []
    for d, causal in groups:
        has = [one["library"] for one in made.values()
               if any((kernel["d"], kernel["causal"]) == (d, causal) for kernel in one["kernels"])]
        tasks.append({"libraries": has, "check": small_problems(stage, d, causal, "bf16"),
                      "time": [problem(d, causal, "bf16", N) for N in LENGTHS]})
    say("Checking and timing ...")
    found = []
    for (d, causal), result in zip(groups, measure(args.build, folder, tasks, args.rounds, say), strict=True):
        whole = [statistics.median(ms) for ms in result[made["00"]["library"]]["ms"]]
        for name, one in made.items():
            if one["library"] not in result:
                continue
            spilled = next(kernel["spilled"] for kernel in one["kernels"]
                           if (kernel["d"], kernel["causal"]) == (d, causal))
            row = {"without": names[name], "d": d, "causal": causal, "spilled": spilled}
            if result[one["library"]]["wrong"]:
                raise VariantError(f"without '{names[name]}' the stage is not right: {result[one['library']]['wrong']}")
            row["ratio"] = [statistics.median(ms) / base for ms, base in
                            zip(result[one["library"]]["ms"], whole, strict=True)]
            found.append(row)
    return found


def block(result):
    """The README's table: how many times as long the stage takes without an idea, over all lengths."""
    columns = [(d, causal) for causal in (False, True) for d in HEAD_DIMS]
    lines = [f"Time without the idea over the time of the whole, geometric mean over N = "
             f"{', '.join(map(str, result['lengths']))} (batch * N = {TOKENS // 1024}k, heads * d = {WIDTH}, bf16); one "
             f"run in turns on one {result['gpu']}, driver {result['driver']}, commit {result['commit']}. Above 1: the "
             "idea pays. A dash: no kernel, because it does not fit or nothing changes.", "",
             "| without | " + " | ".join(f"d = {d}{', causal' * causal}" for d, causal in columns) + " |",
             "|---|" + "--:|" * len(columns)]
    for what in dict.fromkeys(row["without"] for row in result["rows"] if row["without"]):
        cells = []
        for column in columns:
            row = next((row for row in result["rows"] if (row["without"], row["d"], row["causal"]) == (what, *column)), None)
            if row is None:
                cells.append("-")
                continue
            ratio = math.exp(statistics.fmean(map(math.log, row["ratio"])))
            if not math.isfinite(ratio):
                raise VariantError(f"the ablation holds a time that is no number, without '{what}'")
            cells.append(f"{ratio:.3f}" + (f" (spills {row['spilled']} B)" if row["spilled"] else ""))
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    args = arguments()
    if args.out is not None:
        facts = gpu()
        with tempfile.TemporaryDirectory(prefix="flashladder-ablation-") as folder:
            rows = measured(args, facts, folder, lambda text: print(text, file=sys.stderr, flush=True))
        write_result(args.out, facts, args.commit, lengths=LENGTHS, rounds=args.rounds, rows=rows)
        return
    for stage in (TUNED[number] for number in TILES):
        path = result_of(stage)
        is_, should = with_block(stage.readme, "ablation", block(gpu_results.load(path)) if path.exists() else "")
        if args.check and is_ != should:
            sys.exit(f"{stage.folder}/README.md has another ablation than the results: bench/ablation.py writes it")
        if is_ != should:
            stage.readme.write_text(should)


if __name__ == "__main__":
    try:
        main()
    except (VariantError, NoMarkers, gpu_results.BadResult) as error:
        sys.exit(f"ablation: {error}")
