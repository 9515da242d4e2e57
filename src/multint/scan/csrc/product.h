// How is a matrix product formed at the speed of the machine?
//
// A panel holds up to four vectors of columns of the right-hand matrix, packed so that the tile kernel reads it from end to end; a
// tile keeps rows x columns of the result in registers. The time loop multiplies by the same panels at every step.
#pragma once
#include "lanes.h"
#include "team.h"

#if defined(__AVX512BF16__)
constexpr bool PAIRED = true;  // bfloat16 products take two k at once
#else
constexpr bool PAIRED = false;
#endif

constexpr int WIDEST = 4;  // vectors in a panel
// rows of a tile: as many accumulators as registers allow besides the panel's vectors and one broadcast
constexpr int tallest(int width) { return REGISTERS == 32 ? (width == 4 ? 6 : width == 3 ? 8 : 12) : (width == 4 ? 3 : width == 3 ? 4 : 6); }
constexpr int TALLEST = 12;

// what a panel holds: bfloat16 where the machine multiplies it, else the arithmetic type
template <class S> struct PackedOf { typedef Arithmetic<S> type; };
template <> struct PackedOf<bfloat16> { typedef std::conditional_t<PAIRED, bfloat16, float> type; };
template <class S> using Packed = typename PackedOf<S>::type;
template <class S> constexpr bool paired = PAIRED && sizeof(S) == 2;
template <class S> constexpr int64_t padded(int64_t k) { return paired<S> ? (k + 1) / 2 * 2 : k; }
template <class S> static inline int64_t packed_place(int64_t k, int64_t column, int64_t columns) {
  return paired<S> ? (k / 2 * columns + column) * 2 + k % 2 : k * columns + column;
}

// ---- tiles ----

// out (rows x WIDTH vectors, row stride `stride`) = or += a (rows x k) times a panel. Tall: `a` is packed, rows beside each other.
template <class S, int ROWS, int WIDTH, bool TALL>
__attribute__((noinline)) static void tile(
    int64_t k, const S* a, int64_t lda, const Packed<S>* panel, Arithmetic<S>* out, int64_t stride, bool add) {
  typedef Vector<S> V;
  V sum[ROWS][WIDTH];
  for (int i = 0; i < ROWS; i++)
    for (int j = 0; j < WIDTH; j++) sum[i][j] = add ? load(out + i * stride + j * lanes<S>) : V{};
  if constexpr (paired<S>) {
#if defined(__AVX512BF16__)
    const auto* p = reinterpret_cast<const __m512bh*>(panel);
    const auto step = [&](int64_t q, auto whole) __attribute__((always_inline)) {
      __m512bh w[WIDTH];
      for (int j = 0; j < WIDTH; j++) w[j] = p[q / 2 * WIDTH + j];
#pragma GCC unroll 16
      for (int i = 0; i < ROWS; i++) {
        int32_t two = 0;
        memcpy(&two, TALL ? a + (q / 2 * ROWS + i) * 2 : a + i * lda + q, TALL || whole() ? 4 : 2);
        const __m512bh both = (__m512bh)_mm512_set1_epi32(two);
#pragma GCC unroll 4
        for (int j = 0; j < WIDTH; j++) sum[i][j] = (V)_mm512_dpbf16_ps((__m512)sum[i][j], w[j], both);
      }
    };
    for (int64_t q = 0; q + 1 < k; q += 2) step(q, std::true_type());
    if (k % 2 != 0) step(k - 1, std::false_type());
#endif
  } else {
    for (int64_t q = 0; q < k; q++) {
      V w[WIDTH];
      for (int j = 0; j < WIDTH; j++) memcpy(&w[j], panel + (q * WIDTH + j) * lanes<S>, sizeof(V));
#pragma GCC unroll 16
      for (int i = 0; i < ROWS; i++) {
        const Arithmetic<S> x = widen(TALL ? a[q * ROWS + i] : a[i * lda + q]);
#pragma GCC unroll 4
        for (int j = 0; j < WIDTH; j++) sum[i][j] += x * w[j];
      }
    }
  }
  for (int i = 0; i < ROWS; i++)
    for (int j = 0; j < WIDTH; j++) store(out + i * stride + j * lanes<S>, sum[i][j]);
}

