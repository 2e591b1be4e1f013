#pragma once
#include <nlohmann/json.hpp>

namespace flashladder {

/// How many threads the CPU stages run on.
int threads();

/// What a result is to be read with: CPU, cores, threads, compiler, build, commit.
nlohmann::ordered_json machine_json();

}  // namespace flashladder
