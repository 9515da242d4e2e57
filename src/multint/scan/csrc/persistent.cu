// How does a whole sequence of an MI layer run as one kernel on a Hopper GPU (sm_90a)?
//
// The cell is an LSTM, a GRU or an RNN. U stays in registers, as the left operand of wgmma; the batch is the right operand's
// columns; and what travels between thread blocks at a step is h, or backwards d_uz and sums of which several blocks have parts.
// Two ways of travelling:
//   GRID_*     through L2. A group of PARTS blocks has COLUMNS rows of the batch; who has written its part of h raises a flag.
//   CLUSTER_*  through the shared memory of one cluster, 8 rows of the batch: for few rows, and few units, whose U fits.
// TURN transposes U before the backward pass.
//
// NVRTC compiles one kernel at a time: one of those names is defined, CELL and PHI (names of cells.h and lanes.h), STORAGE (bf16 or
// f16), HP (units, padded with zeros to whole chunks of 64, of an RNN two chunks; they stay zero: U and the vectors are zero there)
// and, for GRID_*, COLUMNS (8, 16, 32 or 64); for GRID_BACKWARD also QUADS (0 or 1).
//
// Storage is bfloat16 or float16, arithmetic float32. Nothing saturates: what float16 cannot hold is stored as inf. Arrays over steps
// are made of quartets, four values side by side that one thread reads and writes as 8 bytes: the four gates of a unit, the three of
// a GRU's unit and an empty slot, or four neighbouring units of an RNN. So (t, n, HP, 4), or of an RNN (t, n, HP). U and the vectors
// are read as the caller has them, (gate, unit), but for U^T.

namespace mi {
#include "cells.h"  // with device_lanes.h as its lanes.h
}
using mi::Block;
using mi::Pair;
using mi::Values;

typedef unsigned short u16;  // the bits of a stored value
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

using Cell = mi::CELL;
using Phi = mi::PHI;
constexpr int GATES = Cell::gates;
constexpr int UNITS = GATES == 1 ? 4 : 1;  // of a quartet
constexpr bool AFTER = Cell::inner_bias;   // a GRU whose reset comes after U: the flow of its gate n is not U h
// Products with U in a step. A GRU whose reset comes before U has two, with h and with r h: a step is then two stages, and what one
// stage has computed is what the next multiplies by.
constexpr int STAGES = Cell::shared < GATES ? 2 : 1;

#define DEVICE static __device__ __forceinline__

constexpr int THREADS = 256;  // two warpgroups: with a ninth warp a thread would have 168 registers, too few for U
constexpr int CHUNK = 64;     // stored values in the 128 bytes that wgmma's swizzle permutes, so of k in one tile

// ---------------------------------------------------------------------------------------------------------------- parameters

// gpu_persistent.py fills these field by field in the same order
struct Forward {
  const u16* flow;       // W x: (steps * batch, QUARTETS, 4), or the table (symbols, QUARTETS, 4) with tokens
  const i64* tokens;     // (steps, batch) or null
  const u16* u;          // (GATES * width, width)
  const float* vectors;  // alpha, beta1, beta2, b: (4, GATES * width)
  const float* bias_hn;  // a GRU's bias inside the reset: (width) or null
  const float* h;        // (batch, width), as c, which only an LSTM has
  const float* c;
  const i64* lengths;  // (batch) or null
  u16* outputs;        // (steps, batch, width)
  u16* operands;       // with two stages, what the second multiplies by: (steps, batch, width), or null as uz
  u16* uz;             // (steps, batch, QUARTETS, 4), or null where there will be no backward pass
  u16* cs;             // an LSTM's c before each step: (steps, batch, HP), or null
  float* last_h;       // (batch, width), as last_c
  float* last_c;
  u16* exchange;  // GRID: two buffers of (groups, HP / 64, COLUMNS, 64)
  u32* flags;     // GRID: (groups, HP / 64, 32), zero at the start; one flag to a cache line
  int steps, batch, width;
  int first, end;  // the rows of the batch this launch has
};
struct Backward {
  const u16* flow;
  const i64* tokens;
  const u16* u;          // its transpose, (width, width, 4): the gates side by side; of an RNN (width, HP)
  const float* vectors;
  const float* bias_hn;
  const i64* lengths;
  const u16* uz;
  const u16* cs;
  const u16* outputs;
  const float* h;
  const u16* d_outputs;   // (steps, batch, width)
  const float* d_last_h;  // (batch, width) or null, as d_last_c
  const float* d_last_c;
  u16* d_uz;          // (steps, batch, QUARTETS, 4), as d_wx
  u16* d_wx;
  float* sums;        // (groups, or clusters, 4, QUARTETS * 4): of these rows, the gradients of alpha, beta1, beta2, b
  float* d_h;         // (batch, width): the part of h's gradient that did not come through U
  float* d_c;         // (batch, width); of a GRU the gradient of bias_hn, row by row
  u16* exchange;      // GRID: two buffers of (groups, PARTS, COLUMNS, 64)
  u32* flags;         // GRID: (groups, PARTS, 32), zero at the start
  float* partial;     // GRID without QUADS, but not an RNN: two buffers of (groups, PARTS, 8, COLUMNS * 16)
  u32* owner_flags;   // as partial: (groups, PARTS, 32), zero at the start; 8 of them are used, one for each partial sum
  int steps, batch, width;
  int first, end;
};
struct Turn {
  const u16* u;   // (GATES, width, width)
  u16* turned;    // (width, width, 4)
  int width;
};

// --------------------------------------------------------------------------------------------------------------------- memory

// How a stored value becomes a float. The types have the names PTX gives them.
struct bf16 {
  DEVICE float widened(u16 v) { return __uint_as_float(u32(v) << 16); }
  DEVICE float low(u32 pair) { return __uint_as_float(pair << 16); }
  DEVICE float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
};
struct f16 {
  DEVICE float widened(u16 v) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(v));
    return x;
  }
  DEVICE float low(u32 pair) { return widened(u16(pair)); }
  DEVICE float high(u32 pair) { return widened(u16(pair >> 16)); }
};
using Storage = STORAGE;
#define QUOTED(name) #name
#define NAME_OF(macro) QUOTED(macro)
#define STORED NAME_OF(STORAGE)  // as part of an instruction's name

DEVICE u32 packed(float low, float high) {
  u32 pair;
  asm("cvt.rn." STORED "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
DEVICE u16 rounded(float x) { return u16(packed(x, 0.f)); }
DEVICE uint2 packed(const float (&x)[4]) { return make_uint2(packed(x[0], x[1]), packed(x[2], x[3])); }
DEVICE void put(u16* p, const float (&x)[1]) { *p = rounded(x[0]); }
DEVICE void put(u16* p, const float (&x)[4]) { *reinterpret_cast<uint2*>(p) = packed(x); }
DEVICE void unpack(uint2 four, float (&x)[4]) {
  x[0] = Storage::low(four.x), x[1] = Storage::high(four.x), x[2] = Storage::low(four.y), x[3] = Storage::high(four.y);
}

// What no thread of this kernel writes. Volatile, so that a load stays where it was put: before a wait.
DEVICE uint2 early8(const void* p) {
  uint2 v;
  asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
DEVICE float early2(const u16* p) {
  u16 v;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(p));
  return Storage::widened(v);
}
// as many as are left of a row, or zeros
DEVICE void early_units(const u16* p, int left, bool, float (&x)[1]) { x[0] = left > 0 ? early2(p) : 0.f; }
DEVICE void early_units(const u16* p, int left, bool aligned, float (&x)[4]) {
  if (aligned) {
    unpack(left > 0 ? early8(p) : make_uint2(0, 0), x);
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = left > i ? early2(p + i) : 0.f;
  }
}
DEVICE int early_index(const i64* p) {
  i64 v;
  asm volatile("ld.global.nc.s64 %0, [%1];" : "=l"(v) : "l"(p));
  return int(v);
}
DEVICE u32 shared_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }
// dynamic shared memory from a multiple of 1024 bytes on, as the swizzle wants its tiles
DEVICE unsigned char* aligned(unsigned char* p) { return p + ((1024 - (shared_address(p) & 1023)) & 1023); }

// ------------------------------------------------------------------------------------------------------------------- barriers

DEVICE void mbarrier_init(u32 bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
DEVICE void mbarrier_init_visible() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// the one arrival of a phase, which then ends when so many bytes have come
DEVICE void mbarrier_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
DEVICE void mbarrier_wait(u32 bar, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ENOUGH_%=;\nbra AGAIN_%=;\nENOUGH_%=:\n}" ::"r"(bar), "r"(parity) : "memory");
}
DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
DEVICE u32 of_peer(u32 address, u32 rank) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
// Bulk copies and wgmma read memory by another path (the async proxy) than ordinary stores write it: a fence on every crossing.
DEVICE void fence_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
DEVICE void fence_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

DEVICE void raise_flag(u32* flag) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(flag) : "memory"); }
DEVICE u32 flag_value(const u32* flag) {
  u32 v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory");
  return v;
}
template <int COUNT> DEVICE void block_sync() { asm volatile("bar.sync 1, %0;" ::"n"(COUNT) : "memory"); }

// ---------------------------------------------------------------------------------------------------------------- wgmma

DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// A tile of the right operand in shared memory: column n of the batch has 64 values of k in 128 bytes, eight columns in 1024, and
// the 16-byte pieces of a column are permuted by its number (the 128-byte swizzle). A step of 16 in k is 32 bytes further on.
DEVICE u64 tile_descriptor(u32 address) { return u64((address & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62; }
constexpr int K_BYTES = 32;
// where 8 values k = 8 piece, ... of column n stand in their tile, in bytes
DEVICE int in_tile(int n, int piece) { return n * 128 + ((piece ^ (n & 7)) << 4); }

// zeros to add to, there before the fence that makes them wgmma's: nothing may move them past it
template <int COUNT> DEVICE void clear(float (&d)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    d[i] = 0.f;
    asm volatile("" : "+f"(d[i])::"memory");
  }
}

#define FOUR(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ADDING "{\n.reg .pred adds;\nsetp.eq.u32 adds, 1, 1;\n"
#define WGMMA(columns) "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." STORED "." STORED " "
#define LEFT_AND_RIGHT "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
// d += a b for 64 rows, 16 of k and twice as many columns as d has values. A warp has 16 rows; with q = lane / 4 and l = lane % 4
// a thread has in a: (q, k = 2l, 2l + 1), (q + 8, the same), (q, 2l + 8, 2l + 9), (q + 8, the same); in d[4j ...]: (q, n = 8j +
// 2l), (q, n + 1), (q + 8, n), (q + 8, n + 1)
DEVICE void multiply(float (&d)[4], const u32 (&a)[4], u64 b) {
  asm volatile(ADDING WGMMA(8) "{%0,%1,%2,%3},{%4,%5,%6,%7},%8,adds,1,1,0;\n}"
               : FOUR(d, 0) : LEFT_AND_RIGHT);
}
DEVICE void multiply(float (&d)[8], const u32 (&a)[4], u64 b) {
  asm volatile(ADDING WGMMA(16) "{%0,%1,%2,%3,%4,%5,%6,%7},{%8,%9,%10,%11},%12,adds,1,1,0;\n}"
               : FOUR(d, 0), FOUR(d, 4) : LEFT_AND_RIGHT);
}
DEVICE void multiply(float (&d)[16], const u32 (&a)[4], u64 b) {
  asm volatile(ADDING WGMMA(32)
               "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},{%16,%17,%18,%19},%20,adds,1,1,0;\n}"
               : FOUR(d, 0), FOUR(d, 4), FOUR(d, 8), FOUR(d, 12) : LEFT_AND_RIGHT);
}
DEVICE void multiply(float (&d)[32], const u32 (&a)[4], u64 b) {
  asm volatile(ADDING WGMMA(64)
               "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
               "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
               "{%32,%33,%34,%35},%36,adds,1,1,0;\n}"
               : FOUR(d, 0), FOUR(d, 4), FOUR(d, 8), FOUR(d, 12), FOUR(d, 16), FOUR(d, 20), FOUR(d, 24), FOUR(d, 28)
               : LEFT_AND_RIGHT);
}

// Values of U, or zero beyond its edges. Volatile and with the question inside: else the compiler asks for all registers of the
// left operand first, and runs out of places for the answers.
DEVICE u32 two_values(const u16* p, bool there) {
  u32 v;
  asm volatile("{\n.reg .pred there;\nsetp.ne.u32 there, %2, 0;\nmov.u32 %0, 0;\n@there ld.global.nc.u32 %0, [%1];\n}"
               : "=r"(v) : "l"(p), "r"(u32(there)));
  return v;
}
DEVICE u32 one_value(const u16* p, bool there) {
  u16 v;
  asm volatile("{\n.reg .pred there;\nsetp.ne.u32 there, %2, 0;\nmov.u16 %0, 0;\n@there ld.global.nc.u16 %0, [%1];\n}"
               : "=h"(v) : "l"(p), "r"(u32(there)));
  return v;
}
// Two neighbours of a row of U as a register of the left operand; k is even. Rows may begin at any multiple of 2 bytes.
template <bool PAIRS> DEVICE u32 neighbours(const u16* row, int k, int width, bool there) {
  if (PAIRS) return two_values(row + k, there && k < width);
  return one_value(row + k, there && k < width) | one_value(row + k + 1, there && k + 1 < width) << 16;
}
// Which row of U, or value of a vector, belongs to a slot of a quartet; -1 if none does.
DEVICE int row_of_slot(int quartet, int slot, int width) {
  const int unit = UNITS == 1 ? quartet : UNITS * quartet + slot;
  return unit < width && (UNITS > 1 || GATES == 4 || slot < GATES) ? (UNITS > 1 ? unit : slot * width + unit) : -1;
}
// The left operand of U h, rows of U: of STEPS times 16 values of k from k0 on. The thread has slots 0 and 1 of a quartet, or 2 and
// 3: its rows q and q + 8 of the 16 its warp has.
template <bool PAIRS, int STEPS> DEVICE void load_u(u32 (&a)[STEPS][4], const u16* u, int width, int quartet, int slot, int k0) {
  const int first = row_of_slot(quartet, slot, width), second = row_of_slot(quartet, slot + 1, width);
  const u16 *row = u + i64(first) * width, *next = u + i64(second) * width;
#pragma unroll
  for (int s = 0; s < STEPS; s++) {
    const int k = k0 + 16 * s;
    a[s][0] = neighbours<PAIRS>(row, k, width, first >= 0), a[s][1] = neighbours<PAIRS>(next, k, width, second >= 0);
    a[s][2] = neighbours<PAIRS>(row, k + 8, width, first >= 0), a[s][3] = neighbours<PAIRS>(next, k + 8, width, second >= 0);
  }
}
template <int STEPS> DEVICE void load_u(u32 (&a)[STEPS][4], const u16* u, int width, int quartet, int slot, int k0) {
  if ((width & 1) == 0 && (u64(u) & 3) == 0)
    load_u<true>(a, u, width, quartet, slot, k0);
  else
    load_u<false>(a, u, width, quartet, slot, k0);
}
// The left operand of U^T d_uz, rows m and m + 8 of U^T, which have `terms` values of k = 4 quartet + slot, as d_uz has them.
template <int STEPS>
DEVICE void load_u_transposed(u32 (&a)[STEPS][4], const u16* u, int width, int terms, int m, int k0, bool there) {
  const u16 *row = u + i64(m) * terms, *next = row + 8 * i64(terms);
  const bool first = there && m < width, second = there && m + 8 < width;
#pragma unroll
  for (int s = 0; s < STEPS; s++) {
    const int k = k0 + 16 * s;
    a[s][0] = two_values(row + k, first && k < terms), a[s][1] = two_values(next + k, second && k < terms);
    a[s][2] = two_values(row + k + 8, first && k + 8 < terms), a[s][3] = two_values(next + k + 8, second && k + 8 < terms);
  }
}

// -------------------------------------------------------------------------------------------------------------- one quartet

// b of a GRU's empty slot is the bias inside the reset
DEVICE Block<float> vectors_of(const float* vectors, const float* bias_hn, int width, int quartet, int slot) {
  const int row = row_of_slot(quartet, slot, width), apart = GATES * width;
  if (row < 0) return {0.f, 0.f, 0.f, GATES == 3 && quartet < width && bias_hn ? bias_hn[quartet] : 0.f};
  const float* p = vectors + row;
  return {p[0], p[apart], p[2 * apart], p[3 * apart]};
}
// which row of flow belongs to this step and row of the batch
DEVICE int line_of(const i64* tokens, int t, int batch, int row, bool present) {
  const int at = t * batch + row;
  return tokens && present ? early_index(tokens + at) : at;
}
DEVICE int length_of(const i64* lengths, int row, int steps, bool present) {
  return lengths && present ? early_index(lengths + row) : steps;
}
// The accumulators of 4 slots for 2 columns lie in two threads, 16 lanes apart: the lower has slots 0 and 1, the upper 2 and 3.
// They swap halves: the lower gets all slots of the even column, the upper of the odd one.
DEVICE void all_slots(const float (&v)[4], bool upper, float (&uz)[4]) {
  const float x = __shfl_xor_sync(~0u, upper ? v[0] : v[1], 16), y = __shfl_xor_sync(~0u, upper ? v[2] : v[3], 16);
  uz[0] = upper ? x : v[0], uz[1] = upper ? y : v[2], uz[2] = upper ? v[1] : x, uz[3] = upper ? v[3] : y;
}
// The state of a quartet's units in one row of the batch: (batch, width) from there on, or zeros.
DEVICE void load_state(float (&x)[UNITS], const float* from, int row, int unit, int width, bool present) {
#pragma unroll
  for (int i = 0; i < UNITS; i++) x[i] = from && present && unit + i < width ? from[i64(row) * width + unit + i] : 0.f;
}
DEVICE void store_state(const float (&x)[UNITS], float* to, int row, int unit, int width, bool present) {
#pragma unroll
  for (int i = 0; i < UNITS; i++)
    if (present && unit + i < width) to[i64(row) * width + unit + i] = x[i];
}

// The vectors of the slots are APART places apart. `before` is the state a step starts from: an LSTM's c, a GRU's h.
template <int APART = 1> DEVICE Values<float> values_of(uint2 wx, const float (&uz)[4], float before, const Block<float>* vectors) {
  Values<float> x;
  float flow[4];
  unpack(wx, flow);
#pragma unroll
  for (int g = 0; g < 4; g++) {
    mi::block(flow[g], vectors[g * APART], x.scale[g], x.shift[g]);
    x.uz[g] = uz[g];
  }
  x.h = before, x.c = before, x.bias_hn = vectors[3 * APART].b;
  return x;
}
// an RNN's slots are units of one gate each
DEVICE Values<float> slot_of(const Values<float>& x, int slot) {
  Values<float> one = x;
  one.scale[0] = x.scale[slot], one.shift[0] = x.shift[slot], one.uz[0] = x.uz[slot];
  return one;
}
// what only a cell with two stages has
template <class C, bool TWO> struct Stages {
  DEVICE float operand(const Values<float>&) { return 0.f; }
  DEVICE void operand_back(const Values<float>&, Values<float>& d) { d.h = d.shift[0] = 0.f; }
};
template <class C> struct Stages<C, true> {
  DEVICE float operand(const Values<float>& x) {
    float out;
    C::template operand<Phi>(x, out);
    return out;
  }
  DEVICE void operand_back(const Values<float>& x, Values<float>& d) { C::template operand_back<Phi>(x, 1.f, d); }
};
using Staged = Stages<Cell, STAGES == 2>;

DEVICE void advance(uint2 wx, const float (&uz)[4], bool active, float (&h)[UNITS], float& c, const Block<float>* vectors) {
  const Values<float> x = values_of(wx, uz, Cell::carries_c ? c : h[0], vectors);
#pragma unroll
  for (int i = 0; i < UNITS; i++) {
    Pair<float> after;
    Cell::step<Phi>(UNITS > 1 ? slot_of(x, i) : x, after);
    if (active) h[i] = after.h;
    if (active && Cell::carries_c) c = after.c;
  }
}

// what the backward pass reads of a quartet in one row at a step
struct Kept {
  uint2 wx, uz;
  float before, d_output[UNITS];
};
DEVICE Kept kept_at(const Backward& p, int line, int t, int row, int quartet, int quartets, bool present) {
  Kept k = {make_uint2(0, 0), make_uint2(0, 0), 0.f};
#pragma unroll
  for (int i = 0; i < UNITS; i++) k.d_output[i] = 0.f;
  if (present) {
    const i64 at = i64(t) * p.batch + row;
    k.wx = early8(p.flow + (i64(line) * quartets + quartet) * 4);
    k.uz = early8(p.uz + (at * quartets + quartet) * 4);
    if (Cell::carries_c) k.before = early2(p.cs + at * quartets + quartet);
    if (Cell::uses_h && quartet < p.width)
      k.before = t > 0 ? early2(p.outputs + (at - p.batch) * p.width + quartet) : p.h[i64(row) * p.width + quartet];
    const int unit = quartet * UNITS;
    early_units(p.d_outputs + at * p.width + unit, p.width - unit, (p.width & 3) == 0 && (u64(p.d_outputs) & 7) == 0, k.d_output);
  }
  return k;
}
// The step backwards is linear in the gradients of h and c that come in, so its coefficients can be known before them: what
// `prepare` gives for each unit, or, of a GRU, the gradients of a step whose h, and of an operand that, has the gradient 1.
constexpr int COEFFICIENTS = GATES == 3 ? 5 : UNITS * Cell::coefficients;
struct Slopes {
  float scale[4], k[COEFFICIENTS];
};
template <int APART = 1> DEVICE Slopes slopes_of(const Kept& kept, const Block<float>* vectors) {
  float uz[4];
  unpack(kept.uz, uz);
  const Values<float> x = values_of<APART>(kept.wx, uz, kept.before, vectors);
  Slopes s;
  if constexpr (GATES == 3) {
    Values<float> d, inner;
    Cell::step_back<Phi>(x, Pair<float>{1.f, 0.f}, d);
    Staged::operand_back(x, inner);
#pragma unroll
    for (int g = 0; g < 3; g++) s.scale[g] = AFTER ? d.uz[g] : x.scale[g], s.k[g] = !AFTER && g == 0 ? inner.shift[0] : d.shift[g];
    s.scale[3] = 0.f, s.k[3] = AFTER ? d.scale[2] : inner.h, s.k[4] = d.h;
  } else {
#pragma unroll
    for (int g = 0; g < 4; g++) s.scale[g] = x.scale[g];
#pragma unroll
    for (int i = 0; i < UNITS; i++) Cell::prepare<Phi>(UNITS > 1 ? slot_of(x, i) : x, s.k + i * Cell::coefficients);
  }
  return s;
}
// Gradients of one step, and of c before it (of a GRU with the reset after U: that of bias_hn so far). Past the end of a row
// nothing happens to its state, nor to the state's gradients: h's then goes to the step before by `pass`, without a product with U.
// Rounded, to save registers.
struct Step {
  uint2 d_uz;
  uint2 d_gates;  // of what the gates' nonlinearities take; in a GRU's empty slot, of the scale of gate n, whose flow is not U h
};
DEVICE Step step_back(const Slopes& s, const float (&d_h)[UNITS], float d_operand, bool active, float& d_c, float (&pass)[UNITS]) {
  float d_uz[4], d_gates[4];
  if constexpr (GATES == 3) {
    const float d = active ? d_h[0] : 0.f;
#pragma unroll
    for (int g = 0; g < 4; g++) {
      d_gates[g] = (STAGES == 2 && g == 0 ? d_operand : d) * s.k[g];
      d_uz[g] = (AFTER ? d : d_gates[g]) * s.scale[g];
    }
    if (AFTER)
      d_c += d_uz[2];
    else
      d_gates[3] = 0.f;
    pass[0] = active ? d_h[0] * s.k[4] + (AFTER ? 0.f : d_operand * s.k[3]) : d_h[0];
  } else {
#pragma unroll
    for (int i = 0; i < UNITS; i++) {
      Values<float> d;
      Cell::apply<Phi>(s.k + i * Cell::coefficients, Pair<float>{d_h[i], d_c}, d);
#pragma unroll
      for (int g = 0; g < GATES; g++) d_gates[i + g] = active ? d.shift[g] : 0.f;
      if (Cell::carries_c) d_c = active ? d.c : d_c;
      pass[i] = active ? 0.f : d_h[i];
    }
#pragma unroll
    for (int g = 0; g < 4; g++) d_uz[g] = d_gates[g] * s.scale[g];
  }
  return {packed(d_uz), packed(d_gates)};
}
// What the stages of a step backwards hand on to be multiplied by U^T: of gate n alone, then of the others.
DEVICE uint2 for_operand(const Slopes& s, float d_h, bool active) {
  return make_uint2(0, packed(active ? d_h * s.k[2] * s.scale[2] : 0.f, 0.f));
}
DEVICE uint2 for_state(const Step& s) { return STAGES == 2 ? make_uint2(s.d_uz.x, 0) : s.d_uz; }
// Store the gradients of a step whose flows were W x and U h, those of the gates as that of W x, and add up those of the vectors.
template <int APART = 1>
DEVICE void store_step(const Backward& p, const Step& s, uint4 flows, const Block<float>* vectors, Block<float> (&total)[4], int t,
                       int row, int quartet, int quartets) {
  float wx[4], uz[4], d_gates[4], d_wx[4];
  unpack(make_uint2(flows.x, flows.y), wx), unpack(make_uint2(flows.z, flows.w), uz), unpack(s.d_gates, d_gates);
#pragma unroll
  for (int g = 0; g < 4; g++) {
    const bool empty = GATES == 3 && g == 3;
    const float d_scale = AFTER && g == 2 ? d_gates[3] : d_gates[g] * uz[g];
    mi::block_back(wx[g], vectors[g * APART], empty ? 0.f : d_scale, empty ? 0.f : d_gates[g], d_wx[g], total[g]);
  }
  const i64 at = ((i64(t) * p.batch + row) * quartets + quartet) * 4;
  *reinterpret_cast<uint2*>(p.d_uz + at) = s.d_uz;
  *reinterpret_cast<uint2*>(p.d_wx + at) = packed(d_wx);
}

extern __shared__ unsigned char shared_memory[];

#ifdef HP
constexpr int QUARTETS = HP / UNITS;
#endif

#if defined(GRID_FORWARD) || defined(GRID_BACKWARD)
constexpr int PARTS = QUARTETS / 16;  // blocks of a group, with 16 quartets each
constexpr int STEPS = HP / 32;        // of 16 in k, for which the registers of a warpgroup hold U
constexpr int EIGHTS = COLUMNS / 8;
constexpr u32 TILE = COLUMNS * 128;   // bytes

// Multiply the tiles as they come by this warpgroup's part of U, from a step in k on. Parity is that of the barriers' phase.
DEVICE void multiply_tiles(float (&d)[COLUMNS / 2], const u32 (&a)[STEPS][4], u32 tiles, u32 full, int step0, u32 parity) {
  clear(d);
#pragma unroll
  for (int s = 0; s < STEPS; s++) {
    const int k = step0 + s, chunk = k >> 2;
    // a new tile begins in one warpgroup or the other: to both the code is one
    if (s == 0 || s % 4 == 0 || (s + STEPS) % 4 == 0) {
      if (s) wgmma_commit();
      mbarrier_wait(full + 8 * chunk, parity);
      wgmma_fence();
    }
    multiply(d, a[s], tile_descriptor(tiles + chunk * TILE + (k & 3) * K_BYTES));
  }
  wgmma_commit();
  wgmma_wait();
}
#endif

// --------------------------------------------------------------------------------------------------- forward, through L2
#ifdef GRID_FORWARD
// A block's warpgroups share the sum over k. Blocks come in clusters of two, which multiply by the same tiles: each fetches one
// half of a tile for both.
constexpr int CHUNKS = HP / CHUNK;                // tiles a block multiplies by at a step
constexpr int OWN = EIGHTS > 1 ? EIGHTS / 2 : 1;  // eights of columns a warpgroup finishes; with one eight the first has it
constexpr int PIECES = 2 * UNITS * COLUMNS;       // of 16 bytes, in which a block writes its part of the new h
constexpr int PUBLISHERS = PIECES < THREADS ? PIECES : THREADS;  // threads that do

// The new h on its way out: (COLUMNS, 16), or an RNN's, whose blocks have a whole tile, as the tile lies.
DEVICE int staged_at(int column, int quartet16) {
  return UNITS == 1 ? column * 16 + quartet16 : in_tile(column, quartet16 >> 1) / 2 + (quartet16 & 1) * 4;
}
// which column of the batch, and which eight units of the block, piece i of what is staged has
DEVICE int column_of_piece(int i) { return UNITS == 1 ? i >> 1 : i >> 3; }
DEVICE int eight_of_piece(int i) { return UNITS == 1 ? i & 1 : (i & 7) ^ (column_of_piece(i) & 7); }

DEVICE void fetch_for_both(u32 tile, const void* source, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
               ::"r"(tile), "l"(source), "r"(bytes), "r"(bar), "h"(u16(3)) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) grid_forward(const __grid_constant__ Forward p) {
  unsigned char* memory = aligned(shared_memory);
  float4* halves = reinterpret_cast<float4*>(memory + CHUNKS * TILE);  // (2, OWN, 128): sums on their way to the other warpgroup
  u16* staged = reinterpret_cast<u16*>(halves + 2 * OWN * 128);        // the new h
  const u32 tiles = shared_address(memory), full = shared_address(staged + PIECES * 8);

  const int group = blockIdx.x / PARTS, part = blockIdx.x % PARTS, rank = part & 1, groups = gridDim.x / PARTS;
  const int tid = threadIdx.x, lane = tid & 31, half = tid >> 7, warp = (tid >> 5) & 3, q = lane >> 2, l = lane & 3;
  const bool upper = q >= 4;
  const int quartet16 = 4 * warp + (q & 3), quartet = part * 16 + quartet16, unit = UNITS * quartet;
  const int row0 = p.first + group * COLUMNS;
  if (tid == 0) {
    for (int chunk = 0; chunk < CHUNKS; chunk++) mbarrier_init(full + 8 * chunk, 1);
    mbarrier_init_visible();
  }
  __syncthreads();
  cluster_sync();  // before the other block's copies reach these barriers

  // ---- what stays: U, the vectors, and the state of this thread's quartet in OWN rows of the batch
  u32 a[STEPS][4];
  load_u(a, p.u, p.width, quartet, upper ? 2 : 0, half * STEPS * 16 + 2 * l);
  Block<float> vectors[4];
#pragma unroll
  for (int g = 0; g < 4; g++) vectors[g] = vectors_of(p.vectors, p.bias_hn, p.width, quartet, g);
  const bool finishes = EIGHTS > 1 || half == 0;
  const int column0 = 8 * (EIGHTS > 1 ? half * OWN : 0) + 2 * l + upper;  // and every eighth from there
  float h[OWN][UNITS], c[OWN];
  int line[OWN], length[OWN];
#pragma unroll
  for (int j = 0; j < OWN; j++) {
    const int row = row0 + column0 + 8 * j;
    const bool present = finishes && row < p.end;
    load_state(h[j], p.h, row, unit, p.width, present);
    c[j] = Cell::carries_c && present && unit < p.width ? p.c[i64(row) * p.width + unit] : 0.f;
    line[j] = line_of(p.tokens, 0, p.batch, row, present);
    length[j] = length_of(p.lengths, row, p.steps, present);
    if (finishes) put(staged + staged_at(column0 + 8 * j, quartet16), h[j]);
  }

  // The first PUBLISHERS threads copy the staged h, or what a stage has made of it, to where the group's blocks fetch it. There are
  // two buffers, and h(t + 1) goes where h(t - 1) was. All blocks of the group have fetched that one by then: this block has
  // multiplied by all of h(t), and no block raised its flag for its part of h(t) before it had multiplied by h(t - 1). So with
  // stages for steps.
  const bool wide = (p.width & 7) == 0;  // rows of outputs begin at multiples of 16 bytes
  const int own_chunk = UNITS == 1 ? part >> 2 : part;
  auto publish = [&](int stage, bool more) {
    if (tid < (PUBLISHERS > 32 ? PUBLISHERS : 32)) {
      if (more) {
        if (tid < PUBLISHERS) {
          u16* chunk = p.exchange + ((i64((stage + 1) & 1) * groups + group) * CHUNKS + own_chunk) * COLUMNS * CHUNK;
#pragma unroll
          for (int e = 0; e < PIECES / PUBLISHERS; e++) {
            const int i = tid + e * PUBLISHERS;
            const int at = UNITS == 1 ? in_tile(column_of_piece(i), (part & 3) * 2 + eight_of_piece(i)) / 2 : i * 8;
            *reinterpret_cast<uint4*>(chunk + at) = *reinterpret_cast<const uint4*>(staged + i * 8);
          }
          fence_global();
        }
        if (PUBLISHERS > 32)
          asm volatile("bar.sync 2, %0;" ::"n"(PUBLISHERS > 32 ? PUBLISHERS : 32) : "memory");
        else
          __syncwarp();
        if (tid == 0) raise_flag(p.flags + (group * CHUNKS + own_chunk) * 32);
      }
      // whoever waits for the flag has it: now what nobody waits for
      u16* to = STAGES == 1 || (stage & 1) ? p.outputs : p.operands;
      if (stage >= 0 && to && wide && tid < PUBLISHERS) {
#pragma unroll
        for (int e = 0; e < PIECES / PUBLISHERS; e++) {
          const int i = tid + e * PUBLISHERS, row = row0 + column_of_piece(i), unit8 = part * 16 * UNITS + eight_of_piece(i) * 8;
          if (row < p.end && unit8 < p.width)
            *reinterpret_cast<uint4*>(to + (i64(stage / STAGES) * p.batch + row) * p.width + unit8) =
                *reinterpret_cast<const uint4*>(staged + i * 8);
        }
      }
      __syncwarp();
    }
  };
  __syncthreads();
  publish(-1, true);

  float d[COLUMNS / 2], first[OWN][2];  // with two stages: of the first product, the flows of gates r and z
  uint2 wx[OWN];
  for (int stage = 0; stage < STAGES * p.steps; stage++) {
    const int t = stage / STAGES;
    const bool begins = STAGES == 1 || (stage & 1) == 0, ends = STAGES == 1 || !begins;
    // ---- while h is on its way: read W x, keep the state
#pragma unroll
    for (int j = 0; j < OWN; j++) {
      if (!begins) continue;
      const int row = row0 + column0 + 8 * j;
      const bool present = finishes && row < p.end;
      wx[j] = present ? early8(p.flow + (i64(line[j]) * QUARTETS + quartet) * 4) : make_uint2(0, 0);
      if (t + 1 < p.steps) line[j] = line_of(p.tokens, t + 1, p.batch, row, present);
      if (Cell::carries_c && p.cs && present) p.cs[(i64(t) * p.batch + row) * HP + unit] = rounded(c[j]);
    }

    // ---- fetch h(t): lane i the chunk i, once all blocks that write it (four, or an RNN's one) have raised its flag for h(0),
    // ..., h(t). All chunks must be there before the first is fetched: then the other block of the cluster has written too, so it
    // is done with its tiles.
    if (tid < 32) {
      const bool fetches = lane < CHUNKS;
      const u32* flag = p.flags + (group * CHUNKS + (fetches ? lane : 0)) * 32;
      bool ready = !fetches;
      do {
        if (!ready) ready = flag_value(flag) >= u32(4 / UNITS) * u32(stage + 1);
      } while (!__all_sync(~0u, ready));
      __syncwarp();
      if (fetches) {
        const u16* chunk = p.exchange + (i64(stage & 1) * groups + group) * CHUNKS * COLUMNS * CHUNK + lane * COLUMNS * CHUNK;
        const u32 offset = rank * (TILE / 2);
        fence_global();
        mbarrier_expect(full + 8 * lane, TILE);
        fetch_for_both(tiles + lane * TILE + offset, reinterpret_cast<const char*>(chunk) + offset, TILE / 2, full + 8 * lane);
      }
      __syncwarp();
    }
    multiply_tiles(d, a, tiles, full, half * STEPS, stage & 1);

    // ---- the warpgroups' sums over their halves of k: each gives away the columns the other finishes
#pragma unroll
    for (int j = 0; j < OWN; j++) {
      if (EIGHTS > 1) {
        constexpr int other = EIGHTS > 1 ? 4 * OWN : 0;
        const float4 first = make_float4(d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]);
        const float4 second = make_float4(d[other + 4 * j], d[other + 4 * j + 1], d[other + 4 * j + 2], d[other + 4 * j + 3]);
        halves[((1 - half) * OWN + j) * 128 + (tid & 127)] = half ? first : second;
      } else if (half) {
        halves[tid & 127] = make_float4(d[0], d[1], d[2], d[3]);
      }
    }
    block_sync<THREADS>();

    // ---- the step itself, or its first stage
    uint2 kept[OWN];
    float operand[OWN][UNITS];
    if (finishes) {
#pragma unroll
      for (int j = 0; j < OWN; j++) {
        constexpr int other = EIGHTS > 1 ? 4 * OWN : 0;
        const float4 rest = halves[(half * OWN + j) * 128 + (tid & 127)];
        const float sum[4] = {(half ? d[other + 4 * j] : d[4 * j]) + rest.x, (half ? d[other + 4 * j + 1] : d[4 * j + 1]) + rest.y,
                              (half ? d[other + 4 * j + 2] : d[4 * j + 2]) + rest.z,
                              (half ? d[other + 4 * j + 3] : d[4 * j + 3]) + rest.w};
        float uz[4];
        all_slots(sum, upper, uz);
        if (ends) {
          if (STAGES == 2) uz[0] = first[j][0], uz[1] = first[j][1];
          kept[j] = packed(uz);
          advance(wx[j], uz, t < length[j], h[j], c[j], vectors);
          put(staged + staged_at(column0 + 8 * j, quartet16), h[j]);
        } else {
          first[j][0] = uz[0], first[j][1] = uz[1];
          operand[j][0] = Staged::operand(values_of(wx[j], uz, h[j][0], vectors));
          put(staged + staged_at(column0 + 8 * j, quartet16), operand[j]);
        }
      }
    }
    block_sync<THREADS>();
    publish(stage, stage + 1 < STAGES * p.steps);
    if (finishes) {
#pragma unroll
      for (int j = 0; j < OWN; j++) {
        const int row = row0 + column0 + 8 * j;
        const i64 at = i64(t) * p.batch + row;
        if (row >= p.end) continue;
        if (ends && p.uz) *reinterpret_cast<uint2*>(p.uz + (at * QUARTETS + quartet) * 4) = kept[j];
        u16* to = ends ? p.outputs : p.operands;
#pragma unroll
        for (int i = 0; i < UNITS; i++)
          if (!wide && to && unit + i < p.width) to[at * p.width + unit + i] = rounded(ends ? h[j][i] : operand[j][i]);
      }
    }
    __syncwarp();
  }
#pragma unroll
  for (int j = 0; j < OWN; j++) {
    const int row = row0 + column0 + 8 * j;
    const bool present = finishes && row < p.end;
    store_state(h[j], p.last_h, row, unit, p.width, present);
    if (Cell::carries_c && present && unit < p.width) p.last_c[i64(row) * p.width + unit] = c[j];
  }
  __syncthreads();
  cluster_sync();  // the other block's shared memory stays as long as copies go to it
}
#endif

