#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <numeric>

#include "base/error.h"
#include "base/joined.h"
#include "base/json.h"
#include "formats/safetensors.h"
#include "formats/safetensors_digest.h"
#include "formats/safetensors_header.h"

namespace thimble {

namespace {

constexpr std::uint64_t kDataAlignment = 64;

// JSON can hold valid UTF-8 only; what it cannot hold would come back as another name.
void check_text(std::string_view what, std::string_view text) {
  std::string quoted;
  append_json_string(quoted, text);
  check(parse_json(quoted, what).as_string() == text, "{} {}: expected valid UTF-8", what, quoted_name(text));
}

// The largest power of two, up to 64, that divides the size. Nothing is a multiple of everything.
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
  check(name != kMetadataKey && name != kDigestTensor, "tensor {}: the name is taken by the format",
        quoted_name(name));
  const SafetensorsDType* stored = find_safetensors_dtype(dtype);
  check(stored, "tensor {}: expected one of f32, f16, bf16, i32, i64, u8, i8, found {}", quoted_name(name),
        dtype_name(dtype));
  const bool negative = std::any_of(dims.begin(), dims.end(), [](std::int64_t dim) { return dim < 0; });
  const auto bytes = negative ? std::nullopt : safetensors_bytes(*stored, dims);
  check(bytes.has_value(), "tensor {}: no tensor can have the shape {}", quoted_name(name), dims_text(dims));
  return {.name = std::move(name), .dtype = stored->name, .dims = std::move(dims), .begin = 0, .end = *bytes};
}

// Writes one tensor and gives its digest back, if one is wanted.
Digest write_tensor(AtomicFile& file, const SafetensorsEntry& entry, const SafetensorsWriter::Source& source,
                    const std::filesystem::path& path, WithDigest digest) {
  Digester digester;
  std::uint64_t written = 0;
  source([&](std::span<const std::byte> piece) {
    written += piece.size();
    if (written > entry.bytes())
      fail("{}: tensor {}: expected {} bytes, its source gave {} or more", path.string(),
           quoted_name(entry.name), entry.bytes(), written);
    if (digest == WithDigest::yes) digester.add(piece);
    file.write(piece);
  });
  check(written == entry.bytes(), "{}: tensor {}: expected {} bytes, its source gave {}", path.string(),
        quoted_name(entry.name), entry.bytes(), written);
  return digester.result();
}

}  // namespace

struct SafetensorsWriter::Plan {
  std::vector<std::size_t> order;     // positions in items_, as the data comes
  std::vector<std::uint64_t> begins;  // of each item, in the order of items_
  std::uint64_t end = 0;              // of all items
  std::uint64_t digest_bytes = 0;     // 0: there is no digest
};

void SafetensorsWriter::set_metadata(std::string key, std::string value) {
  check_text("metadata key", key);
  check_text("the value of metadata", value);
  check(keys_.insert(key).second, "metadata {}: it is set already", quoted_name(key));
  metadata_.emplace_back(std::move(key), std::move(value));
}

void SafetensorsWriter::add(std::string name, DType dtype, Dims dims, Source source) {
  add(entry_for(std::move(name), dtype, std::move(dims)), std::move(source));
}

void SafetensorsWriter::add(std::string name, DType dtype, Dims dims, std::span<const std::byte> bytes) {
  SafetensorsEntry entry = entry_for(std::move(name), dtype, std::move(dims));
  if (bytes.size() != entry.bytes())
    fail("tensor {}: {} of shape {} takes {} bytes, {} are given", quoted_name(entry.name), entry.dtype,
         dims_text(entry.dims), entry.bytes(), bytes.size());
  add(std::move(entry), [bytes](const Sink& sink) { sink(bytes); });
}

void SafetensorsWriter::add(SafetensorsEntry entry, Source source) {
  if (!names_.insert(entry.name).second) fail("tensor {}: it is added already", quoted_name(entry.name));
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
    // Each has at most 2^60 bytes: the sum is caught before it wraps round.
    check(plan.end < std::uint64_t{1} << 62, "the tensors need 2^62 bytes or more; no file can hold them");
  }
  if (digest == WithDigest::yes) plan.digest_bytes = sizeof(DigestBytes) * (items_.size() + 1);
  return plan;
}

// Everything before the data, its length in front.
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
        "expected a header of at most {} bytes, {} tensors and metadata make {}", kMaxSafetensorsHeaderBytes,
        items_.size(), bytes);
  for (std::size_t i = 0; i < kSafetensorsLengthBytes; ++i) out[i] = static_cast<char>(bytes >> (8 * i));
  return out;
}

void SafetensorsWriter::write(FileOps& ops, const std::filesystem::path& path, Existing existing,
                              WithDigest digest, const Inspector& inspect) const {
  const Plan plan = this->plan(digest);
  const std::string head = header(plan);
  AtomicFile file(ops, path, existing);
  file.write(head);
  std::vector<DigestBytes> digests(items_.size() + 1);
  digests[0] = digest_bytes(digest_of(head));
  for (const std::size_t i : plan.order)
    digests[i + 1] = digest_bytes(write_tensor(file, items_[i].entry, items_[i].source, path, digest));
  if (digest == WithDigest::yes) file.write(std::as_bytes(std::span(digests)));
  if (inspect) inspect(file.temporary());
  file.commit();
}

}  // namespace thimble
