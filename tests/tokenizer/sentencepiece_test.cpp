#include "tokenizer/sentencepiece.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"
#include "tokenizer/golden_tokenizers.h"
#include "tokenizer/tokenizer.h"

namespace thimble::sentencepiece_test {

namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string with_spaces(std::string text) {
  for (std::size_t at; (at = text.find(kSpace)) != text.npos;) text.replace(at, kSpace.size(), " ");
  return text;
}

std::string first_bytes(std::string text, std::size_t bytes) {
  text.resize(std::min(text.size(), bytes));
  return text.substr(0, text.rfind('\n') + 1);
}

std::string trained(const std::string& text, SentencePieceOptions options) {
  TempFolder folder;
  TextSource source({folder.write("a.txt", text)}, {.split = DocumentSplit::line});
  return train_sentencepiece(source, options);
}

std::string some_text() {
  std::string text;
  for (int i = 0; i < 400; ++i)
    text += fmt::format("the cat number {} sat on the mat and saw {} birds\n", i, i * 7 % 31);
  return text;
}

}  // namespace

class GolfModel : public testing::TestWithParam<std::filesystem::path> {
 protected:
  std::unique_ptr<Tokenizer> tokenizer_ = load_tokenizer(GetParam());
};

TEST_P(GolfModel, HasTheSpecialIdsOfGolf) {
  EXPECT_EQ(tokenizer_->kind(), TokenizerKind::sentencepiece);
  EXPECT_EQ(tokenizer_->special().pad, 0);
  EXPECT_EQ(tokenizer_->special().bos, 1);
  EXPECT_EQ(tokenizer_->special().eos, 2);
  EXPECT_EQ(tokenizer_->special().unk, 3);
  int bytes = 0;
  for (TokenId id = 0; id < tokenizer_->vocab_size(); ++id)
    bytes += tokenizer_->token_type(id) == TokenType::byte;
  EXPECT_EQ(bytes, 256);
}

// An addition to SentencePieceVectors, if spm_encode (package sentencepiece) is installed.
TEST_P(GolfModel, MatchesSpmEncodeAndSpmNormalizeIfInstalled) {
  if (!std::filesystem::exists("/usr/bin/spm_encode")) return;
  const std::string model = GetParam().string();
  const ByteTable table(*tokenizer_, tokenizer_->vocab_size());
  for (const std::filesystem::path& file : corpus_files()) {
    const std::string text = first_bytes(read_text_file(file), 400'000);
    const auto spm = run_program("/usr/bin/spm_encode",
                                 {.arguments = {"--model=" + model, "--output_format=id"}, .input = text});
    const auto normalized =
        run_program("/usr/bin/spm_normalize", {.arguments = {"--model=" + model}, .input = text});
    const auto expected = lines_of(spm.out), clean = lines_of(normalized.out), lines = lines_of(text);
    ASSERT_EQ(expected.size(), lines.size()) << file;
    ASSERT_EQ(clean.size(), lines.size()) << file;
    for (std::size_t i = 0; i < lines.size(); ++i) {
      std::vector<TokenId> ids = tokenizer_->encode(lines[i]), reference;
      std::istringstream numbers(expected[i]);
      for (TokenId id; numbers >> id;) reference.push_back(id);
      ASSERT_EQ(ids, reference) << file << ": " << lines[i];
      // After bos the text starts without a space, so the bytes are those of the normalized line.
      ids.insert(ids.begin(), 1);
      ASSERT_EQ(table.total(ids), with_spaces(clean[i]).size()) << file << ": " << clean[i];
    }
  }
}

TEST_P(GolfModel, DecodesToTheNormalizedText) {
  for (const std::string text : {"Hello, world!", "caf\u00E9 \u4E2D\u6587 \U0001F600", "1234 5678"}) {
    EXPECT_EQ(tokenizer_->decode(tokenizer_->encode(text)), text);
    StreamDecoder stream(*tokenizer_);
    std::string streamed;
    for (const TokenId id : tokenizer_->encode(text)) streamed += stream.push(id);
    EXPECT_EQ(streamed + stream.finish(), text);
  }
}

TEST_P(GolfModel, ControlTokensAreEncodedAsTextUnlessTrusted) {
  const auto ids = tokenizer_->encode("<s>hi</s>");
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 1) + std::count(ids.begin(), ids.end(), 2), 0);
  const auto trusted = tokenizer_->encode("<s>hi</s>", {.trusted = true});
  EXPECT_EQ(trusted.front(), 1);
  EXPECT_EQ(trusted.back(), 2);
}

