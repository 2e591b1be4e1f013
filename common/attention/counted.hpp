#pragma once
#include <cstdint>

namespace flashladder {

/// A float that counts how often its value is read. A stage's scores can be made of it (their type is a
/// template parameter), which turns "one pass over the scores" from a claim into a number.
class Counted {
 public:
  Counted() = default;
  /// A new value, counted in `made`.
  Counted(float value) : value_(value) { ++made; }
  /// Its value, counted in `reads`.
  operator float() const {
    ++reads;
    return value_;
  }

  inline static thread_local std::int64_t made = 0;   ///< Values made since the counter was last set.
  inline static thread_local std::int64_t reads = 0;  ///< Values read since the counter was last set.

 private:
  float value_;
};

}  // namespace flashladder
