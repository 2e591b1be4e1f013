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
Thread* pick(Cluster& cluster) {
  if (cluster.ready.empty()) return nullptr;
  const ReadyLanes::Lane last = {running.thread->warp, running.thread->lane};
  const ReadyLanes::Lane next = cluster.ready.next(last, cluster.launch->options->schedule, cluster.random);
  return cluster.thread[next.warp * warp_size + next.lane].get();
}

/// Operations on f32 that have been counted.
std::uint64_t operations() {
  const Counters& c = running.counts;
  return c.add + c.mul + c.div + c.max + c.exp + c.log + c.flops_cuda_cores / 2;
}

/// From here on the running thread is the one that counts, up to stop_counting().
void start_counting() {
  if (running.observed) running.operations = operations();
  running.trace = running.thread->block->recorder.get();
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
  const Cluster& cluster = *running.cluster;
  for (unsigned w = 0; w < cluster.warps; ++w)
    for (const Meeting& meeting : cluster.warp[w].meetings)
      if (meeting.arrived != 0) {
        const unsigned lane = static_cast<unsigned>(std::countr_zero(meeting.arrived));
        fail_in(
            *cluster.thread[w * warp_size + lane], ErrorKind::partial_mask_shuffle, meeting.where, "",
            std::string(meeting.name) + " waits for lanes of its mask that do not come:" + where_all_are());
      }
  cluster.registers.report_shortage();
  // In a cluster bytes may be missing because another block waits for arrivals: then that is what is wrong.
  bool arrivals_are_missing = false;
  for (unsigned t = 0; t < cluster.threads; ++t) {
    const Thread& thread = *cluster.thread[t];
    const bool waits = !thread.exited && thread.mbarrier != nullptr;
    arrivals_are_missing = arrivals_are_missing || (waits && thread.mbarrier->pending != 0);
  }
  for (unsigned t = 0; t < cluster.threads; ++t) {
    if (cluster.block.size() > 1 && arrivals_are_missing) break;
    const Thread& thread = *cluster.thread[t];
    if (thread.exited || thread.mbarrier == nullptr || thread.mbarrier->begun >= thread.mbarrier->expected)
      continue;
    fail_in(thread, ErrorKind::wrong_expected_bytes, thread.where, thread.mbarrier->array->name,
            name_of(*thread.mbarrier) + " is told of " + std::to_string(thread.mbarrier->expected) +
                " bytes in phase " + std::to_string(thread.mbarrier->phase) + ", and copies of " +
                std::to_string(thread.mbarrier->begun) + " have begun:" + where_all_are());
  }
  for (unsigned t = 0; t < cluster.threads; ++t)
    if (!cluster.thread[t]->exited)
      fail_in(*cluster.thread[t], ErrorKind::deadlock, cluster.thread[t]->where, "",
              "all threads wait or have returned:" + where_all_are());
  fail(ErrorKind::deadlock, {}, "", "no thread is left");
}

/// A block, whose last thread has just returned: fails where it does not know that another one has arrived
/// at its mbarriers for the last time. (Copies to it are another matter: report_unfinished_work.)
void report_uses_of_ended_block(const Block& block) {
  const Cluster& cluster = *running.cluster;
  const unsigned warps = cluster.block_threads / warp_size, first = block.rank * warps;
  for (unsigned w = 0; w < cluster.warps; ++w) {
    const auto& [step, where] = block.arrived[w];
    if (step == 0) continue;
    bool known = false;
    for (unsigned mine = first; mine < first + warps; ++mine)
      known = known || cluster.races.knows(mine, w, step);
    if (!known)
      fail_in(*cluster.thread[w * warp_size], ErrorKind::ended_block, where, "",
              "this uses shared memory of block " + to_string(block.index) +
                  ", and nothing makes sure that that one has not ended before");
  }
}

