// Reading the chat layout from a model's files.
#include "base/error.h"
#include "formats/hugging_face.h"
#include "formats/sample_folders.h"
#include "support/message_of.h"
#include "support/temp_folder.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble {
namespace {

constexpr const char* kChatml = "{{ '<|im_start|>' + role + '\\n' + content + '<|im_end|>\\n' }}";

class ChatLayoutFile : public testing::Test {
 protected:
  ChatLayoutFile() {
    write_folder(folder_.path(), sample_llama("llama", true));
    folder_.write("tokenizer.json", load_tokenizer("bytes")->serialized());
  }
  void write_config(Json chat_template) {
    folder_.write("tokenizer_config.json",
                  Json::object().set("chat_template", std::move(chat_template)).dump());
  }
  std::string layout() const { return open_model(folder_.path()).layout; }

  TempFolder folder_;
};

TEST_F(ChatLayoutFile, IsReadFromTheTemplateOfAHuggingFaceFolder) {
  EXPECT_EQ(layout(), "") << "no template";
  write_config(kChatml);
  EXPECT_EQ(layout(), "chatml");
  write_config(Json());
  EXPECT_EQ(layout(), "");
  write_config(Json::array({Json::object().set("name", "tool_use").set("template", "[INST]"),
                            Json::object().set("name", "default").set("template", kChatml)}));
  EXPECT_EQ(layout(), "chatml");
  folder_.write("chat_template.jinja", "{{ '<|start_header_id|>' }}{{ '<|eot_id|>' }}");
  EXPECT_EQ(layout(), "llama3") << "chat_template.jinja takes precedence";
}

TEST_F(ChatLayoutFile, UnknownLayoutIsRejectedByNameOnlyWhenUsed) {
  write_config("{{ '<start_of_turn>' + role + content + '<end_of_turn>' }}");
  const ModelFile file = open_model(folder_.path());
  const auto tokenizer = make_bytes_tokenizer({"<|im_start|>", "<|im_end|>"});
  EXPECT_EQ(message_of([&] { open_chat_layout(file, *tokenizer); }),
            "expected the chat layout roles, chatml or llama3, found 'gemma'");
  EXPECT_EQ(open_chat_layout(file, *tokenizer, "chatml").text().name, "chatml")
      << "the caller can override the layout";
}

TEST_F(ChatLayoutFile, MissingLayoutIsAnErrorWithAHint) {
  const ModelFile file = open_model(folder_.path());
  const auto tokenizer = load_tokenizer("bytes:chat");
  try {
    open_chat_layout(file, *tokenizer);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), folder_.path().string() + " was not trained on chats");
    EXPECT_NE(error.hint().find("thimble train --preset chat"), std::string::npos);
  }
}

}  // namespace
}  // namespace thimble
