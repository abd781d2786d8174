#include "ops/gemm_peak.h"

#include <algorithm>
#include <chrono>

#include "ops/cpu/gemm.h"
#include "tensor/arena.h"

namespace thimble {

double flops_of_products(std::span<const ProductShape> shapes, std::int64_t N) {
  double flops = 0;
  for (const ProductShape& shape : shapes)
    flops += shape.count * 6 * static_cast<double>(N) * static_cast<double>(shape.outputs) *
             static_cast<double>(shape.inputs);
  return flops;
}

namespace cpu {

namespace {

template <class Work>
double best_seconds(int repeats, Work work) {
  work();  // plans are made, pages touched
  double best = 1e300;
  for (int i = 0; i < repeats; ++i) {
    const auto started = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - started;
    best = std::min(best, taken.count());
  }
  return best;
}

double seconds_of_product(const Context& context, const ProductShape& shape, std::int64_t N, DType dtype,
                          int repeats) {
  const std::int64_t O = shape.outputs, I = shape.inputs;
  const std::int64_t wide = align_up((N * (O + I) + O * I) * dtype_bytes(dtype));
  const Arena arena(wide + align_up(O * I * 4) + 4 * kAlignment, "the matrices of the benchmark",
                    "measure fewer rows");
  std::int64_t offset = 0;
  const auto matrix = [&](std::int64_t rows, std::int64_t cols, DType type) {
    const Tensor tensor{arena.at(offset), rows, cols, cols, type, Device::cpu};
    offset += align_up(rows * cols * dtype_bytes(type));
    return tensor;
  };
  const Tensor dw = matrix(O, I, DType::f32), x = matrix(N, I, dtype), y = matrix(N, O, dtype);
  const Tensor w = matrix(O, I, dtype);
  Gemm& gemm = context.state<Gemm>();
  return best_seconds(repeats, [&] { gemm.run({x}, transposed(w), y, false); }) +
         best_seconds(repeats, [&] { gemm.run({y}, {w}, x, false); }) +
         best_seconds(repeats, [&] { gemm.run(transposed(y), {x}, dw, true); });
}

}  // namespace

double seconds_of_products(const Context& context, std::span<const ProductShape> shapes, std::int64_t N,
                           DType dtype, int repeats) {
  double seconds = 0;
  for (const ProductShape& shape : shapes)
    seconds += shape.count * seconds_of_product(context, shape, N, dtype, repeats);
  return seconds;
}

}  // namespace cpu

}  // namespace thimble