// -------------------------------------------------------------------------------------------------- backward, through L2
#ifdef GRID_BACKWARD
// d_h = U^T d_uz has 4 HP of k and only HP rows, so SHARERS blocks have the same rows and a share of k each: share r is what the
// blocks r CHUNKS, ..., (r + 1) CHUNKS - 1 of the group write. Each block then adds up 8 partial sums for its own 16 units. With
// QUADS four blocks share, and the sums of their two warpgroups come through the shared memory of a cluster. Clusters of four leave
// some of the GPU unused. Without them sums go through L2; and if HP is a multiple of 128, eight blocks share, whose warpgroups
// have 64 rows each instead of halves of k: a block then has half as many tiles to fetch. An RNN's d_uz has as many values as h, so
// each block has all of k for its own 64 units, and adds what its two warpgroups have.
constexpr int SHARERS = UNITS > 1 ? 1 : QUADS || HP % 128 ? 4 : 8;
constexpr bool APART = SHARERS == 8;                          // the warpgroups' rows; else they have the same, and halves of k
constexpr int TERMS = 4 * QUARTETS / SHARERS;                 // of k, in a block
constexpr int CHUNKS = TERMS / CHUNK;                         // tiles it multiplies by at a step
constexpr int VALUES = COLUMNS * 16;                          // of one partial sum: (EIGHTS, 32 lanes, 4), as the accumulators lie
constexpr int WORKERS = VALUES < THREADS ? VALUES : THREADS;  // threads of the pointwise part
constexpr int EACH = VALUES / WORKERS;                        // quartets a worker has: neighbours in a partial sum, but for an RNN
constexpr int LINES = UNITS > 1 ? EACH : EACH > 1 ? 2 : 1;    // rows of the batch among them: then it begins again with the first
constexpr bool AHEAD = EACH <= 2;                             // registers suffice to read a step ahead
constexpr int COLUMN = 68;                                    // an RNN's partial sum: (COLUMNS, 64 units and a gap)
constexpr int OWNED = UNITS == 1 && EACH == 4 ? 2 : 1;        // different quartets among a worker's, with EACH / OWNED rows each
constexpr int PARTIAL = UNITS > 1 ? 2 * COLUMNS * COLUMN : QUADS ? 2 * 8 * VALUES : 0;  // in shared memory; a quad's by parity

