"""A kernel at work, as the page of ./ladder watch shows it: what the emulator has traced, in the time of a model, or of a GPU's
clock stamps.

`movie` makes of an answer of `./ladder ledger ... --json --trace` what watch_page.js reads: plain data, all times in
clocks. The blocks of a launch take the multiprocessors in turn, one block at a time on each; a launch begins when the one
before has ended. What is shown is what was counted: `movie` fails where the sums of what it shows are not the ledger's.
"""

import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from common.course.mask import BLOCK, Sequence, left_out, sequences_of, variant_text
from common.course.registry import Failure, Stage
from common.course.time_model import OTHER, STORES, TENSOR_CORES, TMA, WAITS, WORK_OF, Model, Step, Timing, likeness, steps_of

FORMAT = 1
KINDS = ["loads", *WORK_OF.values(), STORES, OTHER, *WAITS, "product in flight", "load in flight"]
BACKWARD = {"S = Q K^T": "S = Q K^T, P", "O = P V": "the other products"}  # what the kinds are called there
MOST_COLUMNS = 64  # of O~ that are shown
MBARRIERS = 64  # bytes: smaller arrays hold no data
MODEL = ("The clocks are those of a model, not measured: {multiprocessors} multiprocessors, each with one block at a time. "
         "The counts are the ledger's.")
MEASURED = ("The clocks are those of one {gpu}: what the warps of a launch's first block stamped, which all blocks are shown with. "
            "Between stamps, and of the units, it is what they allow. A kernel that stamps is slower. The counts are the ledger's.")
DRAWN = "Which row tiles a block draws is the emulator's order: its blocks take turns, whatever the clock says."
# What is shown of the counters: (label, group, names that are added up). A buffer's stand before these.
COUNTERS = [
    ("matmul FLOPs, CUDA cores", "work", ["flops_cuda_cores"]), ("matmul FLOPs, tensor cores", "work", ["flops_tensor_cores"]),
    ("exponentials", "work", ["exp"]), ("other operations", "work", ["add", "mul", "div", "max", "log"]),
    ("tiles", "tiles", ["tiles"]), ("masked tiles", "tiles", ["masked_tiles"]),
    ("barriers", "synchronisation", ["barriers"]), ("named barriers", "synchronisation", ["named_barriers"]),
    ("waits at mbarriers", "synchronisation", ["mbarrier_waits"]), ("shuffles", "synchronisation", ["shuffles"]),
    ("atomics", "synchronisation", ["atomics"]),
]
# What a row of a buffer has, of those that have one for each row of Q: so many elements as the problem says, or one.
ROWS = {**dict.fromkeys(("Q", "O", "dQ", "dO", "dQ_sum"), "d"), **dict.fromkeys(("S", "P", "dS", "dP"), "Nk"),
        **dict.fromkeys(("L", "m", "l", "D", "L2"), "one")}
WAYS = ("read", "written", "atomic")
# Counts of blocks and of launches, to which no step adds.
NO_STEPS = re.compile(r"^(blocks|dependent_launches|most_.*|fewest_.*|shared_bytes_per_block|device_bytes)$|"
                      r"\.array_bytes$|\.element_bytes$")


@dataclass
class Block:
    """A block that ran: what it did, and when and where in the time that is played."""

    index: int  # among all
    launch: int
    number: int
    trace: dict[str, Any]
    timing: Timing
    multiprocessor: int
    begin: float

    @property
    def end(self) -> float:
        return self.begin + self.timing.end

    @property
    def ended(self) -> bool:
        """Whether all its warps have returned."""
        return all(warp.steps[-1].name == "end" for warp in self.timing.warps.values())

    def steps(self) -> Iterable[tuple[int, Step, float, float]]:
        """Of all warps: the tile that a step belongs to (0: none yet), the step, from when to when it was."""
        for warp in self.timing.warps.values():
            tile, before = 0, self.begin
            for step, done in zip(warp.steps, warp.done):
                if step.name == "tile":
                    tile = step.a
                yield tile, step, before, self.begin + done
                before = self.begin + done

    def travels(self) -> Iterable[tuple[int, Step, float, float]]:
        """The steps that access global memory: the tile, or for those that bring data for others, which have none, a
        number of their own below 0; the step; from when to when the bytes travel."""
        own = 0
        for warp in self.timing.warps.values():
            tile = 0
            for at, step in enumerate(warp.steps):
                if step.name == "tile":
                    tile = step.a
                if at in warp.travels:
                    own -= step.name == "load"
                    begin, end = warp.travels[at]
                    # The last stores are still under way when the warps have ended: shown as if they hurried.
                    end = min(end, self.timing.end)
                    yield own if step.name == "load" else tile, step, self.begin + min(begin, end), self.begin + end


