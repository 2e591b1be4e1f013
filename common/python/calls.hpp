#pragma once
// What flashladder._core hands to the autograd node for PyTorch (torch_node.cpp) in a capsule: a pass of a
// stage as a C function. Nothing but plain data crosses, and no exception does.
#include <cstdint>

#include "common/attention/tensor.hpp"

namespace flashladder {

struct ExchangeApi;
struct Stage;

/// A call of plain attention: no variant of it. Sizes are those of Problem.
struct PlainCall {
  const Stage* stage;          ///< As Calls::stage gave it.
  const ExchangeApi* library;  ///< Calls::library.
  std::int32_t device_type;    ///< DLPack's number of a kind of device: 1 is the CPU, 2 CUDA.
  std::int32_t device;         ///< Which of them; the tensors are all there.
  std::int64_t batch, q_heads, kv_heads, Nq, Nk, d;
  Dtype dtype;            ///< Of all but L.
  bool causal;            ///< The causal mask.
  float scale;            ///< On the scores; 0: 1/sqrt(d).
  Tensor Q, K, V, O, L;   ///< As in Forward and Backward.
  Tensor dO, dQ, dK, dV;  ///< Of the backward pass alone.
};

/// What became of a call.
enum class Answer {
  done,      ///< On a GPU it may still run.
  declined,  ///< Nothing was launched: the GPU is not the current one.
  failed,    ///< The error of this thread of Python says why.
};

/// The functions, which any thread may call; `forward` and `backward` without the GIL.
struct Calls {
  const ExchangeApi*
      library;  ///< Of the tensors: it has the current stream, and the memory of a stage itself.
  /// Stage `number` for tensors on the CPU or on the current GPU; nullptr where it cannot run there.
  const Stage* (*stage)(int number, bool on_gpu);
  Answer (*forward)(const PlainCall& call);   ///< Writes O and L.
  Answer (*backward)(const PlainCall& call);  ///< Writes dQ, dK and dV.
};

/// The capsule's name. Its number is that of this file's structs: another layout, another number.
inline constexpr const char* calls_name = "flashladder.calls.1";

}  // namespace flashladder
