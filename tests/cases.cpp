#include "cases.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <span>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <utility>

#include "common/claims/closed_form.hpp"

namespace flashladder {
namespace {

struct Shape {
  std::int64_t Nq, Nk;
};
struct Heads {
  std::int64_t q, kv;
};

/// No multiple of any tile, both sides of the usual tile edges, more queries than keys and the reverse.
/// Each with both masks and all families.
constexpr Shape shapes[] = {{1, 1},     {15, 15}, {17, 17}, {63, 63},  {65, 65},  {129, 129}, {1, 339},
                            {113, 203}, {239, 1}, {799, 3}, {64, 128}, {129, 65}, {256, 256}, {40, 1000}};
/// Each with both masks and one family. Keys that fill their tiles against one row, and rows that do
/// against a part of a tile; and the others of FlashAttention's own tests, up to 640 rows.
constexpr Shape more_shapes[] = {{1, 128},   {128, 7},   {17, 256},  {128, 192}, {113, 128}, {128, 217},
                                 {113, 211}, {108, 256}, {256, 512}, {384, 256}, {640, 128}, {512, 256}};
/// Long ones, of which one side is short: each with both masks and three families.
constexpr Shape long_shapes[] = {{32, 2300}, {2100, 40}};

/// Plain, in pairs, in threes, and all query heads with one key/value head.
constexpr Heads all_heads[] = {{2, 2}, {4, 2},  {3, 1},   {6, 2},  {8, 8}, {12, 6},
                               {9, 3}, {18, 6}, {17, 17}, {18, 9}, {7, 1}, {20, 1}};
/// None, and narrower and wider than a tile on each side; for the stages that take one.
constexpr Window windows[] = {{}, {3, -1}, {-1, 5}, {40, 40}, {64, 0}, {0, 70}, {150, -1}, {-1, 130}};
/// None, the usual one, and one that nearly all scores reach.
constexpr float softcaps[] = {0, 30, 1};
/// None, within a tile, and some tiles.
constexpr std::int64_t prefixes[] = {0, 5, 100};
/// None, the usual one, and half of all, by a seed that kernels read from memory.
constexpr Dropout dropouts[] = {
    {}, {0.1f, 7}, {0.5f, (std::uint64_t{1} << 40) + 9, /*seed_in_memory=*/true}};
constexpr Packed packings[] = {Packed::none, Packed::several, Packed::with_empty, Packed::partly_used};
constexpr float scales[] = {0, 0.3f, -0.2f};
constexpr std::int64_t head_dims[] = {64, 1, 32, 128, 8, 40, 59, 80, 96, 111, 160, 192, 224, 256};

#ifdef FLASHLADDER_SANITIZED
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

/// Large: its scores are many, and heads and batch entries few.
bool is_large(const Problem& p) {
  return p.Nq * p.Nk >= 20000;
}

/// The mask, the family, the shape, the head dimension and the dtype of each case; the rest is to be
/// chosen.
///
/// Where sanitizers watch the memory, one family for all: the same memory is used whatever the numbers are.
std::vector<Case> begin_cases(const Support& supports, Pass pass) {
  const std::span<const std::int64_t> dims =
      supports.head_dims.empty() ? std::span<const std::int64_t>(head_dims) : supports.head_dims;
  const auto& dtypes = supports.dtypes;
  const std::size_t families = input_families().size();
  std::vector<Case> cases;
  std::size_t place = 0;
  const auto add = [&](const Shape& shape, bool causal, std::size_t family) {
    // Any two of shape, mask and family meet each head dimension and dtype in turn.
    if (causal && !supports.features.causal) return;
    const std::size_t turn = 11 * place + (causal ? 7 : 0) + 3 * family;
    Case one{};
    one.family = family;
    Problem& p = one.problem;
    p.Nq = shape.Nq;
    p.Nk = shape.Nk;
    p.causal = causal;
    p.d = dims[turn % dims.size()];
    p.dtype = dtypes[turn / dims.size() % dtypes.size()];
    // Backward, D equals dP to the last bit in a plain computation where d = 1, and not in one that fuses:
    // no yardstick. And long rows are tried with short heads.
    if (pass == Pass::backward && p.d == 1) p.d = 2;
    if (std::max(p.Nq, p.Nk) >= 2000 || (pass == Pass::backward && p.d > 64 && is_large(p)))
      p.d = *std::ranges::min_element(dims, {}, [](std::int64_t d) { return d < 32 ? 1000 : d; });
    cases.push_back(one);
  };
  for (const Shape& shape : shapes) {
    for (bool causal : {false, true}) {
      for (std::size_t family = 0; family < families; ++family) {
        if (!sanitized || family == (place + causal) % families) add(shape, causal, family);
      }
    }
    ++place;
  }
  for (const Shape& shape : more_shapes) {
    for (bool causal : {false, true}) add(shape, causal, (place + causal) % families);
    ++place;
  }
  // What is normal shows a part that is left out, large scores a maximum over a part of the keys; the last
  // family looks for single keys.
  for (const Shape& shape : long_shapes) {
    for (bool causal : {false, true}) {
      for (std::size_t family = 0; family < families; ++family) {
        const std::string_view name = input_families()[family].name;
        if (name == "zero_mean" || name == "large_scores" || name == "needle") add(shape, causal, family);
      }
    }
    ++place;
  }
  return cases;
}

/// Adds all ways to choose heads, batch, layout and scale for a case, of those that a stage takes.
void add_choices(const Case& begun, const Support& supports, std::vector<Case>& all) {
  const Problem& p = begun.problem;
  const bool is_packed = p.packing.sequences > 0;
  const std::int64_t scores = p.window.hides(p.causal) || p.prefix > 0 || is_packed
                                  ? std::max<std::int64_t>(p.visible_pairs(), 1)
                                  : p.Nq * p.Nk;
  for (const Heads& one : all_heads) {
    // Small problems in large numbers: on a handful of rows, or of scores, the yardstick is a matter of
    // luck.
    const std::int64_t rows = one.q * begun.problem.Nq;
    const std::int64_t least =
        std::max<std::int64_t>({1, (47 + rows) / rows, (255 + one.q * scores) / (one.q * scores)});
    for (const std::int64_t batch : {least, least + 1}) {
      // A single batch entry holds them all. And a handful of keys is no yardstick for dK and dV.
      if (is_packed && (batch > 1 || one.kv * p.Nk < 12)) continue;
      const std::int64_t heads_in_all = batch * one.q;
      if (is_large(begun.problem) ? heads_in_all > 6 : batch > least && heads_in_all * scores > 60'000)
        continue;
      if (!is_large(begun.problem) && heads_in_all * scores > 120'000 && one.q > 3) continue;
      for (const Layout layout : all_layouts) {
        for (const float scale : scales) {
          Case choice = begun;
          choice.layout = layout;
          choice.problem.q_heads = one.q;
          choice.problem.kv_heads = one.kv;
          choice.problem.batch = batch;
          if (choice.problem.has_bias()) {  // of each head, or of all of them; of each batch entry, too
            if (choice.problem.bias_rows > 1) choice.problem.bias_heads = one.q;
            if (layout == Layout::contiguous) choice.problem.bias_batch = batch;
          }
          if (p.block_map.given()) {
            const bool of_heads = p.block_map.heads > 1;
            choice.problem.block_map =
                random_block_map(choice.problem, layout == Layout::contiguous ? batch : 1,
                                 of_heads ? one.q : 1, 0.6, p.Nq + p.Nk);
          }
          choice.problem.scale = scale;
          if (!supports.takes(choice.problem)) continue;
          if (layout != Layout::contiguous && !supports.features.strides) continue;
          all.push_back(choice);
        }
      }
    }
  }
}

/// A problem with each of the variants that a stage takes, and with all of them that go together.
std::vector<Problem> variants_of(const Problem& plain, const Support& supports) {
  std::vector<Problem> all = {plain};
  // Of each problem so far one with each value, where that is taken and has a meaning.
  const auto vary = [&](const auto& values, auto set) {
    std::vector<Problem> varied;
    for (const Problem& p : all) {
      for (const auto& value : values) {
        Problem variant = p;
        set(variant, value);
        const bool together =
            !(variant.prefix > 0 && variant.window.hides(true)) &&
            !((variant.has_bias() || variant.block_map.given()) && variant.packing.sequences > 0);
        if (supports.takes(variant) && together) varied.push_back(variant);
      }
    }
    all = varied;
  };
  vary(windows, [](Problem& p, const Window& window) { p.window = window; });
  vary(softcaps, [](Problem& p, float softcap) { p.softcap = softcap; });
  vary(prefixes, [](Problem& p, std::int64_t prefix) { p.prefix = p.causal ? prefix : 0; });
  vary(std::array{false, true}, [](Problem& p, bool alibi) { p.alibi = alibi; });
  // Of all rows and of one for all of them; the batch's and heads' sizes are chosen later.
  vary(std::array<std::int64_t, 3>{0, plain.Nq, 1}, [](Problem& p, std::int64_t rows) {
    p.bias_batch = p.bias_heads = rows > 0 ? 1 : 0;
    p.bias_rows = rows;
  });
  vary(std::array{false, true}, [](Problem& p, bool sinks) { p.sinks = sinks; });
  vary(dropouts, [](Problem& p, const Dropout& dropout) { p.dropout = dropout; });
  // One for all heads, and one for each; its numbers are chosen later.
  vary(std::array{0, 1, 2}, [](Problem& p, int maps) {
    if (maps > 0) p.block_map = {.batch = 1, .heads = maps};
  });
  vary(packings, [](Problem& p, Packed how) { p.packing = packing_of(p, how); });
  // A stage that takes them all has more than a thousand: of these some, others for each problem.
  constexpr std::size_t most = 64;
  if (all.size() <= most) return all;
  std::vector<Problem> some;
  const std::size_t step = all.size() / most | 1,
                    from = static_cast<std::size_t>(31 * plain.Nq + 7 * plain.Nk + plain.d);
  for (std::size_t i = 0; i < most; ++i) some.push_back(all[(from + i * step) % all.size()]);
  return some;
}

/// All ways to choose the variant, heads, batch, layout and scale for a case, of those that a stage takes.
std::vector<Case> choices(const Case& begun, const Support& supports, Pass pass) {
  // Far above the cap the slope is 0, and a gradient of zeros judges nothing. Nor does one of needles under
  // dropout: where P is nearly 1, dS is the small difference of dP, which is made larger, and a rounded D.
  const std::string_view name = input_families()[begun.family].name;
  const bool no_slope = pass == Pass::backward && (name == "large_scores" || name == "very_negative");
  const bool no_difference = pass == Pass::backward && name == "needle";
  std::vector<Case> all;
  for (const Problem& p : variants_of(begun.problem, supports)) {
    Case variant = begun;
    variant.problem = p;
    const bool no_gradient = pass == Pass::backward && p.packing.partly_used;
    if (!(p.softcap != 0 && no_slope) && !(p.dropout.p != 0 && no_difference) && !no_gradient)
      add_choices(variant, supports, all);
  }
  return all;
}

/// Two traits and their levels.
using Pair = std::array<int, 4>;

template <class F>
void for_each_pair(const Levels& levels, F f) {
  for (int a = 0; a < traits; ++a) {
    for (int b = a + 1; b < traits; ++b) f(Pair{a, b, levels[a], levels[b]});
  }
}

/// How many have a pair, of each pair. (A map would take minutes: there are hundreds of millions to count.)
class Counts {
 public:
  int& operator[](const Pair& pair) { return counts_[place(pair)]; }
  int operator[](const Pair& pair) const { return counts_[place(pair)]; }
  /// Calls f with each pair that some have, and how many.
  template <class F>
  void for_each(F f) const {
    for (int a = 0; a < traits; ++a) {
      for (int b = a + 1; b < traits; ++b) {
        for (int level = 0; level < most_levels * most_levels; ++level) {
          const Pair pair{a, b, level / most_levels, level % most_levels};
          if (const int count = (*this)[pair]; count > 0) f(pair, count);
        }
      }
    }
  }

 private:
  static constexpr int most_levels = 8;
  static std::size_t place(const Pair& pair) {
    if (pair[2] >= most_levels || pair[3] >= most_levels) throw std::out_of_range("more levels than 8");
    return ((static_cast<std::size_t>(pair[0]) * traits + pair[1]) * most_levels + pair[2]) * most_levels +
           pair[3];
  }
  std::vector<int> counts_ = std::vector<int>(traits * traits * most_levels * most_levels);
};

/// Whether a trait has several levels among all pairs. Who has but one meets all others by itself: it is
/// not to weigh in, so that a trait which only some stages have changes nothing for the others.
std::array<bool, traits> varied_traits(const Counts& possible) {
  std::array<int, traits> level{};
  level.fill(-1);
  std::array<bool, traits> varied{};
  possible.for_each([&](const Pair& pair, int) {
    for (const int side : {0, 1}) {
      int& known = level[pair[side]];
      varied[pair[side]] = varied[pair[side]] || (known >= 0 && known != pair[2 + side]);
      known = pair[2 + side];
    }
  });
  return varied;
}

/// How many of the choices have a pair.
Counts possible_pairs(const std::vector<Case>& begun, const Support& supports, Pass pass) {
  Counts possible;
  for (const Case& one : begun) {
    for (const Case& choice : choices(one, supports, pass))
      for_each_pair(choice.levels(), [&](const Pair& pair) { ++possible[pair]; });
  }
  return possible;
}

/// Of more key/value heads in all than any stage makes blocks to divide its work among: 256.
Case of_many_heads(const Case& begun) {
  Case many = begun;
  many.problem = {.batch = 3, .q_heads = 86, .kv_heads = 86, .Nq = 9, .Nk = 9};
  many.problem.d = begun.problem.d < 32 ? 32 : begun.problem.d;
  many.problem.dtype = begun.problem.dtype;
  many.layout = Layout::contiguous;
  return many;
}

/// The cases of a pass, and how many choices have each pair.
struct Made {
  Counts possible;
  std::vector<Case> cases;

  Made(const Support& supports, Pass pass) : cases(begin_cases(supports, pass)) {
    possible = possible_pairs(cases, supports, pass);
    // Greedily: of each case the choice with the most pairs that no case has yet, the rarest first.
    const std::array<bool, traits> varied = varied_traits(possible);
    Counts met;
    std::size_t turn = 0;
    for (Case& one : cases) {
      const std::vector<Case> all = choices(one, supports, pass);
      double most = -1;
      for (std::size_t i = 0; i < all.size(); ++i) {
        const Case& choice = all[(i + 7 * turn) % all.size()];  // of equals another one each time
        double gain = 0;
        for_each_pair(choice.levels(), [&](const Pair& pair) {
          if (met[pair] == 0 && varied[pair[0]] && varied[pair[1]]) gain += 1.0 / possible[pair];
        });
        if (gain <= most) continue;
        most = gain;
        one = choice;
      }
      for_each_pair(one.levels(), [&](const Pair& pair) { ++met[pair]; });
      ++turn;
    }
    cases.push_back(of_many_heads(cases.front()));
  }
};

/// Made once for all stages that take the same: it takes up to seconds.
const Made& made(const Support& supports, Pass pass) {
  static_assert(std::has_unique_object_representations_v<Features>);
  using Key =
      std::tuple<Pass, std::vector<Dtype>, std::vector<std::int64_t>, std::array<char, sizeof(Features)>>;
  static std::map<Key, Made> all;
  const Key key{pass,
                {supports.dtypes.begin(), supports.dtypes.end()},
                {supports.head_dims.begin(), supports.head_dims.end()},
                std::bit_cast<std::array<char, sizeof(Features)>>(supports.features)};
  const auto known = all.find(key);
  return known != all.end() ? known->second : all.emplace(key, Made(supports, pass)).first->second;
}

}  // namespace

const TraitText& text_of(Trait trait) {
  static const TraitText all[traits] = {
      {"rows", {"1", "in whole tiles (a multiple of 64)", "others"}},
      {"keys", {"up to 17", "in whole tiles (a multiple of 128)", "others"}},
      {"mask", {"none", "causal"}},
      {"window", {"none", "left", "right", "both sides"}},
      {"softcap", {"none", "30", "1"}},
      {"prefix", {"none", "5", "100"}},
      {"alibi", {"without", "with"}},
      {"bias", {"none", "of each row", "of all rows"}},
      {"sinks", {"without", "with"}},
      {"dropout", {"none", "0.1", "0.5"}},
      {"packed sequences", {"none", "several", "with empty ones", "partly used"}},
      {"block map", {"none", "of all heads", "of each head"}},
      {"family", {"each of the families"}},
      {"group", {"1", "2", "3", "all heads with one key/value head"}},
      {"heads", {"up to 4", "up to 16", "more"}},
      {"batch", {"1", "more"}},
      {"layout", {"each of the layouts"}},
      {"scale", {"1 / sqrt(d)", "0.3", "-0.2"}},
      {"dtype", {"each that the stage takes"}},
      {"head_dim", {"up to 32", "up to 64", "up to 128", "more"}},
  };
  return all[trait];
}

Levels Case::levels() const {
  const Problem& p = problem;
  Levels levels{};
  levels[rows] = p.Nq == 1 ? 0 : p.Nq % 64 == 0 ? 1 : 2;
  levels[keys] = p.Nk <= 17 ? 0 : p.Nk % 128 == 0 ? 1 : 2;
  levels[mask] = p.causal ? 1 : 0;
  levels[Trait::window] = (p.window.left >= 0 ? 1 : 0) + (p.window.right >= 0 && !p.causal ? 2 : 0);
  levels[Trait::softcap] = p.softcap == 0 ? 0 : p.softcap == 30 ? 1 : 2;
  levels[Trait::prefix] = p.prefix == 0 ? 0 : p.prefix == 5 ? 1 : 2;
  levels[Trait::alibi] = p.alibi ? 1 : 0;
  levels[Trait::bias] = !p.has_bias() ? 0 : p.bias_rows == p.Nq ? 1 : 2;
  levels[Trait::sinks] = p.sinks ? 1 : 0;
  levels[Trait::dropout] = p.dropout.p == 0 ? 0 : p.dropout.p < 0.3f ? 1 : 2;
  levels[Trait::packing] = static_cast<int>(p.packing.sequences == 0   ? Packed::none
                                            : p.packing.partly_used    ? Packed::partly_used
                                            : p.packing.sequences == 3 ? Packed::several
                                                                       : Packed::with_empty);
  levels[Trait::block_map] = !p.block_map.given() ? 0 : p.block_map.heads == 1 ? 1 : 2;
  levels[Trait::family] = static_cast<int>(family);
  levels[group] = p.kv_heads == 1 ? 3 : static_cast<int>(p.q_heads / p.kv_heads) - 1;
  levels[heads] = p.q_heads <= 4 ? 0 : p.q_heads <= 16 ? 1 : 2;
  levels[batch] = p.batch == 1 ? 0 : 1;
  levels[Trait::layout] = static_cast<int>(layout);
  levels[scale] = p.scale == 0 ? 0 : p.scale > 0 ? 1 : 2;
  levels[dtype] = static_cast<int>(p.dtype);
  levels[head_dim] = p.d <= 32 ? 0 : p.d <= 64 ? 1 : p.d <= 128 ? 2 : 3;
  return levels;
}

Inputs Case::inputs(std::uint64_t seed) const {
  return make_inputs(input_families()[family], problem, seed);
}

std::string Case::text() const {
  std::string text = to_string(problem) + ", " + std::string(input_families()[family].name) + ", " +
                     std::string(to_string(layout));
  if (problem.scale != 0) text += ", scale " + std::to_string(problem.scale);
  return text;
}

Packing packing_of(const Problem& p, Packed how) {
  // Of so many parts of all rows, or keys.
  const auto begins = [](std::int64_t length, std::vector<std::int64_t> eighths) {
    std::vector<int> all;
    for (const std::int64_t part : eighths) all.push_back(static_cast<int>(length * part / 8));
    return all;
  };
  if (how == Packed::none) return {};
  if (how == Packed::with_empty)
    return Packing::of(begins(p.Nq, {0, 0, 3, 3, 7, 8}), begins(p.Nk, {0, 2, 5, 5, 8, 8}));
  const std::vector<int> keys = begins(p.Nk, {0, 2, 5, 8});
  if (how == Packed::several) return Packing::of(begins(p.Nq, {0, 2, 5, 8}), keys);
  return Packing::of(begins(p.Nq, {0, 2, 5, 8}), keys, {2 * keys[1] / 3, 0, keys[3] - keys[2]});
}

bool blocks_stay(const Stage& stage) {
  Problem many;  // tiles of rows, and of keys: a head has one
  many.q_heads = many.kv_heads = 99;
  many.Nq = many.Nk = 1;
  many.d = 64;
  // Backward other kernels have blocks, too; where blocks stay, one thread of each brings tiles.
  for (const auto& [pass, counter] :
       {std::pair(Pass::forward, "blocks"), {Pass::backward, "copying_threads"}}) {
    const ClosedForm* form = claim_of(stage)->of(pass).find(counter);
    if (form != nullptr && form->value(claim_of(stage)->symbols(many, pass)) < many.q_heads) return true;
  }
  return false;
}

const std::vector<Case>& make_cases(const Stage& stage, Pass pass) {
  return made(stage.supports, pass).cases;
}

std::array<std::array<Coverage, traits>, traits> coverage_of(const Stage& stage, Pass pass) {
  const Made& of = made(stage.supports, pass);
  Counts met;
  for (const Case& one : of.cases) for_each_pair(one.levels(), [&](const Pair& pair) { ++met[pair]; });
  std::array<std::array<Coverage, traits>, traits> all{};
  for (auto& row : all) row.fill({.fewest = 1 << 30});
  of.possible.for_each([&](const Pair& pair, int) {
    Coverage& here = all[pair[0]][pair[1]];
    here.fewest = std::min(here.fewest, met[pair]);
    here.missing += met[pair] == 0 ? 1 : 0;
  });
  return all;
}

}  // namespace flashladder
