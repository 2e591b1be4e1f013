"""What is known of two stages beside their code: what the ledger counts, what a GPU or a CPU measured.

Counts are asked of the program at each call. Measurements are those under bench/results: a GPU's runs over the papers'
grid, and for stages on a CPU the committed climb.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from bench.results import gpu
from common.course import ledger
from common.course.registry import ROOT, Failure, Stage, program

CPU_RESULTS = ROOT / "bench/results/cpu/climb.json"
WAVEFRONTS = "wavefronts / ideal"


@dataclass(frozen=True)
class Count:
    """A counter of both stages, and the closed forms that their claims give it ("" where a claim does not)."""

    counter: str
    before: float
    after: float
    form_before: str = ""
    form: str = ""
    claimed: bool = False  # by the later stage

    @property
    def form_shown(self) -> str:
        """The later stage's closed form; of what is gone without one, what it was."""
        return self.form or (f"{self.form_before}, before" if self.form_before and not self.after else "")

    @property
    def factor(self) -> float:
        """How many times as much: 0 where it is gone, infinite where it is new."""
        return self.after / self.before if self.before else float("inf")

    @property
    def change(self) -> float:
        """The factor up or down, whichever is above 1."""
        return max(self.factor, 1 / self.factor) if self.factor else float("inf")

    @property
    def ratio(self) -> str:
        """× 2, ÷ 1.78, new, gone, as in the tables of the READMEs."""
        if 1000 <= self.change < float("inf"):
            return f"{'×' if self.factor > 1 else '÷'} {self.change:,.0f}"
        return ledger.ratio(self.before, self.after)


@dataclass(frozen=True)
class Counts:
    """The counters that differ, the largest change first."""

    source: str  # the command, or what else they are from
    changed: list[Count]
    equal: int = 0  # counters that are the same in both, and not 0
    problem: str = ""  # why there are none

    @property
    def most_telling(self) -> Count | None:
        """Of what the later stage claims, what falls most, and where nothing falls, what rises most. ÷ 256 is as good
        as gone; of equal changes the one of the largest count."""
        chosen = [count for count in self.changed if count.claimed] or self.changed
        fallen = [count for count in chosen if count.after < count.before]
        return max(fallen or chosen, default=None,
                   key=lambda count: (min(count.change, 256), max(count.before, count.after)))


def counts_of(before: Stage, after: Stage) -> Counts:
    """What the ledger says of two stages of kernels; of two on a CPU, their extra memory."""
    on_cpu = [stage.label for stage in (before, after) if stage.backend == "cpu"]
    if len(on_cpu) == 2:
        return counts_on_cpu(before, after)
    if on_cpu:
        return Counts("", [], problem=f"{on_cpu[0]} runs on a CPU and has no ledger to compare with.")
    numbers = sorted((before.number, after.number))
    try:
        later = max(before, after, key=lambda stage: stage.number)
        more = ledger.options_of(later, before.forward and after.forward)
        # --banks, because a claim may be about bank conflicts.
        stages, command = ledger.ledgers(program(), numbers, [*more, "--banks"])
        if before.number > after.number:
            stages.reverse()
        forms = [ledger.forms_of(stage) for stage in stages]
    except Failure as failure:
        return Counts("", [], problem=f"The ledger gives no answer: {failure}.")
    claimed, others = ledger.counters(stages, forms)
    counted = []
    for counter in claimed + others:
        if "sectors" in counter or "distinct" in counter:
            continue  # the bytes say what matters
        values = [ledger.count(stage, of_stage, counter) for stage, of_stage in zip(stages, forms)]
        texts = [of_stage[counter]["text"] if counter in of_stage else "" for of_stage in forms]
        if any(values):
            counted.append(Count(counter, *values, *texts, claimed=counter in forms[1]))
    conflicts = [wavefronts(stage) for stage in stages]
    if all(conflicts):
        # A claim that is a test, not a closed form of claim.cpp.
        counted.append(Count(WAVEFRONTS, *conflicts, claimed=conflicts[1] == 1))
    return sorted_counts(command, counted)


