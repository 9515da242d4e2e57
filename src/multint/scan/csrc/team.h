// How do the workers of one call keep in step?
#pragma once
// All workers of a call meet here between steps. They spin, because a step lasts microseconds, and yield when one is late.
// A thread may stand for several workers (the pool gave fewer threads than asked for): it arrives for all of them at once.
class Team {
 public:
  explicit Team(int size) : size(size) {}
  const int size;
  void meet(int standing_for) {
    const int round = passed.load(std::memory_order_relaxed);
    if (arrived.fetch_add(standing_for, std::memory_order_acq_rel) + standing_for == size) {
      arrived.store(0, std::memory_order_relaxed);
      passed.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; passed.load(std::memory_order_acquire) == round; spins++) {
      if (spins < 4096) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      } else {
        sched_yield();
      }
    }
  }

 private:
  std::atomic<int> arrived{0}, passed{0};
};

// workers [first, last) of the team, run by this thread
struct Share {
  Team& team;
  int first, last;
  void meet() const {
    if (team.size > 1) team.meet(last - first);
  }
  // runs work(worker) for each, then meets the others
  template <class F> void each(const F& work) const {
    for (int w = first; w < last; w++) work(w);
    meet();
  }
};

static inline int64_t part(int64_t total, int worker, int size) { return total * worker / size; }

// asks for large pages under a large array, whose first touch would else cost a fault every four kilobytes
static inline void advise(void* data, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
  constexpr uintptr_t huge = uintptr_t(1) << 21;
  const uintptr_t from = (reinterpret_cast<uintptr_t>(data) + huge - 1) / huge * huge;
  const uintptr_t till = (reinterpret_cast<uintptr_t>(data) + uintptr_t(bytes)) / huge * huge;
  if (data != nullptr && from < till) madvise(reinterpret_cast<void*>(from), till - from, MADV_HUGEPAGE);
#endif
}

// meets a fresh array for the first time, each worker a part: pages are cleared by all of them at once, not by the first to come
template <class T> static inline void touch(T* data, int64_t count, int worker, int size) {
  constexpr int64_t page = 4096 / sizeof(T);
  for (int64_t k = part(count / page, worker, size) * page; k < part(count / page, worker + 1, size) * page; k += page) data[k] = T{};
}

// Memory for the length of a call. Freed pieces wait here for the next call, up to a bound: pages that the system has to clear again
// cost as much as a product. Whoever finds the shelf in use, in another thread or at a fork, does without.
class Shelf {
 public:
  void* take(size_t bytes, size_t& size) {
    if (!busy.test_and_set(std::memory_order_acquire)) {
      void* found = nullptr;
      for (Piece& p : pieces)
        if (p.data != nullptr && p.size >= bytes && p.size <= 2 * bytes) {
          found = p.data, size = p.size, kept -= p.size, p.data = nullptr;
          break;
        }
      busy.clear(std::memory_order_release);
      if (found != nullptr) return found;
    }
    constexpr size_t huge = size_t(1) << 21;
    const size_t align = bytes >= huge ? huge : 64;
    size = (bytes + align - 1) / align * align;
    void* data = std::aligned_alloc(align, size);
    if (data == nullptr) throw std::bad_alloc();
    advise(data, int64_t(size));
    return data;
  }
  void put_back(void* data, size_t size) {
    if (size >= LEAST && !busy.test_and_set(std::memory_order_acquire)) {
      for (Piece& p : pieces)
        if (p.data == nullptr && kept + size <= MOST) {
          p.data = data, p.size = size, kept += size;
          data = nullptr;
          break;
        }
      busy.clear(std::memory_order_release);
    }
    std::free(data);
  }

 private:
  static constexpr size_t LEAST = size_t(1) << 16, MOST = size_t(64) << 20;
  struct Piece {
    void* data;
    size_t size;
  };
  Piece pieces[32] = {};
  size_t kept = 0;
  std::atomic_flag busy = ATOMIC_FLAG_INIT;
};
static Shelf shelf;

template <class T> class Buffer {
 public:
  explicit Buffer(int64_t count) {
    if (count > 0) data = static_cast<T*>(shelf.take(size_t(count) * sizeof(T), size));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { shelf.put_back(data, size); }
  operator T*() const { return data; }

 private:
  T* data = nullptr;
  size_t size = 0;
};
