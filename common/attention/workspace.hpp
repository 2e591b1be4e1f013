#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "common/error.hpp"

namespace flashladder {

/// A stage asked for more extra memory than there is.
struct OutOfMemory : Error {
  /// All in bytes.
  OutOfMemory(std::int64_t wanted, std::int64_t in_use, std::int64_t limit);
  std::int64_t peak;  ///< Bytes that would have been in use at once.
};

/// Where a stage gets all its extra memory, so that it can be counted to the byte.
///
/// Extra memory is what the stage needs beyond Q, K, V, O and L. Scalars and vectors held in registers are
/// not counted; arrays always are. Threads may share a workspace.
class Workspace {
 public:
  /// @param limit  bytes that may be in use at once; by default what the machine has free.
  explicit Workspace(std::int64_t limit = available_memory()) : limit_(limit) {}
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  /// An array of `T`, given back when it goes out of scope. Starts as NaN where `poison` is set, else
  /// undefined.
  template <class T>
  class Array {
   public:
    /// As Workspace::array.
    Array(Workspace& workspace, std::int64_t size)
        : workspace_(workspace), size_(size), data_(static_cast<T*>(workspace.allocate(bytes()))) {}
    ~Array() { workspace_.release(data_, bytes()); }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;

    /// Element i, not checked against size().
    T& operator[](std::int64_t i) { return data_[i]; }
    /// Element i, not checked against size().
    const T& operator[](std::int64_t i) const { return data_[i]; }
    /// Of element 0.
    T* data() { return data_; }
    /// Elements.
    std::int64_t size() const { return size_; }

   private:
    std::int64_t bytes() const { return size_ * static_cast<std::int64_t>(sizeof(T)); }
    Workspace& workspace_;
    std::int64_t size_;
    T* data_;
  };

  /// Counts `bytes` as extra memory in use while it lives: for memory that comes from elsewhere, a GPU's.
  class Reservation {
   public:
    /// Throws OutOfMemory when they do not fit.
    Reservation(Workspace& workspace, std::int64_t bytes) : workspace_(workspace), bytes_(bytes) {
      workspace_.reserve(bytes_);
    }
    ~Reservation() { workspace_.in_use_ -= bytes_; }
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;

   private:
    Workspace& workspace_;
    std::int64_t bytes_;
  };

  /// `size` elements of `T`, 64-byte aligned. Throws OutOfMemory, before anything is touched, when they do
  /// not fit.
  template <class T>
  Array<T> array(std::int64_t size) {
    return Array<T>(*this, size);
  }

  /// Bytes allocated now.
  std::int64_t bytes_in_use() const { return in_use_; }
  /// Most bytes that were in use at once.
  std::int64_t peak_bytes() const { return peak_; }

  /// Fill new arrays with NaN, so that a stage that reads what it never wrote is found out. For the checks.
  bool poison = false;

  /// Bytes of memory free on this machine now, less a reserve for the rest of the system.
  static std::int64_t available_memory();

 private:
  void reserve(std::int64_t bytes);
  void* allocate(std::int64_t bytes);
  void release(void* pointer, std::int64_t bytes);

  std::int64_t limit_;
  std::atomic<std::int64_t> in_use_ = 0;
  std::atomic<std::int64_t> peak_ = 0;
};

}  // namespace flashladder
