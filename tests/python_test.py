"""Tests of the Python module flashladder, as it is installed: values, memory, errors, counts.

Usage: python_test.py [unittest options]
"""

import collections
import contextlib
import importlib.util
import inspect
import itertools
import os
import re
import subprocess
import sys
import textwrap
import threading
import unittest
import warnings
import weakref
from pathlib import Path
from unittest import mock

import flashladder
import numpy as np

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # JAX has no current stream: its arrays on a GPU are not taken

try:
    import torch
except ImportError:
    torch = None
else:
    import flashladder.torch

with_torch = unittest.skipUnless(torch, "this Python has no PyTorch")
STAGES = [stage for stage in flashladder.stages() if stage.forward]
KERNELS = [stage for stage in STAGES if stage.kernels]
BACKWARD = [stage for stage in flashladder.stages() if stage.backward]
BACKWARD_KERNELS = [stage for stage in BACKWARD if stage.kernels]
FP32 = [stage for stage in STAGES if "float32" in stage.dtypes]
with_gpu = unittest.skipUnless(torch and torch.cuda.is_available() and "cuda" in KERNELS[0].backends,
                               "no GPU that PyTorch and the module both use")

TOLERANCE = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 8e-2}


def skip_unless_here(test, stage):
    if "cuda" not in stage.backends:
        test.skipTest(f"this GPU does not run stage {stage}")


def inputs(batch=1, heads=2, kv_heads=None, rows=37, keys=None, d=32, dtype="float32", seed=0):
    random = np.random.default_rng(seed)
    kv_heads, keys = kv_heads or heads, keys or rows
    shapes = (batch, heads, rows, d), (batch, kv_heads, keys, d), (batch, kv_heads, keys, d)
    return [random.standard_normal(shape, np.float32).astype(dtype) for shape in shapes]


def amid_nan(arrays, batch_axis, head_axis, row_axis):
    """Read-only views that hold the arrays, in larger memory that is NaN elsewhere, with its axes in this order; and of
    each the memory with a copy of it."""
    views, whole = [], []
    for x in arrays:
        sizes = [0, 0, 0, x.shape[3] + 8]
        for axis, n in zip((batch_axis, head_axis, row_axis), x.shape):
            sizes[axis] = 2 * n
        memory = np.full(sizes, np.nan, np.float32)
        view = memory[1::2, ::2, ::2, 4:-4].transpose(batch_axis, head_axis, row_axis, 3)
        view[:] = x
        view.flags.writeable = False
        views.append(view)
        whole.append((memory, memory.copy()))
    return views, whole


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


def reference_backward(q, k, v, do, causal=False, scale=None):
    """dQ, dK and dV from the definition, in fp64."""
    group = q.shape[1] // k.shape[1]
    scale = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    _, lse = reference(q, k, v, causal, scale)
    q, do, keys, values = q.astype("f8"), do.astype("f8"), *(np.repeat(x.astype("f8"), group, 1) for x in (k, v))
    scores = scale * q @ keys.swapaxes(-1, -2)
    visible = np.tri(*scores.shape[-2:], scores.shape[-1] - scores.shape[-2], dtype=bool) if causal else True
    p = np.where(visible & np.isfinite(lse)[..., None], np.exp(scores - np.where(np.isfinite(lse), lse, 0)[..., None]), 0)
    dp = do @ values.swapaxes(-1, -2)
    ds = scale * p * (dp - (p * dp).sum(-1, keepdims=True))

    def of_group(x):
        return x.reshape(k.shape[0], k.shape[1], group, *k.shape[2:]).sum(2)

    return ds @ keys, of_group(ds.swapaxes(-1, -2) @ q), of_group(p.swapaxes(-1, -2) @ do)


def rounded(x, like):
    return x.astype(np.float32).astype(like.dtype)


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
                    views, whole = amid_nan(inputs(2, 4, 2), batch_axis, head_axis, row_axis)
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


