// Weights for inference: every matrix keeps the format of its file and is used without an f32 copy
// (ops/linear.h).
//
//   StoredWeights weights(table, formats);                         // zeros, in one block of memory
//   for (const Param& param : table.all()) ... weights.tensor(param) ...  // fill them
//   Model model(config, context, dtype, std::make_shared<StoredWeights>(std::move(weights)));
//
// Vectors are f32. Tensors that form one matrix in the forward pass (q;k;v, gate;up) share a
// format; if different formats are given, all of them are stored as f32. Tensors in blocks may have
// different types: their rows stay where the reader found them, usually in the mapped file.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/mapped_file.h"
#include "model/params.h"
#include "tensor/arena.h"
#include "tensor/block_rows.h"

namespace thimble {

enum class WeightFormat : std::uint8_t {
  f32,
  bf16,
  f16,
  int8_rows,  // one scale per row: packed artifacts
  blocks,     // rows of a GGUF file
};

// Roles used in products or lookups. All other roles are scales, gains, norm weights and biases.
bool is_matrix(Role role);

class StoredWeights {
 public:
  // `formats`: one per tensor, in table order.
  StoredWeights(const ParamTable& table, std::span<const WeightFormat> formats);

  // For tensors whose format is blocks: their rows, set in the order of the table. `file` contains
  // them.
  void set_rows(const Param& param, const BlockRows& rows);
  void keep(std::shared_ptr<const MappedFile> file) { files_.push_back(std::move(file)); }
  // Throws an Error if a file with weights was truncated since it was opened.
  void check_files() const;

  struct Stored {
    Tensor values, scales;  // scales: f32, only for integer formats
  };
  Stored tensor(const Param& param) const;  // [rows, cols]
  Stored view(const ParamView& view) const;

  std::int64_t bytes() const { return arena_.bytes(); }    // without rows in files
  std::int64_t file_bytes() const;                         // of rows in files
  const std::byte* block() const { return arena_.at(0); }  // all bytes(), for copying to a device

  // Converts all weights to floats in table layout. Gaps are not written.
  void unpack(const ParamTable& table, std::span<float> block) const;

 private:
  // One or more tensors that form one matrix or vector. `offset` is that of the first tensor.
  struct Matrix {
    std::int64_t offset, rows, cols;
    WeightFormat format;
    bool vector;
    std::int64_t values_at = 0, scales_at = 0;  // in the arena
    BlockMatrix blocks = {};
  };
  const Matrix& matrix_at(std::int64_t offset) const;
  std::int64_t lay_out();

  std::vector<Matrix> matrices_;                 // by offset
  std::map<std::int64_t, BlockMatrix> tensors_;  // in blocks, by offset
  std::vector<std::shared_ptr<const MappedFile>> files_;
  Arena arena_;
};

// Copies floats into `to`, rounding them to its dtype (f32, bf16 or f16).
void store_floats(std::span<const float> values, const Tensor& to);

// Stores every matrix in the narrowest of bf16, f16 and f32 that represents its values exactly.
StoredWeights stored_exactly(const ParamTable& table, std::span<const float> block);

// The weights for computing in `dtype`. For bf16, matrices in other float formats are rounded to
// bf16, like the compute copies in training. Returns `weights` itself if nothing changes.
std::shared_ptr<const StoredWeights> stored_for_rows(const ParamTable& table,
                                                     std::shared_ptr<const StoredWeights> weights,
                                                     DType dtype);

// The weights for a GPU: every matrix in `dtype` (f32, bf16 or f16). Integers are expanded, floats
// rounded.
std::shared_ptr<const StoredWeights> stored_for_gpu(const ParamTable& table,
                                                    std::shared_ptr<const StoredWeights> weights,
                                                    DType dtype);

}  // namespace thimble
