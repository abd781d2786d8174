#include "data/messengers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data/text_files.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLeftToRight = "\xE2\x80\x8E";

// Reads the date and time before a message.
class StampReader {
 public:
  explicit StampReader(std::string_view text) : rest_(text) {}

  std::string_view rest() const { return rest_; }
  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }

  // Skips blanks and marks of the writing direction; returns whether there were any.
  bool skip_blanks() {
    // No-break spaces, marks and embeddings of a direction, isolates.
    constexpr std::string_view kInvisible[] = {" ",
                                               "\xC2\xA0",
                                               "\xE2\x80\xAF",
                                               kLeftToRight,
                                               "\xE2\x80\x8F",
                                               "\xE2\x80\xAA",
                                               "\xE2\x80\xAB",
                                               "\xE2\x80\xAC",
                                               "\xE2\x81\xA6",
                                               "\xE2\x81\xA7",
                                               "\xE2\x81\xA8",
                                               "\xE2\x81\xA9",
                                               kByteOrderMark};
    const std::size_t before = rest_.size();
    while (std::ranges::any_of(kInvisible, [&](std::string_view mark) { return take(mark); })) {
    }
    return rest_.size() < before;
  }

  // A number of at most four digits of any script.
  std::optional<int> number() {
    constexpr char32_t kZeros[] = {U'0', 0x660, 0x6F0, 0x966, 0x9E6};
    int value = 0, digits = 0;
    while (!rest_.empty() && digits < 5) {
      const Utf8Char next = decode_utf8(rest_.data(), rest_.data() + rest_.size());
      const auto zero = std::ranges::find_if(
          kZeros, [&](char32_t first) { return next.valid && next.code >= first && next.code <= first + 9; });
      if (zero == std::end(kZeros)) break;
      value = 10 * value + static_cast<int>(next.code - *zero);
      rest_.remove_prefix(next.bytes);
      ++digits;
    }
    if (digits == 0 || digits > 4) return std::nullopt;
    return value;
  }

 private:
  std::string_view rest_;
};

enum class HalfOfDay { none, morning, afternoon };

struct HalfName {
  std::string_view name;
  HalfOfDay half;
};
// In lower case where the script has it. Longer names come before those they begin with.
constexpr HalfName kHalves[] = {{"a. m.", HalfOfDay::morning},
                                {"p. m.", HalfOfDay::afternoon},
                                {"a.m.", HalfOfDay::morning},
                                {"p.m.", HalfOfDay::afternoon},
                                {"a.\xC2\xA0m.", HalfOfDay::morning},
                                {"p.\xC2\xA0m.", HalfOfDay::afternoon},
                                {"a.\xE2\x80\xAFm.", HalfOfDay::morning},
                                {"p.\xE2\x80\xAFm.", HalfOfDay::afternoon},
                                {"am", HalfOfDay::morning},
                                {"pm", HalfOfDay::afternoon},
                                {"AM", HalfOfDay::morning},
                                {"PM", HalfOfDay::afternoon},
                                {"vorm.", HalfOfDay::morning},
                                {"nachm.", HalfOfDay::afternoon},
                                {"π.μ.", HalfOfDay::morning},
                                {"μ.μ.", HalfOfDay::afternoon},
                                {"fm", HalfOfDay::morning},
                                {"em", HalfOfDay::afternoon},
                                {"SA", HalfOfDay::morning},
                                {"CH", HalfOfDay::afternoon},
                                {"ÖÖ", HalfOfDay::morning},
                                {"ÖS", HalfOfDay::afternoon},
                                {"午前", HalfOfDay::morning},
                                {"午後", HalfOfDay::afternoon},
                                {"上午", HalfOfDay::morning},
                                {"下午", HalfOfDay::afternoon},
                                {"오전", HalfOfDay::morning},
                                {"오후", HalfOfDay::afternoon},
                                {"पूर्वाह्न", HalfOfDay::morning},
                                {"अपराह्न", HalfOfDay::afternoon},
                                {"ق.ظ.", HalfOfDay::morning},
                                {"ب.ظ.", HalfOfDay::afternoon},
                                {"ق.ظ", HalfOfDay::morning},
                                {"ب.ظ", HalfOfDay::afternoon},
                                {"ص", HalfOfDay::morning},
                                {"م", HalfOfDay::afternoon}};

