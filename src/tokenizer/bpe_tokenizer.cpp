#include "tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/unicode.h"

namespace thimble {

namespace {

unsigned first_byte(const AddedToken& token) {
  return static_cast<unsigned char>(token.content[0]);
}

// The character that ends at `end`.
Utf8Char character_before(std::string_view text, std::size_t end) {
  std::size_t start = end - 1;
  while (start > 0 && end - start < 4 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
  const Utf8Char c = decode_utf8(text.data() + start, text.data() + end);
  return c.valid && c.bytes == end - start ? c : Utf8Char{};
}

Utf8Char character_after(std::string_view text, std::size_t at) {
  return decode_utf8(text.data() + at, text.data() + text.size());
}

bool is_separate_word(std::string_view text, std::size_t begin, std::size_t end) {
  auto in_word = [](const Utf8Char& c) { return c.valid && is_word_character(c.code); };
  return !(begin > 0 && in_word(character_before(text, begin))) &&
         !(end < text.size() && in_word(character_after(text, end)));
}

bool is_space(const Utf8Char& c) {
  return c.valid && (class_of(c.code) & kSpaces);
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
    return first_byte(a) != first_byte(b) ? first_byte(a) < first_byte(b)
                                          : a.content.size() > b.content.size();
  });
  for (const AddedToken& token : tokens_) {
    ++first_[first_byte(token) + 1];
    if (!token.special) ++plain_;
  }
  for (std::size_t b = 1; b < first_.size(); ++b) first_[b] += first_[b - 1];
}

// The first position at or after `at` where an added token can start.
std::size_t AddedTokenFinder::next_start(std::string_view text, std::size_t at) const {
  const unsigned only = first_byte(tokens_.front());
  if (only == first_byte(tokens_.back()))
    return std::min(text.find(static_cast<char>(only), at), text.size());
  auto starts_none = [&](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return first_[byte] == first_[byte + 1u];
  };
  while (at < text.size() && starts_none(text[at])) ++at;
  return at;
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text, std::size_t at) const {
  const auto byte = static_cast<unsigned char>(text[at]);
  const std::string_view rest = text.substr(at);
  for (std::uint32_t i = first_[byte]; i < first_[byte + 1u]; ++i)
    if (rest.starts_with(tokens_[i].content)) return &tokens_[i];
  return nullptr;
}

std::vector<TextSegment> AddedTokenFinder::split(std::string_view text, bool trusted) const {
  std::vector<TextSegment> segments;
  std::size_t done = 0;
  if (tokens_.empty()) return {{-1, text}};
  for (std::size_t at = 0; (at = next_start(text, at)) < text.size();) {
    const AddedToken* token = longest_at(text, at);
    if (!token) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + token->content.size();
    at = end;
    if (token->special && !trusted) continue;
    if (token->single_word && !is_separate_word(text, begin, end)) continue;
    if (token->lstrip)
      while (begin > done && is_space(character_before(text, begin)))
        begin -= character_before(text, begin).bytes;
    if (token->rstrip)
      while (end < text.size() && is_space(character_after(text, end)))
        end += character_after(text, end).bytes;
    if (begin > done) segments.push_back({-1, text.substr(done, begin - done)});
    segments.push_back({token->id, text.substr(begin, end - begin)});
    done = end;
    at = std::max(at, end);
  }
  if (done < text.size()) segments.push_back({-1, text.substr(done)});
  return segments;
}

namespace {

std::vector<AddedToken> added_with(const BpeSpec& spec, const Normalizer& normalizer, bool normalized) {
  std::vector<AddedToken> tokens;
  for (AddedToken token : spec.added_tokens) {
    if (token.normalized != normalized) continue;
    if (normalized) {
      std::string buffer;
      token.content = std::string(normalizer.apply(token.content, buffer));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

std::vector<TokenType> types_of(const BpeSpec& spec, const BpeModel& model) {
  std::vector<TokenType> types(spec.vocab.size(), TokenType::normal);
  for (std::size_t id = 0; id < types.size(); ++id)
    if (spec.vocab[id].empty()) types[id] = TokenType::unused;
  if (spec.byte_fallback)
    for (unsigned byte = 0; byte < 256; ++byte)
      if (const TokenId id = model.byte_id(static_cast<unsigned char>(byte)); id >= 0)
        types[static_cast<std::size_t>(id)] = TokenType::byte;
  for (const AddedToken& token : spec.added_tokens)
    types[static_cast<std::size_t>(token.id)] = token.special ? TokenType::control : TokenType::user_defined;
  return types;
}

}  // namespace

std::unique_ptr<BpeScratch> BpeTokenizer::ScratchPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      auto scratch = std::move(free_.back());
      free_.pop_back();
      return scratch;
    }
    if (made_ >= std::max(std::thread::hardware_concurrency(), 1u))
      return std::make_unique<BpeScratch>(false);
    free_.reserve(++made_);  // so that give_back does not allocate
  }
  return std::make_unique<BpeScratch>();
}

void BpeTokenizer::ScratchPool::give_back(std::unique_ptr<BpeScratch> scratch) noexcept {
  if (!scratch->has_cache()) return;
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(scratch));
}

