"""Tests of what bounds a stage: bench.report.attribution, and the profile that bench.measure.nsight makes for it.

Usage: python3 -m tests.attribution_test PROGRAM [unittest options]. Each test has a small repository of its own,
with made-up counters, a program and, where a profile is made, a profiler that are shell scripts. No GPU is needed.
"""

import contextlib
import csv
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from bench.measure import nsight
from bench.report import attribution
from bench.results import profile as held

SOURCE = Path(__file__).resolve().parents[1]
os.environ["FLASHLADDER_PROGRAM"] = str(Path(sys.argv.pop(1)).resolve())

MARKERS = "# A stage\n\n<!-- attribution:begin -->\n\n<!-- attribution:end -->\n\n## More\n"
MANY_HEADS = "<!-- many_heads:begin -->\n\n<!-- many_heads:end -->\n"


def counters(time_ms=2.0, busy=(), **others):
    """All counters of a kernel of which nothing is busy, but for those that are given."""
    values = dict.fromkeys(held.MEASURED, 10.0) | dict.fromkeys(held.BLOCK_LIMITS.values(), 16)
    values |= dict.fromkeys(held.WAITING.values(), 0.0)
    values |= {held.WAITING["barrier"]: 3.0, held.WAITING["selected"]: 1.0}
    values |= {held.TIME: time_ms * 1e6, held.BLOCKS: 4096, held.WAVES: 8.0,
               held.BLOCK_LIMITS["registers"]: 3}
    return values | {held.BUSY[unit]: percent for unit, percent in dict(busy).items()} | others


def kernel(name="forward", **values):
    return {"name": name, "counters": counters(**values)}


def profile(*stages, predictions=None):
    """Of stages (number, kernels): the same kernels with and without a mask."""
    return {"gpu": "A GPU", "driver": "1.2", "problem": held.PROFILED, "predictions": predictions or {},
            "profiles": [{"stage": number, "before": number - 1, "mask": mask, "dtype": "fp32", "commit": "abc",
                          "kernels": kernels}
                         for number, kernels in stages for mask in held.MASKS]}


class Repository(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="attribution test ")
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for name in ("bench", "common/course"):
            shutil.copytree(SOURCE / name, self.root / name,
                            ignore=shutil.ignore_patterns("__pycache__", "cpu", "*.json", "*.cpp", "*.hpp", "*.patch"))
        (self.root / "bench/results/h200").mkdir(exist_ok=True)
        shutil.copy(SOURCE / "bench/measure/predictions.json", self.root / "bench/measure")
        for stage in ("13_one", "14_two"):
            (self.root / "stages" / stage).mkdir(parents=True)
            self.readme(stage).write_text(MARKERS)
        self.bin = self.root / "bin"
        self.bin.mkdir()
        self.list_stages((13, "one", "forward"), (14, "two", "forward"), (29, "four", "forward"), (38, "three", "backward"))

    def list_stages(self, *stages, **more):
        """The program knows these: number, name, passes, and what else is not as of most."""
        listed = [{"number": number, "name": name, "title": "", "idea": "", "claim": "", "before": number - 1,
                   "backend": "emulator", "forward": "forward" in passes, "backward": "backward" in passes,
                   "dtypes": ["fp16", "bf16"], "head_dims": [32, 64, 128, 256], "track": "", "gpu": "any", "follows": True, **more.get(name, {})}
                  for number, name, passes in stages]
        self.script("flashladder", f"echo '{json.dumps(listed)}'")

    def script(self, name, body):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def run_module(self, name, *options):
        """A module of this small repository, with its program."""
        return subprocess.run([sys.executable, "-B", "-m", name, *map(str, options)], capture_output=True, text=True,
                              cwd=self.root, env={**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}",
                                                  "FLASHLADDER_PROGRAM": str(self.bin / "flashladder")})

    def readme(self, stage="13_one"):
        return self.root / "stages" / stage / "README.md"

    def keep(self, data):
        (self.root / "bench/results/h200/profile.json").write_text(json.dumps(data))

    def attribute(self, *options):
        return self.run_module("bench.report.attribution", *options)

    def written(self, data, stage="13_one"):
        """The README after a run that succeeds."""
        self.keep(data)
        result = self.attribute()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.attribute("--check").returncode, 0)
        return self.readme(stage).read_text()

    def refused(self, data, *said):
        self.keep(data)
        for option in ([], ["--check"]):
            result = self.attribute(*option)
            self.assertEqual(result.returncode, 1)
            for words in said:
                self.assertIn(words, result.stderr)
            self.assertNotIn("Traceback", result.stderr)
            self.assertEqual(self.readme().read_text(), MARKERS)


