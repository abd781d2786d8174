#include "data/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json.h"

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

namespace {

std::string text_in(const Json& json, const std::string& field) {
  check(json.is_object(), Hint{"pass --chat to read chats"}, "expected an object with the key \"{}\"", field);
  const Json* value = json.find(field);
  check(value != nullptr,
        Hint{"pass another key with `thimble data build --text-field KEY`, or pass --chat to read chats"},
        "the key \"{}\" is missing", field);
  check(value->is_string(), "expected \"{}\" to be a string", field);
  return value->as_string();
}

void read_json(const Record& record, const ReadOptions& options, Document& document) {
  const Json json = parse_json(record.raw, record.file->string(), {.first_line = record.line});
  try {
    if (options.kind == DataKind::text) {
      document.text = text_in(json, options.text_field);
    } else {
      document.turns = parse_conversation(json);
      document.cut = cut_to_last_answer(document.turns);
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
                               TextSourceOptions options, const Interrupt* interrupt)
    : files_(std::move(files)), kind_(kind), options_(options), interrupt_(interrupt) {
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
  if (!form_of(file, kind_ == DataKind::chat && begins_like_json(file)).json) {
    text_.emplace(std::vector{file}, options_);
    return true;
  }
  source_ = {.name = file.string(), .files = {file}};
  records_.emplace(source_, options_.split, true);
  read_.kind = kind_ ? *kind_ : detect_kind(source_);
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

DataKind detect_kind(const DataSource& source) {
  constexpr int kMaxRecordsRead = 100;
  RecordReader reader(source, DocumentSplit::line, false);
  for (int i = 0; i < kMaxRecordsRead; ++i) {
    const auto record = reader.next();
    if (!record || !record->json) break;
    try {
      const Json json = parse_json(record->raw, record->file->string());
      return looks_like_conversation(json) ? DataKind::chat : DataKind::text;
    } catch (const Error&) {  // invalid JSON is reported when the source is read completely
    }
  }
  return DataKind::text;
}

namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t';
}

bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c & 0x80) != 0;
}

std::string_view trimmed(std::string_view line) {
  while (!line.empty() && is_space(line.front())) line.remove_prefix(1);
  while (!line.empty() && (is_space(line.back()) || line.back() == '\r')) line.remove_suffix(1);
  return line;
}

bool is_fence(std::string_view line) {
  const std::string_view text = trimmed(line);
  return text.starts_with("```") || text.starts_with("~~~");
}

// A line of marks only, at least three: "---", "***", "===", "|---|:--:|".
bool is_rule(std::string_view line) {
  const std::string_view text = trimmed(line);
  const bool marks = text.find_first_not_of("-*_=|: ") == text.npos;
  return marks && std::ranges::count_if(
                      text, [](char c) { return c == '-' || c == '*' || c == '_' || c == '='; }) >= 3;
}

// Removes heading, quote and bullet marks ("## ", "> ", "- ") and appends the indentation to `out`.
std::string_view remove_line_marks(std::string_view line, std::string& out) {
  while (true) {
    std::size_t at = 0;
    while (at < line.size() && is_space(line[at])) ++at;
    const std::string_view rest = line.substr(at);
    const std::size_t hashes = std::min(rest.find_first_not_of('#'), rest.size());
    const bool heading = hashes >= 1 && hashes <= 6 && (hashes == rest.size() || is_space(rest[hashes]));
    const bool quote = rest.starts_with('>');
    const bool bullet =
        rest.size() >= 2 && (rest[0] == '-' || rest[0] == '*' || rest[0] == '+') && is_space(rest[1]);
    if (!heading && !quote && !bullet) return line;
    out += line.substr(0, at);
    line = rest.substr(heading ? hashes : 1);
    if (!line.empty() && is_space(line.front())) line.remove_prefix(1);
  }
}

struct Link {
  std::string_view text;
  std::size_t end = 0;  // index after the link; 0: not a link
};

// Parses "[text](address)" at the start of `line`. The limits on length and nesting bound the time,
// because every '[' of a line is tried.
Link link_at(std::string_view line) {
  constexpr std::size_t kMaxLinkBytes = 2000, kMaxNesting = 16;
  line = line.substr(0, kMaxLinkBytes);
  std::size_t depth = 0, close = 0;
  for (; close < line.size(); ++close) {
    if (line[close] == '[' && ++depth > kMaxNesting) return {};
    if (line[close] == ']' && --depth == 0) break;
  }
  if (close + 1 >= line.size() || line[close + 1] != '(') return {};
  const std::size_t end = line.find(')', close + 1);
  return end == line.npos ? Link{} : Link{line.substr(1, close - 1), end + 1};
}

// Length of a run of emphasis marks ("**", "_", "`", "~~") at `at`, or 0 if the marks are literal,
// as in "2 * 3" and "snake_case".
std::size_t emphasis_at(std::string_view line, std::size_t at) {
  const char mark = line[at];
  if (mark != '*' && mark != '_' && mark != '`' && mark != '~') return 0;
  std::size_t end = at;
  while (end < line.size() && line[end] == mark) ++end;
  if (mark == '`') return end - at;
  if (mark == '~' && end - at != 2) return 0;
  const bool word_before = at > 0 && is_word(line[at - 1]),
             word_after = end < line.size() && is_word(line[end]);
  const bool space_before = at == 0 || is_space(line[at - 1]);
  const bool space_after = end == line.size() || is_space(line[end]);
  if (space_before && space_after) return 0;
  if (mark == '_' && word_before && word_after) return 0;
  return end - at;
}

void append_plain(std::string_view line, std::string& out) {
  constexpr std::string_view kEscapable = "\\`*_{}[]()#+-.!|>~";
  for (std::size_t at = 0; at < line.size();) {
    const char c = line[at];
    if (c == '\\' && at + 1 < line.size() && kEscapable.find(line[at + 1]) != kEscapable.npos) {
      out += line[at + 1];
      at += 2;
      continue;
    }
    const std::size_t image = c == '!' && at + 1 < line.size() && line[at + 1] == '[' ? 1 : 0;
    if (c == '[' || image) {
      if (const Link link = link_at(line.substr(at + image)); link.end > 0) {
        append_plain(link.text, out);
        at += image + link.end;
        continue;
      }
    }
    if (const std::size_t marks = emphasis_at(line, at)) {
      at += marks;
      continue;
    }
    out += c;
    ++at;
  }
}

void append_table_row(std::string_view line, std::string& out) {
  std::string_view row = trimmed(line);
  row.remove_prefix(1);
  if (row.ends_with('|')) row.remove_suffix(1);
  while (true) {
    const std::size_t bar = std::min(row.find('|'), row.size());
    append_plain(trimmed(row.substr(0, bar)), out);
    if (bar == row.size()) return;
    out += ' ';
    row.remove_prefix(bar + 1);
  }
}

}  // namespace

bool ends_in_code(std::string_view text, bool in_code) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (is_fence(text.substr(0, end))) in_code = !in_code;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return in_code;
}

std::string strip_markdown(std::string_view text, bool in_code) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const bool newline = end < text.size();
    text.remove_prefix(newline ? end + 1 : end);
    if (is_fence(line)) {
      in_code = !in_code;
      continue;
    }
    if (in_code) {
      out += line;
    } else if (is_rule(line)) {
      continue;
    } else if (trimmed(line).starts_with('|') && trimmed(line).size() > 1) {
      append_table_row(line, out);
    } else {
      append_plain(remove_line_marks(line, out), out);
    }
    if (newline) out += '\n';
  }
  return out;
}

}  // namespace thimble