DEVICE void fetch(u32 tile, const void* source, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(tile), "l"(source),
               "r"(bytes), "r"(bar) : "memory");
}
// from shared memory with QUADS, else from L2, past the cache of the multiprocessor
template <class T> DEVICE T received(const float* p) {
  return QUADS ? *reinterpret_cast<const T*>(p) : __ldcg(reinterpret_cast<const T*>(p));
}
DEVICE void add_received(float (&sum)[EACH], const float* p) {
  if constexpr (EACH == 4) {
    const float4 v = received<float4>(p);
    sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
  } else if constexpr (EACH == 2) {
    const float2 v = received<float2>(p);
    sum[0] += v.x, sum[1] += v.y;
  } else {
    sum[0] += received<float>(p);
  }
}

// The k-th of the workers that have this quartet of the block. Those that have two have the quartet 8 further on as well.
DEVICE int worker_of(int quartet16, int k) {
  const int low = quartet16 & 7, high = quartet16 >> 3;
  if (UNITS > 1) return quartet16 + 16 * k;
  if (EACH == 1) return low << 4 | high << 1 | (k & 1) | ((k >> 1) & 3) << 2 | (k >> 3) << 7;
  if (EACH == 2) return low << 3 | high | (k & 3) << 1 | (k >> 2) << 6;
  return low << 2 | (k & 3) | (k >> 2) << 5;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) grid_backward(const __grid_constant__ Backward p) {
  unsigned char* memory = aligned(shared_memory);
  float* partial = reinterpret_cast<float*>(memory + CHUNKS * TILE);
  Block<float>* vectors = reinterpret_cast<Block<float>*>(partial + PARTIAL);  // (4 slots, 16 quartets): a warp reads neighbours
  float4* totals = reinterpret_cast<float4*>(vectors + 64);  // (OWNED, 4 slots, WORKERS): gradients of the vectors
  uint4* seen = reinterpret_cast<uint4*>(totals + OWNED * 4 * WORKERS);  // (EACH, WORKERS) if not AHEAD: W x and U h of the step
  const u32 tiles = shared_address(memory), full = shared_address(seen + (AHEAD ? 0 : EACH * WORKERS));

  const int group = blockIdx.x / PARTS, part = blockIdx.x % PARTS, share = part & (SHARERS - 1);
  const int tid = threadIdx.x, lane = tid & 31, half = tid >> 7, warp = (tid >> 5) & 3, q = lane >> 2, l = lane & 3;
  const int row0 = p.first + group * COLUMNS;
  if (tid == 0) {
    for (int chunk = 0; chunk < CHUNKS; chunk++) mbarrier_init(full + 8 * chunk, 1);
    mbarrier_init_visible();
  }
  if (tid < 64) vectors[tid] = vectors_of(p.vectors, p.bias_hn, p.width, part * 16 + (tid & 15), tid >> 4);
  __syncthreads();
#if QUADS
  cluster_sync();  // all four blocks are there before one writes into another
#endif
  u32 a[STEPS][4];
  const int m = (part - share) * 16 * UNITS + (APART ? half * CHUNK : 0) + 16 * warp + q, step0 = APART ? 0 : half * STEPS;
  load_u_transposed(a, p.u, p.width, UNITS > 1 ? HP : 4 * p.width, m, share * TERMS + step0 * 16 + 2 * l, true);

  // ---- the quartets of this worker. Accumulator i of lane `from` in eight j is of unit from / 4 + 8 (i / 2) and of column 8 j + 2
  // (from % 4) + i % 2: neighbours are of neighbouring columns, and the third and fourth of units 8 further on. An RNN's worker has
  // the same quartet in every sixteenth column.
  const bool works = tid < WORKERS;
  const int value = tid * EACH;
  const int first = UNITS > 1 ? tid & 15 : ((value >> 4) & 7) + 8 * ((value >> 1) & 1);
  const int column0 = UNITS > 1 ? tid >> 4 : 8 * (value >> 7) + 2 * ((value >> 2) & 3) + (value & 1);
  auto quartet16_of = [&](int e) { return UNITS > 1 ? first : first + 8 * (e >> 1); };
  auto quartet_of = [&](int e) { return part * 16 + quartet16_of(e); };
  auto column_of = [&](int e) { return column0 + (UNITS > 1 ? 16 * e : e % LINES); };
  auto row_of = [&](int e) { return row0 + column_of(e); };
  auto present = [&](int e) { return works && row_of(e) < p.end; };
  int length[LINES], line[LINES];
  float d_c[EACH], pass[EACH][UNITS];
#pragma unroll
  for (int r = 0; r < LINES; r++) {
    length[r] = length_of(p.lengths, row_of(r), p.steps, present(r));
    line[r] = line_of(p.tokens, p.steps - 1, p.batch, row_of(r), present(r));
  }
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    const int unit = quartet_of(e) * UNITS;
    load_state(pass[e], p.d_last_h, row_of(e), unit, p.width, present(e));
    const bool comes = Cell::carries_c && p.d_last_c && present(e) && unit < p.width;
    d_c[e] = comes ? p.d_last_c[i64(row_of(e)) * p.width + unit] : 0.f;
  }
  Kept kept[EACH];
  auto read = [&](int t) {
#pragma unroll
    for (int e = 0; e < EACH; e++) kept[e] = kept_at(p, line[e % LINES], t, row_of(e), quartet_of(e), QUARTETS, present(e));
#pragma unroll
    for (int r = 0; r < LINES; r++)
      if (t > 0) line[r] = line_of(p.tokens, t - 1, p.batch, row_of(r), present(r));
  };
  if (AHEAD) read(p.steps - 1);

  // ---- gradients of this worker's vectors: in registers, or with two quartets in shared memory
  Block<float> total[4];
  auto load_totals = [&](int owned) {
#pragma unroll
    for (int g = 0; g < 4; g++) {
      const float4 v = totals[(owned * 4 + g) * WORKERS + tid];
      total[g] = {v.x, v.y, v.z, v.w};
    }
  };
  auto store_totals = [&](int owned) {
#pragma unroll
    for (int g = 0; g < 4; g++)
      totals[(owned * 4 + g) * WORKERS + tid] = make_float4(total[g].alpha, total[g].beta1, total[g].beta2, total[g].b);
  };
