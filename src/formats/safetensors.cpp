#include "formats/safetensors.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <iterator>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "tensor/tensor.h"

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

// Parses the header as a stream, so that only the entries are stored, not a JSON tree.
class HeaderVisitor : public JsonVisitor {
 public:
  explicit HeaderVisitor(std::string_view file) : file_(file) {}

  SafetensorsHeader take() { return std::move(header_); }

  void null() override { unexpected("null"); }
  void boolean(bool value) override { unexpected(value ? "true" : "false"); }
  void big_integer(std::uint64_t value) override { unexpected(std::to_string(value)); }
  void number(double value) override { unexpected(fmt::format("{}", value)); }

  void start_object() override {
    if (state_ == State::start) {
      state_ = State::root;
    } else if (state_ == State::root && key_ == kMetadataKey) {
      state_ = State::metadata;
    } else if (state_ == State::root) {
      header_.entries.push_back({.name = std::move(key_), .dtype = {}, .dims = {}});
      fields_seen_ = offsets_seen_ = 0;
      state_ = State::tensor;
    } else {
      unexpected("an object");
    }
  }

  void end_object() override {
    if (state_ == State::tensor) check_complete();
    state_ = state_ == State::root ? State::start : State::root;
  }

  void key(std::string key) override {
    if (state_ != State::tensor) {
      key_ = std::move(key);
      return;
    }
    const auto found = std::find(kFields.begin(), kFields.end(), key);
    if (found == kFields.end()) wrong(fmt::format("the fields {}", joined(kFields, ", ")), quoted_name(key));
    field_ = static_cast<Field>(found - kFields.begin());
    fields_seen_ |= 1u << (found - kFields.begin());
  }

  void string(std::string value) override {
    if (state_ == State::metadata) {
      header_.metadata.emplace_back(std::move(key_), std::move(value));
    } else if (state_ == State::tensor && field_ == Field::dtype) {
      const SafetensorsDType* dtype = find_safetensors_dtype(value);
      if (!dtype) wrong("a dtype like F32 or BF16", quoted_name(value));
      entry().dtype = dtype->name;
    } else {
      unexpected(fmt::format("the string {}", quoted_name(value)));
    }
  }

  void start_array() override {
    if (state_ == State::tensor && field_ == Field::shape)
      state_ = State::shape;
    else if (state_ == State::tensor && field_ == Field::offsets)
      state_ = State::offsets;
    else
      unexpected("an array");
  }

  void end_array() override {
    if (state_ == State::offsets && offsets_seen_ != 2)
      wrong("2 data_offsets", std::to_string(offsets_seen_));
    state_ = State::tensor;
  }

  void integer(std::int64_t value) override {
    if ((state_ != State::shape && state_ != State::offsets) || value < 0) unexpected(std::to_string(value));
    if (state_ == State::shape)
      entry().dims.push_back(value);
    else if (++offsets_seen_ <= 2)
      (offsets_seen_ == 1 ? entry().begin : entry().end) = static_cast<std::uint64_t>(value);
  }

 private:
  enum class State { start, root, metadata, tensor, shape, offsets };
  enum class Field { dtype, shape, offsets };
  static constexpr std::array<std::string_view, 3> kFields = {"dtype", "shape", "data_offsets"};

  SafetensorsEntry& entry() { return header_.entries.back(); }

  void check_complete() {
    for (std::size_t i = 0; i < kFields.size(); ++i)
      if (!(fields_seen_ >> i & 1u)) wrong(fmt::format("the field {}", kFields[i]), "none");
  }

  std::string subject() const {
    if (state_ == State::start) return "the header";
    if (state_ == State::metadata) return fmt::format("{} {}", kMetadataKey, quoted_name(key_));
    if (state_ == State::root)
      return key_ == kMetadataKey ? key_ : fmt::format("tensor {}", quoted_name(key_));
    return fmt::format("tensor {}", quoted_name(header_.entries.back().name));
  }

