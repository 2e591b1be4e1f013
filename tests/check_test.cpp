// The comparator itself: it fails closed. That the shipped inputs and tolerances reject wrong kernels is
// the subject of wrong_outputs_test.cpp and wrong_gradients_test.cpp; here are the rules one by one.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "cases.hpp"
#include "catch.hpp"
#include "common/check/check.hpp"
#include "common/check/inputs.hpp"
#include "common/check/run.hpp"
#include "common/check/sample.hpp"

namespace {

using namespace flashladder;

constexpr float infinity = std::numeric_limits<float>::infinity();

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

/// A small causal problem whose first two rows see no key, its bounds, and a right result.
struct Fixture {
  Inputs inputs;
  Expected expected;
  Result<float> right;

  Fixture() {
    Problem p;
    p.q_heads = p.kv_heads = 2;
    p.Nq = 6;
    p.Nk = 4;
    p.d = 8;
    p.causal = true;
    inputs = random_inputs(p, 7);
    expected = expect_forward(inputs, Dtype::fp32);
    right = plain_forward(inputs, Dtype::fp32);
  }
  std::string why(const Result<float>& result) const {
    const Verdict verdict = check_forward(result, expected);
    CHECK(verdict.passed == verdict.why.empty());
    return verdict.why;
  }
};

TEST_CASE("a verdict starts as failed", "[check]") {
  CHECK_FALSE(Verdict{}.passed);
}

TEST_CASE("a right result passes, each kind of wrong one fails with its reason", "[check]") {
  const Fixture f;
  CHECK(f.why(f.right) == "");
  CHECK(f.right.L[0] == -infinity);
  auto changed = [&](auto change) {
    Result<float> result = f.right;
    change(result);
    return f.why(result);
  };
  using R = Result<float>;
  CHECK(contains(changed([](R& r) { r.O[40] = NAN; }), "O[40] is nan"));
  CHECK(contains(changed([](R& r) { r.O[40] = infinity; }), "O[40] is inf"));
  CHECK(contains(changed([](R& r) { r.O[0] = NAN; }), "O[0] is nan"));
  // NaN must not be hidden by a larger error before or after it.
  CHECK(contains(changed([](R& r) { r.O[3] = 1e9f, r.O[40] = NAN, r.O[41] = 1e9f; }), "O[40] is nan"));
  CHECK(contains(changed([](R& r) { r.O[40] += 0.01f; }), "O[40]"));
  CHECK(contains(changed([](R& r) { r.O.pop_back(); }), "wrong number of elements"));
  CHECK(contains(changed([](R& r) { r.L.pop_back(); }), "wrong number of elements"));
  CHECK(f.expected.L == 1e-5);
  CHECK(contains(changed([](R& r) { r.L[5] += 2e-5f; }), "L[5]"));
  CHECK(contains(changed([](R& r) { r.L[5] -= 2e-5f; }), "L[5]"));
  CHECK(contains(changed([](R& r) { r.L[5] = NAN; }), "L[5] is nan"));
  CHECK(contains(changed([](R& r) { r.L[5] = -infinity; }), "L[5] is -inf"));
  CHECK(contains(changed([](R& r) { r.L[0] = infinity; }), "L[0] is inf"));
  CHECK(contains(changed([](R& r) { r.L[0] = -1e30f; }), "L[0]"));  // a finite "-inf"
  CHECK(contains(changed([](R& r) { r.L[0] = NAN; }), "L[0] is nan"));
  CHECK(contains(changed([](R& r) { r.L[0] = 0; }), "L[0]"));
}

TEST_CASE("many small errors fail where no single one does", "[check]") {
  Problem p;
  p.Nq = p.Nk = 512;
  const Inputs inputs = random_inputs(p, 8);
  const Expected expected = expect_forward(inputs, Dtype::bf16);
  Result<float> result = plain_forward(inputs, Dtype::bf16);
  result.L.assign(expected.oracle.L.begin(), expected.oracle.L.end());
  REQUIRE(check_forward(result, expected).passed);
  for (std::size_t i = 0; i < result.O.size(); ++i) {
    const double sign = i % 2 == 0 ? 1 : -1;
    result.O[i] = static_cast<float>(expected.oracle.O[i] + sign * 0.9 * expected.O.max_abs);
  }
  CHECK(contains(check_forward(result, expected).why, "2-norm"));
}

TEST_CASE("the bounds come from the worse of the plain computations, and NaN in any of them stays",
          "[check]") {
  const std::vector<float> same = {1, 2}, off = {1, 2.5}, broken = {1, NAN};
  const Bound exact = make_bound({1, 2}, {&same}, Dtype::fp32);
  CHECK(exact.norm == 2 * 0x1p-24 * std::sqrt(5.0));
  CHECK(exact.max_abs < 1e-6);
  for (const Bound& coarse :
       {make_bound({1, 2}, {&off, &same}, Dtype::fp32), make_bound({1, 2}, {&same, &off}, Dtype::fp32)}) {
    CHECK(coarse.norm == 1);
    CHECK(coarse.max_abs >= 1);
    CHECK(coarse.max_abs < 1 + 1e-6);
  }
  for (const Bound& bound : {make_bound({1, 2}, {&broken, &same}, Dtype::fp32),
                             make_bound({1, 2}, {&same, &broken}, Dtype::fp32)}) {
    CHECK(std::isnan(bound.max_abs));
    CHECK(std::isnan(bound.norm));
  }
}

TEST_CASE("all plain ways count", "[check]") {
  // The mean of four values, of which the small ones are lost in one order and not in the other.
  Problem p;
  p.Nk = 4;
  p.d = 1;
  const Inputs inputs{p, {0}, {0, 0, 0, 0}, {0x1p26f, -0x1p26f, 1, 8}};
  const auto error = [&](PlainWay way) {
    return std::abs(static_cast<double>(plain_forward(inputs, Dtype::fp32, way).O[0]) - 2.25);
  };
  const double up = error(plain_ways[0]), down = error(plain_ways[1]);
  REQUIRE(up < down);
  const Expected expected = expect_forward(inputs, Dtype::fp32);
  CHECK(expected.O.max_abs >= 2 * down);
  CHECK(expected.O.max_abs < 2 * down + 1e-6);
}

TEST_CASE("where the plain computation overflows nothing can be judged, so nothing passes", "[check]") {
  Problem p;
  p.Nk = 4;
  p.d = 1;
  const float most = std::numeric_limits<float>::max();
  const Inputs inputs{p, {0}, {0, 0, 0, 0}, {most, most, most, most}};
  Expected expected = expect_forward(inputs, Dtype::fp32);
  expected.O.max_abs = expected.O.norm =
      infinity;  // as where the plain sum rounds up past the largest number
  CHECK(contains(check_forward({{0}, {std::log(4.0f)}}, expected).why, "cannot be judged"));
  const Fixture good;
  for (auto change : {+[](Expected& e) { e.O.max_abs = infinity; },
                      +[](Expected& e) { e.O.norm = infinity; }, +[](Expected& e) { e.O.max_abs = NAN; },
                      +[](Expected& e) { e.L = infinity; }, +[](Expected& e) { e.L = NAN; }}) {
    Fixture f;
    change(f.expected);
    CHECK(contains(f.why(f.right), "cannot be judged"));
  }
  CHECK(good.why(good.right).empty());
}

TEST_CASE("a wrong output passes on no input, however wide its bounds are", "[check]") {
  Problem p;
  p.q_heads = p.kv_heads = 2;
  p.Nq = p.Nk = 70;
  p.d = 64;
  int judged = 0;
  for (Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16}) {
    for (float factor : {1e-4f, 1.f, 30.f, 300.f, 6000.f}) {
      p.dtype = dtype;
      INFO("q times " << factor << ", " << to_string(p));
      Inputs inputs = random_inputs(p, 1);
      for (float& x : inputs.Q) x = round_to(dtype, factor * x);
      const Expected expected = expect_forward(inputs, dtype);
      REQUIRE(expected.O.wrongs.size() == 6);
      Result<float> right = plain_forward(inputs, dtype);
      judged += check_forward(right, expected).passed ? 1 : 0;
      for (const Wrong& wrong : expected.O.wrongs) {
        INFO(wrong.what);
        Result<float> result = right;
        for (std::size_t i = 0; i < result.O.size(); ++i) {
          const double change = wrong.change.empty() ? 0 : wrong.change[i];
          result.O[i] = round_to(dtype, static_cast<float>(wrong.factor * expected.oracle.O[i] + change));
        }
        if (wrong.needed || wrong.can_be_told()) CHECK_FALSE(check_forward(result, expected).passed);
      }
    }
  }
  CHECK(judged == 15);
}

