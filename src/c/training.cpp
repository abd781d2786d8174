// Commands, files in memory and step-wise training of the C interface (include/thimble.h).
#include <fmt/format.h>
#include <thimble.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "base/signals.h"
#include "base/text.h"
#include "c/call.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "train/reporter.h"

namespace thimble {

namespace {

// Whether a thimble_training has not ended. Commands would compete with it for signal handlers and
// the number of threads.
std::atomic<bool>& is_training() {
  static std::atomic<bool> open = false;
  return open;
}

void check_not_training() {
  if (is_training())
    throw Busy("a run that thimble_train_begin() began has not ended",
               Hint{"call thimble_train_end() first"});
}

std::vector<std::string> list_of(const char* const* words, std::size_t count) {
  expect(words != nullptr || count == 0, "the words are NULL");
  std::vector<std::string> list;
  for (std::size_t i = 0; i < count; ++i) {
    expect(words[i] != nullptr, "a word is NULL");
    list.emplace_back(words[i]);
  }
  return list;
}

Log log_of(const thimble_watch& watch) {
  return Log(LogLevel::info, [watch](LogLevel, std::string_view line) {
    if (watch.log) watch.log(watch.user, line.data(), line.size());
  });
}

// The events of training as JSON.
class EventWriter : public TrainObserver {
 public:
  void step(const StepReport& report) override {
    tell(Json::object()
             .set("event", "step")
             .set("step", report.step)
             .set("train_loss", report.result.loss)
             .set("grad_norm", report.result.grad_norm)
             .set("lr_multiplier", report.multiplier)
             .set("tokens", report.result.tokens)
             .set("seconds", report.seconds));
  }
  void validation(const ValidationReport& report) override {
    tell(Json::object()
             .set("event", "validation")
             .set("step", report.step)
             .set("val_loss", report.score.loss())
             .set("val_bpb", report.score.bytes > 0 ? Json(report.score.bits_per_byte()) : Json())
             .set("best", report.best));
  }
  void saved(std::int64_t step) override { tell(Json::object().set("event", "saved").set("step", step)); }

 private:
  virtual void tell(const Json& event) = 0;
};

// Shows training to a callback, which may end it.
class Watcher final : public EventWriter {
 public:
  explicit Watcher(const thimble_watch& watch) : watch_(watch) {}

 private:
  void tell(const Json& event) override {
    if (!watch_.event) return;
    const std::string text = event.dump();
    if (watch_.event(watch_.user, text.c_str(), text.size()) != 0) Interrupt::request();
  }

  const thimble_watch& watch_;
};

// Settings as a file for --config. A JSON object becomes TOML: their values are written alike.
std::unique_ptr<MemoryFile> settings_file(std::string_view config) {
  if (trim(config).empty()) return nullptr;
  std::string toml(config);
  if (trim(config).starts_with('{')) {
    toml.clear();
    try {
      const Json settings = parse_json(config, "the config");
      for (const auto& [name, value] : settings.as_object())
        toml += fmt::format("{} = {}\n", name, value.dump());
    } catch (const Error& error) {
      throw Invalid(error.what(), Hint{error.hint()});
    }
  }
  return std::make_unique<MemoryFile>("config.toml", toml.data(), toml.size());
}

}  // namespace

}  // namespace thimble

struct thimble_file {
  thimble::MemoryFile file;
};

// A run in a thread of its own, which works only while the caller waits for an event.
struct thimble_training final : private thimble::EventWriter {
  thimble_training(std::vector<std::string> list, std::string_view config, const thimble_watch& watch)
      : words_(std::move(list)),
        config_(thimble::settings_file(config)),
        capture_{.output = {}, .log = thimble::log_of(watch), .observer = this} {
    if (config_) words_.insert(words_.end(), {"--config", config_->path()});
    const thimble::SignalMaskScope held;  // signals go to the caller's threads
    thread_ = std::thread([this] { train(); });
  }
  ~thimble_training() override { stop(); }

