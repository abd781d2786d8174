// What a run is about to learn from, said before it starts.
#pragma once

#include <cstdint>
#include <string>

namespace thimble {

struct DataFacts {
  std::uint64_t documents = 0;      // 0: not known
  std::uint64_t tokens = 0;         // of the training split
  std::uint64_t bytes = 0;          // of the text they stand for; 0: not known
  std::uint64_t tokens_to_see = 0;  // steps * batch_tokens; 0: the time decides
  std::uint64_t parameters = 0;

  double epochs() const;
  double tokens_per_parameter() const;
};

// One table: documents, tokens, bytes per token, tokens to be seen, parameters, tokens per parameter, epochs.
std::string data_table(const DataFacts& facts);

// Below 10 different tokens per parameter: a sentence on what is short and what to do. Else empty.
std::string data_warning(const DataFacts& facts);

}  // namespace thimble
