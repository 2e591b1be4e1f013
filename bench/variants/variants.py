"""Variants of a stage of kernels: its source with another table of tiles, or with a patch, each compiled into a library
of its own, which the program flashladder_variants checks and times. The autotuner, the ablation and what atomics cost
are made of them."""

import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.results.gpu import TOKENS, WIDTH
from common.course.registry import ROOT, needs_hopper, source_text

DTYPES = {"6__half": "fp16", "13__nv_bfloat16": "bf16"}
# What ptxas says where it changes the order of the wgmma of a kernel: common/cmake/keep_ptxas.sh asks the same.
REORDERED = re.compile(r"wgmma\.mma_async instructions are serialized|\(C75(?:08|10|12|14|15|17|19)\)")


class VariantError(Exception):
    """One sentence for the user."""


@dataclass(frozen=True)
class Varied:
    """A stage of which variants are made. One with a table of tiles is Tuned."""

    number: int
    place: Path
    which: str  # pass, "forward" or "backward"; of what runs on Hopper alone, forward, "hopper"
    kernel: str  # a part of its name; "": what ptxas says of it is not asked for
    between: bool  # whether it serves head dimensions between those that it has kernels for

    @property
    def name(self):
        """As the registry has it."""
        return self.place.name.partition("_")[2]

    @property
    def folder(self):
        return f"stages/{self.place.name}"

    @property
    def readme(self):
        return self.place / "README.md"


def run(command, what):
    """The output of a command; VariantError with its first error where it fails."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode == 0:
        return done.stdout + done.stderr
    errors = [line for line in (done.stderr + done.stdout).splitlines() if "error" in line.lower()]
    last = (done.stderr or done.stdout).strip().splitlines()[-1:]
    raise VariantError(f"{what}: {(errors or last or [f'exit status {done.returncode}'])[0]}")


def compiler(stage, build, backend):
    """The compiler that the build folder uses: nvcc for cuda, else that of C++."""
    suffix = f"/{stage.place.name}.cu" if backend == "cuda" else f"/{stage.place.name}/attention.cu"
    try:
        commands = json.loads((build / "compile_commands.json").read_text())
    except OSError:
        raise VariantError(f"there is no build in {build}: ./ladder setup makes one") from None
    for one in commands:
        if one["file"].endswith(suffix):
            return shlex.split(one["command"])[0]
    raise VariantError(f"the build in {build} has no nvcc: install the CUDA Toolkit, then ./ladder setup")


def rows_text(rows):
    """Rows {architecture, dtype, d, causal, tile: [Br, Bc, ...]}, or {d, tile}, as the table has them."""
    def of(row):
        if "dtype" not in row:
            return row["d"]
        return f"{row['architecture']}, Dtype::{row['dtype']}, {row['d']}, {'true' if row['causal'] else 'false'}"

    return "".join(f"    {{{of(row)}, {{{', '.join(map(str, row['tile']))}}}}},\n" for row in rows)


def read_table(stage, text=None):
    """The rows of the stage's table, or of another text of it."""
    text = stage.table.read_text() if text is None else text
    values = {"architecture": r"(?P<architecture>\d+)", "dtype": r"Dtype::(?P<dtype>\w+)", "d": r"(?P<d>\d+)",
              "causal": "(?P<causal>true|false)", "tile": r"\{(?P<tile>\d+(?:, \d+)*)\}"}
    kinds = {"dtype": str, "causal": "true".__eq__, "tile": lambda numbers: [*map(int, numbers.split(","))]}
    row = re.compile(rf"^ *\{{{', '.join(values[name] for name in (*stage.of, 'tile'))}\}},$", re.M)
    found = [{name: kinds.get(name, int)(text) for name, text in m.groupdict().items()} for m in row.finditer(text)]
    if not found or len(found) != text.count("}},") or any(len(one["tile"]) != len(stage.fields) for one in found):
        raise VariantError(f"{stage.folder}/table.hpp is not as ./ladder tune writes it: take it from the repository "
                           "again")
    return found


def with_rows(text, rows):
    """The table's text with these rows."""
    head, rest = text.split("    // clang-format off\n")
    return head + "    // clang-format off\n" + rows_text(rows) + "    // clang-format on" + rest.split("    // clang-format on")[1]


