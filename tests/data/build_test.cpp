// build_dataset(): its output, errors, and resuming after a kill.
#include "data/build.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>

#include "base/error.h"
#include "base/parallel.h"
#include "data/built.h"
#include "support/golden.h"
#include "support/message_of.h"
#include "support/temp_folder.h"
#include "tokenizer/bpe_train.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/tokenizer.h"

namespace thimble::build_test {
namespace {

TEST(Build, DocumentsDecodeToTheInput) {
  TempFolder folder;
  const std::string text = folder.write("a.txt", tales(100)).string();
  for (const std::shared_ptr<const Tokenizer>& tokenizer :
       {trained_bpe(), std::shared_ptr<const Tokenizer>(load_tokenizer("bytes"))}) {
    const fs::path out = folder / std::string(name_of(tokenizer->kind()));
    const BuildResult built = build(
        {.inputs = {text}, .val_documents = 4, .tokenizer = tokenizer, .folder = out, .shard_tokens = 500});
    std::vector<std::string> all = decoded(*tokenizer, out, built.manifest.train);
    ASSERT_EQ(all.size(), 96u);
    const auto val = decoded(*tokenizer, out, built.manifest.val);
    ASSERT_EQ(val.size(), 4u);
    all.insert(all.end(), val.begin(), val.end());
    std::string joined;
    for (const std::string& document : all) joined += document + "<|endoftext|>\n";
    EXPECT_EQ(joined, tales(100));
    EXPECT_EQ(built.manifest.train.bytes + built.manifest.val.bytes, joined.size() - 100 * 14);
    EXPECT_GT(built.manifest.train.shards.size(), 3u);
    EXPECT_EQ(Manifest::parse(read_file(out / kManifestFile, 1 << 20), "manifest"), built.manifest);
    EXPECT_EQ(load_tokenizer(out)->digest(), tokenizer->digest());
  }
}

TEST(Build, OutputDoesNotDependOnThreads) {
  TempFolder folder;
  const std::string text = folder.write("a.txt", tales(3000)).string();
  const auto tokenizer = trained_bpe();
  const int threads = max_threads();
  for (const int count : {1, 2, 3}) {
    set_threads(count);
    build({.inputs = {text},
           .val_fraction = 0.1,
           .tokenizer = tokenizer,
           .folder = folder / fmt::format("out{}", count),
           .dedup = true,
           .shard_tokens = 10007});
  }
  set_threads(threads);
  EXPECT_EQ(contents(folder / "out1"), contents(folder / "out2"));
  EXPECT_EQ(contents(folder / "out1"), contents(folder / "out3"));
}

// A document of several megabytes is cut into pieces. The tokens must be those of the uncut text.
TEST(Build, PiecesOfLongTextsHaveTheTokensOfTheCompleteText) {
  TempFolder folder;
  std::string text;
  for (int i = 0; text.size() < kMaxTextPieceBytes + (1 << 19); ++i)
    text += fmt::format("It was the {}th day, and don't you know it's {} o'clock; ", i, i % 12);
  std::vector<std::shared_ptr<const Tokenizer>> tokenizers = {trained_bpe()};
  TextSource source({folder.write("t.txt", tales(200))}, {.split = DocumentSplit::line});
  tokenizers.push_back(load_sentencepiece(train_sentencepiece(source, {.vocab_size = 350}), "test"));
  for (const auto& tokenizer : tokenizers) {
    if (tokenizer->kind() == TokenizerKind::sentencepiece) text.resize(600'000);  // slow
    const std::string file = folder.write("a.txt", text).string();
    const fs::path out = folder / std::string(name_of(tokenizer->kind()));
    const BuildResult built = build({.inputs = {file}, .tokenizer = tokenizer, .folder = out});
    std::vector<TokenId> whole = {*tokenizer->special().bos};
    tokenizer->encode(text, whole);
    EXPECT_TRUE(tokens_of(out, built.manifest.train) == whole) << name_of(tokenizer->kind());
    EXPECT_EQ(built.manifest.train.bytes, ByteTable(*tokenizer, tokenizer->vocab_size()).total(whole));
    EXPECT_EQ(built.manifest.train.documents, 1u);
  }
}

TEST(Build, TokenAcrossACutLosesNoText) {
  TempFolder folder;
  TextSource source({folder.write("tales.txt", tales(3))}, {});
  BpeSpec spec = train_bpe(source, {.vocab_size = 257}, ProgressOutput::nowhere()).spec;
  spec.pre_tokenizer = {ByteLevel{.add_prefix_space = false, .use_regex = false}};
  const auto id_of = [&](std::string_view token) {
    return static_cast<TokenId>(std::ranges::find(spec.vocab, token) - spec.vocab.begin());
  };
  const auto merge = [&](const std::string& left, const std::string& right) {
    spec.vocab.push_back(left + right);
    spec.merges.push_back({id_of(left), id_of(right), id_of(left + right)});
  };
  merge("f", "\xC4\xA0");  // a space, as byte-level vocabularies spell it
  merge("f\xC4\xA0", "t");
  const auto tokenizer = make_bpe_tokenizer(spec);
  MixedRecord piece;
  piece.record = {.raw = " text", .starts = false, .context = "of"};
  const BatchEncoder encoder(*tokenizer, {}, {});
  const EncodedRecord encoded = encoder.encode({&piece, 1}, {true})[0];
  ASSERT_EQ(encoded.parts.size(), 1u);
  EXPECT_EQ(tokenizer->decode(encoded.parts[0]), " text");
  EXPECT_EQ(encoded.bytes, 5u);
}

// Encodes a text in which "<|endoftext|>" separates documents, which makes that token the bos.
std::string shard_of(const fs::path& tokenizer_file, const std::string& text) {
  auto tokenizer = load_tokenizer_bytes(read_text_file(tokenizer_file), tokenizer_file.string());
  SpecialIds ids;
  ids.bos = tokenizer->id_of("<|endoftext|>");
  tokenizer->prefer(ids);
  TempFolder folder;
  build({.inputs = {folder.write("a.txt", text).string()},
         .tokenizer = std::move(tokenizer),
         .folder = folder / "out",
         .shard_tokens = 32768});
  return contents(folder / "out").at("data_train_000000.bin");
}

// The tokens of the golden shard are those of Hugging Face's library.
TEST(Build, ReproducesShardsOfOtherPrograms) {
  EXPECT_TRUE(
      shard_of(golden_path("tokenizers/gpt2.json"), read_text_file(golden_path("corpus/tales.txt.gz"))) ==
      read_file(golden_path("shards/tales_gpt2.bin"), 1 << 24));

  const auto corpus = shared_path("corpora/tinyshakespeare.txt");
  const auto shard = shared_path("fixtures/shards/tiny_shakespeare_val.bin");
  if (!corpus || !shard) return;
  // llm.c begins a document after every empty line, which belongs to the previous document.
  std::string text = read_file(*corpus, 1 << 24);
  for (std::size_t at = 0; (at = text.find("\n\n", at)) != text.npos; at += 15)
    text.insert(at + 2, "<|endoftext|>");
  EXPECT_TRUE(shard_of(*shared_path("fixtures/tokenizers/gpt2/tokenizer.json.zst"), text) ==
              read_file(*shard, 1 << 24));
}

TEST(Build, ChatsAreTrimmedCountedAndLimited) {
  TempFolder folder;
  const auto turn = [](std::string_view role, std::size_t length) {
    return fmt::format(R"({{"role": "{}", "content": "{}"}})", role, std::string(length, 'x'));
  };
  const std::string chats =
      folder
          .write("a.jsonl",
                 fmt::format("[{0},{1}]\n[{0},{1},{0}]\n[{0}]\n[{2},{1}]\n[{0},{2},{3}]\n", turn("user", 3),
                             turn("assistant", 4), turn("user", 60), turn("assistant", 50)))
          .string();
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer("bytes:chat");
  BuildRequest request{
      .inputs = {chats}, .tokenizer = tokenizer, .folder = folder / "a", .read = {.kind = DataKind::chat}};
  const BuildResult all = build(request);
  EXPECT_EQ(all.manifest.train.documents, 4u);
  EXPECT_EQ(all.manifest.train.bytes, 7u + 7 + 64 + 113);
  EXPECT_EQ(all.manifest.train.tokens,
            all.manifest.train.bytes + 4 + 9 * 2);  // bos; role and <end_turn> of 9 turns
  EXPECT_EQ(dropped(all, "without_answer"), 1u);
  EXPECT_EQ(dropped(all, "turns_after_last_answer"), 1u);

  request.folder = folder / "cut";
  request.limits.context = 100;
  const BuildResult cut = build(request);
  EXPECT_EQ(cut.manifest.train.documents, 4u);
  EXPECT_EQ(dropped(cut, "truncated"), 1u);
  EXPECT_EQ(dropped(cut, "too_long"), 0u);
  EXPECT_EQ(cut.manifest.train.tokens, all.manifest.train.tokens - 120 + 100);
  EXPECT_EQ(cut.manifest.train.bytes, all.manifest.train.bytes - 113 + 94);

  request.folder = folder / "skipped";
  request.limits.skip_long = true;
  const BuildResult skipped = build(request);
  EXPECT_EQ(skipped.manifest.train.documents, 3u);
  EXPECT_EQ(dropped(skipped, "too_long"), 1u);
  EXPECT_EQ(skipped.manifest.train.bytes, all.manifest.train.bytes - 113);

  request.folder = folder / "short";  // no room for an answer: dropped instead of truncated
  request.limits = {.context = 20};
  EXPECT_EQ(dropped(build(request), "too_long"), 2u);
}

TEST(Build, EmptyTrainingSplitIsAnErrorAndLeavesNoFiles) {
  TempFolder folder;
  const std::string chats =
      folder.write("c.jsonl", R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])")
          .string();
  std::string lines;
  for (int i = 0; i < 50; ++i) lines += fmt::format("line {}\n", i);
  const std::string text = folder.write("t.txt", lines).string();
  const auto files = folder.files();
  BuildRequest too_long{.inputs = {chats},
                        .tokenizer = load_tokenizer("bytes:chat"),
                        .folder = folder / "out",
                        .read = {.kind = DataKind::chat}};
  too_long.limits = {.context = 3};
  EXPECT_THROW(build(too_long), Error);
  EXPECT_EQ(folder.files(), files);
  BuildRequest too_light{.inputs = {text + ":0.00001"},
                         .tokenizer = load_tokenizer("bytes"),
                         .folder = folder / "out",
                         .read = {.split = DocumentSplit::line}};
  too_light.val_documents = 10;
  too_light.shard_tokens = 8;  // a validation shard has been written before the error
  EXPECT_THROW(build(too_light), Error);
  EXPECT_EQ(folder.files(), files);
}

TEST(Build, WeightsRepeatAndInterleaveSources) {
  TempFolder folder;
  std::string a, b;
  for (int i = 0; i < 200; ++i) a += fmt::format("a{}\n", i);
  for (int i = 0; i < 100; ++i) b += fmt::format("b{}\n", i);
  const std::string first = folder.write("a.txt", a).string(), second = folder.write("b.txt", b).string();
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer("bytes");
  const BuildResult built = build({.inputs = {first + ":0.5", second + ":2.25"},
                                   .val_documents = 10,
                                   .tokenizer = tokenizer,
                                   .folder = folder / "out",
                                   .read = {.split = DocumentSplit::line}});
  const auto train = decoded(*tokenizer, folder / "out", built.manifest.train);
  std::map<std::string, int> times;
  std::size_t of_a = 0, of_b = 0, of_b_early = 0;
  for (std::size_t i = 0; i < train.size(); ++i) {
    ++times[train[i]];
    (train[i][0] == 'a' ? of_a : of_b) += 1;
    of_b_early += train[i][0] == 'b' && i < train.size() / 2;
  }
  EXPECT_NEAR(static_cast<double>(of_a), 100, 30);
  EXPECT_NEAR(static_cast<double>(of_b), 90 * 2.25, 20);
  for (const auto& [text, count] : times) EXPECT_LE(count, text[0] == 'a' ? 1 : 3) << text;
  for (int i = 0; i < 90; ++i) EXPECT_GE(times[fmt::format("b{}", i)], 2);
  EXPECT_NEAR(static_cast<double>(of_b_early), static_cast<double>(of_b) / 2,
              15);  // interleaved
  // Validation is written once, regardless of the weight, and is not in training.
  EXPECT_EQ(decoded(*tokenizer, folder / "out", built.manifest.val).size(), 10u);
  for (int i = 90; i < 100; ++i) EXPECT_FALSE(times.contains(fmt::format("b{}", i)));
}

TEST(Build, SingleDocumentIsCutForValidation) {
  TempFolder folder;
  const std::string text = std::string(900, 'a') + std::string(100, 'b');
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer("bytes");
  const BuildResult built = build({.inputs = {folder.write("a.txt", text).string()},
                                   .val_fraction = 0.1,
                                   .tokenizer = tokenizer,
                                   .folder = folder / "out"});
  EXPECT_EQ(decoded(*tokenizer, folder / "out", built.manifest.train), (std::vector{std::string(900, 'a')}));
  EXPECT_EQ(decoded(*tokenizer, folder / "out", built.manifest.val), (std::vector{std::string(100, 'b')}));
}

TEST(Build, FewLongTextsAreCutForValidation) {
  TempFolder folder;
  std::vector<std::string> inputs;
  for (const char c : {'a', 'b', 'c'}) {
    const std::string text = std::string(9000, c) + std::string(1000, static_cast<char>(c + 3));
    inputs.push_back(folder.write(fmt::format("{}.txt", c), text).string());
  }
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer("bytes");
  BuildRequest request{
      .inputs = inputs, .val_fraction = 0.1, .tokenizer = tokenizer, .folder = folder / "out"};
  const Manifest manifest = build(request).manifest;
  const auto parts = [](std::initializer_list<char> letters, std::size_t bytes) {
    std::vector<std::string> texts;
    for (const char c : letters) texts.emplace_back(bytes, c);
    return texts;
  };
  EXPECT_EQ(decoded(*tokenizer, folder / "out", manifest.train), parts({'a', 'b', 'c'}, 9000));
  EXPECT_EQ(decoded(*tokenizer, folder / "out", manifest.val), parts({'d', 'e', 'f'}, 1000));
  EXPECT_EQ(manifest.settings.at("val_cut").as_int(), 3);
  // A source that is read twice is cut in each pass; its validation text is written once.
  request.folder = folder / "weighted";
  request.inputs[1] += ":2";
  const Manifest weighted = build(request).manifest;
  EXPECT_EQ(weighted.train.bytes, 4 * 9000u);
  EXPECT_EQ(weighted.val.bytes, 3 * 1000u);
}

// Records of JSON and of a table are cut as texts are, at the start of a character.
TEST(Build, FewLongRecordsAreCutForValidation) {
  TempFolder folder;
  std::string lines, table = "id,text\n";
  for (const char c : {'a', 'b', 'c'}) {
    std::string text = std::string(7999, c);
    for (int i = 0; i < 1000; ++i) text += "\u00E9";
    lines += fmt::format("{{\"text\": \"{}\"}}\n", text);
    table += fmt::format("1,{}\n", text);
  }
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer("bytes");
  for (const auto& [name, content] : {std::pair("a.jsonl", lines), std::pair("a.csv", table)}) {
    const fs::path out = folder / fmt::format("out-{}", name);
    const Manifest manifest = build({.inputs = {folder.write(name, content).string()},
                                     .val_fraction = 0.1,
                                     .tokenizer = tokenizer,
                                     .folder = out})
                                  .manifest;
    EXPECT_EQ(manifest.train.bytes + manifest.val.bytes, 3 * 9999u);
    EXPECT_NEAR(static_cast<double>(manifest.val.bytes), 0.1 * 3 * 9999, 30);
    EXPECT_EQ(manifest.settings.at("val_cut").as_int(), 3);
    for (const std::string& text : decoded(*tokenizer, out, manifest.val))
      EXPECT_TRUE(text.starts_with("\u00E9")) << text.substr(0, 9);
  }
}

TEST(Build, FewLongChatsAreCutBetweenExchanges) {
  TempFolder folder;
  std::string lines;
  for (const char c : {'a', 'b', 'c'}) {
    lines += R"({"messages": [{"role": "system", "content": "S"})";
    for (int i = 0; i < 20; ++i)
      lines += fmt::format(
          R"(, {{"role": "user", "content": "{0}{1}"}}, {{"role": "assistant", "content": "{2}"}})", c, i,
          std::string(500, c));
    lines += "]}\n";
  }
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer("bytes:chat");
  const Manifest manifest = build({.inputs = {folder.write("a.jsonl", lines).string()},
                                   .val_fraction = 0.1,
                                   .tokenizer = tokenizer,
                                   .folder = folder / "out",
                                   .read = {.kind = DataKind::chat}})
                                .manifest;
  const auto val = decoded(*tokenizer, folder / "out", manifest.val),
             train = decoded(*tokenizer, folder / "out", manifest.train);
  ASSERT_EQ(val.size(), 3u);
  ASSERT_EQ(train.size(), 3u);
  // 18 exchanges and 2, each with the system prompt.
  EXPECT_EQ(val[0], "Sa18" + std::string(500, 'a') + "a19" + std::string(500, 'a'));
  EXPECT_TRUE(train[0].starts_with("Sa0a")) << train[0].substr(0, 10);
  EXPECT_EQ(train[0].find("a18a"), std::string::npos);
}

TEST(Build, ATextTooSmallToSplitTrainsWithoutValidation) {
  TempFolder folder;
  for (const auto& [name, content] : {std::pair("a.txt", "x"), std::pair("a.jsonl", "{\"text\": \"x\"}"),
                                      std::pair("a.csv", "text\nx\n")}) {
    const BuildResult built = build({.inputs = {folder.write(name, content).string()},
                                     .val_fraction = 0.1,
                                     .tokenizer = load_tokenizer("bytes"),
                                     .folder = folder / fmt::format("out-{}", name)});
    EXPECT_EQ(built.manifest.train.bytes, 1u) << name;
    EXPECT_EQ(built.manifest.val.documents, 0u) << name;
  }
}

TEST(Build, EqualDocumentsLeaveNoValidation) {
  TempFolder folder;
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += "the same\n";
  BuildRequest request{.inputs = {folder.write("a.txt", lines).string()},
                       .val_fraction = 0.1,
                       .tokenizer = load_tokenizer("bytes"),
                       .folder = folder / "out",
                       .read = {.split = DocumentSplit::line}};
  const Manifest manifest = build(request).manifest;
  EXPECT_EQ(manifest.train.documents, 200u);
  EXPECT_EQ(manifest.val.documents, 0u);
  request.folder = folder / "last";
  request.val_fraction = 0;
  request.val_documents = 2;
  try {
    build(request);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.hint().find("--val-fraction 0"), std::string::npos) << error.hint();
  }
}

TEST(Build, WarnsAboutListsAndAboutTextThatIsNotUtf8) {
  TempFolder folder;
  const auto warnings = [&](const std::string& text, DocumentSplit split) {
    int count = 0;
    const BuildRequest request{.inputs = {folder.write("a.txt", text).string()},
                               .tokenizer = load_tokenizer("bytes"),
                               .folder = folder / "out",
                               .read = {.split = split},
                               .if_built = IfBuilt::replace};
    build_dataset(request, Log(LogLevel::warning, [&](LogLevel, std::string_view) { ++count; }),
                  ProgressOutput::nowhere());
    return count;
  };
  std::string names, prose;
  for (int i = 0; i < 150; ++i) names += fmt::format("name{}\n", i);
  for (int i = 0; i < 150; ++i) prose += fmt::format("Line {} of wrapped prose.\n{}", i, i % 9 ? "" : "\n");
  EXPECT_EQ(warnings(names, DocumentSplit::end_of_text), 1);
  EXPECT_EQ(warnings(names, DocumentSplit::line), 0);
  EXPECT_EQ(warnings(prose, DocumentSplit::end_of_text), 0);
  EXPECT_EQ(warnings(prose + "caf\xE9\n", DocumentSplit::end_of_text), 1);
}

TEST(Build, SourcesOfADataSetAreRecognized) {
  TempFolder folder;
  const std::string a = folder.write("a.txt", tales(20)).string(),
                    b = folder.write("b.txt", tales(3)).string();
  const Manifest manifest =
      build(
          {.inputs = {a}, .val_inputs = {b}, .tokenizer = load_tokenizer("bytes"), .folder = folder / "out"})
          .manifest;
  const std::string copy = folder.write("copy/c.txt", tales(20)).string(),
                    other = folder.write("other.txt", tales(21)).string(),
                    lines = folder.write("a.jsonl", tales(20)).string();
  EXPECT_TRUE(same_sources(manifest, {a, b}));
  EXPECT_TRUE(same_sources(manifest, {copy, b}));
  EXPECT_FALSE(same_sources(manifest, {a}));
  EXPECT_FALSE(same_sources(manifest, {other, b}));
  EXPECT_FALSE(same_sources(manifest, {lines, b}));
  EXPECT_TRUE(shares_training_text(manifest, a));
  EXPECT_TRUE(shares_training_text(manifest, (folder / "copy").string()));
  EXPECT_FALSE(shares_training_text(manifest, b));
  EXPECT_FALSE(shares_training_text(manifest, other));
}

TEST(Build, RefusesReusesOrReplacesAnExistingDataSet) {
  TempFolder folder;
  BuildRequest request{.inputs = {folder.write("a.txt", tales(50)).string()},
                       .val_fraction = 0.1,
                       .tokenizer = load_tokenizer("bytes"),
                       .folder = folder / "out",
                       .shard_tokens = 1000};
  build(request);
  const auto before = contents(request.folder);
  EXPECT_THROW(build(request), Error);
  request.if_built = IfBuilt::reuse;
  EXPECT_TRUE(build(request).reused);
  EXPECT_EQ(contents(request.folder), before);
  request.shard_tokens = 100000;
  EXPECT_FALSE(build(request).reused);
  EXPECT_LT(contents(request.folder).size(), before.size());  // old shards are removed
  folder.write("a.txt", tales(51));
  request.name = "other";
  EXPECT_FALSE(build(request).reused);
  EXPECT_FALSE(contents(request.folder).contains("data_train_000000.bin"));
  // Shards without a manifest or journal are not touched.
  fs::remove(request.folder / kManifestFile);
  request.if_built = IfBuilt::refuse;
  EXPECT_THROW(build(request), Error);
}

TEST(Build, DamagedManifestIsReplacedButNotAForeignOne) {
  TempFolder folder;
  BuildRequest request{.inputs = {folder.write("a.txt", tales(50)).string()},
                       .val_fraction = 0.1,
                       .tokenizer = load_tokenizer("bytes"),
                       .folder = folder / "out"};
  build(request);
  folder.write("out/notes.txt", "not ours");
  folder.write("out/other_train_000000.bin", "unknown");  // the damaged manifest may have listed it
  const auto before = contents(request.folder);
  const std::string whole = before.at(std::string(kManifestFile));
  const std::string cut = whole.substr(0, whole.size() / 2);
  for (const std::string& damaged : {cut, std::string(), std::string("{\"format\": \"thimble-data\"}")}) {
    folder.write("out/manifest.json", damaged);
    request.if_built = IfBuilt::refuse;
    EXPECT_THROW(build(request), Error) << damaged;
    EXPECT_EQ(folder.read("out/manifest.json"), damaged);
    request.if_built = IfBuilt::replace;
    EXPECT_FALSE(build(request).reused);
    EXPECT_EQ(contents(request.folder), before) << damaged;
  }
  const std::string foreign = "{\"name\": \"a web page\"}";
  folder.write("out/manifest.json", foreign);
  EXPECT_THROW(build(request), Error);
  EXPECT_EQ(folder.read("out/manifest.json"), foreign);
}

TEST(Build, ErrorsLeaveNoFiles) {
  TempFolder folder;
  BuildRequest request{.inputs = {folder.write("a.jsonl", "{\"text\": \"x\"}\n{]\n").string()},
                       .tokenizer = load_tokenizer("bytes"),
                       .folder = folder / "out"};
  EXPECT_THROW(build(request), Error);
  EXPECT_FALSE(fs::exists(request.folder));
  request.inputs = {folder.write("empty.txt", "").string()};
  EXPECT_THROW(build(request), Error);
  EXPECT_FALSE(fs::exists(request.folder));
}

TEST(Build, OldDataIsKeptIfNewInputsAreInvalid) {
  TempFolder folder;
  BuildRequest request{.inputs = {folder.write("a.jsonl", "{\"text\": \"x\"}\n").string()},
                       .tokenizer = load_tokenizer("bytes"),
                       .folder = folder / "out"};
  build(request);
  const auto before = contents(request.folder);
  request.if_built = IfBuilt::replace;
  for (const char* bad : {"{\"text\": \"y\"}\n{]\n", "{\"text\": \"\"}\n"}) {
    folder.write("a.jsonl", bad);
    EXPECT_THROW(build(request), Error);
    EXPECT_EQ(contents(request.folder), before);
  }
}

TEST(Build, FileExtensionIsPartOfTheFingerprint) {
  TempFolder folder;
  BuildRequest request{.inputs = {folder.write("a.txt", "{\"text\": \"x\"}\n").string()},
                       .tokenizer = load_tokenizer("bytes"),
                       .folder = folder / "out",
                       .if_built = IfBuilt::reuse};
  build(request);
  fs::rename(folder / "a.txt", folder / "b.txt");
  request.inputs = {(folder / "b.txt").string()};
  EXPECT_TRUE(build(request).reused);
  fs::rename(folder / "b.txt", folder / "a.jsonl");
  request.inputs = {(folder / "a.jsonl").string()};
  const BuildResult built = build(request);
  EXPECT_FALSE(built.reused);
  EXPECT_EQ(decoded(*request.tokenizer, request.folder, built.manifest.train),
            (std::vector<std::string>{"x"}));
}

TEST(Build, OutputFilesAreNotInputs) {
  TempFolder folder;
  folder.write("a.txt", tales(10));
  BuildRequest request{.inputs = {folder.path().string()},
                       .tokenizer = load_tokenizer("bytes"),
                       .folder = folder / "out/../out",
                       .if_built = IfBuilt::replace};
  const Manifest first = build(request).manifest;
  EXPECT_EQ(build(request).manifest, first);
  fs::remove(folder / "a.txt");
  EXPECT_THROW(build(request), Error);
}

TEST(Build, RefusesAFolderWithForeignFiles) {
  TempFolder folder, source;
  BuildRequest request{.inputs = {source.write("a.txt", tales(10)).string()},
                       .tokenizer = load_tokenizer("bytes"),
                       .name = "fineweb"};
  for (const char* file : {"tokenizer.json", "notes.txt", "fineweb_train_000000.bin", "sub/a"}) {
    request.folder = folder / fmt::format("of-{}", std::string(file).size());
    folder.write((request.folder.filename() / file).string(), "mine");
    const auto before = folder.files();
    for (const IfBuilt if_built : {IfBuilt::refuse, IfBuilt::reuse, IfBuilt::replace}) {
      request.if_built = if_built;
      const std::string first = fs::path(file).begin()->string();
      EXPECT_NE(message_of([&] { build(request); }).find("it contains " + first + ","), std::string::npos)
          << file;
      EXPECT_EQ(folder.files(), before);
    }
  }
}

TEST(Build, ManifestSummarizesInputsOfManyFiles) {
  TempFolder folder;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i <= kMaxListedFiles; ++i) {
    const std::string text = "text number " + std::to_string(i);
    folder.write("many/" + std::to_string(i) + ".txt", text);
    bytes += text.size();
  }
  const std::string many = (folder / "many").string(), one = folder.write("one.txt", tales(3)).string();
  const BuildRequest request{.inputs = {many, one},
                             .tokenizer = load_tokenizer("bytes"),
                             .folder = folder / "out",
                             .if_built = IfBuilt::reuse};
  const Manifest manifest = build(request).manifest;
  EXPECT_EQ(manifest.train.documents, kMaxListedFiles + 1 + 3) << "three tales are three documents";
  ASSERT_EQ(manifest.sources.size(), 2u);
  EXPECT_EQ(manifest.sources[0].path, many);
  EXPECT_EQ(manifest.sources[0].bytes, bytes);
  EXPECT_EQ(manifest.sources[1].path, one);
  EXPECT_TRUE(build(request).reused);
  folder.write("many/7.txt", "text number 8");  // the same length as before
  const BuildResult again = build(request);
  EXPECT_FALSE(again.reused);
  EXPECT_NE(again.manifest.sources[0].digest, manifest.sources[0].digest);
}

