// A program: a tape and its schedule, bound to memory, which can be run any number of times.
//
//   Program program(std::move(tape), {.training = true, .keep = {nats}}, context);
//   program.bind(tokens, ...);  program.bind(w, ...);  program.bind_gradient(w, ...);
//   program.prepare();   // after the parameters changed
//   program.run();
//   program.tensor(nats);
//
// Inputs may be bound with fewer rows than were recorded. All values computed from them shrink
// accordingly, so one program handles any number of rows up to the recorded one. run() adds to
// parameter gradients; the caller must zero them once per optimizer step.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/memory_plan.h"
#include "graph/schedule.h"
#include "tensor/arena.h"
#include "tensor/device.h"

namespace thimble {

// The schedule of a tape on a backend, for programs and for memory plans. Where the backend fuses
// steps, the inputs of the first live until the last has run.
Schedule schedule_for(const Tape& tape, const ScheduleOptions& options, const Backend& backend);

// A run of steps that the backend executes as one kernel, or a single step.
struct FusedSteps {
  FusedKernel kernel = nullptr;
  std::size_t count = 1;
};

// The time and work of a program by op and phase.
struct OpTime {
  std::int64_t calls = 0;
  double seconds = 0;
  Work work;
};

class Profile {
 public:
  using Key = std::pair<std::string_view, Phase>;  // the op's name

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
  // Called after each step: in forward with each output and its name, in backward with the gradient
  // of each input and the input's name.
  using Hook = std::function<void(std::string_view name, Phase phase, const Tensor& tensor)>;

  // Runs on the context's device; `backend` must be a backend of that device (ops/table.h). Both
  // must outlive the program. If the memory of `lender` is large enough, the program uses it too:
  // only one of the two may run at a time, and each must be prepared again after the other ran.
  Program(Tape tape, ScheduleOptions options, const Context& context, const Backend& backend,
          const Program* lender = nullptr);

  void bind(Value value, const Tensor& tensor);
  void bind_gradient(Value parameter, const Tensor& tensor);
  void prepare(Profile* profile = nullptr);
  // Whether the values of prepare() are still there: no other program has used the memory since.
  bool is_prepared() const { return memory_->user == this; }

  // Called after each step of run() with its index in the schedule, so that a gradient can be used
  // as soon as it is complete.
  using AfterStep = std::function<void(int step)>;
  void run(Profile* profile = nullptr, const AfterStep& after_step = {});

  Tensor tensor(Value kept) const;  // valid after run(), for a value in ScheduleOptions::keep
  void set_hook(Hook hook) { hook_ = std::move(hook); }

  // Called before each product with a parameter: the parameter (not its copy in the compute dtype),
  // and the rows it is multiplied by.
  using ProductHook = std::function<void(Value parameter, const Tensor& x)>;
  void set_product_hook(ProductHook hook) { product_hook_ = std::move(hook); }

  // The index of the last step of run() that adds to the parameter's gradient, or -1.
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

  struct Memory {
    Arena arena;
    const Program* user = nullptr;  // the one that was prepared last
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
  std::vector<FusedSteps> fused_;  // indexed by step
  MemoryPlan plan_;
  std::shared_ptr<Memory> memory_;
  std::vector<Tensor> bound_, bound_gradient_;  // indexed by value
  std::vector<Shape> actual_;                   // indexed by value: shapes of the current binding
  std::vector<Call> prepare_calls_, calls_;
  bool calls_are_current_ = false;
  Hook hook_;
  ProductHook product_hook_;
};

}  // namespace thimble
