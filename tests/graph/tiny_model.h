// A small model on a tape that uses nearly every op and special case: grouped q;k;v read by
// columns, a value added to itself, values with many readers, documents, a tied head, prepared
// weights.
#pragma once

#include <complex>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "graph/program.h"
#include "ops/attention.h"
#include "ops/cast.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/head_loss.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/residual.h"
#include "ops/rope.h"
#include "ops/table.h"

namespace thimble {

struct TinyModel {
  static constexpr std::int64_t kVocabulary = 13, kWidth = 8, kHeads = 4, kKvHeads = 2, kHead = 2,
                                kHidden = 6, kRows = 10;

  struct Options {
    DType dtype = DType::f32;
    Backend backend = cpu_backend();
    bool recompute = false, quantize = false, keep_everything = false, training = true;
    float dropout = 0;
    std::int64_t rows = kRows;
    const Program* lender = nullptr;
  };

  explicit TinyModel(const Options& options) : options_(options) { record(); }

  // Returns the loss: the sum of weight * nats. Gradients are written to `gradients`.
  double run() {
    for (auto& [name, values] : gradients) std::fill(values.begin(), values.end(), 0.0);
    bind_all();
    program->prepare();
    program->run();
    copy_back_gradients();
    double loss = 0;
    const Tensor result = program->tensor(nats);
    for (std::int64_t n = 0; n < result.rows; ++n)
      loss += read(result, n, 0) * row_weight[static_cast<std::size_t>(n)];
    return loss;
  }

  static double read(const Tensor& tensor, std::int64_t row, std::int64_t column) {
    return tensor.dtype == DType::f64 ? tensor.row<double>(row)[column]
                                      : static_cast<double>(tensor.row<float>(row)[column]);
  }

  std::map<std::string, std::vector<double>> parameters, gradients;
  std::unique_ptr<Program> program;
  Value nats;
  std::vector<std::int32_t> token, order, position, first, previous, target, seed = {77, 0};
  std::vector<double> row_weight;

 private:
  Value parameter(Tape& t, const std::string& name, std::int64_t rows, std::int64_t cols,
                  double scale = 0.5) {
    std::mt19937 random(static_cast<unsigned>(std::hash<std::string>{}(name)));
    std::normal_distribution<double> normal(0, scale);
    auto& values = parameters[name];
    values.resize(static_cast<std::size_t>(rows * cols));
    for (double& value : values) value = static_cast<double>(static_cast<float>(normal(random)));
    gradients[name].resize(values.size());
    parameter_values_[name] = t.parameter(name, rows, cols);
    return parameter_values_[name];
  }

  Value block(Tape& t, int layer, Value x, Value x0) {
    const std::string name = "blocks." + std::to_string(layer);
    t.segment(layer);
    x = op::residual_mix(t, x, x0, parameter(t, name + ".mix", 2, layer == 0 ? 1 : kWidth));
    Value h = op::rmsnorm(t, x, parameter(t, name + ".norm", 1, kWidth), 1e-5f);
    const Value qkv = op::linear(t, h, weight(t, name + ".qkv", (kHeads + 2 * kKvHeads) * kHead, kWidth));
    const Value q = op::rope(t, t.columns(qkv, 0, kHeads * kHead), position_, turns_,
                             parameter(t, name + ".gain", 1, kHeads), {}, kHeads, true, 1e-6f);
    const Value k = op::rope(t, t.columns(qkv, kHeads * kHead, kKvHeads * kHead), position_, turns_, {}, {},
                             kKvHeads, true, 1e-6f);
    const Value v = t.columns(qkv, (kHeads + kKvHeads) * kHead, kKvHeads * kHead);
    Value y = op::attention(t, q, k, v, first_, {kHeads, kKvHeads, 0.7f});
    if (layer == 1) y = op::exclusive_attention(t, y, v, kHeads, kKvHeads);
    y = op::linear(t, y, weight(t, name + ".proj", kWidth, kHeads * kHead),
                   parameter(t, name + ".bias", 1, kWidth));
    if (options_.dropout > 0) y = op::dropout(t, y, seed_, options_.dropout);
    const auto [stream, normed] =
        op::residual_norm(t, x, y, parameter(t, name + ".attn_scale", 1, kWidth), {}, 1e-5f, 0.8f);
    h = op::activation(t, op::linear(t, normed, weight(t, name + ".fc", 2 * kHidden, kWidth)),
                       ActivationKind::swiglu);
    x = op::add_scaled(t, stream, op::linear(t, h, weight(t, name + ".out", kWidth, kHidden)),
                       parameter(t, name + ".mlp_scale", 1, 1));
    t.segment(-1);
    return t.name(x, name);
  }

  Value weight(Tape& t, const std::string& name, std::int64_t rows, std::int64_t cols) {
    const Value w = parameter(t, name, rows, cols);
    return options_.quantize ? op::compute_copy(t, w, 6) : w;
  }

