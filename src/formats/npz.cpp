#include "formats/npz.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "formats/model_file.h"
#include "tensor/tensor.h"

namespace thimble {

namespace {

constexpr std::string_view kNumpyMagic = "\x93NUMPY";
constexpr std::string_view kSuffix = ".npy";
constexpr std::size_t kHeaderMultiple = 64;
constexpr std::uint64_t kMaxArchiveBytes = std::uint64_t{8} << 30;

// The header is a Python dict, always in this form:
// {'descr': '<f4', 'fortran_order': False, 'shape': (512, 512), }
class HeaderReader {
 public:
  HeaderReader(std::string_view text, std::string what) : text_(text), what_(std::move(what)) {}

  void expect(std::string_view word) {
    check(text_.starts_with(word), "{}: expected {} in the header, found {}", what_, word,
          text_.substr(0, 40));
    text_.remove_prefix(word.size());
  }
  std::string_view until(char end) {
    const std::size_t at = text_.find(end);
    check(at != text_.npos, "{}: expected {} in the header, found none", what_, end);
    const std::string_view part = text_.substr(0, at);
    text_.remove_prefix(at + 1);
    return part;
  }
  std::string_view rest() const { return text_; }

 private:
  std::string_view text_;
  std::string what_;
};

std::vector<std::int64_t> parse_shape(std::string_view text, const std::string& what) {
  std::vector<std::int64_t> dims;
  std::uint64_t count = 1;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const auto dim = parse_number<std::uint32_t>(text.substr(0, comma));
    check(dim.has_value() && dims.size() < 8, "{}: invalid shape ({})", what, text.substr(0, 40));
    dims.push_back(*dim);
    check(*dim == 0 || count <= std::numeric_limits<std::uint32_t>::max() / *dim,
          "{}: the shape is too large", what);
    count *= *dim;
    text.remove_prefix(std::min(comma + 1, text.size()));
    while (text.starts_with(' ')) text.remove_prefix(1);
  }
  return dims;
}

std::string dtype_of(std::string_view descr, const std::string& what) {
  if (descr == "<f4") return "F32";
  if (descr == "<f2") return "F16";
  if (descr == "<V2" || descr == "|V2") return "BF16";
  fail("{}: found elements of type '{}', expected <f4, <f2 or V2 (bfloat16)", what, descr);
}

void read_values(std::span<const std::byte> bytes, NamedArray& array) {
  ByteReader reader(bytes, array.name);
  for (float& value : array.values) {
    if (array.dtype == "F32")
      value = reader.number<float>();
    else if (array.dtype == "F16")
      value = to_f32(f16{reader.number<std::uint16_t>()});
    else
      value = to_f32(bf16{reader.number<std::uint16_t>()});
  }
}

NamedArray read_array(std::span<const std::byte> bytes, std::string name, const std::string& what) {
  ByteReader reader(bytes, what);
  check(reader.left() >= kNumpyMagic.size() && reader.text(kNumpyMagic.size()) == kNumpyMagic,
        "{} is not a numpy array", what);
  const auto version = reader.number<std::uint8_t>();
  reader.take(1);
  check(version >= 1 && version <= 3, "{}: format version {} is not supported, expected 1 to 3", what,
        version);
  const std::uint64_t header_bytes =
      version == 1 ? reader.number<std::uint16_t>() : reader.number<std::uint32_t>();
  HeaderReader header(reader.text(header_bytes), what);
  header.expect("{'descr': '");
  NamedArray array{
      .name = std::move(name), .dims = {}, .values = {}, .dtype = dtype_of(header.until('\''), what)};
  header.expect(", 'fortran_order': ");
  check(header.until(',') == "False", "{} is in Fortran order, expected C order", what);
  header.expect(" 'shape': (");
  array.dims = parse_shape(header.until(')'), what);
  std::uint64_t count = 1;
  for (const std::int64_t dim : array.dims) count *= static_cast<std::uint64_t>(dim);
  const std::uint64_t size = count * (array.dtype == "F32" ? 4 : 2);
  check(reader.left() == size, "{} has {} bytes of values, shape [{}] needs {}", what, reader.left(),
        joined(array.dims, ", "), size);
  array.values.resize(count);
  read_values(reader.take(size), array);
  return array;
}

std::string npy_header(const std::vector<std::int64_t>& dims) {
  std::string shape;
  for (const std::int64_t dim : dims) shape += fmt::format("{}{}", shape.empty() ? "" : ", ", dim);
  if (dims.size() == 1) shape += ",";
  std::string text = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", shape);
  const std::size_t before = kNumpyMagic.size() + 4;
  text.append(kHeaderMultiple - (before + text.size() + 1) % kHeaderMultiple, ' ');
  text += '\n';
  std::string header(kNumpyMagic);
  header += std::string("\x01\x00", 2);
  append_number(header, static_cast<std::uint16_t>(text.size()));
  return header + text;
}

}  // namespace

