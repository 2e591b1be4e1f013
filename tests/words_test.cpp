// Hopper's smaller words on the emulator: elect.sync, vote.any, vimnmx3, stmatrix, setmaxnreg, reductions
// in bulk, and those of fixed point. What is wrong with a kernel that uses them wrongly: zoo_test.cpp.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "catch.hpp"
#include "common/ptx/elect.hpp"
#include "common/ptx/fixed_point.hpp"
#include "common/ptx/max3.hpp"
#include "common/ptx/mma.hpp"
#include "common/ptx/named_barrier.hpp"
#include "common/ptx/registers.hpp"
#include "common/ptx/stmatrix.hpp"
#include "common/ptx/tensor_map.hpp"
#include "common/ptx/tma.hpp"
#include "common/ptx/vote.hpp"
#include "common/simt/simt_host.hpp"

namespace {

using namespace flashladder;
using simt::ErrorKind;
using simt::KernelError;
using simt::Schedule;
using simt::Units;

constexpr Schedule schedules[] = {Schedule::forward, Schedule::reverse, Schedule::random};
constexpr Units all_units[] = {Units::lazy, Units::eager, Units::random};

simt::Options checked(Schedule schedule, Units units = Units::lazy) {
  simt::Options options;
  options.check = true;
  options.schedule = schedule;
  options.units = units;
  options.seed = 7;
  return options;
}

/// Runs it, and returns the error that it ends in.
template <class Run>
KernelError error_of(Run run) {
  try {
    run();
  } catch (const KernelError& error) {
    return error;
  }
  FAIL("no error was reported");
  return KernelError({});
}

void has(const KernelError& error, const std::string& text) {
  INFO(error.what());
  CHECK(std::string(error.what()).find(text) != std::string::npos);
}

// --- elect.sync

__global__ void elect(gmem<std::uint32_t> elected) {
  elected[threadIdx.x] = elect_one() ? 1 : 0;
}

TEST_CASE("one lane of each warp is elected, always the same one", "[simt]") {
  for (const Schedule schedule : schedules) {
    simt::Emulator emulator(checked(schedule));
    const simt::UseEmulator use(emulator);
    DeviceBuffer<std::uint32_t> elected("elected", 96);
    launch("elect", elect, dim3(1), dim3(96), 0, elected);
    std::vector<std::uint32_t> got(96);
    elected.download(got.data());
    for (std::size_t t = 0; t < got.size(); ++t) CHECK(got[t] == (t % 32 == 0 ? 1 : 0));
    CHECK(emulator.last().syncwarps == 0);
  }
}

// --- vote.any, vote.ballot

/// Which threads ask: none of warp 0, thread 45 alone, all of warp 2.
__global__ void ask(gmem<std::uint32_t> answer) {
  const int t = threadIdx.x;
  answer[t] = any_lane(t == 45 || t >= 64) ? 1 : 0;
}

TEST_CASE("all lanes of a warp learn whether one of them asks", "[simt]") {
  for (const Schedule schedule : schedules) {
    simt::Emulator emulator(checked(schedule));
    const simt::UseEmulator use(emulator);
    DeviceBuffer<std::uint32_t> answer("answer", 96);
    launch("ask", ask, dim3(1), dim3(96), 0, answer);
    std::vector<std::uint32_t> got(96);
    answer.download(got.data());
    for (std::size_t t = 0; t < got.size(); ++t) CHECK(got[t] == (t < 32 ? 0 : 1));
    CHECK(emulator.last().shuffles == 0);
    CHECK(emulator.last().syncwarps == 0);
  }
}

/// Of each warp the threads that are multiples of three, as bits, and the lowest of them.
__global__ void ask_which(gmem<std::uint32_t> answer) {  // [96, 2]
  const int t = threadIdx.x;
  const unsigned lanes = lanes_where(t % 3 == 0);
  answer[2 * t] = lanes;
  answer[2 * t + 1] = static_cast<std::uint32_t>(lowest_bit(lanes));
}

TEST_CASE("all lanes of a warp learn which of them ask", "[simt]") {
  for (const Schedule schedule : schedules) {
    simt::Emulator emulator(checked(schedule));
    const simt::UseEmulator use(emulator);
    DeviceBuffer<std::uint32_t> answer("answer", 192);
    launch("ask_which", ask_which, dim3(1), dim3(96), 0, answer);
    std::vector<std::uint32_t> got(192);
    answer.download(got.data());
    for (std::uint32_t t = 0; t < 96; ++t) {
      std::uint32_t lanes = 0;
      for (std::uint32_t lane = 0; lane < 32; ++lane)
        lanes |= (t / 32 * 32 + lane) % 3 == 0 ? 1u << lane : 0;
      CHECK(got[2 * t] == lanes);
      CHECK(got[2 * t + 1] == (3 - t / 32 * 32 % 3) % 3);
    }
  }
}

// --- vimnmx3

/// The largest of every three numbers of a row, for the rows of a matrix [N, 3], a thread each.
__global__ void largest_of_three(gmem<const f32> numbers, gmem<f32> largest) {
  const int t = threadIdx.x;
  largest[t] = max3_unless_negative(numbers[3 * t], numbers[3 * t + 1], numbers[3 * t + 2]);
}

TEST_CASE("three floats are compared as integers: right unless all have a minus sign", "[simt]") {
  const float infinity = std::numeric_limits<float>::infinity();
  // Eight: a block of 8 * 8 * 8 threads, in whole warps.
  const std::vector<float> some = {-infinity, -2.5f, -1e-30f, 0.f, 1e-38f, 1.f, 1.0000001f, infinity};
  std::vector<float> numbers, expected;
  for (float a : some) {
    for (float b : some) {
      for (float c : some) {
        numbers.insert(numbers.end(), {a, b, c});
        // Of negative numbers the farthest from 0 has the largest bits.
        expected.push_back(std::max({a, b, c}) < 0 ? std::min({a, b, c}) : std::max({a, b, c}));
      }
    }
  }
  simt::Emulator emulator;
  const simt::UseEmulator use(emulator);
  DeviceBuffer<f32> from("numbers", static_cast<std::int64_t>(numbers.size())),
      to("largest", static_cast<std::int64_t>(expected.size()));
  from.upload(numbers.data());
  launch("largest_of_three", largest_of_three, dim3(1), dim3(static_cast<unsigned>(expected.size())), 0,
         from, to);
  std::vector<float> got(expected.size());
  to.download(got.data());
  CHECK(got == expected);
  CHECK(emulator.last().max == expected.size());
}

// --- fixed point

constexpr float units = 1234567.8f;  // of 1

/// Each of so many threads adds its four numbers, in units, to two pairs of integers.
__global__ void add_pairs(gmem<const f32> numbers, gmem<int> pairs, unsigned threads) {
  if (threadIdx.x >= threads) return;
  for (int i = 0; i < 4; i += 2) {
    const f32 first = numbers[4 * threadIdx.x + i], second = numbers[4 * threadIdx.x + i + 1];
    atomic_add2(pairs + i, excess_integer(first, units), nearest_integer(second * units));
  }
}

__global__ void take_apart(gmem<int> pairs, int times) {
  if (threadIdx.x == 0) store4(pairs, sums_of_pairs(load4(gmem<const int>(pairs)), times));
}

TEST_CASE("pairs of integers add up, whatever the first ones carry into the second ones", "[simt]") {
  // In units up to 1e9, with either sign. Each is rounded by itself, and all sums have 31 bits.
  const unsigned threads = GENERATE(1u, 2u, 96u);
  std::vector<float> numbers;
  std::vector<int> expected(4);
  for (unsigned t = 0; t < threads; ++t) {
    for (int i = 0; i < 4; ++i) {
      const float x = 777.7f * std::sin(1.f + static_cast<float>(4 * t) + 1.3f * static_cast<float>(i)) -
                      (i < 2 ? 0.3f : 0.f);
      numbers.push_back(x);
      // The first of a pair is the nearest to x * units itself, the second one to what fp32 makes of it.
      const double all = i % 2 == 0 ? double{x} * units : double{x * units};
      expected[static_cast<std::size_t>(i)] += static_cast<int>(std::nearbyint(all));
    }
  }
  for (Schedule schedule : schedules) {
    simt::Emulator emulator(checked(schedule));
    const simt::UseEmulator use(emulator);
    DeviceBuffer<f32> from("numbers", static_cast<std::int64_t>(numbers.size()));
    DeviceBuffer<int> pairs("pairs", 4);
    from.upload(numbers.data());
    pairs.fill_zero();
    launch("add_pairs", add_pairs, dim3(1), dim3(96), 0, from, pairs, threads);
    launch("take_apart", take_apart, dim3(1), dim3(32), 0, pairs, static_cast<int>(threads));
    std::vector<int> got(4);
    pairs.download(got.data());
    CHECK(got == expected);
  }
}

// --- stmatrix

/// The row of the tile that a lane names: the rows of a matrix may lie anywhere.
constexpr int named_row(int lane) {
  return (5 * lane + 3) % 32;
}

/// What stmatrix makes of registers that hold 16-bit numbers; and what ldmatrix makes of that.
template <class T, bool transposed, int stride>
__global__ void matrices(gmem<const std::uint32_t> given, gmem<T> tile, gmem<std::uint32_t> back) {
  __shared__ smem_array<T, 32, stride, "M"> M;
  const int lane = threadIdx.x;
  std::uint32_t r[4];
  for (int j = 0; j < 4; ++j) r[j] = given[4 * lane + j];
  const auto row = M.at(named_row(lane), 0);
  if (transposed) {
    stmatrix_x4_trans<T>(row, r);
  } else {
    stmatrix_x4<T>(row, r);
  }
  __syncwarp();
  for (int c = 0; c < 8; ++c) tile[8 * lane + c] = M(lane, c);
  std::uint32_t same[4];
  if (transposed) {
    ldmatrix_x4_trans<T>(same, row);
  } else {
    ldmatrix_x4<T>(same, row);
  }
  for (int j = 0; j < 4; ++j) back[4 * lane + j] = same[j];
}

template <class T, bool transposed, int stride>
simt::Ledger check_matrices(Schedule schedule) {
  simt::Options options = checked(schedule);
  options.banks = true;
  simt::Emulator emulator(options);
  const simt::UseEmulator use(emulator);
  DeviceBuffer<std::uint32_t> given("given", 128), back("back", 128);
  DeviceBuffer<T> tile("tile", 256);
  std::vector<std::uint32_t> registers(128), returned(128);
  for (std::uint32_t i = 0; i < 128; ++i) registers[i] = 2 * i | (2 * i + 1) << 16;  // all different
  given.upload(registers.data());
  launch("matrices", matrices<T, transposed, stride>, dim3(1), dim3(32), 0, given, tile, back);
  std::vector<T> got(256);
  tile.download(got.data());
  back.download(returned.data());
  CHECK(returned == registers);
  bool right = true;
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int i = 0; i < 8; ++i) {
      for (int c = 0; c < 8; ++c) {
        // Element (i, c) of the fragment is in lane 4 i + c / 2, half c % 2; transposed, of (c, i).
        const int g = transposed ? c : i, k = transposed ? i : c;
        const std::uint32_t both = registers[static_cast<std::size_t>(4 * (4 * g + k / 2) + matrix)];
        const auto expected = static_cast<std::uint16_t>(k % 2 == 0 ? both : both >> 16);
        right = right && got[static_cast<std::size_t>(8 * named_row(8 * matrix + i) + c)].bits == expected;
      }
    }
  }
  CHECK(right);
  return emulator.last();
}

