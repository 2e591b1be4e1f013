#include "common/simt/scheduler.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "common/simt/global_buffer.hpp"
#include "common/simt/stack_guard.hpp"

namespace flashladder::simt {
namespace {

/// Who runs after the running thread; nullptr when nobody can.
Thread* pick(Block& block) {
  if (block.ready.empty()) return nullptr;
  const ReadyLanes::Lane last = {running.thread->warp, running.thread->lane};
  const ReadyLanes::Lane next = block.ready.next(last, block.launch->options->schedule, block.random);
  return block.thread[next.warp * warp_size + next.lane].get();
}

/// Operations on f32 that have been counted.
std::uint64_t operations() {
  const Counters& c = running.counts;
  return c.add + c.mul + c.div + c.max + c.exp + c.log + c.flops_cuda_cores / 2;
}

/// From here on the running thread is the one that counts, up to stop_counting().
void start_counting() {
  if (running.observed) running.operations = operations();
  if (running.trace != nullptr) running.trace->resume();
}
/// Another thread goes on.
void stop_counting() {
  if (running.observed) running.thread->work.operations += operations() - running.operations;
  if (running.trace != nullptr) running.trace->pause();
}

/// What a thread waits for at an mbarrier, and how far that is.
std::string state_of(const Mbarrier& bar, unsigned parity) {
  return "for a phase of parity " + std::to_string(parity) + " of " + name_of(bar) +
         ", which is in phase " + std::to_string(bar.phase) + ": " +
         std::to_string(bar.arrivals - bar.pending) + " of " + std::to_string(bar.arrivals) +
         " arrivals have come" +
         (bar.expected == 0 ? ""
                            : ", and " + std::to_string(bar.expected - bar.bytes) + " of " +
                                  std::to_string(bar.expected) + " bytes");
}

/// Nobody can run, and not everybody is done: says why.
[[noreturn]] void fail_stuck() {
  const Block& block = *running.block;
  for (unsigned w = 0; w < block.warps; ++w)
    for (const Meeting& meeting : block.warp[w].meetings)
      if (meeting.arrived != 0) {
        const unsigned lane = static_cast<unsigned>(std::countr_zero(meeting.arrived));
        fail_in(
            *block.thread[w * warp_size + lane], ErrorKind::partial_mask_shuffle, meeting.where, "",
            std::string(meeting.name) + " waits for lanes of its mask that do not come:" + where_all_are());
      }
  block.registers.report_shortage();
  for (unsigned t = 0; t < block.threads; ++t) {
    const Thread& thread = *block.thread[t];
    if (thread.exited || thread.mbarrier == nullptr || thread.mbarrier->begun >= thread.mbarrier->expected)
      continue;
    fail_in(thread, ErrorKind::wrong_expected_bytes, thread.where, thread.mbarrier->array->name,
            name_of(*thread.mbarrier) + " is told of " + std::to_string(thread.mbarrier->expected) +
                " bytes in phase " + std::to_string(thread.mbarrier->phase) + ", and copies of " +
                std::to_string(thread.mbarrier->begun) + " have begun:" + where_all_are());
  }
  for (unsigned t = 0; t < block.threads; ++t)
    if (!block.thread[t]->exited)
      fail_in(*block.thread[t], ErrorKind::deadlock, block.thread[t]->where, "",
              "all threads wait or have returned:" + where_all_are());
  fail(ErrorKind::deadlock, {}, "", "no thread is left");
}

/// The running thread has returned from the kernel. Checks that nobody still waits for it.
void retire() {
  Block& block = *running.block;
  Thread& me = *running.thread;
  note(Step::Kind::end);
  me.exited = true;
  ++block.exited;
  block.ready.remove({me.warp, me.lane});
  Warp& warp = block.warp[me.warp];
  warp.live &= ~(1u << me.lane);
  const Barrier& barrier = block.barrier[0];
  if (barrier.arrived != 0)
    fail(ErrorKind::barrier_short, barrier.where, "",
         "this thread returned from the kernel while " + std::to_string(barrier.arrived) + " of " +
             std::to_string(block.threads) + " threads wait at __syncthreads:" + where_all_are());
  for (const Meeting& meeting : warp.meetings)
    if (meeting.arrived != 0 && (meeting.mask >> me.lane & 1) != 0)
      fail_in(*block.thread[me.warp * warp_size + static_cast<unsigned>(std::countr_zero(meeting.arrived))],
              ErrorKind::partial_mask_shuffle, meeting.where, "",
              std::string(meeting.name) + " waits for lane " + std::to_string(me.lane) +
                  ", which is in its mask and has returned from the kernel:" + where_all_are());
  if (block.launch->options->banks && warp.live == 0) warp.log.flush(~0u);
  report_unfinished_work(me, block.exited == block.threads);
  if (warp.live == 0) block.registers.retire(me.warp);
  if (block.exited == block.threads) report_early_read(~0u);
}

/// What every fiber of a block runs.
void thread_main() {
  Block& block = *running.block;
  try {
    start_counting();
    block.launch->body(block.launch->arguments);
    stop_counting();
    block.busiest.raise_to(running.thread->work);
    retire();
    Thread* next = pick(block);
    while (next == nullptr && block.units.do_next()) next = pick(block);
    if (next != nullptr) {
      Thread& me = *running.thread;
      running.thread = next;
      Fiber::leave(me.fiber, next->fiber);
    }
    if (block.exited < block.threads) fail_stuck();
  } catch (...) {
    block.error = std::current_exception();
  }
  Fiber::leave(running.thread->fiber, *block.scheduler);
}

uint3 split(unsigned linear, dim3 size) {
  return {linear % size.x, linear / size.x % size.y, linear / size.x / size.y};
}

void begin_launch(Block& block, const Launch& launch, std::size_t slots) {
  block.launch = &launch;
  block.threads = launch.block.x * launch.block.y * launch.block.z;
  block.warps = block.threads / warp_size;
  const int wanted = static_cast<int>(block.threads);
  if (block.stack_count < wanted) {
    block.stacks = std::make_unique<StackPool>(wanted);
    block.stack_count = wanted;
  }
  while (block.thread.size() < block.threads) block.thread.push_back(std::make_unique<Thread>());
  for (unsigned t = 0; t < block.threads; ++t) {
    Thread& thread = *block.thread[t];
    thread.linear = t;
    thread.index = split(t, launch.block);
    thread.lane = t % warp_size;
    thread.warp = t / warp_size;
  }
  block.shared.begin_launch(launch.shared_bytes);
  block.most_bytes_in_flight = 0;
  block.most_exp_before_product = 0;
  block.registers.most = block.registers.fewest = 0;
  block.busiest = {};
  block.global.assign(slots, {});
  running = {};
  running.block = &block;
  running.global = block.global.data();
  running.observed = launch.options->banks || launch.options->check || launch.trace != nullptr;
}

/// Called, on another stack, when the running thread's stack is used up.
void stack_overflow() {
  Block& block = *running.block;
  block.error = std::make_exception_ptr(KernelError(
      fault_in(*running.thread, ErrorKind::stack_overflow, running.thread->where, "",
               "this thread used up its stack of " + std::to_string(StackPool::bytes_each >> 10) +
                   " KiB; the line is where it last synchronised")));
  Fiber::leave(running.thread->fiber, *block.scheduler);
}

bool is_guard_of_running_block(const void* address) {
  return running.thread != nullptr && running.block->stacks->is_guard(address);
}

/// @param trace  gets what it does; nullptr: nobody looks
void run_block(Block& block, unsigned linear, BlockTrace* trace) {
  const Options& options = *block.launch->options;
  block.linear = linear;
  block.index = split(linear, block.launch->grid);
  block.exited = 0;
  block.error = nullptr;
  block.early_read.reset();
  block.tiles = 0;
  block.turns = 0;
  block.grid_waits.clear();
  block.masked.clear();
  block.ready.clear();
  if (options.schedule == Schedule::random) block.random.seed(options.seed * 0x9e3779b97f4a7c15u + linear);
  block.barrier.fill({});
  block.mbarriers.clear();
  block.warpgroup.fill(nullptr);
  block.registers.begin(block.threads);
  block.units.begin(options.units, options.seed * 0x9e3779b97f4a7c15u + linear);
  block.flight.begin();
  block.shared.begin_block();
  if (options.check) {
    block.races.begin(block.warps);
    block.races.reserve(block.shared.end());
  }
  for (unsigned w = 0; w < block.warps; ++w) {
    Warp& warp = block.warp[w];
    warp.live = ~0u;
    warp.pending = 0;
    for (Meeting& meeting : warp.meetings) meeting.arrived = 0;
    warp.log.clear();
    warp.asked_rows.clear();
    block.ready.add(w, ~0u);
  }
  for (unsigned t = 0; t < block.threads; ++t) {
    Thread& thread = *block.thread[t];
    thread.exited = false;
    thread.waits_at = nullptr;
    thread.mbarrier = nullptr;
    thread.where = {};
    thread.accesses = 0;
    thread.work = {};
    thread.tiles = 0;
    thread.exponentials = 0;
    thread.has_copied = false;
    thread.copies.clear();
    thread.copy_groups.clear();
    thread.arrived = 0;
    thread.stores = 0;
    thread.store_groups.clear();
    thread.wgmma_fenced = false;
    thread.wgmmas = thread.wgmmas_waited = 0;
    thread.wgmma_groups.clear();
    thread.accumulators.clear();
    thread.knows = {};
    thread.has_news = false;
    thread.fiber.prepare((*block.stacks)[static_cast<int>(t)], thread_main, std::size_t{64} + t % 32 * 192);
  }
  ++running.counts.blocks;
  std::optional<Recorder> recorder;
  if (trace != nullptr) running.trace = &recorder.emplace(*trace, *options.trace);
  Fiber scheduler;
  block.scheduler = &scheduler;
  running.thread = block.thread[options.schedule == Schedule::reverse ? block.threads - 1 : 0].get();
  if (options.schedule == Schedule::random) running.thread = pick(block);
  Fiber::switch_to(scheduler, running.thread->fiber);
  if (block.error == nullptr) block.units.finish();
  if (recorder) recorder->finish();
  running.trace = nullptr;
  running.thread = nullptr;
}

/// Blocks that no launch uses at the moment, kept for their stacks.
class BlockPool {
 public:
  std::unique_ptr<Block> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Block>();
    std::unique_ptr<Block> block = std::move(free_.back());
    free_.pop_back();
    return block;
  }
  void give_back(std::unique_ptr<Block> block) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(block));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Block>> free_;
};

