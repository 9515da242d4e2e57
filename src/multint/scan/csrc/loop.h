// How is a cell carried along a sequence on a CPU?
//
// Every worker owns some units, of all gates and for all steps: it forms their part of U h from packed panels and turns it into the
// new state while it is in the cache. The workers meet once for every product of a step. The backward pass has W x, U z
// and a state before every span of steps: it replays a span's states, elementwise and without products, then walks back through it.
// Gradients of the vectors are summed by the owner of the unit, so results do not depend on the number of workers.
#pragma once
#include "cells.h"
#include "product.h"

template <class Cell, class Phi, class S, bool TOKENS> class Loop {
 public:
  typedef Arithmetic<S> A;
  typedef Vector<S> V;
  typedef Pack<S> P;  // what is stepped at once
  static constexpr int L = lanes<S>, GATES = Cell::gates, SHARED = Cell::shared;
  static constexpr bool TWICE = SHARED < GATES;
  static constexpr int64_t ROWS = 96;  // rows whose part of a product waits in the cache for its pointwise step
  static constexpr int GROUP = 4;      // vectors of units that are stepped side by side, so that memory is met in longer stretches
  static constexpr int PARTS = Cell::carries_c ? 2 : 1;  // of the state
  static constexpr unsigned FIRST = (1u << SHARED) - 1, EVERY = (1u << GATES) - 1;

  explicit Loop(const multint::Scan& s)
      : t(s.t), n(s.n), h(s.h), G(GATES * s.h), span(s.span < s.t ? s.span : s.t), vectors((s.h + L - 1) / L),
        wx(static_cast<const S*>(s.wx)), tokens(s.tokens), symbols(s.symbols), scale(s.symbols * GATES * s.h),
        shift(s.symbols * GATES * s.h),
        u(static_cast<const S*>(s.u)), block_vectors(static_cast<const A*>(s.vectors)), bias_hn(static_cast<const A*>(s.bias_hn)),
        h0(static_cast<const A*>(s.h0)), c0(static_cast<const A*>(s.c0)), lengths(s.lengths), resets(s.resets),
        restart_h(static_cast<const A*>(s.restart_h)), restart_c(static_cast<const A*>(s.restart_c)),
        unit((s.h + L - 1) / L), alive_rows(s.lengths == nullptr ? 0 : s.t) {
    if (lengths == nullptr) return;
    for (int64_t q = 0; q < t; q++) alive_rows[q] = 0;
    for (int64_t b = 0; b < n; b++)
      for (int64_t q = 0; q < t && q < lengths[b]; q++) alive_rows[q] = b + 1;
  }

  static int team(const multint::Scan& s, const multint::Threads& threads) {
    // below this a step is over before the workers have met
    if (double(s.n) * double(GATES * s.h) * double(s.h) < 2e5) return 1;
    const int64_t vectors = (s.h + L - 1) / L;
    return int(vectors < threads.most ? vectors : threads.most);
  }

 protected:
  // two vectors of units, or what is left of them, with what Eq. 4 needs besides its flows: loaded once for all rows
  struct Unit {
    int64_t unit;
    int left;
    Block<P> block[GATES];
    P bias_hn;
  };

  const int64_t t, n, h, G, span, vectors;  // steps, rows, units, gates * units, steps between marks, vectors of units
  const S* wx;  // from step wx_from on
  int64_t wx_from = 0;
  const int64_t* tokens;
  const int64_t symbols;
  Buffer<A> scale, shift;  // with tokens: Eq. 4 of every symbol as scale * uz + shift
  const S* u;
  const A *block_vectors, *bias_hn, *h0, *c0;
  const int64_t* lengths;
  const bool* resets;
  const A *restart_h, *restart_c;
  Buffer<Unit> unit;
  Buffer<int64_t> alive_rows;  // per step: rows up to the last that is inside its sequence

  int64_t rows_at(int64_t s) const { return lengths == nullptr ? n : alive_rows[s]; }
  bool alive(int64_t s, int64_t b) const { return lengths == nullptr || s < lengths[b]; }
  bool reset(int64_t s, int64_t b) const { return resets != nullptr && resets[s * n + b]; }

  // a worker's vectors of units, some at a time
  template <class F> void groups(int w, int size, int most, const F& f) const {
    const int64_t last = part(vectors, w + 1, size);
    for (int64_t v = part(vectors, w, size); v < last; v += most) f(v, int(last - v < most ? last - v : most));
  }
  // the same in panels: no panel reaches beyond its group
  template <class F> void panels(int w, int size, int most, const F& f) const {
    groups(w, size, GROUP, [&](int64_t v, int count) {
      for (int k = 0; k < count; k += most) f(v + k, count - k < most ? count - k : most);
    });
  }

  static bool whole(const Unit& own) { return own.left == units<S>; }
  int64_t till(int64_t v) const { return v * L < h ? v * L : h; }
  // a worker's units, each under the number of its first vector
  void prepare(int w, int size) {
    groups(w, size, 2, [&](int64_t v, int count) {
      Unit& own = unit[v];
      own.unit = v * L;
      own.left = int(till(v + count) - own.unit);
      own.bias_hn = Cell::inner_bias && bias_hn != nullptr ? get<false>(bias_hn + own.unit, own.left) : P{};
      for (int g = 0; g < GATES; g++) {
        const A* at = block_vectors + g * h + own.unit;
        own.block[g] = {get<false>(at, own.left), get<false>(at + G, own.left), get<false>(at + 2 * G, own.left),
                        get<false>(at + 3 * G, own.left)};
      }
    });
  }
  // with tokens: every symbol's row of the tables
  void tabulate(int w, int size) {
    groups(w, size, 2, [&](int64_t v, int) {
      const Unit& own = unit[v];
      for (int64_t q = 0; q < symbols; q++)
        for (int g = 0; g < GATES; g++) {
          const int64_t at = q * G + g * h + own.unit;
          P slope, rest;
          block(get<false>(wx + at, own.left), own.block[g], slope, rest);
          put<false>(static_cast<A*>(scale) + at, slope, own.left);
          put<false>(static_cast<A*>(shift) + at, rest, own.left);
        }
    });
  }
  // scale and shift of the gates in MASK, and W x itself where there is one
  template <bool W, unsigned MASK> __attribute__((always_inline)) void coefficients(const Unit& own, int64_t row, Values<P>& x, P* flow) const {
    x.bias_hn = own.bias_hn;
#pragma GCC unroll 4
    for (int g = 0; g < GATES; g++) {
      if (!(MASK >> g & 1)) continue;
      if constexpr (TOKENS) {
        const int64_t at = tokens[row] * G + g * h + own.unit;
        x.scale[g] = get<W>(static_cast<const A*>(scale) + at, own.left);
        x.shift[g] = get<W>(static_cast<const A*>(shift) + at, own.left);
      } else {
        flow[g] = get<W>(wx + (row - wx_from * n) * G + g * h + own.unit, own.left);
        block(flow[g], own.block[g], x.scale[g], x.shift[g]);
      }
    }
  }
  // has the part of rows [from, till) of an array of width G or h on its way while a product keeps the core busy
  template <class T> void fetch(const T* array, int64_t row_size, int64_t from, int64_t till, int64_t v, int width) const {
    for (int64_t b = from; b < till; b++)
      for (int64_t g = 0; g < row_size; g += h)
        for (int64_t at = 0; at < int64_t(width) * L * int64_t(sizeof(T)) + 63; at += 64)
          __builtin_prefetch(reinterpret_cast<const char*>(array + b * row_size + g + v * L) + at, 0, 2);
  }
  template <bool W, unsigned MASK> __attribute__((always_inline)) void flows(const Unit& own, const S* uz, int64_t row, Values<P>& x) const {
#pragma GCC unroll 4
    for (int g = 0; g < GATES; g++)
      if (MASK >> g & 1) x.uz[g] = get<W>(uz + row * G + g * h + own.unit, own.left);
  }
};

