#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "ops/definition.h"

namespace thimble {

namespace {

// q has H D columns, k has K D columns.
void check_heads(std::string_view op, std::int64_t query_cols, std::int64_t key_cols, std::int64_t heads,
                 std::int64_t kv_heads) {
  check(heads > 0 && kv_heads > 0, "[{}] heads ({}) and kv_heads ({}) must be positive", op, heads, kv_heads);
  check(heads % kv_heads == 0, "[{}] heads ({}) must be divisible by kv_heads ({})", op, heads, kv_heads);
  check(query_cols % heads == 0, "[{}] query width ({}) must be divisible by heads ({})", op, query_cols,
        heads);
  const std::int64_t size = query_cols / heads;
  check(key_cols == size * kv_heads, "[{}] expected key width {} (kv_heads {} x head size {}), got {}", op,
        size * kv_heads, kv_heads, size, key_cols);
}

void check_masking(std::string_view op, float softcap, std::int64_t window) {
  check(softcap >= 0, "[{}] softcap must not be negative, got {}", op, softcap);
  check(window >= 0, "[{}] window must not be negative, got {}", op, window);
}

std::vector<Shape> attention_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const auto at = attributes.as<AttentionAttributes>();
  const ShapeCheck c("attention", in, 4, 4);
  const Shape& q = c.rows(0, "q");
  const Shape& k = c.rows(1, "k");
  c.rows(2, "v", q.rows, k.cols);
  check(k.rows == q.rows, "[attention] expected k of {} rows, got {}", q.rows, k.rows);
  check_heads("attention", q.cols, k.cols, at.heads, at.kv_heads);
  check_masking("attention", at.softcap, at.window);
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
  check_masking("cached_attention", at.softcap, at.window);
  c.integers(3, "slot", q.rows);
  c.integers(4, "position", q.rows);
  const Shape& cache = c.rows(5, "k_cache", k.cols);
  c.rows(6, "v_cache", cache.rows, k.cols);
  check(at.context > 0 && cache.rows % at.context == 0,
        "[cached_attention] expected cache rows to be a multiple of context, got {} rows for context {}",
        cache.rows, at.context);
  return {q};
}

template <class T>
T capped(T score, float softcap) {
  return softcap > 0 ? T(softcap) * std::tanh(score / T(softcap)) : score;
}

struct AttentionFormula {
  using View = Attention;

  template <class T>
  static void forward(const Attention& op) {
    const std::int64_t D = op.head_size();
    for (std::int64_t n = 0; n < op.q.rows; ++n)
      for (std::int64_t h = 0; h < op.at.heads; ++h) {
        const std::int64_t kv = h / op.group() * D;
        std::vector<T> score = scores<T>(op, n, h);
        auto highest = real_part(score[0]);
        for (T s : score) highest = std::max(highest, real_part(s));
        T sum = 0;
        for (T& s : score) s = std::exp(s - T(highest)), sum += s;
        op.lse.row<T>(n)[h] = std::log(sum) + T(highest);
        for (std::int64_t d = 0; d < D; ++d) {
          T y = 0;
          for (std::size_t i = 0; i < score.size(); ++i)
            y += score[i] / sum * op.v.row<T>(first(op, n) + static_cast<std::int64_t>(i))[kv + d];
          op.y.row<T>(n)[h * D + d] = y;
        }
      }
  }

  template <class T>
  static void backward(const Attention& op) {
    clear<T>(op.dq, op.add_dq);
    clear<T>(op.dk, op.add_dk);
    clear<T>(op.dv, op.add_dv);
    const std::int64_t D = op.head_size();
    for (std::int64_t n = 0; n < op.q.rows; ++n)
      for (std::int64_t h = 0; h < op.at.heads; ++h) {
        const std::int64_t kv = h / op.group() * D;
        const T* q = op.q.row<T>(n) + h * D;
        const T* dy = op.dy.row<T>(n) + h * D;
        T delta = 0;
        for (std::int64_t d = 0; d < D; ++d) delta += dy[d] * op.y.row<T>(n)[h * D + d];
        const std::vector<T> score = scores<T>(op, n, h);
        for (std::size_t i = 0; i < score.size(); ++i) {
          const std::int64_t m = first(op, n) + static_cast<std::int64_t>(i);
          const T p = std::exp(score[i] - op.lse.row<T>(n)[h]);
          T dp = 0;
          for (std::int64_t d = 0; d < D; ++d) dp += dy[d] * op.v.row<T>(m)[kv + d];
          const T t = op.at.softcap > 0 ? score[i] / T(op.at.softcap) : T(0);
          const T ds = p * (dp - delta) * (T(1) - t * t) * T(op.at.scale);
          for (std::int64_t d = 0; d < D; ++d) {
            if (op.dv) op.dv.row<T>(m)[kv + d] += p * dy[d];
            if (op.dq) op.dq.row<T>(n)[h * D + d] += ds * op.k.row<T>(m)[kv + d];
            if (op.dk) op.dk.row<T>(m)[kv + d] += ds * q[d];
          }
        }
      }
  }

