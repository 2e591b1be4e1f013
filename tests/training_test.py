"""Tests of what trains through PyTorch: bench.training.train_gpt, bench.training.train_throughput, bench.measure.compare
--backward.

Usage: python3 -m tests.training_test [unittest options]. They need PyTorch and the module flashladder, but no GPU; exits
with 77 where one of the two is not there.
"""

import contextlib
import importlib
import io
import json
import math
import sys
import tempfile
import time
import types
import unittest
from pathlib import Path
from unittest import mock

try:
    import flashladder.torch  # noqa: E402
    import torch  # noqa: E402
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

from bench.measure import compare, on_torch  # noqa: E402
from bench.training import train_gpt, train_throughput  # noqa: E402
from bench.training.ours import fastest  # noqa: E402

torch.set_num_threads(1)  # PyTorch's threads wait busily, and would take the cores that the emulator needs


PACKAGES = {"flash-attn": "flash_attn", "flash-attn-4": "flash_attn.cute"}  # peers, and their modules
COMPILES_S = 0.5


def flash_attn(package="flash-attn", scale=1.0):
    """In place of the module of a package, which needs a GPU: it takes [batch, N, heads, d], and may be wrong by
    a factor. That of FlashAttention-4 takes its time at the first call of each mask, and returns a tuple."""
    compiled = set()

    def flash_attn_func(q, k, v, causal=False):
        if q.shape[2] != 2:
            raise AssertionError  # which says nothing
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        o = scale * torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)
        if package == "flash-attn":
            return o
        if causal not in compiled:
            time.sleep(COMPILES_S)
            compiled.add(causal)
        return o, None

    module = types.ModuleType(PACKAGES[package])
    module.flash_attn_func = flash_attn_func
    return mock.patch.dict(sys.modules, {PACKAGES[package]: module})


class Script(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="training test ")
        self.addCleanup(folder.cleanup)
        self.out = Path(folder.name) / "out.json"

    def run_main(self, module, *options):
        """What it printed, and why it exited: None for success."""
        printed, failure = io.StringIO(), None
        with mock.patch.object(sys, "argv", [module.__name__, *map(str, options)]), contextlib.redirect_stdout(printed):
            try:
                module.main()
            except (SystemExit, on_torch.Missing) as error:
                failure = str(error)
        return printed.getvalue(), failure

    def refused(self, message, module, *options):
        """That these arguments are an error."""
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.run_main(module, *options)
        self.assertIn(message, said.getvalue())


