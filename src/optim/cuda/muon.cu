// Muon on batches of matrices of one shape: momentum, Newton-Schulz, update. The formulas are in
// optim/muon.h. Every kernel processes all matrices of a batch in one launch.
//
// A round of Newton-Schulz is three batched products, because a product can be scaled and added to
// an existing matrix: A = X X^T,  P = c A A + b A,  X = P X + a X.  If X^T is stored (more rows
// than columns), A = X X^T is computed with swapped transpose flags, and P X as X^T P.
#include <algorithm>

#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/gemm.h"
#include "ops/cuda/rows.cuh"
#include "optim/muon.h"

namespace thimble::cuda {

namespace {

constexpr std::int64_t kAlignment = 256;  // of each matrix, in bytes
constexpr int kNormBlocks = 32;           // per matrix, for its sum of squares; fixed: same bits
constexpr double kMinRowNorm = 1e-7;

std::int64_t round_up(std::int64_t count, std::int64_t unit) {
  return (count + unit - 1) / unit * unit;
}

// `count` matrices at a constant aligned distance.
struct Stack {
  Tensor first;
  std::int64_t distance = 0, count = 0;

  std::int64_t bytes() const { return distance * count * dtype_bytes(first.dtype); }
};

Stack make_stack(std::int64_t rows, std::int64_t cols, std::int64_t count, DType dtype) {
  return {Tensor{nullptr, rows, cols, cols, dtype, Device::cuda},
          round_up(rows * cols, kAlignment / dtype_bytes(dtype)), count};
}

// Scratch of a batch. Without a scratch pointer, only computes its size.
struct BatchScratch {
  Stack update;               // u, f32
  Stack x, next, a, p;        // in the dtype of products
  double* squares = nullptr;  // [count, kNormBlocks]
  std::int64_t bytes = 0;

  BatchScratch(const MuonBatch& batch, DType dtype, std::byte* scratch) {
    const std::int64_t small = batch.rows < batch.cols ? batch.rows : batch.cols;
    update = make_stack(batch.rows, batch.cols, batch.count, DType::f32);
    x = next = make_stack(batch.rows, batch.cols, batch.count, dtype);
    a = p = make_stack(small, small, batch.count, dtype);
    for (Stack* stack : {&update, &x, &next, &a, &p}) {
      if (scratch) stack->first.data = scratch + bytes;
      bytes += stack->bytes();
    }
    if (scratch) squares = reinterpret_cast<double*>(scratch + bytes);
    bytes += batch.count * kNormBlocks * static_cast<std::int64_t>(sizeof(double));
  }
};

// One column of blocks per matrix; each thread processes every (gridDim.x * kThreads)-th element.
dim3 grid_of(const MuonBatch& batch) {
  const std::int64_t blocks = (batch.rows * batch.cols + 4 * kThreads - 1) / (4 * kThreads);
  return dim3(static_cast<unsigned>(blocks < 256 ? blocks : 256), static_cast<unsigned>(batch.count));
}

template <class Body>
__device__ void for_my_elements(std::int64_t size, Body body) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < size;
       i += std::int64_t{gridDim.x} * kThreads)
    body(i);
}

// Element i of the matrix of this block.
struct Elements {
  View view;
  std::int64_t distance;

  explicit Elements(const Stack& stack) : view(stack.first), distance(stack.distance) {}
  __device__ float load(std::int64_t i) const { return load_one(view, 0, blockIdx.y * distance + i); }
  __device__ void store(std::int64_t i, float value) const {
    store_one(view, 0, blockIdx.y * distance + i, value);
  }
};

__global__ void __launch_bounds__(kThreads)
    add_momentum(const StepState* state, const MuonSettings* settings, const MuonMatrix* matrices,
                 std::int64_t size, const float* gradients, float* momenta, Elements update) {
  if (!state->finite) return;
  const float scale = state->grad_scale, momentum = settings->momentum;
  const MuonMatrix matrix = matrices[blockIdx.y];
  for_my_elements(size, [&](std::int64_t i) {
    const float g = scale * gradients[matrix.offset + i], m = momentum * momenta[matrix.m + i] + g;
    momenta[matrix.m + i] = m;
    update.store(i, g + momentum * m);
  });
}

