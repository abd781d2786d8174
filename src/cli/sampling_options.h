// How tokens are chosen: the flags that `generate` and `chat` share.
//
//   .options = with_sampling_options({{.name = "samples", ...}, common::json()})
//   ...
//   request.sampling = sampling_from(arguments);
#pragma once

#include <vector>

#include "cli/option.h"
#include "infer/sampler.h"

namespace thimble {

class Arguments;

// Those flags, --seed among them, in front of a command's own.
std::vector<Option> with_sampling_options(std::vector<Option> own);

SamplingOptions sampling_from(const Arguments& arguments);

}  // namespace thimble
