#include "pack/size_model.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/parallel.h"
#include "pack/gptq.h"
#include "pack/prune.h"
#include "pack/range_codec.h"

namespace thimble {

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

// What a compressor spends on a part beside the entropy: its frame and its tables.
constexpr double kOverhead = 24;

// The range coder knows rows and columns. That is worth nothing where all are alike, as in fresh weights, and an eighth
// of an embedding; so some blocks of rows are coded, spread over all, and stand for the rest. Few integers are no trouble.
constexpr std::size_t kBlockRows = 16, kAllCoded = 1 << 18;

double sample_over_entropy(std::span<const std::byte> integers, std::uint32_t width, std::size_t one_in) {
  const std::size_t block = kBlockRows * width;
  std::vector<std::byte> sample;
  for (std::size_t at = one_in / 2 * block; at < integers.size(); at += one_in * block) {
    const auto rows = integers.subspan(at, std::min(block, integers.size() - at));
    sample.insert(sample.end(), rows.begin(), rows.end());
  }
  const double entropy = entropy_bytes(counts_of(sample));
  const std::vector<std::byte> coded = range_compress(sample, {sample.size(), width});
  return entropy > 0 ? static_cast<double>(coded.size()) / entropy : 1;
}

// What an integer costs for learning was found to fall with the root of how many there are: from a sixteenth of them to a
// quarter by twice as much as from there to all.
double range_over_entropy(std::span<const std::byte> integers, std::uint32_t width) {
  constexpr std::size_t kMore = 4, kLess = 16;
  if (integers.size() <= std::max(kAllCoded, kLess * kBlockRows * width))
    return sample_over_entropy(integers, width, 1);
  const double more = sample_over_entropy(integers, width, kMore),
               less = sample_over_entropy(integers, width, kLess);
  return std::max(more - (less - more) / 2, 0.01);  // a few bytes in all may say anything
}

// Of each group's integers: what the range coder makes of them, over their entropy. 0: not its business.
std::vector<double> ranges_over_entropy(const ParamTable& table, std::span<const PackedTensor> tensors,
                                        Codec codec) {
  const std::vector<TensorGroup> groups = tensor_groups(table);
  std::vector<double> ratios(groups.size());
  if (codec != Codec::range) return ratios;
  parallel_tasks(static_cast<std::int64_t>(groups.size()), [&](std::int64_t task) {
    const auto i = static_cast<std::size_t>(task);
    const std::vector<std::byte> bytes = group_bytes(table, groups[i], tensors);
    const std::uint64_t integers = plane_sizes(table, groups[i], tensors).front();
    const auto width = static_cast<std::uint32_t>(table.all()[groups[i].tensors.front()].cols);
    if (integers > 0) ratios[i] = range_over_entropy(std::span(bytes).first(integers), width);
  });
  return ratios;
}

// zstd has one table for so many bytes, whatever they are: planes of small tensors share it.
std::vector<std::uint64_t> zstd_blocks(std::uint64_t bytes) {
  constexpr std::uint64_t kBlock = 128 << 10;
  std::vector<std::uint64_t> sizes(bytes / kBlock, kBlock);
  sizes.push_back(bytes % kBlock);
  return sizes;
}

// `of_integers`: see above.
double group_bytes_predicted(const ParamTable& table, const TensorGroup& group,
                             std::span<const PackedTensor> tensors, double of_integers) {
  const bool ranged = of_integers > 0;
  const std::vector<std::byte> bytes = group_bytes(table, group, tensors);
  double predicted = kOverhead, factor = ranged ? of_integers : 1;
  auto rest = std::span(bytes);
  for (const std::uint64_t part : ranged ? plane_sizes(table, group, tensors) : zstd_blocks(bytes.size())) {
    predicted += factor * entropy_bytes(counts_of(rest.first(part)));
    rest = rest.subspan(part);
    factor = 1;  // the integers are the first part
  }
  return predicted;
}

std::uint64_t predicted_bytes(const ParamTable& table, std::span<const PackedTensor> tensors,
                              std::span<const double> of_integers) {
  const std::vector<TensorGroup> groups = tensor_groups(table);
  std::vector<double> bytes(groups.size());
  parallel_tasks(static_cast<std::int64_t>(groups.size()), [&](std::int64_t task) {
    const auto i = static_cast<std::size_t>(task);
    bytes[i] = group_bytes_predicted(table, groups[i], tensors, of_integers[i]);
  });
  double sum = 0;
  for (const double own : bytes) sum += own;
  return static_cast<std::uint64_t>(sum);
}

// GPTQ's codes spread wider than those of weights rounded by themselves, by up to a tenth of a bit where steps are
// coarse. Rows do not depend on each other: one in 16 is solved, and stands for those behind it.
constexpr std::size_t kSolvedOneIn = 16;

void solve_some_rows(const Param& param, std::span<const float> weights, const PackOptions& options,
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
  return predicted_bytes(table, tensors, ranges_over_entropy(table, tensors, codec));
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
  // Before rows stand for others: a coder that sees a row 16 times knows it.
  const std::vector<double> of_integers = ranges_over_entropy(table, packed.tensors, options.codec);
  for (std::size_t i = 0; options.gptq && i < params.size(); ++i) {
    if (interrupt) interrupt->throw_if_asked();
    solve_some_rows(params[i], weights, options, packed.tensors[i]);
  }
  return {predicted_bytes(table, packed.tensors, of_integers), all > 0 ? std::sqrt(lost / all) : 0};
}

}  // namespace thimble