/// The running thread has returned from the kernel. Checks that nobody still waits for it.
void retire() {
  Cluster& cluster = *running.cluster;
  Thread& me = *running.thread;
  Block& block = *me.block;
  note(Step::Kind::end);
  me.exited = true;
  ++cluster.exited;
  const bool last = ++block.exited == cluster.block_threads;
  cluster.ready.remove({me.warp, me.lane});
  Warp& warp = cluster.warp[me.warp];
  warp.live &= ~(1u << me.lane);
  const auto require_nobody = [](const Barrier& barrier, unsigned threads, const char* name) {
    if (barrier.arrived != 0)
      fail(ErrorKind::barrier_short, barrier.where, "",
           "this thread returned from the kernel while " + std::to_string(barrier.arrived) + " of " +
               std::to_string(threads) + " threads wait at " + name + ":" + where_all_are());
  };
  require_nobody(block.barrier[0], cluster.block_threads, "__syncthreads");
  require_nobody(cluster.barrier, cluster.threads, "cluster_sync");
  for (const Meeting& meeting : warp.meetings)
    if (meeting.arrived != 0 && (meeting.mask >> me.lane & 1) != 0)
      fail_in(
          *cluster.thread[me.warp * warp_size + static_cast<unsigned>(std::countr_zero(meeting.arrived))],
          ErrorKind::partial_mask_shuffle, meeting.where, "",
          std::string(meeting.name) + " waits for lane " + std::to_string(me.lane) +
              ", which is in its mask and has returned from the kernel:" + where_all_are());
  if (cluster.launch->options->banks && warp.live == 0) warp.log.flush(~0u);
  report_unfinished_work(me, last);
  if (last) report_uses_of_ended_block(block);
  if (warp.live == 0) cluster.registers.retire(me.warp);
  if (cluster.exited == cluster.threads) report_early_read(~0u);
}

/// What every fiber runs.
void thread_main() {
  Cluster& cluster = *running.cluster;
  try {
    start_counting();
    cluster.launch->body(cluster.launch->arguments);
    stop_counting();
    cluster.busiest.raise_to(running.thread->work);
    retire();
    Thread* next = pick(cluster);
    while (next == nullptr && cluster.units.do_next()) next = pick(cluster);
    if (next != nullptr) {
      Thread& me = *running.thread;
      running.thread = next;
      Fiber::leave(me.fiber, next->fiber);
    }
    if (cluster.exited < cluster.threads) fail_stuck();
  } catch (...) {
    cluster.error = std::current_exception();
  }
  Fiber::leave(running.thread->fiber, *cluster.scheduler);
}

uint3 split(unsigned linear, dim3 size) {
  return {linear % size.x, linear / size.x % size.y, linear / size.x / size.y};
}

void begin_launch(Cluster& cluster, const Launch& launch, std::size_t slots) {
  cluster.launch = &launch;
  cluster.block_threads = launch.block.x * launch.block.y * launch.block.z;
  cluster.threads = launch.cluster * cluster.block_threads;
  cluster.block.resize(launch.cluster);
  cluster.warps = cluster.threads / warp_size;
  const int wanted = static_cast<int>(cluster.threads);
  if (cluster.stack_count < wanted) {
    cluster.stacks = std::make_unique<StackPool>(wanted);
    cluster.stack_count = wanted;
  }
  while (cluster.thread.size() < cluster.threads) cluster.thread.push_back(std::make_unique<Thread>());
  for (unsigned t = 0; t < cluster.threads; ++t) {
    Thread& thread = *cluster.thread[t];
    thread.linear = t;
    thread.block = &cluster.block[t / cluster.block_threads];
    thread.index = split(t % cluster.block_threads, launch.block);
    thread.lane = t % warp_size;
    thread.warp = t / warp_size;
  }
  cluster.shared.begin_launch(launch.shared_bytes, launch.cluster);
  cluster.most_bytes_in_flight = 0;
  cluster.most_exp_before_product = 0;
  cluster.registers.most = cluster.registers.fewest = 0;
  cluster.busiest = {};
  cluster.global.assign(slots, {});
  running = {};
  running.cluster = &cluster;
  running.global = cluster.global.data();
  running.observed = launch.options->banks || launch.options->check || launch.trace != nullptr;
}