TEST_CASE("what would not show a wrong output is blind, and what is wrong anyway fails", "[check]") {
  Fixture f;
  f.expected.O.wrongs[1].plain = 0.3;  // plain computations go a third of the way to 1.05 times O
  const Verdict verdict = check_forward(f.right, f.expected);
  CHECK_FALSE(verdict.passed);
  CHECK(verdict.blind);
  CHECK(verdict.why == "O cannot be judged on this input, because 1.05 times O would pass too");
  Result<float> wrong = f.right;
  wrong.O[40] += 1;
  CHECK_FALSE(check_forward(wrong, f.expected).blind);
  CHECK(contains(check_forward(wrong, f.expected).why, "O[40]"));
  f.expected.O.wrongs[1].plain = NAN;
  CHECK(check_forward(f.right, f.expected).blind);
  f.expected.O.wrongs[1].needed = false;
  CHECK(check_forward(f.right, f.expected).passed);
  // Within bounds that are wide, and nearer to a wrong output.
  Fixture wide;
  wide.expected.O.max_abs = wide.expected.O.norm = 100;
  for (float& x : wrong.O) x = 0;
  wrong.L = wide.right.L;
  CHECK(contains(wide.why(wrong), "O is nearer to zeros than to what the oracle says"));
  // Zeros are right.
  Inputs zeros = f.inputs;
  for (float& x : zeros.V) x = 0;
  const Verdict of_zeros =
      check_forward(plain_forward(zeros, Dtype::fp32), expect_forward(zeros, Dtype::fp32));
  CHECK(of_zeros.blind);
  CHECK(contains(of_zeros.why, "zeros are right"));
}

