// Writes TensorBoard event files for `thimble train --tensorboard`, in the run's folder.
//
//   record   u64 length, u32 masked CRC-32C of the length, the bytes, u32 masked CRC-32C of the
//            bytes; little-endian
//   bytes    a protobuf message:
//            Event { double wall_time = 1; int64 step = 2; string file_version = 3;
//                    Summary summary = 5; SessionLog session_log = 7; }
//            Summary { repeated Value value = 1; }
//            Value { string tag = 1; float simple_value = 2; }
//            SessionLog { SessionStatus status = 1; }   (1: START)
//
// The first record contains file_version "brain.Event:2". A resumed run writes a second file that
// begins with START; TensorBoard then discards later steps of the first file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file_ops.h"
#include "config/config.h"
#include "train/reporter.h"

namespace thimble {

std::string event_record(std::string_view event);  // adds length and checksums
std::string file_version_event(double wall_time);
std::string session_start_event(double wall_time, std::int64_t step);
std::string scalars_event(double wall_time, std::int64_t step,
                          const std::vector<std::pair<std::string_view, double>>& scalars);

// Writes the events of a run. The file is created with the first event, when the run's folder
// exists.
class TensorBoardWriter : public TrainObserver {
 public:
  // `now` returns seconds since 1970; tests pass a fake clock.
  TensorBoardWriter(FileOps& ops, std::filesystem::path run, const OptimizerConfig& config,
                    std::function<double()> now);
  ~TensorBoardWriter() override;
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  void step(const StepReport& report) override;
  void validation(const ValidationReport& report) override;

 private:
  void add(std::int64_t step, const std::vector<std::pair<std::string_view, double>>& scalars);
  void open(std::int64_t step);
  void write(std::string_view record);

  FileOps& ops_;
  std::filesystem::path run_;
  double matrix_rate_;
  std::function<double()> now_;
  std::optional<FileHandle> file_;
};

// CRC-32C (Castagnoli; RFC 3720, appendix B.4): the checksum of TensorFlow's record files.
std::uint32_t crc32c(std::string_view bytes);

// The form stored in record files: rotated and offset, because the CRC of data that contains CRCs
// is weak.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace thimble
