// results.jsonl of a sweep: one line for each run. The file is also the lock of the sweep's folder.
//
// records/ablation.jsonl, written by an earlier version, has the same layout with fewer members.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/file_ops.h"
#include "base/json.h"
#include "base/log.h"
#include "eval/score.h"

namespace thimble {

// The figures of a line that the report uses. NaN: unknown.
struct SweepResult {
  std::string variant, settings, device;
  std::filesystem::path run;          // its folder
  std::string digest;                 // of its settings; empty: unknown
  std::string status;                 // name_of(RunStatus), or "failed": the run ended with an error
  std::string score;                  // "best" or "last": the checkpoint that is compared
  std::filesystem::path scores = {};  // file of the scores of each document; empty: none
  std::int64_t seed = 0, steps = 0, batch_tokens = 0;
  double val_bpb = 0, val_loss = 0, best_bpb = 0, best_loss = 0;
  double unpacked_bpb = 0, packed_bpb = 0, bytes = 0;
  double tokens_per_second = 0;
  bool base = false;
  Json line = {};

  bool finished() const;
  // Of the checkpoint that is compared.
  double bits_per_byte() const { return score == "best" ? best_bpb : val_bpb; }
  double loss() const { return score == "best" ? best_loss : val_loss; }
};

// The names of the status of a run without a result.
inline constexpr std::string_view kFailed = "failed";

// Throws Error if a member is missing. Paths in the line are relative to `folder`.
SweepResult sweep_result(const Json& line, const std::filesystem::path& folder);

// The results of files, or of results.jsonl in folders. Runs with the same variant, seed, settings,
// steps and device count once: the last line wins, unless only an earlier one has been packed. An
// incomplete last line is left out with a warning; any other damaged line is an error.
std::vector<SweepResult> read_results(std::span<const std::filesystem::path> paths, const Log& log);

// The results of one folder, open for appending.
class ResultsFile {
 public:
  // Throws Error if another process has the file open. Removes an incomplete last line.
  ResultsFile(FileOps& ops, const std::filesystem::path& folder, const Log& log);
  ~ResultsFile();
  ResultsFile(const ResultsFile&) = delete;
  ResultsFile& operator=(const ResultsFile&) = delete;

  const std::vector<SweepResult>& results() const { return results_; }
  const SweepResult& add(const Json& line);  // valid until the next call

 private:
  FileOps& ops_;
  std::filesystem::path folder_;
  FileHandle file_;
  std::vector<SweepResult> results_;
};

// A line of a file that `thimble eval --scores` writes.
struct ScoredPart {
  bool is_document = false;  // false: a block of text
  std::size_t index = 0;
  Score score = {};
};
std::vector<ScoredPart> read_scores(const std::filesystem::path& path);

}  // namespace thimble
