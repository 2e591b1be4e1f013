// The partner of wrong_outputs_test.cpp for the backward pass: gradients as wrong kernels make them, at N
// from 16 to 2048, in fp32 and rounded to bf16. Each must be caught by at least one family of inputs; the
// right ones must pass on all. O and L are given, and right. Prints which family caught what, and writes
// the table to the file that FLASHLADDER_TABLE names.
#include <algorithm>
#include <cmath>
#include <functional>

#include "common/check/check.hpp"
#include "wrong_table.hpp"

namespace {

using namespace flashladder;

/// What a backward pass is given, and the right result, in fp32.
struct Given {
  const Inputs& inputs;
  Result<float> saved;
  std::vector<float> dO;
  Gradients<float> right = {};

  explicit Given(const Inputs& of);
};

/// The backward pass in fp32, from P = exp(S - L) and D = rowsum(dO * O), with the places where kernels go
/// wrong as parameters.
struct Kernel {
  static constexpr std::int64_t tile = 8;  ///< Of rows and of keys.

  bool D_missing = false;
  bool stale_D = false;           ///< That of the row before.
  bool stale_L = false;           ///< Likewise.
  std::int64_t mask_shift = 0;    ///< Keys that a causal row sees too many (or too few) of.
  std::int64_t skip_last = 0;     ///< Of the keys that each row sees.
  bool lost_in_dQ = false;        ///< What one tile of keys adds to one tile of rows.
  bool lost_in_dK = false;        ///< What one tile of rows adds to all keys.
  bool lost_in_dV = false;        ///< Likewise.
  bool gqa_by_remainder = false;  ///< h % kv_heads instead of h / (q_heads / kv_heads)
  enum { all, first, last } heads_of_group = all;

  Gradients<float> operator()(const Given& given) const {
    const Inputs& in = given.inputs;
    const Problem& p = in.problem;
    Gradients<float> result{std::vector<float>(in.Q.size()), std::vector<float>(in.K.size()),
                            std::vector<float>(in.V.size())};
    const std::int64_t group = p.q_heads / p.kv_heads;
    // One key/value head at a time: the query heads of its group add into the same dK and dV.
#pragma omp parallel for
    for (std::int64_t g = 0; g < p.kv_heads; ++g) {
      for (std::int64_t h = 0; h < p.q_heads; ++h) {
        if ((gqa_by_remainder ? h % p.kv_heads : p.kv_head(h)) != g) continue;
        const bool adds = heads_of_group == all || h % group == (heads_of_group == first ? 0 : group - 1);
        for (std::int64_t i = 0; i < p.Nq; ++i) add_row(given, result, h, g, i, adds);
      }
    }
    return result;
  }

