#include "graph/schedule.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace thimble {

namespace {

// If more nodes than this read a value, its gradient is summed in f32, because each rounding of a
// bf16 sum costs up to 2^-9. The most affected value is x0 of the golf models, which every layer
// reads.
constexpr int kMaxReadersOfNarrowGradient = 2;

struct Columns {
  std::int64_t begin, end;
  bool operator==(const Columns&) const = default;
};

class Scheduler {
 public:
  Scheduler(const Tape& tape, const ScheduleOptions& options)
      : tape_(tape),
        options_(options),
        activation_(tape.values().size(), -1),
        gradient_(tape.values().size(), -1),
        written_(tape.values().size()) {}

  Schedule build() {
    for (int n = 0; n < node_count(); ++n)
      if (node(n).prepare) add_forward(n, Phase::forward, schedule_.prepare, Buffer::Kind::prepared);
    for (int n = 0; n < node_count(); ++n)
      if (!node(n).prepare && !(options_.training && op(n).loss)) run_forward(n);
    if (options_.training) add_backward();
    keep_to_the_end();
    return std::move(schedule_);
  }

 private:
  int node_count() const { return static_cast<int>(tape_.nodes().size()); }
  const Node& node(int n) const { return tape_.nodes()[static_cast<std::size_t>(n)]; }
  const OpDefinition& op(int n) const { return *node(n).op; }
  int now() const { return static_cast<int>(schedule_.steps.size()); }
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }

  int new_buffer(Buffer::Kind kind, Value root) {
    const Shape shape = kind == Buffer::Kind::gradient ? gradient_shape(root) : tape_.info(root).shape;
    schedule_.buffers.push_back({kind, root.id, shape, now(), now()});
    return static_cast<int>(schedule_.buffers.size()) - 1;
  }

  Shape gradient_shape(Value root) const {
    Shape shape = tape_.info(root).shape;
    if (readers(root) > kMaxReadersOfNarrowGradient) shape.dtype = statistic_dtype(shape.dtype);
    return shape;
  }

  // The number of inputs through which nodes add to the value's gradient.
  int readers(Value value) const {
    int count = 0;
    for (const Node& from : tape_.nodes())
      for (std::size_t i = 0; i < from.in.size(); ++i)
        if (from.in[i] == value && from.op->input_is(i, is::differentiable)) ++count;
    return count;
  }

  Place read(Value value) {
    if (!value) return {};
    const Value root = tape_.root(value);
    if (tape_.info(root).kind != ValueKind::activation) return {Place::Kind::bound, value.id, -1};
    const int buffer = activation_[at(root.id)];
    check(buffer >= 0, "[schedule] '{}' is read before it is computed", tape_.info(value).name);
    schedule_.buffers[at(buffer)].last = now();
    return {Place::Kind::buffer, value.id, buffer};
  }

  Place shape_only(Value value) const {
    return value ? Place{Place::Kind::shape_only, value.id, -1} : Place{};
  }

  Place write(Value value, Buffer::Kind kind) {
    const int buffer = activation_[at(value.id)] = new_buffer(kind, value);
    return {Place::Kind::buffer, value.id, buffer};
  }

  void run_forward(int n) { add_forward(n, Phase::forward, schedule_.steps, Buffer::Kind::activation); }

  void add_forward(int n, Phase phase, std::vector<Step>& list, Buffer::Kind kind) {
    Step step{.node = n, .phase = phase, .in = {}, .out = {}, .d_out = {}, .d_in = {}};
    for (Value value : node(n).in) step.in.push_back(read(value));
    for (Value value : node(n).out) step.out.push_back(write(value, kind));
    list.push_back(std::move(step));
  }

  void add_backward() {
    check(std::ranges::any_of(tape_.nodes(), [](const Node& node) { return node.op->loss; }),
          "[schedule] training needs a loss on the tape");
    std::set<int> recomputed;
    for (int n = node_count() - 1; n >= 0; --n) {
      if (node(n).prepare || !(op(n).loss || has_gradient(n))) continue;
      check(op(n).reference && op(n).reference->backward,
            "[schedule] {} has no backward: it supports inference only", op(n).name);
      const int segment = node(n).segment;
      if (options_.recompute && segment >= 0 && recomputed.insert(segment).second) recompute(segment);
      add_backward_step(n);
    }
  }

