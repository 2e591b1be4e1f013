"""Writes what bounds each stage of kernels into its README, from the counters of Nsight Compute.

    python3 -m bench.report.attribution               # from bench/results/h200/profile.json
    python3 -m bench.report.attribution --check       # changes nothing; exits 1 and names what is stale

`python3 -m bench.measure.nsight --profile` writes that file on a machine with a GPU. Where there is none, the READMEs
say nothing.

The rule: of a stage's kernels the longest speaks. It is bound by the unit that is busy the largest share of the
kernel's time, if that is 60 % or more, the threshold of Nsight Compute's own rules. Where none of the units in the
table is, but the profiler's throughput of the SM or of memory, it is bound by a unit that the table lacks. Otherwise it
is bound by latency: the warps wait for something, and there are too few of them to fill the time. Then the block says
for what they wait most, and why a multiprocessor holds no more of them.
"""

import argparse
import math
import sys

from bench.report.markers import NoMarkers, with_block
from bench.results import gpu
from bench.results import profile as counters
from bench.results.profile import pass_of
from common.course import registry
from common.course.registry import ROOT, Failure

PROFILE = gpu.FOLDER / "profile.json"
HOPPER_PROFILE = gpu.HOPPER / PROFILE.name  # of the stages that need Hopper
BLOCK, SHARE_BLOCK, MANY_HEADS_BLOCK = "attribution", "share", "many_heads"
ENOUGH = 60  # percent
LATENCY, OTHER = "latency", "another unit"
MEANING = {  # of the reasons to wait that need a word; ncu's documentation has all
    "barrier": "other warps at a barrier",
    "long_scoreboard": "data from global memory",
    "short_scoreboard": "data from shared memory, or a special function",
    "mio_throttle": "a place in the queue to shared memory and special functions",
    "lg_throttle": "a place in the queue to global memory",
    "math_pipe_throttle": "an arithmetic unit in use",
    "wait": "the fixed latency of the instruction before",
}
READY = ("selected", "not_selected")  # these warps wait for nothing but their turn
COMPARED_WAITS = ("short_scoreboard", "barrier", "long_scoreboard", "lg_throttle")  # of the two passes side by side


class Kernel:
    """The kernel of a stage that takes longest, for one mask."""

    def __init__(self, profile):
        where = f"stage {profile['stage']}, {pass_of(profile)} pass, {profile['mask']}"
        if not profile["kernels"]:
            raise Failure(f"{where} has no kernel in the profile: python3 -m bench.measure.nsight --profile measures it "
                          "again")
        for kernel in profile["kernels"]:
            for metric in counters.PROFILE:
                value = kernel["counters"].get(metric)
                least = 1 if metric == counters.TIME else 0  # NaN is not at least anything
                if not isinstance(value, (int, float)) or not least <= value < math.inf:
                    raise Failure(f"{metric} of {kernel['name']} in {where} is {value}, which cannot be: "
                                  "python3 -m bench.measure.nsight --profile measures it again")
        self.all = profile["kernels"]
        longest = max(self.all, key=lambda kernel: kernel["counters"][counters.TIME])
        self.name, self.counters = longest["name"], longest["counters"]
        self.ms = sum(kernel["counters"][counters.TIME] for kernel in self.all) / 1e6
        self.share = self.counters[counters.TIME] / 1e6 / self.ms
        busy = [(self.counters[metric], unit) for unit, metric in counters.BUSY.items()]
        self.busy = sorted(busy, key=lambda one: -one[0])

    @property
    def bound(self):
        percent, unit = self.busy[0]
        if percent >= ENOUGH:
            return unit
        return OTHER if max(self.counters[metric] for metric in counters.THROUGHPUT.values()) >= ENOUGH else LATENCY

    @property
    def waiting(self):
        """For each reason, the share of the time that warps are there for which they wait for it."""
        warps = {reason: self.counters[metric] for reason, metric in counters.WAITING.items()}
        return {reason: of_them / (sum(warps.values()) or 1) for reason, of_them in warps.items()}

    @property
    def waits(self):
        """The reason for which warps wait most, and for what share of the time that they are there."""
        waiting = self.waiting
        most = max((reason for reason in waiting if reason not in READY), key=waiting.get)
        return most, waiting[most]

    @property
    def held(self):
        """Blocks that a multiprocessor can hold, and what limits them."""
        limits = {what: self.counters[metric] for what, metric in counters.BLOCK_LIMITS.items()}
        least = min(limits.values())
        return int(least), " and ".join(what for what, limit in limits.items() if limit == least)

    def sentence(self):
        (most, first), (next_most, second) = self.busy[:2]
        if self.bound == OTHER:
            return f"Bound by a unit that is not in the table, where the busiest is {first} with {most:.0f} %."
        if self.bound != LATENCY:
            return f"Bound by {first}: busy {most:.0f} % of the time; next {second}, {next_most:.0f} %."
        reason, share = self.waits
        blocks, limit = self.held
        few = f"a multiprocessor holds {blocks} block{'s' * (blocks != 1)} at most, limited by {limit}"
        busiest = f"{most:.0f}" if round(most) < ENOUGH else f"{most:.2f}"  # which is below it, and must look so
        if self.counters[counters.WAVES] < 1:
            few = f"the grid has only {self.counters[counters.BLOCKS]:,.0f} blocks, fewer than the GPU can hold"
        what = f"{MEANING[reason]} (`{reason}`)" if reason in MEANING else f"`{reason}`"
        return (f"Bound by latency: nothing is busy {ENOUGH} % of the time; the busiest is {first} with {busiest} %. "
                f"Warps wait most for {what}, {100 * share:.0f} % of their time, and {few}.")


