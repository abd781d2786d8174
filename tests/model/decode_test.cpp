// Decoding through the KV cache gives the same logits as scoring the complete text.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/random_model.h"

namespace thimble::decode_test {
namespace {

constexpr double kSame = 2e-5;  // relative to a row's largest logit: f32 sums in a different order

// A text that is decoded in a slot.
struct Reader {
  std::int32_t slot;
  std::vector<std::int32_t> tokens;
  std::vector<float> logits;  // expected, from scoring: [T, V]
  std::size_t read = 0;

  DecodeRow next() {
    const auto at = [&](std::size_t back) { return read < back ? -1 : tokens[read - back]; };
    const DecodeRow row{.token = tokens[read],
                        .previous = at(1),
                        .before_previous = at(2),
                        .position = static_cast<std::int32_t>(read),
                        .slot = slot};
    ++read;
    return row;
  }
  bool done() const { return read == tokens.size(); }
};

Reader make_reader(Model& model, std::mt19937& random, std::int32_t slot, std::int64_t length) {
  Reader reader{slot, random_tokens(random, model.config(), length), {}};
  reader.logits = model.score(grid_rows(model.config(), length, reader.tokens), true).logits;
  return reader;
}

void expect_row(const Tensor& logits, std::int64_t row, const Reader& reader, std::size_t position) {
  const auto V = static_cast<std::size_t>(logits.cols);
  const std::span expected = std::span(reader.logits).subspan(position * V, V);
  float largest = 1;
  for (const float logit : expected) largest = std::max(largest, std::abs(logit));
  for (std::size_t v = 0; v < V; ++v)
    ASSERT_NEAR(logits.row<float>(row)[v], expected[v], kSame * largest)
        << "slot " << reader.slot << ", position " << position;
}

struct Family {
  const char* name;
  const char* preset;
  std::vector<std::string> settings = {};

