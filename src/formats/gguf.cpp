#include "formats/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>
#include <type_traits>

#include "base/error.h"
#include "base/utf8.h"
#include "formats/safetensors.h"

namespace thimble {

namespace {

constexpr std::string_view kGgufMagic = "GGUF";
constexpr std::string_view kAlignmentKey = "general.alignment";
constexpr std::uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;             // key of one byte, type, value of one byte
constexpr std::uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // one dimension
constexpr std::uint64_t kMaxAlignment = 1 << 20;

// Reads values from front to back. If a value does not fit, the Error names what was being read.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  std::uint64_t at() const { return at_; }
  std::uint64_t left() const { return bytes_.size() - at_; }
  void set_location(std::string location) { location_ = std::move(location); }

  template <class... Args>
  void expect(bool ok, FormatHere<std::type_identity_t<Args>...> message, Args&&... args) const {
    if (!ok) refuse(fmt::format(message.format, std::forward<Args>(args)...), message.where);
  }

  template <class T>
  T take(std::string_view what) {
    T value;
    std::memcpy(&value, take_bytes(sizeof value, what).data(), sizeof value);
    return value;
  }

  std::string take_string(std::string_view what) {
    const auto length = take<std::uint64_t>(what);
    const auto bytes = take_bytes(length, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  // Reads an element count and checks it against the bytes left; each element takes at least
  // min_bytes.
  std::uint64_t take_count(std::uint64_t min_bytes, std::string_view what) {
    const auto count = take<std::uint64_t>(what);
    expect(count <= left() / min_bytes, "expected room for {} {}, found {} bytes", count, what, left());
    return count;
  }

 private:
  std::span<const std::byte> take_bytes(std::uint64_t count, std::string_view what) {
    expect(count <= left(), "expected {} bytes for {}, found {}", count, what, left());
    at_ += count;
    return bytes_.subspan(at_ - count, count);
  }

  [[noreturn]] void refuse(const std::string& message, std::source_location where) const {
    throw Error(fmt::format("{}: {}{}{}", file_, location_, location_.empty() ? "" : ": ", message), Hint{},
                where);
  }

  std::span<const std::byte> bytes_;
  const std::string& file_;
  std::string location_;
  std::uint64_t at_ = 0;
};

template <class T>
constexpr std::uint64_t min_bytes() {
  if constexpr (std::is_same_v<T, std::string>) return sizeof(std::uint64_t);
  return std::is_same_v<T, bool> ? 1 : sizeof(T);
}

template <class T>
T take_scalar(Reader& reader) {
  if constexpr (std::is_same_v<T, std::string>) {
    return reader.take_string("a string");
  } else if constexpr (std::is_same_v<T, bool>) {
    const auto byte = reader.take<std::uint8_t>("a bool");
    reader.expect(byte <= 1, "expected a bool of 0 or 1, found {}", byte);
    return byte == 1;
  } else {
    return reader.take<T>("a number");
  }
}

GgufValue take_array(Reader& reader) {
  const auto type = reader.take<std::uint32_t>("an array's type");
  reader.expect(type != kGgufArray, "arrays inside arrays are not supported");
  GgufValue value;
  const bool known = with_gguf_scalar(type, [&]<class T>() {
    const std::uint64_t count = reader.take_count(min_bytes<T>(), "elements");
    std::vector<T> values;
    values.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) values.push_back(take_scalar<T>(reader));
    value = std::move(values);
  });
  reader.expect(known, "expected elements of a type from 0 to 12, found {}", type);
  return value;
}

GgufValue take_value(Reader& reader) {
  const auto type = reader.take<std::uint32_t>("a value's type");
  if (type == kGgufArray) return take_array(reader);
  GgufValue value;
  const bool known = with_gguf_scalar(type, [&]<class T>() { value = take_scalar<T>(reader); });
  reader.expect(known, "expected a value of a type from 0 to 12, found {}", type);
  return value;
}

std::string take_name(Reader& reader, std::string_view what) {
  std::string name = reader.take_string(what);
  reader.expect(!name.empty(), "expected {}, found an empty one", what);
  reader.expect(is_utf8(name), "expected {} in UTF-8, found {}", what, quoted_name(name));
  return name;
}

std::uint64_t alignment_of(const GgufValue* value, const std::string& file) {
  if (!value) return kGgufAlignment;
  const auto* bytes = std::get_if<std::uint32_t>(value);
  check(bytes, "{}: expected {} as u32, found another type", file, kAlignmentKey);
  check(std::has_single_bit(*bytes) && *bytes <= kMaxAlignment,
        "{}: expected {} to be a power of two up to {}, found {}", file, kAlignmentKey, kMaxAlignment,
        *bytes);
  return *bytes;
}

std::uint64_t padded(std::uint64_t bytes, std::uint64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// Read in the file's order (first contiguous), returned in thimble's (last contiguous).
std::vector<std::int64_t> take_dims(Reader& reader) {
  const auto count = reader.take<std::uint32_t>("a number of dimensions");
  reader.expect(count >= 1 && count <= kMaxGgufDims, "expected 1 to {} dimensions, found {}", kMaxGgufDims,
                count);
  std::vector<std::int64_t> dims(count);
  std::int64_t elements = 1;
  for (std::int64_t& dim : dims) {
    dim = reader.take<std::int64_t>("a dimension");
    reader.expect(dim >= 1, "expected dimensions of at least 1, found {}", dim);
    // 2^60 elements of 4 bytes do not overflow 64 bits.
    reader.expect(dim <= (std::int64_t{1} << 60) / elements,
                  "the dimensions multiply to more than 2^60 numbers");
    elements *= dim;
  }
  std::ranges::reverse(dims);
  return dims;
}

GgufType take_type(Reader& reader) {
  const auto id = reader.take<std::uint32_t>("a type");
  const GgufTypeInfo* info = find_gguf_type(id);
  const std::string_view name = gguf_type_name(id);
  reader.expect(info != nullptr, "expected {}, found {}", gguf_types_text(),
                name.empty() ? fmt::format("type {}", id) : std::string(name));
  return info->type;
}

GgufEntry take_entry(Reader& reader) {
  GgufEntry entry{};
  entry.name = take_name(reader, "a tensor's name");
  reader.set_location(fmt::format("tensor {}", quoted_name(entry.name)));
  reader.expect(entry.name.size() <= kMaxGgufName, "expected a name of at most {} bytes, found {}",
                kMaxGgufName, entry.name.size());
  entry.dims = take_dims(reader);
  entry.type = take_type(reader);
  reader.expect(fits_blocks(entry.type, entry.dims.back()),
                "a row of {} numbers is not a multiple of the block size of {}", entry.dims.back(),
                info_of(entry.type).name);
  entry.bytes = gguf_bytes(entry.type, entry.count());
  entry.begin = reader.take<std::uint64_t>("an offset");
  return entry;
}

// ggml requires tensors in the listed order, each at the next multiple of the alignment.
void check_layout(const std::vector<GgufEntry>& entries, std::uint64_t alignment, std::uint64_t data_bytes,
                  const std::string& file) {
  std::uint64_t expected = 0, end = 0;
  for (const GgufEntry& entry : entries) {
    check(entry.begin % alignment == 0,
          "{}: tensor {} begins at byte {} of the data, which is not a multiple of {}", file,
          quoted_name(entry.name), entry.begin, alignment);
    check(entry.begin == expected, "{}: tensor {} begins at byte {} of the data, expected {}", file,
          quoted_name(entry.name), entry.begin, expected);
    check(entry.bytes <= data_bytes && entry.begin <= data_bytes - entry.bytes,
          Hint{"the file is truncated: download or copy it again"},
          "{}: tensor {} needs {} bytes of data, found {}", file, quoted_name(entry.name),
          entry.begin + entry.bytes, data_bytes);
    end = entry.begin + entry.bytes;
    expected = padded(end, alignment);
  }
  check(data_bytes <= expected, "{}: expected {} bytes of data, found {}: the last bytes belong to no tensor",
        file, end, data_bytes);
}

}  // namespace

std::int64_t GgufEntry::count() const {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

namespace {

constexpr std::string_view kSplitNumber = "split.no", kSplitCount = "split.count",
                           kSplitTensors = "split.tensors.count";

// "-00002-of-00003.gguf"
std::string part_ending(std::size_t number, std::size_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", number + 1, count);
}

// The path of a part, whose name must have the form of llama-gguf-split, with another number.
std::filesystem::path part_path(const std::filesystem::path& path, std::size_t from, std::size_t to,
                                std::size_t count) {
  std::string name = path.filename().string();
  const std::string ending = part_ending(from, count);
  check(name.ends_with(ending), Hint{"give the files of the model the names that they were published with"},
        "{}: expected a name that ends with {}, because the file is part {} of {}", path.string(), ending,
        from + 1, count);
  name.replace(name.size() - ending.size(), ending.size(), part_ending(to, count));
  return path.parent_path() / name;
}

}  // namespace

GgufFile GgufFile::map(const std::filesystem::path& path) {
  GgufFile file;
  file.name_ = path.string();
  file.mappings_ = {MappedFile::open(path)};
  file.parse(file.mappings_.front()->bytes());
  file.check_intact();
  return file;
}

GgufFile GgufFile::open(const std::filesystem::path& path) {
  GgufFile file = map(path);
  const std::size_t count = file.parts_expected(), number = file.split_number(kSplitNumber, 0);
  if (count == 1) return file;
  if (number != 0)
    fail(Hint{fmt::format("pass {}", part_path(path, number, 0, count).string())},
         "{} is part {} of {}, expected the first", path.string(), number + 1, count);
  for (std::size_t part = 1; part < count; ++part) file.append(map(part_path(path, 0, part, count)));
  const std::uint64_t tensors = file.split_number(kSplitTensors, file.entries_.size());
  check(tensors == file.entries_.size(), "{}: expected {} tensors in all parts ({}), found {}", path.string(),
        tensors, kSplitTensors, file.entries_.size());
  return file;
}

void GgufFile::append(GgufFile part) {
  const std::uint64_t count = part.parts_expected(), number = part.split_number(kSplitNumber, 0);
  check(count == parts_expected() && number == parts(), "{}: expected part {} of {}, found part {} of {}",
        part.name_, parts() + 1, parts_expected(), number + 1, count);
  for (GgufEntry& entry : part.entries_) {
    check(tensors_.try_emplace(entry.name, entries_.size()).second, "{}: tensor {} is also in another part",
          part.name_, quoted_name(entry.name));
    entry.part = parts();
    entries_.push_back(std::move(entry));
  }
  data_.push_back(part.data_.front());
  mappings_.insert(mappings_.end(), part.mappings_.begin(), part.mappings_.end());
}

std::uint64_t GgufFile::split_number(std::string_view key, std::uint64_t fallback) const {
  const GgufValue* value = find_setting(key);
  if (!value) return fallback;
  const auto number = std::visit(
      []<class T>(const T& content) -> std::optional<std::uint64_t> {
        if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
          if (std::in_range<std::uint32_t>(content)) return static_cast<std::uint64_t>(content);
        return std::nullopt;
      },
      *value);
  check(number.has_value(), "{}: expected {} to be a whole number of up to 32 bits", name_, key);
  return *number;
}

std::size_t GgufFile::parts_expected() const {
  const std::uint64_t count = split_number(kSplitCount, 1), number = split_number(kSplitNumber, 0);
  // Files that were never split may have zeros.
  check(number < std::max<std::uint64_t>(count, 1), "{}: {} is {}, expected less than {}, which is {}", name_,
        kSplitNumber, number, kSplitCount, count);
  return std::max<std::uint64_t>(count, 1);
}

void GgufFile::check_intact() const {
  for (const auto& mapping : mappings_) mapping->check_intact();
}

GgufFile GgufFile::view(std::span<const std::byte> bytes, std::string name) {
  GgufFile file;
  file.name_ = std::move(name);
  file.parse(bytes);
  return file;
}

void GgufFile::parse(std::span<const std::byte> bytes) {
  Reader reader(bytes, name_);
  const auto magic = reader.take<std::array<char, 4>>("the magic GGUF");
  reader.expect(std::string_view(magic.data(), magic.size()) == kGgufMagic,
                "expected the magic GGUF at the start, found {}", quoted_name({magic.data(), magic.size()}));
  const auto version = reader.take<std::uint32_t>("a version");
  reader.expect((version & 0xFFFF) != 0, "big-endian files are not supported");
  reader.expect(version == 2 || version == 3, "expected format version 2 or 3, found {}", version);
  const std::uint64_t tensors = reader.take_count(kMinTensorBytes, "tensors");
  const std::uint64_t keys = reader.take_count(kMinKeyBytes, "keys");

  for (std::uint64_t i = 0; i < keys; ++i) {
    reader.set_location(fmt::format("key {}", i));
    std::string key = take_name(reader, "a key");
    reader.set_location(fmt::format("key {}", quoted_name(key)));
    reader.expect(keys_.try_emplace(key, settings_.size()).second, "duplicate key");
    settings_.emplace_back(std::move(key), take_value(reader));
  }
  reader.set_location("");
  const std::uint64_t alignment = alignment_of(find_setting(kAlignmentKey), name_);

  for (std::uint64_t i = 0; i < tensors; ++i) {
    reader.set_location(fmt::format("tensor {}", i));
    GgufEntry entry = take_entry(reader);
    reader.expect(tensors_.try_emplace(entry.name, entries_.size()).second, "duplicate tensor");
    entries_.push_back(std::move(entry));
  }
  const std::uint64_t data_at = std::min<std::uint64_t>(padded(reader.at(), alignment), bytes.size());
  data_ = {bytes.subspan(data_at)};
  check_layout(entries_, alignment, data_.front().size(), name_);
}

const GgufValue* GgufFile::find_setting(std::string_view key) const {
  const auto found = keys_.find(key);
  return found == keys_.end() ? nullptr : &settings_[found->second].second;
}

const GgufEntry* GgufFile::find(std::string_view tensor) const {
  const auto found = tensors_.find(tensor);
  return found == tensors_.end() ? nullptr : &entries_[found->second];
}

const GgufEntry& GgufFile::at(std::string_view tensor) const {
  const GgufEntry* entry = find(tensor);
  check(entry != nullptr, "{}: expected a tensor {}, not found among {} tensors", name_, quoted_name(tensor),
        entries_.size());
  return *entry;
}

std::span<const std::byte> GgufFile::bytes(std::string_view tensor) const {
  const GgufEntry& entry = at(tensor);
  return data_[entry.part].subspan(entry.begin, entry.bytes);
}

void GgufFile::read_f32(std::string_view tensor, std::span<float> values) const {
  const GgufEntry& entry = at(tensor);
  check(std::cmp_equal(entry.count(), values.size()),
        "{}: tensor {}: expected {} numbers, found {} with shape {}", name_, quoted_name(tensor),
        values.size(), entry.count(), dims_text(entry.dims));
  decode_gguf(entry.type, bytes(tensor), values);
}

namespace {

constexpr std::size_t kPiece = 1 << 18;  // numbers: 1 MiB of f32, a multiple of every block size

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append(std::string& out, bool value) {
  out += static_cast<char>(value ? 1 : 0);
}

void append(std::string& out, const std::string& text) {
  append(out, std::uint64_t{text.size()});
  out += text;
}

template <class T>
void append(std::string& out, const std::vector<T>& values) {
  append(out, gguf_value_type<T>());
  append(out, std::uint64_t{values.size()});
  for (const auto& value : values) append(out, static_cast<const T&>(value));
}

void append(std::string& out, const GgufValue& value) {
  std::visit(
      [&]<class T>(const T& stored) {
        append(out, gguf_value_type<T>());
        append(out, stored);
      },
      value);
}

std::uint64_t padded(std::uint64_t bytes) {
  return (bytes + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment;
}

}  // namespace

void GgufWriter::set(std::string key, GgufValue value) {
  check(!key.empty(), "the name of a GGUF key must not be empty");
  check(keys_.insert(key).second, "the key {} is already set", quoted_name(key));
  settings_.emplace_back(std::move(key), std::move(value));
}

void GgufWriter::add(std::string name, GgufType type, std::vector<std::int64_t> dims,
                     std::span<const float> values) {
  check(!name.empty() && name.size() <= kMaxGgufName, "tensor {}: expected a name of 1 to {} bytes, found {}",
        quoted_name(name), kMaxGgufName, name.size());
  check(!dims.empty() && dims.size() <= kMaxGgufDims, "tensor {}: expected 1 to {} dimensions, found {}",
        quoted_name(name), kMaxGgufDims, dims.size());
  GgufEntry entry{std::move(name), type, std::move(dims), data_bytes_};
  check(std::cmp_equal(entry.count(), values.size()), "tensor {}: shape {} needs {} numbers, found {}",
        quoted_name(entry.name), dims_text(entry.dims), entry.count(), values.size());
  check(fits_blocks(type, entry.dims.back()),
        "tensor {}: a row of {} numbers is not a multiple of the block size of {}", quoted_name(entry.name),
        entry.dims.back(), info_of(type).name);
  check(names_.insert(entry.name).second, "tensor {}: already added", quoted_name(entry.name));
  entry.bytes = gguf_bytes(type, entry.count());
  data_bytes_ += padded(entry.bytes);
  items_.push_back({std::move(entry), values});
}

std::string GgufWriter::header() const {
  std::string out = "GGUF";
  append(out, std::uint32_t{3});
  append(out, static_cast<std::int64_t>(items_.size()));
  append(out, static_cast<std::int64_t>(settings_.size()));
  for (const auto& [key, value] : settings_) {
    append(out, key);
    append(out, value);
  }
  for (const Item& item : items_) {
    append(out, item.entry.name);
    append(out, static_cast<std::uint32_t>(item.entry.dims.size()));
    for (auto dim = item.entry.dims.rbegin(); dim != item.entry.dims.rend(); ++dim) append(out, *dim);
    append(out, static_cast<std::uint32_t>(item.entry.type));
    append(out, item.entry.begin);
  }
  out.resize(padded(out.size()), '\0');
  return out;
}

void GgufWriter::emit_data(const Sink& sink) const {
  std::vector<std::byte> piece;
  for (const Item& item : items_) {
    for (std::size_t begin = 0; begin < item.values.size(); begin += kPiece) {
      const auto part = item.values.subspan(begin, std::min(kPiece, item.values.size() - begin));
      piece.resize(gguf_bytes(item.entry.type, static_cast<std::int64_t>(part.size())));
      try {
        encode_gguf(item.entry.type, part, piece);
      } catch (const Error& error) {
        throw Error(fmt::format("tensor {}: {}", quoted_name(item.entry.name), error.what()),
                    Hint{error.hint()}, error.where());
      }
      sink(piece);
    }
    const std::vector<std::byte> zeros(padded(item.entry.bytes) - item.entry.bytes);
    if (!zeros.empty()) sink(zeros);
  }
}

std::uint64_t GgufWriter::bytes() const {
  return header().size() + data_bytes_;
}

void GgufWriter::write(FileOps& ops, const std::filesystem::path& path, Existing existing,
                       const Inspector& inspect, const ProgressOutput& progress) const {
  AtomicFile file(ops, path, existing);
  file.write(header());
  {
    ProgressBar bar(progress, "writing", "bytes", data_bytes_);
    emit_data([&](std::span<const std::byte> piece) {
      file.write(piece);
      bar.advance(piece.size());
    });
  }
  if (inspect) inspect(file.temporary());
  file.commit();
}

std::string GgufWriter::to_bytes() const {
  std::string out = header();
  emit_data([&](std::span<const std::byte> piece) {
    out.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  return out;
}

}  // namespace thimble
