#include "formats/pack_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "formats/artifact.h"
#include "pack/pack_estimate.h"
#include "pack/prune.h"
#include "tensor/tensor.h"

namespace thimble {

namespace {

// The type of a tensor in the source file; f32 if it is unknown.
DType source_type(const ModelFile& source, const Param& param) {
  const auto found = std::ranges::find(source.tensors, param.name, &StoredTensor::name);
  if (found == source.tensors.end()) return DType::f32;
  return found->dtype == "BF16" ? DType::bf16 : found->dtype == "F16" ? DType::f16 : DType::f32;
}

// The source's original types, and its packed tensors if it is an artifact of the requested rule.
struct PackSource {
  std::vector<DType> types;
  std::vector<PackedTensor> packed;  // empty: the source was not packed by this rule
  std::string rule;                  // the requested rule
};

PackSource read_source_types(const ModelFile& source, const ParamTable& table, const PackRequest& request) {
  PackSource out{.types = {}, .packed = {}, .rule = packing_name(request.options)};
  if (source.format != "thimble") {
    for (const Param& param : table.all()) out.types.push_back(source_type(source, param));
    return out;
  }
  Artifact artifact = open_artifact(source.path);
  for (const PackedTensor& tensor : artifact.tensors) out.types.push_back(tensor.restored);
  if (request.as_packed) out.rule = artifact.rule;
  if (artifact.rule == out.rule && artifact.model.weights == source.weights)
    out.packed = std::move(artifact.tensors);
  return out;
}

std::uint64_t bytes_without_groups(const ArtifactHead& head, const ParamTable& table) {
  return artifact_bytes(head, std::vector<CodedGroup>(tensor_groups(table).size()));
}

// Shows one progress bar for each pass that codes all weights.
class CodingProgress {
 public:
  CodingProgress(const ProgressOutput& output, const Interrupt* interrupt)
      : output_(output), interrupt_(interrupt) {}

  OnCoded as(std::string title) {
    title_ = std::move(title);
    return [this](std::uint64_t done, std::uint64_t total) {
      if (interrupt_) interrupt_->throw_if_interrupted();
      if (!bar_ || done < done_) bar_.emplace(output_, title_, "bytes", total);
      bar_->update(done_ = done);
    };
  }

 private:
  ProgressOutput output_;
  const Interrupt* interrupt_;
  std::string title_;
  std::optional<ProgressBar> bar_;
  std::uint64_t done_ = 0;
};

void report_tensors(const ParamTable& table, std::span<const float> before, std::span<const float> after,
                    std::span<const PackedTensor> tensors, std::span<const DType> types, PackReport& report) {
  const auto params = table.all();
  for (std::size_t i = 0; i < params.size(); ++i) {
    const Storage storage = tensors[i].storage;
    report.tensors.push_back(
        {params[i].name, storage, packing_error(params[i].in(before), params[i].in(after))});
    report.float_bytes += static_cast<std::uint64_t>(params[i].count() * dtype_bytes(types[i]));
    report.payload_bytes += static_cast<std::uint64_t>(payload_bytes(params[i], storage));
  }
}

void report_groups(const ParamTable& table, std::span<const CodedGroup> coded, PackReport& report) {
  const std::vector<TensorGroup> groups = tensor_groups(table);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    PackReport::Group group{groups[g].name, Storage::f32, 0, coded[g].bytes.size(), 0};
    for (const std::size_t i : groups[g].tensors) {
      group.storage = report.tensors[i].storage;
      group.parameters += table.all()[i].count();
      group.relative_error = std::max(group.relative_error, report.tensors[i].error.relative);
    }
    report.groups.push_back(group);
  }
}

// Reads the artifact back and verifies that it contains the model that was packed.
ModelFile read_back(const std::string& bytes, const ModelFile& source,
                    std::span<const PackedTensor> tensors) {
  Artifact artifact = read_artifact(std::as_bytes(std::span(bytes)), "the packed model");
  const auto content = [](const ModelFile& model) { return model.tokenizer ? model.tokenizer->content : ""; };
  check(std::ranges::equal(artifact.tensors, tensors) && artifact.model.config.model == source.config.model &&
            content(artifact.model) == content(source) && artifact.model.layout == source.layout,
        Hint{"report this bug"}, "the artifact differs from the packed model when it is read back");
  return std::move(artifact.model);
}

}  // namespace

