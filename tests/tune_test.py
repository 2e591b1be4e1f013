"""Tests of the autotuner and of the ablation (bench/tune.py, bench/ablation.py), but for what takes a GPU.

Usage: tune_test.py BUILD [unittest options]
"""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

BUILD = Path(sys.argv.pop(1)).resolve()
SOURCE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SOURCE / "bench"))

import ablation  # noqa: E402
import tune  # noqa: E402
import variants  # noqa: E402

TEXT = variants.TABLE.read_text()


def row(architecture=90, dtype="bf16", d=64, causal=False, tile=(128, 64, 4, 1)):
    return {"architecture": architecture, "dtype": dtype, "d": d, "causal": causal, "tile": [*tile]}


class TableTest(unittest.TestCase):
    def test_what_is_written_is_what_is_read(self):
        rows = variants.read_table(TEXT)
        self.assertEqual(variants.with_rows(TEXT, rows), TEXT)
        self.assertEqual(variants.read_table(variants.with_rows(TEXT, [row()])), [row()])

    def test_every_dtype_head_dimension_and_mask_has_a_row_that_fits(self):
        rows = variants.read_table(TEXT)
        for architecture in {r["architecture"] for r in rows}:
            keys = [(r["dtype"], r["d"], r["causal"]) for r in rows if r["architecture"] == architecture]
            self.assertEqual(sorted(keys), sorted((t, d, c) for t in ("fp16", "bf16") for d in tune.HEAD_DIMS
                                                  for c in (False, True)))
        for r in rows:
            self.assertEqual(tune.does_not_fit(r["tile"][:3], r["tile"][3], r["d"],
                                               tune.SHARED_BYTES[r["architecture"]]), "", r)

    def test_a_table_of_another_form_is_refused(self):
        for broken in ("", TEXT.replace("{128, 64, 4, 1}", "{128, 64, 4}", 1), TEXT.replace(", true,", ", 1,", 1)):
            with self.assertRaisesRegex(variants.VariantError, "is not as ./ladder tune writes it"):
                variants.read_table(broken)

    def test_only_what_was_tuned_changes(self):
        rows = variants.read_table(TEXT)
        new = tune.new_table(rows, [row(tile=(64, 64, 4, 2))], 90)
        self.assertEqual([r for r in new if r not in rows], [row(tile=(64, 64, 4, 2))])
        self.assertEqual(len(new), len(rows))
        self.assertEqual(tune.new_table(rows, [], 90), rows)

    def test_a_new_gpu_begins_as_the_one_before_it(self):
        rows = variants.read_table(TEXT)
        new = tune.new_table(rows, [row(89, tile=(64, 32, 4, 1))], 89)
        mine = [r for r in new if r["architecture"] == 89]
        self.assertEqual(len(new) - len(rows), len(mine))
        like = {(r["dtype"], r["d"], r["causal"]): r["tile"] for r in rows if r["architecture"] == 80}
        for r in mine:
            tuned = (r["dtype"], r["d"], r["causal"]) == ("bf16", 64, False)
            self.assertEqual(r["tile"], [64, 32, 4, 1] if tuned else like[r["dtype"], r["d"], r["causal"]])


class SearchTest(unittest.TestCase):
    def test_what_does_not_fit(self):
        self.assertEqual(tune.does_not_fit((128, 64, 4), 1, 128, 227 << 10), "")
        self.assertIn("256 KiB of shared memory", tune.does_not_fit((128, 96, 8), 2, 256, 227 << 10))
        self.assertIn("320 registers", tune.does_not_fit((128, 64, 4), 1, 256, 1 << 20))

    def test_the_score(self):
        fast, slow = [[1.0, 1.1, 1.0], [4.0, 4.0, 9.0]], [[2.0, 2.0, 2.0], [4.0, 4.0, 4.0]]
        self.assertEqual(tune.score(fast, [fast, slow]), 1)
        self.assertAlmostEqual(tune.score(slow, [fast, slow]), 2 ** 0.5)

    def search(self, *, spilled=0, wrong=""):
        """A search over two tiles whose kernels and times are made up: 64x32 is twice as fast as all others."""
        def make_all(orders, say):
            return [{"name": o["name"], "library": o["name"], "kernels": [
                {"dtype": r["dtype"], "d": r["d"], "causal": r["causal"], "tile": r["tile"], "registers": 100,
                 "spilled": spilled if r["tile"] == [64, 32, 4, 1] else 0} for r in variants.read_table(o["table"])]}
                    for o in orders]

        def measure(build, folder, tasks, rounds, say):
            return [{name: {"wrong": wrong if name == "64x32x4x1" else "",
                            "ms": [[1.0 if name == "64x32x4x1" else 2.0] * 3 for _ in task["time"]]}
                     for name in task["libraries"]} for task in tasks]

        with mock.patch.object(sys, "argv", ["tune", "--d", "64", "--dtype", "bf16"]):
            args = tune.arguments()
        facts = {"gpu": "a GPU", "driver": "1", "architecture": 90}
        with mock.patch.object(tune, "make_all", make_all), mock.patch.object(tune, "measure", measure):
            return tune.search(args, facts, "/nowhere", lambda text: None)

    def best(self, **how):
        return min((r for r in self.search(**how) if "score" in r), key=lambda r: r["score"])

    def test_the_fastest_is_best(self):
        self.assertEqual(self.best()["tile"], [64, 32, 4, 1])

    def test_what_spills_or_is_wrong_is_rejected_with_its_reason(self):
        for how, why in (({"spilled": 8}, "spills 8 bytes"), ({"wrong": "O is off"}, "is not right: O is off")):
            self.assertNotEqual(self.best(**how)["tile"], [64, 32, 4, 1])
            self.assertTrue(any(why in r.get("rejected", "") for r in self.search(**how)))

    def test_times_that_are_no_numbers_are_refused(self):
        with mock.patch.object(tune, "score", lambda *_: float("nan")), self.assertRaises(variants.VariantError):
            self.search()

    def test_without_a_gpu_one_sentence_and_the_table_stays(self):
        with mock.patch.dict("os.environ", {"PATH": ""}), self.assertRaisesRegex(variants.VariantError, "on a GPU"):
            tune.gpu()
        self.assertEqual(variants.TABLE.read_text(), TEXT)

    def test_bad_options(self):
        for bad in (["--N", "1000"], ["--rounds", "0"], ["--d", "48"]):
            with mock.patch.object(sys, "argv", ["tune", *bad]), contextlib.redirect_stderr(io.StringIO()), \
                    self.assertRaises(SystemExit):
                tune.arguments()