template <class S> using Tile = void (*)(int64_t, const S*, int64_t, const Packed<S>*, Arithmetic<S>*, int64_t, bool);

template <class S, int WIDTH> static Tile<S> tile_of(int rows) {
  constexpr Tile<S> of[TALLEST] = {
      tile<S, 1, WIDTH, false>,
      tile<S, 2, WIDTH, false>,
      tile<S, 3, WIDTH, false>,
      tallest(WIDTH) >= 4 ? tile<S, tallest(WIDTH) >= 4 ? 4 : 1, WIDTH, false> : nullptr,
      tallest(WIDTH) >= 5 ? tile<S, tallest(WIDTH) >= 5 ? 5 : 1, WIDTH, false> : nullptr,
      tallest(WIDTH) >= 6 ? tile<S, tallest(WIDTH) >= 6 ? 6 : 1, WIDTH, false> : nullptr,
      tallest(WIDTH) >= 7 ? tile<S, tallest(WIDTH) >= 7 ? 7 : 1, WIDTH, false> : nullptr,
      tallest(WIDTH) >= 8 ? tile<S, tallest(WIDTH) >= 8 ? 8 : 1, WIDTH, false> : nullptr,
      tallest(WIDTH) >= 9 ? tile<S, tallest(WIDTH) >= 9 ? 9 : 1, WIDTH, false> : nullptr,
      tallest(WIDTH) >= 10 ? tile<S, tallest(WIDTH) >= 10 ? 10 : 1, WIDTH, false> : nullptr,
      tallest(WIDTH) >= 11 ? tile<S, tallest(WIDTH) >= 11 ? 11 : 1, WIDTH, false> : nullptr,
      tallest(WIDTH) >= 12 ? tile<S, tallest(WIDTH) >= 12 ? 12 : 1, WIDTH, false> : nullptr,
  };
  return of[rows - 1];
}

// out (rows x width vectors) = or += a times a panel, in tiles of even height
template <class S>
static void by_panel(
    int64_t rows, int64_t k, const S* a, int64_t lda, const Packed<S>* panel, int width, Arithmetic<S>* out, int64_t stride, bool add) {
  const int64_t tiles = (rows + tallest(width) - 1) / tallest(width);
  for (int64_t i = 0; i < tiles; i++) {
    const int64_t from = rows * i / tiles, height = rows * (i + 1) / tiles - from;
    const Tile<S> of = width == 4   ? tile_of<S, 4>(int(height))
                       : width == 3 ? tile_of<S, 3>(int(height))
                       : width == 2 ? tile_of<S, 2>(int(height))
                                    : tile_of<S, 1>(int(height));
    of(k, a + from * lda, lda, panel, out + from * stride, stride, add);
  }
}

// k elements of a panel that stay in the second-level cache while all rows pass
template <class S> constexpr int64_t depth() { return 1024 * 4 / int64_t(sizeof(Packed<S>)); }

template <class S>
static void by_deep_panel(
    int64_t rows, int64_t k, const S* a, int64_t lda, const Packed<S>* panel, int width, Arithmetic<S>* out, int64_t stride) {
  for (int64_t q = 0; q < k; q += depth<S>()) {
    const int64_t some = k - q < depth<S>() ? k - q : depth<S>();
    by_panel<S>(rows, some, a + q, lda, panel + q * width * lanes<S>, width, out, stride, q > 0);
  }
}

// ---- packing ----

