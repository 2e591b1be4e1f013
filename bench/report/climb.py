"""Draws the report of a climb: one HTML file that holds its table and its charts, from climb.json.

Usage: python3 -m bench.report.climb out/climb.json [--out out/report.html] [--picture out/climb.png] [--markdown]
"""

import argparse
import base64
import hashlib
import html
import io
import json
import sys
from pathlib import Path

from bench.report.style import BAR, COUNT, FRAME, INK, LINES, MUTED, WARNING, matplotlib, plt
from common.course.program import run, write_file
from common.course.registry import digits


def label(stage):
    return f"{digits(stage['number'])} {stage['name']}"


def size_text(count):
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} B"


def count_text(count):
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if count >= 0.9995 * unit:
            value = count / unit
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {name}"
    return f"{count:,}"


def ms_text(ms):
    return f"{ms:.2f}" if ms >= 1 else f"{ms:.3f}"


def times_text(ratio):
    return f"{ratio:.2f}x" if ratio < 100 else f"{ratio:,.0f}x"


# What stages of kernels are compared by: key in a stage's "ledger", title, how it is written, whether it is drawn.
COUNTS = [
    ("hbm_bytes_read", "global read", size_text, False),
    ("hbm_bytes_written", "global written", size_text, False),
    ("hbm_bytes", "global memory requested", size_text, False),
    ("shared_bytes", "shared bytes", size_text, True),
    ("barriers", "barriers", count_text, True),
    ("operations", "non-matmul operations", count_text, True),
    ("matmul_flops", "matmul FLOPs", count_text, True),
    ("tiles", "tiles", count_text, True),
    ("masked_tiles", "masked tiles", count_text, True),
    ("blocks", "blocks", count_text, False),
    ("extra_bytes", "extra memory", size_text, False),
]
COUNTED_HOW = ("bytes requested, before caches; non-matmul operations: additions, multiplications, divisions, "
               "max, exp, log; all as the source has them")


MASKS = {"full": ("Without a mask", BAR), "causal": ("With the causal mask", COUNT)}  # title, colour
MARKERS = {"fp32": "o", "fp16": "^", "bf16": "s"}


def of_kernels(climb):
    return [s for s in climb["stages"] if s["backend"] != "cpu"]


def median(result):
    return result["time_ms"]["median"] if "time_ms" in result else None


def count_of(result, key):
    ledger = result["ledger"]
    return ledger["hbm_bytes_read"] + ledger["hbm_bytes_written"] if key == "hbm_bytes" else ledger[key]


def counted_where(climb):
    """One sentence that says which stages are emulated, or that the counts are."""
    emulated = ", ".join(digits(s['number']) for s in of_kernels(climb) if s["backend"] == "emulator")
    return (f"Emulated on the CPU: {emulated}. They show counts, exact and the same on every machine, and no times:"
            if emulated else "What the kernels move and compute, counted exactly by the emulator from the same source:")


def bars(axes, climb, key, title, as_text):
    """Horizontal bars of a count, two for each stage of kernels where there are two masks, each with its value as text.

    The axis is logarithmic where the counts span more than a decade, else it begins at 0."""
    stages, masks = of_kernels(climb), climb["masks"]
    rows = [(place + (number - (len(masks) - 1) / 2) * 0.4, stage["masks"][mask], MASKS[mask][1])
            for place, stage in enumerate(stages) for number, mask in enumerate(masks)]
    values = [count_of(result, key) if "ledger" in result else 0 for _, result, _ in rows]
    real = [value for value in values if value] or [1]
    log = max(real) > 10 * min(real)
    low = min(real) / 2 if log else 0
    if log:
        axes.set_xscale("log")
    axes.xaxis.set_major_locator(matplotlib.ticker.NullLocator())  # each bar has its value beside it
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.set_xlim(low, max(real) * (max(real) / low) ** 0.45 if log else max(real) * 1.45)
    for (place, result, colour), value in zip(rows, values):
        axes.barh(place, value or low, color=colour, height=0.36)
        text = as_text(value) if value else "0" if "ledger" in result else result["status"]
        axes.annotate(text, (value or low, place), textcoords="offset points", xytext=(4, 0), va="center", fontsize=9,
                      color=INK if "ledger" in result else WARNING)
    name_rows(axes, stages)
    axes.set_title(title[0].upper() + title[1:] + " (log scale)" * log, loc="left", fontsize=12, fontweight="bold")


