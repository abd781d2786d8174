#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/half.h"
#include "formats/safetensors.h"
#include "formats/safetensors_header.h"

namespace thimble {

namespace {

static_assert(std::endian::native == std::endian::little, "the file's bytes are used as they are");

using LengthBytes = std::array<std::byte, kSafetensorsLengthBytes>;

void check_file_bytes(std::string_view file, std::uint64_t file_bytes) {
  check(file_bytes >= kSafetensorsLengthBytes, Hint{"this is no safetensors file, or it is cut short"},
        "{}: expected at least {} bytes, found {}", file, kSafetensorsLengthBytes, file_bytes);
}

std::uint64_t header_bytes(const LengthBytes& length, std::string_view file, std::uint64_t file_bytes) {
  const auto bytes = std::bit_cast<std::uint64_t>(length);
  const std::uint64_t rest = file_bytes - kSafetensorsLengthBytes;
  check(bytes <= kMaxSafetensorsHeaderBytes, Hint{"this is probably no safetensors file"},
        "{}: expected a header of at most {} bytes, found a length of {}", file, kMaxSafetensorsHeaderBytes,
        bytes);
  check(bytes <= rest, Hint{"this is no safetensors file, or it is cut short"},
        "{}: expected a header of {} bytes, found {}", file, bytes, rest);
  return bytes;
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

float to_f32(float value) {
  return value;
}

template <class Stored, class Value, class Convert>
void convert_all(std::span<const std::byte> from, std::span<Value> to, Convert convert) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, from.data() + i * sizeof(Stored), sizeof(Stored));
    to[i] = convert(stored);
  }
}

template <class Stored>
void to_floats(std::span<const std::byte> from, std::span<float> to) {
  convert_all<Stored>(from, to, [](Stored stored) { return to_f32(stored); });
}

template <class Stored>
void to_integers(std::span<const std::byte> from, std::span<std::int64_t> to) {
  convert_all<Stored>(from, to, [](Stored stored) { return static_cast<std::int64_t>(stored); });
}

}  // namespace

std::int64_t SafetensorsEntry::count() const {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  const InputFile input(path);
  SafetensorsFile file;
  file.name_ = path.string();
  check_file_bytes(file.name_, input.size());
  LengthBytes length;
  input.read_at(0, length);
  std::uint64_t data_at = kSafetensorsLengthBytes;
  {
    std::string header(header_bytes(length, file.name_, input.size()), '\0');
    input.read_at(data_at, std::as_writable_bytes(std::span(header)));
    data_at += header.size();
    file.take_header(length, header, input.size() - data_at);
  }
  const auto data_bytes = input.size() - data_at;
  file.memory_ = Arena(static_cast<std::int64_t>(data_bytes), file.name_,
                       "the file is read as a whole: close other programs, or use a larger machine");
  const std::span data(file.memory_.at(0), data_bytes);
  input.read_at(data_at, data);
  file.data_ = data;
  return file;
}

SafetensorsFile SafetensorsFile::view(std::span<const std::byte> bytes, std::string name) {
  SafetensorsFile file;
  file.name_ = std::move(name);
  check_file_bytes(file.name_, bytes.size());
  LengthBytes length;
  std::memcpy(length.data(), bytes.data(), length.size());
  const std::uint64_t header = header_bytes(length, file.name_, bytes.size());
  file.data_ = bytes.subspan(length.size() + header);
  file.take_header(length, as_text(bytes.subspan(length.size(), header)), file.data_.size());
  return file;
}

void SafetensorsFile::take_header(std::span<const std::byte> length, std::string_view header,
                                  std::uint64_t data_bytes) {
  SafetensorsHeader parsed = parse_safetensors_header(header, name_, data_bytes);
  metadata_ = std::move(parsed.metadata);
  entries_ = std::move(parsed.entries);
  by_name_.resize(entries_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(),
            [&](std::uint32_t a, std::uint32_t b) { return entries_[a].name < entries_[b].name; });
  Digester digester;
  digester.add(length);
  digester.add(header);
  header_digest_ = digester.result();
}

const std::string* SafetensorsFile::find_metadata(std::string_view key) const {
  const auto found =
      std::find_if(metadata_.begin(), metadata_.end(), [&](const auto& m) { return m.first == key; });
  return found == metadata_.end() ? nullptr : &found->second;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view tensor) const {
  const auto found =
      std::lower_bound(by_name_.begin(), by_name_.end(), tensor,
                       [&](std::uint32_t i, std::string_view name) { return entries_[i].name < name; });
  return found != by_name_.end() && entries_[*found].name == tensor ? &entries_[*found] : nullptr;
}

const SafetensorsEntry& SafetensorsFile::at(std::string_view tensor) const {
  const SafetensorsEntry* entry = find(tensor);
  if (!entry)
    fail(Hint{"`thimble inspect` lists what is in a file"}, "{}: expected a tensor {}, found none among {}",
         name_, quoted_name(tensor), entries_.size());
  return *entry;
}

DType SafetensorsFile::dtype(std::string_view tensor) const {
  const SafetensorsEntry& entry = at(tensor);
  const auto ours = find_safetensors_dtype(entry.dtype)->ours;
  if (!ours)
    fail("{}: tensor {}: expected one of F32, F16, BF16, I32, I64, U8, I8, found {}", name_,
         quoted_name(tensor), entry.dtype);
  return *ours;
}

std::span<const std::byte> SafetensorsFile::bytes(std::string_view tensor) const {
  const SafetensorsEntry& entry = at(tensor);
  return data_.subspan(entry.begin, entry.bytes());
}

const SafetensorsEntry& SafetensorsFile::check_count(std::string_view tensor, std::size_t values) const {
  const SafetensorsEntry& entry = at(tensor);
  if (std::cmp_not_equal(entry.count(), values))
    fail("{}: tensor {}: expected {} values, found {} of shape {}", name_, quoted_name(tensor), values,
         entry.count(), dims_text(entry.dims));
  return entry;
}

void SafetensorsFile::read_f32(std::string_view tensor, std::span<float> values) const {
  const SafetensorsEntry& entry = check_count(tensor, values.size());
  const auto from = data_.subspan(entry.begin, entry.bytes());
  switch (dtype(tensor)) {
    case DType::f32:
      return to_floats<float>(from, values);
    case DType::f16:
      return to_floats<f16>(from, values);
    case DType::bf16:
      return to_floats<bf16>(from, values);
    default:
      fail("{}: tensor {}: expected F32, F16 or BF16, found {}", name_, quoted_name(tensor), entry.dtype);
  }
}

void SafetensorsFile::read_i64(std::string_view tensor, std::span<std::int64_t> values) const {
  const SafetensorsEntry& entry = check_count(tensor, values.size());
  const auto from = data_.subspan(entry.begin, entry.bytes());
  switch (dtype(tensor)) {
    case DType::i64:
      return to_integers<std::int64_t>(from, values);
    case DType::i32:
      return to_integers<std::int32_t>(from, values);
    case DType::i8:
      return to_integers<std::int8_t>(from, values);
    case DType::u8:
      return to_integers<std::uint8_t>(from, values);
    default:
      fail("{}: tensor {}: expected I64, I32, I8 or U8, found {}", name_, quoted_name(tensor), entry.dtype);
  }
}

}  // namespace thimble
