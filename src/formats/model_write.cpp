#include "formats/model_write.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/version.h"
#include "formats/record_keys.h"
#include "formats/safetensors.h"
#include "formats/weights_write.h"
#include "model/config_toml.h"
#include "model/params.h"

namespace thimble {

namespace {

void add_tokenizer(SafetensorsWriter& writer, const ModelFile& model, const Tokenizer& tokenizer) {
  const std::string& content = model.tokenizer->content;
  writer.add(std::string(kTokenizerTensor), DType::u8, {static_cast<std::int64_t>(content.size())},
             std::as_bytes(std::span(content)));
  const SpecialIds& special = tokenizer.special();
  if (special.bos) writer.set_metadata(std::string(kBosKey), fmt::format("{}", *special.bos));
  if (special.eos) writer.set_metadata(std::string(kEosKey), fmt::format("{}", *special.eos));
  if (special.bos) writer.set_metadata(std::string(kAddsBosKey), tokenizer.adds_bos() ? "1" : "0");
}

}  // namespace

void write_model(FileOps& ops, const std::filesystem::path& path, Existing existing, const ModelFile& model,
                 DType dtype, const Inspector& inspect) {
  const ParamTable table(model.config.model);
  SafetensorsWriter writer;
  writer.set_metadata(std::string(kConfigKey), to_toml(model.config.model));
  writer.set_metadata(std::string(kVersionKey), std::string(version()));
  // What is rounded is another model: it need not say what this one said.
  if (dtype == DType::f32)
    for (const auto& [key, value] : model.metadata)
      if (std::ranges::count(kRecordKeys, key) > 0) writer.set_metadata(key, value);
  if (!model.layout.empty()) writer.set_metadata(std::string(kLayoutKey), model.layout);
  add_weights(writer, table, model.weights, dtype);
  // Read as a tokenizer, so that the file holds one that works, with the ids that count.
  if (const auto tokenizer = open_tokenizer(model)) add_tokenizer(writer, model, *tokenizer);
  writer.write(ops, path, existing, WithDigest::yes, inspect);
}

}  // namespace thimble
