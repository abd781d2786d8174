#include "model/stored_weights.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/parallel.h"
#include "ops/linear.h"
#include "tensor/tensor.h"

namespace thimble {

namespace {

bool joins_previous_role(Role role) {
  switch (role) {
    case Role::key:
    case Role::value:
    case Role::mlp_up:
    case Role::key_bias:
    case Role::value_bias:
    case Role::mlp_up_bias:
      return true;
    default:
      return false;
  }
}

DType dtype_of_format(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32:
      return DType::f32;
    case WeightFormat::bf16:
      return DType::bf16;
    case WeightFormat::f16:
      return DType::f16;
    case WeightFormat::blocks:
      return DType::blocks;
    default:
      return DType::i8;
  }
}

WeightFormat format_of_stored(const StoredWeights::Stored& stored) {
  switch (stored.values.dtype) {
    case DType::bf16:
      return WeightFormat::bf16;
    case DType::f16:
      return WeightFormat::f16;
    case DType::i8:
      return WeightFormat::int8_rows;
    case DType::blocks:
      return WeightFormat::blocks;
    default:
      return WeightFormat::f32;
  }
}

std::int64_t scales_of_row(WeightFormat format) {
  return format == WeightFormat::int8_rows ? 1 : 0;
}

// One row as f32.
void read_row(const StoredWeights::Stored& stored, std::int64_t row, std::span<float> to) {
  const auto convert = [&](const auto* from, const auto& value_of) {
    for (std::size_t col = 0; col < to.size(); ++col) to[col] = value_of(from[col]);
  };
  switch (stored.values.dtype) {
    case DType::bf16:
      return convert(stored.values.row<bf16>(row), [](bf16 value) { return to_f32(value); });
    case DType::f16:
      return convert(stored.values.row<f16>(row), [](f16 value) { return to_f32(value); });
    case DType::i8: {
      const float scale = *stored.scales.row<float>(row);
      return convert(stored.values.row<std::int8_t>(row),
                     [&](std::int8_t value) { return static_cast<float>(value) * scale; });
    }
    case DType::blocks: {
      const BlockRows& part = block_matrix(stored.values).part_of(row);
      return decode_blocks(part.type, {part.row(row), static_cast<std::size_t>(part.row_bytes())}, to);
    }
    default:
      return convert(stored.values.row<float>(row), [](float value) { return value; });
  }
}

void put(const Tensor& tensor, std::int64_t row, std::int64_t col, float value) {
  if (tensor.dtype == DType::bf16)
    tensor.row<bf16>(row)[col] = to_bf16(value);
  else if (tensor.dtype == DType::f16)
    tensor.row<f16>(row)[col] = to_f16(value);
  else
    tensor.row<float>(row)[col] = value;
}

constexpr std::int64_t kRowsPerTask = 16;

// Either both have the same format, other than blocks, or `to` has a float format.
void copy_into(const StoredWeights::Stored& from, const StoredWeights::Stored& to) {
  if (format_of_stored(from) == format_of_stored(to)) {
    std::memcpy(to.values.data, from.values.data, static_cast<std::size_t>(to.values.shape().bytes()));
    if (to.scales)
      std::memcpy(to.scales.data, from.scales.data, static_cast<std::size_t>(to.scales.shape().bytes()));
    return;
  }
  parallel_for(to.values.rows, kRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> values(static_cast<std::size_t>(to.values.cols));
    for (std::int64_t row = begin; row < end; ++row) {
      read_row(from, row, values);
      for (std::int64_t col = 0; col < to.values.cols; ++col) put(to.values, row, col, values[index_of(col)]);
    }
  });
}

WeightFormat narrowest_for(std::span<const float> values) {
  const auto exact = [&](auto narrowed) {
    return std::ranges::all_of(values, [&](float value) { return to_f32(narrowed(value)) == value; });
  };
  if (exact(to_bf16)) return WeightFormat::bf16;
  return exact(to_f16) ? WeightFormat::f16 : WeightFormat::f32;
}

}  // namespace

