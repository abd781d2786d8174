// The tape: a model's computation, recorded once as a list of nodes. Nothing runs while recording.
//
//   Tape t;
//   Value x = t.input("x", {N, C});
//   Value w = t.parameter("fc.weight", {F, C});
//   Value y = op::activation(t, op::linear(t, x, w), ActivationKind::relu2);
//
// Each call checks shapes at the op's front door and appends a node {op, inputs, outputs, attributes}.
// schedule.h decides what runs when, memory_plan.h where values lie in memory, program.h runs it. An absent optional
// argument is Value{}.
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
  parameter,  // bound with its gradient; lives outside of the plan
  state,      // bound, and written by the run: KV caches
  activation  // made and planned here
};

struct ValueInfo {
  Shape shape;
  ValueKind kind = ValueKind::activation;
  std::string name;
  int node = -1;    // which makes it
  int parent = -1;  // a view of columns of this value
  std::int64_t column = 0;
  bool wants_gradient = false;
};

struct Node {
  const OpDefinition* op = nullptr;
  std::vector<Value> in, out;
  Attributes attributes;
  int segment = -1;      // activation checkpointing: nodes of one segment are recomputed together
  bool prepare = false;  // depends on parameters alone: runs once per optimizer step
};

class Tape {
 public:
  explicit Tape(DType dtype = DType::f32) : dtype_(dtype) {}

  // What comes from outside. Inputs and states have the tape's dtype. Parameters and other floats are f32 where
  // that is lower: master weights, and what statistics are made of.
  Value input(std::string name, std::int64_t rows, std::int64_t cols);
  Value floats(std::string name, std::int64_t rows, std::int64_t cols);
  Value integers(std::string name, std::int64_t rows);
  Value parameter(std::string name, std::int64_t rows, std::int64_t cols);
  Value state(std::string name, std::int64_t rows, std::int64_t cols);
  // A part of stored weights (ops/linear.h), values or scales: a parameter without a gradient.
  Value stored(std::string name, const Shape& shape);

  // A part of a value, without copying: q, k and v of one grouped linear.
  Value columns(Value x, std::int64_t begin, std::int64_t count);

  // Appends a node. Shapes are checked at the op's front door; absent inputs behind the last given one may be left out.
  // Ops have recorders of their own: op::rmsnorm(tape, x, weight, eps).
  std::vector<Value> record(const OpDefinition& op, std::vector<Value> in, const Attributes& attributes = {});
  // Tells the places of dropout in a model apart.
  std::uint32_t next_dropout_stream() { return dropout_streams_++; }

  // Names a value, for hooks and dumps. Returns it.
  Value name(Value value, std::string text);

  // Nodes recorded from here on belong to segment `id` (-1: none). A segment's nodes are consecutive.
  void segment(int id) { segment_ = id; }

  DType dtype() const { return dtype_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<ValueInfo>& values() const { return values_; }
  const ValueInfo& info(Value value) const { return values_[static_cast<std::size_t>(value.id)]; }
  // The value whose memory this one is a view of (itself, if it is none).
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