def new_table(rows, best, architecture):
    """The rows of the table with the best tiles in. What was not tuned of a new architecture is as it was there."""
    def of(row):
        return tuple(row.get(name) for name in ("dtype", "d", "causal"))

    mine = [row for row in rows if row.get("architecture", architecture) == architecture]
    if not mine:
        older = [row["architecture"] for row in rows if row["architecture"] <= architecture]
        like = max(older, default=min(row["architecture"] for row in rows))
        mine = [{**row, "architecture": architecture} for row in rows if row["architecture"] == like]
    chosen = {of(row): row["tile"] for row in best}
    mine = [{**row, "tile": chosen.get(of(row), row["tile"])} for row in mine]
    others = [row for row in rows if row.get("architecture", architecture) != architecture]
    return sorted(others + mine, key=lambda row: (row.get("architecture", 0), row.get("dtype") != "fp16", row["d"],
                                                    row.get("causal", False)))


def until_now(stage, architecture):
    """The table's rows of an architecture; of a new one those that it begins with."""
    return [row for row in new_table(read_table(stage), [], architecture)
            if row.get("architecture", architecture) == architecture]


def make(stage, folder, name, *, build, backend, architecture=90, table=None, patch=None, only=(), stamped=False):
    """Compiles the stage with another text of its table, or with a patch file: {name, library, kernels}, where kernels
    has a line for each kernel that was compiled for a GPU: {dtype, d, causal, tile, registers, spilled}. `only`: for these
    (dtype, d) alone. `stamped`: on a GPU the first block stamps what it does (common/ptx/stamp.hpp)."""
    place = Path(folder) / name
    shutil.copytree(ROOT / stage.folder, place / stage.folder)
    # One file, in which a patch finds all, and that includes nothing but the copy's own table.
    text = place / stage.folder / "attention.cu"
    text.write_text(source_text(ROOT / stage.folder / "attention.cu"))
    (place / stage.folder / "kernel.hpp").unlink(missing_ok=True)
    if table is not None:
        (place / stage.folder / "table.hpp").write_text(table)
    if patch is not None:
        # Whatever the file is called in the patch.
        run(["patch", "-s", "-F0", "--no-backup-if-mismatch", text, "-i", patch], f"{Path(patch).name} no longer applies")
    # The wrapper's own name for the stage lets one program hold many.
    source = place / ("variant.cu" if backend == "cuda" else "variant.cpp")
    if table is not None and "dtype" not in stage.of:  # a row is for d alone, and there may be no other than these
        only = [(dtype, row["d"]) for row in read_table(stage, table) for dtype in DTYPES.values()]
    choices = ", ".join(f"{{Dtype::{dtype}, {d}, false, false}}" for dtype, d in only)
    source.write_text((f"#define FLASHLADDER_ONLY_FOR {choices}\n" if only else "")
                      + ("#define FLASHLADDER_STAMPS\n" if stamped else "")
                      + f'#define stage_{stage.number} variant\n#include "{stage.folder}/attention.cu"\n'
                      'extern "C" const flashladder::Stage* flashladder_variant() {\n'
                      "  return &flashladder::variant::stage;\n}\n"
                      + ('extern "C" const char* flashladder_take_stamps(flashladder::Stamped* into) {\n'
                         "  return flashladder::take_stamps(into);\n}\n" if stamped else ""))
    library = place / "variant.so"
    archives = [build / f"common/libflashladder_{part}.a" for part in ("common", "simt")]
    # The emulator checks and is not timed: what it is compiled in counts for more than how fast it is.
    words = [compiler(stage, build, backend), "-std=c++20", "-O2" if backend == "cuda" else "-O1", "-shared", f"-I{place}", f"-I{ROOT}", source,
             *archives, "-o", library]
    # Each keeps to its own copy of the emulator, or of the CUDA runtime, whatever the program has.
    if backend == "cuda":
        # -arch=sm_90a would make code for compute_90 too, which has no wgmma (nvcc 13.0).
        kind = f"{architecture}{'a' * needs_hopper(text.read_text())}"
        words += ["-Xcompiler=-fPIC,-fno-gnu-unique", f"--generate-code=arch=compute_{kind},code=sm_{kind}", "-Xptxas=-v",
                  "-Xlinker=-Bsymbolic"]
    else:
        words += ["-fPIC", "-fno-gnu-unique", "-Wl,-Bsymbolic"]
    output = run(words, f"variant {name} does not compile")
    if changed := stamped and (REORDERED.search(output) or re.search(r"[1-9]\d* bytes spill stores", output)):
        raise VariantError(f"with stamps stage {stage.number} is another kernel: ptxas says '{changed[0]}'")
    kernels = resources(stage, output, table) if backend == "cuda" and stage.kernel else []
    return {"name": name, "library": str(library), "kernels": kernels}


