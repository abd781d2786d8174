// Markdown as plain text, line by line: what stays is what a reader reads aloud.
//
//   # A *fine* [book](http://..)   ->   A fine book
//
// Taken away: heading and quote marks, bullets, rules, emphasis, fences and backticks (what they hold stays),
// the addresses of links and images, table borders. Numbers of lists stay: they are text.
#pragma once

#include <string>
#include <string_view>

namespace thimble {

// A long text comes in pieces: `in_code` says that this one begins between two fences.
std::string strip_markdown(std::string_view text, bool in_code = false);
bool ends_in_code(std::string_view text, bool in_code = false);

}  // namespace thimble