def movie(stage: Stage, name: str, answer: dict[str, Any], source: tuple[str, list[str]], error: str = "",
          timed: Callable[[list[Step]], Timing] = Model) -> dict[str, Any]:
    """A stage's part of the page: `answer` is the program's, with the trace of this stage alone; `name` how it is called,
    by its number or as a folder of its lab; `source` the name of its file and its lines in HTML; `timed` gives the steps of a
    block their times."""
    counted, problem = answer["stages"][0], answer["input"]
    trace, sequences = counted["trace"], sequences_of(problem)
    backward = answer.get("pass") == "backward"
    blocks = placed(trace, timed)
    if not blocks:
        raise Failure(f"{name}: {error.replace(chr(10), ' ') or 'no block ran'}.")
    row = None if backward else row_of(blocks, trace, sequences)
    stopped = next((block for block in blocks if not block.ended), None) if error else None
    seen = stopped or (row[0] if row else blocks[0])
    watched = seen.multiprocessor
    tiles, number_of = tiles_of(blocks, sequences)
    shown = [block for block in blocks if block.multiprocessor == watched]
    # Of all launches, that of the most first. A policy may have buffers that are empty.
    launches = sorted(trace["launches"], key=lambda launch: -len(launch["buffers"]))
    buffers = [*dict.fromkeys(name for launch in launches for name, _, elements in launch["buffers"] if name and elements)]
    lanes, bars = lanes_of(shown, source[0])
    return {
        "digits": name, "name": stage.name, "title": stage.title, "idea": stage.idea,
        "problem": problem_text(problem, counted["dtype"]), "variant": variant_text(problem),
        "heads": problem["batch"] * problem["q_heads"],
        "Nq": problem["Nq"], "Nk": problem["Nk"], "d": problem["d"],
        "sequences": [[one.row0, one.row1, one.key0, one.key1] for one in sequences],
        "seen": [one.outline() for one in sequences], "left_out": [] if error else left_out(problem, tiles),
        "pass": "backward" if backward else "forward", "multiprocessors": trace["multiprocessors"],
        "end": math.ceil(max(block.end for block in blocks)), "error": error,
        "source": {"path": source[0], "html": source[1], "wrong": wrong_line(error, source[0])},
        "launches": [{"kernel": launch["kernel"], "grid": launch["grid"], "warps": launch["warps"],
                      "shared": launch["shared_bytes"]} for launch in trace["launches"]],
        "blocks": [[block.launch, block.number, block.multiprocessor, round(block.begin), round(block.end)]
                   for block in blocks],
        "tiles": tiles, "parts": parts_of(shown, number_of, tiles), "buffers": buffers,
        "moves": moves_of(blocks, counted, problem, buffers),
        "shared": arrays_of(trace["launches"]), "registers": in_registers(trace, blocks, backward),
        "note": DRAWN if "drawn" in buffers else "",
        "watched": watched, "lanes": lanes, "kinds": [BACKWARD.get(kind, kind) if backward else kind for kind in KINDS],
        "bars": bars, **counters_of(blocks, counted, bool(error)), "row": row and row[1],
    }


def arrays_of(launches: list[dict[str, Any]]) -> list[list[Any]]:
    """The shared arrays that hold data: (name, bytes, the name of the array before in whose place it lies, or "")."""
    found: list[list[Any]] = []
    for launch in launches:
        for name, size, begin in sorted(launch["shared"], key=lambda array: array[2]):
            known = [one[0] for one in found]
            if size > MBARRIERS and name not in known:
                under = [other for other, bytes_of, at in launch["shared"]
                         if other != name and at <= begin < at + bytes_of and other in known]
                found.append([name, size, *(under[:1] or [""])])
    return found


def in_registers(trace: dict[str, Any], blocks: list[Block], backward: bool) -> list[str]:
    """Which intermediates have no array in shared memory and no buffer in global memory, but are computed. O~ has a buffer
    where O is read back."""
    elsewhere = {name for launch in trace["launches"] for name, *_ in [*launch["shared"], *launch["buffers"]]}
    if any(step.counted.get("global.O.read_bytes") for block in blocks for _, step, _, _ in block.steps()):
        elsewhere.add("O~")
    wanted = ["S", "P", "dP", "dS", "sums of dK, dV"] if backward else ["S", "P", "m", "l", "O~"]
    return [name for name in wanted if name not in elsewhere]


