"""Plans: what calibration finds for a model, and codecs need."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel

from .. import _kvant
from .attention import dense_attention, kvant_mask
from .context import on_host

#: The attention implementation that looks at what passes by.
OBSERVER = "kvant_observer"

#: What of a configuration says how a model is run, and not which model it is.
UNRELATED = ("_attn_implementation", "dtype", "torch_dtype", "transformers_version", "_name_or_path", "use_cache", "architectures")

#: Names of the projection that reads what attention gives.
OUTPUTS = ("o_proj", "out_proj", "dense", "c_proj", "wo")


class Plan:
    """What calibration found for a model: the content of a ``.kvplan`` file."""

    def __init__(self, data: bytes):
        self.data = bytes(data)
        self._layout = _kvant.CacheLayout(None, self.data)

    @property
    def kv(self) -> str:
        """How keys and values are kept."""
        return self._layout.kv

    @property
    def made(self) -> str:
        """How it was made."""
        return self._layout.plan_made

    def save(self, path: str | PathLike) -> None:
        """Writes the file."""
        Path(path).write_bytes(self.data)

    @classmethod
    def open(cls, path: str | PathLike) -> Plan:
        """Reads a file, of this module or of ``kvant calibrate``."""
        return cls(Path(path).read_bytes())

    @staticmethod
    def is_one(kv: Any) -> bool:
        """Whether an argument `kv` names a plan, and not a spec."""
        return not isinstance(kv, str) or kv.endswith(".kvplan") or os.sep in kv

    @classmethod
    def of(cls, kv: Any) -> Plan:
        """The plan that an argument names."""
        if isinstance(kv, Plan):
            return kv
        return cls(kv) if isinstance(kv, (bytes, bytearray, memoryview)) else cls.open(kv)

    def __repr__(self) -> str:
        return f"Plan(kv={self.kv!r}, made={self.made!r})"


def signature(config: PreTrainedConfig) -> bytes:
    """What tells a model's plan from another's: a digest of its configuration."""
    values = {name: value for name, value in config.to_dict().items() if name not in UNRELATED}
    return hashlib.sha256(b"kvant.hf\n" + json.dumps(values, sort_keys=True, default=str).encode()).digest()


class _Observation:
    """Statistics of every layer, filled by the observing attention."""

    current: _Observation | None = None

    def __init__(self, sinks: int):
        self.sinks = sinks
        self.layers: dict[int, _kvant.LayerStatistics] = {}
        self.read: set[int] = set()

    def see(self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        query, host_key, value = on_host(query), on_host(key), on_host(value)
        # A layer that shares another's keys gets the very tensor: its queries are counted there.
        owner = getattr(key, "_kvant_owner", None)
        if owner is None:
            owner = key._kvant_owner = module.layer_idx
            if owner not in self.layers:
                _, heads, _, dim = host_key.shape
                self.layers[owner] = _kvant.LayerStatistics(owner, heads, dim, value.shape[-1], self.sinks)
            self.layers[owner].append(host_key, value)
        self.layers[owner].attend(query)
        if module.layer_idx not in self.read:
            self.read.add(module.layer_idx)
            weights = _output_weights(module, query.shape[1], value.shape[-1])
            if weights is not None:
                self.layers[owner].read_by(weights)


def _output_weights(module: torch.nn.Module, heads: int, dim: int) -> torch.Tensor | None:
    """Weights of the output projection as (1, heads, outputs, channels); `None` where it is not found."""
    for name in OUTPUTS:
        projection = getattr(module, name, None)
        weight = getattr(projection, "weight", None)
        if weight is None or weight.ndim != 2:
            continue
        # GPT-2's Conv1D has them the other way round.
        weight = weight.T if type(projection).__name__ == "Conv1D" else weight
        if weight.shape[1] == heads * dim:
            return on_host(weight).float().reshape(-1, heads, dim).transpose(0, 1)[None]
    return None


def _observing_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    if _Observation.current is not None:
        _Observation.current.see(module, query, key, value)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    return dense_attention(module, query, key, value, attention_mask, scale, **kwargs), None


def calibrate(
    model: PreTrainedModel,
    ids: torch.Tensor | Iterable[torch.Tensor],
    kv: str = "k=klt4.25,v=rot4g32",
    *,
    text: str = "the caller's tokens",
    progress: Callable[[int], None] | None = None,
) -> Plan:
    """Makes a plan (means, λ, KLT and balanced bases) from what a model computes on tokens.

    Args:
        model: Any causal model whose attention goes through transformers' attention interface.
        ids: Tokens: (sequences, tokens), or sequences of different lengths. Some thousand tokens will do; positions as long as those
            that will be used find the slow channels of RoPE.
        kv: How keys and values will be kept, such as ``srft4:g64,lambda``, ``klt4.25`` or ``ch4:mean``.
        text: What the tokens are, in a few words, for whoever looks at the plan.
        progress: Told how many tokens were read.
    """
    config = model.config.get_text_config(decoder=True)
    if getattr(config, "kv_lora_rank", None) is not None:
        raise NotImplementedError("latents (MLA) have no calibrated codecs: use int4 or another spec that needs no plan")
    layout = _kvant.CacheLayout(kv)
    observation, read = _Observation(layout.sinks), 0
    before, was_training = config._attn_implementation, model.training
    _Observation.current = observation
    try:
        config._attn_implementation = OBSERVER
        model.eval()
        with torch.no_grad():
            for row in ids:
                row = torch.as_tensor(row).view(1, -1)
                model(input_ids=row.to(model.device), use_cache=False, logits_to_keep=1)
                read += row.shape[1]
                if progress is not None:
                    progress(read)
    finally:
        _Observation.current = None
        config._attn_implementation = before
        model.train(was_training)
    if not observation.layers:
        raise ValueError(f"{type(model).__name__} called no attention through transformers' attention interface")
    layers = [observation.layers.get(layer) for layer in range(config.num_hidden_layers)]
    made = f"from {read} tokens of {text}, by transformers"
    return Plan(_kvant.make_plan(signature(config), kv, made, layers))


AttentionInterface.register(OBSERVER, _observing_attention)
AttentionMaskInterface.register(OBSERVER, kvant_mask)
