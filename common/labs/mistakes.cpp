#include "common/labs/mistakes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "common/check/inputs.hpp"

namespace flashladder::lab {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// What the sums so far are multiplied by when a new maximum comes.
enum class Rescale { alpha, none, inverse, twice };
/// What e^(S - ...) is taken against.
enum class Against { running_maximum, old_maximum, tile_maximum, nothing };
/// How O and L come from the sums.
enum class End { divided, not_divided, divided_twice, times_l, divided_by_keys };
enum class LEnd { m_plus_log_l, log_l, m, m_plus_l, m_minus_log_l, l, log2_l };
/// Which head of K and V a query head reads.
enum class Heads { right, modulo, same, first, of_first_batch, batch_for_head };
enum class Mask { right, none, top_left, one_more, one_less };
/// Which keys are left out.
enum class Left { nothing, first, last, ragged, all_but_first_tile, all_but_last_tile };

/// Attention with one mistake in it.
struct Way {  // NOLINT(clang-analyzer-optin.performance.Padding): in the order of what is changed most
  const char* words;
  double power = 1;  ///< The scores are multiplied by scale to this power.
  float sign = 1;    ///< And by this.
  Mask mask = Mask::right;
  Heads heads = Heads::right;
  Left left_out = Left::nothing;
  float start = -infinity;  ///< Of m.
  float l_start = 0;
  Against against = Against::running_maximum;
  Rescale l = Rescale::alpha, O = Rescale::alpha;
  End end = End::divided;
  LEnd L = LEnd::m_plus_log_l;
  bool V_of_row = false;        ///< V of row i in the place of key j.
  bool no_key_skipped = false;  ///< A row that sees no key: 0 / 0.
  std::int64_t columns = 0;     ///< Of the d of Q and K; 0 is all.
  bool only_growing = false;    ///< A key whose score is not above m is left out.
};

// The more a way says, the earlier it comes: some give the same outputs on some inputs.
const Way ways[] = {
    {.words = "the scores are not multiplied by scale", .power = 0},
    {.words = "the scores are multiplied by scale twice", .power = 2},
    {.words = "the scores are divided by scale, not multiplied", .power = -1},
    {.words = "the scores are multiplied by the square root of scale", .power = 0.5},
    {.words = "the sign of the scores is wrong: e^(m - S), or a minus before scale", .sign = -1},
    {.words = "there is no mask: every row sees all keys", .mask = Mask::none},
    {.words = "the mask is at the wrong corner: row i sees keys 0 ... i, whatever Nk - Nq is",
     .mask = Mask::top_left},
    {.words = "the mask is off by one: rows see one key more than visible_keys(i)", .mask = Mask::one_more},
    {.words = "the mask is off by one: rows see one key less than visible_keys(i)", .mask = Mask::one_less},
    {.words = "the last visible key of each row is left out", .left_out = Left::last},
    {.words = "key 0 is left out", .left_out = Left::first},
    {.words = "the last keys are left out, those of a ragged tile: only whole tiles are taken",
     .left_out = Left::ragged},
    {.words = "only the first tile of keys is taken", .left_out = Left::all_but_first_tile},
    {.words = "only the last tile of keys is kept", .left_out = Left::all_but_last_tile},
    {.words = "query head h reads the wrong head of K and V: h % Hkv in the place of h / (H / Hkv)",
     .heads = Heads::modulo},
    {.words = "all query heads read K and V of head 0", .heads = Heads::first},
    {.words = "query head h reads the wrong head of K and V: h itself, though heads are grouped",
     .heads = Heads::same},
    {.words = "every batch entry reads K and V of batch entry 0: the stride of the batch is missing",
     .heads = Heads::of_first_batch},
    {.words = "batch entry and head are swapped in where K and V lie", .heads = Heads::batch_for_head},
    {.words = "V is read at row i of the queries, not at key j", .V_of_row = true},
    {.words = "m starts at 0, which is above the maximum of a row whose scores are all negative",
     .start = 0},
    {.words = "the maximum m is not subtracted: e^S overflows for large scores",
     .against = Against::nothing},
    {.words = "alpha is forgotten: neither l nor O~ is rescaled when m grows",
     .l = Rescale::none,
     .O = Rescale::none},
    {.words = "l is not rescaled by alpha when m grows", .l = Rescale::none},
    {.words = "O~ is not rescaled by alpha when m grows", .O = Rescale::none},
    {.words = "the inverse of alpha is taken: l and O~ are multiplied by e^(m_new - m_old)",
     .l = Rescale::inverse,
     .O = Rescale::inverse},
    {.words = "l is multiplied by the inverse of alpha", .l = Rescale::inverse},
    {.words = "O~ is multiplied by the inverse of alpha", .O = Rescale::inverse},
    {.words = "alpha is applied twice, to l and O~", .l = Rescale::twice, .O = Rescale::twice},
    {.words = "alpha is applied twice to l", .l = Rescale::twice},
    {.words = "alpha is applied twice to O~", .O = Rescale::twice},
    {.words = "e^(S - m) is taken against the old m, not the new one", .against = Against::old_maximum},
    {.words = "the old maximum is forgotten: m is that of the last tile of keys only",
     .against = Against::tile_maximum},
    {.words = "keys whose score is not above m are left out", .only_growing = true},
    {.words = "l starts at 1, not at 0", .l_start = 1},
    {.words = "the final division by l is missing: O is O~", .end = End::not_divided},
    {.words = "O is divided by l twice", .end = End::divided_twice},
    {.words = "O is multiplied by l, not divided by it", .end = End::times_l},
    {.words = "O is divided by the number of keys, not by l", .end = End::divided_by_keys},
    {.words = "L lacks m: it is log l alone", .L = LEnd::log_l},
    {.words = "L lacks log l: it is m alone", .L = LEnd::m},
    {.words = "L lacks the logarithm: it is m + l", .L = LEnd::m_plus_l},
    {.words = "L has the wrong sign of log l: it is m - log l", .L = LEnd::m_minus_log_l},
    {.words = "L is l itself, without logarithm and m", .L = LEnd::l},
    {.words = "L is to base 2: log2 l in the place of log l", .L = LEnd::log2_l},
    {.words = "a row that sees no key divides 0 by 0", .no_key_skipped = true},
    {.words = "the sum over d leaves out the last number of each row", .columns = -1},
    {.words = "the sum over d has 32 numbers only", .columns = 32},
};

/// Computes as `way` says. NaN and infinity come out where floats would have them.
class Computation {
 public:
  Computation(const Job& job, std::int64_t keys_of_tile) : inputs_(job.inputs), tile_(keys_of_tile) {}

