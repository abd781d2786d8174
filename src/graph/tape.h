// The tape: a model's computation, recorded once as a list of nodes. Recording computes nothing.
//
//   Tape t;
//   Value x = t.input("x", {N, C});
//   Value w = t.parameter("fc.weight", {F, C});
//   Value y = op::activation(t, op::linear(t, x, w), ActivationKind::relu2);
//
// Each call checks shapes with the op's shape rule and appends a node {op, inputs, outputs,
// attributes}. schedule.h orders the nodes, memory_plan.h places values in memory, program.h runs
// them. An absent optional argument is Value{}.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/op.h"

namespace thimble {

struct Value {
  int id = -1;
  explicit operator bool() const { return id >= 0; }
  bool operator==(const Value&) const = default;
};

enum class ValueKind : std::uint8_t {
  input,      // bound before a run: tokens, positions, targets
  parameter,  // bound together with its gradient; not part of the memory plan
  state,      // bound, and written by the run: KV caches
  activation  // computed by a node; part of the memory plan
};

struct ValueInfo {
  Shape shape;
  ValueKind kind = ValueKind::activation;
  std::string name;
  int node = -1;    // the node that computes it
  int parent = -1;  // if a view: the value whose columns it is
  std::int64_t column = 0;
  bool needs_gradient = false;
};

struct Node {
  const OpDefinition* op = nullptr;
  std::vector<Value> in, out;
  Attributes attributes;
  int segment = -1;      // activation checkpointing: nodes of one segment are recomputed together
  bool prepare = false;  // depends only on parameters: runs once per optimizer step
};

class Tape {
 public:
  explicit Tape(DType dtype = DType::f32) : dtype_(dtype) {}

  // Values bound from outside. Inputs and states have the tape's dtype. Parameters and `floats` are
  // f32 if that is a 16-bit dtype: master weights, and inputs of statistics.
  Value input(std::string name, std::int64_t rows, std::int64_t cols);
  Value floats(std::string name, std::int64_t rows, std::int64_t cols);
  Value integers(std::string name, std::int64_t rows);
  Value parameter(std::string name, std::int64_t rows, std::int64_t cols);
  Value state(std::string name, std::int64_t rows, std::int64_t cols);
  // Stored weights or their scales (ops/linear.h): a parameter without a gradient.
  Value stored(std::string name, const Shape& shape);

  // A view of a range of columns, such as q, k and v in the result of one grouped linear.
  Value columns(Value x, std::int64_t begin, std::int64_t count);

  // Appends a node and checks its shapes. Absent inputs at the end may be omitted. Each op has its
  // own recorder that calls this: op::rmsnorm(tape, x, weight, eps).
  std::vector<Value> record(const OpDefinition& op, std::vector<Value> in, const Attributes& attributes = {});
  // Returns a different random stream for each dropout of a model.
  std::uint32_t next_dropout_stream() { return dropout_streams_++; }

  // Sets the name of a value, used by hooks and dumps, and returns the value.
  Value name(Value value, std::string text);

  // Assigns the nodes recorded from here on to segment `id` (-1: none). The nodes of a segment are
  // consecutive.
  void segment(int id) { segment_ = id; }

  DType dtype() const { return dtype_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<ValueInfo>& values() const { return values_; }
  const ValueInfo& info(Value value) const { return values_[static_cast<std::size_t>(value.id)]; }
  // The value whose memory this one is a view of; the value itself if it is not a view.
  Value root(Value value) const { return info(value).parent < 0 ? value : Value{info(value).parent}; }

 private:
  Value add_value(ValueInfo info);

  DType dtype_;
  int segment_ = -1;
  std::uint32_t dropout_streams_ = 0;
  std::vector<Node> nodes_;
  std::vector<ValueInfo> values_;
};

}  // namespace thimble
