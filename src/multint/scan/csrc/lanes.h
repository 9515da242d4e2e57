// Which arithmetic do the kernels use? Vectors of the level's width in GCC's vector extension, so that one source serves every
// instruction set; storage may be narrower than arithmetic (bfloat16).
#pragma once

#if defined(__AVX512F__)
constexpr int BYTES = 64, REGISTERS = 32;
#elif defined(__AVX2__)
constexpr int BYTES = 32, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int BYTES = 16, REGISTERS = 32;
#else
constexpr int BYTES = 16, REGISTERS = 16;
#endif

struct bfloat16 { uint16_t bits; };

#define INLINE static inline __attribute__((always_inline))

template <class T> struct VectorOf;
template <> struct VectorOf<float> {
  typedef float type __attribute__((vector_size(BYTES)));
  typedef uint32_t bits __attribute__((vector_size(BYTES)));
};
template <> struct VectorOf<double> {
  typedef double type __attribute__((vector_size(BYTES)));
  typedef uint64_t bits __attribute__((vector_size(BYTES)));
};
typedef uint16_t Half __attribute__((vector_size(BYTES / 2)));
typedef uint32_t Word __attribute__((vector_size(BYTES)));

// the type a storage type is computed in
template <class S> struct ArithmeticOf { typedef S type; };
template <> struct ArithmeticOf<bfloat16> { typedef float type; };
template <class S> using Arithmetic = typename ArithmeticOf<S>::type;
template <class S> using Vector = typename VectorOf<Arithmetic<S>>::type;
template <class S> constexpr int lanes = BYTES / int(sizeof(Arithmetic<S>));

// ---- memory: n < lanes at the ragged end of a row ----

template <class T> INLINE Vector<T> load(const T* p) {
  Vector<T> v;
  memcpy(&v, p, sizeof v);
  return v;
}
INLINE Vector<bfloat16> load(const bfloat16* p) {
  Half narrow;
  memcpy(&narrow, p, sizeof narrow);
  Word wide = __builtin_convertvector(narrow, Word) << 16;
  Vector<bfloat16> v;
  memcpy(&v, &wide, sizeof v);
  return v;
}
template <class T> INLINE void store(T* p, const Vector<T>& v) { memcpy(p, &v, sizeof v); }
INLINE void store(bfloat16* p, const Vector<bfloat16>& v) {
  Word u;
  memcpy(&u, &v, sizeof u);
  Word rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;  // to nearest, ties to even
  rounded = (v == v) ? rounded : Word{} + 0x7fc0;       // a NaN stays one
  Half narrow = __builtin_convertvector(rounded, Half);
  memcpy(p, &narrow, sizeof narrow);
}
template <class T> static inline Vector<T> load(const T* p, int n) {
  if (n >= lanes<T>) return load(p);
  T part[lanes<T>] = {};
  for (int k = 0; k < n; k++) part[k] = p[k];
  return load(part);
}
template <class T> static inline void store(T* p, const Vector<T>& v, int n) {
  if (n >= lanes<T>) return store(p, v);
  T part[lanes<T>];
  store(part, v);
  for (int k = 0; k < n; k++) p[k] = part[k];
}
// the value a stored one will be read back as
template <class T> INLINE Vector<T> rounded(const Vector<T>& v) {
  if constexpr (sizeof(T) == sizeof(Arithmetic<T>)) {
    return v;
  } else {
    T part[lanes<T>];
    store(part, v);
    return load(part);
  }
}
static inline float widen(bfloat16 x) {
  uint32_t u = uint32_t(x.bits) << 16;
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}
static inline float widen(float x) { return x; }
static inline double widen(double x) { return x; }

// ---- pairs ----

