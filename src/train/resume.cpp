#include "train/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/joined.h"
#include "base/table.h"
#include "model/config_keys.h"
#include "optim/schedule.h"
#include "train/patience.h"

namespace thimble {

namespace {

bool is_free(const Key& key) {
  static constexpr std::string_view kKeys[] = {"steps",
                                               "max_seconds",
                                               "val_every",
                                               "val_tokens",
                                               "min_delta",
                                               "min_steps",
                                               "patience",
                                               "checkpoint_every",
                                               "keep",
                                               "prime_steps",
                                               "checkpoint_activations"};
  if (key.name.starts_with("pack_")) return true;
  return std::ranges::find(kKeys, key.name) != std::end(kKeys);
}

// Which state a run keeps depends on these being on or off.
bool changes_state(const Key& key, const Config& before, const Config& after) {
  if (key.name == "muon_steps") return before.train.uses_muon() != after.train.uses_muon();
  if (key.name == "swa_start") return (before.train.swa_start > 0) != (after.train.swa_start > 0);
  if (key.name == "ema_decay") return (before.train.ema_decay > 0) != (after.train.ema_decay > 0);
  return !key.training && key.name != "dropout";
}

}  // namespace

std::vector<std::string> check_changes(const Config& before, const Config& after, bool force) {
  std::vector<std::string> never, forced, all;
  for (const Key& key : all_keys()) {
    const KeyValue from = key.get(before), to = key.get(after);
    if (from == to || key.name == "loop_on") continue;  // which the run itself moves on
    const std::string change = fmt::format("{}: {} -> {}", key.name, value_text(from), value_text(to));
    all.push_back(change);
    if (changes_state(key, before, after))
      never.push_back(change);
    else if (!is_free(key))
      forced.push_back(change);
  }
  check(never.empty(), Hint{"--init starts a new run from these weights"},
        "a run cannot go on with another model or optimizer: {}", joined(never, ", "));
  check(force || forced.empty(),
        Hint{"--force goes on all the same; --init starts a new run from these weights"},
        "the run was begun with other settings: {}", joined(forced, ", "));
  return all;
}

void check_unfinished(const TrainConfig& train, const TrainState& state, const std::string& name) {
  if (state.validation_due) return;
  check(train.steps == 0 || state.step < train.steps, Hint{"ask for more with --steps"},
        "{} is complete: {} of {} steps", name, state.step, train.steps);
  check(train.max_seconds == 0 || state.elapsed_seconds < train.max_seconds,
        Hint{"ask for more with --max-seconds"}, "{} is complete: its {} are used up", name,
        in_seconds(train.max_seconds));
  check(!out_of_patience(train, state), Hint{"--patience 0 goes on all the same"},
        "{} is complete: {} validations in a row were not better", name, state.stale_validations);
}

std::string resume_note(const TrainConfig& train, const TrainState& state) {
  if (train.steps > 0) return fmt::format("resuming at step {} of {}", state.step, train.steps);
  return fmt::format("resuming at step {}: {} of {} are left", state.step,
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
    return fmt::format("the schedule now ends at {}; the learning rate goes on as it was", end);
  return fmt::format(
      "the schedule keeps its shape and now ends at {}: the learning rate goes on at {:.3g} of its peak, "
      "where it was "
      "to be {:.3g}",
      end, is, was);
}

}  // namespace thimble
