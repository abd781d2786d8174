#include "pack/pack_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <mutex>

#include "base/error.h"
#include "base/parallel.h"
#include "pack/gptq.h"
#include "pack/prune.h"
#include "pack/range_codec.h"
#include "tensor/tensor.h"

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

// Replaces the codes of a tensor that was rounded to nearest by those of GPTQ; keeps its scales.
void round_with_gptq(const Param& param, std::span<const float> values, std::span<const std::uint8_t> pruned,
                     const PackOptions& options, PackedTensor& tensor) {
  const bool rows = is_quantised(tensor.storage) && tensor.storage != Storage::int8_whole;
  const GptqFactor* factor = rows ? options.gptq->of(param) : nullptr;
  if (!factor) return;
  const int highest = (1 << (bits_of(tensor.storage) - 1)) - 1;
  gptq_rows(*factor, values, tensor.scales, highest, pruned, tensor.q);
}

}  // namespace

PackOptions pack_options(const PackConfig& preset) {
  constexpr double kGptqClip = 12.85, kEmbeddingClip = 20;
  const auto rule = [](std::int64_t bits, double clip) {
    QuantiseRule made{.bits = static_cast<int>(bits)};
    if (clip > 0) made = {made.bits, Clip::deviation, static_cast<float>(clip)};
    return made;
  };
  const auto given_or = [](auto value, auto otherwise) { return value > 0 ? value : otherwise; };
  PackOptions options;
  options.prune = preset.prune;
  if (preset.range) options.codec = Codec::range;
  options.rule = rule(given_or(preset.bits, std::int64_t{preset.gptq ? 6 : 8}),
                      given_or(preset.clip_std, preset.gptq ? kGptqClip : 0));
  if (preset.gptq || preset.embed_bits > 0 || preset.embed_clip_std > 0)
    options.embedding =
        rule(given_or(preset.embed_bits, std::int64_t{8}), given_or(preset.embed_clip_std, kEmbeddingClip));
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
  check(std::cmp_equal(weights.size(), table.block_size()), "[pack] found {} weights, expected {}",
        weights.size(), table.block_size());
  check(restored.size() == params.size() && (before.empty() || before.size() == params.size()),
        "[pack] {} types and {} packed tensors do not match {} tensors", restored.size(), before.size(),
        params.size());
  PackedWeights out{.tensors = std::vector<PackedTensor>(params.size()), .pruned = 0};
  std::atomic<std::int64_t> pruned = 0;
  std::vector<std::vector<std::uint8_t>> marks(params.size());  // pruned weights, for GPTQ
  std::vector<std::uint8_t> kept(params.size());
  parallel_tasks(static_cast<std::int64_t>(params.size()), [&](std::int64_t task) {
    if (interrupt) interrupt->throw_if_interrupted();
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
  // Tensors run one after another, because GPTQ parallelizes over the rows of each.
  ProgressBar bar(progress, "rounding", "weights", static_cast<std::uint64_t>(table.count()));
  for (std::size_t i = 0; options.gptq && i < params.size(); ++i) {
    if (interrupt) interrupt->throw_if_interrupted();
    if (!kept[i]) round_with_gptq(params[i], params[i].in(weights), marks[i], options, out.tensors[i]);
    bar.advance(static_cast<std::uint64_t>(params[i].count()));
  }
  out.pruned = pruned;
  return out;
}

PackedWeights prune_packed(const ParamTable& table, std::vector<PackedTensor> tensors, double fraction) {
  const auto params = table.all();
  PackedWeights out{.tensors = std::move(tensors), .pruned = 0};
  if (fraction == 0) return out;
  QuantiseRule rule{.bits = 8};  // default bits: those of tensors without a separate rule
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
    const Codec own = codec == Codec::range && integers == 0 ? Codec::zstd : codec;  // range is for integers
    const RangeLayout layout{integers, static_cast<std::uint32_t>(table.all()[group.tensors.front()].cols)};
    coded[index_of(task)] = {
        group.name, own, raw.size(),
        own == Codec::range ? range_compress(raw, layout, on_piece) : compress(raw, own, on_piece)};
  });
  return coded;
}

