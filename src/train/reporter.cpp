#include "train/reporter.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <utility>
#include <vector>

#include "base/machine.h"
#include "base/table.h"
#include "base/text.h"
#include "config/keys.h"
#include "data/describe.h"
#include "data/loader.h"
#include "model/model.h"
#include "train/run_cost.h"
#include "train/run_folder.h"
#include "train/step_bench.h"
#include "train/train.h"

namespace thimble {

namespace {

constexpr std::int64_t kPeakRows = 2048;  // rows of the matrix products timed by measure_peak()
constexpr int kPeakRepeats = 3;
constexpr std::size_t kSparkWidth = 12;
// Making the notes takes longer than a step of a tiny model, and the live line is drawn only ten
// times a second.
constexpr double kSecondsBetweenNotes = 0.05;

Json ratios(const UpdateSizes& sizes) {
  Json json = Json::object();
  for (int i = 0; i < kParamGroups; ++i) {
    const auto group = static_cast<ParamGroup>(i);
    if (sizes.of(group).weight_squares > 0) json.set(std::string(group_name(group)), sizes.of(group).ratio());
  }
  return json;
}

// The expected number of steps: `steps`, or fewer if max_seconds ends the run first at the speed so
// far.
std::uint64_t expected_steps(const TrainConfig& config, const StepReport& report) {
  auto steps = static_cast<double>(config.steps);
  if (config.max_seconds > 0 && report.elapsed_seconds > 0) {
    const auto untimed = static_cast<double>(report.untimed_steps);
    const double in_time =
        untimed + (static_cast<double>(report.step) - untimed) * config.max_seconds / report.elapsed_seconds;
    steps = config.steps > 0 ? std::min(steps, in_time) : in_time;
  }
  return static_cast<std::uint64_t>(std::max(steps, static_cast<double>(report.step)));
}

}  // namespace

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  return file >> size >> resident ? resident * sysconf(_SC_PAGESIZE) : 0;
}

Reporter::Reporter(const Config& config, const Log& log, ProgressOutput progress, MetricsFile& metrics,
                   RunHistory history, TrainObserver* observer)
    : config_(config),
      log_(log),
      metrics_(metrics),
      history_(std::move(history)),
      observer_(observer),
      started_(utc_now()),
      progress_(std::move(progress)),
      bar_(progress_, "training", "steps", static_cast<std::uint64_t>(config.train.steps)) {
  bar_.start_at(static_cast<std::uint64_t>(history_.steps()));
  if (!history_.validations().empty()) val_loss_ = history_.validations().back().loss;
}

namespace {

// Bytes of the tokens read per epoch. A remainder that does not fill a row is not read.
std::uint64_t bytes_per_epoch(const TrainData& data, const BatchLoader& loader) {
  const double share =
      static_cast<double>(loader.tokens_per_epoch()) / static_cast<double>(data.train.size());
  return static_cast<std::uint64_t>(std::llround(static_cast<double>(data.bytes) * share));
}

// Does not count padding. 0: limited by time, not by steps.
std::uint64_t planned_tokens(const TrainConfig& config, const BatchLoader& loader) {
  if (config.max_seconds > 0) return 0;
  const double positions = static_cast<double>(config.steps) * static_cast<double>(config.batch_tokens);
  return static_cast<std::uint64_t>(std::round(positions * (1 - loader.padding())));
}

}  // namespace

void Reporter::start(const RunContext& run, const BatchLoader& loader, std::int64_t parameters) {
  const DataFacts facts{.documents = run.data.documents,
                        .tokens = loader.tokens_per_epoch(),
                        .bytes = bytes_per_epoch(run.data, loader),
                        .planned_tokens = planned_tokens(config_.train, loader),
                        .parameters = static_cast<std::uint64_t>(parameters)};
  log_.info("{}\n{}", run.folder.path().string(), data_table(facts));
  if (const std::string methods = recipe(config_); !methods.empty()) log_.info("training uses {}", methods);
  const std::string notice =
      dtype_notice(run.request.config.train.dtype, run.request.device->device(), cpu_features());
  if (!notice.empty()) log_.info("{}", notice);
  // A plan already accounts for a small text.
  const bool expected = run.request.initial_weights || run.request.base || run.request.most_seconds > 0;
  if (const std::string warning = data_warning(facts); !expected && !warning.empty())
    log_.warning("{}", warning);
  if (!run.data.val)
    log_.warning("no validation data: best.safetensors is not written{}",
                 config_.train.patience > 0 ? " and patience has no effect" : "");
  // The report reads these figures from the start event, and a resumed run the use of the CPU.
  const CpuUse cpu = CpuUse::now();
  metrics_.add(Json::object()
                   .set("event", "start")
                   .set("step", 0)
                   .set("parameters", facts.parameters)
                   .set("train_documents", facts.documents)
                   .set("train_tokens", facts.tokens)
                   .set("train_bytes", facts.bytes)
                   .set("val_tokens", run.data.val ? run.data.val->size() : 0)
                   .set("threads", cpu.threads)
                   .set("cpu_level", cpu.level));
}

