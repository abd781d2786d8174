#include "formats/gguf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/json.h"
#include "tokenizer/bpe_tokenizer.h"
#include "tokenizer/chat_layout.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble {

namespace {

constexpr float kPadScore = -10000;  // below every merge, as in llama.cpp's converter

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
  // Without these keys llama.cpp uses 11 (BPE), or 1 and 2 (SentencePiece). If the tokenizer has
  // only one of bos and eos, that id separates documents and is written as both.
  const auto bos = special.bos ? special.bos : special.eos, eos = special.eos ? special.eos : special.bos;
  check(bos.has_value(), Hint{"train a tokenizer with `thimble tokenizer train`, which defines one"},
        "the tokenizer has neither bos nor eos: llama.cpp would use ordinary tokens instead");
  append("bos_token_id", bos);
  append("eos_token_id", eos);
  append("unknown_token_id", special.unk);
  append("padding_token_id", special.pad);
}

// llama.cpp recognizes the tokens that end a text by the spellings of well-known models, and warns
// about an eos or eot with another spelling. Tokens of two purposes of fill-in-the-middle models
// end a text without a warning, whatever their spelling.
void append_ends(const std::vector<std::string>& tokens, GgufSettings& settings) {
  constexpr std::string_view kKnownEnds[] = {"<|eot_id|>",    "<|im_end|>",    "<|end|>",
                                             "<end_of_turn>", "<|endoftext|>", "<|eom_id|>"};
  for (const auto& [key, end] :
       {std::pair{"eos_token_id", "fim_pad_token_id"}, {"eot_token_id", "fim_rep_token_id"}}) {
    const auto found = std::ranges::find(settings, tokenizer_key(key), &GgufSettings::value_type::first);
    if (found == settings.end()) continue;
    const auto id = std::get<std::uint32_t>(found->second);
    if (std::ranges::find(kKnownEnds, tokens[id]) == std::end(kKnownEnds))
      settings.emplace_back(tokenizer_key(end), id);
  }
}

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

// Ids of tokens with special purposes. They affect neither the encoding of text nor the model.
constexpr std::string_view kHarmlessTokenizerKeys[] = {
    "eot_token_id",     "eom_token_id",     "seperator_token_id", "mask_token_id",    "cls_token_id",
    "prefix_token_id",  "suffix_token_id",  "middle_token_id",    "fim_pre_token_id", "fim_suf_token_id",
    "fim_mid_token_id", "fim_pad_token_id", "fim_rep_token_id",   "fim_sep_token_id", "token_type_count"};

std::optional<TokenId> take_id(GgufKeyReader& keys, std::string_view name, std::size_t tokens) {
  const auto id = keys.count(tokenizer_key(name));
  if (!id) return std::nullopt;
  if (std::cmp_less(*id, tokens)) return static_cast<TokenId>(*id);
  keys.problem(
      fmt::format("{} is {}, expected less than the number of tokens, {}", tokenizer_key(name), *id, tokens));
  return std::nullopt;
}

template <class T>
std::vector<T> copied(const std::vector<T>* values) {
  return values ? *values : std::vector<T>();
}

GgufVocabulary take_vocabulary(GgufKeyReader& keys, std::string model) {
  GgufVocabulary vocabulary{.model = std::move(model), .pre = keys.text(tokenizer_key("pre")).value_or("")};
  const bool pieces = vocabulary.model == "llama";
  vocabulary.tokens = copied(keys.list<std::string>(tokenizer_key("tokens"), "an array of strings"));
  vocabulary.scores = copied(keys.list<float>(tokenizer_key("scores"), "an array of f32"));
  vocabulary.types = copied(keys.list<std::int32_t>(tokenizer_key("token_type"), "an array of i32"));
  vocabulary.merges = copied(keys.list<std::string>(tokenizer_key("merges"), "an array of strings"));
  vocabulary.special = {.bos = take_id(keys, "bos_token_id", vocabulary.tokens.size()),
                        .eos = take_id(keys, "eos_token_id", vocabulary.tokens.size()),
                        .unk = take_id(keys, "unknown_token_id", vocabulary.tokens.size()),
                        .pad = take_id(keys, "padding_token_id", vocabulary.tokens.size())};
  if (pieces && !vocabulary.special.bos) vocabulary.special.bos = 1;  // llama.cpp's default
  if (pieces && !vocabulary.special.eos) vocabulary.special.eos = 2;
  // Equal ids mean one document separator, as written by append_ids(). For BPE, Tokenizer::prefer()
  // handles this.
  if (pieces && vocabulary.special.eos == vocabulary.special.bos) vocabulary.special.eos.reset();
  const bool adds_bos = pieces || vocabulary.pre == "llama-bpe" || vocabulary.pre == "llama3";
  vocabulary.add_bos = keys.flag(tokenizer_key("add_bos_token")).value_or(adds_bos);
  vocabulary.add_space_prefix = keys.flag(tokenizer_key("add_space_prefix")).value_or(pieces);
  if (!pieces && vocabulary.add_space_prefix)
    keys.problem(tokenizer_key("add_space_prefix") + " = true is not supported for byte-level BPE");
  if (keys.flag(tokenizer_key("add_eos_token")).value_or(false))
    keys.problem(tokenizer_key("add_eos_token") + " = true is not supported");
  if (keys.flag(tokenizer_key("add_sep_token")).value_or(false))
    keys.problem(tokenizer_key("add_sep_token") + " = true is not supported");
  keys.flag(tokenizer_key("remove_extra_whitespaces"));  // only affects other kinds of tokenizers
  return vocabulary;
}

}  // namespace

