#pragma once
#include <vector>

#include "common/simt/block.hpp"
#include "common/simt/ledger.hpp"
#include "common/simt/options.hpp"

namespace flashladder::simt {

/// A GPU that exists only as this program: how it emulates, and what it has counted.
///
/// launch() and device buffers take no emulator, because the same source is compiled for a GPU, where there
/// is none: they use the current one. Each OS thread has its own current emulator; UseEmulator sets it.
/// Without one, launches go to a default emulator of the OS thread, which only counts.
class Emulator {
 public:
  /// No launches yet.
  explicit Emulator(const Options& how = {}) : options(how) {}

  Options options;  ///< May be changed between launches; `check` before the buffers are made.

  /// Runs a grid and keeps its ledger. Throws KernelError; then there is no ledger of it.
  void run(Launch launch);

  /// The ledgers of all launches since reset(), in order.
  const std::vector<Ledger>& launches() const { return launches_; }
  /// The ledger of the last launch. There must be one.
  const Ledger& last() const { return launches_.back(); }
  /// All launches added up.
  Ledger total() const;
  /// Forgets the launches so far.
  void reset() { launches_.clear(); }

  /// The current emulator of this OS thread.
  static Emulator& current();

  bool counts = true;  ///< Whether launches leave a ledger: see Uncounted.
  /// Receives intermediates that kernels show by probe() (the name, the place, the value, where in the
  /// source), from several OS threads at a time. nullptr: nobody looks.
  static inline void (*probe)(const char* name, std::int64_t head, int row, int column, float value,
                              Where where) = nullptr;

 private:
  std::vector<Ledger> launches_;
  std::uint32_t unfinished_ = 0;  ///< The last launch that waited for all before it.
};

/// Makes an emulator the current one of this OS thread while it lives.
class UseEmulator {
 public:
  /// `emulator` must outlive it.
  explicit UseEmulator(Emulator& emulator);
  ~UseEmulator();
  UseEmulator(const UseEmulator&) = delete;
  UseEmulator& operator=(const UseEmulator&) = delete;

 private:
  Emulator* before_;
};

/// Launches that leave no ledger while it lives: what is done beside the algorithm that is being counted.
class Uncounted {
 public:
  Uncounted();
  ~Uncounted();
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;

 private:
  Emulator& emulator_;
  bool before_;
};

}  // namespace flashladder::simt
