"""What `./ladder bench` measured on a GPU, read from the JSON that it wrote."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "h200"
HOPPER_BACKWARD = "backward_hopper_bf16.json"  # the backward passes that need Hopper, the last that does not, and peers
HOPPER = FOLDER.parent / "h100_80gb_hbm3"  # all stages that need Hopper beside their peers, in one run; and the variants
HOPPER_PEERS = "peers_hopper_bf16.json"  # that run
HOPPER_OTHER = "other.json"  # the fastest of them on problems that are no whole tiles
HOPPER_ODD = "peers_hopper_odd_bf16.json"  # the last two forward where d is an odd multiple of 8
HOPPER_PERSISTENT = "backward_persistent_bf16.json"  # the backward pass whose blocks stay, and the one before
HOPPER_SAME_BITS = "backward_same_bits_bf16.json"  # the backward passes with the same bits every time, and the fastest
HOPPER_BUSY = "busy_bf16.json"  # the same with launches back to back
TOKENS, WIDTH = 16384, 2048  # batch * N and heads * d of the papers' grid
NAME = re.compile(r"(\d+) (\w+)/(grid|heads|backward)/d:(\d+)/N:(\d+)/BH:(\d+)/(full|causal)")
OTHER = re.compile(r"(\d+) \w+/other/(\w+)/d:(\d+)/N:(\d+)/BH:\d+/(full|causal)")
PEAK = re.compile(r"peak/(\w+)")
PACKAGES = "flash-attn", "flash-attn-4", "nvidia-cutlass-dsl"  # peers of their own, and the second's compiler
PACES = {"rested": "rested", "busy": "busy", None: "launches close together"}  # docs/measured.md says what each is
KINDS = [(64, "full"), (128, "full"), (256, "full"), (64, "causal"), (128, "causal"), (256, "causal")]


class BadResult(Exception):
    """One sentence for the user."""


@dataclass(frozen=True)
class Result:
    """A stage on one shape; of one that did not fit into memory, None and why. The grid's backward passes are a family."""

    stage: int
    name: str
    family: str  # "grid", "heads" or "backward"
    d: int
    N: int
    BH: int
    mask: str  # "full" or "causal"
    tflops: float | None
    spread: float | None  # half the interquartile range over the median
    dtype: str  # "fp32" or "bf16"
    why: str = ""


@dataclass(frozen=True)
class Run:
    """All of one file. Of the peaks those that were measured: gemm_bf16 and gemm_fp32 in TFLOP/s, copy in TB/s."""

    context: dict
    results: list[Result]
    peaks: dict[str, float]


def load(path):
    """The JSON of a file of results. Throws BadResult."""
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise BadResult(f"{path} cannot be read: {error.strerror}: bench.measure.measure_all writes it") from error
    except ValueError as error:
        raise BadResult(f"{path} is no JSON ({error}): measure it again, with bench.measure.measure_all") from error
    if not isinstance(data, dict):
        raise BadResult(f"{path} is no file of results: measure it again, with bench.measure.measure_all")
    return data


def read(path):
    """The run of a file; one without results where it is of another kind. Throws BadResult."""
    data = load(path)
    results, peaks = [], {}
    for one in data.get("benchmarks", []):
        stage, peak = NAME.match(one["name"]), PEAK.match(one["name"])
        failed = one.get("error_message", "") if one.get("error_occurred") else None
        if stage:
            number, name, family, d, N, BH, mask = stage.groups()
            value = positive(path, one, "TFLOP/s") if failed is None else None
            if not one.get("label"):
                raise BadResult(f"{path}: {one['name']} has no label with its dtype: measure it again")
            shape = int(d), int(N), int(BH), mask
            results.append(Result(int(number), name, family, *shape, value, spread(one), one["label"], failed or ""))
        elif peak and failed is None:
            peaks[peak[1]] = positive(path, one, "TB/s" if peak[1] == "copy" else "TFLOP/s")
    return Run(data.get("context", {}), results, peaks)


def others(path):
    """TFLOP/s of the stage that was measured on problems that are no whole tiles, by (what, d, N, mask), with its number and
    the run's context. Throws BadResult."""
    data = load(path)
    found, stages = {}, set()
    for one in data.get("benchmarks", []):
        if row := OTHER.match(one["name"]):
            stages.add(int(row[1]))
            found[row[2], int(row[3]), int(row[4]), row[5]] = positive(path, one, "TFLOP/s")
    require(path, len(stages) == 1)
    return stages.pop(), found, data["context"]


def spread(one):
    """Half the interquartile range of a row's times over their median; None where it has no quartiles."""
    if "ms_upper_quartile" not in one:
        return None
    return (one["ms_upper_quartile"] - one["ms_lower_quartile"]) / 2 / one["ms"]


def require(path, found):
    """Throws BadResult where a file has nothing of what it is for."""
    if not found:
        raise BadResult(f"{path} has no results in it: measure it again, with bench.measure.measure_all")


def positive(path, one, counter):
    value = one.get(counter)
    if not isinstance(value, float) or not 0 < value < float("inf"):  # NaN is not > 0
        raise BadResult(f"{path}: {counter} of {one['name']} is {value}, not a speed: measure it again")
    return value


class Measured:
    """One pass of a run: speeds by (stage, d, mask, N) over the papers' grid, and by (stage, N, heads) at fixed lengths,
    each a Result; the dtype of each stage."""

    def __init__(self, run, backward=False):
        self.context, self.peaks = run.context, run.peaks
        self.grid, self.heads, self.names, self.dtypes = {}, {}, {}, {}
        for one in run.results:
            if (one.family == "backward") != backward:
                continue
            self.names[one.stage], self.dtypes[one.stage] = one.name, one.dtype
            if one.family != "heads":
                self.grid[one.stage, one.d, one.mask, one.N] = one
            else:
                self.heads[one.stage, one.N, one.BH] = one

    @property
    def stages(self):
        """Their numbers, in order."""
        return sorted(self.names)

    @property
    def gpu(self):
        """And the pace at which it was measured."""
        return f"{self.context['gpu']}, {pace(self.context)}"

    def tflops(self, stage, d, mask, N):
        """None where it was not measured, or did not fit into memory."""
        one = self.grid.get((stage, d, mask, N))
        return one.tflops if one else None

    def over_heads(self, stage, N):
        """TFLOP/s by batch * heads at one length; empty where that was not measured."""
        return {BH: one.tflops for (number, length, BH), one in sorted(self.heads.items())
                if (number, length) == (stage, N) and one.tflops}

    def peak(self, stage):
        """TFLOP/s of the matrix product in the stage's dtype; None where that was not measured."""
        return self.peaks.get(f"gemm_{self.dtypes[stage]}")

    def gains(self, stage, before, N):
        """Times as fast as `before` at one N, over all d and masks; empty where `before` is None."""
        pairs = [(self.tflops(stage, *kind, N), self.tflops(before, *kind, N)) for kind in KINDS]
        return [mine / other for mine, other in pairs if mine and other]


def pace(context):
    """At which pace a run was measured; older ones do not say it."""
    return PACES[context.get("pace")]


def kind_text(d, mask):
    return f"d = {d}" + (", causal" if mask == "causal" else "")