  ModelConfig config() const { return small_config(preset, settings); }
};

class Decoding : public testing::TestWithParam<Family> {};

// Each call decodes a random number of tokens, 0 to 7, of each of three texts, in random order.
TEST_P(Decoding, InterleavedSlotsAndBlocksEqualScoring) {
  const Context context;
  Model model = random_model(GetParam().config(), context);
  std::mt19937 random(17);
  KvCache cache(model.config(), 3);
  for (int round = 0; round < 2; ++round) {  // the second round reuses the slots
    std::vector<Reader> readers;
    for (const auto& [slot, length] : {std::pair(2, 24), {0, 17}, {1, 5 + round}})
      readers.push_back(make_reader(model, random, slot, length));
    while (!std::ranges::all_of(readers, &Reader::done)) {
      std::vector<DecodeRow> rows;
      std::vector<std::pair<const Reader*, std::size_t>> expected_rows;
      std::shuffle(readers.begin(), readers.end(), random);
      for (Reader& reader : readers)
        for (auto count = random() % 8; count > 0 && !reader.done(); --count) {
          rows.push_back(reader.next());
          rows.back().wants_logits = expected_rows.empty() || random() % 2 == 0;
          if (rows.back().wants_logits) expected_rows.emplace_back(&reader, reader.read - 1);
        }
      if (rows.empty()) continue;
      const Tensor logits = model.decode(decode_rows(model.config(), cache.slots(), rows), cache);
      ASSERT_EQ(logits.rows, static_cast<std::int64_t>(expected_rows.size()));
      for (std::size_t i = 0; i < expected_rows.size(); ++i) {
        expect_row(logits, static_cast<std::int64_t>(i), *expected_rows[i].first, expected_rows[i].second);
        if (HasFatalFailure()) return;
      }
    }
  }
}

void expect_same_bits_in_one_block(const ModelConfig& config, DType dtype) {
  SCOPED_TRACE(dtype_name(dtype));
  const Context context;
  Model model = random_model(config, context, dtype);
  std::mt19937 random(5);
  Reader one = make_reader(model, random, 0, 19), block = one;
  KvCache cache(model.config(), 2, dtype);
  std::vector<float> last;
  while (!one.done()) {
    const Tensor logits = model.decode(decode_rows(model.config(), 2, std::vector{one.next()}), cache);
    last.assign(logits.row<float>(0), logits.row<float>(0) + logits.cols);
  }
  block.slot = 1;
  std::vector<DecodeRow> rows;
  while (!block.done()) rows.push_back(block.next());
  const Tensor logits = model.decode(decode_rows(model.config(), 2, rows), cache);
  EXPECT_TRUE(std::ranges::equal(last, std::span(logits.row<float>(18), last.size())));
}

TEST_P(Decoding, TokenByTokenEqualsOneBlockBitForBit) {
  for (const DType dtype : {DType::f32, DType::bf16})
    expect_same_bits_in_one_block(GetParam().config(), dtype);
}

// Rounding changes the logits of these small random models by a few percent, so compare the cosine.
TEST_P(Decoding, InBf16IsCloseToScoringInBf16) {
  const Context context;
  Model model = random_model(GetParam().config(), context, DType::bf16);
  std::mt19937 random(5);
  Reader reader = make_reader(model, random, 0, 19);
  KvCache cache(model.config(), 1, DType::bf16);
  std::vector<DecodeRow> rows;
  while (!reader.done()) rows.push_back(reader.next());
  const Tensor logits = model.decode(decode_rows(model.config(), 1, rows), cache);
  double product = 0, decoded = 0, scored = 0;
  for (std::int64_t n = 0; n < logits.rows; ++n)
    for (std::int64_t v = 0; v < logits.cols; ++v) {
      const double a = logits.row<float>(n)[v],
                   b = reader.logits[static_cast<std::size_t>(n * logits.cols + v)];
      product += a * b, decoded += a * a, scored += b * b;
    }
  EXPECT_GT(product / std::sqrt(decoded * scored), 0.999);
}

TEST_P(Decoding, ContinuesFromACopiedPrefix) {
  const Context context;
  Model model = random_model(GetParam().config(), context);
  std::mt19937 random(6);
  Reader reader = make_reader(model, random, 0, 12);
  KvCache cache(model.config(), 2);
  std::vector<DecodeRow> rows;
  while (reader.read < 8) rows.push_back(reader.next());
  model.decode(decode_rows(model.config(), 2, rows), cache);
  cache.copy_prefix(0, 1, 8);
  reader.slot = 1;
  while (!reader.done()) {
    const Tensor logits = model.decode(decode_rows(model.config(), 2, std::vector{reader.next()}), cache);
    expect_row(logits, 0, reader, reader.read - 1);
  }
}

// Layers with a window keep a ring of 1,088 positions.
TEST(CacheRings, DecodingATextOfSeveralRingsEqualsScoring) {
  const ModelConfig config =
      small_config("llama", {"context=2500", "layers=3", "window=20", "global_every=2", "batch_tokens=2500"});
  ASSERT_EQ(cache_rows(config, 0), 1088);
  ASSERT_EQ(cache_rows(config, 1), 2500);
  const Context context;
  Model model = random_model(config, context);
  std::mt19937 random(6);
  Reader reader = make_reader(model, random, 0, 2400);
  KvCache cache = model.make_cache(2);
  const auto read_to = [&](std::size_t end, std::size_t together) {
    while (reader.read < end) {
      std::vector<DecodeRow> rows;
      while (rows.size() < together && reader.read < end) rows.push_back(reader.next());
      for (DecodeRow& row : rows) row.wants_logits = &row == &rows.back();
      expect_row(model.decode(decode_rows(config, 2, rows), cache), 0, reader, reader.read - 1);
    }
  };
  read_to(1000, 1000);
  read_to(1150, 1);
  read_to(2174, kCacheSlack);
  read_to(2300, 7);
  cache.copy_prefix(0, 1, 2000);
  reader.slot = 1, reader.read = 2000;
  read_to(2400, 25);
}

TEST(CacheRings, ACallMayNotOverwriteWhatItsRowsAttendTo) {
  const ModelConfig config =
      small_config("llama", {"context=2500", "layers=1", "window=20", "batch_tokens=2500"});
  const Context context;
  Model model = random_model(config, context);
  KvCache cache = model.make_cache(1);
  std::vector<DecodeRow> rows;
  for (std::int32_t position = 0; position <= kCacheSlack; ++position)
    rows.push_back({.token = 1, .previous = 1, .before_previous = 1, .position = position});
  EXPECT_THROW(model.decode(decode_rows(config, 1, rows), cache), Error);
}

// The caches of Gemma 3 270M and 1B for a context of 8,192: 15 of 18 and 22 of 26 layers have a
// window of 512.
TEST(CacheRings, AreSmallerThanTheContext) {
  ModelConfig gemma;
  gemma.context = 8192, gemma.layers = 18, gemma.kv_heads = 1, gemma.head_dim = 256;
  const std::int64_t row = 2 * 256 * 2;  // keys and values, bf16
  EXPECT_EQ(cache_bytes(gemma, 1, DType::bf16), 18 * 8192 * row);
  gemma.window = 512, gemma.global_every = 6;
  EXPECT_EQ(cache_bytes(gemma, 1, DType::bf16), (3 * 8192 + 15 * 1536) * row);
  EXPECT_EQ(cache_bytes(gemma, 8, DType::bf16), 8 * (3 * 8192 + 15 * 1536) * row);
  gemma.layers = 26;
  EXPECT_EQ(cache_bytes(gemma, 1, DType::bf16), (4 * 8192 + 22 * 1536) * row);
  gemma.context = 1024;  // a ring would be longer
  EXPECT_EQ(cache_bytes(gemma, 1, DType::bf16), 26 * 1024 * row);
}

void fill_keys(const KvCache& cache, float value) {
  const Tensor keys = cache.keys(0);
  std::fill_n(keys.row<float>(0), keys.rows * keys.cols, value);
}

// The same KvCache object with different memory, as if a new cache had the address of a deleted
// one.
TEST_P(Decoding, BindsTheCacheAgainIfItsMemoryChanges) {
  constexpr float kUntouched = 777;
  const Context context;
  Model model = random_model(GetParam().config(), context);
  std::mt19937 random(8);
  KvCache cache(model.config(), 1), other(model.config(), 1);
  Reader reader = make_reader(model, random, 0, 6);
  model.decode(decode_rows(model.config(), 1, std::vector{reader.next()}), cache);
  std::swap(cache, other);
  fill_keys(cache, kUntouched), fill_keys(other, kUntouched);
  reader.read = 0;
  const Tensor logits = model.decode(decode_rows(model.config(), 1, std::vector{reader.next()}), cache);
  expect_row(logits, 0, reader, 0);
  EXPECT_NE(cache.keys(0).row<float>(0)[0], kUntouched);
  EXPECT_EQ(other.keys(0).row<float>(0)[0], kUntouched);
}

INSTANTIATE_TEST_SUITE_P(
    Model, Decoding,
    testing::Values(Family{"golfplus", "golf-plus"}, Family{"llama", "llama"}, Family{"qwen3", "qwen3"},
                    Family{"microgpt", "microgpt"}, Family{"golfbest", "golf-best"},
                    Family{"loop", "golf-best", {"loop_first=1", "loop_last=2", "loop_count=2"}},
                    Family{"gatedParallelLoop",
                           "golf-plus",
                           {"loop_last=3", "loop_count=1", "skip_gates=true", "parallel_from=2"}},
                    Family{"parallelLlama", "llama", {"parallel_from=0"}},
                    Family{"windows", "llama", {"window=5", "nope_every=2", "global_every=3"}},
                    Family{"gemma",
                           "llama",
                           {"window=4", "global_every=3", "mlp=geglu", "post_norm=true", "embed_scale=true",
                            "attention_softcap=2", "logit_softcap=3", "local_rope_base=50"}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace thimble::decode_test
