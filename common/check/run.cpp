#include "common/check/run.hpp"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <string_view>
#include <utility>

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

std::string changed_inputs(std::initializer_list<std::pair<const char*, const Buffer*>> inputs) {
  for (const auto& [name, buffer] : inputs) {
    if (buffer->changed()) return std::string(name) + " was changed, or what lies between its rows";
  }
  return "";
}

ForwardRun::ForwardRun(const Stage& stage, const Inputs& inputs, Layout layout)
    : stage_(stage),
      inputs_(inputs),
      Q_(tensor(inputs.problem.q_heads, inputs.problem.Nq, layout, 0)),
      K_(tensor(inputs.problem.kv_heads, inputs.problem.Nk, layout, 1)),
      V_(tensor(inputs.problem.kv_heads, inputs.problem.Nk, layout, 2)),
      O_(tensor(inputs.problem.q_heads, inputs.problem.Nq, layout, 3)),
      L_(inputs.problem.batch, inputs.problem.q_heads, inputs.problem.Nq, 1, Layout::contiguous,
         Dtype::fp32, stage.backend) {
  Q_.write(inputs.Q);
  K_.write(inputs.K);
  V_.write(inputs.V);
}

Buffer ForwardRun::tensor(std::int64_t heads, std::int64_t rows, Layout layout, int place) const {
  const Problem& p = inputs_.problem;
  return {p.batch, heads, rows, p.d, layout, computing_dtype(stage_, p.dtype), stage_.backend, place};
}

Forward ForwardRun::call(Workspace& workspace) {
  Problem problem = inputs_.problem;
  problem.dtype = computing_dtype(stage_, problem.dtype);
  return {problem,     Q_.tensor(), K_.tensor(),
          V_.tensor(), O_.tensor(), static_cast<float*>(L_.tensor().data),
          workspace};
}

void ForwardRun::start(Workspace& workspace) {
  run_forward(stage_, call(workspace));
}

void ForwardRun::run(Workspace& workspace) {
  start(workspace);
  synchronise(stage_.backend);
}

void ForwardRun::poison() {
  O_.poison();
  L_.poison();
}

void ForwardRun::run_counting(Workspace& workspace) {
  stage_.forward_counting(call(workspace));
}

Result<float> ForwardRun::result() const {
  return {O_.read(), L_.read()};
}

std::string ForwardRun::defect() const {
  if (std::string why = O_.defect("O"); !why.empty()) return why;
  if (std::string why = L_.defect("L"); !why.empty()) return why;
  return changed_inputs({{"Q", &Q_}, {"K", &K_}, {"V", &V_}});
}

}  // namespace flashladder
