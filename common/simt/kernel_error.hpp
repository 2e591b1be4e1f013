#pragma once
#include <string>

#include "common/error.hpp"
#include "common/simt/cuda_words.hpp"

namespace flashladder::simt {

/// A place in a kernel's source. As a default argument, `Where::here()` is the place of the call.
struct Where {
  const char* file = "";  ///< As the compiler was given it.
  unsigned line = 0;      ///< From 1; 0: nowhere.

  constexpr Where() = default;
  /// The place of the call.
  static constexpr Where here(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
    Where where;
    where.file = file;
    where.line = line;
    return where;
  }
};

/// Whether two places are one: a file may have its name in several copies.
bool same_place(Where a, Where b);

/// The ways a kernel can be wrong that the emulator tells apart. Those marked (check) are found only with
/// Options::check.
enum class ErrorKind {
  out_of_bounds_global,   ///< An access outside a global buffer.
  out_of_bounds_shared,   ///< An access outside a shared array.
  offset_overflow,        ///< Far before the buffer: an offset that overflowed 32 bits.
  misaligned,             ///< A vector access whose address is no multiple of its size.
  divergent_barrier,      ///< Threads of one block at different barriers at the same time.
  barrier_short,          ///< Threads returned that others wait for at a barrier.
  deadlock,               ///< No thread of the block can run.
  partial_mask_shuffle,   ///< A warp instruction whose mask names lanes that do not come.
  mixed_collectives,      ///< Lanes of one warp at different warp instructions with one mask.
  lane_outside_mask,      ///< A lane calls, or reads from, a lane that its mask leaves out.
  race_shared,            ///< (check) Two warps at one shared address, a barrier missing in between.
  race_within_warp,       ///< (check) Two lanes of a warp likewise, __syncwarp missing in between.
  race_global,            ///< (check) Two blocks of a launch at one global address, one of them writing.
  missing_grid_wait,      ///< (check) A use of what a kernel before, that may still run, writes or reads.
  uninitialised_shared,   ///< (check) A read of a shared word that nobody wrote.
  uninitialised_global,   ///< (check) A read of a global element that nobody wrote.
  missing_wait,           ///< (check) A shared word used while an asynchronous copy to it is under way.
  mbarrier_misuse,        ///< An mbarrier used before it is initialised, or initialised wrongly.
  race_with_unit,         ///< (check) A thread, or a unit, at a shared address that a unit writes or reads.
  missing_proxy_fence,    ///< (check) A unit uses what a thread wrote, and no proxy fence is between.
  wrong_expected_bytes,   ///< A phase of an mbarrier is told of more bytes than come, or of fewer.
  unfinished_copy,        ///< A block ends, or a thread, whose tensor copies may still be under way.
  bad_tensor_copy,        ///< A tensor copy to or from a place, or by a map, that no GPU takes; or
                          ///< a bulk reduction of such a size.
  wgmma_mismatch,         ///< Threads of a warpgroup come to different wgmmas.
  missing_wgmma_fence,    ///< A wgmma takes registers that were used since the last wgmma_fence.
  accumulators_in_use,    ///< Accumulators of a wgmma are used before a wait that names them.
  unfinished_wgmma,       ///< A wgmma is not in a group that is waited for.
  bad_matrix_descriptor,  ///< A wgmma's matrix lies where none can, or not as it is described.
  register_misuse,        ///< Registers given back or taken in a way that no GPU takes.
  ended_block,            ///< Shared memory of another block of the cluster is used, which has ended, or
                          ///< (check) may have.
  endless_loop,           ///< (check) A thread that accesses memory on and on and never synchronises.
  stack_overflow,         ///< A thread's local arrays or calls take more stack than it has.
  unwritten_output,       ///< An element of an output that no kernel wrote.
  too_much_shared,        ///< A block asks for more shared memory than a GPU has.
  bad_launch,             ///< A grid or block of a size that no GPU takes.
};

/// The enumerator's name.
const char* name_of(ErrorKind kind);
/// One sentence for a student: what usually causes it.
const char* usual_cause(ErrorKind kind);

/// What is known of an error in a kernel.
struct KernelFault {
  ErrorKind kind = {};  ///< What happened.
  std::string kernel;   ///< Name given to launch().
  uint3 block = {};     ///< blockIdx.
  uint3 thread = {};    ///< threadIdx of the thread that the error was found in.
  Where where;          ///< The source line at fault.
  Where other;          ///< The other line, where two conflict (a race, two barriers).
  std::string buffer;   ///< The buffer concerned, or empty.
  std::string details;  ///< What happened, in words.
};

/// A kernel did on the emulator what it must not do on a GPU. what() says what happened, where, and what
/// usually causes it.
struct KernelError : Error, KernelFault {
  /// An error that says all that is known of `fault`.
  explicit KernelError(const KernelFault& fault);
};

/// A place as "file:line", the file without its folders.
std::string to_string(Where where);
/// A place in a grid or block as "(x, y, z)".
std::string to_string(uint3 index);

}  // namespace flashladder::simt
