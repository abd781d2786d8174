// Parts with something between them: "a, b, c". (fmt::join does the same, and every file that calls it compiles fmt's
// formatters anew, a second each.)
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace thimble {

std::string joined(std::span<const std::string> parts, std::string_view between);
std::string joined(std::span<const std::string_view> parts, std::string_view between);
std::string joined(std::span<const std::int32_t> numbers, std::string_view between);
std::string joined(std::span<const std::int64_t> numbers, std::string_view between);

}  // namespace thimble
