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

from bench.report.style import BAR, COUNT, FRAME, INK, LINES, WARNING, matplotlib, plt
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
    ("hbm_bytes", "global memory requested", size_text, True),
    ("shared_bytes", "shared bytes", size_text, True),
    ("barriers", "barriers", count_text, True),
    ("operations", "non-matmul operations", count_text, True),
    ("matmul_flops", "matmul FLOPs", count_text, False),
    ("tiles", "tiles", count_text, True),
    ("masked_tiles", "masked tiles", count_text, False),
    ("blocks", "blocks", count_text, False),
    ("extra_bytes", "extra memory", size_text, True),
]
COUNTED_HOW = ("bytes requested, before caches; non-matmul operations: additions, multiplications, divisions, "
               "max, exp, log; all as the source has them")


def of_kernels(climb):
    return [s for s in climb["stages"] if s.get("backend", "cpu") != "cpu"]


def count_of(stage, key):
    ledger = stage["ledger"]
    return ledger["hbm_bytes_read"] + ledger["hbm_bytes_written"] if key == "hbm_bytes" else ledger[key]


def counted_where(climb):
    """One sentence that says which stages are emulated, or that the counts are."""
    emulated = ", ".join(digits(s['number']) for s in of_kernels(climb) if s["backend"] == "emulator")
    return (f"Emulated on the CPU: {emulated}. They show counts, exact and the same on every machine, and no times:"
            if emulated else "What the kernels move and compute, counted exactly by the emulator from the same source:")


def bars(axes, stages, values, texts, title, note, colours, width):
    """Horizontal bars in stage order, first stage on top, each with its value as text, in axes `width` inches wide.

    The axis is logarithmic where the values span more than a decade, else it begins at 0. None: no bar."""
    real = [v for v in values if v] or [1]
    log = max(real) > 10 * min(real)
    room = min(0.7, (0.09 * max(len(t) for t in texts) + 0.1) / width)  # of the axis, for the texts
    low = min(real) / 2 if log else 0
    if log:
        axes.set_xscale("log")
    axes.xaxis.set_major_locator(matplotlib.ticker.NullLocator())  # each bar has its value beside it
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.set_xlim(low, max(real) * (max(real) / low) ** (room / (1 - room)) if log else max(real) / (1 - room))
    axes.barh(range(len(stages)), [v or low for v in values], color=colours, height=0.6)
    for place, (value, text) in enumerate(zip(values, texts)):
        axes.annotate(text, (value or low, place), textcoords="offset points", xytext=(4, 0), va="center", fontsize=10)
    axes.set_yticks(range(len(stages)), [label(s) for s in stages])
    axes.set_ylim(len(stages) - 0.5, -0.5)
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    axes.set_xlabel(", ".join([note] * bool(note) + ["log scale"] * log))
    axes.tick_params(axis="y", length=0)


def timed_and_counted(climb):
    """The stages for the chart of times, and those for the charts of counts."""
    return [s for s in climb["stages"] if s.get("backend", "cpu") != "emulator"], of_kernels(climb)


def is_backward(climb):
    return climb.get("pass") == "backward"


def speedup_and_memory(figure, stages, beyond):
    """Speedup over the first stage that was timed, and extra memory, by stage."""
    left, right = figure.subplots(1, 2, sharey=True)
    first = next((s["time_ms"]["median"] for s in stages if "time_ms" in s), None)
    speedups = [first / s["time_ms"]["median"] if "time_ms" in s else None for s in stages]
    texts = [f"{times_text(v)}   {ms_text(s['time_ms']['median'])} ms" if v else s["status"]
             for s, v in zip(stages, speedups)]
    bars(left, stages, speedups, texts, "Speedup over the first stage", "times as fast",
         [BAR if v else WARNING for v in speedups], 4.5)
    memory = [s["extra_bytes"] or None for s in stages]
    texts = [("out of memory: needs " if s["status"] == "out of memory" else "") +
             (size_text(m) if m else "0" if s["status"] == "passed" else s["status"]) for s, m in zip(stages, memory)]
    bars(right, stages, memory, texts, "Extra memory", f"bytes beyond {beyond}",
         [WARNING if s["status"] != "passed" else BAR for s in stages], 4.5)


