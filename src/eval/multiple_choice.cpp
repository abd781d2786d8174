#include "eval/multiple_choice.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <ranges>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data/data_folder.h"
#include "data/records.h"
#include "eval/score.h"

namespace thimble {

namespace {

// Turns questions into windows and collects the nats of each ending.
class ChoiceScorer {
 public:
  ChoiceScorer(Model& model, const Tokenizer& tokenizer, const ProgressOutput& progress,
               std::size_t questions)
      : tokenizer_(tokenizer),
        adds_bos_(tokenizer.adds_bos()),
        context_(static_cast<std::size_t>(model.config().context)),
        bar_(progress, "choosing", "questions", questions),
        scorer_(model, model.config().context, 0,
                [this](const Window& window, std::span<const float> nats) { gather(window, nats); }) {}

  void add(const ChoiceQuestion& question) {
    check(question.endings.size() >= 2 && question.right < question.endings.size(),
          "[multiple choice] expected two or more endings and a valid index, found {} endings and index {}",
          question.endings.size(), question.right);
    scores_.emplace_back();
    const std::string_view before = trim(question.context);
    // Without a context, the first token of an ending needs at least a bos before it.
    const bool bos = adds_bos_ || before.empty();
    const std::vector<TokenId> prompt = tokens_of(before, bos);
    for (const std::string& text : question.endings) {
      const std::string_view ending = trim(text);
      const std::string_view space = before.empty() ? "" : " ";
      scores_.back().push_back({.characters = static_cast<std::int64_t>(character_count(ending))});
      if (!add_ending(tokens_of(fmt::format("{}{}{}", before, space, ending), bos), prompt))
        fail("{}: the tokenizer encodes ending {} as no tokens", question.where, scores_.back().size() - 1);
    }
  }

  std::vector<std::vector<EndingScore>> finish() {
    scorer_.finish();
    return std::move(scores_);
  }

 private:
  std::vector<TokenId> tokens_of(std::string_view text, bool with_bos) const {
    std::vector<TokenId> tokens;
    if (const auto bos = tokenizer_.special().bos; bos && with_bos) tokens.push_back(*bos);
    tokenizer_.encode(text, tokens);
    return tokens;
  }

  // Scores the tokens after their common prefix with the prompt. If the ending changes the tokens
  // of the prompt's last word, these are scored too. Returns false if there are no tokens to score.
  bool add_ending(std::vector<TokenId> tokens, std::span<const TokenId> prompt) {
    auto common = static_cast<std::size_t>(std::ranges::mismatch(tokens, prompt).in1 - tokens.begin());
    common = std::max<std::size_t>(common, 1);  // the first token cannot be predicted
    if (common >= tokens.size()) return false;
    if (tokens.size() > context_ + 1) {
      const std::size_t cut = tokens.size() - context_ - 1;
      tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(cut));
      common = std::max<std::size_t>(common > cut ? common - cut : 1, 1);
      scores_.back().back().cut = true;
    }
    Window window{{tokens.begin(), tokens.end() - 1}, {tokens.begin() + 1, tokens.end()}, places_.size()};
    places_.push_back({scores_.size() - 1, scores_.back().size() - 1});
    std::fill_n(window.target.begin(), common - 1, -1);
    scorer_.add(std::move(window));
    return true;
  }

  void gather(const Window& window, std::span<const float> nats) {
    const Place place = places_[window.tag];
    EndingScore& score = scores_[place.question][place.ending];
    for (std::size_t i = 0; i < nats.size(); ++i)
      if (window.target[i] >= 0) score.nats += nats[i];
    check_finite(Score{.nats = score.nats});
    bar_.update(place.question + 1);
  }

  struct Place {
    std::size_t question, ending;
  };

  const Tokenizer& tokenizer_;
  bool adds_bos_;
  std::size_t context_;
  std::vector<std::vector<EndingScore>> scores_;
  std::vector<Place> places_;  // by window tag
  ProgressBar bar_;
  WindowScorer scorer_;
};

}  // namespace

double ChoiceScore::standard_error(double rate, std::int64_t total) {
  return total > 1 ? std::sqrt(rate * (1 - rate) / static_cast<double>(total - 1)) : 0;
}

double credit(std::span<const EndingScore> endings, std::size_t right, bool normalized) {
  const auto cost = [&](const EndingScore& ending) {
    return normalized ? ending.nats / static_cast<double>(std::max<std::int64_t>(ending.characters, 1))
                      : ending.nats;
  };
  const double least = std::ranges::min(endings | std::views::transform(cost));
  if (cost(endings[right]) > least) return 0;
  const auto tied = std::ranges::count_if(endings, [&](const EndingScore& e) { return cost(e) == least; });
  return 1.0 / static_cast<double>(tied);
}