class PackedTest(unittest.TestCase):
    """Packed sequences, on arrays of NumPy."""

    def setUp(self):
        self.q, self.k, self.v = (x.astype("float16") for x in inputs(1, 2, 2, 100, 100, 64))
        self.cu = np.array([0, 30, 30, 100], np.int32)

    def test_each_is_what_it_is_alone(self):
        q, k, v, cu = self.q, self.k, self.v, {"cu_seqlens_q": self.cu, "cu_seqlens_k": self.cu}
        o, lse = flashladder.forward(74, q, k, v, causal=True, **cu)
        packed = (o, lse, *flashladder.backward(74, q, k, v, o, lse, do=o, causal=True, **cu))
        for begin, end in ((0, 30), (30, 100)):
            q, k, v = (x[:, :, begin:end] for x in (self.q, self.k, self.v))
            o, lse = flashladder.forward(74, q, k, v, causal=True)
            alone = (o, lse, *flashladder.backward(74, q, k, v, o, lse, do=o, causal=True))
            for name, one, other in zip(("o", "lse", "dq", "dk", "dv"), packed, alone):
                np.testing.assert_allclose(one[:, :, begin:end], other, rtol=1e-3, atol=1e-3, err_msg=name)

    def test_keys_that_are_not_used(self):
        used = np.array([10, 0, 70], np.int32)
        o, lse = flashladder.forward(74, self.q, self.k, self.v, cu_seqlens_q=self.cu, cu_seqlens_k=self.cu, seqused_k=used)
        alone = flashladder.forward(74, self.q[:, :, :30], self.k[:, :, :10], self.v[:, :, :10])
        np.testing.assert_array_equal(o[:, :, :30], alone[0])
        np.testing.assert_array_equal(lse[:, :, :30], alone[1])

    def test_errors(self):
        cu, tensors = self.cu, (self.q, self.k, self.v)
        both = {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
        for message, options in (
                ("cu_seqlens_q is given without the others", {"cu_seqlens_q": cu}),
                ("seqused_k is given without the others", {"seqused_k": cu}),
                ("cu_seqlens_k begins with 100", {**both, "cu_seqlens_k": cu[::-1].copy()}),
                ("cu_seqlens_k falls from 30 to 20 at place 2", {**both, "cu_seqlens_k": np.array([0, 30, 20, 100], np.int32)}),
                ("cu_seqlens_k ends with 101: .* 100 keys", {**both, "cu_seqlens_k": np.array([0, 30, 30, 101], np.int32)}),
                ("cu_seqlens_k has 3 numbers: give .* 4", {**both, "cu_seqlens_k": cu[:3]}),
                (r"cu_seqlens_q has shape \[1, 4\]: give one dimension", {**both, "cu_seqlens_q": cu[None]}),
                ("seqused_k says 31 at place 0, where the sequence has 30 keys",
                 {**both, "seqused_k": np.array([31, 0, 1], np.int32)}),
                ("seqused_k has 2 numbers: give one for each of 3", {**both, "seqused_k": np.array([3, 0], np.int32)})):
            with self.assertRaisesRegex(ValueError, message):
                flashladder.forward(74, *tensors, **options)
        for message, options in (("cu_seqlens_q is a list", {**both, "cu_seqlens_q": [0, 100]}),
                                 ("cu_seqlens_k is not an array of int32", {**both, "cu_seqlens_k": cu.astype("int64")})):
            with self.assertRaisesRegex(TypeError, message):
                flashladder.forward(74, *tensors, **options)
        with self.assertRaisesRegex(ValueError, "single batch entry, and here are 2"):
            flashladder.forward(74, *(np.repeat(x, 2, 0) for x in tensors), **both)
        with self.assertRaisesRegex(ValueError, "72 sliding_window takes no packed sequences"):
            flashladder.forward(72, *tensors, **both)


class BlockMapTest(unittest.TestCase):
    """A block map, on arrays of NumPy."""

    def setUp(self):
        self.tensors = [x.astype("float16") for x in inputs(2, 4, 2, 150, 260, 64)]

    def test_what_is_left_is_attention(self):
        q, k, v = self.tensors
        block_map = np.zeros((1, 4, 2, 3), np.int32)
        block_map[:, :, :, 1] = 7  # all see block 1 alone, but for head 2, which sees nothing
        block_map[:, 2] = 0
        o, lse = flashladder.forward("block_map", q, k, v, block_map=block_map)
        right, right_lse = flashladder.forward(29, q, k[:, :, 128:256].copy(), v[:, :, 128:256].copy())
        others = [0, 1, 3]
        np.testing.assert_allclose(o[:, others], right[:, others], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(lse[:, others], right_lse[:, others], rtol=1e-3, atol=1e-3)
        self.assertTrue((o[:, 2] == 0).all() and np.isneginf(lse[:, 2]).all())
        dq, dk, dv = flashladder.backward("block_map", q, k, v, o, lse, do=o, block_map=block_map)
        self.assertTrue((dk[:, :, :128] == 0).all() and (dv[:, :, 256:] == 0).all() and (dq[:, 2] == 0).all())
        self.assertTrue((abs(dk[:, :, 128:256]).max(-1) > 0).all())
        o_strided, _ = flashladder.forward("block_map", q, k, v, block_map=block_map.swapaxes(2, 3).copy().swapaxes(2, 3))
        np.testing.assert_array_equal(o_strided, o)

    def test_errors(self):
        whole = np.ones((2, 4, 2, 3), np.int32)
        for message, options in (
                (r"the block map is \[2, 3, 2, 3\] and must be \[2, 4, 2, 3\], of blocks of 128 rows and keys; its first two",
                 {"block_map": whole[:, :3]}),
                (r"the block map is \[2, 4, 3, 5\] and must be", {"block_map": np.ones((2, 4, 3, 5), np.int32)}),
                (r"block_map has shape \[2, 3\]: give \[batch, heads, blocks of rows, blocks of keys\]", {"block_map": whole[0, 0]}),
                (r"block_map has shape \[2, 4, 2, 0\]", {"block_map": whole[..., :0]})):
            with self.assertRaisesRegex(ValueError, message):
                flashladder.forward("block_map", *self.tensors, **options)
        for message, block_map in (("block_map is a list: give an array of int32", [[[[1]]]]),
                                   ("block_map is not an array of int32: convert it", whole.astype(bool))):
            with self.assertRaisesRegex(TypeError, message):
                flashladder.forward("block_map", *self.tensors, block_map=block_map)
        with self.assertRaisesRegex(ValueError, "72 sliding_window takes no block map"):
            flashladder.forward(72, *self.tensors, block_map=whole)
        cu_q, cu_k = np.array([0, 150], np.int32), np.array([0, 260], np.int32)
        with self.assertRaisesRegex(ValueError, "a block map and packed sequences do not go together"):
            flashladder.forward("together", *(x[:1] for x in self.tensors), block_map=whole[:1], cu_seqlens_q=cu_q,
                                cu_seqlens_k=cu_k)

    def test_it_is_counted(self):
        block_map = np.array([[[[1, 0, 1], [0, 0, 1]]]], np.int32)
        counted = flashladder.ledger(79, rows=150, keys=260, block_map=block_map)
        self.assertEqual(counted["counts"]["tiles"], 2 * 3)  # of 2 heads
        self.assertEqual(counted["counts"]["global.block_map.read_bytes"], 4 * 2 * 2 * 4 * 3)  # of 2 heads, 2 row tiles, 4 warps
        self.assertEqual(counted["problem"]["block_map"], (1, 1))


class BiasTest(unittest.TestCase):
    """A bias, on arrays of NumPy."""

    def setUp(self):
        self.q, self.k, self.v = (x.astype("float16") for x in inputs(2, 4, 2, 40, 50, 64))

    def test_a_bias_that_hides_is_a_mask(self):
        rows, keys = np.arange(40)[:, None], np.arange(50)
        bias = np.where(keys <= rows + 10, 0, -np.inf).astype("float32")[None, None]
        o, lse = flashladder.forward("bias", self.q, self.k, self.v, bias=bias)
        right = flashladder.forward(29, self.q, self.k, self.v, causal=True)
        np.testing.assert_allclose(o, right[0], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(lse, right[1], rtol=1e-3, atol=1e-3)
        dq, dk, dv, dbias = flashladder.backward("bias", self.q, self.k, self.v, o, lse, do=o, bias=bias)
        for one, other in zip((dq, dk, dv), flashladder.backward(38, self.q, self.k, self.v, o, lse, do=o, causal=True)):
            np.testing.assert_allclose(one, other, rtol=5e-3, atol=5e-3)
        self.assertEqual((dbias.shape, dbias.dtype), ((1, 1, 40, 50), np.float32))
        self.assertEqual(float(abs(np.where(bias == 0, 0, dbias)).max()), 0)  # nothing where a key is hidden
        np.testing.assert_allclose(dbias.sum(-1), 0, atol=0.05)  # a number for a whole row changes nothing

    def test_shared_gradients_are_sums(self):
        bias = np.random.default_rng(4).standard_normal((1, 4, 1, 50)).astype("float32")
        options = {"softcap": 3.0, "sinks": np.zeros(4, np.float32)}
        o, lse = flashladder.forward("together", self.q, self.k, self.v, bias=bias, **options)
        *_, shared, dsinks = flashladder.backward("together", self.q, self.k, self.v, o, lse, do=o, bias=bias, **options)
        whole = np.broadcast_to(bias, (2, 4, 40, 50)).copy()
        *_, each, _ = flashladder.backward("together", self.q, self.k, self.v, o, lse, do=o, bias=whole, **options)
        np.testing.assert_allclose(shared, each.sum((0, 2), keepdims=True), rtol=1e-4, atol=1e-4)
        self.assertEqual((shared.shape, dsinks.shape), ((1, 4, 1, 50), (4,)))

    def test_errors(self):
        tensors = self.q, self.k, self.v
        full = np.zeros((2, 4, 40, 50), np.float32)
        for message, options in (
                (r"the bias is \[3, 4, 40, 50\] and the scores are \[2, 4, 40, 50\]: each of its sizes must be the same, or 1",
                 {"bias": np.zeros((3, 4, 40, 50), np.float32)}),
                (r"bias has shape \[2, 4, 40, 49\]: it must have \[2, 4, 40, 50\]", {"bias": full[..., :49].copy()}),
                (r"bias has shape \[40, 50\]: give \[batch, heads, rows, keys\]", {"bias": full[0, 0]}),
                ("bias is not contiguous: copy it", {"bias": full.swapaxes(2, 3).copy().swapaxes(2, 3)})):
            with self.assertRaisesRegex(ValueError, message):
                flashladder.forward("bias", *tensors, **options)
        with self.assertRaisesRegex(TypeError, "bias is not an array of float32: convert it"):
            flashladder.forward("bias", *tensors, bias=full.astype("float16"))
        with self.assertRaisesRegex(ValueError, "72 sliding_window takes no bias"):
            flashladder.forward(72, *tensors, bias=full)
        cu = np.array([0, 40], np.int32)
        with self.assertRaisesRegex(ValueError, "a bias and packed sequences do not go together"):
            flashladder.forward("together", *(x[:1] for x in tensors), bias=full[:1], cu_seqlens_q=cu,
                                cu_seqlens_k=np.array([0, 50], np.int32))

    def test_it_is_counted(self):
        counts = flashladder.ledger(76, rows=40, keys=50, bias=(1, 2, 40))["counts"]
        self.assertEqual(counts["global.bias.read_bytes"], 4 * 2 * 40 * 50)


class BackwardTest(unittest.TestCase):
    def arguments(self, q, k, v, **options):
        """q, k, v, o, lse and do of a problem: O and L from the definition, so that no forward pass is needed."""
        o, lse = reference(q, k, v, **options)
        do = np.random.default_rng(7).standard_normal(q.shape, np.float32).astype(q.dtype)
        return q, k, v, rounded(o, q), lse.astype(np.float32), do

    def check(self, stage, q, k, v, **options):
        arguments = self.arguments(q, k, v, **options)
        saved = flashladder.saved(stage, q, k, **options)
        self.assertEqual(tuple(saved), stage.saved)
        found = flashladder.backward(stage, *arguments, saved=saved, **options)
        right = reference_backward(q, k, v, arguments[-1], **options)
        atol = TOLERANCE[q.dtype.name]
        for name, gradient, wanted, of in zip(("dq", "dk", "dv"), found, right, (q, k, v)):
            self.assertEqual((gradient.shape, gradient.dtype), (of.shape, of.dtype), name)
            np.testing.assert_allclose(gradient.astype("f8"), wanted, rtol=atol, atol=atol, err_msg=name)

    def test_every_stage_is_right(self):
        self.assertTrue(BACKWARD)
        for stage in BACKWARD:
            for dtype in stage.dtypes:
                if dtype == "bfloat16":
                    continue  # below
                with self.subTest(stage=str(stage), dtype=dtype):
                    self.check(stage, *inputs(2, 4, 2, 45, 70, dtype=dtype))
                    self.check(stage, *inputs(1, 2, 1, 70, 45, 64, dtype=dtype), causal=True)  # rows without a key
                    self.check(stage, *inputs(dtype=dtype), scale=0.3)

    def test_bfloat16(self):
        try:
            import ml_dtypes
        except ImportError:
            self.skipTest("no ml_dtypes, NumPy's bfloat16")
        for stage in BACKWARD:
            if "bfloat16" in stage.dtypes:
                with self.subTest(stage=str(stage)):
                    self.check(stage, *inputs(2, 4, 2, 45, 70, dtype=ml_dtypes.bfloat16), causal=True)

    def test_after_the_forward_pass_of_another_stage(self):
        q, k, v = inputs(1, 4, 2, 45, 70)
        do = inputs(seed=3, heads=4, rows=45)[0]
        o, lse = flashladder.forward(2, q, k, v, causal=True)
        for gradient, right in zip(flashladder.backward("fa2_backward", q, k, v, o, lse, do, causal=True),
                                   reference_backward(q, k, v, do, causal=True)):
            np.testing.assert_allclose(gradient, right, rtol=2e-5, atol=2e-5)

    def test_arrays_are_read_where_they_lie(self):
        """NaN between the rows and around them would show, and so would a change."""
        for stage in (stage for stage in BACKWARD if "float32" in stage.dtypes):
            with self.subTest(stage=str(stage)):
                *tensors, lse, do = self.arguments(*inputs(2, 4, 2), causal=True)
                views, whole = amid_nan((*tensors, do), 0, 2, 1)
                q, k, v, o, do = views
                found = flashladder.backward(stage, q, k, v, o, lse, do, causal=True,
                                             saved=flashladder.saved(stage, q, k, causal=True))
                for gradient, right in zip(found, reference_backward(*tensors[:3], do, causal=True)):
                    np.testing.assert_allclose(gradient, right, rtol=2e-5, atol=2e-5)
                for memory, before in whole:
                    np.testing.assert_array_equal(memory, before)

    def test_what_is_saved(self):
        """What a stage says it needs is what it is given, and it is right."""
        by_number = {stage.number: stage for stage in BACKWARD}
        self.assertEqual((by_number[10].saved, by_number[30].saved, by_number[31].saved), (("p",), ("m", "l"), ()))
        q, k, v = inputs(1, 4, 2, 70, 45)
        _, lse = reference(q, k, v, causal=True)
        saved = flashladder.saved(30, q, k, causal=True)
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(saved["m"] + np.log(saved["l"]), lse, rtol=2e-5, atol=2e-5)
        p = flashladder.saved(10, q, k, causal=True)["p"]
        self.assertEqual((p.shape, p.dtype), ((1, 4, 70, 45), np.float32))
        np.testing.assert_allclose(p.sum(-1), np.isfinite(lse), atol=1e-5)
        self.assertEqual(flashladder.saved(31, q, k), {})

    @with_torch
    def test_torch(self):
        arguments = self.arguments(*inputs(2, 4, 2, 45, 70), causal=True)
        tensors = [torch.from_numpy(x) for x in arguments]
        for stage in (stage for stage in BACKWARD if "float32" in stage.dtypes):
            saved = flashladder.saved(stage, *arguments[:2], causal=True)
            kept = flashladder.saved(stage, *tensors[:2], causal=True)
            right = flashladder.backward(stage, *arguments, causal=True, saved=saved)
            for name, x in kept.items():
                self.assertIsInstance(x, torch.Tensor)
                np.testing.assert_allclose(x, saved[name], rtol=1e-5, atol=1e-5)
            for gradient, wanted in zip(flashladder.backward(stage, *tensors, causal=True, saved=kept), right):
                self.assertIsInstance(gradient, torch.Tensor)
                np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-5)

    def fails(self, error, message, stage, *arguments, **options):
        with self.assertRaisesRegex(error, message):
            flashladder.backward(stage, *arguments, **options)

    def test_errors(self):
        arguments = q, k, v, o, lse, do = self.arguments(*inputs())
        self.fails(ValueError, "stage 02 tiled_cpu has no backward pass: those that have one are 00 naive_cpu, 10", 2,
                   *arguments)
        with self.assertRaisesRegex(ValueError, "stage 30 fa1_backward has no forward pass: those that have one are 00"):
            flashladder.forward(30, q, k, v)
        with self.assertRaisesRegex(ValueError, "has no forward pass"):
            flashladder.ledger(30)
        self.fails(ValueError, r"needs m and l .* m and l are not in saved: give saved=flashladder.saved\(30", 30,
                   *arguments)
        self.fails(ValueError, "needs m and l .* and l is not in saved", 30, *arguments, saved={"m": lse})
        self.fails(ValueError, "needs p .* p is not in saved", 10, *arguments, saved={"m": lse})
        self.fails(TypeError, "saved is 'ml': give a dict", 31, *arguments, saved="ml")
        self.fails(ValueError, "saved has 'm', and .* takes nothing beside o and lse", 31, *arguments, saved={"m": lse})
        self.fails(ValueError, r"m has shape \[1, 2, 36\]: it must have \[1, 2, 37\]", 30, *arguments,
                   saved={"m": lse[..., 1:].copy(), "l": lse})
        self.fails(ValueError, r"o has shape \[1, 2, 36, 32\]: it must have that of q, \[1, 2, 37, 32\]", 31, q, k, v,
                   o[:, :, 1:], lse, do)
        self.fails(ValueError, r"lse has shape \[1, 2, 36\]", 31, q, k, v, o, lse[..., 1:], do)
        self.fails(ValueError, "lse is not contiguous", 31, q, k, v, o, lse[..., ::-1], do)
        self.fails(TypeError, "lse is not an array of float32", 31, q, k, v, o, lse.astype("f8"), do)
        self.fails(TypeError, "do is float64, and stage 31 .* takes float32", 31, q, k, v, o, lse, do.astype("f8"))
        self.fails(ValueError, "last dimension of do is not contiguous", 31, q, k, v, o, lse,
                   np.broadcast_to(np.float32(1), do.shape))
        self.fails(TypeError, "do is a NoneType", 31, q, k, v, o, lse, None)
        self.fails(ValueError, "it takes 32, 64 and 128", 31, *self.arguments(*inputs(d=48)))
        with self.assertRaisesRegex(ValueError, "heads a multiple of kv_heads"):
            flashladder.saved(30, *inputs(1, 3, 2)[:2])

    def test_a_causal_or_a_scale_that_is_none(self):
        q, k, *_ = arguments = self.arguments(*inputs(), causal=True)
        self.fails(TypeError, "causal is 0.125: give True or False; .* scale, the next argument", 31, *arguments, 0.125)
        self.fails(TypeError, "scale is 'x': give a finite number", 31, *arguments, scale="x")
        for stage in (30, 31):  # 31 needs nothing saved
            with self.assertRaisesRegex(TypeError, "causal is 0.125: give True or False"):
                flashladder.saved(stage, q, k, 0.125)
            with self.assertRaisesRegex(TypeError, "scale is 'x': give"):
                flashladder.saved(stage, q, k, scale="x")
        found = flashladder.backward(30, *arguments, np.True_, saved=flashladder.saved(30, q, k, np.True_))
        for gradient, right in zip(found, reference_backward(*arguments[:3], arguments[-1], causal=True)):
            np.testing.assert_allclose(gradient, right, rtol=2e-5, atol=2e-5)

    @with_torch
    def test_a_graph_is_not_lost_unnoticed(self):
        tensors = [torch.from_numpy(x) for x in self.arguments(*inputs())]
        tensors[1].requires_grad_()
        self.fails(ValueError, "k requires a gradient.*flashladder.torch.attention", 31, *tensors)
        with self.assertRaisesRegex(ValueError, "k requires a gradient"):
            flashladder.saved(30, *tensors[:2])
        with torch.no_grad():
            self.assertFalse(flashladder.backward(31, *tensors)[0].requires_grad)


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

    def test_torch_is_optional(self):
        script = ("import sys; sys.modules['torch'] = None; import flashladder\n"
                  "try: import flashladder.torch\nexcept ImportError: print('only this part')")
        result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        self.assertEqual(result.stdout, "only this part\n", result.stderr)

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
    def test_torch_strides_that_mean_nothing(self):
        """PyTorch hands a batch of one over with a stride of one number, and 16-bit rows begin at multiples of 16 bytes."""
        q, k, v = (torch.from_numpy(x).bfloat16() for x in inputs(1, 2))
        one = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
        for stage in STAGES:
            if "bfloat16" in stage.dtypes:
                self.assertTrue(torch.equal(flashladder.forward(stage, *one)[0], flashladder.forward(stage, q, k, v)[0]))

    @with_torch
    def test_torch_o_lies_as_q_does(self):
        """So that a model, which joins the heads, copies nothing."""
        batch, heads, rows, d = 2, 3, 20, 32
        generator = torch.Generator().manual_seed(1)
        for stage in STAGES:
            dtype = getattr(torch, stage.dtypes[-1])
            qkv = torch.randn(batch, rows, 3 * heads * d, generator=generator).to(dtype)
            q, k, v = qkv.unflatten(2, (3, heads, d)).permute(2, 0, 3, 1, 4)
            o, lse = flashladder.forward(stage, q, k, v)
            self.assertTrue(o.transpose(1, 2).is_contiguous() and not o._is_view())
            same = flashladder.forward(stage, *(x.contiguous() for x in (q, k, v)))
            self.assertTrue(torch.equal(o, same[0]) and torch.equal(lse, same[1]) and same[0].is_contiguous())

    @with_torch
    def test_torch_o_where_q_overlaps_itself(self):
        """Another dimension than the last has a stride of 1, or of 0: O's last one is contiguous nevertheless."""
        generator = torch.Generator().manual_seed(1)
        numbers = torch.randn(40, generator=generator)
        for q in (numbers.unfold(0, 32, 1)[None, None],  # [1, 1, 9, 32], each row a number further on
                  numbers[:32].view(1, 1, 32, 1).transpose(2, 3).expand(1, 1, 5, 32),
                  numbers[None, :32, None].transpose(1, 2).unsqueeze(2).expand(1, 1, 5, 32),
                  torch.randn(1, 1, 9, 32, generator=generator).expand(2, 3, 9, 32)):
            for stage in STAGES:
                if "float32" not in stage.dtypes:
                    continue
                o, lse = flashladder.forward(stage, q, q, q, causal=True)
                same = flashladder.forward(stage, *3 * [q.contiguous()], causal=True)
                self.assertTrue(torch.equal(o, same[0]) and torch.equal(lse, same[1]), (stage, q.stride()))
                self.assertTrue(o.is_contiguous())
            gradients = []
            for x in (q.detach(), q.contiguous()):
                o = flashladder.torch.attention(x.requires_grad_(), q, q, stage=(2, 30))
                gradients += torch.autograd.grad(o.square().sum(), x)
            self.assertTrue(torch.equal(*gradients))

    @with_torch
    def test_torch_gradients(self):
        q, k, v = map(torch.from_numpy, inputs())
        q.requires_grad_()
        with self.assertRaisesRegex(ValueError, "q requires a gradient.*flashladder.torch.attention.*detach"):
            flashladder.forward(2, q, k, v)
        with torch.no_grad():
            self.assertFalse(flashladder.forward(2, q, k, v)[0].requires_grad)

    def test_any_library(self):
        found = []
        for name in ("jax.numpy", "array_api_strict"):
            try:
                found.append(__import__(name, fromlist=["x"]))
            except ImportError:
                pass
        if not found:
            self.skipTest("neither JAX nor array_api_strict is installed")
        for library in found:
            q, k, v = map(library.asarray, inputs())
            o, lse = flashladder.forward(14, q, k, v)
            self.assertIs(type(o), type(q))
            self.assertIs(type(lse), type(q))
            np.testing.assert_array_equal(np.asarray(o), flashladder.forward(14, *inputs())[0])

    def test_on_a_gpu_only_libraries_that_can_allocate_there(self):
        class Array:
            shape, dtype = (1, 2, 37, 32), "float32"

            def __dlpack_device__(self):
                return 2, 0  # the first GPU

        for call in (lambda x: flashladder.forward(14, x, x, x), lambda x: flashladder.saved(30, x, x),
                     lambda x: flashladder.backward(31, x, x, x, x, x, x)):
            with self.assertRaisesRegex(TypeError, "Array on a GPU, .* PyTorch and CuPy are taken: hand it over with"):
                call(Array())

    def test_importing_needs_nothing(self):
        script = ("import sys; sys.modules['numpy'] = sys.modules['torch'] = None; import flashladder as f; "
                  "assert f.stages() and f.ledger(14, rows=32)['counts']['blocks'] == 2 and f.__version__")
        subprocess.run([sys.executable, "-c", script], check=True)


def math_attention(q, k, v, causal=False, scale=None):
    """The definition by PyTorch's operations; a row that sees no key gives 0."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q.shape[-1] ** -0.5 if scale is None else scale) * q @ k.transpose(-1, -2)
    if causal:
        rows, keys = scores.shape[-2:]
        visible = torch.ones(rows, keys, dtype=torch.bool, device=q.device).tril(keys - rows)
        scores = scores.masked_fill(~visible, float("-inf"))
        return torch.softmax(scores, -1).nan_to_num(0) @ v
    return torch.softmax(scores, -1) @ v


@with_torch
class TorchAttentionTest(unittest.TestCase):
    """flashladder.torch.attention in PyTorch's graph, against the definition in fp64."""

    def check(self, q, k, v, stage=None, device="cpu", **options):
        atol = TOLERANCE[str(q.dtype).removeprefix("torch.")]
        mine = [x.detach().to(device).requires_grad_() for x in (q, k, v)]
        right = [x.detach().double().requires_grad_() for x in (q, k, v)]
        do = torch.from_numpy(np.random.default_rng(9).standard_normal(tuple(q.shape), np.float32)).to(q.dtype)
        o = flashladder.torch.attention(*mine, stage=stage, **options)
        wanted = math_attention(*right, **options)
        self.assertEqual((o.dtype, o.device.type, o.shape), (q.dtype, device, q.shape))
        torch.testing.assert_close(o.cpu().double(), wanted, rtol=atol, atol=atol)
        (o.float() * do.to(device).float()).sum().backward()
        wanted.backward(do.double())
        for name, x, other in zip("qkv", mine, right):
            self.assertEqual((x.grad.dtype, x.grad.shape), (x.dtype, x.shape))
            torch.testing.assert_close(x.grad.cpu().double(), other.grad.nan_to_num(0), rtol=atol, atol=atol,
                                       msg=lambda text, name=name: f"gradient of {name}: {text}")

    def tensors(self, *sizes, dtype="float32", **options):
        return [torch.from_numpy(x).to(getattr(torch, dtype)) for x in inputs(*sizes, **options)]

    def test_finite_differences(self):
        q, k, v = (x.requires_grad_() for x in self.tensors(1, 2, 1, 5, 7, d=32))
        for stage in ((2, 0), (2, 31), (10, 30)):
            with self.subTest(stage=stage), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it is not in fp64
                self.assertTrue(torch.autograd.gradcheck(
                    lambda *x: flashladder.torch.attention(*x, causal=True, stage=stage), (q, k, v),  # noqa: B023
                    eps=1e-2, atol=5e-3, rtol=5e-2, nondet_tol=1e-5))

    def test_gradients_of_the_logsumexp(self):
        """A loss of O and L, and of L alone, in both dtypes, with keys that heads share, with and without masks."""
        def right(q, k, v, causal, window):
            k, v = (x.repeat_interleave(2, 1) for x in (k, v))
            i, j = torch.arange(40)[:, None] + 20, torch.arange(60)
            seen = (j <= i) & (j >= i - window) if causal else torch.ones(40, 60, dtype=torch.bool)
            scores = (q @ k.mT / 8).masked_fill(~seen, -torch.inf)
            return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)

        for dtype, stage, causal, window in (("float32", (2, 0), False, 99), ("float32", (2, 0), True, 99), ("bfloat16", None, False, 99),
                                             ("float16", None, True, 99), ("float16", None, True, 16)):
            tensors = self.tensors(2, 4, 2, 40, 60, 64, dtype=dtype)
            weights = [torch.from_numpy(np.random.default_rng(7).standard_normal(shape)) for shape in ((2, 4, 40, 64), (2, 4, 40))]
            options = {"window_size": (window, 0)} if window < 60 else {}

            def mine(q, k, v):
                return flashladder.torch.attention(q, k, v, causal=causal, stage=stage, return_lse=True, **options)  # noqa: B023

            for of_o in (1, 0):
                found = []
                for given, attend in ((tensors, mine), ([x.double() for x in tensors], lambda *x: right(*x, causal, window))):  # noqa: B023
                    given = [x.requires_grad_() for x in given]
                    o, lse = attend(*given)
                    loss = 3 * (lse.double() * weights[1]).sum()
                    if of_o:
                        loss = loss + (o.double() * weights[0]).sum()
                    found.append(torch.autograd.grad(loss, given[:3 if of_o else 2]))
                for name, one, other in zip("qkv", *found):
                    with self.subTest(dtype=dtype, causal=causal, window=window, of_o=of_o, name=name):
                        self.assertEqual(one.dtype, tensors[0].dtype)
                        self.assertLess(((one.double() - other).norm() / other.norm()).item(), TOLERANCE[dtype])
        q, k, v = (x.half().requires_grad_() for x in self.tensors(1, 2, 2, 40, 60, 64))
        bias = torch.zeros(1, 1, 40, 60, requires_grad=True)
        sinks = torch.zeros(2, requires_grad=True)
        for options in ({"softcap": 3.0}, {"bias": bias}, {"sinks": sinks}):
            self.assertFalse(flashladder.torch.attention(q, k, v, return_lse=True, **options)[1].requires_grad)
        self.assertTrue(flashladder.torch.attention(q, k, v, bias=bias.detach(), return_lse=True)[1].requires_grad)
        # One head's infinite gradient is no other's; of rows that see no key L is -inf, and gets no gradient.
        o, lse = flashladder.torch.attention(q, k, v, return_lse=True)
        dk = torch.autograd.grad(lse, k, torch.tensor([torch.inf, 1.0])[None, :, None].expand(1, 2, 40))[0]
        self.assertTrue(dk[:, 1].isfinite().all())
        o, lse = flashladder.torch.attention(k, q, q, causal=True, return_lse=True)
        self.assertTrue(torch.isneginf(lse[..., :20]).all())
        for gradient in torch.autograd.grad(lse.clamp(min=-9).sum(), (q, k)):
            self.assertTrue(gradient.isfinite().all())

    def test_in_what_is_compiled(self):
        """Both passes stay whole in one graph, plain and with what has a gradient, too."""
        q, k, v = (x.half().requires_grad_() for x in self.tensors(1, 2, 2, 40, 40, 64))
        bias, sinks = torch.randn(1, 2, 40, 40, requires_grad=True), torch.zeros(2, requires_grad=True)
        cu = torch.tensor([0, 15, 40], dtype=torch.int32)
        x = self.tensors()[0].requires_grad_()
        for inputs_, options in (((x, x, x), {"stage": (2, 0)}), ((q, k, v), {}), ((q, k, v), {"deterministic": True}),
                                 ((q, k, v, bias, sinks), {"softcap": 3.0, "window_size": (9, 0)}),
                                 ((q, k, v), {"cu_seqlens_q": cu, "cu_seqlens_k": cu})):
            def loss(q, k, v, bias=None, sinks=None):
                o, lse = flashladder.torch.attention(2 * q, k, v, causal=True, bias=bias, sinks=sinks, return_lse=True,
                                                     **options)  # noqa: B023
                return (o.float() * lse[..., None]).square().sum()

            right = torch.autograd.grad(loss(*inputs_), inputs_)
            for backend in ("eager", "aot_eager"):
                torch._dynamo.reset()
                compiled = torch.compile(loss, backend=backend, fullgraph=True)
                with self.subTest(backend=backend, options=[*options]):
                    for one, other in zip(torch.autograd.grad(compiled(*inputs_), inputs_), right):
                        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)

        compiled = torch.compile(flashladder.torch.attention, backend="aot_eager", fullgraph=True)
        o, _ = compiled(q, k, v, softcap=3.0, bias=bias, return_lse=True)  # L is there, and not used
        torch.autograd.grad(o.float().sum(), q)

    def test_dropout_is_drawn_anew_in_what_is_compiled(self):
        q, k, v = (x.half() for x in self.tensors(1, 2, 2, 40, 40, 64))
        compiled = torch.compile(lambda q: flashladder.torch.attention(q, k, v, dropout_p=0.5), backend="aot_eager", fullgraph=True)
        self.assertFalse(torch.equal(compiled(q), compiled(q)))

    def test_as_an_operator(self):
        q, k, v = (x.half().requires_grad_() for x in self.tensors(1, 2, 2, 40, 40, 64))

        class Model(torch.nn.Module):
            def forward(self, q, k, v):
                return flashladder.torch.attention(q, k, v, causal=True, window_size=(9, 0))

        exported = torch.export.export(Model(), tuple(x.detach() for x in (q, k, v)))
        self.assertTrue(torch.equal(exported.module()(q, k, v), Model()(q, k, v)))
        parts = torch.randn(1, 40, 3, 2, 72).half()[..., :64].unbind(2)  # whose rows lie apart
        odd = torch.randn(2 * 40 * 64 + 1).half()[1:].view(1, 2, 40, 64)  # and one that must be copied
        same = torch.randn(1, 1, 40, 64).half().expand(1, 2, 40, 64)
        for q_ in (q, parts[0].transpose(1, 2), odd, same):
            arguments = (q_.detach().requires_grad_(), k, v, *[None] * 7, True, None, [-1, -1], 0.0, 0, 0.0, [29, 39], True, None)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.library.opcheck(torch.ops.flashladder.attention.default, arguments)
        o, lse = flashladder.torch.attention(*(x.to("meta") for x in (q.transpose(1, 2).contiguous().transpose(1, 2), k, v)),
                                             return_lse=True)
        self.assertEqual((o.shape, o.stride(), lse.shape), (q.shape, (40 * 128, 64, 128, 1), (1, 2, 40)))

    def test_it_is_computed_again_where_checkpoints_ask(self):
        from torch.utils.checkpoint import checkpoint
        q, k, v = (x.half().requires_grad_() for x in self.tensors(1, 2, 2, 40, 40, 64))

        def loss(q, k, v):
            o, lse = flashladder.torch.attention(q, k, v, causal=True, dropout_p=0.25, deterministic=False, return_lse=True)
            return o.float().square().sum() + lse.square().sum()

        torch.manual_seed(2)
        right = torch.autograd.grad(loss(q, k, v), (q, k, v))
        torch.manual_seed(2)
        for one, other in zip(torch.autograd.grad(checkpoint(loss, q, k, v, use_reentrant=False), (q, k, v)), right):
            torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)

    def test_seeds_of_dropout(self):
        q, k, v = (x.half() for x in self.tensors(1, 2, 2, 40, 40, 64))
        for seed in (5, (1 << 64) - 3):
            right, _ = flashladder.forward("dropout", q, k, v, dropout_p=0.5, dropout_seed=seed)
            as_tensor = torch.tensor(seed - (1 << 64) if seed >> 63 else seed)
            for one in (seed, as_tensor):
                self.assertTrue(torch.equal(flashladder.torch.attention(q, k, v, dropout_p=0.5, dropout_seed=one), right))
            halves = as_tensor.reshape(1).view(torch.int32)  # which the kernels read
            for stage in ("dropout", "together", "hopper_policies"):
                o, lse = flashladder.forward(stage, q, k, v, dropout_p=0.5, dropout_seed=halves)
                torch.testing.assert_close(o, right, rtol=1e-2, atol=1e-2)
                self.assertFalse(torch.allclose(flashladder.forward(stage, q, k, v, dropout_p=0.5, dropout_seed=halves.flip(0))[0],
                                                right, rtol=1e-2, atol=1e-2))
            for stage in ("dropout", "together"):
                gradients, same = (flashladder.backward(stage, q, k, v, o, lse, q, dropout_p=0.5, dropout_seed=one)
                                   for one in (seed, halves))
                for one, other in zip(gradients, same):
                    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
            flashladder.forward("dropout", q, k, v, dropout_seed=halves)  # without dropout nobody reads it
        for wrong, error, message in ((halves[:1], ValueError, r"dropout_seed has shape \[1\]: it must have \[2\]"),
                                      (halves.long(), TypeError, "dropout_seed is not an array of int32"),
                                      (2.5, TypeError, "dropout_seed is 2.5: give a whole number")):
            with self.assertRaisesRegex(error, message):
                flashladder.forward("dropout", q, k, v, dropout_p=0.5, dropout_seed=wrong)
        with torch.device("meta"):  # where PyTorch puts what names no device
            self.assertTrue(torch.isfinite(flashladder.torch.attention(q, k, v, dropout_p=0.5)).all())
        with mock.patch.object(torch.cuda, "is_current_stream_capturing", return_value=True):
            drawn = flashladder.torch.drawn_seed(torch.device("cpu"))
            self.assertEqual(flashladder.torch._known_seed(drawn, q.device), flashladder.torch.number_of(drawn))
            self.assertEqual(flashladder.torch._known_seed(torch.tensor(7), torch.device("cuda")), 7)  # whose it is
            with self.assertRaisesRegex(RuntimeError, "draws the seed of dropout on the CPU, and a CUDA graph is captured here"):
                flashladder.torch._known_seed(drawn, torch.device("cuda"))
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode():  # which needs no GPU
            fake = torch.empty(1, 2, 40, 64, device="cuda", dtype=torch.float16)
            with mock.patch.object(torch.cuda, "is_initialized", return_value=False):
                self.assertEqual(flashladder.torch.attention(fake, fake, fake, dropout_p=0.5).shape, fake.shape)
        for wrong in (torch.tensor(5.7), torch.tensor([5, 6])):
            with self.assertRaisesRegex(ValueError, "dropout_seed is .*: give one number of int64 on the CPU"):
                flashladder.torch.attention(q, k, v, dropout_p=0.5, dropout_seed=wrong)

    def test_forward_mode_is_refused(self):
        q, k, v = (x.half() for x in self.tensors(1, 2, 2, 40, 40, 64))
        with self.assertRaisesRegex(NotImplementedError, "q has a tangent: attention has gradients, and no derivatives"):
            torch.func.jvp(lambda x: flashladder.torch.attention(x, k, v), (q,), (q,))

    def test_in_inference_mode_and_in_threads(self):
        q, k, v = (x.half() for x in self.tensors(1, 2, 2, 40, 40, 64))
        right = flashladder.torch.attention(q, k, v)
        found = []

        def run():
            with torch.inference_mode():
                found.append(flashladder.torch.attention(q, k, v))

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertTrue(len(found) == 4 and all(torch.equal(o, right) and o.is_inference() for o in found))

    def test_a_sparse_tensor_is_refused(self):
        q, k, v = self.tensors()
        with self.assertRaisesRegex(ValueError, r"k is laid out as torch.sparse_coo: give k.to_dense\(\)"):
            flashladder.torch.attention(q, k.to_sparse(), v)

    def test_a_scale_gets_no_gradient_in_silence(self):
        with self.assertRaisesRegex(ValueError, "scale requires a gradient, and gets none"):
            flashladder.torch.attention(*self.tensors(), scale=torch.tensor(0.5, requires_grad=True))

    def test_every_backward_pass(self):
        for stage in BACKWARD:
            for dtype in stage.dtypes:
                with self.subTest(stage=str(stage), dtype=dtype):
                    self.check(*self.tensors(2, 4, 2, 45, 70, dtype=dtype), stage=stage)
                    self.check(*self.tensors(1, 2, 1, 70, 45, 64, dtype=dtype), stage=stage, causal=True)

    def test_pairs_and_what_is_chosen(self):
        q, k, v = self.tensors(1, 4, 2, 45, 70)
        for pair in ((2, 31), (15, 30), ("naive_gpu", "naive_gpu"), (2, None), (None, 31)):
            self.check(q, k, v, stage=pair, causal=True, scale=0.2)
        self.check(q, k, v)

        def numbers(*arguments):
            return tuple(stage and stage.number for stage in flashladder.torch.stages_for(*arguments))

        highest = [max(stage.number for stage in stages if "float32" in stage.dtypes) for stages in (STAGES, BACKWARD)]
        self.assertEqual(numbers(q), tuple(highest))
        self.assertEqual(numbers(q, None, False), (highest[0], None))
        self.assertEqual(numbers(q, 10), (10, 10))
        self.assertEqual(numbers(q, 2), (2, highest[1]))
        self.assertEqual(numbers(q, 30), (highest[0], 30))
        self.assertEqual(numbers(q, (2, None)), (2, highest[1]))
        self.assertEqual(numbers(q[..., :19], None, False), (2, None))  # kernels do not take this head dimension

    def test_strides(self):
        """Projections leave [batch, rows, heads, d]; and dO may be one number that is repeated."""
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in self.tensors(2, 4, 2, 45, 70))
        self.check(q, k, v, causal=True)
        one = q.clone().requires_grad_()
        flashladder.torch.attention(one, k, v).sum().backward()
        other = q.double().requires_grad_()
        math_attention(other, k.double(), v.double()).sum().backward()
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=2e-5, atol=2e-5)

    def test_rows_that_do_not_lie_as_stages_take_them(self):
        """dO, contiguous, begins in the middle of 16 bytes, as torch.cat's gradient does; and so do q, k and v."""
        for dtype, stage in (("bfloat16", (29, 38)), ("float32", (2, 31))):
            q, k, v = (x.requires_grad_() for x in self.tensors(dtype=dtype))
            do = self.tensors(seed=5, dtype=dtype)[0]
            right = torch.autograd.grad(flashladder.torch.attention(q, k, v, stage=stage), (q, k, v), do)
            three = do.new_ones(3)
            joined = torch.cat([three, flashladder.torch.attention(q, k, v, stage=stage).flatten()])
            weights = torch.cat([three, do.flatten()])
            for gradient, wanted in zip(torch.autograd.grad(joined, (q, k, v), weights), right):
                torch.testing.assert_close(gradient, wanted)
            odd = [torch.cat([three, x.detach().flatten()])[3:].view(x.shape).requires_grad_() for x in (q, k, v)]
            self.assertTrue(all(x.is_contiguous() and x.data_ptr() % 16 for x in odd))
            o = flashladder.torch.attention(*odd, stage=stage)
            for gradient, wanted in zip(torch.autograd.grad(o, odd, do), right):
                torch.testing.assert_close(gradient, wanted)
            apart = q.detach().transpose(2, 3).contiguous().transpose(2, 3)  # its last dimension is not contiguous
            self.assertTrue(torch.equal(flashladder.torch.attention(apart, k, v, stage=stage), o))

    def test_autocast(self):
        """q, k and v are cast as PyTorch's own attention casts them; what is saved is computed in fp32 all the same."""
        tensors = [x.requires_grad_() for x in self.tensors(1, 4, 2, 45, 70)]
        low = [x.detach().bfloat16().requires_grad_() for x in tensors]
        with torch.autocast("cpu", torch.bfloat16):
            o = flashladder.torch.attention(*tensors, causal=True, stage=(29, 38))
            self.assertEqual(torch.nn.functional.scaled_dot_product_attention(*tensors, enable_gqa=True).dtype, o.dtype)
            with self.assertRaisesRegex(ValueError, "float64"):
                flashladder.torch.attention(*(x.double() for x in tensors))
        other = flashladder.torch.attention(*low, causal=True, stage=(29, 38))
        self.assertTrue(torch.equal(o, other))
        for gradient, wanted in zip(torch.autograd.grad(o.float().sum(), tensors),
                                    torch.autograd.grad(other.float().sum(), low)):
            self.assertEqual(gradient.dtype, torch.float32)
            torch.testing.assert_close(gradient, wanted.float(), rtol=1e-2, atol=1e-2)  # 38 adds in no fixed order
        q, k, _ = (x.detach() for x in tensors)
        for stage in (10, 30):
            right = flashladder.saved(stage, q, k, causal=True)
            with torch.autocast("cpu", torch.bfloat16):
                for name, x in flashladder.saved(stage, q, k, causal=True).items():
                    self.assertTrue(torch.equal(x, right[name]), name)

    def test_on_the_cpu_without_the_emulator(self):
        q = self.tensors()[0]
        self.assertEqual([stage.kernels for stage in flashladder.torch.stages_for(q, (2, 0))], [False, False])
        self.check(*self.tensors(1, 4, 2, 45, 70), stage=(2, 0), causal=True)

    def test_it_trains(self):
        """Steps of gradient descent on q, k and v are those of the definition."""
        mine = [x.requires_grad_() for x in self.tensors()]
        right = [x.detach().double().requires_grad_() for x in mine]
        goal = torch.ones_like(mine[0])
        losses = []
        for _ in range(5):
            for tensors, attention in ((mine, flashladder.torch.attention), (right, math_attention)):
                loss = (attention(*tensors, causal=True) - goal).square().mean()
                losses.append(loss.item())
                for x, gradient in zip(tensors, torch.autograd.grad(loss, tensors)):
                    x.data -= 300 * gradient
        np.testing.assert_allclose(losses[::2], losses[1::2], rtol=1e-4)
        self.assertLess(losses[-1], 0.7 * losses[0])

    def test_without_gradients(self):
        q, k, v = self.tensors(dtype="bfloat16")
        self.assertFalse(flashladder.torch.attention(q, k, v).requires_grad)
        x = self.tensors()[0].requires_grad_()
        with torch.no_grad():
            self.assertFalse(flashladder.torch.attention(x, k.float(), v.float()).requires_grad)

    def test_errors(self):
        q, k, v = (x.requires_grad_() for x in self.tensors())
        for error, message, options in (
                (ValueError, "stage 02 tiled_cpu has no backward pass", {"stage": (2, 2)}),
                (ValueError, "stage 31 fa2_backward has no forward pass", {"stage": (31, 31)}),
                (ValueError, "give one stage, or a pair", {"stage": (2, 31, 31)}),
                (ValueError, "stage 99 does not exist", {"stage": 99}),
                (ValueError, "scale is 0", {"scale": 0})):
            with self.assertRaisesRegex(error, message):
                flashladder.torch.attention(q, k, v, **options)
        for message, options in (("causal is 0.125: give True or False; .* the next argument", {"causal": 0.125}),
                                 ("causal is a Tensor: give True or False", {"causal": torch.ones(37, 37)}),
                                 ("scale is 'x': give a finite number", {"scale": "x"})):
            with self.assertRaisesRegex(TypeError, message):
                flashladder.torch.attention(q, k, v, **options)
        for message, x, stage in (
                ("stage 31 fa2_backward does not take bfloat16: it takes float32", q.bfloat16(), (None, 31)),
                ("stage 29 tuned does not take float32: it takes float16 and bfloat16", q, 29),
                ("stage 31 fa2_backward does not take head dimension 48: it takes 32, 64, 128",
                 torch.zeros(1, 1, 4, 48), (2, 31))):
            with self.assertRaisesRegex(ValueError, message):
                flashladder.torch.stages_for(x, stage)
        with self.assertRaisesRegex(TypeError, "q is a numpy.ndarray: give tensors of PyTorch"):
            flashladder.torch.attention(*inputs())
        with self.assertRaisesRegex(TypeError, "k is a NoneType: give"):
            flashladder.torch.attention(q, None, v)
        for name in ("bias", "sinks", "alibi_slopes", "cu_seqlens_q", "cu_seqlens_k", "block_map"):
            with self.assertRaisesRegex(TypeError, f"{name} is a list: give tensors of PyTorch"):
                flashladder.torch.attention(q, k, v, **{name: [1]})
        with self.assertRaisesRegex(TypeError, "deterministic is 'x': give True, False or None"):
            flashladder.torch.attention(q, k, v, deterministic="x")
        with self.assertRaisesRegex(ValueError, "no stage of this build has a forward pass for float64"):
            flashladder.torch.attention(q.double(), k.double(), v.double())
        odd = torch.zeros(1, 1, 4, 20, dtype=torch.bfloat16, requires_grad=True)
        with self.assertRaisesRegex(ValueError, "forward pass for bfloat16 and head dimension 20 on the CPU"):
            flashladder.torch.attention(odd, odd, odd)
        o = flashladder.torch.attention(q, k, v)
        gradient, = torch.autograd.grad(o, q, torch.ones_like(o, requires_grad=True), create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "the gradients of attention have no gradients of their own"):
            gradient.sum().backward()

    @with_gpu
    def test_on_a_gpu(self):
        for stage in BACKWARD_KERNELS:
            for dtype in stage.dtypes:
                with self.subTest(stage=str(stage), dtype=dtype):
                    skip_unless_here(self, stage)
                    self.check(*self.tensors(2, 4, 2, 45, 70, dtype=dtype), stage=stage, device="cuda", causal=True)


