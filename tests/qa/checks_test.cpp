// The comparisons and the round trip of a tokenizer that the checks use.
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/files.h"
#include "data/text_files.h"
#include "qa/checks.h"
#include "support/golden.h"
#include "support/message_of.h"

namespace thimble {
namespace {

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

}  // namespace
}  // namespace thimble
