// Settings that change nothing, because what they are for is off: a mistyped run of a week looks just like a right one.
#pragma once

#include <string>
#include <vector>

#include "model/config_builder.h"

namespace thimble {

// Of what --set and flags said, a line each: "q_gain_init changes nothing: q_gain is none". A file may hold every key.
std::vector<std::string> idle_settings(const ConfigBuilder& settings);

}  // namespace thimble
