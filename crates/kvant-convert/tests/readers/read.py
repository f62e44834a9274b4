"""Reads converted files with the gguf package and compares every number with what kvant read.

usage: read.py FOLDER

FOLDER has GGUF files, for each of them a folder NAME.gguf.values with a file of f32 per tensor, and rows.f32 with
rows.TYPE, what kvant made of them, and back.TYPE, what kvant reads there.
"""

import sys
from pathlib import Path

import gguf
import numpy

folder = Path(sys.argv[1])
tensors = 0
for path in sorted(folder.glob("*.gguf")):
    reader = gguf.GGUFReader(path)
    architecture = reader.fields["general.architecture"].contents()
    for key in ["block_count", "context_length", "embedding_length", "attention.head_count"]:
        assert isinstance(reader.fields[f"{architecture}.{key}"].contents(), int), key
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32).ravel()
        expected = numpy.fromfile(folder / f"{path.name}.values" / tensor.name, dtype=numpy.float32)
        assert numpy.array_equal(values, expected), (path.name, tensor.name, tensor.tensor_type)
        tensors += 1

rows = numpy.fromfile(folder / "rows.f32", dtype=numpy.float32).reshape(-1, 256)
for kind in ["Q4_0", "Q8_0", "MXFP4"]:
    expected = gguf.quants.quantize(rows, gguf.GGMLQuantizationType[kind])
    found = numpy.fromfile(folder / f"rows.{kind}", dtype=numpy.uint8).reshape(expected.shape)
    assert numpy.array_equal(found, expected), kind

for kind in ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]:
    dtype = gguf.GGMLQuantizationType[kind]
    stored = numpy.fromfile(folder / f"rows.{kind}", dtype=numpy.uint8).reshape(len(rows), -1)
    values = gguf.quants.dequantize(stored, dtype).astype(numpy.float32)
    expected = numpy.fromfile(folder / f"back.{kind}", dtype=numpy.float32).reshape(values.shape)
    assert numpy.array_equal(values, expected), kind

print(f"{tensors} tensors")
