"""FlashAttention as a ladder: its stages, callable on arrays.

    import numpy, flashladder

    q = numpy.random.randn(1, 8, 512, 64).astype("float32")     # [batch, heads, rows, d]
    k, v = numpy.random.randn(2, 1, 2, 512, 64).astype("float32")  # fewer heads: grouped-query attention
    o, lse = flashladder.forward("fa2_split_q", q, k, v, causal=True)
    dq, dk, dv = flashladder.backward("fa2_backward", q, k, v, o, lse, do=o, causal=True)
    flashladder.ledger("fa2_split_q", rows=512)["counts"]["barriers"]

stages() lists the rungs and says which pass each has. forward() and backward() run one, on arrays of NumPy, PyTorch,
CuPy, JAX or any other library with DLPack, without copying them; on a GPU on those of PyTorch and CuPy alone.
ledger() counts what a stage of kernels moves and computes. flashladder.torch has both passes as one function of
PyTorch, to train with.

A stage is named by its number (13), its name ("fa2_sequence_parallel") or a Stage. The stages 0x are C++ for the CPU.
All others are CUDA kernels: they run on a GPU, where the arrays lie there and the module was built with nvcc, and
on the CPU in an emulator, slowly.

Errors say what is wrong, where, and how to mend it: ValueError (shapes, strides, devices, unknown stages), TypeError
(dtypes, things that are no arrays), RuntimeError (a backend that cannot run here, a GPU that fails), MemoryError, or
what PyTorch raises then, torch.OutOfMemoryError, and KernelError (a kernel did what it must not).
"""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from . import _core
from ._core import KernelError

__all__ = ["KernelError", "Stage", "backward", "forward", "ledger", "saved", "stages"]
__version__: str = _core.version
MOST_OF_A_SIZE = 2**31 - 1
MOST_KEYS = 1 << 62  # more than there can be


@dataclass(frozen=True)
class Stage:
    """One rung of the ladder.

    number     NN of its folder stages/NN_name
    name       the rest of the folder's name
    title      a word or two
    idea       the one idea, one line
    claim      the number that a test proves, one line
    before     number of the stage that it is measured against; None for the first
    dtypes     what it takes and computes in: "float32", "float16", "bfloat16"
    head_dims  head dimensions that it takes; None: any up to 256
    variants   what it takes beside plain attention: some of "window", "softcap", "prefix", "alibi", "bias", "sinks", "dropout",
               "packed sequences" and "block map"
    forward    whether it has a forward pass
    backward   whether it has a backward pass
    saved      what its backward pass is given of the forward pass beside o and lse, by name: "m", "l", "p"; see saved()
    kernels    whether it is CUDA kernels; else it is C++ for the CPU
    hopper     whether on a GPU it needs one of compute capability 9.0
    backends   what it can run on here: "cpu", or those of "emulator" and "cuda" that can
    """

    number: int
    name: str
    title: str
    idea: str
    claim: str
    before: int | None
    dtypes: tuple[str, ...]
    head_dims: tuple[int, ...] | None
    variants: tuple[str, ...]
    forward: bool
    backward: bool
    saved: tuple[str, ...]
    kernels: bool
    hopper: bool

    @property
    def backends(self) -> tuple[str, ...]:
        """What it can run on here. Asks CUDA for its GPUs, which importing does not."""
        return tuple(name for name in self._kinds if not _core.unavailable(self.number, name))

    @property
    def _kinds(self) -> tuple[str, ...]:
        return ("emulator", "cuda") if self.kernels else ("cpu",)

    def __str__(self) -> str:
        return f"{self.number:02} {self.name}"


_stages = tuple(Stage(**fields) for fields in _core.stages())
_by_name = {name: one for one in _stages for name in (one.number, one.name, f"{one.number:02}", f"{one.number:02}_{one.name}")}


def stages() -> list[Stage]:
    """All stages of this build, in order of their numbers."""
    return list(_stages)


