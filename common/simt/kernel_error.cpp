#include "common/simt/kernel_error.hpp"

#include <cstring>
#include <string_view>

namespace flashladder::simt {
namespace {

struct Meaning {
  ErrorKind kind;
  const char* name;
  const char* headline;
  const char* usual_cause;
};

using enum ErrorKind;

constexpr Meaning meanings[] = {
    {out_of_bounds_global, "out_of_bounds_global", "access outside a global buffer",
     "the grid is rounded up to whole tiles and the last block's rows or columns are not masked, or rows "
     "and "
     "columns are swapped in the offset"},
    {out_of_bounds_shared, "out_of_bounds_shared", "access outside a shared array",
     "a loop runs over the whole tile's size with another array's shape, or an index was not reduced to "
     "the "
     "tile"},
    {offset_overflow, "offset_overflow", "offset that overflowed 32 bits",
     "row * stride was computed in int; widen one factor first: int64_t(row) * stride"},
    {misaligned, "misaligned", "misaligned vector access",
     "a four-element access needs an offset that is a multiple of four: check the row stride (a padded row "
     "of d + 1 elements is not) and the first column"},
    {divergent_barrier, "divergent_barrier", "threads of one block wait at different barriers",
     "a barrier stands inside an if or a loop whose condition is not the same for all threads of the "
     "block"},
    {barrier_short, "barrier_short", "a barrier that some threads never reach",
     "threads out of range returned early, or skipped the barrier in a branch; keep them alive and mask "
     "their loads and stores instead"},
    {deadlock, "deadlock", "no thread of the block can run",
     "a named barrier's thread count is larger than the number of threads that come to it; two groups of "
     "threads wait for each other; or a thread waits for the wrong parity of an mbarrier, or for more "
     "arrivals than come"},
    {partial_mask_shuffle, "partial_mask_shuffle",
     "a warp instruction that some lanes of its mask never reach",
     "a shuffle or __syncwarp with the full mask stands inside a branch that only some lanes take"},
    {mixed_collectives, "mixed_collectives", "lanes of one warp meet at different warp instructions",
     "both sides of a branch contain a warp instruction with the full mask; move it out of the branch"},
    {lane_outside_mask, "lane_outside_mask", "a warp instruction with a lane outside its mask",
     "the mask does not name every lane that takes part, or the source lane is wrong"},
    {race_shared, "race_shared", "two warps use one shared address without a barrier in between",
     "a __syncthreads is missing: after a tile is filled and before it is read, or after it is read and "
     "before it is filled again"},
    {race_within_warp, "race_within_warp", "two lanes of a warp use one shared address without __syncwarp",
     "lanes of a warp need not run in step: a barrier is missing between the two, or stands on the wrong "
     "side of one of them; __syncthreads where other warps use the array too, as with a tile that all "
     "threads fill, and __syncwarp where this warp alone does"},
    {race_global, "race_global", "two blocks of one launch use one global address",
     "the block's part of the output does not depend on every index of the grid, or tiles overlap; blocks "
     "run in any order and cannot wait for each other"},
    {missing_grid_wait, "missing_grid_wait",
     "a kernel uses what one before, that may still run, writes or reads",
     "a kernel that launch_dependent() starts must execute grid_dependency_wait() before it uses what the "
     "kernels before it write: in the thread that uses it, or before a barrier, or an mbarrier, at which "
     "that "
     "thread learns of it"},
    {uninitialised_shared, "uninitialised_shared", "a shared word is read that nobody wrote",
     "shared memory starts with garbage: a tail of the tile was not filled, or the loop that fills it "
     "covers "
     "fewer elements than the loop that reads it"},
    {uninitialised_global, "uninitialised_global", "a global element is read that nobody wrote",
     "device memory starts with garbage: zero it, or let the first pass write instead of update"},
    {missing_wait, "missing_wait", "a shared word is used while an asynchronous copy to it is under way",
     "cp_async_wait is missing, or waits for too few groups; each thread waits for its own copies, then a "
     "barrier makes them visible to the others"},
    {mbarrier_misuse, "mbarrier_misuse",
     "an mbarrier is used before it is initialised, or initialised wrongly",
     "one thread initialises the mbarriers, and a __syncthreads must follow before any other thread uses "
     "them"},
    {race_with_unit, "race_with_unit", "a shared word is used while a unit writes or reads it",
     "the wait for the unit, TMA or the tensor cores of wgmma, is missing before the use; or the unit is "
     "told to begin before all who use what lies there have said that they are done, at a barrier or an "
     "mbarrier that the thread which tells it waits at"},
    {missing_proxy_fence, "missing_proxy_fence",
     "a unit uses shared memory that a thread wrote, without a proxy fence in between",
     "the thread that wrote must execute fence_proxy_async() behind its writes and before the barrier at "
     "which those who tell the unit, TMA or the tensor cores of wgmma, learn of them"},
    {wrong_expected_bytes, "wrong_expected_bytes",
     "the bytes that an mbarrier is told of are not those that come to it",
     "mbarrier_arrive_expect_tx must be given the bytes of all copies of the phase, whole boxes: rows past "
     "the "
     "end are filled with zeros and count"},
    {unfinished_copy, "unfinished_copy", "a kernel ends while its tensor copies may still be under way",
     "each phase of an mbarrier with copies must be waited for, and behind the last stores the thread that "
     "began them calls tma_wait_read<0>(): the block's shared memory is another one's when it ends"},
    {bad_tensor_copy, "bad_tensor_copy", "a tensor copy, or a bulk reduction, that no GPU takes",
     "a tile lies in dynamic shared memory, at a multiple of 128 bytes, and holds a whole box; with tiles "
     "of "
     "tensor copies all shared arrays are dynamic, for declared ones would push it off such a multiple; a "
     "bulk reduction is of whole rows of 16 bytes"},
    {wgmma_mismatch, "wgmma_mismatch", "the threads of a warpgroup come to different wgmmas",
     "a wgmma belongs to 128 threads, of four warps from a multiple of four on: all of them must come to "
     "the same wgmmas in the same order, with the same matrices; compute what they depend on from "
     "threadIdx.x / 128, never from a lane's or a warp's number"},
    {missing_wgmma_fence, "missing_wgmma_fence",
     "a wgmma takes registers that were used since the last wgmma_fence",
     "wgmma_fence() must stand between what a thread does with C, or with an A in registers, and the next "
     "wgmma that takes them; behind a wgmma_wait, a new one is needed"},
    {accumulators_in_use, "accumulators_in_use", "accumulators are used while a wgmma may change them",
     "wgmma_wait<...>(C) is missing between the wgmma and the first use of C, or does not name this C"},
    {unfinished_wgmma, "unfinished_wgmma", "a wgmma is not in a group that is waited for",
     "wgmma_commit() is missing behind it, wgmma_wait lets too many groups be under way, or the kernel "
     "ends without one"},
    {bad_matrix_descriptor, "bad_matrix_descriptor", "a wgmma's matrix lies where none can",
     "the tile of a wgmma lies in dynamic shared memory, at a multiple of 1024 bytes; its rows are as long "
     "as the swizzle that TMA wrote it with, or that the kernel wrote it with; and rows, panels and what "
     "is added to a descriptor are in bytes"},
    {register_misuse, "register_misuse", "registers are given back or taken in a way that no GPU takes",
     "all four warps of a warpgroup execute the same registers_down or registers_up, with a barrier "
     "between two of them; down keeps no more than there are, and up asks for no fewer"},
    {ended_block, "ended_block", "shared memory of a block that has ended, or may have, is used",
     "a block returned before it had waited for all that others of its cluster do in its shared memory: "
     "arrivals at its mbarriers, stores, copies"},
    {endless_loop, "endless_loop", "a thread never stops and never synchronises",
     "the loop's counter does not move towards its end, or the loop waits for another thread's store "
     "without "
     "a barrier"},
    {stack_overflow, "stack_overflow", "a thread's stack is used up",
     "a local array is far larger than a thread's registers could ever hold, or a function calls itself "
     "without "
     "end"},
    {unwritten_output, "unwritten_output", "an output element that no kernel wrote",
     "the last, partial tile is skipped, or fewer blocks are launched than there are tiles"},
    {too_much_shared, "too_much_shared", "more shared memory than a block can have",
     "declared arrays may take 48 KiB together; larger ones go into dynamic shared memory (dynamic_tile), "
     "of "
     "which a block has at most 227 KiB with all else; or use smaller tiles"},
    {bad_launch, "bad_launch", "a launch that no GPU takes",
     "a block has 1 to 1024 threads, in whole warps of 32; a grid at least one block, at most 65535 in y "
     "and in z, and here 2^31 - 2 in all"},
};

const Meaning& meaning(ErrorKind kind) {
  for (const Meaning& m : meanings)
    if (m.kind == kind) return m;
  return meanings[0];
}

std::string message(const KernelFault& f) {
  std::string text = std::string(name_of(f.kind)) + ": " + meaning(f.kind).headline + "\n  where: ";
  if (f.where.line != 0) text += to_string(f.where) + ", ";
  text += "kernel " + f.kernel;
  if (f.kind != unwritten_output && f.kind != bad_launch)
    text += ", block " + to_string(f.block) + ", thread " + to_string(f.thread);
  if (!f.buffer.empty()) text += ", buffer " + f.buffer;
  text += "\n  what:  " + f.details;
  return text + "\n  usual cause: " + usual_cause(f.kind);
}

}  // namespace

const char* name_of(ErrorKind kind) {
  return meaning(kind).name;
}

const char* usual_cause(ErrorKind kind) {
  return meaning(kind).usual_cause;
}

KernelError::KernelError(const KernelFault& fault) : Error(message(fault)), KernelFault(fault) {}

bool same_place(Where a, Where b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

std::string to_string(Where where) {
  const std::string_view file = where.file;
  const std::size_t slash = file.rfind('/');
  return std::string(slash == file.npos ? file : file.substr(slash + 1)) + ":" + std::to_string(where.line);
}

std::string to_string(uint3 i) {
  return "(" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " + std::to_string(i.z) + ")";
}

}  // namespace flashladder::simt
