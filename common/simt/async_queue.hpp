#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <random>

#include "common/simt/options.hpp"

namespace flashladder::simt {

/// What units that work beside a block's threads have been told to do, and have not done yet. When they do
/// it is not defined on a GPU; here Options::units says.
class AsyncQueue {
 public:
  /// A block begins: nothing is to be done.
  void begin(Units policy, std::uint64_t seed);
  /// To be done: now, or later. Who may wait for it to be done names it by `owner`; 0: nobody.
  void add(std::function<void()> work, unsigned owner = 0);
  /// A thread has come to a place where it may wait: does some, or nothing.
  void progress();
  /// Does one, the oldest or any, for a thread that cannot go on. Whether there was one.
  bool do_next();
  /// Does all that has this owner, or the oldest `count` of it.
  void finish(unsigned owner, std::size_t count = static_cast<std::size_t>(-1));
  /// Does all.
  void finish();

 private:
  struct Work {
    std::function<void()> work;
    unsigned owner;
  };
  void do_number(std::size_t i);

  Units policy_ = Units::lazy;
  std::mt19937_64 random_;
  std::deque<Work> waiting_;  ///< Oldest first.
};

}  // namespace flashladder::simt
