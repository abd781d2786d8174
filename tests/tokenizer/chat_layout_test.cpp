// Conversations as tokens, and the Jinja templates that render to the same tokens.
#include "tokenizer/chat_layout.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/json.h"
#include "base/rng.h"
#include "support/message_of.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"
#include "tokenizer/golden_tokenizers.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble {
namespace {

using Ids = std::vector<TokenId>;

constexpr const char* kQwenFormLayout = "chatml:You are a test. Answer in one line.";

const Conversation kTurns = {{ChatRole::system, "S"}, {ChatRole::user, "U"}, {ChatRole::assistant, "A"}};

std::string template_in(const std::filesystem::path& tokenizer_config) {
  return parse_json(read_text_file(tokenizer_config), "tokenizer_config.json")
      .at("chat_template")
      .as_string();
}

// Bytes, and the special tokens of all layouts.
std::unique_ptr<Tokenizer> every_token() {
  auto tokenizer =
      make_bytes_tokenizer({"<bos>", "<user>", "<assistant>", "<end_turn>", "<system>", "<|im_start|>",
                            "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"});
  tokenizer->prefer({.bos = 0, .eos = {}, .unk = {}, .pad = {}});
  return tokenizer;
}

// Contents include strings that look like special tokens or template syntax.
Conversation random_conversation(Rng& rng) {
  static const std::vector<std::string> kPieces = {
      "<user>",     "<end_turn>", "<|im_end|>", "<|im_start|>system\n",
      "<|eot_id|>", "<bos>",      " ",          "\n",
      "\n\n",       "word",       "ß😀",         "{{ bos_token }}",
      "'",          "\"",         "12",         "<|begin_of_text|>"};
  Conversation turns;
  const std::uint64_t count = 1 + rng.below(6);
  if (rng.below(3) == 0) turns.push_back({ChatRole::system, "be brief"});
  for (std::uint64_t i = 0; i < count; ++i) {
    std::string content;
    for (std::uint64_t pieces = rng.below(8); pieces > 0; --pieces)
      content += kPieces[rng.below(kPieces.size())];
    turns.push_back({i % 2 ? ChatRole::assistant : ChatRole::user, content});
  }
  return turns;
}

TEST(ChatLayout, RolesLayoutIsBosThenRoleContentEndTurn) {
  const auto tokenizer = load_tokenizer("bytes:chat");  // five special tokens, then the bytes
  const ChatLayout layout(*tokenizer, "roles");
  const TokenId S = 5 + 'S', U = 5 + 'U', A = 5 + 'A';
  EXPECT_EQ(layout.conversation(kTurns), (Ids{0, 4, S, 3, 1, U, 3, 2, A, 3}));
  EXPECT_EQ(layout.prompt(std::span(kTurns).first(2)), (Ids{0, 4, S, 3, 1, U, 3, 2}));
  EXPECT_EQ(layout.end_id(), 3);
}

TEST(ChatLayout, ChatmlAndLlama3MatchTheirModels) {
  const auto tokenizer = every_token();
  const auto rendered = [&](std::string_view layout, std::span<const Turn> turns) {
    return tokenizer->decode(ChatLayout(*tokenizer, layout).prompt(turns), {.keep_special = true});
  };
  EXPECT_EQ(
      rendered("chatml", kTurns),
      "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
      "<|im_start|>assistant\n");
  EXPECT_EQ(rendered("chatml+bos", std::span(kTurns).subspan(1, 1)),
            "<bos><|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(rendered("llama3", kTurns),
            "<bos><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(rendered("llama3", Conversation{{ChatRole::user, " \n U\t\n"}}),
            "<bos><|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|><|start_header_id|>assistant<|end_"
            "header_id|>"
            "\n\n")
      << "Llama 3's template trims contents";
}

TEST(ChatLayout, DefaultSystemPromptIsUsedIfNoneIsGiven) {
  const auto tokenizer = every_token();
  const ChatLayout layout(*tokenizer, "chatml:Be kind: always.");
  const ChatLayout plain(*tokenizer, "chatml");
  const Conversation asked = {{ChatRole::user, "U"}},
                     with_default = {{ChatRole::system, "Be kind: always."}, {ChatRole::user, "U"}};
  EXPECT_EQ(layout.prompt(asked), plain.prompt(with_default));
  EXPECT_EQ(layout.prompt(kTurns), plain.prompt(kTurns));
  EXPECT_EQ(ChatLayoutText::parse("chatml+bos:a:b").text(), "chatml+bos:a:b");
}

TEST(ChatLayout, ContentsProduceNoSpecialTokens) {
  const auto tokenizer = every_token();
  Rng rng(7);
  for (const char* name : {"roles", "chatml", "chatml+bos:Be kind.", "llama3"}) {
    const ChatLayout layout(*tokenizer, name);
    for (int i = 0; i < 300; ++i) {
      const Conversation turns = random_conversation(rng);
      const Ids ids = layout.conversation(turns);
      EXPECT_EQ(std::ranges::count(ids, layout.end_id()), std::ssize(layout.completed(turns))) << name;
      const auto special = std::ranges::count_if(
          ids, [&](TokenId id) { return tokenizer->token_type(id) == TokenType::control; });
      const auto per_turn = name == std::string("llama3") ? 3 : 2;
      EXPECT_EQ(special, std::ssize(layout.start()) + per_turn * std::ssize(layout.completed(turns))) << name;
    }
  }
}

TEST(ChatLayout, PromptIsAPrefixOfTheConversation) {
  const auto tokenizer = every_token();
  Rng rng(8);
  for (const char* name : {"roles", "chatml", "llama3"}) {
    const ChatLayout layout(*tokenizer, name);
    for (int i = 0; i < 100; ++i) {
      Conversation turns = random_conversation(rng);
      turns.push_back({ChatRole::assistant, "an answer"});
      const Ids prompt = layout.prompt(std::span(turns).first(turns.size() - 1));
      const Ids whole = layout.conversation(turns);
      ASSERT_LT(prompt.size(), whole.size());
      EXPECT_TRUE(std::ranges::equal(prompt, std::span(whole).first(prompt.size()))) << name;
    }
  }
}

TEST(ChatLayout, ErrorsContainTheUnknownLayoutOrToken) {
  const auto plain = load_tokenizer("bytes"), chat = load_tokenizer("bytes:chat");
  EXPECT_EQ(message_of([&] { ChatLayout(*chat, "gemma"); }),
            "expected the chat layout roles, chatml or llama3, found 'gemma'");
  EXPECT_EQ(message_of([&] { ChatLayout(*plain, "roles"); }),
            "the tokenizer has no special token <user>, which is required for chats");
  EXPECT_FALSE(ChatTokens::in(*plain));
  EXPECT_TRUE(ChatTokens::in(*chat));
}

constexpr std::string_view kChatml =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

TEST(ChatTemplate, IsALayoutIfItRendersTheSame) {
  EXPECT_EQ(layout_of_template(kChatml), "chatml");
  EXPECT_EQ(layout_of_template("{{ bos_token }}" + std::string(kChatml)), "chatml+bos");
  EXPECT_EQ(layout_of_template(R"({% if messages[0].role != 'system' %})"
                               R"({{ '<|im_start|>system\nDon\'t "lie".<|im_end|>\n' }}{% endif %})" +
                               std::string(kChatml)),
            "chatml:Don't \"lie\".");
  EXPECT_EQ(layout_of_template(
                R"({% set system_message = 'You\'re kind.' %}{% if messages[0]['role'] != 'system' %})"
                R"({{ '<|im_start|>system\n' + system_message + '<|im_end|>\n' }}{% endif %})" +
                std::string(kChatml)),
            "chatml:You're kind.");
  const std::string trimmed =
      "{% for m in messages %}<|im_start|>{{ m.content | trim }}<|im_end|>{% endfor %}";
  for (const std::string& other : {trimmed, std::string("{{ messages }}"), std::string("{{ '[INST] ' }}")})
    EXPECT_EQ(layout_of_template(other), "jinja:" + other);
  EXPECT_EQ(layout_of_template("{% include 'x' %}<|im_start|><|im_end|>"), "chatml") << "outside the subset";
}

TEST(ChatTemplate, OfAModelRendersItsPrompts) {
  const std::string jinja =
      "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role | upper }} {{ m.content | trim "
      "}}<|im_end|>"
      "{% endfor %}{% if add_generation_prompt %}<|im_start|>ASSISTANT {% endif %}";
  const auto tokenizer = every_token();
  const ChatLayout layout(*tokenizer, layout_of_template(jinja));
  EXPECT_TRUE(layout.is_template());
  EXPECT_TRUE(layout.missing().empty());
  EXPECT_EQ(layout.end_id(), tokenizer->id_of("<|im_end|>"));
  const Conversation turns = {{ChatRole::system, "S"}, {ChatRole::user, " U "}};
  const std::string text = "<bos><|im_start|>SYSTEM S<|im_end|><|im_start|>USER U<|im_end|>";
  EXPECT_EQ(layout.conversation(turns), tokenizer->encode(text, {.trusted = true}));
  EXPECT_EQ(layout.prompt(turns), tokenizer->encode(text + "<|im_start|>ASSISTANT ", {.trusted = true}));
  EXPECT_EQ(jinja_template(layout.text()), jinja);
  EXPECT_EQ(ChatLayoutText::parse(layout.text().text()), layout.text());
  EXPECT_EQ(layout_summary(layout.text().text()),
            fmt::format("jinja (a template of {} bytes)", jinja.size()));
}

TEST(ChatTemplate, ATypedSpecialTokenStaysText) {
  const auto tokenizer = every_token();
  const ChatLayout layout(*tokenizer,
                          "jinja:{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}");
  const std::string typed = "a<|im_end|>b<bos><|im_end|>";
  const Ids ids = layout.prompt(Conversation{{ChatRole::user, typed}});
  EXPECT_EQ(std::ranges::count(ids, *tokenizer->id_of("<|im_end|>")), 1);
  EXPECT_EQ(std::ranges::count(ids, *tokenizer->id_of("<bos>")), 0);
  EXPECT_EQ(tokenizer->decode(ids), typed);
}

TEST(ChatTemplate, MissingSpecialTokensAreTextAndListed) {
  const auto tokenizer = load_tokenizer("bytes:chat");
  for (const std::string& text : {std::string("chatml"), "jinja:" + std::string(kChatml)}) {
    const ChatLayout layout(*tokenizer, text);
    EXPECT_EQ(layout.missing(), (std::vector<std::string>{"<|im_start|>", "<|im_end|>"})) << text;
    EXPECT_NE(layout.warning().find("<|im_start|>, <|im_end|>"), std::string::npos);
    EXPECT_EQ(tokenizer->decode(layout.prompt(Conversation{{ChatRole::user, "U"}})),
              "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n");
    EXPECT_EQ(layout.end_id(), tokenizer->special().eos.value_or(*tokenizer->special().bos));
  }
}

TEST(ChatTemplate, OutsideTheSubsetIsAnErrorWithItsLine) {
  const auto tokenizer = every_token();
  EXPECT_EQ(message_of([&] { ChatLayout(*tokenizer, layout_of_template("x\n{% import 'y' as z %}")); }),
            "chat_template line 2: the statement 'import' is not supported");
}

// The files *_form.jinja have the structure of the published templates of Qwen 2.5 and Llama 3.
TEST(ChatTemplate, OfAPublishedModelIsRecognized) {
  EXPECT_EQ(layout_of_template(golden_text("chat/qwen_form.jinja")), kQwenFormLayout);
  EXPECT_EQ(layout_of_template(golden_text("chat/llama3_form.jinja")), "llama3");
  for (const auto& [model, layout] : {std::pair{"qwen2_5", "jinja"}, {"llama3_2", "jinja"}}) {
    const auto file = shared_path(fmt::format("fixtures/tokenizers/{}/tokenizer_config.json", model));
    if (!file) continue;
    // Llama 3.2's template writes dates before the system prompt, and both write tools.
    EXPECT_EQ(ChatLayoutText::parse(layout_of_template(template_in(*file))).name, layout);
  }
}

TEST(ChatTemplate, WrittenTemplatesAreRecognized) {
  for (const char* name :
       {"roles", "llama3", "chatml", "chatml+bos", "chatml:Be 'kind'.\nAlways \\ ever: \"so\"."})
    EXPECT_EQ(layout_of_template(jinja_template(ChatLayoutText::parse(name))), name);
  EXPECT_EQ(message_of([] { jinja_template(ChatLayoutText::parse("gemma")); }),
            "the chat layout 'gemma' has no Jinja template");
}

Conversation conversation_in(const Json& messages) {
  Conversation turns;
  for (const Json& message : messages.as_array()) {
    const std::string role = message.at("role").as_string();
    turns.push_back({role == "user"     ? ChatRole::user
                     : role == "system" ? ChatRole::system
                                        : ChatRole::assistant,
                     message.at("content").as_string()});
  }
  return turns;
}

// tests/golden/chat contains the templates of these layouts and what jinja2, the reference
// implementation, renders from them.
TEST(ChatTemplate, RendersToTheIdsOfThePrompt) {
  const std::map<std::string, std::string> layouts = {
      {"roles.jinja", "roles"},
      {"chatml.jinja", "chatml"},
      {"chatml_bos.jinja", "chatml+bos:Don't \"lie\"\\.\nEver."},
      {"llama3.jinja", "llama3"},
      {"llama3_form.jinja", "llama3"},
      {"qwen_form.jinja", kQwenFormLayout}};
  for (const auto& [file, layout] : layouts) {
    if (file.find("_form") != file.npos) continue;
    EXPECT_TRUE(matches_golden(jinja_template(ChatLayoutText::parse(layout)), "chat/" + file));
  }
  const auto tokenizer = every_token();
  const Json rendered = parse_json(golden_text("chat/rendered.json"), "rendered.json");
  std::set<std::string> files;
  for (const Json& one : rendered.at("rendered").as_array()) {
    files.insert(one.at("template").as_string());
    const ChatLayout layout(*tokenizer, layouts.at(one.at("template").as_string()));
    const Ids ids = tokenizer->encode(one.at("text").as_string(), {.trusted = true});
    EXPECT_EQ(ids, layout.prompt(conversation_in(one.at("messages")))) << one.dump();
    const JinjaTemplate own(golden_text("chat/" + one.at("template").as_string()));
    const Json variables = Json::object()
                               .set("messages", one.at("messages"))
                               .set("bos_token", "<bos>")
                               .set("add_generation_prompt", true);
    EXPECT_EQ(own.render(variables), one.at("text").as_string());
  }
  EXPECT_EQ(files.size(), layouts.size());
}

// Renders a template with jinja2, if it is installed.
std::optional<std::string> rendered(const TempFolder& folder, const std::string& jinja,
                                    const Conversation& turns) {
  Json messages = Json::array();
  for (const Turn& turn : turns)
    messages.push(Json::object().set("role", name_of(turn.role)).set("content", turn.content));
  folder.write("in.json", Json::object().set("jinja", jinja).set("messages", messages).dump());
  folder.write("render.py",
               "import json, jinja2.sandbox\n"
               "given = json.load(open('in.json', encoding='utf-8'))\n"
               "env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)\n"
               "text = env.from_string(given['jinja']).render(messages=given['messages'], "
               "add_generation_prompt=True)\n"
               "open('out.txt', 'w', encoding='utf-8', newline='').write(text)\n");
  const RunResult run =
      run_program("/usr/bin/env", {.arguments = {"python3", "render.py"}, .folder = folder.path()});
  if (run.err.find("No module named 'jinja2") != std::string::npos || run.exit_code == 127) return {};
  return run.exit_code == 0 ? folder.read("out.txt") : "failed: " + run.err;
}

// Uses the template and the tokenizer that Qwen publishes, and a live jinja2.
class PublishedChatTemplate : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(PublishedChatTemplate, OfQwenRendersToTheIdsOfThePrompt) {
  const TempFolder folder;
  const auto tokenizer = tokenizer_in(GetParam().parent_path() / "tokenizer.json.zst");
  const std::string jinja = template_in(GetParam());
  const ChatLayout layout(*tokenizer, layout_of_template(jinja));
  const std::vector<Conversation> conversations = {
      kTurns,
      {{ChatRole::user, "How many eggs?"}},
      {{ChatRole::user, "\n\nTwo newlines first"}, {ChatRole::assistant, "Yes.\n"}, {ChatRole::user, " 12"}}};
  for (const Conversation& turns : conversations) {
    const auto text = rendered(folder, jinja, turns);
    if (!text) GTEST_SKIP() << "an extra: python3 with jinja2 is not installed";
    EXPECT_EQ(tokenizer->encode(*text, {.trusted = true}), layout.prompt(turns)) << *text;
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PublishedChatTemplate);  // without ../shared
INSTANTIATE_TEST_SUITE_P(
    Shared, PublishedChatTemplate,
    testing::ValuesIn(golden_and_shared({}, {"fixtures/tokenizers/qwen2_5/tokenizer_config.json"})));

}  // namespace
}  // namespace thimble
