// flashladder._torch_...: the plain case of flashladder.torch.attention as a node of PyTorch's graph in
// C++, so that a call keeps the host for less time than one in Python. It takes q, k and v with causal and
// scale, and declines all else: then flashladder/torch.py does what it does without a node, and says what
// is wrong. PyTorch's C++ is another one in each version, so that the module's name has the version in it.
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/profiler/api.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <tuple>

#include "common/python/calls.hpp"

namespace {

using flashladder::Answer;
using flashladder::Calls;
using flashladder::Dtype;
using flashladder::PlainCall;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What use() is given, for good.
const Calls* calls = nullptr;   // of flashladder._core
long most_blocks = 0;           // MOST_BLOCKS of torch.py
PyObject* choose = nullptr;     // (q, stages, trains, deterministic) -> the two stages' numbers, or None
PyObject* gradients = nullptr;  // the backward pass in Python

// --- what the node takes

/// Whether `these` has no key that is not one of `all`.
bool is_within(c10::DispatchKeySet these, c10::DispatchKeySet all) {
  return (these | all) == all;  // operator- would leave out the bits of backends
}

/// Whether this thread has what looks at operators: a mode, a transform, a tracer, a profiler.
bool is_watched() {
  return !is_within(c10::impl::tls_local_dispatch_key_set().included_, c10::default_included_set) ||
         at::impl::torch_function_mode_enabled() || torch::profiler::impl::profilerEnabled();
}

/// Whether torch.autocast would cast it.
bool is_cast(const at::Tensor& x) {
  const at::DeviceType device = x.device().type();
  return at::autocast::is_autocast_enabled(device) &&
         at::autocast::get_autocast_dtype(device) != x.scalar_type();
}

/// Whether its memory is all that there is to know of it.
bool is_plain(const at::Tensor& x) {
  using Key = c10::DispatchKey;
  constexpr c10::DispatchKeySet plain({Key::CPU, Key::CUDA, Key::ADInplaceOrView, Key::AutogradCPU,
                                       Key::AutogradCUDA, Key::AutocastCPU, Key::AutocastCUDA});
  return is_within(x.key_set(), plain);
}

/// Whether its rows lie as stages take them: as _rows() of torch.py.
bool rows_fit(const at::Tensor& x) {
  const auto size = static_cast<std::int64_t>(x.element_size());
  const std::int64_t begin = size == 2 ? 16 : size;  // a row begins at a multiple of so many bytes
  for (int i = 0; i < 3; ++i) {
    if (x.size(i) > 1 && x.stride(i) * size % begin != 0) return false;
  }
  return x.stride(3) == 1 && reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % begin == 0;
}

/// Whether q, k and v fit together and into one launch.
bool fit(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  for (const at::Tensor* x : {&q, &k, &v}) {
    if (!is_plain(*x) || x->dim() != 4 || x->numel() == 0 || x->scalar_type() != q.scalar_type() ||
        x->device() != q.device() || !rows_fit(*x))
      return false;
  }
  return k.sizes() == v.sizes() && q.size(0) == k.size(0) && q.size(3) == k.size(3) &&
         q.size(1) % k.size(1) == 0 && q.size(0) <= most_blocks && q.size(1) <= most_blocks;
}

std::optional<Dtype> dtype_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return Dtype::fp32;
    case at::kHalf:
      return Dtype::fp16;
    case at::kBFloat16:
      return Dtype::bf16;
    default:
      return {};
  }
}

[[noreturn]] void throw_error_of_python() {
  python_error error;
  error.persist();
  throw error;
}

// --- which stages run

enum class Asked : std::int8_t { none, no, yes };  // Python's None, False and True

std::optional<Asked> asked(PyObject* object) {
  if (object == Py_None) return Asked::none;
  if (object == Py_False) return Asked::no;
  return object == Py_True ? std::optional(Asked::yes) : std::nullopt;
}

bool are_deterministic() {
  return at::globalContext().deterministicAlgorithms();
}

/// What the stages go by.
struct Question {
  at::ScalarType dtype;  // of q, as the next three
  std::int64_t d;
  at::DeviceType device_type;
  c10::DeviceIndex device;
  std::array<long, 3> stages;  // how many are named, and their numbers
  bool trains;
  Asked deterministic;
  bool must_be;  // deterministic, by the argument or by PyTorch's mode
  auto operator<=>(const Question&) const = default;
};

/// The stages of the two passes.
struct Choice {
  Question question;
  PyObject* stages;  // as torch.py's _numbers() gave them
  const flashladder::Stage* forward;
  const flashladder::Stage* backward;  // nullptr where the call does not train
};

