"""Tests of the program behind ./ladder, as its user meets it: what it prints, writes and refuses.

Usage: python3 -m tests.program_test PROGRAM SOURCE_DIR [unittest options]
"""

import fcntl
import hashlib
import json
import os
import pty
import re
import resource
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import warnings
from pathlib import Path
from unittest import mock

try:
    import numpy as np
except ImportError:
    sys.exit("program_test: this Python has no NumPy: ./ladder setup makes one that has, .venv/bin/python")

PROGRAM, SOURCE = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
os.environ["FLASHLADDER_PROGRAM"] = str(PROGRAM)
SMALL = ("--random", "1,2,40,8")  # most stages of kernels do not take d = 8 and are left out
SMALL_FOR_ALL = ("--random", "1,2,40,32")
STAGES = json.loads(subprocess.run([PROGRAM, "list", "--json"], capture_output=True, text=True, check=True).stdout)
FORWARD = [s for s in STAGES if s["forward"]]  # what a climb is of
KERNELS = [s["number"] for s in FORWARD if s["backend"] != "cpu"]
COUNTS = {"hbm_bytes_read", "hbm_bytes_written", "shared_bytes", "barriers", "operations", "matmul_flops", "tiles",
          "masked_tiles", "blocks", "extra_bytes"}
TAKE_FP32 = [s["number"] for s in FORWARD if "fp32" in s["dtypes"]]
ALL = [s["number"] for s in FORWARD]


def numbers(text):
    """Of stages, as the program writes them: 00-02, 10, 11."""
    ends = [(int(one.partition("-")[0]), int(one.rpartition("-")[2])) for one in text.split(", ")]
    return [number for first, last in ends for number in range(first, last + 1)]


def missing_for_cuda():
    """Why kernels cannot run on a GPU here, as the program says it; "" where they can."""
    result = subprocess.run([PROGRAM, "ledger", "13", "--backend", "cuda", "--random", "1,1,32,32"],
                            capture_output=True, text=True)
    return result.stderr


def run_module(name, *options):
    """A module of the repository, run from its top."""
    return subprocess.run([sys.executable, "-B", "-m", name, *map(str, options)], capture_output=True, text=True, cwd=SOURCE,
                          timeout=120)


def limited(mebibytes):
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (mebibytes << 20, mebibytes << 20))


class ProgramTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_program(self, *arguments, python=sys.executable, **options):
        environment = {**os.environ, "FLASHLADDER_PYTHON": python, "OMP_NUM_THREADS": "2"}
        return subprocess.run([str(PROGRAM), *map(str, arguments)], capture_output=True, text=True, cwd=self.folder,
                              env=environment, timeout=300, **options)

    def climb(self, *arguments, **options):
        return self.run_program("climb", *arguments, **options)

    def ledger(self, *arguments):
        """What `ledger --json` says, by stage."""
        result = self.run_program("ledger", *arguments, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return {s["number"]: s for s in json.loads(result.stdout)["stages"]}

    def refuses(self, status, *parts, arguments, verb="climb"):
        """The program ends with `status` and one sentence that has all the parts, and leaves nothing behind."""
        before = set(self.folder.rglob("*"))
        result = self.run_program(verb, *arguments)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertEqual(result.stdout, "")
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

    def results(self, mask="full", out="out"):
        """Of each stage what came of it under a mask, with what it is."""
        return [{**stage, **stage["masks"][mask]} for stage in self.report(out)["stages"]]

    # --- what it does -----------------------------------------------------------------------------------------

    def test_list_in_its_three_forms(self):
        text = self.run_program("list").stdout
        listed = json.loads(self.run_program("list", "--json").stdout)
        folders = sorted(p.parent.name for p in SOURCE.glob("stages/[0-9][0-9]_*/attention.c*"))
        self.assertEqual([f"{s['number']:02d}_{s['name']}" for s in listed], folders)
        self.assertEqual(text.count("of all GPUs Hopper"), [stage["gpu"] for stage in listed].count("hopper"))
        for stage in listed:
            self.assertIn(stage["idea"], text)
            self.assertIn(stage["claim"], text)
            before = next(s for s in listed if s["number"] == stage["before"])
            self.assertNotEqual(stage["track"], "")
            self.assertEqual(stage["follows"], before is not stage and before["track"] == stage["track"] and stage["number"] < 70)

    def test_the_table_of_the_stages_is_that_of_the_registry(self):
        text = (SOURCE / "stages/README.md").read_text()
        table = re.search(r"<!-- ladder:begin -->\n(.*?)<!-- ladder:end -->", text, re.S).group(1)
        self.assertEqual(table, self.run_program("list", "--markdown", "").stdout,
                         "stages/README.md is stale: put the output of 'list --markdown \"\"' between its markers")

    def test_the_readme_is_short_enough_to_be_read(self):
        self.assertLessEqual(len((SOURCE / "README.md").read_text().splitlines()), 100)

    def test_the_committed_climb_is_what_the_guide_shows(self):
        committed = SOURCE / "bench/results/cpu/climb.json"
        table = run_module("bench.report.climb", committed, "--markdown").stdout
        shown = re.search(r"<!-- climb:begin -->\n(.*?)<!-- climb:end -->", (SOURCE / "docs/measured.md").read_text(), re.S)
        self.assertEqual(shown.group(1), table, "docs/measured.md is stale: put the output of 'python3 -m "
                         "bench.report.climb bench/results/cpu/climb.json --markdown' between its markers")
        picture = (SOURCE / "docs/climb.png").read_bytes()
        self.assertTrue(hashlib.sha256(committed.read_bytes()).hexdigest().encode() in picture, "docs/climb.png is stale: "
                      "draw it with 'python3 -m bench.report.climb bench/results/cpu/climb.json --picture docs/climb.png'")

    def test_the_tables_of_counts_in_the_readmes_are_what_the_ledger_says(self):
        result = run_module("bench.report.ledger_tables", "--check")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_the_table_of_the_model_of_the_grid_is_what_the_model_says(self):
        result = run_module("bench.report.schedule", "--check")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_what_a_gpu_measured_is_what_the_readmes_show(self):
        result = run_module("bench.report.gpu_report", "--check")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_what_another_gpu_measured_is_a_report_of_its_own(self):
        def run(*options):
            return run_module("bench.report.gpu_report", *options)

        committed = SOURCE / "bench/results/h200"
        few, whole = self.folder / "few", self.folder / "whole"
        few.mkdir()
        (few / "stages.json").write_text((committed / "stages.json").read_text().replace("NVIDIA H200", "Some GPU"))
        for of, to in ((few, few / "report"), (committed, whole)):
            result = run("--of", of, "--to", to)
            self.assertEqual((result.returncode, result.stdout), (0, f"written: {to / 'report.md'}\n"), result.stderr)
            text = (to / "report.md").read_text()
            shown = re.findall(r"^!\[.+\]\((.+)\)$", text, re.M)
            self.assertEqual(sorted(shown), sorted(path.name for path in to.glob("*.png")))
            self.assertNotIn("Not yet.", text)
            self.assertNotRegex(text, r":\n+(#|\Z)")  # a sentence whose picture or table is elsewhere
        self.assertTrue(text.startswith("# FlashLadder on one NVIDIA H200\n"))
        self.assertGreater(len(shown), 12)
        text = (few / "report/report.md").read_text()
        self.assertNotIn("H200", text)
        rows = json.loads((few / "stages.json").read_text())["benchmarks"]
        labels = [path.name.replace("_", " ", 1) for path in sorted((SOURCE / "stages").glob("[124]?_*"))]
        headings = [f"Stage {label}: forward pass" for label in labels
                    if any(row["name"].startswith(f"{label} ") or row["name"].startswith(f"{label}/") for row in rows)]
        self.assertGreater(len(headings), 20)
        self.assertEqual(re.findall("^## (.+)$", text, re.M), headings)
        for options, said in ((("--of", few), "--of FOLDER and --to FOLDER belong together"),
                              (("--of", few, "--to", few, "--check"), "--check is of the READMEs"),
                              (("--of", self.folder, "--to", few), "stages.json cannot be read"),
                              (("--of", few, "--to", few / "stages.json"), "stages.json: File exists: is --to a folder")):
            result = run(*options)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(said, result.stderr)
            self.assertNotIn("Traceback", result.stderr)

    def test_what_was_measured_in_part_is_shown_or_refused(self):
        from bench.report import gpu_pictures, gpu_report
        committed = SOURCE / "bench/results/h200"

        def pictures(**keep):
            """Draws what is kept of the committed results; of each picture how many panels it has."""
            for path in committed.glob("*.json"):
                data = json.loads(path.read_text())
                for key, left in keep.get(path.stem, {}).items():
                    data[key] = [one for one in data[key] if left(one)]
                (self.folder / path.name).write_text(json.dumps(data))
            results = gpu_report.Results(self.folder, self.folder)
            results.blocks()
            with mock.patch.object(gpu_report, "counted", lambda stages, *_: {
                    mask: {stage: [1, 1, 1] for stage in stages} for mask in ("full", "causal")}), warnings.catch_warnings():
                warnings.simplefilter("error")
                return {path.name: axes_of(draw(shown)) for path, shown, draw in results.pictures()}

        def axes_of(figure):
            gpu_pictures.plt.close(figure)
            return len(figure.axes)

        def first(one):
            return (one["d"], one["causal"], one["N"]) == (64, False, 512)

        whole = pictures()
        self.assertEqual((whole["h200_bf16.png"], whole["h200_atomics.png"]), (6, 4))
        part = pictures(peers_bf16={"results": first}, backward_peers_bf16={"results": lambda one: one["d"] < 256 or
                                                                             not one["causal"]},
                        atomics={"rows": lambda one: one["d"] == 64}, stages={"benchmarks": lambda one: "bf16" in one.get(
                            "label", "") and "/N:512/" in one["name"]})
        self.assertEqual((part["h200_bf16.png"], part["h200_backward_bf16.png"], part["h200_atomics.png"]), (1, 5, 2))
        self.assertNotIn("h200_fp32.png", part)
        self.assertFalse(gpu_pictures.timed({"results": [{"name": "fa2", "absent": "why"}]}))
        training = json.loads((committed / "training.json").read_text())
        text = gpu_report.training_block({**training, "results": training["results"][:-1]})
        self.assertRegex(text, r"\| 2.7B \| 8192 \|.* absent \|\n")
        for name, key in (("stages", "benchmarks"), ("backward", "benchmarks"), ("training", "results"), ("atomics", "rows"),
                          ("peers_bf16", "results"), ("nsight", "results")):
            with self.assertRaisesRegex(gpu_report.BadResult, f"{name}.json has no results in it"):
                pictures(**{name: {key: lambda _: False}})
        (self.folder / "stages.json").write_text("[]")
        with self.assertRaisesRegex(gpu_report.BadResult, "stages.json is no file of results"):
            gpu_report.Results(self.folder, self.folder)

    def read_gpu_run(self, *benchmarks):
        from bench.results import gpu as gpu_results
        context = {"gpu": "a GPU", "multiprocessors": "4"}
        (self.folder / "run.json").write_text(json.dumps({"context": context, "benchmarks": benchmarks}))
        return gpu_results, gpu_results.read(self.folder / "run.json")

    def test_a_run_on_a_gpu_is_read_with_its_peaks(self):
        failed = {"error_occurred": True, "error_message": "out of memory: 1 MiB more is needed", "label": "fp32"}
        gpu_results, run = self.read_gpu_run(
            {"name": "peak/gemm_bf16/iterations:1/manual_time", "TFLOP/s": 700.0},
            {"name": "peak/gemm_fp32/iterations:1/manual_time", "error_occurred": True, "error_message": "wrong"},
            {"name": "peak/copy/iterations:1/manual_time", "TB/s": 4.0},
            {"name": "14 split/grid/d:64/N:512/BH:1024/full/iterations:1/manual_time", "TFLOP/s": 20.0,
             "label": "fp32"},
            {"name": "15 skip/grid/d:64/N:512/BH:1024/full/iterations:1/manual_time", "TFLOP/s": 30.0,
             "label": "fp32"},
            {"name": "15 skip/grid/d:128/N:512/BH:512/causal/iterations:1/manual_time", **failed},
            {"name": "16 cores/grid/d:64/N:512/BH:1024/full/iterations:1/manual_time", "TFLOP/s": 60.0,
             "label": "bf16"},
            {"name": "00 naive_cpu/full/N:256/d:64/real_time"})
        self.assertEqual(run.peaks, {"gemm_bf16": 700, "copy": 4})
        measured = gpu_results.Measured(run)
        self.assertEqual(measured.stages, [14, 15, 16])
        self.assertEqual((measured.peak(15), measured.peak(16)), (None, 700))
        self.assertEqual(measured.grid[15, 128, "causal", 512].why, failed["error_message"])
        self.assertIsNone(measured.tflops(15, 128, "causal", 512))
        self.assertEqual(measured.gains(15, 14, 512), [1.5])
        self.assertEqual(measured.gains(14, None, 512), [])

    def test_the_backward_passes_are_a_ladder_of_their_own(self):
        gpu_results, run = self.read_gpu_run(
            {"name": "peak/gemm_fp32", "TFLOP/s": 50.0}, {"name": "peak/gemm_bf16", "TFLOP/s": 700.0},
            {"name": "10 naive_gpu/grid/d:64/N:4096/BH:128/full", "TFLOP/s": 13.0, "label": "fp32"},
            *({"name": f"{name}/backward/d:64/N:{N}/BH:{BH}/{mask}", "TFLOP/s": speed, "label": dtype}
              for name, speed, dtype in (("10 naive_gpu", 8.0, "fp32"), ("30 fa1_backward", 4.0, "fp32"),
                                         ("31 fa2_backward", 12.0, "fp32"), ("32 tensor_core_backward", 90.0, "bf16"))
              for N, BH in ((512, 1024), (4096, 128)) for mask in ("full", "causal")))
        forward, backward = gpu_results.Measured(run), gpu_results.Measured(run, backward=True)
        self.assertEqual((forward.stages, backward.stages), ([10], [10, 30, 31, 32]))
        self.assertEqual((forward.tflops(10, 64, "full", 4096), backward.tflops(10, 64, "full", 4096)), (13, 8))
        self.assertEqual([backward.peak(stage) for stage in backward.stages], [50, 50, 50, 700])
        from bench.report import gpu_pictures, gpu_report
        context = {"gpu": "a GPU", "driver": "1", "torch": "2", "cudnn": 9, "commit": "abc", "dtype": "bf16", "rounds": 3,
                   "multiprocessors": "4", "cuda_of_build": "13", "pass": "backward"}
        backward.context.update(context)
        peers = {"context": context, "results": [
            {"d": 64, "causal": causal, "N": N, "name": name, **of} for causal in (False, True) for N in (512, 4096)
            for name, of in (("stage 32", {"tflops": 90.0}), ("fa2", {"tflops": 180.0}), ("math", {"absent": "too large"}))]}
        blocks = {(path.parent.name, name): text for path, name, text in gpu_report.backward_blocks(backward, None)
                  if path.parent.name.startswith(("10", "30", "31"))}
        self.assertIn("| 512 | 8.00 | 8.00 |", blocks["10_naive_gpu", "backward"])
        self.assertIn("times as fast as 30", blocks["31_fa2_backward", "backward"])
        self.assertIn("| 4096 | 12.00 (3.00x) | 12.00 (3.00x) |", blocks["31_fa2_backward", "backward"])
        self.assertIn("fp32; backward pass, whose FLOPs count 2.5 times", blocks["30_fa1_backward", "backward"])
        self.assertIn("| 64 | causal | 512 | 90 (0.50) | 180 | absent |", gpu_report.backward_peers_table(peers))
        short = gpu_report.short_backward_table(peers)
        self.assertIn("| 64 | full | 0.50 (0.50 to 0.50) | absent |", short)
        self.assertIn("in bf16 over PyTorch's FlashAttention-2's, on one a GPU, driver 1, PyTorch 2, cuDNN 9, commit abc", short)
        counted = {mask: {10: [6 << 20, 1 << 20, 0], 30: [4 << 20, 1 << 20, 0], 31: [2 << 20, 1 << 20, 2 << 20],
                          32: [1 << 20, 1 << 19, 1 << 20]} for mask in ("full", "causal")}
        pictures = {path.name: (path, shown, draw)
                    for path, shown, draw in gpu_pictures.backward_pictures(backward, peers, counted)}
        self.assertEqual(sorted(pictures), ["h200_backward.png", "h200_backward_bf16.png", "h200_backward_fp32.png",
                                            "h200_backward_traffic.png"])
        fp32, traffic = (pictures[f"h200_backward_{name}.png"][1] for name in ("fp32", "traffic"))
        self.assertEqual((fp32["title"], fp32["ceiling"]),
                         ("fp32, backward pass on one a GPU, launches close together: batch * N = 16k, heads * d = 2048", 50))
        self.assertEqual([{line["label"]: line["points"] for line in panel["lines"]} for panel in fp32["panels"]], 2 * [
            {"10 naive_gpu": [(512, 8), (4096, 8)], "30 fa1_backward": [(512, 4), (4096, 4)],
             "31 fa2_backward": [(512, 12), (4096, 12)]}])
        self.assertEqual(traffic["moved"], [*gpu_pictures.MOVED])
        self.assertEqual(traffic["panels"][1]["mib"], [[6, 1, 0], [4, 1, 0], [2, 1, 2], [1, 0.5, 1]])
        self.assertEqual(traffic["least_of"], "Q, K, V, O, dO, dQ, dK, dV and L once each")
        one = 1024 * 64 / 2**20  # of each, for a head
        self.assertEqual(traffic["least"], 3 * [8 * 4 * one + 4 / 2**10] + [8 * 2 * one + 4 / 2**10])
        for path, shown, draw in pictures.values():
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # such as of a line without points, which takes all of the room
                gpu_pictures.save(draw(shown), self.folder / path.name, shown)
            self.assertFalse(gpu_pictures.is_stale(self.folder / path.name, shown))
        self.assertEqual(list(gpu_pictures.backward_pictures(None, None, None)), [])
        self.assertEqual({text for _, _, text in gpu_report.backward_blocks(None, None)}, {"Not yet."})

    def comparison(self, speeds, **context):
        """A file as bench.measure.compare writes it, of one d: TFLOP/s by name, None where it is absent."""
        context = {"gpu": "a GPU", "driver": "1", "torch": "2", "cudnn": 9, "commit": "abc", "dtype": "bf16",
                   "rounds": 3, **context}
        return {"context": context, "results": [
            {"d": 64, "causal": causal, "N": N, "name": name, **({"tflops": tflops} if tflops else {"absent": "why"})}
            for causal in (False, True) for N in (512, 4096)
            for name, tflops in (speeds(causal, N) if callable(speeds) else speeds).items()]}

    def test_a_run_says_at_which_pace_it_was_measured(self):
        self.read_gpu_run()
        from bench.report import gpu_report
        at = {pace: self.comparison({"stage 51": 60.0, "cudnn": 40.0, "flash-attn-4": 48.0}, pace=pace)
              for pace in ("rested", "busy")}
        for pace, peers in at.items():
            self.assertIn(f"commit abc; {pace}:", gpu_report.short_peers_table(peers))
        for row in at["busy"]["results"]:
            row["tflops"] /= 2
            row.update({"sm_ghz": 1.5, "share": 0.75} if row["name"] != "cudnn" else {})
        rested = [row for row in at["rested"]["results"] if row["name"] != "flash-attn-4" or row["causal"]]
        table = gpu_report.busy_table({**at["rested"], "results": rested}, at["busy"])
        self.assertIn("| 64 | causal | 512 | 60, 30; 1.50 GHz, 75 % | 40, 20 | 48, 24; 1.50 GHz, 75 % | 1.25 |\n", table)
        self.assertIn("| 64 | full | 4,096 | 60, 30; 1.50 GHz, 75 % | 40, 20 | absent | 1.25 |\n", table)

    def test_other_problems_are_read_from_the_benchmarks(self):
        from bench.report import gpu_report
        from bench.results import gpu
        path = self.folder / "other.json"
        context = {"gpu": "a GPU", "driver": "1", "multiprocessors": "2", "cuda_of_build": "13.0", "commit": "abc",
                   "pace": "rested"}
        rows = [{"name": f"51 it/other/{what}/iterations:1/manual_time", "TFLOP/s": 7.0} for what in (
            "d/d:72/N:4096/BH:112/full", "d/d:72/N:4096/BH:112/causal", "ragged/d:128/N:4001/BH:64/causal")]

        def block(rows):
            path.write_text(json.dumps({"context": context, "benchmarks": [{"name": "50 it/host/d:64/N:1/BH:1/full"}, *rows]}))
            stage, found, kept = gpu.others(path)
            self.assertEqual(stage, 51)
            return gpu_report.other_block(found, kept)

        text = block(rows)
        self.assertIn("2 multiprocessors, driver 1, CUDA 13.0, commit abc; rested;", text)
        self.assertIn("| d = 72 | 7 | 7 |\n| N = 4,001, d = 128 | absent | 7 |\n", text)
        for wrong in ([], [{**rows[0], "TFLOP/s": float("nan")}], [*rows, {**rows[0], "name": rows[0]["name"].replace("51", "50")}]):
            with self.assertRaises(gpu.BadResult):
                block(wrong)

    def test_variants_without_meaning_are_refused(self):
        for variant, part in (
                ("windo:3", "the variants are window:KEYS, softcap:LIMIT"), ("window:x", "give window:KEYS or window:LEFT:RIGHT"),
                ("window:-2", "the window's left side is -2"), ("softcap:1:2", "give softcap:LIMIT, a number"),
                ("softcap:-1", "the softcap is -1"), ("softcap:1e-39", "give a larger one"),
                ("prefix:", "give prefix:KEYS"), ("prefix:3", "ask for that mask, too"),
                ("dropout:0.1:a", "give dropout:SHARE or dropout:SHARE:SEED"), ("dropout:1", "the dropout is 1"),
                ("documents:0", "give documents:LENGTH"), ("documents:100:100", "the documents have 200 rows and the input has 300"),
                ("bias:1:2", "give bias, one of the batch's, or bias:BATCH:HEADS:ROWS"), ("bias:1:3:1", "the bias is [1, 3, 1, 300]"),
                ("blocks", "give blocks:SHARE or blocks:SHARE:SEED"), ("blocks:2", "from 0 to 1"), ("blocks:nan", "from 0 to 1"),
                ("blocks:0.5,documents:100", "a block map and packed sequences do not go together"),
                ("documents:100:4000", "the documents have 4100 rows and the input has 300"),
                ("window:3,sinks,window:4", "'window:4' is not understood: each variant can be given once"),
                ("window:3,", "--variant window:3,: '' is not understood")):
            with self.subTest(variant=variant):
                self.refuses(2, part, verb="ledger", arguments=("80", "--random", "1,2,300,64", "--variant", variant))
        for sizes, variant, part in (("1,1,0,32", "documents:4", "query length Nq is 0"),
                                     ("1,1,9000000000000000000,32", "documents:4", "64-bit"),
                                     ("1,1,4000000000,32", "blocks:0.5", "more than is free"),
                                     ("1,64,300000,32", "bias", "more than is free")):
            with self.subTest(sizes=sizes, variant=variant):
                self.refuses(2, part, verb="ledger", arguments=("80", "--random", sizes, "--variant", variant))

    def test_a_prefix_is_climbed_under_the_causal_mask(self):
        small = ("73", "--random", "1,2,64,32", "--variant", "prefix:4", "--backend", "emulator")
        for options in ((), ("--backward",)):
            result = self.climb(*small, "--causal", *options, python="true")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual([stage["status"] for stage in self.results("causal")], ["passed"])
        self.refuses(2, "a prefix makes rows see more", arguments=[*small, "--full", "--causal", "--out", "no"])

    def test_a_variant_is_shown_beside_its_peers_or_refused(self):
        from bench.report import gpu_report
        path = self.folder / "policies_window.json"
        context = {"gpu": "a GPU", "driver": "1", "torch": "2", "cudnn": 9, "commit": "abc", "dtype": "bf16", "batch*N": 16384,
                   "heads*d": 2048, "rounds": 3, "pace": "rested", "variant": "window:128"}

        def row(name, ms=None, N=256, of_pass="forward"):
            times = {key: ms for key in ("ms", "ms_lower_quartile", "ms_upper_quartile")} if ms else {"absent": "a | b"}
            return {"pass": of_pass, "d": 64, "causal": True, "N": N, "name": name, **times}

        def block(rows, context=context):
            path.write_text(json.dumps({"context": context, "results": rows}))
            return gpu_report.policies_block(*gpu_report.of_policies(path))

        rows = [row(name, ms, N) for N in (128, 256) for name, ms in
                (("stage 72", 1.5), ("plain, causal", 1.0 * N / 128), ("flex", 3.0 if N == 256 else None))]
        rows += [row("stage 72", of_pass="backward"), row("plain, causal", 1.0, of_pass="backward")]
        text = block(rows)
        for said in ("Milliseconds of `window:128` under the causal mask in bf16 on one a GPU, driver 1, PyTorch 2, cuDNN 9, "
                     "commit abc; batch * N = 16,384, heads * d = 2,048; one interleaved run, rested, median of 3",
                     "| forward | 64 | 128 | 1.500 | 1.000 (0.67) | absent: a \\| b |\n",
                     "| forward | 64 | 256 | 1.500 | 2.000 (1.33) | 3.000 (2.00) |\n",
                     "| backward | 64 | 256 | absent: a \\| b | 1.000 | not measured |\n",
                     "- forward: 0.94 (0.67 to 1.33) over plain attention; 2.00 (2.00 to 2.00) over FlexAttention\n",
                     "\nAt N = 256, over plain attention under the causal mask",
                     "- forward, d = 64: 0.750 of the time for 1.000 of the tiles, which are of 128 rows and 128 keys: 0.75 "):
            self.assertIn(said, text)
        self.assertNotIn("- backward", text)
        for options in ((), ("--backward",)):
            for variant, window in (((), (-1, 0)), (("--variant", "window:100"), (100, 0))):
                counted = self.ledger("72", "--random", "1,1,512,64", "--causal", *variant, *options)[72]
                self.assertEqual(gpu_report.live_tiles(512, **counted["tile"], left=window[0], right=window[1]),
                                 counted["counts"]["tiles"])
        for key, value in (("name", None), ("name", "other"), ("ms", None), ("ms", float("nan")), ("N", "256"), ("pass", None),
                           ("name", "stage 75"), ("causal", False), ("ms_upper_quartile", None)):
            with self.assertRaisesRegex(gpu_report.BadResult, re.escape(str(path))):
                block([*rows, {**rows[0], key: value}])
        for wrong in ([], rows[1:3], [{key: value for key, value in rows[0].items() if key != "ms"}]):
            with self.assertRaisesRegex(gpu_report.BadResult, re.escape(str(path))):
                block(wrong)
        for key in context:
            with self.assertRaisesRegex(gpu_report.BadResult, f"policies_window.json does not say its {re.escape(key)}"):
                block(rows, {name: value for name, value in context.items() if name != key})

    def test_the_better_of_two_peers_is_what_the_fastest_is_set_beside(self):
        self.read_gpu_run()
        from bench.report import gpu_report

        def speeds(causal, N):
            return {"stage 50": 99.0, "stage 51": 60.0 + N / 256, "fa2": 90.0, "cudnn": 50.0 if causal else 80.0,
                    "flash-attn-4": None if causal and N == 512 else 60.0}

        table = gpu_report.better_table([self.comparison(speeds, gpu="A", pace="rested"), self.comparison(speeds, gpu="B")])
        self.assertTrue(table.startswith(
            "In bf16 on one A, driver 1, PyTorch 2, cuDNN 9, commit abc, rested; bf16 on one B, driver 1, PyTorch 2, cuDNN 9, "
            "commit abc, launches close together; one interleaved run each:\n\n"
            "| GPU | d | mask | stage | N = 512 | N = 4,096 | mean from 1,024 on |\n"), table)
        for gpu in "AB":
            self.assertIn(f"| {gpu} | 64 | full | 51 | 0.78 | 0.95 | 0.95 |\n"
                          f"| {gpu} | 64 | causal | 51 | absent | 1.27 | 1.27 |\n", table)
        self.assertEqual(table.count("\n"), 8)

    def test_the_front_page_says_at_which_shapes_the_fastest_stage_is_ahead(self):
        from bench.report import gpu_report

        def behind(folder, *peers):
            speeds = gpu_report.by_shape(json.loads((folder / gpu_report.HOPPER_PEERS).read_text()))
            return len(speeds), [N for (*_, N), at in speeds.items() if at["stage 51"] <= max(at[name] for name in peers)]

        shapes, lost = behind(gpu_report.FOLDER, "cudnn", "flash-attn-4")
        text = " ".join((SOURCE / "README.md").read_text().split())
        self.assertIn(f"On an H200 it is faster than both at {shapes - len(lost)} of {shapes} shapes.", text)
        self.assertIn("On an H100 stage 51 is faster than FlashAttention-4 at every shape that was measured, and faster than "
                      f"cuDNN from N = {gpu_report.BETTER_FROM:,} on.", text)
        self.assertEqual(behind(gpu_report.HOPPER, "flash-attn-4")[1], [])
        self.assertLess(max(behind(gpu_report.HOPPER, "cudnn")[1]), gpu_report.BETTER_FROM)

    def test_a_peer_that_is_absent_at_a_shape_is_said_to_be(self):
        self.read_gpu_run()
        from bench.report import gpu_pictures, gpu_report

        def speeds(causal, N):
            return {"stage 20": 20.0, "stage 29": None if N == 512 else 90.0, "fa2": None if causal else 60.0,
                    "cudnn": 120.0}

        text = gpu_report.peers_table(self.comparison(speeds))
        self.assertIn("on one a GPU, driver 1, PyTorch 2, cuDNN 9, commit abc; one interleaved run, launches close "
                      "together, median of 3", text)
        for row in ("| d | mask | N | stage 29 | FlashAttention-2 (PyTorch) | cuDNN |\n",
                    "| 64 | full | 512 | absent | 60 | 120 (2.00) |\n",
                    "| 64 | full | 4096 | 90 (1.50) | 60 | 120 (2.00) |\n",
                    "| 64 | causal | 4096 | 90 | absent | 120 |\n",
                    "1.500 in the geometric mean of 1 shapes, 1.50 to 1.50."):
            self.assertIn(row, text)
        short = gpu_report.short_peers_table(self.comparison(speeds))
        self.assertTrue(short.startswith("In bf16 on one a GPU, driver 1, PyTorch 2, cuDNN 9, commit abc; launches close "
                                         "together:\n\n| d |"),
                        short)
        self.assertIn("| 64 | full | 29 | 1.50 (1.50 to 1.50) | 0.75 (0.75 to 0.75) |\n", short)
        self.assertTrue(short.endswith("| 64 | causal | 29 | absent | 0.75 (0.75 to 0.75) |\n"), short)
        nothing = self.comparison({"stage 29": None, "fa2": 60.0})
        self.assertNotIn("geometric mean", gpu_report.peers_table(nothing))
        self.assertEqual(gpu_report.short_peers_table(nothing).count("\n"), 4)  # where it was measured, and the head

    def test_the_price_of_a_fixed_order_is_a_column(self):
        self.read_gpu_run()
        from bench.report import gpu_report

        def speeds(causal, N):
            return {"stage 38": 300.0, "stage 39": None if causal and N == 512 else 240.0, "fa2": 200.0}

        text = gpu_report.backward_peers_table(self.comparison(speeds))
        self.assertIn("39 / 38: the time of stage 39 over that of stage 38.\n", text)
        self.assertIn("| stage 38 | stage 39 | FlashAttention-2 (PyTorch) | 39 / 38 |\n", text)
        self.assertIn("| 64 | full | 512 | 300 (1.50) | 240 (1.20) | 200 | 1.25 |\n", text)
        self.assertIn("| 64 | causal | 512 | 300 (1.50) | absent | 200 | absent |\n", text)
        self.assertNotIn("39 / 38", gpu_report.backward_peers_table(self.comparison({"stage 38": 300.0, "fa2": 200.0})))

    def test_a_package_is_shown_where_it_was_measured(self):
        _, run = self.read_gpu_run({"name": "peak/gemm_bf16", "TFLOP/s": 700.0}, *(
            {"name": f"{stage} x/grid/d:64/N:512/BH:4/full", "TFLOP/s": 90.0, "label": "bf16"}
            for stage in (20, 21, 22, 29)))
        from bench.report import gpu_pictures, gpu_report
        from bench.results import gpu as gpu_results
        measured = gpu_results.Measured(run)
        others = {f"stage {number}": 90.0 for number in (20, 21, 22, 29)}
        others |= {"fa2": 60.0, "cudnn": 120.0, "memory-efficient": 50.0, "math": 10.0}
        tables = gpu_report.peers_table, gpu_report.short_peers_table, gpu_report.backward_peers_table
        without = self.comparison(others)
        for package, label, versions, text in (
                ("flash-attn", "FlashAttention-2 (flash-attn)", {"flash-attn": "2.8"}, "flash-attn 2.8"),
                ("flash-attn-4", "FlashAttention-4", {"flash-attn-4": "4.0", "nvidia-cutlass-dsl": "4.8"},
                 "flash-attn-4 4.0, nvidia-cutlass-dsl 4.8")):
            absent, there = (self.comparison({**others, package: speed}, **versions) for speed in (None, 75.0))
            absent["context"] = without["context"]
            for table in (*tables, gpu_report.short_backward_table):
                self.assertEqual(table(without), table(absent))
                self.assertIn(f"cuDNN 9, {text}, commit abc", table(there))
                self.assertIn(f"{label} |", table(there))
            self.assertIn("| 60 | 120 (2.00) | 50 (0.83) | 10 (0.17) | 75 (1.25) |",
                          gpu_report.peers_table(there))
            self.assertEqual(gpu_pictures.lengths_bf16(measured, without), gpu_pictures.lengths_bf16(measured, absent))
            self.assertEqual(gpu_pictures.lengths_bf16(measured, there)["panels"][0]["lines"][-1],
                             {"label": label, "peer": True, "points": [(512, 75), (4096, 75)]})

    def test_a_comparison_may_have_more_lines_than_styles(self):
        self.read_gpu_run()
        from bench.report import gpu_pictures
        count = 2 * len(gpu_pictures.STYLES) + 3
        lines = [{"label": str(i), "peer": False, "points": [(512, 1.0 + i), (4096, 1.0 + i)]} for i in range(count)]
        shown = {"title": "many", "ceiling": None, "panels": [{"title": "d = 64", "lines": lines}]}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            figure = gpu_pictures.draw_lengths(shown)
            gpu_pictures.save(figure, self.folder / "lines.png", shown)
        drawn = figure.axes[0].get_lines()
        self.assertEqual(len({(line.get_color(), line.get_marker()) for line in drawn}), count)
        self.assertGreater(min(line.get_markersize() for line in drawn), 0)

    def test_what_training_measured_makes_tables_and_pictures(self):
        self.read_gpu_run()
        from bench.report import gpu_pictures, gpu_report
        context = {"gpu": "a GPU", "driver": "1", "torch": "2", "cudnn": 9, "commit": "abc", "dtype": "bf16"}
        files = self.losses("fp32", [3.0, 2.0, 1.000002]), self.losses("bf16", [3.0001, 2.0, 1.0])
        losses = [gpu_report.of_train_gpt(file) for file in files]
        speeds = {"context": {**context, "tokens": 16384, "rounds": 3, "steps": 2, "gemm_tflops": 700.0,
                              "ours": {"ours": [29, 38], "ours, deterministic": [29, 39]}},
                  "results": [{"model": "1.3B", "N": N, "name": name, **of} for N in (2048, 8192) for name, of in (
                      ("math", {"absent": "out of memory at batch 1"}), ("fa2", {"absent": "No available kernel"}),
                      ("ours", {"tflops": 350.0, "mfu": 0.5, "ms": 2.0, "batch": 2}))]}
        text = gpu_report.losses_block(losses)
        self.assertIn("the loss with math attention is 5.8e-07 away in the root mean square, 1.0e-06 at most, that with "
                      "stages 29 and 38 1.2e-06 and 2.0e-06. At no step does the latter's root mean square so far come to more "
                      "than 37 % of what is allowed: 2 times that of the former, and 2e-06.", text)
        self.assertIn("In bf16, 4 layers", text)
        text = gpu_report.training_block(speeds)
        self.assertIn("| 1.3B | 2048 | out of memory | absent | 350 (50 %), batch 2 |", text)
        self.assertIn("| 1.3B | 8192 | out of memory | absent | 350 (50 %) |", text)
        self.assertIn("Ours: stages 29 and 38; ours, deterministic: stages 29 and 39.", text)
        for runs in (losses, losses[:1]):
            for path, shown, draw in gpu_pictures.training_pictures(runs, speeds):
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    gpu_pictures.save(draw(shown), self.folder / path.name, shown)
                self.assertFalse(gpu_pictures.is_stale(self.folder / path.name, shown))
        self.assertTrue((self.folder / "h200_training_speed.png").exists())
        self.assertEqual([gpu_report.losses_block([]), gpu_report.training_block(None)], ["Not yet."] * 2)

    def losses(self, dtype, ours):
        """A file as bench.training.train_gpt writes it."""
        curves = {"math in fp64": [3.0, 2.0, 1.0], "math": [3.0, 2.0, 1.000001], "stages 29 and 38": ours}
        context = {"gpu": "a GPU", "driver": "1", "torch": "2", "commit": "abc", "dtype": dtype, "layers": 4, "hidden": 256,
                   "heads": 4, "context": 256, "batch": 16, "steps": 3}
        file = self.folder / f"train_gpt_{dtype}.json"
        file.write_text(json.dumps({"context": context, "losses": curves}))
        return file

    def test_training_that_is_wrong_is_refused(self):
        self.read_gpu_run()
        from bench.report import gpu_report
        self.assertIsNone(gpu_report.of_train_gpt(self.folder / "nowhere.json"))
        for ours, why in (([3.0, 2.1, 1.0], "comes to .* of what its step allows"), ([3.0, float("nan"), 1.0], "a loss with"),
                          ([3.0, 2.0, float("inf")], "stages 29 and 38 is not a finite number: measure it again")):
            with self.assertRaisesRegex(gpu_report.BadResult, why):
                gpu_report.of_train_gpt(self.losses("fp32", ours))
        file = self.folder / "training.json"
        for counter in ("tflops", "ms", "mfu", "gemm_tflops"):
            for value in (float("nan"), float("inf"), 0.0, -1.0, None, "fast"):
                row = {"name": "ours", "tflops": 1.0, "ms": 1.0, "mfu": 1.0}
                data = {"context": {"gemm_tflops": 1.0}, "results": [row]}
                (data["context"] if counter == "gemm_tflops" else row)[counter] = value
                file.write_text(json.dumps(data))
                with self.assertRaisesRegex(gpu_report.BadResult, f"training.json: {counter} of .* is .*measure it again"):
                    gpu_report.of_scripts(file)
        file.write_text(json.dumps({"context": {}, "results": [{"name": "fa2", "absent": "why"}]}))
        self.assertEqual(gpu_report.of_scripts(file)["results"][0]["absent"], "why")

    def test_what_atomics_cost_makes_a_table_and_pictures(self):
        self.read_gpu_run()
        from bench.measure import atomics
        from bench.report import gpu_pictures, gpu_report
        names = [name for name, *_ in atomics.VARIANTS]
        data = {"gpu": "a GPU", "driver": "1", "commit": "abc", "dtype": "bf16", "rounds": 3, "tokens": 16384,
                "width": 2048, "not_checked": [atomics.STORES, atomics.APART],
                "kernels": [{"variant": name, "d": d, "causal": causal, "tile": [64, 128], "spilled": 8 * (d == 128)}
                            for name in names for d in (64, 128) for causal in (False, True)],
                "rows": [{"d": d, "causal": causal, "batch": one["batch"], "heads": one["heads"], "N": one["Nq"],
                          "ms": dict(zip(names, (2.0, 1.0, 3.0, 4.0, 5.0)))}
                         for d in (64, 128) for causal in (False, True) for one in atomics.problems(d, causal)]}
        del data["rows"][0]["ms"][atomics.APART]
        text = gpu_report.atomics_block(data)
        self.assertIn("Of stores and stores apart dQ is wrong by design.", text)
        self.assertIn("| 64 | full | 512 | 1024 | 4 | 512 | 1; 128 | 2.000 | 0.50 | - | 2.00 | 2.50 |", text)
        self.assertIn("| 128 | causal | 16384 | 1 | 128 | 516 | 64; 512 | 2.000 | 0.50 | 1.50 | 2.00 | 2.50 |", text)
        self.assertIn("- stores: 0.500 (0.50 to 0.50) of stage 38's time", text)
        self.assertIn("- stage 39 spills 8 bytes of registers at d = 128, causal\n", text)
        self.assertNotIn("at d = 64", text)
        pictures = list(gpu_pictures.atomics_pictures(data))
        self.assertEqual([len(shown["panels"]) for _, shown, _ in pictures], [4, 4])
        over_N, over_heads = (shown["panels"][0]["lines"] for _, shown, _ in pictures)  # d = 64 without a mask
        self.assertEqual({line["label"]: line["points"] for line in over_N}["stores"],
                         [(N, 0.5) for N in atomics.LENGTHS])
        self.assertEqual({line["label"]: line["points"] for line in over_heads}["stores apart"],
                         [(heads, 1.5) for heads in (1, 2, 4, 8, 16, 32)])
        for path, shown, draw in pictures:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                gpu_pictures.save(draw(shown), self.folder / path.name, shown)
            self.assertFalse(gpu_pictures.is_stale(self.folder / path.name, shown))
        for value in (float("nan"), float("inf"), 0.0):
            data["rows"][1]["ms"]["stores"] = value
            with self.assertRaisesRegex(Exception, "the times at d = 64, N = 1024 are no times"):
                gpu_report.atomics_block(data)
        self.assertEqual(gpu_report.atomics_block(None), "Not yet.")
        self.assertEqual(list(gpu_pictures.atomics_pictures(None)), [])

    def test_a_run_on_a_gpu_with_a_speed_that_is_none_is_refused(self):
        for value in (float("nan"), float("inf"), 0.0, -1.0, None, "fast"):
            with self.assertRaisesRegex(Exception, "run.json: TFLOP/s of 14 split.* is .*, not a speed"):
                self.read_gpu_run({"name": "14 split/grid/d:64/N:512/BH:1024/full", "TFLOP/s": value, "label": "fp32"})

    def test_the_gain_over_heads_is_drawn_where_it_was_measured(self):
        from bench.report import gpu_pictures, gpu_report
        speeds = {"10 naive_gpu": (4.0, 20.0), "11 fa1_tiled": (1.0, 25.0), "13 fa2_sequence_parallel": (8.0, 30.0)}
        gpu_results, run = self.read_gpu_run(
            *({"name": f"{name}/heads/d:64/N:512/BH:{BH}/full", "TFLOP/s": speed, "label": "fp32"}
              for name, both in speeds.items() for BH, speed in zip((8, 528), both)),
            {"name": "13 fa2_sequence_parallel/heads/d:64/N:1024/BH:8/full", "TFLOP/s": 9.0, "label": "fp32"},
            {"name": "11 fa1_tiled/grid/d:64/N:512/BH:1024/full", "TFLOP/s": 25.0, "label": "fp32"})
        run.context.update({"gpu": "a GPU", "driver": "1", "multiprocessors": "4", "cuda_of_build": "13", "commit": "abc"})
        measured = gpu_results.Measured(run)
        shown = gpu_pictures.head_gains(measured, 512)
        self.assertEqual({line["label"]: line["points"] for line in shown["lines"]},
                         {"11 fa1_tiled over 10": [(8, 0.25), (528, 1.25)],
                          "13 fa2_sequence_parallel over 11": [(8, 8.0), (528, 1.2)]})
        self.assertEqual(gpu_pictures.head_gains(measured, 1024)["lines"], [], "one stage alone has no gain")
        self.assertEqual([line["points"] for line in gpu_pictures.heads(measured, 1024)["lines"]], [[(8, 9.0)]])
        path = self.folder / "head_gains.png"
        gpu_pictures.save(gpu_pictures.draw_head_gains(shown), path, shown)
        self.assertFalse(gpu_pictures.is_stale(path, shown))
        stage = mock.Mock(number=11, before=10)
        self.assertIn("(head_gains.png)", gpu_report.forward_block(measured, stage))
        self.assertNotIn("(head_gains.png)", gpu_report.forward_block(measured, stage, with_pictures=False))

    def test_a_picture_of_other_data_is_stale(self):
        from bench.report import gpu_pictures
        path, shown = self.folder / "heads.png", {"title": "", "multiprocessors": 4, "lines": [
            {"label": "12", "points": [[1, 2.0], [2, 3.0]]}, {"label": "13", "points": [[1, 4.0], [2, 5.0]]}]}
        self.assertTrue(gpu_pictures.is_stale(path, shown), "one that is not there")
        gpu_pictures.save(gpu_pictures.draw_heads(shown), path, shown)
        self.assertFalse(gpu_pictures.is_stale(path, shown))
        shown["lines"][0]["points"][1][1] = 3.5
        self.assertTrue(gpu_pictures.is_stale(path, shown))

    def test_the_committed_comparison_is_what_the_readme_shows(self):
        result = run_module("bench.report.cpu_tables", "--check")
        self.assertEqual((result.returncode, result.stdout), (0, "nothing to do\n"), result.stderr)

    def test_climb_on_the_shipped_input(self):
        result = self.climb()
        self.assertEqual(result.returncode, 0, result.stderr)
        report = self.report()
        self.assertEqual((report["format"], report["masks"]), (2, ["full", "causal"]))
        self.assertEqual(report["input"]["problem"], "B=1 H=12 N=512 d=32 fp32")
        self.assertEqual([s["number"] for s in report["stages"]], ALL)
        for stage in report["stages"]:
            self.assertIn(stage["idea"], result.stdout)
            self.assertEqual(stage["dtype"], "fp32" if stage["number"] in TAKE_FP32 else "bf16")
        for mask in report["masks"]:
            for stage in self.results(mask):
                self.assertEqual(stage["status"], "passed")
                self.assertTrue(0 < stage["oracle"]["error"] <= stage["oracle"]["allowed"])
                if stage["backend"] != "emulator":
                    self.assertGreaterEqual(stage["time_ms"]["runs"], 3)
                self.assertEqual("against_before" in stage, stage["before"] != stage["number"])
        self.assertNotIn("left_out", report)
        html = (self.folder / "out/report.html").read_text()
        rounded, = report["rounded"]
        self.assertEqual((rounded["stages"], rounded["dtype"]), ([n for n in ALL if n not in TAKE_FP32], "bf16"))
        for text in (result.stdout, html):
            self.assertIn(rounded["why"], text)
        self.assertEqual(re.findall(r'(?:src|href)=["\'](?!data:)[^"\']*', html), [])  # self-contained
        self.assertGreaterEqual(html.count("data:image/png;base64,"), 2)
        self.assertEqual({p.name for p in (self.folder / "out").iterdir()}, {"climb.json", "report.html"})

    def test_a_stage_is_compared_with_the_one_before_it_on_the_same_numbers(self):
        """Stage 20 on numbers rounded to bf16 with stage 15 on these numbers: as where the input itself is bf16."""
        against = []
        for dtype in ("fp32", "bf16"):
            result = self.climb(*SMALL_FOR_ALL, "--stages", "14-21", "--dtype", dtype, "--backend", "emulator", python="true")
            self.assertEqual(result.returncode, 0, result.stderr)
            against.append([[stage["against_before"] for stage in self.results(mask)[2:]] for mask in ("full", "causal")])
        self.assertEqual(*against)
        self.assertNotIn("rounded", self.report())

    def test_one_mask_of_the_two(self):
        for options, masks in ((["--full"], ["full"]), (["--causal"], ["causal"]), (["--full", "--causal"], ["full", "causal"])):
            result = self.climb("00", *SMALL, *options)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual((self.report()["masks"], [*self.report()["stages"][0]["masks"]]), (masks, masks))
            html = (self.folder / "out/report.html").read_text()
            for mask, title in (("full", "Without a mask"), ("causal", "With the causal mask")):
                self.assertEqual((title in result.stdout, title in html), (mask in masks,) * 2)

    def test_the_chart_of_a_gpu_has_the_times_of_all_stages(self):
        from bench.report import climb as drawn
        self.climb(*SMALL_FOR_ALL, "--stages", "02,10,15-20", "--backend", "emulator", python="true")
        report = self.report()
        for stage in report["stages"]:
            for mask, ms in (("full", 2.0), ("causal", 1.0)):
                time_ms = dict.fromkeys(("median", "lower_quartile", "upper_quartile"), 8 * ms / stage["number"])
                stage["masks"][mask]["time_ms"] = {**time_ms, "runs": 20, "disturbed": False}
            stage["backend"] = "cuda" if stage["number"] >= 10 else "cpu"
        failed = report["stages"][2]["masks"]["causal"]
        failed.update(status="failed", why="O is wrong")
        del failed["time_ms"], failed["ledger"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            figure = drawn.ladder(report)
            shown = {axes.get_title(loc="left"): [text.get_text() for text in axes.texts] for axes in figure.axes}
            self.assertIn("data:image/png", drawn.page(report))
        drawn.plt.close("all")
        self.assertEqual([*shown], ["Time", "Global memory requested", "Extra memory"])
        self.assertEqual([text for text in shown["Time"] if "ms" in text or text == "failed"],
                         ["8.00 ms", "1.60 ms   5.00x", "1.07 ms", "0.800 ms   1.33x",
                          "4.00 ms", "0.800 ms   5.00x", "failed", "0.400 ms"])
        self.assertFalse(any("emulated" in text for text in shown["Time"]))

    def test_a_climb_of_another_version_is_refused(self):
        self.climb("00", *SMALL, python="true")
        old = {**self.report(), "format": 1}
        (self.folder / "old.json").write_text(json.dumps(old))
        result = run_module("bench.report.climb", self.folder / "old.json", "--markdown")
        self.assertEqual((result.returncode != 0, len(result.stderr.splitlines())), (True, 1), result.stderr)
        self.assertIn("old.json is not a climb.json of this version", result.stderr)
        self.assertIn("run ./ladder climb again", result.stderr)

    def test_emulated_stages_are_checked_and_counted_and_never_timed(self):
        result = self.climb(*SMALL_FOR_ALL, "--causal", "--backend", "emulator")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = self.report()
        self.assertNotIn("gpu", report["machine"])
        self.assertEqual([s["number"] for s in report["stages"]], ALL)
        for stage in self.results("causal"):
            emulated = stage["number"] in KERNELS
            self.assertEqual(stage["backend"], "emulator" if emulated else "cpu")
            self.assertEqual("time_ms" in stage, not emulated)
            self.assertEqual("ledger" in stage, emulated)
            line = next(x for x in result.stdout.splitlines() if x.startswith(f"{stage['number']:02d} {stage['name']}"))
            self.assertEqual(line.rstrip().endswith(" emulated"), emulated, line)  # and no speed-up behind it
            if emulated:
                self.assertEqual(set(stage["ledger"]), COUNTS)
                self.assertEqual(stage["extra_bytes"], stage["ledger"]["extra_bytes"])
                self.assertTrue(stage["against_before"]["passed"])
        said, = re.findall(r"Emulated on the CPU: ([^.]*)\.", result.stdout)
        self.assertEqual(numbers(said), KERNELS)
        self.assertIn("10-15, 20-29, ", said)
        # The summary of each stage from the full ledger of the same problem.
        for number, stage in self.ledger(*SMALL_FOR_ALL, "--causal", "--dtype", "bf16").items():
            counts = stage["counts"]
            total = lambda start, *ends: sum(counts[c] for c in counts if c.startswith(start) and c.endswith(ends))
            summary = next(s["ledger"] for s in self.results("causal") if s["number"] == number)
            self.assertEqual(summary, {
                "hbm_bytes_read": total("global.", ".read_bytes", ".atomic_bytes"),
                "hbm_bytes_written": total("global.", ".written_bytes", ".atomic_bytes"),
                "shared_bytes": total("shared.", ".read_bytes", ".written_bytes"),
                "barriers": counts["barriers"] + counts["named_barriers"],
                "operations": sum(counts[c] for c in ("add", "mul", "div", "max", "exp", "log")),
                "matmul_flops": counts["flops_cuda_cores"] + counts["flops_tensor_cores"],
                "tiles": counts["tiles"], "masked_tiles": counts["masked_tiles"], "blocks": counts["blocks"],
                "extra_bytes": counts["device_bytes"]})
        html = (self.folder / "out/report.html").read_text()
        self.assertEqual(html.count("<td>emulated</td>"), len(KERNELS))
        self.assertIn("masked tiles", html)

    def test_a_climb_of_the_backward_pass(self):
        problem = ("--backward", "--random", "1,4,70,32", "--kv-heads", 2, "--causal", "--backend", "emulator")
        result = self.climb(*problem)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("backward pass", result.stdout.splitlines()[0])
        self.assertIn("<h1>A climb of the backward pass</h1>", (self.folder / "out/report.html").read_text())
        report = self.report()
        self.assertEqual(report["pass"], "backward")
        numbers = [s["number"] for s in STAGES if s["backward"]]
        self.assertEqual([s["number"] for s in report["stages"]], numbers)
        for stage, before in zip(self.results("causal"), [numbers[0], *numbers]):  # each after the one before it in this list
            before = {52: 38, 56: 54, 57: 54, 59: 54, 66: 63, 67: 64, 71: 38, 72: 71, 73: 71, 74: 72, 75: 71, 76: 72, 77: 72, 78: 72, 79: 72, 80: 74, 81: 80, 83: 61}.get(stage["number"], before)  # but for these
            self.assertEqual((stage["status"], stage["before"]), ("passed", before))
            self.assertTrue(0 < stage["oracle"]["error"] <= stage["oracle"]["allowed"])
            self.assertEqual("against_before" in stage, stage["number"] != before)
            self.assertEqual("time_ms" in stage, stage["backend"] == "cpu")
        counted = self.ledger("--backward", "--random", "1,4,70,32", "--kv-heads", 2, "--causal")
        for stage in self.results("causal"):
            if stage["backend"] != "cpu":
                counts = counted[stage["number"]]["counts"]
                self.assertEqual(stage["ledger"]["matmul_flops"], counts["flops_cuda_cores"] + counts["flops_tensor_cores"])
                self.assertEqual(stage["extra_bytes"], counts["device_bytes"])

    def test_a_large_softcap_whose_tanh_errs_more_than_L_may_else(self):
        result = self.climb("75", "--random", "1,2,64,32", "--variant", "softcap:1e3", "--causal", "--backend", "emulator")
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_a_climb_of_the_backward_pass_and_its_memory(self):
        result = self.climb("--backward", "--random", "1,4,70,32", "--stages", "10,30,31", "--backend", "emulator", "--memory",
                            "--memory-up-to", 8192)
        self.assertEqual(result.returncode, 0, result.stderr)
        report = self.report()
        memory = {one["number"]: {point["N"]: point["bytes"] for point in one["points"]}
                  for one in report["memory"]["stages"]}
        self.assertEqual(memory[10], {N: 4 * 2 * N * N for N in (1024, 2048, 4096)})
        self.assertEqual(memory[30], {N: 4 * 2 * N for N in (1024, 2048, 4096)})
        self.assertEqual(memory[31], {N: 4 * N for N in (1024, 2048, 4096)})
        self.assertIn("backward passes up to N = 4096", result.stdout)
        self.assertGreaterEqual((self.folder / "out/report.html").read_text().count("data:image/png;base64,"), 2)
        # In 16 bits too: D and dQ in fp32, and from base 2 on L with the factor of its base.
        result = self.climb("--backward", "--random", "1,1,64,32", "--stages", "32-39", "--backend",
                            "emulator", "--memory", "--memory-up-to", 2048)
        self.assertEqual(result.returncode, 0, result.stderr)
        splits = {1024: 4, 2048: 8}
        for one in self.report()["memory"]["stages"]:
            def rows(N, number=one["number"]):
                return (1 if number < 36 else 2) + (splits[N] if number == 39 else 1) * 32
            self.assertEqual({point["N"]: point["bytes"] for point in one["points"]},
                             {N: 4 * N * rows(N) for N in splits}, one["name"])
        self.refuses(2, "stage 13 fa2_sequence_parallel has no backward pass", "leave out --backward",
                     arguments=["--backward", "--stages", "13"])

    def test_a_climb_of_emulated_stages_alone_is_drawn_too(self):
        result = self.climb(*SMALL_FOR_ALL, "--backend", "emulator", "--stages", "13-14")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([s["number"] for s in self.report()["stages"]], [13, 14])
        self.assertIn("data:image/png;base64,", (self.folder / "out/report.html").read_text())

    def test_stages_that_do_not_take_the_head_dimension_are_left_out_with_a_word(self):
        result = self.climb(*SMALL)
        self.assertEqual(result.returncode, 0, result.stderr)
        report = self.report()
        takes = [s["number"] for s in FORWARD if isinstance(s["head_dims"], dict) or 8 in s["head_dims"]]
        self.assertEqual(sorted(n for one in report["left_out"] for n in one["stages"]), [n for n in ALL if n not in takes])
        self.assertEqual([s["number"] for s in report["stages"]], takes)
        html = (self.folder / "out/report.html").read_text()
        for one in report["left_out"]:
            self.assertIn("Head dimension 8", one["why"])
            said, = re.findall(r"Left out: ([^.]*)\.", one["why"])
            self.assertEqual(numbers(said), one["stages"])
            for text in (result.stdout, html):
                self.assertIn(one["why"], text)
        self.refuses(2, "stage 13", "head dimension 8", "32, 64 and 128", arguments=[*SMALL, "--stages", "02,13"])

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
        draw_nothing = {"python": "true"}  # reports are drawn by other tests
        for dtype in (np.float16, np.float32, np.float64):
            self.assertEqual(self.climb("--input", self.save_qkv(dtype=dtype), **draw_nothing).returncode, 0)
        for rank in (2, 3):
            path = self.save_qkv((3, 9, 4)[3 - rank:], (3, 9, 4)[3 - rank:])
            self.assertEqual(self.climb("--input", path, **draw_nothing).returncode, 0)
        random = np.random.default_rng(1)
        files = [self.save(f"{name}.npy", random.standard_normal((1, 2, 3, 4)).astype(np.float32)) for name in "qkv"]
        result = self.climb("--q", files[0], "--k", files[1], "--v", files[2], **draw_nothing)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.report()["input"]["problem"], "B=1 H=2 N=3 d=4 fp32")
        grouped = self.climb("--input", self.save_qkv((1, 6, 5, 4), (1, 2, 7, 4)), **draw_nothing)
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

    def test_memory_over_length_of_emulated_stages(self):
        result = self.climb(*SMALL_FOR_ALL, "--backend", "emulator", "--stages", "10-11,13", "--memory",
                            "--memory-up-to", 1024)
        self.assertEqual(result.returncode, 0, result.stderr)
        sizes = {s["number"]: [(p["N"], p["bytes"]) for p in s["points"]] for s in self.report()["memory"]["stages"]}
        self.assertEqual(sizes, {10: [(1024, 4 * 2 * 1024 * 1024)], 11: [(1024, 4 * 2 * 1024)], 13: [(1024, 0)]})
        self.assertNotIn("emulated stages up to", result.stdout)
        long = self.climb(*SMALL_FOR_ALL, "--backend", "emulator", "--stages", "15", "--memory", "--memory-up-to", 8192)
        self.assertIn("emulated stages up to N = 4096", long.stdout)
        self.assertEqual([p["N"] for p in self.report()["memory"]["stages"][0]["points"]], [1024, 2048, 4096])

    def test_a_stage_that_does_not_fit_is_shown_as_out_of_memory(self):
        result = self.climb("--random", "1,1,8000,1", "--stages", "00-01", "--full", "--judge-within", 0, preexec_fn=limited(450))
        self.assertIn("out of memory", result.stdout)
        first, second = self.results()
        self.assertEqual((first["status"], second["status"]), ("out of memory", "passed"))
        self.assertGreaterEqual(first["extra_bytes"], 4 * 8000 * 8000)
        self.assertNotIn("time_ms", first)
        self.assertNotIn("against_before", second)

    def test_a_stage_that_fails_is_shown_as_failed_and_not_timed(self):
        q = np.ones((1, 1, 4, 32), np.float32)
        v = q.copy()
        v[0, 0, 2, 1] = np.nan
        path = self.save("nan.npz", None, q=q, k=q, v=v)
        result = self.climb("--input", path, "--allow-nonfinite")
        self.assertEqual(result.returncode, 1)
        self.assertIn("NOT JUDGED", result.stdout)
        for stage in self.results() + self.results("causal"):
            self.assertEqual(stage["status"], "cannot be judged")
            self.assertIn("cannot be judged", stage["why"])
            self.assertNotIn("time_ms", stage)
            self.assertNotIn("ledger", stage)
            self.assertEqual((stage["oracle"]["error"], stage["oracle"]["allowed"]), (None, None))
            line = next(x for x in result.stdout.splitlines() if x.startswith(f"{stage['number']:02d} {stage['name']}"))
            self.assertNotRegex(line, r"\d\.\de")  # no error and nothing allowed: nothing was compared
        self.assertEqual(len(self.report()["stages"]), len(ALL))
        self.assertIn("cannot be judged", (self.folder / "out/report.html").read_text())

    def test_what_would_not_show_a_mistake_is_not_judged(self):
        q = np.random.default_rng(1).standard_normal((1, 2, 40, 32)).astype(np.float32)
        path = self.save("zeros.npz", None, q=q, k=q, v=np.zeros_like(q))
        result = self.climb("--input", path)
        self.assertEqual(result.returncode, 1)
        self.assertIn("NOT JUDGED", result.stdout)
        self.assertIn("cannot be judged on this input, because zeros are right", result.stdout.replace("\n", " "))
        for stage in self.results() + self.results("causal"):
            self.assertEqual(stage["status"], "cannot be judged")
            self.assertNotIn("time_ms", stage)

    def test_an_existing_report_is_not_replaced_without_a_word(self):
        self.climb(*SMALL)
        self.assertIn("report.html exists and will be replaced", self.climb(*SMALL).stdout)

    def test_without_matplotlib_the_climb_is_still_written(self):
        environment = {**os.environ, "FLASHLADDER_PYTHON": "/nonexistent"}
        result = subprocess.run([str(PROGRAM), "climb", *SMALL_FOR_ALL], capture_output=True, text=True,
                                cwd=self.folder, env=environment, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertIn("the report was not drawn: there is no Python: ./ladder setup", result.stderr)
        self.assertEqual(len(self.report()["stages"]), len(ALL))

    def test_help_everywhere(self):
        for arguments in (["--help"], ["climb", "--help"], ["list", "--help"], ["ledger", "--help"]):
            result = self.run_program(*arguments)
            self.assertEqual(result.returncode, 0)
            self.assertIn("--help", result.stdout)

    def in_terminal(self, width, *arguments, stream="stdout", status=0):
        """What the program writes to a stream that is a terminal of this width, in lines."""
        ours, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: its}
        with subprocess.Popen([PROGRAM, *map(str, arguments)], cwd=self.folder,
                              env={**os.environ, "FLASHLADDER_PYTHON": "true"}, **streams) as program:
            os.close(its)
            written = b""
            try:
                while some := os.read(ours, 65536):
                    written += some
            except OSError:  # how the end of a terminal is told
                pass
        os.close(ours)
        self.assertEqual(program.returncode, status, written.decode())
        return written.decode().replace("\r\n", "\n").splitlines()

    def test_every_table_fits_the_terminal(self):
        calls = [["list"], ["climb", *SMALL_FOR_ALL, "00-02", "--memory", "--memory-up-to", 2048], ["--help"],
                 ["climb", "--help"], ["lab", "grade", "--help"],
                 ["climb", *SMALL_FOR_ALL, "--backend", "emulator"], ["lab", "list"], ["ledger", "13", *SMALL_FOR_ALL],
                 ["ledger", "11-14", *SMALL_FOR_ALL], ["ledger", "10", "--launches", *SMALL_FOR_ALL]]
        for call in calls:
            for width in (40, 80, 159, 220):
                with self.subTest(call=call, width=width):
                    lines = self.in_terminal(width, *call)
                    self.assertLessEqual(max(map(len, lines)), width, max(lines, key=len))
                    for stage in STAGES[:3] if "00-02" in call else []:
                        self.assertIn(f"{stage['number']:02d} {stage['name']}", "\n".join(lines))
                    if "00-02" in call:
                        text = " ".join(" ".join(lines).split())
                        for word in ("dtype", "error", "allowed", "memory", "time (ms)", "gain"):
                            self.assertIn(word, text)

    def test_a_grade_fits_the_terminal(self):
        self.assertEqual(self.run_program("lab", "new", "00", "a lab with a long name").returncode, 0)
        lines = self.in_terminal(40, "lab", "grade", "a lab with a long name", status=1)
        self.assertLessEqual(max(map(len, lines)), 40, max(lines, key=len))
        self.assertTrue(any(line.endswith("0 of 100") for line in lines))

    def test_progress_is_one_line_that_is_wiped(self):
        lines = self.in_terminal(40, "climb", "00-01", "--random", "1,1,300,8", "--full", "--judge-within", 0, stream="stderr")
        self.assertTrue(all(line.startswith("\x1b[K") for line in lines[1:]), lines)  # after "\r", and no "\n"
        shown = [line.removeprefix("\x1b[K") for line in lines]
        self.assertIn("Judged: a sample of the rows, since ...", shown)
        self.assertIn("01 online_softmax_cpu: checking ...", shown)
        self.assertLessEqual(max(map(len, shown)), 40)
        self.assertEqual(shown[-1], "")

    def test_a_sample_of_the_rows_is_judged_where_all_would_take_too_long(self):
        result = self.climb("00-02", "--random", "2,3,300,32", "--kv-heads", 1, "--causal", "--judge-within", 0)
        self.assertEqual(result.returncode, 0, result.stderr)
        report = self.report()
        self.assertEqual((report["sample"]["judged_rows"], report["sample"]["rows"]), (4 * 5 * 32, 2 * 3 * 300))
        self.assertEqual([s["status"] for s in self.results("causal")], ["passed"] * 3)
        for stage in self.results("causal"):
            self.assertTrue(0 < stage["oracle"]["error"] <= stage["oracle"]["allowed"])
            self.assertEqual("against_before" in stage, stage["number"] > 0)
        for text in (result.stdout, (self.folder / "out/report.html").read_text()):
            self.assertIn("Judged: a sample of 640 of the 1,800 rows", text)
        self.assertIn("the fp64 oracle of all would take about", result.stderr)
        all_rows = self.climb("00", "--random", "2,3,300,32")
        self.assertNotIn("sample", all_rows.stdout)
        self.assertNotIn("sample", self.report())

    def test_stages_are_named_by_numbers_and_by_names(self):
        for words in (["1"], ["01"], ["online_softmax_cpu"], ["01_online_softmax_cpu"], ["stages/01_online_softmax_cpu/"],
                      ["--stages", "online_softmax_cpu"]):
            result = self.climb(*words, *SMALL, python="true")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual([s["number"] for s in self.report()["stages"]], [1])
        self.assertEqual(self.climb("tiled_cpu", "00-01", *SMALL, python="true").returncode, 0)
        self.assertEqual([s["number"] for s in self.report()["stages"]], [0, 1, 2])
        self.assertEqual(list(self.ledger("tensor_cores", "fa1_tiled-12", "--random", "1,1,32,32")), [20, 11, 12])

    def test_what_is_nearly_a_command_is_answered_with_the_right_one(self):
        for call, *parts in (
            (["lab"], "./ladder lab list", "./ladder lab new 01 my_lab", "./ladder lab grade my_lab"),
            (["lab", "13"], "./ladder lab new 13 my_lab begins the lab of stage 13 fa2_sequence_parallel"),
            (["lab", "tensor_cores", "my folder"], "./ladder lab new 20 'my folder'"),
            (["lab", "99"], "stage 99 does not exist: the stages are 00-02, 10"),
            (["lab", "frobnicate"], "list, new, grade and check", "'frobnicate'"),
            (["lab", "."], "./ladder lab grade . grades that folder"),
            (["lab", "grade", "--wrong"], "no option --wrong", "./ladder lab grade --help"),
            (["lab", "new", "99", "x"], "stage 99 does not exist: the stages are 00-02, 10"),
            (["lab", "check", "99"], "stage 99 does not exist: the stages are 00-02, 10"),
            (["climb", "99"], "stage 99 does not exist: the stages are 00-02, 10"),
            (["climb", "tensor-cores"], "stage 'tensor-cores' does not exist: is it 20 tensor_cores?"),
            (["lab", "new", "Naive", "x"], "is it 00 naive_cpu or 10 naive_gpu?"),
            (["climb", "13", "--wrong"], "no option --wrong", "./ladder climb --help"),
            ([], "name a verb", "./ladder help"),
            (["frobnicate"], "there is no verb 'frobnicate'"),
            (["list", "13"], "there is no place for '13'", "./ladder list --help"),
            (["list", "--json", "--markdown"], "--json excludes --markdown"),
            (["lab", "list", "new", "00", "x"], "there is no place for 'new'"),
            (["lab", "grade", "x", "--seed", "99999999999999999999"], "is not a whole number below 2^64"),
            (["lab", "check", "01", "--sample", "-1"], "--sample: -1 is not a whole number"),
            (["lab", "check", "01", "--mutants", ""], "--mutants: is empty"),
            (["ledger", "13", "--json", "--trace", "--row", ""], "--row: is empty"),
        ):
            with self.subTest(call=call):
                result = self.run_program(*call)
                self.assertEqual((result.returncode, result.stdout, len(result.stderr.splitlines())), (2, "", 1))
                for part in parts:
                    self.assertIn(part, result.stderr)

    def test_the_version_names_the_commit(self):
        version = re.search(r"project\(flashladder VERSION (\S+)", (SOURCE / "CMakeLists.txt").read_text()).group(1)
        self.assertRegex(self.run_program("--version").stdout, rf"^FlashLadder {re.escape(version)}, commit \S+\n$")

    def test_a_printed_command_can_be_typed(self):
        for name in ("my lab", "it's", "plain"):
            said = self.run_program("lab", "new", "01", name).stdout
            command = said[said.index("./ladder lab grade "):]
            self.assertEqual(shlex.split(command)[-1], name)

    # --- what stands in its way -------------------------------------------------------------------------------

    def in_shell(self, *arguments, redirect, python="true"):
        """The program in a shell, with streams redirected, and by default a report that is not drawn."""
        command = " ".join(shlex.quote(str(word)) for word in (PROGRAM, *arguments))
        return subprocess.run(["bash", "-c", f"{command} {redirect}"], capture_output=True, text=True, cwd=self.folder,
                              env={**os.environ, "FLASHLADDER_PYTHON": python}, timeout=120)

    CALLS = [["list"], ["list", "--json"], ["--help"], ["climb", *SMALL_FOR_ALL, "--stages", "00-01"],
             ["ledger", "13", *SMALL_FOR_ALL], ["lab", "list"]]

    def test_streams_that_are_closed_or_not_read_end_nothing(self):
        for redirect in ("2>&-", ">&-", "<&- >&- 2>&-", "2>/dev/full", "2>/dev/full >&-", "| true; exit ${PIPESTATUS[0]}"):
            for call in self.CALLS:
                with self.subTest(redirect=redirect, call=call):
                    result = self.in_shell(*call, redirect=redirect)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    if call[0] == "climb":  # a file that got the number of a stream would have its text in it
                        self.assertEqual([s["status"] for s in self.results()], ["passed", "passed"])
                        (self.folder / "out/climb.json").unlink()
            result = self.in_shell("climb", "--nonsense", redirect=redirect)
            self.assertEqual(result.returncode, 2)

    def test_output_that_is_lost_is_an_error(self):
        for call in self.CALLS:
            with self.subTest(call=call):
                result = self.in_shell(*call, redirect=">/dev/full")
                self.assertEqual(result.returncode, 2)
                self.assertIn("ladder: cannot write to stdout: No space left on device", result.stderr)
                self.assertEqual(self.in_shell(*call, redirect=">/dev/full 2>&1").returncode, 2)
                if call[0] == "climb":
                    self.assertEqual([s["status"] for s in self.results()], ["passed", "passed"])
        result = self.in_shell("climb", *SMALL, "00", redirect=">/dev/full", python=sys.executable)  # drawn all the same
        self.assertNotIn("report", result.stderr)
        self.assertTrue((self.folder / "out/report.html").is_file())

    def test_names_that_are_not_utf_8(self):
        self.save_qkv().rename(os.fsdecode(os.fsencode(self.folder) + b"/\xff\xfe.npz"))
        result = subprocess.run([PROGRAM, "climb", "--input", b"\xff\xfe.npz", "--stages", "00", "--out", b"o\xff"],
                                capture_output=True, cwd=self.folder, env={**os.environ, "FLASHLADDER_PYTHON": sys.executable})
        self.assertEqual(result.returncode, 0, result.stderr)
        out = Path(os.fsdecode(os.fsencode(self.folder) + b"/o\xff"))
        self.assertEqual({path.name for path in out.iterdir()}, {"climb.json", "report.html"})
        self.assertEqual(json.loads((out / "climb.json").read_bytes())["input"]["source"], "\ufffd\ufffd.npz")

    def test_a_full_disk_leaves_no_part_of_a_file_and_the_old_one(self):
        self.assertEqual(self.climb(*SMALL, python="true").returncode, 0)
        before = (self.folder / "out/climb.json").read_bytes()
        result = self.climb(*SMALL, python="true", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99)))
        self.assertEqual(result.returncode, 2)
        self.assertIn("cannot write out/climb.json: File too large", result.stderr)
        self.assertEqual({path.name for path in (self.folder / "out").iterdir()}, {"climb.json"})
        self.assertEqual((self.folder / "out/climb.json").read_bytes(), before)

    def test_an_interrupt_while_the_report_is_drawn(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            for delay in (0, 0.2, 0.4, 0.6):
                out = self.folder / "out"
                out.mkdir(exist_ok=True)
                (out / "report.html").write_text("the old report")
                with subprocess.Popen([PROGRAM, "climb", *SMALL, "--stages", "00"], stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True, cwd=self.folder, start_new_session=True,
                                      env={**os.environ, "FLASHLADDER_PYTHON": sys.executable}) as program:
                    for line in program.stdout:
                        if line.startswith("wrote"):
                            break
                    time.sleep(delay)
                    # Ctrl-C goes to all of them; what a shell or a timeout sends goes to one.
                    (os.killpg if number == signal.SIGINT else os.kill)(program.pid, number)
                    said = program.stderr.read()
                self.assertNotIn("Traceback", said)
                files = {path.name: path.read_text() for path in out.iterdir()}
                if "report.html" in files:  # it came after the report was drawn, perhaps after the program's end
                    self.assertIn(program.returncode, (-number, 0), said)
                    self.assertNotIn("not drawn", said)
                    self.assertEqual(set(files), {"climb.json", "report.html"})
                    self.assertIn("<!doctype html>", files["report.html"])
                else:
                    self.assertEqual(program.returncode, -number, said)
                    self.assertIn("the report was not drawn: interrupted", said)
                    self.assertEqual(set(files), {"climb.json", "report.old.html"})
                    self.assertEqual(files["report.old.html"], "the old report")
                    (out / "report.old.html").unlink()
                self.assertEqual(self.results()[0]["status"], "passed")

    def test_an_interrupt_while_the_folder_of_a_lab_is_written(self):
        for attempt in range(20):
            with subprocess.Popen([PROGRAM, "lab", "new", "13", f"lab{attempt}"], stdout=subprocess.DEVNULL,
                                  cwd=self.folder) as program:
                while program.poll() is None and not any(self.folder.glob(f"lab{attempt}*")):
                    pass
                program.send_signal(signal.SIGINT)
            self.assertEqual([path.name for path in self.folder.glob(f"lab{attempt}*")], [f"lab{attempt}"])

    def test_a_folder_that_is_gone(self):
        gone = self.folder / "gone"
        for call, said in ((["lab", "new", "00", "x"], "the folder that you are in is gone"),
                           (["climb", *SMALL], "cannot write into the folder out"), (["lab", "grade", "x"], "x is no folder")):
            gone.mkdir()
            result = subprocess.run([PROGRAM, *call], cwd=gone, preexec_fn=gone.rmdir, capture_output=True, text=True)
            self.assertEqual((result.returncode, len(result.stderr.splitlines())), (2, 1), result.stderr)
            self.assertIn(said, result.stderr)

    def test_an_interrupt_while_python_imports_shows_no_traceback(self):
        for code in ("from common.course import program; kill()", "from common.course import program; program.run(kill)"):
            result = subprocess.run([sys.executable, "-c", "import os, signal\ndef kill():\n    os.kill(os.getpid(), "
                                     f"signal.SIGINT)\n{code}"], capture_output=True, text=True,
                                    cwd=SOURCE, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
            self.assertEqual((result.returncode, result.stderr), (-signal.SIGINT, ""))

    def test_programs_in_python_end_as_they_should(self):
        climb, diff, tune = SOURCE / "bench/results/cpu/climb.json", "common.course.diff", "bench.measure.tune"
        for call in (["bench.report.climb", climb, "--markdown"], [tune, "--help"],
                     [diff], [diff, "00", "01"]):
            for redirect, status in ((">&- 2>&-", 0), ("2>/dev/full", 0), ("| true; exit ${PIPESTATUS[0]}", 0),
                                     (">/dev/full", 2), (">/dev/full 2>&1", 2)):
                with self.subTest(call=call, redirect=redirect):
                    command = " ".join(shlex.quote(str(word)) for word in (sys.executable, "-B", "-m", *call))
                    result = subprocess.run(["bash", "-c", f"{command} {redirect}"], capture_output=True, text=True,
                                            cwd=SOURCE, timeout=120)
                    self.assertEqual(result.returncode, status, result.stderr)
                    said = "ladder: stdout cannot be used: No space left on device\n" if redirect == ">/dev/full" else ""
                    self.assertEqual(result.stderr, said)
        for call in ([tune, "--wrong"], [tune, "--stage", "13"], [diff, "--wrong"]):
            result = run_module(*call)
            self.assertEqual((result.returncode, len(result.stderr.splitlines())), (2, 1), result.stderr)
            self.assertIn(call[1] if call[1] == "--wrong" else "29, 38, 39", result.stderr)

    def test_a_file_of_a_python_program_is_complete_or_the_old_one(self):
        path = self.folder / "x.txt"
        for number in (signal.SIGINT, signal.SIGTERM):
            path.write_text("old")
            code = ("import os, pathlib\nfrom common.course import program\n"
                    f"pathlib.Path.replace = lambda *_: os.kill(os.getpid(), {int(number)})\n"
                    f"program.run(lambda: program.write_file(pathlib.Path({str(path)!r}), 'new'))")
            result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                                    cwd=SOURCE, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
            self.assertEqual((result.returncode, result.stderr, path.read_text()), (-number, "", "old"))
            self.assertEqual(list(self.folder.iterdir()), [path])

    def test_reading_from_a_pipe_or_a_device(self):
        os.mkfifo(self.folder / "pipe")
        for name in ("pipe", "/dev/zero"):
            self.refuses(2, f"cannot read {name}: it is a pipe or a device; write what comes from it into a file",
                         arguments=["--input", name])

    # --- the ledger -------------------------------------------------------------------------------------------

    def test_what_depends_on_the_numbers_is_at_least_its_closed_form(self):
        """Stage 29 rescales O~ only where m grows much, and a negative scale costs it a barrier."""
        for problem, more in ((["--input", SOURCE / "common/data/minilm_layer.npz"], {"exp", "exp2", "mul"}),
                              (["--random", "1,2,256,64", "--scale", 5], {"exp", "exp2", "mul"}),
                              (["--random", "1,2,130,64", "--scale", -0.1], set())):
            result = self.run_program("ledger", 29, *problem)
            self.assertEqual((result.returncode, ">= a closed form of random numbers" in result.stdout), (0, bool(more)))
            stage, = json.loads(self.run_program("ledger", 29, *problem, "--json").stdout)["stages"]
            forms = {form["counter"]: form for form in stage["closed_forms"]}
            self.assertEqual({name for name, form in forms.items() if form["measured"] > form["value"]}, more)
            self.assertEqual({name for name, form in forms.items() if form["least"]}, {"exp", "exp2", "mul"})

    def test_every_count_of_the_ledger_is_its_closed_form(self):
        for problem in (["--random", "1,2,64,64"],
                        ["--random", "2,4,70,32", "--kv-heads", 2, "--key-len", 45, "--causal"],
                        ["--random", "1,1,40,128", "--scale", 0.3, "--dtype", "bf16"]):
            stages = self.ledger(*problem)
            self.assertEqual(list(stages), KERNELS)
            for number, stage in stages.items():
                self.assertGreaterEqual(len(stage["closed_forms"]), 10)
                for form in stage["closed_forms"]:
                    with self.subTest(problem=problem, stage=number, form=form["counter"]):
                        if form["random_too"]:  # random numbers may need more than the kindest ones
                            self.assertGreaterEqual(form["measured"], form["value"])
                        else:
                            self.assertEqual(form["measured"], form["value"])
                        counter, counts = form["counter"], stage["counts"]
                        of_bytes = counter.replace("_elements", "_bytes")
                        half = number not in TAKE_FP32 and counter.startswith("global.") and ".L." not in counter
                        unit = 1 if counter == of_bytes else 2 if half else 4
                        self.assertEqual(form["measured"] * unit, counts.get(of_bytes, 0))

    def test_the_ledger_against_numbers_that_are_known_without_the_program(self):
        n, d, heads, tile = 192, 64, 3, 64
        tiles = n // tile
        stages = self.ledger("10", "13", "15", "--random", f"1,{heads},{n},{d}", "--causal")
        naive, parallel, skip = (stages[number]["counts"] for number in (10, 13, 15))
        self.assertEqual(naive["global.Q.read_bytes"], 4 * heads * tiles * n * d)
        self.assertEqual(naive["device_bytes"], 4 * 2 * heads * n * n)
        self.assertEqual(parallel["global.Q.read_bytes"], 4 * heads * n * d)
        self.assertEqual(parallel["flops_cuda_cores"], 4 * heads * n * n * d)
        self.assertEqual(parallel["tiles"], heads * tiles * tiles)
        self.assertEqual(skip["tiles"], heads * tiles * (tiles + 1) // 2)
        self.assertEqual(skip["masked_tiles"], heads * tiles)

    def test_the_ledger_by_launch_adds_up_to_the_stage(self):
        stage = self.ledger("10", "--random", "1,2,40,32")[10]
        self.assertEqual(len(stage["launches"]), 3)
        self.assertEqual(len({launch["kernel"] for launch in stage["launches"]}), 3)
        for counter in ("add", "exp", "barriers", "blocks", "tiles", "flops_cuda_cores"):
            self.assertEqual(sum(launch["counts"][counter] for launch in stage["launches"]), stage["counts"][counter])
        text = self.run_program("ledger", "10", "--launches", "--random", "1,2,40,32").stdout
        head = text.splitlines()[2]
        for launch in stage["launches"]:
            self.assertIn(launch["kernel"], head)
        self.assertIn("10 naive_gpu", head)
        self.assertIn("= BH Nq Nk", text)

    def test_the_ledger_as_a_table(self):
        result = self.run_program("ledger", "11", "12-13", "--random", "1,2,128,64")
        self.assertEqual(result.returncode, 0, result.stderr)
        text = result.stdout
        self.assertIn("B=1 H=2 N=128 d=64 fp32", text)
        self.assertRegex(text, r"counter +11 fa1_tiled +12 fa2_deferred_scaling +13 fa2_sequence_parallel\n")
        self.assertRegex(text, r"Q elements read +32,768 +32,768  x1\.00 +16,384  x0\.50\n +"
                               r"= BH Tc Nq d += BH Tc Nq d += BH Nq d\n")
        self.assertRegex(text, r"L elements written +0 +256  new +256  x1\.00\n += 0 += BH Nq += BH Nq\n")
        self.assertRegex(text, r"blocks +2 +2  x1\.00 +4  x2\.00\n")
        self.assertRegex(text, r"global bytes read +[\d,]+ ")
        self.assertIn("before caches", text)
        self.assertNotIn("!!!", text)
        for absent in ("tensor cores", "wavefronts", "sectors", "masked tiles"):  # 0 in all, or not counted
            self.assertNotIn(absent, text)
        self.assertNotIn("rounded", text)
        self.assertEqual([stage["dtype"] for stage in self.ledger("15", "20", "--random", "1,1,40,32").values()],
                         ["fp32", "fp16"])
        rounded = self.run_program("ledger", "15", "20", "--random", "1,1,40,32").stdout
        self.assertEqual([line for line in rounded.splitlines() if "rounded" in line],
                         ["20 tensor_cores took the input rounded to fp16: it does not take fp32."])
        banks = self.run_program("ledger", "14", "--banks", "--causal", "--random", "1,1,40,32").stdout
        for present in ("wavefronts, ideal", "sectors, ideal", "masked tiles"):
            self.assertIn(present, banks)

    def test_the_ledger_of_the_backward_pass(self):
        problem = ["--random", "2,4,70,32", "--kv-heads", 2, "--key-len", 45, "--causal"]
        stages = self.ledger("--backward", *problem)
        self.assertEqual(list(stages), [s["number"] for s in STAGES if s["backward"] and s["backend"] != "cpu"])
        for number, stage in stages.items():
            self.assertGreaterEqual(len(stage["closed_forms"]), 10)
            for form in stage["closed_forms"]:
                self.assertEqual(form["measured"], form["value"], f"{number}: {form['counter']}")
        self.assertEqual(stages[10]["counts"]["device_bytes"], 4 * 2 * 2 * 4 * 70 * 45)  # P and dS
        self.assertEqual(stages[10]["counts"]["flops_cuda_cores"],
                         2 * self.ledger("10", *problem)[10]["counts"]["flops_cuda_cores"])
        self.refuses(2, "stage 13 fa2_sequence_parallel has no backward pass", "leave out --backward",
                     arguments=["13", "--backward"], verb="ledger")
        self.refuses(2, "stage 30 fa1_backward has no forward pass", "add --backward", arguments=["30"], verb="ledger")
        self.refuses(2, "stage 30 fa1_backward has no forward pass", "add --backward",
                     arguments=["--stages", "30"])
        text = self.run_program("ledger", "10", "30", "--backward", *problem).stdout
        self.assertIn("backward pass", text.splitlines()[0])
        self.assertIn("BHkv = 4", text)
        self.assertNotIn("!!!", text)

    def test_the_ledger_keeps_the_order_in_which_stages_are_named(self):
        text = self.run_program("ledger", "13", "11", "11-12", "--random", "1,1,32,32").stdout
        self.assertRegex(text, r"counter +13 fa2_sequence_parallel +11 fa1_tiled +12 fa2_deferred_scaling\n")

    def test_the_ledger_of_own_arrays_and_of_the_default(self):
        path = self.save_qkv((1, 2, 33, 32), (1, 2, 33, 32))
        self.assertIn("qkv.npz: B=1 H=2 N=33 d=32", self.run_program("ledger", "13", "--input", path).stdout)
        self.assertIn("B=1 H=2 Hkv=1 N=256 d=64", self.run_program("ledger", "13", "--kv-heads", "1").stdout)

    # --- on a GPU, where there is one -------------------------------------------------------------------------

    def test_without_a_gpu_it_says_what_is_missing(self):
        if not missing_for_cuda():
            self.skipTest("there is a GPU")
        missing = r"no NVIDIA driver|takes CUDA up to|no GPU that|compute capability|no CUDA compiler|does not start"
        for verb in ("ledger", "climb"):
            result = self.run_program(verb, *SMALL_FOR_ALL, "--backend", "cuda")
            self.assertRegex(result.stderr, missing)
            self.refuses(2, "--backend emulator", arguments=[*SMALL_FOR_ALL, "--backend", "cuda"], verb=verb)

    def test_on_a_gpu_stages_are_timed_and_counted(self):
        if why := missing_for_cuda():
            self.skipTest(why)
        result = self.climb(*SMALL_FOR_ALL, "--backend", "cuda", "--memory", "--memory-up-to", 2048)
        self.assertEqual(result.returncode, 0, result.stderr)
        report = self.report()
        self.assertTrue(report["machine"]["gpu"])
        counts = self.ledger(*SMALL_FOR_ALL)
        for stage in report["stages"]:
            self.assertEqual(stage["backend"], "cuda" if stage["number"] in KERNELS else "cpu")
            self.assertGreaterEqual(stage["time_ms"]["runs"], 3)
            if stage["number"] in KERNELS:
                self.assertEqual(stage["ledger"]["tiles"], counts[stage["number"]]["counts"]["tiles"])
                self.assertEqual(stage["extra_bytes"], stage["ledger"]["extra_bytes"])
        self.assertNotIn("emulated", (self.folder / "out/report.html").read_text())
        once = self.run_program("ledger", "10-11", *SMALL_FOR_ALL, "--backend", "cuda")
        self.assertEqual(once.returncode, 0, once.stderr)
        self.assertRegex(once.stdout, r"^10 naive_gpu: .*no ledger.*\n11 fa1_tiled: .*no ledger.*\n$")

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
            ([*SMALL, "--key-len", "99999999999999999999"], "--key-len: 99999999999999999999 is no whole number"),
            *(([*SMALL, option, ""], f"{option}: is empty")
              for option in ("--kv-heads", "--key-len", "--seed", "--scale", "--judge-within")),
            (["--random", "1,1,4000000000000000000,256"], "64-bit"),
            ([*SMALL, "--dtype", "fp8"], "fp8", "bf16"),
            ([*SMALL, "--stages", "00-97"], "97 does not exist", "00-02, 10-15"),
            ([*SMALL, "--stages", "three"], "stage 'three' does not exist", "00-02, 10-15"),
            ([*SMALL, "--input", "x.npz"], "not several"),
            (["--q", "q.npy"], "--q, --k and --v go together"),
            (["--kv-heads", "2"], "go with --random"),
            ([*SMALL, "--seed", "x"], "--seed"),
            ([*SMALL, "--scale", "nan"], "scale"),
            ([*SMALL, "--scale", "0"], "--scale"),
            (["--input", ""], "--input"),
            (["--random", ""], "--random"),
            ([*SMALL, "--stages", ""], "--stages"),
            ([*SMALL, "--backend", "nonsense"], "--backend", "nonsense", "emulator", "cuda"),
            ([*SMALL, "--seed", "-1"], "--seed"),
            ([*SMALL, "--judge-within", "nan"], "--judge-within nan", "0 or more"),
            ([*SMALL, "--judge-within", "-1"], "--judge-within -1"),
            (["--seed", "2"], "--seed go with --random"),
            ([*SMALL, "--seed", "99999999999999999999"], "--seed: 99999999999999999999 is not a whole number below 2^64"),
            ([*SMALL, "--seed", "1.5"], "--seed: 1.5 is not a whole number"),
            ([*SMALL, "--scale", "-0.0"], "--scale: -0.0 is 0"),
            ([*SMALL, "--scale", "1e-50"], "--scale: 1e-50 is 0"),
            ([*SMALL, "--scale", "x"], "--scale = x is no value that it takes"),
            ([*SMALL, *SMALL], "--random can be given once"),
            (["--random"], "--random needs a value"),
            (["list"], "stage 'list' does not exist"),
            (["pu"], "the stages are 00-02, 10"),
        ):
            with self.subTest(arguments=arguments):
                self.refuses(2, *parts, arguments=arguments)

    def test_wrong_commands_for_the_ledger(self):
        for arguments, *parts in (
            (["97"], "stage 97 does not exist", "00-02, 10-15", "./ladder list"),
            (["three"], "stage 'three' does not exist", "00-02, 10-15"),
            ([""], "stage '' does not exist"),
            (["01"], "stage 01 online_softmax_cpu", "has no ledger", "10-15"),
            (["02-11"], "stage 02", "has no ledger"),
            (["10", "--random", "1,2,40,48"], "stage 10", "head dimension 48", "32, 64 and 128"),
            (["--random", "1,2,40"], "B,H,N,d"),
            (["--input", "x.npz", *SMALL_FOR_ALL], "not several"),
            (["--input", "x.npz", "--kv-heads", "2"], "go with --random"),
            (["--kv-heads", "3"], "not a multiple"),
            (["--backend", "nonsense"], "--backend", "nonsense", "emulator", "cuda"),
            (["--launches"], "--launches", "one stage"),
            (["10", "--launches", "--json"], "--launches", "--json"),
            (["13", "--backend", "cuda", "--json"], "no", "ledger", "on a GPU"),
            (["--nonsense"], "--nonsense", "./ladder ledger --help"),
        ):
            with self.subTest(arguments=arguments):
                self.refuses(2, *parts, arguments=arguments, verb="ledger")
        self.refuses(2, "No such file", arguments=["13", "--input", "missing.npz"], verb="ledger")

    def test_more_than_the_machine_has(self):
        self.refuses(2, "GiB", "use smaller sizes", arguments=["--random", "64,64,1000000,256"])

    def test_files_that_cannot_be_used(self):
        good = np.random.default_rng(1).standard_normal((1, 2, 5, 4)).astype(np.float32)
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
                self.refuses(2, *parts, arguments=["--q", name, "--k", "whole.npy", "--v", "whole.npy"])
        self.refuses(2, "No such file", arguments=["--input", "missing.npz"])
        self.refuses(2, "not an .npz file", arguments=["--input", "text.npz"])
        self.save("tokens.npz", None, q=good, k=good, v=good, tokens=np.arange(5))
        self.assertEqual(self.climb("--input", "tokens.npz", "--stages", "00", "--out", "tokens").returncode, 0)
        self.save("other.npz", None, a=good, b=np.arange(3))
        self.refuses(2, "no array 'q'", "it has: a, b", arguments=["--input", "other.npz"])

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
                self.refuses(2, "qkv.npz", *parts, arguments=["--input", self.save_qkv(q, k, v)])

    def test_values_that_are_not_finite_are_named(self):
        for name, value, shown in (("q", np.nan, "nan"), ("k", np.inf, "inf"), ("v", -np.inf, "-inf")):
            arrays = {n: np.ones((2, 3, 4, 5), np.float32) for n in "qkv"}
            arrays[name][1, 2, 3, 4] = value
            path = self.save("nonfinite.npz", None, **arrays)
            self.refuses(2, f"{name}[1, 2, 3, 4] is {shown}", "--allow-nonfinite", arguments=["--input", path])

    def test_values_that_do_not_fit_the_dtype_are_named(self):
        q = np.full((1, 1, 2, 2), 70000, np.float32)
        path = self.save("large.npz", None, q=q, k=q, v=q)
        self.refuses(2, "q[0, 0, 0, 0] is 70000, too large for fp16", "bf16", arguments=["--input", path, "--dtype", "fp16"])
        q = np.full((1, 1, 2, 32), 3.4e38, np.float32)  # fits fp32 alone, and 16 bits are rounded to bf16
        path = self.save("huge.npz", None, q=q, k=q, v=q)
        self.refuses(2, "huge.npz: q[0, 0, 0, 0] is 3.4e+38, too large for bf16", arguments=["--input", path])

    def test_a_folder_that_cannot_be_written_is_said_before_the_run(self):
        (self.folder / "file").write_text("")
        self.refuses(2, "cannot write into the folder", "--out", arguments=[*SMALL, "--out", "file/out"])
        self.refuses(2, "cannot write into the folder", arguments=[*SMALL, "--out", "/proc/flashladder"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
