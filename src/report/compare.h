// Compares runs: which settings differ, the results, and whether differences are significant.
//
// Runs form a group if they differ only in the seed and in settings that cannot change the result
// (micro_batch, keep, checkpoint_every, checkpoint_activations). Within a group, runs with the same
// seed count once. Each group is compared with the first one by Welch's t-test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "report/run_data.h"
#include "report/statistics.h"

namespace thimble {

struct ComparedRun {
  std::string name;
  RecordedStatus status;
  std::size_t group = 0;
  std::int64_t seed = 0, steps = 0, parameters = 0;
  double val_bpb = 0, val_loss = 0, train_loss = 0;  // final values; NaN: unknown
  double tokens_per_second = 0;
  std::vector<std::string> commands = {};
  std::uint64_t checkpoint_bytes = 0, artifact_bytes = 0;  // 0: no such file
};

struct RunGroup {
  std::string name;  // "A", "B", ...
  std::vector<std::size_t> runs = {};
  std::size_t seeds = 0;  // number of distinct seeds
  SampleMoments val_bpb = {}, val_loss = {}, train_loss = {},
                tokens_per_second = {};  // over the seeds that have the metric
};

struct SettingDifference {
  std::string key;
  std::vector<std::string> values = {};  // one per group
};

struct GroupTest {
  std::size_t group = 0;           // compared with the first group
  std::string figure;              // "val_bpb", or "val_loss" if there are no bits per byte
  std::optional<WelchTest> welch;  // nullopt: a group has fewer than two seeds
  double difference = 0;           // of the means
};

struct Comparison {
  std::vector<ComparedRun> runs;
  std::vector<RunGroup> groups;
  std::vector<SettingDifference> differences;
  std::vector<GroupTest> tests;
  std::vector<std::string> warnings;
};

// Needs at least one run.
Comparison compare_runs(std::span<const RunData> runs);

// Tables no wider than `width` columns; 0: no limit.
std::string comparison_text(const Comparison& comparison, std::size_t width = 0);
// Tables of final values, of settings that differ, and of command lines, with a column per run.
std::string comparison_html(const Comparison& comparison);
Json comparison_json(const Comparison& comparison);

}  // namespace thimble
