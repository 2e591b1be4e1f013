#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <type_traits>

#include "common/attention/dtype.hpp"
#include "common/attention/problem.hpp"
#include "common/error.hpp"

namespace flashladder {

/// One of the two passes of attention.
enum class Pass {
  forward,   ///< O and L of Q, K and V.
  backward,  ///< dQ, dK and dV of these and dO.
};

/// "forward" or "backward".
constexpr std::string_view to_string(Pass pass) {
  return pass == Pass::forward ? "forward" : "backward";
}

/// The Dtype whose elements the C++ type `T` holds; only for types that hold one.
template <class T>
struct DtypeOf;
/// float holds fp32.
template <>
struct DtypeOf<float> {
  static constexpr Dtype value = Dtype::fp32;  ///< The Dtype.
};

/// A [rows, d] matrix in memory somewhere: what a stage sees of one head. Rows are `stride` elements apart,
/// the elements of a row are next to each other. M[i] is row i, M[i][c] its element c.
template <class T>
struct Matrix {
  T* data;              ///< Of row 0.
  std::int64_t stride;  ///< Elements from one row to the next.
  /// Row i, [d].
  T* operator[](std::int64_t i) const { return data + i * stride; }
};

/// A [batch, heads, rows, d] tensor in memory somewhere; it owns nothing. Strides are in elements, d's
/// is 1.
struct Tensor {
  void* data = nullptr;                     ///< Of the first element.
  Dtype dtype = Dtype::fp32;                ///< Of the elements.
  std::array<std::int64_t, 3> stride = {};  ///< Of batch, head and row.

  /// The [rows, d] matrix of one head of one batch entry, as elements of type `T` (const or not).
  template <class T>
  Matrix<T> head(std::int64_t b, std::int64_t h) const {
    if (dtype != DtypeOf<std::remove_const_t<T>>::value)
      throw std::logic_error("tensor read as another dtype");
    return {static_cast<T*>(data) + b * stride[0] + h * stride[1], stride[2]};
  }
};

/// One head of the forward pass, fp32.
struct ForwardHead {
  Matrix<const float> Q;  ///< [Nq, d]
  Matrix<const float> K;  ///< [Nk, d]
  Matrix<const float> V;  ///< [Nk, d]
  Matrix<float> O;        ///< [Nq, d]
  float* L;               ///< [Nq]
};

/// One head of the backward pass, fp32. Under GQA several query heads add into the same dK and dV.
struct BackwardHead {
  Matrix<const float> Q;   ///< [Nq, d]
  Matrix<const float> K;   ///< [Nk, d]
  Matrix<const float> V;   ///< [Nk, d]
  Matrix<const float> O;   ///< [Nq, d]
  Matrix<const float> dO;  ///< [Nq, d]
  const float* L;          ///< [Nq]
  Matrix<float> dQ;        ///< [Nq, d]
  Matrix<float> dK;        ///< [Nk, d]
  Matrix<float> dV;        ///< [Nk, d]
};

class Workspace;

/// What a backward pass needs of the forward pass beside O.
enum class Saved {
  L,        ///< The logsumexp of each row, as all stages return it.
  m_and_l,  ///< The maximum and the sum of exponentials of each row.
  P,        ///< All probabilities.
};

/// What a stage's forward pass is given: it reads Q, K, V and writes every element of O and L. all_tensors
/// has the shapes.
struct Forward {
  static constexpr Pass pass = Pass::forward;  ///< Which pass it is.
  Problem problem;                             ///< Sizes, mask, scale.
  Tensor Q = {};                               ///< [batch, q_heads, Nq, d], of the problem's dtype.
  Tensor K = {};                               ///< [batch, kv_heads, Nk, d], as Q.
  Tensor V = {};                               ///< [batch, kv_heads, Nk, d], as Q.
  Tensor O = {};                               ///< [batch, q_heads, Nq, d], as Q.
  Tensor L = {};                               ///< [batch, q_heads, Nq], fp32, contiguous.
  Tensor slopes = {};                          ///< [q_heads], fp32; of problems with ALiBi alone.
  Tensor bias = {};                            ///< [bias_batch, bias_heads, bias_rows, Nk], fp32.
  Tensor sinks = {};                           ///< [q_heads], fp32; of problems with sinks alone.
  Tensor cu_seqlens_q = {};                    ///< [sequences + 1], int32; of packed ones alone.
  Tensor cu_seqlens_k = {};                    ///< As cu_seqlens_q.
  Tensor seqused_k = {};                       ///< [sequences], int32; where they are partly used.
  Tensor dropout_seed = {};                    ///< [2], int32: its halves, the low one first.
  Tensor block_map = {};                       ///< [blocks of a BlockMap], int32; where there is one.
  Workspace& workspace;                        ///< The only source of extra memory.