BpeTokenizer::BpeTokenizer(BpeSpec spec, const SpecialIds& known, std::string source)
    : spec_(std::move(spec)),
      source_(std::move(source)),
      model_(spec_),
      normalizer_(spec_.normalizer),
      pre_tokenizer_(spec_.pre_tokenizer),
      decoder_(spec_.byte_level() ? std::vector<DecoderStep>{} : spec_.decoder),
      raw_finder_(added_with(spec_, normalizer_, false)),
      normalized_finder_(added_with(spec_, normalizer_, true)),
      types_(types_of(spec_, model_)),
      kind_(is_bytes_spec(spec_) ? TokenizerKind::bytes : TokenizerKind::bpe) {
  find_special_ids();
  prefer(known);
}

void BpeTokenizer::find_special_ids() {
  auto first_of = [&](std::initializer_list<std::string_view> names) -> std::optional<TokenId> {
    for (const std::string_view name : names)
      for (const AddedToken& token : spec_.added_tokens)
        if (token.content == name) return token.id;
    return std::nullopt;
  };
  special_.bos = first_of({"<bos>", "<s>", "<|im_start|>", "<|begin_of_text|>"});
  special_.eos = first_of({"<eos>", "</s>", "<|im_end|>", "<|end_of_text|>", "<|endoftext|>"});
  if (!spec_.unk_token.empty()) special_.unk = model_.id_of(spec_.unk_token);
  special_.pad = first_of({"<pad>", "[PAD]", "<|pad|>"});
}

void BpeTokenizer::encode(std::string_view text, std::vector<TokenId>& ids, EncodeOptions options) const {
  const std::vector<TokenId>& before = spec_.post_processor.before;
  if (options.add_special && before.empty() && texts_begin_with_bos_.value_or(false) && special_.bos)
    ids.push_back(*special_.bos);
  if (options.add_special) ids.insert(ids.end(), before.begin(), before.end());
  // Given back even if a text cannot be encoded.
  const auto give_back = [this](BpeScratch* borrowed) {
    pool_.give_back(std::unique_ptr<BpeScratch>(borrowed));
  };
  const std::unique_ptr<BpeScratch, decltype(give_back)> scratch(pool_.take().release(), give_back);
  if (raw_finder_.empty() || (!options.trusted && !raw_finder_.searches_untrusted_text())) {
    encode_segment(text, *scratch, options.trusted, ids);
  } else {
    for (const TextSegment& segment : raw_finder_.split(text, options.trusted)) {
      if (segment.id >= 0)
        ids.push_back(segment.id);
      else
        encode_segment(segment.text, *scratch, options.trusted, ids);
    }
  }
  if (options.add_special)
    ids.insert(ids.end(), spec_.post_processor.after.begin(), spec_.post_processor.after.end());
}

void BpeTokenizer::encode_segment(std::string_view text, BpeScratch& scratch, bool trusted,
                                  std::vector<TokenId>& ids) const {
  std::string buffer;
  const std::string_view normalized = normalizer_.apply(text, buffer);
  if (normalized_finder_.empty() || (!trusted && !normalized_finder_.searches_untrusted_text()))
    return encode_normalized(normalized, scratch, ids);
  for (const TextSegment& segment : normalized_finder_.split(normalized, trusted)) {
    if (segment.id >= 0)
      ids.push_back(segment.id);
    else
      encode_normalized(segment.text, scratch, ids);
  }
}

void BpeTokenizer::encode_normalized(std::string_view text, BpeScratch& scratch,
                                     std::vector<TokenId>& ids) const {
  pre_tokenizer_.for_each(text, [&](std::string_view word) { model_.encode_word(word, scratch, ids); });
}

std::string BpeTokenizer::decode(std::span<const TokenId> ids, DecodeOptions options) const {
  if (!spec_.byte_level()) return Tokenizer::decode(ids, options);
  std::string text;
  text.reserve(ids.size() * 4);
  for (const TokenId id : ids) {
    check_id(id);
    if (const TokenType type = types_[static_cast<std::size_t>(id)]; type == TokenType::normal)
      text += model_.token_bytes(id);
    else if (type == TokenType::user_defined || (type == TokenType::control && options.keep_special))
      text += spec_.vocab[static_cast<std::size_t>(id)];
  }
  return text;
}

void BpeTokenizer::append_token(TokenId id, bool first, std::string& text) const {
  check_id(id);
  switch (token_type(id)) {
    case TokenType::control:
    case TokenType::unused:
      return;
    case TokenType::user_defined:
      text += spec_.vocab[static_cast<std::size_t>(id)];
      return;
    default:
      break;
  }
  if (spec_.byte_level())
    text += model_.token_bytes(id);
  else
    decoder_.append(spec_.vocab[static_cast<std::size_t>(id)], first, text);
}

std::string BpeTokenizer::token_text(TokenId id) const {
  check_id(id);
  return spec_.vocab[static_cast<std::size_t>(id)];
}

TokenType BpeTokenizer::token_type(TokenId id) const {
  check_id(id);
  return types_[static_cast<std::size_t>(id)];
}

std::optional<TokenId> BpeTokenizer::id_of(std::string_view token_text) const {
  return model_.id_of(token_text);
}

std::string BpeTokenizer::serialized() const {
  return source_.empty() ? write_tokenizer_json(spec_) : source_;
}

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeSpec spec, const SpecialIds& known, std::string source) {
  return std::make_unique<BpeTokenizer>(std::move(spec), known, std::move(source));
}

}  // namespace thimble
