"""Draws the report of a climb: one HTML file that holds its table and its charts, from climb.json.

Usage: report.py out/climb.json [--out out/report.html] [--picture out/climb.png] [--markdown]
"""

import argparse
import base64
import hashlib
import html
import io
import json
import sys
from pathlib import Path

try:
    import matplotlib

    matplotlib.use("Agg")  # there may be no screen
    import matplotlib.pyplot as plt
except ImportError:
    sys.exit("report: this Python has no Matplotlib: ./ladder setup makes one that has, .venv/bin/python")

INK, MUTED, FRAME, BAR, WARNING = "#1f2328", "#59636e", "#d1d9e0", "#3b6fb6", "#b3261e"
LINES = ["#3b6fb6", "#c8701c", "#3a8a50", "#8a4fa3", "#b3463f", "#6b6b6b"]
plt.rcParams.update({
    "font.size": 11, "axes.edgecolor": FRAME, "axes.labelcolor": MUTED, "text.color": INK, "xtick.color": MUTED,
    "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "flashladder",
})


def label(stage):
    return f"{stage['number']:02d} {stage['name']}"


def size_text(count):
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} B"


def bars(axes, stages, values, texts, title, note, colours):
    """Horizontal bars in stage order, first stage on top, on a log axis, each with its value as text."""
    axes.set_xscale("log")
    places = range(len(stages))
    floor = min((v for v in values if v), default=1) / 2
    axes.barh(places, [v or floor for v in values], left=None, color=colours, height=0.6)
    for place, value, text in zip(places, values, texts):
        axes.text((value or floor) * 1.12, place, text, va="center", fontsize=10)
    axes.set_yticks(places, [label(s) for s in stages])
    axes.set_ylim(len(stages) - 0.5, -0.5)
    axes.set_xlim(floor, max([v for v in values if v], default=1) * 12)
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    axes.set_xlabel(note)
    axes.tick_params(axis="y", length=0)


def speedup_and_memory(climb):
    """Speedup over the first stage that was timed, and extra memory, by stage."""
    stages = climb["stages"]
    first = next((s["time_ms"]["median"] for s in stages if "time_ms" in s), None)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(12, 1.5 + 0.55 * len(stages)), layout="constrained", sharey=True)
    speedups = [first / s["time_ms"]["median"] if "time_ms" in s else None for s in stages]
    texts = [f"{v:.3g}x   {s['time_ms']['median']:.3g} ms" if v else s["status"] for s, v in zip(stages, speedups)]
    bars(left, stages, speedups, texts, "Speedup over the first stage", "times as fast, log scale",
         [BAR if v else WARNING for v in speedups])
    memory = [s["extra_bytes"] or None for s in stages]
    texts = [("out of memory: needs " if s["status"] == "out of memory" else "") +
             (size_text(m) if m else s["status"]) for s, m in zip(stages, memory)]
    bars(right, stages, memory, texts, "Extra memory", "bytes beyond Q, K, V, O and L, log scale",
         [WARNING if s["status"] != "passed" else BAR for s in stages])
    return figure


def memory_over_length(memory):
    """Peak extra memory over N, one line a stage, a cross where it no longer fits."""
    figure, axes = plt.subplots(figsize=(12, 5), layout="constrained")
    for number, stage in enumerate(memory["stages"]):
        colour = LINES[number % len(LINES)]
        fits = [p for p in stage["points"] if not p.get("out_of_memory")]
        axes.plot([p["N"] for p in fits], [p["bytes"] for p in fits], marker="o", color=colour, label=label(stage))
        for p in stage["points"]:
            if p.get("out_of_memory"):
                axes.plot(p["N"], p["bytes"], marker="x", markersize=10, markeredgewidth=2.5, color=colour)
                axes.annotate(f"out of memory:\nneeds {size_text(p['bytes'])}", (p["N"], p["bytes"]),
                              textcoords="offset points", xytext=(-10, 0), ha="right", va="center", fontsize=9,
                              color=colour)
    lengths = sorted({p["N"] for s in memory["stages"] for p in s["points"]})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(lengths, [f"{n // 1024}k" for n in lengths])
    low, high = axes.get_ylim()
    ticks = [2**e for e in range(0, 60, 5) if low <= 2**e <= high]
    axes.set_yticks(ticks, [size_text(t) for t in ticks])
    axes.minorticks_off()
    axes.set_xlabel(f"sequence length N (one head, d = {memory['d']})")
    axes.set_title("Peak extra memory over sequence length", loc="left", fontsize=12, fontweight="bold")
    axes.grid(axis="y", color=FRAME, linewidth=0.6)
    axes.legend(frameon=False, loc="upper left")
    return figure


