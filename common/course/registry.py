"""The stages as the registry knows them, and their roles.

No program in Python knows a stage's number. One that needs the fastest forward pass, or the first rung on a GPU, asks
here. What `./ladder list --json` does not say of a role is derived here, and nowhere else.
"""

import functools
import json
import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

ROOT = Path(__file__).resolve().parents[2]  # of the repository


class Failure(Exception):
    """One sentence for the user."""


def digits(number: int) -> str:
    """The number as the folders and ./ladder have it."""
    return f"{number:02d}"


@dataclass(frozen=True)
class Stage:
    """A stage as the registry knows it, and where its files are."""

    number: int
    name: str
    title: str
    idea: str
    claim: str
    before: int
    dtypes: tuple[str, ...]
    head_dims: tuple[int, ...] | None  # None: any
    backend: str
    forward: bool
    backward: bool
    track: str = ""  # what the stages of its track are about
    gpu: str = "any"  # which GPUs its kernels run on: "any" or "hopper"
    follows: bool = False  # whether the stage before is of its own track, so that the two are a pair of the course

    @property
    def digits(self) -> str:
        return digits(self.number)

    @property
    def label(self) -> str:
        return f"{self.digits} {self.name}"

    @property
    def folder(self) -> Path:
        return ROOT / "stages" / f"{self.digits}_{self.name}"

    @property
    def readme(self) -> Path:
        return self.folder / "README.md"

    @property
    def source(self) -> Path:
        return self.folder / ("attention.cu" if self.kernels else "attention.cpp")

    def takes(self, d: int) -> bool:
        """Whether it takes this head dimension."""
        return self.head_dims is None or d in self.head_dims

    @property
    def kernels(self) -> bool:
        """Whether it is CUDA kernels; else it is C++ for the CPU."""
        return self.backend != "cpu"


@dataclass(frozen=True)
class SourceLine:
    """A line of a stage's source, and where it stands."""

    file: Path
    number: int
    text: str


FIRST_VARIANT = 70  # the stages from here on are no faster rungs, but other kinds of attention
UNTRIED: tuple[int, ...] = ()  # stages whose tests no GPU has passed yet: who names none does not get them
POLICY = "policy.hpp"  # of a variant of attention: what it has in place of a kernel


def is_variant(stage: Stage) -> bool:
    """Whether it has a policy, and the kernel of another stage."""
    return (stage.folder / POLICY).is_file() and not (stage.folder / "kernel.hpp").is_file()


def source_lines(source: Path, apart: str = "kernel.hpp") -> list[SourceLine]:
    """A stage's attention.cu or .cpp. Where a kernel.hpp lies beside it, that file, from its first #include on, takes
    the place of the line that includes it. So a stage that keeps its kernel apart is read, compared and patched as any
    other. (common/labs/folder.cpp and tests/mutants/apply.cmake do the same.) A variant has no kernel, but a policy:
    `apart` is then POLICY."""
    lines = lines_of(source)
    kernel = source.with_name(apart)
    if not kernel.is_file():
        return lines
    include = f'#include "stages/{source.parent.name}/{kernel.name}"'
    at = [place for place, line in enumerate(lines) if line.text == include]
    inside = lines_of(kernel)
    first = next((place for place, line in enumerate(inside) if line.text.startswith("#include ")), None)
    if len(at) != 1 or first is None:
        raise Failure(f"{source.parent.name}: attention.cu has one line {include}, and {kernel.name} has an #include.")
    return lines[:at[0]] + inside[first:] + lines[at[0] + 1:]


def source_text(source: Path) -> str:
    """As source_lines, as text."""
    return "".join(line.text + "\n" for line in source_lines(source))


def needs_hopper(text: str) -> bool:
    """Whether device code takes Hopper's own instructions, which are compiled for 90a. (stages/CMakeLists.txt asks the
    same.)"""
    return '#include "common/ptx/wgmma.hpp"' in text


