// Unit tests of the parts used by the gates, the benchmarks and the web page.
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/files.h"
#include "data/text_files.h"
#include "eval/small_model.h"
#include "qa/checks.h"
#include "qa/model_facts.h"
#include "qa/speed.h"
#include "support/golden.h"
#include "support/message_of.h"

namespace thimble {
namespace {

TEST(TensorStats, CoverTheFiniteValues) {
  const std::vector<float> values = {1, 2, 0, 5, std::numeric_limits<float>::infinity(), std::nanf(""), 0};
  const TensorStats stats = stats_of(values);
  EXPECT_EQ(stats.count, 7);
  EXPECT_EQ(stats.zeros, 2);
  EXPECT_EQ(stats.not_finite, 2);
  EXPECT_DOUBLE_EQ(stats.mean, 1.6);
  EXPECT_DOUBLE_EQ(stats.deviation, std::sqrt((0.36 + 0.16 + 2.56 + 11.56 + 2.56) / 5));
  EXPECT_EQ(stats.least, 0);
  EXPECT_EQ(stats.most, 5);
  double counted = 0;
  for (const double bin : stats.histogram) counted += bin;
  EXPECT_EQ(counted, 5);
}

TEST(TensorStats, HandleConstantAndEmptyTensors) {
  const std::vector<float> same(10, 3.0f), zeros(4, 0.0f);
  EXPECT_EQ(stats_of(same).deviation, 0);
  EXPECT_EQ(stats_of(same).histogram[kHistogramBins / 2], 10);
  EXPECT_FALSE(stats_of(same).all_zero());
  EXPECT_TRUE(stats_of(zeros).all_zero());
  EXPECT_FALSE(stats_of(std::span<const float>()).all_zero());
}

TEST(SameLogits, ToleratesRoundingButNotNaN) {
  std::vector<float> a = {10, -20, 3, 1, 2, 3}, b = a;
  EXPECT_TRUE(compare_logits(a, b, 3).equal());
  b[4] += 1e-4f;
  EXPECT_TRUE(compare_logits(a, b, 3).equal());
  b[4] += 0.1f;
  EXPECT_FALSE(compare_logits(a, b, 3).equal());
  EXPECT_EQ(compare_logits(a, b, 3).worst_row, 1u);
  a[4] = b[4] = std::nanf("");
  EXPECT_FALSE(compare_logits(a, b, 3).equal());
}

TEST(SameLogits, IsAsLikelyToleratesRounding) {
  const std::vector<float> logits = {0, 1, 2, 3, 2.98f};
  EXPECT_EQ(likeliest_id(logits), 3);
  EXPECT_TRUE(is_as_likely(logits, 4));
  EXPECT_FALSE(is_as_likely(logits, 2));
  EXPECT_TRUE(is_as_likely(std::vector<float>(5, 0.25f), 4)) << "all are equal";
  EXPECT_FALSE(is_as_likely(std::vector<float>{1, std::nanf("")}, 0));
}

// The bytes tokenizer with one fault.
class Faulty : public Tokenizer {
 public:
  enum class Fault { none, loses_a_letter, swaps_ids, encodes_control_tokens };
  explicit Faulty(Fault fault) : fault_(fault), bytes_(load_tokenizer("bytes")) {
    special_ = bytes_->special();
  }

  TokenizerKind kind() const override { return bytes_->kind(); }
  TokenId vocab_size() const override { return bytes_->vocab_size(); }
  void encode(std::string_view text, std::vector<TokenId>& ids, EncodeOptions options) const override {
    if (fault_ == Fault::encodes_control_tokens && text == bytes_->token_text(0)) return ids.push_back(0);
    const std::size_t before = ids.size();
    bytes_->encode(text, ids, options);
    if (fault_ == Fault::loses_a_letter)
      ids.erase(std::remove(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end(), letter('e')),
                ids.end());
  }
  void append_token(TokenId id, bool first, std::string& text) const override {
    bytes_->append_token(fault_ == Fault::swaps_ids && id == letter('a') ? letter('b') : id, first, text);
  }
  std::string token_text(TokenId id) const override { return bytes_->token_text(id); }
  TokenType token_type(TokenId id) const override { return bytes_->token_type(id); }
  std::optional<TokenId> id_of(std::string_view text) const override { return bytes_->id_of(text); }
  std::string serialized() const override { return bytes_->serialized(); }
  std::string_view file_name() const override { return bytes_->file_name(); }

