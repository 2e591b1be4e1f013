"""Writes what each idea of a tuned pass is worth into the README of its stage, and what ideas would bring that the
tuned stage on Hopper does not have into docs/did_not_pay.md, as bench.measure.ablation measured it.

    python3 -m bench.report.ablation_tables               # from ablation_*.json under bench/results
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

HEAD_DIMS = (64, 128, 256)  # of a file that does not say which


def pages():
    """The page of each file of results, and the name of its block there."""
    readmes = {which: registry.folders()[registry.tuned(which)] / "README.md" for which in ("forward", "backward")}
    return {**{gpu.FOLDER / f"ablation_{which}.json": (readme, "ablation") for which, readme in readmes.items()},
            gpu.FOLDER / "ablation_hopper.json": (ROOT / "docs/did_not_pay.md", "ablation"),
            gpu.FOLDER / "ablation_hopper_odd.json": (ROOT / "docs/did_not_pay.md", "odd")}


def head(result, word):
    """What the numbers of the table are, where the rows are named `word`."""
    what, means = {
        "without": ("Time without the idea over the time of the whole, geometric mean over",
                    "Above 1: the idea pays. A dash: no kernel, because it does not fit or nothing changes."),
        "with": ("Time with the idea over the time of the stage, in each cell at",
                 "Below 1: the idea would pay. A dash: nothing changes.")}[word]
    return (f"{what} N = {', '.join(map(str, result['lengths']))} (batch * N = {gpu.TOKENS // 1024}k, heads * d = "
            f"{gpu.WIDTH}, bf16); one run in turns on one {result['gpu']}, {gpu.pace(result)}, driver {result['driver']}, commit "
            f"{result['commit']}. {means}")


def block(result):
    """The table: how many times as long the stage takes without an idea, over all lengths; or with one, at each."""
    word = "with" if "with" in result["rows"][0] else "without"
    columns = [(d, causal) for causal in (False, True) for d in result.get("d", HEAD_DIMS)]
    lines = [head(result, word), "",
             f"| {word} | " + " | ".join(f"d = {d}{', causal' * causal}" for d, causal in columns) + " |",
             "|---|" + "--:|" * len(columns)]
    for what in dict.fromkeys(row[word] for row in result["rows"] if row[word]):
        cells = []
        for column in columns:
            row = next((row for row in result["rows"] if (row[word], row["d"], row["causal"]) == (what, *column)), None)
            if row is None:
                cells.append("-")
                continue
            mean = math.exp(statistics.fmean(map(math.log, row["ratio"])))
            if not math.isfinite(mean):
                raise gpu.BadResult(f"the ablation holds a time that is no number, {word} '{what}'")
            cells.append(" ".join(f"{ratio:.3f}" for ratio in ([mean] if word == "without" else row["ratio"])) +
                         (f" (spills {row['spilled']} B)" if row["spilled"] else ""))
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a page is stale")
    check = parser.parse_args().check
    for path, (page, name) in pages().items():
        is_, should = with_block(page, name, block(gpu.load(path)) if path.exists() else "Not measured yet.")
        if check and is_ != should:
            raise Failure(f"stale: {page.relative_to(ROOT)}: python3 -m bench.report.ablation_tables writes it anew")
        if is_ != should:
            page.write_text(should)


if __name__ == "__main__":
    try:
        main()
    except (Failure, NoMarkers, gpu.BadResult) as failure:
        sys.exit(f"ablation_tables: {failure}")
