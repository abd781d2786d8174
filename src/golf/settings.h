// What a golf run is, from the environment and the flags.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "golf/environment.h"
#include "model/config.h"

namespace thimble {

struct GolfRequest {
  GolfScript script = GolfScript::mlx;
  bool plus = false;  // with the techniques of golf-plus
  Variables environment;
  std::function<void(ConfigBuilder&)> flags = {};  // settings on top of the environment
};

struct GolfSettings {
  GolfScript script = GolfScript::mlx;
  bool plus = false;
  Config config;
  std::filesystem::path data, tokenizer, out;
  std::string data_text, tokenizer_text;  // as they were spelled: for the log
  std::string run_id;
  std::int64_t train_log_every = 0, val_batch_tokens = 0;  // of one validation batch
  std::int64_t train_batch_tokens = 0;                     // as asked for: what is read may be a little less
  std::int64_t grad_accum_steps = 8, sub_batch_tokens = 0, val_batch_size = 0;
  int ranks = 1;                                                 // that train together
  double max_wallclock_seconds = 0;                              // as asked for
  std::vector<std::string> keep_f32;                             // patterns
  std::vector<std::pair<std::string, std::string>> environment;  // known variables that were set
  std::vector<std::string> notes, warnings;                      // for people: not part of the log

  std::filesystem::path log_file() const { return out / (run_id + ".txt"); }
  std::filesystem::path run_folder() const { return out / run_id; }
  // Where theirs writes it: beside the log, or (train_gpt.py) in the current folder.
  std::filesystem::path raw_model() const;
  std::filesystem::path int8_model() const;
  std::filesystem::path artifact() const { return out / (run_id + ".thimble"); }
  std::int64_t microbatch_tokens() const { return train_batch_tokens / grad_accum_steps; }
};

// Settings that the scripts refuse are refused, in their words where those are clear. What needs the files (the
// tokenizer's size, the data) is checked by golf/run.h.
GolfSettings golf_settings(const GolfRequest& request);

}  // namespace thimble
