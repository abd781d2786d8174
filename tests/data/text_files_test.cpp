#include "data/text_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <fstream>
#include <thread>

#include "base/error.h"
#include "data/encode.h"
#include "support/temp_folder.h"
#include "tokenizer/golden_tokenizers.h"
#include "tokenizer/pretokenize.h"

namespace thimble {

namespace {

using Documents = std::vector<std::string>;

Documents documents(const std::vector<std::filesystem::path>& inputs, TextSourceOptions options) {
  TextSource source(inputs, options);
  Documents out;
  while (const auto document = source.next()) {
    if (document->starts)
      out.emplace_back(document->text);
    else
      out.back() += document->text;
  }
  return out;
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 1));
  return out;
}

std::string gzip(const std::string& text) {
  z_stream state{};
  deflateInit2(&state, 1, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(text.size() + 1000, '\0'), in = text;
  state.next_in = reinterpret_cast<Bytef*>(in.data());
  state.avail_in = static_cast<uInt>(in.size());
  state.next_out = reinterpret_cast<Bytef*>(out.data());
  state.avail_out = static_cast<uInt>(out.size());
  deflate(&state, Z_FINISH);
  out.resize(state.total_out);
  deflateEnd(&state);
  return out;
}

}  // namespace

TEST(TextSource, SplitsDocumentsInFourWays) {
  TempFolder folder;
  const auto file = folder.write("a.txt", "one\ntwo\r\n\n\nthree\n<|endoftext|>\nfour<|endoftext|>five\n");
  EXPECT_EQ(documents({file}, {.split = DocumentSplit::line}),
            (Documents{"one", "two", "three", "<|endoftext|>", "four<|endoftext|>five"}));
  EXPECT_EQ(
      documents({file}, {.split = DocumentSplit::line, .keep_line_end = true}),
      (Documents{"one\n", "two\r\n", "\n", "\n", "three\n", "<|endoftext|>\n", "four<|endoftext|>five\n"}));
  EXPECT_EQ(documents({file}, {.split = DocumentSplit::blank_line}),
            (Documents{"one\ntwo", "three\n<|endoftext|>\nfour<|endoftext|>five\n"}));
  EXPECT_EQ(documents({file}, {.split = DocumentSplit::end_of_text}),
            (Documents{"one\ntwo\r\n\n\nthree\n", "four", "five\n"}));
  EXPECT_EQ(documents({file}, {.split = DocumentSplit::file}).size(), 1u);
}

TEST(TextSource, EmptyLinesAroundDocumentsAreDropped) {
  TempFolder folder;
  const auto file = folder.write("a.txt", "\r\n\na\r\nA\r\n\r\n\r\nb\n\n\n\n\nc\n");
  TextSource source({file}, {.split = DocumentSplit::blank_line});
  std::vector<std::pair<std::string, std::uint64_t>> found;
  while (const auto document = source.next()) found.emplace_back(document->text, document->line);
  EXPECT_EQ(found,
            (std::vector<std::pair<std::string, std::uint64_t>>{{"a\r\nA", 3}, {"b", 7}, {"c\n", 12}}));
}

TEST(TextSource, EndOfTextIncludesItsLineEndAndMayEndTheFile) {
  TempFolder folder;
  const auto file = folder.write("a.txt", "a<|endoftext|>\r\nb<|endoftext|>\rc<|endoftext|>\nd<|endoftext|>");
  EXPECT_EQ(documents({file}, {}), (Documents{"a", "b", "\rc", "d"}));
  EXPECT_EQ(documents({folder.write("b.txt", "e<|endoftext|>\r")}, {}), (Documents{"e", "\r"}));
}

TEST(TextSource, ByteOrderMarkIsSkipped) {
  TempFolder folder;
  const auto a = folder.write("a.txt", "\xEF\xBB\xBFone"), b = folder.write("b.txt", "\xEF\xBB\xBF");
  for (const auto split :
       {DocumentSplit::line, DocumentSplit::blank_line, DocumentSplit::file, DocumentSplit::end_of_text})
    EXPECT_EQ(documents({a, b, a}, {.split = split}), (Documents{"one", "one"}));
}

TEST(TextSource, DocumentsEndWithTheirFile) {
  TempFolder folder;
  const auto a = folder.write("a.txt", "no line end"), b = folder.write("b.txt", "next");
  for (const auto split :
       {DocumentSplit::line, DocumentSplit::blank_line, DocumentSplit::file, DocumentSplit::end_of_text})
    EXPECT_EQ(documents({a, b}, {.split = split}), (Documents{"no line end", "next"}));
}

