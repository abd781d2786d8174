#include "formats/artifact.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/digest.h"
#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/text.h"
#include "config/toml.h"
#include "formats/model_file.h"
#include "formats/safetensors.h"
#include "pack/packed_tensor.h"
#include "tokenizer/sentencepiece.h"

namespace thimble {

namespace {

constexpr std::string_view kMagic = "thimble";
constexpr std::uint8_t kVersion = 1;
constexpr std::uint64_t kMaxContentBytes = 64 << 20, kMaxExpansion = 256;

std::uint64_t read_u64(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  return value;
}

void append_u64(std::uint64_t value, std::string& bytes) {
  for (std::size_t i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i));
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void check_header(std::span<const std::byte> bytes, std::string_view name) {
  check(is_artifact(text_of(bytes.first(std::min<std::size_t>(bytes.size(), 8)))),
        "{} is not a .thimble artifact", name);
  const auto version = std::to_integer<std::uint8_t>(bytes[kMagic.size()]);
  check(version == kVersion, Hint{"a newer version of thimble may have written it; update thimble"},
        "{}: expected artifact format version {}, found version {}", name, kVersion, version);
  check(bytes.size() >= kArtifactHeaderBytes, "{} is truncated: it has {} bytes", name, bytes.size());
  const auto expected = bytes.subspan(8, sizeof(DigestBytes));
  const DigestBytes found = digest_bytes(digest_of(bytes.subspan(kArtifactHeaderBytes)));
  check(std::ranges::equal(found, expected), Hint{"copy it again, or pack the model again"},
        "{}: the checksum does not match: the file is damaged", name);
}

ArtifactPart read_part(std::span<const std::byte>& bytes, std::string_view name) {
  check(bytes.size() >= kPartHeaderBytes, "{} is truncated inside the header of a part", name);
  const auto codec = std::to_integer<std::uint8_t>(bytes[0]);
  check(codec >= 1 && codec <= 3, "{}: expected codec 1, 2 or 3, found {}", name, codec);
  const std::uint64_t raw = read_u64(bytes.subspan(1)), stored = read_u64(bytes.subspan(9));
  bytes = bytes.subspan(kPartHeaderBytes);
  check(stored <= bytes.size(), "{}: a part declares {} compressed bytes, only {} remain in the file", name,
        stored, bytes.size());
  check((raw == 0) == (stored == 0), "{}: a part declares {} uncompressed and {} compressed bytes", name, raw,
        stored);
  const ArtifactPart part{static_cast<Codec>(codec), raw, bytes.first(stored)};
  bytes = bytes.subspan(stored);
  return part;
}

}  // namespace

bool is_artifact(std::string_view first_bytes) {
  // Requires the byte after the magic not to be printable: a text file may begin with "thimble".
  return first_bytes.size() > kMagic.size() && first_bytes.starts_with(kMagic) &&
         static_cast<unsigned char>(first_bytes[kMagic.size()]) < ' ';
}

std::vector<std::byte> ArtifactPart::content(Prefix prefix) const {
  std::vector<std::byte> bytes(raw_bytes);
  if (!bytes.empty()) decompress(stored, codec, bytes, prefix);
  return bytes;
}

std::vector<ArtifactPart> read_parts(std::span<const std::byte> bytes, std::string_view name) {
  check_header(bytes, name);
  std::uint64_t room = kMaxContentBytes + kMaxExpansion * bytes.size();
  std::vector<ArtifactPart> parts;
  for (auto rest = bytes.subspan(kArtifactHeaderBytes); !rest.empty();) {
    parts.push_back(read_part(rest, name));
    check(parts.back().raw_bytes <= room,
          "{}: the parts declare more than {} bytes plus {} times the file size", name, kMaxContentBytes,
          kMaxExpansion);
    room -= parts.back().raw_bytes;
  }
  return parts;
}

void append_part(const ArtifactPart& part, std::string& bytes) {
  bytes += static_cast<char>(part.codec);
  append_u64(part.raw_bytes, bytes);
  append_u64(part.stored.size(), bytes);
  bytes += text_of(part.stored);
}

std::string with_artifact_header(std::string_view parts) {
  std::string bytes(kMagic);
  bytes += static_cast<char>(kVersion);
  bytes += text_of(digest_bytes(digest_of(parts)));
  return bytes.append(parts);
}

namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 33;
constexpr std::uint64_t kMaxMetadataBytes = 1 << 24;

class Metadata {
 public:
  Metadata(std::string_view json, const std::string& name) : name_(name) {
    const Json object = parse_json(json, fmt::format("{}: metadata", name));
    for (const auto& [key, value] : object.as_object()) pairs_.emplace_back(key, value.as_string());
  }

