// Whole files through a tokenizer: what the commands do.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "tokenizer/byte_stream.h"
#include "tokenizer/text_source.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

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
