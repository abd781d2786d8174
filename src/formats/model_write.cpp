#include "formats/model_write.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/half.h"
#include "base/version.h"
#include "formats/safetensors.h"
#include "model/config_toml.h"
#include "model/params.h"

namespace thimble {

namespace {

constexpr std::size_t kPiece = 1 << 19;  // elements: a megabyte at a time
constexpr float kLargestHalf = 65504;

std::span<const float> values_of(const ModelFile& model, const Param& param) {
  return std::span(model.weights)
      .subspan(static_cast<std::size_t>(param.offset), static_cast<std::size_t>(param.count()));
}

void check_fits_half(std::span<const float> values, const Param& param) {
  const auto too_large = std::ranges::find_if(
      values, [](float value) { return std::isfinite(value) && std::abs(value) > kLargestHalf; });
  if (too_large != values.end())
    fail(Hint{"write f32"}, "{} holds {}, the largest f16 is {}", param.name, *too_large, kLargestHalf);
}

void pass_on_as_half(std::span<const float> values, const SafetensorsWriter::Sink& sink) {
  std::vector<f16> piece;
  for (std::size_t begin = 0; begin < values.size(); begin += kPiece) {
    const auto part = values.subspan(begin, std::min(kPiece, values.size() - begin));
    piece.resize(part.size());
    std::ranges::transform(part, piece.begin(), to_f16);
    sink(std::as_bytes(std::span(piece)));
  }
}

void add_tensor(SafetensorsWriter& writer, const ModelFile& model, const Param& param, DType dtype) {
  const auto values = values_of(model, param);
  if (dtype == DType::f32) return writer.add(param.name, dtype, param.dims, std::as_bytes(values));
  check_fits_half(values, param);
  writer.add(param.name, dtype, param.dims,
             [values](const SafetensorsWriter::Sink& sink) { pass_on_as_half(values, sink); });
}

void add_tokenizer(SafetensorsWriter& writer, const ModelFile& model, const Tokenizer& tokenizer) {
  const std::string& content = model.tokenizer->content;
  writer.add(std::string(kTokenizerTensor), DType::u8, {static_cast<std::int64_t>(content.size())},
             std::as_bytes(std::span(content)));
  const SpecialIds& special = tokenizer.special();
  if (special.bos) writer.set_metadata(std::string(kBosKey), fmt::format("{}", *special.bos));
  if (special.eos) writer.set_metadata(std::string(kEosKey), fmt::format("{}", *special.eos));
}

}  // namespace

void write_model(FileOps& ops, const std::filesystem::path& path, Existing existing, const ModelFile& model,
                 DType dtype) {
  check(dtype == DType::f32 || dtype == DType::f16, "weights are written as f32 or f16, not {}",
        dtype_name(dtype));
  const ParamTable table(model.config.model);
  check(std::cmp_equal(model.weights.size(), table.block_size()), "[model] {} weights for a block of {}",
        model.weights.size(), table.block_size());
  SafetensorsWriter writer;
  writer.set_metadata(std::string(kConfigKey), to_toml(model.config.model));
  writer.set_metadata(std::string(kVersionKey), std::string(version()));
  if (!model.layout.empty()) writer.set_metadata(std::string(kLayoutKey), model.layout);
  for (const Param& param : table.all()) add_tensor(writer, model, param, dtype);
  // Read as a tokenizer, so that the file holds one that works, with the ids that count.
  if (const auto tokenizer = open_tokenizer(model)) add_tokenizer(writer, model, *tokenizer);
  writer.write(ops, path, existing, WithDigest::yes);
}

}  // namespace thimble
