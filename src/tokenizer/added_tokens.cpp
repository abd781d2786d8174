#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "tokenizer/unicode.h"

namespace thimble {

namespace {

unsigned first_byte(const AddedToken& token) {
  return static_cast<unsigned char>(token.content[0]);
}

// The last character before `end`.
Utf8Char character_before(std::string_view text, std::size_t end) {
  std::size_t start = end - 1;
  while (start > 0 && end - start < 4 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
  const Utf8Char c = decode_utf8(text.data() + start, text.data() + end);
  return c.valid && c.bytes == end - start ? c : Utf8Char{};
}

Utf8Char character_after(std::string_view text, std::size_t at) {
  return decode_utf8(text.data() + at, text.data() + text.size());
}

bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) {
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

// Where a token could start, at or after `at`.
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
    if (token->single_word && !stands_alone(text, begin, end)) continue;
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

}  // namespace thimble
