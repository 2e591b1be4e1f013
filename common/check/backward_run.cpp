// Apart from run.cpp, which a student's program is linked with: this needs the oracle's plain computations,
// which it must not have.
#include "common/check/run.hpp"

namespace flashladder {

BackwardRun::BackwardRun(const Stage& stage, const Inputs& inputs, const Result<float>& forward,
                         const std::vector<float>& dO, Layout layout)
    : stage_(stage),
      problem_(inputs.problem),
      Q_(tensor(problem_.q_heads, problem_.Nq, layout, 0)),
      K_(tensor(problem_.kv_heads, problem_.Nk, layout, 1)),
      V_(tensor(problem_.kv_heads, problem_.Nk, layout, 2)),
      O_(tensor(problem_.q_heads, problem_.Nq, layout, 3)),
      L_(of_rows(1, true)),
      dO_(tensor(problem_.q_heads, problem_.Nq, layout, 4)),
      dQ_(tensor(problem_.q_heads, problem_.Nq, layout, 5)),
      dK_(tensor(problem_.kv_heads, problem_.Nk, layout, 6)),
      dV_(tensor(problem_.kv_heads, problem_.Nk, layout, 7)),
      m_(of_rows(1, stage.saved == Saved::m_and_l)),
      l_(of_rows(1, stage.saved == Saved::m_and_l)),
      P_(of_rows(problem_.Nk, stage.saved == Saved::P)) {
  Q_.write(inputs.Q);
  K_.write(inputs.K);
  V_.write(inputs.V);
  O_.write(forward.O);
  L_.write(forward.L);
  dO_.write(dO);
  Statistics saved;
  if (stage.saved != Saved::L) saved = plain_statistics(inputs, stage.saved == Saved::P);
  if (stage.saved != Saved::m_and_l) saved.m = saved.l = {};
  m_.write(saved.m);
  l_.write(saved.l);
  P_.write(saved.P);
  problem_.dtype = computing_dtype(stage, problem_.dtype);
}

Buffer BackwardRun::tensor(std::int64_t heads, std::int64_t rows, Layout layout, int place) const {
  return {problem_.batch, heads, rows, problem_.d, layout, computing_dtype(stage_, problem_.dtype),
          stage_.backend, place};
}

/// So many fp32 numbers for each row of Q; none where they are not needed.
Buffer BackwardRun::of_rows(std::int64_t elements, bool needed) const {
  return {needed ? problem_.batch : 0, problem_.q_heads, problem_.Nq,   elements,
          Layout::contiguous,          Dtype::fp32,      stage_.backend};
}

void BackwardRun::run(Workspace& workspace) {
  start(workspace);
  synchronise(stage_.backend);
}

void BackwardRun::start(Workspace& workspace) {
  const auto saved = [](Buffer& buffer, bool needed) {
    return needed ? static_cast<const float*>(buffer.tensor().data) : nullptr;
  };
  const bool m_and_l = stage_.saved == Saved::m_and_l;
  run_backward(stage_, {problem_, Q_.tensor(), K_.tensor(), V_.tensor(), O_.tensor(), saved(L_, true),
                        dO_.tensor(), dQ_.tensor(), dK_.tensor(), dV_.tensor(), workspace,
                        saved(m_, m_and_l), saved(l_, m_and_l), saved(P_, stage_.saved == Saved::P)});
}

void BackwardRun::poison() {
  for (Buffer* gradient : {&dQ_, &dK_, &dV_}) gradient->poison();
}

Gradients<float> BackwardRun::result() const {
  return {dQ_.read(), dK_.read(), dV_.read()};
}

std::string BackwardRun::defect() const {
  if (std::string why = dQ_.defect("dQ"); !why.empty()) return why;
  if (std::string why = dK_.defect("dK"); !why.empty()) return why;
  if (std::string why = dV_.defect("dV"); !why.empty()) return why;
  return changed_inputs({{"Q", &Q_},
                         {"K", &K_},
                         {"V", &V_},
                         {"O", &O_},
                         {"L", &L_},
                         {"dO", &dO_},
                         {"m", &m_},
                         {"l", &l_},
                         {"P", &P_}});
}

}  // namespace flashladder
