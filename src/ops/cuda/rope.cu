// rope: D / 16 lanes rotate a head. Each has eight columns of its first half and the eight columns
// they are paired with, so all accesses are 16 bytes and a head stays within a warp. A thread keeps
// its head from row to row: gains and weights are read once, and their gradients stay in registers
// until the block has processed its rows. Other head sizes, and heads that are only partly rotated,
// use a plain kernel with one warp per head.
#include "ops/rope.h"

#include "ops/cuda/column_sums.cuh"

namespace thimble::cuda {

namespace {

__device__ float gain_of(const View& gain, int head) {
  return gain ? load_one(gain, 0, gain.cols == 1 ? 0 : head) : 1.0f;
}

// Two packs of a row, half a head apart.
struct Pair {
  float a[kVector], b[kVector];
};

struct RawPair {
  Raw a, b;
};

// The work of a thread: its head, its columns, and its row among those the block processes at once.
struct Lane {
  int head, column, row_offset;  // column: within the head
  bool idle;

  // The position of its row, counted from row `first`. It is read one iteration ahead, because the
  // address of the angles depends on it.
  __device__ std::int32_t position_at(const Ints& position, std::int64_t first, std::int64_t rows) const {
    return !idle && first + row_offset < rows ? position[first + row_offset] : 0;
  }
};

struct Heads {
  std::int32_t count, size, lanes, rows_at_once;

  explicit Heads(const Rope& op)
      : count(op.at.heads),
        size(static_cast<std::int32_t>(op.x.cols / op.at.heads)),
        lanes(size / (2 * kVector)),
        rows_at_once(lanes > 0 ? kThreads / lanes / count : 0) {}

  bool fit(const Rope& op) const {
    return size % (2 * kVector) == 0 && lanes <= kWarp && kWarp % lanes == 0 && rows_at_once > 0 &&
           op.rotations.cols == size;
  }
  // Enough blocks to keep every multiprocessor busy. The number depends only on the rows, so sums
  // have a fixed order.
  std::int64_t blocks(std::int64_t rows) const {
    const std::int64_t needed = (rows + rows_at_once - 1) / rows_at_once;
    return needed < SumBlocks::kMaxBlocks ? needed : SumBlocks::kMaxBlocks;
  }

  __device__ Lane lane() const {
    const int slot = static_cast<int>(threadIdx.x) / lanes, row_offset = slot / count;
    return {slot - row_offset * count, (static_cast<int>(threadIdx.x) % lanes) * kVector, row_offset,
            row_offset >= rows_at_once};
  }
  __device__ RawPair fetch(const View& v, std::int64_t row, const Lane& at, bool half) const {
    const std::int64_t column = at.head * size + at.column;
    return {cuda::fetch(v, row, column, half), cuda::fetch(v, row, column + size / 2, half)};
  }
  // An f32 vector with a value per column of a head, or a row of rotations: cosines, then sines.
  __device__ RawPair fetch_shared(const View& v, std::int64_t row, const Lane& at) const {
    return {cuda::fetch(v, row, at.column, false), cuda::fetch(v, row, at.column + size / 2, false)};
  }
  __device__ void put(const View& v, std::int64_t row, const Lane& at, Pair& x, bool add) const {
    const std::int64_t column = at.head * size + at.column;
    cuda::put(v, row, column, x.a, add);
    cuda::put(v, row, column + size / 2, x.b, add);
  }
  // The sum over the lanes of a head; each lane gets it.
  __device__ float sum(float x) const {
    for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
  }
};

__device__ void unpack(const RawPair& raw, bool half, Pair& x) {
  unpack(raw.a, half, x.a);
  unpack(raw.b, half, x.b);
}

// Half: bf16; otherwise the dtype of the view.
template <bool Half>
__device__ void unpack_as(const RawPair& raw, const View& v, Pair& x) {
  if constexpr (Half) {
    unpack(raw, true, x);
  } else {
    unpack(raw.a, v, x.a);
    unpack(raw.b, v, x.b);
  }
}

__device__ float dot(const Pair& x, const Pair& y) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum += x.a[i] * y.a[i] + x.b[i] * y.b[i];
  return sum;
}

template <bool Weighted>
struct Weights {
  Pair w;

  __device__ void load(const View& weights, const Heads& heads, const Lane& at) {
    if constexpr (Weighted) unpack(heads.fetch_shared(weights, 0, at), false, w);
  }
  __device__ void apply(Pair& x) const {
    if constexpr (Weighted) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) x.a[i] *= w.a[i], x.b[i] *= w.b[i];
    }
  }
};

