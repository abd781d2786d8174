// What was built, and how.
#pragma once

#include <string>
#include <string_view>

namespace thimble {

std::string_view version();     // "0.1.0", from CMakeLists.txt
std::string_view build_type();  // "Release", with the sanitizer if there is one
std::string compiler();         // "g++ 12.2.0"

}  // namespace thimble
