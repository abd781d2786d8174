#include "formats/hugging_face_write_tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "formats/sentencepiece_json.h"
#include "tokenizer/bpe_tokenizer.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble {

namespace {

// Rows of the embedding that no token has are named, so that every id has a text (DESIGN 8.5). What was trained here
// begins with bos, whatever its tokenizer's file said (DESIGN 8.1): this one says it.
std::string complete_tokenizer_json(const Tokenizer& tokenizer, std::int64_t rows) {
  BpeSpec spec = dynamic_cast<const BpeTokenizer&>(tokenizer).spec();
  const bool lacks_bos = tokenizer.adds_bos() && spec.post_processor.before.empty();
  if (tokenizer.vocab_size() == rows && !lacks_bos) return tokenizer.serialized();
  if (lacks_bos) spec.post_processor.before = {*tokenizer.special().bos};
  append_pad_tokens(spec, rows);
  return write_tokenizer_json(spec);
}

// bos_token and its like, as texts.
Json named_tokens(const Tokenizer& tokenizer, const std::vector<TokenId>& ends) {
  Json map = Json::object();
  const auto add = [&](const char* key, std::optional<TokenId> id) {
    if (id) map.set(key, tokenizer.token_text(*id));
  };
  const SpecialIds& special = tokenizer.special();
  add("bos_token", special.bos);
  add("eos_token", ends.empty() ? std::nullopt : std::optional(ends.front()));
  add("unk_token", special.unk);
  add("pad_token", special.pad);
  return map;
}

// What ends a text: eos, else the bos of the next one; in a chat the end of a turn comes first.
std::vector<TokenId> ends_of_text(const Tokenizer& tokenizer, const std::optional<ChatLayout>& layout) {
  std::vector<TokenId> ends;
  if (layout) ends.push_back(layout->end_id());
  const SpecialIds& special = tokenizer.special();
  const std::optional<TokenId> end = special.eos ? special.eos : special.bos;
  if (end && std::ranges::find(ends, *end) == ends.end()) ends.push_back(*end);
  return ends;
}

std::optional<ChatLayout> layout_of(const ModelFile& model, const Tokenizer& tokenizer,
                                    std::vector<std::string>& notes) {
  if (model.layout.empty()) return std::nullopt;
  try {
    return ChatLayout(tokenizer, model.layout);
  } catch (const Error& error) {  // a foreign layout that came in by an import
    notes.push_back(fmt::format("no chat template: {}", error.what()));
    return std::nullopt;
  }
}

// Everything of the folder but tokenizer.json, which knows itself what it is.
Json tokenizer_config(const Json& tokens, const ModelConfig& config,
                      const std::optional<ChatLayout>& layout) {
  Json out = Json::object();
  for (const auto& [key, text] : tokens.as_object()) out.set(key, text);
  // Said to be absent: Transformers' class for qwen2, which it takes whatever is asked for, would add <|endoftext|>.
  for (const char* key : {"unk_token", "pad_token"})
    if (!tokens.find(key)) out.set(key, Json());
  out.set("model_max_length", config.context).set("clean_up_tokenization_spaces", false);
  // Without it the class adds token_type_ids, which these models refuse.
  out.set("model_input_names", Json::array({"input_ids", "attention_mask"}));
  if (layout) out.set("chat_template", jinja_template(layout->text()));
  return out;
}

}  // namespace

TokenizerFiles hugging_face_tokenizer(const ModelFile& model, const Tokenizer& tokenizer) {
  const ModelConfig& config = model.config.model;
  TokenizerFiles out;
  const std::optional<ChatLayout> layout = layout_of(model, tokenizer, out.notes);
  out.ends = ends_of_text(tokenizer, layout);
  out.chats = layout.has_value();
  const Json tokens = named_tokens(tokenizer, out.ends);
  Json settings = tokenizer_config(tokens, config, layout);
  if (tokenizer.kind() != TokenizerKind::sentencepiece) {
    out.files.emplace_back("tokenizer.json", complete_tokenizer_json(tokenizer, config.vocab_size));
    settings.set("tokenizer_class", "PreTrainedTokenizerFast");
  } else {
    out.files.emplace_back("tokenizer.model", tokenizer.serialized());
    settings.set(std::string(kSentencePieceKey), "tokenizer.model");
    if (!tokenizer.adds_bos()) settings.set("add_bos_token", false);
    if (auto json = sentencepiece_as_json(tokenizer, config.vocab_size)) {
      out.files.emplace_back("tokenizer.json", std::move(*json));
      settings.set("tokenizer_class", "PreTrainedTokenizerFast");
    } else {
      settings.set("tokenizer_class", "LlamaTokenizer");
      out.notes.push_back(
          "the SentencePiece model is no BPE: only tokenizer.model, which needs libsentencepiece there");
    }
  }
  out.files.emplace_back("tokenizer_config.json", settings.dump(2) + "\n");
  out.files.emplace_back("special_tokens_map.json", tokens.dump(2) + "\n");
  return out;
}

}  // namespace thimble
