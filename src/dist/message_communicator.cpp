#include "dist/message_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace thimble {

namespace {

constexpr int kTag = 1;

// One collective on the communication thread: its messages, and the peers it still waits for.
class Exchange {
 public:
  Exchange(Transport& transport, std::string what) : transport_(transport), what_(std::move(what)) {}

  void send(int to, std::span<const std::byte> bytes) {
    add(to, bytes.size(), [&](std::size_t at, std::size_t count) {
      return transport_.send(to, kTag, bytes.subspan(at, count));
    });
  }
  void receive(int from, std::span<std::byte> bytes) {
    add(from, bytes.size(), [&](std::size_t at, std::size_t count) {
      return transport_.receive(from, kTag, bytes.subspan(at, count));
    });
  }

  // Waits until all started messages are done. Polls frequently at first, then with growing sleeps.
  void wait() {
    using namespace std::chrono_literals;
    auto pause = 20us;
    for (int polls = 0; !all_done(); ++polls) {
      if (polls < kQuickPolls) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(pause);
        pause = std::min<std::chrono::microseconds>(pause + pause / 4, 500us);
      }
    }
  }

  // "rank 1 waited 60 s for ranks 0 and 2 in 'gradients 1 of 3, step 7'". Called on the watchdog's
  // thread.
  std::string describe(double seconds) {
    const std::lock_guard lock(mutex_);
    std::vector<int> peers;
    for (const Open& open : open_)
      if (std::ranges::find(peers, open.peer) == peers.end()) peers.push_back(open.peer);
    std::ranges::sort(peers);
    std::string names;
    for (std::size_t i = 0; i < peers.size(); ++i)
      names += fmt::format("{}{}", i == 0 ? "" : i + 1 == peers.size() ? " and " : ", ", peers[i]);
    return fmt::format("rank {} waited {:g} s for rank{} {} in '{}'", transport_.rank(), seconds,
                       peers.size() == 1 ? "" : "s", names.empty() ? "unknown" : names, what_);
  }

 private:
  static constexpr int kQuickPolls = 50;
  struct Open {
    int peer;
    Transport::Message message;
  };

  template <class Start>
  void add(int peer, std::size_t bytes, Start start) {
    for (std::size_t at = 0; at < bytes; at += kLongestMessage) {
      const Transport::Message message = start(at, std::min(kLongestMessage, bytes - at));
      const std::lock_guard lock(mutex_);
      open_.push_back({peer, message});
    }
  }

  bool all_done() {
    std::vector<Open> open;
    {
      const std::lock_guard lock(mutex_);
      open = open_;
    }
    std::erase_if(open, [&](const Open& one) { return transport_.done(one.message); });
    const std::lock_guard lock(mutex_);
    open_ = std::move(open);
    return open_.empty();
  }

  Transport& transport_;
  std::string what_;
  std::mutex mutex_;  // the watchdog reads open_ while the communication thread changes it
  std::vector<Open> open_;
};

class Pending final : public PendingSum {
 public:
  explicit Pending(std::future<void> done) : done_(std::move(done)) {}
  void wait() override { done_.get(); }

 private:
  std::future<void> done_;
};

class MessageCommunicator final : public Communicator {
 public:
  MessageCommunicator(std::function<std::unique_ptr<Transport>()> make, const WaitSettings& settings)
      : settings_(settings) {
    std::promise<void> opened;
    std::future<void> is_open = opened.get_future();
    thread_ = std::thread([this, make = std::move(make), &opened] { communication_thread(make, opened); });
    try {
      is_open.get();
    } catch (...) {
      thread_.join();
      throw;
    }
    watchdog_.emplace(
        settings.timeout_seconds + rank_ * settings.stagger_seconds, [this](const std::string& message) {
          transport_->abort(
              fmt::format("error: {}\nhint: that rank hangs, has died or is slow: raise --rank-timeout, "
                          "or continue from the last checkpoint with --resume",
                          message));
        });
  }

