// How are the products and kernels of every step launched one after another, without Python between them?
//
// Python lists what one step does (scan/walk.py); this loop hands the list to the CUDA driver and to cuBLAS once for each step. Both
// are reached through the addresses Python found, so nothing of CUDA is needed to compile or to load this.
#include <cstdint>

namespace {

// one product of a step, in elements and in cuBLAS's columns: out = a w, for `parts` pieces of `terms` terms each
struct Product {
  std::int64_t a, a_step, a_row, a_part;
  std::int64_t w, w_row, w_part;
  std::int64_t out, out_step, out_row, out_part;
  std::int32_t rows, columns, terms, parts, shift, transposed;
};

struct Launch {
  void* function;
  void** arguments;
  std::int32_t* t;  // the argument that changes
  std::uint32_t grid_x, grid_y, threads, shared;
};

struct Action {
  std::int32_t kind, later;  // 0 a product, 1 a kernel; later: not at the first step
  Product product;
  Launch launch;
};

struct Where {
  void *handle, *stream;
  void *multiply, *multiply_parts, *launch;  // cublasGemmEx, cublasGemmStridedBatchedEx, cuLaunchKernel
  std::int32_t type, bytes;                  // of the elements
};

using Gemm = int (*)(
    void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*, void*, int, int, int, int);
using GemmParts = int (*)(
    void*, int, int, int, int, int, const void*, const void*, int, int, long long, const void*, int, int, long long, const void*,
    void*, int, int, long long, int, int, int);
using LaunchKernel = int (*)(
    void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);

constexpr int SINGLE = 68;   // CUBLAS_COMPUTE_32F: sums in float32; whether by TF32 is the handle's setting, which is torch's
constexpr int CHOOSE = 99;   // CUBLAS_GEMM_DEFAULT_TENSOR_OP

int multiply(const Where& where, const Product& p, std::int64_t t) {
  const float one = 1, zero = 0;
  const auto at = [&](std::int64_t base, std::int64_t step, std::int64_t k) {
    return reinterpret_cast<void*>(base + step * k * where.bytes);
  };
  void *a = at(p.a, p.a_step, t + p.shift), *w = at(p.w, 0, 0), *out = at(p.out, p.out_step, t);
  const int turned = p.transposed ? 1 : 0, type = where.type;
  const int w_row = static_cast<int>(p.w_row), a_row = static_cast<int>(p.a_row), out_row = static_cast<int>(p.out_row);
  if (p.parts == 1)
    return reinterpret_cast<Gemm>(where.multiply)(
        where.handle, turned, 0, p.columns, p.rows, p.terms, &one, w, type, w_row, a, type, a_row, &zero, out, type, out_row, SINGLE,
        CHOOSE);
  return reinterpret_cast<GemmParts>(where.multiply_parts)(
      where.handle, turned, 0, p.columns, p.rows, p.terms, &one, w, type, w_row, p.w_part, a, type, a_row, p.a_part, &zero, out, type,
      out_row, p.out_part, p.parts, SINGLE, CHOOSE);
}

int launch(const Where& where, const Launch& k, std::int64_t t) {
  *k.t = static_cast<std::int32_t>(t);  // the driver copies the arguments before it returns
  return reinterpret_cast<LaunchKernel>(where.launch)(
      k.function, k.grid_x, k.grid_y, 1, k.threads, 1, 1, k.shared, where.stream, k.arguments, nullptr);
}

}  // namespace

// 0, or what failed: 1 + the status of cuBLAS times 2, or 2 + the driver's error times 2
extern "C" __attribute__((visibility("default"))) std::int64_t multint_walk(
    const Where* where, const Action* actions, std::int64_t count, std::int64_t first, std::int64_t steps, std::int64_t direction) {
  for (std::int64_t k = 0; k < steps; ++k)
    for (std::int64_t j = 0; j < count; ++j) {
      const Action& action = actions[j];
      if (k == 0 && action.later) continue;
      const std::int64_t t = first + k * direction;
      const int failed = action.kind == 0 ? multiply(*where, action.product, t) : launch(*where, action.launch, t);
      if (failed != 0) return std::int64_t{failed} * 2 + (action.kind == 0 ? 1 : 2);
    }
  return 0;
}
