#include "formats/weights_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/machine.h"
#include "base/text.h"
#include "config/toml.h"
#include "formats/export.h"
#include "formats/safetensors.h"
#include "model/params.h"
#include "tensor/tensor.h"

namespace thimble {

namespace {

// Throws an Error unless the files have exactly the model's tensors in their shapes. `find` returns
// a tensor's entry by name, or nullptr.
void check_tensors(const std::string& name, std::span<const SafetensorsFile> files,
                   const std::function<const SafetensorsEntry*(std::string_view)>& find,
                   std::span<const WeightSource> sources,
                   const std::function<bool(std::string_view)>& ignore) {
  std::vector<std::string> problems;
  std::set<std::string, std::less<>> known;
  for (const WeightSource& source : sources) {
    if (source.name.empty() || !known.insert(source.name).second) continue;
    const SafetensorsEntry* entry = find(source.name);
    if (!entry)
      problems.push_back(fmt::format("{} is missing", source.name));
    else if (entry->dims != source.dims)
      problems.push_back(fmt::format("{} is [{}], expected [{}]", source.name, joined(entry->dims, ", "),
                                     joined(source.dims, ", ")));
  }
  for (const SafetensorsFile& file : files)
    for (const SafetensorsEntry& entry : file.entries())
      if (!known.contains(entry.name) && !(ignore && ignore(entry.name)))
        problems.push_back(fmt::format("{} is not part of the model", entry.name));
  check(problems.empty(), Hint{"pass the config that the weights were trained with"}, "{}: {}", name,
        listed(problems));
}

void copy_out(std::span<const float> from, const WeightSource& source, const Param& param,
              std::span<float> to) {
  if (!source.transposed) {
    const std::int64_t begin = source.first * (param.dims.size() == 2 ? param.cols : 1);
    std::ranges::copy(from.subspan(index_of(begin), to.size()), to.begin());
    return;
  }
  const std::int64_t stride = source.dims.back();
  for (std::int64_t row = 0; row < param.rows; ++row)
    for (std::int64_t column = 0; column < param.cols; ++column)
      to[index_of(row * param.cols + column)] = from[index_of(column * stride + source.first + row)];
}

}  // namespace

void TensorFiles::add(SafetensorsFile file) {
  files_.push_back(std::move(file));
  for (const SafetensorsEntry& entry : files_.back().entries()) {
    const auto [location, fresh] = locations_.try_emplace(entry.name, Location{files_.size() - 1, &entry});
    check(fresh, "{}: tensor {} is also in {}", files_.back().name(), entry.name,
          files_[location->second.file].name());
  }
}

const SafetensorsEntry* TensorFiles::find(std::string_view tensor) const {
  const auto found = locations_.find(tensor);
  return found == locations_.end() ? nullptr : found->second.entry;
}

void TensorFiles::read_f32(std::string_view tensor, std::span<float> values) const {
  const auto found = locations_.find(tensor);
  check(found != locations_.end(), "{}: expected a tensor {}, found none", name_, tensor);
  files_[found->second.file].read_f32(tensor, values);
}

std::vector<WeightSource> sources_by_name(const ParamTable& table, std::string_view prefix) {
  std::vector<WeightSource> sources;
  for (const Param& param : table.all())
    sources.push_back({.name = fmt::format("{}{}", prefix, param.name), .dims = param.dims});
  return sources;
}

std::vector<float> read_weights(const TensorFiles& files, const ParamTable& table,
                                std::span<const WeightSource> sources,
                                const std::function<bool(std::string_view)>& ignore, WeightsAs as) {
  const auto params = table.all();
  check(sources.size() == params.size(), "[weights] found {} sources, expected {}", sources.size(),
        params.size());
  check_tensors(
      files.name(), files.files(), [&](std::string_view name) { return files.find(name); }, sources, ignore);
  if (as == WeightsAs::none) return {};
  std::vector<float> block(index_of(table.block_size())), complete;
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (sources[i].name.empty()) continue;
    complete.resize(index_of(files.find(sources[i].name)->count()));
    files.read_f32(sources[i].name, complete);
    const auto to = params[i].in(std::span(block));
    copy_out(complete, sources[i], params[i], to);
    if (sources[i].base != 0)
      for (float& one : to) one += sources[i].base;
  }
  return block;
}

