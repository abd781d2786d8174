#include "train/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"
#include "base/file_ops.h"
#include "base/machine.h"
#include "base/table.h"
#include "base/text.h"
#include "config/toml.h"
#include "data/describe.h"
#include "data/loader.h"
#include "dist/communicator.h"
#include "model/model.h"
#include "ops/sums.h"
#include "optim/rate_schedule.h"
#include "tokenizer/chat_layout.h"
#include "train/checkpoint.h"
#include "train/initial_weights.h"
#include "train/metrics.h"
#include "train/ranks.h"
#include "train/reporter.h"
#include "train/run_cost.h"
#include "train/run_folder.h"
#include "train/start.h"
#include "train/step_bench.h"
#include "train/step_runner.h"
#include "train/train_data.h"
#include "train/validation.h"

namespace thimble {

namespace {

constexpr std::int64_t kPeakRows = 2048;  // of the products that are timed at the start
constexpr int kPeakRepeats = 3;
constexpr std::int64_t kSizesEvery = 25;  // steps from one measurement of the updates to the next

// What a call is given and does not change.
struct Surroundings {
  const TrainRequest& request;
  const Config& config;  // settled
  const TrainData& data;
  const Log& log;
  ProgressOutput progress;
  const Interrupt& interrupt;
  const SaveSignal* save_now;
  FileOps& ops;
  RunFolder& folder;
  MetricsFile& metrics;
};

class Trainer {
 public:
  explicit Trainer(const Surroundings& around)
      : around_(around),
        ranks_(*around.request.ranks),
        observer_(around.request.observer),
        context_(around.request.device, around.log),
        config_(around.config),
        model_(config_.model, context_, compute_dtype(config_.train.dtype, context_.device())),
        optimizer_(model_.params(), config_.optimizer, context_, around.request.rules),
        averaging_(config_.train, model_.params().block_size()),
        loader_(around.data.train, loader_settings(config_, around.request.source, ranks_), config_.model),
        bytes_(*around.request.tokenizer, static_cast<TokenId>(config_.model.vocab_size)),
        steps_(make_step_runner(
            {config_, context_, model_, optimizer_, loader_, bytes_, ranks_, around.request.gpus.get()})) {
    state_.data_digest = around.data.digest();
    if (around.data.kind == DataKind::chat) state_.layout = kRolesLayout;
    around.request.resume ? restore() : begin();
  }

  // What must be alike on all ranks.
  void compare() {
    check_same_start(ranks_,
                     {.config = to_toml(config_),
                      .data_digest = state_.data_digest,
                      .tokenizer_digest = around_.request.tokenizer->digest().hex(),
                      .device = context_.device() == Device::cuda ? "cuda" : "cpu",
                      .step = state_.step},
                     model_.weights());
  }

  // The run's folder is changed only when all ranks are ready to go; and by the first alone: the others would read the
  // metrics while it cuts them.
  void take_folder() {
    if (!ranks_.first()) return;
    around_.request.resume ? restore_folder() : begin_folder();
  }

  // A card or a disk that fails takes the steps since the last checkpoint, and no more: that is said.
  TrainResult run() {
    try {
      return run_steps();
    } catch (const Error&) {
      const bool is_over = status_ && saved_step_ == state_.step;
      if (saved_step_ >= 0 && !is_over)
        around_.log.warning(
            "failed at step {}; what was saved at step {} is whole: thimble train --resume {}", state_.step,
            saved_step_, shell_word(around_.folder.path().string()));
      throw;
    }
  }

 private:
  TrainResult run_steps() {
    const double started = seconds_now();
    call_.started = utc_now();
    call_.first_step = state_.step;
    around_.folder.write_text("config.toml", to_toml(config_));
    around_.folder.write_text("data.json", around_.request.source.to_json());
    around_.folder.write_text(around_.request.tokenizer->file_name(),
                              around_.request.tokenizer->serialized());
    {
      Reporter reporter(config_, around_.log, around_.progress, around_.metrics, std::move(history_));
      report_ = &reporter;
      if (around_.progress.enabled && context_.device() == Device::cpu) measure_peak();
      prime();
      first_validation();
      while (!status_) step();
      finish(seconds_now() - started);
    }
    return result_;
  }