  const std::string* find(std::string_view key) const {
    for (const auto& [own, value] : pairs_)
      if (own == key) return &value;
    return nullptr;
  }
  const std::string& at(std::string_view key) const {
    const std::string* value = find(key);
    check(value, "{}: expected metadata {}, found none", name_, key);
    return *value;
  }
  // Returns nullopt if the key is absent.
  std::optional<std::int64_t> count(std::string_view key, std::int64_t max) const {
    const std::string* text = find(key);
    if (!text) return std::nullopt;
    const auto value = parse_number<std::int64_t>(*text);
    check(value && *value >= 0 && *value <= max, "{}: metadata {} is '{}', expected a whole number up to {}",
          name_, key, text->substr(0, 40), max);
    return value;
  }
  std::vector<std::pair<std::string, std::string>> take() { return std::move(pairs_); }

 private:
  const std::string& name_;
  std::vector<std::pair<std::string, std::string>> pairs_;
};

std::string text_in(const ArtifactPart& part, std::string_view prefix = {}) {
  const std::vector<std::byte> content = part.content(std::as_bytes(std::span(prefix)));
  return {reinterpret_cast<const char*>(content.data()), content.size()};
}

std::string tokenizer_content(const ArtifactPart& part, const Metadata& metadata, const std::string& name) {
  const std::string* normalizer = metadata.find(kNormalizerKey);
  if (!normalizer) return text_in(part);
  const std::string table = standard_normalizer_table(*normalizer);
  check(digest_of(table).hex() == metadata.at(kNormalizerDigestKey),
        Hint{"use the version of libsentencepiece that the file was packed with"},
        "{}: the tokenizer needs a version of normalizer {} that this libsentencepiece does not have", name,
        *normalizer);
  return text_in(part, table);
}

std::optional<TokenizerFile> read_tokenizer(const ArtifactPart& part, const Metadata& metadata,
                                            const ModelConfig& config, const std::string& name) {
  if (part.raw_bytes == 0) return std::nullopt;
  const auto id = [&](std::string_view key) -> std::optional<TokenId> {
    const auto value = metadata.count(key, config.vocab_size - 1);
    return value ? std::optional(static_cast<TokenId>(*value)) : std::nullopt;
  };
  const auto adds_bos = metadata.count(kAddsBosKey, 1);
  return TokenizerFile{.name = fmt::format("{}: tokenizer", name),
                       .content = tokenizer_content(part, metadata, name),
                       .special = {.bos = id(kBosKey), .eos = id(kEosKey), .unk = {}, .pad = {}},
                       .adds_bos = adds_bos ? std::optional(*adds_bos == 1) : std::nullopt};
}

// Reads one letter per tensor, in the order of the groups.
void read_storage(const Metadata& metadata, std::span<const TensorGroup> groups, const std::string& name,
                  std::vector<PackedTensor>& tensors) {
  const std::string &storages = metadata.at(kStorageKey), &types = metadata.at(kRestoredKey);
  check(storages.size() == tensors.size() && types.size() == tensors.size(),
        "{}: expected the storage of {} tensors, found {} and {}", name, tensors.size(), storages.size(),
        types.size());
  std::size_t at = 0;
  for (const TensorGroup& group : groups)
    for (const std::size_t i : group.tensors) {
      const auto storage = storage_of_letter(storages[at]);
      const auto restored = dtype_of_letter(types[at++]);
      check(storage && restored, "{}: group {} uses a storage type that this build does not support", name,
            group.name);
      tensors[i].storage = *storage;
      tensors[i].restored = *restored;
    }
}

void check_sizes(std::span<const ArtifactPart> parts, const ParamTable& table,
                 std::span<const TensorGroup> groups, const std::string& name,
                 std::span<const PackedTensor> tensors) {
  check(parts.size() == groups.size(), "{}: expected {} groups of tensors, found {}", name, groups.size(),
        parts.size());
  for (std::size_t i = 0; i < groups.size(); ++i)
    check(parts[i].raw_bytes == group_size(table, groups[i], tensors),
          "{}: expected {} bytes for {}, found {}", name, group_size(table, groups[i], tensors),
          groups[i].name, parts[i].raw_bytes);
}

// Decodes one group at a time, so that at most one is in memory in addition to the result.
std::shared_ptr<const StoredWeights> read_stored(std::span<const ArtifactPart> parts, const ParamTable& table,
                                                 std::span<const TensorGroup> groups,
                                                 std::vector<PackedTensor> tensors, const PartReader& content,
                                                 ProgressBar& bar) {
  std::vector<WeightFormat> formats;
  for (const PackedTensor& tensor : tensors) formats.push_back(stored_format(tensor));
  auto stored = std::make_shared<StoredWeights>(table, formats);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    read_group(table, groups[i], content(parts[i], i), tensors);
    for (const std::size_t at : groups[i].tensors) {
      const Param& param = table.all()[at];
      store_tensor(param, tensors[at], stored->tensor(param));
      tensors[at] = {};
    }
    bar.advance(parts[i].raw_bytes);
  }
  return stored;
}