def variant_attention(q, k, v, causal=False, window_size=(-1, -1), softcap=0.0, prefix=0, alibi_slopes=None, bias=None, sinks=None):
    """The definition with variants, in the dtype of q; one query head for each key/value head."""
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    s = s if bias is None else s + bias
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    rows, keys = s.shape[-2:]
    ahead = torch.arange(rows)[:, None] + keys - rows - torch.arange(keys)
    if alibi_slopes is not None:
        s = s - alibi_slopes[:, None, None] * ahead.abs()
    left, right = window_size[0], 0 if causal else window_size[1]
    hidden = (ahead > left if left >= 0 else ahead > keys) | (-ahead > right if right >= 0 else -ahead > keys)
    s = s.masked_fill(hidden & (torch.arange(keys) >= prefix), -torch.inf)
    if sinks is None:
        return torch.softmax(s, -1) @ v
    with_sink = torch.cat([s, sinks[:, None, None].expand(*s.shape[:-1], 1)], -1)
    return torch.softmax(with_sink, -1)[..., :-1] @ v


@with_torch
class FlashAttnTest(unittest.TestCase):
    """flashladder.flash_attn, by the definition in fp64. Tensors are [batch, rows, heads, d]."""

    def setUp(self):
        import flashladder.flash_attn
        self.module = flashladder.flash_attn
        self.device = "cuda" if torch.cuda.is_available() and "cuda" in KERNELS[0].backends else "cpu"

    def tensors(self, batch=2, rows=40, keys=50, heads=4, kv_heads=2, d=64, dtype="float16"):
        torch.manual_seed(batch + rows + d)
        return [torch.randn(batch, n, h, d).to(self.device, getattr(torch, dtype)).requires_grad_()
                for n, h in ((rows, heads), (keys, kv_heads), (keys, kv_heads))]

    def right(self, q, k, v, softmax_scale=None, slopes=None, **options):
        """O [batch, rows, heads, d] in fp64, of variables that this makes, and these."""
        exact = [x.detach().cpu().double().requires_grad_() for x in (q, k, v)]
        q, k, v = (x.transpose(1, 2) for x in exact)
        if softmax_scale is not None:
            q = q * softmax_scale * q.shape[-1] ** 0.5
        o = variant_attention(q, *(x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v)),
                              alibi_slopes=None if slopes is None else slopes.cpu().double(), **options)
        return o.transpose(1, 2), exact

    def check(self, o, tensors, right, tolerance=2e-2):
        """tensors: those of which o was made; right: as right() returns it."""
        wanted, exact = right
        torch.testing.assert_close(o.detach().cpu().double(), wanted.detach(), rtol=tolerance, atol=tolerance)
        do = torch.linspace(-1, 1, o.numel()).view(o.shape)
        gradients = torch.autograd.grad(o, tensors, do.to(self.device, o.dtype))
        for gradient, other in zip(gradients, torch.autograd.grad(wanted, exact, do.to(o.dtype).double())):
            torch.testing.assert_close(gradient.cpu().double(), other, rtol=tolerance, atol=tolerance)

    def test_the_arguments_are_those_of_flash_attn(self):
        options = {"dropout_p": 0.0, "softmax_scale": None, "causal": False, "window_size": (-1, -1), "softcap": 0.0,
                   "alibi_slopes": None, "deterministic": False, "return_attn_probs": False}
        lengths = ["cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"]
        for name, first in (("flash_attn_func", ["q", "k", "v"]), ("flash_attn_kvpacked_func", ["q", "kv"]),
                            ("flash_attn_qkvpacked_func", ["qkv"]), ("flash_attn_varlen_func", ["q", "k", "v", *lengths]),
                            ("flash_attn_varlen_kvpacked_func", ["q", "kv", *lengths]),
                            ("flash_attn_varlen_qkvpacked_func", ["qkv", "cu_seqlens", "max_seqlen"])):
            parameters = inspect.signature(getattr(self.module, name)).parameters
            paged = ["block_table"] * (name == "flash_attn_varlen_func")
            self.assertEqual(list(parameters), [*first, *options, *paged])
            self.assertEqual({key: parameters[key].default for key in options}, options)

    def test_plain_and_variants(self):
        slopes = torch.tensor([0.5, 0.25, 0.1, 0.05], device=self.device)
        for options in ({}, {"causal": True}, {"causal": True, "window_size": (9, 0)}, {"window_size": (9, 3), "softcap": 3.0},
                        {"softcap": 2.0, "causal": True}, {"softmax_scale": 0.3}):
            for d in (64, 60, 19, 128):
                with self.subTest(d=d, **options):
                    tensors = self.tensors(d=d)
                    self.check(self.module.flash_attn_func(*tensors, **options), tensors, self.right(*tensors, **options))
        tensors = self.tensors()
        self.check(self.module.flash_attn_func(*tensors, causal=True, alibi_slopes=slopes), tensors,
                   self.right(*tensors, causal=True, slopes=slopes))
        tensors = self.tensors(d=200, rows=20, keys=20)
        self.check(self.module.flash_attn_func(*tensors), tensors, self.right(*tensors))
        tensors = self.tensors(dtype="float32", d=32)
        self.check(self.module.flash_attn_func(*tensors, causal=True), tensors, self.right(*tensors, causal=True), 1e-4)

    def test_variants_of_any_head_dimension(self):
        slopes = torch.tensor([0.5, 0.25, 0.1, 0.05], device=self.device)
        for d, alibi_slopes, options in ((192, None, {"window_size": (9, 3), "softcap": 3.0}), (256, slopes, {"causal": True}),
                                         (256, slopes, {"window_size": (9, 3), "softcap": 3.0}), (131, slopes, {})):
            with self.subTest(d=d, **options):
                tensors = self.tensors(rows=20, keys=30, d=d)
                self.check(self.module.flash_attn_func(*tensors, alibi_slopes=alibi_slopes, **options), tensors,
                           self.right(*tensors, slopes=alibi_slopes, **options))
        for d, alibi_slopes, options in ((192, None, {"causal": True}), (256, slopes, {"window_size": (5, 9), "softcap": 3.0})):
            with self.subTest("packed sequences", d=d, **options):
                tensors = [x.detach()[0].requires_grad_() for x in self.tensors(batch=1, rows=25, keys=40, d=d)]
                cu_q, cu_k = (torch.tensor(x, dtype=torch.int32, device=self.device) for x in ([0, 10, 25], [0, 12, 40]))
                o = self.module.flash_attn_varlen_func(*tensors, cu_q, cu_k, 15, 28, alibi_slopes=alibi_slopes, **options)
                parts = [self.right(*(x[begin:end][None] for x, (begin, end) in zip(tensors, ends)), slopes=alibi_slopes, **options)
                         for ends in (((0, 10), (0, 12), (0, 12)), ((10, 25), (12, 40), (12, 40)))]
                gradients = torch.autograd.grad(o.float().square().sum(), tensors)
                torch.testing.assert_close(o.cpu().double(), torch.cat([part[0] for part, _ in parts]), rtol=2e-2, atol=2e-2)
                wanted = zip(*(torch.autograd.grad(part.square().sum(), exact) for part, exact in parts))
                for gradient, of_parts in zip(gradients, wanted):
                    torch.testing.assert_close(gradient.cpu().double(), torch.cat([x[0] for x in of_parts]), rtol=3e-2, atol=3e-2)

    def test_slopes_of_each_batch_entry(self):
        tensors = self.tensors()
        slopes = torch.tensor([[0.5, 0.25, 0.1, 0.05], [0, 1, 2, 3]], device=self.device)
        o, lse, _ = self.module.flash_attn_func(*tensors, alibi_slopes=slopes, return_attn_probs=True)
        for b in range(2):
            one, one_lse, _ = self.module.flash_attn_func(*(x[b:b + 1] for x in tensors), alibi_slopes=slopes[b],
                                                          return_attn_probs=True)
            self.assertTrue(torch.equal(o[b:b + 1], one))
            self.assertTrue(torch.equal(lse[b:b + 1], one_lse))

    def test_packed_tensors(self):
        qkv = torch.stack(self.tensors(keys=40, kv_heads=4), 2).detach().requires_grad_()
        plain = self.module.flash_attn_func(*qkv.unbind(2), causal=True)
        self.assertTrue(torch.equal(self.module.flash_attn_qkvpacked_func(qkv, causal=True), plain))
        q, kv = qkv[:, :, 0], qkv[:, :, 1:]
        o = self.module.flash_attn_kvpacked_func(q, kv, causal=True)
        self.assertTrue(torch.equal(o, plain))
        gradient, = torch.autograd.grad(o.float().square().sum(), qkv)
        other, = torch.autograd.grad(plain.float().square().sum(), qkv)
        torch.testing.assert_close(gradient, other, rtol=1e-2, atol=1e-2)  # sums in no fixed order

    def test_sequences_of_any_lengths(self):
        q, k, v = (x.detach()[0].requires_grad_() for x in self.tensors(batch=1, rows=55, keys=90))
        cu_q, cu_k = (torch.tensor(x, dtype=torch.int32, device=self.device) for x in ([0, 15, 15, 55], [0, 20, 50, 90]))
        o, lse, P = self.module.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 40, 40, causal=True, return_attn_probs=True)
        self.assertEqual((o.shape, lse.shape, P.numel()), (q.shape, (4, 55), 0))
        wanted, exact = [], [x.detach().cpu().double().requires_grad_() for x in (q, k, v)]
        for i, j in (((0, 15), (0, 20)), ((15, 55), (50, 90))):
            part, inner = self.right(*(x[a:b][None] for x, (a, b) in zip(exact, (i, j, j))), causal=True)
            wanted.append((part[0], inner))
        torch.testing.assert_close(o.detach().cpu().double(), torch.cat([part for part, _ in wanted]).detach(), rtol=2e-2, atol=2e-2)
        gradients = torch.autograd.grad(o.float().sum(), (q, k, v))
        for which, (a, b) in ((0, (15, 55)), (1, (50, 90)), (2, (50, 90))):
            right = torch.autograd.grad(wanted[1][0].sum(), wanted[1][1], retain_graph=True)[which][0]
            torch.testing.assert_close(gradients[which][a:b].cpu().double(), right, rtol=2e-2, atol=2e-2)
        self.assertEqual(float(gradients[1][20:50].abs().max()), 0)  # keys that no row sees
        for options in ({"window_size": (9, 3)}, {"softcap": 3.0}, {"alibi_slopes": torch.tensor([0.5, 0.25, 0.1, 0], device=self.device)}):
            found = self.module.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 40, 40, **options)
            for i, j in (((0, 15), (0, 20)), ((15, 55), (50, 90))):
                part = self.module.flash_attn_func(*(x[a:b][None] for x, (a, b) in zip((q, k, v), (i, j, j))), **options)
                torch.testing.assert_close(found[slice(*i)], part[0], rtol=1e-2, atol=1e-2)
        kv = torch.stack([k, v], 1)
        self.assertTrue(torch.equal(self.module.flash_attn_varlen_kvpacked_func(q, kv, cu_q, cu_k, 40, 40, causal=True), o))
        qkv = torch.stack([q, q, q], 1)
        self.assertTrue(torch.equal(self.module.flash_attn_varlen_qkvpacked_func(qkv, cu_q, 40),
                                    self.module.flash_attn_varlen_func(q, q, q, cu_q, cu_q, 40, 40)))

    def test_probabilities_show_what_dropout_leaves_out(self):
        q, k, v = self.tensors()
        slopes = torch.tensor([0.5, 0.25, 0.1, 0.05], device=self.device)
        for options in ({}, {"causal": True, "softcap": 3.0, "alibi_slopes": slopes}, {"window_size": (9, 3)}):
            torch.manual_seed(3)
            o, lse, P = self.module.flash_attn_func(q, k, v, dropout_p=0.25, return_attn_probs=True, **options)
            self.assertEqual((P.shape, lse.shape, P.dtype), ((2, 4, 40, 50), (2, 4, 40), torch.float32))
            whole, left_out = P.abs(), (P < 0).float().sum() / (P != 0).sum()
            torch.testing.assert_close(whole.sum(-1), torch.ones_like(lse), rtol=1e-2, atol=1e-2)
            self.assertAlmostEqual(float(left_out), 0.25, delta=0.02)
            by_hand = (P.clamp(min=0) / 0.75) @ v.float().transpose(1, 2).repeat_interleave(2, 1)
            torch.testing.assert_close(o.float(), by_hand.transpose(1, 2), rtol=1e-2, atol=1e-2)
            torch.manual_seed(3)
            self.assertTrue(torch.equal(o, self.module.flash_attn_func(q, k, v, dropout_p=0.25, **options)))
        self.assertFalse(torch.equal(o, self.module.flash_attn_func(q, k, v, dropout_p=0.25, **options)))

    def test_gradients_are_of_what_dropout_leaves(self):
        for d in (64, 192, 256):
            with self.subTest(d=d):
                tensors = self.tensors(kv_heads=4, d=d)
                o, _, P = self.module.flash_attn_func(*tensors, dropout_p=0.25, return_attn_probs=True)
                q, k, v = exact = [x.detach().cpu().double().requires_grad_() for x in tensors]
                whole = torch.softmax(q.transpose(1, 2) @ k.permute(0, 2, 3, 1) * d**-0.5, -1)
                wanted = (whole * (P.cpu() > 0) / 0.75) @ v.transpose(1, 2)
                self.check(o, tensors, (wanted.transpose(1, 2), exact))

    def test_probabilities_are_computed_where_they_are_asked_for(self):
        q, k, v = self.tensors()
        with mock.patch.object(self.module, "_probabilities", side_effect=AssertionError):
            self.module.flash_attn_func(q, k, v, dropout_p=0.25)
            compiled = torch.compile(self.module.flash_attn_func, backend="aot_eager", fullgraph=True)
            self.assertFalse(torch.equal(compiled(q, k, v, dropout_p=0.25), compiled(q, k, v, dropout_p=0.25)))

    def test_under_autocast(self):
        tensors = self.tensors(dtype="float32", d=20)
        with torch.autocast(self.device, torch.bfloat16):
            o = self.module.flash_attn_func(*tensors, causal=True)
        self.assertEqual(o.dtype, torch.bfloat16)
        self.check(o, tensors, self.right(*tensors, causal=True), 5e-2)

    def test_more_entries_and_heads_than_a_launch_takes(self):
        tensors = self.tensors(batch=5, rows=20, keys=20, heads=6, kv_heads=3)
        slopes = torch.linspace(0.1, 1, 6, device=self.device)
        right = self.module.flash_attn_func(*tensors, causal=True, alibi_slopes=slopes, return_attn_probs=True)
        with mock.patch.object(flashladder.torch, "MOST_BLOCKS", 4), mock.patch.object(flashladder.torch, "node", None):
            found = self.module.flash_attn_func(*tensors, causal=True, alibi_slopes=slopes, return_attn_probs=True)
            for one, other in zip(found[:2], right[:2]):
                self.assertTrue(torch.equal(one, other))
            self.check(found[0], tensors, self.right(*tensors, causal=True, slopes=slopes))
            P = self.module.flash_attn_func(*tensors, dropout_p=0.5, return_attn_probs=True)[2]
        self.assertEqual(P.shape, (5, 6, 20, 20))
        self.assertFalse(torch.equal(P[0] < 0, P[4] < 0))  # each call has a seed of its own
        self.assertFalse(torch.equal(P[:, 0] < 0, P[:, 4] < 0))

    def test_nothing(self):
        for sizes in ({"batch": 0}, {"rows": 0}, {"keys": 0}, {"heads": 0, "kv_heads": 0}):
            with self.subTest(**sizes):
                tensors = self.tensors(**sizes)
                o, lse, _ = self.module.flash_attn_func(*tensors, return_attn_probs=True)
                self.assertEqual((o.shape, o.dtype, o.abs().sum().item()), (tensors[0].shape, torch.float16, 0))
                self.assertTrue(torch.isneginf(lse).all())
                for x, gradient in zip(tensors, torch.autograd.grad(o.sum(), tensors)):
                    self.assertEqual((gradient.shape, gradient.abs().sum().item()), (x.shape, 0))

    def test_deterministic(self):
        q, k, v = self.tensors()
        both = [torch.autograd.grad(self.module.flash_attn_func(q, k, v, causal=True, deterministic=True).float().square().sum(),
                                    (q, k, v)) for _ in range(2)]
        for one, other in zip(*both):
            self.assertTrue(torch.equal(one, other))
        stages = [flashladder.torch.stages_for(q, None, True, frozenset(), asked)[1].number for asked in (None, False, True)]
        hopper = self.device == "cpu" or torch.cuda.get_device_capability() == (9, 0)  # it is emulated on a CPU
        added, ordered = (66, 57) if hopper else (38, 39)
        self.assertEqual(stages, [added, added, ordered])
        with self.assertRaisesRegex(ValueError, "no stage has a backward pass with softcap that is known to give the same bits"):
            self.module.flash_attn_func(q, k, v, softcap=2.0, deterministic=True)
        with torch.no_grad():  # a forward pass alone adds in a fixed order
            self.module.flash_attn_func(q, k, v, softcap=2.0, deterministic=True)
        torch.use_deterministic_algorithms(True)
        self.addCleanup(torch.use_deterministic_algorithms, False)
        self.assertEqual(flashladder.torch.stages_for(q)[1].number, ordered)
        if hopper:
            self.assertEqual(flashladder.torch.stages_for(q.new_empty(1, 1, 1, 256))[1].number, 58)
        with (mock.patch.object(flashladder.torch, "node", None),
              mock.patch.object(flashladder, "_backward", side_effect=flashladder._backward) as backward):
            self.module.flash_attn_func(q, k, v).float().sum().backward()
        self.assertEqual(backward.call_args.args[0].number, ordered)
        cu = torch.tensor([0, 40], dtype=torch.int32, device=self.device)
        packed = [x[0, :40] for x in (q, k, v)]
        with self.assertRaisesRegex(ValueError, "no stage has a backward pass with packed sequences that is known to give"):
            self.module.flash_attn_varlen_func(*packed, cu, cu, 40, 40, deterministic=True)
        with torch.no_grad():
            self.module.flash_attn_varlen_func(*packed, cu, cu, 40, 40, deterministic=True)
        torch.use_deterministic_algorithms(True, warn_only=True)
        with self.assertWarnsRegex(UserWarning, "no stage has a backward pass with softcap"):
            flashladder.torch.attention(*(x.transpose(1, 2) for x in (q, k, v)), softcap=2.0)

    def test_errors(self):
        q, k, v = self.tensors()
        cu = torch.tensor([0, 40], dtype=torch.int32, device=self.device)
        func, varlen = self.module.flash_attn_func, self.module.flash_attn_varlen_func
        for error, message, call in (
                (ValueError, r"q has shape \[40, 4, 64\]: give \[batch, rows, heads, d\]", lambda: func(q[0], k, v)),
                (TypeError, "k is a list: give tensors of PyTorch", lambda: func(q, [1], v)),
                (ValueError, r"do not fit together: \[batch, rows, heads, d\]", lambda: func(q, k[:1], v[:1])),
                (ValueError, "of which kv_heads divides heads", lambda: func(q[:, :, :3], k, v)),
                (ValueError, "the head dimension is 264: give at most 256", lambda: func(*self.tensors(d=264))),
                (ValueError, r"alibi_slopes has shape \[3\]: give \[4\] or \[2, 4\]",
                 lambda: func(q, k, v, alibi_slopes=torch.ones(3, device=self.device))),
                (ValueError, "no stage of this build has a forward pass for float32 and head dimension 64, dropout",
                 lambda: func(*self.tensors(dtype="float32"), dropout_p=0.1)),
                (ValueError, r"qkv has shape \[2, 40, 4, 64\]: give \[batch, rows, 3, heads, d\]",
                 lambda: self.module.flash_attn_qkvpacked_func(q)),
                (ValueError, r"kv has shape \[2, 50, 3, 2, 64\]: give \[batch, keys, 2, kv_heads, d\]",
                 lambda: self.module.flash_attn_kvpacked_func(q, torch.stack([k, v, v], 2))),
                (NotImplementedError, "block_table: K and V that lie in pages are not taken",
                 lambda: varlen(q[0], k[0], v[0], cu, cu, 40, 50, block_table=cu)),
                (ValueError, "the head dimension is 257: give at most 256",
                 lambda: varlen(*(x[0] for x in self.tensors(d=257)), cu, cu, 40, 50, softcap=2.0, window_size=(9, 0))),
                (TypeError, "alibi_slopes is a list: give tensors of PyTorch", lambda: func(q, k, v, alibi_slopes=[0.5])),
                (TypeError, "cu_seqlens_k is a NoneType: give tensors of PyTorch",
                 lambda: varlen(q[0], k[0], v[0], cu, None, 40, 50)),
                (NotImplementedError, "return_attn_probs=True with dropout_p: the probabilities of packed sequences",
                 lambda: varlen(q[0], k[0], v[0], cu, cu, 40, 50, dropout_p=0.1, return_attn_probs=True)),
                (AttributeError, "flashladder.flash_attn has no flash_attn_with_kvcache: there are no stages for inference yet",
                 lambda: self.module.flash_attn_with_kvcache)):
            with self.subTest(message=message), self.assertRaisesRegex(error, message):
                call()