HalfOfDay take_half(StampReader& text) {
  for (const HalfName& half : kHalves)
    if (text.take(half.name)) return half.half;
  return HalfOfDay::none;
}

// The date as written; the order of day, month and year is known only after all lines.
struct Stamp {
  std::array<int, 3> date = {};
  int seconds = 0;  // of the day
};

// "12/31/23, 11:58 PM - " and "[31.12.23, 23:58:00] " and their forms in other languages. Moves
// `line` to what follows; nullopt if the line does not begin so.
std::optional<Stamp> take_stamp(std::string_view& line) {
  // Words between a date and a time.
  constexpr std::string_view kBetween[] = {"um ",  "à ",    "às ",  "a las ", "at ", "kl. ", "kl ",
                                           "klo ", "alle ", "ore ", "в ",     "o ",  "om ",  "u "};
  StampReader text(line);
  text.skip_blanks();
  const bool bracket = text.take("[");
  Stamp stamp;
  bool apart = false;  // whether anything separates date and time
  for (std::size_t i = 0; i < 3; ++i) {
    text.skip_blanks();
    const auto number = text.number();
    if (!number) return std::nullopt;
    stamp.date[i] = *number;
    apart = text.skip_blanks();
    if (i < 2 && !(text.take("/") || text.take(".") || text.take("-"))) return std::nullopt;
  }
  text.take(".");  // "2023. 12. 31."
  apart |= text.take(",") || text.take("،");
  apart |= text.skip_blanks();
  if (!apart) return std::nullopt;
  for (const std::string_view word : kBetween)
    if (text.take(word)) break;
  HalfOfDay half = take_half(text);
  text.skip_blanks();
  const auto hour = text.number();
  if (!hour || !(text.take(":") || text.take("."))) return std::nullopt;
  const auto minute = text.number();
  if (!minute) return std::nullopt;
  int second = 0;
  if (text.take(":") || text.take(".")) {
    const auto number = text.number();
    if (!number) return std::nullopt;
    second = *number;
  }
  text.skip_blanks();
  if (half == HalfOfDay::none) half = take_half(text);
  text.skip_blanks();
  // Korean exports of Android have a comma here.
  if (!(bracket ? text.take("]") : text.take("- ") || text.take("\xE2\x80\x93 ") || text.take(", ")))
    return std::nullopt;
  const bool twelve = half != HalfOfDay::none;
  if (*hour > (twelve ? 12 : 24) || *minute > 59 || second > 60) return std::nullopt;
  const int hours = twelve ? *hour % 12 + (half == HalfOfDay::afternoon ? 12 : 0) : *hour;
  stamp.seconds = hours * 3600 + *minute * 60 + second;
  if (bracket) text.take(" ");
  line = text.rest();
  return stamp;
}

enum class DateOrder { year_month_day, day_month_year, month_day_year };

