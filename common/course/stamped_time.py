"""When the warps of a block did their steps on a GPU, by the clock stamps that bench.measure.stamps takes.

A stamp is written at each instruction of common/ptx that waits, arrives, loads or begins products, and at the end of each
wait (common/ptx/stamp.hpp). What a warp does in between, and when a unit has done what it was told, has no stamp:

- the steps between two stamps share the time between them, by what they compute;
- a product is under way from when it may begin until its warp knows that it has ended; of several on a tensor core the one
  that ends first is shown;
- a load travels until the first warp that waits for it goes on, at the latest: TMA has no bars;
- what comes behind a warp's last stamp, such as storing O, takes no time here;
- clock 0 is the first stamp of the block.
"""

from collections.abc import Iterable

from bench.results.stamps import OPTIONS, Stamps
from common.course.ledger import answer
from common.course.registry import Failure, program
from common.course.time_model import AT_BARRIER, FOR_DATA, FOR_PRODUCT, SCHEDULERS, TENSOR_CORES, Step, Timing, Warp, steps_of

FENCE, GOES_ON = "fence", "goes_on"  # stamps that are no steps
WAITS_FOR = {"mbarrier_wait": FOR_DATA, "barrier": AT_BARRIER, "wait_groups": FOR_PRODUCT}
STAMPED = {"mbarrier_arrive", "load", "commit", "barrier_arrive", *WAITS_FOR}
EXPONENTIAL = 8  # clocks of a warp, where another operation takes one


def first_block(number: int) -> list[Step]:
    """The steps of a stage's first block on the emulator, at the problem of the stamps."""
    trace = answer(program(), ["ledger", str(number), *OPTIONS, "--trace"])["stages"][0]["trace"]
    return steps_of(trace, trace["launches"][-1]["blocks"][0])


class Stamped(Timing):
    """The steps of a block in the time of its stamps. A Failure where the stamps are of other steps."""

    def __init__(self, steps: Iterable[Step], stamps: Stamps):
        super().__init__(steps)
        first = min(clock for of_warp in stamps.values() for _, clock in of_warp)
        self.loads: list[tuple[float, int, int, tuple[int, int]]] = []  # when, by which warp, its step, what it arrives at
        self.arrived: dict[tuple[int, int], float] = {}  # by mbarrier and phase: when the first who waits goes on
        self.products: list[tuple[float, float, int]] = []  # on the first tensor core: from, to, warp
        for number, warp in self.warps.items():
            self.place(number, warp, [(name, float(clock - first)) for name, clock in stamps.get(number, [])])
        self.show_units()

    def place(self, number: int, warp: Warp, stamps: list[tuple[str, float]]) -> None:
        """Gives each step of a warp its time."""
        at, time, fence, groups = 0, 0.0, None, []  # of the stamps the next; now; when products may begin; the groups under way
        between: list[int] = []  # steps since the last stamp
        for index, step in enumerate(warp.steps):
            between.append(index)
            if not is_stamped(step):
                continue
            while at < len(stamps) and (stamps[at][0] == FENCE or needs_no_wait(stamps[at][0], step)):
                if stamps[at][0] == FENCE:
                    fence, at = stamps[at][1], at + 1
                else:
                    at += 2  # and where it goes on
            if at == len(stamps) or stamps[at][0] != step.name:
                found = stamps[at][0] if at < len(stamps) else "nothing"
                raise Failure(f"the stamps are of another kernel: warp {number} has stamped {found} where the emulator's does "
                              f"{step.name}, its step {index}")
            begin = stamps[at][1]
            at += 1
            self.share(number, warp, between, time, begin)
            between, time = [], begin
            if step.name in WAITS_FOR:
                if at == len(stamps) or stamps[at][0] != GOES_ON:
                    raise Failure(f"the stamps are of another kernel: warp {number} does not go on behind its step {index}")
                time = stamps[at][1]
                at += 1
                self.show(f"warp {number}", WAITS_FOR[step.name], begin, time, index)
                warp.done[-1] = time
            if step.name == "mbarrier_wait":
                self.arrived[step.a, step.b] = min(self.arrived.get((step.a, step.b), time), time)
            elif step.name == "load":
                self.loads.append((time, number, index, (step.a, step.b)))
            elif step.name == "commit":
                groups.append(begin if fence is None else fence)
                fence = None
            elif step.name == "wait_groups":
                ended = groups[:max(len(groups) - step.a, 0)]
                groups = groups[len(ended):]
                self.products += [(since, time, number) for since in ended if number % SCHEDULERS == 0]
        if at < len(stamps):
            raise Failure(f"the stamps are of another kernel: warp {number} has stamped {stamps[at][0]} behind its last step")
        self.share(number, warp, between, time, time)
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


def is_stamped(step: Step) -> bool:
    """Whether the step is an instruction of common/ptx: the barrier of the whole block, number 0, is none."""
    return step.name in STAMPED and not (step.name == "barrier" and step.a == 0)


def needs_no_wait(stamp: str, step: Step) -> bool:
    """Whether a stamp is of a wait for the phase before the first, which is no step: nothing has to come."""
    return stamp == "mbarrier_wait" and step.name != stamp
