#pragma once
#include <array>
#include <cstdint>
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

/// What a stage's forward pass is given: it reads Q, K, V and writes every element of O and L.
struct Forward {
  Problem problem;       ///< Sizes, mask, scale.
  Tensor Q;              ///< [batch, q_heads,  Nq, d]
  Tensor K;              ///< [batch, kv_heads, Nk, d]
  Tensor V;              ///< [batch, kv_heads, Nk, d]
  Tensor O;              ///< [batch, q_heads,  Nq, d]
  float* L;              ///< [batch, q_heads,  Nq], contiguous
  Workspace& workspace;  ///< The only source of extra memory.

  /// Query head `h` of batch entry `b`, with the key/value head it reads.
  ForwardHead head(std::int64_t b, std::int64_t h) const {
    const std::int64_t g = problem.kv_head(h);
    return {Q.head<const float>(b, h), K.head<const float>(b, g), V.head<const float>(b, g),
            O.head<float>(b, h), L + (b * problem.q_heads + h) * problem.Nq};
  }
};

/// What a stage's backward pass is given: it reads Q, K, V, O, dO and what the forward pass saved, and
/// writes every element of dQ, dK, dV.
struct Backward {
  Problem problem;       ///< Sizes, mask, scale.
  Tensor Q;              ///< [batch, q_heads,  Nq, d]
  Tensor K;              ///< [batch, kv_heads, Nk, d]
  Tensor V;              ///< [batch, kv_heads, Nk, d]
  Tensor O;              ///< [batch, q_heads,  Nq, d]
  const float* L;        ///< [batch, q_heads,  Nq], contiguous
  Tensor dO;             ///< [batch, q_heads,  Nq, d]
  Tensor dQ;             ///< [batch, q_heads,  Nq, d]
  Tensor dK;             ///< [batch, kv_heads, Nk, d]
  Tensor dV;             ///< [batch, kv_heads, Nk, d]
  Workspace& workspace;  ///< The only source of extra memory.
  // For the stages that say so (Stage::saved), else null; all fp32 and contiguous.
  const float* m = nullptr;  ///< [batch, q_heads, Nq]: the largest score of each row
  const float* l = nullptr;  ///< [batch, q_heads, Nq]: its sum of exponentials
  const float* P = nullptr;  ///< [batch, q_heads, Nq, Nk]

  /// Query head `h` of batch entry `b`, with the key/value head it reads and adds gradients to.
  BackwardHead head(std::int64_t b, std::int64_t h) const {
    const std::int64_t g = problem.kv_head(h);
    return {
        Q.head<const float>(b, h), K.head<const float>(b, g),  V.head<const float>(b, g),
        O.head<const float>(b, h), dO.head<const float>(b, h), L + (b * problem.q_heads + h) * problem.Nq,
        dQ.head<float>(b, h),      dK.head<float>(b, g),       dV.head<float>(b, g)};
  }
};

}  // namespace flashladder
