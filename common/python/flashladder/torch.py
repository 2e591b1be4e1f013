"""Attention for PyTorch that can be trained: the forward pass of one stage and the backward pass of another.

    import torch, flashladder.torch

    q, k, v = (torch.randn(1, 4, 64, 32, requires_grad=True) for _ in range(3))
    flashladder.torch.attention(q, k, v, causal=True).square().mean().backward()
    print(q.grad.shape)

Both passes are operators of PyTorch, torch.ops.flashladder.attention and attention_backward: torch.compile and torch.export
keep them whole. A call that nothing looks at leaves them out. This part of flashladder, and flashladder.flash_attn, need PyTorch.

`node` is a compiled module, where this build has it for this version of PyTorch (CMake's FLASHLADDER_TORCH), else None. It
takes plain calls, of q, k and v with causal and scale, in less of the host's time. What they return is the same, but for
o.grad_fn, which is of another class and has no saved_tensors. Set it to None to leave it out.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import re
import types
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch.autograd import forward_ad

import flashladder

__all__ = ["attention", "stages_for"]

FIRST_VARIANT = 70  # the stages from here on are no faster rungs, but other kinds of attention
UNTRIED: tuple[int, ...] = ()  # stages whose tests no GPU has passed yet: who names none does not get them
# Backward passes that a bias makes slow, and the stage that runs in their place: measured on an H200, 83 has 0.46 to 0.82 of the
# speed of 81 there.
BACKWARD_WITH_BIAS = {83: 81}
MOST_BLOCKS = 65535  # batch entries, or heads, of one launch: what a GPU takes in one direction
NO_PAIR = "stage is {!r}: give one stage, or a pair of which the second has the backward pass"
# Their backward passes give the same bits every time. Of those that take the arrays the first is the fastest, at d = 64,
# 128 and 256, where they were measured.
# From N = 1,024 on stages 64 and 67 are faster than 57. But 64 and 67, which 68 calls, lose bits of dQ where K, or the V of a key,
# has outliers: they have to be named.
DETERMINISTIC = (57, 58, 39)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    scale: float | None = None,
    stage: int | str | flashladder.Stage | tuple[Any, Any] | None = None,
    *,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    prefix: int = 0,
    alibi_slopes: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int | torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    block_map: torch.Tensor | None = None,
    deterministic: bool | None = None,
    return_lse: bool = False,
) -> Any:
    """softmax(scale * Q K^T) V, and in PyTorch's graph its gradients for q, k and v, and for bias and sinks.

    q, k, v  tensors [batch, heads, rows, d] and [batch, kv_heads, keys, d]; heads may share keys. They are read where
             they lie, whatever their strides; one whose rows do not lie as stages take them (contiguous, and in 16
             bits from a multiple of 16 bytes on) is copied
    causal   query i sees key j when j <= i + keys - rows: aligned at the bottom right, where PyTorch's own is_causal is
             aligned at the top left
    scale    factor on the scores, which gets no gradient; None: 1/sqrt(d)
    stage    which stages run: None, a stage, or a pair (forward, backward). A pass that is not named, or that the stage
             has not, is of the highest stage that takes q: stages_for() says which. On the CPU that is an emulated one;
             stage=(2, 0) runs both passes there without the emulator, in float32. With any of the variants, a pass that is
             not named is of the stage that takes it and least else; on Hopper the forward pass is of stage 82 and the backward
             pass of stage 83, where those take them, but with a bias the backward pass is of stage 81, which is faster there.
             Kernels of stages 81 to 83 are compiled at their first call, in some seconds, and kept on disk

    window_size, softcap, prefix, alibi_slopes, bias, sinks, dropout_p, cu_seqlens_q, cu_seqlens_k, block_map
             as in flashladder.forward, in 16 bits; dropout_seed may be a tensor of one int64 on the CPU, or on q's device,
             where the kernels read it when they run. None draws a seed from PyTorch's generator of the CPU, and while a CUDA
             graph is captured from that of the GPU, so that each replay has one of its own. What torch.compile compiles draws
             it on the CPU, and is refused in a CUDA graph: give a seed on the GPU there.
             The slopes get no gradient
    deterministic  whether a backward pass that is not named gives the same bits every time: in 16 bits, without variants,
             that of stage 57 or, above d = 128, 58 on Hopper, and of stage 39 on other GPUs; None: as
             torch.use_deterministic_algorithms() asks for. Else floating point sums may be atomic, in no fixed order
    return_lse     return (o, lse): the logsumexp of each row, too, in float32 [batch, heads, rows]. A loss may
             depend on it: its gradient costs a forward and a backward pass more, in what torch.compile compiles also
             where it is returned and not used. With a softcap, and where bias or sinks require a gradient, it has none

    Returns o, of q's shape and dtype; its dimensions lie in memory in the order of q's, where q is not copied and repeats
    nothing. On a GPU nothing waits for the kernels, in either pass. Under torch.autocast q, k and v are cast to its dtype
    first, as those of PyTorch's own attention are; float64 stays.

    torch.compile, with fullgraph=True too, and torch.export keep both passes whole; torch.func.grad takes no operator of this
    kind, forward mode is refused, and torch.func.vmap calls it once for each entry.

    Where a gradient is required, q, k, v, o and the logsumexp of each row are kept for the backward pass. Stages that
    need more (Stage.saved) compute it in the backward pass, with memory for all scores: they are there to be looked at.
    The gradients have no gradients of their own. Errors are those of stages_for, flashladder.forward and
    flashladder.backward.
    """
    if node is not None and not torch.compiler.is_compiling() and forward_ad._current_level < 0:
        made = node.attention(q, k, v, causal, scale, _numbers(stage), deterministic, return_lse, window_size, softcap, prefix, dropout_p,
                              alibi_slopes, bias, sinks, cu_seqlens_q, cu_seqlens_k, block_map)
        if made is not None:
            return made
    own = flashladder._present(bias=bias, sinks=sinks, alibi_slopes=alibi_slopes, cu_seqlens_q=cu_seqlens_q,
                               cu_seqlens_k=cu_seqlens_k, block_map=block_map)
    watched = _is_watched(q, k, v, *own.values())
    if watched or forward_ad._current_level >= 0:
        _require_tensors({"q": q, "k": k, "v": v} | own)
    if deterministic not in (None, True, False):
        raise TypeError(f"deterministic is {flashladder._shown(deterministic)}: give True, False or None")
    if isinstance(scale, torch.Tensor) and scale.requires_grad:
        raise ValueError("scale requires a gradient, and gets none here: multiply q with it instead")
    if alibi_slopes is not None and alibi_slopes.requires_grad:
        raise ValueError("alibi_slopes requires a gradient, and gets none here: give alibi_slopes.detach()")
    q, k, v = autocast(q, k, v)
    if not dropout_p:
        seed = None
    elif dropout_seed is None:
        seed = drawn_seed(q.device)
    elif isinstance(dropout_seed, torch.Tensor):
        seed = dropout_seed
        if (seed.numel(), seed.dtype) != (1, torch.int64) or seed.device not in (torch.device("cpu"), q.device):
            raise ValueError(f"dropout_seed is {seed.dtype} {list(seed.shape)} on {seed.device}: give one number of int64 on the CPU "
                             "or on q's device")
    else:
        number = flashladder._seed(dropout_seed)
        seed = torch.tensor(number if number < 1 << 63 else number - (1 << 64), device="cpu")
    trains = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad
                                          or (bias is not None and bias.requires_grad) or (sinks is not None and sinks.requires_grad))
    how = flashladder._how(causal, scale, window_size, softcap, prefix, dropout_p)
    stages = _numbers(stage)
    if watched or trains:
        more = (alibi_slopes, cu_seqlens_q, cu_seqlens_k, block_map, seed, *how, stages, trains, deterministic)
        o, lse = (torch.ops.flashladder.attention(q, k, v, bias, sinks, *more) if watched
                  else _Attention.apply(q, k, v, bias, sinks, more))
    else:
        o, lse = _forward(q, k, v, own, how, seed, stages, trains, deterministic, plain=True)
    return (o, lse) if return_lse else o


def _is_watched(*tensors: torch.Tensor) -> bool:
    """Whether something looks at the operators that are called: a compiler, a tracer, a profiler, a mode, a transform, tensors
    of a kind of their own. Where nothing does, they are left out: an operator in Python takes the host longer than a small kernel
    takes a GPU."""
    if (torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or torch._C._is_torch_function_mode_enabled()
            or torch._C._functorch.peek_interpreter_stack() is not None or torch._C._get_tracing_state() is not None
            or torch._C._autograd._profiler_enabled()):
        return True
    return not flashladder._are_memory_alone(tensors, torch)


def _require_tensors(given: dict[str, Any]) -> None:
    """Tensors of PyTorch that attention takes, by name."""
    for name, x in given.items():
        if not isinstance(x, torch.Tensor):
            kind = f"{type(x).__module__}.{type(x).__name__}".removeprefix("builtins.")
            raise TypeError(f"{name} is a {kind}: give tensors of PyTorch")
        if x.layout != torch.strided:
            raise ValueError(f"{name} is laid out as {x.layout}: give {name}.to_dense()")
        if not torch.compiler.is_compiling() and forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None:
            raise NotImplementedError(f"{name} has a tangent: attention has gradients, and no derivatives in forward mode")


def drawn_seed(device: torch.device) -> torch.Tensor:
    """A seed for dropout, from PyTorch's generator of the CPU: a tensor, which torch.compile draws anew at each call. While a CUDA
    graph is captured it is from the generator of the GPU, and stays there: so does each replay of the graph. It is of one dimension,
    which no other seed is."""
    captured = (device.type == "cuda" and not torch.compiler.is_compiling() and torch.cuda.is_initialized()
                and torch.cuda.is_current_stream_capturing())
    return torch.randint(-(2**63), 2**63 - 1, (1,), device=device if captured else "cpu")


def number_of(seed: torch.Tensor) -> int:
    """What flashladder.forward takes as dropout_seed: the same 64 bits, without a sign."""
    return int(seed) & (1 << 64) - 1


def _known_seed(seed: torch.Tensor | None, device: torch.device) -> int:
    """The number of a seed on the CPU; 0 of another. RuntimeError where a CUDA graph would keep one that was drawn."""
    if seed is None or seed.is_cuda:
        return 0
    if seed.dim() and device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("what torch.compile compiles draws the seed of dropout on the CPU, and a CUDA graph is captured here, whose "
                           "replays would all leave out the same: give dropout_seed=torch.randint(2**62, (), device='cuda')")
    return number_of(seed)


def autocast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """q, k and v as torch.autocast casts what PyTorch's own attention is given."""
    if not torch.is_autocast_enabled("cuda") and not torch.is_autocast_enabled("cpu"):
        return tensors
    return tuple([_cast(x) for x in tensors])


