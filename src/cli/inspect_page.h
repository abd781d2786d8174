// The page that `thimble inspect` shows to people.
#pragma once

#include <string>

#include "formats/model_file.h"
#include "qa/model_facts.h"

namespace thimble {

// No line is wider than `width` columns, unless a name alone is.
std::string inspect_page(const ModelFile& file, const ModelFacts& facts, std::size_t width);

}  // namespace thimble