  // Continues until there is an event; nullopt: the run has ended.
  std::optional<std::string> next() {
    std::unique_lock lock(mutex_);
    if (events_.empty()) resume(lock);
    if (events_.empty()) return std::nullopt;
    std::string event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

  // Waits for the first event, so that a run that cannot start fails here.
  void start() {
    std::unique_lock lock(mutex_);
    thimble::wait_until_ready(changed_, lock, [&] { return paused_ || ended_; });
    if (ended_ && events_.empty()) check_result();
  }

  void save() {
    std::unique_lock lock(mutex_);
    if (ended_) throw thimble::Invalid("the run has ended, and its state is saved");
    if (is_saved_) return;
    only_saved_ = true;
    thimble::SaveSignal::request();
    resume(lock);
    only_saved_ = false;
    if (ended_) check_result();
  }

  // Ends the run after its state is saved. Returns what it printed.
  std::string stop() {
    {
      std::unique_lock lock(mutex_);
      stopping_ = !ended_;
      if (stopping_) thimble::Interrupt::request();
      resume(lock);
    }
    if (thread_.joinable()) thread_.join();
    return capture_.output;
  }

  void check_result() const {
    if (error_) std::rethrow_exception(error_);
    if (stopping_ && code_ == thimble::kExitInterrupted) return;
    thimble::throw_if_failed(code_, capture_.output);
  }

  std::mutex in_use;

 private:
  void train() {
    {
      thimble::Computing computing;
      computing_ = &computing;
      try {
        code_ = thimble::run_inside(words_, capture_);
      } catch (...) {
        error_ = std::current_exception();
      }
    }
    const std::scoped_lock lock(mutex_);
    ended_ = true;
    thimble::is_training() = false;
    changed_.notify_all();
  }

  // Called by the thread of the run. Waits until the caller wants the next event.
  void tell(const thimble::Json& event) override {
    std::unique_lock lock(mutex_);
    events_.push_back(event.dump());
    is_saved_ = event.at("event").as_string() == "saved";
    if (stopping_) return;
    if (only_saved_ && !is_saved_) return;
    paused_ = true;
    changed_.notify_all();
    computing_->unlock();
    thimble::wait_until_ready(changed_, lock, [&] { return !paused_; });
    lock.unlock();
    computing_->lock();
  }

  void resume(std::unique_lock<std::mutex>& lock) {
    paused_ = false;
    changed_.notify_all();
    thimble::wait_until_ready(changed_, lock, [&] { return paused_ || ended_; });
  }

  std::vector<std::string> words_;
  std::unique_ptr<thimble::MemoryFile> config_;
  thimble::Capture capture_;
  thimble::Computing* computing_ = nullptr;  // of the run's thread
  std::mutex mutex_;                         // of everything below
  std::condition_variable changed_;
  std::deque<std::string> events_;
  bool paused_ = false, ended_ = false, stopping_ = false;
  bool only_saved_ = false;  // continue until a checkpoint is written
  bool is_saved_ = false;    // nothing has been computed since the last one
  int code_ = thimble::kExitFailed;
  std::exception_ptr error_;
  std::thread thread_;
};

namespace thimble {

namespace {

OpenHandles<thimble_file>& files() {
  static auto& files = *new OpenHandles<thimble_file>("file");
  return files;
}
OpenHandles<thimble_training>& trainings() {
  static auto& trainings = *new OpenHandles<thimble_training>("run");
  return trainings;
}

std::unique_lock<std::mutex> lock_of(thimble_training& training) {
  std::unique_lock lock(training.in_use, std::try_to_lock);
  if (!lock) throw Busy("another thread is using this run");
  return lock;
}

}  // namespace

}  // namespace thimble

using namespace thimble;  // NOLINT: the functions below are outside of it, because their names are C's

void thimble_interrupt(void) {
  Interrupt::request();
}

thimble_status thimble_command(const char* const* words, std::size_t count, const thimble_watch* watch,
                               thimble_text* output) {
  return guarded([&] {
    const std::vector<std::string> list = list_of(words, count);
    check_process();
    check_not_training();
    Interrupt::never_exit();
    const thimble_watch watched = watch ? *watch : thimble_watch{};
    Watcher watcher(watched);
    Capture capture{.output = {}, .log = log_of(watched), .observer = watch ? &watcher : nullptr};
    int code = kExitFailed;
    {
      const Computing computing;
      check_not_training();  // it may have begun while this call waited
      code = run_inside(list, capture);
    }
    if (output) *output = returned(capture.output);
    throw_if_failed(code, capture.output);
  });
}

thimble_status thimble_file_open(const char* name, const void* bytes, std::size_t size, thimble_file** file,
                                 thimble_text* path) {
  return guarded([&] {
    expect(file != nullptr, "the place for the file is NULL");
    expect(path != nullptr, "the place for the path is NULL");
    *file = nullptr;
    check_process();
    expect(name != nullptr, "the name is NULL");
    *file = files().add(std::unique_ptr<thimble_file>(new thimble_file{{name, bytes, size}}));
    *path = returned((*file)->file.path());
  });
}

thimble_status thimble_file_close(thimble_file* file) {
  return guarded([&] {
    if (file) files().take(file);
  });
}

thimble_status thimble_train_begin(const char* const* words, std::size_t count, const char* config,
                                   std::size_t config_size, const thimble_watch* watch,
                                   thimble_training** training) {
  return guarded([&] {
    expect(training != nullptr, "the place for the run is NULL");
    *training = nullptr;
    std::vector<std::string> list = list_of(words, count);
    list.insert(list.begin(), {"train", "--json"});
    const std::string_view settings = config ? text_of(config, config_size) : "";
    check_process();
    Interrupt::never_exit();
    {
      const Computing computing;  // waits for a command that is running
      check_not_training();
      is_training() = true;
    }
    std::unique_ptr<thimble_training> begun;
    try {
      begun = std::make_unique<thimble_training>(std::move(list), settings, watch ? *watch : thimble_watch{});
    } catch (...) {
      is_training() = false;
      throw;
    }
    begun->start();
    *training = trainings().add(std::move(begun));
  });
}

thimble_status thimble_train_next(thimble_training* training, thimble_text* event) {
  return guarded([&] {
    thimble_training& of = trainings().at(training);
    expect(event != nullptr, "the place for the event is NULL");
    *event = {"", 0};
    const auto use = lock_of(of);
    std::optional<std::string> next = of.next();
    if (!next) return of.check_result();
    *event = returned(std::move(*next));
  });
}

thimble_status thimble_train_save(thimble_training* training) {
  return guarded([&] {
    thimble_training& of = trainings().at(training);
    const auto use = lock_of(of);
    of.save();
  });
}

thimble_status thimble_train_end(thimble_training* training, thimble_text* result) {
  return guarded([&] {
    if (!training) return;
    { const auto use = lock_of(trainings().at(training)); }
    const std::unique_ptr<thimble_training> ended = trainings().take(training);
    std::string printed = ended->stop();
    if (result) *result = returned(std::move(printed));
    ended->check_result();
  });
}