BlockPool& block_pool() {
  static BlockPool pool;
  return pool;
}

/// Adds what one OS thread counted to the launch's ledger.
void collect(Ledger& ledger, const Block& block) {
  ledger.Counters::operator+=(running.counts);
  for (std::size_t slot = 0; slot < block.global.size(); ++slot) {
    const GlobalTraffic& traffic = block.global[slot];
    if (traffic == GlobalTraffic{}) continue;
    const GlobalBuffer::Label label = GlobalBuffer::label_of_slot(slot);
    GlobalTraffic& total = ledger.global[label.name];
    total.element_bytes = label.element_bytes;
    total += traffic;
  }
  for (const SharedArray& array : block.shared.arrays()) {
    ledger.shared[array.name] += array.traffic;
    ledger.shared[array.name].array_bytes =
        std::max<std::uint64_t>(ledger.shared[array.name].array_bytes, array.bytes);
  }
  ledger.shared_bytes_per_block =
      std::max<std::uint64_t>(ledger.shared_bytes_per_block, block.shared.bytes());
  ledger.busiest.raise_to(block.busiest);
  ledger.most_bytes_in_flight = std::max(ledger.most_bytes_in_flight, block.most_bytes_in_flight);
  ledger.most_exp_before_product = std::max(ledger.most_exp_before_product, block.most_exp_before_product);
  ledger.note_registers(static_cast<std::uint64_t>(block.registers.most),
                        static_cast<std::uint64_t>(block.registers.fewest));
}

