#!/usr/bin/env bash
# long.sh NAME SOURCE BUILD: the tests that are whole builds, or runs of other tools. Exits 77 where a tool is missing.
set -euo pipefail
name=$1 source=$2 build=$3
jobs=$(nproc)

skip() { echo "skipped: $*" && exit 77; }
# in_turn N: goes on where all tests run, or where it is part N of those of FLASHLADDER_TURN that has its turn.
in_turn() {
  [[ -n ${FLASHLADDER_TURN-} ]] || return 0
  local part=${FLASHLADDER_TURN%/*} parts=${FLASHLADDER_TURN#*/}
  (($1 % parts == part % parts)) ||
    skip "$name has its turn in part $((($1 - 1) % parts + 1))/$parts; this is part $part/$parts"
}
need() { command -v "$1" >/dev/null || skip "$1 is not installed"; }
scratch=$(mktemp -d) && trap 'rm -rf "$scratch"' EXIT

# The folders of all stages that a condition on a Stage chooses (common/course/registry.py), as ctest -R takes them.
folders() {
  [[ -x $build/flashladder ]] || { echo "the program flashladder is not built" >&2 && return 1; }
  cd "$source" && FLASHLADDER_PROGRAM=$build/flashladder "${FLASHLADDER_PYTHON:-python3}" -B -c "
from common.course.registry import *
stages = all_stages()
fp32, last = fastest('forward', 'fp32', stages), [stage for stage in stages if stage.backward][-1]
print('|'.join(stage.folder.name for stage in stages if $1))"
}

# The quick tests of the C++ code under AddressSanitizer and UndefinedBehaviorSanitizer. Emulated, they are slow: every
# stage of kernels is counted once, and only the last forward pass in fp32 runs the shapes of stages_test.cpp.
asan() {
  in_turn 1
  local left_out
  left_out=$(folders 'stage.kernels and stage is not fp32')
  cd "$source"
  cmake --preset asan >/dev/null
  cmake --build --preset asan --parallel "$jobs" --target flashladder_tests flashladder_simt_tests
  # The allocator of a sanitizer must be able to fail as the real one does.
  export ASAN_OPTIONS=allocator_may_return_null=1
  ctest --test-dir build/asan -L quick \
    -E "^(gpu_claims|front_door|site_parts|exercises|wrong|stage_($left_out)|stage_.*_claim)$" \
    --output-on-failure -j "$jobs"
}

# The stages with the other compiler: std::experimental::simd is not the same in both. Of the stages of
# kernels, which have none, the last forward pass in fp32 and the last backward pass run all inputs.
clang() {
  in_turn 2
  need clang++
  local stages
  stages=$(folders 'not stage.kernels or stage in (fp32, last)')
  cmake -S "$source" -B "$build/../clang" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O1 \
    -DCMAKE_CXX_COMPILER=clang++ -DFLASHLADDER_DOCS=OFF -DFLASHLADDER_BENCH=OFF -DFLASHLADDER_CUDA=OFF >/dev/null
  cmake --build "$build/../clang" --parallel "$jobs" --target flashladder_tests flashladder_simt_tests
  ctest --test-dir "$build/../clang" -R "^(attention|check|oracle|claims|simt|zoo|stage_($stages)(_more)?)$" \
    --output-on-failure -j "$jobs"
}

# The reader of .npy and .npz files under libFuzzer.
fuzz() {
  need clang++
  compgen -G "$(clang++ -print-runtime-dir)/libclang_rt.fuzzer*" >/dev/null || skip "clang's libFuzzer is not installed"
  cd "$source"
  cmake --preset fuzz >/dev/null
  cmake --build build/fuzz --target npy_fuzz --parallel "$jobs"
  cp -r tests/fuzz/corpus "$scratch/corpus"
  build/fuzz/tests/npy_fuzz -max_total_time=30 -malloc_limit_mb=64 -print_final_stats=1 "$scratch/corpus"
}

# Every C++ file as .clang-format says. Versions of clang-format differ, so only the pinned one judges, of .venv.
format() {
  local clang_format=clang-format
  [[ ! -x $source/.venv/bin/clang-format ]] || clang_format=$source/.venv/bin/clang-format
  need "$clang_format"
  [[ $("$clang_format" --version) =~ version\ 14\. ]] || skip "clang-format is not version 14"
  cd "$source"
  find stages common bench tests \( -name '*.[ch]pp' -o -name '*.cu' \) -print0 | xargs -0 "$clang_format" --dry-run -Werror
}