__global__ void __launch_bounds__(kThreads) sum_squares(Elements update, std::int64_t size, double* squares) {
  double mine = 0;
  for_my_elements(size, [&](std::int64_t i) {
    const double u = update.load(i);
    mine += u * u;
  });
  const double sum = block_sum(mine);
  if (threadIdx.x == 0) squares[blockIdx.y * kNormBlocks + blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    normalize(Elements update, const double* squares, std::int64_t size, Elements x) {
  double sum = 0;
  for (int i = 0; i < kNormBlocks; ++i) sum += squares[blockIdx.y * kNormBlocks + i];
  const auto factor = static_cast<float>(1 / (sqrt(sum) + kNewtonSchulzEps));
  for_my_elements(size, [&](std::int64_t i) { x.store(i, factor * update.load(i)); });
}

__global__ void __launch_bounds__(kThreads)
    apply(const StepState* state, const MuonSettings* settings, const MuonMatrix* matrices, std::int64_t size,
          float shape, Elements x, float* weights) {
  if (!state->finite) return;
  const MuonMatrix matrix = matrices[blockIdx.y];
  const float keep = matrix.decays ? settings->shrink : 1.0f, stride = settings->rate * shape;
  float* w = weights + matrix.offset;
  for_my_elements(size, [&](std::int64_t i) { w[i] = w[i] * keep - stride * x.load(i); });
}

// Divides each row by its norm.
void normalize_rows(cudaStream_t stream, const MuonBatch& batch, const Stack& update) {
  const View u(update.first);
  const std::int64_t rows = batch.rows, cols = batch.cols, distance = update.distance;
  for_each_row("muon rows", stream, batch.count * rows, [=] __device__(std::int64_t row, int lane) {
    const std::int64_t begin = row / rows * distance + row % rows * cols;
    double squares = 0;
    for (std::int64_t i = lane; i < cols; i += kWarp) {
      const double value = load_one(u, 0, begin + i);
      squares += value * value;
    }
    const auto inverse = static_cast<float>(1 / fmax(sqrt(warp_sum(squares)), kMinRowNorm));
    for (std::int64_t i = lane; i < cols; i += kWarp)
      store_one(u, 0, begin + i, load_one(u, 0, begin + i) * inverse);
  });
}

// result = scale a b + base_scale base, for every matrix.
void multiply(const Context& context, const Stack& a, bool a_transposed, const Stack& b, bool b_transposed,
              const Stack& result, float scale = 1, const Stack* base = nullptr, float base_scale = 0) {
  gemm(context, {.a = {a.first, a_transposed},
                 .b = {b.first, b_transposed},
                 .base = base ? base->first : Tensor{},
                 .result = result.first,
                 .scale = scale,
                 .base_scale = base_scale,
                 .count = a.count,
                 .a_distance = a.distance,
                 .b_distance = b.distance,
                 .result_distance = result.distance});
}

// Leaves the result in buffers.x.
void newton_schulz(const Context& context, const MuonBatch& batch,
                   const std::vector<NewtonSchulzCoefficients>& rounds, BatchScratch& buffers) {
  const bool tall = batch.rows > batch.cols;
  for (const NewtonSchulzCoefficients& k : rounds) {
    const auto a = static_cast<float>(k.a), b = static_cast<float>(k.b), c = static_cast<float>(k.c);
    multiply(context, buffers.x, tall, buffers.x, !tall, buffers.a);
    multiply(context, buffers.a, false, buffers.a, false, buffers.p, c, &buffers.a, b);
    if (tall)
      multiply(context, buffers.x, false, buffers.p, false, buffers.next, 1, &buffers.x, a);
    else
      multiply(context, buffers.p, false, buffers.x, false, buffers.next, 1, &buffers.x, a);
    const Stack before = buffers.x;
    buffers.x = buffers.next;
    buffers.next = before;
  }
}

void update_batch(const Context& context, const RuleCall& call, const MuonBatch& batch) {
  if (batch.count > 65535) refuse("Muon supports at most 65535 matrices of one shape", batch.count);
  const MuonPlan& plan = call.plan_as<MuonPlan>();
  const auto* const settings = call.settings_as<MuonSettings>();
  const auto* const matrices = call.items_as<MuonMatrix>() + batch.first;
  BatchScratch buffers(batch, plan.dtype, call.scratch);
  const std::int64_t size = batch.rows * batch.cols;
  const cudaStream_t stream = stream_of(context);
  const dim3 grid = grid_of(batch), norm_grid(kNormBlocks, grid.y);

  add_momentum<<<grid, kThreads, 0, stream>>>(call.state, settings, matrices, size, call.memory.gradients,
                                              call.memory.states[0], Elements(buffers.update));
  launched("muon momentum");
  if (plan.row_norm) normalize_rows(stream, batch, buffers.update);
  sum_squares<<<norm_grid, kThreads, 0, stream>>>(Elements(buffers.update), size, buffers.squares);
  launched("muon norm");
  normalize<<<grid, kThreads, 0, stream>>>(Elements(buffers.update), buffers.squares, size,
                                           Elements(buffers.x));
  launched("muon scaling");
  newton_schulz(context, batch, plan.rounds, buffers);
  const double shape =
      batch.rows > batch.cols ? static_cast<double>(batch.rows) / static_cast<double>(batch.cols) : 1.0;
  apply<<<grid, kThreads, 0, stream>>>(call.state, settings, matrices, size, static_cast<float>(sqrt(shape)),
                                       Elements(buffers.x), call.memory.weights);
  launched("muon update");
}

// Batches are updated one after the other and use the same scratch.
std::int64_t muon_scratch_bytes(const RuleCall& call) {
  const MuonPlan& plan = call.plan_as<MuonPlan>();
  std::int64_t bytes = 0;
  for (const MuonBatch& batch : plan.batches)
    bytes = std::max(bytes, BatchScratch(batch, plan.dtype, nullptr).bytes);
  return bytes;
}

void muon(const Context& context, const RuleCall& call) {
  for (const MuonBatch& batch : call.plan_as<MuonPlan>().batches) update_batch(context, call, batch);
}

}  // namespace

extern const RuleKernels kMuon = {.rule = "muon",
                                  .settings_bytes = sizeof(MuonSettings),
                                  .scratch_bytes = muon_scratch_bytes,
                                  .update = muon};

}  // namespace thimble::cuda