std::optional<std::int64_t> time_of(const Stamp& stamp, DateOrder order) {
  const auto [a, b, c] = stamp.date;
  const bool year_first = order == DateOrder::year_month_day,
             month_first = order == DateOrder::month_day_year;
  const int year = year_first ? a : c,
            month = year_first    ? b
                    : month_first ? a
                                  : b,
            day = year_first    ? c
                  : month_first ? b
                                : a;
  const std::chrono::year_month_day date{std::chrono::year(year < 100 ? 2000 + year : year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok()) return std::nullopt;
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  return std::int64_t{days} * 86400 + stamp.seconds;
}

// The order in which all dates are valid, go back in time least often, and are nearest to each
// other. Only the lengths of pauses depend on it.
std::optional<DateOrder> order_of(std::span<const Stamp> stamps) {
  std::optional<DateOrder> best;
  std::pair<std::size_t, std::int64_t> least;
  for (const DateOrder order :
       {DateOrder::day_month_year, DateOrder::month_day_year, DateOrder::year_month_day}) {
    const bool year_first = std::ranges::any_of(stamps, [](const Stamp&stamp) { return stamp.date[0] > 31; }),
               year_last = std::ranges::any_of(stamps, [](const Stamp&stamp) { return stamp.date[2] > 31; });
    if ((order == DateOrder::year_month_day ? year_last : year_first)) continue;
    std::pair<std::size_t, std::int64_t> found;  // steps back in time; seconds between messages
    std::optional<std::int64_t> last;
    const bool valid = std::ranges::all_of(stamps, [&](const Stamp& stamp) {
      const auto time = time_of(stamp, order);
      if (time && last) {
        found.first += *time < *last;
        found.second += std::abs(*time - *last);
      }
      last = time;
      return time.has_value();
    });
    if (!valid || (best && found >= least)) continue;
    best = order;
    least = found;
  }
  return best;
}

// Whether the text stands for a photo, a call or a note of the messenger. In exports of iOS these
// begin with an invisible mark; in those of Android they are "<Media omitted>" in some language.
bool is_no_text(std::string_view text) {
  if (text.starts_with(kLeftToRight) || trim(text).empty()) return true;
  text = trim(text);
  if (text.starts_with('<') && text.find('>') == text.size() - 1) return true;
  // "IMG-20231231-WA0001.jpg (file attached)"
  const std::size_t mark = text.find("-WA");
  return mark == 12 && text.ends_with(')') && text.find(" (") != text.npos && text.find('\n') == text.npos;
}

// Removes "<This message was edited>" after an invisible mark, in any language.
std::string_view without_note(std::string_view text) {
  const std::size_t mark = text.rfind(kLeftToRight);
  if (mark == text.npos) return text;
  const std::string_view note = trim(text.substr(mark + kLeftToRight.size()));
  return note.starts_with('<') && note.ends_with('>') ? trim_right(text.substr(0, mark)) : text;
}

std::string_view next_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

// Whether WhatsApp gives this name to exports; it is the same in all languages.
bool has_whatsapp_name(const fs::path& file) {
  const std::string name = lower_case(file.filename().string());
  return name.starts_with("_chat.txt") ||
         (name.find("whatsapp") != name.npos && name.find(".txt") != name.npos);
}

}  // namespace

bool is_whatsapp_export(const fs::path& file) {
  constexpr std::size_t kInspectedBytes = 1 << 16, kLeastMessages = 2;
  if (has_whatsapp_name(file)) return true;
  const std::string start = start_of(file, kInspectedBytes);
  std::string_view text = start;
  std::size_t messages = 0;
  for (bool first = true; !text.empty(); first = false) {
    std::string_view line = next_line(text);
    const bool stamped = take_stamp(line).has_value();
    if (first && !stamped) return false;
    if (stamped && line.find(": ") != line.npos) ++messages;
    if (messages >= kLeastMessages) return true;
  }
  return false;
}

