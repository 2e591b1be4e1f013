// What tensor-core instructions do, on the emulator.
#include "common/ptx/mma.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "common/ptx/vectors.hpp"

namespace flashladder::simt {
namespace {

/// The numbers of `count` registers, two in each, as fp32.
template <class T, int count>
void widen(const std::uint32_t (&registers)[count], float* numbers) {
  std::uint16_t bits[2 * count];
  std::memcpy(bits, registers, sizeof bits);
  for (int i = 0; i < 2 * count; ++i)
    numbers[i] = std::is_same_v<T, bf16> ? widen_bf16(bits[i]) : widen_f16_by_product(bits[i]);
}

}  // namespace

bool is_copying() {
  return !running.thread->copies.empty();
}

template <class T>
void multiply_fragments(MmaOperands mine, Where where) {
  std::uint64_t& most = running.cluster->most_exp_before_product;
  most = std::max(most, std::exchange(running.thread->exponentials, 0));
  collective(~0u, "mma_m16n8k16", where, mine, [&](MmaOperands* const* lanes) {
    std::uint32_t A_pairs[16 * 8];  // [row][k / 2]
    std::uint32_t B_pairs[8 * 8];   // [column][k / 2]
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      const MmaOperands& of = *lanes[lane];
      for (int i = 0; i < 4; ++i) A_pairs[(g + i % 2 * 8) * 8 + t + i / 2 * 4] = of.a[i];
      for (int i = 0; i < 2; ++i) B_pairs[g * 8 + t + i * 4] = of.b[i];
    }
    float A[16][16];
    float B_columns[8][16];
    widen<T>(A_pairs, A[0]);
    widen<T>(B_pairs, B_columns[0]);
    constexpr int parts = 8 / vector_floats;  // of a row of B or C
    FloatVector B[16][parts];
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column)
        B[k][column / vector_floats][column % vector_floats] = B_columns[column][k];
    float C[16][8];
    for (int row = 0; row < 16; ++row) {
      FloatVector sums[parts] = {};
      for (int k = 0; k < 16; ++k)
        for (int i = 0; i < parts; ++i) sums[i] += A[row][k] * B[k][i];
      std::memcpy(C[row], sums, sizeof sums);
    }
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 4; ++i)
        lanes[lane]->c[i] = Plain::number(lanes[lane]->c[i]) + C[g + i / 2 * 8][2 * t + i % 2];
    }
    constexpr std::uint64_t flops_of_lane = 2 * 16 * 8 * 16 / 32;
    running.counts.flops_tensor_cores += 32 * flops_of_lane;
    for (int lane = 0; lane < 32; ++lane)
      running.counts.flops_during_copies += lanes[lane]->copying ? flops_of_lane : 0;
  });
}

template void multiply_fragments<f16>(MmaOperands mine, Where where);
template void multiply_fragments<bf16>(MmaOperands mine, Where where);

void load_matrices(LdmatrixOperands mine, bool transposed, Where where) {
  collective(~0u, transposed ? "ldmatrix_x4_trans" : "ldmatrix_x4", where, mine,
             [&](LdmatrixOperands* const* lanes) {
               for (int matrix = 0; matrix < 4; ++matrix) {
                 std::uint16_t M[8][8];
                 for (int row = 0; row < 8; ++row) std::memcpy(M[row], lanes[8 * matrix + row]->row, 16);
                 for (int lane = 0; lane < 32; ++lane) {
                   const int g = lane / 4, t = lane % 4;
                   const std::uint16_t first = transposed ? M[2 * t][g] : M[g][2 * t];
                   const std::uint16_t second = transposed ? M[2 * t + 1][g] : M[g][2 * t + 1];
                   lanes[lane]->r[matrix] = first | static_cast<std::uint32_t>(second) << 16;
                 }
               }
             });
}

}  // namespace flashladder::simt
