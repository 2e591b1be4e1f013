#include "common/simt/global_buffer.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#include "common/simt/emulator.hpp"

namespace flashladder::simt {
namespace {

constexpr std::align_val_t alignment{256};   // as cudaMalloc
constexpr unsigned char poison_byte = 0xff;  // all ones is a NaN in every floating-point type

/// All buffers that there are, by slot, and the memory that they own.
struct Registry {
  std::mutex mutex;
  std::vector<GlobalBuffer*> buffers;
  std::uint64_t bytes = 0;
  std::uint64_t peak = 0;
};

Registry& registry() {
  static Registry all;
  return all;
}

std::size_t take_slot(GlobalBuffer* buffer) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto free = std::find(all.buffers.begin(), all.buffers.end(), nullptr);
  if (free != all.buffers.end()) {
    *free = buffer;
    return static_cast<std::size_t>(free - all.buffers.begin());
  }
  all.buffers.push_back(buffer);
  return all.buffers.size() - 1;
}

std::byte* allocate(const std::string& name, std::int64_t elements, std::int64_t element_bytes) {
  if (elements < 0) throw Error("buffer " + name + ": a negative number of elements");
  const auto bytes = static_cast<std::size_t>(elements * element_bytes);
  void* memory = ::operator new(std::max<std::size_t>(bytes, 1), alignment, std::nothrow);
  if (memory == nullptr)
    throw Error("out of memory: buffer " + name + " needs " +
                std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB");
  return static_cast<std::byte*>(memory);
}

}  // namespace

GlobalBuffer::GlobalBuffer(std::string name, std::int64_t count, std::int64_t element_bytes)
    : data(allocate(name, count, element_bytes)),
      elements(count),
      slot(take_slot(this)),
      name_(std::move(name)),
      element_bytes_(element_bytes),
      owns_(true),
      initialised_(false) {
  if (Emulator::current().options.check) marks_ = std::make_unique<GlobalMarks>(count);
  poison();
  count_memory();
}

GlobalBuffer::GlobalBuffer(std::string name, void* memory, std::int64_t count, std::int64_t element_bytes)
    : data(reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(memory) & ~device_only)),
      elements(count),
      slot(take_slot(this)),
      name_(std::move(name)),
      element_bytes_(element_bytes),
      owns_(false),
      initialised_(true) {
  if (Emulator::current().options.check) marks_ = std::make_unique<GlobalMarks>(count);
}

GlobalBuffer::~GlobalBuffer() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.buffers[slot] = nullptr;
  while (!all.buffers.empty() && all.buffers.back() == nullptr) all.buffers.pop_back();
  if (counted_) all.bytes -= static_cast<std::uint64_t>(elements * element_bytes_);
  if (owns_) ::operator delete(data, alignment);
}

void GlobalBuffer::count_memory() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  counted_ = true;
  all.bytes += static_cast<std::uint64_t>(elements * element_bytes_);
  all.peak = std::max(all.peak, all.bytes);
}

void GlobalBuffer::poison() {
  std::memset(data, poison_byte, static_cast<std::size_t>(elements * element_bytes_));
  if (marks_ != nullptr) marks_->clear();
  initialised_ = false;
}

void GlobalBuffer::require_written() const {
  std::int64_t unwritten = 0;
  std::int64_t first = 0;
  for (std::int64_t i = elements - 1; i >= 0; --i) {
    const std::byte* element = data + i * element_bytes_;
    const bool poisoned = std::all_of(element, element + element_bytes_,
                                      [](std::byte b) { return b == std::byte{poison_byte}; });
    if (marks_ != nullptr && !initialised_ ? !marks_->written(i) : poisoned) {
      ++unwritten;
      first = i;
    }
  }
  if (unwritten == 0) return;
  KernelFault fault;
  fault.kind = ErrorKind::unwritten_output;
  const auto& launches = Emulator::current().launches();
  fault.kernel = launches.empty() ? "(none was launched)" : launches.back().kernel;
  fault.buffer = name_;
  fault.details = std::to_string(unwritten) + " of " + std::to_string(elements) +
                  " elements were never written, the first at index " + std::to_string(first);
  throw KernelError(fault);
}

std::optional<Conflict> GlobalBuffer::check(std::int64_t element, GlobalMarks::Use use,
                                            std::uint32_t launch, std::uint32_t unfinished,
                                            std::uint32_t block, Where where) {
  if (marks_ == nullptr) return std::nullopt;
  return marks_->access(element, use, launch, unfinished, block, initialised_, where);
}

std::uint64_t GlobalBuffer::bytes_in_use() {
  const std::lock_guard lock(registry().mutex);
  return registry().bytes;
}

std::uint64_t GlobalBuffer::peak_bytes() {
  const std::lock_guard lock(registry().mutex);
  return registry().peak;
}

void GlobalBuffer::reset_peak() {
  const std::lock_guard lock(registry().mutex);
  registry().peak = registry().bytes;
}

std::size_t GlobalBuffer::slots() {
  const std::lock_guard lock(registry().mutex);
  return registry().buffers.size();
}

GlobalBuffer::Label GlobalBuffer::label_of_slot(std::size_t slot) {
  const std::lock_guard lock(registry().mutex);
  const GlobalBuffer* buffer = registry().buffers[slot];
  if (buffer == nullptr) return {"", 0, 0};
  return {buffer->name_, static_cast<std::uint64_t>(buffer->element_bytes_), buffer->elements};
}

void GlobalBuffer::forget_what_is_written() {
  const std::lock_guard lock(registry().mutex);
  for (GlobalBuffer* buffer : registry().buffers)
    if (buffer != nullptr && buffer->marks_ != nullptr) buffer->initialised_ = true;
}

}  // namespace flashladder::simt
