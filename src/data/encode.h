// Encodes records into tokens on all threads. The result depends only on the records.
//
// Long texts are cut where no token of the vocabulary can cross: before a space between a letter or
// digit and a letter. Some tokenizers treat the start of a text differently, so each later part is
// encoded together with the word before the cut, and the tokens of that word are then removed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "data/document.h"
#include "data/survey.h"
#include "data/text_files.h"
#include "tokenizer/chat_layout.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

struct EncodeLimits {
  std::uint64_t context = 0;   // maximum tokens of a conversation; 0: unlimited
  bool skip_long = false;      // drop longer conversations instead of truncating them
  bool skip_rejected = false;  // drop conversations that the chat template does not accept
};

struct EncodedRecord {
  // Tokens of the record, with bos if a document starts here. Several parts if the text was cut;
  // empty if the record was dropped. Chats in another layout than thimble's have marks (shard.h).
  std::vector<std::vector<TokenId>> parts;
  std::uint64_t bytes = 0;  // length of the text that was encoded
  bool too_long = false;    // conversation was dropped
  bool truncated = false;   // conversation was truncated
  bool rejected = false;    // conversation was dropped: the chat template does not accept it

  std::uint64_t tokens() const;
};

// Adds the marks of data/shard.h to the ids.
void add_marks(LearnedConversation& chat);

class BatchEncoder {
 public:
  // Throws if the tokenizer has no bos, or for chats lacks tokens of the layout.
  BatchEncoder(const Tokenizer& tokenizer, ReadOptions read, EncodeLimits limits);

  // Encodes the records with selected[i] set and moves their texts out.
  std::vector<EncodedRecord> encode(std::span<MixedRecord> records, const std::vector<bool>& selected) const;

 private:
  struct Unit;
  std::vector<Unit> cut_into_units(std::span<const MixedRecord> records,
                                   std::span<const Document> documents) const;
  void encode_text(const Unit& unit, std::vector<TokenId>& ids, std::uint64_t& bytes) const;
  void encode_chat(const Document& document, const Record& record, EncodedRecord& out) const;

  const Tokenizer& tokenizer_;
  ReadOptions read_;
  EncodeLimits limits_;
  TokenId bos_ = -1;                  // of texts
  std::optional<ChatLayout> layout_;  // of chats
  ByteTable byte_table_;
  bool cuttable_;
};

// For commands that encode text outside a data set.

class Interrupt;

// A longer line is an error: encoding a line takes several times its size in memory.
inline constexpr std::size_t kMaxLineBytes = 256 << 20;

// Calls use(line) for each line, without its line end. The last line may lack one.
void for_each_line(ByteStream& stream, const std::function<void(std::string_view)>& use);

// Calls use(ids) for each line of the text, in order. Lines are encoded in parallel.
void encode_lines(const Tokenizer& tokenizer, ByteStream& text, EncodeOptions options,
                  const std::function<void(const std::vector<TokenId>&)>& use,
                  const Interrupt* interrupt = nullptr);

// Parses ids separated by spaces or commas; brackets are ignored. Errors contain the invalid word.
std::vector<TokenId> parse_ids(std::string_view line, const Tokenizer& tokenizer);
std::string format_ids(const std::vector<TokenId>& ids);

struct TextMeasure {
  std::uint64_t bytes = 0, tokens = 0, documents = 0;

  double bytes_per_token() const {
    return tokens == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(tokens);
  }
};

TextMeasure measure_text(const Tokenizer& tokenizer, TextSource& source, const ProgressOutput& progress,
                         const Interrupt* interrupt = nullptr);

}  // namespace thimble
