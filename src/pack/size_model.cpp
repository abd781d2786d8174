#include "pack/size_model.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/parallel.h"
#include "pack/gptq.h"
#include "pack/prune.h"

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

// The range coder knows rows and columns: on trained weights it was 0.5 % (8 bits) to 3.2 % (5 bits) below the entropy. What
// it knows it has to learn first, for every group anew.
constexpr double kRangeOfEntropy = 0.98, kRangeLearning = 1200;

double group_bytes_predicted(const ParamTable& table, const TensorGroup& group,
                             std::span<const PackedTensor> tensors, Codec codec) {
  const std::vector<std::byte> bytes = group_bytes(table, group, tensors);
  double predicted = kOverhead;
  auto rest = std::span(bytes);
  for (const std::uint64_t plane : plane_sizes(table, group, tensors)) {
    predicted += entropy_bytes(counts_of(rest.first(plane)));
    rest = rest.subspan(plane);
  }
  const bool ranged = codec == Codec::range && plane_sizes(table, group, tensors).front() > 0;
  return ranged ? kRangeOfEntropy * predicted + kRangeLearning : predicted;
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
  const std::vector<TensorGroup> groups = tensor_groups(table);
  std::vector<double> bytes(groups.size());
  parallel_tasks(static_cast<std::int64_t>(groups.size()), [&](std::int64_t task) {
    const auto i = static_cast<std::size_t>(task);
    bytes[i] = group_bytes_predicted(table, groups[i], tensors, codec);
  });
  double sum = 0;
  for (const double own : bytes) sum += own;
  return static_cast<std::uint64_t>(sum);
}

PackEstimate estimate_packing(const ParamTable& table, std::span<const float> weights,
                              std::span<const DType> restored, const PackOptions& options) {
  PackOptions one_by_one = options;
  one_by_one.gptq = nullptr;
  PackedWeights packed = pack_weights(table, weights, restored, one_by_one);
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
  for (std::size_t i = 0; options.gptq && i < params.size(); ++i)
    solve_some_rows(params[i], weights, options, packed.tensors[i]);
  return {predicted_bytes(table, packed.tensors, options.codec), all > 0 ? std::sqrt(lost / all) : 0};
}

}  // namespace thimble
