// The emulator, part by part: fibers, schedules, costs of memory instructions, races, collectives, memory,
// launches; and the ledger against counts made by hand.
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "common/ptx/cp_async.hpp"
#include "common/ptx/dependent_launch.hpp"
#include "common/ptx/named_barrier.hpp"
#include "common/simt/simt_host.hpp"
#include "zoo/attention_kernels.hpp"

namespace {

using namespace flashladder;
using namespace flashladder::simt;

// ---- fibers

Fiber main_fiber;
Fiber ping;
Fiber pong;
std::vector<int> visits;

void ping_main() {
  double kept = 0.5;
  for (int i = 0;; ++i) {
    visits.push_back(10 + i);
    kept *= 2;
    Fiber::switch_to(ping, pong);
    if (kept != std::ldexp(1.0, i)) visits.push_back(-1);
  }
}
void pong_main() {
  for (int i = 0; i < 3; ++i) {
    try {
      throw i;
    } catch (int caught) {
      visits.push_back(20 + caught);
    }
    Fiber::switch_to(pong, ping);
  }
  Fiber::leave(pong, main_fiber);
}

TEST_CASE("fibers take turns, keep their locals, and throw and catch on their own stacks", "[simt]") {
  const StackPool stacks(2);
  for (int round = 0; round < 2; ++round) {  // what is left on a stack does not disturb the next
    visits.clear();
    ping.prepare(stacks[0], ping_main);
    pong.prepare(stacks[1], pong_main, 192);
    Fiber::switch_to(main_fiber, ping);
    CHECK(visits == std::vector{10, 20, 11, 21, 12, 22, 13});
  }
}

void switch_forever() {
  for (;;) Fiber::switch_to(ping, main_fiber);
}

TEST_CASE("cost of a switch", "[.speed]") {
  const StackPool stacks(1);
  ping.prepare(stacks[0], switch_forever);
  constexpr int rounds = 5'000'000;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < rounds; ++i) Fiber::switch_to(main_fiber, ping);
  const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
  WARN("ns per switch: " << time.count() / rounds / 2);
}

// ---- schedules

std::vector<unsigned> order_of(Schedule schedule, std::uint64_t seed) {
  ReadyLanes ready;
  ready.add(0, 0b1011);
  ready.add(2, 0b110);
  std::mt19937_64 random(seed);
  std::vector<unsigned> order;
  ReadyLanes::Lane last = {0, 0};
  while (!ready.empty()) {
    last = ready.next(last, schedule, random);
    order.push_back(last.warp * 32 + last.lane);
    ready.remove(last);
  }
  return order;
}

TEST_CASE("schedules: forward, reverse, and any that a seed gives", "[simt]") {
  CHECK(order_of(Schedule::forward, 0) == std::vector{1u, 3u, 0u, 65u, 66u});
  CHECK(order_of(Schedule::reverse, 0) == std::vector{3u, 1u, 0u, 66u, 65u});
  std::set<std::vector<unsigned>> orders;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto order = order_of(Schedule::random, seed);
    CHECK(order == order_of(Schedule::random, seed));
    CHECK(std::set(order.begin(), order.end()) == std::set{0u, 1u, 3u, 65u, 66u});
    orders.insert(order);
  }
  CHECK(orders.size() > 10);
}

// ---- costs of memory instructions

/// One instruction of `lanes` lanes, each `bytes` bytes, lane i at `stride * i + start` bytes.
template <class CostOf>
Cost cost(CostOf cost_of, int lanes, std::uint8_t bytes, std::uint64_t stride, std::uint64_t start = 0) {
  std::vector<Access> all;
  for (int i = 0; i < lanes; ++i)
    all.push_back({start + stride * static_cast<std::uint64_t>(i), nullptr, 1, bytes,
                   static_cast<std::uint8_t>(i), AccessKind::shared_load});
  std::vector<const Access*> pointers;
  for (const Access& access : all) pointers.push_back(&access);
  return cost_of(pointers);
}

TEST_CASE("wavefronts of known patterns", "[simt]") {
  const auto shared = [](int lanes, std::uint8_t bytes, std::uint64_t stride) {
    const Cost c = cost(shared_cost, lanes, bytes, stride);
    return std::pair(c.actual, c.ideal);
  };
  using Pair = std::pair<std::uint64_t, std::uint64_t>;
  CHECK(shared(32, 4, 4) == Pair(1, 1));         // neighbours
  CHECK(shared(32, 4, 0) == Pair(1, 1));         // broadcast
  CHECK(shared(32, 4, 8) == Pair(2, 1));         // every second word
  CHECK(shared(32, 4, 32 * 4) == Pair(32, 1));   // a column of a tile of 32
  CHECK(shared(32, 4, 33 * 4) == Pair(1, 1));    // padded
  CHECK(shared(16, 4, 32 * 4) == Pair(16, 1));   // half of the lanes
  CHECK(shared(32, 2, 2) == Pair(1, 1));         // 16-bit elements, two per word
  CHECK(shared(32, 8, 8) == Pair(2, 2));         // two words a lane: half a warp at a time
  CHECK(shared(32, 16, 16) == Pair(4, 4));       // float4: a quarter
  CHECK(shared(32, 16, 32 * 4) == Pair(32, 4));  // float4, a column
  CHECK(shared(32, 16, 36 * 4) == Pair(4, 4));   // float4, padded by four
  CHECK(shared(32, 16, 0) == Pair(4, 4));        // float4, broadcast
}

TEST_CASE("sectors of known patterns", "[simt]") {
  const auto global = [](std::uint8_t bytes, std::uint64_t stride, std::uint64_t start) {
    const Cost c = cost(global_cost, 32, bytes, stride, start);
    return std::pair(c.actual, c.ideal);
  };
  using Pair = std::pair<std::uint64_t, std::uint64_t>;
  CHECK(global(4, 4, 0) == Pair(4, 4));      // coalesced
  CHECK(global(4, 4, 4) == Pair(5, 4));      // the same, one element off
  CHECK(global(4, 0, 0) == Pair(1, 1));      // broadcast
  CHECK(global(4, 32, 0) == Pair(32, 4));    // every eighth element
  CHECK(global(4, 256, 0) == Pair(32, 4));   // a column
  CHECK(global(16, 16, 0) == Pair(16, 16));  // float4
  CHECK(global(2, 2, 0) == Pair(2, 2));      // 16-bit elements
}