def resources(stage, output, table=None):
    """What ptxas -v says of each kernel that has a tile; in `reordered` what it says where it changes the order of wgmma.
    A kernel whose name has no tile has that of the table. It serves both masks, and is named twice."""
    in_name = "dtype" in stage.of
    tile_of = r"Lb([01])E((?:Li\d+E)+)" if in_name else "()()E"
    of_d = {} if in_name else {row["d"]: row["tile"] for row in read_table(stage, table)}
    pattern, kernels = re.compile(rf"{stage.kernel}I(6__half|13__nv_bfloat16)Li(\d+)E{tile_of}"), []
    for part in output.split("Compiling entry function")[1:]:
        kernel, registers = pattern.search(part.partition("\n")[0]), re.search(r"Used (\d+) registers", part)
        spilled = re.search(r"(\d+) bytes spill stores", part)
        if kernel is None:
            continue  # one that goes before or after it
        tile = [int(number) for number in re.findall(r"\d+", kernel[4])] if in_name else of_d.get(int(kernel[2]), [])
        if not (registers and spilled and len(tile) == len(stage.fields)):
            raise VariantError("ptxas -v reports in a form that bench/variants/variants.py does not know")
        reordered = [re.sub(r"^[^(]*| (in|for) (the )?function '.*", "", line) for line in output.splitlines()
                     if REORDERED.search(line) and (kernel[0] in line or "function '" not in line)]
        kernels += [{"dtype": DTYPES[kernel[1]], "d": int(kernel[2]), "causal": causal, "tile": tile,
                     "registers": int(registers[1]), "spilled": int(spilled[1]), "reordered": "".join(reordered[:1])}
                    for causal in ([kernel[3] == "1"] if in_name else [False, True])]
    if not kernels:
        raise VariantError("ptxas -v reported no kernel of those that are measured")
    return kernels


def make_all(orders, say):
    """make(**order) for all, as many at a time as there are processors."""
    made = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for one in concurrent.futures.as_completed([pool.submit(make, **order) for order in orders]):
            made.append(one.result())
            say(f"  compiled {len(made)} of {len(orders)}")
    return sorted(made, key=lambda one: one["name"])


def measure(build, folder, tasks, rounds, say, rested=False):
    """Runs flashladder_variants on [{libraries, check, time}], where check and time are problems {batch, heads, Nq, Nk,
    d, causal, dtype}: for each task {library: {wrong, ms: [milliseconds of each round, for each problem of time]}}. Of a
    library that stamps also `stamps`, for each problem of time: by warp [what, clock] of each stamp of one more run.
    `rested`: before each run the GPU has nothing to do for 10 ms; else they follow each other closely."""
    path = Path(folder) / "tasks.json"
    path.write_text(json.dumps(tasks))
    command, errors = [build / "bench/flashladder_variants", path, "--rounds", str(rounds)], []
    if rested:
        command.append("--rested")
    # To a file: a pipe would be full long before the program ends, while its other output is being read.
    with open(Path(folder) / "found.json", "w+") as found:
        with subprocess.Popen(command, stdout=found, stderr=subprocess.PIPE, text=True) as program:
            for line in program.stderr:
                say(line.rstrip())
                errors.append(line.strip())
        if program.returncode != 0:
            raise VariantError(f"the variants could not be measured: {(errors or ['no reason given'])[-1]}")
        found.seek(0)
        return json.load(found)


def problem(d, causal, dtype, N):
    """Of the papers' grid."""
    return {"batch": TOKENS // N, "heads": max(1, WIDTH // d), "Nq": N, "Nk": N, "d": d, "causal": causal,
            "dtype": dtype}


def small_problems(stage, d, causal, dtype):
    """On which a variant shows that it is right: lengths that no tile divides, several tiles, a head dimension between
    those of the table where the stage has such, rows without a key; on Hopper more row tiles than blocks that stay."""
    sizes = [(2, 2, 65, 97, d - 8 * stage.between), (1, 1, 300, 520, d)] + ([(1, 2, 130, 31, d)] if causal else [])
    if stage.which == "hopper":
        sizes.append((2, 70, 300, 97, d))
    return [{"batch": b, "heads": h, "Nq": Nq, "Nk": Nk, "d": dim, "causal": causal, "dtype": dtype}
            for b, h, Nq, Nk, dim in sizes]