TEST(Build, ErrorListsWhyAllDocumentsWereDropped) {
  TempFolder folder;
  const std::string chats = R"([{"role": "user", "content": "q"}])"
                            "\n{]\n";
  try {
    build({.inputs = {folder.write("a.jsonl", chats).string()},
           .tokenizer = load_tokenizer("bytes:chat"),
           .folder = folder / "out",
           .read = {.kind = DataKind::chat},
           .skip_bad = true});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("(bad: 1, without_answer: 1)"), std::string::npos)
        << error.what();
  }
}

TEST(Build, DeviceFileIsRefusedAsInput) {
  TempFolder folder;
  try {
    build({.inputs = {"/dev/null"}, .tokenizer = load_tokenizer("bytes"), .folder = folder / "out"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("it is a device"), std::string::npos) << error.what();
  }
}

// Operates on the real disk and kills the process in the middle of the n-th operation.
class DeadlyOps final : public FileOps {
 public:
  explicit DeadlyOps(int operations) : left_(operations) {}
  int used() const { return used_; }

  PathKind kind(const Path& path) override { return real_.kind(path); }
  FileHandle open_for_writing(const Path& path) override { return step(), real_.open_for_writing(path); }
  FileHandle open_for_reading(const Path& path) override { return real_.open_for_reading(path); }
  bool try_lock(const FileHandle& file) noexcept override { return real_.try_lock(file); }
  NameState name_state(const FileHandle& file) override { return real_.name_state(file); }
  void truncate(const FileHandle& file, std::uint64_t bytes) override { step(), real_.truncate(file, bytes); }
  std::size_t write(const FileHandle& file, std::span<const std::byte> bytes) override {
    if (left_ == 1 && bytes.size() > 1) real_.write(file, bytes.first(bytes.size() / 2));
    return step(), real_.write(file, bytes);
  }
  std::size_t read(const FileHandle& file, std::span<std::byte> bytes) override {
    return real_.read(file, bytes);
  }
  void sync(const FileHandle&) override {}  // a killed process loses no written data
  void close(const FileHandle& file) noexcept override { real_.close(file); }
  void rename(const Path& from, const Path& to) override { step(), real_.rename(from, to); }
  void link(const Path& existing, const Path& name) override { step(), real_.link(existing, name); }
  void remove(const Path& path) override { step(), real_.remove(path); }
  void sync_folder(const Path&) override {}
  void make_folder(const Path& path) override { step(), real_.make_folder(path); }

 private:
  void step() {
    ++used_;
    if (--left_ == 0) ::raise(SIGKILL);
  }

  PosixFileOps real_;
  int left_, used_ = 0;
};

// Runs a build in a forked child that is killed in the middle.
void build_until_killed(const BuildRequest& request, int operations) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    set_threads(1);  // OpenMP's threads do not exist in a forked process
    DeadlyOps ops(operations);
    build_dataset(request, ops, Log::nowhere(), ProgressOutput::nowhere(), nullptr);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << operations;
}

