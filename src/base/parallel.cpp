#include "base/parallel.h"

#include <omp.h>

#include <chrono>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/signals.h"

namespace thimble {

namespace {

// What this thread is: inside a task, and whose loops it runs.
struct ThisThread {
  ThreadPool* pool = nullptr;
  bool in_task = false;
  int index = 0;
};
thread_local ThisThread this_thread_facts;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Until `done` or about that long; false: it took longer. A clock is asked rarely: it costs as much as some pauses.
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

// Longer than from one token to the next, shorter than anybody would notice of a processor.
constexpr std::chrono::microseconds kLookForWork{100};

}  // namespace

#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer does not see what OpenMP's threads wait for: in its builds all loops run on pools, one for each
// number of threads that was asked for (a forked process, which has the caller alone, could not end one).
ThreadPool* ThreadPool::current() {
  if (this_thread_facts.pool || this_thread_facts.in_task) return this_thread_facts.pool;
  thread_local std::map<int, ThreadPool> teams;
  const int threads = omp_get_max_threads();
  return &teams.try_emplace(threads, threads).first->second;
}
#else
ThreadPool* ThreadPool::current() {
  return this_thread_facts.pool;
}
#endif

bool ThreadPool::in_task() {
  return this_thread_facts.in_task;
}

int ThreadPool::thread_index() {
  return this_thread_facts.index;
}

ThreadPool::ThreadPool(int threads) {
  check(threads >= 1, "[threads] a pool of {} threads", threads);
  workers_.reserve(static_cast<std::size_t>(threads) - 1);
  const SignalsHeld held;
  for (int index = 1; index < threads; ++index) workers_.emplace_back([this, index] { serve(index); });
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
  jobs_.notify_all();  // a look at a counter, unless somebody sleeps
  take_tasks(0);
  gate_.fetch_or(kShut, std::memory_order_acquire);
  wait_for_workers();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::take_tasks(int index) {
  const ThisThread outside = std::exchange(this_thread_facts, {.in_task = true, .index = index});
  for (std::int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) try {
      call_(body_, i);
    } catch (...) {
      const std::lock_guard lock(error_mutex_);
      if (!error_) error_ = std::current_exception();
    }
  this_thread_facts = outside;
}

// Those inside are in the middle of their last task. Where the system has put one aside, it needs our processor.
void ThreadPool::wait_for_workers() {
  const auto none_inside = [&] { return gate_.load(std::memory_order_acquire) == kShut; };
  while (!spin(kLookForWork, none_inside)) std::this_thread::yield();
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

void ThreadPool::serve(int index) {
  std::uint32_t seen = 0;
  while (true) {
    const auto another = [&] { return jobs_.load(std::memory_order_acquire) != seen; };
    if (!spin(kLookForWork, another)) jobs_.wait(seen, std::memory_order_acquire);
    seen = jobs_.load(std::memory_order_acquire);
    if (closing_) return;
    if (!enter()) continue;
    take_tasks(index);
    leave();
  }
}

PoolScope::PoolScope(ThreadPool& pool) : before_(std::exchange(this_thread_facts.pool, &pool)) {}

PoolScope::~PoolScope() {
  this_thread_facts.pool = before_;
}

}  // namespace thimble
