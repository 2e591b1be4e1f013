"""Tests of the Python module flashladder, as it is installed: values, memory, errors, counts.

Usage: python_test.py [unittest options]
"""

import os
import subprocess
import sys
import threading
import unittest

import flashladder
import numpy as np

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # JAX has no current stream: its arrays on a GPU are not taken

try:
    import torch
except ImportError:
    torch = None

with_torch = unittest.skipUnless(torch, "this Python has no PyTorch")
STAGES = [stage for stage in flashladder.stages() if stage.forward]
KERNELS = [stage for stage in STAGES if stage.kernels]
FP32 = [stage for stage in STAGES if "float32" in stage.dtypes]
with_gpu = unittest.skipUnless(torch and torch.cuda.is_available() and "cuda" in KERNELS[0].backends,
                               "no GPU that PyTorch and the module both use")
TOLERANCE = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 8e-2}


def inputs(batch=1, heads=2, kv_heads=None, rows=37, keys=None, d=32, dtype="float32", seed=0):
    random = np.random.default_rng(seed)
    kv_heads, keys = kv_heads or heads, keys or rows
    shapes = (batch, heads, rows, d), (batch, kv_heads, keys, d), (batch, kv_heads, keys, d)
    return [random.standard_normal(shape, np.float32).astype(dtype) for shape in shapes]


