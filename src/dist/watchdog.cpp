#include "dist/watchdog.h"

#include <utility>

namespace thimble {

Watchdog::Watchdog(double seconds, std::function<void(const std::string&)> on_stuck)
    : most_(seconds), on_stuck_(std::move(on_stuck)), thread_([this] { look(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

// It looks a few times in the span that it allows; nobody has to wake it for a wait that ends in time. Looks are counted,
// not seconds: a process that was stopped itself, and goes on, has not waited for anybody.
void Watchdog::look() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    changed_.wait_for(lock, most_ / kLooks);
    if (!describe_ || ++looks_ <= kLooks) continue;  // the first may come at once
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
  dog_.looks_ = 0;
}

Watchdog::Watch::~Watch() {
  const std::lock_guard lock(dog_.mutex_);
  dog_.describe_ = {};
}

}  // namespace thimble