  Result<float> run(const Way& way) {
    const Problem& p = inputs_.problem;
    Result<float> result;
    result.O.resize(inputs_.Q.size());
    result.L.resize(p.batch * p.q_heads * p.Nq);
    for (std::int64_t head = 0; head < p.batch * p.q_heads; ++head) {
      for (std::int64_t i = 0; i < p.Nq; ++i)
        run_row(way, head, i, &result.O[(head * p.Nq + i) * p.d], result.L[head * p.Nq + i]);
    }
    return result;
  }

 private:
  /// Where the way's K and V of a query head begin, in rows.
  std::int64_t kv_of(const Way& way, std::int64_t head) const {
    const Problem& p = inputs_.problem;
    std::int64_t b = head / p.q_heads, h = head % p.q_heads, kv = p.kv_head(h);
    if (way.heads == Heads::modulo) kv = h % p.kv_heads;
    if (way.heads == Heads::first) kv = 0;
    if (way.heads == Heads::of_first_batch) b = 0;
    std::int64_t place = b * p.kv_heads + kv;
    if (way.heads == Heads::same) place = b * p.kv_heads + h;
    if (way.heads == Heads::batch_for_head) place = kv * p.batch + b;
    return std::min(place, p.batch * p.kv_heads - 1) * p.Nk;
  }
  std::pair<std::int64_t, std::int64_t> keys_of(const Way& way, std::int64_t i) const {
    const Problem& p = inputs_.problem;
    std::int64_t end = p.visible_keys(i);
    if (way.mask == Mask::none) end = p.Nk;
    if (way.mask == Mask::top_left && p.causal) end = std::min(i + 1, p.Nk);
    if (way.mask == Mask::one_more && p.causal)
      end = std::clamp<std::int64_t>(i + 2 + p.Nk - p.Nq, 0, p.Nk);
    if (way.mask == Mask::one_less && p.causal) end = std::max<std::int64_t>(end - 1, 0);
    std::int64_t begin = 0;
    switch (way.left_out) {
      case Left::nothing:
        break;
      case Left::first:
        begin = 1;
        break;
      case Left::last:
        --end;
        break;
      case Left::ragged:
        end = end / tile_ * tile_;
        break;
      case Left::all_but_first_tile:
        end = std::min(end, tile_);
        break;
      case Left::all_but_last_tile:
        begin = std::max<std::int64_t>(end - 1, 0) / tile_ * tile_;
    }
    return {begin, std::max(begin, end)};
  }
  const std::vector<float>& dots(const Way& way, std::int64_t head, std::int64_t i) {
    const Problem& p = inputs_.problem;
    const std::int64_t kv = kv_of(way, head), row = head * p.Nq + i;
    std::vector<float>& all = dots_[{row, kv, way.columns}];
    if (!all.empty()) return all;
    const std::int64_t columns = way.columns < 0   ? p.d + way.columns
                                 : way.columns > 0 ? std::min(way.columns, p.d)
                                                   : p.d;
    for (std::int64_t j = 0; j < p.Nk; ++j) {
      float sum = 0;
      for (std::int64_t c = 0; c < columns; ++c)
        sum += inputs_.Q[row * p.d + c] * inputs_.K[(kv + j) * p.d + c];
      all.push_back(sum);
    }
    return all;
  }

