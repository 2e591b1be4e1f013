#!/usr/bin/env bash
# front_door.sh REPOSITORY: tests of ./ladder. Nearly all run on a copy of it in a folder of its own, where the tools it
# calls are stand-ins that write down how they were called: nothing is installed, fetched or built.
set -uo pipefail
repository=$(cd "$1" && pwd -P) || exit 2
top=$(mktemp -d) && trap 'rm -rf "$top"' EXIT
house="$top/a house with spaces" tools=$top/tools calls=$top/calls
checks=0 failures=0 output='' status=0

# --- The stand-ins --------------------------------------------------------------------------------------------

mkdir -p "$house/common/setup" "$house/stages/02_tiled_cpu" "$house/stages/00_naive_cpu" "$tools"
echo 'project(flashladder VERSION 1.2.3 DESCRIPTION "of the tests"' >"$house/CMakeLists.txt"
cp "$repository/ladder" "$house/"
cp "$repository"/common/setup/{setup.sh,packages.txt,requirements.txt,requirements-course.txt} "$house/common/setup/"
for tool in bash cat chmod cp cut dirname env find flock grep head ln mkdir nproc readlink rm sed sha256sum sleep tail \
  touch tr; do
  ln -s "$(command -v $tool)" "$tools/$tool" || exit 2
done
tool() { # NAME, the script on stdin
  { printf '#!/usr/bin/env bash\nprintf "%%s\\n" "%s $*" >>"%s"\n' "$1" "$calls" && cat; } >"$tools/$1"
  chmod +x "$tools/$1"
}
for name in c++ clang++ doxygen dot git ninja; do tool $name </dev/null; done
tool ctest <<'END'
echo "the summary of ctest" && exit "${CTEST_STATUS:-0}"
END
tool sudo <<'END'
case $1 in -n | -v) ;; *) exec "$@" ;; esac
END
tool apt-cache </dev/null
tool apt-get <<<"[[ \$* != *' install '* || -n \${NO_NETWORK-} ]] || { : >'$tools/ninja' && chmod +x '$tools/ninja'; }
exit \${NO_NETWORK:-0}"
tool cmake <<'END'
case $* in
  *--version*) echo "cmake version ${CMAKE_VERSION:-3.25.1}" ;;
  *--preset*)
    echo "a line of the configuration" && [[ -z ${CONFIGURE_FAILS-} ]] || exit 1
    mkdir -p "$2/build/release" && cd "$2/build/release" || exit 1
    printf 'CMAKE_%s:INTERNAL=%s\n' HOME_DIRECTORY "$2" CACHEFILE_DIR "$PWD" >CMakeCache.txt
    printf '%s\n' "$@" | sed -n 's/^-D\([A-Z_]*\)=/\1:STRING=/p' >>CMakeCache.txt
    printf 'build %s: phony\n' all flashladder_program stage_tests docs >build.ninja
    printf '#!/usr/bin/env bash\nprintf "<%%s>" "$PWD" "$@"; echo " ${FLASHLADDER_PYTHON:-no python}"\n' >flashladder
    chmod +x flashladder ;;
  *--build*)
    [[ -n ${BUILD_FAILS-} ]] || exit 0
    printf '[1/2] a step that went well\nFAILED: a step that did not\n' && exit 1 ;;
