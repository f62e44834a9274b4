"""torch's tensors on mps and `torch.mps.compile_shader`, for attention on packed pages (`kvant._metal`)."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from .._metal import THREADS, Kernel


def is_here(tensor: torch.Tensor) -> bool:
    """Whether Metal computes where a tensor lies."""
    return tensor.is_mps


class TorchDevice:
    """The device that tensors lie on."""

    def __init__(self, device: torch.device):
        self._device = device

    def words(self, numbers: np.ndarray) -> torch.Tensor:
        # The bits are what counts: torch computes little with unsigned words.
        return torch.from_numpy(numbers.view(np.int32).copy()).to(self._device)

    def floats(self, numbers: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(numbers.copy()).to(self._device)

    def room(self, old: torch.Tensor | None, rows: int, words: int) -> torch.Tensor:
        new = torch.zeros((rows, words), dtype=torch.int32, device=self._device)
        if old is not None:
            new[: old.shape[0]] = old
        return new

    def put(self, pool: torch.Tensor, rows: list[int], words: torch.Tensor) -> torch.Tensor:
        pool[torch.tensor(rows, device=self._device)] = words
        return pool

    def launch(self, kernel: Kernel, inputs: dict[str, Any], count: int, workgroups: int) -> torch.Tensor:
        result = torch.empty(count, dtype=torch.float32, device=self._device)
        buffers = [result if name in kernel.outputs else inputs[name] for name in kernel.buffers]
        launch = getattr(_library(kernel), kernel.name)
        launch(*buffers, threads=THREADS * workgroups, group_size=THREADS)
        return result


@cache
def _library(kernel: Kernel) -> Any:
    return torch.mps.compile_shader(kernel.text)
