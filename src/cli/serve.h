// `thimble serve`: a model behind an OpenAI-style HTTP server.
#pragma once

#include "cli/option.h"

namespace thimble {

Command serve_command();

}  // namespace thimble