def forward(
    stage: int | str | Stage,
    q: Any,
    k: Any,
    v: Any,
    causal: bool = False,
    scale: float | None = None,
    backend: str | None = None,
    *,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    prefix: int = 0,
    alibi_slopes: Any = None,
    bias: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    dropout_seed: Any = 0,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    seqused_k: Any = None,
    check_seqlens: bool = False,
    block_map: Any = None,
) -> tuple[Any, Any]:
    """Attention by one stage: O = softmax(scale * Q K^T) V, and the logsumexp of the scores.

    stage    number, name or Stage
    q        [batch, heads, rows, d]
    k, v     [batch, kv_heads, keys, d]; heads is a multiple of kv_heads (grouped-query attention)
    causal   query i sees key j when j <= i + keys - rows: aligned at the bottom right
    scale    factor on the scores; None: 1/sqrt(d)
    backend  "cpu" for stages of C++, "emulator" or "cuda" for kernels; None: what the arrays' device asks for

    Only some stages take what follows (./ladder list):
    window_size  (left, right): query i sees so many keys before its own, i + keys - rows, and behind it; -1: all
    softcap      a score s becomes softcap * tanh(s / softcap), the scale included; 0: it stays
    prefix       with causal: every query sees the first so many keys, too
    alibi_slopes float32 [heads]: alibi_slopes[h] * |i + keys - rows - j| is taken from the score of query i and key j
    bias         float32 [batch, heads, rows, keys], each of the first three the scores' size or 1, where all share the
                 numbers: they are added to the scores, which have the scale in them, before a softcap. -inf hides a key
    sinks        float32 [heads]: each head has this score beside those of its keys, with a value of 0
    dropout_p    this share of the probabilities is left out by chance, from 0 to below 1, in effect the nearest multiple
                 of 1/256; the others are made larger for it
    dropout_seed the same seed leaves out the same ones, in both passes; a whole number from 0 to 2^64 - 1, or int32 [2], its low
                 and its high 32 bits, of q's library and on its device: kernels read it when they run, and who replays a CUDA
                 graph may have put another one there
    cu_seqlens_q, cu_seqlens_k  int32 [sequences + 1]: sequences are packed one after the other in the rows and the keys of
                 a batch of 1; where each begins, and where the last ends. Each is attention of its own, with the masks of
                 its own lengths. A sequence may have no rows, or no keys
    seqused_k    with them, int32 [sequences]: of each sequence only the first so many keys are used
    check_seqlens  on a GPU these three are read there alone, and wrong ones do harm: True copies them to the host first
                 and checks them, as it is always done on the CPU
    block_map    int32 [batch, heads, ceil(rows / 128), ceil(keys / 128)], the first two 1 where all share it: where it is 0,
                 these 128 queries see none of these 128 keys, and the block costs nothing. Not with packed sequences

    Returns (o, lse), arrays of q's library: o [batch, heads, rows, d] of q's dtype, lse [batch, heads, rows] in float32.
    Both are contiguous, but in PyTorch o's dimensions lie in memory in the order of q's, unless q repeats some: where q is
    [batch, rows, heads, d] transposed, so is o, and transposing it back copies nothing. A row that sees no key gives
    o = 0 and lse = -inf; with sinks its lse is that of the sink.

    The arrays are read where they lie, whatever their strides, except that the last dimension must be contiguous, none
    may run backwards, and rows of 16-bit numbers begin at multiples of 16 bytes. All have one dtype, of those in
    stage.dtypes, and lie on one device. (bfloat16 in NumPy is that of ml_dtypes.)

    On a GPU, arrays of PyTorch and CuPy are taken. The kernels run on that library's current stream, and the call
    returns without waiting for them, as the library's own functions do; the results are allocated by the library.
    For other libraries on the CPU the results are made with NumPy and handed over by the library's from_dlpack.

    Other Python threads run meanwhile. Calls on the emulator wait for each other.
    """
    found = _find(stage, "forward")
    seed, in_memory = _seed_or_array(dropout_seed)
    own = _present(alibi_slopes=alibi_slopes, bias=bias, sinks=sinks, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
                   seqused_k=seqused_k, block_map=block_map, dropout_seed=in_memory if dropout_p else None)
    how = _how(causal, scale, window_size, softcap, prefix, dropout_p)
    return _forward(found, q, k, v, own, how, seed, backend, check_seqlens)


def backward(
    stage: int | str | Stage,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    do: Any,
    causal: bool = False,
    scale: float | None = None,
    backend: str | None = None,
    saved: Mapping[str, Any] | None = None,
    *,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    prefix: int = 0,
    alibi_slopes: Any = None,
    bias: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    dropout_seed: Any = 0,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    check_seqlens: bool = False,
    block_map: Any = None,
) -> tuple[Any, ...]:
    """The gradients of attention by one stage: what dO, the gradient of O, makes of Q, K and V.

    stage    number, name or Stage, one whose `backward` is true
    q, k, v  as forward() was given them, and so causal, scale and all that stands behind saved
    o, lse   as forward() returned them, of any stage: lse is in float32 and contiguous
    do       gradient of o, of o's shape and dtype
    backend  as in forward()
    saved    what the stage needs of the forward pass beside o and lse, an array for each name in stage.saved, as saved()
             gives it; None for stages that need nothing more

    Returns (dq, dk, dv), arrays of q's library, contiguous, of the shapes and the dtype of q, k and v. Where heads share
    keys, dk and dv are sums over these heads. A row that sees no key has a gradient of 0 and adds nothing to others.
    With a bias, dbias follows, in float32 and of its shape: where heads, rows or batch entries share its numbers, of their
    sums; and with sinks then dsinks, in float32 [heads].

    Memory, devices, streams and threads are as in forward(). Stages that add atomically may give sums that differ in
    their last bits from call to call, on a GPU.
    """
    found = _find(stage, "backward")
    seed, in_memory = _seed_or_array(dropout_seed)
    own = _present(alibi_slopes=alibi_slopes, bias=bias, sinks=sinks, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
                   block_map=block_map, dropout_seed=in_memory if dropout_p else None)
    how = _how(causal, scale, window_size, softcap, prefix, dropout_p)
    return _backward(found, q, k, v, o, lse, do, saved, own, how, seed, backend, check_seqlens)