def _cast(x: torch.Tensor) -> torch.Tensor:
    device = x.device.type
    if device in ("cuda", "cpu") and x.dtype != torch.float64 and torch.is_autocast_enabled(device):
        return x.to(torch.get_autocast_dtype(device))
    return x


def _numbers(stage: Any) -> tuple[int, ...]:
    """What attention() is given as `stage`, by numbers, -1 where none is named."""
    if stage is None:
        return ()
    named = stage if isinstance(stage, (tuple, list)) else (stage,)
    if len(named) != 2 and isinstance(stage, (tuple, list)):
        raise ValueError(NO_PAIR.format(stage))
    return tuple([-1 if which is None else flashladder._find(which).number for which in named])


def stages_for(
    q: torch.Tensor, stage: Any = None, trains: bool = True, variants: frozenset[str] = frozenset(),
    deterministic: bool | None = None,
) -> tuple[flashladder.Stage, flashladder.Stage | None]:
    """The stages whose forward and backward pass attention(q, ..., stage=stage) runs; without gradients None for the
    second. variants: what is asked for beside plain attention, of the names that Stage.variants has; deterministic as in
    attention(). ValueError where no stage takes q, or one that is named does not."""
    is_pair = isinstance(stage, (tuple, list))
    named = stage if is_pair else (stage, stage)
    if len(named) != 2:
        raise ValueError(NO_PAIR.format(stage))
    pair, dtype, d = [], str(q.dtype).removeprefix("torch."), q.shape[-1] if q.dim() else 0
    for which, needed in zip(named, ("forward", "backward") if trains else ("forward",)):
        found = None if which is None else flashladder._find(which, needed if is_pair else "")
        if found is None or not getattr(found, needed):
            found = _best(needed, dtype, d, q.device, frozenset(variants))
            if needed == "backward":
                found = _deterministic(found, deterministic, frozenset(variants), dtype, d, q.device)
        else:
            _require(found, dtype, d, q)
        pair.append(found)
    return pair[0], pair[1] if trains else None


