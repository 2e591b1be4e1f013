#pragma once
// Standard attention, FlashAttention-1 and FlashAttention-2 in fp32 as the emulator's test load: no masks,
// no tails, N a multiple of 32. The same source compiles with nvcc.
#include "common/simt/simt_host.hpp"

namespace flashladder::zoo {

constexpr int Br = 32;
constexpr int Bc = 32;

/// S = scale Q K^T, a thread per score.
__global__ void naive_scores(gmem<const f32> Q, gmem<const f32> K, gmem<f32> S, int N, int d, float scale) {
  const int j = blockIdx.x * blockDim.x + threadIdx.x;
  const int i = blockIdx.y * blockDim.y + threadIdx.y;
  const int bh = blockIdx.z;
  if (i >= N || j >= N) return;
  f32 s = 0.f;
  for (int k = 0; k < d; ++k) mac(s, Q[(bh * N + i) * d + k], K[(bh * N + j) * d + k]);
  S[(int64_t(bh) * N + i) * N + j] = s * scale;
}

__device__ __forceinline__ f32 warp_max(f32 x) {
  for (int o = 16; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
  return x;
}
__device__ __forceinline__ f32 warp_sum(f32 x) {
  for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(~0u, x, o);
  return x;
}

/// P = softmax(S) in place, a block of 128 threads per row.
__global__ void __launch_bounds__(128) naive_softmax(gmem<f32> S, int N) {
  __shared__ smem_array<f32, 4, 1, "warps"> warps;
  const int64_t row = int64_t(blockIdx.x) * N;
  const int t = threadIdx.x;
  f32 m = -INFINITY;
  for (int j = t; j < N; j += 128) m = fmaxf(m, S[row + j]);
  m = warp_max(m);
  if (t % 32 == 0) warps[t / 32] = m;
  __syncthreads();
  m = fmaxf(fmaxf(warps[0], warps[1]), fmaxf(warps[2], warps[3]));
  __syncthreads();
  f32 l = 0.f;
  for (int j = t; j < N; j += 128) {
    f32 p = __expf(S[row + j] - m);
    l += p;
    S[row + j] = p;
  }
  l = warp_sum(l);
  if (t % 32 == 0) warps[t / 32] = l;
  __syncthreads();
  const f32 inverse = 1.f / (warps[0] + warps[1] + warps[2] + warps[3]);
  for (int j = t; j < N; j += 128) S[row + j] *= inverse;
}

/// O = P V, a thread per element.
__global__ void naive_pv(gmem<const f32> P, gmem<const f32> V, gmem<f32> O, int N, int d) {
  const int c = threadIdx.x;
  const int i = blockIdx.x * blockDim.y + threadIdx.y;
  const int bh = blockIdx.y;
  if (i >= N || c >= d) return;
  f32 o = 0.f;
  for (int j = 0; j < N; ++j) mac(o, P[(int64_t(bh) * N + i) * N + j], V[(bh * N + j) * d + c]);
  O[(bh * N + i) * d + c] = o;
}

// Below, 128 threads work on a 32 x 32 tile of scores: four neighbouring lanes share a row.

__device__ __forceinline__ f32 quad_max(f32 x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ f32 quad_sum(f32 x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
template <int d, int R>
__device__ __forceinline__ void load_tile(smem_tile<f32, R, d + 1>& to, gmem<const f32> from) {
  for (int e = threadIdx.x; e < R * d; e += 128) to(e / d, e % d) = from[e];
}

/// FlashAttention-1, Algorithm 1: K/V tiles outside, Q tiles inside; O, l, m go back to global memory.
template <int d>
__global__ void __launch_bounds__(128)
    fa1_forward(gmem<const f32> Qg, gmem<const f32> Kg, gmem<const f32> Vg, gmem<f32> Og, gmem<f32> lg,
                gmem<f32> mg, int N, float scale) {
  __shared__ smem_array<f32, Br, d + 1, "Q"> Q;
  __shared__ smem_array<f32, Bc, d + 1, "K"> K;
  __shared__ smem_array<f32, Bc, d + 1, "V"> V;
  __shared__ smem_array<f32, Br, Bc + 1, "P"> P;
  __shared__ smem_array<f32, Br, 1, "l"> ls;
  __shared__ smem_array<f32, Br, 1, "m"> ms;
  const int t = threadIdx.x, r = t / 4, part = t % 4;
  const int64_t base = int64_t(blockIdx.x) * N;
  for (int j0 = 0; j0 < N; j0 += Bc) {
    __syncthreads();
    load_tile<d>(K, Kg + (base + j0) * d);
    load_tile<d>(V, Vg + (base + j0) * d);
    for (int i0 = 0; i0 < N; i0 += Br) {
      __syncthreads();
      load_tile<d>(Q, Qg + (base + i0) * d);
      if (t < Br) {
        if (j0 > 0) {
          ls[t] = lg[base + i0 + t];
          ms[t] = mg[base + i0 + t];
        } else {
          ls[t] = 0.f;
          ms[t] = -INFINITY;
        }
      }
      __syncthreads();
      count_tile();
      f32 s[Bc / 4], m_tile = -INFINITY, l_tile = 0.f;
#pragma unroll
      for (int c = 0; c < Bc / 4; ++c) {
        f32 acc = 0.f;
#pragma unroll
        for (int k = 0; k < d; ++k) mac(acc, Q(r, k), K(c * 4 + part, k));
        s[c] = acc * scale;
        m_tile = fmaxf(m_tile, s[c]);
      }
      m_tile = quad_max(m_tile);
#pragma unroll
      for (int c = 0; c < Bc / 4; ++c) {
        const f32 p = __expf(s[c] - m_tile);
        l_tile += p;
        P(r, c * 4 + part) = p;
      }
      l_tile = quad_sum(l_tile);
      const f32 m_old = ms[r], l_old = ls[r], m_new = fmaxf(m_old, m_tile);
      const f32 a = __expf(m_old - m_new), b = __expf(m_tile - m_new), l_new = a * l_old + b * l_tile;
      const f32 inverse = 1.f / l_new;
      __syncwarp();
      for (int c = part; c < d; c += 4) {
        f32 pv = 0.f;
#pragma unroll
        for (int k = 0; k < Bc; ++k) mac(pv, P(r, k), V(k, c));
        const int64_t at = (base + i0 + r) * d + c;
        f32 o = 0.f;
        if (j0 > 0) o = Og[at];
        Og[at] = (l_old * a * o + b * pv) * inverse;
      }
      if (part == 0) {
        lg[base + i0 + r] = l_new;
        mg[base + i0 + r] = m_new;
      }
    }
  }
}

/// FlashAttention-2: a block per Q tile, O in registers and unscaled, L = m + log l.
template <int d>
__global__ void __launch_bounds__(128)
    fa2_forward(gmem<const f32> Qg, gmem<const f32> Kg, gmem<const f32> Vg, gmem<f32> Og, gmem<f32> Lg,
                int N, float scale) {
  __shared__ smem_array<f32, Br, d + 1, "Q"> Q;
  __shared__ smem_array<f32, Bc, d + 1, "K"> K;
  __shared__ smem_array<f32, Bc, d + 1, "V"> V;
  __shared__ smem_array<f32, Br, Bc + 1, "P"> P;
  const int t = threadIdx.x, r = t / 4, part = t % 4, i0 = blockIdx.x * Br;
  const int64_t base = int64_t(blockIdx.y) * N;
  f32 o[d / 4], m = -INFINITY, l = 0.f;
#pragma unroll
  for (int c = 0; c < d / 4; ++c) o[c] = 0.f;
  load_tile<d>(Q, Qg + (base + i0) * d);
  for (int j0 = 0; j0 < N; j0 += Bc) {
    __syncthreads();
    load_tile<d>(K, Kg + (base + j0) * d);
    load_tile<d>(V, Vg + (base + j0) * d);
    __syncthreads();
    count_tile();
    f32 s[Bc / 4], m_new = m;
#pragma unroll
    for (int c = 0; c < Bc / 4; ++c) {
      f32 acc = 0.f;
#pragma unroll
      for (int k = 0; k < d; ++k) mac(acc, Q(r, k), K(c * 4 + part, k));
      s[c] = acc * scale;
      m_new = fmaxf(m_new, s[c]);
    }
    m_new = quad_max(m_new);
    const f32 alpha = __expf(m - m_new);
    m = m_new;
    l *= alpha;
#pragma unroll
    for (int c = 0; c < Bc / 4; ++c) {
      const f32 p = __expf(s[c] - m);
      l += p;
      P(r, c * 4 + part) = p;
    }
    __syncwarp();
#pragma unroll
    for (int c = 0; c < d / 4; ++c) {
      o[c] *= alpha;
#pragma unroll
      for (int k = 0; k < Bc; ++k) mac(o[c], P(r, k), V(k, c * 4 + part));
    }
  }
  l = quad_sum(l);
  const f32 inverse = 1.f / l;
#pragma unroll
  for (int c = 0; c < d / 4; ++c) Og[(base + i0 + r) * d + c * 4 + part] = o[c] * inverse;
  if (part == 0) Lg[base + i0 + r] = m + logf(l);
}

}  // namespace flashladder::zoo