def saved(
    stage: int | str | Stage, q: Any, k: Any, causal: bool = False, scale: float | None = None
) -> dict[str, Any]:
    """What backward() of a stage is given as `saved`: an array for each name in stage.saved; {} where there is none.

    m  [batch, heads, rows]: the largest score of each row, -inf where it sees no key
    l  [batch, heads, rows]: its sum of exp(score - m)
    p  [batch, heads, rows, keys]: exp(score - m) / l; 0 where a row does not see a key

    The kernels of the forward pass keep these to themselves. They are computed here plainly, by the operations of q's
    own library in float32, on its device; the scores are stored in full for it, so that it takes memory for rows * keys
    numbers a head, a few times. Use it to try the early stages, not to measure them.
    """
    found = _find(stage, "backward")
    causal, scale = _flag(causal), _scale(scale)
    if not found.saved:
        return {}
    library, on_gpu = _examine(q=q, k=k)
    fits = len(q.shape) == len(k.shape) == 4 and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3]
    if not fits or not k.shape[1] or q.shape[1] % k.shape[1]:
        raise ValueError(f"q {list(q.shape)} and k {list(k.shape)} do not fit together: give [batch, heads, rows, d] and "
                         "[batch, kv_heads, keys, d], heads a multiple of kv_heads")
    with library.current(q, on_gpu):
        all_ = library.statistics(_detached(q, "q"), _detached(k, "k"), causal, scale)
        return {name: library.result(all_[name]) for name in found.saved}


def ledger(
    stage: int | str | Stage,
    q: Any = None,
    k: Any = None,
    v: Any = None,
    *,
    batch: int = 1,
    heads: int = 2,
    kv_heads: int | None = None,
    rows: int = 256,
    keys: int | None = None,
    d: int = 64,
    causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    prefix: int = 0,
    alibi: bool = False,
    bias: tuple[int, int, int] | None = None,
    sinks: bool = False,
    dropout_p: float = 0.0,
    dropout_seed: int = 0,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    banks: bool = False,
    check: bool = False,
    backward: bool = False,
    block_map: Any = None,
) -> dict[str, Any]:
    """What one call of a stage of kernels moves and computes, counted exactly, as ./ladder ledger does.

    q, k, v  arrays on the CPU, as forward() takes them; without them, random ones of these sizes:
             q [batch, heads, rows, d], k and v [batch, kv_heads or heads, keys or rows, d]
    causal, scale, window_size, softcap, prefix, dropout_p, dropout_seed  as in forward(), the seed a number
    alibi, sinks  whether the random arrays have slopes and sinks
    bias     the first three sizes of a random one; None: there is none
    cu_seqlens_q, cu_seqlens_k, block_map  as in forward(), of the random arrays
    banks    also bank conflicts and sectors (10 to 30 times slower)
    check    also looks for races, reads of what nobody wrote, endless loops: KernelError where it finds one
    backward the backward pass instead of the forward pass, on random arrays

    Returns a dict:
        number, name  of the stage
        problem       batch, heads, kv_heads, rows, keys, d, causal, window_size, softcap, prefix, alibi, bias, sinks,
                      dropout_p, sequences, block_map, scale, dtype
        counts        every count by its name: {"blocks": 16, "exp": ..., "global.Q.read_bytes": ..., ...}
        tile          {"Br": rows, "Bc": keys} of the stage's tile
        closed_forms  the stage's claim, [{"counter", "text": in symbols, "value": of the text here, "least": whether
                      "measured" may be more where the numbers are not random, "random_too": whether it may be more for
                      random ones, too, "measured"}]
        launches      the counts of each kernel, [{"kernel", "counts"}]
    """
    found = _find(stage, "backward" if backward else "forward")
    own = _present(alibi_slopes=alibi or None, bias=bias, sinks=sinks or None, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
                   block_map=block_map)
    asked: dict[str, Any] = {"how": _how(causal, scale, window_size, softcap, prefix, dropout_p),
                             "variant": _variant(_seed(dropout_seed), own), "banks": bool(banks), "check": bool(check)}
    given = [x is not None for x in (q, k, v)]
    if any(given):
        if not all(given):
            raise ValueError("q, k and v go together: give all three, or sizes for random ones")
        if own:
            raise ValueError("the ledger with alibi, a bias, sinks, packed sequences or a block map is of random arrays: give sizes "
                             "instead of q, k and v")
        if backward:
            raise ValueError("the ledger of a backward pass is of random arrays: give sizes instead of q, k and v")
        if _examine(q=q, k=k, v=v)[1]:
            raise ValueError("the ledger is the emulator's, and q, k and v are on a GPU: copy them to the CPU")
        return _core.ledger(found.number, _readable(q, "q"), _readable(k, "k"), _readable(v, "v"), **asked)
    kv_heads = heads if kv_heads is None else kv_heads
    keys = rows if keys is None else keys
    sizes = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "rows": rows, "keys": keys, "d": d}
    sizes = {name: _integer(size, name, "a whole number") for name, size in sizes.items()}
    for name, size in sizes.items():
        if not 1 <= size <= MOST_OF_A_SIZE:
            raise ValueError(f"{name} is {size}: give a whole number from 1 to {MOST_OF_A_SIZE}")
    try:
        return _core.random_ledger(found.number, *sizes.values(), backward=bool(backward), **asked)
    except MemoryError:
        raise MemoryError(f"random arrays of {', '.join(f'{name} {size}' for name, size in sizes.items())} do not fit into "
                          "memory: give smaller sizes") from None