TEST_CASE("instructions are put together from lanes that took different ways", "[simt]") {
  SharedTraffic traffic;
  WarpLog log;
  const auto record = [&](unsigned lane, std::uint32_t line, std::uint64_t address) {
    log.record({address, &traffic, line, 4, static_cast<std::uint8_t>(lane), AccessKind::shared_load});
  };
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (lane < 16) record(lane, 1, lane * 4);                            // only half take this branch
    for (unsigned k = 0; k <= lane % 2; ++k) record(lane, 2, lane * 4);  // odd lanes go round twice
  }
  log.flush(~0u);
  CHECK(traffic.wavefronts == 3);  // the branch, the loop's first and second round
  log.flush(~0u);
  CHECK(traffic.wavefronts == 3);
}

// ---- races

TEST_CASE("races in shared memory", "[simt]") {
  SharedRaces races;
  races.begin(2);
  races.reserve(64);
  const auto use = [&](unsigned warp, unsigned lane, bool write, unsigned line) {
    const auto conflict = races.access(warp, lane, 8, 4, 4, write, Where::here("file", line));
    return conflict ? name_of(conflict->kind) + (":" + std::to_string(conflict->where.line)) : "";
  };
  const auto meet_all = [&] {
    SharedRaces::Clock clock = {};
    for (unsigned w : {0u, 1u}) races.arrive(clock, w);
    for (unsigned w : {0u, 1u}) races.leave(clock, w, true);
  };
  CHECK(use(0, 0, false, 1) == "uninitialised_shared:0");
  CHECK(use(0, 0, true, 2) == "");
  CHECK(use(0, 0, false, 3) == "");
  CHECK(use(0, 1, false, 4) == "race_within_warp:2");
  CHECK(use(1, 1, false, 5) == "race_shared:2");
  races.synchronise(0);
  CHECK(use(0, 1, false, 6) == "");
  CHECK(use(1, 1, false, 7) == "race_shared:2");
  meet_all();
  CHECK(use(1, 1, false, 8) == "");
  CHECK(use(1, 2, false, 9) == "");
  CHECK(use(0, 0, true, 10) == "race_shared:8");
  CHECK(use(1, 1, true, 11) == "race_within_warp:8");
  meet_all();
  CHECK(use(1, 1, true, 12) == "");
  CHECK(use(0, 0, true, 13) == "race_shared:12");

  SECTION("a new block has a clean slate") {
    races.begin(2);
    CHECK(use(0, 0, true, 1) == "");
    races.begin(2);
    CHECK(use(0, 0, false, 1) == "uninitialised_shared:0");
  }
  SECTION("who only arrives at a barrier learns nothing") {
    meet_all();
    CHECK(use(0, 0, true, 14) == "");
    SharedRaces::Clock clock = {};
    for (unsigned w : {0u, 1u}) races.arrive(clock, w);
    races.leave(clock, 0, false);
    races.leave(clock, 1, true);
    CHECK(use(1, 0, false, 15) == "");
    CHECK(use(0, 1, true, 16) == "race_shared:15");
  }
  SECTION("a copy is under way until it is waited for") {
    meet_all();
    CHECK(use(0, 0, true, 17) == "");
    races.begin_copy(8, 4, 4);
    CHECK(use(0, 0, false, 18) == "missing_wait:17");
    meet_all();
    CHECK(use(1, 0, false, 19) == "missing_wait:17");
    const auto conflict = races.end_copy(0, 0, 8, 4, 4, Where::here("file", 17));
    REQUIRE(conflict);
    CHECK(conflict->kind == ErrorKind::race_shared);
    CHECK(conflict->where.line == 19);
  }
}

Options options_for(Schedule schedule, std::uint64_t seed = 0) {
  Options options;
  options.banks = true;
  options.check = true;
  options.schedule = schedule;
  options.seed = seed;
  return options;
}

TEST_CASE("races in global memory", "[simt]") {
  using Use = GlobalMarks::Use;
  GlobalMarks marks(4);
  const auto use = [&](std::int64_t i, Use how, std::uint32_t launch, std::uint32_t block,
                       bool initialised = true) {
    const auto conflict = marks.access(i, how, launch, launch, block, initialised, Where::here("file", 1));
    return conflict ? name_of(conflict->kind) : "";
  };
  CHECK(use(0, Use::read, 1, 0, false) == std::string("uninitialised_global"));
  CHECK(!marks.written(0));
  CHECK(use(0, Use::write, 1, 0) == std::string());
  CHECK(marks.written(0));
  CHECK(use(0, Use::read, 1, 0, false) == std::string());
  CHECK(use(0, Use::read, 1, 1) == std::string("race_global"));
  CHECK(use(0, Use::read, 2, 1, false) == std::string());         // the next launch
  CHECK(use(0, Use::write, 2, 0) == std::string("race_global"));  // read by block 1
  CHECK(use(1, Use::read, 1, 0) == std::string());
  CHECK(use(1, Use::read, 1, 1) == std::string());
  CHECK(use(1, Use::write, 1, 0) == std::string("race_global"));  // both have read it
  CHECK(use(2, Use::atomic, 1, 0) == std::string());
  CHECK(use(2, Use::atomic, 1, 1) == std::string());  // atomic operations do not race
  CHECK(use(2, Use::read, 1, 0) == std::string("race_global"));
  CHECK(use(3, Use::write, 1, 0) == std::string());
  CHECK(use(3, Use::atomic, 1, 1) == std::string("race_global"));
}

