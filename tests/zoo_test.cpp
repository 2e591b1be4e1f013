// The bug zoo: every kernel that is wrong ends in the one report that names its mistake, its line and its
// buffer, under every schedule; and its right twin passes.
#include <sys/mman.h>

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "catch.hpp"
#include "zoo/bugs.hpp"
#include "zoo/cluster_bugs.hpp"
#include "zoo/wgmma_bugs.hpp"

namespace {

using namespace flashladder;
using simt::ErrorKind;
using simt::KernelError;
using simt::Schedule;

/// The line of bugs.hpp, or of one of the files beside it, that ends in a comment; 0 when there is none.
unsigned line_with(const std::string& comment) {
  for (const char* name : {"bugs.hpp", "cluster_bugs.hpp", "wgmma_bugs.hpp"}) {
    std::ifstream file(FLASHLADDER_SOURCE_DIR "/tests/zoo/" + std::string(name));
    unsigned number = 0;
    for (std::string line; std::getline(file, line);) {
      ++number;
      if (line.size() > comment.size() && line.ends_with("// " + comment)) return number;
    }
  }
  return 0;
}

/// Buffers that most specimens need, of known contents.
struct Buffers {
  Buffers() : a("a", 512), b("b", 512), halves("halves", 512) {
    const std::vector<float> ones(512, 1.f);
    a.upload(ones.data());
    b.upload(ones.data());
    halves.fill_zero();
  }
  DeviceBuffer<f32> a;
  DeviceBuffer<f32> b;
  DeviceBuffer<bf16> halves;
};

/// Address space that is only touched where the kernel writes.
struct Reserved {
  explicit Reserved(std::size_t size)
      : bytes(size),
        data(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                  0)) {}
  ~Reserved() {
    if (data != MAP_FAILED) munmap(data, bytes);
  }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  std::size_t bytes;
  void* data;
};

struct Specimen {
  std::string name;
  ErrorKind kind;
  std::string buffer;
  std::function<void()> wrong;
  std::function<void()> right;
  bool check = true;  ///< Options::check
};

