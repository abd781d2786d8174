// Which data a run reads and how, kept in RUN/data.json so that `train --resume RUN` needs no other word.
#pragma once

#include <filesystem>
#include <string>

#include "data/manifest.h"
#include "data/read_order.h"

namespace thimble {

class Communicator;
struct Config;
struct LoaderSettings;

struct DataSettings {
  std::filesystem::path data = {};      // text, chats, or a folder of shards
  std::filesystem::path val_data = {};  // empty: a part of `data`
  double val_fraction = 0.1;            // how much of it, where it is no folder of shards
  DataKind kind = DataKind::text;       // the same
  ReadOrder order = ReadOrder::shuffled;
  std::int64_t sub_batch_tokens = 8192;  // golf-mlx: MLX_MAX_MICROBATCH_TOKENS

  std::string to_json() const;
  static DataSettings from_json(const std::string& text, std::string_view name);
};

// How a loader hands out the rows of a run that is settled.
LoaderSettings loader_settings(const Config& config, const DataSettings& source, const Communicator& ranks);

}  // namespace thimble