def sorted_counts(source: str, counted: list[Count]) -> Counts:
    changed = [count for count in counted if count.before != count.after]
    changed.sort(key=lambda count: (-count.change, -max(count.before, count.after)))
    return Counts(source, changed, len(counted) - len(changed))


def wavefronts(stage: dict) -> float:
    """Passes over the banks of shared memory, all arrays together, over those that would do; 0 if there are none."""
    made, ideal = (sum(value for name, value in stage["counts"].items()
                       if name.startswith("shared.") and name.endswith(end))
                   for end in (".wavefronts", ".ideal_wavefronts"))
    return made / ideal if ideal else 0.0


def counts_on_cpu(before: Stage, after: Stage) -> Counts:
    climb = json.loads(CPU_RESULTS.read_text())
    results = {stage["number"]: stage["masks"]["full"] for stage in climb["stages"]}
    extra = {number: result["extra_bytes"] for number, result in results.items() if result["status"] == "passed"}
    if before.number not in extra or after.number not in extra:
        return Counts("", [], problem="Stages on a CPU have no ledger, and the committed climb lacks one of the two.")
    return sorted_counts(f"{shown(CPU_RESULTS)}, as the workspace counts it; {climb['input']['problem']}",
                         [Count("extra memory, bytes", extra[before.number], extra[after.number], claimed=True)])


# --- Measurements -------------------------------------------------------------------------------------------------


@dataclass
class Measured:
    """Speeds of both stages, or times, by (d, mask) and N, the earlier one first; None where it was not measured."""

    unit: str = ""
    stages: tuple[str, str] = ("", "")
    dtypes: tuple[str, str] = ("", "")
    runs: tuple[str, str] = ("", "")  # machine, commit and file of each
    shapes: dict[tuple[int, str], dict[int, tuple[float | None, float | None]]] = field(default_factory=dict)
    problem: str = ""  # why there are none

    @property
    def where(self) -> str:
        """On which machine, at which commit, in one run or two."""
        if self.runs[0] == self.runs[1]:
            return f"both in one run, {' and '.join(dict.fromkeys(self.dtypes))}: {self.runs[0]}"
        return "in two runs, so that the ratio is to be taken with care: " + "; ".join(
            f"{stage} in {dtype}: {run}" for stage, dtype, run in zip(self.stages, self.dtypes, self.runs))

    @property
    def gains(self) -> list[float]:
        """Times as fast, over all shapes that both have."""
        return [self.gain(*pair) for by_N in self.shapes.values() for pair in by_N.values() if all(pair)]

    @property
    def shared_lengths(self) -> list[int]:
        """Each N at which both were measured, in some shape."""
        return sorted({N for by_N in self.shapes.values() for N, pair in by_N.items() if all(pair)})

    def gain(self, old: float, new: float) -> float:
        return old / new if self.unit == "ms" else new / old


