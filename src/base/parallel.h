// A few threads for work of microseconds: what decoding one token is made of.
//
//   ThreadPool pool(4);                 // the caller and three others
//   const PoolScope scope(pool);        // parallel_for of this thread runs on it now (base/parallel.h)
//
// OpenMP's team ends every loop with a barrier: one thread that the system has put aside holds up all. Here tasks are
// taken one by one by whoever is there, and a thread that comes late finds nothing to do and nobody waiting for it.
// Idle threads look for work for a short while, then sleep. Any thread may own a pool; it serves one thread at a time.
#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace thimble {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // the caller counts as one
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // task(i) once for every i in [0, count), on any thread, in any order; comes back when all are done. The first
  // exception is thrown again here, after the other tasks.
  template <class Task>
  void run(std::int64_t count, const Task& task) {
    run(
        count, [](const void* body, std::int64_t i) { (*static_cast<const Task*>(body))(i); }, &task);
  }

  static ThreadPool* current();  // the pool that this thread's scope names; nullptr: none
  static bool in_task();         // called from a task of any pool: what it runs is serial
  static int thread_index();     // of a task's thread, 0 the pool's caller; 0 outside

 private:
  friend class PoolScope;
  using Call = void (*)(const void* body, std::int64_t i);

  void run(std::int64_t count, Call call, const void* body);
  void take_tasks(int index);
  void serve(int index);
  bool enter();  // false: there is nothing to do now
  void leave();
  void wait_for_workers();

  // The job: written while the gate is shut and nobody is inside.
  Call call_ = nullptr;
  const void* body_ = nullptr;
  std::int64_t count_ = 0;

  static constexpr std::size_t kLine = 64;
  alignas(kLine) std::atomic<std::int64_t> next_{0};   // the first task that nobody has taken
  alignas(kLine) std::atomic<std::uint32_t> jobs_{0};  // counts them: what idle threads watch
  alignas(kLine) std::atomic<std::uint32_t> gate_{
      kShut};  // how many workers are inside; kShut: no more may enter
  static constexpr std::uint32_t kShut = 1u << 31;

  std::atomic<bool> closing_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::vector<std::thread> workers_;
};

// While it lives, loops of this thread run on the pool.
class PoolScope {
 public:
  explicit PoolScope(ThreadPool& pool);
  ~PoolScope();
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;

 private:
  ThreadPool* before_;
};

// Parallel loops over OpenMP, or over the pool that a PoolScope names (base/parallel.h). Only one thread of the
// program may enter them without a pool (a second would make a second team).
//
// Work is cut into chunks of `grain` items at fixed places: what a chunk computes cannot depend on the number
// of threads. Builds under ThreadSanitizer use no OpenMP, because its runtime is not instrumented.

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kParallel = false;
#else
inline constexpr bool kParallel = true;
#endif

inline int max_threads() {
  if (ThreadPool::in_task()) return 1;
  if (const ThreadPool* pool = ThreadPool::current()) return pool->threads();
  return kParallel ? omp_get_max_threads() : 1;
}
// Which thread of the team runs: 0 outside of parallel loops.
inline int thread_index() {
  if (ThreadPool::in_task()) return ThreadPool::thread_index();
  return kParallel ? omp_get_thread_num() : 0;
}
inline void set_threads(int threads) {
  omp_set_num_threads(threads);
}

// body(begin, end) over chunks of [0, count). The first exception of any chunk is thrown again in the caller.
template <class Body>
void parallel_for(std::int64_t count, std::int64_t grain, Body&& body) {
  if (count <= 0) return;
  const std::int64_t chunks = (count + grain - 1) / grain;
  if (ThreadPool* pool = ThreadPool::current(); pool && chunks > 1)
    return pool->run(chunks,
                     [&](std::int64_t chunk) { body(chunk * grain, std::min(count, (chunk + 1) * grain)); });
  if (!kParallel || chunks == 1 || max_threads() == 1) {
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk)
      body(chunk * grain, std::min(count, (chunk + 1) * grain));
    return;
  }
  std::exception_ptr error;
#pragma omp parallel for schedule(static)
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    try {
      body(chunk * grain, std::min(count, (chunk + 1) * grain));
    } catch (...) {
#pragma omp critical
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

// body(i) for [0, count), each handed to the next free thread: for tasks of uneven size. What a task computes
// must not depend on which thread takes it.
template <class Body>
void parallel_tasks(std::int64_t count, Body&& body) {
  if (ThreadPool* pool = ThreadPool::current(); pool && count > 1) return pool->run(count, body);
  if (!kParallel || count <= 1 || max_threads() == 1) {
    for (std::int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  std::exception_ptr error;
#pragma omp parallel for schedule(dynamic, 1)
  for (std::int64_t i = 0; i < count; ++i) {
    try {
      body(i);
    } catch (...) {
#pragma omp critical
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

// Work on many items of uneven size, cut into tasks that are worth a thread's while.

// body(i) for [0, count) in parallel; size(i) in bytes decides how many items make a task.
template <class Size, class Body>
void parallel_items(std::size_t count, const Size& size, const Body& body) {
  constexpr std::size_t kTaskBytes = 1 << 16;
  std::vector<std::size_t> ends;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < count; ++i) {
    bytes += size(i);
    if (bytes < kTaskBytes && i + 1 < count) continue;
    ends.push_back(i + 1);
    bytes = 0;
  }
  parallel_tasks(static_cast<std::int64_t>(ends.size()), [&](std::int64_t task) {
    const auto t = static_cast<std::size_t>(task);
    for (std::size_t i = t == 0 ? 0 : ends[t - 1]; i < ends[t]; ++i) body(i);
  });
}

}  // namespace thimble