  void begin() {
    if (around_.request.initial_weights.empty()) {
      initialise(model_.params(), static_cast<std::uint64_t>(config_.train.seed), model_.weights());
    } else {
      check(around_.request.initial_weights.size() == model_.weights().size(),
            "[train] {} initial weights for {} parameters", around_.request.initial_weights.size(),
            model_.weights().size());
      check_finite(model_.params(), around_.request.initial_weights);
      std::ranges::copy(around_.request.initial_weights, model_.weights().begin());
    }
    model_.weights_changed();
    model_.set_loop(loop_has_begun());
    averaging_.begin(model_.weights());
    state_.averaged = averaging_.count();
    state_.began_trained = !around_.request.initial_weights.empty();
  }

  // Takes away what an older run left.
  void begin_folder() {
    around_.folder.clear();
    around_.metrics.keep_until(-1);
    const DataFacts facts{.documents = around_.data.documents,
                          .tokens = loader_.tokens_per_epoch(),
                          .bytes = bytes_per_epoch(),
                          .tokens_to_see = tokens_to_see(),
                          .parameters = static_cast<std::uint64_t>(model_.params().count())};
    around_.log.info("{}\n{}", around_.folder.path().string(), data_table(facts));
    if (const std::string with = recipe(config_); !with.empty()) around_.log.info("with {}", with);
    const ComputeDType wanted = around_.request.config.train.dtype;
    if (const std::string notice = dtype_notice(wanted, context_.device(), cpu_features()); !notice.empty())
      around_.log.info("{}", notice);
    if (const std::string warning = data_warning(facts); !warning.empty()) around_.log.warning("{}", warning);
    if (!around_.data.val)
      around_.log.warning("there is no validation data: no checkpoint is the best{}",
                          config_.train.patience > 0 ? ", and patience never ends the run" : "");
    write_start(facts);
  }

  // For the report: what only the loop knows of the data.
  void write_start(const DataFacts& facts) {
    around_.metrics.add(Json::object()
                            .set("event", "start")
                            .set("step", 0)
                            .set("parameters", facts.parameters)
                            .set("train_documents", facts.documents)
                            .set("train_tokens", facts.tokens)
                            .set("train_bytes", facts.bytes)
                            .set("val_tokens", around_.data.val ? around_.data.val->size() : 0));
  }

  // Of the tokens that are read: a rest that fills no row is not.
  std::uint64_t bytes_per_epoch() const {
    const double share =
        static_cast<double>(loader_.tokens_per_epoch()) / static_cast<double>(around_.data.train.size());
    return static_cast<std::uint64_t>(std::llround(static_cast<double>(around_.data.bytes) * share));
  }

  // Padding is not seen. 0: the time decides.
  std::uint64_t tokens_to_see() const {
    if (config_.train.max_seconds > 0) return 0;
    const double places =
        static_cast<double>(config_.train.steps) * static_cast<double>(config_.train.batch_tokens);
    return static_cast<std::uint64_t>(std::round(places * (1 - loader_.padding())));
  }

