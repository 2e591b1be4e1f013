"""The stage's own explanation of its diff: the section "What to look at in the diff" of its README.

The section begins with the counted lines, in a form that is checked:

    `./ladder diff 13 14`: 103 lines go, 54 come. That is more than the 60 that a stage aims at: REASON.

The second sentence stands there when, and only when, the larger number is above the budget. More prose may follow.
Then comes a list. An item quotes in backticks the code that it speaks of, and belongs to the hunks that have such code
in lines that go or come; it stands beside the hunk that has most of it: of equals the one that has most of it as whole
lines, and of these the first. An item that begins with *Throughout.* is about the whole change, and stands above the
code, as all that is no list does. Comments and the registration are no code.
"""

import re
from dataclasses import dataclass, field

from common.course.diff_model import BUDGET, Diff, Hunk, plural, words
from common.course.registry import Stage

TITLE = "## What to look at in the diff"
OVER = f"That is more than the {BUDGET} that a stage aims at: "
COUNTS = re.compile(r"`\./ladder diff (\d\d) (\d\d)`: (\d+) lines go, (\d+) come\.")
THROUGHOUT = "*Throughout.*"


@dataclass
class Note:
    """An item of the list, and the hunks that it speaks of: the one beside which it stands comes first."""

    number: int
    text: str
    hunks: list[Hunk] = field(default_factory=list)

    @property
    def throughout(self) -> bool:
        return self.text.startswith(THROUGHOUT)

    @property
    def lead(self) -> str:
        """What it is about: its first words where they stand for themselves, else its first sentence."""
        first = re.match(r"\*([^*]+?)[.:]?\*(:|(?<=[.:]\*)) ", self.text)
        return first[1] if first else re.split(r"[.:;] |[.:;]$", self.text, maxsplit=1)[0]

    @property
    def others(self) -> list[Hunk]:
        """The hunks that it speaks of too, from top to bottom."""
        return sorted(self.hunks[1:], key=lambda hunk: hunk.number)

    @property
    def quotes(self) -> list[str]:
        return list(dict.fromkeys(re.findall(r"`([^`]+)`", self.text)))


@dataclass
class Explanation:
    """The section of one README: what it counts, its prose above and below the list, the items."""

    stage: Stage
    counts: tuple[str, str, int, int] | None  # the two stages, lines that go, lines that come
    reason: str  # why it is above the budget; "" where it does not say so
    above: list[str]
    notes: list[Note]
    below: list[str]


def read_explanation(stage: Stage) -> Explanation:
    readme = stage.folder / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    if f"\n{TITLE}\n" not in text:
        return Explanation(stage, None, "", [], [], [])
    section = text.split(f"\n{TITLE}\n", 1)[1].split("\n## ", 1)[0]
    above: list[str] = []
    below: list[str] = []
    notes: list[Note] = []
    for block in blocks_of(section):
        if block.startswith("- "):
            notes.append(Note(len(notes) + 1, block[2:]))
        else:
            (below if notes else above).append(block)
    counts, reason = None, ""
    if above and (match := COUNTS.match(above[0])):
        counts = match[1], match[2], int(match[3]), int(match[4])
        rest = above[0][match.end():].strip()
        if rest.startswith(OVER):
            reason, _, rest = rest[len(OVER):].partition(". ")
            reason = reason.rstrip(".")
        above[0:1] = [rest] if rest else []
    return Explanation(stage, counts, reason, above, notes, below)


def blocks_of(section: str) -> list[str]:
    """Its paragraphs and list items, each joined to one line; an item keeps its "- "."""
    blocks: list[str] = []
    for line in section.splitlines():
        if not line.strip():
            blocks.append("")
        elif line.startswith("- ") or not blocks or not blocks[-1]:
            blocks.append(line.strip())
        else:
            blocks[-1] += " " + line.strip()
    return [block for block in blocks if block]


def anchor(diff: Diff, explanation: Explanation) -> None:
    """Gives each note its hunks, and each hunk the notes that stand beside it."""
    hunks = [hunk for hunk in diff.hunks if hunk.place != "registration"]
    lines = {hunk.number: [code_words(line.split("//")[0]) for line in diff.changed_lines(hunk)] for hunk in hunks}
    for note in explanation.notes:
        if note.throughout:
            continue
        quotes = [code_words(quote) for quote in note.quotes]
        found = [(sum(any(within(quote, line) for line in lines[hunk.number]) for quote in quotes),
                  sum(quote in lines[hunk.number] for quote in quotes), hunk) for hunk in hunks]
        found.sort(key=lambda one: (-one[0], -one[1], one[2].number))
        note.hunks = [hunk for count, _, hunk in found if count]
        if note.hunks:
            note.hunks[0].notes.append(note)


def code_words(code: str) -> list[str]:
    return [word for _, _, word in words(code)]


def within(part: list[str], whole: list[str]) -> bool:
    return bool(part) and any(whole[i:i + len(part)] == part for i in range(len(whole) - len(part) + 1))


def explained(diff: Diff) -> Explanation | None:
    """The explanation of a neighbouring pair, anchored; None for other pairs, of which no README speaks."""
    if not diff.neighbours:
        return None
    explanation = read_explanation(diff.after)
    anchor(diff, explanation)
    return explanation


def count_sentence(diff: Diff, explanation: Explanation | None) -> str:
    """How many lines change, and the reason where they are more than a stage aims at; Markdown."""
    counted = (f"{plural(diff.counted, 'line changes', 'lines change')}, as diff -w counts: {diff.removed} go, "
               f"{diff.added} come")
    if diff.moved:
        counted += f"; {plural(len(diff.moved), 'of them only moves', 'of them only move')}"
    if explanation and explanation.reason:
        return f"{counted}. More than the {BUDGET} that a stage aims at: {explanation.reason}."
    return f"{counted}. A stage aims at {BUDGET} at most." if diff.neighbours else f"{counted}."


def faults(diff: Diff, explanation: Explanation) -> list[str]:
    """What the README of a neighbouring pair says wrongly of its diff; the tests want none."""
    readme = f"stages/{diff.after.folder.name}/README.md"
    found = []
    right = (diff.before.digits, diff.after.digits, diff.removed, diff.added)
    if explanation.counts != right:
        found.append(f"{readme}: the section '{TITLE[3:]}' must begin with `./ladder diff {right[0]} {right[1]}`: "
                     f"{right[2]} lines go, {right[3]} come.")
    if diff.counted > BUDGET and not explanation.reason:
        found.append(f"{readme}: {diff.counted} lines change, and it does not say why: '{OVER}REASON.'")
    if diff.counted <= BUDGET and explanation.reason:
        found.append(f"{readme}: {diff.counted} lines change, within the {BUDGET} that a stage aims at: no reason.")
    if not explanation.notes:
        found.append(f"{readme}: the section '{TITLE[3:]}' has no list of what to look at.")
    found += [f"{readme}: no changed line has code that this item quotes: {note.text}"
              for note in explanation.notes if not note.throughout and not note.hunks]
    return found
