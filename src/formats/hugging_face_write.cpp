#include "formats/hugging_face_write.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/table.h"
#include "base/text.h"
#include "config/keys.h"
#include "formats/artifact.h"
#include "formats/export.h"
#include "formats/fold.h"
#include "formats/hugging_face.h"
#include "formats/model_file.h"
#include "formats/weights_file.h"
#include "tokenizer/bpe_tokenizer.h"
#include "tokenizer/chat_layout.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

// Token ids for config.json and generation_config.json; empty without a tokenizer.
struct EndsOfText {
  std::optional<TokenId> bos, pad;
  std::vector<TokenId> ends = {};
  std::vector<std::int64_t> suppressed = {};  // ids without a token, which generation must suppress

  Json end_ids() const {
    if (ends.size() == 1) return ends.front();
    Json ids = Json::array();
    for (const TokenId id : ends) ids.push(id);
    return ids;
  }
};

std::string_view torch_name(DType dtype) {
  return dtype == DType::f32 ? "float32" : dtype == DType::bf16 ? "bfloat16" : "float16";
}

Json config_json(const Architecture& family, const ModelConfig& c, DType dtype, const EndsOfText& ends) {
  Json config = hugging_face_config(family, c);
  config.set("attention_dropout", 0.0)
      .set("initializer_range", c.init_std)
      .set("torch_dtype", torch_name(dtype))
      .set("dtype", torch_name(dtype))
      .set("use_cache", true);
  // Explicitly null: the default ids of some families are outside a small vocabulary.
  config.set("bos_token_id", ends.bos ? Json(*ends.bos) : Json());
  config.set("eos_token_id", ends.ends.empty() ? Json() : Json(ends.ends.front()));
  config.set("pad_token_id", ends.pad ? Json(*ends.pad) : Json());
  return config;
}

Json generation_json(const ModelConfig& config, const EndsOfText& ends) {
  Json generation = Json::object().set("max_length", config.context);
  if (ends.bos) generation.set("bos_token_id", *ends.bos);
  if (!ends.ends.empty()) generation.set("eos_token_id", ends.end_ids());
  if (ends.pad) generation.set("pad_token_id", *ends.pad);
  if (!ends.suppressed.empty())
    generation.set("suppress_tokens", Json::array({ends.suppressed.begin(), ends.suppressed.end()}));
  return generation;
}

// Unused ids of the vocabulary, and rows of the embedding beyond its end.
std::vector<std::int64_t> ids_without_token(const Tokenizer& tokenizer, std::int64_t rows) {
  std::vector<std::int64_t> ids;
  for (std::int64_t id = 0; id < rows; ++id)
    if (id >= tokenizer.vocab_size() || tokenizer.token_type(static_cast<TokenId>(id)) == TokenType::unused)
      ids.push_back(id);
  return ids;
}

constexpr std::string_view kModelCard = R"(---
# license: (the licence of these weights is yours to choose, for example apache-2.0)
library_name: transformers
pipeline_tag: text-generation
tags:
- thimble
---
# {0}

