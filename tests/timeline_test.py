"""The two times of bench.report.timeline: the model's, on traces made by hand, and that of clock stamps, made up of the model's;
and that the READMEs say what they say.

Usage: python3 -m tests.timeline_test PROGRAM [unittest options]
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from bench.measure import stamps as take_stamps
from bench.report import timeline
from bench.results import gpu, stamps
from bench.results.rows import rows_text
from bench.variants.variants import VariantError
from common.course import registry, watch
from common.course.registry import Failure
from common.course.stamped_time import FENCE, GOES_ON, STAMPED, WAITS_FOR, Stamped, first_block, is_stamped
from common.course.time_model import (AT_BARRIER, BANDWIDTH, CLUSTER, FOR_DATA, FOR_PRODUCT, HANDOVER, LATENCY, MMA_FLOPS,
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

    def test_at_a_barrier_of_a_cluster_a_block_waits_for_its_own_warps(self):
        model = model_of((0, "barrier", 0, 0, CLUSTER, 4), (0, "end"), (4, "barrier", 100, 0, CLUSTER, 4), (4, "end"))
        self.assertEqual(bars_of(model, "warp 0"), [(AT_BARRIER, 0, 100 + HANDOVER)])
        self.assertEqual(model.end, 100 + HANDOVER)

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
        steps = first_block(44)
        model = Model(steps)
        for timing in (model, Stamped(steps, stamped(model))):
            for lane in {bar.lane for bar in timing.bars}:
                bars = sorted((bar for bar in timing.bars if bar.lane == lane), key=lambda bar: bar.begin)
                for before, after in zip(bars, bars[1:]):
                    self.assertLessEqual(before.end, after.begin + 1e-6, lane)
            self.assertGreater(len(timing.bars), 200)

    def test_the_readmes_have_what_the_model_says(self):
        done = subprocess.run([sys.executable, "-B", "-m", "bench.report.timeline", "--check"], cwd=SOURCE,
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)


def stamped(model):
    """What the warps would stamp if the model were right, with a wait for the phase before the first, which is no step."""
    found = {}
    for number, warp in model.warps.items():
        waits = {bar.step: bar for bar in model.bars if bar.lane == f"warp {number}" and bar.what in WAITS_FOR.values()}
        own = []
        for at, (step, done) in enumerate(zip(warp.steps, warp.done)):
            if not is_stamped(step):
                continue
            if step.name == "mbarrier_arrive" and not own:
                own += [("mbarrier_wait", round(done)), (GOES_ON, round(done))]
            if step.name == "commit":
                own.append((FENCE, round(done)))
            own.append((step.name, round(waits[at].begin if at in waits else done)))
            if step.name in WAITS_FOR:
                own.append((GOES_ON, round(done)))
        if own:
            found[number] = own
    return found


class StampedTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.steps = {number: first_block(number) for number in (44, 45)}
        cls.models = {number: Model(steps) for number, steps in cls.steps.items()}
        cls.stamps = {number: stamped(model) for number, model in cls.models.items()}

    def test_stamps_of_the_model_give_its_waits_again(self):
        for number, model in self.models.items():
            found = Stamped(self.steps[number], self.stamps[number])
            for warp in (0, 4, 8, 12):
                for what in WAITS_FOR.values():
                    of_model, of_stamps = (sum(end - begin for kind, begin, end in bars_of(one, f"warp {warp}") if kind == what)
                                           for one in (model, found))
                    self.assertAlmostEqual(of_stamps, of_model, delta=HANDOVER + 100, msg=(number, warp, what))
            self.assertAlmostEqual(found.end, model.end, delta=0.01 * model.end)
            for warp in found.warps.values():
                self.assertEqual(len(warp.done), len(warp.steps))
                self.assertEqual(warp.done, sorted(warp.done))

    def test_a_barrier_is_passed_when_the_last_warp_has_come(self):
        """On a GPU a warp stamps behind its barrier before that."""
        early = {number: [(name, min(clock, taken[at - 1][1] + 35) if name == GOES_ON and taken[at - 1][0] == "barrier" else clock)
                          for at, (name, clock) in enumerate(taken)] for number, taken in self.stamps[44].items()}
        self.assertNotEqual(early, self.stamps[44])
        right, found = (Stamped(self.steps[44], of) for of in (self.stamps[44], early))
        for number in right.warps:
            of_model, of_stamps = ([end for what, _, end in bars_of(one, f"warp {number}") if what == AT_BARRIER] for one in (right, found))
            self.assertEqual(len(of_model), len(of_stamps))
            for end, own in zip(of_model, of_stamps):
                self.assertAlmostEqual(own, end, delta=HANDOVER + 35)
            self.assertEqual(found.warps[number].done, sorted(found.warps[number].done))

    def test_no_warp_of_a_gpu_goes_on_before_what_it_waits_for(self):
        for number in (43, *stamps.TIME_LINES):
            steps, (_, taken) = self.steps.get(number) or first_block(number), stamps.of_stage(number)
            found = Stamped(steps, taken)
            came = {}
            for warp in found.warps.values():
                self.assertEqual(warp.done, sorted(warp.done))
                for step, done in zip(warp.steps, warp.done):
                    if step.name in ("mbarrier_arrive", "load"):
                        came[step.a, step.b] = max(came.get((step.a, step.b), 0), done)
            for warp in found.warps.values():
                for step, done in zip(warp.steps, warp.done):
                    if step.name == "mbarrier_wait":
                        self.assertGreater(done, came[step.a, step.b])
            # A tensor core has one product at a time.
            least = sum(end - begin for begin, end, _ in Model(steps).products)
            self.assertGreater(timeline.share_of(found, "tensor cores") * found.end, least)

    def test_what_spans_cover_is_counted_once(self):
        self.assertEqual(timeline.covered([(0, 10), (20, 30)], [(-5, 2), (1, 4), (8, 22), (29, 40)]), 4 + 2 + 2 + 1)

    def test_a_product_is_under_way_for_no_less_than_it_takes(self):
        for number, model in self.models.items():
            found = Stamped(self.steps[number], self.stamps[number])
            of_model, of_stamps = (timeline.share_of(one, "tensor cores") for one in (model, found))
            self.assertGreaterEqual(of_stamps, of_model)
            self.assertLessEqual(of_stamps, 1)

    def test_other_steps_are_an_error(self):
        taken = self.stamps[44]
        swapped = {**taken, 4: [("commit", clock) if name == "barrier" else (name, clock) for name, clock in taken[4]]}
        for wrong, why in (({**taken, 4: taken[4][:-1]}, "does not go on"), ({**taken, 4: taken[4] + [("commit", 99999)]}, "behind its last"),
                           (swapped, "has stamped commit"), ({**taken, 4: taken[4][:7]}, "nothing|does not go on"),
                           (self.stamps[45], "of another kernel")):
            with self.assertRaisesRegex(Failure, why):
                Stamped(self.steps[44], wrong)

    def test_what_is_kept_is_what_was_stamped(self):
        kinds = sorted({*STAMPED, FENCE, GOES_ON})
        for of_warp in self.stamps[44].values():
            self.assertEqual(stamps.unpacked(stamps.packed(of_warp, kinds), kinds), of_warp)

    def measured(self, folder, taken):
        """Runs bench.measure.stamps where a GPU would have stamped this; returns the folder's stamps.json."""
        def measure(_build, _folder, tasks, *_, **__):
            return [{plain: {"wrong": "", "ms": [[2.0, 1.0, 1.5]]}, with_stamps: {"wrong": "", "ms": [[1.6]], "stamps": [of]}}
                    for (plain, with_stamps), of in zip([task["libraries"] for task in tasks], taken.values(), strict=True)]

        path = Path(folder) / stamps.FILE
        with (mock.patch.multiple(take_stamps, gpu=lambda: {"gpu": "a made-up GPU", "driver": "1", "architecture": 90}, measure=measure,
                                  make_all=lambda orders, _: [{"name": one["name"], "library": one["name"]} for one in orders]),
              mock.patch("sys.argv", ["stamps", *map(str, taken), "--out", str(path), "--commit", "abc"]), mock.patch("sys.stderr")):
            take_stamps.main()
        return path

    def test_what_is_measured_is_kept_and_what_does_not_fit_the_trace_is_not(self):
        taken = {number: {str(warp): [[name, clock + 7] for name, clock in of_warp] for warp, of_warp in of_stage.items()}
                 for number, of_stage in self.stamps.items()}
        with tempfile.TemporaryDirectory() as folder:
            path = self.measured(folder, taken)
            for number, of_stage in self.stamps.items():
                name, found = stamps.of_stage(number, Path(folder))
                self.assertEqual(name, "a made-up GPU")
                self.assertEqual(found, {warp: [(what, clock + 7) for what, clock in own] for warp, own in of_stage.items()})
            self.assertEqual(json.loads(path.read_text())["costs"][0], {"stage": 44, "ms": 1.5, "stamped_ms": 1.6})
        taken[45]["8"].pop(3)
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(VariantError, "stage 45: the stamps are of another kernel: warp 8 .*stamps_45_refused.json has them"):
                self.measured(folder, taken)
            self.assertEqual({row["stage"] for row in json.loads(Path(folder, stamps.FILE).read_text())["rows"]}, {44})
            self.assertEqual(json.loads(Path(folder, "stamps_45_refused.json").read_text())["8"][3:], taken[45]["8"][3:])

    def test_a_file_of_stamps_is_drawn_and_played_and_a_stage_without_is_refused(self):
        kinds = sorted({*STAMPED, FENCE, GOES_ON})
        rows = [{"stage": number, "warp": warp, "stamps": stamps.packed(own, kinds)}
                for number, taken in self.stamps.items() for warp, own in taken.items()]
        stages = {stage.number: stage for stage in registry.all_stages()}
        with tempfile.TemporaryDirectory() as folder:
            place, page = Path(folder), Path(folder) / "page.html"
            (place / stamps.FILE).write_text(rows_text({"gpu": "a made-up GPU", "kinds": kinds, "rows": rows}))
            with mock.patch.object(gpu, "FOLDER", place), mock.patch.object(gpu, "HOPPER", place):
                text = timeline.table(timeline.shown_of(stages[44]))
                self.assertRegex(text, r"44 ping_pong, on a made-up GPU \| 2[78],\d{3} \| 1,6\d\d \| \d{3} \| at most \d\d% "
                                       r"\| 8\d% to \d\d%")
                self.assertNotIn("With stamps", text)
                (place / stamps.FILE).write_text(rows_text({
                    "gpu": "a made-up GPU", "driver": "1", "commit": "abc", "pace": "rested", "rounds": 3, "kinds": kinds, "rows": rows,
                    "problem": {"batch": 8, "heads": 32, "Nq": 2048, "d": 64, "dtype": "bf16"},
                    "costs": [{"stage": 44, "ms": 0.5, "stamped_ms": 0.6}]}))
                self.assertIn("\n\nWith stamps stage 44 takes 0.600 ms, 1.20 times the 0.500 ms without, on one made-up GPU, driver 1, "
                              "commit abc: batch 8, 32 heads", timeline.table(timeline.shown_of(stages[44])).replace("one a", "one"))
                self.assertIsNone(stamps.of_stage(43))
                watched = watch.parser().parse_args(["44", "45", "--measured", "--no-open", "--out", str(page)])
                with mock.patch("sys.stdout"):
                    watch.run(watched)
                self.assertGreater(page.stat().st_size, 50_000)
                for words, why in ((["43", "--measured"], "of 43 larger_tiles there are no clock stamps"),
                                   (["44", "--measured", "--full"], "leave --full out"),
                                   (["44", "--measured", "--random", "1,1,64,64"], "leave --random out")):
                    with self.assertRaisesRegex(Failure, why):
                        watch.run(watch.parser().parse_args([*words, "--out", str(page)]))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("timeline_test: call it with the program flashladder")
    os.environ["FLASHLADDER_PROGRAM"] = sys.argv.pop(1)
    unittest.main()
