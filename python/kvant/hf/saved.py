"""A cache in a file.

    magic          8 bytes  KVANTHFC
    version        u32      1
    checksum       u32      CRC-32 of the header
    header length  u64
    header                  JSON: how the cache is kept, what each layer is, and length and CRC-32 of every part
    parts                   one after the other: the plan, then of every layer its sequences and its tensors

Numbers are little-endian. A sequence is what a session file of one layer would be, canonical pages with their own checksums: see
``docs/format.md`` of kvant-cache. Nothing in a file is believed before it is checked, and nothing in it is ever run.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
import tempfile
import zlib
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import LinearAttentionLayer

from .. import _kvant
from .context import DTYPES, CacheFileError
from .layer import KvantLayer
from .plans import signature

if TYPE_CHECKING:
    from .cache import KvantCache

MAGIC = b"KVANTHFC"
VERSION = 1
FIXED = struct.Struct("<8sIIQ")


class Parts:
    """The parts of a file in their order: written one by one, or read one by one."""

    def __init__(self, parts: list[bytes]):
        self.parts = parts
        self.at = 0

    def put(self, part: bytes) -> None:
        self.parts.append(part)

    def next(self) -> bytes:
        if self.at >= len(self.parts):
            raise CacheFileError("it has fewer parts than its header says")
        self.at += 1
        return self.parts[self.at - 1]

    def put_tensor(self, tensor: torch.Tensor | None) -> list | None:
        """Adds a tensor, and returns what the header says of it."""
        if tensor is None:
            return None
        name = str(tensor.dtype).removeprefix("torch.")
        if name not in DTYPES:
            raise ValueError(f"a state of type {name} cannot be saved: {', '.join(DTYPES)} can")
        host = tensor.detach().cpu().contiguous()
        self.put(host.reshape(-1).view(torch.uint8).numpy().tobytes())
        return [name, list(host.shape)]

    def tensor(self, record: Any, device: torch.device) -> torch.Tensor | None:
        """The next tensor, of which the header says this."""
        if record is None:
            return None
        name, shape = record
        dtype, shape, part = DTYPES[name], [_count(length) for length in shape], bytearray(self.next())
        if math.prod(shape) * dtype.itemsize != len(part):
            raise CacheFileError("a tensor has another size than its header says")
        if not part:
            return torch.empty(shape, dtype=dtype, device=device)
        return torch.frombuffer(part, dtype=dtype).reshape(shape).to(device)


def _count(number: Any) -> int:
    """A count of a header."""
    if type(number) is not int or number < 0:
        raise CacheFileError(f"{number!r} is not a count")
    return number


def layer_signature(model: bytes, layout: _kvant.CacheLayout) -> bytes:
    """What must be the same for a layer's pages to mean the same: the model, how they are kept, and the numbers of the plan."""
    return hashlib.sha256(b"kvant.hf cache\n" + model + layout.kv.encode() + b"\n" + (layout.plan or b"")).digest()


def to_bytes(cache: KvantCache) -> bytes:
    """The content of the file."""
    context, parts = cache.context, Parts([])
    layout, model = context.layout, signature(context.config)
    signed = layer_signature(model, layout)
    if layout.plan is not None:
        parts.put(layout.plan)
    layers = [_put_layer(layer, parts, layout.kv, signed) for layer in cache.layers]
    header = {
        "kv": layout.kv,
        "has_plan": layout.plan is not None,
        "model": model.hex(),
        "layers": layers,
        "parts": [[len(part), zlib.crc32(part)] for part in parts.parts],
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    return b"".join([FIXED.pack(MAGIC, VERSION, zlib.crc32(text), len(text)), text, *parts.parts])


def _put_layer(layer: Any, parts: Parts, policy: str, signed: bytes) -> dict[str, Any]:
    record: dict[str, Any] = {"class": type(layer).__name__, "device": str(getattr(layer, "device", None) or "cpu")}
    if isinstance(layer, KvantLayer) and layer.native is not None:
        record["keys_values"] = layer.put(parts, policy, signed)
    if isinstance(layer, LinearAttentionLayer):
        record["states"] = [
            {
                "conv": parts.put_tensor(layer.conv_states[index]),
                "recurrent": parts.put_tensor(layer.recurrent_states[index]),
                "has_previous": layer.has_previous_state[index],
                "conv_kernel_size": layer.conv_kernel_size[index],
            }
            for index in range(layer.number_of_states)
        ]
    return record


def header_of(data: bytes) -> tuple[dict[str, Any], Parts]:
    """Checks the content of a file, and takes it apart."""
    if len(data) < FIXED.size or not data.startswith(MAGIC):
        raise CacheFileError("is not a saved KvantCache")
    _, version, checksum, length = FIXED.unpack_from(data)
    if version != VERSION:
        raise CacheFileError(f"has format version {version}, and this kvant reads {VERSION}: use the one that wrote it")
    text = data[FIXED.size : FIXED.size + length]
    if len(text) != length or zlib.crc32(text) != checksum:
        raise CacheFileError("is damaged: its header does not match its checksum")
    header = json.loads(text)
    at, parts = FIXED.size + length, []
    for number, (size, checksum) in enumerate(header["parts"]):
        part = data[at : at + size]
        if len(part) != size or zlib.crc32(part) != checksum:
            raise CacheFileError(f"is damaged: part {number} does not match its checksum")
        parts.append(part)
        at += size
    if at != len(data):
        raise CacheFileError("is damaged: there is something after its last part")
    return header, Parts(parts)


def fill(cache: KvantCache, header: dict[str, Any], parts: Parts, device: torch.device | None) -> None:
    """Gives an empty cache what a file holds."""
    context = cache.context
    signed = layer_signature(bytes.fromhex(header["model"]), context.layout)
    if len(header["layers"]) != len(cache.layers):
        raise CacheFileError(f"has {len(header['layers'])} layers, and the model {len(cache.layers)}")
    for index, (layer, record) in enumerate(zip(cache.layers, header["layers"], strict=True)):
        if type(layer).__name__ != record["class"]:
            raise CacheFileError(f"holds a {record['class']} as layer {index}, where the model has a {type(layer).__name__}")
        place = torch.device(record["device"]) if device is None else device
        if "keys_values" in record:
            layer.take(record["keys_values"], parts, signed, place)
        for number, states in enumerate(record.get("states", ())):
            _take_states(layer, number, states, parts, place)
    if parts.at != len(parts.parts):
        raise CacheFileError("has more parts than its layers")


def _take_states(layer: LinearAttentionLayer, number: int, record: dict[str, Any], parts: Parts, device: torch.device) -> None:
    conv, recurrent = parts.tensor(record["conv"], device), parts.tensor(record["recurrent"], device)
    layer.conv_states[number], layer.recurrent_states[number] = conv, recurrent
    layer.is_conv_states_initialized[number] = conv is not None
    layer.is_recurrent_states_initialized[number] = recurrent is not None
    layer.has_previous_state[number] = bool(record["has_previous"])
    layer.conv_kernel_size[number] = record["conv_kernel_size"]
    if conv is not None and not isinstance(layer, KvantLayer):
        layer.dtype, layer.device = conv.dtype, conv.device


def replace(path: str | PathLike, data: bytes) -> None:
    """Writes a file, which is either replaced as a whole or left as it was."""
    path = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
