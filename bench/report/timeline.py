"""Draws what the units of a multiprocessor do while a block of a Hopper stage runs: by a model of time, and where a GPU's clock
stamps are in bench/results, by those.

    python3 -m bench.report.timeline            # the pictures of all stages that have one: stages/NN_name/timeline.png
    python3 -m bench.report.timeline 44 45      # those of some
    python3 -m bench.report.timeline --check    # changes nothing; exits 1 where a README's table is stale

common/course/time_model.py is the model, and says what it takes into account; stamped_time.py beside it what stamps tell.
bench.measure.stamps takes them.
"""

import argparse
import sys
from dataclasses import dataclass

from bench.report.markers import NoMarkers, with_block
from bench.results.stamps import OPTIONS, TIME_LINES, of_stage
from common.course import registry
from common.course.registry import ROOT, Failure
from common.course.stamped_time import Stamped, first_block
from common.course.time_model import AT_BARRIER, FOR_DATA, FOR_PRODUCT, SCHEDULERS, TENSOR_CORES, TMA, WAITS, Model, Timing

WARPGROUP_COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7"]
WAITING = {FOR_PRODUCT: "#d1d9e0", FOR_DATA: "#f4c7c3", AT_BARRIER: "#b8a9c9"}
CLOCKS = 6000  # that a picture shows


@dataclass
class Shown:
    """A block of a stage in one time: a row of the table, and a panel of the picture."""

    stage: registry.Stage
    timing: Timing
    gpu: str = ""  # that its stamps are of; "": it is in the time of the model

    @property
    def label(self):
        return f"{self.stage.label}, on {self.gpu}" if self.gpu else self.stage.label

    @property
    def products(self):
        """What is known of the tensor cores: of stamps only when a product was under way, which they may not have begun yet."""
        share = f"{share_of(self.timing, TENSOR_CORES):.0%}"
        return f"at most {share}" if self.gpu else share


def first_warps(model):
    """A warp for each warpgroup that multiplies: they all have one on the first scheduler."""
    multiply = {number for number, warp in model.warps.items() if any(step.name == "wgmma" for step in warp.steps)}
    return sorted(number for number in multiply if number % SCHEDULERS == 0)


def share_of(model, lane):
    """Of the time until the last warp has ended, that in which a unit works."""
    return sum(bar.end - bar.begin for bar in model.bars if bar.lane == lane) / model.end


def draw_stage(panel, shown):
    timing, numbers = shown.timing, first_warps(shown.timing)
    colours = {f"warp {number}": WARPGROUP_COLOURS[i % len(WARPGROUP_COLOURS)] for i, number in enumerate(numbers)}
    units = {TENSOR_CORES: "product under way"} if shown.gpu else {TMA: "TMA", TENSOR_CORES: "tensor core"}
    lanes = [*units, *colours]
    for bar in timing.bars:
        if bar.lane not in lanes or bar.begin > CLOCKS:
            continue
        colour = (colours[bar.what] if bar.lane == TENSOR_CORES else "#59636e" if bar.lane == TMA
                  else WAITING.get(bar.what) or colours[bar.lane])
        panel.barh(lanes.index(bar.lane), bar.end - bar.begin, left=bar.begin, height=0.8, color=colour, linewidth=0)
    names = [*units.values(), *(f"warpgroup {i + 1}" for i in range(len(numbers)))]
    panel.set_yticks(range(len(lanes)), names)
    panel.invert_yaxis()
    panel.set_xlim(0, CLOCKS)
    panel.set_title(f"{shown.label}: the tensor cores work {shown.products} of the block's {timing.end:,.0f} clocks", loc="left",
                    fontsize=11)


def draw(shown, path):
    from bench.report.style import plt

    heights = [2 - bool(one.gpu) + len(first_warps(one.timing)) for one in shown]
    figure, axes = plt.subplots(len(shown), 1, figsize=(11, 1.5 + 0.42 * sum(heights)), sharex=True, layout="constrained",
                                gridspec_kw={"height_ratios": heights})
    for panel, one in zip(axes, shown):
        draw_stage(panel, one)
    measured = any(one.gpu for one in shown)
    axes[-1].set_xlabel("clocks" if measured else "clocks of the model")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in WAITING.values()]
    figure.legend(handles, [*WAITING], loc="outside lower center", ncols=3, frameon=False)
    first = f"the first block of {' '.join(OPTIONS)}"
    figure.suptitle(f"Above a model, below clock stamps of a GPU: {first}" if measured else f"A model, no measurement: {first}", fontsize=11)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def table(shown):
    """Of each: the block's clocks, and the share of them that units and the first warps are busy or wait."""
    lines = ["| stage | clocks of a block | tensor cores | first warp: works | waits for its product | for K, V, Q | "
             "at a barrier |", "|---|--:|--:|--:|--:|--:|--:|"]
    for one in shown:
        timing = one.timing
        lane = f"warp {first_warps(timing)[0]}"
        waits = [sum(bar.end - bar.begin for bar in timing.bars if bar.lane == lane and bar.what == what) / timing.end
                 for what in (FOR_PRODUCT, FOR_DATA, AT_BARRIER)]
        works = sum(bar.end - bar.begin for bar in timing.bars if bar.lane == lane and bar.what not in WAITS) / timing.end
        cells = [one.products, *(f"{share:.0%}" for share in (works, *waits))]
        lines.append(f"| {one.label} | {timing.end:,.0f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def shown_of(stage):
    """A stage in the time of the model, and of its stamps where there are some."""
    steps = first_block(stage.number)
    found = [Shown(stage, Model(steps).require_end())]
    if taken := of_stage(stage.number):
        gpu, of_warps = taken
        found.append(Shown(stage, Stamped(steps, of_warps), gpu))
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
