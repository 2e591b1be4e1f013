"""What changes from one stage's source to another's: hunks, moved lines, words. ./ladder diff shows it.

Which lines change is what `diff -w` says, so that whoever runs it counts the same. Lines that only mark what a lab
leaves out are dropped first: they are no part of the lesson. A backward pass that the second stage does not have goes
as a whole, and the rest is compared without it: its loops look like those of a forward pass.
"""

import difflib
import functools
import os
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from common.course.registry import POLICY, Failure, Stage, is_variant, source_lines

CONTEXT = 3  # unchanged lines shown on either side of a hunk
DROPPED = "function backward"  # the place of what a stage without a backward pass does not have
MOST_INDENT = 24  # columns of indentation that are shown
BUDGET = 60  # changed lines that a stage may take
LAB_MARKER = re.compile(r" *// (lab: .*|given: .*|end of lab)")
MORE_OF_IT = re.compile(r" *//   .*")  # the next line of a `// lab:` that is longer than one
WORD = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\s+|.", re.S)


def plural(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"


def pairs(stages: list[Stage]) -> list[tuple[Stage, Stage]]:
    """Every neighbouring pair: a stage and the one before it in the same track."""
    by_number = {stage.number: stage for stage in stages}
    return [(by_number[stage.before], stage) for stage in stages if stage.follows]


# --- The lines ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    number: int  # in the file as it is, marker lines counted
    text: str
    place: str  # the function, struct or kernel that it is in
    file: str = ""  # kernel.hpp or policy.hpp, of a line that stands there and not in attention.cu

    @property
    def where(self) -> str:
        return f"{self.file}:{self.number}" if self.file else str(self.number)

    @property
    def bare(self) -> str:
        """What `diff -w` compares: the text without white space."""
        return re.sub(r"\s+", "", self.text)

    @property
    def shown(self) -> str:
        """The text with at most MOST_INDENT columns of indentation: arguments that stand below the first of a long
        line would leave no room for themselves."""
        code = self.text.lstrip()
        return " " * min(len(self.text) - len(code), MOST_INDENT) + code


def without_markers(text: str) -> list[tuple[int, str]]:
    """(line number, line) of all lines but those that mark a lab."""
    kept, may_go_on = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if marker := LAB_MARKER.fullmatch(line):
            may_go_on = marker[1].startswith("lab")
        elif not (may_go_on and MORE_OF_IT.fullmatch(line)):
            may_go_on = False
            kept.append((number, line))
    return kept


def read_lines(source: Path, apart: str = "kernel.hpp") -> list[Line]:
    lines = source_lines(source, apart)
    kept = [lines[number - 1] for number, _ in without_markers("\n".join(line.text for line in lines))]
    found = places([line.text for line in kept])
    return [Line(line.number, line.text, place, "" if line.file == source else line.file.name)
            for line, place in zip(kept, found)]


def places(lines: list[str]) -> list[str]:
    """The top-level definition that each line is in. One begins in the first column, and ends with a line that ends
    in } or ; where all brackets are closed. What stands above a definition belongs to it."""
    found: list[str] = []
    definition: list[str] = []
    anything = False  # whether there was a definition
    waiting = 0  # lines that belong to the definition that comes or is being read
    for line in lines:
        waiting += 1
        code = re.sub(r"\s*//.*", "", line)
        if re.match(r"namespace .*\{$", code):  # all includes stand above it
            found += ["namespaces" if anything else "head of the file"] * waiting
            definition, waiting = [], 0
        elif definition or (code.strip() and not code.startswith(("#", "}", "extern"))):
            definition.append(code.strip())
            whole = " ".join(definition)
            if code.endswith(("}", ";")) and all(whole.count(a) == whole.count(b) for a, b in ("{}", "()")):
                found += [place_name(whole)] * waiting
                definition, waiting, anything = [], 0, True
    return found + ["end of the file"] * waiting


def place_name(definition: str) -> str:
    text = re.sub(r"template <[^<>]*> ?|__launch_bounds__\([^()]*\) ?|\[\[.*?\]\] ?", "", definition)
    if text.startswith("const Stage "):
        return "registration"
    if match := re.match(r"(struct|class|enum) (\w+)", text):
        return f"{match[1]} {match[2]}"
    if text.startswith(("using ", "static_assert")):
        return "constants"
    if match := re.search(r"(\w+|operator\S+) ?\(", re.split(r"[={]", text)[0]):
        return f"{'kernel' if '__global__' in text else 'function'} {match[1]}"
    return "constants"


# --- The changes --------------------------------------------------------------------------------------------------


@dataclass
class Change:
    """Lines old[old_begin:old_end] became new[new_begin:new_end]; one of the two may be empty."""

    old_begin: int
    old_end: int
    new_begin: int
    new_end: int


@dataclass(frozen=True)
class Row:
    """A row of the two sources side by side; indices into their lines, None where nothing stands."""

    old: int | None
    new: int | None
    changed: bool
    paired: bool = False  # the two are one line before and after a change


@dataclass(eq=False)
class Hunk:
    """Changed lines of one definition with at most two unchanged ones between them."""

    number: int
    rows: list[Row]
    place: str
    notes: list = field(default_factory=list)  # of the stage's explanation, in its order

    @property
    def olds(self) -> list[int]:
        """The lines that go."""
        return [row.old for row in self.rows if row.changed and row.old is not None]

    @property
    def news(self) -> list[int]:
        """The lines that come."""
        return [row.new for row in self.rows if row.changed and row.new is not None]


HEADER = re.compile(r"(\d+)(?:,(\d+))?([acd])(\d+)(?:,(\d+))?")


def changes_between(old: list[Line], new: list[Line]) -> list[Change]:
    """What `diff -w` says of the two."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("old", "new")]
        for path, lines in zip(paths, (old, new)):
            path.write_text("".join(line.text + "\n" for line in lines), encoding="utf-8")
        try:
            result = subprocess.run(["diff", "-w", *paths], capture_output=True, text=True, encoding="utf-8",
                                    env={**os.environ, "LC_ALL": "C"})
        except OSError:
            raise Failure("the program diff, which says what changes, is not there: install diffutils.") from None
    if result.returncode > 1:
        raise Failure(f"diff -w failed: {result.stderr.strip()}.")
    found = []
    for line in result.stdout.splitlines():
        if match := HEADER.fullmatch(line):
            o1, n1 = int(match[1]), int(match[4])
            o2, n2 = int(match[2] or o1), int(match[5] or n1)
            # Where lines only come or only go, the other side's number is that of the line before.
            old_range = (o1, o1) if match[3] == "a" else (o1 - 1, o2)
            new_range = (n1, n1) if match[3] == "d" else (n1 - 1, n2)
            found.append(Change(*old_range, *new_range))
    return found


def changes_of(old: list[Line], new: list[Line]) -> list[Change]:
    """As changes_between, but where only `old` has a function `backward`, all of it goes: no line of it becomes one
    of another function."""
    gone = [i for i, line in enumerate(old) if line.place == DROPPED]
    if not gone or any(line.place == DROPPED for line in new):
        return changes_between(old, new)
    begin, end = gone[0], gone[-1] + 1
    if end < len(old) and not old[begin].bare and not old[end].bare:  # the blank line below goes, not the one above
        begin, end = begin + 1, end + 1
    size = end - begin
    found: list[Change] = []
    for change in changes_between(old[:begin] + old[end:], new):
        if change.old_end > begin:
            if change.old_begin < begin:  # the function is in the middle of what goes
                change.old_begin -= size
            change.old_begin, change.old_end = change.old_begin + size, change.old_end + size
        found.append(change)
    if not any(change.old_begin <= begin and end <= change.old_end for change in found):
        before = [change for change in found if change.old_end <= begin]
        at = before[-1].new_end + begin - before[-1].old_end if before else begin
        found.insert(len(before), Change(begin, end, at, at))
    return found


def moved_lines(old: list[Line], new: list[Line], changes: list[Change]) -> dict[int, int]:
    """Lines that go in one place and come in another: index in old -> index in new. Neighbours that move together
    are one block; a block counts from 20 letters and digits on, as in git, so that no brace is said to have moved."""
    gone = {i for c in changes for i in range(c.old_begin, c.old_end)}
    come = {i for c in changes for i in range(c.new_begin, c.new_end)}
    by_text: dict[str, list[int]] = {}
    for j in sorted(come):
        by_text.setdefault(new[j].bare, []).append(j)
    blocks = []
    for i in gone:
        for j in by_text.get(old[i].bare, ()):
            if i - 1 in gone and j - 1 in come and old[i - 1].bare == new[j - 1].bare:
                continue  # inside a block that began above
            length = 0
            while i + length in gone and j + length in come and old[i + length].bare == new[j + length].bare:
                length += 1
            blocks.append((weight(old[i:i + length]), length, i, j))
    moved: dict[int, int] = {}
    taken: set[int] = set()
    for _, length, i, j in sorted(blocks, key=lambda block: (-block[0], block[2], block[3])):
        run = []
        for k in range(length + 1):  # what a larger block has taken cuts this one in pieces
            if k < length and i + k not in moved and j + k not in taken:
                run.append(k)
                continue
            if weight([old[i + r] for r in run]) >= 20:
                for r in run:
                    moved[i + r] = j + r
                    taken.add(j + r)
            run = []
    return moved


def weight(lines: list[Line]) -> int:
    return sum(character.isalnum() for line in lines if not line.text.startswith("#") for character in line.text)


def words(text: str) -> list[tuple[int, int, str]]:
    """(begin, end, word) of all words and signs of a line, white space left out."""
    return [(m.start(), m.end(), m[0]) for m in WORD.finditer(text) if not m[0].isspace()]


def likeness(a: list[str], b: list[str]) -> float:
    """0 ... 1: how much of two lines' words is the same, in the same order."""
    total = sum(map(len, a)) + sum(map(len, b))
    if not total:
        return 0.0
    counts = Counter(a) & Counter(b)
    if 2 * sum(len(word) * n for word, n in counts.items()) / total < LIKE:
        return 0.0
    blocks = difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    return 2 * sum(len(word) for block in blocks for word in a[block.a:block.a + block.size]) / total


LIKE = 0.5  # lines this much alike are one line before and after a change


def paired_lines(old: list[str], new: list[str]) -> list[tuple[int, int]]:
    """Which lines of a change are the same line before and after: in order, with the most likeness in all."""
    olds, news = ([[word for _, _, word in words(text)] for text in texts] for texts in (old, new))
    best = [[0.0] * (len(new) + 1) for _ in range(len(old) + 1)]
    like = [[likeness(a, b) for b in news] for a in olds]
    for i in range(len(old) - 1, -1, -1):
        for j in range(len(new) - 1, -1, -1):
            together = best[i + 1][j + 1] + like[i][j] if like[i][j] >= LIKE else 0.0
            best[i][j] = max(together, best[i + 1][j], best[i][j + 1])
    found, i, j = [], 0, 0
    while i < len(old) and j < len(new):
        if like[i][j] >= LIKE and best[i][j] == best[i + 1][j + 1] + like[i][j]:
            found.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return found


def changed_words(old: Line, new: Line) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The parts (begin, end) of each of two lines, as shown, that the other has not; neighbours are one part."""
    olds, news = words(old.shown), words(new.shown)
    matcher = difflib.SequenceMatcher(None, [w for *_, w in olds], [w for *_, w in news], autojunk=False)
    parts: tuple[list, list] = ([], [])
    for what, i1, i2, j1, j2 in matcher.get_opcodes():
        if what != "equal":
            for side, found, first, last in ((0, olds, i1, i2), (1, news, j1, j2)):
                if first < last:
                    parts[side].append((found[first][0], found[last - 1][1]))
    return parts


class Diff:
    """Two stages, and all that the code's change from one to the other is."""

    def __init__(self, before: Stage, after: Stage):
        self.before, self.after = before, after
        apart = POLICY if is_variant(after) and (before.folder / POLICY).is_file() else "kernel.hpp"
        self.old, self.new = read_lines(before.source, apart), read_lines(after.source, apart)
        self.changes = changes_of(self.old, self.new)

    @functools.cached_property
    def moved(self) -> dict[int, int]:
        """Lines that go in one place and come in another: index in old -> index in new."""
        return moved_lines(self.old, self.new, self.changes)

    @functools.cached_property
    def moved_from(self) -> dict[int, int]:
        """By index in new."""
        return {new: old for old, new in self.moved.items()}

    @property
    def name(self) -> str:
        """The digits of both, such as the page is called by."""
        return f"{self.before.digits}-{self.after.digits}"

    @property
    def removed(self) -> int:
        return sum(c.old_end - c.old_begin for c in self.changes)

    @property
    def added(self) -> int:
        return sum(c.new_end - c.new_begin for c in self.changes)

    @property
    def counted(self) -> int:
        """What the budget is held against: the larger of lines that go and lines that come."""
        return max(self.removed, self.added)

    @property
    def neighbours(self) -> bool:
        return self.after.follows and self.after.before == self.before.number

    @property
    def hunks(self) -> list[Hunk]:
        return [part for part in self.parts if isinstance(part, Hunk)]

    def changed_lines(self, hunk: Hunk) -> list[str]:
        """The text of all lines that go or come in a hunk."""
        return [self.old[i].text for i in hunk.olds] + [self.new[j].text for j in hunk.news]

    def files(self, hunk: Hunk) -> str:
        """In which files its lines are, of a stage whose kernel is in a file of its own; "" where neither is such."""
        sides = (self.before, self.old, hunk.olds), (self.after, self.new, hunk.news)
        files = {lines[i].file or stage.source.name
                 for stage, lines, changed in sides if any(line.file for line in lines) for i in changed}
        return f" in {' and '.join(sorted(files))}" if files else ""

    @functools.cached_property
    def parts(self) -> list[Hunk | list[Row]]:
        """Both sources from top to bottom: hunks, and between them stretches of unchanged rows."""
        rows: list[Row] = []
        i = 0
        for change in [*self.changes, Change(len(self.old), len(self.old), len(self.new), len(self.new))]:
            begin = change.new_begin - (change.old_begin - i)
            rows += [Row(i + k, begin + k, False) for k in range(change.old_begin - i)]
            rows += self._rows(change)
            i = change.old_end
        parts: list[Hunk | list[Row]] = []
        for row, place in zip(rows, self._places(rows)):
            last = parts[-1] if parts else None
            if not row.changed:
                if isinstance(last, list):
                    last.append(row)
                else:
                    parts.append([row])
                continue
            near = parts[-2] if isinstance(last, list) and len(last) <= 2 and len(parts) > 1 else last
            if isinstance(near, Hunk) and near.place == place:
                if near is not last:
                    near.rows += parts.pop()
                near.rows.append(row)
            else:
                parts.append(Hunk(sum(isinstance(part, Hunk) for part in parts) + 1, [row], place))
        return parts

    def _places(self, rows: list[Row]) -> list[str]:
        """The place of each row: of its new line; where lines only go, of the new line above that stood in the same
        definition, and else of the old line. A blank line that comes or goes belongs to what is above."""
        found: list[str] = []
        became: dict[str, str] = {}
        for row in rows:
            lines = [side[index] for side, index in ((self.old, row.old), (self.new, row.new)) if index is not None]
            place = became.get(lines[0].place, lines[0].place) if row.new is None else lines[-1].place
            if row.old is not None and row.new is not None and lines[0].bare:
                became[lines[0].place] = place
            found.append(found[-1] if found and not any(line.bare for line in lines) else place)
        return found

    def _rows(self, change: Change) -> list[Row]:
        """A change side by side: lines that are one line before and after stand in one row."""
        olds = [i for i in range(change.old_begin, change.old_end) if i not in self.moved]
        news = [j for j in range(change.new_begin, change.new_end) if j not in self.moved_from]
        same = [(olds[a], news[b]) for a, b in
                paired_lines([self.old[i].text for i in olds], [self.new[j].text for j in news])]
        rows, i, j = [], change.old_begin, change.new_begin
        for old, new in [*same, (change.old_end, change.new_end)]:
            while i < old or j < new:
                rows.append(Row(i if i < old else None, j if j < new else None, True))
                i, j = i + (i < old), j + (j < new)
            if old < change.old_end and new < change.new_end:
                rows.append(Row(old, new, True, paired=True))
                i, j = old + 1, new + 1
        return rows

    def context(self, hunk: Hunk) -> tuple[list[Row], list[Row]]:
        """The unchanged rows that are shown above and below a hunk; none is shown twice."""
        at = next(index for index, part in enumerate(self.parts) if part is hunk)
        above, below = [], []
        if at and not isinstance(self.parts[at - 1], Hunk):
            above = self._cut(at - 1)[2]
        if at + 1 < len(self.parts) and not isinstance(self.parts[at + 1], Hunk):
            below = self._cut(at + 1)[0]
        return above, below

    def folded(self, stretch: list[Row]) -> list[Row]:
        """What of an unchanged stretch is beside no hunk."""
        return self._cut(next(index for index, part in enumerate(self.parts) if part is stretch))[1]

    def _cut(self, at: int) -> tuple[list[Row], list[Row], list[Row]]:
        """An unchanged stretch: what is shown below the hunk before, what is not, what is shown above the next."""
        stretch = self.parts[at]
        head = CONTEXT if at else 0
        tail = CONTEXT if at + 1 < len(self.parts) else 0
        if len(stretch) <= head + tail + CONTEXT:  # too little to be worth folding
            head, tail = min(head, len(stretch)), max(len(stretch) - head, 0)
        return stretch[:head], stretch[head:len(stretch) - tail], stretch[len(stretch) - tail:]