void check_sizes(const Launch& launch) {
  const auto bad = [&](ErrorKind kind, const std::string& details) {
    KernelFault fault;
    fault.kind = kind;
    fault.kernel = launch.kernel;
    fault.details = details;
    throw KernelError(fault);
  };
  const std::uint64_t threads = std::uint64_t{launch.block.x} * launch.block.y * launch.block.z;
  if (threads == 0 || threads > max_threads || threads % warp_size != 0)
    bad(ErrorKind::bad_launch, "a block of " + std::to_string(threads) + " threads");
  if (launch.grid.x == 0 || launch.grid.y == 0 || launch.grid.z == 0 || launch.grid.x > 0x7fffffff ||
      launch.grid.y > 65535 || launch.grid.z > 65535 ||
      std::uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z > 0x7ffffffe)
    bad(ErrorKind::bad_launch,
        "a grid of " + to_string({launch.grid.x, launch.grid.y, launch.grid.z}) + " blocks");
  if (launch.shared_bytes > max_shared)
    bad(ErrorKind::too_much_shared,
        std::to_string(launch.shared_bytes) + " bytes of dynamic shared memory");
}

}  // namespace

void wake(unsigned warp, std::uint32_t lanes) {
  running.block->ready.add(warp, lanes);
}

void suspend(const char* waits_at, Where where) {
  Block& block = *running.block;
  Thread& me = *running.thread;
  me.waits_at = waits_at;
  me.where = where;
  block.ready.remove({me.warp, me.lane});
  block.units.progress();
  Thread* next = pick(block);
  while (next == nullptr && block.units.do_next()) next = pick(block);
  if (next == nullptr) fail_stuck();
  if (next == &me) {  // a unit has done what this thread waits for, and nobody comes before it
    me.waits_at = nullptr;
    return;
  }
  stop_counting();
  // Most often the lanes of a warp come in turn. A switch costs little but its first look at the new stack.
  if (next->linear + 1 < block.threads) block.thread[next->linear + 1]->fiber.expect();
  running.thread = next;
  Fiber::switch_to(me.fiber, next->fiber);
  start_counting();
  me.waits_at = nullptr;
}

