#include "infer/constraint.h"

#include <cmath>

#include "base/rng.h"
#include "eval/small_model.h"
#include "infer/run_requests.h"
#include "support/golden.h"
#include "support/message_of.h"

namespace thimble::constraint_test {
namespace {

constexpr std::string_view kSchema = R"({
  "type": "object",
  "properties": {
    "name": {"type": "string", "maxLength": 40},
    "kind": {"enum": ["é☃", "two words", "n\n"]},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z ]+$"}, "maxItems": 3},
    "more": {"$ref": "#"}
  },
  "required": ["name", "age"],
  "additionalProperties": false
})";

const std::vector<ConstraintSource>& sources() {
  static const std::vector<ConstraintSource> all = {
      {.kind = ConstraintKind::json_object},
      {.kind = ConstraintKind::json_schema, .text = std::string(kSchema)},
      {.kind = ConstraintKind::regex, .text = " ?[A-Za-z]+( [a-zé☃]{0,60})*\\."},
      {.kind = ConstraintKind::gbnf,
       .text = "root ::= ( \" \" | \"the\" | \" the \" root | [^a-f]{2,30} \"\\n\" )+\n"},
      {.kind = ConstraintKind::choice, .choices = {"yes", "no", " the answer", "été"}},
  };
  return all;
}

// One of each kind of tokenizer, and SentencePiece with a space before the first word.
std::vector<std::unique_ptr<Tokenizer>> tokenizers() {
  std::vector<std::unique_ptr<Tokenizer>> all;
  all.push_back(load_tokenizer("bytes:chat"));
  for (const char* file : {"gpt2.json", "golf_1024.model", "identity_700.model"})
    all.push_back(load_tokenizer(golden_path(fmt::format("tokenizers/{}", file))));
  return all;
}

bool has_text(const Tokenizer& tokenizer, TokenId id) {
  const TokenType type = tokenizer.token_type(id);
  return type != TokenType::control && type != TokenType::unknown && type != TokenType::unused;
}

TEST(Constraints, MasksEqualACheckOfEveryTokenByItsBytes) {
  for (const auto& tokenizer : tokenizers()) {
    ConstraintCompiler compiler(*tokenizer);
    for (const ConstraintSource& source : sources()) {
      const auto constraint = compiler.compile(source);
      Rng rng(7, 0);
      Expr state = constraint->start();
      std::string text;
      for (int step = 0; step < 40 && state != kEpsilon; ++step) {
        const bool first = step == 0;
        const auto mask = constraint->mask(state, first);
        std::vector<TokenId> allowed;
        for (TokenId id = 0; id < tokenizer->vocab_size(); ++id) {
          std::string bytes;
          if (has_text(*tokenizer, id)) tokenizer->append_token(id, first, bytes);
          const bool expected = !bytes.empty() && constraint->advance(state, bytes) != kNothing;
          ASSERT_EQ(mask->has(id), expected)
              << name_of(tokenizer->kind()) << ": '" << text << "' + '" << bytes << "'";
          if (expected) allowed.push_back(id);
        }
        EXPECT_EQ(mask->count(), allowed.size());
        EXPECT_EQ(mask->none(), allowed.empty());
        if (allowed.empty()) break;  // complete
        const TokenId next = allowed[rng.below(allowed.size())];
        tokenizer->append_token(next, first, text);
        state = constraint->advance(state, next, first);
      }
    }
  }
}

TEST(Constraints, ATextMayBeginWithATokenWhoseSpaceIsDropped) {
  const auto tokenizer = load_tokenizer(golden_path("tokenizers/golf_1024.model"));
  const auto word = tokenizer->id_of("▁the");
  ASSERT_TRUE(word.has_value());
  std::string first;
  tokenizer->append_token(*word, true, first);
  ConstraintCompiler compiler(*tokenizer);
  const auto constraint = compiler.compile({.kind = ConstraintKind::choice, .choices = {"the"}});
  EXPECT_EQ(constraint->mask(constraint->start(), true)->has(*word), first == "the");
  EXPECT_FALSE(constraint->mask(constraint->start(), false)->has(*word)) << "inside a text it has a space";
}

