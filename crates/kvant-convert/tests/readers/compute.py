"""Computes the logits of a GGUF file with llama.cpp.

usage: compute.py MODEL.gguf LOGITS TOKEN...

LOGITS becomes a file of f32: (tokens, vocabulary). The cache is f32 and flash attention is off: llama.cpp's own choice, keys and values in f16,
is another computation, off by 0.2 % of a row.
"""

import sys

import numpy
from cyllama.llama import llama_cpp

F32 = 0  # ggml_type
NO_FLASH_ATTENTION = 0


class Model(llama_cpp.LlamaModel):
    """The package's context asks its model for the number of tokens, which only the vocabulary has."""

    @property
    def n_vocab(self):
        return self.get_vocab().n_vocab


path, result = sys.argv[1:3]
tokens = [int(token) for token in sys.argv[3:]]
llama_cpp.disable_logging()
settings = llama_cpp.LlamaContextParams()
settings.n_ctx = settings.n_batch = 256
settings.n_threads = settings.n_threads_batch = 1
settings.type_k = settings.type_v = F32
settings.flash_attn_type = NO_FLASH_ATTENTION
context = llama_cpp.LlamaContext(model=Model(path_model=path, verbose=False), params=settings, verbose=False)
batch = llama_cpp.LlamaBatch(n_tokens=len(tokens), embd=0, n_seq_max=1)
for position, token in enumerate(tokens):
    batch.add(token, position, [0], True)
context.decode(batch)
rows = [context.get_logits_ith(row) for row in range(len(tokens))]
numpy.array(rows, dtype=numpy.float32).tofile(result)
