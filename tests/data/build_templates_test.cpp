// build_dataset() of conversations in the template of another program.
#include <algorithm>

#include "data/built.h"
#include "data/shard.h"
#include "support/message_of.h"
#include "tokenizer/chat_layout.h"

namespace thimble::build_test {
namespace {

constexpr std::string_view kTurns =
    "jinja:{% for m in messages %}{% if m.content == 'no' %}{{ raise_exception('not this') }}{% endif %}"
    "<system>{{ m.role }}\n{{ m.content }}<end_turn>{% endfor %}"
    "{% if add_generation_prompt %}<system>assistant\n{% endif %}";

BuildRequest templated(const TempFolder& folder, const std::string& chats, const std::string& out) {
  BuildRequest request{.inputs = {folder.write("chats.jsonl", chats).string()},
                       .tokenizer = load_tokenizer("bytes:chat"),
                       .folder = folder.path() / out};
  request.read.kind = DataKind::chat;
  request.read.layout = kTurns;
  return request;
}

constexpr const char* kChatLine =
    R"({"messages":[{"role":"user","content":"U"},{"role":"assistant","content":"A<user>"}]})"
    "\n";

TEST(Build, ChatsInATemplateHaveMarks) {
  const TempFolder folder;
  const BuildRequest request = templated(folder, kChatLine, "data");
  const BuildResult built = build(request);
  EXPECT_EQ(built.manifest.layout(), kTurns);
  const std::vector<TokenId> tokens = tokens_of(request.folder, built.manifest.train);
  const LearnedConversation chat =
      ChatLayout(*request.tokenizer, kTurns)
          .learned(Conversation{{ChatRole::user, "U"}, {ChatRole::assistant, "A<user>"}});
  ASSERT_EQ(tokens.size(), chat.ids.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(without_marks(tokens[i]), chat.ids[i]);
    EXPECT_EQ((tokens[i] & kLearnedMark) != 0, chat.learned[i]) << i;
    EXPECT_EQ((tokens[i] & kDocumentMark) != 0, i == 0);
  }
  EXPECT_EQ(std::ranges::count(chat.learned, true), 8 + 0) << "A<user> as text is 7 bytes, then <end_turn>";
  EXPECT_EQ(std::ranges::count(chat.ids, 1), 0) << "<user> was typed";
  BuildRequest roles = request;
  roles.read.layout = kRolesLayout;
  roles.folder = folder.path() / "roles";
  EXPECT_FALSE(build(roles).manifest.settings.find("layout"));
  // Cut inside of the question, nothing is learned.
  BuildRequest cut = request;
  cut.folder = folder.path() / "cut";
  cut.limits.context = 6;
  EXPECT_NE(message_of([&] { build(cut); }).find("1 conversations are too long"), std::string::npos);
}

TEST(Build, AConversationThatTheTemplateRejectsIsNamedOrSkipped) {
  const TempFolder folder;
  const std::string bad =
      R"({"messages":[{"role":"user","content":"no"},{"role":"assistant","content":"A"}]})"
      "\n";
  BuildRequest request = templated(folder, kChatLine + bad, "data");
  const std::string message = message_of([&] { build(request); });
  EXPECT_NE(message.find("chats.jsonl:2: messages: the chat template rejects them: not this"),
            std::string::npos)
      << message;
  request.skip_bad = true;
  request.if_built = IfBuilt::replace;
  const Manifest manifest = build(request).manifest;
  EXPECT_EQ(manifest.train.documents, 1u);
  EXPECT_EQ(manifest.dropped.back(), (std::pair<std::string, std::uint64_t>("rejected_by_template", 1)));
}

}  // namespace
}  // namespace thimble::build_test