class ConstrainedGeneration : public testing::Test {
 protected:
  Request request(ConstraintCompiler& compiler, const Tokenizer& tokenizer, const ConstraintSource& source,
                  std::uint64_t seed, std::int64_t max_tokens = 400) {
    Request made = text_request(tokenizer, tokenizer.special().bos ? "" : "a");
    made.sampling = {.temperature = 1, .seed = seed};
    made.max_tokens = max_tokens;
    made.slides = true;
    made.constraint = compiler.compile(source);
    return made;
  }
  static bool accepts(Constraint& constraint, std::string_view text) {
    const Expr state = constraint.advance(constraint.start(), text);
    return state != kNothing && constraint.accepts(state);
  }

  Context context_;
};

TEST_F(ConstrainedGeneration, TextsThatEndByThemselvesBelongToTheGrammarForEveryTokenizer) {
  for (const auto& tokenizer : tokenizers()) {
    const auto model = small_model(context_, tokenizer->vocab_size(), 64, "llama");
    Batcher batcher(*model, tokenizer.get(), {.slots = 8});
    ConstraintCompiler compiler(*tokenizer);
    std::vector<Request> requests;
    for (std::uint64_t seed = 0; seed < 4; ++seed)
      for (const ConstraintSource& source : sources())
        requests.push_back(request(compiler, *tokenizer, source, seed));
    const std::vector<Sample> samples = run_requests(batcher, requests);
    int ended = 0;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      Constraint& constraint = *requests[i].constraint;
      const bool complete = samples[i].finish == FinishReason::stop;
      ended += complete;
      EXPECT_NE(constraint.advance(constraint.start(), samples[i].text), kNothing) << samples[i].text;
      EXPECT_EQ(complete, accepts(constraint, samples[i].text)) << samples[i].text;
    }
    EXPECT_GT(ended, 5) << name_of(tokenizer->kind());
  }
}

TEST_F(ConstrainedGeneration, SlotsWithDifferentConstraintsDoNotInfluenceEachOther) {
  const auto tokenizer = load_tokenizer("bytes:chat");
  const auto model = small_model(context_, tokenizer->vocab_size(), 64, "llama");
  ConstraintCompiler compiler(*tokenizer);
  std::vector<Request> requests;
  for (const ConstraintSource& source : sources())
    requests.push_back(request(compiler, *tokenizer, source, 3, 60));
  requests.push_back(requests.back());
  requests.back().constraint = nullptr;
  Batcher together(*model, tokenizer.get(), {.slots = 4});
  const std::vector<Sample> samples = run_requests(together, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Batcher alone(*model, tokenizer.get());
    EXPECT_EQ(run_requests(alone, {requests[i]})[0].text, samples[i].text);
  }
}

TEST_F(ConstrainedGeneration, EndsWithStopAtALimitWithLengthAndAtAStopString) {
  const auto tokenizer = load_tokenizer("bytes:chat");
  const auto model = small_model(context_, tokenizer->vocab_size(), 64, "llama");
  Batcher batcher(*model, tokenizer.get());
  ConstraintCompiler compiler(*tokenizer);
  const ConstraintSource digits = {.kind = ConstraintKind::regex, .text = "[0-9]{20}"};
  Request complete = request(compiler, *tokenizer, digits, 1);
  Sample sample = generate(batcher, complete).at(0);
  EXPECT_EQ(sample.finish, FinishReason::stop);
  EXPECT_EQ(sample.tokens.size(), 20u) << "no end token is needed where nothing can follow";
  complete.max_tokens = 7;
  sample = generate(batcher, complete).at(0);
  EXPECT_EQ(sample.finish, FinishReason::length);
  EXPECT_EQ(sample.text.size(), 7u);
  complete.max_tokens = 20;
  complete.stop_strings = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
  EXPECT_EQ(generate(batcher, complete).at(0).text, "");

  Request empty = request(compiler, *tokenizer, {.kind = ConstraintKind::regex, .text = ""}, 1);
  empty.min_tokens = 1;
  sample = generate(batcher, empty).at(0);
  EXPECT_EQ(sample.finish, FinishReason::stop);
  EXPECT_TRUE(sample.tokens.empty());

  // Without stop ids, and with a minimum length that the constraint does not allow.
  Request endless = request(compiler, *tokenizer, digits, 1);
  endless.stop_ids.clear();
  endless.min_tokens = 300;
  EXPECT_EQ(generate(batcher, endless).at(0).tokens.size(), 20u);
}

