// Shape rules and validate_call reject invalid stored matrices.
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/op_harness.h"
#include "support/message_of.h"

namespace thimble {
namespace {

std::string message(Op op, const std::vector<Shape>& in, const Attributes& attributes = {}) {
  return message_of([&] { op->shapes(in, attributes); });
}

TEST(StoredMatrix, NeedsScalesOnlyForIntegers) {
  const Shape x{3, 64}, i8{5, 64, DType::i8}, f16{5, 64, DType::f16}, none{}, row{5, 1}, blocks{5, 2};
  EXPECT_EQ(message(&op::kLinear, {x, i8, none, row}), "nothing was thrown");
  EXPECT_EQ(message(&op::kLinear, {x, i8, none, blocks}), "nothing was thrown");
  EXPECT_EQ(message(&op::kLinear, {x, f16}), "nothing was thrown");
  EXPECT_EQ(message(&op::kLinear, {x, i8}), "[linear] expected weight in i8 with scales");
  EXPECT_EQ(message(&op::kLinear, {x, f16, none, row}), "[linear] expected weight in f16 without scales");
  EXPECT_EQ(message(&op::kLinear, {x, i8, none, {5, 3}}),
            "[linear] expected scales [5, 1] or [5, 2], got f32 [5, 3]");
  EXPECT_EQ(message(&op::kLinear, {x, i8, none, {4, 1}}),
            "[linear] expected scales [5, 1] or [5, 2], got f32 [4, 1]");
  EXPECT_EQ(message(&op::kLinear, {{3, 64, DType::bf16}, {5, 64}}),
            "[linear] expected weight in bf16, or stored as bf16, f16, i8 or blocks, got f32");
  EXPECT_EQ(
      message(&op::kEmbedding, {i8, {3, 1, DType::i32}, none, row}, EmbeddingAttributes{true, DType::bf16}),
      "nothing was thrown");
  EXPECT_NE(message(&op::kEmbedding, {i8, {3, 1, DType::i32}, none, row}), "nothing was thrown");
}

TEST(StoredMatrix, HasNoGradientAndIsRejectedByTheReference) {
  std::vector<float> x(4 * 64), y(4 * 5), scales(5), of_x(4 * 64), of_w(5 * 64), of_y(4 * 5);
  std::vector<std::int8_t> w(5 * 64);
  const std::vector<Tensor> in = {make_tensor(x.data(), 4, 64), make_tensor(w.data(), 5, 64), Tensor{},
                                  make_tensor(scales.data(), 5, 1)},
                            out = {make_tensor(y.data(), 4, 5)};
  OpCall call{.in = in, .out = out, .d_out = {}, .d_in = {}, .attributes = {}, .scratch = {}};
  const OpDefinition& def = op::kLinear;
  EXPECT_NO_THROW(validate_call(def, cpu_backend(), call));
  EXPECT_EQ(message_of([&] { validate_call(def, reference_backend(), call); }),
            "[linear] has no reference kernel for input 1 stored as i8");
  std::vector<Tensor> d_in = {make_tensor(of_x.data(), 4, 64), Tensor{}};
  const std::vector<Tensor> d_out = {make_tensor(of_y.data(), 4, 5)};
  call.d_out = d_out, call.d_in = d_in;
  EXPECT_NO_THROW(validate_call(def, cpu_backend(), call));
  d_in[1] = make_tensor(of_w.data(), 5, 64);
  EXPECT_EQ(message_of([&] { validate_call(def, cpu_backend(), call); }),
            "[linear] has no gradient of input 1 stored as i8");
}

}  // namespace
}  // namespace thimble
