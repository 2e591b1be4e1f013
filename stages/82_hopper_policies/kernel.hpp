#pragma once
// The kernel of stage 82; attention.cu beside it explains its idea. Run-time compilation includes this file
// too, so it takes no header of the host.
#include "common/kernel/device.hpp"
#include "common/kernel/panels.hpp"
#include "common/kernel/ragged.hpp"
#include "common/ptx/dependent_launch.hpp"
#include "common/ptx/exp2.hpp"
#include "common/ptx/max3.hpp"
#include "common/ptx/named_barrier.hpp"
#include "common/ptx/registers.hpp"
#include "common/ptx/tma.hpp"
#include "common/ptx/vote.hpp"
#include "common/ptx/wgmma.hpp"
#include "stages/70_policies/policy.hpp"

namespace flashladder::stage_82 {
namespace {

constexpr int Bc = 64;          // keys of a tile
constexpr int num_buffers = 4;  // of K, and of V
constexpr int Q_buffers = 2;
constexpr int producer_registers = 32;

/// What a block works on, and what its threads have for it, as in stage 51: so many warpgroups multiply, 64
/// rows each. O~ takes d / 2 registers of a thread, S 32, and P 16.
template <int d, int warpgroups>
struct Tile {
  static constexpr int threads = 128 * (1 + warpgroups);         // with the producer's
  static constexpr int Br = 64 * warpgroups;                     // rows of a tile of Q
  static constexpr int registers = warpgroups == 4 ? 112 : 160;  // of a thread that multiplies
};

/// How many: four have no registers for d = 128, nor for the random numbers of dropout.
FLASHLADDER_HOST_DEVICE constexpr int warpgroups_for(int d, bool drops) {
  return d == 64 && !drops ? 4 : 3;
}

// Of its 64 rows a warp has 16, as wgmma's fragments are laid out: the four lanes of a quad have rows quad
// and quad + 8, each columns 2 quad_lane and 2 quad_lane + 1 of every 8.
constexpr int row_lanes = 8, key_lanes = 4;
constexpr int of_K = 0, of_V = 1;
constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;
constexpr float most_growth = 8;  // of a row's maximum over its m, in powers of 2: P~ is at most 2^8

template <int d, int warpgroups>
using QTile = Panels<Tile<d, warpgroups>::Br, d>;
template <int d>
using KVTile = Panels<Bc, d>;

/// Where the tiles and the mbarriers begin in dynamic shared memory, in bytes, and how many bytes they
/// take.
template <int d, int warpgroups>
struct Shared {
  static constexpr int Q = 0, K = Q + Q_buffers * QTile<d, warpgroups>::bytes,
                       V = K + num_buffers * KVTile<d>::bytes, full = V + num_buffers * KVTile<d>::bytes,
                       empty = full + 16 * num_buffers, Q_full = empty + 16 * num_buffers,
                       Q_empty = Q_full + 16, row_tile = Q_empty + 16, bytes = row_tile + 48 * Q_buffers;
};

/// A tile of rows of one head.
struct RowTile {
  int i0;  ///< Its first row, among those of all tiles; `none` where no tile is left.
  int h;   ///< Query head.
  int b;   ///< Batch entry.
};

constexpr int none = -1;

/// In which order blocks take the row tiles of all heads.
struct Order {
  int Tr;       ///< Row tiles of a head.
  int heads;    ///< Query heads of all batch entries.
  int section;  ///< Heads that follow each other under the mask.