// ---- forward ----

template <class Cell, class Phi, class S, bool TOKENS> class ForwardLoop : Loop<Cell, Phi, S, TOKENS> {
  typedef Loop<Cell, Phi, S, TOKENS> Base;
  using typename Base::A;
  using typename Base::Unit;
  using typename Base::P;
  using typename Base::V;
  using Base::GATES, Base::SHARED, Base::TWICE, Base::ROWS, Base::L, Base::FIRST, Base::GROUP, Base::PARTS;
  using Base::unit, Base::whole;
  using Base::t, Base::n, Base::h, Base::G, Base::span;

 public:
  ForwardLoop(const multint::Forward& f, int size)
      : Base(f.scan), outputs(static_cast<S*>(f.outputs)), h_n(static_cast<A*>(f.h_n)), c_n(static_cast<A*>(f.c_n)),
        uz(static_cast<S*>(f.uz)), marks(static_cast<A*>(f.marks)), direct(f.scan.t <= 2),
        packed(direct ? 0 : Base::vectors * L * GATES * padded<S>(h)),
        own_uz(TWICE && uz == nullptr ? n * G : 0), operand(TWICE ? n * h : 0), x(static_cast<const S*>(f.scan.x)), i(f.scan.i),
        piece(piece_of(f.scan)), own_wx(x == nullptr ? 0 : piece * n * G),
        by_w({piece * n, G, i, false, nullptr, i, static_cast<const S*>(f.scan.w), 1, i, nullptr, G}, size, i),
        source(Base::resets != nullptr ? 2 * n * h : n * h) {
    advise(outputs, t * n * h * int64_t(sizeof(S)));
    if (uz != nullptr) advise(uz, t * n * G * int64_t(sizeof(S)));
  }

  void run(const Share& share) {
    const int size = share.team.size;
    share.each([&](int w) { touch(outputs, t * n * h, w, size), touch(uz, uz == nullptr ? 0 : t * n * G, w, size); });
    share.each([&](int w) { start(w, size); });
    for (int64_t s = 0; s < t; s++) {
      if (x != nullptr && s % piece == 0) form_wx(share, s);
      share.each([&](int w) { first_product(s, w, size); });
      if constexpr (TWICE) share.each([&](int w) { second_product(s, w, size); });
    }
  }

 private:
  S* outputs;
  A *h_n, *c_n;  // also carry the state along
  S* uz;
  A* marks;
  const bool direct;  // too short a sequence to pack U for
  Buffer<Packed<S>> packed;
  Buffer<S> own_uz, operand;
  const S* x;  // W x is formed for some steps at a time, which find it in the cache
  const int64_t i, piece;
  Buffer<S> own_wx;
  Multiply<S> by_w;
  Buffer<S> source;

  static int64_t piece_of(const multint::Scan& s) {
    const int64_t fits = (int64_t(2) << 20) / (s.n * GATES * s.h * int64_t(sizeof(S)));
    return fits < 1 || s.x == nullptr ? 1 : fits < s.t ? fits : s.t;
  }
  void form_wx(const Share& share, int64_t s) {
    const int64_t steps = t - s < piece ? t - s : piece;
    share.each([&](int w) { by_w.rows_of(x + s * n * i, own_wx, steps * n, w, share.team.size); });
    if (share.first == 0) Base::wx = own_wx, Base::wx_from = s;
    share.meet();
  }

  static constexpr int MOST = WIDEST / SHARED, MOST_SECOND = TWICE ? WIDEST / (GATES - SHARED) : 1;

  S* uz_at(int64_t s) const { return uz != nullptr ? uz + s * n * G : static_cast<S*>(own_uz); }
  // h before step s, as the product takes it
  S* source_at(int64_t s) const {
    if (Base::resets != nullptr) return source + (s & 1) * n * h;
    return s == 0 ? static_cast<S*>(source) : outputs + (s - 1) * n * h;
  }
  // position of a panel: units are packed in order, the gates of the first product before those of the second
  Packed<S>* panel(int64_t v, bool second) const {
    const int64_t k = padded<S>(h), ahead = second ? Base::vectors * L * SHARED * k : 0;
    return packed + ahead + v * L * (second ? GATES - SHARED : SHARED) * k;
  }

  void start(int w, int size) {
    Base::prepare(w, size);
    if constexpr (TOKENS) Base::tabulate(w, size);
    if (x != nullptr) by_w.pack_once(w, size);
    if (!direct) {
      Base::panels(w, size, MOST, [&](int64_t v, int width) { pack(panel(v, false), v, width, 0, SHARED); });
      if constexpr (TWICE)
        Base::panels(w, size, MOST_SECOND, [&](int64_t v, int width) { pack(panel(v, true), v, width, SHARED, GATES); });
    }
    Base::groups(w, size, 2, [&](int64_t v, int count) {
      const int64_t unit = v * L;
      const int left = int(Base::till(v + count) - unit);
      for (int64_t b = 0; b < n; b++) {
        const int64_t at = b * h + unit;
        hand_on<false>(0, b, unit, left, get<false>(Base::h0 + at, left), Cell::carries_c ? get<false>(Base::c0 + at, left) : P{});
      }
    });
  }
  void pack(Packed<S>* to, int64_t v, int width, int from, int till) {
    const int64_t all = int64_t(width) * L, columns = all * (till - from), there = h - v * L < all ? h - v * L : all;
    for (int g = from; g < till; g++) {
      pack_columns<S>(to, columns, (g - from) * all, there, h, Base::u + (g * h + v * L) * h, 1, h);
      if (there < all) clear_columns<S>(to, columns, (g - from) * all + there, all - there, h);
    }
  }
  // the state before step s: a row that is reset there begins anew
  template <bool W> __attribute__((always_inline)) void hand_on(int64_t s, int64_t b, int64_t unit, int left, P h_now, P c_now) {
    const int64_t at = b * h + unit;
    if (s < t && Base::reset(s, b)) {
      h_now = get<W>(Base::restart_h + at, left);
      if constexpr (Cell::carries_c) c_now = get<W>(Base::restart_c + at, left);
    }
    put<W>(h_n + at, h_now, left);
    if constexpr (Cell::carries_c) put<W>(c_n + at, c_now, left);
    if (s == 0 || (Base::resets != nullptr && s < t)) put<W>(source_at(s) + at, h_now, left);
    if (uz == nullptr || s == t || s % span != 0) return;
    A* mark = marks + s / span * PARTS * n * h + at;
    put<W>(mark, h_now, left);
    if constexpr (Cell::carries_c) put<W>(mark + n * h, c_now, left);
  }

  void multiply(const S* a, int64_t from, int64_t rows, int64_t v, int width, bool second, A* out) {
    const int gates = second ? GATES - SHARED : SHARED, first = second ? SHARED : 0;
    const int64_t stride = int64_t(width) * L * gates;
    if (!direct) return by_deep_panel<S>(rows, h, a + from * h, h, panel(v, second), width * gates, out, stride);
    const int64_t there = h - v * L < width * L ? h - v * L : width * L;
    for (int g = 0; g < gates; g++)
      by_rows<S>(rows, h, a + from * h, h, there, Base::u + ((first + g) * h + v * L) * h, h, out + g * width * L, stride);
  }

  // where a product has left the flows of one row of a unit: its two vectors, and the distance between gates
  struct Flows {
    const A *lo, *hi;
    int64_t gate;
    Pack<A> of(int g) const { return {load(lo + g * gate), load(hi + g * gate)}; }
  };
  // a product of step s for some rows and a group of units, then f(row, unit, its flows)
  template <bool SECOND, class F> void after_product(int64_t s, int w, int size, const S* a, const F& f) {
    constexpr int gates = SECOND ? GATES - SHARED : SHARED, most = SECOND ? MOST_SECOND : MOST;
    alignas(64) A out[ROWS * GROUP * gates * L];
    const int64_t rows = Base::rows_at(s);
    Base::groups(w, size, GROUP, [&](int64_t v, int count) {
      const int pairs = (count + 1) / 2;
      for (int64_t from = 0; from < n; from += ROWS) {
        const int64_t some = rows - from < ROWS ? rows - from : ROWS, till = from + ROWS < n ? from + ROWS : n;
        if constexpr (!TOKENS) Base::fetch(Base::wx + (s - Base::wx_from) * n * G, G, from, till, v, count);
        for (int k = 0; k < count && some > 0; k += most)
          multiply(a, from, some, v + k, count - k < most ? count - k : most, SECOND, out + k * gates * L * ROWS);
        // of vector k: panels of `most` vectors lie one after the other
        const auto place = [&](int k, int64_t row) {
          const int first = k / most * most, width = count - first < most ? count - first : most;
          return out + (first * ROWS + row * width) * gates * L + (k - first) * L;
        };
        for (int64_t b = from; b < till; b++)
          for (int k = 0; k < pairs; k++) {
            const A* lo = place(2 * k, b - from);
            const int first = 2 * k / most * most, width = count - first < most ? count - first : most;
            f(b, unit[v + 2 * k], Flows{lo, 2 * k + 1 < count ? place(2 * k + 1, b - from) : lo, int64_t(width) * L});
          }
      }
    });
  }
  void first_product(int64_t s, int w, int size) {
    after_product<false>(s, w, size, source_at(s), [&](int64_t b, const Unit& own, const Flows& flows) {
      if constexpr (TWICE) {
        whole(own) ? form_operand<true>(s, own, b, flows) : form_operand<false>(s, own, b, flows);
      } else {
        whole(own) ? advance<true>(s, own, b, flows) : advance<false>(s, own, b, flows);
      }
    });
  }
  void second_product(int64_t s, int w, int size) {
    after_product<true>(s, w, size, operand, [&](int64_t b, const Unit& own, const Flows& flows) {
      whole(own) ? advance<true>(s, own, b, flows) : advance<false>(s, own, b, flows);
    });
  }

  // flows of the gates [FROM, TILL) out of a product, kept for the backward pass and read back as they are kept
  template <bool W, int FROM, int TILL> __attribute__((always_inline)) void take(int64_t s, const Unit& own, int64_t b, const Flows& flows, Values<P>& x) {
#pragma GCC unroll 4
    for (int g = FROM; g < TILL; g++) {
      const Pack<A> now = flows.of(g - FROM);
      x.uz[g] = {rounded<S>(now.lo), rounded<S>(now.hi)};
      if (TWICE || uz != nullptr) put<W>(uz_at(s) + b * G + g * h + own.unit, x.uz[g], own.left);
    }
  }
  template <bool W> void form_operand(int64_t s, const Unit& own, int64_t b, const Flows& flows) {
    if (!Base::alive(s, b)) return;
    Values<P> x;
    P flow[4], now{};
    take<W, 0, SHARED>(s, own, b, flows, x);
    Base::template coefficients<W, Cell::operand_gates>(own, s * n + b, x, flow);
    x.h = get<W>(h_n + b * h + own.unit, own.left);
    if constexpr (TWICE) Cell::template operand<Phi>(x, now);
    put<W>(operand + b * h + own.unit, now, own.left);
  }
  template <bool W> void advance(int64_t s, const Unit& own, int64_t b, const Flows& flows) {
    const int64_t at = b * h + own.unit;
    Values<P> x;
    Pair<P> next;
    P flow[4];
    if (Base::alive(s, b)) {
      take<W, TWICE ? SHARED : 0, GATES>(s, own, b, flows, x);
      if constexpr (TWICE) Base::template flows<W, FIRST & Cell::step_gates>(own, uz_at(s), b, x);
      Base::template coefficients<W, Cell::step_gates>(own, s * n + b, x, flow);
      if constexpr (Cell::uses_h) x.h = get<W>(h_n + at, own.left);
      if constexpr (Cell::carries_c) x.c = get<W>(c_n + at, own.left);
      Cell::template step<Phi>(x, next);
    } else {
      next.h = get<W>(h_n + at, own.left);
      if constexpr (Cell::carries_c) next.c = get<W>(c_n + at, own.left);
      for (int g = 0; uz != nullptr && g < GATES; g++) put<W>(uz_at(s) + b * G + g * h + own.unit, P{}, own.left);
    }
    put<W>(outputs + s * n * h + at, next.h, own.left);
    hand_on<W>(s + 1, b, own.unit, own.left, next.h, next.c);
  }
};