  void run_row(const Way& way, std::int64_t head, std::int64_t i, float* O, float& L) {
    const Problem& p = inputs_.problem;
    const auto [begin, end] = keys_of(way, i);
    const std::vector<float>& dot = dots(way, head, i);
    const double scale = p.softmax_scale();
    const auto factor =
        way.sign * static_cast<float>(way.power == 1 ? scale : std::pow(std::abs(scale), way.power));
    const std::int64_t kv = kv_of(way, head);
    float m = way.against == Against::nothing ? 0 : way.start, l = way.l_start;
    std::fill_n(O, p.d, 0.0f);
    for (std::int64_t j0 = begin; j0 < end; j0 += tile_ - j0 % tile_) {
      const std::int64_t j1 = std::min(end, j0 + tile_ - j0 % tile_);
      float most = -infinity;
      for (std::int64_t j = j0; j < j1; ++j) most = std::max(most, factor * dot[j]);
      if (way.only_growing && !(most > m)) continue;
      const float m_old = m;
      if (way.against == Against::tile_maximum)
        m = most;
      else if (way.against != Against::nothing)
        m = std::max(m, most);
      const float alpha = m_old == -infinity ? 0 : std::exp(m_old - m);
      const auto rescale = [&](Rescale how) {
        return how == Rescale::alpha || m_old == -infinity ? alpha
               : how == Rescale::none                      ? 1.0f
               : how == Rescale::twice                     ? alpha * alpha
                                                           : 1 / alpha;
      };
      const float for_l = rescale(way.l), for_O = rescale(way.O);
      l = j0 == begin ? way.l_start : l * for_l;
      for (std::int64_t c = 0; c < p.d; ++c) O[c] *= for_O;
      for (std::int64_t j = j0; j < j1; ++j) {
        const float against = way.against == Against::old_maximum && m_old != -infinity ? m_old : m;
        const float weight = std::exp(factor * dot[j] - against);
        l += weight;
        const float* const V = &inputs_.V[(kv + (way.V_of_row ? std::min(i, p.Nk - 1) : j)) * p.d];
        for (std::int64_t c = 0; c < p.d; ++c) O[c] += weight * V[c];
      }
    }
    if (begin >= end) m = -infinity;
    finish(way, end - begin, m, l, O, L);
  }

