"""Arrays of other libraries as numpy sees them, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Kinds of numbers by numpy's names.
_KINDS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def floats(array: Any, what: str = "the array") -> tuple[np.ndarray, str]:
    """The array and its kind (`f32`, `f16`, `bf16`); 16-bit kinds come as unsigned integers."""
    found = _as_numpy(array, what)
    if isinstance(found, tuple):
        return found
    kind = _KINDS.get(found.dtype.name)
    if kind is None:
        raise TypeError(f"{what} has numbers of type {found.dtype}; they must be float32, float16 or bfloat16")
    if not found.dtype.isnative:
        raise TypeError(f"{what} has numbers in another byte order than this machine's")
    return (found, kind) if kind == "f32" else (found.view(np.uint16), kind)


def rows_of(array: Any, axes: int, what: str = "the array") -> tuple[np.ndarray, str, tuple[int, ...]]:
    """The same with exactly `axes` axes, missing ones in front added; and the shape as it was given."""
    found, kind = floats(array, what)
    shape = found.shape
    if not 1 <= found.ndim <= axes:
        raise ValueError(f"{what} has {found.ndim} axes; it must have 1 to {axes}")
    return found[(None,) * (axes - found.ndim)], kind, shape


def _as_numpy(array: Any, what: str) -> np.ndarray | tuple[np.ndarray, str]:
    if isinstance(array, np.ndarray):
        return array
    if _is_torch(array):
        return _of_torch(array, what)
    if hasattr(array, "__dlpack__"):
        try:
            return np.from_dlpack(array)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            # DLPack's bfloat16 has no twin in numpy; libraries with such a type also have one for its bits.
            if "bfloat16" in str(getattr(array, "dtype", "")):
                return np.from_dlpack(array.view("uint16")), "bf16"
            raise TypeError(f"{what} cannot be read in host memory: {error}") from None
    try:
        return np.asarray(memoryview(array))
    except TypeError:
        kind = type(array).__name__
        raise TypeError(f"{what} is a {kind}; it must be an array: numpy, or what has DLPack or a buffer") from None


def _is_torch(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] == "torch" and hasattr(array, "detach")


def _of_torch(tensor: Any, what: str) -> np.ndarray | tuple[np.ndarray, str]:
    import torch  # type: ignore[import-not-found, unused-ignore]

    if tensor.device.type != "cpu":
        raise TypeError(f"{what} is on {tensor.device}; bring it to host memory with .cpu()")
    tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16), "bf16"
    return tensor.numpy()
