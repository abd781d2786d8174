// Collectives made of messages, with results that depend on nothing but the values and the number of ranks.
//
// A sum over R ranks: everyone cuts its floats into R chunks and sends chunk j to rank j, which adds what it gets in the
// order of ranks, 0 first, and sends the sum to all. 2 (R - 1) messages a rank and 2 (R - 1) / R of the floats each way:
// as few as any algorithm needs. MPI's own Allreduce is not used, because its order of summands may differ from call to
// call (it depends on sizes, on the machine and on who comes first).
//
// A thread of its own sends and receives, one collective after the other in the order of the calls; the caller goes on
// computing while its sums are on their way. Waiting is looking and sleeping, not spinning: more ranks than cores still
// leave the cores to those who compute.
//
// No call waits for another rank longer than it was told to: the watchdog then names both and ends all (Transport::abort).
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "dist/communicator.h"

namespace thimble {

// Messages between two ranks: all that a plugin for processes has to bring. What is made of them (sums in a fixed
// order, gathering, the watchdog) is message_communicator.h's.
//
// A transport is made, used and closed by one thread; only abort() may come from another. Sends and receives are
// started and asked after, never waited for: whoever waits decides how.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;
  virtual int local_size() const = 0;

  // The memory stays as it is until the message is done. Messages between two ranks with one tag arrive in order; a
  // message of another size than the memory for it is an Error.
  using Message = std::uint64_t;
  virtual Message send(int to, int tag, std::span<const std::byte> bytes) = 0;
  virtual Message receive(int from, int tag, std::span<std::byte> bytes) = 0;
  virtual bool done(Message message) = 0;  // asked until it is true, then no more

  virtual void close() = 0;  // all ranks, when nothing is on its way
  [[noreturn]] virtual void abort(const std::string& message) noexcept = 0;
};

// No message is longer: MPI counts in int.
inline constexpr std::size_t kLongestMessage = std::size_t{1} << 30;

struct WaitSettings {
  double timeout_seconds = 600;
  // Rank r speaks this much later than rank r - 1, so that one speaks for all who wait.
  double stagger_seconds = 0.25;
};

// `make` is called by the communicator's own thread; what it throws is thrown here.
std::shared_ptr<Communicator> make_message_communicator(std::function<std::unique_ptr<Transport>()> make,
                                                        const WaitSettings& settings);

// A thread that looks after a wait: one that takes too long is told by name, once.
//
//   Watchdog watchdog(60, [](const std::string& message) { ... });
//   {
//     const Watchdog::Watch watch(watchdog, [] { return "rank 0 waits for rank 2 in ..."; });
//     ... wait ...
//   }
class Watchdog {
 public:
  // on_stuck is called by the watchdog's thread.
  Watchdog(double seconds, std::function<void(const std::string& message)> on_stuck);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // While it lives, the wait counts. `describe` is called by the watchdog's thread. One at a time.
  class Watch {
   public:
    Watch(Watchdog& dog, std::function<std::string()> describe);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    Watchdog& dog_;
  };

 private:
  void look();

  const std::chrono::duration<double> most_;
  std::function<void(const std::string&)> on_stuck_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<std::string()> describe_;  // empty: nobody waits
  static constexpr int kLooks = 8;
  int looks_ = 0;  // since the wait began
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace thimble