@with_torch
class FrontPageTest(unittest.TestCase):
    def test_what_is_pasted_from_the_front_page_works(self):
        """The lines of README.md's section for Python, in their order."""
        page = (Path(__file__).parent.parent / "README.md").read_text()
        section = page.partition("\n## From Python\n")[2].partition("\n## ")[0]
        blocks = [textwrap.dedent(block) for block in re.findall(r"(?:^    .+\n|^\n(?=    ))+", section, re.MULTILINE)]
        self.assertEqual(len(blocks), 1, section)
        attention, imports = blocks[0].strip().split("\n\n")
        imports, _, last = imports.rpartition("\n")
        names = {}
        exec(attention, names)
        q, k, v = (names[name].detach() for name in "qkv")
        gradients = [names[name].grad for name in "qkv"]
        q, k, v = (x.float().requires_grad_() for x in (q, k, v))
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).square().mean().backward()
        for mine, right in zip(gradients, (q.grad, k.grad, v.grad)):
            error = (mine.float() - right).norm() / right.norm()
            self.assertLess(float(error), 0.02)  # bf16 has 8 bits
        exec(imports, names)
        self.assertEqual(names["flash_attn"].flash_attn_func.__module__, "flashladder.flash_attn")
        if importlib.util.find_spec("transformers"):
            exec(last, names)
            from transformers import AttentionInterface
            self.assertIn("ladder", AttentionInterface().valid_keys())


