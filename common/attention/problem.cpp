#include "common/attention/problem.hpp"

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

}  // namespace

float Problem::softmax_scale() const {
  return scale != 0 ? scale : 1.0f / std::sqrt(static_cast<float>(d));
}

std::int64_t Problem::visible_pairs() const {
  std::int64_t pairs = 0;
  for (std::int64_t i = 0; i < Nq; ++i) pairs += mask().keys(i).size();
  return pairs;
}

double Problem::forward_flops() const {
  if (window.hides(causal) || prefix > 0)
    return 4.0 * static_cast<double>(batch * q_heads * d) * static_cast<double>(visible_pairs());
  const double all = 4.0 * static_cast<double>(batch * q_heads) * static_cast<double>(Nq) *
                     static_cast<double>(Nk) * static_cast<double>(d);
  return causal ? all / 2 : all;
}

void Problem::validate() const {
  const struct {
    const char* name;
    std::int64_t value;
  } sizes[] = {{"batch", batch},        {"query heads", q_heads}, {"key/value heads", kv_heads},
               {"query length Nq", Nq}, {"key length Nk", Nk},    {"head dimension d", d}};
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
  if (prefix < 0) {
    throw UsageError("the prefix is " + std::to_string(prefix) +
                     ": give how many keys all rows see, or 0 for none");
  }
  if (prefix > 0 && !causal)
    throw UsageError("a prefix makes rows see more than the causal mask lets them: ask for that mask, too");
  if (prefix > 0 && window.hides(causal))
    throw UsageError(
        "a prefix and a window do not go together: a row would see two separate parts of the keys");
  if (!(dropout.p >= 0 && dropout.p < 1) || dropout.kept() == 0) {
    throw UsageError("the dropout is " + in_words(dropout.p) +
                     ": give the share of probabilities to leave out, from 0 to 0.99");
  }
  if (!std::isfinite(scale)) throw UsageError("the scale is not a finite number");
  const auto elements = [](auto... factors) { return (static_cast<double>(factors) * ...); };
  const double most = static_cast<double>(std::numeric_limits<std::int64_t>::max()) / 64;
  if (elements(batch, q_heads, Nq, d) > most || elements(batch, kv_heads, Nk, d) > most) {
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
  if (p.sinks) text += " sinks";
  if (p.dropout.p != 0) text += " dropout=" + in_words(p.dropout.p);
  return text + " " + std::string(to_string(p.dtype));
}

}  // namespace flashladder