esac
END
tool python3 <<'END'
case $* in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *pip*) exit "${NO_NETWORK:-0}" ;;
  *numpy*) [[ $0 == */.venv/* || -z ${NO_NUMPY-} ]] ;;
  *Python.h*) [[ -z ${NO_HEADERS-} ]] ;;
esac
END

# --- The checks -----------------------------------------------------------------------------------------------

check() { # WHAT COMMAND...: the command must succeed
  checks=$((checks + 1))
  "${@:2}" && return
  failures=$((failures + 1))
  printf 'FAILED: %s\n  exit status %s, and this was said:\n%s\n' "$1" "$status" "${output//$'\n'/$'\n'    }"
}
# ladder ARGUMENTS...: the front door, with nothing but the stand-ins on its PATH.
ladder() {
  : >"$calls"
  output=$(env -u CXX -u CMAKE_PREFIX_PATH -u CMAKE_BUILD_PARALLEL_LEVEL -u FLASHLADDER_PYTHON PATH="$tools" \
    FLASHLADDER_TURN="${turn-}" \
    "${door:-$house/ladder}" "$@" 2>&1 </dev/null)
  status=$?
}
exits() { ((status == $1)); }
says() { [[ $output == *"$1"* ]]; }
one_sentence() { [[ $output == "ladder: "*. && $output != *$'\n'* ]]; }
called() { grep -q -- "$1" "$calls"; }
not() { ! "$@"; }
untouched() { [[ ! -e $house/build && ! -e $house/.venv ]]; }

for arguments in help -h --help; do
  ladder $arguments
  check "'$arguments' shows the help" exits 0
  check "'$arguments' says what to do first" says "Begin with: ./ladder climb"
done
ladder
check "alone, it shows the first hour" exits 0
check "which begins with a climb" says "> ./ladder climb"
check "and says what comes next" says "Next: ./ladder climb"
for arguments in 'test --help' 'help test' 'docs --help' 'help setup'; do
  # shellcheck disable=SC2086
  ladder $arguments
  check "'$arguments' shows help" exits 0
  check "'$arguments' names the verb" says './ladder '
done
for arguments in clim --frobnicate 'test --al' 'test 99' 'test 03' 'test cpu' 'test 02,' 'test 02-99' 'test -R' 'docs now' \
  'setup --all' 'bench 99' 'bench tiled' 'bench 02 99'; do
  # shellcheck disable=SC2086
  ladder $arguments
  check "'$arguments' is a usage error" exits 2
  check "'$arguments' is answered in one sentence" one_sentence
done
for arguments in 'test 99' 'bench 99'; do
  # shellcheck disable=SC2086
  ladder $arguments
  check "'$arguments' says what is wrong" says "stage 99 does not exist: ./ladder list shows the stages."
done
ladder --version
check "--version is answered" exits 0
check "--version says version and commit" says "FlashLadder 1.2.3, commit "
ladder --version --nonsense
check "and nothing else" exits 0
for redirect in '>/dev/full' '>/dev/full 2>&1'; do
  for arguments in '' help --version; do
    eval "output=\$(PATH=\$tools \"\$house/ladder\" $arguments 2>&1 $redirect)"
    status=$?
    check "'$arguments' with $redirect fails" exits 2
    [[ $redirect == *'2>&1' ]] ||
      check "'$arguments' with $redirect says why" test "$output" = "ladder: cannot write to stdout: is the disk full?"
  done
done
for redirect in '>&-' '2>&-' '<&- >&- 2>&-'; do
  eval "output=\$(PATH=\$tools \"\$house/ladder\" help 2>&1 $redirect)"
  status=$?
  check "closed streams ($redirect) end nothing" exits 0
done
mkdir "$top/gone" && cd "$top/gone" && rmdir "$top/gone" && ladder list
check "a folder that is gone is an error" exits 2
check "and is said to be gone" says "ladder: the folder that you are in is gone: cd into one that is there"
check "and nothing is missing" not says "cmake"
cd "$top" || exit 2
ladder clim
check "an unknown verb is answered with the verbs" says "climb, ledger, list, diff, watch, lab, notebooks, bench, tune, test, docs, setup, help"
check "help and usage errors change nothing" untouched

rm "$tools/ninja"
for arguments in 'climb --no-install' '--no-install list' 'test --all --no-install'; do
  # shellcheck disable=SC2086
  ladder $arguments
  check "'$arguments' stops when a package is missing" exits 2
  check "'$arguments' names it and says why" says "ninja-build         runs the build"
  check "'$arguments' gives the command" says "apt-get install --no-install-recommends ninja-build"
  check "'$arguments' installs nothing" not called apt-get
  check "'$arguments' changes nothing" untouched
done
CMAKE_VERSION=3.22.1 ladder list --no-install
check "an old cmake counts as missing" says "cmake               configures the build, 3.25 or newer"

NO_NETWORK=1 ladder list
check "without a network and without ninja, it fails" exits 2
check "without a network, it says what it cannot do without" says "cannot go on without ninja-build"
ladder list --json 'two words'
check "it installs what is missing, and runs" exits 0
check "it refreshes apt's lists first" called 'apt-get .*update'
check "it installs by apt-get" called 'apt-get .*install --no-install-recommends ninja-build'
check "it configures" called 'cmake .*--preset release'
check "it hands all arguments over" says "<list><--json><two words>"
check "a verb that draws nothing makes no Python environment" not called python3

ladder list
check "a second call runs too" exits 0
check "a second call installs nothing" not called apt-get
check "a second call does not configure" not called preset
check "a second call says nothing of its own" not says $'\n'

turn=2/3 ladder list
check "another part of the mutants is configured" called 'preset .*-DFLASHLADDER_TURN=2/3'
turn=2/3 ladder list
check "and once" not called preset
ladder list
check "all of them again, too" called 'preset .*-DFLASHLADDER_TURN= '
sed -i 's/^CMAKE_CXX_COMPILER_LAUNCHER.*/CMAKE_CXX_COMPILER_LAUNCHER:STRING=is_gone/' "$house/build/release/CMakeCache.txt"
ladder list
check "without a launcher that is gone it is configured again" called preset
ladder list
check "and not forever" not called preset

mkdir "$top/elsewhere" && ln -s "$house/ladder" "$top/elsewhere/door"
cd "$top/elsewhere" && door=./door ladder list
check "it works through a symbolic link, and leaves the caller where he is" says "<$top/elsewhere><list>"

output=$(PATH=$tools "$house/ladder" list 2>&- <&-)
status=$?
check "with closed streams it runs all the same" says "<$top/elsewhere><list>"

sed -i "s|^CMAKE_HOME_DIRECTORY.*|CMAKE_HOME_DIRECTORY:INTERNAL=$top/elsewhere|" "$house/build/release/CMakeCache.txt"
ladder list
check "a build folder made elsewhere is made afresh" says "was made for another folder ($top/elsewhere)"
check "and it runs" exits 0
rm "$house/build/release/build.ninja"
CONFIGURE_FAILS=1 ladder list
check "a failed configuration fails" exits 2
check "a failed configuration shows its log" says "a line of the configuration"
BUILD_FAILS=1 ladder list
check "a failed build fails" exits 2
check "a failed build shows what failed" says "FAILED: a step that did not"
check "a failed build does not show what went well" not says "a step that went well"

venv=$house/.venv
NO_NETWORK=1 NO_NUMPY=1 ladder climb
check "without a Python environment it climbs all the same" exits 0
check "without a Python environment it says how to make one" says "./ladder setup makes it"
check "a half-made environment does not stay" test ! -e "$venv"
NO_NETWORK=1 NO_NUMPY=1 ladder climb
check "what could not be had is not tried again at once" not called python3
NO_NETWORK=1 ladder setup
check "./ladder setup tries again, and takes a Python that has what is needed" says "using $tools/python3"
NO_NETWORK=1 ladder climb
check "and keeps to it" says "<climb> $tools/python3"
ladder setup
check "./ladder setup makes the environment" test -f "$venv/stamp"
ladder climb
check "the environment is used" says "<climb> $venv/bin/python"
check "the environment is not made again" not called python3
rm "$venv/stamp"
ladder climb
check "a half-made environment is made afresh" called "-m venv"
echo >>"$house/common/setup/requirements.txt"
ladder climb
check "changed requirements make it afresh" called "-m venv"
output=$(FLASHLADDER_PYTHON=/my/python PATH="$tools" "$house/ladder" climb 2>&1)
status=$?
check "the caller's own Python is used" says "<climb> /my/python"

ladder
check "what ended well is marked" says "+ ./ladder climb"
check "and the next step is another" says "Next: ./ladder diff 00 01"
ladder lab new 03 'my other lab'
ladder
check "a lab is called by its folder" says './ladder lab grade my\ other\ lab ' 
check "the next step is the first that is open" says "Next: ./ladder diff 00 01"
cat >"$house/build/release/flashladder" <<<'exit 1'
ladder lab grade 'my other lab'
check "a failure is a failure" exits 1
ladder
check "what failed is still to be done" says "  ./ladder lab grade"

mkdir "$house/notebooks" && : >"$house/notebooks/2_tiles.ipynb"
for arguments in 'notebooks 2' 'notebooks --write' 'notebooks --run 9' 'notebooks --run --all'; do
  # shellcheck disable=SC2086
  ladder $arguments
  check "'$arguments' is a usage error" exits 2
  check "'$arguments' is answered in one sentence" one_sentence
done
NO_NETWORK=1 ladder notebooks
check "without Jupyter the notebooks do not start" exits 2
check "and it says why" says "Sphinx and Jupyter could not be installed"
NO_HEADERS=1 ladder notebooks
check "without Python's headers they do not start" exits 2
check "and it says which package is missing" says "install python3-dev"
ladder notebooks --run 2
check "the notebooks are executed" called "-m notebooks.run 2\$"
check "after their module was compiled" called 'pip install .*-C build-dir=build/python'
check "without a GPU for the CPU alone" called 'FLASHLADDER_CUDA=OFF'
ladder notebooks
check "Jupyter Lab starts in their folder" called "jupyterlab --ServerApp.root_dir=$house/notebooks"
check "what is there is not installed again" not called pip
: >"$house/stages/02_tiled_cpu/attention.cpp"
ladder notebooks --run
check "changed sources make the module anew" called 'pip install .*-C build-dir=build/python'
tool nvidia-smi </dev/null
ladder notebooks --run
check "with a GPU for it too" called 'FLASHLADDER_CUDA=ON'
rm "$tools/nvidia-smi"

ladder docs
check "the guide is made, of what the target docs gives it" called 'cmake --build .* --target docs'
check "and by its own program" called "-m docs.site.build\$"

ladder test 02 -j 2
check "the quick tests are the default" called 'ctest .*-L ^quick\$ -R stage_(02) -j 2'
check "what they run is built, and not all" called 'cmake --build .* --target stage_tests'
check "the last word is ctest's" test "${output##*$'\n'}" = "the summary of ctest"
for arguments in 2 tiled_cpu 02_tiled_cpu stages/02_tiled_cpu/ 00-02,02 naive_cpu-tiled_cpu; do
  ladder test $arguments
  check "a stage is named as '$arguments' too" called 'ctest .*-R stage_(\(00|\)\?02'
done
for arguments in '16 -N' -N '02' '-R x' '-E x' '-L x' '-LE x' --rerun-failed; do
  # shellcheck disable=SC2086
  ladder test ${arguments/16/02}
  ladder
  check "'test $arguments' is not all tests" says "  ./ladder test  "
  check "'test $arguments' is not marked" not says "+ ./ladder test"
done
for arguments in '02 -R x' '02 -L x' '02 --rerun-failed'; do
  # shellcheck disable=SC2086
  ladder test $arguments
  check "all is built for 'test $arguments', which may take other tests" called 'cmake --build .* --target all'
done
ladder test -j 2 --stop-on-failure
ladder
check "all quick tests are marked" says "+ ./ladder test"
ladder test --all
check "--all leaves no test out" not called '-L'
CTEST_STATUS=8 ladder test
check "a failed test is a failure" exits 1
printf 'build flashladder_bench: phony\n' >>"$house/build/release/build.ninja"
mkdir -p "$house/build/release/bench" && cp "$house/build/release/flashladder" "$house/build/release/bench/flashladder_bench"
cat >"$house/build/release/bench/flashladder_bench" <<<'#!/usr/bin/env bash
printf "<%s>" "$@"'
chmod +x "$house/build/release/bench/flashladder_bench"
ladder bench 02 naive_cpu --benchmark_min_time=1
check "a benchmark is of stages" says "<--benchmark_filter=^(02|00) ><--benchmark_min_time=1>"
ladder bench --benchmark_filter=02
check "or of what Google Benchmark is told" says "<--benchmark_filter=02>"
sed -i '/^build flashladder_bench/d' "$house/build/release/build.ninja"
ladder bench
check "a part that was left out of the build is an error" exits 2
check "a part that was left out of the build is explained" says "was left out of the build"

# --- The real one, where it is built --------------------------------------------------------------------------

# A call that would build something takes its time, and would build under the feet of whoever is building now.
up_to_date() {
  cd "$repository" && [[ -x build/release/flashladder && -f build/release/packages ]] &&
    [[ -z $(find common stages -name '*.[ch]pp' -newer build/release/flashladder) ]] &&
    [[ -z $(find CMakeLists.txt common stages tests bench docs \( -name CMakeLists.txt -o -name '*.cmake' \) \
      -newer build/release/build.ninja) ]]
}
if up_to_date; then
  started=${EPOCHREALTIME/[.,]/}
  output=$("$repository/ladder" list 2>&1)
  status=$?
  ended=${EPOCHREALTIME/[.,]/}
  check "the real ./ladder list runs" exits 0
  echo "it took $(((ended - started) / 1000)) ms: on an idle machine less than 2000, and that is for the reader to judge"
else
  echo "build/release is not up to date: its start is not timed"
fi

echo "$((checks - failures)) of $checks checks of the front door passed"
((failures == 0))
