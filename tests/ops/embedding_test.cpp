// The gradient of a table row is summed by one task, however many rows of the batch it has.
#include "ops/embedding.h"

#include <numeric>

#include "ops/op_harness.h"

namespace thimble {
namespace {

TEST(Embedding, GradientsOfLongSegmentsAreComplete) {
  constexpr std::int64_t kRows = 100'000, kColumns = 4, kTable = 3;
  std::vector<std::int32_t> index(kRows), order(kRows);
  for (std::size_t n = 0; n < index.size(); ++n) index[n] = static_cast<std::int32_t>(n * n % kTable);
  sort_rows(index, kTable, order);
  std::vector<float> table(kTable * kColumns), y(kRows * kColumns), dy(kRows * kColumns, 1);
  const std::vector<Tensor> in = {make_tensor(table.data(), kTable, kColumns),
                                  make_tensor(index.data(), kRows, 1), make_tensor(order.data(), kRows, 1)};
  const std::vector<Tensor> out = {make_tensor(y.data(), kRows, kColumns)};
  const std::vector<Tensor> d_out = {make_tensor(dy.data(), kRows, kColumns)};
  for (const int threads : {1, 2, 3, 2, 3}) {
    const Threads scope(threads);
    std::vector<float> gradient(kTable * kColumns);
    const std::vector<Tensor> d_in = {make_tensor(gradient.data(), kTable, kColumns), {}, {}};
    cpu_backend()
        .find(op::kEmbedding)
        ->backward(
            Context(),
            {.in = in, .out = out, .d_out = d_out, .d_in = d_in, .add = 1, .attributes = {}, .scratch = {}});
    EXPECT_EQ(std::accumulate(gradient.begin(), gradient.end(), 0.0f), static_cast<float>(kRows * kColumns))
        << threads << " threads";
  }
}

}  // namespace
}  // namespace thimble
