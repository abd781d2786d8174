#include "dist/plugins.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/plugin.h"
#include "base/version.h"
#include "dist/exchange.h"
#include "dist/message_communicator.h"

namespace thimble {

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
        Hint{"build the binary and the plugin together"},
        "{} is of another build: version {}, interface {}; the binary is {}, {}", file.string(),
        plugin.abi == kDistAbi ? plugin.version : "?", plugin.abi, version(), kDistAbi);
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

bool asked_for_nccl() {
  const char* text = std::getenv("THIMBLE_NCCL");
  return text && std::string_view(text) == "1";
}

}  // namespace

std::shared_ptr<Communicator> join_ranks(const Launch& launch, double timeout_seconds) {
  if (!launch.several()) return alone();
  const MpiPlugin* plugin = nullptr;
  try {
    plugin = &load<MpiPlugin>(mpi_name());
  } catch (const Error& error) {
    throw Error(fmt::format("{} started {} ranks, but they cannot be joined: {}", launch.by, launch.size,
                            error.what()),
                Hint{error.hint()});
  }
  auto ranks = make_message_communicator(plugin->open, {.timeout_seconds = timeout_seconds});
  check(
      ranks->size() == launch.size,
      Hint{launch.by == "srun" ? "try srun --mpi=pmix" : "use the mpirun of the MPI that it was built with"},
      "{} started {} ranks, {} sees {}", launch.by, launch.size, plugin->library(), ranks->size());
  return ranks;
}

std::shared_ptr<DeviceCommunicator> join_cards(Communicator& ranks,
                                               const std::shared_ptr<DeviceRuntime>& runtime) {
  // With --device auto a rank may have fallen back to the CPU: the others would wait for it in vain.
  check_same(ranks, {{"device", runtime->device() == Device::cuda ? "cuda" : "cpu"}},
             "every rank needs a card of its own; --device cuda says why one has none");
  if (runtime->device() != Device::cuda || (ranks.size() == 1 && !asked_for_nccl())) return nullptr;
  const NcclPlugin* plugin = nullptr;
  std::string id;
  together(ranks, "opening NCCL", [&] {
    plugin = &load<NcclPlugin>(nccl_name());
    if (ranks.first()) id = plugin->make_id();
  });
  share_text(ranks, id, "the id of NCCL");
  std::shared_ptr<DeviceCommunicator> cards;
  together(ranks, "joining the cards",
           [&] { cards = plugin->join(id, ranks.rank(), ranks.size(), runtime); });
  return cards;
}

PluginState mpi_state() {
  return state_of<MpiPlugin>(mpi_name());
}

PluginState nccl_state() {
  return state_of<NcclPlugin>(nccl_name());
}

}  // namespace thimble
