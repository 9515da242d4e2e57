// How does torch reach the kernels? As operators on LibTorch's stable ABI, so one build serves every torch from 2.11 on.
// layers.py names a tensor of another shape, scan/cpu.py holds the fake kernels and the derivative; what would be read out of bounds is
// refused here too.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include <pthread.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "kernels.h"

namespace multint {
#define MULTINT_DECLARE(level) \
  extern const Kernels kernels_##level##_float32, kernels_##level##_float64, kernels_##level##_bfloat16;
MULTINT_DECLARE(base)
MULTINT_DECLARE(avx2)
MULTINT_DECLARE(avx512)
MULTINT_DECLARE(avx512bf16)

namespace {
using torch::headeronly::ScalarType;
using torch::stable::Tensor;
typedef std::optional<Tensor> Maybe;

#if defined(__x86_64__)
#define MULTINT_CAN(feature) __builtin_cpu_supports(feature)
#else
#define MULTINT_CAN(feature) false
#endif

struct Level {
  const char* name;
  const Kernels *float32, *float64, *bfloat16;
};
#define MULTINT_LEVEL(level) Level{#level, &kernels_##level##_float32, &kernels_##level##_float64, &kernels_##level##_bfloat16}

// the best the machine can run of what was linked in; without a name if there is none
Level best() {
#if defined(MULTINT_HAVE_AVX512) || defined(MULTINT_HAVE_AVX512BF16)
  const bool wide = MULTINT_CAN("avx512f") && MULTINT_CAN("avx512dq") && MULTINT_CAN("avx512bw") && MULTINT_CAN("avx512vl");
#endif
#if defined(MULTINT_HAVE_AVX512BF16)
  if (wide && MULTINT_CAN("avx512bf16")) return MULTINT_LEVEL(avx512bf16);
#endif
#if defined(MULTINT_HAVE_AVX512)
  if (wide) return MULTINT_LEVEL(avx512);
#endif
#if defined(MULTINT_HAVE_AVX2)
  if (MULTINT_CAN("avx2") && MULTINT_CAN("fma")) return MULTINT_LEVEL(avx2);
#endif
#if defined(MULTINT_HAVE_BASE)
  return MULTINT_LEVEL(base);
#endif
  return {"", nullptr, nullptr, nullptr};
}
const Level level = best();
int most_threads = 1 << 20;
// a forked child has lost the pool's other threads, and would wait for them for ever
[[maybe_unused]] const int alone_after_fork = pthread_atfork(nullptr, nullptr, [] { most_threads = 1; });

Threads threads() {
  const int have = static_cast<int>(torch::stable::get_num_threads());
  return {std::min(have, most_threads), [](int team, void (*body)(int64_t, int64_t, void*), void* data) {
            torch::stable::parallel_for(0, team, 1, [=](int64_t first, int64_t last) { body(first, last, data); });
          }};
}

const Kernels& kernels(const Tensor& x) {
  STD_TORCH_CHECK(level.float32 != nullptr, "multint's CPU kernels were built for another instruction set");
  switch (x.scalar_type()) {
    case ScalarType::Float: return *level.float32;
    case ScalarType::Double: return *level.float64;
    case ScalarType::BFloat16: return *level.bfloat16;
    default: STD_TORCH_CHECK(false, "multint's CPU kernels take float32, float64 and bfloat16");
  }
}

Maybe whole(const Maybe& x) { return x.has_value() ? Maybe(torch::stable::contiguous(*x)) : x; }
template <class T> const T* pointer(const Maybe& x) { return x.has_value() ? static_cast<const T*>(x->const_data_ptr()) : nullptr; }
Tensor none(const Tensor& like) { return torch::stable::new_empty(like, {0}); }

int64_t gates_of(CellKind cell) {
  switch (cell) {
    case CellKind::rnn: return 1;
    case CellKind::lstm: return 4;
    default: return 3;
  }
}
// steps between marks, whose flows take so many bytes: found here, so that a compiled graph need not know the number of rows for it
int64_t span_of(int64_t bytes, const Tensor& h, const Tensor& u) {
  return bytes / (2 * h.size(0) * u.size(0) * u.element_size() + 1) + 1;
}

// the tensors of a scan, contiguous and alive as long as their pointers are used
struct Inputs {
  Maybe wx, tokens, u, vectors, bias_hn, h, c, lengths, resets, restart_h, restart_c;
  Scan scan;

