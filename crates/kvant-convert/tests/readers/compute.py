"""Computes the logits of a GGUF file with llama.cpp and compares them with kvant's.

usage: compute.py MODEL.gguf LOGITS TOKEN...

LOGITS has kvant's in f32, one row for each token. llama.cpp rounds activations to 8 bits where kvant kept f32, so rows
differ by a few thousandths of their length; weights that were read wrongly make them differ by all of it.
"""

import sys

import llama_cpp
import numpy

TOLERANCE = 0.03

path, expected = sys.argv[1:3]
tokens = [int(token) for token in sys.argv[3:]]
model = llama_cpp.Llama(path, n_ctx=256, n_threads=1, logits_all=True, verbose=False)
model.eval(tokens)
found = numpy.asarray(model.scores[: len(tokens)], dtype=numpy.float64)
wanted = numpy.fromfile(expected, dtype=numpy.float32).astype(numpy.float64).reshape(len(tokens), -1)
assert found.shape == wanted.shape, (found.shape, wanted.shape)
apart = numpy.linalg.norm(found - wanted, axis=1) / numpy.linalg.norm(wanted, axis=1)
same = float(numpy.mean(found.argmax(axis=1) == wanted.argmax(axis=1)))
print(f"logits differ by {apart.max():.4f} of their length at most, same top token {100 * same:.0f} %")
assert apart.max() < TOLERANCE, apart