def lines_of(file: Path) -> list[SourceLine]:
    """The lines of one file."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        shown = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
        raise Failure(f"cannot read {shown}: {why}.") from error
    return [SourceLine(file, number, line) for number, line in enumerate(text.splitlines(), 1)]


def program() -> Path:
    """The program behind ./ladder, which knows the stages and has the ledger."""
    named = os.environ.get("FLASHLADDER_PROGRAM")
    path = Path(named) if named else ROOT / "build/release/flashladder"
    if not os.access(path, os.X_OK) or path.is_dir():
        shown = named or "build/release/flashladder"
        raise Failure(f"the program {shown} is not there: ./ladder setup builds it.")
    return path


def all_stages(of: str | Path | None = None) -> list[Stage]:
    """The registry, in the order of the ladder: that of program(), or of another program."""
    return list(_listed(Path(of or program()).resolve()))


@functools.cache
def _listed(path: Path) -> tuple[Stage, ...]:
    try:
        listed = json.loads(subprocess.run([path, "list", "--json"], capture_output=True, text=True).stdout)
        return tuple(Stage(s["number"], s["name"], s["title"], s["idea"], s["claim"], s["before"], tuple(s["dtypes"]),
                           None if isinstance(s["head_dims"], dict) else tuple(s["head_dims"]), s["backend"], s["forward"],
                           s["backward"], s["track"], s["gpu"], s["follows"]) for s in listed)
    except (OSError, ValueError, KeyError, TypeError):
        raise Failure(f"{path} does not list the stages: build it anew with ./ladder setup.") from None


def stage_of(number: int) -> Stage:
    for stage in all_stages():
        if stage.number == number:
            return stage
    raise Failure(f"there is no stage {number} in this build: ./ladder list shows those that there are.")


def folders() -> dict[int, Path]:
    """The folder of each stage, by number, as they lie there."""
    found = [path for path in (ROOT / "stages").iterdir() if path.name.partition("_")[0].isdecimal()]
    return {int(path.name.partition("_")[0]): path for path in sorted(found)}


def example() -> tuple[Path, Path]:
    """The folders of two neighbours, for the examples of a help."""
    found = list(folders().values())
    return found[len(found) // 2 - 1], found[len(found) // 2]


# --- Roles ----------------------------------------------------------------------------------------------------------


class Named(Protocol):
    @property
    def name(self) -> str: ...


class Rung(Named, Protocol):
    """What a role needs to know of a stage: a Stage of this file, or one of the module flashladder."""

    @property
    def dtypes(self) -> tuple[str, ...]: ...

    @property
    def kernels(self) -> bool: ...

    @property
    def forward(self) -> bool: ...

    @property
    def backward(self) -> bool: ...


AnyRung = TypeVar("AnyRung", bound=Rung)


def of_kernels(which: str, dtype: str, stages: Iterable[AnyRung]) -> list[AnyRung]:
    """The stages of kernels that have this pass, "forward" or "backward", in this dtype; in order."""
    return [one for one in stages if one.kernels and getattr(one, which) and dtype in one.dtypes]


def is_deterministic(stage: Named) -> bool:
    """Whether it exists to give the same bits every time, at a price in speed. The registry says it by the name alone."""
    return stage.name.startswith("deterministic")


def fastest(which: str, dtype: str, stages: Iterable[AnyRung]) -> AnyRung:
    """The fastest of a pass: the last rung of kernels that is not there for its bits, and no variant of attention."""
    found = [one for one in of_kernels(which, dtype, stages)
             if not is_deterministic(one) and one.number < FIRST_VARIANT and one.number not in UNTRIED]
    if not found:
        raise Failure(f"no stage of this build has a {which} pass in {dtype}: ./ladder list says what each takes.")
    return found[-1]


def deterministic(which: str, dtype: str, stages: Iterable[AnyRung]) -> AnyRung | None:
    """The last rung that exists to give the same bits every time, and has been tried; None where there is none."""
    return next((one for one in reversed(of_kernels(which, dtype, stages))
                 if is_deterministic(one) and one.number not in UNTRIED), None)


def on_a_cpu(which: str, stages: Iterable[AnyRung]) -> AnyRung:
    """The fastest of a pass of those that are C++."""
    found = [one for one in stages if not one.kernels and getattr(one, which)]
    if not found:
        raise Failure(f"no stage of this build has a {which} pass on a CPU: ./ladder list says what each takes.")
    return found[-1]


def with_tile_table(which: str) -> dict[int, Path]:
    """The folders of the stages that have this pass and a table of tiles for it, which the autotuner fills; by number.
    As they lie there, because what is asked of the autotuner is looked at before anything is built."""
    return {number: folder for number, folder in folders().items()
            if (folder / "table.hpp").exists() and f"\n    .{which} = " in (folder / "attention.cu").read_text()}


def for_hopper(which: str) -> dict[int, Path]:
    """The folders of the stages that have this pass and run on Hopper alone; by number, as they lie there."""
    sources = {number: folder / "attention.cu" for number, folder in folders().items()}
    return {number: source.parent for number, source in sources.items()
            if source.exists() and needs_hopper(source_text(source)) and f"\n    .{which} = " in source.read_text()}


def tuned(which: str) -> int:
    """The stage whose tiles were tuned for a pass: the first that has a table for it."""
    found = with_tile_table(which)
    if not found:
        raise Failure(f"no stage has a table of tiles for a {which} pass: take the stages from the repository again.")
    return min(found)