  /// Query head `h` of batch entry `b`, with the key/value head it reads.
  ForwardHead head(std::int64_t b, std::int64_t h) const {
    const std::int64_t g = problem.kv_head(h);
    return {Q.head<const float>(b, h), K.head<const float>(b, g), V.head<const float>(b, g),
            O.head<float>(b, h), L.head<float>(b, h).data};
  }
};

/// What a stage's backward pass is given: it reads Q, K, V, O, dO and what the forward pass saved, and
/// writes every element of dQ, dK, dV. all_tensors has the shapes.
struct Backward {
  static constexpr Pass pass = Pass::backward;  ///< Which pass it is.
  Problem problem;                              ///< Sizes, mask, scale.
  Tensor Q = {};                                ///< [batch, q_heads, Nq, d], of the problem's dtype.
  Tensor K = {};                                ///< [batch, kv_heads, Nk, d], as Q.
  Tensor V = {};                                ///< [batch, kv_heads, Nk, d], as Q.
  Tensor O = {};                                ///< [batch, q_heads, Nq, d], as Q.
  Tensor L = {};                                ///< [batch, q_heads, Nq], fp32, contiguous.
  Tensor dO = {};                               ///< As O.
  Tensor dQ = {};                               ///< As Q.
  Tensor dK = {};                               ///< As K.
  Tensor dV = {};                               ///< As V.
  Tensor m = {};                                ///< As L; for the stages that say so alone.
  Tensor l = {};                                ///< As m.
  Tensor P = {};                                ///< [batch, q_heads, Nq, Nk], fp32, as m.
  Tensor slopes = {};                           ///< As in Forward.
  Tensor bias = {};                             ///< As in Forward.
  Tensor dbias = {};                            ///< As bias.
  Tensor sinks = {};                            ///< As in Forward.
  Tensor dsinks = {};                           ///< As sinks.
  Tensor cu_seqlens_q = {};                     ///< As in Forward.
  Tensor cu_seqlens_k = {};                     ///< As in Forward.
  Tensor dropout_seed = {};                     ///< As in Forward.
  Tensor block_map = {};                        ///< As in Forward.
  Workspace& workspace;                         ///< The only source of extra memory.

  /// Query head `h` of batch entry `b`, with the key/value head it reads and adds gradients to.
  BackwardHead head(std::int64_t b, std::int64_t h) const {
    const std::int64_t g = problem.kv_head(h);
    return {Q.head<const float>(b, h), K.head<const float>(b, g),  V.head<const float>(b, g),
            O.head<const float>(b, h), dO.head<const float>(b, h), L.head<const float>(b, h).data,
            dQ.head<float>(b, h),      dK.head<float>(b, g),       dV.head<float>(b, g)};
  }
};

/// A tensor of a call. What is done to all tensors of a pass, to lay them out, to poison them, to bind them
/// to Python's arrays, is a loop over `all_tensors`.
struct NamedTensor {
  const char* name;                ///< As in the papers, and in Forward and Backward.
  Tensor Forward::*forward;        ///< Null where the forward pass has none.
  Tensor Backward::*backward;      ///< Null where the backward pass has none.
  std::int64_t Problem::*heads;    ///< Its shape is [batch, heads, rows, columns].
  std::int64_t Problem::*rows;     ///< Nq or Nk.
  std::int64_t Problem::*columns;  ///< d; Nk; null: a single one.
  std::optional<Pass> output_of;   ///< The pass that writes it; none: it comes from outside.
  std::optional<Saved> saved;      ///< Only the stages that say so are given it (Stage::saved); none: all.
  /// Of some variant of attention: its shape is [numbers], the same for each batch entry, and a problem
  /// without the variant has none; null: of all.
  std::int64_t (*numbers)(const Problem&) = nullptr;
  bool is_int32 = false;                           ///< Whether they are whole numbers.
  std::int64_t Problem::*batch = &Problem::batch;  ///< Of its shape; 0 where a problem has it not.

