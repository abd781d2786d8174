// Runs the batcher on one decode thread and gives other threads a queue to submit requests.
//
//   Engine engine(model, tokenizer, {.slots = 8, .queue = 64});
//   decode thread:  engine.run([&] { return stop; });
//   any other:      Job job = engine.submit({request});
//                   while (!job.done()) for (const JobEvent& event : job.wait(0.1)) show(event);
//
// The decode thread processes queued requests and cancellations between steps, so the slot of a
// destroyed job is free after at most one step.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "infer/batcher.h"

namespace thimble {

// An event of one sample of one of a job's requests. It has tokens only if the request asks for
// log-probabilities. Events of a sample that were not read yet are joined, so a client that does
// not read takes no more memory than its answer. A sample that ends as cancelled was given up
// because the engine stopped.
struct JobEvent {
  std::size_t request = 0;  // index in the job
  Event event;
};

class Engine;

// A handle for submitted requests. Destroying it before they are done cancels them.
class Job {
 public:
  Job(Job&&) noexcept = default;
  Job& operator=(Job&&) = delete;
  ~Job();

  // Waits for events and returns those that arrived since the last call; empty after a timeout.
  std::vector<JobEvent> wait(double seconds);
  bool done() const { return left_ == 0; }  // wait() has returned the last event of every sample

 private:
  friend class Engine;
  struct Mailbox;
  Job(Engine& engine, std::shared_ptr<Mailbox> mailbox, int samples);

  Engine* engine_;
  std::shared_ptr<Mailbox> mailbox_;
  int left_;  // samples whose last event wait() has not returned
};

struct EngineOptions {
  std::int64_t slots = 8;
  std::int64_t queue = 64;  // samples that may wait for a slot
};

// Counters and the current load.
struct EngineStats {
  std::int64_t steps = 0;
  std::int64_t busy_slot_steps = 0;  // slots in use, summed over the steps
  std::int64_t active = 0;           // samples that have a slot
  std::int64_t waiting = 0;          // samples that wait for one
};

// Thrown if the queue is full, if the memory for answers is in use, or if the server is shutting
// down.
class Overloaded : public Error {
 public:
  using Error::Error;
};

class Engine {
 public:
  // `model` and `tokenizer` must outlive the engine.
  Engine(Model& model, const Tokenizer* tokenizer, const EngineOptions& options);
  ~Engine();

  // May be called by any thread. Throws Overloaded, or what check_request throws. Requests with
  // more samples than slots and queue can hold are an Error about "n".
  Job submit(std::vector<Request> requests);

  // Runs the decode loop until `stop` returns true, then cancels all remaining requests. `stop` is
  // called between steps and at least every 50 ms while idle. If the batcher throws, all jobs
  // receive the error and run() rethrows it.
  void run(const std::function<bool()>& stop);

  // Rejects new requests from now on; accepted requests continue.
  void close();
  bool closed() const;
  bool idle() const { return in_flight_ == 0; }

  EngineStats stats() const;
  const Model& model() const { return batcher_.model(); }
  std::int64_t slots() const { return batcher_.slots(); }
  std::int64_t queue() const { return options_.queue; }

 private:
  friend class Job;
  struct Submission {
    std::shared_ptr<Job::Mailbox> mailbox;
    std::vector<Request> requests;
  };
  struct Running {
    std::shared_ptr<Job::Mailbox> mailbox;
    std::size_t request;
    int samples_left;
    bool scored;
  };

  void abandon(std::shared_ptr<Job::Mailbox> mailbox);
  bool process_queue(bool may_wait);
  void start(Submission submission);
  void cancel(const Job::Mailbox& mailbox);
  void deliver(std::vector<Event> events);
  void cancel_all(const std::optional<Error>& error);
  void publish_stats(std::int64_t steps, std::int64_t busy_slots);

  EngineOptions options_;
  Batcher batcher_;                                 // used by the decode thread only
  std::unordered_map<RequestId, Running> running_;  // used by the decode thread only

  mutable std::mutex mutex_;
  std::condition_variable wakeup_;
  std::vector<Submission> submissions_;
  std::vector<std::shared_ptr<Job::Mailbox>> abandoned_;
  bool closed_ = false;
  EngineStats stats_;
  std::atomic<std::int64_t> in_flight_ = 0;  // samples accepted and not yet ended
};

}  // namespace thimble