// Two vectors side by side: the chains of operations inside a step are long, and two of them hide each other's latency.
template <class V> struct Two { V lo, hi; };
template <class V> INLINE Two<V> operator+(const Two<V>& a, const Two<V>& b) { return {a.lo + b.lo, a.hi + b.hi}; }
template <class V> INLINE Two<V> operator*(const Two<V>& a, const Two<V>& b) { return {a.lo * b.lo, a.hi * b.hi}; }
template <class V> INLINE Two<V> operator-(float a, const Two<V>& b) { return {a - b.lo, a - b.hi}; }
template <class V> INLINE Two<V> operator-(const Two<V>& a) { return {-a.lo, -a.hi}; }
template <class V> INLINE Two<V>& operator+=(Two<V>& a, const Two<V>& b) { return a = a + b; }

template <class S> using Pack = Two<Vector<S>>;
template <class S> constexpr int units = 2 * lanes<S>;  // in a pair

// WHOLE: all units of the pair are there. The other kind is rare and kept out of the way of the registers.
template <class T> __attribute__((noinline)) static Pack<T> get_part(const T* p, int n) {
  return {load(p, n < lanes<T> ? n : lanes<T>), n > lanes<T> ? load(p + lanes<T>, n - lanes<T>) : Vector<T>{}};
}
template <class T> __attribute__((noinline)) static void put_part(T* p, const Pack<T>& v, int n) {
  store(p, v.lo, n < lanes<T> ? n : lanes<T>);
  if (n > lanes<T>) store(p + lanes<T>, v.hi, n - lanes<T>);
}
template <bool WHOLE, class T> INLINE Pack<T> get(const T* p, int n) {
  if constexpr (WHOLE) {
    return {load(p), load(p + lanes<T>)};
  } else {
    return get_part(p, n);
  }
}
template <bool WHOLE, class T> INLINE void put(T* p, const Pack<T>& v, int n) {
  if constexpr (WHOLE) {
    store(p, v.lo);
    store(p + lanes<T>, v.hi);
  } else {
    put_part(p, v, n);
  }
}

// ---- nonlinearities ----

