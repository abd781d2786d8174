// metrics.jsonl, read: whole lines one after the other, in bounded memory however many millions there are.
//
//   MetricsReader reader(run / "metrics.jsonl");
//   while (reader.next())
//     if (const StepLine* step = reader.step_line()) ... else reader.event() ...
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/files.h"
#include "base/json.h"

namespace thimble {

// A step as the reporter writes it: nearly every line of a file.
struct StepLine {
  std::int64_t step = 0;
  double loss = 0;
  std::int64_t targets = 0;
  std::uint64_t bytes = 0;
  double multiplier = 0, grad_norm = 0;
  bool clipped = false;
  double seconds = 0, input_seconds = 0;
};

// Takes a tenth of parse_json's time, which is what a run of millions of steps is made of. Nothing where the line is not
// laid out just so: it may still be a step, and parse_json says what it is.
std::optional<StepLine> step_in(std::string_view line);

class MetricsReader {
 public:
  struct Place {
    std::uint64_t offset = 0;  // bytes
    std::uint64_t lines = 0;
  };

  explicit MetricsReader(const std::filesystem::path& path) : MetricsReader(path, Place{}) {}
  MetricsReader(const std::filesystem::path& path, Place from);  // `from`: a place() of before

  // False: there is no further line, or none that is whole yet.
  bool next();
  const StepLine* step_line() const { return step_line_ ? &*step_line_ : nullptr; }
  Json event() const;         // the line as JSON; an Error, with the line's number, where it is none
  std::int64_t step() const;  // that the line belongs to; the same Error
  Place place() const { return place_; }  // behind the line

 private:
  void read_more();

  InputFile file_;
  std::string buffer_;  // of the file, from `line_start_` on not yet handed out
  std::size_t line_start_ = 0, line_size_ = 0;
  std::uint64_t read_to_ = 0;  // of the file
  Place place_;
  std::optional<StepLine> step_line_;
  bool endless_ = false;  // longer than any line of ours
};

}  // namespace thimble
