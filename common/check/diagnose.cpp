#include "common/check/diagnose.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "common/check/count.hpp"

namespace flashladder {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// --- intermediates

std::mutex recording;
std::vector<Intermediate> recorded;

void record(const char* name, std::int64_t head, int row, int column, float value, simt::Where) {
  const std::lock_guard lock(recording);
  Intermediate& one = recorded.emplace_back(Intermediate{{}, head, row, column, value});
  std::strncpy(one.name, name, sizeof one.name - 1);
}

/// Far above the rounding of `dtype`, far below what a mistake does.
bool agree(double got, double right, Dtype dtype) {
  return got == right || std::abs(got - right) <= (1e-3 + 8 * unit_roundoff(dtype)) * (1 + std::abs(right));
}

/// The intermediates of one row from the definition.
class Row {
 public:
  /// After a tile of keys and all before it: m, l and O that is not divided by l.
  struct State {
    double m = -infinity, l = 0;
    std::vector<double> O;
  };

  Row(const Inputs& inputs, std::int64_t head, std::int64_t row, std::int64_t Bc) {
    const Problem& p = inputs.problem;
    const float* const q = &inputs.Q[(head * p.Nq + row) * p.d];
    const std::int64_t kv = head / p.q_heads * p.kv_heads + p.kv_head(head % p.q_heads);
    const float *const K = &inputs.K[kv * p.Nk * p.d], *const V = &inputs.V[kv * p.Nk * p.d];
    S_.assign(p.Nk, -infinity);
    const auto [first, end] = p.keys(row);
    const std::int64_t bias0 =
        p.has_bias() ? p.bias_row(head / p.q_heads, head % p.q_heads, row) * p.Nk : 0;
    const std::int64_t key0 = p.place(row).key0;  // where the tiles begin
    for (std::int64_t j = first; j < end; ++j) {
      if (!p.is_in_live_block(head, row, j)) continue;
      double sum = 0;
      for (std::int64_t k = 0; k < p.d; ++k) sum += double{q[k]} * K[j * p.d + k];
      const double bias = p.has_bias() ? inputs.bias[bias0 + j] : 0;
      S_[j] = p.score(sum * p.softmax_scale() + bias) - inputs.alibi(head % p.q_heads, row, j);
    }
    State now{.m = inputs.sink(head % p.q_heads), .O = std::vector<double>(p.d)};
    if (now.m != -infinity) now.l = 1;
    for (std::int64_t j = 0; j < p.Nk; ++j) {
      if (S_[j] != -infinity) add(now, S_[j], V + j * p.d, p.dropout_factor(head, row, j));
      if (j >= key0 && ((j - key0 + 1) % Bc == 0 || j + 1 == p.Nk)) states_.push_back(now);
    }
  }
  double S(std::int64_t j) const { return j < std::ssize(S_) ? S_[j] : -infinity; }
  const State& after(std::int64_t tile) const {
    return states_[std::clamp<std::int64_t>(tile, 0, std::ssize(states_) - 1)];
  }

 private:
  /// @param factor  what dropout multiplies P with
  static void add(State& state, double s, const float* v, double factor) {
    const double m = std::max(state.m, s), alpha = std::exp(state.m - m), weight = std::exp(s - m);
    state.m = m;
    state.l = state.l * alpha + weight;
    for (std::size_t c = 0; c < state.O.size(); ++c)
      state.O[c] = state.O[c] * alpha + weight * factor * v[c];
  }

  std::vector<double> S_;
  std::vector<State> states_;
};

constexpr std::string_view names[] = {"S", "m", "m~", "l", "O", "O~"};  // in this order they are computed

/// What a wrong m usually comes from.
std::string hint_on_m(double got, double right) {
  if (got < right)
    return ", less than a score of the row: is it the maximum over all lanes of the row, and of the tiles "
           "before?";
  if (!(got > right)) return "";
  return got == std::round(got)
             ? ", larger than all scores of the row so far: does m start at -infinity?"
             : ", larger than all scores of the row so far: does the maximum go over the lanes of the row "
               "alone, and over its own scores?";
}

}  // namespace

