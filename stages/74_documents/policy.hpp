#pragma once
// The policy of stage 74; attention.cu beside it explains its idea.
#include "stages/70_policies/policy.hpp"

namespace flashladder::stage_74 {
namespace {

/// Sequences that are packed in the rows and keys of a single batch entry.
///
/// With tiles of `size` rows, those of sequence s have the numbers from cu[s] / size + s on. That is room
/// enough: it takes at most cu[s + 1] / size - cu[s] / size + 1 of them. And it is known without asking the
/// sequences before it.
struct PackedSequences {
  int sequences;           // 0: nothing is packed
  gmem<const int> cu_q;    // [sequences + 1]: where each begins in the rows, and the last ends
  gmem<const int> cu_k;    // [sequences + 1]: the same in the keys
  bool partly_used;        // whether of each sequence only the first keys are used
  gmem<const int> used_k;  // [sequences]: how many

  static constexpr bool packed = true;
  FLASHLADDER_HOST_DEVICE constexpr bool given() const { return sequences > 0; }
  FLASHLADDER_HOST_DEVICE constexpr int blocks(std::int64_t N, int size) const {
    return static_cast<int>(sequences == 0 ? (N + size - 1) / size : N / size + sequences);
  }
  __device__ __forceinline__ int first_tile(const gmem<const int>& cu, int s, int size) const {
    return static_cast<int>(cu[s]) / size + s;
  }
  /// Row or key `at` of the tiles that cu has.
  __device__ __forceinline__ stage_70::Part part_of(Sizes& n, int b, const gmem<const int>& cu, int at,
                                                    int size) const {
    if (sequences == 0) return {b, 0, 0, at};
    int s = 0;  // the last whose tiles do not begin behind that of `at`
    for (int end = sequences; end - s > 1;) {
      const int middle = (s + end) / 2;
      (first_tile(cu, middle, size) <= at / size ? s : end) = middle;
    }
    const int row0 = cu_q[s], key0 = cu_k[s];
    n.Nq = cu_q[s + 1] - row0;
    n.Nk = partly_used ? static_cast<int>(used_k[s]) : cu_k[s + 1] - key0;
    return {s, row0, key0, at - first_tile(cu, s, size) * size};
  }
  __device__ __forceinline__ stage_70::Part of_row(Sizes& n, int b, int row, int Br) const {
    return part_of(n, b, cu_q, row, Br);
  }
  __device__ __forceinline__ stage_70::Part of_key(Sizes& n, int b, int key, int Bc) const {
    return part_of(n, b, cu_k, key, Bc);
  }
  __device__ __forceinline__ int padded_row0(const stage_70::Part& part, int Br) const {
    return sequences == 0 ? 0 : (part.row0 / Br + part.entry) * Br;
  }
};

/// The policy Base for each of some sequences that are packed.
template <class Base>
struct Documents : Base {
  PackedSequences packed_sequences;

  using Sequences = PackedSequences;
  FLASHLADDER_HOST_DEVICE constexpr const PackedSequences& sequences() const { return packed_sequences; }
};

}  // namespace
}  // namespace flashladder::stage_74
