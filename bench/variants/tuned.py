"""The stages whose kernel has a table of tiles: what a tile's numbers are, which tiles the autotuner tries, and which
cannot be a kernel."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from bench.variants.variants import Varied
from common.course import registry

# Shared memory that a block can have, by compute capability (CUDA C++ Programming Guide, Technical Specifications).
SHARED_BYTES = {80: 163 << 10, 86: 99 << 10, 87: 163 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10,
                103: 227 << 10, 110: 227 << 10, 120: 99 << 10, 121: 99 << 10}
REGISTERS = 65536  # of a multiprocessor
MOST_REGISTERS = 216  # of the 255 of a lane, for sums alone
BESIDE_SUMS = 24  # on Hopper, of a thread that multiplies, for all else


@dataclass(frozen=True)
class Tuned(Varied):
    """A stage with a table; `kernel` is a template <dtype, d, causal, the numbers of a tile ...>, for Hopper alone
    <dtype, d>. `takes` says without compiling what a tile takes at one d: bytes of shared memory of a block, registers
    of a lane for its sums, why else it is no kernel, or none to try."""

    tiles: list[tuple[int, ...]]  # that the autotuner tries
    takes: Callable[[dict[str, int], int], tuple[int, int, str]]

    @property
    def table(self):
        return self.place / "table.hpp"

    @cached_property
    def fields(self):
        """The names of a tile's numbers, in order."""
        return re.findall(r"^  int (\w+);", self.table.read_text().split("struct Tile {")[1].split("};")[0], re.M)

    @property
    def candidates(self):
        """The tiles that the autotuner tries, as lists."""
        return [[*tile] for tile in self.tiles]

    @property
    def of(self):
        """What has a row of the table of its own: on Hopper alone one tile serves both dtypes and masks."""
        return ("d",) if self.which == "hopper" else ("architecture", "dtype", "d", "causal")

    def row(self, kernel, tile):
        """A row of the table, for what a kernel serves: {architecture, dtype, d, causal}."""
        return {**{name: kernel[name] for name in self.of}, "tile": tile}

    def does_not_run(self, architecture):
        """Why no tile of it runs on a GPU of this architecture, "" where they do."""
        alone = self.which == "hopper" and architecture != 90
        return f"stage {self.number} runs on Hopper alone, a GPU of compute capability 9.0" if alone else ""

    def does_not_fit(self, tile, d, shared_bytes):
        """Why a tile cannot be a kernel, "" where it can be tried."""
        need, registers, why = self.takes(dict(zip(self.fields, tile, strict=True)), d)
        if need > shared_bytes:
            return f"takes {need >> 10} KiB of shared memory, and a block can have {shared_bytes >> 10}"
        return why or (f"takes {registers} registers for its sums" if registers > MOST_REGISTERS else "")


