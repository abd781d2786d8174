// Text into HTML and SVG. Samples, prompts and file names come from anywhere: whatever goes into a page goes through
// escaped().
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace thimble {

// Safe between tags and within quotes, of HTML and of XML. Bytes that are no UTF-8 and control characters but tab and
// line end become U+FFFD.
std::string escaped(std::string_view text);

// Replaces each @name@ of `text` by its value, in one pass: what a value holds is never replaced.
std::string filled(std::string_view text,
                   const std::vector<std::pair<std::string_view, std::string_view>>& values);

// <tr><th>label</th><td>value</td></tr>, both escaped.
std::string table_row(std::string_view label, std::string_view value);

}  // namespace thimble
