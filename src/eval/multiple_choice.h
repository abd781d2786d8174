// Multiple-choice tasks such as HellaSwag: which of several endings does the model consider most
// likely?
//
// Each line of the file is a question: a context, endings, and the index of the right ending. An
// ending is scored after the context and a space, with a leading bos if the tokenizer adds one, as
// in lm-evaluation-harness and llama.cpp. acc chooses the ending with the largest sum of log
// probabilities; acc_norm first divides each sum by the ending's length in characters. If n endings
// tie and the right one is among them, the question counts as 1/n right.
//
// Prompts are not wrapped in "Question: ... Answer:". Only HellaSwag's original file, recognized by
// activity_label, ctx_a and ctx_b, is preprocessed as in lm-evaluation-harness: the context is
// "activity_label: ctx_a Ctx_b", " [title]" becomes ". ", other bracketed text is removed, and
// double spaces become single ones. Whitespace around contexts and endings is always removed.
//
// BLiMP's pairs (sentence_good, sentence_bad) are questions without a context: which sentence is
// more likely? They are also counted by phenomenon (UID).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
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
  std::string group = {};            // counted separately, too; empty: none
  std::string where = "a question";  // for error messages: "file.jsonl:3"
};

// Parses a question from JSON; `where` starts every error message ("file.jsonl:3"). Accepted
// fields:
//
//   context   HellaSwag's activity_label, ctx_a and ctx_b; else ctx, context, question (or its
//             stem), query, prompt, goal, question_stem; else ctx_a and ctx_b
//   endings   endings, choices, options or question.choices: a list of texts, or ARC's forms
//             {"text": [..], "label": [..]} and [{"text": "..", "label": "A"}, ..]; or sol1, sol2,
//             ...
//   label     label, gold, answer, answerKey: a number from 0 (or its text), a letter from A, or
//             one of ARC's labels
//   group     with sentence_good and sentence_bad instead of all these: UID
ChoiceQuestion choice_question(const Json& json, std::string_view where);

// Reads a file of JSON lines (or a JSON array), at most `limit` questions (0: all). Throws an Error
// that names the line if it is not a question.
std::vector<ChoiceQuestion> read_choice_questions(const std::filesystem::path& path, std::uint64_t limit);

struct ChoiceScore {
  std::int64_t total = 0;
  double right = 0, right_normalized = 0;
  std::int64_t cut = 0;                                         // endings scored with a truncated context
  double chance = 0;                                            // expected accuracy of guessing
  std::map<std::string, ChoiceScore, std::less<>> groups = {};  // by ChoiceQuestion::group

  double accuracy() const { return rate(right); }
  double normalized_accuracy() const { return rate(right_normalized); }
  static double standard_error(double rate, std::int64_t total);

 private:
  double rate(double count) const { return total > 0 ? count / static_cast<double>(total) : 0; }
};

struct EndingScore {
  double nats = 0;              // of the ending's tokens, given the context
  std::int64_t characters = 0;  // divisor of acc_norm
  bool cut = false;             // the start of the context was removed to fit into the model's context
};

// The scores of every question's endings.
std::vector<std::vector<EndingScore>> score_endings(Model& model, const Tokenizer& tokenizer,
                                                    std::span<const ChoiceQuestion> questions,
                                                    const ProgressOutput& progress,
                                                    const Interrupt* interrupt = nullptr);

// The credit for a question: 1 if the ending at index `right` has the fewest nats, or with
// `normalized` the fewest nats per character; 1/n if it ties with others; otherwise 0.
double credit(std::span<const EndingScore> endings, std::size_t right, bool normalized);

ChoiceScore score_choices(Model& model, const Tokenizer& tokenizer, std::span<const ChoiceQuestion> questions,
                          const ProgressOutput& progress, const Interrupt* interrupt = nullptr);

}  // namespace thimble
