// What `thimble pack` prints: the account of a packed model, as JSON or as tables.
#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "eval/score.h"
#include "formats/pack_search.h"

namespace thimble {

// Bits per byte before and after, measured in the same way.
struct PackMeasurement {
  ScoreOptions options;
  DType dtype = DType::f32;
  Score before = {}, after = {};
};

struct PackAccount {
  const PackReport& report;
  std::string trained_with = {};   // empty: nobody knows
  std::string calibrated_on = {};  // empty: no GPTQ
  std::optional<PackMeasurement> measured = {};
  const SearchResult* search = nullptr;
};

Json as_json(const PackAccount& account);
std::string as_text(const PackAccount& account);

}  // namespace thimble
