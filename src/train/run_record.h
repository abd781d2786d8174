// run.json: when, where and with what a run was made, one entry per call of `train`. All that must not be in a
// checkpoint, because it differs between equal runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/json.h"

namespace thimble {

struct RunCall {
  std::string started, finished;  // UTC, as 2026-11-15T14:30:00Z
  std::int64_t first_step = 0, last_step = 0;
  std::string status;
  double seconds = 0;  // of steps
  double tokens_per_second = 0;
};

std::string utc_now();

// What differs between this machine and the one of the last call in `path`, where it changes the last bits of results:
// threads and the CPU level. Empty: nothing, or there is no such record.
std::string machine_note(const std::filesystem::path& path);

// The record of earlier calls in `path`, if there is one that can be read, and of this one behind them.
Json run_record(const std::filesystem::path& path, const RunCall& call);

}  // namespace thimble
