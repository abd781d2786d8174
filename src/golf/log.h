// The log of a golf run: every line on the console and at the end of OUT_DIR/RUN_ID.txt, as theirs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_ops.h"
#include "eval/score.h"
#include "formats/int8_state.h"
#include "golf/environment.h"
#include "model/params.h"
#include "tensor/tensor.h"
#include "train/reporter.h"

namespace thimble {

class GolfLog {
 public:
  using Print = std::function<void(std::string_view line)>;

  // Opens the file, and prints its path first of all. What is in it already stays.
  GolfLog(FileOps& ops, const std::filesystem::path& file, Print print);
  ~GolfLog();
  GolfLog(const GolfLog&) = delete;
  GolfLog& operator=(const GolfLog&) = delete;

  void line(std::string_view text);       // to both
  void file_only(std::string_view text);  // a disk that is full is an Error

 private:
  FileOps& ops_;
  FileHandle file_;
  Print print_;
};

// The lines of the log, as train_gpt_mlx.py and train_gpt.py print them: programs that read theirs read these.
// What the lines at the start say of the data.
struct GolfData {
  std::string name;  // of its folder
  std::uint64_t train_shards = 0;
  std::optional<std::uint64_t> published_shards = std::nullopt;  // how many a manifest counts
  std::int64_t val_tokens = 0;                                   // that are scored
};

std::vector<std::string> opening_lines(const GolfSettings& golf, const GolfData& data,
                                       const ParamTable& table, DType compute);

std::string score_text(const Score& score);        // "val_loss:2.1234 val_bpb:1.2345"
std::string exact_score_text(const Score& score);  // the same with 8 digits

std::string raw_model_line(const GolfSettings& golf, std::uint64_t bytes);
std::string int8_line(const GolfSettings& golf, std::uint64_t bytes, std::uint64_t raw_bytes,
                      const Int8Stats& stats);

// Writes the lines of training as it goes.
class GolfLines final : public TrainObserver {
 public:
  GolfLines(const GolfSettings& golf, const GolfData& data, GolfLog& log)
      : golf_(golf), data_(data), log_(log) {}

  void primed(std::int64_t step, std::int64_t of) override;
  void step(const StepReport& report) override;
  void validating(std::int64_t tokens_scored) override;
  void validation(const ValidationReport& report) override;

  std::string stopping_early(std::int64_t step) const;
  void begin_validation() { batches_ = 0; }  // of another model

 private:
  std::string place(std::int64_t step) const;  // "step:3/20000"
  std::string times(std::int64_t step) const;  // "train_time:1234ms step_avg:411.33ms"
  void warn_of_epochs(const ReadPosition& position);

  const GolfSettings& golf_;
  const GolfData& data_;
  GolfLog& log_;
  double milliseconds_ = 0;   // of steps
  std::int64_t batches_ = 0;  // of the validation that runs
  std::uint64_t epochs_ = 1;  // that were begun
};

}  // namespace thimble
