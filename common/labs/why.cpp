#include "common/labs/why.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <tuple>
#include <vector>

#include "common/attention/dtype.hpp"
#include "common/labs/text.hpp"

namespace flashladder::lab {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Whether an element of O is right up to rounding: of sums over many keys, which are small.
bool same(double got, double right, double size, Dtype dtype) {
  return std::abs(got - right) <=
         1e-5 * (1 + std::abs(right)) + 4 * unit_roundoff(dtype) * (std::abs(right) + size);
}

/// The root of the mean square of a row of O.
double size_of_row(const double* O, std::int64_t d) {
  double sum = 0;
  for (std::int64_t c = 0; c < d; ++c) sum += O[c] * O[c];
  return std::sqrt(sum / static_cast<double>(d));
}

bool same_row(const float* got, const double* right, std::int64_t d, Dtype dtype) {
  const double size = size_of_row(right, d);
  for (std::int64_t c = 0; c < d; ++c)
    if (!same(got[c], right[c], size, dtype)) return false;
  return true;
}

}  // namespace

std::string where_wrong(const Problem& p, const Result<float>& result, const Result<double>& oracle) {
  if (result.O.size() != oracle.O.size() || result.L.size() != oracle.L.size()) return "";
  std::set<std::int64_t> columns, rows, heads, entries;
  bool wrong_O = false, wrong_L = false, nan = false, nan_sees_key = false;
  for (std::int64_t r = 0; r < std::ssize(result.L); ++r) {
    const double size = size_of_row(&oracle.O[r * p.d], p.d);
    const bool l = result.L[r] != oracle.L[r] &&
                   !(std::abs(result.L[r] - oracle.L[r]) <= 1e-4 * (1 + std::abs(oracle.L[r])));
    bool o = false;
    for (std::int64_t c = 0; c < p.d; ++c) {
      const float got = result.O[r * p.d + c];
      if (same(got, oracle.O[r * p.d + c], size, p.dtype)) continue;
      o = true;
      columns.insert(c);
      if (!std::isnan(got)) continue;
      nan = true;
      nan_sees_key = nan_sees_key || p.keys(r % p.Nq).size() > 0;
    }
    wrong_O = wrong_O || o;
    wrong_L = wrong_L || l;
    if (!o && !l) continue;
    rows.insert(r % p.Nq);
    heads.insert(r / p.Nq % p.q_heads);
    entries.insert(r / p.Nq / p.q_heads);
  }
  if (!wrong_O && !wrong_L) return "";
  std::string only;
  const auto add = [&](const std::string& words) {
    only += words.empty() || only.empty() ? words : ", " + words;
  };
  if (wrong_O) add(numbers_in_words("column", columns, p.d));
  add(numbers_in_words("row", rows, p.Nq));
  add(numbers_in_words("head", heads, p.q_heads));
  add(numbers_in_words("batch entry", entries, p.batch));
  std::string text;
  if (!only.empty()) text = fmt::format("Wrong are {} only.", only);
  const auto say = [&](const char* sentence) { text += (text.empty() ? "" : " ") + std::string(sentence); };
  if (!wrong_O) say("O is right, and L is not: is it L = m + log l, with the natural logarithm?");
  if (!wrong_L) say("L is right, and O is not: m and l are right.");
  if (nan && !nan_sees_key) {
    say("The rows that are NaN see no key: there m is -infinity and l is 0, and neither may reach an "
        "exponent or a division.");
  } else if (nan) {
    say("NaN comes from what was never written, from e^(-infinity + infinity), for which finite() is "
        "there, "
        "from an l of 0, or from 0 * infinity, where an exponent may have the wrong sign.");
  }
  return text;
}

