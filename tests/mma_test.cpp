// Tensor-core instructions on the emulator, exhaustively: what each lane holds, against plain matrices; and
// the 16-bit numbers they work on.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "catch.hpp"
#include "common/ptx/atomic_add4.hpp"
#include "common/ptx/cp_async.hpp"
#include "common/ptx/exp2.hpp"
#include "common/ptx/mma.hpp"
#include "common/simt/half.hpp"
#include "common/simt/simt_host.hpp"

namespace {

using namespace flashladder;

/// C += A B, fragments laid out as mma.hpp draws them.
template <class T>
__global__ void product(gmem<const T> A, gmem<const T> B, gmem<f32> C) {  // [16, 16], [16, 8], [16, 8]
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  const auto at = [&](gmem<const T> M, int columns, int row, int column) {
    return T(M[row * columns + column]);
  };
  const std::uint32_t a[4] = {pair(at(A, 16, g, 2 * t), at(A, 16, g, 2 * t + 1)),
                              pair(at(A, 16, g + 8, 2 * t), at(A, 16, g + 8, 2 * t + 1)),
                              pair(at(A, 16, g, 2 * t + 8), at(A, 16, g, 2 * t + 9)),
                              pair(at(A, 16, g + 8, 2 * t + 8), at(A, 16, g + 8, 2 * t + 9))};
  const std::uint32_t b[2] = {pair(at(B, 8, 2 * t, g), at(B, 8, 2 * t + 1, g)),
                              pair(at(B, 8, 2 * t + 8, g), at(B, 8, 2 * t + 9, g))};
  f32 c[4];
  for (int e = 0; e < 4; ++e) c[e] = C[(g + e / 2 * 8) * 8 + 2 * t + e % 2];
  mma_m16n8k16<T>(c, a, b);
  for (int e = 0; e < 4; ++e) C[(g + e / 2 * 8) * 8 + 2 * t + e % 2] = c[e];
}

/// The row of the tile that a lane names to ldmatrix: the rows of a matrix may lie anywhere.
constexpr int named_row(int lane) {
  return (5 * lane + 3) % 32;
}

/// The registers that ldmatrix gives for four matrices of 8 rows, those that lanes 0-7, 8-15, ... name.
template <class T, bool transposed>
__global__ void registers(gmem<const T> M, gmem<std::uint32_t> R) {  // [32, 8], [32 lanes, 4]
  __shared__ smem_array<T, 32, 8, "M"> tile;
  const int lane = threadIdx.x;
  copy_16B<T>(tile.at(lane, 0), M + lane * 8);
  __syncwarp();
  std::uint32_t r[4];
  if (transposed) {
    ldmatrix_x4_trans<T>(r, tile.at(named_row(lane), 0));
  } else {
    ldmatrix_x4<T>(r, tile.at(named_row(lane), 0));
  }
  for (int j = 0; j < 4; ++j) R[lane * 4 + j] = r[j];
}

/// Products before, during and after copies that `copying` lanes begin; of two groups the younger lasts
/// longer.
__global__ void products_and_copies(gmem<const f16> A, int copying) {  // [32, 8]
  __shared__ smem_array<f16, 64, 8, "tile"> tile;
  const int lane = threadIdx.x;
  const std::uint32_t a[4] = {}, b[2] = {};
  f32 c[4] = {};
  mma_m16n8k16<f16>(c, a, b);
  if (lane < copying) cp_async_16B(tile.at(lane, 0), A + lane * 8);
  mma_m16n8k16<f16>(c, a, b);  // with one copy
  cp_async_commit();
  if (lane < copying / 2) cp_async_16B(tile.at(32 + lane, 0), A + lane * 8);
  cp_async_commit();
  cp_async_wait<1>();
  mma_m16n8k16<f16>(c, a, b);  // half of them with the second one
  cp_async_wait<0>();
  mma_m16n8k16<f16>(c, a, b);
}

template <class T>
std::vector<T> numbers(std::size_t count, int seed) {
  std::vector<T> all(count);
  for (std::size_t i = 0; i < count; ++i)
    all[i] =
        T(f32(static_cast<float>(
                  static_cast<int>((i * i * 7 + i * 13 + static_cast<std::size_t>(seed) * 11) % 31) - 15) /
              4));
  return all;
}

/// What C is before, [16, 8]: a number of its own for each element.
std::vector<float> sums_before() {
  std::vector<float> c(16 * 8);
  for (std::size_t i = 0; i < c.size(); ++i) c[i] = static_cast<float>(i) / 2;
  return c;
}

/// C + A B, [16, 8], from small numbers, which are exact in any order. The quarters of A, 8 x 8 each, are
/// taken as the lanes' registers hold them, in the order of `quarters`; the halves of B likewise.
template <class T>
std::vector<float> plain_product(const std::vector<T>& a, const std::vector<T>& b,
                                 const std::array<int, 4>& quarters, const std::array<int, 2>& halves) {
  std::vector<float> c = sums_before();
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      const int quarter = quarters[static_cast<std::size_t>(row / 8 + 2 * (k / 8))];
      const T& x = a[static_cast<std::size_t>((row % 8 + quarter % 2 * 8) * 16 + k % 8 + quarter / 2 * 8)];
      for (int column = 0; column < 8; ++column) {
        const T& y =
            b[static_cast<std::size_t>((k % 8 + halves[static_cast<std::size_t>(k / 8)] * 8) * 8 + column)];
        c[static_cast<std::size_t>(row * 8 + column)] +=
            simt::Plain::number(f32(x)) * simt::Plain::number(f32(y));
      }
    }
  }
  return c;
}

