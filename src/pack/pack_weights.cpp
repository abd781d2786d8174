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

bool is_small(const Param& param, const QuantizeRule& rule) {
  return param.count() <= (rule.bits == 8 ? kKeptAtEightBits : kKeptBelow);
}

bool is_kept_by_name(const Param& param, const PackOptions& options) {
  return std::ranges::any_of(
      options.keep, [&](const std::string& part) { return param.name.find(part) != param.name.npos; });
}

bool is_matrix(const Param& param) {
  return param.dims.size() == 2;
}

const std::optional<QuantizeRule>& own_rule(const Param& param, const PackOptions& options) {
  static const std::optional<QuantizeRule> kNone;
  const PackRole role = role_of(param, options);
  return role == PackRole::embedding ? options.embedding : role == PackRole::mlp ? options.mlp : kNone;
}

const QuantizeRule& rule_of(const Param& param, const PackOptions& options) {
  const std::optional<QuantizeRule>& own = own_rule(param, options);
  return own ? *own : options.rule;
}

// Parameter-golf's choice of what is quantized.
Storage golf_storage_of(const Param& param, const PackOptions& options) {
  if (is_small(param, options.rule)) return param.control ? Storage::f32 : Storage::f16;
  if (is_kept_by_name(param, options)) return Storage::f16;
  if (!is_matrix(param)) return Storage::int8_whole;
  if (const auto& own = own_rule(param, options)) return bit_width(own->bits).storage;
  if (options.rule.bits == 8) return Storage::int8;
  if (param.role == Role::token_embedding) return Storage::f16;
  if (param.role == Role::head || param.role == Role::position_embedding) return Storage::int8;
  return bit_width(options.rule.bits).storage;
}

// A matrix with shorter rows is not quantized: scales of 16 bits would add more than 2 bits to each
// weight.
constexpr std::int64_t kShortestRow = 8;

std::vector<std::uint8_t> zeros_in(std::span<const float> values) {
  std::vector<std::uint8_t> marks(values.size());
  std::ranges::transform(values, marks.begin(), [](float value) { return value == 0; });
  return marks;
}

// Replaces the codes of a tensor that was rounded to nearest by those of GPTQ; keeps its scales.
void round_with_gptq(const Param& param, std::span<const float> values, std::span<const std::uint8_t> pruned,
                     const PackOptions& options, PackedTensor& tensor) {
  const bool rows = is_quantized(tensor.storage) && tensor.storage != Storage::int8_whole;
  const GptqFactor* factor = rows ? options.gptq->of(param) : nullptr;
  if (!factor) return;
  const int highest = (1 << (bits_of(tensor.storage) - 1)) - 1;
  gptq_rows(*factor, values, tensor.scales, highest, pruned, tensor.q);
}

}  // namespace

const BitWidth& bit_width(int bits) {
  const auto* const found = std::ranges::find(kBitWidths, bits, &BitWidth::bits);
  check(found != std::end(kBitWidths), "[pack] expected 8, 6 or 5 bits, found {}", bits);
  return *found;
}

PackRole role_of(const Param& param, const PackOptions& options) {
  switch (param.role) {
    case Role::token_embedding:
    case Role::head:
      return PackRole::embedding;
    case Role::position_embedding:  // golf models have none; the published rule treats it separately
      return options.golf ? PackRole::attention : PackRole::embedding;
    case Role::mlp_fc:
    case Role::mlp_gate:
    case Role::mlp_up:
    case Role::mlp_proj:
      return PackRole::mlp;
    default:
      return PackRole::attention;
  }
}

namespace {

QuantizeRule clipped_rule(int bits, double clip) {
  return clip > 0 ? QuantizeRule{bits, Clip::deviation, static_cast<float>(clip)}
                  : QuantizeRule{.bits = bits};
}

template <class T>
T given_or(T value, T otherwise) {
  return value > 0 ? value : otherwise;
}

PackOptions golf_options(const PackConfig& preset) {
  PackOptions options;
  const int bits = static_cast<int>(given_or<std::int64_t>(preset.bits, preset.gptq ? 6 : 8));
  options.rule =
      clipped_rule(bits, given_or<double>(preset.clip_std, preset.gptq ? bit_width(bits).gptq_clip : 0));
  if (preset.gptq || preset.embed_bits > 0 || preset.embed_clip_std > 0) {
    const int embed_bits = static_cast<int>(given_or<std::int64_t>(preset.embed_bits, 8));
    options.embedding = clipped_rule(
        embed_bits, given_or<double>(preset.embed_clip_std, bit_width(embed_bits).embedding_clip));
  }
  return options;
}

PackOptions general_options(const PackConfig& preset, std::int64_t qat_bits) {
  PackOptions options;
  options.golf = false;
  const BitWidth& width =
      bit_width(static_cast<int>(given_or(preset.bits, given_or<std::int64_t>(qat_bits, 6))));
  const double clip = width.bits == qat_bits ? 0 : preset.gptq ? width.gptq_clip : width.clip;
  options.rule = clipped_rule(width.bits, given_or<double>(preset.clip_std, clip));
  const BitWidth& embedding = bit_width(static_cast<int>(given_or<std::int64_t>(preset.embed_bits, 8)));
  // At equal bits the embedding has steps at least as fine as the matrices.
  const double embed_clip = embedding.bits == width.bits && options.rule.deviations > 0
                                ? std::min(embedding.embedding_clip, options.rule.deviations)
                                : embedding.embedding_clip;
  options.embedding = clipped_rule(embedding.bits, given_or(preset.embed_clip_std, embed_clip));
  options.codec = Codec::range;
  return options;
}

}  // namespace

PackOptions pack_options(const PackConfig& preset, bool golf, std::int64_t qat_bits) {
  PackOptions options = golf ? golf_options(preset) : general_options(preset, qat_bits);
  options.prune = preset.prune;
  if (preset.range) options.codec = Codec::range;
  return options;
}

std::string rule_name(const QuantizeRule& rule) {
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
  if (options.mlp) name += ", mlp " + rule_name(*options.mlp);
  if (options.gptq) name += ", gptq";
  return name;
}

Storage storage_of(const Param& param, const PackOptions& options) {
  if (options.golf) return golf_storage_of(param, options);
  if (!is_matrix(param) || param.control) return param.control ? Storage::f32 : Storage::f16;
  if (is_kept_by_name(param, options) || param.cols < kShortestRow) return Storage::f16;
  return bit_width(rule_of(param, options).bits).storage;
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
    const Storage storage = storage_of(param, options);
    const bool is_large = is_quantized(storage) || !is_small(param, options.rule);
    const bool prunes = options.prune > 0 && is_matrix(param) && is_large;
    const std::int64_t zeroed = prunes ? prune_smallest(values, options.prune) : 0;
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
  QuantizeRule rule{.bits = 8};  // default bits: those of tensors without a separate rule
  for (std::size_t i = 0; i < params.size(); ++i)
    if (params[i].role != Role::token_embedding && params[i].role != Role::head)
      rule.bits = std::min(rule.bits, bits_of(out.tensors[i].storage));
  for (std::size_t i = 0; i < params.size(); ++i) {
    PackedTensor& tensor = out.tensors[i];
    if (!is_matrix(params[i]) || (!is_quantized(tensor.storage) && is_small(params[i], rule))) continue;
    std::vector<float> values(index_of(params[i].count()));
    unpack_tensor(params[i], tensor, values);
    out.pruned += prune_smallest(values, fraction);
    for (std::size_t j = 0; j < values.size(); ++j) {
      if (values[j] != 0) continue;
      if (is_quantized(tensor.storage))
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

}  // namespace thimble
