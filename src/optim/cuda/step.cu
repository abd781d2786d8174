// The parts of an optimizer step that are neither tape ops nor update rules: f64 sums, the gradient
// norm and clipping, and the loss scale.
#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

namespace {

constexpr std::int64_t kMaxBlocks = 1024;

// The number of blocks depends only on the count, so sums have the same order and the same bits
// every time.
std::int64_t sum_blocks(std::int64_t count) {
  const std::int64_t blocks = (count + 4 * kThreads - 1) / (4 * kThreads);
  return blocks < 1 ? 1 : blocks > kMaxBlocks ? kMaxBlocks : blocks;
}

template <class Term>
__global__ void __launch_bounds__(kThreads) partial_sums(std::int64_t count, Term term, double* partials) {
  double mine = 0;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * kThreads)
    mine += term(i);
  const double sum = block_sum(mine);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__device__ double total_of(const double* partials, std::int64_t blocks) {
  double mine = 0;
  for (std::int64_t b = threadIdx.x; b < blocks; b += kThreads) mine += partials[b];
  return block_sum(mine);
}

__global__ void __launch_bounds__(kThreads)
    add_total(const double* partials, std::int64_t blocks, double* total) {
  const double sum = total_of(partials, blocks);
  if (threadIdx.x == 0) *total += sum;
}

__global__ void __launch_bounds__(kThreads)
    finish(const double* partials, std::int64_t blocks, StepState* state, LossScale* loss_scale) {
  const double squares = total_of(partials, blocks);
  if (threadIdx.x != 0) return;
  const double unscale = loss_scale ? 1.0 / static_cast<double>(loss_scale->scale) : 1.0;
  const double norm = sqrt(squares) * unscale, clip = state->clip;
  const double scale = clip > 0 ? fmin(1.0, clip / (norm + kClipEps)) : 1.0;
  state->loss *= unscale;
  state->squared_norm = squares * unscale * unscale;
  state->norm = norm;
  state->grad_scale = static_cast<float>(scale * unscale);
  state->finite = isfinite(norm) ? 1 : 0;
  if (!loss_scale) return;
  *loss_scale = next_loss_scale(*loss_scale, state->finite != 0);
  state->loss_scale = loss_scale->scale;
}

std::int64_t sum_scratch_bytes(std::int64_t count) {
  return sum_blocks(count) * static_cast<std::int64_t>(sizeof(double));
}

void add_weighted_sum(const Context& context, const float* values, const float* weights, std::int64_t count,
                      double* total, std::byte* scratch) {
  auto* partials = reinterpret_cast<double*>(scratch);
  const std::int64_t blocks = sum_blocks(count);
  partial_sums<<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(context)>>>(
      count,
      [=] __device__(std::int64_t i) {
        return static_cast<double>(values[i]) * static_cast<double>(weights[i]);
      },
      partials);
  launched("weighted sum");
  add_total<<<1, kThreads, 0, stream_of(context)>>>(partials, blocks, total);
  launched("weighted sum");
}

void scale_rows(const Context& context, const LossScale* scale, float* weights, std::int64_t count) {
  for_each_pack<1>("loss scale", stream_of(context), count, 1,
                   [=] __device__(std::int64_t row, int) { weights[row] *= scale->scale; });
}

void finish_norm(const Context& context, const float* gradients, std::int64_t count, StepState* state,
                 LossScale* scale, std::byte* scratch) {
  auto* partials = reinterpret_cast<double*>(scratch);
  const std::int64_t blocks = sum_blocks(count);
  partial_sums<<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(context)>>>(
      count,
      [=] __device__(std::int64_t i) {
        const double g = static_cast<double>(gradients[i]);
        return g * g;
      },
      partials);
  launched("gradient norm");
  finish<<<1, kThreads, 0, stream_of(context)>>>(partials, blocks, state, scale);
  launched("gradient norm");
}

}  // namespace

extern const StepKernels kStep = {sum_scratch_bytes, add_weighted_sum, scale_rows, finish_norm};

}  // namespace thimble::cuda
