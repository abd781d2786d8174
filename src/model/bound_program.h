// A recorded GPT with the memory of its inputs: rows in, nats or logits out.
//
// All inputs of a run lie in one block, in a fixed layout. So rows can be laid out beforehand (stage), in memory that a
// device copies from, and a run that was captured is fed by one copy. On the CPU the block is written directly.
#pragma once

#include <cstdint>
#include <vector>

#include "model/gpt.h"
#include "model/program.h"
#include "model/rows.h"

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

}  // namespace thimble