TEST_CASE("against the stage before: the sum of both bounds", "[check]") {
  const Fixture f;
  const auto passes = [&](auto change) {
    Result<float> other = f.right;
    change(other);
    return check_against(f.right, f.expected, other, f.expected).passed;
  };
  const double least = std::min(f.expected.O.max_abs, f.expected.O.norm);
  const double most = std::max(f.expected.O.max_abs, f.expected.O.norm);
  using R = Result<float>;
  CHECK(passes([](R&) {}));
  CHECK(passes([&](R& r) { r.O[20] += static_cast<float>(1.5 * least); }));
  CHECK_FALSE(passes([&](R& r) { r.O[20] += static_cast<float>(2.5 * least); }));
  CHECK_FALSE(passes([&](R& r) { r.O[20] += static_cast<float>(2.5 * most); }));
  CHECK_FALSE(passes([](R& r) { r.L[5] += 5e-5f; }));
  CHECK_FALSE(passes([](R& r) { r.L[0] = 0; }));
  Result<float> broken = f.right;
  broken.O[20] = NAN;
  CHECK_FALSE(check_against(f.right, f.expected, broken, f.expected).passed);
  CHECK_FALSE(
      check_against(broken, f.expected, broken, f.expected).passed);  // NaN on both sides is no agreement
}

TEST_CASE("gradients by the same rule", "[check]") {
  const Fixture f;
  const std::vector<float> dO = random_output_gradient(f.inputs.problem, 3);
  const ExpectedGradients expected = expect_backward(f.inputs, f.right, dO, Dtype::fp32);
  const Gradients<float> right = plain_backward(f.inputs, f.right, dO, Dtype::fp32);
  CHECK(check_backward(right, expected).passed);
  for (auto member : {&Gradients<float>::dQ, &Gradients<float>::dK, &Gradients<float>::dV}) {
    for (float wrong : {NAN, infinity, 1.0f}) {
      Gradients<float> result = right;
      (result.*member)[9] += wrong;
      CHECK_FALSE(check_backward(result, expected).passed);
    }
    Gradients<float> zeros = right;
    std::fill((zeros.*member).begin(), (zeros.*member).end(), 0.0f);
    CHECK_FALSE(check_backward(zeros, expected).passed);
  }
}

TEST_CASE("gradients of a single key, which are 0, may be what fp32 leaves of them, and no more",
          "[check]") {
  // Queries of length 1500 make much of it. A stage that multiplies with tensor cores, on the emulator,
  // adds in another order than the plain computations.
  Problem p{.batch = 2, .q_heads = 3, .kv_heads = 1, .Nq = 239, .Nk = 1, .d = 64, .dtype = Dtype::fp16};
  p.scale = -0.2f;
  const auto needle = std::ranges::find(input_families(), std::string_view("needle"), &Family::name);
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    const Inputs inputs = make_inputs(*needle, p, seed);
    const std::vector<float> dO = random_output_gradient(p, seed);
    const Result<float> saved = saved_forward(inputs);
    const ExpectedGradients expected = expect_backward(inputs, saved, dO, Dtype::fp16);
    Gradients<float> found;
    const Stage& stage = on_backend(find_stage(38), Backend::emulator);
    const Verdict verdict =
        run_and_check_backward(stage, inputs, saved, dO, Layout::contiguous, expected, &found);
    CHECK(verdict.why == "");
    const double share = expected.dK.norm / std::sqrt(static_cast<double>(found.dK.size()));
    for (float& x : found.dK) x += static_cast<float>(2 * share);
    CHECK_FALSE(check_backward(found, expected).passed);
    CHECK(expected.dK.norm < 0.01);  // where one element of dS that is wrong by 1 changes dK by 300
  }
}

