#include "formats/gguf_types.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/parallel.h"
#include "base/text.h"
#include "formats/gguf_blocks.h"
#include "tensor/tensor.h"

namespace thimble {

namespace {

constexpr std::array<GgufTypeInfo, 3> kFloatTypes = {{
    gguf_info(GgufType::f32, "F32", "f32", 0),
    gguf_info(GgufType::f16, "F16", "f16", 1),
    gguf_info(GgufType::bf16, "BF16", "bf16", 32),
}};

// By id; empty: removed from the format.
constexpr std::array<std::string_view, 40> kNames = {
    "F32",    "F16",   "Q4_0",  "Q4_1",   "",      "",      "Q5_0",    "Q5_1",   "Q8_0",    "Q8_1",
    "Q2_K",   "Q3_K",  "Q4_K",  "Q5_K",   "Q6_K",  "Q8_K",  "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S",
    "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8",    "I16",   "I32",     "I64",    "F64",     "IQ1_M",
    "BF16",   "",      "",      "",       "TQ1_0", "TQ2_0", "",        "",       "",        "MXFP4"};

// A task of encoding and decoding: 16 Ki numbers.
constexpr std::int64_t kTaskNumbers = 1 << 14;

// F32, F16, BF16, then the block types.
template <class Matches>
const GgufTypeInfo* find_info(const Matches& matches) {
  for (const GgufTypeInfo& info : kFloatTypes)
    if (matches(info)) return &info;
  for (const GgufBlockFormat& format : gguf_block_formats())
    if (matches(format.info)) return &format.info;
  return nullptr;
}

template <class T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
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

// Calls body(block) for every block, in parallel.
template <class Body>
void for_each_block(const GgufTypeInfo& info, std::size_t count, const Body& body) {
  const std::int64_t blocks = static_cast<std::int64_t>(count) / info.block;
  parallel_for(blocks, kTaskNumbers / info.block, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) body(static_cast<std::size_t>(block));
  });
}

void encode_blocks(const GgufBlockFormat& format, std::span<const float> values, std::byte* to) {
  const GgufTypeInfo& info = format.info;
  check(format.encode != nullptr, "thimble reads {}, but does not write it", info.name);
  const auto numbers = static_cast<std::size_t>(info.block), bytes = static_cast<std::size_t>(info.bytes);
  for_each_block(info, values.size(), [&](std::size_t block) {
    const auto x = values.subspan(block * numbers, numbers);
    for (const float value : x)
      check(std::isfinite(value), Hint{"export with --type f32"}, "{} cannot be quantized", value);
    format.encode(x.data(), to + block * bytes);
  });
}

}  // namespace

const GgufTypeInfo& info_of(GgufType type) {
  return *find_gguf_type(static_cast<std::uint32_t>(type));
}

const GgufTypeInfo* find_gguf_type(std::uint32_t id) {
  return find_info([&](const GgufTypeInfo& info) { return static_cast<std::uint32_t>(info.type) == id; });
}

std::optional<GgufType> gguf_type_of(std::string_view option) {
  const GgufTypeInfo* found =
      find_info([&](const GgufTypeInfo& info) { return !info.option.empty() && info.option == option; });
  return found ? std::optional(found->type) : std::nullopt;
}

std::string_view gguf_type_name(std::uint32_t id) {
  return id < kNames.size() ? kNames[id] : std::string_view();
}

std::string gguf_types_text() {
  std::vector<std::string_view> names;
  find_info([&](const GgufTypeInfo& info) {
    names.push_back(info.name);
    return false;
  });
  const std::string_view last = names.back();
  names.pop_back();
  return fmt::format("{} or {}", joined(names, ", "), last);
}

std::string gguf_export_name(GgufType type) {
  std::string name(info_of(type).option);
  for (char& c : name)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return name;
}

bool fits_blocks(GgufType type, std::int64_t row_length) {
  return row_length % info_of(type).block == 0;
}

GgufType fitting_type(GgufType type, std::int64_t row_length) {
  if (fits_blocks(type, row_length)) return type;
  const GgufType narrower = type == GgufType::q4_k   ? GgufType::q5_0
                            : type == GgufType::q5_k ? GgufType::q5_1
                            : type == GgufType::q6_k ? GgufType::q8_0
                                                     : GgufType::f16;
  return fits_blocks(narrower, row_length) ? narrower : GgufType::f16;
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
    default:
      return encode_blocks(*find_block_format(type), values, to);
  }
}

void decode_gguf(GgufType type, std::span<const std::byte> bytes, std::span<float> values) {
  check_sizes(type, values.size(), bytes.size());
  const auto [numbers, block] = block_size(type);
  const std::int64_t blocks = std::ssize(values) / numbers;
  parallel_for(blocks, kTaskNumbers / numbers,
               [&, numbers = numbers, block = block](std::int64_t begin, std::int64_t end) {
                 const auto count = static_cast<std::size_t>(end - begin);
                 decode_blocks(type, bytes.subspan(index_of(begin * block), count * index_of(block)),
                               values.subspan(index_of(begin * numbers), count * index_of(numbers)));
               });
}

DType float_dtype(GgufType type) {
  check(type == GgufType::f32 || type == GgufType::bf16 || type == GgufType::f16,
        "expected type f32, bf16 or f16 for safetensors, found {}", info_of(type).option);
  return type == GgufType::f32 ? DType::f32 : type == GgufType::bf16 ? DType::bf16 : DType::f16;
}

}  // namespace thimble
