#include "train/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/table.h"
#include "base/text.h"
#include "config/keys.h"
#include "config/toml.h"
#include "formats/model_file.h"
#include "formats/weights_file.h"
#include "ops/sums.h"
#include "optim/rate_schedule.h"
#include "train/initial_weights.h"
#include "train/ranks.h"
#include "train/run_folder.h"
#include "train/step_runner.h"
#include "train/train.h"
#include "train/validation.h"

namespace thimble {

namespace {

Json json_of(const LossTrend& trend) {
  return Json::object()
      .set("steps", trend.steps)
      .set("smoothed", trend.smoothed)
      .set("lowest", trend.lowest)
      .set("high_steps", trend.high_steps);
}

LossTrend trend_from(const Json& json) {
  return {.steps = json.at("steps").as_int(),
          .smoothed = json.at("smoothed").as_double(),
          .lowest = json.at("lowest").as_double(),
          .high_steps = json.at("high_steps").as_int()};
}

std::string to_json(const TrainState& state) {
  Json json = Json::object();
  json.set("step", state.step)
      .set("tokens", state.tokens)
      .set("epoch", state.position.epoch)
      .set("next", state.position.next)
      .set("best_val_loss", state.best_val_loss)
      .set("best_step", state.best_step)
      .set("patience_loss", state.patience_loss)
      .set("stale_validations", state.stale_validations)
      .set("validation_due", state.validation_due)
      .set("averaged", state.averaged)
      .set("elapsed_seconds", state.elapsed_seconds)
      .set("untimed_steps", state.untimed_steps)
      .set("began_trained", state.began_trained)
      .set("data_digest", state.data_digest)
      .set("layout", state.layout)
      .set("loss_trend", json_of(state.loss_trend));
  if (state.untrained_val_loss) json.set("untrained_val_loss", *state.untrained_val_loss);
  return json.dump();
}

TrainState state_from_json(const std::string& text, std::string_view name) {
  const Json json = parse_json(text, name);
  TrainState state;
  state.step = json.at("step").as_int();
  state.tokens = json.at("tokens").as_int();
  state.position = {json.at("epoch").as_uint(), json.at("next").as_uint()};
  state.best_val_loss = json.at("best_val_loss").as_double();
  state.best_step = json.at("best_step").as_int();
  state.patience_loss = json.at("patience_loss").as_double();
  state.stale_validations = json.at("stale_validations").as_int();
  state.averaged = json.at("averaged").as_int();
  state.validation_due = json.at("validation_due").as_bool();
  state.elapsed_seconds = json.at("elapsed_seconds").as_double();
  // Older checkpoints lack untimed_steps; those with elapsed_seconds timed every step.
  const Json* untimed = json.find("untimed_steps");
  state.untimed_steps = untimed ? untimed->as_int() : state.elapsed_seconds > 0 ? 0 : state.step;
  if (const Json* began = json.find("began_trained")) state.began_trained = began->as_bool();
  // Older checkpoints lack these two.
  if (const Json* trend = json.find("loss_trend")) state.loss_trend = trend_from(*trend);
  if (const Json* loss = json.find("untrained_val_loss")) state.untrained_val_loss = loss->as_double();
  state.data_digest = json.at("data_digest").as_string();
  state.layout = json.at("layout").as_string();
  check(state.step >= 0 && state.tokens >= 0 && state.best_step >= -1 && state.elapsed_seconds >= 0 &&
            state.untimed_steps >= 0 && state.untimed_steps <= state.step && state.stale_validations >= 0 &&
            state.averaged >= 0 && state.loss_trend.steps >= 0 && state.loss_trend.high_steps >= 0,
        "{}: the training state is out of range", name);
  return state;
}

void add_text(SafetensorsWriter& writer, std::string_view name, const std::string& text) {
  writer.add(std::string(name), DType::u8, {static_cast<std::int64_t>(text.size())},
             std::as_bytes(std::span(text)));
}

std::string text_of(const SafetensorsFile& file, std::string_view name) {
  const auto bytes = file.bytes(name);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Calls visit(tensor name, values) for each optimizer state of a parameter, in the rule's order.
template <class Visit>
void for_states(Optimizer& optimizer, const Param& param, Visit visit) {
  const RuleDefinition& rule = optimizer.rule_of(param);
  for (const std::string_view state : std::span(rule.states).first(rule.state_count()))
    visit(fmt::format("optim.{}.{}", state, param.name), optimizer.state(state, param));
}

constexpr std::string_view kRawPrefix = "optim.raw.";
constexpr std::string_view kLossScaleTensor = "optim.loss_scale";

// A run that switches to f16 with --force has no stored scale and starts from the initial one.
void read_loss_scale(const SafetensorsFile& file, LossScale& scale) {
  if (!file.find(kLossScaleTensor)) return;
  std::array<float, 2> values = {};
  file.read_f32(kLossScaleTensor, values);
  check(is_loss_scale(values[0], values[1]),
        "{}: expected optim.loss_scale to be a power of two and fewer than {} good steps, found {} and {}",
        file.name(), kGrowthSteps, values[0], values[1]);
  scale = {values[0], static_cast<std::int32_t>(values[1])};
}

}  // namespace

void write_checkpoint(FileOps& ops, const std::filesystem::path& path, const Config& config,
                      const TrainState& state, const Tokenizer& tokenizer, const TrainedModel& trained,
                      const CheckpointRecord& record, const ProgressOutput& progress) {
  const std::string tokenizer_file = tokenizer.serialized(), train_state = to_json(state);
  const ParamTable& params = trained.model.trained_params();
  SafetensorsWriter writer;
  writer.set_metadata(std::string(kConfigKey), to_toml(config));
  if (!state.layout.empty()) writer.set_metadata(std::string(kLayoutKey), state.layout);
  writer.set_metadata(std::string(kStepKey), fmt::format("{}", state.step));
  writer.set_metadata(std::string(kVersionKey), std::string(version()));
  const SpecialIds& special = tokenizer.special();
  if (special.bos) writer.set_metadata(std::string(kBosKey), fmt::format("{}", *special.bos));
  if (special.eos) writer.set_metadata(std::string(kEosKey), fmt::format("{}", *special.eos));
  for (const auto& [key, value] : record) writer.set_metadata(key, value);
  add_state_dict(writer, params, "",
                 trained.averaging.available() ? trained.averaging.average() : trained.model.weights());
  if (state.step > 0) {
    if (trained.averaging.on()) add_state_dict(writer, params, kRawPrefix, trained.model.weights());
    for (const Param& param : params.all())
      for_states(trained.optimizer, param, [&](const std::string& name, std::span<const float> values) {
        writer.add(name, DType::f32, param.dims, std::as_bytes(values));
      });
  }
  const LossScale& scale = trained.optimizer.loss_scale();
  const std::array<float, 2> scale_values = {scale.scale, static_cast<float>(scale.good_steps)};
  if (config.train.dtype == ComputeDType::f16)
    writer.add(std::string(kLossScaleTensor), DType::f32, {2}, std::as_bytes(std::span(scale_values)));
  add_text(writer, kTokenizerTensor, tokenizer_file);
  add_text(writer, kTrainStateTensor, train_state);
  writer.write(ops, path, Existing::replace, WithDigest::yes, {}, progress);
}

namespace {

std::optional<TokenId> id_in_metadata(const SafetensorsFile& file, std::string_view key) {
  const std::string* text = file.find_metadata(key);
  return text ? parse_number<TokenId>(*text) : std::nullopt;
}

std::string text_in_metadata(const SafetensorsFile& file, std::string_view key) {
  const std::string* text = file.find_metadata(key);
  return text ? *text : "";
}

}  // namespace

TrainState read_train_state(const SafetensorsFile& file) {
  return state_from_json(text_of(file, kTrainStateTensor), file.name());
}

CheckpointHead read_checkpoint_head(const SafetensorsFile& file, const ProgressOutput& progress) {
  verify_digest(file, progress);
  const std::string* config = file.find_metadata(kConfigKey);
  check(config && file.find(kTrainStateTensor), Hint{"use --init to start a new run from these weights"},
        "{} is not a training checkpoint", file.name());
  const SpecialIds special{
      .bos = id_in_metadata(file, kBosKey), .eos = id_in_metadata(file, kEosKey), .unk = {}, .pad = {}};
  return {config_from_toml(*config, file.name()),
          read_train_state(file),
          load_tokenizer_bytes(text_of(file, kTokenizerTensor), file.name(), special),
          {text_in_metadata(file, kBaseKey), text_in_metadata(file, kBaseDigestKey)}};
}

void restore_checkpoint(SafetensorsFile& file, const TrainState& state, const TrainedModel& trained) {
  const ParamTable& params = trained.model.trained_params();
  const auto other = [](std::string_view name) {
    return name.starts_with(kOptimizerPrefix) || name.starts_with(kThimblePrefix);
  };
  if (trained.averaging.on()) {
    read_state_dict(file, params, "", trained.averaging.average(), other);
    read_state_dict(
        file, params, state.step > 0 ? kRawPrefix : "", trained.model.weights(),
        [&](std::string_view name) { return state.step > 0 ? !name.starts_with(kRawPrefix) : other(name); });
    trained.averaging.restore_count(state.averaged);
  } else {
    read_state_dict(file, params, "", trained.model.weights(), other);
  }
  for (const Param& param : params.all()) {
    file.release(param.name);
    if (trained.averaging.on() && state.step > 0) file.release(fmt::format("{}{}", kRawPrefix, param.name));
  }
  trained.model.weights_changed();
  if (state.step > 0)  // else it is zero, as in a new optimizer
    for (const Param& param : params.all())
      for_states(trained.optimizer, param, [&](const std::string& name, std::span<float> values) {
        file.read_f32(name, values);
        file.release(name);
      });
  read_loss_scale(file, trained.optimizer.loss_scale());
}

namespace {

bool is_of_head(std::string_view tensor) {
  return tensor.starts_with(kThimblePrefix);
}

ResumePoint opened(const std::filesystem::path& path, const ProgressOutput& progress,
                   SafetensorsFile::TensorFilter wanted = nullptr) {
  SafetensorsFile file = SafetensorsFile::open(path, wanted, progress);
  CheckpointHead head = read_checkpoint_head(file, progress);
  return {.file = std::move(file), .head = std::move(head)};
}

// Skips damaged files. An error of the disk is not skipped: the file may be intact.
ResumePoint newest_intact(const RunFolder& run, const ProgressOutput& progress,
                          SafetensorsFile::TensorFilter wanted) {
  const std::vector<std::filesystem::path> files = run.checkpoints_newest_first();
  check(!files.empty(),
        Hint{"if it was stopped before its first checkpoint, start it again with the same command"},
        "{} contains no checkpoint to resume from", run.path().string());
  std::vector<std::string> damaged;
  for (const std::filesystem::path& path : files) {
    try {
      ResumePoint point = opened(path, progress, wanted);
      point.damaged = std::move(damaged);
      return point;
    } catch (const FileError&) {
      throw;
    } catch (const Error& error) {
      damaged.emplace_back(error.what());
    }
  }
  fail(Hint{"start a new run with -o, from weights that you have elsewhere with --init"},
       "{} contains no intact checkpoint: {}", run.path().string(), joined(damaged, "; "));
}

ResumePoint resume_point(const RunFolder& run, const std::filesystem::path& named, bool force,
                         const ProgressOutput& progress, SafetensorsFile::TensorFilter wanted) {
  if (named.empty()) return newest_intact(run, progress, wanted);
  ResumePoint point = opened(named, progress, wanted);
  if (force) return point;
  const std::int64_t newest = newest_intact(run, progress, wanted).head.state.step;
  check(newest <= point.head.state.step,
        Hint{fmt::format(
            "continue from the newest with --resume {}, or pass --force to remove those after step {}",
            shell_word(run.path().string()), point.head.state.step)},
        "{} is of step {}, but the run has a checkpoint of step {}", named.string(), point.head.state.step,
        newest);
  return point;
}

}  // namespace

ResumePoint open_resume_point(const RunFolder& run, const std::filesystem::path& named, bool force,
                              const ProgressOutput& progress) {
  return resume_point(run, named, force, progress, nullptr);
}

CheckpointHead read_resume_head(const RunFolder& run, const std::filesystem::path& named, bool force) {
  return resume_point(run, named, force, {}, is_of_head).head;
}

std::string resume_command(const std::filesystem::path& run) {
  const std::filesystem::path plain = run.has_filename() ? run : run.parent_path();  // "runs/a/"
  return fmt::format("thimble train --resume {}", shell_word(plain.string()));
}

namespace {

bool is_free(const Key& key) {
  static constexpr std::string_view kKeys[] = {"steps",
                                               "max_seconds",
                                               "val_every",
                                               "val_tokens",
                                               "min_delta",
                                               "min_steps",
                                               "patience",
                                               "target_val_loss",
                                               "stop_on_divergence",
                                               "checkpoint_every",
                                               "keep",
                                               "prime_steps",
                                               "checkpoint_activations"};
  if (key.part == ConfigPart::pack) return true;
  return std::ranges::find(kKeys, key.name) != std::end(kKeys);
}

// Whether changing this key alone assigns a different update rule to some parameter.
bool changes_rules(const Key& key, const Config& before, const KeyValue& after) {
  if (key.part != ConfigPart::optimizer) return false;
  Config changed = before;
  key.put(changed, after);
  const ParamTable table = trained_params(before);
  return std::ranges::any_of(table.all(), [&](const Param& param) {
    return &rule_of(param, before.optimizer) != &rule_of(param, changed.optimizer);
  });
}

// Whether the change makes the saved state unusable: a different model, update rule or averaging.
bool changes_state(const Key& key, const Config& before, const Config& after) {
  if (key.name == "swa_start") return (before.train.swa_start > 0) != (after.train.swa_start > 0);
  if (key.name == "ema_decay") return (before.train.ema_decay > 0) != (after.train.ema_decay > 0);
  if (changes_rules(key, before, key.get(after))) return true;
  return (key.of_model() && key.name != "dropout") ||
         (key.part == ConfigPart::lora && key.name != "lora_dropout");
}

}  // namespace

std::vector<std::string> check_changes(const Config& before, const Config& after, bool force,
                                       std::string_view instead) {
  std::vector<std::string> never, forced, all;
  for (const Key& key : all_keys()) {
    const KeyValue from = key.get(before), to = key.get(after);
    if (from == to || key.part == ConfigPart::state) continue;
    const std::string change = fmt::format("{}: {} -> {}", key.name, value_text(from), value_text(to));
    all.push_back(change);
    if (changes_state(key, before, after))
      never.push_back(change);
    else if (!is_free(key))
      forced.push_back(change);
  }
  check(never.empty(), Hint{fmt::format("use {}", instead)},
        "cannot resume with a different model or optimizer: {}", joined(never, ", "));
  check(force || forced.empty(), Hint{fmt::format("use --force to resume anyway, or {}", instead)},
        "the run was started with different settings: {}", joined(forced, ", "));
  return all;
}

void check_unfinished(const TrainConfig& train, const TrainState& state, const std::string& name) {
  if (state.validation_due) return;
  check(!train.makes_no_step() && (train.steps == 0 || state.step < train.steps),
        Hint{"pass a larger --steps"}, "{} is complete: {} of {} steps", name, state.step, train.steps);
  check(train.max_seconds == 0 || state.elapsed_seconds < train.max_seconds,
        Hint{"pass a larger --max-seconds"}, "{} is complete: its time limit of {} is used up", name,
        in_seconds(train.max_seconds));
  check(!reached_target(train, state), Hint{"pass a lower --target-val-loss, or 0 to continue anyway"},
        "{} is complete: its validation loss of {:.4f} reached the target of {}", name, state.best_val_loss,
        train.target_val_loss);
  check(!out_of_patience(train, state), Hint{"pass --patience 0 to continue anyway"},
        "{} is complete: {} validations in a row did not improve", name, state.stale_validations);
}

std::string resume_note(const TrainConfig& train, const TrainState& state) {
  if (train.steps > 0) return fmt::format("resuming at step {} of {}", state.step, train.steps);
  return fmt::format("resuming at step {}: {} of {} left", state.step,
                     in_seconds(std::max(train.max_seconds - state.elapsed_seconds, 0.0)),
                     in_seconds(train.max_seconds));
}

std::string schedule_note(const TrainConfig& before, const TrainConfig& after, const TrainState& state) {
  if (before.steps == after.steps && before.max_seconds == after.max_seconds) return "";
  const auto rate = [&](const TrainConfig& train) {
    return rate_multiplier(train, state.step, state.elapsed_seconds, state.untimed_steps);
  };
  const double was = rate(before), is = rate(after);
  std::vector<std::string> ends;
  if (after.steps > 0) ends.push_back(fmt::format("{} steps", after.steps));
  if (after.max_seconds > 0) ends.push_back(fmt::format("{} s", after.max_seconds));
  const std::string end = joined(ends, " or ");
  if (std::abs(was - is) < 1e-12)
    return fmt::format("the schedule now ends at {}; the learning rate of the next step is unchanged", end);
  return fmt::format(
      "the schedule now ends at {}: the learning rate continues at {:.3g} of its peak instead of {:.3g}", end,
      is, was);
}

std::string edited_note(const std::filesystem::path& config_toml, const Config& saved, const Config& now) {
  if (!std::filesystem::exists(config_toml)) return "";
  constexpr std::uint64_t kMaxConfigBytes = 1 << 20;
  std::vector<std::string> changes, options;
  try {
    const Config edited = config_from_toml(read_file(config_toml, kMaxConfigBytes), config_toml.string());
    for (const Key& key : all_keys()) {
      const KeyValue of_file = key.get(edited), of_run = key.get(saved);
      if (key.part == ConfigPart::state || of_file == of_run || of_file == key.get(now)) continue;
      changes.push_back(fmt::format("{} is {} in the file and {} in the run", key.name, value_text(of_file),
                                    value_text(of_run)));
      options.push_back(fmt::format("--{} {}", key.dashed, value_text(of_file)));
    }
  } catch (const Error& error) {
    return fmt::format("the run keeps its settings and rewrites config.toml: {}", error.what());
  }
  if (changes.empty()) return "";
  return fmt::format("the run keeps its settings and rewrites {}: {}. To change them, pass {}",
                     config_toml.string(), joined(changes, ", "), joined(options, " "));
}

RunCheckpoints::RunCheckpoints(const RunContext& run, const TrainedModel& trained, StepRunner& steps)
    : run_(run), trained_(trained), steps_(steps) {
  if (!run.request.base) return;
  const AdapterBase& base = run.request.base->base;
  base_record_ = {{std::string(kBaseKey), base.path}, {std::string(kBaseDigestKey), base.digest}};
}

void RunCheckpoints::begin(TrainState& state) {
  const auto& given = run_.request.initial_weights;
  Model& model = trained_.model;
  if (given) {
    given(model.weights());
    check_finite(model.trained_params(), model.weights());
  } else {
    initialize(model.trained_params(), static_cast<std::uint64_t>(run_.config.train.seed), model.weights());
  }
  model.weights_changed();
  trained_.averaging.begin(model.weights());
  state.averaged = trained_.averaging.count();
  state.began_trained = given || model.adapters();
}

void RunCheckpoints::restore(TrainState& state) {
  ResumePoint from =
      open_resume_point(run_.folder, run_.request.checkpoint, run_.request.force, run_.progress);
  SafetensorsFile& file = from.file;
  const CheckpointHead& head = from.head;
  for (const std::string& reason : from.damaged)
    run_.log.warning("skipping a damaged checkpoint: {}", reason);
  const std::vector<std::string> changes = check_changes(head.config, run_.config, run_.request.force);
  for (const std::string& change : changes) run_.log.info("{}", change);
  check(head.state.data_digest == state.data_digest,
        Hint{"resume with the same data as before, or start a new run"},
        "the data differs from the data of the run in {}", run_.folder.path().string());
  refuse_if_complete(head.state);
  restore_checkpoint(file, head.state, trained_);
  // The saved state of the layer loop, not that of the next step: a pending validation runs first.
  trained_.model.set_loop(head.config.state.loop_on);
  steps_.send();
  state = head.state;
  // With other settings the loss may be above its lowest for a while.
  if (run_.request.force && !changes.empty()) state.loss_trend = {};
  saved_step_ = state.step;
  resumed_ = file.name();
  run_.log.info("{}", resume_note(run_.config.train, state));
  if (const std::string note = edited_note(run_.folder.path() / "config.toml", head.config, run_.config);
      !note.empty())
    run_.log.warning("{}", note);
  note_schedule(head.config.train, state);
}

// If the run is complete, training will not tidy the folder later, so do it before throwing.
void RunCheckpoints::refuse_if_complete(const TrainState& state) {
  try {
    check_unfinished(run_.config.train, state, run_.folder.path().string());
  } catch (const Error&) {
    run_.folder.tidy(state.step);
    throw;
  }
}

void RunCheckpoints::note_schedule(const TrainConfig& before, TrainState& state) {
  const TrainConfig& now = run_.config.train;
  const std::string note = schedule_note(before, now, state);
  if (note.empty()) return;
  run_.log.info("{}", note);
  const double multiplier = rate_multiplier(now, state.step, state.elapsed_seconds, state.untimed_steps);
  if (trained_.averaging.restart_averaging(multiplier))
    run_.log.info("restarting the average of the weights");
  state.averaged = trained_.averaging.count();
}

void RunCheckpoints::prepare_folder(const TrainState& state) {
  if (run_.request.resume) {
    rewind(state);
    run_.folder.tidy(state.step);
    run_.metrics.keep_until(state.step, !state.validation_due);
  } else {
    run_.folder.clear();
    run_.metrics.keep_until(-1);
  }
}

// `best` is not usable if it is damaged (it may be the same file as a damaged `last`), or if it
// comes after the checkpoint that the user named.
void RunCheckpoints::rewind(const TrainState& state) {
  if (resumed_ == run_.folder.last()) return;
  const bool named = !run_.request.checkpoint.empty();
  run_.folder.rewind(resumed_, state.best_step, [&](const std::filesystem::path& path) {
    try {
      const std::int64_t step = opened(path, run_.progress).head.state.step;
      return !named || step <= state.step;
    } catch (const Error&) {
      return false;
    }
  });
}

void RunCheckpoints::write_settings() {
  run_.folder.write_text("config.toml", to_toml(run_.config));
  run_.folder.write_text("data.json", run_.request.source.to_json());
  run_.folder.write_text(run_.tokenizer().file_name(), run_.tokenizer().serialized());
}

bool RunCheckpoints::save(const TrainState& state, bool best, Validator& validator) {
  const Model& model = trained_.model;
  steps_.fetch();
  // Compared first, so that all ranks return the same value below.
  check_same_weights(run_.ranks(), model.weights(), state.step);
  // A weight can overflow although every gradient was finite.
  if (!std::isfinite(cpu::sum_of_squares(model.weights()))) return false;
  if (!run_.ranks().first()) return true;
  run_.metrics.flush();
  newest_ =
      run_.folder.publish(state.step, best, run_.config.train.keep, [&](const std::filesystem::path& path) {
        Config now = run_.config;
        now.state.loop_on = model.loop_on();
        CheckpointRecord record = validator.record(state.step);
        record.insert(record.end(), base_record_.begin(), base_record_.end());
        write_checkpoint(run_.ops, path, now, state, run_.tokenizer(), trained_, record, run_.progress);
      });
  saved_step_ = state.step;
  return true;
}

std::filesystem::path RunCheckpoints::newest(bool diverged) const {
  if (!diverged) return newest_;
  for (const std::filesystem::path& path : {run_.folder.best(), run_.folder.last()})
    if (std::filesystem::exists(path)) return path;
  return newest_;
}

std::string RunCheckpoints::kept_note() const {
  if (std::filesystem::exists(run_.folder.best())) return "The best checkpoint is kept.";
  return std::filesystem::exists(run_.folder.last()) ? "The last good checkpoint is kept."
                                                     : "There is no checkpoint yet.";
}

std::string RunCheckpoints::rescue_note(std::int64_t failed_step) const {
  return fmt::format("failed at step {}; resume from the checkpoint of step {} with {}", failed_step,
                     saved_step_, resume_command(run_.folder.path()));
}

}  // namespace thimble