  void restore() {
    const SafetensorsFile file = SafetensorsFile::open(around_.folder.newest());
    const CheckpointHead head = read_checkpoint_head(file);
    for (const std::string& change : check_changes(head.config, config_, around_.request.force))
      around_.log.info("{}", change);
    check(head.state.data_digest == state_.data_digest,
          Hint{"give the same --data and --val-data as before; --init starts a new run on other data"},
          "the data is not that of the run in {}", around_.folder.path().string());
    refuse_if_complete(head.state);
    restore_checkpoint(file, head.state, {model_, optimizer_, averaging_});
    model_.set_loop(head.config.model.loop_on);  // as it was: a validation that is due comes first
    steps_->send();
    state_ = head.state;
    saved_step_ = state_.step;
    loader_.seek(state_.position);
    around_.log.info("{}", resume_note(config_.train, state_));
    if (context_.device() == Device::cpu) {
      const std::string machine = machine_note(around_.folder.path() / "run.json");
      if (!machine.empty()) around_.log.info("{}", machine);
    }
    const std::string note = schedule_note(head.config.train, config_.train, state_);
    if (note.empty()) return;
    around_.log.info("{}", note);
    if (averaging_.begin_anew(multiplier())) around_.log.info("the average of the weights begins anew");
    state_.averaged = averaging_.count();
  }

  // No run will go on here: what a killed writer left goes now.
  void refuse_if_complete(const TrainState& state) {
    try {
      check_unfinished(config_.train, state, around_.folder.path().string());
    } catch (const Error&) {
      around_.folder.tidy(state.step);
      throw;
    }
  }

  // Takes away what came after the checkpoint.
  void restore_folder() {
    around_.folder.tidy(state_.step);
    around_.metrics.keep_until(state_.step, !state_.validation_due);
    history_ = read_history(around_.folder.metrics());
  }

  // Step 0 is validated, too; and what was interrupted is done again, so that the run goes on as if nothing had
  // happened.
  void first_validation() {
    if (status_) return;
    if (state_.validation_due) return close_step(true);
    if (!begins_with_validation()) return;
    const bool best = validate();
    if (state_.validation_due) status_ = RunStatus::interrupted;  // --resume begins with it
    if (best || state_.validation_due) save(best);
  }

  bool begins_with_validation() const {
    return !around_.request.resume && around_.request.validate_first && around_.data.val;
  }

  // What the matrix products of this model reach here with nothing around them.
  void measure_peak() {
    const std::int64_t rows = std::min(kPeakRows, config_.train.micro_batch * config_.model.context);
    const auto shapes = products_of(config_.model);
    const double seconds = cpu::seconds_of_products(context_, shapes, rows, model_.dtype(), kPeakRepeats);
    report_->set_peak(summarise(config_).training_flops_per_token, flops_of_products(shapes, rows) / seconds);
  }

  void prime() {
    const bool loop_on = model_.config().loop_on;
    for (std::int64_t i = 0; i < config_.train.prime_steps && !status_; ++i) {
      model_.set_loop(loop_on || i % 2 == 1);  // what comes later is made ready, too
      steps_->prime(qat_bits());
      model_.set_loop(loop_on);
      if (observer_) observer_->primed(i + 1, config_.train.prime_steps);
      if (!wishes().stop) continue;
      if (begins_with_validation()) state_.validation_due = true;
      close_step(false);
    }
  }

  void step() {
    come_to_the_loop();
    const double started = around_.request.clock();
    StepReport report;
    report.multiplier = multiplier();
    report.qat_bits = qat_bits();
    // A card does not measure its updates.
    if ((state_.step + 1) % kSizesEvery == 0 && context_.device() == Device::cpu) report.sizes.emplace();
    report.result = steps_->run({.step = state_.step,
                                 .multiplier = report.multiplier,
                                 .qat_bits = report.qat_bits,
                                 .sizes = report.sizes ? &*report.sizes : nullptr});
    if (!report.result.updated && !report.result.skipped)
      return diverge(state_.step + 1,
                     fmt::format("loss {}, gradient norm {}", report.result.loss, report.result.grad_norm));
    report.clipped = report.result.updated && config_.optimizer.clip > 0 &&
                     report.result.grad_norm > config_.optimizer.clip;
    advance(report, started);
    const bool wanted = config_.train.val_every > 0 && state_.step % config_.train.val_every == 0;
    close_step(wanted || done() || out_of_time());
  }

