"""Draws what multiprocessors do with the blocks of a grid, by a model, and writes what it says into a README.

    python3 -m bench.report.schedule           # stages/48_longest_first: schedule.png, and the table in the README
    python3 -m bench.report.schedule --check   # changes nothing; exits 1 where the table is stale

The model: each multiprocessor of an H200 runs one block at a time and takes the next one, in their order, when it is
done. A block takes as long as it has tiles of keys, and two more for its beginning and its end. Caches, clocks and what
blocks do to each other are left out: it is about the order, and no speed of anything.
"""

import argparse
import heapq
import math
import sys

from bench.report.markers import NoMarkers, with_block
from common.course.registry import ROOT

README = ROOT / "stages/48_longest_first/README.md"
MULTIPROCESSORS, L2_BYTES = 132, 60 << 20  # of an H200
BEGIN_AND_END = 2  # tiles
TILES = {64: (256, 64), 128: (192, 80), 256: (128, 80)}  # d: Br, Bc of stages 46 to 49
LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]


def shape(d, N):
    """Heads of all batch entries, batch * N = 16k and heads * d = 2048, and those of a section of stage 48: their number is a power
    of 2, so that sections are alike."""
    heads = 16384 // N * (2048 // d)
    most = max(L2_BYTES // 3 // (4 * N * d), 1)
    fewest = math.ceil(heads / most)
    return heads, heads // next(sections for sections in range(fewest, heads + 1) if heads % sections == 0)


def blocks(d, N, section):
    """(row tile, tiles of keys) of each block under a causal mask, in order: in sections of so many heads, the last
    row tiles of all of its heads first."""
    Br, Bc = TILES[d]
    heads = shape(d, N)[0]
    for first in range(0, heads, section):
        for i in reversed(range(math.ceil(N / Br))):
            for _ in range(min(section, heads - first)):
                yield i, math.ceil(min((i + 1) * Br, N) / Bc)


def schedule(order):
    """(multiprocessor, begin, end, row tile) of each block."""
    free = [(0, number) for number in range(MULTIPROCESSORS)]
    for i, tiles in order:
        begin, number = heapq.heappop(free)
        end = begin + tiles + BEGIN_AND_END
        heapq.heappush(free, (end, number))
        yield number, begin, end, i


def share_at_work(d, N, section):
    """Of the time until the last block is done, over all multiprocessors."""
    bars = list(schedule(blocks(d, N, section)))
    return sum(end - begin for _, begin, end, _ in bars) / (MULTIPROCESSORS * max(end for _, _, end, _ in bars))


def table():
    lines = [f"By the model, on {MULTIPROCESSORS} multiprocessors under the mask; batch * N = 16k, heads * d = 2048. Share of",
             "the time in which multiprocessors have a block: head after head, as in stage 47, and in sections, as here.",
             "", "| N | " + " | ".join(f"d = {d}: 47 | 48 | heads of a section" for d in TILES) + " |",
             "|--:|" + "--:|" * 3 * len(TILES)]
    for N in LENGTHS:
        cells = [f"{share_at_work(d, N, 1):.3f} | {share_at_work(d, N, shape(d, N)[1]):.3f} | {shape(d, N)[1]}"
                 for d in TILES]
        lines.append(f"| {N:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(d, N, path):
    from bench.report.style import matplotlib, plt

    heads, section = shape(d, N)
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.8), sharex=True, sharey=True, layout="constrained")
    rows = math.ceil(N / TILES[d][0])
    colours = plt.get_cmap("viridis")
    for panel, (title, one) in zip(axes, (("47: head after head", 1),
                                          (f"48: sections of {section} heads, the longest first", section))):
        for number, begin, end, i in schedule(blocks(d, N, one)):
            panel.barh(number, end - begin, left=begin, height=1, color=colours(i / (rows - 1)), linewidth=0)
        panel.set_title(f"{title}: {share_at_work(d, N, one):.1%} at work", loc="left", fontsize=11)
        panel.set_xlabel("time, in tiles of keys")
    axes[0].set_ylabel("multiprocessor")
    axes[0].set_ylim(-0.5, MULTIPROCESSORS - 0.5)
    bar = figure.colorbar(plt.cm.ScalarMappable(plt.Normalize(0, rows - 1), colours), ax=axes, pad=0.01)
    bar.set_label("row tile of the head: the last sees all keys")
    bar.locator = matplotlib.ticker.MaxNLocator(integer=True)
    bar.update_ticks()
    figure.suptitle(f"A model of the grid, causal: N = {N:,}, d = {d}, {heads} heads in all", fontsize=11)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where the table is stale")
    check = parser.parse_args().check
    try:
        old, new = with_block(README, "schedule", table())
    except NoMarkers as error:
        sys.exit(f"schedule: {error}")
    if check:
        if old != new:
            sys.exit(f"{README.relative_to(ROOT)} is stale: python3 -m bench.report.schedule")
        return
    README.write_text(new)
    draw(128, 4096, README.with_name("schedule.png"))
    print(f"{README.relative_to(ROOT)} and schedule.png: written")


if __name__ == "__main__":
    main()