namespace {

/// Where the keys of a key/value head of all batch entries begin in K and V.
std::int64_t first_key(const Problem& p, std::int64_t kv) {
  return kv * p.Nk * p.d;
}

/// What a score, which has the scale in it, becomes.
using Score = std::function<double(double)>;

/// The scores of row r of all heads with the keys of a key/value head, also with those that it does not
/// see.
std::vector<double> scores_of(const Inputs& inputs, std::int64_t r, std::int64_t kv, const Score& score) {
  const Problem& p = inputs.problem;
  const float *const q = &inputs.Q[r * p.d], *const K = &inputs.K[first_key(p, kv)];
  std::vector<double> S(p.Nk);
  for (std::int64_t j = 0; j < p.Nk; ++j) {
    double sum = 0;
    for (std::int64_t k = 0; k < p.d; ++k) sum += double{q[k]} * K[j * p.d + k];
    S[j] = score(sum * p.softmax_scale());
  }
  return S;
}
std::vector<double> scores_of(const Inputs& inputs, std::int64_t r, std::int64_t kv) {
  return scores_of(inputs, r, kv, [&](double s) { return inputs.problem.score(s); });
}

/// The key/value head of row r of all heads.
std::int64_t kv_of(const Problem& p, std::int64_t r) {
  const std::int64_t head = r / p.Nq;
  return head / p.q_heads * p.kv_heads + p.kv_head(head % p.q_heads);
}

/// Keys of a row: the first `end` without [a, b).
struct Keys {
  std::int64_t end, a = 0, b = 0;
};
Keys keys_of(const Interval<std::int64_t>& keys) {
  return keys.size() > 0 ? Keys{keys.end, 0, keys.first} : Keys{0};
}

/// Sums over the first so many keys of a row, whether it sees them or not.
struct Prefixes {
  std::int64_t d;
  std::vector<double> weights;  ///< [Nk + 1]
  std::vector<double> outputs;  ///< [Nk + 1, d]

