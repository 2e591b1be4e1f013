// OpenMP for a student's file, in the place of the compiler's own library: real threads, but one at a time,
// in turns that depend on the code alone. So a race shows in what was written by whom (watch.cpp), not in
// the luck of a run, and a file does the same at every grading. It has parallel, for, barrier, single,
// critical and atomic; of tasks and sections GNU's library makes a single thread's work.
#if defined(__GNUC__) && !defined(__clang__)  // Clang's OpenMP has other names

#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <utility>

#include "common/labs/program/watch.hpp"

namespace flashladder::lab {
namespace {

constexpr int most_threads = 16;
int threads_wanted = 1;  // omp_set_num_threads

/// A loop whose iterations are dealt out to the threads, in chunks.
template <class Number>
struct Loop {
  Number begin = 0, end = 0;
  Number step = 1;           ///< From one chunk to the next.
  std::uint64_t chunks = 0;  ///< How many there are,
  std::uint64_t next = 0;    ///< and the first that this thread has not seen.
};

/// The thread that takes a chunk of a dynamic loop: any would be right. Each gets one of so many chunks as
/// there are threads, and this is no pattern that code could follow.
int owner(std::uint64_t chunk, int threads) {
  const auto size = static_cast<std::uint64_t>(threads);
  std::uint64_t mixed = chunk / size * 0x9e3779b97f4a7c15u;
  mixed = (mixed ^ (mixed >> 32)) * 0xd6e8feb86659fd93u;
  return static_cast<int>((chunk + (mixed >> 32)) % size);
}

/// The threads of a parallel region.
class Team {
 public:
  void (*body)(void*) = nullptr;
  void* data = nullptr;
  Loop<long> loop;  ///< Of `parallel for`, else without chunks.
  int size = 1;
  int singles = 0;         ///< How many `single` some thread has begun.
  void* copied = nullptr;  ///< What `single copyprivate` hands on.

  /// Runs the body as thread `id`, when its turn comes.
  void run(int id) noexcept {
    wait_for_turn(id);
    body(data);
    const std::lock_guard lock(mutex_);
    states_[id] = State::done;
    pass_on(id);
  }
  /// Lets the first one begin.
  void start() {
    const std::lock_guard lock(mutex_);
    turn_ = 0;
    changed();
  }
  void barrier(int id) {
    {
      const std::lock_guard lock(mutex_);
      states_[id] = State::at_barrier;
      pass_on(id);
    }
    wait_for_turn(id);
  }
  /// Another thread goes on.
  void yield(int id) {
    {
      const std::lock_guard lock(mutex_);
      pass_on(id);
    }
    wait_for_turn(id);
  }

 private:
  enum class State { running, at_barrier, done };

  void wait_for_turn(int id) {
    std::unique_lock lock(mutex_);
    while (turn_ != id) pthread_cond_wait(&condition_, lock.mutex()->native_handle());
    begin_turn(id, false);  // who has a lock does not wait
  }
  void changed() { pthread_cond_broadcast(&condition_); }
  void pass_on(int id) {
    turn_ = next_running(id);
    if (turn_ < 0) {  // all are done, or wait for each other
      begin_phase(true);
      for (int i = 0; i < size; ++i) {
        if (states_[i] == State::at_barrier) states_[i] = State::running;
      }
      turn_ = next_running(size - 1);
    }
    changed();
  }
  int next_running(int after) const {
    for (int i = 1; i <= size; ++i) {
      if (states_[(after + i) % size] == State::running) return (after + i) % size;
    }
    return -1;
  }

  std::mutex mutex_;
  pthread_cond_t condition_ = PTHREAD_COND_INITIALIZER;
  State states_[most_threads] = {};
  int turn_ = -1;
};

/// What a thread is in its team.
struct Member {
  Team* team = nullptr;
  int id = 0;
  int locks = 0;
  int singles = 0;
  Loop<long> loop;
  Loop<unsigned long long> unsigned_loop;
};
thread_local Member me;

int team_size() {
  return me.team == nullptr ? 1 : me.team->size;
}

void become_member(Team& team, int id) {
  me = {};
  me.team = &team;
  me.id = id;
  me.loop = team.loop;
}

struct Place {
  Team* team;
  int id;
};
void* begin(void* given) {
  const Place place = *static_cast<Place*>(given);
  become_member(*place.team, place.id);
  place.team->run(place.id);
  return nullptr;
}

void parallel(void (*body)(void*), void* data, unsigned threads, const Loop<long>& loop) {
  const Member before = me;
  Team team;
  team.body = body;
  team.data = data;
  team.loop = loop;
  const int wanted = threads != 0 ? static_cast<int>(threads) : threads_wanted;
  pthread_t others[most_threads];
  Place places[most_threads];
  if (before.team == nullptr) {  // a region inside another has one thread
    for (; team.size < std::min(wanted, most_threads); ++team.size) {
      places[team.size] = {&team, team.size};
      if (pthread_create(&others[team.size], nullptr, begin, &places[team.size]) != 0) break;
    }
  }
  const bool nested = before.team != nullptr;
  if (!nested) begin_phase(team.size > 1);
  become_member(team, 0);
  team.start();
  if (nested) {
    body(data);
  } else {
    team.run(0);
    for (int i = 1; i < team.size; ++i) pthread_join(others[i], nullptr);
    begin_phase(false);
    begin_turn(0, false);
  }
  me = before;
}

template <class Number>
Loop<Number> make_loop(Number begin, Number end, Number step, Number chunk, bool up = true) {
  Loop<Number> loop;
  const Number size = std::max<Number>(chunk, 1);
  loop.begin = begin;
  loop.end = end;
  loop.step = static_cast<Number>(step * size);
  const Number distance = up ? end - begin : begin - end,
               stride = up ? loop.step : static_cast<Number>(-loop.step);
  if (up ? begin < end : begin > end)
    loop.chunks = static_cast<std::uint64_t>((distance + stride - 1) / stride);
  return loop;
}

/// The next chunk of this thread, if there is one.
template <class Number>
bool next_chunk(Loop<Number>& loop, Number* begin, Number* end) {
  while (loop.next < loop.chunks && owner(loop.next, team_size()) != me.id) ++loop.next;
  if (loop.next >= loop.chunks) return false;
  *begin = static_cast<Number>(loop.begin + static_cast<Number>(loop.next) * loop.step);
  ++loop.next;
  *end = loop.next == loop.chunks ? loop.end : static_cast<Number>(*begin + loop.step);
  return true;
}

void barrier() {
  if (me.team != nullptr && team_size() > 1) me.team->barrier(me.id);
}

bool is_first_at_single() {
  if (me.team == nullptr) return true;
  const bool first = me.singles == me.team->singles;
  me.team->singles += first;
  ++me.singles;
  return first;
}

// One lock for all: a thread that has it goes on until it gives it back.
void lock() {
  ++me.locks;
  begin_turn(me.id, true);
}
void unlock() {
  begin_turn(me.id, --me.locks > 0);
  let_others_go_on();
}

}  // namespace

void let_others_go_on() {
  if (me.team != nullptr && team_size() > 1 && me.locks == 0) me.team->yield(me.id);
}

}  // namespace flashladder::lab