  void finish(const Way& way, std::int64_t keys, float m, float l, float* O, float& L) const {
    float divisor = l;
    if (way.end == End::not_divided) divisor = 1;
    if (way.end == End::divided_twice) divisor = l * l;
    if (way.end == End::times_l) divisor = 1 / l;
    if (way.end == End::divided_by_keys) divisor = static_cast<float>(keys);
    if (keys == 0) divisor = way.no_key_skipped ? NAN : infinity;
    for (std::int64_t c = 0; c < inputs_.problem.d; ++c) O[c] /= divisor;
    const float values[] = {m + std::log(l), std::log(l), m, m + l, m - std::log(l), l, m + std::log2(l)};
    L = values[static_cast<int>(way.L)];
  }

  const Inputs& inputs_;
  std::int64_t tile_;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::vector<float>> dots_;
};

/// Where there is NaN in theory, because 0 is divided by 0, code may have thought of the 0.
bool agree(float got, float other) {
  return got == other || (std::isnan(other) && (std::isnan(got) || got == 0)) ||
         std::abs(got - other) <= 2e-3f * (1 + std::abs(other));
}

/// Of each row: whether O or L agree.
struct Rows {
  std::vector<bool> O, L;
};
Rows agreeing(const Result<float>& a, const Result<float>& b, std::int64_t d) {
  Rows rows;
  for (std::size_t row = 0; row < a.L.size(); ++row) {
    rows.L.push_back(agree(a.L[row], b.L[row]));
    rows.O.push_back(std::equal(a.O.begin() + static_cast<std::ptrdiff_t>(row * d),
                                a.O.begin() + static_cast<std::ptrdiff_t>((row + 1) * d),
                                b.O.begin() + static_cast<std::ptrdiff_t>(row * d), agree));
  }
  return rows;
}

bool all(const std::vector<bool>& flags) {
  return std::ranges::find(flags, false) == flags.end();
}
/// Whether it holds wherever the other does not.
bool where_not(const std::vector<bool>& other, const std::vector<bool>& flags) {
  for (std::size_t i = 0; i < flags.size(); ++i) {
    if (!other[i] && !flags[i]) return false;
  }
  return true;
}

}  // namespace

std::string known_mistake(const Job& job, const Result<float>& got, std::int64_t keys_of_tile) {
  const std::int64_t d = job.inputs.problem.d;
  Computation computation(job, keys_of_tile);
  const Result<float> expected = computation.run({.words = ""});
  if (got.O.size() != expected.O.size() || got.L.size() != expected.L.size()) return "";
  const Rows right = agreeing(got, expected, d);
  const bool O_right = all(right.O), L_right = all(right.L);
  if (O_right && L_right) return "";
  const char* in_wrong_rows = nullptr;
  for (const Way& way : ways) {
    const Result<float> other = computation.run(way);
    const Rows like = agreeing(got, other, d), harmless = agreeing(other, expected, d);
    const bool O_like = all(like.O), L_like = all(like.L);
    // A part that this way leaves right on these inputs says nothing for it.
    const bool O_says = !O_right && !all(harmless.O), L_says = !L_right && !all(harmless.L);
    if (O_like && L_like && (O_says || L_says))
      return fmt::format("these are the outputs when {}", way.words);
    if (in_wrong_rows == nullptr && (O_right || (O_says && where_not(right.O, like.O))) &&
        (L_right || (L_says && where_not(right.L, like.L))))
      in_wrong_rows = way.words;
  }
  if (in_wrong_rows == nullptr) return "";
  return fmt::format("{} that are wrong are those when {}",
                     L_right   ? "L is right, and the rows of O"
                     : O_right ? "O is right, and the numbers of L"
                               : "the rows",
                     in_wrong_rows);
}

