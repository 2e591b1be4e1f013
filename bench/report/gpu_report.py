"""Writes what a GPU measured into the READMEs, as tables, and draws the pictures of it (gpu_pictures.py).

    python3 -m bench.report.gpu_report               # from the JSON files of bench/results, and the ledger
    python3 -m bench.report.gpu_report --check       # changes nothing; exits 1 and names what is stale
    python3 -m bench.report.gpu_report --of bench/results/a100 --to out/a100     # of another GPU: all in one report.md

The files are those that bench.measure.measure_all makes, by the commands that its --list shows. Only stages.json must
be there.
"""

import argparse
import json
import math
import re
import statistics
import sys
from pathlib import Path

from bench.report import gpu_pictures
from bench.report.markers import NoMarkers, with_block
from bench.results import atomics
from bench.results.gpu import (FOLDER, HOPPER, HOPPER_BACKWARD, HOPPER_BUSY, HOPPER_ODD, HOPPER_OTHER, HOPPER_PEERS,
                               HOPPER_PERSISTENT, HOPPER_SAME_BITS, KINDS, PACKAGES, BadResult, Measured, kind_text, load,
                               others, pace, positive, read, require, spread)
from bench.results.losses import FACTOR, FLOOR, allowed, away, most_of, so_far
from common.course import ledger, registry
from common.course.registry import ROOT, Failure

STAGES, BACKWARD = "stages.json", "backward.json"
PEERS, BACKWARD_PEERS = "peers_bf16.json", "backward_peers_bf16.json"
LOSSES, TRAINING = ("train_gpt.json", "train_gpt_bf16.json"), "training.json"
ATOMICS, NSIGHT, HOST = "atomics.json", "nsight.json", "host.json"
# Head dimensions, a backward pass that gives the same bits every time there, and the fastest whose bits change, of a run
# that all are in.
IN_ORDER = (*(((64, 128), stage, 66) for stage in (64, 67, 68)), ((64, 128), 57, 63), ((256,), 58, 56))
BESIDE = ("fa2", "cudnn", "flash-attn-4")  # the peers that stand beside each of them
BETTER_FROM = 1024  # the means over N of what is set beside the better of the last two begin here
HOST_PAGE = ROOT / "docs/flash_attn.md"
EMULATOR = ROOT / "common/simt/README.md"
PAGE, ATOMICS_PAGE = ROOT / "docs/training.md", ROOT / "docs/theory/atomics.md"
MEASURED_PAGE = ROOT / "docs/measured.md"
NOT_YET = "Not yet."
# What a block of a stage's README is of, and one of another file.
OF_STAGE = {"h200": "forward pass", "backward": "backward pass", "peers": "beside its peers",
            "backward_peers": "backward pass, beside its peers", "other": "other problems",
            "policies": "beside plain attention and its peers"}
OF_ALL = {"peers": "The fastest forward pass over its peers: the geometric mean over N, in brackets the least and the most",
          "hopper_peers": "The same of the fastest forward pass on Hopper",
          "hopper_backward": "The same of the fastest backward passes on Hopper",
          "hopper_better": "The fastest forward pass on Hopper over the better of cuDNN and FlashAttention-4",
          "busy": "The same, rested and busy",
          "backward_peers": "The backward passes of all stages and their peers", "train_gpt": "The losses of a small GPT",
          "throughput": "The speed of whole models", "atomics": "What atomics and determinism cost",
          "in order": "What determinism costs on Hopper",
          "nsight": "The ledger against the GPU's counters", "host": "How long a call keeps the host"}
# What a variant of attention is measured beside, and what a comparison of it says of each of its rows.
BESIDE_VARIANT = {"plain, causal": "plain attention", "not packed": "not packed", "any GPU": "any GPU's stage",
                  "fa2": "FlashAttention-2", "flex": "FlexAttention"}
OF_ROW = {"pass": str, "d": int, "causal": bool, "N": int, "name": str}
OF_RUN = ("gpu", "driver", "torch", "cudnn", "commit", "dtype", "batch*N", "heads*d", "rounds", "pace", "variant")


def if_there(path, key):
    """The JSON of a file, which is there for what it has under this key; None where it is not there. Throws BadResult."""
    if not path.exists():
        return None
    data = load(path)
    require(path, data.get(key))
    return data


def of_scripts(path):
    """What bench.measure.compare or bench.training.train_throughput wrote; None where it is not there. Throws BadResult."""
    data = if_there(path, "results")
    if data is None:
        return None
    for row in data["results"]:
        for counter in ("tflops", "ms", "mfu"):
            if counter in row:
                positive(path, row, counter)
    if "gemm_tflops" in data["context"]:
        positive(path, {"name": "the matrix product", **data["context"]}, "gemm_tflops")
    return data


def of_train_gpt(path):
    """What bench.training.train_gpt wrote; None where it is not there. Throws BadResult, also where ours did not agree."""
    data = if_there(path, "losses")
    if data is None:
        return None
    for name, losses in data["losses"].items():
        require(path, losses)
        if not all(map(math.isfinite, losses)):
            raise BadResult(f"{path}: a loss with {name} is not a finite number: measure it again")
    if (share := share_of_allowed(data)) > 1:
        raise BadResult(f"{path}: the loss with our attention comes to {share:.2f} of what its step allows: such a run shows "
                        "that something is wrong, and is not shown as a result")
    return data


