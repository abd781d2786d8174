#include "cli/train_watch.h"

#include <fmt/format.h>

#include <chrono>
#include <exception>

#include "cli/console.h"
#include "cli/parse.h"
#include "report/dashboard.h"
#include "report/report.h"
#include "report/tensorboard.h"
#include "train/loop.h"

namespace thimble {

namespace {

constexpr std::int64_t kMostSamples = 16;

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::vector<Option> watch_options() {
  return {{.name = "samples",
           .value = "N",
           .initial = "2",
           .help = "texts that the model says at each validation, for the report; 0: none"},
          {.name = "tensorboard", .help = "also write an event file for TensorBoard into RUN"},
          {.name = "dashboard",
           .value = "PORT",
           .help = "show the report while training, at http://127.0.0.1:PORT; 0: any free port"}};
}

TrainWatch::TrainWatch(const Arguments& arguments, std::filesystem::path run, Console& console)
    : arguments_(arguments), run_(std::move(run)), console_(console) {
  if (!arguments.given("dashboard")) return;
  dashboard_ = std::make_unique<Dashboard>(
      run_, static_cast<int>(arguments.integer("dashboard", {.least = 0, .most = 65535})));
  console_.tell(fmt::format("dashboard: {}", dashboard_->address()));
}

TrainWatch::~TrainWatch() = default;

void TrainWatch::attach(TrainRequest& request) {
  request.samples = arguments_.integer("samples", {.least = 0, .most = kMostSamples});
  if (!arguments_.flag("tensorboard")) return;
  tensorboard_ = std::make_unique<TensorBoardWriter>(disk_, run_, request.config.train, seconds_since_1970);
  request.observer = tensorboard_.get();
}

std::filesystem::path TrainWatch::finish() {
  std::filesystem::path report;
  try {
    report = write_report(disk_, run_);
  } catch (const std::exception& error) {  // whatever it is: the training is done and kept
    console_.log().warning("no report: {}", error.what());
  }
  if (dashboard_) dashboard_->end();
  return report;
}

}  // namespace thimble
