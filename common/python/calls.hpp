#pragma once
// What flashladder._core hands to the autograd node for PyTorch (torch_node.cpp) in a capsule: a pass of a
// stage as a C function. Nothing but plain data crosses, and no exception does.
#include <cstdint>

#include "common/attention/tensor.hpp"

namespace flashladder {

struct ExchangeApi;
struct Stage;

/// DLPack's numbers of kinds of devices.
inline constexpr std::int32_t on_cpu = 1, on_cuda = 2;

/// A call of plain attention, without any variant. All is on one device.
struct PlainCall {
  const Stage* stage;                             ///< As Calls::stage gave it.
  const ExchangeApi* library;                     ///< As Calls::library.
  std::int32_t device_type;                       ///< on_cpu or on_cuda.
  std::int32_t device;                            ///< Which of them.
  std::int64_t batch, q_heads, kv_heads;          ///< As in Problem.
  std::int64_t Nq, Nk, d;                         ///< The same.
  Dtype dtype;                                    ///< Of all tensors but L, which is fp32.
  bool causal;                                    ///< The causal mask.
  float scale;                                    ///< Factor on the scores; 0 stands for 1/sqrt(d).
  Tensor Q = {}, K = {}, V = {}, O = {}, L = {};  ///< As in Forward and Backward.
  Tensor dO = {}, dQ = {}, dK = {}, dV = {};      ///< As in Backward; not looked at by the forward pass.
};

/// What became of a call.
enum class Answer {
  done,      ///< On a GPU it may still run.
  declined,  ///< Nothing was launched: the GPU is not the current one.
  failed,    ///< The error of this thread of Python says why.
};

/// The functions, which any thread may call; `forward` and `backward` without the GIL.
struct Calls {
  /// Of the library whose tensors are given: it has the current stream and a stage's own memory.
  const ExchangeApi* library;
  /// Stage `number` for tensors on the CPU or on the current GPU; nullptr where it cannot run there.
  const Stage* (*stage)(int number, bool on_gpu);
  Answer (*forward)(const PlainCall& call);   ///< Writes O and L.
  Answer (*backward)(const PlainCall& call);  ///< Writes dQ, dK and dV.
};

/// The capsule's name. Its number is that of this file's structs: another layout, another number.
inline constexpr const char* calls_name = "flashladder.calls.1";

}  // namespace flashladder