def of_policies(path):
    """What bench.measure.policies wrote: the number of the stage, and the data. Throws BadResult."""
    data, stages = load(path), set()
    require(path, data.get("results"))
    for key in OF_RUN:
        if key not in data.get("context", {}):
            raise BadResult(f"{path} does not say its {key}: measure it again")
    for row in data["results"]:
        for key, kind in OF_ROW.items():
            if not isinstance(row.get(key), kind):
                raise BadResult(f"{path}: {key} of a row is {row.get(key)}: measure it again")
        number = re.fullmatch(r"stage (\d+)", row["name"])
        if number:
            stages.add(int(number[1]))
        elif row["name"] not in BESIDE_VARIANT:
            raise BadResult(f"{path}: '{row['name']}' is neither a stage nor known as its peer")
        for counter in () if row.get("absent") else ("ms", "ms_lower_quartile", "ms_upper_quartile"):
            positive(path, row, counter)
    if len(stages) != 1 or len({row["causal"] for row in data["results"]}) != 1:
        raise BadResult(f"{path} is not of one stage under one mask: measure it again")
    return stages.pop(), data


def share_of_allowed(data):
    """The most that ours comes to of what its step allows."""
    right, plain, ours = data["losses"].values()
    return most_of(so_far(away(ours, right)), allowed(so_far(away(plain, right)), data["context"]["dtype"]))


def spread_text(spreads):
    """Of the runs that medians are of: how far apart they lie."""
    known = [one for one in spreads if one is not None]
    return f" (half the interquartile range at most {100 * max(known):.1f} % of it)" if known else ""


def machine(context):
    if "commit" not in context:
        raise BadResult(f"what was measured on {context['date']} does not say of which commit it is: measure it again, with "
                        "--benchmark_context=commit=HASH")
    return (f"{context['gpu']}, {context['multiprocessors']} multiprocessors, driver {context['driver']}, "
            f"CUDA {context['cuda_of_build']}, commit {context['commit']}; {pace(context)}")


def cell_text(result):
    if result.tflops is None:
        return "out of memory" if "out of memory" in result.why else "failed"
    return f"{result.tflops:.2f}"


def table(measured, stage, before, of_pass=""):
    """TFLOP/s of one stage over N, and its speed over that of the stage before, if that is not None."""
    kinds = [kind for kind in KINDS if any(key[:3] == (stage, *kind) for key in measured.grid)]
    peak = measured.peak(stage)
    lines = [f"TFLOP/s on one {machine(measured.context)}; batch * N = 16k, heads * d = 2048, "
             f"{measured.dtypes[stage]}; {of_pass}median of at least 3 runs"
             f"{spread_text(one.spread for key, one in measured.grid.items() if key[0] == stage)}, L2 emptied before each. "
             "Causal FLOPs count half."
             + (f" In brackets: times as fast as {before}." if before else "")
             + (f" The matrix product in {measured.dtypes[stage]} reaches {peak:.0f} in the same run." if peak else ""), ""]
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


def forward_block(measured, stage, with_pictures=True):
    """The table of a stage, and for FlashAttention-1 over how many heads it gains, where that was measured."""
    text = table(measured, stage.number, stage.before if stage.before in measured.names else None)
    if with_pictures and stage.number == 11 and gpu_pictures.head_gains(measured, 512)["lines"]:
        text += "\n![Times as fast as the stage before over batch * heads](head_gains.png)\n"
    return text


def backward_blocks(measured, peers, with_pictures=True):
    """(file, name of the block, its text) for each stage with a backward pass, of the table and of its peers, and for
    docs/measured.md. `measured` and `peers` may be None: then each place that there is says so."""
    blocks = []
    stages = measured.stages if measured else []
    for number, folder in registry.folders().items():
        readme = folder / "README.md"
        text = readme.read_text() if readme.exists() else ""
        if number in stages:
            before = max((one for one in stages if one < number), default=None)
            blocks.append((readme, "backward", table(
                measured, number, before, "backward pass, whose FLOPs count 2.5 times the forward pass's; ")))
        elif "<!-- backward:begin -->" in text:
            blocks.append((readme, "backward", NOT_YET))
        if "<!-- backward_peers:begin -->" in text:
            found = peers and any(one["name"] == f"stage {number}" for one in peers["results"])
            blocks.append((readme, "backward_peers", backward_peers_table(peers) if found else NOT_YET))
    short = short_backward_table(peers, with_pictures and measured is not None) if peers else NOT_YET
    return [*blocks, (MEASURED_PAGE, "backward_peers", short)]


def name_of(stage):
    """What a comparison calls it."""
    return f"stage {stage.number}"


def origin(c):
    """What a run through PyTorch was measured on."""
    packages = "".join(f", {name} {c[name]}" for name in PACKAGES if name in c)
    return (f"on one {c['gpu']}, driver {c['driver']}, PyTorch {c['torch']}, cuDNN {c['cudnn']}{packages}, commit "
            f"{c['commit']}")


def by_shape(peers):
    """The speeds of a comparison by shape, (d, causal, N), and name; None: absent."""
    shapes = {}
    for one in peers["results"]:
        shapes.setdefault((one["d"], one["causal"], one["N"]), {})[one["name"]] = one.get("tflops")
    return shapes


def over_fa2(peers, names, what="", more=None):
    """A comparison shape by shape: TFLOP/s of each name, and its ratio to FlashAttention-2; what is absent has none.
    `more`: the head of one more column, what that is, and a function that makes its cell of the speeds at a shape."""
    heads = [*(gpu_pictures.PEERS.get(name, name) for name in names), *([more[0]] if more else [])]
    c = peers["context"]
    spreads = spread_text(spread(one) for one in peers["results"] if one["name"] in names)
    lines = [f"TFLOP/s{what} in {c['dtype']} {origin(c)}; one interleaved run, {pace(c)}, median of "
             f"{c['rounds']}{spreads}. In "
             "brackets: over PyTorch's FlashAttention-2." + (f" {more[0]}: {more[1]}." if more else ""), "",
             "| d | mask | N | " + " | ".join(heads) + " |", "|--:|---|--:|" + "--:|" * len(heads)]
    for (d, causal, N), speed in by_shape(peers).items():
        fa2, cells = speed.get("fa2"), []
        for name in names:
            mine = speed.get(name)
            ratio = f" ({mine / fa2:.2f})" if mine and fa2 and name != "fa2" else ""
            cells.append(f"{mine:.0f}{ratio}" if mine else "absent")
        if more:
            cells.append(more[2](speed))
        lines.append(f"| {d} | {'causal' if causal else 'full'} | {N} | " + " | ".join(cells) + " |")
    return lines