TEST_CASE("gradients against those of the stage before: the sum of both bounds", "[check]") {
  const Fixture f;
  const std::vector<float> dO = random_output_gradient(f.inputs.problem, 3);
  const ExpectedGradients expected = expect_backward(f.inputs, f.right, dO, Dtype::fp32);
  const Gradients<float> right = plain_backward(f.inputs, f.right, dO, Dtype::fp32);
  const auto of = [&](const Gradients<float>& result, const Gradients<float>& before) {
    return check_backward_against(result, expected, before, expected).passed;
  };
  CHECK(of(right, right));
  const std::pair<std::vector<float> Gradients<float>::*, const Bound*> parts[] = {
      {&Gradients<float>::dQ, &expected.dQ},
      {&Gradients<float>::dK, &expected.dK},
      {&Gradients<float>::dV, &expected.dV}};
  for (const auto& [member, bound] : parts) {
    const auto off_by = [&, member = member](double error) {
      Gradients<float> result = right;
      (result.*member)[9] += static_cast<float>(error);
      return result;
    };
    const double least = std::min(bound->max_abs, bound->norm),
                 most = std::max(bound->max_abs, bound->norm);
    CHECK(of(off_by(1.5 * least), right));
    CHECK(of(right, off_by(1.5 * least)));
    CHECK_FALSE(of(off_by(2.5 * most), right));
    CHECK_FALSE(of(right, off_by(2.5 * most)));
    const Gradients<float> broken = off_by(NAN);
    CHECK_FALSE(of(broken, right));
    CHECK_FALSE(of(right, broken));
    CHECK_FALSE(of(broken, broken));
  }
}

TEST_CASE("a backward pass in 16 bits: P is as far off as the scores, which are fp32", "[check]") {
  Problem p;
  p.q_heads = p.kv_heads = 2;
  p.Nq = p.Nk = 100;
  p.d = 64;
  for (Dtype dtype : {Dtype::fp16, Dtype::bf16}) {
    p.dtype = dtype;
    const auto expect = [&](const Inputs& inputs, const std::vector<float>& dO) {
      return expect_backward(inputs, saved_forward(inputs), dO, dtype);
    };
    const std::vector<float> dO = random_output_gradient(p, 3);
    // Each query is a key, with scores that fp16 or bf16 shows to be off.
    Inputs large = random_inputs(p, 1);
    for (float& x : large.K) x = round_to(dtype, (dtype == Dtype::fp16 ? 20.f : 60.f) * x);
    large.Q = large.K;
    const Result<float> saved = saved_forward(large);
    CHECK(*std::ranges::max_element(saved.L) > (dtype == Dtype::fp16 ? 4000 : 30000));
    const ExpectedGradients expected = expect(large, dO);
    int tried = 0;
    for (const Stage* stage : stages()) {
      if (stage->backward == nullptr || computing_dtype(*stage, dtype) != dtype) continue;
      ++tried;
      INFO(label(*stage) << ", " << to_string(p));
      Gradients<float> right;
      CHECK(run_and_check_backward(*stage, large, saved, dO, Layout::contiguous, expected, &right).why ==
            "");
      for (float& x : right.dV) x *= 1.05f;
      CHECK_FALSE(check_backward(right, expected).passed);
    }
    CHECK(tried >= 3);
  }
}

