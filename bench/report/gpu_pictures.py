"""The pictures of what a GPU measured: what each shows, as plain data, and how that is drawn.

A picture carries the mark of its data, so that `gpu_report.py --check` knows a stale one whatever version of Matplotlib
drew it.
"""

import hashlib
import json
import textwrap

from bench.report.style import BAR, COUNT, FRAME, INK, LINES, MUTED, matplotlib, plt
from bench.results import atomics
from bench.results.gpu import KINDS, kind_text, pace
from bench.results.losses import allowed, away, so_far
from common.course import registry
from common.course.registry import ROOT

MIB = 1 << 20
PEERS = {"fa2": "FlashAttention-2 (PyTorch)", "cudnn": "cuDNN", "memory-efficient": "memory-efficient", "math": "math",
         "flash-attn": "FlashAttention-2 (flash-attn)", "flash-attn-4": "FlashAttention-4"}
OPTIONAL = {"flash-attn", "flash-attn-4"}  # packages of their own, which are not always installed
COUNTED_N, COUNTED_D = 1024, 64  # of the ledger that the pictures of requested bytes are of
MOVED = "read", "written", "added atomically: a read and a write"
GAINS_OVER_HEADS = (11, 10), (13, 11)  # a stage and the one whose speed it is divided by
STYLES = [*LINES, ("#882255", "*", "-")]  # a comparison has more lines than a climb


def parts(measured):
    """The stages in fp32, and those in bf16; their titles first."""
    return [(title, [stage for stage in measured.stages if measured.dtypes[stage] == dtype])
            for title, dtype in (("fp32 on CUDA cores", "fp32"), ("bf16 on tensor cores", "bf16"))]


def names_of(peers):
    """The names that a comparison is shown of, in its order: all, and an optional peer where it was measured at all."""
    measured = {one["name"] for one in peers["results"] if "tflops" in one}
    names = dict.fromkeys(one["name"] for one in peers["results"])
    return [name for name in names if name in measured or name not in OPTIONAL]


def timed(peers):
    """Whether a comparison has any time in it; `peers` may be None."""
    return peers is not None and any("tflops" in one for one in peers["results"])


def stage_text(measured, stage):
    return f"{stage} {measured.names[stage]}" if stage in measured.names else f"stage {stage}"


# --- What they show -------------------------------------------------------------------------------------------------


def ladder(measured, N=4096, passes="forward"):
    """TFLOP/s by stage at one N, or the longest that was measured, for each head dimension and mask; times as fast as the
    stage before."""
    lengths = {key[3] for key in measured.grid}
    if N not in lengths:
        N = max(lengths)
    panels = []
    for title, stages in parts(measured):
        if not stages:
            continue
        kinds = [kind for kind in KINDS if any(measured.tflops(stage, *kind, N) for stage in stages)]
        panels.append({
            "title": title, "kinds": [kind_text(*kind) for kind in kinds],
            "tflops": [[measured.tflops(stage, *kind, N) for stage in stages] for kind in kinds],
            "stages": [f"{stage}\n{measured.names[stage]}" for stage in stages],
            "gains": [range_text(measured.gains(stage, before, N)) for before, stage in zip([None, *stages], stages)]})
    return {"title": f"The {passes} ladder on one {measured.gpu}: N = {N}, batch * N = 16k, heads * d = 2048. "
                     "Under each stage: times as fast as the one before", "panels": panels}


