// wgmma on the emulator: where a matrix descriptor finds each element, every N, both element types, that
// results and counts do not depend on when the tensor cores work, and what is in flight beside them. What
// is wrong with a kernel that uses it wrongly: zoo_test.cpp.
#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "catch.hpp"
#include "common/ptx/cp_async.hpp"
#include "common/ptx/exp2.hpp"
#include "common/ptx/mma.hpp"
#include "common/ptx/named_barrier.hpp"
#include "common/ptx/tensor_map.hpp"
#include "common/ptx/tma.hpp"
#include "common/ptx/wgmma.hpp"

namespace {

using namespace flashladder;
using simt::Units;

constexpr int inner = 64;  // of all products here: four wgmmas

/// Where element (row, column) of a tile is whose rows have `row_bytes` bytes in panels of `rows` rows, in
/// elements.
__device__ int place(int rows, int row_bytes, int row, int column) {
  const int panel = 2 * column / row_bytes, along = 2 * column % row_bytes;
  const int byte = panel * rows * row_bytes + row * row_bytes + along;
  return (byte ^ (byte / 128 % (row_bytes / 16) * 16)) / 2;
}

/// C [64, N] (+)= A B for one warpgroup. A [64, inner] comes from shared memory, K-major or MN-major, or
/// from registers; B is [N, inner], K-major, or [inner, N], MN-major.
enum class Of { shared, shared_mn, registers };
template <class T, int N, int row_bytes, Of a, Major b>
__global__ void multiply(gmem<const T> Ag, gmem<const T> Bg, gmem<f32> Cg, bool add) {
  constexpr int panel = row_bytes / 2;  // columns
  auto&& A = dynamic_tile<T, 64, inner, "A">(0);
  constexpr int whole_N = (N + panel - 1) / panel * panel;  // an MN-major B has whole panels
  auto&& B = dynamic_tile<T, whole_N, inner, "B">(2 * 64 * inner);
  const int t = threadIdx.x, lane = t % 32, r0 = t / 32 * 16 + lane / 4, c0 = lane % 4 * 2;
  for (int e = t; e < 64 * inner; e += 128) {
    const int m = e / inner, k = e % inner;
    A[a == Of::shared_mn ? place(inner, row_bytes, k, m) : place(64, row_bytes, m, k)] =
        static_cast<T>(Ag[e]);
  }
  for (int e = t; e < N * inner; e += 128) {
    const int n = e / inner, k = e % inner;
    B[b == Major::mn ? place(inner, row_bytes, k, n) : place(N, row_bytes, n, k)] = static_cast<T>(Bg[e]);
  }
  fence_proxy_async();
  __syncthreads();

  f32 C[N / 8][4];
  for (int x = 0; x < N / 8; ++x)
    for (int e = 0; e < 4; ++e) C[x][e] = 1.f;
  std::uint32_t A_registers[inner / 16][4];
  for (int k = 0; k < inner / 16; ++k)
    for (int i = 0; i < 4; ++i) {
      const int row = r0 + i % 2 * 8, column = 16 * k + c0 + i / 2 * 8;
      A_registers[k][i] =
          pair(static_cast<T>(Ag[row * inner + column]), static_cast<T>(Ag[row * inner + column + 1]));
    }
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < inner; k += 16) {
    const int along = k / panel * row_bytes * (b == Major::mn ? 0 : N) + 2 * k % row_bytes;
    const auto B_matrix = [&] {
      if constexpr (b == Major::mn) {
        return mn_major<row_bytes, T>(B, inner * row_bytes) + k * row_bytes;
      } else {
        return k_major<row_bytes, T>(B) + along;
      }
    }();
    if constexpr (a == Of::registers) {
      wgmma<T>(C, A_registers[k / 16], B_matrix, add || k > 0);
    } else if constexpr (a == Of::shared_mn) {
      wgmma<T>(C, mn_major<row_bytes, T>(A, inner * row_bytes) + k * row_bytes, B_matrix, add || k > 0);
    } else {
      wgmma<T>(C, k_major<row_bytes, T>(A) + (k / panel * row_bytes * 64 + 2 * k % row_bytes), B_matrix,
               add || k > 0);
    }
  }
  wgmma_commit();
  wgmma_wait<0>(C);
  for (int x = 0; x < N / 8; ++x)
    for (int e = 0; e < 4; ++e) Cg[(r0 + e / 2 * 8) * N + 8 * x + c0 + e % 2] = C[x][e];
}

