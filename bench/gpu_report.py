"""Writes what a GPU measured into the READMEs of the stages, as tables, and draws the two pictures of it.

    python3 bench/gpu_report.py               # from the JSON files of bench/results/h200
    python3 bench/gpu_report.py --check       # changes nothing; exits 1 and names what is stale

Two are what `./ladder bench --benchmark_filter='grid|heads' --benchmark_out=FILE` writes on a machine with a GPU,
with `--benchmark_context=commit=...`: stages.json for the stages in fp32, tensor_cores.json for those in bf16;
peers_bf16.json is what `bench/compare.py --out FILE` writes there, nsight.json what `bench/nsight.py --out FILE` writes there.
"""

import argparse
import hashlib
import json
import re
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from markers import ROOT, NoMarkers, with_block  # noqa: E402
from report import INK, LINES, MUTED, plt  # noqa: E402

RESULTS = [ROOT / "bench/results/h200" / name for name in ("stages.json", "tensor_cores.json")]
PEERS = ROOT / "bench/results/h200/peers_bf16.json"
LADDER, HEADS = ROOT / "docs/h200.png", ROOT / "stages/13_fa2_sequence_parallel/heads.png"
NSIGHT, EMULATOR = ROOT / "bench/results/h200/nsight.json", ROOT / "common/simt/README.md"
NAME = re.compile(r"(\d\d) (\w+)/(grid|heads)/d:(\d+)/N:(\d+)/BH:(\d+)/(full|causal)")
KINDS = [(64, "full"), (128, "full"), (256, "full"), (64, "causal"), (128, "causal"), (256, "causal")]
TENSOR_CORES = 16  # the stages from here on take bf16, those before fp32


class Measured:
    """TFLOP/s by (stage, d, mask, N) over the papers' grid, and by (stage, heads) at one length."""

    def __init__(self, paths):
        texts = [path.read_bytes() for path in paths]
        self.hash = hashlib.sha256(b"".join(texts)).hexdigest()
        self.grid, self.heads, self.names, self.contexts = {}, {}, {}, {}
        for text in texts:
            self.read(json.loads(text))
        self.context = self.contexts[min(self.contexts)]

    def read(self, data):
        for one in data["benchmarks"]:
            match = NAME.match(one["name"])
            if not match:
                continue
            stage, d, N, BH = int(match[1]), int(match[4]), int(match[5]), int(match[6])
            self.names[stage] = match[2]
            self.contexts[stage] = data["context"]
            value = one["error_message"] if one.get("error_occurred") else one["TFLOP/s"]
            if match[3] == "grid":
                self.grid[stage, d, match[7], N] = value
            else:
                self.heads[stage, BH] = value

    def machine(self, stage):
        c = self.contexts[stage]
        return (f"{c['gpu']}, {c['multiprocessors']} multiprocessors, driver {c['driver']}, CUDA {c['cuda_of_build']}, "
                f"commit {c['commit']}")


def number(value):
    return "out of memory" if isinstance(value, str) else f"{value:.2f}"


def dtype(stage):
    return "bf16" if stage >= TENSOR_CORES else "fp32"