TEST_P(GolfModel, ByteTableHasTheSizeOfTheModelVocabulary) {
  const TokenId rows = tokenizer_->vocab_size() + 64;
  const ByteTable table(*tokenizer_, rows);
  EXPECT_EQ(table.size(), static_cast<std::size_t>(rows));
  EXPECT_EQ(table.bytes(1, rows - 1), 0u);
  EXPECT_THROW(ByteTable(*tokenizer_, tokenizer_->vocab_size() - 1), Error);
}

TEST_P(GolfModel, CountsASpaceAsOneByteExceptAfterBos) {
  const ByteTable table(*tokenizer_, tokenizer_->vocab_size());
  const TokenId space = tokenizer_->id_of(kSpace).value(), newline = tokenizer_->id_of("<0x0A>").value();
  const TokenId the = tokenizer_->id_of(std::string(kSpace) + "the").value();
  EXPECT_EQ(table.bytes(the, space), 1u);
  EXPECT_EQ(table.bytes(1, space), 0u);
  EXPECT_EQ(table.bytes(space, the), 4u);
  EXPECT_EQ(table.bytes(1, the), 3u);
  EXPECT_EQ(table.bytes(the, newline), 1u);
  EXPECT_EQ(table.bytes(the, 1), 0u);
}

INSTANTIATE_TEST_SUITE_P(Files, GolfModel, testing::ValuesIn(golf_tokenizer_files()),
                         [](const auto& info) { return name_of_file(info.param); });

// Ids of libsentencepiece's own program and texts of spm_normalize, stored by tests/golden/make.py.
class SentencePieceVectors : public testing::TestWithParam<const char*> {};

TEST_P(SentencePieceVectors, MatchExactly) {
  const auto tokenizer = load_tokenizer(golden_path(fmt::format("tokenizers/{}.model", GetParam())));
  const GoldenIds expected(GetParam());
  const auto texts = golden_strings("strings"), invalid = golden_strings("invalid");
  const auto ids = expected.ids("ids"), ids_of_invalid = expected.ids("invalid");
  const auto& normalized = expected.texts("normalized");
  ASSERT_EQ(ids.size(), texts.size());
  ASSERT_EQ(normalized.size(), texts.size());
  ASSERT_EQ(ids_of_invalid.size(), invalid.size());
  const ByteTable table(*tokenizer, tokenizer->vocab_size());
  int compared = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    std::vector<TokenId> ours = tokenizer->encode(texts[i]);
    EXPECT_EQ(ours, ids[i]) << texts[i];
    if (normalized[i].is_null()) continue;
    ++compared;
    const std::string text = with_spaces(normalized[i].as_string());
    ours.insert(ours.begin(), *tokenizer->special().bos);  // after bos, a space counts no byte
    EXPECT_EQ(table.total(ours), text.size() - text.starts_with(' ')) << texts[i];
    EXPECT_EQ(tokenizer->decode(ours), text) << texts[i];
  }
  EXPECT_GT(compared, 70);
  for (std::size_t i = 0; i < invalid.size(); ++i)
    EXPECT_EQ(tokenizer->encode(invalid[i]), ids_of_invalid[i]) << i;
}

INSTANTIATE_TEST_SUITE_P(Golden, SentencePieceVectors, testing::Values("golf_1024", "identity_700"),
                         [](const auto& info) { return std::string(info.param); });

TEST(SentencePiece, TrainsWithTheSettingsOfGolf) {
  const auto tokenizer = load_sentencepiece(trained(some_text(), {.vocab_size = 320}), "trained");
  EXPECT_EQ(tokenizer->special().pad, 0);
  EXPECT_EQ(tokenizer->special().bos, 1);
  EXPECT_EQ(tokenizer->special().eos, 2);
  EXPECT_EQ(tokenizer->special().unk, 3);
  EXPECT_EQ(tokenizer->token_text(4), "<0x00>");
  for (TokenId id = 0; id < tokenizer->vocab_size(); ++id) {
    const std::string text = tokenizer->token_text(id);
    EXPECT_LE(std::count_if(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; }),
              tokenizer->token_type(id) == TokenType::byte ? 4 : 1)
        << text;
  }
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("the bird \u4E2D")), "the bird \u4E2D");
  const ByteTable table(*tokenizer, tokenizer->vocab_size());
  EXPECT_EQ(trained(some_text(), {.vocab_size = 320}), tokenizer->serialized());
}

TEST(SentencePiece, BytesOfATokenAreThoseInsideAText) {
  const auto tokenizer = load_sentencepiece(trained(some_text(), {.vocab_size = 320}), "trained");
  const TokenId the = tokenizer->id_of(std::string(kSpace) + "the").value();
  EXPECT_EQ(tokenizer->decode(std::vector{the}), "the")
      << "the leading space is dropped at the start of a text";
  EXPECT_EQ(bytes_of_token(*tokenizer, the), " the");
  EXPECT_EQ(bytes_of_token(*tokenizer, *tokenizer->special().bos), "<s>");
  EXPECT_EQ(bytes_of_token(*tokenizer, 4 + 0xC3), "\xC3");
}

