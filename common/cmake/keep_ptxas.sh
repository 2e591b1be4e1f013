#!/usr/bin/env bash
# keep_ptxas.sh NVCC ... -o OBJECT ...: compiles. What ptxas -v says of each kernel goes to OBJECT.ptxas, which a test
# reads; all else that the compiler says goes to stderr.
for ((i = 1; i < $#; ++i)); do [[ ${!i} != -o ]] || { j=$((i + 1)) && said=${!j}.ptxas; }; done
"$@" 2>"$said"
status=$?
grep -vE '^ptxas info|^ +[0-9]+ bytes stack frame' "$said" >&2
exit $status
