#include "model/gpt_program.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "ops/table.h"
#include "tensor/device.h"

namespace thimble {

namespace {

struct Part {
  Value GptGraph::*value;
  std::vector<std::int32_t> Rows::*rows;
};

constexpr std::array kParts = {
    Part{&GptGraph::token, &Rows::token},
    Part{&GptGraph::token_order, &Rows::token_order},
    Part{&GptGraph::bucket, &Rows::bucket},
    Part{&GptGraph::bucket_order, &Rows::bucket_order},
    Part{&GptGraph::embedded_position, &Rows::embedded_position},
    Part{&GptGraph::position_order, &Rows::position_order},
    Part{&GptGraph::previous, &Rows::previous},
    Part{&GptGraph::position, &Rows::position},
    Part{&GptGraph::first, &Rows::first},
    Part{&GptGraph::slot, &Rows::slot},
    Part{&GptGraph::gather, &Rows::gather},
    Part{&GptGraph::target, &Rows::target},
};

}  // namespace

BoundProgram::BoundProgram(GptGraph graph, const ScheduleOptions& options, const Context& context,
                           const Program* lender)
    : graph_(std::move(graph)),
      context_(context),
      program_(std::move(graph_.tape), options, context, backend_of(context.device()), lender),
      inputs_(lay_out()),
      block_(context.runtime(), size_of_inputs(), "the rows", "compute fewer rows at a time") {
  if (context.device() != Device::cpu) staging_ = PinnedBuffer(context.runtime(), block_.bytes());
  for (Input& input : inputs_) bind(input, program_.tape().info(input.value).shape.rows);
}

std::vector<BoundProgram::Input> BoundProgram::lay_out() const {
  std::vector<Input> inputs;
  std::int64_t offset = 0;
  const auto add = [&](Value value, std::vector<std::int32_t> Rows::*rows) {
    if (!value) return;
    inputs.push_back({value, rows, offset});
    offset += align_up(program_.tape().info(value).shape.bytes());
  };
  for (const Part& part : kParts) add(graph_.*part.value, part.rows);
  add(graph_.weight, nullptr);
  add(graph_.dropout_seed, nullptr);
  return inputs;
}

std::int64_t BoundProgram::size_of_inputs() const {
  const Input& last = inputs_.back();
  return last.offset + align_up(program_.tape().info(last.value).shape.bytes());
}

Tensor BoundProgram::bound(Value value) const {
  const auto input = std::ranges::find(inputs_, value, &Input::value);
  check(input != inputs_.end(), "[model] this program does not have the requested input");
  const DType dtype = program_.tape().info(value).shape.dtype;
  return {block_.at(input->offset), input->rows, 1, 1, dtype, context_.device()};
}

void BoundProgram::bind(Input& input, std::int64_t rows) {
  if (std::exchange(input.rows, rows) != rows) program_.bind(input.value, bound(input.value));
}

std::int64_t BoundProgram::rows_given(const Input& input, const Rows& rows) const {
  const ValueInfo& info = program_.tape().info(input.value);
  const auto given = input.integers                 ? static_cast<std::int64_t>((rows.*input.integers).size())
                     : input.value == graph_.weight ? static_cast<std::int64_t>(rows.weight.size())
                                                    : info.shape.rows;
  check(given <= info.shape.rows, "[model] found {} rows of '{}', the program accepts at most {}", given,
        info.name, info.shape.rows);
  return given;
}

void BoundProgram::stage(const Rows& rows, std::uint64_t dropout_seed, std::byte* place) const {
  for (const Input& input : inputs_) {
    const void* from = input.integers ? static_cast<const void*>((rows.*input.integers).data())
                       : input.value == graph_.weight ? static_cast<const void*>(rows.weight.data())
                                                      : &dropout_seed;
    const std::int64_t bytes =
        rows_given(input, rows) * dtype_bytes(program_.tape().info(input.value).shape.dtype);
    if (bytes > 0) std::memcpy(place + input.offset, from, static_cast<std::size_t>(bytes));
  }
}

void BoundProgram::set_inputs(const Rows& rows, std::uint64_t dropout_seed) {
  for (Input& input : inputs_) bind(input, rows_given(input, rows));
  if (staging_.bytes() == 0) return stage(rows, dropout_seed, block_.at(0));
  context_.runtime()->synchronize();  // the previous copy may still be reading the staging buffer
  stage(rows, dropout_seed, staging_.data());
  context_.runtime()->upload(block_.at(0), staging_.data(), block_.bytes());
}

void BoundProgram::stage_inputs(const Rows& rows) {
  for (Input& input : inputs_) {
    const std::int64_t recorded = program_.tape().info(input.value).shape.rows;
    check(rows_given(input, rows) == recorded, "[model] a captured program needs exactly {} rows of '{}'",
          recorded, program_.tape().info(input.value).name);
    bind(input, recorded);
  }
  stage(rows, 0, staging_.data());
}

void BoundProgram::queue_inputs() {
  context_.runtime()->upload(block_.at(0), staging_.data(), block_.bytes());
}

void BoundProgram::take_staged(const std::byte* place) {
  for (Input& input : inputs_) bind(input, program_.tape().info(input.value).shape.rows);
  context_.runtime()->copy(block_.at(0), place, block_.bytes());
}

std::vector<float> BoundProgram::fetch(Value kept) const {
  const Tensor tensor = program_.tensor(kept);
  std::vector<float> values(static_cast<std::size_t>(tensor.count()));
  context_.runtime()->download(values.data(), tensor.data, tensor.shape().bytes());
  context_.runtime()->synchronize();
  return values;
}

Tensor RecordedDecode::step(const Rows& rows) {
  const auto& runtime = context_.runtime();
  program_.stage_inputs(rows);
  if (steps_ == 0) {
    queue();
  } else {
    if (!graph_) graph_ = capture(*runtime, [&] { queue(); });
    graph_->launch();
  }
  runtime->synchronize();
  ++steps_;  // not earlier: a failed first step leaves products without plans
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
