// Our sizes are signed, as differences of them are; a vector's index is not.
#pragma once

#include <cstddef>
#include <cstdint>

namespace thimble {

constexpr std::size_t index_of(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

}  // namespace thimble