def name_rows(axes, stages):
    """A row for each stage, the first on top."""
    axes.set_yticks(range(len(stages)), [label(s) for s in stages])
    axes.set_ylim(len(stages) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def is_backward(climb):
    return climb.get("pass") == "backward"


def gain_text(before, value, times):
    """What a rung gains over the one before it: times as fast, or divided by how much; "" where that is not known."""
    if not before or not value:
        return ""
    if times:
        return times_text(before / value)
    ratio = max(before / value, value / before)
    text = f"{ratio:.2f}" if ratio < 99.995 else f"{ratio:,.0f}"
    return "" if text == "1.00" else f"{'÷' if before > value else '×'} {text}"


def rungs(axes, climb, value_of, as_text, title, note, times=False):
    """One value of every stage as a dot in its row, with what it gains over the stage before it: a path for each mask,
    from the first rung to the last. `value_of` a result is None where there is none."""
    stages, masks = climb["stages"], climb["masks"]
    found = {mask: {s["number"]: value_of(s["masks"][mask]) for s in stages} for mask in masks}
    real = [value for values in found.values() for value in values.values() if value] or [1]
    axes.set_xscale("log")
    low, high = min(real) / 1.5, max(real) * 1.5
    axes.set_xlim(low, high * (high / low) ** 0.75)  # with room for the texts
    axes.xaxis.set_major_locator(matplotlib.ticker.NullLocator())  # each dot has its value beside it
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    for number, mask in enumerate(masks):
        shift = (number - (len(masks) - 1) / 2) * 0.42
        colour, path = MASKS[mask][1], []
        for place, stage in enumerate(stages):
            value = found[mask][stage["number"]]
            result = stage["masks"][mask]
            if value is None:
                if result["status"] != "passed":
                    axes.annotate(result["status"], (low, place + shift), textcoords="offset points", xytext=(4, 0),
                                  va="center", fontsize=9, color=WARNING)
                continue
            at = value or low
            path.append((at, place + shift))
            axes.plot(at, place + shift, marker=MARKERS[stage["dtype"]], markersize=7, color=colour, linestyle="none", zorder=3,
                      clip_on=False)
            before = found[mask].get(stage["before"]) if stage["before"] != stage["number"] else None
            text = (as_text(value) if value else "0", gain_text(before, value, times))
            axes.annotate("   ".join(filter(None, text)), (at, place + shift), textcoords="offset points", xytext=(8, 0),
                          va="center", fontsize=9.5, zorder=4,
                          bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6})
        axes.plot(*zip(*path), color=colour, linewidth=1, alpha=0.45, zorder=2)
    axes.grid(axis="y", color=FRAME, linewidth=0.5)
    axes.set_axisbelow(True)
    name_rows(axes, stages)
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    axes.set_xlabel(f"{note}, log scale")


def mark_rows(axes, stages, missing, text):
    """Says why rows that follow each other have no value."""
    places = [place for place, stage in enumerate(stages) if missing(stage)]
    runs = [place for place in places if place - 1 not in places]
    for first in runs:
        last = first
        while last + 1 in places:
            last += 1
        axes.axhspan(first - 0.45, last + 0.45, color=FRAME, alpha=0.45, linewidth=0)
        axes.text(0.5, (first + last) / 2, text if last > first + 1 else " ".join(text.split("\n")[:1]), color=MUTED,
                  transform=axes.get_yaxis_transform(), ha="center", va="center", fontsize=10)


