#pragma once
#include <cstdint>
#include <string_view>

namespace flashladder {

/// Element types of Q, K, V, O and their gradients. L, the logsumexp, is always fp32; int32 is of
/// positions, and no stage computes in it.
enum class Dtype { fp32, fp16, bf16, int32 };

/// "fp32", "fp16", "bf16" or "int32".
std::string_view to_string(Dtype dtype);

/// The dtype of that name, of those that stages compute in. Throws UsageError naming the three.
Dtype parse_dtype(std::string_view name);

/// `value` as a number of type `dtype` holds it (round to nearest, ties to even; overflow gives infinity),
/// widened to fp32 again. int32 holds whole numbers.
float round_to(Dtype dtype, float value);

/// Bytes of an element.
std::int64_t size_of(Dtype dtype);
/// Stores `value`, rounded as by round_to, as an element at `to`.
void store_as(Dtype dtype, float value, void* to);
/// The element at `from`, widened to fp32.
float load_as(Dtype dtype, const void* from);

/// The unit roundoff of `dtype`: the largest relative error of one rounding, 2^-24, 2^-11 or 2^-8; 0 of
/// int32.
double unit_roundoff(Dtype dtype);

}  // namespace flashladder
