#include "formats/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "base/joined.h"
#include "base/json.h"

namespace thimble {

namespace {

constexpr std::array<SafetensorsDType, 22> kDTypes = {
    {{"F32", 32, DType::f32}, {"F16", 16, DType::f16}, {"BF16", 16, DType::bf16},
     {"I32", 32, DType::i32}, {"I64", 64, DType::i64}, {"U8", 8, DType::u8},
     {"I8", 8, DType::i8},    {"BOOL", 8, {}},         {"I16", 16, {}},
     {"U16", 16, {}},         {"U32", 32, {}},         {"U64", 64, {}},
     {"F64", 64, {}},         {"C64", 64, {}},         {"F4", 4, {}},
     {"F6_E2M3", 6, {}},      {"F6_E3M2", 6, {}},      {"F8_E5M2", 8, {}},
     {"F8_E4M3", 8, {}},      {"F8_E8M0", 8, {}},      {"F8_E4M3FNUZ", 8, {}},
     {"F8_E5M2FNUZ", 8, {}}}};

// Reads the header as it comes, so that nothing is kept but the entries themselves.
class HeaderVisitor : public JsonVisitor {
 public:
  explicit HeaderVisitor(std::string_view file) : file_(file) {}

  SafetensorsHeader take() { return std::move(header_); }

  void null() override { unexpected("null"); }
  void boolean(bool value) override { unexpected(value ? "true" : "false"); }
  void big_integer(std::uint64_t value) override { unexpected(std::to_string(value)); }
  void number(double value) override { unexpected(fmt::format("{}", value)); }

  void start_object() override {
    if (place_ == Place::start) {
      place_ = Place::root;
    } else if (place_ == Place::root && key_ == kMetadataKey) {
      place_ = Place::metadata;
    } else if (place_ == Place::root) {
      header_.entries.push_back({.name = std::move(key_), .dtype = {}, .dims = {}});
      fields_seen_ = offsets_seen_ = 0;
      place_ = Place::tensor;
    } else {
      unexpected("an object");
    }
  }

  void end_object() override {
    if (place_ == Place::tensor) check_complete();
    place_ = place_ == Place::root ? Place::start : Place::root;
  }

  void key(std::string key) override {
    if (place_ != Place::tensor) {
      key_ = std::move(key);
      return;
    }
    const auto found = std::find(kFields.begin(), kFields.end(), key);
    if (found == kFields.end()) wrong(fmt::format("the fields {}", joined(kFields, ", ")), quoted_name(key));
    field_ = static_cast<Field>(found - kFields.begin());
    fields_seen_ |= 1u << (found - kFields.begin());
  }

  void string(std::string value) override {
    if (place_ == Place::metadata) {
      header_.metadata.emplace_back(std::move(key_), std::move(value));
    } else if (place_ == Place::tensor && field_ == Field::dtype) {
      const SafetensorsDType* dtype = find_safetensors_dtype(value);
      if (!dtype) wrong("a dtype like F32 or BF16", quoted_name(value));
      entry().dtype = dtype->name;
    } else {
      unexpected(fmt::format("the string {}", quoted_name(value)));
    }
  }

  void start_array() override {
    if (place_ == Place::tensor && field_ == Field::shape)
      place_ = Place::shape;
    else if (place_ == Place::tensor && field_ == Field::offsets)
      place_ = Place::offsets;
    else
      unexpected("an array");
  }

  void end_array() override {
    if (place_ == Place::offsets && offsets_seen_ != 2)
      wrong("2 data_offsets", std::to_string(offsets_seen_));
    place_ = Place::tensor;
  }

  void integer(std::int64_t value) override {
    if ((place_ != Place::shape && place_ != Place::offsets) || value < 0) unexpected(std::to_string(value));
    if (place_ == Place::shape)
      entry().dims.push_back(value);
    else if (++offsets_seen_ <= 2)
      (offsets_seen_ == 1 ? entry().begin : entry().end) = static_cast<std::uint64_t>(value);
  }

 private:
  enum class Place { start, root, metadata, tensor, shape, offsets };
  enum class Field { dtype, shape, offsets };
  static constexpr std::array<std::string_view, 3> kFields = {"dtype", "shape", "data_offsets"};

  SafetensorsEntry& entry() { return header_.entries.back(); }

  void check_complete() {
    for (std::size_t i = 0; i < kFields.size(); ++i)
      if (!(fields_seen_ >> i & 1u)) wrong(fmt::format("the field {}", kFields[i]), "none");
  }

  std::string subject() const {
    if (place_ == Place::start) return "the header";
    if (place_ == Place::metadata) return fmt::format("{} {}", kMetadataKey, quoted_name(key_));
    if (place_ == Place::root)
      return key_ == kMetadataKey ? key_ : fmt::format("tensor {}", quoted_name(key_));
    return fmt::format("tensor {}", quoted_name(header_.entries.back().name));
  }

  std::string_view expected() const {
    switch (place_) {
      case Place::start:
      case Place::root:
        return "an object";
      case Place::metadata:
        return "a string";
      case Place::shape:
        return "whole numbers from 0 to 2^63 - 1 in shape";
      case Place::offsets:
        return "whole numbers from 0 to 2^63 - 1 in data_offsets";
      case Place::tensor:
        break;
    }
    return field_ == Field::dtype   ? "a string as dtype"
           : field_ == Field::shape ? "an array as shape"
                                    : "an array as data_offsets";
  }

