"""When the warps of a block did their steps on a GPU, by the clock stamps that bench.measure.stamps takes.

A stamp is written at each instruction of common/ptx that waits, arrives, loads or begins products, and at the end of each
wait (common/ptx/stamp.hpp). What a warp does in between, and when a unit has done what it was told, has no stamp:

- the steps between two stamps share the time between them, by what they compute;
- a product is under way from when it may begin until its warp knows that it has ended; of several on a tensor core the one
  that ends first is shown;
- a load travels until the first warp that waits for it goes on, at the latest: TMA has no bars;
- a named barrier is passed when the last warp has come, and not before: on a GPU a warp goes on behind its barrier up to where
  it needs it, so that the stamp behind a barrier comes too early;
- what comes behind a warp's last stamp, such as storing O, takes no time here;
- clock 0 is the first stamp of the block.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from bench.results.stamps import OPTIONS, Stamps
from common.course.ledger import answer
from common.course.registry import Failure, program
from common.course.time_model import (AT_BARRIER, CLUSTER, FOR_DATA, FOR_PRODUCT, SCHEDULERS, TENSOR_CORES, Step, Timing, Warp,
                                      steps_of)

FENCE, GOES_ON = "fence", "goes_on"  # stamps that are no steps
WAITS_FOR = {"mbarrier_wait": FOR_DATA, "barrier": AT_BARRIER, "wait_groups": FOR_PRODUCT}
STAMPED = {"mbarrier_arrive", "load", "commit", "barrier_arrive", *WAITS_FOR}
BARRIERS = {"barrier", "barrier_arrive"}
EXPONENTIAL = 8  # clocks of a warp, where another operation takes one


def first_block(number: int) -> list[Step]:
    """The steps of a stage's first block on the emulator, at the problem of the stamps."""
    trace = answer(program(), ["ledger", str(number), *OPTIONS, "--trace"])["stages"][0]["trace"]
    return steps_of(trace, trace["launches"][-1]["blocks"][0])


@dataclass
class Found:
    """The stamps of a step."""

    step: int  # of its warp
    begin: float  # when the warp came to it
    goes_on: float | None  # of a wait: when it had ended
    fence: float | None  # that stands before: when products may begin