@unittest.skipUnless(torch and importlib.util.find_spec("transformers"), "this Python has no transformers")
class TransformersTest(unittest.TestCase):
    """Small random models with attention by flashladder, beside those with PyTorch's own."""

    @classmethod
    def setUpClass(cls):
        import flashladder.transformers
        flashladder.transformers.register()
        cls.device = "cuda" if torch.cuda.is_available() and "cuda" in KERNELS[0].backends else "cpu"

    def models(self, family, dtype, **options):
        import transformers
        sizes = {"vocab_size": 97, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "eos_token_id": None}
        both = []
        for name in ("sdpa", "ladder"):
            torch.manual_seed(0)
            config = getattr(transformers, f"{family}Config")(**sizes, **options, attn_implementation=name)
            both.append(getattr(transformers, f"{family}ForCausalLM")(config).to(self.device, dtype).eval())
            self.assertEqual(both[-1].config._attn_implementation, name)
        return both

    def batch(self, padding):
        ids = torch.randint(2, 97, (2, 24), generator=torch.Generator().manual_seed(1)).to(self.device)
        shown = torch.ones_like(ids)
        if padding == "left":
            shown[0, :7] = 0
        if padding == "right":
            shown[1, -5:] = 0
        return ids, shown

    def check(self, family, dtype, tolerance, paddings, caches, **options):
        right, mine = self.models(family, dtype, **options)
        for padding in paddings:
            ids, shown = self.batch(padding)
            with self.subTest(family=family, dtype=dtype, padding=padding), torch.no_grad():
                wanted = right(ids, attention_mask=shown).logits[shown.bool()]
                with (mock.patch.object(flashladder.torch, "node", None),
                      mock.patch.object(flashladder, "_forward", side_effect=flashladder._forward) as forward):
                    found = mine(ids, attention_mask=shown).logits[shown.bool()]
                self.assertEqual(forward.call_count, mine.config.num_hidden_layers)
                torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
                for cache in caches if padding != "right" else ():
                    how = {"attention_mask": shown, "max_new_tokens": 12, "do_sample": False, "cache_implementation": cache}
                    if cache == "static":
                        how["disable_compile"] = True
                    tokens = [model.generate(ids, **how) for model in (mine, right)]
                    if dtype == torch.float32:
                        self.assertTrue(torch.equal(*tokens), cache)
                    self.assertEqual(tokens[0].shape, (2, 36))

    def test_logits_and_tokens(self):
        paddings, caches = ("none", "left", "right"), (None, "static")
        self.check("Llama", torch.float32, 1e-4, paddings, caches)
        self.check("Llama", torch.bfloat16, 2e-2, paddings, caches)
        self.check("Mistral", torch.float32, 1e-4, paddings, (None,), sliding_window=64)  # wider than the text
        self.check("Mistral", torch.bfloat16, 2e-2, paddings, caches, sliding_window=16)

    def test_a_window_that_slides_on_while_tokens_come(self):
        right, mine = self.models("Mistral", torch.float32, sliding_window=16)
        ids, shown = (x[:, :12] for x in self.batch("left"))
        for cache in (None, "static"):
            how = {"attention_mask": shown, "max_new_tokens": 24, "do_sample": False, "cache_implementation": cache}
            if cache == "static":
                how["disable_compile"] = True
            self.assertTrue(torch.equal(*(model.generate(ids, **how) for model in (mine, right))), cache)

    def test_fine_tuning(self):
        ids, shown = self.batch("right")
        labels = ids.masked_fill(shown == 0, -100)
        losses = []
        for model in self.models("Llama", torch.float32):
            optimiser = torch.optim.AdamW(model.train().parameters(), 2e-3)
            losses.append([])
            for _ in range(4):
                loss = model(ids, attention_mask=shown, labels=labels).loss
                losses[-1].append(loss.item())
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        np.testing.assert_allclose(*losses, rtol=1e-4)
        self.assertLess(losses[0][-1], 0.95 * losses[0][0])

    def test_masks_are_no_larger_than_they_must_be(self):
        from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function

        from flashladder.transformers import mask
        of_keys = torch.ones(2, 24, dtype=torch.bool)
        self.assertIsNone(mask(2, 24, 24, mask_function=causal_mask_function, attention_mask=of_keys))
        self.assertIsNone(mask(2, 1, 24, q_offset=23, mask_function=causal_mask_function, attention_mask=of_keys))
        of_keys[0, :7] = False
        found = mask(2, 24, 24, mask_function=causal_mask_function, attention_mask=of_keys)
        self.assertEqual((found.shape, found.dtype, found.sum().item()), ((2, 1, 1, 24), torch.int8, 2 * 24 - 7))
        found = mask(2, 24, 64, mask_function=causal_mask_function)  # a static cache with room for more
        self.assertEqual((found.shape, found.dtype, found.sum().item()), ((2, 1, 1, 24), torch.int8, 2 * 24))
        window = sliding_window_causal_mask_function(16)
        self.assertIsNone(mask(2, 12, 12, mask_function=window, local_size=16))
        found = mask(2, 24, 24, mask_function=window, local_size=16)
        self.assertEqual((found.shape, found.dtype), ((2, 1, 24, 24), torch.bool))

    def test_errors(self):
        import flashladder.transformers
        with self.assertRaisesRegex(ValueError, "transformers takes 'flashladder' for one of its own, .* such as 'ladder'"):
            flashladder.transformers.register("flashladder")
        _, model = self.models("Mistral", torch.float32, sliding_window=16)
        with self.assertRaisesRegex(NotImplementedError, "in float32 .* masks of keys alone, .* load the model in bfloat16"):
            model(self.batch("none")[0])
        q = torch.zeros(1, 2, 8, 64, dtype=torch.float16)
        for message, options in (("position_bias is not taken", {"position_bias": q}),
                                 ("keeps no probabilities: leave output_attentions out", {"output_attentions": True})):
            with self.assertRaisesRegex(NotImplementedError, message):
                flashladder.transformers.attention(torch.nn.Module(), q, q, q, None, **options)


