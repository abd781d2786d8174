#include "infer/chat_session.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace thimble {

namespace {

constexpr std::string_view kBlanksAndPunctuation = " \t\r\n!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

// Drops text until the first character that is neither a blank nor punctuation.
class TidyStart {
 public:
  explicit TidyStart(bool tidy) : waits_(tidy) {}

  std::string_view push(std::string_view piece) {
    if (!waits_) return piece;
    const std::size_t first = piece.find_first_not_of(kBlanksAndPunctuation);
    if (first == std::string_view::npos) return {};
    waits_ = false;
    return piece.substr(first);
  }

 private:
  bool waits_;
};

}  // namespace

ChatSession::ChatSession(Batcher& batcher, const ChatLayout& layout, ChatOptions options)
    : batcher_(batcher), layout_(layout), options_(std::move(options)), system_(options_.system) {
  change(options_.request);
}

void ChatSession::change(Request request) {
  Request checked = request;
  checked.prompt = {layout_.end_id()};  // any valid prompt, to check the other fields
  check_request(checked, batcher_.model().config(), batcher_.tokenizer());
  options_.request = std::move(request);
}

Conversation ChatSession::with_system(Conversation turns) const {
  if (!system_.empty()) turns.insert(turns.begin(), {ChatRole::system, system_});
  return turns;
}

Reply ChatSession::ask(std::string question, const Show& show, const Interrupt* interrupt) {
  Conversation turns = history_;
  turns.push_back({ChatRole::user, question});
  ChatRequest chat = chat_request(layout_, with_system(turns), context(), options_.request);
  chat.request.samples = 1;
  chat.request.sampling.seed += answers_;
  Reply reply{
      .text = {}, .usage = {}, .tokens_dropped = chat.tokens_dropped, .seed = chat.request.sampling.seed};

  last_question_ = question;
  last_kept_ = false;
  ++answers_;
  TidyStart start(options_.tidy);
  const auto take = [&](const Event& event) {
    const std::string_view piece = start.push(event.text);
    reply.text += piece;
    if (show && !piece.empty()) show(piece);
  };
  const std::vector<Sample> samples = generate(batcher_, std::move(chat.request), take, interrupt);
  reply.finish = samples[0].finish;
  reply.usage = samples[0].usage;
  reply.kept = last_kept_ = !trim(reply.text).empty();
  if (reply.kept) {
    turns.push_back({ChatRole::assistant, reply.text});
    history_ = std::move(turns);
  }
  return reply;
}

Reply ChatSession::retry(const Show& show, const Interrupt* interrupt) {
  check(last_question_.has_value(), "there is no question to ask again");
  const auto restore = [this, before = history_, kept = last_kept_] {
    history_ = before;
    last_kept_ = kept;
  };
  if (last_kept_) history_.resize(history_.size() - 2, Turn{ChatRole::user, {}});
  try {
    Reply reply = ask(*last_question_, show, interrupt);
    if (!reply.kept) restore();
    return reply;
  } catch (...) {
    restore();
    throw;
  }
}

void ChatSession::clear() {
  history_.clear();
  last_question_.reset();
}

void ChatSession::set_system(std::string text) {
  system_ = std::move(text);
}

void ChatSession::replace(Conversation history) {
  clear();
  system_.clear();
  if (!history.empty() && history.front().role == ChatRole::system) {
    system_ = history.front().content;
    history.erase(history.begin());
  }
  history_ = std::move(history);
  if (history_.size() < 2 || history_.back().role != ChatRole::assistant) return;
  if (const Turn& question = history_[history_.size() - 2]; question.role == ChatRole::user) {
    last_question_ = question.content;
    last_kept_ = true;
  }
}

std::int64_t ChatSession::context() const {
  return batcher_.model().config().context;
}

std::int64_t ChatSession::context_used() const {
  return static_cast<std::int64_t>(layout_.conversation(with_system(history_)).size());
}

}  // namespace thimble