def backward_peers_table(peers):
    """The backward pass of stages and peers, interleaved in one run; of the stages that add to dQ atomically and in
    a fixed order also the one's time over the other's."""
    names, stages, dtype = gpu_pictures.names_of(peers), measured_in(peers), peers["context"]["dtype"]
    fixed_order, more = registry.deterministic("backward", dtype, stages), None
    if fixed_order:
        fastest = registry.fastest("backward", dtype, stages)

        def of_order(speed):
            added, fixed = speed.get(name_of(fastest)), speed.get(name_of(fixed_order))
            return f"{added / fixed:.2f}" if added and fixed else "absent"

        more = (f"{fixed_order.number} / {fastest.number}",
                f"the time of {name_of(fixed_order)} over that of {name_of(fastest)}", of_order)
    return "\n".join(over_fa2(peers, names, " of the backward pass", more)) + "\n"


def short_backward_table(peers, with_pictures=False):
    """Each stage's backward pass over FlashAttention-2's, for each d and mask: the geometric mean over N, the least and
    the most. With the pictures of all backward passes, where these were measured."""
    speed = {(one["name"], one["d"], "causal" if one["causal"] else "full", one["N"]): one["tflops"]
             for one in peers["results"] if "tflops" in one}
    names = [name for name in gpu_pictures.names_of(peers) if name != "fa2"]
    c = peers["context"]
    lines = [f"The backward pass in {c['dtype']} over PyTorch's FlashAttention-2's, {origin(c)}; one interleaved "
             f"run, {pace(c)}. "
             "The geometric mean over N, in brackets the least and the most:", "",
             "| d | mask | " + " | ".join(gpu_pictures.PEERS.get(name, name) for name in names) + " |",
             "|--:|---|" + "--:|" * len(names)]
    for kind in KINDS:
        cells = []
        for name in names:
            ratios = [tflops / speed["fa2", *kind, N] for (other, *of, N), tflops in speed.items()
                      if other == name and tuple(of) == kind and ("fa2", *kind, N) in speed]
            cells.append(f"{statistics.geometric_mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
                         if ratios else "absent")
        if set(cells) != {"absent"}:
            lines.append(f"| {kind[0]} | {kind[1]} | " + " | ".join(cells) + " |")
    if with_pictures:
        lines += ["", "![TFLOP/s of the backward pass by stage](h200_backward.png)", "",
                  "![TFLOP/s of the backward pass over N in bf16, stages and peers](h200_backward_bf16.png)", "",
                  "In fp32, on CUDA cores:", "",
                  "![TFLOP/s of the backward pass over N in fp32](h200_backward_fp32.png)", "",
                  "The bytes of global memory requested in the backward pass, before caches:", "",
                  "![Global memory requested in the backward pass, by stage](h200_backward_traffic.png)"]
    return "\n".join(lines) + "\n"


def losses_block(runs):
    """What bench.training.train_gpt found in each dtype, with the chart of all."""
    if not runs:
        return NOT_YET
    return "".join(map(losses_text, runs)) + "![The loss over the steps, with each attention](h200_training.png)\n"


def losses_text(data):
    c, names = data["context"], list(data["losses"])
    apart = {name: away(losses, data["losses"][names[0]]) for name, losses in data["losses"].items()}
    return (f"In {c['dtype']}, {c['layers']} layers, hidden {c['hidden']}, {c['heads']} heads, N = {c['context']}, batch "
            f"{c['batch']}, {c['steps']} steps on one {c['gpu']}, driver {c['driver']}, PyTorch {c['torch']}, commit "
            f"{c['commit']}: from the loss with math attention in fp64 the loss with {names[1]} attention is "
            f"{so_far(apart[names[1]])[-1]:.1e} away in the root mean square, {max(apart[names[1]]):.1e} at most, that with "
            f"{names[2]} {so_far(apart[names[2]])[-1]:.1e} and {max(apart[names[2]]):.1e}. At no step does the latter's root "
            f"mean square so far come to more than {100 * share_of_allowed(data):.0f} % of what is allowed: "
            f"{FACTOR[c['dtype']]} times that of the former, and {FLOOR[c['dtype']]:.0e}.\n\n")


def training_block(data):
    """What bench.training.train_throughput measured, with its chart."""
    if not data:
        return NOT_YET
    c = data["context"]
    kinds, names, rows = gpu_pictures.training_rows(data)
    ours = "; ".join(f"{name}: stages {' and '.join(map(str, numbers))}" for name, numbers in c["ours"].items())
    lines = [f"TFLOP/s, in brackets MFU, and the most memory in use, in {c['dtype']} {origin(c)}; {c['tokens']} tokens a "
             f"step, median of {c['rounds'] * c['steps']} steps{spread_text(map(spread, data['results']))}; the matrix "
             f"product reaches {c['gemm_tflops']:.0f} TFLOP/s."
             + (f" {ours.capitalize()}." if ours else ""), "",
             "| model | N | " + " | ".join(gpu_pictures.PEERS.get(name, name) for name in names) + " |",
             "|---|--:|" + "--:|" * len(names)]
    for model, N in kinds:
        cells = []
        for row in (rows[model, N, name] for name in names):
            speed = f"{row['tflops']:.0f} ({100 * row['mfu']:.0f} %)" if "tflops" in row else ""
            memory = f"{(row['torch_bytes'] + row.get('workspace_bytes', 0)) / 2**30:.1f} GiB" if row.get("torch_bytes") else ""
            cells.append(", ".join(filter(None, (speed, memory, gpu_pictures.remark(c, row)))))
        lines.append(f"| {model} | {N} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", "![TFLOP/s of training by model, length and attention](h200_training_speed.png)"]) + "\n"