template <class T>
void check_product() {
  const std::vector<T> a = numbers<T>(16 * 16, 1), b = numbers<T>(16 * 8, 2);
  DeviceBuffer<T> A("A", 16 * 16), B("B", 16 * 8);
  DeviceBuffer<f32> C("C", 16 * 8);
  A.upload(a.data());
  B.upload(b.data());
  C.upload(sums_before().data());
  simt::Emulator emulator;
  const simt::UseEmulator use(emulator);
  launch("product", product<T>, 1, 32, 0, A, B, C);
  std::vector<float> got(16 * 8);
  C.download(got.data());
  // With these numbers any other order of a lane's registers shows, but that of both halves of the sum at
  // once.
  std::array<int, 4> quarters = {0, 1, 2, 3};
  do {
    for (const std::array<int, 2>& halves : {std::array{0, 1}, std::array{1, 0}}) {
      const bool same =
          quarters == std::array{2 * halves[0], 2 * halves[0] + 1, 2 * halves[1], 2 * halves[1] + 1};
      CHECK((got == plain_product(a, b, quarters, halves)) == same);
    }
  } while (std::ranges::next_permutation(quarters).found);
  CHECK(emulator.last().flops_tensor_cores == 2 * 16 * 8 * 16);
  CHECK(emulator.last().flops_cuda_cores == 0);
}

TEST_CASE("mma_m16n8k16 multiplies what the lanes hold", "[simt]") {
  check_product<f16>();
  check_product<bf16>();
}

template <class T>
void check_registers() {
  std::vector<T> m(32 * 8);
  for (std::size_t i = 0; i < m.size(); ++i) m[i].bits = static_cast<std::uint16_t>(i);
  DeviceBuffer<T> M("M", 32 * 8);
  M.upload(m.data());
  DeviceBuffer<std::uint32_t> R("R", 32 * 4);
  simt::Options options;
  options.banks = options.check = true;
  simt::Emulator emulator(options);
  const simt::UseEmulator use(emulator);
  for (bool transposed : {false, true}) {
    launch("registers", transposed ? registers<T, true> : registers<T, false>, 1, 32, 0, M, R);
    std::vector<std::uint32_t> r(32 * 4);
    R.download(r.data());
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      for (int j = 0; j < 4; ++j) {
        const int low = transposed ? named_row(8 * j + 2 * t) * 8 + g : named_row(8 * j + g) * 8 + 2 * t;
        const int high = transposed ? named_row(8 * j + 2 * t + 1) * 8 + g : low + 1;
        REQUIRE(r[lane * 4 + j] == static_cast<std::uint32_t>(low | high << 16));
      }
    }
    // 512 neighbouring bytes are written in four wavefronts and read in four.
    CHECK(emulator.last().shared.at("M").wavefronts == 8);
    CHECK(emulator.last().shared.at("M").ideal_wavefronts == 8);
  }
}

TEST_CASE("ldmatrix deals four matrices to the lanes, as they are and transposed", "[simt]") {
  check_registers<f16>();
  check_registers<bf16>();
}

TEST_CASE("FLOPs during copies are those of lanes whose copies are under way", "[simt]") {
  DeviceBuffer<f16> A("A", 32 * 8);
  A.upload(std::vector<f16>(32 * 8).data());
  for (const int copying : {0, 8, 32}) {
    simt::Emulator emulator;
    const simt::UseEmulator use(emulator);
    launch("products_and_copies", products_and_copies, 1, 32, 0, A, copying);
    CHECK(emulator.last().flops_tensor_cores == 4 * 4096);
    CHECK(emulator.last().flops_during_copies ==
          static_cast<std::uint64_t>(4096 * (copying + copying / 2) / 32));
  }
}

