"""The change between two stages as one HTML file that needs nothing else: no network, no other file.

Side by side, on a narrow screen in one column; the explanation beside the hunks that it speaks of, the ledger and the
measurements above. As part of the guide (site) it links to its pages. diff_page.css and diff_page.js are its parts,
page.py what it shares with other pages.
"""

import math
import re
from collections.abc import Iterable

from common.course.diff_facts import Count, Counts, Measured, kind_text, times_text, value_text
from common.course.diff_model import Diff, Hunk, Line, Row, changed_words, plural
from common.course.diff_readme import Explanation, Note, count_sentence
from common.course.page import THEME_BUTTON, Painted, coloured, document, escaped
from common.course.registry import Stage

ROWS_SHOWN = 8  # of the table of counts; the others are folded


# --- The page -----------------------------------------------------------------------------------------------------


def page(diff: Diff, explanation: Explanation | None, counts: Counts, speeds: Measured,
         site: list[Diff] | None = None) -> str:
    """The file; `site` are all diffs of the guide, where it is one of its pages."""
    before, after = diff.before, diff.after
    body = [bar(diff, site), "<main>",
            f'<h1>{before.digits} &rarr; {after.digits} <span class="muted">{escaped(after.title)}</span></h1>',
            '<div class="ideas">', idea(before, site), idea(after, site), "</div>",
            at_work(diff) if site is not None else "",
            looks(diff, explanation), '<div class="facts">', counts_card(diff, counts), speeds_card(diff, speeds),
            "</div>", legend(), *code_parts(diff), "</main>"]
    return document(f"{before.digits} → {after.digits}: {after.title}", "\n".join(part for part in body if part), "diff_page")


def bar(diff: Diff, site: list[Diff] | None) -> str:
    links = ""
    if site is not None:
        at = site.index(diff)
        links = '<a href="../index.html">guide</a> <a href="index.html">all diffs</a>'
        for there, arrow in ((at - 1, "&larr; {}"), (at + 1, "{} &rarr;")):
            if 0 <= there < len(site):
                links += f' <a href="{site[there].name}.html">{arrow.format(site[there].name)}</a>'
    return (f'<nav class="bar"><strong>{diff.before.digits} &rarr; {diff.after.digits}</strong> {links}'
            '<span class="right"><span class="muted small keys">keys n, p</span>'
            '<button id="previous" title="previous hunk (p)">&uarr;</button>'
            f'<span id="where">0 / {len(diff.hunks)}</span><button id="next" title="next hunk (n)">&darr;</button>'
            f'<button id="unfold">unfold</button>{THEME_BUTTON}</span></nav>')


def idea(stage: Stage, site: list[Diff] | None) -> str:
    name = f"<strong>{escaped(stage.label)}</strong>"
    if site is not None:
        name = f'<a href="../stages/{stage.digits}.html">{name}</a>'
    return f"<div>{name}<p>{escaped(stage.idea)}</p></div>"


def at_work(diff: Diff) -> str:
    """Both stages at work, as ./ladder watch shows them; loaded when it is unfolded."""
    if not (diff.before.kernels and diff.after.kernels and diff.before.forward == diff.after.forward):
        return ""
    page = f"../watch/{diff.before.digits}-{diff.after.digits}.html"
    return (f'<details class="card movie"><summary>Both at work, side by side (<a href="{page}">as a page</a>)</summary>'
            f'<iframe src="{page}?embed" loading="lazy" title="both at work"></iframe></details>')


def prose(markdown: str) -> str:
    """One paragraph of a README: code, emphasis, and links as their words."""
    pieces = re.split(r"`([^`]+)`", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown))
    # Emphasis may have code in it, whose stars mean nothing: it is put back in afterwards.
    marked = escaped("".join(piece if index % 2 == 0 else f"\0{index}\0" for index, piece in enumerate(pieces)))
    marked = re.sub(r"(?<![\w*])\*\*(\S.*?)\*\*", r"<strong>\1</strong>", marked)
    marked = re.sub(r"(?<![\w*])\*(\S.*?)\*", r"<em>\1</em>", marked)
    return re.sub(r"\0(\d+)\0", lambda match: f"<code>{escaped(pieces[int(match[1])])}</code>", marked)


def looks(diff: Diff, explanation: Explanation | None) -> str:
    """The counted lines, and what the README says of all of the change; the items link to their hunks."""
    lines = [f"<p>{prose(count_sentence(diff, explanation))}</p>"]
    if explanation:
        lines += [f"<p>{prose(paragraph)}</p>" for paragraph in explanation.above]
        lines.append('<ol class="look">')
        for note in explanation.notes:
            if note.hunks:
                lines.append(f'<li><a href="#note{note.number}">{prose(note.lead)}</a></li>')
            else:
                lines.append(f"<li>{prose(note.text)}</li>")
        lines.append("</ol>")
        lines += [f"<p>{prose(paragraph)}</p>" for paragraph in explanation.below]
    return '<div class="card"><h2>What to look at</h2>\n' + "\n".join(lines) + "</div>"