  /// Tile `number` of all. The tiles of a head follow each other: they read the same K and V, which L2 then
  /// has. Under the mask the tiles of a section do, the last ones of all its heads first: they see the most
  /// keys.
  template <int Br>
  __device__ __forceinline__ RowTile at(int number, const Sizes& n) const {
    if (number >= Tr * heads) return {none, 0, 0};
    int tile = number % Tr, head = number / Tr;
    if (n.causal) {
      const int first = number / (Tr * section) * section;  // head of the section
      const int left = heads - first, together = section < left ? section : left;
      const int in_section = number - first * Tr;
      tile = Tr - 1 - in_section / together;
      head = first + in_section % together;
    }
    return {tile * Br, head % n.q_heads, head / n.q_heads};
  }
};

constexpr int sort_threads = 128;  // of a block, which finds the places of so many row tiles
constexpr int numbers_known = 6;   // of a row tile of packed sequences

/// Sorts the row tiles of packed sequences by how many keys their last row sees, under the causal mask or
/// without it: those with the most come first in Order, and those without rows last.
template <class Sequences>
__global__ void __launch_bounds__(sort_threads)
    sort_row_tiles(gmem<int> drawn,  // [1 + numbers_known Tr], as wgmma_forward has it
                   Sizes n, Sequences sequences, int Tr, int Br) {
  __shared__ smem_array<int, sort_threads, 1, "keys"> keys;  // of as many tiles
  const int thread = threadIdx.x, tile = static_cast<int>(blockIdx.x) * sort_threads + thread;
  launch_dependents();  // wgmma_forward may begin: it waits for what is written here
  const auto keys_of = [](const stage_70::Part& part, const Sizes& own, int Br) {
    return part.first < own.Nq ? own.mask().keys_end(part.first + Br - 1) : -1;
  };
  Sizes own = n;  // those of the tile's sequence
  const stage_70::Part part = sequences.of_row(own, 0, tile * Br, Br);
  const int own_keys = keys_of(part, own, Br);
  int place = 0;  // so many tiles come before this one
  for (int first = 0; first < Tr; first += sort_threads) {
    const int others = Tr - first < sort_threads ? Tr - first : sort_threads;
    __syncthreads();  // keys is written again: all must have read the ones before
    if (first + thread == tile) {
      keys[thread] = own_keys;
    } else if (thread < others) {
      Sizes sizes = n;
      const stage_70::Part other = sequences.of_row(sizes, 0, (first + thread) * Br, Br);
      keys[thread] = keys_of(other, sizes, Br);
    }
    __syncthreads();  // keys is read: all must have written theirs
    for (int k = 0; k < others; ++k)
      place += keys[k] > own_keys || (keys[k] == own_keys && first + k < tile);
  }
  if (tile < Tr) {
    const auto known = drawn + (1 + numbers_known * (n.causal ? Tr - 1 - place : place));
    const int found[numbers_known] = {part.entry, part.row0, part.key0, part.first, own.Nq, own.Nk};
    for (int k = 0; k < numbers_known; ++k) known[k] = found[k];
  }
  if (tile == 0) drawn[0] = 0;
}

/// What is known of row tile `place` of sort_row_tiles. Makes n the sizes of its sequence.
__device__ __forceinline__ stage_70::Part sorted_part(const gmem<int>& drawn, int place, Sizes& n) {
  const auto known = drawn + (1 + numbers_known * place);
  n.Nq = known[4], n.Nk = known[5];
  return {known[0], known[1], known[2], known[3]};
}

/// What the producer tells the others of a row tile: the numbers that row_tile has, in this order.
struct Announced {
  int i0;                         ///< Its first row, in its sequence; `none` where no tile is left.
  int h, b;                       ///< Query head and batch entry.
  int begin, end;                 ///< Of the keys that are brought.
  int entry, row0, key0, Nq, Nk;  ///< Of its sequence: as a Part has them, and its sizes.
};
constexpr int announced = 12;  // numbers, of which the last ones are not used
// Where each is.
constexpr int at_i0 = 0, at_h = 1, at_b = 2, at_begin = 3, at_end = 4, at_entry = 5, at_row0 = 6,
              at_key0 = 7, at_Nq = 8, at_Nk = 9;

/// Where a thread's fragment c has element e, in a tile whose first row and key of this thread are i and j.
__device__ __forceinline__ stage_70::Element element(int i, int j, int c, int e) {
  return {i, j, e / 2 * row_lanes, 8 * c + e % 2};
}

/// Scores of keys that their row does not see become -infinity.
template <class Policy>
__device__ __forceinline__ void mask_tile(f32 (&S)[Bc / 8][4], const Policy& policy, const Sizes& n, int i,
                                          int j) {
#pragma unroll
  for (int c = 0; c < Bc / 8; ++c) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = i + e / 2 * row_lanes, key = j + 8 * c + e % 2;
      if (key >= policy.keys_end(n, row) || (Policy::begins_later && key < policy.keys_first(n, row)))
        S[c][e] = -INFINITY;
    }
  }
}