def wrong_line(error: str, source: str) -> int:
    """The line of the source that an error names first; 0: none."""
    found = re.search(rf"\b{re.escape(source.rpartition('/')[2])}:(\d+)", error)
    return int(found[1]) if found else 0


def problem_text(problem: dict[str, Any], dtype: str) -> str:
    def plural(count: int, noun: str) -> str:
        return f"{count} {noun}{'' if count == 1 else 's'}"

    heads = plural(problem["q_heads"], "head")
    if problem["kv_heads"] != problem["q_heads"]:
        heads += f" for {plural(problem['kv_heads'], 'head')} of keys"
    rows = f"Nq = Nk = {problem['Nq']}" if problem["Nq"] == problem["Nk"] else f"Nq = {problem['Nq']}, Nk = {problem['Nk']}"
    batch = [f"batch {problem['batch']}"] if problem["batch"] > 1 else []
    masks = [*(["causal"] if problem["causal"] else []), *([variant_text(problem)] if variant_text(problem) else [])]
    return ", ".join([*batch, heads, rows, f"d = {problem['d']}", *masks, dtype])


def placed(trace: dict[str, Any], timed: Callable[[list[Step]], Timing]) -> list[Block]:
    """All blocks that ran, each on the multiprocessor that is free first."""
    found: list[Block] = []
    timings: dict[int, Timing] = {}  # many blocks do the same with other data
    begin = 0.0
    for launch, what in enumerate(trace["launches"]):
        free = [(begin, number) for number in range(trace["multiprocessors"])]
        for number, block in enumerate(what["blocks"]):
            if not block["steps"]:
                continue
            steps = steps_of(trace, block)
            alike = likeness(steps)
            timing = timings[alike] = timings[alike].of(steps) if alike in timings else timed(steps)
            since, multiprocessor = heapq.heappop(free)
            timing.end = max([timing.end, *(bar.end for bar in timing.bars)])  # also where a warp did not end
            found.append(Block(len(found), launch, number, block, timing, multiprocessor, since))
            heapq.heappush(free, (since + timing.end, multiprocessor))
        begin = max([begin, *(since for since, _ in free)])
    return found


# --- Tiles --------------------------------------------------------------------------------------------------------


def sequence_with(sequences: list[Sequence], row: int) -> Sequence:
    """That of a row."""
    return next((one for one in reversed(sequences) if one.row0 <= row), sequences[0])


def tiles_of(blocks: list[Block], sequences: list[Sequence]) -> tuple[list[list[int]], dict[tuple[int, int, int], int]]:
    """The tiles in the order in which they begin, and their numbers by (number of the block here, tile of it, head). A tile
    ends where its sequence does: what the kernel computes behind that, it does not use."""
    found = []
    for block in blocks:
        boxes: dict[tuple[int, int], list[int]] = {}
        for _, tile, head, first_row, last_row, first_key, last_key in block.trace["parts"]:
            box = boxes.setdefault((tile, head), [first_row, last_row, first_key, last_key])
            box[:] = [min(box[0], first_row), max(box[1], last_row), min(box[2], first_key), max(box[3], last_key)]
        begin, end = {}, {}
        for tile, step, since, done in block.steps():
            if step.name == "tile":
                begin[tile] = min(begin.get(tile, done), done)
            elif step.name in WORK_OF or step.counted.get("flops_cuda_cores") or step.counted.get("flops_tensor_cores"):
                end[tile] = max(end.get(tile, 0), done)
        masked = set(block.trace["masked"])
        if not block.ended:
            end = {tile: block.end + 1 if tile == max(begin, default=0) else done for tile, done in end.items()}
        for (tile, head), (first_row, last_row, first_key, last_key) in boxes.items():
            since, sequence = begin.get(tile, block.begin), sequence_with(sequences, first_row)
            found.append(([head, first_row, min(last_row + 1, sequence.row1), first_key, min(last_key + 1, sequence.key1),
                           int(tile in masked), round(since), max(round(end.get(tile, since)), round(since) + 1), block.index], tile))
    found.sort(key=lambda one: (one[0][6], one[0][8], one[1]))
    return [one for one, _ in found], {(one[8], tile, one[0]): number for number, (one, tile) in enumerate(found)}


