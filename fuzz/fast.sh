#!/bin/bash
# bash fuzz/fast.sh SECONDS [TARGET ...]: the targets without AddressSanitizer, for numbers: any stable toolchain, a process for each target, debug
# assertions and overflow checks on. Executions and edges of each are printed at the end; crashes lie in fuzz/artifacts/TARGET.
set -euo pipefail
cd "$(dirname "$0")"
seconds=$1
shift
export RUSTC_WRAPPER=$PWD/rustc.sh RUSTFLAGS="--cfg fuzzing -Cdebug-assertions"
[ $# -gt 0 ] || set -- $(basename -s .rs -a fuzz_targets/*.rs)
cargo build --release --target x86_64-unknown-linux-gnu --target-dir target/fast $(printf -- '--bin %s ' "$@")
for target in "$@"; do
  mkdir -p corpus/$target artifacts/$target
  folders="corpus/$target"
  [ -d seeds/$target ] && folders+=" seeds/$target"
  target/fast/x86_64-unknown-linux-gnu/release/$target $folders -max_total_time=$seconds -artifact_prefix=artifacts/$target/ \
    -print_final_stats=1 > artifacts/$target/log 2>&1 &
done
wait
for target in "$@"; do
  executions=$(sed -n 's/stat::number_of_executed_units: *//p' artifacts/$target/log)
  edges=$(grep -o 'cov: [0-9]*' artifacts/$target/log | tail -1)
  echo "$target: ${executions:-crashed, see artifacts/$target/log} executions, $edges"
done
