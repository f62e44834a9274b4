"""One layer of the cache: the sequences of a batch, each of its own length."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import CacheLayerMixin, LinearAttentionLayer

from .. import _kvant
from .._metal import LONG_PASS, MOST_TOKENS, DevicePages, say_once
from . import metal
from .context import (
    DTYPES,
    IMPLEMENTATION,
    NAMES,
    CacheContext,
    CacheFileError,
    card_of,
    lent,
    on_card,
    open_layer,
    refuse_gradients,
    stream_of,
    warn_of_host,
)
from .prefix import DecodedPrefix

if TYPE_CHECKING:
    from .saved import Parts

#: Tokens at a time when a whole cache is taken over: so many exact rows are held beside the pages.
CHUNK = 512


class KvantLayer(CacheLayerMixin):
    """Keys and values of one attention layer, compressed."""

    is_compileable = False
    is_croppable = True

    def __init__(self, context: CacheContext, index: int, sliding_window: int | None = None):
        self.context = context
        self.index = index
        self.sliding_window = sliding_window
        self.is_sliding = sliding_window is not None
        self.is_initialized = False
        self._record_past = False
        self._clear()

    def _clear(self) -> None:
        self._native: _kvant.LayerCache | _kvant.CardLayerCache | None = None
        #: The number of NVIDIA's card that pages lie on; `None` for host memory.
        self._card: int | None = None
        self._pending: tuple[torch.Tensor, torch.Tensor] | None = None
        #: Tokens that the model counts, padding included; those before `_base` were never held.
        self._seen = 0
        self._base = 0
        #: Which of the positions from `_base` on are tokens and not padding, (batch, positions); `None` for all.
        self._kept: torch.Tensor | None = None
        #: What attention got so far, where that is kept.
        self._prefix: DecodedPrefix | None = None
        #: Pages on an mps device; `False` where they are not read there.
        self._pages: DevicePages | bool | None = None

    def __repr__(self) -> str:
        window = f", sliding_window={self.sliding_window}" if self.is_sliding else ""
        return f"{type(self).__name__}({self.context.layout.kv!r}, tokens={self._seen}{window})"

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        heads, key_dim, value_dim = key_states.shape[1], key_states.shape[-1], value_states.shape[-1]
        self.is_latent = self.context.is_latent(key_states, value_states)
        if self.is_latent:
            key_dim, value_dim = value_dim, key_dim
        self._heads, self._dims = heads, (key_dim, value_dim)
        shape = (self.index, heads, key_dim, value_dim, self.sliding_window)
        self._card = self._choose_card(key_states, shape)
        if self._card is None:
            self._native = self.context.layout.layer(*shape, latent=self.is_latent)
        self._native.record(self._record_past)
        self.is_initialized = True

    def _choose_card(self, keys: torch.Tensor, shape: tuple[Any, ...]) -> int | None:
        """The card that the first keys lie on, if pages can be kept and attended to there; why not is said once."""
        card = card_of(keys)
        if card is None:
            return None
        if not self.context.on_bytes:
            reason = f"only attn_implementation={IMPLEMENTATION!r} reads KvantCache on {keys.device}"
        elif self.is_latent:
            reason = f"KvantCache has no kernels for MLA's latents on {keys.device}"
        else:
            try:
                self._native = self.context.layout.card_layer(card, *shape)
            except ValueError as refused:
                reason = f"KvantCache on {keys.device}: {refused}"
            else:
                return card
        warn_of_host(keys.device, reason)
        return None

    # What a model calls. Compilers call it as it is: it writes pages, and every step has another length.

    @torch.compiler.disable
    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes the keys and values of a pass, (batch, kv heads, tokens, channels).

        Returns all that the pass's queries see, decoded; or, where attention runs on the compressed bytes, the new ones, which
        lead the attention function here.
        """
        refuse_gradients(key_states, value_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self._pending is not None:
            raise RuntimeError(
                f"layer {self.index} got keys twice without attention in between: this model does not hand its cache's keys to "
                f"attention, or a pass was broken off. Use another attention implementation, or reset() the cache"
            )
        before, self._seen = self._seen, self._seen + key_states.shape[-2]
        if self.context.on_bytes:
            self._pending = (key_states, value_states)
            key_states._kvant_layer = value_states._kvant_layer = self
            open_layer.value = self
            return key_states, value_states
        self._append(key_states, value_states, None)
        if self.context.keep_decoded and not self.is_sliding:
            decoded = self._decoded_once()
        else:
            decoded = self._decoded(before + 1 - self.sliding_window if self.is_sliding else 0)
        self._native.settle()
        return decoded

    def attend(
        self,
        queries: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float,
        soft_cap: float | None = None,
        sink_logits: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of the pass's queries, (batch, heads, tokens, channels), on the compressed bytes; the result is (batch, tokens,
        heads, channels). `mask` is (batch, positions so far), false where a position is padding."""
        if getattr(open_layer, "value", None) is self:
            open_layer.value = None
        refuse_gradients(queries)
        if self._card is not None:
            return self._attend_on_card(queries, mask, scale, soft_cap, sink_logits)
        if self._pending is not None:
            keys, values = self._pending
            self._append(keys, values, self._kept_of(mask, keys.shape[-2]))
            self._pending = None
        if metal.is_here(queries) and (pages := self._on_metal(queries, sink_logits)):
            return self._attend_on_metal(pages, queries, scale, soft_cap)
        batch, heads, tokens, _ = queries.shape
        make = torch.empty if self._kept is None else torch.zeros
        out = make((batch, tokens, heads, self._dims[1]), dtype=queries.dtype)
        logits = None if sink_logits is None else sink_logits.detach().float().flatten().tolist()
        self._native.attend(lent(queries), lent(out.transpose(1, 2)), scale, soft_cap, logits)
        if not self.context.shares_layers:
            self._native.settle()
        return out if queries.is_cpu else out.to(queries.device)

    # What generation asks for

    def get_seq_length(self) -> int:
        return self._seen

    def get_max_length(self) -> int:
        return self.sliding_window if self.is_sliding else -1

    def get_mask_sizes(self, query_length: int | torch.Tensor) -> tuple[int, int]:
        query_length = query_length.shape[0] if isinstance(query_length, torch.Tensor) else query_length
        offset = max(self._seen - self.sliding_window + 1, 0) if self.is_sliding else 0
        return self._seen - offset + query_length, offset

    def crop(self, tokens_to_remove: int) -> None:
        """Takes back tokens: `-n` for n of them, or a positive length to go back to."""
        removed = max(self._seen - tokens_to_remove, 0) if tokens_to_remove > 0 else -tokens_to_remove
        if removed == 0 or not self.is_initialized:
            return
        if removed > self._seen - self._base:
            raise ValueError(f"{removed} tokens cannot be taken back: layer {self.index} holds {self._seen - self._base}")
        lens, rest = self._native.lens, self._seen - self._base - removed
        if self._kept is None:
            lens = [len_ - removed for len_ in lens]
        else:
            gone = self._kept[:, rest:].sum(dim=1).tolist()
            lens = [len_ - gone for len_, gone in zip(lens, gone, strict=True)]
            self._kept = self._kept[:, :rest]
        self._native.crop(lens)
        if self._pages:
            self._pages.cut(lens, self.context.layout.sinks)
        self._seen -= removed
        if self._prefix is not None:
            self._prefix.crop(self._native)

    @property
    def record_past(self) -> bool:
        return self._record_past

    @record_past.setter
    def record_past(self, on: bool) -> None:
        self._record_past = on
        if getattr(self, "_native", None) is not None:
            self._native.record(on)

    def activate_past_recording(self) -> None:
        """From now on the last 128 tokens can be taken back exactly, at any point (assisted decoding)."""
        self.record_past = True

    def select(self, indices: list[int]) -> None:
        """Keeps these rows of the batch, in this order. A row that is named twice shares its pages."""
        if self._native is not None and self._seen > 0:
            self._native.select(indices)
            self._pages = None
            self._kept = None if self._kept is None else self._kept[indices]
            if self._prefix is not None:
                self._prefix.select(indices)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self.select(beam_idx.tolist())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        held = len(self._native.lens) if self._native is not None else 0
        self.select(torch.arange(held)[indices.cpu() if isinstance(indices, torch.Tensor) else indices].tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        held = len(self._native.lens) if self._native is not None else 0
        self.select([row for row in range(held) for _ in range(repeats)])

    def reset(self) -> None:
        self._clear()
        self.is_initialized = False

    def offload(self) -> None:
        """Nothing to do: pages are small, and stay in host memory or on the card that they are on."""

    def prefetch(self) -> None:
        """Nothing to do: as `offload`."""

    # What people look at

    @property
    def keys(self) -> torch.Tensor | None:
        """What is held, decoded; of a sliding layer what the next query sees."""
        return None if self._seen == 0 else self._next_seen()[0]

    @property
    def values(self) -> torch.Tensor | None:
        """As `keys`."""
        return None if self._seen == 0 else self._next_seen()[1]

    @property
    def batch_size(self) -> int:
        return len(self._native.lens) if self._native is not None else -1

    @property
    def native(self) -> _kvant.LayerCache | None:
        """Lengths, footprint, pages and kernels."""
        return self._native

    @property
    def decoded_nbytes(self) -> int:
        """Bytes of what is kept decoded beside the pages."""
        return 0 if self._prefix is None else self._prefix.nbytes

    def put(self, parts: Parts, policy: str, signature: bytes) -> dict[str, Any]:
        """Adds what is held to the parts of a file, and returns what its header says of it."""
        if self._card is not None:
            raise NotImplementedError(
                f"layer {self.index}: pages on cuda:{self._card} cannot be saved; only those in host memory can"
            )
        if self._pending is not None:
            raise RuntimeError(f"layer {self.index} is in the middle of a pass: a cache is saved between passes")
        rows = self._native.save(policy, signature)
        for row in rows:
            parts.put(row)
        return {
            "rows": len(rows),
            "heads": self._heads,
            "dims": list(self._dims),
            "is_latent": self.is_latent,
            "dtype": NAMES[self.dtype],
            "seen": self._seen,
            "base": self._base,
            "kept": parts.put_tensor(self._kept),
        }

    def take(self, record: dict[str, Any], parts: Parts, signature: bytes, device: torch.device) -> None:
        """Holds what `put` has added. Pages lie in host memory from then on."""
        self.reset()
        self.dtype, self.device, self.is_latent = DTYPES[record["dtype"]], device, bool(record["is_latent"])
        self._heads, self._dims = record["heads"], tuple(record["dims"])
        shape = (self.index, self._heads, *self._dims, self.sliding_window)
        self._native = self.context.layout.layer(*shape, latent=self.is_latent)
        self._native.load([parts.next() for _ in range(record["rows"])], signature)
        self._native.record(self._record_past)
        self._seen, self._base = record["seen"], record["base"]
        self._kept = parts.tensor(record["kept"], torch.device("cpu"))
        self.is_initialized = True
        held = self._seen - self._base
        lens = [held] * record["rows"] if self._kept is None else self._kept.sum(dim=1).tolist()
        if self._native.lens != lens or (self._kept is not None and self._kept.shape[-1] != held):
            raise CacheFileError(f"holds other lengths than it says for layer {self.index}")

    def load(self, keys: torch.Tensor, values: torch.Tensor, seen: int, attention_mask: torch.Tensor | None) -> None:
        """Takes over what another cache holds: the last of `seen` positions."""
        refuse_gradients(keys, values)
        self.reset()
        self.lazy_initialization(keys, values)
        self._base = self._seen = seen - keys.shape[-2]
        for start in range(0, keys.shape[-2], CHUNK):
            part = keys[..., start : start + CHUNK, :]
            self._seen += part.shape[-2]
            mask = None if attention_mask is None else attention_mask[:, : self._seen].bool()
            self._append(part, values[..., start : start + CHUNK, :], self._kept_of(mask, part.shape[-2]))
        self._native.settle()

    def __deepcopy__(self, memo: dict) -> KvantLayer:
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        if self._native is not None:
            twin._native = self._native.fork()
            twin._native.record(self._record_past)
            twin._prefix = twin._pages = None
        return twin

    # How it is done

    def _on_metal(self, queries: torch.Tensor, sink_logits: torch.Tensor | None) -> DevicePages | bool:
        """The pages on the queries' device, if there are kernels for them and for this pass; why not is said once."""
        if self._pages is None:
            try:
                self._pages = DevicePages(metal.TorchDevice(queries.device), self._native, self.sliding_window)
            except ValueError as refused:
                self._pages = False
                say_once(f"{refused}; attention of {self.context.layout.kv} runs on the processor")
        if self._pages and sink_logits is not None:
            say_once("Metal has no kernel for sink logits; attention runs on the processor")
        elif self._pages and queries.shape[-2] > MOST_TOKENS:
            say_once(LONG_PASS)
        elif self._pages and self._native.is_padded:
            say_once("Metal has no kernel for padding among new tokens; attention of such passes runs on the processor")
        else:
            return self._pages
        return False

    def _attend_on_metal(
        self, pages: DevicePages, queries: torch.Tensor, scale: float, soft_cap: float | None
    ) -> torch.Tensor:
        """The pass on pages of the queries' device. Keys and values were encoded by the processor."""
        batch, heads, tokens, _ = queries.shape
        rows = queries.detach().transpose(1, 2).float().contiguous()
        out = pages.attend(self._native, rows, scale, soft_cap)
        if not self.context.shares_layers:
            self._native.settle()
        return out.view(batch, tokens, heads, self._dims[1]).to(queries.dtype)

    def _attend_on_card(
        self,
        queries: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float,
        soft_cap: float | None,
        sink_logits: torch.Tensor | None,
    ) -> torch.Tensor:
        """The pass on the card's pages and torch's stream: tensors are read and written where they lie, and nothing is waited for."""
        pending, held = self._pending, self._kept
        tokens = queries.shape[-2]
        kept = None if pending is None else self._kept_of(mask, tokens)
        queries = _dense(queries)
        batch, heads, tokens, _ = queries.shape
        make = queries.new_empty if self._kept is None else queries.new_zeros
        out = make((batch, tokens, heads, dim := self._dims[1]))
        row = heads * dim
        logits = None if sink_logits is None else sink_logits.detach().float().contiguous()
        try:
            self._run_on_card(
                stream_of(queries),
                pending,
                kept,
                # (batch, heads, tokens, channels) of the output, as queries are.
                (place := on_card(queries), (out.data_ptr(), place[1], (batch, heads, tokens, dim), (tokens * row, dim, row, 1))),
                (scale, soft_cap, None if logits is None else logits.data_ptr()),
                settles=not self.context.shares_layers,
            )
        except Exception:
            # The pages are as they were before this pass.
            if pending is not None:
                self._seen, self._kept = self._seen - tokens, held
            raise
        finally:
            self._pending = None
        return out

    def _run_on_card(
        self,
        stream: int,
        keys_values: tuple[torch.Tensor, torch.Tensor] | None,
        kept: list[list[int]] | None,
        queries_out: tuple | None = None,
        scores: tuple | None = None,
        settles: bool = True,
    ) -> None:
        pair = None if keys_values is None else (_dense(keys_values[0]), _dense(keys_values[1]))
        lent_pair = None if pair is None else (on_card(pair[0]), on_card(pair[1]))
        held = tuple(t.detach() for t in pair) if pair is not None and self._record_past else None
        self._native.run(stream, lent_pair, queries_out, scores, kept, settles, held)

    def _append(self, keys: torch.Tensor, values: torch.Tensor, kept: list[list[int]] | None) -> None:
        if self._card is not None:
            self._run_on_card(stream_of(keys), (keys, values), kept)
            return
        keys, values = lent(keys), lent(values)
        if self.is_latent:
            keys, values = values, keys
        self._native.append(keys, values, kept)

    def _kept_of(self, mask: torch.Tensor | None, tokens: int) -> list[list[int]] | None:
        """The new tokens of every row that are no padding; `None` for all."""
        before = self._seen - self._base - tokens
        if mask is None:
            if self._kept is not None:
                self._kept = torch.nn.functional.pad(self._kept, (0, tokens), value=True)
            return None
        if mask.shape[-1] != self._seen:
            raise ValueError(f"the attention mask has {mask.shape[-1]} positions, and {self._seen} have been seen")
        mask = mask[:, self._base :].cpu()
        held = mask[:, :before]
        if not bool(held.all() if self._kept is None else torch.equal(held, self._kept)):
            raise ValueError(
                "the attention mask hides or shows other positions than when they were cached: KvantCache with "
                "attention on bytes keeps what is no padding when it comes, for good"
            )
        new = mask[:, before:]
        self._kept = None if self._kept is None and bool(new.all()) else mask.clone()
        return None if bool(new.all()) else [row.nonzero().flatten().tolist() for row in new]

    def _decoded(self, first: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions from `first` on, (batch, kv heads, positions, channels); padding is zero."""
        first = max(first, self._base)
        rows, skipped = len(self._native.lens), first - self._base
        if self._kept is None:
            make, firsts, places = torch.empty, [skipped] * rows, None
        else:
            make, firsts = torch.zeros, self._kept[:, :skipped].sum(dim=1).tolist()
            places = [row.nonzero().flatten().tolist() for row in self._kept[:, skipped:]]
        keys, values = (make((rows, self._heads, self._seen - first, dim), dtype=self.dtype) for dim in self._dims)
        self._native.decode(lent(keys), lent(values), firsts, places)
        if self.is_latent:
            keys, values = values, keys
        return keys.to(self.device), values.to(self.device)

    def _decoded_once(self) -> tuple[torch.Tensor, torch.Tensor]:
        """As `_decoded` of all positions, where only what is not in the kept part is decoded."""
        if self._prefix is None:
            self._prefix = DecodedPrefix(self._heads, self._dims, self.dtype, self.device)
        keys, values = self._prefix.extend(self._native)
        return (values, keys) if self.is_latent else (keys, values)

    def _next_seen(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._decoded(self._seen + 1 - self.sliding_window if self.is_sliding else 0)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with channels side by side, as they nearly always are; its address is what is used."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def copy_states(source: LinearAttentionLayer, target: LinearAttentionLayer) -> None:
    """Gives a layer the recurrent states of another."""
    names = [name for name in vars(LinearAttentionLayer()) if name not in ("record_past", "device", "dtype")]
    for name in names:
        setattr(target, name, copy.deepcopy(getattr(source, name)))


class KvantHybridLayer(LinearAttentionLayer, KvantLayer):
    """A layer with both recurrent state, which stays as it is, and compressed keys and values (Falcon-H1)."""

    is_compileable = False
    is_croppable = False

    def __init__(
        self, context: CacheContext, index: int, sliding_window: int | None = None, number_of_states: int = 1
    ):
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)
        KvantLayer.__init__(self, context, index, sliding_window)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        # Attention gives keys and values by position, the mixer its states by name.
        if args:
            KvantLayer.lazy_initialization(self, *args)
        else:
            LinearAttentionLayer.lazy_initialization(self, **kwargs)

    def crop(self, tokens_to_remove: int) -> None:
        LinearAttentionLayer.crop(self, tokens_to_remove)
        KvantLayer.crop(self, tokens_to_remove)

    def select(self, indices: list[int]) -> None:
        LinearAttentionLayer.reorder_cache(self, torch.tensor(indices))
        KvantLayer.select(self, indices)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self.select(beam_idx.tolist())

    def reset(self) -> None:
        LinearAttentionLayer.reset(self)
        KvantLayer.reset(self)

    def __deepcopy__(self, memo: dict) -> KvantHybridLayer:
        twin = KvantLayer.__deepcopy__(self, memo)
        copy_states(self, twin)
        return twin

    def offload(self) -> None:
        LinearAttentionLayer.offload(self)

    def prefetch(self) -> None:
        LinearAttentionLayer.prefetch(self)

    def get_max_length(self) -> int:
        return KvantLayer.get_max_length(self)