 private:
  TokenId letter(char c) const { return bytes_->encode(std::string(1, c)).front(); }

  Fault fault_;
  std::unique_ptr<Tokenizer> bytes_;
};

TEST(RoundTrip, FindsEveryFault) {
  using enum Faulty::Fault;
  const RoundTrip good = check_round_trip(Faulty(none));
  EXPECT_TRUE(good.exact);
  EXPECT_EQ(good.ids, load_tokenizer("bytes")->vocab_size());
  EXPECT_EQ(good.texts, 1000);
  EXPECT_NE(message_of([] { check_round_trip(Faulty(loses_a_letter)); }).find("changes the text"),
            std::string::npos);
  EXPECT_NE(message_of([] { check_round_trip(Faulty(swaps_ids)); }).find("changes the text"),
            std::string::npos);
  EXPECT_NE(message_of([] { check_round_trip(Faulty(encodes_control_tokens)); }).find("users could type it"),
            std::string::npos);
}

TEST(RoundTrip, PassesForRealTokenizers) {
  for (const auto& path : golden_and_shared(
           {"tokenizers/gpt2.json", "tokenizers/llama3.json", "tokenizers/qwen2.json",
            "tokenizers/o200k.json", "tokenizers/golf_1024.model", "tokenizers/identity_700.model"},
           {"fixtures/tokenizers/gpt2/tokenizer.json.zst", "fixtures/tokenizers/qwen2_5/tokenizer.json.zst",
            "fixtures/sentencepiece/fineweb_1024_bpe.model",
            "fixtures/sentencepiece/fineweb_8192_bpe.model"})) {
    const std::string content = path.extension() == ".zst" ? read_text_file(path) : read_file(path, 1 << 24);
    const auto tokenizer = load_tokenizer_bytes(content, path.string());
    EXPECT_EQ(message_of([&] { check_round_trip(*tokenizer); }), "nothing was thrown") << path;
  }
}

TEST(Speed, FollowsTheProtocol) {
  const Context context;
  const auto model = small_model(context, 50, 64);
  const Speed prefill = prefill_speed(*model, {.tokens = 32, .repeats = 3}, ProgressOutput::nowhere());
  EXPECT_EQ(prefill.name, "pp32");
  EXPECT_EQ(prefill.rates.size(), 3u);
  const Speed decode =
      decode_speed(*model, {.tokens = 8, .depth = 16, .streams = 3, .repeats = 2}, ProgressOutput::nowhere());
  EXPECT_EQ(decode.name, "tg8 @ d16");
  EXPECT_EQ(decode.rates.size(), 2u);
  EXPECT_GT(decode.first_token_seconds, 0);
  for (const double rate : decode.rates) EXPECT_GT(rate, 0);
  EXPECT_EQ(message_of([&] { decode_speed(*model, {.tokens = 65}, ProgressOutput::nowhere()); }),
            "65 tokens exceed the model's context of 64");
}

TEST(Speed, MeanAndSampleDeviation) {
  const Speed speed{"x", {1, 2, 3, 6}};
  EXPECT_EQ(speed.mean(), 3);
  EXPECT_DOUBLE_EQ(speed.deviation(), std::sqrt((4 + 1 + 0 + 9) / 3.0));
  EXPECT_EQ((Speed{"x", {5}}.deviation()), 0);
}

TEST(Speed, CountsFlopsAndBytes) {
  const Context context;
  const auto model = small_model(context, 50, 64);
  const Model bf16(model->config(), context, DType::bf16);
  const ParamTable& params = model->params();
  const double matrices = static_cast<double>(params.count(ParamGroup::matrix));
  const double head = 50 * 32;
  EXPECT_EQ(bytes_per_token(*model, 0), 4 * (matrices + head));
  EXPECT_EQ(bytes_per_token(bf16, 10), 2 * (matrices + head + 10 * 2 * 2 * 16));
  // Two tokens have 3 query-key pairs; a pair costs 4 FLOPs per element of q.
  EXPECT_EQ(prefill_flops(*model, 2, 0), 2 * 2 * matrices + 4 * 3 * 2 * 32 + 2 * head);
}

TEST(ReadBandwidth, IsMeasured) {
  EXPECT_GT(read_bandwidth(1 << 20, 0.01), 1e8);
}

}  // namespace
}  // namespace thimble
