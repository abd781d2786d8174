// What `thimble inspect` tells of a model: its tensors by role with their numbers, its tokenizer, its training. What a
// file does not say is absent here; nothing is filled in.
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

// What a tensor's numbers look like: the figures and the shape of their distribution.
inline constexpr std::size_t kHistogramBins = 24;

// Of the finite values; 0 where there are none.
struct TensorStats {
  std::int64_t count = 0;
  std::int64_t zeros = 0;
  std::int64_t not_finite = 0;  // NaN or infinite
  double mean = 0, deviation = 0, least = 0, most = 0;
  // How many lie in each of equal parts of [mean - 3 deviations, mean + 3 deviations]; those beyond count in the
  // outermost.
  std::array<double, kHistogramBins> histogram{};

  bool all_zero() const { return count > 0 && zeros == count; }
};

TensorStats stats_of(std::span<const float> values);
// Of many tensors as one.
TensorStats stats_of(std::span<const std::span<const float>> parts);

// All tensors of one role: one a layer, or one in all.
struct WeightGroup {
  std::string name;  // "blocks.*.attn.c_q.weight"
  std::string
      dtype;  // as the file stores it; "F32, F16" where layers differ; empty: the file has it under other names
  std::vector<std::int64_t> dims;  // of one
  std::int64_t tensors = 0, parameters = 0;
  std::uint64_t bytes = 0;  // in the file; 0: not known
  TensorStats stats;        // of all of them together
};

// What is no weight: optimizer state, tokenizer, digests.
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

struct TrainingFacts {
  std::int64_t step = 0;
  std::optional<std::int64_t> tokens, best_step;
  std::optional<double> best_val_loss;      // of the run so far
  std::optional<double> val_loss, val_bpb;  // of this very checkpoint
  std::vector<TokenId> golden;              // what it says greedily,
  std::string golden_text;                  // and how that reads
  // From the run folder's metrics.jsonl, where there is one:
  std::vector<double> losses;  // means over equally many steps
  std::vector<std::pair<std::int64_t, double>> validations;
  std::optional<double> train_loss, seconds, bytes_per_token;
};

struct ModelFacts {
  std::int64_t parameters = 0;
  std::uint64_t file_bytes = 0;  // of all files that were read
  std::vector<WeightGroup> weights;
  std::vector<OtherTensors> others;
  std::optional<TokenizerFacts> tokenizer;
  std::optional<TrainingFacts> training;
};

// `path`: what the user named; a run's history lies beside its checkpoints.
ModelFacts facts_of(const ModelFile& file, const std::filesystem::path& path);

// Which of our tensors a file's tensor is; nullptr: none of them, or a part of several.
const Param* param_of(const ModelFile& file, const ParamTable& table, std::string_view stored_name);

const std::string* find_metadata(const ModelFile& file, std::string_view key);  // nullptr: not there

// The weights of one tensor.
std::span<const float> values_of(const ModelFile& file, const Param& param);

}  // namespace thimble