  /// Whether a pass over `p` is given it, of a stage that needs `needed` of the forward pass.
  constexpr bool given(Pass pass, Saved needed, const Problem& p) const {
    return (pass == Pass::forward ? forward != nullptr : backward != nullptr) &&
           (!saved || *saved == needed) && (numbers == nullptr || numbers(p) > 0) && p.*batch > 0;
  }
  /// Whether its rows are those of a head, of d elements: they may have strides, and the problem's dtype.
  /// All else is contiguous and fp32, or int32.
  constexpr bool has_head_rows() const { return columns == &Problem::d; }
  /// Of its elements.
  Dtype dtype(const Problem& p) const {
    return has_head_rows() ? p.dtype : is_int32 ? Dtype::int32 : Dtype::fp32;
  }
  /// [batch, heads, rows, columns]; 1 for what it has none of.
  std::array<std::int64_t, 4> shape(const Problem& p) const {
    if (numbers != nullptr) return {1, numbers(p), 1, 1};
    return {p.*batch, p.*heads, p.*rows, columns == nullptr ? 1 : p.*columns};
  }
  /// How many there are.
  std::int64_t elements(const Problem& p) const {
    const auto [batch_count, head_count, row_count, column_count] = shape(p);
    return batch_count * head_count * row_count * column_count;
  }
  /// At `data`, contiguous.
  Tensor contiguous(const Problem& p, void* data) const {
    const auto [batch_count, head_count, row_count, column_count] = shape(p);
    const std::int64_t head = row_count * column_count;
    return {data, dtype(p), {head_count * head, head, column_count}};
  }
  /// Where a Forward or a Backward has it.
  template <class Call>
  constexpr auto& of(Call& call) const {
    if constexpr (Call::pass == Pass::forward) {
      return call.*forward;
    } else {
      return call.*backward;
    }
  }
};

/// A tensor of some variant.
constexpr NamedTensor of_variant(const char* name, Tensor Forward::*forward, Tensor Backward::*backward,
                                 std::int64_t (*numbers)(const Problem&),
                                 std::optional<Pass> output_of = {}, bool is_int32 = false) {
  return {name, forward, backward, nullptr, nullptr, nullptr, output_of, {}, numbers, is_int32};
}

/// The numbers that are added to scores, or their gradient.
constexpr NamedTensor of_scores(const char* name, Tensor Forward::*forward, Tensor Backward::*backward,
                                std::optional<Pass> output_of = {}) {
  NamedTensor tensor{name,         forward,   backward, &Problem::bias_heads, &Problem::bias_rows,
                     &Problem::Nk, output_of, {}};
  tensor.batch = &Problem::bias_batch;
  return tensor;
}

/// Where packed sequences begin, and the last ends.
constexpr std::int64_t begins_of(const Problem& p) {
  return p.packing.sequences > 0 ? p.packing.sequences + 1 : 0;
}

/// Every tensor that a pass reads or writes. @hideinitializer
inline constexpr NamedTensor all_tensors[] = {
    {"Q", &Forward::Q, &Backward::Q, &Problem::q_heads, &Problem::Nq, &Problem::d, {}, {}},
    {"K", &Forward::K, &Backward::K, &Problem::kv_heads, &Problem::Nk, &Problem::d, {}, {}},
    {"V", &Forward::V, &Backward::V, &Problem::kv_heads, &Problem::Nk, &Problem::d, {}, {}},
    {"O", &Forward::O, &Backward::O, &Problem::q_heads, &Problem::Nq, &Problem::d, Pass::forward, {}},
    {"L", &Forward::L, &Backward::L, &Problem::q_heads, &Problem::Nq, nullptr, Pass::forward, {}},
    {"dO", nullptr, &Backward::dO, &Problem::q_heads, &Problem::Nq, &Problem::d, {}, {}},
    {"dQ", nullptr, &Backward::dQ, &Problem::q_heads, &Problem::Nq, &Problem::d, Pass::backward, {}},
    {"dK", nullptr, &Backward::dK, &Problem::kv_heads, &Problem::Nk, &Problem::d, Pass::backward, {}},
    {"dV", nullptr, &Backward::dV, &Problem::kv_heads, &Problem::Nk, &Problem::d, Pass::backward, {}},
    {"m", nullptr, &Backward::m, &Problem::q_heads, &Problem::Nq, nullptr, Pass::forward, Saved::m_and_l},
    {"l", nullptr, &Backward::l, &Problem::q_heads, &Problem::Nq, nullptr, Pass::forward, Saved::m_and_l},
    {"P", nullptr, &Backward::P, &Problem::q_heads, &Problem::Nq, &Problem::Nk, Pass::forward, Saved::P},
    of_variant("slopes", &Forward::slopes, &Backward::slopes,
               [](const Problem& p) { return p.alibi ? p.q_heads : 0; }),
    of_scores("bias", &Forward::bias, &Backward::bias),
    of_scores("dbias", nullptr, &Backward::dbias, Pass::backward),
    of_variant("sinks", &Forward::sinks, &Backward::sinks,
               [](const Problem& p) { return p.sinks ? p.q_heads : 0; }),
    of_variant(
        "dsinks", nullptr, &Backward::dsinks, [](const Problem& p) { return p.sinks ? p.q_heads : 0; },
        Pass::backward),
    of_variant("cu_seqlens_q", &Forward::cu_seqlens_q, &Backward::cu_seqlens_q, begins_of, {}, true),
    of_variant("cu_seqlens_k", &Forward::cu_seqlens_k, &Backward::cu_seqlens_k, begins_of, {}, true),
    of_variant(
        "seqused_k", &Forward::seqused_k, nullptr,
        [](const Problem& p) { return p.packing.partly_used ? p.packing.sequences : 0; }, {}, true),
    of_variant(
        "dropout_seed", &Forward::dropout_seed, &Backward::dropout_seed,
        [](const Problem& p) -> std::int64_t {
          return p.dropout.p != 0 && p.dropout.seed_in_memory ? 2 : 0;
        },
        {}, true),
    of_variant(
        "block_map", &Forward::block_map, &Backward::block_map,
        [](const Problem& p) { return p.block_map.blocks(); }, {}, true),
};

/// The one of that name.
constexpr const NamedTensor& named_tensor(std::string_view name) {
  for (const NamedTensor& one : all_tensors) {
    if (one.name == name) return one;
  }
  throw std::logic_error("no tensor has this name");
}

}  // namespace flashladder
