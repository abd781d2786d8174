// The one thread that computes, and how the others reach it.
//
//   Engine engine(model, tokenizer, {.slots = 8, .queue = 64});
//   decode thread:  engine.run([&] { return stop; });
//   any other:      Job job = engine.submit({request});
//                   while (!job.done()) for (const JobEvent& event : job.wait(0.1)) show(event);
//
// Requests and cancellations wait in a list that the decode thread empties between two steps: a slot is free one step
// after its job was dropped.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "infer/batcher.h"

namespace thimble {

// News of one sample of one of a job's requests.
struct JobEvent {
  std::size_t request = 0;  // its place in the job
  Event event;
};

class Engine;

// Somebody's interest in an answer. When it goes before the answer is whole, the rest is not computed.
class Job {
 public:
  Job(Job&&) noexcept = default;
  Job& operator=(Job&&) = delete;
  ~Job();

  // What came since the last call; nothing when the time is over before something does.
  std::vector<JobEvent> wait(double seconds);
  bool done() const { return left_ == 0; }  // of what wait() returned, all samples have ended

 private:
  friend class Engine;
  struct Mailbox;
  Job(Engine& engine, std::shared_ptr<Mailbox> mailbox, int samples);

  Engine* engine_;
  std::shared_ptr<Mailbox> mailbox_;
  int left_;
};

struct EngineOptions {
  std::int64_t slots = 8;
  std::int64_t queue = 64;  // samples that may wait for a slot
};

// What was done so far, and what is going on.
struct EngineStats {
  std::int64_t steps = 0;
  std::int64_t busy_slot_steps = 0;  // summed over the steps
  std::int64_t active = 0;           // samples that have a slot
  std::int64_t waiting = 0;          // samples that wait for one
};

// The queue is full, or the server is about to end.
class Overloaded : public Error {
 public:
  using Error::Error;
};

class Engine {
 public:
  // Both outlive it.
  Engine(Model& model, const Tokenizer* tokenizer, const EngineOptions& options);
  ~Engine();

  // By any thread. Throws Overloaded, or what check_request throws.
  Job submit(std::vector<Request> requests);

  // Computes until `stop` says so, which is asked between steps and every few milliseconds. Then whatever is left is
  // cancelled. A failure of the whole is thrown; jobs hear of it first.
  void run(const std::function<bool()>& stop);

  // Nobody is accepted from here on; what was accepted goes on.
  void close();
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
  };

  void abandon(std::shared_ptr<Job::Mailbox> mailbox);
  bool take_orders(bool may_wait);
  void start(Submission submission);
  void cancel(const Job::Mailbox& mailbox);
  void deliver(std::vector<Event> events);
  void fail_all(const Error& error);
  void publish_stats(std::int64_t steps, std::int64_t busy_slots);

  EngineOptions options_;
  Batcher batcher_;                                 // the decode thread's
  std::unordered_map<RequestId, Running> running_;  // the decode thread's

  mutable std::mutex mutex_;
  std::condition_variable orders_;
  std::vector<Submission> submissions_;
  std::vector<std::shared_ptr<Job::Mailbox>> abandoned_;
  bool closed_ = false;
  EngineStats stats_;
  std::atomic<std::int64_t> in_flight_ = 0;  // samples accepted and not yet ended
};

}  // namespace thimble
