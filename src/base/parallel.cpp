#include "base/parallel.h"

#include <omp.h>

#include <chrono>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/signals.h"

namespace thimble {

namespace {

// The pool whose loops this thread runs, and whether it is inside a task.
struct ThisThread {
  ThreadPool* pool = nullptr;
  bool in_task = false;
  int index = 0;
};
thread_local ThisThread thread_state;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until `done` or for about `longest`; returns false on a timeout. The clock is read once per
// kPauses pauses because reading it costs as much as several of them.
template <class Done>
bool spin(std::chrono::microseconds longest, Done done) {
  constexpr int kPauses = 32;
  const auto end = std::chrono::steady_clock::now() + longest;
  do {
    for (int i = 0; i < kPauses; ++i) {
      if (done()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return done();
}

// How long an idle thread spins: longer than the gap between two tokens, short enough that the CPU
// time does not matter.
constexpr std::chrono::microseconds kSpinTime{100};

}  // namespace

#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer does not understand OpenMP's synchronization, so in its builds all loops run on
// pools, one for each requested number of threads. A pool is kept until the calling thread ends: a
// forked process, which has only the calling thread, could not join its workers.
ThreadPool* ThreadPool::current() {
  if (thread_state.pool || thread_state.in_task) return thread_state.pool;
  thread_local std::map<int, ThreadPool> teams;
  const int threads = omp_get_max_threads();
  return &teams.try_emplace(threads, threads).first->second;
}
#else
ThreadPool* ThreadPool::current() {
  return thread_state.pool;
}
#endif

bool ThreadPool::in_task() {
  return thread_state.in_task;
}

int ThreadPool::thread_index() {
  return thread_state.index;
}

ThreadPool::ThreadPool(int threads) {
  check(threads >= 1, "[threads] a pool needs at least 1 thread, got {}", threads);
  workers_.reserve(static_cast<std::size_t>(threads) - 1);
  const SignalMaskScope held;
  for (int index = 1; index < threads; ++index) workers_.emplace_back([this, index] { worker_loop(index); });
}

ThreadPool::~ThreadPool() {
  closing_ = true;
  jobs_.fetch_add(1);
  jobs_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(std::int64_t count, Call call, const void* body) {
  if (in_task() || workers_.empty() || count <= 1) {
    for (std::int64_t i = 0; i < count; ++i) call(body, i);
    return;
  }
  call_ = call, body_ = body, count_ = count;
  next_.store(0, std::memory_order_relaxed);
  gate_.store(0, std::memory_order_release);
  jobs_.fetch_add(1, std::memory_order_release);
  jobs_.notify_all();  // no system call unless a worker sleeps
  run_tasks(0);
  gate_.fetch_or(kShut, std::memory_order_acquire);
  wait_for_workers();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::run_tasks(int index) {
  const ThisThread outside = std::exchange(thread_state, {.in_task = true, .index = index});
  for (std::int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) try {
      call_(body_, i);
    } catch (...) {
      const std::lock_guard lock(error_mutex_);
      if (!error_) error_ = std::current_exception();
    }
  thread_state = outside;
}

// Workers inside are running their last task. If the system has descheduled one, it needs this
// processor: yield.
void ThreadPool::wait_for_workers() {
  const auto none_inside = [&] { return gate_.load(std::memory_order_acquire) == kShut; };
  while (!spin(kSpinTime, none_inside)) std::this_thread::yield();
}

bool ThreadPool::enter() {
  std::uint32_t inside = gate_.load(std::memory_order_relaxed);
  while ((inside & kShut) == 0)
    if (gate_.compare_exchange_weak(inside, inside + 1, std::memory_order_acquire, std::memory_order_relaxed))
      return true;
  return false;
}

void ThreadPool::leave() {
  gate_.fetch_sub(1, std::memory_order_release);
}

void ThreadPool::worker_loop(int index) {
  std::uint32_t seen = 0;
  while (true) {
    const auto another = [&] { return jobs_.load(std::memory_order_acquire) != seen; };
    if (!spin(kSpinTime, another)) jobs_.wait(seen, std::memory_order_acquire);
    seen = jobs_.load(std::memory_order_acquire);
    if (closing_) return;
    if (!enter()) continue;
    run_tasks(index);
    leave();
  }
}

PoolScope::PoolScope(ThreadPool& pool) : before_(std::exchange(thread_state.pool, &pool)) {}

PoolScope::~PoolScope() {
  thread_state.pool = before_;
}

}  // namespace thimble
