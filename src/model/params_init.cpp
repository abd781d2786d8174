#include <algorithm>
#include <cmath>
#include <vector>

#include "base/digest.h"
#include "base/error.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "model/params.h"

namespace thimble {

namespace {

constexpr std::size_t kLanes = 8;  // partial sums: independent additions, and always the same tree

double dot(const double* a, const double* b, std::size_t count) {
  double sums[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
#pragma omp simd
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  for (; i < count; ++i) sums[0] += a[i] * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// Takes out of `other` what lies along `unit`.
void project_out(const double* unit, double* other, std::size_t size) {
  const double along = dot(unit, other, size);
#pragma omp simd
  for (std::size_t c = 0; c < size; ++c) other[c] -= along * unit[c];
}

// Modified Gram-Schmidt over `count` vectors of `size` >= count elements. Of normal numbers it makes a
// uniformly random rotation, as the QR of torch.nn.init.orthogonal_ does.
void make_orthonormal(std::vector<double>& vectors, std::size_t count, std::size_t size) {
  constexpr std::size_t kPanel = 16;  // unit vectors that stay in cache while all later ones pass by
  for (std::size_t begin = 0; begin < count; begin += kPanel) {
    const std::size_t end = std::min(begin + kPanel, count);
    for (std::size_t i = begin; i < end; ++i) {
      double* unit = &vectors[i * size];
      for (std::size_t k = begin; k < i; ++k) project_out(&vectors[k * size], unit, size);
      const double scale = 1 / std::sqrt(dot(unit, unit, size));
      for (std::size_t c = 0; c < size; ++c) unit[c] *= scale;
    }
    for (std::size_t j = end; j < count; ++j)
      for (std::size_t i = begin; i < end; ++i) project_out(&vectors[i * size], &vectors[j * size], size);
  }
}

// The tensor holds standard normals and becomes orthogonal, times the gain.
void orthogonalise(const Param& param, std::span<float> values) {
  const auto rows = static_cast<std::size_t>(param.rows), cols = static_cast<std::size_t>(param.cols);
  const bool wide = rows <= cols;
  const std::size_t count = std::min(rows, cols), size = std::max(rows, cols);
  const auto place = [=](std::size_t r, std::size_t c) { return wide ? r * size + c : c * size + r; };

  std::vector<double> vectors(values.size());
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < cols; ++c) vectors[place(r, c)] = values[r * cols + c];
  make_orthonormal(vectors, count, size);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < cols; ++c)
      values[r * cols + c] = static_cast<float>(param.init.value * vectors[place(r, c)]);
}

void fill(const Param& param, std::uint64_t seed, std::span<float> values) {
  const std::uint64_t stream = digest_of(param.name).low;
  const auto value = static_cast<float>(param.init.value);
  switch (param.init.kind) {
    case Init::Kind::constant:
      std::fill(values.begin(), values.end(), value);
      break;
    case Init::Kind::first_row:
      std::fill_n(values.begin(), param.cols, value);
      break;
    case Init::Kind::uniform:
      fill_uniform(values, -value, value, seed, stream);
      break;
    case Init::Kind::normal:
      fill_normal(values, 0, value, seed, stream);
      break;
    case Init::Kind::orthogonal:
      fill_normal(values, 0, 1, seed, stream);
      break;
  }
}

}  // namespace

void initialise(const ParamTable& table, std::uint64_t seed, std::span<float> block) {
  check(std::cmp_equal(block.size(), table.block_size()), "the block has {} elements, the parameters need {}",
        block.size(), table.block_size());
  std::fill(block.begin(), block.end(), 0.0f);
  std::vector<const Param*> orthogonal;
  for (const Param& param : table.all()) {
    fill(param, seed, param.in(block));
    if (param.init.kind == Init::Kind::orthogonal) orthogonal.push_back(&param);
  }
  // Whole tensors in parallel: each is the same sequence of operations whoever does it.
  parallel_for(static_cast<std::int64_t>(orthogonal.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Param& param = *orthogonal[static_cast<std::size_t>(i)];
      orthogonalise(param, param.in(block));
    }
  });
}

}  // namespace thimble