def _require(stage: flashladder.Stage, dtype: str, d: int, q: torch.Tensor) -> None:
    """ValueError where the stage does not take such arrays, RuntimeError where it cannot run where they lie."""
    if dtype not in stage.dtypes:
        raise ValueError(f"stage {stage} does not take {dtype}: it takes {' and '.join(stage.dtypes)}")
    if stage.head_dims is not None and d not in stage.head_dims:
        raise ValueError(f"stage {stage} does not take head dimension {d}: it takes "
                         f"{', '.join(map(str, stage.head_dims))}")
    backend = flashladder._choose(stage, None, q.is_cuda)
    with _current(q.device):
        if reason := flashladder._core.unavailable(stage.number, backend):
            raise RuntimeError(reason)


def _deterministic(found: flashladder.Stage, asked: bool | None, variants: frozenset[str], dtype: str, d: int,
                   device: torch.device) -> flashladder.Stage:
    """`found`, or a stage that takes such arrays, too, and whose backward pass is deterministic, if that is asked for."""
    if not (torch.are_deterministic_algorithms_enabled() if asked is None else asked):
        return found
    if not variants:
        for one in map(flashladder._find, DETERMINISTIC):
            if _takes(one, "backward", dtype, d, device):
                return one
    what = f"with {' and '.join(sorted(variants))}" if variants else f"for {' and '.join(found.dtypes)}"
    text = f"no stage has a backward pass {what} that is known to give the same bits every time"
    if asked is None and torch.is_deterministic_algorithms_warn_only_enabled():
        warnings.warn(f"{text}: stage {found} runs", stacklevel=4)
        return found
    raise ValueError(f"{text}: leave deterministic out, or name a stage")