// lanes x lanes in registers: rows become columns
template <class V, int L, int D> static inline void turn(V* r) {
#if defined(__clang__)
  V old[L];
  memcpy(old, r, sizeof old);
  for (int i = 0; i < L; i++)
    for (int l = 0; l < L; l++) r[l][i] = old[i][l];
#else
  if constexpr (D > 0) {
    typename VectorOf<std::remove_cv_t<std::remove_reference_t<decltype(r[0][0])>>>::bits low, high;
    for (int l = 0; l < L; l++) {
      low[l] = l & D ? L + l - D : l;
      high[l] = l & D ? L + l : l + D;
    }
#pragma GCC unroll 16
    for (int i = 0; i < L; i++)
      if (!(i & D)) {
        const V a = r[i], b = r[i + D];
        r[i] = __builtin_shuffle(a, b, low);
        r[i + D] = __builtin_shuffle(a, b, high);
      }
    turn<V, L, D / 2>(r);
  }
#endif
}
// T (k x columns) into rows of `stride`, from a source that holds each column contiguously, `across` apart
template <class T> static void pack_turned(T* to, int64_t stride, int64_t columns, int64_t k, const T* source, int64_t across) {
  constexpr int L = lanes<T>;
  int64_t j = 0;
  for (; j + L <= columns; j += L) {
    int64_t q = 0;
    for (; q + L <= k; q += L) {
      Vector<T> r[L];
      for (int i = 0; i < L; i++) r[i] = load(source + (j + i) * across + q);
      turn<Vector<T>, L, L / 2>(r);
      for (int i = 0; i < L; i++) store(to + (q + i) * stride + j, r[i]);
    }
    for (; q < k; q++)
      for (int i = 0; i < L; i++) to[q * stride + j + i] = source[(j + i) * across + q];
  }
  for (; j < columns; j++)
    for (int64_t q = 0; q < k; q++) to[q * stride + j] = source[j * across + q];
}
// two rows of bfloat16 as one row of pairs
static inline void pair_rows(bfloat16* to, const bfloat16* even, const bfloat16* odd, int64_t count) {
  constexpr int L = lanes<bfloat16>;
  int64_t j = 0;
  for (; j + L <= count; j += L) {
    Half low, high;
    memcpy(&low, even + j, sizeof low);
    memcpy(&high, odd + j, sizeof high);
    const Word both = __builtin_convertvector(low, Word) | __builtin_convertvector(high, Word) << 16;
    memcpy(to + 2 * j, &both, sizeof both);
  }
  for (; j < count; j++) to[2 * j] = even[j], to[2 * j + 1] = odd[j];
}

// columns [at, at + columns) of a panel, from a source whose element (k, column) lies at k * down + column * across; one is 1
template <class S>
static void pack_columns(
    Packed<S>* panel, int64_t panel_columns, int64_t at, int64_t columns, int64_t k, const S* source, int64_t down, int64_t across) {
  if constexpr (std::is_same_v<Packed<S>, S> && !paired<S>) {
    if (across == 1) {
      for (int64_t q = 0; q < k; q++) memcpy(panel + q * panel_columns + at, source + q * down, size_t(columns) * sizeof(S));
    } else {
      pack_turned<S>(panel + at, panel_columns, columns, k, source, across);
    }
    return;
  } else if constexpr (paired<S>) {
    const int64_t even = k / 2 * 2;
    if (across == 1) {
      for (int64_t q = 0; q < even; q += 2)
        pair_rows(panel + (q / 2 * panel_columns + at) * 2, source + q * down, source + (q + 1) * down, columns);
    } else if (across % 2 == 0) {  // pairs lie beside each other: turn them as one word
      pack_turned<float>(reinterpret_cast<float*>(panel) + at, panel_columns, columns, even / 2,
                         reinterpret_cast<const float*>(source), across / 2);
    } else {
      for (int64_t q = 0; q < even; q++)
        for (int64_t j = 0; j < columns; j++) panel[packed_place<S>(q, at + j, panel_columns)] = source[q + j * across];
    }
    for (int64_t j = 0; even < k && j < columns; j++) {
      panel[packed_place<S>(even, at + j, panel_columns)] = source[even * down + j * across];
      panel[packed_place<S>(even + 1, at + j, panel_columns)] = S{};
    }
  } else {
    for (int64_t q = 0; q < k; q++)
      for (int64_t j = 0; j < columns; j++) panel[q * panel_columns + at + j] = widen(source[q * down + j * across]);
  }
}
template <class S> static void clear_columns(Packed<S>* panel, int64_t panel_columns, int64_t at, int64_t columns, int64_t k) {
  for (int64_t q = 0; q < padded<S>(k); q++)
    for (int64_t j = 0; j < columns; j++) panel[packed_place<S>(q, at + j, panel_columns)] = Packed<S>{};
}