/// Called, on another stack, when the running thread's stack is used up.
void stack_overflow() {
  Cluster& cluster = *running.cluster;
  cluster.error = std::make_exception_ptr(KernelError(
      fault_in(*running.thread, ErrorKind::stack_overflow, running.thread->where, "",
               "this thread used up its stack of " + std::to_string(StackPool::bytes_each >> 10) +
                   " KiB; the line is where it last synchronised")));
  Fiber::leave(running.thread->fiber, *cluster.scheduler);
}

bool is_guard_of_running_cluster(const void* address) {
  return running.thread != nullptr && running.cluster->stacks->is_guard(address);
}

/// Blocks begin: those of the cluster.
void begin_blocks(Cluster& cluster) {
  const Launch& launch = *cluster.launch;
  for (unsigned rank = 0; rank < launch.cluster; ++rank) {
    Block& block = cluster.block[rank];
    block.rank = rank;
    block.linear = cluster.number * launch.cluster + rank;
    block.index = split(block.linear, launch.grid);
    block.exited = 0;
    block.barrier.fill({});
    block.flight.begin(launch.cluster > 1);
    block.tiles = 0;
    block.masked.clear();
    block.arrived.fill({});
    if (launch.trace != nullptr) {
      block.recorder =
          std::make_unique<Recorder>(launch.trace->blocks[block.linear], *launch.options->trace, rank);
    } else {
      block.recorder.reset();
    }
  }
}

void run_cluster(Cluster& cluster, unsigned number) {
  const Options& options = *cluster.launch->options;
  cluster.number = number;
  cluster.exited = 0;
  cluster.error = nullptr;
  cluster.early_read.reset();
  cluster.turns = 0;
  cluster.grid_waits.clear();
  cluster.ready.clear();
  if (options.schedule == Schedule::random)
    cluster.random.seed(options.seed * 0x9e3779b97f4a7c15u + number);
  cluster.barrier = {};
  cluster.mbarriers.clear();
  cluster.warpgroup.fill(nullptr);
  cluster.registers.begin(cluster.block_threads, cluster.launch->cluster);
  cluster.units.begin(options.units, options.seed * 0x9e3779b97f4a7c15u + number);
  cluster.shared.begin_cluster();
  if (options.check) {
    cluster.races.begin(cluster.warps);
    cluster.races.reserve(cluster.shared.end());
  }
  for (unsigned w = 0; w < cluster.warps; ++w) {
    Warp& warp = cluster.warp[w];
    warp.live = ~0u;
    warp.pending = 0;
    for (Meeting& meeting : warp.meetings) meeting.arrived = 0;
    warp.log.clear();
    warp.asked_rows.clear();
    cluster.ready.add(w, ~0u);
  }
  for (unsigned t = 0; t < cluster.threads; ++t) {
    Thread& thread = *cluster.thread[t];
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
    thread.fiber.prepare((*cluster.stacks)[static_cast<int>(t)], thread_main,
                         std::size_t{64} + t % 32 * 192);
  }
  begin_blocks(cluster);
  running.counts.blocks += cluster.launch->cluster;
  Fiber scheduler;
  cluster.scheduler = &scheduler;
  running.thread = cluster.thread[options.schedule == Schedule::reverse ? cluster.threads - 1 : 0].get();
  if (options.schedule == Schedule::random) running.thread = pick(cluster);
  Fiber::switch_to(scheduler, running.thread->fiber);
  if (cluster.error == nullptr) cluster.units.finish();
  for (const Block& block : cluster.block)
    if (block.recorder != nullptr) block.recorder->finish(block);
  running.trace = nullptr;
  running.thread = nullptr;
}

