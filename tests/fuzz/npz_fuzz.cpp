// Arbitrary bytes must give an Error or arrays with a value for every element.

#include "base/error.h"
#include "formats/npz.h"
#include "targets.h"

namespace thimble {

namespace {

void try_npz(std::span<const std::byte> bytes) {
  try {
    for (const NamedArray& array : read_npz(bytes, "fuzz")) {
      std::size_t count = 1;
      for (const std::int64_t dim : array.dims) count *= static_cast<std::size_t>(dim);
      require(count == array.values.size(), "there is a value for every element");
    }
  } catch (const Error&) {
  }
}

}  // namespace

void fuzz_npz(FuzzBytes bytes) {
  try_npz(bytes);
  // Also as one array of a valid archive, because few mutations keep a checksum.
  ZipWriter zip;
  zip.add("a.npy", bytes);
  const std::string archive = std::move(zip).finish();
  try_npz(std::as_bytes(std::span(archive)));
}

}  // namespace thimble
