"""Draws what the units of a multiprocessor do while a block of a Hopper stage runs: by a model of time, and where a GPU's clock
stamps are in bench/results, by those.

    python3 -m bench.report.timeline            # the pictures of all stages that have one: stages/NN_name/timeline.png
    python3 -m bench.report.timeline 44 45      # those of some
    python3 -m bench.report.timeline --check    # changes nothing; exits 1 where a README's table is stale

common/course/time_model.py is the model, and says what it takes into account; stamped_time.py beside it what stamps tell.
bench.measure.stamps takes them.
"""

import argparse
import statistics
import sys
from dataclasses import dataclass
from itertools import pairwise

from bench.report.markers import NoMarkers, with_block
from bench.results.stamps import D, DTYPE, TIME_LINES, N, cost_of, of_stage
from common.course import registry
from common.course.registry import ROOT, Failure
from common.course.stamped_time import Stamped, first_block
from common.course.time_model import (AT_BARRIER, FOR_DATA, FOR_PRODUCT, SCHEDULERS, TENSOR_CORES, TMA, WAITS, WORK_OF, Model,
                                      Timing)

WARPGROUP_COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7"]
WAITING = {FOR_PRODUCT: "#d1d9e0", FOR_DATA: "#f4c7c3", AT_BARRIER: "#b8a9c9"}
CLOCKS = 6000  # that a picture shows, in the middle of the block
SOFTMAX = WORK_OF["softmax"]


@dataclass
class Shown:
    """A block of a stage in one time: a row of the table, and a panel of the picture."""

    stage: registry.Stage
    timing: Timing
    gpu: str = ""  # that its stamps are of; "": it is in the time of the model
    least: float = 0.0  # clocks that its products take on the first tensor core

    @property
    def label(self):
        return f"{self.stage.label}, on {self.gpu}" if self.gpu else self.stage.label

    @property
    def products(self):
        """The share of the time in which a tensor core works. By stamps it is in between: a product takes no less than it takes
        there, and is over when its warp knows it, or before."""
        share = f"{share_of(self.timing, TENSOR_CORES):.0%}"
        return f"{self.least / self.timing.end:.0%} to {share}" if self.gpu else share

    @property
    def first_warp(self):
        return first_warps(self.timing)[0]

    @property
    def tile(self):
        """Clocks from a tile of the first warp to the next one, the median."""
        warp = self.timing.warps[self.first_warp]
        ended = [done for step, done in zip(warp.steps, warp.done) if step.name == "tile"]
        return statistics.median(after - before for before, after in pairwise(ended))

    @property
    def softmax(self):
        """Clocks of the first warp's softmax, of one tile; the share of them in which a product of another warpgroup is under way,
        as text."""
        number, timing = self.first_warp, self.timing
        bars = [(bar.begin, bar.end) for bar in timing.bars if bar.lane == f"warp {number}" and bar.what == SOFTMAX]
        clocks = sum(end - begin for begin, end in bars)
        share = covered(bars, [(begin, end) for begin, end, warp in timing.products if warp != number]) / clocks
        tiles = sum(step.name == "tile" for step in timing.warps[number].steps)
        return clocks / tiles, f"at most {share:.0%}" if self.gpu else f"{share:.0%}"


def covered(spans, others):
    """How much of the spans lies in one of the others."""
    total = 0.0
    for begin, end in spans:
        at = begin
        for since, until in sorted(others):
            since, until = max(since, at), min(until, end)
            if until > since:
                total, at = total + until - since, until
    return total


def first_warps(model):
    """A warp for each warpgroup that multiplies: they all have one on the first scheduler."""
    multiply = {number for number, warp in model.warps.items() if any(step.name == "wgmma" for step in warp.steps)}
    return sorted(number for number in multiply if number % SCHEDULERS == 0)


def share_of(model, lane):
    """Of the time until the last warp has ended, that in which a unit works."""
    return sum(bar.end - bar.begin for bar in model.bars if bar.lane == lane) / model.end


def draw_stage(panel, shown):
    timing, numbers = shown.timing, first_warps(shown.timing)
    first = max(0, timing.end - CLOCKS) / 2
    colours = {f"warp {number}": WARPGROUP_COLOURS[i % len(WARPGROUP_COLOURS)] for i, number in enumerate(numbers)}
    units = {TENSOR_CORES: "product under way"} if shown.gpu else {TMA: "TMA", TENSOR_CORES: "tensor core"}
    lanes = [*units, *colours]
    for bar in timing.bars:
        if bar.lane not in lanes or bar.begin > first + CLOCKS or bar.end < first:
            continue
        colour = (colours[bar.what] if bar.lane == TENSOR_CORES else "#59636e" if bar.lane == TMA
                  else WAITING.get(bar.what) or colours[bar.lane])
        panel.barh(lanes.index(bar.lane), bar.end - bar.begin, left=bar.begin, height=0.8, color=colour, linewidth=0)
    names = [*units.values(), *(f"warpgroup {i + 1}" for i in range(len(numbers)))]
    panel.set_yticks(range(len(lanes)), names)
    panel.invert_yaxis()
    panel.set_xlim(first, first + CLOCKS)
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.set_title(f"{shown.label}: the tensor cores work {shown.products} of the block's {timing.end:,.0f} clocks", loc="left",
                    fontsize=11)