#pragma unroll
  for (int g = 0; g < 4; g++) total[g] = {0.f, 0.f, 0.f, 0.f};
  if (OWNED > 1) {
    store_totals(0);
    store_totals(1);
  }

  float d[COLUMNS / 2];
  Slopes slopes[EACH];
  float d_h[EACH][UNITS], d_operand[EACH];
  uint4 flows[EACH];
  for (int done = 0; done < STAGES * p.steps; done++) {
    const int t = p.steps - 1 - done / STAGES;
    const bool begins = STAGES == 1 || (done & 1) == 0, ends = STAGES == 1 || !begins, more = done + 1 < STAGES * p.steps;
    auto prepare = [&] {
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        slopes[e] = slopes_of<16>(kept[e], vectors + quartet16_of(e));
#pragma unroll
        for (int i = 0; i < UNITS; i++) d_h[e][i] = kept[e].d_output[i] + pass[e][i];
        flows[e] = make_uint4(kept[e].wx.x, kept[e].wx.y, kept[e].uz.x, kept[e].uz.y);
        if (!AHEAD) seen[e * WORKERS + tid] = flows[e];
      }
    };
    if (!AHEAD && begins) read(t);
    if (begins && (AHEAD || done == 0)) prepare();
    if (AHEAD && begins && t > 0) read(t - 1);

    if (done > 0) {
      // ---- fetch this block's share of d_uz(t + 1): lane i what the i-th block that writes it has, once its flag says so
      if (tid < 32) {
        const int writer = group * PARTS + share * CHUNKS + (lane < CHUNKS ? lane : 0);
        const u16* chunk = p.exchange + (i64(done & 1) * gridDim.x + writer) * COLUMNS * CHUNK;
        bool fetched = lane >= CHUNKS;
        do {
          if (!fetched && flag_value(p.flags + writer * 32) >= u32(done)) {
            fence_global();
            mbarrier_expect(full + 8 * lane, TILE);
            fetch(tiles + lane * TILE, chunk, TILE, full + 8 * lane);
            fetched = true;
          }
        } while (!__all_sync(~0u, fetched));
        __syncwarp();
      }
      if (!AHEAD && begins) prepare();  // while the tiles are on their way
      multiply_tiles(d, a, tiles, full, step0, (done - 1) & 1);

      if constexpr (UNITS == 4) {
        float* mine = partial + half * COLUMNS * COLUMN + 2 * l * COLUMN + 16 * warp + q;
#pragma unroll
        for (int j = 0; j < EIGHTS; j++) {
          float* to = mine + 8 * j * COLUMN;
          to[0] = d[4 * j], to[COLUMN] = d[4 * j + 1], to[8] = d[4 * j + 2], to[COLUMN + 8] = d[4 * j + 3];
        }
        block_sync<THREADS>();
#pragma unroll
        for (int e = 0; e < EACH; e++) {
          if (!works) continue;
          const float* from = partial + column_of(e) * COLUMN + 4 * first;
          const float4 x = *reinterpret_cast<const float4*>(from);
          const float4 y = *reinterpret_cast<const float4*>(from + COLUMNS * COLUMN);
          d_h[e][0] += x.x + y.x, d_h[e][1] += x.y + y.y, d_h[e][2] += x.z + y.z, d_h[e][3] += x.w + y.w;
        }
      } else {
        // ---- rows 16 w, ... of the sum are units of the w-th block that shares it: a warp's sums have one owner. Two buffers by
        // parity: whoever writes at done + 2 has heard from this block at done + 1, when all its warps had read what came at done.
        float sum[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++) sum[e] = 0.f;
        const int buffer = done & 1, owner = APART ? 4 * half + warp : warp, source = APART ? share : 2 * share + half;
        const int mine = (source * EIGHTS * 32 + lane) * 4;
#if QUADS
        const float* here = partial + buffer * 8 * VALUES;
        const u32 there = of_peer(shared_address(here + mine), owner);
#pragma unroll
        for (int j = 0; j < EIGHTS; j++)
          asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(there + j * 512), "f"(d[4 * j]), "f"(d[4 * j + 1]),
                       "f"(d[4 * j + 2]), "f"(d[4 * j + 3]) : "memory");
        cluster_sync();
        if (works) {
#pragma unroll
          for (int from = 0; from < 8; from++) add_received(sum, here + from * VALUES + tid * EACH);
        }
#else
        const int owner_block = blockIdx.x - share + owner;
        float* there = p.partial + (i64(buffer) * gridDim.x + owner_block) * 8 * VALUES + mine;
#pragma unroll
        for (int j = 0; j < EIGHTS; j++)
          *reinterpret_cast<float4*>(there + j * 128) = make_float4(d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]);
        __syncwarp();
        // A flag for each source, since one may be a step ahead of another. Every warp raises and awaits them for itself, so that
        // nobody waits for the slowest warp of a block it needs nothing of.
        if (lane == 0) raise_flag(p.owner_flags + owner_block * 32 + source);
        bool came;
        do {
          came = lane >= 8 || flag_value(p.owner_flags + blockIdx.x * 32 + lane) >= u32(done);
        } while (works && !__all_sync(~0u, came));
        __syncwarp();
        if (works) {
          const float* here = p.partial + (i64(buffer) * gridDim.x + blockIdx.x) * 8 * VALUES + tid * EACH;
#pragma unroll
          for (int from = 0; from < 8; from++) add_received(sum, here + from * VALUES);
        }