# --- Counts and measurements --------------------------------------------------------------------------------------


def counts_card(diff: Diff, counts: Counts) -> str:
    body = [f"<p>{escaped(counts.problem)}</p>"] if counts.problem else []
    if counts.changed:
        shown, more = counts.changed[:ROWS_SHOWN], counts.changed[ROWS_SHOWN:]
        if len(more) <= 2:
            shown, more = counts.changed, []
        body.append(counts_table(diff, shown))
        if more:
            body.append(f"<details><summary>{len(more)} more</summary>{counts_table(diff, more)}</details>")
    if not counts.problem:
        equal = f"{plural(counts.equal, 'other counter is', 'other counters are')} equal. " if counts.equal else ""
        source = escaped(counts.source)
        source = f"<code>{source}</code>" if source.startswith("./ladder") else source
        body.append(f'<p class="small muted">{equal}From {source}.</p>')
    return '<section class="card" id="counts"><h2>What is counted</h2>\n' + "\n".join(body) + "</section>"


def counts_table(diff: Diff, counts: list[Count]) -> str:
    form = f"closed form of {diff.after.digits}" if any(count.form_shown for count in counts) else ""
    rows = [f'<table class="counts"><thead><tr><th>counter</th><th class="num">{diff.before.digits}</th>'
            f'<th class="num">{diff.after.digits}</th><th class="num">ratio</th><th class="bars"></th>'
            f'<th class="forms">{form}</th></tr></thead><tbody>']
    for count in counts:
        name = escaped(count.counter).replace("_", "_<wbr>").replace(".", ".<wbr>")
        rows.append(f'<tr><td>{name}</td><td class="num">{value_text(count.before)}</td>'
                    f'<td class="num">{value_text(count.after)}</td><td class="num">{count.ratio}</td>'
                    f'<td class="bars">{ratio_bar(count)}</td>'
                    f'<td class="forms">{escaped(count.form_shown)}</td></tr>')
    return "".join(rows) + "</tbody></table>"


def ratio_bar(count: Count) -> str:
    """A bar to the left for what falls, to the right for what rises: 2^8 times and more fill their half."""
    width = 50 * min(1, math.log2(min(count.change, 256)) / 8)
    side, name = ("left", "fell") if count.after < count.before else ("right", "rose")
    return f'<i class="{name}" style="margin-{side}:{50 - width:.0f}%"></i>'


def speeds_card(diff: Diff, speeds: Measured) -> str:
    if speeds.problem:
        body = f"<p>{escaped(speeds.problem)}</p>"
    else:
        several = any(len(by_N) > 1 for by_N in speeds.shapes.values())
        body = (panels(diff, speeds) if several else single_times(diff, speeds))
        body += f'<p class="small muted">{escaped(speeds.where[:1].upper() + speeds.where[1:])}.</p>'
    return f'<section class="card" id="measured"><h2>What was measured</h2>\n{body}</section>'


def single_times(diff: Diff, speeds: Measured) -> str:
    rows = [f'<tr><td>{kind_text(kind)}, N = {N}</td><td class="num">{old:.2f} {speeds.unit}</td>'
            f'<td class="num">{new:.2f} {speeds.unit}</td>'
            f'<td class="num">{times_text([speeds.gain(old, new)])}</td></tr>'
            for kind, by_N in speeds.shapes.items() for N, (old, new) in by_N.items()]
    return (f'<table><thead><tr><th></th><th class="num">{diff.before.digits}</th>'
            f'<th class="num">{diff.after.digits}</th><th class="num">times as fast</th></tr></thead>'
            f"<tbody>{''.join(rows)}</tbody></table>")


def panels(diff: Diff, speeds: Measured) -> str:
    """A small chart for each head dimension and mask: speed over N, on one scale."""
    most = max(value for by_N in speeds.shapes.values() for pair in by_N.values() for value in pair if value)
    top = nice_above(most)
    charts = "".join(panel(kind, by_N, speeds, top, diff) for kind, by_N in speeds.shapes.items())
    return (f'<p class="small key"><span>{diff.before.digits}</span><span>{diff.after.digits}</span>'
            f'{speeds.unit} over N</p><div class="panels">{charts}</div>')


def nice_above(value: float) -> float:
    """The next of 1, 2, 2.5, 5, 10 times a power of ten."""
    power = 10 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 4, 5, 8, 10) if step * power >= value)