  // Every rank runs this after a normal end. After an error none does, because abort() ends the
  // process.
  ~MessageCommunicator() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }
  double timeout_seconds() const override { return settings_.timeout_seconds; }

  void broadcast(std::span<std::byte> bytes, int root, const std::string& what, Wait wait) override {
    check(root >= 0 && root < size_, "[ranks] a broadcast from rank {}, but there are {} ranks", root, size_);
    queue(what, wait, [this, bytes, root](Exchange& exchange) {
      if (rank_ != root) return exchange.receive(root, bytes);
      for (int to = 0; to < size_; ++to)
        if (to != rank_) exchange.send(to, bytes);
    }).get();
  }

  void all_gather(std::span<const OwnedBytes> parts, const std::string& what, Wait wait) override {
    queue(what, wait, [this, parts](Exchange& exchange) { gather(parts, exchange); }).get();
  }

  std::unique_ptr<PendingSum> start_sum(std::vector<std::span<float>> pieces,
                                        const std::string& what) override {
    return std::make_unique<Pending>(
        queue(what, Wait::watched,
              [this, pieces = std::move(pieces)](Exchange& exchange) { sum(pieces, exchange); }));
  }

  void barrier(const std::string& what, Wait wait) override {
    std::vector<std::byte> here(static_cast<std::size_t>(size_));
    std::vector<OwnedBytes> parts;
    for (int rank = 0; rank < size_; ++rank)
      parts.push_back({rank, std::span(here).subspan(static_cast<std::size_t>(rank), 1)});
    all_gather(parts, what, wait);
  }

  [[noreturn]] void abort(const std::string& message) noexcept override {
    transport_->abort(message);
    std::terminate();  // g++ 12 does not recognize that abort() does not return
  }

 private:
  struct Task {
    std::string what;
    Wait wait;
    std::function<void(Exchange&)> body;
    std::promise<void> done;
  };

  std::future<void> queue(const std::string& what, Wait wait, std::function<void(Exchange&)> body) {
    Task task{what, wait, std::move(body), {}};
    std::future<void> done = task.done.get_future();
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_all();
    return done;
  }

  void communication_thread(const std::function<std::unique_ptr<Transport>()>& make,
                            std::promise<void>& opened) {
    try {
      transport_ = make();
      rank_ = transport_->rank();
      size_ = transport_->size();
      local_rank_ = transport_->local_rank();
      local_size_ = transport_->local_size();
    } catch (...) {
      opened.set_exception(std::current_exception());
      return;
    }
    opened.set_value();
    while (std::optional<Task> task = next()) run(*task);
    try {
      const Watchdog::Watch watch(*watchdog_, [this] {
        return fmt::format("rank {} waited {:g} s for the other ranks in 'shutdown'", rank_,
                           settings_.timeout_seconds);
      });
      transport_->close();
    } catch (const std::exception& error) {
      transport_->abort(fmt::format("error: {}", error.what()));
    }
  }

  std::optional<Task> next() {
    std::unique_lock lock(mutex_);
    wait_until_ready(changed_, lock, [&] { return closing_ || !tasks_.empty(); });
    if (tasks_.empty()) return {};
    std::optional<Task> task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }

  void run(Task& task) {
    Exchange exchange(*transport_, task.what);
    try {
      std::optional<Watchdog::Watch> watch;
      if (task.wait == Wait::watched)
        watch.emplace(*watchdog_, [&exchange, this] { return exchange.describe(settings_.timeout_seconds); });
      task.body(exchange);
      exchange.wait();
      watch.reset();
      task.done.set_value();
    } catch (...) {
      task.done.set_exception(std::current_exception());
    }
  }

  void gather(std::span<const OwnedBytes> parts, Exchange& exchange) const {
    for (const OwnedBytes& part : parts) {
      check(part.rank >= 0 && part.rank < size_, "[ranks] a part of rank {}, but there are {} ranks",
            part.rank, size_);
      if (part.rank != rank_) {
        exchange.receive(part.rank, part.bytes);
        continue;
      }
      for (int to = 0; to < size_; ++to)
        if (to != rank_) exchange.send(to, part.bytes);
    }
  }

  void sum(std::span<const std::span<float>> pieces, Exchange& exchange) {
    std::size_t count = 0;
    for (const std::span<float> piece : pieces) count += piece.size();
    packed_.resize(count);
    std::size_t at = 0;
    for (const std::span<float> piece : pieces) {
      std::ranges::copy(piece, packed_.begin() + static_cast<std::ptrdiff_t>(at));
      at += piece.size();
    }
    reduce_own_chunk(exchange);
    spread_chunks(exchange);
    at = 0;
    for (const std::span<float> piece : pieces) {
      std::copy_n(packed_.begin() + static_cast<std::ptrdiff_t>(at), piece.size(), piece.begin());
      at += piece.size();
    }
  }

  // The chunk that a rank sums.
  std::span<float> chunk(int rank) {
    const std::size_t count = packed_.size(), ranks = static_cast<std::size_t>(size_),
                      r = static_cast<std::size_t>(rank);
    return std::span(packed_).subspan(count * r / ranks, count * (r + 1) / ranks - count * r / ranks);
  }

  void reduce_own_chunk(Exchange& exchange) {
    const std::span<float> own = chunk(rank_);
    received_.resize(own.size() * static_cast<std::size_t>(size_));
    const auto from_rank = [&](int rank) {
      return std::span(received_).subspan(static_cast<std::size_t>(rank) * own.size(), own.size());
    };
    for (int other = 0; other < size_; ++other) {
      if (other == rank_) continue;
      exchange.receive(other, std::as_writable_bytes(from_rank(other)));
      exchange.send(other, std::as_bytes(chunk(other)));
    }
    exchange.wait();
    std::ranges::copy(own, from_rank(rank_).begin());
    std::ranges::copy(from_rank(0), own.begin());
    for (int rank = 1; rank < size_; ++rank) {
      const std::span<const float> summand = from_rank(rank);
      for (std::size_t i = 0; i < own.size(); ++i) own[i] += summand[i];
    }
  }

  void spread_chunks(Exchange& exchange) {
    for (int other = 0; other < size_; ++other) {
      if (other == rank_) continue;
      exchange.receive(other, std::as_writable_bytes(chunk(other)));
      exchange.send(other, std::as_bytes(chunk(rank_)));
    }
    exchange.wait();
  }

  WaitSettings settings_;
  std::unique_ptr<Transport> transport_;  // used only by the communication thread
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  std::vector<float> packed_, received_;  // used only by the communication thread

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool closing_ = false;
  std::thread thread_;
  std::optional<Watchdog> watchdog_;  // destroyed first, because it reads the other members
};

}  // namespace