A small {1} model with {2} parameters, {11} with thimble. It has {3} layers of width {4}, {5} attention heads
({6} for keys and values), a vocabulary of {7} tokens and a context of {8} tokens. Weights are stored as {9}: {12}.
{13}
## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{0}")
model = AutoModelForCausalLM.from_pretrained("{0}")
{10}
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=64)[0]))
```

## Licence

Not stated yet. Add `license:` at the top of this file, with regard to the licence of the training data{14}.
)";
constexpr std::string_view kChatInputs =
    R"(inputs = tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], add_generation_prompt=True,
                                       return_dict=True, return_tensors="pt"))";
constexpr std::string_view kTextInputs = R"(inputs = tokenizer("Once", return_tensors="pt"))";

// The settings that are worth a line.
std::string settings_text(const Config& config) {
  std::vector<std::string> settings = {config.optimizer.uses_muon() ? "Muon" : "AdamW"};
  for (const std::string_view name :
       {"batch_tokens", "lr", "schedule", "warmup_steps", "dropout", "seed", "dtype"})
    if (const Key* key = find_key(name))
      settings.push_back(fmt::format("{} {}", name, value_text(key->get(config))));
  return joined(settings, ", ");
}

// What the model's file says about its training; empty if it says nothing.
std::string training_section(const ModelFile& model, const std::string* record) {
  if (!record) return "";
  const Json facts = parse_json(*record, fmt::format("{}: {}", model.path.string(), kTrainingKey));
  const auto number = [&](std::string_view key) {
    const Json* value = facts.find(key);
    return value && value->is_number() ? std::optional(value->as_double()) : std::nullopt;
  };
  std::string text = "\n## Training\n\n| | |\n|---|---|\n";
  const auto row = [&](std::string_view name, const std::string& value) {
    text += fmt::format("| {} | {} |\n", name, value);
  };
  const Json* data = facts.find("data");
  row("data", data && data->is_string() ? data->as_string() : "not recorded");
  std::string length = fmt::format("{} steps", with_commas(facts.at("step").as_int()));
  if (const auto tokens = number("tokens")) length += fmt::format(", {} tokens", with_unit(*tokens));
  if (const auto seconds = number("seconds")) length += fmt::format(", {}", in_seconds(*seconds));
  row("length", length);
  if (model.format == "safetensors") row("settings", settings_text(model.config));
  if (const auto loss = number("train_loss"))
    row("training loss", fmt::format("{:.4f} nats per token", *loss));
  if (const auto loss = number("val_loss")) {
    const auto bits = number("val_bpb");
    row("validation loss", fmt::format("{:.4f} nats per token{}", *loss,
                                       bits ? fmt::format(", {:.4f} bits per byte", *bits) : ""));
  }
  return text;
}

std::string model_card(const fs::path& folder, const ModelFile& model, std::string_view architecture,
                       DType dtype, bool chats) {
  const ModelConfig& c = model.config.model;
  const std::string* record = nullptr;
  for (const auto& [key, value] : model.metadata)
    if (key == kTrainingKey) record = &value;
  const std::int64_t parameters = ParamTable(c).count();
  const bool trained = record || model.step;
  return fmt::format(kModelCard, folder.filename().string(), architecture, with_commas(parameters), c.layers,
                     c.dim, c.heads, c.kv_heads, with_commas(c.vocab_size), with_commas(c.context),
                     torch_name(dtype), chats ? kChatInputs : kTextInputs, trained ? "trained" : "converted",
                     in_bytes(static_cast<double>(parameters * dtype_bytes(dtype))),
                     training_section(model, record), trained ? "" : " and of the original model");
}

bool is_mlp_bias(const Param& param) {
  using enum Role;
  return param.role == mlp_gate_bias || param.role == mlp_up_bias || param.role == mlp_proj_bias;
}

// Some families have biases only in attention. MLP biases must be 0, as they are after an import.
void check_biases(const ModelFile& model, const ParamTable& table, const Architecture& family) {
  for (const Param& param : table.all())
    if (is_mlp_bias(param))
      check(std::ranges::all_of(param.in(std::span(model.weights)), [](float value) { return value == 0; }),
            Hint{"train without `bias`, for example with --preset qwen3"},
            "{} is not zero, but Transformers' {} has no biases in its MLP", param.name, family.name);
}

std::size_t write_weights(FileOps& ops, const fs::path& path, const ModelFile& model,
                          const Architecture& family, DType dtype, const ProgressOutput& progress) {
  const ParamTable table(model.config.model);
  const bool drops = family.biases == BiasKeys::attention && model.config.model.bias;
  if (drops) check_biases(model, table, family);
  SafetensorsWriter writer;
  writer.set_metadata("format", "pt");  // required by Transformers
  std::size_t count = 0;
  const std::vector<FileTensor> tensors = file_tensors(family, table, Naming::transformers);
  for (const FileTensor& tensor : tensors) {
    if (drops && is_mlp_bias(*tensor.parts.front())) continue;
    ++count;
    if (tensor.parts.size() == 1 && !tensor.transposed && tensor.base == 0)
      add_weights(writer, tensor.name, tensor.dims, tensor.parts.front()->in(std::span(model.weights)),
                  dtype);
    else
      add_weights(
          writer, tensor.name, tensor.dims, [&] { return tensor.values(model.weights); }, dtype);
  }
  writer.write(ops, path, Existing::refuse, WithDigest::no, {}, progress);
  return count;
}

// Whether thimble or Transformers writes files of this name.
bool is_expected(const fs::directory_entry& entry) {
  constexpr std::string_view kNames[] = {"README.md",
                                         "chat_template.jinja",
                                         "config.json",
                                         "generation_config.json",
                                         "model.safetensors",
                                         "model.safetensors.index.json",
                                         "tokenizer.json",
                                         "tokenizer.model",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json"};
  const std::string name = entry.path().filename().string();
  const bool shard = name.starts_with("model-") && name.ends_with(".safetensors");
  return entry.symlink_status().type() == fs::file_type::regular &&
         (shard || std::ranges::count(kNames, name) > 0);
}

// The head of every exported model card has thimble's tag. A folder without it was written by
// another program. A licence may have been added to it.
bool has_our_model_card(const fs::path& folder) {
  constexpr std::uint64_t kMaxCardBytes = 1 << 20;
  const fs::path readme = folder / "README.md";
  if (!fs::is_regular_file(readme) || fs::file_size(readme) > kMaxCardBytes) return false;
  const std::string readme_text = read_file(readme, kMaxCardBytes);
  const std::size_t end = readme_text.find("\n---\n");
  return readme_text.starts_with("---\n") && end != readme_text.npos &&
         readme_text.substr(0, end + 1).find("\n- thimble\n") != readme_text.npos;
}

// A file that an export with Existing::replace must not remove; empty if there is none.
fs::path foreign_file(const fs::path& folder) {
  const bool ours = has_our_model_card(folder);
  return foreign_entry(folder, [&](const fs::directory_entry& entry) { return ours && is_expected(entry); });
}

void check_not_the_source(const fs::path& target, const fs::path& source) {
  const fs::path folder = fs::weakly_canonical(target), model = fs::weakly_canonical(source);
  const auto apart = std::mismatch(folder.begin(), folder.end(), model.begin(), model.end());
  check(apart.first != folder.end(), Hint{"choose another folder with -o"},
        "{} contains the model to be exported", target.string());
}

std::uint64_t bytes_in(const fs::path& folder) {
  std::uint64_t bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) bytes += entry.file_size();
  return bytes;
}

}  // namespace

const Architecture& hugging_face_family(const ModelConfig& config, std::string_view preferred) {
  if (const Architecture* family = family_of(config, preferred)) return *family;
  std::vector<std::string_view> names;
  for (const Architecture& family : all_architectures()) names.push_back(family.name);
  fail(Hint{"export with --format gguf, which supports more models, or train with --preset llama or qwen3"},
       "none of Transformers' {} can express this model: {}", joined(names, ", "),
       listed(reasons_against_families(config)));
}

HuggingFaceReport write_hugging_face(FileOps& ops, const fs::path& target, Existing existing,
                                     const ModelFile& model, DType dtype, const Inspector& inspect,
                                     const ProgressOutput& progress) {
  const ModelConfig& config = model.config.model;
  const Architecture& family = hugging_face_family(config, model.architecture);
  HuggingFaceReport report{.architecture = std::string(family.name)};
  check_not_the_source(target, model.path);
  AtomicFolder folder(ops, target, existing, foreign_file);
  const auto put = [&](std::string_view name, std::string_view content) {
    naming(target / name, [&] { write_file(ops, folder.path() / name, content, Existing::refuse); });
  };
  EndsOfText ends;
  bool chats = false;
  if (const auto tokenizer = open_tokenizer(model)) {
    const TokenizerFiles files = hugging_face_tokenizer(model, *tokenizer);
    ends = {tokenizer->special().bos, tokenizer->special().pad, files.ends,
            ids_without_token(*tokenizer, config.vocab_size)};
    report.notes = files.notes;
    chats = files.chats;
    for (const auto& [name, content] : files.files) put(name, content);
  } else {
    report.notes.push_back("the model has no tokenizer, so the folder has none");
  }
  put("config.json", config_json(family, config, dtype, ends).dump(2) + "\n");
  put("generation_config.json", generation_json(config, ends).dump(2) + "\n");
  put("README.md", model_card(fs::absolute(target), model, report.architecture, dtype, chats));
  constexpr const char* kWeights = "model.safetensors";
  naming(target / kWeights, [&] {
    report.tensors = write_weights(ops, folder.path() / kWeights, model, family, dtype, progress);
  });
  report.bytes = bytes_in(folder.path());
  if (inspect) inspect(folder.path());
  folder.commit();
  return report;
}

namespace {

// Names the rows of the embedding that have no token, so that every id has a text. Models trained
// in thimble expect bos before a text; if the tokenizer's file does not add it, this one does.
std::string complete_tokenizer_json(const Tokenizer& tokenizer, std::int64_t rows) {
  BpeSpec spec = dynamic_cast<const BpeTokenizer&>(tokenizer).spec();
  const bool lacks_bos = tokenizer.adds_bos() && spec.post_processor.before.empty();
  if (tokenizer.vocab_size() == rows && !lacks_bos) return tokenizer.serialized();
  if (lacks_bos) spec.post_processor.before = {*tokenizer.special().bos};
  append_pad_tokens(spec, rows);
  return write_tokenizer_json(spec);
}

// bos_token, eos_token etc., as texts.
Json named_tokens(const Tokenizer& tokenizer, const std::vector<TokenId>& ends) {
  Json map = Json::object();
  const auto add = [&](const char* key, std::optional<TokenId> id) {
    if (id) map.set(key, tokenizer.token_text(*id));
  };
  const SpecialIds& special = tokenizer.special();
  add("bos_token", special.bos);
  add("eos_token", ends.empty() ? std::nullopt : std::optional(ends.front()));
  add("unk_token", special.unk);
  add("pad_token", special.pad);
  return map;
}

// The ids that end a text: eos, or else the bos of the next text. In a chat, the end of a turn
// comes first.
std::vector<TokenId> ends_of_text(const Tokenizer& tokenizer, const std::optional<ChatLayout>& layout) {
  std::vector<TokenId> ends;
  if (layout) ends.push_back(layout->end_id());
  const SpecialIds& special = tokenizer.special();
  const std::optional<TokenId> end = special.eos ? special.eos : special.bos;
  if (end && std::ranges::find(ends, *end) == ends.end()) ends.push_back(*end);
  return ends;
}

std::optional<ChatLayout> layout_of(const ModelFile& model, const Tokenizer& tokenizer,
                                    std::vector<std::string>& notes) {
  if (model.layout.empty()) return std::nullopt;
  try {
    return ChatLayout(tokenizer, model.layout);
  } catch (const Error& error) {  // an imported layout that thimble cannot use
    notes.push_back(fmt::format("no chat template: {}", error.what()));
    return std::nullopt;
  }
}

// Settings of tokenizer_config.json, except the class and the files, which depend on the tokenizer.
Json tokenizer_config(const Json& tokens, const ModelConfig& config,
                      const std::optional<ChatLayout>& layout) {
  Json out = Json::object();
  for (const auto& [key, text] : tokens.as_object()) out.set(key, text);
  // Explicitly null: Transformers ignores tokenizer_class for qwen2 and uses its own class, which
  // would add <|endoftext|>.
  for (const char* key : {"unk_token", "pad_token"})
    if (!tokens.find(key)) out.set(key, Json());
  out.set("model_max_length", config.context).set("clean_up_tokenization_spaces", false);
  // Without this key the class adds token_type_ids, which these models reject.
  out.set("model_input_names", Json::array({"input_ids", "attention_mask"}));
  if (layout) out.set("chat_template", jinja_template(layout->text()));
  return out;
}

}  // namespace

TokenizerFiles hugging_face_tokenizer(const ModelFile& model, const Tokenizer& tokenizer) {
  const ModelConfig& config = model.config.model;
  TokenizerFiles out;
  const std::optional<ChatLayout> layout = layout_of(model, tokenizer, out.notes);
  out.ends = ends_of_text(tokenizer, layout);
  out.chats = layout.has_value();
  const Json tokens = named_tokens(tokenizer, out.ends);
  Json settings = tokenizer_config(tokens, config, layout);
  if (tokenizer.kind() != TokenizerKind::sentencepiece) {
    out.files.emplace_back("tokenizer.json", complete_tokenizer_json(tokenizer, config.vocab_size));
    settings.set("tokenizer_class", "PreTrainedTokenizerFast");
  } else {
    out.files.emplace_back("tokenizer.model", tokenizer.serialized());
    settings.set(std::string(kSentencePieceKey), "tokenizer.model");
    if (!tokenizer.adds_bos()) settings.set("add_bos_token", false);
    if (auto json = sentencepiece_as_json(tokenizer, config.vocab_size)) {
      out.files.emplace_back("tokenizer.json", std::move(*json));
      settings.set("tokenizer_class", "PreTrainedTokenizerFast");
    } else {
      settings.set("tokenizer_class", "LlamaTokenizer");
      out.notes.push_back(
          "the SentencePiece model is not BPE: only tokenizer.model was written, and Transformers needs "
          "libsentencepiece to load it");
    }
  }
  out.files.emplace_back("tokenizer_config.json", settings.dump(2) + "\n");
  out.files.emplace_back("special_tokens_map.json", tokens.dump(2) + "\n");
  return out;
}

namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581

// Settings in a SentencePiece model file, apart from its pieces.
struct ModelSettings {
  std::uint64_t model_type = 1;  // unigram
  bool byte_fallback = false, whitespace_as_suffix = false;
  std::string_view charsmap = {};
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

ModelSettings settings_of(std::string_view model) {
  constexpr std::uint32_t kTrainerSpec = 2, kNormalizerSpec = 3;
  ModelSettings s;
  for_each_field(model, [&](const ProtobufField& field) {
    if (field.number == kTrainerSpec)
      for_each_field(field.bytes, [&](const ProtobufField& inner) {
        if (inner.number == 3) s.model_type = inner.varint;
        if (inner.number == 24) s.whitespace_as_suffix = inner.varint != 0;
        if (inner.number == 35) s.byte_fallback = inner.varint != 0;
      });
    if (field.number == kNormalizerSpec)
      for_each_field(field.bytes, [&](const ProtobufField& inner) {
        if (inner.number == 2) s.charsmap = inner.bytes;
        if (inner.number == 3) s.add_dummy_prefix = inner.varint != 0;
        if (inner.number == 4) s.remove_extra_whitespaces = inner.varint != 0;
        if (inner.number == 5) s.escape_whitespaces = inner.varint != 0;
      });
  });
  return s;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    for (std::size_t j = 0; j < 3; ++j)
      group = group << 8 | (j < count ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    for (std::size_t j = 0; j < 4; ++j) out += j <= count ? kDigits[group >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

bool starts_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}

// All ways to join two pieces into a third, best score first.
std::vector<Merge> merges_of(const Tokenizer& tokenizer, const std::vector<std::string>& vocab,
                             const std::vector<float>& scores) {
  std::unordered_map<std::string_view, TokenId> pieces;
  std::vector<TokenId> order;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id)
    if (tokenizer.token_type(id) == TokenType::normal) {
      pieces.emplace(vocab[static_cast<std::size_t>(id)], id);
      order.push_back(id);
    }
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [&](TokenId id) { return scores.at(static_cast<std::size_t>(id)); });
  std::vector<Merge> merges;
  for (const TokenId id : order) {
    const std::string_view piece = vocab[static_cast<std::size_t>(id)];
    for (std::size_t cut = 1; cut < piece.size(); ++cut) {
      if (!starts_character(piece[cut])) continue;
      const auto left = pieces.find(piece.substr(0, cut)), right = pieces.find(piece.substr(cut));
      if (left != pieces.end() && right != pieces.end()) merges.push_back({left->second, right->second, id});
    }
  }
  return merges;
}

BpeSpec spec_of(const Tokenizer& tokenizer, const ModelSettings& settings) {
  BpeSpec spec;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    spec.vocab.push_back(tokenizer.token_text(id));
    const TokenType type = tokenizer.token_type(id);
    // User-defined pieces are matched in the normalized text, which preserves adjacent spaces,
    // unless the normalizer adds a prefix: it would prefix the piece itself.
    const bool own = type == TokenType::user_defined;
    if (type == TokenType::control || type == TokenType::unknown || own)
      spec.added_tokens.push_back({.id = id,
                                   .content = spec.vocab.back(),
                                   .normalized = own && !settings.add_dummy_prefix,
                                   .special = !own});
  }
  spec.merges = merges_of(tokenizer, spec.vocab, sentencepiece_scores(tokenizer.serialized()));
  const SpecialIds& special = tokenizer.special();
  if (special.unk) spec.unk_token = tokenizer.token_text(*special.unk);
  if (tokenizer.adds_bos()) spec.post_processor.before = {*special.bos};
  spec.fuse_unk = true;
  spec.byte_fallback = settings.byte_fallback;
  if (settings.remove_extra_whitespaces) {
    spec.normalizer.push_back(Replace{{"\\A +| +\\z", true}, ""});
    spec.normalizer.push_back(Replace{{" {2,}", true}, " "});
  }
  if (settings.add_dummy_prefix) spec.normalizer.push_back(Prepend{std::string(kSpace)});
  spec.normalizer.push_back(Replace{{" ", false}, std::string(kSpace)});
  spec.decoder = {Replace{{std::string(kSpace), false}, " "}, ByteFallbackDecoder{}, FuseDecoder{}};
  if (settings.add_dummy_prefix || settings.remove_extra_whitespaces)
    spec.decoder.push_back(StripDecoder{.content = " ", .start = 1, .stop = 0});
  return spec;
}

// Adds a SentencePiece normalizer table such as nmt_nfkc, which write_tokenizer_json() cannot
// express.
std::string with_charsmap(const std::string& text, std::string_view charsmap) {
  Json json = parse_json(text, "tokenizer.json");
  Json steps =
      Json::array({Json::object().set("type", "Precompiled").set("precompiled_charsmap", base64(charsmap))});
  const Json& old = json.at("normalizer");
  if (const Json* sequence = old.find("normalizers"))
    for (const Json& step : sequence->as_array()) steps.push(step);
  else
    steps.push(old);
  json.set("normalizer", Json::object().set("type", "Sequence").set("normalizers", std::move(steps)));
  return json.dump(2) + "\n";
}

}  // namespace

void append_pad_tokens(BpeSpec& spec, std::int64_t rows) {
  const std::unordered_set<std::string> known(spec.vocab.begin(), spec.vocab.end());
  for (auto id = static_cast<std::int64_t>(spec.vocab.size()); id < rows; ++id) {
    spec.vocab.push_back(pad_token_text(id, known));
    spec.added_tokens.push_back({.id = static_cast<TokenId>(id), .content = spec.vocab.back()});
  }
}

std::optional<std::string> sentencepiece_as_json(const Tokenizer& tokenizer, std::int64_t rows) {
  constexpr std::uint64_t kBpe = 2;
  const std::string model = tokenizer.serialized();
  const ModelSettings settings = settings_of(model);
  if (settings.model_type != kBpe || settings.whitespace_as_suffix || !settings.escape_whitespaces)
    return std::nullopt;
  BpeSpec spec = spec_of(tokenizer, settings);
  append_pad_tokens(spec, rows);
  const std::string text = write_tokenizer_json(spec);
  return settings.charsmap.empty() ? text : with_charsmap(text, settings.charsmap);
}

namespace {

// Transformers has no layer loops, but a loop can be unrolled. Everything else must be supported.
std::optional<FoldedModel> without_loop(const ModelFile& model) {
  ModelConfig plain = model.config.model;
  if (std::exchange(plain.loop_count, 0) == 0) return std::nullopt;
  hugging_face_family(plain);
  return unrolled_model(model);
}

ExportReport export_hugging_face(FileOps& ops, const ModelFile& model, const ExportRequest& request) {
  const std::optional<FoldedModel> unrolled = without_loop(model);
  const HuggingFaceReport written =
      write_hugging_face(ops, request.path, request.existing, unrolled ? unrolled->model : model,
                         float_dtype(*request.type), request.inspect, request.progress);
  ExportReport report{.architecture = written.architecture,
                      .type = *request.type,
                      .tensors = written.tensors,
                      .bytes = written.bytes,
                      .notes = written.notes};
  if (unrolled)
    for (const FoldStep& step : unrolled->steps) report.folded.push_back(step.line());
  return report;
}

}  // namespace

ExportFormat hugging_face_export() {
  using enum GgufType;
  return {.name = "hf",
          .what = "a Hugging Face folder",
          .types = {f32, bf16, f16},
          .write = export_hugging_face,
          .rounds_vectors = true,
          .folder = true};
}

}  // namespace thimble
