#include "train/loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <numeric>

#include "base/digest.h"
#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/table.h"
#include "base/version.h"
#include "eval/score.h"
#include "model/config_toml.h"
#include "ops/sums.h"
#include "optim/schedule.h"
#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/run_folder.h"

namespace thimble {

namespace {

constexpr std::uint64_t kDropoutStream = 0xD20;  // keeps dropout's seeds apart from the weights' streams
constexpr std::size_t kSmoothedSteps = 50;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What later work brings is refused, not ignored.
void check_supported(const TrainConfig& config, const Log& log) {
  const auto refuse = [](bool wanted, std::string_view key) {
    check(!wanted, Hint{fmt::format("--set {}=0 trains without it", key)}, "{} is not in this version yet",
          key);
  };
  refuse(config.swa_start > 0, "swa_start");
  refuse(config.ema_decay > 0, "ema_decay");
  refuse(config.patience > 0, "patience");
  refuse(config.min_delta > 0, "min_delta");
  check(config.dtype == ComputeDType::automatic || config.dtype == ComputeDType::f32,
        Hint{"leave out --dtype"}, "this version computes in f32");
  if (config.uses_muon() && config.muon_dtype == MuonDType::bf16)
    log.info("Muon works in f32: bf16 is to come");
}

class Trainer {
 public:
  Trainer(const TrainRequest& request, const Log& log, const ProgressOutput& progress,
          const Interrupt& interrupt)
      : request_(request),
        config_(with_micro_batch(request.config)),
        log_(log),
        progress_(progress),
        interrupt_(interrupt),
        folder_(ops_, request.run),
        model_(config_.model, context_),
        optimizer_(model_.params(), config_.train),
        loader_(request.data.train, request.data.bos, config_.model.context, request.source.order,
                static_cast<std::uint64_t>(config_.train.seed)),
        bytes_(*request.tokenizer, static_cast<TokenId>(config_.model.vocab_size)),
        gradients_(model_.params().block_size(), "the gradients", "lower dim, layers or vocab_size") {
    check_supported(config_.train, log);
  }

  TrainResult run() {
    folder_.create();
    MetricsFile metrics(ops_, folder_.metrics());  // from here on the folder is ours alone
    metrics_ = &metrics;
    begin();
    {
      ProgressBar bar(progress_, "training", "steps", static_cast<std::uint64_t>(config_.train.steps));
      bar_ = &bar;
      if (state_.validation_due) {
        close_step(true);
      } else if (!resumed_) {
        validate();
        if (state_.validation_due) save(false);  // interrupted: --resume begins with it
      }
      while (result_.status.empty()) step();
    }
    finish();
    return result_;
  }

 private:
  static Config with_micro_batch(Config config) {
    config.train.micro_batch = micro_batch_rows(config);
    return config;
  }

  void begin() {
    Digester digester;
    digester.add(std::as_bytes(std::span(request_.data.train)));
    digester.add(std::as_bytes(std::span(request_.data.val)));
    state_.data_digest = digester.result().hex();
    if (request_.resume) {
      restore();
    } else {
      folder_.clear(request_.replace);
      initialise(model_.params(), static_cast<std::uint64_t>(config_.train.seed), model_.weights());
      model_.weights_changed();
    }
    metrics_->keep_until(resumed_ ? state_.step : -1);
    folder_.write_text("config.toml", to_toml(config_));
    folder_.write_text("data.json", request_.source.to_json());
    folder_.write_text(request_.tokenizer->file_name(), request_.tokenizer->serialized());
    log_.info("{}: {} parameters, {} training tokens, {} validation tokens", folder_.path().string(),
              with_commas(model_.params().count()),
              with_commas(static_cast<long long>(request_.data.train.size())),
              with_commas(static_cast<long long>(request_.data.val.size())));
  }

  void restore() {
    const SafetensorsFile file = SafetensorsFile::open(folder_.last());
    const CheckpointHead head = read_checkpoint_head(file);
    check(head.state.data_digest == state_.data_digest, Hint{"give the same --data and --val-data as before"},
          "the text is not that of the run in {}", folder_.path().string());
    const std::string name = folder_.path().string();
    const bool unfinished = head.state.validation_due;
    check(unfinished || head.state.step < config_.train.steps, Hint{"ask for more with --steps"},
          "{} is complete: {} of {} steps", name, head.state.step, config_.train.steps);
    check(unfinished || config_.train.max_seconds == 0 ||
              head.state.elapsed_seconds < config_.train.max_seconds,
          Hint{"ask for more with --max-seconds"}, "{} is complete: its {} are used up", name,
          in_seconds(config_.train.max_seconds));
    restore_checkpoint(file, model_, optimizer_);
    state_ = head.state;
    loader_.seek(state_.position);
    folder_.tidy(state_.step);
    resumed_ = true;
    log_.info("resuming at step {} of {}", state_.step, config_.train.steps);
  }