GgufSettings gguf_tokenizer_settings(const ModelFile& model, std::vector<std::string>& notes) {
  const auto tokenizer = open_tokenizer(model);
  if (!tokenizer) {
    notes.push_back("the model has no tokenizer: llama.cpp reads and writes token ids only");
    return {{tokenizer_key("model"), std::string("no_vocab")}};
  }
  GgufVocabulary vocabulary = gguf_vocabulary_of(*tokenizer);
  pad(vocabulary, model.config.model.vocab_size);
  const bool pieces = vocabulary.model == "llama";
  if (vocabulary.normalizes)
    notes.push_back(
        "llama.cpp does not normalize text as this tokenizer does: ids are equal for text that "
        "normalization leaves unchanged (composed characters, single spaces)");
  GgufSettings settings = {{tokenizer_key("model"), vocabulary.model},
                           {tokenizer_key("pre"), vocabulary.pre},
                           {tokenizer_key("tokens"), vocabulary.tokens},
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
  append_ends(vocabulary.tokens, settings);
  return settings;
}

GgufTokenizer read_gguf_tokenizer(GgufKeyReader& keys, const std::string& name) {
  const auto model = keys.text(tokenizer_key("model"));
  for (const std::string_view harmless : kHarmlessTokenizerKeys) keys.take(tokenizer_key(harmless));
  GgufTokenizer out;
  if (!model || *model == "no_vocab" || *model == "none") return out;
  const GgufVocabulary vocabulary = take_vocabulary(keys, *model);
  if (const auto chat = keys.text("tokenizer.chat_template")) out.layout = layout_of_template(*chat);
  keys.throw_problems();
  try {
    const auto tokenizer = tokenizer_from_gguf(vocabulary);
    out.file = TokenizerFile{.name = fmt::format("{}: tokenizer", name),
                             .content = tokenizer->serialized(),
                             .special = tokenizer->special(),
                             .adds_bos = vocabulary.add_bos};
    if (const auto* bpe = dynamic_cast<const BpeTokenizer*>(tokenizer.get()))
      out.file->spec = std::make_shared<const BpeSpec>(bpe->spec());
    out.tokens = tokenizer->vocab_size();
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", name, error.what()), Hint{error.hint()}, error.where());
  }
  return out;
}

namespace {

struct PreName {
  std::string_view name;
  Pattern pattern;
  bool ignore_merges;
};
// For each pattern the first name is the one written. llama-bpe also sets ignore_merges; dbrx is
// the same pattern without it.
constexpr std::array<PreName, 7> kPreNames = {{{"gpt-2", Pattern::gpt2, false},
                                               {"qwen2", Pattern::qwen2, false},
                                               {"dbrx", Pattern::llama3, false},
                                               {"smaug-bpe", Pattern::llama3, false},
                                               {"llama-bpe", Pattern::llama3, true},
                                               {"llama3", Pattern::llama3, true},
                                               {"gpt-4o", Pattern::o200k, false}}};

// For error messages: untrusted text, truncated and with control characters escaped.
std::string shown(std::string_view text) {
  constexpr std::size_t kShown = 40;
  return Json(text.substr(0, kShown)).dump();
}

const PreName& pre_with_name(std::string_view name) {
  for (const PreName& pre : kPreNames)
    if (pre.name == name) return pre;
  fail(Hint{"use a model with gpt-2, qwen2, dbrx, smaug-bpe, llama-bpe or gpt-4o"},
       "the GGUF's tokenizer.ggml.pre is {}, which thimble does not support", shown(name));
}

const PreName& pre_for(Pattern pattern, bool ignore_merges) {
  for (const PreName& pre : kPreNames)
    if (pre.pattern == pattern && pre.ignore_merges == ignore_merges) return pre;
  fail("llama.cpp has no name for the pattern {} {} ignore_merges", pattern_name(pattern),
       ignore_merges ? "with" : "without");
}

std::vector<PreTokenizerStep> steps_for(Pattern pattern) {
  if (pattern == Pattern::gpt2) return {ByteLevel{.add_prefix_space = false, .use_regex = true}};
  return {Split{{std::string(pattern_regex(pattern)), true}},
          ByteLevel{.add_prefix_space = false, .use_regex = false}};
}

void add_merges(BpeSpec& spec, const std::vector<std::string>& merges) {
  std::unordered_map<std::string_view, TokenId> ids;
  ids.reserve(spec.vocab.size());
  for (std::size_t id = 0; id < spec.vocab.size(); ++id)
    ids.emplace(spec.vocab[id], static_cast<TokenId>(id));
  auto id_of = [&](std::string_view token, const std::string& merge) {
    const auto found = ids.find(token);
    if (found == ids.end())  // not check(): its arguments would be computed for every merge
      fail("the GGUF's merge {} needs the token {}, which is missing", shown(merge), shown(token));
    return found->second;
  };
  spec.merges.reserve(merges.size());
  std::string both;
  std::size_t next = 0;  // results usually have consecutive ids: a comparison, not a lookup
  const auto result_of = [&](const std::string& merge) {
    const TokenId id = next < spec.vocab.size() && spec.vocab[next] == both ? static_cast<TokenId>(next)
                                                                            : id_of(both, merge);
    next = static_cast<std::size_t>(id) + 1;
    return id;
  };
  for (const std::string& merge : merges) {
    const std::size_t space = merge.find(' ', 1);  // a token is not empty, and spells a space as Ġ
    if (space == merge.npos) fail("the GGUF's merge {} is not two tokens separated by a space", shown(merge));
    const std::string_view left = std::string_view(merge).substr(0, space),
                           right = std::string_view(merge).substr(space + 1);
    both.assign(left).append(right);
    spec.merges.push_back({id_of(left, merge), id_of(right, merge), result_of(merge)});
  }
}

// The number of tokens without trailing unused ones, which were added to fill the embedding's rows.
std::size_t tokens_in(const GgufVocabulary& vocabulary) {
  std::size_t count = vocabulary.tokens.size();
  if (vocabulary.types.empty()) return count;
  while (count > 0 && static_cast<TokenType>(vocabulary.types[count - 1]) == TokenType::unused) --count;
  return count;
}

std::unique_ptr<Tokenizer> bpe_from_gguf(const GgufVocabulary& vocabulary) {
  const PreName& pre = pre_with_name(vocabulary.pre);
  BpeSpec spec;
  spec.vocab = vocabulary.tokens;
  spec.pre_tokenizer = steps_for(pre.pattern);
  spec.decoder = {ByteLevelDecoder{}};
  spec.ignore_merges = pre.ignore_merges;
  for (std::size_t id = 0; id < vocabulary.types.size(); ++id) {
    const auto type = static_cast<TokenType>(vocabulary.types[id]);
    if (type == TokenType::control || type == TokenType::user_defined)
      spec.added_tokens.push_back(
          {.id = static_cast<TokenId>(id), .content = spec.vocab[id], .special = type == TokenType::control});
    if (type == TokenType::unused) spec.vocab[id].clear();
  }
  spec.vocab.resize(tokens_in(vocabulary));
  add_merges(spec, vocabulary.merges);
  if (vocabulary.add_bos && vocabulary.special.bos) spec.post_processor.before = {*vocabulary.special.bos};
  return make_bpe_tokenizer(std::move(spec), vocabulary.special);
}

// Writes Protocol Buffers, the format of SentencePiece's model files.
class ProtobufWriter {
 public:
  ProtobufWriter& varint(std::uint32_t field, std::uint64_t value) {
    raw(std::uint64_t{field} << 3);
    raw(value);
    return *this;
  }
  ProtobufWriter& bytes(std::uint32_t field, std::string_view value) {
    raw(std::uint64_t{field} << 3 | 2);
    raw(value.size());
    out_ += value;
    return *this;
  }
  ProtobufWriter& number(std::uint32_t field, float value) {
    raw(std::uint64_t{field} << 3 | 5);
    const auto bits = std::bit_cast<std::uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) out_ += static_cast<char>(bits >> shift);
    return *this;
  }
  const std::string& text() const { return out_; }

 private:
  void raw(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_ += static_cast<char>(value | 0x80);
    out_ += static_cast<char>(value);
  }
  std::string out_;
};

// A missing id is -1 in SentencePiece's files.
std::uint64_t id_or_none(const std::optional<TokenId>& id) {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(id.value_or(-1)));
}

