// Exact answers: of how many conversations does a model give the last answer, to the letter?
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
  std::int64_t slots = 32;     // conversations computed together
  std::size_t keep_first = 0;  // answers to be shown, right or wrong
  std::size_t keep_wrong = 5;  // and wrong ones
};

struct Answered {
  Conversation conversation;  // with the answer that was expected
  std::string found;
  bool right = false;
};

struct ExactScore {
  std::int64_t right = 0, total = 0;
  std::int64_t too_long = 0;           // of the wrong ones: the prompt leaves no room in the context
  std::vector<Answered> first, wrong;  // as many as were asked for

  double rate() const { return total > 0 ? static_cast<double>(right) / static_cast<double>(total) : 0; }
};

// Each conversation ends with the assistant's turn, which is expected; the prompt is all before it. Answers
// are greedy and compared without the blanks at their ends. None at all is an error.
ExactScore score_answers(Model& model, const ChatLayout& layout, std::span<const Conversation> conversations,
                         const ExactOptions& options, const ProgressOutput& progress,
                         const Interrupt* interrupt = nullptr);

}  // namespace thimble