TEST_CASE("what a kernel before, that may still run, does to global memory", "[simt]") {
  using Use = GlobalMarks::Use;
  GlobalMarks marks(3);
  // Launch 4 may begin before 3 has ended, and 3 before 2 has; 1 has ended.
  const auto use = [&](std::int64_t i, Use how, std::uint32_t launch, std::uint32_t unfinished) {
    const auto conflict = marks.access(i, how, launch, unfinished, 0, true, Where::here("file", launch));
    return conflict ? name_of(conflict->kind) : "";
  };
  const std::string right, wrong = "missing_grid_wait";
  CHECK(use(0, Use::write, 1, 1) == right);
  CHECK(use(0, Use::read, 3, 2) == right);   // which has ended
  CHECK(use(0, Use::write, 4, 2) == wrong);  // 3 has read it
  CHECK(use(1, Use::write, 2, 2) == right);
  CHECK(use(1, Use::read, 3, 2) == wrong);
  CHECK(use(1, Use::atomic, 4, 2) == wrong);
  CHECK(use(1, Use::read, 4, 4) == right);  // who has waited
  CHECK(use(2, Use::atomic, 2, 2) == right);
  CHECK(use(2, Use::atomic, 3, 2) == right);  // atomic operations do not race
  CHECK(use(2, Use::read, 4, 2) == wrong);
}

__global__ void add_one(gmem<f32> x) {
  grid_dependency_wait();
  x[threadIdx.x] += 1.f;
}

TEST_CASE("launches that need not wait are counted, and run one after the other", "[simt]") {
  Emulator emulator(options_for(Schedule::forward));
  const UseEmulator use(emulator);
  DeviceBuffer<f32> x("x", 32);
  x.fill_zero();
  launch("add_one", add_one, dim3(1), dim3(32), 0, x);
  launch_dependent("add_one", add_one, dim3(1), dim3(32), 0, x);
  launch_dependent("add_one", add_one, dim3(1), dim3(32), 0, x);
  CHECK(emulator.launches()[0].dependent_launches == 0);
  CHECK(emulator.last().dependent_launches == 1);
  CHECK(emulator.total().dependent_launches == 2);
  std::vector<float> found(32);
  x.download(found.data());
  CHECK(found == std::vector<float>(32, 3.f));
}

// ---- collectives

__global__ void all_shuffles(gmem<int> out) {
  const int t = threadIdx.x;
  int at = 0;
  out[at++ * 64 + t] = __shfl_xor_sync(~0u, t, 5);
  out[at++ * 64 + t] = __shfl_sync(~0u, t, 7);
  out[at++ * 64 + t] = __shfl_down_sync(~0u, t, 3);
  out[at++ * 64 + t] = __shfl_up_sync(~0u, t, 3);
  out[at++ * 64 + t] = __shfl_down_sync(~0u, t, 3, 8);
  out[at++ * 64 + t] = __shfl_up_sync(~0u, t, 3, 8);
  out[at++ * 64 + t] = __shfl_sync(~0u, t, 9, 8);
  const int half = t % 32 < 16 ? 0xffff : int(0xffff0000u);
  out[at++ * 64 + t] = __shfl_xor_sync(unsigned(half), t, 1);
}

TEST_CASE("shuffles move what CUDA says they move", "[simt]") {
  for (const Schedule schedule : {Schedule::forward, Schedule::reverse, Schedule::random}) {
    Emulator emulator(options_for(schedule));
    const UseEmulator use(emulator);
    DeviceBuffer<int> out("out", 8 * 64);
    launch("all_shuffles", all_shuffles, dim3(1), dim3(64), 0, out);
    std::vector<int> got(8 * 64);
    out.download(got.data());
    std::vector<int> want(8 * 64);
    for (int t = 0; t < 64; ++t) {
      const int lane = t % 32, warp = t - lane, in_8 = t % 8;
      want[0 * 64 + t] = warp + (lane ^ 5);
      want[1 * 64 + t] = warp + 7;
      want[2 * 64 + t] = lane + 3 < 32 ? t + 3 : t;
      want[3 * 64 + t] = lane - 3 >= 0 ? t - 3 : t;
      want[4 * 64 + t] = in_8 + 3 < 8 ? t + 3 : t;
      want[5 * 64 + t] = in_8 - 3 >= 0 ? t - 3 : t;
      want[6 * 64 + t] = t - in_8 + 1;
      want[7 * 64 + t] = t ^ 1;
    }
    CHECK(got == want);
    CHECK(emulator.last().shuffles == 2 * 7 + 4);  // once per warp; the halves shuffle apart
  }
}

/// Warp 0 fills, warp 1 uses: full and empty as named barriers.
__global__ void producer_consumer(gmem<const f32> in, gmem<f32> out, int tiles) {
  __shared__ smem_array<f32, 32, 1, "tile"> tile;
  const int lane = threadIdx.x % 32;
  for (int k = 0; k < tiles; ++k) {
    if (threadIdx.x < 32) {
      if (k > 0) named_barrier_sync(2, 64);  // until the last tile is used
      tile[lane] = in[k * 32 + lane];
      named_barrier_arrive(1, 64);
    } else {
      named_barrier_sync(1, 64);  // until the tile is full
      out[k * 32 + lane] = tile[31 - lane] + 1.f;
      if (k + 1 < tiles) named_barrier_arrive(2, 64);
    }
  }
}

TEST_CASE("named barriers order a producer and a consumer", "[simt]") {
  for (const Schedule schedule : {Schedule::forward, Schedule::reverse, Schedule::random}) {
    Emulator emulator(options_for(schedule, 7));
    const UseEmulator use(emulator);
    DeviceBuffer<f32> in("in", 128), out("out", 128);
    std::vector<float> numbers(128), got(128);
    std::iota(numbers.begin(), numbers.end(), 0.f);
    in.upload(numbers.data());
    launch("producer_consumer", producer_consumer, dim3(1), dim3(64), 0, in, out, 4);
    out.download(got.data());
    for (int i = 0; i < 128; ++i) CHECK(got[i] == static_cast<float>(i / 32 * 32 + 31 - i % 32 + 1));
    CHECK(emulator.last().named_barriers == 4 + 3);
    CHECK(emulator.last().barriers == 0);
  }
}

// ---- memory