  void advance(StepReport& report, double started) {
    ++state_.step;
    if (averaging_.counts(state_.step, report.multiplier)) steps_->fetch_weights();
    averaging_.add(state_.step, report.multiplier, model_.weights());
    state_.averaged = averaging_.count();
    state_.tokens += report.result.tokens;
    state_.position = loader_.position();
    report.seconds = around_.request.clock() - started;
    if (config_.train.max_seconds > 0) {
      report.seconds = longest(ranks_, report.seconds);
      state_.elapsed_seconds += report.seconds;
    } else {
      ++state_.untimed_steps;
    }
    report.step = state_.step;
    report.elapsed_seconds = state_.elapsed_seconds;
    report.untimed_steps = state_.untimed_steps;
    report.position = state_.position;
    report_->step(report);
    if (observer_) observer_->step(report);
  }

  double multiplier() const {
    return rate_multiplier(config_.train, state_.step, state_.elapsed_seconds, state_.untimed_steps);
  }

  int qat_bits() const {
    const bool begun = has_begun(config_.train.qat_start, config_.train, state_.step, state_.elapsed_seconds);
    return begun ? static_cast<int>(config_.train.qat_bits) : 0;
  }

  bool loop_has_begun() const {
    return config_.model.loop_count == 0 ||
           has_begun(config_.train.loop_start, config_.train, state_.step, state_.elapsed_seconds);
  }

  // Between two steps, and on all ranks at the same: steps and time are theirs together.
  void come_to_the_loop() {
    const ModelConfig& m = config_.model;
    if (model_.config().loop_on || !loop_has_begun()) return;
    model_.set_loop(true);
    report_->note(fmt::format("step {}: from here on layers {} to {} are gone through {} times",
                              state_.step + 1, m.loop_first, m.loop_last, m.loop_count + 1));
  }

  bool done() const { return config_.train.steps > 0 && state_.step >= config_.train.steps; }
  bool out_of_time() const {
    return config_.train.max_seconds > 0 && state_.elapsed_seconds >= config_.train.max_seconds;
  }

  // What follows an update: validation, the end of the run, a checkpoint.
  void close_step(bool with_validation) {
    const bool improved = with_validation && validate();
    if (status_ == RunStatus::diverged) return;
    const std::int64_t made = state_.step - call_.first_step;
    const StopRequest asked = wishes();
    if (state_.validation_due || (asked.stop && !done()))
      status_ = RunStatus::interrupted;
    else if (done())
      status_ = RunStatus::completed;
    else if (out_of_time())
      status_ = RunStatus::wallclock;
    else if (with_validation && out_of_patience(config_.train, state_))
      status_ = RunStatus::early_stop;
    else if (around_.request.stop_after > 0 && made >= around_.request.stop_after)
      status_ = RunStatus::stopped;
    const std::int64_t every = config_.train.checkpoint_every;
    const bool due = every > 0 ? state_.step % every == 0 : with_validation;
    if (improved || due || asked.save || status_) save(improved);
  }

  StopRequest wishes() const { return stop_request_of_all(ranks_, around_.interrupt, around_.save_now); }

  void diverge(std::int64_t step, const std::string& what) {
    status_ = RunStatus::diverged;
    const bool saved = std::filesystem::exists(around_.folder.last());
    report_->warn(fmt::format("step {}: {}: not finite. {}", step, what,
                              saved ? "The last good checkpoint stays." : "There is no checkpoint yet."));
  }

