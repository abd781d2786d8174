#include "pack/packed_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>

#include "base/error.h"
#include "tensor/tensor.h"

namespace thimble {

namespace {

constexpr float kLargestHalf = 65504;

float rounded_to(float value, DType dtype) {
  if (dtype == DType::bf16) return to_f32(to_bf16(value));
  if (dtype == DType::f16) return to_f32(to_f16(value));
  return value;
}

void check_finite(const Param& param, std::span<const float> values) {
  const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  if (bad == values.end()) return;
  const std::int64_t at = bad - values.begin();
  fail(Hint{"the training diverged: use an earlier checkpoint"}, "{} contains {} in row {}, column {}",
       param.name, *bad, at / param.cols, at % param.cols);
}

bool fits_half(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::abs(value) <= kLargestHalf; });
}

void quantize_rows(const Param& param, std::span<const float> values, QuantizeRule rule, PackedTensor& out) {
  const std::size_t width = index_of(param.cols);
  for (std::int64_t row = 0; row < param.rows; ++row) {
    const std::size_t begin = index_of(row) * width;
    const float scale =
        quantize_row(values.subspan(begin, width), rule, std::span(out.q).subspan(begin, width));
    check(std::isfinite(scale), Hint{"store the tensor as floats with --keep"},
          "row {} of {} is too large to be quantized: its scale does not fit f16", row, param.name);
    out.scales.push_back(scale);
  }
}

}  // namespace

std::string_view name_of(Storage storage) {
  constexpr std::array<std::string_view, kStorages> kNames = {"F32", "F16", "I8", "I6", "I5", "I8"};
  return kNames[static_cast<std::size_t>(storage)];
}

std::int64_t scale_count(const Param& param, Storage storage) {
  if (!is_quantized(storage)) return 0;
  return storage == Storage::int8_whole ? 1 : param.rows;
}

std::int64_t scale_bytes(Storage storage) {
  return storage == Storage::int8_whole ? 4 : 2;
}

std::int64_t payload_bytes(const Param& param, Storage storage) {
  if (storage == Storage::f32) return 4 * param.count();
  if (storage == Storage::f16) return 2 * param.count();
  return param.count() + scale_count(param, storage) * scale_bytes(storage);
}

PackedTensor pack_tensor(const Param& param, std::span<const float> values, Storage storage,
                         const QuantizeRule& rule, DType restored) {
  check(std::cmp_equal(values.size(), param.count()), "[pack] found {} values for {}, expected {}",
        values.size(), param.name, param.count());
  check_finite(param, values);
  if (storage == Storage::f16 && !fits_half(values)) storage = Storage::f32;
  PackedTensor out{.storage = storage, .restored = restored, .floats = {}, .q = {}, .scales = {}};
  if (!is_quantized(storage)) {
    out.floats.resize(values.size());
    const DType stored_type = storage == Storage::f16 ? DType::f16 : DType::f32;
    std::ranges::transform(values, out.floats.begin(),
                           [&](float value) { return rounded_to(value, stored_type); });
    return out;
  }
  out.q.resize(values.size());
  if (storage == Storage::int8_whole)
    out.scales.push_back(quantize_tensor(values, out.q));
  else
    quantize_rows(param, values, {bits_of(storage), rule.clip, rule.deviations}, out);
  return out;
}

void unpack_tensor(const Param& param, const PackedTensor& tensor, std::span<float> values) {
  if (!is_quantized(tensor.storage)) {
    std::ranges::transform(tensor.floats, values.begin(),
                           [&](float value) { return rounded_to(value, tensor.restored); });
    return;
  }
  const bool whole = tensor.storage == Storage::int8_whole;
  const std::size_t width = index_of(whole ? param.count() : param.cols);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = rounded_to(static_cast<float>(tensor.q[i]) * tensor.scales[i / width], tensor.restored);
}

PackingError packing_error(std::span<const float> before, std::span<const float> after) {
  PackingError error;
  double errors = 0, squares = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double difference = double{before[i]} - double{after[i]};
    errors += difference * difference;
    squares += double{before[i]} * double{before[i]};
    error.largest = std::max(error.largest, std::abs(difference));
  }
  if (before.empty()) return error;
  error.rms = std::sqrt(errors / static_cast<double>(before.size()));
  error.relative = squares > 0 ? std::sqrt(errors / squares) : 0;
  return error;
}

WeightFormat stored_format(const PackedTensor& tensor) {
  if (tensor.restored == DType::bf16) return WeightFormat::bf16;
  if (tensor.restored == DType::f16 || tensor.storage == Storage::f16) return WeightFormat::f16;
  const bool scaled_rows = is_quantized(tensor.storage) && tensor.storage != Storage::int8_whole;
  return scaled_rows ? WeightFormat::int8_rows : WeightFormat::f32;
}

void store_tensor(const Param& param, const PackedTensor& tensor, const StoredWeights::Stored& target) {
  const Tensor& to = target.values;
  if (to.dtype == DType::i8) {
    std::ranges::copy(tensor.q, to.row<std::int8_t>(0));
    std::ranges::copy(tensor.scales, target.scales.row<float>(0));
    return;
  }
  std::vector<float> values(static_cast<std::size_t>(param.count()));
  unpack_tensor(param, tensor, values);
  store_floats(values, to);
}