std::shared_ptr<Communicator> make_message_communicator(std::function<std::unique_ptr<Transport>()> make,
                                                        const WaitSettings& settings) {
  return std::make_shared<MessageCommunicator>(std::move(make), settings);
}

Watchdog::Watchdog(double seconds, std::function<void(const std::string&)> on_stuck)
    : timeout_(seconds), on_stuck_(std::move(on_stuck)), thread_([this] { check_loop(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

// Checks the current wait kChecks times per timeout, so a wait that ends in time does not have to
// wake it. Counting checks instead of seconds ignores the time during which this process itself was
// suspended.
void Watchdog::check_loop() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    changed_.wait_for(lock, timeout_ / kChecks);
    if (!describe_ || ++checks_ <= kChecks) continue;  // the first check may follow immediately
    const std::string message = describe_();
    describe_ = {};
    lock.unlock();
    on_stuck_(message);
    lock.lock();
  }
}

Watchdog::Watch::Watch(Watchdog& dog, std::function<std::string()> describe) : dog_(dog) {
  const std::lock_guard lock(dog_.mutex_);
  dog_.describe_ = std::move(describe);
  dog_.checks_ = 0;
}

Watchdog::Watch::~Watch() {
  const std::lock_guard lock(dog_.mutex_);
  dog_.describe_ = {};
}

}  // namespace thimble
