// Three reference GPTs in double precision, written from their papers and independent of the
// engine: nested loops over the original tensors. Tests compare the engine with them.
//
//   qwen3      RMSNorm with weight, q and k normed per head, RoPE, grouped queries, SwiGLU
//   gpt2       learned positions, LayerNorm, biases, linears stored [in, out], GELU (tanh),
//              tied head
//   microgpt   learned positions, RMSNorm without weight (also of the embedding, none at the end),
//              ReLU
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace thimble {

class PlainGpt {
 public:
  enum class Family { qwen3, gpt2, microgpt };
  using Vector = std::vector<double>;
  using Rows = std::vector<Vector>;  // one vector per token
  struct Sizes {
    int vocabulary, width, layers, heads, kv_heads, head, hidden;
    double eps, theta = 0;
  };

  PlainGpt(Family family, const Sizes& sizes) : family_(family), s_(sizes) {}

  std::map<std::string, Vector> tensors;  // under the original's names

  Rows logits(const std::vector<int>& tokens) const {
    Rows x = embed(tokens);
    for (int layer = 0; layer < s_.layers; ++layer) {
      add(x, attention(layer, normed(x, name(layer, "norm1"))));
      add(x, mlp(layer, normed(x, name(layer, "norm2"))));
    }
    if (family_ != Family::microgpt)
      x = normed(x, family_ == Family::gpt2 ? "transformer.ln_f" : "model.norm");
    const Vector& head = family_ == Family::gpt2
                             ? at("transformer.wte.weight")
                             : at(family_ == Family::qwen3 ? "lm_head.weight" : "lm_head");
    Rows out;
    for (const Vector& row : x) out.push_back(times(head, row, s_.vocabulary));
    return out;
  }

  // Mean nats of the targets; negative targets are not counted.
  double loss(const std::vector<std::vector<int>>& inputs,
              const std::vector<std::vector<int>>& targets) const {
    double sum = 0;
    int count = 0;
    for (std::size_t b = 0; b < inputs.size(); ++b) {
      const Rows rows = logits(inputs[b]);
      for (std::size_t t = 0; t < rows.size(); ++t) {
        if (targets[b][t] < 0) continue;
        double total = 0;
        for (double logit : rows[t]) total += std::exp(logit);
        sum += std::log(total) - rows[t][static_cast<std::size_t>(targets[b][t])];
        ++count;
      }
    }
    return sum / count;
  }

 private:
  const Vector& at(const std::string& tensor) const { return tensors.at(tensor); }

  std::string name(int layer, const std::string& what) const {
    const std::string l = std::to_string(layer);
    if (family_ == Family::microgpt) return "layer" + l + "." + what;
    if (family_ == Family::gpt2)
      return "transformer.h." + l + "." + (what == "norm1" ? "ln_1" : what == "norm2" ? "ln_2" : what);
    return "model.layers." + l + "." +
           (what == "norm1"   ? "input_layernorm"
            : what == "norm2" ? "post_attention_layernorm"
                              : what);
  }

  // w [out, in] times x.
  static Vector times(const Vector& w, const Vector& x, int out) {
    Vector y(static_cast<std::size_t>(out), 0.0);
    for (std::size_t o = 0; o < y.size(); ++o)
      for (std::size_t i = 0; i < x.size(); ++i) y[o] += w[o * x.size() + i] * x[i];
    return y;
  }

  // w [in, out] times x, plus a bias: GPT-2's Conv1D.
  Vector conv(const std::string& linear, const Vector& x) const {
    const Vector& w = at(linear + ".weight");
    Vector y = at(linear + ".bias");
    for (std::size_t i = 0; i < x.size(); ++i)
      for (std::size_t o = 0; o < y.size(); ++o) y[o] += x[i] * w[i * y.size() + o];
    return y;
  }

  static void add(Rows& x, const Rows& y) {
    for (std::size_t t = 0; t < x.size(); ++t)
      for (std::size_t c = 0; c < x[t].size(); ++c) x[t][c] += y[t][c];
  }

  static void rms_norm(double* x, int count, double eps, const Vector* weight) {
    double squares = 0;
    for (int i = 0; i < count; ++i) squares += x[i] * x[i];
    const double scale = 1 / std::sqrt(squares / count + eps);
    for (int i = 0; i < count; ++i) x[i] *= scale * (weight ? (*weight)[static_cast<std::size_t>(i)] : 1);
  }

  Vector layer_norm(Vector x, const std::string& norm) const {
    double mean = 0, variance = 0;
    for (double value : x) mean += value / s_.width;
    for (double value : x) variance += (value - mean) * (value - mean) / s_.width;
    for (std::size_t c = 0; c < x.size(); ++c)
      x[c] = (x[c] - mean) / std::sqrt(variance + s_.eps) * at(norm + ".weight")[c] + at(norm + ".bias")[c];
    return x;
  }

  Rows normed(Rows x, const std::string& norm) const {
    for (Vector& row : x) {
      if (family_ == Family::gpt2)
        row = layer_norm(row, norm);
      else
        rms_norm(row.data(), s_.width, s_.eps, family_ == Family::qwen3 ? &at(norm + ".weight") : nullptr);
    }
    return x;
  }

  Rows embed(const std::vector<int>& tokens) const {
    const std::string table = family_ == Family::qwen3  ? "model.embed_tokens.weight"
                              : family_ == Family::gpt2 ? "transformer.wte.weight"
                                                        : "wte";
    Rows x;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      Vector& row = x.emplace_back();
      for (int c = 0; c < s_.width; ++c) {
        const auto column = static_cast<std::size_t>(c), width = static_cast<std::size_t>(s_.width);
        row.push_back(at(table)[static_cast<std::size_t>(tokens[t]) * width + column]);
        if (family_ == Family::gpt2) row.back() += at("transformer.wpe.weight")[t * width + column];
        if (family_ == Family::microgpt) row.back() += at("wpe")[t * width + column];
      }
    }
    return family_ == Family::microgpt ? normed(x, "") : x;
  }

  struct Heads {
    Rows q, k, v;
  };

  Heads project(int layer, const Rows& h) const {
    Heads out;
    const int wide = s_.heads * s_.head, narrow = s_.kv_heads * s_.head;
    for (const Vector& row : h) {
      if (family_ == Family::gpt2) {
        const Vector all = conv(name(layer, "attn.c_attn"), row);
        out.q.emplace_back(all.begin(), all.begin() + wide);
        out.k.emplace_back(all.begin() + wide, all.begin() + 2 * wide);
        out.v.emplace_back(all.begin() + 2 * wide, all.end());
      } else {
        const bool qwen = family_ == Family::qwen3;
        out.q.push_back(times(at(name(layer, qwen ? "self_attn.q_proj.weight" : "attn_wq")), row, wide));
        out.k.push_back(times(at(name(layer, qwen ? "self_attn.k_proj.weight" : "attn_wk")), row, narrow));
        out.v.push_back(times(at(name(layer, qwen ? "self_attn.v_proj.weight" : "attn_wv")), row, narrow));
      }
    }
    if (family_ == Family::qwen3) {
      rotate(out.q, s_.heads, at(name(layer, "self_attn.q_norm.weight")));
      rotate(out.k, s_.kv_heads, at(name(layer, "self_attn.k_norm.weight")));
    }
    return out;
  }

  // For each head: norm, then rotate the pairs (i, i + D/2) by t theta^(-2i/D).
  void rotate(Rows& rows, int heads, const Vector& weight) const {
    const int half = s_.head / 2;
    for (std::size_t t = 0; t < rows.size(); ++t)
      for (int h = 0; h < heads; ++h) {
        double* x = rows[t].data() + h * s_.head;
        rms_norm(x, s_.head, s_.eps, &weight);
        for (int i = 0; i < half; ++i) {
          const double angle = static_cast<double>(t) * std::pow(s_.theta, -2.0 * i / s_.head);
          const double a = x[i], b = x[i + half];
          x[i] = a * std::cos(angle) - b * std::sin(angle);
          x[i + half] = b * std::cos(angle) + a * std::sin(angle);
        }
      }
  }

  Rows attention(int layer, const Rows& h) const {
    const Heads heads = project(layer, h);
    Rows out;
    for (std::size_t t = 0; t < h.size(); ++t) {
      Vector y(static_cast<std::size_t>(s_.heads * s_.head), 0.0);
      for (int head = 0; head < s_.heads; ++head) {
        const int kv = head / (s_.heads / s_.kv_heads) * s_.head, own = head * s_.head;
        Vector weights(t + 1);
        double total = 0;
        for (std::size_t u = 0; u <= t; ++u) {
          double score = 0;
          for (int d = 0; d < s_.head; ++d) score += heads.q[t].data()[own + d] * heads.k[u].data()[kv + d];
          total += weights[u] = std::exp(score / std::sqrt(s_.head));
        }
        for (std::size_t u = 0; u <= t; ++u)
          for (int d = 0; d < s_.head; ++d)
            y.data()[own + d] += weights[u] / total * heads.v[u].data()[kv + d];
      }
      if (family_ == Family::gpt2)
        out.push_back(conv(name(layer, "attn.c_proj"), y));
      else
        out.push_back(times(at(name(layer, family_ == Family::qwen3 ? "self_attn.o_proj.weight" : "attn_wo")),
                            y, s_.width));
    }
    return out;
  }

  Rows mlp(int layer, const Rows& h) const {
    Rows out;
    for (const Vector& row : h) {
      if (family_ == Family::qwen3) {
        Vector gate = times(at(name(layer, "mlp.gate_proj.weight")), row, s_.hidden);
        const Vector up = times(at(name(layer, "mlp.up_proj.weight")), row, s_.hidden);
        for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
        out.push_back(times(at(name(layer, "mlp.down_proj.weight")), gate, s_.width));
      } else if (family_ == Family::gpt2) {
        Vector inner = conv(name(layer, "mlp.c_fc"), row);
        for (double& v : inner) v *= 0.5 * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
        out.push_back(conv(name(layer, "mlp.c_proj"), inner));
      } else {
        Vector inner = times(at(name(layer, "mlp_fc1")), row, s_.hidden);
        for (double& v : inner) v = v > 0 ? v : 0;
        out.push_back(times(at(name(layer, "mlp_fc2")), inner, s_.width));
      }
    }
    return out;
  }

  Family family_;
  Sizes s_;
};

}  // namespace thimble