def counts(figure, stages, _):
    """What stages of kernels move and compute, by stage: six charts."""
    figure.suptitle("Stages of kernels: counts, exact and the same on every machine; no times", x=0.01, ha="left",
                    fontsize=13, fontweight="bold")
    drawn = [c for c in COUNTS if c[3]]
    for axes, (key, title, as_text, _) in zip(figure.subplots(2, 3, sharey=True).flat, drawn):
        values = [count_of(s, key) or None if "ledger" in s else None for s in stages]
        texts = [as_text(v) if v else "0" if "ledger" in s else s["status"] for s, v in zip(stages, values)]
        bars(axes, stages, values, texts, title[0].upper() + title[1:], "",
             [COUNT if "ledger" in s else WARNING for s in stages], 2.9)


def picture(climb):
    """Times and memory of what was timed above, counts of the stages of kernels below."""
    timed, counted = timed_and_counted(climb)
    parts = []
    if timed:
        parts.append((1.5 + 0.45 * len(timed), speedup_and_memory, timed))
    if counted:
        parts.append((2.6 + 0.7 * len(counted), counts, counted))
    figure = plt.figure(figsize=(12, sum(height for height, _, _ in parts)), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.1, hspace=0.08)
    rows = figure.subfigures(len(parts), 1, height_ratios=[height for height, _, _ in parts], squeeze=False,
                             hspace=0.04)
    for (_, draw, stages), (row,) in zip(parts, rows):
        draw(row, stages, "Q, K, V, O, L, dO and the gradients" if is_backward(climb) else "Q, K, V, O and L")
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
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'


def figures(climb):
    """What the tables show of each stage that passed, by its number: memory, time, speedups, as text."""
    timed = [s for s in climb["stages"] if "time_ms" in s]
    medians = {s["number"]: s["time_ms"]["median"] for s in timed}
    result = {}
    for s in climb["stages"]:
        if s["status"] == "passed" and "time_ms" not in s:
            result[s["number"]] = (size_text(s["extra_bytes"]), "emulated", "", "")
        elif "time_ms" in s:
            median, before = s["time_ms"]["median"], medians.get(s["before"])
            spread = (s["time_ms"]["upper_quartile"] - s["time_ms"]["lower_quartile"]) / 2
            result[s["number"]] = (size_text(s["extra_bytes"]), f"{ms_text(median)} ± {spread:.{2 if median >= 1 else 3}f}",
                                   times_text(before / median) if before and s["before"] != s["number"] else "",
                                   times_text(timed[0]["time_ms"]["median"] / median))
    return result


def count_rows(climb):
    """The table of counts, as text: its columns, then a row for each stage that has them."""
    columns = [c for c in COUNTS if c[0] != "hbm_bytes"]
    return ["stage"] + [c[1] for c in columns], [
        [label(s)] + [as_text(count_of(s, key)) for key, _, as_text, _ in columns]
        for s in of_kernels(climb) if "ledger" in s]


def table(climb):
    """The climb's table in HTML, with its failures spelled out."""
    timed = figures(climb)
    rows = []
    for s in climb["stages"]:
        error, allowed = s["oracle"]["error"], s["oracle"]["allowed"]
        cells = [f"<th>{label(s)}</th>", f'<td class="idea">{html.escape(s["idea"])}</td>']
        if s["status"] == "passed":
            cells += [f"<td>{text}</td>" for text in (f"{error:.1e}", f"{allowed:.1e}", *timed[s["number"]])]
        else:
            cells += [f'<td colspan="6" class="bad">{html.escape(s["status"])}: {html.escape(s["why"])}</td>']
        rows.append("<tr>" + "".join(cells) + "</tr>")
    return ("<div class='scroll'><table><thead><tr><th>stage</th><th class='idea'>idea</th><th>error</th>"
            "<th>allowed</th><th>extra memory</th><th>time (ms)</th><th>vs before</th><th>vs first</th></tr></thead>"
            "<tbody>" + "".join(rows) + "</tbody></table></div>")


def count_table(climb):
    """The table of counts in HTML; "" where there is none."""
    columns, rows = count_rows(climb)
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
    body = "".join("<tr>" + f"<th>{row[0]}</th>" + "".join(f"<td>{c}</td>" for c in row[1:]) + "</tr>" for row in rows)
    return (f"<p>{counted_where(climb)}</p><div class='scroll'><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table></div><p>{COUNTED_HOW}.</p>")


def machine_text(machine):
    return machine["cpu"] + (f", {machine['gpu']}" if "gpu" in machine else "")


