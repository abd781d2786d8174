// Exports of messengers as conversations: WhatsApp ("_chat.txt") and Telegram ("result.json").
//
//   12/31/23, 11:58 PM - Ann: Are you there?        user:      Are you there?
//   12/31/23, 11:59 PM - Bob: Yes.                  assistant: Yes.
//   12/31/23, 11:59 PM - Bob: Happy new year!                  Happy new year!
//
// One participant becomes the assistant, the others the user. Consecutive messages of one side are
// one turn. A pause of kLongPause begins a new conversation. Left out: messages without text
// (photos, calls, stickers) and messages of the messenger itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/chat_layout.h"

namespace thimble {

inline constexpr std::int64_t kLongPause = 8 * 3600;  // seconds

struct ChatMessage {
  std::int64_t time = 0;  // in seconds, from any origin
  std::string sender = {}, text = {};
  std::uint64_t line = 1;  // 0: not known
};
using ChatMessages = std::vector<ChatMessage>;  // of one chat, in the order of the export

// Whether the file is an export of this messenger, by its content. A file that WhatsApp named and
// whose dates are in a form that is not known is an export too; reading it is an error.
bool is_whatsapp_export(const std::filesystem::path& file);
bool is_telegram_export(const std::filesystem::path& file);

// The export is read completely; more than 1 GB is an error. Dates may be in any order of day,
// month and year, with 12 or 24 hours, in Western, Arabic, Persian, Devanagari or Bengali digits.
// Throws for words in a date or time that are not known, rather than guess their meaning.
std::vector<ChatMessages> read_whatsapp_export(const std::filesystem::path& file);
std::vector<ChatMessages> read_telegram_export(const std::filesystem::path& file);
std::vector<ChatMessages> read_whatsapp(std::string_view text, const std::string& name);
std::vector<ChatMessages> read_telegram(std::string_view text, const std::string& name);

// The people in the chats of one or more exports.
class Participants {
 public:
  // Chats with one participant, such as channels, do not count.
  void add(std::span<const ChatMessages> chats);

  // The person who takes part in the most chats; of several, the one who wrote the most text. In a
  // complete export that is its owner. Empty if there is nobody.
  std::string likely_assistant() const;

  // Throws if nobody has this name; the error lists those who wrote the most.
  void check_known(std::string_view name) const;
  bool empty() const { return people_.empty(); }

 private:
  struct Share {
    std::uint64_t chats = 0, bytes = 0;
  };
  std::vector<std::pair<std::string, Share>> sorted() const;

  std::map<std::string, Share, std::less<>> people_;
};

struct DatedConversation {
  Conversation turns;
  std::uint64_t line = 1;  // where it begins; 0: not known
};
std::vector<DatedConversation> conversations_of(const ChatMessages& messages, std::string_view assistant);

}  // namespace thimble
