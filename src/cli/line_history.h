// What was typed before, in a file: one JSON string per line, oldest first.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace thimble {

// $XDG_STATE_HOME/thimble, else ~/.local/state/thimble. Empty: nobody is at home.
std::filesystem::path state_folder();

// A comfort: lines that cannot be read are left out, and without a file there are none.
std::vector<std::string> read_line_history(const std::filesystem::path& path);

// The folder is made for its owner alone. What cannot be written is not kept.
void write_line_history(const std::filesystem::path& path, std::span<const std::string> lines);

}  // namespace thimble
