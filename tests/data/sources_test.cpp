// Folders of files of several forms and kinds.
#include "data/sources.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "data/build.h"
#include "data/document.h"
#include "data/records.h"
#include "support/message_of.h"
#include "support/temp_folder.h"

namespace thimble::sources_test {
namespace {

using Names = std::vector<std::string>;

Names names(const std::vector<std::filesystem::path>& files) {
  Names found;
  for (const auto& file : files) found.push_back(file.filename().string());
  return found;
}

Names reasons(const DataSource& source) {
  Names found;
  for (const LeftOut& file : source.left_out)
    found.push_back(file.file.filename().string() + ": " + file.reason);
  return found;
}

TEST(Folders, FilesThatAreNotUnderstoodAreListedWithTheReason) {
  const TempFolder folder;
  folder.write("a.txt", "text");
  folder.write("b.md", "# text");
  folder.write("c.pdf", "%PDF-1.4\ntext");
  folder.write("d.docx", "PK\x03\x04 text");
  folder.write("e.bin", std::string_view("a\0b", 3));
  folder.write("f.zip", "text");
  folder.write("g.parquet", "text");
  folder.write("h.rtf", "{\\rtf1 text}");
  folder.write("sub/_chat.txt", "31 décembre, midi - Ann: one\n");
  folder.write("sub/z.html", "<p>text");
  const DataSource source = find_source(folder.path().string());
  EXPECT_EQ(names(source.files), (Names{"a.txt", "b.md", "z.html"}));
  const Names left_out = reasons(source);
  ASSERT_EQ(left_out.size(), 7u);
  EXPECT_EQ(left_out[0], "c.pdf: it is a PDF file");
  EXPECT_EQ(left_out[1], "d.docx: it is a ZIP archive or a document of an office program");
  EXPECT_EQ(left_out[2], "e.bin: it contains zero bytes");
  EXPECT_EQ(left_out[3], "f.zip: it is an archive of an unsupported type");
  EXPECT_EQ(left_out[4], "g.parquet: it is not a Parquet file");
  EXPECT_NE(left_out[6].find("expected the date, the time and the sender"), std::string::npos) << left_out[6];
  const std::string text = inputs_text(std::span(&source, 1));
  for (const char* part : {"text          1", "Markdown      1", "HTML          1", "not read: 7 files", "e.bin"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_THROW(find_source((folder / "e.bin").parent_path().string() + "/none"), Error);
}

TEST(Folders, WithoutAnyTextAreAnErrorThatNamesAReason) {
  const TempFolder folder;
  folder.write("c.pdf", "%PDF-1.4");
  EXPECT_NE(message_of([&] { find_source(folder.path().string()); }).find("c.pdf: it is a PDF file"),
            std::string::npos);
}

class MixedFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_.write("a.txt", "text");
    folder_.write("b.jsonl", "{\"messages\": []}");
    folder_.write("c.csv", "quote\nx\n");
    folder_.write("d.csv", "text\nx\n");
    folder_.write("e.json", "");
    folder_.write("f.txt", "[{\"role\": \"user\", \"content\": \"x\"}]");
  }
  std::string name() const { return folder_.path().string(); }
  TempFolder folder_;
};

TEST_F(MixedFolder, IsRefusedUntilTheKindIsChosen) {
  const std::string message = message_of([&] { detect_kind(find_source(name())); });
  EXPECT_NE(message.find("contains both texts and chats"), std::string::npos) << message;
  EXPECT_NE(message.find("a.txt and "), std::string::npos) << message;
}

TEST_F(MixedFolder, IsReadForOneKindAndTheOthersAreListed) {
  const DataSource chats = find_source(name(), {.kind = DataKind::chat});
  EXPECT_EQ(names(chats.files), (Names{"b.jsonl", "e.json", "f.txt"}));
  EXPECT_EQ(reasons(chats), (Names{"a.txt: it is text, and the others are chats",
                                   "c.csv: expected a field \"text\", found quote",
                                   "d.csv: it is text, and the others are chats"}));
  const DataSource texts = find_source(name(), {.text_field = "quote"});
  EXPECT_EQ(names(texts.files), (Names{"a.txt", "c.csv", "e.json", "f.txt"}));
  EXPECT_EQ(reasons(texts), (Names{"b.jsonl: it contains chats, and the others are text",
                                   "d.csv: expected a field \"quote\", found text"}));
}

TEST_F(MixedFolder, FilesThatAreNeitherDoNotDecideTheKind) {
  for (const char* file : {"a.txt", "d.csv", "f.txt"}) std::filesystem::remove(folder_ / file);
  EXPECT_EQ(detect_kind(find_source(name())), DataKind::chat);
  // A file that is named itself is read, so that its errors are reported.
  const std::string csv = (folder_ / "c.csv").string();
  EXPECT_EQ(names(find_source(csv, {}).files), (Names{"c.csv"}));
}

TEST(Folders, OfSeveralFormsAreListedAndRead) {
  const TempFolder folder;
  folder.write("in/a.txt", "one");
  folder.write("in/b.md", "[two](three)");
  folder.write("in/c.html", "<p>three");
  folder.write("in/d.csv", "text\nfour\n");
  folder.write("in/e.jsonl", "{\"text\": \"five\"}\n");
  folder.write("in/f.pdf", "%PDF-1.4");
  std::string out;
  const BuildResult built = build_dataset(
      {.inputs = {(folder / "in").string()}, .tokenizer = load_tokenizer("bytes"), .folder = folder / "out"},
      Log(LogLevel::info, [&](LogLevel, std::string_view line) { out += line; }), ProgressOutput::nowhere());
  std::vector<TokenId> ids(built.manifest.train.tokens);
  ShardReader(folder / "out" / built.manifest.train.shards.at(0).file).copy(0, ids);
  EXPECT_EQ(load_tokenizer("bytes")->decode(ids), "onetwothree\nfourfive");
  EXPECT_EQ(built.manifest.train.documents, 5u);
  for (const char* part : {"Markdown", "JSON lines", "not read: 1 file", "it is a PDF file"})
    EXPECT_NE(out.find(part), std::string::npos) << out;
}

TEST(Folders, OfOneFileHaveNoTable) {
  const TempFolder folder;
  const DataSource source = find_source(folder.write("a.txt", "x").string());
  EXPECT_EQ(inputs_text(std::span(&source, 1)), "");
}

}  // namespace
}  // namespace thimble::sources_test
