// What does cells.h need of "lanes.h" on a GPU? There V is float: one unit of one row, and warps are the lanes.
// Included inside a namespace, so that these names stand before CUDA's own.
#pragma once

#define INLINE static __device__ __forceinline__

// one instruction, good to 11 bits: as many as the float16 its results may be stored in has, and more than a bfloat16
INLINE float tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
INLINE float sigmoid(float x) { return 0.5f * tanh(0.5f * x) + 0.5f; }

struct Tanh {
  template <class V> INLINE V phi(const V& x) { return tanh(x); }
  template <class V> INLINE V slope(const V& y) { return 1 - y * y; }
};
struct Relu {
  template <class V> INLINE V phi(const V& x) { return x < 0 ? V{} : x; }  // NaN stays
  template <class V> INLINE V slope(const V& y) { return y > 0 ? V{1} : V{}; }
};
struct Identity {
  template <class V> INLINE V phi(const V& x) { return x; }
  template <class V> INLINE V slope(const V&) { return V{1}; }
};
