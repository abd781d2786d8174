// Exact answers: counts the conversations whose last answer the model reproduces exactly.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/signals.h"
#include "data/document.h"
#include "model/model.h"
#include "tokenizer/chat_layout.h"

namespace thimble {

struct ExactOptions {
  std::int64_t slots = 32;     // conversations in one batch
  std::size_t keep_first = 0;  // number of answers to return in `first`
  std::size_t keep_wrong = 5;  // number of wrong answers to return in `wrong`
};

struct Answered {
  Conversation conversation;  // including the expected answer
  std::string found;          // the model's answer
  bool right = false;
};

struct ExactScore {
  std::int64_t right = 0, total = 0;
  std::int64_t too_long = 0;           // wrong because the prompt fills the context
  std::vector<Answered> first, wrong;  // limited by keep_first and keep_wrong

  double rate() const { return total > 0 ? static_cast<double>(right) / static_cast<double>(total) : 0; }
};

// Each conversation must end with an assistant turn, the expected answer; the prompt is everything
// before it. Answers are generated greedily and compared without trailing whitespace. Throws Error
// if there are no conversations.
ExactScore score_answers(Model& model, const ChatLayout& layout, std::span<const Conversation> conversations,
                         const ExactOptions& options, const ProgressOutput& progress,
                         const Interrupt* interrupt = nullptr);

}  // namespace thimble
