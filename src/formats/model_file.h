// Opens models of every supported format.
//
//   ModelFile file = open_model("runs/chat-1");
//   Model model = make_model(file, context);
//   const auto tokenizer = open_tokenizer(file);
//
// A model that is only used for inference can keep its stored types:
//
//   ModelFile file = open_model("golf.thimble", WeightsAs::stored);   // integers stay integers
//
// Each supported format is a row of model_kinds(). A run folder opens as its best checkpoint, else
// as its last.
//
// A checkpoint is a safetensors file. Its weights have the names of the ParamTable; tensors
// `optim.*` and `thimble.*` are not weights; its metadata has the keys listed below.
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

#include "base/progress.h"
#include "config/config.h"
#include "model/model.h"
#include "tokenizer/chat_layout.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

class SafetensorsFile;
struct BpeSpec;

// Metadata keys of thimble's safetensors files.
inline constexpr std::string_view kConfigKey = "thimble.config";     // resolved TOML
inline constexpr std::string_view kLayoutKey = "thimble.layout";     // chat layout
inline constexpr std::string_view kStepKey = "thimble.step";         // steps trained; in checkpoints of a run
inline constexpr std::string_view kVersionKey = "thimble.version";   // version of thimble that wrote the file
inline constexpr std::string_view kBosKey = "thimble.bos";           // id of bos
inline constexpr std::string_view kEosKey = "thimble.eos";           // id of eos
inline constexpr std::string_view kAddsBosKey = "thimble.adds_bos";  // 1 or 0: see TokenizerFile

// Names of tensors that are not weights.
inline constexpr std::string_view kOptimizerPrefix = "optim.";
inline constexpr std::string_view kThimblePrefix = "thimble.";
inline constexpr std::string_view kTokenizerTensor = "thimble.tokenizer";
inline constexpr std::string_view kTrainStateTensor = "thimble.train_state";

// The content of a tokenizer.json or tokenizer.model, and settings from the files beside it.
struct TokenizerFile {
  std::string name;  // "tokenizer.json", for error messages
  std::string content;
  SpecialIds special = {};                   // ids from a config
  std::string bos_text = {}, eos_text = {};  // tokens by text; take precedence over the ids
  // Whether bos is added before texts. nullopt: yes for models trained or packed by thimble, else
  // as the tokenizer's own file specifies.
  std::optional<bool> adds_bos = {};
  // What `content` contains, if it was written from a specification: not parsed again.
  std::shared_ptr<const BpeSpec> spec = {};
};

// A tensor as stored in the file.
struct StoredTensor {
  std::string name;
  std::string dtype;  // "F32"
  std::vector<std::int64_t> dims;
  std::uint64_t bytes;
};

// The model that adapters were trained for. The digest is that of its stored weights; empty if it
// is not known.
struct AdapterBase {
  std::string path, digest;
};

// Adapters for the weights of a model, laid out by table.params().
struct Adapters {
  AdapterTable table;
  std::vector<float> values;
  AdapterBase base = {};
};

struct ModelFile {
  std::filesystem::path path;  // the file opened; for a run folder, the checkpoint
  std::string format;          // "safetensors", "thimble", "gguf", "huggingface", "npz" or "int8.ptz"
  std::string architecture;    // "llama", "golf", ...: see architecture_of
  Config config;               // resolved; training settings are defaults if absent
  std::vector<float> weights;  // laid out by ParamTable(config.model); empty for stored and none
  std::shared_ptr<const StoredWeights> stored = nullptr;  // set for WeightsAs::stored
  std::shared_ptr<const Adapters> adapters = nullptr;     // beside `stored`; merged into `weights`
  std::optional<TokenizerFile> tokenizer;
  std::string layout;                 // chat layout; empty: none
  std::optional<std::int64_t> step;   // set for checkpoints of a run
  std::vector<StoredTensor> tensors;  // optimizer state included
  std::vector<std::pair<std::string, std::string>> metadata;
};

enum class WeightsAs : std::uint8_t {
  none,      // no weights if the format allows; digests are not verified, so that it takes no time
  floats,    // ModelFile::weights
  stored,    // ModelFile::stored: integers stay integers, floats keep the smallest exact type, and
             // the matrices of a GGUF stay in its mapped blocks
  verified,  // like floats; of a checkpoint, also reads and verifies the optimizer's state
};

// A model format: how to recognize it, and its reader.
struct ModelKind {
  std::string_view what;  // "GGUF", for help texts
  bool (*is_folder)(const std::filesystem::path& folder) = nullptr;
  bool (*is_file)(std::string_view first_bytes) = nullptr;  // gets at most the first 8 bytes
  std::string_view ending = {};                             // ".thimble": fallback if no is_file matches
  ModelFile (*open)(const std::filesystem::path& path, WeightsAs as, const ProgressOutput& progress);
};
std::span<const ModelKind> model_kinds();
std::string_view model_kinds_text();  // "run folder, checkpoint, artifact, GGUF or Hugging Face folder"

// A file that matches no kind is opened as a checkpoint, whose reader reports what is wrong.
ModelFile open_model(const std::filesystem::path& path, WeightsAs as = WeightsAs::floats,
                     const ProgressOutput& progress = {}, std::span<const ModelKind> kinds = model_kinds());

// Opens a weights file without a config, as written by other programs: safetensors, .npz (npz.h) or
// the int8 file of the golf scripts (int8_state.h). Tensor names are `prefix` + the names of the
// ParamTable. With a prefix, tensors that do not have it are ignored.
ModelFile open_state_dict(const std::filesystem::path& path, const Config& config, std::string_view prefix);

// The weights as floats, adapters merged; dequantizes them if the file was opened with
// WeightsAs::stored.
std::vector<float> float_weights(const ModelFile& file);

// Creates a model with an f32 copy of file.weights, or one that uses file.stored and copies
// file.adapters. On the CPU,
// stored weights are shared, and with bf16 only the non-integer tensors are copied. On a GPU, every
// matrix is expanded to `dtype` when it is uploaded.
Model make_model(const ModelFile& file, const Context& context, DType dtype = DType::f32);

// Whether a tensor of a checkpoint is a weight.
bool is_weight(std::string_view name);

// The checkpoint that a run folder opens as: the best, else the last; empty if it has none.
std::filesystem::path checkpoint_in(const std::filesystem::path& folder);

// Helper for readers: appends every tensor of the file, as stored.
void append_tensors(const SafetensorsFile& file, std::vector<StoredTensor>& tensors);

// Returns nullptr if the model has no tokenizer. Throws an Error if the tokenizer has more tokens
// than the embedding.
std::unique_ptr<Tokenizer> open_tokenizer(const ModelFile& file);

// The layout of chats to train or score the model on: its own, or thimble's if it has none.
std::string layout_for_training(const ModelFile& file);

// The chat layout that the model was trained with, or the one called `name` if that is not empty.
// Throws an Error if the model was not trained on chats or the layout is unknown.
ChatLayout open_chat_layout(const ModelFile& file, const Tokenizer& tokenizer, std::string_view name = {});

// The common name of an architecture, derived from the config: that of a family in architectures.h,
// "microgpt" or "golf" if the config belongs to that family, whatever its sizes; "thimble" for
// every other combination of switches.
std::string_view architecture_of(const ModelConfig& config);

// Whether the config has a switch that only parameter-golf's models use.
bool is_golf_model(const ModelConfig& config);

}  // namespace thimble
