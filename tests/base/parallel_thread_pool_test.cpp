#include "base/parallel.h"

#include <csignal>
#include <numeric>
#include <thread>
#include <vector>

#include "base/error.h"

namespace thimble {
namespace {

TEST(ThreadPool, RunsEveryTaskOnceForAnyNumberOfThreads) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int repeat = 0; repeat < 200; ++repeat)
      for (const std::int64_t count : {0, 1, 2, 5, 64}) {
        std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
        pool.run(count, [&](std::int64_t i) { ++visits[static_cast<std::size_t>(i)]; });
        for (const auto& seen : visits) ASSERT_EQ(seen, 1) << threads << " threads, " << count << " tasks";
      }
  }
}

// A job, and the caller between jobs, must see the writes of the job before without further
// synchronization.
TEST(ThreadPool, JobsSeeTheWritesOfEarlierJobs) {
  ThreadPool pool(3);
  std::vector<std::int64_t> values(48, 0);
  for (int job = 1; job <= 2000; ++job) {
    pool.run(static_cast<std::int64_t>(values.size()),
             [&](std::int64_t i) { values[static_cast<std::size_t>(i)] += job; });
    if (job % 100 == 0) {
      const std::int64_t expected = std::int64_t{job} * (job + 1) / 2;
      for (const std::int64_t value : values) ASSERT_EQ(value, expected);
    }
  }
}

TEST(ThreadPool, WakesSleepingThreads) {
  ThreadPool pool(4);
  for (int repeat = 0; repeat < 5 && !HasFailure(); ++repeat) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than idle threads spin
    std::atomic<int> inside = 0, most = 0;
    std::atomic<bool> gave_up = false;
    pool.run(4, [&](std::int64_t) {
      const int now = ++inside;
      for (int before = most; before < now && !most.compare_exchange_weak(before, now);) continue;
      // Wait until two threads are inside, or far too long.
      for (int i = 0; i < 30000 && most < 2 && !gave_up; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      gave_up = most < 2;
      --inside;
    });
    EXPECT_GE(most, 2) << "only the caller ran tasks";
  }
}

TEST(ThreadPool, RethrowsTheFirstExceptionAfterAllTasks) {
  for (const int threads : {2, 4}) {
    ThreadPool pool(threads);
    for (int repeat = 0; repeat < 50; ++repeat) {
      std::atomic<int> done = 0;
      const auto task = [&](std::int64_t i) {
        check(i % 10 != 3, "task {} is bad", i);
        ++done;
      };
      EXPECT_THROW(pool.run(40, task), Error);
      EXPECT_EQ(done, 36);
      EXPECT_NO_THROW(pool.run(3, task)) << "the exception must not affect the next job";
      EXPECT_EQ(done, 39);
    }
  }
}

TEST(ThreadPool, NestedLoopsAreSerial) {
  ThreadPool pool(3);
  const PoolScope scope(pool);
  std::vector<std::atomic<int>> visits(60);
  parallel_for(6, 1, [&](std::int64_t outer, std::int64_t) {
    EXPECT_TRUE(ThreadPool::in_task());
    EXPECT_EQ(max_threads(), 1);
    const auto self = std::this_thread::get_id();
    parallel_for(10, 1, [&](std::int64_t inner, std::int64_t) {
      EXPECT_EQ(std::this_thread::get_id(), self);
      ++visits[static_cast<std::size_t>(10 * outer + inner)];
    });
    pool.run(2, [&](std::int64_t) { EXPECT_EQ(std::this_thread::get_id(), self); });
  });
  for (const auto& seen : visits) EXPECT_EQ(seen, 1);
  EXPECT_FALSE(ThreadPool::in_task());
}

TEST(ThreadPool, LoopsUseThePoolOfTheInnermostScope) {
  const int outside = max_threads();
  {
    ThreadPool large(5), small(2);
    const PoolScope scope(large);
    EXPECT_EQ(max_threads(), 5);
    {
      const PoolScope inner(small);
      EXPECT_EQ(max_threads(), 2);
    }
    EXPECT_EQ(max_threads(), 5);
    // While a task runs, no other thread has its index.
    std::vector<std::atomic<int>> busy(5);
    parallel_tasks(500, [&](std::int64_t) {
      const auto mine = static_cast<std::size_t>(thread_index());
      ASSERT_LT(mine, busy.size());
      EXPECT_EQ(busy[mine]++, 0);
      --busy[mine];
    });
    EXPECT_EQ(thread_index(), 0);
  }
  EXPECT_EQ(max_threads(), outside);
}

// Like a server that decodes: several threads with one pool each.
TEST(ThreadPool, SeveralThreadsUseTheirOwnPools) {
  const auto sums = [] {
    ThreadPool pool(3);
    const PoolScope scope(pool);
    for (int repeat = 0; repeat < 300; ++repeat) {
      std::vector<std::int64_t> squares(100);
      parallel_for(100, 7, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) squares[static_cast<std::size_t>(i)] = i * i;
      });
      ASSERT_EQ(std::accumulate(squares.begin(), squares.end(), std::int64_t{0}), 328350);
    }
  };
  std::thread one(sums), other(sums);
  sums();
  one.join(), other.join();
}

// Signal handlers run on the main thread only, so pool threads must block signals.
TEST(ThreadPool, WorkersBlockSignals) {
  ThreadPool pool(3);
  std::atomic<int> worker_tasks = 0, unblocked = 0;
  pool.run(3, [&](std::int64_t) {
    if (ThreadPool::thread_index() == 0) {  // waits until a worker has run a task
      for (int i = 0; i < 30000 && worker_tasks == 0; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    for (const int signal : {SIGINT, SIGTERM, SIGCONT, SIGWINCH})
      unblocked += sigismember(&blocked, signal) != 1;
    ++worker_tasks;
  });
  EXPECT_GT(worker_tasks, 0);
  EXPECT_EQ(unblocked, 0);
  sigset_t ours;
  pthread_sigmask(SIG_BLOCK, nullptr, &ours);
  EXPECT_EQ(sigismember(&ours, SIGWINCH), 0);
}

// A pool created by one thread and used by another.
TEST(ThreadPool, WorksFromAThreadThatDidNotCreateIt) {
  ThreadPool pool(2);
  std::atomic<int> done = 0;
  std::thread other([&] {
    const PoolScope scope(pool);
    for (int repeat = 0; repeat < 100; ++repeat)
      parallel_for(8, 1, [&](std::int64_t, std::int64_t) { ++done; });
  });
  other.join();
  pool.run(8, [&](std::int64_t) { ++done; });
  EXPECT_EQ(done, 808);
}

}  // namespace
}  // namespace thimble
