// Which combinations a model may see in training, and which it is asked about afterwards.
//
// A fact is one combination, spelled in words ("has Anna red ball"), whatever sentence tells it. Its hash puts
// it on one side for good: a fact that is held out occurs in no tale, no question and no answer of the
// training split, of any size and seed; and everything that the held-out split tells is held out.
#pragma once

#include <string_view>

namespace thimble::sample {

enum class Split { train, heldout };

// One combination in eight is held out.
Split split_of(std::string_view fact);

}  // namespace thimble::sample