@with_torch
class TorchVariantsTest(unittest.TestCase):
    """flashladder.torch.attention with variants, against the definition in fp64."""

    def devices(self):
        return ["cpu"] + ["cuda"] * (torch.cuda.is_available() and "cuda" in KERNELS[0].backends)

    def check(self, numbers, tensors, right, do, device, **options):
        """numbers: of the stages that must be chosen; tensors: q, k, v and, by their names, what has a gradient, too;
        right: what the definition makes of the same."""
        hopper = device == "cuda" and torch.cuda.get_device_capability() == (9, 0)
        if hopper and tensors["q"].shape[-1] <= 128 and "block_map" not in options:
            numbers = 82, 81 if "bias" in tensors else 83  # for Hopper alone
        mine = {name: x.detach().to(device).requires_grad_() for name, x in tensors.items()}
        q, k, v = (mine[name] for name in "qkv")
        options = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
        options |= {name: x for name, x in mine.items() if name not in "qkv"}
        for _ in range(2):
            with (mock.patch.object(flashladder, "_forward", side_effect=flashladder._forward) as forward,
                  mock.patch.object(flashladder, "_backward", side_effect=flashladder._backward) as backward):
                o = flashladder.torch.attention(q, k, v, **options)
                gradients = torch.autograd.grad(o, [*mine.values()], do.to(device))
            self.assertEqual(tuple(call.args[0].number for call in (*forward.mock_calls, *backward.mock_calls)), numbers)
            torch.testing.assert_close(o.detach().cpu().double(), right[0].detach(), rtol=1e-2, atol=1e-2)
            for mine_, wanted in zip(gradients, right[1]):
                torch.testing.assert_close(mine_.cpu().double(), wanted, rtol=2e-2, atol=2e-2)

    def test_each_and_together(self):
        heads = 4
        slopes, sinks = torch.tensor([0.5, 0.25, 0.125, 0.0625]), torch.tensor([0.0, 1.0, -1.0, 2.0])
        bias = torch.from_numpy(np.random.default_rng(8).standard_normal((1, heads, 70, 70), np.float32))
        together = {"softcap": 2.0, "bias": bias, "sinks": sinks, "alibi_slopes": slopes, "causal": True, "window_size": (30, -1)}
        for numbers, d, options in (((72, 72), 64, {"causal": True, "window_size": (20, 0)}),
                                    ((73, 73), 64, {"causal": True, "prefix": 30}),
                                    ((75, 75), 64, {"softcap": 2.0}),
                                    ((76, 76), 64, {"alibi_slopes": slopes, "causal": True}),
                                    ((76, 76), 64, {"bias": bias}),
                                    ((77, 77), 64, {"sinks": sinks}),
                                    ((81, 81), 64, {"causal": True, "prefix": 30, "softcap": 2.0, "bias": bias}),
                                    ((81, 81), 64, {**together}),
                                    ((72, 72), 256, {"causal": True, "window_size": (20, 0)}),
                                    ((81, 81), 192, {"sinks": sinks, "causal": True}),
                                    ((81, 81), 256, {**together})):
            q, k, v = (torch.from_numpy(x).half() for x in inputs(1, heads, heads, 70, 70, d))
            do = torch.from_numpy(np.random.default_rng(9).standard_normal(tuple(q.shape), np.float32)).half()
            learned = {"q": q, "k": k, "v": v} | {name: options.pop(name) for name in ("bias", "sinks") if name in options}
            exact = {name: x.double().requires_grad_() for name, x in learned.items()}
            own = {name: x.double() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
            o = variant_attention(**exact, **own)
            right = o, torch.autograd.grad(o, [*exact.values()], do.double())
            for device in self.devices():
                with self.subTest(stage=numbers[0], d=d, device=device):
                    self.check(numbers, learned, right, do, device, **options)

    def test_which_stages_a_gpu_gets(self):
        """Of this build's, as if there were a GPU: one of Hopper, and another one."""
        bias, cuda = {"bias"}, torch.device("cuda")
        for hopper, variants, numbers, *above_128 in (
                (True, set(), (65, 66)), (True, {"window"}, (82, 83)), (True, {"dropout", "packed sequences"}, (82, 83)),
                (True, {"alibi", "sinks", "softcap"}, (82, 83)), (True, bias, (82, 81)), (True, bias | {"alibi", "window"}, (82, 81)),
                (True, {"prefix"}, (82, 83)), (True, {"prefix"} | bias, (82, 81)), (True, {"block map"} | bias, (81, 81)),
                (False, set(), (29, 38)), (False, {"window"}, (72, 72)), (False, {"prefix"}, (73, 73)), (False, {"prefix", "softcap"}, (81, 81)),
                (False, bias, (76, 76)), (False, bias | {"sinks"}, (81, 81)),
                (True, set(), (65, 58), 256), (True, {"window"}, (72, 72), 192), (True, {"window", "softcap"}, (81, 81), 256),
                (True, {"prefix"}, (81, 81), 256), (True, bias, (81, 81), 136), (True, {"dropout", "packed sequences"}, (81, 81), 256),
                (False, {"alibi"}, (81, 81), 192)):
            def takes(one, needed, dtype, d, device, hopper=hopper):
                return (one.kernels and getattr(one, needed) and dtype in one.dtypes and d in one.head_dims
                        and (hopper or not one.hopper))
            with self.subTest(hopper=hopper, variants=variants), mock.patch.object(flashladder.torch, "_takes", takes):
                d, = above_128 or (64,)
                best = [flashladder.torch._best.__wrapped__(needed, "bfloat16", d, cuda, frozenset(variants)).number
                        for needed in ("forward", "backward")]
                self.assertEqual(tuple(best), numbers)

    def test_packed_sequences_are_those_alone(self):
        q, k, v = (torch.from_numpy(x).half() for x in inputs(1, 4, 4, 70, 70, 64))
        cu = torch.tensor([0, 20, 20, 70], dtype=torch.int32)
        do = torch.ones_like(q)
        exact = [x.double().requires_grad_() for x in (q, k, v)]
        o = torch.cat([variant_attention(*(x[:, :, begin:end] for x in exact), causal=True)
                       for begin, end in ((0, 20), (20, 70))], 2)
        right = o, torch.autograd.grad(o, exact, do.double())
        for device in self.devices():
            with self.subTest(device=device):
                self.check((74, 74), {"q": q, "k": k, "v": v}, right, do, device, causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu)

    def test_a_block_map_hides_what_a_bias_would(self):
        q, k, v = (torch.from_numpy(x).half() for x in inputs(1, 2, 2, 150, 260, 64))
        block_map = torch.tensor([[[[1, 0, 1], [0, 1, 0]], [[0, 0, 1], [1, 1, 1]]]], dtype=torch.int32)
        shown = block_map.repeat_interleave(128, 2).repeat_interleave(128, 3)[:, :, :150, :260]
        exact = [x.double().requires_grad_() for x in (q, k, v)]
        o = variant_attention(*exact, bias=torch.where(shown != 0, 0.0, -torch.inf))
        do = torch.ones_like(q)
        right = o, torch.autograd.grad(o, exact, do.double())
        for device in self.devices():
            with self.subTest(device=device):
                self.check((79, 79), {"q": q, "k": k, "v": v}, right, do, device, block_map=block_map)

    def test_more_entries_and_heads_than_a_launch_takes(self):
        heads, generator = 6, np.random.default_rng(8)
        slopes = torch.linspace(0.1, 1, heads)
        q, k, v = (torch.from_numpy(x).half() for x in inputs(5, heads, 3, 20, 20, 64))
        for shape in ((5, 1, 20, 20), (1, heads, 1, 20), (1, 1, 20, 20)):
            bias = torch.from_numpy(generator.standard_normal(shape, np.float32))
            block_map = torch.from_numpy(generator.integers(0, 2, (*shape[:2], 1, 1), np.int32))
            sinks = torch.from_numpy(generator.standard_normal(heads, np.float32))
            for device in self.devices():
                tensors = [x.to(device).requires_grad_() for x in (q, k, v, bias, sinks)]
                found = []
                for most in (1000, 4):  # a launch; four of them
                    with (mock.patch.object(flashladder.torch, "MOST_BLOCKS", most),
                          mock.patch.object(flashladder, "_forward", side_effect=flashladder._forward) as forward):
                        o, lse = flashladder.torch.attention(*tensors[:3], bias=tensors[3], sinks=tensors[4], return_lse=True,
                                                             alibi_slopes=slopes.to(device), block_map=block_map.to(device))
                        found.append((o, lse, *torch.autograd.grad(o.float().square().sum(), tensors)))
                    self.assertEqual(forward.call_count, 1 if most == 1000 else 4)
                for number, (one, other) in enumerate(zip(*found)):
                    with self.subTest(shape=shape, device=device, number=number):
                        # What is added in another order differs a little.
                        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 if number > 1 else 0)
        plain = [x.detach().requires_grad_() for x in (q, k, v)]
        with mock.patch.object(flashladder.torch, "MOST_BLOCKS", 4), mock.patch.object(flashladder.torch, "node", None):
            o, lse = flashladder.torch.attention(*plain, return_lse=True)
            gradients = torch.autograd.grad(o.float().square().sum() + lse.sum(), plain)
            nothing, numbers = torch.zeros_like(plain[0]), torch.eye(20, 64).expand(5, 3, 20, 64).half()
            P = flashladder.torch.attention(nothing, nothing[:, :3], numbers, dropout_p=0.5)[..., :20]
            compiled = torch.compile(flashladder.torch.attention, backend="aot_eager", fullgraph=True)(*plain)
            with self.assertRaisesRegex(ValueError, "6 heads of q share one of k and v: at most 4 may"):
                flashladder.torch.attention(q, k[:, :1], v[:, :1])
            with self.assertRaisesRegex(ValueError, "the batch sizes differ"):
                flashladder.torch.attention(q, k[:1], v[:1])
        whole, L = flashladder.torch.attention(*plain, return_lse=True)
        self.assertTrue(torch.equal(o, whole) and torch.equal(lse, L) and torch.equal(compiled, whole))
        for one, other in zip(gradients, torch.autograd.grad(whole.float().square().sum() + L.sum(), plain)):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
        self.assertTrue(0.3 < (P == 0).float().mean() < 0.7)
        self.assertFalse(torch.equal(P[0, :2], P[4, :2]))  # the first entries, and heads, of two launches
        self.assertFalse(torch.equal(P[0, 0], P[0, 4]))

    def test_dropout_draws_a_seed(self):
        q, k, v = (torch.from_numpy(x).half() for x in inputs(1, 2, 2, 40, 40, 64))
        torch.manual_seed(3)
        first, second = (flashladder.torch.attention(q, k, v, dropout_p=0.5) for _ in range(2))
        torch.manual_seed(3)
        again = flashladder.torch.attention(q, k, v, dropout_p=0.5)
        self.assertTrue(torch.equal(first, again))
        self.assertFalse(torch.equal(first, second))

    def test_errors(self):
        q, k, v = (torch.from_numpy(x).half() for x in inputs(1, 2, 2, 40, 40, 64))
        for message, options in (
                ("a prefix and a window do not go together", {"causal": True, "prefix": 3, "window_size": (4, 0)}),
                ("alibi_slopes requires a gradient", {"alibi_slopes": torch.ones(2, requires_grad=True)}),
                ("cu_seqlens_q is given without the others", {"cu_seqlens_q": torch.zeros(2, dtype=torch.int32)})):
            with self.assertRaisesRegex(ValueError, message):
                flashladder.torch.attention(q, k, v, **options)
        with (mock.patch.object(flashladder.torch, "UNTRIED", (80, 81, 82, 83)),
              self.assertRaisesRegex(ValueError, "no stage of this build takes prefix and softcap together")):
            flashladder.torch._best.__wrapped__("forward", "float16", 64, torch.device("cpu"), frozenset({"prefix", "softcap"}))


class GpuTest(unittest.TestCase):
    def tensors(self, *sizes, dtype="float32", **options):
        return [torch.from_numpy(x).cuda().to(getattr(torch, dtype)) for x in inputs(*sizes, **options)]

    @with_gpu
    def test_every_stage_is_right(self):
        for stage in KERNELS:
            for dtype in stage.dtypes:
                with self.subTest(stage=str(stage), dtype=dtype):
                    skip_unless_here(self, stage)
                    q, k, v = self.tensors(2, 4, 2, 45, 70, dtype=dtype)
                    k = k.transpose(1, 2).contiguous().transpose(1, 2)
                    o, lse = flashladder.forward(stage, q, k, v, causal=True)
                    right = reference(*(x.float().cpu().numpy() for x in (q, k, v)), causal=True)
                    self.assertEqual((o.device, o.dtype, lse.dtype), (q.device, q.dtype, torch.float32))
                    atol = TOLERANCE[dtype]
                    np.testing.assert_allclose(o.float().cpu(), right[0], rtol=atol, atol=atol)
                    np.testing.assert_allclose(lse.cpu(), right[1], rtol=atol, atol=atol)

    def gradients(self, stage, q, k, v, do, **options):
        """The backward pass after a forward pass of the highest stage that takes these."""
        dtype = str(q.dtype).removeprefix("torch.")
        first = next(one for one in reversed(KERNELS) if dtype in one.dtypes and "cuda" in one.backends)
        o, lse = flashladder.forward(first, q, k, v, **options)
        return flashladder.backward(stage, q, k, v, o, lse, do, saved=flashladder.saved(stage, q, k, **options), **options)

    @with_gpu
    def test_every_backward_pass_is_right(self):
        for stage in BACKWARD_KERNELS:
            for dtype in stage.dtypes:
                with self.subTest(stage=str(stage), dtype=dtype):
                    skip_unless_here(self, stage)
                    q, k, v = self.tensors(2, 4, 2, 45, 70, dtype=dtype)
                    do = self.tensors(2, 4, rows=45, dtype=dtype, seed=5)[0]
                    right = reference_backward(*(x.float().cpu().numpy() for x in (q, k, v, do)), causal=True)
                    do = do.transpose(1, 2).contiguous().transpose(1, 2)
                    atol = TOLERANCE[dtype]
                    for gradient, wanted, of in zip(self.gradients(stage, q, k, v, do, causal=True), right, (q, k, v)):
                        self.assertEqual((gradient.device, gradient.dtype), (of.device, of.dtype))
                        np.testing.assert_allclose(gradient.float().cpu(), wanted, rtol=atol, atol=atol)

    @with_gpu
    def test_the_callers_stream_of_the_backward_pass(self):
        q, k, v = self.tensors(rows=64)
        do = torch.ones_like(q)
        right = self.gradients(31, q, k, v, do)
        o, lse = flashladder.forward(15, q, k, v)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            late = torch.zeros_like(do)
            torch.cuda._sleep(1_000_000_000)
            late.copy_(do)
            found = flashladder.backward(31, q, k, v, o, lse, late)
            self.assertFalse(stream.query())
        stream.synchronize()
        for gradient, wanted in zip(found, right):
            torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-5)

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
    def test_a_graph_draws_dropout_anew_at_each_replay(self):
        for more in ({}, {"alibi_slopes": torch.tensor([0.5, 0.25], device="cuda")}):  # of one stage, and of several together
            with self.subTest(more=[*more]):
                self.check_replays(**more)

    def check_replays(self, **more):
        q, k, v = (x.requires_grad_() for x in self.tensors(1, 2, 2, 200, 200, 64, dtype="float16"))

        def both_passes(seed):
            o = flashladder.torch.attention(q, k, v, causal=True, dropout_p=0.5, dropout_seed=seed, **more)
            return o, *torch.autograd.grad(o, (q, k, v), torch.ones_like(o))

        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            both_passes(None)
        torch.cuda.current_stream().wait_stream(stream)
        graph, drawn = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            seed = torch.randint(-(2**63), 2**63 - 1, (), device="cuda")
            captured = both_passes(seed)
        with torch.cuda.graph(drawn):
            own = both_passes(None)[0]
        outputs = []
        for _ in range(3):
            graph.replay()
            right = both_passes(seed.item() & (1 << 64) - 1)
            self.assertTrue(torch.equal(captured[0], right[0]))
            for one, other in zip(captured[1:], right[1:]):
                torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
            drawn.replay()
            outputs += [captured[0].clone(), own.clone()]
        for i, one in enumerate(outputs):
            for other in outputs[:i]:
                self.assertFalse(torch.equal(one, other))

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
        with self.assertRaisesRegex((MemoryError, torch.OutOfMemoryError), "out of memory"):
            flashladder.forward(10, long, long, long)
        self.assertEqual(flashladder.forward(14, q, k, v)[0].shape, q.shape)  # and it goes on


    @with_gpu
    def test_memory_of_a_stage_itself_is_pytorchs(self):
        q, k, v = self.tensors(rows=256)
        for _ in range(2):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            results = flashladder.forward(10, q, k, v)
            scores = 4 * 2 * 2 * 256 * 256
            self.assertGreaterEqual(torch.cuda.max_memory_allocated(), before + scores)
            self.assertLess(torch.cuda.memory_allocated(), before + scores)
            del results


