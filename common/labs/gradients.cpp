#include "common/labs/gradients.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "common/attention/dtype.hpp"
#include "common/labs/text.hpp"

namespace flashladder::lab {
namespace {

using Index = std::int64_t;

/// One of the three gradients.
struct Gradient {
  const char* name;
  std::vector<float> Gradients<float>::*got;
  std::vector<double> Gradients<double>::*right;
  bool of_keys;  ///< Else of rows.

  Index heads(const Problem& p) const { return of_keys ? p.kv_heads : p.q_heads; }
  Index rows(const Problem& p) const { return of_keys ? p.Nk : p.Nq; }
};
constexpr Gradient all_gradients[] = {{"dQ", &Gradients<float>::dQ, &Gradients<double>::dQ, false},
                                      {"dK", &Gradients<float>::dK, &Gradients<double>::dK, true},
                                      {"dV", &Gradients<float>::dV, &Gradients<double>::dV, true}};

/// The root of the mean square.
double size_of_all(const std::vector<double>& values) {
  const double sum = std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
  return std::sqrt(sum / static_cast<double>(std::max<std::size_t>(values.size(), 1)));
}

/// Far above the rounding of `dtype`, far below what a mistake does.
double rounding(Dtype dtype) {
  return 1e-3 + 8 * unit_roundoff(dtype);
}

/// Where a gradient is wrong.
struct Places {
  std::set<Index> columns, rows, heads, entries;
  bool any = false, nan = false;
};

Places places_of(const Problem& p, const Gradient& gradient, const std::vector<float>& got,
                 const std::vector<double>& right) {
  Places places;
  const double size = size_of_all(right);
  const Index rows = gradient.rows(p), heads = gradient.heads(p);
  for (Index e = 0; e < std::ssize(right); ++e) {
    if (std::abs(got[e] - right[e]) <= rounding(p.dtype) * (std::abs(right[e]) + size)) continue;
    places.any = true;
    places.nan = places.nan || std::isnan(got[e]);
    places.columns.insert(e % p.d);
    places.rows.insert(e / p.d % rows);
    places.heads.insert(e / p.d / rows % heads);
    places.entries.insert(e / p.d / rows / heads);
  }
  return places;
}

/// A row, a key, and what the definition has of them.
struct Pair {
  Index h, i, j;              ///< Query head of its batch entry, row, key.
  Index visible;              ///< Keys that the row sees.
  double S, dP;               ///< S is scaled.
  double L, D;                ///< Of the row,
  double before_L, before_D;  ///< and of the row before.
};

/// What a pair adds: P dO to dV, dS K to dQ, dS Q to dK.
struct Terms {
  double P = 0, dS = 0;
};

/// A mistake, in words that follow "dQ is as if", and what a pair adds then.
struct Mistake {
  std::string words;
  std::function<Terms(const Pair&)> terms;
};

class Guesses {
 public:
  Guesses(const Job& job, const ClaimedTile& tile) : job_(job), p_(job.inputs.problem), tile_(tile) {
    const Index rows = p_.batch * p_.q_heads * p_.Nq;
    S_.resize(rows * p_.Nk);
    dP_.resize(rows * p_.Nk);
    D_.resize(rows);
    for (Index r = 0; r < rows; ++r) {
      const float *const q = &job.inputs.Q[r * p_.d], *const dO = &job.given.dO[r * p_.d],
                         *const O = &job.given.forward.O[r * p_.d];
      for (Index c = 0; c < p_.d; ++c) D_[r] += double{dO[c]} * O[c];
      for (Index j = 0; j < p_.Nk; ++j) {
        const float *const k = &job.inputs.K[(first_key(r) + j) * p_.d],
                           *const v = &job.inputs.V[(first_key(r) + j) * p_.d];
        double S = 0, dP = 0;
        for (Index c = 0; c < p_.d; ++c) {
          S += double{q[c]} * k[c];
          dP += double{dO[c]} * v[c];
        }
        S_[r * p_.Nk + j] = S * p_.softmax_scale();
        dP_[r * p_.Nk + j] = dP;
      }
    }
  }

