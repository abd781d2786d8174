// Everything an op cannot take is refused before a kernel sees it, in a sentence that starts with its name.
#include <functional>

#include "base/error.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/cached_attention.h"
#include "ops/cast.h"
#include "ops/dropout.h"
#include "ops/exclusive_attention.h"
#include "ops/fake_quant.h"
#include "ops/head_loss.h"
#include "ops/layernorm.h"
#include "ops/linear.h"
#include "ops/op.h"
#include "ops/op_cases.h"
#include "ops/residual.h"
#include "ops/rmsnorm.h"
#include "ops/rope.h"
#include "ops/softcap.h"

namespace thimble {
namespace {

struct Request {
  std::vector<Shape> in;
  Attributes attributes;
};

// A request that the op takes: N = 6 rows, C = 8 columns, H = 4 heads, K = 2, D = 3, V = 50.
Request good(Op op) {
  const Shape rows{6, 8}, integers{6, 1, DType::i32}, vector{1, 8}, queries{6, 12}, keys{6, 6};
  switch (op) {
    case Op::embedding:
      return {{{50, 8}, integers, integers}, {}};
    case Op::smear:
      return {{rows, vector, integers}, {}};
    case Op::rmsnorm:
      return {{rows, vector}, RmsNormAttributes{}};
    case Op::layernorm:
      return {{rows, vector, vector}, LayerNormAttributes{}};
    case Op::linear:
      return {{rows, {5, 8}, {1, 5}}, LinearAttributes{}};
    case Op::rope:
      return {{queries, integers, {10, 2}, {1, 4}, {1, 3}}, RopeAttributes{4, true, 1e-6f}};
    case Op::attention:
      return {{queries, keys, keys, integers}, AttentionAttributes{4, 2, 1}};
    case Op::exclusive_attention:
      return {{queries, keys}, ExclusiveAttributes{4, 2}};
    case Op::cached_attention:
      return {{queries, keys, keys, integers, integers, {20, 6}, {20, 6}},
              CachedAttentionAttributes{4, 2, 10, 1}};
    case Op::activation:
      return {{rows}, ActivationAttributes{ActivationKind::swiglu}};
    case Op::add_scaled:
      return {{rows, rows, vector}, AddScaledAttributes{}};
    case Op::residual_mix:
      return {{rows, rows, {2, 8}}, {}};
    case Op::residual_norm:
      return {{rows, rows, vector, vector}, ResidualNormAttributes{}};
    case Op::gated_skip:
      return {{rows, rows, vector, vector}, {}};
    case Op::dropout:
      return {{rows, {2, 1, DType::i32}}, DropoutAttributes{}};
    case Op::gather:
      return {{rows, {4, 1, DType::i32}}, {}};
    case Op::softcap:
      return {{rows}, SoftcapAttributes{}};
    case Op::head_loss:
      return {{rows, {50, 8}, integers, {6, 1}}, HeadLossAttributes{}};
    case Op::cast:
      return {{rows}, CastAttributes{}};
    case Op::fake_quant:
      return {{rows}, FakeQuantAttributes{}};
  }
  return {};
}

// The sentence with which a request is refused, "" if it is taken.
std::string refusal(const std::function<void()>& request) {
  try {
    request();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

struct Refused {
  Op op;
  std::string_view what;
  std::function<void(Request&)> spoil;
  std::vector<std::string> says;  // besides "[op] "
};

Refused width(Op op, std::size_t input, std::int64_t cols, std::vector<std::string> says) {
  return {op, "width", [=](Request& r) { r.in[input].cols = cols; }, std::move(says)};
}
Refused count(Op op, std::size_t input, std::int64_t rows, std::vector<std::string> says) {
  return {op, "rows", [=](Request& r) { r.in[input].rows = rows; }, std::move(says)};
}
Refused dtype(Op op, std::size_t input, DType wrong, std::vector<std::string> says) {
  return {op, "dtype", [=](Request& r) { r.in[input].dtype = wrong; }, std::move(says)};
}
template <class T>
Refused attributes(Op op, T wrong, std::vector<std::string> says) {
  return {op, "attributes", [=](Request& r) { r.attributes = wrong; }, std::move(says)};
}

std::vector<Refused> everything_refused() {
  return {
      dtype(Op::embedding, 1, DType::f32, {"index", "i32", "f32"}),
      dtype(Op::embedding, 0, DType::i32, {"table", "floats", "i32"}),
      width(Op::embedding, 1, 2, {"index", "width 1", "2"}),
      count(Op::embedding, 2, 5, {"order", "6", "5"}),
      width(Op::smear, 1, 7, {"gate", "8", "7"}),
      count(Op::smear, 2, 9, {"9", "6"}),
      width(Op::rmsnorm, 1, 7, {"weight", "8", "7"}),
      count(Op::rmsnorm, 1, 2, {"weight", "1", "2"}),
      attributes(Op::rmsnorm, RmsNormAttributes{-1, 1}, {"eps"}),
      width(Op::layernorm, 1, 7, {"weight", "8", "7"}),
      width(Op::layernorm, 2, 9, {"bias", "8", "9"}),
      attributes(Op::layernorm, LayerNormAttributes{-1}, {"eps"}),
      width(Op::linear, 1, 7, {"7", "8"}),
      width(Op::linear, 2, 4, {"bias", "5", "4"}),
      dtype(Op::linear, 1, DType::f64, {"weight", "f32", "f64"}),
      width(Op::rope, 0, 13, {"13", "4"}),
      count(Op::rope, 1, 5, {"position", "6", "5"}),
      dtype(Op::rope, 1, DType::f32, {"position", "i32", "f32"}),
      width(Op::rope, 2, 4, {"4", "3"}),  // wider than a head
      width(Op::rope, 2, 1, {"1", "even"}),
      width(Op::rope, 3, 3, {"gain", "4", "3"}),
      width(Op::rope, 4, 4, {"weight", "3", "4"}),
      attributes(Op::rope, RopeAttributes{0, true, 1e-6f}, {"heads", "0"}),
      attributes(Op::rope, RopeAttributes{4, false, 1e-6f}, {"norm"}),
      attributes(Op::rope, RopeAttributes{4, true, -1}, {"eps"}),
      width(Op::attention, 1, 7, {"6", "7"}),
      width(Op::attention, 2, 7, {"v", "6", "7"}),
      count(Op::attention, 1, 5, {"k", "6", "5"}),
      count(Op::attention, 2, 5, {"v", "6", "5"}),
      count(Op::attention, 3, 5, {"first", "6", "5"}),
      dtype(Op::attention, 1, DType::f64, {"k", "f32", "f64"}),
      dtype(Op::attention, 2, DType::f64, {"v", "f32", "f64"}),
      attributes(Op::attention, AttentionAttributes{4, 3, 1}, {"4", "3"}),
      attributes(Op::attention, AttentionAttributes{5, 5, 1}, {"12", "5"}),
      attributes(Op::attention, AttentionAttributes{4, 0, 1}, {"0"}),
      width(Op::exclusive_attention, 1, 7, {"6", "7"}),
      count(Op::exclusive_attention, 1, 5, {"v", "6", "5"}),
      dtype(Op::exclusive_attention, 1, DType::f64, {"v", "f32", "f64"}),
      attributes(Op::exclusive_attention, ExclusiveAttributes{4, 3}, {"4", "3"}),
      count(Op::cached_attention, 3, 5, {"slot", "6", "5"}),
      count(Op::cached_attention, 4, 7, {"position", "6", "7"}),
      count(Op::cached_attention, 6, 10, {"v_cache", "20", "10"}),
      width(Op::cached_attention, 5, 7, {"k_cache", "6", "7"}),
      dtype(Op::cached_attention, 5, DType::f64, {"k_cache", "f32", "f64"}),
      attributes(Op::cached_attention, CachedAttentionAttributes{4, 2, 7, 1}, {"20", "7"}),
      attributes(Op::cached_attention, CachedAttentionAttributes{4, 2, 0, 1}, {"0"}),
      width(Op::activation, 0, 9, {"swiglu", "9"}),
      attributes(Op::activation, ActivationAttributes{static_cast<ActivationKind>(99)}, {"99"}),
      width(Op::add_scaled, 1, 7, {"branch", "8", "7"}),
      count(Op::add_scaled, 1, 5, {"branch", "6", "5"}),
      width(Op::add_scaled, 2, 7, {"scale", "8", "7"}),
      dtype(Op::add_scaled, 1, DType::f64, {"branch", "f32", "f64"}),
      width(Op::residual_mix, 1, 7, {"x0", "8", "7"}),
      count(Op::residual_mix, 2, 1, {"2", "1"}),
      dtype(Op::residual_mix, 1, DType::f64, {"x0", "f32", "f64"}),
      width(Op::residual_norm, 1, 7, {"branch", "8", "7"}),
      width(Op::residual_norm, 2, 7, {"scale", "8", "7"}),
      width(Op::residual_norm, 3, 7, {"weight", "8", "7"}),
      dtype(Op::residual_norm, 1, DType::f64, {"branch", "f32", "f64"}),
      attributes(Op::residual_norm, ResidualNormAttributes{-1, 1}, {"eps"}),
      width(Op::gated_skip, 1, 7, {"skip", "8", "7"}),
      count(Op::gated_skip, 1, 5, {"skip", "6", "5"}),
      width(Op::gated_skip, 2, 7, {"weight", "8", "7"}),
      width(Op::gated_skip, 3, 7, {"gate", "8", "7"}),
      dtype(Op::gated_skip, 1, DType::f64, {"skip", "f32", "f64"}),
      count(Op::dropout, 1, 1, {"seed", "2", "1"}),
      attributes(Op::dropout, DropoutAttributes{1, 0}, {"p", "1"}),
      attributes(Op::dropout, DropoutAttributes{-0.5f, 0}, {"p", "-0.5"}),
      count(Op::gather, 1, 7, {"7", "6"}),
      dtype(Op::gather, 1, DType::i64, {"row", "i32", "i64"}),
      attributes(Op::softcap, SoftcapAttributes{0}, {"cap", "0"}),
      attributes(Op::softcap, SoftcapAttributes{-30}, {"cap", "-30"}),
      width(Op::head_loss, 1, 7, {"weight", "8", "7"}),
      dtype(Op::head_loss, 1, DType::f64, {"weight", "f32", "f64"}),
      count(Op::head_loss, 2, 5, {"target", "6", "5"}),
      count(Op::head_loss, 3, 5, {"row weight", "6", "5"}),
      attributes(Op::head_loss, HeadLossAttributes{-30, 1024}, {"-30"}),
      attributes(Op::head_loss, HeadLossAttributes{0, 0}, {"chunk_rows", "0"}),
      dtype(Op::cast, 0, DType::i32, {"x", "floats", "i32"}),
      attributes(Op::cast, CastAttributes{DType::i8}, {"f32, bf16 or f16", "i8"}),
      attributes(Op::cast, CastAttributes{DType::f64}, {"f32, bf16 or f16", "f64"}),
      attributes(Op::fake_quant, FakeQuantAttributes{7}, {"8, 6 or 5", "7"}),
      dtype(Op::fake_quant, 0, DType::bf16, {"weight", "f32", "bf16"}),
  };
}

TEST(FrontDoor, RefusesWhatAnOpCannotTakeAndSaysTheNumbers) {
  for (const Refused& refused : everything_refused()) {
    const OpDef& def = op_def(refused.op);
    Request request = good(refused.op);
    refused.spoil(request);
    std::string shapes;
    for (const Shape& shape : request.in) shapes += shape.text() + "  ";
    SCOPED_TRACE(fmt::format("{}: wrong {}: {}", def.name, refused.what, shapes));
    const std::string sentence = refusal([&] { def.shapes(request.in, request.attributes); });
    if (sentence.empty()) {
      ADD_FAILURE() << "it was taken";
      continue;
    }
    EXPECT_TRUE(sentence.starts_with(fmt::format("[{}] ", def.name))) << sentence;
    for (const std::string& word : refused.says)
      EXPECT_NE(sentence.find(word), std::string::npos) << word << " is not in: " << sentence;
  }
}

// bf16 rows beside f32 vectors and statistics: op.h says which is which.
TEST(FrontDoor, TakesBf16RowsWithVectorsInF32) {
  for (const OpDef& def : all_ops()) {
    if (def.op == Op::fake_quant) continue;  // of f32 masters alone
    SCOPED_TRACE(def.name);
    Request request = good(def.op);
    const std::uint32_t full = op_facts(def.op).full;
    for (std::size_t i = 0; i < request.in.size(); ++i)
      if (is_float(request.in[i].dtype) && !has_bit(full, i)) request.in[i].dtype = DType::bf16;
    EXPECT_EQ(refusal([&] { def.shapes(request.in, request.attributes); }), "");
    for (std::size_t i = 1; i < request.in.size(); ++i) {
      if (!is_float(request.in[i].dtype)) continue;
      SCOPED_TRACE(fmt::format("input {}", i));
      Request wrong = request;
      wrong.in[i].dtype = has_bit(full, i) ? DType::bf16 : DType::f32;
      const std::string sentence = refusal([&] { def.shapes(wrong.in, wrong.attributes); });
      EXPECT_TRUE(sentence.starts_with(fmt::format("[{}] expected ", def.name))) << sentence;
    }
  }
}

// f16 is computed in on cards: shapes take it, the CPU's kernels do not.
TEST(FrontDoor, TheCpuRefusesF16Rows) {
  for (const OpDef& def : all_ops()) {
    if (def.op == Op::cast || def.op == Op::fake_quant) continue;
    Request request = good(def.op);
    const std::uint32_t full = op_facts(def.op).full;
    for (std::size_t i = 0; i < request.in.size(); ++i)
      if (is_float(request.in[i].dtype) && !has_bit(full, i)) request.in[i].dtype = DType::f16;
    EXPECT_EQ(refusal([&] { def.shapes(request.in, request.attributes); }), "");
    if (def.op == Op::embedding) continue;  // its input 0 is the table, which may be stored so
    for (const Backend backend : {Backend::ref, Backend::cpu})
      EXPECT_EQ(def.kernels[static_cast<std::size_t>(backend)].rows & dtypes({DType::f16}), 0u) << def.name;
  }
}

TEST(FrontDoor, TakesAGoodRequest) {
  for (const OpDef& def : all_ops()) {
    const Request request = good(def.op);
    EXPECT_EQ(refusal([&] { def.shapes(request.in, request.attributes); }), "");
  }
}

TEST(FrontDoor, RefusesMissingAndTooManyInputs) {
  for (const OpDef& def : all_ops()) {
    SCOPED_TRACE(def.name);
    const Request request = good(def.op);
    const auto said = [&](const std::vector<Shape>& in) {
      return refusal([&] { def.shapes(in, request.attributes); });
    };
    std::vector<Shape> in = request.in;
    in.push_back({6, 8});
    EXPECT_TRUE(said(in).starts_with(fmt::format("[{}] expected", def.name))) << said(in);
    in = request.in;
    in[0] = {};
    EXPECT_TRUE(said(in).starts_with(fmt::format("[{}] ", def.name))) << said(in);
    EXPECT_TRUE(said(in).ends_with(" is missing")) << said(in);
    // Fewer inputs: the optional ones at the end may go, then it must be said how many there are.
    for (in = request.in; !in.empty();) {
      in.pop_back();
      const std::string sentence = said(in);
      if (sentence.empty()) continue;
      EXPECT_TRUE(sentence.starts_with(fmt::format("[{}] expected", def.name))) << sentence;
      EXPECT_TRUE(sentence.ends_with(fmt::format("got {}", in.size()))) << sentence;
    }
    EXPECT_NE(said(in), "") << "no input at all was taken";
  }
}

}  // namespace
}  // namespace thimble
