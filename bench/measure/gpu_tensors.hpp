#pragma once
#include <cstdint>
#include <vector>

#include "common/attention/backend.hpp"
#include "common/attention/tensor.hpp"
#include "common/check/inputs.hpp"

namespace flashladder {

/// Everything that a pass reads and writes, on the GPU, contiguous, for every problem of the papers' grid
/// in turn: batch * N = `tokens` and heads * d = `width`, so that all are of one size, [batch, heads, N,
/// d]; and for smaller ones.
struct Tensors {
  static constexpr std::int64_t tokens = 16384, width = 2048, elements = tokens * width;

  explicit Tensors(Dtype of);

  Dtype dtype;
  std::int64_t bytes = elements * size_of(dtype);
  Inputs inputs;                ///< Q, K and V on the host: one long head.
  std::vector<float> gradient;  ///< dO on the host.
  BackendMemory Q{Backend::cuda, bytes}, K{Backend::cuda, bytes}, V{Backend::cuda, bytes},
      O{Backend::cuda, bytes}, dO{Backend::cuda, bytes}, dQ{Backend::cuda, bytes}, dK{Backend::cuda, bytes},
      dV{Backend::cuda, bytes};
  BackendMemory L{Backend::cuda, elements / 32 * 4};  ///< [batch, heads, N], d >= 32

  /// Those of a dtype, made when first needed.
  static Tensors& of(Dtype dtype);

  /// One of them as the problem's tensor of this name, or as one of Q's shape.
  static Tensor as(const Problem& p, const BackendMemory& memory, const char* name = "Q");
  /// The forward pass of the problem, to O and L.
  Forward forward(const Problem& p, Workspace& workspace);
  /// NaN in all of a memory.
  static void poison(BackendMemory& memory);

  /// The last head's problem, with only its last `rows` rows and `keys` keys.
  Inputs last(const Problem& p, std::int64_t rows, std::int64_t keys) const;
  /// The last rows of the last head in `values`, which are the problem's tensor of this name, or of Q's
  /// shape.
  static std::vector<float> last_rows(const Problem& p, const std::vector<float>& values, std::int64_t rows,
                                      const char* name = "Q");
  /// The same of a memory: `d` numbers a row.
  static std::vector<float> last_rows(const Problem& p, const BackendMemory& memory, Dtype dtype,
                                      std::int64_t rows, std::int64_t d);

  /// How many last rows, and keys, are checked.
  static std::int64_t checked(const Problem& p) { return p.Nq < 16 ? p.Nq : 16; }
  /// Throws Error where one of the first `count` elements of a memory is NaN, as poison is, or Inf. `name`
  /// is for the message.
  static void require_numbers(const BackendMemory& memory, Dtype dtype, std::int64_t count,
                              const char* name);
  /// Throws Error unless O and L of the last rows of the last head are what the oracle says, and both are
  /// numbers everywhere.
  void check_forward_pass(const Problem& p) const;
};

}  // namespace flashladder
