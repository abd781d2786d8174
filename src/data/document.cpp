#include "data/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "base/table.h"
#include "base/text.h"
#include "data/markup.h"
#include "tokenizer/unicode.h"

namespace thimble {

namespace {

struct RoleName {
  std::string_view name;
  ChatRole role;
};
// "human" and "gpt" are used by ShareGPT.
constexpr std::array<RoleName, 5> kRoleNames = {{{"system", ChatRole::system},
                                                 {"user", ChatRole::user},
                                                 {"human", ChatRole::user},
                                                 {"assistant", ChatRole::assistant},
                                                 {"gpt", ChatRole::assistant}}};

ChatRole role_with_name(const std::string& name) {
  const auto found =
      std::ranges::find_if(kRoleNames, [&](const RoleName& known) { return known.name == name; });
  check(found != kRoleNames.end(), "unknown role \"{}\", expected system, user or assistant", name);
  return found->role;
}

const std::string& text_at(const Json& object, std::string_view key) {
  const Json& value = object.at(key);
  check(value.is_string(), "expected \"{}\" to be a string", key);
  return value.as_string();
}

// Role names of ShareGPT and OpenAI are accepted in every form, because some files mix them.
Turn parse_turn(const Json& turn) {
  const bool share_gpt = turn.find("from") != nullptr;
  return {role_with_name(text_at(turn, share_gpt ? "from" : "role")),
          text_at(turn, share_gpt ? "value" : "content")};
}

Conversation parse_turns(const Json& turns) {
  Conversation conversation;
  for (const Json& turn : turns.as_array()) {
    try {
      conversation.push_back(parse_turn(turn));
    } catch (const Error& error) {
      fail("turn {}: {}", conversation.size() + 1, error.what());
    }
  }
  return conversation;
}

const Json* turns_in(const Json& object) {
  for (const std::string_view key : {"messages", "conversations", "conversation"})
    if (const Json* turns = object.find(key)) return turns;
  return nullptr;
}

Conversation parse_alpaca(const Json& example) {
  Conversation conversation;
  if (const Json* system = example.find("system");
      system && !system->is_null() && !system->as_string().empty())
    conversation.push_back({ChatRole::system, system->as_string()});
  if (const Json* history = example.find("history"); history && !history->is_null())
    for (const Json& round : history->as_array()) {
      check(round.size() == 2, "expected \"history\" to contain pairs of a question and an answer");
      conversation.push_back({ChatRole::user, round.as_array()[0].as_string()});
      conversation.push_back({ChatRole::assistant, round.as_array()[1].as_string()});
    }
  std::string question = text_at(example, "instruction");
  if (const Json* input = example.find("input"); input && !input->is_null() && !input->as_string().empty())
    question += "\n\n" + input->as_string();
  conversation.push_back({ChatRole::user, std::move(question)});
  conversation.push_back({ChatRole::assistant, text_at(example, "output")});
  return conversation;
}

}  // namespace

bool looks_like_conversation(const Json& json) {
  if (json.is_array()) return json.size() == 0 || json.as_array()[0].is_object();
  return turns_in(json) || (json.find("instruction") && json.find("output"));
}

Conversation parse_conversation(const Json& json) {
  if (json.is_array()) return parse_turns(json);
  if (const Json* turns = turns_in(json)) return parse_turns(*turns);
  check(json.find("instruction") != nullptr,
        Hint{"pass a list of {role, content}, or an object with \"messages\", \"conversations\", or "
             "\"instruction\" and \"output\"; for text, remove --chat"},
        "expected a chat");
  return parse_alpaca(json);
}

Json conversation_json(const Conversation& conversation) {
  Json messages = Json::array();
  for (const Turn& turn : conversation)
    messages.push(Json::object().set("role", name_of(turn.role)).set("content", turn.content));
  return Json::object().set("messages", std::move(messages));
}

std::size_t cut_to_last_answer(Conversation& conversation) {
  const auto last = std::find_if(conversation.rbegin(), conversation.rend(),
                                 [](const Turn& turn) { return turn.role == ChatRole::assistant; });
  const auto cut = static_cast<std::size_t>(last - conversation.rbegin());
  conversation.resize(conversation.size() - cut, Turn{ChatRole::user, {}});
  return cut;
}

std::string fields_problem(const Json& record, std::string_view field) {
  constexpr std::size_t kMostListed = 20;
  if (!record.is_object()) return fmt::format("expected an object with the field \"{}\"", field);
  std::vector<std::string> names;
  for (const auto& [key, value] : record.as_object()) {
    if (names.size() == kMostListed) break;
    names.push_back(shortened(key, 60));
  }
  return fmt::format("expected a field \"{}\", found {}{}", field,
                     names.empty() ? "none" : joined(names, ", "),
                     record.size() > names.size() ? ", ..." : "");
}

namespace {

// Indices after the answers that end an exchange, except the last one of the conversation.
std::vector<std::size_t> exchange_ends(const Conversation& turns) {
  std::vector<std::size_t> ends;
  for (std::size_t i = 1; i + 1 < turns.size(); ++i)
    if (turns[i].role == ChatRole::assistant && turns[i + 1].role != ChatRole::assistant)
      ends.push_back(i + 1);
  return ends;
}

// Where part_of() cuts: the number of turns before a share of the bytes.
std::size_t turns_before(const Conversation& turns, double share) {
  if (share <= 0) return 0;
  const std::vector<std::size_t> ends = exchange_ends(turns);
  if (share >= 1 || ends.empty()) return turns.size();
  double total = 0, before = 0, nearest = 2;
  for (const Turn& turn : turns) total += static_cast<double>(turn.content.size());
  std::size_t best = turns.size(), counted = 0;
  for (const std::size_t end : ends) {
    for (; counted < end; ++counted) before += static_cast<double>(turns[counted].content.size());
    const double distance = std::abs(before / std::max(total, 1.0) - share);
    if (distance < nearest) best = end;
    nearest = std::min(nearest, distance);
  }
  return best;
}

}  // namespace

Conversation part_of(Conversation turns, const RecordPart& part) {
  const std::size_t begin = turns_before(turns, part.begin), end = turns_before(turns, part.end);
  turns.resize(end, Turn{ChatRole::user, {}});
  const bool system = begin > 0 && begin < end && turns[0].role == ChatRole::system;
  turns.erase(turns.begin() + (system ? 1 : 0), turns.begin() + static_cast<std::ptrdiff_t>(begin));
  return turns;
}

bool has_parts(const Conversation& turns) {
  return !exchange_ends(turns).empty();
}

namespace {

std::string text_in(const Json& json, const std::string& field) {
  const Json* value = json.find(field);
  check(value != nullptr,
        Hint{"name the field of the text with --text-field FIELD, or pass --chat to read chats"}, "{}",
        fields_problem(json, field));
  if (value->is_null()) return "";  // data sets have such rows
  check(value->is_string(), "expected \"{}\" to be a string", field);
  return value->as_string();
}

// The part of the text between two shares of its bytes, at the starts of characters.
std::string text_part(const std::string& text, const RecordPart& part) {
  const auto at = [&](double share) {
    if (share <= 0 || share >= 1) return share <= 0 ? 0 : text.size();
    return character_boundary(text, static_cast<std::size_t>(share * static_cast<double>(text.size())));
  };
  const std::size_t begin = at(part.begin), end = at(part.end);
  return text.substr(begin, end - begin);
}

void read_json(const Record& record, const ReadOptions& options, Document& document) {
  if (!record.problem.empty()) throw Error(record.problem);
  const Json json = parse_json(record.raw, record.file->string(), {.first_line = record.line});
  try {
    if (options.kind == DataKind::text) {
      document.text = text_part(text_in(json, options.text_field), record.part);
    } else {
      document.turns = parse_conversation(json);
      document.cut = cut_to_last_answer(document.turns);
      document.divisible = has_parts(document.turns);
      if (record.part.begin > 0 || record.part.end < 1) {
        if (record.part.begin > 0) document.cut = 0;
        document.turns = part_of(std::move(document.turns), record.part);
      }
    }
  } catch (const Error& error) {
    throw Error(fmt::format("{}:{}: {}", record.file->string(), record.line, error.what()),
                Hint{error.hint()}, error.where());
  }
}

}  // namespace

std::uint64_t Document::content_bytes() const {
  std::uint64_t bytes = text.size();
  for (const Turn& turn : turns) bytes += turn.content.size();
  return bytes;
}

Digest Document::digest() const {
  if (turns.empty()) return digest_of(text);
  Digester digester;
  // With the length, "a" + "bc" and "ab" + "c" have different digests.
  for (const Turn& turn : turns)
    digester.add(fmt::format("{} {} {}", name_of(turn.role), turn.content.size(), turn.content));
  return digester.result();
}

Document read_document(Record& record, const ReadOptions& options) {
  Document document;
  try {
    if (record.json)
      read_json(record, options, document);
    else
      document.text = std::move(record.raw);
  } catch (const Error& error) {
    document = {.problem = error.what(), .hint = error.hint()};
    return document;
  }
  if (options.strip_markdown) {
    document.text = strip_markdown(document.text, record.in_code);
    for (Turn& turn : document.turns) turn.content = strip_markdown(turn.content);
  }
  return document;
}

ContentsStream::ContentsStream(std::vector<std::filesystem::path> files, std::optional<DataKind> kind,
                               TextSourceOptions options, const Interrupt* interrupt, std::string text_field)
    : files_(std::move(files)), kind_(kind), options_(options), interrupt_(interrupt) {
  read_.text_field = std::move(text_field);
  for (const std::filesystem::path& file : files_) stored_bytes_ += std::filesystem::file_size(file);
}

std::uint64_t ContentsStream::stored_bytes_read() const {
  return finished_bytes_ + (text_      ? text_->stored_bytes_read()
                            : records_ ? records_->stored_bytes_read()
                                       : 0);
}

bool ContentsStream::open_next_file() {
  finished_bytes_ = stored_bytes_read();
  text_.reset();
  records_.reset();
  if (next_file_ == files_.size()) return false;
  const std::filesystem::path& file = files_[next_file_++];
  const FileForm& form = form_in(file, kind_ == DataKind::chat && begins_like_json(file));
  if (!form.json) {
    TextSourceOptions options = options_;
    options.open = form.open_text;
    text_.emplace(std::vector{file}, options);
    return true;
  }
  source_ = {.name = file.string(), .files = {file}};
  read_.kind = kind_ ? *kind_ : detect_kind(source_, read_.text_field);
  // A file with an unknown ending is read as JSON lines.
  ReadOptions options = read_;
  if (&form == &file_forms()[1]) options.kind = DataKind::chat;
  records_.emplace(source_, options);
  if (read_.kind == DataKind::chat) has_conversations_ = true;
  return true;
}

std::optional<TextDocument> ContentsStream::next_record() {
  auto record = records_->next();
  if (!record) return std::nullopt;
  const Document document = read_document(*record, read_);
  check(document.problem.empty(), Hint{document.hint}, "{}", document.problem);
  contents_ = document.text;
  for (const Turn& turn : document.turns) contents_ += turn.content + "\n";
  return TextDocument{contents_, record->starts, record->ends, record->line};
}

std::optional<TextDocument> ContentsStream::next() {
  while (true) {
    if (interrupt_) interrupt_->throw_if_interrupted();
    const auto document = text_ ? text_->next() : records_ ? next_record() : std::nullopt;
    if (document) {
      text_bytes_ += document->text.size();
      if (!document->text.empty()) return document;
    } else if (!open_next_file()) {
      return std::nullopt;
    }
  }
}

}  // namespace thimble