void Reporter::resume(std::int64_t step) {
  const CpuUse cpu = CpuUse::now();
  metrics_.add(Json::object()
                   .set("event", "resume")
                   .set("step", step)
                   .set("threads", cpu.threads)
                   .set("cpu_level", cpu.level));
}

// Times only the matrix products of this model, without the rest of a training step.
void Reporter::measure_peak(const Context& context, DType dtype) {
  if (!progress_.enabled || context.device() != Device::cpu) return;
  const std::int64_t rows = std::min(kPeakRows, config_.train.micro_batch * config_.model.context);
  const auto shapes = products_of(config_.model);
  const double seconds = cpu::seconds_of_products(context, shapes, rows, dtype, kPeakRepeats);
  set_peak(summarize(config_).training_flops_per_token, flops_of_products(shapes, rows) / seconds);
}

void Reporter::set_peak(double flops_per_token, double peak_flops_per_second) {
  peak_tokens_per_second_ = peak_flops_per_second / flops_per_token;
}

void Reporter::primed(std::int64_t step, std::int64_t of) {
  if (observer_) observer_->primed(step, of);
}

void Reporter::step(const StepReport& report) {
  tokens_ += report.result.tokens;
  seconds_ += report.seconds;
  history_.add({.loss = report.result.loss,
                .targets = report.result.targets,
                .bytes = report.result.bytes,
                .grad_norm = report.result.grad_norm,
                .seconds = report.seconds,
                .input_seconds = report.result.input_seconds,
                .clipped = report.clipped,
                .skipped = report.result.skipped});
  write_step(report);
  if (report.result.skipped)
    warn(fmt::format("step {} skipped: gradient overflow, scale now {}", report.step,
                     report.result.loss_scale));
  if (!report.result.warning.empty() && !std::exchange(warned_of_wrap_, true)) warn(report.result.warning);
  show(report);
  if (observer_) observer_->step(report);
}

void Reporter::show(const StepReport& report) {
  if (!progress_.enabled || progress_.seconds() < noted_ + kSecondsBetweenNotes) return;
  noted_ = progress_.seconds();
  bar_.expect(expected_steps(config_.train, report));
  bar_.update(static_cast<std::uint64_t>(report.step), notes(report));
}

// JSON has no infinity or NaN, so non-finite figures are omitted.
void Reporter::write_step(const StepReport& report) {
  Json event = Json::object().set("event", "step").set("step", report.step);
  if (std::isfinite(report.result.loss)) event.set("loss", report.result.loss);
  event.set("targets", report.result.targets).set("bytes", report.result.bytes);
  event.set("lr_multiplier", report.multiplier);
  if (std::isfinite(report.result.grad_norm)) event.set("grad_norm", report.result.grad_norm);
  event.set("clipped", report.clipped).set("seconds", report.seconds);
  event.set("input_seconds", report.result.input_seconds);
  if (report.qat_bits > 0) event.set("qat_bits", report.qat_bits);
  if (report.sizes) event.set("update_ratio", ratios(*report.sizes));
  if (report.result.loss_scale > 0) event.set("loss_scale", report.result.loss_scale);
  if (report.result.skipped) event.set("skipped", true);
  metrics_.add(event);
}

std::vector<std::string> Reporter::notes(const StepReport& report) const {
  std::vector<std::string> notes = {fmt::format("loss {:.4f}", history_.smoothed_loss())};
  const double bits = history_.smoothed_bits_per_byte();
  if (bits > 0) notes.push_back(fmt::format("{:.4f} bpb", bits));
  notes.push_back(fmt::format("{} tokens/s", with_unit(tokens_per_second())));
  notes.push_back(sparkline(history_.losses().points(), kSparkWidth));
  if (val_loss_) notes.push_back(fmt::format("val {:.4f}", *val_loss_));
  notes.push_back(fmt::format("lr {:.3g}", config_.optimizer.rate(ParamGroup::matrix) * report.multiplier));
  notes.push_back(fmt::format("|g| {:.3g}", report.result.grad_norm));
  if (report.result.loss_scale > 0) notes.push_back(fmt::format("scale {}", report.result.loss_scale));
  // A peak below the speed of training was measured while other programs used the machine.
  if (peak_tokens_per_second_ > 0 && tokens_per_second() <= peak_tokens_per_second_)
    notes.push_back(
        fmt::format("{:.0f} % of GEMM peak", 100 * tokens_per_second() / peak_tokens_per_second_));
  if (const std::int64_t bytes = resident_bytes()) notes.push_back(in_bytes(static_cast<double>(bytes)));
  return notes;
}

