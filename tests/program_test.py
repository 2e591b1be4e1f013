"""Tests of the program behind ./ladder, as its user meets it: what it prints, writes and refuses.

Usage: program_test.py PROGRAM SOURCE_DIR [unittest options]
"""

import hashlib
import importlib.util
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import numpy as np
except ImportError:
    sys.exit("program_test: this Python has no NumPy: ./ladder setup makes one that has, .venv/bin/python")

PROGRAM, SOURCE = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
SMALL = ("--random", "1,2,40,8")


def limited(mebibytes):
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (mebibytes << 20, mebibytes << 20))


class ProgramTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_program(self, *arguments, **options):
        environment = {**os.environ, "FLASHLADDER_PYTHON": sys.executable, "OMP_NUM_THREADS": "2"}
        return subprocess.run([str(PROGRAM), *map(str, arguments)], capture_output=True, text=True, cwd=self.folder,
                              env=environment, timeout=300, **options)

    def climb(self, *arguments, **options):
        return self.run_program("climb", *arguments, **options)

    def refuses(self, status, *parts, arguments):
        """The program ends with `status` and one sentence that has all the parts, and leaves nothing behind."""
        before = set(self.folder.rglob("*"))
        result = self.climb(*arguments)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("ladder: "), result.stderr)
        for part in parts:
            self.assertIn(part, result.stderr)
        self.assertEqual(set(self.folder.rglob("*")), before)

    def save(self, name, array, **arrays):
        path = self.folder / name
        if arrays or name.endswith(".npz"):
            np.savez_compressed(path, **arrays)
        else:
            np.save(path, array)
        return path

    def save_qkv(self, q=(1, 2, 5, 4), k=(1, 2, 5, 4), v=None, dtype=np.float32):
        random = np.random.default_rng(1)
        arrays = [random.standard_normal(shape).astype(dtype) for shape in (q, k, v or k)]
        return self.save("qkv.npz", None, q=arrays[0], k=arrays[1], v=arrays[2])

    def report(self, out="out"):
        return json.loads((self.folder / out / "climb.json").read_text())

    # --- what it does -----------------------------------------------------------------------------------------

    def test_list_in_its_three_forms(self):
        text = self.run_program("list").stdout
        listed = json.loads(self.run_program("list", "--json").stdout)
        folders = sorted(p.parent.name for p in SOURCE.glob("stages/[0-9][0-9]_*/attention.c*"))
        self.assertEqual([f"{s['number']:02d}_{s['name']}" for s in listed], folders)
        for stage in listed:
            self.assertIn(stage["idea"], text)
            self.assertIn(stage["claim"], text)

    def test_the_tables_of_the_readmes_are_those_of_the_registry(self):
        for readme, prefix in (("README.md", "stages/"), ("stages/README.md", "")):
            text = (SOURCE / readme).read_text()
            table = re.search(r"<!-- ladder:begin -->\n(.*?)<!-- ladder:end -->", text, re.S).group(1)
            self.assertEqual(table, self.run_program("list", "--markdown", prefix).stdout,
                             f"{readme} is stale: put the output of 'list --markdown' between its markers")

    def test_the_committed_climb_is_what_the_readme_shows(self):
        committed, script = SOURCE / "bench/results/cpu/climb.json", SOURCE / "bench/report.py"
        table = subprocess.run([sys.executable, script, committed, "--markdown"], capture_output=True, text=True,
                               check=True).stdout
        shown = re.search(r"<!-- climb:begin -->\n(.*?)<!-- climb:end -->", (SOURCE / "README.md").read_text(), re.S)
        self.assertEqual(shown.group(1), table, "README.md is stale: put the output of 'bench/report.py "
                         "bench/results/cpu/climb.json --markdown' between its markers")
        picture = (SOURCE / "docs/climb.png").read_bytes()
        self.assertIn(hashlib.sha256(committed.read_bytes()).hexdigest().encode(), picture, "docs/climb.png is stale: "
                      "draw it with 'bench/report.py bench/results/cpu/climb.json --picture docs/climb.png'")

    def test_the_committed_comparison_is_what_the_readme_shows(self):
        spec = importlib.util.spec_from_file_location("compare_cpu", SOURCE / "bench/compare_cpu.py")
        compare = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(compare)
        text = (SOURCE / "stages/02_tiled_cpu/README.md").read_text()
        shown = text.split(compare.BEGIN)[1].split(compare.END)[0].strip()
        self.assertEqual(shown, compare.tables(2), "the README is stale: bench/compare_cpu.py "
                         "--from bench/results/cpu/amd-epyc.json --update-readme writes it")

    def test_climb_on_the_shipped_input(self):
        result = self.climb()
        self.assertEqual(result.returncode, 0, result.stderr)
        report = self.report()
        self.assertEqual(report["input"]["problem"], "B=1 H=12 N=512 d=32 fp32")
        self.assertEqual([s["status"] for s in report["stages"]], ["passed"] * len(report["stages"]))
        for stage in report["stages"]:
            self.assertIn(stage["idea"], result.stdout)
            self.assertTrue(0 < stage["oracle"]["error"] <= stage["oracle"]["allowed"])
            self.assertGreaterEqual(stage["time_ms"]["runs"], 3)
            self.assertEqual("against_before" in stage, stage["before"] != stage["number"])
        html = (self.folder / "out/report.html").read_text()
        self.assertEqual(re.findall(r'(?:src|href)=["\'](?!data:)[^"\']*', html), [])  # self-contained
        self.assertGreaterEqual(html.count("data:image/png;base64,"), 1)
        self.assertEqual({p.name for p in (self.folder / "out").iterdir()}, {"climb.json", "report.html"})

    def test_options_reach_the_problem(self):
        result = self.climb("--random", "2,4,30,16", "--kv-heads", 2, "--key-len", 50, "--causal", "--dtype", "bf16",
                            "--seed", 7, "--scale", 0.5, "--stages", "00-01", "--out", "a/b")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = self.report("a/b")
        self.assertEqual(report["input"]["problem"], "B=2 H=4 Hkv=2 Nq=30 Nk=50 d=16 causal bf16")
        self.assertEqual(report["input"]["scale"], 0.5)
        self.assertIn("seed 7", report["input"]["source"])
        self.assertEqual([s["number"] for s in report["stages"]], [0, 1])

    def test_own_arrays_of_every_accepted_kind(self):
        for dtype in (np.float16, np.float32, np.float64):
            self.assertEqual(self.climb("--input", self.save_qkv(dtype=dtype)).returncode, 0)
        for rank in (2, 3):
            self.assertEqual(self.climb("--input", self.save_qkv((3, 9, 4)[3 - rank:], (3, 9, 4)[3 - rank:])).returncode, 0)
        files = [self.save(f"{name}.npy", np.ones((1, 2, 3, 4), np.float32)) for name in "qkv"]
        result = self.climb("--q", files[0], "--k", files[1], "--v", files[2])
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.report()["input"]["problem"], "B=1 H=2 N=3 d=4 fp32")
        grouped = self.climb("--input", self.save_qkv((1, 6, 5, 4), (1, 2, 7, 4)))
        self.assertEqual(grouped.returncode, 0, grouped.stderr)
        self.assertEqual(self.report()["input"]["problem"], "B=1 H=6 Hkv=2 Nq=5 Nk=7 d=4 fp32")

    def test_memory_over_length(self):
        result = self.climb(*SMALL, "--memory", "--memory-up-to", 2048)
        self.assertEqual(result.returncode, 0, result.stderr)
        for stage in self.report()["memory"]["stages"]:
            sizes = {p["N"]: p["bytes"] for p in stage["points"]}
            self.assertEqual(set(sizes), {1024, 2048})
            if stage["number"] == 0:
                self.assertEqual(sizes, {n: 2 * n * n * 4 for n in sizes})
            elif stage["number"] < 10:
                self.assertEqual(sizes[1024], sizes[2048])

    def test_a_stage_that_does_not_fit_is_shown_as_out_of_memory(self):
        result = self.climb("--random", "1,1,8000,1", "--stages", "00-01", preexec_fn=limited(450))
        self.assertIn("out of memory", result.stdout)
        first, second = self.report()["stages"]
        self.assertEqual((first["status"], second["status"]), ("out of memory", "passed"))
        self.assertGreaterEqual(first["extra_bytes"], 4 * 8000 * 8000)
        self.assertNotIn("time_ms", first)
        self.assertNotIn("against_before", second)

    def test_a_stage_that_fails_is_shown_as_failed_and_not_timed(self):
        q = np.ones((1, 1, 4, 4), np.float32)
        v = q.copy()
        v[0, 0, 2, 1] = np.nan
        path = self.save("nan.npz", None, q=q, k=q, v=v)
        result = self.climb("--input", path, "--allow-nonfinite")
        self.assertEqual(result.returncode, 1)
        self.assertIn("FAILED", result.stdout)
        for stage in self.report()["stages"]:
            self.assertEqual(stage["status"], "failed")
            self.assertIn("cannot be judged", stage["why"])
            self.assertNotIn("time_ms", stage)
        self.assertIn("failed", (self.folder / "out/report.html").read_text())

    def test_an_existing_report_is_not_replaced_without_a_word(self):
        self.climb(*SMALL)
        self.assertIn("report.html exists and will be replaced", self.climb(*SMALL).stdout)

    def test_without_matplotlib_the_climb_is_still_written(self):
        environment = {**os.environ, "FLASHLADDER_PYTHON": "/nonexistent"}
        result = subprocess.run([str(PROGRAM), "climb", *SMALL], capture_output=True, text=True, cwd=self.folder,
                                env=environment, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertIn("the report was not drawn: there is no Python: ./ladder setup", result.stderr)
        self.assertEqual(len(self.report()["stages"]), len(json.loads(self.run_program("list", "--json").stdout)))

    def test_help_everywhere(self):
        for arguments in (["--help"], ["climb", "--help"], ["list", "--help"]):
            result = self.run_program(*arguments)
            self.assertEqual(result.returncode, 0)
            self.assertIn("--help", result.stdout)

    # --- what it refuses --------------------------------------------------------------------------------------

    def test_wrong_commands(self):
        for arguments, *parts in (
            ([*SMALL, "--nonsense"], "--nonsense"),
            (["--random", "1,2,3"], "1,2,3", "B,H,N,d"),
            (["--random", "1,2,3,4,5"], "B,H,N,d"),
            (["--random", "1,x,3,4"], "B,H,N,d"),
            (["--random", "1,2,0,4"], "Nq is 0", "at least 1"),
            (["--random", "1,2,8,0"], "d is 0"),
            (["--random", "1,2,8,257"], "d is 257", "1 to 256"),
            (["--random", "-1,2,8,4"], "batch is -1"),
            ([*SMALL, "--kv-heads", "3"], "not a multiple"),
            ([*SMALL, "--key-len", "0"], "Nk is 0"),
            (["--random", "1,1,4000000000000000000,256"], "64-bit"),
            ([*SMALL, "--dtype", "fp8"], "fp8", "bf16"),
            ([*SMALL, "--stages", "00-97"], "97 does not exist", "00, 01"),
            ([*SMALL, "--stages", "two"], "does not select stages"),
            ([*SMALL, "--input", "x.npz"], "not several"),
            (["--q", "q.npy"], "--q, --k and --v go together"),
            (["--kv-heads", "2"], "go with --random"),
            ([*SMALL, "--seed", "x"], "--seed"),
            ([*SMALL, "--scale", "nan"], "scale"),
            ([*SMALL, "--scale", "0"], "--scale"),
            (["--input", ""], "--input"),
            (["--random", ""], "--random"),
            ([*SMALL, "--stages", ""], "--stages"),
            ([*SMALL, "--seed", "-1"], "--seed"),
            (["--seed", "2"], "--seed go with --random"),
        ):
            with self.subTest(arguments=arguments):
                self.refuses(2, *parts, arguments=arguments)

    def test_more_than_the_machine_has(self):
        self.refuses(1, "GiB", "use smaller sizes", arguments=["--random", "64,64,1000000,256"])

    def test_files_that_cannot_be_used(self):
        good = np.ones((1, 2, 5, 4), np.float32)
        (self.folder / "text.npz").write_text("not an archive")
        (self.folder / "text.npy").write_text("not an array")
        whole = self.save("whole.npy", good).read_bytes()
        (self.folder / "cut.npy").write_bytes(whole[:-3])
        # The same header, as long as before, with another shape: 4 GB are declared and 160 bytes are there.
        huge = whole.replace(b"(1, 2, 5, 4)", b"(999999999,)")
        (self.folder / "huge.npy").write_bytes(huge)
        self.save("object.npy", np.array([{}], dtype=object))
        self.save("integers.npy", np.ones((2, 3), np.int32))
        self.save("fortran.npy", np.asfortranarray(np.ones((3, 4), np.float32)))
        for name, *parts in (("missing.npy", "No such file"), (".", "directory"), ("text.npy", "not an .npy file"),
                             ("cut.npy", "cut short"), ("huge.npy", "shape"), ("object.npy", "Python objects"),
                             ("integers.npy", "integers"), ("fortran.npy", "Fortran order")):
            with self.subTest(name=name):
                self.refuses(1, *parts, arguments=["--q", name, "--k", "whole.npy", "--v", "whole.npy"])
        self.refuses(1, "No such file", arguments=["--input", "missing.npz"])
        self.refuses(1, "not an .npz file", arguments=["--input", "text.npz"])
        self.save("tokens.npz", None, q=good, k=good, v=good, tokens=np.arange(5))
        self.assertEqual(self.climb("--input", "tokens.npz", "--stages", "00", "--out", "tokens").returncode, 0)
        self.save("other.npz", None, a=good, b=np.arange(3))
        self.refuses(1, "no array 'q'", "it has: a, b", arguments=["--input", "other.npz"])

    def test_arrays_that_do_not_fit_together(self):
        for q, k, v, *parts in (
            ((4,), (4,), (4,), "shape (4,)", "[batch, heads, rows, d]"),
            ((1, 1, 1, 2, 3), (1, 1, 1, 2, 3), (1, 1, 1, 2, 3), "[batch, heads, rows, d]"),
            ((2, 5, 4), (1, 2, 5, 4), (1, 2, 5, 4), "same number of dimensions"),
            ((1, 2, 5, 4), (1, 2, 5, 4), (1, 2, 6, 4), "k and v must have the same shape"),
            ((1, 2, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4), "batch sizes differ"),
            ((1, 2, 5, 4), (1, 2, 5, 8), (1, 2, 5, 8), "head dimensions differ"),
            ((1, 3, 5, 4), (1, 2, 5, 4), (1, 2, 5, 4), "query heads (3)", "not a multiple"),
            ((1, 2, 5, 0), (1, 2, 5, 0), (1, 2, 5, 0), "d is 0"),
            ((1, 2, 0, 4), (1, 2, 0, 4), (1, 2, 0, 4), "Nq is 0"),
            ((1, 2, 5, 300), (1, 2, 5, 300), (1, 2, 5, 300), "1 to 256"),
        ):
            with self.subTest(q=q, k=k, v=v):
                self.refuses(1, "qkv.npz", *parts, arguments=["--input", self.save_qkv(q, k, v)])

    def test_values_that_are_not_finite_are_named(self):
        for name, value, shown in (("q", np.nan, "nan"), ("k", np.inf, "inf"), ("v", -np.inf, "-inf")):
            arrays = {n: np.ones((2, 3, 4, 5), np.float32) for n in "qkv"}
            arrays[name][1, 2, 3, 4] = value
            path = self.save("nonfinite.npz", None, **arrays)
            self.refuses(1, f"{name}[1, 2, 3, 4] is {shown}", "--allow-nonfinite", arguments=["--input", path])

    def test_values_that_do_not_fit_the_dtype_are_named(self):
        q = np.full((1, 1, 2, 2), 70000, np.float32)
        path = self.save("large.npz", None, q=q, k=q, v=q)
        self.refuses(1, "q[0, 0, 0, 0] is 70000, too large for fp16", "bf16", arguments=["--input", path, "--dtype", "fp16"])

    def test_a_folder_that_cannot_be_written_is_said_before_the_run(self):
        (self.folder / "file").write_text("")
        self.refuses(1, "cannot write into the folder", "--out", arguments=[*SMALL, "--out", "file/out"])
        self.refuses(1, "cannot write into the folder", arguments=[*SMALL, "--out", "/proc/flashladder"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
