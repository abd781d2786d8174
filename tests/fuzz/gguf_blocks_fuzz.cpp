// Arbitrary bytes as blocks: the first byte selects the type. Every block can be decoded, and
// values that were decoded can be quantized again or are rejected with an Error.
#include <cmath>
#include <vector>

#include "base/error.h"
#include "formats/gguf_blocks.h"
#include "targets.h"

namespace thimble {

namespace {

void quantize_again(GgufType type, std::span<const float> values) {
  std::vector<std::byte> blocks(gguf_bytes(type, std::ssize(values)));
  try {
    encode_gguf(type, values, blocks);
  } catch (const Error&) {  // NaN, infinity, or a scale beyond f16
    return;
  }
  std::vector<float> again(values.size());
  decode_gguf(type, blocks, again);
  for (const float value : again)
    require(std::isfinite(value), "finite values are quantized to finite values");
}

}  // namespace

void fuzz_gguf_blocks(FuzzBytes bytes) {
  if (bytes.empty()) return;
  const auto formats = gguf_block_formats();
  const GgufTypeInfo& info = formats[std::to_integer<std::size_t>(bytes[0]) % formats.size()].info;
  const std::size_t count = (bytes.size() - 1) / static_cast<std::size_t>(info.bytes);
  const auto used = bytes.subspan(1, count * static_cast<std::size_t>(info.bytes));
  const std::vector<std::byte> blocks(used.begin(), used.end());  // of this size, so that ASan guards its end
  std::vector<float> values(count * static_cast<std::size_t>(info.block));
  decode_gguf(info.type, blocks, values);
  for (const GgufBlockFormat& format : formats)
    if (format.encode && values.size() % static_cast<std::size_t>(format.info.block) == 0)
      quantize_again(format.info.type, values);
}

}  // namespace thimble
