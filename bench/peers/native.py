"""llama.cpp as bench/peers/build.sh has built it: what prebuilt.py does with the wheel, through libpeer.so."""

import ctypes
import sys
from pathlib import Path

INT, TEXT, HANDLE = ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p
INTS = ctypes.POINTER(INT)
FUNCTIONS = {
    "system": (TEXT, []),
    "model": (HANDLE, [TEXT]),
    "vocabulary": (INT, [HANDLE]),
    "beginning": (INT, [HANDLE]),
    "tokenize": (INT, [HANDLE, TEXT, INTS, INT]),
    "context": (HANDLE, [HANDLE, INT, INT, INT, INT, INT]),
    "close": (None, [HANDLE]),
    "threads": (None, [HANDLE, INT]),
    "synchronize": (None, [HANDLE]),
    "read": (INT, [HANDLE, INTS, INT, INT, INT]),
    "logits": (ctypes.POINTER(ctypes.c_float), [HANDLE, INT]),
    "held": (INT, [HANDLE]),
    "forget": (INT, [HANDLE, INT]),
}


class Library:
    """The functions of libpeer.so, with their types."""

    def __init__(self, folder):
        library = ctypes.CDLL(str(Path(folder) / "libpeer.so"))
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(library, f"peer_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)


class Model:
    def __init__(self, folder, path):
        self.functions = Library(folder)
        self.handle = self.functions.model(str(path).encode())
        if not self.handle:
            sys.exit(f"llama.cpp cannot load {path}")
        self.vocabulary = self.functions.vocabulary(self.handle)
        beginning = self.functions.beginning(self.handle)
        self.beginning = beginning if beginning >= 0 else None

    def tokenize(self, text):
        text = text.encode()
        count = -self.functions.tokenize(self.handle, text, None, 0)
        ids = (INT * count)()
        self.functions.tokenize(self.handle, text, ids, count)
        return list(ids)

    def open(self, size, threads, cache_type, flash, batch):
        return Context(self, self.functions.context(self.handle, size, threads, cache_type, int(flash), batch))


class Context:
    def __init__(self, model, handle):
        if not handle:
            sys.exit("llama.cpp gives no context: see what it needs for this cache type")
        self.model, self.functions, self.handle = model, model.functions, handle

    def __del__(self):
        self.functions.close(self.handle)

    def read(self, ids, position, every_logit=False):
        outcome = self.functions.read(self.handle, (INT * len(ids))(*ids), len(ids), position, int(every_logit))
        if outcome != 0:
            sys.exit(f"llama.cpp's llama_decode fails with {outcome}")

    def logits(self, index):
        import numpy

        pointer = self.functions.logits(self.handle, index)
        return numpy.ctypeslib.as_array(pointer, (self.model.vocabulary,)).astype(numpy.float64)

    def set_threads(self, threads):
        self.functions.threads(self.handle, threads)

    def synchronize(self):
        self.functions.synchronize(self.handle)

    def held(self):
        return self.functions.held(self.handle)

    def forget(self, position):
        return bool(self.functions.forget(self.handle, position))


def main():
    """What the library says of the machine, in one line: the instruction sets it was built for and uses."""
    words = Library(sys.argv[1]).system().decode()
    sets = [part.strip() for part in words.replace(":", "|").split("|")]
    print(", ".join(part.split(" = ")[0] for part in sets if part.endswith(" = 1")))


if __name__ == "__main__":
    main()