# --- calls


def _forward(found: Stage, q: Any, k: Any, v: Any, own: dict[str, Any], how: _How, seed: int, backend: str | None = None,
             check_seqlens: bool = False, plain: bool = False) -> tuple[Any, Any]:
    """forward(), of arguments that have been looked at: own are the arrays of variants, how the numbers as _how() has them."""
    o, lse = _run("forward", found, {"q": q, "k": k, "v": v}, own, how, seed, backend, check_seqlens, plain)
    return o, lse


def _backward(found: Stage, q: Any, k: Any, v: Any, o: Any, lse: Any, do: Any, saved: Any, own: dict[str, Any],
              how: _How, seed: int, backend: str | None = None, check_seqlens: bool = False, plain: bool = False) -> tuple[Any, ...]:
    """backward() of such."""
    given = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "do": do, **_kept(found, saved)}
    return _run("backward", found, given, own, how, seed, backend, check_seqlens, plain)


def _run(which: str, stage: Stage, given: dict[str, Any], own: dict[str, Any], how: _How, seed: int, backend: str | None,
         check_seqlens: bool, plain: bool) -> tuple[Any, ...]:
    """Calls a pass on `given` and on `own`, arrays of variants. plain: they are known to be what _are_plain() asks for."""
    run, results = getattr(_core, which), _RESULTS[which]
    variant = _variant(seed, own, check_seqlens)
    given.update(own)  # as _variant() left them
    if (plain or _are_plain(given.values())) and (stream := _core.common_stream(given)) is not None:
        q = given["q"]
        made = results(_PlainTorch(q), given)
        run(stage.number, _choose(stage, backend, q.is_cuda), given | made, how, variant, stream, True)
        return tuple(made.values())
    library, on_gpu = _examine(**given)
    backend = _choose(stage, backend, on_gpu)
    with library.current(given["q"], on_gpu) as stream:
        made = results(library, given)
        arrays = _all_readable(stream if on_gpu else None, **(given | made))
        run(stage.number, backend, arrays, how, variant, stream, False)
        return tuple(library.result(x) for x in made.values())


def _forward_results(library: _Library, given: dict[str, Any]) -> dict[str, Any]:
    """The arrays that a forward pass writes."""
    q = given["q"]
    return {"o": library.in_order_of(q), "lse": library.empty(q.shape[:-1], None)}


def _backward_results(library: _Library, given: dict[str, Any]) -> dict[str, Any]:
    """Those that a backward pass writes."""
    q = given["q"]
    made = {"dq": library.like(q), "dk": library.like(given["k"]), "dv": library.like(given["v"])}
    if "bias" in given:
        made["dbias"] = library.empty(given["bias"].shape, None)
    if "sinks" in given:
        made["dsinks"] = library.empty(q.shape[1:2], None)
    return made


_RESULTS = {"forward": _forward_results, "backward": _backward_results}


def _are_plain(arrays: Collection[Any]) -> bool:
    """Whether they are tensors of PyTorch whose memory is all that there is to know."""
    torch = sys.modules.get("torch")
    return (torch is not None and _are_memory_alone(arrays, torch)
            and not (torch.is_grad_enabled() and any([x.requires_grad for x in arrays])))


