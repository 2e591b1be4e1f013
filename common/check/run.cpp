#include "common/check/run.hpp"

#include <algorithm>
#include <functional>

namespace flashladder {
namespace {

/// Fills what nobody has written: in every dtype a NaN whose every bit is set, which a computation gives
/// only when it is given it.
constexpr std::byte poison_byte{0xff};
constexpr std::int64_t margin = 64;  // elements before and after

std::size_t hash(const std::vector<std::byte>& storage) {
  return std::hash<std::string_view>()({reinterpret_cast<const char*>(storage.data()), storage.size()});
}

bool is_poison(const std::byte* element, std::int64_t bytes) {
  return std::all_of(element, element + bytes, [](std::byte b) { return b == poison_byte; });
}

}  // namespace

std::string_view to_string(Layout layout) {
  switch (layout) {
    case Layout::contiguous:
      return "contiguous";
    case Layout::rows_first:
      return "rows_first";
    case Layout::padded:
      return "padded";
  }
  return "?";
}

Buffer::Buffer(std::int64_t batch, std::int64_t heads, std::int64_t rows, std::int64_t d, Layout layout,
               Dtype dtype, Backend backend, int place)
    : batch_(batch), heads_(heads), rows_(rows), d_(d), dtype_(dtype) {
  switch (layout) {
    case Layout::contiguous:
      stride_ = {heads * rows * d, rows * d, d};
      break;
    case Layout::rows_first:
      stride_ = {heads * rows * d, d, heads * d};
      break;
    case Layout::padded: {
      const std::int64_t row = d + 8 * (place + 1), head = rows * row + 24;
      stride_ = {heads * head, head, row};
    }
  }
  storage_.assign(static_cast<std::size_t>((batch * stride_[0] + 2 * margin) * size_of(dtype)),
                  poison_byte);
  if (backend == Backend::cuda) {
    device_ = std::make_unique<BackendMemory>(backend, static_cast<std::int64_t>(storage_.size()));
    upload();
  }
}

Tensor Buffer::tensor() {
  std::byte* const data = device_ ? static_cast<std::byte*>(device_->data()) : storage_.data();
  return {data + margin * size_of(dtype_), dtype_, stride_};
}

const std::vector<std::byte>& Buffer::storage() const {
  if (device_) device_->download(0, storage_.data(), device_->bytes());
  return storage_;
}

void Buffer::upload() {
  if (device_) device_->upload(0, storage_.data(), device_->bytes());
}

template <class Body>
void Buffer::for_each_row(Body body) const {
  std::size_t value = 0;
  for (std::int64_t b = 0; b < batch_; ++b) {
    for (std::int64_t head = 0; head < heads_; ++head) {
      for (std::int64_t row = 0; row < rows_; ++row, value += d_)
        body(value, (margin + b * stride_[0] + head * stride_[1] + row * stride_[2]) * size_of(dtype_));
    }
  }
}

void Buffer::write(const std::vector<float>& values) {
  const std::int64_t bytes = size_of(dtype_);
  for_each_row([&](std::size_t value, std::int64_t at) {
    for (std::int64_t c = 0; c < d_; ++c) store_as(dtype_, values[value + c], &storage_[at + c * bytes]);
  });
  written_ = hash(storage_);
  upload();
}

bool Buffer::changed() const {
  return hash(storage()) != written_;
}

std::vector<float> Buffer::read() const {
  std::vector<float> values(batch_ * heads_ * rows_ * d_);
  const std::vector<std::byte>& all = storage();
  const std::int64_t bytes = size_of(dtype_);
  for_each_row([&](std::size_t value, std::int64_t at) {
    for (std::int64_t c = 0; c < d_; ++c) values[value + c] = load_as(dtype_, &all[at + c * bytes]);
  });
  return values;
}

void Buffer::poison() {
  std::fill(storage_.begin(), storage_.end(), poison_byte);
  upload();
}

std::string Buffer::defect(const std::string& name) const {
  const std::vector<std::byte>& all = storage();
  const std::int64_t bytes = size_of(dtype_);
  std::vector<char> own(all.size() / bytes, 0);
  std::size_t unwritten = SIZE_MAX;  // the first value
  for_each_row([&](std::size_t value, std::int64_t at) {
    std::fill_n(own.begin() + at / bytes, d_, 1);
    for (std::int64_t c = 0; c < d_ && unwritten == SIZE_MAX; ++c)
      if (is_poison(&all[at + c * bytes], bytes)) unwritten = value + c;
  });
  if (unwritten != SIZE_MAX) {
    const auto i = static_cast<std::int64_t>(unwritten);
    return name + " was never written at [" + std::to_string(i / d_ / rows_ / heads_) + ", " +
           std::to_string(i / d_ / rows_ % heads_) + ", " + std::to_string(i / d_ % rows_) + ", " +
           std::to_string(i % d_) + "]";
  }
  for (std::size_t at = 0; at < own.size(); ++at) {
    if (own[at] == 0 && !is_poison(&all[at * bytes], bytes)) {
      return name + " was written outside its rows, " +
             std::to_string(static_cast<std::int64_t>(at) - margin) + " elements from its start";
    }
  }
  return "";
}

template <class Call>
Run<Call>::Run(const Stage& stage, const Problem& problem, Layout layout)
    : stage_(stage), problem_(problem) {
  problem_.dtype = computing_dtype(stage, problem.dtype);
  int place = 0;
  for (const NamedTensor& one : all_tensors) {
    if (!one.given(Call::pass, stage.saved, problem)) continue;
    const auto [batch, heads, rows, columns] = one.shape(problem_);
    const bool strided = one.has_head_rows();
    tensors_.push_back({&one, Buffer(batch, heads, rows, columns, strided ? layout : Layout::contiguous,
                                     one.dtype(problem_), stage.backend, strided ? place++ : 0)});
  }
}

template <class Call>
const Buffer& Run<Call>::tensor(std::string_view name) const {
  return std::ranges::find(tensors_, &named_tensor(name), &Named::what)->buffer;
}

template <class Call>
Buffer& Run<Call>::tensor(std::string_view name) {
  return std::ranges::find(tensors_, &named_tensor(name), &Named::what)->buffer;
}

template <class Call>
void Run<Call>::write_variant(const Inputs& inputs) {
  if (problem_.alibi) tensor("slopes").write(inputs.slopes);
  if (problem_.has_bias()) tensor("bias").write(inputs.bias);
  if (problem_.sinks) tensor("sinks").write(inputs.sinks);
  const auto write = [&](const char* name, const std::vector<int>& numbers) {
    if (!numbers.empty() && (Call::pass == Pass::forward || named_tensor(name).backward != nullptr))
      tensor(name).write({numbers.begin(), numbers.end()});
  };
  write("cu_seqlens_q", problem_.packing.cu_seqlens_q);
  write("cu_seqlens_k", problem_.packing.cu_seqlens_k);
  write("seqused_k", problem_.packing.seqused_k);
  write("block_map", problem_.block_map.live);
  const Dropout& dropout = problem_.dropout;
  if (dropout.p != 0 && dropout.seed_in_memory)
    write("dropout_seed", {static_cast<int>(dropout.seed), static_cast<int>(dropout.seed >> 32)});
}

template <class Call>
Call Run<Call>::call(Workspace& workspace) {
  Call call{.problem = problem_, .workspace = workspace};
  for (Named& one : tensors_) one.what->of(call) = one.buffer.tensor();
  return call;
}

template <class Call>
void Run<Call>::start(Workspace& workspace) {
  if constexpr (Call::pass == Pass::forward) {
    run_forward(stage_, call(workspace));
  } else {
    run_backward(stage_, call(workspace));
  }
}

template <class Call>
void Run<Call>::run(Workspace& workspace) {
  start(workspace);
  synchronise(stage_.backend);
}

template <class Call>
void Run<Call>::poison() {
  for (Named& one : tensors_) {
    if (one.what->output_of == Call::pass) one.buffer.poison();
  }
}

template <class Call>
std::string Run<Call>::defect() const {
  for (const Named& one : tensors_) {
    if (one.what->output_of != Call::pass) continue;
    if (std::string why = one.buffer.defect(one.what->name); !why.empty()) return why;
  }
  for (const Named& one : tensors_) {
    if (one.what->output_of != Call::pass && one.buffer.changed())
      return std::string(one.what->name) + " was changed, or what lies between its rows";
  }
  return "";
}

template class Run<Forward>;
template class Run<Backward>;

ForwardRun::ForwardRun(const Stage& stage, const Inputs& inputs, Layout layout)
    : Run(stage, inputs.problem, layout) {
  tensor("Q").write(inputs.Q);
  tensor("K").write(inputs.K);
  tensor("V").write(inputs.V);
  write_variant(inputs);
}

void ForwardRun::run_counting(Workspace& workspace) {
  stage_.forward_counting(call(workspace));
}

Result<float> ForwardRun::result() const {
  return {tensor("O").read(), tensor("L").read()};
}

BackwardRun::BackwardRun(const Stage& stage, const Inputs& inputs, const BackwardInputs& given,
                         Layout layout)
    : Run(stage, inputs.problem, layout) {
  tensor("Q").write(inputs.Q);
  tensor("K").write(inputs.K);
  tensor("V").write(inputs.V);
  tensor("O").write(given.forward.O);
  tensor("L").write(given.forward.L);
  tensor("dO").write(given.dO);
  write_variant(inputs);
  if (stage.saved == Saved::P) tensor("P").write(given.saved.P);
  if (stage.saved == Saved::m_and_l) {
    tensor("m").write(given.saved.m);
    tensor("l").write(given.saved.l);
  }
}

Gradients<float> BackwardRun::result() const {
  return {tensor("dQ").read(), tensor("dK").read(), tensor("dV").read(),
          problem_.sinks ? tensor("dsinks").read() : std::vector<float>(),
          problem_.has_bias() ? tensor("dbias").read() : std::vector<float>()};
}

}  // namespace flashladder
