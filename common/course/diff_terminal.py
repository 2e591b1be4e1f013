"""The change between two stages in a terminal: what is known of it, then the code with the explanation."""

import re
import textwrap
from collections.abc import Iterable

from common.course.diff_facts import Counts, Measured, kind_text, times_text, value_text
from common.course.diff_model import Diff, Hunk, Row, changed_words, plural
from common.course.diff_readme import Explanation, Note, count_sentence

CODES = {"bold": "1", "dim": "2", "gone": "31", "come": "32", "moved": "36", "head": "1;34", "note": "33"}


class Terminal:
    """Lines of text that fit a width, in colour or not."""

    def __init__(self, width: int, colour: bool):
        self.width, self.colour = max(width, 40), colour

    def paint(self, text: str, style: str, marked: Iterable[tuple[int, int]] = ()) -> str:
        """The text in a style, the marked parts of it inverted as well."""
        if not self.colour or not text:
            return text
        shown, at = f"\033[{CODES[style]}m", 0
        for begin, end in marked:
            shown += f"{text[at:begin]}\033[7m{text[begin:end]}\033[27m"
            at = end
        return f"{shown}{text[at:]}\033[0m"

    def wrapped(self, text: str, first: str = "", rest: str | None = None) -> list[str]:
        """Prose in lines, the first after `first`, the others after `rest`."""
        return textwrap.wrap(text, self.width, initial_indent=first, subsequent_indent=first if rest is None else rest,
                             break_long_words=False, break_on_hyphens=False) or [first]


