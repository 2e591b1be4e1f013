// What stmatrix does, on the emulator.
#include "common/ptx/stmatrix.hpp"

#include <cstring>

namespace flashladder::simt {

void store_matrices(StmatrixOperands mine, bool transposed, Where where) {
  collective(~0u, transposed ? "stmatrix_x4_trans" : "stmatrix_x4", where, mine,
             [&](StmatrixOperands* const* lanes) {
               for (int matrix = 0; matrix < 4; ++matrix) {
                 std::uint16_t M[8][8];
                 for (int lane = 0; lane < 32; ++lane) {
                   const int g = lane / 4, t = lane % 4;
                   const std::uint32_t both = lanes[lane]->r[matrix];
                   (transposed ? M[2 * t][g] : M[g][2 * t]) = static_cast<std::uint16_t>(both);
                   (transposed ? M[2 * t + 1][g] : M[g][2 * t + 1]) =
                       static_cast<std::uint16_t>(both >> 16);
                 }
                 for (int row = 0; row < 8; ++row) std::memcpy(lanes[8 * matrix + row]->row, M[row], 16);
               }
             });
}

}  // namespace flashladder::simt
