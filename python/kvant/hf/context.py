"""What the layers of one cache share."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.dlpack import to_dlpack

from .. import _kvant

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from .layer import KvantLayer

#: The attention implementation that reads compressed bytes.
IMPLEMENTATION = "kvant"

#: The layer of this thread whose new keys no attention has taken yet.
open_layer = threading.local()

#: Numbers that tensors on a card may have.
NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}

#: Numbers that tensors of a saved cache may have, by name.
DTYPES = {**{name: dtype for dtype, name in NAMES.items()}, "bool": torch.bool}

_warned_devices: set[str] = set()


class CacheFileError(ValueError):
    """A file that is not a saved cache, is damaged, or belongs to another model."""


class CacheContext:
    """The native layout, the model's configuration, and how attention reads the cache."""

    def __init__(
        self, config: PreTrainedConfig, layout: _kvant.CacheLayout, attention: str | None, keep_decoded: bool = False
    ):
        if attention not in (None, "bytes", "decoded"):
            raise ValueError(f"attention={attention!r}: None, 'bytes' or 'decoded' was expected")
        self.config = config
        self.layout = layout
        self.attention = attention
        #: Whether what attention gets decoded is kept decoded, so that each page is decoded once.
        self.keep_decoded = keep_decoded
        #: Later layers may read this layer's keys (Gemma 3n and 4): a pass ends only when the next one begins.
        self.shares_layers = bool(getattr(config, "num_kv_shared_layers", 0))

    @property
    def on_bytes(self) -> bool:
        """Whether attention runs on the compressed bytes."""
        if self.attention is not None:
            return self.attention == "bytes"
        return self.config._attn_implementation == IMPLEMENTATION

    def is_latent(self, keys: torch.Tensor, values: torch.Tensor) -> bool:
        """Whether a layer caches MLA's latents: what comes as keys is the latent, as values the rotated part."""
        rank, rotated = getattr(self.config, "kv_lora_rank", None), getattr(self.config, "qk_rope_head_dim", None)
        return rank is not None and (keys.shape[1], keys.shape[-1], values.shape[-1]) == (1, rank, rotated)

    def __deepcopy__(self, memo: dict) -> CacheContext:
        return self


def refuse_gradients(*tensors: torch.Tensor) -> None:
    """Refuses tensors whose gradients would be lost: pages hold numbers, and no graph leads through them."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise RuntimeError(
            "KvantCache keeps no gradients: those of keys, values and queries would be lost. Compute under torch.no_grad() or "
            "torch.inference_mode(), or train with use_cache=False"
        )


def lent(tensor: torch.Tensor) -> Any:
    """The tensor on the host as a DLPack capsule, without what `Tensor.__dlpack__` asks first: it is called several times a layer."""
    return to_dlpack(on_host(tensor))


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in host memory, outside of autograd."""
    tensor = tensor.detach()
    if tensor.is_cpu:
        return tensor
    if tensor.device.type == "mps":
        reason = "KvantCache encodes what lies on mps, and attends with prompts, on the processor"
    else:
        reason = f"KvantCache has no kernels for {tensor.device.type}"
    warn_of_host(tensor.device, reason)
    return tensor.to("cpu")


def warn_of_host(device: torch.device, reason: str) -> None:
    """Says once for each kind of device why tensors do not stay there."""
    if device.type not in _warned_devices:
        _warned_devices.add(device.type)
        warnings.warn(f"{reason}: keys, values and queries go through host memory, which is slow", stacklevel=4)


def card_of(tensor: torch.Tensor) -> int | None:
    """The number of NVIDIA's card that a tensor lies on."""
    return tensor.device.index if tensor.is_cuda else None


def stream_of(tensor: torch.Tensor) -> int:
    """The handle of the stream that torch computes on now, where the tensor lies; without an object around it, which takes longer."""
    return torch._C._cuda_getCurrentRawStream(tensor.get_device())


def on_card(tensor: torch.Tensor) -> tuple[int, str, torch.Size, tuple[int, ...]]:
    """Where a tensor lies on its card; whoever calls holds it as long as that is used."""
    dtype = tensor.dtype
    return tensor.data_ptr(), NAMES.get(dtype) or str(dtype), tensor.shape, tensor.stride()


def layer_of(key: torch.Tensor) -> KvantLayer | None:
    """The layer that handed out these keys."""
    return getattr(key, "_kvant_layer", None)
