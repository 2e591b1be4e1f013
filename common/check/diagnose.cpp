#include "common/check/diagnose.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "common/attention/closed_form.hpp"
#include "common/check/run.hpp"

namespace flashladder {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// One value that a kernel showed.
struct Seen {
  char name;  ///< 'S', 'm', 'l', 'O', or '~' for O that is not divided by l.
  std::int64_t head;
  int row, column;
  float value;
};

std::mutex recording;
std::vector<Seen> recorded;

void record(const char* name, std::int64_t head, int row, int column, float value) {
  const std::lock_guard lock(recording);
  recorded.push_back({std::strcmp(name, "O~") == 0 ? '~' : name[0], head, row, column, value});
}

/// Far above the rounding of `dtype`, far below what a mistake does.
bool agree(double got, double right, Dtype dtype) {
  return got == right || std::abs(got - right) <= (1e-3 + 8 * unit_roundoff(dtype)) * (1 + std::abs(right));
}

/// The intermediates of one row from the definition.
class Row {
 public:
  Row(const Inputs& inputs, std::int64_t head, std::int64_t row) : inputs_(inputs) {
    const Problem& p = inputs.problem;
    const std::int64_t b = head / p.q_heads;
    kv_ = (b * p.kv_heads + p.kv_head(head % p.q_heads)) * p.Nk * p.d;
    const float* q = &inputs.Q[(head * p.Nq + row) * p.d];
    S_.assign(p.Nk, -infinity);
    for (std::int64_t j = 0; j < p.visible_keys(row); ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < p.d; ++k) sum += double{q[k]} * inputs.K[kv_ + j * p.d + k];
      S_[j] = sum * p.softmax_scale();
    }
  }

  double S(std::int64_t j) const { return j < inputs_.problem.Nk ? S_[j] : -infinity; }
  double m(std::int64_t keys) const {
    return keys == 0 ? -infinity : *std::max_element(S_.begin(), S_.begin() + keys);
  }
  double l(std::int64_t keys) const {
    return weighted(keys, [](std::int64_t) { return 1.0; });
  }
  /// O of column c after so many keys, not divided by l.
  double O(std::int64_t keys, std::int64_t c) const {
    return weighted(keys,
                    [&](std::int64_t j) { return double{inputs_.V[kv_ + j * inputs_.problem.d + c]}; });
  }

 private:
  template <class Weight>
  double weighted(std::int64_t keys, Weight weight) const {
    const double most = m(keys);
    double sum = 0;
    for (std::int64_t j = 0; j < keys; ++j) {
      if (S_[j] != -infinity) sum += std::exp(S_[j] - most) * weight(j);
    }
    return sum;
  }

  const Inputs& inputs_;
  std::int64_t kv_;
  std::vector<double> S_;
};

}  // namespace

std::string first_divergence(const Stage& stage, const Inputs& inputs) {
  const Claim* claim = claim_of(stage);
  if (claim == nullptr) return "";
  const Problem& p = inputs.problem;
  const Symbols tile_of = claim->symbols(p);
  recorded.clear();
  simt::Emulator::probe = record;
  try {
    count_forward(on_backend(stage, Backend::emulator), inputs);
  } catch (const std::exception& error) {
    simt::Emulator::probe = nullptr;
    return error.what();
  }
  simt::Emulator::probe = nullptr;

  // How often each element of O was shown: after each tile of keys, or once at the end.
  std::map<std::tuple<std::int64_t, int, int>, std::int64_t> shown, seen_so_far;
  for (const Seen& one : recorded) {
    if (one.name == 'O' || one.name == '~') ++shown[{one.head, one.row, one.column}];
  }
  // In the order of tile, intermediate, head, row, column; not of the threads.
  using Place = std::tuple<std::int64_t, std::size_t, std::int64_t, int, int>;
  Place first{std::numeric_limits<std::int64_t>::max(), 0, 0, 0, 0};
  std::string text;
  std::map<std::pair<std::int64_t, int>, Row> rows;
  for (const Seen& one : recorded) {
    if (one.row >= p.Nq) continue;  // rows of a tile beyond the last
    const Row& row = rows.try_emplace({one.head, one.row}, inputs, one.head, one.row).first->second;
    std::int64_t tile = one.column / tile_of.Bc;
    if (one.name == 'O' || one.name == '~') {
      const std::tuple element(one.head, one.row, one.column);
      tile = shown[element] == 1 ? (p.Nk - 1) / tile_of.Bc : seen_so_far[element]++;
    }
    const std::int64_t keys = std::min((tile + 1) * tile_of.Bc, p.Nk);
    double right = 0;
    switch (one.name) {
      case 'S':
        right = row.S(one.column);
        break;
      case 'm':
        right = row.m(keys);
        break;
      case 'l':
        right = row.l(keys);
        break;
      default:
        right = row.O(keys, one.column);
        if (const double l = row.l(keys); one.name == 'O' && l != 0) right /= l;
    }
    if (agree(one.value, right, computing_dtype(stage, p.dtype))) continue;
    const std::size_t rank = std::string_view("SmlO~").find(one.name);
    const Place place(tile, rank, one.head, one.row, one.column);
    if (place >= first) continue;
    first = place;
    text = "first to diverge: " + std::string(one.name == '~' ? "O~" : std::string(1, one.name)) +
           " of head " + std::to_string(one.head) + ", row " + std::to_string(one.row) + " (row tile " +
           std::to_string(one.row / tile_of.Br) + "), key tile " + std::to_string(tile) +
           (one.name == 'S'                      ? ", key " + std::to_string(one.column)
            : one.name == 'm' || one.name == 'l' ? ""
                                                 : ", column " + std::to_string(one.column)) +
           ": " + std::to_string(one.value) + " instead of " + std::to_string(right);
  }
  return text;
}

}  // namespace flashladder
