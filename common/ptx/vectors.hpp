#pragma once

namespace flashladder::simt {

/// How many floats a vector register of this processor has. g++ and clang make no vector instructions of
/// what is done with more at a time, but take it apart element by element.
#ifdef __AVX__
inline constexpr int vector_floats = 8;
#else
inline constexpr int vector_floats = 4;
#endif
typedef float FloatVector __attribute__((vector_size(4 * vector_floats)));

}  // namespace flashladder::simt
