#include "common/simt/async_queue.hpp"

#include <utility>

namespace flashladder::simt {

void AsyncQueue::begin(Units policy, std::uint64_t seed) {
  policy_ = policy;
  waiting_.clear();
  if (policy == Units::random) random_.seed(seed);
}

void AsyncQueue::do_number(std::size_t i) {
  const Work one = std::move(waiting_[i]);
  waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
  one.work();
}

void AsyncQueue::add(std::function<void()> work, unsigned owner) {
  if (policy_ == Units::eager) return work();
  waiting_.push_back({std::move(work), owner});
}

void AsyncQueue::progress() {
  if (policy_ != Units::random) return;
  while (!waiting_.empty() && random_() % 8 == 0) do_number(random_() % waiting_.size());
}

bool AsyncQueue::do_next() {
  if (waiting_.empty()) return false;
  do_number(policy_ == Units::random ? random_() % waiting_.size() : 0);
  return true;
}

void AsyncQueue::finish(unsigned owner, std::size_t count) {
  for (std::size_t i = 0; i < waiting_.size() && count != 0;) {
    if (waiting_[i].owner == owner) {
      --count;
      do_number(i);
    } else {
      ++i;
    }
  }
}

void AsyncQueue::finish() {
  while (do_next()) {
  }
}

}  // namespace flashladder::simt