def image(figure, alt):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160)
    plt.close(figure)
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'


def figures(climb):
    """What the tables show of each stage that was timed, by its number: memory, time, speedups, as text."""
    timed = [s for s in climb["stages"] if "time_ms" in s]
    medians = {s["number"]: s["time_ms"]["median"] for s in timed}
    result = {}
    for s in timed:
        median, before = s["time_ms"]["median"], medians.get(s["before"])
        spread = (s["time_ms"]["upper_quartile"] - s["time_ms"]["lower_quartile"]) / 2
        result[s["number"]] = (size_text(s["extra_bytes"]), f"{median:.2f} ± {spread:.2f}",
                               f"{before / median:.2f}x" if before and s["before"] != s["number"] else "",
                               f"{timed[0]['time_ms']['median'] / median:.2f}x")
    return result


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
    return "\n".join(lines) + (f"\n\n{source['source']}, {source['problem']}; {machine['cpu']}, "
                               f"{machine['threads']} threads, {machine['compiler']}, commit {machine['commit']}.\n")


STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:1180px;margin:2rem auto;padding:0 1rem;color:#1f2328;background:#fff}
h1{margin-bottom:.2rem} .facts{color:#59636e;margin-top:0}
.scroll{overflow-x:auto} table{border-collapse:collapse;font-size:.92rem;white-space:nowrap}
th,td{padding:.35rem .7rem;border-bottom:1px solid #d1d9e0;text-align:right;font-variant-numeric:tabular-nums}
th:first-child,td.idea,th.idea{text-align:left} td.idea{white-space:normal;min-width:16rem}
td.bad{color:#b3261e;text-align:left;white-space:normal} tbody th{font-weight:600}
img{max-width:100%;height:auto;margin-top:1.5rem;background:#fff;border-radius:6px}
@media (prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}.facts{color:#9198a1}
th,td{border-color:#3d444d}td.bad{color:#ff8f85}}
"""


def page(climb):
    """The report as one HTML document that needs no other file."""
    machine, source = climb["machine"], climb["input"]
    facts = (f"{source['source']}: {source['problem']}. {machine['cpu']}, {machine['threads']} threads, "
             f"{machine['compiler']}, commit {machine['commit']}, {climb['date']}.")
    parts = [table(climb),
             "<p>error and allowed: max|O &minus; oracle| in fp64 and its bound; times: median ± half the interquartile "
             "range; extra memory: counted by the allocator that is a stage's only source of it.</p>",
             image(speedup_and_memory(climb), "Speedup over the first stage, and extra memory, by stage")]
    if "memory" in climb:
        parts.append(image(memory_over_length(climb["memory"]), "Peak extra memory over sequence length by stage"))
    return (f"<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
            f"<title>FlashLadder: a climb</title><style>{STYLE}</style><h1>A climb</h1>"
            f"<p class='facts'>{html.escape(facts)}</p>{''.join(parts)}</html>\n")


def write(path, data):
    """Complete or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    part.replace(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("climb", type=Path, help="climb.json, as ./ladder climb writes it")
    parser.add_argument("--out", type=Path, help="the report to write (HTML)")
    parser.add_argument("--picture", type=Path, help="only the chart of speedup and memory (PNG)")
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    options = parser.parse_args()
    try:
        text = options.climb.read_bytes()
        climb = json.loads(text)
        if climb["format"] != 1:
            raise KeyError("format")
        if options.out:
            write(options.out, page(climb).encode())
        if options.picture:
            buffer = io.BytesIO()
            # The picture says which results it was drawn from, so that a test can tell when it is stale.
            speedup_and_memory(climb).savefig(buffer, format="png", dpi=160,
                                              metadata={"Results": hashlib.sha256(text).hexdigest()})
            write(options.picture, buffer.getvalue())
        if options.markdown:
            print(markdown(climb), end="")
    except OSError as error:
        sys.exit(f"report: {error}")
    except (ValueError, KeyError, TypeError) as error:
        sys.exit(f"report: {options.climb} is not a climb.json of this version ({error!r}): run ./ladder climb again")


if __name__ == "__main__":
    main()