def measured(before: Stage, after: Stage) -> Measured:
    """What was measured of both: on the GPU of kernels, by the committed climb on a CPU."""
    on_cpu = [stage.backend == "cpu" for stage in (before, after)]
    if any(on_cpu) and not all(on_cpu):
        return Measured(problem="One of them runs on a CPU, the other on a GPU.")
    try:
        if all(on_cpu):
            found = [timed_on_cpu(stage) for stage in (before, after)]
        else:  # of the pass that both have
            family = "grid" if before.forward and after.forward else "backward"
            paths = [gpu.HOPPER / gpu.HOPPER_PEERS, gpu.FOLDER / gpu.HOPPER_ODD]
            if family == "backward":
                paths = [gpu.FOLDER / name for name in (gpu.HOPPER_PERSISTENT, gpu.HOPPER_SAME_BITS, gpu.HOPPER_BACKWARD)]
            together = [[compared_with_peers(stage, path) for stage in (before, after)] for path in paths]
            found = next((both for both in together if None not in both), together[0])
            if None in found:
                runs = [run_of(stage, family) for stage in (before, after)]
                found = found if runs == [None, None] else runs
    except gpu.BadResult as bad:
        return Measured(problem=f"{bad}.")
    for stage, one in zip((before, after), found):
        if one is None:
            place = CPU_RESULTS if all(on_cpu) else gpu.FOLDER
            return Measured(problem=f"{stage.label} is not in {shown(place)}.")
    speeds = Measured("ms" if all(on_cpu) else "TFLOP/s", (before.digits, after.digits), (dtype(before), dtype(after)),
                      (found[0][0], found[1][0]))
    for kind in sorted({*found[0][1], *found[1][1]}, key=lambda kind: (kind[1] == "causal", kind[0])):
        old, new = (shapes.get(kind, {}) for _, shapes in found)
        speeds.shapes[kind] = {N: (old.get(N), new.get(N)) for N in sorted({*old, *new})}
    if not speeds.gains:
        speeds.problem = "No shape was measured of both."
    return speeds


Run = tuple[str, dict[tuple[int, str], dict[int, float]]]  # machine; by (d, mask) and N


def run_of(stage: Stage, family: str) -> Run | None:
    """The GPU's run that has this stage, in TFLOP/s; family: "grid" for the forward pass, "backward"."""
    for path in sorted(gpu.FOLDER.glob("*.json")):
        run = gpu.read(path)
        shapes: dict[tuple[int, str], dict[int, float]] = {}
        for one in run.results:
            if one.family == family and one.stage == stage.number and one.tflops:
                shapes.setdefault((one.d, one.mask), {})[one.N] = one.tflops
        if shapes:
            c = run.context
            return (f"{c['gpu']}, driver {c['driver']}, CUDA {c['cuda_of_build']}, commit {c['commit']} "
                    f"({shown(path)})", shapes)
    return None


def compared_with_peers(stage: Stage, path: Path) -> Run | None:
    """The run of the stages that need Hopper beside their peers, in TFLOP/s."""
    if not path.exists():
        return None
    data = gpu.load(path)
    shapes: dict[tuple[int, str], dict[int, float]] = {}
    for row in data["results"]:
        if row["name"] == f"stage {stage.number}" and "tflops" in row:
            shapes.setdefault((row["d"], "causal" if row["causal"] else "full"), {})[row["N"]] = row["tflops"]
    c = data["context"]
    return (f"{c['gpu']}, driver {c['driver']}, commit {c['commit']} ({shown(path)})", shapes) if shapes else None


def timed_on_cpu(stage: Stage) -> Run | None:
    """The committed climb, in ms."""
    climb = json.loads(CPU_RESULTS.read_text())
    c, problem = climb["machine"], climb["input"]
    for one in climb["stages"]:
        times = {(problem["d"], mask): {problem["Nq"]: result["time_ms"]["median"]}
                 for mask, result in one["masks"].items() if "time_ms" in result}
        if one["number"] == stage.number and times:
            return (f"{c['cpu']}, {c['threads']} threads, {c['compiler']}, commit {c['commit']} ({shown(CPU_RESULTS)})",
                    times)
    return None


def dtype(stage: Stage) -> str:
    """What a stage is timed in: fp32, or bf16 where it does not take that."""
    return "fp32" if "fp32" in stage.dtypes else "bf16"


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def value_text(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def times_text(gains: list[float]) -> str:
    """1.15x, or 1.12x to 1.18x."""
    texts = list(dict.fromkeys(f"{gain:.2f}x" if gain < 10 else f"{gain:.1f}x" for gain in (min(gains), max(gains))))
    return " to ".join(texts)


def kind_text(kind: tuple[int, str]) -> str:
    return f"d = {kind[0]}" + (", causal" if kind[1] == "causal" else "")
