// libthimble_mpi.so and libthimble_nccl.so, opened on demand: without them everything else works (base/plugin.h).
#pragma once

#include <memory>
#include <string>

#include "dist/communicator.h"
#include "dist/device_communicator.h"
#include "dist/launch.h"
#include "dist/transport.h"

namespace thimble {

struct MpiPlugin {
  std::uint32_t abi;
  const char* version;                   // of thimble
  std::string (*library)();              // "Open MPI v4.1.4"
  std::unique_ptr<Transport> (*open)();  // joins the others
};

// The ranks that this process was started with: alone, or joined by MPI. A launcher that started several without a
// plugin to join them is an Error, and so is one that MPI does not know of.
std::shared_ptr<Communicator> join_ranks(const Launch& launch, double timeout_seconds);

// The cards of all ranks, for more than one of them. nullptr: nothing to sum between. THIMBLE_NCCL=1 asks for it with one
// rank, too.
std::shared_ptr<DeviceCommunicator> join_cards(Communicator& ranks,
                                               const std::shared_ptr<DeviceRuntime>& runtime);

// For `thimble doctor`: the library's name and version, or why there is none.
struct PluginState {
  bool available = false;
  std::string text;
};
PluginState mpi_state();
PluginState nccl_state();

}  // namespace thimble
