// The log of a golf run: every line is printed and appended to OUT_DIR/RUN_ID.txt, as in the
// scripts.
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

  // Opens the file for appending and prints its path.
  GolfLog(FileOps& ops, const std::filesystem::path& file, Print print);
  ~GolfLog();
  GolfLog(const GolfLog&) = delete;
  GolfLog& operator=(const GolfLog&) = delete;

  void line(std::string_view text);       // to the console and the file
  void file_only(std::string_view text);  // throws Error if it cannot write, for example on a full disk

 private:
  FileOps& ops_;
  FileHandle file_;
  Print print_;
};

// The log lines have the exact format of train_gpt_mlx.py and train_gpt.py, so programs that parse
// those logs work unchanged.

// Facts about the data that the opening lines print.
struct GolfData {
  std::string name;  // name of the data folder
  std::uint64_t train_shards = 0;
  std::optional<std::uint64_t> published_shards = std::nullopt;  // number of shards in the manifest
  std::int64_t val_tokens = 0;                                   // number of scored tokens
};

std::vector<std::string> opening_lines(const GolfSettings& golf, const GolfData& data,
                                       const ParamTable& table, DType compute);

std::string score_text(const Score& score);        // "val_loss:2.1234 val_bpb:1.2345"
std::string exact_score_text(const Score& score);  // the same with 8 digits

std::string raw_model_line(const GolfSettings& golf, std::uint64_t bytes);
std::string int8_line(const GolfSettings& golf, std::uint64_t bytes, std::uint64_t raw_bytes,
                      const Int8Stats& stats);

// Writes the log lines during training.
class GolfLines final : public TrainObserver {
 public:
  GolfLines(const GolfSettings& golf, const GolfData& data, GolfLog& log)
      : golf_(golf), data_(data), log_(log) {}

  void primed(std::int64_t step, std::int64_t of) override;
  void step(const StepReport& report) override;
  void validating(std::int64_t tokens_scored) override;
  void validation(const ValidationReport& report) override;

  // Continues after earlier steps, which took this long.
  void resume(const ReadPosition& position, double seconds);
  std::string stopping_early(std::int64_t step) const;
  void begin_validation() { batches_ = 0; }  // call before validating

 private:
  std::string step_label(std::int64_t step) const;  // "step:3/20000"
  std::string times(std::int64_t step) const;       // "train_time:1234ms step_avg:411.33ms"
  void warn_of_epochs(const ReadPosition& position);

  const GolfSettings& golf_;
  const GolfData& data_;
  GolfLog& log_;
  double milliseconds_ = 0;   // time spent in steps
  std::int64_t batches_ = 0;  // completed batches of the current validation
  std::uint64_t epochs_ = 1;  // epochs started
};

}  // namespace thimble