KernelFault fault_in(const Thread& thread, ErrorKind kind, Where where, const std::string& buffer,
                     const std::string& details, Where other) {
  const Block& block = *running.block;
  KernelFault fault;
  fault.kind = kind;
  fault.kernel = block.launch->kernel;
  fault.block = block.index;
  fault.thread = thread.index;
  fault.where = where;
  fault.other = other;
  fault.buffer = buffer;
  fault.details = details;
  return fault;
}

void fail_in(const Thread& thread, ErrorKind kind, Where where, const std::string& buffer,
             const std::string& details, Where other) {
  throw KernelError(fault_in(thread, kind, where, buffer, details, other));
}

void fail(ErrorKind kind, Where where, const std::string& buffer, const std::string& details, Where other) {
  fail_in(*running.thread, kind, where, buffer, details, other);
}

void report_early_read(std::uint32_t warps) {
  const Block& block = *running.block;
  if (block.early_read && (warps >> block.early_reader & 1) != 0) throw KernelError(*block.early_read);
}

std::string name_of_mbarrier(const SharedArray& array, std::uint32_t offset) {
  return std::string(array.name) + "[" + std::to_string((offset - array.offset) / 8) + "]";
}

std::string name_of(const Mbarrier& bar) {
  return name_of_mbarrier(*bar.array, bar.offset);
}

void count_copying_thread() {
  running.counts.copying_threads += running.thread->has_copied ? 0 : 1;
  running.thread->has_copied = true;
}

void report_unfinished_work(const Thread& thread, bool last) {
  if (thread.wgmmas_waited < thread.wgmmas || !thread.accumulators.empty()) {
    fail_in(thread, ErrorKind::unfinished_wgmma, thread.began_wgmma, "",
            "this thread ends, and has not waited for its wgmmas, or for the accumulators of all");
  }
  if (thread.stores != 0 || !thread.store_groups.empty()) {
    fail_in(thread, ErrorKind::unfinished_copy, thread.stored_by, "",
            "this thread ends, and has not waited until its tensor stores, or bulk reductions, have read "
            "shared memory");
  }
  for (const Mbarrier& bar : running.block->mbarriers) {
    if (!last || bar.copied <= bar.waited) continue;
    fail_in(thread, ErrorKind::unfinished_copy, bar.copied_by, bar.array->name,
            "the block ends, and nobody has waited for phase " + std::to_string(bar.copied - 1) + " of " +
                name_of(bar) + ", in which copies come");
  }
}