  // True if this is the best so far.
  bool validate() {
    if (!around_.data.val) return false;
    state_.validation_due = true;
    steps_->fetch();
    const std::optional<Score> score =
        validation_score({model_, optimizer_, averaging_}, ranks_, *around_.data.val, bytes_,
                         config_.train.val_tokens, around_.interrupt, [this](std::int64_t tokens) {
                           if (observer_) observer_->validating(tokens);
                         });
    if (!score) return false;
    state_.validation_due = false;
    if (!std::isfinite(score->loss())) {
      diverge(state_.step, fmt::format("validation loss {}", score->loss()));
      return false;
    }
    result_.val_loss = score->loss();
    result_.val_bpb = score->bits_per_byte();
    result_.validated = true;
    validated_step_ = state_.step;
    const bool best = note_validation(config_.train, score->loss(), state_);
    const ValidationReport report{.step = state_.step,
                                  .score = *score,
                                  .best = best,
                                  .last = done() || out_of_time(),
                                  .weights = std::string(averaging_.kind())};
    report_->validation(report);
    if (observer_) observer_->validation(report);
    say_something();
    return best;
  }

  void say_something() {
    const SampleSettings settings{.count = around_.request.samples,
                                  .seed = static_cast<std::uint64_t>(config_.train.seed)};
    for (const SaidText& said : say_samples({model_, optimizer_, averaging_}, *around_.request.tokenizer,
                                            around_.data.val ? &*around_.data.val : nullptr, settings)) {
      Json event = Json::object().set("event", "sample").set("step", state_.step);
      if (!said.prompt.empty()) event.set("prompt", said.prompt);
      around_.metrics.add(event.set("text", said.text));
    }
  }

  void save(bool best) {
    steps_->fetch();
    check_same_weights(ranks_, model_.weights(), state_.step);  // first: then all diverge, or none
    // A finite gradient can still push a weight over the edge.
    if (!std::isfinite(cpu::sum_of_squares(model_.weights()))) return diverge(state_.step, "a weight");
    if (!ranks_.first()) return;
    around_.metrics.flush();
    result_.checkpoint =
        around_.folder.publish(state_.step, best, config_.train.keep, [&](const std::filesystem::path& path) {
          Config now = config_;
          now.model.loop_on = model_.config().loop_on;
          write_checkpoint(around_.ops, path, now, state_, *around_.request.tokenizer,
                           {model_, optimizer_, averaging_}, record());
        });
    saved_step_ = state_.step;
  }

  // What the model does now, for `thimble qa` to compare with.
  CheckpointRecord record() {
    CheckpointRecord record;
    append_golden(golden_output({model_, optimizer_, averaging_}, *around_.request.tokenizer), record);
    if (validated_step_ != state_.step) return record;
    record.emplace_back(kValLossKey, fmt::format("{}", result_.val_loss));
    if (result_.val_bpb > 0) record.emplace_back(kValBpbKey, fmt::format("{}", result_.val_bpb));
    if (val_set_.empty()) val_set_ = around_.data.val->fingerprint();
    record.emplace_back(kValSetKey, val_set_);
    record.emplace_back(kValTokensKey, fmt::format("{}", config_.train.val_tokens));
    return record;
  }

  void finish(double wall_seconds) {
    const RunHistory& history = report_->history();
    const auto unique = static_cast<double>(loader_.tokens_per_epoch());
    result_.status = *status_;
    result_.steps = state_.step;
    result_.tokens = state_.tokens;
    result_.train_loss = history.smoothed_loss();
    result_.weights = averaging_.kind();
    result_.best_val_loss = state_.best_val_loss;
    result_.best_step = state_.best_step;
    result_.epochs = static_cast<double>(state_.tokens) / unique;
    result_.seconds = report_->seconds();
    result_.tokens_per_second = report_->tokens_per_second();
    if (status_ == RunStatus::diverged && std::filesystem::exists(around_.folder.last()))
      result_.checkpoint = around_.folder.last();
    if (status_ != RunStatus::interrupted && status_ != RunStatus::stopped)
      result_.diagnosis = diagnose({.history = history,
                                    .diverged = status_ == RunStatus::diverged,
                                    .parameters = model_.params().count(),
                                    .unique_tokens = loader_.tokens_per_epoch(),
                                    .tokens_seen = state_.tokens,
                                    .train_loss = result_.train_loss,
                                    .dropout = config_.model.dropout > 0,
                                    .wall_seconds = wall_seconds,
                                    .step_seconds = result_.seconds,
                                    .fallback = dtype_fallback(around_.request.config.train.dtype,
                                                               context_.device(), cpu_features())});
    call_.finished = utc_now();
    call_.last_step = state_.step;
    call_.status = *status_;
    call_.seconds = result_.seconds;
    call_.tokens_per_second = result_.tokens_per_second;
    const auto record = around_.folder.path() / "run.json";
    Json summary = run_record(record, call_);
    if (result_.diagnosis) summary.set("diagnosis", result_.diagnosis->to_json());
    around_.folder.write_text("run.json", summary.dump(2) + "\n");
  }

