#include "serve/engine.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace thimble {

namespace {

constexpr auto kIdleWait = std::chrono::milliseconds(50);

// Appends the newer event of a sample to an older one.
void join(Event& event, Event&& newer) {
  event.text += newer.text;
  std::ranges::move(newer.tokens, std::back_inserter(event.tokens));
  if (!newer.prompt.empty()) event.prompt = std::move(newer.prompt);
  if (!newer.finish) return;
  event.finish = newer.finish;
  event.usage = newer.usage;
  event.stop_string = std::move(newer.stop_string);
  event.error = std::move(newer.error);
}

}  // namespace

struct Job::Mailbox {
  std::mutex mutex;
  std::condition_variable arrived;
  std::vector<JobEvent> events;

  void add(JobEvent next) {
    const std::lock_guard lock(mutex);
    const auto unread = std::ranges::find_if(events, [&](const JobEvent& event) {
      return event.request == next.request && event.event.sample == next.event.sample;
    });
    if (unread == events.end())
      events.push_back(std::move(next));
    else
      join(unread->event, std::move(next.event));
  }
};

Job::Job(Engine& engine, std::shared_ptr<Mailbox> mailbox, int samples)
    : engine_(&engine), mailbox_(std::move(mailbox)), left_(samples) {}

Job::~Job() {
  if (mailbox_ && !done()) engine_->abandon(std::move(mailbox_));
}

std::vector<JobEvent> Job::wait(double seconds) {
  std::unique_lock lock(mailbox_->mutex);
  mailbox_->arrived.wait_for(lock, std::chrono::duration<double>(seconds),
                             [&] { return !mailbox_->events.empty(); });
  std::vector<JobEvent> events = std::exchange(mailbox_->events, {});
  for (const JobEvent& event : events)
    if (event.event.finish) --left_;
  return events;
}

Engine::Engine(Model& model, const Tokenizer* tokenizer, const EngineOptions& options)
    : options_(options), batcher_(model, tokenizer, {.slots = options.slots}) {}

Engine::~Engine() = default;

Job Engine::submit(std::vector<Request> requests) {
  int samples = 0;
  for (const Request& request : requests) {
    check_request(request, batcher_.model().config(), batcher_.tokenizer());
    samples += request.samples;
  }
  const std::int64_t most = options_.slots + options_.queue;
  check(samples <= most, Field{"n"},
        "n times the number of prompts must be at most {} (slots plus queue), got {}", most, samples);
  auto mailbox = std::make_shared<Job::Mailbox>();
  {
    const std::lock_guard lock(mutex_);
    if (closed_) throw Overloaded("the server is shutting down");
    if (in_flight_ + samples > most)
      throw Overloaded(fmt::format("slots and queue have room for {} answers, and {} are in progress", most,
                                   in_flight_.load()));
    in_flight_ += samples;
    submissions_.push_back({mailbox, std::move(requests)});
  }
  wakeup_.notify_one();
  return {*this, std::move(mailbox), samples};
}

void Engine::abandon(std::shared_ptr<Job::Mailbox> mailbox) {
  {
    const std::lock_guard lock(mutex_);
    abandoned_.push_back(std::move(mailbox));
  }
  wakeup_.notify_one();
}

void Engine::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

bool Engine::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  // Clamped because `active` is from the last step.
  stats.waiting = std::max<std::int64_t>(in_flight_ - stats.active, 0);
  return stats;
}

void Engine::run(const std::function<bool()>& stop) {
  try {
    while (!stop()) {
      process_queue(!batcher_.busy());
      if (!batcher_.busy()) continue;
      const auto busy = static_cast<std::int64_t>(batcher_.active() + batcher_.waiting());
      deliver(batcher_.step());
      publish_stats(1, std::min(busy, batcher_.slots()));
    }
  } catch (const std::exception& error) {
    close();
    process_queue(false);
    cancel_all(Error(error.what()));
    throw;
  }
  close();
  process_queue(false);
  cancel_all(std::nullopt);
}

// Starts queued requests and cancels abandoned ones. Returns whether there were any.
bool Engine::process_queue(bool may_wait) {
  std::vector<Submission> submissions;
  std::vector<std::shared_ptr<Job::Mailbox>> abandoned;
  {
    std::unique_lock lock(mutex_);
    const auto has_work = [&] { return !submissions_.empty() || !abandoned_.empty(); };
    if (may_wait) wakeup_.wait_for(lock, kIdleWait, has_work);
    submissions.swap(submissions_);
    abandoned.swap(abandoned_);
  }
  const bool some = !submissions.empty() || !abandoned.empty();
  for (Submission& submission : submissions) start(std::move(submission));
  for (const auto& mailbox : abandoned) cancel(*mailbox);
  if (some) publish_stats(0, 0);
  return some;
}

void Engine::start(Submission submission) {
  for (std::size_t i = 0; i < submission.requests.size(); ++i) {
    const int samples = submission.requests[i].samples;
    const bool scored = submission.requests[i].logprobs != kNoLogprobs;
    const RequestId id = batcher_.submit(std::move(submission.requests[i]));
    running_.emplace(id, Running{submission.mailbox, i, samples, scored});
  }
}

void Engine::cancel(const Job::Mailbox& mailbox) {
  std::vector<RequestId> ids;
  for (const auto& [id, running] : running_)
    if (running.mailbox.get() == &mailbox) ids.push_back(id);
  for (const RequestId id : ids) deliver(batcher_.cancel(id));
}

void Engine::deliver(std::vector<Event> events) {
  for (Event& event : events) {
    const auto found = running_.find(event.request);
    if (found == running_.end()) continue;
    Running& running = found->second;
    const auto mailbox = running.mailbox;
    const bool ended = event.finish.has_value();
    // Decremented before the event is delivered, so that a client that received its answer can
    // submit the next request without being rejected.
    if (ended) --in_flight_;
    if (!running.scored) event.tokens.clear();
    mailbox->add({running.request, std::move(event)});
    mailbox->arrived.notify_one();
    if (ended && --running.samples_left == 0) running_.erase(found);
  }
}

void Engine::cancel_all(const std::optional<Error>& error) {
  std::vector<RequestId> ids;
  ids.reserve(running_.size());
  for (const auto& [id, running] : running_) ids.push_back(id);
  for (const RequestId id : ids) {
    std::vector<Event> events = batcher_.cancel(id);
    for (Event& event : events) event.error = error;
    deliver(std::move(events));
  }
}

void Engine::publish_stats(std::int64_t steps, std::int64_t busy_slots) {
  const std::lock_guard lock(mutex_);
  stats_.active = static_cast<std::int64_t>(batcher_.active());
  stats_.steps += steps;
  stats_.busy_slot_steps += busy_slots;
}

}  // namespace thimble