def hopper(peers, names, N=4096):
    """TFLOP/s by stage that needs Hopper at one N, of a comparison, with the peers of these names as levels."""
    which = "Backward" if peers["context"].get("pass") == "backward" else "Forward"
    panels = []
    for d, mask in KINDS:
        speed = {one["name"]: one["tflops"] for one in peers["results"] if "tflops" in one
                 and (one["d"], one["causal"], one["N"]) == (d, mask == "causal", N)}
        stages = [(int(name.removeprefix("stage ")), tflops) for name, tflops in speed.items() if name.startswith("stage ")]
        stages = [(number, tflops, registry.stage_of(number).before) for number, tflops in stages
                  if registry.stage_of(number).gpu == "hopper"]
        if stages:
            panels.append({"title": kind_text(d, mask), "stages": stages,
                           "levels": [(PEERS[name], speed[name]) for name in names if name in speed]})
    return {"title": f"{which} on Hopper, stage by stage: bf16, N = {N}, batch * N = 16k, heads * d = 2048, one "
                     f"{peers['context']['gpu']}, one interleaved run, {pace(peers['context'])}", "panels": panels}


def range_text(gains):
    """1.15x, or 1.12x to 1.18x; "" for none."""
    return " to ".join(dict.fromkeys(f"{gain:.2f}x" for gain in (min(gains), max(gains)))) if gains else ""


def heads(measured, N):
    """The stages that were measured so over batch * heads at one length."""
    lines = [{"label": stage_text(measured, stage), "points": list(measured.over_heads(stage, N).items())}
             for stage in sorted({number for number, length, _ in measured.heads if length == N})]
    return {"title": f"A block for each head, or for each tile of Q: N = {N}, d = 64, one {measured.gpu}",
            "lines": lines, "multiprocessors": int(measured.context["multiprocessors"])}


def head_gains(measured, N):
    """Over batch * heads at one length, times as fast as another stage: FlashAttention-1 as the naive kernels, whose S
    and P it saves, and the stage with a block for each tile of Q as FlashAttention-1."""
    lines = []
    for stage, before in GAINS_OVER_HEADS:
        mine, other = (measured.over_heads(number, N) for number in (stage, before))
        points = [(BH, mine[BH] / other[BH]) for BH in mine if BH in other]
        if points:
            lines.append({"label": f"{stage_text(measured, stage)} over {before}", "points": points})
    return {"title": f"Times as fast as another stage: N = {N}, d = 64, one {measured.gpu}",
            "lines": lines, "multiprocessors": int(measured.context["multiprocessors"])}


def lengths_fp32(measured, of_pass=""):
    """TFLOP/s of the stages in fp32 over N."""
    _, stages = parts(measured)[0]

    def line(stage, d, mask):
        return {"label": stage_text(measured, stage), "peer": False, "points": sorted(
            (N, one.tflops) for (number, *kind, N), one in measured.grid.items()
            if number == stage and kind == [d, mask] and one.tflops)}

    return {"title": f"fp32{of_pass} on one {measured.gpu}: batch * N = 16k, heads * d = 2048",
            "ceiling": measured.peak(stages[-1]), "panels": panels_of(stages, line)}


def lengths_bf16(measured, peers):
    """TFLOP/s of the stages in bf16 and of their peers over N, all of one interleaved run."""
    names = names_of(peers)
    labels = {name: PEERS[name] if name in PEERS else stage_text(measured, int(name.removeprefix("stage ")))
              for name in names}

    def line(name, d, mask):
        return {"label": labels[name], "peer": name in PEERS, "points": [
            (one["N"], one["tflops"]) for one in peers["results"]
            if (one["name"], one["d"], one["causal"]) == (name, d, mask == "causal") and "tflops" in one]}

    of_pass = ", backward pass" if peers["context"].get("pass") == "backward" else ""
    context = peers["context"]
    return {"title": f"bf16{of_pass} on one {context['gpu']}, one interleaved run, {pace(context)}: batch * N = 16k, "
                     "heads * d = 2048",
            "ceiling": measured.peak(measured.stages[-1]), "panels": panels_of(names, line)}


def panels_of(names, line):
    """A row for each mask, in it a panel for each d that has lines."""
    panels = []
    for d, mask in KINDS:
        lines = [line(name, d, mask) for name in names]
        if any(one["points"] for one in lines):
            panels.append({"title": kind_text(d, mask), "lines": lines})
    return panels


