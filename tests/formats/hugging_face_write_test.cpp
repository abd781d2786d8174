// Writing Hugging Face folders and reading them back; tests/interop reads them with other programs.
#include "formats/hugging_face_write.h"

#include <algorithm>
#include <random>

#include "base/files.h"
#include "base/json.h"
#include "config/builder.h"
#include "data/text_files.h"
#include "formats/artifact.h"
#include "formats/export.h"
#include "formats/gguf_tokenizer.h"
#include "formats/hugging_face.h"
#include "support/golden.h"
#include "support/message_of.h"
#include "support/temp_folder.h"
#include "tokenizer/bpe_tokenizer.h"
#include "tokenizer/chat_layout.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble::hugging_face_write_test {
namespace {

namespace fs = std::filesystem;

ModelConfig small(const char* preset) {
  ConfigBuilder settings;
  settings.preset(preset);
  for (const char* setting : {"vocab_size=261", "context=32", "layers=2", "dim=24", "heads=3", "kv_heads=1",
                              "head_dim=8", "mlp_hidden=40", "batch_tokens=32"})
    settings.set(setting);
  return settings.resolve().model;
}

ModelFile random_model(const ModelConfig& config) {
  ModelFile file;
  file.path = "source";
  file.config.model = resolved(config);
  const ParamTable table(file.config.model);
  file.weights.resize(static_cast<std::size_t>(table.block_size()));
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 0.3f);
  for (const Param& param : table.all())
    for (std::int64_t i = 0; i < param.count(); ++i)
      file.weights[static_cast<std::size_t>(param.offset + i)] = normal(random);
  return file;
}

ModelFile with_tokenizer(ModelFile model, const Tokenizer& tokenizer, std::string layout = "") {
  model.tokenizer = TokenizerFile{"the tokenizer", tokenizer.serialized(), tokenizer.special()};
  model.layout = std::move(layout);
  return model;
}

ModelFile chat_model(const char* preset) {
  return with_tokenizer(random_model(small(preset)), *make_bytes_tokenizer(special_tokens_for(true)),
                        "roles");
}

Json json_in(const TempFolder& folder, std::string_view name) {
  return parse_json(folder.read(name), name);
}

HuggingFaceReport write(const fs::path& path, const ModelFile& model, DType dtype = DType::f32,
                        Existing existing = Existing::refuse) {
  PosixFileOps ops;
  return write_hugging_face(ops, path, existing, model, dtype);
}

class EveryFamily : public testing::TestWithParam<const char*> {};

TEST_P(EveryFamily, RoundTripsExactly) {
  const TempFolder folder;
  const ModelFile model = chat_model(GetParam());
  const HuggingFaceReport report = write(folder / "out", model);
  EXPECT_EQ(report.architecture, GetParam());
  EXPECT_TRUE(report.notes.empty());
  EXPECT_EQ(folder.files(),
            (std::vector<std::string>{"out/README.md", "out/config.json", "out/generation_config.json",
                                      "out/model.safetensors", "out/special_tokens_map.json",
                                      "out/tokenizer.json", "out/tokenizer_config.json"}));
  const ModelFile back = open_model(folder / "out");
  EXPECT_EQ(back.architecture, GetParam());
  EXPECT_EQ(back.weights, model.weights);
  EXPECT_EQ(back.layout, "roles");
  EXPECT_EQ(back.tensors.size(), report.tensors);
  ModelConfig expected = model.config.model;
  const ModelConfig defaults;  // initialization settings are not in the folder
  expected.init = defaults.init, expected.init_std = defaults.init_std;
  expected.embed_init_std = defaults.embed_init_std;
  EXPECT_EQ(back.config.model, expected);
  EXPECT_EQ(open_tokenizer(back)->serialized(), model.tokenizer->content);
  EXPECT_EQ(open_tokenizer(back)->special().bos, 0);
  EXPECT_EQ(open_tokenizer(back)->special().eos, std::nullopt);  // the source has none either
  write(folder / "again", back);
  for (const char* name : {"config.json", "generation_config.json", "tokenizer_config.json"})
    EXPECT_EQ(folder.read(std::string("again/") + name), folder.read(std::string("out/") + name));
}

