// Multicast: where rows of K and V make TMA ask L2 too often, two blocks run as a cluster. Each brings half
// of a tile of K or V, to both.
#include "common/kernel/host.hpp"
#include "common/kernel/tensor_maps.hpp"
#include "common/ptx/cluster.hpp"
#include "common/ptx/exp2.hpp"
#include "common/ptx/max3.hpp"
#include "common/ptx/named_barrier.hpp"
#include "common/ptx/registers.hpp"
#include "common/ptx/vote.hpp"
#include "common/ptx/wgmma.hpp"
#include "stages/51_deeper_pipeline/table.hpp"

namespace flashladder::stage_65 {
namespace {

/// What a block works on, and what its threads have for it. O~ takes d / 2 registers of a thread, S as many
/// as half the keys of a tile, and P a quarter.
template <int d>
struct Tile {
  static constexpr tiles_51::Tile of_d = tiles_51::row_for(d).tile;
  static constexpr int warpgroups = of_d.warpgroups;      // that multiply
  static constexpr int threads = 128 * (1 + warpgroups);  // with the producer's
  static constexpr int Br = 64 * warpgroups;              // rows of a tile of Q, 64 of each warpgroup
  static constexpr int Bc = of_d.Bc, num_buffers = of_d.num_buffers, Q_buffers = of_d.Q_buffers;
  static constexpr int registers = of_d.registers, producer_registers = of_d.producer_registers;
  // From so many rows and keys on a cluster pays where d is an odd multiple of 8; 0: never. Measured on an
  // H200. With fewer rows than one block has the other would have none.
  static constexpr int cluster_from = d == 96 ? 1024 : d > 128 ? Br + 1 : 0;
  static_assert(cluster_from == 0 || Bc % 16 == 0, "half a tile is whole patterns of 8 rows");
};

// Of its 64 rows a warp has 16, as wgmma's fragments are laid out: the four lanes of a quad have rows quad
// and quad + 8, each columns 2 quad_lane and 2 quad_lane + 1 of every 8.
constexpr int row_lanes = 8, key_lanes = 4;
constexpr int of_K = 0, of_V = 1;
constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;
constexpr float most_growth = 8;  // of a row's maximum over its m, in powers of 2: P~ is at most 2^8

template <int d>
using QTile = Panels<Tile<d>::Br, d>;
template <int d>
using KVTile = Panels<Tile<d>::Bc, d>;

/// Where the tiles and the mbarriers begin in dynamic shared memory, in bytes, and how many bytes they
/// take.
template <int d>
struct Shared {
  static constexpr int num_buffers = Tile<d>::num_buffers, Q_buffers = Tile<d>::Q_buffers;
  static constexpr int Q = 0, K = Q + Q_buffers * QTile<d>::bytes, V = K + num_buffers * KVTile<d>::bytes,
                       full = V + num_buffers * KVTile<d>::bytes, empty = full + 16 * num_buffers,
                       Q_full = empty + 16 * num_buffers, Q_empty = Q_full + 16, row_tile = Q_empty + 16,
                       drawn = row_tile + 16 * Q_buffers, asked = drawn + 16, told = asked + 16,
                       bytes = told + 16;
};

/// A tile of rows of one head.
struct RowTile {
  int i0;  ///< Its first row; `none` where no tile is left.
  int h;   ///< Query head.
  int b;   ///< Batch entry.
};

constexpr int none = -1;

/// In which order clusters take the row tiles of all heads, as many together as they have blocks. Here
/// these are one tile, of the rows of all.
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

/// Scores of keys that their row does not see become -infinity.
template <int d>
__device__ __forceinline__ void mask_tile(f32 (&S)[Tile<d>::Bc / 8][4], const Sizes& n, int i, int j) {
#pragma unroll
  for (int c = 0; c < Tile<d>::Bc / 8; ++c) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (j + 8 * c + e % 2 >= n.visible_keys(i + e / 2 * row_lanes)) S[c][e] = -INFINITY;
    }
  }
}

