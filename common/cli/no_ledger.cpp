// common/cli/ledger.hpp in a build without the emulator.
#include "common/attention/error.hpp"
#include "common/cli/ledger.hpp"

namespace flashladder {

int ledger(const LedgerOptions&) {
  throw Error(
      "this build has no emulator and so no stages of kernels: set up again on a system with threads");
}

std::span<const LedgerSummary::Field> LedgerSummary::fields() {
  return {};
}

LedgerSummary count_launches(const std::function<void()>& run) {
  run();
  return {};
}

}  // namespace flashladder