  Inputs(const Tensor& wx, const Maybe& tokens, const Tensor& u, const Tensor& vectors, const Maybe& bias_hn,
         const Tensor& h, const Maybe& c, const Maybe& lengths, const Maybe& resets, const Maybe& restart_h, const Maybe& restart_c,
         int64_t cell, int64_t phi, int64_t span_bytes, bool from_x = false)
      : wx(whole(wx)), tokens(whole(tokens)), u(whole(u)), vectors(whole(vectors)), bias_hn(whole(bias_hn)),
        h(whole(h)), c(whole(c)), lengths(whole(lengths)), resets(whole(resets)), restart_h(whole(restart_h)),
        restart_c(whole(restart_c)) {
    const bool by_token = tokens.has_value();
    scan = {static_cast<CellKind>(cell), static_cast<PhiKind>(phi),
            (by_token ? *tokens : wx).size(0), h.size(0), h.size(1), span_of(span_bytes, h, u),
            this->wx->const_data_ptr(), pointer<int64_t>(this->tokens), by_token ? wx.size(0) : 0, nullptr, nullptr, 0,
            this->u->const_data_ptr(), pointer<void>(this->vectors), pointer<void>(this->bias_hn), this->h->const_data_ptr(),
            pointer<void>(this->c), pointer<int64_t>(this->lengths), pointer<bool>(this->resets), pointer<void>(this->restart_h),
            pointer<void>(this->restart_c)};
    const int64_t t = scan.t, n = scan.n, h_size = scan.h, gates = u.size(0);
    STD_TORCH_CHECK(gates == h_size * gates_of(scan.cell) && u.size(1) == h_size, "U is (", gates, ", ", u.size(1), "), not gates * ", h_size,
                    " by ", h_size);
    STD_TORCH_CHECK(vectors.size(0) == 4 && vectors.size(1) == gates, "the vectors of Eq. 4 are not 4 by ", gates);
    STD_TORCH_CHECK(from_x || wx.size(wx.dim() - 1) == gates, "W x has ", wx.size(wx.dim() - 1), " columns, not ", gates);
    STD_TORCH_CHECK(by_token || wx.size(1) == n, "the input has ", wx.size(1), " rows, the state has ", n);
    STD_TORCH_CHECK(!by_token || tokens->size(1) == n, "the tokens do not have the ", n, " rows of the state");
    STD_TORCH_CHECK(!bias_hn.has_value() || bias_hn->numel() == h_size, "the inner bias does not have ", h_size, " values");
    STD_TORCH_CHECK(!lengths.has_value() || lengths->numel() == n, "there are not ", n, " lengths");
    STD_TORCH_CHECK(!resets.has_value() || resets->numel() == t * n, "there are not ", t, " by ", n, " resets");
    for (const Maybe* state : {&c, &restart_h, &restart_c})
      STD_TORCH_CHECK(!state->has_value() || (*state)->numel() == n * h_size, "a state is not ", n, " by ", h_size);
    for (int64_t q = 0; by_token && q < scan.t * scan.n; q++)
      STD_TORCH_CHECK(scan.tokens[q] >= 0 && scan.tokens[q] < scan.symbols, "index out of range in self: token ", scan.tokens[q],
                      " of a table of ", scan.symbols, " symbols");
  }
};

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> forward(
    const Tensor& wx, const Maybe& tokens, const Tensor& u, const Tensor& vectors, const Maybe& bias_hn,
    const Tensor& h, const Maybe& c, const Maybe& lengths, const Maybe& resets, const Maybe& restart_h, const Maybe& restart_c,
    int64_t cell, int64_t phi, int64_t span_bytes, bool keep) {
  const Inputs x(wx, tokens, u, vectors, bias_hn, h, c, lengths, resets, restart_h, restart_c, cell, phi, span_bytes);
  const Scan& s = x.scan;
  Tensor outputs = torch::stable::new_empty(u, {s.t, s.n, s.h});
  Tensor h_n = torch::stable::new_empty(h, {s.n, s.h}), c_n = c.has_value() ? torch::stable::new_empty(h, {s.n, s.h}) : none(h);
  Tensor uz = keep ? torch::stable::new_empty(u, {s.t, s.n, u.size(0)}) : none(u);
  Tensor marks = keep ? torch::stable::new_empty(h, {(s.t + s.span - 1) / s.span, c.has_value() ? 2 : 1, s.n, s.h}) : none(h);
  if (s.n > 0)
    kernels(u).forward({s, outputs.mutable_data_ptr(), h_n.mutable_data_ptr(), c_n.mutable_data_ptr(),
                    keep ? uz.mutable_data_ptr() : nullptr, marks.mutable_data_ptr()}, threads());
  return {outputs, h_n, c_n, uz, marks};
}

// from the input itself, with nothing kept for a backward pass
std::tuple<Tensor, Tensor, Tensor> layer(
    const Tensor& x, const Tensor& w, const Tensor& u, const Tensor& vectors, const Maybe& bias_hn, const Tensor& h, const Maybe& c,
    const Maybe& lengths, const Maybe& resets, const Maybe& restart_h, const Maybe& restart_c, int64_t cell, int64_t phi) {
  Inputs all(x, std::nullopt, u, vectors, bias_hn, h, c, lengths, resets, restart_h, restart_c, cell, phi, 0, true);
  STD_TORCH_CHECK(w.size(0) == u.size(0) && w.size(1) == x.size(2), "W is (", w.size(0), ", ", w.size(1), "), not ", u.size(0), " by ",
                  x.size(2));
  const Tensor weight = torch::stable::contiguous(w);
  Scan& s = all.scan;
  s.x = s.wx, s.w = weight.const_data_ptr(), s.i = w.size(1), s.wx = nullptr;
  Tensor outputs = torch::stable::new_empty(u, {s.t, s.n, s.h});
  Tensor h_n = torch::stable::new_empty(h, {s.n, s.h}), c_n = c.has_value() ? torch::stable::new_empty(h, {s.n, s.h}) : none(h);
  if (s.n > 0)
    kernels(u).forward({s, outputs.mutable_data_ptr(), h_n.mutable_data_ptr(), c_n.mutable_data_ptr(), nullptr, nullptr}, threads());
  return {outputs, h_n, c_n};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& d_outputs, const Tensor& d_h_n, const Tensor& d_c_n, const Tensor& uz, const Tensor& marks,
    const Tensor& wx, const Maybe& tokens, const Tensor& u, const Tensor& vectors, const Maybe& bias_hn,
    const Tensor& h, const Maybe& c, const Maybe& lengths, const Maybe& resets, const Maybe& restart_h, const Maybe& restart_c,
    int64_t cell, int64_t phi, int64_t span_bytes) {
  const Inputs x(wx, tokens, u, vectors, bias_hn, h, c, lengths, resets, restart_h, restart_c, cell, phi, span_bytes);
  const Scan& s = x.scan;
  const auto like = [&](const Maybe& y) { return y.has_value() ? torch::stable::new_empty(*y, y->sizes()) : none(h); };
  Tensor d_wx = like(Maybe(wx)), d_u = like(Maybe(u)), d_vectors = like(Maybe(vectors)), d_bias_hn = like(bias_hn);
  Tensor d_h = like(Maybe(h)), d_c = like(c), d_restart_h = like(restart_h), d_restart_c = like(restart_c);
  if (s.n > 0) {
    const Tensor g = torch::stable::contiguous(d_outputs), g_h = torch::stable::contiguous(d_h_n);
    const Tensor g_c = torch::stable::contiguous(d_c_n), kept = torch::stable::contiguous(uz);
    const Tensor states = torch::stable::contiguous(marks);
    kernels(u).backward({s, kept.const_data_ptr(), states.const_data_ptr(), g.const_data_ptr(), g_h.const_data_ptr(),
                     g_c.const_data_ptr(), d_wx.mutable_data_ptr(), d_u.mutable_data_ptr(), d_vectors.mutable_data_ptr(),
                     bias_hn.has_value() ? d_bias_hn.mutable_data_ptr() : nullptr, d_h.mutable_data_ptr(), d_c.mutable_data_ptr(),
                     d_restart_h.mutable_data_ptr(), d_restart_c.mutable_data_ptr()}, threads());
  } else {
    for (Tensor* d : {&d_wx, &d_u, &d_vectors, &d_bias_hn}) torch::stable::zero_(*d);
  }
  return {d_wx, d_u, d_vectors, d_bias_hn, d_h, d_c, d_restart_h, d_restart_c};
}

// a (m, k) or with transpose_a (k, m), times b (k, n) or with transpose_b (n, k)
Tensor multiply(const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b) {
  const Tensor left = torch::stable::contiguous(a), right = torch::stable::contiguous(b);
  const int64_t m = a.size(transpose_a ? 1 : 0), k = a.size(transpose_a ? 0 : 1), n = b.size(transpose_b ? 0 : 1);
  STD_TORCH_CHECK(b.size(transpose_b ? 1 : 0) == k, "the inner sizes of a product differ: ", k, " and ", b.size(transpose_b ? 1 : 0));
  Tensor c = torch::stable::new_empty(a, {m, n});
  if (k == 0) {
    torch::stable::zero_(c);
  } else if (m > 0 && n > 0) {
    kernels(a).multiply({m, n, k, transpose_a, left.const_data_ptr(), transpose_a ? m : k, right.const_data_ptr(),
                     transpose_b ? 1 : n, transpose_b ? k : 1, c.mutable_data_ptr()}, threads());
  }
  return c;
}
}  // namespace
}  // namespace multint

