// Which tokens of a conversation in a model's own template are learned, and tools.
#include <algorithm>
#include <filesystem>
#include <set>

#include "base/json.h"
#include "support/message_of.h"
#include "support/temp_folder.h"
#include "tokenizer/chat_layout.h"
#include "tokenizer/golden_tokenizers.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble::chat_template_test {
namespace {

using Ids = std::vector<TokenId>;

const Conversation kChat = {{ChatRole::system, "Be brief."},
                            {ChatRole::user, "One?"},
                            {ChatRole::assistant, "First."},
                            {ChatRole::user, "Two?"},
                            {ChatRole::assistant, "Second."}};

std::unique_ptr<Tokenizer> with_tokens(const std::vector<std::string>& names) {
  auto tokenizer = make_bytes_tokenizer(names);
  tokenizer->prefer({.bos = tokenizer->id_of("<s>"), .eos = tokenizer->id_of("</s>"), .unk = {}, .pad = {}});
  return tokenizer;
}

const std::vector<std::string> kTokens = {"<s>", "</s>", "<turn>", "<end>"};

// The runs of learned tokens as text.
std::vector<std::string> learned_texts(const Tokenizer& tokenizer, const LearnedConversation& chat) {
  std::vector<std::string> runs;
  bool before = false;
  for (std::size_t i = 0; i < chat.ids.size(); ++i) {
    if (chat.learned[i] && !before) runs.emplace_back();
    if (chat.learned[i]) runs.back() += tokenizer.decode(std::span(&chat.ids[i], 1), {.keep_special = true});
    before = chat.learned[i];
  }
  return runs;
}

std::vector<std::string> learned_of(const std::string& jinja, const Conversation& turns = kChat) {
  const auto tokenizer = with_tokens(kTokens);
  const ChatLayout layout(*tokenizer, "jinja:" + jinja);
  const LearnedConversation chat = layout.learned(turns);
  EXPECT_EQ(chat.ids, layout.conversation(turns));
  EXPECT_EQ(chat.ids.size(), chat.learned.size());
  return learned_texts(*tokenizer, chat);
}

using Texts = std::vector<std::string>;

TEST(ChatTemplate, AnswersAndTheirEndsAreLearned) {
  EXPECT_EQ(
      learned_of("<s>{% for m in messages %}<turn>{{ m.role }}\n{{ m.content | trim }}<end>\n{% endfor %}"
                 "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"),
      (Texts{"First.<end>", "Second.<end>"}));
}

TEST(ChatTemplate, TextAfterThePromptIsLearnedToo) {
  // Mistral's form: a space follows the prompt, and the system prompt is part of the first
  // question.
  const std::string mistral =
      "<s>{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}"
      "{% set ns.s = m.content + '\\n\\n' %}{% elif m.role == 'user' %}[INST] {{ ns.s + m.content }} [/INST]"
      "{% set ns.s = '' %}{% else %} {{ m.content | trim }} </s>{% endif %}{% endfor %}";
  EXPECT_EQ(learned_of(mistral), (Texts{" First. </s>", " Second. </s>"}));
  // An empty thought before the last answer only, as in Qwen 3's template.
  const std::string thinking =
      "{% for m in messages %}<turn>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}"
      "<think>\n\n</think>\n\n{% endif %}{{ m.content }}<end>\n{% endfor %}"
      "{% if add_generation_prompt %}<turn>assistant\n{% endif %}";
  Conversation longer = kChat;
  longer.insert(longer.end(), {{ChatRole::user, "Three?"}, {ChatRole::assistant, "Third."}});
  EXPECT_EQ(learned_of(thinking, longer),
            (Texts{"First.<end>", "Second.<end>", "<think>\n\n</think>\n\nThird.<end>"}));
}

TEST(ChatTemplate, ContentsThatTheTemplateTakesApartAreFoundByThePrompt) {
  const std::string splits =
      "{% for m in messages %}<turn>{{ m.role }}\n{% if '</think>' in m.content %}"
      "{{ '<think>' + m.content.split('</think>')[0].split('<think>')[-1].strip() + '</think>' + "
      "m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<end>\n{% endfor %}"
      "{% if add_generation_prompt %}<turn>assistant\n{% endif %}";
  EXPECT_EQ(learned_of(splits, {{ChatRole::user, "U"}, {ChatRole::assistant, "<think>\n a \n</think>Yes."}}),
            (Texts{"<think>a</think>Yes.<end>"}));
}

TEST(ChatTemplate, AnEmptyAnswerIsItsEnd) {
  EXPECT_EQ(learned_of("{% for m in messages %}<turn>{{ m.role }}\n{{ m.content }}<end>{% endfor %}"
                       "{% if add_generation_prompt %}<turn>assistant\n{% endif %}",
                       {{ChatRole::user, "U"},
                        {ChatRole::assistant, ""},
                        {ChatRole::user, "U"},
                        {ChatRole::assistant, " A "}}),
            (Texts{"<end>", " A <end>"}));
}

TEST(ChatTemplate, GenerationBlocksDecide) {
  EXPECT_EQ(
      learned_of("{% for m in messages %}<turn>{{ m.role }} {% if m.role == 'assistant' %}"
                 "{% generation %}{{ m.content }}<end>\n{% endgeneration %}{% else %}{{ m.content }}<end>\n"
                 "{% endif %}{% endfor %}"),
      (Texts{"First.<end>\n", "Second.<end>\n"}));
}

TEST(ChatTemplate, TypedTokensAreLearnedAsText) {
  const std::string jinja =
      "<s>{% for m in messages %}<turn>{{ m.role }}\n{{ m.content | trim }}<end>\n{% endfor %}"
      "{% if add_generation_prompt %}<turn>assistant\n{% endif %}";
  const auto tokenizer = with_tokens(kTokens);
  const ChatLayout layout(*tokenizer, "jinja:" + jinja);
  const LearnedConversation chat = layout.learned(
      Conversation{{ChatRole::user, "<turn>assistant\nNo<end>"}, {ChatRole::assistant, "a<end>b"}});
  EXPECT_EQ(learned_texts(*tokenizer, chat), Texts{"a<end>b<end>"});
  EXPECT_EQ(std::ranges::count(chat.ids, *tokenizer->id_of("<end>")), 2);
  EXPECT_EQ(std::ranges::count(chat.ids, *tokenizer->id_of("<turn>")), 2);
}

TEST(ChatTemplate, TypedMarksDoNotHideATypedToken) {
  const auto tokenizer = with_tokens(kTokens);
  const ChatLayout layout(*tokenizer, "jinja:{% for m in messages %}<turn>{{ m.content }}<end>{% endfor %}");
  const std::string mark = "\xEF\xB7\x90";  // U+FDD0, which chat_template.cpp uses
  const Conversation turns = {{ChatRole::user, "<turn> <e" + mark + "nd>"}, {ChatRole::assistant, "A"}};
  const Ids ids = layout.conversation(turns);
  EXPECT_EQ(std::ranges::count(ids, *tokenizer->id_of("<end>")), 2);
  EXPECT_EQ(layout.learned(turns).ids, ids);
  // A template that takes the mark out of the token's text, or makes another token of it.
  const ChatLayout upper(*tokenizer,
                         "jinja:{% for m in messages %}<turn>{{ m.content | lower }}<end>{% endfor %}");
  const Ids made = upper.conversation(Conversation{{ChatRole::user, "<turn><end> <END>"}});
  EXPECT_EQ(std::ranges::count(made, *tokenizer->id_of("<turn>")), 1);
}

TEST(ChatTemplate, ATokenAcrossTheBeginOfAnAnswerIsLearned) {
  // The two newlines are one token.
  BpeSpec spec;
  spec.added_tokens = {{.id = 0, .content = "<end>"}};
  spec.vocab = {"<end>"};
  for (unsigned byte = 0; byte < 256; ++byte)
    spec.vocab.push_back(byte_level_text(std::string(1, static_cast<char>(byte))));
  spec.vocab.push_back("ĊĊ");
  spec.merges = {{.left = 11, .right = 11, .result = 257}};
  spec.pre_tokenizer = {ByteLevel{.add_prefix_space = false, .use_regex = false}};
  spec.decoder = {ByteLevelDecoder{}};
  const auto tokenizer = make_bpe_tokenizer(std::move(spec));
  const ChatLayout layout(*tokenizer,
                          "jinja:{% for m in messages %}{{ m.role }}\n{{ m.content }}<end>{% endfor %}"
                          "{% if add_generation_prompt %}assistant\n{% endif %}");
  const LearnedConversation chat =
      layout.learned(Conversation{{ChatRole::user, "U"}, {ChatRole::assistant, "\nA"}});
  EXPECT_EQ(learned_texts(*tokenizer, chat), Texts{"\n\nA<end>"});
}

TEST(ChatTemplate, OfThimbleAndNamedLayoutsAreLearnedAlike) {
  const auto tokenizer =
      with_tokens({"<s>", "<bos>", "<user>", "<assistant>", "<end_turn>", "<system>", "<|im_start|>",
                   "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"});
  for (const std::string name : {"roles", "chatml", "chatml:Be kind.", "llama3"}) {
    const ChatLayout layout(*tokenizer, name);
    const ChatLayout same(*tokenizer, "jinja:" + jinja_template(layout.text()));
    const LearnedConversation a = layout.learned(kChat), b = same.learned(kChat);
    EXPECT_EQ(a.ids, layout.conversation(kChat)) << name;
    EXPECT_EQ(a.learned, b.learned) << name;
    EXPECT_EQ(learned_texts(*tokenizer, a).size(), 2u);
    EXPECT_EQ(a.ids, b.ids) << name;
  }
}

TEST(ChatTemplate, ThatCannotBeDividedIsAnErrorWithItsReason) {
  const Conversation chat = {{ChatRole::user, "U"}, {ChatRole::assistant, "A"}};
  EXPECT_EQ(
      message_of([&] { learned_of("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"); }),
      "the chat template writes no special token after an answer, so a model cannot learn to end one");
  EXPECT_EQ(
      message_of([&] { learned_of("<turn>{{ messages[-1].content }}<end>"); }),
      "the chat template cannot be divided into answers and the rest: the content of message 2 is not in "
      "the text");
  EXPECT_EQ(
      message_of([&] {
        learned_of("{% for m in messages %}<turn>{{ m.content }} and more<end>{% endfor %}", chat);
      }),
      "the chat template cannot be divided into answers and the rest: there is other text between message "
      "1 and <end>");
  EXPECT_EQ(message_of([&] {
              learned_of(
                  "{% if messages | length > 2 %}{{ raise_exception('One question only') }}{% endif %}"
                  "{% for m in messages %}<turn>{{ m.content }}<end>{% endfor %}");
            }),
            "messages: the chat template rejects them: One question only");
}

TEST(ChatTemplate, ToolsAndTheirResultsReachTheTemplate) {
  const auto tokenizer = with_tokens(kTokens);
  const ChatLayout layout(
      *tokenizer,
      "jinja:{% for t in tools %}<turn>{{ t.function.name }} {{ t.function.parameters | tojson }}<end>"
      "{% endfor %}"
      "{% for m in messages %}<turn>{{ m.role }} {{ m.content }}"
      "{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}<end>{% endfor %}");
  ASSERT_TRUE(layout.takes_tools());
  const Json messages = parse_json(
      R"([{"role": "user", "content": "U<end>"}, {"role": "assistant", "content": "",
          "tool_calls": [{"function": {"name": "f", "arguments": {"x": "<end>"}}}]},
          {"role": "tool", "content": "4"}])",
      "messages");
  const Json tools = parse_json(
      R"([{"type": "function", "function": {"name": "f<turn>", "parameters": {"<end>": {}}}}])", "tools");
  const Ids ids = layout.prompt_with_tools(messages, tools);
  EXPECT_EQ(tokenizer->decode(ids, {.keep_special = true}),
            "<turn>f<turn> {\"<end>\": {}}<end><turn>user U<end><end><turn>assistant {\"x\": "
            "\"<end>\"}<end><turn>tool 4<end>");
  EXPECT_EQ(std::ranges::count(ids, *tokenizer->id_of("<end>")), 4) << "typed ones are text";
  EXPECT_EQ(std::ranges::count(ids, *tokenizer->id_of("<turn>")), 4);
  EXPECT_FALSE(ChatLayout(*tokenizer, "jinja:{{ messages[0].content }}").takes_tools());
}

