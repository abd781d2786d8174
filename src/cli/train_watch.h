// Who looks on while `thimble train` trains: the dashboard, TensorBoard's event file, and the report at the end.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "base/file_ops.h"
#include "cli/option.h"

namespace thimble {

class Arguments;
class Console;
class Dashboard;
class TrainObserver;
struct TrainRequest;

std::vector<Option> watch_options();  // --samples, --tensorboard, --dashboard

class TrainWatch {
 public:
  // The dashboard listens from here on, or the command fails before anything was done.
  TrainWatch(const Arguments& arguments, std::filesystem::path run, Console& console);
  ~TrainWatch();
  TrainWatch(const TrainWatch&) = delete;
  TrainWatch& operator=(const TrainWatch&) = delete;

  void attach(TrainRequest& request);
  // After training, however it ended: writes the report and returns its path. One that cannot be written is a warning:
  // the run is worth more. Empty then.
  std::filesystem::path finish();

 private:
  const Arguments& arguments_;
  std::filesystem::path run_;
  Console& console_;
  PosixFileOps disk_;
  std::unique_ptr<Dashboard> dashboard_;
  std::unique_ptr<TrainObserver> tensorboard_;
};

}  // namespace thimble