def roofline(measured, counted):
    """Measured TFLOP/s over FLOPs per byte that the kernels issue, with the roof of each dtype that was measured."""
    panels = []
    for mask, moved in counted.items():
        flops = 4 * COUNTED_N * COUNTED_N * COUNTED_D / (2 if mask == "causal" else 1)  # of one head
        series = []
        for title, stages in parts(measured):
            points = [(stage, flops / sum(moved[stage]), measured.tflops(stage, COUNTED_D, mask, COUNTED_N))
                      for stage in stages if measured.tflops(stage, COUNTED_D, mask, COUNTED_N)]
            if not points:
                continue
            peak, copy = measured.peak(stages[-1]), measured.peaks.get("copy")
            series.append({"label": title, "points": points, "roof": [peak, copy] if peak and copy else None})
        panels.append({"title": "causal" if mask == "causal" else "no mask", "series": series})
    return {"title": f"Measured on one {measured.gpu}, bytes as the ledger counts them: N = {COUNTED_N}, "
                     f"d = {COUNTED_D}", "panels": panels}


def traffic(measured, counted, backward=False):
    """Bytes of global memory that a head's kernels request, by stage, beside the least that any kernel must move."""
    once = ["Q", "K", "V", "O", *(["dO", "dQ", "dK", "dV"] if backward else [])]
    kinds = [i for i in range(len(MOVED)) if any(of[i] for moved in counted.values() for of in moved.values())]

    def least(stage):
        size = 4 if measured.dtypes[stage] == "fp32" else 2
        return (len(once) * COUNTED_N * COUNTED_D * size + 4 * COUNTED_N) / MIB  # these, and L in fp32

    return {"title": f"Global memory requested{' in the backward pass' * backward}, by the ledger: one head, "
                     f"N = {COUNTED_N}, d = {COUNTED_D}",
            "stages": [f"{stage_text(measured, stage)}, {measured.dtypes[stage]}" for stage in measured.stages],
            "least": [least(stage) for stage in measured.stages], "least_of": f"{', '.join(once)} and L once each",
            "moved": [MOVED[i] for i in kinds],
            "panels": [{"title": "causal" if mask == "causal" else "no mask",
                        "mib": [[moved[stage][i] / MIB for i in kinds] for stage in measured.stages]}
                       for mask, moved in counted.items()]}


def training(runs):
    """The loss of a small GPT over the steps of its training, with each attention, and how far it was so far from that
    with math attention in fp64, beside what is allowed: of runs as bench.training.train_gpt writes them, one for
    each dtype."""
    c = runs[0]["context"]
    return {"title": f"The same training with three attentions, one {c['gpu'] or 'CPU'}: {c['layers']} layers, hidden "
                     f"{c['hidden']}, {c['heads']} heads, N = {c['context']}, batch {c['batch']}",
            "panels": [training_panel(data["context"]["dtype"], data["losses"]) for data in runs]}


def training_panel(dtype, losses):
    right, *others = losses
    apart = {name: so_far(away(losses[name], losses[right])) for name in others}
    return {"title": dtype, "losses": losses, "away": apart, "allowed": allowed(apart["math"], dtype)}


def training_rows(data):
    """Of what bench.training.train_throughput wrote the models with their lengths, the attentions, and the row of each
    of both; where it was cut short, one that says so."""
    found = {(row["model"], row["N"], row["name"]): row for row in data["results"]}
    kinds, names = list(dict.fromkeys(key[:2] for key in found)), list(dict.fromkeys(key[2] for key in found))
    return kinds, names, {(*kind, name): found.get((*kind, name), {"absent": "not measured"})
                          for kind in kinds for name in names}


