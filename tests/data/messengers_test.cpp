#include "data/messengers.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "data/document.h"
#include "data/records.h"
#include "support/message_of.h"
#include "support/temp_folder.h"

namespace thimble::messengers_test {
namespace {

using Lines = std::vector<std::string>;

// "sender: text" of each message of the only chat.
Lines messages(std::string_view text) {
  Lines lines;
  for (const ChatMessages& chat : read_whatsapp(text, "chat.txt"))
    for (const ChatMessage& message : chat) lines.push_back(message.sender + ": " + message.text);
  return lines;
}

std::vector<std::int64_t> pauses(std::string_view text) {
  const ChatMessages chat = read_whatsapp(text, "chat.txt").at(0);
  std::vector<std::int64_t> between;
  for (std::size_t i = 1; i < chat.size(); ++i) between.push_back(chat[i].time - chat[i - 1].time);
  return between;
}

TEST(WhatsApp, AndroidMessagesMayHaveSeveralLines) {
  EXPECT_EQ(messages("12/31/23, 11:58 PM - Messages and calls are end-to-end encrypted. Learn more.\n"
                     "of the note\n"
                     "12/31/23, 11:58 PM - Ann: Are you there?\n"
                     "1/1/24, 12:01 AM - Bob: Yes: here.\n"
                     "\n"
                     "Second line\n"
                     "1/1/24, 12:02 AM - Ann: <Media omitted>\n"
                     "1/1/24, 12:03 AM - Ann: IMG-20240101-WA0003.jpg (file attached)\n"
                     "1/1/24, 12:04 AM - Ann changed the group name\n"),
            (Lines{"Ann: Are you there?", "Bob: Yes: here.\n\nSecond line"}));
}

TEST(WhatsApp, IosMessagesHaveBracketsAndInvisibleMarks) {
  EXPECT_EQ(messages("\xE2\x80\x8E[31.12.23, 23:58:59] Ann: \xE2\x80\x8ENachrichten sind verschlüsselt.\r\n"
                     "[31.12.23, 23:59:00] Ann: Bist du da?\r\n"
                     "[01.01.24, 00:00:01] ~\xE2\x80\xAF"
                     "Bob: Ja \xE2\x80\x8E<Diese Nachricht wurde bearbeitet.>\r\n"
                     "\xE2\x80\x8E[01.01.24, 00:00:02] Bob: \xE2\x80\x8E<Anhang: 00000012-PHOTO.jpg>\r\n"),
            (Lines{"Ann: Bist du da?",
                   "~\xE2\x80\xAF"
                   "Bob: Ja"}));
}

// The same minute in the forms of several languages.
TEST(WhatsApp, DatesAndTimesOfManyLanguagesAreUnderstood) {
  for (const std::string_view stamp : {"31/12/2023, 23:58 - ",
                                       "31/12/2023 23:58 - ",
                                       "31.12.23, 23:58 - ",
                                       "[31.12.23, 23:58:00] ",
                                       "12/31/23, 11:58\xE2\x80\xAFPM - ",
                                       "[12/31/23, 11:58:00 PM] ",
                                       "2023-12-31, 23:58 - ",
                                       "31/12/23, 11:58 p. m. - ",
                                       "31/12/2023, 11:58 p.m. - ",
                                       "31/12/2023 à 23:58 - ",
                                       "31.12.23 um 23:58 - ",
                                       "[2023/12/31 23:58:00] ",
                                       "2023/12/31 下午11:58 - ",
                                       "2023/12/31 午後11:58 - ",
                                       "2023. 12. 31. 오후 11:58, ",
                                       "31.12.2023 klo 23.58 - ",
                                       "31-12-2023 23:58 - ",
                                       "٣١/١٢/٢٠٢٣، ١١:٥٨ م - ",
                                       "۲۰۲۳/۱۲/۳۱،\xE2\x80\x8F ۲۳:۵۸ - ",
                                       "३१/१२/२३, ११:५८ अपराह्न - "}) {
    const std::string text = fmt::format("{0}Ann: one\n{0}Bob: two\n", stamp);
    ASSERT_EQ(messages(text), (Lines{"Ann: one", "Bob: two"})) << stamp;
    EXPECT_EQ(pauses(text), (std::vector<std::int64_t>{0})) << stamp;
    EXPECT_EQ(read_whatsapp(text, "").at(0).at(0).time, 1704067080) << stamp;
  }
}

TEST(WhatsApp, AnUnknownLanguageIsAnErrorNotAGuess) {
  const auto error = [](std::string_view text) { return message_of([&] { messages(text); }); };
  EXPECT_EQ(
      error("31/12/23, 11:58 xyzzy - Ann: one\n"),
      "chat.txt:1: expected the date, the time and the sender of a message, found \"31/12/23, 11:58 xyzzy - "
      "Ann: one\"");
  EXPECT_NE(error("31 December 2023 at noon - Ann: one\n").find("expected the date"), std::string::npos);
  EXPECT_EQ(error("31/31/31, 10:00 - Ann: one\n"),
            "chat.txt: the dates are in no order of day, month and year");
  EXPECT_TRUE(messages("").empty());
}

TEST(WhatsApp, TheOrderOfDayAndMonthFollowsFromAllDates) {
  // Only the second date decides.
  EXPECT_EQ(pauses("1/2/23, 10:00 - A: x\n1/13/23, 10:00 - B: y\n"), (std::vector<std::int64_t>{11 * 86400}));
  EXPECT_EQ(pauses("1/2/23, 10:00 - A: x\n13/2/23, 10:00 - B: y\n"), (std::vector<std::int64_t>{12 * 86400}));
  // Both orders are valid, but one goes back in time.
  EXPECT_EQ(pauses("5/1/23, 10:00 - A: x\n1/2/23, 10:00 - B: y\n"), (std::vector<std::int64_t>{27 * 86400}));
}

TEST(WhatsApp, ExportsAreRecognizedByNameOrContent) {
  const TempFolder folder;
  const std::string chat = "31.12.23, 23:58 - Ann: one\n31.12.23, 23:59 - Bob: two\n";
  for (const char* name :
       {"_chat.txt", "WhatsApp Chat with Ann.txt", "Chat de WhatsApp con Ann.txt", "mum.txt"})
    EXPECT_EQ(form_in(folder.write(name, chat), false).name, "WhatsApp export") << name;
  for (const std::string_view text :
       {"One day, 10:00 - Ann: one\n", "31.12.23, 23:58 - a diary: one entry\nand text\n", "",
        "1. first\n2. second\n"})
    EXPECT_EQ(form_in(folder.write("a.txt", text), false).name, "text") << text;
  EXPECT_EQ(form_in(folder.write("a.md", chat), false).name, "Markdown");
}

constexpr std::string_view kTelegram = R"({
 "name": "Ann", "type": "personal_chat", "id": 7,
 "messages": [
  {"id": 1, "type": "service", "date": "2023-12-31T23:00:00", "actor": "Ann", "actor_id": "user1", "text": ""},
  {"id": 2, "type": "message", "date": "2023-12-31T23:58:00", "date_unixtime": "1704067080", "from": "Ann",
   "from_id": "user1", "text": ["Look: ", {"type": "link", "text": "https://a.b"}, " \"}]"], "text_entities": []},
  {"id": 3, "type": "message", "date": "2024-01-01T00:58:00", "from": null, "from_id": "user2", "text": "Nice"},
  {"id": 4, "type": "message", "date": "2024-01-01T00:59:00", "from": "Ann", "from_id": "user1", "photo": "x.jpg",
   "text": ""}
 ]
})";