class VariantTest(unittest.TestCase):
    """Variants that are compiled and run, on the emulator."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tune test ")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def wrong(self, **how):
        one = variants.make(self.folder, "one", build=BUILD, backend="emulator", **how)
        tasks = [{"libraries": [one["library"]], "time": [], "check": variants.small_problems(64, causal, "bf16")}
                 for causal in (False, True)]
        return [next(iter(result.values()))["wrong"]
                for result in variants.measure(BUILD, self.folder, tasks, 1, lambda text: None)]

    def test_two_buffers_are_right(self):
        rows = [row(causal=causal, tile=(64, 32, 4, 2)) for causal in (False, True)]
        self.assertEqual(self.wrong(table=variants.with_rows(TEXT, rows)), ["", ""])

    def test_a_wrong_variant_is_found(self):
        rows = [row(causal=causal, tile=(64, 32, 4, 1)) for causal in (False, True)]
        patch = SOURCE / "tests/mutants/19_l_of_one_lane.patch"
        for text in self.wrong(table=variants.with_rows(TEXT, rows), patch=patch):
            self.assertRegex(text, "^B=.*: .* off by ")

    def test_what_does_not_compile_is_said_with_its_error(self):
        with self.assertRaisesRegex(variants.VariantError, "variant one does not compile: .*error"):
            self.wrong(table="#error no table\n")

    def test_a_program_that_fails_is_said(self):
        with self.assertRaisesRegex(variants.VariantError, "could not be measured: .*cannot be loaded"):
            variants.measure(BUILD, self.folder, [{"libraries": ["/no.so"], "check": [], "time": []}], 1, lambda _: None)

    def test_registers_and_spills_are_read(self):
        try:
            variants.compiler(BUILD, "cuda")
        except variants.VariantError as error:
            self.skipTest(str(error))
        one = variants.make(self.folder, "one", build=BUILD, backend="cuda", table=variants.with_rows(TEXT, [row()]))
        self.assertEqual([(k["dtype"], k["d"], k["causal"], k["tile"]) for k in one["kernels"]],
                         [("bf16", 64, False, [128, 64, 4, 1])])
        self.assertTrue(100 < one["kernels"][0]["registers"] <= 255, one)
        for output in ("", "Compiling entry function '_Z1kv'\nUsed 20 registers"):
            with self.assertRaises(variants.VariantError):
                variants.resources(output)


class AblationTest(unittest.TestCase):
    def test_every_patch_applies_and_says_what_it_leaves_out(self):
        paths = sorted((SOURCE / "bench/ablations").glob("*.patch"))
        self.assertGreater(len(paths), 4)
        for path in paths:
            with self.subTest(patch=path.name):
                self.assertFalse(path.read_text().startswith("---"))
                subprocess.run(["patch", "-p0", "-s", "-F0", "--dry-run", "-d", SOURCE, "-i", path], check=True)

    def test_the_readme_has_the_table_of_the_results(self):
        self.assertEqual(subprocess.run([sys.executable, SOURCE / "bench/ablation.py", "--check"]).returncode, 0)

    def test_the_table(self):
        rows = [{"without": "", "d": 64, "causal": False, "spilled": 0, "ratio": [1, 1]},
                {"without": "it", "d": 64, "causal": False, "spilled": 4, "ratio": [1.0, 4.0]}]
        result = {"gpu": "a GPU", "driver": "1", "commit": "c", "lengths": [1024, 4096], "rows": rows}
        table = ablation.block(result).splitlines()
        self.assertEqual(table[-1], "| it | 2.000 (spills 4 B) | - | - | - | - | - |")
        rows[1]["ratio"][0] = float("nan")
        with self.assertRaisesRegex(variants.VariantError, "no number"):
            ablation.block(json.loads(json.dumps(result)))

    def test_variants_without_a_tile_that_fits_are_left_out(self):
        names = [what for what, _ in ablation.variants({"architecture": 90})]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(names[0], "")
        with self.assertRaisesRegex(variants.VariantError, "no rows for this GPU"):
            list(ablation.variants({"architecture": 75}))


if __name__ == "__main__":
    unittest.main()
