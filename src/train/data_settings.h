// Which text a run reads, kept in RUN/data.json so that `train --resume RUN` needs no other word.
#pragma once

#include <filesystem>
#include <string>

#include "data/token_data.h"

namespace thimble {

struct DataSettings {
  std::filesystem::path data, val_data;  // val_data empty: the end of `data`
  double val_fraction = 0.1;
  ReadOrder order = ReadOrder::shuffled;

  std::string to_json() const;
  static DataSettings from_json(const std::string& text, std::string_view name);
};

}  // namespace thimble
