#include "formats/gguf_tokenizer.h"

#include <fmt/format.h>

#include <limits>
#include <unordered_set>

#include "base/error.h"
#include "tokenizer/chat_layout.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/gguf_vocabulary.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble {

namespace {

constexpr float kPadScore = -10000;  // below every merge, as llama.cpp's own converter writes it

std::string tokenizer_key(std::string_view name) {
  return fmt::format("tokenizer.ggml.{}", name);
}

void pad(GgufVocabulary& vocabulary, std::int64_t rows) {
  const std::unordered_set<std::string> known(vocabulary.tokens.begin(), vocabulary.tokens.end());
  for (auto id = std::ssize(vocabulary.tokens); id < rows; ++id) {
    vocabulary.tokens.push_back(pad_token_text(id, known));
    vocabulary.types.push_back(static_cast<std::int32_t>(TokenType::unused));
    if (vocabulary.model == "llama") vocabulary.scores.push_back(kPadScore);
  }
}

void append_ids(const SpecialIds& special, GgufSettings& settings) {
  const auto append = [&](std::string_view name, const std::optional<TokenId>& id) {
    if (id) settings.emplace_back(tokenizer_key(name), static_cast<std::uint32_t>(*id));
  };
  // Without these llama.cpp takes 11, or 1 and 2. Where a file has one of the two, it is the border of documents both
  // ways (DESIGN 8.1).
  const auto bos = special.bos ? special.bos : special.eos, eos = special.eos ? special.eos : special.bos;
  check(bos.has_value(), Hint{"a tokenizer made by `thimble tokenizer train` has one"},
        "the tokenizer has neither bos nor eos, and llama.cpp would take an ordinary token for them");
  append("bos_token_id", bos);
  append("eos_token_id", eos);
  append("unknown_token_id", special.unk);
  append("padding_token_id", special.pad);
}

// eot: llama.cpp knows the ends of a turn that others use by their spelling, but not <end_turn>.
void append_layout(const ModelFile& model, const Tokenizer& tokenizer, GgufSettings& settings,
                   std::vector<std::string>& notes) {
  if (model.layout.empty()) return;
  try {
    const ChatLayout layout(tokenizer, model.layout);
    settings.emplace_back(tokenizer_key("eot_token_id"), static_cast<std::uint32_t>(layout.end_id()));
    settings.emplace_back("tokenizer.chat_template", jinja_template(layout.text()));
  } catch (const Error& error) {
    notes.push_back(fmt::format("no chat template: {}", error.what()));
  }
}

// Ids that say what a token is for; they change neither ids of a text nor what the model computes.
constexpr std::string_view kHarmlessTokenizerKeys[] = {
    "eot_token_id",     "eom_token_id",     "seperator_token_id", "mask_token_id",    "cls_token_id",
    "prefix_token_id",  "suffix_token_id",  "middle_token_id",    "fim_pre_token_id", "fim_suf_token_id",
    "fim_mid_token_id", "fim_pad_token_id", "fim_rep_token_id",   "fim_sep_token_id", "token_type_count"};

std::optional<TokenId> take_id(GgufQuestions& questions, std::string_view name, std::size_t tokens) {
  const auto id = questions.count(tokenizer_key(name));
  if (!id) return std::nullopt;
  if (std::cmp_less(*id, tokens)) return static_cast<TokenId>(*id);
  questions.problem(fmt::format("{} is {}, but there are {} tokens", tokenizer_key(name), *id, tokens));
  return std::nullopt;
}

template <class T>
std::vector<T> copied(const std::vector<T>* values) {
  return values ? *values : std::vector<T>();
}

GgufVocabulary take_vocabulary(GgufQuestions& questions, std::string model) {
  GgufVocabulary vocabulary{.model = std::move(model),
                            .pre = questions.text(tokenizer_key("pre")).value_or("")};
  const bool pieces = vocabulary.model == "llama";
  vocabulary.tokens = copied(questions.list<std::string>(tokenizer_key("tokens"), "an array of strings"));
  vocabulary.scores = copied(questions.list<float>(tokenizer_key("scores"), "an array of f32"));
  vocabulary.types = copied(questions.list<std::int32_t>(tokenizer_key("token_type"), "an array of i32"));
  vocabulary.merges = copied(questions.list<std::string>(tokenizer_key("merges"), "an array of strings"));
  vocabulary.special = {.bos = take_id(questions, "bos_token_id", vocabulary.tokens.size()),
                        .eos = take_id(questions, "eos_token_id", vocabulary.tokens.size()),
                        .unk = take_id(questions, "unknown_token_id", vocabulary.tokens.size()),
                        .pad = take_id(questions, "padding_token_id", vocabulary.tokens.size())};
  if (pieces && !vocabulary.special.bos) vocabulary.special.bos = 1;  // what llama.cpp takes
  if (pieces && !vocabulary.special.eos) vocabulary.special.eos = 2;
  // Both the same: the border of documents, as append_ids() wrote it. Of a BPE Tokenizer::prefer() says that.
  if (pieces && vocabulary.special.eos == vocabulary.special.bos) vocabulary.special.eos.reset();
  const bool adds_bos = pieces || vocabulary.pre == "llama-bpe" || vocabulary.pre == "llama3";
  vocabulary.add_bos = questions.flag(tokenizer_key("add_bos_token")).value_or(adds_bos);
  vocabulary.add_space_prefix = questions.flag(tokenizer_key("add_space_prefix")).value_or(pieces);
  if (!pieces && vocabulary.add_space_prefix)
    questions.problem(tokenizer_key("add_space_prefix") + " of a byte-level BPE is not supported");
  if (questions.flag(tokenizer_key("add_eos_token")).value_or(false))
    questions.problem(tokenizer_key("add_eos_token") + " = true is not supported");
  if (questions.flag(tokenizer_key("add_sep_token")).value_or(false))
    questions.problem(tokenizer_key("add_sep_token") + " = true is not supported");
  questions.flag(tokenizer_key("remove_extra_whitespaces"));  // read for other kinds of tokenizers only
  return vocabulary;
}

}  // namespace