TEST_P(EveryFamily, HalfPrecisionStaysWithinTolerance) {
  const TempFolder folder;
  PosixFileOps ops;
  const ModelFile model = chat_model(GetParam());
  for (const GgufType type : {GgufType::f32, GgufType::bf16, GgufType::f16}) {
    const ExportReport report =
        export_model(ops, model, "hf", {.path = folder / info_of(type).option, .type = type});
    EXPECT_NEAR(report.tolerance, 2 * report.difference + kExactDifference, 1e-6);
    EXPECT_EQ(report.difference == 0, type == GgufType::f32);
    EXPECT_EQ(open_model(folder / info_of(type).option).tensors.front().dtype, info_of(type).name);
  }
  EXPECT_EQ(json_in(folder, "bf16/config.json").at("torch_dtype").as_string(), "bfloat16");
}

INSTANTIATE_TEST_SUITE_P(HuggingFaceWrite, EveryFamily, testing::Values("llama", "qwen2", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

TEST(HuggingFaceWrite, BiasesAreWrittenWhereTransformersHasThem) {
  const TempFolder folder;
  ModelConfig config = small("llama");
  config.bias = true;
  const ModelFile llama = random_model(config);
  write(folder / "llama", llama);
  EXPECT_EQ(open_model(folder / "llama").weights, llama.weights);
  config.qk_norm = true;
  ModelFile qwen3 = random_model(config);
  EXPECT_EQ(
      message_of([&] { write(folder / "qwen3", qwen3); }),
      "model.layers.0.mlp.gate_proj.bias is not zero, but Transformers' qwen3 has no biases in its MLP");
  const ParamTable table(qwen3.config.model);
  for (const Param& param : table.all())
    if (param.name.find(".mlp.") != std::string::npos && param.name.ends_with(".bias"))
      std::fill_n(qwen3.weights.begin() + param.offset, param.count(), 0.0f);
  write(folder / "qwen3", qwen3);
  EXPECT_EQ(open_model(folder / "qwen3").weights, qwen3.weights);
}

TEST(HuggingFaceWrite, ChatModelsEndWithTheEndOfTurn) {
  const TempFolder folder;
  write(folder / "out", chat_model("qwen3"));
  EXPECT_EQ(json_in(folder, "out/config.json").at("eos_token_id"), Json(3));
  EXPECT_EQ(json_in(folder, "out/generation_config.json").at("eos_token_id"), Json::array({3, 0}));
  const Json config = json_in(folder, "out/tokenizer_config.json");
  EXPECT_EQ(config.at("eos_token").as_string(), "<end_turn>");
  EXPECT_EQ(config.at("chat_template").as_string(), jinja_template({.name = "roles"}));
  EXPECT_EQ(config.at("model_input_names"), Json::array({"input_ids", "attention_mask"}));
  EXPECT_NE(folder.read("out/README.md").find("apply_chat_template"), std::string::npos);
  EXPECT_EQ(json_in(folder, "out/special_tokens_map.json"),
            Json::object().set("bos_token", "<bos>").set("eos_token", "<end_turn>"));
}

TEST(HuggingFaceWrite, TheModelCardStatesDataSettingsLossesAndSize) {
  const TempFolder folder;
  ModelFile model = chat_model("qwen3");
  write(folder / "plain", model);
  const std::string plain = folder.read("plain/README.md");
  EXPECT_TRUE(plain.starts_with("---\n# license:")) << "the licence is left to the user";
  EXPECT_EQ(plain.find("## Training"), plain.npos);
  EXPECT_NE(plain.find("converted with thimble"), plain.npos);
  model.format = "safetensors";
  model.config.train.seed = 77;
  model.metadata.emplace_back(kTrainingKey,
                              R"record({"step":1200,"tokens":2457600,"data":"chats.jsonl (chat)",)record"
                              R"record("seconds":61.5,"train_loss":2.25,"val_loss":2.5,"val_bpb":1.25})record");
  write(folder / "out", model);
  const std::string text = folder.read("out/README.md");
  for (const char* line :
       {"| data | chats.jsonl (chat) |", "| length | 1,200 steps, 2.46 M tokens, ", "seed 77",
        "| training loss | 2.2500 nats per token |",
        "| validation loss | 2.5000 nats per token, 1.2500 bits per byte |", "trained with thimble"})
    EXPECT_NE(text.find(line), text.npos) << line << text;
  // With a licence it is still thimble's folder, which --force may replace.
  folder.write("out/README.md", "---\nlicense: mit\n" + text.substr(4));
  EXPECT_NO_THROW(write(folder / "out", model, DType::f32, Existing::replace));
  folder.write("out/README.md", "---\nlicense: mit\n---\n- thimble\n");
  EXPECT_THROW(write(folder / "out", model, DType::f32, Existing::replace), Error);
}

// A template may write eos_token, so that stays the one of tokenizer_config.json.
TEST(HuggingFaceWrite, AModelWithItsOwnTemplateEndsAtEveryListedEos) {
  const TempFolder folder;
  write(folder / "out", chat_model("qwen3"));
  folder.write("out/chat_template.jinja",
               "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}");
  folder.write("out/generation_config.json", R"({"eos_token_id": [0, 3, 2, 100000]})");
  const ModelFile model = open_model(folder / "out");
  EXPECT_EQ(ChatLayoutText::parse(model.layout).name, "jinja");
  const auto tokenizer = open_tokenizer(model);
  EXPECT_EQ(tokenizer->special().eos, 3);
  EXPECT_EQ(tokenizer->special().more_ends, (std::vector<TokenId>{0, 3, 2}));
  EXPECT_EQ(ChatLayout(*tokenizer, model.layout).end_id(), 3);
}

TEST(HuggingFaceWrite, TextModelsEndWithBos) {
  const TempFolder folder;
  ModelConfig config = small("llama");
  config.vocab_size = 257;
  write(folder / "out",
        with_tokenizer(random_model(config), *make_bytes_tokenizer(special_tokens_for(false))));
  EXPECT_EQ(json_in(folder, "out/generation_config.json").at("eos_token_id"), Json(0));
  EXPECT_EQ(json_in(folder, "out/tokenizer_config.json").find("chat_template"), nullptr);
  EXPECT_EQ(open_tokenizer(open_model(folder / "out"))->special().eos, std::nullopt);
  EXPECT_EQ(load_tokenizer(folder / "out")->special().eos, std::nullopt);
}

TEST(HuggingFaceWrite, NamesOfPaddingTokensAreUnique) {
  const TempFolder folder;
  const auto tokenizer = make_bytes_tokenizer({"<bos>", "<|pad_259|>"});
  const ModelFile model = with_tokenizer(random_model(small("llama")), *tokenizer);  // 258 of 261
  write(folder / "out", model);
  const Json vocabulary = json_in(folder, "out/tokenizer.json").at("model").at("vocab");
  EXPECT_EQ(vocabulary.at("<|pad_259|>"), Json(1));
  EXPECT_EQ(vocabulary.at("<|pad_259|>_"), Json(259));
  EXPECT_EQ(open_tokenizer(open_model(folder / "out"))->vocab_size(), 258);
}

TEST(HuggingFaceWrite, UnusedIdsAreNeverSampled) {
  const TempFolder folder;
  BpeSpec spec = dynamic_cast<const BpeTokenizer&>(*make_bytes_tokenizer({"<bos>", "<hole>"})).spec();
  spec.vocab[1].clear();
  std::erase_if(spec.added_tokens, [](const AddedToken& token) { return token.id == 1; });
  write(folder / "out", with_tokenizer(random_model(small("llama")), *make_bpe_tokenizer(spec)));
  EXPECT_EQ(json_in(folder, "out/generation_config.json").at("suppress_tokens"),
            Json::array({1, 258, 259, 260}));
}

TEST(HuggingFaceWrite, PaddingRowsAreNamedAndNeverSampled) {
  const TempFolder folder;
  ModelConfig config = small("qwen2");
  config.vocab_size = 264;
  const auto tokenizer = make_bytes_tokenizer(special_tokens_for(true));
  write(folder / "out", with_tokenizer(random_model(config), *tokenizer, "roles"));
  const Json json = json_in(folder, "out/tokenizer.json");
  for (const int id : {261, 262, 263})
    EXPECT_EQ(json.at("model").at("vocab").at(fmt::format("<|pad_{}|>", id)), Json(id));
  EXPECT_EQ(json_in(folder, "out/generation_config.json").at("suppress_tokens"),
            Json::array({261, 262, 263}));
  const ModelFile back = open_model(folder / "out");
  const auto read = open_tokenizer(back);
  EXPECT_EQ(read->vocab_size(), 261);
  EXPECT_EQ(read->encode("<|pad_262|>", {.trusted = true}).size(), 11u);
  write(folder / "again", back);
  EXPECT_EQ(folder.read("again/tokenizer.json"), folder.read("out/tokenizer.json"));
}

TEST(HuggingFaceWrite, UnknownLayoutsAreNotedAndNotWritten) {
  const TempFolder folder;
  ModelFile model = chat_model("llama");
  model.layout = "gemma";
  const HuggingFaceReport report = write(folder / "out", model);
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_NE(report.notes[0].find("gemma"), std::string::npos);
  EXPECT_EQ(json_in(folder, "out/tokenizer_config.json").find("chat_template"), nullptr);
  EXPECT_EQ(folder.read("out/README.md").find("apply_chat_template"), std::string::npos);
  EXPECT_EQ(write(folder / "bare", random_model(small("llama"))).notes.size(), 1u);
}

TEST(HuggingFaceWrite, GolfIsRejectedWithAllReasons) {
  const TempFolder folder;
  EXPECT_EQ(
      message_of([&] { write(folder / "out", random_model(small("golf"))); }),
      "none of Transformers' llama, mistral, qwen2, qwen3, smollm3, phi3, gemma2, gemma3, gpt2 can express "
      "this model: mlp = relu2; norm = rms; embed_norm = true; rope_direction = -1; q_gain = head; "
      "branch_scale = true; residual_mix = channel; unet_skips = true; logit_softcap = 30.0");
  EXPECT_TRUE(folder.files().empty());
}

TEST(HuggingFaceWrite, RejectsParallelBranchesAndLoops) {
  const TempFolder folder;
  ModelConfig config = small("llama");
  config.parallel_from = 0, config.loop_count = 1;
  EXPECT_EQ(message_of([&] { write(folder / "out", random_model(config)); }),
            "none of Transformers' llama, mistral, qwen2, qwen3, smollm3, phi3, gemma2, gemma3, gpt2 can "
            "express this model: parallel_from = 0; loop_count = 1");
}

TEST(HuggingFaceWrite, ReplacesOnlyItsOwnFiles) {
  const TempFolder folder;
  const ModelFile model = chat_model("llama");
  write(folder / "out", model);
  EXPECT_EQ(message_of([&] { write(folder / "out", model); }), (folder / "out").string() + " already exists");
  folder.write("out/model-00001-of-00002.safetensors", "");
  write(folder / "out", model, DType::f16, Existing::replace);
  EXPECT_EQ(folder.files().size(), 7u);
  for (const char* mine : {"out/letter.txt", "out/.git/HEAD"}) {
    folder.write(mine, "mine");
    EXPECT_EQ(message_of([&] { write(folder / "out", model, DType::f16, Existing::replace); }),
              (folder / "out").string() + " exists and is not an earlier output: it contains " +
                  std::next(fs::path(mine).begin())->string());
    EXPECT_EQ(folder.read(mine), "mine");
    fs::remove_all(folder / mine);
  }
  folder.write("home/letter.txt", "dear");
  EXPECT_EQ(message_of([&] { write(folder / "home", model, DType::f32, Existing::replace); }),
            (folder / "home").string() + " exists and is not an earlier output: it contains letter.txt");
  EXPECT_EQ(folder.read("home/letter.txt"), "dear");
}

TEST(HuggingFaceWrite, NeverReplacesAModelOfAnotherProgram) {
  TempFolder folder;
  const ModelFile model = chat_model("llama");
  write(folder / "out", model);
  for (const char* readme : {"", "---\nlicense: mit\n---\n# A model\n"}) {
    folder.write("out/README.md", readme);
    EXPECT_NE(message_of([&] {
                write(folder / "out", model, DType::f16, Existing::replace);
              }).find("it contains README.md"),
              std::string::npos);
    EXPECT_EQ(folder.read("out/README.md"), readme);
  }
  fs::remove(folder / "out/README.md");
  EXPECT_THROW(write(folder / "out", model, DType::f16, Existing::replace), Error);
}

TEST(HuggingFaceWrite, NeverReplacesItsSource) {
  const TempFolder folder;
  write(folder / "out", chat_model("llama"));
  const ModelFile source = open_model(folder / "out/../out");
  EXPECT_EQ(message_of([&] { write(folder / "out/", source, DType::f16, Existing::replace); }),
            (folder / "out/").string() + " contains the model to be exported");
  write(folder / "out-too", source);
}

TEST(HuggingFaceWrite, LeftoversOfAKilledExportAreReused) {
  const TempFolder folder;
  folder.write(".out.new/model.safetensors", "half");
  folder.write(".out.new/deep/er", "");
  for (int time = 0; time < 2; ++time) {
    write(folder / "out", chat_model("llama"), DType::f32, Existing::replace);
    EXPECT_EQ(folder.files().size(), 7u);
    EXPECT_FALSE(fs::exists(folder / ".out.new"));
  }
}

TEST(AtomicFolder, AllowsOneWriterAtATime) {
  const TempFolder folder;
  PosixFileOps ops;
  const auto nothing = [](const fs::path&) { return fs::path(); };
  const AtomicFolder first(ops, folder / "out", Existing::refuse, nothing);
  EXPECT_EQ(message_of([&] { AtomicFolder(ops, folder / "out", Existing::refuse, nothing); }),
            (folder / "out").string() + " is being written by another writer");
  EXPECT_TRUE(fs::exists(first.path()));
}

TEST(HuggingFaceWrite, FailedExportLeavesNothing) {
  const TempFolder folder;
  ModelFile model = chat_model("llama");
  model.weights[0] = 1e6f;
  EXPECT_NE(message_of([&] { write(folder / "out", model, DType::f16); }).find("the largest f16"),
            std::string::npos);
  EXPECT_TRUE(fs::is_empty(folder.path()));
  write(folder / "out", model, DType::bf16);
}

TEST(Safetensors, ExportsAnyModelForInference) {
  const TempFolder folder;
  PosixFileOps ops;
  ModelFile model =
      with_tokenizer(random_model(small("golf")), *make_bytes_tokenizer(special_tokens_for(true)), "roles");
  for (const GgufType type : {GgufType::f32, GgufType::bf16, GgufType::f16}) {
    const ExportReport report =
        export_model(ops, model, "safetensors", {.path = folder / info_of(type).option, .type = type});
    EXPECT_LE(report.difference, report.tolerance);
    const ModelFile back = open_model(folder / info_of(type).option);
    EXPECT_EQ(back.config.model, model.config.model);
    EXPECT_EQ(back.layout, "roles");
    EXPECT_EQ(open_tokenizer(back)->serialized(), model.tokenizer->content);
    EXPECT_EQ(back.tensors.size(), report.tensors + 2);  // plus the tokenizer and the digests
  }
}

// SentencePiece

std::string some_text() {
  std::string text;
  for (int i = 0; i < 300; ++i)
    text += fmt::format("the cat number {} sat on the mat and saw {} birds: caf\xC3\xA9, na\xC3\xAFve\n", i,
                        i * 7 % 31);
  return text;
}

std::unique_ptr<Tokenizer> trained(const char* normalization) {
  const TempFolder folder;
  TextSource source({folder.write("a.txt", some_text())}, {.split = DocumentSplit::line});
  const SentencePieceOptions options{.vocab_size = 400,
                                     .normalization = normalization,
                                     .control_tokens = {"<user>", "<assistant>", "<end_turn>", "<system>"}};
  return load_tokenizer_bytes(train_sentencepiece(source, options), "trained");
}

TEST(SentencePieceAsJson, GivesTheSameIds) {
  const auto pieces = trained("identity");
  const auto json =
      load_tokenizer_bytes(sentencepiece_as_json(*pieces, pieces->vocab_size()).value(), "tokenizer.json");
  EXPECT_EQ(json->vocab_size(), pieces->vocab_size());
  for (const std::string text : {"the cat sat", "  two  spaces \n and a line", " leading",
                                 "unseen: \xE4\xB8\xAD\xE6\x96\x87 \xF0\x9F\x98\x80", "",
                                 "the the the birdsbirds 1234567", "\xE2\x96\x81", "<user>hello<end_turn>"}) {
    EXPECT_EQ(json->encode(text), pieces->encode(text)) << text;
    EXPECT_EQ(json->encode(text, {.trusted = true}), pieces->encode(text, {.trusted = true})) << text;
    EXPECT_EQ(json->encode(text, {.add_special = true}), pieces->encode(text, {.add_special = true})) << text;
    EXPECT_EQ(json->decode(pieces->encode(text)), pieces->decode(pieces->encode(text))) << text;
  }
}

// User-defined pieces are one token wherever they occur.
TEST(SentencePieceAsJson, KeepsUserDefinedPieces) {
  for (const bool prefix : {false, true}) {
    GgufVocabulary vocabulary{.model = "llama",
                              .pre = "default",
                              .tokens = {"<unk>", "<s>", "<call>", "a", "b", "ab", "\xE2\x96\x81"},
                              .scores = {0, 0, 0, -2, -3, -1, -4},
                              .types = {2, 3, 4, 1, 1, 1, 1},
                              .special = {.bos = 1, .eos = {}, .unk = 0, .pad = {}},
                              .add_space_prefix = prefix};
    const auto pieces = tokenizer_from_gguf(vocabulary);
    ASSERT_EQ(pieces->token_type(2), TokenType::user_defined);
    const auto json =
        load_tokenizer_bytes(sentencepiece_as_json(*pieces, pieces->vocab_size()).value(), "tokenizer.json");
    for (const std::string text : {"ab<call>", "ab a<call>", "a ab b"})
      EXPECT_EQ(json->encode(text), pieces->encode(text)) << text;
    if (prefix) continue;  // Transformers adds the prefix again after every such piece
    for (const std::string text : {"<call>", " ab <call> b", "ab<call><call>a"})
      EXPECT_EQ(json->encode(text), pieces->encode(text)) << text;
  }
}

TEST(SentencePieceAsJson, KeepsSpacesBesideUserDefinedPieces) {
  // Appends protocol buffer fields: one more piece of type 4, and remove_extra_whitespaces.
  const std::string piece("\x0A\x0F\x0A\x06<call>\x15\0\0\0\0\x18\x04", 17), spaces = "\x1A\x02\x20\x01";
  const auto pieces = load_tokenizer_bytes(trained("identity")->serialized() + piece + spaces, "changed");
  ASSERT_EQ(pieces->token_type(pieces->vocab_size() - 1), TokenType::user_defined);
  const auto json =
      load_tokenizer_bytes(sentencepiece_as_json(*pieces, pieces->vocab_size()).value(), "tokenizer.json");
  for (const std::string text : {"the cat", "the <call> cat", "  the  cat   <call>  sat ", "<call> <call>"})
    EXPECT_EQ(json->encode(text), pieces->encode(text)) << text;
}

TEST(SentencePieceAsJson, FolderContainsBothFormsAndThimbleReadsThePieces) {
  const TempFolder folder;
  for (const char* normalization : {"identity", "nmt_nfkc"}) {
    const auto pieces = trained(normalization);
    ModelConfig config = small("llama");
    config.vocab_size = pieces->vocab_size() + 2;
    write(folder / normalization, with_tokenizer(random_model(config), *pieces, "roles"));
    const std::string in = std::string(normalization) + "/";
    EXPECT_EQ(folder.read(in + "tokenizer.model"), pieces->serialized());
    EXPECT_EQ(json_in(folder, in + "tokenizer_config.json").at("tokenizer_class").as_string(),
              "PreTrainedTokenizerFast");
    const ModelFile back = open_model(folder / normalization);
    EXPECT_EQ(open_tokenizer(back)->kind(), TokenizerKind::sentencepiece);
    EXPECT_EQ(back.layout, "roles");
    EXPECT_EQ(load_tokenizer(folder / normalization)->kind(), TokenizerKind::sentencepiece);
  }
  const Json steps = json_in(folder, "nmt_nfkc/tokenizer.json").at("normalizer").at("normalizers");
  EXPECT_EQ(steps.as_array().front().at("type").as_string(), "Precompiled");
}

}  // namespace
}  // namespace thimble::hugging_face_write_test