std::unique_ptr<Tokenizer> pieces_from_gguf(const GgufVocabulary& vocabulary) {
  check(vocabulary.scores.size() == vocabulary.tokens.size(), "the GGUF has {} tokens and {} scores",
        vocabulary.tokens.size(), vocabulary.scores.size());
  ProtobufWriter model;
  for (std::size_t id = 0; id < tokens_in(vocabulary); ++id) {
    const auto type = vocabulary.types.empty() ? 1 : vocabulary.types[id];
    model.bytes(1, ProtobufWriter()
                       .bytes(1, vocabulary.tokens[id])
                       .number(2, vocabulary.scores[id])
                       .varint(3, static_cast<std::uint64_t>(type))
                       .text());
  }
  const SpecialIds& special = vocabulary.special;
  const bool bytes = std::ranges::count(vocabulary.types, static_cast<std::int32_t>(TokenType::byte)) > 0;
  auto name = [&](const std::optional<TokenId>& id, const char* absent) {
    return id ? std::string_view(vocabulary.tokens.at(static_cast<std::size_t>(*id)))
              : std::string_view(absent);
  };
  model.bytes(2, ProtobufWriter()
                     .varint(3, 2)       // model_type: BPE
                     .varint(35, bytes)  // byte_fallback
                     .varint(40, id_or_none(special.unk ? special.unk : std::optional<TokenId>(0)))
                     .varint(41, id_or_none(special.bos))
                     .varint(42, id_or_none(special.eos))
                     .varint(43, id_or_none(special.pad))
                     .bytes(45, name(special.unk, "<unk>"))
                     .bytes(46, name(special.bos, "<s>"))
                     .bytes(47, name(special.eos, "</s>"))
                     .bytes(48, name(special.pad, "<pad>"))
                     .text());
  model.bytes(3, ProtobufWriter()
                     .bytes(1, "identity")
                     .varint(3, vocabulary.add_space_prefix)
                     .varint(4, 0)  // llama.cpp does not collapse spaces
                     .text());
  return load_sentencepiece(model.text(), "the GGUF's vocabulary");
}

