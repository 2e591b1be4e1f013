"""Tests of what all programs in Python share: the roles of the stages, and the form of the files of results.

Usage: python3 -m tests.roles_test [unittest options]
"""

import json
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from bench.results.rows import rows_text
from common.course import registry
from common.course.registry import Failure, Stage

SOURCE = Path(__file__).resolve().parents[1]


def stage(number, name, passes, dtype="bf16", backend="emulator"):
    return Stage(number, name, "", "", "", number - 1, (dtype,), None, backend, "forward" in passes, "backward" in passes)


class RolesTest(unittest.TestCase):
    STAGES = [stage(1, "plain", "forward", "fp32", "cpu"), stage(2, "tiles", "forward", "fp32", "cpu"),
              stage(10, "naive", "forward, backward", "fp32"), stage(11, "cores", "forward"), stage(12, "tuned", "forward"),
              stage(20, "tuned_backward", "backward"), stage(21, "deterministic_backward", "backward")]

    def test_the_fastest_is_the_last_that_is_not_there_for_its_order(self):
        for which, dtype, number in (("forward", "bf16", 12), ("backward", "bf16", 20), ("forward", "fp32", 10),
                                     ("backward", "fp32", 10)):
            self.assertEqual(registry.fastest(which, dtype, self.STAGES).number, number)
        with self.assertRaisesRegex(Failure, "no stage of this build has a forward pass in fp8: ./ladder list says"):
            registry.fastest("forward", "fp8", self.STAGES)

    def test_the_others(self):
        self.assertEqual(registry.deterministic("backward", "bf16", self.STAGES).number, 21)
        self.assertIsNone(registry.deterministic("backward", "fp32", self.STAGES))
        self.assertEqual([one.number for one in registry.of_kernels("forward", "bf16", self.STAGES)], [11, 12])
        self.assertEqual(registry.on_a_cpu("forward", self.STAGES).number, 2)
        with self.assertRaisesRegex(Failure, "no stage of this build has a backward pass on a CPU"):
            registry.on_a_cpu("backward", self.STAGES)

    def test_the_folders_and_those_with_a_table_of_tiles(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(registry, "ROOT", Path(folder)):
            for name, which in (("07_a", "forward"), ("123_b", "forward"), ("31_c", "backward"), ("32_no_table", "backward")):
                place = Path(folder, "stages", name)
                place.mkdir(parents=True)
                hopper = '#include "common/ptx/wgmma.hpp"\n' * (name == "123_b")
                (place / "attention.cu").write_text(f"{hopper}const Stage stage{{\n    .{which} = {which},\n}};\n")
                if "table" not in name:
                    (place / "table.hpp").touch()
            Path(folder, "stages/README.md").touch()
            self.assertEqual([*registry.folders()], [7, 123, 31, 32])
            self.assertEqual(registry.with_tile_table("forward"), {7: Path(folder, "stages/07_a"), 123: Path(folder, "stages/123_b")})
            self.assertEqual((registry.tuned("forward"), registry.tuned("backward")), (7, 31))
            self.assertEqual(registry.for_hopper("forward"), {123: Path(folder, "stages/123_b")})
            self.assertEqual(registry.for_hopper("backward"), {})
            (Path(folder) / "stages/31_c/table.hpp").unlink()
            with self.assertRaisesRegex(Failure, "no stage has a table of tiles for a backward pass"):
                registry.tuned("backward")

    def test_a_program_that_is_not_there_or_lists_nothing(self):
        for program, said in (("/nowhere/flashladder", "the program /nowhere/flashladder is not there: ./ladder setup"),
                              ("/bin/true", "does not list the stages: build it anew")):
            with mock.patch.dict(os.environ, {"FLASHLADDER_PROGRAM": program}), self.assertRaisesRegex(Failure, said):
                registry.all_stages()


class RowsTest(unittest.TestCase):
    def test_the_form(self):
        data = {"gpu": "A", "context": {"n": 1}, "sizes": {7: [1, 2], "b": [3]}, "numbers": [1, 2],
                "rows": [{"a": 1.5, "b": [1]}, {"a": float("nan")}], "none": []}
        self.assertEqual(rows_text(data), '{\n "gpu": "A",\n "context": {"n": 1},\n "sizes": {\n  "7": [1, 2],\n  "b": [3]\n },\n'
                         ' "numbers": [1, 2],\n "rows": [\n  {"a": 1.5, "b": [1]},\n  {"a": NaN}\n ],\n "none": []\n}\n')

    def test_all_committed_results_have_it(self):
        files = sorted(SOURCE.glob("bench/results/*/*.json"))
        self.assertGreater(len(files), 10)
        for path in files:
            text = path.read_text()
            self.assertTrue(rows_text(json.loads(text)) == text, f"{path.relative_to(SOURCE)} is not one row a line: "
                            f"python3 -m bench.results.rows {path.relative_to(SOURCE)} writes it so")


if __name__ == "__main__":
    unittest.main()