TEST(Telegram, MessagesHaveTextAsAStringOrAList) {
  const auto chats = read_telegram(kTelegram, "result.json");
  ASSERT_EQ(chats.size(), 1u);
  ASSERT_EQ(chats[0].size(), 2u);
  EXPECT_EQ(chats[0][0].sender, "Ann");
  EXPECT_EQ(chats[0][0].text, "Look: https://a.b \"}]");
  EXPECT_EQ(chats[0][0].line, 5u);
  EXPECT_EQ(chats[0][1].sender, "user2");  // a deleted account
  EXPECT_EQ(chats[0][1].time - chats[0][0].time, 3600);
}

TEST(Telegram, CompleteExportsContainAllChats) {
  const std::string all = fmt::format(
      R"({{"about": "Here is the data you requested from Telegram", "personal_information": {{"first_name": "Ann"}},
      "contacts": {{"list": [1, [2], "}}"]}}, "chats": {{"about": "x", "list": [{0}, {0}]}},
      "left_chats": {{"about": "", "list": [{0}]}}}})",
      kTelegram);
  EXPECT_EQ(read_telegram(all, "result.json").size(), 3u);
}

TEST(Telegram, ExportsAreRecognizedByTheirContent) {
  const TempFolder folder;
  EXPECT_EQ(form_in(folder.write("result.json", kTelegram), false).name, "Telegram export");
  EXPECT_EQ(form_in(folder.write("a.json", R"({"about": "Here is", "chats": {"list": []}})"), false).name,
            "Telegram export");
  for (const std::string_view json : {R"({"messages": [{"role": "user", "content": "from_id"}]})",
                                      R"([{"text": "x"}])", R"({"about": "a cat", "text": "x"})"})
    EXPECT_EQ(form_in(folder.write("b.json", json), false).name, "a JSON array") << json;
}