void Reporter::validating(std::int64_t tokens_scored) {
  if (observer_) observer_->validating(tokens_scored);
}

void Reporter::validation(const ValidationReport& report) {
  const Score& score = report.score;
  history_.add_validation(report.step, score.loss());
  val_loss_ = score.loss();
  Json event = Json::object().set("event", "validation").set("step", report.step);
  event.set("val_loss", score.loss());
  if (score.bytes > 0) event.set("val_bpb", score.bits_per_byte());
  event.set("best", report.best).set("weights", report.weights);
  metrics_.add(event);
  bar_.clear();
  log_.info("step {:>6}  train {}  val {:.4f}{}{}{}", report.step,
            history_.steps() == 0 ? "     -" : fmt::format("{:.4f}", history_.smoothed_loss()), score.loss(),
            score.bytes > 0 ? fmt::format("  {:.4f} bits per byte", score.bits_per_byte()) : "",
            report.weights == "raw" ? "" : "  " + report.weights, report.best ? "  best" : "");
  if (observer_) observer_->validation(report);
}

void Reporter::saved(std::int64_t step) {
  if (observer_) observer_->saved(step);
}

void Reporter::sample(std::int64_t step, const std::string& prompt, const std::string& text) {
  Json event = Json::object().set("event", "sample").set("step", step);
  if (!prompt.empty()) event.set("prompt", prompt);
  metrics_.add(event.set("text", text));
}

void Reporter::finish(const RunContext& run, const RunEnd& end, TrainResult& result) {
  result.train_loss = history_.smoothed_loss();
  result.seconds = seconds_;
  result.tokens_per_second = tokens_per_second();
  if (result.status != RunStatus::interrupted && result.status != RunStatus::stopped)
    result.diagnosis = diagnose({.history = history_,
                                 .divergence = end.divergence,
                                 .began_trained = end.began_trained,
                                 .parameters = end.parameters,
                                 .unique_tokens = end.unique_tokens,
                                 .tokens_seen = result.tokens,
                                 .train_loss = result.train_loss,
                                 .dropout = config_.model.dropout > 0,
                                 .wall_seconds = end.wall_seconds,
                                 .step_seconds = result.seconds,
                                 .fallback = dtype_fallback(run.request.config.train.dtype,
                                                            run.request.device->device(), cpu_features())});
  Json record = run_record(run.folder.path() / "run.json", {.started = started_,
                                                            .finished = utc_now(),
                                                            .first_step = end.first_step,
                                                            .last_step = result.steps,
                                                            .status = result.status,
                                                            .seconds = result.seconds,
                                                            .tokens_per_second = result.tokens_per_second});
  if (result.diagnosis) record.set("diagnosis", result.diagnosis->to_json());
  run.folder.write_text("run.json", record.dump(2) + "\n");
}

void Reporter::note(std::string_view line) {
  bar_.clear();
  log_.info("{}", line);
}

void Reporter::warn(std::string_view line) {
  bar_.clear();
  log_.warning("{}", line);
}

namespace {

// `start` is a step or, below 1, a fraction of the run.
std::string from(double start) {
  if (start == 0) return "";
  return start < 1 ? fmt::format(" after {} of the run", start) : fmt::format(" from step {}", start);
}

std::string loop(const Config& config) {
  const ModelConfig& m = config.model;
  return fmt::format("layers {} to {} run {} times{}", m.loop_first, m.loop_last, m.loop_count + 1,
                     from(config.train.loop_start));
}

}  // namespace

std::string recipe(const Config& all) {
  const TrainConfig& config = all.train;
  std::vector<std::string> parts;
  for (const RuleParams& by : params_by_rule(trained_params(all), all.optimizer))
    if (by.rule->summary) parts.push_back(by.rule->summary(all.optimizer));
  if (all.lora)
    parts.push_back(fmt::format("adapters of rank {} for {}", all.lora.rank,
                                value_text(find_key("lora_targets")->get(all))));
  if (config.qat_bits > 0)
    parts.push_back(fmt::format("int{} QAT{}", config.qat_bits, from(config.qat_start)));
  if (config.swa_start > 0)
    parts.push_back(
        fmt::format("SWA below {} of the rate every {} steps", config.swa_start, config.swa_every));
  if (config.ema_decay > 0) parts.push_back(fmt::format("EMA {}", config.ema_decay));
  if (all.model.loop_count > 0) parts.push_back(loop(all));
  return joined(parts, ", ");
}

}  // namespace thimble