#endif
#pragma unroll
        for (int e = 0; e < EACH; e++) {
          if (begins)
            d_h[e][0] += sum[e];
          else
            d_operand[e] = sum[e];
        }
      }
    }

    // ---- the step itself. d_uz(t) goes where d_uz(t + 2) was, in one of two buffers. All blocks have fetched that one by then:
    // what this block has added up came of all of d_uz(t + 1), and none wrote its part of that before it was done with d_uz(t + 2).
    Step step[EACH];
    if (works) {
      u16* chunk = p.exchange + (i64((done + 1) & 1) * gridDim.x + blockIdx.x) * COLUMNS * CHUNK;
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        const bool active = t < length[e % LINES];
        const int at = in_tile(column_of(e), quartet16_of(e) >> 1) / 2 + (quartet16_of(e) & 1) * 4;
        if (ends) step[e] = step_back(slopes[e], d_h[e], d_operand[e], active, d_c[e], pass[e]);
        if (more) *reinterpret_cast<uint2*>(chunk + at) = ends ? for_state(step[e]) : for_operand(slopes[e], d_h[e][0], active);
      }
      fence_global();
    }
    block_sync<THREADS>();
    if (tid == 0 && more) raise_flag(p.flags + blockIdx.x * 32);
#pragma unroll
    for (int owned = 0; owned < OWNED; owned++) {
      if (!works || !ends) continue;
      if (OWNED > 1) load_totals(owned);
#pragma unroll
      for (int r = 0; r < EACH / OWNED; r++) {
        const int e = owned * (EACH / OWNED) + r;
        if (!AHEAD) flows[e] = seen[e * WORKERS + tid];
        if (present(e))
          store_step<16>(p, step[e], flows[e], vectors + quartet16_of(e), total, t, row_of(e), quartet_of(e), QUARTETS);
      }
      if (OWNED > 1) store_totals(owned);
    }
    __syncwarp();
  }
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    const int unit = quartet_of(e) * UNITS;
    store_state(pass[e], p.d_h, row_of(e), unit, p.width, present(e));
    if (GATES > 1 && present(e) && unit < p.width) p.d_c[i64(row_of(e)) * p.width + unit] = d_c[e];
  }

  // ---- one sum over the rows of the batch for each slot and vector of the block's quartets, in the same order every time
  if (OWNED == 1 && works) store_totals(0);
  __syncthreads();
  const int quartet16 = tid >> 4, slot = (tid >> 2) & 3, vector = tid & 3;
  float sum = 0.f;
  for (int k = 0; k < WORKERS * OWNED / 16; k++) {
    const float4 v = totals[((OWNED > 1 ? quartet16 >> 3 : 0) * 4 + slot) * WORKERS + worker_of(quartet16, k)];
    sum += vector == 0 ? v.x : vector == 1 ? v.y : vector == 2 ? v.z : v.w;
  }
  p.sums[(i64(group) * 4 + vector) * 4 * QUARTETS + (part * 16 + quartet16) * 4 + slot] = sum;
