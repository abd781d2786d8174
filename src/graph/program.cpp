#include "graph/program.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <span>

#include "base/error.h"

namespace thimble {

namespace {

// Whether `next` uses the result of `step`. In backward, the two must also share the buffer: then
// `step` has completed the gradient that `next` reads.
bool follows(const Step& step, const Step& next) {
  const bool backward = step.phase == Phase::backward;
  if (backward != (next.phase == Phase::backward)) return false;
  const auto& from = backward ? step.d_in : step.out;
  const auto& to = backward ? next.d_out : next.in;
  return !from.empty() && !to.empty() && from[0].kind == Place::Kind::buffer &&
         from[0].value == to[0].value && from[0].buffer == to[0].buffer;
}

// The longest run of steps, starting with the first, for which the backend has one kernel.
FusedSteps longest_fused(const Tape& tape, std::span<const Step> steps, const Backend& backend) {
  std::vector<const OpDefinition*> ops;
  for (std::size_t i = 0; i < std::min(kMaxFused, steps.size()); ++i) {
    if (i > 0 && !follows(steps[i - 1], steps[i])) break;
    ops.push_back(tape.nodes()[static_cast<std::size_t>(steps[i].node)].op);
  }
  for (; ops.size() > 1; ops.pop_back())
    if (const FusedKernel kernel = backend.fused(ops, steps[0].phase == Phase::backward))
      return {kernel, ops.size()};
  return {};
}

std::vector<FusedSteps> fused_of(const Tape& tape, const Schedule& schedule, const Backend& backend) {
  std::vector<FusedSteps> fused(schedule.steps.size());
  if (backend.fused_runs.empty()) return fused;
  for (std::size_t i = 0; i < fused.size(); i += fused[i].count)
    fused[i] = longest_fused(tape, std::span(schedule.steps).subspan(i), backend);
  return fused;
}

}  // namespace

Schedule schedule_for(const Tape& tape, const ScheduleOptions& options, const Backend& backend) {
  Schedule schedule = make_schedule(tape, options);
  const std::vector<FusedSteps> fused = fused_of(tape, schedule, backend);
  std::vector<int> until(schedule.steps.size() + 1);  // by step: the last step it is fused with
  for (std::size_t i = 0; i < until.size(); ++i) until[i] = static_cast<int>(i);
  for (std::size_t i = 0; i < fused.size(); ++i)
    for (std::size_t j = i; j < i + fused[i].count; ++j)
      until[j] = std::max(until[j], static_cast<int>(i + fused[i].count - 1));
  for (Buffer& buffer : schedule.buffers) buffer.last = until[static_cast<std::size_t>(buffer.last)];
  return schedule;
}

Program::Program(Tape tape, ScheduleOptions options, const Context& context, const Backend& backend,
                 const Program* lender)
    : tape_(std::move(tape)),
      options_(std::move(options)),
      context_(context),
      backend_(backend),
      schedule_(schedule_for(tape_, options_, backend_)),
      fused_(fused_of(tape_, schedule_, backend_)),
      plan_(plan_memory(tape_, schedule_, backend_)),
      memory_(lender ? lender->memory_ : nullptr),
      bound_(tape_.values().size()),
      bound_gradient_(tape_.values().size()),
      actual_(tape_.values().size()) {
  if (memory_ && memory_->arena.bytes() >= plan_.arena_bytes) return;
  memory_ = std::make_shared<Memory>();
  memory_->arena = Arena(context.runtime(), plan_.arena_bytes, options_.training ? "training" : "inference",
                         options_.training ? "lower micro_batch or context" : "compute fewer rows at a time");
}

void Program::bind(Value value, const Tensor& tensor) {
  const ValueInfo& info = tape_.info(value);
  check(info.kind != ValueKind::activation, "[program] '{}' is computed, not bound", info.name);
  const bool rows_fit =
      info.kind == ValueKind::input ? tensor.rows <= info.shape.rows : tensor.rows == info.shape.rows;
  check(tensor.dtype == info.shape.dtype && tensor.cols == info.shape.cols && rows_fit,
        "[program] '{}' was recorded as {}, got {}", info.name, info.shape.text(), tensor.shape().text());
  bound_[static_cast<std::size_t>(value.id)] = tensor;
  calls_are_current_ = false;
}

void Program::bind_gradient(Value parameter, const Tensor& tensor) {
  const ValueInfo& info = tape_.info(parameter);
  check(info.kind == ValueKind::parameter, "[program] '{}' is not a parameter", info.name);
  check(tensor.rows == info.shape.rows && tensor.cols == info.shape.cols,
        "[program] the gradient of '{}' must be {}, got {}", info.name, info.shape.text(),
        tensor.shape().text());
  bound_gradient_[static_cast<std::size_t>(parameter.id)] = tensor;
  calls_are_current_ = false;
}

void Program::prepare(Profile* profile) {
  make_calls();
  memory_->user = this;
  execute(prepare_calls_, profile, {});
}

void Program::run(Profile* profile, const AfterStep& after_step) {
  make_calls();
  execute(calls_, profile, after_step);
}

Tensor Program::tensor(Value kept) const {
  const auto place = std::ranges::find(options_.keep, kept);
  check(place != options_.keep.end(), "[program] '{}' is not kept after a run", tape_.info(kept).name);
  return buffer_tensor(schedule_.kept[static_cast<std::size_t>(place - options_.keep.begin())], kept);
}

int Program::last_writer(Value parameter) const {
  for (std::size_t i = schedule_.steps.size(); i-- > 0;)
    for (const Place& place : schedule_.steps[i].d_in)
      if (place.kind == Place::Kind::bound_gradient && place.value == parameter.id)
        return static_cast<int>(i);
  return -1;
}

Shape Program::actual_shape(Value value) const {
  return value ? actual_[static_cast<std::size_t>(value.id)] : Shape{};
}

void Program::infer_actual_shapes() {
  for (std::size_t i = 0; i < actual_.size(); ++i) {
    const ValueInfo& info = tape_.values()[i];
    if (info.kind == ValueKind::activation) continue;
    actual_[i] = bound_[i] ? bound_[i].shape() : info.shape;
  }
  for (const Node& node : tape_.nodes()) {
    std::vector<Shape> in;
    for (Value value : node.in) {
      if (value && tape_.info(value).parent >= 0) {
        Shape& view = actual_[static_cast<std::size_t>(value.id)] = tape_.info(value).shape;
        view.rows = actual_shape(tape_.root(value)).rows;
      }
      in.push_back(actual_shape(value));
    }
    const std::vector<Shape> out = node.op->shapes(in, node.attributes);
    for (std::size_t i = 0; i < out.size(); ++i) actual_[static_cast<std::size_t>(node.out[i].id)] = out[i];
  }
}

Tensor Program::buffer_tensor(int buffer, Value value) const {
  const Buffer& from = schedule_.buffers[static_cast<std::size_t>(buffer)];
  Shape shape = actual_shape(Value{from.value});
  shape.dtype = from.shape.dtype;  // a gradient may have a wider dtype than its value
  const Tensor whole{memory_->arena.at(plan_.offsets[static_cast<std::size_t>(buffer)]),
                     shape.rows,
                     shape.cols,
                     shape.cols,
                     shape.dtype,
                     context_.device()};
  const ValueInfo& info = tape_.info(value);
  return info.parent < 0 ? whole : whole.columns(info.column, info.shape.cols);
}

Tensor Program::resolve(const Place& place) const {
  const auto value = static_cast<std::size_t>(place.value);
  switch (place.kind) {
    case Place::Kind::absent:
      return {};
    case Place::Kind::shape_only: {
      const Shape shape = actual_[value];
      return {nullptr, shape.rows, shape.cols, shape.cols, shape.dtype, context_.device()};
    }
    case Place::Kind::bound:
      check(static_cast<bool>(bound_[value]), "[program] '{}' is not bound", tape_.values()[value].name);
      return bound_[value];
    case Place::Kind::bound_gradient:
      return bound_gradient_[value];  // not bound: not needed
    case Place::Kind::buffer:
      break;
  }
  return buffer_tensor(place.buffer, Value{place.value});
}

std::vector<Program::Call> Program::make_calls(const std::vector<Step>& steps) {
  std::vector<Call> calls;
  calls.reserve(steps.size());
  for (const Step& step : steps) {
    const Node& node = tape_.nodes()[static_cast<std::size_t>(step.node)];
    const Kernels* kernels = backend_.find(*node.op);
    Call& call = calls.emplace_back();
    call.step = &step;
    if (kernels) call.kernel = step.phase == Phase::backward ? kernels->backward : kernels->forward;
    check(call.kernel != nullptr, "[{}] has no kernel for this device", node.op->name);
    for (const Place& place : step.in) call.in.push_back(resolve(place));
    for (const Place& place : step.out) call.out.push_back(resolve(place));
    for (const Place& place : step.d_out) call.d_out.push_back(resolve(place));
    for (const Place& place : step.d_in) call.d_in.push_back(resolve(place));
    const Tensor scratch{memory_->arena.at(plan_.scratch_offset),
                         1,
                         plan_.scratch_bytes,
                         plan_.scratch_bytes,
                         DType::u8,
                         context_.device()};
    call.op = {call.in, call.out, call.d_out, call.d_in, step.add, node.attributes, scratch};
    validate_call(*node.op, backend_, call.op);
  }
  return calls;
}

void Program::make_calls() {
  if (calls_are_current_) return;
  infer_actual_shapes();
  prepare_calls_ = make_calls(schedule_.prepare);
  calls_ = make_calls(schedule_.steps);
  calls_are_current_ = true;
}

void Program::execute(const std::vector<Call>& calls, Profile* profile, const AfterStep& after_step) {
  for (std::size_t i = 0, together = 1; i < calls.size(); i += together) {
    // With a hook installed, ops run unfused, because a fused kernel does not store (and round) the
    // intermediate results.
    const bool watched = hook_ || product_hook_;
    const FusedSteps fused = &calls == &calls_ && !watched ? fused_[i] : FusedSteps{};
    together = fused.count;
    if (product_hook_) report_product(calls[i]);
    const auto started = std::chrono::steady_clock::now();
    if (fused.kernel) {
      std::array<const OpCall*, kMaxFused> ops = {};
      for (std::size_t j = 0; j < together; ++j) ops[j] = &calls[i + j].op;
      fused.kernel(context_, std::span(ops).first(together));
    } else {
      calls[i].kernel(context_, calls[i].op);
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - started;
    for (std::size_t done = i; profile && done < i + together; ++done) {
      const OpDefinition& op = *node_of(calls[done]).op;
      profile->add(op, calls[done].step->phase, taken.count() / static_cast<double>(together),
                   work_of(op, calls[done].op));
    }
    if (hook_) report(calls[i]);
    if (after_step) after_step(static_cast<int>(i + together - 1));
  }
}

void Program::report(const Call& call) const {
  const Step& step = *call.step;
  const auto& places = step.phase == Phase::backward ? step.d_in : step.out;
  const auto& tensors = step.phase == Phase::backward ? call.d_in : call.out;
  for (std::size_t i = 0; i < places.size(); ++i)
    if (tensors[i])
      hook_(tape_.values()[static_cast<std::size_t>(places[i].value)].name, step.phase, tensors[i]);
}

void Program::report_product(const Call& call) const {
  const Node& node = node_of(call);
  if (call.step->phase == Phase::backward || node.op->multiplied_input < 0) return;
  Value weight = node.in[static_cast<std::size_t>(node.op->multiplied_input)];
  while (tape_.info(weight).node >= 0)  // a copy in another dtype, or a fake-quantized one
    weight = tape_.nodes()[static_cast<std::size_t>(tape_.info(weight).node)].in[0];
  product_hook_(weight, call.in[0]);
}

}  // namespace thimble
