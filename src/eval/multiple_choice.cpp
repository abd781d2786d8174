#include "eval/multiple_choice.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/table.h"
#include "base/text.h"
#include "eval/score.h"
#include "eval/window_scorer.h"

namespace thimble {

namespace {

// Questions turned into windows, and the nats of each ending gathered again.
class Choosing {
 public:
  Choosing(Model& model, const Tokenizer& tokenizer, const ProgressOutput& progress, std::size_t questions)
      : tokenizer_(tokenizer),
        adds_bos_(tokenizer.adds_bos()),
        context_(static_cast<std::size_t>(model.config().context)),
        bar_(progress, "choosing", "questions", questions),
        scorer_(model, model.config().context, 0,
                [this](const Window& window, std::span<const float> nats) { gather(window, nats); }) {}

  void ask(const ChoiceQuestion& question) {
    check(question.endings.size() >= 2 && question.right < question.endings.size(),
          "[multiple choice] {} endings, of which number {} is right", question.endings.size(),
          question.right);
    scores_.emplace_back();
    const std::string_view before = without_blanks(question.context);
    // Behind no context at all an ending's first token still has to be predicted from something.
    const bool bos = adds_bos_ || before.empty();
    const std::vector<TokenId> prompt = tokens_of(before, bos);
    for (const std::string& text : question.endings) {
      const std::string_view ending = without_blanks(text);
      const std::string_view space = before.empty() ? "" : " ";
      scores_.back().push_back({.characters = static_cast<std::int64_t>(display_width(ending))});
      if (!add(tokens_of(fmt::format("{}{}{}", before, space, ending), bos), prompt))
        fail("{}: the tokenizer leaves nothing of ending {}", question.where, scores_.back().size() - 1);
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

  // Scores what comes behind the prompt; where the ending changes how the prompt's last word is cut, a little more.
  // False: nothing comes there.
  bool add(std::vector<TokenId> tokens, std::span<const TokenId> prompt) {
    auto common = static_cast<std::size_t>(std::ranges::mismatch(tokens, prompt).in1 - tokens.begin());
    common = std::max<std::size_t>(common, 1);  // the first token has nothing to be predicted from
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
  std::vector<Place> places_;  // of each window
  ProgressBar bar_;
  WindowScorer scorer_;
};

}  // namespace

double ChoiceScore::standard_error(double rate, std::int64_t total) {
  return total > 1 ? std::sqrt(rate * (1 - rate) / static_cast<double>(total - 1)) : 0;
}

std::size_t chosen(std::span<const EndingScore> endings, bool normalised) {
  const auto cost = [&](const EndingScore& ending) {
    return normalised ? ending.nats / static_cast<double>(std::max<std::int64_t>(ending.characters, 1))
                      : ending.nats;
  };
  return static_cast<std::size_t>(std::ranges::min_element(endings, {}, cost) - endings.begin());
}

std::vector<std::vector<EndingScore>> score_endings(Model& model, const Tokenizer& tokenizer,
                                                    std::span<const ChoiceQuestion> questions,
                                                    const ProgressOutput& progress,
                                                    const Interrupt* interrupt) {
  Choosing choosing(model, tokenizer, progress, questions.size());
  for (const ChoiceQuestion& question : questions) {
    if (interrupt) interrupt->throw_if_asked();
    choosing.ask(question);
  }
  return choosing.finish();
}

ChoiceScore score_choices(Model& model, const Tokenizer& tokenizer, std::span<const ChoiceQuestion> questions,
                          const ProgressOutput& progress, const Interrupt* interrupt) {
  check(!questions.empty(), "there are no questions to ask");
  const auto scores = score_endings(model, tokenizer, questions, progress, interrupt);
  ChoiceScore result;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    result.right += chosen(scores[i], false) == questions[i].right;
    result.right_normalised += chosen(scores[i], true) == questions[i].right;
    result.cut += std::ranges::count_if(scores[i], &EndingScore::cut);
    result.chance += 1.0 / static_cast<double>(scores[i].size()) / static_cast<double>(questions.size());
    ++result.total;
  }
  return result;
}

}  // namespace thimble