  /// Row i of query head h, with key/value head g; `adds`: to dK and dV too.
  void add_row(const Given& given, Gradients<float>& result, std::int64_t h, std::int64_t g, std::int64_t i,
               bool adds) const {
    const Problem& p = given.inputs.problem;
    const float scale = p.softmax_scale();
    const std::int64_t row = h * p.Nq + i, before = i > 0 ? row - 1 : row;
    const float* q = &given.inputs.Q[row * p.d];       // [d]
    const float* dO = &given.dO[row * p.d];            // [d]
    const float* K = &given.inputs.K[g * p.Nk * p.d];  // [Nk, d]
    const float* V = &given.inputs.V[g * p.Nk * p.d];  // [Nk, d]
    float* dQ = &result.dQ[row * p.d];                 // [d]
    float* dK = &result.dK[g * p.Nk * p.d];            // [Nk, d]
    float* dV = &result.dV[g * p.Nk * p.d];            // [Nk, d]
    const auto dot = [&](const float* a, const float* b) {
      float sum = 0;
      for (std::int64_t c = 0; c < p.d; ++c) sum += a[c] * b[c];
      return sum;
    };
    const float L = given.saved.L[stale_L ? before : row];
    const std::int64_t D_row = stale_D ? before : row;
    const float D = D_missing ? 0 : dot(&given.dO[D_row * p.d], &given.saved.O[D_row * p.d]);
    const std::int64_t visible = std::min(p.visible_keys(i) + mask_shift, p.Nk) - skip_last;
    const bool in_tile = h == 1 && i / tile == 1;  // the second tile of rows of a head
    for (std::int64_t j = 0; j < visible; ++j) {
      const float P = std::exp(scale * dot(q, K + j * p.d) - L);
      const float dS = P * (dot(dO, V + j * p.d) - D);
      const bool in_dQ = !(lost_in_dQ && in_tile && j / tile == p.Nk / tile / 2);
      const bool in_dK = adds && !(lost_in_dK && in_tile), in_dV = adds && !(lost_in_dV && in_tile);
      for (std::int64_t c = 0; c < p.d; ++c) {
        if (in_dQ) dQ[c] += scale * dS * K[j * p.d + c];
        if (in_dK) dK[j * p.d + c] += scale * dS * q[c];
        if (in_dV) dV[j * p.d + c] += P * dO[c];
      }
    }
  }
};

Given::Given(const Inputs& of)
    : inputs(of), saved(saved_forward(of)), dO(random_output_gradient(of.problem, 3)) {
  for (float& x : saved.O) x = round_to(of.problem.dtype, x);
  right = Kernel{}(*this);
}

using Values = std::vector<float>;
using Tensor = Values Gradients<float>::*;

struct Mistake {
  std::string name;
  std::function<Gradients<float>(const Given&)> output;
  Tried tried = {};
};

/// The right result with a change to one of the gradients.
Mistake in_one(const std::string& what, Tensor tensor, void (*change)(Values&, const Problem&)) {
  const char* name = tensor == &Gradients<float>::dQ ? "dQ" : tensor == &Gradients<float>::dK ? "dK" : "dV";
  return {what + " in " + name, [=](const Given& given) {
            Gradients<float> result = given.right;
            change(result.*tensor, given.inputs.problem);
            return result;
          }};
}

Mistake of(const std::string& name, Kernel kernel, Tried tried = {}) {
  return {name, kernel, tried};
}

void unscale(Values& x, const Problem& p) {
  for (float& one : x) one /= p.softmax_scale();
}

/// Of `heads` heads two and two change places.
void swap_heads(Values& x, std::int64_t heads) {
  const std::int64_t size = std::ssize(x) / heads;
  for (auto first = x.begin(); first != x.end(); first += 2 * size)
    std::swap_ranges(first, first + size, first + size);
}

std::vector<Mistake> make_mistakes() {
  constexpr Tensor dQ = &Gradients<float>::dQ, dK = &Gradients<float>::dK, dV = &Gradients<float>::dV;
  std::vector<Mistake> all;
  const auto in_each = [&](const std::string& what, void (*change)(Values&, const Problem&)) {
    for (Tensor tensor : {dQ, dK, dV}) all.push_back(in_one(what, tensor, change));
  };
  in_each("all NaN", [](Values& x, const Problem&) { std::ranges::fill(x, NAN); });
  in_each("all Inf", [](Values& x, const Problem&) { std::ranges::fill(x, INFINITY); });
  in_each("zeros", [](Values& x, const Problem&) { std::ranges::fill(x, 0.0f); });
  in_each("x 1.05", [](Values& x, const Problem&) {
    for (float& one : x) one *= 1.05f;
  });
  in_each("one element unwritten", [](Values& x, const Problem&) { x[x.size() / 2] = NAN; });
  // Others may be next to 0 anyway.
  in_each("largest element zero", [](Values& x, const Problem&) {
    *std::ranges::max_element(x, {}, [](float one) { return std::abs(one); }) = 0;
  });
  const auto swap_kv_heads = [](Values& x, const Problem& p) { swap_heads(x, p.kv_heads); };
  const Mistake others[] = {
      of("D missing", {.D_missing = true}),
      of("D of the row before", {.stale_D = true}),
      of("L of the row before", {.stale_L = true}),
      in_one("scale forgotten", dQ, unscale),
      in_one("scale forgotten", dK, unscale),
      {"dK and dV swapped",
       [](const Given& given) {
         return Gradients<float>{given.right.dQ, given.right.dV, given.right.dK};
       }},
      of("mask one key late", {.mask_shift = 1}, {.causal_only = true}),
      of("mask one key early", {.mask_shift = -1}, {.causal_only = true}),
      of("last key dropped", {.skip_last = 1}),
      {"last key dropped in dQ alone",
       [](const Given& given) {
         return Gradients<float>{Kernel{.skip_last = 1}(given).dQ, given.right.dK, given.right.dV};
       }},
      in_one("heads swapped", dQ, [](Values& x, const Problem& p) { swap_heads(x, p.q_heads); }),
      in_one("heads swapped", dK, swap_kv_heads),
      in_one("heads swapped", dV, swap_kv_heads),
      of("GQA index off", {.gqa_by_remainder = true}),
      of("first head of the group alone", {.heads_of_group = Kernel::first}),
      of("last head of the group alone", {.heads_of_group = Kernel::last}),
      of("a tile of 8 keys lost in 8 rows of dQ", {.lost_in_dQ = true}),
      of("a tile of 8 rows lost in dK", {.lost_in_dK = true}),
      of("a tile of 8 rows lost in dV", {.lost_in_dV = true}),
  };
  all.insert(all.end(), std::begin(others), std::end(others));
  return all;
}

constexpr std::int64_t lengths[] = {16, 64, 256, 1024, 2048};

TEST_CASE("every wrong gradient is rejected by the shipped inputs and tolerances", "[wrong]") {
  require_all_caught("wrong gradient", make_mistakes(), lengths, [](const Inputs& inputs) {
    const Dtype dtype = inputs.problem.dtype;
    const Given given(inputs);
    return [given, dtype,
            expected = expect_backward(inputs, given.saved, given.dO, dtype)](const Mistake* mistake) {
      Gradients<float> result = mistake != nullptr ? mistake->output(given) : given.right;
      for (auto* gradient : {&result.dQ, &result.dK, &result.dV}) {
        for (float& x : *gradient) x = round_to(dtype, x);
      }
      return check_backward(result, expected);
    };
  });
}

TEST_CASE("what the judge of gradients can tell on the shipped inputs", "[wrong]") {
  Sensitivity sensitivity(lengths);
  for (std::int64_t N : lengths) {
    for (Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16}) {
      const Problem p = last_rows(N, false, dtype);
      for (const Family& family : input_families()) {
        INFO(family.name << ", " << to_string(p));
        const Inputs inputs = make_inputs(family, p, 100 + N);
        const ExpectedGradients expected =
            expect_backward(inputs, saved_forward(inputs), random_output_gradient(p, 3), dtype);
        for (const Bound* bound : {&expected.dQ, &expected.dK, &expected.dV})
          sensitivity.add(family, p, *bound);
      }
    }
  }
  write_table("Wrong gradients that the judge can tell", sensitivity.table());
}

}  // namespace
