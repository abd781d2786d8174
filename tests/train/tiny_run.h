// A tiny model for fast tests of the training loop.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/files.h"
#include "config/builder.h"
#include "support/temp_folder.h"
#include "train/checkpoint.h"
#include "train/train.h"

namespace thimble {

inline std::string sample_text() {
  std::string text;
  for (int i = 0; i < 120; ++i) text += "line " + std::to_string(i * i) + " of a text that says little.\n";
  return text;
}

inline std::string sample_chats(int count = 60) {
  std::string lines;
  for (int i = 0; i < count; ++i)
    lines += R"({"messages": [{"role": "user", "content": "what is )" + std::to_string(i) +
             R"(?"}, {"role": "assistant", "content": "it is )" + std::to_string(i * 3) + R"(."}]})" + "\n";
  return lines;
}

class TinyRun : public testing::Test {
 protected:
  TinyRun() {
    folder_.write("text.txt", sample_text());
    folder_.write("chats.jsonl", sample_chats());
  }

  // A tiny config with additional "key=value" settings.
  static Config config(const std::vector<std::string>& settings = {}, const char* tokenizer = "bytes") {
    ConfigBuilder builder;
    builder.preset("quick");
    for (const char* setting :
         {"context=16", "layers=2", "dim=32", "heads=2", "kv_heads=1", "head_dim=16", "rope_dims=16",
          "mlp_hidden=48", "batch_tokens=64", "micro_batch=2", "steps=20", "val_every=6", "warmup_steps=3"})
      builder.set(setting);
    for (const std::string& setting : settings) builder.set(setting);
    builder.derive("vocab_size", std::int64_t{load_tokenizer(tokenizer)->vocab_size()});
    return builder.resolve();
  }

  TrainRequest request(const std::string& run, const std::vector<std::string>& settings = {}) const {
    TrainRequest request;
    request.tokenizer = load_tokenizer("bytes");
    request.config = config(settings);
    request.source.data = folder_ / "text.txt";
    request.run = folder_ / run;
    return request;
  }

  TrainRequest chat_request(const std::string& run, const std::vector<std::string>& settings = {}) const {
    TrainRequest chats = request(run);
    chats.tokenizer = load_tokenizer("bytes:chat");
    chats.config = config(settings, "bytes:chat");
    chats.source = {.data = folder_ / "chats.jsonl", .kind = DataKind::chat, .order = ReadOrder::packed};
    return chats;
  }

  static TrainRequest again(TrainRequest request) {
    request.resume = true;
    request.source_was_named = false;
    return request;
  }
  TrainRequest resumed(const std::string& run, const std::vector<std::string>& settings = {}) const {
    return again(request(run, settings));
  }

  static TrainResult run(const TrainRequest& request, const Log& log = Log::nowhere(),
                         FileOps* disk = nullptr) {
    const Interrupt interrupt;
    return train(request, log, ProgressOutput::nowhere(), interrupt, nullptr, disk);
  }

  TrainResult run_until(TrainRequest request, std::int64_t steps) const {
    request.stop_after = steps;
    return run(request);
  }

  // For TrainRequest::initial_weights.
  static std::function<void(std::span<float>)> weights_of(const ModelFile& model) {
    return [from = model.weights](std::span<float> to) { std::ranges::copy(from, to.begin()); };
  }

  std::string last(const std::string& run) const {
    return read_file(folder_ / run / "last.safetensors", 1 << 26);
  }

  TempFolder folder_;
};

// An opened checkpoint that tests can modify and write back.
struct OpenedCheckpoint {
  explicit OpenedCheckpoint(std::filesystem::path path)
      : path(std::move(path)),
        file(SafetensorsFile::open(this->path)),
        head(read_checkpoint_head(file)),
        model(head.config.model, context),
        optimizer(model.params(), head.config.optimizer),
        averaging(head.config.train, model.params().block_size()) {
    restore_checkpoint(file, head.state, {model, optimizer, averaging});
  }
  void write() {
    PosixFileOps ops;
    write_checkpoint(ops, path, head.config, head.state, *head.tokenizer, {model, optimizer, averaging});
  }

  std::filesystem::path path;
  SafetensorsFile file;
  CheckpointHead head;
  Context context;
  Model model;
  Optimizer optimizer;
  Averaging averaging;
};

}  // namespace thimble