namespace {

using Counts = std::array<std::uint64_t, 256>;

double entropy_bytes(const Counts& counts) {
  double total = 0, bits = 0;
  for (const std::uint64_t count : counts) total += static_cast<double>(count);
  for (const std::uint64_t count : counts)
    if (count > 0) bits += static_cast<double>(count) * std::log2(total / static_cast<double>(count));
  return bits / 8;
}

Counts counts_of(std::span<const std::byte> bytes) {
  Counts counts{};
  for (const std::byte byte : bytes) ++counts[std::to_integer<std::size_t>(byte)];
  return counts;
}

// A compressor's overhead per part for its frame and tables, in bytes.
constexpr double kOverhead = 24;

// The range coder models rows and columns. This gains nothing on untrained weights, whose rows are
// all alike, and up to 13 % on trained ones. The gain is estimated by coding blocks of rows spread
// over the group; small groups are coded completely.
constexpr std::size_t kSampledRows = 16, kMaxCodedCompletely = 1 << 18;

double sampled_range_ratio(std::span<const std::byte> integers, std::uint32_t width, std::size_t one_in) {
  const std::size_t block = kSampledRows * width;
  std::vector<std::byte> sample;
  for (std::size_t at = one_in / 2 * block; at < integers.size(); at += one_in * block) {
    const auto rows = integers.subspan(at, std::min(block, integers.size() - at));
    sample.insert(sample.end(), rows.begin(), rows.end());
  }
  const double entropy = entropy_bytes(counts_of(sample));
  const std::vector<std::byte> coded = range_compress(sample, {sample.size(), width});
  return entropy > 0 ? static_cast<double>(coded.size()) / entropy : 1;
}

// Measured: the learning cost per integer is inversely proportional to the square root of their
// number, so it drops twice as much from a sample of 1/16 to one of 1/4 as from 1/4 to all rows.
double range_ratio_of(std::span<const std::byte> integers, std::uint32_t width) {
  constexpr std::size_t kMore = 4, kLess = 16;
  if (integers.size() <= std::max(kMaxCodedCompletely, kLess * kSampledRows * width))
    return sampled_range_ratio(integers, width, 1);
  const double more = sampled_range_ratio(integers, width, kMore),
               less = sampled_range_ratio(integers, width, kLess);
  return std::max(more - (less - more) / 2, 0.01);  // tiny samples may give any value
}

// For each group, the range-coded size of its integers over their entropy; 0 if it has none or
// another codec is used.
std::vector<double> range_ratios(const ParamTable& table, std::span<const PackedTensor> tensors,
                                 Codec codec) {
  const std::vector<TensorGroup> groups = tensor_groups(table);
  std::vector<double> ratios(groups.size());
  if (codec != Codec::range) return ratios;
  parallel_tasks(static_cast<std::int64_t>(groups.size()), [&](std::int64_t task) {
    const auto i = static_cast<std::size_t>(task);
    const std::vector<std::byte> bytes = group_bytes(table, groups[i], tensors);
    const std::uint64_t integers = plane_sizes(table, groups[i], tensors).front();
    const auto width = static_cast<std::uint32_t>(table.all()[groups[i].tensors.front()].cols);
    if (integers > 0) ratios[i] = range_ratio_of(std::span(bytes).first(integers), width);
  });
  return ratios;
}

// zstd uses one entropy table per 128 KiB block, which planes of small tensors share.
std::vector<std::uint64_t> zstd_blocks(std::uint64_t bytes) {
  constexpr std::uint64_t kBlock = 128 << 10;
  std::vector<std::uint64_t> sizes(bytes / kBlock, kBlock);
  sizes.push_back(bytes % kBlock);
  return sizes;
}

// `range_ratio` is the group's value of range_ratios().
double group_bytes_predicted(const ParamTable& table, const TensorGroup& group,
                             std::span<const PackedTensor> tensors, double range_ratio) {
  const bool ranged = range_ratio > 0;
  const std::vector<std::byte> bytes = group_bytes(table, group, tensors);
  double predicted = kOverhead, factor = ranged ? range_ratio : 1;
  auto rest = std::span(bytes);
  for (const std::uint64_t part : ranged ? plane_sizes(table, group, tensors) : zstd_blocks(bytes.size())) {
    predicted += factor * entropy_bytes(counts_of(rest.first(part)));
    rest = rest.subspan(part);
    factor = 1;  // the integers are the first part
  }
  return predicted;
}

std::uint64_t predicted_bytes(const ParamTable& table, std::span<const PackedTensor> tensors,
                              std::span<const double> range_ratio) {
  const std::vector<TensorGroup> groups = tensor_groups(table);
  std::vector<double> bytes(groups.size());
  parallel_tasks(static_cast<std::int64_t>(groups.size()), [&](std::int64_t task) {
    const auto i = static_cast<std::size_t>(task);
    bytes[i] = group_bytes_predicted(table, groups[i], tensors, range_ratio[i]);
  });
  double sum = 0;
  for (const double own : bytes) sum += own;
  return static_cast<std::uint64_t>(sum);
}

// GPTQ's codes have a wider distribution than weights rounded to nearest, by up to 0.1 bits for
// coarse steps. Rows are independent, so GPTQ is run on one row in 16, and its codes are used for
// the next 15 rows as well.
constexpr std::size_t kSolvedOneIn = 16;

void solve_sampled_rows(const Param& param, std::span<const float> weights, const PackOptions& options,
                        PackedTensor& tensor) {
  const bool rows = is_quantised(tensor.storage) && tensor.storage != Storage::int8_whole;
  const GptqFactor* factor = rows ? options.gptq->of(param) : nullptr;
  if (!factor) return;
  const auto width = static_cast<std::size_t>(param.cols), count = static_cast<std::size_t>(param.rows);
  const auto own = param.in(weights);
  std::vector<float> left(own.begin(), own.end());
  prune_smallest(left, options.prune);
  std::vector<float> values, scales;
  std::vector<std::uint8_t> pruned;
  for (std::size_t row = 0; row < count; row += kSolvedOneIn) {
    scales.push_back(tensor.scales[row]);
    for (std::size_t i = row * width; i < (row + 1) * width; ++i) {
      values.push_back(own[i]);
      pruned.push_back(options.prune > 0 && left[i] == 0);
    }
  }
  std::vector<std::int8_t> q(values.size());
  gptq_rows(*factor, values, scales, (1 << (bits_of(tensor.storage) - 1)) - 1, pruned, q);
  for (std::size_t row = 0; row < count; ++row)
    std::ranges::copy(std::span(q).subspan(row / kSolvedOneIn * width, width),
                      tensor.q.begin() + static_cast<std::ptrdiff_t>(row * width));
}

}  // namespace