/// Raises m to scale_log2 rowmax S in the rows that need it, if a score of the warp needs it; S becomes P~
/// = 2^(scale_log2 S - m), l += rowsum P~, of which each lane keeps its own part. Says whether O~ must be
/// scaled by alpha.
template <class Policy>
__device__ __forceinline__ bool online_softmax(f32 (&S)[Bc / 8][4], f32 (&m)[2], f32 (&l)[2],
                                               f32 (&alpha)[2], float scale_log2) {
  bool raise = false;
#pragma unroll
  for (int a = 0; a < 2; ++a) {
    f32 largest = S[0][2 * a];  // of the thread's scores of the row
#pragma unroll
    for (int c = 0; c < Bc / 8; ++c) {
      // A policy may make all scores of a row negative, tile after tile.
      largest = Policy::changes_scores ? fmaxf(largest, fmaxf(S[c][2 * a], S[c][2 * a + 1]))
                                       : max3_unless_negative(largest, S[c][2 * a], S[c][2 * a + 1]);
    }
    // Negative scores may not have been compared: the rare case takes them, too. In the first tile m is
    // -infinity.
    const bool compared = Policy::changes_scores || largest >= 0.f;
    raise = raise | !(compared && fmaf(largest, scale_log2, -m[a]) <= most_growth);
  }
  raise = any_lane(raise);
  if (raise) {
#pragma unroll
    for (int a = 0; a < 2; ++a) {
      f32 m_tile = -INFINITY;
#pragma unroll
      for (int c = 0; c < Bc / 8; ++c) m_tile = fmaxf(m_tile, fmaxf(S[c][2 * a], S[c][2 * a + 1]));
      m_tile = lanes_max<key_lanes>(m_tile);
      const f32 m_new = m_tile * scale_log2;
      alpha[a] = 1.f;
      if (!(m_new - m[a] <= most_growth)) {  // in the first tile, too: m is -infinity
        alpha[a] = ex2_approx(m[a] - finite(m_new));
        l[a] *= alpha[a];
        m[a] = Policy::begins_later ? m_new : finite(m_new);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < Bc / 8; ++c) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      S[c][e] = ex2_approx(fmaf(S[c][e], scale_log2, -stage_70::subtracted<Policy>(m[e / 2])));
      l[e / 2] += S[c][e];
    }
  }
  return raise;
}

/// P~ of pairs that the policy leaves out becomes 0. l has had them: it is the sum before the dropout.
template <class Policy>
__device__ __forceinline__ void drop(f32 (&P)[Bc / 8][4], const Policy& policy,
                                     const typename Policy::Head& head, int i, int j) {
  Words bytes;  // for 32 keys
#pragma unroll
  for (int c = 0; c < Bc / 8; ++c) {
    if (c % 4 == 0) bytes = policy.bytes(head, i, j + 8 * c);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (!policy.stays(bytes, i + e / 2 * row_lanes, j + 8 * c + e % 2)) P[c][e] = 0.f;
    }
  }
}

