#include "pack/tensor_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/half.h"
#include "base/index.h"

namespace thimble {

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

// The floats of a group, by how they lie in the file.
struct Section {
  std::size_t width;  // bytes a number
  std::vector<float> PackedTensor::*member;
  bool (*holds)(Storage);
  std::int64_t (*count)(const Param&, Storage);
};

constexpr std::array<Section, 4> kSections = {{
    {2, &PackedTensor::scales, [](Storage s) { return is_quantised(s) && s != Storage::int8_whole; },
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

// bytes: width * count of them
void read_planes(std::span<const std::byte> bytes, std::size_t width, std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint32_t bits = 0;
    for (std::size_t plane = 0; plane < width; ++plane)
      bits |= std::to_integer<std::uint32_t>(bytes[plane * values.size() + i]) << (8 * plane);
    values[i] = value_of(bits, width);
    check(std::isfinite(values[i]), "a scale or a weight is {}, which no packer writes", values[i]);
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
    if (is_quantised(tensors[i].storage)) sizes[0] += static_cast<std::uint64_t>(table.all()[i].count());
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
  check(bytes.size() == group_size(table, group, tensors), "[pack] {} bytes for group {} of {}", bytes.size(),
        group.name, group_size(table, group, tensors));
  for (const std::size_t i : group.tensors) {
    if (!is_quantised(tensors[i].storage)) continue;
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
