"""Draws what the units of a multiprocessor do while a block of a Hopper stage runs, by a model of time.

    python3 -m bench.report.timeline            # the pictures of all stages that have one: stages/NN_name/timeline.png
    python3 -m bench.report.timeline 44 45      # those of some
    python3 -m bench.report.timeline --check    # changes nothing; exits 1 where a README's table is stale

The emulator tells what each warp of a block does, step by step (./ladder ledger 44 --json --trace): which products it
begins, what it waits for, how many operations it computes in between. The model gives each step a time, in clocks. It is
a list schedule: warps do their steps in order, and each unit does what comes first:

- a tensor core, one for each four warps: N / 2 clocks for a wgmma of N columns, one behind the other;
- special functions: 8 clocks for an exponential of a warp; one instruction a clock for all others that count on f32;
- TMA: {bandwidth} bytes a clock, {latency} clocks after it was told;
- {handover} clocks from the last who comes to a barrier, or the end of a product, to the first step behind it.

What the compiler reorders, conversions, addresses, shared memory's banks, caches and clocks that change are not in it.
It shows who waits for whom. It is no measurement, and no prediction of a speed.
"""

import argparse
import heapq
import json
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field

from bench.report.markers import NoMarkers, with_block
from common.course import registry
from common.course.registry import ROOT, Failure

TMA_BANDWIDTH, TMA_LATENCY, HANDOVER = 64, 600, 30
SCHEDULERS = 4  # of a multiprocessor, each with a tensor core: warp w is on w % 4
SLICE = 8  # exponentials that a warp computes before another one of its scheduler may
PROBLEM = ["--random", "1,1,2048,64", "--dtype", "bf16"]
__doc__ = __doc__.format(bandwidth=TMA_BANDWIDTH, latency=TMA_LATENCY, handover=HANDOVER)


@dataclass
class Bar:
    """What a warp or a unit does from one time to another."""

    lane: str  # "warp 4", "tensor cores", "TMA"
    what: str  # "work", "product", "keys", "turn", or who a product is of
    begin: float
    end: float


@dataclass
class Warp:
    """Where a warp is in its steps."""

    steps: list
    at: int = 0
    instructions: float = -1  # of the next step that are still to be done; -1: it has not been looked at
    exponentials: float = 0
    products: float = 0  # clocks of wgmmas since the last commit
    groups: list = field(default_factory=list)  # when those under way end


def steps_of(trace):
    """By warp: (name, instructions, exponentials, a, b, bytes)."""
    warps = defaultdict(list)
    for kind, warp, *numbers in trace["steps"]:
        warps[warp].append((trace["names"][kind], *numbers))
    return warps


