#pragma once
// The instructions of wgmma.hpp for nvcc. PTX wants each of a thread's N / 2 accumulators written down, so
// that each N is a text of its own; the macros write it. wgmma.hpp alone includes this file.
#include "common/simt/simt.hpp"

namespace flashladder {
inline namespace for_cuda {

/// wgmma.mma_async.m64nNk16 with N = 8 n8: A from shared memory, or from registers; B from shared memory.
/// transposed_a, transposed_b: 1 where the matrix is MN-major. add: 0 where C begins as zero.
template <class T, int n8>
struct Wgmma;

#define FLASHLADDER_NAMES_2 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FLASHLADDER_NAMES_4 FLASHLADDER_NAMES_2 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FLASHLADDER_NAMES_6 FLASHLADDER_NAMES_4 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define FLASHLADDER_NAMES_8 FLASHLADDER_NAMES_6 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define FLASHLADDER_NAMES_10 FLASHLADDER_NAMES_8 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define FLASHLADDER_NAMES_12 FLASHLADDER_NAMES_10 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define FLASHLADDER_NAMES_14 FLASHLADDER_NAMES_12 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define FLASHLADDER_NAMES_16 FLASHLADDER_NAMES_14 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define FLASHLADDER_NAMES_18 FLASHLADDER_NAMES_16 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define FLASHLADDER_NAMES_20 FLASHLADDER_NAMES_18 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define FLASHLADDER_NAMES_22 FLASHLADDER_NAMES_20 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define FLASHLADDER_NAMES_24 FLASHLADDER_NAMES_22 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define FLASHLADDER_NAMES_26 FLASHLADDER_NAMES_24 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define FLASHLADDER_NAMES_28 FLASHLADDER_NAMES_26 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define FLASHLADDER_NAMES_30 FLASHLADDER_NAMES_28 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define FLASHLADDER_NAMES_32 FLASHLADDER_NAMES_30 ", %120, %121, %122, %123, %124, %125, %126, %127"

#define FLASHLADDER_FOUR(x) "+f"(C[x][0]), "+f"(C[x][1]), "+f"(C[x][2]), "+f"(C[x][3])
#define FLASHLADDER_BOUND_2 FLASHLADDER_FOUR(0), FLASHLADDER_FOUR(1)
#define FLASHLADDER_BOUND_4 FLASHLADDER_BOUND_2, FLASHLADDER_FOUR(2), FLASHLADDER_FOUR(3)
#define FLASHLADDER_BOUND_6 FLASHLADDER_BOUND_4, FLASHLADDER_FOUR(4), FLASHLADDER_FOUR(5)
#define FLASHLADDER_BOUND_8 FLASHLADDER_BOUND_6, FLASHLADDER_FOUR(6), FLASHLADDER_FOUR(7)
#define FLASHLADDER_BOUND_10 FLASHLADDER_BOUND_8, FLASHLADDER_FOUR(8), FLASHLADDER_FOUR(9)
#define FLASHLADDER_BOUND_12 FLASHLADDER_BOUND_10, FLASHLADDER_FOUR(10), FLASHLADDER_FOUR(11)
#define FLASHLADDER_BOUND_14 FLASHLADDER_BOUND_12, FLASHLADDER_FOUR(12), FLASHLADDER_FOUR(13)
#define FLASHLADDER_BOUND_16 FLASHLADDER_BOUND_14, FLASHLADDER_FOUR(14), FLASHLADDER_FOUR(15)
#define FLASHLADDER_BOUND_18 FLASHLADDER_BOUND_16, FLASHLADDER_FOUR(16), FLASHLADDER_FOUR(17)
#define FLASHLADDER_BOUND_20 FLASHLADDER_BOUND_18, FLASHLADDER_FOUR(18), FLASHLADDER_FOUR(19)
#define FLASHLADDER_BOUND_22 FLASHLADDER_BOUND_20, FLASHLADDER_FOUR(20), FLASHLADDER_FOUR(21)
#define FLASHLADDER_BOUND_24 FLASHLADDER_BOUND_22, FLASHLADDER_FOUR(22), FLASHLADDER_FOUR(23)
#define FLASHLADDER_BOUND_26 FLASHLADDER_BOUND_24, FLASHLADDER_FOUR(24), FLASHLADDER_FOUR(25)
#define FLASHLADDER_BOUND_28 FLASHLADDER_BOUND_26, FLASHLADDER_FOUR(26), FLASHLADDER_FOUR(27)
#define FLASHLADDER_BOUND_30 FLASHLADDER_BOUND_28, FLASHLADDER_FOUR(28), FLASHLADDER_FOUR(29)
#define FLASHLADDER_BOUND_32 FLASHLADDER_BOUND_30, FLASHLADDER_FOUR(30), FLASHLADDER_FOUR(31)

// p0 ... p6: the numbers of the operands behind the accumulators
#define FLASHLADDER_WGMMA_OF(n8, N, type, p0, p1, p2, p3, p4, p5, p6)                                  \
  template <>                                                                                          \
  struct Wgmma<type, n8> {                                                                             \
    template <int transposed_a, int transposed_b>                                                      \
    static __device__ __forceinline__ void shared(float (&C)[n8][4], unsigned long long A,             \
                                                  unsigned long long B, int add) {                     \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #p2                                        \
                   ", 0;\n"                                                                            \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." FLASHLADDER_##type                \
                   "." FLASHLADDER_##type " {" FLASHLADDER_NAMES_##n8                                  \
                   "}, %" #p0 ", %" #p1 ", add, 1, 1, %" #p3 ", %" #p4 ";\n}"                          \
                   : FLASHLADDER_BOUND_##n8                                                            \
                   : "l"(A), "l"(B), "r"(add), "n"(transposed_a), "n"(transposed_b));                  \
    }                                                                                                  \
    template <int transposed_b>                                                                        \
    static __device__ __forceinline__ void registers(float (&C)[n8][4], const std::uint32_t (&A)[4],   \
                                                     unsigned long long B, int add) {                  \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #p5                                        \
                   ", 0;\n"                                                                            \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." FLASHLADDER_##type                \
                   "." FLASHLADDER_##type " {" FLASHLADDER_NAMES_##n8                                  \
                   "}, {%" #p0 ", %" #p1 ", %" #p2 ", %" #p3 "}, %" #p4 ", add, 1, 1, %" #p6 ";\n}"    \
                   : FLASHLADDER_BOUND_##n8                                                            \
                   : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "l"(B), "r"(add), "n"(transposed_b)); \
    }                                                                                                  \
  };