def rows(kernel):
    """The lines of the table, by name."""
    c = kernel.counters
    reason, share = kernel.waits
    blocks, limit = kernel.held
    lines = {"time, ms": f"{kernel.ms:.2f}"}
    if counters.CLOCK in c:
        lines["clock of the multiprocessors, GHz"] = f"{c[counters.CLOCK] / 1e9:.2f}"
    if len(kernel.all) > 1:
        lines["of it the longest kernel, of which all below is"] = f"{100 * kernel.share:.0f} %, `{kernel.name}`"
    lines |= {f"{unit} busy": f"{c[metric]:.0f} %" for unit, metric in counters.BUSY.items()}
    lines |= {what: f"{c[metric]:.0f} %" for what, metric in counters.THROUGHPUT.items()}
    return lines | {
        "read from DRAM; written, MB": f"{c[counters.DRAM_READ] / 1e6:,.0f}; {c[counters.DRAM_WRITTEN] / 1e6:,.0f}",
        "blocks; those a multiprocessor can hold": f"{c[counters.BLOCKS]:,.0f}; {blocks}, limited by {limit}",
        "occupancy": f"{c[counters.OCCUPANCY]:.0f} %",
        "registers a thread; shared bytes a block":
            f"{c[counters.REGISTERS]:.0f}; {sum(c[metric] for metric in counters.SHARED):,.0f}",
        "warps wait most for": f"`{reason}`, {100 * share:.0f} % of their time",
    }


def compared(prediction, mine, before):
    """What was predicted before the profile was made, and what came of it; without a mask. `before`: the profile of the
    stage before, or None."""
    kernel = Kernel(mine)
    if prediction["bound"] not in (*counters.BUSY, LATENCY):
        raise Failure(f"'{prediction['bound']}' cannot bound a stage: predict {', '.join(counters.BUSY)} or {LATENCY}")
    text = f"Predicted before: bound by {prediction['bound']}, because {prediction['why']}. "
    text += "So it is." if prediction["bound"] == kernel.bound else f"It is not: it is bound by {kernel.bound}."
    if "gain" in prediction:
        text += f" Predicted gain over the stage before: {prediction['gain']:.2f}x"
        if before is None:
            text += "; the profile lacks that stage."
        elif before["commit"] != mine["commit"]:  # of which the kernels may be others
            text += f"; the profile has that stage of another commit, {before['commit']}."
        else:
            text += f"; here it is {Kernel(before).ms / kernel.ms:.2f}x."
    return text


def gain_elsewhere(data, stage, before):
    """The gain predicted for a head dimension at which the two had not been compared, and what it is; "" where there is
    either not."""
    prediction = data["predictions"].get(f"{stage} at d = {counters.PREDICTED_AT}")
    mask = prediction["mask"] if prediction else ""
    found = {profile["stage"]: profile for profile in data["profiles"]
             if (counters.head_dim(profile), profile["mask"], pass_of(profile)) == (counters.PREDICTED_AT, mask, "forward")}
    if stage not in found or before not in found:
        return ""
    commits = [found[number]["commit"] for number in (before, stage)]
    came = (f"It is {Kernel(found[before]).ms / Kernel(found[stage]).ms:.2f}x." if len(set(commits)) == 1 else
            f"The profile has the two of different commits, {' and '.join(commits)}, so that it does not say what it is.")
    return (f"Predicted for d = {counters.PREDICTED_AT}{', causal' if mask == 'causal' else ''}, before the two were compared "
            f"there: {prediction['gain']:.2f}x stage {before}'s speed, because {prediction['why']}. {came}")


def of_all(data):
    """The profiles at the shape that all stages have."""
    return [profile for profile in data["profiles"]
            if (counters.head_dim(profile), counters.length(profile)) == (counters.PROFILED["d"], counters.PROFILED["N"])]


