#!/usr/bin/env bash
# keep_ptxas.sh NVCC ... -o OBJECT ...: compiles. What ptxas -v says of each kernel goes to OBJECT.ptxas, which tests
# read; all else that the compiler says goes to stderr. ptxas only informs where it makes the wgmma of a kernel wait for
# each other, or puts a fence of its own between them. Here that is an error.
for ((i = 1; i < $#; ++i)); do [[ ${!i} != -o ]] || { j=$((i + 1)) && object=${!j}; }; done
said=$object.ptxas
"$@" 2>"$said"
status=$?
grep -vE '^ptxas info|^ +[0-9]+ bytes stack frame' "$said" >&2
# ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ... in the
# function '_Z...': one line.
mapfile -t changed < <(sed -nE "/wgmma\.mma_async instructions are serialized|\(C75(08|10|12|14|15|17|19)\)/{
  s/^ptxas [a-z]+ *: *//; s/(.*) in (the )?function '([^']*)'.*/\3: \1/; p }" "$said")
if ((status == 0 && ${#changed[@]})); then
  rm -f "$object" # else it would pass for made the next time
  name=$(basename "$object" .o)
  printf '%s\n' "${changed[@]/#/$name: error: ptxas changes the order of the wgmma in }" |
    { c++filt -p 2>/dev/null || cat; } >&2
  status=1
fi
exit $status