__device__ Pair scaled(const Pair& x, float factor) {
  Pair y;
#pragma unroll
  for (int i = 0; i < kVector; ++i) y.a[i] = x.a[i] * factor, y.b[i] = x.b[i] * factor;
  return y;
}

// Rotates x by the angles (cosines in rotation.a, sines in rotation.b); direction -1 rotates back.
__device__ Pair rotated(const Pair& x, const Pair& rotation, float direction) {
  Pair y;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const float cosine = rotation.a[i], sine = direction * rotation.b[i];
    y.a[i] = x.a[i] * cosine - x.b[i] * sine;
    y.b[i] = x.a[i] * sine + x.b[i] * cosine;
  }
  return y;
}

// Half: all rows are bf16, known at compile time; otherwise each tensor has the dtype of its view.
template <bool Weighted, bool Half>
__global__ void __launch_bounds__(kThreads)
    rotate_heads(Heads heads, RopeAttributes at, std::int64_t rows, View x, View y, View rstd, View rotations,
                 Ints position, View gain, View weights) {
  const Lane lane = heads.lane();
  const float g = gain_of(gain, lane.idle ? 0 : lane.head);
  Weights<Weighted> w;
  w.load(weights, heads, lane);
  const std::int64_t step = std::int64_t{gridDim.x} * heads.rows_at_once;
  std::int64_t first = std::int64_t{blockIdx.x} * heads.rows_at_once;
  std::int32_t next = lane.position_at(position, first, rows);
  for (; first < rows; first += step) {
    const std::int64_t n = first + lane.row_offset;
    const bool valid = !lane.idle && n < rows;
    RawPair raw = {}, angles = {};
    if (valid) {
      raw = heads.fetch(x, n, lane, Half || x.half);
      angles = heads.fetch_shared(rotations, next, lane);
    }
    next = lane.position_at(position, first + step, rows);
    Pair v, rotation;
    unpack_as<Half>(raw, x, v);
    unpack(angles, false, rotation);
    float r = 1;
    if (at.norm) r = 1.0f / sqrtf(heads.sum(dot(v, v)) / static_cast<float>(heads.size) + at.eps);
    if (!valid) continue;
    w.apply(v);
    Pair out = rotated(scaled(v, r * g), rotation, 1);
    heads.put(y, n, lane, out, false);
    if (lane.column == 0 && (at.norm || lane.head == 0)) store_one(rstd, n, lane.head, r);
  }
}

// A block's sums over its rows: dy . rotated(x_hat) per head, and u x rstd per column of a head.
template <bool Weighted>
__device__ void store_sums(const Heads& heads, const Lane& lane, float dots, const Pair& weights,
                           float* gains, float* weight_sums) {
  constexpr int kWidth = 2 * kVector + 1;
  __shared__ float shared[Weighted ? kThreads * kWidth : kThreads];
  const int slots = heads.rows_at_once * heads.count, thread = static_cast<int>(threadIdx.x);
  shared[thread] = lane.idle ? 0 : dots;
  __syncthreads();
  if (gains && thread < heads.count) {
    double sum = 0;
    for (int slot = thread; slot < slots; slot += heads.count)
      for (int i = 0; i < heads.lanes; ++i) sum += static_cast<double>(shared[slot * heads.lanes + i]);
    gains[std::int64_t{blockIdx.x} * heads.count + thread] = static_cast<float>(sum);
  }
  if constexpr (Weighted) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      shared[thread * kWidth + i] = weights.a[i];
      shared[thread * kWidth + kVector + i] = weights.b[i];
    }
    __syncthreads();
    if (!weight_sums) return;
    for (int d = thread; d < heads.size; d += kThreads) {
      const int half = heads.size / 2, in_half = d % half;
      const int own = in_half / kVector, value = in_half % kVector + (d >= half ? kVector : 0);
      float sum = 0;
      for (int slot = 0; slot < slots; ++slot) sum += shared[(slot * heads.lanes + own) * kWidth + value];
      weight_sums[std::int64_t{blockIdx.x} * heads.size + d] = sum;
    }
  }
}