extern "C" __attribute__((visibility("default"))) const char* multint_level() {
  return multint::level.name;
}
extern "C" __attribute__((visibility("default"))) void multint_limit_threads(int most) { multint::most_threads = most; }

#define MULTINT_REST                                                                                                 \
  "Tensor u, Tensor vectors, Tensor? bias_hn, Tensor h, Tensor? c, Tensor? lengths, Tensor? resets, Tensor? restart_h, " \
  "Tensor? restart_c, int cell, int phi"
#define MULTINT_SCAN "Tensor wx, Tensor? tokens, " MULTINT_REST ", int span_bytes"

STABLE_TORCH_LIBRARY_FRAGMENT(multint, m) {
  m.def("cpu_forward(" MULTINT_SCAN ", bool keep) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def("cpu_layer(Tensor x, Tensor w, " MULTINT_REST ") -> (Tensor, Tensor, Tensor)");
  m.def("cpu_backward(Tensor d_outputs, Tensor d_h_n, Tensor d_c_n, Tensor uz, Tensor marks, " MULTINT_SCAN
        ") -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def("cpu_multiply(Tensor a, Tensor b, bool transpose_a, bool transpose_b) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(multint, CPU, m) {
  m.impl("cpu_forward", TORCH_BOX(&multint::forward));
  m.impl("cpu_layer", TORCH_BOX(&multint::layer));
  m.impl("cpu_backward", TORCH_BOX(&multint::backward));
  m.impl("cpu_multiply", TORCH_BOX(&multint::multiply));
}