/// Raises m to scale_log2 rowmax S in the rows that need it, if a score of the warp needs it; S becomes P~
/// = 2^(scale_log2 S - m), l += rowsum P~, of which each lane keeps its own part. Says whether O~ must be
/// scaled by alpha.
template <int d>
__device__ __forceinline__ bool online_softmax(f32 (&S)[Tile<d>::Bc / 8][4], f32 (&m)[2], f32 (&l)[2],
                                               f32 (&alpha)[2], float scale_log2) {
  constexpr int Bc = Tile<d>::Bc;
  bool raise = false;
  // lab: whether a score of the warp needs a larger m, or may need one
#pragma unroll
  for (int a = 0; a < 2; ++a) {
    f32 largest = S[0][2 * a];  // of the thread's scores of the row
#pragma unroll
    for (int c = 0; c < Bc / 8; ++c) largest = max3_unless_negative(largest, S[c][2 * a], S[c][2 * a + 1]);
    // Negative scores have not been compared: the rare case takes them, too. In the first tile m is
    // -infinity.
    raise = raise | !(largest >= 0.f && fmaf(largest, scale_log2, -m[a]) <= most_growth);
  }
  raise = any_lane(raise);
  // end of lab
  if (raise) {
    // lab: the maximum of each row, over its lanes; m, l and alpha
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
        m[a] = finite(m_new);
      }
    }
    // end of lab
  }
#pragma unroll
  for (int c = 0; c < Bc / 8; ++c) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      S[c][e] = ex2_approx(fmaf(S[c][e], scale_log2, -m[e / 2]));
      l[e / 2] += S[c][e];
    }
  }
  return raise;
}

