"""A cold tier for the KV caches of other engines: their offloaded blocks as kvant's compressed pages, in memory or in a folder.

    kvant.tiers.vllm       a secondary tier of vLLM's offloading connector
    kvant.tiers.sglang     a storage backend of SGLang's hierarchical cache
    kvant.tiers.lmcache    a serde of LMCache's storage adapters

Each is imported by the engine it is named after, by its module path; see docs/tiers.md.
"""

from __future__ import annotations

from .shape import ModelShape, bytes_of

__all__ = ["ModelShape", "bytes_of"]
