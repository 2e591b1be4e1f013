"""Tests of ./ladder lab: a lab as a student meets it, and files that must not pass.

Usage: lab_test.py PROGRAM SOURCE_DIR [unittest options]
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

PROGRAM, SOURCE = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
MARKER = re.compile(r"^ *// (lab: |given: |end of lab$)|(?<=^    )//   ", re.M)
KERNEL, CPU = "13", "01"  # the labs that are tried: one of kernels, one for the CPU


def run(*arguments: str | Path, **options) -> subprocess.CompletedProcess:
    """The program's verb lab. It sees no GPU, so that it says the same on every machine; speed: labs_test.cpp."""
    return subprocess.run([PROGRAM, "lab", *map(str, arguments)], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, **options)


def reference(stage: str) -> str:
    """A stage's source without its markers, made here once more and not by the program."""
    lines, in_task = [], False
    for line in next(SOURCE.glob(f"stages/{stage}_*/attention.c*")).read_text().splitlines(keepends=True):
        text = line.strip()
        in_task = text.startswith("// lab: ") or (in_task and text.startswith("//   "))
        if not in_task and not text.startswith("// given: ") and text != "// end of lab":
            lines.append(line)
    return "".join(lines)


def replaced(text: str, old: str, new: str) -> str:
    """`text` with `old`, which must be there, replaced."""
    if old not in text:
        raise AssertionError(f"the stage has no {old!r} any more: mend this test")
    return text.replace(old, new, 1)


class LabTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.made = Path(folder.name)
        for stage in (KERNEL, CPU):
            result = run("new", stage, cls.made / stage)
            assert result.returncode == 0, result.stderr

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def lab(self, stage: str, text: str | None = None) -> Path:
        """A lab's folder, with `text` as the student's file."""
        folder = self.folder / stage
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.made / stage, folder)
        if text is not None:
            (folder / self.file_of(stage)).write_text(text)
        return folder

    @staticmethod
    def file_of(stage: str) -> str:
        return "attention.cu" if stage >= "10" else "attention.cpp"

    def grade(self, stage: str, text: str | None = None, *options: str) -> dict:
        """What `lab grade --json` says of a file; the exit status must fit to it."""
        result = run("grade", self.lab(stage, text), "--json", "-", *options)
        self.assertIn(result.returncode, (0, 1), result.stderr)
        grade = json.loads(result.stdout)
        self.assertEqual(result.returncode, 0 if grade["points"] == grade["most"] else 1)
        self.assertEqual(grade["most"], 100)
        for part in grade["parts"]:
            self.assertEqual(part["points"], sum(item["points"] for item in part["items"]))
        return grade

    @staticmethod
    def points(grade: dict) -> dict[str, int]:
        return {part["name"]: part["points"] for part in grade["parts"]}

    @staticmethod
    def feedback(grade: dict) -> str:
        return "\n".join(item["feedback"] for part in grade["parts"] for item in part["items"])

    def gets_nothing(self, stage: str, text: str, *says: str, options: tuple[str, ...] = ()) -> dict:
        """The file does not get a point, and is told why."""
        grade = self.grade(stage, text, *options)
        self.assertEqual(grade["points"], 0, self.feedback(grade))
        for part in says:
            self.assertIn(part, grade["refused"] + grade["compile_error"] + self.feedback(grade))
        return grade

    # --- a lab as it should go -------------------------------------------------------------------------------------

    def test_a_new_lab_has_all_that_is_needed_and_nothing_of_the_idea(self):
        for stage, before in ((KERNEL, "12"), (CPU, "00")):
            folder, file = self.made / stage, self.file_of(stage)
            self.assertEqual(sorted(str(p.relative_to(folder)) for p in folder.rglob("*")),
                             sorted(["README.md", "CMakeLists.txt", "lab.json", file, "previous", f"previous/{file}"]))
            skeleton = (folder / file).read_text()
            self.assertEqual((folder / "previous" / file).read_text(), reference(before))
            regions = len(re.findall("// lab: ", next(SOURCE.glob(f"stages/{stage}_*/{file}")).read_text()))
            self.assertEqual(len(re.findall(r"// TODO \(about \d+ lines?\): ", skeleton)), regions)
            self.assertIsNone(MARKER.search(skeleton))
            kept = [line for line in skeleton.splitlines() if line in reference(stage).splitlines()]
            self.assertGreater(len(kept), 0.6 * len(skeleton.splitlines()))
            readme = (folder / "README.md").read_text()
            self.assertNotIn("## Feedback", readme)
            counter = "extra_memory" if stage == CPU else "global.K.read_elements"
            for word in ("./ladder lab grade", file, counter, "| in all | 100 |"):
                self.assertIn(word, readme)

    def test_a_kernel_in_a_file_of_its_own_is_in_the_one_file_of_the_lab(self):
        kernels = sorted(SOURCE.glob("stages/*/kernel.hpp"))
        self.assertTrue(kernels)
        for kernel in kernels:
            if not (kernel.parent / "lab.md").exists():
                continue
            stage = kernel.parent.name[:2]
            self.assertEqual(run("new", stage, self.folder / stage).returncode, 0)
            skeleton = (self.folder / stage / "attention.cu").read_text()
            self.assertNotIn("kernel.hpp", skeleton)
            self.assertNotIn("#pragma once", skeleton)
            self.assertIn("\n__global__ ", skeleton)
            self.assertIn("\nconst Stage stage{", skeleton)
            regions = sum(len(re.findall("// lab: ", (kernel.parent / name).read_text()))
                          for name in ("kernel.hpp", "attention.cu"))
            self.assertGreater(regions, 0)
            self.assertEqual(len(re.findall(r"// TODO \(about \d+ lines?\): ", skeleton)), regions)

    def test_a_policy_is_in_the_one_file_of_the_lab_and_its_kernels_are_included(self):
        policies = [path for path in sorted(SOURCE.glob("stages/*/policy.hpp")) if (path.parent / "lab.md").exists()]
        self.assertTrue(policies)
        for policy in policies:
            stage, folder = policy.parent.name[:2], self.folder / policy.parent.name[:2]
            self.assertEqual(run("new", stage, folder).returncode, 0)
            skeleton = (folder / "attention.cu").read_text()
            self.assertNotIn(f"#include \"stages/{policy.parent.name}/", skeleton)
            self.assertNotIn("__global__", skeleton)
            self.assertLess(len(skeleton.splitlines()), 120)  # to be read in one go
            regions = len(re.findall("// lab: ", policy.read_text()))
            self.assertGreater(regions, 0)
            self.assertEqual(len(re.findall(r"// TODO \(about \d+ lines?\): ", skeleton)), regions)
            previous = (folder / "previous" / "attention.cu").read_text()  # has all that the policy is to answer
            self.assertEqual(previous.count("\nstruct Plain {"), 1)
            self.assertIn("__global__", previous)
            self.assertNotIn("#include \"stages/70_policies/", previous)

    def test_the_reference_has_full_marks_with_any_seed_and_always_the_same(self):
        first, again = self.grade(KERNEL, reference(KERNEL)), self.grade(KERNEL, reference(KERNEL))
        self.assertEqual(first["points"], 100, self.feedback(first))
        self.assertEqual(first, again)
        self.assertIsNone(first["speed"])
        self.assertRegex(first["speed_missing"], "^it takes a GPU, and .*[^:]$")
        seeds = []
        for options in ((), ("--seed", "4711")):
            other = self.grade(CPU, reference(CPU), *options)
            self.assertEqual(other["points"], 100, self.feedback(other))
            seeds.append(other["seed"])
        self.assertEqual(seeds, [other["hash"], f"{4711:016x}"])
        self.assertEqual((other["speed"], other["speed_missing"]), (None, "this lab is one for the CPU"))
        for count in first["counts"]:
            self.assertTrue(count["reached"], count)
            self.assertEqual(len(count["counted"]), len(first["cases"]))

    def test_the_skeleton_has_nothing_on_the_idea(self):
        for stage in (KERNEL, CPU):
            grade = self.grade(stage)
            self.assertEqual(grade["compile_error"], "")
            self.assertEqual(grade["points"], 0, self.feedback(grade))
            if stage == KERNEL:
                self.assertEqual(grade["speed_missing"], "not all outputs are right")

    def test_the_report_for_people(self):
        load_q, load_k = "load_tile<d, threads>(Q, Qh, n.Q.row, i0, n.Nq);\n", "load_tile<d, threads>(K,"
        text = replaced(reference(KERNEL), "  " + load_q, "")  # from before the loop into it
        folder = self.lab(KERNEL, replaced(text, load_k, load_q + "    " + load_k))
        result = run("grade", folder, "--json", folder / "grade.json")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"2 times the 16,384 of the reference")
        self.assertRegex(result.stdout, r"in all +75 of 100")
        self.assertIn("loaded", result.stdout)
        self.assertIn("\n\nSpeed is not shown: it takes a GPU, and ", result.stdout)
        grade = json.loads((folder / "grade.json").read_text())
        self.assertEqual(self.points(grade), {"correct": 30, "idea": 25, "claim": 0, "clean": 20})

    def test_it_can_be_compiled_by_hand(self):
        folder = self.lab(CPU, reference(CPU))
        build = folder / "build"
        made = subprocess.run(f"cmake -G Ninja -B {build} -S {folder} && cmake --build {build} && {build}/attention",
                              shell=True, capture_output=True, text=True, timeout=300)
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
        self.assertIn("it ran to its end", made.stdout)

    # --- what a wrong file is told ---------------------------------------------------------------------------------

    def test_the_first_error_of_the_compiler_is_named_with_its_line(self):
        text = reference(CPU)
        line = text[:text.index("const auto [Q, K")].count("\n") + 1
        folder = self.lab(CPU, replaced(text, "const auto [Q, K", "int x = nonsense;\n      const auto [Q, K"))
        result = run("grade", folder)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, rf"does not compile: attention.cpp:{line}: error: .*nonsense")
        self.assertIn("nonsense", (folder / "compile.log").read_text())
        inside = self.grade(KERNEL, replaced(reference(KERNEL), "const f32 key = K(", "const auto key = K("))
        self.assertRegex(inside["compile_error"], r"^attention.cu:\d+: error: ")  # the error is in a header
        empty = self.grade(CPU, "constexpr int x = 1;\n")
        self.assertIn("does not define flashladder::stage_01::stage", self.feedback(empty))

    def test_an_access_out_of_bounds_is_named_with_the_line_of_the_file(self):
        text = replaced(reference(KERNEL), "load_tile<d, threads>(K, Kh, n.K.row, j0, n.Nk);",
                        "load_tile<d, threads>(K, Kh, n.K.row, j0, n.Nk + 40);")
        line = text[:text.index("n.Nk + 40")].count("\n") + 1
        grade = self.grade(KERNEL, text)
        self.assertEqual(self.points(grade)["clean"], 0)
        for part in ("out_of_bounds_global", "kernel fa2_forward, block (0, ", "buffer K",
                     f"in your file: attention.cu:{line}"):
            self.assertIn(part, self.feedback(grade))
        self.assertEqual(self.feedback(grade).count("usual cause"), 2)  # once in each part, not for each family

    def test_a_race_is_named_and_costs_the_points_of_being_clean(self):
        barrier = "  __syncwarp();  // m and l are read: the lane that has them must have written them\n"
        grade = self.grade(KERNEL, replaced(reference(KERNEL), barrier, ""))
        self.assertEqual(self.points(grade)["clean"], 0)
        self.assertRegex(self.feedback(grade), r"race_within_warp(.|\n)*where: attention.cu:\d+")

    def test_wrong_numbers_are_told_with_their_place_and_what_went_wrong_first(self):
        grade = self.grade(KERNEL, replaced(reference(KERNEL), "alpha * o[d0", "o[d0"))
        self.assertLess(self.points(grade)["correct"], 30)
        self.assertIn("first to diverge: O~ of head ", self.feedback(grade))
        self.assertRegex(self.feedback(grade), r"(O|L), (batch entry \d+, )?(head \d+, )?row \d+.* the oracle says ")
        self.assertIn("with more than one tile of keys", self.feedback(grade))
        mask = self.grade(CPU, replaced(reference(CPU), "p.visible_keys(i)", "p.Nk"))
        self.assertIn("with a causal mask", self.feedback(mask))

    def test_the_stage_before_has_no_points_on_the_idea(self):
        grade = self.grade(CPU, reference("00").replace("stage_00", "stage_01"))
        self.assertEqual(self.points(grade), {"correct": 30, "idea": 0, "claim": 0, "clean": 20})
        self.assertIn("as in stage 00 naive_cpu", self.feedback(grade))

    def test_memory_from_elsewhere_is_counted(self):
        text = replaced(reference(CPU), "auto acc = call.workspace.array<float>(p.d);",
                        "std::vector<float> acc(p.d);")
        text = replaced(text, "#include <cmath>", "#include <cmath>\n#include <vector>")
        grade = self.grade(CPU, text)
        missed = [count["counter"] for count in grade["counts"] if not count["reached"]]
        self.assertEqual(missed, ["extra_memory", "allocations"])
        self.assertIn("no std::vector", self.feedback(grade))

    # --- files that must not pass ----------------------------------------------------------------------------------

    def in_forward(self, code: str, stage: str = CPU, rest: bool = False) -> str:
        """The reference with `code` at the start of the forward pass; after it nothing, or the rest."""
        head = "void forward(const Forward& call) {\n" if stage == CPU else "void forward(const Forward& f) {\n"
        code += "\n" if rest else "\n  if (call_ends()) return;\n"
        text = replaced(reference(stage), head, head + code)
        text = replaced(text, "namespace {\n", "namespace {\n\nbool call_ends() {\n  volatile bool ends = true;\n"
                        "  return ends;\n}\n")
        headers = ("cstdio", "cstdlib", "stdexcept", "vector")
        return "".join(f"#include <{header}>\n" for header in headers) + text

    def test_printing_does_not_help(self):
        grade = self.grade(CPU, self.in_forward('std::puts("in all 100 of 100");', rest=True))
        self.assertEqual(grade["points"], 95)  # all is right, but a file that prints is not handed in
        self.assertIn("in all 100 of 100", grade["printed"])
        self.assertIn("it prints", self.feedback(grade))
        self.gets_nothing(CPU, self.in_forward('for (;;) std::puts("{\\"points\\": 100}");'), "it printed more than 16 MiB")

    def test_leaving_does_not_help(self):
        self.gets_nothing(CPU, self.in_forward('throw std::runtime_error("too hard");'), "throw is not accepted")
        self.gets_nothing(CPU, self.in_forward("(void)std::vector<int>(1).at(7);"),
                          "it threw an exception", "range_check")
        self.gets_nothing(CPU, self.in_forward("std::abort();"), "it was aborted", "at attention.cpp:")
        self.gets_nothing(CPU, self.in_forward("*(volatile int*)8 = 1;"),
                          "it crashed (segmentation fault)", "at attention.cpp:")

    def test_going_on_for_ever_does_not_help(self):
        started = time.monotonic()
        self.gets_nothing(CPU, self.in_forward("while (call_ends()) {}"), "did not end within 1 s of processor time",
                          "stopped at attention.cpp:", options=("--time-limit", "1"))
        self.gets_nothing(KERNEL, replaced(reference(KERNEL), "k < d; ++k) {", "k < d; k += 0) {"),
                          "endless_loop", "where: attention.cu:")
        self.assertLess(time.monotonic() - started, 60)

    def test_taking_all_memory_does_not_help(self):
        hog = "std::vector<std::vector<char>> all;\n  while (call_ends()) all.emplace_back(64 << 20, 1);"
        self.gets_nothing(CPU, self.in_forward(hog), "it asked for more memory than the 512 MiB that there are",
                          options=("--memory-limit", "512"))

    def test_outputs_that_are_not_computed_do_not_pass(self):
        fill = """static const float stored[] = {0.25f, -1.5f, 0.125f, 3.4657359f, -0.75f};
  std::int64_t turn = 0;
  for (std::int64_t b = 0; b < call.problem.batch; ++b)
    for (std::int64_t h = 0; h < call.problem.q_heads; ++h) {
      const auto [Q, K, V, O, L] = call.head(b, h);
      for (std::int64_t i = 0; i < call.problem.Nq; ++i) {
        L[i] = VALUE;
        for (std::int64_t c = 0; c < call.problem.d; ++c, ++turn) O[i][c] = VALUE;
      }
    }
  """
        for value, says in (("NAN", "is NaN, the oracle says"), ("0", "is 0, the oracle says"),
                            ("stored[turn % 5]", "the oracle says")):
            self.gets_nothing(CPU, self.in_forward(fill.replace("VALUE", value)), says)
        self.gets_nothing(CPU, self.in_forward(""), "was never written")
        # What was right for one file is not for another: each has inputs of its own.
        seeds = {self.grade(CPU, f"#error {i}\n")["seed"] for i in range(3)}
        self.assertEqual(len(seeds), 3)

    def test_a_bypass_of_the_counted_memory_does_not_pass(self):
        on_the_host = """  const Problem& p = f.problem;
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.q_heads; ++h) {
      const auto [Q, K, V, O, L] = f.head(b, h);
      for (std::int64_t i = 0; i < p.Nq; ++i) {
        const std::int64_t keys = p.visible_keys(i);
        std::vector<double> s(keys);
        double m = -INFINITY, l = 0;
        for (std::int64_t j = 0; j < keys; ++j) {
          for (std::int64_t c = 0; c < p.d; ++c) s[j] += double(Q[i][c]) * K[j][c];
          m = std::max(m, s[j] *= p.softmax_scale());
        }
        for (std::int64_t j = 0; j < keys; ++j) l += s[j] = std::exp(s[j] - m);
        for (std::int64_t c = 0; c < p.d; ++c) {
          double sum = 0;
          for (std::int64_t j = 0; j < keys; ++j) sum += s[j] / l * V[j][c];
          O[i][c] = float(sum);
        }
        L[i] = float(m + std::log(l));
      }
    }
  if (call_ends()) return;
"""
        text = self.in_forward(on_the_host, KERNEL, rest=True)
        self.gets_nothing(KERNEL, text, "it reaches Q, K, V, O or L by plain pointers at attention.cu:")

    def test_a_file_that_breaks_a_rule_is_not_run(self):
        refused = self.gets_nothing(CPU, "#include \"/etc/hostname\"\n" + reference(CPU),
                                    "attention.cpp:1: #include \"/etc/hostname\": ")
        self.assertEqual((refused["compile_error"], refused["printed"]), ("", ""))
        self.gets_nothing(CPU, self.in_forward("std::exit(0);"), "exit is not for a stage to call")
        self.gets_nothing(CPU, " " * (300 << 20), "attention.cpp: it has more than 1024 KiB")

    # --- what is the system's, and not the file's ------------------------------------------------------------------

    def nothing_is_graded(self, setting: str, *parts: str) -> None:
        """Under a setting of the shell the right file is not graded: exit status 2, and one sentence."""
        result = subprocess.run(["bash", "-c", f'{setting}; exec "$@"', "-", PROGRAM, "lab", "grade",
                                 self.lab(CPU, reference(CPU))], capture_output=True, text=True, timeout=300)
        self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
        self.assertEqual(result.stderr.count("ladder: "), 1, result.stderr)
        for part in parts:
            self.assertIn(part, result.stderr)

    def test_what_the_system_lacks_is_not_blamed_on_the_file(self):
        self.nothing_is_graded("ulimit -n 16", "open files")
        self.nothing_is_graded("ulimit -f 20", "is there room in")  # as on a full disk: files do not grow
        self.nothing_is_graded("export PATH=/nowhere", "not even the reference")
        self.nothing_is_graded("export TMPDIR=/nowhere", "/nowhere is no folder", "set TMPDIR")

    def test_an_interrupt_leaves_nothing_behind(self):
        folder = self.lab(CPU, self.in_forward("while (call_ends()) {}"))
        temporary = self.folder / "temporary"
        temporary.mkdir()
        with subprocess.Popen([PROGRAM, "lab", "grade", folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              env={**os.environ, "TMPDIR": str(temporary)}) as grading:
            begun = time.monotonic()
            while not list(temporary.glob("*/program")) and time.monotonic() - begun < 120:
                time.sleep(0.05)
            grading.send_signal(signal.SIGINT)
            self.assertEqual(grading.wait(60), -signal.SIGINT)
        self.assertEqual(list(temporary.iterdir()), [])
        left = subprocess.run(["pgrep", "-f", str(temporary)], capture_output=True, text=True).stdout
        self.assertEqual(left, "")

    # --- what it refuses -------------------------------------------------------------------------------------------

    def refuses(self, status: int, *parts: str, arguments: tuple) -> None:
        """The verb ends with `status` and one sentence that has all the parts, and leaves nothing behind."""
        before = sorted(self.folder.rglob("*"))
        result = run(*arguments)
        self.assertEqual(result.returncode, status, result.stdout + result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("ladder: "), result.stderr)
        for part in parts:
            self.assertIn(part, result.stderr)
        self.assertEqual(sorted(self.folder.rglob("*")), before)

    def test_wrong_commands(self):
        self.refuses(2, "./ladder lab list", "./ladder lab new", "./ladder lab grade", arguments=())
        self.refuses(2, "STAGE", arguments=("new",))
        self.refuses(2, "97 does not exist", arguments=("new", "97", self.folder / "x"))
        self.refuses(2, "more than one stage", arguments=("new", "13-14", self.folder / "x"))
        self.refuses(2, "--time-limit", arguments=("grade", self.made / CPU, "--time-limit", "0"))
        self.refuses(2, "--memory-limit", arguments=("grade", self.made / CPU, "--memory-limit", "1"))
        self.refuses(2, "--seed", arguments=("grade", self.made / CPU, "--seed", "x"))

    def test_a_place_that_cannot_be_written(self):
        self.refuses(2, "is there already", arguments=("new", CPU, self.folder))
        (self.folder / "file").write_text("")
        self.refuses(2, "is there already", arguments=("new", CPU, self.folder / "file"))
        self.refuses(2, "cannot make a folder", arguments=("new", CPU, self.folder / "missing" / "x"))
        self.refuses(2, "cannot make a folder", arguments=("new", CPU, "/proc/lab"))
        self.refuses(2, "cannot write", arguments=("grade", self.made / CPU, "--json", self.folder / "missing" / "x"))
        for own in ("attention.cpp", "lab.json"):
            self.refuses(2, "would take the place of that file",
                         arguments=("grade", self.made / CPU, "--json", self.made / CPU / own))

    def test_folders_that_are_no_labs(self):
        self.refuses(2, "nothing is there", arguments=("grade", self.folder / "missing"))
        self.refuses(2, "is not the folder of a lab", "./ladder lab new", arguments=("grade", self.folder))
        (self.folder / "file").write_text("")
        self.refuses(2, "but a file", arguments=("grade", self.folder / "file"))
        folder = self.lab(CPU)
        (folder / "attention.cpp").unlink()
        (folder / "attention.cpp").symlink_to("/etc/hostname")
        self.refuses(2, "attention.cpp is a link", arguments=("grade", folder))
        (folder / "attention.cpp").unlink()
        self.refuses(2, "there is no attention.cpp", arguments=("grade", folder))
        folder = self.lab(CPU)
        for damaged in ("", "{", "[]", '{"format": 99, "stage": 1}', '{"format": 1, "stage": "x"}'):
            (folder / "lab.json").write_text(damaged)
            self.refuses(2, "is damaged, or of a newer ladder", arguments=("grade", folder))

    def test_a_lab_of_another_version_says_how_to_go_on(self):
        folder = self.lab(CPU)
        about = json.loads((folder / "lab.json").read_text())
        about["ladder"]["lab"] = "0123456789abcdef"
        (folder / "lab.json").write_text(json.dumps(about))
        self.refuses(2, "another version of the ladder", "./ladder lab new 01", "copy your attention.cpp into it",
                     arguments=("grade", folder))

    def test_the_list_and_the_help(self):
        listed = run("list").stdout.splitlines()
        self.assertEqual(len(listed), len(list(SOURCE.glob("stages/*/lab.md"))))
        for line in listed:
            self.assertRegex(line, r"^\d\d \w+ +\d+ lines to write, \d+ places?: ")
        self.assertIn("no sandbox", run("--help").stdout.replace("\n", " "))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
