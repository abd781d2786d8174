// Supported and unsupported contents of tokenizer.json.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "support/temp_folder.h"
#include "tokenizer/bpe_model.h"
#include "tokenizer/golden_tokenizers.h"
#include "tokenizer/normalize.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/unicode.h"

namespace thimble {

namespace {

// A small byte-level file: all bytes, "ab", "abc" and "Ġab". Tests modify it.
Json small_file() {
  Json vocab = Json::object();
  int id = 0;
  for (const unsigned char byte : byte_level_alphabet())
    vocab.set(byte_level_text(std::string(1, static_cast<char>(byte))), id++);
  for (const char* token : {"ab", "abc", "Ġab"}) vocab.set(token, id++);
  const Json merges = Json::array({Json("a b"), Json::array({Json("ab"), Json("c")}), Json("Ġ ab")});
  return Json::object()
      .set("added_tokens", Json::array({Json::object()
                                            .set("id", 259)
                                            .set("content", "<s>")
                                            .set("special", true)
                                            .set("normalized", false)}))
      .set("pre_tokenizer", Json::object().set("type", "ByteLevel").set("add_prefix_space", false))
      .set("decoder", Json::object().set("type", "ByteLevel"))
      .set("model", Json::object().set("type", "BPE").set("vocab", vocab).set("merges", merges));
}

Json with_model(Json file, const std::string& key, Json value) {
  Json model = file.at("model");
  file.set("model", model.set(key, std::move(value)));
  return file;
}

std::unique_ptr<Tokenizer> loaded(const Json& file) {
  return load_tokenizer_bytes(file.dump(), "small.json");
}

std::string refusal(const std::string& content) {
  try {
    load_tokenizer_bytes(content, "small.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}
std::string refusal(const Json& file) {
  return refusal(file.dump());
}

std::vector<std::string> texts(const Tokenizer& tokenizer, std::string_view text,
                               EncodeOptions options = {}) {
  std::vector<std::string> out;
  for (const TokenId id : tokenizer.encode(text, options)) out.push_back(tokenizer.token_text(id));
  return out;
}
using Texts = std::vector<std::string>;

Json added(int id, const char* content, bool special, const char* flag = "special") {
  return Json::object()
      .set("id", id)
      .set("content", content)
      .set("special", special)
      .set("normalized", false)
      .set(flag, std::string_view(flag) == "special" ? special : true);
}

}  // namespace

TEST(TokenizerJson, AcceptsMergesAsStringsAndAsPairs) {
  const auto tokenizer = loaded(small_file());
  EXPECT_EQ(texts(*tokenizer, "abcab ab"), (Texts{"abc", "ab", "Ġab"}));
  EXPECT_EQ(tokenizer->vocab_size(), 260);
  EXPECT_EQ(tokenizer->kind(), TokenizerKind::bpe);
}

TEST(TokenizerJson, IgnoreMergesPrefersACompleteWord) {
  Json file = small_file();
  file = with_model(file, "merges", Json::array({Json("b c"), Json("a b"), Json("ab c")}));
  Json vocab = file.at("model").at("vocab");
  file = with_model(file, "vocab", vocab.set("bc", 260));
  EXPECT_EQ(texts(*loaded(file), "abc"), (Texts{"a", "bc"}));
  EXPECT_EQ(texts(*loaded(with_model(file, "ignore_merges", true)), "abc"), (Texts{"abc"}));
}

TEST(TokenizerJson, SpecialTokensAreEncodedAsTextUnlessTrusted) {
  const auto tokenizer = loaded(small_file());
  EXPECT_EQ(texts(*tokenizer, "ab<s>"), (Texts{"ab", "<", "s", ">"}));
  EXPECT_EQ(texts(*tokenizer, "ab<s>", {.trusted = true}), (Texts{"ab", "<s>"}));
  const auto ids = tokenizer->encode("<s>ab", {.trusted = true});
  EXPECT_EQ(tokenizer->decode(ids), "ab");
  EXPECT_EQ(tokenizer->decode(ids, {.keep_special = true}), "<s>ab");
}

TEST(TokenizerJson, AppliesTheFlagsOfAddedTokens) {
  Json file = small_file();
  file.set("added_tokens",
           Json::array({added(259, "<l>", true, "lstrip"), added(260, "<r>", true, "rstrip"),
                        added(256, "ab", false, "single_word"), added(261, "<plain>", false)}));
  const auto tokenizer = loaded(file);
  const EncodeOptions trusted{.trusted = true};
  EXPECT_EQ(texts(*tokenizer, "c \n<l> c", trusted), (Texts{"c", "<l>", "Ġ", "c"}));
  EXPECT_EQ(texts(*tokenizer, "c <r>\n c", trusted), (Texts{"c", "Ġ", "<r>", "c"}));
  EXPECT_EQ(texts(*tokenizer, "abc", {}), (Texts{"abc"}));  // not a separate word
  EXPECT_EQ(texts(*tokenizer, " ab.", {}), (Texts{"Ġ", "ab", "."}));
  EXPECT_EQ(texts(*tokenizer, "c<plain>c", {}), (Texts{"c", "<plain>", "c"}));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("c<plain>c")), "c<plain>c");
}

TEST(TokenizerJson, TemplateIdsAreAddedOnRequest) {
  Json file = small_file();
  file.set("post_processor",
           parse_json(
               R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},)"
               R"({"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"<s>","type_id":0}}],"pair":[],)"
               R"("special_tokens":{"<s>":{"id":"<s>","ids":[259],"tokens":["<s>"]}}})",
               "t"));
  const auto tokenizer = loaded(file);
  EXPECT_EQ(texts(*tokenizer, "ab", {.add_special = true}), (Texts{"<s>", "ab", "<s>"}));
  EXPECT_EQ(texts(*tokenizer, "ab"), (Texts{"ab"}));
}

