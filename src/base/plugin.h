// Plugins: shared libraries opened on first use, so that start-up does not pay for them and the
// binary runs where their dependencies are not installed.
//
// A plugin is searched for at the path in its environment variable; if that is not set, beside the
// binary, in ../lib, and on the loader's path. It exports one function without arguments that
// returns a table. It stays open until the process ends.
#pragma once

#include <filesystem>
#include <string>

namespace thimble {

struct PluginName {
  std::string called;    // "CUDA": for messages
  std::string file;      // libthimble_cuda.so
  std::string variable;  // THIMBLE_CUDA_PLUGIN
  std::string entry;     // thimble_cuda_plugin
  std::string build;     // how to get it, for a hint: "build it (-DTHIMBLE_CUDA=ON, with CUDA 13)"
  std::string needs;     // for a hint: "the plugin needs CUDA 13's libcublasLt.so.13"
};

// The path to open. Throws an Error if the plugin is not found.
std::filesystem::path find_plugin(const PluginName& name);

// The result of the plugin's entry function, never nullptr. Throws an Error if the plugin cannot be
// loaded.
const void* open_plugin(const PluginName& name, const std::filesystem::path& file);

}  // namespace thimble