/// What choose() says, remembered for good: nodes of the graph point to it. nullptr where the node
/// declines.
const Choice* chosen(const Question& question, PyObject* q, PyObject* stages) {
  static auto& known = *new std::map<Question, Choice>;  // only one thread at a time has the GIL
  if (const auto found = known.find(question); found != known.end()) return &found->second;
  const auto flag = [](bool is) { return is ? Py_True : Py_False; };
  const auto numbers = py::reinterpret_steal<py::object>(PyObject_CallFunctionObjArgs(
      choose, q, stages, flag(question.trains), flag(question.must_be), nullptr));
  if (!numbers) {
    if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw_error_of_python();  // such as Ctrl-C
    PyErr_Clear();  // the way in Python says what is wrong
    return nullptr;
  }
  int first = -1, second = -1;
  if (numbers.is_none()) return nullptr;
  if (PyArg_ParseTuple(numbers.ptr(), "ii", &first, &second) == 0) throw_error_of_python();
  const bool on_gpu = question.device_type == at::kCUDA;
  const Choice choice{question, stages, calls->stage(first, on_gpu),
                      question.trains ? calls->stage(second, on_gpu) : nullptr};
  if (choice.forward == nullptr || (question.trains && choice.backward == nullptr)) return nullptr;
  Py_INCREF(stages);
  return &known.emplace(question, choice).first->second;
}

// --- calls

flashladder::Tensor where_it_lies(const at::Tensor& x, Dtype dtype, void* data) {
  const auto stride = [&](int i) { return x.size(i) > 1 ? x.stride(i) : 0; };
  return {data, dtype, {stride(0), stride(1), stride(2)}};
}

flashladder::Tensor read(const at::Tensor& x, Dtype dtype) {
  return where_it_lies(x, dtype, const_cast<void*>(x.const_data_ptr()));
}

flashladder::Tensor written(const at::Tensor& x, Dtype dtype) {
  return where_it_lies(x, dtype, x.mutable_data_ptr());
}

/// L, contiguous.
flashladder::Tensor of_rows(const at::Tensor& lse) {
  return {
      const_cast<void*>(lse.const_data_ptr()), Dtype::fp32, {lse.size(1) * lse.size(2), lse.size(2), 1}};
}

/// What both passes are given.
PlainCall call_of(const flashladder::Stage* stage, const at::Tensor& q, const at::Tensor& k,
                  const at::Tensor& v, bool causal, double scale) {
  const Dtype dtype = *dtype_of(q);
  PlainCall call{};
  call.stage = stage, call.library = calls->library;
  call.device_type = q.is_cuda() ? flashladder::on_cuda : flashladder::on_cpu;
  call.device = q.is_cuda() ? q.get_device() : 0;
  call.batch = q.size(0), call.q_heads = q.size(1), call.kv_heads = k.size(1);
  call.Nq = q.size(2), call.Nk = k.size(2), call.d = q.size(3);
  call.dtype = dtype, call.causal = causal, call.scale = static_cast<float>(scale);
  call.Q = read(q, dtype), call.K = read(k, dtype), call.V = read(v, dtype);
  return call;
}

/// Whether it was done.
bool is_done(Answer answer) {
  if (answer == Answer::failed) throw_error_of_python();
  return answer == Answer::done;
}

/// O as flashladder.forward makes it: its dimensions lie in memory in the order of q's.
at::Tensor in_order_of(const at::Tensor& q) {
  if (q.is_contiguous()) return at::empty(q.sizes(), q.options());
  std::array<int, 3> order{2, 1, 0};  // the innermost first
  const bool repeats = std::ranges::any_of(order, [&](int i) { return q.stride(i) == 0 && q.size(i) > 1; });
  if (!repeats) std::ranges::stable_sort(order, {}, [&](int i) { return q.stride(i); });
  std::array<std::int64_t, 4> strides{0, 0, 0, 1};
  std::int64_t step = q.size(3);
  for (const int i : order) strides[i] = step, step *= q.size(i);
  return at::empty_strided(q.sizes(), strides, q.options());
}

/// O and L; nothing where the stage was not run.
variable_list forward_pass(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const Choice& choice, bool causal, double scale) {
  PlainCall call = call_of(choice.forward, q, k, v, causal, scale);
  at::Tensor o = in_order_of(q), lse = at::empty(q.sizes().slice(0, 3), q.options().dtype(at::kFloat));
  call.O = written(o, call.dtype), call.L = of_rows(lse);
  if (!is_done(calls->forward(call))) return {};
  return {o, lse};
}

struct Declined {};  // thrown out of Attention::forward