@with_torch
class QuickCallsTest(unittest.TestCase):
    """Tensors of PyTorch from 2.10 on are read without the protocol that other arrays need; and nothing else differs."""

    def tensors(self, seed=1):
        return [torch.from_numpy(x) for x in inputs(1, 2, 1, 5, 7, 8, seed=seed)]

    def both(self, call):
        """What it returns on the quick way, which it takes, and on the other one."""
        with mock.patch.object(flashladder._core, "common_stream", side_effect=flashladder._core.common_stream) as asked, \
                mock.patch.object(flashladder, "_examine", side_effect=AssertionError):
            quick = call()
        self.assertTrue(asked.called)
        with mock.patch.object(flashladder._core, "common_stream", return_value=None):
            return quick, call()

    def setUp(self):
        if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
            self.skipTest("this PyTorch has no table of C functions for DLPack")

    def test_the_same_bits(self):
        q, k, v = self.tensors()
        wide = torch.zeros(1, 2, 5, 16)
        wide[..., :8] = q
        for one in (q, wide[..., :8], q.transpose(1, 2).contiguous().transpose(1, 2), q[:, :1].expand(1, 2, 5, 8), q[:, :, :4]):
            for causal in (False, True):
                (o, lse), other = self.both(lambda: flashladder.forward(2, one, k, v, causal))
                right = reference(*(x.numpy() for x in (one, k, v)), causal)
                np.testing.assert_allclose(o, right[0], rtol=1e-5, atol=1e-6)
                self.assertEqual([(x.stride(), x.tolist()) for x in (o, lse)], [(x.stride(), x.tolist()) for x in other])
                quick, other = self.both(lambda: flashladder.backward(0, one, k, v, o, lse, torch.ones_like(o), causal))
                self.assertEqual([x.tolist() for x in quick], [x.tolist() for x in other])

    def test_the_same_bits_of_variants(self):
        q, k, v = (torch.randn(1, 2, 40, 16).to(torch.bfloat16) for _ in range(3))
        cu = torch.tensor([0, 13, 40], dtype=torch.int32)
        block_map = torch.ones(1, 2, 1, 1, dtype=torch.int32)
        for stage, options in ((80, {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "softcap": 3.0}), (79, {"block_map": block_map}),
                               (78, {"dropout_p": 0.5, "dropout_seed": 2**64 - 1}), (76, {"bias": torch.randn(1, 2, 1, 40)}),
                               (77, {"sinks": torch.randn(2)}), (76, {"alibi_slopes": torch.rand(2)})):
            (o, lse), other = self.both(lambda: flashladder.forward(stage, q, k, v, True, **options))
            self.assertTrue(torch.equal(o, other[0]) and torch.equal(lse, other[1]))
            quick, other = self.both(lambda: flashladder.backward(stage, q, k, v, o, lse, o, True, **options))
            self.assertEqual([x.tolist() for x in quick], [x.tolist() for x in other])

    def test_the_same_errors(self):
        q, k, v = self.tensors()
        moved = torch.zeros(4 * q.numel() + 1, dtype=torch.uint8)[1:].numpy().view("float32").reshape(q.shape)
        for error, message, arrays in ((ValueError, "q requires a gradient", (q.clone().requires_grad_(), k, v)),
                                       (ValueError, "last dimension of q is not contiguous", (q.mT.contiguous().mT, k, v)),
                                       (ValueError, "multiple of its element's size", (torch.from_numpy(moved), k, v)),
                                       (ValueError, "q has shape \\[2, 5, 8\\]", (q[0], k, v)),
                                       (ValueError, "k and v must have the same shape", (q, k, v[:, :, 1:])),
                                       (TypeError, "q is float64", (q.double(), k, v)),
                                       (TypeError, "k is float64", (q, k.numpy().astype("f8"), v))):
            for way in (flashladder._core.common_stream, lambda _: None):
                with mock.patch.object(flashladder._core, "common_stream", way), self.assertRaisesRegex(error, message):
                    flashladder.forward(2, *arrays)

    def test_numbers_that_are_not_those_in_memory(self):
        q, k, v = self.tensors()
        right = flashladder.torch.attention(-q, k, v, stage=(2, 0))
        torch.testing.assert_close(flashladder.torch.attention(torch._neg_view(q), k, v, stage=(2, 0)), right)
        torch.testing.assert_close(flashladder.forward(2, torch._neg_view(q), k, v)[0], right)
        q.requires_grad_()
        o = flashladder.torch.attention(q, k, v, stage=(2, 0))
        dq, = torch.autograd.grad(o, q, torch._efficientzerotensor(o.shape), retain_graph=True)
        self.assertEqual(dq.abs().max(), 0)
        each = [torch.autograd.grad(o, q, do, retain_graph=True)[0] for do in (o.detach(), torch.ones_like(o))]
        batched, = torch.autograd.grad(o, q, torch.stack([o.detach(), torch.ones_like(o)]), is_grads_batched=True)
        torch.testing.assert_close(batched, torch.stack(each))

    def test_what_is_kept_may_come_back_as_another_tensor(self):
        q, k, v = (x.requires_grad_() for x in self.tensors())
        wanted = torch.autograd.grad(flashladder.torch.attention(q, k, v, stage=(2, 0)).square().sum(), (q, k, v))
        with torch.autograd.graph.saved_tensors_hooks(torch.neg, torch._neg_view):  # the same numbers, and not those in memory
            o = flashladder.torch.attention(q, k, v, stage=(2, 0))
        found = torch.autograd.grad(o.square().sum(), (q, k, v))
        for one, right in zip(found, wanted):
            torch.testing.assert_close(one, right, rtol=0, atol=0)

    def test_results_are_pytorchs_own(self):
        q, k, v = self.tensors()
        o, lse = flashladder.forward(2, q, k, v)
        for x in (o, lse, *flashladder.backward(0, q, k, v, o, lse, o)):
            self.assertTrue(x.untyped_storage().resizable())  # its memory is of PyTorch's allocator

    def test_what_is_no_tensor_of_four_dimensions(self):
        q, k, v = self.tensors()
        bias = torch.zeros(1, 1, 1, 7)
        for wrong, error, message in (((None, k, v), TypeError, "q is a NoneType"), ((q, k, None), TypeError, "v is a NoneType"),
                                      ((q, torch.tensor(1.0), v), ValueError, "k has shape \\[\\]"),
                                      ((torch.tensor(1.0), k, v), ValueError, "q has shape \\[\\]")):
            with self.assertRaisesRegex(error, message):
                flashladder.torch.attention(*wrong, stage=(2, 0), bias=bias if None in wrong else None)
        bits = q.view(torch.uint8).view(torch.bits8)
        with self.assertRaisesRegex(TypeError, "q is an array of dtype torch.bits8, which DLPack does not describe"):
            flashladder.forward(2, bits, bits, bits)
        with self.assertRaisesRegex(TypeError, "window_size is"):
            torch.ops.flashladder.attention(q, k, v, *[None] * 7, False, None, [1], 0.0, 0, 0.0, [2], False, None)

    def test_learned_sinks_are_read_in_the_quick_way(self):
        q, k, v = (torch.randn(1, 2, 40, 16).to(torch.bfloat16) for _ in range(3))
        sinks = torch.nn.Parameter(torch.randn(2))
        with torch.no_grad():
            (o, _), other = self.both(lambda: flashladder.forward(77, q, k, v, sinks=sinks))
        self.assertTrue(torch.equal(o, other[0]))

    def test_a_bias_over_a_scale_that_is_too_small(self):
        q, k, v = (torch.randn(1, 2, 40, 16).to(torch.bfloat16) for _ in range(3))
        with self.assertRaisesRegex(ValueError, "the scale is too small"):
            flashladder.forward(76, q, k, v, scale=1e-39, bias=torch.zeros(1, 1, 1, 40))
        self.assertTrue(flashladder.forward(80, q, k, v, scale=1e-39)[0].isfinite().all())

    def test_a_library_without_the_table_and_mixed_arrays(self):
        q, k, v = self.tensors()
        right = flashladder.forward(2, q, k, v)[0]
        for arrays in ((q.numpy(), k.numpy(), v.numpy()), (q, k.numpy(), v), (torch.nn.Parameter(q, requires_grad=False), k, v)):
            np.testing.assert_array_equal(np.asarray(flashladder.forward(2, *arrays)[0]), right)

    def test_operators_are_called_where_something_looks(self):
        from torch.utils._python_dispatch import TorchDispatchMode
        seen = []

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                seen.append(str(function))
                return function(*args, **kwargs or {})

        q, k, v = (x.requires_grad_() for x in self.tensors())
        with Mode():
            watched = flashladder.torch.attention(q, k, v, stage=(2, 0))
            gradients = torch.autograd.grad(watched.sum(), (q, k, v))
        self.assertIn("flashladder.attention.default", seen)
        self.assertIn("flashladder.attention_backward.default", seen)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            flashladder.torch.attention(q, k, v, stage=(2, 0)).sum().backward()
        self.assertLessEqual({"flashladder::attention", "flashladder::attention_backward"}, {event.key for event in profile.key_averages()})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = [x.detach() for x in (q, k, v)]
            traced = torch.jit.trace(lambda q: flashladder.torch.attention(q, *plain[1:], stage=2), plain[0])
        torch.testing.assert_close(traced(2 * plain[0]), flashladder.torch.attention(2 * plain[0], *plain[1:], stage=2))
        with (mock.patch.object(torch.ops.flashladder, "attention", side_effect=AssertionError),
              mock.patch.object(torch.ops.flashladder, "attention_backward", side_effect=AssertionError)):
            o = flashladder.torch.attention(q, k, v, stage=(2, 0))
            torch.testing.assert_close(o, watched, rtol=0, atol=0)
            for one, wanted in zip(torch.autograd.grad(o.sum(), (q, k, v)), gradients):
                torch.testing.assert_close(one, wanted, rtol=0, atol=0)