def atomics_block(data):
    """What bench.measure.atomics measured, with its charts: over N, and over the heads at the longest N."""
    if not data:
        return NOT_YET
    whole, *_, deterministic = variants = atomics.variants_of(data)
    measured = {name for row in data["rows"] for name in row["ms"]}
    names = [name for name in variants if name in measured]
    split = f"splits of {deterministic.removeprefix('stage ')}; MiB"
    lines = [f"{whole.capitalize()} in milliseconds, the others over it, in {data['dtype']} on one {data['gpu']}, driver "
             f"{data['driver']}, commit {data['commit']}; in turns on the same tensors, {pace(data)}, median of {data['rounds']} "
             f"runs. Of {' and '.join(data['not_checked'])} dQ is wrong by design. A dash: it would take too much "
             "memory.", "",
             f"| d | mask | N | batch * heads | blocks that add to a row | added, MiB | {split} | "
             + " | ".join(f"{name}, ms" if name == whole else name for name in names) + " |",
             "|--:|---|--:|--:|--:|--:|--:|" + "--:|" * len(names)]
    ratios = {}
    for row in data["rows"]:
        ms, c = row["ms"], atomics.counts(row, data["kernels"], whole, deterministic)
        if not all(isinstance(time, float) and 0 < time < float("inf") for time in ms.values()):
            raise BadResult(f"{ATOMICS}: the times at d = {row['d']}, N = {row['N']} are no times: measure it again")
        cells = [f"{ms[whole]:.3f}"]
        for name in names[1:]:
            if name in ms:
                ratios.setdefault(name, []).append(ms[name] / ms[whole])
            cells.append(f"{ms[name] / ms[whole]:.2f}" if name in ms else "-")
        lines.append(f"| {row['d']} | {'causal' if row['causal'] else 'full'} | {row['N']} | "
                     f"{row['batch'] * row['heads']} | {c['blocks']} | {c['added'] / gpu_pictures.MIB:,.0f} | "
                     f"{c['splits']}; {c['split_bytes'] / gpu_pictures.MIB:,.0f} | " + " | ".join(cells) + " |")
    lines += ["", "Over all these shapes, geometric mean (least to most):", ""]
    lines += [f"- {name}: {statistics.geometric_mean(found):.3f} ({min(found):.2f} to {max(found):.2f}) of {whole}'s "
              "time" for name, found in ratios.items()]
    lines += [f"- {kernel['variant']} spills {kernel['spilled']} bytes of registers at d = {kernel['d']}"
              + ", causal" * kernel["causal"] for kernel in data["kernels"] if kernel["spilled"]]
    lines += ["", f"![Time over {whole}'s by N: without atomics, and with smaller ones](../h200_atomics.png)", "",
              f"![The same by batch * heads at N = {max(row['N'] for row in data['rows'])}](../h200_atomics_heads.png)"]
    return "\n".join(lines) + "\n"


def measured_in(data):
    """The stages that a comparison has."""
    names = {one["name"] for one in data["results"]}
    return [stage for stage in registry.all_stages() if name_of(stage) in names]


def peers_table(peers):
    """The fastest forward pass and its peers, interleaved in one run: TFLOP/s and ratios to FlashAttention-2."""
    mine = name_of(registry.fastest("forward", peers["context"]["dtype"], measured_in(peers)))
    names = [name for name in gpu_pictures.names_of(peers) if name in gpu_pictures.PEERS]
    lines = over_fa2(peers, [mine, *names])
    speed = {(one["name"], one["d"], one["causal"], one["N"]): one["tflops"]
             for one in peers["results"] if "tflops" in one}
    ratios = [tflops / speed["fa2", *shape] for (name, *shape), tflops in speed.items()
              if name == mine and ("fa2", *shape) in speed]
    if ratios:
        lines += ["", f"{mine.capitalize()} over FlashAttention-2: {statistics.geometric_mean(ratios):.3f} in the geometric mean "
                  f"of {len(ratios)} shapes, {min(ratios):.2f} to {max(ratios):.2f}."]
    return "\n".join(lines) + "\n"