  /// One of the gradients with a mistake.
  std::vector<double> with(const Mistake& mistake, const Gradient& gradient) const {
    const Inputs& in = job_.inputs;
    const bool is_dV = gradient.name == std::string_view("dV");
    std::vector<double> result(p_.batch * gradient.heads(p_) * gradient.rows(p_) * p_.d);
    for (Index r = 0; r < p_.batch * p_.q_heads * p_.Nq; ++r) {
      const Index i = r % p_.Nq, before = i > 0 ? r - 1 : r;
      const std::vector<float>& L = job_.given.forward.L;
      for (Index j = 0; j < p_.Nk; ++j) {
        const Terms terms =
            mistake.terms({r / p_.Nq % p_.q_heads, i, j, p_.visible_keys(i), S_[r * p_.Nk + j],
                           dP_[r * p_.Nk + j], L[r], D_[r], L[before], D_[before]});
        const double factor = is_dV ? terms.P : terms.dS;
        if (factor == 0) continue;
        const Index key = first_key(r) + j;
        double* const to = &result[(gradient.of_keys ? key : r) * p_.d];
        const float* const from = !gradient.of_keys ? &in.K[key * p_.d]
                                  : is_dV           ? &job_.given.dO[r * p_.d]
                                                    : &in.Q[r * p_.d];
        for (Index c = 0; c < p_.d; ++c) to[c] += factor * from[c];
      }
    }
    return result;
  }

  /// The mistakes that are often made; the first of those that fit equally well is told.
  std::vector<Mistake> mistakes() const {
    const double scale = p_.softmax_scale();
    const auto terms = [scale](const Pair& x, double P, double D) {
      return Terms{P, scale * P * (x.dP - D)};
    };
    const auto right = [terms](const Pair& x) { return terms(x, std::exp(x.S - x.L), x.D); };
    std::vector<Mistake> all;
    const auto seen = [&](const std::string& words, auto of) {
      all.push_back({words, [of](const Pair& x) { return x.j < x.visible ? of(x) : Terms(); }});
    };
    const auto only = [&](const std::string& words, auto is_in) {
      all.push_back({words, [right, is_in](const Pair& x) { return is_in(x) ? right(x) : Terms(); }});
    };
    seen("if D were left out", [=](const Pair& x) { return terms(x, std::exp(x.S - x.L), 0); });
    seen("if D were added, and not subtracted",
         [=](const Pair& x) { return terms(x, std::exp(x.S - x.L), -x.D); });
    seen("if dP were left out", [=](const Pair& x) {
      const double P = std::exp(x.S - x.L);
      return Terms{P, -scale * P * x.D};
    });
    seen("if dS were dP - D, without P", [=](const Pair& x) {
      return Terms{std::exp(x.S - x.L), scale * (x.dP - x.D)};
    });
    seen("if P were multiplied a second time", [=](const Pair& x) {
      const double P = std::exp(x.S - x.L);
      return Terms{P * P, scale * P * P * (x.dP - x.D)};
    });
    seen("if D were that of the row before",
         [=](const Pair& x) { return terms(x, std::exp(x.S - x.L), x.before_D); });
    seen("if L, or m and l, were those of the row before",
         [=](const Pair& x) { return terms(x, std::exp(x.S - x.before_L), x.D); });
    seen("if P were 2^(S - L), without log2(e)",
         [=](const Pair& x) { return terms(x, std::exp2(x.S - x.L), x.D); });
    seen("if P were 2^(S log2(e) - L), L without log2(e)",
         [=](const Pair& x) { return terms(x, std::exp2(x.S * std::log2(std::exp(1.0)) - x.L), x.D); });
    seen("if S in the exponent were not scaled",
         [=](const Pair& x) { return terms(x, std::exp(x.S / scale - x.L), x.D); });
    if (p_.causal) {
      only("if there were no mask", [](const Pair&) { return true; });
      only("if the mask began at the top left corner, and not so that the last row sees all keys",
           [](const Pair& x) { return x.j <= x.i; });
    }
    const auto some = [](Index n, const char* one) {
      return n == 1 ? std::string(one) : fmt::format("{} {}s", n, one);
    };
    const std::set<Index> counts = {1, 2, 8, tile_.Bc};
    for (const Index n : counts) {
      if (p_.causal) {
        only(fmt::format("if a row saw {} more than the mask lets it", some(n, "key")),
             [n](const Pair& x) { return x.j < x.visible + n; });
      }
      only(fmt::format("if the last {} that a row sees were left out", some(n, "key")),
           [n](const Pair& x) { return x.j < x.visible - n; });
      only(fmt::format("if the first {} were left out", some(n, "key")),
           [n](const Pair& x) { return x.j < x.visible && x.j >= n; });
    }
    const Index Br = tile_.Br, Bc = tile_.Bc, Nq = p_.Nq, Nk = p_.Nk, group = p_.q_heads / p_.kv_heads;
    const auto visible = [&](const std::string& words, auto is_in) {
      only(words, [is_in](const Pair& x) { return x.j < x.visible && is_in(x); });
    };
    visible("if only the last tile of keys were in it",
            [=](const Pair& x) { return x.j / Bc == (Nk - 1) / Bc; });
    visible("if only the first tile of keys were in it", [=](const Pair& x) { return x.j < Bc; });
    visible("if the last tile of keys were left out",
            [=](const Pair& x) { return x.j / Bc != (Nk - 1) / Bc; });
    visible("if only the last tile of rows were in it",
            [=](const Pair& x) { return x.i / Br == (Nq - 1) / Br; });
    visible("if only the first tile of rows were in it", [=](const Pair& x) { return x.i < Br; });
    visible("if the last tile of rows were left out",
            [=](const Pair& x) { return x.i / Br != (Nq - 1) / Br; });
    visible("if the first tile of rows were left out", [=](const Pair& x) { return x.i >= Br; });
    visible("if the last row were left out", [=](const Pair& x) { return x.i != Nq - 1; });
    visible("if the rows of the last tile that is not whole were left out",
            [=](const Pair& x) { return x.i < Nq / Br * Br; });
    if (group > 1) {
      visible("if only the first query head of each group were in it",
              [=](const Pair& x) { return x.h % group == 0; });
      visible("if only the last query head of each group were in it",
              [=](const Pair& x) { return x.h % group == group - 1; });
    }
    return all;
  }

