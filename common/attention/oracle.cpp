#include "common/attention/oracle.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

namespace flashladder {
namespace {

/// How a computation is carried out: in what type, rounded to what, added up how.
struct Exact {
  using Type = double;
  static constexpr bool scales_q = false;
  static constexpr bool begins_with_D = false;
  static constexpr bool begins_with_bias = false;
  double round(double x) const { return x; }
  std::int64_t index(std::int64_t i, std::int64_t) const { return i; }
  double add(double sum, double a, double b) const { return sum + a * b; }
};
template <bool descending, bool fused>
struct Plain {
  using Type = float;
  static constexpr bool scales_q = descending;     ///< And not the sum: stages do either.
  static constexpr bool begins_with_D = false;     ///< The sum dP - D, and not with 0: stages do either.
  static constexpr bool begins_with_bias = false;  ///< The score, over the scale, likewise.
  Dtype dtype;
  float round(float x) const { return round_to(dtype, x); }
  std::int64_t index(std::int64_t i, std::int64_t n) const { return descending ? n - 1 - i : i; }
  float add(float sum, float a, float b) const { return fused ? std::fma(a, b, sum) : sum + a * b; }
};

/// As tensor cores compute the scores, from the bias on, and dP from -D on: the sum so far and 16 products
/// are aligned to the largest of them, what is more than one bit below its last place is cut off, and so is
/// what is below the last place of their sum. (Fasi, Higham, Mikaitis and Pranesh, Numerical behavior of
/// NVIDIA tensor cores, 2021; one extra bit is the A100's.)
struct TensorCores : Plain<false, true> {
  static constexpr bool begins_with_D = true, begins_with_bias = true;
  /// As add_dots below.
  void add_dots(const float* a, const float* columns, std::int64_t N, std::int64_t d,
                std::vector<float>& x) const {
    std::vector<double> sum(x.begin(), x.end()), largest(x.size());
    for (std::int64_t c0 = 0; c0 < d; c0 += 16) {
      const std::int64_t end = std::min(c0 + 16, d);
      for (std::size_t j = 0; j < x.size(); ++j) largest[j] = std::abs(sum[j]);
      for (std::int64_t c = c0; c < end; ++c) {
        for (std::size_t j = 0; j < x.size(); ++j)
          largest[j] = std::max(largest[j], std::abs(double{a[c]} * columns[c * N + j]));
      }
      for (std::size_t j = 0; j < x.size(); ++j) sum[j] = cut(sum[j], exponent(largest[j]) - 24);
      for (std::int64_t c = c0; c < end; ++c) {
        for (std::size_t j = 0; j < x.size(); ++j)
          sum[j] += cut(double{a[c]} * columns[c * N + j], exponent(largest[j]) - 24);
      }
      for (std::size_t j = 0; j < x.size(); ++j) sum[j] = cut(sum[j], exponent(sum[j]) - 23);
    }
    for (std::size_t j = 0; j < x.size(); ++j) x[j] = static_cast<float>(sum[j]);
  }
  /// e where |x| is 2^e ... 2^(e+1), and -1023 for 0; x is no subnormal number, as no product of two floats
  /// is.
  static std::int64_t exponent(double x) {
    return static_cast<std::int64_t>(std::bit_cast<std::uint64_t>(x) >> 52 & 2047) - 1023;
  }
  /// x without what is below 2^place.
  static double cut(double x, std::int64_t place) {
    const std::int64_t bits =
        std::clamp<std::int64_t>(place - exponent(x) + 52, 0, 53);  // 52 are fractions
    const double rest = std::bit_cast<double>(std::bit_cast<std::uint64_t>(x) >> bits << bits);
    return bits > 52 ? 0 : rest;
  }
};

/// Calls f with the Plain of `way`.
template <class F>
auto with_plain(Dtype dtype, PlainWay way, F f) {
  if (way.fused) return way.descending ? f(Plain<true, true>{dtype}) : f(Plain<false, true>{dtype});
  return way.descending ? f(Plain<true, false>{dtype}) : f(Plain<false, false>{dtype});
}

template <class T>
T scale_of(const Problem& p) {
  return p.scale != 0 ? static_cast<T>(p.scale) : 1 / std::sqrt(static_cast<T>(p.d));
}

/// Where the key/value head of query head `bh`, of all batch entries, begins in K and V.
std::int64_t key_value_of(const Problem& p, std::int64_t bh) {
  return (bh / p.q_heads * p.kv_heads + p.kv_head(bh % p.q_heads)) * p.Nk * p.d;
}

/// The columns [heads, d, N] of a tensor [heads, N, d].
template <class T>
std::vector<T> columns_of(const std::vector<float>& X, std::int64_t N, std::int64_t d) {
  std::vector<T> columns(X.size());
  for (std::size_t head = 0; head < X.size(); head += N * d) {
    for (std::int64_t j = 0; j < N; ++j) {
      for (std::int64_t c = 0; c < d; ++c) columns[head + c * N + j] = static_cast<T>(X[head + j * d + c]);
    }
  }
  return columns;
}

/// x[j] += a . B_j, for as many rows of B as x has elements. Each is added up in the order of `way`; many
/// are side by side, which processors do at once.
/// @param a        [d]
/// @param columns  of B, [d, N]
template <class Way, class T>
void add_dots(const T* a, const T* columns, std::int64_t N, std::int64_t d, Way way, std::vector<T>& x) {
  if constexpr (std::is_same_v<Way, TensorCores>) {
    way.add_dots(a, columns, N, d, x);
  } else {
    for (std::int64_t k = 0; k < d; ++k) {
      const std::int64_t c = way.index(k, d);
      for (std::size_t j = 0; j < x.size(); ++j) x[j] = way.add(x[j], a[c], columns[c * N + j]);
    }
  }
}

/// sum += factor * x, both of d elements.
template <class Way, class T>
void add_multiple(T* __restrict sum, T factor, const float* __restrict x, std::int64_t d, Way way) {
  for (std::int64_t c = 0; c < d; ++c) sum[c] = way.add(sum[c], factor, static_cast<T>(x[c]));
}

/// A row of a query head, and the keys that it sees.
struct SeeingRow {
  std::int64_t h;               ///< The head, of its batch entry.
  std::int64_t head;            ///< The same of all batch entries of the larger problem, if there is one.
  std::int64_t i;               ///< The row, of the larger problem likewise.
  Interval<std::int64_t> keys;  ///< What it sees.
  std::int64_t bias = 0;  ///< Where what is added to its scores begins, from the first of these keys on.