std::vector<ChatMessages> read_whatsapp(std::string_view text, const std::string& name) {
  ChatMessages messages;
  std::vector<Stamp> stamps;
  std::uint64_t number = 0;
  bool stamped_before = false, skipped = false;
  while (!text.empty()) {
    std::string_view line = next_line(text);
    ++number;
    if (const auto stamp = take_stamp(line)) {
      stamped_before = true;
      const std::size_t colon = line.find(": ");
      skipped = colon == line.npos;  // a note of the messenger
      if (skipped) continue;
      std::string_view sender = line.substr(0, colon);
      if (sender.starts_with(kLeftToRight)) sender.remove_prefix(kLeftToRight.size());
      messages.push_back(
          {.sender = std::string(trim(sender)), .text = std::string(line.substr(colon + 2)), .line = number});
      stamps.push_back(*stamp);
      continue;
    }
    check(stamped_before || trim(line).empty(),
          Hint{"export the chat with the phone in another language; if the file is no export, rename it"},
          "{}:{}: expected the date, the time and the sender of a message, found \"{}\"", name, number,
          line.substr(0, 60));
    if (!skipped && !messages.empty()) (messages.back().text += '\n') += line;
  }
  const auto order = order_of(stamps);
  check(order || stamps.empty(), Hint{"pass the messages as .jsonl"},
        "{}: the dates are in no order of day, month and year", name);
  ChatMessages kept;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string_view own = without_note(messages[i].text);
    if (is_no_text(own)) continue;
    messages[i].text = std::string(trim_right(own));
    messages[i].time = *time_of(stamps[i], *order);
    kept.push_back(std::move(messages[i]));
  }
  return {std::move(kept)};
}

std::vector<ChatMessages> read_whatsapp_export(const fs::path& file) {
  const std::string text = read_text_file(file);
  const std::string_view reason = not_text(text);
  check(reason.empty(), "{} is not a text file: {}", file.string(), reason);
  return read_whatsapp(text, file.string());
}