# What .clang-tidy asks for, as version 14 judges it; later versions judge differently. The emulator's headers, which
# define names that are CUDA's, stay out. The analyzer follows a function through at most a tenth of the states that it
# would by default: the kernels alone have enough of them for minutes, and are run under the emulator's checks.
tidy() {
  in_turn 3
  need clang-tidy
  [[ $(clang-tidy --version) =~ version\ 14\. ]] || skip "clang-tidy is not version 14"
  cd "$source"
  sed 's/ -mtls-dialect=gnu2 / /' "$build/compile_commands.json" >"$scratch/compile_commands.json" # GCC's
  # Stages are C++, too; bench/measure/gpu_pace.cu is not.
  find stages common/attention common/check common/io common/claims common/kernel common/cli common/labs bench \( -name '*.cpp' -o -name attention.cu \) -print0 |
    xargs -0 -P "$jobs" -n 1 clang-tidy -p "$scratch" --quiet --extra-arg=-Wno-unknown-warning-option \
      --extra-arg=-Xclang --extra-arg=-analyzer-config --extra-arg=-Xclang --extra-arg=max-nodes=22500 \
      --header-filter='(common/(attention|check|claims|kernel|io|cli|labs)|stages|bench)/.*' --warnings-as-errors='*' 2>/dev/null
}

# Another project finds the installed package and runs a stage.
package() {
  cmake --install "$build" --prefix "$scratch/installed" >/dev/null
  cmake -S "$source/tests/consumer" -B "$scratch/consumer" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_PREFIX_PATH="$scratch/installed" >/dev/null
  cmake --build "$scratch/consumer"
  "$scratch/consumer/consumer"
}

