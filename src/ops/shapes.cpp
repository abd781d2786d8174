// The ops' front doors: what each takes, what it gives, and the sentence for everything else.
#include <vector>

#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/cached_attention.h"
#include "ops/cast.h"
#include "ops/dropout.h"
#include "ops/embedding.h"
#include "ops/exclusive_attention.h"
#include "ops/fake_quant.h"
#include "ops/gated_skip.h"
#include "ops/gather.h"
#include "ops/head_loss.h"
#include "ops/layernorm.h"
#include "ops/linear.h"
#include "ops/residual.h"
#include "ops/rmsnorm.h"
#include "ops/rope.h"
#include "ops/shape_check.h"
#include "ops/smear.h"
#include "ops/softcap.h"

namespace thimble {

namespace {

Shape statistic(const Shape& x, std::int64_t cols = 1) {
  return {x.rows, cols, statistic_dtype(x.dtype)};
}

struct Heads {
  std::int64_t size;
};

// Query columns H D against key columns K D.
Heads check_heads(std::string_view op, std::int64_t query_cols, std::int64_t key_cols, std::int64_t heads,
                  std::int64_t kv_heads) {
  check(heads > 0 && kv_heads > 0, "[{}] heads ({}) and kv_heads ({}) must be positive", op, heads, kv_heads);
  check(heads % kv_heads == 0, "[{}] heads ({}) must be divisible by kv_heads ({})", op, heads, kv_heads);
  check(query_cols % heads == 0, "[{}] query width ({}) must be divisible by heads ({})", op, query_cols,
        heads);
  const std::int64_t size = query_cols / heads;
  check(key_cols == size * kv_heads, "[{}] expected key width {} (kv_heads {} x head size {}), got {}", op,
        size * kv_heads, kv_heads, size, key_cols);
  return {size};
}

// A scale of one value, or one per channel.
void check_scale(std::string_view op, const ShapeCheck& in, std::size_t i, std::int64_t rows,
                 std::int64_t width) {
  const Shape& shape = in.full(i, "scale");
  check(shape.rows == rows && (shape.cols == 1 || shape.cols == width),
        "[{}] expected scale [{}, 1] or [{}, {}], got {}", op, rows, rows, width, shape.text());
}

// Storage for the engine's rows; the reference's own dtypes are left as they are.
Shape converted(std::string_view op, Shape shape, DType to) {
  if (shape.dtype == DType::f64 || shape.dtype == DType::c128) return shape;
  check(to == DType::f32 || to == DType::bf16 || to == DType::f16,
        "[{}] expected f32, bf16 or f16 to make, got {}", op, dtype_name(to));
  shape.dtype = to;
  return shape;
}

}  // namespace

std::vector<Shape> embedding_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const auto at = attributes.as<EmbeddingAttributes>();
  const ShapeCheck c("embedding", in, 2, 4);
  const Shape& table = at.stored ? c.matrix(0, "table", at.rows, 3) : c.rows(0, "table");
  check(at.stored || !c.has(3), "[embedding] expected scales beside a stored table alone");
  const Shape& index = c.integers(1, "index");
  if (c.has(2)) c.integers(2, "order", index.rows);
  return {{index.rows, table.cols, at.stored ? at.rows : table.dtype}};
}

std::vector<Shape> smear_shapes(std::span<const Shape> in, const Attributes&) {
  const ShapeCheck c("smear", in, 3, 3);
  const Shape& x = c.rows(0, "x");
  c.vector(1, "gate", x.cols);
  const Shape& previous = c.integers(2, "previous");
  check(previous.rows <= x.rows, "[smear] {} rows asked for, x has {}", previous.rows, x.rows);
  return {{previous.rows, x.cols, x.dtype}};
}

std::vector<Shape> rmsnorm_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const ShapeCheck c("rmsnorm", in, 1, 2);
  const Shape& x = c.rows(0, "x");
  c.optional_vector(1, "weight", x.cols);
  check(attributes.as<RmsNormAttributes>().eps >= 0, "[rmsnorm] eps must not be negative");
  return {x, statistic(x)};
}