/// Those that no launch uses at the moment, kept for their stacks.
class ClusterPool {
 public:
  std::unique_ptr<Cluster> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Cluster>();
    std::unique_ptr<Cluster> cluster = std::move(free_.back());
    free_.pop_back();
    return cluster;
  }
  void give_back(std::unique_ptr<Cluster> cluster) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(cluster));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Cluster>> free_;
};

ClusterPool& cluster_pool() {
  static ClusterPool pool;
  return pool;
}

/// Adds what one OS thread counted to the launch's ledger.
void collect(Ledger& ledger, const Cluster& cluster) {
  ledger.Counters::operator+=(running.counts);
  for (std::size_t slot = 0; slot < cluster.global.size(); ++slot) {
    const GlobalTraffic& traffic = cluster.global[slot];
    if (traffic == GlobalTraffic{}) continue;
    const GlobalBuffer::Label label = GlobalBuffer::label_of_slot(slot);
    GlobalTraffic& total = ledger.global[label.name];
    total.element_bytes = label.element_bytes;
    total += traffic;
  }
  for (const SharedArray& array : cluster.shared.arrays()) {
    ledger.shared[array.name] += array.traffic;
    ledger.shared[array.name].array_bytes =
        std::max<std::uint64_t>(ledger.shared[array.name].array_bytes, array.bytes);
  }
  ledger.shared_bytes_per_block =
      std::max<std::uint64_t>(ledger.shared_bytes_per_block, cluster.shared.bytes());
  ledger.busiest.raise_to(cluster.busiest);
  ledger.most_bytes_in_flight = std::max(ledger.most_bytes_in_flight, cluster.most_bytes_in_flight);
  ledger.most_exp_before_product =
      std::max(ledger.most_exp_before_product, cluster.most_exp_before_product);
  ledger.note_registers(static_cast<std::uint64_t>(cluster.registers.most),
                        static_cast<std::uint64_t>(cluster.registers.fewest));
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
  if (launch.cluster == 0 || launch.cluster > most_blocks || launch.grid.x % launch.cluster != 0)
    bad(ErrorKind::bad_launch, "clusters of " + std::to_string(launch.cluster) + " blocks in a grid of " +
                                   to_string({launch.grid.x, launch.grid.y, launch.grid.z}) +
                                   ": give 1 to 8, of which grid.x is a multiple");
  if (launch.cluster > 1 && (launch.cluster * threads > max_threads || threads % 128 != 0))
    bad(ErrorKind::bad_launch,
        "clusters of " + std::to_string(launch.cluster) + " blocks of " + std::to_string(threads) +
            " threads: here a cluster has at most 1024 threads, in whole warpgroups");
  if (launch.shared_bytes > max_shared)
    bad(ErrorKind::too_much_shared,
        std::to_string(launch.shared_bytes) + " bytes of dynamic shared memory");
}

}  // namespace

void wake(unsigned warp, std::uint32_t lanes) {
  running.cluster->ready.add(warp, lanes);
}

void suspend(const char* waits_at, Where where) {
  Cluster& cluster = *running.cluster;
  Thread& me = *running.thread;
  me.waits_at = waits_at;
  me.where = where;
  cluster.ready.remove({me.warp, me.lane});
  cluster.units.progress();
  Thread* next = pick(cluster);
  while (next == nullptr && cluster.units.do_next()) next = pick(cluster);
  if (next == nullptr) fail_stuck();
  if (next == &me) {  // a unit has done what this thread waits for, and nobody comes before it
    me.waits_at = nullptr;
    return;
  }
  stop_counting();
  // Most often the lanes of a warp come in turn. A switch costs little but its first look at the new stack.
  if (next->linear + 1 < cluster.threads) cluster.thread[next->linear + 1]->fiber.expect();
  running.thread = next;
  Fiber::switch_to(me.fiber, next->fiber);
  start_counting();
  me.waits_at = nullptr;
}