Job weights_job(const Job& job) {
  Problem p = job.inputs.problem;
  p.d = max_head_dim;
  p.Nq = std::min<std::int64_t>(p.Nq, 150);
  p.Nk = std::min<std::int64_t>(p.Nk, 200);
  Job result;
  result.inputs = random_inputs(p, 1);
  for (std::size_t at = 0; at < result.inputs.V.size(); ++at) {
    const auto place = static_cast<std::int64_t>(at);
    result.inputs.V[at] = place % p.d == place / p.d % p.Nk ? 1 : 0;
  }
  return result;
}

std::string wrong_weights(const Job& job, const Result<float>& got) {
  const Problem& p = job.inputs.problem;
  const Result<float> expected = Computation(job, p.Nk).run({.words = ""});
  if (got.O.size() != expected.O.size() || got.L.size() != expected.L.size()) return "";
  const Rows right = agreeing(got, expected, p.d);
  const auto first = std::ranges::find(right.O, false);
  if (first == right.O.end()) return "";
  const auto row = first - right.O.begin();
  const std::int64_t visible = p.visible_keys(row % p.Nq);
  const std::span weights(&got.O[row * p.d], p.Nk), rights(&expected.O[row * p.d], p.Nk);
  if (std::ranges::any_of(weights, [](float weight) { return std::isnan(weight); })) return "";
  std::string text =
      fmt::format("with one-hot rows of V, O of a row is its weights P. In row {} of head {} ", row % p.Nq,
                  row / p.Nq % p.q_heads);
  const auto ratio = [&](std::int64_t j) { return weights[j] / rights[j]; };
  const auto same = [](float a, float b) { return std::abs(a - b) <= 0.01f * std::abs(b); };
  for (std::int64_t j = visible; j < p.Nk; ++j) {
    if (weights[j] != 0)
      return text + fmt::format("key {} has the weight {}, and the row does not see it: look at the mask",
                                j, weights[j]);
  }
  std::vector<std::int64_t> without;
  for (std::int64_t j = 0; j < visible; ++j) {
    if (weights[j] == 0) without.push_back(j);
  }
  if (std::ssize(without) == visible) return text + "no key has a weight";
  if (!without.empty()) {
    return text + fmt::format(
                      "{} of {} keys have no weight, the first of them key {} and the last key {}: are "
                      "they left out, or overwritten?",
                      without.size(), visible, without.front(), without.back());
  }
  std::int64_t like = visible - 1;  // from here on the weights are right but for one factor
  while (like > 0 && same(ratio(like - 1), ratio(visible - 1))) --like;
  if (like == 0) {
    text += fmt::format(
        "all weights are {:.3g} times what they should be: S is right, and l is not, by which "
        "O is divided",
        ratio(0));
  } else if (like < visible - 1) {
    const bool grows = *std::max_element(rights.begin(), rights.begin() + like) < rights[like];
    text += fmt::format(
        "the weights from key {} on are right among each other, that of key {} is {:.3g} times too "
        "large beside them",
        like, like - 1, ratio(like - 1) / ratio(like));
    if (grows)
      text +=
          fmt::format(": m grows at key {}, and what was summed up before is not rescaled by alpha", like);
  } else {
    std::int64_t wrong = 0;
    while (wrong + 1 < visible && same(weights[wrong], rights[wrong])) ++wrong;
    text += fmt::format(
        "the first wrong weight is that of key {}, {:.4g} in the place of {:.4g}: is its score "
        "right, S = scale * Q K^T?",
        wrong, weights[wrong], rights[wrong]);
  }
  return text + (right.L[row] ? ". Its L is right, and so are S, m and l"
                              : fmt::format(". Its L is {:.4g} in the place of {:.4g}", got.L[row],
                                            expected.L[row]));
}

}  // namespace flashladder::lab
