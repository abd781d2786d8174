// Finding input files, splitting them into records, and errors in records.
#include "data/records.h"

#include "base/error.h"
#include "data/document.h"
#include "data/markup.h"
#include "support/temp_folder.h"

namespace thimble::records_test {
namespace {

std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return std::string(error.what()) + " / " + error.hint();
  }
  return "none";
}

std::vector<Record> records(const std::filesystem::path& file, bool chat = false,
                            DocumentSplit split = DocumentSplit::line) {
  static std::vector<std::unique_ptr<DataSource>> kept;  // records point to their files
  kept.push_back(std::make_unique<DataSource>(find_source(file.string())));
  RecordReader reader(*kept.back(), {.kind = chat ? DataKind::chat : DataKind::text, .split = split});
  std::vector<Record> found;
  while (auto record = reader.next()) found.push_back(std::move(*record));
  return found;
}

std::vector<std::pair<std::string, std::uint64_t>> raw_lines(const std::vector<Record>& found) {
  std::vector<std::pair<std::string, std::uint64_t>> lines;
  for (const Record& record : found) lines.emplace_back(record.raw, record.line);
  return lines;
}
using RawLines = std::vector<std::pair<std::string, std::uint64_t>>;

TEST(Sources, AcceptFilesFoldersPatternsAndWeights) {
  TempFolder folder;
  folder.write("a.txt", "a");
  folder.write("b.txt", "b");
  folder.write("sub/c.txt", "c");
  folder.write("odd:3", "d");
  EXPECT_EQ(find_source((folder / "").string()).files.size(), 4u);
  EXPECT_EQ(find_source((folder / "*.txt").string()).files,
            (std::vector{folder / "a.txt", folder / "b.txt"}));
  const DataSource weighted = find_source((folder / "a.txt:2.5").string());
  EXPECT_TRUE(weighted.weighted);
  EXPECT_EQ(weighted.weight, 2.5);
  EXPECT_EQ(weighted.files, (std::vector{folder / "a.txt"}));
  EXPECT_FALSE(find_source((folder / "odd:3").string()).weighted);
  EXPECT_EQ(find_source((folder / "*.txt:0.5").string()).weight, 0.5);
}

TEST(Sources, ExtensionDeterminesTheFormIgnoringCase) {
  for (const char* name : {"a.jsonl", "a.JSONL", "a.jsonl.gz", "a.jsonl.GZ", "a.Jsonl.Zst", "a.ndjson.zst"})
    EXPECT_EQ(form_of(name, false).name, "JSON lines") << name;
  EXPECT_EQ(form_of("a.JSON.GZ", false).name, "a JSON array");
  EXPECT_EQ(form_of("a.json", true).name, "a JSON array");
  EXPECT_EQ(form_of("a.txt", true).name, "JSON lines");
  for (const char* name : {"a.txt.GZ", "jsonl.GZ", "a.gz", "jsonl"})
    EXPECT_EQ(form_of(name, false).name, "text") << name;
}

TEST(Sources, FormIdsAreFixed) {
  int id = 0;
  for (const FileForm& form : file_forms()) EXPECT_EQ(form.id, id++) << form.name;
}

// A test form: "a,b,c" contains three texts.
class CommaRecords final : public FileRecords {
 public:
  explicit CommaRecords(const std::filesystem::path& file) : file_(file), text_(read_text_file(file)) {}
  std::uint64_t stored_bytes_read() const override { return at_; }
  std::optional<Record> next() override {
    if (at_ >= text_.size()) return std::nullopt;
    const std::size_t end = std::min(text_.find(',', at_), text_.size());
    const std::size_t begin = std::exchange(at_, end + 1);
    return Record{.raw = text_.substr(begin, end - begin), .file = &file_};
  }

 private:
  const std::filesystem::path& file_;
  std::string text_;
  std::size_t at_ = 0;
};

TEST(Records, SupportAnAdditionalForm) {
  const TempFolder folder;
  folder.write("a.commas", "one,two");
  folder.write("b.txt", "three,four");
  constexpr std::string_view kEndings[] = {".commas"};
  std::vector<FileForm> forms(file_forms().begin(), file_forms().end());
  forms.push_back(
      {.name = "commas",
       .id = 99,
       .endings = kEndings,
       .json = false,
       .open = [](const std::filesystem::path& file, const ReadOptions&) -> std::unique_ptr<FileRecords> {
         return std::make_unique<CommaRecords>(file);
       }});
  const DataSource source = find_source(folder.path().string());
  RecordReader reader(source, {.split = DocumentSplit::line}, {}, forms);
  std::vector<std::string> found;
  while (auto record = reader.next()) found.push_back(read_document(*record, {.kind = DataKind::text}).text);
  EXPECT_EQ(found, (std::vector<std::string>{"one", "two", "three,four"}));
}

