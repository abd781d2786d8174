#include "formats/gguf_types.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "tensor/tensor.h"

namespace thimble {

namespace {

static_assert(std::endian::native == std::endian::little,
              "numbers in the file are little-endian and are not converted");

constexpr std::array<GgufTypeInfo, 5> kTypes = {{
    {GgufType::f32, "F32", "f32", 0, 1, 4},
    {GgufType::f16, "F16", "f16", 1, 1, 2},
    {GgufType::bf16, "BF16", "bf16", 32, 1, 2},
    {GgufType::q8_0, "Q8_0", "q8_0", 7, kGgufBlock, 34},
    {GgufType::q4_0, "Q4_0", "q4_0", 2, kGgufBlock, 18},
}};

// By id; empty: removed from the format.
constexpr std::array<std::string_view, 40> kNames = {
    "F32",    "F16",   "Q4_0",  "Q4_1",   "",      "",      "Q5_0",    "Q5_1",   "Q8_0",    "Q8_1",
    "Q2_K",   "Q3_K",  "Q4_K",  "Q5_K",   "Q6_K",  "Q8_K",  "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S",
    "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8",    "I16",   "I32",     "I64",    "F64",     "IQ1_M",
    "BF16",   "",      "",      "",       "TQ1_0", "TQ2_0", "",        "",       "",        "MXFP4"};

constexpr std::size_t kBlock = kGgufBlock;

using Block = std::span<const float, kBlock>;

template <class T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

template <class T>
T loaded(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

std::uint16_t half_scale(float d) {
  const f16 half = to_f16(d);
  check(std::isfinite(to_f32(half)), Hint{"export with --type f32 or bf16"},
        "the scale of a block, {}, is too large for f16", d);
  return half.bits;
}

// ggml multiplies by the inverse; x / d could round differently. If the inverse overflows f32, d
// rounds to 0 in f16.
float inverse(float d) {
  const float inverse = 1.0f / d;
  return std::isfinite(inverse) ? inverse : 0.0f;
}

void check_finite(Block x) {
  for (const float value : x)
    check(std::isfinite(value), Hint{"export with --type f32"}, "{} cannot be quantized", value);
}

void encode_q8_0(Block x, std::byte* to) {
  check_finite(x);
  float largest = 0;
  for (const float value : x) largest = std::max(largest, std::abs(value));
  const float d = largest / 127;
  const float factor = inverse(d);
  store(to, half_scale(d));
  for (std::size_t i = 0; i < kBlock; ++i)
    store(to + 2 + i, static_cast<std::int8_t>(std::round(x[i] * factor)));
}

float scale_of_block(const std::byte* from) {
  return to_f32(f16{loaded<std::uint16_t>(from)});
}

// With d = 1 this returns the integers.
void decode_q8_0(const std::byte* from, float d, float* x) {
  for (std::size_t i = 0; i < kBlock; ++i) x[i] = d * static_cast<float>(loaded<std::int8_t>(from + 2 + i));
}

void encode_q4_0(Block x, std::byte* to) {
  check_finite(x);
  float largest = 0;  // the first value of largest magnitude
  for (const float value : x)
    if (std::abs(value) > std::abs(largest)) largest = value;
  const float d = largest / -8;
  const float factor = inverse(d);
  store(to, half_scale(d));
  const auto level = [&](float value) {
    const float scaled = value * factor;
    return std::min(15, static_cast<int>(scaled + 8.5f));
  };
  for (std::size_t i = 0; i < kBlock / 2; ++i)
    store(to + 2 + i, static_cast<std::uint8_t>(level(x[i]) | level(x[i + kBlock / 2]) << 4));
}

void decode_q4_0(const std::byte* from, float d, float* x) {
  for (std::size_t i = 0; i < kBlock / 2; ++i) {
    const int pair = loaded<std::uint8_t>(from + 2 + i);
    x[i] = d * static_cast<float>((pair & 15) - 8);
    x[i + kBlock / 2] = d * static_cast<float>((pair >> 4) - 8);
  }
}

void encode_f16(std::span<const float> values, std::byte* to) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const f16 half = to_f16(values[i]);
    check(std::isfinite(to_f32(half)) || !std::isfinite(values[i]), Hint{"export with --type f32 or bf16"},
          "{} is too large for f16", values[i]);
    store(to + 2 * i, half.bits);
  }
}

void check_sizes(GgufType type, std::size_t count, std::size_t bytes) {
  const GgufTypeInfo& info = info_of(type);
  check(count % static_cast<std::size_t>(info.block) == 0 &&
            bytes == gguf_bytes(type, static_cast<std::int64_t>(count)),
        "[gguf] {} numbers of type {} do not match {} bytes", count, info.name, bytes);
}

}  // namespace

