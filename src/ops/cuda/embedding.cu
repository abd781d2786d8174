#include "ops/embedding.h"

#include "ops/cuda/kernels.h"
#include "ops/cuda/rows.cuh"
#include "ops/cuda/scratch.h"

namespace thimble::cuda {

namespace {

template <int V>
void forward(cudaStream_t stream, const Embedding& op) {
  const View table(op.table), y(op.y);
  const Ints index(op.index);
  for_each_pack<V>("embedding", stream, op.y.rows, op.y.cols, [=] __device__(std::int64_t row, int c) {
    float a[V];
    load(table, index[row], c, a);
    store(y, row, c, a);
  });
}

// The sorted rows in chunks of kEmbeddingChunk: common tokens make long segments, and one thread's walk through one
// would take as long as all the rest. A segment inside a chunk goes to the table at once; of one that crosses chunks,
// each chunk leaves its part, and the second kernel adds the parts in order.
struct Walk {
  Ints index, order;
  std::int64_t rows;

  __device__ std::int32_t at(std::int64_t place) const { return index[order[place]]; }
  __device__ bool continues_before(std::int64_t place) const {
    return place > 0 && at(place - 1) == at(place);
  }
  __device__ bool continues_after(std::int64_t last) const {
    return last + 1 < rows && at(last + 1) == at(last);
  }
  // The first chunk behind `chunk` that does not begin with the token: rows are sorted, so steps may double until one
  // goes too far.
  __device__ std::int64_t end_of(std::int32_t token, std::int64_t chunk, std::int64_t chunks) const {
    std::int64_t inside = chunk, step = 1;
    while (inside + step < chunks && at((inside + step) * kEmbeddingChunk) == token) {
      inside += step;
      step *= 2;
    }
    for (; step > 0; step /= 2)
      if (inside + step < chunks && at((inside + step) * kEmbeddingChunk) == token) inside += step;
    return inside + 1;
  }
};

template <int V>
__device__ void add_to_row(const View& table, std::int32_t row, int c, const float (&sum)[V]) {
  float total[V];
#pragma unroll
  for (int i = 0; i < V; ++i) total[i] = sum[i];
  put(table, row, c, total, true);
}

template <int V>
void backward(cudaStream_t stream, const Embedding& op, void* scratch) {
  const View dy(op.dy), table(op.dtable);
  const Walk walk{Ints(op.index), Ints(op.order), op.dy.rows};
  const std::int64_t chunks = embedding_chunks(op.dy.rows);
  const int cols = static_cast<int>(op.dy.cols);
  auto* parts = static_cast<float*>(scratch);  // [chunks][head, tail][cols]
  for_each_pack<V>("embedding backward", stream, chunks, cols, [=] __device__(std::int64_t chunk, int c) {
    const std::int64_t begin = chunk * kEmbeddingChunk;
    const std::int64_t end = begin + kEmbeddingChunk < walk.rows ? begin + kEmbeddingChunk : walk.rows;
    float sum[V] = {};
    bool head = walk.continues_before(begin);
    for (std::int64_t place = begin; place < end; ++place) {
      float g[V];
      load(dy, walk.order[place], c, g);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] += g[i];
      const std::int32_t token = walk.at(place);
      if (place + 1 < end && walk.at(place + 1) == token) continue;
      if (head || (place + 1 == end && walk.continues_after(place))) {
        float* part = parts + (chunk * 2 + (head ? 0 : 1)) * cols + c;
#pragma unroll
        for (int i = 0; i < V; ++i) part[i] = sum[i];
      } else {
        add_to_row(table, token, c, sum);
      }
      head = false;
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] = 0;
    }
  });
  // A segment that crosses chunks: its tail in the chunk where it starts, then the heads that follow.
  for_each_pack<V>("embedding backward", stream, chunks, cols, [=] __device__(std::int64_t chunk, int c) {
    const std::int64_t last = (chunk + 1) * kEmbeddingChunk - 1;
    if (last + 1 >= walk.rows || !walk.continues_after(last)) return;
    const std::int32_t token = walk.at(last);
    const std::int64_t begin = chunk * kEmbeddingChunk;
    if (walk.at(begin) == token && walk.continues_before(begin)) return;  // it started in an earlier chunk
    float sum[V];
    const float* part = parts + (chunk * 2 + 1) * cols + c;
#pragma unroll
    for (int i = 0; i < V; ++i) sum[i] = part[i];
    const std::int64_t end = walk.end_of(token, chunk, chunks);
#pragma unroll 8
    for (std::int64_t next = chunk + 1; next < end; ++next) {
      part = parts + next * 2 * cols + c;
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] += part[i];
    }
    add_to_row(table, token, c, sum);
  });
}

}  // namespace

void embedding_forward(const Context& context, const OpCall& call) {
  const Embedding op(call);
  if (vectorised(op.table, {op.y}))
    forward<kVector>(stream_of(context), op);
  else
    forward<1>(stream_of(context), op);
}

void embedding_backward(const Context& context, const OpCall& call) {
  const Embedding op(call);
  if (!op.dtable) return;
  if (vectorised(op.dy, {op.dtable}))
    backward<kVector>(stream_of(context), op, call.scratch.data);
  else
    backward<1>(stream_of(context), op, call.scratch.data);
}

}  // namespace thimble::cuda
