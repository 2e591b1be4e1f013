// Formulas and figures that are printed wrong in papers and tutorials, each beside the right one: what is
// printed fails by a number, what is right holds. docs/mistakes.md says where each is printed, and why it
// is wrong.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "catch.hpp"
#include "common/check/check.hpp"
#include "common/check/count.hpp"
#include "common/check/inputs.hpp"

namespace {

using namespace flashladder;

Problem square(std::int64_t N, std::int64_t d, bool causal = false) {
  Problem p;
  p.Nq = p.Nk = N;
  p.d = d;
  p.causal = causal;
  return p;
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// --- rescaling

/// One row over a part of the keys, its values one number each.
struct Part {
  double m, l;
  double O_unscaled;                           ///< O~ = sum e^(s - m) v
  double O() const { return O_unscaled / l; }  ///< The softmax over these keys alone, times V.
};

Part part(const std::vector<double>& scores, const std::vector<double>& values) {
  Part of{*std::max_element(scores.begin(), scores.end()), 0, 0};
  for (std::size_t j = 0; j < scores.size(); ++j) {
    of.l += std::exp(scores[j] - of.m);
    of.O_unscaled += std::exp(scores[j] - of.m) * values[j];
  }
  return of;
}

// Two parts of a row, and the row. The maximum grows by 2 from the first part to the second.
const Part first = part({0, 1}, {1, 2}), all = part({0, 1, 3, 2}, {1, 2, 3, 4});
const double m_new = all.m, l_new = all.l;
const double O_of_second = std::exp(3 - m_new) * 3 + std::exp(2 - m_new) * 4;  // e^(S - m_new) V

TEST_CASE("rescaling multiplies by e^(m - m_new), not by its inverse", "[mistakes]") {
  const double alpha = std::exp(first.m - m_new);
  const double right = (alpha * first.O_unscaled + O_of_second) / l_new;
  const double printed = (first.O_unscaled / alpha + O_of_second) / l_new;
  CHECK(std::abs(right - all.O()) < 1e-15);
  CHECK(printed - all.O() > 10);  // 14.15 instead of 3.09, from values between 1 and 4

  // At the first tile m is -infinity and O~ is 0: the factor is 0, its inverse makes a NaN.
  const double first_alpha = std::exp(-INFINITY - first.m), nothing = 0;
  CHECK(first_alpha * nothing == 0);
  CHECK(std::isnan(nothing / first_alpha));
  // Where the maximum stays the two are one, which is why equal scores do not show it.
  CHECK(1 / std::exp(first.m - first.m) == 1);
}

TEST_CASE("the two-block example weighs O by l/l_new and by e^(m - m_new)", "[mistakes]") {
  const double alpha = std::exp(first.m - m_new), O = first.O();
  // FlashAttention-2, section 2.3.1: diag(l/l_new)^-1, and no exponential.
  const double right = first.l / l_new * alpha * O + O_of_second / l_new;
  const double printed = l_new / first.l * O + O_of_second / l_new;
  CHECK(std::abs(right - all.O()) < 1e-15);
  CHECK(std::abs(printed - all.O()) > 1);
  // Section 3.1.1, the same without the division: diag(l)^-1.
  const double right_unscaled = first.l * alpha * O + O_of_second;
  const double printed_unscaled = O / first.l + O_of_second;
  CHECK(std::abs(right_unscaled - all.O_unscaled) < 1e-15);
  CHECK(std::abs(printed_unscaled - all.O_unscaled) > 0.5);
  // FlashAttention-1, appendix C, third line of the induction: P = diag(l) e^(S - m) for diag(l)^-1 e^(S -
  // m).
  const double right_step = (first.l * alpha * (first.O_unscaled / first.l) + O_of_second) / l_new;
  const double printed_step = (first.l * alpha * (first.O_unscaled * first.l) + O_of_second) / l_new;
  CHECK(std::abs(right_step - all.O()) < 1e-15);
  CHECK(std::abs(printed_step - all.O()) > 0.1);
}

// --- gradients

TEST_CASE("dK is dS^T Q, not Q dS^T", "[mistakes]") {
  // Nq = Nk = d, the only case in which the shapes of the printed product fit at all.
  const std::int64_t n = 8;
  const Problem p = square(n, n);
  const Inputs in = random_inputs(p, 3);
  const std::vector<float> dO = random_output_gradient(p, 4);
  const Result<double> forward = oracle_forward(in);
  const Gradients<double> gradients = oracle_backward(in, dO);
  std::vector<double> dS(n * n);  // P * (dP - D), with the scale
  for (std::int64_t i = 0; i < n; ++i) {
    double D = 0;
    for (std::int64_t c = 0; c < n; ++c) D += double{dO[i * n + c]} * forward.O[i * n + c];
    for (std::int64_t j = 0; j < n; ++j) {
      double s = 0, dP = 0;
      for (std::int64_t c = 0; c < n; ++c) {
        s += double{in.Q[i * n + c]} * in.K[j * n + c];
        dP += double{dO[i * n + c]} * in.V[j * n + c];
      }
      dS[i * n + j] = p.softmax_scale() * std::exp(p.softmax_scale() * s - forward.L[i]) * (dP - D);
    }
  }
  double error_right = 0, error_printed = 0;
  for (std::int64_t a = 0; a < n; ++a) {
    for (std::int64_t b = 0; b < n; ++b) {
      double right = 0, printed = 0;
      for (std::int64_t k = 0; k < n; ++k) {
        right += dS[k * n + a] * in.Q[k * n + b];    // (dS^T Q)(a, b)
        printed += in.Q[a * n + k] * dS[b * n + k];  // (Q dS^T)(a, b)
      }
      error_right = std::max(error_right, std::abs(right - gradients.dK[a * n + b]));
      error_printed = std::max(error_printed, std::abs(printed - gradients.dK[a * n + b]));
    }
  }
  CHECK(error_right < 1e-6);
  CHECK(error_printed > 0.1);
}

// --- the causal mask, tile by tile

/// Tiles of a causal square problem, and what the two conditions printed in tutorials do with them.
struct CausalTiles {
  std::int64_t live = 0;            ///< Hold a visible pair.
  std::int64_t dead_visited = 0;    ///< Hold none, and are not skipped by `j Bc > (i + 1) Br`.
  std::int64_t unmasked = 0;        ///< Hold both kinds of pairs, and are not masked by `j Bc >= i Br`.
  std::int64_t leaked_pairs = 0;    ///< Pairs in them that must not be seen.
  std::int64_t unmasked_right = 0;  ///< As `unmasked`, of the condition `(j + 1) Bc - 1 > i Br`.
};

CausalTiles causal_tiles(std::int64_t N, std::int64_t Br, std::int64_t Bc) {
  CausalTiles tiles;
  for (std::int64_t i = 0; i * Br < N; ++i) {
    for (std::int64_t j = 0; j * Bc < N; ++j) {
      std::int64_t visible = 0, hidden = 0;
      for (std::int64_t row = i * Br; row < std::min((i + 1) * Br, N); ++row) {
        for (std::int64_t key = j * Bc; key < std::min((j + 1) * Bc, N); ++key)
          ++(key <= row ? visible : hidden);
      }
      if (visible == 0) {
        tiles.dead_visited += !(j * Bc > (i + 1) * Br);
        continue;
      }
      ++tiles.live;
      if (hidden > 0 && !(j * Bc >= i * Br)) {
        ++tiles.unmasked;
        tiles.leaked_pairs += hidden;
      }
      tiles.unmasked_right += hidden > 0 && !((j + 1) * Bc - 1 > i * Br);
    }
  }
  return tiles;
}

TEST_CASE("a tile is dead from j Bc = (i + 1) Br on, not only beyond", "[mistakes]") {
  for (std::int64_t N : {256, 1024}) {
    const std::int64_t Br = 32, Tr = N / Br;
    const CausalTiles tiles = causal_tiles(N, Br, Br);
    CHECK(tiles.live == Tr * (Tr + 1) / 2);
    CHECK(tiles.dead_visited == Tr - 1);  // one in every row of tiles but the last
    const Problem p = square(N, 64, true);
    CHECK(claims::sum(claims::live_i).value({p, {.Br = Br, .Bc = Br}}) == tiles.live);
  }
}

/// O of a causal square problem whose tiles are masked only where `masked(i, j)` says so; dead ones
/// skipped.
template <class Masked>
std::vector<float> masked_by_tile(const Inputs& in, std::int64_t Br, std::int64_t Bc, Masked masked) {
  const Problem& p = in.problem;
  std::vector<float> O(in.Q.size());
  for (std::int64_t row = 0; row < p.Nq; ++row) {
    const std::int64_t i = row / Br;
    double m = -INFINITY, l = 0;
    std::vector<double> o(p.d);
    for (std::int64_t key = 0; key < p.Nk; ++key) {
      const std::int64_t j = key / Bc;
      if (j * Bc >= (i + 1) * Br || (masked(i, j) && key > row)) continue;
      double s = 0;
      for (std::int64_t c = 0; c < p.d; ++c) s += double{in.Q[row * p.d + c]} * in.K[key * p.d + c];
      s *= p.softmax_scale();
      const double m_next = std::max(m, s), alpha = std::exp(m - m_next), e = std::exp(s - m_next);
      l = alpha * l + e;
      for (std::int64_t c = 0; c < p.d; ++c) o[c] = alpha * o[c] + e * in.V[key * p.d + c];
      m = m_next;
    }
    for (std::int64_t c = 0; c < p.d; ++c) O[row * p.d + c] = static_cast<float>(o[c] / l);
  }
  return O;
}

TEST_CASE("a tile needs the mask when its last key is beyond its first row", "[mistakes]") {
  // The tiles of FlashAttention-1 for d = 64 and 98,304 elements on chip.
  const CausalTiles tiles = causal_tiles(4096, 64, 384);
  CHECK(tiles.unmasked == 53);
  CHECK(tiles.leaked_pairs == 528'736);
  CHECK(tiles.unmasked_right == 0);
  CHECK(causal_tiles(1024, 32, 32).unmasked == 0);  // square tiles hide it, and so do
  CHECK(causal_tiles(1024, 64, 32).unmasked == 0);  // those with more rows than keys

  const std::int64_t Br = 4, Bc = 16;
  const Inputs in = random_inputs(square(64, 16, true), 5);
  const Expected expected = expect_forward(in, Dtype::fp32);
  Result<float> result{{}, std::vector<float>(expected.oracle.L.begin(), expected.oracle.L.end())};
  result.O = masked_by_tile(in, Br, Bc, [](auto i, auto j) { return (j + 1) * Bc - 1 > i * Br; });
  CHECK(check_forward(result, expected).passed);
  result.O = masked_by_tile(in, Br, Bc, [](auto i, auto j) { return j * Bc >= i * Br; });
  const Verdict verdict = check_forward(result, expected);
  CHECK_FALSE(verdict.passed);
  CHECK(verdict.error > 0.1);
}

// --- rounding

Result<float> output(int number, const Inputs& in) {
  ForwardRun run(find_stage(number), in);
  Workspace workspace;
  run.run(workspace);
  return run.result();
}

TEST_CASE("FlashAttention equals standard attention up to rounding, not bit by bit", "[mistakes]") {
  const Inputs in = random_inputs(square(128, 64), 1);
  const Expected expected = expect_forward(in, Dtype::fp32);
  for (const auto& [one, other] : {std::pair{0, 1}, {10, 11}, {11, 12}, {13, 14}}) {
    const Result<float> a = output(one, in), b = output(other, in);
    std::size_t differ = 0;
    for (std::size_t k = 0; k < a.O.size(); ++k) differ += a.O[k] != b.O[k];
    INFO("stages " << one << " and " << other << ": " << differ << " of " << a.O.size() << " differ");
    CHECK(differ > a.O.size() / 3);
    CHECK(check_against(b, expected, a, expected).passed);
  }
  // Where every operation of a row is the same in the same order, the bits are too.
  CHECK(output(12, in).O == output(13, in).O);
}

// --- traffic

/// Elements that stage `number` reads and writes in global memory, by its closed forms, in tiles of Br x
/// Bc.
std::int64_t traffic(int number, const Problem& p, std::int64_t Br, std::int64_t Bc) {
  const Symbols n(p, {.Br = Br, .Bc = Bc});
  std::int64_t elements = 0;
  for (const ClosedForm& form : claim_of(find_stage(number))->forward.forms) {
    if (form.counter.starts_with("global.")) elements += form.value(n);
  }
  return elements;
}

TEST_CASE("FlashAttention-1 moves 9.1 million elements at N = 4096, d = 64 and 192 KiB, not 7",
          "[mistakes]") {
  const std::int64_t N = 4096, d = 64, M = 192 * 1024 / 2;
  CHECK(N * N * d * d / M == 699'050);  // the bare formula: 0.70 million, a tenth of what is printed
  const std::int64_t Bc = ceil_div(M, 4 * d), Br = std::min(Bc, d);
  CHECK(traffic(11, square(N, d), Br, Bc) == 9'084'928);
  // As printed, O, l and m are initialised in HBM first and always loaded.
  const std::int64_t Tc = ceil_div(N, Bc);
  CHECK(2 * N * d + Tc * (2 * N * d + 2 * N) + (Tc + 1) * (N * d + 2 * N) == 9'625'600);
  // And the closed form that this uses is what the kernels do, in the tile that they have.
  const Problem small = square(256, d);
  const simt::GlobalTraffic counted = count_forward(find_stage(11), random_inputs(small, 1)).global_total();
  CHECK(static_cast<std::int64_t>(counted.read_elements() + counted.written_elements()) ==
        traffic(11, small, 64, 64));
}

TEST_CASE("standard attention moves 4 N d + 4 N^2 elements with a perfect cache, not N d + N^2",
          "[mistakes]") {
  const std::int64_t N = 256, d = 64;
  const Problem p = square(N, d);
  std::vector<simt::Ledger> launches;
  const simt::Ledger total = count_forward(find_stage(10), random_inputs(p, 1), {}, &launches);
  REQUIRE(launches.size() == 3);
  std::int64_t operands = 0;  // each operand of each kernel once
  for (const simt::Ledger& launch : launches) {
    for (const auto& [name, buffer] : launch.global) {
      const std::int64_t elements = name == "S" || name == "P" ? N * N : name == "L" ? N : N * d;
      operands += ((buffer.read_bytes > 0) + (buffer.written_bytes > 0)) * elements;
    }
  }
  CHECK(operands == 4 * N * d + 4 * N * N + N);  // the last is L
  CHECK(operands > 3.9 * static_cast<double>(N * d + N * N));
  // What tiled kernels issue is more again, and another model's figure.
  const simt::GlobalTraffic issued = total.global_total();
  const auto issued_elements =
      static_cast<std::int64_t>(issued.read_elements() + issued.written_elements());
  CHECK(issued_elements == traffic(10, p, 64, 64));
  CHECK(static_cast<double>(issued_elements) > 1.8 * static_cast<double>(operands));

  const Problem large = square(4096, 64);
  CHECK(large.Nq * large.d + large.Nq * large.Nk == 17'039'360);  // what is printed
  CHECK(4 * large.Nq * large.d + 4 * large.Nq * large.Nk == 68'157'440);
  CHECK(traffic(10, large, 64, 64) == 151'261'184);
}

TEST_CASE("min(M / 4d, d) is Br alone: Bc is M / 4d", "[mistakes]") {
  const std::int64_t d = 64, M = 192 * 1024 / 2;
  const std::int64_t Bc = ceil_div(M, 4 * d), Br = std::min(Bc, d);
  CHECK(Bc == 384);
  CHECK(Br == 64);
  const Problem p = square(4096, d);
  CHECK(traffic(11, p, Br, Bc) == 9'084'928);
  CHECK(traffic(11, p, Br, Br) == 51'634'176);             // 5.7 times as much
  CHECK(traffic(11, p, 1, Bc) == traffic(11, p, Br, Bc));  // Br plays no part in it
}

TEST_CASE("the tiles of Algorithm 1 need more than M where M is at most 4 d^2", "[mistakes]") {
  const auto needed = [](std::int64_t M, std::int64_t d) {
    const std::int64_t Bc = ceil_div(M, 4 * d), Br = std::min(Bc, d);
    return 2 * Bc * d + 2 * Br * d + Br * Bc;  // K_j and V_j, Q_i and O_i, S_ij
  };
  CHECK(needed(98'304, 64) == 81'920);            // fits
  CHECK(needed(4 * 64 * 64, 64) == 5 * 64 * 64);  // a quarter too much
  CHECK(needed(64, 64) == 4 * 64 + 1);            // at M = d one row of each is four times too much
}

// --- the lower bound

/// A fast memory, and what travels between it and a slow one that holds the matrices.
struct FastMemory {
  std::int64_t held = 0, most = 0, moved = 0;

  /// B x B elements in it, zero at first.
  struct Block {
    FastMemory& memory;
    std::vector<double> x;
    Block(FastMemory& in, std::int64_t elements) : memory(in), x(elements) {
      memory.held += elements;
      memory.most = std::max(memory.most, memory.held);
    }
    ~Block() { memory.held -= static_cast<std::int64_t>(x.size()); }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
  };
};

/// Attention by matrix products in square blocks of B x B, with e^S stored (Saha and Ye 2024, Algorithm 1):
/// 3 B^2 + B elements of fast memory. N and d are multiples of B; scores must not overflow without a
/// maximum.
std::vector<double> square_tiling(const Inputs& in, std::int64_t B, FastMemory& fast) {
  const std::int64_t N = in.problem.Nq, d = in.problem.d;
  std::vector<double> A(N * N), l(N), O(N * d);  // slow memory
  using Block = FastMemory::Block;
  const auto load = [&](Block& block, const auto& matrix, std::int64_t columns, std::int64_t row,
                        std::int64_t column) {
    for (std::int64_t r = 0; r < B; ++r) {
      for (std::int64_t c = 0; c < B; ++c) block.x[r * B + c] = matrix[(row + r) * columns + column + c];
    }
    fast.moved += B * B;
  };
  for (std::int64_t i = 0; i < N; i += B) {
    Block sum(fast, B);
    for (std::int64_t j = 0; j < N; j += B) {
      Block a(fast, B * B);
      for (std::int64_t k = 0; k < d; k += B) {
        Block q(fast, B * B), key(fast, B * B);
        load(q, in.Q, d, i, k);
        load(key, in.K, d, j, k);
        for (std::int64_t r = 0; r < B; ++r)
          for (std::int64_t c = 0; c < B; ++c)
            for (std::int64_t x = 0; x < B; ++x) a.x[r * B + c] += q.x[r * B + x] * key.x[c * B + x];
      }
      for (std::int64_t r = 0; r < B; ++r) {
        for (std::int64_t c = 0; c < B; ++c) {
          const double e = std::exp(in.problem.softmax_scale() * a.x[r * B + c]);
          sum.x[r] += e;
          A[(i + r) * N + j + c] = e;
        }
      }
      fast.moved += B * B;
    }
    std::copy(sum.x.begin(), sum.x.end(), l.begin() + i);
    fast.moved += B;
  }
  for (std::int64_t i = 0; i < N; i += B) {
    Block sum(fast, B);
    std::copy(l.begin() + i, l.begin() + i + B, sum.x.begin());
    fast.moved += B;
    for (std::int64_t k = 0; k < d; k += B) {
      Block o(fast, B * B);
      for (std::int64_t j = 0; j < N; j += B) {
        Block a(fast, B * B), v(fast, B * B);
        load(a, A, N, i, j);
        load(v, in.V, d, j, k);
        for (std::int64_t r = 0; r < B; ++r)
          for (std::int64_t c = 0; c < B; ++c)
            for (std::int64_t x = 0; x < B; ++x) o.x[r * B + c] += a.x[r * B + x] * v.x[x * B + c];
      }
      for (std::int64_t r = 0; r < B; ++r)
        for (std::int64_t c = 0; c < B; ++c) O[(i + r) * d + k + c] = o.x[r * B + c] / sum.x[r];
      fast.moved += B * B;
    }
  }
  return O;
}

TEST_CASE("N^2 d^2 / M is no lower bound for M below d^2", "[mistakes]") {
  const std::int64_t N = 64, d = 256, M = d, B = 8;  // M is the least that the published range allows
  const Inputs in = random_inputs(square(N, d), 7);
  FastMemory fast;
  const std::vector<double> O = square_tiling(in, B, fast);
  const std::vector<double> right = oracle_forward(in).O;
  double error = 0;
  for (std::size_t k = 0; k < O.size(); ++k) error = std::max(error, std::abs(O[k] - right[k]));
  CHECK(error < 1e-12);  // it is exact attention
  CHECK(fast.most == 3 * B * B + B);
  CHECK(fast.most <= M);
  const auto moved = [](std::int64_t rows, std::int64_t columns, std::int64_t block) {
    return 4 * rows * rows * columns / block + rows * rows + rows * columns + 2 * rows;
  };
  CHECK(fast.moved == moved(N, d, B));
  CHECK(fast.moved == 544'896);
  CHECK(N * N * d * d / M == 1'048'576);  // "needed by any algorithm": twice what was moved
  // With M = d the distance grows without end: the bound is N^2 d, what is moved 8 N^2 sqrt(d) and less.
  double share = 1;
  for (std::int64_t root : {16, 32, 64, 128}) {
    const std::int64_t large_d = root * root, large_N = 1 << 20;
    const double next =
        static_cast<double>(moved(large_N, large_d, root / 2)) /
        (static_cast<double>(large_N) * static_cast<double>(large_N) * static_cast<double>(large_d));
    CHECK(next < 0.6 * share);
    share = next;
  }
  CHECK(share < 0.07);
}

// --- memory

TEST_CASE("the extra memory of FlashAttention is its statistics: 4 or 8 KiB at 1K, not 0.13 MB",
          "[mistakes]") {
  const Problem p = square(1024, 64);
  CHECK(p.Nq * p.d * 2 == 131'072);  // 0.13 MB: O itself, in 16 bits
  const Inputs in = random_inputs(p, 1);
  CHECK(count_forward(find_stage(11), in).device_bytes == 8192);  // m and l
  const simt::Ledger fa2 = count_forward(find_stage(13), in);
  CHECK(fa2.device_bytes == 0);
  CHECK(fa2.global.at("L").written_bytes == 4096);  // L, which is all that is kept
  // Standard attention stores S and P, here in fp32.
  CHECK(count_forward(find_stage(10), in).device_bytes == 2 * 4 * 1024 * 1024);
}

// --- CUDA

/// Whether the compiler that built this takes `source`.
bool compiles(const std::string& source) {
  const std::filesystem::path file = std::filesystem::temp_directory_path() /
                                     ("flashladder_mistake_" + std::to_string(::getpid()) + ".cpp");
  std::ofstream(file) << source;
  const std::string command = std::string("'") + FLASHLADDER_COMPILER + "' -std=c++20 -fsyntax-only '" +
                              file.string() + "' 2>/dev/null";
  const int status = std::system(command.c_str());
  std::filesystem::remove(file);
  return status == 0;
}

TEST_CASE("an array in shared memory has no run-time size", "[mistakes]") {
  // A __shared__ array has static storage duration, and the rule is that of C++ itself.
  const std::string body = "{ static float Qi[Br][d]; Qi[0][0] = 1; }\n";
  CHECK(compiles("template <int Br, int d> void tile() " + body + "template void tile<32, 64>();"));
  CHECK_FALSE(compiles("void tile(int Br, int d) " + body));
}

}  // namespace