def step_table(peers, stage):
    """A stage and the one before it beside the fastest peers, and beside the fastest stage where this one gives the same bits
    every time; interleaved in one run."""
    before, mine = name_of(registry.stage_of(stage.before)), name_of(stage)
    names = [one["name"] for one in peers["results"]]
    steps = [mine] if before not in names else [before, mine]
    c = peers["context"]
    fastest = [name_of(registry.fastest("backward", c["dtype"], measured_in(peers)))] if registry.is_deterministic(stage) else []
    shown = [*(name for name in fastest if name not in steps), *(name for name in gpu_pictures.names_of(peers) if name in BESIDE)]
    spreads = spread_text(spread(one) for one in peers["results"] if one["name"] in (*steps, *shown))
    heads = [*steps, *(["ratio"] if len(steps) == 2 else []), *(gpu_pictures.PEERS.get(name, name) for name in shown)]
    lines = [f"TFLOP/s in {c['dtype']} {origin(c)}; one interleaved run, {pace(c)}, median of {c['rounds']}"
             f"{spreads}.", "",
             "| d | mask | N | " + " | ".join(heads) + " |", "|--:|---|--:|" + "--:|" * len(heads)]
    for (d, causal, N), speed in by_shape(peers).items():
        if not stage.takes(d):
            continue
        cells = [f"{speed[name]:.0f}" if speed.get(name) else "absent" for name in (*steps, *shown)]
        if len(steps) == 2:
            ratio = f"{speed[mine] / speed[before]:.2f}" if speed.get(mine) and speed.get(before) else "absent"
            cells.insert(2, ratio)
        lines.append(f"| {d} | {'causal' if causal else 'full'} | {N:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def short_peers_table(peers):
    """The last stage that was measured at d over each of its peers, for each d and mask: the geometric mean over N, the
    least and the most. None that exists for its bits."""
    stages, over_N = [stage for stage in measured_in(peers) if not registry.is_deterministic(stage)], {}
    for one in peers["results"]:
        if "tflops" in one:
            kind = one["d"], "causal" if one["causal"] else "full"
            over_N.setdefault((one["name"], *kind), {})[one["N"]] = one["tflops"]
    names = [name for name in gpu_pictures.names_of(peers) if name in gpu_pictures.PEERS]
    c = peers["context"]
    lines = [f"In {c['dtype']} {origin(c)}; {pace(c)}:", "",
             "| d | mask | stage | " + " | ".join(f"over {gpu_pictures.PEERS[name]}" for name in names) + " |",
             "|--:|---" + "|--:" * (len(names) + 1) + "|"]
    for kind in KINDS:
        last = next((stage for stage in reversed(stages) if (name_of(stage), *kind) in over_N), None)
        mine, cells = over_N[(name_of(last), *kind)] if last else {}, []
        for name in names:
            other = over_N.get((name, *kind), {})
            ratios = [mine[N] / other[N] for N in mine if N in other]
            cells.append(f"{statistics.geometric_mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
                         if ratios else "absent")
        if set(cells) != {"absent"}:
            lines.append(f"| {kind[0]} | {kind[1]} | {last.number} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def in_order_table(peers):
    """How many times as long a backward pass that gives the same bits every time takes as the fastest one, at each shape
    of those of IN_ORDER's pairs that this run has."""
    at = {(one["d"], one["causal"], one["N"], one["name"]): one["tflops"] for one in peers["results"] if "tflops" in one}
    lengths = sorted({N for _, _, N, _ in at})
    lines = [f"Times as long, in {peers['context']['dtype']} {origin(peers['context'])}; {pace(peers['context'])}:", "",
             "| d | mask | stages | " + " | ".join(f"N = {N:,}" for N in lengths) + " |", "|--:|---|---" + "|--:" * len(lengths) + "|"]
    for ds, ordered, atomic in IN_ORDER:
        for d, causal in ((d, causal) for d in ds for causal in (False, True)):
            pairs = [[at.get((d, causal, N, name_of(registry.stage_of(stage)))) for stage in (atomic, ordered)] for N in lengths]
            if any(all(pair) for pair in pairs):
                cells = [f"{pair[0] / pair[1]:.2f}" if all(pair) else "" for pair in pairs]
                lines.append(f"| {d} | {'causal' if causal else 'full'} | {ordered} over {atomic} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n" if len(lines) > 4 else ""


def better_table(runs):
    """The fastest forward pass over the better of the two fastest peers at each shape, for each GPU that has a run, with
    the geometric mean over the longer N."""
    origins, lines = [], []
    lengths = sorted({one["N"] for peers in runs for one in peers["results"]})
    for peers in runs:
        c, speeds = peers["context"], by_shape(peers)
        stage = registry.fastest("forward", c["dtype"], measured_in(peers))
        origins.append(f"{c['dtype']} {origin(c)}, {pace(c)}")
        for d, mask in KINDS:
            over = {}
            for N in lengths:
                at = speeds.get((d, mask == "causal", N), {})
                if all(at.get(name) for name in (name_of(stage), *BESIDE[1:])):
                    over[N] = at[name_of(stage)] / max(at[name] for name in BESIDE[1:])
            if means := [ratio for N, ratio in over.items() if N >= BETTER_FROM]:
                cells = [f"{over[N]:.2f}" if N in over else "absent" for N in lengths]
                lines.append(f"| {c['gpu']} | {d} | {mask} | {stage.number} | {' | '.join(cells)} | "
                             f"{statistics.geometric_mean(means):.2f} |")
    return "\n".join([f"In {'; '.join(origins)}; one interleaved run each:", "",
                      f"| GPU | d | mask | stage | {' | '.join(f'N = {N:,}' for N in lengths)} | mean from {BETTER_FROM:,} on |",
                      "|---|--:|---" + "|--:" * (len(lengths) + 2) + "|", *lines]) + "\n"


def busy_table(rested, busy):
    """The fastest forward pass and the fastest peers at both paces: TFLOP/s, and of the busy ones the clock and the share
    of the tensor cores' rate at that clock."""
    fastest = name_of(registry.fastest("forward", busy["context"]["dtype"], measured_in(busy)))
    names = [fastest, *(name for name in gpu_pictures.names_of(busy) if name in BESIDE[1:])]
    at_rest = {(one["d"], one["causal"], one["N"], one["name"]): one.get("tflops") for one in rested["results"]}
    rows = {(one["d"], one["causal"], one["N"], one["name"]): one for one in busy["results"]}
    c = busy["context"]
    lines = ["In each cell TFLOP/s rested and busy; then, of the busy GPU, the clock and the share of its tensor cores' rate at "
             f"that clock. In {c['dtype']} {origin(c)}; median of {c['rounds']}:", "",
             "| d | mask | N | " + " | ".join(gpu_pictures.PEERS.get(name, name) for name in names) + " | over the better, busy |",
             "|--:|---|--:|" + "--:|" * (len(names) + 1)]
    for d, causal, N in dict.fromkeys(shape[:3] for shape in rows):
        cells = []
        for name in names:
            one, before = rows.get((d, causal, N, name), {}), at_rest.get((d, causal, N, name))
            if "tflops" not in one or before is None:
                cells.append("absent")
                continue
            behind = f"; {one['sm_ghz']:.2f} GHz, {100 * one['share']:.0f} %" if "share" in one else ""
            cells.append(f"{before:.0f}, {one['tflops']:.0f}{behind}")
        speeds = [rows.get((d, causal, N, name), {}).get("tflops") for name in names]
        cells.append(f"{speeds[0] / max(speeds[1:]):.2f}" if all(speeds) else "absent")
        lines.append(f"| {d} | {'causal' if causal else 'full'} | {N:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def other_block(found, context):
    """What a stage for Hopper reaches on problems that are no whole tiles."""
    what = {"d": "d = {d}", "fp16": "fp16, d = {d}", "ragged": "N = {N:,}, d = {d}",
            "gqa": "4 query heads a key/value head, d = {d}"}
    lines = [f"TFLOP/s on one {machine(context)}; batch 4, N = 4,096 where nothing else is said, heads * d = 2048, or a little "
             "less, bf16; columns of zeros are not counted.", "", "| | full | causal |", "|---|--:|--:|"]
    for which, d, N in dict.fromkeys(shape[:3] for shape in found):
        cells = [f"{found[which, d, N, mask]:.0f}" if (which, d, N, mask) in found else "absent" for mask in ("full", "causal")]
        lines.append(f"| {what[which].format(d=d, N=N)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def host_table(data):
    """How long a call in Python keeps the host, beside PyTorch's own."""
    c, passes = data["context"], {}
    for row in data["results"]:
        for key in ("us", "least_us"):
            positive(HOST, row, key)
        passes.setdefault(row["pass"], {})[row["name"]] = row
    words = {"PyTorch": "`scaled_dot_product_attention`", "window": "`attention` with a window",
             "without the node": "`attention` without the node"}
    lines = [f"Microseconds of the host for a call of attention of bf16 [1, 2, 64, 64] under the causal mask {origin(c)}; the median "
             f"of {c['rounds']} rounds of {c['calls']} calls, in brackets the least; the GPU has less to do than the host.", "",
             "| pass | called | us | over PyTorch |", "|---|---|--:|--:|"]
    for of_pass, found in passes.items():
        for name, row in found.items():
            ratio = f"{row['us'] / found['PyTorch']['us']:.2f}" if "PyTorch" in found else ""
            lines.append(f"| {of_pass} | {words.get(name, f'`{name}`')} | {row['us']:.1f} ({row['least_us']:.1f}) | {ratio} |")
    return "\n".join(lines) + "\n"


def policies_blocks(runs):
    """(file, name of the block, its text) of each stage with a variant of attention that was measured."""
    texts = {}
    for number, data in runs:
        texts.setdefault(registry.stage_of(number).readme, []).append(policies_block(number, data))
    return [(readme, "policies", "\n".join(found)) for readme, found in texts.items()]


def policies_block(number, data):
    """A variant of attention beside plain attention under the causal mask and its peers: milliseconds, shape by shape, and
    how many times as fast it is."""
    c, rows = data["context"], data["results"]
    mine, measured, beside = f"stage {number}", {row["name"] for row in rows}, c.get("beside")
    of_plain = f"stage {beside['plain, causal']}, and any GPU's stage is {beside['any GPU']}," if beside else "stages 70 and 71"
    others = [name for name in BESIDE_VARIANT if name in measured]
    mask = "under the causal mask" if rows[0]["causal"] else "without the causal mask"
    lines = [f"Milliseconds of `{c['variant']}` {mask} in {c['dtype']} {origin(c)}; batch * N = {c['batch*N']:,}, heads * d = "
             f"{c['heads*d']:,}; one interleaved run, {pace(c)}, median of {c['rounds']}"
             f"{spread_text(spread(row) for row in rows if 'ms' in row)}. In brackets: how many times as fast {mine} is. "
             f"Plain attention is that of {of_plain} under the causal mask. "
             "FlashAttention-2 and FlexAttention are PyTorch's.", "",
             f"| pass | d | N | {mine} | " + " | ".join(BESIDE_VARIANT[name] for name in others) + " |",
             "|---|--:|--:|--:|" + "--:|" * len(others)]
    by_row, faster = {}, {}
    for row in rows:
        by_row.setdefault((row["pass"], row["d"], row["N"]), {})[row["name"]] = row
    for (of_pass, d, N), found in by_row.items():
        own, cells = found.get(mine, {}).get("ms"), [time_text(found.get(mine))]
        for name in others:
            ms = found.get(name, {}).get("ms")
            cells.append(time_text(found.get(name)) + (f" ({ms / own:.2f})" if ms and own else ""))
            if ms and own:
                faster.setdefault(of_pass, {}).setdefault(name, []).append(ms / own)
        lines.append(f"| {of_pass} | {d} | {N:,} | " + " | ".join(cells) + " |")
    if faster:
        lines += ["", f"How many times as fast {mine} is, of all these shapes the geometric mean (least to most):", ""]
    lines += [f"- {of_pass}: " + "; ".join(f"{statistics.geometric_mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) "
                                           f"over {BESIDE_VARIANT[name]}" for name, ratios in found.items())
              for of_pass, found in faster.items()]
    if "window" in c["variant"]:
        lines += window_lines(number, c, by_row, rows[0]["causal"])
    return "\n".join(lines) + "\n"


def time_text(row):
    """A cell of a table of times; what is absent has its reason."""
    if row is None:
        return "not measured"
    if row.get("absent"):  # of a long message the first sentence
        return f"absent: {row['absent'].split('. ')[0]}".replace("|", "\\|")
    return f"{row['ms']:.3f}"


def window_lines(number, c, by_row, causal):
    """At the longest N the time of a window over that of plain causal attention, beside the same of the tiles that a row
    sees: for each pass and d."""
    longest, lines = max(N for _, _, N in by_row), []
    for (of_pass, d, N), found in by_row.items():
        own, plain = (found.get(name, {}).get("ms") for name in (f"stage {number}", "plain, causal"))
        if N != longest or not own or not plain:
            continue
        tile, (left, right) = tile_and_window(number, c, of_pass, d)
        visited = live_tiles(N, **tile, left=left, right=0 if causal else right)
        share, time = visited / live_tiles(N, **tile, left=-1, right=0), own / plain
        lines.append(f"- {of_pass}, d = {d}: {time:.3f} of the time for {share:.3f} of the tiles, which are of {tile['Br']} rows "
                     f"and {tile['Bc']} keys: {time / share:.2f} times the share")
    head = (f"At N = {longest:,}, over plain attention under the causal mask, with the tiles that the ledger has for compute "
            "capability 9.0:")
    return ["", head, "", *lines] if lines else []


def tile_and_window(number, c, of_pass, d):
    """The rows and keys of a stage's tile, as the emulated GPU has it, and the keys that a row sees on either side."""
    answer = ledger.answer(registry.program(), ["ledger", str(number), "--random", f"1,1,32,{d}", "--causal", "--dtype",
                                                c["dtype"], "--variant", c["variant"], *["--backward"] * (of_pass == "backward")])
    return answer["stages"][0]["tile"], answer["input"]["window"]


def live_tiles(N, Br, Bc, left, right):
    """How many tiles of N rows and N keys have a row that sees a key of theirs, where a row sees so many on either side;
    -1: all."""
    left, right = (N if side < 0 else side for side in (left, right))
    return sum(math.ceil(min(i + Br + right, N) / Bc) - max(i - left, 0) // Bc for i in range(0, N, Br))


def nsight_table(data):
    """Hardware over ledger, the least and the most of all shapes, for each pass of a stage and count."""
    if not data:
        return NOT_YET
    ratios = {}
    forward = {one["stage"] for one in data["results"] if one.get("pass", "forward") == "forward"}

    def column(one):
        backward = one["stage"] in forward and one.get("pass") == "backward"
        return f"{one['stage']} backward" if backward else str(one["stage"])

    for one in data["results"]:
        if one["ledger"] or one["hardware"]:
            ratio = one["hardware"] / one["ledger"] if one["ledger"] else float("inf")
            ratios.setdefault(one["count"], {}).setdefault(column(one), []).append(ratio)
    stages = sorted({column(one) for one in data["results"]})

    def cell(values):
        if values is None:
            return ""
        if all(value == 1 for value in values):
            return "equal"
        return f"{min(values):.4f} to {max(values):.4f}"

    lines = [f"Hardware over ledger, two shapes for each head dimension ({data['gpu'].replace(', ', ', driver ')}, "
             f"commit {data['commit']}):", "",
             "| count | " + " | ".join(stages) + " |", "|---|" + "---|" * len(stages)]
    lines += [f"| {count} | " + " | ".join(cell(by_stage.get(stage)) for stage in stages) + " |"
              for count, by_stage in ratios.items()]
    return "\n".join(lines) + "\n"


def counted(stages, *options):
    """By mask and stage, the bytes of global memory that one head's kernels request, by the ledger, as
    gpu_pictures.MOVED names them. Of what is added atomically each byte is read and written."""
    shape = f"1,1,{gpu_pictures.COUNTED_N},{gpu_pictures.COUNTED_D}"
    result = {}
    for mask, more in (("full", []), ("causal", ["--causal"])):
        answer = ledger.answer(registry.program(), ["ledger", *map(str, stages), "--random", shape, *more, *options])
        result[mask] = {one["number"]: [moved(one, "read_bytes"), moved(one, "written_bytes"),
                                        2 * moved(one, "atomic_bytes")] for one in answer["stages"]}
    return result


def moved(stage, end):
    """A count of all buffers."""
    return sum(value for name, value in stage["counts"].items()
               if name.startswith("global.") and name.endswith(f".{end}"))


class Results:
    """All that was measured on one GPU, as bench.measure.measure_all puts it into a folder; None, or nothing, where a
    file is not there, but for stages.json; in the folder `hopper` is what it has of the stages that need Hopper, and of the
    variants of attention. Throws BadResult."""

    def __init__(self, folder, hopper):
        def measured(name, backward=False):
            one = Measured(read(folder / name), backward)
            require(folder / name, one.grid)
            return one

        self.stages = measured(STAGES)
        self.backward = measured(BACKWARD, True) if (folder / BACKWARD).exists() else None
        self.peers, self.backward_peers, self.training = (of_scripts(folder / name)
                                                          for name in (PEERS, BACKWARD_PEERS, TRAINING))
        self.hopper_backward = of_scripts(folder / HOPPER_BACKWARD)
        self.hopper_peers = of_scripts(hopper / HOPPER_PEERS)
        both = [[of_scripts(one / name) for name in (HOPPER_PEERS, HOPPER_BUSY)] for one in dict.fromkeys((hopper, folder))]
        self.busy = [runs for runs in both if all(runs)]  # rested, and busy, of a GPU
        self.hopper_runs = [run for run in map(of_scripts, dict.fromkeys(one / HOPPER_PEERS for one in (hopper, folder))) if run]
        # Runs of a stage beside the one before, which has its own table.
        self.steps = [run for run in (of_scripts(folder / name) for name in (HOPPER_ODD, HOPPER_PERSISTENT, HOPPER_SAME_BITS)) if run]
        self.step_of = {}  # the first run that has a stage and the one before
        for run in self.steps:
            before = {stage.number: stage.before for stage in measured_in(run)}
            self.step_of = {number: run for number in before if before[number] in before} | self.step_of
        self.other = others(folder / HOPPER_OTHER) if (folder / HOPPER_OTHER).exists() else None
        self.policies = [of_policies(path) for one in (hopper, folder) for path in sorted(one.glob("policies_*.json"))]
        self.host = if_there(folder / HOST, "results")
        self.losses = [run for run in (of_train_gpt(folder / name) for name in LOSSES) if run]
        self.atomics, self.nsight = if_there(folder / ATOMICS, "rows"), if_there(folder / NSIGHT, "results")

    def blocks(self, with_pictures=True):
        """(file, name of the block, its text) of all tables, with the pictures between them."""
        stages = self.stages
        fastest = registry.fastest("forward", "bf16", measured_in(self.peers) if self.peers else registry.all_stages())
        return [*((stage.readme, "h200", forward_block(stages, stage, with_pictures))
                  for stage in map(registry.stage_of, stages.stages)),
                *backward_blocks(self.backward, self.backward_peers, with_pictures),
                (PAGE, "train_gpt", losses_block(self.losses)), (PAGE, "throughput", training_block(self.training)),
                (ATOMICS_PAGE, "atomics", atomics_block(self.atomics)),
                (ATOMICS_PAGE, "in order",
                 "\n".join(filter(None, map(in_order_table, filter(None, (*self.steps, self.hopper_backward))))) or NOT_YET),
                (fastest.readme, "peers", peers_table(self.peers) if self.peers else NOT_YET),
                *((stage.readme, "peers", step_table(peers, stage))
                  for peers in filter(None, (self.hopper_peers, self.hopper_backward))
                  for stage in measured_in(peers) if stage.gpu == "hopper" and stage.number not in self.step_of),
                *((registry.stage_of(number).readme, "peers", step_table(run, registry.stage_of(number)))
                  for number, run in self.step_of.items()),
                *((MEASURED_PAGE, name, short_peers_table(peers) if peers else NOT_YET)
                  for name, peers in (("peers", self.peers), ("hopper_peers", self.hopper_peers),
                                      ("hopper_backward", self.hopper_backward))),
                (MEASURED_PAGE, "hopper_better", better_table(self.hopper_runs) if self.hopper_runs else NOT_YET),
                (MEASURED_PAGE, "busy", "\n".join(busy_table(*runs) for runs in self.busy) or NOT_YET),
                *((registry.stage_of(number).readme, "other", other_block(found, context))
                  for number, found, context in filter(None, [self.other])),
                *policies_blocks(self.policies), (EMULATOR, "nsight", nsight_table(self.nsight)),
                (HOST_PAGE, "host", host_table(self.host) if self.host else NOT_YET)]

    def pictures(self):
        """(file, what it shows, how that is drawn) of all pictures."""
        backward = counted(self.backward.stages, "--backward") if self.backward else None
        return [*gpu_pictures.pictures(self.stages, self.peers, counted(self.stages.stages)),
                *gpu_pictures.hopper_pictures(self.hopper_peers, self.hopper_backward, BESIDE),
                *gpu_pictures.backward_pictures(self.backward, self.backward_peers, backward),
                *gpu_pictures.training_pictures(self.losses, self.training), *gpu_pictures.atomics_pictures(self.atomics)]


def update(results, check):
    """The READMEs' tables and the pictures of docs/. Returns those that were stale; where `check`, nothing is changed."""
    stale = []
    for readme, name, block in results.blocks():
        text, new = with_block(readme, name, block)
        if new != text:
            stale += [readme] * (readme not in stale)
            if not check:
                readme.write_text(new)
    for path, shown, draw in results.pictures():
        if gpu_pictures.is_stale(path, shown):
            stale.append(path)
            if not check:
                gpu_pictures.save(draw(shown), path, shown)
    return stale


def report(results, folder):
    """The same tables and pictures in one file, report.md, with the pictures beside it. Returns its path."""
    pictures, tables = [], []
    for path, shown, draw in results.pictures():
        name = path.name.removeprefix("h200_").replace("h200", "ladder")
        gpu_pictures.save(draw(shown), folder / name, shown)
        pictures.append(f"![{shown['title']}]({name})\n")
    for path, name, block in results.blocks(with_pictures=False):
        of_stage = path.parent.parent == ROOT / "stages"
        title = f"Stage {path.parent.name.replace('_', ' ', 1)}: {OF_STAGE[name]}" if of_stage else OF_ALL[name]
        kept = (line for line in block.splitlines() if not line.startswith("!["))  # they are all above
        if block != NOT_YET:
            tables.append((not of_stage, path.parent.name if of_stage else "",
                           f"## {title}\n" + "\n".join(kept).rstrip() + "\n"))
    path = folder / "report.md"
    texts = [text for *_, text in sorted(tables, key=lambda one: one[:2])]  # those of a stage side by side, then the rest
    path.write_text("\n".join([f"# FlashLadder on one {results.stages.context['gpu']}\n", *pictures, *texts]))
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when something is stale")
    parser.add_argument("--of", type=Path, metavar="FOLDER", help="the results of another GPU; with --to")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="where its report.md and pictures go; the READMEs stay")
    arguments = parser.parse_args()
    if (arguments.of is None) != (arguments.to is None):
        parser.error("--of FOLDER and --to FOLDER belong together: of which results, and where the report goes")
    if arguments.to and arguments.check:
        parser.error("--check is of the READMEs: leave it out, or --of and --to")
    results = Results(arguments.of or FOLDER, arguments.of or HOPPER)
    if arguments.to:
        try:
            arguments.to.mkdir(parents=True, exist_ok=True)
            print(f"written: {report(results, arguments.to)}")
        except OSError as error:
            sys.exit(f"gpu_report: {error.filename}: {error.strerror}: is --to a folder that can be written to?")
        return
    stale = update(results, arguments.check)
    names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
    if arguments.check and stale:
        sys.exit(f"gpu_report: stale: {names}: python3 -m bench.report.gpu_report writes them anew")
    print(f"written: {names}" if stale else "nothing to do")


if __name__ == "__main__":
    try:
        main()
    except (BadResult, NoMarkers, Failure) as failure:
        sys.exit(f"gpu_report: {failure}")