def plain(markdown: str) -> str:
    """Markdown as a terminal shows it: no stars, no addresses; `code` keeps its marks."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
    return re.sub(r"(?<![\w*`])\*{1,2}(?=\S)([^*`]*(?:`[^`]*`[^*`]*)*)\*{1,2}", r"\1", text)


def render(diff: Diff, explanation: Explanation | None, counts: Counts, speeds: Measured, terminal: Terminal) -> str:
    lines = head_lines(diff, explanation, terminal)
    lines += ["", *counts_lines(diff, counts, terminal), "", *speed_lines(diff, speeds, terminal)]
    if explanation:
        lines += ["", *explanation_lines(explanation, terminal)]
    numbers = len(str(max(line.number for line in diff.old + diff.new)))
    for hunk in diff.hunks:
        above, below = diff.context(hunk)
        lines += hunk_head(diff, hunk, terminal)
        for note in hunk.notes:
            lines += note_lines(note, terminal)
        lines += code_lines(diff, [*above, *hunk.rows, *below], numbers, terminal)
    return "\n".join(lines) + "\n"


def head_lines(diff: Diff, explanation: Explanation | None, terminal: Terminal) -> list[str]:
    width = max(len(stage.label) for stage in (diff.before, diff.after))
    lines = []
    for stage, style in ((diff.before, "gone"), (diff.after, "come")):
        first, *rest = terminal.wrapped(stage.idea, " " * (width + 2))
        lines += [terminal.paint(f"{stage.label:{width}}", style) + first[width:], *rest]
    return lines + ["", *terminal.wrapped(plain(count_sentence(diff, explanation)))]


# --- What is known beside the code --------------------------------------------------------------------------------


def counts_lines(diff: Diff, counts: Counts, terminal: Terminal) -> list[str]:
    if counts.problem:
        return terminal.wrapped(counts.problem)
    where = f" ({counts.source})" if counts.source else ""
    if not counts.changed:
        return terminal.wrapped(f"Counted{where}: all {counts.equal} counters are equal.")
    equal = f"; {plural(counts.equal, 'counter is', 'counters are')} equal" if counts.equal else ""
    lines = [terminal.paint(line, "bold") for line in terminal.wrapped(f"Counted{where}{equal}")]
    cells = [(c.counter, value_text(c.before), value_text(c.after), c.ratio, c.form_shown) for c in counts.changed]
    form = f"closed form of {diff.after.digits}" if any(cell[4] for cell in cells) else ""
    heads = ("counter", diff.before.digits, diff.after.digits, "ratio", form)
    widths = [max(len(row[column]) for row in [heads, *cells]) for column in range(4)]
    for row in [heads, *cells]:
        name, *values = row[:4]
        text = "".join(f"  {value:>{width}}" for value, width in zip(values, widths[1:]))
        if 2 + widths[0] + len(text) > terminal.width:
            lines.append(f"  {name}")
            text = f"    {text}"
        else:
            text = f"  {name:{widths[0]}}{text}"
        room = terminal.width - len(text) - 2
        if not row[4]:
            lines.append(text)
        elif room >= max(20, len(heads[4])):
            first, *rest = textwrap.wrap(row[4], room)
            lines += [f"{text}  {first}", *(" " * (len(text) + 2) + part for part in rest)]
        elif row is heads:
            lines.append(text)
        else:
            lines += [text, *terminal.wrapped(row[4], "      = ", "        ")]
    return lines


def speed_lines(diff: Diff, speeds: Measured, terminal: Terminal) -> list[str]:
    if speeds.problem:
        return terminal.wrapped(f"Measured: {speeds.problem}")
    shared = speeds.shared_lengths
    span = f" for N = {min(shared)} to {max(shared)}" if len(shared) > 1 else ""
    lines = [terminal.paint(line, "bold") for line in terminal.wrapped(f"Measured{span}, {speeds.where}")]
    N = 4096 if 4096 in shared else max(shared)
    rows = []
    for kind, by_N in speeds.shapes.items():
        if N in by_N and all(by_N[N]):
            gains = [speeds.gain(*pair) for pair in by_N.values() if all(pair)]
            rows.append((kind_text(kind), *(f"{value:.2f}" for value in by_N[N]), times_text(gains)))
    heads = (f"{speeds.unit}, N = {N}", diff.before.digits, diff.after.digits,
             "times as fast, all N" if span else "times as fast")
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(4)]
    for row in [heads, *rows]:
        lines.append(f"  {row[0]:{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}")
    return lines


def explanation_lines(explanation: Explanation, terminal: Terminal) -> list[str]:
    title = terminal.wrapped(f"What to look at (stages/{explanation.stage.folder.name}/README.md)")
    lines = [terminal.paint(line, "bold") for line in title]
    lines += [line for paragraph in explanation.above for line in terminal.wrapped(plain(paragraph))]
    for note in explanation.notes:
        if note.hunks:
            lines += terminal.wrapped(f"{note.number}. {plain(note.lead)} (hunk {note.hunks[0].number})", "  ", "     ")
        else:
            lines += terminal.wrapped(f"{note.number}. {plain(note.text)}", "  ", "     ")
    return lines + [line for paragraph in explanation.below for line in terminal.wrapped(plain(paragraph))]


def note_lines(note: Note, terminal: Terminal) -> list[str]:
    others = ", ".join(str(hunk.number) for hunk in note.others)
    text = f"{note.number}. {plain(note.text)}" + (f" (Also in hunk {others}.)" if others else "")
    return [terminal.paint(line, "note") for line in terminal.wrapped(text, "    | ")]


# --- The code -----------------------------------------------------------------------------------------------------


def hunk_head(diff: Diff, hunk: Hunk, terminal: Terminal) -> list[str]:
    text = f"-- hunk {hunk.number} of {len(diff.hunks)}: {hunk.place}{diff.files(hunk)} "
    return ["", terminal.paint((text + "-" * terminal.width)[:terminal.width], "head")]


def code_lines(diff: Diff, rows: list[Row], numbers: int, terminal: Terminal) -> list[str]:
    """Rows as one column: of each run of changed rows first what goes, then what comes."""
    lines: list[str] = []
    run: list[Row] = []
    for row in [*rows, None]:
        if row and row.changed:
            run.append(row)
            continue
        lines += changed_run(diff, run, numbers, terminal)
        run = []
        if row:
            old, new = diff.old[row.old], diff.new[row.new]
            lines += one_line(terminal, f"{old.number:>{numbers}} {new.number:>{numbers}}", " ", new.shown)
    return lines


def changed_run(diff: Diff, run: list[Row], numbers: int, terminal: Terminal) -> list[str]:
    gone: list[str] = []
    come: list[str] = []
    blank = " " * numbers
    for row in run:
        parts = changed_words(diff.old[row.old], diff.new[row.new]) if row.paired else ([], [])
        if row.old is not None:
            line, to = diff.old[row.old], diff.moved.get(row.old)
            tail = f"  [moved to {diff.new[to].where}]" if to is not None else ""
            gutter, sign = f"{line.number:>{numbers}} {blank}", "<" if tail else "-"
            gone += one_line(terminal, gutter, sign, line.shown + tail, parts[0])
        if row.new is not None:
            line, source = diff.new[row.new], diff.moved_from.get(row.new)
            tail = f"  [moved from {diff.old[source].where}]" if source is not None else ""
            gutter, sign = f"{blank} {line.number:>{numbers}}", ">" if tail else "+"
            come += one_line(terminal, gutter, sign, line.shown + tail, parts[1])
    return gone + come


def one_line(terminal: Terminal, gutter: str, sign: str, text: str,
             marked: Iterable[tuple[int, int]] = ()) -> list[str]:
    """A line of code after its numbers; one that is too long goes on below, deeper."""
    style = {"-": "gone", "+": "come", "<": "moved", ">": "moved"}.get(sign)
    room = terminal.width - len(gutter) - 3
    indent = min(len(text) - len(text.lstrip()) + 4, room // 2)
    lines, at = [], 0
    while at < len(text) or not lines:
        hang = indent if lines else 0
        end = at + room - hang
        if end < len(text) and (space := text.rfind(" ", at + 1, end + 1)) > at + (room - hang) // 2:
            end = space
        piece = text[at:end]
        shift = 2 + hang - at
        parts = [(max(begin, at) + shift, min(stop, end) + shift)
                 for begin, stop in marked if begin < end and stop > at]
        code = f"{sign} {' ' * hang}{piece}".rstrip()
        head = terminal.paint(" " * len(gutter) if lines else gutter, "dim")
        lines.append(f"{head} {terminal.paint(code, style, parts) if style else code}".rstrip())
        at = end + (text[end:end + 1] == " ")
    return lines