// The vocabulary has no letter "a", so adds_bos() must not encode a fixed text.
TEST(AddsBos, WorksForAVocabularyWithoutCommonLetters) {
  BpeSpec spec;
  spec.vocab = {"<s>", "C", "G", "T"};
  spec.added_tokens = {{.id = 0, .content = "<s>"}};
  const auto without_template = make_bpe_tokenizer(spec);
  EXPECT_FALSE(without_template->adds_bos());
  spec.post_processor.after = {0};
  EXPECT_FALSE(make_bpe_tokenizer(spec)->adds_bos());
  spec.post_processor.before = {0};
  EXPECT_TRUE(make_bpe_tokenizer(spec)->adds_bos());
  without_template->texts_begin_with_bos();
  EXPECT_TRUE(without_template->adds_bos());
  EXPECT_EQ(without_template->encode("CG", {.add_special = true}), (std::vector<TokenId>{0, 1, 2}));
  EXPECT_EQ(without_template->encode("CG"), (std::vector<TokenId>{1, 2}));
}

TEST(TokenizerJson, AddsAPrefixSpaceIfConfigured) {
  Json file = small_file();
  file.set("pre_tokenizer", Json::object().set("type", "ByteLevel").set("add_prefix_space", true));
  EXPECT_EQ(texts(*loaded(file), "ab"), (Texts{"Ġab"}));
  EXPECT_EQ(texts(*loaded(file), " ab"), (Texts{"Ġab"}));
}

TEST(TokenizerJson, SplitsDigitsBeforeBytes) {
  Json file = small_file();
  file.set("pre_tokenizer",
           parse_json(R"({"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},)"
                      R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":true}]})",
                      "t"));
  EXPECT_EQ(texts(*loaded(file), "ab12ab"), (Texts{"ab", "1", "2", "ab"}));
}