@unittest.skipUnless(torch and flashladder.torch.node, "this build has no node for this PyTorch (FLASHLADDER_TORCH)")
class TorchNodeTest(unittest.TestCase):
    """The compiled node takes plain calls, with the results of the way in Python, and leaves all else to that."""

    CPU = {"stage": (2, 0), "causal": True}

    def tensors(self, *sizes, dtype="float32", **options):
        return [torch.from_numpy(x).to(getattr(torch, dtype)).requires_grad_() for x in inputs(*sizes, **options)]

    @contextlib.contextmanager
    def counted(self):
        """How many calls the node takes and declines meanwhile, and how many backward passes are Python's."""
        counts = collections.Counter()
        attention, gradients = flashladder.torch.node.attention, flashladder.torch._gradients

        def ask(*arguments):
            made = attention(*arguments)
            counts["declined" if made is None else "taken"] += 1
            return made

        def backward(*arguments):
            counts["in Python"] += 1
            return gradients(*arguments)

        with (mock.patch.object(flashladder.torch.node, "attention", ask),
              mock.patch.object(flashladder.torch, "_gradients", backward)):
            yield counts

    def both(self, call):
        """What it returns with the node, what it returns without it, and the counts of the former."""
        with self.counted() as counts:
            found = call()
        with mock.patch.object(flashladder.torch, "node", None):
            return found, call(), dict(counts)

    def assert_same(self, found, other):
        for one, wanted in zip(found, other, strict=True):
            self.assertTrue(torch.equal(one, wanted))
            self.assertEqual((one.stride(), one.dtype), (wanted.stride(), wanted.dtype))

    def test_the_same_bits(self):
        q, k, v = self.tensors(2, 4, 2, 37, 45)
        wide = torch.randn(2, 37, 3, 4, 32).unbind(2)  # rows lie apart, as a projection leaves them
        same = torch.randn(1, 1, 37, 32).expand(2, 4, 37, 32)
        layouts = ((q, k, v), [x.transpose(1, 2).requires_grad_() for x in wide], (same.requires_grad_(), k, v),
                   [x[:1] for x in (q, k, v)])
        cases = [((2, 0), layout) for layout in layouts]
        cases += [((10, 31), layouts[0]), (None, self.tensors(1, 1, 1, 5)), ((29, 39), self.tensors(1, 2, 1, 9, 20, 64, dtype="bfloat16")),
                  ((29, 39), self.tensors(1, 1, 1, 9, 20, 64, dtype="float16"))]
        for stage, (q, k, v) in cases:
            for options in ({}, {"causal": True, "scale": 0.3}):
                gradients = (torch.randn(q.shape).to(q.dtype), torch.ones(()).to(q.dtype).expand(q.shape),
                             torch.randn(q.mT.shape).to(q.dtype).mT, torch.randn(q.numel() + 3).to(q.dtype)[3:].view(q.shape))
                for do in gradients:
                    def call():
                        o = flashladder.torch.attention(q, k, v, stage=stage, **options)  # noqa: B023
                        return o, *torch.autograd.grad(o, (q, k, v), do)  # noqa: B023

                    with self.subTest(stage=stage, options=options, q=q.stride(), do=do.stride()):
                        found, other, counts = self.both(call)
                        self.assert_same(found, other)
                        self.assertEqual(counts, {"taken": 1})
                with torch.no_grad():
                    found, other, counts = self.both(
                        lambda: flashladder.torch.attention(q, k, v, stage=stage, return_lse=True, **options))  # noqa: B023
                self.assert_same(found, other)
                self.assertEqual((counts, found[0].requires_grad), ({"taken": 1}, False))

    def test_some_gradients(self):
        for needed in ([0], [1], [2], [0, 2]):
            tensors = [x.detach().requires_grad_(i in needed) for i, x in enumerate(self.tensors())]

            def call():
                o = flashladder.torch.attention(*tensors, **self.CPU)  # noqa: B023
                return o, *torch.autograd.grad(o.sum(), [tensors[i] for i in needed])  # noqa: B023

            found, other, counts = self.both(call)
            self.assert_same(found, other)
            self.assertEqual(counts, {"taken": 1})

    def test_what_it_declines(self):
        from torch.overrides import TorchFunctionMode
        from torch.utils._python_dispatch import TorchDispatchMode

        class Functions(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                return function(*args, **kwargs or {})

        class Operators(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                return function(*args, **kwargs or {})

        class Mine(torch.Tensor):
            pass

        def profiler():
            return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])

        q, k, v = (x.detach() for x in self.tensors())
        low = [x.bfloat16() for x in (q, k, v)]
        in_columns = q.mT.contiguous().mT
        none, on = contextlib.nullcontext, lambda: torch.autocast("cpu", torch.bfloat16)  # noqa: E731
        for what, context, tensors, options in (
                ("a dispatch mode", Operators, (q, k, v), {}), ("a function mode", Functions, (q, k, v), {}),
                ("a profiler", profiler, (q, k, v), {}), ("autocast", on, (q, k, v), {"stage": None}),
                ("a default device", lambda: torch.device("cpu"), (q, k, v), {}),
                ("a subclass", none, (q.as_subclass(Mine), k, v), {}), ("columns", none, (in_columns, k, v), {}),
                ("negated", none, (torch._neg_view(q), k, v), {}),
                ("zeros", none, (q, k, torch._efficientzerotensor(v.shape)), {}),
                ("rows off 16 bytes", none, [x[..., 1:].contiguous()[..., :8] for x in low], {"stage": 78, "dropout_p": 0.0}),
                ("a window", none, low, {"stage": None, "window_size": (9, 0)}),
                ("keys before a row's own", none, low, {"stage": None, "window_size": (9, -1)}),
                ("softcap", none, low, {"stage": None, "softcap": 3.0}),
                ("a prefix", none, low, {"stage": None, "prefix": 3}), ("sinks", none, low, {"stage": None, "sinks": torch.zeros(2)}),
                ("dropout", none, low, {"stage": None, "dropout_p": 0.5, "dropout_seed": 1}),
                ("a window of an array", none, (q, k, v), {"window_size": np.array([-1, -1])}),
                ("a whole number as the scale", none, (q, k, v), {"scale": 1}),
                ("causal of NumPy", none, (q, k, v), {"causal": np.bool_(True)})):
            with self.subTest(what):
                def call():
                    with context():  # noqa: B023
                        return [flashladder.torch.attention(*tensors, **{**self.CPU, **options})]  # noqa: B023

                found, other, counts = self.both(call)
                self.assertEqual(counts, {"declined": 1})
                self.assert_same(*([x.as_subclass(torch.Tensor) for x in some] for some in (found, other)))
        with on():  # which casts nothing here
            self.assertEqual(self.both(lambda: flashladder.torch.attention(*low, stage=29))[2], {"taken": 1})
        many = [torch.randn(65536, 1, 1, 8) for _ in range(3)]  # more than a launch takes
        self.assertEqual(self.both(lambda: flashladder.torch.attention(*many, stage=2))[2], {"declined": 1})
        for broken in (torch.randn(2, 3, 37, 32), torch.randn(1, 2, 0, 32), q.double(), q[0], None):
            with self.subTest(broken=getattr(broken, "shape", broken)):
                with self.counted() as counts, self.assertRaises((ValueError, TypeError, RuntimeError)) as with_node:
                    flashladder.torch.attention(broken, k, v, **self.CPU)
                with mock.patch.object(flashladder.torch, "node", None), self.assertRaises(with_node.exception.__class__) as without:
                    flashladder.torch.attention(broken, k, v, **self.CPU)
                self.assertEqual((str(with_node.exception), counts), (str(without.exception), {"declined": 1}))

    def test_transforms_and_compilers(self):
        q, k, v = (x.detach() for x in self.tensors(2))
        with self.counted() as counts:
            each = torch.func.vmap(lambda *x: flashladder.torch.attention(*x, **self.CPU))(*(x[:, None] for x in (q, k, v)))
            self.assertEqual(counts, {"declined": 1})
            torch._dynamo.reset()
            compiled = torch.compile(lambda *x: flashladder.torch.attention(*x, **self.CPU), backend="eager", fullgraph=True)(q, k, v)
            self.assertEqual(counts, {"declined": 1})  # a compiler does not even ask
            with self.assertRaisesRegex(NotImplementedError, "q has a tangent"):
                torch.func.jvp(lambda x: flashladder.torch.attention(x, k, v, **self.CPU), (q,), (q,))
        right = flashladder.torch.attention(q, k, v, **self.CPU)
        for found in (each[:, 0], compiled):
            self.assertTrue(torch.equal(found, right))

    def test_backward_passes_of_python(self):
        """What the node takes may need in its backward pass what Python alone has."""
        q, k, v = self.tensors()

        def gradients(loss, **options):
            return torch.autograd.grad(loss, (q, k, v), **options)

        def of_lse():
            o, lse = flashladder.torch.attention(q, k, v, return_lse=True, **self.CPU)
            return gradients(o.sum() + lse.square().sum())

        def of_lse_alone():
            return torch.autograd.grad(flashladder.torch.attention(q, k, v, return_lse=True, **self.CPU)[1].sum(), (q, k))

        def profiled():
            o = flashladder.torch.attention(q, k, v, **self.CPU)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                found = gradients(o.sum())
            self.assertIn("flashladder::attention_backward", {event.key for event in profile.key_averages()})
            return found

        def batched():
            o = flashladder.torch.attention(q, k, v, **self.CPU)
            return gradients(o, grad_outputs=torch.ones(1, *o.shape), is_grads_batched=True)

        def negated():
            with torch.autograd.graph.saved_tensors_hooks(torch.neg, torch._neg_view):
                o = flashladder.torch.attention(q, k, v, **self.CPU)
            return gradients(o.sum())

        def zeros():
            o = flashladder.torch.attention(q, k, v, **self.CPU)
            return gradients(o, grad_outputs=torch._efficientzerotensor(o.shape))

        for call in (of_lse, of_lse_alone, profiled, batched, negated, zeros):
            with self.subTest(call.__name__):
                found, other, counts = self.both(call)
                self.assert_same(found, other)
                self.assertEqual(counts, {"taken": 1, "in Python": 1})
        found, other, counts = self.both(lambda: gradients(flashladder.torch.attention(q, k, v, return_lse=True, **self.CPU)[0].sum()))
        self.assertEqual(counts, {"taken": 1})  # L is returned, and nothing depends on it
        self.assert_same(found, other)

        with self.counted() as counts:
            o = flashladder.torch.attention(q, k, v, **self.CPU)
            first = gradients(o, grad_outputs=torch.ones_like(o, requires_grad=True), create_graph=True)
            self.assertEqual(counts, {"taken": 1, "in Python": 1})
            with self.assertRaisesRegex(RuntimeError, "the gradients of attention have no gradients of their own"):
                first[0].sum().backward()

    def test_what_is_saved(self):
        """PyTorch keeps it: it finds changes, frees it, and hands it to hooks."""
        from torch.utils.checkpoint import checkpoint
        q, k, v = self.tensors()
        inner = 2 * q
        o = flashladder.torch.attention(inner, k, v, **self.CPU)
        inner.mul_(2)
        with self.assertRaisesRegex(RuntimeError, "has been modified by an inplace operation"):
            o.sum().backward()
        o = flashladder.torch.attention(q, k, v, **self.CPU)
        with torch.no_grad():
            o.mul_(2)
        with self.assertRaisesRegex(RuntimeError, "has been modified by an inplace operation"):
            o.sum().backward()
        o = flashladder.torch.attention(q, k, v, **self.CPU)
        first = torch.autograd.grad(o.sum(), (q, k, v), retain_graph=True)
        self.assert_same(first, torch.autograd.grad(o.sum(), (q, k, v)))
        with self.assertRaisesRegex(RuntimeError, "backward through the graph a second time"):
            o.sum().backward()
        other = 2 * q
        o = flashladder.torch.attention(other, k, v, **self.CPU)
        kept = [weakref.ref(x) for x in (o, other)]
        del other, o
        self.assertEqual([one() for one in kept], [None, None])

        packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x.shape) or x.clone(), lambda x: x):
            o = flashladder.torch.attention(q, k, v, **self.CPU)
        self.assertEqual(len(packed), 5)
        with self.counted() as counts:
            self.assert_same(torch.autograd.grad(o.sum(), (q, k, v)), first)
            again = checkpoint(lambda *x: flashladder.torch.attention(*x, **self.CPU), q, k, v, use_reentrant=False)
            self.assert_same(torch.autograd.grad(again.sum(), (q, k, v)), first)
        self.assertEqual(counts, {"taken": 1})  # the second forward pass ends early, at what the first kept
        cut, wide, columns = (lambda x: x[..., :1]), (lambda x: x.double()), (lambda x: x.mT.contiguous().mT)
        for place, wrong in ((0, cut), (0, wide), (0, columns), (1, cut), (1, wide), (1, torch._neg_view), (1, columns), (2, wide),
                             (2, columns), (3, cut), (4, torch._neg_view)):
            def call():  # hooks that return something else for o, lse, q, k or v
                unpacked = itertools.count()
                with torch.autograd.graph.saved_tensors_hooks(
                        lambda x: x, lambda x: wrong(x) if next(unpacked) == place else x):  # noqa: B023
                    o = flashladder.torch.attention(q, k, v, **self.CPU)
                try:
                    return torch.autograd.grad(o.sum(), (q, k, v))
                except (ValueError, TypeError, RuntimeError) as error:
                    return str(error)

            with self.subTest(place=place):
                found, other, counts = self.both(call)
                self.assertEqual(counts, {"taken": 1, "in Python": 1})
                self.assertEqual(*([x if isinstance(x, str) else x.tolist() for x in some] for some in (found, other)))

    def test_deterministic(self):
        q, k, v = self.tensors(1, 2, 1, 40, 40, 64, dtype="bfloat16")
        same, any_ = (flashladder.torch.stages_for(q, deterministic=one)[1].number for one in (True, False))
        self.assertNotEqual(same, any_)

        def gradient(deterministic=None, mode=False, backward_mode=None):
            try:
                torch.use_deterministic_algorithms(mode)
                o = flashladder.torch.attention(q, k, v, deterministic=deterministic)
                torch.use_deterministic_algorithms(mode if backward_mode is None else backward_mode)
                return torch.autograd.grad(o.float().square().sum(), (q, k, v))
            finally:
                torch.use_deterministic_algorithms(False)

        with self.counted() as counts, self.assertRaisesRegex(ValueError, "no stage has a backward pass for float32 that is known"):
            flashladder.torch.attention(q.float(), k.float(), v.float(), deterministic=True)
        self.assertEqual(counts, {"declined": 1})
        right = torch.autograd.grad(flashladder.torch.attention(q, k, v, stage=(None, same)).float().square().sum(), (q, k, v))
        for arguments, expected in ((dict(deterministic=True), {"taken": 1}), (dict(mode=True), {"taken": 1}),
                                    (dict(backward_mode=True), {"taken": 1, "in Python": 1})):
            with self.subTest(**arguments):
                found, other, counts = self.both(lambda: gradient(**arguments))  # noqa: B023
                self.assertEqual(counts, expected)
                self.assert_same(found, other)
                self.assert_same(found, right)

    def test_inference_mode_and_threads(self):
        q, k, v = self.tensors()
        right = torch.autograd.grad(flashladder.torch.attention(q, k, v, **self.CPU).sum(), (q, k, v))
        found, flags = [], []

        def run():
            found.append(torch.autograd.grad(flashladder.torch.attention(q, k, v, **self.CPU).sum(), (q, k, v)))
            with torch.inference_mode():
                flags.append(flashladder.torch.attention(q, k, v, **self.CPU).is_inference())

        with self.counted() as counts:
            threads = [threading.Thread(target=run) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual((counts, flags), ({"taken": 8}, [True] * 4))
        for gradients in found:
            self.assert_same(gradients, right)

    def test_errors_of_a_stage(self):
        """The node has begun then: the words are those of the way in Python."""
        q, k, v = self.tensors()
        low = self.tensors(d=64, dtype="bfloat16")
        for tensors, options in (((q, k, v), {"scale": float("nan")}), ((q, k, v), {"scale": 1e-50}), (low, {"stage": 29, "scale": -1e30}),
                                 ((q, k, v), {"stage": 10, "scale": float("inf")})):
            texts = []
            for node in (flashladder.torch.node, None):
                with mock.patch.object(flashladder.torch, "node", node):
                    try:
                        texts.append(flashladder.torch.attention(*tensors, **{**self.CPU, **options}).tolist())
                    except Exception as error:
                        texts.append((type(error), str(error)))
            np.testing.assert_equal(*texts)

    def test_an_interrupt_is_not_lost(self):
        q, k, v = self.tensors(d=40)  # no other test asks for the stages of this one
        with mock.patch.object(flashladder.torch, "_chosen", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            flashladder.torch.attention(q, k, v, **self.CPU)
        self.assertEqual(flashladder.torch.attention(q, k, v, **self.CPU).shape, q.shape)

    def test_a_node_that_cannot_be_loaded(self):
        with mock.patch.object(importlib, "import_module", side_effect=ImportError("undefined symbol")), \
                self.assertWarnsRegex(UserWarning, "cannot be loaded.*build it again.*undefined symbol"):
            self.assertIsNone(flashladder.torch._node(torch.__version__))

    def test_another_version(self):
        self.assertIs(flashladder.torch._node(torch.__version__), flashladder.torch.node)
        for version in ("0.1.0", torch.__version__ + "1"):
            self.assertIsNone(flashladder.torch._node(version))


class ErrorTest(unittest.TestCase):
    def fails(self, error, message, stage, *arrays, **options):
        with self.assertRaisesRegex(error, message):
            flashladder.forward(stage, *arrays, **options)

    def test_stages(self):
        self.fails(ValueError, "stage 7 does not exist: this build has 00 naive_cpu, 01", 7, *inputs())
        self.fails(ValueError, "stage 'flash' does not exist", "flash", *inputs())
        self.fails(TypeError, "stage is True: give a number", True, *inputs())
        self.fails(TypeError, "stage is 1.0: give a number", 1.0, *inputs())
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
        half = [x.astype("f2") for x in (q, k, v)]
        rows = np.zeros((*q.shape[:-1], q.shape[-1] + 4), "f2")[..., :q.shape[-1]]
        self.fails(ValueError, "a row of Q does not start at a multiple of 16 bytes: make its strides multiples of 8", 20,
                   rows, *half[1:])
        odd = np.zeros(v.size + 16, "f2")
        odd = odd[(-odd.ctypes.data // 2) % 8 + 4:][:v.size].reshape(v.shape)
        self.fails(ValueError, "a row of V does not start at a multiple of 16 bytes", 20, *half[:2], odd)

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
        for scale, said in (("x", "'x'"), ("0.5", "'0.5'"), (True, "True"), (10**400, "a int"), ([1], r"\[1\]"),
                            (np.ones((3, 40)), "a ndarray")):
            self.fails(TypeError, f"^scale is {said}: give a finite number, or None for", 2, *inputs(), scale=scale)
        for scale in (1, np.float32(1), np.array(1.0)):
            self.assertEqual(flashladder.forward(2, *inputs(), scale=scale)[0].tobytes(),
                             flashladder.forward(2, *inputs(), scale=1.0)[0].tobytes())

    def test_causal(self):
        for causal, said in ((0.125, "0.125"), (1, "1"), (None, "None"), ("no", "'no'"),
                             (np.ones((3, 40)), "a ndarray")):
            self.fails(TypeError, f"^causal is {said}: give True or False; .* scale, the next argument$", 2, *inputs(),
                       causal)
        for causal in (False, True):
            self.assertEqual(flashladder.forward(2, *inputs(), np.bool_(causal))[0].tobytes(),
                             flashladder.forward(2, *inputs(), causal)[0].tobytes())

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
                        holds = self.assertLessEqual if form["random_too"] else self.assertEqual
                        holds(form["value"], form["measured"], form)
                        self.assertEqual(ledger["counts"].get(form["counter"], form["measured"]), form["measured"], form)

    def test_a_stage_by_its_number_as_text(self):
        self.assertEqual(flashladder.ledger("29", rows=8, d=32)["name"], "tuned")

    def test_other_numbers_may_need_more(self):
        ledger = flashladder.ledger(29, rows=256, scale=5.0)
        for form in ledger["closed_forms"]:
            self.assertEqual(form["least"], form["counter"] in ("exp", "exp2", "mul"))
            (self.assertGreater if form["least"] else self.assertEqual)(form["measured"], form["value"], form)

    def test_wrong_sizes(self):
        for error, said, sizes in ((TypeError, "rows is 1.5: give a whole number", {"rows": 1.5}),
                                   (TypeError, "heads is True: give a whole number", {"heads": True}),
                                   (ValueError, "rows is 0: give a whole number from 1 to", {"rows": 0}),
                                   (ValueError, "keys is 1000000000000000000000000000000: give", {"keys": 10**30}),
                                   (MemoryError, "rows 2000000000.* do not fit into memory: give smaller", {
                                       "rows": 2 * 10**9, "heads": 10**6})):
            with self.subTest(sizes=sizes), self.assertRaisesRegex(error, said):
                flashladder.ledger(29, **sizes)

    def test_of_the_backward_pass(self):
        for stage in BACKWARD_KERNELS:
            with self.subTest(stage=str(stage)):
                ledger = flashladder.ledger(stage, backward=True, causal=True, rows=77, keys=130, heads=4, kv_heads=2, d=32)
                self.assertGreater(len(ledger["closed_forms"]), 5)
                for form in ledger["closed_forms"]:
                    self.assertEqual(form["value"], form["measured"], form)
        self.assertEqual(flashladder.ledger(30, backward=True, rows=64, d=32)["counts"]["global.m.read_bytes"], 4 * 2 * 2 * 64)
        with self.assertRaisesRegex(ValueError, "stage 13 fa2_sequence_parallel has no backward pass"):
            flashladder.ledger(13, backward=True)
        with self.assertRaisesRegex(ValueError, "of random arrays"):
            flashladder.ledger(31, *inputs(), backward=True)

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
        with self.assertRaisesRegex(TypeError, "causal is 0.125: give True or False"):
            flashladder.ledger(13, causal=0.125)
        with self.assertRaisesRegex(TypeError, "scale is 'x': give a finite number"):
            flashladder.ledger(13, scale="x")
        with self.assertRaisesRegex(ValueError, "it takes 32, 64 and 128"):
            flashladder.ledger(13, d=48)


class StagesTest(unittest.TestCase):
    def test_a_gpu_may_run_some_stages_and_not_others(self):
        runs, not_here = KERNELS[0], KERNELS[-1]
        with mock.patch.object(flashladder._core, "unavailable", lambda number, backend: {
                (not_here.number, "cuda"): "why"}.get((number, backend), "")):
            self.assertEqual((runs.backends, not_here.backends), (("emulator", "cuda"), ("emulator",)))

    def test_stages(self):
        by_number = {stage.number: stage for stage in STAGES}
        self.assertEqual([stage.number for stage in STAGES], sorted(by_number))
        self.assertEqual(str(by_number[2]), "02 tiled_cpu")
        self.assertEqual((by_number[0].before, by_number[1].before, by_number[10].before), (None, 0, 2))
        self.assertEqual((by_number[2].head_dims, by_number[13].head_dims), (None, (32, 64, 128)))
        self.assertEqual((by_number[2].dtypes, by_number[2].backends), (("float32",), ("cpu",)))
        self.assertEqual(by_number[13].backends[0], "emulator")
        for number, passes in ((13, (True, False)), (10, (True, True)), (30, (False, True))):
            stage = next(stage for stage in flashladder.stages() if stage.number == number)
            self.assertEqual((stage.forward, stage.backward), passes)
        for stage in STAGES:
            self.assertTrue(stage.forward and stage.title and stage.idea and stage.claim, stage)

    def test_help(self):
        for text in (flashladder.__doc__, flashladder.forward.__doc__, flashladder.backward.__doc__,
                     flashladder.saved.__doc__, flashladder.ledger.__doc__,
                     flashladder.Stage.__doc__, flashladder.KernelError.__doc__):
            self.assertGreater(len(text), 100)


if __name__ == "__main__":
    unittest.main()
