#pragma once

namespace flashladder::simt {

/// The CUDA stream that launches and buffers of this OS thread use: nullptr is the default stream. The
/// emulator, where a launch is complete when it returns, takes no notice.
inline thread_local void* current_stream = nullptr;

/// Makes a stream the current one of this OS thread while it lives.
class UseStream {
 public:
  /// `stream` is a cudaStream_t.
  explicit UseStream(void* stream) : before_(current_stream) { current_stream = stream; }
  ~UseStream() { current_stream = before_; }
  UseStream(const UseStream&) = delete;
  UseStream& operator=(const UseStream&) = delete;

 private:
  void* before_;
};

}  // namespace flashladder::simt
