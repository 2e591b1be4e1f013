#!/usr/bin/env bash
# long.sh NAME SOURCE BUILD: the tests that are whole builds, or runs of other tools. Exits 77 where a tool is missing.
set -euo pipefail
name=$1 source=$2 build=$3
jobs=$(nproc)

skip() { echo "skipped: $*" && exit 77; }
need() { command -v "$1" >/dev/null || skip "$1 is not installed"; }
scratch=$(mktemp -d) && trap 'rm -rf "$scratch"' EXIT

# All quick tests of the C++ code under AddressSanitizer and UndefinedBehaviorSanitizer.
asan() {
  cd "$source"
  cmake --preset asan >/dev/null
  cmake --build --preset asan --parallel "$jobs"
  # The allocator of a sanitizer must be able to fail as the real one does.
  ASAN_OPTIONS=allocator_may_return_null=1 ctest --test-dir build/asan -L quick -E '^(program|front_door)$' \
    --output-on-failure -j "$jobs"
}

# The stages and their claims with the other compiler: std::experimental::simd is not the same in both.
clang() {
  need clang++
  cmake -S "$source" -B "$build/../clang" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=clang++ \
    -DFLASHLADDER_DOCS=OFF -DFLASHLADDER_BENCH=OFF >/dev/null
  cmake --build "$build/../clang" --parallel "$jobs"
  ctest --test-dir "$build/../clang" -R '^(attention|check|oracle|claims|simt|zoo|stage_.*)$' -LE long --output-on-failure -j "$jobs"
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
  find stages common bench tests -name '*.[ch]pp' -print0 | xargs -0 "$clang_format" --dry-run -Werror
}

# What .clang-tidy asks for, as version 14 judges it; later versions judge differently.
tidy() {
  need clang-tidy
  [[ $(clang-tidy --version) =~ version\ 14\. ]] || skip "clang-tidy is not version 14"
  cd "$source"
  find stages common/attention common/check common/io common/cli bench -name '*.cpp' -print0 |
    xargs -0 -P "$jobs" -n 4 clang-tidy -p "$build" --quiet --extra-arg=-Wno-unknown-warning-option \
      --warnings-as-errors='*' 2>/dev/null
}

# Another project finds the installed package and runs a stage.
package() {
  cmake --install "$build" --prefix "$scratch/installed" >/dev/null
  cmake -S "$source/tests/consumer" -B "$scratch/consumer" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_PREFIX_PATH="$scratch/installed" >/dev/null
  cmake --build "$scratch/consumer"
  "$scratch/consumer/consumer"
}

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
  local fetched=()
  stand_in CLI11 CLI11::CLI11
  stand_in fmt fmt::fmt fmt
  stand_in nlohmann_json nlohmann_json::nlohmann_json
  stand_in benchmark benchmark::benchmark benchmark pthread
  stand_in Catch2 Catch2::Catch2
  cmake -S "$source" -B "$scratch/build" -G Ninja "${fetched[@]}" -DFLASHLADDER_DOCS=OFF | tee "$scratch/log"
  ! grep 'Left out' "$scratch/log" || { echo "a dependency was left out" && exit 1; }
  cmake --build "$scratch/build" --target flashladder_program flashladder_bench flashladder_tests --parallel "$jobs"
  "$scratch/build/flashladder" climb --stages 00 --out "$scratch/out" ||
    [[ -f $scratch/out/climb.json ]] # the report needs a Python that may not be there; the .npz was read with zlib
}

# Without any dependency each part that needs one is left out with one line, and the rest builds.
left_out() {
  local off=() name
  for name in CLI11 fmt nlohmann_json benchmark ZLIB Catch2 Doxygen OpenMP; do
    off+=("-DCMAKE_DISABLE_FIND_PACKAGE_$name=ON")
  done
  cmake -S "$source" -B "$scratch/build" -G Ninja "${off[@]}" -DFLASHLADDER_FETCH=OFF | tee "$scratch/log"
  for name in CLI11 fmt nlohmann_json benchmark ZLIB Catch2 docs threads; do
    [[ $(grep -c "Left out:.*$name" "$scratch/log") == 1 ]] || { echo "no line, or more than one, on $name" && exit 1; }
  done
  cmake --build "$scratch/build" --parallel "$jobs"
  [[ -f $scratch/build/stages/libflashladder_stages.a ]]
}

# Doxygen, with every warning an error.
reference_pages() {
  need doxygen
  need dot
  cmake --build "$build" --target docs
  [[ -f $build/docs/html/index.html ]]
}

"$name"