TEST_CASE("stmatrix undoes ldmatrix, as it is and transposed", "[simt]") {
  for (const Schedule schedule : schedules) {
    check_matrices<f16, false, 8>(schedule);
    check_matrices<f16, true, 8>(schedule);
    check_matrices<bf16, false, 8>(schedule);
    check_matrices<bf16, true, 8>(schedule);
  }
}

TEST_CASE("stmatrix writes 16 bytes a lane, and conflicts of banks are those of ldmatrix", "[simt]") {
  // Besides: 8 loads of 16-bit numbers a lane, whose wavefronts are known.
  const auto wavefronts = [](const simt::Ledger& ledger, std::uint64_t of_loads) {
    const simt::SharedTraffic& M = ledger.shared.at("M");
    CHECK(M.written_bytes == 32 * 16);
    CHECK(M.read_bytes == 2 * 32 * 16);
    return M.wavefronts - of_loads;
  };
  // Rows of 16 bytes: 8 of them lie in the 32 banks, and of a column 32 elements in 8 of them.
  CHECK(wavefronts(check_matrices<f16, false, 8>(Schedule::forward), 8 * 4) == 2 * 4);
  // Rows of 128 bytes: all of them lie in the same four banks.
  CHECK(wavefronts(check_matrices<f16, true, 64>(Schedule::forward), 8 * 32) == 2 * 4 * 8);
  // Rows of 144 bytes: no two of eight in a bank.
  CHECK(wavefronts(check_matrices<f16, false, 72>(Schedule::forward), 8 * 4) == 2 * 4);
}

