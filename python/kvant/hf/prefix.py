"""What attention got so far, kept decoded: a page that is encoded is decoded once, and not at every step.

This trades memory for time: the numbers of a whole layer lie there beside its pages.
"""

from __future__ import annotations

import torch

from .. import _kvant
from .context import lent

#: Tokens that there is room for beyond those that have come, at least.
ROOM = 256


class DecodedPrefix:
    """Keys and values of one layer, (batch, kv heads, room, channels). Sinks and encoded pages never change; later rows are written
    anew at every step, so what was handed out before a step is not to be read after it."""

    def __init__(self, heads: int, dims: tuple[int, int], dtype: torch.dtype, device: torch.device):
        self._heads, self._dims, self._dtype, self._device = heads, dims, dtype, device
        self._sides: list[torch.Tensor] | None = None
        #: Positions that will not change.
        self._closed = 0

    def extend(self, native: _kvant.LayerCache) -> tuple[torch.Tensor, torch.Tensor]:
        """All that the layer holds: what is not closed yet is decoded."""
        lens = native.lens
        rows, held, closed = len(lens), lens[0], self._closed
        if self._sides is None or self._sides[0].shape[0] != rows:
            self._sides, closed = [self._room(rows, dim, held) for dim in self._dims], 0
        elif self._sides[0].shape[2] < held:
            wider = [self._room(rows, dim, held) for dim in self._dims]
            for new, old in zip(wider, self._sides, strict=True):
                new[:, :, :closed] = old[:, :, :closed]
            self._sides = wider
        places = [side[:, :, closed:held] for side in self._sides]
        # Other devices get copies of what was decoded in host memory.
        fresh = places if self._device.type == "cpu" else [torch.empty(part.shape, dtype=part.dtype) for part in places]
        native.decode(lent(fresh[0]), lent(fresh[1]), [closed] * rows)
        if fresh is not places:
            for place, part in zip(places, fresh, strict=True):
                place.copy_(part)
        self._closed = native.closed
        keys, values = (side[:, :, :held] for side in self._sides)
        return keys, values

    def crop(self, native: _kvant.LayerCache) -> None:
        """The layer has gone back."""
        self._closed = min(self._closed, native.closed)

    def select(self, indices: list[int]) -> None:
        """Keeps these rows of the batch."""
        if self._sides is not None:
            self._sides = [side[indices] for side in self._sides]

    @property
    def nbytes(self) -> int:
        return sum(side.nbytes for side in self._sides or ())

    def _room(self, rows: int, dim: int, held: int) -> torch.Tensor:
        # A tensor of inference mode could not be written outside of it.
        with torch.inference_mode(False):
            room = held + max(ROOM, held // 4)
            return torch.empty((rows, self._heads, room, dim), dtype=self._dtype, device=self._device)
