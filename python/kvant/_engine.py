"""An open model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack, overload

import numpy as np

from . import _checks, _kvant
from ._generation import Chat, Generation, Reply, Sampling, Token, settings
from ._session import Session

#: Hears of what is done and of how much there is; both are 0 where that is not known.
Progress = Callable[[int, int], object]


@dataclass(frozen=True)
class EngineInfo:
    """What there is to know of an open model."""

    architecture: str
    #: The most tokens of a sequence, prompt and answer together.
    context: int
    #: Tokens the model was made for, where its file says.
    trained_context: int | None
    vocabulary: int
    #: How keys and values are kept.
    kv: str
    threads: int
    #: What computes: `cpu`, or the name of a device.
    device: str
    #: Whether it was taught to converse.
    converses: bool
    #: Its chat template.
    template: str | None
    bos: int | None
    eos: int | None
    #: Tokens that end a text.
    ends: list[int]
    #: Tokens that begin every text.
    prefix: list[int]
    #: What was decided that people may want to know.
    notes: list[str]


class Engine:
    """A model that generates, chats and embeds. Any number of threads and tasks may ask at once: they share passes."""

    def __init__(self, engine: _kvant.Engine) -> None:
        self._engine = engine
        #: What there is to know of it.
        self.info = EngineInfo(**json.loads(engine.about()))

    @classmethod
    def open(
        cls,
        model: str | os.PathLike[str],
        kv: str = "auto",
        ctx: int | None = None,
        threads: int | None = None,
        *,
        weights: Literal["int4", "int8"] | None = None,
        activations: Literal["int8", "f32"] = "int8",
        kv_memory: int | None = None,
        sinks: int | None = None,
        device: str = "cpu",
        gpu_layers: int | None = None,
        window: int | None = None,
        mlock: bool = False,
        sparse_v: float | None = None,
        state: Literal["f32", "bf16", "int8"] | None = None,
        speculate: str | None = None,
        lora: str | Sequence[str] | None = None,
        chat_template: str | None = None,
        rope_freq_base: float | None = None,
        rope_scaling: Literal["none", "linear", "yarn"] | None = None,
        rope_scale: float | None = None,
        rope_freq_scale: float | None = None,
        yarn_orig_ctx: int | None = None,
        yarn_ext_factor: float | None = None,
        yarn_attn_factor: float | None = None,
        yarn_beta_slow: float | None = None,
        yarn_beta_fast: float | None = None,
        progress: Progress | None = None,
    ) -> Engine:
        """Opens a GGUF file, a folder with safetensors, or a model by its name, which is fetched if need be.

        `kv` is how keys and values are kept: a spec such as `int4`, a plan (`FILE.kvplan`), or `auto`, by the plan beside the model
        or by its family. `ctx` is the most tokens of a sequence [the model's own, up to 8192, as memory allows]. `weights` packs
        what the file holds as plain numbers. `kv_memory` is the most bytes for keys and values of all sequences.

        `device` is what computes: `cpu`, `cuda` or `cuda:N`, `gpu` where kvant was built for it, or `auto`, which measures. `gpu_layers`
        is how many layers run there, from the first on [as many as its memory holds]; the CPU runs the rest. `window` is
        streaming attention (StreamingLLM) in place of `ctx`: the `sinks` and this many last tokens are in view, without end. `mlock` pins
        weights, keys and values in memory. `sparse_v` leaves out values of pages in which no token has this share of the largest
        weight. `state` is what recurrent state is stored in. `chat_template` is a Jinja template in place of the model's own.
        `speculate` is speculative decoding, which changes nothing but time: `suffix` [where the device allows it], `mtp` (the
        model's own head for further tokens; on CPUs) [where the file has one], `off`, or the file of a draft model (smaller, with the same
        tokenizer; on CPUs). `lora` are LoRA adapters that every text runs with: a GGUF file for a GGUF model, a PEFT folder for a Hugging
        Face one, with `:SCALE` after it to weigh it; on CPUs.

        The `rope_…` and `yarn_…` settings take the place of the file's rotary embedding, under llama.cpp's names.
        """
        asked: dict[str, object] = {
            "kv": os.fspath(kv),
            "ctx": _checks.whole_or_none("ctx", ctx, 1),
            "threads": _checks.whole_or_none("threads", threads, 1),
            "weights": weights,
            "activations": activations,
            "kv_memory": _checks.whole_or_none("kv_memory", kv_memory, 1),
            "sinks": _checks.whole_or_none("sinks", sinks),
            "device": device,
            "gpu_layers": _checks.whole_or_none("gpu_layers", gpu_layers),
            "window": _checks.whole_or_none("window", window, 1),
            "mlock": "true" if mlock else None,
            "sparse_v": _checks.number_or_none("sparse_v", sparse_v),
            "state": state,
            "speculate": speculate,
            "lora": lora if lora is None or isinstance(lora, str) else ",".join(lora) or None,
            "chat_template": chat_template,
            "rope_freq_base": _checks.number_or_none("rope_freq_base", rope_freq_base),
            "rope_scaling": rope_scaling,
            "rope_scale": _checks.number_or_none("rope_scale", rope_scale),
            "rope_freq_scale": _checks.number_or_none("rope_freq_scale", rope_freq_scale),
            "yarn_orig_ctx": _checks.whole_or_none("yarn_orig_ctx", yarn_orig_ctx),
            "yarn_ext_factor": _checks.number_or_none("yarn_ext_factor", yarn_ext_factor),
            "yarn_attn_factor": _checks.number_or_none("yarn_attn_factor", yarn_attn_factor),
            "yarn_beta_slow": _checks.number_or_none("yarn_beta_slow", yarn_beta_slow),
            "yarn_beta_fast": _checks.number_or_none("yarn_beta_fast", yarn_beta_fast),
        }
        given = [(name, str(value)) for name, value in asked.items() if value is not None]
        return cls(_kvant.Engine.open(os.fspath(model), given, progress))

    def close(self) -> None:
        """Gives back the model; texts on their way end. What is asked later is refused."""
        self._engine.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._engine.closed

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"kv={self.info.kv!r}, ctx={self.info.context}"
        return f"<kvant.Engine {self.info.architecture}, {state}>"

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The ids of a text, with those that begin every text; control tokens are read by their names where asked."""
        return self._engine.tokenize(text, add_special, parse_special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids; control tokens have none."""
        return self._engine.detokenize(_checks.ids(ids))

    def _ids(self, prompt: str | Sequence[int]) -> list[int]:
        return self.tokenize(prompt) if isinstance(prompt, str) else _checks.ids(prompt)

    @overload
    def generate(
        self, prompt: str | Sequence[int], *, logprobs: None = None, **options: Unpack[Sampling]
    ) -> Generation[str]: ...
    @overload
    def generate(
        self, prompt: str | Sequence[int], *, logprobs: int, **options: Unpack[Sampling]
    ) -> Generation[Token]: ...
    def generate(
        self, prompt: str | Sequence[int], *, logprobs: int | None = None, **options: Unpack[Sampling]
    ) -> Generation[Any]:
        """Continues a text, or ids: an iterator of pieces of text, sync or async. With `logprobs=N` it is one of tokens, each with
        its probability and the N likeliest. `.read()` gives the whole text."""
        asked = settings(options, logprobs)
        return Generation(self._engine.generate(self._ids(prompt), asked), logprobs is not None)

    def agenerate(self, prompt: str | Sequence[int], **options: Any) -> Generation[Any]:
        """`generate`, for those who look for it under this name: `async for piece in engine.agenerate(...)`."""
        return self.generate(prompt, **options)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        tool_choice: str = "auto",
        variables: Mapping[str, Any] | None = None,
        **options: Unpack[Sampling],
    ) -> Reply:
        """The assistant's next turn: reasoning, text and tool calls apart. Messages and tools are in OpenAI's form.

        `tool_choice` is `auto`, `none`, `required`, or the name of the function that has to be called. `variables` are further ones
        of the chat template, such as `enable_thinking`.
        """
        return self.chat_stream(messages, tools, tool_choice=tool_choice, variables=variables, **options).read()

    def chat_stream(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        tool_choice: str = "auto",
        variables: Mapping[str, Any] | None = None,
        **options: Unpack[Sampling],
    ) -> Chat:
        """The same part by part as it comes, sync or async."""
        offered = [] if tool_choice == "none" else list(tools)
        required = {"auto": None, "none": None, "required": ""}.get(tool_choice, tool_choice)
        turns = json.dumps(_checks.messages(messages))
        asked = settings(options)
        return Chat(self._engine.chat(turns, json.dumps(offered), json.dumps(variables or {}), required, asked))

    def chat_prompt(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """The ids of a conversation whose next turn is the assistant's, as `chat` makes them."""
        return self._engine.chat_prompt(json.dumps(_checks.messages(messages)), json.dumps(list(tools)))

    def embed(
        self,
        texts: str | Sequence[str] | Sequence[Sequence[int]],
        pooling: Literal["mean", "cls", "last"] | None = None,
    ) -> np.ndarray:
        """Texts as vectors of length 1, (texts, hidden); for one text a vector. `pooling` is how the vectors of tokens become that of a
        text; without it as the model's files say, and their mean where they do not."""
        if isinstance(texts, str):
            return self._engine.embed([self._ids(texts)], pooling)[0]
        return self._engine.embed([self._ids(text) for text in texts], pooling)

    def score(self, ids: Sequence[int], start: int = 1) -> tuple[list[float], list[bool]]:
        """The natural logarithm of the probability of every id from place `start` on, given those before it, and whether it was the
        likeliest. Texts that begin alike one after another cost what is new in them."""
        return self._engine.score(_checks.ids(ids), _checks.whole("start", start))

    def session(self) -> Session:
        """An empty sequence, to be read step by step."""
        return Session(self, self._engine.session())
