// What `train --dry-run` prints: the resolved settings and what they cost.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "model/config_builder.h"
#include "model/summary.h"

namespace thimble {

struct DryRun {
  const ConfigBuilder& settings;  // where each key came from
  Config config;                  // resolved
  Summary summary;
  std::vector<std::string> derivations;  // of --depth
  Device device = Device::cpu;           // where the memory is planned
  std::int64_t available_bytes = 0;      // there; 0: not known
};

std::string as_text(const DryRun& run);
Json as_json(const DryRun& run);

}  // namespace thimble
