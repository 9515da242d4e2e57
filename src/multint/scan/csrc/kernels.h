// What does an operator hand to a kernel? Plain pointers and sizes; every array is contiguous.
#pragma once
#include <cstdint>

namespace multint {

enum class CellKind { rnn, lstm, gru, gru_after };
enum class PhiKind { tanh, relu, identity };

// One direction of one layer. S is the storage type, A the arithmetic type; G = gates * h.
struct Scan {
  CellKind cell;
  PhiKind phi;
  int64_t t, n, h;
  int64_t span;                            // steps between the marks from which the backward pass replays the states
  const void* wx;                          // S (t, n, G), or with tokens (symbols, G)
  const int64_t* tokens;                   // (t, n) or null
  int64_t symbols;
  const void *x, *w;                       // S (t, n, i) and (G, i) in place of wx, which is then formed as it is needed; or null
  int64_t i;
  const void* u;                           // S (G, h)
  const void* vectors;                     // A (4, G): alpha, beta1, beta2, b
  const void* bias_hn;                     // A (h) or null
  const void *h0, *c0;                     // A (n, h)
  const int64_t* lengths;                  // (n) or null
  const bool* resets;                      // (t, n) or null
  const void *restart_h, *restart_c;       // A (n, h)
};

struct Forward {
  Scan scan;
  void* outputs;                           // S (t, n, h)
  void *h_n, *c_n;                         // A (n, h)
  void* uz;                                // S (t, n, G) for the backward pass, or null
  void* marks;                             // A (spans, h and c, n, h): the state before every span, with uz
};

struct Backward {
  Scan scan;
  const void* uz;                          // S (t, n, G)
  const void* marks;                       // A (spans, h and c, n, h)
  const void* d_outputs;                   // S (t, n, h)
  const void *d_h_n, *d_c_n;               // A (n, h)
  void* d_wx;                              // S, as wx
  void* d_u;                               // S (G, h)
  void* d_vectors;                         // A (4, G)
  void* d_bias_hn;                         // A (h)
  void *d_h0, *d_c0;                       // A (n, h)
  void *d_restart_h, *d_restart_c;         // A (n, h)
};

// c (m x n) = a (m x k) times b (k x n): a stored by rows or, `tall`, by columns; b's elements at row * down + column * across
struct Matrices {
  int64_t m, n, k;
  bool tall;
  const void* a;
  int64_t a_stride;
  const void* b;
  int64_t b_down, b_across;
  void* c;
};

// runs body(first, last) over workers [0, team) on torch's threads
struct Threads {
  int most;
  void (*run)(int team, void (*body)(int64_t first, int64_t last, void* data), void* data);
};

// the kernels of one instruction set and one storage type
struct Kernels {
  void (*forward)(const Forward&, const Threads&);
  void (*backward)(const Backward&, const Threads&);
  void (*multiply)(const Matrices&, const Threads&);
};

}  // namespace multint
