// Messages between two ranks: all that a plugin for processes has to bring. What is made of them (sums in a fixed
// order, gathering, the watchdog) is message_communicator.h's.
//
// A transport is made, used and closed by one thread; only abort() may come from another. Sends and receives are
// started and asked after, never waited for: whoever waits decides how.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace thimble {

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

}  // namespace thimble