def _takes(one: flashladder.Stage, needed: str, dtype: str, d: int, device: torch.device) -> bool:
    """Whether a stage has a pass, and takes such arrays on this device."""
    takes_d = d in one.head_dims if one.head_dims is not None else 0 < d <= 256
    with _current(device):
        runs = "cuda" in one.backends if device.type == "cuda" else one.backends[:1] in (("cpu",), ("emulator",))
    return getattr(one, needed) and dtype in one.dtypes and takes_d and runs


@functools.lru_cache
def _best(needed: str, dtype: str, d: int, device: torch.device, variants: frozenset[str]) -> flashladder.Stage:
    """The stage with the largest number that has the pass, takes such arrays on this device, is not untried and, backward, does
    not exist for its bits. Where variants are asked for, of the stages that take them the one that takes the fewest; but on Hopper
    one for Hopper first, unless BACKWARD_WITH_BIAS has another in its place."""
    on_gpu = device.type == "cuda"
    if variants:
        taking = sorted((stage for stage in flashladder.stages()
                         if variants <= {*stage.variants} and stage.number not in UNTRIED),
                        key=lambda stage: (stage.hopper != on_gpu, len(stage.variants), -stage.number))
        if not taking:
            raise ValueError(f"no stage of this build takes {' and '.join(sorted(variants))} together: './ladder list' says "
                             "what each takes")
    else:
        taking = [stage for stage in reversed(flashladder.stages())
                  if stage.number < FIRST_VARIANT and stage.number not in UNTRIED
                  and not (needed == "backward" and stage.name.startswith("deterministic"))]
    for one in taking:
        if _takes(one, needed, dtype, d, device):
            instead = BACKWARD_WITH_BIAS.get(one.number) if "bias" in variants else None
            return next((other for other in taking if other.number == instead), one)
    raise ValueError(f"no stage of this build has a {needed} pass for {dtype} and head dimension {d}"
                     f"{''.join(f', {name}' for name in sorted(variants))} on "
                     f"{'a GPU' if on_gpu else 'the CPU'}: './ladder list' says what each takes"
                     + ("; for a forward pass alone call within torch.no_grad()" if needed == "backward" else ""))


