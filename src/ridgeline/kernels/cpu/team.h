// A team of threads that works on one thing together.
//
// It comes from the pool that torch uses: two pools would wait for each other on the same cores. On
// Linux torch brings libgomp along, whose calls the code of any compiler can make (RIDGELINE_GOMP);
// elsewhere the compiler's own OpenMP joins torch's pool; without either, one thread does all.
// `build.py` finds out which it is.

#pragma once

#include <atomic>
#include <cstdint>

#if defined(RIDGELINE_GOMP)
extern "C" void GOMP_parallel(void (*work)(void*), void* of, unsigned threads, unsigned flags);
extern "C" void GOMP_barrier();
#endif
#if defined(RIDGELINE_GOMP) || defined(_OPENMP)
extern "C" int omp_get_thread_num();
extern "C" int omp_get_num_threads();
#endif

namespace ridgeline {

// Some of the things 0 … count.
struct Range {
  int64_t begin, end;
};

// One thread of a team of `of`.
struct Member {
  int number, of;

  // Of `count` things, those that this one does: all members' parts lie end to end.
  Range own(int64_t count) const { return {count * number / of, count * (number + 1) / of}; }

  // Until all members are here; what they wrote before can be read then.
  void wait() const {
    if (of == 1) return;
#if defined(RIDGELINE_GOMP)
    GOMP_barrier();
#elif defined(_OPENMP)
#pragma omp barrier
#endif
  }
};

// Things that go to whichever member is free.
class Queue {
 public:
  int64_t next() { return taken_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> taken_{0};
};

// Calls `work` as each member of a team of at most `threads`; all of it is done on return.
template <class Work>
void in_team(int threads, Work work) {
  if (threads <= 1) return work(Member{0, 1});
#if defined(RIDGELINE_GOMP)
  const auto enter = [](void* of) {
    (*static_cast<Work*>(of))(Member{omp_get_thread_num(), omp_get_num_threads()});
  };
  GOMP_parallel(enter, &work, static_cast<unsigned>(threads), 0);
#elif defined(_OPENMP)
#pragma omp parallel num_threads(threads)
  work(Member{omp_get_thread_num(), omp_get_num_threads()});
#else
  work(Member{0, 1});
#endif
}

}  // namespace ridgeline
