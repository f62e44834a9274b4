"""Packed weights, and their products with activations of 8 bits."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from . import _kvant
from ._arrays import floats, rows_of

Precision = Literal["int4", "int8"]

#: Weights that share a scale, where nothing else is said.
GROUP = 32
#: All there are.
GROUPS = (16, 32, 64)


class QuantizedTensor:
    """Weights, `(rows, columns)`, in groups with an f16 scale. In groups of 32 their bytes are those of Q4_0 or Q8_0."""

    def __init__(self, weights: _kvant.Weights) -> None:
        self._weights = weights

    @classmethod
    def from_blocks(cls, blocks: Any, precision: Precision, shape: tuple[int, int]) -> QuantizedTensor:
        """Takes blocks as a GGUF file has them in Q4_0 (`int4`) or Q8_0 (`int8`): contiguous uint8."""
        return cls(_kvant.Weights.from_blocks(np.asarray(blocks), precision, *shape))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self._weights.shape

    @property
    def precision(self) -> str:
        """`int4` or `int8`."""
        return self._weights.precision

    @property
    def group_size(self) -> int:
        """Weights under one scale: 16, 32 or 64."""
        return self._weights.group

    @property
    def nbytes(self) -> int:
        """Bytes of all codes and scales."""
        return self._weights.nbytes

    @property
    def bits_per_value(self) -> float:
        """Bits per weight, scales included."""
        rows, columns = self.shape
        return 8 * self.nbytes / (rows * columns)

    @property
    def blocks(self) -> np.ndarray:
        """A copy of the blocks, `(rows, bytes)`."""
        return self._weights.blocks()

    @property
    def codes(self) -> np.ndarray:
        """The codes as signed integers around zero, `(rows, columns)`; a weight is its code times its group's scale."""
        return self._weights.codes()

    @property
    def scales(self) -> np.ndarray:
        """The scales, `(rows, groups)`."""
        return self._weights.scales()

    def dequantize(self) -> np.ndarray:
        """The numbers they stand for, in f32."""
        return self._weights.dequantize()

    def __repr__(self) -> str:
        return f"<kvant.QuantizedTensor {self.precision} {self.shape}>"


class Quantizer:
    """Rounds weights to `int4` or `int8` in groups of 16, 32 or 64 along a row; with groups of 16, rows are multiples of 32."""

    def __init__(self, precision: Precision = "int4", group_size: int = GROUP) -> None:
        if precision not in ("int4", "int8"):
            raise ValueError(f"precision is {precision!r}; it must be int4 or int8")
        if group_size not in GROUPS:
            raise ValueError(f"group_size is {group_size}; weights are rounded in groups of 16, 32 or 64")
        self.precision: Precision = precision
        self.group_size = group_size

    def quantize(self, weights: Any) -> QuantizedTensor:
        """Rounds an array, `(rows, columns)`, in f32, f16 or bf16."""
        return QuantizedTensor(_kvant.Weights.quantize(*floats(weights, "weights"), self.precision, self.group_size))

    def dequantize(self, weights: QuantizedTensor) -> np.ndarray:
        """The numbers that rounded weights stand for, in f32."""
        return weights.dequantize()


def matmul(x: Any, weights: QuantizedTensor) -> np.ndarray:
    """x·Wᵀ: activations `(..., columns)`, rounded to 8 bits in groups of 32, times packed weights `(rows, columns)`.

    Inside a group the arithmetic is integer; a row of the result has the same bits in any batch, on any number of threads."""
    found, kind, shape = rows_of(x, 8, "activations")
    tokens = found.reshape(-1, shape[-1])
    return weights._weights.matmul(tokens, kind).reshape(*shape[:-1], weights.shape[0])