class Model:
    """Runs a trace. `bars` are what was done when, `end` is when the last warp has ended."""

    def __init__(self, trace):
        self.warps = {number: Warp(steps) for number, steps in steps_of(trace).items()}
        self.missing = defaultdict(int)  # by mbarrier and phase: arrivals and loads to come
        for warp in self.warps.values():
            for name, _, _, a, b, _ in warp.steps:
                if name in ("mbarrier_arrive", "load"):
                    self.missing[a, b] += 1
        self.known = defaultdict(float)  # by mbarrier and phase, or barrier: the time of what has come so far
        self.came = defaultdict(int)  # by barrier: warps
        self.waiting = defaultdict(list)  # likewise: (warp, since when, for what)
        self.free = defaultdict(float)  # by unit: when it is free
        self.bars, self.end = [], 0
        self.ready = [(0, number) for number in self.warps]
        heapq.heapify(self.ready)
        while self.ready:
            time, number = heapq.heappop(self.ready)
            self.go_on(number, time)
        stuck = [number for number, warp in self.warps.items() if warp.at < len(warp.steps)]
        if stuck:
            raise Failure(f"the model is stuck: warp {stuck[0]} waits for what does not come")

    def show(self, lane, what, begin, end):
        if end <= begin:
            return
        last = next((bar for bar in reversed(self.bars[-40:]) if bar.lane == lane), None)
        if last is not None and last.what == what and last.end == begin:
            last.end = end
        else:
            self.bars.append(Bar(lane, what, begin, end))

    def let_go(self, key):
        """All that this phase, or barrier, takes has come."""
        for number, since, what in self.waiting.pop(key, []):
            time = max(since, self.known[key] + HANDOVER)
            self.show(f"warp {number}", what, since, time)
            heapq.heappush(self.ready, (time, number))

    def arrive(self, key, time):
        self.known[key] = max(self.known[key], time)
        self.missing[key] -= 1
        if self.missing[key] == 0:
            self.let_go(key)

    def compute(self, number, warp, time):
        """A slice of what stands before the next step: on the scheduler's units, as they come free."""
        scheduler = number % SCHEDULERS
        part = min(1, SLICE / warp.exponentials) if warp.exponentials else 1
        if warp.exponentials == 0 and warp.instructions > 8 * SLICE:
            part = 8 * SLICE / warp.instructions
        instructions, exponentials = warp.instructions * part, warp.exponentials * part
        issued = max(time, self.free["issue", scheduler]) + instructions + exponentials
        self.free["issue", scheduler] = issued
        end = issued
        if exponentials:
            end = self.free["special", scheduler] = max(time, self.free["special", scheduler]) + 8 * exponentials
        end = max(end, issued)
        warp.instructions -= instructions
        warp.exponentials -= exponentials
        self.show(f"warp {number}", "work", time, end)
        heapq.heappush(self.ready, (end, number))

    def go_on(self, number, time):
        """The warp's next step, or a part of what it computes before."""
        warp = self.warps[number]
        if warp.at == len(warp.steps):
            self.end = max(self.end, time)
            return
        name, instructions, exponentials, a, b, size = warp.steps[warp.at]
        if warp.instructions < 0:
            warp.instructions, warp.exponentials = instructions, exponentials
        if warp.instructions > 1e-9 or warp.exponentials > 1e-9:
            self.compute(number, warp, time)
            return
        warp.instructions = -1
        warp.at += 1
        if name == "mbarrier_wait" and self.missing[a, b] > 0:
            self.waiting[a, b].append((number, time, "keys"))
            return
        if name == "mbarrier_wait":
            ready = max(time, self.known[a, b] + HANDOVER)
            self.show(f"warp {number}", "keys", time, ready)
            time = ready
        elif name == "mbarrier_arrive":
            self.arrive((a, b), time)
        elif name == "load":
            begin = max(time, self.free["TMA"])
            self.free["TMA"] = begin + size / TMA_BANDWIDTH
            self.show("TMA", "load", begin, self.free["TMA"])
            self.arrive((a, b), self.free["TMA"] + TMA_LATENCY)
        elif name == "wgmma":
            warp.products += a / 2
        elif name == "commit":
            unit = ("tensor", number % SCHEDULERS)
            begin = max(time, self.free[unit])
            self.free[unit] = begin + warp.products
            if number % SCHEDULERS == 0:
                self.show("tensor cores", f"warp {number}", begin, self.free[unit])
            warp.groups.append(self.free[unit])
            warp.products = 0
        elif name == "wait_groups" and len(warp.groups) > a:
            ready = max(time, warp.groups[-1 - a] + HANDOVER)
            warp.groups = warp.groups[len(warp.groups) - a:] if a else []
            self.show(f"warp {number}", "product", time, ready)
            time = ready
        elif name in ("barrier", "barrier_arrive"):
            key = ("barrier", a)
            self.known[key] = max(self.known[key], time)
            self.came[key] += 1
            if name == "barrier":
                self.waiting[key].append((number, time, "turn"))
            if self.came[key] == b:
                self.came[key] = 0
                self.let_go(key)
                self.known[key] = 0
            if name == "barrier":
                return
        heapq.heappush(self.ready, (time, number))


