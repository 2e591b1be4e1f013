"""The model of time of bench.report.timeline, on traces made by hand, and that the READMEs say what it says.

Usage: python3 -m tests.timeline_test PROGRAM [unittest options]
"""

import os
import subprocess
import sys
import unittest
from pathlib import Path

from bench.report import timeline
from common.course.registry import Failure
from common.course.time_model import (AT_BARRIER, BANDWIDTH, FOR_DATA, FOR_PRODUCT, HANDOVER, LATENCY, MMA_FLOPS,
                                      SHARED_BANDWIDTH, SLICE, Model, Step)

SOURCE = Path(__file__).resolve().parent.parent


def model_of(*steps):
    """Of steps (warp, name, instructions, exponentials, a, b, bytes), of which the numbers at the end may be missing."""
    return Model(Step(*step) for step in steps)


def bars_of(model, lane):
    return [(bar.what, bar.begin, bar.end) for bar in model.bars if bar.lane == lane]


class ModelTest(unittest.TestCase):
    def test_a_product_takes_half_its_columns_and_is_waited_for(self):
        model = model_of((0, "wgmma", 0, 0, 128), (0, "wgmma", 0, 0, 64), (0, "commit"), (0, "wait_groups"), (0, "end"))
        self.assertEqual(bars_of(model, "tensor cores"), [("warp 0", 0, 96)])
        self.assertEqual(bars_of(model, "warp 0"), [(FOR_PRODUCT, 0, 96 + HANDOVER)])
        self.assertEqual(model.end, 96 + HANDOVER)

    def test_what_is_left_under_way_is_not_waited_for(self):
        model = model_of((0, "wgmma", 0, 0, 64), (0, "commit"), (0, "wgmma", 0, 0, 256), (0, "commit"),
                         (0, "wait_groups", 0, 0, 1), (0, "wait_groups", 500), (0, "end"))
        self.assertEqual(bars_of(model, "warp 0"), [(FOR_PRODUCT, 0, 32 + HANDOVER), ("other work", 32 + HANDOVER, 532 + HANDOVER)])

    def test_two_warps_of_a_scheduler_share_its_units_and_two_of_others_do_not(self):
        for other, end in ((4, 640), (1, 320)):
            model = model_of((0, "end", 0, 40), (other, "end", 0, 40))
            self.assertAlmostEqual(model.end, end, delta=8 * SLICE)

    def test_a_load_comes_after_its_time_and_lets_go_who_waits(self):
        model = model_of((0, "mbarrier_arrive", 0, 0, 3, 7), (0, "load", 0, 0, 3, 7, 6400), (0, "end"),
                         (4, "mbarrier_wait", 0, 0, 3, 7), (4, "end"))
        self.assertEqual(bars_of(model, "warp 4"), [(FOR_DATA, 0, 6400 / BANDWIDTH + LATENCY + HANDOVER)])

    def test_a_barrier_waits_for_the_last(self):
        model = model_of((0, "barrier", 0, 0, 1, 2), (0, "end"), (4, "barrier_arrive", 100, 0, 1, 2), (4, "end"))
        self.assertEqual(bars_of(model, "warp 0"), [(AT_BARRIER, 0, 100 + HANDOVER)])
        self.assertEqual(bars_of(model, "warp 4"), [("other work", 0, 100)])

    def test_who_waits_for_what_never_comes_is_an_error(self):
        with self.assertRaisesRegex(Failure, "warp 0 waits for what does not come"):
            model_of((0, "barrier", 0, 0, 1, 2), (0, "end")).require_end()

    def test_a_load_is_waited_for_and_a_copy_only_where_the_warp_says_so(self):
        read = {"global.K.read_bytes": 6400}
        loads = model_of((0, "end", 0, 0, 0, 0, 0, "", 0, read))
        self.assertEqual(bars_of(loads, "warp 0"), [("loads", 0, 100), (FOR_DATA, 100, 100 + LATENCY)])
        copy = (0, "copy_commit", 0, 0, 0, 0, 0, "", 0, {**read, "async_copies": 400})
        self.assertEqual(model_of(copy, (0, "end", 500)).end, 500)
        waits = model_of(copy, (0, "copy_wait", 0, 0, 0), (0, "end"))
        self.assertEqual(bars_of(waits, "warp 0"), [(FOR_DATA, 0, 100 + LATENCY)])
        self.assertEqual(model_of(copy, copy, (0, "copy_wait", 0, 0, 1), (0, "end")).end, 100 + LATENCY, "the older group")

    def test_shared_memory_is_one_for_all_warps_and_a_tensor_core_one_for_four(self):
        shared = {"shared.Q.read_bytes": 640 * SHARED_BANDWIDTH}
        mma = {"flops_tensor_cores": 640 * MMA_FLOPS}
        for counted, other, end in ((shared, 1, 1280), (mma, 1, 640), (mma, 4, 1280)):
            model = model_of((0, "scores", 0, 0, 0, 0, 0, "", 0, counted), (0, "end"),
                             (other, "scores", 0, 0, 0, 0, 0, "", 0, counted), (other, "end"))
            self.assertAlmostEqual(model.end, end, delta=8 * SLICE)
            self.assertEqual({bar.what for bar in model.bars}, {"S = Q K^T"})

    def test_no_bar_of_a_unit_overlaps_another_in_a_real_trace(self):
        model = Model(timeline.traced(44))
        for lane in {bar.lane for bar in model.bars}:
            bars = sorted((bar for bar in model.bars if bar.lane == lane), key=lambda bar: bar.begin)
            for before, after in zip(bars, bars[1:]):
                self.assertLessEqual(before.end, after.begin + 1e-6, lane)
        self.assertGreater(len(model.bars), 200)

    def test_the_readmes_have_what_the_model_says(self):
        done = subprocess.run([sys.executable, "-B", "-m", "bench.report.timeline", "--check"], cwd=SOURCE,
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("timeline_test: call it with the program flashladder")
    os.environ["FLASHLADDER_PROGRAM"] = sys.argv.pop(1)
    unittest.main()
