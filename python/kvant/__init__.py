"""Language models with an always compressed KV cache.

>>> import kvant
>>> with kvant.Engine.open("smollm2-135m") as engine:      # doctest: +SKIP
...     for piece in engine.generate("The sky is blue because", max_tokens=40):
...         print(piece, end="")

`Engine` opens a model and generates, chats and embeds; `Session` is one sequence, step by step. `codec` and `codecs` are the codecs
of the KV cache on arrays, `Quantizer` and `matmul` packed weights. `evaluate`, `calibrate`, `plan` and `convert` are the chores of
the command line. `kvant.lm_eval` lets lm-eval run its tasks on an engine.

Arrays are numpy's, or anything with DLPack or the buffer protocol (torch, jax, ...) in host memory: f32, f16 and bf16. None is copied
unless its layout asks for it, so none may be written to while a function works on it. Other threads run meanwhile: the GIL is
released. What cannot be done is a `ValueError`, a `TypeError` or a `KvantError`, in kvant's own words.
"""

from ._codec import Codec, CodecInfo, ErrorReport, Pages, codec, codecs
from ._convert import Converted, convert, synth
from ._engine import Engine, EngineInfo
from ._generation import Chat, Generation, Part, Reply, Token, ToolCall, Usage
from ._kvant import KvantError, __version__
from ._measure import Calibrated, Planned, calibrate, evaluate, plan
from ._session import Sampler, Session
from ._weights import QuantizedTensor, Quantizer, matmul

__all__ = [
    "Calibrated",
    "Chat",
    "Codec",
    "CodecInfo",
    "Converted",
    "Engine",
    "EngineInfo",
    "ErrorReport",
    "Generation",
    "KvantError",
    "Pages",
    "Part",
    "Planned",
    "QuantizedTensor",
    "Quantizer",
    "Reply",
    "Sampler",
    "Session",
    "Token",
    "ToolCall",
    "Usage",
    "__version__",
    "calibrate",
    "codec",
    "codecs",
    "convert",
    "evaluate",
    "matmul",
    "plan",
    "synth",
]
