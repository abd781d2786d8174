// libthimble_mpi.so and libthimble_nccl.so, opened on demand: without them everything else works (base/plugin.h).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "dist/communicator.h"
#include "dist/message_communicator.h"

namespace thimble {

// How this process was started: by itself, or as one of several by mpirun or srun. Read from the environment, before any
// library is opened.
struct Launch {
  std::string by;  // "mpirun", "srun"; empty: by itself
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // on this machine; local_size 1 where it is not known

  bool several() const { return size > 1; }
};

// `variable` returns a variable's value, nullptr where it is not set: std::getenv unless a test says otherwise.
Launch read_launch(const std::function<const char*(const char*)>& variable);
Launch read_launch();

// How many threads one rank should use, where nobody said: its share of the machine's processors. `allowed` are those
// this process may use. A launcher that binds its processes has divided them already.
int threads_of_rank(const Launch& launch, int allowed, int logical);

struct MpiPlugin {
  std::uint32_t abi;
  const char* version;                   // of thimble
  std::string (*library)();              // "Open MPI v4.1.4"
  std::unique_ptr<Transport> (*open)();  // joins the others
};

// The ranks that this process was started with: alone, or joined by MPI. A launcher that started several without a
// plugin to join them is an Error, and so is one that MPI does not know of.
std::shared_ptr<Communicator> join_ranks(const Launch& launch, double timeout_seconds);

// The GPUs of all ranks, for more than one of them. nullptr: nothing to sum between. THIMBLE_NCCL=1 asks for it with one
// rank, too.
std::shared_ptr<DeviceCommunicator> join_gpus(Communicator& ranks,
                                               const std::shared_ptr<DeviceRuntime>& runtime);

// For `thimble doctor`: the library's name and version, or why there is none.
struct PluginState {
  bool available = false;
  std::string text;
};
PluginState mpi_state();
PluginState nccl_state();

}  // namespace thimble