def parts_of(shown: list[Block], number_of: dict[tuple[int, int, int], int], tiles: list[list[int]]) -> list[list[int]]:
    """Which warp computes which part of a tile: (number of the tile, warp, rows, keys)."""
    found = []
    for block in shown:
        for warp, tile, head, first_row, last_row, first_key, last_key in block.trace["parts"]:
            number = number_of[block.index, tile, head]
            _, _, end_row, _, end_key, *_ = tiles[number]
            if first_row < end_row and first_key < end_key:
                found.append([number, warp, first_row, min(last_row + 1, end_row), first_key, min(last_key + 1, end_key)])
    return found


# --- Bytes --------------------------------------------------------------------------------------------------------


def rows_touched(buffer: list[Any], first: int, last: int, problem: dict[str, Any], Br: int) -> tuple[int, int, int]:
    """(head, first row, one more than the last) that bytes of a buffer belong to; head -1 where that is not known. Of K, V
    and their gradients the head is one of theirs. `Br` are the rows of a tile, 0 where they are not known."""
    name, element, elements = buffer
    keys = name in ("K", "V", "dK", "dV")
    if not keys and name not in ROWS:
        return -1, 0, 0
    heads = problem["batch"] * problem["kv_heads" if keys else "q_heads"]
    rows = problem["Nk"] if keys else problem["Nq"]
    size = element * (problem["d"] if keys else problem.get(ROWS[name], 1))
    padded = elements * element // (heads * size)  # a buffer of a stage's own may have rows for whole tiles
    if padded < rows or padded * heads * size != elements * element:
        return -1, 0, 0
    first, last = first // size, last // size
    if first // padded != last // padded:
        return -1, 0, 0
    head, row0, row1 = first // padded, first % padded, last % padded + 1
    if problem.get("cu_seqlens_q") and padded > rows:
        return (head, *packed_rows(row0, row1, padded, problem, Br)) if Br else (-1, 0, 0)
    return head, min(row0, rows - 1), min(row1, rows)


