// `thimble data sample`: writes the built-in corpus, tales or chats of a small world.
#pragma once

#include "cli/option.h"

namespace thimble {

Command data_sample_command();

}  // namespace thimble