  Surroundings around_;
  Communicator& ranks_;
  TrainObserver* observer_;  // may be null
  Context context_;
  Config config_;
  Model model_;
  Optimizer optimizer_;
  Averaging averaging_;
  BatchLoader loader_;
  ByteTable bytes_;
  std::unique_ptr<StepRunner> steps_;
  TrainState state_;
  RunHistory history_;
  Reporter* report_ = nullptr;
  TrainResult result_;
  std::optional<RunStatus> status_;   // nothing: it goes on
  std::int64_t validated_step_ = -1;  // in this call
  std::int64_t saved_step_ = -1;      // of the run's newest checkpoint; -1: none
  std::string val_set_;               // what validation scores: told apart from other sets
  RunCall call_;
};

// What one rank alone knows is said by it, before anything it holds goes away that the others still wait for.
TrainResult run_or_end_all(Trainer& trainer, Communicator& ranks) {
  if (ranks.size() == 1) return trainer.run();
  try {
    return trainer.run();
  } catch (const FailedTogether&) {
    throw;  // all know of it already
  } catch (const Error& error) {
    abort_all(ranks, error);
  } catch (const std::exception& error) {
    abort_all(ranks, Error(error.what()));
  } catch (...) {
    abort_all(ranks, Error("nobody reads the output any more"));  // as on_ranks
  }
}

}  // namespace

TrainResult train(const TrainRequest& request, const Log& log, const ProgressOutput& progress,
                  const Interrupt& interrupt, const SaveSignal* save_now, FileOps* disk) {
  Communicator& ranks = *request.ranks;
  PosixFileOps posix;
  DiscardingFileOps nowhere;
  FileOps& ops = !ranks.first() ? static_cast<FileOps&>(nowhere) : disk ? *disk : posix;
  const Log silent = Log::nowhere();
  const Log& own_log = ranks.first() ? log : silent;
  const ProgressOutput own_progress = ranks.first() ? progress : ProgressOutput::nowhere();
  RunFolder folder(ops, request.run);
  std::optional<StartGuard> start;
  std::optional<MetricsFile> metrics;
  on_all_ranks(ranks, "opening the run", [&] {
    if (ranks.first()) start.emplace(request.run, interrupt);
    folder.create();
    metrics.emplace(ops, folder.metrics());  // from here on the folder is ours alone
    if (start) start->locked();
    if (!request.resume && ranks.first()) folder.check_free(request.force);
  });
  const TrainData data = open_on_all(request, folder, ops, own_log, own_progress, interrupt);
  const Config config = settled_on_all(request);
  std::optional<Trainer> trainer;
  on_all_ranks(ranks, "making the model", [&] {
    trainer.emplace(Surroundings{.request = request,
                                 .config = config,
                                 .data = data,
                                 .log = own_log,
                                 .progress = own_progress,
                                 .interrupt = interrupt,
                                 .save_now = save_now,
                                 .ops = ops,
                                 .folder = folder,
                                 .metrics = *metrics});
  });
  trainer->compare();
  on_all_ranks(ranks, "taking the run's folder", [&] { trainer->take_folder(); });
  if (start) start->keep();
  return run_or_end_all(*trainer, ranks);
}

}  // namespace thimble
