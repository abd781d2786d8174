#include "formats/zip.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <set>

#include "base/error.h"
#include "formats/little_endian.h"

namespace thimble {

namespace {

constexpr std::uint32_t kLocalMagic = 0x04034b50, kCentralMagic = 0x02014b50, kEndMagic = 0x06054b50;
constexpr std::size_t kEndBytes = 22, kLocalBytes = 30;
constexpr std::uint32_t kZip64 = 0xFFFFFFFF;
constexpr std::uint16_t kStored = 0, kDeflated = 8, kEncrypted = 1;
constexpr std::uint16_t kZipVersion = 20;
constexpr std::uint16_t kFirstOfJanuary1980 = 0x21;  // dates begin there: no time is written
constexpr std::uint16_t kPaddingField = 0x4246;      // "FB", as torch pads

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

// Where the end record begins: it may be followed by a comment.
std::size_t find_end(std::span<const std::byte> bytes, const std::string& name) {
  constexpr std::size_t kMostComment = 65535;
  check(bytes.size() >= kEndBytes, "{} is no zip archive: it has {} bytes", name, bytes.size());
  const std::size_t last = bytes.size() - kEndBytes;
  const std::size_t first = last > kMostComment ? last - kMostComment : 0;
  for (std::size_t at = last + 1; at-- > first;) {
    ByteReader reader(bytes.subspan(at), name);
    if (reader.number<std::uint32_t>() == kEndMagic) return at;
  }
  fail("{} is no zip archive, or it was cut: its directory is missing", name);
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
  check(disk == 0 && first_disk == 0 && count_here == count, "{} is a zip archive of several disks", name_);
  check(count != 0xFFFF && begin != kZip64 && size != kZip64, "{} is a zip64 archive, which is not read",
        name_);
  check(begin <= end && size <= end - begin, "{}: the directory lies outside of the file", name_);
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
    check(names.insert(entry.name).second, "{}: {} is there twice", name_, entry.name);
    check(!(flags & kEncrypted), "{}: {} is encrypted", name_, entry.name);
    check(method == kStored || method == kDeflated, "{}: {} is compressed by method {}, expected {} or {}",
          name_, entry.name, method, kStored, kDeflated);
    check(entry.bytes != kZip64 && entry.stored_bytes != kZip64 && header != kZip64,
          "{}: {} is a zip64 entry, which is not read", name_, entry.name);
    entry.deflated = method == kDeflated;
    // 1032 is what deflate can reach: more is a lie, and would be allocated.
    check(entry.deflated ? entry.bytes / 1032 <= entry.stored_bytes : entry.bytes == entry.stored_bytes,
          "{}: {} cannot have {} bytes in {}", name_, entry.name, entry.bytes, entry.stored_bytes);
    locate(entry, header);
    entries_.push_back(std::move(entry));
  }
}

void ZipFile::locate(ZipEntry& entry, std::uint64_t header) const {
  check(header <= bytes_.size(), "{}: {} lies outside of the file", name_, entry.name);
  ByteReader reader(bytes_.subspan(header), name_);
  check(reader.number<std::uint32_t>() == kLocalMagic, "{}: the header of {} is damaged", name_, entry.name);
  reader.take(kLocalBytes - 8);
  const auto name_bytes = reader.number<std::uint16_t>(), extra = reader.number<std::uint16_t>();
  check(reader.text(name_bytes) == entry.name, "{}: {} has another name in its header", name_, entry.name);
  reader.take(extra);
  entry.begin = header + reader.at();
  check(entry.stored_bytes <= reader.left(), "{}: {} lies outside of the file", name_, entry.name);
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
  check(crc_of(bytes) == entry.checksum, Hint{"copy the file again"},
        "{}: {} is damaged: its checksum differs", name_, entry.name);
  return bytes;
}

void ZipWriter::add(const std::string& name, std::span<const std::byte> bytes) {
  constexpr std::size_t kFieldBytes = 4;
  std::size_t extra = 0;
  const std::size_t data = out_.size() + kLocalBytes + name.size();
  if (data % alignment_ != 0)
    extra = kFieldBytes + (alignment_ - (data + kFieldBytes) % alignment_) % alignment_;
  check(out_.size() + bytes.size() < std::numeric_limits<std::uint32_t>::max(),
        "[zip] 4 GiB and more are not written");
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
        "[zip] 4 GiB and more are not written");
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