TEST(TokenizerJson, SupportsAllSplitBehaviors) {
  const std::vector<std::pair<std::string, Texts>> cases = {
      {"Removed", {"ab", "ab"}},
      {"Isolated", {"ab", "-", "-", "ab"}},
      {"MergedWithPrevious", {"ab", "-", "-", "ab"}},
      {"MergedWithNext", {"ab", "-", "-", "ab"}},
      {"Contiguous", {"ab", "-", "-", "ab"}},
  };
  // The merges show the pieces: "--", "ab-" and "-ab" are tokens.
  for (const auto& [behaviour, expected] : cases) {
    Json file = small_file();
    Json vocab = file.at("model").at("vocab");
    vocab.set("--", 260).set("ab-", 261).set("-ab", 262);
    file = with_model(file, "vocab", vocab);
    file = with_model(file, "merges", Json::array({Json("a b"), Json("- -"), Json("ab -"), Json("- ab")}));
    file.set("pre_tokenizer",
             Json::object()
                 .set("type", "Sequence")
                 .set("pretokenizers", Json::array({Json::object()
                                                        .set("type", "Split")
                                                        .set("pattern", Json::object().set("String", "-"))
                                                        .set("behavior", behaviour)
                                                        .set("invert", false),
                                                    Json::object()
                                                        .set("type", "ByteLevel")
                                                        .set("add_prefix_space", false)
                                                        .set("use_regex", false)})));
    Texts adjusted = expected;
    if (behaviour == "MergedWithPrevious") adjusted = {"ab-", "-", "ab"};
    if (behaviour == "MergedWithNext") adjusted = {"ab", "-", "-ab"};
    if (behaviour == "Contiguous") adjusted = {"ab", "--", "ab"};
    EXPECT_EQ(texts(*loaded(file), "ab--ab"), adjusted) << behaviour;
  }
}

TEST(TokenizerJson, SupportsLlama2FilesWithByteFallback) {
  Json vocab = Json::object().set("<unk>", 0).set("<s>", 1);
  int id = 2;
  for (int byte = 0; byte < 256; ++byte) vocab.set(byte_token(static_cast<unsigned char>(byte)), id++);
  for (const char* token : {"\u2581", "a", "b", "\u2581a", "\u2581ab"}) vocab.set(token, id++);
  const Json file = parse_json(
      R"({"added_tokens":[{"id":0,"content":"<unk>","special":true},{"id":1,"content":"<s>","special":true}],
    "normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]},
    "pre_tokenizer":null,
    "decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}})",
      "t");
  Json model = Json::object()
                   .set("type", "BPE")
                   .set("unk_token", "<unk>")
                   .set("fuse_unk", true)
                   .set("byte_fallback", true)
                   .set("vocab", vocab)
                   .set("merges", Json::array({Json("\u2581 a"), Json("\u2581a b")}));
  Json whole = file;
  const auto tokenizer = loaded(whole.set("model", model));
  EXPECT_EQ(texts(*tokenizer, "ab \u00E9"), (Texts{"\u2581ab", "\u2581", "<0xC3>", "<0xA9>"}));
  for (const std::string text : {"ab \u00E9 a", " ab", "a  b",
                                 "\xFF"
                                 "a"})
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  StreamDecoder stream(*tokenizer);
  std::string streamed;
  for (const TokenId token : tokenizer->encode("ab \u00E9 a")) streamed += stream.push(token);
  EXPECT_EQ(streamed + stream.finish(), "ab \u00E9 a");
}

TEST(TokenizerJson, ErrorsContainTheUnsupportedFeature) {
  auto type = [](const char* name) { return Json::object().set("type", name); };
  EXPECT_EQ(refusal(small_file().set("normalizer", type("BertNormalizer"))),
            "small.json: the normalizer \"BertNormalizer\" is not supported");
  EXPECT_EQ(refusal(small_file().set("pre_tokenizer", type("Metaspace"))),
            "small.json: the pre-tokenizer \"Metaspace\" is not supported");
  EXPECT_EQ(refusal(small_file().set("decoder", type("WordPiece"))),
            "small.json: the decoder \"WordPiece\" is not supported");
  EXPECT_EQ(refusal(small_file().set("post_processor", type("BertProcessing"))),
            "small.json: the post-processor \"BertProcessing\" is not supported");
  EXPECT_EQ(refusal(with_model(small_file(), "type", "Unigram")),
            "small.json: expected a model of type \"BPE\", found \"Unigram\"");
  EXPECT_EQ(refusal(with_model(small_file(), "dropout", 0.1)),
            "small.json: the model uses dropout = 0.1, which is not supported");
  EXPECT_EQ(refusal(with_model(small_file(), "end_of_word_suffix", "</w>")),
            "small.json: the model uses end_of_word_suffix = \"</w>\", which is not supported");
  EXPECT_NE(refusal(small_file().set("truncation", Json::object().set("max_length", 5))), "");
}