TEST_CASE("fresh device memory is NaN and counted, a view is what it shows", "[simt]") {
  const std::uint64_t before = GlobalBuffer::bytes_in_use();
  GlobalBuffer::reset_peak();
  {
    DeviceBuffer<f32> fresh("fresh", 10);
    CHECK(GlobalBuffer::bytes_in_use() == before + 40);
    std::vector<float> got(10);
    fresh.download(got.data());
    for (const float x : got) CHECK(std::isnan(x));
    std::vector<float> mine(10, 3.f);
    const auto view = DeviceBuffer<f32>::view("mine", mine.data(), 10);
    CHECK(GlobalBuffer::bytes_in_use() == before + 40);
    view.download(got.data());
    CHECK(got == mine);
  }
  CHECK(GlobalBuffer::bytes_in_use() == before);
  CHECK(GlobalBuffer::peak_bytes() == before + 40);
  CHECK_THROWS_AS((DeviceBuffer<f32>("negative", -1)), Error);
}

__global__ void vectors(gmem<const f32> a, gmem<f32> b) {
  smem<f32> low = dynamic_smem<f32, "low">();
  smem<f32> high = dynamic_smem<f32, "high">(512);
  const int t = threadIdx.x;
  store4(low + 4 * t, load4(a + 4 * t));
  __syncthreads();
  const float4 v = load4(low + 4 * (31 - t));
  high[t] = v.x + v.w;
  gmem<f32> to = b;
  to += 1;
  to[t] = high[t];
  to[t] *= 2.f;
  to[t] -= 1.f;
}

__global__ void pairs(gmem<const f32> a, gmem<f32> b, int first) {
  const int t = threadIdx.x;
  const float2 v = load2(a + (2 * t + first));
  b[t] = 100.f * v.x + v.y;
}

TEST_CASE("pairs of numbers are read at once, from even places on", "[simt]") {
  Emulator emulator(options_for(Schedule::forward));
  const UseEmulator use(emulator);
  DeviceBuffer<f32> a("a", 66), b("b", 32);
  std::vector<float> numbers(66), got(32);
  std::iota(numbers.begin(), numbers.end(), 0.f);
  a.upload(numbers.data());
  launch("pairs", pairs, dim3(1), dim3(32), 0, a, b, 2);
  b.download(got.data());
  for (int t = 0; t < 32; ++t)
    CHECK(got[t] == 100 * static_cast<float>(2 * t + 2) + static_cast<float>(2 * t + 3));
  CHECK(emulator.last().global.at("a").read_bytes == 256);
  CHECK_THROWS_AS(launch("pairs", pairs, dim3(1), dim3(32), 0, a, b, 1), KernelError);
}

TEST_CASE("vectors, dynamic shared memory, and elements that are read and written", "[simt]") {
  Emulator emulator(options_for(Schedule::forward));
  const UseEmulator use(emulator);
  DeviceBuffer<f32> a("a", 128), b("b", 33);
  std::vector<float> numbers(128), got(33);
  std::iota(numbers.begin(), numbers.end(), 0.f);
  a.upload(numbers.data());
  launch("vectors", vectors, dim3(1), dim3(32), 512 + 128, a, b);
  b.download(got.data());
  CHECK(std::isnan(got[0]));
  for (int t = 0; t < 32; ++t) CHECK(got[t + 1] == 2.f * static_cast<float>(8 * (31 - t) + 3) - 1.f);
  const Ledger& ledger = emulator.last();
  CHECK(ledger.global.at("a").read_bytes == 512);
  CHECK(ledger.global.at("a").read_elements() == 128);
  CHECK(ledger.global.at("a").distinct_read_bytes == 512);
  CHECK(ledger.global.at("b").distinct_written_bytes == 3 * 128);
  CHECK(ledger.global.at("a").sectors == 16);
  CHECK(ledger.global.at("a").ideal_sectors == 16);
  CHECK(ledger.global.at("b").written_bytes == 3 * 128);
  CHECK(ledger.global.at("b").read_bytes == 2 * 128);
  CHECK(ledger.global.at("b").sectors == 5 * 5);  // one element off
  CHECK(ledger.shared.at("low").read_bytes == 512);
  CHECK(ledger.shared.at("low").written_bytes == 512);
  CHECK(ledger.shared.at("low").wavefronts == 8);
  CHECK(ledger.shared.at("high").array_bytes == 128);
  CHECK(ledger.shared.at("high").wavefronts == 2);
  CHECK(ledger.shared_bytes_per_block == 640);
  CHECK_THROWS_AS(launch("vectors", vectors, dim3(1), dim3(32), 512, a, b), KernelError);
  CHECK_THROWS_AS(launch("vectors", vectors, dim3(1), dim3(32), 256, a, b), KernelError);
  CHECK_THROWS_AS(launch("vectors", vectors, dim3(1), dim3(32), 640, gmem<f32>(), b), KernelError);
}

