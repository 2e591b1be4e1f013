"""The layers of the house: an arrow, an #include, points down only. Reads the sources, builds nothing."""
import re
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1]

# From the ground up. What stands in one line may not include each other; a folder within a folder is a layer of its
# own where it is named. docs/architecture.md draws them.
LAYERS = [
    ["common/error.hpp"],      # what all errors are
    ["common/simt"],           # CUDA on a CPU: knows nothing of attention
    ["common/ptx"],            # one wrapper per instruction, its emulation beside it
    ["common/attention"],      # problems, calls, the registry, the oracle
    ["common/kernel"],         # device code that several stages share, and how the host calls it
    ["common/claims"],         # closed forms
    ["stages"],                # one folder a stage: nobody but the registry knows them
    ["common/check"],          # inputs, the judge, runs
    ["common/io"],             # files and the terminal
    ["common/labs/program"],   # what a student's file is linked with
    ["common/labs"],           # grading
    ["common/cli", "common/python", "bench"],  # what people call
    ["tests"],
]
RANK = {folder: rank for rank, layer in enumerate(LAYERS) for folder in layer}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def layer_of(path: str) -> str:
    """The layer that a file is in: the longest name of one that the path begins with."""
    names = [name for name in RANK if path == name or path.startswith(name + "/")]
    return max(names, key=len, default="")


def sources() -> list[Path]:
    return sorted(path for folder in ("common", "stages", "bench", "tests") for path in (SOURCE / folder).rglob("*")
                  if path.suffix in (".hpp", ".cpp", ".cu", ".cuh") and "consumer" not in path.parts)


def why_not(path: str, included: str) -> str:
    """Why the file at `path` may not include the file `included`, both from the root; "" where it may."""
    own, other = layer_of(path), layer_of(included)
    if not other:
        return f"{included} is in no layer: give its folder a place in tests/layers_test.py"
    if other == "stages" and own == "stages":
        own_stage, other_stage = (Path(name).parts[1] for name in (path, included))
        return "" if own_stage == other_stage else "a stage includes nothing of another stage: it is read alone"
    if other == "stages" and own != "tests" and Path(included).name != "kernel.hpp":
        return "of a stage only its kernel.hpp is for others"
    if own == "stages" and other == "common/check":
        return "a stage knows nothing of what checks it"
    if own != other and RANK[own] <= RANK[other]:
        return f"{own} may not know {other}, which stands above or beside it"
    return ""


class LayersTest(unittest.TestCase):
    def test_every_arrow_points_down(self) -> None:
        wrong, arrows = [], 0
        for source in sources():
            path = source.relative_to(SOURCE).as_posix()
            self.assertTrue(layer_of(path), f"{path} is in no layer")
            for included in INCLUDE.findall(source.read_text(encoding="utf-8")):
                if not (SOURCE / included).is_file():
                    beside = (source.parent / included, SOURCE / "tests" / included)
                    self.assertTrue(any(file.is_file() for file in beside), f'{path}: what is "{included}"?')
                    continue
                arrows += 1
                if why := why_not(path, included):
                    wrong.append(f'{path} includes "{included}": {why}')
        self.assertEqual(wrong, [])
        self.assertGreater(arrows, 400, "hardly any #include was found: is the pattern right?")

    def test_it_sees_what_is_wrong(self) -> None:
        for path, included in (("common/simt/fiber.cpp", "common/attention/problem.hpp"),
                               ("common/claims/closed_form.cpp", "common/check/run.hpp"),
                               ("common/attention/registry.cpp", "stages/19_tuned/table.hpp"),
                               ("common/labs/program/watch.cpp", "common/labs/grade.hpp"),
                               ("common/python/module.cpp", "common/cli/input.hpp"),
                               ("stages/14_fa2_split_q/attention.cu", "stages/13_fa2_sequence_parallel/table.hpp"),
                               ("stages/00_naive_cpu/attention.cpp", "common/check/check.hpp"),
                               ("common/ptx/mma.hpp", "common/kernel/device.hpp"),
                               ("common/cli/climb.cpp", "tests/catch.hpp")):
            self.assertNotEqual(why_not(path, included), "", f"{path} -> {included}")
        for path, included in (("common/cli/lab.cpp", "common/labs/grade.hpp"),
                               ("common/python/module.cpp", "stages/19_tuned/kernel.hpp"),
                               ("stages/19_tuned/attention.cu", "stages/19_tuned/kernel.hpp"),
                               ("stages/19_tuned/claim.cpp", "common/claims/closed_form.hpp")):
            self.assertEqual(why_not(path, included), "", f"{path} -> {included}")


if __name__ == "__main__":
    unittest.main()
