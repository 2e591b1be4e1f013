// The kernel of stages/15_fa2_causal_skip written in plain CUDA, without a word of the ladder's vocabulary.
// nvcc must make the same code of both (plain_cuda.sh): what makes the stage run on the emulator costs
// nothing on a GPU.
#include <cstdint>

constexpr int Br = 64, warps = 8, threads = 32 * warps;
constexpr int warp_rows = Br / warps, row_lanes = 2, key_lanes = 16, rows = warp_rows / row_lanes;

struct Strides {
  int64_t batch, head, row;
};
struct Sizes {
  int q_heads, group, Nq, Nk, d;
  bool causal;
  float scale;
  Strides Q, K, V, O;
};

__device__ __forceinline__ int visible_keys(const Sizes& n, int i) {
  if (!n.causal) return n.Nk;
  const int visible = i + 1 + n.Nk - n.Nq;
  return visible < 0 ? 0 : visible < n.Nk ? visible : n.Nk;
}

template <int d, int tile_rows>
__device__ __forceinline__ void load(float (*tile)[d + 2], const float* __restrict__ matrix, int64_t stride,
                                     int row0, int N) {
#pragma unroll 4
  for (int e = threadIdx.x; e < tile_rows * d; e += threads) {
    const int r = e / d, c = e % d;
    float x = 0.f;
    if (row0 + r < N) x = matrix[(row0 + r) * stride + c];
    tile[r][c] = x;
  }
}

template <int d>
__global__ void __launch_bounds__(threads)
    plain_forward(const float* __restrict__ Qg, const float* __restrict__ Kg, const float* __restrict__ Vg,
                  float* __restrict__ Og, float* __restrict__ Lg, Sizes n) {
  extern __shared__ __align__(16) unsigned char shared[];
  constexpr int Bc = 4096 / d, keys = Bc / key_lanes, K_at = 4 * Br * (d + 2), K_bytes = 4 * Bc * (d + 2);
  auto* Q = reinterpret_cast<float(*)[d + 2]>(shared);
  auto* K = reinterpret_cast<float(*)[d + 2]>(shared + K_at);
  auto* V = reinterpret_cast<float(*)[d + 2]>(shared + K_at + K_bytes);
  auto* P = reinterpret_cast<float(*)[Bc + key_lanes]>(shared + K_at + 2 * K_bytes);

  const int t = threadIdx.x, warp = t / 32, lane = t % 32;
  const int r0 = warp * warp_rows + lane / key_lanes, c0 = lane % key_lanes, x0 = lane % key_lanes;
  const int i0 = blockIdx.x * Br, h = blockIdx.y, b = blockIdx.z;
  const float* __restrict__ Qh = Qg + (b * n.Q.batch + h * n.Q.head);
  const float* __restrict__ Kh = Kg + (b * n.K.batch + h / n.group * n.K.head);
  const float* __restrict__ Vh = Vg + (b * n.V.batch + h / n.group * n.V.head);
  float* __restrict__ Oh = Og + (b * n.O.batch + h * n.O.head);
  float* __restrict__ Lh = Lg + (static_cast<int64_t>(b) * n.q_heads + h) * n.Nq;

  load<d, Br>(Q, Qh, n.Q.row, i0, n.Nq);
  float m[rows], l[rows] = {}, o[rows][d / key_lanes] = {};
#pragma unroll
  for (int a = 0; a < rows; ++a) m[a] = -INFINITY;
  const int visible = visible_keys(n, i0 + Br - 1);
  for (int j0 = 0; j0 < visible; j0 += Bc) {
    __syncthreads();
    load<d, Bc>(K, Kh, n.K.row, j0, n.Nk);
    load<d, Bc>(V, Vh, n.V.row, j0, n.Nk);
    __syncthreads();
    const bool masked = j0 + Bc > visible_keys(n, i0);

    float s[rows][keys] = {};
#pragma unroll 8
    for (int k = 0; k < d; ++k) {
      float q[rows];
#pragma unroll
      for (int a = 0; a < rows; ++a) q[a] = Q[r0 + a * row_lanes][k];
#pragma unroll
      for (int c = 0; c < keys; ++c) {
        const float key = K[c0 + c * key_lanes][k];
#pragma unroll
        for (int a = 0; a < rows; ++a) s[a][c] = fmaf(q[a], key, s[a][c]);
      }
    }
#pragma unroll
    for (int a = 0; a < rows; ++a) {
      const int i = i0 + r0 + a * row_lanes;
#pragma unroll
      for (int c = 0; c < keys; ++c) {
        s[a][c] *= n.scale;
        if (masked && j0 + c0 + c * key_lanes >= visible_keys(n, i)) s[a][c] = -INFINITY;
      }
    }

    float alpha[rows];
#pragma unroll
    for (int a = 0; a < rows; ++a) {
      float m_tile = s[a][0];
#pragma unroll
      for (int c = 1; c < keys; ++c) m_tile = fmaxf(m_tile, s[a][c]);
#pragma unroll
      for (int lanes = key_lanes / 2; lanes > 0; lanes /= 2)
        m_tile = fmaxf(m_tile, __shfl_xor_sync(~0u, m_tile, lanes));
      const float m_new = fmaxf(m[a], m_tile);
      float l_tile = 0.f;
#pragma unroll
      for (int c = 0; c < keys; ++c) {
        const float p = expf(s[a][c] - (m_new == -INFINITY ? 0.f : m_new));
        l_tile += p;
        P[r0 + a * row_lanes][c0 + c * key_lanes] = p;
      }
      alpha[a] = expf(m[a] - (m_new == -INFINITY ? 0.f : m_new));
#pragma unroll
      for (int lanes = key_lanes / 2; lanes > 0; lanes /= 2) l_tile += __shfl_xor_sync(~0u, l_tile, lanes);
      l[a] = alpha[a] * l[a] + l_tile;
      m[a] = m_new;
    }
    __syncwarp();

#pragma unroll
    for (int a = 0; a < rows; ++a) {
#pragma unroll
      for (int x = 0; x < d / key_lanes; ++x) o[a][x] *= alpha[a];
    }
#pragma unroll 8
    for (int k = 0; k < Bc; ++k) {
      float p[rows];
#pragma unroll
      for (int a = 0; a < rows; ++a) p[a] = P[r0 + a * row_lanes][k];
#pragma unroll
      for (int x = 0; x < d / key_lanes; ++x) {
        const float v = V[k][x0 + x * key_lanes];
#pragma unroll
        for (int a = 0; a < rows; ++a) o[a][x] = fmaf(p[a], v, o[a][x]);
      }
    }
  }

#pragma unroll
  for (int a = 0; a < rows; ++a) {
    const int i = i0 + r0 + a * row_lanes;
    const float inverse = 1.f / (l[a] == 0.f ? 1.f : l[a]);
#pragma unroll
    for (int x = 0; x < d / key_lanes; ++x) {
      const float o_all = o[a][x] * inverse;
      if (i < n.Nq) Oh[i * n.O.row + x0 + x * key_lanes] = o_all;
    }
    if (x0 == 0 && i < n.Nq) Lh[i] = m[a] + logf(l[a]);
  }
}

template __global__ void plain_forward<32>(const float*, const float*, const float*, float*, float*, Sizes);
template __global__ void plain_forward<64>(const float*, const float*, const float*, float*, float*, Sizes);
template __global__ void plain_forward<128>(const float*, const float*, const float*, float*, float*,
                                            Sizes);
