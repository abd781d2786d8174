// Weights as inference keeps them: every matrix in the storage it came in, used without a copy in f32 (ops/linear.h).
//
//   StoredWeights weights(table, formats);                         // zeros, in one block of memory
//   for (const Param& param : table.all()) ... weights.tensor(param) ...  // fill them
//   Model model(config, context, dtype, std::make_shared<StoredWeights>(std::move(weights)));
//
// Vectors are f32. Tensors that the forward pass takes as one matrix (q;k;v, gate;up) share a format: where they were
// given different ones, all are f32.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/params.h"
#include "tensor/arena.h"

namespace thimble {

enum class WeightFormat : std::uint8_t {
  f32,
  bf16,
  f16,
  int8_rows,    // one scale a row: packed artifacts
  int8_blocks,  // one scale for every 32 columns: Q8_0
};

class StoredWeights {
 public:
  // One format for each tensor, in the table's order.
  StoredWeights(const ParamTable& table, std::span<const WeightFormat> formats);

  struct Stored {
    Tensor values, scales;  // scales f32, of integers alone
  };
  Stored tensor(const Param& param) const;  // [rows, cols]
  Stored view(const ParamView& view) const;

  std::int64_t bytes() const { return arena_.bytes(); }
  const std::byte* block() const { return arena_.at(0); }  // all of it, to be copied to a device

  // All of them as floats, laid out as the table says; gaps are left alone.
  void unpack(const ParamTable& table, std::span<float> block) const;

 private:
  // Tensors that are one matrix. Elements are counted from the first one's offset in the table.
  struct Matrix {
    std::int64_t offset, rows, cols;
    WeightFormat format;
    bool vector;
    std::int64_t values_at = 0, scales_at = 0;  // in the arena
  };
  std::int64_t lay_out();

  std::vector<Matrix> matrices_;  // by offset
  Arena arena_;
};

// Floats into a place of floats: rounded to what it holds.
void store_floats(std::span<const float> values, const Tensor& to);

// Every matrix in the narrowest of bf16, f16 and f32 that holds its values as they are.
StoredWeights stored_exactly(const ParamTable& table, std::span<const float> block);

// What rows in `dtype` are multiplied with: for bf16, matrices of other floats are rounded to it, as training's copies
// are. The same weights where there is nothing to do.
std::shared_ptr<const StoredWeights> stored_for_rows(const ParamTable& table,
                                                     std::shared_ptr<const StoredWeights> weights,
                                                     DType dtype);

// What a GPU multiplies with: every matrix in `dtype`, f32, bf16 or f16. Integers are expanded, others rounded.
std::shared_ptr<const StoredWeights> stored_for_gpu(const ParamTable& table,
                                                     std::shared_ptr<const StoredWeights> weights,
                                                     DType dtype);

}  // namespace thimble
