#!/usr/bin/env bash
# The stages of kernels under NVIDIA's compute-sanitizer: memory, races, uninitialised memory, barriers; on a ragged
# causal shape with grouped heads, for each head dimension.
# Usage: gpu_sanitizers.sh PROGRAM [STAGE...]; exits with 77 where there is no GPU or no compute-sanitizer.
set -uo pipefail
program=$1 && shift
(($#)) || set -- 10 11 12 13 14 15
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[[ -x $sanitizer ]] || { echo "skipped: there is no compute-sanitizer"; exit 77; }
why=$("$program" ledger "$1" --backend cuda 2>&1) || { echo "skipped: $why"; exit 77; }
failed=0
for tool in memcheck racecheck initcheck synccheck; do
  for stage in "$@"; do
    for d in 32 64 128; do
      output=$("$sanitizer" --tool "$tool" --error-exitcode 9 "$program" ledger "$stage" --backend cuda \
        --random "2,4,70,$d" --kv-heads 2 --key-len 103 --causal 2>&1) && status=0 || status=$?
      # A clean run ends with status 0 and says so itself: a tool that did not run is not a pass.
      if ((status == 0)) && grep -Eq "ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards" <<<"$output"; then
        continue
      fi
      failed=1
      printf '%s: stage %s, d = %s: not clean\n%s\n' "$tool" "$stage" "$d" "$(head -30 <<<"$output")"
    done
  done
  ((failed)) || echo "$tool: clean"
done
exit "$failed"