// --- setmaxnreg

/// The first warpgroup gives registers back, and the others take them. Where `down` is 0 it gives none.
template <int down, int up>
__global__ void roles(gmem<f32> x) {
  const int t = threadIdx.x;
  if (t < 128) {
    if constexpr (down != 0) registers_down<down>();
  } else {
    registers_up<up>();
  }
  x[blockIdx.x * blockDim.x + t] = 1.f;
}

template <class Kernel>
simt::Ledger run_roles(Kernel kernel, unsigned threads, Schedule schedule = Schedule::forward) {
  simt::Emulator emulator(checked(schedule));
  const simt::UseEmulator use(emulator);
  DeviceBuffer<f32> x("x", 3 * 1024);
  launch("roles", kernel, dim3(3), dim3(threads), 0, x);
  return emulator.last();
}

TEST_CASE("registers go from one warpgroup to the others, and the ledger has the most and the fewest",
          "[simt]") {
  const auto check = [](auto kernel, unsigned threads, std::uint64_t fewest, std::uint64_t most) {
    for (const Schedule schedule : schedules) {
      INFO(threads << " threads, " << fewest << " and " << most);
      const simt::Ledger ledger = run_roles(kernel, threads, schedule);
      CHECK(ledger.most_registers == most);
      CHECK(ledger.fewest_registers == fewest);
    }
  };
  check(roles<24, 240>, 384, 24, 240);  // 168 at launch, and 3 * 168 = 24 + 2 * 240
  check(roles<32, 160>, 512, 32, 160);  // 128
  check(roles<24, 112>, 640, 24, 112);  // 96
  check(roles<24, 240>, 256, 24, 240);  // 256, or 240 where no more is asked for
  check(roles<24, 256>, 256, 24, 256);
  check(roles<0, 160>, 384, 160, 160);  // 168, or 160 where no more is asked for
  check(roles<168, 168>, 384, 168, 168);
}