GgufSettings gguf_tokenizer_settings(const ModelFile& model, std::vector<std::string>& notes) {
  const auto tokenizer = open_tokenizer(model);
  if (!tokenizer) {
    notes.push_back("the model has no tokenizer: llama.cpp takes and gives ids only");
    return {{tokenizer_key("model"), std::string("no_vocab")}};
  }
  GgufVocabulary vocabulary = gguf_vocabulary_of(*tokenizer);
  pad(vocabulary, model.config.model.vocab_size);
  const bool pieces = vocabulary.model == "llama";
  if (vocabulary.normalises)
    notes.push_back(
        "llama.cpp does not normalise text as this tokenizer does: ids are the same where that changes "
        "nothing "
        "(composed characters, single spaces)");
  GgufSettings settings = {{tokenizer_key("model"), vocabulary.model},
                           {tokenizer_key("pre"), vocabulary.pre},
                           {tokenizer_key("tokens"), std::move(vocabulary.tokens)},
                           {tokenizer_key("token_type"), std::move(vocabulary.types)}};
  if (pieces)
    settings.emplace_back(tokenizer_key("scores"), std::move(vocabulary.scores));
  else
    settings.emplace_back(tokenizer_key("merges"), std::move(vocabulary.merges));
  append_ids(vocabulary.special, settings);
  settings.emplace_back(tokenizer_key("add_bos_token"), vocabulary.add_bos);
  settings.emplace_back(tokenizer_key("add_eos_token"), false);
  settings.emplace_back(tokenizer_key("add_space_prefix"), pieces && vocabulary.add_space_prefix);
  append_layout(model, *tokenizer, settings, notes);
  return settings;
}

GgufTokenizer read_gguf_tokenizer(GgufQuestions& questions, const std::string& name) {
  const auto model = questions.text(tokenizer_key("model"));
  for (const std::string_view harmless : kHarmlessTokenizerKeys) questions.take(tokenizer_key(harmless));
  GgufTokenizer out;
  if (!model || *model == "no_vocab" || *model == "none") return out;
  const GgufVocabulary vocabulary = take_vocabulary(questions, *model);
  if (const auto chat = questions.text("tokenizer.chat_template")) out.layout = layout_of_template(*chat);
  questions.throw_problems();
  try {
    const auto tokenizer = tokenizer_from_gguf(vocabulary);
    out.file = TokenizerFile{.name = fmt::format("{}: tokenizer", name),
                             .content = tokenizer->serialized(),
                             .special = tokenizer->special(),
                             .adds_bos = vocabulary.add_bos};
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", name, error.what()), Hint{error.hint()}, error.where());
  }
  return out;
}

}  // namespace thimble
