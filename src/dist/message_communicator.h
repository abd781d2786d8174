// Collectives built on point-to-point messages. Their results depend only on the values and the
// number of ranks.
//
// A sum over R ranks: every rank cuts its floats into R chunks and sends chunk j to rank j, which
// adds the chunks in the order of ranks and sends the sum to all. This takes 2 (R - 1) messages per
// rank and transfers 2 (R - 1) / R of the floats in each direction, the minimum for any algorithm.
// MPI_Allreduce is not used because its order of summands may change from call to call, with the
// sizes, the machine and the order of arrival.
//
// A communication thread runs the collectives one after the other in call order, so that the caller
// can compute while its sums are in progress. It waits by polling with sleeps instead of spinning,
// so that with more ranks than cores the cores stay free for computation.
//
// If a call waits for another rank longer than its timeout, the watchdog reports both ranks and
// ends all ranks (Transport::abort).
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

// Point-to-point messages between ranks: all that a plugin has to implement. The collectives and
// the watchdog are built on it here.
//
// A transport is created, used and closed by one thread; only abort() may be called from another.
// Sends and receives are non-blocking: they are started and then polled with done().
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;
  virtual int local_size() const = 0;

  // The memory must stay valid and unchanged until the message is done. Messages between two ranks
  // with the same tag arrive in order. A message of a different size than the receiver's memory is
  // an Error.
  using Message = std::uint64_t;
  virtual Message send(int to, int tag, std::span<const std::byte> bytes) = 0;
  virtual Message receive(int from, int tag, std::span<std::byte> bytes) = 0;
  virtual bool done(Message message) = 0;  // poll until it returns true, then do not call it again

  virtual void close() = 0;  // called by all ranks when no message is in progress
  [[noreturn]] virtual void abort(const std::string& message) noexcept = 0;
};

// The maximum size of a message: MPI counts bytes in an int.
inline constexpr std::size_t kLongestMessage = std::size_t{1} << 30;

struct WaitSettings {
  double timeout_seconds = 600;
  // Rank r reports a timeout this much later than rank r - 1, so that only one waiting rank reports
  // it.
  double stagger_seconds = 0.25;
};

// `make` is called on the communicator's own thread. Its exceptions are rethrown to the caller.
std::shared_ptr<Communicator> make_message_communicator(std::function<std::unique_ptr<Transport>()> make,
                                                        const WaitSettings& settings);

// A thread that monitors waits and reports one that takes too long, once.
//
//   Watchdog watchdog(60, [](const std::string& message) { ... });
//   {
//     const Watchdog::Watch watch(watchdog, [] { return "rank 0 waits for rank 2 in ..."; });
//     ... wait ...
//   }
class Watchdog {
 public:
  // on_stuck is called on the watchdog's thread.
  Watchdog(double seconds, std::function<void(const std::string& message)> on_stuck);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Monitors the wait during its lifetime. `describe` is called on the watchdog's thread. Only one
  // Watch may exist at a time.
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
  void check_loop();

  const std::chrono::duration<double> timeout_;
  std::function<void(const std::string&)> on_stuck_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<std::string()> describe_;  // empty: no wait to monitor
  static constexpr int kChecks = 8;
  int checks_ = 0;  // since the wait began
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace thimble
