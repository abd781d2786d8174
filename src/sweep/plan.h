// The file of a sweep: which variants of a run are trained, and with which seeds.
//
//   [sweep]
//   seeds = [1, 2, 3]
//
//   [base]                       settings of every variant; also the first variant
//   preset = "quick"
//   data = "book.txt"
//
//   [one]                        one variant for each value, one change at a time
//   dropout = [0.1, 0.2]
//
//   [grid]                       one variant for each combination
//   lr = [0.001, 0.002]
//   layers = [4, 6]
//
//   [variant.wide]               one variant with these settings
//   dim = 512
//
// A setting is a config key (config/keys.h) or an option of `thimble train` (train_options()).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/builder.h"

namespace thimble {

struct SweepSetting {
  std::string key, value;  // as after --set; for choices and paths without quotes

  bool operator==(const SweepSetting&) const = default;
};

struct SweepVariant {
  std::string name;  // also the name of files
  std::string note = {};
  std::vector<SweepSetting> changes = {};   // compared with the base; for display
  std::vector<SweepSetting> options = {};   // options of `thimble train`, such as preset and data
  std::vector<SweepSetting> settings = {};  // config keys

  std::string changes_text() const;  // "lr=0.02 dropout=0.1"
  // The value of an option, or nullptr.
  const std::string* option(std::string_view name) const;
};

enum class SweepScore { best, last };  // the checkpoint that is compared

struct SweepPlan {
  std::vector<SweepVariant> variants = {};  // the first is the base
  std::vector<std::int64_t> seeds = {};
  SweepScore score = SweepScore::best;
  bool pack = false;
};

// An option of `thimble train` that a sweep can set.
struct SweepOption {
  std::string_view key;   // in the file: "val_data"
  std::string_view flag;  // "val-data"
  bool is_flag = false;   // takes no value
  bool of_data = false;   // determines the tokens of the run
};
std::span<const SweepOption> train_options();

// What the command line changes: settings of the base, and the names of the variants that are kept
// besides the base (empty: all).
struct SweepChanges {
  std::vector<std::string> base = {};  // "steps=100", "data=book.txt"
  std::vector<std::string> variants = {};
};

// Reads the file and checks every variant: unknown keys, values, contradictions, names. Throws an
// Error with the line. Whether data and models exist is not checked.
SweepPlan parse_sweep(std::string_view toml, std::string_view name, const SweepChanges& changes = {});

// The words of `thimble train` for this variant, without data, seed and output.
std::vector<std::string> train_words(const SweepVariant& variant, bool with_data);

}  // namespace thimble
