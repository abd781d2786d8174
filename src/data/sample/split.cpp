#include "data/sample/split.h"

#include "base/digest.h"

namespace thimble::sample {

Split split_of(std::string_view fact) {
  return digest_of(fact).low % 8 == 0 ? Split::heldout : Split::train;
}

}  // namespace thimble::sample