class Stamped(Timing):
    """The steps of a block in the time of its stamps. A Failure where the stamps are of other steps."""

    def __init__(self, steps: Iterable[Step], stamps: Stamps):
        super().__init__(steps)
        first = min(clock for of_warp in stamps.values() for _, clock in of_warp)
        self.loads: list[tuple[float, int, int, tuple[int, int]]] = []  # when, by which warp, its step, what it arrives at
        self.arrived: dict[tuple[int, int], float] = {}  # by mbarrier and phase: when the first who waits goes on
        self.passed: dict[tuple[int, int], float] = {}  # by named barrier and use: when the last warp has come
        found = {number: matched(number, warp.steps, [(name, float(clock - first)) for name, clock in stamps.get(number, [])])
                 for number, warp in self.warps.items()}
        for number, of_warp in found.items():
            for own in of_warp:
                if (use := self.use(number, own.step)) is not None:
                    self.passed[use] = max(self.passed.get(use, 0.0), own.begin)
        for number, warp in self.warps.items():
            self.place(number, warp, found[number])
        self.show_units()

    def use(self, number: int, step: int) -> tuple[int, int] | None:
        """The named barrier that a warp comes to in a step, and for which time: a warp comes to each once in a phase."""
        steps = self.warps[number].steps
        if steps[step].name not in BARRIERS:
            return None
        return steps[step].a, sum(one.name in BARRIERS and one.a == steps[step].a for one in steps[:step])

    def place(self, number: int, warp: Warp, found: list[Found]) -> None:
        """Gives each step of a warp its time."""
        time, behind, groups = 0.0, 0, []  # now; the first step behind the last stamp; when the groups under way began
        for own in found:
            step = warp.steps[own.step]
            self.share(number, warp, list(range(behind, own.step + 1)), time, own.begin)
            time, behind = own.begin, own.step + 1
            if own.goes_on is not None:
                use = self.use(number, own.step)
                time = own.goes_on if use is None else max(own.goes_on, self.passed[use])
                self.show(f"warp {number}", WAITS_FOR[step.name], own.begin, time, own.step)
                warp.done[-1] = time
            if step.name == "mbarrier_wait":
                self.arrived[step.a, step.b] = min(self.arrived.get((step.a, step.b), time), time)
            elif step.name == "load":
                self.loads.append((time, number, own.step, (step.a, step.b)))
            elif step.name == "commit":
                groups.append(own.begin if own.fence is None else own.fence)
            elif step.name == "wait_groups":
                ended = groups[:max(len(groups) - step.a, 0)]
                groups = groups[len(ended):]
                self.products += [(since, time, number) for since in ended if number % SCHEDULERS == 0]
        self.share(number, warp, list(range(behind, len(warp.steps))), time, time)
        self.end = max(self.end, time)

    def share(self, number: int, warp: Warp, steps: list[int], begin: float, end: float) -> None:
        """Spreads steps over a time, by what stands before each."""
        weights = [1 + warp.steps[at].instructions + EXPONENTIAL * warp.steps[at].exponentials for at in steps]
        done = begin
        for at, weight in zip(steps, weights):
            before, done = done, done + (end - begin) * weight / sum(weights)
            self.show(f"warp {number}", self.work_before(warp.steps[at]), before, done, at)
            warp.done.append(done)
            if warp.steps[at].name != "load" and warp.steps[at].bytes_of("global.", "read", "written", "atomic"):
                warp.travels[at] = (before, done)

    def show_units(self) -> None:
        """How long loads travel, and which product is under way on the first tensor core."""
        for begin, number, at, key in self.loads:
            self.warps[number].travels[at] = (begin, max(begin, self.arrived.get(key, begin)))
        products = sorted(self.products, key=lambda one: one[1])
        times = sorted({time for begin, end, _ in products for time in (begin, end)})
        for begin, end in zip(times, times[1:]):
            first = next((number for since, until, number in products if since <= begin and until >= end), None)
            if first is not None:
                self.show(TENSOR_CORES, f"warp {first}", begin, end)


def matched(number: int, steps: list[Step], stamps: list[tuple[str, float]]) -> list[Found]:
    """The stamps of each step of a warp that has some. A Failure where they are of other steps."""
    at, fence, found = 0, None, []  # of the stamps the next; when products may begin
    for index, step in enumerate(steps):
        if not is_stamped(step):
            continue
        while at < len(stamps) and (stamps[at][0] == FENCE or needs_no_wait(stamps[at][0], step)):
            if stamps[at][0] == FENCE:
                fence, at = stamps[at][1], at + 1
            else:
                at += 2  # and where it goes on
        if at == len(stamps) or stamps[at][0] != step.name:
            stamped = stamps[at][0] if at < len(stamps) else "nothing"
            raise Failure(f"the stamps are of another kernel: warp {number} has stamped {stamped} where the emulator's does "
                          f"{step.name}, its step {index}")
        own = Found(index, stamps[at][1], None, fence)
        at += 1
        if step.name in WAITS_FOR:
            if at == len(stamps) or stamps[at][0] != GOES_ON:
                raise Failure(f"the stamps are of another kernel: warp {number} does not go on behind its step {index}")
            own.goes_on = stamps[at][1]
            at += 1
        if step.name == "commit":
            fence = None
        found.append(own)
    if at < len(stamps):
        raise Failure(f"the stamps are of another kernel: warp {number} has stamped {stamps[at][0]} behind its last step")
    return found


def is_stamped(step: Step) -> bool:
    """Whether the step is an instruction of common/ptx that has a stamp: the barriers of the whole block, and of the
    cluster, have none."""
    return step.name in STAMPED and not (step.name == "barrier" and step.a in (0, CLUSTER))


def needs_no_wait(stamp: str, step: Step) -> bool:
    """Whether a stamp is of a wait for the phase before the first, which is no step: nothing has to come."""
    return stamp == "mbarrier_wait" and step.name != stamp