#if QUADS
  cluster_sync();  // no block leaves while another may still write to it
#endif
}
#endif

#if defined(CLUSTER_FORWARD) || defined(CLUSTER_BACKWARD)
constexpr int ROWS = 8;            // of the batch, in one cluster
constexpr int BLOCKS = QUARTETS / 32;  // of the cluster, with 32 quartets each
constexpr u32 TILE = ROWS * 128;   // bytes

// A small RNN's block is alone: it is no cluster, and where others wait for what was sent to them, it waits for itself.
constexpr bool ALONE = BLOCKS == 1;

// 16 bytes into the shared memory of a block of the cluster, counted by its barrier
DEVICE void send(u32 address, u32 peer, uint4 v, u32 bar) {
  if (ALONE)
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
  else
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(of_peer(address, peer)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(of_peer(bar, peer)) : "memory");
}
DEVICE void expect(u32 bar, u32 bytes) {
  if (!ALONE) mbarrier_expect(bar, bytes);
}
DEVICE void all_has_come(u32 bar, u32 phase) {
  if (ALONE) {
    fence_shared();
    __syncthreads();
  } else {
    mbarrier_wait(bar, phase);
    fence_shared();
    __syncwarp();
  }
}
DEVICE void all_are_here() {
  __syncthreads();
  if (!ALONE) cluster_sync();
}
// where a quartet stands in the two tiles of its block, in bytes, if its four values are what is multiplied by
DEVICE int in_tiles(int column, int quartet32) {
  return (quartet32 >> 4) * TILE + in_tile(column, (quartet32 & 15) >> 1) + (quartet32 & 1) * 8;
}
// Barriers are two, by the parity of the step they announce; step s > 0 is the ((s - 1) / 2)-th phase of its barrier.
DEVICE u32 phase_of(int s) { return u32((s - 1) >> 1) & 1u; }
#endif

// ----------------------------------------------------------------------------------------------- forward, inside a cluster
#ifdef CLUSTER_FORWARD
constexpr int CHUNKS = HP / CHUNK, STEPS = HP / 16;
constexpr int PIECES = 32 * UNITS;  // of 16 bytes, in which a block sends its part of the new h

extern "C" __global__ void __launch_bounds__(THREADS, 1) cluster_forward(const __grid_constant__ Forward p) {
  unsigned char* memory = aligned(shared_memory);  // tiles of h: (2, CHUNKS), the first axis by the step's parity
  u16* both = reinterpret_cast<u16*>(memory + 2 * CHUNKS * TILE);  // (2, PIECES, 8): the new h of this block, by parity too
  const u32 tiles = shared_address(memory), full = shared_address(both + 2 * PIECES * 8);

  const int rank = blockIdx.x % BLOCKS, row0 = p.first + (blockIdx.x / BLOCKS) * ROWS;
  const int tid = threadIdx.x, lane = tid & 31, half = tid >> 7, warp = (tid >> 5) & 3, q = lane >> 2, l = lane & 3;
  const bool upper = q >= 4;
  const int quartet32 = half * 16 + 4 * warp + (q & 3), column = 2 * l + upper, row = row0 + column;
  const int quartet = rank * 32 + quartet32, unit = UNITS * quartet;
  const bool present = row < p.end;
  if (tid == 0) {
    mbarrier_init(full, 1);
    mbarrier_init(full + 8, 1);
    mbarrier_init_visible();
  }
  for (int i = tid; i < ROWS * HP; i += THREADS) {  // every block has all of h(0)
    const int n = i / HP, k = i % HP;
    const float x = row0 + n < p.end && k < p.width ? p.h[i64(row0 + n) * p.width + k] : 0.f;
    *reinterpret_cast<u16*>(memory + (k / CHUNK) * TILE + in_tile(n, (k % CHUNK) >> 3) + (k & 7) * 2) = rounded(x);
  }
  fence_shared();
  all_are_here();

  u32 a[STEPS][4];
  load_u(a, p.u, p.width, quartet, upper ? 2 : 0, 2 * l);
  Block<float> vectors[4];
#pragma unroll
  for (int g = 0; g < 4; g++) vectors[g] = vectors_of(p.vectors, p.bias_hn, p.width, quartet, g);
  float h[UNITS], c = Cell::carries_c && present && unit < p.width ? p.c[i64(row) * p.width + unit] : 0.f;
  load_state(h, p.h, row, unit, p.width, present);
  const int length = length_of(p.lengths, row, p.steps, present);
  const bool wide = (p.width & 7) == 0;
  auto read = [&](int line) { return present ? early8(p.flow + (i64(line) * QUARTETS + quartet) * 4) : make_uint2(0, 0); };
  uint2 wx = read(line_of(p.tokens, 0, p.batch, row, present));
  int line = p.steps > 1 ? line_of(p.tokens, 1, p.batch, row, present) : 0;

  uint2 next_wx = make_uint2(0, 0);
  float first[2] = {0.f, 0.f};  // with two stages: of the first product, the flows of gates r and z
  for (int stage = 0; stage < STAGES * p.steps; stage++) {
    const int t = stage / STAGES, next = (stage + 1) & 1;
    const bool begins = STAGES == 1 || (stage & 1) == 0, ends = STAGES == 1 || !begins, more = stage + 1 < STAGES * p.steps;
    if (tid == 0 && more) expect(full + 8 * next, ROWS * HP * 2);
    if (begins && t + 1 < p.steps) next_wx = read(line);
    if (begins && t + 2 < p.steps) line = line_of(p.tokens, t + 2, p.batch, row, present);
    if (stage > 0) all_has_come(full + 8 * (stage & 1), phase_of(stage));

    float d[4][4];  // four sums side by side: a product need not wait for the one before it
#pragma unroll
    for (int i = 0; i < 4; i++) clear(d[i]);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < STEPS; s++)
      multiply(d[s & 3], a[s], tile_descriptor(tiles + ((stage & 1) * CHUNKS + (s >> 2)) * TILE + (s & 3) * K_BYTES));
    wgmma_commit();
    wgmma_wait();
    float sum[4], uz[4];
#pragma unroll
    for (int i = 0; i < 4; i++) sum[i] = (d[0][i] + d[1][i]) + (d[2][i] + d[3][i]);
    all_slots(sum, upper, uz);
    const float before = c;
    float operand[UNITS];
    u16* staged = both + next * PIECES * 8;
    u16* place = staged + (UNITS == 1 ? column * 32 + quartet32 : in_tiles(column, quartet32) / 2);
    if (ends) {
      if (STAGES == 2) uz[0] = first[0], uz[1] = first[1];
      advance(wx, uz, t < length, h, c, vectors);
      put(place, h);
    } else {
      first[0] = uz[0], first[1] = uz[1];
      operand[0] = Staged::operand(values_of(wx, uz, h[0], vectors));
      put(place, operand);
    }
    u16* to = ends ? p.outputs : p.operands;
    block_sync<THREADS>();

    // To every block of the cluster, this one too. The tiles of h(t + 1) take the place of h(t - 1), which all blocks are done
    // with: h(t) is here from each of them, and none sent its part before it had multiplied by h(t - 1). A warp slow to send does
    // not keep the others from the next step, if the other blocks are fast: so there are two places to stage h in, and nobody comes
    // back to this one before all have been at the next step's block_sync.
#pragma unroll
    for (int i = tid; i < BLOCKS * PIECES; i += THREADS) {
      const int peer = i / PIECES, piece = i % PIECES;
      const uint4 eight = *reinterpret_cast<const uint4*>(staged + piece * 8);
      int n, unit8;  // an RNN's piece is of one of its two tiles, and lies there as it is to lie with the peers
      u32 at = tiles + next * CHUNKS * TILE;
      if constexpr (UNITS == 4) {
        n = (piece >> 3) & 7, unit8 = rank * 128 + (piece >> 6) * CHUNK + ((piece & 7) ^ n) * 8;
        at += 2 * rank * TILE + piece * 16;
      } else {
        n = piece >> 2, unit8 = rank * 32 + (piece & 3) * 8;
        at += (rank >> 1) * TILE + in_tile(n, (rank & 1) * 4 + (piece & 3));
      }
      if (more) send(at, peer, eight, full + 8 * next);
      if (peer == 0 && wide && to && row0 + n < p.end && unit8 < p.width)
        *reinterpret_cast<uint4*>(to + (i64(t) * p.batch + row0 + n) * p.width + unit8) = eight;
    }
    const i64 at = i64(t) * p.batch + row;
    if (ends && p.uz && present) {
      *reinterpret_cast<uint2*>(p.uz + (at * QUARTETS + quartet) * 4) = packed(uz);
      if (Cell::carries_c) p.cs[at * HP + unit] = rounded(before);
    }
#pragma unroll
    for (int i = 0; i < UNITS; i++)
      if (!wide && to && present && unit + i < p.width) to[at * p.width + unit + i] = rounded(ends ? h[i] : operand[i]);
    if (ends) wx = next_wx;
    __syncwarp();
  }
  store_state(h, p.last_h, row, unit, p.width, present);
  if (Cell::carries_c && present && unit < p.width) p.last_c[i64(row) * p.width + unit] = c;
  all_are_here();  // no block leaves while another may still write to it
}
#endif