TEST_CASE("the ledger of several launches has the most registers and the fewest, and 0 for none",
          "[simt]") {
  simt::Emulator emulator(checked(Schedule::forward));
  const simt::UseEmulator use(emulator);
  DeviceBuffer<std::uint32_t> elected("elected", 96);
  DeviceBuffer<f32> x("x", 3 * 1024);
  launch("elect", elect, dim3(1), dim3(96), 0, elected);
  CHECK(emulator.total().most_registers == 0);
  CHECK(emulator.total().fewest_registers == 0);
  launch("roles", roles<32, 160>, dim3(1), dim3(512), 0, x);
  launch("roles", roles<40, 232>, dim3(1), dim3(384), 0, x);
  CHECK(emulator.last().fewest_registers == 40);
  launch("elect", elect, dim3(1), dim3(96), 0, elected);
  CHECK(emulator.total().most_registers == 232);
  CHECK(emulator.total().fewest_registers == 32);
  const auto entries = emulator.total().entries();
  for (const std::string name : {"most_registers", "fewest_registers"}) {
    CHECK(std::ranges::count_if(entries, [&](const auto& entry) { return entry.first == name; }) == 1);
  }
}

TEST_CASE("where the pool has too few registers, the report says how many are there and asked for",
          "[simt]") {
  for (const Schedule schedule : schedules) {
    // 5 * 96 = 480 at launch, and 24 + 4 * 120 = 504 are asked for.
    const KernelError error = error_of([&] { run_roles(roles<24, 120>, 640, schedule); });
    CHECK(error.kind == ErrorKind::deadlock);
    has(error, "asks for 768 registers, 120 for each thread, which has 96");
    has(error, "in the block's pool are 0. At launch each of 640 threads has 96");
    has(error, "waits at registers_up");
  }
  has(error_of([] { run_roles(roles<0, 176>, 384); }), "asks for 256 registers");
}

TEST_CASE("a warpgroup is four warps", "[simt]") {
  const KernelError error = error_of([] { run_roles(roles<24, 240>, 64); });
  CHECK(error.kind == ErrorKind::register_misuse);
  has(error, "this one has 2: the block has 64 threads");
}