std::string where_all_are() {
  const Block& block = *running.block;
  const auto place = [&](unsigned t) -> std::string {
    const Thread& thread = *block.thread[t];
    if (thread.exited) return "returned";
    if (thread.waits_at == nullptr) return "can run";
    return std::string("waits at ") + thread.waits_at + " (" + to_string(thread.where) + ")" +
           (thread.mbarrier == nullptr ? "" : ", " + state_of(*thread.mbarrier, thread.parity));
  };
  std::string text;
  for (unsigned t = 0; t < block.threads;) {
    unsigned end = t + 1;
    while (end < block.threads && end % warp_size != 0 && place(end) == place(t)) ++end;
    text += "\n         warp " + std::to_string(t / warp_size) + ", lanes " +
            std::to_string(t % warp_size) + "-" + std::to_string((end - 1) % warp_size) + ": " + place(t);
    t = end;
  }
  return text;
}

/// Ledger::most_tiles_of_multiprocessor, where blocks have so many tiles.
std::uint64_t most_tiles_of_multiprocessor(const std::vector<std::size_t>& tiles_of_block) {
  std::array<std::uint64_t, multiprocessors> tiles = {};
  for (const std::size_t more : tiles_of_block) *std::ranges::min_element(tiles) += more;
  return std::ranges::max(tiles);
}

/// The blocks in the order in which they begin.
std::vector<unsigned> block_order(const Options& options, unsigned blocks) {
  std::vector<unsigned> order(blocks);
  std::iota(order.begin(), order.end(), 0u);
  if (options.schedule == Schedule::reverse) std::ranges::reverse(order);
  if (options.schedule == Schedule::random) std::ranges::shuffle(order, std::mt19937_64(options.seed));
  return order;
}

Ledger run_grid(const Launch& launch) {
  check_sizes(launch);
  const auto start = std::chrono::steady_clock::now();
  const unsigned blocks = launch.grid.x * launch.grid.y * launch.grid.z;
  if (launch.trace != nullptr) {
    launch.trace->warps = launch.block.x * launch.block.y * launch.block.z / warp_size;
    launch.trace->blocks.resize(blocks);
  }
  const std::size_t slots = GlobalBuffer::slots();
  Ledger ledger;
  ledger.kernel = launch.kernel;
  ledger.banks_analysed = launch.options->banks;
  ledger.device_bytes = GlobalBuffer::bytes_in_use();
  const std::vector<unsigned> order = block_order(*launch.options, blocks);
  std::vector<std::size_t> tiles_of_block(blocks);
  std::atomic<unsigned> next = 0;
  std::mutex mutex;  // of what follows, and of the ledger
  std::exception_ptr error;
  unsigned error_at = blocks;

  const auto work = [&] {
    const Running before = running;
    const StackGuard guard(is_guard_of_running_block, stack_overflow);
    std::unique_ptr<Block> block = block_pool().take();
    try {
      begin_launch(*block, launch, slots);
      // After an error only blocks whose turn was before still run, so that the first of them is what is
      // reported.
      for (unsigned i; (i = next++) < blocks;) {
        {
          const std::lock_guard lock(mutex);
          if (i > error_at) break;
        }
        run_block(*block, order[i], launch.trace == nullptr ? nullptr : &launch.trace->blocks[order[i]]);
        tiles_of_block[order[i]] = block->tiles;
        if (block->error != nullptr) {
          const std::lock_guard lock(mutex);
          if (i < error_at) {
            error = block->error;
            error_at = i;
          }
          block->error = nullptr;
          break;
        }
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      error = std::current_exception();
      error_at = 0;
    }
    {
      const std::lock_guard lock(mutex);
      if (running.block == block.get()) collect(ledger, *block);
    }
    running = before;
    block_pool().give_back(std::move(block));
  };

  unsigned workers = launch.options->os_threads;
  if (workers == 0) workers = std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
  workers = std::min(workers, blocks);
  std::vector<std::thread> others;
  for (unsigned i = 1; i < workers; ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  if (error != nullptr) std::rethrow_exception(error);
  ledger.dependent_launches = launch.dependent ? 1 : 0;
  ledger.most_tiles_of_multiprocessor = most_tiles_of_multiprocessor(tiles_of_block);
  ledger.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return ledger;
}

}  // namespace flashladder::simt