def table(measured, stage):
    """TFLOP/s of one stage over N, and its speed over that of the stage before."""
    before = stage - 1 if (stage - 1) in measured.names else None
    kinds = [kind for kind in KINDS if any(key[:3] == (stage, *kind) for key in measured.grid)]
    lines = [f"TFLOP/s on one {measured.machine(stage)}; batch * N = 16k, heads * d = 2048, {dtype(stage)}; median of at least "
             f"3 runs, L2 emptied before each. Causal FLOPs count half."
             + (f" In brackets: times as fast as {before}." if before else ""), ""]
    titles = [f"d = {d}{', causal' if mask == 'causal' else ''}" for d, mask in kinds]
    lines += ["| N | " + " | ".join(titles) + " |", "|--:|" + "--:|" * len(kinds)]
    for N in sorted({key[3] for key in measured.grid if key[0] == stage}):
        cells = []
        for d, mask in kinds:
            mine, other = measured.grid.get((stage, d, mask, N)), measured.grid.get((before, d, mask, N))
            cell = number(mine) if mine is not None else ""
            if isinstance(mine, float) and isinstance(other, float):
                cell += f" ({mine / other:.2f}x)"
            cells.append(cell)
        lines.append(f"| {N} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def peers_table():
    """Stage 19 and its peers, interleaved in one run: TFLOP/s and ratios to FlashAttention-2."""
    data = json.loads(PEERS.read_text())
    c = data["context"]
    speed = {(one["d"], one["causal"], one["N"], one["name"]): one.get("tflops") for one in data["results"]}
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


def save(figure, path, measured):
    """The picture carries the hash of what it was drawn from."""
    figure.savefig(path, dpi=120, metadata={"Description": measured.hash, "Software": None})
    plt.close(figure)


def draw_ladder(measured, path, N=4096):
    """TFLOP/s by stage at one N, for each head dimension and mask."""
    figure, axes = plt.subplots(2, 1, figsize=(11, 7.5), layout="constrained")
    for panel, (title, chosen) in zip(axes, (
            ("fp32 on CUDA cores", [s for s in sorted(measured.names) if s < TENSOR_CORES]),
            ("bf16 on tensor cores", [s for s in sorted(measured.names) if s >= TENSOR_CORES]))):
        kinds = [kind for kind in KINDS if any((stage, *kind, N) in measured.grid for stage in chosen)]
        width = 0.84 / max(len(kinds), 1)
        for turn, (d, mask) in enumerate(kinds):
            values = [measured.grid.get((stage, d, mask, N)) for stage in chosen]
            values = [value if isinstance(value, float) else 0 for value in values]
            places = [place + (turn - (len(kinds) - 1) / 2) * width for place in range(len(chosen))]
            panel.bar(places, values, width * 0.92, color=LINES[turn][0],
                      label=f"d = {d}{', causal' if mask == 'causal' else ''}")
            for place, value in zip(places, values):
                panel.annotate(f"{value:.{1 if value < 100 else 0}f}", (place, value), ha="center", va="bottom",
                               fontsize=8, color=INK)
        panel.set_xticks(range(len(chosen)), [f"{stage}\n{measured.names[stage]}" for stage in chosen], fontsize=8)
        panel.set_ylabel("TFLOP/s")
        panel.set_title(title, loc="left", fontsize=11)
        panel.legend(frameon=False, fontsize=8, loc="upper left")
    figure.suptitle(f"The forward ladder on one {measured.context['gpu']}: N = {N}, batch * N = 16k, heads * d = 2048",
                    fontsize=11)
    save(figure, path, measured)


def draw_heads(measured, path):
    """12 against 13 over batch * heads at one length."""
    figure, axes = plt.subplots(figsize=(10, 4.6), layout="constrained")
    for turn, stage in enumerate((12, 13)):
        points = sorted((BH, value) for (number, BH), value in measured.heads.items() if number == stage)
        colour, marker, dashes = LINES[turn]
        axes.plot(*zip(*points), color=colour, marker=marker, linestyle=dashes, label=f"{stage} {measured.names[stage]}")
    sms = int(measured.context["multiprocessors"])
    axes.axvline(sms, color=MUTED, linestyle=":")
    axes.annotate(f"{sms} SMs", (sms, axes.get_ylim()[1]), textcoords="offset points", xytext=(4, -12), color=MUTED)
    axes.set_xscale("log", base=2)
    ticks = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    axes.set_xticks(ticks, ticks)
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("batch * heads")
    axes.set_ylabel("TFLOP/s, fp32")
    axes.set_title(f"A block for each head, or for each tile of Q: N = 1024, d = 64, one {measured.context['gpu']}",
                   loc="left", fontsize=11)
    axes.legend(frameon=False, loc="upper left")
    save(figure, path, measured)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when something is stale")
    arguments = parser.parse_args()
    measured = Measured(RESULTS)
    blocks = [(ROOT / f"stages/{stage:02d}_{name}/README.md", "h200", table(measured, stage))
              for stage, name in sorted(measured.names.items())]
    blocks.append((ROOT / f"stages/19_{measured.names[19]}/README.md", "peers", peers_table()))
    blocks.append((EMULATOR, "nsight", nsight_table()))
    stale = []
    for readme, name, block in blocks:
        try:
            text, new = with_block(readme, name, block)
        except NoMarkers as missing:
            sys.exit(f"gpu_report: {missing}")
        if new != text:
            stale.append(readme)
            if not arguments.check:
                readme.write_text(new)
    for path, draw in ((LADDER, draw_ladder), (HEADS, draw_heads)):
        if not path.exists() or measured.hash.encode() not in path.read_bytes():
            stale.append(path)
            if not arguments.check:
                draw(measured, path)
    names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
    if arguments.check and stale:
        sys.exit(f"gpu_report: stale: {names}: run bench/gpu_report.py")
    print(f"written: {names}" if stale else "nothing to do")


if __name__ == "__main__":
    main()