TEST(SentencePiece, IdentityKeepsSpacesAndLines) {
  const auto tokenizer = load_sentencepiece(
      trained(some_text(),
              {.vocab_size = 330, .normalization = "identity", .control_tokens = {"<user>", "<end_turn>"}}),
      "trained");
  for (const std::string text : {"a  b", "a\n\nb", " lead", "trail ", "\u00BD \uFB01"})
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_EQ(tokenizer->id_of("<user>"), 4);
  EXPECT_EQ(tokenizer->id_of("<end_turn>"), 5);
  EXPECT_EQ(tokenizer->token_type(4), TokenType::control);
  const ByteTable table(*tokenizer, tokenizer->vocab_size());
}

// libsentencepiece terminates the process if the training text contains no space.
TEST(SentencePiece, TrainsOnATextWithoutASpace) {
  for (const std::string text :
       {"a", "hello", "   ", "emma\nolivia\nava\nisabella\n", "\x05 \x05", "\u4F60\u597D"})
    for (const std::string normalization : {"nmt_nfkc", "identity"}) {
      const auto tokenizer =
          load_sentencepiece(trained(text, {.vocab_size = 320, .normalization = normalization}), "trained");
      EXPECT_TRUE(tokenizer->id_of(kSpace)) << text;
      EXPECT_EQ(tokenizer->decode(tokenizer->encode("ha ha")), "ha ha") << text;
    }
}

// libsentencepiece crashes on words of 40,000 characters.
TEST(SentencePiece, TrainsOnWordsOfAnyLength) {
  std::string word, characters;
  for (unsigned i = 0; i < 140'000; ++i) word += static_cast<char>('a' + i * i % 97 % 7);
  for (int i = 0; i < 30'000; ++i) characters += "\u4F60";
  const auto tokenizer = load_sentencepiece(
      trained("one two " + word + " " + characters + "\n", {.vocab_size = 300}), "trained");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("one two")), "one two");
  for (TokenId id = 0; id < tokenizer->vocab_size(); ++id)
    EXPECT_EQ(tokenizer->token_text(id).find("\uFFFD"), std::string::npos) << "a character was cut in two";
}

TEST(SentencePiece, InvalidTrainingOptionsAreErrors) {
  EXPECT_THROW(trained(some_text(), {.vocab_size = 260}), Error);
  EXPECT_THROW(trained("", {.vocab_size = 400}), Error);
}

TEST(SentencePiece, RefusesADamagedModel) {
  const std::string model = trained(some_text(), {.vocab_size = 320});
  for (const std::size_t size : {model.size() / 2, model.size() - 1, std::size_t{10}, std::size_t{1}})
    EXPECT_THROW(load_tokenizer_bytes(model.substr(0, size), "cut.model"), Error) << size;
}

// A model without a token for the space, in raw protocol buffers: the trainer always adds one.
std::string model_without_space() {
  auto field = [](int number, const std::string& bytes) {
    std::string out(1, static_cast<char>(number << 3 | 2));
    out += static_cast<char>(bytes.size());
    return out + bytes;
  };
  auto piece = [&](const std::string& text, char type) {
    const std::string score(4, '\0');
    return field(1, field(1, text) + '\x15' + score + '\x18' + type);
  };
  std::string model = piece("<unk>", 2);
  for (int byte = 0; byte < 256; ++byte) model += piece(fmt::format("<0x{:02X}>", byte), 6);
  model += piece("a", 1);
  return model + field(2, std::string("\x18\x02\x98\x02\x01", 5));  // BPE, byte fallback
}

TEST(ByteTable, RefusesAModelWithoutATokenForTheSpace) {
  const auto tokenizer = load_sentencepiece(model_without_space(), "hand-made");
  EXPECT_EQ(tokenizer->encode("a a").size(), 8u);  // 2 letters, 2 spaces of 3 bytes each
  EXPECT_THROW(ByteTable(*tokenizer, tokenizer->vocab_size()), Error);
}

TEST(ByteTable, CountsExactBytesForBpeAndBytes) {
  const auto tokenizer = load_tokenizer("bytes");
  const ByteTable table(*tokenizer, 300);
  const auto ids = tokenizer->encode("h\u00E9 llo", {.add_special = true});
  EXPECT_EQ(table.total(ids), 7u);
  EXPECT_EQ(table.bytes(0, 299), 0u);
}

}  // namespace thimble::sentencepiece_test