// Names between angle or square brackets in a template become control tokens.
std::vector<std::string> tokens_of(const std::string& jinja) {
  std::set<std::string> names = {"<s>", "</s>"};
  for (std::size_t at = 0; at < jinja.size(); ++at) {
    if (jinja[at] != '<' && jinja[at] != '[') continue;
    const char close = jinja[at] == '<' ? '>' : ']';
    const std::size_t end = jinja.find(close, at + 1);
    if (end == jinja.npos || end - at > 40) continue;
    const std::string name = jinja.substr(at, end + 1 - at);
    const bool capital = name.size() > 3 && std::ranges::all_of(name.substr(1, name.size() - 2), [](char c) {
                           return (c >= 'A' && c <= 'Z') || c == '_' || c == '/';
                         });
    if (name.find_first_of(" \n'\"{}%=", 1) == name.npos && (close == '>' || capital)) names.insert(name);
  }
  for (const char* text : {"<think>", "</think>", "<tools>", "</tools>", "<tool_call>", "</tool_call>"})
    names.erase(text);
  return {names.begin(), names.end()};
}

TEST(ChatTemplate, PublishedOnesCanBeDivided) {
  const auto folder = shared_path("fixtures/chat_templates");
  if (!folder) GTEST_SKIP() << "an extra: the published templates are not here";
  // The first needs variables of its own, the others write no token after the last answer.
  const std::set<std::string> undivided = {"fireworks-ai-llama-3-firefunction-v2.jinja",
                                           "Apertus-8B-Instruct.jinja",
                                           "Apriel-1.6-15b-Thinker-fixed.jinja",
                                           "GLM-4.6.jinja",
                                           "MiniMax-M3.jinja",
                                           "llama-cpp-rwkv-world.jinja",
                                           "tencent-Hy3.jinja"};
  std::set<std::string> problems;
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(*folder)) {
    if (entry.path().extension() != ".jinja") continue;
    ++count;
    const std::string jinja = read_text_file(entry.path()), name = entry.path().filename().string();
    const auto tokenizer = with_tokens(tokens_of(jinja));
    try {
      const ChatLayout layout(*tokenizer, "jinja:" + jinja);
      Conversation turns(kChat.begin() + 1, kChat.end());
      const LearnedConversation chat = layout.learned(turns);
      EXPECT_EQ(chat.ids, layout.conversation(turns)) << name;
      const Texts texts = learned_texts(*tokenizer, chat);
      std::string all;
      for (const std::string& text : texts) all += "|" + text;
      EXPECT_NE(all.find("Second."), all.npos) << name << all;
      EXPECT_EQ(all.find("Two?"), all.npos) << name << all;
    } catch (const Error&) {
      problems.insert(name);
    }
  }
  EXPECT_EQ(count, 46u);
  EXPECT_EQ(problems, undivided);
}

}  // namespace
}  // namespace thimble::chat_template_test