TEST(TokenizerJson, ErrorsDescribeAnInvalidFile) {
  EXPECT_EQ(refusal(std::string()), "small.json is empty; expected a tokenizer");
  EXPECT_TRUE(refusal(small_file().dump().substr(0, 500)).starts_with("small.json:1:"));
  EXPECT_EQ(
      refusal(with_model(small_file(), "merges", Json::array({Json("a zz")}))),
      "small.json: merge 0 (\"a\" + \"zz\") refers to the token \"zz\", which is not in the vocabulary");
  EXPECT_EQ(refusal(with_model(small_file(), "merges", Json::array({Json("a")}))),
            "small.json: expected a merge of two tokens separated by a space, found \"a\"");
  Json vocab = small_file().at("model").at("vocab");
  EXPECT_EQ(refusal(with_model(small_file(), "vocab", vocab.set("twin", 256))),
            "small.json: two tokens have the id 256: \"ab\" and \"twin\"");
  EXPECT_EQ(refusal(with_model(small_file(), "vocab", vocab.set("twin", 4000000000))),
            "small.json: the token \"twin\" has the id 4000000000, expected 0 to 4194303");
  EXPECT_EQ(refusal(with_model(small_file(), "vocab", vocab.set("twin", -1))),
            "small.json: the token \"twin\" has the id -1, expected 0 to 4194303");
  EXPECT_EQ(refusal(std::string("{}")), "small.json: no \"vocab\" in \"model\"");
  EXPECT_NE(refusal(std::string("hello")), "");
}

TEST(TokenizerJson, GapsInTheVocabularyAreUnusedIds) {
  Json vocab = small_file().at("model").at("vocab");
  const auto tokenizer = loaded(with_model(small_file(), "vocab", vocab.set("far", 300)));
  EXPECT_EQ(tokenizer->vocab_size(), 301);
  EXPECT_EQ(tokenizer->token_type(280), TokenType::unused);
  EXPECT_EQ(tokenizer->token_text(280), "");
  EXPECT_THROW(tokenizer->token_text(301), Error);
  EXPECT_THROW(tokenizer->decode(std::vector<TokenId>{-1}), Error);
}

TEST(TokenizerJson, EncodingAMissingByteIsAnError) {
  Json file = small_file();
  Json vocab = Json::object();
  int id = 0;
  for (const char* token : {"a", "b", "ab"}) vocab.set(token, id++);
  file = with_model(with_model(file, "vocab", vocab), "merges", Json::array({Json("a b")}));
  const auto tokenizer = loaded(file.set("added_tokens", Json::array()));
  EXPECT_EQ(texts(*tokenizer, "abab"), (Texts{"ab", "ab"}));
  EXPECT_THROW(tokenizer->encode("abc"), Error);
}

// Words are encoded one by one: unknown bytes are fused within a word only, also without merges.
TEST(TokenizerJson, UnknownBytesAreFusedWithinAWord) {
  Json vocab = Json::object().set("<unk>", 0).set("a", 1).set("\u0120", 2);
  Json model = Json::object()
                   .set("type", "BPE")
                   .set("unk_token", "<unk>")
                   .set("fuse_unk", true)
                   .set("vocab", vocab)
                   .set("merges", Json::array());
  Json file = small_file();
  const auto tokenizer = loaded(file.set("model", model));
  for (int i = 0; i < 2; ++i) {  // the second time from the cache
    EXPECT_EQ(tokenizer->encode("xx!!"), (std::vector<TokenId>{0, 0}));
    EXPECT_EQ(tokenizer->encode("!!"), std::vector<TokenId>{0});
    EXPECT_EQ(tokenizer->encode("a xx"), (std::vector<TokenId>{1, 2, 0}));
  }
}

