"""MLX's arrays and `mx.fast.metal_kernel`, for attention on packed pages (`_metal`)."""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np

from ._metal import THREADS, Kernel


class MlxDevice:
    """The GPU that MLX computes on."""

    def words(self, numbers: np.ndarray) -> mx.array:
        return mx.array(numbers)

    def floats(self, numbers: np.ndarray) -> mx.array:
        return mx.array(numbers)

    def room(self, old: mx.array | None, rows: int, words: int) -> mx.array:
        if old is None:
            return mx.zeros((rows, words), mx.uint32)
        return mx.concatenate([old, mx.zeros((rows - old.shape[0], words), mx.uint32)])

    def put(self, pool: mx.array, rows: list[int], words: mx.array) -> mx.array:
        pool[mx.array(rows)] = words
        return pool

    def launch(self, kernel: Kernel, inputs: dict[str, Any], count: int, workgroups: int) -> mx.array:
        names = [name for name in kernel.buffers if name not in kernel.outputs]
        (result,) = _launcher(kernel)(
            inputs=[inputs[name] for name in names],
            grid=(THREADS * workgroups, 1, 1),
            threadgroup=(THREADS, 1, 1),
            output_shapes=[(count,)],
            output_dtypes=[mx.float32],
        )
        return result


@cache
def _launcher(kernel: Kernel) -> Any:
    return mx.fast.metal_kernel(
        name=kernel.name,
        input_names=[name for name in kernel.buffers if name not in kernel.outputs],
        output_names=list(kernel.outputs),
        source=kernel.body,
        header=kernel.header,
    )
