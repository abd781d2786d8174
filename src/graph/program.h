// A program: a tape with its schedule, bound to memory and ready to run again and again.
//
//   Program program(std::move(tape), {.training = true, .keep = {nats}}, context);
//   program.bind(tokens, ...);  program.bind(w, ...);  program.bind_gradient(w, ...);
//   program.prepare();   // after the parameters changed
//   program.run();
//   program.tensor(nats);
//
// Inputs may be bound with fewer rows than were recorded: everything behind them shrinks with them, so one
// program serves all numbers of rows up to its own. Parameter gradients are added to; zeroing them once per
// optimizer step is the caller's part.
#pragma once

#include <functional>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/memory_plan.h"
#include "graph/schedule.h"
#include "tensor/arena.h"
#include "tensor/device.h"

namespace thimble {

// The schedule as a backend runs it, for programs and for plans alike. A GPU runs some steps in a row as one: what
// the first reads then lives as long as the last writes.
Schedule schedule_for(const Tape& tape, const ScheduleOptions& options, const Backend& backend);

// Steps from one on that a backend runs as one kernel; or the one by itself.
struct FusedSteps {
  FusedKernel kernel = nullptr;
  std::size_t count = 1;
};

// Where a program's time goes: seconds and work by op and phase.
struct OpTime {
  std::int64_t calls = 0;
  double seconds = 0;
  Work work;
};

class Profile {
 public:
  using Key = std::pair<std::string_view, Phase>;  // an op's name

  void add(const OpDefinition& op, Phase phase, double seconds, const Work& work) {
    OpTime& time = times_[{op.name, phase}];
    ++time.calls;
    time.seconds += seconds;
    time.work += work;
  }
  const std::map<Key, OpTime>& times() const { return times_; }

 private:
  std::map<Key, OpTime> times_;
};

class Program {
 public:
  // After each step: what ran, and its output by name. In backward: the node's inputs' gradients.
  using Hook = std::function<void(std::string_view name, Phase phase, const Tensor& tensor)>;

  // Runs on the context's device; the backend is one of its own (ops/table.h).
  Program(Tape tape, ScheduleOptions options, const Context& context, const Backend& backend);

  void bind(Value value, const Tensor& tensor);
  void bind_gradient(Value parameter, const Tensor& tensor);
  void prepare(Profile* profile = nullptr);

  // After each step of run(), with its place in the schedule: for whoever wants a gradient as soon as it is whole.
  using AfterStep = std::function<void(int step)>;
  void run(Profile* profile = nullptr, const AfterStep& after_step = {});

  Tensor tensor(Value kept) const;  // after run(): one of ScheduleOptions::keep
  void set_hook(Hook hook) { hook_ = std::move(hook); }

  // Before each product with a parameter: the parameter (not its copy in the compute dtype), and the rows it meets.
  using ProductHook = std::function<void(Value parameter, const Tensor& x)>;
  void set_product_hook(ProductHook hook) { product_hook_ = std::move(hook); }

  // The last step of run() that adds to a parameter's gradient; -1: none does.
  int last_writer(Value parameter) const;

  const Tape& tape() const { return tape_; }
  const MemoryPlan& plan() const { return plan_; }

 private:
  struct Call {
    Kernel kernel = nullptr;
    const Step* step = nullptr;
    std::vector<Tensor> in, out, d_out, d_in;
    OpCall op;
  };

  void make_calls();
  std::vector<Call> make_calls(const std::vector<Step>& steps);
  const Node& node_of(const Call& call) const {
    return tape_.nodes()[static_cast<std::size_t>(call.step->node)];
  }
  Shape actual_shape(Value value) const;
  void infer_actual_shapes();
  Tensor resolve(const Place& place) const;
  Tensor buffer_tensor(int buffer, Value value) const;
  void execute(const std::vector<Call>& calls, Profile* profile, const AfterStep& after_step);
  void report(const Call& call) const;
  void report_product(const Call& call) const;

  Tape tape_;
  ScheduleOptions options_;
  const Context& context_;
  const Backend& backend_;
  Schedule schedule_;
  std::vector<FusedSteps> fused_;  // by step
  MemoryPlan plan_;
  Arena arena_;
  std::vector<Tensor> bound_, bound_gradient_;  // by value
  std::vector<Shape> actual_;                   // by value: the shapes of this binding
  std::vector<Call> prepare_calls_, calls_;
  bool calls_are_current_ = false;
  Hook hook_;
  ProductHook product_hook_;
};

}  // namespace thimble