template <class T>
__global__ void eights(gmem<const T> from, gmem<T> to, gmem<T> firsts, gmem<f32> sums) {
  __shared__ smem_array<T, 32, 2, "pairs"> pairs;
  const int lane = threadIdx.x;
  f32 x[8];
  load_eight<T>(x, from + 8 * lane);
  store_pair(pairs.at(lane, 0), round_pair<T>(x[0], x[1]));
  store_pair(firsts + 2 * lane, load_pair(pairs.at(lane, 0)));
  store_eight<T>(to + 8 * lane, x);
  for (int repeat = 0; repeat < 2; ++repeat)
    atomic_add4(sums + 4 * (lane % 16), make_float4(x[0], x[1], x[2], x[3]));
}

TEST_CASE("eight numbers are one access of 16 bytes, four additions one instruction", "[simt]") {
  const auto check = [](auto number) {
    using T = decltype(number);
    std::vector<T> numbers;
    for (int i = 0; i < 256; ++i) numbers.push_back(T(f32(static_cast<float>(i % 128))));
    DeviceBuffer<T> from("from", 256), to("to", 256), firsts("firsts", 64);
    DeviceBuffer<f32> sums("sums", 64);
    from.upload(numbers.data());
    sums.fill_zero();
    simt::Options options;
    options.banks = options.check = true;
    simt::Emulator emulator(options);
    const simt::UseEmulator use(emulator);
    launch("eights", eights<T>, 1, 32, 0, from, to, firsts, sums);
    std::vector<T> copied(256);
    to.download(copied.data());
    for (int i = 0; i < 256; ++i) CHECK(copied[i].bits == numbers[i].bits);
    std::vector<T> pairs(64);
    firsts.download(pairs.data());
    for (int i = 0; i < 64; ++i) CHECK(pairs[i].bits == numbers[i / 2 * 8 + i % 2].bits);
    std::vector<float> total(64);
    sums.download(total.data());
    // Lanes l and l + 16 add the numbers 8 l ... 8 l + 3 twice each.
    for (int i = 0; i < 64; ++i) CHECK(total[i] == static_cast<float>(4 * (i / 4 * 8 + i % 4)));
    const simt::Ledger& ledger = emulator.last();
    CHECK(ledger.atomics == 2 * 32 * 4);
    CHECK(ledger.global.at("sums").atomic_elements() == 2 * 32 * 4);
    CHECK(ledger.global.at("sums").sectors == 2 * 16 * 16 / 32);  // 16 places of 16 bytes, twice
    CHECK(ledger.global.at("sums").atomic_sectors == ledger.global.at("sums").sectors);
    CHECK(ledger.global.at("sums").ideal_sectors == ledger.global.at("sums").sectors);
    CHECK(ledger.global.at("to").atomic_sectors == 0);
    CHECK(ledger.global.at("from").read_elements() == 256);
    CHECK(ledger.global.at("to").written_elements() == 256);
  };
  check(f16());
  check(bf16());
}

__global__ void powers(gmem<const f32> x, gmem<f32> y, int n) {
  for (int i = threadIdx.x; i < n; i += 32) y[i] = ex2_approx(x[i]);
}

TEST_CASE("ex2 is a power of 2 within 2 ulp, and 0 where that is subnormal", "[simt]") {
  std::vector<float> x = {0.f, -0.f, 1.f, -126.f, -126.1f, -127.f, 128.f, -INFINITY, INFINITY, NAN};
  for (int i = 0; i < 60000; ++i) x.push_back(static_cast<float>(-160 + i * 0.00483));
  const int n = static_cast<int>(x.size());
  DeviceBuffer<f32> from("from", n), to("to", n);
  from.upload(x.data());
  launch("powers", powers, 1, 32, 0, from, to, n);
  std::vector<float> y(x.size());
  to.download(y.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    INFO("2^" << x[i] << " is " << y[i]);
    const double right = std::exp2(static_cast<double>(x[i]));
    if (std::isnan(x[i])) {
      CHECK(std::isnan(y[i]));
    } else if (right < 0x1p-126) {
      CHECK(y[i] == 0.f);
    } else if (right >= 0x1p128) {
      CHECK(std::isinf(y[i]));
    } else {  // an ulp is at most 2^-23 of it
      CHECK(std::abs(y[i] - right) <= 2 * 0x1p-23 * right);
    }
  }
}

template <class T>
__global__ void pairs_of(gmem<const f32> x, gmem<T> rounded, int n) {
  for (int i = 2 * threadIdx.x; i + 1 < n; i += 64) store_pair(rounded + i, round_pair<T>(x[i], x[i + 1]));
}

