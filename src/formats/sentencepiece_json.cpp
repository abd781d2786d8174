#include "formats/sentencepiece_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "base/json.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble {

namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581

// What the model file says of itself, beyond its pieces.
struct ModelSettings {
  std::uint64_t model_type = 1;  // unigram
  bool byte_fallback = false, spaces_behind = false;
  std::string_view charsmap = {};
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

ModelSettings settings_of(std::string_view model) {
  constexpr std::uint32_t kTrainerSpec = 2, kNormalizerSpec = 3;
  ModelSettings s;
  for_each_field(model, [&](const ProtobufField& field) {
    if (field.number == kTrainerSpec)
      for_each_field(field.bytes, [&](const ProtobufField& inner) {
        if (inner.number == 3) s.model_type = inner.varint;
        if (inner.number == 24) s.spaces_behind = inner.varint != 0;
        if (inner.number == 35) s.byte_fallback = inner.varint != 0;
      });
    if (field.number == kNormalizerSpec)
      for_each_field(field.bytes, [&](const ProtobufField& inner) {
        if (inner.number == 2) s.charsmap = inner.bytes;
        if (inner.number == 3) s.add_dummy_prefix = inner.varint != 0;
        if (inner.number == 4) s.remove_extra_whitespaces = inner.varint != 0;
        if (inner.number == 5) s.escape_whitespaces = inner.varint != 0;
      });
  });
  return s;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    for (std::size_t j = 0; j < 3; ++j)
      group = group << 8 | (j < count ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    for (std::size_t j = 0; j < 4; ++j) out += j <= count ? kDigits[group >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

bool starts_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}

// Every way to make a piece out of two others, best score first.
std::vector<Merge> merges_of(const Tokenizer& tokenizer, const std::vector<std::string>& vocab,
                             const std::vector<float>& scores) {
  std::unordered_map<std::string_view, TokenId> pieces;
  std::vector<TokenId> order;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id)
    if (tokenizer.token_type(id) == TokenType::normal) {
      pieces.emplace(vocab[static_cast<std::size_t>(id)], id);
      order.push_back(id);
    }
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [&](TokenId id) { return scores.at(static_cast<std::size_t>(id)); });
  std::vector<Merge> merges;
  for (const TokenId id : order) {
    const std::string_view piece = vocab[static_cast<std::size_t>(id)];
    for (std::size_t cut = 1; cut < piece.size(); ++cut) {
      if (!starts_character(piece[cut])) continue;
      const auto left = pieces.find(piece.substr(0, cut)), right = pieces.find(piece.substr(cut));
      if (left != pieces.end() && right != pieces.end()) merges.push_back({left->second, right->second, id});
    }
  }
  return merges;
}

BpeSpec spec_of(const Tokenizer& tokenizer, const ModelSettings& settings) {
  BpeSpec spec;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    spec.vocab.push_back(tokenizer.token_text(id));
    const TokenType type = tokenizer.token_type(id);
    // A piece of the user's is looked for in the normalised text, so that spaces beside it stay; but not where the
    // normaliser would put a prefix before the piece itself.
    const bool own = type == TokenType::user_defined;
    if (type == TokenType::control || type == TokenType::unknown || own)
      spec.added_tokens.push_back({.id = id,
                                   .content = spec.vocab.back(),
                                   .normalized = own && !settings.add_dummy_prefix,
                                   .special = !own});
  }
  spec.merges = merges_of(tokenizer, spec.vocab, sentencepiece_scores(tokenizer.serialized()));
  const SpecialIds& special = tokenizer.special();
  if (special.unk) spec.unk_token = tokenizer.token_text(*special.unk);
  if (tokenizer.adds_bos()) spec.post_processor.before = {*special.bos};
  spec.fuse_unk = true;
  spec.byte_fallback = settings.byte_fallback;
  if (settings.remove_extra_whitespaces) {
    spec.normalizer.push_back(Replace{{"\\A +| +\\z", true}, ""});
    spec.normalizer.push_back(Replace{{" {2,}", true}, " "});
  }
  if (settings.add_dummy_prefix) spec.normalizer.push_back(Prepend{std::string(kSpace)});
  spec.normalizer.push_back(Replace{{" ", false}, std::string(kSpace)});
  spec.decoder = {Replace{{std::string(kSpace), false}, " "}, ByteFallbackDecoder{}, FuseDecoder{}};
  if (settings.add_dummy_prefix || settings.remove_extra_whitespaces)
    spec.decoder.push_back(StripDecoder{.content = " ", .start = 1, .stop = 0});
  return spec;
}

// The table that SentencePiece calls nmt_nfkc and the like; our own BPE has no such step.
std::string with_charsmap(const std::string& text, std::string_view charsmap) {
  Json json = parse_json(text, "tokenizer.json");
  Json steps =
      Json::array({Json::object().set("type", "Precompiled").set("precompiled_charsmap", base64(charsmap))});
  const Json& old = json.at("normalizer");
  if (const Json* sequence = old.find("normalizers"))
    for (const Json& step : sequence->as_array()) steps.push(step);
  else
    steps.push(old);
  json.set("normalizer", Json::object().set("type", "Sequence").set("normalizers", std::move(steps)));
  return json.dump(2) + "\n";
}

}  // namespace

void append_pad_tokens(BpeSpec& spec, std::int64_t rows) {
  const std::unordered_set<std::string> known(spec.vocab.begin(), spec.vocab.end());
  for (auto id = static_cast<std::int64_t>(spec.vocab.size()); id < rows; ++id) {
    spec.vocab.push_back(pad_token_text(id, known));
    spec.added_tokens.push_back({.id = static_cast<TokenId>(id), .content = spec.vocab.back()});
  }
}

std::optional<std::string> sentencepiece_as_json(const Tokenizer& tokenizer, std::int64_t rows) {
  constexpr std::uint64_t kBpe = 2;
  const std::string model = tokenizer.serialized();
  const ModelSettings settings = settings_of(model);
  if (settings.model_type != kBpe || settings.spaces_behind || !settings.escape_whitespaces)
    return std::nullopt;
  BpeSpec spec = spec_of(tokenizer, settings);
  append_pad_tokens(spec, rows);
  const std::string text = write_tokenizer_json(spec);
  return settings.charsmap.empty() ? text : with_charsmap(text, settings.charsmap);
}

}  // namespace thimble
