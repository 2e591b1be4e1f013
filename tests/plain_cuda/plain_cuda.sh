#!/usr/bin/env bash
# Compiles stage 15 and its twin in plain CUDA, and compares the PTX of each kernel: everything but the names must be
# the same, and so the machine code that is made of it.
# Usage: plain_cuda.sh NVCC SOURCE_DIR
set -euo pipefail
nvcc=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

# ptx FILE: the kernels _forward<d>, in the order of d, each line "d text", with names that do not tell whose they are.
ptx() {
  "$nvcc" -std=c++20 -arch=sm_80 -ptx -I"$source" -o "$work/kernels.ptx" "$1"
  awk '
    /\.entry/ { d = ""; if (match($0, /_forwardILi[0-9]+E/)) d = substr($0, RSTART + 11, RLENGTH - 12) }
    d != "" && !/^[[:space:]]*(\/\/.*)?$/ { print d, $0 }
    /^}/ { d = "" }' "$work/kernels.ptx" |
    sed -E -e 's/\.visible //' -e 's/_Z[A-Za-z0-9_]*_param_/param_/g' -e 's/_Z[A-Za-z0-9_]*_forwardILi[A-Za-z0-9_]*/forward/g' \
      -e 's/_ZZ?[A-Za-z0-9_]*/name/g' -e 's/flashladder_dynamic_shared|shared\[\]|\bshared\b/name/g' -e 's/\$L__BB[0-9]+_/$L__BB_/g' |
    sort -s -n -k1,1
}
ptx "$source"/stages/15_*/attention.cu >"$work/stage"
ptx "$source/tests/plain_cuda/fa2_causal_skip.cu" >"$work/plain"
for d in 32 64 128; do
  lines=$(grep -c "^$d " "$work/stage") || lines=0
  ((lines > 500)) || { echo "d = $d: only $lines lines of PTX found: does nvcc write it in another form?"; exit 1; }
  echo "d = $d: $lines lines of PTX"
done
diff "$work/stage" "$work/plain" >"$work/difference" || {
  echo "the stage and its plain twin differ:"; head -40 "$work/difference"; exit 1
}
