#include "model/recorded_decode.h"

#include "tensor/capture.h"

namespace thimble {

Tensor RecordedDecode::step(const Rows& rows) {
  const auto& runtime = context_.runtime();
  program_.stage_inputs(rows);
  if (steps_ == 0) {
    queue();
  } else {
    if (!graph_) graph_ = capture(*runtime, [&] { queue(); });
    graph_->launch();
  }
  runtime->synchronise();
  ++steps_;  // only now: a step that failed has planned nothing
  Tensor logits = program_.program().tensor(program_.graph().logits);
  logits.data = logits_.data();
  logits.device = Device::cpu;
  return logits;
}

void RecordedDecode::queue() {
  const auto& runtime = context_.runtime();
  program_.queue_inputs();
  program_.program().run();
  const Tensor logits = program_.program().tensor(program_.graph().logits);
  if (logits_.bytes() == 0) logits_ = PinnedBuffer(runtime, logits.shape().bytes());
  runtime->download(logits_.data(), logits.data, logits.shape().bytes());
}

}  // namespace thimble
