"""What engines do not tell their tiers: how many kv heads a model has, and how wide they are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

__all__ = ["ModelShape", "bytes_of", "layer_number", "source_of"]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


@dataclass(frozen=True)
class ModelShape:
    """The kv heads of a layer, and their channels."""

    kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, model: str | None, kv_heads: int | None, head_dim: int | None) -> ModelShape:
        """What was given, else what the model's configuration says."""
        if kv_heads and head_dim:
            return cls(int(kv_heads), int(head_dim))
        try:
            from transformers import AutoConfig

            config = AutoConfig.from_pretrained(model).get_text_config()
        except Exception as error:
            raise ValueError(
                f"the shape of model {model!r} cannot be read ({error}): give the tier kv_heads and head_dim"
            ) from error
        heads = config.num_attention_heads
        return cls(
            int(kv_heads or getattr(config, "num_key_value_heads", None) or heads),
            int(head_dim or getattr(config, "head_dim", None) or config.hidden_size // heads),
        )


def bytes_of(limit: int | str) -> int:
    """Bytes as a number, or as text such as ``64GiB``."""
    if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
        return limit
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", str(limit), re.IGNORECASE)
    if found is None or found[2].lower() not in _UNITS or float(found[1]) <= 0:
        raise ValueError(f"limit is {limit!r}; it must be a number of bytes, or text such as 64GiB")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def layer_number(name: str, place: int) -> int:
    """The number in a layer's name, as in ``model.layers.12.self_attn``; its place in the list where there is none."""
    found = re.search(r"\.(\d+)\.", name)
    return int(found[1]) if found else place


def source_of(kv: str | PathLike[str]) -> dict[str, Any]:
    """A spec, or the bytes of a plan, as the native tier takes them."""
    text = str(kv)
    return {"plan": Path(text).read_bytes()} if text.endswith(".kvplan") else {"kv": text}
