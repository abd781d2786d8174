// embedding, gather and smear: ops that select rows by index. Gradients are added in a fixed order.
#include "ops/embedding.h"

#include "ops/cuda/column_sums.cuh"

namespace thimble::cuda {

namespace {

// Backward of embedding splits the sorted rows into chunks.
constexpr std::int64_t kEmbeddingChunk = 32;
std::int64_t embedding_chunks(std::int64_t rows) {
  return (rows + kEmbeddingChunk - 1) / kEmbeddingChunk;
}

template <int V>
void embedding(cudaStream_t stream, const Embedding& op) {
  const View table(op.table), y(op.y);
  const Ints index(op.index);
  for_each_pack<V>("embedding", stream, op.y.rows, op.y.cols, [=] __device__(std::int64_t row, int c) {
    float a[V];
    load(table, index[row], c, a);
    store(y, row, c, a);
  });
}

// The sorted rows, in chunks of kEmbeddingChunk. Common tokens have long segments, and one thread
// per segment would take too long. A segment within a chunk is added to the table directly. For a
// segment that spans chunks, each chunk stores its part, and a second kernel adds the parts in
// order.
struct SortedRows {
  Ints index, order;
  std::int64_t rows;

  __device__ std::int32_t at(std::int64_t entry) const { return index[order[entry]]; }
  __device__ bool continues_before(std::int64_t entry) const {
    return entry > 0 && at(entry - 1) == at(entry);
  }
  __device__ bool continues_after(std::int64_t last) const {
    return last + 1 < rows && at(last + 1) == at(last);
  }
  // The first chunk after `chunk` that does not start with the token. Rows are sorted, so this is
  // an exponential, then a binary search.
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
void embedding_gradients(cudaStream_t stream, const Embedding& op, void* scratch) {
  const View dy(op.dy), table(op.dtable);
  const SortedRows sorted{Ints(op.index), Ints(op.order), op.dy.rows};
  const std::int64_t chunks = embedding_chunks(op.dy.rows);
  const int cols = static_cast<int>(op.dy.cols);
  auto* parts = static_cast<float*>(scratch);  // [chunks][head, tail][cols]
  for_each_pack<V>("embedding backward", stream, chunks, cols, [=] __device__(std::int64_t chunk, int c) {
    const std::int64_t begin = chunk * kEmbeddingChunk;
    const std::int64_t end = begin + kEmbeddingChunk < sorted.rows ? begin + kEmbeddingChunk : sorted.rows;
    float sum[V] = {};
    bool head = sorted.continues_before(begin);
    for (std::int64_t entry = begin; entry < end; ++entry) {
      float g[V];
      load(dy, sorted.order[entry], c, g);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] += g[i];
      const std::int32_t token = sorted.at(entry);
      if (entry + 1 < end && sorted.at(entry + 1) == token) continue;
      if (head || (entry + 1 == end && sorted.continues_after(entry))) {
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
  // A segment that spans chunks: its tail in its first chunk, then the heads of later chunks.
  for_each_pack<V>("embedding backward", stream, chunks, cols, [=] __device__(std::int64_t chunk, int c) {
    const std::int64_t last = (chunk + 1) * kEmbeddingChunk - 1;
    if (last + 1 >= sorted.rows || !sorted.continues_after(last)) return;
    const std::int32_t token = sorted.at(last);
    const std::int64_t begin = chunk * kEmbeddingChunk;
    if (sorted.at(begin) == token && sorted.continues_before(begin))
      return;  // the segment started in an earlier chunk
    float sum[V];
    const float* part = parts + (chunk * 2 + 1) * cols + c;
#pragma unroll
    for (int i = 0; i < V; ++i) sum[i] = part[i];
    const std::int64_t end = sorted.end_of(token, chunk, chunks);
#pragma unroll 8
    for (std::int64_t next = chunk + 1; next < end; ++next) {
      part = parts + next * 2 * cols + c;
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] += part[i];
    }
    add_to_row(table, token, c, sum);
  });
}

void embedding_forward(const Context& context, const OpCall& call) {
  const Embedding op(call);
  if (vectorized(op.table, {op.y}))
    embedding<kVector>(stream_of(context), op);
  else
    embedding<1>(stream_of(context), op);
}

void embedding_backward(const Context& context, const OpCall& call) {
  const Embedding op(call);
  if (!op.dtable) return;
  if (vectorized(op.dy, {op.dtable}))
    embedding_gradients<kVector>(stream_of(context), op, call.scratch.data);
  else
    embedding_gradients<1>(stream_of(context), op, call.scratch.data);
}

template <int V>
void gather(cudaStream_t stream, const Gather& op) {
  const View x(op.x), y(op.y);
  const Ints source(op.row);
  for_each_pack<V>("gather", stream, op.y.rows, op.y.cols, [=] __device__(std::int64_t row, int c) {
    float a[V];
    load(x, source[row], c, a);
    store(y, row, c, a);
  });
}

template <int V>
void gather_gradients(cudaStream_t stream, const Gather& op) {
  const View dy(op.dy), dx(op.dx);
  const Ints source(op.row);
  const bool add = op.add_dx;
  if (!add)
    for_each_pack<V>("gather backward", stream, op.dx.rows, op.dx.cols,
                     [=] __device__(std::int64_t row, int c) {
                       const float zero[V] = {};
                       store(dx, row, c, zero);
                     });
  for_each_pack<V>("gather backward", stream, op.dy.rows, op.dy.cols,
                   [=] __device__(std::int64_t row, int c) {
                     float g[V];
                     load(dy, row, c, g);
                     put(dx, source[row], c, g, add);  // each row at most once, so there is no race
                   });
}

void gather_forward(const Context& context, const OpCall& call) {
  const Gather op(call);
  if (vectorized(op.x, {op.y}))
    gather<kVector>(stream_of(context), op);
  else
    gather<1>(stream_of(context), op);
}

void gather_backward(const Context& context, const OpCall& call) {
  const Gather op(call);
  if (!op.dx) return;
  if (vectorized(op.dy, {op.dx}))
    gather_gradients<kVector>(stream_of(context), op);
  else
    gather_gradients<1>(stream_of(context), op);
}

__device__ float sigmoid(float x) {
  return 1 / (1 + expf(-x));
}

template <int V>
void smear(cudaStream_t stream, const Smear& op) {
  const View x(op.x), gate(op.gate), y(op.y);
  const Ints previous(op.previous);
  for_each_pack<V>("smear", stream, op.y.rows, op.y.cols, [=] __device__(std::int64_t row, int c) {
    const std::int32_t before = previous[row];
    float a[V], b[V] = {}, g[V];
    load(x, row, c, a);
    if (before >= 0) load(x, before, c, b);
    load(gate, 0, c, g);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float share = sigmoid(g[i]);
      a[i] = (1 - share) * a[i] + share * b[i];
    }
    store(y, row, c, a);
  });
}

template <int V>
void smear_gradients(cudaStream_t stream, const Smear& op, void* scratch) {
  const View x(op.x), gate(op.gate), dy(op.dy), dx(op.dx);
  const Ints previous(op.previous);
  const bool add = op.add_dx;
  const std::int64_t rows = op.dy.rows;
  if (op.dx)
    for_each_pack<V>("smear backward", stream, rows, op.dy.cols, [=] __device__(std::int64_t row, int c) {
      const bool followed = row + 1 < rows && previous[row + 1] == row;
      float d[V], next[V] = {}, g[V];
      load(dy, row, c, d);
      if (followed) load(dy, row + 1, c, next);
      load(gate, 0, c, g);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float share = sigmoid(g[i]);
        d[i] = (1 - share) * d[i] + (followed ? share * next[i] : 0.0f);
      }
      put(dx, row, c, d, add);
    });
  if (op.dgate)
    add_column_sums<V, 1>("smear gate", stream, rows, op.dy.cols, scratch, {{View(op.dgate)}},
                          [=] __device__(std::int64_t row, int c, float(&sums)[1][V]) {
                            const std::int32_t before = previous[row];
                            float d[V], a[V], b[V] = {}, g[V];
                            load(dy, row, c, d);
                            load(x, row, c, a);
                            if (before >= 0) load(x, before, c, b);
                            load(gate, 0, c, g);
#pragma unroll
                            for (int i = 0; i < V; ++i) {
                              const float share = sigmoid(g[i]);
                              sums[0][i] += share * (1 - share) * d[i] * (b[i] - a[i]);
                            }
                          });
}

void smear_forward(const Context& context, const OpCall& call) {
  const Smear op(call);
  if (vectorized(op.x, {op.gate, op.y}))
    smear<kVector>(stream_of(context), op);
  else
    smear<1>(stream_of(context), op);
}

void smear_backward(const Context& context, const OpCall& call) {
  const Smear op(call);
  if (vectorized(op.x, {op.gate, op.dy, op.dx}))
    smear_gradients<kVector>(stream_of(context), op, call.scratch.data);
  else
    smear_gradients<1>(stream_of(context), op, call.scratch.data);
}

std::int64_t embedding_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  return embedding_chunks(in[1].rows) * 2 * in[0].cols * kFloatBytes;
}

std::int64_t smear_scratch_bytes(std::span<const Shape> in, const Attributes&) {
  return column_sum_bytes(in[0].rows, in[0].cols, 1);
}

}  // namespace

extern const PluginOp kEmbedding = {"embedding",
                                    {.forward = embedding_forward,
                                     .backward = embedding_backward,
                                     .rows = kRowTypes,
                                     .wide_gradients = true,
                                     .scratch_bytes = embedding_scratch_bytes}};
extern const PluginOp kGather = {
    "gather",
    {.forward = gather_forward, .backward = gather_backward, .rows = kRowTypes, .wide_gradients = true}};
extern const PluginOp kSmear = {"smear",
                                {.forward = smear_forward,
                                 .backward = smear_backward,
                                 .rows = kRowTypes,
                                 .wide_gradients = true,
                                 .scratch_bytes = smear_scratch_bytes}};

}  // namespace thimble::cuda
