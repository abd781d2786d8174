#include "pack/pack_estimate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "pack/gptq.h"
#include "pack/prune.h"
#include "pack/range_codec.h"
#include "tensor/tensor.h"

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

// The predicted size of each group.
std::vector<double> predicted_groups(const ParamTable& table, std::span<const PackedTensor> tensors,
                                     std::span<const double> range_ratio) {
  const std::vector<TensorGroup> groups = tensor_groups(table);
  std::vector<double> bytes(groups.size());
  parallel_tasks(static_cast<std::int64_t>(groups.size()), [&](std::int64_t task) {
    const auto i = static_cast<std::size_t>(task);
    bytes[i] = group_bytes_predicted(table, groups[i], tensors, range_ratio[i]);
  });
  return bytes;
}

std::uint64_t sum_of(std::span<const double> group_bytes) {
  double sum = 0;
  for (const double own : group_bytes) sum += own;
  return static_cast<std::uint64_t>(sum);
}

double relative_error(double lost, double squares) {
  return squares > 0 ? std::sqrt(lost / squares) : 0;
}

// GPTQ's codes have a wider distribution than weights rounded to nearest, by up to 0.1 bits for
// coarse steps. Rows are independent, so GPTQ is run on one row in 16, and its codes are used for
// the next 15 rows as well.
constexpr std::size_t kSolvedOneIn = 16;

void solve_sampled_rows(const Param& param, std::span<const float> weights, const PackOptions& options,
                        PackedTensor& tensor) {
  const bool rows = is_quantized(tensor.storage) && tensor.storage != Storage::int8_whole;
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

double RoleEstimate::error() const {
  return relative_error(lost, squares);
}

std::uint64_t predicted_bytes(const ParamTable& table, std::span<const PackedTensor> tensors, Codec codec) {
  return sum_of(predicted_groups(table, tensors, range_ratios(table, tensors, codec)));
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
    if (!is_quantized(packed.tensors[i].storage)) return;
    const auto before = params[i].in(weights);
    std::vector<float> after(before.size());
    unpack_tensor(params[i], packed.tensors[i], after);
    const PackingError error = packing_error(before, after);
    errors[i] = error.rms * error.rms * static_cast<double>(before.size());
    for (const float value : before) squares[i] += static_cast<double>(value) * static_cast<double>(value);
  });
  PackEstimate estimate;
  const auto role_estimate = [&](const Param& param) -> RoleEstimate& {
    return estimate.roles[static_cast<std::size_t>(role_of(param, options))];
  };
  double lost = 0, all = 0;
  for (std::size_t i = 0; i < params.size(); ++i) {
    lost += errors[i];
    all += squares[i];
    role_estimate(params[i]).lost += errors[i];
    role_estimate(params[i]).squares += squares[i];
  }
  estimate.error = relative_error(lost, all);
  // Computed before rows are repeated, because an adaptive coder would exploit the repetition.
  const std::vector<double> range_ratio = range_ratios(table, packed.tensors, options.codec);
  for (std::size_t i = 0; options.gptq && i < params.size(); ++i) {
    if (interrupt) interrupt->throw_if_interrupted();
    solve_sampled_rows(params[i], weights, options, packed.tensors[i]);
  }
  const std::vector<TensorGroup> groups = tensor_groups(table);
  const std::vector<double> bytes = predicted_groups(table, packed.tensors, range_ratio);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::size_t first = groups[g].tensors.front();
    if (is_quantized(packed.tensors[first].storage)) role_estimate(params[first]).bytes += bytes[g];
  }
  estimate.bytes = sum_of(bytes);
  return estimate;
}

}  // namespace thimble