// dgain = dy . rotated(x_hat) = (dy rotated back) . x_hat, so one rotation suffices.
template <bool Weighted, bool Half>
__global__ void __launch_bounds__(kThreads, Weighted || !Half ? 2 : 3)
    rotate_heads_back(Heads heads, RopeAttributes at, std::int64_t rows, View x, View rstd, View rotations,
                      Ints position, View gain, View weights, View dy, View dx, bool add, float* gains,
                      float* weight_sums) {
  const Lane lane = heads.lane();
  const float g = gain_of(gain, lane.idle ? 0 : lane.head);
  Weights<Weighted> w;
  w.load(weights, heads, lane);
  float dots = 0;
  Pair sums = {};
  const std::int64_t step = std::int64_t{gridDim.x} * heads.rows_at_once;
  std::int64_t first = std::int64_t{blockIdx.x} * heads.rows_at_once;
  std::int32_t next = lane.position_at(position, first, rows);
  for (; first < rows; first += step) {
    const std::int64_t n = first + lane.row_offset;
    const bool valid = !lane.idle && n < rows;
    RawPair raw = {}, raw_gradient = {}, angles = {};
    float r = 1;
    if (valid) {
      raw_gradient = heads.fetch(dy, n, lane, Half || dy.half);
      raw = heads.fetch(x, n, lane, Half || x.half);
      if (at.norm) r = load_one(rstd, n, lane.head);
      angles = heads.fetch_shared(rotations, next, lane);
    }
    next = lane.position_at(position, first + step, rows);
    Pair v, gradient, rotation;
    unpack(angles, false, rotation);
    unpack_as<Half>(raw_gradient, dy, gradient);
    unpack_as<Half>(raw, x, v);
    const Pair normed = scaled(v, r);
    Pair u = rotated(gradient, rotation, -1);
    if constexpr (Weighted) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        sums.a[i] += g * u.a[i] * normed.a[i];
        sums.b[i] += g * u.b[i] * normed.b[i];
      }
    }
    w.apply(u);
    const float projection = dot(u, normed);
    dots += projection;
    u = scaled(u, g);
    if (at.norm) {
      const float mean = g * heads.sum(projection) / static_cast<float>(heads.size);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        u.a[i] = r * (u.a[i] - normed.a[i] * mean);
        u.b[i] = r * (u.b[i] - normed.b[i] * mean);
      }
    }
    if (valid) heads.put(dx, n, lane, u, add);
  }
  if (gains || weight_sums) store_sums<Weighted>(heads, lane, dots, sums, gains, weight_sums);
}

// Every head size and layout: a warp rotates one head of one row. Lane i has the pairs (i, i +
// R/2), so reads and writes are coalesced.
struct PlainHead {
  View x, rotations, w;
  Ints position;
  std::int32_t heads, size, half;  // half: R / 2

  explicit PlainHead(const Rope& op)
      : x(op.x),
        rotations(op.rotations),
        w(op.w),
        position(op.position),
        heads(op.at.heads),
        size(static_cast<std::int32_t>(op.x.cols / op.at.heads)),
        half(static_cast<std::int32_t>(op.rotations.cols / 2)) {}

  __device__ float weight(int d) const { return w ? load_one(w, 0, d) : 1.0f; }
  // The column that column d is paired with; d itself if it is not rotated.
  __device__ int partner(int d) const { return d < half ? d + half : d < 2 * half ? d - half : d; }
  // Column d of v rotated by the row's angles (direction 1) or back (-1); v(d) reads the input.
  template <class Value>
  __device__ float rotated(std::int64_t n, int d, float direction, Value v) const {
    if (d >= 2 * half) return v(d);
    const int pair = d < half ? d : d - half;
    const std::int64_t p = position[n];
    const float cosine = load_one(rotations, p, pair), sine = direction * load_one(rotations, p, pair + half);
    return d < half ? v(d) * cosine - v(partner(d)) * sine : v(partner(d)) * sine + v(d) * cosine;
  }
};

void rope_plain(const Context& context, const Rope& op) {
  const PlainHead head(op);
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
      store_one(y, n, column + d, g * head.rotated(n, d, 1, normed));
  });
}