void list_tensors(const ParamTable& table, Artifact& artifact) {
  const auto params = table.all();
  for (std::size_t i = 0; i < params.size(); ++i) {
    const Storage storage = artifact.tensors[i].storage;
    artifact.model.tensors.push_back({params[i].name, std::string(name_of(storage)), params[i].dims,
                                      static_cast<std::uint64_t>(payload_bytes(params[i], storage))});
  }
}

Artifact read_contents(std::span<const ArtifactPart> parts, const std::string& name, WeightsAs as,
                       const ProgressOutput& progress, const PartReader& content) {
  check(parts.size() >= 2, "{}: expected metadata and tokenizer, found {} parts", name, parts.size());
  check(parts[0].raw_bytes <= kMaxMetadataBytes, "{}: the metadata is too large: {} bytes", name,
        parts[0].raw_bytes);
  Metadata metadata(text_in(parts[0]), name);
  Artifact out;
  out.rule = metadata.at(kRuleKey);
  out.model.config = config_from_toml(metadata.at(kConfigKey), fmt::format("{}: {}", name, kConfigKey));
  const ModelConfig& config = out.model.config.model;
  check(std::cmp_less_equal(config.layers, metadata.at(kStorageKey).size()),
        "{}: expected at least one tensor for each of {} layers, found {} tensors", name, config.layers,
        metadata.at(kStorageKey).size());
  out.model.path = name;
  out.model.format = "thimble";
  out.model.architecture = architecture_of(config);
  if (const std::string* layout = metadata.find(kLayoutKey)) out.model.layout = *layout;
  out.model.tokenizer = read_tokenizer(parts[1], metadata, config, name);

  const ParamTable table(config);
  const std::vector<TensorGroup> groups = tensor_groups(table);
  out.tensors.resize(table.all().size());
  read_storage(metadata, groups, name, out.tensors);
  const auto coded = parts.subspan(2);
  check_sizes(coded, table, groups, name, out.tensors);
  list_tensors(table, out);
  std::uint64_t total = 0;
  for (const ArtifactPart& part : coded) total += part.raw_bytes;
  ProgressBar bar(progress, "decoding", "bytes", total);
  if (as == WeightsAs::stored) {
    out.model.stored = read_stored(coded, table, groups, std::move(out.tensors), content, bar);
    out.tensors.clear();
  } else {
    for (std::size_t i = 0; i < groups.size(); ++i) {
      read_group(table, groups[i], content(coded[i], i), out.tensors);
      bar.advance(coded[i].raw_bytes);
    }
    out.model.weights = unpack_weights(table, out.tensors);
  }
  out.model.metadata = metadata.take();
  return out;
}

}  // namespace

Artifact read_artifact(std::span<const std::byte> bytes, const std::string& name, WeightsAs as,
                       const ProgressOutput& progress, const PartReader& reader) {
  const PartReader own = [](const ArtifactPart& part, std::size_t) { return part.content(); };
  return read_contents(read_parts(bytes, name), name, as, progress, reader ? reader : own);
}

Artifact open_artifact(const std::filesystem::path& path, WeightsAs as, const ProgressOutput& progress) {
  const std::string bytes = read_file(path, kMaxFileBytes);
  return read_artifact(std::as_bytes(std::span(bytes)), path.string(), as, progress);
}

Codec artifact_codec(const std::filesystem::path& path) {
  const std::string bytes = read_file(path, kMaxFileBytes);
  const auto parts = read_parts(std::as_bytes(std::span(bytes)), path.string());
  check(!parts.empty(), "{}: the artifact has no parts", path.string());
  const bool ranged = std::ranges::find(parts, Codec::range, &ArtifactPart::codec) != parts.end();
  return ranged ? Codec::range : parts.back().codec;
}

