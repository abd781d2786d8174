#include "ops/rope.h"

#include <cmath>

#include "ops/cpu/kernels.h"
#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rope.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// One head of one row.
struct Head {
  std::int64_t size, half;       // D, R/2
  const float *cosines, *sines;  // of the row's position
  const float* w;                // [D] or nullptr
};

// weight(at, part): w's lanes for the columns that start at `part`.
template <class At>
HWY_INLINE V32 weighted(At at, V32 value, const float* w) {
  return w ? hn::Mul(value, at.load(w)) : value;
}

HWY_INLINE const float* past(const float* w, std::int64_t columns) {
  return w ? w + columns : nullptr;
}

// y = turned(x * factor * w)
HWY_INLINE void turn_head(const Head& head, const float* x, float factor, float* y) {
  const V32 f = all(factor);
  const std::int64_t half = head.half, rest = 2 * half;
  for_lanes(half, [&](auto at) HWY_ATTR {
    const V32 a = weighted(at, hn::Mul(at.load(x), f), head.w);
    const V32 b = weighted(at, hn::Mul(at.load(x + half), f), past(head.w, half));
    const V32 c = at.load(head.cosines), s = at.load(head.sines);
    at.store(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), y);
    at.store(hn::MulAdd(a, s, hn::Mul(b, c)), y + half);
  });
  for_lanes(head.size - rest, [&](auto at) HWY_ATTR {
    at.store(weighted(at, hn::Mul(at.load(x + rest), f), past(head.w, rest)), y + rest);
  });
}

// u = dy turned back
HWY_INLINE void turn_back(const Head& head, const float* dy, float* u) {
  const std::int64_t half = head.half, rest = 2 * half;
  for_lanes(half, [&](auto at) HWY_ATTR {
    const V32 a = at.load(dy), b = at.load(dy + half);
    const V32 c = at.load(head.cosines), s = at.load(head.sines);
    at.store(hn::MulAdd(a, c, hn::Mul(b, s)), u);
    at.store(hn::Sub(hn::Mul(b, c), hn::Mul(a, s)), u + half);
  });
  for_lanes(head.size - rest, [&](auto at) HWY_ATTR { at.store(at.load(dy + rest), u + rest); });
}

HWY_INLINE Head head_of(const Rope& op, std::int64_t n) {
  const std::int64_t half = op.turns.cols / 2;
  const float* turns = op.turns.row<float>(*op.position.row<std::int32_t>(n));
  return {op.x.cols / op.at.heads, half, turns, turns + half, op.w ? op.w.row<float>(0) : nullptr};
}

HWY_INLINE float gain_of(const Rope& op, std::int64_t h) {
  return op.gain ? op.gain.row<float>(0)[op.gain.cols == 1 ? 0 : h] : 1.0f;
}

void rope_rows(const Rope& op, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const Head head = head_of(op, n);
    if (!op.at.norm) *op.rstd.row<float>(n) = 1;
    for (std::int64_t h = 0; h < op.at.heads; ++h) {
      const float* x = op.x.row<float>(n) + h * head.size;
      float rstd = 1;
      if (op.at.norm) {
        rstd = 1.0f / std::sqrt(dot(x, x, head.size) / static_cast<float>(head.size) + op.at.eps);
        op.rstd.row<float>(n)[h] = rstd;
      }
      turn_head(head, x, rstd * gain_of(op, h), op.y.row<float>(n) + h * head.size);
    }
  }
}

// sums: dgain in the first H columns, dw in the next D. u: scratch of one head.
void rope_backward_rows(const Rope& op, std::int64_t begin, std::int64_t end, float* sums, float* u) {
  for (std::int64_t n = begin; n < end; ++n) {
    const Head head = head_of(op, n);
    const std::int64_t D = head.size;
    for (std::int64_t h = 0; h < op.at.heads; ++h) {
      const float* x = op.x.row<float>(n) + h * D;
      const float rstd = op.at.norm ? op.rstd.row<float>(n)[h] : 1.0f;
      const float gain = gain_of(op, h);
      turn_back(head, op.dy.row<float>(n) + h * D, u);
      const auto weighted_u = [&](auto at) HWY_ATTR { return weighted(at, at.load(u), head.w); };
      // dy . turned(x_hat) = u . x_hat: turning keeps inner products.
      const float correlation =
          sum_lanes(D, [&](auto at) HWY_ATTR { return hn::Mul(weighted_u(at), at.load(x)); });
      if (op.dgain) sums[h] += correlation * rstd;
      if (op.dw) {
        float* dw = sums + op.at.heads;
        const V32 factor = all(gain * rstd);
        for_lanes(D, [&](auto at) HWY_ATTR {
          at.store(hn::MulAdd(hn::Mul(factor, at.load(u)), at.load(x), at.load(dw)), dw);
        });
      }
      if (!op.dx) continue;
      const V32 a = all(gain * rstd);
      const V32 b = all(op.at.norm ? -gain * rstd * rstd * rstd * correlation / static_cast<float>(D) : 0.0f);
      const bool norm = op.at.norm;
      for_lanes(D, [&](auto at) HWY_ATTR {
        const V32 straight = hn::Mul(a, weighted_u(at));
        put(at, norm ? hn::MulAdd(b, at.load(x), straight) : straight, op.dx.row<float>(n) + h * D,
            op.add_dx);
      });
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(rope_rows);
HWY_EXPORT(rope_backward_rows);

void rope_forward(const Context&, const OpCall& call) {
  const Rope op(call);
  parallel_for(op.x.rows, rows_per_task(op.x.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(rope_rows)(op, begin, end);
  });
}

void rope_backward(const Context&, const OpCall& call) {
  const Rope op(call);
  const std::int64_t H = op.at.heads, D = op.x.cols / H;
  sum_over_rows(
      // The D columns after dgain and dw are each block's room for one head turned back.
      op.x.rows, H + 2 * D, call.scratch,
      [&](std::int64_t begin, std::int64_t end, float* sums) {
        HWY_DYNAMIC_DISPATCH(rope_backward_rows)(op, begin, end, sums, sums + H + D);
      },
      [&](const float* total) {
        if (op.dgain) add_total(total, H, op.dgain.row<float>(0), op.dgain.cols);
        if (op.dw) add_total(total + H, D, op.dw.row<float>(0), D);
      });
}

}  // namespace thimble::cpu
#endif