// ---------------------------------------------------------------------------------------------- backward, inside a cluster
#ifdef CLUSTER_BACKWARD
// A block has 32 rows of U^T, and its warpgroups share the sum over k = 4 quartet + slot; or an RNN's 128 rows, 64 to a warpgroup.
constexpr bool SHARED = UNITS == 1;
constexpr int CHUNKS = 4 * QUARTETS / CHUNK, STEPS = SHARED ? HP / 8 : HP / 16;  // of 16 in k, in each warpgroup
constexpr int COLUMN = SHARED ? 36 : 132;  // rows of a column of the product, and a gap against bank conflicts

extern "C" __global__ void __launch_bounds__(THREADS, 1) cluster_backward(const __grid_constant__ Backward p) {
  unsigned char* memory = aligned(shared_memory);                                 // tiles of d_uz: (2, CHUNKS)
  unsigned char* staged = memory + 2 * CHUNKS * TILE;                             // two tiles: d_uz of this block's 32 quartets
  float(*product)[ROWS][COLUMN] = reinterpret_cast<float(*)[ROWS][COLUMN]>(staged + 2 * TILE);  // of each half of k
  const u32 tiles = shared_address(memory), full = shared_address(product + (SHARED ? 2 : 1));

  const int rank = blockIdx.x % BLOCKS, row0 = p.first + (blockIdx.x / BLOCKS) * ROWS;
  const int tid = threadIdx.x, lane = tid & 31, half = tid >> 7, warp = (tid >> 5) & 3, q = lane >> 2, l = lane & 3;
  if (tid == 0) {
    mbarrier_init(full, 1);
    mbarrier_init(full + 8, 1);
    mbarrier_init_visible();
  }
  all_are_here();

  u32 a[STEPS][4];  // if k is shared, 32 of the 64 rows of a product: the other two warps have zeros
  const int m = SHARED ? 16 * warp + q : 64 * half + 16 * warp + q, step0 = SHARED ? half * STEPS : 0;
  load_u_transposed(a, p.u, p.width, SHARED ? 4 * p.width : HP, rank * 32 * UNITS + m, step0 * 16 + 2 * l, !SHARED || warp < 2);
  const int quartet32 = tid >> 3, column = tid & 7, quartet = rank * 32 + quartet32, unit = quartet * UNITS, row = row0 + column;
  const bool present = row < p.end, there = present && unit < p.width;
  Block<float> vectors[4];
#pragma unroll
  for (int g = 0; g < 4; g++) vectors[g] = vectors_of(p.vectors, p.bias_hn, p.width, quartet, g);
  float pass[UNITS], d_c = Cell::carries_c && there && p.d_last_c ? p.d_last_c[i64(row) * p.width + unit] : 0.f;
  load_state(pass, p.d_last_h, row, unit, p.width, present);
  const int length = length_of(p.lengths, row, p.steps, present);
  int line = line_of(p.tokens, p.steps - 1, p.batch, row, present);
  Kept kept = kept_at(p, line, p.steps - 1, row, quartet, QUARTETS, present);
  if (p.steps > 1) line = line_of(p.tokens, p.steps - 2, p.batch, row, present);

  Block<float> total[4];  // gradients of the vectors
#pragma unroll
  for (int g = 0; g < 4; g++) total[g] = {0.f, 0.f, 0.f, 0.f};

  Slopes slopes;
  float d_h[UNITS], d_operand = 0.f;
  uint4 flows;
  for (int done = 0; done < STAGES * p.steps; done++) {
    const int t = p.steps - 1 - done / STAGES, next = (done + 1) & 1;
    const bool begins = STAGES == 1 || (done & 1) == 0, ends = STAGES == 1 || !begins, more = done + 1 < STAGES * p.steps;
    if (tid == 0 && more) expect(full + 8 * next, ROWS * QUARTETS * 8);
    if (begins) {
      slopes = slopes_of(kept, vectors);
#pragma unroll
      for (int i = 0; i < UNITS; i++) d_h[i] = kept.d_output[i] + pass[i];
      flows = make_uint4(kept.wx.x, kept.wx.y, kept.uz.x, kept.uz.y);
      if (t > 0) kept = kept_at(p, line, t - 1, row, quartet, QUARTETS, present);
      if (t > 1) line = line_of(p.tokens, t - 2, p.batch, row, present);
    }
    if (done > 0) {
      all_has_come(full + 8 * (done & 1), phase_of(done));
      float d[2][4];
      clear(d[0]), clear(d[1]);
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < STEPS; s++) {
        const int k = step0 + s;
        multiply(d[s & 1], a[s], tile_descriptor(tiles + ((done & 1) * CHUNKS + (k >> 2)) * TILE + (k & 3) * K_BYTES));
      }
      wgmma_commit();
      wgmma_wait();
      if (!SHARED || warp < 2) {
        float *even = product[SHARED ? half : 0][2 * l] + m, *odd = even + COLUMN;
        even[0] = d[0][0] + d[1][0], odd[0] = d[0][1] + d[1][1];
        even[8] = d[0][2] + d[1][2], odd[8] = d[0][3] + d[1][3];
      }
      block_sync<THREADS>();
      if constexpr (SHARED) {
        const float sum = product[0][column][quartet32] + product[1][column][quartet32];
        if (begins)
          d_h[0] += sum;
        else
          d_operand = sum;
      } else {
        const float4 four = *reinterpret_cast<const float4*>(product[0][column] + 4 * quartet32);
        d_h[0] += four.x, d_h[1] += four.y, d_h[2] += four.z, d_h[3] += four.w;
      }
    }
    Step step;
    if (ends) step = step_back(slopes, d_h, d_operand, t < length, d_c, pass);
    const uint2 sent = ends ? for_state(step) : for_operand(slopes, d_h[0], t < length);
    *reinterpret_cast<uint2*>(staged + in_tiles(column, quartet32)) = sent;
    block_sync<THREADS>();
    // as in the forward pass: d_uz(t) takes the place of d_uz(t + 2), and all of d_uz(t + 1) is here
    if (more) {
#pragma unroll
      for (int i = tid; i < BLOCKS * 128; i += THREADS) {
        const int peer = i >> 7, piece = i & 127;
        const uint4 eight = *reinterpret_cast<const uint4*>(staged + piece * 16);
        send(tiles + (next * CHUNKS + 2 * rank) * TILE + piece * 16, peer, eight, full + 8 * next);
      }
    }
    if (ends && present) store_step(p, step, flows, vectors, total, t, row, quartet, QUARTETS);
    __syncwarp();
  }
  // the eight lanes of a quartet have its rows of the batch: each adds all up, and writes two of the sixteen sums
  const i64 sums = i64(blockIdx.x / BLOCKS) * 4 * 4 * QUARTETS + quartet * 4;
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const int slot = i >> 2, vector = i & 3;
    float sum = vector == 0 ? total[slot].alpha : vector == 1 ? total[slot].beta1 : vector == 2 ? total[slot].beta2 : total[slot].b;
#pragma unroll
    for (int apart = 1; apart < 8; apart *= 2) sum += __shfl_xor_sync(~0u, sum, apart);
    if (column == i >> 1) p.sums[sums + vector * 4 * QUARTETS + slot] = sum;
  }
  store_state(pass, p.d_h, row, unit, p.width, present);
  if (GATES > 1 && there) p.d_c[i64(row) * p.width + unit] = d_c;
  all_are_here();
}
#endif

// ------------------------------------------------------------------------------------------------------------ U, transposed
#ifdef TURN
constexpr int SIDE = 32;

// (GATES, width units, width) becomes (width, width units, 4 slots), in squares that go through shared memory
extern "C" __global__ void __launch_bounds__(THREADS) turn(const __grid_constant__ Turn p) {
  __shared__ u16 square[GATES][SIDE][SIDE + 1];
  const int across = threadIdx.x & (SIDE - 1), down = threadIdx.x / SIDE;
  const int unit0 = blockIdx.x * SIDE, m0 = blockIdx.y * SIDE;
  for (int gate = 0; gate < GATES; gate++)
    for (int i = down; i < SIDE; i += THREADS / SIDE) {
      const int unit = unit0 + i, m = m0 + across;
      if (unit < p.width && m < p.width) square[gate][i][across] = p.u[(i64(gate) * p.width + unit) * p.width + m];
    }
  __syncthreads();
  for (int i = down; i < SIDE; i += THREADS / SIDE) {
    const int m = m0 + i, unit = unit0 + across;
    if (m >= p.width || unit >= p.width) continue;
    const auto at = [&](int gate) { return gate < GATES ? u32(square[gate][across][i]) : 0u; };
    const u32 low = at(0) | at(1) << 16, high = at(2) | at(3) << 16;
    *reinterpret_cast<uint2*>(p.turned + (i64(m) * p.width + unit) * 4) = make_uint2(low, high);
  }
}
#endif
