// `thimble bench tokenize`
#pragma once

#include "cli/option.h"

namespace thimble {

Command bench_tokenize_command();

}  // namespace thimble
