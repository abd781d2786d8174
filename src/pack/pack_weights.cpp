#include "pack/pack_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "base/error.h"
#include "base/index.h"
#include "base/parallel.h"
#include "pack/gptq.h"
#include "pack/prune.h"
#include "pack/range_codec.h"

namespace thimble {

namespace {

constexpr std::int64_t kKeptAtEightBits = 65536, kKeptBelow = 8192;  // elements

bool is_small(const Param& param, const QuantiseRule& rule) {
  return param.count() <= (rule.bits == 8 ? kKeptAtEightBits : kKeptBelow);
}

bool is_kept_by_name(const Param& param, const PackOptions& options) {
  return std::ranges::any_of(
      options.keep, [&](const std::string& part) { return param.name.find(part) != param.name.npos; });
}

bool is_matrix(const Param& param) {
  return param.dims.size() == 2;
}

bool has_own_rule(const Param& param, const PackOptions& options) {
  return options.embedding && (param.role == Role::token_embedding || param.role == Role::head);
}

const QuantiseRule& rule_of(const Param& param, const PackOptions& options) {
  return has_own_rule(param, options) ? *options.embedding : options.rule;
}

Storage storage_of_bits(int bits) {
  return bits == 8 ? Storage::int8 : bits == 6 ? Storage::int6 : Storage::int5;
}

std::vector<std::uint8_t> zeros_in(std::span<const float> values) {
  std::vector<std::uint8_t> marks(values.size());
  std::ranges::transform(values, marks.begin(), [](float value) { return value == 0; });
  return marks;
}

// The tensor has been rounded weight by weight: its scales are right, its codes are made anew.
void round_together(const Param& param, std::span<const float> values, std::span<const std::uint8_t> pruned,
                    const PackOptions& options, PackedTensor& tensor) {
  const bool rows = is_quantised(tensor.storage) && tensor.storage != Storage::int8_whole;
  const GptqFactor* factor = rows ? options.gptq->of(param) : nullptr;
  if (!factor) return;
  const int highest = (1 << (bits_of(tensor.storage) - 1)) - 1;
  gptq_rows(*factor, values, tensor.scales, highest, pruned, tensor.q);
}

}  // namespace

PackOptions pack_options(const TrainConfig& preset) {
  constexpr double kGptqClip = 12.85, kEmbeddingClip = 20;
  const auto rule = [](std::int64_t bits, double clip) {
    QuantiseRule made{.bits = static_cast<int>(bits)};
    if (clip > 0) made = {made.bits, Clip::deviation, static_cast<float>(clip)};
    return made;
  };
  const auto given_or = [](auto given, auto otherwise) { return given > 0 ? given : otherwise; };
  PackOptions options;
  options.prune = preset.pack_prune;
  if (preset.pack_range) options.codec = Codec::range;
  options.rule = rule(given_or(preset.pack_bits, std::int64_t{preset.pack_gptq ? 6 : 8}),
                      given_or(preset.pack_clip_std, preset.pack_gptq ? kGptqClip : 0));
  if (preset.pack_gptq || preset.pack_embed_bits > 0 || preset.pack_embed_clip_std > 0)
    options.embedding = rule(given_or(preset.pack_embed_bits, std::int64_t{8}),
                             given_or(preset.pack_embed_clip_std, kEmbeddingClip));
  return options;
}

std::string rule_name(const QuantiseRule& rule) {
  switch (rule.clip) {
    case Clip::search:
      return fmt::format("int{}_clip_search", rule.bits);
    case Clip::deviation:
      return fmt::format("int{}_clip_{}_deviations", rule.bits, rule.deviations);
    case Clip::standard:
      break;
  }
  return rule.bits == 8 ? "int8_clean_per_row_v1" : fmt::format("int{}_per_row", rule.bits);
}

std::string packing_name(const PackOptions& options) {
  std::string name = rule_name(options.rule);
  if (options.embedding) name += ", embedding " + rule_name(*options.embedding);
  if (options.gptq) name += ", gptq";
  return name;
}

Storage storage_of(const Param& param, const PackOptions& options) {
  if (is_small(param, options.rule)) return param.control ? Storage::f32 : Storage::f16;
  if (is_kept_by_name(param, options)) return Storage::f16;
  if (!is_matrix(param)) return Storage::int8_whole;
  if (has_own_rule(param, options)) return storage_of_bits(options.embedding->bits);
  if (options.rule.bits == 8) return Storage::int8;
  if (param.role == Role::token_embedding) return Storage::f16;
  if (param.role == Role::head || param.role == Role::position_embedding) return Storage::int8;
  return storage_of_bits(options.rule.bits);
}

PackedWeights pack_weights(const ParamTable& table, std::span<const float> weights,
                           std::span<const DType> restored, const PackOptions& options,
                           std::span<const PackedTensor> before, const ProgressOutput& progress,
                           const Interrupt* interrupt) {
  const auto params = table.all();
  check(std::cmp_equal(weights.size(), table.block_size()), "[pack] {} weights for a block of {}",
        weights.size(), table.block_size());
  check(restored.size() == params.size() && (before.empty() || before.size() == params.size()),
        "[pack] {} types and {} packed tensors for {} tensors", restored.size(), before.size(),
        params.size());
  PackedWeights out{.tensors = std::vector<PackedTensor>(params.size()), .pruned = 0};
  std::atomic<std::int64_t> pruned = 0;
  std::vector<std::vector<std::uint8_t>> marks(params.size());  // of what is pruned, for GPTQ
  std::vector<std::uint8_t> kept(params.size());
  parallel_tasks(static_cast<std::int64_t>(params.size()), [&](std::int64_t task) {
    if (interrupt) interrupt->throw_if_asked();
    const std::size_t i = index_of(task);
    const Param& param = params[i];
    const auto own = param.in(weights);
    std::vector<float> values(own.begin(), own.end());
    const bool prunes = options.prune > 0 && is_matrix(param) && !is_small(param, options.rule);
    const std::int64_t zeroed = prunes ? prune_smallest(values, options.prune) : 0;
    const Storage storage = storage_of(param, options);
    kept[i] = zeroed == 0 && !before.empty() && before[i].storage == storage;
    out.tensors[i] =
        kept[i] ? before[i] : pack_tensor(param, values, storage, rule_of(param, options), restored[i]);
    if (zeroed > 0 && options.gptq) marks[i] = zeros_in(values);
    pruned += zeroed;
  });
  // One after another: their rows are what is computed in parallel.
  ProgressBar bar(progress, "rounding", "weights", static_cast<std::uint64_t>(table.count()));
  for (std::size_t i = 0; options.gptq && i < params.size(); ++i) {
    if (interrupt) interrupt->throw_if_asked();
    if (!kept[i]) round_together(params[i], params[i].in(weights), marks[i], options, out.tensors[i]);
    bar.advance(static_cast<std::uint64_t>(params[i].count()));
  }
  out.pruned = pruned;
  return out;
}

PackedWeights prune_packed(const ParamTable& table, std::vector<PackedTensor> tensors, double fraction) {
  const auto params = table.all();
  PackedWeights out{.tensors = std::move(tensors), .pruned = 0};
  if (fraction == 0) return out;
  QuantiseRule rule{.bits = 8};  // of all but what may have its own
  for (std::size_t i = 0; i < params.size(); ++i)
    if (params[i].role != Role::token_embedding && params[i].role != Role::head)
      rule.bits = std::min(rule.bits, bits_of(out.tensors[i].storage));
  for (std::size_t i = 0; i < params.size(); ++i) {
    PackedTensor& tensor = out.tensors[i];
    if (!is_matrix(params[i]) || is_small(params[i], rule)) continue;
    std::vector<float> values(index_of(params[i].count()));
    unpack_tensor(params[i], tensor, values);
    out.pruned += prune_smallest(values, fraction);
    for (std::size_t j = 0; j < values.size(); ++j) {
      if (values[j] != 0) continue;
      if (is_quantised(tensor.storage))
        tensor.q[j] = 0;
      else
        tensor.floats[j] = 0;
    }
  }
  return out;
}

std::vector<float> unpack_weights(const ParamTable& table, std::span<const PackedTensor> tensors) {
  std::vector<float> block(index_of(table.block_size()));
  const auto params = table.all();
  for (std::size_t i = 0; i < params.size(); ++i)
    unpack_tensor(params[i], tensors[i], params[i].in(std::span(block)));
  return block;
}

std::uint64_t coded_bytes(std::span<const CodedGroup> groups) {
  std::uint64_t bytes = 0;
  for (const CodedGroup& group : groups) bytes += group.bytes.size();
  return bytes;
}

std::vector<CodedGroup> code_weights(const ParamTable& table, std::span<const PackedTensor> tensors,
                                     Codec codec, const OnCoded& on_coded) {
  const std::vector<TensorGroup> groups = tensor_groups(table);
  std::uint64_t total = 0, done = 0;
  for (const TensorGroup& group : groups) total += group_size(table, group, tensors);
  std::mutex mutex;
  const auto on_piece = [&](std::size_t bytes) {
    const std::lock_guard lock(mutex);
    done += bytes;
    if (on_coded) on_coded(done, total);
  };
  std::vector<CodedGroup> coded(groups.size());
  parallel_tasks(static_cast<std::int64_t>(groups.size()), [&](std::int64_t task) {
    const TensorGroup& group = groups[index_of(task)];
    const std::vector<std::byte> raw = group_bytes(table, group, tensors);
    const std::uint64_t integers = plane_sizes(table, group, tensors).front();
    const Codec own =
        codec == Codec::range && integers == 0 ? Codec::zstd : codec;  // it is made for integers
    const RangeLayout layout{integers, static_cast<std::uint32_t>(table.all()[group.tensors.front()].cols)};
    coded[index_of(task)] = {
        group.name, own, raw.size(),
        own == Codec::range ? range_compress(raw, layout, on_piece) : compress(raw, own, on_piece)};
  });
  return coded;
}

}  // namespace thimble
