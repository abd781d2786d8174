// Multiple choice, as HellaSwag asks: which of several endings does a model find likeliest?
//
// Each line of the file is a question: a context, endings, and which is right. Each ending is scored behind the
// context and a space, with bos before it where the tokenizer puts one before a text, as in lm-evaluation-harness and
// llama.cpp. acc takes the ending with the largest sum of log probabilities; acc_norm divides each sum by the ending's
// length in characters first. Of equal ones the first counts.
//
// Prompts are taken as they are: no "Question: ... Answer:" is put around them. Only HellaSwag's own file, known by its
// activity_label, ctx_a and ctx_b, is cleaned as lm-evaluation-harness does: "activity_label: ctx_a Ctx_b", " [title]"
// as ". ", without what else stands in brackets, each two blanks as one. Blanks around contexts and endings never count.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/progress.h"
#include "base/signals.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

struct ChoiceQuestion {
  std::string context;
  std::vector<std::string> endings;  // at least two
  std::size_t right = 0;
  std::string where = "a question";  // for messages: "file.jsonl:3"
};

// One question out of its JSON; `where` starts every error ("file.jsonl:3"). The names it may go by:
//
//   context   HellaSwag's activity_label, ctx_a and ctx_b; else ctx, context, question (or its stem), query, prompt,
//             goal, question_stem; else ctx_a and ctx_b
//   endings   endings, choices, options, the question's choices: texts; or ARC's {"text": [..], "label": [..]} or
//             [{"text": "..", "label": "A"}, ..]; or sol1, sol2, ...
//   label     label, gold, answer, answerKey: a number from 0, also as text, or a letter from A, or one of ARC's labels
ChoiceQuestion choice_question(const Json& json, std::string_view where);

// All of a file of JSON lines (or a JSON array), at most `limit` (0: all). A line that is no question is an error that
// names it.
std::vector<ChoiceQuestion> read_choice_questions(const std::filesystem::path& path, std::uint64_t limit);

struct ChoiceScore {
  std::int64_t total = 0;
  std::int64_t right = 0, right_normalised = 0;
  std::int64_t cut = 0;  // endings
  double chance = 0;     // what guessing gives

  double accuracy() const { return rate(right); }
  double normalised_accuracy() const { return rate(right_normalised); }
  static double standard_error(double rate, std::int64_t total);

 private:
  double rate(std::int64_t count) const {
    return total > 0 ? static_cast<double>(count) / static_cast<double>(total) : 0;
  }
};

struct EndingScore {
  double nats = 0;              // of its tokens, behind the context
  std::int64_t characters = 0;  // what acc_norm divides them by
  bool cut = false;             // the context lost its beginning, so that both fit the model's
};

// Of every question its endings.
std::vector<std::vector<EndingScore>> score_endings(Model& model, const Tokenizer& tokenizer,
                                                    std::span<const ChoiceQuestion> questions,
                                                    const ProgressOutput& progress,
                                                    const Interrupt* interrupt = nullptr);

// The ending that is taken: the least nats, or the least per character.
std::size_t chosen(std::span<const EndingScore> endings, bool normalised);

ChoiceScore score_choices(Model& model, const Tokenizer& tokenizer, std::span<const ChoiceQuestion> questions,
                          const ProgressOutput& progress, const Interrupt* interrupt = nullptr);

}  // namespace thimble