std::vector<Shape> layernorm_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const ShapeCheck c("layernorm", in, 1, 3);
  const Shape& x = c.rows(0, "x");
  c.optional_vector(1, "weight", x.cols);
  c.optional_vector(2, "bias", x.cols);
  check(attributes.as<LayerNormAttributes>().eps >= 0, "[layernorm] eps must not be negative");
  return {x, statistic(x), statistic(x)};
}

std::vector<Shape> linear_shapes(std::span<const Shape> in, const Attributes&) {
  const ShapeCheck c("linear", in, 2, 4);
  const Shape& x = c.rows(0, "x");
  const Shape& w = c.matrix(1, "weight", x.dtype, 3);
  check(w.cols == x.cols, "[linear] weight has {} columns, input rows have {}", w.cols, x.cols);
  c.optional_vector(2, "bias", w.rows);
  return {{x.rows, w.rows, x.dtype}};
}

std::vector<Shape> rope_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const auto at = attributes.as<RopeAttributes>();
  const ShapeCheck c("rope", in, 3, 5);
  const Shape& x = c.rows(0, "x");
  check(at.heads > 0 && x.cols % at.heads == 0, "[rope] width ({}) must be divisible by heads ({})", x.cols,
        at.heads);
  const std::int64_t size = x.cols / at.heads;
  c.integers(1, "position", x.rows);
  const Shape& turns = c.full(2, "turns");
  check(turns.cols % 2 == 0 && turns.cols <= size,
        "[rope] {} columns to turn: expected an even number, at most the head size {}", turns.cols, size);
  if (c.has(3)) {
    const Shape& gain = c.full(3, "gain");
    check(gain.rows == 1 && (gain.cols == 1 || gain.cols == at.heads),
          "[rope] expected gain [1, 1] or [1, {}], got {}", at.heads, gain.text());
  }
  c.optional_vector(4, "weight", size);
  check(at.norm || !c.has(4), "[rope] a norm weight is given, but the norm is off");
  check(at.eps >= 0, "[rope] eps must not be negative, got {}", at.eps);
  return {x, statistic(x, at.norm ? at.heads : 1)};
}

std::vector<Shape> attention_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const auto at = attributes.as<AttentionAttributes>();
  const ShapeCheck c("attention", in, 4, 4);
  const Shape& q = c.rows(0, "q");
  const Shape& k = c.rows(1, "k");
  c.rows(2, "v", q.rows, k.cols);
  check(k.rows == q.rows, "[attention] expected k of {} rows, got {}", q.rows, k.rows);
  check_heads("attention", q.cols, k.cols, at.heads, at.kv_heads);
  c.integers(3, "first", q.rows);
  return {q, statistic(q, at.heads)};
}

std::vector<Shape> exclusive_attention_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const auto at = attributes.as<ExclusiveAttributes>();
  const ShapeCheck c("exclusive_attention", in, 2, 2);
  const Shape& y = c.rows(0, "y");
  const Shape& v = c.rows(1, "v");
  check(v.rows == y.rows, "[exclusive_attention] expected v of {} rows, got {}", y.rows, v.rows);
  check_heads("exclusive_attention", y.cols, v.cols, at.heads, at.kv_heads);
  return {y};
}

std::vector<Shape> cached_attention_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const auto at = attributes.as<CachedAttentionAttributes>();
  const ShapeCheck c("cached_attention", in, 7, 7);
  const Shape& q = c.rows(0, "q");
  const Shape& k = c.rows(1, "k");
  c.rows(2, "v", q.rows, k.cols);
  check(k.rows == q.rows, "[cached_attention] expected k of {} rows, got {}", q.rows, k.rows);
  check_heads("cached_attention", q.cols, k.cols, at.heads, at.kv_heads);
  c.integers(3, "slot", q.rows);
  c.integers(4, "position", q.rows);
  const Shape& cache = c.rows(5, "k_cache", k.cols);
  c.rows(6, "v_cache", cache.rows, k.cols);
  check(at.context > 0 && cache.rows % at.context == 0,
        "[cached_attention] {} cache rows are not whole slots of {}", cache.rows, at.context);
  return {q};
}

std::vector<Shape> activation_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const ShapeCheck c("activation", in, 1, 1);
  Shape x = c.rows(0, "x");
  const auto kind = attributes.as<ActivationAttributes>().kind;
  check(kind >= ActivationKind::relu && kind <= ActivationKind::swiglu, "[activation] there is no kind {}",
        static_cast<int>(kind));
  if (kind != ActivationKind::swiglu) return {x};
  check(x.cols % 2 == 0, "[activation] swiglu splits its input into two halves, got {} columns", x.cols);
  x.cols /= 2;
  return {x};
}