KernelFault fault_in(const Thread& thread, ErrorKind kind, Where where, const std::string& buffer,
                     const std::string& details, Where other) {
  KernelFault fault;
  fault.kind = kind;
  fault.kernel = running.cluster->launch->kernel;
  fault.block = thread.block->index;
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
  const Cluster& cluster = *running.cluster;
  if (cluster.early_read && (warps >> cluster.early_reader & 1) != 0)
    throw KernelError(*cluster.early_read);
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
  const SharedMemory& shared = running.cluster->shared;
  for (const Mbarrier& bar : running.cluster->mbarriers) {
    if (!last || shared.rank_of(bar.offset) != thread.block->rank || bar.copied <= bar.waited) continue;
    fail_in(thread, ErrorKind::unfinished_copy, bar.copied_by, bar.array->name,
            "the block ends, and nobody has waited for phase " + std::to_string(bar.copied - 1) + " of " +
                name_of(bar) + ", in which copies come");
  }
}

void require_running(const Block& block, Where where) {
  if (block.exited < running.cluster->block_threads) return;
  fail(ErrorKind::ended_block, where, "",
       "all threads of block " + to_string(block.index) +
           ", whose shared memory this uses, have returned from the kernel");
}

std::string where_all_are() {
  const Cluster& cluster = *running.cluster;
  const auto place = [&](unsigned t) -> std::string {
    const Thread& thread = *cluster.thread[t];
    if (thread.exited) return "returned";
    if (thread.waits_at == nullptr) return "can run";
    return std::string("waits at ") + thread.waits_at + " (" + to_string(thread.where) + ")" +
           (thread.mbarrier == nullptr ? "" : ", " + state_of(*thread.mbarrier, thread.parity));
  };
  std::string text;
  for (unsigned t = 0; t < cluster.threads;) {
    unsigned end = t + 1;
    while (end < cluster.threads && end % warp_size != 0 && place(end) == place(t)) ++end;
    text += "\n         " +
            (cluster.block.size() == 1 ? std::string()
                                       : "block " + to_string(cluster.thread[t]->block->index) + ", ") +
            "warp " + std::to_string(t % cluster.block_threads / warp_size) + ", lanes " +
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

/// The clusters in the order in which they begin.
std::vector<unsigned> cluster_order(const Options& options, unsigned clusters) {
  std::vector<unsigned> order(clusters);
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
  const unsigned clusters = blocks / launch.cluster;
  const std::vector<unsigned> order = cluster_order(*launch.options, clusters);
  std::vector<std::size_t> tiles_of_block(blocks);
  std::atomic<unsigned> next = 0;
  std::mutex mutex;  // of what follows, and of the ledger
  std::exception_ptr error;
  unsigned error_at = clusters;

  const auto work = [&] {
    const Running before = running;
    const StackGuard guard(is_guard_of_running_cluster, stack_overflow);
    std::unique_ptr<Cluster> cluster = cluster_pool().take();
    try {
      begin_launch(*cluster, launch, slots);
      // After an error only clusters whose turn was before still run, so that the first of them is what is
      // reported.
      for (unsigned i; (i = next++) < clusters;) {
        {
          const std::lock_guard lock(mutex);
          if (i > error_at) break;
        }
        run_cluster(*cluster, order[i]);
        for (const Block& block : cluster->block) tiles_of_block[block.linear] = block.tiles;
        if (cluster->error != nullptr) {
          const std::lock_guard lock(mutex);
          if (i < error_at) {
            error = cluster->error;
            error_at = i;
          }
          cluster->error = nullptr;
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
      if (running.cluster == cluster.get()) collect(ledger, *cluster);
    }
    running = before;
    cluster_pool().give_back(std::move(cluster));
  };

  unsigned workers = launch.options->os_threads;
  if (workers == 0) workers = std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
  workers = std::min(workers, clusters);
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
