// What wgmma does, on the emulator. The threads of a warpgroup need not come to a wgmma together: each
// leaves what it brings, and the last one starts the unit.
#include "common/ptx/wgmma.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "common/ptx/vectors.hpp"

namespace flashladder::simt {

namespace {

constexpr unsigned group_threads = 128, group_warps = 4;
constexpr int rows = 64;   // of A and C
constexpr int inner = 16;  // columns of A, rows of B

/// The sums of all threads of a warpgroup.
struct Sums {
  std::size_t chain;              ///< OpenAccumulators::chain.
  std::vector<float> C;           ///< [rows][columns].
  unsigned left = group_threads;  ///< Threads that have not received theirs.
};

/// A wgmma that the unit has not done.
struct Begun {
  WgmmaOperands what;                       ///< As the first thread brought it.
  Where where;                              ///< Of the instruction.
  std::size_t chain;                        ///< OpenAccumulators::chain.
  unsigned came = 0;                        ///< Threads.
  std::uint32_t A_pairs[rows * inner / 2];  ///< [row][k / 2], where A is in registers.
  std::array<bool, group_warps> warp_came = {};
  SharedRaces::Clock known;  ///< What all of its warps knew when they came.
};

/// Who AsyncQueue has a warpgroup's work of: behind the threads, whose stores have owners too.
constexpr unsigned owner_of(unsigned group) {
  return max_threads + 1 + group;
}

/// The row of A and of C that element pair `i` (0 or 1) of the running thread is in.
int row_of(const Thread& me, int i) {
  return static_cast<int>(me.warp % group_warps * 16 + me.lane / 4) + 8 * i;
}

/// Where element e of fragment x of the running thread is in [rows][columns].
std::size_t place_of(const Thread& me, int columns, int x, int e) {
  const int row = row_of(me, e / 2), column = 8 * x + static_cast<int>(me.lane % 4) * 2 + e % 2;
  return static_cast<std::size_t>(row * columns + column);
}

/// Calls `body(byte, i, j)` for each chunk of 16 bytes of an operand, with its place in the block's shared
/// memory. K-major: i is a row, j half of it; MN-major: i is of the inner dimension, j counts chunks along
/// the other. `extent`: of that other dimension.
template <class Body>
void for_each_chunk(const MatrixInShared& m, int extent, Body body) {
  const auto swizzled = [&](std::int64_t byte) {
    return static_cast<std::uint32_t>(byte ^ (byte >> 3 & (m.row_bytes - 16)));
  };
  if (m.mn_major) {
    for (int k = 0; k < inner; ++k) {
      for (int c = 0; c < extent / 8; ++c) {
        const std::int64_t along = 16 * c;
        body(swizzled(m.offset + along / m.row_bytes * m.panel_bytes + k * m.row_bytes +
                      along % m.row_bytes),
             k, c);
      }
    }
  } else {
    for (int r = 0; r < extent; ++r) {
      for (int half = 0; half < 2; ++half) body(swizzled(m.offset + r * m.row_bytes + 16 * half), r, half);
    }
  }
}

void require_matrix(const MatrixInShared& m, int extent, Where where) {
  const auto bad = [&](const std::string& what) {
    fail(ErrorKind::bad_matrix_descriptor, where, m.array->name, what, m.where);
  };
  if (m.array->column != 0 || running.cluster->shared.has_declared())
    bad("the swizzle's pattern begins at a multiple of " + std::to_string(8 * m.row_bytes) +
        " bytes, and where there are declared arrays shared memory begins at any multiple of 16");
  const std::int64_t in_pattern = m.offset % (8 * m.row_bytes);
  if (in_pattern >= m.row_bytes)
    bad("the matrix begins in row " + std::to_string(in_pattern / m.row_bytes) +
        " of a pattern of 8 rows: it must begin in row 0");
  const std::int64_t bytes = std::min<std::int64_t>(m.mn_major ? 2 * extent : 2 * inner, m.row_bytes);
  if (in_pattern % 16 != 0 || in_pattern + bytes > m.row_bytes)
    bad("the matrix begins " + std::to_string(in_pattern) + " bytes behind the start of a row of " +
        std::to_string(m.row_bytes) + " bytes, of which it takes " + std::to_string(bytes));
  std::int64_t end = 0;
  for_each_chunk(m, extent, [&](std::uint32_t byte, int, int) {
    end = std::max<std::int64_t>(end, std::int64_t{byte} + 16);
  });
  if (m.offset < m.array->offset || end > std::int64_t{m.array->offset} + m.array->bytes)
    bad("the matrix takes bytes " + std::to_string(m.offset - m.array->offset) + " to " +
        std::to_string(end - m.array->offset) + ", and " + m.array->name + " has " +
        std::to_string(m.array->bytes));
}

/// The eight numbers of a chunk as fp32.
void widen_chunk(const std::byte* at, bool bf16, float (&numbers)[8]) {
  std::uint16_t bits[8];
  std::memcpy(bits, at, sizeof bits);
  for (int i = 0; i < 8; ++i) numbers[i] = bf16 ? widen_bf16(bits[i]) : widen_f16_by_product(bits[i]);
}

/// C += A B for `count` vectors of columns from column `first` on.
template <int count>
void multiply_columns(float* C, int columns, const float (&A)[rows][inner], const float* B, int first) {
  for (int row = 0; row < rows; ++row) {
    FloatVector sums[count] = {};
    for (int k = 0; k < inner; ++k) {
      for (int i = 0; i < count; ++i) {
        FloatVector b;
        std::memcpy(&b, B + k * columns + first + i * vector_floats, sizeof b);
        sums[i] += A[row][k] * b;
      }
    }
    for (int i = 0; i < count; ++i) {
      float* const at = C + row * columns + first + i * vector_floats;
      FloatVector c;
      std::memcpy(&c, at, sizeof c);
      c += sums[i];
      std::memcpy(at, &c, sizeof c);
    }
  }
}

}  // namespace

/// What a warpgroup's wgmmas are about.
struct WarpgroupState {
  std::deque<Begun> begun;                              ///< Oldest first.
  std::size_t done = 0;                                 ///< Those before them, which the unit has done.
  std::size_t complete = 0;                             ///< Those that all threads have come to.
  std::deque<Sums> sums;                                ///< That somebody has not received.
  std::array<std::uint32_t, group_warps> waiters = {};  ///< Who waits for others to come, by warp.

