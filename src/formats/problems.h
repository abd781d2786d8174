// Everything wrong with a file in one sentence: "a is missing; b is [3], expected [4]".
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/text.h"

namespace thimble {

// Enough for every tensor of a real model that went wrong; a hostile header may name millions.
inline constexpr std::size_t kMostProblems = 200;

inline std::string listed(std::vector<std::string> problems) {
  const std::size_t count = problems.size();
  if (count > kMostProblems) {
    problems.resize(kMostProblems);
    problems.push_back(fmt::format("and {} more", count - kMostProblems));
  }
  return joined(problems, "; ");
}

}  // namespace thimble