/// Runs `multiply` and compares; numbers are small whole ones, so that sums are exact.
template <class T, int N, int row_bytes, Of a, Major b>
void check(Units units, bool add) {
  INFO("N " << N << ", rows of " << row_bytes << " bytes, A " << static_cast<int>(a) << ", B "
            << static_cast<int>(b) << ", units " << static_cast<int>(units) << ", add " << add);
  simt::Options options;
  options.check = true;
  options.units = units;
  options.schedule = simt::Schedule::random;
  options.seed = 3;
  simt::Emulator emulator(options);
  const simt::UseEmulator use(emulator);
  std::mt19937 random(N);
  const auto some = [&](int count) {
    std::vector<float> x(static_cast<std::size_t>(count));
    for (float& one : x) one = static_cast<float>(static_cast<int>(random() % 15) - 7);
    return x;
  };
  const std::vector<float> A = some(64 * inner), B = some(N * inner);
  const auto upload = [](const char* name, const std::vector<float>& x) {
    DeviceBuffer<T> buffer(name, static_cast<std::int64_t>(x.size()));
    std::vector<T> rounded;
    for (const float one : x) rounded.push_back(T(simt::f32(one)));
    buffer.upload(rounded.data());
    return buffer;
  };
  const DeviceBuffer<T> A_there = upload("A", A), B_there = upload("B", B);
  DeviceBuffer<f32> C_there("C", 64 * N);
  launch("multiply", multiply<T, N, row_bytes, a, b>, dim3(1), dim3(128), 2 * (64 + 320) * inner, A_there,
         B_there, C_there, add);
  std::vector<float> C(64 * N);
  C_there.download(C.data());
  int wrong = 0;
  for (int m = 0; m < 64; ++m) {
    for (int n = 0; n < N; ++n) {
      float sum = add ? 1.f : 0.f;
      for (int k = 0; k < inner; ++k)
        sum += A[static_cast<std::size_t>(m * inner + k)] * B[static_cast<std::size_t>(n * inner + k)];
      wrong += C[static_cast<std::size_t>(m * N + n)] != sum;
    }
  }
  CHECK(wrong == 0);
  const simt::Ledger& ledger = emulator.last();
  CHECK(ledger.wgmmas == inner / 16);
  CHECK(ledger.flops_tensor_cores == 2u * 64 * N * inner);
  CHECK(ledger.wgmma_read_bytes == 2u * inner * (N + (a == Of::registers ? 0 : 64)));
  CHECK(ledger.shared.at("B").read_bytes == 2u * inner * N);
}

template <class T, int row_bytes, int... N>
void check_widths(std::integer_sequence<int, N...>) {
  (check<T, 16 * (N + 1), row_bytes, Of::shared, Major::k>(Units::lazy, false), ...);
  (check<T, 16 * (N + 1), row_bytes, Of::registers, Major::mn>(Units::lazy, true), ...);
}

TEST_CASE("wgmma multiplies at every N, with every swizzle, from every layout", "[wgmma]") {
  check_widths<bf16, 128>(std::make_integer_sequence<int, 16>());
  check_widths<f16, 64>(std::make_integer_sequence<int, 4>());
  for (const Units units : {Units::lazy, Units::eager, Units::random}) {
    check<f16, 64, 128, Of::shared_mn, Major::k>(units, true);
    check<bf16, 96, 64, Of::shared, Major::mn>(units, false);
    check<bf16, 32, 32, Of::shared, Major::k>(units, false);
    check<f16, 48, 32, Of::shared_mn, Major::mn>(units, false);
    check<bf16, 80, 128, Of::registers, Major::mn>(units, true);
  }
}

// --- what is in flight

constexpr int tile_rows = 64, tile_bytes = 2 * tile_rows * 16;  // of a tile that is A and B of one wgmma
constexpr int most_buffers = 4, barriers_at = most_buffers * tile_bytes;
constexpr std::uint64_t product_flops = 2 * 64 * tile_rows * 16;
using Sums = f32[tile_rows / 8][4];

