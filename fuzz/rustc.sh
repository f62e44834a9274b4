#!/bin/bash
# What cargo calls in place of rustc for fast.sh: libFuzzer's counters in parsers and what they parse with, comparisons too where there are no
# kernels, and nothing elsewhere. Programs of the host are left alone.
rustc=$1
shift
[[ " $* " == *" --target "* ]] || exec "$rustc" "$@"
previous= name=
for word in "$@"; do
  [ "$previous" = --crate-name ] && name=$word
  previous=$word
done
pass=-Cllvm-args=-sanitizer-coverage
counters=(-Cpasses=sancov-module $pass-level=3 $pass-inline-8bit-counters $pass-pc-table -Cllvm-args=-simplifycfg-branch-fold-threshold=0)
case $name in
  kvant_codec | kvant_weights | kvant_attention | kvant_cpu) exec "$rustc" "$@" "${counters[@]}" ;;
  kvant_simd | kvant_threads) exec "$rustc" "$@" ;;
  kvant_* | serde_json | minijinja | tokenizers | llguidance | derivre | toktrie) exec "$rustc" "$@" "${counters[@]}" $pass-trace-compares ;;
esac
# The targets themselves.
if [[ " $* " == *" fuzz_targets/$name.rs "* ]]; then exec "$rustc" "$@" "${counters[@]}" $pass-trace-compares; fi
exec "$rustc" "$@"