def ladder(climb):
    """The one chart of the whole ladder: time, memory traffic and extra memory of the same problem, rung by rung."""
    stages = climb["stages"]
    timed = any("time_ms" in r for s in stages for r in s["masks"].values())
    parts = (["time"] if timed else []) + (["traffic"] if of_kernels(climb) else []) + ["memory"]
    figure, panels = plt.subplots(1, len(parts), sharey=True, squeeze=False, layout="constrained",
                                  figsize=(4.6 * len(parts) + 1.4, 1.7 + 0.46 * len(stages)))
    for part, axes in zip(parts, panels[0]):
        if part == "time":
            rungs(axes, climb, median, lambda ms: f"{ms_text(ms)} ms", "Time", "median; x: times as fast as the stage before",
                  times=True)
            mark_rows(axes, stages, lambda s: s["backend"] == "emulator",
                      "no time: emulated on the CPU\n\nHow long that takes says nothing of a GPU.\n"
                      "What is counted is on the right.")
        elif part == "traffic":
            rungs(axes, climb, lambda r: count_of(r, "hbm_bytes") if "ledger" in r else None, size_text,
                  "Global memory requested", "bytes; ÷ and ×: against the stage before")
            mark_rows(axes, stages, lambda s: s["backend"] == "cpu", "not counted: C++ for the CPU")
        else:
            of = "Q, K, V, O, L, dO and the gradients" if is_backward(climb) else "Q, K, V, O and L"
            rungs(axes, climb, lambda r: r["extra_bytes"] if r["status"] == "passed" else None, size_text, "Extra memory",
                  f"bytes beyond {of}; 0 at the edge")
    colours = [matplotlib.lines.Line2D([], [], color=MASKS[mask][1], linewidth=3, label=MASKS[mask][0]) for mask in climb["masks"]]
    shapes = [matplotlib.lines.Line2D([], [], color=MUTED, marker=MARKERS[dtype], linestyle="none", label=dtype)
              for dtype in sorted({s["dtype"] for s in stages}, reverse=True)]
    figure.legend(handles=colours + shapes, loc="outside upper left", ncols=len(colours + shapes), frameon=False)
    return figure


def counts(climb):
    """What stages of kernels move and compute, by stage: six charts."""
    drawn = [c for c in COUNTS if c[3]]
    figure, panels = plt.subplots(2, 3, sharey=True, layout="constrained",
                                  figsize=(15, 2.4 + 0.8 * len(of_kernels(climb))))
    for axes, (key, title, as_text, _) in zip(panels.flat, drawn):
        bars(axes, climb, key, title, as_text)
    figure.legend(handles=[matplotlib.patches.Patch(color=MASKS[mask][1], label=MASKS[mask][0]) for mask in climb["masks"]],
                  loc="outside upper left", ncols=2, frameon=False)
    return figure


def memory_over_length(memory):
    """Peak extra memory over N, one line a stage, a cross where it no longer fits."""
    figure, axes = plt.subplots(figsize=(12, 5), layout="constrained")
    none = []
    for number, stage in enumerate(memory["stages"]):
        if not any(p["bytes"] for p in stage["points"]):
            none.append(digits(stage["number"]))
            continue
        colour, marker, dashes = LINES[number % len(LINES)]
        fits = [p for p in stage["points"] if not p.get("out_of_memory")]
        # Some stages need exactly the same: the first is drawn larger, so that it shows behind the others.
        axes.plot([p["N"] for p in fits], [p["bytes"] for p in fits], marker=marker, linestyle=dashes, color=colour,
                  label=label(stage), markersize=max(5, 13 - 2 * number), linewidth=max(1.5, 4 - 0.5 * number))
        for p in stage["points"]:
            if p.get("out_of_memory"):
                axes.plot(p["N"], p["bytes"], marker="x", markersize=10, markeredgewidth=2.5, color=colour)
                axes.annotate(f"out of memory:\nneeds {size_text(p['bytes'])}", (p["N"], p["bytes"]),
                              textcoords="offset points", xytext=(-10, 0), ha="right", va="center", fontsize=9,
                              color=colour)
    if none:  # a logarithmic axis has no 0
        axes.plot([], [], " ", label=f"{', '.join(none)}: 0 B at every length")
    lengths = sorted({p["N"] for s in memory["stages"] for p in s["points"]})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(lengths, [f"{n // 1024}k" for n in lengths])
    low, high = axes.get_ylim()
    ticks = [2**e for e in range(0, 60, 5) if low <= 2**e <= high]
    axes.set_yticks(ticks, [size_text(t) for t in ticks])
    axes.minorticks_off()
    last = [s["points"][-1] for s in memory["stages"]]
    shorter = any(p["N"] < lengths[-1] and not p.get("out_of_memory") for p in last)
    axes.set_xlabel(f"sequence length N (one head, d = {memory['d']})" + "; emulated stages end sooner" * shorter)
    axes.set_title("Peak extra memory over sequence length", loc="left", fontsize=12, fontweight="bold")
    axes.grid(axis="y", color=FRAME, linewidth=0.6)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def image(figure, alt):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160)
    plt.close(figure)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<div class="scroll"><img alt="{html.escape(alt)}" src="data:image/png;base64,{data}"></div>'