// ---- few rows: not worth packing ----

template <class S, int ROWS, int COLUMNS>
static void dots(int64_t k, const S* a, int64_t lda, const S* w, int64_t ldw, Arithmetic<S>* out, int64_t stride) {
  Vector<S> sum[ROWS][COLUMNS] = {};
  for (int64_t q = 0; q < k; q += lanes<S>) {
    const int some = int(k - q < lanes<S> ? k - q : lanes<S>);
    Vector<S> column[COLUMNS];
    for (int j = 0; j < COLUMNS; j++) column[j] = load(w + j * ldw + q, some);
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++) {
      const Vector<S> row = load(a + i * lda + q, some);
#pragma GCC unroll 8
      for (int j = 0; j < COLUMNS; j++) sum[i][j] += row * column[j];
    }
  }
  for (int i = 0; i < ROWS; i++)
    for (int j = 0; j < COLUMNS; j++) {
      Arithmetic<S> parts[lanes<S>];
      store(parts, sum[i][j]);
      for (int half = lanes<S> / 2; half > 0; half /= 2)
        for (int q = 0; q < half; q++) parts[q] += parts[q + half];
      out[i * stride + j] = parts[0];
    }
}
template <class S, int COLUMNS>
static void dots(int rows, int64_t k, const S* a, int64_t lda, const S* w, int64_t ldw, Arithmetic<S>* out, int64_t stride) {
  if (rows == 1) return dots<S, 1, COLUMNS>(k, a, lda, w, ldw, out, stride);
  if (rows == 2) return dots<S, 2, COLUMNS>(k, a, lda, w, ldw, out, stride);
  if (rows == 3) return dots<S, 3, COLUMNS>(k, a, lda, w, ldw, out, stride);
  dots<S, 4, COLUMNS>(k, a, lda, w, ldw, out, stride);
}
// out (rows x columns) = a times the transpose of w (columns x k), as it lies
template <class S>
static void by_rows(
    int64_t rows, int64_t k, const S* a, int64_t lda, int64_t columns, const S* w, int64_t ldw, Arithmetic<S>* out, int64_t stride) {
  for (int64_t j = 0; j < columns;) {
    const bool four = columns - j >= 4;
    for (int64_t i = 0; i < rows; i += 4) {
      const int height = int(rows - i < 4 ? rows - i : 4);
      if (four) {
        dots<S, 4>(height, k, a + i * lda, lda, w + j * ldw, ldw, out + i * stride + j, stride);
      } else {
        dots<S, 1>(height, k, a + i * lda, lda, w + j * ldw, ldw, out + i * stride + j, stride);
      }
    }
    j += four ? 4 : 1;
  }
}

// ---- whole products, for what lies outside the time loop ----

// c (m x n) = a (m x k) times b (k x n), each given by its strides. a is stored by rows or, `tall`, by columns; c by rows
template <class S> struct Product {
  int64_t m, n, k;
  bool tall;
  const S* a;
  int64_t a_stride;
  const S* b;
  int64_t b_down, b_across;
  S* c;
  int64_t c_down;
};

