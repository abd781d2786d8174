#include "data/csv.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "data/document.h"
#include "support/message_of.h"
#include "support/temp_folder.h"

namespace thimble::csv_test {
namespace {

struct Found {
  std::vector<std::string> rows, problems;
  std::vector<std::uint64_t> lines;
};

Found read(std::string_view content, const std::string& name = "a.csv") {
  const TempFolder folder;
  CsvReader reader(folder.write(name, content), name.ends_with(".tsv") ? '\t' : '\0');
  Found found;
  while (auto row = reader.next()) {
    found.lines.push_back(row->line);
    if (row->problem.empty())
      found.rows.push_back(row->json);
    else
      found.problems.push_back(row->problem.substr(row->problem.find(name)));
  }
  return found;
}

using Rows = std::vector<std::string>;

TEST(Csv, FieldsAreQuotedAsInRfc4180) {
  const Found found = read("a,b\n1,\"x, \"\"y\"\"\nz\"\n\"\",\" q \"\r\nplain \"quote\",\n");
  EXPECT_EQ(found.rows, (Rows{R"({"a":"1","b":"x, \"y\"\nz"})", R"({"a":"","b":" q "})",
                              R"({"a":"plain \"quote\"","b":""})"}));
  EXPECT_EQ(found.lines, (std::vector<std::uint64_t>{2, 4, 5}));
}

TEST(Csv, ByteOrderMarkCrlfAndEmptyLinesAreNoContent) {
  EXPECT_EQ(read("\xEF\xBB\xBF"
                 "a,b\r\n\r\n1,2\r\n\n3,\"4\"\r")
                .rows,
            (Rows{R"({"a":"1","b":"2"})", R"({"a":"3","b":"4"})"}));
  EXPECT_TRUE(read("").rows.empty());
  EXPECT_TRUE(read("a,b\n").rows.empty());
}

TEST(Csv, TheHeaderDecidesTheSeparator) {
  EXPECT_EQ(read("a;b\n1,5;2\n").rows, (Rows{R"({"a":"1,5","b":"2"})"}));
  EXPECT_EQ(read("a\tb\n1;\t2\n").rows, (Rows{R"({"a":"1;","b":"2"})"}));
  EXPECT_EQ(read("\"a;b\",c\n1,2\n").rows, (Rows{R"({"a;b":"1","c":"2"})"}));
  EXPECT_EQ(read("text\n1;2\n").rows, (Rows{R"({"text":"1;2"})"}));
  EXPECT_EQ(read("a,b\tc\n1\t2\n", "a.tsv").rows, (Rows{R"({"a,b":"1","c":"2"})"}));
}

TEST(Csv, RowsThatDoNotFitTheHeaderAreReportedWithTheirLine) {
  const Found found = read("a,b\n1\n2,\"x\ny\",3\n4,\"5\"6\n7,8\n");
  EXPECT_EQ(found.problems,
            (Rows{"a.csv:2: expected 2 fields as in the header, found 1",
                  "a.csv:3: expected 2 fields as in the header, found 3",
                  "a.csv:5: expected a separator or a line end after a quoted field, found '6'"}));
  EXPECT_EQ(found.rows, (Rows{R"({"a":"7","b":"8"})"}));
}

TEST(Csv, FilesThatCannotBeReadAreErrors) {
  const auto error = [](std::string_view content) {
    const std::string message = message_of([&] { read(content); });
    return message.substr(message.find("a.csv"));
  };
  EXPECT_EQ(error("a,b\n1,2\n3,\"4\n5"), "a.csv:3: the quoted field that begins here does not end");
  EXPECT_EQ(error("a,b,a\n"), "a.csv: the header names the column \"a\" twice");
  EXPECT_EQ(error(std::string_view("a,\0b", 4)), "a.csv is not a CSV file: it contains zero bytes");
}

// Rows longer than any buffer, with a quote at every place of a buffer's end.
TEST(Csv, LongRowsAreComplete) {
  std::string file = "n,text\n";
  Rows expected;
  for (int i = 0; i < 3000; ++i) {
    const std::string text(static_cast<std::size_t>(i), 'x');
    file += fmt::format("{},\"{}\"\"\"\r\n", i, text);
    expected.push_back(fmt::format(R"({{"n":"{}","text":"{}\""}})", i, text));
  }
  EXPECT_EQ(read(file).rows, expected);
}

TEST(Csv, AnUnknownColumnIsAnErrorThatListsTheColumns) {
  const TempFolder folder;
  const DataSource source = find_source(folder.write("a.csv", "author,quote\nAnn,Hm.\n").string());
  const auto problem = [&](const ReadOptions& options) {
    auto record = RecordReader(source, options).next();
    return read_document(*record, options);
  };
  const Document missing = problem({});
  EXPECT_TRUE(missing.problem.ends_with("a.csv:2: expected a field \"text\", found author, quote"))
      << missing.problem;
  EXPECT_NE(missing.hint.find("--text-field"), std::string::npos);
  EXPECT_EQ(problem({.text_field = "quote"}).text, "Hm.");
}

}  // namespace
}  // namespace thimble::csv_test