/// Attention in the graph. Its backward pass is Python's wherever something is special.
struct Attention : torch::autograd::Function<Attention> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const Choice& choice, bool causal, double scale,
                               bool return_lse) {
    variable_list made = forward_pass(q, k, v, choice, causal, scale);
    if (made.empty()) throw Declined();
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({made[0], made[1], q, k, v});
    ctx->saved_data["choice"] = reinterpret_cast<std::int64_t>(&choice);
    ctx->saved_data["causal"] = causal;
    ctx->saved_data["scale"] = scale;
    if (!return_lse) made.pop_back();
    return made;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& given) {
    const variable_list saved = ctx->get_saved_variables();
    const auto& choice = *reinterpret_cast<const Choice*>(ctx->saved_data["choice"].toInt());
    const bool causal = ctx->saved_data["causal"].toBool();
    const double scale = ctx->saved_data["scale"].toDouble();
    variable_list made = backward_pass(given, saved, choice, causal, scale);
    if (made.empty()) made = in_python(given, saved, choice, causal, scale);
    made.resize(3 + 4);  // the other arguments have none
    return made;
  }

 private:
  /// dQ, dK and dV; nothing where something is special: then nothing was launched.
  static variable_list backward_pass(const variable_list& given, const variable_list& saved,
                                     const Choice& choice, bool causal, double scale) {
    const auto& [o, lse, q, k, v] = std::tie(saved[0], saved[1], saved[2], saved[3], saved[4]);
    const Question& question = choice.question;
    const bool of_o_alone = given[0].defined() && (given.size() == 1 || !given[1].defined());
    const bool as_chosen = question.deterministic != Asked::none || question.must_be == are_deterministic();
    if (!of_o_alone || !as_chosen || at::GradMode::is_enabled() || is_watched()) return {};
    // Hooks may have put others in the place of what was saved. dO is like the O that was returned: PyTorch
    // sees to that.
    const auto is_one = [&](const at::Tensor& x, at::IntArrayRef sizes, at::ScalarType dtype) {
      return is_plain(x) && x.sizes() == sizes && x.scalar_type() == dtype && x.device() == q.device();
    };
    if (!fit(q, k, v) || !is_one(o, q.sizes(), question.dtype) ||
        !is_one(given[0], q.sizes(), question.dtype) || !is_one(lse, q.sizes().slice(0, 3), at::kFloat) ||
        !lse.is_contiguous() || !rows_fit(o))
      return {};
    const at::Tensor do_ = rows_fit(given[0]) ? given[0] : given[0].clone(at::MemoryFormat::Contiguous);
    PlainCall call = call_of(choice.backward, q, k, v, causal, scale);
    const auto like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
    const at::Tensor dq = like(q), dk = like(k), dv = like(v);
    call.O = read(o, call.dtype), call.L = of_rows(lse), call.dO = read(do_, call.dtype);
    call.dQ = written(dq, call.dtype), call.dK = written(dk, call.dtype), call.dV = written(dv, call.dtype);
    if (!is_done(calls->backward(call))) return {};
    return {dq, dk, dv};
  }

  static variable_list in_python(const variable_list& given, const variable_list& saved,
                                 const Choice& choice, bool causal, double scale) {
    const pybind11::gil_scoped_acquire held;
    const auto object = [](const at::Tensor& x) {
      return x.defined() ? py::reinterpret_steal<py::object>(THPVariable_Wrap(x)) : py::object(py::none());
    };
    const at::Tensor none;
    const auto as_python = [](Asked asked) {
      return asked == Asked::none ? Py_None : asked == Asked::yes ? Py_True : Py_False;
    };
    const py::object do_ = object(given[0]), dlse = object(given.size() > 1 ? given[1] : none);
    const py::tuple kept = py::make_tuple(object(saved[0]), object(saved[1]), object(saved[2]),
                                          object(saved[3]), object(saved[4]));
    const py::object factor = scale == 0 ? py::object(py::none()) : py::object(py::float_(scale));
    const auto made = py::reinterpret_steal<py::object>(PyObject_CallFunctionObjArgs(
        gradients, do_.ptr(), dlse.ptr(), kept.ptr(), causal ? Py_True : Py_False, factor.ptr(),
        choice.stages, as_python(choice.question.deterministic), nullptr));
    if (!made) throw_error_of_python();
    variable_list all;
    for (const py::handle one : py::tuple(made)) all.push_back(THPVariable_Unpack(one.ptr()));
    return all;
  }
};

// --- what Python calls

/// Whether it is this whole number; True is none.
bool is_number(PyObject* object, long number) {
  int overflow = 0;
  return PyLong_CheckExact(object) && PyLong_AsLongAndOverflow(object, &overflow) == number &&
         overflow == 0;
}

/// The same of 0, or 0.0.
bool is_zero(PyObject* object) {
  return is_number(object, 0) || (PyFloat_CheckExact(object) && PyFloat_AS_DOUBLE(object) == 0);
}