def _are_memory_alone(arrays: Collection[Any], torch: Any) -> bool:
    """Whether they are tensors of PyTorch, and no more: none of a class of its own, sparse, nested, of another transform's batch,
    or one without memory, or whose numbers are not those in it."""
    tensor, parameter, strided = torch.Tensor, torch.nn.Parameter, torch.strided
    is_batched = torch._C._functorch.is_legacy_batchedtensor
    for x in arrays:
        kind = type(x)
        if ((kind is not tensor and kind is not parameter) or x.layout is not strided or x.is_nested or x.is_meta or x.is_neg()
                or x._is_zerotensor() or is_batched(x)):
            return False
    return True


# --- stages and backends


def _integer(value: Any, name: str, wanted: str) -> int:
    """A whole number, which True and 1.0 are not."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(f"{name} is {value!r}: give {wanted}")


def _find(stage: int | str | Stage, needed: str = "") -> Stage:
    """The stage, which has the pass that is needed: "forward" or "backward"; "": any."""
    if not isinstance(stage, Stage):
        wanted = stage if isinstance(stage, str) else _integer(stage, "stage", "a number, a name or a Stage")
        if wanted not in _by_name:
            raise ValueError(f"stage {stage!r} does not exist: this build has {', '.join(map(str, _stages))}")
        stage = _by_name[wanted]
    if needed and not getattr(stage, needed):
        others = ", ".join(str(one) for one in _stages if getattr(one, needed))
        raise ValueError(f"stage {stage} has no {needed} pass: those that have one are {others}")
    return stage


def _kept(stage: Stage, saved: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the stage names in stage.saved, in that order."""
    if saved is None and not stage.saved:
        return {}
    if saved is not None and not isinstance(saved, Mapping):
        raise TypeError(f"saved is {_shown(saved)}: give a dict, as saved() does")
    given = dict(saved or {})
    names = " and ".join(stage.saved)
    if missing := [name for name in stage.saved if name not in given]:
        raise ValueError(f"the backward pass of stage {stage} needs {names} of the forward pass beside o and lse, and "
                         f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not in saved: give "
                         f"saved=flashladder.saved({stage.number}, q, k, causal, scale)")
    if more := sorted(set(given) - set(stage.saved)):
        raise ValueError(f"saved has {', '.join(map(repr, more))}, and the backward pass of stage {stage} takes "
                         f"{names or 'nothing beside o and lse'}: leave it out")
    return {name: given[name] for name in stage.saved}


def _choose(stage: Stage, backend: str | None, on_gpu: bool) -> str:
    """The backend for arrays that are on a GPU, or are not. Whether it can run here, _core.forward says."""
    if backend is None:
        if on_gpu and not stage.kernels:
            raise ValueError(f"stage {stage} is C++ for the CPU, and the arrays are on a GPU: copy them to the CPU, "
                             "or choose a stage of kernels")
        backend = "cuda" if on_gpu else stage._kinds[0]
    if backend not in stage._kinds:
        raise ValueError(f"stage {stage} does not run on backend {backend!r}: use "
                         f"{' or '.join(map(repr, stage._kinds))}")
    if (backend == "cuda") != on_gpu:
        if reason := _core.unavailable(stage.number, backend):
            raise RuntimeError(reason)
        raise ValueError(f"backend {backend!r} needs arrays on {'the CPU' if on_gpu else 'a GPU'}, and these are on "
                         f"{'a GPU' if on_gpu else 'the CPU'}: copy them, or leave backend out")
    return backend


def _seed(dropout_seed: int) -> int:
    """It, where it is a seed."""
    seed = _integer(dropout_seed, "dropout_seed", "a whole number")
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"dropout_seed is {seed}: give a whole number from 0 to 2^64 - 1")
    return seed


def _seed_or_array(dropout_seed: Any) -> tuple[int, Any]:
    """A seed as a number, and as an array, of which it is one."""
    if hasattr(dropout_seed, "__dlpack_device__") and len(dropout_seed.shape):
        return 0, dropout_seed
    return _seed(dropout_seed), None


_How = tuple[bool, float | None, tuple[int, int], float, int, float]


def _how(causal: bool, scale: float | None, window_size: tuple[int, int], softcap: float, prefix: int, dropout_p: float) -> _How:
    """The numbers of what is asked for, each as its argument is to be, in this order."""
    return (_flag(causal), _scale(scale), _window(window_size), _number(softcap, "softcap", "a number above 0, or 0 for none"),
            max(min(_integer(prefix, "prefix", "a whole number of keys"), MOST_KEYS), -MOST_KEYS),
            _number(dropout_p, "dropout_p", "a number from 0 to below 1"))