std::vector<std::vector<EndingScore>> score_endings(Model& model, const Tokenizer& tokenizer,
                                                    std::span<const ChoiceQuestion> questions,
                                                    const ProgressOutput& progress,
                                                    const Interrupt* interrupt) {
  ChoiceScorer scorer(model, tokenizer, progress, questions.size());
  for (const ChoiceQuestion& question : questions) {
    if (interrupt) interrupt->throw_if_interrupted();
    scorer.add(question);
  }
  return scorer.finish();
}

ChoiceScore score_choices(Model& model, const Tokenizer& tokenizer, std::span<const ChoiceQuestion> questions,
                          const ProgressOutput& progress, const Interrupt* interrupt) {
  check(!questions.empty(), "there are no questions to score");
  const auto scores = score_endings(model, tokenizer, questions, progress, interrupt);
  ChoiceScore result;
  const auto count = [](ChoiceScore& score, const ChoiceQuestion& question,
                        std::span<const EndingScore> endings) {
    score.right += credit(endings, question.right, false);
    score.right_normalized += credit(endings, question.right, true);
    score.cut += std::ranges::count_if(endings, &EndingScore::cut);
    score.chance += 1.0 / static_cast<double>(endings.size());
    ++score.total;
  };
  for (std::size_t i = 0; i < questions.size(); ++i) {
    count(result, questions[i], scores[i]);
    if (!questions[i].group.empty()) count(result.groups[questions[i].group], questions[i], scores[i]);
  }
  result.chance /= static_cast<double>(result.total);
  for (auto& [name, group] : result.groups) group.chance /= static_cast<double>(group.total);
  return result;
}

namespace {

constexpr std::array<std::string_view, 7> kContextNames = {"ctx",    "context", "question",     "query",
                                                           "prompt", "goal",    "question_stem"};
constexpr std::array<std::string_view, 3> kEndingsNames = {"endings", "choices", "options"};
constexpr std::array<std::string_view, 4> kLabelNames = {"label", "gold", "answer", "answerKey"};

Hint expected() {
  return {R"(write one question per line: {"ctx": "A man sits", "endings": ["down.", "up."], "label": 0})"};
}

const Json* first_of(const Json& json, std::span<const std::string_view> names) {
  for (std::string_view name : names)
    if (const Json* found = json.find(name)) return found;
  return nullptr;
}

std::string text_of(const Json& json, std::string_view what, std::string_view where) {
  check(json.is_string(), expected(), "{}: the {} is not a string", where, what);
  return json.as_string();
}

bool is_hellaswag(const Json& json) {
  return json.find("activity_label") && json.find("ctx_a") && json.find("ctx_b");
}

// Like Python's str.capitalize(), but only for ASCII letters.
std::string capitalized(std::string_view text) {
  std::string lower = lower_case(text);
  if (!lower.empty() && lower[0] >= 'a' && lower[0] <= 'z')
    lower[0] = static_cast<char>(lower[0] - 'a' + 'A');
  return lower;
}

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  for (std::size_t at = 0; (at = text.find(what, at)) != text.npos; at += by.size())
    text.replace(at, what.size(), by);
  return text;
}

// preprocess() of lm-evaluation-harness: removes bracketed markup, an artifact of the WikiHow
// source.
std::string without_marks(std::string_view text) {
  std::string clean = replaced(std::string(trim(text)), " [title]", ". ");
  for (std::size_t open = 0; (open = clean.find('[', open)) != clean.npos;) {
    const std::size_t close = clean.find_first_of("]\n", open);
    if (close != clean.npos && clean[close] == ']')
      clean.erase(open, close - open + 1);
    else
      ++open;
  }
  return replaced(std::move(clean), "  ", " ");
}

// In ARC's own files the question is {"stem": "..", "choices": [{"text": "..", "label": "A"}, ..]}.
const Json* inside_question(const Json& json, std::string_view name) {
  const Json* question = json.find("question");
  return question && question->is_object() ? question->find(name) : nullptr;
}

std::string context_of(const Json& json, std::string_view where) {
  if (is_hellaswag(json)) {
    const auto part = [&](std::string_view name) { return text_of(json.at(name), name, where); };
    return without_marks(
        fmt::format("{}: {} {}", part("activity_label"), part("ctx_a"), capitalized(part("ctx_b"))));
  }
  if (const Json* stem = inside_question(json, "stem")) return text_of(*stem, "stem", where);
  if (const Json* context = first_of(json, kContextNames)) return text_of(*context, "context", where);
  const Json* a = json.find("ctx_a");
  check(a != nullptr, expected(),
        "{}: no context found, expected ctx, context, question, query, prompt or goal", where);
  std::string context = text_of(*a, "ctx_a", where);
  const Json* b = json.find("ctx_b");
  const std::string second = b ? text_of(*b, "ctx_b", where) : "";
  if (!second.empty()) context += " " + second;
  return context;
}

std::vector<std::string> texts_of(const Json& json, std::string_view what, std::string_view where) {
  check(json.is_array(), expected(), "{}: the {} are not a list", where, what);
  std::vector<std::string> texts;
  for (const Json& item : json.as_array()) texts.push_back(text_of(item, what, where));
  return texts;
}

