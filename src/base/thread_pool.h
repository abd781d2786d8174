// A few threads for work of microseconds: what decoding one token is made of.
//
//   ThreadPool pool(4);                 // the caller and three others
//   const PoolScope scope(pool);        // parallel_for of this thread runs on it now (base/parallel.h)
//
// OpenMP's team ends every loop with a barrier: one thread that the system has put aside holds up all. Here tasks are
// taken one by one by whoever is there, and a thread that comes late finds nothing to do and nobody waiting for it.
// Idle threads look for work for a short while, then sleep. Any thread may own a pool; it serves one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
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

}  // namespace thimble