def block(data, stage):
    """The Markdown of one stage, a part for each of its passes; nothing where the profile does not have it."""
    mine = [profile for profile in of_all(data) if profile["stage"] == stage]
    return "\n\n".join(part(data, stage, which) for which in dict.fromkeys(map(pass_of, mine)))


def part(data, stage, which):
    """The Markdown of one pass of a stage."""
    found = {profile["mask"]: Kernel(profile) for profile in of_all(data)
             if profile["stage"] == stage and pass_of(profile) == which}
    if missing := set(counters.MASKS) - set(found):
        raise Failure(f"stage {stage}, {which} pass is in the profile, but not its {' and '.join(missing)} run: "
                      "python3 -m bench.measure.nsight --profile measures it again")
    mine = next(profile for profile in of_all(data) if profile["stage"] == stage and pass_of(profile) == which)
    p = data["problem"]
    shape = f"batch * heads = {p['batch'] * p['heads']}, N = {p['N']}, d = {p['d']}, {mine['dtype']}"
    if which == "backward":
        shape += ", backward pass"
    lines = [f"What bounds it, by the counters of Nsight Compute on one {data['gpu']}, driver {data['driver']}, commit "
             f"{mine['commit']}: {shape}; caches emptied before each run, clocks left alone. Busy is the share of what "
             "a unit could do in that time.", "",
             f"| counter | {' | '.join(found)} |", "|---" + "|--:" * len(found) + "|"]
    tables = {mask: rows(kernel) for mask, kernel in found.items()}
    for name in dict.fromkeys(name for table in tables.values() for name in table):
        cells = [table.get(name, "") for table in tables.values()]
        if set(cells) != {"0 %"}:  # such as tensor cores in fp32
            lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", *(f"- {mask.capitalize()}: {kernel.sentence()}" for mask, kernel in found.items())]
    lines += [f"- d = {counters.head_dim(profile)}, {profile['mask']}: {Kernel(profile).sentence()}"
              for profile in data["profiles"] if profile["stage"] == stage and pass_of(profile) == which
              and counters.head_dim(profile) not in (counters.PROFILED["d"], counters.PREDICTED_AT)]
    if prediction := data["predictions"].get(f"{stage} backward" if which == "backward" else str(stage)):
        of_pass = {profile["stage"]: profile for profile in of_all(data)
                   if profile["mask"] == "full" and pass_of(profile) == which}
        lines += ["", compared(prediction, of_pass[stage], of_pass.get(mine["before"]))]
    if which == "forward" and (text := gain_elsewhere(data, stage, mine["before"])):
        lines += ["", text]
    return "\n".join(lines)


def fastest_passes(data):
    """The number of the stage that has the fastest of each pass, of those that the profile has and any GPU runs."""
    profiled = {profile["stage"] for profile in data["profiles"]}
    stages = [stage for stage in registry.all_stages() if stage.number in profiled and stage.gpu == "any"]
    return {which: registry.fastest(which, "bf16", stages).number for which in counters.PASSES
            if registry.of_kernels(which, "bf16", stages)}


def share_block(data):
    """The Markdown that sets the fastest backward pass beside the fastest forward pass, without a mask, at each head
    dimension that the profile has of both."""
    found, fastest = {}, fastest_passes(data)
    for profile in data["profiles"]:
        if profile["stage"] == fastest.get(pass_of(profile)) and profile["mask"] == "full":
            found.setdefault(counters.head_dim(profile), {})[pass_of(profile)] = profile
    both = {d: passes for d, passes in sorted(found.items()) if len(passes) == 2}
    if not both:
        return ""
    table = {}
    for d, passes in both.items():
        p, kernels = counters.problem_at(d), {which: Kernel(passes[which]) for which in counters.PASSES}
        flops = 4 * p["batch"] * p["heads"] * p["N"] ** 2 * d
        speed = {which: flops * (2.5 if which == "backward" else 1) / kernel.ms / 1e9 for which, kernel in kernels.items()}
        for which, kernel in kernels.items():
            lines = {"TFLOP/s": f"{speed[which]:.0f}",
                     "over the forward pass": f"{speed[which] / speed['forward']:.2f}" if which == "backward" else "",
                     **{name: text for name, text in rows(kernel).items() if not name.startswith(("time", "of it"))},
                     **{f"warps wait for {MEANING[reason]}": f"{100 * kernel.waiting[reason]:.0f} %"
                        for reason in COMPARED_WAITS}}
            for name, text in lines.items():
                table.setdefault(name, []).append(text)
    commits = ", ".join(dict.fromkeys(profile["commit"] for passes in both.values() for profile in passes.values()))
    lines = [f"Forward (stage {fastest['forward']}) and backward (stage {fastest['backward']}) on one {data['gpu']}, "
             f"driver {data['driver']}, commit {commits}, "
             f"by the counters of Nsight Compute: batch * N = 16k, heads * d = 2048, N = {counters.PROFILED['N']}, bf16, no "
             "mask; of each pass the longest kernel, TFLOP/s of all its kernels.", "",
             "| counter | " + " | ".join(f"d = {d}, {which}" for d in both for which in counters.PASSES) + " |",
             "|---" + "|--:" * 2 * len(both) + "|"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in table.items()]
    return "\n".join(lines)


