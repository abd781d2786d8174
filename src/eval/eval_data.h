// What `--data X` means to somebody who measures: a text, chats, or a folder of shards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/progress.h"
#include "base/signals.h"
#include "data/document.h"
#include "data/token_set.h"
#include "model/model.h"
#include "pack/gptq.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

// The tokens to be scored: of shards the validation split, made with this tokenizer; else all of the file or
// folder, whose kind its first record tells. Of chats only the answers count.
TokenSet open_eval_set(const std::filesystem::path& path, const Tokenizer& tokenizer,
                       const ProgressOutput& progress, const Interrupt* interrupt = nullptr);

// A text as llama.cpp's tools read it: all of it as one, without the line end behind it, and no bos in front. Of shards
// the validation split.
std::vector<std::int32_t> read_stream(const std::filesystem::path& path, const Tokenizer& tokenizer,
                                      const ProgressOutput& progress, const Interrupt* interrupt = nullptr);

// The conversations of a file, at most `limit` (0: all), each up to its last answer; those without one are
// left out. A file of something else is an error.
std::vector<Conversation> read_conversations(const std::filesystem::path& path, std::uint64_t limit);

// Text for a model to read while its matrices are watched: what GPTQ takes H from (pack/gptq.h).
//
//   const Grid text = calibration_windows(train_set, model.config(), 131072);      // or sampled_windows(...)
//   const InputMoments moments = calibrate(model, text, progress, &interrupt);
//
// On a GPU the rows are copied back and summed on the host.
// Rows of the model's context, about `tokens` in all, spread evenly over the set; fewer where it has fewer.
Grid calibration_windows(const TokenSet& set, const ModelConfig& config, std::int64_t tokens);

// The same made by the model itself, from bos on at temperature 0.8: no text is needed.
Grid sampled_windows(Model& model, TokenId bos, std::int64_t tokens, std::uint64_t seed,
                     const ProgressOutput& progress, const Interrupt* interrupt = nullptr);

InputMoments calibrate(Model& model, const Grid& windows, const ProgressOutput& progress,
                       const Interrupt* interrupt = nullptr);

}  // namespace thimble
