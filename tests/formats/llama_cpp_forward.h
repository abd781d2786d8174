// llama.cpp's computation of `apertus` and `talkie`, transcribed from its graphs: plain loops in
// double precision over the tensors of an export. Shares no code with thimble's model.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "formats/gguf_model.h"

namespace thimble {

class LlamaCppForward {
 public:
  using Row = std::vector<double>;

  explicit LlamaCppForward(const ExportedModel& model) : architecture_(model.architecture) {
    for (const ExportedTensor& tensor : model.tensors) tensors_[tensor.name] = &tensor;
    for (const auto& [key, value] : model.settings) settings_[key] = &value;
    width_ = size("embedding_length"), heads_ = size("attention.head_count");
    kv_heads_ = size("attention.head_count_kv"), layers_ = size("block_count");
    head_dim_ = tensor("blk.0.attn_q.weight").dims[0] / heads_;
    eps_ = number(architecture_ + ".attention.layer_norm_rms_epsilon");
    base_ = number(architecture_ + ".rope.freq_base");
  }

  // The logits of every position.
  std::vector<Row> logits(const std::vector<std::int32_t>& tokens) {
    const bool talkie = architecture_ == "talkie";
    std::vector<Row> x;
    for (const std::int32_t token : tokens) {
      Row row(static_cast<std::size_t>(width_));
      for (std::int64_t i = 0; i < width_; ++i)
        row[at(i)] = tensor("token_embd.weight").values[at(token * width_ + i)];
      x.push_back(talkie ? normed(row) : row);
    }
    const std::vector<Row> embedded = x;
    for (std::int64_t layer = 0; layer < layers_; ++layer) {
      block_ = "blk." + std::to_string(layer) + ".";
      attend(x, talkie);
      for (std::size_t t = 0; t < x.size(); ++t) {
        add(x[t], talkie ? gated(x[t]) : ungated(x[t]));
        if (talkie)
          for (std::size_t i = 0; i < x[t].size(); ++i)
            x[t][i] += tensor(block_ + "layer_output_scale.weight").values.at(0) * embedded[t][i];
      }
    }
    std::vector<Row> all;
    for (const Row& row : x) {
      all.push_back(times("output.weight", talkie ? normed(row) : normed(row, "output_norm.weight")));
      if (talkie)
        for (double& logit : all.back()) logit *= number("talkie.logit_scale");
    }
    return all;
  }

 private:
  static std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

  const ExportedTensor& tensor(const std::string& name) const {
    check(tensors_.contains(name), "the export has no tensor {}", name);
    return *tensors_.at(name);
  }
  double number(const std::string& key) const {
    check(settings_.contains(key), "the export has no key {}", key);
    return std::get<float>(*settings_.at(key));
  }
  std::int64_t size(const std::string& key) const {
    check(settings_.contains(architecture_ + "." + key), "the export has no key {}", key);
    return std::get<std::uint32_t>(*settings_.at(architecture_ + "." + key));
  }

  Row normed(const Row& x, const std::string& weight = "") const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(x.size()) + eps_);
    Row y;
    for (std::size_t i = 0; i < x.size(); ++i)
      y.push_back(x[i] * rstd * (weight.empty() ? 1.0 : double{tensor(weight).values.at(i)}));
    return y;
  }

  Row times(const std::string& name, const Row& x) const {
    const ExportedTensor& matrix = tensor(name);
    check(matrix.dims.size() == 2 && matrix.dims[1] == static_cast<std::int64_t>(x.size()),
          "{} has {} columns, not {}", name, matrix.dims.back(), x.size());
    Row y(at(matrix.dims[0]));
    for (std::size_t r = 0; r < y.size(); ++r)
      for (std::size_t c = 0; c < x.size(); ++c) y[r] += double{matrix.values[r * x.size() + c]} * x[c];
    return y;
  }

  static void add(Row& x, const Row& branch) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += branch[i];
  }

  // NEOX order: pairs (i, i + d/2).
  Row rotated(Row head, std::size_t position) const {
    const std::size_t half = head.size() / 2;
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) *
                           std::pow(base_, -2 * static_cast<double>(i) / static_cast<double>(head.size()));
      const double a = head[i], b = head[i + half];
      head[i] = a * std::cos(angle) - b * std::sin(angle);
      head[i + half] = a * std::sin(angle) + b * std::cos(angle);
    }
    return head;
  }

  // Head `index` of q or k. talkie normalizes after the rotation and has a gain per head of q;
  // apertus normalizes before it.
  Row head_of(const Row& all, std::int64_t index, std::size_t position, bool talkie, bool query) const {
    const auto first = all.begin() + index * head_dim_;
    Row head(first, first + head_dim_);
    if (!talkie)
      return rotated(normed(head, block_ + (query ? "attn_q_norm.weight" : "attn_k_norm.weight")), position);
    head = normed(rotated(head, position));
    if (query)
      for (double& value : head) value *= tensor(block_ + "attn_q_norm.weight").values.at(at(index));
    return head;
  }

  void attend(std::vector<Row>& x, bool talkie) const {
    std::vector<Row> q, k, v;
    for (const Row& row : x) {
      const Row h = talkie ? normed(row) : normed(row, block_ + "attn_norm.weight");
      q.push_back(times(block_ + "attn_q.weight", h));
      k.push_back(times(block_ + "attn_k.weight", h));
      v.push_back(times(block_ + "attn_v.weight", h));
    }
    for (std::size_t t = 0; t < x.size(); ++t) {
      Row out;
      for (std::int64_t head = 0; head < heads_; ++head) {
        const std::int64_t group = head / (heads_ / kv_heads_);
        const Row query = head_of(q[t], head, t, talkie, true);
        Row weights;
        double sum = 0;
        for (std::size_t s = 0; s <= t; ++s) {
          const Row key = head_of(k[s], group, s, talkie, false);
          double score = 0;
          for (std::size_t i = 0; i < key.size(); ++i) score += query[i] * key[i];
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(head_dim_))));
          sum += weights.back();
        }
        for (std::int64_t i = 0; i < head_dim_; ++i) {
          double mixed = 0;
          for (std::size_t s = 0; s <= t; ++s) mixed += weights[s] / sum * v[s][at(group * head_dim_ + i)];
          out.push_back(mixed);
        }
      }
      add(x[t], times(block_ + "attn_output.weight", out));
    }
  }

  Row gated(const Row& x) const {
    const Row h = normed(x);
    Row gate = times(block_ + "ffn_gate.weight", h);
    const Row up = times(block_ + "ffn_up.weight", h);
    for (std::size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    return times(block_ + "ffn_down.weight", gate);
  }

  Row ungated(const Row& x) const {
    Row h = times(block_ + "ffn_up.weight", normed(x, block_ + "ffn_norm.weight"));
    const auto softplus = [](double a) { return std::log1p(std::exp(a)); };
    const double positive = softplus(number("xielu.alpha_p")), beta = number("xielu.beta");
    const double negative = beta + softplus(number("xielu.alpha_n")), eps = number("xielu.eps");
    for (double& z : h)
      z = z > 0 ? positive * z * z + beta * z : (std::expm1(std::min(z, eps)) - z) * negative + beta * z;
    return times(block_ + "ffn_down.weight", h);
  }

  std::string architecture_, block_;
  std::map<std::string, const ExportedTensor*> tensors_;
  std::map<std::string, const GgufValue*> settings_;
  std::int64_t width_, heads_, kv_heads_, layers_, head_dim_;
  double eps_, base_;
};

}  // namespace thimble