void check_types(const GgufVocabulary& vocabulary) {
  check(!vocabulary.tokens.empty(), "the GGUF has no tokens");
  check(vocabulary.types.empty() || vocabulary.types.size() == vocabulary.tokens.size(),
        "the GGUF has {} tokens and {} token types", vocabulary.tokens.size(), vocabulary.types.size());
  std::unordered_set<std::string_view> texts;
  texts.reserve(vocabulary.tokens.size());
  for (const std::string& token : vocabulary.tokens)
    if (!texts.insert(token).second) fail("the GGUF has the token {} twice", shown(token));
  for (const std::int32_t type : vocabulary.types)
    check(type >= 1 && type <= 6, "the GGUF has a token of type {}; expected 1 to 6", type);
  for (const auto& id :
       {vocabulary.special.bos, vocabulary.special.eos, vocabulary.special.unk, vocabulary.special.pad})
    check(!id || (*id >= 0 && std::cmp_less(*id, vocabulary.tokens.size())),
          "the GGUF has {} tokens and the special id {}", vocabulary.tokens.size(), id.value_or(-1));
}

// For error messages: how the text is split.
std::string split_text(const BpeSpec& spec) {
  for (const PreTokenizerStep& step : spec.pre_tokenizer)
    if (const auto* split = std::get_if<Split>(&step)) return fmt::format("\"{}\"", split->pattern.text);
  return "without a pattern";
}

