#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "formats/model_file.h"
#include "optim/rate_schedule.h"
#include "tokenizer/chat_layout.h"

namespace thimble {

namespace {

constexpr std::int64_t kSizesEvery = 25;  // steps between two measurements of the update sizes
constexpr double kLate = 1.15;            // times most_seconds

Model new_model(const RunContext& run, const Context& context) {
  const DType dtype = compute_dtype(run.config.train.dtype, context.device());
  if (!run.config.lora) return {run.config.model, context, dtype};
  check(run.request.base.has_value(), "[train] adapters need a base");
  ModelFile adapted;
  adapted.config = run.config;
  adapted.stored = run.request.base->weights;
  AdapterTable table(run.config.model, run.config.lora);
  std::vector<float> values(static_cast<std::size_t>(table.params().block_size()));
  adapted.adapters = std::make_shared<const Adapters>(Adapters{std::move(table), std::move(values)});
  return make_model(adapted, context, dtype);
}

}  // namespace

Trainer::Trainer(const RunContext& run)
    : run_(run),
      config_(run.config),
      context_(run.request.device, run.log),
      model_(new_model(run, context_)),
      optimizer_(model_.trained_params(), config_.optimizer, context_, run.request.rules),
      averaging_(config_.train, model_.trained_params().block_size()),
      loader_(run.data.train, loader_settings(config_, run.request.source, run.ranks()), config_.model),
      bytes_(run.tokenizer(), static_cast<TokenId>(config_.model.vocab_size)),
      steps_(make_step_runner(
          {config_, context_, model_, optimizer_, loader_, bytes_, run.ranks(), run.request.gpus.get()})),
      checkpoints_(run, {model_, optimizer_, averaging_}, *steps_),
      validator_({.config = config_,
                  .model = model_,
                  .averaging = averaging_,
                  .tokenizer = run.tokenizer(),
                  .bytes = bytes_,
                  .val = run.data.val ? &*run.data.val : nullptr,
                  .ranks = run.ranks(),
                  .interrupt = run.interrupt,
                  .samples = run.request.samples}) {
  state_.data_digest = run.data.digest();
  if (run.data.kind == DataKind::chat) state_.layout = run.data.layout;
  if (run.request.resume) {
    checkpoints_.restore(state_);
    loader_.seek(state_.position);
  } else {
    checkpoints_.begin(state_);
    model_.set_loop(layer_loop_has_begun());
  }
  first_step_ = state_.step;
}

void Trainer::prepare_folder() {
  const bool first = run_.ranks().first(), resumes = run_.request.resume;
  if (first) checkpoints_.prepare_folder(state_);
  RunHistory history = first && resumes ? read_history(run_.folder.metrics()) : RunHistory();
  if (first && resumes) note_cpu_use(history);
  reporter_.emplace(config_, run_.log, run_.progress, run_.metrics, std::move(history),
                    run_.request.observer);
  if (!first) return;
  if (resumes)
    reporter_->resume(state_.step);
  else
    reporter_->start(run_, loader_, model_.trained_params().count());
}

void Trainer::note_cpu_use(const RunHistory& history) const {
  if (context_.device() != Device::cpu) return;
  const auto before =
      history.cpu_use() ? history.cpu_use() : recorded_cpu_use(run_.folder.path() / "run.json");
  if (const CpuUse now = CpuUse::now(); before && *before != now)
    run_.log.info(
        "this run was trained with {} and resumes with {}: the last bits of its results will differ",
        before->text(), now.text());
}

TrainResult Trainer::run() {
  try {
    const double started = seconds_now();
    checkpoints_.write_settings();
    reporter_->measure_peak(context_, model_.dtype());
    prime();
    first_validation();
    if (run_.request.most_seconds > 0) started_ = run_.request.clock();
    try {
      while (!status_) step();
    } catch (const ShardError&) {
      // The state is that after the last complete step. Other ranks may still be in the next one.
      if (state_.step > first_step_ && run_.ranks().size() == 1) save(false);
      throw;
    }
    return finish(seconds_now() - started);
  } catch (const Error&) {
    const bool is_saved = status_ && checkpoints_.saved_step() == state_.step;
    if (checkpoints_.saved_step() >= 0 && !is_saved) reporter_->warn(checkpoints_.rescue_note(state_.step));
    throw;
  }
}

// Creates everything that is created on first use, with and without the layer loop, before the
// clock starts.
void Trainer::prime() {
  const bool loop_on = model_.loop_on();
  for (std::int64_t i = 0; i < config_.train.prime_steps && !status_; ++i) {
    model_.set_loop(loop_on || i % 2 == 1);
    steps_->prime(qat_bits());
    model_.set_loop(loop_on);
    reporter_->primed(i + 1, config_.train.prime_steps);
    const StopRequest request = stop_request();
    if (!request.stop && !request.save) continue;
    // A run resumed from this checkpoint begins with the validation that this call has not made
    // yet.
    const bool is_due = state_.validation_due || begins_with_validation() || made_all_steps();
    const bool was_due = std::exchange(state_.validation_due, is_due);
    if (request.stop) return close_step(false);
    save(false);
    state_.validation_due = was_due;
  }
}

// Validates step 0, or repeats a validation that was interrupted before the resume. A run without
// steps ends here.
void Trainer::first_validation() {
  if (status_) return;
  const bool validates = state_.validation_due || begins_with_validation();
  if (validates && !made_all_steps()) steps_->reserve(qat_bits());
  if (state_.validation_due || made_all_steps()) return close_step(true);
  if (!begins_with_validation()) return;
  const bool best = validate();
  if (status_) return;                                          // diverged
  if (state_.validation_due) status_ = RunStatus::interrupted;  // --resume starts with this validation
  if (reached_target(config_.train, state_)) status_ = RunStatus::target_reached;
  if (best || state_.validation_due) save(best);
}

void Trainer::step() {
  enable_layer_loop();
  const double started = run_.request.clock();
  StepReport report;
  report.multiplier = multiplier();
  report.qat_bits = qat_bits();
  // Update sizes are measured on the CPU only.
  if ((state_.step + 1) % kSizesEvery == 0 && context_.device() == Device::cpu) report.sizes.emplace();
  report.result = steps_->run({.step = state_.step,
                               .multiplier = report.multiplier,
                               .qat_bits = report.qat_bits,
                               .sizes = report.sizes ? &*report.sizes : nullptr});
  if (!report.result.updated && !report.result.skipped)
    return diverge_not_finite(state_.step + 1, fmt::format("loss {}, gradient norm {}", report.result.loss,
                                                           report.result.grad_norm));
  report.clipped =
      report.result.updated && config_.optimizer.clip > 0 && report.result.grad_norm > config_.optimizer.clip;
  count_step(report, started);
  if (config_.train.stop_on_divergence &&
      state_.loss_trend.has_diverged(made_all_steps() || is_out_of_time()))
    return diverge(state_.step, state_.loss_trend.text());
  const std::int64_t every = config_.train.val_every;
  const bool validation_due = every > 0 && state_.step % every == 0;
  close_step(validation_due || made_all_steps() || is_out_of_time());
}

// After the update: adds the weights to the average, counts the step and reports it.
void Trainer::count_step(StepReport& report, double started) {
  ++state_.step;
  if (averaging_.counts(state_.step, report.multiplier)) steps_->fetch_weights();
  averaging_.add(state_.step, report.multiplier, model_.weights());
  state_.averaged = averaging_.count();
  state_.tokens += report.result.tokens;
  if (!report.result.skipped) state_.loss_trend.add(report.result.loss);
  state_.position = loader_.position();
  report.seconds = run_.request.clock() - started;
  if (config_.train.max_seconds > 0) {
    report.seconds = longest(run_.ranks(), report.seconds);
    state_.elapsed_seconds += report.seconds;
  } else {
    ++state_.untimed_steps;
  }
  report.step = state_.step;
  report.elapsed_seconds = state_.elapsed_seconds;
  report.untimed_steps = state_.untimed_steps;
  report.position = state_.position;
  reporter_->step(report);
}

// After the report: validates, checks whether the run ends here, and saves a checkpoint.
void Trainer::close_step(bool with_validation) {
  const bool improved = with_validation && validate();
  if (status_) return;  // diverged
  const StopRequest request = stop_request();
  status_ = status_now(with_validation, request.stop);
  if (with_validation && !status_) {
    steps_in_time_ = steps_in_time();
    if (steps_in_time_ > 0) status_ = RunStatus::stopped;
  }
  const std::int64_t every = config_.train.checkpoint_every;
  const bool due = every > 0 ? state_.step % every == 0 : with_validation;
  if (improved || due || request.save || status_) save(improved);
  // A stop requested while the checkpoint was written. Several ranks would have to agree on it.
  const bool is_saved = checkpoints_.saved_step() == state_.step;
  if (!status_ && is_saved && run_.ranks().size() == 1 && run_.interrupt.requested())
    status_ = RunStatus::interrupted;
}

bool Trainer::validate() {
  if (!validator_.has_data()) return false;
  if (averaging_.available()) steps_->fetch_weights();
  Validation validation;
  try {
    validation = validator_.validate(state_, made_all_steps() || is_out_of_time(), *reporter_);
  } catch (const ShardError&) {
    state_.validation_due = true;  // --resume repeats it
    throw;
  }
  if (validation.outcome == Validation::Outcome::not_finite)
    diverge_not_finite(state_.step, fmt::format("validation loss {}", validation.loss));
  return validation.outcome == Validation::Outcome::best;
}

void Trainer::save(bool best) {
  if (!checkpoints_.save(state_, best, validator_)) return diverge_not_finite(state_.step, "a weight");
  reporter_->saved(state_.step);
}

// The current state is not saved: the checkpoints of earlier steps are better.
void Trainer::diverge(std::int64_t step, const std::string& what) {
  status_ = RunStatus::diverged;
  divergence_ = what;
  reporter_->warn(fmt::format("step {}: {}. {}", step, what, checkpoints_.kept_note()));
}

void Trainer::diverge_not_finite(std::int64_t step, const std::string& what) {
  diverge(step, what + ": not finite");
}

TrainResult Trainer::finish(double wall_seconds) {
  TrainResult result;
  result.status = *status_;
  result.steps_in_time = steps_in_time_;
  result.steps = state_.step;
  result.tokens = state_.tokens;
  result.weights = averaging_.kind();
  result.best_val_loss = state_.best_val_loss;
  result.best_step = state_.best_step;
  result.epochs = static_cast<double>(state_.tokens) / static_cast<double>(loader_.tokens_per_epoch());
  result.checkpoint = checkpoints_.newest(*status_ == RunStatus::diverged);
  result.validated = validator_.score().has_value();
  if (result.validated) {
    result.val_loss = validator_.score()->loss();
    result.val_bpb = validator_.score()->bits_per_byte();
  }
  if (divergence_.empty() && state_.loss_trend.has_diverged(true)) divergence_ = state_.loss_trend.text();
  reporter_->finish(run_,
                    {.first_step = first_step_,
                     .parameters = model_.trained_params().count(),
                     .unique_tokens = loader_.tokens_per_epoch(),
                     .wall_seconds = wall_seconds,
                     .began_trained = state_.began_trained,
                     .divergence = divergence_},
                    result);
  return result;
}

double Trainer::multiplier() const {
  return rate_multiplier(config_.train, state_.step, state_.elapsed_seconds, state_.untimed_steps);
}

int Trainer::qat_bits() const {
  const bool begun = has_begun(config_.train.qat_start, config_.train, state_.step, state_.elapsed_seconds);
  return begun ? static_cast<int>(config_.train.qat_bits) : 0;
}

bool Trainer::layer_loop_has_begun() const {
  return config_.model.loop_count == 0 ||
         has_begun(config_.train.loop_start, config_.train, state_.step, state_.elapsed_seconds);
}

// Runs between two steps. All ranks do it before the same step, because they share the step and the
// elapsed time.
void Trainer::enable_layer_loop() {
  const ModelConfig& m = config_.model;
  if (model_.loop_on() || !layer_loop_has_begun()) return;
  model_.set_loop(true);
  reporter_->note(fmt::format("step {}: layers {} to {} now run {} times", state_.step + 1, m.loop_first,
                              m.loop_last, m.loop_count + 1));
}

bool Trainer::begins_with_validation() const {
  return !run_.request.resume && run_.request.validate_first && validator_.has_data();
}

bool Trainer::made_all_steps() const {
  return config_.train.makes_no_step() || (config_.train.steps > 0 && state_.step >= config_.train.steps);
}

bool Trainer::is_out_of_time() const {
  return config_.train.max_seconds > 0 && state_.elapsed_seconds >= config_.train.max_seconds;
}

std::int64_t Trainer::steps_in_time() const {
  const double most = run_.request.most_seconds;
  const std::int64_t made = state_.step - first_step_, left = config_.train.steps - state_.step;
  if (most <= 0 || made == 0 || left <= 1) return 0;
  const double taken = run_.request.clock() - started_;
  const double each = taken / static_cast<double>(made);
  if (taken + each * static_cast<double>(left) <= kLate * most) return 0;
  const auto fit = static_cast<std::int64_t>(std::max(most - taken, 0.0) / each);
  return state_.step + std::clamp<std::int64_t>(fit, 1, left - 1);
}

std::optional<RunStatus> Trainer::status_now(bool validated, bool stop_requested) const {
  const std::int64_t stop_after = run_.request.stop_after, made = state_.step - first_step_;
  if (state_.validation_due || (stop_requested && !made_all_steps())) return RunStatus::interrupted;
  if (made_all_steps()) return RunStatus::completed;
  if (is_out_of_time()) return RunStatus::wallclock;
  if (validated && reached_target(config_.train, state_)) return RunStatus::target_reached;
  if (validated && out_of_patience(config_.train, state_)) return RunStatus::early_stop;
  if (stop_after > 0 && made >= stop_after) return RunStatus::stopped;
  return std::nullopt;
}

StopRequest Trainer::stop_request() const {
  return stop_request_of_all(run_.ranks(), run_.interrupt, run_.save_now);
}

}  // namespace thimble