TEST_CASE("some rows or keys of a backward pass are judged by O and L of all", "[check]") {
  Problem p;
  p.Nq = p.Nk = 40;
  p.d = 8;
  for (bool causal : {false, true}) {
    p.causal = causal;
    const Inputs inputs = random_inputs(p, 1);
    const std::vector<float> dO = random_output_gradient(p, 3);
    const Gradients<double> whole = oracle_backward(inputs, dO);
    const Result<float> saved = plain_forward(inputs, Dtype::fp32);
    const auto last = [&](const auto& values, std::int64_t rows, std::int64_t d) {
      return std::vector(values.end() - rows * d, values.end());
    };
    const auto part = [&](std::int64_t rows, std::int64_t keys) {
      Inputs some{p, last(inputs.Q, rows, p.d), last(inputs.K, keys, p.d), last(inputs.V, keys, p.d)};
      some.problem.Nq = rows;
      some.problem.Nk = keys;
      return expect_backward_part(some, {last(saved.O, rows, p.d), last(saved.L, rows, 1)},
                                  last(dO, rows, p.d), Dtype::fp32);
    };
    const auto furthest = [](const std::vector<double>& a, const std::vector<double>& b) {
      double most = 0;
      for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
      return most;
    };
    const ExpectedGradients rows = part(5, p.Nk), keys = part(p.Nq, 5);
    CHECK(furthest(rows.oracle.dQ, last(whole.dQ, 5, p.d)) < 1e-5);
    CHECK(furthest(keys.oracle.dK, last(whole.dK, 5, p.d)) < 1e-5);
    CHECK(furthest(keys.oracle.dV, last(whole.dV, 5, p.d)) < 1e-5);
    CHECK(furthest(keys.oracle.dQ, whole.dQ) > 0.1);  // it needs all keys
    CHECK(rows.dQ.max_abs < 1e-4);
    CHECK(keys.dK.norm < 1e-4);
  }
}

// Stages that misbehave, for the runner.
void writes_nothing(const Forward&) {}
void forgets_the_last_row(const Forward& call) {
  const Problem& p = call.problem;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.q_heads; ++h) {
      const ForwardHead head = call.head(b, h);
      for (std::int64_t i = 0; i < p.Nq; ++i) {
        head.L[i] = 0;
        for (std::int64_t c = 0; i + 1 < p.Nq && c < p.d; ++c) head.O[i][c] = 0;
      }
    }
  }
}
void writes_past_its_row(const Forward& call) {
  forgets_the_last_row(call);
  const Problem& p = call.problem;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.q_heads; ++h) {
      for (std::int64_t c = 0; c <= p.d; ++c) call.head(b, h).O[p.Nq - 1][c] = 0;
    }
  }
}

void leaves_L_out(const Forward& call) {
  std::vector<float> L(call.problem.batch * call.problem.q_heads * call.problem.Nq);
  Forward other = call;
  other.L.data = L.data();
  find_stage(0).forward(other);
}
void changes_Q(const Forward& call) {
  find_stage(0).forward(call);
  const_cast<float&>(call.head(0, 0).Q[0][0]) += 1;
}
void writes_between_the_rows_of_K(const Forward& call) {
  find_stage(0).forward(call);
  const_cast<float&>(call.head(0, 0).K[0][call.problem.d]) = 0;
}
void uses_what_it_never_wrote(const Forward& call) {
  find_stage(0).forward(call);
  call.head(0, 0).L[0] = call.workspace.array<float>(1)[0];
}
void keeps_its_memory(const Forward& call) {
  find_stage(0).forward(call);
  using Array = Workspace::Array<float>;
  alignas(Array) static char place[sizeof(Array)];
  new (place) Array(call.workspace, 3);
}
void forgets_dV(const Backward& call) {
  std::vector<float> dV(call.problem.batch * call.problem.kv_heads * call.problem.Nk * call.problem.d);
  Backward other = call;
  other.dV = named_tensor("dV").contiguous(call.problem, dV.data());
  find_stage(0).backward(other);
}
void changes_dO(const Backward& call) {
  find_stage(0).backward(call);
  const_cast<float&>(call.head(0, 0).dO[0][0]) += 1;
}

/// A stage that is nothing but these functions.
Stage misbehaving(void (*forward)(const Forward&), void (*backward)(const Backward&) = nullptr) {
  return {.number = 99,
          .name = "",
          .title = "",
          .idea = "",
          .claim = "",
          .before = 99,
          .supports = {.dtypes = fp32_only},
          .forward = forward,
          .forward_counting = nullptr,
          .backward = backward};
}