bool is_nfc(const std::vector<NormalizerStep>& steps) {
  const auto* form = steps.size() == 1 ? std::get_if<UnicodeForm>(&steps.front()) : nullptr;
  return form && *form == UnicodeForm::nfc;
}

void add_bpe(const BpeTokenizer& tokenizer, GgufVocabulary& vocabulary) {
  const BpeSpec& spec = tokenizer.spec();
  const auto pattern = PreTokenizer(spec.pre_tokenizer).pattern();
  const bool bytes = tokenizer.kind() == TokenizerKind::bytes;  // without merges any pattern works
  check(spec.byte_level(), "llama.cpp supports only byte-level BPE, and this tokenizer is not byte-level");
  check(pattern || bytes, Hint{"train the tokenizer with the pattern gpt2, llama3, qwen2 or o200k"},
        "llama.cpp has no name for how this tokenizer splits text: {}", split_text(spec));
  check(spec.normalizer.empty() || (is_nfc(spec.normalizer) && pattern == Pattern::qwen2),
        "llama.cpp does not support this tokenizer's normalizer");  // llama.cpp drops Qwen's NFC, too
  const std::vector<TokenId>&before = spec.post_processor.before, &after = spec.post_processor.after;
  check(after.empty() && (before.empty() || (before.size() == 1 && before[0] == tokenizer.special().bos)),
        "llama.cpp adds only bos before a text; this tokenizer's template adds other tokens");
  vocabulary.model = "gpt2";
  vocabulary.pre = pre_for(pattern.value_or(Pattern::qwen2), spec.ignore_merges).name;
  vocabulary.normalizes = !spec.normalizer.empty();
  auto text = [&](TokenId id) { return spec.vocab[static_cast<std::size_t>(id)]; };
  for (const Merge& merge : spec.merges)
    vocabulary.merges.push_back(text(merge.left) + " " + text(merge.right));
}

// The model type of a SentencePiece model file.
std::uint64_t model_type_of(std::string_view model) {
  constexpr std::uint32_t kTrainerSpec = 2, kModelType = 3;
  std::uint64_t type = 1;  // unigram
  for_each_field(model, [&](const ProtobufField& field) {
    if (!field.is_message(kTrainerSpec)) return;
    for_each_field(field.bytes, [&](const ProtobufField& inner) {
      if (inner.number == kModelType) type = inner.varint;
    });
  });
  return type;
}

void add_pieces(const std::string& model, GgufVocabulary& vocabulary) {
  constexpr std::uint64_t kBpe = 2;
  check(model_type_of(model) == kBpe,
        "llama.cpp supports only SentencePiece models of type BPE, and this one has another type");
  check(std::ranges::count(vocabulary.types, static_cast<std::int32_t>(TokenType::byte)) == 256,
        Hint{"train the tokenizer with byte fallback"},
        "llama.cpp fails on unknown characters if a SentencePiece model has no byte tokens");
  vocabulary.model = "llama";
  vocabulary.pre = "default";
  vocabulary.add_space_prefix = sentencepiece_adds_prefix(model);
  vocabulary.normalizes = sentencepiece_normalizes(model);
  vocabulary.scores = sentencepiece_scores(model);
}

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_from_gguf(const GgufVocabulary& vocabulary) {
  check_types(vocabulary);
  if (vocabulary.model == "gpt2") return bpe_from_gguf(vocabulary);
  if (vocabulary.model == "llama") return pieces_from_gguf(vocabulary);
  fail(Hint{"use a model whose tokenizer is gpt2 or llama"},
       "the GGUF's tokenizer.ggml.model is {}, which thimble does not support", shown(vocabulary.model));
}

GgufVocabulary gguf_vocabulary_of(const Tokenizer& tokenizer) {
  GgufVocabulary vocabulary;
  vocabulary.special = tokenizer.special();
  vocabulary.add_bos = tokenizer.adds_bos();
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    std::string text = tokenizer.token_text(id);
    vocabulary.tokens.push_back(text.empty() ? fmt::format("<|pad_{}|>", id) : std::move(text));
    vocabulary.types.push_back(static_cast<std::int32_t>(tokenizer.token_type(id)));
  }
  if (const auto* bpe = dynamic_cast<const BpeTokenizer*>(&tokenizer)) {
    add_bpe(*bpe, vocabulary);
    return vocabulary;
  }
  add_pieces(tokenizer.serialized(), vocabulary);
  return vocabulary;
}

}  // namespace thimble
