// The words of HIP and CUDA that kernels use, as C++ (-include hip_shim.h). Threads and waiting: gpu_threads.h.
#pragma once
#include "gpu_threads.h"
#include "ptx_shim.h"

#define _Float16 gpu::Half             // g++ has it in C++ from 13 on

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__
#define __align__(n) __attribute__((aligned(n)))

namespace gpu {
struct Index {
  unsigned x, y, z;
};
}  // namespace gpu
#define threadIdx (gpu::Index{gpu::thread(), 0, 0})
#define blockIdx (gpu::Index{gpu::group(), 0, 0})
#define gridDim (gpu::Index{gpu::groups(), 1, 1})

#define __syncthreads() gpu::barrier(__LINE__)
#define __shfl_down(x, step, width) gpu::shuffle_down(x, step, width, __LINE__)
#define __shfl_down_sync(mask, x, step) gpu::shuffle_down(x, step, 32, __LINE__)
#define __shfl_xor(x, mask, width) gpu::shuffle_xor(x, mask, __LINE__)
#define __shfl_xor_sync(all, x, mask) gpu::shuffle_xor(x, mask, __LINE__)
#define __cvta_generic_to_shared(p) gpu::shared_offset(p)

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
template <typename T> inline void __stwb(T *p, T x) { *p = x; }

inline float __int_as_float(int x) { return gpu::bits_as<float>(x); }
inline float __uint_as_float(unsigned x) { return gpu::bits_as<float>(x); }
inline double __longlong_as_double(long long x) { return gpu::bits_as<double>(x); }

extern "C" {
float fmaf(float, float, float), sqrtf(float), truncf(float), rintf(float), fabsf(float), exp2f(float);
double fma(double, double, double), sqrt(double), trunc(double), rint(double), fabs(double);
}
