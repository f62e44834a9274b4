"""A compressed KV cache for Hugging Face transformers 5.

    from kvant.hf import KvantCache

    cache = KvantCache(model.config, kv="int4")
    model.generate(**inputs, past_key_values=cache)

With any attention implementation the cache hands out decoded tensors. With ``attn_implementation="kvant"`` attention runs on the
compressed bytes: ``AutoModelForCausalLM.from_pretrained(name, attn_implementation="kvant")`` after this module was imported, or
``model.set_attn_implementation("kvant")``. Importing it registers the implementation and its mask.
"""

from .attention import register
from .cache import KvantCache
from .context import CacheFileError
from .plans import Plan, calibrate

register()

__all__ = ["CacheFileError", "KvantCache", "Plan", "calibrate"]
