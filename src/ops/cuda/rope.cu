// D / 16 lanes turn a head: each has eight columns of its first half and the eight that they turn with, so that all
// accesses are of 16 bytes and a head never leaves a warp. A thread keeps its head from row to row: gains and weights are
// read once, and their gradients stay in registers until the block has seen its rows. Heads of other sizes, and those of
// which only a part turns, are turned plainly, by a warp each.
#include "ops/rope.h"

#include "ops/cuda/column_sums.cuh"

namespace thimble::cuda {

namespace {

__device__ float gain_of(const View& gain, int head) {
  return gain ? load_one(gain, 0, gain.cols == 1 ? 0 : head) : 1.0f;
}

// Two packs of a row, a half apart.
struct Pair {
  float a[kVector], b[kVector];
};

struct RawPair {
  Raw a, b;
};

// What a thread is: which head, which columns of it, and which of the rows that the block takes at a time.
struct Lane {
  int head, column, place;  // column: in the head
  bool idle;

  // Of its row among those from `first` on: read a turn ahead, since the angles are found by it.
  __device__ std::int32_t position_at(const Ints& position, std::int64_t first, std::int64_t rows) const {
    return !idle && first + place < rows ? position[first + place] : 0;
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
           op.turns.cols == size;
  }
  // As many as keep every multiprocessor busy; it depends on the rows alone, so sums are made in the same order.
  std::int64_t blocks(std::int64_t rows) const {
    const std::int64_t wanted = (rows + rows_at_once - 1) / rows_at_once;
    return wanted < SumBlocks::kMost ? wanted : SumBlocks::kMost;
  }

  __device__ Lane lane() const {
    const int slot = static_cast<int>(threadIdx.x) / lanes, place = slot / count;
    return {slot - place * count, (static_cast<int>(threadIdx.x) % lanes) * kVector, place,
            place >= rows_at_once};
  }
  __device__ RawPair fetch(const View& v, std::int64_t row, const Lane& at, bool half) const {
    const std::int64_t column = at.head * size + at.column;
    return {cuda::fetch(v, row, column, half), cuda::fetch(v, row, column + size / 2, half)};
  }
  // A vector of f32 with a value per column of a head, or a row of turns: cosines, then sines.
  __device__ RawPair fetch_shared(const View& v, std::int64_t row, const Lane& at) const {
    return {cuda::fetch(v, row, at.column, false), cuda::fetch(v, row, at.column + size / 2, false)};
  }
  __device__ void put(const View& v, std::int64_t row, const Lane& at, Pair& x, bool add) const {
    const std::int64_t column = at.head * size + at.column;
    cuda::put(v, row, column, x.a, add);
    cuda::put(v, row, column + size / 2, x.b, add);
  }
  // Over the lanes of a head: each gets it.
  __device__ float sum(float x) const {
    for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
  }
};

__device__ void unpack(const RawPair& raw, bool half, Pair& x) {
  unpack(raw.a, half, x.a);
  unpack(raw.b, half, x.b);
}

// Half: bf16; else as the view says.
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

// Turned by the angles (cosines in turn.a, sines in turn.b), or back.
__device__ Pair turned(const Pair& x, const Pair& turn, float direction) {
  Pair y;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const float cosine = turn.a[i], sine = direction * turn.b[i];
    y.a[i] = x.a[i] * cosine - x.b[i] * sine;
    y.b[i] = x.a[i] * sine + x.b[i] * cosine;
  }
  return y;
}

// Half: all rows are bf16, known when the kernel is compiled; else each tensor is what its view says.
template <bool Weighted, bool Half>
__global__ void __launch_bounds__(kThreads)
    turn_heads(Heads heads, RopeAttributes at, std::int64_t rows, View x, View y, View rstd, View turns,
               Ints position, View gain, View weights) {
  const Lane lane = heads.lane();
  const float g = gain_of(gain, lane.idle ? 0 : lane.head);
  Weights<Weighted> w;
  w.load(weights, heads, lane);
  const std::int64_t step = std::int64_t{gridDim.x} * heads.rows_at_once;
  std::int64_t first = std::int64_t{blockIdx.x} * heads.rows_at_once;
  std::int32_t next = lane.position_at(position, first, rows);
  for (; first < rows; first += step) {
    const std::int64_t n = first + lane.place;
    const bool here = !lane.idle && n < rows;
    RawPair raw = {}, angles = {};
    if (here) {
      raw = heads.fetch(x, n, lane, Half || x.half);
      angles = heads.fetch_shared(turns, next, lane);
    }
    next = lane.position_at(position, first + step, rows);
    Pair v, turn;
    unpack_as<Half>(raw, x, v);
    unpack(angles, false, turn);
    float r = 1;
    if (at.norm) r = 1.0f / sqrtf(heads.sum(dot(v, v)) / static_cast<float>(heads.size) + at.eps);
    if (!here) continue;
    w.apply(v);
    Pair out = turned(scaled(v, r * g), turn, 1);
    heads.put(y, n, lane, out, false);
    if (lane.column == 0 && (at.norm || lane.head == 0)) store_one(rstd, n, lane.head, r);
  }
}

// A block's sums over its rows: of dy . turned(x_hat) for every head, and of u x rstd for every column of a head.
template <bool Weighted>
__device__ void keep_sums(const Heads& heads, const Lane& lane, float dots, const Pair& weights, float* gains,
                          float* weight_sums) {
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

// The gain's gradient is dy . turned(x_hat), which is dy turned back . x_hat: one turn serves all.
template <bool Weighted, bool Half>
__global__ void __launch_bounds__(kThreads, Weighted || !Half ? 2 : 3)
    turn_heads_back(Heads heads, RopeAttributes at, std::int64_t rows, View x, View rstd, View turns,
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
    const std::int64_t n = first + lane.place;
    const bool here = !lane.idle && n < rows;
    RawPair raw = {}, raw_gradient = {}, angles = {};
    float r = 1;
    if (here) {
      raw_gradient = heads.fetch(dy, n, lane, Half || dy.half);
      raw = heads.fetch(x, n, lane, Half || x.half);
      if (at.norm) r = load_one(rstd, n, lane.head);
      angles = heads.fetch_shared(turns, next, lane);
    }
    next = lane.position_at(position, first + step, rows);
    Pair v, gradient, turn;
    unpack(angles, false, turn);
    unpack_as<Half>(raw_gradient, dy, gradient);
    unpack_as<Half>(raw, x, v);
    const Pair normed = scaled(v, r);
    Pair u = turned(gradient, turn, -1);
    if constexpr (Weighted) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        sums.a[i] += g * u.a[i] * normed.a[i];
        sums.b[i] += g * u.b[i] * normed.b[i];
      }
    }
    w.apply(u);
    const float along = dot(u, normed);
    dots += along;
    u = scaled(u, g);
    if (at.norm) {
      const float mean = g * heads.sum(along) / static_cast<float>(heads.size);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        u.a[i] = r * (u.a[i] - normed.a[i] * mean);
        u.b[i] = r * (u.b[i] - normed.b[i] * mean);
      }
    }
    if (here) heads.put(dx, n, lane, u, add);
  }
  if (gains || weight_sums) keep_sums<Weighted>(heads, lane, dots, sums, gains, weight_sums);
}

