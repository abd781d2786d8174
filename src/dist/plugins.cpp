#include "dist/plugins.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/machine.h"
#include "base/plugin.h"
#include "dist/communicator.h"
#include "dist/message_communicator.h"

namespace thimble {

namespace {

using Variable = std::function<const char*(const char*)>;

// The variable as a number; `otherwise` if it is not set or not a non-negative number.
int number(const Variable& variable, const char* name, int otherwise) {
  const char* text = variable(name);
  if (!text) return otherwise;
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, problem] = std::from_chars(text, end, value);
  return problem == std::errc() && stop == end && value >= 0 ? value : otherwise;
}

// "4(x2),3": four tasks on each of two machines, three on a third. Returns the first number, even
// if the machines differ.
int tasks_here(const char* text) {
  int value = 0;
  if (text) std::from_chars(text, text + std::strlen(text), value);
  return std::max(1, value);
}

Launch checked(Launch launch) {
  const bool sane = launch.size > 1 && launch.rank < launch.size;
  if (!sane) return {};
  if (launch.local_rank >= launch.local_size) launch.local_rank = 0, launch.local_size = 1;
  return launch;
}

}  // namespace

Launch read_launch(const Variable& variable) {
  if (variable("OMPI_COMM_WORLD_SIZE"))
    return checked({.by = "mpirun",
                    .rank = number(variable, "OMPI_COMM_WORLD_RANK", 0),
                    .size = number(variable, "OMPI_COMM_WORLD_SIZE", 1),
                    .local_rank = number(variable, "OMPI_COMM_WORLD_LOCAL_RANK", 0),
                    .local_size = number(variable, "OMPI_COMM_WORLD_LOCAL_SIZE", 1)});
  // The variables of the step, not of the job: a batch script that runs one thimble process also
  // has SLURM_NTASKS.
  if (variable("SLURM_STEP_NUM_TASKS"))
    return checked({.by = "srun",
                    .rank = number(variable, "SLURM_PROCID", 0),
                    .size = number(variable, "SLURM_STEP_NUM_TASKS", 1),
                    .local_rank = number(variable, "SLURM_LOCALID", 0),
                    .local_size = tasks_here(variable("SLURM_STEP_TASKS_PER_NODE"))});
  // Hydra: the mpirun of MPICH and Intel MPI.
  if (variable("PMI_SIZE"))
    return checked({.by = "mpirun",
                    .rank = number(variable, "PMI_RANK", 0),
                    .size = number(variable, "PMI_SIZE", 1),
                    .local_rank = number(variable, "MPI_LOCALRANKID", 0),
                    .local_size = number(variable, "MPI_LOCALNRANKS", 1)});
  return {};
}

Launch read_launch() {
  return read_launch(std::getenv);
}

int threads_of_rank(const Launch& launch, int allowed, int logical) {
  const bool bound = allowed * launch.local_size <= logical;
  return std::max(1, bound ? allowed : allowed / launch.local_size);
}

namespace {

PluginName mpi_name() {
  return {.called = "MPI",
          .file = "libthimble_mpi.so",
          .variable = "THIMBLE_MPI_PLUGIN",
          .entry = "thimble_mpi_plugin",
          .build = "install Open MPI (libopenmpi-dev, openmpi-bin) and build again",
          .needs = "the plugin needs Open MPI's libmpi.so"};
}

PluginName nccl_name() {
  return {.called = "NCCL",
          .file = "libthimble_nccl.so",
          .variable = "THIMBLE_NCCL_PLUGIN",
          .entry = "thimble_nccl_plugin",
          .build = "build it where CUDA 13 and nccl.h are installed",
          .needs = "the plugin needs libnccl.so.2 and CUDA 13's libcudart.so.13"};
}

template <class Plugin>
const Plugin& load(const PluginName& name) {
  const std::filesystem::path file = find_plugin(name);
  const Plugin& plugin = *static_cast<const Plugin*>(open_plugin(name, file));
  check(plugin.abi == kDistAbi && plugin.version == version(),
        Hint{"rebuild the binary and the plugin together"},
        "{} is from a different build: it has version {} and interface {}, the binary has {} and {}",
        file.string(), plugin.abi == kDistAbi ? plugin.version : "?", plugin.abi, version(), kDistAbi);
  return plugin;
}

template <class Plugin>
PluginState state_of(const PluginName& name) {
  try {
    return {true, load<Plugin>(name).library()};
  } catch (const Error& error) {
    return {false, error.what()};
  }
}

bool nccl_requested() {
  const char* text = std::getenv("THIMBLE_NCCL");
  return text && std::string_view(text) == "1";
}

}  // namespace

std::shared_ptr<Communicator> join_ranks(const Launch& launch, double timeout_seconds) {
  if (!launch.several()) return single_rank();
  const MpiPlugin* plugin = nullptr;
  try {
    plugin = &load<MpiPlugin>(mpi_name());
  } catch (const Error& error) {
    throw Error(fmt::format("{} started {} ranks, but they cannot be joined: {}", launch.by, launch.size,
                            error.what()),
                Hint{error.hint()});
  }
  auto ranks = make_message_communicator(plugin->open, {.timeout_seconds = timeout_seconds});
  check(ranks->size() == launch.size,
        Hint{launch.by == "srun" ? "try srun --mpi=pmix"
                                 : "use the mpirun of the MPI that thimble was built with"},
        "{} started {} ranks, but {} reports {}", launch.by, launch.size, plugin->library(), ranks->size());
  return ranks;
}

std::shared_ptr<DeviceCommunicator> join_gpus(Communicator& ranks,
                                              const std::shared_ptr<DeviceRuntime>& runtime) {
  // With --device auto, one rank may fall back to the CPU, and the others would wait for it
  // forever.
  check_same(ranks, {{"device", runtime->device() == Device::cuda ? "cuda" : "cpu"}},
             "every rank needs its own GPU; pass --device cuda to see why one is not available");
  if (runtime->device() != Device::cuda || (ranks.size() == 1 && !nccl_requested())) return nullptr;
  const NcclPlugin* plugin = nullptr;
  std::string id;
  on_all_ranks(ranks, "opening NCCL", [&] {
    plugin = &load<NcclPlugin>(nccl_name());
    if (ranks.first()) id = plugin->make_id();
  });
  share_text(ranks, id, "the id of NCCL");
  std::shared_ptr<DeviceCommunicator> gpus;
  on_all_ranks(ranks, "joining the GPUs",
               [&] { gpus = plugin->join(id, ranks.rank(), ranks.size(), runtime); });
  return gpus;
}

PluginState mpi_state() {
  return state_of<MpiPlugin>(mpi_name());
}

PluginState nccl_state() {
  return state_of<NcclPlugin>(nccl_name());
}

}  // namespace thimble