bool is_matrix(Role role) {
  return role <= Role::mlp_proj;
}

StoredWeights::StoredWeights(const ParamTable& table, std::span<const WeightFormat> formats) {
  const auto params = table.all();
  check(formats.size() == params.size(), "[weights] found {} formats for {} tensors", formats.size(),
        params.size());
  for (std::size_t i = 0; i < params.size(); ++i) {
    const Param& param = params[i];
    const WeightFormat format = is_matrix(param.role) ? formats[i] : WeightFormat::f32;
    if (!joins_previous_role(param.role)) {
      const bool vector = !is_matrix(param.role) && param.rows == 1;
      matrices_.push_back({.offset = param.offset,
                           .rows = param.rows,
                           .cols = param.cols,
                           .format = format,
                           .vector = vector});
      continue;
    }
    Matrix& joined = matrices_.back();
    (is_matrix(param.role) ? joined.rows : joined.cols) += is_matrix(param.role) ? param.rows : param.cols;
    if (joined.format != format) joined.format = WeightFormat::f32;
  }
  arena_ = Arena(lay_out(), "the weights", "lower dim, layers or vocab_size");
}

std::int64_t StoredWeights::lay_out() {
  std::int64_t end = 0;
  for (Matrix& matrix : matrices_) {
    matrix.values_at = end;
    end += align_up(matrix.rows * matrix.cols * dtype_bytes(dtype_of_format(matrix.format)));
    matrix.scales_at = end;
    end += align_up(matrix.rows * scales_of_row(matrix.format) * static_cast<std::int64_t>(sizeof(float)));
  }
  return end;
}

StoredWeights::Stored StoredWeights::tensor(const Param& param) const {
  return view({param.offset, param.rows, param.cols});
}

const StoredWeights::Matrix& StoredWeights::matrix_at(std::int64_t offset) const {
  const auto after = std::ranges::upper_bound(matrices_, offset, {}, &Matrix::offset);
  check(after != matrices_.begin(), "[weights] there is no tensor at offset {}", offset);
  return *std::prev(after);
}

void StoredWeights::set_rows(const Param& param, const BlockRows& rows) {
  const Matrix& found = matrix_at(param.offset);
  Matrix& matrix = matrices_[static_cast<std::size_t>(&found - matrices_.data())];
  std::int64_t first = 0;
  for (const BlockRows& part : matrix.blocks.parts) first += part.rows;
  check(matrix.format == WeightFormat::blocks && rows.rows == param.rows && rows.cols == param.cols &&
            param.offset == matrix.offset + first * matrix.cols,
        "[weights] the rows of {} are not the next of their matrix", param.name);
  matrix.blocks.parts.push_back(rows);
  tensors_[param.offset].parts = {rows};
}

void StoredWeights::check_files() const {
  for (const auto& file : files_) file->check_intact();
}

std::int64_t StoredWeights::file_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [offset, tensor] : tensors_)
    for (const BlockRows& part : tensor.parts) bytes += part.rows * part.row_bytes();
  return bytes;
}

StoredWeights::Stored StoredWeights::view(const ParamView& view) const {
  const Matrix& matrix = matrix_at(view.offset);
  if (matrix.format == WeightFormat::blocks) {
    if (view.offset == matrix.offset && view.rows == matrix.rows) return {block_tensor(matrix.blocks), {}};
    const auto tensor = tensors_.find(view.offset);
    check(tensor != tensors_.end() && tensor->second.parts[0].rows == view.rows,
          "[weights] {} rows at offset {} are not a tensor of the file", view.rows, view.offset);
    return {block_tensor(tensor->second), {}};
  }
  if (matrix.vector) {  // one vector or several, such as the biases of q;k;v
    const std::int64_t at = view.offset - matrix.offset;
    check(view.rows == 1 && at + view.cols <= matrix.cols,
          "[weights] {} floats at offset {} are not inside one vector", view.cols, view.offset);
    float* const data = reinterpret_cast<float*>(arena_.at(matrix.values_at)) + at;
    return {make_tensor(data, 1, view.cols), Tensor{}};
  }
  const std::int64_t first = (view.offset - matrix.offset) / matrix.cols;
  check(view.cols == matrix.cols && view.offset == matrix.offset + first * matrix.cols &&
            first + view.rows <= matrix.rows,
        "[weights] {} rows of {} at offset {} are not inside one matrix", view.rows, view.cols, view.offset);
  const Tensor values{arena_.at(matrix.values_at),    matrix.rows, matrix.cols, matrix.cols,
                      dtype_of_format(matrix.format), Device::cpu};
  const std::int64_t columns = scales_of_row(matrix.format);
  const Tensor scales{arena_.at(matrix.scales_at), matrix.rows, columns, columns, DType::f32, Device::cpu};
  return {values.row_range(first, view.rows), columns > 0 ? scales.row_range(first, view.rows) : Tensor{}};
}

