#include "infer/chat_request.h"

#include <algorithm>

#include "infer/end_ids.h"

namespace thimble {

std::vector<TokenId> chat_stop_ids(const ChatLayout& layout) {
  const SpecialIds& special = layout.tokenizer().special();
  std::vector<TokenId> ids = {layout.end_id()};
  for (const TokenId id : end_ids(layout.tokenizer())) {
    const bool starts = id == special.bos && id != special.eos;  // ends documents, never an answer
    if (!starts && !std::ranges::count(ids, id)) ids.push_back(id);
  }
  return ids;
}

std::vector<TokenId> chat_suppressed_ids(const ChatLayout& layout) {
  const Tokenizer& tokenizer = layout.tokenizer();
  const std::vector<TokenId> stops = chat_stop_ids(layout);
  std::vector<TokenId> ids;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const TokenType type = tokenizer.token_type(id);
    const bool special =
        type == TokenType::control || type == TokenType::unknown || type == TokenType::unused;
    if (special && !std::ranges::count(stops, id)) ids.push_back(id);
  }
  return ids;
}

ChatRequest chat_request(const ChatLayout& layout, std::span<const Turn> turns, std::int64_t context,
                         Request asked) {
  FittedPrompt prompt = fit_prompt(layout, turns, context);
  asked.prompt = std::move(prompt.ids);
  asked.max_tokens = std::min(asked.max_tokens, prompt.answer_tokens);
  asked.min_tokens = std::max<std::int64_t>(asked.min_tokens, 1);
  asked.stop_ids = chat_stop_ids(layout);
  const std::vector<TokenId> never = chat_suppressed_ids(layout);
  asked.sampling.suppressed.insert(asked.sampling.suppressed.end(), never.begin(), never.end());
  asked.starts_text = true;
  return {std::move(asked), prompt.tokens_dropped};
}

}  // namespace thimble