def throughput(data):
    """TFLOP/s of training with each attention, for each model and length, as bench.training.train_throughput writes it."""
    kinds, names, rows = training_rows(data)
    c = data["context"]
    return {"title": f"Training of GPT-style models, {c['dtype']}, one {c['gpu']}, {c['tokens']} tokens a step, by the "
                     "papers' formula",
            "kinds": [f"{model}, N = {N}" for model, N in kinds], "names": names, "peak": c["gemm_tflops"],
            "tflops": [[rows[*kind, name].get("tflops") for kind in kinds] for name in names],
            "remarks": [[remark(c, rows[*kind, name]) for kind in kinds] for name in names]}


def remark(context, row):
    """The batch of a speed, where a smaller one had to do; in short why there is no speed; else nothing."""
    if "tflops" in row:
        return f"batch {row['batch']}" if row["batch"] * row["N"] < context["tokens"] else ""
    return "out of memory" if row["absent"].startswith("out of memory") else "absent"


# --- How it is drawn ------------------------------------------------------------------------------------------------


def wide(figure):
    """How many characters of a title have room in a line."""
    return int(12 * figure.get_figwidth())


def title(figure, shown):
    """The title of all panels."""
    figure.suptitle(textwrap.fill(shown["title"], wide(figure)), fontsize=11)


def draw_ladder(shown):
    rows = len(shown["panels"])
    figure, axes = plt.subplots(rows, 1, figsize=(11, 4.2 * rows), layout="constrained", squeeze=False)
    for panel, of in zip(axes[:, 0], shown["panels"]):
        width = 0.84 / max(len(of["kinds"]), 1)
        crowded = len(of["stages"]) > 6  # then words stand below each other, and numbers on end
        for turn, (kind, values) in enumerate(zip(of["kinds"], of["tflops"])):
            values = [value or 0 for value in values]
            places = [place + (turn - (len(of["kinds"]) - 1) / 2) * width for place in range(len(values))]
            panel.bar(places, values, width * 0.92, color=LINES[turn][0], label=kind)
            for place, value in zip(places, values):
                panel.annotate(f" {value:.{1 if value < 100 else 0}f}", (place, value), ha="center", va="bottom",
                               fontsize=8, color=INK, rotation=90 if crowded else 0)
        names, gains = of["stages"], of["gains"]
        if crowded:
            most = max(name.count("_") for name in names)
            names = [name.replace("_", "\n") + "\n" * (most - name.count("_")) for name in names]
            gains = [gain.replace(" to ", " to\n") for gain in gains]
            panel.margins(y=0.12)
        panel.set_xticks(range(len(names)), ["\n".join(text) for text in zip(names, gains)], fontsize=9)
        panel.set_ylabel("TFLOP/s")
        panel.set_title(of["title"], loc="left", fontsize=11)
        panel.legend(frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(of["kinds"]))
    title(figure, shown)
    return figure


def draw_hopper(shown):
    figure, axes = panel_grid(shown["panels"], sharex=True)
    for panel, of in zip(axes.flat, shown["panels"]):
        for (name, level), (colour, _, dashes) in zip(of["levels"], LINES[3:]):
            panel.axhline(level, color=colour, linestyle=dashes, label=name)
        speed = {number: tflops for number, tflops, _ in of["stages"]}
        for number, tflops, before in of["stages"]:  # a line from the stage that it goes on from
            if before in speed:
                panel.plot([before, number], [speed[before], tflops], color=BAR)
        panel.plot([*speed], [*speed.values()], color=BAR, marker="o", linestyle="", label="our stages")
        last, most, _ = next(one for one in reversed(of["stages"]) if not registry.is_deterministic(registry.stage_of(one[0])))
        panel.annotate(f"{most:.0f}", (last, most), textcoords="offset points", xytext=(0, 7), ha="center", fontsize=9)
        panel.set_title(of["title"], loc="left", fontsize=11)
        panel.set_xticks(sorted({number for one in shown["panels"] for number, _, _ in one["stages"]}))
        panel.grid(axis="y", color=FRAME, linewidth=0.6)
    axes.flat[0].set_ylim(bottom=0)
    for panel in axes[:, 0]:
        panel.set_ylabel("TFLOP/s")
    for panel in axes[-1]:
        panel.set_xlabel("stage")
    title(figure, shown)
    legend_below(figure, axes.flat[0], 4)
    return figure