std::vector<NamedArray> read_npz(std::span<const std::byte> bytes, const std::string& name) {
  const ZipFile zip(bytes, name);
  std::vector<NamedArray> arrays;
  for (const ZipEntry& entry : zip.entries()) {
    check(!entry.name.ends_with("/data.pkl"), Hint{"save the state dict as safetensors, or as .npz"},
          "{} was written by torch.save, which is only supported for the int8 file of train_gpt.py", name);
    check(entry.name.ends_with(kSuffix), "{}: {} is not an array, expected a name ending in .npy", name,
          entry.name);
    std::string array = entry.name.substr(0, entry.name.size() - kSuffix.size());
    arrays.push_back(read_array(zip.read(entry), array, fmt::format("{}: {}", name, array)));
  }
  return arrays;
}

std::vector<Param> script_params(const ParamTable& table) {
  constexpr std::string_view kSkipWeights = "skip_weights";
  std::vector<Param> params(table.all().begin(), table.all().end());
  const Param* mix = table.find("blocks.0.resid_mix");
  if (!mix || table.find("blocks.1.resid_mix") || table.find(kSkipWeights)) return params;
  Param empty = *mix;
  empty.name = kSkipWeights;
  empty.dims = {0, table.token_embedding().cols};
  empty.rows = 0;
  empty.role = Role::skip_weights;
  empty.layer = -1;
  params.push_back(std::move(empty));
  return params;
}

bool is_empty_skip_weights(std::string_view name, std::span<const std::int64_t> dims) {
  return name == "skip_weights" && !dims.empty() && dims[0] == 0;
}

std::string npz_of(const ParamTable& table, std::span<const float> weights) {
  ZipWriter zip;
  for (const Param& param : script_params(table)) {
    const auto values = std::as_bytes(param.in(weights));
    std::string array = npy_header(param.dims);
    array.append(reinterpret_cast<const char*>(values.data()), values.size());
    zip.add(param.name + std::string(kSuffix), std::as_bytes(std::span(array)));
  }
  return std::move(zip).finish();
}

ModelFile open_npz(const std::filesystem::path& path, const Config& config, std::string_view prefix) {
  const std::string bytes = read_file(path, kMaxArchiveBytes);
  ModelFile out;
  out.path = path;
  out.format = "npz";
  out.architecture = architecture_of(config.model);
  out.config = config;
  std::map<std::string, NamedArray, std::less<>> arrays;
  for (NamedArray& array : read_npz(std::as_bytes(std::span(bytes)), path.string())) {
    out.tensors.push_back(
        {array.name, array.dtype, array.dims, array.values.size() * (array.dtype == "F32" ? 4 : 2)});
    if (array.name.starts_with(prefix)) arrays.emplace(array.name.substr(prefix.size()), std::move(array));
  }
  const ParamTable table(config.model);
  std::vector<std::string> problems;
  for (const Param& param : table.all()) {
    const auto found = arrays.find(param.name);
    if (found == arrays.end())
      problems.push_back(fmt::format("{}{} is missing", prefix, param.name));
    else if (found->second.dims != param.dims)
      problems.push_back(fmt::format("{}{} is [{}], expected [{}]", prefix, param.name,
                                     joined(found->second.dims, ", "), joined(param.dims, ", ")));
  }
  for (const auto& [name, array] : arrays)
    if (!table.find(name) && !is_empty_skip_weights(name, array.dims))
      problems.push_back(fmt::format("{}{} is not part of the model", prefix, name));
  check(problems.empty(), Hint{"pass the config that the weights were trained with"}, "{}: {}", path.string(),
        listed(problems));
  out.weights.resize(static_cast<std::size_t>(table.block_size()));
  for (const Param& param : table.all())
    std::ranges::copy(arrays.at(param.name).values, out.weights.begin() + param.offset);
  return out;
}