  std::string_view expected() const {
    switch (state_) {
      case State::start:
      case State::root:
        return "an object";
      case State::metadata:
        return "a string";
      case State::shape:
        return "whole numbers from 0 to 2^63 - 1 in shape";
      case State::offsets:
        return "whole numbers from 0 to 2^63 - 1 in data_offsets";
      case State::tensor:
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
  State state_ = State::start;
  Field field_ = Field::dtype;
  std::string key_;
  unsigned fields_seen_ = 0, offsets_seen_ = 0;  // of the current tensor
};

// Messages are formatted only on failure: a header may have a million entries.
void check_size(const SafetensorsEntry& entry, std::string_view file) {
  if (entry.begin > entry.end)
    fail("{}: tensor {}: expected data_offsets [BEGIN, END] with BEGIN <= END, found [{}, {}]", file,
         quoted_name(entry.name), entry.begin, entry.end);
  const auto bytes = safetensors_bytes(*find_safetensors_dtype(entry.dtype), entry.dims);
  if (!bytes)
    fail("{}: tensor {}: {} of shape {} is too large, or not a whole number of bytes", file,
         quoted_name(entry.name), entry.dtype, dims_text(entry.dims));
  if (*bytes != entry.bytes())
    fail("{}: tensor {}: {} of shape {} needs {} bytes, data_offsets [{}, {}] contain {}", file,
         quoted_name(entry.name), entry.dtype, dims_text(entry.dims), *bytes, entry.begin, entry.end,
         entry.bytes());
}

void check_cover(const std::vector<SafetensorsEntry>& entries, std::string_view file,
                 std::uint64_t data_bytes) {
  std::vector<std::uint32_t> order(entries.size());
  std::iota(order.begin(), order.end(), 0u);
  // Ties (empty tensors) keep the header's order, so that the message is deterministic.
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
  check(reached <= data_bytes, Hint{"the file is truncated: copy or download it again"},
        "{}: expected {} bytes of data, found {}: tensor {} is not complete", file, reached, data_bytes,
        previous ? quoted_name(previous->name) : "");
  check(reached == data_bytes, "{}: expected {} bytes of data, found {}: the last bytes belong to no tensor",
        file, reached, data_bytes);
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

DigestBytes digest_bytes(const Digest& digest) {
  DigestBytes bytes;
  for (std::size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<std::byte>(digest.high >> (56 - 8 * i));
    bytes[8 + i] = static_cast<std::byte>(digest.low >> (56 - 8 * i));
  }
  return bytes;
}

namespace {

std::uint64_t bytes_read(const SafetensorsFile& file) {
  std::uint64_t bytes = 0;
  for (const SafetensorsEntry& entry : file.entries())
    if (file.is_read(entry.name)) bytes += entry.bytes();
  return bytes;
}

}  // namespace

void verify_digest(const SafetensorsFile& file, const ProgressOutput& progress) {
  const Hint damaged{
      "the file was changed or damaged after it was written: copy it again, or use an older file"};
  const auto& entries = file.entries();
  const SafetensorsEntry* own = file.find(kDigestTensor);
  check(own, "{}: expected digests in a tensor {}, found none", file.name(), kDigestTensor);
  const auto expected_dims = static_cast<std::int64_t>(sizeof(DigestBytes) * entries.size());
  check(own == &entries.back() && own->dtype == "U8" && own->dims == std::vector{expected_dims}, damaged,
        "{}: expected {} to be the last tensor, U8 of shape [{}], found {} of shape {}", file.name(),
        kDigestTensor, expected_dims, own->dtype, dims_text(own->dims));
  const auto written = file.bytes(kDigestTensor);
  auto matches = [&](std::size_t i, const Digest& digest) {
    const DigestBytes bytes = digest_bytes(digest);
    return std::equal(bytes.begin(), bytes.end(),
                      written.begin() + static_cast<std::ptrdiff_t>(i * bytes.size()));
  };
  check(matches(0, file.header_digest()), damaged, "{}: the checksum of the header does not match (found {})",
        file.name(), file.header_digest().hex());
  ProgressBar bar(progress, "verifying", "bytes", bytes_read(file));
  for (std::size_t i = 0; i + 1 < entries.size(); ++i) {
    if (!file.is_read(entries[i].name)) continue;
    const Digest digest = digest_of(file.bytes(entries[i].name));
    bar.advance(entries[i].bytes());
    if (!matches(i + 1, digest))
      fail(damaged, "{}: tensor {}: the checksum does not match (found {})", file.name(),
           quoted_name(entries[i].name), digest.hex());
  }
}

namespace {

static_assert(std::endian::native == std::endian::little,
              "numbers in the file are little-endian and are not converted");

using LengthBytes = std::array<std::byte, kSafetensorsLengthBytes>;

void check_file_bytes(std::string_view file, std::uint64_t file_bytes) {
  check(file_bytes >= kSafetensorsLengthBytes,
        Hint{"check that this is a safetensors file and that it is complete"},
        "{}: expected at least {} bytes, found {}", file, kSafetensorsLengthBytes, file_bytes);
}

std::uint64_t header_bytes(const LengthBytes& length, std::string_view file, std::uint64_t file_bytes) {
  const auto bytes = std::bit_cast<std::uint64_t>(length);
  const std::uint64_t rest = file_bytes - kSafetensorsLengthBytes;
  check(bytes <= kMaxSafetensorsHeaderBytes, Hint{"check that this is a safetensors file"},
        "{}: expected a header of at most {} bytes, found a length of {}", file, kMaxSafetensorsHeaderBytes,
        bytes);
  check(bytes <= rest, Hint{"check that this is a safetensors file and that it is complete"},
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

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path, TensorFilter wanted,
                                      const ProgressOutput& progress) {
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
  file.memory_ =
      Arena(static_cast<std::int64_t>(data_bytes), file.name_,
            "the complete file is read into memory: close other programs, or use a machine with more memory");
  const std::span data(file.memory_.at(0), data_bytes);
  file.wanted_ = wanted;
  ProgressBar bar(progress, "reading", "bytes", wanted ? bytes_read(file) : data_bytes);
  const auto on_read = [&](std::uint64_t bytes) { bar.advance(bytes); };
  if (!wanted) input.read_at(data_at, data, on_read);
  for (const SafetensorsEntry& entry : file.entries_)
    if (wanted && wanted(entry.name))
      input.read_at(data_at + entry.begin, data.subspan(entry.begin, entry.bytes()), on_read);
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

void SafetensorsFile::release(std::string_view tensor) {
  if (memory_.bytes() == 0) return;
  static const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const SafetensorsEntry& entry = at(tensor);
  // Pages at the ends may contain bytes of other tensors. The arena begins at a page.
  const std::uint64_t begin = (entry.begin + page - 1) / page * page, end = entry.end / page * page;
  if (begin < end) madvise(memory_.at(static_cast<std::int64_t>(begin)), end - begin, MADV_DONTNEED);
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
    fail(Hint{"list the tensors with `thimble inspect`"},
         "{}: expected a tensor {}, not found among {} tensors", name_, quoted_name(tensor), entries_.size());
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

namespace {

constexpr std::uint64_t kDataAlignment = 64;

// JSON only represents valid UTF-8. Any other name would be read back differently.
void check_text(std::string_view what, std::string_view text) {
  std::string quoted;
  append_json_string(quoted, text);
  check(parse_json(quoted, what).as_string() == text, "{} {}: expected valid UTF-8", what, quoted_name(text));
}

// The largest power of two, up to 64, that divides the size; 64 for an empty tensor.
std::uint64_t alignment_class(std::uint64_t bytes) {
  return bytes == 0 ? kDataAlignment : std::min(kDataAlignment, std::uint64_t{1} << std::countr_zero(bytes));
}

void append_entry(std::string& out, const SafetensorsEntry& entry, std::uint64_t begin) {
  append_json_string(out, entry.name);
  out += fmt::format(R"(:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", entry.dtype,
                     joined(entry.dims, ","), begin, begin + entry.bytes());
}

void append_metadata(std::string& out, const SafetensorsFile::Metadata& metadata) {
  append_json_string(out, kMetadataKey);
  out += ':';
  for (std::size_t i = 0; i < metadata.size(); ++i) {
    out += i == 0 ? '{' : ',';
    append_json_string(out, metadata[i].first);
    out += ':';
    append_json_string(out, metadata[i].second);
  }
  out += '}';
}

SafetensorsEntry entry_for(std::string name, DType dtype, SafetensorsWriter::Dims dims) {
  check_text("tensor", name);
  check(name != kMetadataKey && name != kDigestTensor, "tensor {}: the name is reserved by the format",
        quoted_name(name));
  const SafetensorsDType* stored = find_safetensors_dtype(dtype);
  check(stored, "tensor {}: expected one of f32, f16, bf16, i32, i64, u8, i8, found {}", quoted_name(name),
        dtype_name(dtype));
  const bool negative = std::any_of(dims.begin(), dims.end(), [](std::int64_t dim) { return dim < 0; });
  const auto bytes = negative ? std::nullopt : safetensors_bytes(*stored, dims);
  check(bytes.has_value(), "tensor {}: invalid shape {}", quoted_name(name), dims_text(dims));
  return {.name = std::move(name), .dtype = stored->name, .dims = std::move(dims), .begin = 0, .end = *bytes};
}

// Writes one tensor. Returns its digest if one was requested.
Digest write_tensor(AtomicFile& file, const SafetensorsEntry& entry, const SafetensorsWriter::Source& source,
                    const std::filesystem::path& path, WithDigest digest, ProgressBar& bar) {
  constexpr std::size_t kPiece = 16 << 20;
  Digester digester;
  std::uint64_t written = 0;
  source([&](std::span<const std::byte> bytes) {
    written += bytes.size();
    if (written > entry.bytes())
      fail("{}: tensor {}: expected {} bytes, the source produced {} or more", path.string(),
           quoted_name(entry.name), entry.bytes(), written);
    for (std::size_t begin = 0; begin < bytes.size(); begin += kPiece) {
      const std::span piece = bytes.subspan(begin, std::min(kPiece, bytes.size() - begin));
      if (digest == WithDigest::yes) digester.add(piece);
      file.write(piece);
      bar.advance(piece.size());
    }
  });
  check(written == entry.bytes(), "{}: tensor {}: expected {} bytes, the source produced {}", path.string(),
        quoted_name(entry.name), entry.bytes(), written);
  return digester.result();
}

}  // namespace

struct SafetensorsWriter::Plan {
  std::vector<std::size_t> order;     // indices into items_, in the order of the data
  std::vector<std::uint64_t> begins;  // offset of each item, in the order of items_
  std::uint64_t end = 0;              // size of all items
  std::uint64_t digest_bytes = 0;     // 0: no digests
};

void SafetensorsWriter::set_metadata(std::string key, std::string value) {
  check_text("metadata key", key);
  check_text("the value of metadata", value);
  check(keys_.insert(key).second, "metadata {}: already set", quoted_name(key));
  metadata_.emplace_back(std::move(key), std::move(value));
}

void SafetensorsWriter::add(std::string name, DType dtype, Dims dims, Source source) {
  add(entry_for(std::move(name), dtype, std::move(dims)), std::move(source));
}

void SafetensorsWriter::add(std::string name, DType dtype, Dims dims, std::span<const std::byte> bytes) {
  SafetensorsEntry entry = entry_for(std::move(name), dtype, std::move(dims));
  if (bytes.size() != entry.bytes())
    fail("tensor {}: {} of shape {} needs {} bytes, found {}", quoted_name(entry.name), entry.dtype,
         dims_text(entry.dims), entry.bytes(), bytes.size());
  add(std::move(entry), [bytes](const Sink& sink) { sink(bytes); });
}

void SafetensorsWriter::add(SafetensorsEntry entry, Source source) {
  if (!names_.insert(entry.name).second) fail("tensor {}: already added", quoted_name(entry.name));
  items_.push_back({std::move(entry), std::move(source)});
}

SafetensorsWriter::Plan SafetensorsWriter::plan(WithDigest digest) const {
  Plan plan;
  plan.order.resize(items_.size());
  std::iota(plan.order.begin(), plan.order.end(), std::size_t{0});
  const auto rank = [&](std::size_t i) {
    return std::pair(kDataAlignment - alignment_class(items_[i].entry.bytes()), i);
  };
  std::sort(plan.order.begin(), plan.order.end(),
            [&](std::size_t a, std::size_t b) { return rank(a) < rank(b); });
  plan.begins.resize(items_.size());
  for (const std::size_t i : plan.order) {
    plan.begins[i] = plan.end;
    plan.end += items_[i].entry.bytes();
    // Each size is at most 2^60 bytes, so the check fails before the sum can overflow.
    check(plan.end < std::uint64_t{1} << 62,
          "the tensors need 2^62 bytes or more, which exceeds the maximum file size");
  }
  if (digest == WithDigest::yes) plan.digest_bytes = sizeof(DigestBytes) * (items_.size() + 1);
  return plan;
}

// Everything before the data, including the length of the header.
std::string SafetensorsWriter::header(const Plan& plan) const {
  std::string out(kSafetensorsLengthBytes, '\0');
  out += '{';
  bool first = true;
  auto separate = [&] {
    if (!std::exchange(first, false)) out += ',';
  };
  if (!metadata_.empty()) {
    separate();
    append_metadata(out, metadata_);
  }
  for (std::size_t i = 0; i < items_.size(); ++i) {
    separate();
    append_entry(out, items_[i].entry, plan.begins[i]);
  }
  if (plan.digest_bytes > 0) {
    separate();
    append_entry(out,
                 {.name = std::string(kDigestTensor),
                  .dtype = "U8",
                  .dims = {static_cast<std::int64_t>(plan.digest_bytes)},
                  .begin = 0,
                  .end = plan.digest_bytes},
                 plan.end);
  }
  out += '}';
  out.resize((out.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment, ' ');
  const std::uint64_t bytes = out.size() - kSafetensorsLengthBytes;
  check(bytes <= kMaxSafetensorsHeaderBytes,
        "expected a header of at most {} bytes, {} tensors and the metadata need {}",
        kMaxSafetensorsHeaderBytes, items_.size(), bytes);
  for (std::size_t i = 0; i < kSafetensorsLengthBytes; ++i) out[i] = static_cast<char>(bytes >> (8 * i));
  return out;
}

void SafetensorsWriter::write(FileOps& ops, const std::filesystem::path& path, Existing existing,
                              WithDigest digest, const Inspector& inspect,
                              const ProgressOutput& progress) const {
  const Plan plan = this->plan(digest);
  const std::string head = header(plan);
  AtomicFile file(ops, path, existing);
  file.write(head);
  std::vector<DigestBytes> digests(items_.size() + 1);
  digests[0] = digest_bytes(digest_of(head));
  {
    ProgressBar bar(progress, "writing", "bytes", plan.end);
    for (const std::size_t i : plan.order)
      digests[i + 1] = digest_bytes(write_tensor(file, items_[i].entry, items_[i].source, path, digest, bar));
  }
  if (digest == WithDigest::yes) file.write(std::as_bytes(std::span(digests)));
  if (inspect) inspect(file.temporary());
  file.commit();
}

}  // namespace thimble
