// A recorded GPT with the memory of its inputs: rows in, nats or logits out.
//
// All inputs of a run lie in one block, in a fixed layout. So rows can be laid out beforehand (stage), in memory that a
// device copies from, and a run that was captured is fed by one copy. On the CPU the block is written directly.
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
  BoundProgram(GptGraph graph, const ScheduleOptions& options, const Context& context);

  Program& program() { return program_; }
  const GptGraph& graph() const { return graph_; }

  // Lays rows out at `place`: input_bytes() bytes of host memory. Rows fewer than recorded leave the rest alone.
  std::int64_t input_bytes() const { return block_.bytes(); }
  void stage(const Rows& rows, std::uint64_t dropout_seed, std::byte* place) const;

  void set_inputs(const Rows& rows, std::uint64_t dropout_seed = 0);
  // The same on a device in two parts: as many rows as were recorded are laid out, where the last copy has been read;
  // and the copy of them, which a recording may hold.
  void stage_inputs(const Rows& rows);
  void queue_inputs();
  void take_staged(const std::byte* place);  // a full block in the device's memory: queued

  Tensor row_weights() const { return bound(graph_.weight); }
  std::vector<float> fetch(Value kept) const;  // in host memory; waits

  // What was bound or prepared last: whoever runs the program compares, and binds again when it moved.
  const void* gradients = nullptr;
  const std::byte* cache = nullptr;
  std::uint64_t version = 0;

 private:
  struct Input {
    Value value;
    std::vector<std::int32_t> Rows::*integers = nullptr;  // nullptr: the weights, or the seed
    std::int64_t offset = 0, rows = 0;                    // rows: those bound now
  };

  std::vector<Input> lay_out() const;
  std::int64_t rows_given(const Input& input, const Rows& rows) const;  // no more than were recorded
  std::int64_t size_of_inputs() const;
  Tensor bound(Value value) const;
  void bind(Input& input, std::int64_t rows);

  GptGraph graph_;
  const Context& context_;
  Program program_;
  std::vector<Input> inputs_;
  Arena block_;
  PinnedBuffer staging_;  // not on the CPU
};

// Programs, made once for each key and kept.

// What a program is for, with all that its tape and its schedule depend on beside the config.
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
  std::int64_t gathered = 0, slots = 1;  // gathered: rows whose logits come; 0: all
  auto operator<=>(const ForDecoding&) const = default;
};

struct ProgramKey {
  std::int64_t rows = 0;
  std::variant<ForTraining, ForScoring, ForDecoding> purpose = {};
  bool loop_on = true;
  auto operator<=>(const ProgramKey&) const = default;
};

// The number of rows a program is recorded with to serve `rows`: the next power of two, so that few programs
// serve all.
constexpr std::int64_t row_bucket(std::int64_t rows) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
}

// On a GPU every step is computed for all rows of its bucket, so that it can be recorded: buckets lie nearer together,
// 1, 2, 4, ..., 32, 48, 64, 96, 128, ...
constexpr std::int64_t gpu_bucket(std::int64_t rows) {
  const std::int64_t above = row_bucket(rows), between = above / 4 * 3;
  return above >= 64 && rows <= between ? between : above;
}

template <class Entry>
class ProgramCache {
 public:
  template <class Make>
  Entry& get(const ProgramKey& key, Make make) {
    auto& slot = entries_[key];
    if (!slot) slot = make();
    return *slot;
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

// A step of decoding on a GPU: a program for a bucket of rows, fed and read through pinned memory.
//
// Every step is computed for as many rows as the program was recorded with; rows that fill it up belong to no slot
// (rows.h). So all steps of a bucket have the same shapes and addresses, and tokens, slots and positions lie in memory.
// The first step runs call by call, which plans its products; the second one is recorded, its copies in and out
// included; each later one is a single launch.

class RecordedDecode {
 public:
  // Both outlive it.
  RecordedDecode(BoundProgram& program, const Context& context) : program_(program), context_(context) {}

  // What is bound has other addresses now: the recording is of no use.
  void forget() { graph_.reset(), steps_ = 0; }

  // Rows filled up. Logits in host memory, valid until the next step; waits for them.
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
