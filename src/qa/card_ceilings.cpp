#include "qa/card_ceilings.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "base/error.h"
#include "ops/linear.h"
#include "tensor/arena.h"

namespace thimble {

namespace {

constexpr int kCopies = 20, kPasses = 5, kProducts = 10;

// Of one call: `calls` are queued between two events, so that none waits for the host.
double best_seconds(const Context& context, int repeats, int calls, const std::function<void()>& work) {
  const auto before = context.runtime()->make_event(), after = context.runtime()->make_event();
  double best = std::numeric_limits<double>::infinity();
  work();  // plans are made, clocks rise
  for (int i = 0; i < repeats; ++i) {
    before->record();
    for (int call = 0; call < calls; ++call) work();
    after->record();
    after->wait();
    best = std::min(best, after->milliseconds_since(*before) / 1e3 / calls);
  }
  return best;
}

double seconds_of_product(const Context& context, const ProductShape& shape, std::int64_t N, DType dtype,
                          int repeats) {
  const std::int64_t O = shape.outputs, I = shape.inputs;
  const auto bytes = [&](std::int64_t rows, std::int64_t cols) {
    return align_up(rows * cols * dtype_bytes(dtype), 256);
  };
  const Arena arena(context.runtime(), bytes(N, I) + bytes(O, I) + bytes(N, O),
                    "the matrices of the benchmark", "measure fewer rows");
  const auto matrix = [&](std::int64_t offset, std::int64_t rows, std::int64_t cols) {
    return Tensor{arena.at(offset), rows, cols, cols, dtype, context.device()};
  };
  const Tensor in[] = {matrix(0, N, I), matrix(bytes(N, I), O, I)},
               out[] = {matrix(bytes(N, I) + bytes(O, I), N, O)};
  const OpDef& def = op_def(Op::linear);
  const OpCall call{in, out, {}, {}, 0, LinearAttributes{}, {}};
  validate_call(def, Backend::cuda, call);
  const Kernel kernel = def.kernels[static_cast<std::size_t>(Backend::cuda)].forward;
  return best_seconds(context, repeats, kProducts, [&] { kernel(context, call); });
}

}  // namespace

double card_bandwidth(const Context& context, std::int64_t buffer_bytes) {
  check(context.device() == Device::cuda, "[bench] a card's memory is measured on a card");
  const std::int64_t half = std::max<std::int64_t>(align_up(buffer_bytes / 2, 256), 256);
  const Arena arena(context.runtime(), 2 * half, "the benchmark's buffer", "measure a smaller model");
  const double seconds = best_seconds(context, kPasses, kCopies,
                                      [&] { context.runtime()->copy(arena.at(half), arena.at(0), half); });
  return 2 * static_cast<double>(half) / seconds;
}

double card_seconds_of_products(const Context& context, std::span<const ProductShape> shapes, std::int64_t N,
                                DType dtype, int repeats) {
  double seconds = 0;
  for (const ProductShape& shape : shapes)
    seconds += shape.count * seconds_of_product(context, shape, N, dtype, repeats);
  return seconds;
}

}  // namespace thimble