__device__ void fill_row(smem_tile<f32, 128, 129>& tile, int row) {
  for (int j = 0; j < 129; ++j) tile(row, j) = f32(row + j);
}
__global__ void large_tile(gmem<f32> out) {
  auto&& tile = dynamic_tile<f32, 128, 129, "tile">(64);
  fill_row(tile, threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = tile(127 - threadIdx.x, threadIdx.x);
}

TEST_CASE("a tile in dynamic shared memory may be larger than declared arrays", "[simt]") {
  Emulator emulator(options_for(Schedule::reverse));
  const UseEmulator use(emulator);
  DeviceBuffer<f32> out("out", 128);
  constexpr std::size_t bytes = 128 * 129 * 4;
  launch("large_tile", large_tile, dim3(1), dim3(128), 64 + bytes, out.ptr());
  CHECK(emulator.last().shared.at("tile").array_bytes == bytes);
  CHECK(emulator.last().shared.at("tile").written_bytes == bytes);
  try {
    launch("large_tile", large_tile, dim3(1), dim3(128), bytes, out);
    CHECK(false);
  } catch (const KernelError& error) {
    CHECK(error.kind == ErrorKind::out_of_bounds_shared);
    CHECK(error.buffer == "tile");
  }
}

__global__ void sums(gmem<f32> total, gmem<int> counts) {
  atomic_add(total, 1.f);
  atomic_add(counts + blockIdx.x % 2, 1);
}

TEST_CASE("atomic operations lose nothing, from any number of OS threads", "[simt]") {
  for (const unsigned os_threads : {1u, 2u}) {
    Options options = options_for(Schedule::forward);
    options.os_threads = os_threads;
    Emulator emulator(options);
    const UseEmulator use(emulator);
    DeviceBuffer<f32> total("total", 1);
    DeviceBuffer<int> counts("counts", 2);
    total.fill_zero();
    counts.fill_zero();
    launch("sums", sums, dim3(9), dim3(64), 0, total, counts);
    float sum;
    int count[2];
    total.download(&sum);
    counts.download(count);
    CHECK(sum == 9 * 64);
    CHECK(count[0] == 5 * 64);
    CHECK(count[1] == 4 * 64);
    CHECK(emulator.last().atomics == 2 * 9 * 64);
    CHECK(emulator.last().global.at("total").atomic_elements() == 9 * 64);
    CHECK(emulator.last().add == 9 * 64);
  }
}

__global__ void turns(gmem<int> next, gmem<int> order) {
  if (threadIdx.x == 0) order[atomic_add(next, 1)] = static_cast<int>(blockIdx.x);
}

TEST_CASE("blocks of one OS thread begin in the schedule's order", "[simt]") {
  constexpr int blocks = 9;
  const auto order_of_blocks = [&](Schedule schedule, std::uint64_t seed) {
    Options options = options_for(schedule, seed);
    options.os_threads = 1;
    Emulator emulator(options);
    const UseEmulator use(emulator);
    DeviceBuffer<int> next("next", 1), order("order", blocks);
    next.fill_zero();
    launch("turns", turns, dim3(blocks), dim3(32), 0, next, order);
    std::vector<int> all(blocks);
    order.download(all.data());
    return all;
  };
  std::vector<int> upwards(blocks);
  std::iota(upwards.begin(), upwards.end(), 0);
  CHECK(order_of_blocks(Schedule::forward, 0) == upwards);
  CHECK(order_of_blocks(Schedule::reverse, 0) == std::vector<int>(upwards.rbegin(), upwards.rend()));
  std::set<std::vector<int>> orders;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<int> order = order_of_blocks(Schedule::random, seed);
    CHECK(order == order_of_blocks(Schedule::random, seed));
    CHECK(std::ranges::is_permutation(order, upwards));
    orders.insert(order);
  }
  CHECK(orders.size() > 10);
}

// ---- the ledger, against counts made by hand

__global__ void every_operation(gmem<const f32> a, gmem<f32> b) {
  f32 x = a[threadIdx.x];
  f32 y = x + 1.f;          // add
  y += x - 2.f;             // add, add
  y -= 1;                   // add
  y = x * y;                // mul
  y *= 3.f;                 // mul
  y = y / x;                // div
  y /= 2.f;                 // div
  y = fmaxf(x, y);          // max
  y = fminf(1.f, y);        // max
  y = __expf(y);            // exp
  y = exp2f(y) + expf(-y);  // exp, exp, add
  y = logf(y) + __logf(y);  // log, log, add
  y = fmaf(x, y, 1.f);      // mul, add
  mac(y, x, x);             // 2 FLOPs
  if (x < y || x == y || fabsf(x) > y) y = -y;
  b[blockIdx.x * 32 + threadIdx.x] = y;
}

TEST_CASE("operations are counted by kind", "[simt]") {
  Emulator emulator;
  const UseEmulator use(emulator);
  DeviceBuffer<f32> a("a", 32), b("b", 64);
  a.upload(std::vector<float>(32, 1.5f).data());
  launch("every_operation", every_operation, dim3(2), dim3(32), 0, a, b);
  const Ledger& ledger = emulator.last();
  CHECK(ledger.kernel == "every_operation");
  CHECK(ledger.blocks == 2);
  CHECK(ledger.add == 7 * 64);
  CHECK(ledger.mul == 3 * 64);
  CHECK(ledger.div == 2 * 64);
  CHECK(ledger.max == 2 * 64);
  CHECK(ledger.exp == 3 * 64);
  CHECK(ledger.log == 2 * 64);
  CHECK(ledger.flops_cuda_cores == 2 * 64);
  CHECK(ledger.flops_tensor_cores == 0);
  CHECK(ledger.global.at("a").read_elements() == 64);
  CHECK(ledger.global.at("b").written_elements() == 64);
  CHECK(ledger.global_total().read_elements() == 64);
  CHECK(!ledger.banks_analysed);
  CHECK(ledger.device_bytes >= 384);
}

__global__ void transpose_bare(gmem<const f32> a, gmem<f32> b) {
  __shared__ smem_array<f32, 32, 32, "bare"> bare;
  for (int i = 0; i < 32; ++i) bare(i, threadIdx.x) = a[i * 32 + threadIdx.x];
  __syncthreads();
  for (int i = 0; i < 32; ++i) b[i * 32 + threadIdx.x] = bare(threadIdx.x, i);
}
__global__ void transpose_padded(gmem<const f32> a, gmem<f32> b) {
  __shared__ smem_array<f32, 32, 33, "padded"> padded;
  for (int i = 0; i < 32; ++i) padded(i, threadIdx.x) = a[i * 32 + threadIdx.x];
  __syncthreads();
  for (int i = 0; i < 32; ++i) b[i * 32 + threadIdx.x] = padded(threadIdx.x, i);
}

TEST_CASE("padding a tile takes its bank conflicts away", "[simt]") {
  Emulator emulator(options_for(Schedule::forward));
  const UseEmulator use(emulator);
  DeviceBuffer<f32> a("a", 1024), b("b", 1024);
  a.fill_zero();
  launch("transpose_bare", transpose_bare, dim3(1), dim3(32), 0, a, b);
  const SharedTraffic bare = emulator.last().shared.at("bare");
  launch("transpose_padded", transpose_padded, dim3(1), dim3(32), 0, a, b);
  const SharedTraffic padded = emulator.last().shared.at("padded");
  CHECK(bare.array_bytes == 4096);
  CHECK(bare.wavefronts == 32 + 32 * 32);
  CHECK(bare.ideal_wavefronts == 64);
  CHECK(padded.array_bytes == 32 * 33 * 4);
  CHECK(padded.wavefronts == 64);
  CHECK(padded.ideal_wavefronts == 64);
  CHECK(emulator.last().global_total().sectors == 2 * 128);
  CHECK(emulator.last().global_total().ideal_sectors == 2 * 128);
  const Ledger total = emulator.total();
  CHECK(total.kernel == "");
  CHECK(total.blocks == 2);
  CHECK(total.shared.size() == 2);
  CHECK(total.shared_total().wavefronts == bare.wavefronts + padded.wavefronts);
  CHECK(total.global.at("a").read_bytes == 2 * 4096);
  CHECK(total.shared_bytes_per_block == 32 * 33 * 4);
}