TEST_CASE("the runner finds what values alone do not show", "[check]") {
  const Fixture f;
  const auto why = [&](void (*forward)(const Forward&)) {
    return run_and_check(misbehaving(forward), f.inputs, Layout::padded, f.expected).why;
  };
  CHECK(why(find_stage(0).forward) == "");
  CHECK(why(writes_nothing) == "O was never written at [0, 0, 0, 0]");
  CHECK(why(forgets_the_last_row) == "O was never written at [0, 0, 5, 0]");
  CHECK(why(leaves_L_out) == "L was never written at [0, 0, 0, 0]");
  CHECK(contains(why(writes_past_its_row), "O was written outside its rows"));
  CHECK(contains(why(changes_Q), "Q was changed"));
  CHECK(contains(why(writes_between_the_rows_of_K), "K was changed"));
  CHECK(why(uses_what_it_never_wrote) ==
        "L was never written at [0, 0, 0, 0]");  // the poison itself came through
  CHECK(why(keeps_its_memory) == "the stage did not give its extra memory back");
}

TEST_CASE("so does the runner of backward passes", "[check]") {
  const Fixture f;
  const std::vector<float> dO = random_output_gradient(f.inputs.problem, 3);
  const auto defect = [&](void (*backward)(const Backward&)) {
    const Stage stage = misbehaving(nullptr, backward);
    BackwardRun run(stage, f.inputs, f.right, dO, Layout::padded);
    Workspace workspace;
    run.run(workspace);
    return run.defect();
  };
  CHECK(defect(find_stage(0).backward) == "");
  CHECK(defect(forgets_dV) == "dV was never written at [0, 0, 0, 0]");
  CHECK(contains(defect(changes_dO), "dO was changed"));
}

