// The plugins libthimble_mpi.so and libthimble_nccl.so, opened on demand (base/plugin.h).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "dist/communicator.h"
#include "dist/message_communicator.h"

namespace thimble {

// How this process was started: alone, or as one of several by mpirun or srun. Read from the
// environment, before any library is opened.
struct Launch {
  std::string by;  // "mpirun", "srun"; empty: started alone
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // on this machine; local_size is 1 if unknown

  bool several() const { return size > 1; }
};

// `variable` returns the value of an environment variable, or nullptr; tests pass a replacement of
// std::getenv.
Launch read_launch(const std::function<const char*(const char*)>& variable);
Launch read_launch();

// The default number of threads of a rank: its share of the machine's processors. `allowed` is the
// number of CPUs this process may use, `logical` the number of the machine. If the launcher binds
// processes to CPUs, `allowed` is already this rank's share.
int threads_of_rank(const Launch& launch, int allowed, int logical);

struct MpiPlugin {
  std::uint32_t abi;
  const char* version;                   // the version of thimble
  std::string (*library)();              // "Open MPI v4.1.4"
  std::unique_ptr<Transport> (*open)();  // joins the other ranks
};

// The ranks that this process was started with: one, or several joined by MPI. Throws an Error if a
// launcher started several but the plugin is missing, or MPI reports another number of ranks.
std::shared_ptr<Communicator> join_ranks(const Launch& launch, double timeout_seconds);

// Joins the GPUs of all ranks. Returns nullptr on the CPU, and with one rank unless
// THIMBLE_NCCL=1.
std::shared_ptr<DeviceCommunicator> join_gpus(Communicator& ranks,
                                              const std::shared_ptr<DeviceRuntime>& runtime);

// For `thimble doctor`: the library's name and version, or why it is unavailable.
struct PluginState {
  bool available = false;
  std::string text;
};
PluginState mpi_state();
PluginState nccl_state();

}  // namespace thimble