# Makes $venv, an environment with the Python module as pip installs it, in the folder $site. With the PyTorch of
# build/peers, where that is there (bench/measure/compare_cpu.py).
make_venv() {
  need python3
  local packages cuda=ON
  venv=$scratch/venv
  python3 -m venv "$venv" || skip "python3 makes no environments"
  [[ -f $("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h ]] ||
    skip "Python's headers (python3-dev) are not installed"
  read -ra packages < <(sed -n 's/^requires = \[\(.*\)\]$/\1/p' "$source/pyproject.toml" | tr -d '",')
  packages+=("$(grep '^numpy==' "$source/common/setup/requirements.txt")")
  packages+=(array_api_strict==2.6.1 ml_dtypes==0.6.0) # another library of arrays, and bfloat16 for NumPy
  "$venv/bin/pip" install -q --retries 0 --disable-pip-version-check "${packages[@]}" || skip "pip cannot get ${packages[*]}"
  command -v nvidia-smi >/dev/null || cuda=OFF # compiled for nothing
  # The folder is that of ./ladder notebooks. For another environment all is compiled again: ccache has it.
  CXX=${CXX:-c++} CMAKE_BUILD_PARALLEL_LEVEL=$jobs "$venv/bin/pip" install --disable-pip-version-check \
    -C build-dir="$source/build/python" -C cmake.define.FLASHLADDER_CUDA=$cuda \
    -C cmake.define.CMAKE_CXX_COMPILER_LAUNCHER="$(command -v ccache)" "$source"
  local peers
  peers=$("$source/build/peers/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' 2>/dev/null) || true
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  # Compiled modules are of one version of Python.
  [[ ${peers%/*} != */"$(basename "${site%/*}")" ]] || echo "$peers" >"$site/peers.pth"
  cd "$scratch"
}

# The Python module, without what needs PyTorch where that is not there.
python() {
  make_venv
  cd "$source" && "$venv/bin/python" -B -m tests.python_test
}

# The same tests with PyTorch, the node for it and transformers: all but those of a GPU. pip installs 6 GB for them.
python_torch() {
  in_turn 6
  make_venv
  "$venv/bin/pip" install -q --disable-pip-version-check -r "$source/bench/measure/requirements-peers.txt" \
    transformers==5.24.0 || skip "pip cannot get PyTorch and transformers"
  # The node alone: all else of this build would be what make_venv has installed.
  cmake -S "$source" -B "$scratch/node" -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$venv/bin/python" \
    -DFLASHLADDER_PYTHON=ON -DFLASHLADDER_TORCH=ON -DFLASHLADDER_TESTS=OFF -DFLASHLADDER_BENCH=OFF \
    -DFLASHLADDER_DOCS=OFF -DFLASHLADDER_CUDA=OFF -DFLASHLADDER_FETCH=OFF >/dev/null
  cmake --build "$scratch/node" --target flashladder_torch_node
  cp "$scratch"/node/common/python/_torch_*.so "$site/flashladder"
  cd "$source" && "$venv/bin/python" -B -m tests.python_test
}

# Training with the module. What python() tests of it in PyTorch is not tested again.
training() {
  "$source/build/peers/bin/python" -c 'import torch' 2>/dev/null ||
    skip "build/peers has no PyTorch: bench/measure/compare_cpu.py says how to install it there"
  make_venv
  "$venv/bin/python" -c 'import torch' || skip "the PyTorch of build/peers is for another version of Python"
  cd "$source" && "$venv/bin/python" -B -m tests.training_test
}

# All notebooks, their exercises, and what executes them, with the module flashladder of the sources as they are.
notebooks() {
  local python=${FLASHLADDER_PYTHON:-$source/.venv/bin/python}
  "$python" -c 'import ipykernel, nbclient' 2>/dev/null || skip "$python has no Jupyter: ./ladder notebooks installs it"
  [[ $python == "$source/.venv/bin/python" ]] || "$python" -c 'import flashladder' 2>/dev/null ||
    skip "$python has no module flashladder: '$python -m pip install $source' makes it"
  (
    set +e
    root=$source FLASHLADDER_PYTHON=$python
    # shellcheck source=common/setup/setup.sh
    source "$source/common/setup/setup.sh"
    python_headers "$python" &>/dev/null || exit 77
    lock_setup
    need_module
  ) || { (($? == 77)) && skip "Python's headers (python3-dev) are not installed"; exit 1; }
  cd "$source" && FLASHLADDER_PROGRAM=$build/flashladder "$python" -B -m tests.notebooks_test "$source"
}

# Where it is only asked whether all can be built.
quickly=(-DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0)

# stand_in NAME TARGET [LIBRARY...]: a local copy of a dependency, made of what is installed.
stand_in() {
  mkdir -p "$scratch/$1"
  printf 'cmake_minimum_required(VERSION 3.25)\nproject(%s CXX)\nadd_library(stand_in_%s INTERFACE)
add_library(%s ALIAS stand_in_%s)\ntarget_link_libraries(stand_in_%s INTERFACE %s)\n' \
    "$1" "$1" "$2" "$1" "$1" "${*:3}" >"$scratch/$1/CMakeLists.txt"
  fetched+=("-DFETCHCONTENT_SOURCE_DIR_${1^^}=$scratch/$1" "-DCMAKE_DISABLE_FIND_PACKAGE_$1=ON")
}

# The dependencies from local copies, none from where it is installed. (zlib stays: its copy would need its sources.)
fetched() {
  in_turn 4
  local fetched=()
  stand_in CLI11 CLI11::CLI11
  stand_in fmt fmt::fmt fmt
  stand_in nlohmann_json nlohmann_json::nlohmann_json
  stand_in benchmark benchmark::benchmark benchmark pthread
  stand_in Catch2 Catch2::Catch2
  cmake -S "$source" -B "$scratch/build" -G Ninja "${quickly[@]}" "${fetched[@]}" -DFLASHLADDER_DOCS=OFF -DFLASHLADDER_CUDA=OFF | tee "$scratch/log"
  ! grep 'Left out' "$scratch/log" || { echo "a dependency was left out" && exit 1; }
  cmake --build "$scratch/build" --target flashladder_program flashladder_bench flashladder_tests --parallel "$jobs"
  "$scratch/build/flashladder" climb --stages 00 --out "$scratch/out" ||
    [[ -f $scratch/out/climb.json ]] # the report needs a Python that may not be there; the .npz was read with zlib
}

# Without any dependency each part that needs one is left out with one line, and the rest builds.
left_out() {
  in_turn 5
  local off=() name
  for name in CLI11 fmt nlohmann_json benchmark ZLIB Catch2 Doxygen OpenMP; do
    off+=("-DCMAKE_DISABLE_FIND_PACKAGE_$name=ON")
  done
  cmake -S "$source" -B "$scratch/build" -G Ninja "${quickly[@]}" "${off[@]}" -DFLASHLADDER_FETCH=OFF -DFLASHLADDER_CUDA=OFF | tee "$scratch/log"
  for name in CLI11 fmt nlohmann_json benchmark ZLIB Catch2 docs threads; do
    [[ $(grep -c "Left out:.*$name" "$scratch/log") == 1 ]] || { echo "no line, or more than one, on $name" && exit 1; }
  done
  cmake --build "$scratch/build" --parallel "$jobs"
  [[ -f $scratch/build/stages/libflashladder_stages.a ]]
}

# The guide, complete: a warning of Doxygen or of Sphinx is an error. Then its links, and its pages in a browser.
site() {
  need doxygen
  local python=${FLASHLADDER_PYTHON:-python3}
  "$python" -c 'import breathe, furo, myst_parser, selenium' 2>/dev/null ||
    skip "$python has no Sphinx and Selenium: ./ladder docs installs them"
  cmake --build "$build" --target docs
  cd "$source"
  "$python" -B -m docs.site.build --out "$scratch/site" --program "$build/flashladder" --xml "$build/docs/xml"
  "$python" -B -m tests.site_test "$scratch/site"
}

"$name"
