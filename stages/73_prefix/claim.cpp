// What this stage moves, computes and allocates: what changed since the stage before.
#include "stages/70_policies/claimed.hpp"

namespace flashladder::stage_73 {

using namespace claims;

Claim claim() {
  return stage_70::claim_with_columns<64, 128>();
}

}  // namespace flashladder::stage_73
