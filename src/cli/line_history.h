// What was typed before, in a file: one JSON string per line, oldest first.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

// $XDG_STATE_HOME/thimble, else ~/.local/state/thimble. Empty: nobody is at home.
std::filesystem::path state_folder();

// The newest `most` of them; a file that holds more is cut to them. A comfort: lines that cannot be read are left out,
// and without a file there are none.
std::vector<std::string> read_line_history(const std::filesystem::path& path, std::size_t most);

// One line more, in one write: several chats at once keep each other's. Folder and file are their owner's alone. What
// cannot be written is not kept.
void append_line_history(const std::filesystem::path& path, std::string_view line);

}  // namespace thimble
