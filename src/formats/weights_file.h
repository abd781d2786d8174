// Reads weights from files of other programs, where a tensor may be in one of several files, have
// another name, be transposed, or be part of a larger tensor.
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

// Several safetensors files presented as one.
class TensorFiles {
 public:
  explicit TensorFiles(std::string name) : name_(std::move(name)) {}
  void add(SafetensorsFile file);  // throws an Error if a tensor is already present

  const std::string& name() const { return name_; }  // for error messages
  const std::vector<SafetensorsFile>& files() const { return files_; }
  const SafetensorsEntry* find(std::string_view tensor) const;  // nullptr when absent
  void read_f32(std::string_view tensor, std::span<float> values) const;

 private:
  struct Location {
    std::size_t file;
    const SafetensorsEntry* entry;
  };
  std::string name_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Location, std::less<>> locations_;
};

// The source of one tensor of the ParamTable.
struct WeightSource {
  std::string name;                // empty: not in the file, filled with 0
  std::vector<std::int64_t> dims;  // of the complete tensor in the file
  bool transposed = false;         // [in, out] in the file, [out, in] here
  std::int64_t first = 0;          // index in the file of our first row or element
  float base = 0;                  // added to the values in the file
};

// Sources that map every tensor to `prefix` + its own name, unchanged.
std::vector<WeightSource> sources_by_name(const ParamTable& table, std::string_view prefix = {});

// Returns the block of weights, in the layout of the table. `sources` has one item per tensor, in
// the table's order. One Error lists all missing, misshaped and unexpected tensors, except
// unexpected ones for which `ignore` returns true. The block is allocated after these checks, so a
// config cannot make it larger than the files. With WeightsAs::none, there are only the checks.
std::vector<float> read_weights(const TensorFiles& files, const ParamTable& table,
                                std::span<const WeightSource> sources,
                                const std::function<bool(std::string_view)>& ignore,
                                WeightsAs as = WeightsAs::floats);

// Adds a model's weights to a safetensors file, under the names of the table, as f32, bf16 or f16.
// The block must outlive the writer. `selected` chooses tensors (empty: all). Throws an Error that
// names the tensor if a weight is too large for f16.
void add_weights(SafetensorsWriter& writer, const ParamTable& table, std::span<const float> block,
                 DType dtype, const std::function<bool(const Param&)>& selected = {});

// Adds one tensor. The values, or what `compute` refers to, must outlive the writer.
void add_weights(SafetensorsWriter& writer, const std::string& name, const std::vector<std::int64_t>& dims,
                 std::span<const float> values, DType dtype);
void add_weights(SafetensorsWriter& writer, const std::string& name, const std::vector<std::int64_t>& dims,
                 std::function<std::vector<float>()> compute, DType dtype);

// Reads every tensor of the table, under `prefix` + its name, into the block (block_size()
// elements). One Error lists all tensors that are missing, have another shape or are not in the
// table, except those for which `ignore` (may be empty) returns true.
void read_state_dict(const SafetensorsFile& file, const ParamTable& table, std::string_view prefix,
                     std::span<float> block, const std::function<bool(std::string_view name)>& ignore = {});

// Adds every tensor of the block to the file, under `prefix` + its name, in f32. The block must
// outlive the writer.
void add_state_dict(SafetensorsWriter& writer, const ParamTable& table, std::string_view prefix,
                    std::span<const float> block);

// Writes a model for inference as one safetensors file: weights under the names of the table,
// config, tokenizer if there is one, and digests. Of the training state, only kRecordKeys are kept,
// and only in f32. Any safetensors reader can open it; model_file.h lists the metadata keys.
// `dtype`: f32, bf16 or f16. Throws an Error that names the tensor if a weight is too large for
// f16.
void write_model(FileOps& ops, const std::filesystem::path& path, Existing existing, const ModelFile& model,
                 DType dtype, const Inspector& inspect = {}, const ProgressOutput& progress = {});

// Metadata keys that record results of a model when it was saved; `thimble qa` checks against them.
// Checkpoints of a run have them (train/checkpoint.h). A copy for inference keeps them only in f32,
// where the weights are bit-identical.
inline constexpr std::string_view kGoldenKey = "thimble.golden";  // train/validation.h
inline constexpr std::string_view kGoldenNatsKey = "thimble.golden_nats";
inline constexpr std::string_view kValLossKey = "thimble.val_loss";      // nats per token
inline constexpr std::string_view kValBpbKey = "thimble.val_bpb";        // bits per byte
inline constexpr std::string_view kValSetKey = "thimble.val_set";        // TokenSet::fingerprint()
inline constexpr std::string_view kValTokensKey = "thimble.val_tokens";  // number of tokens used; 0: all

inline constexpr std::array kRecordKeys = {kGoldenKey, kGoldenNatsKey, kValLossKey,
                                           kValBpbKey, kValSetKey,     kValTokensKey};

}  // namespace thimble