TEST_F(ConstrainedGeneration, ProbabilitiesAreThoseOfTheAllowedTokensUnlessRawOnesAreRequested) {
  const auto tokenizer = load_tokenizer("bytes:chat");
  const auto model = small_model(context_, tokenizer->vocab_size(), 64, "llama");
  Batcher batcher(*model, tokenizer.get());
  ConstraintCompiler compiler(*tokenizer);
  Request asked = request(compiler, *tokenizer, {.kind = ConstraintKind::regex, .text = "[0-9]{10}"}, 1);
  asked.logprobs = 20;
  const Sample constrained = generate(batcher, asked).at(0);
  for (const TokenScore& token : constrained.tokens) {
    ASSERT_EQ(token.top.size(), 10u);
    double sum = 0;
    for (const auto& [id, logprob] : token.top) sum += std::exp(static_cast<double>(logprob));
    EXPECT_NEAR(sum, 1, 1e-5);
  }
  asked.raw_logprobs = true;
  const Sample raw = generate(batcher, asked).at(0);
  EXPECT_EQ(raw.text, constrained.text);
  for (std::size_t i = 0; i < raw.tokens.size(); ++i) {
    EXPECT_EQ(raw.tokens[i].top.size(), 20u);
    EXPECT_LT(raw.tokens[i].logprob, constrained.tokens[i].logprob);
  }
}

TEST_F(ConstrainedGeneration, AVocabularyThatCannotSpellTheTextIsAnError) {
  const auto tokenizer = load_tokenizer("bytes:chat");
  const auto model = small_model(context_, tokenizer->vocab_size(), 64, "llama");
  Batcher batcher(*model, tokenizer.get());
  ConstraintCompiler compiler(*tokenizer);
  Request asked = request(compiler, *tokenizer, {.kind = ConstraintKind::choice, .choices = {"x"}}, 1);
  asked.sampling.suppressed = {tokenizer->encode("x")[0]};
  EXPECT_NE(message_of([&] { generate(batcher, asked); }).find("allows no token"), std::string::npos);
}

TEST(Constraints, MemoryIsLimitedAndTextsContinueAfterStatesWereForgotten) {
  const auto tokenizer = load_tokenizer("bytes");
  ConstraintCompiler compiler(*tokenizer);
  // Every text leads to other states: brackets are closed in the reverse order.
  const auto constraint = compiler.compile(
      {.kind = ConstraintKind::gbnf, .text = "root ::= \"(\" root \")\" | \"[\" root \"]\" | \"x\"\n"});
  Rng rng(1, 0);
  std::vector<ConstrainedText> texts(6, ConstrainedText(constraint));
  std::vector<std::string> closing(texts.size());
  const auto add = [&](std::size_t i, char c) {
    const TokenId id = tokenizer->encode(std::string(1, c)).back();
    ASSERT_TRUE(texts[i].mask(false)->has(id)) << i << " " << c;
    texts[i].advance(id, false);
  };
  for (int step = 0; step < 4000; ++step)
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const bool round = rng.below(2) == 0;
      add(i, round ? '(' : '[');
      closing[i] += round ? ')' : ']';
    }
  EXPECT_GT(constraint->epoch(), 0u) << "states were forgotten";
  for (std::size_t i = 0; i < texts.size(); ++i) {
    add(i, 'x');
    for (; !closing[i].empty(); closing[i].pop_back()) add(i, closing[i].back());
    EXPECT_TRUE(texts[i].complete());
  }
}

TEST(Constraints, AreCompiledOnceAndKept) {
  const auto tokenizer = load_tokenizer("bytes");
  ConstraintCompiler compiler(*tokenizer);
  const ConstraintSource a = {.kind = ConstraintKind::regex, .text = "a"},
                         b = {.kind = ConstraintKind::regex, .text = "b"};
  const auto first = compiler.compile(a);
  EXPECT_NE(compiler.compile(b), first);
  EXPECT_EQ(compiler.compile(a), first);
  EXPECT_THROW(compiler.compile({.kind = ConstraintKind::choice, .choices = {}}), Error);
  EXPECT_THROW(compiler.compile({.kind = ConstraintKind::json_schema, .text = "false"}), Error);
}

}  // namespace
}  // namespace thimble::constraint_test