namespace {

constexpr std::uint32_t kLocalMagic = 0x04034b50, kCentralMagic = 0x02014b50, kEndMagic = 0x06054b50;
constexpr std::size_t kEndBytes = 22, kLocalBytes = 30;
constexpr std::uint32_t kZip64 = 0xFFFFFFFF;
constexpr std::uint16_t kStored = 0, kDeflated = 8, kEncrypted = 1;
constexpr std::uint16_t kZipVersion = 20;
constexpr std::uint16_t kFirstOfJanuary1980 = 0x21;  // the zero of zip dates: no time is written
constexpr std::uint16_t kPaddingField = 0x4246;      // "FB", the padding field that torch writes

std::uint32_t crc_of(std::span<const std::byte> bytes) {
  return static_cast<std::uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

void inflate_raw(std::span<const std::byte> stored, std::span<std::byte> bytes, const std::string& what) {
  z_stream z{};
  if (inflateInit2(&z, -MAX_WBITS) != Z_OK) throw std::bad_alloc();
  z.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(stored.data()));  // zlib only reads it
  z.avail_in = static_cast<uInt>(stored.size());
  z.next_out = reinterpret_cast<Bytef*>(bytes.data());
  z.avail_out = static_cast<uInt>(bytes.size());
  const int result = inflate(&z, Z_FINISH);
  const bool whole = result == Z_STREAM_END && z.avail_out == 0 && z.avail_in == 0;
  inflateEnd(&z);
  check(whole, "{}: the deflated data is damaged", what);
}

// Returns the start of the end record, which may be followed by a comment.
std::size_t find_end(std::span<const std::byte> bytes, const std::string& name) {
  constexpr std::size_t kMaxCommentBytes = 65535;
  check(bytes.size() >= kEndBytes, "{} is not a zip archive: it has {} bytes", name, bytes.size());
  const std::size_t last = bytes.size() - kEndBytes;
  const std::size_t first = last > kMaxCommentBytes ? last - kMaxCommentBytes : 0;
  for (std::size_t at = last + 1; at-- > first;) {
    ByteReader reader(bytes.subspan(at), name);
    if (reader.number<std::uint32_t>() == kEndMagic) return at;
  }
  fail("{} is not a zip archive, or is truncated: its directory is missing", name);
}

}  // namespace

bool is_zip(std::string_view first_bytes) {
  return first_bytes.starts_with("PK\x03\x04");
}