  bool has_gradient(int n) const {
    return std::ranges::any_of(node(n).out, [&](Value value) { return gradient_[at(value.id)] >= 0; });
  }

  // If a node takes a value twice, it is read if either input is saved, so that the kernel can
  // detect that both are the same.
  bool backward_reads(int n, Value value) const {
    for (std::size_t i = 0; i < node(n).in.size(); ++i)
      if (node(n).in[i] == value && op(n).input_is(i, is::saved)) return true;
    return false;
  }

  void check_training_inputs(int n) const {
    for (std::size_t i = 0; i < op(n).inputs.size(); ++i)
      check(!op(n).input_is(i, is::needed_in_training) || (i < node(n).in.size() && node(n).in[i]),
            "[{}] training needs `{}`, which is missing", op(n).name, op(n).inputs[i].name);
  }

  void check_gradients_of_outputs(int n, const Step& step) const {
    for (std::size_t i = 0; i < step.d_out.size(); ++i)
      check(!op(n).outputs[i].must_be_read || step.d_out[i].kind != Place::Kind::absent,
            "[{}] training needs `{}` to be read, and nothing reads it", op(n).name, op(n).outputs[i].name);
  }

  void add_backward_step(int n) {
    check_training_inputs(n);
    Step step{.node = n, .phase = Phase::backward, .in = {}, .out = {}, .d_out = {}, .d_in = {}};
    const Node& from = node(n);
    for (Value value : from.in) step.in.push_back(backward_reads(n, value) ? read(value) : shape_only(value));
    for (std::size_t i = 0; i < from.out.size(); ++i) {
      if (op(n).loss)
        step.out.push_back(write(from.out[i], Buffer::Kind::activation));
      else
        step.out.push_back(op(n).saves_output(i) ? read(from.out[i]) : shape_only(from.out[i]));
    }
    if (!op(n).loss)
      for (Value value : from.out) step.d_out.push_back(read_gradient(value));
    check_gradients_of_outputs(n, step);
    for (std::size_t i = 0; i < from.in.size(); ++i) {
      const bool wanted =
          from.in[i] && op(n).input_is(i, is::differentiable) && tape_.info(from.in[i]).needs_gradient;
      if (wanted && takes_over_gradient(n, i)) gradient_[at(from.in[i].id)] = gradient_[at(from.out[0].id)];
      step.d_in.push_back(wanted ? write_gradient(from.in[i], step.add, i) : Place{});
    }
    schedule_.steps.push_back(std::move(step));
  }

  Place read_gradient(Value value) {
    const int buffer = gradient_[at(value.id)];
    if (buffer < 0) return {};
    std::int64_t covered = 0;
    for (const Columns& part : written_[at(value.id)]) covered += part.end - part.begin;
    check(covered == tape_.info(value).shape.cols, "[schedule] only {} of the {} columns of '{}' are read",
          covered, tape_.info(value).shape.cols, tape_.info(value).name);
    schedule_.buffers[at(buffer)].last = now();
    return {Place::Kind::buffer, value.id, buffer};
  }

  // Whether input i's gradient can take over the buffer of output 0's gradient, which no later step
  // reads.
  bool takes_over_gradient(int n, std::size_t i) const {
    const Value from = node(n).in[i];
    const auto same_root = [&](Value other) { return other && tape_.root(other) == from; };
    return op(n).input_is(i, is::passes_gradient) && tape_.info(from).kind == ValueKind::activation &&
           tape_.root(from) == from && !parameter_behind(from) && gradient_[at(from.id)] < 0 &&
           std::ranges::count_if(node(n).in, same_root) == 1 &&
           gradient_shape(from) == schedule_.buffers[at(gradient_[at(node(n).out[0].id)])].shape;
  }

