// The facts that `thimble inspect` shows about a model: tensors by role with statistics, tokenizer,
// training. Facts that the file does not contain are absent.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/model_file.h"

namespace thimble {

inline constexpr std::size_t kHistogramBins = 24;

// Statistics of the values of one or more tensors. Mean, deviation, minimum, maximum and histogram
// cover the finite values and are 0 if there are none.
struct TensorStats {
  std::int64_t count = 0;
  std::int64_t zeros = 0;
  std::int64_t not_finite = 0;  // NaN or infinite
  double mean = 0, deviation = 0, least = 0, most = 0;
  // Counts over equal bins of [mean - 3 deviations, mean + 3 deviations]; values outside count in
  // the outermost bins.
  std::array<double, kHistogramBins> histogram{};

  bool all_zero() const { return count > 0 && zeros == count; }
};

TensorStats stats_of(std::span<const float> values);
// Of several tensors together.
TensorStats stats_of(std::span<const std::span<const float>> parts);

// All tensors of one role: one per layer, or a single one.
struct WeightGroup {
  std::string name;  // "blocks.*.attn.c_q.weight"
  // As stored in the file; "F32, F16" if layers differ; empty if the file stores the role
  // differently.
  std::string dtype;
  std::vector<std::int64_t> dims;  // of one tensor
  std::int64_t tensors = 0, parameters = 0;
  std::uint64_t bytes = 0;  // in the file; 0: unknown
  TensorStats stats;        // of all tensors together; count 0 if the file was opened without weights
};

// Tensors that are not weights: optimizer state, tokenizer, digests.
struct OtherTensors {
  std::string name;  // "optim.m.*"
  std::int64_t tensors = 0;
  std::uint64_t bytes = 0;
};

struct TokenizerFacts {
  std::string_view kind;
  TokenId vocab_size = 0;
  SpecialIds special;
  std::vector<std::pair<std::string, TokenId>> special_tokens;
  std::string digest;
};

// Of an artifact: those of the model that was packed.
struct TrainingFacts {
  std::int64_t step = 0;
  std::optional<std::int64_t> tokens, best_step;
  std::optional<double> best_val_loss;      // of the run so far
  std::optional<double> val_loss, val_bpb;  // of this checkpoint
  std::vector<TokenId> golden;              // the golden output
  std::string golden_text;                  // the golden output, decoded
  // From the run folder's metrics.jsonl, if there is one:
  std::vector<double> losses;  // means over equal numbers of steps
  std::vector<std::pair<std::int64_t, double>> validations;
  std::optional<double> train_loss, seconds, bytes_per_token;
  std::string data;  // name and kind of the data: "chats.jsonl (chat)"
};

struct ModelFacts {
  std::int64_t parameters = 0;
  std::uint64_t file_bytes = 0;  // of all files of the model
  std::vector<WeightGroup> weights;
  std::vector<OtherTensors> others;
  std::optional<TokenizerFacts> tokenizer;
  std::optional<TrainingFacts> training;
};

std::uint64_t model_bytes(const ModelFile& file);  // of all its files

// `path`: the MODEL argument, which locates the metrics.jsonl of a run folder.
ModelFacts facts_of(const ModelFile& file, const std::filesystem::path& path);

// nullopt if the file does not say how it was trained. `tokenizer` may be nullptr. `path` is as
// above.
std::optional<TrainingFacts> training_facts(const ModelFile& file, const Tokenizer* tokenizer,
                                            const std::filesystem::path& path);

// The facts that an artifact keeps, for kTrainingKey in its metadata (formats/artifact.h).
std::string training_record(const TrainingFacts& facts);

// The parameter that a tensor of the file corresponds to; nullptr if none, or if it is part of
// several.
const Param* param_of(const ModelFile& file, const ParamTable& table, std::string_view stored_name);

const std::string* find_metadata(const ModelFile& file, std::string_view key);  // nullptr: not found

// The weights of one tensor.
std::span<const float> values_of(const ModelFile& file, const Param& param);

}  // namespace thimble
