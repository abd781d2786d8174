// A recorded GPT with memory for its inputs: rows in, nats or logits out.
//
// All inputs of a run are in one block with a fixed layout. Rows can therefore be staged in pinned
// memory while the device is busy, and one copy feeds a captured run. On the CPU the block is
// written directly.
#pragma once

#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <variant>
#include <vector>

#include "config/config.h"
#include "graph/program.h"
#include "model/gpt.h"
#include "model/rows.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace thimble {

class BoundProgram {
 public:
  // lender: see Program.
  BoundProgram(GptGraph graph, const ScheduleOptions& options, const Context& context,
               const Program* lender = nullptr);

  Program& program() { return program_; }
  const Program& program() const { return program_; }
  const GptGraph& graph() const { return graph_; }

  // Writes rows in the block's layout to `place`, input_bytes() bytes of host memory. If there are
  // fewer rows than recorded, the remaining bytes are not written.
  std::int64_t input_bytes() const { return block_.bytes(); }
  void stage(const Rows& rows, std::uint64_t dropout_seed, std::byte* place) const;

  void set_inputs(const Rows& rows, std::uint64_t dropout_seed = 0);
  // set_inputs() in two parts, for devices. stage_inputs() writes exactly as many rows as were
  // recorded; the previous copy must have finished. queue_inputs() queues the copy and can be
  // captured.
  void stage_inputs(const Rows& rows);
  void queue_inputs();
  void take_staged(const std::byte* place);  // queues a copy from a full block in device memory

  Tensor row_weights() const { return bound(graph_.weight); }
  std::vector<float> fetch(Value kept) const;  // copies to host memory; waits

  // What was last bound or prepared. The caller compares these and binds again after a change.
  const void* gradients = nullptr;
  const std::byte* cache = nullptr;
  std::uint64_t version = 0;

 private:
  struct Input {
    Value value;
    std::vector<std::int32_t> Rows::*integers = nullptr;  // nullptr: the row weights or the seed
    std::int64_t offset = 0, rows = 0;                    // rows: number currently bound
  };

  std::vector<Input> lay_out() const;
  std::int64_t rows_given(const Input& input, const Rows& rows) const;  // throws if more than recorded
  std::int64_t size_of_inputs() const;
  Tensor bound(Value value) const;
  void bind(Input& input, std::int64_t rows);

  GptGraph graph_;
  const Context& context_;
  Program program_;
  std::vector<Input> inputs_;
  Arena block_;
  PinnedBuffer staging_;  // empty on the CPU
};

// The purpose of a program, with everything besides the config that its tape and schedule depend
// on.
struct ForTraining {
  int qat_bits = 0;
  bool recompute = false;
  auto operator<=>(const ForTraining&) const = default;
};
struct ForScoring {
  bool logits = false;
  auto operator<=>(const ForScoring&) const = default;
};
struct ForDecoding {
  std::int64_t gathered = 0, slots = 1;  // gathered: rows with logits; 0: all
  auto operator<=>(const ForDecoding&) const = default;
};

struct ProgramKey {
  std::int64_t rows = 0;
  std::variant<ForTraining, ForScoring, ForDecoding> purpose = {};
  bool loop_on = true;
  auto operator<=>(const ProgramKey&) const = default;
};

// The number of rows to record a program with, to run it on `rows` rows: the next power of two,
// which keeps the number of programs small.
constexpr std::int64_t row_bucket(std::int64_t rows) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
}

// On a GPU every decoding step computes all rows of its bucket, because it is captured as a CUDA
// graph. Buckets are therefore closer together: 1, 2, 4, ..., 32, 48, 64, 96, 128, ...
constexpr std::int64_t gpu_bucket(std::int64_t rows) {
  const std::int64_t above = row_bucket(rows), between = above / 4 * 3;
  return above >= 64 && rows <= between ? between : above;
}

// Programs by key, each created on first use.
template <class Entry>
class ProgramCache {
 public:
  template <class Make>
  Entry& get(const ProgramKey& key, Make make) {
    auto& slot = entries_[key];
    if (!slot) slot = make();
    return *slot;
  }
  template <class Visit>
  void each(Visit visit) const {
    for (const auto& [key, entry] : entries_)
      if (entry) visit(key, *entry);  // null: being made
  }
  template <class Drop>
  void drop_if(Drop drop) {
    std::erase_if(entries_, [&](const auto& one) { return drop(one.first, *one.second); });
  }
  std::size_t size() const { return entries_.size(); }
  void clear() { entries_.clear(); }

 private:
  std::map<ProgramKey, std::unique_ptr<Entry>> entries_;
};

// Decoding on a GPU: a program for a bucket of rows, with inputs and logits in pinned memory.
//
// Every step computes as many rows as the program was recorded with; padding rows belong to no slot
// (rows.h). All steps of a bucket thus have the same shapes and addresses, and tokens, slots and
// positions are read from memory. The first step runs call by call, which plans its matrix
// products. The second is captured as a CUDA graph, including the copies in and out. Each later one
// is a single launch.
class RecordedDecode {
 public:
  // `program` and `context` must outlive this object.
  RecordedDecode(BoundProgram& program, const Context& context) : program_(program), context_(context) {}

  // Call after binding new addresses: the captured graph is invalid then.
  void forget() { graph_.reset(), steps_ = 0; }

  // `rows` must be padded to the bucket. Waits for the logits and returns them in host memory,
  // valid until the next step.
  Tensor step(const Rows& rows);

 private:
  void queue();

  BoundProgram& program_;
  const Context& context_;
  PinnedBuffer logits_;
  std::unique_ptr<DeviceGraph> graph_;
  int steps_ = 0;
};

}  // namespace thimble
