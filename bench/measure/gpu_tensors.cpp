#include "bench/measure/gpu_tensors.hpp"

#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include "bench/measure/on_gpu.hpp"
#include "common/check/check.hpp"
#include "common/error.hpp"

namespace flashladder {

Tensors::Tensors(Dtype of) : dtype(of) {
  Problem p;
  p.Nq = p.Nk = elements / p.d;
  p.dtype = dtype;
  inputs = random_inputs(p, 1);
  gradient = random_output_gradient(p, 1);
  for (auto [memory, values] :
       {std::pair{&Q, &inputs.Q}, {&K, &inputs.K}, {&V, &inputs.V}, {&dO, &gradient}})
    memory->upload(0, as_bytes(dtype, *values).data(), bytes);
}

Tensors& Tensors::of(Dtype dtype) {
  static std::map<Dtype, Tensors> all;
  return all.try_emplace(dtype, dtype).first->second;
}

Tensor Tensors::as(const Problem& p, const BackendMemory& memory, const char* name) {
  return named_tensor(name).contiguous(p, memory.data());
}

Forward Tensors::forward(const Problem& p, Workspace& workspace) {
  return {.problem = p,
          .Q = as(p, Q),
          .K = as(p, K, "K"),
          .V = as(p, V, "V"),
          .O = as(p, O),
          .L = named_tensor("L").contiguous(p, L.data()),
          .workspace = workspace};
}

void Tensors::poison(BackendMemory& memory) {
  const std::vector<std::byte> nothing(static_cast<std::size_t>(memory.bytes()), std::byte{0xff});
  memory.upload(0, nothing.data(), memory.bytes());
}

std::vector<float> Tensors::last_rows(const Problem& p, const std::vector<float>& values, std::int64_t rows,
                                      const char* name) {
  const auto [batch, heads, all_rows, d] = named_tensor(name).shape(p);
  const auto end = values.begin() + batch * heads * all_rows * d;
  return {end - rows * d, end};
}

std::vector<float> Tensors::last_rows(const Problem& p, const BackendMemory& memory, Dtype dtype,
                                      std::int64_t rows, std::int64_t d) {
  const std::int64_t size = size_of(dtype), count = rows * d;
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * size));
  memory.download((p.batch * p.q_heads * p.Nq - rows) * d * size, bytes.data(), count * size);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values[i] = load_as(dtype, &bytes[i * size]);
  return values;
}

Inputs Tensors::last(const Problem& p, std::int64_t rows, std::int64_t keys) const {
  Inputs part{p, last_rows(p, inputs.Q, rows), last_rows(p, inputs.K, keys, "K"),
              last_rows(p, inputs.V, keys, "V")};
  part.problem.batch = part.problem.q_heads = part.problem.kv_heads = 1;
  part.problem.Nq = rows;
  part.problem.Nk = keys;
  return part;
}

void Tensors::require_numbers(const BackendMemory& memory, Dtype dtype, std::int64_t count,
                              const char* name) {
  const std::int64_t size = size_of(dtype);
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * size));
  memory.download(0, bytes.data(), count * size);
  for (std::int64_t i = 0; i < count; ++i) {
    const float x = load_as(dtype, &bytes[i * size]);
    if (!std::isfinite(x))
      throw Error("failed its check: element " + std::to_string(i) + " of " + name + " is " +
                  std::to_string(x));
  }
}

void Tensors::check_forward_pass(const Problem& p) const {
  const std::int64_t rows = checked(p);
  const Result<float> found{last_rows(p, O, p.dtype, rows, p.d), last_rows(p, L, Dtype::fp32, rows, 1)};
  const Verdict verdict = check_forward(found, expect_forward(last(p, rows, p.Nk), p.dtype));
  if (!verdict.passed) throw Error("failed its check: " + verdict.why);
  const std::int64_t all_rows = p.batch * p.q_heads * p.Nq;
  require_numbers(O, p.dtype, all_rows * p.d, "O");
  require_numbers(L, Dtype::fp32, all_rows, "L");
}

}  // namespace flashladder
