"""Tests of the autotuner, of the ablation and of what atomics cost, but for what takes a GPU.

Usage: python3 -m tests.tune_test BUILD [unittest options]
"""

import contextlib
import ctypes
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from bench.measure import ablation, atomics, compare, nsight, stamps, tune
from bench.measure.on_torch import Missing
from bench.report import ablation_tables
from bench.results import atomics as measured_atomics
from bench.results import gpu
from bench.training import ours
from bench.variants import variants
from bench.variants.tuned import MOST_REGISTERS, SHARED_BYTES, TUNED, fastest_on_hopper, tuned
from common.course.registry import folders, needs_hopper, source_text

BUILD = Path(sys.argv.pop(1)).resolve()
SOURCE = Path(__file__).resolve().parents[1]
STAGES = list(TUNED.values())
STAGE, BACKWARD, HOPPER = tuned("forward"), tuned("backward"), fastest_on_hopper()
FOR_ALL_GPUS = [stage for stage in STAGES if "architecture" in stage.of]
TEXT = STAGE.table.read_text()


def row(architecture=90, dtype="bf16", d=64, causal=False, tile=(128, 64, 4, 1, 2)):
    return {"architecture": architecture, "dtype": dtype, "d": d, "causal": causal, "tile": [*tile]}


def kernels(stage, r):
    """The kernels of a row, as the compiler names them: on Hopper alone one is named for both masks."""
    return [{"dtype": dtype, "d": r["d"], "causal": causal, "tile": r["tile"]}
            for dtype in ("fp16", "bf16") for causal in (False, True)
            if (r.get("dtype", dtype), r.get("causal", causal)) == (dtype, causal)]


PTXAS_SAYS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z1av' for 'sm_90a'
ptxas info    : Function properties for _Z1av
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers
ptxas info    : Compiling entry function '_Z1bv' for 'sm_90a'
ptxas info    : Function properties for _Z1bv
    8 bytes stack frame, 8 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