/// Whether what is behind return_lse asks for no variant: window_size, softcap, prefix, dropout_p and
/// arrays.
bool has_no_variant(PyObject* const* given, PyObject* const* end) {
  return PyTuple_CheckExact(given[0]) && PyTuple_GET_SIZE(given[0]) == 2 &&
         is_number(PyTuple_GET_ITEM(given[0], 0), -1) && is_number(PyTuple_GET_ITEM(given[0], 1), -1) &&
         is_zero(given[1]) && is_number(given[2], 0) && is_zero(given[3]) &&
         std::all_of(given + 4, end, [](PyObject* one) { return one == Py_None; });
}

/// What torch.py's attention() returns for its arguments, None where the node declines: q, k, v, causal,
/// scale, _numbers(stage), deterministic, return_lse, window_size, softcap, prefix, dropout_p, and the
/// arrays of variants.
PyObject* attention(PyObject*, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count < 12) return PyErr_Format(PyExc_TypeError, "attention was given %zd arguments", count);
  PyObject *const scale_given = given[4], *const stages = given[5];
  const auto causal = asked(given[3]), deterministic = asked(given[6]), return_lse = asked(given[7]);
  if (calls == nullptr || is_watched() || !std::all_of(given, given + 3, THPVariable_CheckExact) ||
      !causal || causal == Asked::none || !deterministic || !return_lse || return_lse == Asked::none ||
      (scale_given != Py_None && !PyFloat_CheckExact(scale_given)) ||
      !has_no_variant(given + 8, given + count))
    Py_RETURN_NONE;
  const double scale = scale_given == Py_None ? 0 : PyFloat_AS_DOUBLE(scale_given);
  if (scale_given != Py_None && static_cast<float>(scale) == 0) Py_RETURN_NONE;
  const at::Tensor q = THPVariable_Unpack(given[0]), k = THPVariable_Unpack(given[1]),
                   v = THPVariable_Unpack(given[2]);
  if (!fit(q, k, v) || !dtype_of(q) || is_cast(q)) Py_RETURN_NONE;

  const bool trains =
      at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
  const bool by_mode = trains && deterministic == Asked::none && are_deterministic();
  if (by_mode && at::globalContext().deterministicAlgorithmsWarnOnly())
    Py_RETURN_NONE;  // each call may warn
  Question question{.dtype = q.scalar_type(),
                    .d = q.size(3),
                    .device_type = q.device().type(),
                    .device = q.device().index(),
                    .stages = {PyTuple_GET_SIZE(stages)},
                    .trains = trains,
                    .deterministic = *deterministic,
                    .must_be = by_mode || deterministic == Asked::yes};
  for (Py_ssize_t i = 0; i < question.stages[0]; ++i)
    question.stages[1 + i] = PyLong_AsLong(PyTuple_GET_ITEM(stages, i));
  const Choice* const choice = chosen(question, given[0], stages);
  if (choice == nullptr) Py_RETURN_NONE;

  variable_list made;
  {
    const pybind11::gil_scoped_release released;
    const bool masked = causal == Asked::yes;
    try {
      made = trains ? Attention::apply(q, k, v, *choice, masked, scale, return_lse == Asked::yes)
                    : forward_pass(q, k, v, *choice, masked, scale);
    } catch (const Declined&) {
    }
  }
  if (made.empty()) Py_RETURN_NONE;
  PyObject* const o = THPVariable_Wrap(std::move(made[0]));
  return return_lse == Asked::yes ? Py_BuildValue("NN", o, THPVariable_Wrap(std::move(made[1]))) : o;
  END_HANDLE_TH_ERRORS
}

/// use(calls, most_blocks, choose, gradients): before anything else. calls is _core.calls(torch.Tensor).
PyObject* use(PyObject*, PyObject* arguments) {
  PyObject* capsule = nullptr;
  if (!PyArg_ParseTuple(arguments, "OlOO", &capsule, &most_blocks, &choose, &gradients)) return nullptr;
  calls = static_cast<const Calls*>(PyCapsule_GetPointer(capsule, flashladder::calls_name));
  if (calls == nullptr) return nullptr;
  Py_INCREF(choose), Py_INCREF(gradients);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"attention", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&attention)), METH_FASTCALL,
     nullptr},
    {"use", &use, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

#define TEXT_OF(name) #name
#define AS_TEXT(name) TEXT_OF(name)
#define JOINED(left, right) left##right
#define INIT_OF(name) JOINED(PyInit_, name)

PyModuleDef definition{PyModuleDef_HEAD_INIT,
                       AS_TEXT(FLASHLADDER_TORCH_MODULE),
                       "The node of PyTorch's graph, compiled: see flashladder.torch.",
                       -1,
                       methods,
                       nullptr,
                       nullptr,
                       nullptr,
                       nullptr};

}  // namespace

/// Of the module, whose name FLASHLADDER_TORCH_MODULE is: _torch_ and torch.__version__, with _ for what is
/// no letter and no digit.
PyMODINIT_FUNC INIT_OF(FLASHLADDER_TORCH_MODULE)() {
  return PyModule_Create(&definition);
}
