// Parallel loops over OpenMP, or over the pool that a PoolScope names (base/thread_pool.h). Only one thread of the
// program may enter them without a pool (a second would make a second team).
//
// Work is cut into chunks of `grain` items at fixed places: what a chunk computes cannot depend on the number
// of threads. Builds under ThreadSanitizer use no OpenMP, because its runtime is not instrumented.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <exception>

#include "base/thread_pool.h"

namespace thimble {

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

}  // namespace thimble