// The endings and their labels, if they have any.
struct Endings {
  std::vector<std::string> texts, labels = {};
};

Endings named_endings(const Json& list, std::string_view where) {
  Endings endings;
  for (const Json& item : list.as_array()) {
    const Json *text = item.find("text"), *label = item.find("label");
    check(text && label, expected(), "{}: ending {} lacks text or label", where, endings.texts.size());
    endings.texts.push_back(text_of(*text, "ending", where));
    endings.labels.push_back(text_of(*label, "label", where));
  }
  return endings;
}

Endings endings_of(const Json& json, std::string_view where) {
  Endings endings;
  const Json* list = first_of(json, kEndingsNames);
  if (!list) list = inside_question(json, "choices");
  if (list) {
    if (list->is_array() && list->size() > 0 && list->as_array().front().is_object())
      return named_endings(*list, where);
    if (!list->is_object()) return {texts_of(*list, "endings", where)};
    check(list->find("text") != nullptr, expected(), "{}: the endings have no text", where);
    endings.texts = texts_of(list->at("text"), "endings", where);
    if (const Json* labels = list->find("label")) {
      endings.labels = texts_of(*labels, "labels", where);
      check(endings.labels.size() == endings.texts.size(), expected(), "{}: found {} labels for {} endings",
            where, endings.labels.size(), endings.texts.size());
    }
    return endings;
  }
  for (int i = 1; const Json* solution = json.find(fmt::format("sol{}", i)); ++i)
    endings.texts.push_back(text_of(*solution, "ending", where));
  check(!endings.texts.empty(), expected(), "{}: no endings found, expected endings, choices or options",
        where);
  return endings;
}

// The index of the ending that a label refers to; nullopt if the label is not valid.
std::optional<std::uint64_t> index_of(const Json& label, const Endings& endings) {
  if (label.is_uint()) return label.as_uint();
  if (!label.is_string()) return std::nullopt;
  const std::string& text = label.as_string();
  const auto named = std::ranges::find(endings.labels, text);
  if (named != endings.labels.end()) return static_cast<std::uint64_t>(named - endings.labels.begin());
  if (text.size() == 1 && text[0] >= 'A' && text[0] <= 'Z') return static_cast<std::uint64_t>(text[0] - 'A');
  return parse_number<std::uint64_t>(text);
}

Json json_of(const Record& record, const std::string& name) {
  try {
    return parse_json(record.raw, name, {.first_line = record.line});
  } catch (const Error& error) {
    fail(expected(), "{}", error.what());
  }
}

}  // namespace

ChoiceQuestion choice_question(const Json& json, std::string_view where) {
  check(json.is_object(), expected(), "{}: expected a question as a JSON object", where);
  if (const Json* good = json.find("sentence_good")) {
    const Json* bad = json.find("sentence_bad");
    check(bad != nullptr, "{}: found sentence_good without sentence_bad", where);
    const Json* group = json.find("UID");
    return {.context = {},
            .endings = {text_of(*good, "sentence_good", where), text_of(*bad, "sentence_bad", where)},
            .right = 0,
            .group = group ? text_of(*group, "UID", where) : "",
            .where = std::string(where)};
  }
  ChoiceQuestion question{
      .context = context_of(json, where), .endings = {}, .group = {}, .where = std::string(where)};
  Endings endings = endings_of(json, where);
  if (is_hellaswag(json))
    for (std::string& text : endings.texts) text = without_marks(text);
  check(endings.texts.size() >= 2, expected(), "{}: expected at least two endings, found {}", where,
        endings.texts.size());
  for (std::size_t i = 0; i < endings.texts.size(); ++i)
    check(!trim(endings.texts[i]).empty(), "{}: ending {} is empty", where, i);
  const Json* label = first_of(json, kLabelNames);
  check(label != nullptr, expected(), "{}: no label found, expected label, gold, answer or answerKey", where);
  const auto right = index_of(*label, endings);
  check(right && *right < endings.texts.size(), "{}: label {} is none of the {} endings, counted from 0",
        where, label->dump(), endings.texts.size());
  question.right = static_cast<std::size_t>(*right);
  question.endings = std::move(endings.texts);
  return question;
}

std::vector<ChoiceQuestion> read_choice_questions(const std::filesystem::path& path, std::uint64_t limit) {
  check(!is_data_folder(path), expected(), "{} is a folder of shards, expected questions as text",
        path.string());
  const DataSource source = find_source(path.string());
  RecordReader reader(source, {.kind = DataKind::chat});  // reads unknown endings as JSON lines
  std::vector<ChoiceQuestion> questions;
  while (limit == 0 || questions.size() < limit) {
    const auto record = reader.next();
    if (!record) break;
    const std::string name = record->file->string();
    questions.push_back(choice_question(json_of(*record, name), fmt::format("{}:{}", name, record->line)));
  }
  check(!questions.empty(), expected(), "{} contains no questions", path.string());
  return questions;
}

}  // namespace thimble