/// S begins with the numbers that the policy adds to it.
template <class Policy>
__device__ __forceinline__ void begin_with_bias(f32 (&S)[Bc / 8][4], const Policy& policy,
                                                const typename Policy::Head& head, int i, int j) {
  constexpr int chunks = Bc / 8;
  if (policy.has_pairs() && policy.has_number(head, element(i, j, chunks - 1, 3))) {
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const float2 pair = policy.pair(head, element(i, j, c, e));
        S[c][e] = pair.x, S[c][e + 1] = pair.y;
      }
    }
  } else {
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const stage_70::Element at = element(i, j, c, e);
        S[c][e] = policy.has_number(head, at) ? policy.number(head, at) : f32(0.f);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
#pragma unroll
    for (int e = 0; e < 4; ++e) S[c][e] = policy.over_scale(S[c][e]);
  }
}

/// P~, of which S holds the numbers, as the A of P~ V.
template <class T>
__device__ __forceinline__ void pack(std::uint32_t (&P)[Bc / 16][4], const f32 (&S)[Bc / 8][4]) {
#pragma unroll
  for (int c = 0; c < Bc / 16; ++c) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      P[c][e] = round_pair<T>(S[2 * c + e / 2][e % 2 * 2], S[2 * c + e / 2][e % 2 * 2 + 1]);
  }
}

/// Where a tile is: its buffer, one of so many, and the parity of the phase in which that is full.
template <int buffers>
struct RingSlot {
  int buffer = 0, parity = 0;

  /// That of the next tile.
  __device__ __forceinline__ RingSlot next() const {
    return buffer + 1 < buffers ? RingSlot{buffer + 1, parity} : RingSlot{0, 1 - parity};
  }
};

