#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/attention/oracle.hpp"
#include "common/attention/stage.hpp"
#include "common/attention/workspace.hpp"

namespace flashladder {

/// How a [batch, heads, rows, d] tensor lies in memory. A stage must take them all.
enum class Layout {
  contiguous,  ///< [batch, heads, rows, d]
  rows_first,  ///< [batch, rows, heads, d], as projections leave it
  padded,      ///< contiguous, with NaN between the rows and between the heads; in each tensor more of it
};

inline constexpr Layout all_layouts[] = {Layout::contiguous, Layout::rows_first, Layout::padded};

std::string_view to_string(Layout layout);

/// A tensor in a backend's memory that knows what is its own: margins and gaps hold NaN, and so does every
/// element of an output until it is written.
class Buffer {
 public:
  /// Shape [batch, heads, rows, d]; every element and margin starts as NaN.
  /// @param place  of the tensor among those of a run: no two have the same gaps between padded rows
  Buffer(std::int64_t batch, std::int64_t heads, std::int64_t rows, std::int64_t d, Layout layout,
         Dtype dtype = Dtype::fp32, Backend backend = Backend::cpu, int place = 0);

  /// What a stage is given.
  Tensor tensor();
  /// Copies contiguous values in, rounded to the dtype.
  void write(const std::vector<float>& values);
  /// The values, contiguous.
  std::vector<float> read() const;
  /// Turns every element back into NaN.
  void poison();
  /// Whether anything, margins and gaps included, is not as write() left it.
  bool changed() const;
  /// "" when every element was written and no margin was touched; else one sentence that names `name` and
  /// where.
  std::string defect(const std::string& name) const;
  /// All bytes as they are in the backend's memory now, margins and gaps included.
  const std::vector<std::byte>& storage() const;

 private:
  /// Calls `body(value, at)` for each row: its first value's number and that value's byte in the storage.
  template <class Body>
  void for_each_row(Body body) const;
  void upload();  ///< The storage into the backend's memory.

  std::int64_t batch_, heads_, rows_, d_;
  Dtype dtype_;
  std::array<std::int64_t, 3> stride_;
  mutable std::vector<std::byte> storage_;
  std::unique_ptr<BackendMemory> device_;  ///< Where kernels cannot reach the storage itself.
  std::size_t written_ = 0;                ///< Hash of the storage as write() left it.
};

/// The tensors of a pass of a stage in memory, ready to run again and again.
template <class Call>
class Run {
 public:
  /// One pass, complete when it returns. Throws as run_forward and run_backward.
  void run(Workspace& workspace);
  /// One pass that may still run on the GPU when it returns.
  void start(Workspace& workspace);
  /// Turns the outputs back into NaN, so that the next run has to write them again.
  void poison();
  /// "" when the run wrote all of the outputs, touched nothing around them and left the inputs as they
  /// were; else one sentence saying what and where.
  std::string defect() const;
  /// The bytes of a tensor as the last run left them, with what lies around its rows; they stay where they
  /// are until the next call.
  const std::vector<std::byte>& bytes(std::string_view name) const { return tensor(name).storage(); }

 protected:
  /// All that the stage is given, not written yet. Rows of heads lie as `layout` says.
  Run(const Stage& stage, const Problem& problem, Layout layout);
  /// The tensor of that name (all_tensors).
  Buffer& tensor(std::string_view name);
  /// The same.
  const Buffer& tensor(std::string_view name) const;
  /// Writes what only some problems have.
  void write_variant(const Inputs& inputs);
  /// What the stage is called with.
  Call call(Workspace& workspace);

  const Stage& stage_;  ///< Whose pass it is.
  Problem problem_;     ///< Of the dtype in which the stage computes.

 private:
  struct Named {
    const NamedTensor* what;
    Buffer buffer;
  };
  std::vector<Named> tensors_;
};
extern template class Run<Forward>;
extern template class Run<Backward>;

/// A forward pass.
class ForwardRun : public Run<Forward> {
 public:
  /// Copies Q, K and V.
  ForwardRun(const Stage& stage, const Inputs& inputs, Layout layout = Layout::contiguous);

  /// One pass of the variant that counts the reads of scores.
  void run_counting(Workspace& workspace);
  /// O and L as the last run left them.
  Result<float> result() const;
};

/// Whether a stage has been timed often enough: 20 times, or for 2 s and at least 3 times.
constexpr bool timed_enough(std::size_t runs, double seconds) {
  return runs >= 20 || (runs >= 3 && seconds >= 2);
}

/// What a backward pass is given beside Q, K and V.
struct BackwardInputs {
  Result<float> forward = {};  ///< O and L as a forward pass left them.
  Statistics saved = {};       ///< What else the stage says it needs of that pass (Stage::saved).
  std::vector<float> dO = {};  ///< The output gradient [batch, q_heads, Nq, d].
};

/// With `saved` as `stage` needs it, computed plainly.
BackwardInputs backward_inputs(const Stage& stage, const Inputs& inputs, const Result<float>& forward,
                               const std::vector<float>& dO);

/// A backward pass.
class BackwardRun : public Run<Backward> {
 public:
  /// Copies `inputs` and `given`.
  BackwardRun(const Stage& stage, const Inputs& inputs, const BackwardInputs& given,
              Layout layout = Layout::contiguous);
  /// With backward_inputs() of O and L of a forward pass and the output gradient dO.
  BackwardRun(const Stage& stage, const Inputs& inputs, const Result<float>& forward,
              const std::vector<float>& dO, Layout layout = Layout::contiguous);

  /// dQ, dK and dV as the last run left them.
  Gradients<float> result() const;
};

}  // namespace flashladder
