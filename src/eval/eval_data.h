// Data for measurements, where `--data X` is a text, chats or a folder of shards, and calibration
// data for GPTQ.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "base/progress.h"
#include "base/signals.h"
#include "data/document.h"
#include "data/token_set.h"
#include "eval/score.h"
#include "model/model.h"
#include "pack/gptq.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

// The tokens to be scored. For a folder of shards: its validation split, which must have been made
// with this tokenizer and whose digests are verified. For other paths: the complete file or folder;
// its records determine the kind, and `read` the documents of a text. For chats only the answers
// are targets.
TokenSet open_eval_set(const std::filesystem::path& path, const Tokenizer& tokenizer,
                       const ProgressOutput& progress, const Interrupt* interrupt = nullptr,
                       const ReadOptions& read = {});

// The same tokens of a text or chats, for data that may be larger than memory: `sink` gets them in
// order, in parts. Those of chats in a layout other than thimble's have marks (data/shard.h).
using TokenSink = std::function<void(std::span<const TokenId>)>;
DataKind encode_data(const std::filesystem::path& path, const Tokenizer& tokenizer, const TokenSink& sink,
                     const ProgressOutput& progress, const Interrupt* interrupt = nullptr,
                     const ReadOptions& read = {});

// Reads a text as llama.cpp's tools do: in one piece, without the last line end and without a
// leading bos. For shards: the validation split.
std::vector<std::int32_t> read_stream(const std::filesystem::path& path, const Tokenizer& tokenizer,
                                      const ProgressOutput& progress, const Interrupt* interrupt = nullptr);

// The conversations of a file, at most `limit` (0: all), each up to its last answer. Conversations
// without an answer are skipped. Throws Error if the file does not contain conversations.
std::vector<Conversation> read_conversations(const std::filesystem::path& path, std::uint64_t limit,
                                             const ReadOptions& read = {});

// Calibration for GPTQ: runs a model on a text and accumulates the second moments of the inputs of
// every matrix, from which GPTQ computes H (pack/gptq.h).
//
//   const Grid text = calibration_windows(train_set, model.config(), 131072);
//   const InputMoments moments = calibrate(model, text, progress, &interrupt);

// Windows of the model's context, about `tokens` tokens in total, spread evenly over the set; fewer
// if the set is smaller.
Grid calibration_windows(const TokenSet& set, const ModelConfig& config, std::int64_t tokens);

// Windows of text that the model generates from bos at temperature 0.8, for use without training
// data.
Grid sampled_windows(Model& model, TokenId bos, std::int64_t tokens, std::uint64_t seed,
                     const ProgressOutput& progress, const Interrupt* interrupt = nullptr);

// With a GPU model, the inputs are copied to the host and summed there.
InputMoments calibrate(Model& model, const Grid& windows, const ProgressOutput& progress,
                       const Interrupt* interrupt = nullptr);

// The loss of every next token in windows such as these, each document by itself, without bytes.
// Scores about `tokens` tokens, of windows spread evenly over the grid.
Score score_windows(Model& model, const Grid& windows, std::int64_t tokens, const ProgressOutput& progress,
                    const Interrupt* interrupt = nullptr);

}  // namespace thimble