std::vector<Shape> add_scaled_shapes(std::span<const Shape> in, const Attributes&) {
  const ShapeCheck c("add_scaled", in, 2, 3);
  const Shape& x = c.rows(0, "x");
  c.rows(1, "branch", x.rows, x.cols);
  if (c.has(2)) check_scale("add_scaled", c, 2, 1, x.cols);
  return {x};
}

std::vector<Shape> residual_mix_shapes(std::span<const Shape> in, const Attributes&) {
  const ShapeCheck c("residual_mix", in, 3, 3);
  const Shape& x = c.rows(0, "x");
  c.rows(1, "x0", x.rows, x.cols);
  check_scale("residual_mix", c, 2, 2, x.cols);
  return {x};
}

std::vector<Shape> residual_norm_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const ShapeCheck c("residual_norm", in, 2, 4);
  const Shape& x = c.rows(0, "x");
  c.rows(1, "branch", x.rows, x.cols);
  if (c.has(2)) check_scale("residual_norm", c, 2, 1, x.cols);
  c.optional_vector(3, "weight", x.cols);
  check(attributes.as<ResidualNormAttributes>().eps >= 0, "[residual_norm] eps must not be negative");
  return {x, x, statistic(x)};
}

std::vector<Shape> gated_skip_shapes(std::span<const Shape> in, const Attributes&) {
  const ShapeCheck c("gated_skip", in, 4, 4);
  const Shape& x = c.rows(0, "x");
  c.rows(1, "skip", x.rows, x.cols);
  c.vector(2, "weight", x.cols);
  c.vector(3, "gate", x.cols);
  return {x};
}

std::vector<Shape> dropout_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const ShapeCheck c("dropout", in, 2, 2);
  const float p = attributes.as<DropoutAttributes>().p;
  check(p >= 0 && p < 1, "[dropout] p must be at least 0 and below 1, got {}", p);
  c.integers(1, "seed", 2);
  return {c.rows(0, "x")};
}

std::vector<Shape> gather_shapes(std::span<const Shape> in, const Attributes&) {
  const ShapeCheck c("gather", in, 2, 2);
  const Shape& x = c.rows(0, "x");
  const Shape& row = c.integers(1, "row");
  check(row.rows <= x.rows, "[gather] {} rows asked for, x has {}", row.rows, x.rows);
  return {{row.rows, x.cols, x.dtype}};
}

std::vector<Shape> softcap_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const ShapeCheck c("softcap", in, 1, 1);
  const float cap = attributes.as<SoftcapAttributes>().cap;
  check(cap > 0, "[softcap] cap must be positive, got {}", cap);
  return {c.rows(0, "x")};
}

std::vector<Shape> head_loss_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const auto at = attributes.as<HeadLossAttributes>();
  const ShapeCheck c("head_loss", in, 4, 5);
  const Shape& x = c.rows(0, "x");
  const Shape& w = c.matrix(1, "weight", x.dtype, 4);
  check(w.cols == x.cols, "[head_loss] expected weight of width {}, got {}", x.cols, w.cols);
  c.integers(2, "target", x.rows);
  c.full(3, "row weight", x.rows, 1);
  check(at.cap >= 0, "[head_loss] logit_softcap must not be negative, got {}", at.cap);
  check(at.chunk_rows > 0, "[head_loss] chunk_rows must be positive, got {}", at.chunk_rows);
  return {statistic(x)};
}

std::vector<Shape> cast_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const ShapeCheck c("cast", in, 1, 1);
  return {converted("cast", c.floats(0, "x"), attributes.as<CastAttributes>().to)};
}

std::vector<Shape> fake_quant_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const ShapeCheck c("fake_quant", in, 1, 1);
  const auto at = attributes.as<FakeQuantAttributes>();
  check(at.bits == 8 || at.bits == 6 || at.bits == 5, "[fake_quant] expected 8, 6 or 5 bits, got {}",
        at.bits);
  return {converted("fake_quant", c.full(0, "weight"), at.to)};
}

}  // namespace thimble