def panel(kind: tuple[int, str], by_N: dict[int, tuple[float | None, float | None]], speeds: Measured, top: float,
          diff: Diff) -> str:
    left, right, low, high = 30, 178, 106, 34
    first, last = min(by_N), max(by_N)

    def x(N: int) -> float:
        return left + (right - left) * math.log2(N / first) / math.log2(last / first)

    def y(value: float) -> float:
        return low - (low - high) * value / top

    gains = [speeds.gain(*pair) for pair in by_N.values() if all(pair)]
    gain = f"{times_text(gains)} as fast" if gains else f"{diff.before.digits} has none"
    parts = [f'<text x="2" y="10" font-weight="600">{kind_text(kind)}</text>',
             f'<text x="2" y="22" class="tick">{gain}</text>']
    for value in (0, top / 2, top):
        parts.append(f'<path class="axis" d="M{left} {y(value):.1f}H{right}"/>'
                     f'<text class="tick" x="{left - 4}" y="{y(value) + 3:.1f}" text-anchor="end">{value:g}</text>')
    for N, anchor in ((first, "start"), (last, "end")):
        parts.append(f'<text class="tick" x="{x(N):.1f}" y="{low + 12}" text-anchor="{anchor}">'
                     f"{length_text(N)}</text>")
    for side, line, dot in ((0, "old", "olddot"), (1, "new", "dot")):
        points = [(x(N), y(pair[side]), N, pair[side]) for N, pair in by_N.items() if pair[side]]
        if len(points) > 1:
            path = " ".join(f"{px:.1f},{py:.1f}" for px, py, _, _ in points)
            parts.append(f'<polyline class="{line}" points="{path}"/>')
        stage = (diff.before, diff.after)[side]
        parts += [f'<circle class="{dot}" cx="{px:.1f}" cy="{py:.1f}" r="2.2"><title>{stage.digits}, N = {N}: '
                  f"{value:.2f} {speeds.unit}</title></circle>" for px, py, N, value in points]
    return f'<svg viewBox="0 0 184 122" role="img" aria-label="{kind_text(kind)}: {gain}">{"".join(parts)}</svg>'


def length_text(N: int) -> str:
    return f"{N // 1024}k" if N % 1024 == 0 and N >= 1024 else str(N)


# --- The code -----------------------------------------------------------------------------------------------------


def legend() -> str:
    return ('<h2>The code</h2><p class="legend small"><span class="gone">&minus; goes</span><span class="come">+ comes'
            '</span><span class="moved">&harr; only moves</span> What has only other white space has not changed.</p>')


def code_parts(diff: Diff) -> list[str]:
    """The whole code, top to bottom: hunks with some unchanged lines around, what else is unchanged folded."""
    old, new = coloured(diff.old), coloured(diff.new)
    moved_first = first_of_blocks(diff)

    def rows_html(rows: Iterable[Row]) -> str:
        return rows_of(diff, list(rows), old, new, moved_first)

    parts: list[str] = []
    for part in diff.parts:
        if isinstance(part, Hunk):
            above, below = diff.context(part)
            parts.append(hunk_html(diff, part, rows_html([*above, *part.rows, *below])))
        elif hidden := diff.folded(part):
            names = ", ".join(dict.fromkeys(diff.new[row.new].place for row in hidden))
            lines = plural(len(hidden), "unchanged line", "unchanged lines")
            parts.append(f'<div class="part"><details><summary>{lines}: {escaped(names)}</summary>'
                         f'<div class="code">{rows_html(hidden)}</div></details></div>')
    return parts


def hunk_html(diff: Diff, hunk: Hunk, rows: str) -> str:
    others = sorted((note for other in diff.hunks for note in other.notes if hunk in note.others),
                    key=lambda note: note.number)
    also = "".join(f' <a href="#note{note.number}">{note.number}</a>' for note in others)
    aside = ""
    if hunk.notes:
        aside = f'<aside><div>{"".join(note_html(note) for note in hunk.notes)}</div></aside>'
    return (f'<section class="hunk part" id="h{hunk.number}" tabindex="-1"><h3>'
            f'<a href="#h{hunk.number}">{hunk.number}</a> <span>{escaped(hunk.place + diff.files(hunk))}</span>'
            + (f'<span class="muted">see {"note" if len(others) == 1 else "notes"}{also}</span>' if others else "")
            + f'<span class="right muted">&minus;{len(hunk.olds)} +{len(hunk.news)}</span></h3>{aside}'
            f'<div class="code">{rows}</div></section>')


