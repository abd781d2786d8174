#include "data/document.h"

#include <gtest/gtest.h>

namespace thimble {
namespace {

TEST(StripMarkdown, RemovesMarkupAndKeepsText) {
  EXPECT_EQ(strip_markdown("# A *fine* [book](http://a.b/c)\n"), "A fine book\n");
  EXPECT_EQ(strip_markdown("**bold**, __bold__, _it_ and ~~gone~~"), "bold, bold, it and gone");
  EXPECT_EQ(strip_markdown("> quoted\n> > twice\n"), "quoted\ntwice\n");
  EXPECT_EQ(strip_markdown("- one\n* two\n  + three\n1. four\n"), "one\ntwo\n  three\n1. four\n");
  EXPECT_EQ(strip_markdown("see ![a cat](cat.png) here"), "see a cat here");
  EXPECT_EQ(strip_markdown("a `b` c"), "a b c");
  EXPECT_EQ(strip_markdown("above\n\n---\n\nbelow\n"), "above\n\n\nbelow\n");
}

TEST(StripMarkdown, KeepsCodeAndRemovesFences) {
  EXPECT_EQ(strip_markdown("x\n```python\n# not a *heading*\n  a = b[0](c)\n```\ny\n"),
            "x\n# not a *heading*\n  a = b[0](c)\ny\n");
}

TEST(StripMarkdown, TableRowsBecomeLines) {
  EXPECT_EQ(strip_markdown("| a | **b** |\n|---|:-:|\n| 1 | 2 |\n"), "a b\n1 2\n");
}

TEST(StripMarkdown, PlainTextIsUnchanged) {
  for (const std::string text :
       {"", "\n", "plain\n\ntext", "2 * 3 * 4", "snake_case_name", "a - b", "#hashtag", "[1] and (2)",
        "it's 5 > 3", "na\xC3\xAFve\n", "x ~ y", "f(x)[i]", "[unclosed", "C# and C++"})
    EXPECT_EQ(strip_markdown(text), text);
  EXPECT_EQ(strip_markdown("\\*not emphasis\\*"), "*not emphasis*");
}

TEST(StripMarkdown, UnclosedBracketsTakeLinearTime) {
  std::string brackets(1 << 20, '[');
  EXPECT_EQ(strip_markdown(brackets), brackets);
  std::string links;
  while (links.size() < 1 << 20) links += "[a](";
  EXPECT_EQ(strip_markdown(links), links);
}

}  // namespace
}  // namespace thimble
