"""Which rows see which keys, of a problem as the program's JSON has it: common/attention/mask.hpp and problem.hpp in Python,
for what ./ladder watch draws."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

BLOCK = 128  # rows, and keys, of a block of a block map


@dataclass(frozen=True)
class Sequence:
    """Rows and keys that see no others: all of them, or one of those that are packed."""

    number: int  # among those that are packed
    row0: int
    row1: int  # one more than the last
    key0: int
    key1: int
    causal: bool
    left: int  # a row sees so many keys before its own, -1: all
    right: int  # and so many behind it
    prefix: int  # and the first so many keys

    def keys(self, row: int) -> tuple[int, int]:
        """The first key that a row sees, and one more than the last; the row behind the last is as if there was one more."""
        size = self.key1 - self.key0
        own = row - self.row0 + size - (self.row1 - self.row0)
        behind = 0 if self.causal else self.right
        first = 0 if self.left < 0 else min(max(own - self.left, 0), size)
        end = size if behind < 0 else min(max(own + 1 + behind, self.prefix, 0), size)
        return self.key0 + first, self.key0 + max(first, end)

    def outline(self) -> list[list[int]]:
        """The corners, (key, row), of what is seen."""
        ends = [(*self.keys(row), row) for row in range(self.row0, self.row1 + 1)]
        return [*corners([(end, row) for _, end, row in ends]), *reversed(corners([(first, row) for first, _, row in ends]))]


def corners(points: list[tuple[int, int]]) -> list[list[int]]:
    """A line, a point for each row, without those points that are on the way from one to the next."""
    return [[x, row] for at, (x, row) in enumerate(points)
            if at in (0, len(points) - 1) or points[at + 1][0] - x != x - points[at - 1][0]]


def sequences_of(problem: dict[str, Any]) -> list[Sequence]:
    """Those that are packed, without those that have no rows; or the one that is."""
    rows, keys = problem.get("cu_seqlens_q") or [0, problem["Nq"]], problem.get("cu_seqlens_k") or [0, problem["Nk"]]
    left, right = problem.get("window", (-1, -1))
    return [Sequence(number, *place, problem["causal"], left, right, problem.get("prefix", 0))
            for number, place in enumerate(zip(rows, rows[1:], keys, keys[1:])) if place[1] > place[0]]


def left_out(problem: dict[str, Any], tiles: Iterable[list[int]]) -> list[list[int]]:
    """The blocks that a block map leaves out: (head, rows, keys). It is not in what the program says. But the kernel has
    been at each block that the map and the masks leave: where rows see keys and it has not been, the map says no."""
    if not problem.get("live_blocks"):
        return []
    been = {(head, i // BLOCK, j // BLOCK) for head, i0, i1, j0, j1, *_ in tiles
            for i in range(i0, i1, BLOCK) for j in range(j0, j1, BLOCK)}
    (all_rows,) = sequences_of(problem)
    seen = [(i, j) for i in range(-(-problem["Nq"] // BLOCK)) for j in range(-(-problem["Nk"] // BLOCK))
            if sees_any(all_rows, BLOCK * i, min(BLOCK * (i + 1), problem["Nq"]), BLOCK * j, BLOCK * (j + 1))]
    return [[head, BLOCK * i, min(BLOCK * (i + 1), problem["Nq"]), BLOCK * j, min(BLOCK * (j + 1), problem["Nk"])]
            for head in range(problem["batch"] * problem["q_heads"]) for i, j in seen if (head, i, j) not in been]


def sees_any(sequence: Sequence, row0: int, row1: int, key0: int, key1: int) -> bool:
    return any(max(first, key0) < min(end, key1) for first, end in map(sequence.keys, range(row0, row1)))


def variant_text(problem: dict[str, Any]) -> str:
    """What is not plain attention about it, in words."""
    left, right = problem.get("window", (-1, -1))
    shown = []
    if problem["causal"] and left >= 0:
        shown.append(f"window of {left} keys before a row's own")
    elif not problem["causal"] and max(left, right) >= 0:
        before, behind = ("all" if size < 0 else size for size in (left, right))
        shown.append(f"window of {before} keys before and {behind} behind a row's own")
    if problem.get("prefix"):
        shown.append(f"prefix of {problem['prefix']} keys")
    if begins := problem.get("cu_seqlens_q"):
        shown.append(f"{len(begins) - 1} packed sequence{'' if len(begins) == 2 else 's'}")
    if problem.get("live_blocks"):
        shown.append(f"block map with {problem['live_blocks']} of {blocks_of(problem)} blocks")
    if problem.get("softcap"):
        shown.append(f"softcap {problem['softcap']:g}")
    if any(problem.get("bias", [])):
        shown.append(f"bias [{', '.join(map(str, problem['bias']))}, {problem['Nk']}]")
    shown += [name for name, words in (("ALiBi", "alibi"), ("sinks", "sinks")) if problem.get(words)]
    if problem.get("dropout"):
        shown.append(f"dropout {problem['dropout']:g}")
    return ", ".join(shown)


def blocks_of(problem: dict[str, Any]) -> int:
    """Of the block map of all heads."""
    return problem["batch"] * problem["q_heads"] * -(-problem["Nq"] // BLOCK) * -(-problem["Nk"] // BLOCK)
