// Arbitrary bytes must give an Error or rows that are JSON objects.

#include "base/error.h"
#include "base/json.h"
#include "data/parquet.h"
#include "data/parquet_format.h"
#include "memory_file.h"
#include "targets.h"

namespace thimble {

namespace {

// A short run of equal levels may promise billions of rows.
constexpr int kMostRows = 1000;

void try_file(const std::filesystem::path& file, std::string_view only) {
  try {
    ParquetReader reader(file, only);
    for (int rows = 0; rows < kMostRows; ++rows) {
      const auto row = reader.next();
      if (!row) return;
      try {
        require(parse_json(*row, "row").is_object(), "a row is an object");
      } catch (const Error& error) {
        // The schema may name a column twice.
        require(std::string_view(error.what()).find("duplicate") != std::string_view::npos, "a row is JSON");
      }
    }
  } catch (const Error&) {
  }
}

void try_page(parquet::Codec codec, std::string_view bytes) {
  constexpr std::uint64_t kSizes[] = {0, 1, 100, 1 << 16};
  for (const std::uint64_t size : kSizes) try {
      require(parquet::decompressed(codec, bytes, size).size() == size, "a page has the promised size");
    } catch (const Error&) {
    }
}

}  // namespace

void fuzz_parquet(FuzzBytes bytes) {
  const MemoryFile file(bytes);
  try_file(file.path(), "");
  try_file(file.path(), "text");
  // Also as the contents of a page, which few mutations of a file reach.
  const std::string_view text = text_of(bytes);
  try_page(parquet::Codec::snappy, text);
  for (const auto encoding :
       {parquet::Encoding::plain, parquet::Encoding::rle_dictionary,
        parquet::Encoding::delta_length_byte_array, parquet::Encoding::delta_byte_array})
    try {
      const std::vector<std::string_view> dictionary = {"a", "bc"};
      const auto strings = parquet::open_strings(encoding, text, &dictionary);
      for (int i = 0; i < kMostRows; ++i) strings->next();
    } catch (const Error&) {
    }
}

}  // namespace thimble
