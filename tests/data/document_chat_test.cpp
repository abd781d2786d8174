// Conversations and their JSON forms.
#include "data/document.h"

#include "base/error.h"
#include "base/json.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

Conversation parsed(std::string_view text) {
  return parse_conversation(parse_json(text, "test"));
}

std::string problem(std::string_view text) {
  try {
    parsed(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(Chat, ParsesAllFourJsonForms) {
  const Conversation expected = {{ChatRole::user, "Hi"}, {ChatRole::assistant, "Hello."}};
  EXPECT_EQ(parsed(R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}])"),
            expected);
  EXPECT_EQ(parsed(R"({"id": 7, "messages": [{"role": "user", "content": "Hi"},
                                             {"role": "assistant", "content": "Hello."}]})"),
            expected);
  EXPECT_EQ(
      parsed(R"({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]})"),
      expected);
  EXPECT_EQ(parsed(R"({"instruction": "Hi", "input": "", "output": "Hello."})"), expected);
}

TEST(Chat, AlpacaAppendsInputToInstruction) {
  EXPECT_EQ(
      parsed(R"({"instruction": "Add.", "input": "1 2", "output": "3", "system": "Be brief."})"),
      (Conversation{
          {ChatRole::system, "Be brief."}, {ChatRole::user, "Add.\n\n1 2"}, {ChatRole::assistant, "3"}}));
}

TEST(Chat, AlpacaHistoryBecomesEarlierTurns) {
  EXPECT_EQ(parsed(R"({"instruction": "c", "output": "d", "history": [["a", "b"]]})"),
            (Conversation{{ChatRole::user, "a"},
                          {ChatRole::assistant, "b"},
                          {ChatRole::user, "c"},
                          {ChatRole::assistant, "d"}}));
  EXPECT_EQ(problem(R"({"instruction": "c", "output": "d", "history": [["a"]]})"),
            "expected \"history\" to contain pairs of a question and an answer");
}

TEST(Chat, ErrorsContainTheTurnNumber) {
  EXPECT_EQ(problem(R"([{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}])"),
            "turn 2: unknown role \"tool\", expected system, user or assistant");
  EXPECT_EQ(problem(R"([{"role": "user"}])"), "turn 1: the key \"content\" is missing");
  EXPECT_EQ(problem(R"([{"role": "user", "content": null}])"), "turn 1: expected \"content\" to be a string");
  EXPECT_EQ(problem(R"([{"content": "a"}])"), "turn 1: the key \"role\" is missing");
  EXPECT_EQ(problem(R"({"conversations": [{"from": "gpt"}]})"), "turn 1: the key \"value\" is missing");
  EXPECT_EQ(problem(R"({"instruction": "a"})"), "the key \"output\" is missing");
  EXPECT_EQ(problem(R"({"text": "a"})"), "expected a chat");
  EXPECT_EQ(problem(R"("text")"), "expected a chat");
}

TEST(Chat, TurnsAfterTheLastAnswerAreRemoved) {
  const auto cut = [](Conversation turns) {
    const std::size_t went = cut_to_last_answer(turns);
    return std::pair(went, turns.size());
  };
  const Turn user{ChatRole::user, "q"}, assistant{ChatRole::assistant, "a"};
  EXPECT_EQ(cut({user, assistant}), std::pair(std::size_t{0}, std::size_t{2}));
  EXPECT_EQ(cut({user, assistant, user, user}), std::pair(std::size_t{2}, std::size_t{2}));
  EXPECT_EQ(cut({user, user}), std::pair(std::size_t{2}, std::size_t{0}));
  EXPECT_EQ(cut({}), std::pair(std::size_t{0}, std::size_t{0}));
}

TEST(Chat, RoundTripsThroughJson) {
  const Conversation turns = {
      {ChatRole::system, "S"}, {ChatRole::user, "\"U\"\n"}, {ChatRole::assistant, "A"}};
  EXPECT_EQ(parse_conversation(conversation_json(turns)), turns);
}

std::vector<std::string> contents(const std::vector<std::filesystem::path>& files,
                                  std::optional<DataKind> kind) {
  ContentsStream stream(files, kind, {});
  std::vector<std::string> texts;
  while (const auto document = stream.next()) texts.emplace_back(document->text);
  return texts;
}

TEST(ContentsStream, GivesTheTextsWithoutTheJson) {
  TempFolder folder;
  const std::string chat =
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})";
  const std::vector<std::filesystem::path> chats = {folder.write("a.jsonl", chat + "\n\n" + chat + "\n"),
                                                    folder.write("b.txt", "plain\n"),
                                                    folder.write("c.txt", chat + "\n")};
  using Texts = std::vector<std::string>;
  EXPECT_EQ(contents(chats, DataKind::chat), (Texts{"q\na\n", "q\na\n", "plain\n", "q\na\n"}));
  // Without a kind, only the ending tells that a file is JSON.
  EXPECT_EQ(contents(chats, std::nullopt), (Texts{"q\na\n", "q\na\n", "plain\n", chat + "\n"}));
  const auto texts = folder.write("d.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
  EXPECT_EQ(contents({texts}, std::nullopt), (Texts{"one", "two"}));
  EXPECT_THROW(contents({texts}, DataKind::chat), Error);
}

}  // namespace
}  // namespace thimble
