// The Jinja interpreter for chat templates.
#include "tokenizer/jinja.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "support/message_of.h"
#include "tokenizer/golden_tokenizers.h"

namespace thimble::jinja_test {
namespace {

std::string render(std::string_view source, const Json& variables = Json::object(),
                   const JinjaOptions& options = {}) {
  return JinjaTemplate(source).render(variables, options);
}

// The error of a template, and its field.
std::pair<std::string, std::string> failure(std::string_view source, const Json& variables = Json::object(),
                                            const JinjaOptions& options = {}) {
  try {
    return {"rendered: " + render(source, variables, options), ""};
  } catch (const Error& error) {
    return {error.what(), error.field()};
  }
}

Json golden() {
  return parse_json(golden_text("jinja/rendered.json"), "rendered.json");
}

TEST(Jinja, SnippetsRenderAsInJinja2) {
  const Json cases = golden();
  for (const Json& snippet : cases.at("snippets").as_array()) {
    const std::string& source = snippet.at("template").as_string();
    EXPECT_EQ(render(source, cases.at("variables")), snippet.at("text").as_string()) << source;
  }
}

TEST(Jinja, ATemplateWithToolsRendersAsInJinja2) {
  const JinjaTemplate tools(golden_text("jinja/tools.jinja"));
  const Json cases = golden();
  for (const Json& conversation : cases.at("conversations").as_array())
    EXPECT_EQ(tools.render(conversation.at("variables")), conversation.at("text").as_string());
}

// Here @huggingface/jinja and Python differ.
TEST(Jinja, ListsAndBooleansAreWrittenAsInHuggingFaceJinja) {
  EXPECT_EQ(
      render("{{ [1, 'a', none, true] }} {{ {'a': false} }} {{ true }} {{ none }}|{{ zz }} {{ 'n' + 1 }}"),
      R"([1, "a", null, true] {"a": false} true | n1)");
  EXPECT_EQ(render("{{ {512: 'a', 64: 'b'} | dictsort }} {{ {512: 'a'}[512] }} {{ 512 in {512: 'a'} }}"),
            R"([[64, "b"], [512, "a"]] a true)");
}

TEST(Jinja, ListsOfATemplateCanGrowAndShrink) {
  EXPECT_EQ(render("{% set l = [1] %}{% set _ = l.append(2) %}{{ l.pop(0) }}{{ l }}"), "1[2]");
  EXPECT_EQ(failure("{% set l = [] %}{% set _ = l.append(l) %}{{ l }}").first,
            "chat_template line 1: calls or values are nested too deeply");
}

TEST(Jinja, AMemberComesBeforeAMethodUnlessItIsCalled) {
  const Json variables = parse_json(R"({"d": {"items": "mine"}})", "test");
  EXPECT_EQ(
      render("{{ d.items }} {{ d['items'] }} {{ d.items() | length }} {{ d.keys is callable }}", variables),
      "mine mine 1 true");
}

TEST(Jinja, TheDateComesFromTheOptions) {
  EXPECT_EQ(render("{{ strftime_now('%Y') }}", Json::object(), {.now = 1750000000}), "2025");
  EXPECT_EQ(failure("{{ strftime_now() }}").second, "chat_template");
}

TEST(Jinja, RaiseExceptionIsAnErrorOfTheConversation) {
  const auto [message, field] =
      failure("{% if true %}\n{{ raise_exception('Roles must ' ~ 'alternate') }}{% endif %}");
  EXPECT_EQ(message, "messages: the chat template rejects them: Roles must alternate");
  EXPECT_EQ(field, "messages");
}

TEST(Jinja, ErrorsNameTheConstructAndItsLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\n{% include 'x' %}", "chat_template line 2: the statement 'include' is not supported"},
      {"\n\n{% extends 'x' %}", "chat_template line 3: the statement 'extends' is not supported"},
      {"{% for x in y recursive %}{% endfor %}", "chat_template line 1: recursive loops are not supported"},
      {"{{ f(*args) }}", "chat_template line 1: unpacking arguments with * is not supported"},
      {"{% if a %}\nb", "chat_template line 1: {% if %} has no {% endif %}"},
      {"{% set x %}\nb", "chat_template line 1: {% set %} has no {% endset %}"},
      {"{% endfor %}", "chat_template line 1: {% endfor %} has no beginning"},
      {"x\n{{ 'open }}", "chat_template line 2: a string has no closing quote"},
      {"{# open", "chat_template line 1: a comment {# has no end #}"},
      {"{{ 1 ", "chat_template line 1: a tag {{ has no end }}"},
      {"{{ 1 + }}", "chat_template line 1: expected an expression, found '}}'"},
      {"{{ a b }}", "chat_template line 1: expected the end of the tag, found 'b'"},
      {"{{ a ? b }}", "chat_template line 1: unexpected character '?'"},
      {"{% break %}", "chat_template line 1: {% break %} is outside of a loop"},
      {"{{ 99999999999999999999 }}", "chat_template line 1: an integer is too large"},
      {"\n{{ 1 | frobnicate }}", "chat_template line 2: the filter 'frobnicate' is not supported"},
      {"\n{{ 1 is frobnicated }}", "chat_template line 2: the test 'frobnicated' is not supported"},
      {"{{ 'a'.encode() }}", "chat_template line 1: 'encode' is an undefined value, not a function"},
      {"{{ 'a' + [] }}", "chat_template line 1: '+' is not defined for a string and a list"},
      {"{{ 1 // 0 }}", "chat_template line 1: division by zero"},
      {"{{ 1 < 'a' }}", "chat_template line 1: an integer and a string have no order"},
      {"{% set d = {} %}\n{% set d.x = 1 %}",
       "chat_template line 2: only attributes of a namespace can be set, and 'd' is a dict"},
      {"{% macro m(a) %}{% endmacro %}\n{{ m(b=1) }}", "chat_template line 2: 'm' has no parameter 'b'"},
      {"{% for a, b in [[1]] %}{% endfor %}",
       "chat_template line 1: expected a list of 2 items to unpack, found 1 items"},
      {"{{ 'x' | from_json }}", "chat_template line 1: from_json:1:1: "}};
  for (const auto& [source, message] : cases) {
    const auto [found, field] = failure(source);
    EXPECT_TRUE(found.starts_with(message)) << source << "\n" << found;
    EXPECT_EQ(field, "chat_template") << source;
  }
}

TEST(Jinja, ATemplateThatDoesNotEndIsStopped) {
  const std::string loops =
      "{% for a in range(3000) %}{% for b in range(3000) %}{% for c in range(3000) %}"
      "{% endfor %}{% endfor %}{% endfor %}";
  EXPECT_EQ(failure(loops, Json::object(), {.steps = 100'000}).first,
            "chat_template line 1: the template takes more than 100000 steps");
  EXPECT_EQ(failure("\n{{ range(1000000000) }}", Json::object(), {.steps = 100'000}).first,
            "chat_template line 2: the template takes more than 100000 steps");
  EXPECT_EQ(failure("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").first,
            "chat_template line 1: calls or values are nested too deeply");
}

TEST(Jinja, ATemplateThatGrowsWithoutEndIsStopped) {
  const JinjaOptions small = {.bytes = 1 << 20};
  for (const char* source :
       {"{% set n = namespace(x='xxxxxxxx') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{{ 'abc' * 1000000000 }}", "{% for i in range(100000) %}{{ 'some text in a loop' }}{% endfor %}",
        "{% set l = [] %}{% for i in range(100000) %}{% set _ = l.append([i]) %}{% endfor %}",
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x.replace('a', 'aaaa') "
        "%}{% endfor %}",
        "{% set n = namespace(x=['aaaaaaaa']) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor "
        "%}"})
    EXPECT_EQ(failure(source, Json::object(), small).first,
              "chat_template line 1: the template makes more than 1048576 bytes of text and lists")
        << source;
}

TEST(Jinja, DeepConstructsAreErrors) {
  const std::string open(5000, '('), close(5000, ')');
  std::string chain = "{{ a", nested;
  for (int i = 0; i < 5000; ++i) chain += " ~ a", nested += "{% if a %}";
  EXPECT_EQ(failure("{{ " + open + "a" + close + " }}").first,
            "chat_template line 1: constructs are nested too deeply");
  EXPECT_EQ(failure(chain + " }}").first, "chat_template line 1: an expression is too long");
  EXPECT_EQ(failure(nested).first, "chat_template line 1: constructs are nested too deeply");
}

// The 46 published templates of ../shared; tests/interop compares their output with other programs.
TEST(Jinja, PublishedTemplatesAreInTheSubset) {
  const auto folder = shared_path("fixtures/chat_templates");
  if (!folder) GTEST_SKIP() << "an extra: ../shared is absent";
  int parsed = 0;
  for (const auto& entry : std::filesystem::directory_iterator(*folder)) {
    EXPECT_NO_THROW(JinjaTemplate(read_text_file(entry.path().string()))) << entry.path();
    ++parsed;
  }
  EXPECT_EQ(parsed, 46);
}

}  // namespace
}  // namespace thimble::jinja_test