class TrainGptTest(Script):
    tiny = "--tiny", "--device", "cpu", "--commit", "abc"

    def test_the_curves_agree_and_are_kept(self):
        printed, failure = self.run_main(train_gpt, *self.tiny, "--steps", 3, "--out", self.out)
        self.assertIsNone(failure, printed)
        data = json.loads(self.out.read_text())
        self.assertEqual((data["context"]["commit"], data["context"]["device"], data["context"]["steps"]), ("abc", "cpu", 3))
        first, second = fastest(flashladder, "fp32")
        self.assertEqual([*data["losses"]], ["math in fp64", "math", f"stages {first.number} and {second.number}"])
        for losses in data["losses"].values():
            self.assertEqual(len(losses), 3)
            self.assertLess(losses[-1], losses[0])
        right, _, ours = data["losses"].values()
        self.assertEqual(list(data["furthest_from_fp64"].values())[-1], max(train_gpt.away(ours, right)))

    def test_named_stages_and_bf16_in_the_forward_pass(self):
        printed, failure = self.run_main(train_gpt, *self.tiny, "--steps", 1, "--stages", 2, 30)
        self.assertIsNone(failure, printed)
        self.assertIn("stages 2 and 30", printed)
        printed, failure = self.run_main(train_gpt, *self.tiny, "--steps", 2, "--dtype", "bf16", "--stages", 29, 38, "--out",
                                         self.out)
        self.assertIsNone(failure, printed)
        data = json.loads(self.out.read_text())
        self.assertEqual((data["context"]["dtype"], [*data["losses"]][2]), ("bf16", "stages 29 and 38"))

    def test_stages_that_do_not_fit_are_known_before_any_training(self):
        with mock.patch.object(train_gpt, "train", side_effect=AssertionError("it trains")):
            for stages, said in (((2, 2), "stage 02 tiled_cpu has no backward pass"),
                                 ((15, 38), "stage 38 tuned_backward does not take float32")):
                _, failure = self.run_main(train_gpt, *self.tiny, "--stages", *stages)
                self.assertIn(said, failure)

    def test_late_divergence_hides_no_early_mistake(self):
        self.assertEqual(train_gpt.so_far([3.0, 4.0, 5.0]), [3.0, math.sqrt(12.5), math.sqrt(50 / 3)])
        bounds = train_gpt.allowed(train_gpt.so_far([0, 1e-6, 1e-2]), "fp32")
        for early, share in ((1e-6, 0.5), (1e-3, 500), (float("nan"), float("nan"))):
            found = train_gpt.most_of(train_gpt.so_far([early, 0, 1e-2]), bounds)
            self.assertTrue(math.isclose(found, share, rel_tol=0.01) or share != share and found != found, found)

    def test_right_attentions_agree(self):
        """However they round: each of these in another way."""
        def by_hand(scale_first=False, base=math.e, keys=None):
            def attention(q, k, v, causal):
                scale = q.shape[-1] ** -0.5
                s = (scale * q) @ k.mT if scale_first else scale * (q @ k.mT)
                s = s.float().masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), float("-inf")) / math.log(base)
                p = base ** (s - s.amax(-1, keepdim=True))
                parts = [p[..., j:j + keys].to(q.dtype) @ v[:, :, j:j + keys] for j in range(0, k.shape[2], keys)] if keys \
                    else [(p / p.sum(-1, keepdim=True)).to(q.dtype) @ v]
                return (sum(part.float() for part in parts) / (p.sum(-1, keepdim=True) if keys else 1)).to(q.dtype)
            return attention

        # In bf16 at the first seeds at which they go furthest apart.
        fa2 = on_torch.peer(on_torch.backends()["fa2"])
        for dtype, attention, seed in (("fp32", by_hand(), 1), ("fp32", by_hand(True, 2.0, 8), 2), ("bf16", by_hand(True), 1),
                                       ("bf16", by_hand(base=2.0), 2), ("bf16", fa2, 3), ("bf16", by_hand(), 9),
                                       ("bf16", by_hand(True, 2.0, 8), 11)):
            with mock.patch.object(train_gpt, "own", lambda *_, attention=attention: attention):
                printed, failure = self.run_main(train_gpt, *self.tiny, "--steps", 80, "--dtype", dtype, "--seed", seed)
            self.assertIsNone(failure, printed)

    def test_wrong_gradients_show(self):
        """Each is a mistake in one gradient alone, which the first loss does not know of."""
        right = on_torch.peer(on_torch.backends()["fa2"])  # another rounding than math's, and fast on a CPU

        def scaled(x, by):  # whose gradient is so many times as large
            return by * x - (by - 1) * x.detach()

        def nan(x):
            return x + float("nan")

        for name, steps, wrong in (("no dQ", 20, lambda q, k, v, causal: right(q.detach(), k, v, causal)),
                                   ("no dK", 20, lambda q, k, v, causal: right(q, k.detach(), v, causal)),
                                   ("1 % of dK", 80, lambda q, k, v, causal: right(q, scaled(k, 1.01), v, causal)),
                                   ("5 % of dV", 20, lambda q, k, v, causal: right(q, k, scaled(v, 1.05), causal)),
                                   ("NaN", 2, lambda q, k, v, causal: nan(right(q, k, v, causal))),
                                   ("", 80, right)):
            with mock.patch.object(train_gpt, "own", lambda *_, wrong=wrong: wrong):
                printed, failure = self.run_main(train_gpt, *self.tiny, "--steps", steps, "--out", self.out)
            if name:
                self.assertIn("does not agree", str(failure), f"{name}: {printed}")
            else:
                self.assertIsNone(failure, printed)

    def test_in_bf16_a_gradient_that_is_left_out_shows(self):
        right = on_torch.peer(on_torch.backends()["fa2"])
        for name, attention in (("dQ", lambda q, k, v, causal: right(q.detach(), k, v, causal)),
                                ("dK", lambda q, k, v, causal: right(q, k.detach(), v, causal)),
                                ("dV", lambda q, k, v, causal: right(q, k, v.detach(), causal)), ("", right)):
            with mock.patch.object(train_gpt, "own", lambda *_, attention=attention: attention):
                printed, failure = self.run_main(train_gpt, *self.tiny, "--steps", 80, "--dtype", "bf16")
            self.assertEqual("does not agree" in str(failure), bool(name), f"{name}: {printed}")

    def test_what_cannot_run_is_said(self):
        if not torch.cuda.is_available():
            _, failure = self.run_main(train_gpt, "--device", "cuda")
            self.assertIn("PyTorch finds no GPU", failure)
        with mock.patch.object(train_gpt, "train", side_effect=AssertionError("it trains")):
            _, failure = self.run_main(train_gpt, "--device", "cpu")
            self.assertIn("give --tiny", failure)

    def test_a_folder_that_is_not_there_is_known_at_once(self):
        nowhere = self.out.parent / "nowhere" / "file"
        for module, option in ((train_gpt, "--out"), (train_throughput, "--out"), (compare, "--out")):
            self.refused(f"argument {option}: there is no folder {nowhere.parent}", module, option, nowhere)
            self.refused(f"argument {option}: {self.out.parent} is a folder", module, option, self.out.parent)