// the first where it is smaller (larger), else the second, which may be NaN: what the machine's own instruction does
#if defined(__AVX512F__)
INLINE Vector<float> smaller(Vector<float> a, Vector<float> b) { return (Vector<float>)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE Vector<float> larger(Vector<float> a, Vector<float> b) { return (Vector<float>)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE Vector<double> smaller(Vector<double> a, Vector<double> b) { return (Vector<double>)_mm512_min_pd((__m512d)a, (__m512d)b); }
INLINE Vector<double> larger(Vector<double> a, Vector<double> b) { return (Vector<double>)_mm512_max_pd((__m512d)a, (__m512d)b); }
#elif defined(__AVX2__)
INLINE Vector<float> smaller(Vector<float> a, Vector<float> b) { return (Vector<float>)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE Vector<float> larger(Vector<float> a, Vector<float> b) { return (Vector<float>)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE Vector<double> smaller(Vector<double> a, Vector<double> b) { return (Vector<double>)_mm256_min_pd((__m256d)a, (__m256d)b); }
INLINE Vector<double> larger(Vector<double> a, Vector<double> b) { return (Vector<double>)_mm256_max_pd((__m256d)a, (__m256d)b); }
#else
template <class V> static inline V smaller(V a, V b) { return a < b ? a : b; }
template <class V> static inline V larger(V a, V b) { return a > b ? a : b; }
#endif

template <class V> struct Exp;
template <> struct Exp<VectorOf<float>::type> {
  typedef VectorOf<float>::bits Bits;
  typedef float T;
  static constexpr int terms = 7, mantissa = 23, bias = 127;
  static constexpr float inverse = 1.44269504f, magic = 12582912.f, hi = 0.693359375f, lo = -2.12194440e-4f, limit = 87.f, edge = 10.f;
};
template <> struct Exp<VectorOf<double>::type> {
  typedef VectorOf<double>::bits Bits;
  typedef double T;
  static constexpr int terms = 13, mantissa = 52, bias = 1023;
  static constexpr double inverse = 1.4426950408889634, magic = 6755399441055744., hi = 6.93145751953125e-1, lo = 1.42860682030941723212e-6;
  static constexpr double limit = 707., edge = 20.;
};

template <class T, int N> struct Inverse { T of[N + 1]; };
template <class T, int N> constexpr Inverse<T, N> inverse_factorials() {
  Inverse<T, N> f{};
  T x = 1;
  for (int k = 0; k <= N; k++) f.of[k] = k ? x /= k : x;
  return f;
}

// e^x = power * (1 + small): x = n log 2 + r, small = e^r - 1 by its series. Both parts, so that e^x - 1 keeps its digits near 0
template <class V> INLINE void split_exp(const Two<V>& x, Two<V>& power, Two<V>& small) {
  typedef Exp<V> E;
  typedef typename E::Bits Bits;
  constexpr auto f = inverse_factorials<typename E::T, E::terms>();
  const Two<V> shifted = {x.lo * E::inverse + E::magic, x.hi * E::inverse + E::magic};
  const Two<V> n = {shifted.lo - E::magic, shifted.hi - E::magic};
  const Two<V> r = {(x.lo - n.lo * E::hi) - n.lo * E::lo, (x.hi - n.hi * E::hi) - n.hi * E::lo};
  Two<V> sum = {V{} + f.of[E::terms], V{} + f.of[E::terms]};
#pragma GCC unroll 16
  for (int k = E::terms - 1; k > 0; k--) sum = {sum.lo * r.lo + f.of[k], sum.hi * r.hi + f.of[k]};
  small = sum * r;
  Bits lo, hi;  // the low bits of the shifted value are n
  memcpy(&lo, &shifted.lo, sizeof lo);
  memcpy(&hi, &shifted.hi, sizeof hi);
  lo = (lo + E::bias) << E::mantissa;
  hi = (hi + E::bias) << E::mantissa;
  memcpy(&power.lo, &lo, sizeof lo);
  memcpy(&power.hi, &hi, sizeof hi);
}
template <class V> INLINE Two<V> within(const Two<V>& x, typename Exp<V>::T edge) {
  const V top = V{} + edge, bottom = V{} - edge;
  return {larger(bottom, smaller(top, x.lo)), larger(bottom, smaller(top, x.hi))};
}
template <class V> INLINE Two<V> sigmoid(const Two<V>& x) {
  Two<V> power, small;
  split_exp<V>(within(-x, Exp<V>::limit), power, small);
  return {1 / (power.lo * small.lo + (power.lo + 1)), 1 / (power.hi * small.hi + (power.hi + 1))};
}
template <class V> INLINE Two<V> tanh(const Two<V>& x) {
  Two<V> power, small;
  const Two<V> y = within(x, Exp<V>::edge);
  split_exp<V>(y + y, power, small);
  const Two<V> less = {power.lo * small.lo + (power.lo - 1), power.hi * small.hi + (power.hi - 1)};  // e^2x - 1
  return {less.lo / (less.lo + 2), less.hi / (less.hi + 2)};
}

// the RNN's phi, and its slope from its value
struct Tanh {
  template <class V> INLINE Two<V> phi(const Two<V>& x) { return tanh(x); }
  template <class V> INLINE Two<V> slope(const Two<V>& y) { return 1 - y * y; }
};
struct Relu {
  template <class V> INLINE Two<V> phi(const Two<V>& x) { return {larger(V{}, x.lo), larger(V{}, x.hi)}; }
  template <class V> INLINE Two<V> slope(const Two<V>& y) { return {one(y.lo > 0, y.lo), one(y.hi > 0, y.hi)}; }
  template <class V, class B> INLINE V one(B where, const V&) { return where ? V{} + 1 : V{}; }
};
struct Identity {
  template <class V> INLINE Two<V> phi(const Two<V>& x) { return x; }
  template <class V> INLINE Two<V> slope(const Two<V>&) { return {V{} + 1, V{} + 1}; }
};
