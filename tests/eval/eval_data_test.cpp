// Opening evaluation data.
#include "eval/eval_data.h"

#include <algorithm>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "tokenizer/bpe_model.h"
#include "tokenizer/bpe_train.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble {
namespace {

std::unique_ptr<Tokenizer> small_bpe(const TempFolder& folder) {
  TextSource source({folder.write("words.txt", "aa aaa the cat sat on the mat, the cat sat on the hat\n")},
                    {});
  return load_tokenizer_bytes(
      write_tokenizer_json(train_bpe(source, {.vocab_size = 270}, ProgressOutput::nowhere()).spec), "bpe");
}

std::vector<std::int32_t> tokens_in(const std::filesystem::path& file, const Tokenizer& tokenizer) {
  const TokenSet set = open_eval_set(file, tokenizer, ProgressOutput::nowhere());
  std::vector<std::int32_t> tokens(set.size());
  set.copy(0, tokens);
  return tokens;
}

TEST(EvalData, EveryDocumentStartsWithABos) {
  const TempFolder folder;
  const auto tokenizer = small_bpe(folder);
  const std::string documents[] = {"the cat", " sat on a mat\n"};
  std::vector<std::int32_t> expected;
  for (const std::string& document : documents) {
    expected.push_back(*tokenizer->special().bos);
    tokenizer->encode(document, expected);
  }
  EXPECT_EQ(tokens_in(folder.write("a.txt", "the cat<|endoftext|> sat on a mat\n"), *tokenizer), expected);
  EXPECT_EQ(tokens_in(folder.write("a.jsonl",
                                   "{\"text\": \"the cat\"}\n{\"text\": \" sat on a mat\\n\"}\n"
                                   "{\"text\": \"\"}\n"),
                      *tokenizer),
            expected);
}

TEST(EvalData, WordsMayHaveAnyLength) {
  const TempFolder folder;
  const auto tokenizer = small_bpe(folder);
  const std::string text = "the cat " + std::string(BpeModel::kMaxWordBytes + 1, 'a') + " sat";
  const std::vector<std::int32_t> tokens = tokens_in(folder.write("a.txt", text), *tokenizer);
  EXPECT_EQ(tokens[0], *tokenizer->special().bos);
  EXPECT_EQ(std::ranges::count(tokens, tokens[0]), 1);
  EXPECT_TRUE(tokenizer->decode(std::span(tokens).subspan(1)) == text);
}

TEST(EvalData, ABadRecordIsAnError) {
  const TempFolder folder;
  const auto file = folder.write("a.jsonl", "{\"text\": \"the cat\"}\n{\"text\": 3}\n");
  const std::string message = message_of([&] { tokens_in(file, *load_tokenizer("bytes")); });
  EXPECT_EQ(message, file.string() + ":2: expected \"text\" to be a string");
}

}  // namespace
}  // namespace thimble
