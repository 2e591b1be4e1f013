"""Writes what the stages on a CPU reach beside PyTorch into their READMEs, as bench.measure.compare_cpu measured it.

    python3 -m bench.report.cpu_tables                # from the JSON files of bench/results/cpu
    python3 -m bench.report.cpu_tables --check        # changes nothing; exits 1 and names what is stale
    python3 -m bench.report.cpu_tables --of FILE      # changes nothing; prints the tables of one file
"""

import argparse
import sys
from pathlib import Path

from bench.report.markers import NoMarkers, with_block
from bench.results.gpu import BadResult, load, require
from bench.results.on_cpu import FOLDER, UNDISTURBED
from common.course.registry import ROOT, Failure, folders


def table(report, stage):
    """The results of one stage in Markdown."""
    results = [r for r in report["results"] if r["stage"] == stage]
    first = results[0]
    commit, plus, changes = report["commit"].partition("+")
    lines = [
        f"{report['cpu']}, {report['threads']} of {report['cores']} cores, {report['compiler']}, PyTorch "
        f"{report['torch']} ({report['torch_simd']}), {report['date'][:10]}, commit {commit[:10]}{plus}{changes}; fp32, "
        f"B={first['batch']}, H={first['heads']}. Multiply-adds alone reach {report['peak_gflops']:.0f} GFLOP/s on "
        f"these cores (the peak), PyTorch's matrix product of 2048 x 2048 reaches "
        f"{report['torch_gemm_gflops']:.0f}. Times are medians; the ratio is the median of "
        f"PyTorch / stage over the pairs of one process, its quartiles in brackets.",
        "",
        "| d | mask | N | stage ms | PyTorch ms | stage GFLOP/s | of peak | PyTorch GFLOP/s | ratio |",
        "|--:|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for r in results:
        low, high = r["ratio"]["quartiles"]
        lines.append(
            f"| {r['d']} | {'causal' if r['causal'] else 'full'} | {r['N']} | {r['stage_ms']['median']:.2f} "
            f"| {r['torch_ms']['median']:.2f} | {r['stage_gflops']:.0f} "
            f"| {100 * r['stage_gflops'] / report['peak_gflops']:.0f} % | {r['torch_gflops']:.0f} "
            f"| **{r['ratio']['median']:.2f}** [{low:.2f}, {high:.2f}]"
            f"{'' if r['cpu_share'] >= UNDISTURBED else ' *'} |")
    if any(r["cpu_share"] < UNDISTURBED for r in results):
        lines += ["", "\\* Other programs took more than "
                  f"{100 * (1 - UNDISTURBED):.0f} % of the cores meanwhile."]
    return "\n".join(lines)


def stages_of(report):
    """The numbers of the stages that it has results of."""
    return sorted({r["stage"] for r in report.get("results", [])})


def blocks(reports):
    """The README of each stage that was measured, and its tables of all reports."""
    for stage in sorted({stage for report in reports for stage in stages_of(report)}):
        yield folders()[stage] / "README.md", "\n\n".join(table(report, stage) for report in reports
                                                         if stage in stages_of(report))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a README is stale")
    parser.add_argument("--of", type=Path, metavar="FILE", help="print the tables of this file, and change nothing")
    chosen = parser.parse_args()
    if chosen.of:
        report = load(chosen.of)
        require(chosen.of, report.get("results"))
        print("\n\n".join(table(report, stage) for stage in stages_of(report)))
        return
    stale = []
    for readme, block in blocks([load(path) for path in sorted(FOLDER.glob("*.json"))]):
        is_, should = with_block(readme, "compare_cpu", block)
        if is_ != should:
            stale.append(str(readme.relative_to(ROOT)))
            if not chosen.check:
                readme.write_text(should)
    if chosen.check and stale:
        raise Failure(f"stale: {', '.join(stale)}: python3 -m bench.report.cpu_tables writes them anew")
    print(f"written: {', '.join(stale)}" if stale else "nothing to do")


if __name__ == "__main__":
    try:
        main()
    except (BadResult, Failure, NoMarkers) as failure:
        sys.exit(f"cpu_tables: {failure}")
