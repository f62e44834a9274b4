"""Computes the logits of a GGUF file with llama.cpp and compares them with kvant's.

usage: compute.py MODEL.gguf FLOAT.gguf LOGITS TOKEN...

FLOAT.gguf has the same weights in f32, as kvant reads them, and LOGITS what kvant computes from them in f32, one row for each
token. Of FLOAT.gguf llama.cpp computes nearly the same. Of MODEL.gguf it rounds activations to 8 bits, so its rows differ from
its own of FLOAT.gguf by some hundredths of their length, and from kvant's by as much; weights read wrongly differ by all of it.
"""

import sys

import numpy
from cyllama.llama import llama_cpp

TOLERANCE = 0.005
ROUNDING = 1.25


class Model(llama_cpp.LlamaModel):
    """The package's context asks its model for the number of tokens, which only the vocabulary has."""

    @property
    def n_vocab(self):
        return self.get_vocab().n_vocab


def logits(path, tokens):
    """What llama.cpp computes: (tokens, vocabulary)."""
    model = Model(path_model=path, verbose=False)
    settings = llama_cpp.LlamaContextParams()
    settings.n_ctx = settings.n_batch = 256
    settings.n_threads = settings.n_threads_batch = 1
    context = llama_cpp.LlamaContext(model=model, params=settings, verbose=False)
    batch = llama_cpp.LlamaBatch(n_tokens=len(tokens), embd=0, n_seq_max=1)
    for position, token in enumerate(tokens):
        batch.add(token, position, [0], True)
    context.decode(batch)
    return numpy.array([context.get_logits_ith(row) for row in range(len(tokens))], dtype=numpy.float64)


def apart(one, other):
    """The greatest difference of a row, in its length."""
    assert one.shape == other.shape, (one.shape, other.shape)
    return float((numpy.linalg.norm(one - other, axis=1) / numpy.linalg.norm(other, axis=1)).max())


path, plain, expected = sys.argv[1:4]
tokens = [int(token) for token in sys.argv[4:]]
llama_cpp.disable_logging()
wanted = numpy.fromfile(expected, dtype=numpy.float32).astype(numpy.float64).reshape(len(tokens), -1)
stored, floats = logits(path, tokens), logits(plain, tokens)
exact, rounding, found = apart(floats, wanted), apart(stored, floats), apart(stored, wanted)
print(f"f32 weights differ by {exact:.5f} of a row, stored ones by {found:.4f}; llama.cpp's own rounding is {rounding:.4f}")
assert exact < TOLERANCE, exact
assert found < ROUNDING * rounding + TOLERANCE, (found, rounding)