def figures(climb, mask):
    """What the tables show of each stage that passed, by its number: memory, time, speedups, as text."""
    results = {s["number"]: s["masks"][mask] for s in climb["stages"]}
    medians = {number: median(result) for number, result in results.items() if "time_ms" in result}
    first = next(iter(medians.values()), None)
    found = {}
    for s in climb["stages"]:
        number, result = s["number"], results[s["number"]]
        if number in medians:
            time, before = medians[number], medians.get(s["before"])
            spread = (result["time_ms"]["upper_quartile"] - result["time_ms"]["lower_quartile"]) / 2
            found[number] = (size_text(result["extra_bytes"]), f"{ms_text(time)} ± {spread:.{2 if time >= 1 else 3}f}",
                             times_text(before / time) if before and s["before"] != number else "", times_text(first / time))
        elif result["status"] == "passed":
            found[number] = (size_text(result["extra_bytes"]), "emulated", "", "")
    return found


def count_rows(climb, mask):
    """The table of counts, as text: its columns, then a row for each stage that has them."""
    columns = [c for c in COUNTS if c[0] != "hbm_bytes"]
    return ["stage"] + [c[1] for c in columns], [
        [label(s)] + [as_text(count_of(s["masks"][mask], key)) for key, _, as_text, _ in columns]
        for s in of_kernels(climb) if "ledger" in s["masks"][mask]]


def table(climb, mask):
    """The climb's table under one mask in HTML, with its failures spelled out."""
    timed = figures(climb, mask)
    rows = []
    for s in climb["stages"]:
        result = s["masks"][mask]
        error, allowed = result["oracle"]["error"], result["oracle"]["allowed"]
        cells = [f"<th>{label(s)}</th>", f'<td class="idea">{html.escape(s["idea"])}</td>', f"<td>{s['dtype']}</td>"]
        if result["status"] == "passed":
            cells += [f"<td>{text}</td>" for text in (f"{error:.1e}", f"{allowed:.1e}", *timed[s["number"]])]
        else:
            cells += [f'<td colspan="6" class="bad">{html.escape(result["status"])}: {html.escape(result["why"])}</td>']
        rows.append("<tr>" + "".join(cells) + "</tr>")
    return (f"<h2>{MASKS[mask][0]}</h2>"
            "<div class='scroll'><table><thead><tr><th>stage</th><th class='idea'>idea</th><th>dtype</th><th>error</th>"
            "<th>allowed</th><th>extra memory</th><th>time (ms)</th><th>vs before</th><th>vs first</th></tr></thead>"
            "<tbody>" + "".join(rows) + "</tbody></table></div>")


def count_table(climb, mask):
    """The table of counts in HTML; "" where there is none."""
    columns, rows = count_rows(climb, mask)
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
    body = "".join("<tr>" + f"<th>{row[0]}</th>" + "".join(f"<td>{c}</td>" for c in row[1:]) + "</tr>" for row in rows)
    return (f"<h3>{MASKS[mask][0]}</h3><div class='scroll'><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table></div>")


def machine_text(machine):
    return machine["cpu"] + (f", {machine['gpu']}" if "gpu" in machine else "")


def markdown(climb):
    """The climb's tables in Markdown, with where it was measured, for a page of the guide."""
    machine, source = climb["machine"], climb["input"]
    lines = []
    for mask in climb["masks"]:
        timed = figures(climb, mask)
        lines += [f"{MASKS[mask][0]}:", "", "| stage | dtype | error / allowed | extra memory | time (ms) | vs before | vs first |",
                  "|---|---|---|---|---|---|---|"]
        for s in climb["stages"]:
            if s["number"] in timed:
                oracle = s["masks"][mask]["oracle"]
                lines.append(f"| {label(s)} | {s['dtype']} | {oracle['error']:.1e} / {oracle['allowed']:.1e} | "
                             + " | ".join(timed[s["number"]]) + " |")
        lines.append("")
    lines += [text for why in notes(climb) for text in (why, "")]
    if of_kernels(climb):
        lines += [counted_where(climb), ""]
        for mask in climb["masks"]:
            columns, rows = count_rows(climb, mask)
            lines += [f"{MASKS[mask][0]}:", "", "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|",
                      *("| " + " | ".join(row) + " |" for row in rows), ""]
        lines += [f"({COUNTED_HOW})", ""]
    of_pass = ", backward pass" if is_backward(climb) else ""
    return "\n".join(lines) + (f"\n{source['source']}, {source['problem']}{of_pass}; {machine_text(machine)}, "
                               f"{machine['threads']} threads, {machine['compiler']}, commit {machine['commit']}.\n")


STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:1180px;margin:2rem auto;padding:0 1rem;color:#1f2328;background:#fff}
h1{margin-bottom:.2rem} h2{margin:2rem 0 .5rem} h3{margin:1.5rem 0 .5rem} .facts{color:#59636e;margin-top:0}
.scroll{overflow-x:auto} table{border-collapse:collapse;font-size:.92rem;white-space:nowrap}
th,td{padding:.35rem .7rem;border-bottom:1px solid #d1d9e0;text-align:right;font-variant-numeric:tabular-nums}
thead th{white-space:normal;vertical-align:bottom} th:first-child{white-space:nowrap}
th:first-child,td.idea,th.idea{text-align:left} td.idea{white-space:normal;min-width:16rem}
td.bad{color:#b3261e;text-align:left;white-space:normal} tbody th{font-weight:600}
img{max-width:100%;min-width:50rem;height:auto;margin-top:1.5rem;background:#fff;border-radius:6px}
@media (prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}.facts{color:#9198a1}
th,td{border-color:#3d444d}td.bad{color:#ff8f85}}
"""


def notes(climb):
    """What the terminal has said of the climb too, in the same words: what was rounded, left out, judged by a sample."""
    sample = [climb["sample"]] if "sample" in climb else []
    return [one["why"] for one in [*climb.get("rounded", []), *climb.get("left_out", []), *sample]]


def page(climb):
    """The report as one HTML document that needs no other file."""
    machine, source = climb["machine"], climb["input"]
    title = "A climb of the backward pass" if is_backward(climb) else "A climb"
    facts = (f"{source['source']}: {source['problem']}. {machine_text(machine)}, {machine['threads']} threads, "
             f"{machine['compiler']}, commit {machine['commit']}, {climb['date']}.")
    parts = [f"<p>{html.escape(why)}</p>" for why in notes(climb)]
    if climb["stages"]:
        parts += [image(ladder(climb), "Time, global memory requested and extra memory of each stage, and what each gains"),
                  *(table(climb, mask) for mask in climb["masks"]),
                  "<p>error and allowed: max|O &minus; oracle| in fp64 and its bound; times: median ± half the interquartile "
                  "range; extra memory: counted by the allocator that is a stage's only source of it.</p>"]
    if of_kernels(climb):
        parts += ["<h2>Counts</h2>", f"<p>{counted_where(climb)} {COUNTED_HOW}.</p>",
                  image(counts(climb), "Counts of the stages of kernels"),
                  *(count_table(climb, mask) for mask in climb["masks"])]
    if "memory" in climb:
        parts.append(image(memory_over_length(climb["memory"]), "Peak extra memory over sequence length by stage"))
    return (f"<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
            f"<title>FlashLadder: {title[0].lower()}{title[1:]}</title><style>{STYLE}</style><h1>{title}</h1>"
            f"<p class='facts'>{html.escape(facts)}</p>{''.join(parts)}</html>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("climb", type=Path, help="climb.json, as ./ladder climb writes it")
    parser.add_argument("--out", type=Path, help="the report to write (HTML)")
    parser.add_argument("--picture", type=Path, help="only the chart of the ladder (PNG)")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    options = parser.parse_args()
    try:
        text = options.climb.read_bytes()
        climb = json.loads(text)
        if climb["format"] != 2:
            raise ValueError(f"format {climb['format']}")
        if options.out:
            write_file(options.out, page(climb))
        if options.picture:
            buffer = io.BytesIO()
            # The picture says which results it was drawn from, so that a test can tell when it is stale.
            ladder(climb).savefig(buffer, format="png", dpi=130,
                                  metadata={"Results": hashlib.sha256(text).hexdigest()})
            write_file(options.picture, buffer.getvalue())
        text = markdown(climb) if options.markdown else ""
    except OSError as error:
        sys.exit(f"climb: {error}")
    except (ValueError, KeyError, TypeError) as error:
        sys.exit(f"climb: {options.climb} is not a climb.json of this version ({error!r}): run ./ladder climb again")
    if text:  # writing nothing can fail too
        sys.stdout.write(text)


if __name__ == "__main__":
    run(main)