 private:
  static std::int64_t first(const Attention& op, std::int64_t n) { return op.first_key(n); }

  template <class T>
  static std::vector<T> scores(const Attention& op, std::int64_t n, std::int64_t h) {
    const std::int64_t D = op.head_size(), kv = h / op.group() * D;
    std::vector<T> score;
    for (std::int64_t m = first(op, n); m <= n; ++m) {
      T dot = 0;
      for (std::int64_t d = 0; d < D; ++d) dot += op.q.row<T>(n)[h * D + d] * op.k.row<T>(m)[kv + d];
      score.push_back(capped(T(op.at.scale) * dot, op.at.softcap));
    }
    return score;
  }

  template <class T>
  static void clear(const Tensor& gradient, bool add) {
    if (gradient && !add) fill_zero(gradient);
  }
};

struct ExclusiveAttentionFormula {
  using View = ExclusiveAttention;

  template <class T>
  static void forward(const ExclusiveAttention& op) {
    const std::int64_t D = op.head_size();
    for (std::int64_t n = 0; n < op.y.rows; ++n)
      for (std::int64_t h = 0; h < op.at.heads; ++h) {
        const T* y = op.y.row<T>(n) + h * D;
        const T* v = op.v.row<T>(n) + h / op.group() * D;
        const T length = norm(v, D);
        const T share = dot(y, v, D) / length;
        for (std::int64_t d = 0; d < D; ++d) op.z.row<T>(n)[h * D + d] = y[d] - share * v[d] / length;
      }
  }

  template <class T>
  static void backward(const ExclusiveAttention& op) {
    if (op.dv && !op.add_dv) fill_zero(op.dv);
    const std::int64_t D = op.head_size();
    for (std::int64_t n = 0; n < op.y.rows; ++n)
      for (std::int64_t h = 0; h < op.at.heads; ++h) {
        const std::int64_t kv = h / op.group() * D;
        const T* y = op.y.row<T>(n) + h * D;
        const T* dz = op.dz.row<T>(n) + h * D;
        const T* v = op.v.row<T>(n) + kv;
        const T length = norm(v, D);
        const T yu = dot(y, v, D) / length, zu = dot(dz, v, D) / length;
        for (std::int64_t d = 0; d < D; ++d) {
          const T u = v[d] / length;
          if (op.dy) store(op.dy.row<T>(n)[h * D + d], dz[d] - zu * u, op.add_dy);
          if (op.dv) op.dv.row<T>(n)[kv + d] -= (zu * y[d] + yu * dz[d] - T(2) * yu * zu * u) / length;
        }
      }
  }

 private:
  template <class T>
  static T dot(const T* a, const T* b, std::int64_t count) {
    T sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
    return sum;
  }

  template <class T>
  static T norm(const T* v, std::int64_t count) {
    const T length = std::sqrt(dot(v, v, count));
    return real_part(length) < kMinValueNorm ? T(kMinValueNorm) : length;
  }
};

struct CachedAttentionFormula {
  using View = CachedAttention;

  template <class T>
  static void forward(const CachedAttention& op) {
    for (std::int64_t n = 0; n < op.q.rows; ++n) {
      const std::int64_t row = cache_row(op, n, position(op, n));
      std::copy_n(op.k.row<T>(n), op.k.cols, op.k_cache.row<T>(row));
      std::copy_n(op.v.row<T>(n), op.v.cols, op.v_cache.row<T>(row));
    }
    for (std::int64_t n = 0; n < op.q.rows; ++n)
      for (std::int64_t h = 0; h < op.at.heads; ++h) attend<T>(op, n, h);
  }

