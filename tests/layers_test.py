"""The layers of the house: an arrow, an #include, points down only. Reads the sources, builds nothing."""
import re
import unittest
from pathlib import Path

from common.course.registry import needs_hopper, source_text

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
ANY_INCLUDE = re.compile(r'^\s*#\s*include\s+(.+?)\s*(?://.*)?$', re.MULTILINE)

# Headers of the device: kernels that are compiled at run time include them, and there is no host then. They include
# each other and nothing else. The two of common/simt choose between CUDA's words and the emulator's, which are a host's.
# The policy of stage 81 is what the host has in a policy's place.
OF_THE_HOST = {"common/kernel/host.hpp", "common/kernel/run_time.hpp", "common/kernel/run_time_headers.hpp",
               "common/kernel/tensor_maps.hpp", "common/kernel/tile_table.hpp", "common/ptx/tensor_map.hpp",
               "stages/81_on_demand/policy.hpp"}
# What the variants of attention share: two kernels, the tuned tiles, what claims begin with, the policies, which stand on each other,
# and how they are put together and compiled.
FOR_VARIANTS = {"stages/29_tuned/table.hpp", "stages/38_tuned_backward/table.hpp", "stages/70_policies/claimed.hpp",
                "stages/80_together/policy.hpp", *(f"stages/81_on_demand/{name}.hpp" for name in ("kernels", "policy", "variants")),
                "stages/82_hopper_policies/variants.hpp",
                *(path.relative_to(SOURCE).as_posix() for name in ("kernel", "launch", "policy")
                  for path in SOURCE.glob(f"stages/7*/{name}.hpp"))}
# What a stage has of another one all the same: its tiles, where both take those of one table.
TABLES = {"65_multicast": "stages/51_deeper_pipeline/table.hpp"}
CHOOSE = ["common/simt/simt.hpp", "common/simt/std.hpp"]


def device_headers() -> list[str]:
    found = [path.relative_to(SOURCE).as_posix() for pattern in ("common/ptx/*.hpp", "common/kernel/*.hpp", "stages/*/kernel.hpp",
                                                                 "stages/*/policy.hpp") for path in SOURCE.glob(pattern)]
    of_attention = {f"common/attention/{name}.hpp" for name in ("host_device", "mask", "philox")}
    return sorted({*found, *CHOOSE, "common/simt/device.hpp", *of_attention} - OF_THE_HOST)


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
        shared = (own_stage >= "70" and other_stage < own_stage and included in FOR_VARIANTS) or included == TABLES.get(own_stage)
        return "" if own_stage == other_stage or shared else "a stage includes nothing of another stage: it is read alone"
    if other == "stages" and own != "tests" and Path(included).name != "kernel.hpp":
        return "of a stage only its kernel.hpp is for others"
    if own == "stages" and other == "common/check":
        return "a stage knows nothing of what checks it"
    if own != other and RANK[own] <= RANK[other]:
        return f"{own} may not know {other}, which stands above or beside it"
    return ""


def wrong_in_device_code(text: str, headers: list[str]) -> list[str]:
    """What the text of a header of the device includes and may not; CUDA's types of 16 bits are no host's."""
    allowed = {f'"{header}"' for header in headers} | {"<cuda_fp16.h>", "<cuda_bf16.h>"}
    return [f"{name} is no header of the device" for name in ANY_INCLUDE.findall(text) if name not in allowed]


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

    def test_device_code_includes_no_host_header(self) -> None:
        headers = device_headers()
        for wanted in ("common/kernel/device.hpp", "common/ptx/mma.hpp", "stages/29_tuned/kernel.hpp"):
            self.assertIn(wanted, headers)
        wrong = [f"{header}: {why}" for header in headers if header not in CHOOSE
                 for why in wrong_in_device_code((SOURCE / header).read_text(encoding="utf-8"), headers)]
        self.assertEqual(wrong, [])
        self.assertEqual(wrong_in_device_code('#include "common/ptx/mma.hpp"\n#include <cuda_fp16.h>\n', headers), [])
        for bad in ("#include <string>", '#include "common/kernel/host.hpp"', "# include <cuda_runtime.h>  // why",
                    '#include "common/simt/device_host.hpp"', '#include "stages/29_tuned/table.hpp"'):
            self.assertEqual(len(wrong_in_device_code(f'#pragma once\n{bad}\n', headers)), 1, bad)

    def test_a_kernel_of_its_own_file_is_included_by_its_stage(self) -> None:
        for kernel in SOURCE.glob("stages/*/kernel.hpp"):
            name = kernel.relative_to(SOURCE).as_posix()
            included = INCLUDE.findall((kernel.parent / "attention.cu").read_text(encoding="utf-8"))
            self.assertEqual(included.count(name), 1, name)

    def test_a_stage_for_hopper_says_so_and_is_compiled_for_it(self) -> None:
        for source in SOURCE.glob("stages/*/attention.cu"):
            text = source_text(source)
            self.assertEqual("\n    .gpu = Gpu::hopper,\n" in text, needs_hopper(text), f"{source}: .gpu or #include is missing")
        self.assertTrue(needs_hopper('#include "common/ptx/tma.hpp"\n#include "common/ptx/wgmma.hpp"\n'))

    def test_it_sees_what_is_wrong(self) -> None:
        for path, included in (("common/simt/fiber.cpp", "common/attention/problem.hpp"),
                               ("common/claims/closed_form.cpp", "common/check/run.hpp"),
                               ("common/attention/registry.cpp", "stages/29_tuned/table.hpp"),
                               ("common/labs/program/watch.cpp", "common/labs/grade.hpp"),
                               ("common/python/module.cpp", "common/cli/input.hpp"),
                               ("stages/14_fa2_split_q/attention.cu", "stages/13_fa2_sequence_parallel/table.hpp"),
                               ("stages/13_fa2_sequence_parallel/attention.cu", "stages/70_policies/kernel.hpp"),
                               ("stages/70_policies/attention.cu", "stages/72_sliding_window/policy.hpp"),
                               ("stages/65_multicast/attention.cu", "stages/51_deeper_pipeline/attention.cu"),
                               ("stages/00_naive_cpu/attention.cpp", "common/check/check.hpp"),
                               ("common/python/module.cpp", "stages/29_tuned/table.hpp"),
                               ("bench/variants/variants.cpp", "stages/29_tuned/attention.cu"),
                               ("common/kernel/device.hpp", "stages/29_tuned/kernel.hpp"),
                               ("common/ptx/mma.hpp", "common/kernel/device.hpp"),
                               ("common/cli/climb.cpp", "tests/catch.hpp")):
            self.assertNotEqual(why_not(path, included), "", f"{path} -> {included}")
        for path, included in (("common/cli/lab.cpp", "common/labs/grade.hpp"),
                               ("common/python/module.cpp", "stages/29_tuned/kernel.hpp"),
                               ("stages/29_tuned/attention.cu", "stages/29_tuned/kernel.hpp"),
                               ("stages/72_sliding_window/attention.cu", "stages/70_policies/kernel.hpp"),
                               ("stages/65_multicast/claim.cpp", "stages/51_deeper_pipeline/table.hpp"),
                               ("stages/29_tuned/claim.cpp", "common/claims/closed_form.hpp")):
            self.assertEqual(why_not(path, included), "", f"{path} -> {included}")


if __name__ == "__main__":
    unittest.main()