__global__ void two_stages(gmem<const f32> a, gmem<f32> b) {
  __shared__ smem_array<f32, 2, 128, "tile"> tile;
  const int t = threadIdx.x;
  cp_async_16B(tile.at(0, 4 * t), a + 4 * t);
  cp_async_commit();
  cp_async_16B(tile.at(1, 4 * t), a + (128 + 4 * t), t < 16);
  cp_async_commit();
  cp_async_wait<1>();
  __syncthreads();
  b[t] = tile(0, 127 - t);
  cp_async_wait<0>();
  __syncthreads();
  b[32 + t] = tile(1, 127 - t);
  b[64 + t] = tile(1, t);
  count_tile(t < 16);
  count_tile();
}

TEST_CASE("asynchronous copies arrive when they are waited for, and are seen under way", "[simt]") {
  for (const Schedule schedule : {Schedule::forward, Schedule::reverse, Schedule::random}) {
    Emulator emulator(options_for(schedule));
    const UseEmulator use(emulator);
    DeviceBuffer<f32> a("a", 256), b("b", 96);
    std::vector<float> numbers(256);
    std::iota(numbers.begin(), numbers.end(), 1.f);
    a.upload(numbers.data());
    launch("two_stages", two_stages, dim3(1), dim3(32), 0, a, b);
    std::vector<float> got(96);
    b.download(got.data());
    for (int t = 0; t < 32; ++t) {
      CHECK(got[t] == numbers[127 - t]);
      CHECK(got[32 + t] == 0.f);  // the half that was not valid
      CHECK(got[64 + t] == numbers[128 + t]);
    }
    const Ledger& ledger = emulator.last();
    CHECK(ledger.async_copies == 64);
    CHECK(ledger.bytes_in_flight == 16 * 16);  // at the first barrier; none at the second
    CHECK(ledger.most_bytes_in_flight == 16 * 16);
    CHECK(ledger.global.at("a").read_bytes == (32 + 16) * 16);
    CHECK(ledger.shared.at("tile").written_bytes == 64 * 16);
    CHECK(ledger.tiles == 2);
    CHECK(ledger.masked_tiles == 1);
  }
}

__global__ void three_tiles() {
  ask_for_row(7);  // before the first tile: about none
  for (int tile = 0; tile < 3; ++tile) {
    count_tile();
    for (int row : {0, 31}) ask_for_row(row);                   // all lanes for the same two
    if (tile == 1) ask_for_row(static_cast<int>(threadIdx.x));  // each for its own
    __syncthreads();
  }
}

TEST_CASE("a tile is masked where lanes ask for rows of their own, whatever is said of it", "[simt]") {
  for (const Schedule schedule : {Schedule::forward, Schedule::reverse, Schedule::random}) {
    Emulator emulator(options_for(schedule));
    const UseEmulator use(emulator);
    launch("three_tiles", three_tiles, dim3(2), dim3(64), 0);
    CHECK(emulator.last().tiles == 2 * 3);
    CHECK(emulator.last().masked_tiles == 2 * 1);
  }
}

__global__ void unequal(gmem<f32> out, int work) {
  __shared__ smem_array<f32, 32, 1, "x"> x;
  const int t = threadIdx.x;
  f32 sum = 0.f;
  const int mine = t == 5 && blockIdx.x == 1 ? 10 * work : work;
  for (int i = 0; i < mine; ++i) sum += 1.f;
  __syncwarp();
  for (int i = 0; i < mine; ++i) sum *= 2.f;
  for (int i = 0; i < mine; ++i) x[t] = sum;
  out[32 * static_cast<int>(blockIdx.x) + t] = sum;
}

TEST_CASE("the busiest thread of all is told of, launch after launch", "[simt]") {
  for (const Schedule schedule : {Schedule::forward, Schedule::reverse, Schedule::random}) {
    Options options = options_for(schedule);
    options.banks = true;
    Emulator emulator(options);
    const UseEmulator use(emulator);
    DeviceBuffer<f32> out("out", 96);
    for (const int work : {3, 4}) launch("unequal", unequal, dim3(3), dim3(32), 0, out, work);
    const Busiest busiest = emulator.total().busiest;
    CHECK(busiest.operations == 2 * (30 + 40));
    CHECK(busiest.shared == 30 + 40);
    CHECK(busiest.global == 1 + 1);
  }
}

__device__ int helper() {
  __shared__ smem_array<int, 32> mine;
  mine[threadIdx.x] = 1;
  return mine[threadIdx.x];
}
__global__ void nameless(gmem<int> out) {
  __shared__ smem_array<int, 32> a, b;
  a[threadIdx.x] = 10;
  b[threadIdx.x] = 20;
  const int both = a[threadIdx.x] + b[threadIdx.x];
  out[threadIdx.x] = both + helper() + helper();
}

TEST_CASE("each declaration is an array of its own, with or without a name", "[simt]") {
  Emulator emulator(options_for(Schedule::random));
  const UseEmulator use(emulator);
  DeviceBuffer<int> out("out", 32);
  launch("nameless", nameless, dim3(1), dim3(32), 0, out);
  std::vector<int> got(32);
  out.download(got.data());
  CHECK(got == std::vector<int>(32, 32));
  CHECK(emulator.last().shared_bytes_per_block == 3 * 128);
  CHECK(emulator.last().shared.at("(unnamed)").read_bytes == 4 * 128);
}

// ---- attention kernels: closed forms, and the same ledger however they are run

struct AttentionRun {
  std::vector<float> O;
  std::vector<Ledger> ledgers;
};