template <class T, class Policy, int d, int warpgroups>
__global__ void __launch_bounds__(Tile<d, warpgroups>::threads, 1) wgmma_forward(
    const __grid_constant__ tensor_map Q_map,  // [batch, q_heads, Nq, columns]
    const __grid_constant__ tensor_map K_map,  // [batch, kv_heads, Nk, columns]
    const __grid_constant__ tensor_map V_map,  // [batch, kv_heads, Nk, columns]
    gmem<T> Og,                                // [batch, q_heads, Nq, columns]
    gmem<f32> Lg,                              // [batch, q_heads, Nq]
    gmem<int> drawn,  // [1 + numbers_known Tr]: how many row tiles blocks have drawn; what is known of each
    Sizes n, Order order,
    int columns,      // the head dimension, at most d; in the tiles zeros follow
    Policy policy) {  // what is not plain attention: which keys a row sees, what a score becomes
  static_assert(!Policy::skips_tiles, "the warps of a block would have to agree on the tiles they skip");
  constexpr int Br = Tile<d, warpgroups>::Br;
  using Slot = RingSlot<num_buffers>;  // of K and V
  using At = Shared<d, warpgroups>;
  using Qt = QTile<d, warpgroups>;
  using KVt = KVTile<d>;
  auto&& Q = dynamic_tile<T, Q_buffers * Qt::panels * Br, Qt::columns, "Q">(At::Q);
  auto&& K = dynamic_tile<T, num_buffers * KVt::panels * Bc, KVt::columns, "K">(At::K);
  auto&& V = dynamic_tile<T, num_buffers * KVt::panels * Bc, KVt::columns, "V">(At::V);
  auto&& full = dynamic_tile<mbarrier, num_buffers, 2, "full">(At::full);     // of K, and of V
  auto&& empty = dynamic_tile<mbarrier, num_buffers, 2, "empty">(At::empty);  // likewise
  auto&& Q_full = dynamic_tile<mbarrier, Q_buffers, 1, "Q_full">(At::Q_full);
  auto&& Q_empty = dynamic_tile<mbarrier, Q_buffers, 1, "Q_empty">(At::Q_empty);        // and row_tile
  auto&& row_tile = dynamic_tile<int, Q_buffers, announced, "row_tile">(At::row_tile);  // whose Q is in Q
  n.causal = Policy::causal;  // known when this is compiled
  const bool packed = policy.sequences().given();

  if (threadIdx.x == 0) {
    for (int buffer = 0; buffer < num_buffers; ++buffer) {
      for (int of : {of_K, of_V}) {
        mbarrier_init(full.at(buffer, of), 1);
        mbarrier_init(empty.at(buffer, of), 4 * warpgroups);  // a warp of those that multiply says so once
      }
    }
    for (int buffer = 0; buffer < Q_buffers; ++buffer) {
      mbarrier_init(Q_full.at(buffer, 0), 1);
      mbarrier_init(Q_empty.at(buffer, 0), 128 * warpgroups);  // each thread that multiplies says so
    }
    fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers must be initialised

  if (threadIdx.x < 128) {  // the producer's warpgroup, of which one thread has something to do
    registers_down<producer_registers>();
    if (threadIdx.x > 0) return;
    Slot slot;                   // of the next tile of K and V
    RingSlot<Q_buffers> Q_slot;  // of the next row tile
    Announced row = {};          // of the next row tile
    // Tells TMA to bring a tile of K or V as soon as its buffer is empty; in the first round it is.
    const auto bring = [&](decltype(K)& to, const tensor_map& map, int of, int j0) {
      mbarrier_wait(empty.at(slot.buffer, of), 1 - slot.parity);
      mbarrier_arrive_expect_tx(full.at(slot.buffer, of), KVt::bytes);
      const auto [key, entry] = place_of(packed, row.b, j0, row.key0, row.Nk, n.Nk);
      for (int p = 0; p < KVt::panels; ++p)
        tma_load<T>(to.at((slot.buffer * KVt::panels + p) * Bc, 0), map, full.at(slot.buffer, of),
                    p * KVt::columns, key, n.kv_head(row.h), entry);
    };
    const auto bring_keys = [&](int j0) {
      bring(K, K_map, of_K, j0);
      bring(V, V_map, of_V, j0);
      slot = slot.next();
    };
    // Tells the others which row tile is next, and TMA to bring its Q, as soon as a buffer of Q is empty.
    const auto announce = [&] {
      const auto [buffer, parity] = Q_slot;
      Q_slot = Q_slot.next();
      mbarrier_wait(Q_empty.at(buffer, 0), 1 - parity);
      const int numbers[announced] = {row.i0,    row.h,    row.b,    row.begin, row.end,
                                      row.entry, row.row0, row.key0, row.Nq,    row.Nk};
      for (int k = 0; k < announced; ++k) row_tile(buffer, k) = numbers[k];
      if (row.begin >= row.end) return mbarrier_arrive(Q_full.at(buffer, 0));
      mbarrier_arrive_expect_tx(Q_full.at(buffer, 0), Qt::bytes);
      const auto [first, entry] = place_of(packed, row.b, row.i0, row.row0, row.Nq, n.Nq);
      for (int p = 0; p < Qt::panels; ++p)
        tma_load<T>(Q.at((buffer * Qt::panels + p) * Br, 0), Q_map, Q_full.at(buffer, 0), p * Qt::columns,
                    first, row.h, entry);
    };
    // The next row tile is drawn not earlier: the block that is ahead should draw first. With one for each
    // block none is left.
    const auto next = [&] {
      return order.at<Br>(
          gridDim.x + (static_cast<int>(gridDim.x) < order.Tr * order.heads ? draw(drawn) : 0), n);
    };
    if (packed) grid_dependency_wait();  // what is known of the row tiles must be there
    for (RowTile tile = order.at<Br>(blockIdx.x, n); tile.i0 != none; tile = next()) {
      Sizes own = n;  // those of the row tile's sequence
      const stage_70::Part part =
          packed ? sorted_part(drawn, tile.i0 / Br, own) : stage_70::Part{tile.b, 0, 0, tile.i0};
      if (Policy::Sequences::packed && part.first >= own.Nq) continue;  // there is no such row
      row = {part.first, tile.h, tile.b, 0, 0, part.entry, part.row0, part.key0, own.Nq, own.Nk};
      row.begin = policy.keys_first(own, row.i0) / Bc * Bc;  // the first row sees the first key
      row.end = policy.keys_end(own, row.i0 + Br - 1);       // and the last one the last
      if (row.begin < row.end) bring(K, K_map, of_K, row.begin);
      announce();
      if (row.begin >= row.end) continue;
      bring(V, V_map, of_V, row.begin);
      slot = slot.next();
      // Not unrolled, which would take more registers than this thread has.
#pragma unroll 1
      for (int j0 = row.begin + Bc; j0 < row.end; j0 += Bc) bring_keys(j0);
    }
    row = {};
    row.i0 = none;
    announce();
    return;
  }

  registers_up<Tile<d, warpgroups>::registers>();
  Slot now;  // of the tile whose S is computed
  for (RingSlot<Q_buffers> Q_slot;; Q_slot = Q_slot.next()) {
    const int buffer = Q_slot.buffer;
    mbarrier_wait(Q_full.at(buffer, 0), Q_slot.parity);
    const int i0 = row_tile(buffer, at_i0), h = row_tile(buffer, at_h), b = row_tile(buffer, at_b);
    const int begin = row_tile(buffer, at_begin), brought = row_tile(buffer, at_end);
    if (i0 == none) return;
    int entry = b, row0 = 0, key0 = 0;  // of the row tile's sequence
    Sizes own = n;                      // likewise
    if (Policy::Sequences::packed) {
      entry = row_tile(buffer, at_entry), row0 = row_tile(buffer, at_row0),
      key0 = row_tile(buffer, at_key0);
      own.Nq = row_tile(buffer, at_Nq), own.Nk = row_tile(buffer, at_Nk);
    }
    const typename Policy::Head head = policy.head(own, entry, h);
    // What follows from a thread's number is computed for each row tile. Were it known before, the compiler
    // would keep it in registers all along, and there are not enough.
    const int thread = opaque(threadIdx.x - 128), warp = uniform(thread / 32), warpgroup = warp / 4,
              lane = thread % 32, quad = lane / key_lanes, quad_lane = lane % key_lanes;
    const int r0 = warp * 16 + quad;  // its rows of a tile: r0 + a * row_lanes
    // Of the keys that are brought to the block those that a row of the warpgroup sees, and that all see
    const int first = i0 + warpgroup * 64, last = first + 63 < own.Nq ? first + 63 : own.Nq - 1;
    const int visible = first < own.Nq ? opaque(policy.keys_end(own, first + 63)) : 0;
    const int whole = first < own.Nq ? opaque(policy.keys_end(own, first)) : 0;
    const int seen_from =
        Policy::begins_later && first < own.Nq ? policy.keys_first(own, first) / Bc * Bc : 0;
    const int whole_from = Policy::begins_later && first < own.Nq ? policy.keys_first(own, last) : 0;
    // exp(scale * s - scale * m) = 2^(s * scale_log2 - m * scale_log2). The scale's sign is moved into Q.
    // Where the policy changes scores, it has multiplied them with the scale.
    const float abs_scale = n.scale < 0 ? -n.scale : n.scale;
    const float unit = Policy::changes_scores ? 1.f : abs_scale, scale_log2 = unit * log2_e;
    // What the tensor cores read of the warpgroup's rows of Q, of the first buffer of K, and of V
    const auto Q_rows = k_major<Qt::row_bytes, T>(Q) + buffer * Qt::bytes + warpgroup * 64 * Qt::row_bytes;
    const auto K_first = k_major<KVt::row_bytes, T>(K);
    const auto V_first = mn_major<KVt::row_bytes, T>(V, KVt::panel_bytes);

    if (seen_from < visible && n.scale < 0.f) {
      constexpr int part = 64 * Qt::columns;  // of a panel: the warpgroup's rows
      for (int e = thread % 128; e < 64 * d; e += 128) {
        const int at = ((buffer * Qt::panels + e / part) * Br + warpgroup * 64) * Qt::columns + e % part;
        Q[at] = T(-static_cast<f32>(static_cast<T>(Q[at])));
      }
      fence_proxy_async();  // what this thread has written is for the tensor cores
      // Q is read: all threads of the warpgroup must have written theirs
      named_barrier_sync(1 + warpgroup, 128);
    }
    f32 m[2] = {-INFINITY, -INFINITY}, l[2] = {}, alpha[2] = {1.f, 1.f};  // of its rows, m in powers of 2
    if (Policy::has_sink) {  // as if it were a key before all others, with V = 0
      m[0] = m[1] = policy.sink(head) * log2_e;
      if (quad_lane == 0) l[0] = l[1] = 1.f;
    }
    f32 S[Bc / 8][4], O[d / 8][4] = {};  // S, then P~; O~ as wgmma has it
    std::uint32_t P[Bc / 16][4];         // P~ of the tile before, as the A of P~ V

    // S has what the policy adds to the scores of a tile.
    const bool biased = Policy::has_bias && policy.has_numbers();
    const auto add_bias = [&](int j0) {
      if (biased) stage_82::begin_with_bias(S, policy, head, i0 + r0, j0 + 2 * quad_lane);
    };
    // S = Q K^T begins
    const auto begin_S = [&](Slot slot) {
      const auto K_tile = K_first + slot.buffer * KVt::bytes;
#pragma unroll
      for (int k = 0; k < d; k += 16)
        wgmma<T>(S, Q_rows + Qt::at_column(k), K_tile + KVt::at_column(k), k > 0 || biased);
      wgmma_commit();
    };
    // O~ += P~ V begins
    const auto begin_PV = [&](Slot slot) {
      const auto V_tile = V_first + slot.buffer * KVt::bytes;
#pragma unroll
      for (int k = 0; k < Bc; k += 16) wgmma<T>(O, P[k / 16], V_tile + KVt::at_row(k));
      wgmma_commit();
    };
    const auto wait_for = [&](int of, Slot slot) { mbarrier_wait(full.at(slot.buffer, of), slot.parity); };
    // This warp's product has read K, or V.
    const auto release = [&](int of, Slot slot) {
      if (lane == 0) mbarrier_arrive(empty.at(slot.buffer, of));
    };
    // S becomes P~.
    const auto softmax = [&](bool masked, int j0) {
      const int i = i0 + r0, j = j0 + 2 * quad_lane;  // this thread's first row and key
      count_tile(masked);
      if (Policy::changes_scores) {
#pragma unroll
        for (int c = 0; c < Bc / 8; ++c) {
#pragma unroll
          for (int e = 0; e < 4; ++e)
            S[c][e] = policy.score(S[c][e] * abs_scale, head, element(i, j, c, e));
        }
      }
      if (masked) mask_tile(S, policy, own, i, j);
      for (int c = 0; c < Bc / 8; ++c) {
        for (int e = 0; e < 4; ++e)
          probe("S", n.head(b, h), row0 + i + e / 2 * row_lanes, key0 + j + 8 * c + e % 2, S[c][e], unit);
      }
      const bool raised = online_softmax<Policy>(S, m, l, alpha, scale_log2);
      for (int a = 0; a < 2; ++a)
        probe("m~", n.head(b, h), row0 + i + a * row_lanes, key0 + j0, m[a], ln_2);
      if (Policy::drops) drop(S, policy, head, i, j);
      return raised;
    };
    const auto probe_O = [&] {
      for (int e = 0; e < 4; ++e) {
        for (int x = 0; x < d / 8; ++x)
          probe("O~", n.head(b, h), row0 + i0 + r0 + e / 2 * row_lanes, 8 * x + 2 * quad_lane + e % 2,
                O[x][e], policy.rescale());
      }
    };
    // A tile that none of the warpgroup's rows sees, and that others of the block need.
    const auto pass = [&] {
      count_tile();
      for (int of : {of_K, of_V}) {
        wait_for(of, now);
        __syncwarp();  // when lane 0 has given the buffer back it may change: all lanes must have waited
        release(of, now);
      }
      now = now.next();
    };

    int j0 = begin;
#pragma unroll 1
    for (; j0 < seen_from && j0 < brought; j0 += Bc) pass();
    // The first tile: no P~ V yet.
    const bool any = j0 < visible;
    if (any) {
      add_bias(j0);
      wait_for(of_K, now);
      wgmma_fence();  // S is the tensor cores' from here on, until it is waited for
      begin_S(now);
      wgmma_wait<0>(S);
      release(of_K, now);
      softmax(j0 + Bc > whole || j0 < whole_from, j0);
      pack<T>(P, S);
      j0 += Bc;
    }
    // S of a tile, and P~ V of the one before.
    const auto step = [&](bool masked, int j0) {
      const Slot before = now;
      now = now.next();
      add_bias(j0);
      wait_for(of_K, now);
      wgmma_fence();  // S has been read
      begin_S(now);
      wait_for(of_V, before);
      wgmma_fence();  // P and O have been written
      begin_PV(before);
      wgmma_wait<1>(S);
      release(of_K, now);
      const bool raised = softmax(masked, j0);  // while P~ V is under way

      wgmma_wait<0>(O);
      release(of_V, before);
      probe_O();
      pack<T>(P, S);
      if (raised) {
#pragma unroll
        for (int x = 0; x < d / 8; ++x) {
#pragma unroll
          for (int e = 0; e < 4; ++e) O[x][e] *= alpha[e / 2];
        }
      }
    };
    // Three loops, so that the code of the second has no mask: all rows see its tiles in whole.
    if (Policy::begins_later) {
#pragma unroll 1
      for (; j0 < whole_from && j0 < visible; j0 += Bc) step(true, j0);
    }
#pragma unroll 1
    for (; j0 + Bc <= whole; j0 += Bc) step(false, j0);
#pragma unroll 1
    for (; j0 < visible; j0 += Bc) step(true, j0);
    mbarrier_arrive(Q_empty.at(buffer, 0));  // S of all keys is there
    // P~ V of the last tile.
    if (any) {
      wait_for(of_V, now);
      wgmma_fence();  // P and O have been written
      begin_PV(now);
      wgmma_wait<0>(O);
      release(of_V, now);
      now = now.next();
      probe_O();
    }

    // O = O~ / l, L = m + log l. A quad exchanges what it has of a row, so that each lane stores 16 bytes.
    const gmem<T> Oh = Og + (n.O.at(b, h) + row0 * n.O.row);
    const gmem<f32> Lh = Lg + (n.row0(b, h) + row0);
#pragma unroll
    for (int a = 0; a < 2; ++a) {
      const int i = i0 + r0 + a * row_lanes;
      const f32 l_all = lanes_sum<key_lanes>(l[a]);
      probe("l", n.head(b, h), row0 + i, key0 + own.Nk - 1, l_all);
      f32 inverse = 1.f / (l_all == 0.f ? f32(1.f) : l_all);  // a row that sees no key keeps O = 0
      if (Policy::drops) inverse *= policy.rescale();
#pragma unroll
      for (int x = 0; x < d / 8; x += 4) {
        std::uint32_t row[4];  // of 32 columns
#pragma unroll
        for (int y = 0; y < 4; ++y)
          row[y] = round_pair<T>(O[x + y][2 * a] * inverse, O[x + y][2 * a + 1] * inverse);
        transpose_quad(row);
        const int c = 8 * (x + quad_lane);
        store_16B<T>(Oh + (i * n.O.row + c), row, i < own.Nq && c < columns);
      }
      if (quad_lane == 0 && i < own.Nq) Lh[i] = m[a] * ln_2 + logf(l_all);
    }
    // What the others of the block still need comes to this warpgroup, too.
#pragma unroll 1
    for (; j0 < brought; j0 += Bc) pass();
  }
}

}  // namespace
}  // namespace flashladder::stage_82
