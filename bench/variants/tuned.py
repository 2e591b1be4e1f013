"""The stages whose kernel has a table of tiles: what a tile's numbers are, which tiles the autotuner tries, and which
cannot be a kernel. And the one without a table of which variants are measured, too."""

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from bench.variants.variants import Varied
from common.course import registry

# Shared memory that a block can have, by compute capability (CUDA C++ Programming Guide, Technical Specifications).
SHARED_BYTES = {80: 163 << 10, 86: 99 << 10, 87: 163 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10,
                103: 227 << 10, 110: 227 << 10, 120: 99 << 10, 121: 99 << 10}
MOST_REGISTERS = 216  # of the 255 of a lane, for sums alone


@dataclass(frozen=True)
class Tuned(Varied):
    """A stage with a table; `kernel` is a template <dtype, d, causal, the numbers of a tile ...>. `takes` says without
    compiling what a tile takes at one d: bytes of shared memory of a block, registers of a lane for its sums, why else
    it is no kernel."""

    shapes: list[tuple[int, ...]]  # all numbers of a tile but `unroll`, its last
    unrolls: tuple[int, ...]
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
        """The tiles that the autotuner tries."""
        return [[*shape, unroll] for shape, unroll in itertools.product(self.shapes, self.unrolls)]

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
KINDS = {"forward": ("fa2_forward", True, FORWARD, (2, 4, 8), forward),
         "backward": ("fa2_backward", False, BACKWARD, (1, 2, 4, 8), backward)}
TUNED = {number: Tuned(number, place, which, *kind) for which, kind in KINDS.items()
         for number, place in registry.with_tile_table(which).items()}


def tuned(which):
    """The stage whose tiles were tuned for a pass."""
    return TUNED[registry.tuned(which)]


def deterministic(which):
    """The stage with a table for the pass that adds in a fixed order."""
    return next(stage for stage in TUNED.values() if stage.which == which and registry.is_deterministic(stage))


def fastest_on_hopper():
    """The last stage of plain attention that is for Hopper alone and has a forward pass."""
    number, place = max(item for item in registry.for_hopper("forward").items() if item[0] < registry.FIRST_VARIANT)
    return Varied(number, place, "hopper", "wgmma_forward", True)
