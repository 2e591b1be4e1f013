// Stage 02: tiles that stay in cache, SIMD, threads. The online softmax of stage 01 for Br query rows and
// Bc keys at a time. Each lane of a vector is a query row: the maxima and sums of a whole vector of rows
// are taken at once, and the lanes of one vector are never compared or added with each other.
#include <algorithm>
#include <bit>
#include <cmath>
#include <experimental/simd>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "common/attention/stage.hpp"
#include "common/attention/workspace.hpp"

namespace flashladder::stage_02 {
namespace {

namespace stdx = std::experimental;

template <int lanes>
using Simd = stdx::simd<float, stdx::simd_abi::deduce_t<float, lanes>>;

// Lanes of a vector: 16 with AVX-512, 8 with AVX2, 4 with SSE2 and NEON.
constexpr int W = stdx::native_simd<float>::size();
using Vec = Simd<W>;

// Both products are computed in blocks of R x C vectors of sums, which stay in registers: R*C sums, C
// vectors of one operand, 1 broadcast number of the other. AVX-512 has 32 registers (6*4 + 4 + 1 = 29),
// AVX2 and SSE2 have 16 (6*2 + 2 + 1 = 15). Each step of a block is R + C loads for R*C multiply-adds.
constexpr int R = 6;
constexpr int C = W == 16 ? 4 : 2;

// A tile of scores [Bc, Br] and the columns of V that it needs [Bc, C*W] take 15 KiB each: both stay in a
// first cache of 32 KiB.
constexpr int Br = 64;  // query rows of a tile
constexpr int Bc = 60;  // keys of a tile, a multiple of R
static_assert(Br % (C * W) == 0);

// The score of a key that a row does not see, and the running maximum before the first score. Both finite,
// so that their differences are never NaN, and so far apart that e^(unseen - no_maximum) = 0. Real scores
// are far above both.
constexpr float unseen = -3e38f;
constexpr float no_maximum = -1e38f;

template <int lanes>
Simd<lanes> load(const float* from) {
  return Simd<lanes>(from, stdx::element_aligned);
}

template <class V>
void store(const V& vector, float* to) {
  vector.copy_to(to, stdx::element_aligned);
}

/// e^x in each lane, for finite x <= 0: within 1.2 ulp down to -87.6, 0 below -87.7. NaN stays NaN.
/// e^x = 2^n e^r with n = round(x / log 2): |r| <= log(2)/2, where a polynomial of degree 6 is within 4e-9.
[[gnu::always_inline]] inline Vec exp_negative(Vec given) {
  using Int = stdx::rebind_simd_t<int, Vec>;
  const Vec x = stdx::max(given, Vec(-88.0f));  // gives n = -127
  // Floats around 1.5 * 2^23 are 1 apart: the sum is rounded to an integer, which its low bits hold.
  const Vec shifted = x * 0x1.715476p+0f + 0x1.8p+23f;
  const Vec n = shifted - 0x1.8p+23f;
  const Vec r = (x - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f;  // log 2 in two parts, n * the first is exact
  Vec p = r * 0x1.6a241ap-10f + 0x1.1239f2p-7f;
  p = p * r + 0x1.5558f2p-5f;
  p = p * r + 0x1.555492p-3f;
  p = p * r + 0x1.fffffcp-2f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const Int bits = (std::bit_cast<Int>(shifted) + 127) << 23;  // of the float 2^n, of 0 where n = -127
  return p * std::bit_cast<Vec>(bits) + 0.0f * given;          // max() may have lost a NaN: 0 * NaN is NaN
}

/// Cuts begin ... end - 1 into blocks and calls f<n>(first) for each: blocks of n, then of n/2 and so on
/// down to 1 for what is left over. The size is a template parameter so that the sums of a block can live
/// in registers.
template <int n, class F>
void for_blocks(std::int64_t begin, std::int64_t end, F f) {
  for (; begin + n <= end; begin += n) f.template operator()<n>(begin);
  if constexpr (n > 1) for_blocks<n / 2>(begin, end, f);
}

/// St = scale * K Q^T for `keys` keys and C vectors of rows. Lanes are rows, the numbers of K are
/// broadcast.
template <int keys>
void score_block(const float* Qt,                      // [d, C*W] of [d, Br]
                 const float* K, std::int64_t stride,  // [keys, d]
                 std::int64_t d, float scale,
                 float* St) {  // [keys, C*W] of [Bc, Br]
  Vec sum[keys][C] = {};
  // lab: the sums over d: a number of K, the same in all lanes, times a vector of Qt
  for (std::int64_t k = 0; k < d; ++k) {
    Vec q[C];
    for (int y = 0; y < C; ++y) q[y] = load<W>(Qt + k * Br + y * W);
    for (int x = 0; x < keys; ++x) {
      const Vec key = K[x * stride + k];
      for (int y = 0; y < C; ++y) sum[x][y] += key * q[y];
    }
  }
  // end of lab
  for (int x = 0; x < keys; ++x) {
    for (int y = 0; y < C; ++y) store(sum[x][y] * scale, St + x * Br + y * W);
  }
}

/// O = alpha * O + P V for `rows` rows and `columns` columns. Lanes are columns, the numbers of P are
/// broadcast: neither V nor O has to be transposed.
template <int rows, int columns>
void output_block(const float* Pt, std::int64_t keys,   // [keys, rows] of [Bc, Br]
                  const float* V, std::int64_t stride,  // [keys, columns]
                  const float* alpha,                   // [rows]
                  float* O, std::int64_t O_stride) {    // [rows, columns]
  constexpr int lanes = std::min(columns, W), vectors = columns / lanes;
  Simd<lanes> sum[rows][vectors] = {};
  for (std::int64_t j = 0; j < keys; ++j) {
    Simd<lanes> v[vectors];
    for (int y = 0; y < vectors; ++y) v[y] = load<lanes>(V + j * stride + y * lanes);
    for (int x = 0; x < rows; ++x) {
      const Simd<lanes> p = Pt[j * Br + x];
      for (int y = 0; y < vectors; ++y) sum[x][y] += p * v[y];
    }
  }
  for (int x = 0; x < rows; ++x) {
    for (int y = 0; y < vectors; ++y) {
      float* to = O + x * O_stride + y * lanes;
      store(load<lanes>(to) * alpha[x] + sum[x][y], to);  // a tile is summed up by itself: fewer roundings
    }
  }
}

/// The online softmax of W rows: turns their scores into P = e^(S - m_new), updates m and l, and stores
/// alpha = e^(m - m_new), by which O is still to be multiplied.
void softmax(std::int64_t keys, float* St, float* m, float* l, float* alpha) {  // St: [keys, W] of [Bc, Br]
  // lab: stage 01's update, for W rows and a whole tile of keys at once; no loop over lanes
  Vec m_new = load<W>(m);
  for (std::int64_t j = 0; j < keys; ++j) m_new = stdx::max(m_new, load<W>(St + j * Br));
  const Vec rescale = exp_negative(load<W>(m) - m_new);
  Vec sum = 0.0f;
  for (std::int64_t j = 0; j < keys; ++j) {
    const Vec P = exp_negative(load<W>(St + j * Br) - m_new);
    sum += P;
    store(P, St + j * Br);
  }
  store(m_new, m);
  store(load<W>(l) * rescale + sum, l);
  store(rescale, alpha);
  // end of lab
}

/// O and L of the query rows i0 ... i0 + Br - 1 of one head.
void attend(const Problem& problem, const ForwardHead& head, std::int64_t i0, float* buffer) {
  const Matrix<const float> Q = head.Q, K = head.K, V = head.V;
  const Matrix<float> O = head.O;
  const std::int64_t d = problem.d;
  const std::int64_t rows = std::min<std::int64_t>(Br, problem.Nq - i0);
  float* Qt = buffer;       // [d, Br], the Q tile transposed; lanes beyond the last row hold 0
  float* St = Qt + d * Br;  // [Bc, Br], the scores of a tile transposed, then P
  float* m = St + Bc * Br;  // [Br], maximum of the scores so far
  float* l = m + Br;        // [Br], sum of e^(S - m) so far
  float* alpha = l + Br;    // [Br], what O is still to be multiplied by

  for (std::int64_t k = 0; k < d; ++k) {
    for (std::int64_t r = 0; r < Br; ++r) Qt[k * Br + r] = r < rows ? Q[i0 + r][k] : 0;
  }
  for (std::int64_t r = 0; r < rows; ++r) std::fill_n(O[i0 + r], d, 0.0f);
  std::fill_n(m, Br, no_maximum);
  std::fill_n(l, Br, 0.0f);

  const std::int64_t visible = problem.visible_keys(i0 + rows - 1);  // tiles that no row sees are left out
  for (std::int64_t j0 = 0; j0 < visible; j0 += Bc) {
    const std::int64_t keys = std::min<std::int64_t>(Bc, visible - j0);
    // Row r of the tile sees its first seen(r) keys.
    const auto seen = [&](std::int64_t r) {
      return std::clamp<std::int64_t>(problem.visible_keys(i0 + r) - j0, 0, keys);
    };

    for (std::int64_t r = 0; r < rows; r += C * W) {
      for_blocks<R>(0, keys, [&]<int n>(std::int64_t j) {
        score_block<n>(Qt + r, K[j0 + j], K.stride, d, problem.softmax_scale(), St + j * Br + r);
      });
    }
    // The mask, empty unless the diagonal crosses the tile: rows 0 ... blind - 1 do not see key j.
    for (std::int64_t j = seen(0), blind = 0; j < keys; ++j) {
      while (seen(blind) <= j) ++blind;
      std::fill_n(St + j * Br, blind, unseen);
    }
    for (std::int64_t r = 0; r < rows; r += W) softmax(keys, St + r, m + r, l + r, alpha + r);
    for_blocks<C * W>(0, d, [&]<int columns>(std::int64_t c) {
      for_blocks<R>(0, rows, [&]<int n>(std::int64_t r) {
        const std::int64_t most = seen(r + n - 1);  // the last row of the block sees the most keys
        output_block<n, columns>(St + r, most, V[j0] + c, V.stride, alpha + r, O[i0 + r] + c, O.stride);
      });
    });
  }

  for (std::int64_t r = 0; r < rows; ++r) {
    // A row that sees no key has l = 0: it keeps O = 0 and gets L = -infinity.
    const float weight = l[r] != 0 ? 1 / l[r] : 0;
    for (std::int64_t c = 0; c < d; ++c) O[i0 + r][c] *= weight;
    head.L[i0 + r] = m[r] + std::log(l[r]);
  }
}

#ifdef _OPENMP
int most_threads() {
  return omp_get_max_threads();
}
int this_thread() {
  return omp_get_thread_num();
}
#else
int most_threads() {
  return 1;
}
int this_thread() {
  return 0;
}
#endif

void forward(const Forward& call) {
  const Problem& problem = call.problem;
  // Qt, St, m, l and alpha for each thread, whatever Nq and Nk are. O is summed up where it is to be.
  const std::int64_t tile = Br * (problem.d + Bc + 3);
  const int threads = most_threads();
  auto buffers = call.workspace.array<float>(threads * tile);

  const std::int64_t Tr = (problem.Nq + Br - 1) / Br;
  const std::int64_t heads = problem.batch * problem.q_heads;
  // lab: all tiles of Br rows of all heads, distributed over the threads; each has a buffer of its own
  // Under a causal mask the last tiles of a head see the most keys. They go first, so that no thread starts
  // on a long one when the others are about to finish.
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (std::int64_t task = 0; task < heads * Tr; ++task) {
    const std::int64_t head = task / Tr, i = Tr - 1 - task % Tr;
    attend(problem, call.head(head / problem.q_heads, head % problem.q_heads), i * Br,
           &buffers[this_thread() * tile]);
  }
  // end of lab
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 2,
    .name = "tiled_cpu",
    .title = "tiles, SIMD, threads",
    .idea = "tiles that stay in cache, a query row in each SIMD lane, threads",
    .claim = "extra memory threads * Br * (d + Bc + 3) elements, whatever N",
    .before = 1,
    .supports = {.dtypes = fp32_only},
    .forward = forward,
};

}  // namespace flashladder::stage_02
