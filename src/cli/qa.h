// `thimble qa`: is this model fit to be given away?
#pragma once

#include "cli/option.h"

namespace thimble {

Command qa_command();

}  // namespace thimble
