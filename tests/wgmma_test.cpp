// wgmma on the emulator: where a matrix descriptor finds each element, every N, both element types, and
// that results and counts do not depend on when the tensor cores work. What is wrong with a kernel that
// uses it wrongly: zoo_test.cpp.
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "catch.hpp"
#include "common/ptx/mma.hpp"
#include "common/ptx/tensor_map.hpp"
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

}  // namespace