def _variant(seed: int, own: dict[str, Any], check_seqlens: bool = False) -> dict[str, Any]:
    """What is asked for beside q, k, v and _how()'s numbers, as _core takes it; `own` are the arrays of variants that are
    given."""
    variant: dict[str, Any] = {"dropout_seed": seed} if seed else {}
    if not own:
        return variant
    variant |= {name: True for name, array in (("alibi", "alibi_slopes"), ("sinks", "sinks"), ("seed_in_memory", "dropout_seed"))
                if array in own}
    if "bias" in own:
        variant["bias"] = _bias(own["bias"])
    if not own.keys().isdisjoint(_SEQUENCES):
        variant["packing"] = _packing(own, check_seqlens)
    if "block_map" in own:
        variant["block_map"] = _block_map(own)
    return variant


def _bias(bias: Any) -> tuple[int, int, int]:
    """The first three sizes of a bias, or of a random one that is to have them."""
    sizes = bias if isinstance(bias, tuple) else tuple(getattr(bias, "shape", ()))[:-1]
    if len(sizes) != 3 or min(sizes) < 1:
        shape = f"has shape {list(bias.shape)}" if hasattr(bias, "shape") else f"is {_shown(bias)}"
        raise ValueError(f"bias {shape}: give [batch, heads, rows, keys], of which the first three may be 1")
    batch, heads, rows = (_integer(size, "a size of bias", "a whole number") for size in sizes)
    return batch, heads, rows


def _packing(own: Mapping[str, Any], check_seqlens: bool) -> dict[str, Any]:
    """How sequences are packed, with the positions where the host knows them, or is to know them."""
    given = {name: own[name] for name in _SEQUENCES if name in own}
    packing: dict[str, Any] = {"partly_used": "seqused_k" in given}
    if "cu_seqlens_q" not in given or "cu_seqlens_k" not in given:
        raise ValueError(f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} given without the others: "
                         "cu_seqlens_q and cu_seqlens_k go together, and seqused_k goes with both")
    for name, x in given.items():
        if not hasattr(x, "__dlpack_device__") or not hasattr(x, "shape"):
            raise TypeError(f"{name} is a {type(x).__name__}: give an array of int32 of q's library, on its device")
        if len(x.shape) != 1 or (name != "seqused_k" and x.shape[0] < 2):
            raise ValueError(f"{name} has shape {list(x.shape)}: give one dimension, in which " + (
                "each sequence has a number" if name == "seqused_k" else "each sequence has the place where it begins, "
                "and behind it the last one has that where it ends"))
        if check_seqlens or int(x.__dlpack_device__()[0]) in (_CPU, _CUDA_HOST):
            packing[name] = [int(position) for position in x.tolist()]
    return packing | {"sequences": given["cu_seqlens_q"].shape[0] - 1}


def _block_map(own: dict[str, Any]) -> dict[str, Any]:
    """The sizes of a block map, and its numbers where the host knows them. In `own` its numbers follow each other."""
    x = own["block_map"]
    if not hasattr(x, "__dlpack_device__") or not hasattr(x, "shape"):
        raise TypeError(f"block_map is a {type(x).__name__}: give an array of int32 of q's library, on its device")
    if len(x.shape) != 4 or 0 in x.shape:
        raise ValueError(f"block_map has shape {list(x.shape)}: give [batch, heads, blocks of rows, blocks of keys], of which "
                         "the first two may be 1")
    own["block_map"] = flat = x.reshape(-1)
    on_host = int(x.__dlpack_device__()[0]) in (_CPU, _CUDA_HOST)
    return dict(zip(("batch", "heads", "rows", "keys"), map(int, x.shape)),
                live=[int(live != 0) for live in flat.tolist()] if on_host else [])


def _strides_like(x: Any) -> list[int]:
    """The strides of a result for a tensor of PyTorch: its dimensions lie in memory in the order of x's, without gaps, the
    last one as the last. Where x repeats something, they are in their own order: what is one in memory has no other."""
    given, sizes = x.stride(), tuple(x.shape)
    outer = range(len(sizes) - 1)
    repeats = any([given[i] == 0 and sizes[i] > 1 for i in outer])
    strides, step = [1] * len(sizes), max(sizes[-1:], default=1)
    for i in reversed(outer) if repeats else sorted(reversed(outer), key=given.__getitem__):  # the innermost first
        strides[i], step = step, step * max(sizes[i], 1)
    return strides


def _present(**arrays: Any) -> dict[str, Any]:
    """Those that are given."""
    return {name: x for name, x in arrays.items() if x is not None}


def _window(window_size: tuple[int, int]) -> tuple[int, int]:
    try:
        left, right = window_size
        if isinstance(left, bool) or isinstance(right, bool):
            raise TypeError
        return min(operator.index(left), MOST_KEYS), min(operator.index(right), MOST_KEYS)
    except (TypeError, ValueError):
        raise TypeError(f"window_size is {_shown(window_size)}: give (left, right), two whole numbers of keys, -1 for "
                        "all") from None