  [[noreturn]] void unexpected(std::string_view found) const { wrong(expected(), found); }

  [[noreturn]] void wrong(std::string_view expected, std::string_view found) const {
    fail("{}: {}: expected {}, found {}", file_, subject(), expected, found);
  }

  std::string_view file_;
  SafetensorsHeader header_;
  Place place_ = Place::start;
  Field field_ = Field::dtype;
  std::string key_;
  unsigned fields_seen_ = 0, offsets_seen_ = 0;  // of the tensor that is being read
};

// Messages are made only when they are needed: a header may have a million entries.
void check_size(const SafetensorsEntry& entry, std::string_view file) {
  if (entry.begin > entry.end)
    fail("{}: tensor {}: data_offsets [{}, {}] end before they begin", file, quoted_name(entry.name),
         entry.begin, entry.end);
  const auto bytes = safetensors_bytes(*find_safetensors_dtype(entry.dtype), entry.dims);
  if (!bytes)
    fail("{}: tensor {}: {} of shape {} has no size in bytes: it is too large, or ends inside a byte", file,
         quoted_name(entry.name), entry.dtype, dims_text(entry.dims));
  if (*bytes != entry.bytes())
    fail("{}: tensor {}: {} of shape {} takes {} bytes, data_offsets [{}, {}] hold {}", file,
         quoted_name(entry.name), entry.dtype, dims_text(entry.dims), *bytes, entry.begin, entry.end,
         entry.bytes());
}

void check_cover(const std::vector<SafetensorsEntry>& entries, std::string_view file,
                 std::uint64_t data_bytes) {
  std::vector<std::uint32_t> order(entries.size());
  std::iota(order.begin(), order.end(), 0u);
  // Equal offsets (empty tensors) keep the header's order: the message does not depend on the sort.
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::tuple(entries[a].begin, entries[a].end, a) < std::tuple(entries[b].begin, entries[b].end, b);
  });
  std::uint64_t reached = 0;
  const SafetensorsEntry* previous = nullptr;
  for (const std::uint32_t i : order) {
    const SafetensorsEntry& entry = entries[i];
    if (entry.begin < reached)
      fail("{}: tensor {} begins at byte {} of the data, inside tensor {}, which ends at {}", file,
           quoted_name(entry.name), entry.begin, quoted_name(previous->name), reached);
    if (entry.begin > reached)
      fail("{}: tensor {} begins at byte {} of the data, expected {}: the bytes between belong to no tensor",
           file, quoted_name(entry.name), entry.begin, reached);
    reached = entry.end;
    previous = &entry;
  }
  check(reached <= data_bytes, Hint{"the file is cut short: copy or download it again"},
        "{}: expected {} bytes of data, found {}: tensor {} is not complete", file, reached, data_bytes,
        previous ? quoted_name(previous->name) : "");
  check(reached == data_bytes, "{}: expected {} bytes of data, found {}: the last belong to no tensor", file,
        reached, data_bytes);
}

}  // namespace

const SafetensorsDType* find_safetensors_dtype(std::string_view name) {
  const auto found =
      std::find_if(kDTypes.begin(), kDTypes.end(), [&](const auto& d) { return d.name == name; });
  return found == kDTypes.end() ? nullptr : &*found;
}

const SafetensorsDType* find_safetensors_dtype(DType dtype) {
  const auto found =
      std::find_if(kDTypes.begin(), kDTypes.end(), [&](const auto& d) { return d.ours == dtype; });
  return found == kDTypes.end() ? nullptr : &*found;
}

std::optional<std::uint64_t> safetensors_bytes(const SafetensorsDType& dtype,
                                               std::span<const std::int64_t> dims) {
  std::int64_t bits = dtype.bits;
  for (const std::int64_t dim : dims)
    if (__builtin_mul_overflow(bits, dim, &bits)) return std::nullopt;
  if (bits % 8 != 0) return std::nullopt;
  return static_cast<std::uint64_t>(bits / 8);
}

std::string quoted_name(std::string_view name) {
  constexpr std::size_t kShown = 80;
  std::string text;
  append_json_string(text, name.substr(0, kShown));
  if (name.size() > kShown) text += "...";
  return text;
}

std::string dims_text(std::span<const std::int64_t> dims) {
  constexpr std::size_t kShown = 8;
  return fmt::format("[{}{}]", joined(dims.first(std::min(dims.size(), kShown)), ", "),
                     dims.size() > kShown ? ", ..." : "");
}

SafetensorsHeader parse_safetensors_header(std::string_view text, std::string_view file,
                                           std::uint64_t data_bytes) {
  check(text.starts_with('{'), "{}: expected a header that begins with '{{', found {}", file,
        quoted_name(text.substr(0, 1)));
  HeaderVisitor visitor(file);
  visit_json(text, fmt::format("{}: header", file), visitor);
  SafetensorsHeader header = visitor.take();
  for (const SafetensorsEntry& entry : header.entries) check_size(entry, file);
  check_cover(header.entries, file, data_bytes);
  return header;
}

}  // namespace thimble