namespace {

constexpr std::size_t kConvertedPiece = 1 << 19;  // elements: 1 MiB at a time
constexpr float kLargestHalf = 65504;

void check_fits_half(std::span<const float> values, std::string_view name) {
  const auto too_large = std::ranges::find_if(
      values, [](float value) { return std::isfinite(value) && std::abs(value) > kLargestHalf; });
  if (too_large != values.end())
    fail(Hint{"export with --type f32 or bf16"}, "{} contains {}, the largest f16 is {}", name, *too_large,
         kLargestHalf);
}

template <class Half, class Convert>
void write_converted(std::span<const float> values, Convert convert, const SafetensorsWriter::Sink& sink) {
  std::vector<Half> piece;
  for (std::size_t begin = 0; begin < values.size(); begin += kConvertedPiece) {
    const auto part = values.subspan(begin, std::min(kConvertedPiece, values.size() - begin));
    piece.resize(part.size());
    std::ranges::transform(part, piece.begin(), convert);
    sink(std::as_bytes(std::span(piece)));
  }
}

void write_values(std::span<const float> values, DType dtype, const SafetensorsWriter::Sink& sink) {
  if (dtype == DType::f32) return sink(std::as_bytes(values));
  if (dtype == DType::bf16) return write_converted<bf16>(values, to_bf16, sink);
  write_converted<f16>(values, to_f16, sink);
}

}  // namespace

void add_weights(SafetensorsWriter& writer, const ParamTable& table, std::span<const float> block,
                 DType dtype, const std::function<bool(const Param&)>& selected) {
  check(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
        "expected dtype f32, bf16 or f16 for weights, found {}", dtype_name(dtype));
  check(std::cmp_equal(block.size(), table.block_size()), "[model] found {} weights, expected {}",
        block.size(), table.block_size());
  for (const Param& param : table.all())
    if (!selected || selected(param)) add_weights(writer, param.name, param.dims, param.in(block), dtype);
}

void add_weights(SafetensorsWriter& writer, const std::string& name, const std::vector<std::int64_t>& dims,
                 std::span<const float> values, DType dtype) {
  if (dtype == DType::f32) return writer.add(name, dtype, dims, std::as_bytes(values));
  if (dtype == DType::f16) check_fits_half(values, name);
  writer.add(name, dtype, dims,
             [=](const SafetensorsWriter::Sink& sink) { write_values(values, dtype, sink); });
}

void add_weights(SafetensorsWriter& writer, const std::string& name, const std::vector<std::int64_t>& dims,
                 std::function<std::vector<float>()> compute, DType dtype) {
  if (dtype == DType::f16) check_fits_half(compute(), name);
  writer.add(name, dtype, dims, [compute = std::move(compute), dtype](const SafetensorsWriter::Sink& sink) {
    write_values(compute(), dtype, sink);
  });
}

void read_state_dict(const SafetensorsFile& file, const ParamTable& table, std::string_view prefix,
                     std::span<float> block, const std::function<bool(std::string_view name)>& ignore) {
  check(static_cast<std::int64_t>(block.size()) == table.block_size(),
        "[state dict] found a block of {} weights, expected {}", block.size(), table.block_size());
  check_tensors(
      file.name(), {&file, 1}, [&](std::string_view name) { return file.find(name); },
      sources_by_name(table, prefix), ignore);
  for (const Param& param : table.all())
    file.read_f32(fmt::format("{}{}", prefix, param.name), param.in(block));
}

void add_state_dict(SafetensorsWriter& writer, const ParamTable& table, std::string_view prefix,
                    std::span<const float> block) {
  for (const Param& param : table.all())
    writer.add(fmt::format("{}{}", prefix, param.name), DType::f32, param.dims,
               std::as_bytes(param.in(block)));
}

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
                 DType dtype, const Inspector& inspect, const ProgressOutput& progress) {
  const ParamTable table(model.config.model);
  SafetensorsWriter writer;
  writer.set_metadata(std::string(kConfigKey), to_toml(model.config.model));
  writer.set_metadata(std::string(kVersionKey), std::string(version()));
  // The recorded results are valid only for bit-identical weights.
  if (dtype == DType::f32)
    for (const auto& [key, value] : model.metadata)
      if (std::ranges::count(kRecordKeys, key) > 0) writer.set_metadata(key, value);
  if (!model.layout.empty()) writer.set_metadata(std::string(kLayoutKey), model.layout);
  add_weights(writer, table, model.weights, dtype);
  // Opening the tokenizer verifies that it works and resolves the special ids.
  if (const auto tokenizer = open_tokenizer(model)) add_tokenizer(writer, model, *tokenizer);
  writer.write(ops, path, existing, WithDigest::yes, inspect, progress);
}

namespace {

ExportReport export_safetensors(FileOps& ops, const ModelFile& model, const ExportRequest& request) {
  write_model(ops, request.path, request.existing, model, float_dtype(*request.type), request.inspect,
              request.progress);
  return {.architecture = std::string(architecture_of(model.config.model)),
          .type = *request.type,
          .tensors = ParamTable(model.config.model).all().size(),
          .bytes = std::filesystem::file_size(request.path)};
}

}  // namespace

ExportFormat safetensors_export() {
  using enum GgufType;
  return {.name = "safetensors",
          .what = "one thimble file, for inference only",
          .types = {f32, bf16, f16},
          .write = export_safetensors,
          .rounds_vectors = true};
}

}  // namespace thimble