TEST(Sources, OfUnsupportedTypesAreRefused) {
  TempFolder folder;
  const std::string text = folder.write("a.txt", "x").string();
  EXPECT_NE(error_of([&] { find_source(folder.write("b.zip", "x").string()); }).find("unpack it"),
            std::string::npos);
  EXPECT_NE(error_of([&] { find_source((folder / "none.txt").string()); }).find("does not exist"),
            std::string::npos);
  EXPECT_NE(error_of([&] { find_source((folder / "*.tex").string()); }).find("no file matches"),
            std::string::npos);
  EXPECT_NE(error_of([&] { find_source(text + ":0"); }).find("must be above 0"), std::string::npos);
  const auto binary = folder.write("c.txt", std::string("MZ\0\1", 4));
  EXPECT_NE(error_of([&] { records(binary); }).find("is not a text file"), std::string::npos);
}

TEST(Records, OfTextHaveLineNumbers) {
  TempFolder folder;
  const auto file = folder.write("a.txt", "one\n\ntwo\r\nthree");
  EXPECT_EQ(raw_lines(records(file)), (RawLines{{"one", 1}, {"two", 3}, {"three", 4}}));
  const auto books = folder.write("b.txt", "one\n1<|endoftext|>\ntwo\n<|endoftext|>\nthree\n");
  EXPECT_EQ(raw_lines(records(books, false, DocumentSplit::end_of_text)),
            (RawLines{{"one\n1", 1}, {"two\n", 3}, {"three\n", 5}}));
}

TEST(Records, OfJsonLinesAreNonBlankLines) {
  TempFolder folder;
  const auto file = folder.write("a.jsonl", "{\"text\": \"x\"}\n\n  \n[1,\t2]\n");
  const auto found = records(file);
  EXPECT_EQ(raw_lines(found), (RawLines{{"{\"text\": \"x\"}", 1}, {"[1,\t2]", 4}}));
  EXPECT_TRUE(found[0].json);
  EXPECT_TRUE(records(folder.write("chat.txt", "[]\n"), true)[0].json);
}

TEST(Records, OfAJsonArrayAreItsElements) {
  TempFolder folder;
  const auto file = folder.write(
      "a.json", "\xEF\xBB\xBF [\n {\"a\": \"]}\\\"[\"},\n[1, [2]], \"x,y\" , 17,null\n,\n{} ]\n");
  EXPECT_EQ(
      raw_lines(records(file)),
      (RawLines{
          {"{\"a\": \"]}\\\"[\"}", 2}, {"[1, [2]]", 3}, {"\"x,y\"", 3}, {"17", 3}, {"null", 3}, {"{}", 5}}));
  EXPECT_TRUE(records(folder.write("empty.json", "[ ]")).empty());
  EXPECT_EQ(raw_lines(records(folder.write("lines.json", "{\"a\": 1}\n{\"a\": 2}\n"))),
            (RawLines{{"{\"a\": 1}", 1}, {"{\"a\": 2}", 2}}));
}

TEST(Records, OfABrokenArrayGiveAnErrorWithTheLine) {
  TempFolder folder;
  const auto message = [&](std::string_view content) {
    const auto file = folder.write("a.json", content);
    std::string text = error_of([&] { records(file); });
    return text.substr(text.find("a.json"));
  };
  EXPECT_EQ(message("[1,\n2"), "a.json:2: expected the array's ']', found the end of the file / ");
  EXPECT_EQ(message("[1\n2]"), "a.json:2: expected ',' or ']' in the array, found '2' / ");
  EXPECT_EQ(message("[1,\n]"), "a.json:2: expected another element after ',', found none / ");
  EXPECT_EQ(message("[1]\n\n[2]"),
            "a.json:3: expected the end of the file after the array, found more data / ");
}

// Larger than any buffer: the elements must not depend on where reads end.
TEST(Records, OfALongArrayAreComplete) {
  TempFolder folder;
  std::string array = "[";
  RawLines expected;
  for (int i = 0; i < 30000; ++i) {
    expected.emplace_back(fmt::format("{{\"i\": {}, \"text\": \"{}\"}}", i, std::string(i % 100, 'x')),
                          i + 1);
    array += (i == 0 ? "" : ",\n") + expected.back().first;
  }
  EXPECT_EQ(raw_lines(records(folder.write("a.json", array + "]"))), expected);
}

TEST(Records, PiecesOfALongTextHaveTheWordBeforeAsContext) {
  TempFolder folder;
  std::string text;
  while (text.size() < 2 * kMaxTextPieceBytes) text += "some words of text, ";
  const auto found = records(folder.write("a.txt", text), false, DocumentSplit::file);
  ASSERT_GE(found.size(), 2u);
  std::string joined;
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].starts, i == 0);
    EXPECT_LE(found[i].raw.size(), kMaxTextPieceBytes);
    if (i > 0) {
      EXPECT_EQ(found[i].raw[0], ' ');
      EXPECT_TRUE(joined.ends_with(found[i].context) && !found[i].context.empty()) << found[i].context;
    }
    joined += found[i].raw;
  }
  EXPECT_EQ(joined, text);
}

