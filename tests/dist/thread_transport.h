// Ranks as threads of one process, for tests. Messages go through a shared mailbox.
#pragma once

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "dist/message_communicator.h"

namespace thimble {

struct Mailbox {
  std::mutex mutex;
  // By source, destination and tag.
  std::map<std::tuple<int, int, int>, std::deque<std::vector<std::byte>>> messages;
  std::vector<std::string> aborted;
  std::condition_variable changed;
  int closed = 0;
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(Mailbox& box, int rank, int size) : box_(box), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return rank_; }
  int local_size() const override { return size_; }

  Message send(int to, int tag, std::span<const std::byte> bytes) override {
    const std::lock_guard lock(box_.mutex);
    box_.messages[{rank_, to, tag}].emplace_back(bytes.begin(), bytes.end());
    open_[++last_] = {};
    return last_;
  }
  Message receive(int from, int tag, std::span<std::byte> bytes) override {
    open_[++last_] = {{from, rank_, tag}, bytes, false};
    return last_;
  }
  bool done(Message message) override {
    Receive& receive = open_.at(message);
    // In order: an earlier receive of the same pair gets its message first.
    for (auto& [earlier, other] : open_)
      if (earlier < message && !other.done && !receive.done && other.key == receive.key && !done(earlier))
        return false;
    if (!receive.done) {
      const std::lock_guard lock(box_.mutex);
      auto& messages = box_.messages[receive.key];
      if (messages.empty()) return false;
      check(messages.front().size() == receive.bytes.size(), "got a message of {} bytes, expected {}",
            messages.front().size(), receive.bytes.size());
      std::memcpy(receive.bytes.data(), messages.front().data(), receive.bytes.size());
      messages.pop_front();
      receive.done = true;
    }
    return true;
  }
  void close() override {}
  // A thread cannot end the others, so the message is recorded for the test.
  [[noreturn]] void abort(const std::string& message) noexcept override {
    {
      const std::lock_guard lock(box_.mutex);
      box_.aborted.push_back(message);
    }
    box_.changed.notify_all();
    while (true) std::this_thread::sleep_for(std::chrono::hours(1));
  }

 private:
  struct Receive {
    std::tuple<int, int, int> key;
    std::span<std::byte> bytes;
    bool done = true;  // true for sends: the message is in the mailbox
  };

  Mailbox& box_;
  int rank_, size_;
  Message last_ = 0;
  std::map<Message, Receive> open_;
};

// Calls body(communicator) on every rank, each on its own thread.
inline void on_threads(int size, const std::function<void(Communicator&)>& body,
                       const WaitSettings& settings = {}) {
  Mailbox box;
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const auto ranks = make_message_communicator(
            [&] { return std::make_unique<ThreadTransport>(box, rank, size); }, settings);
        body(*ranks);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace thimble
