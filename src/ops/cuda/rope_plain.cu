// A warp turns one head of one row: lane i has the pairs (i, i + R/2), so reads and writes lie side by side.
#include "ops/cuda/rope_plain.h"

#include "ops/cuda/column_sums.cuh"

namespace thimble::cuda {

namespace {

struct Head {
  View x, turns, w;
  Ints position;
  std::int32_t heads, size, half;  // half: R / 2

  explicit Head(const Rope& op)
      : x(op.x),
        turns(op.turns),
        w(op.w),
        position(op.position),
        heads(op.at.heads),
        size(static_cast<std::int32_t>(op.x.cols / op.at.heads)),
        half(static_cast<std::int32_t>(op.turns.cols / 2)) {}

  __device__ float weight(int d) const { return w ? load_one(w, 0, d) : 1.0f; }
  // Where column d's partner stands, itself if it does not turn.
  __device__ int partner(int d) const { return d < half ? d + half : d < 2 * half ? d - half : d; }
  // Column d of v after its row's turn (direction 1) or after turning back (-1); v(d) gives a column before it.
  template <class Value>
  __device__ float turned(std::int64_t n, int d, float direction, Value v) const {
    if (d >= 2 * half) return v(d);
    const int pair = d < half ? d : d - half;
    const std::int64_t p = position[n];
    const float cosine = load_one(turns, p, pair), sine = direction * load_one(turns, p, pair + half);
    return d < half ? v(d) * cosine - v(partner(d)) * sine : v(partner(d)) * sine + v(d) * cosine;
  }
};

__device__ float gain_of(const View& gain, int h) {
  return gain ? load_one(gain, 0, gain.cols == 1 ? 0 : h) : 1.0f;
}

}  // namespace

void rope_plain(const Context& context, const Rope& op) {
  const Head head(op);
  const View gain(op.gain), y(op.y), rstd(op.rstd);
  const RopeAttributes at = op.at;
  for_each_row("rope", stream_of(context), op.x.rows * at.heads, [=] __device__(std::int64_t row, int lane) {
    const std::int64_t n = row / at.heads;
    const int h = static_cast<int>(row % at.heads), column = h * head.size;
    float r = 1;
    if (at.norm) {
      float squares = 0;
      for (int d = lane; d < head.size; d += kWarp) {
        const float a = load_one(head.x, n, column + d);
        squares += a * a;
      }
      r = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(head.size) + at.eps);
    }
    if (lane == 0 && (at.norm || h == 0)) store_one(rstd, n, h, r);
    const float g = gain_of(gain, h);
    const auto normed = [&](int d) { return load_one(head.x, n, column + d) * r * head.weight(d); };
    for (int d = lane; d < head.size; d += kWarp)
      store_one(y, n, column + d, g * head.turned(n, d, 1, normed));
  });
}

void rope_plain_gradients(const Context& context, const Rope& op, void* scratch) {
  const Head head(op);
  const View gain(op.gain), rstd(op.rstd), dy(op.dy), dx(op.dx);
  const RopeAttributes at = op.at;
  const bool add = op.add_dx;
  const std::int64_t rows = op.x.rows;
  auto* dots = static_cast<float*>(scratch);  // [N, H]: dy . turned(x_hat)
  void* sums = dots + (op.dgain ? rows * at.heads : 0);
  const bool wants_dots = static_cast<bool>(op.dgain);
  for_each_row(
      "rope backward", stream_of(context), rows * at.heads, [=] __device__(std::int64_t row, int lane) {
        const std::int64_t n = row / at.heads;
        const int h = static_cast<int>(row % at.heads), column = h * head.size;
        const float r = at.norm ? load_one(rstd, n, h) : 1.0f, g = gain_of(gain, h);
        const auto normed = [&](int d) { return load_one(head.x, n, column + d) * r * head.weight(d); };
        const auto gradient = [&](int d) { return load_one(dy, n, column + d) * g; };
        float dot = 0, mean = 0;
        for (int d = lane; d < head.size; d += kWarp) {
          if (wants_dots) dot += load_one(dy, n, column + d) * head.turned(n, d, 1, normed);
          if (at.norm)
            mean += head.turned(n, d, -1, gradient) * head.weight(d) * load_one(head.x, n, column + d) * r;
        }
        if (wants_dots) {
          dot = warp_sum(dot);
          if (lane == 0) dots[row] = dot;
        }
        if (!dx) return;
        mean = warp_sum(mean) / static_cast<float>(head.size);
        for (int d = lane; d < head.size; d += kWarp) {
          const float u = head.turned(n, d, -1, gradient) * head.weight(d);
          float result[1] = {at.norm ? r * (u - load_one(head.x, n, column + d) * r * mean) : u};
          put(dx, n, column + d, result, add);
        }
      });
  if (op.dgain)
    add_column_sums<1, 1>("rope gain", stream_of(context), rows, at.heads, sums, {{View(op.dgain)}},
                          [=] __device__(std::int64_t n, int h, float(&total)[1][1]) {
                            total[0][0] += dots[n * at.heads + h];
                          });
  if (op.dw)
    add_column_sums<1, 1>("rope weight", stream_of(context), rows * at.heads, head.size, sums,
                          {{View(op.dw)}}, [=] __device__(std::int64_t row, int d, float(&total)[1][1]) {
                            const std::int64_t n = row / at.heads;
                            const int h = static_cast<int>(row % at.heads), column = h * head.size;
                            const float r = at.norm ? load_one(rstd, n, h) : 1.0f, g = gain_of(gain, h);
                            const auto gradient = [&](int e) { return load_one(dy, n, column + e) * g; };
                            total[0][0] +=
                                head.turned(n, d, -1, gradient) * load_one(head.x, n, column + d) * r;
                          });
}

}  // namespace thimble::cuda