def draw(shown, path):
    from bench.report.style import plt

    heights = [2 - bool(one.gpu) + len(first_warps(one.timing)) for one in shown]
    figure, axes = plt.subplots(len(shown), 1, figsize=(11, 1.5 + 0.25 * len(shown) + 0.42 * sum(heights)), layout="constrained",
                                gridspec_kw={"height_ratios": heights})
    for panel, one in zip(axes, shown):
        draw_stage(panel, one)
    measured = next((one.gpu for one in shown if one.gpu), "")
    axes[-1].set_xlabel("clocks of the block")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in WAITING.values()]
    figure.legend(handles, [*WAITING], loc="outside lower center", ncols=3, frameon=False)
    part = f"{CLOCKS:,} clocks in the middle of the first block; {DTYPE}, d = {D}, N = {N:,}"
    figure.suptitle(f"Above a model, below clock stamps of one {measured}: {part}" if measured else f"A model, no measurement: {part}",
                    fontsize=11)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def table(shown):
    """Of each: the clocks of its block, of a tile and of the tile's softmax, and the share of the block's that units and the first
    warps are busy or wait."""
    lines = ["| stage | clocks of a block | of a tile | of its softmax | beside products of others | tensor cores | first warp: works "
             "| waits for its product | for K, V, Q | at a barrier |", f"|---|{'--:|' * 9}"]
    for one in shown:
        timing = one.timing
        lane = f"warp {one.first_warp}"
        waits = [sum(bar.end - bar.begin for bar in timing.bars if bar.lane == lane and bar.what == what) / timing.end
                 for what in (FOR_PRODUCT, FOR_DATA, AT_BARRIER)]
        works = sum(bar.end - bar.begin for bar in timing.bars if bar.lane == lane and bar.what not in WAITS) / timing.end
        softmax, beside = one.softmax
        cells = [f"{timing.end:,.0f}", f"{one.tile:,.0f}", f"{softmax:,.0f}", beside, one.products,
                 *(f"{share:.0%}" for share in (works, *waits))]
        lines.append(f"| {one.label} | {' | '.join(cells)} |")
    return "\n".join(lines + cost_lines([found for one in shown if one.gpu and (found := cost_of(one.stage.number))]))


def cost_lines(costs):
    """How much longer kernels take that stamp."""
    if not costs:
        return []
    data, problem = costs[0][0], costs[0][0]["problem"]
    found = (f"stage {one['stage']} takes {one['stamped_ms']:.3f} ms, {one['stamped_ms'] / one['ms']:.2f} times the {one['ms']:.3f} ms "
             "without" for _, one in costs)
    return ["", f"With stamps {', '.join(found)}, on one {data['gpu']}, driver {data['driver']}, commit {data['commit']}: batch "
            f"{problem['batch']}, {problem['heads']} heads, N = {problem['Nq']:,}, d = {problem['d']}, {problem['dtype']}, no mask; "
            f"{data['pace']}, median of {data['rounds']}."]


def shown_of(stage):
    """A stage in the time of the model, and of its stamps where there are some."""
    steps = first_block(stage.number)
    model = Model(steps).require_end()
    found = [Shown(stage, model)]
    if taken := of_stage(stage.number):
        gpu, of_warps = taken
        least = sum(end - begin for begin, end, _ in model.products)
        found.append(Shown(stage, Stamped(steps, of_warps), gpu, least))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", type=int, metavar="STAGE", help=f"of {TIME_LINES} (default: all)")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a README's table is stale")
    chosen = parser.parse_args()
    stages = {stage.number: stage for stage in registry.all_stages()}
    wanted = chosen.stages or TIME_LINES
    if set(wanted) - set(TIME_LINES):
        parser.error(f"there are pictures for {TIME_LINES} alone")
    stale, known = [], {}
    for number in wanted:
        pair = (stages[number].before, number)
        for one in pair:
            if one not in known:
                known[one] = shown_of(stages[one])
        shown = [one for kind in zip(*(known[one] for one in pair)) for one in kind]  # the model's first
        readme = stages[number].readme
        try:
            old, new = with_block(readme, "timeline", table(shown))
        except NoMarkers as error:
            sys.exit(f"timeline: {error}")
        if old != new:
            stale.append(str(readme.relative_to(ROOT)))
        if chosen.check:
            continue
        readme.write_text(new)
        draw(shown, readme.with_name("timeline.png"))
        print(f"{readme.relative_to(ROOT)} and timeline.png: written")
    if chosen.check and stale:
        sys.exit(f"stale: {', '.join(stale)}; python3 -m bench.report.timeline writes them anew")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"timeline: {failure}")