std::int64_t PackReport::quantized_tensors() const {
  return std::ranges::count_if(tensors, is_quantized, &Tensor::storage);
}

double PackReport::ratio() const {
  return payload_bytes > 0 ? static_cast<double>(float_bytes) / static_cast<double>(payload_bytes) : 0;
}

double PackReport::bits_per_weight() const {
  return parameters > 0 ? 8.0 * static_cast<double>(bytes) / static_cast<double>(parameters) : 0;
}

PackEstimator::PackEstimator(const ModelFile& source, const PackRequest& request)
    : source_(source), table_(source.config.model) {
  const PackOptions& options = request.options;
  types_ = read_source_types(source, table_, request).types;
  std::vector<PackedTensor> tensors;  // artifact_head() only reads storage and restored
  for (std::size_t i = 0; i < types_.size(); ++i)
    tensors.push_back({.storage = storage_of(table_.all()[i], options),
                       .restored = types_[i],
                       .floats = {},
                       .q = {},
                       .scales = {}});
  const ArtifactHead head = artifact_head(source, tensors, packing_name(options), options.codec);
  rest_bytes_ = request.code_bytes + bytes_without_groups(head, table_);
}

PackEstimate PackEstimator::estimate(const PackOptions& options, const Interrupt* interrupt) const {
  PackEstimate estimate = estimate_packing(table_, source_.weights, types_, options, interrupt);
  estimate.bytes += rest_bytes_;
  return estimate;
}

PackResult pack_model(const ModelFile& source, const PackRequest& request, const ProgressOutput& progress,
                      const Interrupt* interrupt) {
  const ParamTable table(source.config.model);
  const PackOptions& options = request.options;
  PackResult out;
  PackReport& report = out.report;
  report.budget = request.budget;
  report.code_bytes = request.code_bytes;
  report.parameters = table.count();

  const PackSource from = read_source_types(source, table, request);
  report.rule = from.rule;
  const bool as_packed = request.as_packed && !from.packed.empty();
  PackedWeights packed =
      as_packed ? prune_packed(table, from.packed, options.prune)
                : pack_weights(table, source.weights, from.types, options, from.packed, progress, interrupt);
  const ArtifactHead head = artifact_head(source, packed.tensors, report.rule, options.codec);
  report.predicted_bytes =
      bytes_without_groups(head, table) +
      (options.gptq ? estimate_packing(table, source.weights, from.types, options, interrupt).bytes
                    : predicted_bytes(table, packed.tensors, options.codec));
  CodingProgress coding(progress, interrupt);
  std::vector<CodedGroup> groups = code_weights(table, packed.tensors, options.codec, coding.as("packing"));
  report.pruned = packed.pruned;
  if (request.fit) {
    const std::uint64_t rest = request.code_bytes + bytes_without_groups(head, table);
    const std::uint64_t room = request.budget > rest ? request.budget - rest : 0;
    report.pruned += prune_to_fit(table, room, packed.tensors, groups, coding.as("fitting"));
  }

  out.bytes = write_artifact(head, groups);
  out.loaded = read_back(out.bytes, source, packed.tensors);
  report.bytes = out.bytes.size();
  report.tokenizer_bytes = head.tokenizer_bytes;
  report_tensors(table, source.weights, out.loaded.weights, packed.tensors, from.types, report);
  report_groups(table, groups, report);
  return out;
}

}  // namespace thimble