class AttributionTest(Repository):
    # --- the rule -----------------------------------------------------------------------------------------------

    def test_a_profile_with_the_clock_shows_it(self):
        data = profile((13, [kernel(**{held.CLOCK: 1.75e9})]))
        self.assertIn("| clock of the multiprocessors, GHz | 1.75 | 1.75 |", self.written(data))
        for one in data["profiles"]:
            one["kernels"][0]["counters"].pop(held.CLOCK, None)  # both may share the kernel
        self.assertNotIn("clock of the multiprocessors", self.written(data))

    def test_the_unit_that_is_busy_most_bounds_the_stage(self):
        for unit in held.BUSY:
            text = self.written(profile((13, [kernel(busy={"L2": 59.9, "DRAM": 59.8} | {unit: 60})])))
            self.assertEqual(text.count(f"Bound by {unit}: busy 60 % of the time"), 2, text)
            self.assertIn(f"| {unit} busy | 60 % | 60 % |", text)

    def test_below_the_threshold_it_is_latency_with_its_reasons(self):
        text = self.written(profile((13, [kernel(busy={"issue slots": 59.4})])))
        self.assertIn("Full: Bound by latency: nothing is busy 60 % of the time; the busiest is issue slots with 59 %",
                      text)
        self.assertIn("other warps at a barrier (`barrier`), 75 % of their time", text)
        self.assertIn("a multiprocessor holds 3 blocks at most, limited by registers", text)
        text = self.written(profile((13, [kernel(busy={"issue slots": 59.96})])))
        self.assertIn("nothing is busy 60 % of the time; the busiest is issue slots with 59.96 %.", text)

    def test_two_limits_that_are_equal_are_both_named(self):
        text = self.written(profile((13, [kernel(**{held.BLOCK_LIMITS["shared memory"]: 3})])))
        self.assertIn("holds 3 blocks at most, limited by registers and shared memory", text)

    def test_a_grid_that_does_not_fill_the_gpu_is_the_limit(self):
        text = self.written(profile((13, [kernel(**{held.BLOCKS: 128, held.WAVES: 0.97})])))
        self.assertIn("the grid has only 128 blocks", text)
        self.assertNotIn("a multiprocessor holds", text)

    def test_warps_that_could_run_do_not_wait(self):
        text = self.written(profile((13, [kernel(**{held.WAITING["not_selected"]: 50.0})])))
        self.assertIn("(`barrier`)", text)

    def test_a_unit_that_the_table_lacks_is_not_taken_for_latency(self):
        for metric in held.THROUGHPUT.values():
            text = self.written(profile((13, [kernel(busy={"L2": 30}, **{metric: 61})])))
            self.assertIn("Bound by a unit that is not in the table, where the busiest is L2 with 30 %", text)

    def test_the_longest_kernel_speaks(self):
        text = self.written(profile((13, [kernel("short", time_ms=1, busy={"DRAM": 99}),
                                          kernel("long", time_ms=3, busy={"L2": 70})])))
        self.assertIn("Bound by L2: busy 70 %", text)
        self.assertIn("| time, ms | 4.00 | 4.00 |", text)
        self.assertIn("75 %, `long`", text)

    def test_a_unit_that_does_nothing_has_no_line(self):
        text = self.written(profile((13, [kernel(busy={"tensor cores": 0.2})])))
        self.assertNotIn("tensor cores", text)
        self.assertIn("| L2 busy | 10 % | 10 % |", text)

    # --- predictions --------------------------------------------------------------------------------------------

    def test_a_prediction_stands_beside_what_came_of_it(self):
        data = profile((13, [kernel(busy={"DRAM": 90})]),
                       predictions={"13": {"bound": "DRAM", "why": "it reads"}})
        self.assertIn("Predicted before: bound by DRAM, because it reads. So it is.", self.written(data))
        data["predictions"]["13"]["bound"] = "latency"
        self.assertIn("because it reads. It is not: it is bound by DRAM.", self.written(data))

    def test_a_predicted_gain_is_held_against_the_times_of_the_same_profile(self):
        predictions = {"14": {"bound": "latency", "why": "it waits", "gain": 1.5}}
        text = self.written(profile((13, [kernel(time_ms=5)]), (14, [kernel(time_ms=4)]), predictions=predictions),
                            "14_two")
        self.assertIn("Predicted gain over the stage before: 1.50x; here it is 1.25x.", text)
        text = self.written(profile((14, [kernel()]), predictions=predictions), "14_two")
        self.assertIn("1.50x; the profile lacks that stage.", text)
        data = profile((13, [kernel(time_ms=5)]), (14, [kernel(time_ms=4)]), predictions=predictions)
        for one in data["profiles"][:2]:
            one["commit"] = "old"  # whose kernels may be others
        self.assertIn("1.50x; the profile has that stage of another commit, old.", self.written(data, "14_two"))

    def test_a_prediction_of_what_the_rule_cannot_say_is_refused(self):
        self.refused(profile((13, [kernel()]), predictions={"13": {"bound": "HBM", "why": "?"}}), "'HBM'", "DRAM")

    def test_what_is_predicted_after_the_profile_does_not_count(self):
        (self.root / "bench/measure/predictions.json").write_text('{"13": {"bound": "L2", "why": "too late"}}')
        self.assertNotIn("Predicted", self.written(profile((13, [kernel()]))))

    def test_a_backward_pass_is_held_against_backward_passes_only(self):
        data = profile((13, [kernel(time_ms=5)]), (14, [kernel(time_ms=4)]),
                       predictions={"14 backward": {"bound": "latency", "why": "it waits", "gain": 1.5}})
        for one in data["profiles"][2:]:
            one["pass"] = "backward"
        text = self.written(data, "14_two")
        self.assertIn("fp32, backward pass; caches emptied", text)
        self.assertIn("1.50x; the profile lacks that stage.", text)
        for one in data["profiles"]:
            one["pass"] = "backward"
        self.assertIn("1.50x; here it is 1.25x.", self.written(data, "14_two"))

    def test_a_stage_with_both_passes_has_a_part_for_each(self):
        data = profile((13, [kernel(time_ms=5)]), predictions={"13": {"bound": "latency", "why": "it waits"},
                                                               "13 backward": {"bound": "L2", "why": "it reads"}})
        data["profiles"] += [{**one, "pass": "backward", "kernels": [kernel("gradients", time_ms=7, busy={"L2": 90})]}
                             for one in data["profiles"]]
        forward, backward = self.written(data).split("What bounds it")[1:]
        self.assertIn("| time, ms | 5.00 | 5.00 |", forward)
        self.assertIn("because it waits. So it is.", forward)
        self.assertIn("| time, ms | 7.00 | 7.00 |", backward)
        self.assertIn("fp32, backward pass; caches emptied", backward)
        self.assertIn("because it reads. So it is.", backward)

    # --- what it refuses, and what is stale ---------------------------------------------------------------------

    def test_a_counter_that_is_missing_or_no_number_is_refused(self):
        for metric, value in ((held.TIME, float("nan")), (held.BUSY["L2"], float("nan")), (held.TIME, 0),
                              (held.WAITING["wait"], float("inf")), (held.BLOCK_LIMITS["registers"], None),
                              (held.OCCUPANCY, "12"), (held.THROUGHPUT["SM throughput"], -1)):
            self.refused(profile((13, [kernel()]), (14, [kernel(**{metric: value})])), metric, "stage 14, forward pass, full",
                         "cannot be")
        data = profile((13, [kernel()]))
        del data["profiles"][1]["kernels"][0]["counters"][held.BUSY["DRAM"]]
        self.refused(data, held.BUSY["DRAM"], "stage 13", "None")

    def test_a_stage_without_kernels_or_mask_is_refused(self):
        self.refused(profile((13, [])), "stage 13, forward pass, full", "no kernel")
        data = profile((13, [kernel()]))
        data["profiles"].pop()
        self.refused(data, "stage 13", "causal")

    def test_a_stage_without_a_place_for_the_block_is_named(self):
        self.readme("14_two").write_text("# No markers\n")
        self.keep(profile((14, [kernel()])))
        result = self.attribute("--check")
        self.assertEqual(result.returncode, 1)
        self.assertIn("stages/14_two/README.md", result.stderr)

    def test_without_a_profile_nothing_is_claimed(self):
        self.assertEqual(self.attribute("--check").returncode, 0)
        self.assertEqual(self.attribute().returncode, 0)
        self.assertEqual(self.readme().read_text(), MARKERS)

    def test_what_is_stale_is_named_and_left_as_it_is(self):
        old = self.written(profile((13, [kernel()])))
        self.keep(profile((13, [kernel(time_ms=7)])))
        result = self.attribute("--check")
        self.assertEqual(result.returncode, 1)
        self.assertIn("stages/13_one/README.md", result.stderr)
        self.assertNotIn("14_two", result.stderr)
        self.assertEqual(self.readme().read_text(), old)
        (self.root / "bench/results/h200/profile.json").unlink()  # then no block may stand
        self.assertEqual(self.attribute("--check").returncode, 1)
        self.assertEqual(self.attribute().returncode, 0)
        self.assertEqual(self.readme().read_text(), MARKERS)

    def test_a_gain_predicted_where_nothing_was_measured_is_held_against_it(self):
        predictions = {f"14 at d = {held.PREDICTED_AT}": {"gain": 1.5, "mask": "causal", "why": "it skips"}}
        data = profile((13, [kernel(time_ms=9)]), (14, [kernel(time_ms=9)]), predictions=predictions)
        self.assertNotIn("it skips", self.written(data, "14_two"))
        for number, ms in ((13, {"full": 1, "causal": 5}), (14, {"full": 8, "causal": 4})):
            data["profiles"] += [{**data["profiles"][0], "stage": number, "before": number - 1, "mask": mask,
                                  "d": held.PREDICTED_AT, "kernels": [kernel(time_ms=ms[mask])]} for mask in ms]
        self.assertIn(f"Predicted for d = {held.PREDICTED_AT}, causal, before the two were compared there: 1.50x stage "
                      "13's speed, because it skips. It is 1.25x.\n", self.written(data, "14_two"))
        for one in data["profiles"]:
            one["commit"] = str(one["stage"])
        self.assertIn("because it skips. The profile has the two of different commits, 13 and 14, so that it does not say "
                      "what it is.\n", self.written(data, "14_two"))

    def many_heads(self, *stages, **values):
        """A profile of these at the problem of OF_MANY_HEADS, without a mask. The README of 11_fewer has the block."""
        self.list_stages((10, "more", "forward"), (11, "fewer", "forward"))
        for stage in ("10_more", "11_fewer"):
            self.readme(stage).parent.mkdir(exist_ok=True)
            self.readme(stage).write_text(MARKERS)
        self.readme("11_fewer").write_text(MARKERS + MANY_HEADS)
        p = held.MANY_HEADS
        return {**profile(), "profiles": [
            {"stage": number, "before": number - 1, "mask": "full", "dtype": "fp32", "commit": f"of {number}", "d": p["d"],
             "N": p["N"], "kernels": [kernel("long", time_ms=number / 4, busy={"DRAM": number}, **values),
                                      kernel("short", time_ms=0.25)]} for number in stages]}

    def test_where_there_are_many_heads_all_kernels_stand_side_by_side(self):
        data = self.many_heads(10, 11)
        text = self.written(data, "11_fewer")
        for part in ("The kernels of stages 10 and 11 on one A GPU, driver 1.2, commit of 10, of 11, by the counters of Nsight "
                     "Compute: batch * heads = 1024, N = 512, d = 64, fp32, no mask.\n",
                     "| counter | 10, `long` | 10, `short` | 11, `long` | 11, `short` |\n",
                     "| time, ms | 2.500 | 0.250 | 2.750 | 0.250 |\n", "| DRAM busy | 10 % | 10 % | 11 % | 10 % |\n",
                     "| occupancy | 10 % | 10 % | 10 % | 10 % |\n",
                     "\n- Stage 10 in all: 2.75 ms, 0 MB from and to DRAM.\n- Stage 11 in all: 3.00 ms, 0 MB"):
            self.assertIn(part, text)
        self.assertNotIn("What bounds it", text)  # which is said of the problem that all stages have
        data["profiles"] += profile((11, [kernel()]))["profiles"]
        text = self.written(data, "11_fewer")
        self.assertIn("batch * heads = 128, N = 4096", text)
        self.assertEqual((text.count("Bound by"), text.count("| 2.500 |")), (2, 1))

    def test_many_heads_of_one_stage_alone_say_nothing(self):
        for stages in ((10,), (11,), ()):
            self.assertEqual(self.written(self.many_heads(*stages), "11_fewer"), MARKERS + MANY_HEADS)

    def test_many_heads_with_a_counter_that_cannot_be_are_refused(self):
        self.keep(self.many_heads(10, 11, **{held.DRAM_READ: float("nan")}))
        for option in ([], ["--check"]):
            result = self.attribute(*option)
            self.assertEqual(result.returncode, 1)
            self.assertIn(f"{held.DRAM_READ} of long in stage 10, forward pass, full is nan, which cannot be", result.stderr)
            self.assertEqual(self.readme("11_fewer").read_text(), MARKERS + MANY_HEADS)

    def test_forward_and_backward_are_set_side_by_side(self):
        """At each head dimension that both have: 4 * 4 * 32 * 4096^2 * 64 FLOPs, and 2.5 times as many."""
        def of(stage, which, ms, **more):
            return [{"stage": stage, "before": stage - 1, "pass": which, "mask": mask, "dtype": "bf16", "commit": "abc",
                     "kernels": [kernel(which, time_ms=ms, busy={"tensor cores": 10 * ms})], **more}
                    for mask in held.MASKS]

        stage = self.root / "stages/38_three"
        stage.mkdir()
        text = MARKERS + "<!-- share:begin -->\n<!-- share:end -->\n"
        (stage / "README.md").write_text(text)
        data = profile()
        data["profiles"] = [*of(29, "forward", 1), *of(38, "backward", 5), *of(29, "forward", 2, d=128)]
        self.readme("13_one").unlink(), self.readme("14_two").unlink()
        (self.root / "stages/29_four").mkdir()
        self.readme("29_four").write_text(MARKERS)
        text = self.written(data, "38_three")
        self.assertIn("| counter | d = 64, forward | d = 64, backward |\n", text)
        self.assertIn("| TFLOP/s | 550 | 275 |\n| over the forward pass |  | 0.50 |\n", text)
        self.assertIn("| tensor cores busy | 10 % | 50 % |\n", text)
        self.assertIn("| warps wait for other warps at a barrier | 75 % | 75 % |\n", text)
        self.assertEqual(text.count("of it the longest"), 0)
        data["profiles"] += of(38, "backward", 4, d=128)
        text = self.written(data, "38_three")
        self.assertIn("| d = 64, backward | d = 128, forward | d = 128, backward |\n", text)
        self.assertIn("| TFLOP/s | 550 | 275 | 275 | 344 |\n", text)
        self.assertEqual(text.count("Bound by"), 4)
        self.assertIn("\n- d = 128, causal: Bound by latency", text)
        # One that needs Hopper has other instructions: the two are of those that any GPU runs.
        self.list_stages((29, "four", "forward"), (38, "three", "backward"), (52, "five", "backward"), five={"gpu": "hopper"})
        (self.root / "stages/52_five").mkdir()
        self.readme("52_five").write_text(MARKERS)
        data["profiles"] += of(52, "backward", 3)
        self.assertEqual(self.written(data, "38_three"), text)

    def test_the_committed_readmes_and_predictions_are_right(self):
        result = subprocess.run([sys.executable, "-B", "-m", "bench.report.attribution", "--check"], capture_output=True,
                                text=True, cwd=SOURCE)
        self.assertEqual(result.returncode, 0, result.stderr)
        for name, prediction in json.loads((SOURCE / "bench/measure/predictions.json").read_text()).items():
            self.assertTrue(list(SOURCE.glob(f"stages/{name[:2]}_*/attention.cu")), name)
            self.assertTrue(prediction["why"])
            if name.endswith(f" at d = {held.PREDICTED_AT}"):
                self.assertTrue(prediction["gain"] > 0 and prediction["mask"] in held.MASKS)
            else:
                self.assertIn(name[2:], ("", " backward"))
                self.assertIn(prediction["bound"], (*held.BUSY, attribution.LATENCY))