TEST(Build, ResumedAfterAKillGivesTheSameFiles) {
  TempFolder folder;
  const std::string text = folder.write("a.txt", tales(120)).string();
  BuildRequest request{.inputs = {text + ":1.5"},
                       .val_fraction = 0.2,
                       .tokenizer = trained_bpe(),
                       .folder = folder / "whole",
                       .dedup = true,
                       .shard_tokens = 400};
  DeadlyOps counting(-1);
  const BuildResult whole =
      build_dataset(request, counting, Log::nowhere(), ProgressOutput::nowhere(), nullptr);
  const auto expected = contents(folder / "whole");
  ASSERT_GT(whole.manifest.train.shards.size(), 5u);
  ASSERT_GT(whole.manifest.val.shards.size(), 1u);
  int resumed = 0;
  for (int operations = 1; operations < counting.used(); operations += 7) {
    request.folder = folder / fmt::format("out{}", operations);
    build_until_killed(request, operations);
    if (operations < counting.used() / 2)
      build_until_killed(request, 6);  // killed again, early in the second attempt
    DeadlyOps immortal(-1);
    const BuildResult built =
        build_dataset(request, immortal, Log::nowhere(), ProgressOutput::nowhere(), nullptr);
    resumed += built.resumed;
    ASSERT_EQ(contents(request.folder), expected) << operations;
    fs::remove_all(request.folder);
  }
  EXPECT_GT(resumed, 5);
}

