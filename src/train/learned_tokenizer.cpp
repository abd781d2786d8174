#include "train/learned_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/files.h"
#include "base/number.h"
#include "base/parallel.h"
#include "base/temporary_folder.h"
#include "data/document.h"
#include "data/records.h"
#include "tokenizer/bpe_train.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/text_source.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBufferBytes = 1 << 20;
constexpr std::string_view kEndOfText = "<|endoftext|>\n";

// The contents of JSON records, as a text file that is gone when this goes.
class ContentsFile {
 public:
  ContentsFile(const DataSource& source, DataKind kind, const Interrupt& interrupt)
      : path_(folder_.path() / "contents.txt") {
    AtomicFile file(ops_, path_, Existing::replace);
    RecordReader reader(source, DocumentSplit::end_of_text, kind == DataKind::chat);
    std::string buffer;
    const auto flush = [&] {
      file.write(buffer);
      buffer.clear();
    };
    while (auto record = reader.next()) {
      interrupt.throw_if_asked();
      const Document document = read_document(*record, {.kind = kind});
      check(document.problem.empty(), Hint{document.hint}, "{}", document.problem);
      buffer += document.text;
      for (const Turn& turn : document.turns) buffer += turn.content + "\n";
      if (record->ends) buffer += kEndOfText;
      if (buffer.size() > kBufferBytes) flush();
    }
    flush();
    file.commit();
  }

  const fs::path& path() const { return path_; }

 private:
  PosixFileOps ops_;
  TemporaryFolder folder_;
  fs::path path_;
};

std::unique_ptr<Tokenizer> learn(const TokenizerWish& wish, bool chat, TextSource& source,
                                 const ProgressOutput& progress, const Interrupt& interrupt) {
  std::vector<std::string> special = special_tokens_for(chat);
  if (wish.kind == TokenizerKind::bpe)
    return make_bpe_tokenizer(
        train_bpe(source, {.vocab_size = wish.vocab_size, .special_tokens = special}, progress, &interrupt)
            .spec);
  special.erase(special.begin());  // it has a bos of its own
  const SentencePieceOptions options{.vocab_size = wish.vocab_size,
                                     .normalization = chat ? "identity" : "nmt_nfkc",
                                     .control_tokens = special,
                                     .threads = max_threads()};
  return load_sentencepiece(train_sentencepiece(source, options, &interrupt), "the trained model");
}

}  // namespace

std::optional<TokenizerWish> TokenizerWish::parse(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const std::string_view kind = text.substr(0, colon), size = text.substr(colon + 1);
  if (kind != "bpe" && kind != "sentencepiece") return std::nullopt;
  constexpr TokenId kMaxVocabulary = 1 << 22;
  const auto vocab_size = number_in<TokenId>(size);
  check(vocab_size && *vocab_size > 0 && *vocab_size <= kMaxVocabulary,
        "--tokenizer {}:N takes a number of tokens, found '{}'", kind, size);
  return TokenizerWish{kind == "bpe" ? TokenizerKind::bpe : TokenizerKind::sentencepiece, *vocab_size};
}

std::unique_ptr<Tokenizer> learn_tokenizer(const TokenizerWish& wish, const DataSettings& data,
                                           const ProgressOutput& progress, const Interrupt& interrupt) {
  const bool chat = data.kind == DataKind::chat;
  const DataSource source = find_source(data.data.string());
  const bool plain = std::ranges::all_of(
      source.files, [&](const fs::path& file) { return form_of(file, chat) == FileForm::text; });
  if (plain) {
    TextSource text(source.files, {});
    return learn(wish, chat, text, progress, interrupt);
  }
  const ContentsFile contents(source, data.kind, interrupt);
  TextSource text({contents.path()}, {});
  return learn(wish, chat, text, progress, interrupt);
}

}  // namespace thimble