  Prefixes(const std::vector<double>& S, const float* V, std::int64_t d)
      : d(d), weights(S.size() + 1), outputs((S.size() + 1) * d) {
    const double m = *std::ranges::max_element(S);
    for (std::size_t j = 0; j < S.size(); ++j) {
      const double weight = std::exp(S[j] - m);
      weights[j + 1] = weights[j] + weight;
      for (std::int64_t c = 0; c < d; ++c)
        outputs[(j + 1) * d + c] = outputs[j * d + c] + weight * V[j * d + c];
    }
  }
  /// O with some keys in P V and some in l.
  std::vector<double> O(const Keys& in_PV, const Keys& in_l) const {
    const double l = weights[in_l.end] - weights[in_l.b] + weights[in_l.a];
    std::vector<double> O(d);
    for (std::int64_t c = 0; c < d; ++c) {
      O[c] = (outputs[in_PV.end * d + c] - outputs[in_PV.b * d + c] + outputs[in_PV.a * d + c]) /
             (l == 0 ? 1 : l);
    }
    return O;
  }
};

/// Keys that a row may have had in place of those that it sees.
struct Guess {
  std::string words;
  std::function<Keys(std::int64_t visible, std::int64_t row)> keys;
};

/// The same of a problem with a window: other masks that a row may have had.
std::vector<Guess> window_guesses(const Problem& p) {
  using OtherMask = Mask<std::int64_t>;
  OtherMask own = p.mask();
  if (own.causal) own.right = 0;
  own.causal = false;
  std::vector<Guess> all;
  const auto add = [&](const char* words, OtherMask mask) {
    all.push_back({words, [mask](std::int64_t, std::int64_t i) { return keys_of(mask.keys(i)); }});
  };
  const auto with = [&](std::int64_t left, std::int64_t right) {
    OtherMask mask = own;
    mask.left = left;
    mask.right = right;
    return mask;
  };
  add("as if a row saw all keys before its own", with(-1, own.right));
  add("as if a row saw all keys behind its own", with(own.left, -1));
  add("as if a row saw no key before its own", with(0, own.right));
  add("as if a row saw no key behind its own", with(own.left, 0));
  add("as if left and right were exchanged", with(own.right, own.left));
  all.push_back({"as if the own key of row i were key i, and not key i + Nk - Nq",
                 [own, Nk = p.Nk](std::int64_t, std::int64_t i) {
                   OtherMask mask = own;
                   mask.Nq = mask.Nk;
                   return i < Nk ? keys_of(mask.keys(i)) : Keys{0};
                 }});
  add("as if there were neither a window nor a mask", with(-1, -1));
  add("as if there were no window, and the causal mask", with(-1, 0));
  if (own.left >= 0) {
    add("as if a row saw one key more before its own", with(own.left + 1, own.right));
    if (own.left > 0) add("as if a row saw one key less before its own", with(own.left - 1, own.right));
  }
  if (own.right >= 0) {
    add("as if a row saw one key more behind its own", with(own.left, own.right + 1));
    if (own.right > 0) add("as if a row saw one key less behind its own", with(own.left, own.right - 1));
  }
  return all;
}

/// The first of those that fit is told, so that what is simple comes first.
std::vector<Guess> guesses(const Problem& p, std::int64_t Bc) {
  using Index = std::int64_t;
  const Index Nk = p.Nk;
  if (p.window.hides(p.causal)) return window_guesses(p);
  std::vector<Guess> all;
  const auto some = [](Index n) { return n == 1 ? "key" : fmt::format("{} keys", n); };
  if (p.causal) {
    all.push_back({"as if there were no mask", [Nk](Index, Index) { return Keys{Nk}; }});
    all.push_back(
        {"as if the mask began at the top left corner, and not so that the last row sees all keys",
         [Nk](Index, Index i) { return Keys{std::min(i + 1, Nk)}; }});
    for (Index n = 1; n <= std::min(Bc, Nk); ++n) {
      all.push_back({fmt::format("as if a row saw {} more than the mask lets it", some(n)),
                     [n, Nk](Index v, Index) { return Keys{std::min(v + n, Nk)}; }});
    }
  }
  for (Index n = 1; n <= std::min(Bc, Nk); ++n) {
    all.push_back({fmt::format("as if the last {} that a row sees were left out{}", some(n),
                               p.causal ? ", by the loop or by the mask" : ""),
                   [n](Index v, Index) { return Keys{std::max<Index>(v - n, 0)}; }});
  }
  for (Index j = 0; j < Nk; j += Bc) {
    const Index end = std::min(j + Bc, Nk);
    all.push_back({fmt::format("as if the tile of keys {} to {} were left out", j, end - 1),
                   [j, end](Index v, Index) {
                     return Keys{v, std::min(j, v), std::min(end, v)};
                   }});
  }
  for (Index n = 1; n <= std::min(Bc, Nk); ++n) {
    all.push_back({fmt::format("as if the first {} were left out", some(n)), [n](Index v, Index) {
                     return Keys{v, 0, std::min(n, v)};
                   }});
  }
  for (Index j = 1; j < Nk; ++j) {
    all.push_back({fmt::format("as if all keys from {} on were left out", j),
                   [j](Index v, Index) { return Keys{std::min(j, v)}; }});
  }
  for (Index j = Bc; j < Nk; j += Bc) {
    all.push_back({fmt::format("as if all keys before {} were left out", j), [j](Index v, Index) {
                     return Keys{v, 0, std::min(j, v)};
                   }});
  }
  return all;
}

/// How far a row of O is from a guess, squared; infinite where they are not the same up to rounding.
double distance(const float* got, const std::vector<double>& guess, Dtype dtype) {
  if (!same_row(got, guess.data(), std::ssize(guess), dtype)) return infinity;
  double sum = 0;
  for (std::size_t c = 0; c < guess.size(); ++c) sum += (got[c] - guess[c]) * (got[c] - guess[c]);
  return sum;
}

/// What a row of O would be right for: K, V or both of another key/value head. "" where that does not fit.
std::string other_head(const Inputs& inputs, std::int64_t r, const float* got) {
  const Problem& p = inputs.problem;
  const std::int64_t head = r / p.Nq, entry = head / p.q_heads, kv_heads = p.batch * p.kv_heads,
                     own = entry * p.kv_heads + p.kv_head(head % p.q_heads);
  const Keys visible = keys_of(p.keys(r % p.Nq));
  for (std::int64_t other = 0; other < kv_heads; ++other) {
    if (other == own) continue;
    for (const auto& [what, K, V] :
         {std::tuple("K and V", other, other), {"V", own, other}, {"K", other, own}}) {
      const Prefixes with(scores_of(inputs, r, K), &inputs.V[first_key(p, V)], p.d);
      if (distance(got, with.O(visible, visible), p.dtype) == infinity) continue;
      return fmt::format(
          "O of head {} is as if {} were those of key/value head {}{}, and not {}.", head % p.q_heads, what,
          other % p.kv_heads,
          other / p.kv_heads == entry ? "" : fmt::format(" of batch entry {}", other / p.kv_heads),
          own % p.kv_heads);
    }
  }
  return "";
}

/// Some rows of all heads whose O is wrong, spread over all that are.
std::vector<std::int64_t> some_wrong_rows(const Problem& p, const Result<float>& result,
                                          const Result<double>& oracle) {
  std::vector<std::int64_t> wrong, some;
  if (result.O.size() != oracle.O.size()) return some;
  for (std::int64_t r = 0; r < p.batch * p.q_heads * p.Nq; ++r)
    if (!same_row(&result.O[r * p.d], &oracle.O[r * p.d], p.d, p.dtype)) wrong.push_back(r);
  constexpr std::int64_t most = 6;
  const std::int64_t count = std::ssize(wrong), tries = std::min(most, count);
  for (std::int64_t i = 0; i < tries; ++i)  // + i: not the same row of each head
    some.push_back(wrong[std::min(i * count / tries + i, count - 1)]);
  return some;
}

}  // namespace

