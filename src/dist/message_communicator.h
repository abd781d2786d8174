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

#include <functional>
#include <memory>

#include "dist/communicator.h"
#include "dist/transport.h"

namespace thimble {

struct WaitSettings {
  double timeout_seconds = 600;
  // Rank r speaks this much later than rank r - 1, so that one speaks for all who wait.
  double stagger_seconds = 0.25;
};

// `make` is called by the communicator's own thread; what it throws is thrown here.
std::shared_ptr<Communicator> make_message_communicator(std::function<std::unique_ptr<Transport>()> make,
                                                        const WaitSettings& settings);

}  // namespace thimble
