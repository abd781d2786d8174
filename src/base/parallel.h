// Thread pools and parallel loops. A pool runs loops of a few microseconds, such as those of
// decoding one token.
//
//   ThreadPool pool(4);                 // the calling thread and three workers
//   const PoolScope scope(pool);        // parallel_for in this thread now uses the pool
//
// An OpenMP loop ends with a barrier that all threads must reach, so one descheduled thread delays
// the loop. The threads of a pool take tasks one at a time, so a thread that arrives late finds no
// task left and delays no other. Idle threads spin for a short time, then sleep. Any thread may own
// a pool; a pool runs one loop at a time.
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
  explicit ThreadPool(int threads);  // including the caller
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(i) once for every i in [0, count), on any thread and in any order, and returns when
  // all are done. The first exception is rethrown after the other tasks.
  template <class Task>
  void run(std::int64_t count, const Task& task) {
    run(
        count, [](const void* body, std::int64_t i) { (*static_cast<const Task*>(body))(i); }, &task);
  }

  static ThreadPool* current();  // of the innermost PoolScope of this thread, or nullptr
  static bool in_task();         // whether this thread is inside a task: its loops are serial
  static int thread_index();     // of this thread in the pool; 0 for the caller and outside of tasks

 private:
  friend class PoolScope;
  using Call = void (*)(const void* body, std::int64_t i);

  void run(std::int64_t count, Call call, const void* body);
  void run_tasks(int index);
  void worker_loop(int index);
  bool enter();  // false: no job to work on
  void leave();
  void wait_for_workers();

  // The current job: written only while the gate is shut and no worker is inside.
  Call call_ = nullptr;
  const void* body_ = nullptr;
  std::int64_t count_ = 0;

  static constexpr std::size_t kLine = 64;
  alignas(kLine) std::atomic<std::int64_t> next_{0};   // the first task not taken yet
  alignas(kLine) std::atomic<std::uint32_t> jobs_{0};  // job count, which idle threads watch
  // The number of workers inside; with kShut set, no more may enter.
  alignas(kLine) std::atomic<std::uint32_t> gate_{kShut};
  static constexpr std::uint32_t kShut = 1u << 31;

  std::atomic<bool> closing_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::vector<std::thread> workers_;
};

// During its lifetime, parallel loops of this thread run on the pool.
class PoolScope {
 public:
  explicit PoolScope(ThreadPool& pool);
  ~PoolScope();
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;

 private:
  ThreadPool* before_;
};

// Parallel loops on OpenMP threads, or on the pool of a PoolScope. Without a pool, only one thread
// of the program may run them, because a second one would create a second OpenMP team.
//
// Work is cut into chunks of `grain` items at fixed positions, so results cannot depend on the
// number of threads. Builds with ThreadSanitizer do not use OpenMP, whose runtime is not
// instrumented.

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
// Index of the running thread in its team; 0 outside of parallel loops.
inline int thread_index() {
  if (ThreadPool::in_task()) return ThreadPool::thread_index();
  return kParallel ? omp_get_thread_num() : 0;
}
inline void set_threads(int threads) {
  omp_set_num_threads(threads);
}

// Calls body(begin, end) for chunks of [0, count). The first exception is rethrown in the caller.
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

// Calls body(i) for i in [0, count), each on the next free thread, for tasks of uneven size. The
// result of a task must not depend on the thread that runs it.
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

// Calls body(i) for i in [0, count) in parallel, for many small items: consecutive items are
// grouped into tasks of at least 64 KiB, where size(i) is the number of bytes of item i.
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
