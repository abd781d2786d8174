#include <algorithm>
#include <type_traits>

#include "base/error.h"
#include "formats/gguf.h"
#include "formats/gguf_values.h"
#include "formats/safetensors_header.h"

namespace thimble {

namespace {

constexpr std::size_t kPiece = 1 << 18;  // numbers: a megabyte at a time, whole blocks of every type

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
      [&]<class T>(const T& held) {
        append(out, gguf_value_type<T>());
        append(out, held);
      },
      value);
}

std::uint64_t padded(std::uint64_t bytes) {
  return (bytes + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment;
}

}  // namespace

void GgufWriter::set(std::string key, GgufValue value) {
  check(!key.empty(), "a key of a GGUF must have a name");
  check(keys_.insert(key).second, "the key {} is set already", quoted_name(key));
  settings_.emplace_back(std::move(key), std::move(value));
}

void GgufWriter::add(std::string name, GgufType type, std::vector<std::int64_t> dims,
                     std::span<const float> values) {
  check(!name.empty() && name.size() <= kMaxGgufName, "tensor {}: expected a name of 1 to {} bytes, found {}",
        quoted_name(name), kMaxGgufName, name.size());
  check(!dims.empty() && dims.size() <= kMaxGgufDims, "tensor {}: expected 1 to {} dimensions, found {}",
        quoted_name(name), kMaxGgufDims, dims.size());
  GgufEntry entry{std::move(name), type, std::move(dims), data_bytes_, 0};
  check(std::cmp_equal(entry.count(), values.size()), "tensor {}: the shape {} has {} numbers, {} are given",
        quoted_name(entry.name), dims_text(entry.dims), entry.count(), values.size());
  check(fits_blocks(type, entry.dims.back()), "tensor {}: rows of {} are no whole blocks of {}",
        quoted_name(entry.name), entry.dims.back(), info_of(type).name);
  check(names_.insert(entry.name).second, "tensor {}: it is added already", quoted_name(entry.name));
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

void GgufWriter::pass_on(const Sink& sink) const {
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
                       const Inspector& inspect) const {
  AtomicFile file(ops, path, existing);
  file.write(header());
  pass_on([&](std::span<const std::byte> piece) { file.write(piece); });
  if (inspect) inspect(file.temporary());
  file.commit();
}

std::string GgufWriter::to_bytes() const {
  std::string out = header();
  pass_on([&](std::span<const std::byte> piece) {
    out.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  return out;
}

}  // namespace thimble