def many_heads_block(data):
    """The Markdown that sets each kernel of the stages of OF_MANY_HEADS beside the others, where there are many heads;
    nothing where the profile lacks one of them."""
    p = counters.MANY_HEADS
    found = {profile["stage"]: profile for profile in data["profiles"]
             if counters.length(profile) == p["N"] and counters.head_dim(profile) == p["d"]}
    if set(found) != set(counters.OF_MANY_HEADS):
        return ""
    table, total = {}, {}
    for stage, profile in found.items():
        kernels = Kernel(profile).all  # which are as they must be
        for kernel in kernels:
            c = kernel["counters"]
            lines = {"time, ms": f"{c[counters.TIME] / 1e6:.3f}",
                     **{f"{unit} busy": f"{c[metric]:.0f} %" for unit, metric in counters.BUSY.items()},
                     "occupancy": f"{c[counters.OCCUPANCY]:.0f} %",
                     "read from DRAM; written, MB":
                         f"{c[counters.DRAM_READ] / 1e6:,.0f}; {c[counters.DRAM_WRITTEN] / 1e6:,.0f}"}
            for name, text in lines.items():
                table.setdefault(name, []).append(text)
        total[stage] = {metric: sum(kernel["counters"][metric] for kernel in kernels)
                        for metric in (counters.TIME, counters.DRAM_READ, counters.DRAM_WRITTEN)}
    heads = [f"{stage}, `{kernel['name']}`" for stage, profile in found.items() for kernel in profile["kernels"]]
    commits = ", ".join(dict.fromkeys(profile["commit"] for profile in found.values()))
    lines = [f"The kernels of stages {' and '.join(map(str, found))} on one {data['gpu']}, driver {data['driver']}, commit "
             f"{commits}, by the counters of Nsight Compute: batch * heads = {p['batch'] * p['heads']}, N = {p['N']}, "
             f"d = {p['d']}, fp32, no mask.", "",
             f"| counter | {' | '.join(heads)} |", "|---" + "|--:" * len(heads) + "|"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in table.items() if set(cells) != {"0 %"}]
    lines += ["", *(f"- Stage {stage} in all: {sums[counters.TIME] / 1e6:.2f} ms, "
                    f"{(sums[counters.DRAM_READ] + sums[counters.DRAM_WRITTEN]) / 1e6:,.0f} MB from and to DRAM."
                    for stage, sums in total.items())]
    return "\n".join(lines)


def read(path):
    """The profile of a file; one of no stage where it is not there."""
    return gpu.load(path) if path.exists() else {"profiles": []}


def readmes(*profiles):
    """(profile, number, README) of each stage that has a place for the block, and of each that is in one of the profiles:
    in which it is, or the first."""
    having = {one["stage"]: data for data in reversed(profiles) for one in data["profiles"]}
    for stage in registry.all_stages():
        if stage.readme.exists() and (stage.number in having or f"<!-- {BLOCK}:begin -->" in stage.readme.read_text()):
            yield having.get(stage.number, profiles[0]), stage.number, stage.readme


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a README is stale")
    check = parser.parse_args().check
    data = read(PROFILE)
    texts = {readme: with_block(readme, BLOCK, block(profile, number))[1]
             for profile, number, readme in readmes(data, read(HOPPER_PROFILE))}
    for stage in registry.all_stages():
        if stage.readme.exists() and f"<!-- {SHARE_BLOCK}:begin -->" in stage.readme.read_text():
            texts[stage.readme] = with_block(stage.readme, SHARE_BLOCK, share_block(data), texts.get(stage.readme))[1]
        if stage.readme.exists() and f"<!-- {MANY_HEADS_BLOCK}:begin -->" in stage.readme.read_text():
            texts[stage.readme] = with_block(stage.readme, MANY_HEADS_BLOCK, many_heads_block(data),
                                             texts.get(stage.readme))[1]
    stale = {readme: new for readme, new in texts.items() if readme.read_text() != new}
    names = ", ".join(str(readme.relative_to(ROOT)) for readme in stale)
    if check and stale:
        raise Failure(f"stale: {names}: python3 -m bench.report.attribution writes them anew")
    for readme, new in stale.items():  # all or, where one cannot be made, none
        readme.write_text(new)
    print(f"written: {names}" if stale else "nothing to do")


if __name__ == "__main__":
    try:
        main()
    except (Failure, NoMarkers, gpu.BadResult) as failure:
        sys.exit(f"attribution: {failure}")
