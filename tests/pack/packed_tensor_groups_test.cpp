// Groups of tensors as bytes, and back.
#include "pack/packed_tensor.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/error.h"
#include "pack/pack_weights.h"
#include "pack/small_model.h"
#include "tensor/tensor.h"

namespace thimble {
namespace {

std::vector<PackedTensor> packed_golf(const ParamTable& table, int bits) {
  const std::vector<float> weights = random_weights(table);
  const std::vector<DType> types(table.all().size(), DType::f32);
  return pack_weights(table, weights, types, {.rule = {.bits = bits}}).tensors;
}

TEST(TensorGroups, ContainEveryTensorOnceByNameAndLayer) {
  const ParamTable table(small_config("golf-plus", {"layers=11"}));
  std::vector<std::size_t> seen;
  std::string before;
  for (const TensorGroup& group : tensor_groups(table)) {
    EXPECT_LT(before, group.name);
    before = group.name;
    for (std::size_t i = 0; i < group.tensors.size(); ++i) {
      const Param& param = table.all()[group.tensors[i]];
      EXPECT_EQ(param.role, table.all()[group.tensors[0]].role);
      if (param.layer >= 0) {
        EXPECT_EQ(param.layer, static_cast<int>(i)) << "10 follows 9, not 1";
      }
      seen.push_back(group.tensors[i]);
    }
  }
  std::ranges::sort(seen);
  EXPECT_EQ(seen.size(), table.all().size());
  EXPECT_EQ(std::ranges::adjacent_find(seen), seen.end());
  EXPECT_EQ(before, "tok_emb.weight");
  EXPECT_EQ(tensor_groups(table)[0].name, "bigram.embed.weight");
}

TEST(TensorGroups, RoundTripThroughBytes) {
  for (const char* preset : {"golf", "golf-plus", "llama", "microgpt"})
    for (const int bits : {8, 6, 5}) {
      const ParamTable table(small_config(preset));
      std::vector<PackedTensor> tensors = packed_golf(table, bits), back(tensors.size());
      tensors[0].storage = Storage::int8_whole;  // so that every section has data
      tensors[0].q.assign(static_cast<std::size_t>(table.all()[0].count()), 3);
      tensors[0].scales = {0.12345f};
      tensors[0].floats.clear();
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        back[i].storage = tensors[i].storage;
        back[i].restored = tensors[i].restored;
      }
      for (const TensorGroup& group : tensor_groups(table)) {
        const std::vector<std::byte> bytes = group_bytes(table, group, tensors);
        EXPECT_EQ(bytes.size(), group_size(table, group, tensors));
        read_group(table, group, bytes, back);
      }
      EXPECT_EQ(back, tensors) << preset << " " << bits;
    }
}

TEST(TensorGroups, MatchTheDocumentedLayout) {
  const ParamTable table(small_config("golf", {"layers=2", "unet_skips=false"}));
  std::vector<PackedTensor> tensors(table.all().size());
  const auto groups = tensor_groups(table);
  const auto gain = std::ranges::find(groups, "blocks.attn.q_gain", &TensorGroup::name);
  ASSERT_NE(gain, groups.end());
  for (const std::size_t i : gain->tensors) tensors[i].floats = {1, 2, -1.5f, 0};
  const std::vector<std::byte> bytes = group_bytes(table, *gain, tensors);
  ASSERT_EQ(bytes.size(), 32u);
  // Four planes of eight numbers; the last contains sign and exponent.
  const std::vector<int> top = {0x3F, 0x40, 0xBF, 0x00, 0x3F, 0x40, 0xBF, 0x00};
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(std::to_integer<int>(bytes[24 + i]), top[i]);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(std::to_integer<int>(bytes[i]), 0);
}

TEST(TensorGroups, RejectWrongSizesAndNonFiniteValues) {
  const ParamTable table(small_config("golf"));
  std::vector<PackedTensor> tensors = packed_golf(table, 6);
  const TensorGroup group = tensor_groups(table)[0];
  std::vector<std::byte> bytes = group_bytes(table, group, tensors);
  EXPECT_THROW(read_group(table, group, std::span(bytes).first(bytes.size() - 1), tensors), Error);
  // With every byte 0xFF, each number is NaN.
  std::ranges::fill(bytes, std::byte{0xFF});
  EXPECT_THROW(read_group(table, group, bytes, tensors), Error);
}

}  // namespace
}  // namespace thimble