std::uint64_t predicted_bytes(const ParamTable& table, std::span<const PackedTensor> tensors, Codec codec) {
  return predicted_bytes(table, tensors, range_ratios(table, tensors, codec));
}

PackEstimate estimate_packing(const ParamTable& table, std::span<const float> weights,
                              std::span<const DType> restored, const PackOptions& options,
                              const Interrupt* interrupt) {
  PackOptions one_by_one = options;
  one_by_one.gptq = nullptr;
  PackedWeights packed =
      pack_weights(table, weights, restored, one_by_one, {}, ProgressOutput::nowhere(), interrupt);
  const auto params = table.all();
  std::vector<double> errors(params.size()), squares(params.size());
  parallel_tasks(static_cast<std::int64_t>(params.size()), [&](std::int64_t task) {
    const auto i = static_cast<std::size_t>(task);
    if (!is_quantised(packed.tensors[i].storage)) return;
    const auto before = params[i].in(weights);
    std::vector<float> after(before.size());
    unpack_tensor(params[i], packed.tensors[i], after);
    const PackingError error = packing_error(before, after);
    errors[i] = error.rms * error.rms * static_cast<double>(before.size());
    for (const float value : before) squares[i] += static_cast<double>(value) * static_cast<double>(value);
  });
  double lost = 0, all = 0;
  for (std::size_t i = 0; i < params.size(); ++i) {
    lost += errors[i];
    all += squares[i];
  }
  // Computed before rows are repeated, because an adaptive coder would exploit the repetition.
  const std::vector<double> range_ratio = range_ratios(table, packed.tensors, options.codec);
  for (std::size_t i = 0; options.gptq && i < params.size(); ++i) {
    if (interrupt) interrupt->throw_if_interrupted();
    solve_sampled_rows(params[i], weights, options, packed.tensors[i]);
  }
  return {predicted_bytes(table, packed.tensors, range_ratio), all > 0 ? std::sqrt(lost / all) : 0};
}

}  // namespace thimble