def traced(number):
    """The trace of a stage on PROBLEM."""
    command = [registry.program(), "ledger", str(number), *PROBLEM, "--json", "--trace"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Failure(done.stderr.strip())
    return json.loads(done.stdout)["stages"][0]["trace"]


WARPGROUP_COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7"]
WAITING = {"product": "#d1d9e0", "keys": "#f4c7c3", "turn": "#b8a9c9"}
WORDS = {"product": "waits for its product", "keys": "waits for K, V or Q", "turn": "waits at a barrier"}
# What is drawn in the README of a stage, beside the stage before.
PICTURES = [44, 45, 46]
CLOCKS = 6000  # that a picture shows


def first_warps(model):
    """A warp for each warpgroup that multiplies: they all have one on the first scheduler."""
    multiply = {number for number, warp in model.warps.items() if any(step[0] == "wgmma" for step in warp.steps)}
    return sorted(number for number in multiply if number % SCHEDULERS == 0)


def share_of(model, lane):
    """Of the time until the last warp has ended, that in which a unit works."""
    return sum(bar.end - bar.begin for bar in model.bars if bar.lane == lane) / model.end


def draw_stage(panel, stage, model):
    numbers = first_warps(model)
    colours = {f"warp {number}": WARPGROUP_COLOURS[i % len(WARPGROUP_COLOURS)] for i, number in enumerate(numbers)}
    lanes = ["TMA", "tensor cores", *colours]
    for bar in model.bars:
        if bar.lane not in lanes or bar.begin > CLOCKS:
            continue
        colour = (colours[bar.what] if bar.lane == "tensor cores" else "#59636e" if bar.lane == "TMA"
                  else WAITING.get(bar.what) or colours[bar.lane])
        panel.barh(lanes.index(bar.lane), bar.end - bar.begin, left=bar.begin, height=0.8, color=colour, linewidth=0)
    names = ["TMA", "tensor core", *(f"warpgroup {i + 1}" for i in range(len(numbers)))]
    panel.set_yticks(range(len(lanes)), names)
    panel.invert_yaxis()
    panel.set_xlim(0, CLOCKS)
    panel.set_title(f"{stage.label}: the tensor cores work {share_of(model, 'tensor cores'):.0%} of the block's "
                    f"{model.end:,.0f} clocks", loc="left", fontsize=11)


def draw(stage, before, models, path):
    from bench.report.style import plt

    heights = [2 + len(first_warps(models[one.number])) for one in (before, stage)]
    figure, axes = plt.subplots(2, 1, figsize=(11, 1.5 + 0.42 * sum(heights)), sharex=True, layout="constrained",
                                gridspec_kw={"height_ratios": heights})
    for panel, one in zip(axes, (before, stage)):
        draw_stage(panel, one, models[one.number])
    axes[1].set_xlabel("clocks of the model")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in WAITING.values()]
    figure.legend(handles, [WORDS[what] for what in WAITING], loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(f"A model, no measurement: the first block of {' '.join(PROBLEM)}", fontsize=11)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def table(numbers, models, stages):
    """Of each stage: the block's clocks, and the share of them that units and the first warps are busy or wait."""
    lines = ["| stage | clocks of a block | tensor cores | first warp: works | waits for its product | for K, V, Q | "
             "at a barrier |", "|---|--:|--:|--:|--:|--:|--:|"]
    for number in numbers:
        model = models[number]
        lane = f"warp {first_warps(model)[0]}"
        shares = {what: sum(bar.end - bar.begin for bar in model.bars if bar.lane == lane and bar.what == what) / model.end
                  for what in ("work", *WAITING)}
        cells = [f"{share:.0%}" for share in (share_of(model, "tensor cores"), *shares.values())]
        lines.append(f"| {stages[number].label} | {model.end:,.0f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", type=int, metavar="STAGE", help=f"of {PICTURES} (default: all)")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a README's table is stale")
    chosen = parser.parse_args()
    stages = {stage.number: stage for stage in registry.all_stages()}
    wanted = chosen.stages or PICTURES
    if set(wanted) - set(PICTURES):
        parser.error(f"there are pictures for {PICTURES} alone")
    stale, models = [], {}
    for number in wanted:
        before = stages[number].before
        for one in (before, number):
            if one not in models:
                models[one] = Model(traced(one))
        readme = stages[number].readme
        try:
            old, new = with_block(readme, "timeline", table([before, number], models, stages))
        except NoMarkers as error:
            sys.exit(f"timeline: {error}")
        if old != new:
            stale.append(str(readme.relative_to(ROOT)))
        if chosen.check:
            continue
        readme.write_text(new)
        draw(stages[number], stages[before], models, readme.with_name("timeline.png"))
        print(f"{readme.relative_to(ROOT)} and timeline.png: written")
    if chosen.check and stale:
        sys.exit(f"stale: {', '.join(stale)}; python3 -m bench.report.timeline writes them anew")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"timeline: {failure}")
