// A thread that looks after a wait: one that takes too long is told by name, once.
//
//   Watchdog watchdog(60, [](const std::string& message) { ... });
//   {
//     const Watchdog::Watch watch(watchdog, [] { return "rank 0 waits for rank 2 in ..."; });
//     ... wait ...
//   }
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace thimble {

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