def draw_heads(shown, what="TFLOP/s, fp32"):
    figure, axes = plt.subplots(figsize=(10, 4.6), layout="constrained")
    for line, (colour, marker, dashes) in zip(shown["lines"], LINES):
        axes.plot(*zip(*line["points"]), color=colour, marker=marker, linestyle=dashes, label=line["label"])
    most = max(BH for line in shown["lines"] for BH, _ in line["points"])
    sms = shown["multiprocessors"]
    axes.axvline(sms, color=MUTED, linestyle=":")
    axes.annotate(f"{sms} SMs", (sms, axes.get_ylim()[1]), textcoords="offset points", xytext=(4, -12), color=MUTED)
    axes.set_xscale("log", base=2)
    ticks = [BH for BH in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if BH <= most]
    axes.set_xticks(ticks, ticks)
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("batch * heads")
    axes.set_ylabel(what)
    axes.set_title(textwrap.fill(shown["title"], wide(axes.figure)), loc="left", fontsize=11)
    axes.legend(frameon=False, loc="upper left")
    return figure


def draw_head_gains(shown):
    """As draw_heads, of times as fast: from 1 on a stage gains, below it falls behind."""
    figure = draw_heads(shown, "times as fast")
    axes = figure.axes[0]
    axes.axhline(1, color=MUTED)
    axes.set_yscale("log", base=2)
    axes.set_ylim(bottom=min(0.5, *(gain for line in shown["lines"] for _, gain in line["points"])))
    axes.yaxis.set_major_formatter(lambda gain, _: f"{gain:g}x")
    axes.legend(frameon=False, loc="lower right")
    return figure


def draw_lengths(shown):
    """Stages are solid lines, peers dashed ones."""
    figure, axes = panel_grid(shown["panels"], sharex=True)
    for panel, of in zip(axes.flat, shown["panels"]):
        for turn, line in enumerate(of["lines"]):
            again, place = divmod(turn, len(STYLES))  # of more lines than styles a colour gets another marker
            colour, marker = STYLES[place][0], STYLES[(place + again) % len(STYLES)][1]
            # Some lines are nearly the same: the first is drawn larger, so that it shows behind the others.
            panel.plot([N for N, _ in line["points"]], [tflops for _, tflops in line["points"]], color=colour,
                       marker=marker, markersize=max(8.5 - 0.6 * turn, 3), clip_on=not line["points"],
                       linestyle="--" if line["peer"] else "-", label=line["label"])
        if shown["ceiling"]:
            panel.axhline(shown["ceiling"], color=MUTED, linestyle=":",
                          label="matrix product of cuBLAS, in ./ladder bench")
    frame_panels(figure, axes, shown, "N", "TFLOP/s", 4)
    return figure


