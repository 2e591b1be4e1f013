// Problem, dtypes, workspace and registry; the choice of a row in a table of tiles.
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>

#include "catch.hpp"
#include "common/attention/stage.hpp"
#include "common/attention/workspace.hpp"
#include "common/error.hpp"
#include "stages/29_tuned/table.hpp"
#include "stages/38_tuned_backward/table.hpp"
#include "stages/39_deterministic_backward/table.hpp"

namespace {

using namespace flashladder;

/// The sentence that `body` fails with, of the kind Wanted; fails the test where there is none.
template <class Wanted = UsageError, class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const Wanted& error) {
    return error.what();
  }
  FAIL("no error");
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

TEST_CASE("problems that make no sense are refused", "[attention]") {
  const auto error = [](auto change) {
    Problem p;
    change(p);
    return error_of([&] { p.validate(); });
  };
  CHECK(contains(error([](Problem& p) { p.batch = 0; }), "batch is 0"));
  CHECK(contains(error([](Problem& p) { p.q_heads = -2; }), "the number of query heads is -2: it must be"));
  CHECK(contains(error([](Problem& p) { p.Nq = 0; }), "Nq is 0"));
  CHECK(contains(error([](Problem& p) { p.Nk = -1; }), "Nk is -1"));
  CHECK(contains(error([](Problem& p) { p.d = 0; }), "d is 0"));
  CHECK(contains(error([](Problem& p) { p.d = 257; }), "from 1 to 256"));
  CHECK(contains(error([](Problem& p) { p.q_heads = 3, p.kv_heads = 2; }), "not a multiple"));
  CHECK(contains(error([](Problem& p) { p.scale = NAN; }), "scale"));
  CHECK(contains(error([](Problem& p) { p.Nq = std::int64_t{1} << 62; }), "64-bit"));
  CHECK_NOTHROW(Problem{}.validate());
}

TEST_CASE("the mask as a number of visible keys", "[attention]") {
  Problem p;
  p.Nq = 3;
  p.Nk = 5;
  CHECK(p.visible_keys(0) == 5);
  p.causal = true;
  CHECK(p.visible_keys(0) == 3);
  CHECK(p.visible_keys(2) == 5);
  CHECK(p.visible_pairs() == 12);
  std::swap(p.Nq, p.Nk);
  CHECK(p.visible_keys(0) == 0);
  CHECK(p.visible_keys(4) == 3);
  CHECK(p.visible_pairs() == 6);
}