void StoredWeights::unpack(const ParamTable& table, std::span<float> block) const {
  check(std::cmp_equal(block.size(), table.block_size()), "[weights] found {} floats for a block of {}",
        block.size(), table.block_size());
  for (const Param& param : table.all()) {
    const Tensor to = make_tensor(block.data() + param.offset, param.rows, param.cols);
    copy_into(tensor(param), {to, {}});
  }
  check_files();
}

void store_floats(std::span<const float> values, const Tensor& to) {
  check(std::cmp_equal(values.size(), to.count()), "[weights] found {} floats for a tensor {}", values.size(),
        to.shape().text());
  for (std::int64_t i = 0; i < to.count(); ++i)
    put(to, i / to.cols, i % to.cols, values[static_cast<std::size_t>(i)]);
}

StoredWeights stored_exactly(const ParamTable& table, std::span<const float> block) {
  check(std::cmp_equal(block.size(), table.block_size()), "[weights] found {} floats for a block of {}",
        block.size(), table.block_size());
  std::vector<WeightFormat> formats;
  for (const Param& param : table.all()) formats.push_back(narrowest_for(param.in(block)));
  StoredWeights weights(table, formats);
  for (const Param& param : table.all()) store_floats(param.in(block), weights.tensor(param).values);
  return weights;
}

namespace {

// Converts every matrix to format_of(its current format). Returns `weights` itself if nothing
// changes.
template <class FormatOf>
std::shared_ptr<const StoredWeights> stored_as(const ParamTable& table,
                                               std::shared_ptr<const StoredWeights> weights,
                                               FormatOf format_of) {
  std::vector<WeightFormat> formats;
  bool changes = false;
  for (const Param& param : table.all()) {
    const WeightFormat before = format_of_stored(weights->tensor(param));
    formats.push_back(is_matrix(param.role) ? format_of(before) : before);
    changes |= formats.back() != before;
  }
  if (!changes) return weights;
  auto changed = std::make_shared<StoredWeights>(table, formats);
  for (const Param& param : table.all()) copy_into(weights->tensor(param), changed->tensor(param));
  weights->check_files();
  return changed;
}

}  // namespace

std::shared_ptr<const StoredWeights> stored_for_rows(const ParamTable& table,
                                                     std::shared_ptr<const StoredWeights> weights,
                                                     DType dtype) {
  if (dtype != DType::bf16) return weights;
  return stored_as(table, std::move(weights), [](WeightFormat before) {
    const bool floats = before == WeightFormat::f32 || before == WeightFormat::f16;
    return floats ? WeightFormat::bf16 : before;
  });
}

std::shared_ptr<const StoredWeights> stored_for_gpu(const ParamTable& table,
                                                    std::shared_ptr<const StoredWeights> weights,
                                                    DType dtype) {
  const WeightFormat format = dtype == DType::bf16  ? WeightFormat::bf16
                              : dtype == DType::f16 ? WeightFormat::f16
                                                    : WeightFormat::f32;
  return stored_as(table, std::move(weights), [&](WeightFormat) { return format; });
}

}  // namespace thimble
