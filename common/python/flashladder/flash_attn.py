"""FlashAttention's own Python interface, by the stages of FlashLadder:

    import flashladder.flash_attn as flash_attn
    o = flash_attn.flash_attn_func(q, k, v, causal=True)

Names, arguments, shapes and results are those of flash-attn 2.8. docs/flash_attn.md says what is the same and what differs.
What is not taken is refused by its name.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

import flashladder.torch
from flashladder import _core


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """softmax(softmax_scale * Q K^T) V, with gradients for q, k and v.

    q     [batch, rows, heads, d], in fp16, bf16 or, plain, fp32; d up to 256
    k, v  [batch, keys, kv_heads, d]; heads is a multiple of kv_heads
    dropout_p          the share of probabilities that is left out, in effect the nearest multiple of 1/256; its seed comes
                       from PyTorch's generator of the CPU
    softmax_scale      None: 1/sqrt(d)
    causal             query i sees key j when j <= i + keys - rows: aligned at the bottom right
    window_size        (left, right): how many keys around its own, i + keys - rows, a query sees; -1: all
    softcap            a score s becomes softcap * tanh(s / softcap); 0: it stays
    alibi_slopes       fp32 [heads] or [batch, heads]: slope * |i + keys - rows - j| is taken from a score
    deterministic      the backward pass gives the same bits every time; in 16 bits and without variants. False: as
                       torch.use_deterministic_algorithms() asks for
    return_attn_probs  return more than O, for tests

    Returns O, as q. With return_attn_probs (O, L, P): L the logsumexp of each row in fp32 [batch, heads, rows], without a
    gradient, and P, without dropout an empty tensor, else the probabilities in fp32 [batch, heads, rows, keys], with the sign
    changed where they are left out.
    """
    _require_fit(q, k, v, "[batch, rows, heads, d]", "[batch, keys, kv_heads, d]")
    batch, _, heads, d = q.shape
    how = _options(d, dropout_p, softmax_scale, causal, window_size, softcap, deterministic)
    _require_dims(None, "", alibi_slopes=alibi_slopes)
    if alibi_slopes is not None and alibi_slopes.shape not in ((heads,), (batch, heads)):
        raise ValueError(f"alibi_slopes has shape {list(alibi_slopes.shape)}: give [{heads}] or [{batch}, {heads}], a slope for "
                         "each head")
    if 0 in (*q.shape, *k.shape):
        o, lse = _of_nothing(q, k, v)
        return (o, lse, q.new_empty(0)) if return_attn_probs else o
    differ = alibi_slopes is not None and alibi_slopes.dim() == 2  # the slopes of batch entries, which then go one at a time
    each = 1 if differ else batch
    parts = []
    for begin in range(0, batch, each):
        slopes = alibi_slopes[begin] if differ else alibi_slopes
        of_part = (q, k, v) if batch <= each else [x[begin:begin + each] for x in (q, k, v)]
        parts.append(_attention(*[x.transpose(1, 2) for x in of_part], wants_P=return_attn_probs, alibi_slopes=slopes,
                                **_with_seed(how, q.device)))
    o, lse = (parts[0][:2] if len(parts) == 1 else [torch.cat(of_all) for of_all in list(zip(*parts))[:2]])
    o = o.transpose(1, 2)
    if not return_attn_probs:
        return o
    return o, lse, torch.cat([part[2] for part in parts]) if dropout_p else q.new_empty(0)


def flash_attn_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """As flash_attn_func, of kv [batch, keys, 2, kv_heads, d]."""
    k, v = _unpacked(kv, "kv", 2, "[batch, keys, 2, kv_heads, d]")
    return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                           return_attn_probs)


def flash_attn_qkvpacked_func(
    qkv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """As flash_attn_func, of qkv [batch, rows, 3, heads, d]."""
    q, k, v = _unpacked(qkv, "qkv", 3, "[batch, rows, 3, heads, d]")
    return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                           return_attn_probs)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
) -> Any:
    """As flash_attn_func, of sequences that lie one after the other: each is attention of its own.

    q     [all rows, heads, d], in fp16 or bf16; d up to 256
    k, v  [all keys, kv_heads, d]
    cu_seqlens_q, cu_seqlens_k  int32 [sequences + 1]: where each sequence begins, and the last ends
    max_seqlen_q, max_seqlen_k  are not needed here
    alibi_slopes                fp32 [heads]

    Returns O, as q; with return_attn_probs (O, L [heads, all rows], an empty tensor), and then there must be no dropout.
    """
    if block_table is not None:
        _refuse("block_table", "K and V that lie in pages are not taken; give them as flash-attn takes them without it")
    if return_attn_probs and dropout_p:
        _refuse("return_attn_probs=True with dropout_p", "the probabilities of packed sequences are not given")
    _require_fit(q, k, v, "[all rows, heads, d]", "[all keys, kv_heads, d]")
    _require_dims(1, "[sequences + 1]", cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    _, heads, d = q.shape
    _require_dims(None, "", alibi_slopes=alibi_slopes)
    if alibi_slopes is not None and alibi_slopes.shape != (heads,):
        raise ValueError(f"alibi_slopes has shape {list(alibi_slopes.shape)}: give [{heads}], a slope for each head of all sequences")
    how = _options(d, dropout_p, softmax_scale, causal, window_size, softcap, deterministic)
    if 0 in (*q.shape, *k.shape):
        o, lse = _of_nothing(q[None], k[None], v[None])
        return (o[0], lse[0], q.new_empty(0)) if return_attn_probs else o[0]
    o, lse, _ = _attention(*(x[None].transpose(1, 2) for x in (q, k, v)), alibi_slopes=alibi_slopes, cu_seqlens_q=cu_seqlens_q,
                           cu_seqlens_k=cu_seqlens_k, **_with_seed(how, q.device))
    o = o.transpose(1, 2)[0]
    return (o, lse[0], q.new_empty(0)) if return_attn_probs else o


def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """As flash_attn_varlen_func, of kv [all keys, 2, kv_heads, d]."""
    k, v = _unpacked(kv, "kv", 2, "[all keys, 2, kv_heads, d]")
    return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale,
                                  causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """As flash_attn_varlen_func, of qkv [all rows, 3, heads, d]."""
    q, k, v = _unpacked(qkv, "qkv", 3, "[all rows, 3, heads, d]")
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal,
                                  window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


def __getattr__(name: str) -> NoReturn:
    if name == "flash_attn_with_kvcache":
        raise AttributeError("flashladder.flash_attn has no flash_attn_with_kvcache: there are no stages for inference yet")
    raise AttributeError(f"module {__name__} has no {name}")


def _refuse(name: str, why: str) -> NoReturn:
    raise NotImplementedError(f"{name}: {why}")


def _require_dims(dims: int | None, shape: str, **tensors: torch.Tensor | None) -> None:
    """Tensors with so many dimensions; None: any, or no tensor."""
    for name, x in tensors.items():
        if x is None and dims is None:
            continue
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}: give tensors of PyTorch")
        if dims is not None and x.dim() != dims:
            raise ValueError(f"{name} has shape {list(x.shape)}: give {shape}")


def _require_fit(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_shape: str, k_shape: str) -> None:
    """Tensors of these shapes, the names of their dimensions, which make one problem."""
    _require_dims(q_shape.count(",") + 1, q_shape, q=q)
    _require_dims(k_shape.count(",") + 1, k_shape, k=k, v=v)
    (*before, _, heads, d), (*before_k, _, kv_heads, d_k) = q.shape, k.shape
    if k.shape != v.shape or before_k != before or d_k != d or (kv_heads and heads % kv_heads):
        raise ValueError(f"q {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)} do not fit together: {q_shape} and twice "
                         f"{k_shape}, of which kv_heads divides heads")


def _unpacked(packed: torch.Tensor, name: str, parts: int, shape: str) -> tuple[torch.Tensor, ...]:
    """The tensors that are packed in one, of its third dimension from the end."""
    _require_dims(shape.count(",") + 1, shape, **{name: packed})
    if packed.shape[-3] != parts:
        raise ValueError(f"{name} has shape {list(packed.shape)}: give {shape}")
    return packed.unbind(-3)


def _options(d: int, dropout_p: float, softmax_scale: float | None, causal: bool, window_size: tuple[int, int], softcap: float,
         deterministic: bool) -> dict[str, Any]:
    if d > 256:
        raise ValueError(f"the head dimension is {d}: give at most 256")
    return {"dropout_p": dropout_p, "scale": d**-0.5 if softmax_scale is None and d else softmax_scale, "causal": causal,
            "window_size": window_size, "softcap": softcap, "deterministic": True if deterministic else None}


def _with_seed(how: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """With a seed of its own for each call."""
    return how | {"dropout_seed": flashladder.torch.drawn_seed(device) if how["dropout_p"] else None}


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, wants_P: bool = False,
               **how: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """O, L and, with dropout and where it is wanted, P, of [batch, heads, rows, d]. Columns of zeros make d a multiple of 8, which
    the stages of 16 bits take."""
    q, k, v = flashladder.torch.autocast(q, k, v)
    d = q.shape[-1]
    more = -d % 8 if q.element_size() == 2 else 0
    padded = [torch.nn.functional.pad(x, (0, more)) if more else x for x in (q, k, v)]
    o, lse = flashladder.torch.attention(*padded, return_lse=True, **how)
    lse = lse.detach()  # flash-attn has no gradient of it
    P = _all_probabilities(q, k, lse, **how) if wants_P and how["dropout_p"] else None
    return o[..., :d] if more else o, lse, P


def _all_probabilities(q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, alibi_slopes: torch.Tensor | None,
                       dropout_seed: torch.Tensor, **how: Any) -> torch.Tensor:
    """P of all launches, each of which has a seed of its own."""
    parts = [(b, h, _probabilities(q[b, h], k[b, g], lse[b, h], alibi_slopes=None if alibi_slopes is None else alibi_slopes[h],
                                   dropout_seed=seed, **how)) for seed, b, h, g in flashladder.torch.parts_of(q, k, dropout_seed)]
    if len(parts) == 1:
        return parts[0][2]
    P = lse.new_empty(*lse.shape, k.shape[2])
    for b, h, part in parts:
        P[b, h] = part
    return P


@torch.no_grad()
def _probabilities(q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, scale: float, causal: bool, window_size: tuple[int, int],
                   softcap: float, alibi_slopes: torch.Tensor | None, dropout_p: float, dropout_seed: torch.Tensor, **_: Any) -> torch.Tensor:
    """P from the definition, with the sign changed where dropout has left it out."""
    batch, heads, rows, _d = q.shape
    keys = k.shape[2]
    S = scale * q.float() @ k.float().repeat_interleave(heads // k.shape[1], 1).transpose(2, 3)
    if softcap:
        S = softcap * torch.tanh(S / softcap)
    ahead = torch.arange(rows, device=q.device)[:, None] + keys - rows - torch.arange(keys, device=q.device)  # of a key
    if alibi_slopes is not None:
        S = S - alibi_slopes[:, None, None] * ahead.abs()
    left, right = window_size[0], 0 if causal else window_size[1]
    hidden = torch.zeros_like(ahead, dtype=torch.bool)
    if left >= 0:
        hidden |= ahead > left
    if right >= 0:
        hidden |= -ahead > right
    P = torch.exp(S - lse[..., None]).masked_fill(hidden, 0)
    left_out = torch.empty(batch * heads, rows, keys, dtype=torch.uint8, device="cpu")
    _core.left_out(dropout_p, flashladder.torch.number_of(dropout_seed), left_out)
    return torch.where(left_out.view(P.shape).to(q.device) != 0, -P, P)


def _of_nothing(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """O = 0 and L = -inf where there is no row, or no key, or no column; q, k and v get gradients of 0."""
    o = torch.zeros_like(q)
    for x in (q, k, v):
        if x.requires_grad:
            o = o + x.masked_fill(torch.ones_like(x, dtype=torch.bool), 0).sum()
    batch, rows, heads, _ = q.shape
    return o, torch.full((batch, heads, rows), -torch.inf, device=q.device)