TEST_CASE("a pair is rounded to the nearest, ties to even, the first in the low half", "[simt]") {
  const auto check = [](auto number) {
    using T = decltype(number);
    constexpr float ulp = std::is_same_v<T, bf16> ? 0x1p-7f : 0x1p-10f;  // from 1 to 2
    // A tie above an even and above an odd number, and both sides of each.
    const std::vector<float> x = {1 + ulp / 2,  1 + ulp * 3 / 2,  1 + ulp * 0.5001f, 1 + ulp * 1.4999f,
                                  -1 - ulp / 2, -1 - ulp * 3 / 2, 1 + ulp * 0.4999f, 1 + ulp * 1.5001f};
    const std::vector<float> right = {1, 1 + 2 * ulp, 1 + ulp, 1 + ulp, -1, -1 - 2 * ulp, 1, 1 + 2 * ulp};
    const int n = static_cast<int>(x.size());
    DeviceBuffer<f32> from("from", n);
    DeviceBuffer<T> to("to", n);
    from.upload(x.data());
    launch("pairs_of", pairs_of<T>, 1, 32, 0, from, to, n);
    std::vector<T> rounded(x.size());
    to.download(rounded.data());
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(simt::Plain::number(f32(rounded[i])) == right[i]);
  };
  check(f16());
  check(bf16());
}

TEST_CASE("four additions at once must begin at a multiple of 16 bytes", "[simt]") {
  DeviceBuffer<f32> sums("sums", 64);
  sums.fill_zero();
  const auto misaligned = +[](gmem<f32> to) { atomic_add4(to + 2, make_float4(1.f, 1.f, 1.f, 1.f)); };
  try {
    launch("misaligned", misaligned, 1, 32, 0, sums);
    FAIL("nothing was reported");
  } catch (const simt::KernelError& error) {
    CHECK(std::string(simt::name_of(error.kind)) == "misaligned");
  }
}

TEST_CASE("16-bit numbers are rounded to the nearest, ties to even", "[simt]") {
  const auto check = [](auto widen, auto round) {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float x = widen(static_cast<std::uint16_t>(bits));
      if (std::isnan(x)) {
        REQUIRE(std::isnan(widen(round(x))));
        continue;
      }
      REQUIRE(round(x) == bits);
      const float next = widen(static_cast<std::uint16_t>(bits + 1));
      if ((bits & 0x7fff) == 0x7fff || std::isnan(next) || std::isinf(next) || std::isinf(x)) continue;
      const double middle = (double{x} + next) / 2;  // exact in fp32
      const auto even = static_cast<std::uint16_t>(bits % 2 == 0 ? bits : bits + 1);
      REQUIRE(round(static_cast<float>(middle)) == even);
      REQUIRE(round(std::nextafter(static_cast<float>(middle), x)) == bits);
      REQUIRE(round(std::nextafter(static_cast<float>(middle), next)) ==
              static_cast<std::uint16_t>(bits + 1));
    }
  };
  check(simt::widen_bf16, simt::round_bf16);
  check(simt::widen_f16, simt::round_f16);
  CHECK(simt::round_f16(65520.f) == 0x7c00);  // infinity: halfway to a number that does not exist
  CHECK(simt::round_f16(65519.f) == 0x7bff);
}

TEST_CASE("a product takes each 16-bit number for what it is", "[simt]") {
  const auto check = []<class T>(T one, auto widen) {
    std::vector<T> a(16 * 16, T(f32(0.f))), b(16 * 8, T(f32(0.f)));
    b[0] = one;
    DeviceBuffer<T> A("A", 16 * 16), B("B", 16 * 8);
    DeviceBuffer<f32> C("C", 16 * 8);
    B.upload(b.data());
    for (std::uint32_t first = 0; first < 0x10000; first += 16) {
      for (std::uint32_t row = 0; row < 16; ++row)
        a[row * 16].bits = static_cast<std::uint16_t>(first + row);
      A.upload(a.data());
      C.fill_zero();
      launch("product", product<T>, 1, 32, 0, A, B, C);
      std::vector<float> c(16 * 8);
      C.download(c.data());
      for (std::uint32_t row = 0; row < 16; ++row) {
        const float x = widen(a[row * 16].bits), got = c[row * 8];
        INFO(first + row);
        REQUIRE((std::isnan(x) ? std::isnan(got) : got == x));
      }
    }
  };
  check(f16(f32(1.f)), simt::widen_f16);
  check(bf16(f32(1.f)), simt::widen_bf16);
}

}  // namespace
