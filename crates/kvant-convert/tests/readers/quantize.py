"""Quantizes a GGUF file with llama.cpp.

usage: quantize.py SOURCE.gguf RESULT.gguf TYPE

TYPE is the number of llama.cpp's `llama_ftype`; 0 gives the weights as llama.cpp reads them, in f32.
"""

import sys

from cyllama.llama import llama_cpp

source, result, kind = sys.argv[1:4]
settings = llama_cpp.LlamaModelQuantizeParams()
settings.ftype = int(kind)
settings.nthread = 1
settings.allow_requantize = True
llama_cpp.disable_logging()
llama_cpp.model_quantize(source, result, settings)