// Every head size and layout: a warp turns one head of one row. Lane i has the pairs (i, i + R/2), so reads and writes lie
// side by side.
struct PlainHead {
  View x, turns, w;
  Ints position;
  std::int32_t heads, size, half;  // half: R / 2

  explicit PlainHead(const Rope& op)
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
      store_one(y, n, column + d, g * head.turned(n, d, 1, normed));
  });
}

void rope_plain_gradients(const Context& context, const Rope& op, void* scratch) {
  const PlainHead head(op);
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

void rope_forward(const Context& context, const OpCall& call) {
  const Rope op(call);
  const Heads heads(op);
  if (!heads.fit(op) || !vectorised(op.x, {op.y, op.turns, op.w})) return rope_plain(context, op);
  if (op.x.rows == 0) return;
  const bool half = op.x.dtype == DType::bf16;
  const auto kernel = op.w   ? turn_heads<true, false>
                      : half ? turn_heads<false, true>
                             : turn_heads<false, false>;
  kernel<<<static_cast<unsigned>(heads.blocks(op.x.rows)), kThreads, 0, stream_of(context)>>>(
      heads, op.at, op.x.rows, View(op.x), View(op.y), View(op.rstd), View(op.turns), Ints(op.position),
      View(op.gain), View(op.w));
  launched("rope");
}

void rope_backward(const Context& context, const OpCall& call) {
  const Rope op(call);
  const Heads heads(op);
  if (!heads.fit(op) || !vectorised(op.x, {op.dy, op.dx, op.turns, op.w}))
    return rope_plain_gradients(context, op, call.scratch.data);
  if (op.x.rows == 0) return;
  const cudaStream_t stream = stream_of(context);
  const std::int64_t blocks = heads.blocks(op.x.rows);
  auto* gains = static_cast<float*>(call.scratch.data);  // [blocks + 1, H], then [blocks + 1, D]
  float* weights = gains + (blocks + 1) * heads.count;
  const bool half = op.x.dtype == DType::bf16 && op.dy.dtype == DType::bf16;
  const auto kernel = op.w   ? turn_heads_back<true, false>
                      : half ? turn_heads_back<false, true>
                             : turn_heads_back<false, false>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      heads, op.at, op.x.rows, View(op.x), View(op.rstd), View(op.turns), Ints(op.position), View(op.gain),
      View(op.w), View(op.dy), View(op.dx), op.add_dx, op.dgain ? gains : nullptr, op.dw ? weights : nullptr);
  launched("rope backward");
  if (op.dgain) add_partial_rows<1>("rope gain", stream, gains, blocks, heads.count, {{View(op.dgain)}});
  if (op.dw) add_partial_rows<1>("rope weight", stream, weights, blocks, heads.size, {{View(op.dw)}});
}

std::int64_t rope_scratch_bytes(std::span<const Shape> in, const Attributes& attributes) {
  // Partial sums of gains and weights; plain: a dot product a head, then either sums.
  const std::int64_t N = in[0].rows, heads = attributes.as<RopeAttributes>().heads, D = in[0].cols / heads;
  return std::max(
      (std::min(SumBlocks::kMost, N) + 1) * (heads + D) * kFloatBytes,
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
