#include "formats/pack_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/table.h"
#include "formats/artifact.h"
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

std::int64_t PackReport::quantised_tensors() const {
  return std::ranges::count_if(tensors, is_quantised, &Tensor::storage);
}

double PackReport::ratio() const {
  return payload_bytes > 0 ? static_cast<double>(float_bytes) / static_cast<double>(payload_bytes) : 0;
}

double PackReport::bits_per_weight() const {
  return parameters > 0 ? 8.0 * static_cast<double>(bytes) / static_cast<double>(parameters) : 0;
}

PackEstimator::PackEstimator(const ModelFile& source, const PackRequest& request)
    : source_(source), request_(request), table_(source.config.model) {
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

PackEstimate PackEstimator::estimate(const QuantiseRule& rule, double prune) {
  PackOptions options = request_.options;
  options.rule = rule;
  options.prune = prune;
  PackEstimate estimate = estimate_packing(table_, source_.weights, types_, options);
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

namespace {

constexpr int kHalvings = 7;  // bisection steps on the clip's logarithm: to 3 %
constexpr float kFinest = 4, kCoarsest = 64;
constexpr double kAimedShare = 0.99;  // fraction of the budget: the size model is off by about 1 %

QuantiseRule rule_with(int bits, float clip) {
  return clip > 0 ? QuantiseRule{.bits = bits, .clip = Clip::deviation, .deviations = clip}
                  : QuantiseRule{.bits = bits};
}

class Search {
 public:
  Search(const ModelFile& source, const PackRequest& request, const SearchSpace& space,
         const PackScore& score, const ProgressOutput& progress, const Interrupt* interrupt)
      : source_(source),
        request_(request),
        space_(space),
        score_(score),
        interrupt_(interrupt),
        estimator_(source, request),
        bar_(progress, "searching", "rules", 0) {}

  SearchResult run() {
    const std::size_t planned = space_.bits.size() * space_.prunes.size() * (space_.clips.size() + 1);
    bar_.expect(planned + space_.measured);
    for (const int bits : space_.bits)
      for (const double prune : space_.prunes) {
        for (const float clip : space_.clips) estimate(rule_with(bits, clip), prune);
        estimate(rule_with(bits, finest_fitting_clip(bits, prune)), prune);
      }
    measure();
    return finish();
  }

 private:
  void estimate(const QuantiseRule& rule, double prune) {
    if (interrupt_) interrupt_->throw_if_interrupted();
    add(rule, prune);
    bar_.advance(1);
  }

  void add(const QuantiseRule& rule, double prune) {
    const bool known =
        std::ranges::any_of(tries_, [&](const SearchTry& t) { return t.rule == rule && t.prune == prune; });
    if (!known) tries_.push_back(tried(rule, prune));
  }

  SearchTry tried(const QuantiseRule& rule, double prune) {
    const PackEstimate estimate = estimator_.estimate(rule, prune);
    return {.rule = rule, .prune = prune, .predicted_bytes = estimate.bytes, .error = estimate.error};
  }

  bool fits(std::uint64_t predicted, double room) const {
    return static_cast<double>(predicted) * correction_ <= room * static_cast<double>(request_.budget);
  }

  // A smaller clip gives finer steps and a larger file, so the size decreases as the clip grows.
  float finest_fitting_clip(int bits, double prune) {
    const auto clip_fits = [&](float clip) {
      if (interrupt_) interrupt_->throw_if_interrupted();
      return fits(estimator_.estimate(rule_with(bits, clip), prune).bytes, kAimedShare);
    };
    float fine = kFinest, coarse = kCoarsest;
    if (clip_fits(fine)) return fine;
    for (int i = 0; i < kHalvings; ++i) {
      const float middle = std::sqrt(fine * coarse);
      (clip_fits(middle) ? coarse : fine) = middle;
    }
    return std::round(coarse * 100) / 100;
  }

  // Packs and scores the rules with the smallest predicted error first. If a file exceeds the
  // budget, the ratio of actual to predicted size corrects later predictions, and the finest clip
  // that fits is searched again.
  void measure() {
    for (std::size_t packs = 0, fitting = 0; packs < 2 * space_.measured && fitting < space_.measured;
         ++packs) {
      std::ranges::stable_sort(tries_, {}, &SearchTry::error);
      const auto next = std::ranges::find_if(
          tries_, [&](const SearchTry& t) { return !t.bytes && fits(t.predicted_bytes, 1); });
      if (next == tries_.end()) return;
      const SearchTry& t = measured(*next);
      if (t.score) {
        ++fitting;
        bar_.advance(1);
        continue;
      }
      correction_ =
          std::max(correction_, static_cast<double>(*t.bytes) / static_cast<double>(t.predicted_bytes));
      const auto [bits, prune] = std::pair(t.rule.bits, t.prune);
      add(rule_with(bits, finest_fitting_clip(bits, prune)), prune);
    }
  }

  const SearchTry& measured(SearchTry& t) {
    PackRequest request = request_;
    request.options.rule = t.rule;
    request.options.prune = t.prune;
    PackResult packed = pack_model(source_, request, ProgressOutput::nowhere(), interrupt_);
    t.bytes = packed.report.self_contained_bytes();
    if (packed.report.fits()) {
      t.score = score_(packed.loaded);
      if (!best_ || *t.score < best_->score) best_.emplace(Best{*t.score, std::move(packed)});
    }
    return t;
  }

  SearchResult finish() {
    const auto smallest = std::ranges::min_element(tries_, {}, &SearchTry::predicted_bytes);
    check(best_.has_value(), Hint{"raise --budget, or train a smaller model"},
          "no rule fits the budget: the smallest needs about {} bytes, but the budget is {}",
          with_commas(std::llround(static_cast<double>(smallest->predicted_bytes) * correction_)),
          with_commas(static_cast<long long>(request_.budget)));
    const auto rank = [](const SearchTry& t) { return t.score ? 0 : t.bytes ? 1 : 2; };
    std::ranges::stable_sort(tries_, [&](const SearchTry& a, const SearchTry& b) {
      return rank(a) != rank(b) ? rank(a) < rank(b) : a.score && *a.score < *b.score;
    });
    return {.tries = std::move(tries_), .best = 0, .packed = std::move(best_->packed)};
  }

  struct Best {
    double score;
    PackResult packed;
  };

  const ModelFile& source_;
  const PackRequest& request_;
  const SearchSpace& space_;
  const PackScore& score_;
  const Interrupt* interrupt_;
  PackEstimator estimator_;
  ProgressBar bar_;
  double correction_ = 1;  // largest ratio of actual to predicted size, at least 1
  std::vector<SearchTry> tries_;
  std::optional<Best> best_;
};

}  // namespace

SearchResult search_packing(const ModelFile& source, const PackRequest& request, const SearchSpace& space,
                            const PackScore& score, const ProgressOutput& progress,
                            const Interrupt* interrupt) {
  return Search(source, request, space, score, progress, interrupt).run();
}

}  // namespace thimble