AttentionRun run_attention(const Options& options, int algorithm, int BH, int N) {
  constexpr int d = 32;
  Emulator emulator(options);
  const UseEmulator use(emulator);
  const std::int64_t size = std::int64_t{BH} * N * d;
  DeviceBuffer<f32> Q("Q", size), K("K", size), V("V", size), O("O", size),
      S("S", std::int64_t{BH} * N * N);
  DeviceBuffer<f32> l("l", std::int64_t{BH} * N), m("m", std::int64_t{BH} * N),
      L("L", std::int64_t{BH} * N);
  std::vector<float> numbers(static_cast<std::size_t>(size));
  unsigned state = 1;
  for (DeviceBuffer<f32>* buffer : {&Q, &K, &V}) {
    for (float& x : numbers)
      x = static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1.f;
    buffer->upload(numbers.data());
  }
  const unsigned tiles = static_cast<unsigned>(N) / 32, heads = static_cast<unsigned>(BH);
  if (algorithm == 0) {
    launch("naive_scores", zoo::naive_scores, dim3(2 * tiles, 2 * tiles, heads), dim3(16, 16), 0, Q, K, S,
           N, d, 0.2f);
    launch("naive_softmax", zoo::naive_softmax, dim3(static_cast<unsigned>(BH * N)), dim3(128), 0, S, N);
    launch("naive_pv", zoo::naive_pv, dim3(4 * tiles, heads), dim3(32, 8), 0, S, V, O, N, d);
  } else if (algorithm == 1) {
    launch("fa1", zoo::fa1_forward<d>, dim3(heads), dim3(128), 0, Q, K, V, O, l, m, N, 0.2f);
  } else {
    launch("fa2", zoo::fa2_forward<d>, dim3(tiles, heads), dim3(128), 0, Q, K, V, O, L, N, 0.2f);
  }
  O.emulated().require_written();
  AttentionRun run = {std::vector<float>(static_cast<std::size_t>(size)), emulator.launches()};
  O.download(run.O.data());
  return run;
}

TEST_CASE("attention kernels: traffic in closed form, and one result", "[simt]") {
  const std::uint64_t BH = 2, N = 96, d = 32, Br = 32, Bc = 32, Tr = N / Br, Tc = N / Bc;
  const AttentionRun naive = run_attention({}, 0, 2, 96);
  const AttentionRun fa1 = run_attention({}, 1, 2, 96);
  const AttentionRun fa2 = run_attention({}, 2, 2, 96);
  for (std::size_t i = 0; i < naive.O.size(); ++i) {
    CHECK(std::abs(naive.O[i] - fa1.O[i]) < 1e-5f);
    CHECK(std::abs(naive.O[i] - fa2.O[i]) < 1e-5f);
  }
  CHECK(naive.ledgers[0].global_total().read_elements() == BH * 2 * N * N * d);
  CHECK(naive.ledgers[0].global_total().written_elements() == BH * N * N);
  // A GPU's counter smsp__sass_data_bytes_mem_global_op_ld counts bytes that lanes share once: in a warp of
  // 2 x 16 scores, 2 elements of Q and 16 of K.
  Options banks;
  banks.banks = true;
  CHECK(run_attention(banks, 0, 2, 96).ledgers[0].global_total().distinct_read_bytes ==
        BH * N * N / 32 * d * (2 + 16) * 4);
  CHECK(naive.ledgers[1].global_total().read_elements() == BH * 3 * N * N);
  CHECK(naive.ledgers[2].flops_cuda_cores == 2 * BH * N * N * d);
  const Ledger& one = fa1.ledgers[0];
  CHECK(one.global_total().read_elements() == BH * (2 * N * d + Tc * N * d + (Tc - 1) * (N * d + 2 * N)));
  CHECK(one.global_total().written_elements() == BH * Tc * (N * d + 2 * N));
  CHECK(one.global.at("O").written_elements() == BH * Tc * N * d);
  CHECK(one.exp == BH * Tc * (N * Bc + 2 * 4 * N));
  CHECK(one.barriers == BH * (Tc + 2 * Tc * Tr));
  CHECK(one.tiles == BH * Tr * Tc);
  CHECK(one.blocks == BH);
  const Ledger& two = fa2.ledgers[0];
  CHECK(two.global_total().read_elements() == BH * (N * d + 2 * Tr * N * d));
  CHECK(two.global_total().written_elements() == BH * (N * d + N));
  CHECK(two.flops_cuda_cores == 4 * BH * N * N * d);
  CHECK(two.tiles == two.flops_cuda_cores / (4 * Br * Bc * d));
  CHECK(two.div == BH * N * 4);
  CHECK(two.blocks == BH * Tr);
  CHECK(two.shared_bytes_per_block == (3 * 32 * (d + 1) + 32 * 33) * 4);
}

TEST_CASE("the ledger and the result depend on no schedule and no number of OS threads", "[simt]") {
  for (const int algorithm : {0, 1, 2}) {
    const AttentionRun want = run_attention(options_for(Schedule::forward), algorithm, 1, 64);
    for (const Schedule schedule : {Schedule::forward, Schedule::reverse, Schedule::random}) {
      for (const unsigned os_threads : {1u, 2u}) {
        Options options = options_for(schedule, 5);
        options.os_threads = os_threads;
        const AttentionRun got = run_attention(options, algorithm, 1, 64);
        CHECK(got.O == want.O);
        REQUIRE(got.ledgers.size() == want.ledgers.size());
        for (std::size_t i = 0; i < got.ledgers.size(); ++i)
          CHECK(got.ledgers[i].entries() == want.ledgers[i].entries());
      }
    }
    // Without analysis the rest of the counts is the same.
    const AttentionRun plain = run_attention({}, algorithm, 1, 64);
    CHECK(plain.O == want.O);
    for (std::size_t i = 0; i < plain.ledgers.size(); ++i) {
      CHECK(static_cast<const Counters&>(plain.ledgers[i]) == want.ledgers[i]);
      CHECK(plain.ledgers[i].global_total().read_bytes == want.ledgers[i].global_total().read_bytes);
      CHECK(plain.ledgers[i].shared_total().read_bytes == want.ledgers[i].shared_total().read_bytes);
    }
  }
}