#define FLASHLADDER_WGMMA(n8, N, ...)           \
  FLASHLADDER_WGMMA_OF(n8, N, f16, __VA_ARGS__) \
  FLASHLADDER_WGMMA_OF(n8, N, bf16, __VA_ARGS__)
#define FLASHLADDER_f16 "f16"
#define FLASHLADDER_bf16 "bf16"
FLASHLADDER_WGMMA(2, 16, 8, 9, 10, 11, 12, 13, 14)
FLASHLADDER_WGMMA(4, 32, 16, 17, 18, 19, 20, 21, 22)
FLASHLADDER_WGMMA(6, 48, 24, 25, 26, 27, 28, 29, 30)
FLASHLADDER_WGMMA(8, 64, 32, 33, 34, 35, 36, 37, 38)
FLASHLADDER_WGMMA(10, 80, 40, 41, 42, 43, 44, 45, 46)
FLASHLADDER_WGMMA(12, 96, 48, 49, 50, 51, 52, 53, 54)
FLASHLADDER_WGMMA(14, 112, 56, 57, 58, 59, 60, 61, 62)
FLASHLADDER_WGMMA(16, 128, 64, 65, 66, 67, 68, 69, 70)
FLASHLADDER_WGMMA(18, 144, 72, 73, 74, 75, 76, 77, 78)
FLASHLADDER_WGMMA(20, 160, 80, 81, 82, 83, 84, 85, 86)
FLASHLADDER_WGMMA(22, 176, 88, 89, 90, 91, 92, 93, 94)
FLASHLADDER_WGMMA(24, 192, 96, 97, 98, 99, 100, 101, 102)
FLASHLADDER_WGMMA(26, 208, 104, 105, 106, 107, 108, 109, 110)
FLASHLADDER_WGMMA(28, 224, 112, 113, 114, 115, 116, 117, 118)
FLASHLADDER_WGMMA(30, 240, 120, 121, 122, 123, 124, 125, 126)
FLASHLADDER_WGMMA(32, 256, 128, 129, 130, 131, 132, 133, 134)

#undef FLASHLADDER_NAMES_2
#undef FLASHLADDER_BOUND_2
#undef FLASHLADDER_NAMES_4
#undef FLASHLADDER_BOUND_4
#undef FLASHLADDER_NAMES_6
#undef FLASHLADDER_BOUND_6
#undef FLASHLADDER_NAMES_8
#undef FLASHLADDER_BOUND_8
#undef FLASHLADDER_NAMES_10
#undef FLASHLADDER_BOUND_10
#undef FLASHLADDER_NAMES_12
#undef FLASHLADDER_BOUND_12
#undef FLASHLADDER_NAMES_14
#undef FLASHLADDER_BOUND_14
#undef FLASHLADDER_NAMES_16
#undef FLASHLADDER_BOUND_16
#undef FLASHLADDER_NAMES_18
#undef FLASHLADDER_BOUND_18
#undef FLASHLADDER_NAMES_20
#undef FLASHLADDER_BOUND_20
#undef FLASHLADDER_NAMES_22
#undef FLASHLADDER_BOUND_22
#undef FLASHLADDER_NAMES_24
#undef FLASHLADDER_BOUND_24
#undef FLASHLADDER_NAMES_26
#undef FLASHLADDER_BOUND_26
#undef FLASHLADDER_NAMES_28
#undef FLASHLADDER_BOUND_28
#undef FLASHLADDER_NAMES_30
#undef FLASHLADDER_BOUND_30
#undef FLASHLADDER_NAMES_32
#undef FLASHLADDER_BOUND_32
#undef FLASHLADDER_FOUR
#undef FLASHLADDER_WGMMA_OF
#undef FLASHLADDER_WGMMA
#undef FLASHLADDER_f16
#undef FLASHLADDER_bf16

}  // namespace for_cuda
}  // namespace flashladder