TEST(Records, PiecesOfMarkdownTrackCodeFences) {
  TempFolder folder;
  std::string text = "*prose* before\n```\n";
  while (text.size() < kMaxTextPieceBytes + 1000) text += "int *a, *b; of some code\n";
  text += "```\n";
  while (text.size() < 2 * kMaxTextPieceBytes + 1000) text += "some *prose* of the rest\n";
  const DataSource source = find_source(folder.write("a.md", text).string());
  for (const std::vector<std::uint64_t>& cuts : {std::vector<std::uint64_t>(), {5000}}) {
    RecordReader reader(source, {.split = DocumentSplit::file}, cuts);
    std::string joined;
    int pieces = 0;
    for (; auto record = reader.next(); ++pieces)
      joined += read_document(*record, {.strip_markdown = true}).text;
    EXPECT_EQ(pieces, cuts.empty() ? 3 : 4);
    EXPECT_TRUE(joined == strip_markdown(text))
        << "stripping pieces gives the same as stripping the complete text";
  }
}

TEST(Records, CutAtAByteMovesToACharacterBoundary) {
  TempFolder folder;
  const DataSource source = find_source(folder.write("a.txt", "ab\nc\xC3\xA9g\n").string());
  RecordReader reader(source, {.split = DocumentSplit::file}, {5});  // inside of the two-byte character
  const auto head = reader.next(), tail = reader.next();
  EXPECT_EQ(head->raw, "ab\nc");
  EXPECT_EQ(tail->raw, "\xC3\xA9g\n");
  EXPECT_EQ(tail->line, 2u);
  EXPECT_TRUE(tail->starts);
  EXPECT_FALSE(reader.next().has_value());
}

std::string problem_of(const TempFolder& folder, std::string_view name, std::string_view content,
                       ReadOptions options) {
  auto found = records(folder.write(name, content), options.kind == DataKind::chat);
  const std::string problem = read_document(found.back(), options).problem;
  return problem.empty() ? "none" : problem.substr(problem.find(name));
}

TEST(Documents, ErrorsContainFileAndLine) {
  TempFolder folder;
  const ReadOptions text, chat{.kind = DataKind::chat};
  EXPECT_EQ(problem_of(folder, "a.jsonl", "{}\n\n{\"text\": }\n", text).substr(0, 13), "a.jsonl:3:10:");
  EXPECT_EQ(problem_of(folder, "a.jsonl", "{}\n{\"txt\": \"\"}\n", text),
            "a.jsonl:2: expected a field \"text\", found txt");
  EXPECT_EQ(problem_of(folder, "a.jsonl", "{\"text\": 5}\n", text),
            "a.jsonl:1: expected \"text\" to be a string");
  EXPECT_EQ(problem_of(folder, "a.json", "[{},\n {\n \"text\": x}]", text).substr(0, 12), "a.json:3:10:");
  EXPECT_EQ(problem_of(folder, "c.jsonl", "\n[{\"role\": \"cat\", \"content\": \"\"}]", chat),
            "c.jsonl:2: turn 1: unknown role \"cat\", expected system, user or assistant");
  EXPECT_EQ(problem_of(folder, "d.jsonl", "{\"body\": \"x\"}", {.text_field = "body"}), "none");
}

TEST(Documents, DigestDependsOnRolesAndTurnBoundaries) {
  const auto digest = [](Conversation turns) { return Document{.turns = std::move(turns)}.digest(); };
  const Digest one = digest({{ChatRole::user, "a"}, {ChatRole::assistant, "bc"}});
  EXPECT_EQ(one, digest({{ChatRole::user, "a"}, {ChatRole::assistant, "bc"}}));
  EXPECT_FALSE(one == digest({{ChatRole::user, "ab"}, {ChatRole::assistant, "c"}}));
  EXPECT_FALSE(one == digest({{ChatRole::system, "a"}, {ChatRole::assistant, "bc"}}));
}

TEST(Documents, KindIsDetected) {
  TempFolder folder;
  const auto kind = [&](std::string_view name, std::string_view content) {
    return detect_kind(find_source(folder.write(name, content).string()));
  };
  EXPECT_EQ(kind("a.txt", "[]"), DataKind::text);
  EXPECT_EQ(kind("a.jsonl", "{\"text\": \"x\"}"), DataKind::text);
  EXPECT_EQ(kind("b.jsonl", "{\"messages\": []}"), DataKind::chat);
  EXPECT_EQ(kind("c.json", "[{\"instruction\": \"a\", \"output\": \"b\"}]"), DataKind::chat);
  EXPECT_EQ(kind("d.jsonl", ""), DataKind::text);
  // Errors inside a chat do not affect detection, and invalid lines are skipped.
  EXPECT_EQ(kind("e.jsonl", "[{\"role\": \"tool\", \"content\": \"x\"}]"), DataKind::chat);
  EXPECT_EQ(kind("f.jsonl", "{]\n\n[{\"role\": \"user\"}]"), DataKind::chat);
  EXPECT_EQ(kind("g.jsonl", "{]\n{\"text\": \"x\"}\n{\"messages\": []}"), DataKind::text);
  EXPECT_EQ(kind("h.jsonl", "[1, 2]"), DataKind::text);
}

}  // namespace
}  // namespace thimble::records_test