def _flag(causal: bool) -> bool:
    """causal, which must be a bool: a scale that is given in its place would pass for True."""
    if causal is True or causal is False:
        return causal
    if _is(causal, "numpy", "bool_"):
        return bool(causal)
    raise TypeError(f"causal is {_shown(causal)}: give True or False; a factor on the scores is scale, the next "
                    "argument")


def _scale(scale: float | None) -> float | None:
    return None if scale is None else _number(scale, "scale", "a finite number, or None for 1/sqrt(d)")


def _number(value: float, name: str, wanted: str) -> float:
    if type(value) is float:
        return value
    try:
        if isinstance(value, (str, bytes, bool)):  # float() takes these too
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} is {_shown(value)}: give {wanted}") from None


def _shown(value: Any) -> str:
    """What was given, or of what type it is where that is long, as an array is."""
    text = repr(value)
    return text if len(text) <= 40 and text.isprintable() else f"a {type(value).__name__}"


# --- arrays


_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13  # DLPack's device types
_SEQUENCES = ("cu_seqlens_q", "cu_seqlens_k", "seqused_k")  # the arrays that say where packed ones lie


def _examine(**arrays: Any) -> tuple[_Library, bool]:
    """The library of q, and whether the arrays are on a GPU; all are on one device."""
    devices = {}
    for name, x in arrays.items():
        if not hasattr(x, "__dlpack_device__") or not hasattr(x, "shape"):
            raise TypeError(f"{name} is a {type(x).__name__}: give an array of NumPy, PyTorch, CuPy, JAX or another "
                            "library with DLPack")
        kind, index = map(int, x.__dlpack_device__())
        if kind not in (_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED):
            raise ValueError(f"{name} is on a device that no stage runs on (type {kind} of DLPack): copy it to the CPU "
                             "or an NVIDIA GPU")
        devices[name] = f"GPU {index}" if kind in (_CUDA, _CUDA_MANAGED) else "the CPU"
    if len(set(devices.values())) > 1:
        first, *others, last = (f"{name} on {device}" for name, device in devices.items())
        raise ValueError(f"{first.replace(' on ', ' is on ', 1)}, {', '.join(others)} and {last}: copy them to one device")
    on_gpu = devices["q"] != "the CPU"
    return _library_of(arrays["q"], on_gpu), on_gpu