TEST(Build, DamagedShardsOfAnUnfinishedBuildAreRebuilt) {
  TempFolder folder;
  BuildRequest request{.inputs = {folder.write("a.txt", tales(100)).string()},
                       .val_fraction = 0.2,
                       .tokenizer = load_tokenizer("bytes"),
                       .folder = folder / "out",
                       .shard_tokens = 1000};
  build_until_killed(request, 40);
  fs::resize_file(request.folder / "data_train_000000.bin", 1500);
  try {
    build(request);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.hint().find("--force"), std::string::npos) << error.what();
  }
  request.if_built = IfBuilt::reuse;
  const BuildResult built = build(request);
  EXPECT_FALSE(built.resumed);
  tokens_of(request.folder, built.manifest.train);
}

TEST(Build, UnfinishedBuildIsNotResumedWithOtherSettings) {
  TempFolder folder;
  BuildRequest request{.inputs = {folder.write("a.txt", tales(100)).string()},
                       .val_fraction = 0.2,
                       .tokenizer = load_tokenizer("bytes"),
                       .folder = folder / "out",
                       .shard_tokens = 1000};
  build_until_killed(request, 40);
  request.dedup = true;
  EXPECT_THROW(build(request), Error);
  request.if_built = IfBuilt::replace;
  EXPECT_FALSE(build(request).resumed);
}

}  // namespace
}  // namespace thimble::build_test