TEST(Telegram, DamagedExportsAreErrorsWithTheLine) {
  const auto error = [](std::string_view text) { return message_of([&] { read_telegram(text, "r.json"); }); };
  for (std::size_t size = 0; size < kTelegram.size(); ++size)
    EXPECT_NE(error(kTelegram.substr(0, size)), "nothing was thrown") << size;
  EXPECT_EQ(error("{\"messages\": [\n{\"type\": \"message\", \"text\": 5, \"date\": \"\"}]}"),
            "r.json:2: expected an array, found 5");
  EXPECT_EQ(error("{\"a\": 1}"), "r.json: expected \"messages\" or \"chats\"");
  EXPECT_EQ(error("{\"messages\": []} x"), "r.json:1: expected the end of the file, found \"x\"");
}

ChatMessages chat_of(std::initializer_list<std::tuple<double, const char*, const char*>> hours) {
  ChatMessages messages;
  for (const auto& [hour, sender, text] : hours)
    messages.push_back({.time = static_cast<std::int64_t>(hour * 3600), .sender = sender, .text = text});
  return messages;
}

TEST(Conversations, SidesMergeAndLongPausesBeginNewOnes) {
  const auto found = conversations_of(
      chat_of({{0, "Ann", "a"}, {1, "Cid", "b"}, {2, "Bob", "c"}, {9.9, "Bob", "d"}, {18, "Ann", "e"}}),
      "Bob");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].turns, (Conversation{{ChatRole::user, "a\nb"}, {ChatRole::assistant, "c\nd"}}));
  EXPECT_EQ(found[1].turns, (Conversation{{ChatRole::user, "e"}}));
}

TEST(Participants, TheOneInMostChatsIsTheLikelyAssistant) {
  Participants people;
  const ChatMessages first = chat_of({{0, "Ann", "a long text"}, {1, "Me", "b"}}),
                     second = chat_of({{0, "Bob", "longer than all"}, {1, "Me", "b"}}),
                     channel = chat_of({{0, "News", "very long, but nobody else is here"}});
  people.add(std::vector<ChatMessages>{first});
  EXPECT_EQ(people.likely_assistant(), "Ann");  // wrote the most
  people.add(std::vector<ChatMessages>{second, channel});
  EXPECT_EQ(people.likely_assistant(), "Me");
  EXPECT_EQ(message_of([&] { people.check_known("News"); }),
            "nobody in the chats is named \"News\"; they are with Me, Bob, Ann");
  people.check_known("Bob");
}

TEST(Participants, OneAssistantIsChosenForAllExportsOfAFolder) {
  const TempFolder folder;
  folder.write("a/_chat.txt", "31.12.23, 10:00 - Ann: a long text\n31.12.23, 10:01 - Me: b\n");
  folder.write("b/result.json",
               R"({"name": "Bob", "type": "personal_chat", "messages": [
      {"type": "message", "date": "2023-12-31T10:00:00", "from": "Bob", "from_id": "1", "text": "longer than all"},
      {"type": "message", "date": "2023-12-31T10:01:00", "from": "Me", "from_id": "2", "text": "c"}]})");
  const DataSource source = find_source(folder.path().string());
  EXPECT_EQ(detect_kind(source), DataKind::chat);
  const std::span<const DataSource> sources(&source, 1);
  EXPECT_EQ(assistant_in(sources, ""), "Me");
  EXPECT_EQ(assistant_in(sources, "Ann"), "Ann");
  EXPECT_THROW(assistant_in(sources, "Eve"), Error);
  const ReadOptions options{.kind = DataKind::chat, .assistant = "Me"};
  RecordReader reader(source, options);
  std::vector<Conversation> found;
  while (auto record = reader.next()) found.push_back(read_document(*record, options).turns);
  EXPECT_EQ(found,
            (std::vector<Conversation>{{{ChatRole::user, "a long text"}, {ChatRole::assistant, "b"}},
                                       {{ChatRole::user, "longer than all"}, {ChatRole::assistant, "c"}}}));
}

}  // namespace
}  // namespace thimble::messengers_test
