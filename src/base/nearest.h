// "Did you mean ...?": the candidate that a mistyped word was probably meant to be.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace thimble {

// Insertions, deletions, substitutions and swaps of neighbours that turn one word into the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The nearest candidate, or the only one that begins with `word`; empty if none is near enough to be worth
// suggesting.
std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace thimble