  void step() {
    const double started = seconds_now();
    const double multiplier = rate_multiplier(config_.train, state_.step, state_.elapsed_seconds);
    const double loss = gradients_of_one_batch();
    double norm = loss;
    if (std::isfinite(loss))
      norm = optimizer_.update(context_, state_.step, multiplier, model_.weights(), gradients_.all());
    if (!std::isfinite(norm)) return diverge(fmt::format("loss {}, gradient norm {}", loss, norm));
    model_.weights_changed();
    advance(loss, norm, multiplier, seconds_now() - started);
    const bool wanted = config_.train.val_every > 0 && state_.step % config_.train.val_every == 0;
    close_step(wanted || done() || out_of_time());
  }

  bool done() const { return state_.step >= config_.train.steps; }
  bool out_of_time() const {
    return config_.train.max_seconds > 0 && state_.elapsed_seconds >= config_.train.max_seconds;
  }

  // What follows an update: validation, the end of the run, a checkpoint.
  void close_step(bool with_validation) {
    const bool improved = with_validation && validate();
    if (result_.status == "diverged") return;
    const bool stops = request_.stop_after > 0 && steps_of_this_call_ >= request_.stop_after;
    if (state_.validation_due || (interrupt_.asked() && !done()))
      result_.status = "interrupted";
    else if (done())
      result_.status = "completed";
    else if (out_of_time())
      result_.status = "wallclock";
    else if (stops)
      result_.status = "stopped";
    const bool due = config_.train.checkpoint_every > 0 && state_.step % config_.train.checkpoint_every == 0;
    if (improved || due || !result_.status.empty()) save(improved);
  }

  void diverge(const std::string& what) {
    result_.status = "diverged";
    bar_->clear();
    log_.warning("step {}: {}: not finite. The last good checkpoint stays.", state_.step, what);
  }

  // The whole batch is read first: every row's weight is one over all targets of the update.
  double gradients_of_one_batch() {
    const std::int64_t rows = config_.train.batch_tokens / config_.model.context;
    std::vector<Rows> batch;
    std::int64_t targets = 0;
    for (std::int64_t done = 0; done < rows; done += config_.train.micro_batch) {
      batch.push_back(loader_.next(config_.model, std::min(config_.train.micro_batch, rows - done)));
      targets += std::ranges::count_if(batch.back().target, [](std::int32_t target) { return target >= 0; });
    }
    std::ranges::fill(gradients_.all(), 0.0f);
    GradientOptions options{.qat_bits = qat_bits(), .dropout_seed = 0};
    double loss = 0;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      for (std::size_t n = 0; n < batch[i].weight.size(); ++n)
        batch[i].weight[n] = batch[i].target[n] >= 0 ? 1.0f / static_cast<float>(targets) : 0.0f;
      Rng seed(static_cast<std::uint64_t>(config_.train.seed),
               (static_cast<std::uint64_t>(state_.step) * 4096 + i) * 2, kDropoutStream);
      options.dropout_seed = seed.next_u64();
      loss += model_.add_gradients(batch[i], gradients_.all(), options);
    }
    return loss;
  }

  int qat_bits() const {
    const double start = config_.train.qat_start < 1
                             ? config_.train.qat_start * static_cast<double>(config_.train.steps)
                             : config_.train.qat_start;
    return static_cast<double>(state_.step) >= start ? static_cast<int>(config_.train.qat_bits) : 0;
  }

