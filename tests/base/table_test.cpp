#include "base/table.h"

#include <cmath>

namespace thimble {
namespace {

TEST(Table, AlignsTextLeftAndNumbersRight) {
  Table table({"tensor", "rows", "note"});
  table.row({"tok_emb.weight", "1024", "tied"});
  table.row({"q_gain", "8"});
  EXPECT_EQ(table.text(),
            "tensor          rows  note\n"
            "tok_emb.weight  1024  tied\n"
            "q_gain             8\n");
  EXPECT_EQ(Table().text(), "");
}

TEST(Table, TreatsSentencesThatStartWithANumberAsText) {
  Table table;
  table.row({"tokens", "524,288 a step"});
  table.row({"weights", "65.1 MiB"});
  EXPECT_EQ(table.text(), "tokens   524,288 a step\nweights  65.1 MiB\n");
  Table numbers;
  numbers.row({"tokens", "524,288"});
  numbers.row({"weights", "65.1 MiB"});
  EXPECT_EQ(numbers.text(), "tokens    524,288\nweights  65.1 MiB\n");
}

TEST(Table, AlignsWideCharacters) {
  EXPECT_EQ(display_width("你好"), 4u);
  EXPECT_EQ(display_width("ｶﾞ ガ"), 5u);
  EXPECT_EQ(display_width("👍 ok"), 5u);
  EXPECT_EQ(display_width("e\u0301\u200B"), 1u);
  EXPECT_EQ(display_width("\xFF\xC3"), 2u);
  Table table;
  table.row({"你好", "x"});
  table.row({"word", "y"});
  EXPECT_EQ(table.text(), "你好  x\nword  y\n");
}

TEST(Table, CountsCharactersNotBytes) {
  EXPECT_EQ(display_width("Größe ▁▂▃"), 9u);
  Table table;
  table.row({"Größe", "x"});
  table.row({"Laenge", "y"});
  EXPECT_EQ(table.text(), "Größe   x\nLaenge  y\n");
}

TEST(Table, WrapsTextOnANarrowTerminal) {
  Table table({"gate", "why", "ms"});
  table.row({"tensors", "every number is finite and none is dead", "12"});
  table.row({"tokenizer", "short", "3"});
  const std::string whole = table.text();
  EXPECT_EQ(table.text(80), whole);
  EXPECT_EQ(table.text(34),
            "gate       why                 ms\n"
            "tensors    every number is     12\n"
            "           finite and none is\n"
            "           dead\n"
            "tokenizer  short                3\n");
  // Numbers are never wrapped, and text columns keep at least twelve columns.
  EXPECT_EQ(table.text(1), table.text(12));
  Table numbers;
  numbers.row({"1234567", "1234567"});
  EXPECT_EQ(numbers.text(8), numbers.text());
}

TEST(Table, FormatsAmountsWithUnits) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(16000000), "16,000,000");
  EXPECT_EQ(with_commas(-1234), "-1,234");
  EXPECT_EQ(with_unit(17059912), "17.1 M");
  EXPECT_EQ(with_unit(999), "999");
  EXPECT_EQ(with_unit(999999), "1.00 M");
  EXPECT_EQ(in_bytes(512), "512 B");
  EXPECT_EQ(in_bytes(123456789), "118 MiB");
  EXPECT_EQ(in_seconds(0.0123), "12.3 ms");
  EXPECT_EQ(in_seconds(75), "1m 15s");
  EXPECT_EQ(in_seconds(59.7), "1m 00s");
  EXPECT_EQ(in_seconds(7260), "2h 01m");
  EXPECT_EQ(in_seconds(INFINITY), "?");
}

TEST(Sparkline, ShowsTheShapeAndMarksNonFiniteValues) {
  const double rising[] = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(sparkline(rising), "▁▂▃▄▅▆▇█");
  const double broken[] = {1, NAN, 0};
  EXPECT_EQ(sparkline(broken), "█!▁");
  const double flat[] = {2, 2};
  EXPECT_EQ(sparkline(flat), "▅▅");
  EXPECT_EQ(display_width(sparkline(std::vector<double>(1000, 1.0), 10)), 10u);
  EXPECT_EQ(sparkline({}), "");
}

TEST(Shortened, CutsBetweenCharacters) {
  EXPECT_EQ(shortened("abc", 3), "abc");
  EXPECT_EQ(shortened("abcd", 3), "abc ...");
  EXPECT_EQ(shortened("caf\xC3\xA9s", 4), "caf ...") << "an incomplete character is dropped";
  EXPECT_EQ(shortened("caf\xC3\xA9s", 5), "caf\xC3\xA9 ...");
  EXPECT_EQ(shortened("", 0), "");
}

}  // namespace
}  // namespace thimble