def note_html(note: Note) -> str:
    also = ", ".join(f'<a href="#h{hunk.number}">{hunk.number}</a>' for hunk in note.others)
    return (f'<div class="note" id="note{note.number}"><p><strong>{note.number}</strong> {prose(note.text)}</p>'
            + (f'<p class="also small">also in hunk {also}</p>' if also else "")
            + "</div>")


def first_of_blocks(diff: Diff) -> set[int]:
    """The first line in old of each block of lines that move together."""
    return {i for i, j in diff.moved.items() if diff.moved.get(i - 1) != j - 1}


def rows_of(diff: Diff, rows: list[Row], old: list["Painted"], new: list["Painted"], first: set[int]) -> str:
    """Rows side by side. Each run of changed ones is a group, in which a narrow screen shows first what goes."""
    out: list[str] = []
    inside = False
    for row in rows:
        if row.changed != inside:
            out.append('<div class="x">' if row.changed else "</div>")
            inside = row.changed
        parts = changed_words(diff.old[row.old], diff.new[row.new]) if row.paired else ([], [])
        if not row.changed:
            out.append(f'<div class="r same">{cell("div", old[row.old])}{cell("div", new[row.new])}</div>')
            continue
        out.append('<div class="r">')
        if row.old is None:
            out.append('<div class="c e"></div>')
        else:
            to = diff.moved.get(row.old)
            out.append(cell("del", old[row.old], parts[0], "o", new[to].line if to is not None else None,
                            row.old in first))
        if row.new is None:
            out.append('<div class="c e"></div>')
        else:
            source = diff.moved_from.get(row.new)
            out.append(cell("ins", new[row.new], parts[1], "n", old[source].line if source is not None else None,
                            source in first))
        out.append("</div>")
    return "".join(out) + ("</div>" if inside else "")


def cell(tag: str, painted: Painted, marked: Iterable[tuple[int, int]] = (), side: str = "",
         moved: Line | None = None, link: bool = False) -> str:
    """One line on one side. A moved one can be linked to, and the first of its block links to its other place."""
    line = painted.line
    names, more = "c", ""
    if moved is not None:
        names, more = "c m", f' id="{side}{line.where}"'
    code = painted.html(marked)
    if link:
        other = "n" if side == "o" else "o"
        where = moved.where
        code += f' <a class="to" href="#{other}{where}">{"moved to" if side == "o" else "moved from"} {where}</a>'
    indent = min(len(line.shown) - len(line.shown.lstrip()), 12)  # how deep a long line goes on below
    style = f' style="--i:{indent}"' if indent else ""
    return f'<{tag} class="{names}"{more} data-n="{line.number}"{style}>{code}</{tag}>'


# --- The index ----------------------------------------------------------------------------------------------------


def index(found: list[tuple[Diff, Explanation | None, Counts, Measured]]) -> str:
    """All pairs: ideas, counted lines, the most telling counter, what was gained."""
    rows = []
    for diff, _, counts, speeds in found:
        telling = counts.most_telling
        count = (f"{escaped(telling.counter)}: {value_text(telling.before)} &rarr; {value_text(telling.after)} "
                 f"({telling.ratio})") if telling else escaped(counts.problem)
        gain = f'<td class="num" data-t="times as fast">{times_text(speeds.gains)}</td>' if speeds.gains else \
            f'<td data-t="times as fast">{escaped(speeds.problem)}</td>'
        rows.append(
            f'<tr><td><a href="{diff.name}.html"><strong>{diff.before.digits} &rarr; {diff.after.digits}</strong></a>'
            "</td>"
            f"<td>{escaped(diff.after.idea)}<br><span class=muted>after: {escaped(diff.before.idea)}</span></td>"
            f'<td class="num" data-t="lines">{diff.counted}</td><td data-t="counted">{count}</td>{gain}</tr>')
    body = ('<nav class="bar"><strong>FlashLadder</strong> <a href="../index.html">guide</a><span class="right">'
            f"{THEME_BUTTON}</span></nav><main><h1>From stage to stage</h1>"
            "<p>What changes from each stage to the next: the code side by side with its explanation, what is counted, "
            "what was measured.</p>"
            '<table class="stack"><thead><tr><th>stages</th><th>the idea</th><th class="num">lines</th>'
            '<th>the most telling count</th><th class="num">times as fast</th></tr></thead><tbody>'
            + "\n".join(rows) + "</tbody></table>"
            '<p class="small muted">Lines: the larger of those that go and those that come, as <code>diff -w</code> '
            "counts. The most telling count: of what the later stage claims, what falls most, or where nothing falls, "
            "what rises most. Times as fast: the least and the most over all shapes that were measured of both; each "
            "page says on what.</p></main>")
    return document("From stage to stage", body, "diff_page")
