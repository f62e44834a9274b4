#!/bin/sh
# Builds llama.cpp for this machine, with every instruction set it has, for speed.py, depth.py and perplexity.py:
#
#     bench/peers/build.sh SOURCE [FOLDER]
#     python3 bench/peers/depth.py --peer FOLDER MODEL.gguf
#
# SOURCE is a checkout of llama.cpp, which is copied and not touched; FOLDER is target/peers/native unless given. Two things
# keep the compilers of 2026 from giving llama.cpp what the processor can do, and both are mended:
# - gcc 12 moves the stores of ggml's AMX tile configuration behind the instruction that loads it. A compiler barrier is put
#   between the two; without it the matrix units compute nonsense or are not used.
# - Where AVX512-FP16 may be used, gcc's own vectors of halves replace ggml's conversion by table and vcvtph2ps, and its f16
#   attention at head dimension 64 is five times slower. It is built with -mno-avx512fp16.
# FOLDER/build.txt says in words what was built; the scripts put it beside their figures.
set -eu

if [ $# -lt 1 ] || [ ! -f "$1/include/llama.h" ]; then
    echo "usage: $0 SOURCE [FOLDER]; SOURCE is a checkout of llama.cpp (with include/llama.h)" >&2
    exit 2
fi
source=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
folder=${2:-$here/../../target/peers/native}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN)}

# Its build system wants cmake, which Python's index has where the system does not.
if ! command -v cmake >/dev/null; then
    [ -x "$folder/cmake/bin/cmake" ] || {
        python3 -m venv "$folder/cmake"
        "$folder/cmake/bin/pip" install --quiet --disable-pip-version-check cmake==4.4.0
    }
    PATH=$folder/cmake/bin:$PATH
fi

rm -rf "$folder/source"
mkdir "$folder/source"
(cd "$source" && tar cf - --exclude=.git --exclude='./build*' --exclude=./models --exclude=./docs .) | (cd "$folder/source" && tar xf -)

amx=$folder/source/ggml/src/ggml-cpu/amx/mmq.cpp
if [ -f "$amx" ]; then
    sed -i.before 's/^\( *\)\(_tile_loadconfig(\)/\1__asm__ __volatile__("" ::: "memory"); \2/' "$amx"
    if cmp -s "$amx" "$amx.before"; then
        echo "$0: _tile_loadconfig was not found in ggml's AMX set-up; look whether its barrier is still needed" >&2
        exit 1
    fi
fi

case $(uname -m) in
    x86_64)
        flags="-march=native"
        # Compilers that do not know the option do not use the instructions either.
        echo 'int main(void) { return 0; }' >"$folder/try.c"
        if cc -mno-avx512fp16 -c "$folder/try.c" -o "$folder/try.o" 2>/dev/null; then flags="$flags -mno-avx512fp16"; fi
        rm -f "$folder/try.c" "$folder/try.o"
        native=OFF
        ;;
    *)
        flags=
        native=ON
        ;;
esac
cmake -S "$folder/source" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=$native \
    -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" -DGGML_OPENMP=OFF -DLLAMA_OPENSSL=OFF \
    -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF >"$folder/cmake.log"
cmake --build "$folder/build" --target llama -j "$jobs" >>"$folder/cmake.log"

# A few functions with simple arguments, so that Python need not know how this version lays out its structures.
libraries=$folder/build/bin
cc -O2 -fPIC -shared -I"$folder/source/include" -I"$folder/source/ggml/include" "$here/native.c" -o "$folder/libpeer.so" \
    -L"$libraries" -lllama -lggml -lggml-base -Wl,-rpath,"$libraries"

commit=$(git -C "$source" rev-parse --short=9 HEAD 2>/dev/null || echo "of unknown commit")
python3 "$here/native.py" "$folder" >"$folder/system.txt"
echo "llama.cpp $commit, built here by $(cc --version | head -n 1) with ${flags:-GGML_NATIVE}: $(cat "$folder/system.txt")" \
    >"$folder/build.txt"
cat "$folder/build.txt"