  Sums& of_chain(std::size_t chain) { return *std::ranges::find(sums, chain, &Sums::chain); }
  /// Does the oldest.
  void do_next();
};

namespace {

/// Decodes an operand to [rows][inner], or to [inner][extent] where `turned`.
void decode(const MatrixInShared& m, int extent, bool bf16, bool turned, float* to) {
  const std::byte* base = running.cluster->shared.base();
  for_each_chunk(m, extent, [&](std::uint32_t byte, int i, int j) {
    float numbers[8];
    widen_chunk(base + byte, bf16, numbers);
    for (int e = 0; e < 8; ++e) {
      const int outer = m.mn_major ? 8 * j + e : i, k = m.mn_major ? i : 8 * j + e;
      to[turned ? k * extent + outer : outer * inner + k] = numbers[e];
    }
  });
}

WarpgroupState& state_of_group(const Thread& me, Where where) {
  Cluster& cluster = *running.cluster;
  const unsigned group = me.warp / group_warps;
  if ((group + 1) * group_threads > cluster.threads)
    fail(ErrorKind::wgmma_mismatch, where, "",
         "a wgmma is executed by four warps, and the block's last " +
             std::to_string(cluster.warps % group_warps) + " make no whole warpgroup");
  if (cluster.warpgroup[group] == nullptr) cluster.warpgroup[group] = std::make_shared<WarpgroupState>();
  return *cluster.warpgroup[group];
}

std::string matrix_text(const MatrixInShared& m) {
  return m.array == nullptr ? "registers"
                            : std::string(m.array->name) + " from byte " +
                                  std::to_string(m.offset - m.array->offset) + " on";
}

/// Fails where a thread comes with something else than those before it.
void require_same(const Begun& begun, const WgmmaOperands& mine, std::size_t chain, Where where) {
  const auto same_matrix = [](const MatrixInShared& a, const MatrixInShared& b) {
    return a.array == b.array && a.offset == b.offset && a.row_bytes == b.row_bytes &&
           a.panel_bytes == b.panel_bytes && a.mn_major == b.mn_major;
  };
  const WgmmaOperands& first = begun.what;
  std::string what;
  if (!same_place(begun.where, where)) {
    what = "this one and that of " + to_string(begun.where);
  } else if (!same_matrix(first.A, mine.A) || !same_matrix(first.B, mine.B)) {
    what = "A in " + matrix_text(mine.A) + " with B in " + matrix_text(mine.B) + ", and A in " +
           matrix_text(first.A) + " with B in " + matrix_text(first.B);
  } else if (first.columns != mine.columns || first.add != mine.add || begun.chain != chain) {
    what = "with other accumulators, or with add for some only";
  } else {
    return;
  }
  const bool mine_first = where.line >= begun.where.line;
  fail(ErrorKind::wgmma_mismatch, mine_first ? where : begun.where, "",
       "the threads of a warpgroup come to different wgmmas: " + what + where_all_are(),
       mine_first ? begun.where : where);
}

/// All threads have come: counts, checks, and tells the unit.
void start(WarpgroupState& group, std::size_t number, unsigned group_number) {
  Cluster& cluster = *running.cluster;
  const Begun& begun = group.begun[number - group.done];
  const WgmmaOperands& what = begun.what;
  ++group.complete;
  ++running.counts.wgmmas;
  running.counts.flops_tensor_cores += 2ull * rows * inner * static_cast<std::uint64_t>(what.columns);
  for (const auto& [operand, extent] : {std::pair(what.A, rows), std::pair(what.B, what.columns)}) {
    const auto& matrix = operand;  // Clang 14 cannot capture a name of a structured binding
    if (matrix.array == nullptr) continue;
    require_matrix(matrix, extent, begun.where);
    const auto bytes = static_cast<std::uint64_t>(2 * inner * extent);
    running.counts.wgmma_read_bytes += bytes;
    matrix.array->traffic.read_bytes += bytes;
    if (!cluster.launch->options->check) continue;
    for_each_chunk(matrix, extent, [&](std::uint32_t byte, int, int) {
      if (const auto conflict =
              cluster.races.read_by_wgmma(group_number, number, begun.known, byte, matrix.array->granule,
                                          static_cast<std::uint32_t>(matrix.row_bytes), begun.where))
        report_conflict(*conflict, *matrix.array, byte, false, begun.where, true);
    });
  }
  cluster.units.add([&group] { group.do_next(); }, owner_of(group_number));
  for (unsigned w = 0; w < group_warps; ++w) {
    wake(group_number * group_warps + w, std::exchange(group.waiters[w], 0));
  }
}

}  // namespace

void WarpgroupState::do_next() {
  const Begun one = std::move(begun.front());
  begun.pop_front();
  ++done;
  const WgmmaOperands& what = one.what;
  const int columns = what.columns;
  float A[rows][inner];
  if (what.A_registers == nullptr) {
    decode(what.A, rows, what.bf16, false, A[0]);
  } else {
    for (int i = 0; i < rows * inner / 8; ++i) {
      float numbers[8];
      widen_chunk(reinterpret_cast<const std::byte*>(one.A_pairs + 4 * i), what.bf16, numbers);
      std::memcpy(A[0] + 8 * i, numbers, sizeof numbers);
    }
  }
  std::vector<float> B(static_cast<std::size_t>(inner * columns));
  decode(what.B, columns, what.bf16, true, B.data());
  std::vector<float>& C = of_chain(one.chain).C;
  if (!what.add) std::ranges::fill(C, 0.f);
  constexpr int many = 32 / vector_floats;
  int first = 0;
  for (; first + 32 <= columns; first += 32) multiply_columns<many>(C.data(), columns, A, B.data(), first);
  for (; first < columns; first += vector_floats)
    multiply_columns<1>(C.data(), columns, A, B.data(), first);
}

MatrixInShared describe(SharedArray* array, const std::byte* at, std::int64_t row_bytes,
                        std::int64_t panel_bytes, bool mn_major, Where where) {
  return {array, running.cluster->shared.offset_of(at), row_bytes, panel_bytes, mn_major, where};
}

void fence_wgmma() {
  running.thread->wgmma_fenced = true;
}

void begin_wgmma(const WgmmaOperands& mine, Where where) {
  Cluster& cluster = *running.cluster;
  Thread& me = *running.thread;
  WarpgroupState& group = state_of_group(me, where);
  const unsigned group_number = me.warp / group_warps;
  me.block->flight.come_to_wgmma(2ull * rows * inner * static_cast<std::uint64_t>(mine.columns) /
                                 group_threads);
  note(Step::Kind::wgmma, static_cast<std::uint64_t>(mine.columns), 0, 0, where);
  const std::size_t number = me.wgmmas++;
  me.began_wgmma = where;
  std::uint64_t& most = cluster.most_exp_before_product;
  most = std::max(most, std::exchange(me.exponentials, 0));

  const auto open = std::ranges::find(me.accumulators, mine.C, &OpenAccumulators::C);
  const bool goes_on = open != me.accumulators.end() && open->columns == mine.columns;
  if (!me.wgmma_fenced && (!goes_on || mine.A_registers != nullptr))
    fail(
        ErrorKind::missing_wgmma_fence, where, "",
        "this thread has used registers since its last wgmma_fence(), or has executed none, and this wgmma "
        "takes C or A from registers");
  const std::size_t chain = goes_on ? open->chain : number;
  if (number == group.done + group.begun.size()) {
    group.begun.push_back({mine, where, chain, 0, {}, {}, {}});
    if (!goes_on)
      group.sums.push_back({chain, std::vector<float>(static_cast<std::size_t>(rows * mine.columns))});
  }
  Begun& begun = group.begun[number - group.done];
  require_same(begun, mine, chain, where);

  if (mine.A_registers != nullptr) {
    for (int i = 0; i < 4; ++i)
      begun.A_pairs[row_of(me, i % 2) * inner / 2 + static_cast<int>(me.lane % 4) + i / 2 * 4] =
          mine.A_registers[i];
  }
  if (goes_on) {
    open->last = number;
  } else {
    std::vector<float>& C = group.of_chain(chain).C;
    for (int x = 0; x < mine.columns / 8; ++x) {
      for (int e = 0; e < 4; ++e) {
        if (mine.add) C[place_of(me, mine.columns, x, e)] = Plain::number(mine.C[4 * x + e]);
        mine.C[4 * x + e] = Plain::not_there();
      }
    }
    me.accumulators.push_back({mine.C, mine.columns, chain, number});
  }
  bool& warp_came = begun.warp_came[me.warp % group_warps];
  if (cluster.launch->options->check && !warp_came)
    cluster.races.join_knowledge(begun.known, me.warp, begun.came == 0);
  warp_came = true;
  if (++begun.came == group_threads) start(group, number, group_number);
}

void commit_wgmmas() {
  Thread& me = *running.thread;
  note(Step::Kind::commit);
  me.wgmma_groups.push_back(me.wgmmas);
}

void wait_for_wgmmas(std::size_t pending, std::initializer_list<Accumulators> named, Where where) {
  Cluster& cluster = *running.cluster;
  Thread& me = *running.thread;
  me.accesses = 0;
  me.wgmma_fenced = false;  // what follows may use registers
  ++running.counts.wgmma_waits;
  if (me.wgmmas == 0) return;
  note(Step::Kind::wait_groups, pending, 0, 0, where);
  WarpgroupState& group = state_of_group(me, where);
  if (me.wgmma_groups.size() > pending) {
    const auto left = me.wgmma_groups.end() - static_cast<std::ptrdiff_t>(pending);
    me.wgmmas_waited = *(left - 1);
    me.wgmma_groups.erase(me.wgmma_groups.begin(), left);
  }
  for (const Accumulators& one : named) {
    const auto open = std::ranges::find(me.accumulators, one.C, &OpenAccumulators::C);
    if (open == me.accumulators.end() || open->last < me.wgmmas_waited) continue;
    const bool committed = !me.wgmma_groups.empty() && open->last < me.wgmma_groups.back();
    fail(ErrorKind::unfinished_wgmma, where, "",
         committed
             ? "this leaves " + std::to_string(pending) +
                   " groups under way, and one of them changes the accumulators that it names"
             : "no wgmma_commit() stands between this and the last wgmma that changes the accumulators "
               "that it names",
         me.began_wgmma);
  }
  while (group.complete < me.wgmmas_waited) {
    group.waiters[me.warp % group_warps] |= 1u << me.lane;
    suspend("wgmma_wait", where);
  }
  if (group.done < me.wgmmas_waited)
    cluster.units.finish(owner_of(me.warp / group_warps), me.wgmmas_waited - group.done);
  if (cluster.launch->options->check) cluster.races.wait_for_wgmmas(me.warp, me.wgmmas_waited);
  me.block->flight.wait_for_wgmmas();
  for (const Accumulators& one : named) {
    const auto open = std::ranges::find(me.accumulators, one.C, &OpenAccumulators::C);
    if (open == me.accumulators.end()) continue;
    const auto sums = std::ranges::find(group.sums, open->chain, &Sums::chain);
    for (int x = 0; x < one.columns / 8; ++x) {
      for (int e = 0; e < 4; ++e) {
        if (!Plain::is_untouched(one.C[4 * x + e]))
          fail(ErrorKind::accumulators_in_use, where, "",
               "this thread has changed accumulators between the wgmma and its wait", me.began_wgmma);
        one.C[4 * x + e] = sums->C[place_of(me, one.columns, x, e)];
      }
    }
    if (--sums->left == 0) group.sums.erase(sums);
    me.accumulators.erase(open);
  }
}

void fail_not_there() {
  const Thread& me = *running.thread;
  fail(ErrorKind::accumulators_in_use, me.began_wgmma, "",
       "this thread has used accumulators of a wgmma before a wgmma_wait that names them");
}

}  // namespace flashladder::simt