  /// Row `row` of all rows of all query heads.
  SeeingRow(const Inputs& inputs, std::int64_t row)
      : h(row / inputs.problem.Nq % inputs.problem.q_heads),
        head(inputs.part ? inputs.part->head : row / inputs.problem.Nq),
        i(row % inputs.problem.Nq + (inputs.part ? inputs.part->first : 0)),
        keys(inputs.whole().keys(i)) {
    const Problem& p = inputs.problem;
    if (p.has_bias()) bias = p.bias_row(row / p.Nq / p.q_heads, h, row % p.Nq) * p.Nk + keys.first;
  }
};

/// The scores S[j] of the keys that a row sees.
/// @param q  [d]
/// @param K  its columns, [d, Nk], from the first of these keys on
template <class Way, class T = typename Way::Type>
void score_row(const Inputs& inputs, const SeeingRow& row, const float* q, const T* K, Way way,
               std::vector<T>& S) {
  const Problem& p = inputs.problem;
  thread_local std::vector<T> scaled;
  scaled.assign(q, q + p.d);
  if constexpr (Way::scales_q) {
    for (T& x : scaled) x *= scale_of<T>(p);
  }
  S.assign(row.keys.size(), T(0));
  if (Way::begins_with_bias && p.has_bias()) {
    for (std::size_t j = 0; j < S.size(); ++j) S[j] = inputs.bias[row.bias + j] / scale_of<T>(p);
  }
  add_dots(scaled.data(), K, p.Nk, p.d, way, S);
  if constexpr (!Way::scales_q) {
    const T scale = scale_of<T>(p);
    for (T& s : S) s *= scale;
  }
  if (!Way::begins_with_bias && p.has_bias()) {
    for (std::size_t j = 0; j < S.size(); ++j) S[j] += inputs.bias[row.bias + j];
  }
  for (T& s : S) s = p.score(s);
  for (std::size_t j = 0; j < S.size(); ++j)
    S[j] -= inputs.alibi(row.h, row.i, row.keys.first + static_cast<std::int64_t>(j));
  if (!inputs.whole().block_map.given()) return;
  for (std::size_t j = 0; j < S.size(); ++j) {
    const std::int64_t key = row.keys.first + static_cast<std::int64_t>(j);
    if (!inputs.whole().is_in_live_block(row.head, row.i, key)) S[j] = -std::numeric_limits<T>::infinity();
  }
}

/// Whether a row with this L has seen no key, or one with this score is hidden from its row.
template <class T>
bool hides_all(T L) {
  return L == -std::numeric_limits<T>::infinity();
}

/// The derivative of a row's score for a key, by what it was before softcap and ALiBi.
template <class T>
T slope_of(const Inputs& inputs, const SeeingRow& row, std::int64_t j, T s) {
  if (hides_all(s)) return 0;
  return inputs.problem.slope(s + static_cast<T>(inputs.alibi(row.h, row.i, row.keys.first + j)));
}

/// What dropout makes of each P, or dP, of a row; nothing without it.
template <class T>
void drop(const Inputs& inputs, const SeeingRow& row, std::vector<T>& P) {
  if (inputs.problem.dropout.p == 0) return;
  for (std::size_t j = 0; j < P.size(); ++j)
    P[j] *= inputs.whole().dropout_factor(row.head, row.i, row.keys.first + static_cast<std::int64_t>(j));
}

/// The larger of a maximum so far and a score, or NaN where the score is: a NaN hides no key.
template <class T>
T larger(T m, T s) {
  return m < s || std::isnan(s) ? s : m;
}

/// P = softmax(S), with the score `sink` beside S in the sum; returns L. Where all scores are -inf, no key
/// is seen.
template <class Way, class T = typename Way::Type>
T softmax_row(const std::vector<T>& S, float sink, Way way, std::vector<T>& P) {
  P.resize(S.size());
  T m = sink;
  for (T s : S) m = larger(m, s);
  if (hides_all(m)) {
    std::ranges::fill(P, T(0));
    return m;
  }
  for (std::size_t j = 0; j < S.size(); ++j) P[j] = std::exp(S[j] - m);
  T l = sink == -std::numeric_limits<float>::infinity() ? T(0) : std::exp(sink - m);
  for (std::size_t j = 0; j < S.size(); ++j) l += P[way.index(j, S.size())];
  for (T& x : P) x = way.round(x / l);
  return m + std::log(l);  // no key: m = -inf and l = 0 give -inf
}

template <class Way, class T = typename Way::Type>
Result<T> forward(const Inputs& inputs, Way way) {
  const Problem& p = inputs.problem;
  const std::int64_t heads = p.batch * p.q_heads;
  Result<T> result{std::vector<T>(inputs.Q.size()), std::vector<T>(heads * p.Nq)};
  const std::vector<T> K = columns_of<T>(inputs.K, p.Nk, p.d);
#pragma omp parallel if (heads * p.Nq * p.Nk > 4096)
  {
    std::vector<T> S, P, o(p.d);
#pragma omp for collapse(2) schedule(dynamic, 16)
    for (std::int64_t bh = 0; bh < heads; ++bh) {
      for (std::int64_t i = 0; i < p.Nq; ++i) {
        const SeeingRow row(inputs, bh * p.Nq + i);
        const std::int64_t visible = row.keys.size(), head = key_value_of(p, bh),
                           kv = head + row.keys.first * p.d;
        score_row(inputs, row, &inputs.Q[(bh * p.Nq + i) * p.d], K.data() + head + row.keys.first, way, S);
        result.L[bh * p.Nq + i] = softmax_row(S, inputs.sink(row.h), way, P);
        drop(inputs, row, P);
        std::fill(o.begin(), o.end(), T(0));
        for (std::int64_t k = 0; k < visible; ++k) {
          const std::int64_t j = way.index(k, visible);
          add_multiple(o.data(), P[j], &inputs.V[kv + j * p.d], p.d, way);
        }
        for (std::int64_t c = 0; c < p.d; ++c) result.O[(bh * p.Nq + i) * p.d + c] = way.round(o[c]);
      }
    }
  }
  return result;
}

/// Leaves of a row what its dropped key has, with the sign changed, and 0 of the others.
template <class T>
void leave_dropped(Dropped which, std::vector<T>& P, std::vector<T>& dS) {
  for (std::vector<T>* terms : {&P, &dS}) {
    if (terms->empty()) continue;
    const auto key = which == Dropped::first ? terms->begin()
                     : which == Dropped::last
                         ? terms->end() - 1
                         : std::ranges::max_element(*terms, {}, [](T x) { return std::abs(x); });
    const T term = *key;
    std::ranges::fill(*terms, T(0));
    *key = -term;
  }
}

/// @param saved    O and L, from which P and D are recomputed; null: from the definition
/// @param without  not null: only what each row's dropped key would add, with the sign changed
template <class Way, class T = typename Way::Type>
Gradients<T> backward(const Inputs& inputs, const Result<float>* saved, const std::vector<float>& dO,
                      Way way, const Dropped* without = nullptr) {
  const Problem& p = inputs.problem;
  const std::int64_t group = p.q_heads / p.kv_heads;
  const T scale = scale_of<T>(p);
  Gradients<T> result{std::vector<T>(inputs.Q.size()), std::vector<T>(inputs.K.size()),
                      std::vector<T>(inputs.V.size()), std::vector<T>(inputs.sinks.size()),
                      std::vector<T>(inputs.bias.size())};
  std::vector<T> sink_terms(inputs.sinks.empty() ? 0 : p.batch * p.q_heads * p.Nq);  // of each row
  const std::vector<T> K_columns = columns_of<T>(inputs.K, p.Nk, p.d),
                       V_columns = columns_of<T>(inputs.V, p.Nk, p.d);
  // One key/value head at a time: the query heads of its group add into the same dK and dV. Where heads
  // share a bias, all add into the same dbias, in their order.
  const bool share_dbias = p.has_bias() && p.bias_batch * p.bias_heads < p.batch * p.q_heads;
#pragma omp parallel for if (!share_dbias)
  for (std::int64_t g = 0; g < p.batch * p.kv_heads; ++g) {
    std::vector<T> S, P, dP, dO_row;
    for (std::int64_t k = 0; k < group * p.Nq; ++k) {
      const std::int64_t r = way.index(k, group * p.Nq);
      const std::int64_t row = g * group * p.Nq + r;
      const float* q = &inputs.Q[row * p.d];  // [d]
      const float* dO_i = &dO[row * p.d];     // [d]
      T* dq = &result.dQ[row * p.d];          // [d]
      const SeeingRow seeing(inputs, row);
      const auto& keys = seeing.keys;
      const std::int64_t visible = keys.size(), head = g * p.Nk * p.d, kv = head + keys.first * p.d;
      const float* K = inputs.K.data() + kv;  // [visible, d]
      T* dK = result.dK.data() + kv;          // [visible, d]
      T* dV = result.dV.data() + kv;          // [visible, d]
      score_row(inputs, seeing, q, K_columns.data() + head + keys.first, way, S);
      dO_row.assign(dO_i, dO_i + p.d);
      T D = 0, L = 0;
      const auto P_of = [&](std::int64_t j) { return hides_all(L) ? T(0) : std::exp(S[j] - L); };
      if (saved != nullptr) {
        // Where P is 1, D equals dP. A stage may add up the two in different orders, so some Ways do: D is
        // always added up from the first term on.
        for (std::int64_t c = 0; c < p.d; ++c)
          D = way.add(D, static_cast<T>(dO_i[c]), static_cast<T>(saved->O[row * p.d + c]));
        P.resize(visible);
        L = static_cast<T>(saved->L[row]);
        for (std::int64_t j = 0; j < visible; ++j) P[j] = way.round(P_of(j));
      }
      // What dropout multiplies dP with stands between its sum and -D.
      const bool from_D = saved != nullptr && Way::begins_with_D && p.dropout.p == 0;
      dP.assign(visible, from_D ? -D : T(0));
      add_dots(dO_row.data(), V_columns.data() + head + keys.first, p.Nk, p.d, way, dP);
      drop(inputs, seeing, dP);
      if (saved == nullptr) {
        L = softmax_row(S, inputs.sink(seeing.h), way, P);
        for (std::int64_t j = 0; j < visible; ++j) D += P[j] * dP[j];
      }
      if (!from_D) {
        for (T& x : dP) x -= D;
      }
      std::vector<T>& dS = dP;
      for (std::int64_t j = 0; j < visible; ++j) {
        const T slope = slope_of(inputs, seeing, j, S[j]);
        // No operand of a product: neither dS nor the P in it is rounded.
        if (p.has_bias() && without == nullptr) result.dbias[seeing.bias + j] += P_of(j) * dP[j] * slope;
        dS[j] = way.round(P[j] * dP[j] * slope);
      }
      drop(inputs, seeing, P);                                               // as dV has it
      if (inputs.sink(seeing.h) != -std::numeric_limits<float>::infinity())  // a key with V = 0, dP = 0
        sink_terms[row] = without != nullptr ? T(0) : -std::exp(inputs.sink(seeing.h) - L) * D;
      if (without != nullptr) leave_dropped(*without, P, dS);
      for (std::int64_t j = 0; j < visible; ++j) {
        if (without != nullptr && P[j] == 0 && dS[j] == 0) continue;
        if (without != nullptr && p.has_bias()) result.dbias[seeing.bias + j] += dS[j];
        add_multiple(dV + j * p.d, P[j], dO_i, p.d, way);
        add_multiple(dK + j * p.d, scale * dS[j], q, p.d, way);
        add_multiple(dq, scale * dS[j], K + j * p.d, p.d, way);
      }
    }
  }
  for (auto* gradient : {&result.dQ, &result.dK, &result.dV}) {
    for (T& x : *gradient) x = way.round(x);
  }
  for (std::size_t k = 0; k < sink_terms.size(); ++k) {
    const std::int64_t row = way.index(static_cast<std::int64_t>(k), std::ssize(sink_terms));
    result.dsinks[row / p.Nq % p.q_heads] += sink_terms[row];
  }
  return result;
}

}  // namespace

Result<double> oracle_forward(const Inputs& inputs) {
  return forward(inputs, Exact{});
}

Gradients<double> oracle_backward(const Inputs& inputs, const std::vector<float>& dO) {
  return backward(inputs, nullptr, dO, Exact{});
}

Gradients<double> oracle_backward_from(const Inputs& inputs, const Result<float>& saved,
                                       const std::vector<float>& dO) {
  return backward(inputs, &saved, dO, Exact{});
}

std::vector<double> change_without_key(const Inputs& inputs, const Result<double>& oracle, Dropped which) {
  const Problem& p = inputs.problem;
  const std::int64_t rows = p.batch * p.q_heads * p.Nq;
  std::vector<double> change(inputs.Q.size());
  const std::vector<double> K = columns_of<double>(inputs.K, p.Nk, p.d);
  std::vector<double> S, O_rest(p.d);
#pragma omp parallel for schedule(dynamic, 16) firstprivate(S, O_rest) if (rows * p.Nk > 4096)
  for (std::int64_t row = 0; row < rows; ++row) {
    const SeeingRow seeing(inputs, row);
    const auto& keys = seeing.keys;
    const std::int64_t visible = keys.size();
    if (visible == 0 || hides_all(oracle.L[row])) continue;
    const float* q = &inputs.Q[row * p.d];  // [d]
    const std::int64_t head = key_value_of(p, row / p.Nq), kv = head + keys.first * p.d;
    const float* V = &inputs.V[kv];  // [visible, d]
    std::int64_t key = which == Dropped::first ? 0 : visible - 1;
    const auto all_scores = [&] { score_row(inputs, seeing, q, K.data() + head + keys.first, Exact{}, S); };
    double s = 0;
    if (which == Dropped::heaviest) {
      all_scores();
      key = std::ranges::max_element(S) - S.begin();
      s = S[key];
    } else {
      for (std::int64_t c = 0; c < p.d; ++c) s += double{q[c]} * inputs.K[kv + key * p.d + c];
      s *= scale_of<double>(p);
      if (p.has_bias()) s += inputs.bias[seeing.bias + key];
      s = p.score(s) - inputs.alibi(seeing.h, seeing.i, keys.first + key);
      if (!inputs.whole().is_in_live_block(seeing.head, seeing.i, keys.first + key)) continue;
    }
    // O = P V_key + (1 - P) O_rest, and only O_rest is left. Where P is nearly 1, it drowns in O.
    const double P = std::exp(s - oracle.L[row]);
    // With dropout it is a term of the sum, as it is in O.
    const auto stays = [&](std::int64_t j) {
      return double{inputs.whole().dropout_factor(seeing.head, seeing.i, keys.first + j)};
    };
    std::ranges::fill(O_rest, 0.0);
    if (P < 0.5) {
      const double factor = P * stays(key);
      for (std::int64_t c = 0; c < p.d; ++c)
        O_rest[c] = (oracle.O[row * p.d + c] - factor * V[key * p.d + c]) / (1 - P);
    } else if (visible > 1) {
      if (which != Dropped::heaviest) all_scores();
      S[key] = -std::numeric_limits<double>::infinity();
      const double sink = inputs.sink(seeing.h), m = std::max(*std::ranges::max_element(S), sink);
      double l = std::exp(sink - m);
      for (std::int64_t j = 0; j < visible; ++j) {
        const double weight = std::exp(S[j] - m), factor = weight * stays(j);
        l += weight;
        for (std::int64_t c = 0; c < p.d; ++c) O_rest[c] += factor * V[j * p.d + c];
      }
      for (double& x : O_rest) x /= l;
      if (hides_all(m)) std::ranges::fill(O_rest, 0.0);  // all other keys are hidden
    }
    const double factor = stays(key);
    for (std::int64_t c = 0; c < p.d; ++c)
      change[row * p.d + c] = P * (O_rest[c] - factor * V[key * p.d + c]);
  }
  return change;
}

Gradients<double> change_without_pair(const Inputs& inputs, const Result<float>* saved,
                                      const std::vector<float>& dO, Dropped which) {
  return backward(inputs, saved, dO, Exact{}, &which);
}

Result<float> plain_forward(const Inputs& inputs, Dtype dtype, PlainWay way) {
  return with_plain(dtype, way, [&](auto plain) { return forward(inputs, plain); });
}

Result<float> saved_forward(const Inputs& inputs) {
  return plain_forward(inputs, Dtype::fp32);
}

Statistics plain_statistics(const Inputs& inputs, bool with_P) {
  const Problem& p = inputs.problem;
  const Plain<false, false> way{Dtype::fp32};
  const std::int64_t rows = p.batch * p.q_heads * p.Nq;
  Statistics all{std::vector<float>(rows), std::vector<float>(rows), {}};
  if (with_P) all.P.assign(rows * p.Nk, 0);
  const std::vector<float> K = columns_of<float>(inputs.K, p.Nk, p.d);
  std::vector<float> S, P;
#pragma omp parallel for schedule(dynamic, 16) firstprivate(S, P) if (rows * p.Nk > 4096)
  for (std::int64_t row = 0; row < rows; ++row) {
    const SeeingRow seeing(inputs, row);
    const auto& keys = seeing.keys;
    score_row(inputs, seeing, &inputs.Q[row * p.d], K.data() + key_value_of(p, row / p.Nq) + keys.first,
              way, S);
    float m = -std::numeric_limits<float>::infinity(), l = 0;
    for (float s : S) m = larger(m, s);
    for (float s : S) l += std::exp(s - m);
    all.m[row] = m;
    all.l[row] = l;
    if (!with_P) continue;
    softmax_row(S, inputs.sink(seeing.h), way, P);
    std::ranges::copy(P, all.P.begin() + row * p.Nk + keys.first);
  }
  return all;
}

Result<float> tensor_core_forward(const Inputs& inputs, Dtype dtype) {
  return forward(inputs, TensorCores{{dtype}});
}

Gradients<float> plain_backward(const Inputs& inputs, const Result<float>& saved,
                                const std::vector<float>& dO, Dtype dtype, PlainWay way) {
  return with_plain(dtype, way, [&](auto plain) { return backward(inputs, &saved, dO, plain); });
}

Gradients<float> tensor_core_backward(const Inputs& inputs, const Result<float>& saved,
                                      const std::vector<float>& dO, Dtype dtype) {
  return backward(inputs, &saved, dO, TensorCores{{dtype}});
}

}  // namespace flashladder