/// C += T T^T for tile number k, and one exponential: while the tensor cores work, or behind the wait.
__device__ void add_square(Sums& C, smem<bf16> tile, int k, bool exp_beside) {
  const auto T = k_major<32, bf16>(tile);
  wgmma_fence();
  wgmma<bf16>(C, T, T, k > 0);
  wgmma_commit();
  if (exp_beside) ex2_approx(1.f);
  wgmma_wait<0>(C);
  if (!exp_beside) ex2_approx(1.f);
}
__device__ void write_sums(gmem<f32> out, const Sums& C) {
  for (int x = 0; x < tile_rows / 8; ++x)
    for (int e = 0; e < 4; ++e) out[(threadIdx.x * (tile_rows / 8) + x) * 4 + e] = C[x][e];
}

/// One of the threads that multiply brings tiles by TMA: each when it is needed, or the next one before
/// this one is multiplied, or when it has been by this thread.
enum class Bring { when_needed, ahead, behind_its_product };
__global__ void multiply_and_bring(const __grid_constant__ tensor_map map, gmem<f32> out, int tiles,
                                   Bring when) {
  auto&& tile = dynamic_tile<bf16, 2 * tile_rows, 16, "tile">(0);
  auto&& full = dynamic_tile<mbarrier, 2, 1, "full">(barriers_at);
  const auto bring = [&](int k) {
    mbarrier_arrive_expect_tx(full.at(k % 2, 0), tile_bytes);
    tma_load<bf16>(tile.at(k % 2 * tile_rows, 0), map, full.at(k % 2, 0), 0, tile_rows * k, 0, 0);
  };
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) mbarrier_init(full.at(s, 0), 1);
    fence_mbarrier_init();
    if (when != Bring::when_needed) bring(0);
  }
  Sums C;
  for (int k = 0; k < tiles; ++k) {
    __syncthreads();
    if (threadIdx.x == 0 && when == Bring::when_needed) bring(k);
    if (threadIdx.x == 0 && when == Bring::ahead && k + 1 < tiles) bring(k + 1);
    mbarrier_wait(full.at(k % 2, 0), k / 2 % 2);
    add_square(C, tile.at(k % 2 * tile_rows, 0), k, when == Bring::ahead);
    if (threadIdx.x == 0 && when == Bring::behind_its_product && k + 1 < tiles) bring(k + 1);
  }
  write_sums(out, C);
}

