#!/usr/bin/env bash
# The stages of kernels under NVIDIA's compute-sanitizer: memory, races, uninitialised memory, barriers; on a ragged
# shape with grouped heads, without and with a mask, for each pass that a stage has and each head dimension of 32, 64,
# 96, 128, 192 and 256 that it takes. It has several tiles of rows and of keys, so that all buffers are filled anew, and
# stage 39 two splits. Where blocks draw what they do next, d = 64 has so many heads, too, that they do. A stage that this
# GPU does not run is left out.
# Usage: gpu_sanitizers.sh PROGRAM [STAGE...]; exits with 77 where there is no GPU or no compute-sanitizer.
set -uo pipefail
program=$1 && shift
listed=$("$program" list) || exit 1
(($#)) || mapfile -t stages < <(grep -o '^[1-9][0-9]' <<<"$listed")
(($#)) && stages=("$@")
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[[ -x $sanitizer ]] || { echo "skipped: there is no compute-sanitizer"; exit 77; }
why=$("$program" ledger 10 --backend cuda 2>&1) || { echo "skipped: $why"; exit 77; }
# The passes of a stage: the third line of it in ./ladder list begins with them, as "forward, backward; fp32; ...".
passes() { grep -A2 "^$1 " <<<"$listed" | sed -n '3s/;.*//p' | tr -d ,; }
# The head dimensions: what the line says after "d:".
head_dims() { grep -A2 "^$1 " <<<"$listed" | sed -n '3s/.*d: //p'; }
# Whether blocks draw what they do next.
draws() { grep -qs 'draw(drawn)' "$(dirname -- "${BASH_SOURCE[0]}")/../stages/$1"_*/attention.cu; }
takes() {
  local dims && dims=$(head_dims "$1")
  if [[ $dims =~ "multiple of 8 up to "([0-9]+) ]]; then (($2 <= BASH_REMATCH[1])); else [[ $dims =~ (^|[ ,])$2($|[ ,;]) ]]; fi
}
chosen=("${stages[@]}") stages=()
for stage in "${chosen[@]}"; do
  why=$("$program" ledger "$stage" --backend cuda 2>&1) || {
    [[ $why == *"needs a GPU of"* || $why == *"needs code for"* ]] && echo "left out: $why" && continue
  }
  stages+=("$stage")
done
((${#stages[@]})) || { echo "skipped: this GPU runs none of these stages"; exit 77; }
failed=0
for tool in memcheck racecheck initcheck synccheck; do
  for stage in "${stages[@]}"; do
    # A warp of stage 58 reads P, and says so by bar.arrive; another waits for that by bar.sync, and writes the next P. PTX
    # has what comes before bar.arrive done when the barrier is complete, and racecheck takes reads for not done: two
    # warps that hand one number to and fro so are a race to it, too. The emulator looks for races of this stage.
    [[ $tool == racecheck && $stage == 58 ]] && echo "racecheck: stage 58 is left out" && continue
    [[ -n $(passes "$stage") ]] || { echo "there is no stage $stage"; exit 1; }
    for pass in $(passes "$stage"); do
      options=()
      [[ $pass == forward ]] || options=(--backward)
      shapes=()
      for d in 32 64 96 128 192 256; do
        takes "$stage" "$d" && shapes+=("1,4,270,$d --kv-heads 2")
      done
      # Backward a warp's last lane reads whose keys are next, all lanes meet, and its first lane gives the place back. The
      # next keys are written when it has. racecheck does not follow that. The emulator looks for such races.
      if draws "$stage" && ! [[ $tool == racecheck && $pass == backward ]]; then shapes+=("1,264,270,64"); fi
      for shape in "${shapes[@]}"; do
        for mask in "" --causal; do
          # shellcheck disable=SC2086  # a shape is several words
          output=$("$sanitizer" --tool "$tool" --error-exitcode 9 "$program" ledger "$stage" --backend cuda \
            --random $shape --key-len 403 $mask "${options[@]}" 2>&1) && status=0 || status=$?
          # A clean run ends with status 0 and says so itself: a tool that did not run is not a pass.
          if ((status == 0)) && grep -Eq "ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards" <<<"$output"; then
            continue
          fi
          failed=1
          printf '%s: stage %s, %s pass, %s %s: not clean\n%s\n' "$tool" "$stage" "$pass" "$shape" "$mask" \
            "$(head -30 <<<"$output")"
        done
      done
    done
  done
  ((failed)) || echo "$tool: clean"
done
exit "$failed"
