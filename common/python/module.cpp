// flashladder._core: the stages as Python calls them. What depends on the caller's array library (devices,
// streams, making the results) is in flashladder/__init__.py; here arrays are memory with a shape, as
// DLPack describes it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "common/attention/stage.hpp"
#include "common/attention/workspace.hpp"
#include "common/check/inputs.hpp"
#include "common/check/run.hpp"
#include "common/claims/closed_form.hpp"
#include "common/python/array.hpp"
#include "common/python/calls.hpp"
#include "common/simt/device_memory.hpp"
#include "common/simt/emulator.hpp"
#include "common/simt/kernel_error.hpp"
#include "common/simt/stream.hpp"

namespace nb = nanobind;

namespace {

using namespace flashladder;
using DlCode = nb::dlpack::dtype_code;

[[noreturn]] void wrong_type(const std::string& why) {
  throw nb::type_error(why.c_str());
}

// --- dtypes

struct NamedDtype {
  Dtype dtype;
  const char* name;  // as NumPy and PyTorch say it
  nb::dlpack::dtype dlpack;
};

constexpr NamedDtype dtypes[] = {
    {Dtype::fp32, "float32", {static_cast<std::uint8_t>(DlCode::Float), 32, 1}},
    {Dtype::fp16, "float16", {static_cast<std::uint8_t>(DlCode::Float), 16, 1}},
    {Dtype::bf16, "bfloat16", {static_cast<std::uint8_t>(DlCode::Bfloat), 16, 1}},
    {Dtype::int32, "int32", {static_cast<std::uint8_t>(DlCode::Int), 32, 1}},
};

const char* name_of(Dtype dtype) {
  return std::ranges::find(dtypes, dtype, &NamedDtype::dtype)->name;
}

/// "float64", for messages.
std::string name_of(nb::dlpack::dtype dtype) {
  static constexpr const char* kinds[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  if (dtype.code >= std::size(kinds)) return "an exotic dtype";
  const std::string kind = kinds[dtype.code];
  return kind == "bool" ? kind : kind + std::to_string(dtype.bits);
}

/// "float32 or float16"
std::string dtypes_of(const Stage& stage) {
  std::string text;
  for (const Dtype dtype : stage.supports.dtypes)
    text += (text.empty() ? "" : " or ") + std::string(name_of(dtype));
  return text;
}

// --- arrays

/// "[2, 3]", for messages.
std::string shape_of(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

/// [batch, heads, rows, d] with the strides of `array`, whose memory this is. Where there is one of
/// something, its stride means nothing, and libraries give any number for it.
Tensor where_it_lies(const Array& array, Dtype dtype) {
  const auto stride = [&](std::size_t i) { return array.shape(i) > 1 ? array.stride(i) : 0; };
  return {array.data(), dtype, {stride(0), stride(1), stride(2)}};
}

/// One of the caller's arrays, checked: [batch, heads, rows, d], where it lies.
struct Given {
  std::string name;  ///< For messages.
  Array array;
  Dtype dtype = Dtype::fp32;

  /// Throws TypeError or ValueError where `stage` cannot read it.
  Given(const std::string& argument, nb::handle object, const Stage& stage, bool by_table = false)
      : name(argument) {
    const auto mend = [&] {
      const std::string wanted = name_of(stage.supports.dtypes.front());
      return ": convert it, for example with " + name + ".astype(\"" + wanted + "\") in NumPy or " + name +
             ".to(torch." + wanted + ") in PyTorch";
    };
    if (!array.view(object, by_table)) {
      std::string of;
      if (nb::hasattr(object, "dtype"))
        of = " of dtype " + std::string(nb::str(nb::object(object.attr("dtype"))).c_str());
      wrong_type(name + " is an array" + of + ", which DLPack does not describe, and stage " +
                 label(stage) + " takes " + dtypes_of(stage) + mend());
    }
    if (array.ndim() != 4)
      throw UsageError(name + " has shape " + shape_of(array.shape()) + ": give [batch, heads, rows, d]");

    const auto known = std::ranges::find(dtypes, array.dtype(), &NamedDtype::dlpack);
    if (known == std::end(dtypes) || std::ranges::count(stage.supports.dtypes, known->dtype) == 0) {
      const std::string have = known == std::end(dtypes) ? name_of(array.dtype()) : known->name;
      wrong_type(name + " is " + have + ", and stage " + label(stage) + " takes " + dtypes_of(stage) +
                 mend());
    }
    dtype = known->dtype;

    if (array.shape(3) > 1 && array.stride(3) != 1)
      throw UsageError("the last dimension of " + name + " is not contiguous (its stride is " +
                       std::to_string(array.stride(3)) +
                       " elements): copy it, with numpy.ascontiguousarray(" + name + ") or " + name +
                       ".contiguous()");
    for (std::size_t i = 0; i < 3; ++i) {
      if (array.shape(i) > 1 && array.stride(i) < 0)
        throw UsageError("dimension " + std::to_string(i) + " of " + name +
                         " runs backwards in memory: copy it, with numpy.ascontiguousarray(" + name + ")");
    }
    if (reinterpret_cast<std::uintptr_t>(array.data()) % array.itemsize() != 0)
      throw UsageError(name + " does not begin at a multiple of its element's size: copy it");
  }

  std::int64_t size(std::size_t i) const { return array.shape(i); }
  /// What a stage reads: the caller's memory itself.
  Tensor tensor() const { return where_it_lies(array, dtype); }
};

/// The place of one of all_tensors among them.
std::size_t place_of(const NamedTensor& tensor) {
  return static_cast<std::size_t>(&tensor - all_tensors);
}

/// What one of all_tensors is called in Python: in small letters, L is lse, and slopes are
/// flash-attention's. Interned, as the keys of Python's own dicts are: then none is compared letter by
/// letter.
const nb::str& python_name(const NamedTensor& tensor) {
  static const auto& names = *new auto([] {  // for good: Python ends before what is static
    std::vector<nb::str> all;
    for (const NamedTensor& one : all_tensors) {
      std::string name = one.name;
      if (name == "L") name = "lse";
      if (name == "slopes") name = "alibi_slopes";
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      all.push_back(nb::steal<nb::str>(PyUnicode_InternFromString(name.c_str())));
    }
    return all;
  }());
  return names[place_of(tensor)];
}

float checked_scale(std::optional<double> scale) {
  if (!scale) return 0;  // stands for 1/sqrt(d)
  const auto value = static_cast<float>(*scale);
  if (value == 0)
    throw UsageError("scale is 0, and every score with it: give another, or None for 1/sqrt(d)");
  return value;
}

/// What Python's _how() says: causal, scale, window_size, softcap, prefix and dropout_p.
using Numbers = std::tuple<bool, std::optional<double>, std::pair<std::int64_t, std::int64_t>, double,
                           std::int64_t, double>;

/// Puts these numbers into a problem, and what _variant() says, which leaves out what is as for plain
/// attention.
void set_how(Problem& problem, const Numbers& how, const nb::dict& variant) {
  const auto& [causal, scale, window, softcap, prefix, dropout_p] = how;
  problem.causal = causal;
  problem.scale = checked_scale(scale);
  problem.window = {window.first, window.second};
  problem.softcap = static_cast<float>(softcap);
  problem.prefix = prefix;
  problem.dropout.p = static_cast<float>(dropout_p);
  if (variant.size() == 0) return;
  if (variant.contains("dropout_seed"))
    problem.dropout.seed = nb::cast<std::uint64_t>(variant["dropout_seed"]);
  problem.dropout.seed_in_memory = variant.contains("seed_in_memory");
  problem.alibi = variant.contains("alibi");
  problem.sinks = variant.contains("sinks");
  if (variant.contains("bias"))
    std::tie(problem.bias_batch, problem.bias_heads, problem.bias_rows) =
        nb::cast<std::tuple<std::int64_t, std::int64_t, std::int64_t>>(variant["bias"]);
  if (variant.contains("packing")) {
    const nb::dict packing = nb::cast<nb::dict>(variant["packing"]);
    const auto positions = [&](const char* name) {
      return packing.contains(name) ? nb::cast<std::vector<int>>(packing[name]) : std::vector<int>();
    };
    problem.packing = {nb::cast<std::int64_t>(packing["sequences"]), nb::cast<bool>(packing["partly_used"]),
                       positions("cu_seqlens_q"), positions("cu_seqlens_k"), positions("seqused_k")};
  }
  if (variant.contains("block_map")) {
    const nb::dict map = nb::cast<nb::dict>(variant["block_map"]);
    const auto size = [&](const char* name) { return nb::cast<std::int64_t>(map[name]); };
    problem.block_map = {size("batch"), size("heads"), size("rows"), size("keys"),
                         nb::cast<std::vector<int>>(map["live"])};
  }
}

/// The problem that q, k and v make. Throws ValueError or TypeError where they make none, or one that
/// `stage` does not take.
Problem problem_of(const Stage& stage, const Given& q, const Given& k, const Given& v, const Numbers& how,
                   const nb::dict& variant) {
  const auto fail = [&](const std::string& why) {
    throw UsageError("q " + shape_of(q.array.shape()) + ", k " + shape_of(k.array.shape()) + " and v " +
                     shape_of(v.array.shape()) + " do not fit together: " + why);
  };
  if (q.dtype != k.dtype || q.dtype != v.dtype)
    wrong_type("q is " + std::string(name_of(q.dtype)) + ", k " + name_of(k.dtype) + " and v " +
               name_of(v.dtype) + ": give all three the same dtype");
  for (std::size_t i = 0; i < 4; ++i)
    if (k.size(i) != v.size(i)) fail("k and v must have the same shape");
  if (q.size(0) != k.size(0)) fail("the batch sizes differ");
  if (q.size(3) != k.size(3)) fail("the head dimensions differ");
  Problem problem{.batch = q.size(0),
                  .q_heads = q.size(1),
                  .kv_heads = k.size(1),
                  .Nq = q.size(2),
                  .Nk = k.size(2),
                  .d = q.size(3),
                  .dtype = q.dtype};
  set_how(problem, how, variant);
  problem.validate();
  require_supported(stage, problem);
  return problem;
}

/// Throws ValueError unless `array` has the shape of `like`, TypeError unless it has its dtype.
void require_like(const Given& array, const Given& like) {
  for (std::size_t i = 0; i < 4; ++i)
    if (array.size(i) != like.size(i))
      throw UsageError(array.name + " has shape " + shape_of(array.array.shape()) +
                       ": it must have that of " + like.name + ", " + shape_of(like.array.shape()));
  if (array.dtype != like.dtype)
    wrong_type(array.name + " is " + name_of(array.dtype) + " and " + like.name + " " +
               name_of(like.dtype) + ": give both the same dtype");
}

/// Numbers that a forward pass leaves for each row, or that a variant has: fp32 or int32, contiguous. The
/// memory is the caller's, who keeps it while the call lasts.
Tensor numbers(const NamedTensor& tensor, const Problem& problem, nb::handle object, bool by_table) {
  const auto name = [&] { return std::string(python_name(tensor).c_str()); };  // for messages
  const auto all = tensor.shape(problem);
  // A single number for each row has no dimension of its own, and those of a variant have one.
  const std::span<const std::int64_t> shape = tensor.numbers != nullptr
                                                  ? std::span(all).subspan(1, 1)
                                                  : std::span(all).first(tensor.columns == nullptr ? 3 : 4);
  Array array;
  const NamedDtype& dtype = *std::ranges::find(dtypes, tensor.dtype(problem), &NamedDtype::dtype);
  if (!array.view(object, by_table) || array.dtype() != dtype.dlpack)
    wrong_type(name() + " is not an array of " + dtype.name + ": " +
               (tensor.output_of ? "give it as the forward pass left it" : "convert it"));
  if (!std::ranges::equal(array.shape(), shape))
    throw UsageError(name() + " has shape " + shape_of(array.shape()) + ": it must have " +
                     shape_of(shape));
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0; stride *= shape[i]) {
    if (shape[i] > 1 && array.stride(i) != stride)
      throw UsageError(name() + " is not contiguous: copy it, with numpy.ascontiguousarray(" + name() +
                       ") or " + name() + ".contiguous()");
  }
  return tensor.contiguous(problem, array.data());
}

// --- running

/// The emulator counts device memory, and what is written of it, for the whole process: one call at a time.
/// It uses all cores anyway.
std::mutex emulator_in_use;

/// Calls `run` with `emulator` as the one that counts.
template <class Run>
void emulate(simt::Emulator& emulator, Run run) {
  const std::lock_guard lock(emulator_in_use);
  const simt::UseEmulator use(emulator);
  run();
}

/// Memory for a stage itself, from the allocator of the caller's library, which has it back after the call:
/// on the stream of the call what comes later may use it.
class ExtraMemory : public simt::DeviceMemory {
 public:
  /// Of the library of `array`, which has a table of C functions, on its device.
  explicit ExtraMemory(nb::handle array) : api_(ExchangeApi::of(array)) {
    if (api_->view(array.ptr(), &place_) != 0) throw nb::python_error();
  }
  /// Of the library of this table, on the device of `place`.
  ExtraMemory(const ExchangeApi& api, const DlTensor& place) : api_(&api), place_(place) {}

  void* allocate(std::size_t bytes) override {
    return memory_.emplace_back(*api_, place_, static_cast<std::int64_t>(bytes)).data();
  }

 private:
  const ExchangeApi* api_;
  DlTensor place_{};
  std::list<LibraryMemory> memory_;
};

/// Calls `pass` with a workspace on the GPU; what it launches goes to `stream`.
template <class Body>
void run_cuda(void* stream, Body pass) {
  const simt::UseStream use(stream);
  // Not limited to what is free: asking for it at each call would take longer than a small kernel.
  Workspace workspace(std::numeric_limits<std::int64_t>::max());
  try {
    pass(workspace);
  } catch (const Error&) {
    const std::int64_t free = free_memory(Backend::cuda);
    if (workspace.peak_bytes() > free) throw OutOfMemory(workspace.peak_bytes(), 0, free);
    throw;
  }
}

/// Calls `pass` with a workspace, on the backend of `stage`; what a stage needs on a GPU is of `memory`,
/// or, where that is none, of CUDA's pool. Without the GIL.
template <class Body>
void run(const Stage& stage, void* stream, std::optional<ExtraMemory>& memory, Body pass) {
  const simt::UseMemory use(memory ? &*memory : nullptr);
  if (stage.backend == Backend::cuda) return run_cuda(stream, pass);
  Workspace workspace;
  if (stage.backend == Backend::cpu) return pass(workspace);
  simt::Emulator emulator;
  emulator.counts = false;
  emulate(emulator, [&] { pass(workspace); });
}

Backend parse_backend(const std::string& name) {
  for (const Backend backend : {Backend::cpu, Backend::emulator, Backend::cuda})
    if (to_string(backend) == name) return backend;
  throw UsageError("there is no backend '" + name + "': use 'cpu', 'emulator' or 'cuda'");
}

/// Why `stage` cannot run on a backend here; "" where it can.
std::string unavailable_text(const Stage& stage, const std::string& backend) {
  std::string why = unavailable(stage, parse_backend(backend));
  constexpr std::string_view option = "--backend emulator";  // in words of the command line
  if (const std::size_t at = why.find(option); at != why.npos)
    why.replace(at, option.size(), "backend 'emulator'");
  return why;
}

/// Stage `number` as compiled for `backend`. Throws Error where that cannot run here.
const Stage& chosen(int number, const std::string& backend) {
  const Stage& found = find_stage(number);
  if (const std::string why = unavailable_text(found, backend); !why.empty()) throw Error(why);
  return on_backend(found, parse_backend(backend));
}

/// The result that `object` is, as flashladder/__init__.py makes it: the numbers of a row one after the
/// other.
Tensor written(const NamedTensor& tensor, const Problem& problem, nb::handle object, bool by_table) {
  Array array;
  if (!array.view(object, by_table)) throw Error(std::string(python_name(tensor).c_str()) + " is no array");
  return tensor.has_head_rows() ? where_it_lies(array, problem.dtype)
                                : tensor.contiguous(problem, array.data());
}

void run_pass(const Stage& stage, const Forward& call) {
  run_forward(stage, call);
}

void run_pass(const Stage& stage, const Backward& call) {
  run_backward(stage, call);
}

/// A pass of stage `number`. `arrays` has each tensor that the stage is given, by its name in Python.
/// What it launches goes to `stream`.
/// @param by_table  they are read by their type's table of C functions: common_stream() has seen them
template <class Call>
void run_on_arrays(int number, const std::string& backend, const nb::dict& arrays, const Numbers& how,
                   const nb::dict& variant, std::uintptr_t stream, bool by_table) {
  const Stage& stage = chosen(number, backend);
  Problem problem;  // until it is known, one that has only what all have
  const auto is_given = [&](const NamedTensor& one) { return one.given(Call::pass, stage.saved, problem); };
  const auto array_of = [&](const NamedTensor& one) -> nb::object { return arrays[python_name(one)]; };
  std::optional<Given> inputs[std::size(all_tensors)];  // those of [batch, heads, rows, d]
  for (const NamedTensor& one : all_tensors) {
    if (is_given(one) && one.has_head_rows() && one.output_of != Call::pass)
      inputs[place_of(one)].emplace(python_name(one).c_str(), array_of(one), stage, by_table);
  }
  const auto input = [&](const NamedTensor& one) -> const Given& { return *inputs[place_of(one)]; };
  const Given &q = input(named_tensor("Q")), &k = input(named_tensor("K"));
  problem = problem_of(stage, q, k, input(named_tensor("V")), how, variant);
  std::vector<std::pair<const NamedTensor*, Tensor>> tensors;
  tensors.reserve(std::size(all_tensors));
  for (const NamedTensor& one : all_tensors) {
    if (!is_given(one)) continue;
    Tensor tensor;
    if (one.output_of == Call::pass) {
      tensor = written(one, problem, array_of(one), by_table);
    } else if (one.has_head_rows()) {
      require_like(input(one), one.heads == &Problem::q_heads ? q : k);
      tensor = input(one).tensor();
    } else {
      tensor = numbers(one, problem, array_of(one), by_table);
    }
    tensors.emplace_back(&one, tensor);
  }
  std::optional<ExtraMemory> memory;
  if (by_table) memory.emplace(arrays["q"]);
  const nb::gil_scoped_release released;
  run(stage, reinterpret_cast<void*>(stream), memory, [&](Workspace& workspace) {
    Call call{.problem = problem, .workspace = workspace};
    for (const auto& [one, tensor] : tensors) one->of(call) = tensor;
    run_pass(stage, call);
  });
}

/// The current stream of the library that the arrays are of, for a call that reads them where they lie.
/// None where they must be looked at first: they have no ExchangeApi, are not of one type, or not all on
/// the CPU or on the current GPU.
std::optional<std::uintptr_t> common_stream(const nb::dict& arrays) {
  const ExchangeApi* api = nullptr;
  DlTensor first{};
  for (const auto& [name, array] : arrays) {
    const ExchangeApi* const own = ExchangeApi::of(array);
    DlTensor view;
    if (own == nullptr || (api != nullptr && own != api)) return {};
    if (own->view(array.ptr(), &view) != 0) {
      PyErr_Clear();  // the other way says what is wrong, in words
      return {};
    }
    if (api == nullptr) first = view;
    if (view.device_type != first.device_type || view.device != first.device) return {};
    api = own;
  }
  if (api == nullptr || first.device_type == on_cpu)
    return api == nullptr ? std::optional<std::uintptr_t>() : 0;
  if (first.device_type != on_cuda || current_gpu() != first.device) return {};
  void* stream = nullptr;
  if (api->current_stream(on_cuda, first.device, &stream) != 0) throw nb::python_error();
  return reinterpret_cast<std::uintptr_t>(stream);
}

// --- the ledger

nb::dict counts_dict(const simt::Ledger& ledger) {
  nb::dict counts;
  for (const auto& [name, count] : ledger.counted()) counts[name.c_str()] = count;
  return counts;
}

nb::str text(std::string_view view) {
  return nb::str(view.data(), view.size());
}

nb::dict problem_dict(const Problem& p) {
  nb::dict dict;
  dict["batch"] = p.batch;
  dict["heads"] = p.q_heads;
  dict["kv_heads"] = p.kv_heads;
  dict["rows"] = p.Nq;
  dict["keys"] = p.Nk;
  dict["d"] = p.d;
  dict["causal"] = p.causal;
  dict["window_size"] = std::pair(p.window.left, p.window.right);
  dict["softcap"] = p.softcap;
  dict["prefix"] = p.prefix;
  dict["alibi"] = p.alibi;
  dict["bias"] = std::tuple(p.bias_batch, p.bias_heads, p.bias_rows);
  dict["sinks"] = p.sinks;
  dict["dropout_p"] = p.dropout.p;
  dict["sequences"] = p.packing.sequences;
  dict["block_map"] = std::pair(p.block_map.batch, p.block_map.heads);
  dict["scale"] = p.softmax_scale();
  dict["dtype"] = name_of(p.dtype);
  return dict;
}

nb::dict ledger_dict(const Stage& stage, const Problem& problem, const simt::Emulator& emulator,
                     Pass pass = Pass::forward) {
  const simt::Ledger total = emulator.total();
  nb::dict dict;
  dict["number"] = stage.number;
  dict["name"] = text(stage.name);
  dict["problem"] = problem_dict(problem);
  dict["counts"] = counts_dict(total);
  if (const Claim* claim = claim_of(stage)) {
    const Symbols symbols = claim->symbols(problem, pass);
    nb::dict tile;
    tile["Br"] = symbols.Br;
    tile["Bc"] = symbols.Bc;
    dict["tile"] = tile;
    nb::list forms;
    for (const ClosedForm& form : claim->of(pass).forms) {
      nb::dict entry;
      entry["counter"] = text(form.counter);
      entry["text"] = form.text();
      entry["value"] = form.value(symbols);
      entry["least"] = form.least;
      entry["random_too"] = form.random_too;
      entry["measured"] = count_of(total, form.counter);
      forms.append(entry);
    }
    dict["closed_forms"] = forms;
  }
  nb::list launches;
  for (const simt::Ledger& launch : emulator.launches()) {
    nb::dict entry;
    entry["kernel"] = launch.kernel;
    entry["counts"] = counts_dict(launch);
    launches.append(entry);
  }
  dict["launches"] = launches;
  return dict;
}

const Stage& stage_of_kernels(int number) {
  const Stage& stage = find_stage(number);
  if (stage.backend == Backend::cpu)
    throw UsageError("stage " + label(stage) +
                     " is C++ for the CPU and has no ledger: choose a stage of kernels, from 10 on");
  return stage;
}

/// Counts one call on the caller's arrays, where they lie; O and L are thrown away.
nb::dict ledger(int number, nb::handle q, nb::handle k, nb::handle v, const Numbers& how,
                const nb::dict& variant, bool banks, bool check) {
  const Stage& stage = stage_of_kernels(number);
  const Given Q("q", q, stage), K("k", k, stage), V("v", v, stage);
  const Problem p = problem_of(stage, Q, K, V, how, variant);
  simt::Emulator emulator({.banks = banks, .check = check});
  {
    const nb::gil_scoped_release released;
    Workspace workspace;
    Forward call{.problem = p, .Q = Q.tensor(), .K = K.tensor(), .V = V.tensor(), .workspace = workspace};
    std::list<BackendMemory> outputs;
    for (const NamedTensor& one : all_tensors) {
      if (!one.given(Pass::forward, stage.saved, p) || one.output_of != Pass::forward) continue;
      outputs.emplace_back(Backend::emulator, one.elements(p) * size_of(one.dtype(p)));
      one.of(call) = one.contiguous(p, outputs.back().data());
    }
    emulate(emulator, [&] { run_forward(stage, call); });
  }
  return ledger_dict(stage, p, emulator);
}

/// Counts one call on the arrays of ./ladder ledger --random.
nb::dict random_ledger(int number, std::int64_t batch, std::int64_t heads, std::int64_t kv_heads,
                       std::int64_t rows, std::int64_t keys, std::int64_t d, const Numbers& how,
                       const nb::dict& variant, bool banks, bool check, bool backward) {
  const Stage& stage = stage_of_kernels(number);
  const auto& dtypes = stage.supports.dtypes;
  const bool fp32 = std::ranges::count(dtypes, Dtype::fp32) != 0;
  Problem p{.batch = batch,
            .q_heads = heads,
            .kv_heads = kv_heads,
            .Nq = rows,
            .Nk = keys,
            .d = d,
            .dtype = fp32 ? Dtype::fp32 : dtypes.front()};
  set_how(p, how, variant);
  p.validate();
  require_supported(stage, p);
  simt::Emulator emulator({.banks = banks, .check = check});
  {
    const nb::gil_scoped_release released;
    const Inputs inputs = random_inputs(p, 1);
    Workspace workspace;
    if (backward) {
      BackwardRun run(stage, inputs, saved_forward(inputs), random_output_gradient(p, 1));
      emulate(emulator, [&] { run.run(workspace); });
    } else {
      emulate(emulator, [&] { ForwardRun(stage, inputs).run(workspace); });
    }
  }
  return ledger_dict(stage, p, emulator, backward ? Pass::backward : Pass::forward);
}

// --- the rest

/// What the backward pass of `stage` is given of the forward pass beside o and lse, by their names in
/// Python.
nb::tuple saved_names(const Stage& stage) {
  nb::list names;
  for (const NamedTensor& one : all_tensors) {
    if (one.saved && stage.has(Pass::backward) && one.given(Pass::backward, stage.saved, {}))
      names.append(python_name(one));
  }
  return nb::tuple(names);
}

/// The fields of flashladder.Stage.
nb::dict stage_dict(const Stage& stage) {
  nb::dict dict;
  dict["number"] = stage.number;
  dict["name"] = text(stage.name);
  dict["title"] = text(stage.title);
  dict["idea"] = text(stage.idea);
  dict["claim"] = text(stage.claim);
  dict["before"] =
      stage.before == stage.number ? nb::object(nb::none()) : nb::object(nb::int_(stage.before));
  nb::list names, dims;
  for (const Dtype dtype : stage.supports.dtypes) names.append(name_of(dtype));
  for (const std::int64_t d : stage.supports.head_dims) dims.append(d);
  dict["dtypes"] = nb::tuple(names);
  dict["head_dims"] =
      stage.supports.head_dims.empty() ? nb::object(nb::none()) : nb::object(nb::tuple(dims));
  nb::list variants;
  for (const Feature& one : all_features) {
    if (!(Features{}.*one.taken) && stage.supports.features.*one.taken) variants.append(one.name);
  }
  dict["variants"] = nb::tuple(variants);
  dict["forward"] = stage.forward != nullptr;
  dict["backward"] = stage.backward != nullptr;
  dict["saved"] = saved_names(stage);
  dict["kernels"] = stage.backend != Backend::cpu;
  dict["hopper"] = stage.gpu == Gpu::hopper;
  return dict;
}

nb::list stage_list() {
  nb::list all;
  for (const Stage* stage : stages()) all.append(stage_dict(*stage));
  return all;
}

/// The same memory under the name bfloat16, which NumPy's own DLPack does not know.
nb::ndarray<> as_bfloat16(nb::handle bits) {
  const auto array = nb::cast<nb::ndarray<nb::ro, std::uint16_t>>(bits);
  std::size_t shape[8];
  std::int64_t strides[8];
  if (array.ndim() > std::size(shape)) throw UsageError("an array of more than 8 dimensions");
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    shape[i] = array.shape(i);
    strides[i] = array.stride(i);
  }
  return nb::ndarray<>(const_cast<std::uint16_t*>(array.data()), array.ndim(), shape, bits, strides,
                       nb::dlpack::dtype{static_cast<std::uint8_t>(DlCode::Bfloat), 16, 1});
}

/// Writes 1 where dropout leaves P of a head, a row and a key out, else 0.
/// @param into  [heads, rows, keys]
void left_out(float p, std::uint64_t seed,
              const nb::ndarray<std::uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>& into) {
  const Dropout dropout{p, seed};
  std::uint8_t* place = into.data();
  for (std::size_t head = 0; head < into.shape(0); ++head) {
    for (std::size_t i = 0; i < into.shape(1); ++i) {
      for (std::size_t j = 0; j < into.shape(2); ++j)
        *place++ = dropout.factor(static_cast<std::int64_t>(head), static_cast<std::int64_t>(i),
                                  static_cast<std::int64_t>(j)) == 0
                       ? 1
                       : 0;
    }
  }
}

PyObject* kernel_error = nullptr;  // the class, kept for good

nb::tuple place(const uint3& at) {
  return nb::make_tuple(at.x, at.y, at.z);
}

void raise_kernel_error(const simt::KernelError& error) {
  nb::object object = nb::handle(kernel_error)(error.what());
  object.attr("kind") = simt::name_of(error.kind);
  object.attr("kernel") = error.kernel;
  object.attr("block") = place(error.block);
  object.attr("thread") = place(error.thread);
  object.attr("file") = error.where.file;
  object.attr("line") = error.where.line;
  object.attr("buffer") = error.buffer;
  PyErr_SetObject(kernel_error, object.ptr());
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const simt::KernelError& error) {
    raise_kernel_error(error);
  } catch (const OutOfMemory& error) {
    PyErr_SetString(PyExc_MemoryError, error.what());
  } catch (const UsageError& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const Error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

// --- calls of the node for PyTorch

/// Leaves what was thrown as an error of Python, as it leaves the functions of this module.
Answer failed() {
  const nb::gil_scoped_acquire held;
  try {
    translate(std::current_exception(), nullptr);
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return Answer::failed;
}

const Stage* stage_for(int number, bool on_gpu) noexcept {
  try {
    const Stage& found = find_stage(number);
    if (!on_gpu) return &found;
    return found.backend == Backend::cpu ? nullptr : &on_backend(found, Backend::cuda);
  } catch (const Error&) {
    return nullptr;
  }
}

template <class Call>
Answer run_plain(const PlainCall& given) noexcept {
  try {
    void* stream = nullptr;
    if (given.device_type == on_cuda) {
      if (current_gpu() != given.device) return Answer::declined;
      const nb::gil_scoped_acquire held;  // where it fails, it leaves an error in Python
      if (given.library->current_stream(on_cuda, given.device, &stream) != 0) return Answer::failed;
    }
    const Problem problem{.batch = given.batch,
                          .q_heads = given.q_heads,
                          .kv_heads = given.kv_heads,
                          .Nq = given.Nq,
                          .Nk = given.Nk,
                          .d = given.d,
                          .causal = given.causal,
                          .scale = given.scale,
                          .dtype = given.dtype};
    problem.validate();
    DlTensor place{};
    place.device_type = given.device_type, place.device = given.device;
    std::optional<ExtraMemory> memory(std::in_place, *given.library, place);
    run(*given.stage, stream, memory, [&](Workspace& workspace) {
      Call call{.problem = problem,
                .Q = given.Q,
                .K = given.K,
                .V = given.V,
                .O = given.O,
                .L = given.L,
                .workspace = workspace};
      if constexpr (Call::pass == Pass::backward)
        call.dO = given.dO, call.dQ = given.dQ, call.dK = given.dK, call.dV = given.dV;
      run_pass(*given.stage, call);
    });
    return Answer::done;
  } catch (...) {
    return failed();
  }
}

/// A capsule of Calls on tensors of `type`; None where it has no ExchangeApi.
nb::object calls_on(nb::handle type) {
  static Calls calls{nullptr, &stage_for, &run_plain<Forward>, &run_plain<Backward>};
  calls.library = ExchangeApi::of_type(type);
  return calls.library == nullptr ? nb::none() : nb::object(nb::capsule(&calls, calls_name));
}

constexpr const char* kernel_error_text =
    "A kernel did on the emulator what it must not do on a GPU.\n\n"
    "str() says what happened, where, and what usually causes it; the attributes say it in parts:\n\n"
    "    kind    what happened, in a word: 'race_shared', 'out_of_bounds_global', 'bad_launch', ...\n"
    "    kernel  name of the kernel\n"
    "    block   blockIdx, (x, y, z); like thread, zeros where the launch itself is at fault\n"
    "    thread  threadIdx of the thread it was found in, (x, y, z)\n"
    "    file    source file of the kernel; '' where no line is at fault\n"
    "    line    its line; 0 where no line is at fault\n"
    "    buffer  the buffer or shared array concerned; '' for none\n";

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "The stages, compiled: see flashladder.";
  m.attr("version") = FLASHLADDER_VERSION;
  kernel_error =
      PyErr_NewExceptionWithDoc("flashladder.KernelError", kernel_error_text, PyExc_RuntimeError, nullptr);
  if (kernel_error == nullptr) throw nb::python_error();
  m.attr("KernelError") = nb::handle(kernel_error);
  nb::register_exception_translator(translate);

  m.def("stages", &stage_list);
  m.def(
      "unavailable",
      [](int stage, const std::string& backend) { return unavailable_text(find_stage(stage), backend); },
      nb::arg("stage"), nb::arg("backend"));
  m.def("as_bfloat16", &as_bfloat16, nb::arg("bits"));
  m.def("left_out", &left_out, nb::arg("p"), nb::arg("seed"), nb::arg("into"));
  m.def("common_stream", &common_stream, nb::arg("arrays"));
  m.def("forward", &run_on_arrays<Forward>, nb::arg("stage"), nb::arg("backend"), nb::arg("arrays"),
        nb::arg("how"), nb::arg("variant"), nb::arg("stream"), nb::arg("by_table"));
  m.def("backward", &run_on_arrays<Backward>, nb::arg("stage"), nb::arg("backend"), nb::arg("arrays"),
        nb::arg("how"), nb::arg("variant"), nb::arg("stream"), nb::arg("by_table"));
  m.def("calls", &calls_on, nb::arg("type"));
  m.def("ledger", &ledger, nb::arg("stage"), nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::kw_only(),
        nb::arg("how"), nb::arg("variant"), nb::arg("banks"), nb::arg("check"));
  m.def("random_ledger", &random_ledger, nb::arg("stage"), nb::arg("batch"), nb::arg("heads"),
        nb::arg("kv_heads"), nb::arg("rows"), nb::arg("keys"), nb::arg("d"), nb::kw_only(), nb::arg("how"),
        nb::arg("variant"), nb::arg("banks"), nb::arg("check"), nb::arg("backward"));
}
