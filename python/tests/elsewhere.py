"""Tensors on a device that is not there: what they hold lies in host memory, and only `to` gets at it."""

from __future__ import annotations

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

DEVICE = "mps:0"


class Elsewhere(torch.Tensor):
    """A tensor of that device."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor):
        strides, dtype = inner.stride(), inner.dtype
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), strides=strides, dtype=dtype, device=DEVICE)

    def __init__(self, inner: torch.Tensor):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(cls, lambda tensor: tensor.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, cls, func(*args, **kwargs))


class Moves(TorchFunctionMode):
    """`to` moves there and back, and counts."""

    def __init__(self):
        super().__init__()
        self.to_host = self.to_device = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not torch.Tensor.to:
            return func(*args, **(kwargs or {}))
        tensor, device = args
        if torch.device(device).type == torch.device(DEVICE).type:
            self.to_device += 1
            return tensor if isinstance(tensor, Elsewhere) else Elsewhere(tensor)
        self.to_host += 1
        return tensor.inner if isinstance(tensor, Elsewhere) else tensor
