"""Draws what the units of a multiprocessor do while a block of a Hopper stage runs, by a model of time.

    python3 -m bench.report.timeline            # the pictures of all stages that have one: stages/NN_name/timeline.png
    python3 -m bench.report.timeline 44 45      # those of some
    python3 -m bench.report.timeline --check    # changes nothing; exits 1 where a README's table is stale

common/course/time_model.py is the model, and says what it takes into account.
"""

import argparse
import json
import subprocess
import sys

from bench.report.markers import NoMarkers, with_block
from common.course import registry
from common.course.registry import ROOT, Failure
from common.course.time_model import AT_BARRIER, FOR_DATA, FOR_PRODUCT, SCHEDULERS, TENSOR_CORES, TMA, WAITS, Model, steps_of

PROBLEM = ["--random", "1,1,2048,64", "--dtype", "bf16"]


def traced(number):
    """The steps of a stage's first block on PROBLEM."""
    command = [registry.program(), "ledger", str(number), *PROBLEM, "--json", "--trace"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Failure(done.stderr.strip())
    trace = json.loads(done.stdout)["stages"][0]["trace"]
    return steps_of(trace, trace["launches"][-1]["blocks"][0])


WARPGROUP_COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7"]
WAITING = {FOR_PRODUCT: "#d1d9e0", FOR_DATA: "#f4c7c3", AT_BARRIER: "#b8a9c9"}
# What is drawn in the README of a stage, beside the stage before.
PICTURES = [44, 45, 46]
CLOCKS = 6000  # that a picture shows


def first_warps(model):
    """A warp for each warpgroup that multiplies: they all have one on the first scheduler."""
    multiply = {number for number, warp in model.warps.items() if any(step.name == "wgmma" for step in warp.steps)}
    return sorted(number for number in multiply if number % SCHEDULERS == 0)


def share_of(model, lane):
    """Of the time until the last warp has ended, that in which a unit works."""
    return sum(bar.end - bar.begin for bar in model.bars if bar.lane == lane) / model.end


def draw_stage(panel, stage, model):
    numbers = first_warps(model)
    colours = {f"warp {number}": WARPGROUP_COLOURS[i % len(WARPGROUP_COLOURS)] for i, number in enumerate(numbers)}
    lanes = [TMA, TENSOR_CORES, *colours]
    for bar in model.bars:
        if bar.lane not in lanes or bar.begin > CLOCKS:
            continue
        colour = (colours[bar.what] if bar.lane == TENSOR_CORES else "#59636e" if bar.lane == TMA
                  else WAITING.get(bar.what) or colours[bar.lane])
        panel.barh(lanes.index(bar.lane), bar.end - bar.begin, left=bar.begin, height=0.8, color=colour, linewidth=0)
    names = ["TMA", "tensor core", *(f"warpgroup {i + 1}" for i in range(len(numbers)))]
    panel.set_yticks(range(len(lanes)), names)
    panel.invert_yaxis()
    panel.set_xlim(0, CLOCKS)
    panel.set_title(f"{stage.label}: the tensor cores work {share_of(model, TENSOR_CORES):.0%} of the block's "
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
    figure.legend(handles, [*WAITING], loc="outside lower center", ncols=3, frameon=False)
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
        waits = [sum(bar.end - bar.begin for bar in model.bars if bar.lane == lane and bar.what == what) / model.end
                 for what in (FOR_PRODUCT, FOR_DATA, AT_BARRIER)]
        works = sum(bar.end - bar.begin for bar in model.bars if bar.lane == lane and bar.what not in WAITS) / model.end
        cells = [f"{share:.0%}" for share in (share_of(model, TENSOR_CORES), works, *waits)]
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
                models[one] = Model(traced(one)).require_end()
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
