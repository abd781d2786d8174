// Any bytes at all are refused with an Error or are a file of arrays, whose every value is there.
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "formats/npz.h"
#include "formats/zip.h"

namespace {

using namespace thimble;

void promise(bool kept, const char* what) {
  if (kept) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

void try_file(std::span<const std::byte> bytes) {
  try {
    for (const NamedArray& array : read_npz(bytes, "fuzz")) {
      std::size_t count = 1;
      for (const std::int64_t dim : array.dims) count *= static_cast<std::size_t>(dim);
      promise(count == array.values.size(), "there is a value for every element");
    }
  } catch (const Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try_file(bytes);
  // The same as one array of a whole archive: few mutations keep a checksum.
  ZipWriter zip;
  zip.add("a.npy", bytes);
  const std::string archive = std::move(zip).finish();
  try_file(std::as_bytes(std::span(archive)));
  return 0;
}
