#include "common/attention/problem.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

#include "common/error.hpp"

namespace flashladder {
namespace {

std::string in_words(float x) {
  std::ostringstream text;
  text << x;
  return text.str();
}

std::string shape_in_words(std::int64_t batch, std::int64_t heads, std::int64_t rows, std::int64_t keys) {
  return "[" + std::to_string(batch) + ", " + std::to_string(heads) + ", " + std::to_string(rows) + ", " +
         std::to_string(keys) + "]";
}

/// Throws UsageError unless `begins` are where sequences begin in `length` rows or keys, and the last ends.
void validate_begins(const char* name, const char* of, const std::vector<int>& begins,
                     std::int64_t sequences, std::int64_t length) {
  const auto fail = [&](const std::string& why) { throw UsageError(name + (" " + why)); };
  if (std::ssize(begins) != sequences + 1) {
    fail("has " + std::to_string(begins.size()) + " numbers: give one more than there are sequences, " +
         std::to_string(sequences + 1));
  }
  if (begins[0] != 0) fail("begins with " + std::to_string(begins[0]) + ": the first sequence begins at 0");
  for (std::size_t s = 1; s < begins.size(); ++s) {
    if (begins[s] < begins[s - 1]) {
      fail("falls from " + std::to_string(begins[s - 1]) + " to " + std::to_string(begins[s]) +
           " at place " + std::to_string(s) + ": no sequence ends before it begins");
    }
  }
  if (begins.back() != length) {
    fail("ends with " + std::to_string(begins.back()) + ": the last sequence must end with the last of " +
         std::to_string(length) + " " + of);
  }
}

void validate_packing(const Problem& p) {
  const Packing& all = p.packing;
  if (all.sequences == 0) return;
  if (all.sequences < 0)
    throw UsageError("cu_seqlens_q is empty: give where each sequence begins, and the last ends");
  if (p.batch != 1) {
    throw UsageError("packed sequences lie in a single batch entry, and here are " +
                     std::to_string(p.batch) + ": pack them all into one");
  }
  if (all.cu_seqlens_q.empty()) return;  // a GPU alone knows them
  validate_begins("cu_seqlens_q", "rows", all.cu_seqlens_q, all.sequences, p.Nq);
  validate_begins("cu_seqlens_k", "keys", all.cu_seqlens_k, all.sequences, p.Nk);
  if (!all.partly_used) return;
  if (std::ssize(all.seqused_k) != all.sequences) {
    throw UsageError("seqused_k has " + std::to_string(all.seqused_k.size()) +
                     " numbers: give one for each of " + std::to_string(all.sequences) + " sequences");
  }
  for (std::int64_t s = 0; s < all.sequences; ++s) {
    const int keys = all.cu_seqlens_k[s + 1] - all.cu_seqlens_k[s];
    if (all.seqused_k[s] < 0 || all.seqused_k[s] > keys) {
      throw UsageError("seqused_k says " + std::to_string(all.seqused_k[s]) + " at place " +
                       std::to_string(s) + ", where the sequence has " + std::to_string(keys) +
                       " keys: give a number from 0 to that");
    }
  }
}

void validate_bias(const Problem& p) {
  if (!p.has_bias()) return;
  const auto fits = [](std::int64_t size, std::int64_t full) { return size == 1 || size == full; };
  if (!fits(p.bias_batch, p.batch) || !fits(p.bias_heads, p.q_heads) || !fits(p.bias_rows, p.Nq)) {
    throw UsageError("the bias is " + shape_in_words(p.bias_batch, p.bias_heads, p.bias_rows, p.Nk) +
                     " and the scores are " + shape_in_words(p.batch, p.q_heads, p.Nq, p.Nk) +
                     ": each of its sizes must be the same, or 1 where all share its numbers");
  }
  if (p.packing.sequences > 0) {
    throw UsageError(
        "a bias and packed sequences do not go together: it would have a number for each row and the keys "
        "of all the others, too");
  }
}

void validate_block_map(const Problem& p) {
  const BlockMap& map = p.block_map;
  if (!map.given()) return;
  const std::int64_t rows = (p.Nq + BlockMap::size - 1) / BlockMap::size,
                     keys = (p.Nk + BlockMap::size - 1) / BlockMap::size;
  if ((map.batch != 1 && map.batch != p.batch) || (map.heads != 1 && map.heads != p.q_heads) ||
      map.rows != rows || map.keys != keys) {
    throw UsageError("the block map is " + shape_in_words(map.batch, map.heads, map.rows, map.keys) +
                     " and must be " + shape_in_words(p.batch, p.q_heads, rows, keys) + ", of blocks of " +
                     std::to_string(BlockMap::size) +
                     " rows and keys; its first two sizes may be 1, where all share it");
  }
  if (!map.live.empty() && std::ssize(map.live) != map.blocks()) {
    throw UsageError("the block map has " + std::to_string(map.live.size()) +
                     " numbers: give one for each of " + std::to_string(map.blocks()) + " blocks");
  }
  if (p.packing.sequences > 0) {
    throw UsageError(
        "a block map and packed sequences do not go together: its blocks would hold parts of several "
        "sequences");
  }
}

}  // namespace

BlockMap BlockMap::of(std::int64_t b, std::int64_t h) const {
  const auto first = live.begin() + (b % batch * heads + h % heads) * rows * keys;
  return {1, 1, rows, keys, {first, first + rows * keys}};
}

float Problem::softmax_scale() const {
  return scale != 0 ? scale : 1.0f / std::sqrt(static_cast<float>(d));
}

Place Problem::place(std::int64_t i) const {
  if (packing.sequences == 0) return {.row = i};
  const std::vector<int>& begins = packing.cu_seqlens_q;
  const std::int64_t number = std::ranges::upper_bound(begins, i) - begins.begin() - 1;
  return {number, i - begins[number], packing.cu_seqlens_k[number]};
}

Problem Problem::sequence(std::int64_t number) const {
  Problem one = *this;
  one.packing = {};
  const auto length = [&](const std::vector<int>& begins) { return begins[number + 1] - begins[number]; };
  one.Nq = length(packing.cu_seqlens_q);
  one.Nk = packing.partly_used ? packing.seqused_k[number] : length(packing.cu_seqlens_k);
  return one;
}

std::vector<Problem> Problem::all_sequences() const {
  if (packing.sequences == 0) return {*this};
  std::vector<Problem> all;
  for (std::int64_t number = 0; number < packing.sequences; ++number) all.push_back(sequence(number));
  return all;
}

Interval<std::int64_t> Problem::keys(std::int64_t i) const {
  if (packing.sequences == 0) return mask().keys(i);
  const Place at = place(i);
  const auto [first, end] = sequence(at.sequence).mask().keys(at.row);
  return {at.key0 + first, at.key0 + std::max(first, end)};
}

bool Problem::sees_any_key(std::int64_t head, std::int64_t i) const {
  const auto [first, end] = keys(i);
  for (std::int64_t j = first; j < end; j = (j / BlockMap::size + 1) * BlockMap::size) {
    if (is_in_live_block(head, i, j)) return true;
  }
  return false;
}

std::int64_t Problem::distance(std::int64_t i, std::int64_t j) const {
  if (packing.sequences == 0) return std::abs(i + Nk - Nq - j);
  const Place at = place(i);
  return sequence(at.sequence).distance(at.row, j - at.key0);
}

float Problem::dropout_factor(std::int64_t head, std::int64_t i, std::int64_t j) const {
  const Place at = place(i);
  return dropout.factor(at.sequence * q_heads + head, at.row, j - at.key0);
}

std::int64_t Problem::visible_pairs() const {
  std::int64_t pairs = 0;
  for (const Problem& one : all_sequences()) {
    for (std::int64_t i = 0; i < one.Nq; ++i) pairs += one.mask().keys(i).size();
  }
  return pairs;
}

double Problem::forward_flops() const {
  if (block_map.given() && !block_map.live.empty()) {
    double pairs = 0;
    for (std::int64_t i = 0; i < Nq; ++i) {
      const auto [first, end] = mask().keys(i);
      for (std::int64_t j = first, next; j < end; j = next) {
        next = std::min(end, (j / BlockMap::size + 1) * BlockMap::size);
        for (std::int64_t head = 0; head < batch * q_heads; ++head)
          pairs += is_in_live_block(head, i, j) ? static_cast<double>(next - j) : 0;
      }
    }
    return 4.0 * pairs * static_cast<double>(d);
  }
  if (window.hides(causal) || prefix > 0 || packing.sequences > 0)
    return 4.0 * static_cast<double>(batch * q_heads * d) * static_cast<double>(visible_pairs());
  const double all = 4.0 * static_cast<double>(batch * q_heads) * static_cast<double>(Nq) *
                     static_cast<double>(Nk) * static_cast<double>(d);
  return causal ? all / 2 : all;
}

void Problem::validate() const {
  const struct {
    const char* name;
    std::int64_t value;
  } sizes[] = {{"batch", batch},
               {"the number of query heads", q_heads},
               {"the number of key/value heads", kv_heads},
               {"query length Nq", Nq},
               {"key length Nk", Nk},
               {"head dimension d", d}};
  for (const auto& [name, value] : sizes) {
    if (value < 1) {
      throw UsageError(std::string(name) + " is " + std::to_string(value) + ": it must be at least 1");
    }
  }
  if (d > max_head_dim) {
    throw UsageError("head dimension d is " + std::to_string(d) + ": the stages take d from 1 to " +
                     std::to_string(max_head_dim));
  }
  if (q_heads % kv_heads != 0) {
    throw UsageError("query heads (" + std::to_string(q_heads) +
                     ") are not a multiple of key/value heads (" + std::to_string(kv_heads) +
                     "): each key/value head serves the same number of query heads");
  }
  for (const auto& [side, keys] : {std::pair("left", window.left), std::pair("right", window.right)}) {
    if (keys < -1) {
      throw UsageError(std::string("the window's ") + side + " side is " + std::to_string(keys) +
                       ": give how many keys a row sees there, or -1 for all");
    }
  }
  if (!std::isfinite(softcap) || softcap < 0) {
    throw UsageError("the softcap is " + in_words(softcap) +
                     ": give a finite number above 0, or 0 for none");
  }
  if (softcap != 0 && !std::isfinite(1 / softcap)) {
    throw UsageError("the softcap is " + in_words(softcap) +
                     ", and scores are divided by it: give a larger one");
  }
  if (prefix < 0) {
    throw UsageError("the prefix is " + std::to_string(prefix) +
                     ": give how many keys all rows see, or 0 for none");
  }
  if (prefix > 0 && !causal)
    throw UsageError("a prefix makes rows see more than the causal mask lets them: ask for that mask, too");
  if (prefix > 0 && window.hides(causal))
    throw UsageError(
        "a prefix and a window do not go together: a row would see two separate parts of the keys");
  validate_bias(*this);
  if (!(dropout.p >= 0 && dropout.p < 1) || dropout.kept() == 0) {
    throw UsageError("the dropout is " + in_words(dropout.p) +
                     ": give the share of probabilities to leave out, from 0 to 0.99");
  }
  validate_packing(*this);
  validate_block_map(*this);
  if (!std::isfinite(scale)) throw UsageError("the scale is not a finite number");
  const auto elements = [](auto... factors) { return (static_cast<double>(factors) * ...); };
  const double most = static_cast<double>(std::numeric_limits<std::int64_t>::max()) / 64;
  if (elements(batch, q_heads, Nq, d) > most || elements(batch, kv_heads, Nk, d) > most ||
      elements(bias_batch, bias_heads, bias_rows, Nk) > most) {
    throw UsageError("the problem " + to_string(*this) + " has more elements than 64-bit addresses reach");
  }
}

std::string to_string(const Problem& p) {
  std::string text = "B=" + std::to_string(p.batch) + " H=" + std::to_string(p.q_heads);
  if (p.kv_heads != p.q_heads) text += " Hkv=" + std::to_string(p.kv_heads);
  if (p.Nq == p.Nk) {
    text += " N=" + std::to_string(p.Nq);
  } else {
    text += " Nq=" + std::to_string(p.Nq) + " Nk=" + std::to_string(p.Nk);
  }
  text += " d=" + std::to_string(p.d);
  if (p.causal) text += " causal";
  if (p.window.hides(p.causal)) {
    text +=
        " window=" + std::to_string(p.window.left) + "," + std::to_string(p.causal ? 0 : p.window.right);
  }
  if (p.softcap != 0) text += " softcap=" + in_words(p.softcap);
  if (p.prefix > 0) text += " prefix=" + std::to_string(p.prefix);
  if (p.alibi) text += " alibi";
  if (p.has_bias()) {
    text += " bias=" + std::to_string(p.bias_batch) + "," + std::to_string(p.bias_heads) + "," +
            std::to_string(p.bias_rows);
  }
  if (p.sinks) text += " sinks";
  if (p.dropout.p != 0) text += " dropout=" + in_words(p.dropout.p);
  if (p.dropout.p != 0 && p.dropout.seed_in_memory) text += " seed_in_memory";
  if (p.packing.sequences > 0) text += " sequences=" + std::to_string(p.packing.sequences);
  if (p.block_map.given()) {
    text += " block_map=" + std::to_string(p.block_map.batch) + "," + std::to_string(p.block_map.heads);
  }
  return text + " " + std::string(to_string(p.dtype));
}

}  // namespace flashladder
