#include "data/markup.h"

#include <gtest/gtest.h>

#include "data/records.h"
#include "support/temp_folder.h"

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

TEST(MarkdownText, KeepsWhatPeopleReadAndRemovesAddresses) {
  EXPECT_EQ(markdown_text("# A *fine* [book](http://a.b/c)\n\n- `x[0](1)` and **b**\n"),
            "# A *fine* book\n\n- `x[0](1)` and **b**\n");
  EXPECT_EQ(markdown_text("See ![a cat](cat.png) <b>now</b><br/> at <https://a.b>.\n"),
            "See a cat now at .\n");
  EXPECT_EQ(markdown_text("a < b and c > d, 2<3\n"), "a < b and c > d, 2<3\n");
  EXPECT_EQ(markdown_text("one\n[1]: http://a.b\ntwo [^1]\n\n[^1]: a note\n"),
            "one\ntwo [^1]\n\n[^1]: a note\n");
  EXPECT_EQ(markdown_text("\\[no\\](link)\n"), "\\[no\\](link)\n");
}

TEST(MarkdownText, HasNoFrontMatterAndNoComments) {
  EXPECT_EQ(markdown_text("---\ntitle: x\ntags: [a]\n---\n# Text\n"), "# Text\n");
  EXPECT_EQ(markdown_text("\xEF\xBB\xBF+++\na = 1\n+++\nText\n"), "Text\n");
  EXPECT_EQ(markdown_text("---\nnot closed\n"), "---\nnot closed\n");
  EXPECT_EQ(markdown_text("text\n---\nmore\n---\n"), "text\n---\nmore\n---\n");
  EXPECT_EQ(markdown_text("a <!-- one --> b\n<!-- two\nlines\n```\n-->\nc\n"), "a  b\nc\n");
}

TEST(MarkdownText, CodeIsUnchanged) {
  const std::string code = "```html\n<!-- kept --> <b> [a](b)\n```\n";
  EXPECT_EQ(markdown_text(code), code);
}

TEST(HtmlText, BlocksEndLinesAndTagsAreRemoved) {
  EXPECT_EQ(html_text("<!DOCTYPE html><html><head><title>No</title><style>p{}</style></head>\n"
                      "<body><h1>A  book</h1><p>One <b>bold</b>\n word.</p><p>Two<br>lines.</p>"
                      "<ul><li>first</li><li>second</li></ul></body></html>"),
            "A book\n\nOne bold word.\n\nTwo\nlines.\n\nfirst\nsecond\n");
  EXPECT_EQ(html_text("<table><tr><td>1</td><td>2</td></tr><tr><th>a</th></tr></table>"), "1 2\na\n");
  EXPECT_EQ(html_text("<pre>  a\n   b\n</pre>after"), "  a\n   b\n\nafter\n");
}

TEST(HtmlText, ScriptsStylesAndCommentsAreRemoved) {
  EXPECT_EQ(html_text("a<script>if (a < b) { x = '</b>' }</script >b<!-- <p>c -->d<STYLE>e</STYLE>"),
            "abd\n");
  EXPECT_EQ(html_text("<p title='a > b' data-x=\"</p>\">text</p>"), "text\n");
  EXPECT_EQ(html_text("x <svg><text>no</text></svg><script src=a /> y"), "x y\n");
  EXPECT_EQ(html_text("<script>never closed <p>text"), "never closed\n\ntext\n");
}

TEST(HtmlText, EntitiesAreDecoded) {
  EXPECT_EQ(html_text("caf&eacute; &amp; &lt;b&gt;&nbsp;&ndash; &#8364;&#x1F600; soft&shy;hyphen"),
            "café & <b> – €😀 softhyphen\n");
  EXPECT_EQ(html_text("a & b &unknown; &#0; &#xD800; &; &toolongforanentity;"),
            "a & b &unknown; &#0; &#xD800; &; &toolongforanentity;\n");
}

TEST(HtmlText, TextThatIsNoTagStays) {
  EXPECT_EQ(html_text("1 < 2 and 3 <4, <"), "1 < 2 and 3 <4, <\n");
  EXPECT_EQ(html_text(""), "");
}

TEST(HtmlText, DamagedPagesTakeLinearTime) {
  for (const std::string_view piece :
       {"<", "<a", "<a b='", "<a b=\">", "<script>", "</", "<!--", "&", "&a;", "<svg></"}) {
    std::string html;
    while (html.size() < 1 << 20) html += piece;
    html_text(html);
    markdown_text(html);
  }
}

TEST(Markup, FilesAreReadAsTheirText) {
  const TempFolder folder;
  folder.write("a.md", "---\nx: 1\n---\nOne [two](three).\n<|endoftext|>\nFour.\n");
  folder.write("b.HTML", "<p>five</p><p>six</p>");
  const DataSource source = find_source(folder.path().string());
  RecordReader reader(source, {});
  std::vector<std::string> texts;
  while (auto record = reader.next()) texts.push_back(record->raw);
  EXPECT_EQ(texts, (std::vector<std::string>{"One two.\n", "Four.\n", "five\n\nsix\n"}));
}

}  // namespace
}  // namespace thimble