const GgufTypeInfo& info_of(GgufType type) {
  return *find_gguf_type(static_cast<std::uint32_t>(type));
}

const GgufTypeInfo* find_gguf_type(std::uint32_t id) {
  const auto found = std::ranges::find_if(
      kTypes, [&](const GgufTypeInfo& i) { return static_cast<std::uint32_t>(i.type) == id; });
  return found == kTypes.end() ? nullptr : &*found;
}

std::optional<GgufType> gguf_type_of(std::string_view option) {
  const auto found = std::ranges::find(kTypes, option, &GgufTypeInfo::option);
  return found == kTypes.end() ? std::nullopt : std::optional(found->type);
}

std::string_view gguf_type_name(std::uint32_t id) {
  return id < kNames.size() ? kNames[id] : std::string_view();
}

bool fits_blocks(GgufType type, std::int64_t row_length) {
  return row_length % info_of(type).block == 0;
}

std::uint64_t gguf_bytes(GgufType type, std::int64_t count) {
  const GgufTypeInfo& info = info_of(type);
  return static_cast<std::uint64_t>(count / info.block * info.bytes);
}

void encode_gguf(GgufType type, std::span<const float> values, std::span<std::byte> bytes) {
  check_sizes(type, values.size(), bytes.size());
  std::byte* to = bytes.data();
  switch (type) {
    case GgufType::f32:
      if (!values.empty()) std::memcpy(to, values.data(), values.size_bytes());
      return;
    case GgufType::f16:
      return encode_f16(values, to);
    case GgufType::bf16:
      for (std::size_t i = 0; i < values.size(); ++i) store(to + 2 * i, to_bf16(values[i]).bits);
      return;
    case GgufType::q8_0:
      for (std::size_t i = 0; i < values.size(); i += kBlock, to += 34)
        encode_q8_0(values.subspan(i).first<kBlock>(), to);
      return;
    case GgufType::q4_0:
      for (std::size_t i = 0; i < values.size(); i += kBlock, to += 18)
        encode_q4_0(values.subspan(i).first<kBlock>(), to);
      return;
  }
}

void decode_gguf(GgufType type, std::span<const std::byte> bytes, std::span<float> values) {
  check_sizes(type, values.size(), bytes.size());
  const std::byte* from = bytes.data();
  switch (type) {
    case GgufType::f32:
      if (!values.empty()) std::memcpy(values.data(), from, values.size_bytes());
      return;
    case GgufType::f16:
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = to_f32(f16{loaded<std::uint16_t>(from + 2 * i)});
      return;
    case GgufType::bf16:
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = to_f32(bf16{loaded<std::uint16_t>(from + 2 * i)});
      return;
    case GgufType::q8_0:
      for (std::size_t i = 0; i < values.size(); i += kBlock, from += 34)
        decode_q8_0(from, scale_of_block(from), &values[i]);
      return;
    case GgufType::q4_0:
      for (std::size_t i = 0; i < values.size(); i += kBlock, from += 18)
        decode_q4_0(from, scale_of_block(from), &values[i]);
      return;
  }
}

GgufBlocks gguf_blocks(GgufType type, std::span<const std::byte> bytes) {
  check(has_blocks(type), "[gguf] expected a block type, found {}", info_of(type).name);
  const auto block_bytes = static_cast<std::size_t>(info_of(type).bytes);
  const std::size_t count = bytes.size() / block_bytes;
  GgufBlocks blocks{std::vector<float>(count * kBlock), std::vector<float>(count)};
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* from = bytes.data() + i * block_bytes;
    blocks.scales[i] = scale_of_block(from);
    (type == GgufType::q8_0 ? decode_q8_0 : decode_q4_0)(from, 1, &blocks.integers[i * kBlock]);
  }
  return blocks;
}

DType float_dtype(GgufType type) {
  check(type == GgufType::f32 || type == GgufType::bf16 || type == GgufType::f16,
        "expected type f32, bf16 or f16 for safetensors, found {}", info_of(type).option);
  return type == GgufType::f32 ? DType::f32 : type == GgufType::bf16 ? DType::bf16 : DType::f16;
}

}  // namespace thimble