TEST(TextSource, WalksFoldersInOrderAndSkipsHiddenFiles) {
  TempFolder folder;
  folder.write("b.txt", "b");
  folder.write("a/z.txt", "az");
  folder.write("a/.hidden", "no");
  folder.write(".git/x", "no");
  folder.write("empty.txt", "");
  EXPECT_EQ(documents({folder.path()}, {}), (Documents{"az", "b"}));
  EXPECT_THROW(documents({folder / "nothing"}, {}), Error);
}

TEST(TextSource, DetectsZstdAndGzipByContent) {
  TempFolder folder;
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += std::to_string(i) + (i % 7 == 0 ? "\n" : " ");
  const auto plain = folder.write("plain", text);
  const auto expected = documents({plain}, {.split = DocumentSplit::line});
  EXPECT_EQ(documents({folder.write("a.txt", zstd(text))}, {.split = DocumentSplit::line}), expected);
  EXPECT_EQ(documents({folder.write("a.bin", gzip(text))}, {.split = DocumentSplit::line}), expected);
  EXPECT_EQ(read_text_file(folder.write("two.gz", gzip("ab") + gzip("cd"))), "abcd");
  const std::string zeros(300'000, '\0');  // padding as on tapes; longer than one read
  EXPECT_EQ(read_text_file(folder.write("filled.gz", gzip("ab") + zeros)), "ab");
  EXPECT_THROW(read_text_file(folder.write("rest.gz", gzip("ab") + zeros + "more")), Error);
  EXPECT_EQ(read_text_file(folder.write("two.zst", zstd("ab") + zstd("cd"))), "abcd");
}

TEST(TextSource, TruncatedOrDamagedArchiveIsAnError) {
  TempFolder folder;
  const std::string text(100'000, 'x');
  for (std::string packed : {zstd(text), gzip(text)}) {
    const auto cut = folder.write("cut", packed.substr(0, packed.size() - 6));
    EXPECT_THROW(read_text_file(cut), Error);
  }
  std::string damaged = gzip(text);
  damaged[damaged.size() - 6] ^= 1;  // the checksum
  EXPECT_THROW(read_text_file(folder.write("bad.gz", damaged)), Error);
}

TEST(TextSource, PiecesOfALongDocumentAddUpToIt) {
  TempFolder folder;
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += fmt::format("word{} of ", i);
  const auto file = folder.write("a.txt", text);
  TextSource source({file}, {.split = DocumentSplit::file, .max_piece_bytes = 50'000});
  std::string joined;
  int starts = 0;
  while (const auto piece = source.next()) {
    EXPECT_LE(piece->text.size(), 50'000u);
    joined += piece->text;
    starts += piece->starts;
  }
  EXPECT_EQ(joined, text);
  EXPECT_EQ(starts, 1);
}

TEST(TextSource, EqualDocumentsAreCutIntoEqualPieces) {
  TempFolder folder;
  for (const std::size_t length : {999'999u, 1'000'000u, 1'000'001u, 1'000'012u, 1'200'000u}) {
    std::string text;
    while (text.size() < length) text += "words of a text ";
    text.resize(length, 'x');
    const auto file = folder.write("a.txt", fmt::format("{0}<|endoftext|>\n{0}<|endoftext|>\n{0}", text));
    std::vector<std::vector<std::size_t>> pieces;
    TextSource source({file}, {.max_piece_bytes = 1'000'000});
    bool ended = true;
    while (const auto piece = source.next()) {
      EXPECT_EQ(piece->starts, ended);
      ended = piece->ends;
      if (piece->starts) pieces.emplace_back();
      pieces.back().push_back(piece->text.size());
    }
    EXPECT_TRUE(ended);
    ASSERT_EQ(pieces.size(), 3u) << length;
    EXPECT_EQ(pieces[0].size(), length <= 1'000'000 ? 1u : 2u);
    EXPECT_EQ(pieces[1], pieces[0]) << length;
    EXPECT_EQ(pieces[2], pieces[0]) << length;
  }
}

TEST(TextSource, EndOfTextAcrossTwoReadsIsFound) {
  TempFolder folder;
  for (const std::size_t reads : {1u, 3u}) {  // the second read is twice as long as the first
    for (const std::size_t missing : {1u, 5u, 13u, 14u, 15u}) {
      const std::size_t before = reads * GrowingReads::kFirstBytes - missing;
      for (const char* line_end : {"\n", "\r\n"}) {
        const auto file = folder.write("a.txt", std::string(before, 'a') + "<|endoftext|>" + line_end + "b");
        const auto found = documents({file}, {});
        ASSERT_EQ(found.size(), 2u) << before;
        EXPECT_EQ(found[0].size(), before);
        EXPECT_EQ(found[1], "b");
      }
    }
  }
}

TEST(TextSource, ReadsInStepsThatDouble) {
  class Endless final : public ByteStream {
   public:
    std::size_t read(std::span<char> buffer) override { return buffer.size(); }
    std::uint64_t stored_bytes_read() const override { return 0; }
  };
  Endless stream;
  GrowingReads reads;
  std::size_t expected = GrowingReads::kFirstBytes;
  for (int i = 0; i < 9; ++i, expected = std::min(2 * expected, GrowingReads::kMostBytes)) {
    std::string text = "kept";
    EXPECT_TRUE(reads.append(stream, text));
    EXPECT_EQ(text.size(), 4 + expected);
    EXPECT_TRUE(text.starts_with("kept"));
  }
}

TEST(TextSource, SafeCutsDoNotChangeWords) {
  std::string text = golden_text("corpus/scripts.txt") + golden_text("corpus/tales.txt.gz");
  if (const auto languages = shared_path("corpora/udhr2_all_utf8.txt.zst"))
    text += read_text_file(*languages).substr(0, 400'000);
  for (const Pattern pattern : {Pattern::gpt2, Pattern::llama3, Pattern::qwen2, Pattern::o200k}) {
    std::vector<std::string_view> whole, pieces;
    for_each_word(pattern, text, [&](std::string_view word) { whole.push_back(word); });
    std::string_view rest = text;
    while (!rest.empty()) {
      std::size_t cut = rest.size() > 200 ? safe_cut(rest, 0, 100) : rest.size();
      if (cut == 0) cut = safe_cut(rest, 0, std::min<std::size_t>(rest.size() - 1, 4000));
      if (cut == 0) cut = rest.size();
      for_each_word(pattern, rest.substr(0, cut), [&](std::string_view word) { pieces.push_back(word); });
      rest.remove_prefix(cut);
    }
    ASSERT_EQ(whole, pieces) << pattern_name(pattern);
  }
}

TEST(TextSource, BinaryFilesAreRefused) {
  TempFolder folder;
  TextSource source({folder.write("model.gguf", std::string("GGUF\3\0\0\0tensor", 14))}, {});
  EXPECT_THROW(source.next(), Error);
}

TEST(SpooledInput, CopiesPipesAndUsesFilesInPlace) {
  TempFolder folder;
  const auto pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::path copy;
  const auto spooled = [&](const std::string& content) {
    std::thread writer([&] { std::ofstream(pipe) << content; });
    const SpooledInput input(pipe.string());
    writer.join();
    copy = input.name();
    return copy.extension().string() + " " + read_text_file(copy);
  };
  EXPECT_EQ(spooled("some text\n"), " some text\n");
  EXPECT_FALSE(std::filesystem::exists(copy));
  EXPECT_EQ(spooled("[ {\"text\": \"a\"}]\n"), ".json [ {\"text\": \"a\"}]\n");
  EXPECT_EQ(spooled("{\"text\": \"a\"}\n"), ".json {\"text\": \"a\"}\n");
  EXPECT_EQ(spooled("[a stage direction]"), " [a stage direction]");
  EXPECT_EQ(spooled("[{\"role\": \"user\"}]\n[{\"role\": \"user\"}]\n"),
            ".jsonl [{\"role\": \"user\"}]\n[{\"role\": \"user\"}]\n");
  EXPECT_EQ(SpooledInput(folder.write("a.txt", "x").string()).name(), (folder / "a.txt").string());
  const int descriptor = ::open((folder / "a.txt").c_str(), O_RDONLY);
  EXPECT_EQ(SpooledInput(fmt::format("/dev/fd/{}", descriptor)).name(),
            std::filesystem::canonical(folder / "a.txt").string());
  ::close(descriptor);
  EXPECT_EQ(SpooledInput("/dev/null").name(), "/dev/null");
  EXPECT_EQ(SpooledInput("nothing").name(), "nothing");
}

}  // namespace thimble