std::string scores_in_place(const Inputs& inputs, const Result<float>& result,
                            const Result<double>& oracle) {
  const Problem& p = inputs.problem;
  const std::vector<std::int64_t> tried = some_wrong_rows(p, result, oracle);
  if (p.softcap == 0 || tried.empty()) return "";
  const double cap = p.softcap, log2_e = std::log2(std::exp(1.0));
  const std::pair<const char*, Score> guesses[] = {
      {"as if there were no softcap", [](double s) { return s; }},
      {"as if scores were cut off at the cap, without tanh",
       [=](double s) { return std::clamp(s, -cap, cap); }},
      {"as if scores above the cap were cut off, without tanh", [=](double s) { return std::min(s, cap); }},
      {"as if tanh(s / cap) were not multiplied by the cap", [=](double s) { return std::tanh(s / cap); }},
      {"as if s were not divided by the cap", [=](double s) { return cap * std::tanh(s); }},
      {"as if the power in tanh had no factor 2", [=](double s) { return cap * std::tanh(s / cap / 2); }},
      {"as if the power in tanh were one of 2, and not of e",
       [=](double s) { return cap * std::tanh(s / cap / log2_e); }},
      {"as if the factor log2(e) were in the power in tanh twice",
       [=](double s) { return cap * std::tanh(s / cap * log2_e); }},
      {"as if tanh were t / (t + 1)", [=](double s) { return cap * (1 + std::tanh(s / cap)) / 2; }},
      {"as if the softcap were applied twice",
       [=](double s) { return cap * std::tanh(std::tanh(s / cap)); }},
  };
  std::string best;
  double least = infinity;
  for (const auto& [words, score] : guesses) {
    double off = 0;
    for (const std::int64_t r : tried) {
      const std::int64_t kv = kv_of(p, r);
      const Prefixes sums(scores_of(inputs, r, kv, score), &inputs.V[first_key(p, kv)], p.d);
      const Keys keys = keys_of(p.keys(r % p.Nq));
      off += distance(&result.O[r * p.d], sums.O(keys, keys), p.dtype);
    }
    if (off >= least) continue;
    least = off;
    best = fmt::format("O is {}.", words);
  }
  return best;
}

std::string keys_in_place(const Inputs& inputs, const Result<float>& result, const Result<double>& oracle,
                          std::int64_t Bc) {
  const Problem& p = inputs.problem;
  const std::vector<std::int64_t> tried = some_wrong_rows(p, result, oracle);
  if (tried.empty()) return "";

  std::string of_first;
  const bool of_other_heads = std::ranges::all_of(tried, [&](std::int64_t r) {
    const std::string words = other_head(inputs, r, &result.O[r * p.d]);
    if (of_first.empty()) of_first = words;
    return !words.empty();
  });
  if (of_other_heads) return of_first;

  // The wrong keys may be missing in both sums, in P V or in l.
  constexpr const char* ways[] = {"", "; l is right, so that it is P V", "; P V is right, so that it is l"};
  const std::vector<Guess> all = guesses(p, Bc);
  std::vector<std::array<double, 3>> off(all.size(), {0, 0, 0});
  for (const std::int64_t r : tried) {
    const std::int64_t i = r % p.Nq, kv = kv_of(p, r);
    const Prefixes sums(scores_of(inputs, r, kv), &inputs.V[first_key(p, kv)], p.d);
    const Keys right = keys_of(p.keys(i));
    for (std::size_t g = 0; g < all.size(); ++g) {
      const Keys keys = all[g].keys(right.end, i);
      off[g][0] += distance(&result.O[r * p.d], sums.O(keys, keys), p.dtype);
      if (off[g][1] != infinity) off[g][1] += distance(&result.O[r * p.d], sums.O(keys, right), p.dtype);
      if (off[g][2] != infinity) off[g][2] += distance(&result.O[r * p.d], sums.O(right, keys), p.dtype);
    }
  }
  std::string best;
  double least = infinity;
  for (std::size_t g = 0; g < all.size(); ++g) {
    for (std::size_t way = 0; way < 3; ++way) {
      if (off[g][way] >= least) continue;
      least = off[g][way];
      best = fmt::format("O is {}{}.", all[g].words, ways[way]);
    }
  }
  return best;
}

}  // namespace flashladder::lab