// ---- launches

__global__ void fails_from(gmem<f32> a, int first) {
  a[int(blockIdx.x) >= first ? 1000 : int(blockIdx.x)] = 1.f;
}
__global__ void shapes(gmem<int> out) {
  const int block = int(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
  const int thread = int(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
  out[block * 64 + thread] = block * 64 + thread;
}

#if !defined(FLASHLADDER_ASAN) && !defined(FLASHLADDER_TSAN)
__device__ int deep(gmem<int> out, int n) {
  volatile int frame[64] = {n};
  if (n == 0) return 0;
  return deep(out, n - 1) + frame[0];
}
__global__ void recursive(gmem<int> out, int depth) {
  __syncthreads();
  out[threadIdx.x] = deep(out, int(threadIdx.x) == 40 ? depth : 1);
}
__global__ void large_array(gmem<int> out, int n) {
  volatile int local[60000];  // more than a page beyond the stack's end
  for (int i = 0; i < n; ++i) local[i] = i;
  out[threadIdx.x] = local[0];
}

TEST_CASE("a thread that uses up its stack is an error, not a crash", "[simt]") {
  for (const unsigned os_threads : {1u, 2u}) {
    Options options;
    options.os_threads = os_threads;
    Emulator emulator(options);
    const UseEmulator use(emulator);
    DeviceBuffer<int> out("out", 64);
    for (int round = 0; round < 3; ++round) {
      try {
        launch("recursive", recursive, dim3(3), dim3(64), 0, out, 1'000'000);
        CHECK(false);
      } catch (const KernelError& error) {
        CHECK(error.kind == ErrorKind::stack_overflow);
        CHECK(error.thread.x == 40);
      }
      launch("recursive", recursive, dim3(1), dim3(64), 0, out, 2);
      try {
        launch("large_array", large_array, dim3(1), dim3(64), 0, out, 60000);
        CHECK(false);
      } catch (const KernelError& error) {
        CHECK(error.kind == ErrorKind::stack_overflow);
      }
    }
    std::vector<int> got(64);
    out.download(got.data());
    CHECK(got[0] == 1);
    CHECK(got[40] == 3);
  }
}
#endif

TEST_CASE("a grid runs every thread of every block once", "[simt]") {
  DeviceBuffer<int> out("out", 24 * 64);
  launch("shapes", shapes, dim3(2, 3, 4), dim3(4, 2, 8), 0, out);
  std::vector<int> got(24 * 64), want(24 * 64);
  out.download(got.data());
  std::iota(want.begin(), want.end(), 0);
  CHECK(got == want);
}

TEST_CASE("the first block in error is the one reported, from any number of OS threads", "[simt]") {
  for (const unsigned os_threads : {1u, 2u, 4u}) {
    Options options;
    options.os_threads = os_threads;
    Emulator emulator(options);
    const UseEmulator use(emulator);
    DeviceBuffer<f32> a("a", 100);
    try {
      launch("fails_from", fails_from, dim3(40), dim3(32), 0, a, 7);
      CHECK(false);
    } catch (const KernelError& error) {
      CHECK(error.block.x == 7);
      CHECK(error.kind == ErrorKind::out_of_bounds_global);
    }
    CHECK(emulator.launches().empty());
  }
}

TEST_CASE("launches that no GPU takes", "[simt]") {
  DeviceBuffer<f32> a("a", 100);
  const auto kind = [&](dim3 grid, dim3 block, std::size_t shared_bytes) -> std::string {
    try {
      launch("fails_from", fails_from, grid, block, shared_bytes, a, 1000);
    } catch (const KernelError& error) {
      return name_of(error.kind);
    }
    return "";
  };
  CHECK(kind(dim3(1), dim3(32), 0) == "");
  CHECK(kind(dim3(0), dim3(32), 0) == "bad_launch");
  CHECK(kind(dim3(1, 70000), dim3(32), 0) == "bad_launch");
  CHECK(kind(dim3(1), dim3(33), 0) == "bad_launch");
  CHECK(kind(dim3(1), dim3(2048), 0) == "bad_launch");
  CHECK(kind(dim3(1), dim3(32), 228 << 10) == "too_much_shared");
  CHECK(kind(dim3(1), dim3(32), std::size_t{1} << 40) == "too_much_shared");
  CHECK(kind(dim3(1), dim3(32), 227 << 10) == "");
}

TEST_CASE("each OS thread has its current emulator", "[simt]") {
  Emulator outer, inner;
  DeviceBuffer<f32> a("a", 100);
  const auto run = [&] { launch("fails_from", fails_from, dim3(1), dim3(32), 0, a, 1000); };
  {
    const UseEmulator use_outer(outer);
    run();
    {
      const UseEmulator use_inner(inner);
      run();
      run();
    }
    std::thread([&] { run(); }).join();  // to that thread's default emulator
    run();
  }
  CHECK(outer.launches().size() == 2);
  CHECK(inner.launches().size() == 2);
  inner.reset();
  CHECK(inner.launches().empty());
  CHECK(inner.total() == Ledger{});
}

TEST_CASE("an output is taken for unwritten by its poison when nothing was checked", "[simt]") {
  DeviceBuffer<f32> a("a", 33);
  launch("fails_from", fails_from, dim3(32), dim3(32), 0, a, 1000);
  try {
    a.emulated().require_written();
    CHECK(false);
  } catch (const KernelError& error) {
    CHECK(error.kind == ErrorKind::unwritten_output);
    CHECK(error.buffer == "a");
    CHECK(error.details == "1 of 33 elements were never written, the first at index 32");
  }
}

TEST_CASE("every kind of error has a name of its own and a cause", "[simt]") {
  std::set<std::string> names;
  for (int kind = 0; kind <= static_cast<int>(ErrorKind::bad_launch); ++kind) {
    names.insert(name_of(static_cast<ErrorKind>(kind)));
    CHECK(std::strlen(usual_cause(static_cast<ErrorKind>(kind))) > 20);
  }
  CHECK(names.size() == static_cast<std::size_t>(ErrorKind::bad_launch) + 1);
}

}  // namespace