 private:
  static std::int64_t position(const CachedAttention& op, std::int64_t n) {
    return *op.position.row<std::int32_t>(n);
  }
  static std::int64_t cache_row(const CachedAttention& op, std::int64_t n, std::int64_t m) {
    return *op.slot.row<std::int32_t>(n) * std::int64_t{op.at.context} + m % op.at.context;
  }

  template <class T>
  static void attend(const CachedAttention& op, std::int64_t n, std::int64_t h) {
    const std::int64_t D = op.head_size(), kv = h / op.group() * D;
    const std::int64_t begin =
        op.at.window > 0 ? std::max<std::int64_t>(0, position(op, n) - op.at.window + 1) : 0;
    std::vector<T> score;
    for (std::int64_t m = begin; m <= position(op, n); ++m) {
      T dot = 0;
      for (std::int64_t d = 0; d < D; ++d)
        dot += op.q.row<T>(n)[h * D + d] * op.k_cache.row<T>(cache_row(op, n, m))[kv + d];
      score.push_back(capped(T(op.at.scale) * dot, op.at.softcap));
    }
    auto highest = real_part(score[0]);
    for (T s : score) highest = std::max(highest, real_part(s));
    T sum = 0;
    for (T& s : score) s = std::exp(s - T(highest)), sum += s;
    for (std::int64_t d = 0; d < D; ++d) {
      T y = 0;
      for (std::size_t i = 0; i < score.size(); ++i)
        y += score[i] / sum *
             op.v_cache.row<T>(cache_row(op, n, begin + static_cast<std::int64_t>(i)))[kv + d];
      op.y.row<T>(n)[h * D + d] = y;
    }
  }
};

// Products: q k^T and p v forward; dp, dv, dq and dk backward. Recomputed scores are not counted.
double attention_flops(const OpCall& call) {
  const Attention op(call);
  if (!op.first || op.first.device != Device::cpu) return 0;
  double pairs = 0;  // (n, m) with n attending to m
  for (std::int64_t n = 0; n < op.first.rows; ++n) pairs += static_cast<double>(n - op.first_key(n) + 1);
  return 2.0 * pairs * static_cast<double>(op.q.cols) * (call.backward() ? 4 : 2);
}

}  // namespace

constinit const OpDefinition op::kAttention = {
    .name = "attention",
    .inputs = {{{"q", is::differentiable | is::saved},
                {"k", is::differentiable | is::saved},
                {"v", is::differentiable | is::saved},
                {"first", is::saved}}},
    .outputs = {{{.name = "y", .saved = true}, {.name = "lse", .saved = true}}},
    .shapes = attention_shapes,
    .reference = &reference_kernels<AttentionFormula>,
    .cpu = &cpu::kAttention,
    .flops = attention_flops};

constinit const OpDefinition op::kExclusiveAttention = {
    .name = "exclusive_attention",
    .inputs = {{{"y", is::differentiable | is::saved}, {"v", is::differentiable | is::saved}}},
    .outputs = {{{.name = "z"}}},
    .shapes = exclusive_attention_shapes,
    .reference = &reference_kernels<ExclusiveAttentionFormula>,
    .cpu = &cpu::kExclusiveAttention};

constinit const OpDefinition op::kCachedAttention = {
    .name = "cached_attention",
    .inputs = {{{"q"}, {"k"}, {"v"}, {"slot"}, {"position"}, {"k_cache"}, {"v_cache"}}},
    .outputs = {{{.name = "y"}}},
    .shapes = cached_attention_shapes,
    .reference = &inference_kernels<CachedAttentionFormula>,
    .cpu = &cpu::kCachedAttention};

Value op::attention(Tape& tape, Value q, Value k, Value v, Value first,
                    const AttentionAttributes& attributes) {
  return tape.record(op::kAttention, {q, k, v, first}, attributes)[0];
}

Value op::exclusive_attention(Tape& tape, Value y, Value v, int heads, int kv_heads) {
  return tape.record(op::kExclusiveAttention, {y, v}, ExclusiveAttributes{heads, kv_heads})[0];
}

Value op::cached_attention(Tape& tape, Value q, Value k, Value v, Value slot, Value position, Value k_cache,
                           Value v_cache, const CachedAttentionAttributes& attributes) {
  return tape.record(op::kCachedAttention, {q, k, v, slot, position, k_cache, v_cache}, attributes)[0];
}

}  // namespace thimble
