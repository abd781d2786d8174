#include "graph/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/table.h"
#include "tensor/arena.h"

namespace thimble {

namespace {

bool alive_together(const Buffer& a, const Buffer& b) {
  if (a.kind == Buffer::Kind::prepared || b.kind == Buffer::Kind::prepared) return true;
  return a.first <= b.last && b.first <= a.last;
}

std::int64_t size_of(const Buffer& buffer) {
  return align_up(buffer.shape.bytes());
}

// Places large buffers first, each at the lowest offset that overlaps no placed buffer live at the
// same time.
std::vector<std::int64_t> place_buffers(const std::vector<Buffer>& buffers) {
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(
      order, [&](std::size_t a, std::size_t b) { return size_of(buffers[a]) > size_of(buffers[b]); });

  std::vector<std::int64_t> offsets(buffers.size(), 0);
  std::vector<std::size_t> placed;
  for (std::size_t i : order) {
    struct Range {
      std::int64_t begin, end;
    };
    std::vector<Range> taken;
    for (std::size_t j : placed)
      if (alive_together(buffers[i], buffers[j]))
        taken.push_back({offsets[j], offsets[j] + size_of(buffers[j])});
    std::ranges::sort(taken, {}, &Range::begin);
    std::int64_t place = 0;
    for (const Range& range : taken) {
      if (place + size_of(buffers[i]) <= range.begin) break;
      place = std::max(place, range.end);
    }
    offsets[i] = place;
    placed.push_back(i);
  }
  return offsets;
}

std::int64_t max_scratch(const Tape& tape, const Schedule& schedule, const Backend& backend) {
  std::int64_t most = 0;
  for (const auto* list : {&schedule.prepare, &schedule.steps})
    for (const Step& step : *list) {
      const Node& node = tape.nodes()[static_cast<std::size_t>(step.node)];
      std::vector<Shape> in;
      for (Value value : node.in) in.push_back(value ? tape.info(value).shape : Shape{});
      most = std::max(most, backend.scratch_bytes(*node.op, in, node.attributes));
    }
  return align_up(most);
}

}  // namespace

MemoryPlan plan_memory(const Tape& tape, const Schedule& schedule, const Backend& backend) {
  MemoryPlan plan;
  plan.offsets = place_buffers(schedule.buffers);
  for (std::size_t i = 0; i < schedule.buffers.size(); ++i) {
    const Buffer& buffer = schedule.buffers[i];
    plan.scratch_offset = std::max(plan.scratch_offset, plan.offsets[i] + size_of(buffer));
    (buffer.kind == Buffer::Kind::prepared     ? plan.prepared_bytes
     : buffer.kind == Buffer::Kind::activation ? plan.activation_bytes
                                               : plan.gradient_bytes) += size_of(buffer);
  }
  plan.scratch_bytes = max_scratch(tape, schedule, backend);
  plan.arena_bytes = plan.scratch_offset + plan.scratch_bytes;
  for (const ValueInfo& value : tape.values())
    if (value.kind == ValueKind::parameter) plan.parameter_bytes += value.shape.bytes();
  return plan;
}

std::string describe(const MemoryPlan& plan, bool training, std::int64_t optimizer_bytes) {
  const auto mib = [](std::int64_t bytes) {
    return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20));
  };
  const std::int64_t unshared =
      plan.prepared_bytes + plan.activation_bytes + plan.gradient_bytes + plan.scratch_bytes;
  Table table({"memory", "MiB"});
  table.row({"parameters", mib(plan.parameter_bytes)});
  if (training) table.row({"gradients of parameters", mib(plan.parameter_bytes)});
  if (optimizer_bytes > 0) table.row({"optimizer", mib(optimizer_bytes)});
  if (plan.prepared_bytes > 0) table.row({"prepared weights", mib(plan.prepared_bytes)});
  table.row({"activations", mib(plan.activation_bytes)});
  if (training) table.row({"gradients of activations", mib(plan.gradient_bytes)});
  table.row({"scratch", mib(plan.scratch_bytes)});
  table.row({"saved by reuse", mib(plan.arena_bytes - unshared)});
  table.row({"total", mib(plan.parameter_bytes * (training ? 2 : 1) + optimizer_bytes + plan.arena_bytes)});
  return table.text();
}

}  // namespace thimble
