"""Writes what a GPU measured into the READMEs, as tables, and draws the pictures of it (gpu_pictures.py).

    python3 bench/gpu_report.py               # from the JSON files of bench/results/h200, and the ledger
    python3 bench/gpu_report.py --check       # changes nothing; exits 1 and names what is stale

Two are what `./ladder bench --benchmark_filter='grid|heads' --benchmark_out=FILE` writes on a machine with a GPU,
with `--benchmark_context=commit=...`: stages.json for the stages in fp32, tensor_cores.json for those in bf16;
peers_bf16.json is what `bench/compare.py --out FILE` writes there, nsight.json what `bench/nsight.py --out FILE` does.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import gpu_pictures  # noqa: E402
import ledger_tables  # noqa: E402
from gpu_results import FOLDER, KINDS, BadResult, Measured, dtype, kind_text, read  # noqa: E402
from markers import ROOT, NoMarkers, with_block  # noqa: E402

RESULTS = [FOLDER / name for name in ("stages.json", "tensor_cores.json")]
PEERS, NSIGHT = FOLDER / "peers_bf16.json", FOLDER / "nsight.json"
EMULATOR = ROOT / "common/simt/README.md"


def machine(context):
    return (f"{context['gpu']}, {context['multiprocessors']} multiprocessors, driver {context['driver']}, "
            f"CUDA {context['cuda_of_build']}, commit {context['commit']}")


def cell_text(result):
    return "out of memory" if result.tflops is None else f"{result.tflops:.2f}"


def table(measured, stage):
    """TFLOP/s of one stage over N, and its speed over that of the stage before."""
    before = stage - 1 if (stage - 1) in measured.names else None
    kinds = [kind for kind in KINDS if any(key[:3] == (stage, *kind) for key in measured.grid)]
    lines = [f"TFLOP/s on one {machine(measured.runs[stage].context)}; batch * N = 16k, heads * d = 2048, "
             f"{dtype(stage)}; median of at least 3 runs, L2 emptied before each. Causal FLOPs count half."
             + (f" In brackets: times as fast as {before}." if before else ""), ""]
    lines += ["| N | " + " | ".join(kind_text(*kind) for kind in kinds) + " |", "|--:|" + "--:|" * len(kinds)]
    for N in sorted({key[3] for key in measured.grid if key[0] == stage}):
        cells = []
        for kind in kinds:
            mine, other = measured.grid.get((stage, *kind, N)), measured.tflops(before, *kind, N)
            cell = cell_text(mine) if mine else ""
            if other and mine and mine.tflops:
                cell += f" ({mine.tflops / other:.2f}x)"
            cells.append(cell)
        lines.append(f"| {N} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def peers_table(peers):
    """Stage 19 and its peers, interleaved in one run: TFLOP/s and ratios to FlashAttention-2."""
    c = peers["context"]
    speed = {(one["d"], one["causal"], one["N"], one["name"]): one.get("tflops") for one in peers["results"]}
    lines = [f"TFLOP/s in {c['dtype']} on one {c['gpu']}, driver {c['driver']}, PyTorch {c['torch']}, cuDNN {c['cudnn']}, "
             f"commit {c['commit']}; one interleaved run, median of {c['rounds']}. In brackets: over PyTorch's "
             "FlashAttention-2.", "", "| d | mask | N | stage 19 | FlashAttention-2 | cuDNN | memory-efficient | math |",
             "|--:|---|--:|--:|--:|--:|--:|--:|"]
    ratios = []
    for d, causal, N in dict.fromkeys(key[:3] for key in speed):
        fa2 = speed[d, causal, N, "fa2"]
        ratios.append(speed[d, causal, N, "stage 19"] / fa2)
        cells = [f"{speed[d, causal, N, name]:.0f} ({speed[d, causal, N, name] / fa2:.2f})"
                 for name in ("stage 19", "fa2", "cudnn", "memory-efficient", "math")]
        cells[1] = f"{fa2:.0f}"
        lines.append(f"| {d} | {'causal' if causal else 'full'} | {N} | " + " | ".join(cells) + " |")
    mean = statistics.geometric_mean(ratios)
    lines += ["", f"Stage 19 over FlashAttention-2: {mean:.3f} in the geometric mean of {len(ratios)} shapes, "
              f"{min(ratios):.2f} to {max(ratios):.2f}."]
    return "\n".join(lines) + "\n"


def short_peers_table(peers):
    """Stage 19 over each of its peers, for each d and mask: the geometric mean over N, the least and the most."""
    over_N = {}
    for one in peers["results"]:
        if "tflops" in one:
            kind = one["d"], "causal" if one["causal"] else "full"
            over_N.setdefault((one["name"], *kind), {})[one["N"]] = one["tflops"]
    lines = ["| d | mask | " + " | ".join(f"over {label}" for label in gpu_pictures.PEERS.values()) + " |",
             "|--:|---" + "|--:" * len(gpu_pictures.PEERS) + "|"]
    for kind in KINDS:
        mine, cells = over_N["stage 19", *kind], []
        for name in gpu_pictures.PEERS:
            other = over_N.get((name, *kind), {})
            ratios = [mine[N] / other[N] for N in mine if N in other]
            cells.append(f"{statistics.geometric_mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
                         if ratios else "absent")
        lines.append(f"| {kind[0]} | {kind[1]} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def nsight_table():
    """Hardware over ledger, the least and the most of all shapes, for each stage and count."""
    data = json.loads(NSIGHT.read_text())
    ratios = {}
    for one in data["results"]:
        if one["ledger"] or one["hardware"]:
            ratio = one["hardware"] / one["ledger"] if one["ledger"] else float("inf")
            ratios.setdefault(one["count"], {}).setdefault(one["stage"], []).append(ratio)
    stages = sorted({one["stage"] for one in data["results"]})

    def cell(values):
        if values is None:
            return ""
        if all(value == 1 for value in values):
            return "equal"
        return f"{min(values):.3f} to {max(values):.3f}"

    lines = [f"Hardware over ledger, six shapes each ({data['gpu'].replace(', ', ', driver ')}):", "",
             "| count | " + " | ".join(map(str, stages)) + " |", "|---|" + "---|" * len(stages)]
    lines += [f"| {count} | " + " | ".join(cell(by_stage.get(stage)) for stage in stages) + " |"
              for count, by_stage in ratios.items()]
    return "\n".join(lines) + "\n"


def counted(program, stages):
    """By mask and stage, the bytes of HBM that one head's kernels read and those that they write, by the ledger."""
    shape = f"1,1,{gpu_pictures.COUNTED_N},{gpu_pictures.COUNTED_D}"
    result = {}
    for mask, more in (("full", []), ("causal", ["--causal"])):
        answer = ledger_tables.answer(program, ["ledger", *map(str, stages), "--random", shape, *more])
        result[mask] = {one["number"]: [ledger_tables.count(one, {}, f"global, all buffers: {end}")
                                        for end in ("read_bytes", "written_bytes")] for one in answer["stages"]}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default=str(ROOT / "build/release/flashladder"),
                        help="the program behind ./ladder (default: build/release/flashladder)")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when something is stale")
    arguments = parser.parse_args()
    measured = Measured([read(path) for path in RESULTS])
    peers = json.loads(PEERS.read_text())
    blocks = [(ROOT / f"stages/{stage:02d}_{name}/README.md", "h200", table(measured, stage))
              for stage, name in sorted(measured.names.items())]
    blocks += [(ROOT / f"stages/19_{measured.names[19]}/README.md", "peers", peers_table(peers)),
               (ROOT / "README.md", "peers", short_peers_table(peers)), (EMULATOR, "nsight", nsight_table())]
    stale = []
    for readme, name, block in blocks:
        text, new = with_block(readme, name, block)
        if new != text:
            stale.append(readme)
            if not arguments.check:
                readme.write_text(new)
    for path, shown, draw in gpu_pictures.pictures(measured, peers, counted(arguments.program, measured.stages)):
        if gpu_pictures.is_stale(path, shown):
            stale.append(path)
            if not arguments.check:
                gpu_pictures.save(draw(shown), path, shown)
    names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
    if arguments.check and stale:
        sys.exit(f"gpu_report: stale: {names}: run bench/gpu_report.py")
    print(f"written: {names}" if stale else "nothing to do")


if __name__ == "__main__":
    try:
        main()
    except (BadResult, NoMarkers, ledger_tables.Failure) as failure:
        sys.exit(f"gpu_report: {failure}")