/// P~, of which S holds the numbers, as the A of P~ V.
template <class T, int d>
__device__ __forceinline__ void pack(std::uint32_t (&P)[Tile<d>::Bc / 16][4],
                                     const f32 (&S)[Tile<d>::Bc / 8][4]) {
#pragma unroll
  for (int c = 0; c < Tile<d>::Bc / 16; ++c) {
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

template <class T, int d, int blocks>  // blocks of a cluster
__global__ void __launch_bounds__(Tile<d>::threads, 1)
    wgmma_forward(const __grid_constant__ tensor_map Q_map,  // [batch, q_heads, Nq, columns]
                  const __grid_constant__ tensor_map K_map,  // [batch, kv_heads, Nk, columns]
                  const __grid_constant__ tensor_map V_map,  // [batch, kv_heads, Nk, columns]
                  gmem<T> Og,                                // [batch, q_heads, Nq, columns]
                  gmem<f32> Lg,                              // [batch, q_heads, Nq]
                  gmem<int> drawn,                           // [1]: row tiles that clusters have drawn
                  Sizes n, Order order,
                  int columns) {  // the head dimension, at most d; in the tiles zeros follow
  constexpr int warpgroups = Tile<d>::warpgroups, Br = Tile<d>::Br, Bc = Tile<d>::Bc;
  constexpr int num_buffers = Tile<d>::num_buffers, Q_buffers = Tile<d>::Q_buffers;
  using Slot = RingSlot<num_buffers>;  // of K and V
  using Qt = QTile<d>;
  using KVt = KVTile<d>;
  constexpr int rows = blocks * Br;          // of a cluster's row tile; of every so many, 64 are a block's
  constexpr int part = Bc / blocks;          // keys of a tile that a block brings
  constexpr int box = blocks > 1 ? 64 : Br;  // rows of Q that lie together
  auto&& Q = dynamic_tile<T, Q_buffers * Qt::panels * Br, Qt::columns, "Q">(Shared<d>::Q);
  auto&& K = dynamic_tile<T, num_buffers * KVt::panels * Bc, KVt::columns, "K">(Shared<d>::K);
  auto&& V = dynamic_tile<T, num_buffers * KVt::panels * Bc, KVt::columns, "V">(Shared<d>::V);
  auto&& full = dynamic_tile<mbarrier, num_buffers, 2, "full">(Shared<d>::full);     // of K, and of V
  auto&& empty = dynamic_tile<mbarrier, num_buffers, 2, "empty">(Shared<d>::empty);  // likewise
  auto&& Q_full = dynamic_tile<mbarrier, Q_buffers, 1, "Q_full">(Shared<d>::Q_full);
  auto&& Q_empty = dynamic_tile<mbarrier, Q_buffers, 1, "Q_empty">(Shared<d>::Q_empty);  // and row_tile
  auto&& row_tile = dynamic_tile<int, Q_buffers, 4, "row_tile">(Shared<d>::row_tile);    // whose Q is in Q
  auto&& next_tile = dynamic_tile<int, 1, 1, "next_tile">(Shared<d>::drawn);             // that was drawn,
  auto&& told = dynamic_tile<mbarrier, 1, 1, "told">(Shared<d>::told);                   // and is there
  auto&& asked = dynamic_tile<mbarrier, 1, 1, "asked">(Shared<d>::asked);  // all blocks wait for it
  const int rank = static_cast<int>(blockIdx.x) % blocks, cluster = static_cast<int>(blockIdx.x) / blocks;
  const int clusters = static_cast<int>(gridDim.x) / blocks;

  if (threadIdx.x == 0) {
    for (int buffer = 0; buffer < num_buffers; ++buffer) {
      for (int of : {of_K, of_V}) {
        mbarrier_init(full.at(buffer, of), 1);
        // A warp of those that multiply says so once, of all blocks.
        mbarrier_init(empty.at(buffer, of), blocks * 4 * warpgroups);
      }
    }
    for (int buffer = 0; buffer < Q_buffers; ++buffer) {
      mbarrier_init(Q_full.at(buffer, 0), 1);
      mbarrier_init(Q_empty.at(buffer, 0), 128 * warpgroups);  // each thread that multiplies says so
    }
    if (blocks > 1) {
      mbarrier_init(told.at(0, 0), 1);
      mbarrier_init(asked.at(0, 0), blocks);
    }
    fence_mbarrier_init();
  }
  // The mbarriers must be initialised, those of the other blocks too.
  if constexpr (blocks > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }

  if (threadIdx.x < 128) {  // the producer's warpgroup, of which one thread has something to do
    registers_down<Tile<d>::producer_registers>();
    if (threadIdx.x > 0) return;
    Slot slot;                   // of the next tile of K and V
    RingSlot<Q_buffers> Q_slot;  // of the next row tile
    RowTile tile = order.at<rows>(cluster, n);
    // Tells TMA to bring this block's part of a tile of K or V, to all blocks, as soon as their buffers are
    // empty; in the first round they are. The parts of all come to this one.
    const auto bring = [&](auto&& to, const tensor_map& map, int of, int j0) {
      mbarrier_wait(empty.at(slot.buffer, of), 1 - slot.parity);
      mbarrier_arrive_expect_tx(full.at(slot.buffer, of), KVt::bytes);
      for (int p = 0; p < KVt::panels; ++p) {
        const auto there = to.at((slot.buffer * KVt::panels + p) * Bc + rank * part, 0);
        const auto bar = full.at(slot.buffer, of);
        const int column = p * KVt::columns, j = j0 + rank * part, kv_head = n.kv_head(tile.h);
        if constexpr (blocks > 1) {
          tma_load_multicast<blocks, T>(there, map, bar, column, j, kv_head, tile.b);
        } else {
          tma_load<T>(there, map, bar, column, j, kv_head, tile.b);
        }
      }
    };
    const auto bring_keys = [&](int j0) {
      bring(K, K_map, of_K, j0);
      bring(V, V_map, of_V, j0);
      slot = slot.next();
    };
    // Tells the others which row tile is next, and TMA to bring its Q, as soon as a buffer of Q is empty.
    const auto announce = [&](int visible) {
      const auto [buffer, parity] = Q_slot;
      Q_slot = Q_slot.next();
      mbarrier_wait(Q_empty.at(buffer, 0), 1 - parity);
      row_tile(buffer, 0) = tile.i0;
      row_tile(buffer, 1) = tile.h;
      row_tile(buffer, 2) = tile.b;
      row_tile(buffer, 3) = visible;
      if (visible == 0) return mbarrier_arrive(Q_full.at(buffer, 0));
      mbarrier_arrive_expect_tx(Q_full.at(buffer, 0), Qt::bytes);
      for (int p = 0; p < Qt::panels; ++p) {
        for (int r = 0; r < Br; r += box)
          tma_load<T>(Q.at((buffer * Qt::panels + p) * Br + r, 0), Q_map, Q_full.at(buffer, 0),
                      p * Qt::columns, tile.i0 + r * blocks + rank * box, tile.h, tile.b);
      }
    };
    // The number of the next row tile. The first block draws it when all have asked: then none needs the
    // number before any more.
    int parity = 0;
    const auto draw_for_all = [&] {
      if constexpr (blocks == 1) return draw(drawn);
      mbarrier_arrive_expect_store(told.at(0, 0));
      mbarrier_arrive_in(0, asked.at(0, 0));
      if (rank == 0) {
        mbarrier_wait(asked.at(0, 0), parity);
        const int next = draw(drawn);
        for (int block = 0; block < blocks; ++block)
          store_in(block, next_tile.at(0, 0), next, told.at(0, 0));
      }
      mbarrier_wait(told.at(0, 0), parity);
      parity = 1 - parity;
      return static_cast<int>(next_tile(0, 0));
    };
    while (tile.i0 != none) {
      const int visible = n.visible_keys(tile.i0 + rows - 1);  // to the last row, which sees the most
      if (visible > 0) bring(K, K_map, of_K, 0);
      announce(visible);
      if (visible > 0) {
        bring(V, V_map, of_V, 0);
        slot = slot.next();
      }
      for (int j0 = Bc; j0 < visible; j0 += Bc) bring_keys(j0);
      // Not earlier: the cluster that is ahead should draw first. With one for each none is left.
      const int next = clusters < order.Tr * order.heads ? draw_for_all() : 0;
      tile = order.at<rows>(clusters + next, n);
    }
    announce(0);
    // All blocks say to this one when they have read a buffer: it must not end before.
    for (int buffer = 0; blocks > 1 && buffer < num_buffers; ++buffer) {
      for (int of : {of_K, of_V}) mbarrier_wait(empty.at(slot.buffer, of), 1 - slot.parity);
      slot = slot.next();
    }
    return;
  }

  registers_up<Tile<d>::registers>();
  Slot now;  // of the tile whose S is computed
  for (RingSlot<Q_buffers> Q_slot;; Q_slot = Q_slot.next()) {
    const int buffer = Q_slot.buffer;
    mbarrier_wait(Q_full.at(buffer, 0), Q_slot.parity);
    const int i0 = row_tile(buffer, 0), h = row_tile(buffer, 1), b = row_tile(buffer, 2);
    const int brought = row_tile(buffer, 3);
    if (i0 == none) return;
    // What follows from a thread's number is computed for each row tile. Were it known before, the compiler
    // would keep it in registers all along, and there are not enough.
    const int thread = opaque(threadIdx.x - 128), warp = uniform(thread / 32), warpgroup = warp / 4,
              lane = thread % 32, quad = lane / key_lanes, quad_lane = lane % key_lanes;
    // Rows of the other blocks before the warpgroup's: 64 of one follow 64 of the next, so that under the
    // mask all blocks have as much to do.
    const int others = (warpgroup * (blocks - 1) + rank) * 64;
    const int r0 = others + warp * 16 + quad;  // its rows of a tile: r0 + a * row_lanes
    // Of the keys that are brought to the block those that a row of the warpgroup sees, and that all see
    const int first = i0 + others + warpgroup * 64;
    const int visible = first < n.Nq ? opaque(n.visible_keys(first + 63)) : 0;
    const int whole = first < n.Nq ? opaque(n.visible_keys(first)) : 0;
    // exp(scale * s - scale * m) = 2^(s * scale_log2 - m * scale_log2). The scale's sign is moved into Q.
    const float abs_scale = n.scale < 0 ? -n.scale : n.scale, scale_log2 = abs_scale * log2_e;
    // What the tensor cores read of the warpgroup's rows of Q, of the first buffer of K, and of V
    const auto Q_rows = k_major<Qt::row_bytes, T>(Q) + buffer * Qt::bytes + warpgroup * 64 * Qt::row_bytes;
    const auto K_first = k_major<KVt::row_bytes, T>(K);
    const auto V_first = mn_major<KVt::row_bytes, T>(V, KVt::panel_bytes);

    if (visible > 0 && n.scale < 0.f) {
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
    f32 S[Bc / 8][4], O[d / 8][4] = {};                                   // S, then P~; O~ as wgmma has it
    std::uint32_t P[Bc / 16][4];  // P~ of the tile before, as the A of P~ V

    // S = Q K^T begins
    const auto begin_S = [&](Slot slot) {
      const auto K_tile = K_first + slot.buffer * KVt::bytes;
#pragma unroll
      for (int k = 0; k < d; k += 16)
        wgmma<T>(S, Q_rows + Qt::at_column(k), K_tile + KVt::at_column(k), k > 0);
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
    // This warp's product has read K, or V: a lane for each block says so.
    const auto release = [&](int of, Slot slot) {
      if constexpr (blocks > 1) {
        if (lane < blocks) mbarrier_arrive_in(lane, empty.at(slot.buffer, of));
      } else {
        if (lane == 0) mbarrier_arrive(empty.at(slot.buffer, of));
      }
    };
    // S becomes P~.
    const auto softmax = [&](bool masked, int j0) {
      count_tile(masked);
      if (masked) mask_tile<d>(S, n, i0 + r0, j0 + 2 * quad_lane);
      for (int c = 0; c < Bc / 8; ++c) {
        for (int e = 0; e < 4; ++e)
          probe("S", n.head(b, h), i0 + r0 + e / 2 * row_lanes, j0 + 8 * c + 2 * quad_lane + e % 2, S[c][e],
                abs_scale);
      }
      const bool raised = online_softmax<d>(S, m, l, alpha, scale_log2);
      for (int a = 0; a < 2; ++a) probe("m~", n.head(b, h), i0 + r0 + a * row_lanes, j0, m[a], ln_2);
      return raised;
    };
    const auto probe_O = [&] {
      for (int e = 0; e < 4; ++e) {
        for (int x = 0; x < d / 8; ++x)
          probe("O~", n.head(b, h), i0 + r0 + e / 2 * row_lanes, 8 * x + 2 * quad_lane + e % 2, O[x][e]);
      }
    };

    // The first tile: no P~ V yet.
    if (visible > 0) {
      wait_for(of_K, now);
      wgmma_fence();  // S is the tensor cores' from here on, until it is waited for
      begin_S(now);
      wgmma_wait<0>(S);
      release(of_K, now);
      softmax(Bc > whole, 0);
      pack<T, d>(P, S);
    }
    // S of a tile, and P~ V of the one before.
    const auto step = [&](bool masked, int j0) {
      const Slot before = now;
      now = now.next();
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
      pack<T, d>(P, S);
      if (raised) {
#pragma unroll
        for (int x = 0; x < d / 8; ++x) {
#pragma unroll
          for (int e = 0; e < 4; ++e) O[x][e] *= alpha[e / 2];
        }
      }
    };
    // Two loops, so that the first one's code has no mask: its tiles are seen in whole by all rows.
    int j0 = visible > 0 ? Bc : 0;
#pragma unroll 1
    for (; j0 + Bc <= whole; j0 += Bc) step(false, j0);
#pragma unroll 1
    for (; j0 < visible; j0 += Bc) step(true, j0);
    mbarrier_arrive(Q_empty.at(buffer, 0));  // S of all keys is there
    // P~ V of the last tile.
    if (visible > 0) {
      wait_for(of_V, now);
      wgmma_fence();  // P and O have been written
      begin_PV(now);
      wgmma_wait<0>(O);
      release(of_V, now);
      now = now.next();
      probe_O();
    }

    // O = O~ / l, L = m + log l. A quad exchanges what it has of a row, so that each lane stores 16 bytes.
    const gmem<T> Oh = Og + n.O.at(b, h);
    const gmem<f32> Lh = Lg + n.row0(b, h);
#pragma unroll
    for (int a = 0; a < 2; ++a) {
      const int i = i0 + r0 + a * row_lanes;
      const f32 l_all = lanes_sum<key_lanes>(l[a]);
      probe("l", n.head(b, h), i, n.Nk - 1, l_all);
      const f32 inverse = 1.f / (l_all == 0.f ? f32(1.f) : l_all);  // a row that sees no key keeps O = 0
#pragma unroll
      for (int x = 0; x < d / 8; x += 4) {
        std::uint32_t row[4];  // of 32 columns
#pragma unroll
        for (int y = 0; y < 4; ++y)
          row[y] = round_pair<T>(O[x + y][2 * a] * inverse, O[x + y][2 * a + 1] * inverse);
        transpose_quad(row);
        const int c = 8 * (x + quad_lane);
        store_16B<T>(Oh + (i * n.O.row + c), row, i < n.Nq && c < columns);
      }
      if (quad_lane == 0 && i < n.Nq) Lh[i] = m[a] * ln_2 + logf(l_all);
    }
    // What the others of the block still need comes to this warpgroup, too.
#pragma unroll 1
    for (; j0 < brought; j0 += Bc) {
      count_tile();
      for (int of : {of_K, of_V}) {
        wait_for(of, now);
        __syncwarp();  // when a lane has given the buffer back it may change: all lanes must have waited
        release(of, now);
      }
      now = now.next();
    }
  }
}

/// How many query heads are a section: their K and V take at most a third of L2. All sections are alike,
/// since the last one's blocks have the end to themselves; unless that takes more than twice as many.
int heads_of_section(const Problem& p, int d) {
  const std::int64_t kv_heads = p.batch * p.kv_heads, bytes = 4 * p.Nk * d;  // of K and V of one
  const std::int64_t most = std::max<std::int64_t>(L2_bytes() / 3 / bytes, 1);
  const std::int64_t fewest = tiles(kv_heads, most);
  std::int64_t sections = fewest;
  while (sections < 2 * fewest && kv_heads % sections != 0) ++sections;
  if (kv_heads % sections != 0) sections = fewest;
  return static_cast<int>(tiles(kv_heads, sections) * (p.q_heads / p.kv_heads));
}

template <class T, int d, int blocks>
void run(const Forward& f) {
  const ForwardBuffers<T> x(f);
  const Order order{static_cast<int>(tiles(f.problem.Nq, blocks * Tile<d>::Br)), x.batch * x.heads,
                    heads_of_section(f.problem, d)};
  const int row_tiles = order.Tr * order.heads, clusters = std::min(multiprocessors() / blocks, row_tiles);
  ExtraBuffer<int> drawn(f, "drawn", 1);
  if (clusters < row_tiles) drawn.fill_zero();
  using Box =
      Panels<blocks == 1 ? Tile<d>::Br : 64, d>;  // of Q, and of K and V: what a block brings at once
  using Part = Panels<Tile<d>::Bc / blocks, d>;
  launch_clusters("wgmma_forward", wgmma_forward<T, d, blocks>, blocks, clusters * blocks, Tile<d>::threads,
                  Shared<d>::bytes, map_of<Box>(f, "Q", x.Q), map_of<Part>(f, "K", x.K),
                  map_of<Part>(f, "V", x.V), x.O, x.L, drawn, x.sizes, order,
                  static_cast<int>(f.problem.d));
}

void forward(const Forward& f) {
  const Problem& p = f.problem;
  for_half_dtype(p.dtype, [&]<class T>(T) {
    for_head_dim<T, 64, 96, 128, 192, 256>(p.d, [&](auto d) {
      if constexpr (Tile<d>::cluster_from > 0) {
        if (p.d % 16 != 0 && std::min(p.Nq, p.Nk) >= Tile<d>::cluster_from) return run<T, d, 2>(f);
      }
      run<T, d, 1>(f);
    });
  });
}

}  // namespace

extern const Stage stage;
const Stage stage{
    .number = 65,
    .name = "multicast",
    .title = "multicast",
    .idea = "two blocks bring half a tile of K and V each, to both: a byte is read once for two",
    .claim = "bytes that TMA reads at d = 136, N = 2,048: 167 -> 92 MB for 16 causal heads",
    .before = 51,
    .supports = {.dtypes = half_dtypes, .head_dims = multiples_of_8},
    .backend = kernel_backend,
    .gpu = Gpu::hopper,
    .forward = forward,
};

}  // namespace flashladder::stage_65
