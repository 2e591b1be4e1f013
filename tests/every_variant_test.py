"""The tiles of all GPUs, the stages without each of their ideas, or with one that did not pay, and the variants that
tell what atomics cost: each is compiled for the emulator and checked there, which takes minutes. With FLASHLADDER_TURN=2/3
in the environment the second of three parts of the patches.

Usage: python3 -m tests.every_variant_test BUILD [unittest options]
"""

import tempfile
import unittest

from bench.measure import ablation, atomics
from bench.variants import variants
from bench.variants.tuned import fastest_on_hopper, tuned
from tests.tune_test import BUILD, FOR_ALL_GPUS, row
from tests.turn import in_turn


class EveryVariantTest(unittest.TestCase):
    # Without the mask and with it; small, so that the emulator is quick.
    TILES = {"forward": [(64, 64, 4, 2, 2), (64, 64, 4, 1, 2)], "backward": [(32, 64, 4, 2, 1, 32, 2), (64, 64, 4, 1, 2, 32, 1)]}

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tune test ")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_the_rows_for_other_gpus_are_right(self):
        """As rows of the GPU that is emulated. A tile is tried once, in the dtype that has it first."""
        for stage in FOR_ALL_GPUS:
            rows, tried = variants.read_table(stage), set()
            for architecture in sorted({r["architecture"] for r in rows} - {90}):
                mine = []
                for r in ({**r, "architecture": 90} for r in rows if r["architecture"] == architecture):
                    key = (r["d"], r["causal"], *r["tile"])
                    if r not in rows and key not in tried:
                        mine.append(r)
                        tried.add(key)
                one = variants.make(stage, self.folder, f"{stage.number}_{architecture}", build=BUILD, backend="emulator",
                                    table=variants.with_rows(stage.table.read_text(), mine))
                tasks = [{"libraries": [one["library"]], "time": [],
                          "check": variants.small_problems(stage, r["d"], r["causal"], r["dtype"])} for r in mine]
                for r, result in zip(mine, variants.measure(BUILD, self.folder, tasks, 1, lambda text: None), strict=True):
                    self.assertEqual(result[one["library"]]["wrong"], "", r)

    def test_the_stage_is_right_without_each_idea(self):
        orders, tasks = [], []
        for which, tiles in self.TILES.items():
            stage = tuned(which)
            rows = [row(causal=causal, tile=tile) for causal, tile in zip((False, True), tiles)]
            table = variants.with_rows(stage.table.read_text(), rows)
            orders += [{"stage": stage, "folder": self.folder, "name": f"{which}_{path.stem}", "patch": path,
                        "build": BUILD, "backend": "emulator", "table": table} for path in in_turn(ablation.patches(stage))]
        made = variants.make_all(orders, lambda text: None)
        for which in self.TILES:
            libraries = [one["library"] for one in made if one["name"].startswith(which)]
            tasks += [{"libraries": libraries, "time": [],
                       "check": variants.small_problems(tuned(which), 64, causal, "bf16")[::2]}
                      for causal in (False, True) if libraries]
        for result in variants.measure(BUILD, self.folder, tasks, 1, lambda text: None):
            for library, found in result.items():
                self.assertEqual(found["wrong"], "", library)

    def test_the_stage_on_hopper_is_right_with_each_idea(self):
        """With fewer heads than on a GPU: the emulated one has 16 multiprocessors."""
        paths = in_turn(ablation.patches(fastest_on_hopper()))
        # Half of them at a time: each has an emulator of its own, with a stack for each thread, which is two mappings of memory,
        # and a process may have 65,530.
        for half in filter(None, (paths[::2], paths[1::2])):
            self.is_right_with(half)

    def is_right_with(self, paths):
        stage, tasks = fastest_on_hopper(), []
        orders = [{"stage": stage, "folder": self.folder, "name": path.stem, "patch": path, "build": BUILD,
                   "backend": "emulator"} for path in paths]
        made = variants.make_all(orders, lambda text: None)
        for d, causal in ((64, False), (64, True), (72, True), (128, False), (128, True)):
            libraries = [one["library"] for path, one in zip(paths, made, strict=True)
                         if ablation.changes(path, d, causal)]
            problems = variants.small_problems(stage, d, causal, "bf16")
            if libraries:
                tasks.append({"libraries": libraries, "time": [],
                              "check": [{**one, "heads": min(one["heads"], 12)} for one in problems]})
        found = variants.measure(BUILD, self.folder, tasks, 1, lambda text: None)
        self.assertEqual({library for result in found for library in result}, {one["library"] for one in made})
        for task, result in zip(tasks, found, strict=True):
            for library, one in result.items():
                self.assertEqual(one["wrong"], "", (library, task["check"]))

    def test_dq_is_wrong_where_it_is_meant_to_be_and_nowhere_else(self):
        """On the emulator. What is wrong by design is right where there is one tile of keys."""
        tiles = {False: (64, 64, 4, 1, 2, 32, 1), True: (64, 64, 4, 2, 1, 32, 2)}
        orders = []
        for i, (_, stage, patch, _) in enumerate(atomics.VARIANTS):
            rows = [row(causal=causal, tile=tile) for causal, tile in tiles.items()]
            orders.append({"stage": stage, "folder": self.folder, "name": str(i), "build": BUILD, "backend": "emulator",
                           "table": variants.with_rows(stage.table.read_text(), rows),
                           "patch": patch and atomics.PATCHES / patch})
        libraries = [one["library"] for one in variants.make_all(orders, lambda text: None)]
        shape = {"batch": 2, "heads": 2, "Nq": 130, "d": 64, "dtype": "bf16"}
        tasks = [{"libraries": libraries, "time": [], "check": [{**shape, "Nk": Nk, "causal": causal}]}
                 for Nk in (60, 130) for causal in (False, True)]
        found = variants.measure(BUILD, self.folder, tasks, 1, lambda text: None)
        for i, result in enumerate(found):
            for (name, _, _, is_right), library in zip(atomics.VARIANTS, libraries):
                with self.subTest(variant=name, **tasks[i]["check"][0]):
                    if is_right or i < 2:
                        self.assertEqual(result[library]["wrong"], "")
                    else:  # and nothing but that: no access out of bounds
                        self.assertRegex(result[library]["wrong"], r"^B=\d.*: dQ.* off by ")


if __name__ == "__main__":
    unittest.main()