/// A producer keeps a ring of tiles full, and one warpgroup multiplies; all of its lanes wait for a tile,
/// or one lane of each warp, and the others for that one.
__global__ void multiply_from_ring(const __grid_constant__ tensor_map map, gmem<f32> out, int tiles,
                                   int num_buffers, bool one_lane_waits) {
  auto&& tile = dynamic_tile<bf16, most_buffers * tile_rows, 16, "tile">(0);
  auto&& full = dynamic_tile<mbarrier, most_buffers, 1, "full">(barriers_at);
  auto&& empty = dynamic_tile<mbarrier, most_buffers, 1, "empty">(barriers_at + 8 * most_buffers);
  if (threadIdx.x == 0) {
    for (int s = 0; s < num_buffers; ++s) {
      mbarrier_init(full.at(s, 0), 1);
      mbarrier_init(empty.at(s, 0), 4);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= 128) {
    for (int k = 0; k < tiles && threadIdx.x == 128; ++k) {
      const int s = k % num_buffers;
      mbarrier_wait(empty.at(s, 0), 1 - k / num_buffers % 2);
      mbarrier_arrive_expect_tx(full.at(s, 0), tile_bytes);
      tma_load<bf16>(tile.at(s * tile_rows, 0), map, full.at(s, 0), 0, tile_rows * k, 0, 0);
    }
    return;
  }
  const bool first = threadIdx.x % 32 == 0;
  Sums C;
  for (int k = 0; k < tiles; ++k) {
    const int s = k % num_buffers;
    if (first || !one_lane_waits) mbarrier_wait(full.at(s, 0), k / num_buffers % 2);
    if (one_lane_waits) __syncwarp();
    add_square(C, tile.at(s * tile_rows, 0), k, false);
    if (first) mbarrier_arrive(empty.at(s, 0));
  }
  write_sums(out, C);
}

/// Each of two warpgroups multiplies one tile, and in the meantime copies one that nobody multiplies, 16
/// bytes a thread. It waits for its copies behind the product, or before it.
__global__ void multiply_and_copy(gmem<const bf16> from, gmem<f32> out, bool wait_before) {
  auto&& tile = dynamic_tile<bf16, tile_rows, 16, "tile">(0);
  auto&& copies = dynamic_tile<bf16, 2 * tile_rows, 16, "copies">(tile_bytes);
  const int t = threadIdx.x;
  if (t < 128) cp_async_16B<bf16>(tile.at(t / 2, t % 2 * 8), from + 8 * t);
  cp_async_commit();
  cp_async_wait<0>();
  fence_proxy_async();
  __syncthreads();
  cp_async_16B<bf16>(copies.at(t / 2, t % 2 * 8), from + 8 * t);
  cp_async_commit();
  if (wait_before) cp_async_wait<0>();
  Sums C;
  add_square(C, tile.at(0, 0), 0, false);
  cp_async_wait<0>();
  write_sums(out, C);
}

/// Three warpgroups multiply one tile, again and again: as they like, in turns, or each passes its turn on
/// before its product begins.
enum class Turns { none, behind_each_other, passed_too_early };
__global__ void multiply_in_turns(gmem<f32> out, int times, Turns turns) {
  auto&& tile = dynamic_tile<bf16, tile_rows, 16, "tile">(0);
  const int t = threadIdx.x, warpgroup = t / 128;
  for (int e = t; e < tile_rows * 16; e += 384) tile[e] = bf16(0.f);
  fence_proxy_async();
  __syncthreads();
  const auto pass = [&] { named_barrier_arrive(1 + (warpgroup + 1) % 3, 256); };
  Sums C;
  for (int k = 0; k < times; ++k) {
    if (turns != Turns::none && (k > 0 || warpgroup > 0)) named_barrier_sync(1 + warpgroup, 256);
    const bool last = k + 1 == times && warpgroup == 2;  // the first has no turn any more
    if (turns == Turns::passed_too_early && !last) pass();
    wgmma_fence();
    wgmma<bf16>(C, k_major<32, bf16>(tile.at(0, 0)), k_major<32, bf16>(tile.at(0, 0)), k > 0);
    wgmma_commit();
    if (turns == Turns::behind_each_other && !last) pass();
    wgmma_wait<0>(C);
  }
  write_sums(out, C);
}

/// What a kernel of `threads` threads counts on `tiles` tiles, whatever order threads and units work in,
/// and with checks or without.
template <class Kernel>
simt::Ledger count(int threads, int tiles, Kernel run) {
  std::optional<simt::Ledger> first;
  for (const bool check : {false, true}) {
    for (const Units units : {Units::lazy, Units::eager, Units::random}) {
      for (const simt::Schedule schedule :
           {simt::Schedule::forward, simt::Schedule::reverse, simt::Schedule::random}) {
        for (const std::uint64_t seed : {1, 2, 3}) {
          INFO("check " << check << ", units " << static_cast<int>(units) << ", schedule "
                        << static_cast<int>(schedule) << ", seed " << seed);
          simt::Emulator emulator({.check = check, .schedule = schedule, .units = units, .seed = seed});
          const simt::UseEmulator use(emulator);
          DeviceBuffer<bf16> x("x", tiles * tile_rows * 16);
          x.fill_zero();
          const DeviceBuffer<f32> out("out", threads * tile_rows / 2);
          run(x, out);
          if (!first) first = emulator.last();
          CHECK(emulator.last() == *first);
        }
      }
    }
  }
  return *first;
}
tensor_map map_of_tiles(const DeviceBuffer<bf16>& x) {
  const std::int64_t N = x.elements() / 16;
  return make_tensor_map<bf16>("x", x,
                               {.dims = {16, N, 1, 1},
                                .strides = {16, 16 * N, 16 * N},
                                .box = {16, tile_rows, 1, 1},
                                .swizzle = 32});
}

TEST_CASE("what is in flight beside a wgmma: by TMA, of a thread that multiplies", "[wgmma]") {
  constexpr int tiles = 5;
  for (const Bring when : {Bring::when_needed, Bring::ahead, Bring::behind_its_product}) {
    INFO("bring " << static_cast<int>(when));
    const simt::Ledger ledger = count(128, tiles, [&](const auto& x, const auto& out) {
      launch("multiply_and_bring", multiply_and_bring, dim3(1), dim3(128), barriers_at + 16,
             map_of_tiles(x), out, tiles, when);
    });
    // Of four warps. Where a thread brings behind its product, that of its own warp is done.
    const std::uint64_t warps = when == Bring::when_needed ? 0 : when == Bring::ahead ? 4 : 3;
    CHECK(ledger.wgmmas == tiles);
    CHECK(ledger.exp == 128 * tiles);
    CHECK(ledger.wgmma_bytes_in_flight == warps * tile_bytes * (tiles - 1));  // behind the last is none
    CHECK(ledger.flops_during_copies == warps * (product_flops / 4) * (tiles - 1));
    CHECK(ledger.exp_during_wgmmas == (when == Bring::ahead ? 128 * tiles : 0));
    CHECK(ledger.bytes_in_flight == (when == Bring::when_needed ? 0 : tile_bytes * tiles));
    CHECK(ledger.most_bytes_in_flight == (when == Bring::when_needed ? 0 : tile_bytes));
  }
}

TEST_CASE("what is in flight beside a wgmma: as many tiles as a ring allows", "[wgmma]") {
  constexpr int tiles = 7;
  for (const int num_buffers : {1, 2, 3, 4}) {
    for (const bool one_lane_waits : {false, true}) {
      INFO("buffers " << num_buffers << ", one lane of a warp waits: " << one_lane_waits);
      const simt::Ledger ledger = count(128, tiles, [&](const auto& x, const auto& out) {
        launch("multiply_from_ring", multiply_from_ring, dim3(1), dim3(256),
               barriers_at + 16 * most_buffers, map_of_tiles(x), out, tiles, num_buffers, one_lane_waits);
      });
      std::uint64_t ahead = 0, products = 0;  // beside which something is in flight
      for (int k = 0; k < tiles; ++k) {
        const int behind = std::min(num_buffers - 1, tiles - 1 - k);
        ahead += static_cast<std::uint64_t>(behind);
        products += behind > 0;
      }
      CHECK(ledger.wgmma_bytes_in_flight == 4 * tile_bytes * ahead);
      CHECK(ledger.flops_during_copies == product_flops * products);
      CHECK(ledger.exp_during_wgmmas == 0);
      CHECK(ledger.bytes_in_flight == 0);  // at the only barrier of the block nothing has begun
    }
  }
}

TEST_CASE(
    "what is in flight beside a wgmma: copies of its own threads until they wait, of others until a "
    "barrier",
    "[wgmma]") {
  for (const bool wait_before : {false, true}) {
    INFO("wait before " << wait_before);
    const simt::Ledger ledger = count(256, 2, [&](const auto& x, const auto& out) {
      launch("multiply_and_copy", multiply_and_copy, dim3(1), dim3(256), 3 * tile_bytes, x, out,
             wait_before);
    });
    CHECK(ledger.wgmmas == 2);
    // Beside each warp's part are the copies of all, but for those that it has waited for.
    CHECK(ledger.wgmma_bytes_in_flight == 8 * (2 * tile_bytes - (wait_before ? 32 * 16 : 0)));
    CHECK(ledger.flops_during_copies == (wait_before ? 0 : 2 * product_flops));
  }
}

TEST_CASE("wgmmas of two warpgroups, either of which may begin first, are counted in pairs", "[wgmma]") {
  constexpr std::uint64_t times = 4;
  for (const Turns turns : {Turns::none, Turns::behind_each_other, Turns::passed_too_early}) {
    INFO("turns " << static_cast<int>(turns));
    const simt::Ledger ledger = count(384, 1, [&](const auto&, const auto& out) {
      launch("multiply_in_turns", multiply_in_turns, dim3(1), dim3(384), tile_bytes, out,
             static_cast<int>(times), turns);
    });
    CHECK(ledger.wgmmas == 3 * times);
    // Of the three pairs of warpgroups nothing orders any product of the one with any of the other; or
    // those of the same turn and of neighbouring ones, which begin only behind the turn.
    CHECK(ledger.unordered_wgmmas == (turns == Turns::none                ? 3 * times * times
                                      : turns == Turns::behind_each_other ? 0
                                                                          : 3 * (2 * times - 1)));
    CHECK(ledger.named_barriers == (turns == Turns::none ? 0 : 3 * times - 1));
  }
}

}  // namespace