/// Registers go to the second warpgroup and come back.
__global__ void there_and_back(gmem<f32> x) {
  const int t = threadIdx.x;
  if (t < 128) {
    registers_down<40>();
    named_barrier_sync(1, 256);
    registers_up<128>();
  } else {
    registers_up<216>();
    x[blockIdx.x * blockDim.x + t] = 1.f;
    named_barrier_sync(1, 256);
    registers_down<128>();
  }
}

TEST_CASE("registers that were taken can be given back", "[simt]") {
  for (const Schedule schedule : schedules) {
    const simt::Ledger ledger = run_roles(there_and_back, 256, schedule);
    CHECK(ledger.most_registers == 216);
    CHECK(ledger.fewest_registers == 40);
  }
}

// --- reductions in bulk

/// Each block adds its number + 1 to `rows` rows of 32, a row at a time.
__global__ void add_rows(gmem<f32> sums, int rows, int bytes, int first_from, int first_to) {
  auto&& tile = dynamic_tile<f32, 4, 32, "tile">(0);
  const int t = threadIdx.x;
  for (int r = 0; r < 4; ++r) tile(r, t) = static_cast<float>(blockIdx.x + 1 + 100 * r);
  fence_proxy_async();
  __syncthreads();
  if (t == 0) {
    for (int r = 0; r < rows; ++r) {
      bulk_reduce_add(sums + first_to + 32 * r, tile.at(r, first_from), bytes);
      tma_commit();
    }
    tma_wait_read<0>();
  }
}

TEST_CASE("a bulk reduction adds to what is there, and counts the same whenever the unit works", "[simt]") {
  std::vector<simt::Ledger> ledgers;
  for (const Units units : all_units) {
    for (const Schedule schedule : schedules) {
      simt::Emulator emulator(checked(schedule, units));
      const simt::UseEmulator use(emulator);
      DeviceBuffer<f32> sums("sums", 160);
      std::vector<float> start(160, 0.5f), got(160);
      sums.upload(start.data());
      launch("add_rows", add_rows, dim3(5), dim3(32), 4 * 128, sums, 4, 96, 8, 16);
      sums.download(got.data());
      bool right = true;
      for (std::size_t i = 0; i < got.size(); ++i) {
        const bool inside = i >= 16 && (i - 16) / 32 < 4 && (i - 16) % 32 < 24;
        const float added = 15 + 5 * 100 * static_cast<float>((i - 16) / 32);
        right = right && got[i] == (inside ? 0.5f + added : 0.5f);
      }
      CHECK(right);
      const simt::Ledger& ledger = emulator.last();
      ledgers.push_back(ledger);
      CHECK(ledger == ledgers.front());
      CHECK(ledger.bulk_reduces == 20);
      CHECK(ledger.atomics == 0);
      CHECK(ledger.add == 0);
      CHECK(ledger.tma_stores == 0);
      CHECK(ledger.global.at("sums").atomic_bytes == 20 * 96);
      CHECK(ledger.global.at("sums").written_bytes == 0);
      CHECK(ledger.shared.at("tile").read_bytes == 20 * 96);
    }
  }
}

TEST_CASE("a bulk reduction is of whole rows of 16 bytes, inside both arrays", "[simt]") {
  const auto kind = [](int bytes, int from, int to) {
    return error_of([&] {
             simt::Emulator emulator(checked(Schedule::forward));
             const simt::UseEmulator use(emulator);
             DeviceBuffer<f32> sums("sums", 40);
             sums.fill_zero();
             launch("add_rows", add_rows, dim3(1), dim3(32), 4 * 128, sums, 1, bytes, from, to);
           })
        .kind;
  };
  CHECK(kind(0, 0, 0) == ErrorKind::bad_tensor_copy);
  CHECK(kind(-16, 0, 0) == ErrorKind::bad_tensor_copy);
  CHECK(kind(24, 0, 0) == ErrorKind::bad_tensor_copy);
  CHECK(kind(32, 2, 0) == ErrorKind::misaligned);
  CHECK(kind(32, 0, 2) == ErrorKind::misaligned);
  CHECK(kind(144, 0, 8) == ErrorKind::out_of_bounds_global);
  CHECK(kind(528, 0, 0) == ErrorKind::out_of_bounds_shared);
}

// --- the trace of a block

