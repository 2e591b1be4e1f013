"""The model of time of bench.report.timeline, on traces made by hand, and that the READMEs say what it says.

Usage: python3 -m tests.timeline_test PROGRAM [unittest options]
"""

import os
import subprocess
import sys
import unittest
from pathlib import Path

from bench.report import timeline
from bench.report.timeline import HANDOVER, TMA_BANDWIDTH, TMA_LATENCY, Model
from common.course.registry import Failure

SOURCE = Path(__file__).resolve().parent.parent
NAMES = ["mbarrier_arrive", "mbarrier_wait", "load", "wgmma", "commit", "wait_groups", "barrier", "barrier_arrive", "end"]


def model_of(*steps):
    """Of steps (warp, name, instructions, exponentials, a, b, bytes), of which the numbers at the end may be missing."""
    return Model({"names": NAMES, "steps": [[NAMES.index(name), warp, *numbers, *[0] * (5 - len(numbers))]
                                            for warp, name, *numbers in steps]})


def bars_of(model, lane):
    return [(bar.what, bar.begin, bar.end) for bar in model.bars if bar.lane == lane]


class ModelTest(unittest.TestCase):
    def test_a_product_takes_half_its_columns_and_is_waited_for(self):
        model = model_of((0, "wgmma", 0, 0, 128), (0, "wgmma", 0, 0, 64), (0, "commit"), (0, "wait_groups"), (0, "end"))
        self.assertEqual(bars_of(model, "tensor cores"), [("warp 0", 0, 96)])
        self.assertEqual(bars_of(model, "warp 0"), [("product", 0, 96 + HANDOVER)])
        self.assertEqual(model.end, 96 + HANDOVER)

    def test_what_is_left_under_way_is_not_waited_for(self):
        model = model_of((0, "wgmma", 0, 0, 64), (0, "commit"), (0, "wgmma", 0, 0, 256), (0, "commit"),
                         (0, "wait_groups", 0, 0, 1), (0, "wait_groups", 500), (0, "end"))
        self.assertEqual(bars_of(model, "warp 0"), [("product", 0, 32 + HANDOVER), ("work", 32 + HANDOVER, 532 + HANDOVER)])

    def test_two_warps_of_a_scheduler_share_its_units_and_two_of_others_do_not(self):
        for other, end in ((4, 640), (1, 320)):
            model = model_of((0, "end", 0, 40), (other, "end", 0, 40))
            self.assertAlmostEqual(model.end, end, delta=8 * timeline.SLICE)

    def test_a_load_comes_after_its_time_and_lets_go_who_waits(self):
        model = model_of((0, "mbarrier_arrive", 0, 0, 3, 7), (0, "load", 0, 0, 3, 7, 6400), (0, "end"),
                         (4, "mbarrier_wait", 0, 0, 3, 7), (4, "end"))
        self.assertEqual(bars_of(model, "warp 4"), [("keys", 0, 6400 / TMA_BANDWIDTH + TMA_LATENCY + HANDOVER)])

    def test_a_barrier_waits_for_the_last(self):
        model = model_of((0, "barrier", 0, 0, 1, 2), (0, "end"), (4, "barrier_arrive", 100, 0, 1, 2), (4, "end"))
        self.assertEqual(bars_of(model, "warp 0"), [("turn", 0, 100 + HANDOVER)])
        self.assertEqual(bars_of(model, "warp 4"), [("work", 0, 100)])

    def test_who_waits_for_what_never_comes_is_an_error(self):
        with self.assertRaisesRegex(Failure, "warp 0 waits for what does not come"):
            model_of((0, "barrier", 0, 0, 1, 2), (0, "end"))

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
