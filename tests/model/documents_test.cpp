// Documents packed into rows are isolated: each gives the same results as alone.
#include <algorithm>
#include <cmath>

#include "model/random_model.h"

namespace thimble::documents_test {
namespace {

// Relative to a row's largest logit. Other shapes use other GEMM blockings, which sum in a
// different order. A small logit may be the difference of large terms, up to 60 in microgpt, which
// has no final norm.
constexpr double kSame = 5e-6;

struct Document {
  std::size_t begin, length;
};

struct Packed {
  std::int64_t T;
  std::vector<std::int32_t> input, target;
  std::vector<std::uint8_t> doc_start;

  // The start of a row always starts a document.
  std::vector<Document> documents() const {
    std::vector<Document> found;
    for (std::size_t n = 0; n < input.size(); ++n) {
      if (n % static_cast<std::size_t>(T) == 0 || doc_start[n]) found.push_back({n, 0});
      ++found.back().length;
    }
    return found;
  }
};

Packed random_rows(std::mt19937& random, const ModelConfig& config, std::int64_t B, std::int64_t T) {
  Packed packed{T, random_tokens(random, config, B * T), random_tokens(random, config, B * T), {}};
  for (std::int64_t n = 0; n < B * T; ++n) packed.doc_start.push_back(random() % 4 == 0);
  return packed;
}

float largest_of(const std::vector<float>& logits, std::size_t begin, std::size_t count) {
  float largest = 0;
  for (std::size_t i = begin; i < begin + count; ++i) largest = std::max(largest, std::abs(logits[i]));
  return largest;
}

void expect_documents_alone(Model& model, const Packed& packed) {
  const auto V = static_cast<std::size_t>(model.config().vocab_size);
  const Model::Scores together =
      model.score(grid_rows(model.config(), packed.T, packed.input, packed.target, packed.doc_start), true);
  for (const auto& [begin, length] : packed.documents()) {
    const Model::Scores alone = model.score(grid_rows(model.config(), static_cast<std::int64_t>(length),
                                                      std::span(packed.input).subspan(begin, length),
                                                      std::span(packed.target).subspan(begin, length)),
                                            true);
    for (std::size_t row = 0; row < length; ++row) {
      const float largest = largest_of(alone.logits, row * V, V);
      for (std::size_t i = row * V; i < (row + 1) * V; ++i)
        ASSERT_NEAR(together.logits[begin * V + i], alone.logits[i], kSame * largest)
            << "document at " << begin << " of " << length;
      ASSERT_NEAR(together.nats[begin + row], alone.nats[row], 2 * kSame * largest);  // involves two logits
    }
  }
}

void expect_gradients_add_up(Model& model, const Packed& packed) {
  std::vector<float> together(model.weights().size());
  const double loss = model.add_gradients(
      grid_rows(model.config(), packed.T, packed.input, packed.target, packed.doc_start), together, {});
  double loss_sum = 0;
  std::vector<double> sum(together.size());
  for (const auto& [begin, length] : packed.documents()) {
    std::vector<float> alone(together.size());
    const double share = static_cast<double>(length) / static_cast<double>(packed.input.size());
    loss_sum += share * model.add_gradients(grid_rows(model.config(), static_cast<std::int64_t>(length),
                                                      std::span(packed.input).subspan(begin, length),
                                                      std::span(packed.target).subspan(begin, length)),
                                            alone, {});
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += share * static_cast<double>(alone[i]);
  }
  EXPECT_NEAR(loss / loss_sum, 1, 1e-5);
  for (const Param& param : model.params().all()) {
    double apart = 0, size = 0;
    for (std::int64_t i = param.offset; i < param.offset + param.count(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      apart += std::pow(together[at] - sum[at], 2), size += sum[at] * sum[at];
    }
    EXPECT_LE(std::sqrt(apart), 1e-4 * std::sqrt(size) + 1e-7) << param.name;
  }
}

class PackedDocuments : public testing::TestWithParam<const char*> {};

TEST_P(PackedDocuments, GiveTheSameResultsAsAloneForEveryRowLength) {
  const Context context;
  Model model = random_model(small_config(GetParam()), context);
  std::mt19937 random(1);
  for (std::int64_t T = 1; T <= model.config().context; ++T) {
    const std::int64_t B = 1 + T % 5;
    SCOPED_TRACE(fmt::format("{} rows of {}", B, T));
    expect_documents_alone(model, random_rows(random, model.config(), B, T));
    if (HasFatalFailure()) return;
  }
}

TEST_P(PackedDocuments, GradientsAreTheSumOverTheDocuments) {
  const Context context;
  Model model = random_model(small_config(GetParam()), context);
  std::mt19937 random(2);
  for (const auto& [B, T] : {std::pair(1, 1), {1, 24}, {2, 7}, {3, 13}, {5, 23}}) {
    SCOPED_TRACE(fmt::format("{} rows of {}", B, T));
    expect_gradients_add_up(model, random_rows(random, model.config(), B, T));
  }
}

// Checks that the comparison is sensitive: without marked starts the documents are not isolated.
TEST_P(PackedDocuments, DifferIfTheirStartsAreNotMarked) {
  const Context context;
  Model model = random_model(small_config(GetParam()), context);
  const std::vector<std::int32_t> input = {3, 14, 15, 9, 26, 5};
  std::vector<std::uint8_t> doc_start = {1, 0, 0, 1, 0, 0};
  const Model::Scores marked = model.score(grid_rows(model.config(), 6, input, input, doc_start));
  const Model::Scores unmarked = model.score(grid_rows(model.config(), 6, input, input));
  EXPECT_EQ(marked.nats[2], unmarked.nats[2]);
  EXPECT_GT(std::abs(marked.nats[3] - unmarked.nats[3]), 1e-3);
}

std::string named(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::erase(name, '-');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Model, PackedDocuments, testing::Values("golf-plus", "llama", "qwen3", "microgpt"),
                         named);

}  // namespace
}  // namespace thimble::documents_test