class TrainThroughputTest(Script):
    tiny = "--models", "tiny", "--device", "cpu", "--dtype", "fp32", "--commit", "abc", "--rounds", 2, "--steps", 1

    def run_tiny(self, *options):
        printed, failure = self.run_main(train_throughput, *self.tiny, "--tokens", 128, "--N", 32, 128, "--out", self.out,
                                         *options)
        return printed, failure, json.loads(self.out.read_text())

    def test_every_attention_is_timed_or_said_to_be_absent(self):
        printed, failure, data = self.run_tiny()
        self.assertIsNone(failure, printed)
        self.assertEqual(data["context"]["ours"],
                         {"ours": [stage.number for stage in flashladder.torch.stages_for(torch.empty(1, 1, 1, 32))]})
        rows = {(row["N"], row["name"]): row for row in data["results"]}
        self.assertEqual([*rows], [(N, name) for N in (32, 128) for name in
                                   ("math", "memory-efficient", "fa2", "cudnn", "ours")])
        for (N, name), row in rows.items():
            if name in ("math", "ours"):
                self.assertEqual((row["batch"], row["steps"]), (128 // N, 2))
                flops = train_throughput.step_flops(row["parameters"], train_throughput.MODELS["tiny"], N, 128)
                self.assertAlmostEqual(row["tflops"] * row["ms"] * 1e9, flops, delta=1e-6 * flops)
                self.assertAlmostEqual(row["mfu"] * data["context"]["gemm_tflops"], row["tflops"])
            self.assertTrue("tflops" in row or row["absent"], row)

    def test_in_bf16_the_deterministic_backward_pass_is_a_row_of_its_own(self):
        printed, failure, data = self.run_tiny("--dtype", "bf16", "--tokens", 64, "--N", 32, "--rounds", 1)
        self.assertIsNone(failure, printed)
        sample = torch.empty(1, 1, 1, 32, dtype=torch.bfloat16)
        wanted = {name: [stage.number for stage in flashladder.torch.stages_for(sample, deterministic=asked)]
                  for name, asked in (("ours", False), ("ours, deterministic", True))}
        self.assertEqual(data["context"]["ours"], wanted)
        self.assertNotEqual(*wanted.values())
        speeds = {row["name"]: row.get("tflops") for row in data["results"]}
        self.assertEqual([*speeds], ["math", "memory-efficient", "fa2", "cudnn", "ours", "ours, deterministic"])
        self.assertTrue(speeds["math"] and speeds["ours"] and speeds["ours, deterministic"], printed)

    def test_the_formula_and_the_models_are_the_papers(self):
        from bench.training.gpt import GPT
        sizes = {"layers": 24, "hidden": 2048}
        self.assertEqual(train_throughput.step_flops(10, sizes, 8, 16), 6 * 10 * 16 + 12 * 24 * 2048 * 8 * 16)
        for name, count in (("1.3B", 1.3e9), ("2.7B", 2.65e9)):
            sizes = train_throughput.MODELS[name]
            self.assertEqual(sizes["hidden"] // sizes["heads"], 128)
            with torch.device("meta"):
                model = GPT(sizes["vocabulary"], 2048, sizes["layers"], sizes["hidden"], sizes["heads"])
            self.assertAlmostEqual(sum(x.numel() for x in model.parameters()) / count, 1, delta=0.02)

    def test_what_is_wrong_is_never_timed(self):
        right = on_torch.own(flashladder, (2, 31))
        for wrong, said in ((lambda q, k, v, causal: right(q, k, v, False), "O is off"),
                            (lambda q, k, v, causal: right(1.1 * q - 0.1 * q.detach(), k, v, causal), "dQ is off"),
                            (lambda q, k, v, causal: right(q, k, 1.1 * v - 0.1 * v.detach(), causal), "dV is off"),
                            (lambda q, k, v, causal: right(q, k + float("nan"), v, causal), "O is off by nan"),
                            # as if the rows of q lay one after the other
                            (lambda q, k, v, causal: right(q.as_strided(q.shape, torch.empty(q.shape).stride()), k, v,
                                                           causal), "O is off")):
            with mock.patch.object(train_throughput, "own", lambda *_, wrong=wrong: wrong):
                printed, failure, data = self.run_tiny("--attentions", "ours", "math")
            self.assertIn("failed", str(failure))
            ours, math = data["results"][:2]
            self.assertIn(said, ours["absent"])
            self.assertNotIn("tflops", ours)
            self.assertIn("tflops", math)

    def test_out_of_memory_halves_the_batch_and_the_rest_goes_on(self):
        right = on_torch.own(flashladder, (2, 31))

        def small_only(q, k, v, causal):
            if q.shape[2] == 128 or q.shape[0] > 2:
                raise RuntimeError("CUDA out of memory. Tried to allocate 64 GiB")
            return right(q, k, v, causal)

        with mock.patch.object(train_throughput, "own", lambda *_: small_only):
            printed, failure, data = self.run_tiny("--attentions", "ours", "math")
        self.assertIsNone(failure)
        self.assertEqual(["tflops" in row for row in data["results"]], [True, True, False, True])
        self.assertEqual(data["results"][2]["absent"], "out of memory at batch 1")
        self.assertEqual([row["batch"] for row in data["results"]], [2, 4, 1, 1])
        ours = data["results"][0]
        flops = train_throughput.step_flops(ours["parameters"], train_throughput.MODELS["tiny"], 32, 2 * 32)
        self.assertAlmostEqual(ours["tflops"] * ours["ms"] * 1e9, flops, delta=1e-6 * flops)
        self.assertEqual(ours["steps"], 2)

    def test_a_package_takes_part_where_it_is_named(self):
        for package, module in PACKAGES.items():
            with flash_attn(package):
                printed, failure, data = self.run_tiny("--attentions", package, "math")
            self.assertIsNone(failure, printed)
            self.assertEqual([row["name"] for row in data["results"] if "tflops" in row], 2 * [package, "math"])
            with mock.patch.dict(sys.modules, {module: None}):
                printed, failure, data = self.run_tiny("--attentions", package, "math")
            self.assertIsNone(failure, printed)
            self.assertIn(f"{module}, of the package {package}, cannot be imported", data["results"][0]["absent"])

    def test_sizes_that_do_not_fit_are_refused(self):
        self.refused("--tokens 100 is no multiple of --N 64", train_throughput, "--tokens", 100, "--N", 64)

    def test_what_cannot_run_is_known_before_any_training(self):
        for options, said in ((("--models", "tiny", "1.3B"), "model 1.3B would take hours"),
                              (("--stages", 15, 99), "--stages: stage 99 does not exist"),
                              (("--stages", 29, 38), "--stages: stage 29 tuned does not take float32")):
            _, failure = self.run_main(train_throughput, *self.tiny, *options)
            self.assertIn(said, str(failure))


class CompareTest(Script):
    def run_small(self, *options):
        with mock.patch.multiple(compare, TOKENS=128, WIDTH=64):
            printed, failure = self.run_main(compare, "--device", "cpu", "--d", 32, "--N", 64, 128, "--rounds", 2, "--dtype",
                                             "fp32", "--commit", "abc", "--out", self.out, *options)
        return printed, failure, json.loads(self.out.read_text())

    def test_stages_and_peers_of_the_backward_pass(self):
        printed, failure, data = self.run_small("--backward")
        self.assertIsNone(failure, printed)
        self.assertEqual((data["context"]["pass"], data["context"]["commit"]), ("backward", "abc"))
        stages = [stage.number for stage in flashladder.stages()
                  if stage.backward and stage.kernels and "float32" in stage.dtypes]
        names = [f"stage {number}" for number in stages] + ["fa2", "cudnn", "flash-attn-4", "memory-efficient", "math",
                                                                    "flash-attn"]
        self.assertEqual([(row["causal"], row["N"], row["name"]) for row in data["results"]],
                         [(causal, N, name) for causal in (False, True) for N in (64, 128) for name in names])
        for row in data["results"]:
            if row["name"].startswith("stage") or row["name"] == "math":
                flops = 10 * row["N"] * 128 * 64 / (2 if row["causal"] else 1)
                self.assertAlmostEqual(row["tflops"] * row["ms"] * 1e9, flops, delta=1e-6 * flops)
                self.assertEqual(row["runs"], 2)
        self.assertIn("stage 31", printed)

    def test_the_forward_pass(self):
        printed, failure, data = self.run_small("--stages", 14, 15)
        self.assertIsNone(failure, printed)
        row = next(row for row in data["results"] if row["name"] == "stage 15")
        self.assertAlmostEqual(row["tflops"] * row["ms"] * 1e9, 4 * 64 * 128 * 64, delta=1)

    def of_package(self, package, *options):
        """What is known of it at each shape, and what was printed."""
        printed, failure, data = self.run_small(*options)
        self.assertIsNone(failure, printed)
        return data["context"], [row for row in data["results"] if row["name"] == package], printed

    def test_a_package_is_a_peer_where_it_is_installed(self):
        versions = {"flash-attn": "2.8", "flash-attn-4": "4.0", "nvidia-cutlass-dsl": "4.8"}
        for package in PACKAGES:
            for options, flops in ((["--stages", 15], 4 * 64), (["--backward", "--stages", 31], 10 * 64)):
                with flash_attn(package), mock.patch.object(on_torch.metadata, "version", versions.__getitem__):
                    context, rows, printed = self.of_package(package, *options)
                self.assertEqual({**context, **versions}, context)
                self.assertEqual([(row["causal"], row["N"]) for row in rows],
                                 [(causal, N) for causal in (False, True) for N in (64, 128)])
                for row in rows:
                    right = flops * 128 * row["N"] / (2 if row["causal"] else 1)
                    self.assertAlmostEqual(row["tflops"] * row["ms"] * 1e9, right, delta=1e-6 * right)
                    self.assertLess(row["ms_upper_quartile"], 1e3 * COMPILES_S / 2)  # 3/4 of it is in that of 4 runs
                self.assertRegex(printed, rf"{package}: \d+\.\d+ of memory-efficient|absent: memory-efficient")

    def test_a_package_that_is_not_there_or_wrong_is_absent(self):
        for package, module in PACKAGES.items():
            with mock.patch.dict(sys.modules, {module: None}):  # as if it were not installed
                context, rows, printed = self.of_package(package, "--stages", 15)
            self.assertNotIn(package, context)
            self.assertEqual(["tflops" in row for row in rows], 4 * [False])
            self.assertRegex(printed, f"absent: {package}: {module}, of the package {package}, cannot be imported: .*{module}")
            for options, said in ((["--stages", 15], "O is off"), (["--backward", "--stages", 31], "d[QKV] is off")):
                with flash_attn(package, 1.01):
                    _, rows, _ = self.of_package(package, *options)
                for row in rows:
                    self.assertRegex(row["absent"], said)
            with flash_attn(package):  # one head, at which it fails without a word
                _, rows, _ = self.of_package(package, "--stages", 15, "--d", 64)
            self.assertEqual({row.get("absent") for row in rows}, {"AssertionError"})

    def test_why_a_package_does_not_load_is_one_sentence(self):
        around = types.ModuleType("flash_attn")
        around.__path__ = [str(self.out.parent)]
        for source, why in (("raise OSError('libcute.so: no such file\\nand more')", "libcute.so: no such file"),
                            ("assert False", "AssertionError"), ("import no_compiler", "No module named 'no_compiler'"),
                            ("", "module 'flash_attn.cute' has no attribute 'flash_attn_func'")):
            (self.out.parent / "cute.py").write_text(source)
            with mock.patch.dict(sys.modules, {"flash_attn": around}), mock.patch.object(sys, "dont_write_bytecode", True):
                importlib.invalidate_caches()
                _, rows, printed = self.of_package("flash-attn-4", "--stages", 15)
            said = f"flash_attn.cute, of the package flash-attn-4, cannot be imported: {why}"
            self.assertEqual({row["absent"] for row in rows}, {said})
            self.assertEqual(printed.count("absent: flash-attn-4"), 1)
            timed = {row["name"] for row in json.loads(self.out.read_text())["results"] if "tflops" in row}
            self.assertLessEqual({"stage 15", "math"}, timed)

    def test_sizes_that_do_not_fit_are_refused(self):
        self.refused("--N 3 does not divide batch * N, which is 16384", compare, "--N", 3)
        self.refused("--N 32768 does not divide", compare, "--N", 32768)
        self.refused("--d 4096: give 1 to 2048, which heads * d is, or a little less", compare, "--d", 4096)
        self.refused("--rounds is to be at least 1", compare, "--rounds", 0)

    def test_wrong_outputs_are_never_timed(self):
        right = flashladder.forward

        def wrong(stage, *arguments, **options):
            o, lse = right(stage, *arguments, **options)
            return o if stage == 14 else 1.01 * o, lse

        with mock.patch.object(flashladder, "forward", wrong):
            printed, failure, data = self.run_small("--stages", 14, 15)
        self.assertIn("a stage failed", str(failure))
        for row in data["results"]:
            if row["name"].startswith("stage"):
                self.assertEqual("tflops" in row, row["name"] == "stage 14", row)

    def test_outputs_are_looked_at_everywhere(self):
        q, k, v = (torch.randn(2, 2, 70, 32, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
        right = on_torch.own(flashladder, (2, 31))(q, k, v, True)
        self.assertEqual(on_torch.wrong_output(torch, right, q, k, v, True), "")
        for place, value, said in (((0, 0, 69, 5), 0.0, "O is off by"), ((-1, -1, 69, 5), 0.0, "O is off by"),
                                   ((1, 0, 3, 0), float("nan"), "no finite numbers"),
                                   ((-1, -1, 0, 0), float("inf"), "no finite numbers")):
            o = right.clone()
            o[place] = value
            self.assertIn(said, on_torch.wrong_output(torch, o, q, k, v, True))

    def test_wrong_gradients_are_never_timed(self):
        right = flashladder.backward

        def wrong(stage, *arguments, **options):
            dq, dk, dv = right(stage, *arguments, **options)
            return dq, dk if stage == 30 else 1.01 * dk, dv

        with mock.patch.object(flashladder, "backward", wrong):
            printed, failure, data = self.run_small("--backward", "--stages", 30, 31)
        self.assertIn("a stage failed", str(failure))
        for row in data["results"]:
            if row["name"] == "stage 31":
                self.assertIn("dK is off", row["absent"])
            elif row["name"] == "stage 30":
                self.assertIn("tflops", row)


class RuleTest(unittest.TestCase):
    def test_a_gradient_that_is_wrong_in_one_place_is_found(self):
        for dtype in (torch.float32, torch.bfloat16):
            for causal in (False, True):
                q, k, v, do = (torch.randn(1, 2, 65, 32, generator=torch.Generator().manual_seed(seed)).to(dtype)
                               for seed in range(4))
                inputs = [x.double().requires_grad_() for x in (q, k, v)]
                heads = [on_torch.definition(torch, *(x[0, h] for x in inputs), causal) for h in range(2)]
                right = torch.autograd.grad(torch.stack(heads)[None], inputs, do.double())
                gradients = [x.to(dtype) for x in right]
                self.assertEqual(on_torch.wrong_gradients(torch, gradients, q, k, v, do, causal), "")
                for i, name in enumerate(("dQ", "dK", "dV")):
                    for change, rows in ((lambda x: x * 1.05, slice(None)), (lambda x: x * 0, 7),
                                         (lambda x: x * float("nan"), 64)):
                        wrong = [x.clone() for x in gradients]
                        wrong[i][-1, -1, rows] = change(wrong[i][-1, -1, rows])
                        self.assertIn(f"{name} is off", on_torch.wrong_gradients(torch, wrong, q, k, v, do, causal))
                    wrong = [x.clone() for x in gradients]
                    wrong[i][0, 0, 5, 3] = float("nan")
                    self.assertIn(f"{name} has elements that are no finite numbers",
                                  on_torch.wrong_gradients(torch, wrong, q, k, v, do, causal))


if __name__ == "__main__":
    unittest.main()
