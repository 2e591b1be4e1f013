// mbarriers and TMA on the emulator: where the elements of a box go, what is outside the tensor, that
// results and counts do not depend on when the unit works, and which tensors are not taken. What is wrong
// with a kernel that uses them wrongly: zoo_test.cpp.
#include <cstring>
#include <string>
#include <vector>

#include "catch.hpp"
#include "common/ptx/tensor_map.hpp"

namespace {

using namespace flashladder;
using simt::Schedule;
using simt::Units;

constexpr int rows = 16, columns = 64;  // of a box of 16-bit numbers: 128 bytes a row

/// Loads a box, writes it out as it lies in shared memory, and stores it at the same place of another
/// tensor.
__global__ void copy_box(const __grid_constant__ tensor_map from, const __grid_constant__ tensor_map to,
                         gmem<f16> as_it_lies, int columns_of_box, int c0, int c1, int c2, int c3) {
  auto&& tile = dynamic_tile<f16, rows, columns, "tile">(0);
  auto&& full = dynamic_tile<mbarrier, 1, 1, "full">(2 * rows * columns);
  const int t = threadIdx.x;
  if (t == 0) {
    mbarrier_init(full.at(0, 0), 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (t == 0) {
    mbarrier_arrive_expect_tx(full.at(0, 0), 2 * rows * columns_of_box);
    tma_load<f16>(tile, from, full.at(0, 0), c0, c1, c2, c3);
  }
  mbarrier_wait(full.at(0, 0), 0);
  for (int e = t; e < rows * columns_of_box; e += 32) as_it_lies[e] = tile[e];
  if (t == 0) {
    tma_store<f16>(to, tile, c0, c1, c2, c3);
    tma_commit();
    tma_wait_read<0>();
  }
}

/// A tensor [batch, heads, rows, d] of numbers that tell them apart.
struct Numbers {
  std::int64_t batch = 2, heads = 3, N = 21, d;
  DeviceBuffer<f16> from, to, lies;
  std::vector<f16> given;

  explicit Numbers(std::int64_t d)
      : d(d),
        from("from", batch * heads * N * d),
        to("to", batch * heads * N * d),
        lies("lies", rows * columns),
        given(static_cast<std::size_t>(from.elements())) {
    for (std::size_t i = 0; i < given.size(); ++i) given[i].bits = static_cast<std::uint16_t>(1 + i);
    from.upload(given.data());
    to.fill_zero();
    lies.fill_zero();
  }
  TensorShape shape(int columns_of_box, int swizzle) const {
    return {.dims = {d, N, heads, batch},
            .strides = {d, N * d, heads * N * d},
            .box = {columns_of_box, rows, 1, 1},
            .swizzle = swizzle};
  }
  /// What a box has at row r and column c; 0 outside the tensor.
  std::uint16_t at(std::int64_t c, std::int64_t r, std::int64_t h, std::int64_t b) const {
    const bool inside = c >= 0 && c < d && r >= 0 && r < N;
    return inside ? given[static_cast<std::size_t>(((b * heads + h) * N + r) * d + c)].bits : 0;
  }
};

TEST_CASE("TMA brings a box to its place, and zeros for what is outside the tensor", "[tma]") {
  for (const Units units : {Units::lazy, Units::eager, Units::random}) {
    for (const int swizzle : {0, 32, 64, 128}) {
      const int width = swizzle == 0 ? columns : swizzle / 2;
      for (const auto& [c0, c1] : {std::pair(0, 0), {8, 10}, {-8, 3}, {0, -5}}) {
        INFO("units " << static_cast<int>(units) << ", swizzle " << swizzle << ", from " << c0 << ", "
                      << c1);
        simt::Options options;
        options.check = true;
        options.units = units;
        options.seed = 5;
        simt::Emulator emulator(options);
        const simt::UseEmulator use(emulator);
        const Numbers x(40);
        const tensor_map from = make_tensor_map<f16>("from", x.from, x.shape(width, swizzle)),
                         to = make_tensor_map<f16>("to", x.to, x.shape(width, swizzle));
        launch("copy_box", copy_box, dim3(1), dim3(32), 2 * rows * columns + 16, from, to, x.lies, width,
               c0, c1, 2, 1);
        std::vector<f16> lies(rows * columns), stored(x.given.size());
        x.lies.download(lies.data());
        x.to.download(stored.data());
        std::uint64_t inside = 0;
        bool right = true;
        for (int r = 0; r < rows; ++r) {
          for (int c = 0; c < width; ++c) {
            const std::uint16_t expected = x.at(c0 + c, c1 + r, 2, 1);
            // Chunks of 16 bytes change places by the line of 128 bytes that they are in.
            const unsigned byte = static_cast<unsigned>(2 * (r * width + c));
            const unsigned line = byte / 128, chunks = swizzle == 0 ? 1 : swizzle / 16;
            right = right && lies[(byte ^ (line % chunks) * 16) / 2].bits == expected;
            inside += expected != 0;
          }
        }
        CHECK(right);
        for (std::size_t i = 0; i < stored.size(); ++i) {
          const auto column = static_cast<std::int64_t>(i) % 40,
                     row = static_cast<std::int64_t>(i) / 40 % 21,
                     head = static_cast<std::int64_t>(i) / 840;
          const bool in_box =
              head == 5 && column >= c0 && column < c0 + width && row >= c1 && row < c1 + rows;
          right = right && stored[i].bits == (in_box ? x.given[i].bits : 0);
        }
        CHECK(right);
        const simt::Ledger& ledger = emulator.last();
        CHECK(ledger.tma_loads == 1);
        CHECK(ledger.tma_stores == 1);
        CHECK(ledger.tma_read_bytes == 2 * inside);
        CHECK(ledger.tma_written_bytes == 2 * inside);
        CHECK(ledger.global.at("from").read_bytes == 2 * inside);
        CHECK(ledger.mbarrier_arrivals == 1);
        CHECK(ledger.mbarrier_waits == 32);
        CHECK(ledger.shared.at("tile").written_bytes == static_cast<std::uint64_t>(2 * rows * width));
      }
    }
  }
}

/// A producer warp keeps a ring of two tiles full, and a consumer warp adds them up.
__global__ void ring(const __grid_constant__ tensor_map map, gmem<f32> sums, int tiles) {
  auto&& tile = dynamic_tile<f32, 2 * 32, 32, "tile">(0);
  auto&& full = dynamic_tile<mbarrier, 2, 1, "full">(2 * 4 * 32 * 32);
  auto&& empty = dynamic_tile<mbarrier, 2, 1, "empty">(2 * 4 * 32 * 32 + 16);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) {
      mbarrier_init(full.at(s, 0), 1);
      mbarrier_init(empty.at(s, 0), 32);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  if (warp == 0) {
    for (int k = 0; k < tiles && lane == 0; ++k) {
      mbarrier_wait(empty.at(k % 2, 0), (k / 2 + 1) % 2);  // passes at once in the first turn
      mbarrier_arrive_expect_tx(full.at(k % 2, 0), 4 * 32 * 32);
      tma_load<f32>(tile.at(k % 2 * 32, 0), map, full.at(k % 2, 0), 0, 32 * k, 0, 0);
    }
  } else {
    f32 sum = 0.f;
    for (int k = 0; k < tiles; ++k) {
      mbarrier_wait(full.at(k % 2, 0), k / 2 % 2);
      for (int r = 0; r < 32; ++r) sum += tile(k % 2 * 32 + r, lane);
      mbarrier_arrive(empty.at(k % 2, 0));
    }
    sums[lane] = sum;
  }
}

TEST_CASE("a ring gives the same sums and the same counts whenever the unit works", "[tma]") {
  constexpr int tiles = 7, N = 32 * tiles - 5;
  std::vector<simt::Ledger> ledgers;
  for (const Units units : {Units::lazy, Units::eager, Units::random}) {
    for (const Schedule schedule : {Schedule::forward, Schedule::reverse, Schedule::random}) {
      INFO("units " << static_cast<int>(units) << ", schedule " << static_cast<int>(schedule));
      simt::Options options;
      options.check = true;
      options.units = units;
      options.schedule = schedule;
      options.seed = 3;
      simt::Emulator emulator(options);
      const simt::UseEmulator use(emulator);
      DeviceBuffer<f32> x("x", 32 * N), sums("sums", 32);
      std::vector<float> numbers(32 * N), got(32);
      for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i % 19);
      x.upload(numbers.data());
      launch("ring", ring, dim3(1), dim3(64), 2 * 4 * 32 * 32 + 32,
             make_tensor_map<f32>(
                 "x", x, {.dims = {32, N, 1, 1}, .strides = {32, 32 * N, 32 * N}, .box = {32, 32, 1, 1}}),
             sums, tiles);
      sums.download(got.data());
      for (int c = 0; c < 32; ++c) {
        float right = 0;
        for (int r = 0; r < N; ++r) right += numbers[static_cast<std::size_t>(32 * r + c)];
        CHECK(got[static_cast<std::size_t>(c)] == right);
      }
      ledgers.push_back(emulator.last());
      CHECK(ledgers.back() == ledgers.front());
      CHECK(ledgers.back().tma_loads == tiles);
      CHECK(ledgers.back().tma_read_bytes == 4 * 32 * N);
      CHECK(ledgers.back().mbarrier_arrivals == tiles * (1 + 32));
    }
  }
}

/// One lane waits for tiles, and the others wait for it.
__global__ void wait_alone(const __grid_constant__ tensor_map map, gmem<f32> sums, int tiles) {
  auto&& tile = dynamic_tile<f32, 32, 32, "tile">(0);
  auto&& full = dynamic_tile<mbarrier, 1, 1, "full">(4 * 32 * 32);
  const int lane = threadIdx.x;
  if (lane == 0) {
    mbarrier_init(full, 1);
    fence_mbarrier_init();
  }
  f32 sum = 0.f;
  for (int k = 0; k < tiles; ++k) {
    __syncthreads();
    if (lane == 0) {
      mbarrier_arrive_expect_tx(full, 4 * 32 * 32);
      tma_load<f32>(tile, map, full, 0, 32 * k, 0, 0);
      mbarrier_wait(full, k % 2);
    }
    __syncwarp();
    for (int r = 0; r < 32; ++r) sum += tile(r, lane);
  }
  sums[lane] = sum;
}

TEST_CASE("the thread that waits last may be the one whom the unit lets go on", "[tma]") {
  constexpr int tiles = 9;
  for (const Units units : {Units::lazy, Units::eager, Units::random}) {
    for (const Schedule schedule : {Schedule::forward, Schedule::reverse, Schedule::random}) {
      simt::Options options;
      options.check = true;
      options.units = units;
      options.schedule = schedule;
      simt::Emulator emulator(options);
      const simt::UseEmulator use(emulator);
      DeviceBuffer<f32> x("x", 32 * 32 * tiles), sums("sums", 32);
      const std::vector<float> ones(static_cast<std::size_t>(32 * 32 * tiles), 1.f);
      std::vector<float> got(32);
      x.upload(ones.data());
      launch("wait_alone", wait_alone, dim3(1), dim3(32), 4 * 32 * 32 + 8,
             make_tensor_map<f32>("x", x,
                                  {.dims = {32, 32 * tiles, 1, 1},
                                   .strides = {32, 32 * 32 * tiles, 32 * 32 * tiles},
                                   .box = {32, 32, 1, 1}}),
             sums, tiles);
      sums.download(got.data());
      for (const float sum : got) CHECK(sum == 32 * tiles);
    }
  }
}

TEST_CASE("a tensor that TMA does not take is refused with the rule and what would be taken", "[tma]") {
  const DeviceBuffer<f16> x("x", 4096);
  const TensorShape good = {
      .dims = {40, 8, 2, 1}, .strides = {40, 320, 640}, .box = {64, 8, 1, 1}, .swizzle = 128};
  CHECK_NOTHROW(make_tensor_map<f16>("x", x, good));
  const auto refused = [&](auto change, std::int64_t first, const std::string& says) {
    TensorShape shape = good;
    change(shape);
    try {
      make_tensor_map<f16>("K", x.ptr() + first, shape);
      CHECK(says == "it was taken");
    } catch (const UsageError& error) {
      INFO(error.what());
      CHECK(std::string(error.what()).starts_with("TMA cannot copy K: "));
      CHECK(std::string(error.what()).find(says) != std::string::npos);
    }
  };
  refused([](TensorShape&) {}, 4, "it begins 8 bytes behind a multiple of 16: align");
  refused([](TensorShape& s) { s.strides[0] = 44; }, 0,
          "the stride of dimension 1 is 88 bytes: give a multiple of 16 below 2^40");
  refused([](TensorShape& s) { s.strides[1] = 0; }, 0, "the stride of dimension 2 is 0 bytes");
  refused([](TensorShape& s) { s.dims[1] = 0; }, 0, "dimension 1 has 0 elements: give 1 to 2^32");
  refused([](TensorShape& s) { s.box[1] = 257; }, 0,
          "a box has 257 elements of dimension 1: give 1 to 256");
  refused([](TensorShape& s) { s.box[0] = 36; }, 0, "a row of a box has 72 bytes: give a multiple of 16");
  refused([](TensorShape& s) { s.box[0] = 72; }, 0,
          "a row of a box has 144 bytes, and its swizzle 128: make them the same");
  refused([](TensorShape& s) { s.swizzle = 96; }, 0, "its swizzle is 96 bytes: give 0, 32, 64 or 128");
  refused([](TensorShape& s) { s.dims[3] = 9; }, 0, "its last element is number");
  // The stride of a dimension with one element is never used.
  TensorShape one = good;
  one.strides[2] = 7;
  CHECK_NOTHROW(make_tensor_map<f16>("x", x, one));
}

TEST_CASE("the rows of packed sequences lie where the map that counts rows twice says", "[tma]") {
  // In bytes of f16; the stride of a single row is never used, and TMA may not take it.
  for (const auto& [rows, stride] : {std::pair<std::int64_t, std::int64_t>{8, 72}, {1, 64}, {1, 7}}) {
    const TensorShape packed = {
        .dims = {64, rows, 2, 1}, .strides = {stride, 8, 7}, .box = {64, 8, 1, 1}, .swizzle = 128};
    const TensorShape map = packed.ragged(2);
    CHECK_NOTHROW(map.require_taken("K", 0, 2));
    const std::int64_t begin = -rows * packed.stride_bytes(1, 2);
    for (std::int64_t first = 0; first < rows; ++first) {
      for (std::int64_t n = 1; first + n <= rows; ++n) {
        for (std::int64_t r = 0; r < n; ++r) {
          const std::int64_t at[] = {rows - n + r, first + n};  // of dimensions 1 and 3
          CHECK((at[0] < map.dims[1] && at[1] < map.dims[3]));
          CHECK(begin + at[0] * map.stride_bytes(1, 2) + at[1] * map.stride_bytes(3, 2) ==
                (first + r) * packed.stride_bytes(1, 2));
        }
        CHECK(rows - n + n == map.dims[1]);  // the row behind the sequence is outside
      }
    }
  }
}

}  // namespace