namespace {

using Bytes = std::vector<std::byte>;

// "blocks.3.attn.q_gain" -> "blocks.attn.q_gain"
std::string group_name(const Param& param) {
  const std::string layer = fmt::format(".{}.", param.layer);
  const std::size_t at = param.name.find(layer);
  if (param.layer < 0 || at == param.name.npos) return param.name;
  return param.name.substr(0, at + 1) + param.name.substr(at + layer.size());
}

std::int64_t element_count(const Param& param, Storage) {
  return param.count();
}

// One kind of floats of a group, in the order of the file.
struct Section {
  std::size_t width;  // bytes per number
  std::vector<float> PackedTensor::*member;
  bool (*holds)(Storage);
  std::int64_t (*count)(const Param&, Storage);
};

constexpr std::array<Section, 4> kSections = {{
    {2, &PackedTensor::scales, [](Storage s) { return is_quantized(s) && s != Storage::int8_whole; },
     scale_count},
    {4, &PackedTensor::scales, [](Storage s) { return s == Storage::int8_whole; }, scale_count},
    {2, &PackedTensor::floats, [](Storage s) { return s == Storage::f16; }, element_count},
    {4, &PackedTensor::floats, [](Storage s) { return s == Storage::f32; }, element_count},
}};

std::uint32_t bits_of(float value, std::size_t width) {
  return width == 2 ? to_f16(value).bits : std::bit_cast<std::uint32_t>(value);
}
float value_of(std::uint32_t bits, std::size_t width) {
  return width == 2 ? to_f32(f16{static_cast<std::uint16_t>(bits)}) : std::bit_cast<float>(bits);
}

void append_planes(std::span<const float> values, std::size_t width, Bytes& bytes) {
  for (std::size_t plane = 0; plane < width; ++plane)
    for (const float value : values)
      bytes.push_back(static_cast<std::byte>(bits_of(value, width) >> (8 * plane)));
}

// bytes: width * number of values
void read_planes(std::span<const std::byte> bytes, std::size_t width, std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint32_t bits = 0;
    for (std::size_t plane = 0; plane < width; ++plane)
      bits |= std::to_integer<std::uint32_t>(bytes[plane * values.size() + i]) << (8 * plane);
    values[i] = value_of(bits, width);
    check(std::isfinite(values[i]), "expected finite scales and weights, found {}", values[i]);
  }
}

}  // namespace

std::vector<TensorGroup> tensor_groups(const ParamTable& table) {
  std::map<std::string, std::vector<std::size_t>> by_name;
  const auto params = table.all();
  for (std::size_t i = 0; i < params.size(); ++i) by_name[group_name(params[i])].push_back(i);
  std::vector<TensorGroup> groups;
  for (auto& [name, tensors] : by_name) {
    std::ranges::sort(tensors, {}, [&](std::size_t i) { return params[i].layer; });
    groups.push_back({name, std::move(tensors)});
  }
  return groups;
}

std::uint64_t group_size(const ParamTable& table, const TensorGroup& group,
                         std::span<const PackedTensor> tensors) {
  std::uint64_t bytes = 0;
  for (const std::size_t i : group.tensors)
    bytes += static_cast<std::uint64_t>(payload_bytes(table.all()[i], tensors[i].storage));
  return bytes;
}

Bytes group_bytes(const ParamTable& table, const TensorGroup& group, std::span<const PackedTensor> tensors) {
  Bytes bytes;
  bytes.reserve(index_of(static_cast<std::int64_t>(group_size(table, group, tensors))));
  for (const std::size_t i : group.tensors)
    for (const std::int8_t q : tensors[i].q) bytes.push_back(static_cast<std::byte>(q));
  for (const Section& section : kSections) {
    std::vector<float> values;
    for (const std::size_t i : group.tensors) {
      if (!section.holds(tensors[i].storage)) continue;
      const std::vector<float>& own = tensors[i].*section.member;
      values.insert(values.end(), own.begin(), own.end());
    }
    append_planes(values, section.width, bytes);
  }
  return bytes;
}

std::vector<std::uint64_t> plane_sizes(const ParamTable& table, const TensorGroup& group,
                                       std::span<const PackedTensor> tensors) {
  std::vector<std::uint64_t> sizes(1);
  for (const std::size_t i : group.tensors)
    if (is_quantized(tensors[i].storage)) sizes[0] += static_cast<std::uint64_t>(table.all()[i].count());
  for (const Section& section : kSections) {
    std::int64_t count = 0;
    for (const std::size_t i : group.tensors)
      if (section.holds(tensors[i].storage)) count += section.count(table.all()[i], tensors[i].storage);
    sizes.insert(sizes.end(), section.width, static_cast<std::uint64_t>(count));
  }
  return sizes;
}

void read_group(const ParamTable& table, const TensorGroup& group, std::span<const std::byte> bytes,
                std::span<PackedTensor> tensors) {
  check(bytes.size() == group_size(table, group, tensors), "[pack] found {} bytes for group {}, expected {}",
        bytes.size(), group.name, group_size(table, group, tensors));
  for (const std::size_t i : group.tensors) {
    if (!is_quantized(tensors[i].storage)) continue;
    tensors[i].q.resize(index_of(table.all()[i].count()));
    std::ranges::transform(bytes.first(tensors[i].q.size()), tensors[i].q.begin(),
                           [](std::byte byte) { return static_cast<std::int8_t>(byte); });
    bytes = bytes.subspan(tensors[i].q.size());
  }
  for (const Section& section : kSections) {
    std::size_t count = 0;
    for (const std::size_t i : group.tensors)
      if (section.holds(tensors[i].storage))
        count += index_of(section.count(table.all()[i], tensors[i].storage));
    std::vector<float> values(count);
    read_planes(bytes.first(count * section.width), section.width, values);
    bytes = bytes.subspan(count * section.width);
    auto next = values.begin();
    for (const std::size_t i : group.tensors) {
      if (!section.holds(tensors[i].storage)) continue;
      const auto end = next + section.count(table.all()[i], tensors[i].storage);
      (tensors[i].*section.member).assign(next, end);
      next = end;
    }
  }
}

}  // namespace thimble