def reference(q, k, v, causal=False, scale=None):
    """O and L from the definition, in fp64."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.astype("f8"), np.repeat(k.astype("f8"), group, 1), np.repeat(v.astype("f8"), group, 1)
    scores = (1 / np.sqrt(q.shape[-1]) if scale is None else scale) * q @ k.swapaxes(-1, -2)
    if causal:
        rows, keys = scores.shape[-2:]
        scores = np.where(np.tri(rows, keys, keys - rows, dtype=bool), scores, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        top = scores.max(-1, keepdims=True)
        p = np.exp(scores - np.where(np.isfinite(top), top, 0))
        total = p.sum(-1, keepdims=True)
        return np.where(total > 0, p @ v / total, 0), (top + np.log(total))[..., 0]


class ForwardTest(unittest.TestCase):
    def check(self, stage, q, k, v, **options):
        o, lse = flashladder.forward(stage, q, k, v, **options)
        o_right, lse_right = reference(q, k, v, **options)
        self.assertEqual((o.shape, o.dtype), (q.shape, q.dtype))
        self.assertEqual((lse.shape, lse.dtype), (q.shape[:-1], np.float32))
        atol = TOLERANCE[q.dtype.name]
        np.testing.assert_allclose(o.astype("f8"), o_right, rtol=atol, atol=atol)
        np.testing.assert_allclose(lse, lse_right, rtol=atol, atol=atol)

    def test_every_stage_is_right(self):
        for stage in STAGES:
            for dtype in stage.dtypes:
                if dtype == "bfloat16":
                    continue  # below
                with self.subTest(stage=str(stage), dtype=dtype):
                    self.check(stage, *inputs(2, 4, 2, 45, 70, dtype=dtype))
                    self.check(stage, *inputs(1, 2, 1, 70, 45, 64, dtype=dtype), causal=True)  # rows without a key
                    self.check(stage, *inputs(dtype=dtype), scale=0.3)

    def test_a_stage_by_number_name_and_object(self):
        arrays = inputs()
        for name in (13, np.int64(13), "fa2_sequence_parallel", "13_fa2_sequence_parallel",
                     *(stage for stage in STAGES if stage.number == 13)):
            self.assertEqual(flashladder.forward(name, *arrays)[0].tobytes(),
                             flashladder.forward(13, *arrays, backend="emulator")[0].tobytes())
        self.check(2, *inputs(d=19))

    def test_arrays_are_read_where_they_lie(self):
        """NaN between the rows and around them would show, and so would a change."""
        for stage in FP32:
            for batch_axis, head_axis, row_axis in ((0, 1, 2), (0, 2, 1), (2, 0, 1)):
                with self.subTest(stage=str(stage), axes=(batch_axis, head_axis, row_axis)):
                    views, whole = [], []
                    for x in inputs(2, 4, 2):
                        sizes = [0, 0, 0, x.shape[3] + 8]
                        for axis, n in zip((batch_axis, head_axis, row_axis), x.shape):
                            sizes[axis] = 2 * n
                        memory = np.full(sizes, np.nan, np.float32)
                        view = memory[1::2, ::2, ::2, 4:-4].transpose(batch_axis, head_axis, row_axis, 3)
                        view[:] = x
                        view.flags.writeable = False
                        views.append(view)
                        whole.append((memory, memory.copy()))
                    self.check(stage, *views, causal=True)
                    for memory, before in whole:
                        np.testing.assert_array_equal(memory, before)

    def test_one_row_for_all(self):
        """Dimensions of stride 0, as broadcasting makes them."""
        q, k, v = inputs(1, 4, rows=64)
        k, v = (np.broadcast_to(x[:, :1, :1], (1, 2, 5000, 32)) for x in (k, v))
        for stage in (2, 15):
            o, lse = flashladder.forward(stage, q, k, v)
            np.testing.assert_allclose(o, np.broadcast_to(v[:, :1, :1], q.shape), rtol=1e-4)

    def test_bfloat16(self):
        halves = [stage for stage in STAGES if "bfloat16" in stage.dtypes]
        try:
            import ml_dtypes
        except ImportError:
            self.skipTest("no ml_dtypes, NumPy's bfloat16")
        for stage in halves:
            with self.subTest(stage=str(stage)):
                self.check(stage, *inputs(2, 4, 2, 45, 70, dtype=ml_dtypes.bfloat16), causal=True)

    def test_threads(self):
        arrays = [inputs(rows=64, seed=seed) for seed in range(4)]
        results = [None] * len(arrays)

        def work(i):
            results[i] = [flashladder.forward(stage, *arrays[i], causal=True)[0] for stage in (1, 2, 10, 15) * 3]
            results[i].append(flashladder.ledger(10, rows=64)["counts"])

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(arrays))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for given, found in zip(arrays, results):
            for o in found[:-1]:
                np.testing.assert_allclose(o, reference(*given, causal=True)[0], rtol=2e-5, atol=2e-5)
            self.assertEqual(found[-1], results[0][-1])

    def test_the_gil_is_released(self):
        q, k, v = inputs(1, 4, rows=1024, d=64)
        done = threading.Event()

        def work():
            flashladder.forward(0, q, k, v)
            done.set()

        thread = threading.Thread(target=work)
        thread.start()
        steps = 0
        while not done.is_set():
            steps += 1
        thread.join()
        self.assertGreater(steps, 100)


class OtherLibrariesTest(unittest.TestCase):
    @with_torch
    def test_torch(self):
        q, k, v = map(torch.from_numpy, inputs(2, 4, 2, 45, 70))
        k = k.transpose(1, 2).contiguous().transpose(1, 2)
        for stage in (2, 14):
            o, lse = flashladder.forward(stage, q, k, v, causal=True)
            right = flashladder.forward(stage, q.numpy(), k.numpy(), v.numpy(), causal=True)
            self.assertIsInstance(o, torch.Tensor)
            self.assertEqual((o.device, lse.dtype), (q.device, torch.float32))
            np.testing.assert_array_equal(o, right[0])
            np.testing.assert_array_equal(lse, right[1])

    @with_torch
    def test_torch_bfloat16(self):
        for stage in STAGES:
            if "bfloat16" not in stage.dtypes:
                continue
            q, k, v = (torch.from_numpy(x).bfloat16() for x in inputs(2, 4, 2, 45, 70))
            o, _ = flashladder.forward(stage, q, k, v)
            self.assertEqual(o.dtype, torch.bfloat16)
            right, _ = reference(q.float().numpy(), k.float().numpy(), v.float().numpy())
            np.testing.assert_allclose(o.float().numpy(), right, rtol=8e-2, atol=8e-2)

    @with_torch
    def test_torch_gradients(self):
        q, k, v = map(torch.from_numpy, inputs())
        q.requires_grad_()
        with self.assertRaisesRegex(ValueError, "q requires a gradient.*detach"):
            flashladder.forward(2, q, k, v)
        with torch.no_grad():
            self.assertFalse(flashladder.forward(2, q, k, v)[0].requires_grad)

    def test_any_library(self):
        for name in ("jax.numpy", "array_api_strict"):
            try:
                library = __import__(name, fromlist=["x"])
            except ImportError:
                continue
            q, k, v = map(library.asarray, inputs())
            o, lse = flashladder.forward(14, q, k, v)
            self.assertIs(type(o), type(q))
            self.assertIs(type(lse), type(q))
            np.testing.assert_array_equal(np.asarray(o), flashladder.forward(14, *inputs())[0])

    def test_importing_needs_nothing(self):
        script = ("import sys; sys.modules['numpy'] = sys.modules['torch'] = None; import flashladder as f; "
                  "assert f.stages() and f.ledger(14, rows=32)['counts']['blocks'] == 2 and f.__version__")
        subprocess.run([sys.executable, "-c", script], check=True)


class GpuTest(unittest.TestCase):
    def tensors(self, *sizes, dtype="float32", **options):
        return [torch.from_numpy(x).cuda().to(getattr(torch, dtype)) for x in inputs(*sizes, **options)]

    @with_gpu
    def test_every_stage_is_right(self):
        for stage in KERNELS:
            for dtype in stage.dtypes:
                with self.subTest(stage=str(stage), dtype=dtype):
                    q, k, v = self.tensors(2, 4, 2, 45, 70, dtype=dtype)
                    k = k.transpose(1, 2).contiguous().transpose(1, 2)
                    o, lse = flashladder.forward(stage, q, k, v, causal=True)
                    right = reference(*(x.float().cpu().numpy() for x in (q, k, v)), causal=True)
                    self.assertEqual((o.device, o.dtype, lse.dtype), (q.device, q.dtype, torch.float32))
                    atol = TOLERANCE[dtype]
                    np.testing.assert_allclose(o.float().cpu(), right[0], rtol=atol, atol=atol)
                    np.testing.assert_allclose(lse.cpu(), right[1], rtol=atol, atol=atol)

    @with_gpu
    def test_the_callers_stream(self):
        """The call returns while its stream is still busy, and its kernels come after what was there."""
        q, k, v = self.tensors(rows=64)
        right = flashladder.forward(14, q, k, v)[0]
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            late = torch.zeros_like(q)
            torch.cuda._sleep(1_000_000_000)
            late.copy_(q)
            o, _ = flashladder.forward(14, late, k, v)
            self.assertFalse(stream.query())
        stream.synchronize()
        self.assertTrue(torch.equal(o, right))

    @with_gpu
    def test_stages_with_extra_memory_do_not_wait_either(self):
        q, k, v = self.tensors(rows=64)
        flashladder.forward(10, q, k, v)
        torch.cuda.synchronize()
        torch.cuda._sleep(1_000_000_000)
        flashladder.forward(10, q, k, v)
        self.assertFalse(torch.cuda.current_stream().query())
        torch.cuda.synchronize()

    @with_gpu
    def test_errors(self):
        q, k, v = self.tensors()
        with self.assertRaisesRegex(ValueError, "q is on GPU 0, k on the CPU"):
            flashladder.forward(14, q, k.cpu(), v)
        with self.assertRaisesRegex(ValueError, "C\\+\\+ for the CPU, and the arrays are on a GPU"):
            flashladder.forward(2, q, k, v)
        with self.assertRaisesRegex(ValueError, "needs arrays on the CPU"):
            flashladder.forward(14, q, k, v, backend="emulator")
        with self.assertRaisesRegex(ValueError, "ledger is the emulator's"):
            flashladder.ledger(14, q, k, v)
        with self.assertRaisesRegex(ValueError, "needs arrays on a GPU"):
            flashladder.forward(14, *inputs(), backend="cuda")
        long = torch.zeros(1, 1, 1, 32, device="cuda").expand(1, 1, 1 << 20, 32)
        with self.assertRaisesRegex(MemoryError, "out of memory"):
            flashladder.forward(10, long, long, long)
        self.assertEqual(flashladder.forward(14, q, k, v)[0].shape, q.shape)  # and it goes on


class ErrorTest(unittest.TestCase):
    def fails(self, error, message, stage, *arrays, **options):
        with self.assertRaisesRegex(error, message):
            flashladder.forward(stage, *arrays, **options)

    def test_stages(self):
        self.fails(ValueError, "stage 7 does not exist: this build has 00 naive_cpu, 01", 7, *inputs())
        self.fails(ValueError, "stage 'flash' does not exist", "flash", *inputs())
        self.fails(TypeError, "stage is 1.5: give a number", 1.5, *inputs())

    def test_shapes(self):
        q, k, v = inputs(1, 4, 2)
        self.fails(ValueError, r"q has shape \[4, 37, 32\]: give \[batch, heads, rows, d\]", 2, q[0], k, v)
        self.fails(ValueError, "k and v must have the same shape", 2, q, k, v[:, :, :9])
        self.fails(ValueError, "batch sizes differ", 2, np.concatenate((q, q)), k, v)
        self.fails(ValueError, "head dimensions differ", 2, q[..., :16], k, v)
        self.fails(ValueError, r"query heads \(3\) are not a multiple", 2, q[:, :3], k, v)
        self.fails(ValueError, "batch is 0", 2, q[:0], k[:0], v[:0])
        self.fails(ValueError, "does not take head dimension 48: it takes 32, 64 and 128", 13, *inputs(d=48))
        self.fails(ValueError, "head dimension d is 300", 2, *inputs(d=300))

    def test_memory(self):
        q, k, v = inputs()
        self.fails(ValueError, "last dimension of q is not contiguous.*ascontiguousarray", 2, q[..., ::2], k, v)
        self.fails(ValueError, "last dimension of k is not contiguous", 2, q, k.transpose(0, 1, 3, 2), v)
        self.fails(ValueError, "dimension 2 of v runs backwards", 13, q, k, v[:, :, ::-1])
        odd = np.zeros(q.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(q.shape)
        self.fails(ValueError, "q does not begin at a multiple", 2, odd, k, v)

    def test_types(self):
        q, k, v = inputs()
        self.fails(TypeError, r'q is float64, and stage 13 .* takes float32: convert it, .*q.astype\("float32"\)', 13,
                   q.astype("f8"), k, v)
        self.fails(TypeError, "k is int32", 2, q, k.astype("i4"), v)
        self.fails(TypeError, "dtype >f4", 2, q.astype(">f4"), k, v)
        self.fails(TypeError, "v is float16", 2, q, k, v.astype("f2"))
        self.fails(TypeError, "q is a list", 2, q.tolist(), k, v)
        self.fails(TypeError, "k is a NoneType", 2, q, None, v)

    def test_numbers(self):
        self.fails(ValueError, "scale is 0", 2, *inputs(), scale=0)
        self.fails(ValueError, "not a finite number", 2, *inputs(), scale=float("nan"))

    def test_backends(self):
        self.fails(ValueError, "does not run on backend 'emulator': use 'cpu'", 2, *inputs(), backend="emulator")
        self.fails(ValueError, "use 'emulator' or 'cuda'", 13, *inputs(), backend="gpu")
        if "cuda" not in KERNELS[0].backends:
            self.fails(RuntimeError, "backend 'emulator'", 13, *inputs(), backend="cuda")

    def test_out_of_memory(self):
        long = np.broadcast_to(inputs()[0][:, :1, :1], (1, 1, 1 << 20, 32))
        for stage in (0, 10):
            self.fails(MemoryError, "out of memory: .* MiB are free", stage, long, long, long)

    def test_kernel_error(self):
        """A grid of more heads than a GPU takes."""
        q, k, v = inputs(1, 1, rows=1)
        q = np.broadcast_to(q, (1, 65536, 1, 32))
        with self.assertRaisesRegex(flashladder.KernelError, "a grid of") as caught:
            flashladder.forward(14, q, k, v)
        error = caught.exception
        self.assertIsInstance(error, RuntimeError)
        self.assertEqual((error.kind, error.kernel, error.block, error.thread, error.line, error.buffer),
                         ("bad_launch", "fa2_forward", (0, 0, 0), (0, 0, 0), 0, ""))


class LedgerTest(unittest.TestCase):
    def test_counts_equal_closed_forms(self):
        for stage in KERNELS:
            for sizes in ({}, {"causal": True, "rows": 77, "keys": 130, "heads": 4, "kv_heads": 2, "d": 32}):
                with self.subTest(stage=str(stage), **sizes):
                    ledger = flashladder.ledger(stage, **{"rows": 100, "batch": 2, **sizes})
                    self.assertEqual((ledger["number"], ledger["name"]), (stage.number, stage.name))
                    self.assertEqual(ledger["problem"]["rows"], sizes.get("rows", 100))
                    self.assertTrue(ledger["closed_forms"])
                    for form in ledger["closed_forms"]:
                        self.assertEqual(form["value"], form["measured"], form)
                        self.assertEqual(ledger["counts"].get(form["counter"], form["value"]), form["value"], form)

    def test_on_arrays(self):
        for stage in KERNELS:
            if "float32" in stage.dtypes:
                on_arrays = flashladder.ledger(stage, *inputs(1, 4, 2, 45, 70), causal=True)
                random = flashladder.ledger(stage, heads=4, kv_heads=2, rows=45, keys=70, d=32, causal=True)
                self.assertEqual(on_arrays["counts"], random["counts"])

    def test_launches(self):
        launches = flashladder.ledger(10, rows=40)["launches"]
        self.assertEqual([launch["kernel"] for launch in launches], ["scores", "softmax", "output"])

    def test_strides_show_in_sectors(self):
        """The arrays are counted where they lie: rows of 32 elements that begin in the middle of a sector take one
        more."""
        q, k, v = inputs(rows=64)
        aligned = flashladder.ledger(14, q, k, v, banks=True)["counts"]
        wide = np.zeros((*q.shape[:3], 36), np.float32)
        wide[..., :32] = q
        shifted = flashladder.ledger(14, wide[..., :32], k, v, banks=True)["counts"]
        self.assertEqual(aligned["global.Q.read_bytes"], shifted["global.Q.read_bytes"])
        self.assertLess(aligned["global.Q.sectors"], shifted["global.Q.sectors"])
        self.assertNotIn("global.Q.sectors", flashladder.ledger(14, q, k, v)["counts"])

    def test_check(self):
        self.assertEqual(flashladder.ledger(14, rows=40, check=True)["counts"],
                         flashladder.ledger(14, rows=40)["counts"])

    def test_errors(self):
        with self.assertRaisesRegex(ValueError, "stage 02 tiled_cpu is C\\+\\+ .* and has no ledger"):
            flashladder.ledger(2)
        with self.assertRaisesRegex(ValueError, "q, k and v go together"):
            flashladder.ledger(13, inputs()[0])
        with self.assertRaisesRegex(ValueError, "it takes 32, 64 and 128"):
            flashladder.ledger(13, d=48)


class StagesTest(unittest.TestCase):
    def test_stages(self):
        by_number = {stage.number: stage for stage in STAGES}
        self.assertEqual([stage.number for stage in STAGES], sorted(by_number))
        self.assertEqual(str(by_number[2]), "02 tiled_cpu")
        self.assertEqual((by_number[0].before, by_number[1].before, by_number[10].before), (None, 0, 2))
        self.assertEqual((by_number[2].head_dims, by_number[13].head_dims), (None, (32, 64, 128)))
        self.assertEqual((by_number[2].dtypes, by_number[2].backends), (("float32",), ("cpu",)))
        self.assertEqual(by_number[13].backends[0], "emulator")
        for stage in STAGES:
            self.assertTrue(stage.forward and stage.title and stage.idea and stage.claim, stage)

    def test_help(self):
        for text in (flashladder.__doc__, flashladder.forward.__doc__, flashladder.ledger.__doc__,
                     flashladder.Stage.__doc__, flashladder.KernelError.__doc__):
            self.assertGreater(len(text), 100)


if __name__ == "__main__":
    unittest.main()
