// Shape rules reject invalid inputs before a kernel runs. The message starts with the name of the
// op and contains the numbers.
#include <functional>

#include "base/error.h"
#include "graph/op.h"
#include "ops/attention.h"
#include "ops/cast.h"
#include "ops/elementwise.h"
#include "ops/head_loss.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/op_cases.h"
#include "ops/residual.h"
#include "ops/rope.h"

namespace thimble {
namespace {

using Request = OpRequest;

// The error message of a request, "" if the request is accepted.
std::string rejection(const std::function<void()>& request) {
  try {
    request();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

struct Rejected {
  Op op;
  std::string_view what;
  std::function<void(Request&)> modify;
  std::vector<std::string> words;  // words of the message, besides "[op] "
};

Rejected width(Op op, std::size_t input, std::int64_t cols, std::vector<std::string> words) {
  return {op, "width", [=](Request& r) { r.in[input].cols = cols; }, std::move(words)};
}
Rejected count(Op op, std::size_t input, std::int64_t rows, std::vector<std::string> words) {
  return {op, "rows", [=](Request& r) { r.in[input].rows = rows; }, std::move(words)};
}
Rejected dtype(Op op, std::size_t input, DType wrong, std::vector<std::string> words) {
  return {op, "dtype", [=](Request& r) { r.in[input].dtype = wrong; }, std::move(words)};
}
template <class T>
Rejected attributes(Op op, T wrong, std::vector<std::string> words) {
  return {op, "attributes", [=](Request& r) { r.attributes = wrong; }, std::move(words)};
}

std::vector<Rejected> rejected_requests() {
  return {
      dtype(&op::kEmbedding, 1, DType::f32, {"index", "i32", "f32"}),
      dtype(&op::kEmbedding, 0, DType::i32, {"table", "floats", "i32"}),
      width(&op::kEmbedding, 1, 2, {"index", "width 1", "2"}),
      count(&op::kEmbedding, 2, 5, {"order", "6", "5"}),
      width(&op::kSmear, 1, 7, {"gate", "8", "7"}),
      count(&op::kSmear, 2, 9, {"9", "6"}),
      width(&op::kRmsNorm, 1, 7, {"weight", "8", "7"}),
      count(&op::kRmsNorm, 1, 2, {"weight", "1", "2"}),
      attributes(&op::kRmsNorm, RmsNormAttributes{-1, 1}, {"eps"}),
      width(&op::kLayerNorm, 1, 7, {"weight", "8", "7"}),
      width(&op::kLayerNorm, 2, 9, {"bias", "8", "9"}),
      attributes(&op::kLayerNorm, LayerNormAttributes{-1}, {"eps"}),
      width(&op::kLinear, 1, 7, {"7", "8"}),
      width(&op::kLinear, 2, 4, {"bias", "5", "4"}),
      dtype(&op::kLinear, 1, DType::f64, {"weight", "f32", "f64"}),
      width(&op::kRope, 0, 13, {"13", "4"}),
      count(&op::kRope, 1, 5, {"position", "6", "5"}),
      dtype(&op::kRope, 1, DType::f32, {"position", "i32", "f32"}),
      width(&op::kRope, 2, 4, {"4", "3"}),  // wider than a head
      width(&op::kRope, 2, 1, {"1", "even"}),
      width(&op::kRope, 3, 3, {"gain", "4", "3"}),
      width(&op::kRope, 4, 4, {"weight", "3", "4"}),
      attributes(&op::kRope, RopeAttributes{0, true, 1e-6f}, {"heads", "0"}),
      attributes(&op::kRope, RopeAttributes{4, false, 1e-6f}, {"norm"}),
      attributes(&op::kRope, RopeAttributes{4, true, -1}, {"eps"}),
      width(&op::kAttention, 1, 7, {"6", "7"}),
      width(&op::kAttention, 2, 7, {"v", "6", "7"}),
      count(&op::kAttention, 1, 5, {"k", "6", "5"}),
      count(&op::kAttention, 2, 5, {"v", "6", "5"}),
      count(&op::kAttention, 3, 5, {"first", "6", "5"}),
      dtype(&op::kAttention, 1, DType::f64, {"k", "f32", "f64"}),
      dtype(&op::kAttention, 2, DType::f64, {"v", "f32", "f64"}),
      attributes(&op::kAttention, AttentionAttributes{4, 3, 1}, {"4", "3"}),
      attributes(&op::kAttention, AttentionAttributes{5, 5, 1}, {"12", "5"}),
      attributes(&op::kAttention, AttentionAttributes{4, 0, 1}, {"0"}),
      width(&op::kExclusiveAttention, 1, 7, {"6", "7"}),
      count(&op::kExclusiveAttention, 1, 5, {"v", "6", "5"}),
      dtype(&op::kExclusiveAttention, 1, DType::f64, {"v", "f32", "f64"}),
      attributes(&op::kExclusiveAttention, ExclusiveAttributes{4, 3}, {"4", "3"}),
      count(&op::kCachedAttention, 3, 5, {"slot", "6", "5"}),
      count(&op::kCachedAttention, 4, 7, {"position", "6", "7"}),
      count(&op::kCachedAttention, 6, 10, {"v_cache", "20", "10"}),
      width(&op::kCachedAttention, 5, 7, {"k_cache", "6", "7"}),
      dtype(&op::kCachedAttention, 5, DType::f64, {"k_cache", "f32", "f64"}),
      attributes(&op::kCachedAttention, CachedAttentionAttributes{4, 2, 7, 1}, {"20", "7"}),
      attributes(&op::kCachedAttention, CachedAttentionAttributes{4, 2, 0, 1}, {"0"}),
      width(&op::kActivation, 0, 9, {"swiglu", "9"}),
      attributes(&op::kActivation, ActivationAttributes{static_cast<ActivationKind>(99)}, {"99"}),
      width(&op::kAddScaled, 1, 7, {"branch", "8", "7"}),
      count(&op::kAddScaled, 1, 5, {"branch", "6", "5"}),
      width(&op::kAddScaled, 2, 7, {"scale", "8", "7"}),
      dtype(&op::kAddScaled, 1, DType::f64, {"branch", "f32", "f64"}),
      width(&op::kResidualMix, 1, 7, {"x0", "8", "7"}),
      count(&op::kResidualMix, 2, 1, {"2", "1"}),
      dtype(&op::kResidualMix, 1, DType::f64, {"x0", "f32", "f64"}),
      width(&op::kResidualNorm, 1, 7, {"branch", "8", "7"}),
      width(&op::kResidualNorm, 2, 7, {"scale", "8", "7"}),
      width(&op::kResidualNorm, 3, 7, {"weight", "8", "7"}),
      dtype(&op::kResidualNorm, 1, DType::f64, {"branch", "f32", "f64"}),
      attributes(&op::kResidualNorm, ResidualNormAttributes{-1, 1}, {"eps"}),
      width(&op::kGatedSkip, 1, 7, {"skip", "8", "7"}),
      count(&op::kGatedSkip, 1, 5, {"skip", "6", "5"}),
      width(&op::kGatedSkip, 2, 7, {"weight", "8", "7"}),
      width(&op::kGatedSkip, 3, 7, {"gate", "8", "7"}),
      dtype(&op::kGatedSkip, 1, DType::f64, {"skip", "f32", "f64"}),
      count(&op::kDropout, 1, 1, {"seed", "2", "1"}),
      attributes(&op::kDropout, DropoutAttributes{1, 0}, {"p", "1"}),
      attributes(&op::kDropout, DropoutAttributes{-0.5f, 0}, {"p", "-0.5"}),
      count(&op::kGather, 1, 7, {"7", "6"}),
      dtype(&op::kGather, 1, DType::i64, {"row", "i32", "i64"}),
      attributes(&op::kSoftcap, SoftcapAttributes{0}, {"cap", "0"}),
      attributes(&op::kSoftcap, SoftcapAttributes{-30}, {"cap", "-30"}),
      width(&op::kHeadLoss, 1, 7, {"weight", "8", "7"}),
      dtype(&op::kHeadLoss, 1, DType::f64, {"weight", "f32", "f64"}),
      count(&op::kHeadLoss, 2, 5, {"target", "6", "5"}),
      count(&op::kHeadLoss, 3, 5, {"row weight", "6", "5"}),
      attributes(&op::kHeadLoss, HeadLossAttributes{-30, 1024}, {"-30"}),
      attributes(&op::kHeadLoss, HeadLossAttributes{0, 0}, {"chunk_rows", "0"}),
      dtype(&op::kCast, 0, DType::i32, {"x", "floats", "i32"}),
      attributes(&op::kCast, CastAttributes{DType::i8}, {"f32, bf16 or f16", "i8"}),
      attributes(&op::kCast, CastAttributes{DType::f64}, {"f32, bf16 or f16", "f64"}),
      attributes(&op::kFakeQuant, FakeQuantAttributes{7}, {"8, 6 or 5", "7"}),
      dtype(&op::kFakeQuant, 0, DType::bf16, {"weight", "f32", "bf16"}),
  };
}

TEST(FrontDoor, RejectsInvalidInputsAndReportsTheNumbers) {
  for (const Rejected& rejected : rejected_requests()) {
    const OpDefinition& def = *rejected.op;
    Request request = test_row(rejected.op).good;
    rejected.modify(request);
    std::string shapes;
    for (const Shape& shape : request.in) shapes += shape.text() + "  ";
    SCOPED_TRACE(fmt::format("{}: wrong {}: {}", def.name, rejected.what, shapes));
    const std::string sentence = rejection([&] { def.shapes(request.in, request.attributes); });
    if (sentence.empty()) {
      ADD_FAILURE() << "the request was accepted";
      continue;
    }
    EXPECT_TRUE(sentence.starts_with(fmt::format("[{}] ", def.name))) << sentence;
    for (const std::string& word : rejected.words)
      EXPECT_NE(sentence.find(word), std::string::npos) << word << " is not in: " << sentence;
  }
}

// bf16 rows with f32 vectors and statistics (graph/op.h).
TEST(FrontDoor, AcceptsBf16RowsWithF32Vectors) {
  for (const OpDefinition& def : every_op()) {
    if (&def == &op::kFakeQuant) continue;  // f32 masters only
    SCOPED_TRACE(def.name);
    Request request = test_row(&def).good;
    const std::uint32_t full = op_facts(&def).full;
    for (std::size_t i = 0; i < request.in.size(); ++i)
      if (is_float(request.in[i].dtype) && !has_bit(full, i)) request.in[i].dtype = DType::bf16;
    EXPECT_EQ(rejection([&] { def.shapes(request.in, request.attributes); }), "");
    for (std::size_t i = 1; i < request.in.size(); ++i) {
      if (!is_float(request.in[i].dtype)) continue;
      SCOPED_TRACE(fmt::format("input {}", i));
      Request wrong = request;
      wrong.in[i].dtype = has_bit(full, i) ? DType::bf16 : DType::f32;
      const std::string sentence = rejection([&] { def.shapes(wrong.in, wrong.attributes); });
      EXPECT_TRUE(sentence.starts_with(fmt::format("[{}] expected ", def.name))) << sentence;
    }
  }
}

// Only GPUs compute in f16: shape rules accept it, CPU kernels do not.
TEST(FrontDoor, CpuKernelsDoNotAcceptF16Rows) {
  for (const OpDefinition& def : every_op()) {
    if (&def == &op::kCast || &def == &op::kFakeQuant) continue;
    Request request = test_row(&def).good;
    const std::uint32_t full = op_facts(&def).full;
    for (std::size_t i = 0; i < request.in.size(); ++i)
      if (is_float(request.in[i].dtype) && !has_bit(full, i)) request.in[i].dtype = DType::f16;
    EXPECT_EQ(rejection([&] { def.shapes(request.in, request.attributes); }), "");
    if (&def == &op::kEmbedding) continue;  // its input 0 is the table, which may be stored as f16
    for (const Backend& backend : {reference_backend(), cpu_backend()})
      EXPECT_EQ(backend.find(def)->rows & dtypes({DType::f16}), 0u) << def.name;
  }
}

TEST(FrontDoor, AcceptsAValidRequest) {
  for (const OpDefinition& def : every_op()) {
    const Request request = test_row(&def).good;
    EXPECT_EQ(rejection([&] { def.shapes(request.in, request.attributes); }), "");
  }
}

TEST(FrontDoor, RejectsMissingAndTooManyInputs) {
  for (const OpDefinition& def : every_op()) {
    SCOPED_TRACE(def.name);
    const Request request = test_row(&def).good;
    const auto message = [&](const std::vector<Shape>& in) {
      return rejection([&] { def.shapes(in, request.attributes); });
    };
    std::vector<Shape> in = request.in;
    in.push_back({6, 8});
    EXPECT_TRUE(message(in).starts_with(fmt::format("[{}] expected", def.name))) << message(in);
    in = request.in;
    in[0] = {};
    EXPECT_TRUE(message(in).starts_with(fmt::format("[{}] ", def.name))) << message(in);
    EXPECT_TRUE(message(in).ends_with(" is missing")) << message(in);
    // Trailing optional inputs may be omitted; beyond that the message states the count.
    for (in = request.in; !in.empty();) {
      in.pop_back();
      const std::string sentence = message(in);
      if (sentence.empty()) continue;
      EXPECT_TRUE(sentence.starts_with(fmt::format("[{}] expected", def.name))) << sentence;
      EXPECT_TRUE(sentence.ends_with(fmt::format("got {}", in.size()))) << sentence;
    }
    EXPECT_NE(message(in), "") << "a request without inputs was accepted";
  }
}

}  // namespace
}  // namespace thimble
