// Weights given up until the rest fits.
#pragma once

#include "pack/pack_weights.h"

namespace thimble {

// Zeroes the cheapest weights (prune.h) until the groups, which are the tensors' own, take at most
// `most_bytes`: no more of them than needed, to a 250th of all candidates. If even all of them are not
// enough, all are zeroed. Returns how many.
std::int64_t prune_to_fit(const ParamTable& table, std::uint64_t most_bytes,
                          std::vector<PackedTensor>& tensors, std::vector<CodedGroup>& groups,
                          const OnCoded& on_coded = {});

}  // namespace thimble