class ProfileTest(Repository):
    """bench.measure.nsight --profile, with a profiler that prints a table of these values."""

    def setUp(self):
        super().setUp()
        fp32 = {"dtypes": ["fp32"], "head_dims": [32, 64]}
        self.list_stages((2, "on_a_cpu", "forward"), (10, "naive", "forward, backward"), (13, "one", "forward"),
                         (29, "four", "forward"), (30, "back", "backward"), (38, "three", "backward"),
                         on_a_cpu={**fp32, "backend": "cpu", "head_dims": {"up_to": 256}}, naive=fp32,
                         back={**fp32, "before": 10})
        self.script("nvidia-smi", "echo 'A GPU, 1.2'")
        self.out = self.root / "profile.json"

    def profiler(self, unit="ns", **values):
        """ncu, which prints two kernels and appends its arguments to a file."""
        units = dict.fromkeys(held.MEASURED, "") | {held.TIME: unit}
        table = io.StringIO()
        rows = csv.DictWriter(table, ["ID", "Kernel Name", *held.MEASURED], quoting=csv.QUOTE_ALL)
        rows.writeheader()
        rows.writerow({"ID": "", "Kernel Name": "", **units})
        for name in ("first", "second"):
            numbers = {metric: f"{value:,}" for metric, value in counters().items()}
            rows.writerow({"ID": 0, "Kernel Name": name, **numbers, **values})
        (self.root / "table").write_text("==PROF== Connected\n" + table.getvalue())
        self.script("ncu", f"echo \"$@\" >> '{self.root}/calls'; cat '{self.root}/table'")

    def run_nsight(self, *options):
        return self.run_module("bench.measure.nsight", "--ncu", self.bin / "ncu", *options)

    def test_it_keeps_every_counter_and_what_was_predicted(self):
        self.profiler()
        result = self.run_nsight("--profile", "--commit", "abc", "--out", self.out, "--stages", "13", "30")
        self.assertEqual(result.returncode, 0, result.stderr)
        data = json.loads(self.out.read_text())
        self.assertEqual((data["gpu"], data["driver"]), ("A GPU", "1.2"))
        self.assertEqual({one["commit"] for one in data["profiles"]}, {"abc"})
        self.assertEqual(data["predictions"], json.loads((SOURCE / "bench/measure/predictions.json").read_text()))
        self.assertEqual([(one["stage"], one["before"], one["d"], one["mask"], one["dtype"]) for one in data["profiles"]],
                         [(number, before, d, mask, dtype)
                          for number, before, d, dtype in ((13, 12, 32, "bf16"), (13, 12, 64, "bf16"), (30, 10, 64, "fp32"))
                          for mask in ("full", "causal")])
        self.assertEqual([one["pass"] for one in data["profiles"]], ["forward"] * 4 + ["backward"] * 2)
        for one in data["profiles"]:
            self.assertEqual(one["kernels"], [{"name": name, "counters": counters()} for name in ("first", "second")])
        full, causal, small, _, backward, backward_causal = (self.root / "calls").read_text().splitlines()
        self.assertIn("--clock-control none", full)
        self.assertIn("ledger 13 --random 4,32,4096,64 --dtype bf16 --backend cuda", full)
        self.assertIn("--dtype bf16 --causal --backend cuda", causal)
        self.assertIn("ledger 13 --random 4,64,4096,32 --dtype bf16 --backend cuda", small)
        self.assertIn("ledger 30 --random 4,32,4096,64 --dtype fp32 --backward --backend cuda", backward)
        self.assertIn("--dtype fp32 --causal --backward --backend cuda", backward_causal)
        self.assertIn("Bound by", self.written(data))

    def test_both_passes_of_a_stage_are_profiled(self):
        self.profiler()
        result = self.run_nsight("--profile", "--commit", "abc", "--out", self.out, "--stages", "10")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([(one["pass"], one["d"], one["N"], one["mask"])
                          for one in json.loads(self.out.read_text())["profiles"]],
                         [("forward", 32, 4096, "full"), ("forward", 32, 4096, "causal"), ("forward", 64, 512, "full"),
                          ("forward", 64, 4096, "full"), ("forward", 64, 4096, "causal"), ("backward", 64, 4096, "full"),
                          ("backward", 64, 4096, "causal")])
        calls = (self.root / "calls").read_text().splitlines()
        self.assertEqual([line.split("ledger ")[1] for line in calls if ",512," in line],
                         ["10 --random 32,32,512,64 --dtype fp32 --backend cuda"])
        # Measured again, each run takes the place of the one at its own length.
        self.assertEqual(self.run_nsight("--profile", "--commit", "def", "--out", self.out, "--stages", "10").returncode, 0)
        self.assertEqual([one["commit"] for one in json.loads(self.out.read_text())["profiles"]], ["def"] * 7)

    def test_the_fastest_backward_pass_is_profiled_at_three_head_dimensions(self):
        self.profiler()
        self.out.write_text(json.dumps({**profile(), "profiles": [
            {"stage": 38, "before": 32, "pass": "backward", "mask": "full", "dtype": "bf16", "commit": "old",
             "kernels": []}]}))  # of d = 64, which it does not say
        result = self.run_nsight("--profile", "--commit", "abc", "--out", self.out, "--stages", "38")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([(one["d"], one["mask"], one["commit"]) for one in json.loads(self.out.read_text())["profiles"]],
                         [(d, mask, "abc") for d in (64, 128, 256) for mask in ("full", "causal")])
        self.assertEqual([line.split("--random ")[1].split()[0] for line in (self.root / "calls").read_text().splitlines()],
                         ["4,32,4096,64"] * 2 + ["4,16,4096,128"] * 2 + ["4,8,4096,256"] * 2)

    def test_what_the_file_has_of_other_stages_stays(self):
        self.profiler()
        predictions = self.root / "bench/measure/predictions.json"
        begun = json.loads(predictions.read_text())
        for commit, stages in (("abc", ("30", "10")), ("def", ("13", "30"))):
            result = self.run_nsight("--profile", "--commit", commit, "--out", self.out, "--stages", *stages)
            self.assertEqual(result.returncode, 0, result.stderr)
            predictions.write_text(json.dumps(begun | {"30 backward": {"bound": "L2", "why": "it is known by now"}}))
        data = json.loads(self.out.read_text())
        self.assertEqual([(one["stage"], one["pass"], one["mask"], one["commit"]) for one in data["profiles"]
                          if (one["d"], one["N"]) == (held.PROFILED["d"], held.PROFILED["N"])],
                         [(number, which, mask, commit) for number, which, commit in
                          ((10, "forward", "abc"), (10, "backward", "abc"), (13, "forward", "def"), (30, "backward", "def"))
                          for mask in ("full", "causal")])
        self.assertEqual(data["predictions"], begun)

    def test_a_file_that_is_no_profile_of_this_gpu_is_left_alone(self):
        self.profiler()
        for text in ("", "[]", "{}", json.dumps({**profile(), "gpu": "Another GPU"})):
            self.out.write_text(text)
            result = self.run_nsight("--profile", "--commit", "abc", "--out", self.out, "--stages", "13")
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("is no profile of this GPU", result.stderr)
            self.assertEqual(self.out.read_text(), text)

    def test_the_counts_are_still_held_against_the_ledger(self):
        names = [metric for metrics in (nsight.HARDWARE | nsight.HOPPER).values() for metric in metrics]
        table = io.StringIO()
        rows = csv.writer(table, quoting=csv.QUOTE_ALL)
        rows.writerow(["ID", "Kernel Name", *names, held.THREADS, nsight.OPCODES])
        rows.writerow(["", "", *("byte" for _ in names), "", ""])
        rows.writerow([0, "logsumexp", *("7" for _ in names), "128", "FFMA: 1; BAR: 4"])
        rows.writerow([1, "forward", *("1,000" for _ in names), "128 (0: 128)", "FFMA: 1; BAR: 8; MUFU: 3; HGMMA: 8; UTMALDG: 4"])
        (self.root / "table").write_text(table.getvalue())
        self.script("ncu", f"cat '{self.root}/table'")
        counts = {"global.Q.distinct_read_bytes": 2000, "global.O.distinct_written_bytes": 1000,
                  "global.O.atomic_bytes": 2000, "global.Q.sectors": 2000, "global.O.sectors": 2000,
                  "global.O.atomic_sectors": 2000, "shared.P.wavefronts": 1601, "async_copies": 8, "barriers": 2,
                  "tma_read_bytes": 900, "wgmma_read_bytes": 128000, "tma_loads": 3}
        of_hopper = ("bytes by TMA | 900 | 1000 | x1.111", "wavefronts of wgmma | 1000 | 1000 | equal",
                     "wgmmas | 8 | 8 | equal", "TMA loads | 3 | 4 | x1.333")
        for stored, wgmmas, code in ((1000, 0, 0), (1000, 2, 0), (999, 0, 1)):
            counts |= {"global.O.distinct_written_bytes": stored, "wgmmas": wgmmas}
            said = json.dumps({"stages": [{"counts": counts}]})
            listed = (self.bin / "flashladder").read_text().splitlines()[-1]
            self.script("flashladder", f"[ $1 = list ] || exec echo '{said}'\n{listed}")
            result = self.run_nsight("--stages", "13", "--commit", "abc", "--out", self.out)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertIn("| 13 | forward | ragged | 256 | shared wavefronts | 1600 | 2000 | x1.250 |", result.stdout)
            self.assertIn("| 13 | forward | square | 32 | barriers | 2 | 2 | equal |", result.stdout)
            for name in ("global sectors", "global sectors of atomics"):
                self.assertIn(f"| 13 | forward | square | 32 | {name} | 2000 | 2000 | equal |", result.stdout)
            for row in of_hopper:
                (self.assertIn if wgmmas else self.assertNotIn)(f"| 13 | forward | square | 32 | {row} |", result.stdout)
            data = json.loads(self.out.read_text())
            self.assertEqual((data["gpu"], data["commit"]), ("A GPU, 1.2", "abc"))
        self.assertIn("global bytes stored: 999 and 1000", result.stderr)

    def refused_profile(self, *said, options=("--commit", "abc"), stage="13"):
        result = self.run_nsight("--profile", *options, "--out", self.out, "--stages", stage)
        self.assertNotEqual(result.returncode, 0)
        for words in said:
            self.assertIn(words, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        self.assertFalse(self.out.exists())

    def test_what_is_not_a_number_is_refused(self):
        for text in ("n/a", "nan", "inf", ""):
            self.profiler(**{held.BUSY["L2"]: text})
            self.refused_profile(f"'{text}'", held.BUSY["L2"], "stage 13, forward pass, N = 4096, d = 64, full", "--query-metrics")

    def test_times_in_another_unit_are_refused(self):
        self.profiler(unit="us")
        self.refused_profile("times in us")

    def test_a_profiler_that_fails_or_sees_no_kernel_is_quoted(self):
        self.script("ncu", "echo '==WARNING== No kernels were profiled.'")
        self.refused_profile("stage 13 launched no kernel", "No kernels were profiled")
        self.script("ncu", "echo 'Failed to find metric'; exit 1")
        self.refused_profile("Failed to find metric")
        (self.bin / "ncu").unlink()
        self.refused_profile("ncu cannot be run", "--ncu")

    def test_a_stage_that_is_not_there_and_a_missing_commit_are_refused(self):
        self.profiler()
        self.refused_profile("none of these stages", stage="2")
        self.refused_profile("--commit", options=())


class GpuTest(unittest.TestCase):
    """What the scripts know of the GPU present."""

    def test_what_nvidia_smi_says_or_that_it_finds_none(self):
        from bench.measure import facts
        with tempfile.TemporaryDirectory(prefix="smi test ") as folder:
            tool = Path(folder) / "nvidia-smi"
            for body, said in (("echo 'NVIDIA H200, 580.1'", ["NVIDIA H200", "580.1"]), ("echo No devices were found", None),
                               ("echo failed >&2; exit 9", None), ("echo 'one field'", None)):
                tool.write_text(f'#!/bin/sh\ntest "$1 $3" = "--query-gpu=name,driver_version --id=0" || exit 1\n{body}\n')
                tool.chmod(0o755)
                with mock.patch.dict(os.environ, {"PATH": f"{folder}:{os.environ['PATH']}"}):
                    self.assertEqual(facts.nvidia_smi("name", "driver_version"), said)
        with mock.patch.dict(os.environ, {"PATH": ""}):
            self.assertIsNone(facts.nvidia_smi("name"))

    def test_the_commit_is_the_one_given_or_that_of_the_sources(self):
        from bench.measure import facts
        with mock.patch.dict(os.environ, {"PATH": ""}):  # without git
            self.assertEqual((facts.commit_of("abc"), facts.commit_of(None)), ("abc", "unknown"))
        if shutil.which("git") is None:
            self.skipTest("there is no git")

        def git(*words):
            subprocess.run(["git", "-C", folder, "-c", "user.name=x", "-c", "user.email=x", *words], check=True,
                           capture_output=True)

        with tempfile.TemporaryDirectory(prefix="commit test ") as folder, \
                mock.patch.object(facts, "ROOT", Path(folder)):
            (Path(folder) / "bench/results").mkdir(parents=True)
            source, result = Path(folder) / "source", Path(folder) / "bench/results/speed.json"
            for path in (source, result):
                path.write_text("first")
            self.assertEqual(facts.commit_of(None), "unknown")
            git("init", "-q")
            git("add", "-A")
            git("commit", "-q", "-m", "first")
            clean = facts.commit_of(None)
            self.assertRegex(clean, "^[0-9a-f]{7,}$")
            result.write_text("second")
            self.assertEqual(facts.commit_of(None), clean)
            source.write_text("second")
            self.assertEqual(facts.commit_of(None), f"{clean}-dirty")


class MeasureAllTest(unittest.TestCase):
    """bench.measure.measure_all, which runs the commands that make the committed results."""

    def run_it(self, *options):
        return subprocess.run([sys.executable, "-B", "-m", "bench.measure.measure_all", *options], capture_output=True,
                              text=True, cwd=SOURCE)

    def test_it_makes_each_file_that_is_read(self):
        try:
            from bench.report import gpu_report
        except (ImportError, SystemExit) as error:  # there is no Matplotlib
            self.skipTest(str(error))
        read = {name for name in vars(gpu_report).values() if isinstance(name, str) and name.endswith(".json")}
        read |= {*gpu_report.LOSSES, attribution.PROFILE.name, *(path.name for path in gpu_report.HOPPER.glob("policies_*"))}
        self.assertGreater(len(read), 8)
        listed = self.run_it("--list").stdout
        self.assertIn("\nbackward.json: build/release/bench/flashladder_bench ", listed)
        self.assertNotIn(f"{SOURCE}/", listed.replace(sys.executable, ""))
        for name in read:
            self.assertIn(f"\n{name}: ", "\n" + listed)

    def test_one_that_fails_does_not_stop_the_others_and_is_named(self):
        with tempfile.TemporaryDirectory(prefix="measure test ") as folder:
            def program(name, code):
                path = Path(folder) / ("bench" if name.endswith("bench") else ".") / name
                path.parent.mkdir(exist_ok=True)
                write = 'echo "{\\"row\\": 1}" >"${2#*=}"' if name.endswith("bench") else ":"
                path.write_text(f'#!/bin/sh\necho "$@"\n{write}\nexit {code}\n')
                path.chmod(0o755)

            program("flashladder_bench", 0)
            program("flashladder", 3)
            result = self.run_it("--commit", "abc", "--out", folder, "--build", folder, "--only", "nsight.json",
                                 "backward.json")
            kept = Path(folder) / "backward.json"
            self.assertEqual(kept.read_text(), '{\n "row": 1\n}\n')
            # What a run that fails has begun to write is gone, and what was there is left.
            kept.write_text("old\n")
            program("flashladder_bench", 1)
            again = self.run_it("--commit", "abc", "--out", folder, "--build", folder, "--only", "backward.json")
            self.assertEqual((again.returncode, kept.read_text()), (1, "old\n"))
            self.assertEqual([path.name for path in Path(folder).glob(".*")], [])
        self.assertEqual(result.returncode, 1)
        self.assertIn("nsight.json: exit status 1", result.stdout)
        self.assertIn(f"--benchmark_out={folder}/.backward.json", result.stdout)
        self.assertIn("--benchmark_context=commit=abc\nbackward.json: done", result.stdout)
        self.assertTrue(result.stderr.endswith("measure_all: failed: nsight.json\n"), result.stderr)

    def test_what_is_missing_is_said(self):
        for options, said in ((("--commit", "a", "--out", "/no/folder"), "no folder"),
                              (("--only", "speed.json"), "speed.json")):
            result = self.run_it(*options)
            self.assertEqual(result.returncode, 2)
            self.assertIn(said, result.stderr)

    def test_the_folder_is_that_of_the_gpu(self):
        from bench.measure import measure_all
        for said, name in (("NVIDIA H200", "h200"), ("NVIDIA A100-SXM4-80GB", "a100_sxm4_80gb"), ("Tesla T4", "tesla_t4")):
            with mock.patch.object(measure_all, "nvidia_smi", lambda *_, said=said: [said]):
                self.assertEqual(measure_all.folder_of_gpu(), SOURCE / "bench/results" / name)
        for commit, why in (("abc", "nvidia-smi finds no GPU"), ("unknown", "git does not know these sources")):
            with mock.patch.object(measure_all, "nvidia_smi", lambda *_: None), \
                    mock.patch.object(measure_all, "commit_of", lambda _, commit=commit: commit), \
                    mock.patch.object(sys, "argv", ["measure_all"]), \
                    contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit):
                measure_all.main()
            self.assertIn(why, said.getvalue())


if __name__ == "__main__":
    unittest.main()
