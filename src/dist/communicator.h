// The processes that train one model together, as the loop and the optimizers see them: who am I, and what do we know
// together.
//
// A rank is one process. Everything but the four numbers is a collective: all ranks call the same ones in the same
// order, from one thread each. `what` names the call for people: "gradients 3 of 7, step 12". A rank that waits longer
// for another than it was told to wait says so by that name, and all ranks end (message_communicator.h).
//
//   broadcast    everyone has the root's bytes afterwards
//   all_gather   every part is filled in by the rank that owns it; afterwards everyone has all of them
//   start_sum    the sum over ranks of floats, begun now, finished by wait(). Rank 0's value is the first summand, rank
//                1's the second: the same bits whatever comes first, and on every rank
//   barrier      nobody goes on before everyone is here
//
// One process alone is the trivial case (single_rank()). Between processes it is MPI (mpi/, a plugin).
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

// Bytes that a rank has and the others want.
struct OwnedBytes {
  int rank = 0;
  std::span<std::byte> bytes;
};

// A sum on its way. Its floats belong to the communicator until wait() returns.
class PendingSum {
 public:
  virtual ~PendingSum() = default;
  virtual void wait() = 0;
};

// How long a rank waits for another: no longer than the watchdog allows, or as long as it takes (rank 0 builds data).
enum class Wait { watched, forever };

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;  // among those on this machine
  virtual int local_size() const = 0;
  bool first() const { return rank() == 0; }
  virtual double timeout_seconds() const = 0;  // how long one waits for another

  virtual void broadcast(std::span<std::byte> bytes, int root, const std::string& what,
                         Wait wait = Wait::watched) = 0;
  // The same list of owners and sizes on every rank.
  virtual void all_gather(std::span<const OwnedBytes> parts, const std::string& what,
                          Wait wait = Wait::watched) = 0;
  virtual std::unique_ptr<PendingSum> start_sum(std::vector<std::span<float>> pieces,
                                                const std::string& what) = 0;
  virtual void barrier(const std::string& what, Wait wait = Wait::watched) = 0;

  // Says it on stderr and ends the processes of all ranks, this one with code 1: for what one rank alone knows.
  [[noreturn]] virtual void abort(const std::string& message) noexcept = 0;
};

// A communicator with one rank.
std::shared_ptr<Communicator> single_rank();

// Sums between the GPUs of all ranks: NCCL, a plugin (nccl/).
//
// Work is queued, like everything on a device: sum() and gather() see what was queued before them and run beside what
// is queued after them; join() makes the device's queue wait for them. All three may be recorded (begin_capture). All
// ranks queue the same in the same order.
//
// For one number of ranks on one set of machines a sum has the same bits every time: NCCL is held to one algorithm (a
// ring), whose order does not depend on time.
// Floats of the device's memory that a rank has and the others want.
struct OwnedFloats {
  int rank = 0;
  std::span<float> values;
};

class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual void sum(std::span<const std::span<float>> pieces) = 0;  // of the device's memory, in place
  virtual void gather(std::span<const OwnedFloats> parts) = 0;     // everyone gets what each rank owns
  virtual void join() = 0;
  virtual void check_errors() = 0;  // what went wrong meanwhile is thrown here
};

// What the plugins share with us: raised when a meaning changes.
inline constexpr std::uint32_t kDistAbi = 1;

struct NcclPlugin {
  std::uint32_t abi;
  const char* version;       // of thimble
  std::string (*library)();  // "NCCL 2.27.7"
  std::string (*make_id)();  // by rank 0; everyone joins with its bytes
  std::unique_ptr<DeviceCommunicator> (*join)(const std::string& id, int rank, int size,
                                              const std::shared_ptr<DeviceRuntime>& runtime);
};

// What ranks tell each other besides floats: texts, small records, and that something went wrong.
// The first rank's text, on all ranks.
void share_text(Communicator& ranks, std::string& text, const std::string& what, Wait wait = Wait::watched);

// Everyone's text, by rank.
std::vector<std::string> gather_texts(Communicator& ranks, std::string text, const std::string& what,
                                      Wait wait = Wait::watched);

// Everyone's record of plain numbers, by rank.
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

// Thrown on every rank when something failed on one of them: all know, all end, the first one says it. Not an Error:
// whoever catches it has to decide who speaks (on_ranks).
struct FailedTogether {
  std::exception_ptr error;  // on the first rank; on the others nullptr
};

// Runs the action on every rank, then asks everyone how it went. The action holds no collective. With one rank it is
// just run.
void on_all_ranks(Communicator& ranks, const std::string& what, const std::function<void()>& action,
                  Wait wait = Wait::watched);

// What all ranks must agree on, by name. A difference is a FailedTogether that names the first rank that differs from
// rank 0, the name, and for texts of many lines the line.
void check_same(Communicator& ranks, const std::vector<std::pair<std::string, std::string>>& facts,
                const std::string& hint);

// Says an error that one rank alone knows of, and ends all ranks.
[[noreturn]] void abort_all(Communicator& ranks, const Error& error) noexcept;

// A program's body on all ranks. The first rank's exit code is the program's; an error that all know of is thrown by the
// first rank alone, an error that one rank alone knows of ends all of them (Communicator::abort).
int on_ranks(Communicator& ranks, const std::function<int()>& body);

}  // namespace thimble