  // The gradient of a parameter, or of a `prepare` copy of it (straight through), is added to the
  // parameter's own.
  Place write_gradient(Value value, std::uint32_t& add, std::size_t i) {
    const Value root = tape_.root(value);
    if (const Value parameter = parameter_behind(root)) {
      add |= 1u << i;
      return {Place::Kind::bound_gradient, parameter.id, -1};
    }
    const Columns columns{tape_.info(value).column, tape_.info(value).column + tape_.info(value).shape.cols};
    std::vector<Columns>& written = written_[at(root.id)];
    if (std::ranges::find(written, columns) != written.end()) {
      add |= 1u << i;
    } else {
      for (const Columns& other : written)
        check(columns.end <= other.begin || other.end <= columns.begin,
              "[schedule] '{}' is read by overlapping ranges of columns", tape_.info(root).name);
      written.push_back(columns);
    }
    int& buffer = gradient_[at(root.id)];
    if (buffer < 0) buffer = new_buffer(Buffer::Kind::gradient, root);
    schedule_.buffers[at(buffer)].last = now();
    return {Place::Kind::buffer, value.id, buffer};
  }

  Value parameter_behind(Value root) const {
    while (tape_.info(root).kind == ValueKind::activation) {
      const int n = tape_.info(root).node;
      if (!node(n).prepare) return {};
      check(op(n).straight_through, "[schedule] {} of a parameter has no straight-through gradient",
            op(n).name);
      root = node(n).in[0];
    }
    return tape_.info(root).kind == ValueKind::parameter ? root : Value{};
  }

  // Recomputes the values that the segment's backward reads, except those that are kept alive by a
  // reader outside of the segment.
  void recompute(int segment) {
    std::vector<int> nodes;
    for (int n = 0; n < node_count(); ++n)
      if (node(n).segment == segment && !op(n).loss) nodes.push_back(n);

    std::set<int> needed;
    const auto need = [&](Value value) {
      if (!value) return;
      const Value root = tape_.root(value);
      const int maker = tape_.info(root).node;
      if (maker >= 0 && node(maker).segment == segment && !op(maker).loss && !read_elsewhere(root, segment))
        needed.insert(maker);
    };
    for (int n : nodes) {
      for (std::size_t i = 0; i < node(n).in.size(); ++i)
        if (op(n).input_is(i, is::saved)) need(node(n).in[i]);
      for (std::size_t i = 0; i < node(n).out.size(); ++i)
        if (op(n).saves_output(i)) need(node(n).out[i]);
    }
    for (auto n = nodes.rbegin(); n != nodes.rend(); ++n)
      if (needed.contains(*n))
        for (Value value : node(*n).in) need(value);
    for (int n : nodes)
      if (needed.contains(n)) add_forward(n, Phase::recompute, schedule_.steps, Buffer::Kind::activation);
  }

  bool read_elsewhere(Value root, int segment) const {
    for (const Node& other : tape_.nodes())
      if (other.segment != segment || other.op->loss)
        for (Value value : other.in)
          if (value && tape_.root(value) == root) return true;
    return std::ranges::any_of(options_.keep, [&](Value value) { return tape_.root(value) == root; });
  }

  void keep_to_the_end() {
    for (Value value : options_.keep) {
      const int buffer = activation_[at(tape_.root(value).id)];
      check(buffer >= 0, "[schedule] '{}' is in `keep`, but no node computes it", tape_.info(value).name);
      schedule_.buffers[at(buffer)].last = now();
      schedule_.kept.push_back(buffer);
    }
  }

  const Tape& tape_;
  const ScheduleOptions& options_;
  Schedule schedule_;
  std::vector<int> activation_, gradient_;     // by value: its buffer and that of its gradient
  std::vector<std::vector<Columns>> written_;  // by value: columns of its gradient written so far
};

}  // namespace

Schedule make_schedule(const Tape& tape, const ScheduleOptions& options) {
  return Scheduler(tape, options).build();
}

}  // namespace thimble