TEST_CASE("a pass that a stage has not, or a saved number that is not given, is an error that says so",
          "[check]") {
  const Fixture f;
  const Problem& p = f.inputs.problem;
  Workspace workspace;
  const Forward forward{.problem = p, .workspace = workspace};
  const Backward backward{.problem = p, .workspace = workspace};
  const auto error_of = [](const auto& run) -> std::string {
    try {
      run();
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  Stage stage = misbehaving(nullptr);
  CHECK(contains(error_of([&] { run_forward(stage, forward); }), "stage 99  has no forward pass"));
  CHECK(contains(error_of([&] { run_backward(stage, backward); }), "stage 99  has no backward pass"));
  stage.backward = [](const Backward&) {};
  CHECK(error_of([&] { run_backward(stage, backward); }) == "");
  stage.saved = Saved::m_and_l;
  CHECK(contains(error_of([&] { run_backward(stage, backward); }), "needs m and l of the forward pass"));
  stage.saved = Saved::P;
  CHECK(contains(error_of([&] { run_backward(stage, backward); }), "needs P of the forward pass"));
}

TEST_CASE("a stage that takes less than others says so, and gets no cases that it does not take",
          "[check]") {
  Stage stage = misbehaving([](const Forward&) {});
  const auto refusal = [&](bool causal, std::int64_t kv_heads) -> std::string {
    Problem p;
    p.q_heads = 2;
    p.kv_heads = kv_heads;
    p.causal = causal;
    try {
      require_supported(stage, p);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal(true, 1) == "");
  const std::size_t all_cases = make_cases(stage, Pass::forward).size();
  stage.supports.features = {.causal = false, .grouped_heads = false, .strides = false};
  CHECK(refusal(false, 2) == "");
  CHECK(contains(refusal(true, 2),
                 "stage 99  takes no causal mask, and B=1 H=2 N=1 d=64 causal fp32 has that"));
  CHECK(contains(refusal(true, 1), "takes no causal mask and no grouped heads, and"));
  const std::vector<Case>& cases = make_cases(stage, Pass::forward);
  CHECK(cases.size() > all_cases / 4);  // most shapes have neither
  CHECK(cases.size() < all_cases);
  for (const Case& one : cases) {
    CHECK(refusal(one.problem.causal, one.problem.kv_heads == one.problem.q_heads ? 2 : 1) == "");
    CHECK(one.layout == Layout::contiguous);
  }
  const auto run = [&](Layout layout) -> std::string {
    Workspace workspace;
    try {
      ForwardRun(stage, random_inputs({.q_heads = 2, .kv_heads = 2, .Nq = 3}, 1), layout).run(workspace);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(run(Layout::contiguous) == "");
  CHECK(
      contains(run(Layout::rows_first), "takes no strides, and Q has some: copy it to contiguous memory"));
}

TEST_CASE("the table of tensors has each under its name, with its shape", "[check]") {
  const Problem p{.batch = 2, .q_heads = 6, .kv_heads = 3, .Nq = 5, .Nk = 7, .d = 4, .dtype = Dtype::bf16};
  Workspace workspace;
  std::string forward, backward, saved;
  for (const NamedTensor& one : all_tensors) {
    const std::string name = one.name;
    CHECK(&named_tensor(name) == &one);
    if (one.given(Pass::forward, Saved::L, p))
      forward += name + (one.output_of == Pass::forward ? "! " : " ");
    if (one.given(Pass::backward, Saved::L, p))
      backward += name + (one.output_of == Pass::backward ? "! " : " ");
    if (one.given(Pass::backward, Saved::m_and_l, p) && !one.given(Pass::backward, Saved::L, p))
      saved += name + " ";
    const bool is_position =
        name.starts_with("cu_seqlens") || name.starts_with("seqused") || name == "block_map";
    const bool is_seed = name == "dropout_seed";
    CHECK(one.dtype(p) == (name == "Q" || name == "K" || name == "V" || name == "O" ||
                                   (name[0] == 'd' && name != "dsinks" && name != "dbias" && !is_seed)
                               ? p.dtype
                           : is_position || is_seed ? Dtype::int32
                                                    : Dtype::fp32));
  }
  CHECK(forward == "Q K V O! L! ");
  CHECK(backward == "Q K V O L dO dQ! dK! dV! ");
  CHECK(saved == "m l ");
  Problem with_sinks = p;
  with_sinks.sinks = true;
  CHECK(named_tensor("dsinks").given(Pass::backward, Saved::L, with_sinks));
  CHECK(!named_tensor("dsinks").given(Pass::forward, Saved::L, with_sinks));
  CHECK(named_tensor("sinks").shape(with_sinks) == std::array<std::int64_t, 4>{1, 6, 1, 1});
  CHECK(named_tensor("sinks").elements(p) == 0);
  Problem biased = p;
  biased.bias_batch = 1, biased.bias_heads = 6, biased.bias_rows = 5;
  CHECK(named_tensor("bias").given(Pass::forward, Saved::L, biased));
  CHECK(!named_tensor("dbias").given(Pass::forward, Saved::L, biased));
  CHECK(named_tensor("dbias").shape(biased) == std::array<std::int64_t, 4>{1, 6, 5, 7});
  CHECK(named_tensor("bias").contiguous(biased, nullptr).stride == std::array<std::int64_t, 3>{210, 35, 7});
  Problem packed = p;
  packed.packing = Packing::of({0, 2, 5}, {0, 3, 7}, {1, 4});
  CHECK(named_tensor("cu_seqlens_q").shape(packed) == std::array<std::int64_t, 4>{1, 3, 1, 1});
  CHECK(named_tensor("seqused_k").shape(packed) == std::array<std::int64_t, 4>{1, 2, 1, 1});
  CHECK(named_tensor("seqused_k").given(Pass::forward, Saved::L, packed));
  CHECK(!named_tensor("seqused_k").given(Pass::backward, Saved::L, packed));
  Problem mapped = p;
  mapped.block_map = random_block_map(p, 2, 1, 0.5, 1);
  CHECK(named_tensor("block_map").shape(mapped) == std::array<std::int64_t, 4>{1, 2, 1, 1});
  CHECK(named_tensor("block_map").given(Pass::backward, Saved::L, mapped));
  CHECK(!named_tensor("block_map").given(Pass::backward, Saved::L, p));
  CHECK(named_tensor("K").shape(p) == std::array<std::int64_t, 4>{2, 3, 7, 4});
  CHECK(named_tensor("L").shape(p) == std::array<std::int64_t, 4>{2, 6, 5, 1});
  CHECK(named_tensor("P").elements(p) == 2 * 6 * 5 * 7);
  CHECK(named_tensor("dV").contiguous(p, nullptr).stride == std::array<std::int64_t, 3>{84, 28, 4});
  Backward call{.problem = p, .workspace = workspace};
  named_tensor("dK").of(call).data = &workspace;
  CHECK(call.dK.data == &workspace);
}

TEST_CASE("a backward pass is measured against the nearest one before it", "[check]") {
  CHECK(backward_before(find_stage(0)) == nullptr);
  CHECK(backward_before(find_stage(2)) == &find_stage(0));
}

TEST_CASE("inputs are reproducible, and differ between heads, batches and seeds", "[check]") {
  Problem p;
  p.batch = p.q_heads = p.kv_heads = 2;
  p.Nq = p.Nk = 9;
  p.d = 4;
  for (const Family& family : input_families()) {
    INFO(family.name);
    const Inputs inputs = make_inputs(family, p, 1);
    CHECK(inputs.Q == make_inputs(family, p, 1).Q);
    CHECK(inputs.K != make_inputs(family, p, 2).K);
    for (const auto* values : {&inputs.Q, &inputs.K, &inputs.V}) {
      CHECK(std::ranges::all_of(*values, [](float x) { return std::isfinite(x); }));
      const std::size_t head = values->size() / 4;
      for (std::size_t g = 1; g < 4; ++g) {
        CHECK_FALSE(std::equal(values->begin(), values->begin() + head, values->begin() + g * head));
      }
    }
  }
  p.dtype = Dtype::bf16;
  for (float x : random_inputs(p, 1).Q) CHECK(round_to(Dtype::bf16, x) == x);
}

TEST_CASE("a sample of rows is judged as all of them are", "[check]") {
  const auto problem = [](std::int64_t Nq, std::int64_t Nk, bool causal) {
    Problem p;
    p.batch = 2;
    p.q_heads = 6;
    p.kv_heads = 2;
    p.Nq = Nq;
    p.Nk = Nk;
    p.d = 16;
    p.causal = causal;
    return p;
  };
  for (const Problem& p : {problem(200, 200, true), problem(200, 90, true), problem(90, 200, true),
                           problem(200, 150, false), problem(7, 300, true), problem(33, 1, true)}) {
    const Inputs inputs = random_inputs(p, 1);
    const Result<double> oracle = oracle_forward(inputs);
    const std::vector<Chunk> sample = sample_of(inputs);
    std::vector<Expected> expected;
    std::set<std::int64_t> heads;
    std::int64_t first = p.Nq, end = 0;
    for (const Chunk& chunk : sample) {
      const std::int64_t rows = chunk.inputs.problem.Nq, at = chunk.head * p.Nq + chunk.first;
      expected.push_back(expect_forward(chunk.inputs, Dtype::fp32));
      const auto same = [&](const std::vector<double>& part, const std::vector<double>& all,
                            std::int64_t d) {
        return std::equal(part.begin(), part.end(), all.begin() + at * d, all.begin() + (at + rows) * d);
      };
      CHECK(same(expected.back().oracle.O, oracle.O, p.d));
      CHECK(same(expected.back().oracle.L, oracle.L, 1));
      heads.insert(chunk.head);
      first = std::min(first, chunk.first);
      end = std::max(end, chunk.first + rows);
    }
    CHECK(heads.size() == 4);
    CHECK(heads.contains(0));
    CHECK(heads.contains(11));
    CHECK(p.visible_keys(first) <= 1 + (p.causal ? std::max<std::int64_t>(p.Nk - p.Nq, 0) : p.Nk));
    CHECK(end == p.Nq);

    const ExpectedSample right = expect_sample(p, sample, expected);
    for (const Expected& one : right.chunks) CHECK(one.O.max_abs == right.chunks[0].O.max_abs);
    const Result<float> good = plain_forward(inputs, Dtype::fp32);
    CHECK(check_sample(good, p, sample, right).passed);
    CHECK(check_against(good, right.all, good, right.all).passed);
    const auto fails = [&](auto change) {
      Result<float> bad = good;
      change(bad);
      return !check_sample(bad, p, sample, right).passed;
    };
    const std::int64_t last = 12 * p.Nq - 1, other = 1 * p.Nq;  // a row of a head that is not in the sample
    CHECK_FALSE(heads.contains(1));
    CHECK(fails([&](auto& r) { r.O[last * p.d] += 0.01f; }));
    CHECK(fails([&](auto& r) { r.O[last * p.d + 5] = 0; }));
    CHECK(fails([&](auto& r) { r.L[last] += 0.01f; }));
    const auto half = static_cast<float>(right.chunks[0].O.max_abs / 2);  // alone it is allowed
    CHECK(fails([&](auto& r) {
      for (float& x : r.O) x += half * 0.9f;
    }));
    CHECK(fails([&](auto& r) { r.O[other * p.d] = std::numeric_limits<float>::quiet_NaN(); }));
    CHECK(fails([&](auto& r) { r.L[other] = std::numeric_limits<float>::infinity(); }));
    if (p.visible_keys(0) == 0) {
      CHECK(fails([&](auto& r) { r.O[other * p.d] = 0.01f; }));
      CHECK(fails([&](auto& r) { r.L[other] = 0; }));
    }
    // Between stages all rows are compared.
    Result<float> elsewhere = good;
    elsewhere.O[(2 * p.Nq - 1) * p.d] += 0.01f;
    CHECK(check_sample(elsewhere, p, sample, right).passed);
    CHECK_FALSE(check_against(elsewhere, right.all, good, right.all).passed);
  }
}

}  // namespace
