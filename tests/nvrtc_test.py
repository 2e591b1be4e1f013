"""Device code without the host: NVRTC, which has no headers of a host, compiles the kernels of nvrtc/kernels.txt and
each header of the device alone. It needs no GPU and no driver.

    python3 -m tests.nvrtc_test LIBRARY INCLUDE...   libnvrtc, and the folders of CUDA's headers

Where the library is not there, or older than C++20, it says so and ends with 77.
"""
import ctypes
import sys
import unittest
from pathlib import Path

from common.course.registry import needs_hopper
from tests.layers_test import SOURCE, device_headers

SKIPPED = 77
ARCHITECTURES = ("compute_80", "compute_90")
HOPPER = "compute_90a"  # for what includes common/ptx/wgmma.hpp
LIST = SOURCE / "tests/nvrtc/kernels.txt"


class Compiler:
    """NVRTC. Its include path is the root of the repository and CUDA's own folders, and nothing of a host."""

    def __init__(self, library: str, includes: list[Path]):
        self.library = ctypes.CDLL(library)
        self.folders = [SOURCE, *includes]

    def version(self) -> tuple[int, int]:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._must("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def compile(self, text: str, architecture: str, names: list[str] = []) -> tuple[str, str, list[str]]:
        """PTX, "" where it does not compile; what NVRTC says; the names of `names` in the PTX."""
        program = ctypes.c_void_p()
        self._must("nvrtcCreateProgram", ctypes.byref(program), text.encode(), b"program.cu", 0, None, None)
        try:
            for name in names:
                self._must("nvrtcAddNameExpression", program, name.encode())
            options = [f"--gpu-architecture={architecture}", "--std=c++20", *(f"-I{folder}" for folder in self.folders)]
            words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            failed = self.library.nvrtcCompileProgram(program, len(options), words)
            said = self._text("ProgramLog", program)
            if failed:
                return "", said or f"error {failed}", []
            lowered = [ctypes.c_char_p() for _ in names]
            for name, place in zip(names, lowered):
                self._must("nvrtcGetLoweredName", program, name.encode(), ctypes.byref(place))
            return self._text("PTX", program), said, [(place.value or b"").decode() for place in lowered]
        finally:
            self._must("nvrtcDestroyProgram", ctypes.byref(program))

    def _must(self, function: str, *arguments) -> None:
        if status := getattr(self.library, function)(*arguments):
            raise AssertionError(f"{function} failed with {status}")

    def _text(self, what: str, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._must(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._must(f"nvrtcGet{what}", program, buffer)
        return buffer.value.decode()


def include(header: str) -> str:
    return f'#include "{header}"\n'


def architectures(header: str) -> tuple[str, ...]:
    """What a header of kernels is compiled for."""
    return (HOPPER,) if needs_hopper((SOURCE / header).read_text()) else ARCHITECTURES


def listed() -> dict[str, list[str]]:
    """The kernels of the list, by header."""
    found: dict[str, list[str]] = {}
    for line in LIST.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            header, _, name = line.partition("|")
            found.setdefault(header.strip(), []).append(name.strip())
    return found


class NvrtcTest(unittest.TestCase):
    nvrtc: Compiler

    def test_each_kernel_of_the_list(self) -> None:
        kernels = listed()
        missing = {path.relative_to(SOURCE).as_posix() for path in SOURCE.glob("stages/*/kernel.hpp")} - kernels.keys()
        self.assertEqual(missing, set(), f"{LIST.relative_to(SOURCE)} names no kernel of theirs")
        self.assertGreaterEqual(len(kernels), 1)
        for header, names in kernels.items():
            self.assertTrue((SOURCE / header).is_file(), f"{header} is not there")
            self.assertEqual(len(set(names)), len(names), f"{header}: a kernel twice")
            for architecture in architectures(header):
                ptx, said, lowered = self.nvrtc.compile(include(header), architecture, names)
                self.assertNotEqual(ptx, "", f"{header}, {architecture}:\n{said}")
                for name, symbol in zip(names, lowered, strict=True):
                    self.assertTrue(symbol and f".entry {symbol}(" in ptx, f"{architecture}: no kernel {name}")
                products = ptx.count("mma.sync") + ptx.count("wgmma.mma_async")
                self.assertGreaterEqual(products, len(names), "kernels of nothing")
                print(f"{header}, {architecture}: {len(names)} kernels, {len(ptx) // 1000} kB of PTX")

    def test_each_header_of_the_device_alone(self) -> None:
        """And, since none is alone in what only newer GPUs have, all of them for those."""
        headers = [header for header in device_headers() if not header.startswith("stages/")]  # the list has these
        self.assertGreaterEqual(len(headers), 10)
        oldest, *newer = ARCHITECTURES
        for text, architecture in [*((include(header), oldest) for header in headers),
                                   *(("".join(map(include, headers)), architecture) for architecture in (*newer, HOPPER))]:
            ptx, said, _ = self.nvrtc.compile(text, architecture)
            self.assertIn(f".target {architecture.replace('compute', 'sm')}", ptx, f"{text}{architecture}:\n{said}")
        print(f"alone: {', '.join(headers)}")

    def test_it_sees_what_is_wrong(self) -> None:
        header, names = next(iter(listed().items()))
        for text, name, why in ((f"#include <string>\n{include(header)}", names[0], "string"),
                                (include("common/kernel/host.hpp"), names[0], "open source file"),
                                (include(header), names[0].replace("::fa2_forward", "::no_such_kernel"), "no_such_kernel"),
                                (include(header) + "int of_the_host() { return 1; }\n", names[0], "of_the_host")):
            ptx, said, _ = self.nvrtc.compile(text, ARCHITECTURES[0], [name])
            self.assertEqual(ptx, "", text)
            self.assertIn(why, said)


def skip(why: str) -> int:
    print(f"skipped: {why}")
    return SKIPPED


def main(library: str = "", *folders: str) -> int:
    if not library or not Path(library).is_file():
        return skip("there is no libnvrtc: install the CUDA Toolkit")
    # CUDA 13 has its C++ library, CCCL, in a folder of its own.
    includes = [path for folder in folders for path in (Path(folder), Path(folder) / "cccl") if path.is_dir()]
    NvrtcTest.nvrtc = Compiler(library, includes)
    version = NvrtcTest.nvrtc.version()
    if version < (12, 0):
        return skip(f"NVRTC {version[0]}.{version[1]} does not know C++20")
    for header in ("cuda_fp16.h", "cuda/std/cstdint"):
        if not any((path / header).is_file() for path in includes):
            print(f"{library} is there, but CUDA's {header} is in none of the folders {', '.join(folders)}")
            return 1
    print(f"NVRTC {version[0]}.{version[1]}, {library}")
    done = unittest.main(argv=["nvrtc_test"], exit=False).result
    return 0 if done.wasSuccessful() and done.testsRun == 3 and not done.skipped else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
