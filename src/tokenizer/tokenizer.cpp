#include "tokenizer/tokenizer.h"

#include <fmt/core.h>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/parallel.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/unicode.h"

namespace thimble {

std::string_view name_of(TokenizerKind kind) {
  switch (kind) {
    case TokenizerKind::bpe:
      return "bpe";
    case TokenizerKind::sentencepiece:
      return "sentencepiece";
    case TokenizerKind::bytes:
      return "bytes";
  }
  return "";
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::vector<TokenId> ids;
  encode(text, ids, options);
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, DecodeOptions options) const {
  std::string text;
  bool first = true;
  for (const TokenId id : ids) {
    check_id(id);
    const bool control = token_type(id) == TokenType::control;
    if (control && options.keep_special)
      text += token_text(id);
    else
      append_token(id, first, text);
    if (!control) first = false;
  }
  return text;
}

std::vector<std::pair<std::string, TokenId>> Tokenizer::special_tokens() const {
  std::vector<std::pair<std::string, TokenId>> tokens;
  for (TokenId id = 0; id < vocab_size(); ++id)
    if (token_type(id) == TokenType::control) tokens.emplace_back(token_text(id), id);
  return tokens;
}

void Tokenizer::prefer(const SpecialIds& ids) {
  for (const auto member : {&SpecialIds::bos, &SpecialIds::eos, &SpecialIds::unk, &SpecialIds::pad}) {
    if (!(ids.*member)) continue;
    check_id(*(ids.*member));
    // Some files use bos as eos when there is no separate eos. That adds no information.
    if (member == &SpecialIds::eos && ids.eos == special_.bos && !special_.eos) continue;
    special_.*member = ids.*member;
  }
  if (!ids.more_ends.empty()) special_.more_ends = ids.more_ends;
}

bool Tokenizer::adds_bos() const {
  if (texts_begin_with_bos_) return *texts_begin_with_bos_ && special_.bos.has_value();
  if (!special_.bos) return false;
  // Encodes the text of one of its own tokens, because a vocabulary may contain no letters at all.
  for (TokenId id = 0; id < vocab_size(); ++id) {
    if (token_type(id) != TokenType::normal && token_type(id) != TokenType::byte) continue;
    std::string text;
    append_token(id, false, text);
    const std::vector<TokenId> ids = encode(text, {.add_special = true});
    if (!text.empty() && !ids.empty()) return ids.front() == *special_.bos;
  }
  return false;
}

void Tokenizer::check_id(TokenId id) const {
  check(contains(id), "{} is not a token id; the vocabulary has {} tokens", id, vocab_size());
}

std::vector<std::vector<TokenId>> encode_all(const Tokenizer& tokenizer,
                                             std::span<const std::string_view> texts, EncodeOptions options) {
  constexpr std::int64_t kTextsAtOnce = 16;  // makes the cost of borrowing a scratch negligible
  std::vector<std::vector<TokenId>> ids(texts.size());
  parallel_for(static_cast<std::int64_t>(texts.size()), kTextsAtOnce,
               [&](std::int64_t begin, std::int64_t end) {
                 for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
                   tokenizer.encode(texts[i], ids[i], options);
               });
  return ids;
}

std::string bytes_of_token(const Tokenizer& tokenizer, TokenId id) {
  std::string bytes;
  tokenizer.append_token(id, false, bytes);
  return bytes.empty() ? tokenizer.token_text(id) : bytes;
}

std::vector<std::string> special_tokens_for(bool chat) {
  if (!chat) return {"<bos>"};
  return {"<bos>", "<user>", "<assistant>", "<end_turn>", "<system>"};
}

namespace {

constexpr std::string_view kPieceSpace = "\xE2\x96\x81";

bool is_text(TokenType type) {
  return type == TokenType::normal || type == TokenType::user_defined || type == TokenType::byte;
}

}  // namespace

ByteTable::ByteTable(const Tokenizer& tokenizer, TokenId model_vocab) {
  check(model_vocab >= tokenizer.vocab_size(), "the model has {} tokens, fewer than the {} of its tokenizer",
        model_vocab, tokenizer.vocab_size());
  const bool pieces = tokenizer.kind() == TokenizerKind::sentencepiece;
  check(!pieces || tokenizer.id_of(kPieceSpace).has_value(),
        Hint{"retrain the tokenizer with a space in required_chars"},
        "cannot count bytes: the SentencePiece model has no token for a single space");
  const auto size = static_cast<std::size_t>(model_vocab);
  bytes_.resize(size);
  continuations_.resize(size);
  leading_space_.resize(size);
  boundary_.resize(size, 1);
  const auto is_continuation = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  std::string text;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const auto at = static_cast<std::size_t>(id);
    if (!thimble::is_text(tokenizer.token_type(id))) continue;
    text.clear();
    tokenizer.append_token(id, false, text);
    boundary_[at] = 0;
    continuations_[at] = static_cast<std::uint32_t>(std::ranges::count_if(text, is_continuation));
    leading_space_[at] = pieces && tokenizer.token_text(id).starts_with(kPieceSpace);
    bytes_[at] = static_cast<std::uint32_t>(text.size()) - leading_space_[at];
  }
}

std::uint64_t ByteTable::total(std::span<const TokenId> ids) const {
  std::uint64_t sum = 0;
  for (std::size_t i = 1; i < ids.size(); ++i) sum += bytes(ids[i - 1], ids[i]);
  return sum;
}

