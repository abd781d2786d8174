// Short tales of the small world: text to train on, pleasant to read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/sample/split.h"

namespace thimble::sample {

struct Tale {
  std::string text;                // one paragraph
  std::vector<std::string> facts;  // all that was told in it
};

// Tale `index` of a corpus.
Tale make_tale(Split split, std::uint64_t seed, std::uint64_t index);

}  // namespace thimble::sample