  void advance(double loss, double norm, double multiplier, double seconds) {
    ++state_.step;
    ++steps_of_this_call_;
    state_.tokens += config_.train.batch_tokens;
    state_.position = loader_.position();
    if (config_.train.max_seconds > 0) state_.elapsed_seconds += seconds;
    result_.seconds += seconds;
    tokens_of_this_call_ += config_.train.batch_tokens;
    recent_.push_back(loss);
    if (recent_.size() > kSmoothedSteps) recent_.pop_front();
    smoothed_ = std::accumulate(recent_.begin(), recent_.end(), 0.0) / static_cast<double>(recent_.size());
    const double rate = static_cast<double>(tokens_of_this_call_) / result_.seconds;
    metrics_->add(Json::object()
                      .set("event", "step")
                      .set("step", state_.step)
                      .set("loss", loss)
                      .set("lr_multiplier", multiplier)
                      .set("grad_norm", norm)
                      .set("seconds", seconds));
    bar_->update(static_cast<std::uint64_t>(state_.step),
                 fmt::format("loss {:.4f}  {} tokens/s{}", smoothed_, with_unit(rate),
                             result_.validated ? fmt::format("  val {:.4f}", result_.val_loss) : ""));
  }

  // True if this is the best so far. Interrupted, it is done again on resume: the run goes on as if nothing
  // had happened.
  bool validate() {
    state_.validation_due = true;
    Score score;
    try {
      score = score_tokens(model_, bytes_, request_.data.val, request_.data.bos,
                           {.val_tokens = config_.train.val_tokens}, ProgressOutput::nowhere(), &interrupt_);
    } catch (const Interrupted&) {
      result_.status = "interrupted";
      return false;
    }
    state_.validation_due = false;
    if (!std::isfinite(score.loss())) {
      diverge(fmt::format("validation loss {}", score.loss()));
      return false;
    }
    result_.val_loss = score.loss();
    result_.val_bpb = score.bits_per_byte();
    result_.validated = true;
    const bool best = state_.step > 0 && (state_.best_step < 0 || score.loss() < state_.best_val_loss);
    if (best) state_.best_val_loss = score.loss(), state_.best_step = state_.step;
    metrics_->add(Json::object()
                      .set("event", "validation")
                      .set("step", state_.step)
                      .set("val_loss", score.loss())
                      .set("val_bpb", score.bits_per_byte()));
    bar_->clear();
    log_.info("step {:>6}  train {}  val {:.4f}  {:.4f} bits per byte{}", state_.step,
              recent_.empty() ? "     -" : fmt::format("{:.4f}", smoothed_), score.loss(),
              score.bits_per_byte(), best ? "  best" : "");
    return best;
  }

  void save(bool best) {
    // A finite gradient can still push a weight over the edge.
    if (!std::isfinite(cpu::sum_of_squares(model_.weights()))) return diverge("a weight");
    metrics_->flush();
    result_.checkpoint =
        folder_.publish(state_.step, best, config_.train.keep, [&](const std::filesystem::path& path) {
          write_checkpoint(ops_, path, config_, state_, *request_.tokenizer, model_, optimizer_);
        });
  }

  void finish() {
    result_.steps = state_.step;
    result_.tokens = state_.tokens;
    result_.train_loss = smoothed_;
    result_.best_step = state_.best_step;
    result_.tokens_per_second =
        result_.seconds > 0 ? static_cast<double>(tokens_of_this_call_) / result_.seconds : 0;
    if (result_.status == "diverged" && std::filesystem::exists(folder_.last()))
      result_.checkpoint = folder_.last();
    folder_.write_text("run.json", Json::object()
                                           .set("status", result_.status)
                                           .set("steps", result_.steps)
                                           .set("seconds", result_.seconds)
                                           .set("tokens_per_second", result_.tokens_per_second)
                                           .set("version", version())
                                           .set("compiler", compiler())
                                           .dump(2) +
                                       "\n");
  }

  const TrainRequest& request_;
  Config config_;
  const Log& log_;
  ProgressOutput progress_;
  const Interrupt& interrupt_;
  PosixFileOps ops_;
  RunFolder folder_;
  Context context_;
  Model model_;
  Optimizer optimizer_;
  Loader loader_;
  ByteTable bytes_;
  FloatArena gradients_;
  TrainState state_;
  TrainResult result_;
  MetricsFile* metrics_ = nullptr;
  ProgressBar* bar_ = nullptr;
  std::deque<double> recent_;
  double smoothed_ = 0;
  bool resumed_ = false;
  std::int64_t steps_of_this_call_ = 0, tokens_of_this_call_ = 0;
};

}  // namespace

TrainResult train(const TrainRequest& request, const Log& log, const ProgressOutput& progress,
                  const Interrupt& interrupt) {
  return Trainer(request, log, progress, interrupt).run();
}

}  // namespace thimble
