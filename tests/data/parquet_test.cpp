// Reads Parquet files that parquet_file.h writes. Files of other programs: tests/interop.
#include "data/parquet.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "data/parquet_file.h"
#include "data/parquet_format.h"
#include "support/message_of.h"
#include "support/temp_folder.h"

namespace thimble::parquet_test {
namespace {

using namespace thimble::parquet_file;

std::vector<std::string> rows_of(const std::string& bytes, std::string_view only = {}) {
  const TempFolder folder;
  ParquetReader reader(folder.write("a.parquet", bytes), only);
  std::vector<std::string> rows;
  while (auto row = reader.next()) rows.push_back(std::move(*row));
  EXPECT_EQ(reader.rows(), rows.size());
  return rows;
}

std::vector<std::string> texts(const std::vector<std::string>& strings) {
  std::vector<std::string> rows;
  for (const std::string& text : strings) rows.push_back("{\"text\":\"" + text + "\"}");
  return rows;
}

// The error for a file, without the folder.
std::string error_of(const std::string& bytes, std::string_view only = {}) {
  const std::string message = message_of([&] { rows_of(bytes, only); });
  const std::size_t name = message.find("a.parquet");
  return name == message.npos ? message : message.substr(name);
}

const std::vector<std::string> kThree = {"one", "", "three"};

TEST(Parquet, ReadsPlainPagesOfBothVersions) {
  EXPECT_EQ(rows_of(text_file(3, {data_page(3, kPlain, plain(kThree))})), texts(kThree));
  const std::string body = plain(kThree);
  EXPECT_EQ(rows_of(text_file(3, {data_page2(3, kPlain, "", "", body, body.size(), true)})), texts(kThree));
  // Several pages, one of them empty.
  EXPECT_EQ(rows_of(text_file(3, {data_page(1, kPlain, plain({"one"})), data_page(0, kPlain, ""),
                                  data_page(2, kPlain, plain({"", "three"}))})),
            texts(kThree));
}

TEST(Parquet, ReadsDictionariesWithRunsAndPackedIndices) {
  const Page dictionary = dictionary_page(2, plain({"no", "yes"}));
  // A run of three ones, then eight packed indices, of which five count.
  const std::string indices =
      std::string("\x01", 1) + varint(3 << 1) + "\x01" + packed_levels({0, 1, 0, 0, 1}, 1);
  EXPECT_EQ(rows_of(text_file(8, {dictionary, data_page(8, kRleDictionary, indices)}, kUncompressed, true)),
            texts({"yes", "yes", "yes", "no", "yes", "no", "no", "yes"}));
}

// Lengths 1, 3, 2: the first number, then one block of deltas 2 and -1 in two bits each.
std::string deltas(std::int64_t first, std::int64_t smallest, const std::vector<unsigned>& above,
                   unsigned bits) {
  std::string body(bits * 4, '\0');
  for (std::size_t i = 0; i < above.size() * bits; ++i)
    if (above[i / bits] >> (i % bits) & 1) body[i / 8] = static_cast<char>(body[i / 8] | 1 << (i % 8));
  return varint(128) + varint(4) + varint(above.size() + 1) + zigzag(first) + zigzag(smallest) +
         std::string({static_cast<char>(bits), 0, 0, 0}) + body;
}

TEST(Parquet, ReadsDeltaEncodedStrings) {
  const std::string lengths = deltas(1, -1, {3, 0}, 2);
  EXPECT_EQ(rows_of(text_file(3, {data_page(3, kDeltaLength, lengths + "abbbcc")})),
            texts({"a", "bbb", "cc"}));
  // Prefixes 0, 1, 3.
  const std::string prefixes = deltas(0, 1, {0, 1}, 1);
  EXPECT_EQ(rows_of(text_file(3, {data_page(3, kDeltaBytes, prefixes + lengths + "abbbcc")})),
            texts({"a", "abbb", "abbcc"}));
}

std::string gzipped(const std::string& text) {
  z_stream state{};
  deflateInit2(&state, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(text.size() + 100, '\0'), in = text;
  state.next_in = reinterpret_cast<Bytef*>(in.data());
  state.avail_in = static_cast<uInt>(in.size());
  state.next_out = reinterpret_cast<Bytef*>(out.data());
  state.avail_out = static_cast<uInt>(out.size());
  deflate(&state, Z_FINISH);
  out.resize(state.total_out);
  deflateEnd(&state);
  return out;
}

TEST(Parquet, ReadsCompressedPages) {
  const std::string text(100, 'x'), body = plain({text});
  std::string zstd(ZSTD_compressBound(body.size()), '\0');
  zstd.resize(ZSTD_compress(zstd.data(), zstd.size(), body.data(), body.size(), 1));
  // Snappy: five literal bytes, then 64 and 35 bytes copied from one byte before.
  const std::string snappy = varint(104) + std::string("\x10\x64\0\0\0x", 6) + "\xFE\x01" +
                             std::string("\0", 1) + "\x8A\x01" + std::string("\0", 1);
  for (const auto& [codec, packed] :
       {std::pair(kSnappy, snappy), std::pair(kGzip, gzipped(body)), std::pair(kZstd, zstd)}) {
    EXPECT_EQ(rows_of(text_file(1, {data_page(1, kPlain, body.size(), packed)}, codec)), texts({text}))
        << codec;
    EXPECT_EQ(rows_of(text_file(1, {data_page2(1, kPlain, "", "", packed, body.size(), true)}, codec)),
              texts({text}));
    EXPECT_EQ(rows_of(text_file(1, {data_page2(1, kPlain, "", "", body, body.size(), false)}, codec)),
              texts({text}));
    EXPECT_NE(
        error_of(text_file(1, {data_page(1, kPlain, body.size() + 1, packed)}, codec)).find("row group 1"),
        std::string::npos);
    EXPECT_NE(error_of(text_file(1, {data_page(1, kPlain, body.size(), packed.substr(0, packed.size() - 1))},
                                 codec))
                  .find("row group 1, column \"text\": "),
              std::string::npos);
  }
}

TEST(Parquet, SnappyReadsAllKindsOfCopies) {
  using parquet::Codec;
  const auto unpack = [](const std::string& packed, std::uint64_t size) {
    return parquet::decompressed(Codec::snappy, packed, size);
  };
  // A literal of 4, then copies with an offset of 11, 16 and 32 bits.
  const std::string copies = std::string("\x0C") + "abcd" + "\x01\x04" + std::string("\x0E\x08\0", 3) +
                             std::string("\x03\x01\0\0\0", 5);
  EXPECT_EQ(unpack(varint(13) + copies, 13), "abcdabcdabcdd");
  EXPECT_EQ(unpack(varint(15) + "\x0C" + "abcd" + "\x1D\x04", 15), "abcdabcdabcdabc");
  std::string longer(70'000, 'y');  // a length in three bytes
  EXPECT_EQ(unpack(varint(70'000) + "\xF8" + std::string("\x6F\x11\x01", 3) + longer, 70'000), longer);
  EXPECT_THROW(unpack(varint(8) + "\x0C" + "abcd" + "\x01\x05", 8), Error);                // before the start
  EXPECT_THROW(unpack(varint(8) + "\x0C" + "abcd" + std::string("\x01\0", 2), 8), Error);  // an offset of 0
  EXPECT_THROW(unpack(varint(7) + "\x0C" + "abcd" + "\x01\x04", 7), Error);  // longer than promised
}

// messages: list<struct<role, content>>, with three rows: two turns, an empty list, null.
std::string chat_file() {
  const std::vector<Fields> schema = {group("messages", kOptional, 1, true), group("list", kRepeated, 1),
                                      group("element", kOptional, 2), strings("role", kOptional),
                                      strings("content", kOptional)};
  const std::string levels = sized(packed_levels({0, 1, 0, 0}, 1)) + sized(packed_levels({4, 4, 1, 0}, 3));
  return file_of(schema, 1,
                 {{3,
                   {{4, {data_page(4, kPlain, levels + plain({"user", "assistant"}))}},
                    {4, {data_page(4, kPlain, levels + plain({"Hi", "Hello."}))}}}}});
}

TEST(Parquet, ListsOfStructuresAreChats) {
  EXPECT_EQ(rows_of(chat_file()),
            (std::vector<std::string>{
                R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello."}]})",
                R"({"messages":[]})", R"({"messages":null})"}));
}

TEST(Parquet, ListsOfTwoLevelsAndRepeatedGroupsAreArrays) {
  const auto levels = [](const std::vector<unsigned>& repetitions, const std::vector<unsigned>& definitions) {
    return sized(packed_levels(repetitions, 1)) + sized(packed_levels(definitions, 1));
  };
  const std::string body = levels({0, 1, 0}, {1, 1, 0}) + plain({"a", "b"});
  EXPECT_EQ(rows_of(file_of({strings("tags", kRepeated)}, 1, {{2, {{3, {data_page(3, kPlain, body)}}}}})),
            (std::vector<std::string>{R"({"tags":["a","b"]})", R"({"tags":[]})"}));
  const std::vector<Fields> two_levels = {group("tags", kRequired, 1, true), strings("array", kRepeated)};
  EXPECT_EQ(rows_of(file_of(two_levels, 1, {{2, {{3, {data_page(3, kPlain, body)}}}}})),
            (std::vector<std::string>{R"({"tags":["a","b"]})", R"({"tags":[]})"}));
  // A repeated group of one column without the annotation is visible.
  const std::vector<Fields> turns = {group("turns", kRepeated, 1), strings("content", kRequired)};
  EXPECT_EQ(rows_of(file_of(turns, 1, {{2, {{3, {data_page(3, kPlain, body)}}}}})),
            (std::vector<std::string>{R"({"turns":[{"content":"a"},{"content":"b"}]})", R"({"turns":[]})"}));
}

TEST(Parquet, RowsMayContinueOnTheNextPage) {
  const auto page = [](const std::vector<unsigned>& repetitions, const std::vector<std::string>& values) {
    const std::string ones = packed_levels(std::vector<unsigned>(values.size(), 1), 1);
    return data_page(values.size(), kPlain,
                     sized(packed_levels(repetitions, 1)) + sized(ones) + plain(values));
  };
  EXPECT_EQ(rows_of(file_of({strings("tags", kRepeated)}, 1,
                            {{2, {{4, {page({0, 1}, {"a", "b"}), page({1, 0}, {"c", "d"})}}}}})),
            (std::vector<std::string>{R"({"tags":["a","b","c"]})", R"({"tags":["d"]})"}));
}

TEST(Parquet, ReadsOnlyTheNamedColumn) {
  const Fields number = Fields().integer(1, 1).integer(3, kRequired).binary(4, "id");
  const ChunkOfPages damaged{2, {data_page(2, kPlain, "")}},
      good{2, {data_page(2, kPlain, plain({"a", "b"}))}};
  const std::string file = file_of({number, strings("other", kRequired), strings("text", kRequired)}, 3,
                                   {{2, {damaged, damaged, good}}});
  EXPECT_EQ(rows_of(file, "text"), texts({"a", "b"}));
  EXPECT_NE(error_of(file).find("column \"other\""), std::string::npos);
  EXPECT_EQ(error_of(file, "id"), "a.parquet: expected strings in the column \"id\", found INT32");
}

TEST(Parquet, SeveralRowGroupsAreRead) {
  const GroupOfChunks one{1, {{1, {data_page(1, kPlain, plain({"a"}))}}}}, none{0, {{0, {}}}},
      two{2, {{2, {data_page(2, kPlain, plain({"b", "c"}))}}}};
  EXPECT_EQ(rows_of(file_of({strings("text", kRequired)}, 1, {one, none, two})), texts({"a", "b", "c"}));
  EXPECT_TRUE(rows_of(file_of({strings("text", kRequired)}, 1, {})).empty());
}

TEST(Parquet, UnsupportedFeaturesAreRefusedByName) {
  const std::string body = plain({"a"});
  EXPECT_EQ(error_of(text_file(1, {data_page(1, kPlain, body)}, kBrotli)),
            "a.parquet: row group 1, column \"text\": the codec BROTLI is not supported");
  EXPECT_EQ(error_of(text_file(1, {data_page(1, kDeltaBinary, body)})),
            "a.parquet: row group 1, column \"text\": the encoding DELTA_BINARY_PACKED of strings is not "
            "supported");
  const Fields number = Fields().integer(1, 5).integer(3, kRequired).binary(4, "x");
  EXPECT_EQ(error_of(file_of({number}, 1, {})),
            "a.parquet: expected a column of strings, found the columns x (DOUBLE)");
  std::string encrypted = text_file(1, {data_page(1, kPlain, body)});
  encrypted.back() = 'E';
  EXPECT_NE(error_of(encrypted).find("encrypted"), std::string::npos);
}

TEST(Parquet, DamagedFootersAreErrors) {
  const std::string file = text_file(3, {data_page(3, kPlain, plain(kThree))});
  for (std::size_t size = 0; size < file.size(); ++size)
    EXPECT_NE(error_of(file.substr(0, size)), "nothing was thrown") << size;
  std::string larger = file;
  larger[larger.size() - 6] = 1;  // the size of the footer
  EXPECT_NE(error_of(larger).find("expected a footer of at most"), std::string::npos) << error_of(larger);
  // More columns in the schema than in the row groups, and the reverse.
  const ChunkOfPages chunk{1, {data_page(1, kPlain, plain({"a"}))}};
  EXPECT_EQ(error_of(file_of({strings("a", kRequired), strings("b", kRequired)}, 2, {{1, {chunk}}})),
            "a.parquet: row group 1: expected 2 columns, found 1");
  EXPECT_EQ(error_of(file_of({strings("a", kRequired)}, 1, {{1, {chunk, chunk}}})),
            "a.parquet: row group 1: expected 1 columns, found 2");
  EXPECT_EQ(error_of(file_of({strings("a", kRequired)}, 3, {{1, {chunk}}})),
            "a.parquet: the schema is incomplete");
}

TEST(Parquet, DamagedPagesAndDictionariesAreErrors) {
  const std::string at = "a.parquet: row group 1, column \"text\": ";
  const auto error = [&](std::size_t rows, std::vector<Page> pages, bool dictionary = false) {
    const std::string found = error_of(text_file(rows, std::move(pages), kUncompressed, dictionary));
    return found.starts_with(at) ? found.substr(at.size()) : found;
  };
  EXPECT_EQ(error(3, {data_page(2, kPlain, plain({"a", "b"}))}),
            "the pages end 1 values before the promised 3");
  EXPECT_EQ(error(1, {data_page(2, kPlain, plain({"a", "b"}))}), "expected 1 more values, found a page of 2");
  EXPECT_EQ(error(1, {data_page(1, kPlain, u32(9) + "short")}), "expected 9 more bytes, found 5");
  const std::string index = std::string("\x02", 1) + varint(1 << 1) + "\x02";
  EXPECT_EQ(error(1, {data_page(1, kRleDictionary, index)}),
            "the page needs a dictionary, but there is no dictionary page");
  const Page two = dictionary_page(2, plain({"a", "b"}));
  EXPECT_EQ(error(1, {two, data_page(1, kRleDictionary, index)}, true),
            "expected an index into a dictionary of 2 strings, found 2");
  EXPECT_EQ(error(1, {two, two, data_page(1, kPlain, plain({"a"}))}, true),
            "expected one dictionary page, found another");
  EXPECT_EQ(error(1, {dictionary_page(3, plain({"a", "b"})), data_page(1, kRleDictionary, index)}, true),
            "expected a dictionary of 3 strings, found 10 bytes");
  EXPECT_EQ(error(1, {dictionary_page(1 << 30, plain({"a"})), data_page(1, kRleDictionary, index)}, true),
            "expected a dictionary of 1073741824 strings, found 5 bytes");
  Page wrong_sum = data_page(1, kPlain, plain({"a"}));
  wrong_sum.header = Fields().integer(1, 0).integer(2, 5).integer(3, 5).integer(4, 1).object(
      5, Fields().integer(1, 1).integer(2, 0).integer(3, 3).integer(4, 3));
  EXPECT_EQ(error(1, {wrong_sum}), "the checksum of a page is wrong: the file is damaged");
  EXPECT_EQ(error(2, {data_page(2, kPlain, plain({"a", "b"})), data_page(0, kPlain, "")}),
            "nothing was thrown");
}

TEST(Parquet, HugeSizesAreRefusedBeforeMemoryIsTaken) {
  const std::string body = plain({"a"});
  for (const int codec : {kUncompressed, kSnappy, kGzip, kZstd})
    EXPECT_NE(error_of(text_file(1, {data_page(1, kPlain, std::size_t{1} << 40, body)}, codec)).find("limit"),
              std::string::npos);
  EXPECT_NE(error_of(text_file(1, {data_page(1, kPlain, 200 << 20, body)}, kGzip)).find("gzip data"),
            std::string::npos);
  EXPECT_NE(
      error_of(text_file(std::size_t{1} << 62, {data_page(1, kPlain, body)})).find("before the promised"),
      std::string::npos);
}

// Any other byte anywhere gives rows or an Error, never a crash or another exception.
TEST(Parquet, ChangedBytesNeverCrash) {
  Rng rng(7);
  const Page dictionary = dictionary_page(2, plain({"no", "yes"}));
  const std::string indices = std::string("\x01", 1) + packed_levels({0, 1, 0, 0, 1}, 1);
  for (const std::string& file :
       {chat_file(),
        text_file(5, {dictionary, data_page(5, kRleDictionary, indices)}, kUncompressed, true)}) {
    std::set<std::string> errors;
    const TempFolder folder;
    for (std::size_t at = 0; at < file.size(); ++at) {
      std::string changed = file;
      changed[at] = static_cast<char>(rng.below(256));
      errors.insert(message_of([&] {
        ParquetReader reader(folder.write("a.parquet", changed));
        for (int rows = 0; rows < 100 && reader.next(); ++rows) {
        }
      }));
    }
    EXPECT_GT(errors.size(), 15u);
  }
}

}  // namespace
}  // namespace thimble::parquet_test
