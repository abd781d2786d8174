// Weights out of foreign files: one tensor of ours may lie in one of several files, under another name,
// transposed, or as a part of a larger tensor.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "formats/model_file.h"
#include "formats/safetensors.h"
#include "model/params.h"

namespace thimble {

// Several safetensors files seen as one.
class TensorFiles {
 public:
  explicit TensorFiles(std::string name) : name_(std::move(name)) {}
  void add(SafetensorsFile file);  // a tensor that is there already is an Error

  const std::string& name() const { return name_; }  // for messages
  const std::vector<SafetensorsFile>& files() const { return files_; }
  const SafetensorsEntry* find(std::string_view tensor) const;  // nullptr when absent
  void read_f32(std::string_view tensor, std::span<float> values) const;

 private:
  struct Place {
    std::size_t file;
    const SafetensorsEntry* entry;
  };
  std::string name_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Place, std::less<>> places_;
};

// Where one tensor of the table comes from.
struct WeightSource {
  std::string name;                // empty: it is not in the file, and 0
  std::vector<std::int64_t> dims;  // of the whole tensor there
  bool transposed = false;         // [in, out] there, [out, in] here
  std::int64_t first = 0;          // our first row (or element of a vector) is its `first` output
};

// Every tensor under `prefix` + its own name, as it is.
std::vector<WeightSource> sources_by_name(const ParamTable& table, std::string_view prefix = {});

// The block of weights, laid out as the table says. `sources`: one per tensor, in the table's order.
// Everything missing, misshaped or left over is one Error that lists it all; `ignore` says what may be left
// over. The block is made after that: a config cannot ask for more memory than the files back.
std::vector<float> read_weights(const TensorFiles& files, const ParamTable& table,
                                std::span<const WeightSource> sources,
                                const std::function<bool(std::string_view)>& ignore);

// A model's weights on their way into a safetensors file: under the params table's names, in f32, bf16 or f16.
// The block must outlive the writer. `wanted` (may be empty: all) says which tensors. A weight that f16 cannot hold is
// an Error that names its tensor.
void add_weights(SafetensorsWriter& writer, const ParamTable& table, std::span<const float> block,
                 DType dtype, const std::function<bool(const Param&)>& wanted = {});

// Weights by name: between a safetensors file and a model's block.
// Reads every tensor of the table, under `prefix` + its name, into the block (block_size() elements).
// Anything missing or of another shape is one Error that lists them all. Tensors the table does not know are
// an error too, except those for which `ignore` (may be empty) returns true.
void read_state_dict(const SafetensorsFile& file, const ParamTable& table, std::string_view prefix,
                     std::span<float> block, const std::function<bool(std::string_view name)>& ignore = {});

// Adds every tensor of the block to the file, under `prefix` + its name, in f32. The block must outlive the
// writer.
void add_state_dict(SafetensorsWriter& writer, const ParamTable& table, std::string_view prefix,
                    std::span<const float> block);

// A model for inference alone, as one safetensors file: weights under the params table's names, the config,
// the tokenizer if there is one, digests. Of training nothing but, in f32, what the model did then. Any safetensors reader opens it; model_file.h
// says what is in its metadata.
// `dtype`: f32, bf16 or f16. A weight that f16 cannot hold is an Error that names its tensor.
void write_model(FileOps& ops, const std::filesystem::path& path, Existing existing, const ModelFile& model,
                 DType dtype, const Inspector& inspect = {});

// What a model did when it was saved, in the metadata of our safetensors files: `thimble qa` holds it to that.
// Checkpoints of a run have these (train/checkpoint.h), and a copy for inference keeps them where it keeps every bit of
// the weights.
inline constexpr std::string_view kGoldenKey = "thimble.golden";  // train/validation.h
inline constexpr std::string_view kGoldenNatsKey = "thimble.golden_nats";
inline constexpr std::string_view kValLossKey = "thimble.val_loss";      // nats per token
inline constexpr std::string_view kValBpbKey = "thimble.val_bpb";        // bits per byte
inline constexpr std::string_view kValSetKey = "thimble.val_set";        // TokenSet::fingerprint()
inline constexpr std::string_view kValTokensKey = "thimble.val_tokens";  // how many of it at most; 0: all

inline constexpr std::array kRecordKeys = {kGoldenKey, kGoldenNatsKey, kValLossKey,
                                           kValBpbKey, kValSetKey,     kValTokensKey};

}  // namespace thimble