def panel_grid(panels, sharex):
    """A figure with a row for each mask, where all d were measured with both; else with all panels in one row."""
    rows = 2 if [one["title"] + ", causal" for one in panels[:len(panels) // 2]] == [
        one["title"] for one in panels[len(panels) // 2:]] else 1
    return plt.subplots(rows, len(panels) // rows, figsize=(11, 0.6 + 3.45 * rows), layout="constrained", sharex=sharex,
                        sharey=True, squeeze=False)


def frame_panels(figure, axes, shown, xlabel, ylabel, columns):
    """All but the lines of rows of panels whose x axis is in powers of two: titles, axes, a legend of columns."""
    for panel, of in zip(axes.flat, shown["panels"]):
        panel.set_title(of["title"], loc="left", fontsize=11)
        panel.set_xscale("log", base=2)
        ticks = sorted({x for line in of["lines"] for x, _ in line["points"]})
        panel.set_xticks(ticks, [f"{x // 1024}k" if x >= 1024 else x for x in ticks])
        panel.minorticks_off()
        panel.grid(axis="y", color=FRAME, linewidth=0.6)
    axes.flat[0].set_ylim(0, 1.05 * axes.flat[0].get_ylim()[1])  # the uppermost markers whole
    for panel in axes[:, 0]:
        panel.set_ylabel(ylabel)
    for panel in axes[-1]:
        panel.set_xlabel(xlabel)
    title(figure, shown)
    legend_below(figure, axes.flat[0], columns)


def legend_below(figure, panel, columns):
    """One for all panels, which have the same lines as this one."""
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False,
                  fontsize=10)


def draw_roofline(shown):
    figure, axes = plt.subplots(1, 2, figsize=(11, 5.6), layout="constrained", sharex=True, sharey=True)
    for panel, of in zip(axes, shown["panels"]):
        for series, (colour, marker, _) in zip(of["series"], LINES):
            _, intensity, tflops = zip(*series["points"])
            panel.plot(intensity, tflops, color=colour, marker=marker, linewidth=1, label=series["label"])
            for text, x, y in grouped(series["points"]):
                panel.annotate(text, (x, y), textcoords="offset points", xytext=(7, -11), fontsize=10, color=INK)
            if series["roof"]:
                peak, copy = series["roof"]
                xs = [2, peak / copy, 512]
                panel.plot(xs, [min(peak, copy * x) for x in xs], color=colour, linestyle=":", linewidth=1.5,
                           label="roof: copy and matrix product, measured")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
        panel.margins(0.12)
        panel.set_title(of["title"], loc="left", fontsize=11)
        panel.set_xlabel("FLOPs per byte of global memory requested")
        panel.grid(color=FRAME, linewidth=0.6)
    axes[0].set_ylabel("TFLOP/s")
    legend_below(figure, axes[0], 2)
    title(figure, shown)
    return figure


def grouped(points):
    """Texts for points (stage, x, y): one for neighbours that would overlap, at the last of them."""
    groups = []
    for stage, x, y in points:
        if groups and abs(x / groups[-1][1] - 1) < 0.1 and abs(y / groups[-1][2] - 1) < 0.2:
            groups[-1] = (f"{groups[-1][0]}, {stage}", x, y)
        else:
            groups.append((str(stage), x, y))
    return groups


def draw_traffic(shown):
    places = range(len(shown["stages"]))
    figure, axes = plt.subplots(1, 2, figsize=(11, 1.3 + 0.39 * len(places)), layout="constrained", sharex=True,
                                sharey=True)
    for panel, of in zip(axes, shown["panels"]):
        ends = [0] * len(places)
        for label, counts, colour in zip(shown["moved"], zip(*of["mib"]), (BAR, COUNT, LINES[2][0])):
            panel.barh(places, counts, left=ends, color=colour, height=0.62, label=label)
            ends = [end + count for end, count in zip(ends, counts)]
        panel.plot(shown["least"], places, "|", color="#000000", markersize=16, markeredgewidth=1.5,
                   label=shown["least_of"])
        for place, end in zip(places, ends):
            panel.annotate(f"{end:.3g}", (end, place), textcoords="offset points", xytext=(4, 0),
                           va="center", fontsize=10)
        panel.set_title(of["title"], loc="left", fontsize=11)
        panel.set_xlabel("MiB")
        panel.tick_params(axis="y", length=0)
    axes[0].set_yticks(places, shown["stages"])
    axes[0].set_ylim(len(shown["stages"]) - 0.5, -0.5)
    axes[0].set_xlim(0, 1.12 * max(sum(of_stage) for of in shown["panels"] for of_stage in of["mib"]))
    legend_below(figure, axes[0], len(shown["moved"]) + 1)
    title(figure, shown)
    return figure


def draw_training(shown):
    """A column for each dtype: the losses, and under them how far they were so far from that with math attention in fp64."""
    columns = len(shown["panels"])
    figure, axes = plt.subplots(2, columns, figsize=(5.5 + 5 * (columns > 1), 6.5), layout="constrained", sharex="col",
                                squeeze=False)
    for (losses, apart), of in zip(axes.T, shown["panels"]):
        # The lines should coincide: each is thinner than the one before, so that all show.
        for (name, values), (colour, _, _), width in zip(of["losses"].items(), (LINES[7], LINES[1], LINES[0]), (7, 4, 1.5)):
            losses.plot(range(1, len(values) + 1), values, color=colour, linewidth=width, label=name)
        for (name, values), (colour, _, _) in zip(of["away"].items(), (LINES[1], LINES[0])):
            apart.plot(range(1, len(values) + 1), values, color=colour, linewidth=1, label=name)
        apart.plot(range(1, len(of["allowed"]) + 1), of["allowed"], color=MUTED, linestyle=":", label="allowed")
        losses.set_ylim(bottom=0)
        losses.set_title(of["title"], loc="left", fontsize=11)
        apart.set_yscale("log", nonpositive="mask")
        apart.set_xlabel("step")
        for panel in (losses, apart):
            panel.legend(frameon=False, fontsize=9)
    axes[0, 0].set_ylabel("loss, nats per character")
    axes[1, 0].set_ylabel("away from math in fp64, nats,\nroot mean square so far")
    title(figure, shown)
    return figure


def draw_throughput(shown):
    figure, axes = plt.subplots(figsize=(11, 4.8), layout="constrained")
    width = 0.84 / len(shown["names"])
    for turn, (name, values, remarks) in enumerate(zip(shown["names"], shown["tflops"], shown["remarks"])):
        places = [place + (turn - (len(shown["names"]) - 1) / 2) * width for place in range(len(values))]
        axes.bar(places, [value or 0 for value in values], width * 0.92, color=LINES[turn][0], label=PEERS.get(name, name))
        for place, value, why in zip(places, values, remarks):
            axes.annotate("\n".join(filter(None, (why, f"{value:.0f}" if value else ""))), (place, value or 0), ha="center",
                          va="bottom", fontsize=9, color=INK, rotation=0 if value else 90)
    axes.axhline(shown["peak"], color=MUTED, linestyle=":", label="matrix product, in the same run")
    axes.set_xticks(range(len(shown["kinds"])), shown["kinds"])
    axes.set_ylabel("TFLOP/s")
    axes.set_title(textwrap.fill(shown["title"], wide(axes.figure)), loc="left", fontsize=11)
    legend_below(figure, axes, 4)
    return figure


def atomics_over(data, by):
    """Time over the whole stage's of what bench.measure.atomics measured: by "N" over the papers' grid, by "heads" at its
    longest."""
    whole = atomics.variants_of(data)[0]
    longest = max(row["N"] for row in data["rows"])

    def x(row):
        return row["N"] if by == "N" else row["batch"] * row["heads"]

    panels = []
    for d, mask in KINDS:
        rows = [row for row in data["rows"] if (row["d"], row["causal"]) == (d, mask == "causal") and (
            row["batch"] * row["N"] == data["tokens"] and row["heads"] * d == data["width"] if by == "N"
            else row["N"] == longest)]
        names = list(dict.fromkeys(name for row in rows for name in row["ms"] if name != whole))
        if rows:
            panels.append({"title": kind_text(d, mask), "lines": [
                {"label": name, "points": sorted((x(row), row["ms"][name] / row["ms"][whole])
                                                 for row in rows if name in row["ms"])} for name in names]})
    what = f"N = {longest // 1024}k"
    if by == "N":
        what = f"batch * N = {data['tokens'] // 1024}k, heads * d = {data['width']}"
    return {"title": f"Time over {whole}'s, {data['dtype']}, one {data['gpu']}: {what}",
            "by": "N" if by == "N" else "batch * heads", "panels": panels, "whole": whole}


def draw_atomics(shown):
    figure, axes = panel_grid(shown["panels"], sharex="col")
    for panel, of in zip(axes.flat, shown["panels"]):
        for line, (colour, marker, dashes) in zip(of["lines"], LINES):
            panel.plot(*zip(*line["points"]), color=colour, marker=marker, linestyle=dashes, label=line["label"])
        panel.axhline(1, color=MUTED, linestyle=":", label=shown["whole"])
    frame_panels(figure, axes, shown, shown["by"], f"time over {shown['whole']}'s", 5)
    return figure


def atomics_pictures(data):
    """As pictures(), of what bench.measure.atomics wrote, which may be None."""
    if data:
        yield ROOT / "docs/h200_atomics.png", atomics_over(data, "N"), draw_atomics
        yield ROOT / "docs/h200_atomics_heads.png", atomics_over(data, "heads"), draw_atomics


# --- All of them ----------------------------------------------------------------------------------------------------


def backward_pictures(measured, peers, counted):
    """As pictures(), of the backward passes; `measured`, and with it `counted`, or `peers` may be None."""
    docs = ROOT / "docs"
    if measured:
        yield docs / "h200_backward.png", ladder(measured, passes="backward"), draw_ladder
        if parts(measured)[0][1]:
            yield docs / "h200_backward_fp32.png", lengths_fp32(measured, ", backward pass"), draw_lengths
        yield docs / "h200_backward_traffic.png", traffic(measured, counted, backward=True), draw_traffic
    if measured and timed(peers):
        yield docs / "h200_backward_bf16.png", lengths_bf16(measured, peers), draw_lengths


def hopper_pictures(forward, backward, beside):
    """The same of the stages that need Hopper, with the peers of these names; either comparison may be None."""
    for peers, name in ((forward, "hopper.png"), (backward, "hopper_backward.png")):
        if timed(peers):
            yield ROOT / "docs" / name, hopper(peers, beside), draw_hopper


def training_pictures(losses, speeds):
    """As pictures(), of what bench.training.train_gpt and bench.training.train_throughput wrote: runs of the
    one, maybe none, and of the other one or None."""
    docs = ROOT / "docs"
    if losses:
        yield docs / "h200_training.png", training(losses), draw_training
    if speeds:
        yield docs / "h200_training_speed.png", throughput(speeds), draw_throughput


def pictures(measured, peers, counted):
    """The file of each, what it shows, and how that is drawn. `counted`: by mask and stage, the bytes of one head, as
    many numbers as MOVED has names. `peers` may be None."""
    docs = ROOT / "docs"
    yield docs / "h200.png", ladder(measured), draw_ladder
    if parts(measured)[0][1]:
        yield docs / "h200_fp32.png", lengths_fp32(measured), draw_lengths
    if timed(peers):
        yield docs / "h200_bf16.png", lengths_bf16(measured, peers), draw_lengths
    yield docs / "h200_roofline.png", roofline(measured, counted), draw_roofline
    yield docs / "h200_traffic.png", traffic(measured, counted), draw_traffic
    folders = registry.folders()
    if any(length == 1024 for _, length, _ in measured.heads):
        yield folders[13] / "heads.png", heads(measured, 1024), draw_heads
    gains = head_gains(measured, 512)
    if gains["lines"]:
        yield folders[11] / "head_gains.png", gains, draw_head_gains


def mark(shown):
    """What a picture of this data carries."""
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()


def is_stale(path, shown):
    return not path.exists() or mark(shown).encode() not in path.read_bytes()


def save(figure, path, shown):
    figure.savefig(path, dpi=120, metadata={"Description": mark(shown), "Software": None})
    plt.close(figure)
