"""A model of time: what the units of a multiprocessor do while a block runs, in clocks.

The emulator tells what each warp of a block does, step by step (./ladder ledger 44 --json --trace): which products it
begins, what it loads, what it waits for, how many operations it computes in between. The model gives each step a time.
It is a list schedule: warps do their steps in order, and each unit does what comes first:

- a tensor core, one for each four warps: N / 2 clocks for a wgmma of N columns, one behind the other; {mma} FLOPs a
  clock for the smaller products of a warp (mma);
- special functions: 8 clocks for an exponential of a warp; one instruction a clock for all others that count on f32;
- shared memory: {shared} bytes a clock, for the multiprocessor;
- global memory: {bandwidth} bytes a clock, which come {latency} clocks after they were asked for. Loads wait for them,
  asynchronous copies (cp.async) and TMA do not; nobody waits for stores;
- {handover} clocks from the last who comes to a barrier, or the end of a product, to the first step behind it.

Of a cluster each block is modelled by itself: what the others say and bring is there when its own part is.

What the compiler reorders, conversions, addresses, the banks of shared memory, caches and clocks that change are not in
it. It shows who waits for whom. It is no measurement, and no prediction of a speed.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from common.course.registry import Failure

BANDWIDTH, LATENCY, HANDOVER = 64, 600, 30  # of global memory: bytes a clock of a multiprocessor, clocks; clocks
SHARED_BANDWIDTH = 128  # bytes a clock
MMA_FLOPS = 512  # a clock, of a tensor core
SCHEDULERS = 4  # of a multiprocessor, each with a tensor core: warp w is on w % 4
CLUSTER = 16  # the barrier of all blocks of a cluster
SLICE = 8  # exponentials that a warp computes before another one of its scheduler may
__doc__ = __doc__.format(mma=MMA_FLOPS, shared=SHARED_BANDWIDTH, bandwidth=BANDWIDTH, latency=LATENCY, handover=HANDOVER)

# What a bar shows that a warp waits for.
FOR_DATA, AT_BARRIER, FOR_PRODUCT = "waits for data", "waits at a barrier", "waits for a product"
WAITS = (FOR_DATA, AT_BARRIER, FOR_PRODUCT)
LOADS, STORES, PRODUCTS, OTHER = "loads", "stores", "products", "other work"
WORK_OF = {"scores": "S = Q K^T", "softmax": "softmax", "output": "O = P V"}  # that a step of this name ends
TENSOR_CORES, TMA = "tensor cores", "TMA"


@dataclass
class Step:
    """What a warp did, as common/simt/trace.hpp has it."""

    warp: int
    name: str
    instructions: int = 0
    exponentials: int = 0
    a: int = 0
    b: int = 0
    bytes: int = 0
    file: str = ""
    line: int = 0
    counted: dict[str, int] = field(default_factory=dict)
    touched: list[tuple[int, int, int, int]] = field(default_factory=list)  # slot, use, first byte, last byte
    shown: list[tuple[str, int, float | None]] = field(default_factory=list)  # name, column, value

    def bytes_of(self, memory: str, *ways: str) -> int:
        return sum(more for counter, more in self.counted.items()
                   if counter.startswith(memory) and counter.endswith(tuple(f".{way}_bytes" for way in ways)))


def steps_of(trace: dict[str, Any], block: dict[str, Any]) -> list[Step]:
    """The steps of a block of a trace."""
    def threes(flat: list[Any]) -> list[tuple[Any, ...]]:
        return list(zip(*[iter(flat)] * 3))

    def by_name(flat: list[int]) -> dict[str, int]:
        found: dict[str, int] = {}
        for counter, more in zip(flat[::2], flat[1::2]):  # each block of a cluster has arrays of these names
            name = trace["counters"][counter]
            found[name] = found.get(name, 0) + more
        return found

    return [Step(warp, trace["names"][kind], instructions, exponentials, a, b, size, trace["files"][file], line, by_name(counted),
                 list(zip(*[iter(touched)] * 4)), threes(shown))
            for kind, warp, file, line, instructions, exponentials, a, b, size, counted, touched, shown in block["steps"]]


def likeness(steps: list[Step]) -> int:
    """Equal for blocks whose steps take the same time."""
    return hash(tuple((step.warp, step.name, step.instructions, step.exponentials, step.a, step.b, step.bytes,
                       tuple(sorted(step.counted.items()))) for step in steps))


@dataclass
class Bar:
    """What a warp or a unit does from one time to another."""

    lane: str  # "warp 4", "tensor cores", "TMA"
    what: str  # one of WAITS, what a warp works on, or who a product is of
    begin: float
    end: float
    step: int = -1  # of the warp: at, or before, which one


@dataclass
class Warp:
    """Where a warp is in its steps."""

    steps: list[Step]
    at: int = 0
    left: "Work | None" = None  # of the next step: what is still to be done; None: it has not been looked at
    products: float = 0  # clocks of wgmmas since the last commit
    groups: list[float] = field(default_factory=list)  # when those under way end
    copies: float = 0  # when the asynchronous copies since the last commit arrive
    copy_groups: list[float] = field(default_factory=list)  # likewise, of its groups
    done: list[float] = field(default_factory=list)  # by step: when it was
    travels: dict[int, tuple[float, float]] = field(default_factory=dict)  # likewise: what it reads or writes globally


@dataclass
class Work:
    """What stands before a step, in clocks of its units."""

    instructions: float
    exponentials: float
    shared: float
    tensor: float
    what: str

    def rest(self) -> bool:
        return max(self.instructions, self.exponentials, self.shared, self.tensor) > 1e-9


class Timing:
    """When the warps of a block did their steps. `bars` are what was done when, `end` is when the last warp has ended."""

    def __init__(self, steps: Iterable[Step]):
        self.warps: dict[int, Warp] = {}
        for step in steps:
            self.warps.setdefault(step.warp, Warp([])).steps.append(step)
        self.wgmma = any(step.name == "wgmma" for warp in self.warps.values() for step in warp.steps)  # not products of a warp
        self.bars: list[Bar] = []
        self.last_bar: dict[str, Bar] = {}
        self.products: list[tuple[float, float, int]] = []  # on the first tensor core: from, to, warp
        self.end = 0.0

    def of(self, steps: Iterable[Step]) -> "Timing":
        """The same times of the steps of another block, which differ in nothing that the time depends on (likeness)."""
        twin = copy(self)
        twin.warps = {number: replace(warp, steps=[]) for number, warp in self.warps.items()}
        for step in steps:
            twin.warps[step.warp].steps.append(step)
        return twin

    def show(self, lane: str, what: str, begin: float, end: float, step: int = -1) -> None:
        if end <= begin:
            return
        last = self.last_bar.get(lane)
        if last is not None and last.what == what and last.end == begin and last.step == step:
            last.end = end
        else:
            self.last_bar[lane] = Bar(lane, what, begin, end, step)
            self.bars.append(self.last_bar[lane])

    def work_before(self, step: Step) -> str:
        """What the warp works on before this step."""
        flops = step.counted.get("flops_cuda_cores") or (not self.wgmma and step.counted.get("flops_tensor_cores"))
        return WORK_OF.get(step.name) or (
            PRODUCTS if flops else WORK_OF["softmax"] if step.exponentials
            else LOADS if step.bytes_of("global.", "read") and step.name != "load"
            else STORES if step.bytes_of("global.", "written", "atomic") else OTHER)


class Model(Timing):
    """Runs the steps of a block."""

    def __init__(self, steps: Iterable[Step]):
        super().__init__(steps)
        self.missing = defaultdict(int)  # by mbarrier and phase: arrivals and loads to come
        for warp in self.warps.values():
            for step in warp.steps:
                if step.name in ("mbarrier_arrive", "load"):
                    self.missing[step.a, step.b] += 1
        self.known = defaultdict(float)  # by mbarrier and phase, or barrier: the time of what has come so far
        self.came = defaultdict(int)  # by barrier: warps
        self.waiting = defaultdict(list)  # likewise: (warp, since when, for what)
        self.free = defaultdict(float)  # by unit: when it is free
        self.ready = [(0.0, number) for number in self.warps]
        heapq.heapify(self.ready)
        while self.ready:
            time, number = heapq.heappop(self.ready)
            self.go_on(number, time)

    @property
    def stuck(self) -> int | None:
        """A warp that waits for what does not come."""
        return next((number for number, warp in self.warps.items() if warp.at < len(warp.steps)), None)

    def require_end(self) -> "Model":
        """Itself. A Failure where a warp waits for ever."""
        if self.stuck is not None:
            raise Failure(f"the model is stuck: warp {self.stuck} waits for what does not come")
        return self

    def let_go(self, key: object) -> None:
        """All that this phase, or barrier, takes has come."""
        for number, since, what in self.waiting.pop(key, []):
            time = max(since, self.known[key] + HANDOVER)
            warp = self.warps[number]
            self.show(f"warp {number}", what, since, time, warp.at - 1)
            warp.done[-1] = time
            heapq.heappush(self.ready, (time, number))

    def arrive(self, key: object, time: float) -> None:
        self.known[key] = max(self.known[key], time)
        self.missing[key] -= 1
        if self.missing[key] == 0:
            self.let_go(key)

    def begin(self, number: int, warp: Warp, time: float) -> float:
        """Looks at what stands before the next step; makes its accesses to global memory. The time when they are over."""
        step = warp.steps[warp.at]
        read = 0 if step.name == "load" else step.bytes_of("global.", "read")
        copied = min(read, 16 * step.counted.get("async_copies", 0))
        written = step.bytes_of("global.", "written", "atomic")
        shared = 0 if step.name == "load" else step.bytes_of("shared.", "read", "written")
        shared -= step.counted.get("wgmma_read_bytes", 0)
        flops = 0 if self.wgmma else step.counted.get("flops_tensor_cores", 0)
        warp.left = Work(step.instructions, step.exponentials, max(shared, 0) / SHARED_BANDWIDTH, flops / MMA_FLOPS,
                         self.work_before(step))
        if read or written:
            begin = max(time, self.free["memory"])
            asked = self.free["memory"] = begin + (read + written) / BANDWIDTH
            warp.travels[warp.at] = (begin, asked + LATENCY if read else asked)
            if copied:
                warp.copies = max(warp.copies, asked + LATENCY)
            if read > copied:
                self.show(f"warp {number}", LOADS, time, asked, warp.at)
                self.show(f"warp {number}", FOR_DATA, asked, asked + LATENCY, warp.at)
                return asked + LATENCY
        return time

    def compute(self, number: int, warp: Warp, time: float) -> None:
        """A slice of what stands before the next step: on the units, as they come free."""
        left, scheduler = warp.left, number % SCHEDULERS
        slices = max(left.exponentials / SLICE, left.instructions / (8 * SLICE), left.shared / (8 * SLICE), left.tensor / (8 * SLICE))
        part = min(1.0, 1 / slices) if slices else 1.0
        ends = [time]
        for unit, clocks in ((("issue", scheduler), left.instructions + left.exponentials),
                             (("special", scheduler), 8 * left.exponentials), ("shared", left.shared),
                             (("tensor", scheduler), left.tensor)):
            if clocks:
                self.free[unit] = max(time, self.free[unit]) + clocks * part
                ends.append(self.free[unit])
        for name in ("instructions", "exponentials", "shared", "tensor"):
            setattr(left, name, getattr(left, name) * (1 - part))
        self.show(f"warp {number}", left.what, time, max(ends), warp.at)
        heapq.heappush(self.ready, (max(ends), number))

    def go_on(self, number: int, time: float) -> None:
        """The warp's next step, or a part of what it computes before."""
        warp = self.warps[number]
        if warp.at == len(warp.steps):
            self.end = max(self.end, time)
            return
        if warp.left is None:
            later = self.begin(number, warp, time)
            if later > time:
                heapq.heappush(self.ready, (later, number))
                return
        if warp.left.rest():
            self.compute(number, warp, time)
            return
        step, lane = warp.steps[warp.at], f"warp {number}"
        key, at = (step.a, step.b), warp.at
        warp.left = None
        warp.at += 1
        warp.done.append(time)
        if step.name == "mbarrier_wait":
            if self.missing[key] > 0:
                self.waiting[key].append((number, time, FOR_DATA))
                return
            time = self.wait(lane, FOR_DATA, time, self.known[key] + HANDOVER, at)
        elif step.name == "mbarrier_arrive":
            self.arrive(key, time)
        elif step.name == "load":
            begin = max(time, self.free["memory"])
            self.free["memory"] = begin + step.bytes / BANDWIDTH
            self.show(TMA, "load", begin, self.free["memory"])
            warp.travels[at] = (begin, self.free["memory"] + LATENCY)
            self.arrive(key, self.free["memory"] + LATENCY)
        elif step.name == "wgmma":
            warp.products += step.a / 2
        elif step.name == "commit":
            unit = ("tensor", number % SCHEDULERS)
            begin = max(time, self.free[unit])
            self.free[unit] = begin + warp.products
            if number % SCHEDULERS == 0:
                self.show(TENSOR_CORES, lane, begin, self.free[unit])
                self.products.append((begin, self.free[unit], number))
            warp.groups.append(self.free[unit])
            warp.products = 0
        elif step.name == "wait_groups" and len(warp.groups) > step.a:
            time = self.wait(lane, FOR_PRODUCT, time, warp.groups[-1 - step.a] + HANDOVER, at)
            warp.groups = warp.groups[len(warp.groups) - step.a:] if step.a else []
        elif step.name == "copy_commit":
            warp.copy_groups.append(warp.copies)
            warp.copies = 0
        elif step.name == "copy_wait" and len(warp.copy_groups) > step.a:
            time = self.wait(lane, FOR_DATA, time, max(warp.copy_groups[:len(warp.copy_groups) - step.a]), at)
            warp.copy_groups = warp.copy_groups[len(warp.copy_groups) - step.a:] if step.a else []
        elif step.name in ("barrier", "barrier_arrive"):
            key = ("barrier", step.a)
            self.known[key] = max(self.known[key], time)
            self.came[key] += 1
            if step.name == "barrier":
                self.waiting[key].append((number, time, AT_BARRIER))
            if self.came[key] == (len(self.warps) if step.a == CLUSTER else step.b):
                self.came[key] = 0
                self.let_go(key)
                self.known[key] = 0
            if step.name == "barrier":
                return
        warp.done[-1] = time
        heapq.heappush(self.ready, (time, number))

    def wait(self, lane: str, what: str, time: float, until: float, step: int) -> float:
        """The time when a warp goes on."""
        self.show(lane, what, time, until, step)
        return max(time, until)