def _current(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Makes a GPU the current one: not every stage runs on every GPU."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


_OPERATORS = torch.library.Library("flashladder", "DEF")
_VARIANT = ("Tensor? bias, Tensor? sinks, Tensor? alibi_slopes, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? block_map, "
            "Tensor? seed, bool causal, float? scale, int[] window_size, float softcap, int prefix, float dropout_p, "
            "int[] stages")
_NAMES = [argument.split()[1] for argument in _VARIANT.split(", ")]
_OPERATORS.define(f"attention(Tensor q, Tensor k, Tensor v, {_VARIANT}, bool trains, bool? deterministic) -> (Tensor, Tensor)")
_OPERATORS.define(f"attention_backward(Tensor do, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, {_VARIANT}, "
                  "bool? deterministic) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")


def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own: dict[str, Any], how: flashladder._How, seed: torch.Tensor | None,
    stages: Any, trains: bool, deterministic: bool | None, plain: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """O and L. own are the arrays of variants that are given; plain: no tensor is more than its memory, which has been looked at."""
    if _is_too_large(q, k, v, own):
        o, lse = _shapes_forward(q)
        for own_seed, b, h, g in parts_of(q, k, seed):
            o[b, h], lse[b, h] = _forward(q[b, h], k[b, g], v[b, g], _of_part(own, b, h), how, own_seed, stages, trains, deterministic)
        return o, lse
    own = _with_seed(own, seed)
    first, _ = _chosen(q, stages, trains, own, how, deterministic)
    rows = _rows(q)
    o, lse = flashladder._forward(first, rows, _rows(k), _rows(v), own, how, _known_seed(seed, q.device),
                                  plain=plain and seed is None)
    return o if rows is q else _shapes_forward(q)[0].copy_(o), lse  # it lies as it is said to


def _backward(
    do: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, own: dict[str, Any],
    how: flashladder._How, seed: torch.Tensor | None, stages: Any, deterministic: bool | None, plain: bool = False,
) -> tuple[Any, ...]:
    """The gradients of q, k, v, bias and sinks; None for a bias, or sinks, that are not given. own and plain as in _forward()."""
    if _is_too_large(q, k, v, own):
        dq, dk, dv, dbias, dsinks = _shapes_backward(do, q, k, v, o, lse, own.get("bias"), own.get("sinks"))
        for gradient in (dbias, dsinks):  # of all parts that share them it is added up
            gradient.zero_()
        for own_seed, b, h, g in parts_of(q, k, seed):
            dq[b, h], dk[b, g], dv[b, g], of_bias, of_sinks = _backward(
                do[b, h], q[b, h], k[b, g], v[b, g], o[b, h], lse[b, h].contiguous(), _of_part(own, b, h), how, own_seed, stages,
                deterministic)
            if of_bias is not None:
                _shared(dbias, b, h).add_(of_bias)
            if of_sinks is not None:
                dsinks[h].add_(of_sinks)
        return dq, dk, dv, dbias, dsinks
    own = _with_seed(own, seed)
    _, second = _chosen(q, stages, True, own, how, deterministic)
    assert second is not None
    q, k = _rows(q), _rows(k)
    saved = flashladder.saved(second, q, k, *how[:2]) if second.saved else None
    dq, dk, dv, *others = flashladder._backward(second, q, k, _rows(v), _rows(o), lse, _rows(do), saved, own, how,
                                                _known_seed(seed, q.device), plain=plain and seed is None)
    return dq, dk, dv, others.pop(0) if "bias" in own else None, others.pop(0) if "sinks" in own else None


def _apart(
    bias: Any, sinks: Any, alibi_slopes: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, block_map: Any, seed: torch.Tensor | None,
    causal: bool, scale: float | None, window_size: Any, softcap: float, prefix: int, dropout_p: float, *rest: Any,
) -> tuple[Any, ...]:
    """What an operator is given behind its first tensors, as _forward() and _backward() take it. attention() has checked the window;
    an operator that is called by itself has not, and gives a list."""
    own = flashladder._present(bias=bias, sinks=sinks, alibi_slopes=alibi_slopes, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
                               block_map=block_map)
    window = window_size if type(window_size) is tuple else flashladder._window(tuple(window_size))
    return own, (causal, scale, window, softcap, prefix, dropout_p), seed, *rest


def _forward_operator(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *inputs: Any,
                      plain: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    return _forward(q, k, v, *_apart(*inputs), plain=plain)


def _plain_backward(do: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor,
                    *inputs: Any) -> tuple[Any, ...]:
    return _backward(do, q, k, v, o, lse, *_apart(*inputs), plain=True)


def _backward_operator(do: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor,
                       *inputs: Any) -> tuple[torch.Tensor, ...]:
    """An operator returns tensors alone: an empty one where there is no bias, and no sinks."""
    return tuple([q.new_empty(0, dtype=torch.float32) if x is None else x
                  for x in _backward(do, q, k, v, o, lse, *_apart(*inputs))])


def _is_too_large(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own: dict[str, Any]) -> bool:
    """Whether q has more batch entries, or heads, than one launch takes, and all fits together: the errors of what does not are
    those of any other call."""
    if q.dim() != 4 or (q.shape[0] <= MOST_BLOCKS and q.shape[1] <= MOST_BLOCKS):
        return False
    batch, heads = q.shape[:2]
    of_heads, of_blocks = ([own[name] for name in names if name in own] for names in (_OF_HEADS, _OF_BLOCKS))
    return (k.dim() == v.dim() == 4 and k.shape[:2] == v.shape[:2] and k.shape[0] == batch and k.shape[1] > 0
            and heads % k.shape[1] == 0 and all(x.shape == (heads,) for x in of_heads)
            and all(x.dim() == 4 and x.shape[0] in (1, batch) and x.shape[1] in (1, heads) for x in of_blocks))


_OF_HEADS = ("sinks", "alibi_slopes")  # arrays of variants of which each head has its own part
_OF_BLOCKS = ("bias", "block_map")  # and each batch entry, too, unless they share it


def parts_of(q: torch.Tensor, k: torch.Tensor, seed: torch.Tensor | None) -> Iterator[tuple[Any, slice, slice, slice]]:
    """The launches that attention() makes of q and k: of each its seed, which batch entries it has, which heads, and which heads of
    k. Dropout goes by the numbers of batch entry and head in a launch, so that each has a seed of its own, far from those of others."""
    group = q.shape[1] // k.shape[1]
    if group > MOST_BLOCKS:
        raise ValueError(f"{group} heads of q share one of k and v: at most {MOST_BLOCKS} may")
    some, apart = MOST_BLOCKS // group, 0  # heads of k; of the seed from the first one's
    for first in range(0, q.shape[0], MOST_BLOCKS):
        for head in range(0, k.shape[1], some):
            yield (None if seed is None else seed + apart, slice(first, first + MOST_BLOCKS),
                   slice(head * group, (head + some) * group), slice(head, head + some))
            apart = (apart + _ODD + 2**63) % 2**64 - 2**63


_ODD = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: its multiples lie far apart


def _shared(x: torch.Tensor, batch: slice, heads: slice) -> torch.Tensor:
    """These batch entries and heads of x, whose first two dimensions are 1 where all share it."""
    return x[batch if x.shape[0] > 1 else slice(None), heads if x.shape[1] > 1 else slice(None)]


def _of_part(own: dict[str, Any], batch: slice, heads: slice) -> dict[str, Any]:
    """The arrays of variants for these batch entries and heads; contiguous, as stages take them."""
    return {name: x[heads] if name in _OF_HEADS else _shared(x, batch, heads).contiguous() if name in _OF_BLOCKS else x
            for name, x in own.items()}


def _with_seed(own: dict[str, Any], seed: torch.Tensor | None) -> dict[str, Any]:
    """With a seed that kernels read, in its halves, as flashladder._forward takes it."""
    return own if seed is None or not seed.is_cuda else own | {"dropout_seed": seed.reshape(1).view(torch.int32)}


def _chosen(q: torch.Tensor, stages: Any, trains: bool, own: dict[str, Any], how: flashladder._How,
            deterministic: bool | None) -> tuple[flashladder.Stage, flashladder.Stage | None]:
    """As stages_for, of what an operator is given; what it has said is remembered."""
    causal, _, (left, right), softcap, prefix, dropout_p = how
    mode = torch.get_deterministic_debug_mode() if trains and deterministic is None else 0
    asked = (left != -1 or (right != -1 and not causal), softcap != 0, prefix != 0, dropout_p != 0)
    key = (q.dtype, q.shape[-1] if q.dim() else 0, q.device, *stages, trains, deterministic, mode, *asked, *own)
    pair = _pairs.get(key)
    if pair is None:
        names = {"alibi_slopes": "alibi", "cu_seqlens_q": "packed sequences", "cu_seqlens_k": "packed sequences", "block_map": "block map",
                 "dropout_seed": "dropout"}
        variants = {name for name, is_asked in zip(("window", "softcap", "prefix", "dropout"), asked) if is_asked}
        named = [None if number < 0 else number for number in stages]
        pair = stages_for(q, None if not named else named[0] if len(named) == 1 else tuple(named), trains,
                          frozenset(variants | {names.get(name, name) for name in own}), deterministic)
        if mode != 1:  # which warns each time
            _pairs[key] = pair
    return pair


_pairs: dict[tuple[Any, ...], tuple[flashladder.Stage, flashladder.Stage | None]] = {}


def _shapes_forward(q: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty_strided(q.shape, flashladder._strides_like(q)), q.new_empty(q.shape[:-1], dtype=torch.float32)


def _shapes_backward(
    do: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor,
    bias: torch.Tensor | None, sinks: torch.Tensor | None, *_: Any
) -> tuple[torch.Tensor, ...]:
    of_q, of_k, of_v = (x.new_empty(x.shape) for x in (q, k, v))
    none = q.new_empty(0, dtype=torch.float32)
    return of_q, of_k, of_v, none if bias is None else bias.new_empty(bias.shape), none.clone() if sinks is None else \
        sinks.new_empty(sinks.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    ctx.set_materialize_grads(False)  # where nothing depends on O, or on L, no zeros are made for it
    if inputs[_SOFTCAP] != 0 or any(ctx.needs_input_grad[3:5]):
        ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*output, *inputs[:_TENSORS])
    ctx.others = *inputs[_TENSORS:-2], inputs[-1]  # but whether it trains


def _gradients(ctx: Any, do: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:
    o, lse, q, k, v, *tensors = saved = ctx.saved_tensors
    # With create_graph=True the operator says what is wrong.
    watched = torch.is_grad_enabled() or _is_watched(*[x for x in (do, dlse, *saved) if x is not None])
    call = torch.ops.flashladder.attention_backward if watched else _plain_backward
    if do is None and dlse is not None and not any(ctx.needs_input_grad[3:5]):  # nothing depends on O
        dq, dk, dv, dbias, dsinks = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v), None, None
    else:
        dq, dk, dv, dbias, dsinks = call(torch.zeros_like(o) if do is None else do, q, k, v, o, lse, *tensors, *ctx.others)
    if dlse is not None:
        forward = torch.ops.flashladder.attention if watched else _forward_operator
        of_q, of_k = _gradients_of_lse(saved, ctx.others, dlse, forward, call)
        dq, dk = (dq + of_q).to(q.dtype), (dk + of_k).to(k.dtype)
    learned = (dbias if tensors[0] is not None else None, dsinks if tensors[1] is not None else None)
    return (dq, dk, dv, *learned, *_NO_GRADIENTS)


_TENSORS = 3 + _NAMES.index("causal")  # of an operator's inputs so many are tensors: they come first
_SOFTCAP = 3 + _NAMES.index("softcap")
_NO_GRADIENTS = [None] * (len(_NAMES) - 2 + 2)  # of all but q, k, v, bias and sinks


def _gradients_of_lse(saved: Any, others: Any, dlse: torch.Tensor, forward: Any, backward: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What q and k get of the gradient dL of the logsumexp L, in float32. dL / dS = P, so that row i of dQ is scale dL_i times
    row i of P K, a forward pass with K in V's place; and dK = P^T (scale dL Q), the dV of a backward pass with that as dO.
    L is that of P before dropout."""
    o, lse, q, k, v, *tensors, _ = saved  # the last one is the seed
    causal, scale, window_size, softcap, prefix, _, stages, deterministic = others
    how = (causal, scale, window_size, softcap, prefix, 0.0, stages)
    weight = dlse * (q.shape[-1] ** -0.5 if scale is None else scale)
    mean_k = forward(q, k, k, *tensors, None, *how, False, deterministic)[0]
    of_group = weight.unflatten(1, (k.shape[1], -1))  # [batch, kv_heads, heads that share them, rows]
    largest = of_group.abs().amax((2, 3), keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    do = ((of_group / largest).flatten(1, 2)[..., None] * q).to(q.dtype)  # in 16 bits numbers of about 1 fit best
    return weight[..., None] * mean_k, largest * backward(do, q, k, v, o, lse, *tensors, None, *how, deterministic)[2]


class _Attention(torch.autograd.Function):
    """The operator without PyTorch's dispatcher."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: Any, sinks: Any,
                more: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = (q, k, v, bias, sinks, *more)
        output = _forward_operator(*inputs, plain=True)
        _keep(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, do: torch.Tensor, dlse: Any) -> tuple[Any, ...]:
        return (*_gradients(ctx, do, dlse)[:5], None)


def _no_second_gradients(_ctx: Any, *_: Any) -> NoReturn:
    raise RuntimeError("the gradients of attention have no gradients of their own: leave create_graph=True out")


_OPERATORS.impl("attention", _forward_operator, "CompositeExplicitAutograd")
_OPERATORS.impl("attention_backward", _backward_operator, "CompositeExplicitAutograd")
torch.library.register_fake("flashladder::attention", _shapes_forward)
torch.library.register_fake("flashladder::attention_backward", _shapes_backward)
torch.library.register_autograd("flashladder::attention", _gradients, setup_context=_keep)
torch.library.register_autograd("flashladder::attention_backward", _no_second_gradients)


def _rows(x: torch.Tensor) -> torch.Tensor:
    """x, copied where its rows do not lie as stages take them: PyTorch chooses how dO lies, not the caller."""
    strides = x.stride()
    if len(strides) == 4 and strides[3] == 1 and not ((strides[0] | strides[1] | strides[2]) % 8 or x.data_ptr() % 16):
        return x  # whatever its dtype
    size = x.element_size()
    begin = 16 if size == 2 else size  # a row begins at a multiple of so many bytes
    steps = [stride * size for stride, n in zip(strides[:-1], x.shape) if n > 1]
    fits = x.dim() == 0 or strides[-1] == 1 and not any(at % begin for at in (*steps, x.data_ptr()))
    return x if fits else x.clone(memory_format=torch.contiguous_format)  # contiguous() leaves some where they are


def _node(version: str) -> types.ModuleType | None:
    """The node that is compiled for this version of PyTorch; None where there is none."""
    name = f"flashladder._torch_{re.sub('[^0-9A-Za-z]', '_', version)}"
    calls = flashladder._core.calls(torch.Tensor)
    if calls is None or importlib.util.find_spec(name) is None:
        return None
    try:
        found = importlib.import_module(name)
    except ImportError as error:
        warnings.warn(f"the node for PyTorch {version} cannot be loaded, and calls take the host longer without it: build it again, as "
                      f"docs/flash_attn.md says ({error})", stacklevel=2)
        return None
    found.use(calls, MOST_BLOCKS, _chosen_for_node, _gradients_for_node)
    return found


def _chosen_for_node(q: torch.Tensor, stages: tuple[int, ...], trains: bool, deterministic: bool) -> tuple[int, int] | None:
    """The numbers of the stages that run, -1 where there is no backward pass; None where the node is to decline."""
    first, second = _chosen(q, stages, trains, {}, _PLAIN, deterministic)
    if second is None:
        return first.number, -1
    return None if second.saved else (first.number, second.number)


def _gradients_for_node(
    do: torch.Tensor | None, dlse: torch.Tensor | None, saved: tuple[torch.Tensor, ...], causal: bool, scale: float | None,
    stages: tuple[int, ...], deterministic: bool | None,
) -> tuple[torch.Tensor, ...]:
    """dQ, dK and dV where the node declines in its backward pass; saved are o, lse, q, k and v."""
    none = [None] * (_TENSORS - 3)  # of variants
    ctx = types.SimpleNamespace(saved_tensors=(*saved, *none), others=(causal, scale, *_PLAIN[2:], stages, deterministic),
                                needs_input_grad=[False] * 5)  # of q, k and v that is not asked
    return tuple(_gradients(ctx, do, dlse)[:3])


_PLAIN: flashladder._How = (False, None, (-1, -1), 0.0, 0, 0.0)  # what _how() says of plain attention
node = _node(torch.__version__)
