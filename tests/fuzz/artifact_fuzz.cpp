// Arbitrary bytes must give an Error or a valid model: one with the size of its config that is the
// same after packing it again.
//
// Digests are recomputed, because nearly every mutation would fail their check. Input without an
// artifact's header is used as the metadata of a small artifact.
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "formats/artifact.h"
#include "targets.h"

namespace thimble {

namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Larger models are not written again.
constexpr std::int64_t kMostWritten = 20'000;

void try_artifact(const std::string& file) {
  std::optional<Artifact> artifact;
  try {
    artifact = read_artifact(bytes_of(file), "fuzz");
  } catch (const Error&) {
    return;
  }
  const ParamTable table(artifact->model.config.model);
  require(std::cmp_equal(artifact->model.weights.size(), table.block_size()),
          "there are as many weights as the config requires");
  require(artifact->tensors.size() == table.all().size(), "there are as many tensors as the config requires");
  if (table.count() > kMostWritten) return;
  std::string again;
  try {
    const auto head = artifact_head(artifact->model, artifact->tensors, artifact->rule, Codec::zlib);
    const Codec codec = read_parts(bytes_of(file), "fuzz").back().codec;  // of the last part
    again = write_artifact(head, code_weights(table, artifact->tensors, codec));
  } catch (const Error&) {  // the tokenizer is invalid
    return;
  }
  const Artifact second = read_artifact(bytes_of(again), "again");
  require(second.tensors == artifact->tensors, "tensors are unchanged by a round trip");
  require(second.model.config.model == artifact->model.config.model,
          "the config is unchanged by a round trip");
}

ModelFile small_model() {
  ModelFile model;
  model.config.model =
      resolved(ModelConfig{.vocab_size = 16, .context = 4, .layers = 2, .dim = 4, .heads = 2});
  model.weights.resize(static_cast<std::size_t>(ParamTable(model.config.model).block_size()), 0.5f);
  return model;
}

// The parts after the metadata.
std::string tail_of_small_artifact() {
  const ModelFile model = small_model();
  const ParamTable table(model.config.model);
  const std::vector<DType> types(table.all().size(), DType::f32);
  const std::vector<PackedTensor> tensors = pack_weights(table, model.weights, types, {}).tensors;
  std::string parts;
  append_part({Codec::zlib, 0, {}}, parts);  // no tokenizer
  for (const CodedGroup& group : code_weights(table, tensors, Codec::zlib))
    append_part({group.codec, group.raw_bytes, group.bytes}, parts);
  return parts;
}

void try_metadata(const std::string& metadata) {
  static const std::string tail = tail_of_small_artifact();
  const std::vector<std::byte> stored = compress(bytes_of(metadata), Codec::zlib);
  std::string parts;
  append_part({Codec::zlib, metadata.size(), metadata.empty() ? std::span<const std::byte>{} : stored},
              parts);
  try_artifact(with_artifact_header(parts + tail));
}

}  // namespace

void fuzz_artifact(FuzzBytes bytes) {
  const std::string input(text_of(bytes));
  if (!is_artifact(input)) return try_metadata(input);
  try_artifact(input);
  if (input.size() >= kArtifactHeaderBytes)
    try_artifact(with_artifact_header(input.substr(kArtifactHeaderBytes)));
}

}  // namespace thimble
