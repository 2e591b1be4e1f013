// The checks are tested with what they must reject: outputs as wrong kernels make them, at N from 16 to
// 8192, in fp32 and rounded to bf16. Each must be caught by at least one family of inputs; the right result
// must pass on all. L is left right, so that the check of O alone has to see the mistake. Prints which
// family caught what, and writes the table to the file that FLASHLADDER_TABLE names.
#include <cmath>

#include "common/check/check.hpp"
#include "wrong_table.hpp"

namespace {

using namespace flashladder;

/// Attention in fp32, one key at a time, with the places where kernels go wrong as parameters.
struct Kernel {
  /// The keys that row i takes: first ... last - 1.
  std::int64_t skip_first = 0;
  std::int64_t skip_last = 0;
  std::int64_t mask_shift = 0;  ///< Keys that a causal row sees too many (or too few) of.
  bool swap_heads = false;
  bool gqa_by_remainder = false;  ///< h % kv_heads instead of h / (q_heads / kv_heads)
  enum { right, missing, inverse } rescale = right;

  std::vector<float> operator()(const Inputs& inputs) const {
    const Problem& p = inputs.problem;
    std::vector<float> O(inputs.Q.size());
    const float scale = p.softmax_scale();
#pragma omp parallel for schedule(dynamic, 16)
    for (std::int64_t row = 0; row < p.batch * p.q_heads * p.Nq; ++row) {
      const std::int64_t i = row % p.Nq, b = row / p.Nq / p.q_heads;
      std::int64_t h = row / p.Nq % p.q_heads;
      if (swap_heads) h ^= 1;
      const std::int64_t g = b * p.kv_heads + (gqa_by_remainder ? h % p.kv_heads : p.kv_head(h));
      const float* q = &inputs.Q[((b * p.q_heads + h) * p.Nq + i) * p.d];  // [d]
      const float* K = &inputs.K[g * p.Nk * p.d];                          // [Nk, d]
      const float* V = &inputs.V[g * p.Nk * p.d];                          // [Nk, d]
      float* o = &O[row * p.d];                                            // [d]
      const std::int64_t visible = std::clamp<std::int64_t>(p.visible_keys(i) + mask_shift, 0, p.Nk);
      float m = -INFINITY, l = 0;
      for (std::int64_t j = skip_first; j < visible - skip_last; ++j) {
        float s = 0;
        for (std::int64_t c = 0; c < p.d; ++c) s += q[c] * K[j * p.d + c];
        s *= scale;
        const float m_new = std::max(m, s);
        float factor = m == m_new ? 1 : std::exp(m - m_new);
        const float P = std::exp(s - m_new);
        l = factor * l + P;
        if (rescale == missing && l != P) factor = 1;
        if (rescale == inverse && factor != 0) factor = 1 / factor;
        for (std::int64_t c = 0; c < p.d; ++c) o[c] = factor * o[c] + P * V[j * p.d + c];
        m = m_new;
      }
      for (std::int64_t c = 0; c < p.d; ++c) o[c] = l > 0 ? o[c] / l : 0;
    }
    return O;
  }
};

std::vector<float> scaled(std::vector<float> values, float factor) {
  for (float& x : values) x *= factor;
  return values;
}

std::vector<float> with_one(std::vector<float> values, float x) {
  values[values.size() / 2] = x;
  return values;
}

struct Mistake {
  std::string name;
  std::vector<float> (*output)(const Inputs&);
  Tried tried = {};
};

const Mistake mistakes[] = {
    {"all NaN", [](const Inputs& in) { return std::vector<float>(in.Q.size(), NAN); }},
    {"all Inf", [](const Inputs& in) { return std::vector<float>(in.Q.size(), INFINITY); }},
    {"zeros", [](const Inputs& in) { return std::vector<float>(in.Q.size(), 0.0f); }},
    {"x 1.05", [](const Inputs& in) { return scaled(Kernel{}(in), 1.05f); }},
    {"last key dropped", [](const Inputs& in) { return Kernel{.skip_last = 1}(in); }},
    {"first key dropped", [](const Inputs& in) { return Kernel{.skip_first = 1}(in); }},
    {"mask one key late",
     [](const Inputs& in) { return Kernel{.mask_shift = 1}(in); },
     {.causal_only = true}},
    {"mask one key early",
     [](const Inputs& in) { return Kernel{.mask_shift = -1}(in); },
     {.causal_only = true}},
    {"heads swapped", [](const Inputs& in) { return Kernel{.swap_heads = true}(in); }},
    {"GQA index off", [](const Inputs& in) { return Kernel{.gqa_by_remainder = true}(in); }},
    {"rescale missing", [](const Inputs& in) { return Kernel{.rescale = Kernel::missing}(in); }},
    {"published inverse", [](const Inputs& in) { return Kernel{.rescale = Kernel::inverse}(in); }},
    {"one element unwritten", [](const Inputs& in) { return with_one(Kernel{}(in), NAN); }},
    {"one element zero", [](const Inputs& in) { return with_one(Kernel{}(in), 0); }},
    {"last 8 keys dropped", [](const Inputs& in) { return Kernel{.skip_last = 8}(in); }},
    {"last 128 keys dropped",
     [](const Inputs& in) { return Kernel{.skip_last = 128}(in); },
     {.least_N = 256}},
};

constexpr std::int64_t lengths[] = {16, 64, 256, 1024, 2048, 4096, 8192};

TEST_CASE("every wrong output is rejected by the shipped inputs and tolerances", "[wrong]") {
  require_all_caught("wrong output", mistakes, lengths, [](const Inputs& inputs) {
    const Dtype dtype = inputs.problem.dtype;
    return [&inputs, dtype, expected = expect_forward(inputs, dtype)](const Mistake* mistake) {
      Result<float> result{mistake != nullptr ? mistake->output(inputs) : Kernel{}(inputs),
                           std::vector<float>(expected.oracle.L.begin(), expected.oracle.L.end())};
      for (float& x : result.O) x = round_to(dtype, x);
      return check_forward(result, expected);
    };
  });
}

TEST_CASE("what the judge can tell on the shipped inputs", "[wrong]") {
  Sensitivity sensitivity(lengths);
  for (std::int64_t N : lengths) {
    for (Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16}) {
      const Problem p = last_rows(N, false, dtype);
      for (const Family& family : input_families()) {
        INFO(family.name << ", " << to_string(p));
        sensitivity.add(family, p, expect_forward(make_inputs(family, p, 100 + N), dtype).O);
      }
    }
  }
  write_table("Wrong outputs that the judge can tell", sensitivity.table());
}

}  // namespace