namespace {

// Returns the number of bytes appended.
std::uint64_t append_compressed(std::string_view content, Codec codec, std::string_view prefix,
                                std::string& bytes) {
  const std::size_t before = bytes.size();
  std::vector<std::byte> stored;
  if (!content.empty())
    stored = compress(std::as_bytes(std::span(content)), codec, {}, std::as_bytes(std::span(prefix)));
  append_part({codec, content.size(), stored}, bytes);
  return bytes.size() - before;
}

void set_storage(const ModelConfig& config, std::span<const PackedTensor> tensors, Json& metadata) {
  std::string storages, types;
  for (const TensorGroup& group : tensor_groups(ParamTable(config)))
    for (const std::size_t i : group.tensors) {
      storages += letter_of(tensors[i].storage);
      types += letter_of(tensors[i].restored);
    }
  metadata.set(std::string(kStorageKey), storages);
  metadata.set(std::string(kRestoredKey), types);
}

// Returns the table that the compressed tokenizer refers to, or an empty string.
std::string set_tokenizer(const ModelFile& model, Json& metadata) {
  // Opening the tokenizer verifies that it works and resolves the special ids.
  const auto tokenizer = open_tokenizer(model);
  if (!tokenizer) return {};
  const SpecialIds& special = tokenizer->special();
  if (special.bos) metadata.set(std::string(kBosKey), fmt::format("{}", *special.bos));
  if (special.eos) metadata.set(std::string(kEosKey), fmt::format("{}", *special.eos));
  if (special.bos && !tokenizer->adds_bos()) metadata.set(std::string(kAddsBosKey), "0");
  if (tokenizer->kind() != TokenizerKind::sentencepiece) return {};
  const auto normalizer = standard_normalizer_in(model.tokenizer->content);
  if (!normalizer) return {};
  std::string table = standard_normalizer_table(*normalizer);
  metadata.set(std::string(kNormalizerKey), *normalizer);
  metadata.set(std::string(kNormalizerDigestKey), digest_of(table).hex());
  return table;
}

}  // namespace

ArtifactHead artifact_head(const ModelFile& model, std::span<const PackedTensor> tensors,
                           std::string_view rule, Codec codec) {
  Json metadata = Json::object();
  metadata.set(std::string(kConfigKey), to_toml(model.config.model));
  metadata.set(std::string(kVersionKey), std::string(version()));
  if (!model.layout.empty()) metadata.set(std::string(kLayoutKey), model.layout);
  metadata.set(std::string(kRuleKey), std::string(rule));
  for (const auto& [key, value] : model.metadata)
    if (key == kTrainingKey) metadata.set(key, value);
  set_storage(model.config.model, tensors, metadata);
  const std::string table = set_tokenizer(model, metadata);
  ArtifactHead head;
  append_compressed(metadata.dump(), codec == Codec::range ? Codec::zstd : codec, {}, head.bytes);
  head.tokenizer_bytes =
      append_compressed(model.tokenizer ? model.tokenizer->content : "", Codec::zstd, table, head.bytes);
  return head;
}

std::uint64_t artifact_bytes(const ArtifactHead& head, std::span<const CodedGroup> groups) {
  return kArtifactHeaderBytes + head.bytes.size() + groups.size() * kPartHeaderBytes + coded_bytes(groups);
}

std::string write_artifact(const ArtifactHead& head, std::span<const CodedGroup> groups) {
  std::string parts = head.bytes;
  for (const CodedGroup& group : groups) append_part({group.codec, group.raw_bytes, group.bytes}, parts);
  return with_artifact_header(parts);
}

std::string self_contained_artifact(std::string bytes, const std::string& name) {
  const auto parts = read_parts(std::as_bytes(std::span(bytes)), name);
  check(parts.size() >= 2, "{}: expected metadata and tokenizer, found {} parts", name, parts.size());
  Metadata metadata(text_in(parts[0]), name);
  if (!metadata.find(kNormalizerKey)) return bytes;
  const std::string tokenizer = tokenizer_content(parts[1], metadata, name);
  Json kept = Json::object();
  for (const auto& [key, value] : metadata.take())
    if (key != kNormalizerKey && key != kNormalizerDigestKey) kept.set(key, value);
  std::string whole;
  append_compressed(kept.dump(), parts[0].codec, {}, whole);
  append_compressed(tokenizer, Codec::zstd, {}, whole);
  for (const ArtifactPart& part : std::span(parts).subspan(2)) append_part(part, whole);
  return with_artifact_header(whole);
}

}  // namespace thimble