namespace {

// Finds the chats of a Telegram export without a tree of the whole file, which would take several
// times its size.
class TelegramReader {
 public:
  TelegramReader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  std::vector<ChatMessages> chats() {
    if (text_.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
    bool found = false;
    for_each_member([&](const std::string& key) {
      if (key == "messages") {  // the export of one chat
        read_messages();
        found = true;
      } else if (key == "chats" || key == "left_chats") {
        for_each_member([&](const std::string& inner) {
          if (inner != "list") return skip();
          for_each_element([&] {
            for_each_member(
                [&](const std::string& member) { member == "messages" ? read_messages() : skip(); });
          });
          found = true;
        });
      } else {
        skip();
      }
    });
    skip_space();
    expect(at_ == text_.size(), "the end of the file");
    check(found, Hint{"export the chats as \"machine-readable JSON\""},
          "{}: expected \"messages\" or \"chats\"", name_);
    return std::move(chats_);
  }

 private:
  void expect(bool holds, std::string_view what) const {
    if (holds) return;
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
    fail("{}:{}: expected {}, found {}", name_, line, what,
         at_ < text_.size() ? fmt::format("\"{}\"", text_.substr(at_, 20)) : "the end of the file");
  }
  void skip_space() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }
  bool take(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  // The extent of the value at at_, which is passed. Its content is not checked.
  std::string_view value() {
    skip_space();
    const std::size_t begin = at_;
    std::size_t depth = 0;
    do {
      expect(at_ < text_.size(), "the rest of a value");
      const char c = text_[at_];
      if (c == '"') {
        pass_string();
        continue;
      }
      if ((c == ',' || c == '}' || c == ']') && depth == 0) break;
      depth += c == '{' || c == '[';
      depth -= c == '}' || c == ']';
      ++at_;
      // A number or a word at the top level ends at the next separator.
      if (depth == 0 && (c == '}' || c == ']')) break;
      if (depth == 0 && c != '{' && c != '[')
        at_ = std::min(text_.find_first_of(",]} \t\r\n", at_), text_.size());
    } while (depth > 0);
    expect(at_ > begin, "a value");
    return text_.substr(begin, at_ - begin);
  }
  void skip() { value(); }

  void pass_string() {
    for (++at_; at_ < text_.size(); ++at_) {
      at_ = std::min(text_.find_first_of("\"\\", at_), text_.size());
      if (at_ == text_.size()) break;
      if (text_[at_] == '"') {
        ++at_;
        return;
      }
      ++at_;  // an escaped character
    }
    at_ = std::min(at_, text_.size());
    expect(false, "the end of a string");
  }

  template <class Use>
  void for_each_member(const Use& use) {
    expect(take('{'), "an object");
    if (take('}')) return;
    do {
      skip_space();
      expect(at_ < text_.size() && text_[at_] == '"', "a key");
      const std::string key = string_in(value(), "key");
      expect(take(':'), "':'");
      use(key);
    } while (take(','));
    expect(take('}'), "'}'");
  }

  template <class Use>
  void for_each_element(const Use& use) {
    expect(take('['), "an array");
    if (take(']')) return;
    do use();
    while (take(','));
    expect(take(']'), "']'");
  }

  void read_messages() {
    ChatMessages messages;
    for_each_element([&] {
      skip_space();
      lines_ +=
          static_cast<std::uint64_t>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(counted_),
                                                text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n'));
      counted_ = at_;
      const std::uint64_t line = lines_ + 1;
      // Of the many members, only these are parsed.
      Message message;
      for_each_member([&](const std::string& key) {
        const std::string_view text = value();
        for (const auto& [name, member] : message.members())
          if (key == name) *member = text;
      });
      try {
        add(message, line, messages);
      } catch (const Error& error) {
        fail("{}:{}: {}", name_, line, error.what());
      }
    });
    if (!messages.empty()) chats_.push_back(std::move(messages));
  }

  // The JSON of some members; empty if absent.
  struct Message {
    std::string_view type, text, from, from_id, date, unix_time;

    std::array<std::pair<std::string_view, std::string_view*>, 6> members() {
      return {{{"type", &type},
               {"text", &text},
               {"from", &from},
               {"from_id", &from_id},
               {"date", &date},
               {"date_unixtime", &unix_time}}};
    }
  };

  static bool is_string(std::string_view json) { return json.starts_with('"'); }

  std::string string_in(std::string_view json, std::string_view key) const {
    check(is_string(json), "expected \"{}\" to be a string, found {}", key,
          json.empty() ? "none" : json.substr(0, 20));
    const std::string_view inside = json.substr(1, json.size() - 2);
    // Most strings have no escapes.
    const bool plain =
        std::ranges::none_of(inside, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\\'; });
    return plain && is_utf8(inside) ? std::string(inside) : parse_json(json, name_).as_string();
  }

  void add(const Message& message, std::uint64_t line, ChatMessages& messages) const {
    if (string_in(message.type, "type") != "message") return;  // "service"
    std::string text = plain_text(message.text);
    if (trim(text).empty()) return;
    // The name of a deleted account is null.
    const bool named = is_string(message.from);
    messages.push_back({time_of_message(message), string_in(named ? message.from : message.from_id, "from"),
                        std::move(text), line});
  }

  // A string, or a list of strings and of {"type": "bold", "text": ...}.
  std::string plain_text(std::string_view json) const {
    if (is_string(json)) return string_in(json, "text");
    std::string all;
    const Json text = parse_json(json, name_);
    for (const Json& part : text.as_array())
      all += part.is_string() ? part.as_string() : part.at("text").as_string();
    return all;
  }

  std::int64_t time_of_message(const Message& message) const {
    if (is_string(message.unix_time)) {
      const std::string unix_time = string_in(message.unix_time, "date_unixtime");
      const auto seconds = parse_number<std::int64_t>(unix_time);
      check(seconds && *seconds > -(std::int64_t{1} << 40) && *seconds < (std::int64_t{1} << 40),
            "expected \"date_unixtime\" to be seconds, found \"{}\"", unix_time);
      return *seconds;
    }
    const std::string date = string_in(message.date, "date");  // 2023-12-31T23:58:00
    StampReader text(date);
    int parts[6] = {};
    for (int i = 0; i < 6; ++i) {
      const auto number = text.number();
      check(number.has_value() && (i == 5 || text.take(i < 2    ? "-"
                                                       : i == 2 ? "T"
                                                                : ":")),
            "expected a date such as 2023-12-31T23:58:00, found \"{}\"", date);
      parts[i] = *number;
    }
    const auto time = time_of({.date = {parts[0], parts[1], parts[2]}}, DateOrder::year_month_day);
    check(time.has_value(), "there is no day \"{}\"", date);
    return *time + parts[3] * 3600 + parts[4] * 60 + parts[5];
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0, counted_ = 0;
  std::uint64_t lines_ = 0;  // line ends before counted_
  std::vector<ChatMessages> chats_;
};

}  // namespace

bool is_telegram_export(const fs::path& file) {
  constexpr std::size_t kInspectedBytes = 1 << 14;
  const std::string start = start_of(file, kInspectedBytes);
  std::string_view text = start;
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  text = trim(text);
  if (!text.starts_with('{')) return false;
  const auto contains = [&](std::string_view key) { return text.find(key) != text.npos; };
  // One chat: "name", "type" and "id" come before "messages". All chats: "about" comes first.
  const bool one = contains("\"messages\"") && contains("\"type\"") && contains("\"date\"") &&
                   (contains("\"from_id\"") || contains("\"actor_id\"") || contains("\"date_unixtime\""));
  const std::string_view first = trim(text.substr(1));
  const bool all = first.starts_with("\"about\"") && (contains("Telegram") || contains("\"chats\""));
  return one || all || (first.starts_with("\"chats\"") && contains("\"list\""));
}

std::vector<ChatMessages> read_telegram(std::string_view text, const std::string& name) {
  return TelegramReader(text, name).chats();
}

std::vector<ChatMessages> read_telegram_export(const fs::path& file) {
  return read_telegram(read_text_file(file), file.string());
}

void Participants::add(std::span<const ChatMessages> chats) {
  for (const ChatMessages& messages : chats) {
    std::map<std::string, std::uint64_t> bytes;
    for (const ChatMessage& message : messages) bytes[message.sender] += message.text.size();
    if (bytes.size() < 2) continue;
    for (const auto& [name, own] : bytes) {
      Share& share = people_[name];
      ++share.chats;
      share.bytes += own;
    }
  }
}

std::vector<std::pair<std::string, Participants::Share>> Participants::sorted() const {
  std::vector<std::pair<std::string, Share>> people(people_.begin(), people_.end());
  std::ranges::stable_sort(people, [](const auto& a, const auto& b) {
    return std::pair(a.second.chats, a.second.bytes) > std::pair(b.second.chats, b.second.bytes);
  });
  return people;
}

std::string Participants::likely_assistant() const {
  return people_.empty() ? "" : sorted().front().first;
}

void Participants::check_known(std::string_view name) const {
  if (people_.contains(name)) return;
  check(!people_.empty(), "no chat has more than one participant, so nobody is named \"{}\"", name);
  constexpr std::size_t kMostListed = 10;
  std::vector<std::string> names;
  for (const auto& [person, share] : sorted()) {
    if (names.size() == kMostListed) break;
    names.push_back(person);
  }
  fail(Hint{"write the name as it is in the export"},
       "nobody in the chats is named \"{}\"; they are with {}{}", name, joined(names, ", "),
       people_.size() > names.size() ? " and others" : "");
}

std::vector<DatedConversation> conversations_of(const ChatMessages& messages, std::string_view assistant) {
  std::vector<DatedConversation> conversations;
  std::int64_t last = 0;
  for (const ChatMessage& message : messages) {
    const ChatRole role = message.sender == assistant ? ChatRole::assistant : ChatRole::user;
    if (conversations.empty() || message.time - last >= kLongPause)
      conversations.push_back({.turns = {}, .line = message.line});
    last = message.time;
    Conversation& turns = conversations.back().turns;
    if (!turns.empty() && turns.back().role == role)
      (turns.back().content += '\n') += message.text;
    else
      turns.push_back({role, message.text});
  }
  return conversations;
}

}  // namespace thimble