ZipFile::ZipFile(std::span<const std::byte> bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {
  const std::size_t end = find_end(bytes, name_);
  ByteReader reader(bytes.subspan(end + 4), name_);
  const auto disk = reader.number<std::uint16_t>(), first_disk = reader.number<std::uint16_t>();
  const auto count_here = reader.number<std::uint16_t>(), count = reader.number<std::uint16_t>();
  const auto size = reader.number<std::uint32_t>(), begin = reader.number<std::uint32_t>();
  check(disk == 0 && first_disk == 0 && count_here == count,
        "{} is a multi-disk zip archive, which is not supported", name_);
  check(count != 0xFFFF && begin != kZip64 && size != kZip64, "{} is a zip64 archive, which is not supported",
        name_);
  check(begin <= end && size <= end - begin, "{}: the directory is outside the file", name_);
  read_directory(begin, std::uint64_t{begin} + size, count);
}

void ZipFile::read_directory(std::uint64_t begin, std::uint64_t end, std::uint64_t count) {
  ByteReader reader(bytes_.subspan(begin, end - begin), name_);
  std::set<std::string, std::less<>> names;
  for (std::uint64_t i = 0; i < count; ++i) {
    check(reader.number<std::uint32_t>() == kCentralMagic, "{}: entry {} of the directory is damaged", name_,
          i);
    reader.take(4);  // versions
    const auto flags = reader.number<std::uint16_t>(), method = reader.number<std::uint16_t>();
    reader.take(4);  // time and date
    ZipEntry entry;
    entry.checksum = reader.number<std::uint32_t>();
    entry.stored_bytes = reader.number<std::uint32_t>();
    entry.bytes = reader.number<std::uint32_t>();
    const auto name_bytes = reader.number<std::uint16_t>(), extra = reader.number<std::uint16_t>();
    const auto comment = reader.number<std::uint16_t>();
    reader.take(8);  // disk and attributes
    const auto header = reader.number<std::uint32_t>();
    entry.name = reader.text(name_bytes);
    reader.take(std::uint64_t{extra} + comment);
    check(names.insert(entry.name).second, "{}: duplicate entry {}", name_, entry.name);
    check(!(flags & kEncrypted), "{}: {} is encrypted", name_, entry.name);
    check(method == kStored || method == kDeflated, "{}: {} is compressed by method {}, expected {} or {}",
          name_, entry.name, method, kStored, kDeflated);
    check(entry.bytes != kZip64 && entry.stored_bytes != kZip64 && header != kZip64,
          "{}: {} is a zip64 entry, which is not supported", name_, entry.name);
    entry.deflated = method == kDeflated;
    // Deflate compresses by at most 1032:1. A larger claim is rejected before its size is
    // allocated.
    check(entry.deflated ? entry.bytes / 1032 <= entry.stored_bytes : entry.bytes == entry.stored_bytes,
          "{}: {}: {} bytes cannot be compressed to {}", name_, entry.name, entry.bytes, entry.stored_bytes);
    locate(entry, header);
    entries_.push_back(std::move(entry));
  }
}

void ZipFile::locate(ZipEntry& entry, std::uint64_t header) const {
  check(header <= bytes_.size(), "{}: {} is outside the file", name_, entry.name);
  ByteReader reader(bytes_.subspan(header), name_);
  check(reader.number<std::uint32_t>() == kLocalMagic, "{}: the header of {} is damaged", name_, entry.name);
  reader.take(kLocalBytes - 8);
  const auto name_bytes = reader.number<std::uint16_t>(), extra = reader.number<std::uint16_t>();
  check(reader.text(name_bytes) == entry.name, "{}: {} has a different name in its local header", name_,
        entry.name);
  reader.take(extra);
  entry.begin = header + reader.at();
  check(entry.stored_bytes <= reader.left(), "{}: {} is outside the file", name_, entry.name);
}

const ZipEntry* ZipFile::find(std::string_view name) const {
  const auto found = std::ranges::find(entries_, name, &ZipEntry::name);
  return found == entries_.end() ? nullptr : &*found;
}

std::vector<std::byte> ZipFile::read(const ZipEntry& entry) const {
  const auto stored = bytes_.subspan(entry.begin, entry.stored_bytes);
  std::vector<std::byte> bytes(entry.bytes);
  if (entry.deflated)
    inflate_raw(stored, bytes, fmt::format("{}: {}", name_, entry.name));
  else
    std::ranges::copy(stored, bytes.begin());
  check(crc_of(bytes) == entry.checksum, Hint{"download or copy the file again"},
        "{}: {} is damaged: the checksum does not match", name_, entry.name);
  return bytes;
}

void ZipWriter::add(const std::string& name, std::span<const std::byte> bytes) {
  constexpr std::size_t kFieldBytes = 4;
  std::size_t extra = 0;
  const std::size_t data = out_.size() + kLocalBytes + name.size();
  if (data % alignment_ != 0)
    extra = kFieldBytes + (alignment_ - (data + kFieldBytes) % alignment_) % alignment_;
  check(out_.size() + bytes.size() < std::numeric_limits<std::uint32_t>::max(),
        "[zip] expected an archive of less than 4 GiB");
  const Written entry{name, static_cast<std::uint32_t>(out_.size()), static_cast<std::uint32_t>(bytes.size()),
                      crc_of(bytes)};
  append_number(out_, kLocalMagic);
  for (const std::uint16_t field :
       {kZipVersion, std::uint16_t{0}, kStored, std::uint16_t{0}, kFirstOfJanuary1980})
    append_number(out_, field);
  for (const std::uint32_t field : {entry.checksum, entry.bytes, entry.bytes}) append_number(out_, field);
  append_number(out_, static_cast<std::uint16_t>(name.size()));
  append_number(out_, static_cast<std::uint16_t>(extra));
  out_ += name;
  if (extra > 0) {
    append_number(out_, kPaddingField);
    append_number(out_, static_cast<std::uint16_t>(extra - kFieldBytes));
    out_.append(extra - kFieldBytes, 'Z');
  }
  out_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  entries_.push_back(entry);
}

std::string ZipWriter::finish() && {
  const std::size_t begin = out_.size();
  for (const Written& entry : entries_) {
    append_number(out_, kCentralMagic);
    for (const std::uint16_t field :
         {kZipVersion, kZipVersion, std::uint16_t{0}, kStored, std::uint16_t{0}, kFirstOfJanuary1980})
      append_number(out_, field);
    for (const std::uint32_t field : {entry.checksum, entry.bytes, entry.bytes}) append_number(out_, field);
    append_number(out_, static_cast<std::uint16_t>(entry.name.size()));
    out_.append(8, '\0');  // extra, comment, disk, internal attributes
    append_number(out_, std::uint32_t{0});
    append_number(out_, entry.header);
    out_ += entry.name;
  }
  const std::size_t size = out_.size() - begin;
  check(out_.size() < std::numeric_limits<std::uint32_t>::max() && entries_.size() < 0xFFFF,
        "[zip] expected an archive of less than 4 GiB and 65,535 entries");
  append_number(out_, kEndMagic);
  append_number(out_, std::uint32_t{0});
  append_number(out_, static_cast<std::uint16_t>(entries_.size()));
  append_number(out_, static_cast<std::uint16_t>(entries_.size()));
  append_number(out_, static_cast<std::uint32_t>(size));
  append_number(out_, static_cast<std::uint32_t>(begin));
  append_number(out_, std::uint16_t{0});
  return std::move(out_);
}

}  // namespace thimble
