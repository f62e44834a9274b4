"""Computes the logits of a GGUF file with llama.cpp and compares them with kvant's.

usage: compute.py MODEL.gguf LOGITS TOKEN...

LOGITS has kvant's in f32, one row for each token. llama.cpp rounds activations to 8 bits where kvant kept f32, so rows
differ by a few thousandths of their length; weights that were read wrongly make them differ by all of it.
"""

import sys

import numpy
from cyllama.llama import llama_cpp

TOLERANCE = 0.03


class Model(llama_cpp.LlamaModel):
    """The package's context asks its model for the number of tokens, which only the vocabulary has."""

    @property
    def n_vocab(self):
        return self.get_vocab().n_vocab


path, expected = sys.argv[1:3]
tokens = [int(token) for token in sys.argv[3:]]
llama_cpp.disable_logging()
model = Model(path_model=path, verbose=False)
settings = llama_cpp.LlamaContextParams()
settings.n_ctx = settings.n_batch = 256
settings.n_threads = settings.n_threads_batch = 1
context = llama_cpp.LlamaContext(model=model, params=settings, verbose=False)
batch = llama_cpp.LlamaBatch(n_tokens=len(tokens), embd=0, n_seq_max=1)
for position, token in enumerate(tokens):
    batch.add(token, position, [0], True)
context.decode(batch)
found = numpy.array([context.get_logits_ith(row) for row in range(len(tokens))], dtype=numpy.float64)
wanted = numpy.fromfile(expected, dtype=numpy.float32).astype(numpy.float64).reshape(len(tokens), -1)
assert found.shape == wanted.shape, (found.shape, wanted.shape)
apart = numpy.linalg.norm(found - wanted, axis=1) / numpy.linalg.norm(wanted, axis=1)
same = float(numpy.mean(found.argmax(axis=1) == wanted.argmax(axis=1)))
print(f"logits differ by {apart.max():.4f} of their length at most, same top token {100 * same:.0f} %")
assert apart.max() < TOLERANCE, apart
