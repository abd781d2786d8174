// Plugins: shared libraries of ours that are opened on first use, so that a start without them costs nothing and a
// binary runs where what they need is not installed.
//
// A plugin is looked for where its variable says, else beside the binary, in ../lib, and on the loader's path. Its one
// symbol is a function without arguments that returns a table. It stays open until the process ends.
#pragma once

#include <filesystem>
#include <string>

namespace thimble {

struct PluginName {
  std::string called;    // "CUDA": for messages
  std::string file;      // libthimble_cuda.so
  std::string variable;  // THIMBLE_CUDA_PLUGIN
  std::string entry;     // thimble_cuda_plugin
  std::string build;     // how one gets it, for a hint: "build it (-DTHIMBLE_CUDA=ON, with CUDA 13)"
  std::string needs;     // what it needs, for a hint: "the plugin needs CUDA 13's libcublasLt.so.13"
};

// The file to open; none is an Error.
std::filesystem::path find_plugin(const PluginName& name);

// What the entry of the file returns, never nullptr. An Error says why it cannot be had.
const void* open_plugin(const PluginName& name, const std::filesystem::path& file);

}  // namespace thimble
