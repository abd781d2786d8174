// Bits per byte for every kind of tokenizer: the bytes are those of the text, and a uniform model
// needs exactly log2 V bits per token.
#include <cmath>

#include "data/text_files.h"
#include "eval/score.h"
#include "eval/small_model.h"
#include "support/golden.h"
#include "support/temp_folder.h"
#include "tokenizer/bpe_train.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble {
namespace {

const char* const kDocuments[] = {
    "The cat sat on the mat, and the mat sat under the cat.",
    "caf\xC3\xA9 \xE2\x82\xAC 100 \xF0\x9F\x90\xB1 cats",
    "a",
    " a space in front has no byte in the published table",
    "the cat, the mat, the hat: 12345 of them sat on the cat and on the mat and so on and on",
};

std::unique_ptr<Tokenizer> tokenizer_of(const std::string& kind) {
  if (kind == "bytes") return load_tokenizer("bytes");
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 20; ++i)
    for (const char* document : kDocuments) text += std::string(document) + "\n";
  TextSource source({folder.write("text.txt", text)}, {.split = DocumentSplit::line});
  if (kind == "bpe")
    return load_tokenizer_bytes(
        write_tokenizer_json(train_bpe(source, {.vocab_size = 300}, ProgressOutput::nowhere()).spec), "bpe");
  return load_sentencepiece(train_sentencepiece(source, {.vocab_size = 320, .normalization = "identity"}),
                            "sentencepiece");
}

// parameter-golf's rule for the bytes of a token, computed from the text of the pieces.
std::uint64_t published_bytes(const Tokenizer& tokenizer, std::int32_t previous, std::int32_t target) {
  const auto is_boundary = [&](std::int32_t id) {
    const TokenType type = tokenizer.token_type(id);
    return type == TokenType::control || type == TokenType::unknown || type == TokenType::unused;
  };
  if (is_boundary(target)) return 0;
  if (tokenizer.token_type(target) == TokenType::byte) return 1;
  const std::string piece = tokenizer.token_text(target);
  const bool space = piece.starts_with("\xE2\x96\x81");
  return piece.size() - (space ? 3 : 0) + (space && !is_boundary(previous) ? 1 : 0);
}

class EveryTokenizer : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kinds, EveryTokenizer, testing::Values("bytes", "bpe", "sentencepiece"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(EveryTokenizer, AUniformModelNeedsLog2VBitsPerToken) {
  const auto tokenizer = tokenizer_of(GetParam());
  const std::int32_t bos = *tokenizer->special().bos;
  std::vector<std::int32_t> tokens;
  std::uint64_t text_bytes = 0, expected_bytes = 0;
  for (const char* document : kDocuments) {
    const std::size_t begin = tokens.size();
    tokens.push_back(bos);
    tokenizer->encode(document, tokens);
    text_bytes += std::string_view(document).size();
    for (std::size_t i = begin + 1; i < tokens.size(); ++i)
      expected_bytes += published_bytes(*tokenizer, tokens[i - 1], tokens[i]);
  }
  if (tokenizer->kind() != TokenizerKind::sentencepiece) expected_bytes = text_bytes;

  const Context context;
  const auto model = small_model(context, tokenizer->vocab_size(), 32, "golf");
  std::ranges::fill(model->weights(), 0.0f);
  model->weights_changed();
  const ByteTable bytes(*tokenizer, static_cast<TokenId>(model->config().vocab_size));
  const TokenSet set(tokens, TokenMarks::of(*tokenizer, DataKind::text, LossOn::assistant));
  for (const std::int64_t stride : {0, 8}) {
    const Score score = score_set(*model, bytes, set, {.stride = stride}, ProgressOutput::nowhere());
    EXPECT_EQ(score.bytes, expected_bytes);
    EXPECT_EQ(score.tokens, static_cast<std::int64_t>(tokens.size()));
    const double expected = std::log2(static_cast<double>(tokenizer->vocab_size())) *
                            static_cast<double>(score.tokens) / static_cast<double>(score.bytes);
    // The kernel returns ln V as a float, with an error in the last bit.
    EXPECT_NEAR(score.bits_per_byte() / expected, 1, 1e-7);
  }
}

TEST(PublishedTokenizer, CountsBytesLikeParameterGolf) {
  for (const auto& file :
       golden_and_shared({"tokenizers/golf_1024.model"}, {"fixtures/sentencepiece/fineweb_1024_bpe.model"})) {
    const auto tokenizer = load_tokenizer(file);
    std::vector<std::int32_t> tokens;
    for (const char* document : kDocuments) {
      tokens.push_back(*tokenizer->special().bos);
      tokenizer->encode(document, tokens);
    }
    const ByteTable bytes(*tokenizer, tokenizer->vocab_size());
    for (std::size_t i = 1; i < tokens.size(); ++i)
      EXPECT_EQ(bytes.bytes(tokens[i - 1], tokens[i]), published_bytes(*tokenizer, tokens[i - 1], tokens[i]))
          << file << ": token " << i;
  }
}

}  // namespace
}  // namespace thimble