def markdown(climb):
    """The climb's table in Markdown, with where it was measured, for a README."""
    machine, source = climb["machine"], climb["input"]
    timed = figures(climb)
    lines = ["| stage | error / allowed | extra memory | time (ms) | vs before | vs first |",
             "|---|---|---|---|---|---|"]
    for s in climb["stages"]:
        if s["number"] in timed:
            lines.append(f"| {label(s)} | {s['oracle']['error']:.1e} / {s['oracle']['allowed']:.1e} | "
                         + " | ".join(timed[s["number"]]) + " |")
    columns, rows = count_rows(climb)
    if rows:
        lines += ["", counted_where(climb), "", "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|",
                  *("| " + " | ".join(row) + " |" for row in rows), "", f"({COUNTED_HOW})"]
    of_pass = ", backward pass" if is_backward(climb) else ""
    return "\n".join(lines) + (f"\n\n{source['source']}, {source['problem']}{of_pass}; {machine_text(machine)}, "
                               f"{machine['threads']} threads, {machine['compiler']}, commit {machine['commit']}.\n")


STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:1180px;margin:2rem auto;padding:0 1rem;color:#1f2328;background:#fff}
h1{margin-bottom:.2rem} .facts{color:#59636e;margin-top:0}
.scroll{overflow-x:auto} table{border-collapse:collapse;font-size:.92rem;white-space:nowrap}
th,td{padding:.35rem .7rem;border-bottom:1px solid #d1d9e0;text-align:right;font-variant-numeric:tabular-nums}
thead th{white-space:normal;vertical-align:bottom} th:first-child{white-space:nowrap}
th:first-child,td.idea,th.idea{text-align:left} td.idea{white-space:normal;min-width:16rem}
td.bad{color:#b3261e;text-align:left;white-space:normal} tbody th{font-weight:600}
img{max-width:100%;height:auto;margin-top:1.5rem;background:#fff;border-radius:6px}
@media (prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}.facts{color:#9198a1}
th,td{border-color:#3d444d}td.bad{color:#ff8f85}}
"""


def left_out(climb):
    names = ", ".join(label(s) for s in climb.get("left_out", []))
    return f"<p>Left out, because they do not take head dimension {climb['input']['d']}: {names}.</p>" if names else ""


def sampled(climb):
    if "sample" not in climb:
        return ""
    sample = climb["sample"]
    return (f"<p>Judged: a sample of {sample['judged_rows']:,} of the {sample['rows']:,} rows. The others must be numbers, and are "
            "compared with the stage before.</p>")


def page(climb):
    """The report as one HTML document that needs no other file."""
    machine, source = climb["machine"], climb["input"]
    title = "A climb of the backward pass" if is_backward(climb) else "A climb"
    facts = (f"{source['source']}: {source['problem']}. {machine_text(machine)}, {machine['threads']} threads, "
             f"{machine['compiler']}, commit {machine['commit']}, {climb['date']}.")
    parts = [table(climb),
             "<p>error and allowed: max|O &minus; oracle| in fp64 and its bound; times: median ± half the interquartile "
             "range; extra memory: counted by the allocator that is a stage's only source of it.</p>",
             sampled(climb), left_out(climb), count_table(climb),
             image(picture(climb), "Speedup over the first stage and extra memory; counts of the stages of kernels")]
    if "memory" in climb:
        parts.append(image(memory_over_length(climb["memory"]), "Peak extra memory over sequence length by stage"))
    return (f"<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
            f"<title>FlashLadder: {title[0].lower()}{title[1:]}</title><style>{STYLE}</style><h1>{title}</h1>"
            f"<p class='facts'>{html.escape(facts)}</p>{''.join(parts)}</html>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("climb", type=Path, help="climb.json, as ./ladder climb writes it")
    parser.add_argument("--out", type=Path, help="the report to write (HTML)")
    parser.add_argument("--picture", type=Path, help="only the charts by stage (PNG)")
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    options = parser.parse_args()
    try:
        text = options.climb.read_bytes()
        climb = json.loads(text)
        if climb["format"] != 1:
            raise KeyError("format")
        if options.out:
            write_file(options.out, page(climb))
        if options.picture:
            buffer = io.BytesIO()
            # The picture says which results it was drawn from, so that a test can tell when it is stale.
            picture(climb).savefig(buffer, format="png", dpi=160,
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