/// A specimen: its wrong kernel, and its right one, on `x`, which is made anew for each.
#define ON(kernel, blocks, threads, shared_bytes, ...)                                              \
  [] {                                                                                              \
    Buffers x;                                                                                      \
    launch(#kernel, zoo::kernel<false>, dim3(blocks), dim3(threads), shared_bytes, __VA_ARGS__);    \
  },                                                                                                \
      [] {                                                                                          \
        Buffers x;                                                                                  \
        launch(#kernel, zoo::kernel<true>, dim3(blocks), dim3(threads), shared_bytes, __VA_ARGS__); \
      }
/// One whose kernel takes Buffers::a, or a and b.
#define ON_A(kernel, blocks, threads, ...) ON(kernel, blocks, threads, 0, x.a __VA_OPT__(, ) __VA_ARGS__)
#define ON_AB(kernel, blocks, threads, ...) ON_A(kernel, blocks, threads, x.b __VA_OPT__(, ) __VA_ARGS__)

/// One that is launched by launch_dependent() behind kernel_before, both with a and b.
#define BEHIND_A_KERNEL(kernel)                                                                     \
  [] {                                                                                              \
    Buffers x;                                                                                      \
    launch("kernel_before", zoo::kernel_before, dim3(1), dim3(64), 0, x.a, x.b);                    \
    launch_dependent(#kernel, zoo::kernel<false>, dim3(1), dim3(64), 0, x.a, x.b);                  \
  },                                                                                                \
      [] {                                                                                          \
        Buffers x;                                                                                  \
        launch("kernel_before", zoo::kernel_before, dim3(1), dim3(64), 0, x.a, x.b);                \
        launch_dependent(#kernel, zoo::kernel<true>, dim3(1), dim3(64), 0, x.a, x.b);               \
        launch("behind_both", zoo::not_waited_for_the_grid<false>, dim3(1), dim3(64), 0, x.a, x.b); \
      }

/// One whose kernel takes the tensor map of a, and b.
#define ON_MAP_B(kernel) ON(kernel, 1, 64, 1280, map_of(x.a), x.b)
/// One that takes the map alone.
#define ON_MAP(kernel) ON(kernel, 1, 64, 1280, map_of(x.a))
/// One that takes a, and a tile of dynamic shared memory.
#define ON_A_AND_A_TILE(kernel, blocks) ON(kernel, blocks, 64, 1024, x.a)

/// One of a warpgroup, that takes b; or a tensor map and b.
#define ON_WGMMA(kernel) ON(kernel, 1, 128, 4 * 64 * 64 + 16, x.b)
#define ON_WGMMA_MAP(kernel) ON(kernel, 1, 128, 4 * 64 * 64 + 16, map_of_pairs(x.halves), x.b)

/// One of two blocks of a cluster, that takes b; or the tensor map of a, and b.
#define IN_A_CLUSTER(kernel, ...)                                                              \
  [] {                                                                                         \
    Buffers x;                                                                                 \
    launch_clusters(#kernel, zoo::kernel<false>, 2, dim3(2), dim3(128), 2112, __VA_ARGS__);    \
  },                                                                                           \
      [] {                                                                                     \
        Buffers x;                                                                             \
        launch_clusters(#kernel, zoo::kernel<true>, 2, dim3(2), dim3(128), 2112, __VA_ARGS__); \
      }

/// 16 rows of 32 numbers, in boxes of 8 rows.
tensor_map map_of(const DeviceBuffer<f32>& x) {
  return make_tensor_map<f32>("x", x,
                              {.dims = {32, 16, 1, 1}, .strides = {32, 512, 512}, .box = {32, 8, 1, 1}});
}

/// 8 rows of 64 numbers, in one box with a swizzle of 128 bytes.
tensor_map map_of_pairs(const DeviceBuffer<bf16>& x) {
  return make_tensor_map<bf16>(
      "x", x, {.dims = {64, 8, 1, 1}, .strides = {64, 512, 512}, .box = {64, 8, 1, 1}, .swizzle = 128});
}

template <class Kernel>
void on_fresh(const char* name, Kernel kernel, bool require_written) {
  DeviceBuffer<f32> fresh("fresh", 70);
  if (require_written) {
    if constexpr (std::is_invocable_v<Kernel, gmem<f32>, int>)
      launch(name, kernel, dim3(1), dim3(32), 0, fresh, 70);
    fresh.emulated().require_written();
  } else {
    if constexpr (std::is_invocable_v<Kernel, gmem<f32>>) launch(name, kernel, dim3(1), dim3(32), 0, fresh);
  }
}

template <class Kernel>
void on_two_gigabytes(Kernel kernel) {
  const Reserved memory((std::size_t{1} << 31) + 64);
  REQUIRE(memory.data != MAP_FAILED);
  auto buffer = DeviceBuffer<unsigned char>::view("large", static_cast<unsigned char*>(memory.data),
                                                  static_cast<std::int64_t>(memory.bytes));
  launch("overflow", kernel, dim3(1), dim3(32), 0, buffer, 2, 1 << 30);
}

std::vector<Specimen> specimens() {
  using enum ErrorKind;
  return {
      {"tail", out_of_bounds_global, "a", ON_A(tail, 3, 256, 512)},
      {"column", out_of_bounds_shared, "tile", ON_A(column, 1, 32)},
      {"padded_row", misaligned, "a", ON_AB(padded_row, 1, 32, 8)},
      {"padded_shared_row", misaligned, "tile", ON_A(padded_shared_row, 1, 32)},
      {"filled", race_shared, "tile", ON_AB(filled, 1, 64)},
      {"refilled", race_shared, "tile", ON_AB(refilled, 1, 64)},
      {"branch", divergent_barrier, "", ON_A(branch, 1, 64)},
      {"early_return", barrier_short, "", ON_A(early_return, 1, 64, 40)},
      {"uneven_loop", barrier_short, "", ON_A(uneven_loop, 1, 64)},
      {"count", deadlock, "", ON_A(count, 1, 128)},
      {"half_warp", partial_mask_shuffle, "", ON_A(half_warp, 1, 32)},
      {"shuffle_or_barrier", partial_mask_shuffle, "", ON_A(shuffle_or_barrier, 1, 32)},
      {"two_shuffles", mixed_collectives, "", ON_A(two_shuffles, 1, 32)},
      {"outside_mask", lane_outside_mask, "", ON_A(outside_mask, 1, 32)},
      {"reduction", race_shared, "parts", ON_A(reduction, 1, 128)},
      {"in_step", race_within_warp, "tile", ON_AB(in_step, 1, 32)},
      {"same_output", race_global, "a", ON_A(same_output, 3, 64)},
      {"neighbour", race_global, "a", ON_A(neighbour, 3, 64)},
      {"not_waited_for_the_grid", missing_grid_wait, "a", BEHIND_A_KERNEL(not_waited_for_the_grid)},
      {"written_too_early", missing_grid_wait, "b", BEHIND_A_KERNEL(written_too_early)},
      {"waited_for_by_one_warp", missing_grid_wait, "a", BEHIND_A_KERNEL(waited_for_by_one_warp)},
      {"unfilled", uninitialised_shared, "tile", ON_AB(unfilled, 1, 64)},
      {"accumulate", uninitialised_global, "fresh",
       [] { on_fresh("accumulate", zoo::accumulate<false>, false); },
       [] { on_fresh("accumulate", zoo::accumulate<true>, false); }},
      {"no_wait", missing_wait, "tile", ON_AB(no_wait, 1, 32)},
      {"short_wait", missing_wait, "tile", ON_AB(short_wait, 1, 32)},
      {"waited_alone", race_shared, "tile", ON_AB(waited_alone, 1, 64)},
      {"skipped", unwritten_output, "fresh", [] { on_fresh("skipped", zoo::skipped<false>, true); },
       [] { on_fresh("skipped", zoo::skipped<true>, true); }},
      {"overflow", offset_overflow, "large", [] { on_two_gigabytes(zoo::overflow<false>); },
       [] { on_two_gigabytes(zoo::overflow<true>); }, false},
      {"arrived_early", race_shared, "tile", ON_AB(arrived_early, 1, 64)},
      {"released_early", race_shared, "tile", ON_AB(released_early, 1, 64)},
      {"other_mbarrier", race_shared, "tile", ON_AB(other_mbarrier, 1, 64)},
      {"wrong_parity", deadlock, "", ON_AB(wrong_parity, 1, 64)},
      {"too_few_arrivals", deadlock, "", ON_AB(too_few_arrivals, 1, 64)},
      {"not_ready", mbarrier_misuse, "full", ON_AB(not_ready, 1, 64)},
      {"no_arrivals", mbarrier_misuse, "full", ON_A(no_arrivals, 1, 32)},
      {"unfenced_mbarrier", mbarrier_misuse, "full", ON_MAP_B(unfenced_mbarrier)},
      {"too_many_bytes", wrong_expected_bytes, "full", ON_MAP_B(too_many_bytes)},
      {"ragged_box", wrong_expected_bytes, "full", ON_MAP_B(ragged_box)},
      {"other_not_begun", mbarrier_misuse, "full", IN_A_CLUSTER(other_not_begun, map_of(x.a), x.b)},
      {"unfenced_for_the_other", mbarrier_misuse, "full", IN_A_CLUSTER(unfenced_for_the_other, x.b)},
      {"ended_before_the_other", ended_block, "", IN_A_CLUSTER(ended_before_the_other, x.b)},
      {"read_by_the_other", race_with_unit, "tile", IN_A_CLUSTER(read_by_the_other, map_of(x.a), x.b)},
      {"told_of_half", wrong_expected_bytes, "full", IN_A_CLUSTER(told_of_half, map_of(x.a), x.b)},
      {"fenced_too_late", mbarrier_misuse, "full", IN_A_CLUSTER(fenced_too_late, x.b)},
      {"number_still_read", race_with_unit, "number", IN_A_CLUSTER(number_still_read, x.b)},
      {"brought_to_nobody", unfinished_copy, "full", IN_A_CLUSTER(brought_to_nobody, map_of(x.a), x.b)},
      {"one_block_comes", barrier_short, "", IN_A_CLUSTER(one_block_comes, x.b)},
      {"no_such_block", out_of_bounds_shared, "", IN_A_CLUSTER(no_such_block, x.b)},
      {"copy_not_waited_for", race_with_unit, "tile", ON_MAP_B(copy_not_waited_for)},
      {"bytes_elsewhere", wrong_expected_bytes, "full", ON_MAP_B(bytes_elsewhere)},
      {"copied_over", race_with_unit, "tile", ON_MAP_B(copied_over)},
      {"two_copies", race_with_unit, "tile", ON_MAP_B(two_copies)},
      {"no_proxy_fence", missing_proxy_fence, "tile", ON_MAP(no_proxy_fence)},
      {"fence_of_the_reader", missing_proxy_fence, "tile", ON_MAP(fence_of_the_reader)},
      {"overwritten_store", race_with_unit, "tile", ON_MAP(overwritten_store)},
      {"tile_at_64_bytes", bad_tensor_copy, "tile", ON_MAP_B(tile_at_64_bytes)},
      {"declared_tile", bad_tensor_copy, "tile", ON_MAP_B(declared_tile)},
      {"load_left_alone", unfinished_copy, "full", ON_MAP(load_left_alone)},
      {"store_left_alone", unfinished_copy, "", ON_MAP(store_left_alone)},
      {"stored_too_early", race_with_unit, "tile", ON_MAP(stored_too_early)},
      {"second_arrival", mbarrier_misuse, "full", ON_MAP_B(second_arrival)},
      {"initialised_again", mbarrier_misuse, "full", ON_A(initialised_again, 1, 32)},
      {"phase_for_parity", mbarrier_misuse, "full", ON_A(phase_for_parity, 1, 32)},
      {"not_ready_in_the_warp", mbarrier_misuse, "full", ON_A(not_ready_in_the_warp, 1, 32)},
      {"sums_not_waited_for", accumulators_in_use, "", ON_WGMMA(sums_not_waited_for)},
      {"sums_not_named", accumulators_in_use, "", ON_WGMMA(sums_not_named)},
      {"rescaled_too_early", accumulators_in_use, "", ON_WGMMA(rescaled_too_early)},
      {"no_wgmma_fence", missing_wgmma_fence, "", ON_WGMMA(no_wgmma_fence)},
      {"packed_behind_the_fence", missing_wgmma_fence, "", ON_WGMMA(packed_behind_the_fence)},
      {"not_committed", unfinished_wgmma, "", ON_WGMMA(not_committed)},
      {"one_group_too_many", unfinished_wgmma, "", ON_WGMMA(one_group_too_many)},
      {"tile_without_proxy_fence", missing_proxy_fence, "B", ON_WGMMA(tile_without_proxy_fence)},
      {"copied_without_proxy_fence", missing_proxy_fence, "B",
       ON(copied_without_proxy_fence, 1, 128, 4 * 64 * 64 + 16, x.halves, x.b)},
      {"proxy_fence_behind_the_barrier", missing_proxy_fence, "A",
       ON_WGMMA(proxy_fence_behind_the_barrier)},
      {"tile_without_barrier", race_with_unit, "A", ON_WGMMA(tile_without_barrier)},
      {"tile_written_in_flight", race_with_unit, "B", ON_WGMMA(tile_written_in_flight)},
      {"released_for_others", race_with_unit, "B", ON_WGMMA_MAP(released_for_others)},
      {"released_before_the_wait", race_with_unit, "B", ON_WGMMA_MAP(released_before_the_wait)},
      {"other_swizzle", bad_matrix_descriptor, "A", ON_WGMMA_MAP(other_swizzle)},
      {"matrix_of_a_warp", wgmma_mismatch, "", ON_WGMMA(matrix_of_a_warp)},
      {"inside_a_pattern", bad_matrix_descriptor, "B", ON_WGMMA(inside_a_pattern)},
      {"beyond_the_tile", bad_matrix_descriptor, "B", ON_WGMMA(beyond_the_tile)},
      {"beyond_the_row", bad_matrix_descriptor, "A", ON_WGMMA(beyond_the_row)},
      {"declared_operand", bad_matrix_descriptor, "A", ON_WGMMA(declared_operand)},
      {"wgmma_left_alone", unfinished_wgmma, "", ON_WGMMA(wgmma_left_alone)},
      {"three_warps", deadlock, "", ON_WGMMA(three_warps)},
      {"elected_by_some", partial_mask_shuffle, "", ON_A(elected_by_some, 1, 32)},
      {"election_for_barrier", race_within_warp, "tile", ON_A(election_for_barrier, 1, 32)},
      {"stored_matrices", race_shared, "tile", ON_A(stored_matrices, 1, 64)},
      {"own_fragment", race_within_warp, "tile", ON_A(own_fragment, 1, 32)},
      {"padded_matrices", misaligned, "tile", ON_A(padded_matrices, 1, 32)},
      {"unfenced_matrices", missing_proxy_fence, "tile", ON_MAP(unfenced_matrices)},
      {"uneven_warpgroup", register_misuse, "", ON_A(uneven_warpgroup, 1, 384)},
      {"one_warp_gives", register_misuse, "", ON_A(one_warp_gives, 1, 384)},
      {"greedy_warpgroups", deadlock, "", ON_A(greedy_warpgroups, 1, 384)},
      {"given_too_late", deadlock, "", ON_A(given_too_late, 1, 384)},
      {"raised_by_down", register_misuse, "", ON_A(raised_by_down, 1, 384)},
      {"lowered_by_up", register_misuse, "", ON_A(lowered_by_up, 1, 384)},
      {"twice_in_a_row", register_misuse, "", ON_A(twice_in_a_row, 1, 384)},
      {"down_and_up", register_misuse, "", ON_A(down_and_up, 1, 384)},
      {"unfenced_reduction", missing_proxy_fence, "tile", ON_A_AND_A_TILE(unfenced_reduction, 1)},
      {"refilled_reduction", race_with_unit, "tile", ON_A_AND_A_TILE(refilled_reduction, 1)},
      {"younger_reduction", race_with_unit, "tile", ON_A_AND_A_TILE(younger_reduction, 1)},
      {"reduction_left_alone", unfinished_copy, "", ON_A_AND_A_TILE(reduction_left_alone, 1)},
      {"elements_for_bytes", bad_tensor_copy, "tile", ON_A_AND_A_TILE(elements_for_bytes, 1)},
      {"added_and_stored", race_global, "a", ON_A_AND_A_TILE(added_and_stored, 2)},
      {"stuck_loop", endless_loop, "a", ON_A(stuck_loop, 1, 32)},
      {"greedy", too_much_shared, "tile", ON_A(greedy, 1, 32)},
  };
}

struct Order {
  Schedule schedule;
  std::uint64_t seed;
  simt::Units units;
};
constexpr Order orders[] = {
    {Schedule::forward, 0, simt::Units::lazy},  {Schedule::forward, 0, simt::Units::eager},
    {Schedule::reverse, 0, simt::Units::lazy},  {Schedule::reverse, 0, simt::Units::eager},
    {Schedule::random, 1, simt::Units::random}, {Schedule::random, 2, simt::Units::random},
    {Schedule::random, 3, simt::Units::random}};

TEST_CASE("each wrong kernel is reported with its kind, line and buffer, and its twin passes", "[zoo]") {
  for (const Specimen& specimen : specimens()) {
    for (const Order& order : orders) {
      DYNAMIC_SECTION(specimen.name << ", schedule " << static_cast<int>(order.schedule) << ", units "
                                    << static_cast<int>(order.units) << ", seed " << order.seed) {
        const unsigned line = line_with("bug: " + specimen.name);
        const unsigned other = line_with("other: " + specimen.name);
        simt::Options options;
        options.banks = true;
        options.check = specimen.check;
        options.schedule = order.schedule;
        options.seed = order.seed;
        options.units = order.units;
        options.os_threads = 1;
        options.access_budget = 1000;
        simt::Emulator emulator(options);
        const simt::UseEmulator use(emulator);
        specimen.right();
        try {
          specimen.wrong();
          CHECK("no error was reported" == specimen.name);
        } catch (const KernelError& error) {
          INFO(error.what());
          CHECK(simt::name_of(error.kind) == std::string(simt::name_of(specimen.kind)));
          CHECK(error.where.line == line);
          if (other != 0) CHECK(error.other.line == other);
          CHECK(error.buffer == specimen.buffer);
          CHECK(error.kernel == specimen.name);
          if (line != 0) CHECK(std::string(error.where.file).ends_with("bugs.hpp"));
        }
      }
    }
  }
}

/// Without the numbers of lines, which change with the file.
std::string without_lines(std::string text) {
  for (std::size_t at = text.find(".hpp:"); at != text.npos; at = text.find(".hpp:", at + 1)) {
    const std::size_t digits = at + 5;
    text.erase(digits, text.find_first_not_of("0123456789", digits) - digits);
  }
  return text;
}

TEST_CASE("the reports that the guide quotes are those of the zoo", "[zoo]") {
  std::ifstream file(FLASHLADDER_SOURCE_DIR "/docs/theory/asynchronous_machine.md");
  std::string page, quoted;
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("    ")) page += line.substr(4) + "\n";
  int found = 0;
  for (const Specimen& specimen : specimens()) {
    if (page.find("kernel " + specimen.name + ",") == page.npos) continue;
    ++found;
    simt::Options options;
    options.check = true;
    options.os_threads = 1;
    simt::Emulator emulator(options);
    const simt::UseEmulator use(emulator);
    try {
      specimen.wrong();
    } catch (const KernelError& error) {
      quoted = error.what();
      quoted.erase(quoted.find("\n  usual cause"));
    }
    INFO(quoted << "\nis not quoted so in docs/theory/asynchronous_machine.md");
    CHECK(without_lines(page).find(without_lines(quoted)) != page.npos);
  }
  CHECK(found >= 5);
}

TEST_CASE("a report says what, where and why", "[zoo]") {
  simt::Options options;
  options.check = true;
  simt::Emulator emulator(options);
  const simt::UseEmulator use(emulator);
  Buffers x;
  try {
    launch("filled", zoo::filled<false>, dim3(1), dim3(64), 0, x.a, x.b);
    CHECK(false);
  } catch (const Error& error) {
    const std::string text = error.what();
    for (const char* part : {"race_shared", "kernel filled", "block (0, 0, 0)", "thread (", "buffer tile",
                             "bugs.hpp:", "reads it", "writes it", "__syncthreads"})
      CHECK(text.find(part) != text.npos);
  }
  // The emulator is none the worse for it.
  launch("filled", zoo::filled<true>, dim3(1), dim3(64), 0, x.a, x.b);
  CHECK(emulator.launches().size() == 1);
}

}  // namespace