 private:
  /// Where the keys of a row begin, among those of all heads.
  Index first_key(Index r) const {
    const Index head = r / p_.Nq;
    return (head / p_.q_heads * p_.kv_heads + p_.kv_head(head % p_.q_heads)) * p_.Nk;
  }

  const Job& job_;
  const Problem& p_;
  const ClaimedTile& tile_;
  std::vector<double> S_, dP_, D_;
};

double distance(const std::vector<float>& a, const std::vector<double>& b, double factor = 1) {
  double sum = 0;
  for (std::size_t e = 0; e < a.size(); ++e) sum += (a[e] - factor * b[e]) * (a[e] - factor * b[e]);
  return std::sqrt(sum);
}

/// Whether `got` is `guess` up to rounding, and far nearer to it than to what is right.
bool fits(double off, double size_of_guess, double wrong, Dtype dtype) {
  return off <= 4 * rounding(dtype) * size_of_guess && off <= 0.2 * wrong;
}

double norm(const std::vector<double>& values) {
  return size_of_all(values) * std::sqrt(static_cast<double>(values.size()));
}

/// A gradient that is a multiple of the right one, in words that follow its name; "" where it is none.
std::string as_multiple(const Problem& p, const Gradient& gradient, const std::vector<float>& got,
                        const std::vector<double>& right, double wrong) {
  const double square = std::inner_product(right.begin(), right.end(), right.begin(), 0.0);
  const double factor = std::inner_product(got.begin(), got.end(), right.begin(), 0.0) / square;
  if (std::ranges::all_of(got, [](float x) { return x == 0; })) return "is 0 everywhere";
  if (!fits(distance(got, right, factor), std::abs(factor) * std::sqrt(square), wrong, p.dtype)) return "";
  const double scale = p.softmax_scale();
  const auto is = [&](double one) { return std::abs(factor / one - 1) < 4 * rounding(p.dtype); };
  if (is(-1)) return "has the wrong sign";
  const bool is_scaled = gradient.name != std::string_view("dV");
  if (is(1 / scale)) return is_scaled ? "is as if the scale were left out" : "is divided by the scale";
  if (is(scale))
    return is_scaled ? "is as if it were multiplied by the scale twice"
                     : "is as if it were multiplied by the scale, which is for dQ and dK";
  if (is(std::log2(std::exp(1.0)))) return "is log2(e) times what is right: a factor for powers of 2 alone";
  if (is(std::log(2.0))) return "is ln 2 times what is right: a factor for powers of 2 alone";
  return fmt::format("is {:.4g} times what is right", factor);
}

/// A gradient whose first wrong head has that of another head; "" where it has not.
std::string as_other_head(const Problem& p, const Gradient& gradient, const std::vector<float>& got,
                          const std::vector<double>& right, const Places& places) {
  const Index size = gradient.rows(p) * p.d, heads = p.batch * gradient.heads(p);
  const Index head = *places.entries.begin() * gradient.heads(p) + *places.heads.begin();
  const auto part = [&](const auto& values, Index of) {
    return std::vector(values.begin() + of * size, values.begin() + (of + 1) * size);
  };
  const std::vector<float> mine = part(got, head);
  const double wrong = distance(mine, part(right, head));
  for (Index other = 0; other < heads; ++other) {
    const std::vector<double> its = part(right, other);
    if (other == head || !fits(distance(mine, its), norm(its), wrong, p.dtype)) continue;
    return fmt::format("of head {} is what belongs to head {}{}", head % gradient.heads(p),
                       other % gradient.heads(p),
                       other / gradient.heads(p) == head / gradient.heads(p)
                           ? ""
                           : fmt::format(" of batch entry {}", other / gradient.heads(p)));
  }
  return "";
}

bool have_sizes(const Gradients<float>& got, const Gradients<double>& oracle) {
  return std::ranges::all_of(all_gradients, [&](const Gradient& one) {
    return (got.*one.got).size() == (oracle.*one.right).size();
  });
}

}  // namespace

std::string gradients_wrong(const Job& job, const Gradients<float>& got, const Gradients<double>& oracle) {
  if (!have_sizes(got, oracle)) return "";
  const Problem& p = job.inputs.problem;
  std::vector<std::string> right;
  std::string text;
  bool nan = false;
  for (const Gradient& one : all_gradients) {
    const Places places = places_of(p, one, got.*one.got, oracle.*one.right);
    if (!places.any) {
      right.emplace_back(one.name);
      continue;
    }
    nan = nan || places.nan;
    std::string only;
    for (const std::string& words :
         {numbers_in_words("column", places.columns, p.d),
          numbers_in_words(one.of_keys ? "key" : "row", places.rows, one.rows(p)),
          numbers_in_words("head", places.heads, one.heads(p)),
          numbers_in_words("batch entry", places.entries, p.batch)})
      only += words.empty() || only.empty() ? words : ", " + words;
    text += only.empty() ? fmt::format(" All of {} is wrong.", one.name)
                         : fmt::format(" Wrong in {}: {} only.", one.name, only);
  }
  if (text.empty()) return "";
  if (nan) {
    text +=
        " NaN comes from what was never written, from e^(-infinity + infinity), for which finite() is "
        "there, from a division by 0, or from 0 * infinity.";
  }
  if (right.empty()) return text.substr(1);
  return listed(right) + (right.size() == 1 ? " is" : " are") + " right." + text;
}

std::string gradient_mistake(const Job& job, const Gradients<float>& got, const Gradients<double>& oracle,
                             const ClaimedTile& tile) {
  if (!have_sizes(got, oracle)) return "";
  const Problem& p = job.inputs.problem;
  std::optional<Guesses> guesses;
  std::vector<std::pair<std::string, std::vector<std::string>>> told;  // words, and of which gradients
  for (const Gradient& one : all_gradients) {
    const std::vector<float>& mine = got.*one.got;
    const std::vector<double>& right = oracle.*one.right;
    const Places places = places_of(p, one, mine, right);
    const double wrong = distance(mine, right);
    if (!places.any || !std::isfinite(wrong)) continue;
    std::string words = as_multiple(p, one, mine, right, wrong);
    if (words.empty()) words = as_other_head(p, one, mine, right, places);
    if (words.empty()) {
      if (!guesses) guesses.emplace(job, tile);
      double least = INFINITY;
      for (const Mistake& mistake : guesses->mistakes()) {
        const std::vector<double> guess = guesses->with(mistake, one);
        const double off = distance(mine, guess);
        if (!fits(off, norm(guess), wrong, p.dtype) || off >= 0.99 * least) continue;
        least = off;
        words = "is as " + mistake.words;
      }
    }
    if (words.empty()) continue;
    const auto found = std::ranges::find(told, words, &decltype(told)::value_type::first);
    if (found == told.end()) {
      told.push_back({words, {one.name}});
    } else {
      found->second.emplace_back(one.name);
    }
  }
  std::string text;
  for (const auto& [words, names] : told) {
    text += fmt::format("{}{} {}.", text.empty() ? "" : " ", listed(names),
                        names.size() > 1 && words.starts_with("is ")    ? "are " + words.substr(3)
                        : names.size() > 1 && words.starts_with("has ") ? "have " + words.substr(4)
                                                                        : words);
  }
  return text;
}

}  // namespace flashladder::lab