  void record() {
    const std::int64_t N = options_.rows;
    Tape t(options_.dtype);
    token_ = t.integers("token", N), order_ = t.integers("order", N), position_ = t.integers("position", N);
    first_ = t.integers("first", N), previous_ = t.integers("previous", N), target_ = t.integers("target", N);
    seed_ = t.integers("seed", 2);
    turns_ = t.input("turns", N, kHead), row_weight_ = t.input("row_weight", N, 1);
    const Value table = parameter(t, "tok_emb", kVocabulary, kWidth);
    Value x = op::rmsnorm(t, op::embedding(t, table, token_, order_), {}, 1e-6f);
    x = op::smear(t, x, parameter(t, "smear", 1, kWidth), previous_);
    const Value x0 = t.name(x, "x0");
    x = block(t, 0, x, x0);
    const Value skip = x;
    // A value added to itself, as in golf's first decoder block.
    x = op::add_scaled(t, x, skip, parameter(t, "skip", 1, kWidth));
    x = block(t, 1, x, x0);
    x = op::add_scaled(t, x, skip, {}, 0.5f);
    x = op::rmsnorm(t, x, {}, 1e-6f);
    nats = op::head_loss(t, x, table, target_, row_weight_, 5.0f, 4);
    ScheduleOptions schedule{.training = options_.training, .recompute = options_.recompute, .keep = {nats}};
    if (options_.keep_everything)
      for (int i = 0; i < static_cast<int>(t.values().size()); ++i)
        if (t.values()[static_cast<std::size_t>(i)].kind == ValueKind::activation &&
            t.values()[static_cast<std::size_t>(i)].parent < 0 && Value{i} != nats)
          schedule.keep.push_back(Value{i});
    program = std::make_unique<Program>(std::move(t), schedule, context_, options_.backend, options_.lender);
    fill_rows(N);
  }

 public:
  // Three documents, which start at rows 0, 3 and 7.
  void fill_rows(std::int64_t N) {
    std::mt19937 random(5);
    token.resize(static_cast<std::size_t>(N)), order = token, position = token, first = token,
                                               previous = token, target = token;
    row_weight.assign(static_cast<std::size_t>(N), 0.25);
    std::int32_t start = 0;
    for (std::int32_t n = 0; n < N; ++n) {
      const auto i = static_cast<std::size_t>(n);
      if (n == 0 || n == 3 || n == 7) start = n;
      token[i] = static_cast<std::int32_t>(random() % kVocabulary);
      target[i] = n == 6 ? -1 : static_cast<std::int32_t>(random() % kVocabulary);
      first[i] = start;
      position[i] = n - start;
      previous[i] = n == start ? -1 : n - 1;
    }
    sort_rows(token, kVocabulary, order);
  }

 private:
  Tensor typed(std::vector<double>& values, std::vector<float>& copy, std::int64_t rows, std::int64_t cols) {
    if (options_.dtype == DType::f64) return make_tensor(values.data(), rows, cols);
    copy.assign(values.begin(), values.end());
    return make_tensor(copy.data(), rows, cols);
  }

  void bind_all() {
    const auto N = static_cast<std::int64_t>(token.size());
    const auto integers = [&](Value value, std::vector<std::int32_t>& data) {
      program->bind(value, make_tensor(data.data(), static_cast<std::int64_t>(data.size()), 1));
    };
    integers(token_, token), integers(order_, order), integers(position_, position), integers(first_, first);
    integers(previous_, previous), integers(target_, target), integers(seed_, seed);
    program->bind(row_weight_, typed(row_weight, row_weight_copy_, N, 1));
    std::vector<float> turns(static_cast<std::size_t>(options_.rows * kHead));
    fill_rotations(make_tensor(turns.data(), options_.rows, kHead), 10000, -1);
    turn_values_.assign(turns.begin(), turns.end());
    program->bind(turns_, typed(turn_values_, turns_copy_, options_.rows, kHead));
    for (auto& [name, value] : parameter_values_) {
      const Shape& shape = program->tape().info(value).shape;
      program->bind(value, typed(parameters[name], copies_[name], shape.rows, shape.cols));
      program->bind_gradient(value, typed(gradients[name], gradient_copies_[name], shape.rows, shape.cols));
    }
  }

  void copy_back_gradients() {
    if (options_.dtype == DType::f64) return;
    for (auto& [name, copy] : gradient_copies_) gradients[name].assign(copy.begin(), copy.end());
  }

  Options options_;
  Context context_;
  std::map<std::string, Value> parameter_values_;
  Value token_, order_, position_, first_, previous_, target_, seed_, turns_, row_weight_;
  std::vector<double> turn_values_;
  std::vector<float> row_weight_copy_, turns_copy_;
  std::map<std::string, std::vector<float>> copies_, gradient_copies_;
};

}  // namespace thimble