TEST_CASE("the mask's intervals and tiles are those of its definition", "[attention]") {
  for (const bool causal : {false, true}) {
    for (const auto& [Nq, Nk] : {std::pair{1, 1}, {5, 5}, {3, 11}, {11, 3}, {1, 9}, {9, 1}, {13, 8}}) {
      const Mask<int> mask{Nq, Nk, causal};
      const auto sees = [&, Nq = Nq, Nk = Nk](int i, int j) {
        return j < Nk && (!causal || j <= i + Nk - Nq);
      };
      const auto holds = [](const Interval<int>& interval, int x) {
        return interval.first <= x && x < interval.end;
      };
      for (int i = 0; i < Nq; ++i) {
        for (int j = 0; j < Nk; ++j) {
          CHECK(holds(mask.keys(i), j) == sees(i, j));
          CHECK(holds(mask.rows(j), i) == sees(i, j));
        }
      }
      for (const int Br : {1, 2, 4}) {
        for (const int Bc : {1, 3, 4}) {
          for (int i0 = 0; i0 < Nq; i0 += Br) {
            const int rows = std::min(Br, Nq - i0);
            for (int tile = 0; tile * Bc < Nk; ++tile) {
              int seen = 0;
              for (int pair = 0; pair < rows * Bc; ++pair)
                seen += sees(i0 + pair / Bc, tile * Bc + pair % Bc);
              CHECK(holds(mask.live_tiles(i0, rows, Bc), tile) == (seen > 0));
              CHECK(holds(mask.whole_tiles(i0, rows, Bc), tile) == (seen == rows * Bc));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("rounding to 16 bits is to nearest, ties to even", "[attention]") {
  CHECK(round_to(Dtype::bf16, 1 + 0x1p-8f) == 1);
  CHECK(round_to(Dtype::bf16, 1 + 0x3p-8f) == 1 + 0x4p-8f);
  CHECK(round_to(Dtype::bf16, 1 + 0x1p-8f + 0x1p-20f) == 1 + 0x2p-8f);
  CHECK(round_to(Dtype::fp16, 1 + 0x1p-11f) == 1);
  CHECK(round_to(Dtype::fp16, 1 + 0x3p-11f) == 1 + 0x4p-11f);
  CHECK(round_to(Dtype::fp16, 65504) == 65504);
  CHECK(round_to(Dtype::fp16, 65519) == 65504);
  CHECK(round_to(Dtype::fp16, 65520) == std::numeric_limits<float>::infinity());
  CHECK(round_to(Dtype::fp16, -1e9f) == -std::numeric_limits<float>::infinity());
  CHECK(round_to(Dtype::fp16, 0x1p-24f) == 0x1p-24f);  // the smallest subnormal number
  CHECK(round_to(Dtype::fp16, 0x1p-25f) == 0);         // a tie: to even
  CHECK(round_to(Dtype::fp16, 0x3p-25f) == 0x1p-23f);
  CHECK(std::signbit(round_to(Dtype::fp16, -0.0f)));
  CHECK(std::isnan(round_to(Dtype::bf16, NAN)));
  CHECK(std::isnan(round_to(Dtype::fp16, NAN)));
  CHECK(round_to(Dtype::fp32, 0.1f) == 0.1f);
  CHECK(parse_dtype("bf16") == Dtype::bf16);
  CHECK(contains(error_of([] { parse_dtype("fp8"); }), "use fp32, fp16 or bf16"));
}

TEST_CASE("the workspace counts to the byte and refuses what does not fit", "[attention]") {
  Workspace workspace(1000);
  {
    auto a = workspace.array<float>(100);
    auto b = workspace.array<double>(50);
    CHECK(workspace.bytes_in_use() == 800);
    CHECK(reinterpret_cast<std::uintptr_t>(a.data()) % 64 == 0);
    const std::string error = error_of<OutOfMemory>([&] { workspace.array<float>(51); });
    CHECK(contains(error, "out of memory"));
    CHECK(workspace.bytes_in_use() == 800);
  }
  CHECK(workspace.bytes_in_use() == 0);
  CHECK(workspace.peak_bytes() == 800);
  workspace.poison = true;
  auto c = workspace.array<float>(2);
  CHECK((std::isnan(c[0]) && std::isnan(c[1])));
  CHECK(Workspace::available_memory() > 0);
  // More than the machine has: refused by the count, before anything is allocated.
  Workspace all;
  CHECK(contains(error_of<OutOfMemory>([&] { all.array<float>(std::int64_t{1} << 58); }), "out of memory"));
}

TEST_CASE("the registry follows from the folders", "[attention]") {
  std::set<std::string> folders, registered;
  for (const auto& entry : std::filesystem::directory_iterator(FLASHLADDER_SOURCE_DIR "/stages")) {
    if (entry.is_directory()) {
      folders.insert(entry.path().filename().string());
      CHECK(std::filesystem::exists(entry.path() / "README.md"));
    }
  }
  int last = -1;
  for (const Stage* stage : stages()) {
    std::string name = label(*stage);
    name[2] = '_';
    registered.insert(name);
    CHECK(stage->number > last);
    last = stage->number;
    CHECK((stage->forward != nullptr || stage->backward != nullptr));
    CHECK_FALSE(stage->title.empty());
    CHECK_FALSE(stage->idea.empty());
    CHECK_FALSE(stage->claim.empty());
    CHECK(find_stage(stage->before).number <= stage->number);
  }
  CHECK(folders == registered);
}

TEST_CASE("a GPU that does not run a stage is refused before any launch", "[attention]") {
  const auto a100 = [] { return std::string("NVIDIA A100"); };
  static bool launched = false;
  Stage stage = *select_stages("tensor_cores").front();
  stage.number = 49;
  stage.name = "probe";
  stage.backend = Backend::cuda;
  stage.forward = [](const Forward&) { launched = true; };
  for (int architecture : {80, 90, 100}) CHECK(wrong_gpu(stage, architecture, a100) == "");
  stage.gpu = Gpu::hopper;
  CHECK(wrong_gpu(stage, 90, a100) == "");
  CHECK(wrong_gpu(stage, 80, a100) ==
        "stage 49 probe needs a GPU of compute capability 9.0, and NVIDIA A100 has 8.0: use --backend "
        "emulator, which runs it on the CPU");
  for (int architecture : {89, 100, 120}) CHECK(wrong_gpu(stage, architecture, a100) != "");

  // The emulator, and a machine without a GPU, where a run ends with what is missing.
  Problem problem;
  problem.dtype = Dtype::bf16;
  Workspace workspace;
  const Forward call{.problem = problem, .workspace = workspace};
  CHECK(unavailable(stage, Backend::emulator) == "");
  if (const std::string why = unavailable(Backend::cuda); !why.empty()) {
    CHECK(unavailable(stage, Backend::cuda) == why);
    CHECK(gpu_stages().empty());
    CHECK(error_of<Error>([&] { run_forward(stage, call); }) == why);
    CHECK(!launched);
  }
  stage.backend = Backend::emulator;
  run_forward(stage, call);
  CHECK(launched);
}

TEST_CASE("stages are selected by numbers, names and ranges", "[attention]") {
  const auto numbers = [](const char* selection) {
    std::vector<int> result;
    for (const Stage* stage : select_stages(selection)) result.push_back(stage->number);
    return result;
  };
  CHECK(numbers("00-02") == std::vector<int>{0, 1, 2});
  CHECK(numbers("2,0") == std::vector<int>{0, 2});
  CHECK(numbers("01,00-01") == std::vector<int>{0, 1});
  for (const char* one : {"online_softmax_cpu", "01_online_softmax_cpu", "01 online_softmax_cpu",
                          "stages/01_online_softmax_cpu/", "1", "001"}) {
    CHECK(numbers(one) == std::vector<int>{1});
  }
  CHECK(numbers("online_softmax_cpu-02,naive_cpu") == std::vector<int>{0, 1, 2});
  for (const char* wrong : {"", "x", "0-", "-1", "1,,2", "0-1-2", " 1", "99999999999999", "/", "softmax",
                            "01_naive_cpu", "1x", "+1"}) {
    CHECK(contains(error_of([&] { select_stages(wrong); }), "does not exist: "));
  }
  CHECK(
      contains(error_of([] { select_stages("98"); }), "stage 98 does not exist: the stages are 00-02, 10"));
  CHECK(contains(error_of([] { select_stages("13-"); }), "stage '13-' does not exist"));
  CHECK(contains(error_of([] { select_stages("flash"); }), "stage 'flash' does not exist"));
  CHECK(contains(error_of([] { select_stages("00-98"); }), "stage 98 does not exist"));
  CHECK(contains(error_of([] { select_stages("00,02-01"); }), "'02-01' runs backwards: give 01-02"));
  CHECK(contains(error_of([] { find_stage(-1); }), "does not exist"));
}

/// The architectures whose rows of `table` are those of any GPU that runs machine code for `codes`.
template <class Row, int rows>
std::set<int> architectures_for(const Row (&table)[rows], std::initializer_list<int> codes) {
  std::set<int> chosen, left;
  for (const Row& row : table)
    (is_chosen_on_any(table, row, codes) ? chosen : left).insert(row.architecture);
  for (const int one : chosen) CHECK(!left.contains(one));  // all rows of it, or none
  return chosen;
}

TEST_CASE("a GPU runs machine code for its major version that is not newer", "[attention]") {
  const std::set<std::pair<int, int>> run = {{80, 80},   {80, 86},   {80, 89},  {86, 86},
                                             {86, 89},   {89, 89},   {90, 90},  {100, 100},
                                             {100, 103}, {103, 103}, {120, 120}};
  for (const int code : {80, 86, 89, 90, 100, 103, 120}) {
    for (const int gpu : {70, 80, 86, 89, 90, 100, 103, 120})
      CHECK(runs_code_for(code, gpu) == run.contains({code, gpu}));
  }
}

TEST_CASE("machine code needs the rows of the GPUs that run it, and no others", "[attention]") {
  const auto check = [](const auto& table) {
    using Set = std::set<int>;
    CHECK(architectures_for(table, {80}) == Set{80});
    CHECK(architectures_for(table, {89}) == Set{80});
    CHECK(architectures_for(table, {90}) == Set{90});
    CHECK(architectures_for(table, {100}) == Set{90});  // as long as it has none of its own
    CHECK(architectures_for(table, {120}) == Set{120});
    CHECK(architectures_for(table, {80, 90}) == Set{80, 90});
    CHECK(architectures_for(table, {70}) == Set{80});  // what is older than the table has its oldest
  };
  check(tiles_29::table);
  check(tiles_38::table);
  check(tiles_39::table);
  // Of a GPU newer than its code, too, whose row comes between.
  struct Tile {};
  static constexpr TileRow<Tile> table[] = {
      {80, Dtype::fp16, 64, false, {}}, {86, Dtype::fp16, 64, false, {}}, {90, Dtype::fp16, 64, false, {}}};
  CHECK(architectures_for(table, {80}) == std::set{80, 86});
  CHECK(architectures_for(table, {86}) == std::set{86});
  static_assert(!is_chosen_on_any(table, table[2], {80, 86}));
}

}  // namespace
