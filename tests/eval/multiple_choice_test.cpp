#include "eval/multiple_choice.h"

#include <array>
#include <cmath>

#include "base/error.h"
#include "data/text_files.h"
#include "eval/small_model.h"
#include "support/message_of.h"
#include "support/temp_folder.h"
#include "tokenizer/sentencepiece.h"

namespace thimble::multiple_choice_test {
namespace {

struct Fixture {
  Context context;
  std::unique_ptr<Tokenizer> tokenizer = load_tokenizer("bytes");
  std::unique_ptr<Model> model = small_model(context, tokenizer->vocab_size(), 32);

  ChoiceScore score(std::span<const ChoiceQuestion> questions) {
    return score_choices(*model, *tokenizer, questions, ProgressOutput::nowhere());
  }

  // The nats of the ending and the space before it, scored in a separate row.
  double nats(const std::string& before, const std::string& ending, bool bos = true) {
    std::vector<TokenId> tokens;
    if (bos) tokens.push_back(*tokenizer->special().bos);
    tokenizer->encode(before + " " + ending, tokens);
    const std::vector<std::int32_t> input(tokens.begin(), tokens.end() - 1);
    std::vector<std::int32_t> target(tokens.begin() + 1, tokens.end());
    std::fill_n(target.begin(), before.size() - (bos ? 0 : 1), -1);
    double sum = 0;
    for (float value :
         model->score(grid_rows(model->config(), static_cast<std::int64_t>(input.size()), input, target))
             .nats)
      sum += value;
    return sum;
  }
};

TEST(MultipleChoice, TiesShareTheCredit) {
  const std::vector<EndingScore> endings = {
      {.nats = 2, .characters = 1}, {.nats = 2, .characters = 4}, {.nats = 3, .characters = 6}};
  EXPECT_EQ(credit(endings, 0, false), 0.5);
  EXPECT_EQ(credit(endings, 1, false), 0.5);
  EXPECT_EQ(credit(endings, 2, false), 0);
  EXPECT_EQ(credit(endings, 0, true), 0);
  EXPECT_EQ(credit(endings, 1, true), 0.5);
  EXPECT_EQ(credit(endings, 2, true), 0.5);
  Fixture f;
  const ChoiceQuestion question{.context = "A cat", .endings = {"sat.", "sat."}, .right = 1};
  EXPECT_EQ(f.score(std::span(&question, 1)).accuracy(), 0.5);
}

// The labels are the endings that the model prefers, so all answers are right; with shifted labels
// none is.
TEST(MultipleChoice, ChoosesByNatsAndByNatsPerCharacter) {
  Fixture f;
  const std::array<const char*, 3> contexts = {"A cat", "The sun", "One two"};
  const std::vector<std::string> endings = {"sat.", "shines on us", "three", "x"};
  std::vector<ChoiceQuestion> by_sum, by_length;
  bool differ = false;
  for (const char* before : contexts) {
    std::size_t best = 0, best_per_character = 0;
    std::vector<double> sums;
    for (const std::string& ending : endings) sums.push_back(f.nats(before, ending));
    for (std::size_t i = 1; i < endings.size(); ++i) {
      if (sums[i] < sums[best]) best = i;
      if (sums[i] * double(endings[best_per_character].size()) <
          sums[best_per_character] * double(endings[i].size()))
        best_per_character = i;
    }
    differ |= best != best_per_character;
    by_sum.push_back({before, endings, best});
    by_length.push_back({before, endings, best_per_character});
  }
  ASSERT_TRUE(differ) << "the two rules must choose different endings";
  EXPECT_EQ(f.score(by_sum).right, 3);
  EXPECT_LT(f.score(by_sum).right_normalized, 3);
  EXPECT_EQ(f.score(by_length).right_normalized, 3);
  EXPECT_EQ(f.score(by_sum).accuracy(), 1.0);
  EXPECT_EQ(f.score(by_sum).chance, 0.25);
  for (ChoiceQuestion& question : by_sum) question.right = (question.right + 1) % endings.size();
  EXPECT_EQ(f.score(by_sum).right, 0);
}

TEST(MultipleChoice, ScoresEachEndingIndependently) {
  Fixture f;
  const std::vector<ChoiceQuestion> questions = {
      {"A cat", {"sat.", "ran away"}, 0},
      {"One", {"two", "three four five", "caf\u00E9", "\u4F60\u597D"}, 1}};
  const auto scores = score_endings(*f.model, *f.tokenizer, questions, ProgressOutput::nowhere());
  for (std::size_t q = 0; q < questions.size(); ++q)
    for (std::size_t e = 0; e < questions[q].endings.size(); ++e)
      EXPECT_NEAR(scores[q][e].nats, f.nats(questions[q].context, questions[q].endings[e]), 1e-4)
          << q << " " << e;
  EXPECT_EQ(scores[1][2].characters, 4) << "characters, not bytes";
  EXPECT_EQ(scores[1][3].characters, 2) << "not columns of a terminal";
}

TEST(MultipleChoice, UsesBosIfTheTokenizerAddsItOrTheContextIsEmpty) {
  Fixture f;
  const std::vector<ChoiceQuestion> questions = {{"A cat", {"sat.", "ran away"}, 0}, {"", {"Up", "Down"}, 0}};
  const auto with = score_endings(*f.model, *f.tokenizer, questions, ProgressOutput::nowhere());
  f.tokenizer->texts_begin_with_bos(false);
  const auto without = score_endings(*f.model, *f.tokenizer, questions, ProgressOutput::nowhere());
  for (std::size_t e = 0; e < 2; ++e) {
    const std::string& ending = questions[0].endings[e];
    EXPECT_NEAR(with[0][e].nats, f.nats("A cat", ending), 1e-4);
    EXPECT_NEAR(without[0][e].nats, f.nats("A cat", ending, false), 1e-4);
    EXPECT_NE(without[0][e].nats, with[0][e].nats);
    EXPECT_EQ(without[1][e].nats, with[1][e].nats) << "an empty context always gets a bos";
  }
}

TEST(MultipleChoice, IgnoresWhitespaceAroundContextAndEnding) {
  Fixture f;
  const std::vector<ChoiceQuestion> plain = {{"A cat", {"sat.", "ran away"}, 0}};
  const std::vector<ChoiceQuestion> blank = {{"\n A cat ", {" sat.", "  ran away\n"}, 0}};
  const auto expected = score_endings(*f.model, *f.tokenizer, plain, ProgressOutput::nowhere());
  const auto found = score_endings(*f.model, *f.tokenizer, blank, ProgressOutput::nowhere());
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(found[0][i].nats, expected[0][i].nats);
    EXPECT_EQ(found[0][i].characters, expected[0][i].characters);
  }
}

TEST(MultipleChoice, ALongContextIsTruncatedAtItsStart) {
  Fixture f;
  const std::string before(100, 'a');
  const std::vector<ChoiceQuestion> questions = {{before, {"b", "c"}, 0}};
  const ChoiceScore score = f.score(questions);
  EXPECT_EQ(score.total, 1);
  EXPECT_EQ(score.cut, 2);
  // The result is the same as for a shorter context: 32 inputs, of which the last is the space.
  const auto ends = score_endings(*f.model, *f.tokenizer, questions, ProgressOutput::nowhere());
  std::vector<TokenId> tokens;
  f.tokenizer->encode(before.substr(0, 31).append(" b"), tokens);
  const std::vector<std::int32_t> input(tokens.begin(), tokens.end() - 1);
  std::vector<std::int32_t> target(tokens.begin() + 1, tokens.end());
  std::fill_n(target.begin(), 30, -1);
  double nats = 0;
  for (float value : f.model->score(grid_rows(f.model->config(), 32, input, target)).nats) nats += value;
  EXPECT_NEAR(ends[0][0].nats, nats, 1e-4);
}

TEST(MultipleChoice, AModelWithNaNIsAnError) {
  Fixture f;
  f.model->weights()[5] = NAN;
  f.model->weights_changed();
  const ChoiceQuestion question{.context = "a", .endings = {"b", "c"}};
  EXPECT_THROW(f.score(std::span(&question, 1)), Error);
}

TEST(MultipleChoice, ReportsAnEndingWithoutTokens) {
  Fixture f;
  const TempFolder folder;
  TextSource source({folder.write("text.txt", "the cat sat on the mat and the hat\n")}, {});
  const auto pieces = load_sentencepiece(train_sentencepiece(source, {.vocab_size = 290}), "pieces");
  const ChoiceQuestion question{
      .context = "the cat", .endings = {"sat", "\xE2\x80\x8B"}, .where = "q.jsonl:7"};  // a zero-width space
  const auto model = small_model(f.context, pieces->vocab_size(), 32);
  EXPECT_EQ(
      message_of([&] { score_choices(*model, *pieces, std::span(&question, 1), ProgressOutput::nowhere()); }),
      "q.jsonl:7: the tokenizer encodes ending 1 as no tokens");
}

TEST(MultipleChoice, RejectsAnEmptyListOfQuestions) {
  Fixture f;
  EXPECT_THROW(f.score({}), Error);
}

ChoiceQuestion question(const char* json) {
  return choice_question(parse_json(json, "q"), "q:1");
}

TEST(ChoiceQuestions, AcceptAllDocumentedForms) {
  const ChoiceQuestion plain = question(R"({"ctx": "A", "endings": ["x", "y"], "label": 1, "ind": 24})");
  EXPECT_EQ(plain.context, "A");
  EXPECT_EQ(plain.endings, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(plain.right, 1u);
  EXPECT_EQ(question(R"({"ctx_a": "A man", "ctx_b": "he", "endings": ["x", "y"], "label": "0"})").context,
            "A man he");
  const ChoiceQuestion arc = question(
      R"({"question": "Q?", "choices": {"text": ["a", "b", "c"], "label": ["1", "2", "3"]}, "answerKey": "3"})");
  EXPECT_EQ(arc.context, "Q?");
  EXPECT_EQ(arc.right, 2u);
  const ChoiceQuestion published = question(
      R"({"question": {"stem": "Q?", "choices": [{"text": "a", "label": "1"}, {"text": "b", "label": "2"}]},
          "answerKey": "2"})");
  EXPECT_EQ(published.context, "Q?");
  EXPECT_EQ(published.endings, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(published.right, 1u);
  EXPECT_EQ(question(R"({"question_stem": "S", "choices": ["a", "b"], "answerKey": "B"})").context, "S");
  EXPECT_EQ(question(R"({"goal": "G", "sol1": "a", "sol2": "b", "label": 1})").endings.size(), 2u);
  EXPECT_EQ(question(R"({"question": "Q", "options": ["a", "b", "c"], "answer": "C"})").right, 2u);
  EXPECT_EQ(question(R"({"query": "Q", "choices": ["a", "b"], "gold": 0})").right, 0u);
}

// process_docs() of lm-evaluation-harness.
TEST(ChoiceQuestions, PairsOfBlimpAreCountedByPhenomenonToo) {
  const auto pair = [](std::string_view uid, std::string_view good) {
    return choice_question(
        Json::object().set("sentence_good", good).set("sentence_bad", "b b").set("UID", uid), "f:1");
  };
  const std::vector<ChoiceQuestion> questions = {pair("island", "a"), pair("island", "b b b b"),
                                                 pair("npi", "c")};
  EXPECT_EQ(questions[1].endings, (std::vector<std::string>{"b b b b", "b b"}));
  EXPECT_EQ(questions[1].context, "");
  EXPECT_EQ(questions[1].right, 0u);
  const Context context;
  const auto tokenizer = load_tokenizer("bytes");
  const auto model = small_model(context, tokenizer->vocab_size(), 64, "llama");
  const ChoiceScore score = score_choices(*model, *tokenizer, questions, ProgressOutput::nowhere());
  ASSERT_EQ(score.groups.size(), 2u);
  EXPECT_EQ(score.groups.at("island").total, 2);
  EXPECT_EQ(score.groups.at("island").right + score.groups.at("npi").right, score.right);
  EXPECT_EQ(score.groups.at("npi").chance, 0.5);
  EXPECT_THROW(choice_question(Json::object().set("sentence_good", "a"), "f:1"), Error);
}

TEST(ChoiceQuestions, HellaSwagIsPreprocessedLikeInTheHarness) {
  const ChoiceQuestion cleaned = question(
      R"({"activity_label": "Home and Garden", "ctx_a": "How to bake [title] Heat the oven. [step] Wait  a while.",
          "ctx_b": "then The baker", "ctx": "not this", "endings": [" eats [substeps] it. ", "[x] Runs [title] away"],
          "label": "1"})");
  EXPECT_EQ(cleaned.context, "Home and Garden: How to bake. Heat the oven. Wait a while. Then the baker");
  EXPECT_EQ(cleaned.endings, (std::vector<std::string>{"eats it.", " Runs. away"}));
  EXPECT_EQ(cleaned.right, 1u);
}

std::string complaint(const std::string& line) {
  const TempFolder folder;
  const auto file = folder.write("q.jsonl", R"({"ctx": "A", "endings": ["x", "y"], "label": 1})"
                                            "\n" +
                                                line + "\n");
  return message_of([&] { read_choice_questions(file, 0); });
}

TEST(ChoiceQuestions, ErrorsNameTheLine) {
  for (const auto& [line, what] : std::vector<std::pair<std::string, std::string>>{
           {R"({"endings": ["x", "y"], "label": 1})", "no context found"},
           {R"({"ctx": "A", "label": 1})", "no endings found"},
           {R"({"ctx": "A", "endings": ["x"], "label": 0})", "expected at least two endings, found 1"},
           {R"({"ctx": "A", "endings": ["x", " "], "label": 0})", "ending 1 is empty"},
           {R"({"ctx": "A", "endings": ["x", 5], "label": 0})", "is not a string"},
           {R"({"ctx": "A", "endings": "xy", "label": 0})", "are not a list"},
           {R"({"ctx": "A", "endings": ["x", "y"]})", "no label found"},
           {R"({"ctx": "A", "endings": ["x", "y"], "label": 2})", "label 2 is none of the 2 endings"},
           {R"({"ctx": "A", "endings": ["x", "y"], "label": -1})", "label -1"},
           {R"({"ctx": "A", "endings": ["x", "y"], "label": "z"})", "label \"z\""},
           {R"({"ctx": 7, "endings": ["x", "y"], "label": 0})", "is not a string"},
           {R"({"ctx": "A", "choices": [{"text": "x", "label": "A"}, {"text": "y"}], "label": 0})",
            "ending 1 lacks text or label"},
           {R"({"ctx": "A", "choices": [{"text": "x", "label": "A"}, "y"], "label": 0})",
            "ending 1 lacks text"},
           {R"({"ctx_a": "A", "ctx_b": 3, "endings": ["x", "y"], "label": 0})", "is not a string"},
           {R"([1, 2])", "expected a question as a JSON object"}}) {
    const std::string message = complaint(line);
    EXPECT_NE(message.find(what), std::string::npos) << line << ": " << message;
    EXPECT_NE(message.find("q.jsonl:2"), std::string::npos) << message;
  }
  EXPECT_NE(complaint("{oops").find("q.jsonl:2"), std::string::npos);
  const TempFolder folder;
  const auto text = folder.write("book.txt", "Once upon a time\n");
  try {
    read_choice_questions(text, 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.hint().find("\"endings\""), std::string::npos) << error.what();
  }
}

TEST(ChoiceQuestions, AreReadUpToTheLimit) {
  const TempFolder folder;
  std::string lines;
  for (int i = 0; i < 5; ++i)
    lines += R"({"ctx": "A", "endings": ["x", "y"], "label": 1})"
             "\n";
  const auto file = folder.write("q.jsonl", lines);
  EXPECT_EQ(read_choice_questions(file, 0).size(), 5u);
  EXPECT_EQ(read_choice_questions(file, 3).size(), 3u);
  EXPECT_THROW(read_choice_questions(folder.write("empty.jsonl", "\n"), 0), Error);
}

}  // namespace
}  // namespace thimble::multiple_choice_test