"""


def spilled(said):
    """Bytes of each kernel that spills, by what ptxas -v has said."""
    found = {}
    for part in said.split("Compiling entry function '")[1:]:
        numbers = re.findall(r"(\d+) bytes spill (?:stores|loads)", part)
        if len(numbers) != 2:
            raise variants.VariantError("ptxas -v reports in a form that this test does not know")
        if any(map(int, numbers)):
            found[part.partition("'")[0]] = sum(map(int, numbers))
    return found


class PtxasTest(unittest.TestCase):
    """common/cmake/keep_ptxas.sh, on a compiler that says what it is told to."""

    def keep(self, said, status=0):
        """Exit status, what goes to stderr, whether the object is there, and what is kept beside it."""
        with tempfile.TemporaryDirectory(prefix="tune test ") as folder:
            place, nvcc = Path(folder), Path(folder, "nvcc")
            (place / "said").write_text(said)
            nvcc.write_text(f'#!/bin/bash\ntouch -- "$4"\ncat "{place}/said" >&2\nexit {status}\n')
            nvcc.chmod(0o755)
            done = subprocess.run([SOURCE / "common/cmake/keep_ptxas.sh", nvcc, "-c", "49_a.cu", "-o", place / "49_a.cu.o"],
                                  stderr=subprocess.PIPE, text=True)
            return (done.returncode, done.stderr, (place / "49_a.cu.o").exists(), (place / "49_a.cu.o.ptxas").read_text())

    def test_what_is_no_warning_is_kept_and_not_shown(self):
        self.assertEqual(self.keep(PTXAS_SAYS), (0, "", True, PTXAS_SAYS))

    def test_all_else_is_shown_and_the_status_is_the_compilers(self):
        for status in (0, 2):
            self.assertEqual(self.keep(f"{PTXAS_SAYS}a.cu(1): error\n", status)[:3], (status, "a.cu(1): error\n", True))

    def test_wgmma_that_ptxas_reorders_is_an_error(self):
        function = "_Z11fa3_forwardI13__nv_bfloat16Li64EEvv"
        for kind, code, what, where in (
                ("info   ", "C7510", "Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
                 "insufficient register resources for the wgmma pipeline", "in the function"),
                ("warning", "C7508", "Potential Performance Loss: wgmma.mma_async instructions are serialized due to the "
                 "presence of Extern calls", "in the function"),
                ("info   ", "C7599", "wgmma.mma_async instructions are serialized due to something new", "in the function"),
                ("info   ", "C7517", "warpgroup.wait is injected in around line 44 by compiler to allow use of registers "
                 "defined by GMMA", "in function"),
                ("info   ", "C7519", "warpgroup.arrive is injected in around line 47 by compiler to allow use of registers "
                 "in GMMA", "in function")):
            said = f"ptxas {kind} : ({code}) {what} {where} '{function}'\n{PTXAS_SAYS}"
            status, shown, made, kept = self.keep(said)
            self.assertEqual((status, made, kept), (1, False, said))
            self.assertEqual(shown.splitlines()[-1], "49_a.cu: error: ptxas changes the order of the wgmma in "
                             f"fa3_forward<__nv_bfloat16, 64>: ({code}) {what}")
        self.assertIn("(C7515) of no function", self.keep("ptxas info    : (C7515) of no function\n")[1])


class TableTest(unittest.TestCase):
    def test_what_is_written_is_what_is_read(self):
        for stage in STAGES:
            rows, text = variants.read_table(stage), stage.table.read_text()
            self.assertEqual(variants.with_rows(text, rows), text)
            one = stage.row(row(), [*range(1, len(stage.fields) + 1)])
            self.assertEqual(variants.read_table(stage, variants.with_rows(text, [one])), [one])

    def test_every_dtype_head_dimension_and_mask_has_a_row_that_fits(self):
        for stage in FOR_ALL_GPUS:
            rows = variants.read_table(stage)
            for architecture in {r["architecture"] for r in rows}:
                keys = [(r["dtype"], r["d"], r["causal"]) for r in rows if r["architecture"] == architecture]
                self.assertEqual(sorted(keys), sorted((t, d, c) for t in ("fp16", "bf16") for d in tune.head_dims(stage)
                                                      for c in (False, True)))
            for r in rows:
                self.assertEqual(stage.does_not_fit(r["tile"], r["d"], SHARED_BYTES[r["architecture"]]), "", r)
        rows = variants.read_table(HOPPER)
        launched = re.search(r"for_head_dim<T, (.*?)>", source_text(HOPPER.place / "attention.cu"))[1]
        self.assertEqual(", ".join(str(r["d"]) for r in rows), launched)
        for r in rows:
            self.assertEqual(HOPPER.does_not_fit(r["tile"], r["d"], SHARED_BYTES[90]), "", r)

    def test_the_readmes_have_hoppers_tiles(self):
        """In bf16, and fp16 has the same: the rows `| d | mask | Br x Bc | warps | ...`, by the names above them."""
        columns = {"warps": "warps", "buffers": "num_buffers", "unrolled": "unroll", "share": "share", "step": "step"}
        for stage in (STAGE, BACKWARD):
            found = {}
            lines = stage.readme.read_text().split("| mask | Br x Bc |")[1].split("\n\n")[0].splitlines()
            heads = ["mask", "Br x Bc", *(head.strip() for head in lines[0].strip("|").split("|"))]
            for line in lines[2:]:
                d, *cells = (cell.strip() for cell in line.strip("|").split("|"))
                cells = dict(zip(heads, cells, strict=True))
                Br, Bc = map(int, cells["Br x Bc"].split(" x "))
                for causal in {"full": [False], "causal": [True], "both": [False, True]}[cells["mask"]]:
                    mine = {"Br": Br, "Bc": Bc}
                    for head, field in columns.items():
                        if head in cells:  # "1, causal 8": with the mask another one
                            mine[field] = int(cells[head].split(", causal ")[-1 if causal else 0])
                    found[int(d), causal] = [mine[field] for field in stage.fields]
            for dtype in ("bf16", "fp16"):
                self.assertEqual(found, {(r["d"], r["causal"]): r["tile"] for r in variants.read_table(stage)
                                         if (r["architecture"], r["dtype"]) == (90, dtype)},
                                 f"put what ./ladder tune found into {stage.readme}")

    def test_the_readme_has_the_tiles_of_hopper_alone(self):
        columns = ["D", "Br x Bc", "warpgroups", "buffers of K and V", "of Q", "shared memory", "O~, S and P~", "registers",
                   "of the producer"]
        wanted = [f"| {' | '.join(columns)} |", "|--:|---" + 7 * "|--:" + "|"]
        for r in variants.read_table(HOPPER):
            warpgroups, Bc, num_buffers, Q_buffers, own, producers = r["tile"]
            shared, registers, _ = HOPPER.takes(dict(zip(HOPPER.fields, r["tile"], strict=True)), r["d"])
            cells = (r["d"], f"{64 * warpgroups} x {Bc}", warpgroups, num_buffers, Q_buffers, f"{shared >> 10} KiB",
                     registers, own, producers)
            wanted.append(f"| {' | '.join(map(str, cells))} |")
        self.assertIn("\n".join(wanted) + "\n\n", HOPPER.readme.read_text(), f"put table.hpp into {HOPPER.readme}")

    def test_no_kernel_of_the_tables_spills(self):
        """By what ptxas has said of them in this build."""
        for stage in FOR_ALL_GPUS:
            said = next(BUILD.rglob(f"{stage.place.name}.cu.o.ptxas"), None)
            if said is None:
                self.skipTest("this build has no nvcc")
            entries = re.split("(?=Compiling entry function)", said.read_text())
            for architecture in {r["architecture"] for r in variants.read_table(stage)}:
                mine = "".join(one for one in entries if f"for 'sm_{architecture}'" in one)
                if not mine:
                    continue  # not one of CMAKE_CUDA_ARCHITECTURES
                spilled = {(k["dtype"], k["d"], k["causal"], *k["tile"]): k["spilled"]
                           for k in variants.resources(stage, mine)}
                for r in variants.read_table(stage):
                    if r["architecture"] == architecture:
                        self.assertEqual(spilled[r["dtype"], r["d"], r["causal"], *r["tile"]], 0, (stage.name, r))

    def test_no_kernel_for_hopper_alone_spills(self):
        """By the same, of all kernels of a stage: an accumulator that spills waits for its wgmma each time."""
        for place in folders().values():
            source = place / "attention.cu"
            if not source.exists() or not needs_hopper(source_text(source)):
                continue
            said = next(BUILD.rglob(f"{place.name}.cu.o.ptxas"), None)
            if said is None:
                self.skipTest(f"this build has no code for Hopper, and stage {place.name} is for that alone")
            text = said.read_text()
            self.assertIn("for 'sm_90a'", text)
            self.assertNotRegex(text, "for 'sm_(?!90a')", f"{said}: code that other GPUs cannot run either")
            self.assertEqual(spilled(text), {}, said)

    def test_what_spills_is_found(self):
        self.assertEqual(spilled(PTXAS_SAYS), {"_Z1bv": 24})
        with self.assertRaisesRegex(variants.VariantError, "in a form that"):
            spilled("ptxas info    : Compiling entry function '_Z1av' for 'sm_90a'\n")

    def test_a_table_of_another_form_is_refused(self):
        for broken in ("", TEXT.replace("{128, 64, 4, 1, 2}", "{128, 64, 4, 1}"), TEXT.replace(", true,", ", 1,", 1)):
            with self.assertRaisesRegex(variants.VariantError, "tuned/table.hpp is not as ./ladder tune writes it"):
                variants.read_table(STAGE, broken)
        text = HOPPER.table.read_text()
        for broken in ("", TEXT, text.replace("{64, {4, ", "{64, {"), text.replace("{64, {", "{64, true, {")):
            with self.assertRaisesRegex(variants.VariantError, "pipeline/table.hpp is not as ./ladder tune writes it"):
                variants.read_table(HOPPER, broken)

    def test_only_what_was_tuned_changes(self):
        rows = variants.read_table(STAGE)
        new = variants.new_table(rows, [row(tile=(64, 64, 4, 2, 2))], 90)
        self.assertEqual([r for r in new if r not in rows], [row(tile=(64, 64, 4, 2, 2))])
        self.assertEqual(len(new), len(rows))
        for stage in STAGES:
            rows = variants.read_table(stage)
            self.assertEqual(variants.new_table(rows, [], 90), rows)

    def test_on_hopper_alone_a_row_is_of_a_head_dimension(self):
        rows = variants.read_table(HOPPER)
        new = variants.new_table(rows, [{"d": 128, "tile": [2, 128, 2, 1, 240, 24]}], 90)
        self.assertEqual([r for r in new if r not in rows], [{"d": 128, "tile": [2, 128, 2, 1, 240, 24]}])
        self.assertEqual(len(new), len(rows))
        text = variants.with_rows(HOPPER.table.read_text(), new)
        self.assertIn("    {128, {2, 128, 2, 1, 240, 24}},\n", text)
        self.assertEqual(variants.read_table(HOPPER, text), new)

    def test_a_new_gpu_begins_as_the_one_before_it(self):
        rows = variants.read_table(STAGE)
        new = variants.new_table(rows, [row(89, tile=(64, 64, 4, 1, 2))], 89)
        mine = [r for r in new if r["architecture"] == 89]
        self.assertEqual(len(new) - len(rows), len(mine))
        like = {(r["dtype"], r["d"], r["causal"]): r["tile"] for r in rows if r["architecture"] == 80}
        for r in mine:
            tuned = (r["dtype"], r["d"], r["causal"]) == ("bf16", 64, False)
            self.assertEqual(r["tile"], [64, 64, 4, 1, 2] if tuned else like[r["dtype"], r["d"], r["causal"]])

    def test_the_tables_fit_every_gpu_that_they_serve(self):
        for stage in FOR_ALL_GPUS:
            rows = variants.read_table(stage)
            for architecture, shared_bytes in SHARED_BYTES.items():
                serves = max(row["architecture"] for row in rows if row["architecture"] <= architecture)
                for row in rows:
                    if row["architecture"] == serves:
                        need, _, why = stage.takes(dict(zip(stage.fields, row["tile"], strict=True)), row["d"])
                        self.assertLessEqual(need, shared_bytes, (stage.name, architecture, row))
                        self.assertEqual(why, "")


class MeasureTest(unittest.TestCase):
    def test_results_longer_than_a_pipe_holds_arrive(self):
        """A program that writes a megabyte, and only then its last line of progress."""
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "bench/flashladder_variants"
            program.parent.mkdir()
            program.write_text(f"#!{sys.executable}\nimport sys\n"
                               "print([1] * 400_000, flush=True)\nprint('  1 of 1', file=sys.stderr)\n")
            program.chmod(0o755)
            said = []
            self.assertEqual(len(variants.measure(Path(folder), folder, [], 1, said.append)), 400_000)
            self.assertEqual(said, ["  1 of 1"])

    def test_a_program_that_fails_is_quoted(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "bench/flashladder_variants"
            program.parent.mkdir()
            program.write_text("#!/bin/sh\necho 'no GPU' >&2\nexit 1\n")
            program.chmod(0o755)
            with self.assertRaisesRegex(variants.VariantError, "could not be measured: no GPU"):
                variants.measure(Path(folder), folder, [], 1, lambda text: None)


class CandidatesTest(unittest.TestCase):
    def test_each_has_all_numbers_of_a_tile_and_is_tried_once(self):
        for stage in FOR_ALL_GPUS:
            self.assertEqual(stage.fields[:4], ["Br", "Bc", "warps", "num_buffers"])
        for stage in STAGES:
            self.assertEqual({len(tile) for tile in stage.candidates}, {len(stage.fields)})
            self.assertEqual(len(stage.candidates), len(set(map(tuple, stage.candidates))))

    def test_the_kernels_take_the_tiles_of_the_backward_passes(self):
        """What the kernel asserts when it is compiled, and that the warps' keys and rows are all of the tile."""
        for tile in BACKWARD.candidates:
            t = dict(zip(BACKWARD.fields, tile))
            self.assertEqual(t["Bc"] * t["share"] % (16 * t["warps"]), 0, tile)
            self.assertEqual((t["Br"] % t["step"], t["step"] % 16, t["Br"] % 32), (0, 0, 0), tile)
            self.assertTrue(t["share"] == 1 or t["warps"] // 2 * (t["Br"] // t["step"]) < 16, tile)

    def test_what_does_not_fit(self):
        fits = STAGE.does_not_fit
        self.assertEqual(fits((128, 64, 4, 1, 2), 128, 227 << 10), "")
        self.assertIn("256 KiB of shared memory", fits((128, 96, 8, 2, 2), 256, 227 << 10))
        self.assertIn("320 registers", fits((128, 64, 4, 1, 2), 256, 1 << 20))

    def test_what_does_not_fit_of_the_backward_passes(self):
        def why(tile, d, shared_bytes=227 << 10):
            return BACKWARD.does_not_fit([*tile, 2], d, shared_bytes)

        self.assertEqual(why((64, 128, 4, 2, 1, 32), 64), "")
        self.assertEqual(why((64, 128, 4, 2, 1, 32), 64, 81 << 10), "")  # 64, 16 for dS, and 1 for L2 and D
        self.assertIn("takes 81 KiB", why((64, 128, 4, 2, 1, 32), 64, (81 << 10) - 1))
        self.assertIn("takes 177 KiB", why((64, 128, 8, 2, 2, 64), 128, 100 << 10))
        self.assertIn(f"takes {2 * 2 * 64 + 64} registers", why((64, 128, 4, 1, 1, 32), 128))
        self.assertIn("dQ of 32 rows and 32 columns over 8 warps", why((32, 128, 8, 2, 1, 32), 32))
        self.assertIn("64 keys over 8 groups", why((64, 64, 8, 1, 1, 32), 64))
        self.assertGreater(2 * 2 * 64, MOST_REGISTERS)


    def test_what_does_not_fit_on_hopper_alone(self):
        def why(tile, d, shared_bytes=SHARED_BYTES[90]):
            return HOPPER.does_not_fit(tile, d, shared_bytes)

        self.assertEqual(why((3, 64, 4, 2, 160, 32), 128), "")
        self.assertEqual(why((3, 64, 4, 2, 160, 32), 128, 229_568), "")  # as the claim has it
        self.assertIn("takes 224 KiB of shared memory", why((3, 64, 4, 2, 160, 32), 128, 229_567))
        self.assertIn("takes 256 KiB of shared memory", why((3, 80, 4, 2, 160, 32), 128))
        self.assertIn("a tile of 320 x 64", why((5, 64, 2, 1, 96, 24), 64))
        self.assertIn("a tile of 256 x 56", why((4, 56, 4, 2, 112, 32), 64))
        self.assertIn("112 or 28 registers: setmaxnreg takes multiples of 8", why((4, 64, 4, 2, 112, 28), 64))
        self.assertIn("240 or 16 registers", why((2, 80, 2, 1, 240, 16), 256))
        self.assertIn("88 or 32 registers: setmaxnreg", why((4, 64, 4, 2, 88, 32), 64))  # of 96 at launch
        self.assertIn("4 x 120 + 24 registers to the warpgroups, of 5 x 96", why((4, 64, 4, 2, 120, 24), 64))
        self.assertIn("takes 92 registers for its sums, and 24 for all else, of 112", why((4, 80, 4, 2, 112, 32), 64))
        self.assertIn("takes 68 registers for its sums, of 232", why((2, 48, 4, 2, 232, 32), 64))

    def test_there_are_enough_for_each_head_dimension_of_hopper_and_not_too_many(self):
        for d in tune.head_dims(HOPPER):
            fit = [tile for tile in HOPPER.candidates if not HOPPER.does_not_fit(tile, d, SHARED_BYTES[90])]
            self.assertTrue(3 < len(fit) < 64, (d, len(fit)))


class SearchTest(unittest.TestCase):
    def test_the_score(self):
        fast, slow = [[1.0, 1.1, 1.0], [4.0, 4.0, 9.0]], [[2.0, 2.0, 2.0], [4.0, 4.0, 4.0]]
        self.assertEqual(tune.score(fast, [fast, slow]), 1)
        self.assertAlmostEqual(tune.score(slow, [fast, slow]), 2 ** 0.5)

    def special(self, stage=STAGE):
        """A tile that fits at d = 64."""
        return [tile for tile in stage.candidates if not stage.does_not_fit(tile, 64, SHARED_BYTES[90])][2]

    def search(self, *, stage=STAGE, spilled=0, reordered="", wrong="", middle=1.05, fastest=1.0, dtypes=("bf16",),
               architecture=90):
        """A search over tiles whose kernels and times are made up: a special one takes `fastest` ms, all others 1.05,
        but `middle` at N = 2048."""
        special = self.special(stage)
        name = f"{stage.number}_" + "x".join(map(str, special))

        def make_all(orders, say):
            return [{"name": o["name"], "library": o["name"], "kernels": [
                {**kernel, "registers": 100, "spilled": spilled if r["tile"] == special else 0,
                 "reordered": reordered if r["tile"] == special else ""}
                for r in variants.read_table(stage, o["table"]) for kernel in kernels(stage, r)]} for o in orders]

        def measure(build, folder, tasks, rounds, say):
            def ms(library, N):
                return [fastest if library == name else middle if N == 2048 else 1.05] * rounds

            return [{library: {"wrong": wrong if library == name and task["check"][1:] else "",
                               "ms": [ms(library, problem["Nq"]) for problem in task["time"]]}
                     for library in task["libraries"]} for task in tasks]

        with mock.patch.object(sys, "argv", ["tune", "--d", "64", "--dtype", *dtypes, "--N", "512", "2048", "8192"]):
            args = tune.arguments()
        facts = {"gpu": "a GPU", "driver": "1", "architecture": architecture}
        with mock.patch.object(tune, "make_all", make_all), mock.patch.object(tune, "measure", measure):
            return tune.search(stage, args, facts, "/nowhere", lambda text: None)

    def best(self, **how):
        return min((r for r in self.search(**how) if "score" in r), key=lambda r: r["score"])

    def test_the_fastest_is_best(self):
        for stage in STAGES:
            self.assertEqual(self.best(stage=stage)["tile"], self.special(stage))

    def test_every_candidate_is_timed_or_rejected_for_each_mask(self):
        """Also those of the table, in the autotuner's list or not."""
        for stage in STAGES:
            found = self.search(stage=stage)
            tiles = {tuple(tile) for tile in stage.candidates}
            tiles |= {tuple(r["tile"]) for r in variants.read_table(stage) if r.get("architecture", 90) == 90}
            masks = (False, True) if stage in FOR_ALL_GPUS else (None,)
            self.assertEqual(sorted((tuple(r["tile"]), str(r.get("causal"))) for r in found),
                             sorted((tile, str(causal)) for tile in tiles for causal in masks))
            self.assertTrue(all(("score" in r) != ("rejected" in r) and r["stage"] == stage.number for r in found))

    def test_what_spills_or_is_wrong_is_rejected_with_its_reason(self):
        for how, why in (({"spilled": 8}, "spills 8 bytes"), ({"wrong": "O is off"}, "is not right: O is off"),
                         ({"reordered": "(C7510) serialized"}, "has wgmma that ptxas reorders: (C7510) serialized")):
            for stage in (STAGE, HOPPER):
                self.assertNotEqual(self.best(stage=stage, **how)["tile"], self.special(stage))
                self.assertTrue(any(why in r.get("rejected", "") for r in self.search(stage=stage, **how)))

    def test_on_hopper_alone_one_tile_is_the_best_for_both_dtypes_and_masks(self):
        best = self.best(stage=HOPPER, dtypes=("fp16", "bf16"))
        self.assertEqual(best, {"stage": 51, "d": 64, "tile": self.special(HOPPER), "registers": 100, "spilled": 0,
                                "ms": {f"{dtype} {mask} {N}": 1.0 for mask in ("full", "causal")
                                       for dtype in ("fp16", "bf16") for N in (512, 2048, 8192)}, "score": 1.0})

    def test_what_is_wrong_does_not_say_how_long_others_may_take(self):
        found = self.search(wrong="O is off", fastest=0.1)
        self.assertEqual({r["rejected"] for r in found if "rejected" in r}, {"is not right: O is off"})

    def test_what_takes_much_longer_at_the_middle_length_is_not_timed_further(self):
        found = self.search(middle=1.12)
        self.assertEqual({tuple(r["tile"]) for r in found if "score" in r}, {tuple(self.special())})
        self.assertIn("takes 1.12 times the fastest at N = 2048", {r.get("rejected") for r in found})

    def test_times_that_are_no_numbers_are_refused(self):
        with mock.patch.object(tune, "score", lambda *_: float("nan")), self.assertRaises(variants.VariantError):
            self.search()

    def run_tune(self, stages, *options, named=True, architecture=90):
        """The whole program on made-up times, with tables and the result in a folder of their own; what it prints and
        the folder's files by name."""
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            mine = {}
            for stage in stages:
                table = Path(folder) / f"{stage.number}.hpp"
                table.write_text(stage.table.read_text())
                found = [] if stage.does_not_run(architecture) else self.search(stage=stage, architecture=architecture)
                mine[stage.number] = mock.Mock(wraps=stage, number=stage.number, folder=stage.folder, table=table,
                                               fields=stage.fields, of=stage.of, found=found)
            facts = {"gpu": "a GPU", "driver": "1", "architecture": architecture}
            for name, value in (("TUNED", mine), ("gpu", lambda: facts),
                                ("search", lambda stage, *_: stage.found)):
                stack.enter_context(mock.patch.object(tune, name, value))
            stack.enter_context(mock.patch.object(sys, "argv", [
                "tune", "--d", "64", "--dtype", "bf16", "--out", f"{folder}/tune.json", "--commit", "abc",
                *(["--stage", *(str(stage.number) for stage in stages)] if named else []), *options]))
            with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
                tune.tune()
            return said.getvalue(), {path.name: path.read_text() for path in Path(folder).iterdir()}

    def test_the_tables_of_all_stages_are_rewritten_and_one_file_keeps_what_was_found(self):
        said, files = self.run_tune(STAGES)
        for stage in STAGES:
            new = variants.read_table(stage, files[f"{stage.number}.hpp"])
            masks = (False, True) if stage in FOR_ALL_GPUS else (None,)
            best = [stage.row(row(causal=causal), self.special(stage)) for causal in masks]
            mine = [r for r in new if (r.get("architecture", 90), r.get("dtype", "bf16"), r["d"]) == (90, "bf16", 64)]
            self.assertEqual(mine, best)
            self.assertIn(f"Stage {stage.number} on a GPU: the best tile ({', '.join(stage.fields)})", said)
        result = json.loads(files["tune.json"])
        self.assertEqual((result["commit"], set(result["tiles"])), ("abc", {"29", "38", "39", "51"}))
        self.assertEqual([(r["stage"], r.get("causal")) for r in result["winners"]],
                         [*((number, causal) for number in (29, 38, 39) for causal in (False, True)), (51, None)])

    def test_a_dry_run_writes_no_table(self):
        for stage, of in ((BACKWARD, "d =  64 causal bf16"), (HOPPER, "d =  64")):
            said, files = self.run_tune([stage], "--dry-run")
            self.assertEqual(files[f"{stage.number}.hpp"], stage.table.read_text())
            self.assertIn("tune.json", files)
            old = next(r["tile"] for r in variants.read_table(stage)
                       if {**row(causal=True), **r, "tile": 0} == {**row(causal=True), "tile": 0})
            self.assertIn(f"  {of}   {tune.tile_text(self.special(stage)):24} 100 registers   until now "
                          f"{tune.tile_text(old):24} 1.050\n", said)

    def test_on_other_gpus_what_runs_on_hopper_alone_is_left_out(self):
        why = "stage 51 runs on Hopper alone, a GPU of compute capability 9.0"
        said, files = self.run_tune([STAGE, HOPPER], named=False, architecture=120)
        self.assertIn(f"left out: {why}\n", said)
        self.assertIn("The tables of 29 have these tiles now", said)
        self.assertEqual(files["51.hpp"], HOPPER.table.read_text())
        with self.assertRaisesRegex(variants.VariantError, why):
            self.run_tune([HOPPER], architecture=120)

    def test_a_table_that_cannot_be_written_stays(self):
        def full(part, path):
            if path.suffix != ".hpp":
                return os.replace(part, path)
            self.assertEqual(path.read_text(), BACKWARD.table.read_text())
            raise OSError(28, "full")

        with mock.patch.object(Path, "replace", autospec=True, side_effect=full), self.assertRaisesRegex(OSError, "full"):
            self.run_tune([BACKWARD])

    def test_without_a_gpu_one_sentence_and_the_table_stays(self):
        with mock.patch.dict("os.environ", {"PATH": ""}), self.assertRaisesRegex(variants.VariantError, "on a GPU"):
            tune.gpu()
        self.assertEqual(STAGE.table.read_text(), TEXT)

    def test_benchmarks_whose_output_is_lost_have_failed(self):
        for out, status in (("/dev/full", 2), ("/dev/null", 0)):
            with open(out, "w") as lost:
                result = subprocess.run([BUILD / "bench/flashladder_bench", "--benchmark_list_tests"], stdout=lost,
                                        stderr=subprocess.PIPE, text=True)
            self.assertEqual((result.returncode, "cannot write to stdout" in result.stderr), (status, status == 2))

    def test_bad_options(self):
        for bad, why in ((["--N", "1000"], "divisors of 16384"), (["--rounds", "0"], "from 1 on"),
                         (["--stage", "29", "--d", "48"], "stage 29 has no tiles for d = 48, only for 32 64 96"),
                         (["--stage", "38", "--d", "64", "192"], "stage 38 has no tiles for d = 192"),
                         (["51", "--d", "32"], "stage 51 has no tiles for d = 32, only for 64 96 128 192 256"),
                         (["--stage", "22"], "stage 22 has no table of tiles"),
                         (["tensor_cores"], "stage tensor_cores has no table of tiles")):
            with mock.patch.object(sys, "argv", ["tune", *bad]), contextlib.redirect_stderr(io.StringIO()) as said, \
                    self.assertRaises(SystemExit):
                tune.arguments()
            self.assertIn(why, said.getvalue())
        for words, numbers in (([], []), (["38"], [38]), (["tuned", "--stage", "38", "29"], [29, 38]),
                               (["deeper_pipeline", "51_deeper_pipeline"], [51])):
            with mock.patch.object(sys, "argv", ["tune", *words]):
                self.assertEqual(tune.arguments().stage, numbers)


class VariantTest(unittest.TestCase):
    """Variants that are compiled and run, on the emulator."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tune test ")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def wrong(self, stage=STAGE, **how):
        one = variants.make(stage, self.folder, "one", build=BUILD, backend="emulator", **how)
        tasks = [{"libraries": [one["library"]], "time": [],
                  "check": variants.small_problems(stage, 64, causal, "bf16")}
                 for causal in (False, True)]
        return [next(iter(result.values()))["wrong"]
                for result in variants.measure(BUILD, self.folder, tasks, 1, lambda text: None)]

    def test_two_buffers_are_right(self):
        rows = [row(causal=causal, tile=(64, 32, 4, 2, 2)) for causal in (False, True)]
        self.assertEqual(self.wrong(table=variants.with_rows(TEXT, rows)), ["", ""])

    def test_another_tile_of_a_backward_pass_is_right(self):
        rows = [row(causal=causal, tile=(64, 96, 4, 1, 2, 32, 2)) for causal in (False, True)]
        table = variants.with_rows(BACKWARD.table.read_text(), rows)
        self.assertEqual(self.wrong(BACKWARD, table=table), ["", ""])

    def test_another_tile_on_hopper_alone_is_right(self):
        """Of d = 64 alone: no other kernel is compiled, and none that has no row."""
        table = variants.with_rows(HOPPER.table.read_text(), [{"d": 64, "tile": [2, 128, 2, 1, 240, 24]}])
        with mock.patch.object(variants, "small_problems", lambda stage, d, causal, dtype, all_=variants.small_problems: [
                {**one, "heads": min(one["heads"], 12)} for one in all_(stage, d, causal, dtype)]):
            self.assertEqual(self.wrong(HOPPER, table=table), ["", ""])

    def test_a_wrong_variant_is_found(self):
        rows = [row(causal=causal, tile=(64, 64, 4, 1, 2)) for causal in (False, True)]
        patch = SOURCE / "tests/mutants/29_l_of_one_lane.patch"
        for text in self.wrong(table=variants.with_rows(TEXT, rows), patch=patch):
            self.assertRegex(text, "^B=.*: .* off by ")

    def test_what_does_not_compile_is_said_with_its_error(self):
        with self.assertRaisesRegex(variants.VariantError, "variant one does not compile: .*error"):
            self.wrong(table="#error no table\n")

    def test_a_program_that_fails_is_said(self):
        with self.assertRaisesRegex(variants.VariantError, "could not be measured: .*cannot be loaded"):
            variants.measure(BUILD, self.folder, [{"libraries": ["/no.so"], "check": [], "time": []}], 1, lambda _: None)

    def test_what_needs_hopper_is_compiled_for_90a(self):
        for more, kind in (("", "90"), ('#include "common/ptx/wgmma.hpp"\n', "90a")):
            with mock.patch.multiple(variants, source_text=lambda _, more=more: more, compiler=lambda *_: "nvcc",
                                     resources=mock.DEFAULT, run=mock.DEFAULT) as made:
                variants.make(STAGE, self.folder, kind, build=BUILD, backend="cuda")
            self.assertIn(f"--generate-code=arch=compute_{kind},code=sm_{kind}", made["run"].call_args.args[0])

    def test_registers_and_spills_are_read(self):
        try:
            variants.compiler(STAGE, BUILD, "cuda")
        except variants.VariantError as error:
            self.skipTest(str(error))
        for stage, tile in ((STAGE, (128, 64, 4, 1, 2)), (BACKWARD, (64, 128, 8, 1, 1, 64, 2))):
            table = variants.with_rows(stage.table.read_text(), [row(tile=tile)])
            one = variants.make(stage, self.folder, str(stage.number), build=BUILD, backend="cuda", table=table)
            self.assertEqual([(k["dtype"], k["d"], k["causal"], k["tile"]) for k in one["kernels"]],
                             [("bf16", 64, False, [*tile])])
            self.assertTrue(100 < one["kernels"][0]["registers"] <= 255, one)
        tiles = {64: [3, 96, 3, 1, 160, 32], 128: [3, 96, 2, 1, 160, 32]}  # the second one has too few registers
        table = variants.with_rows(HOPPER.table.read_text(), [{"d": d, "tile": tile} for d, tile in tiles.items()])
        one = variants.make(HOPPER, self.folder, "51", build=BUILD, backend="cuda", table=table)
        self.assertEqual(sorted((k["dtype"], k["d"], k["causal"], k["tile"]) for k in one["kernels"]),
                         sorted((dtype, d, causal, tile) for dtype in ("bf16", "fp16") for d, tile in tiles.items()
                                for causal in (False, True)))
        for k in one["kernels"]:
            self.assertEqual((k["registers"], k["spilled"] > 0, "serialized" in k["reordered"]),
                             (128, k["d"] == 128, k["d"] == 128), k)
        for output in ("", "Compiling entry function '_Z1kv'\nUsed 20 registers",
                       "Compiling entry function '_Z11fa2_forwardI6__halfLi64ELb0ELi128EE'\nUsed 20 registers"):
            with self.assertRaises(variants.VariantError):
                variants.resources(STAGE, output)

    def test_with_stamps_a_kernel_spills_nothing_and_keeps_the_order_of_its_products(self):
        stages = stamps.chosen([])
        self.assertGreater(len(stages), 3)
        try:
            variants.compiler(stages[0], BUILD, "cuda")
        except variants.VariantError as error:
            self.skipTest(str(error))
        orders = [{"stage": stage, "folder": self.folder, "name": f"stamped_{stage.number}", "build": BUILD, "backend": "cuda",
                   "only": [(stamps.DTYPE, 64)], "stamped": True} for stage in stages]
        for one in variants.make_all(orders, lambda _: None):
            self.assertTrue(ctypes.CDLL(one["library"]).flashladder_take_stamps)
        plain = variants.make(**orders[0] | {"name": "plain", "stamped": False})
        with self.assertRaises(AttributeError):
            ctypes.CDLL(plain["library"]).flashladder_take_stamps

    def test_a_kernel_that_stamps_change_is_refused(self):
        for said in ("8 bytes spill stores, 8 bytes spill loads", "(C7510) wgmma.mma_async instructions are serialized"):
            with mock.patch.multiple(variants, compiler=lambda *_: "nvcc", run=lambda *_, said=said: said):
                with self.assertRaisesRegex(variants.VariantError, "with stamps stage 43 is another kernel"):
                    variants.make(stamps.chosen([43])[0], self.folder, f"said_{said[:2]}", build=BUILD, backend="cuda", stamped=True)

    def test_stages_whose_blocks_draw_and_those_of_any_gpu_take_no_stamps(self):
        with self.assertRaisesRegex(variants.VariantError, "stage 15 cannot be stamped: those that can are 40, "):
            stamps.chosen([15])
        with self.assertRaisesRegex(variants.VariantError, "stage 51 cannot be stamped"):
            stamps.chosen([51])

    def test_a_kernel_without_a_tile_has_the_tables_and_serves_both_masks(self):
        name = "_Z13wgmma_forwardI13__nv_bfloat16Li128EEvi"
        said, tile = PTXAS_SAYS.replace("_Z1bv", name), [3, 96, 2, 1, 160, 32]
        table = variants.with_rows(HOPPER.table.read_text(), [{"d": 128, "tile": tile}])

        def found(said):
            return variants.resources(HOPPER, said, table)

        self.assertEqual(found(said), [{"dtype": "bf16", "d": 128, "causal": causal, "tile": tile, "registers": 255,
                                        "spilled": 8, "reordered": ""} for causal in (False, True)])
        self.assertEqual(variants.resources(HOPPER, said)[0]["tile"],
                         next(r["tile"] for r in variants.read_table(HOPPER) if r["d"] == 128))
        why = "(C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient registers"
        for function, mine in ((f" in the function '{name}'", why), (f" for the function '{name}'", why), ("", why),
                               (" in the function '_Z1av'", "")):
            self.assertEqual(found(f"ptxas info    : {why}{function}\n{said}")[0]["reordered"], mine)
        with self.assertRaisesRegex(variants.VariantError, "no kernel"):
            variants.resources(HOPPER, PTXAS_SAYS)
        with self.assertRaisesRegex(variants.VariantError, "in a form that"):
            found(said.replace("Li128E", "Li64E"))


class AblationTest(unittest.TestCase):
    def test_every_patch_applies_and_says_what_it_leaves_out(self):
        for which in ablation.TILES:
            paths = ablation.patches(ablation.stage_of(which))
            self.assertGreater(len(paths), 4)
            for path in paths:
                with self.subTest(patch=path.name):
                    self.assertFalse(path.read_text().startswith("---"))
                    with tempfile.NamedTemporaryFile("w") as text:
                        text.write(source_text(ablation.stage_of(which).place / "attention.cu"))
                        text.flush()
                        subprocess.run(["patch", "-s", "-F0", "--dry-run", text.name, "-i", path], check=True)

    def test_every_patch_for_hopper_is_on_the_page(self):
        """And says where it changes something in a form that is known."""
        page = (SOURCE / "docs/did_not_pay.md").read_text()
        for path in ablation.patches(fastest_on_hopper()):
            self.assertIn(f"[{path.stem}](../{path.relative_to(SOURCE)})", page)
            second = path.read_text().splitlines()[1]
            self.assertRegex(second, r"^(--- stages/|Only: (causal|d = \d+(, \d+)*)$)", path.name)
            self.assertTrue(any(ablation.changes(path, d, causal) for d in range(8, 257, 8) for causal in (False, True)))

    def test_where_a_patch_changes_something(self):
        with tempfile.NamedTemporaryFile("w") as patch:
            for second, where in (("--- a.cu", {(64, False), (64, True), (128, False), (128, True)}),
                                  ("Only: causal", {(64, True), (128, True)}),
                                  ("Only: d = 128, 256", {(128, False), (128, True)})):
                Path(patch.name).write_text(f"an idea\n{second}\n")
                self.assertEqual({(d, causal) for d in (64, 128) for causal in (False, True)
                                  if ablation.changes(Path(patch.name), d, causal)}, where)

    def test_the_readmes_have_the_tables_of_the_results(self):
        command = [sys.executable, "-B", "-m", "bench.report.ablation_tables", "--check"]
        self.assertEqual(subprocess.run(command, cwd=SOURCE).returncode, 0)

    def test_the_table(self):
        rows = [{"without": "", "d": 64, "causal": False, "spilled": 0, "ratio": [1, 1]},
                {"without": "it", "d": 64, "causal": False, "spilled": 4, "ratio": [1.0, 4.0]}]
        result = {"gpu": "a GPU", "driver": "1", "commit": "c", "lengths": [1024, 4096], "rows": rows}
        table = ablation_tables.block(result).splitlines()
        self.assertEqual(table[-1], "| it | 2.000 (spills 4 B) | - | - | - | - | - |")
        rows[1]["ratio"][0] = float("nan")
        with self.assertRaisesRegex(gpu.BadResult, "no number, without 'it'"):
            ablation_tables.block(json.loads(json.dumps(result)))

    def test_the_table_of_ideas_that_are_added(self):
        rows = [{"with": "", "d": 128, "causal": True, "spilled": 0, "ratio": [1, 1]},
                {"with": "it", "d": 128, "causal": True, "spilled": 4, "ratio": [0.99, 1.25]}]
        result = {"gpu": "a GPU", "driver": "1", "commit": "c", "pace": "rested", "lengths": [512, 2048], "rows": rows}
        table = ablation_tables.block(result).splitlines()
        self.assertEqual(ablation_tables.block({**result, "d": [72, 128]}).splitlines()[-1],
                         "| it | - | - | - | 0.990 1.250 (spills 4 B) |")
        self.assertRegex(table[0], "^Time with the idea .* in each cell at N = 512, 2048 .* on one a GPU, rested, ")
        self.assertEqual(table[2].partition(" |")[0], "| with")
        self.assertEqual(table[-1], "| it | - | - | - | - | 0.990 1.250 (spills 4 B) | - |")

    def test_all_are_compared_in_every_round_in_an_order_by_chance(self):
        order, torch = [], mock.Mock(OutOfMemoryError=MemoryError)
        runs = {name: lambda name=name: order.append(name) for name in "abcd"}
        found = compare.measure(torch, runs, 5, "cpu", "rested")
        self.assertEqual({name: len(all_) for name, all_ in found.items()}, dict.fromkeys("abcd", 5))
        rounds = ["".join(order[i:i + 4]) for i in range(0, len(order), 4)]
        self.assertEqual([sorted(one) for one in rounds], 6 * [[*"abcd"]])  # one is the warm-up
        self.assertGreater(len({*rounds}), 1)

    def test_the_pace_of_a_comparison_has_lengths_of_its_own(self):
        for words, pace, lengths in (([], "rested", [512, 1024, 2048, 4096, 8192, 16384]), (["--busy"], "busy", [2048, 16384]),
                                     (["--busy", "--N", "512"], "busy", [512])):
            with mock.patch.object(sys, "argv", ["compare", *words]):
                chosen = compare.arguments()
                self.assertEqual((chosen.pace, chosen.N), (pace, lengths))
        said = io.StringIO()
        with mock.patch.object(sys, "argv", ["compare", "--busy", "--device", "cpu"]), contextlib.redirect_stderr(said), \
                self.assertRaises(SystemExit):
            compare.arguments()
        self.assertIn("--busy is of a GPU", said.getvalue())

    def test_each_variant_is_measured_against_the_whole(self):
        """On made-up times: the whole takes 1 ms, variant i 1 + i; the last has no kernel without the mask."""
        stage, facts = BACKWARD, {"architecture": 90}
        names = [what for what, _ in ablation.variants(stage, facts)]

        def make_all(orders, say):
            self.assertTrue(all(order["stage"] is stage for order in orders))
            return [{"name": o["name"], "library": f"lib{i}", "kernels": [
                {**r, "spilled": i} for r in variants.read_table(stage, o["table"])
                if r["causal"] or i + 1 < len(orders)]} for i, o in enumerate(orders)]

        def measure(build, folder, tasks, rounds, say, rested):
            self.assertFalse(rested)
            return [{library: {"wrong": "", "ms": [[1.0 + int(library[3:])] * rounds for _ in task["time"]]}
                     for library in task["libraries"]} for task in tasks]

        args = mock.Mock(which="backward", rounds=3, build=BUILD, only=None, d=ablation.HEAD_DIMS)
        with mock.patch.object(ablation, "make_all", make_all), mock.patch.object(ablation, "measure", measure):
            rows = ablation.measured(args, facts, "/nowhere", lambda text: None)
        for r in rows:
            i = names.index(r["without"])
            self.assertEqual((r["spilled"], r["ratio"]), (i, [1.0 + i] * len(ablation.LENGTHS["backward"])))
            self.assertTrue(r["causal"] or i + 1 < len(names))
        self.assertEqual({r["without"] for r in rows}, {*names})

    def test_each_idea_that_is_added_is_measured_where_it_changes_something(self):
        """On made-up times: the stage takes 1 ms, variant i 1 + i."""
        stage, seen = fastest_on_hopper(), []
        paths = ablation.patches(stage)

        def make_all(orders, say):
            self.assertEqual([order.get("patch") for order in orders], [None, *paths])
            return [{"name": o["name"], "library": f"lib{i}", "kernels": [
                {"dtype": dtype, "d": d, "causal": causal, "tile": [], "spilled": i * (dtype == "bf16")}
                for dtype in ("fp16", "bf16") for d in (64, 96, 128, 192, 256) for causal in (False, True)]}
                    for i, o in enumerate(orders)]

        def measure(build, folder, tasks, rounds, say, rested):
            self.assertTrue(rested)
            seen.extend(task["libraries"] for task in tasks)
            return [{library: {"wrong": "", "ms": [[1.0 + int(library[3:])] * rounds for _ in task["time"]]}
                     for library in task["libraries"]} for task in tasks]

        args = mock.Mock(which="hopper", rounds=3, build=BUILD, only=None, d=(64, 72, 256))
        with mock.patch.object(ablation, "make_all", make_all), mock.patch.object(ablation, "measure", measure):
            rows = ablation.measured(args, {"architecture": 90}, "/nowhere", lambda text: None)
        places = [(d, causal) for d in args.d for causal in (False, True)]
        self.assertEqual(seen, [["lib0", *(f"lib{i}" for i, path in enumerate(paths, 1) if ablation.changes(path, *place))]
                                for place in places])
        # A kernel for d = 96 takes d = 72.
        self.assertEqual(rows, [{"with": path and path.read_text().splitlines()[0], "d": d, "causal": causal, "spilled": i,
                                 "ratio": [1.0 + i] * 3} for i, path in enumerate(["", *paths]) for d, causal in places
                                if not path or ablation.changes(path, d, causal)])
        with self.assertRaisesRegex(variants.VariantError, f"stage {stage.number} runs on Hopper alone"):
            list(ablation.variants(stage, {"architecture": 80}))

    def test_only_some_patches(self):
        """By number; then no other tiles are measured either."""
        for which, only in (("hopper", ["03", "18"]), ("forward", ["2"])):
            stage, facts = ablation.stage_of(which), {"architecture": 90}
            chosen = [path for path in ablation.patches(stage) if path.name.partition("_")[0] in only]
            self.assertEqual(len(chosen), len(only))
            orders = [order for _, order in ablation.variants(stage, facts, only)]
            self.assertEqual([order.get("patch") for order in orders], [None, *chosen])
            with mock.patch.object(sys, "argv", ["ablation", "--pass", which, "--out", "x.json", "--only", *only]):
                self.assertEqual(ablation.arguments().only, only)

    def test_variants_without_a_tile_that_fits_are_left_out(self):
        for which in ("forward", "backward"):
            orders = dict(ablation.variants(tuned(which), {"architecture": 90}))
            self.assertEqual([*orders][0], "")
            tiles = [order for what, order in orders.items() if what in ablation.TILES[which]]
            self.assertGreaterEqual(len(tiles), 3)
            for order in tiles:
                for r in variants.read_table(tuned(which), order["table"]):
                    self.assertEqual(tuned(which).does_not_fit(r["tile"], r["d"], SHARED_BYTES[90]), "")
            with self.assertRaisesRegex(variants.VariantError, f"stage {tuned(which).number} has no rows for this GPU"):
                list(ablation.variants(tuned(which), {"architecture": 75}))

    def test_bad_options(self):
        for bad, why in ((["--pass", "forward"], "--out"), (["--out", "x.json"], "--pass"),
                         (["--pass", "both", "--out", "x.json"], "invalid choice"),
                         (["--pass", "forward", "--out", "x.json", "--rounds", "0"], "from 1 on"),
                         (["--pass", "forward", "--out", "x.json", "--d", "72"], "for d of 64, 128, 256"),
                         (["--pass", "hopper", "--out", "x.json", "--d", "64", "100"], "multiples of 8 from 16 to 256"),
                         (["--pass", "forward", "--out", "x.json", "--only", "2", "77"], "there is no patch 77 of this pass")):
            with mock.patch.object(sys, "argv", ["ablation", *bad]), \
                    contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit):
                ablation.arguments()
            self.assertIn(why, said.getvalue())


class LeftOutTest(unittest.TestCase):
    """Where the GPU present does not run a stage the others are measured, and it is said."""

    def stages(self, runs=("cuda",)):
        return [SimpleNamespace(number=number, name="", label=str(number), kernels=True, forward=True, backward=True,
                                dtypes=("bfloat16",), gpu=gpu, backends=("emulator", *(runs if gpu == "any" else ())))
                for number, gpu in ((29, "any"), (49, "hopper"))]

    def test_by_the_comparison_with_peers(self):
        def chosen(runs=("cuda",), device="cuda", stages=None, hopper=False):
            flashladder = SimpleNamespace(stages=lambda: self.stages(runs))
            options = SimpleNamespace(backward=False, dtype="bf16", device=device, stages=stages, hopper=hopper)
            with contextlib.redirect_stdout(io.StringIO()) as said:
                return compare.chosen_stages(flashladder, options), said.getvalue().count("left out: stage namespace(number=49")

        self.assertEqual(chosen(), ([29], 1))
        self.assertEqual(chosen(device="cpu"), ([29, 49], 0))
        self.assertEqual(chosen(stages=[29]), ([29], 0))
        self.assertEqual(chosen(runs=()), ([29, 49], 0))  # no GPU at all: what is missing is said of each
        with self.assertRaisesRegex(Missing, "of kernels that runs here: stage 49; those that have one are 29"):
            chosen(stages=[49])
        with mock.patch.object(compare, "source_of", lambda stage: '#include "common/ptx/wgmma.hpp"' * (stage.number == 49)):
            self.assertEqual(chosen(device="cpu", hopper=True), ([49], 0))

    def test_by_what_trains(self):
        for runs, number in ((("cuda",), 29), ((), 49)):
            found = ours.fastest(SimpleNamespace(stages=lambda runs=runs: self.stages(runs)), "bf16")
            self.assertEqual([one.number for one in found], [number, number])

    def test_by_the_counters(self):
        for capability, named, numbers in (("8.0", None, [29]), ("9.0", None, [29, 49]), ("8.0", [49], [49])):
            with mock.patch.object(nsight.registry, "all_stages", self.stages), \
                    mock.patch.object(nsight, "nvidia_smi", lambda _, one=capability: [one]), \
                    contextlib.redirect_stdout(io.StringIO()) as said:
                found = nsight.stages_of_kernels(SimpleNamespace(stages=named))
            self.assertEqual([one.number for one in found], numbers)
            self.assertEqual("left out: stage 49" in said.getvalue(), len(numbers) == 1 and named is None)


class AtomicsTest(unittest.TestCase):
    FACTS = {"gpu": "a GPU", "driver": "1", "architecture": 90}

    def counts(self, row, kernels):
        return measured_atomics.counts(row, kernels, atomics.WHOLE, atomics.DETERMINISTIC)

    def test_the_counts_are_those_of_the_ledger(self):
        """`./ladder ledger 38 39 --random 1,2,512,64 --backward`, without the mask and with it: additions, tiles of
        keys, and of the device memory of 39 what is not D and L2."""
        kernels = [{"variant": name, "d": 64, "causal": causal, "tile": [64, 128, 4, 2, 1, 32, 1]}
                   for name in (atomics.WHOLE, atomics.DETERMINISTIC) for causal in (False, True)]
        for causal, elements in ((False, 262_144), (True, 163_840)):
            row = {"d": 64, "causal": causal, "N": 512, "batch": 1, "heads": 2}
            self.assertEqual(self.counts(row, kernels), {"blocks": 4, "added": 4 * elements, "splits": 2,
                                                          "split_bytes": 532_480 - 2 * 4 * 2 * 512})
        long = {"d": 64, "causal": False, "N": 16384, "batch": 1, "heads": 32}
        self.assertEqual(self.counts(long, kernels)["splits"], 8)

    def test_what_is_compiled(self):
        orders = atomics.orders(self.FACTS, "/nowhere", BUILD)
        self.assertEqual([*orders], [name for name, *_ in atomics.VARIANTS])
        for (name, stage, patch, _), order in zip(atomics.VARIANTS, orders.values()):
            rows = variants.read_table(stage, order["table"])
            self.assertEqual({(r["d"], r["causal"], r["dtype"]) for r in rows},
                             {(d, causal, "bf16") for d in (64, 128) for causal in (False, True)})
            self.assertEqual(order["patch"], patch and SOURCE / "bench/variants/atomics" / patch)

    def test_the_shapes_are_those_of_the_page(self):
        for d in atomics.HEAD_DIMS:
            shapes = {(one["batch"] * one["heads"], one["Nq"]) for one in atomics.problems(d, True)}
            self.assertEqual(len(shapes), len(atomics.problems(d, True)))
            self.assertLessEqual({(16384 // N * 2048 // d, N) for N in atomics.LENGTHS}, shapes)
            self.assertLessEqual({(heads, 16384) for heads in atomics.HEADS}, shapes)

    def measured(self, memory, wrong=""):
        """Rows for made-up times: each variant takes as many milliseconds as its place among them, and 1."""
        names = [name for name, *_ in atomics.VARIANTS]
        def make_all(orders, say):
            return [{"name": o["name"], "library": f"lib{o['name']}", "kernels": [
                {**r, "registers": 9, "spilled": 0} for r in variants.read_table(o["stage"], o["table"])]}
                    for o in orders]

        def measure(build, folder, tasks, rounds, say):
            for task in tasks:  # what is wrong by design is never checked, and all others are
                self.assertTrue(not task["check"] or task["libraries"] == [f"lib{i}" for i in (0, 3, 4, 5, 6)])
            self.assertEqual(sum(bool(task["check"]) for task in tasks), 4)
            return [{library: {"wrong": wrong if task["check"] else "",
                               "ms": [[1.0 + int(library[3:])] * 3 for _ in task["time"]]}
                     for library in task["libraries"]} for task in tasks]

        with mock.patch.object(atomics, "make_all", make_all), mock.patch.object(atomics, "measure", measure):
            kernels, rows = atomics.measured(mock.Mock(rounds=3, build=BUILD), self.FACTS, memory, "/nowhere",
                                             lambda text: None)
        self.assertEqual({kernel["variant"] for kernel in kernels}, {*names})
        self.assertEqual({kernel["d"] for kernel in kernels}, {*atomics.HEAD_DIMS})
        self.assertEqual(len(rows), 2 * sum(len(atomics.problems(d, False)) for d in atomics.HEAD_DIMS))
        for row in rows:
            for name, ms in row["ms"].items():
                self.assertEqual(ms, 1 + names.index(name))
        return rows

    def test_all_variants_are_timed_at_all_shapes(self):
        self.assertTrue(all(len(row["ms"]) == len(atomics.VARIANTS) for row in self.measured(1 << 40)))

    def test_what_takes_too_much_memory_is_left_out_alone(self):
        rows, left_out = self.measured(6 << 30), []
        for row in rows:
            N, heads = row["N"], row["batch"] * row["heads"]
            too_large = {name for name, size in ((atomics.APART, N // 128 * 4 * heads * N * row["d"]),
                                                 (atomics.STORED_P, 2 * heads * N * N)) if size > 2 << 30}
            self.assertEqual({name for name, *_ in atomics.VARIANTS} - {*row["ms"]}, too_large, row)
            left_out.append(too_large)
        for each in (set(), {atomics.APART}, {atomics.APART, atomics.STORED_P}):
            self.assertIn(each, left_out)
        one = {"batch": 1, "heads": 32, "Nq": 16384, "Nk": 16384, "d": 64}
        self.assertEqual(atomics.extra_bytes(one, 128), {atomics.APART: 16 << 30, atomics.STORED_P: 16 << 30})

    def test_one_that_should_be_right_and_is_not_ends_it(self):
        with self.assertRaisesRegex(variants.VariantError, f"{atomics.WHOLE} is not right: dQ is off"):
            self.measured(1 << 40, wrong="dQ is off")


if __name__ == "__main__":
    unittest.main()