void rope_plain_gradients(const Context& context, const Rope& op, void* scratch) {
  const PlainHead head(op);
  const View gain(op.gain), rstd(op.rstd), dy(op.dy), dx(op.dx);
  const RopeAttributes at = op.at;
  const bool add = op.add_dx;
  const std::int64_t rows = op.x.rows;
  auto* dots = static_cast<float*>(scratch);  // [N, H]: dy . rotated(x_hat)
  void* sums = dots + (op.dgain ? rows * at.heads : 0);
  const bool needs_dots = static_cast<bool>(op.dgain);
  for_each_row(
      "rope backward", stream_of(context), rows * at.heads, [=] __device__(std::int64_t row, int lane) {
        const std::int64_t n = row / at.heads;
        const int h = static_cast<int>(row % at.heads), column = h * head.size;
        const float r = at.norm ? load_one(rstd, n, h) : 1.0f, g = gain_of(gain, h);
        const auto normed = [&](int d) { return load_one(head.x, n, column + d) * r * head.weight(d); };
        const auto gradient = [&](int d) { return load_one(dy, n, column + d) * g; };
        float dot = 0, mean = 0;
        for (int d = lane; d < head.size; d += kWarp) {
          if (needs_dots) dot += load_one(dy, n, column + d) * head.rotated(n, d, 1, normed);
          if (at.norm)
            mean += head.rotated(n, d, -1, gradient) * head.weight(d) * load_one(head.x, n, column + d) * r;
        }
        if (needs_dots) {
          dot = warp_sum(dot);
          if (lane == 0) dots[row] = dot;
        }
        if (!dx) return;
        mean = warp_sum(mean) / static_cast<float>(head.size);
        for (int d = lane; d < head.size; d += kWarp) {
          const float u = head.rotated(n, d, -1, gradient) * head.weight(d);
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
                                head.rotated(n, d, -1, gradient) * load_one(head.x, n, column + d) * r;
                          });
}

void rope_forward(const Context& context, const OpCall& call) {
  const Rope op(call);
  const Heads heads(op);
  if (!heads.fit(op) || !vectorized(op.x, {op.y, op.rotations, op.w})) return rope_plain(context, op);
  if (op.x.rows == 0) return;
  const bool half = op.x.dtype == DType::bf16;
  const auto kernel = op.w   ? rotate_heads<true, false>
                      : half ? rotate_heads<false, true>
                             : rotate_heads<false, false>;
  kernel<<<static_cast<unsigned>(heads.blocks(op.x.rows)), kThreads, 0, stream_of(context)>>>(
      heads, op.at, op.x.rows, View(op.x), View(op.y), View(op.rstd), View(op.rotations), Ints(op.position),
      View(op.gain), View(op.w));
  launched("rope");
}

void rope_backward(const Context& context, const OpCall& call) {
  const Rope op(call);
  const Heads heads(op);
  if (!heads.fit(op) || !vectorized(op.x, {op.dy, op.dx, op.rotations, op.w}))
    return rope_plain_gradients(context, op, call.scratch.data);
  if (op.x.rows == 0) return;
  const cudaStream_t stream = stream_of(context);
  const std::int64_t blocks = heads.blocks(op.x.rows);
  auto* gains = static_cast<float*>(call.scratch.data);  // [blocks + 1, H], then [blocks + 1, D]
  float* weights = gains + (blocks + 1) * heads.count;
  const bool half = op.x.dtype == DType::bf16 && op.dy.dtype == DType::bf16;
  const auto kernel = op.w   ? rotate_heads_back<true, false>
                      : half ? rotate_heads_back<false, true>
                             : rotate_heads_back<false, false>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      heads, op.at, op.x.rows, View(op.x), View(op.rstd), View(op.rotations), Ints(op.position),
      View(op.gain), View(op.w), View(op.dy), View(op.dx), op.add_dx, op.dgain ? gains : nullptr,
      op.dw ? weights : nullptr);
  launched("rope backward");
  if (op.dgain) add_partial_rows<1>("rope gain", stream, gains, blocks, heads.count, {{View(op.dgain)}});
  if (op.dw) add_partial_rows<1>("rope weight", stream, weights, blocks, heads.size, {{View(op.dw)}});
}

std::int64_t rope_scratch_bytes(std::span<const Shape> in, const Attributes& attributes) {
  // Partial sums of gains and weights; plain kernel: one dot product per head, then either sums.
  const std::int64_t N = in[0].rows, heads = attributes.as<RopeAttributes>().heads, D = in[0].cols / heads;
  return std::max(
      (std::min(SumBlocks::kMaxBlocks, N) + 1) * (heads + D) * kFloatBytes,
      N * heads * kFloatBytes + std::max(column_sum_bytes(N, heads, 1), column_sum_bytes(N * heads, D, 1)));
}

}  // namespace

extern const PluginOp kRope = {"rope",
                               {.forward = rope_forward,
                                .backward = rope_backward,
                                .rows = kRowTypes,
                                .wide_gradients = true,
                                .scratch_bytes = rope_scratch_bytes}};

}  // namespace thimble::cuda