def forward(t, d):
    """Q and the buffers of K and V; O~ and S."""
    M = t["Br"] // t["warps"] // 16  # fragments of 16 rows of a warp
    return 2 * (t["Br"] + 2 * t["num_buffers"] * t["Bc"]) * d, M * (d // 2 + t["Bc"] // 2), ""


def backward(t, d):
    """K, V, the buffers of Q and dO with L2 and D, dS, and P where two warps share their keys; dK and dV, and beside
    them S and P of some rows, or dQ."""
    Br, Bc, warps, share, step = (t[name] for name in ("Br", "Bc", "warps", "share", "step"))
    M = Bc * share // (16 * warps)  # fragments of 16 keys of a warp
    shared = 4 * (Bc + t["num_buffers"] * Br) * d + 8 * t["num_buffers"] * Br + (2 + 4 * (share - 1)) * Bc * Br
    registers = 2 // share * M * d // 2 + max(2 // share * M * step // 2, Br * d // (32 * warps))
    why = ""
    if Bc * share % (16 * warps) != 0:
        why = f"cannot be shared out: {Bc} keys over {warps // share} groups of warps, 16 at a time"
    elif not any(d % (16 * blocks) == 0 and Br * blocks % (16 * warps) == 0
                 for blocks in (1, 2, 4, 8) if blocks <= warps):
        why = f"cannot be shared out: dQ of {Br} rows and {d} columns over {warps} warps"
    return shared, registers, why


def hopper(t, d):
    """The buffers of Q, K and V, their mbarriers, and which row tiles are in Q; O~, S and P~."""
    warpgroups, Bc, num_buffers, Q_buffers, own, producers = t.values()
    shared = 2 * (64 * warpgroups * Q_buffers + 2 * Bc * num_buffers) * d + 32 * (num_buffers + 1) + 16 * Q_buffers
    registers = d // 2 + Bc // 2 + Bc // 4
    at_launch = REGISTERS // (128 * (1 + warpgroups)) // 8 * 8
    why = ""
    if warpgroups > 4 or Bc % 16 != 0 or Bc > 256:
        why = f"has a tile of {64 * warpgroups} x {Bc}: wgmma and TMA take multiples of 64 rows and of 16 keys, up to 256"
    elif own % 8 != 0 or producers % 8 != 0 or not 24 <= producers <= at_launch <= own <= 256:
        why = (f"gives a thread {own} or {producers} registers: setmaxnreg takes multiples of 8 from 24 to 256, on "
               f"either side of the {at_launch} at launch")
    elif warpgroups * own + producers > (1 + warpgroups) * at_launch:
        why = f"gives {warpgroups} x {own} + {producers} registers to the warpgroups, of {1 + warpgroups} x {at_launch}"
    elif registers + BESIDE_SUMS > own:
        why = f"takes {registers} registers for its sums, and {BESIDE_SUMS} for all else, of {own}"
    elif 2 * registers < own:
        why = f"takes {registers} registers for its sums, of {own}: more warpgroups, or more keys, have room"
    return shared, registers, why


# Br, Bc, warps, num_buffers: a warp has 16 or 32 rows.
FORWARD = [(*shape, num_buffers) for shape in (
    (64, 64, 4), (64, 128, 4), (128, 64, 4), (128, 96, 4), (128, 128, 4), (128, 64, 8), (128, 128, 8))
    for num_buffers in (1, 2)]
# Br, Bc, warps, num_buffers, share, step: a warp, or the two that share, has a multiple of 16 keys.
BACKWARD = [(32, 32, 4, 1, 2, 32), (32, 64, 4, 2, 2, 32), (32, 128, 4, 2, 1, 32), (64, 64, 4, 1, 1, 32),
            (64, 64, 4, 1, 1, 64), (64, 64, 4, 2, 1, 32), (64, 64, 4, 2, 1, 64), (64, 64, 4, 1, 2, 32),
            (64, 64, 8, 1, 2, 64), (64, 64, 8, 2, 2, 64), (64, 128, 4, 2, 1, 32), (64, 128, 8, 1, 1, 64),
            (64, 128, 8, 2, 1, 64), (64, 128, 8, 1, 2, 32), (64, 128, 8, 1, 2, 64), (64, 128, 8, 2, 2, 64),
            (128, 64, 4, 1, 1, 32), (128, 128, 8, 1, 1, 32)]
# warpgroups, Bc: that multiply. Fewer of them have registers for more keys.
HOPPER = [(warpgroups, Bc) for warpgroups, most in ((2, 176), (3, 128), (4, 64)) for Bc in range(48, most + 1, 16)]
BUFFERS = [(2, 1), (2, 2), (3, 1), (3, 2), (4, 2)]  # num_buffers, Q_buffers
# By warpgroups: registers, producer_registers. With 24 the producer of many tiles spills.
ROLES = {2: (232, 32), 3: (160, 32), 4: (112, 32)}
KINDS = {
    "forward": ("fa2_forward", True, [(*shape, unroll) for shape in FORWARD for unroll in (2, 4, 8)], forward),
    "backward": ("fa2_backward", False, [(*shape, unroll) for shape in BACKWARD for unroll in (1, 2, 4, 8)], backward),
    "hopper": ("wgmma_forward", True,
               [(*shape, *buffers, *ROLES[shape[0]]) for shape in HOPPER for buffers in BUFFERS], hopper)}


def _tuned():
    """The stages with a table, by number; those that run on Hopper alone are a kind of their own."""
    for which in ("forward", "backward"):
        hopper_alone = registry.for_hopper(which)
        for number, place in registry.with_tile_table(which).items():
            kind = "hopper" if number in hopper_alone else which
            yield number, Tuned(number, place, kind, *KINDS[kind])


TUNED = dict(sorted(_tuned()))


def tuned(which):
    """The stage whose tiles were tuned for a pass."""
    return TUNED[registry.tuned(which)]


def deterministic(which):
    """The stage with a table for the pass that adds in a fixed order."""
    return next(stage for stage in TUNED.values() if stage.which == which and registry.is_deterministic(stage))


def fastest_on_hopper():
    """The last stage with a table whose forward pass is for Hopper alone. One behind it may take its table, and its kernel
    for most head dimensions."""
    return next(stage for stage in reversed(TUNED.values()) if stage.which == "hopper")