// ---- backward ----

template <class Cell, class Phi, class S, bool TOKENS> class BackwardLoop : Loop<Cell, Phi, S, TOKENS> {
  typedef Loop<Cell, Phi, S, TOKENS> Base;
  using typename Base::A;
  using typename Base::Unit;
  using typename Base::P;
  using typename Base::V;
  using Base::GATES, Base::SHARED, Base::TWICE, Base::ROWS, Base::L, Base::GROUP, Base::PARTS;
  using Base::unit, Base::whole;
  using Base::t, Base::n, Base::h, Base::G, Base::span;

 public:
  BackwardLoop(const multint::Backward& f, int size)
      : Base(f.scan), uz(static_cast<const S*>(f.uz)), marks(static_cast<const A*>(f.marks)), d_outputs(static_cast<const S*>(f.d_outputs)),
        d_h_n(static_cast<const A*>(f.d_h_n)), d_c_n(static_cast<const A*>(f.d_c_n)), d_wx(static_cast<S*>(f.d_wx)),
        d_vectors(static_cast<A*>(f.d_vectors)),
        d_bias_hn(static_cast<A*>(f.d_bias_hn)), d_h(static_cast<A*>(f.d_h0)), d_c(static_cast<A*>(f.d_c0)),
        d_restart_h(static_cast<A*>(f.d_restart_h)), d_restart_c(static_cast<A*>(f.d_restart_c)),
        packed(Base::vectors * L * (padded<S>(SHARED * h) + (TWICE ? padded<S>((GATES - SHARED) * h) : 0))),
        d_scale(TOKENS ? Base::symbols * G : 0), d_shift(TOKENS ? Base::symbols * G : 0), d_uz((span > 1 ? span : 2) * n * G),
        source(span * n * h), operand(TWICE ? span * n * h : 0),
        carried(Cell::carries_c ? span * n * h : 0), exact(Cell::uses_h && sizeof(S) != sizeof(A) ? n * h : 0),
        by_source({SHARED * h, h, t * n, true, nullptr, G, nullptr, h, 1, static_cast<S*>(f.d_u), h}, size, block()),
        by_operand({(GATES - SHARED) * h, h, t * n, true, nullptr, G, nullptr, h, 1, static_cast<S*>(f.d_u) + SHARED * h * h, h}, size,
                   block()) {
    if (!TOKENS) advise(d_wx, t * n * G * int64_t(sizeof(S)));
  }

  void run(const Share& share) {
    const int size = share.team.size;
    share.each([&](int w) { touch(d_wx, TOKENS ? 0 : t * n * G, w, size); });
    share.each([&](int w) { start(w, size); });
    for (int64_t from = (t - 1) / span * span; from >= 0; from -= span) {
      const int64_t till = from + span < t ? from + span : t;
      share.each([&](int w) { replay(from, till, w, size); });
      for (int64_t s = till - 1; s >= from; s--) {
        share.each([&](int w) { back(s, w, size); });
        if constexpr (TWICE) share.each([&](int w) { back_operand(s, w, size); });
      }
      by_source.add(share, d_uz_at(from), source, (till - from) * n, till == t, from == 0);
      if constexpr (TWICE) by_operand.add(share, d_uz_at(from) + SHARED * h, operand, (till - from) * n, till == t, from == 0);
    }
    share.each([&](int w) {
      back(-1, w, size);
      if constexpr (TOKENS) untabulate(w, size);
    });
  }

 private:
  const S* uz;
  const A* marks;
  const S* d_outputs;
  const A *d_h_n, *d_c_n;
  S* d_wx;
  A *d_vectors, *d_bias_hn;
  A *d_h, *d_c;  // of the state before the step at hand, less what comes through U
  A *d_restart_h, *d_restart_c;
  Buffer<Packed<S>> packed;
  Buffer<A> d_scale, d_shift;  // with tokens, of the tables
  // Of the span at hand: dU is one product over all steps, formed span by span while its factors are in the cache.
  Buffer<S> d_uz, source, operand;  // source: h before every step as the product took it
  Buffer<A> carried, exact;         // c before every step; h with all its digits, at the last
  Multiply<S> by_source, by_operand;

  // a span of one takes turns with the step after it, which is still read when it is written
  S* d_uz_at(int64_t s) const { return d_uz + (span == 1 ? s % 2 : s % span) * n * G; }
  S* source_at(int64_t s) const { return source + s % span * n * h; }
  S* operand_at(int64_t s) const { return operand + s % span * n * h; }
  A* carried_at(int64_t s) const { return carried + s % span * n * h; }
  int64_t block() const { return span * n < depth<S>() ? span * n : depth<S>(); }

  Packed<S>* panel(int64_t v, bool second) const {
    const int64_t k = padded<S>(SHARED * h), k2 = padded<S>((GATES - SHARED) * h);
    return packed + (second ? Base::vectors * L * k + v * L * k2 : v * L * k);
  }

  void start(int w, int size) {
    Base::prepare(w, size);
    if constexpr (TOKENS) Base::tabulate(w, size);
    Base::groups(w, size, GROUP, [&](int64_t v, int width) {
      pack(panel(v, false), v, width, 0, SHARED);
      if constexpr (TWICE) pack(panel(v, true), v, width, SHARED, GATES);
    });
    Base::groups(w, size, 2, [&](int64_t v, int count) { clear(v, count); });
  }
  void pack(Packed<S>* to, int64_t v, int width, int from, int till) {
    const int64_t all = int64_t(width) * L, there = h - v * L < all ? h - v * L : all, k = (till - from) * h;
    pack_columns<S>(to, all, 0, there, k, Base::u + from * h * h + v * L, h, 1);
    if (there < all) clear_columns<S>(to, all, there, all - there, k);
  }
  // gradients that are summed over steps and rows begin at zero
  void clear(int64_t v, int count) {
    const int64_t unit = v * L;
    const int left = int(Base::till(v + count) - unit);
    for (int64_t b = 0; b < n; b++) {
      const int64_t at = b * h + unit;
      put<false>(d_h + at, get<false>(d_h_n + at, left), left);
      if constexpr (Cell::carries_c) put<false>(d_c + at, get<false>(d_c_n + at, left), left);
      if (Base::resets != nullptr) {
        put<false>(d_restart_h + at, P{}, left);
        if constexpr (Cell::carries_c) put<false>(d_restart_c + at, P{}, left);
      }
    }
    for (int g = 0; g < GATES; g++) {
      for (int64_t q = 0; TOKENS && q < Base::symbols; q++) {
        put<false>(static_cast<A*>(d_scale) + q * G + g * h + unit, P{}, left);
        put<false>(static_cast<A*>(d_shift) + q * G + g * h + unit, P{}, left);
      }
      for (int k = 0; k < 4; k++) put<false>(d_vectors + k * G + g * h + unit, P{}, left);
    }
    if (Cell::inner_bias && d_bias_hn != nullptr) put<false>(d_bias_hn + unit, P{}, left);
  }

  // the states of a span again, from its mark and the flows
  void replay(int64_t from, int64_t till, int w, int size) {
    constexpr int MANY = 4 * GROUP;
    Base::groups(w, size, MANY, [&](int64_t v, int count) {
      const int pairs = (count + 1) / 2;
      for (int64_t b = 0; b < n; b++)
        for (int k = 0; k < pairs; k++) {
          const Unit& own = unit[v + 2 * k];
          const A* mark = marks + from / span * PARTS * n * h + b * h + own.unit;
          set_state<false>(from, own, b, get<false>(mark, own.left), Cell::carries_c ? get<false>(mark + n * h, own.left) : P{});
        }
      for (int64_t s = from; s < till; s++)
        for (int64_t b = 0; b < n; b++) {
          const int64_t next = s * n + b + 1;  // on its way while this row is computed
          if (next < till * n) {
            if constexpr (!TOKENS) Base::fetch(Base::wx, G, next, next + 1, v, count);
            Base::fetch(uz, G, next, next + 1, v, count);
          }
          for (int k = 0; k < pairs; k++) {
            const Unit& own = unit[v + 2 * k];
            whole(own) ? replay_unit<true>(s, till, own, b) : replay_unit<false>(s, till, own, b);
          }
        }
    });
  }
  template <bool W> void replay_unit(int64_t s, int64_t till, const Unit& own, int64_t b) {
    const int64_t at = b * h + own.unit, row = s * n + b;
    Values<P> x;
    Pair<P> next;
    P flow[4];
    x.h = exact != nullptr ? get<W>(exact + at, own.left) : get<W>(source_at(s) + at, own.left);
    if constexpr (Cell::carries_c) x.c = get<W>(carried_at(s) + at, own.left);
    next.h = x.h;
    if constexpr (Cell::carries_c) next.c = x.c;
    if (Base::alive(s, b)) {
      Base::template flows<W, Base::EVERY>(own, uz, row, x);
      Base::template coefficients<W, Base::EVERY>(own, row, x, flow);
      if constexpr (TWICE) {
        P now;
        Cell::template operand<Phi>(x, now);
        put<W>(operand_at(s) + at, now, own.left);
      }
      Cell::template step<Phi>(x, next);
    } else if constexpr (TWICE) {
      put<W>(operand_at(s) + at, P{}, own.left);  // meets a zero in the product; must be a number
    }
    if (s + 1 == till) return;
    if (Base::reset(s + 1, b)) {
      next.h = get<W>(Base::restart_h + at, own.left);
      if constexpr (Cell::carries_c) next.c = get<W>(Base::restart_c + at, own.left);
    }
    set_state<W>(s + 1, own, b, next.h, next.c);
  }
  template <bool W> __attribute__((always_inline)) void set_state(int64_t s, const Unit& own, int64_t b, const P& h_now, const P& c_now) {
    const int64_t at = b * h + own.unit;
    put<W>(source_at(s) + at, h_now, own.left);
    if (exact != nullptr) put<W>(exact + at, h_now, own.left);
    if constexpr (Cell::carries_c) put<W>(carried_at(s) + at, c_now, own.left);
  }

  struct Sums {
    Block<P> block[GATES];
    P bias_hn;
  };

  // step s, once the gradient of the state after it is whole; s = -1 leaves that of the initial state
  void back(int64_t s, int w, int size) {
    alignas(64) A out[ROWS * WIDEST * L];
    const int64_t rows = s + 1 < t ? Base::rows_at(s + 1) : 0;
    Base::groups(w, size, GROUP, [&](int64_t v, int count) {
      Sums sums[GROUP / 2] = {};
      const int pairs = (count + 1) / 2;
      const int64_t stride = int64_t(count) * L;
      for (int64_t from = 0; from < n; from += ROWS) {
        const int64_t some = rows - from < ROWS ? rows - from : ROWS, till = from + ROWS < n ? from + ROWS : n;
        if (s >= 0) fetch_step(s, from, till, v, count);
        if (some > 0) by_deep_panel<S>(some, SHARED * h, d_uz_at(s + 1) + from * G, G, panel(v, false), count, out, stride);
        for (int64_t b = from; b < till; b++)
          for (int k = 0; k < pairs; k++) {
            const A* through_u = b - from < some ? out + (b - from) * stride + 2 * k * L : nullptr;
            const Unit& own = unit[v + 2 * k];
            whole(own) ? back_unit<true>(s, own, b, through_u, sums[k]) : back_unit<false>(s, own, b, through_u, sums[k]);
          }
      }
      for (int k = 0; k < pairs && s >= 0; k++) add_up<Cell::step_gates>(unit[v + 2 * k], sums[k]);
    });
  }
  void fetch_step(int64_t s, int64_t from, int64_t till, int64_t v, int count) const {
    if constexpr (!TOKENS) Base::fetch(Base::wx + s * n * G, G, from, till, v, count);
    Base::fetch(uz + s * n * G, G, from, till, v, count);
    Base::fetch(d_outputs + s * n * h, h, from, till, v, count);
    if constexpr (Cell::carries_c) Base::fetch(carried_at(s), h, from, till, v, count);
    if constexpr (Cell::uses_h) Base::fetch(source_at(s), h, from, till, v, count);
  }
  // adds what came through U, and sends the gradient of a fresh state where it belongs
  template <bool W> __attribute__((always_inline)) void gather(int64_t s, const Unit& own, int64_t b, const A* through_u) {
    const int64_t at = b * h + own.unit;
    P total = get<W>(d_h + at, own.left);
    if (through_u != nullptr) total += get<W>(through_u, own.left);
    if (s + 1 < t && Base::reset(s + 1, b)) {
      put<W>(d_restart_h + at, get<W>(d_restart_h + at, own.left) + total, own.left);
      total = P{};
      if constexpr (Cell::carries_c) {
        put<W>(d_restart_c + at, get<W>(d_restart_c + at, own.left) + get<W>(d_c + at, own.left), own.left);
        put<W>(d_c + at, P{}, own.left);
      }
    }
    if (s >= 0) total += get<W>(d_outputs + s * n * h + at, own.left);
    put<W>(d_h + at, total, own.left);
  }

  // gradients of the flows of the gates in MASK; those of the vectors, or of a symbol's row of the tables, are summed
  template <bool W, unsigned MASK>
  __attribute__((always_inline)) void spread(const Unit& own, int64_t row, S* d_uz_row, const Values<P>& d, const P* flow, Sums& sums) {
#pragma GCC unroll 4
    for (int g = 0; g < GATES; g++) {
      if (!(MASK >> g & 1)) continue;
      put<W>(d_uz_row + g * h + own.unit, d.uz[g], own.left);
      if constexpr (TOKENS) {
        const int64_t at = Base::tokens[row] * G + g * h + own.unit;
        A *const slope = d_scale + at, *const rest = d_shift + at;
        put<W>(slope, get<W>(slope, own.left) + d.scale[g], own.left);
        put<W>(rest, get<W>(rest, own.left) + d.shift[g], own.left);
      } else {
        P d_flow;
        block_back(flow[g], own.block[g], d.scale[g], d.shift[g], d_flow, sums.block[g]);
        put<W>(d_wx + row * G + g * h + own.unit, d_flow, own.left);
      }
    }
  }
  template <unsigned MASK> void add_up(const Unit& own, const Sums& sums, bool looped = true) {
    for (int g = 0; g < GATES; g++) {
      if (!(MASK >> g & 1) || (TOKENS && looped)) continue;  // tables wait until all steps are done
      const P parts[4] = {sums.block[g].alpha, sums.block[g].beta1, sums.block[g].beta2, sums.block[g].b};
      for (int k = 0; k < 4; k++) {
        A* at = d_vectors + k * G + g * h + own.unit;
        put<false>(at, get<false>(at, own.left) + parts[k], own.left);
      }
    }
    if (Cell::inner_bias && d_bias_hn != nullptr)
      put<false>(d_bias_hn + own.unit, get<false>(d_bias_hn + own.unit, own.left) + sums.bias_hn, own.left);
  }

  // from the tables back to W and the vectors
  void untabulate(int w, int size) {
    Base::groups(w, size, 2, [&](int64_t v, int) {
      const Unit& own = unit[v];
      Sums sums = {};
      for (int64_t q = 0; q < Base::symbols; q++)
        for (int g = 0; g < GATES; g++) {
          const int64_t at = q * G + g * h + own.unit;
          const A *slope = d_scale + at, *rest = d_shift + at;
          P d_flow;
          block_back(get<false>(Base::wx + at, own.left), own.block[g], get<false>(slope, own.left), get<false>(rest, own.left),
                     d_flow, sums.block[g]);
          put<false>(d_wx + at, d_flow, own.left);
        }
      add_up<Base::EVERY>(own, sums, false);
    });
  }

  template <bool W> void back_unit(int64_t s, const Unit& own, int64_t b, const A* through_u, Sums& sums) {
    const int64_t at = b * h + own.unit, row = s * n + b;
    gather<W>(s, own, b, through_u);
    if (s < 0) return;
    if (!Base::alive(s, b)) {
      for (int g = 0; g < GATES; g++) {
        put<W>(d_uz_at(s) + b * G + g * h + own.unit, P{}, own.left);
        if constexpr (!TOKENS) put<W>(d_wx + row * G + g * h + own.unit, P{}, own.left);
      }
      return;
    }
    Values<P> x, d;
    Pair<P> seed;
    P flow[4];
    Base::template flows<W, Cell::step_gates>(own, uz, row, x);
    Base::template coefficients<W, Cell::step_gates>(own, row, x, flow);
    if constexpr (Cell::uses_h) x.h = get<W>(source_at(s) + at, own.left);
    if constexpr (Cell::carries_c) x.c = get<W>(carried_at(s) + at, own.left);
    seed.h = get<W>(d_h + at, own.left);
    if constexpr (Cell::carries_c) seed.c = get<W>(d_c + at, own.left);
    Cell::template step_back<Phi>(x, seed, d);
    spread<W, Cell::step_gates>(own, row, d_uz_at(s) + b * G, d, flow, sums);
    if constexpr (Cell::inner_bias) sums.bias_hn += d.bias_hn;
    put<W>(d_h + at, d.h, own.left);
    if constexpr (Cell::carries_c) put<W>(d_c + at, d.c, own.left);
  }

  // through the second product of a step to the gates that formed its operand
  void back_operand(int64_t s, int w, int size) {
    alignas(64) A out[ROWS * WIDEST * L];
    const int64_t rows = Base::rows_at(s);
    Base::groups(w, size, GROUP, [&](int64_t v, int count) {
      Sums sums[GROUP / 2] = {};
      const int pairs = (count + 1) / 2;
      const int64_t stride = int64_t(count) * L;
      for (int64_t from = 0; from < rows; from += ROWS) {
        const int64_t some = rows - from < ROWS ? rows - from : ROWS;
        const S* a = d_uz_at(s) + from * G + SHARED * h;
        by_deep_panel<S>(some, (GATES - SHARED) * h, a, G, panel(v, true), count, out, stride);
        for (int64_t b = from; b < from + some; b++)
          for (int k = 0; k < pairs; k++) {
            const A* through_u = out + (b - from) * stride + 2 * k * L;
            const Unit& own = unit[v + 2 * k];
            whole(own) ? back_operand_unit<true>(s, own, b, through_u, sums[k]) : back_operand_unit<false>(s, own, b, through_u, sums[k]);
          }
      }
      for (int k = 0; k < pairs; k++) add_up<Cell::operand_gates>(unit[v + 2 * k], sums[k]);
    });
  }
  template <bool W> void back_operand_unit(int64_t s, const Unit& own, int64_t b, const A* through_u, Sums& sums) {
    if (!Base::alive(s, b)) return;
    const int64_t at = b * h + own.unit, row = s * n + b;
    Values<P> x, d;
    P flow[4];
    Base::template flows<W, Cell::operand_gates>(own, uz, row, x);
    Base::template coefficients<W, Cell::operand_gates>(own, row, x, flow);
    x.h = get<W>(source_at(s) + at, own.left);
    if constexpr (TWICE) Cell::template operand_back<Phi>(x, get<W>(through_u, own.left), d);
    spread<W, Cell::operand_gates>(own, row, d_uz_at(s) + b * G, d, flow, sums);
    put<W>(d_h + at, get<W>(d_h + at, own.left) + d.h, own.left);
  }
};
