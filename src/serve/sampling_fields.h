// How a request wants its tokens chosen: the names of OpenAI, llama.cpp and vLLM.
#pragma once

#include <string>
#include <vector>

#include "serve/served_model.h"

namespace thimble {

class Fields;

// What is absent comes from `model`.
SamplingOptions read_sampling(Fields& fields, const ServedModel& model);

// "stop": a string or an array of them.
std::vector<std::string> read_stops(Fields& fields);

}  // namespace thimble
