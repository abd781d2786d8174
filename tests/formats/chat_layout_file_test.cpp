// Reading the chat layout from a model's files.
#include "base/error.h"
#include "formats/hugging_face.h"
#include "formats/sample_folders.h"
#include "support/message_of.h"
#include "support/temp_folder.h"
#include "tokenizer/chat_layout.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble {
namespace {

const std::string kChatml = jinja_template({.name = "chatml"});

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
  folder_.write("chat_template.jinja", jinja_template({.name = "llama3"}));
  EXPECT_EQ(layout(), "llama3") << "chat_template.jinja takes precedence";
}

TEST_F(ChatLayoutFile, AnotherTemplateIsKeptAndRendered) {
  write_config("{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}");
  const ModelFile file = open_model(folder_.path());
  const auto tokenizer = make_bytes_tokenizer({"<|im_start|>", "<|im_end|>"});
  tokenizer->prefer({.bos = {}, .eos = tokenizer->id_of("<|im_end|>"), .unk = {}, .pad = {}});
  const ChatLayout layout = open_chat_layout(file, *tokenizer);
  EXPECT_EQ(layout.text().name, "jinja");
  EXPECT_EQ(tokenizer->decode(layout.prompt(Conversation{{ChatRole::user, "U"}}), {.keep_special = true}),
            "[user]U<|im_end|>");
  EXPECT_EQ(layout.end_id(), tokenizer->id_of("<|im_end|>"));
  EXPECT_EQ(open_chat_layout(file, *tokenizer, "chatml").text().name, "chatml")
      << "the caller can override the layout";
  EXPECT_EQ(
      message_of([&] { open_chat_layout(file, *tokenizer, "llama3"); }),
      "the tokenizer has no special token <|start_header_id|>, <|end_header_id|>, <|eot_id|>, which the "
      "chat layout llama3 requires");
}

TEST_F(ChatLayoutFile, ATemplateOutsideTheSubsetIsRejectedOnlyWhenUsed) {
  write_config("a\n{% include 'b' %}");
  const ModelFile file = open_model(folder_.path());
  EXPECT_EQ(message_of([&] { open_chat_layout(file, *load_tokenizer("bytes")); }),
            "chat_template line 2: the statement 'include' is not supported");
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