def packed_rows(row0: int, row1: int, padded: int, problem: dict[str, Any], Br: int) -> tuple[int, int]:
    """Rows of a buffer that has whole tiles for each packed sequence, as rows of the sequences. They begin as
    padded_row0() of the kernels says."""
    sequences = sequences_of(problem)
    mine = next((one for one in reversed(sequences) if (one.row0 // Br + one.number) * Br <= row0), sequences[0])
    away = mine.row0 - (mine.row0 // Br + mine.number) * Br
    return min(row0 + away, mine.row1 - 1), min(row1 + away, mine.row1)


def moves_of(blocks: list[Block], counted: dict[str, Any], problem: dict[str, Any], names: list[str]) -> list[list[int]]:
    """What travels between global memory and the multiprocessors: one for each tile of a block, buffer and way."""
    found, trace, Br = [], counted["trace"], counted.get("tile", {}).get("Br", 0)
    apart = BLOCK if problem.get("live_blocks") else 2**63  # what lies between two blocks of a map does not move with them
    for block in blocks:
        buffers = trace["launches"][block.launch]["buffers"]
        group = problem["q_heads"] // problem["kv_heads"]
        heads = sorted({part[2] for part in block.trace["parts"]})  # of Q, that it works on
        moves: dict[tuple[int, str, int, int], list[float]] = {}
        for tile, step, since, done in block.travels():
            touched = {}
            for slot, way, first, last in step.touched:
                name = buffers[slot][0]
                head, row0, row1 = rows_touched(buffers[slot], first, last, problem, Br)
                if name in ("K", "V", "dK", "dV") and head >= 0:
                    head = next((one for one in heads if one // group == head), head * group)
                touched[name, way] = head, row0, row1
            for (name, way), (head, row0, row1) in touched.items():
                size = step.counted.get(f"global.{name}.{WAYS[way]}_bytes", 0)
                if not size or name not in names:
                    continue
                one = moves.setdefault((tile, name, way, row0 // apart), [since, since, head, row0, row1, 0])
                same = one[2] == head >= 0
                one[:] = [min(one[0], since), max(one[1], done), head if same else -1,
                          min(one[3], row0) if same else 0, max(one[4], row1) if same else 0, one[5] + size]
        found += [[round(begin), max(round(end), round(begin) + 1), block.multiprocessor, names.index(name), way, head, row0,
                   row1, size] for (_, name, way, _), (begin, end, head, row0, row1, size) in moves.items()]
    return sorted(found)


# --- Counters -----------------------------------------------------------------------------------------------------


def counters_of(blocks: list[Block], counted: dict[str, Any], stopped: bool) -> dict[str, Any]:
    """The counters, and what each tile of a block adds to them. A Failure where the sums are not the ledger's; of a kernel
    that was stopped there is no ledger."""
    forms = {form["counter"]: form for form in counted.get("closed_forms", [])}
    sums: dict[str, int] = defaultdict(int)
    by_tile: dict[tuple[int, int, str], dict[str, int]] = {}
    times: dict[tuple[int, int, str], float] = {}

    def add(key: tuple[int, int, str], step: Step, done: float, travels: bool) -> None:
        counted = {name: more for name, more in step.counted.items() if name.startswith("global.") == travels}
        if not counted:
            return
        times[key] = max(times.get(key, 0), done)
        of_tile = by_tile.setdefault(key, defaultdict(int))
        for name, more in counted.items():
            of_tile[name] += more
            sums[name] += more

    for block in blocks:
        for tile, step, _, done in block.steps():
            add((block.index, tile, ""), step, done, travels=False)
        for tile, step, _, done in block.travels():
            # By what moves, as in moves_of(): so a counter is where the bytes are.
            for name in {name.rpartition("_")[0] for name in step.counted if name.startswith("global.")}:
                part = Step(step.warp, step.name, counted={key: more for key, more in step.counted.items()
                                                           if key.startswith(name)})
                add((block.index, tile, name), part, done, travels=True)
    for name, total in counted["counts"].items():
        if not stopped and sums.get(name, 0) != total and not NO_STEPS.search(name):
            raise Failure(f"the steps of the trace have {sums.get(name, 0)} of {name}, and the ledger has {total}")

    rows = []
    for name in dict.fromkeys(name.split(".")[1] for name in sums if name.startswith("global.")):
        for way, words in zip(WAYS, ("read", "written", "added to")):
            rows.append((f"{name} {words}, bytes", "global memory", [f"global.{name}.{way}_bytes"]))
    for way in ("read", "written"):
        rows.append((f"shared memory {way}, bytes", "shared memory",
                     [name for name in sums if name.startswith("shared.") and name.endswith(f".{way}_bytes")]))
    rows = [row for row in [*rows, *COUNTERS] if sum(sums[name] for name in row[2])]
    deltas = sorted((round(times[key]), number, sum(of_tile[name] for name in names))
                    for key, of_tile in by_tile.items() for number, (_, _, names) in enumerate(rows)
                    if any(of_tile[name] for name in names))
    return {"counters": [{"label": label, "group": group, "total": sum(sums[name] for name in names),
                          **form_of(names, forms)} for label, group, names in rows],
            "deltas": {name: [delta[column] for delta in deltas]
                       for column, name in enumerate(("end", "counter", "add"))}}


def form_of(names: list[str], forms: dict[str, Any]) -> dict[str, Any]:
    """The closed form of a counter as text, where it has one, and whether the count is it."""
    elements = names[0].replace("_bytes", "_elements")
    form = len(names) == 1 and (forms.get(names[0]) or forms.get(elements)) or None
    if form is None:
        return {"form": "", "exact": False}
    unit = " elements" if form["counter"] == elements != names[0] else ""
    exact = form["value"] == form["measured"]
    return {"form": f"{'' if exact else 'at least '}{form['text']}{unit}", "exact": exact}


# --- The multiprocessor that is watched, and the row -----------------------------------------------------------------


def role_of(warp: int, shown: list[Block]) -> str:
    """What a warp does of a tile, in words."""
    for block in shown:
        parts = [part for part in block.trace["parts"] if part[1] == block.trace["parts"][0][1]]
        mine = next((part for part in parts if part[0] == warp), None)
        if mine is not None:
            row0, key0 = min(part[3] for part in parts), min(part[5] for part in parts)
            text = f"rows {mine[3] - row0}-{mine[4] - row0}"
            whole = mine[5] == key0 and mine[6] == max(part[6] for part in parts)
            return text if whole else f"{text}, keys {mine[5] - key0}-{mine[6] - key0}"
    loads = any(step.name == "load" for block in shown if warp in block.timing.warps for step in block.timing.warps[warp].steps)
    return "producer" if loads else ""


def lanes_of(shown: list[Block], source: str) -> tuple[list[dict[str, str]], dict[str, list[int]]]:
    """The warps and units of the watched multiprocessor, and what they do when. A bar says which lines of the source the
    warp executes."""
    units = [unit for unit in (TMA, TENSOR_CORES) if any(bar.lane == unit for block in shown for bar in block.timing.bars)]
    warps = range(max(max(block.timing.warps) for block in shown) + 1)
    lanes = [{"name": f"warp {warp}", "role": role_of(warp, shown)} for warp in warps]
    lanes += [{"name": unit, "role": ""} for unit in units]
    number_of = {lane["name"]: number for number, lane in enumerate(lanes)}
    bars = []
    for block in shown:
        lines = {f"warp {number}": lines_of(warp.steps, source) for number, warp in block.timing.warps.items()}
        for bar in block.timing.bars:
            kind = {TMA: "load in flight", TENSOR_CORES: "product in flight"}.get(bar.lane, bar.what)
            if kind == "products":
                kind = WORK_OF["output"]
            first, last = lines[bar.lane][bar.step] if bar.lane in lines else (0, 0)
            begin, end = round(block.begin + bar.begin), round(block.begin + bar.end)
            if end > begin:
                bars.append((begin, number_of[bar.lane], end - begin, KINDS.index(kind), first, last))
    bars.sort()
    names = ("begin", "lane", "length", "kind", "from", "to")
    return lanes, {name: [bar[column] for bar in bars] for column, name in enumerate(names)}


def lines_of(steps: list[Step], source: str) -> list[tuple[int, int]]:
    """Of each step the first and the last line of the source that lead to it. After a jump back, where a loop begins anew,
    only its own."""
    found, before = [], 0
    for step in steps:
        line = step.line if step.file and source.endswith(step.file) else before
        found.append((before if 0 < before <= line else line, line))
        before = line
    return found


def row_of(blocks: list[Block], trace: dict[str, Any], sequences: list[Sequence]) -> tuple[Block, dict[str, Any]] | None:
    """The block that computes the row that was followed, and what becomes of m, l and O~ of it; None: nothing was shown.

    m and l are shown with a key of their tile. O~ is shown without: its last value is of the last tile, the one before of
    the tile before. (Where products overlap, the block may have come to the next tile by then.)"""
    # A tile may reach behind its sequence: what it has there is nothing of the rows that follow.
    mine = sequence_with(sequences, trace["row"])
    here = [block for block in blocks if min((part[3] for part in block.trace["parts"]), default=mine.row0) >= mine.row0]
    shown = sorted(((done, block.index, one) for block in here for _, step, _, done in block.steps() for one in step.shown),
                   key=lambda one: one[0])
    if not shown:
        return None
    ranges: dict[tuple[int, int], list[int]] = {}  # by tile: the keys
    for block in here:
        for _, tile, head, first_row, last_row, first_key, last_key in block.trace["parts"]:
            if head == trace["head"] and first_row <= trace["row"] <= last_row:
                end_key = min(last_key + 1, mine.key1)
                keys = ranges.setdefault((block.index, tile), [first_key, end_key])
                keys[:] = [min(keys[0], first_key), max(keys[1], end_key)]
    keys = [ranges[tile] for tile in sorted(ranges)] or [[0, 0]]
    left = Counter(column for _, _, (name, column, _) in shown if name[0] == "O")
    values: list[dict[Any, float | None]] = [{} for _ in keys]
    times = [0.0] * len(keys)
    for done, _, (name, column, value) in shown:
        if name[0] == "O":
            tile, key = max(0, len(keys) - left[column]), column
            left[column] -= 1
        else:
            tile, key = next((n for n, (j0, j1) in enumerate(keys) if j0 <= column < j1), len(keys) - 1), name[0]
        values[tile][key] = value
        times[tile] = max(times[tile], done)
    steps, known = [], {}
    for (j0, j1), time, more in zip(keys, times, values):
        known |= more
        columns = sorted(column for column in known if isinstance(column, int))[:MOST_COLUMNS]
        if more:
            steps.append([round(time), j0, j1, known.get("m"), known.get("l"), [known[column] for column in columns] or None])
    names = [name for _, _, (name, _, _) in shown]
    return blocks[shown[-1][1]], {"head": trace["head"], "row": trace["row"], "steps": steps,
                                  "names": [next((name for name in names if name[0] == letter), letter) for letter in "mlO"]}


def together(rungs: list[dict[str, Any]], gpu: str = "") -> dict[str, Any]:
    """The whole of what the page reads, in the time of a GPU's stamps or, without one, of the model."""
    time = MEASURED.format(gpu=gpu) if gpu else MODEL.format(multiprocessors=rungs[0]["multiprocessors"])
    return {"format": FORMAT, "end": max(rung["end"] for rung in rungs), "clocks": f"clocks {'stamped' if gpu else 'of the model'}",
            "time": time, "rungs": rungs}
