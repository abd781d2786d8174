#include "graph/tape.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace thimble {

Value Tape::add_value(ValueInfo info) {
  values_.push_back(std::move(info));
  return {static_cast<int>(values_.size()) - 1};
}

Value Tape::input(std::string name, std::int64_t rows, std::int64_t cols) {
  return add_value({.shape = {rows, cols, dtype_}, .kind = ValueKind::input, .name = std::move(name)});
}

Value Tape::floats(std::string name, std::int64_t rows, std::int64_t cols) {
  return add_value(
      {.shape = {rows, cols, statistic_dtype(dtype_)}, .kind = ValueKind::input, .name = std::move(name)});
}

Value Tape::integers(std::string name, std::int64_t rows) {
  return add_value({.shape = {rows, 1, DType::i32}, .kind = ValueKind::input, .name = std::move(name)});
}

Value Tape::parameter(std::string name, std::int64_t rows, std::int64_t cols) {
  return add_value({.shape = {rows, cols, statistic_dtype(dtype_)},
                    .kind = ValueKind::parameter,
                    .name = std::move(name),
                    .needs_gradient = true});
}

Value Tape::state(std::string name, std::int64_t rows, std::int64_t cols) {
  return add_value({.shape = {rows, cols, dtype_}, .kind = ValueKind::state, .name = std::move(name)});
}

Value Tape::stored(std::string name, const Shape& shape) {
  return add_value({.shape = shape, .kind = ValueKind::parameter, .name = std::move(name)});
}

Value Tape::columns(Value x, std::int64_t begin, std::int64_t count) {
  const ValueInfo& whole = info(x);
  check(begin >= 0 && count > 0 && begin + count <= whole.shape.cols,
        "[tape] columns {} to {} are outside of '{}', which has {}", begin, begin + count, whole.name,
        whole.shape.cols);
  check(whole.kind == ValueKind::activation && whole.parent < 0,
        "[tape] '{}' cannot be viewed by columns: it is bound from outside or already a view", whole.name);
  ValueInfo part = whole;
  part.shape.cols = count;
  part.parent = x.id;
  part.column = begin;
  part.name = fmt::format("{}[{}:{}]", whole.name, begin, begin + count);
  return add_value(std::move(part));
}

std::vector<Value> Tape::record(const OpDefinition& op, std::vector<Value> in, const Attributes& attributes) {
  while (!in.empty() && !in.back()) in.pop_back();
  std::vector<Shape> shapes;
  bool needs_gradient = false, prepare = !in.empty();
  for (std::size_t i = 0; i < in.size(); ++i) {
    shapes.push_back(in[i] ? info(in[i]).shape : Shape{});
    if (!in[i]) continue;
    const ValueInfo& from = info(in[i]);
    if (op.input_is(i, is::differentiable)) needs_gradient |= from.needs_gradient;
    prepare &= from.kind == ValueKind::parameter ||
               (from.node >= 0 && nodes_[static_cast<std::size_t>(from.node)].prepare);
  }
  Node node{.op = &op,
            .in = std::move(in),
            .out = {},
            .attributes = attributes,
            .segment = prepare ? -1 : segment_,
            .prepare = prepare};
  const int index = static_cast<int>(nodes_.size());
  const std::vector<Shape> outputs = op.shapes(shapes, attributes);
  for (std::size_t i = 0; i < outputs.size(); ++i)
    node.out.push_back(add_value(
        {.shape = outputs[i],
         .kind = ValueKind::activation,
         .name = i == 0 ? fmt::format("{}.{}", op.name, index) : fmt::format("{}.{}.{}", op.name, index, i),
         .node = index,
         .needs_gradient = needs_gradient}));
  nodes_.push_back(std::move(node));
  return nodes_.back().out;
}

Value Tape::name(Value value, std::string text) {
  values_[static_cast<std::size_t>(value.id)].name = std::move(text);
  return value;
}

}  // namespace thimble
