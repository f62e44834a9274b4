"""A serde of LMCache: chunks on their way to a storage adapter become pages of kvant's codecs.

    python -m kvant.tiers.lmcache server … --l2-adapter '{"type": "fs", "base_path": "/mnt/kv",
        "serde": {"type": "kvant", "kv": "int4", "head_dim": 128}}'

LMCache knows a serde once its module was imported. `python -m kvant.tiers.lmcache` imports this one and goes on as the command ``lmcache``
with the same arguments; a program of one's own imports it. Where bytes lie, and when they go, is the adapter's to decide.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from lmcache.v1.distributed.serde import (
    AsyncSerdeProcessor,
    Deserializer,
    Serializer,
    get_registered_serde_types,
    register_serde_factory,
)

from .. import _kvant
from .shape import source_of

__all__ = ["KvantDeserializer", "KvantSerializer", "create"]

#: The name in LMCache's configuration.
NAME = "kvant"


class _Packers:
    """A packer for every shape of chunk: the last one of a text may be shorter."""

    def __init__(self, kv: str, head_dim: int):
        self._source, self._head_dim = source_of(kv), head_dim
        self._packers: dict[tuple, _kvant.BlockPacker] = {}
        self._lock = threading.Lock()

    def of(self, shape: Any, dtype: torch.dtype) -> _kvant.BlockPacker:
        """The packer of chunks (2, layers, tokens, heads · channels)."""
        key = (tuple(int(length) for length in shape), dtype)
        with self._lock:
            if key not in self._packers:
                self._packers[key] = _kvant.BlockPacker(self._form(*key), "lmcache", **self._source)
            return self._packers[key]

    def _form(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple:
        dim = self._head_dim
        if len(shape) != 4 or shape[0] != 2 or shape[3] % dim:
            raise ValueError(
                f"a chunk has the shape {shape}; it must be (2, layers, tokens, heads * {dim}): latents and caches of states are not "
                "supported, and head_dim must be the model's"
            )
        _, layers, tokens, width = shape
        size = dtype.itemsize
        layer = tokens * width * size
        heads = range(width // dim)
        places = [
            (index, [(index * layer + head * dim * size, (layers + index) * layer + head * dim * size) for head in heads])
            for index in range(layers)
        ]
        return (str(dtype).removeprefix("torch."), tokens, dim, dim, width * size, tokens, 0, places)


def _tensor(part: Any, what: str) -> torch.Tensor:
    tensor = part.tensor
    if tensor is None:
        raise ValueError(f"{what} has no single tensor: caches whose layers differ in their shape are not supported")
    if tensor.device.type != "cpu":
        raise ValueError(f"{what} lies on {tensor.device}: kvant's serde works in host memory")
    return tensor


def _bytes(tensor: torch.Tensor) -> Any:
    if not tensor.is_contiguous():
        raise ValueError("a chunk does not lie in one piece")
    return tensor.view(torch.uint8).reshape(-1).numpy()


class KvantSerializer(Serializer):
    """Chunks to pages."""

    def __init__(self, packers: _Packers):
        self._packers = packers

    def serialize(self, src: Any, dst: Any, key: Any) -> int:
        source, target = _tensor(src, "the chunk"), _tensor(dst, "the buffer")
        return self._packers.of(source.shape, source.dtype).pack(_bytes(source), _bytes(target))

    def estimate_serialized_size(self, layout_desc: Any) -> int:
        shapes = zip(layout_desc.shapes, layout_desc.dtypes, strict=True)
        return sum(self._packers.of(shape, dtype).packed_bytes for shape, dtype in shapes)


class KvantDeserializer(Deserializer):
    """Pages to chunks."""

    def __init__(self, packers: _Packers):
        self._packers = packers

    def deserialize(self, src: Any, dst: Any, key: Any) -> None:
        source, target = _tensor(src, "the buffer"), _tensor(dst, "the chunk")
        self._packers.of(target.shape, target.dtype).unpack(_bytes(source), _bytes(target))


def create(kwargs: dict[str, Any]) -> AsyncSerdeProcessor:
    """What LMCache calls with the settings of ``serde``: `kv` (a spec, or the path of a plan), `head_dim`, `max_workers`."""
    unknown = set(kwargs) - {"kv", "head_dim", "max_workers"}
    if unknown:
        raise ValueError(f"the serde kvant has no setting {', '.join(sorted(unknown))}: it takes kv, head_dim and max_workers")
    if not kwargs.get("head_dim"):
        raise ValueError('the serde kvant needs "head_dim", the channels of a head')
    packers = _Packers(str(kwargs.get("kv", "int4")), int(kwargs["head_dim"]))
    # Packing runs without the GIL, so threads help.
    workers = int(kwargs.get("max_workers", 2))
    return AsyncSerdeProcessor(KvantSerializer(packers), KvantDeserializer(packers), max_workers=workers)


if NAME not in get_registered_serde_types():
    register_serde_factory(NAME, create)


if __name__ == "__main__":
    from lmcache.cli.main import main

    main()
