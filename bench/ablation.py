#!/usr/bin/env python3
"""What each idea of stage 19 is worth: the stage without one of them at a time, timed in turns with the whole.

    bench/ablation.py --out bench/results/h200/ablation.json --commit HASH    # on a GPU
    bench/ablation.py                                                         # writes the README's table from it
    bench/ablation.py --check                                                 # fails where the table is stale

Without an idea means: one of bench/ablations/*.patch, or another tile for all head dimensions.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from markers import NoMarkers, with_block  # noqa: E402
from tune import SHARED_BYTES, TOKENS, WIDTH, does_not_fit, gpu, problem  # noqa: E402
from variants import (ROOT, STAGE, TABLE, VariantError, make_all, measure, read_table,  # noqa: E402
                      small_problems, with_rows, write_result)

RESULT = ROOT / "bench/results/h200/ablation.json"
README = ROOT / STAGE / "README.md"
HEAD_DIMS, LENGTHS = (64, 128, 256), (1024, 4096, 16384)
# Ideas that are a tile: what they leave out, and the tile without.
TILES = {"16 rows a warp, not 32: each fragment of K and V serves one product": lambda tile: [64, *tile[1:2], 4, 1],
         "two buffers each of K and V, not one": lambda tile: [*tile[:3], 2]}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="measure on the GPU present, and write this JSON file")
    parser.add_argument("--commit", help="what is measured; asked of git where left out")
    parser.add_argument("--rounds", type=int, default=11, help="runs of each variant and shape (11)")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", help="build folder (build/release)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the README is stale")
    args = parser.parse_args()
    if args.out is not None and args.check:
        parser.error("--check measures nothing: leave out --out")
    return args


def variants(facts):
    """Name and what is to be compiled of each: the whole, without a patch, with another tile."""
    text = TABLE.read_text()
    rows = [row for row in read_table(text) if row["architecture"] == facts["architecture"]]
    if not rows:
        raise VariantError("the table has no rows for this GPU: ./ladder tune makes them")
    yield "", {}
    for path in sorted((ROOT / "bench/ablations").glob("*.patch")):
        yield path.read_text().splitlines()[0], {"patch": path}
    for what, change in TILES.items():
        changed = [{**row, "tile": change(row["tile"])} for row in rows]
        fit = [row for row, old in zip(changed, rows, strict=True) if row["tile"] != old["tile"] and not does_not_fit(
            row["tile"][:3], row["tile"][3], row["d"], SHARED_BYTES[facts["architecture"]])]
        if fit:
            yield what, {"table": with_rows(text, fit)}


def measured(args, facts, folder, say):
    names, orders = {}, []
    for i, (what, order) in enumerate(variants(facts)):
        names[f"{i:02}"] = what
        orders.append({"folder": folder, "name": f"{i:02}", "build": args.build, "backend": "cuda",
                       "architecture": facts["architecture"], **order})
    say(f"Compiling {len(orders)} variants ...")
    made = {one["name"]: one for one in make_all(orders, say)}
    groups = [(d, causal) for d in HEAD_DIMS for causal in (False, True)]
    tasks = []
    for d, causal in groups:
        has = [one["library"] for one in made.values() if any(
            (kernel["d"], kernel["causal"], kernel["dtype"]) == (d, causal, "bf16") for kernel in one["kernels"])]
        tasks.append({"libraries": has, "check": small_problems(d, causal, "bf16"),
                      "time": [problem(d, causal, "bf16", N) for N in LENGTHS]})
    say("Checking and timing ...")
    found = []
    for (d, causal), result in zip(groups, measure(args.build, folder, tasks, args.rounds, say), strict=True):
        whole = [statistics.median(ms) for ms in result[made["00"]["library"]]["ms"]]
        for name, one in made.items():
            if one["library"] not in result:
                continue
            spilled = max(kernel["spilled"] for kernel in one["kernels"] if (
                kernel["d"], kernel["causal"], kernel["dtype"]) == (d, causal, "bf16"))
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
                raise VariantError(f"{RESULT.relative_to(ROOT)} holds a time that is no number")
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
    is_, should = with_block(README, "ablation", block(json.loads(RESULT.read_text())) if RESULT.exists() else "")
    if args.check and is_ != should:
        sys.exit("stages/19_tuned/README.md has another ablation than the results: bench/ablation.py writes it")
    if is_ != should:
        README.write_text(should)


if __name__ == "__main__":
    try:
        main()
    except (VariantError, NoMarkers) as error:
        sys.exit(f"ablation: {error}")
