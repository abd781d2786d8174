// Runs side by side: which settings differ, what came of it, and whether that was luck.
//
// Runs whose settings differ in nothing but the seed (and in what cannot change the result: micro_batch, keep,
// checkpoint_every, checkpoint_activations) are a group; runs of it with the same seed count once. Groups are compared with the first one by Welch's t-test.
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

namespace thimble {

// Is one group of runs better than another, or was it luck? Means, deviations and Welch's t-test.
//
//   t  = (mean b - mean a) / sqrt(va / na + vb / nb)                    v: variance of a sample, n - 1 below
//   df = (va / na + vb / nb)^2 / ((va / na)^2 / (na - 1) + (vb / nb)^2 / (nb - 1))       Welch-Satterthwaite
//   p  = P(|T| >= |t|) = I_x(df / 2, 1 / 2),  x = df / (df + t^2)       I: regularised incomplete beta function
struct SampleMoments {
  std::size_t n = 0;
  double mean = 0;
  double deviation = 0;  // of the sample; 0 for fewer than two
};
SampleMoments moments_of(std::span<const double> values);

// I_x(a, b), a and b above 0, x in [0, 1]: to about 1e-12.
double incomplete_beta(double a, double b, double x);

double student_t_two_sided(double t, double degrees);           // P(|T| >= |t|)
double student_t_quantile(double probability, double degrees);  // t with P(T <= t) = probability; in (0, 1)

struct WelchTest {
  double difference = 0;      // mean of b minus mean of a
  double low = 0, high = 0;   // 95 % confidence interval of the difference
  double t = 0, degrees = 0;  // infinite and 1 where neither group varies but they differ
  double p = 1;               // two-sided
};

// Nothing where a group has fewer than two values.
std::optional<WelchTest> welch_test(std::span<const double> a, std::span<const double> b);

struct ComparedRun {
  std::string name;
  RecordedStatus status;
  std::size_t group = 0;
  std::int64_t seed = 0, steps = 0, parameters = 0;
  double val_bpb = 0, val_loss = 0, train_loss = 0;  // at the end; NaN: not known
  double tokens_per_second = 0;
  std::uint64_t checkpoint_bytes = 0, artifact_bytes = 0;  // 0: there is none
};

struct RunGroup {
  std::string name;  // "A", "B", ...
  std::vector<std::size_t> runs = {};
  std::size_t seeds = 0;  // that differ
  SampleMoments val_bpb = {}, val_loss = {}, train_loss = {},
                tokens_per_second = {};  // of the seeds that have the figure
};

struct SettingDifference {
  std::string key;
  std::vector<std::string> values = {};  // of each group
};

struct GroupTest {
  std::size_t group = 0;           // against the first
  std::string figure;              // "val_bpb", or "val_loss" where there are no bytes
  std::optional<WelchTest> welch;  // nothing: a group has fewer than two seeds
  double difference = 0;           // of the means
};

struct Comparison {
  std::vector<ComparedRun> runs;
  std::vector<RunGroup> groups;
  std::vector<SettingDifference> differences;
  std::vector<GroupTest> tests;
  std::vector<std::string> warnings;
};

// At least one run.
Comparison compare_runs(std::span<const RunData> runs);

// Tables no wider than `width` columns; 0: no limit.
std::string comparison_text(const Comparison& comparison, std::size_t width = 0);
Json comparison_json(const Comparison& comparison);

}  // namespace thimble
