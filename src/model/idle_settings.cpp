#include "model/idle_settings.h"

#include <fmt/format.h>

namespace thimble {

namespace {

struct Need {
  std::string_view key;
  bool (*met)(const Config&);
  std::string_view otherwise;
};

bool turns(const Config& c) {
  return c.model.position == PositionKind::rope;
}
bool loops(const Config& c) {
  return c.model.loop_count > 0;
}
bool has_muon(const Config& c) {
  return c.train.uses_muon();
}
bool falls_at_the_end(const Config& c) {
  return c.train.schedule == ScheduleKind::golf || c.train.schedule == ScheduleKind::wsd;
}

constexpr Need kNeeds[] = {
    {"rope_base", turns, "position is not rope"},
    {"rope_dims", turns, "position is not rope"},
    {"rope_direction", turns, "position is not rope"},
    {"q_gain_init", [](const Config& c) { return c.model.q_gain != GainKind::none; }, "q_gain is none"},
    {"loop_first", loops, "loop_count is 0"},
    {"loop_last", loops, "loop_count is 0"},
    {"loop_start", loops, "loop_count is 0"},
    {"muon_weight_decay", has_muon, "muon_steps is 0"},
    {"muon_momentum", has_muon, "muon_steps is 0"},
    {"muon_momentum_start", has_muon, "muon_steps is 0"},
    {"muon_momentum_steps", has_muon, "muon_steps is 0"},
    {"muon_dtype", has_muon, "muon_steps is 0"},
    {"muon_coefficients", has_muon, "muon_steps is 0"},
    {"muon_row_norm", has_muon, "muon_steps is 0"},
    {"warmdown", falls_at_the_end, "schedule is neither golf nor wsd"},
    {"swa_every", [](const Config& c) { return c.train.swa_start > 0; }, "swa_start is 0"},
    {"min_delta", [](const Config& c) { return c.train.patience > 0; }, "patience is 0"},
    {"min_steps", [](const Config& c) { return c.train.patience > 0; }, "patience is 0"},
    {"qat_start", [](const Config& c) { return c.train.qat_bits > 0; }, "qat_bits is 0"},
};

}  // namespace

std::vector<std::string> idle_settings(const ConfigBuilder& settings) {
  std::vector<std::string> lines;
  for (const Need& need : kNeeds)
    if (settings.origin(need.key) == ConfigBuilder::Layer::command && !need.met(settings.current()))
      lines.push_back(fmt::format("{} changes nothing: {}", need.key, need.otherwise));
  return lines;
}

}  // namespace thimble
