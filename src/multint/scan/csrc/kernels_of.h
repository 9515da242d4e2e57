// The kernels of one instruction set and one storage type: included by kernels_*.cpp, which are compiled once for each level with
// -DMULTINT_LEVEL=<its name>.
#include "kernels.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sched.h>
#include <sys/mman.h>
#include <type_traits>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

// Everything below has internal linkage, and no template of the standard library is used that leaves code behind: the linker must
// never put one level's instructions in another's place.
namespace {
#include "loop.h"

using multint::CellKind;
using multint::PhiKind;
using multint::Threads;

// hands every thread of the pool its share of the workers
template <class F> void together(const Threads& threads, int size, const F& run) {
  Team team(size);
  struct Call {
    Team& team;
    const F& run;
  } call{team, run};
  if (size == 1) return run(Share{team, 0, 1});
  threads.run(size, [](int64_t first, int64_t last, void* data) {
    const Call& c = *static_cast<Call*>(data);
    c.run(Share{c.team, int(first), int(last)});
  }, &call);
}

template <class Cell, class Phi, class S, bool TOKENS> void run(const multint::Forward& f, const Threads& threads) {
  const int size = Loop<Cell, Phi, S, TOKENS>::team(f.scan, threads);
  ForwardLoop<Cell, Phi, S, TOKENS> loop(f, size);
  together(threads, size, [&](const Share& share) { loop.run(share); });
}
template <class Cell, class Phi, class S, bool TOKENS> void run(const multint::Backward& f, const Threads& threads) {
  const int size = Loop<Cell, Phi, S, TOKENS>::team(f.scan, threads);
  BackwardLoop<Cell, Phi, S, TOKENS> loop(f, size);
  together(threads, size, [&](const Share& share) { loop.run(share); });
}

template <class S, bool TOKENS, class Pass> void choose_cell(const Pass& f, const Threads& threads) {
  switch (f.scan.cell) {
    case CellKind::lstm: return run<lstm, Tanh, S, TOKENS>(f, threads);
    case CellKind::gru: return run<gru, Tanh, S, TOKENS>(f, threads);
    case CellKind::gru_after: return run<gru_after, Tanh, S, TOKENS>(f, threads);
    case CellKind::rnn:
      if (f.scan.phi == PhiKind::relu) return run<rnn, Relu, S, TOKENS>(f, threads);
      if (f.scan.phi == PhiKind::identity) return run<rnn, Identity, S, TOKENS>(f, threads);
      return run<rnn, Tanh, S, TOKENS>(f, threads);
  }
}
template <class S, class Pass> void choose(const Pass& f, const Threads& threads) {
  return f.scan.tokens != nullptr ? choose_cell<S, true>(f, threads) : choose_cell<S, false>(f, threads);
}

template <class S> void multiply(const multint::Matrices& x, const Threads& threads) {
  const int size = double(x.m) * double(x.n) * double(x.k) < 5e5 ? 1 : threads.most;
  Multiply<S> product({x.m, x.n, x.k, x.tall, static_cast<const S*>(x.a), x.a_stride, static_cast<const S*>(x.b), x.b_down,
                       x.b_across, static_cast<S*>(x.c), x.n}, size);
  together(threads, size, [&](const Share& share) { product.run(share); });
}
}  // namespace

#define MULTINT_JOIN(a, b, c) a##b##_##c
#define MULTINT_NAME(a, b, c) MULTINT_JOIN(a, b, c)
#define MULTINT_KERNELS(dtype, S)                                                                      \
  namespace multint {                                                                                  \
  extern const Kernels MULTINT_NAME(kernels_, MULTINT_LEVEL, dtype);                                   \
  const Kernels MULTINT_NAME(kernels_, MULTINT_LEVEL, dtype) = {choose<S, Forward>, choose<S, Backward>, multiply<S>}; \
  }
