"""Clock stamps of the first block of stages, as bench.measure.stamps writes them to bench/results/GPU/stamps.json."""

from bench.results import gpu

Stamps = dict[int, list[tuple[str, int]]]  # by warp: what it came to, and the clock
FILE = "stamps.json"
TIME_LINES = [44, 45, 46]  # stages whose READMEs have one, beside that of the stage before
N, D, DTYPE = 2048, 64, "bf16"  # that they are of, without a mask
OPTIONS = ["--random", f"1,1,{N},{D}", "--dtype", DTYPE]  # the same block on the emulator; on the GPU there are more heads


def of_stage(number: int, folder=None) -> tuple[str, Stamps] | None:
    """The GPU, and the stamps of a stage; None where none were taken. Without a folder the first that has some, H200 before
    H100."""
    if (data := taken(number, folder)) is None:
        return None
    return data["gpu"], {row["warp"]: unpacked(row["stamps"], data["kinds"]) for row in data["rows"] if row["stage"] == number}


def cost_of(number: int, folder=None) -> tuple[dict, dict] | None:
    """What a stage's stamps cost: the file, and its row {stage, ms, stamped_ms}, without stamps and with them; None where no file
    says it. As of_stage()."""
    data = taken(number, folder) or {}
    return next(((data, one) for one in data.get("costs", []) if one["stage"] == number), None)


def taken(number: int, folder=None) -> dict | None:
    """The file that has stamps of a stage."""
    for place in [gpu.FOLDER, gpu.HOPPER] if folder is None else [folder]:
        if (place / FILE).exists():
            data = gpu.load(place / FILE)
            if any(row["stage"] == number for row in data["rows"]):
                return data
    return None


def packed(stamps: list[tuple[str, int]], kinds: list[str]) -> list[int]:
    """Of each stamp the number of its kind, and the clocks since the one before, or since 0."""
    flat, before = [], 0
    for name, clock in stamps:
        flat += [kinds.index(name), clock - before]
        before = clock
    return flat


def unpacked(flat: list[int], kinds: list[str]) -> list[tuple[str, int]]:
    """The stamps again."""
    found, clock = [], 0
    for kind, since in zip(flat[::2], flat[1::2]):
        clock += since
        found.append((kinds[kind], clock))
    return found
