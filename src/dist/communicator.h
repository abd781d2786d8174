// Collectives between the processes that train one model together.
//
// A rank is one process. Except for rank and size, every method is a collective: all ranks must
// call the same ones in the same order, each from one thread. `what` describes the call in
// messages: "gradients 3 of 7, step 12". If a rank waits for another longer than the timeout, it
// reports this text and all ranks exit (message_communicator.h).
//
//   broadcast    copies the root's bytes to all ranks
//   all_gather   sends every part from the rank that owns it to all ranks
//   start_sum    starts a sum of floats over the ranks, completed by wait(). Summands are added in
//                the order of ranks, so every rank gets the same bits, in any order of arrival
//   barrier      waits until every rank has called it
//
// A single process uses single_rank(). Several processes use MPI, through a plugin (mpi/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tensor/device.h"

namespace thimble {

// Bytes that one rank has and the others need.
struct OwnedBytes {
  int rank = 0;
  std::span<std::byte> bytes;
};

// A sum in progress. Its floats must not be accessed until wait() returns.
class PendingSum {
 public:
  virtual ~PendingSum() = default;
  virtual void wait() = 0;
};

// How long to wait for another rank: until the timeout, or without a limit (while rank 0 builds
// data).
enum class Wait { watched, forever };

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;  // among the ranks on this machine
  virtual int local_size() const = 0;
  bool first() const { return rank() == 0; }
  virtual double timeout_seconds() const = 0;  // longest wait for another rank

  virtual void broadcast(std::span<std::byte> bytes, int root, const std::string& what,
                         Wait wait = Wait::watched) = 0;
  // Every rank must pass the same list of owners and sizes.
  virtual void all_gather(std::span<const OwnedBytes> parts, const std::string& what,
                          Wait wait = Wait::watched) = 0;
  virtual std::unique_ptr<PendingSum> start_sum(std::vector<std::span<float>> pieces,
                                                const std::string& what) = 0;
  virtual void barrier(const std::string& what, Wait wait = Wait::watched) = 0;

  // Prints the message to stderr and ends the processes of all ranks, this one with exit code 1.
  // For errors that occurred on one rank only.
  [[noreturn]] virtual void abort(const std::string& message) noexcept = 0;
};

// A communicator with one rank.
std::shared_ptr<Communicator> single_rank();

// Sums between the GPUs of all ranks with NCCL, a plugin (nccl/).
//
// Work is queued, like all work on a device: sum() and gather() start after everything queued
// before them and run concurrently with what is queued after them; join() makes the device's queue
// wait for them. All three may be captured (begin_capture). All ranks must queue the same work in
// the same order.
//
// For a given number of ranks on given machines a sum always has the same bits: NCCL is restricted
// to one algorithm (ring), whose order of summands does not depend on timing.

// Floats in device memory that one rank has and the others need.
struct OwnedFloats {
  int rank = 0;
  std::span<float> values;
};

class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual void sum(std::span<const std::span<float>> pieces) = 0;  // sums device memory in place
  virtual void gather(std::span<const OwnedFloats> parts) = 0;     // copies each part to all ranks
  virtual void join() = 0;
  virtual void check_errors() = 0;  // throws if a queued collective has failed
};

// Version of the interface between the binary and the plugins. Increase it when the meaning of a
// member changes.
inline constexpr std::uint32_t kDistAbi = 1;

struct NcclPlugin {
  std::uint32_t abi;
  const char* version;       // the version of thimble
  std::string (*library)();  // "NCCL 2.27.7"
  std::string (*make_id)();  // called by rank 0; all ranks join with its result
  std::unique_ptr<DeviceCommunicator> (*join)(const std::string& id, int rank, int size,
                                              const std::shared_ptr<DeviceRuntime>& runtime);
};

// Exchange of texts, small records and errors between ranks.

// Replaces `text` on all ranks with that of rank 0.
void share_text(Communicator& ranks, std::string& text, const std::string& what, Wait wait = Wait::watched);

// The texts of all ranks, indexed by rank.
std::vector<std::string> gather_texts(Communicator& ranks, std::string text, const std::string& what,
                                      Wait wait = Wait::watched);

// The records of all ranks, indexed by rank. Record is a plain struct.
template <class Record>
requires std::is_trivially_copyable_v<Record> std::vector<Record> gather_records(Communicator& ranks,
                                                                                 const Record& own,
                                                                                 const std::string& what) {
  std::vector<Record> all(static_cast<std::size_t>(ranks.size()), own);
  std::vector<OwnedBytes> parts;
  for (int rank = 0; rank < ranks.size(); ++rank)
    parts.push_back(
        {rank, std::as_writable_bytes(std::span(all).subspan(static_cast<std::size_t>(rank), 1))});
  ranks.all_gather(parts, what);
  return all;
}

// Thrown on every rank if an action failed on any of them. All ranks exit, and only rank 0 reports
// the error. It does not derive from Error, so that handlers of Error do not report it once per
// rank.
struct CollectiveFailure {
  std::exception_ptr error;  // on rank 0; nullptr on the others
};

// Runs the action on every rank, then exchanges the outcomes and throws CollectiveFailure if one
// failed. The action must not call a collective. With a single rank, only runs the action.
void on_all_ranks(Communicator& ranks, const std::string& what, const std::function<void()>& action,
                  Wait wait = Wait::watched);

// Checks that named values are equal on all ranks. If not, throws CollectiveFailure with the first
// rank that differs from rank 0, the name, and for texts of several lines the line.
void check_same(Communicator& ranks, const std::vector<std::pair<std::string, std::string>>& facts,
                const std::string& hint);

// Reports an error that occurred on this rank only, and ends all ranks.
[[noreturn]] void abort_all(Communicator& ranks, const Error& error) noexcept;

// Runs a program's body on all ranks and returns the exit code of rank 0. An error known to all
// ranks is rethrown on rank 0 only; an error known to one rank ends all of them
// (Communicator::abort).
int on_ranks(Communicator& ranks, const std::function<int()>& body);

}  // namespace thimble
