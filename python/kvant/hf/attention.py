"""The attention implementation ``kvant`` and its mask.

A model calls its mask function before its layers, and an attention function after each layer has updated the cache. Both are
registered: an implementation without a registered mask gets ``None`` for every mask, padding and windows included.

Both run outside of what `torch.compile` compiles: they hand Python objects from one to the other, and call kernels of kvant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

from .context import IMPLEMENTATION, layer_of, open_layer
from .layer import KvantLayer


@dataclass
class MaskPattern:
    """What a mask hides besides padding: the future, and what has left the window."""

    #: Nothing else. Other patterns (images that see ahead, packed sequences) cannot be had on bytes.
    is_causal: bool
    window: int | None
    has_padding: bool
    #: The same as a tensor (batch, 1, queries, keys), for attention on other caches.
    dense: Callable[[], torch.Tensor]


@torch.compiler.disable
def kvant_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> torch.Tensor | None:
    """The mask as ``kvant_attention`` wants it: (batch, positions), false for padding, with its pattern beside it. Encoders, which
    have no cache, get torch's."""
    sizes = {
        "batch_size": batch_size,
        "q_length": q_length,
        "kv_length": kv_length,
        "q_offset": q_offset,
        "kv_offset": kv_offset,
        "mask_function": mask_function,
        "attention_mask": attention_mask,
        "use_vmap": use_vmap,
        "device": device,
    }
    # A pass begins. One that was broken off before may have left a layer behind.
    open_layer.value = None
    if allow_is_bidirectional_skip is not None:
        return sdpa_mask(**sizes, allow_is_causal_skip=False, allow_is_bidirectional_skip=allow_is_bidirectional_skip)
    if attention_mask is None:
        mask, has_padding = torch.ones((1, 1), dtype=torch.bool, device=device).expand(batch_size, 1), False
    else:
        mask = attention_mask.view(attention_mask.shape)
        has_padding = not bool(attention_mask.all())
    mask._kvant_pattern = MaskPattern(
        is_causal=allow_is_causal_skip and not use_vmap,
        window=local_size,
        has_padding=has_padding,
        dense=lambda: sdpa_mask(**sizes, allow_is_causal_skip=False),
    )
    return mask


@torch.compiler.disable
def kvant_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention on the bytes of a `KvantCache`; on tensors where the keys come from elsewhere."""
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    layer, is_absorbed = layer_of(key), False
    if layer is None:
        layer = getattr(open_layer, "value", None)
        if layer is None:
            out = dense_attention(module, query, key, value, attention_mask, scale, dropout, softcap, s_aux, **kwargs)
            return out, None
        if not (layer.is_latent and hasattr(module, "kv_b_proj")):
            raise NotImplementedError(
                f"{type(module).__name__} changes keys between its cache and its attention: attention on bytes cannot follow. "
                "Use attn_implementation='sdpa' or 'eager'; KvantCache then hands out decoded tensors"
            )
        is_absorbed = True
    if dropout > 0.0:
        raise NotImplementedError("attention on a compressed cache has no dropout: call model.eval()")
    if kwargs.get("position_bias") is not None:
        raise NotImplementedError("attention on a compressed cache has no position bias")
    mask = _padding(layer, attention_mask)
    if is_absorbed:
        return _absorbed(layer, module, query, mask, scale, softcap, s_aux), None
    return layer.attend(query, mask, scale, softcap, s_aux), None


def dense_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scale: float,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Attention on tensors: for other caches, for none, and for calibration."""
    pattern = getattr(attention_mask, "_kvant_pattern", None)
    mask = attention_mask if pattern is None else pattern.dense()
    if softcap is None and s_aux is None:
        return sdpa_attention_forward(module, query, key, value, mask, dropout=dropout, scaling=scale, **kwargs)[0]
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    scores = torch.matmul(query, key.transpose(2, 3)).float() * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    if s_aux is not None:
        sinks = s_aux.float().view(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = scores.softmax(dim=-1)[..., : key.shape[2]].to(value.dtype)
    weights = torch.nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous()


def _padding(layer: KvantLayer, mask: torch.Tensor | None) -> torch.Tensor | None:
    """The mask (batch, positions) if it hides anything; patterns that bytes cannot serve are refused."""
    if mask is None:
        return None
    pattern = getattr(mask, "_kvant_pattern", None)
    if pattern is None or not pattern.is_causal:
        raise NotImplementedError(
            "attention on a compressed cache takes causal masks, sliding windows and padding, and this mask is another: use "
            "attn_implementation='sdpa' or 'eager'; KvantCache then hands out decoded tensors"
        )
    windows = [window for window in (pattern.window, layer.sliding_window) if window is not None]
    if pattern.window != layer.sliding_window and layer.get_seq_length() > min(windows):
        raise ValueError(
            f"layer {layer.index}: the mask has a window of {pattern.window}, and the cache was made for {layer.sliding_window}"
        )
    return mask if pattern.has_padding else None


def _absorbed(
    layer: KvantLayer,
    module: torch.nn.Module,
    query: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    s_aux: torch.Tensor | None,
) -> torch.Tensor:
    """MLA on its latents: W_uk is absorbed into the query, W_uv is applied to what the latents sum up to."""
    nope, heads = module.qk_nope_head_dim, query.shape[1]
    up = module.kv_b_proj.weight.view(heads, nope + module.v_head_dim, -1)  # (heads, key and value channels, latent)
    own, rotated = query[..., :nope], query[..., nope:]
    absorbed = torch.einsum("bhtc,hcl->bhtl", own, up[:, :nope])
    latent = layer.attend(torch.cat([rotated, absorbed], dim=-1), mask, scale, softcap, s_aux)
    return torch.einsum("bthl,hcl->bthc", latent, up[:, nope:])


def register() -> None:
    """Registers the implementation and its mask with transformers."""
    AttentionInterface.register(IMPLEMENTATION, kvant_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, kvant_mask)
