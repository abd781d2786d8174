// The loss scale in a checkpoint: part of the optimizer's state in f16 training.
#include "support/message_of.h"
#include "train/tiny_run.h"

namespace thimble {
namespace {

class LossScaleInCheckpoints : public TinyRun {
 protected:
  std::filesystem::path path() const { return folder_ / "some.safetensors"; }

  void write(const std::string& dtype, LossScale scale) const {
    const Config settings = config({"dtype=" + dtype});
    const Context context;
    Model model(settings.model, context);
    Optimizer optimizer(model.params(), settings.optimizer);
    Averaging averaging(settings.train, model.params().block_size());
    optimizer.loss_scale() = scale;
    PosixFileOps ops;
    write_checkpoint(ops, path(), settings, TrainState(), *load_tokenizer("bytes"),
                     {model, optimizer, averaging});
  }
};

TEST_F(LossScaleInCheckpoints, IsRestoredExactly) {
  write("f16", {4096, 1234});
  OpenedCheckpoint again(path());
  EXPECT_EQ(again.optimizer.loss_scale(), (LossScale{4096, 1234}));
  EXPECT_TRUE(again.file.find("optim.loss_scale"));
}

TEST_F(LossScaleInCheckpoints, IsAbsentOutsideF16) {
  write("bf16", {4096, 1234});
  OpenedCheckpoint checkpoint(path());
  EXPECT_FALSE(checkpoint.file.find("optim.loss_scale"));
  EXPECT_EQ(checkpoint.optimizer.loss_scale(), LossScale());
}

TEST_F(LossScaleInCheckpoints, IsValidatedWhenRead) {
  write("f16", {3, 0});
  EXPECT_NE(message_of([&] { OpenedCheckpoint checkpoint(path()); }).find("expected optim.loss_scale to be"),
            std::string::npos);
}

}  // namespace
}  // namespace thimble
