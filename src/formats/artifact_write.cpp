#include <fmt/format.h>

#include "base/digest.h"
#include "base/json.h"
#include "base/version.h"
#include "formats/artifact.h"
#include "formats/artifact_keys.h"
#include "formats/artifact_parts.h"
#include "model/config_toml.h"
#include "tokenizer/sentencepiece.h"

namespace thimble {

namespace {

// Returns how many bytes it added.
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

// Returns the table that its bytes may refer to; empty: none.
std::string set_tokenizer(const ModelFile& model, Json& metadata) {
  // Read as a tokenizer, so that the file holds one that works, with the ids that count.
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

}  // namespace thimble
