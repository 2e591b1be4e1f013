// The backward pass of a stage on a GPU. O and L come from the last stage that has a forward pass for the
// problem; what else a stage was given by its own forward pass is made of them and of Q, K.
#include "bench/measure/gpu_backward.hpp"

#include <memory>
#include <utility>
#include <vector>

#include "bench/measure/gpu_tensors.hpp"
#include "common/attention/workspace.hpp"
#include "common/check/check.hpp"

namespace flashladder {
namespace {

/// The last stage whose forward pass takes the problem.
const Stage& forward_stage(const Problem& p) {
  const Stage* last = nullptr;
  for (const Stage* stage : gpu_stages()) {
    if (stage->forward != nullptr && stage->supports.dtype(p.dtype) && stage->supports.head_dim(p.d))
      last = stage;
  }
  if (last == nullptr) throw Error("no stage has a forward pass that takes " + to_string(p));
  return *last;
}

/// What a stage is given of the forward pass beside O and L (Stage::saved); m is L.
struct SavedNumbers {
  std::unique_ptr<BackendMemory> l, P;
};

/// m and l are any two that make the same P = exp(S - m) / l: here L and 1.
void save_m_and_l(const Problem& p, SavedNumbers& saved) {
  const std::vector<float> ones(p.batch * p.q_heads * p.Nq, 1);
  saved.l = std::make_unique<BackendMemory>(Backend::cuda, ones.size() * 4);
  saved.l->upload(0, ones.data(), saved.l->bytes());
}

/// P [batch, heads, Nq, Nk], d columns at a time: O = P V is columns j ... j + d - 1 of P where V has the
/// identity in rows j ... j + d - 1 and is 0 elsewhere.
void save_P(const Problem& p, const Tensors& t, SavedNumbers& saved) {
  const Stage& stage = forward_stage(p);
  saved.P = std::make_unique<BackendMemory>(Backend::cuda, p.batch * p.q_heads * p.Nq * p.Nk * 4);
  auto* const P = static_cast<float*>(saved.P->data());
  // The identity stands in the middle, and V begins so many rows before it.
  std::vector<float> host((2 * p.Nk + p.d) * p.d, 0);
  for (std::int64_t c = 0; c < p.d; ++c) host[(p.Nk + c) * p.d + c] = 1;
  BackendMemory identity(Backend::cuda, static_cast<std::int64_t>(host.size()) * 4);
  identity.upload(0, host.data(), identity.bytes());
  BackendMemory L(Backend::cuda, t.L.bytes());
  Workspace workspace(free_memory(Backend::cuda));
  for (std::int64_t j = 0; j < p.Nk; j += p.d) {
    const Tensor V{static_cast<float*>(identity.data()) + (p.Nk - j) * p.d, p.dtype, {0, 0, p.d}};
    const Tensor columns{P + j, p.dtype, {p.q_heads * p.Nq * p.Nk, p.Nq * p.Nk, p.Nk}};
    run_forward(stage, {.problem = p,
                        .Q = Tensors::as(p, t.Q),
                        .K = Tensors::as(p, t.K),
                        .V = V,
                        .O = columns,
                        .L = named_tensor("L").contiguous(p, L.data()),
                        .workspace = workspace});
  }
  synchronise(Backend::cuda);
}

/// Throws Error unless dQ of the last rows of the last head, and dK and dV of its last keys, are what fp64
/// makes of O and L, and all three are numbers everywhere. dQ of a row needs all keys, dK and dV of a key
/// all rows: two problems.
void check_last(const Problem& p, const Tensors& t) {
  const std::int64_t few = Tensors::checked(p), all = p.Nq;
  const auto expect = [&](std::int64_t rows, std::int64_t keys) {
    const Result<float> saved{Tensors::last_rows(p, t.O, p.dtype, rows, p.d),
                              Tensors::last_rows(p, t.L, Dtype::fp32, rows, 1)};
    return expect_backward_part(t.last(p, rows, keys), saved, Tensors::last_rows(p, t.gradient, rows),
                                p.dtype);
  };
  ExpectedGradients expected = expect(few, all);  // its dK and dV lack rows
  const ExpectedGradients of_keys = expect(all, few);
  expected.oracle.dK = of_keys.oracle.dK;
  expected.oracle.dV = of_keys.oracle.dV;
  expected.dK = of_keys.dK;
  expected.dV = of_keys.dV;
  const auto found = [&](const BackendMemory& memory) {
    return Tensors::last_rows(p, memory, p.dtype, few, p.d);
  };
  const Verdict verdict = check_backward({found(t.dQ), found(t.dK), found(t.dV)}, expected);
  if (!verdict.passed) throw Error("failed its check: " + verdict.why);
  for (const auto& [name, memory] : {std::pair{"dQ", &t.dQ}, {"dK", &t.dK}, {"dV", &t.dV}})
    Tensors::require_numbers(*memory, p.dtype, p.batch * p.q_heads * p.Nq * p.d, name);
}

}  // namespace

Timing time_backward(benchmark::State& state, const Stage& stage, const Problem& p, const Peaks& peaks) {
  Tensors& t = Tensors::of(p.dtype);
  {
    Tensors::poison(t.O);
    Tensors::poison(t.L);
    Workspace workspace(free_memory(Backend::cuda));
    run_forward(forward_stage(p), t.forward(p, workspace));
    synchronise(Backend::cuda);
    t.check_forward_pass(p);  // the gradients are checked against what O and L make of them
  }
  SavedNumbers saved;
  if (stage.saved == Saved::m_and_l) save_m_and_l(p, saved);
  if (stage.saved == Saved::P) save_P(p, t, saved);
  for (BackendMemory* gradient : {&t.dQ, &t.dK, &t.dV}) Tensors::poison(*gradient);
  Workspace workspace(free_memory(Backend::cuda) + p.batch * p.q_heads * p.Nq * p.Nk * (saved.P ? 4 : 0));
  const std::pair<const char*, const BackendMemory*> memory_of[] = {
      {"Q", &t.Q},   {"K", &t.K},   {"V", &t.V},   {"O", &t.O}, {"L", &t.L},          {"dO", &t.dO},
      {"dQ", &t.dQ}, {"dK", &t.dK}, {"dV", &t.dV}, {"m", &t.L}, {"l", saved.l.get()}, {"P", saved.P.get()}};
  const auto run = [&] {
    Backward call{.problem = p, .workspace = workspace};
    for (const auto& [name, memory] : memory_of) {
      const NamedTensor& one = named_tensor(name);
      if (one.given(Pass::backward, stage.saved, p)) one.of(call) = one.contiguous(p, memory->data());
    }
    run_backward(stage, call);
  };
  run();
  synchronise(Backend::cuda);
  check_last(p, t);
  const Timing ms = time_on_gpu(run);
  report_speed(state, p, Pass::backward, ms, peaks);
  return ms;
}

}  // namespace flashladder
