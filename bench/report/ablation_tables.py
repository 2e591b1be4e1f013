"""Writes what each idea of a tuned pass is worth into the README of its stage, as bench.measure.ablation measured it.

    python3 -m bench.report.ablation_tables               # from bench/results/h200/ablation_*.json
    python3 -m bench.report.ablation_tables --check       # changes nothing; exits 1 and names what is stale
"""

import argparse
import math
import statistics
import sys

from bench.report.markers import NoMarkers, with_block
from bench.results import gpu
from common.course import registry
from common.course.registry import ROOT, Failure

HEAD_DIMS = (64, 128, 256)


def block(result):
    """The README's table: how many times as long the stage takes without an idea, over all lengths."""
    columns = [(d, causal) for causal in (False, True) for d in HEAD_DIMS]
    lines = [f"Time without the idea over the time of the whole, geometric mean over N = "
             f"{', '.join(map(str, result['lengths']))} (batch * N = {gpu.TOKENS // 1024}k, heads * d = {gpu.WIDTH}, bf16); "
             f"one run in turns on one {result['gpu']}, driver {result['driver']}, commit {result['commit']}. Above 1: the "
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
                raise gpu.BadResult(f"the ablation holds a time that is no number, without '{what}'")
            cells.append(f"{ratio:.3f}" + (f" (spills {row['spilled']} B)" if row["spilled"] else ""))
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a README is stale")
    check = parser.parse_args().check
    for which in ("forward", "backward"):
        path, readme = gpu.FOLDER / f"ablation_{which}.json", registry.folders()[registry.tuned(which)] / "README.md"
        is_, should = with_block(readme, "ablation", block(gpu.load(path)) if path.exists() else "")
        if check and is_ != should:
            raise Failure(f"stale: {readme.relative_to(ROOT)}: python3 -m bench.report.ablation_tables writes it anew")
        if is_ != should:
            readme.write_text(should)


if __name__ == "__main__":
    try:
        main()
    except (Failure, NoMarkers, gpu.BadResult) as failure:
        sys.exit(f"ablation_tables: {failure}")