TEST(TokenizerJson, WrittenFilesParseToTheSameSpec) {
  for (const std::filesystem::path& file : bpe_files()) {
    const BpeSpec spec = parse_tokenizer_json(read_text_file(file), file.string());
    const std::string written = write_tokenizer_json(spec);
    const BpeSpec again = parse_tokenizer_json(written, "written");
    EXPECT_EQ(write_tokenizer_json(again), written);
    EXPECT_EQ(again.vocab, spec.vocab);
    EXPECT_EQ(again.merges.size(), spec.merges.size());
    EXPECT_EQ(again.ignore_merges, spec.ignore_merges);
    EXPECT_EQ(again.post_processor.before, spec.post_processor.before);
    EXPECT_EQ(again.added_tokens.size(), spec.added_tokens.size());
  }
}

TEST(Load, FolderFileAndContentGiveTheSameTokenizer) {
  TempFolder folder;
  const auto file = folder.write("tokenizer.json", small_file().dump());
  folder.write("tokenizer_config.json", R"({"bos_token": {"content": "abc"}, "eos_token": "<s>"})");
  const auto from_file = load_tokenizer(file), from_folder = load_tokenizer(folder.path());
  EXPECT_EQ(from_file->digest(), from_folder->digest());
  EXPECT_EQ(from_folder->special().bos, 257);
  EXPECT_EQ(from_folder->special().eos, 259);
  const auto copy = load_tokenizer_bytes(from_folder->serialized(), "copy", from_folder->special());
  EXPECT_EQ(copy->digest(), from_folder->digest());
  EXPECT_EQ(copy->special().bos, 257);
}

TEST(Bytes, SpecialTokensComeFirstAndTheFileRoundTrips) {
  const auto tokenizer = load_tokenizer("bytes:chat");
  EXPECT_EQ(tokenizer->kind(), TokenizerKind::bytes);
  EXPECT_EQ(tokenizer->vocab_size(), 261);
  EXPECT_EQ(tokenizer->encode("A\xFF"), (std::vector<TokenId>{5 + 65, 5 + 255}));
  EXPECT_EQ(tokenizer->encode("<user>", {.trusted = true}), (std::vector<TokenId>{1}));
  const auto again = load_tokenizer_bytes(tokenizer->serialized(), "bytes");
  EXPECT_EQ(again->kind(), TokenizerKind::bytes);
  EXPECT_EQ(again->digest(), tokenizer->digest());
  EXPECT_EQ(load_tokenizer("bytes")->vocab_size(), 257);
}

TEST(Bytes, EncodesTextsOfAnyLength) {
  const std::string text(BpeModel::kMaxWordBytes + 5, 'a');
  EXPECT_EQ(load_tokenizer("bytes")->encode(text).size(), text.size());
}

TEST(StreamDecoder, NeverEmitsAPartialCharacter) {
  const auto tokenizer = load_tokenizer("bytes");
  StreamDecoder stream(*tokenizer);
  const std::string text = "h\u00E9\u20AC\U0001F600!";
  std::string shown;
  for (const TokenId id : tokenizer->encode(text)) {
    const std::string piece = stream.push(id);
    for (const char* p = piece.data(); p < piece.data() + piece.size();) {
      const Utf8Char c = decode_utf8(p, piece.data() + piece.size());
      ASSERT_TRUE(c.valid);
      p += c.bytes;
    }
    shown += piece;
  }
  EXPECT_EQ(shown + stream.finish(), text);
}

TEST(StreamDecoder, ReplacesInvalidBytes) {
  const auto tokenizer = load_tokenizer("bytes");
  auto streamed = [&](std::string_view bytes) {
    StreamDecoder stream(*tokenizer);
    std::string out;
    for (const TokenId id : tokenizer->encode(bytes)) out += stream.push(id) + "|";
    return out + stream.finish();
  };
  EXPECT_EQ(streamed("\xE2\x82x"), "||\uFFFDx|");
  EXPECT_EQ(streamed("a\xFF"), "a|\uFFFD|");
  EXPECT_EQ(streamed("\xF0\x9F"), "||\uFFFD");
}

}  // namespace thimble
