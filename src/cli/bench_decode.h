// `thimble bench decode`
#pragma once

#include "cli/option.h"

namespace thimble {

Command bench_decode_command();

}  // namespace thimble