template <class S> class Multiply {
 public:
  typedef Arithmetic<S> A;
  Multiply(const Product<S>& p, int size) : Multiply(p, size, p.k < 2 * depth<S>() ? p.k : depth<S>()) {}
  Multiply(const Product<S>& p, int size, int64_t block)  // k is taken in blocks of at most this
      : p(p),
        direct(p.m <= FEW && p.b_down == 1 && !p.tall),
        block(block),
        columns((p.n + lanes<S> - 1) / lanes<S>),
        packed(direct ? 0 : columns * lanes<S> * padded<S>(block)),
        tall(p.tall ? size * ROWS * padded<S>(block) : 0),
        wide(p.k > block && sizeof(S) != sizeof(A) && !direct ? p.m * p.n : 0) {
    advise(p.c, p.m * p.n * int64_t(sizeof(S)));
  }

  // every worker of the team calls this; on return the product is whole
  void run(const Share& share) {
    if (direct) return share.each([&](int w) { multiply_few(p.a, p.c, p.m, w, share.team.size); });
    add(share, p.a, p.b, p.k, true, true);
  }
  // some more of k: a (m x some) times b (some x n); the first sets the result, the last completes it
  void add(const Share& share, const S* a, const S* b, int64_t some, bool first, bool last) {
    if (first) share.each([&](int w) { touch(p.c, p.m * p.n, w, share.team.size); });
    for (int64_t q = 0; q < some; q += block) {
      const int64_t now = some - q < block ? some - q : block;
      share.each([&](int w) { pack(b + q * p.b_down, now, w, share.team.size); });
      share.each([&](int w) {
        multiply(a + q * (p.tall ? p.a_stride : 1), p.c, p.m, now, first && q == 0, last && q + now == some, w, share.team.size);
      });
    }
  }
  // the same panels for row after row of a, where k is one block: first pack_once, then some rows at a time
  void pack_once(int w, int size) {
    if (!direct) pack(p.b, p.k, w, size);
  }
  void rows_of(const S* a, S* c, int64_t m, int w, int size) {
    direct ? multiply_few(a, c, m, w, size) : multiply(a, c, m, p.k, true, true, w, size);
  }

 private:
  static constexpr int64_t TALL = tallest(WIDEST), ROWS = 16 * TALL, FEW = 24;
  const Product<S> p;
  const bool direct;
  const int64_t block, columns;
  Buffer<Packed<S>> packed;
  Buffer<S> tall;  // every worker's rows of a matrix that is stored by columns
  Buffer<A> wide;  // sums between blocks where the result is stored narrow

  void multiply_few(const S* a, S* c, int64_t m, int w, int size) {
    A out[FEW * lanes<S>];
    for (int64_t v = part(columns, w, size); v < part(columns, w + 1, size); v++) {
      const int64_t from = v * lanes<S>, there = p.n - from < lanes<S> ? p.n - from : lanes<S>;
      by_rows<S>(m, p.k, a, p.a_stride, there, p.b + from * p.b_across, p.b_across, out, lanes<S>);
      for (int64_t i = 0; i < m; i++) store(c + i * p.c_down + from, load(out + i * lanes<S>), int(there));
    }
  }

  void pack(const S* b, int64_t some, int w, int size) {
    for (int64_t v = panel_from(part(panels(), w, size)); v < panel_from(part(panels(), w + 1, size)); v += width(v)) {
      Packed<S>* panel = packed + v * lanes<S> * padded<S>(some);
      const int64_t all = width(v) * lanes<S>, from = v * lanes<S>, there = p.n - from < all ? p.n - from : all;
      pack_columns<S>(panel, all, 0, there, some, b + from * p.b_across, p.b_down, p.b_across);
      if (there < all) clear_columns<S>(panel, all, there, all - there, some);
    }
  }
  int64_t panels() const { return (columns + WIDEST - 1) / WIDEST; }
  int64_t panel_from(int64_t panel) const { return panel * WIDEST < columns ? panel * WIDEST : columns; }
  int width(int64_t v) const { return int(columns - v < WIDEST ? columns - v : WIDEST); }

  void multiply(const S* whole, S* result, int64_t m, int64_t some, bool begin, bool end, int w, int size) {
    const int64_t tiles = (m + TALL - 1) / TALL;
    const int64_t first = part(tiles, w, size) * TALL, last = part(tiles, w + 1, size) * TALL;
    alignas(64) A out[ROWS * WIDEST * lanes<S>];
    S* const own = p.tall ? tall + w * ROWS * padded<S>(block) : nullptr;
    for (int64_t i = first; i < last && i < m; i += ROWS) {
      int64_t rows = last - i < ROWS ? last - i : ROWS;
      rows = m - i < rows ? m - i : rows;
      const S* a = whole + i * (p.tall ? 1 : p.a_stride);
      if (p.tall) pack_rows(own, a, rows, some);
      for (int64_t v = 0; v < columns; v += width(v)) {
        const Packed<S>* panel = packed + v * lanes<S> * padded<S>(some);
        // straight into the result where it has the type of the sums and room for whole tiles: which tiles these are must not
        // depend on who computes them, since sums that begin elsewhere round elsewhere
        const int64_t fits = sizeof(S) != sizeof(A) || (v + width(v)) * lanes<S> > p.n ? 0 : p.tall ? rows / TALL * TALL : rows;
        A* const c = reinterpret_cast<A*>(result) + i * p.c_down + v * lanes<S>;
        const int64_t stride = width(v) * lanes<S>;
        if (p.tall) {
          tall_by_panel(fits, some, own, panel, width(v), c, p.c_down, !begin);
          tall_by_panel(rows - fits, some, own + fits * padded<S>(some), panel, width(v), out, stride, false);
        } else if (fits > 0) {
          by_panel<S>(rows, some, a, p.a_stride, panel, width(v), c, p.c_down, !begin);
        } else {
          by_panel<S>(rows, some, a, p.a_stride, panel, width(v), out, stride, false);
        }
        finish(result, i + fits, rows - fits, v, out, stride, begin, end);
      }
    }
  }

  // rows of a tile beside each other, for a matrix that is stored by columns; missing rows are zero
  void pack_rows(S* to, const S* a, int64_t rows, int64_t some) {
    constexpr int64_t TWO = paired<S> ? 2 : 1;
    const int64_t step = TALL * padded<S>(some), full = rows / TALL * TALL;
    for (int64_t q = 0; q < padded<S>(some); q += TWO) {
      const S* from = a + q * p.a_stride;
      for (int64_t i = 0; i < rows; i += TALL) {
        S* at = to + i / TALL * step + q * TALL;
        if (q + TWO <= some && i < full) {
          if constexpr (paired<S>) {
            pair_rows(at, from + i, from + p.a_stride + i, TALL);
          } else {
            memcpy(at, from + i, TALL * sizeof(S));
          }
          continue;
        }
        for (int64_t j = 0; j < TALL; j++)
          for (int64_t z = 0; z < TWO; z++)
            at[j * TWO + z] = q + z < some && i + j < rows ? from[z * p.a_stride + i + j] : S{};
      }
    }
  }
  void tall_by_panel(int64_t rows, int64_t some, const S* own, const Packed<S>* panel, int width, A* out, int64_t stride, bool add) {
    for (int64_t i = 0; i < rows; i += TALL, own += TALL * padded<S>(some)) {
      const Tile<S> of = width == 4   ? tile<S, TALL, 4, true>
                         : width == 3 ? tile<S, TALL, 3, true>
                         : width == 2 ? tile<S, TALL, 2, true>
                                      : tile<S, TALL, 1, true>;
      of(some, own, 0, panel, out + i * stride, stride, add);
    }
  }

  void finish(S* result, int64_t i, int64_t rows, int64_t v, const A* out, int64_t stride, bool first, bool last) {
    for (int64_t r = 0; r < rows; r++)
      for (int64_t j = 0; j < stride; j += lanes<S>) {
        const int64_t column = v * lanes<S> + j, left = p.n - column;
        if (left <= 0) break;
        const int n = left < lanes<S> ? int(left) : lanes<S>;
        Vector<S> sum = load(out + r * stride + j);
        S* to = result + (i + r) * p.c_down + column;
        if (wide != nullptr) {
          A* so_far = wide + (i + r) * p.n + column;
          if (!first) sum += load(so_far, n);
          if (!last) {
            store(so_far, sum, n);
            continue;
          }
        } else if (!first) {
          sum += load(to, n);
        }
        store(to, sum, n);
      }
  }
};