// The names that the compiler calls, and those of omp.h.
using namespace flashladder::lab;  // NOLINT(google-build-using-namespace): what follows is C
using Body = void (*)(void*);
using Unsigned = unsigned long long;

#define LOOP(kind, CHUNK_PARAMETER, UNSIGNED_CHUNK_PARAMETER, chunk)                            \
  bool GOMP_loop_##kind##_next(long* first, long* last) {                                       \
    return next_chunk(me.loop, first, last);                                                    \
  }                                                                                             \
  bool GOMP_loop_##kind##_start(long begin, long end, long step CHUNK_PARAMETER, long* first,   \
                                long* last) {                                                   \
    me.loop = make_loop<long>(begin, end, step, chunk, step > 0);                               \
    return next_chunk(me.loop, first, last);                                                    \
  }                                                                                             \
  bool GOMP_loop_ull_##kind##_next(Unsigned* first, Unsigned* last) {                           \
    return next_chunk(me.unsigned_loop, first, last);                                           \
  }                                                                                             \
  bool GOMP_loop_ull_##kind##_start(bool up, Unsigned begin, Unsigned end,                      \
                                    Unsigned step UNSIGNED_CHUNK_PARAMETER, Unsigned* first,    \
                                    Unsigned* last) {                                           \
    me.unsigned_loop = make_loop<Unsigned>(begin, end, step, chunk, up);                        \
    return next_chunk(me.unsigned_loop, first, last);                                           \
  }                                                                                             \
  void GOMP_parallel_loop_##kind(Body body, void* data, unsigned threads, long begin, long end, \
                                 long step CHUNK_PARAMETER, unsigned) {                         \
    parallel(body, data, threads, make_loop<long>(begin, end, step, chunk, step > 0));          \
  }
#define COMMA ,
#define LOOP_IN_CHUNKS(kind) LOOP(kind, COMMA long chunk, COMMA Unsigned chunk, chunk)
#define LOOP_AT_RUNTIME(kind) LOOP(kind, , , 1)

extern "C" {

void GOMP_parallel(Body body, void* data, unsigned threads, unsigned) {
  parallel(body, data, threads, {});
}
LOOP_IN_CHUNKS(static)
LOOP_IN_CHUNKS(dynamic)
LOOP_IN_CHUNKS(guided)
LOOP_IN_CHUNKS(nonmonotonic_dynamic)
LOOP_IN_CHUNKS(nonmonotonic_guided)
LOOP_AT_RUNTIME(runtime)
LOOP_AT_RUNTIME(nonmonotonic_runtime)
LOOP_AT_RUNTIME(maybe_nonmonotonic_runtime)
void GOMP_loop_end() {
  barrier();
}
void GOMP_loop_end_nowait() {}
void GOMP_barrier() {
  barrier();
}
bool GOMP_single_start() {
  return is_first_at_single();
}
void* GOMP_single_copy_start() {
  if (is_first_at_single()) return nullptr;
  barrier();
  return me.team->copied;
}
void GOMP_single_copy_end(void* data) {
  if (me.team != nullptr) me.team->copied = data;
  barrier();
}
void GOMP_critical_start() {
  lock();
}
void GOMP_critical_end() {
  unlock();
}
void GOMP_critical_name_start(void**) {
  lock();
}
void GOMP_critical_name_end(void**) {
  unlock();
}
void GOMP_atomic_start() {
  lock();
}
void GOMP_atomic_end() {
  unlock();
}

int omp_get_thread_num() {
  return me.id;
}
int omp_get_num_threads() {
  return team_size();
}
int omp_get_max_threads() {
  return me.team == nullptr ? threads_wanted : 1;
}
int omp_in_parallel() {
  return static_cast<int>(team_size() > 1);
}
void omp_set_num_threads(int threads) {
  threads_wanted = std::max(threads, 1);
}

}  // extern "C"

#endif
