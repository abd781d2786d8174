// Arbitrary tokenizer.json files and arbitrary text.
//
// Input that starts with '{' is a file: it must fail with an Error, or encode and decode without a
// crash. Other input is text that our own tokenizers must encode and decode without loss.
#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/utf8.h"
#include "targets.h"
#include "tokenizer/bpe_train.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/tokenizer.h"

namespace thimble {
namespace {

std::unique_ptr<Tokenizer> trained(Pattern pattern) {
  WordCounts words;
  const std::string_view text =
      "the cat's hat and the cats' mats: \xC3\xA9t\xC3\xA9, 1234 \xE4\xB8\xAD\xE6\x96\x87 the the";
  for_each_word(pattern, text, [&](std::string_view word) { words.add(word); });
  return make_bpe_tokenizer(learn_merges(words, {.vocab_size = 290, .min_frequency = 1, .pattern = pattern},
                                         ProgressOutput::nowhere()));
}

void try_text(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<TokenId> ids = tokenizer.encode(text);
  require(tokenizer.decode(ids) == text, "decoding returns the text");
  StreamDecoder stream(tokenizer);
  std::string shown;
  for (const TokenId id : ids) {
    require(id > 0, "text is never encoded as the special token");
    shown += stream.push(id);
  }
  shown += stream.finish();
  for (const char* p = shown.data(); p < shown.data() + shown.size();) {
    const Utf8Char c = decode_utf8(p, shown.data() + shown.size());
    require(c.valid, "streamed text is UTF-8");
    p += c.bytes;
  }
}

void try_tokenizer_json(std::string_view content) {
  try {
    const auto tokenizer = load_tokenizer_bytes(std::string(content), "fuzz");
    const auto ids = tokenizer->encode("ab 12\xC3\xA9\xFF<s>\n", {.trusted = true, .add_special = true});
    tokenizer->decode(ids, {.keep_special = true});
    load_tokenizer_bytes(tokenizer->serialized(), "again");
  } catch (const Error&) {
  }
}

}  // namespace

void fuzz_tokenizer(FuzzBytes bytes) {
  const std::string_view input = text_of(bytes);
  if (input.starts_with('{')) return try_tokenizer_json(input);
  static const auto tokenizers = [] {
    std::vector<std::unique_ptr<Tokenizer>> all;
    for (const Pattern pattern : {Pattern::gpt2, Pattern::llama3, Pattern::qwen2, Pattern::o200k})
      all.push_back(trained(pattern));
    all.push_back(load_tokenizer("bytes"));
    return all;
  }();
  for (const auto& tokenizer : tokenizers) try_text(*tokenizer, input);
}

}  // namespace thimble
