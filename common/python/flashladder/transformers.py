"""Attention by FlashLadder in Hugging Face's transformers:

    import flashladder.transformers
    flashladder.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="ladder", dtype=torch.bfloat16)

Padding on either side, dynamic, static and sliding caches, grouped heads and sliding windows give what transformers' own
`sdpa` gives, or are refused in words. docs/flash_attn.md says what is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import flashladder.torch

HIDDEN = -1e4  # what is added to the score of a hidden key in fp32: its exponential is 0, whatever the score


def register(name: str = "ladder") -> None:
    """Makes `attn_implementation=name` known to transformers: the attention and its masks. ValueError for a name with "flash"
    in it, which transformers takes for one of its own."""
    if "flash" in name:
        raise ValueError(f"transformers takes '{name}' for one of its own, as every name with 'flash' in it: give another, such as "
                         "'ladder'")
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls in each layer, of [batch, heads, rows, d]. Returns O [batch, rows, heads, d], and None in the
    place of the probabilities.

    attention_mask  None: causal where the module is, and without padding; int8 [batch, 1, 1, keys], as mask() makes it: causal
                    among the first so many keys, of which those with 0 are hidden; bool [batch, 1 or heads, rows, keys]: what
                    is hidden is False; a number that is added to each score
    """
    for name in ("position_bias", "head_mask"):
        if more.get(name) is not None:
            raise NotImplementedError(f"{name} is not taken by FlashLadder's attention: load the model with another one")
    if more.get("output_attentions"):
        raise NotImplementedError("FlashLadder's attention keeps no probabilities: leave output_attentions out, or load the model "
                                  "with attn_implementation='eager'")
    rows, d = query.shape[2], value.shape[-1]
    causal, bias = False, None
    if attention_mask is None:
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    elif attention_mask.dtype == torch.int8:
        causal, bias = True, attention_mask != 0
        key, value = (x[:, :, : bias.shape[-1]] for x in (key, value))
    elif attention_mask.dtype == torch.bool and attention_mask.stride(2) == 0:
        bias = attention_mask[:, :, :1]  # the same for all rows
    else:
        bias = attention_mask
    if bias is not None:
        if bias.dtype == torch.bool:
            bias = torch.zeros(bias.shape, device=bias.device).masked_fill(~bias, -torch.inf)
        if query.dtype == torch.float32:
            query, key, value = _with_column(query, key, value, bias, scaling)
            scaling, bias = 1.0, None
        else:
            bias = bias.float().contiguous()
    o = flashladder.torch.attention(query, key, value, causal=causal and rows > 1, scale=scaling, softcap=softcap or 0.0, bias=bias,
                                    sinks=s_aux, dropout_p=dropout)
    return o[..., :d].transpose(1, 2).contiguous(), None


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    **more: Any,
) -> torch.Tensor | None:
    """What transformers calls once for all layers of a kind; its arguments are those of transformers' own masks. Returns what
    attention() takes: no mask, or numbers for the keys alone, wherever these say it all; else one for all rows and keys."""
    from transformers import masking_utils

    end = q_offset + q_length - kv_offset  # behind the key of the last row
    known = allow_is_causal_skip and isinstance(end, int) and not torch.compiler.is_compiling()
    if known and end <= kv_length and (mask_function is masking_utils.causal_mask_function or
                                       (local_size is not None and end <= local_size and kv_offset == 0)):
        padding = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
        seen = None if padding is None else padding[:, kv_offset : kv_offset + end]
        if seen is None or bool(seen.all()):
            if end == kv_length:
                return None
            seen = torch.ones(batch_size, end, device=more.get("device", "cpu"))
        return seen.to(torch.int8)[:, None, None].contiguous()
    return masking_utils.sdpa_mask(batch_size, q_length, kv_length, q_offset, kv_offset,
                                   mask_function or masking_utils.causal_mask_function, attention_mask, local_size,
                                   allow_is_causal_skip=False, **more)


def _with_column(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor, scaling: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The stages of fp32 take no bias. One that is the same for all rows and heads is one more column of K, for which each
    row of Q, that is scaled here, has a 1; V has zeros there, and in what makes the head dimension one that kernels take."""
    if bias.shape[2] > 1 or bias.shape[1] > 1:
        raise NotImplementedError("in float32 FlashLadder's attention takes masks of keys alone, and this one differs from row to row: "
                                  "load the model in bfloat16 or float16")
    batch, heads, rows, d = query.shape
    columns = next((dim for dim in (32, 64, 128) if d < dim), d + 1)
    scaled = query * (d**-0.5 if scaling is None else scaling)
    of_keys = bias.clamp(min=HIDDEN)[:, 0, 0, :, None].expand(batch, key.shape[2], 1)[:, None].expand(-1, key.shape[1], -1, -1)

    def widened(x: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, column, x.new_zeros(*x.shape[:-1], columns - d - 1)], -1)

    return (widened(scaled, scaled.new_ones(batch, heads, rows, 1)), widened(key, of_keys),
            widened(value, value.new_zeros(*value.shape[:-1], 1)))
