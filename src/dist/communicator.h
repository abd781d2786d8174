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
// One process alone is the trivial case (alone()). Between processes it is MPI (mpi/, a plugin).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

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
enum class Patience { watched, endless };

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
                         Patience patience = Patience::watched) = 0;
  // The same list of owners and sizes on every rank.
  virtual void all_gather(std::span<const OwnedBytes> parts, const std::string& what,
                          Patience patience = Patience::watched) = 0;
  virtual std::unique_ptr<PendingSum> start_sum(std::vector<std::span<float>> pieces,
                                                const std::string& what) = 0;
  virtual void barrier(const std::string& what, Patience patience = Patience::watched) = 0;

  // Says it on stderr and ends the processes of all ranks, this one with code 1: for what one rank alone knows.
  [[noreturn]] virtual void abort(const std::string& message) noexcept = 0;
};

// A communicator with one rank.
std::shared_ptr<Communicator> alone();

}  // namespace thimble