/// Warp 0 brings what both warps read, and they meet.
__global__ void traced(const __grid_constant__ tensor_map map, gmem<f32> out) {
  auto&& tile = dynamic_tile<f16, 8, 64, "tile">(0);
  auto&& full = dynamic_tile<mbarrier, 1, 1, "full">(1024);
  if (threadIdx.x == 0) {
    mbarrier_init(full.at(0, 0), 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(full.at(0, 0), 1024);
    tma_load<f16>(tile.at(0, 0), map, full.at(0, 0), 0, 0, 0, 0);
  }
  mbarrier_wait(full.at(0, 0), 0);
  f32 x = static_cast<f32>(static_cast<f16>(tile[threadIdx.x]));
  if (threadIdx.x < 32) x = expf(x) * 2.f + 1.f;
  named_barrier_sync(3, 64);
  out[threadIdx.x] = fmaf(x, x, x);
}

namespace {

/// A Step in the numbers that are the same whatever the lanes did.
struct Numbers {
  simt::Step::Kind kind;
  unsigned warp;
  std::uint64_t instructions, exponentials, a, b, bytes;
  bool operator==(const Numbers&) const = default;
};

/// What all steps of all blocks count together.
std::map<std::string, std::uint64_t> counted_in(const simt::Trace& trace) {
  std::map<std::string, std::uint64_t> sums;
  for (const simt::LaunchTrace& launch : trace.launches) {
    for (const simt::BlockTrace& block : launch.blocks) {
      for (const simt::Step& step : block.steps)
        for (const auto& [counter, more] : step.counted) sums[block.counters.at(counter)] += more;
    }
  }
  return sums;
}

}  // namespace

TEST_CASE("a trace has what each warp of a block does, in its order, whatever the schedule", "[simt]") {
  const std::vector<f16> ones(512, f16(f32(1.f)));
  for (const Schedule schedule : schedules) {
    for (const Units units : all_units) {
      simt::Trace trace;
      simt::Options options = checked(schedule, units);
      options.check = false;
      options.trace = &trace;
      simt::Emulator emulator(options);
      const simt::UseEmulator use(emulator);
      DeviceBuffer<f16> from("from", 512);
      DeviceBuffer<f32> out("out", 64);
      from.upload(ones.data());
      const tensor_map map = make_tensor_map<f16>(
          "from", from,
          {.dims = {64, 8, 1, 1}, .strides = {64, 512, 512}, .box = {64, 8, 1, 1}, .swizzle = 128});
      launch("traced", traced, dim3(2), dim3(64), 1040, map, out);
      using enum simt::Step::Kind;
      const auto of_warp = [&](unsigned warp) {
        std::vector<Numbers> steps;
        for (const simt::Step& one : trace.launches.at(0).blocks.at(1).steps) {
          if (one.warp == warp)
            steps.push_back(
                {one.kind, one.warp, one.instructions, one.exponentials, one.a, one.b, one.bytes});
        }
        return steps;
      };
      const simt::Ledger with = emulator.last();
      CHECK(of_warp(0) == std::vector<Numbers>{{mbarrier_init, 0, 0, 0, 0, 1, 0},
                                               {barrier, 0, 0, 0, 0, 2, 0},
                                               {mbarrier_arrive, 0, 0, 0, 0, 0, 0},
                                               {load, 0, 0, 0, 0, 0, 1024},
                                               {mbarrier_wait, 0, 0, 0, 0, 0, 0},
                                               {barrier, 0, 2, 1, 3, 2, 0},
                                               {end, 0, 1, 0, 0, 0, 0}});
      CHECK(of_warp(1) == std::vector<Numbers>{{barrier, 1, 0, 0, 0, 2, 0},
                                               {mbarrier_wait, 1, 0, 0, 0, 0, 0},
                                               {barrier, 1, 0, 0, 3, 2, 0},
                                               {end, 1, 1, 0, 0, 0, 0}});
      const auto entries = with.entries();
      const std::map<std::string, std::uint64_t> all(entries.begin(), entries.end());
      for (const auto& [counter, sum] : counted_in(trace)) {
        INFO(counter);
        CHECK(sum == all.at(counter));
      }
      emulator.options.trace = nullptr;
      launch("traced", traced, dim3(2), dim3(64), 1040, map, out);
      CHECK(emulator.last() == with);  // tracing changes no count
    }
  }
}

}  // namespace
