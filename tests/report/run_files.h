// Writes run folders for tests of reports, plots and comparisons.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "config/builder.h"
#include "config/toml.h"
#include "support/temp_folder.h"

namespace thimble {

struct WrittenRun {
  std::string name = "run";
  std::vector<std::string> settings = {};  // "key=value", on top of a tiny model
  int steps = 40;
  double loss = 2;  // final loss
  std::string sample = "Once upon a time";
  bool ended = true;
};

inline Config small_config(const std::vector<std::string>& settings) {
  ConfigBuilder builder;
  builder.preset("quick");
  for (const char* setting : {"context=16", "layers=2", "dim=32", "heads=2", "kv_heads=1", "head_dim=16",
                              "rope_dims=16", "mlp_hidden=48", "batch_tokens=64", "micro_batch=2"})
    builder.set(setting);
  for (const std::string& setting : settings) builder.set(setting);
  builder.derive("vocab_size", std::int64_t{257});
  return builder.resolve();
}

inline std::string step_line(int step, double loss) {
  return fmt::format(R"({{"event":"step","step":{},"loss":{},"targets":64,"bytes":60,"lr_multiplier":{},)"
                     R"("grad_norm":{},"clipped":false,"seconds":0.5,"input_seconds":0}})"
                     "\n",
                     step, loss, 1 - step / 100.0, 1.0 / step);
}

inline std::string validation_line(int step, double loss) {
  return fmt::format(
      R"({{"event":"validation","step":{},"val_loss":{},"val_bpb":{},"best":true,"weights":"raw"}})"
      "\n",
      step, loss, loss / std::log(2.0));
}

inline std::string start_line() {
  return R"({"event":"start","step":0,"parameters":12345,"train_documents":7,"train_tokens":1000,"train_bytes":4000,)"
         R"("val_tokens":100})"
         "\n";
}

// Returns the run's folder.
inline std::filesystem::path write_run(const TempFolder& folder, const WrittenRun& run) {
  std::string metrics = start_line();
  for (int step = 1; step <= run.steps; ++step) {
    metrics += step_line(step, run.loss + 4.0 / step);
    if (step % 10 != 0) continue;
    metrics += validation_line(step, run.loss + 4.0 / step);
    metrics += Json::object().set("event", "sample").set("step", step).set("text", run.sample).dump() + "\n";
  }
  folder.write(run.name + "/config.toml", to_toml(small_config(run.settings)));
  folder.write(run.name + "/data.json", R"({"data":"/somewhere/text.txt","order":"shuffled"})");
  const auto path = folder.write(run.name + "/metrics.jsonl", metrics);
  if (run.ended)
    folder.write(run.name + "/run.json",
                 R"({"status":"completed","steps":40,"calls":[{"started":"2026-11-15T14:30:00Z",)"
                 R"("command":["thimble","train","--data","my <text>.txt"],"finished":"2026-11-15T14:31:00Z","host":{"name":"h","cpu":"A <fast> one","threads":2,)"
                 R"("memory_bytes":1000000},"version":"0.1.0","build":"Release","compiler":"g++"}],)"
                 R"("diagnosis":{"limit":"data","evidence":["few <tokens>"],"advice":"more text"}})");
  return path.parent_path();
}

}  // namespace thimble
