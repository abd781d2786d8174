// Records to tokens, by all threads. What comes out depends on the records alone.
//
// Long texts are cut where no token can reach across: before a space between a letter or digit and a letter,
// with the word before the cut encoded once more and taken off again, because some tokenizers treat the start
// of a text in a special way.
#pragma once

#include <cstdint>
#include <functional>
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
  std::uint64_t context = 0;  // tokens of a conversation; 0: any number
  bool skip_long = false;     // longer ones are left out; else cut to `context`
};

struct EncodedRecord {
  // Of the record, with bos where its document starts; in several parts where it was cut. Empty: left out.
  std::vector<std::vector<TokenId>> parts;
  std::uint64_t bytes = 0;  // of the text that the tokens stand for (DESIGN 8.4)
  bool too_long = false;    // a conversation that was left out
  bool truncated = false;   // a conversation that was cut

  std::uint64_t tokens() const;
};

class BatchEncoder {
 public:
  // A tokenizer without bos, or without role tokens where chats are encoded, is an error.
  BatchEncoder(const Tokenizer& tokenizer, ReadOptions read, EncodeLimits limits);

  // Those records for which wanted[i] is set; their texts are taken away.
  std::vector<EncodedRecord> encode(std::span<MixedRecord> records, const std::vector<bool>& wanted) const;

 private:
  struct Unit;
  std::vector<Unit> cut_into_units(std::span<const MixedRecord> records,
                                   std::span<const Document> documents) const;
  void encode_text(const Unit& unit, std::vector<TokenId>& ids, std::uint64_t& bytes) const;
  void encode_chat(const Document& document, EncodedRecord& out) const;

  const Tokenizer& tokenizer_;
  ReadOptions read_;
  EncodeLimits limits_;
  TokenId bos_;
  ByteTable byte_table_;
  bool cuttable_;
};

// Whole files through a tokenizer: what the commands do.

class Interrupt;

// A longer line is an error: it would have to fit in memory several times.
inline constexpr std::size_t kMaxLineBytes = 256 << 20;

// use(line) for each line without its line end; the last one may lack it.
void for_each_line(ByteStream& stream, const std::function<void(std::string_view)>& use);

// use(ids) for each line of the text, in order; lines are encoded in parallel.
void encode_lines(const Tokenizer& tokenizer, ByteStream& text, EncodeOptions options,
                  const std::function<void(const std::vector<TokenId>&)>& use,
                  const Interrupt* interrupt = nullptr);

// Ids separated by spaces or commas. Errors say which number is wrong.
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
