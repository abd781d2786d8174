// The one place that opens a MODEL of any kind.
//
//   ModelFile file = open_model("runs/chat-1");
//   Model model = make_model(file, context);
//   const auto tokenizer = open_tokenizer(file);
//
// A model that only generates or is measured need not become floats:
//
//   ModelFile file = open_model("golf.thimble", WeightsAs::stored);   // make_model(file, ...) multiplies the integers
//
// A kind of MODEL is a row of model_kinds(). Of a run folder it is the best checkpoint, else the last.
//
// A checkpoint is a safetensors file. Its weights carry the params table's names; tensors `optim.*` and
// `thimble.*` are no weights; metadata holds the strings named below.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/config.h"
#include "model/model.h"
#include "tokenizer/chat_layout.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

class SafetensorsFile;

// Metadata of our safetensors files.
inline constexpr std::string_view kConfigKey = "thimble.config";  // resolved TOML
inline constexpr std::string_view kLayoutKey = "thimble.layout";  // of chats
inline constexpr std::string_view kStepKey = "thimble.step";      // steps trained; checkpoints of a run only
inline constexpr std::string_view kVersionKey = "thimble.version";   // that wrote it
inline constexpr std::string_view kBosKey = "thimble.bos";           // ids that the tokenizer's own file does
inline constexpr std::string_view kEosKey = "thimble.eos";           // not tell
inline constexpr std::string_view kAddsBosKey = "thimble.adds_bos";  // 1 or 0: TokenizerFile::adds_bos

// Their tensors that are no weights.
inline constexpr std::string_view kOptimizerPrefix = "optim.";
inline constexpr std::string_view kThimblePrefix = "thimble.";
inline constexpr std::string_view kTokenizerTensor = "thimble.tokenizer";
inline constexpr std::string_view kTrainStateTensor = "thimble.train_state";

// The content of a tokenizer.json or tokenizer.model, and what the files beside it said.
struct TokenizerFile {
  std::string name;  // "tokenizer.json": for messages
  std::string content;
  SpecialIds special = {};                   // ids from a config
  std::string bos_text = {}, eos_text = {};  // tokens by their text: stronger than the ids
  // Do texts begin with bos? Nothing: of a model that was trained or packed here they do (DESIGN 8.1), else the
  // tokenizer's own file says.
  std::optional<bool> adds_bos = {};
};

// A tensor as it lies in the file.
struct StoredTensor {
  std::string name;
  std::string dtype;  // "F32"
  std::vector<std::int64_t> dims;
  std::uint64_t bytes;
};

struct ModelFile {
  std::filesystem::path path;  // what was opened: of a run folder the checkpoint
  std::string format;          // "safetensors", "thimble", "gguf" or "huggingface"
  std::string architecture;    // "llama", "golf", ...: see architecture_of
  Config config;               // resolved; training is the default where the file says nothing of it
  std::vector<float> weights;  // laid out as ParamTable(config.model) says; WeightsAs::stored: none
  std::shared_ptr<const StoredWeights> stored = nullptr;  // WeightsAs::stored
  std::optional<TokenizerFile> tokenizer;
  std::string layout;                 // of chats; empty: none
  std::optional<std::int64_t> step;   // a checkpoint of a run
  std::vector<StoredTensor> tensors;  // optimizer state included
  std::vector<std::pair<std::string, std::string>> metadata;
};

enum class WeightsAs : std::uint8_t {
  floats,  // ModelFile::weights
  stored,  // ModelFile::stored: integers of an artifact stay integers, floats have no more bits than they need
};

// A kind of MODEL: how it is known, and who opens it. A new one is the file that reads it and its row.
struct ModelKind {
  std::string_view what;  // "GGUF", for help
  bool (*is_folder)(const std::filesystem::path& folder) = nullptr;
  bool (*is_file)(std::string_view first_bytes) =
      nullptr;                   // by its content: 8 bytes, or all if there are fewer
  std::string_view ending = {};  // ".thimble": of files that nobody knows by their content
  ModelFile (*open)(const std::filesystem::path& path, WeightsAs as);
};
std::span<const ModelKind> model_kinds();
std::string_view model_kinds_in_words();  // "run folder, checkpoint, artifact, GGUF or Hugging Face folder"

// A file that no kind knows is taken for a checkpoint, whose reader says what is wrong with it.
ModelFile open_model(const std::filesystem::path& path, WeightsAs as = WeightsAs::floats,
                     std::span<const ModelKind> kinds = model_kinds());

// A file of weights that says nothing of its model, as other programs write it: safetensors, .npz (npz.h) or the int8
// file of the golf scripts (int8_state.h). The config comes from elsewhere. Names are `prefix` + those of the table;
// with a prefix, tensors without it are passed over.
ModelFile open_state_dict(const std::filesystem::path& path, const Config& config, std::string_view prefix);

// The weights as floats, however the file was opened.
std::vector<float> float_weights(const ModelFile& file);

// A model that runs: with a copy of the weights in f32, or with those that are stored. On the CPU that takes no memory but
// in bf16 for what is no integer; on a GPU every matrix is expanded to `dtype` when it is sent there.
Model make_model(const ModelFile& file, const Context& context, DType dtype = DType::f32);

// For openers: every tensor of the file, as it lies there.
void append_tensors(const SafetensorsFile& file, std::vector<StoredTensor>& tensors);

// nullptr: the model has none. One that is larger than the embedding is an error.
std::unique_ptr<Tokenizer> open_tokenizer(const ModelFile& file);

// How the model was taught to chat. One that was not is an error, and so is a layout that is not known here.
// `name`: what to take instead of what the file says; empty: nothing.
ChatLayout open_chat_layout(const ModelFile& file, const Tokenizer& tokenizer, std::string_view name = {});

// What other people call a model: the name follows from the config, as the tensors' names do.
// "llama", "qwen2", "qwen3", "gpt2", "microgpt" or "golf" if the config is exactly of that family, whatever
// its sizes; "thimble" for every other combination of switches.
std::string_view architecture_of(const ModelConfig& config);

}  // namespace thimble