std::string take_text(std::string& bytes, bool all) {
  std::string out;
  std::size_t at = 0;
  while (at < bytes.size()) {
    const Utf8Char c = decode_utf8(bytes.data() + at, bytes.data() + bytes.size());
    if (c.valid) {
      out.append(bytes, at, c.bytes);
      at += c.bytes;
      continue;
    }
    const BrokenUtf8 broken = broken_utf8(std::string_view(bytes).substr(at));
    if (broken.may_grow && !all) break;
    out += kReplacementCharacter;
    at += broken.bytes;
  }
  bytes.erase(0, at);
  return out;
}

std::string StreamDecoder::push(TokenId id) {
  tokenizer_.append_token(id, first_, waiting_);
  if (tokenizer_.token_type(id) != TokenType::control) first_ = false;
  return take_text(waiting_, false);
}

std::string StreamDecoder::finish() {
  return take_text(waiting_, true);
}

// The bytes tokenizer is byte-level BPE without merges, so other programs can load its file.

std::unique_ptr<Tokenizer> make_bytes_tokenizer(const std::vector<std::string>& special_tokens) {
  BpeSpec spec;
  for (const std::string& token : special_tokens) {
    spec.added_tokens.push_back({.id = static_cast<TokenId>(spec.vocab.size()), .content = token});
    spec.vocab.push_back(token);
  }
  for (unsigned byte = 0; byte < 256; ++byte)
    spec.vocab.push_back(byte_level_text(std::string(1, static_cast<char>(byte))));
  spec.pre_tokenizer = {ByteLevel{.add_prefix_space = false, .use_regex = false}};
  spec.decoder = {ByteLevelDecoder{}};
  if (!special_tokens.empty()) spec.post_processor.before = {0};
  return make_bpe_tokenizer(std::move(spec));
}

bool is_bytes_spec(const BpeSpec& spec) {
  if (!spec.merges.empty() || !spec.byte_level() || spec.vocab.size() != spec.added_tokens.size() + 256)
    return false;
  for (unsigned byte = 0; byte < 256; ++byte)
    if (spec.vocab[spec.added_tokens.size() + byte] !=
        byte_level_text(std::string(1, static_cast<char>(byte))))
      return false;
  return true;
}

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxTokenizerBytes = 256 << 20;
constexpr std::uint64_t kMaxConfigBytes = 64 << 20;

// "bos_token": "<s>" or {"content": "<s>", ...}
std::optional<std::string> named_token(const Json& config, std::string_view key) {
  const Json* value = config.find(key);
  if (!value || value->is_null()) return std::nullopt;
  if (value->is_string()) return value->as_string();
  if (const Json* content = value->find("content"); content && content->is_string())
    return content->as_string();
  return std::nullopt;
}

SpecialIds special_ids_beside(const fs::path& file, const Tokenizer& tokenizer) {
  const fs::path path = file.parent_path() / "tokenizer_config.json";
  if (!fs::is_regular_file(path)) return {};
  const Json config = parse_json(read_file(path, kMaxConfigBytes), path.string());
  auto id = [&](std::string_view key) -> std::optional<TokenId> {
    const auto text = named_token(config, key);
    return text ? tokenizer.id_of(*text) : std::nullopt;
  };
  return {id("bos_token"), id("eos_token"), id("unk_token"), id("pad_token")};
}

bool looks_like_json(std::string_view content) {
  const auto start = content.find_first_not_of(" \t\r\n");
  return start != content.npos && content[start] == '{';
}

fs::path file_in_folder(const fs::path& folder) {
  fs::path file = tokenizer_file_in(folder);
  check(!file.empty(), "{} contains neither tokenizer.json nor tokenizer.model", folder.string());
  return file;
}

}  // namespace

fs::path tokenizer_file_in(const fs::path& folder) {
  const fs::path json = folder / "tokenizer.json", pieces = folder / "tokenizer.model",
                 config = folder / "tokenizer_config.json";
  if (!fs::is_regular_file(pieces)) return fs::is_regular_file(json) ? json : fs::path();
  if (!fs::is_regular_file(json)) return pieces;
  if (!fs::is_regular_file(config)) return json;
  const Json settings = parse_json(read_file(config, kMaxConfigBytes), config.string());
  return settings.find(kSentencePieceKey) ? pieces : json;
}

std::unique_ptr<Tokenizer> load_tokenizer_bytes(std::string content, std::string_view name,
                                                const SpecialIds& known) {
  check(!content.empty(), "{} is empty; expected a tokenizer", name);
  if (!looks_like_json(content)) return load_sentencepiece(std::move(content), name);
  BpeSpec spec = parse_tokenizer_json(content, name);
  try {
    return make_bpe_tokenizer(std::move(spec), known, std::move(content));
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", name, error.what()), Hint{error.hint()}, error.where());
  }
}

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& path) {
  if (!fs::exists(path)) {
    if (path == "bytes") return make_bytes_tokenizer(special_tokens_for(false));
    if (path == "bytes:chat") return make_bytes_tokenizer(special_tokens_for(true));
  }
  const fs::path file = fs::is_directory(path) ? file_in_folder(path) : path;
  auto tokenizer = load_tokenizer_bytes(read_file(file, kMaxTokenizerBytes), file.string());
  tokenizer->prefer(special_ids_beside(file, *tokenizer));
  return tokenizer;
}

}  // namespace thimble
