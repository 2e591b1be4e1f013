#pragma once
#include <string>

#include "common/simt/block.hpp"

namespace flashladder::simt {

/// Suspends the running thread until wake(). Whoever calls it has noted somewhere that the thread waits.
/// Throws KernelError in place of suspending the last thread that could run.
void suspend(const char* waits_at, Where where);

/// These lanes of a warp of the running cluster go on.
void wake(unsigned warp, std::uint32_t lanes);

/// Ends the kernel with an error found in the running thread.
[[noreturn]] void fail(ErrorKind kind, Where where, const std::string& buffer, const std::string& details,
                       Where other = {});
/// As fail, about another thread of the running cluster.
[[noreturn]] void fail_in(const Thread& thread, ErrorKind kind, Where where, const std::string& buffer,
                          const std::string& details, Where other = {});
/// What is known of an error in a thread of the running cluster.
KernelFault fault_in(const Thread& thread, ErrorKind kind, Where where, const std::string& buffer,
                     const std::string& details, Where other = {});
/// These warps synchronise: throws KernelError if one of them made Cluster::early_read.
void report_early_read(std::uint32_t warps);
/// "full[1]", of the mbarrier at a byte of the cluster's shared memory.
std::string name_of_mbarrier(const SharedArray& array, std::uint32_t offset);
/// The same.
std::string name_of(const Mbarrier& bar);
/// The running thread begins an asynchronous copy, or a load by TMA.
void count_copying_thread();
/// A thread, or with its last one a block, ends: fails where copies that it began may still be under way.
void report_unfinished_work(const Thread& thread, bool last);
/// Fails where a block has ended, whose shared memory the running thread uses.
void require_running(const Block& block, Where where);
/// Where all threads of the running cluster are, one line for each group that is at the same place.
std::string where_all_are();

/// Runs all blocks of a grid and returns what was counted. Throws KernelError.
Ledger run_grid(const Launch& launch);

}  // namespace flashladder::simt
