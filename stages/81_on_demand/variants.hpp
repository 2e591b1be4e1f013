#pragma once
// How stage 81 makes a policy of the variants that a call asks for. The stage includes their policy.hpp and
// launch.hpp before this file: a test of a wrong policy has another one in its place.
#include "common/error.hpp"
#include "common/kernel/host.hpp"

namespace flashladder::stage_81 {
namespace {

using stage_70::Plain, stage_72::SlidingWindow;

// The variants. Of each: whether a problem has it, and its policy on top of `base`.
struct OfPrefix {
  static bool is_asked(const Problem& p) { return p.prefix > 0; }
  static void on(const auto& f, const auto& base, auto body) { body(stage_73::prefix_of(f.problem, base)); }
};
struct OfBias {
  static bool is_asked(const Problem& p) { return p.has_bias(); }
  static void on(const auto& f, const auto& base, auto body) { stage_76::with_bias(f, base, body); }
};
struct OfSoftcap {
  static bool is_asked(const Problem& p) { return p.softcap != 0; }
  static void on(const auto& f, const auto& base, auto body) {
    body(stage_75::softcap_of(f.problem, base));
  }
};
struct OfAlibi {
  static bool is_asked(const Problem& p) { return p.alibi; }
  static void on(const auto& f, const auto& base, auto body) { stage_76::with_alibi(f, base, body); }
};
struct OfDropout {
  static bool is_asked(const Problem& p) { return p.dropout.p != 0; }
  static void on(const auto& f, const auto& base, auto body) { stage_78::with_dropout(f, base, body); }
};
struct OfBlockMap {
  static bool is_asked(const Problem& p) { return p.block_map.given(); }
  static void on(const auto& f, const auto& base, auto body) { stage_79::with_block_map(f, base, body); }
};
struct OfDocuments {
  static bool is_asked(const Problem& p) { return p.packing.sequences > 0; }
  static void on(const auto& f, const auto& base, auto body) { stage_74::with_documents(f, base, body); }
};
struct OfSinks {
  static bool is_asked(const Problem& p) { return p.sinks; }
  static void on(const auto& f, const auto& base, auto body) { stage_77::with_sinks(f, base, body); }
};

/// Whether a variant's policy goes on top of `Base`. Without a mask a prefix shows nothing more. Packed
/// sequences have neither a bias nor a block map, and what a bias hides is like a window: a row may see no
/// key of its first tile, and some later.
template <class Variant, class Base>
constexpr bool goes_on = true;
template <>
constexpr bool goes_on<OfPrefix, Plain<false>> = false;
template <class Base>
constexpr bool goes_on<OfDocuments, Base> = !Base::has_bias && !Base::skips_tiles;
template <class Base>
constexpr bool goes_on<OfBias, Base> = Base::begins_later;

/// Calls `body` with a policy: `base`, and on top of it, from the inside out, those of the variants that
/// the call asks for. Each set of variants is a type of its own.
template <class Variant, class... Others, class Call, class Base, class Body>
void with_asked(const Call& f, const Base& base, Body body) {
  const auto next = [&](const auto& policy) {
    if constexpr (sizeof...(Others) > 0) {
      with_asked<Others...>(f, policy, body);
    } else {
      body(policy);
    }
  };
  if (!Variant::is_asked(f.problem)) return next(base);
  if constexpr (goes_on<Variant, Base>) return Variant::on(f, base, next);
  throw Error("these variants of attention do not go together");  // Problem::validate has said so
}

/// The same on top of the policy of the call's mask. The softcap comes before ALiBi, as in flash-attention.
template <class... AtLast, class Call, class Body>
void with_policy(const Call& f, Body body) {
  const Problem& p = f.problem;
  const auto with = [&](const auto& mask) {
    with_asked<OfPrefix>(f, mask, [&](const auto& base) {
      with_asked<OfBias, OfSoftcap, OfAlibi, OfDropout, OfBlockMap, OfDocuments, AtLast...>(f, base, body);
    });
  };
  if (p.window.hides(p.causal) || p.has_bias()) return with(stage_72::window_of(p));
  if (p.causal) return with(Plain<true>());
  with(Plain<false>());
}

}  // namespace
}  // namespace flashladder::stage_81