class _Library:
    """What depends on the library of the caller's arrays; this one is for any, on the CPU."""

    def __init__(self, array: Any) -> None:
        if hasattr(array, "__array_namespace__"):
            self.module = array.__array_namespace__()
        else:
            self.module = sys.modules[type(array).__module__.partition(".")[0]]
        if not hasattr(self.module, "from_dlpack"):
            raise TypeError(f"{self.module.__name__} has no from_dlpack, through which the results would be handed "
                            "over: give arrays of NumPy")

    @contextlib.contextmanager
    def current(self, array: Any, on_gpu: bool) -> Iterator[int]:
        """Makes the array's GPU the current one; gives the caller's current stream, 0 for the default one."""
        yield 0

    def empty(self, shape: Any, dtype: Any) -> Any:
        """An array on the current device; dtype None: float32."""
        import numpy

        if dtype is None:
            dtype = "float32"
        elif not isinstance(dtype, numpy.dtype):
            dtype = str(dtype).rpartition(".")[2]  # "library.float32"
        return numpy.empty(tuple(shape), dtype)

    def like(self, array: Any) -> Any:
        """A contiguous one of the same shape and dtype."""
        return self.empty(array.shape, array.dtype)

    def in_order_of(self, array: Any) -> Any:
        """The same, but with its dimensions in memory in the order of the array's, where the library has that."""
        return self.like(array)

    def arithmetic(self, array: Any) -> tuple[Any, Any]:
        """A module of functions as NumPy's, and the array, in float32, as they take it."""
        import numpy

        return numpy, numpy.asarray(array).astype("float32")

    def statistics(self, q: Any, k: Any, causal: bool, scale: float | None) -> dict[str, Any]:
        """As saved()."""
        math, q = self.arithmetic(q)
        _, k = self.arithmetic(k)
        (batch, heads, rows, d), (_, kv_heads, keys, _) = q.shape, k.shape
        if not scale:  # 0 is an error that backward() reports
            scale = d**-0.5
        grouped = q.reshape(batch, kv_heads, heads // kv_heads, rows, d) @ k[:, :, None].swapaxes(-1, -2)
        s = scale * grouped.reshape(batch, heads, rows, keys)
        visible = math.ones_like(s[0, 0], dtype=bool)
        if causal:
            visible = math.tril(visible, keys - rows)
        s = math.where(visible, s, math.full_like(s, -math.inf))
        m = math.amax(s, -1)
        top = math.where(m == -math.inf, math.zeros_like(m), m)
        p = math.exp(s - top[..., None])
        l = p.sum(-1)  # noqa: E741: its name in the papers
        return {"m": m, "l": l, "p": p / math.where(l == 0, math.ones_like(l), l)[..., None]}

    def result(self, array: Any) -> Any:
        """The array as the caller gets it."""
        if array.dtype.name == "bfloat16":  # not in NumPy's DLPack
            return self.module.asarray(array)
        return self.module.from_dlpack(array)


class _NumPy(_Library):
    def __init__(self, array: Any) -> None:
        pass

    def result(self, array: Any) -> Any:
        return array


class _Torch(_Library):
    def __init__(self, array: Any) -> None:
        self.module, self.device = sys.modules["torch"], array.device

    @contextlib.contextmanager
    def current(self, array: Any, on_gpu: bool) -> Iterator[int]:
        if not on_gpu:
            yield 0
            return
        with self.module.cuda.device(array.device):
            yield self.module.cuda.current_stream().cuda_stream

    def empty(self, shape: Any, dtype: Any) -> Any:
        # Sizes one by one, which are read sooner than a tuple of them.
        return self.module.empty(*shape or [()], dtype=dtype or self.module.float32, device=self.device)

    def in_order_of(self, array: Any) -> Any:
        if array.is_contiguous():
            return self.like(array)
        return self.module.empty_strided(tuple(array.shape), _strides_like(array), dtype=array.dtype, device=self.device)

    def arithmetic(self, array: Any) -> tuple[Any, Any]:
        return self.module, array.float()

    def statistics(self, q: Any, k: Any, causal: bool, scale: float | None) -> dict[str, Any]:
        with self.module.autocast(self.device.type, enabled=False):  # it would round the scores to 16 bits
            return super().statistics(q, k, causal, scale)

    def result(self, array: Any) -> Any:
        return array


class _PlainTorch(_Torch):
    """Of tensors that are plain: others of their kind are made in less time."""

    def like(self, array: Any) -> Any:
        return self.module.empty_like(array, memory_format=self.module.contiguous_format)


class _CuPy(_Library):
    def __init__(self, array: Any) -> None:
        self.module = sys.modules["cupy"]

    @contextlib.contextmanager
    def current(self, array: Any, on_gpu: bool) -> Iterator[int]:
        with array.device:
            yield self.module.cuda.get_current_stream().ptr

    def empty(self, shape: Any, dtype: Any) -> Any:
        return self.module.empty(tuple(shape), "float32" if dtype is None else dtype)

    def arithmetic(self, array: Any) -> tuple[Any, Any]:
        return self.module, array.astype("float32")

    def result(self, array: Any) -> Any:
        return array


def _is(array: Any, module: str, name: str) -> bool:
    """Whether it is an instance of a class of a module, which need not be imported."""
    return module in sys.modules and isinstance(array, getattr(sys.modules[module], name))


def _library_of(array: Any, on_gpu: bool) -> _Library:
    if _is(array, "torch", "Tensor"):
        return _Torch(array)
    if _is(array, "cupy", "ndarray"):
        return _CuPy(array)
    if _is(array, "numpy", "ndarray"):
        return _NumPy(array)
    if on_gpu:
        raise TypeError(f"q is a {type(array).__module__}.{type(array).__name__} on a GPU, and there arrays of PyTorch "
                        "and CuPy are taken: hand it over with torch.from_dlpack or cupy.from_dlpack")
    return _Library(array)


def _detached(array: Any, name: str) -> Any:
    """The array apart from PyTorch's graph, where that would get lost unnoticed: an error."""
    if _is(array, "torch", "Tensor") and array.requires_grad:
        if sys.modules["torch"].is_grad_enabled():
            raise ValueError(f"{name} requires a gradient, and this function leaves none in PyTorch's graph: call "
                             f"flashladder.torch.attention, which does, or give {name}.detach(), or call within "
                             "torch.no_grad()")
        array = array.detach()
    return array


def _readable(array: Any, name: str, stream: int | None = None) -> Any:
    """What _core reads in place of the array: the same memory. On a GPU, whatever is still being written to it will
    be complete for what follows on `stream`."""
    array = _detached(array, name)
    if _is(array, "torch", "Tensor") and (array.is_neg() or array._is_zerotensor()):  # its numbers are not those in its memory
        array = array.clone()
    if _is(array, "numpy", "ndarray") and array.dtype.name == "bfloat16":  # ml_dtypes; not in NumPy's DLPack
        return _core.as_bfloat16(array.view("uint16"))
    if stream is None:
        return array
    return array.__dlpack__(stream=stream or 1)  # DLPack calls the default stream 1


def _all_readable(stream: int | None, **arrays: Any) -> dict[str, Any]:
    return {name: _readable(x, name, stream) for name, x in arrays.items()}