Diagnosis diagnose(const Stage& stage, const Inputs& inputs, const std::vector<Intermediate>& shown) {
  const Claim* claim = claim_of(stage);
  if (claim == nullptr) return {};
  const Problem& p = inputs.problem;
  const Symbols tile_of = claim->symbols(p);
  const Dtype dtype = computing_dtype(stage, p.dtype);
  // Under a window it is a warpgroup, where a block has several, whose rows begin with one tile of keys.
  const std::int64_t own_rows = tile_of.Br / std::max<std::int64_t>(tile_of.warpgroups, 1);
  const auto is_O = [](const Intermediate& one) { return one.name[0] == 'O'; };
  // A mistake may show rows, heads and columns that there are not; a tile has some beyond the last.
  const auto exists = [&](const Intermediate& one) {
    return one.head >= 0 && one.head < p.batch * p.q_heads && one.row >= 0 && one.row < p.Nq &&
           one.column >= 0 && (!is_O(one) || one.column < p.d);
  };
  const auto tile_of_key = [&](const Intermediate& one) {
    return (one.column - p.place(one.row).key0) / tile_of.Bc;
  };
  // How often each element of O was shown: after each tile of keys, or once at the end. And each lagging m.
  std::map<std::tuple<std::int64_t, int, int>, std::int64_t> times, times_so_far;
  std::map<std::tuple<std::int64_t, int, std::int64_t>, double> lagging;
  for (const Intermediate& one : shown) {
    if (!exists(one)) continue;
    if (is_O(one)) ++times[{one.head, one.row, one.column}];
    if (std::string_view(one.name) == "m~") lagging[{one.head, one.row, tile_of_key(one)}] = one.value;
  }
  std::set<std::size_t> seen, wrong;  // places in `names`
  // In the order of tile, intermediate, head, row, column; not of the threads.
  using Place = std::tuple<std::int64_t, std::size_t, std::int64_t, int, int>;
  Place first{std::numeric_limits<std::int64_t>::max(), 0, 0, 0, 0};
  Diagnosis diagnosis;
  std::map<std::pair<std::int64_t, int>, Row> rows;
  for (const Intermediate& one : shown) {
    if (!exists(one)) continue;
    const Row& row =
        rows.try_emplace({one.head, one.row}, inputs, one.head, one.row, tile_of.Bc).first->second;
    std::int64_t tile = 0;
    if (is_O(one)) {
      const std::tuple element(one.head, one.row, one.column);
      const Problem own = p.packing.sequences > 0 ? p.sequence(p.place(one.row).sequence) : p;
      const std::int64_t first = p.place(one.row).row / own_rows * own_rows;
      const std::int64_t begin = own.mask().live_tiles(first, own_rows, tile_of.Bc).first;
      tile = times[element] == 1 ? (own.Nk - 1) / tile_of.Bc : begin + times_so_far[element]++;
    } else {
      tile = tile_of_key(one);
    }
    const Row::State& state = row.after(tile);
    // The last m that was shown up to this tile: what l and O~ are relative to.
    const auto m = lagging.upper_bound({one.head, one.row, tile});
    const bool lags = m != lagging.begin() && std::get<0>(std::prev(m)->first) == one.head &&
                      std::get<1>(std::prev(m)->first) == one.row && state.l > 0;
    // P~ is then larger than 1, and so is its rounding.
    const double factor = lags ? std::exp(state.m - std::prev(m)->second) : 1;
    double got = one.value;
    const std::string_view name = one.name;
    double right = 0;
    bool good = false;
    if (name == "m~") {
      // Less than the maximum by 2^8 in P~ at most; a row that has seen no key has any.
      right = state.m;
      good = state.l == 0 || agree(one.value, right, dtype) ||
             (one.value < right && right - one.value < 8 * std::log(2.) + 0.1);
    } else {
      right = name == "S"    ? row.S(one.column)
              : name == "m"  ? state.m
              : name == "l"  ? state.l
              : name == "O~" ? state.O[one.column]
                             : state.O[one.column] / (state.l == 0 ? 1 : state.l);
      if (name == "l" || name == "O~") got /= factor;
      good = agree(got, right, dtype);
    }
    const auto rank = static_cast<std::size_t>(std::ranges::find(names, name) - names);
    if (rank == std::size(names)) continue;
    seen.insert(rank);
    if (good) continue;
    wrong.insert(rank);
    const Place place(tile, rank, one.head, one.row, one.column);
    if (place >= first) continue;
    first = place;
    diagnosis.first = "first to diverge: " + std::string(name == "m~" ? "m" : name) + " of head " +
                      std::to_string(one.head) + ", row " + std::to_string(one.row) + " (row tile " +
                      std::to_string(p.place(one.row).row / tile_of.Br) + "), key tile " +
                      std::to_string(tile) +
                      (name == "S" ? ", key " + std::to_string(one.column)
                       : is_O(one) ? ", column " + std::to_string(one.column)
                                   : "") +
                      ": " + std::to_string(got) + " instead of " + std::to_string(right) +
                      (name[0] == 'm' ? hint_on_m(got, right) : "");
  }
  for (const std::size_t rank : seen)
    if (!wrong.contains(rank)) diagnosis.right.emplace_back(names[rank] == "m~" ? "m" : names[rank]);
  return diagnosis;
}

std::string first_divergence(const Stage& stage, const Inputs& inputs) {
  if (claim_of(stage) == nullptr) return "";
  recorded.clear();
  simt::Emulator::probe = record;
  try {
    count_forward(on_backend(stage, Backend::emulator), inputs);
  } catch (const std::exception& error) {
    simt::Emulator::probe = nullptr;
    return error.what();
  }
  simt::Emulator::probe = nullptr;
  return diagnose(stage, inputs, recorded).first;
}

}  // namespace flashladder
