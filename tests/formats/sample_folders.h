// Small Hugging Face folders with random weights, laid out as Transformers writes them.
#pragma once

#include <fmt/format.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "formats/safetensors.h"

namespace thimble {

struct SampleTensor {
  std::vector<std::int64_t> dims;
  std::vector<float> values;
};
using SampleTensors = std::map<std::string, SampleTensor>;

struct SampleFolder {
  Json config;
  SampleTensors tensors;
};

class RandomTensors {
 public:
  // Norm weights are around 1, all others around 0.
  void add(const std::string& name, std::vector<std::int64_t> dims, double centre = 0) {
    std::int64_t count = 1;
    for (const std::int64_t dim : dims) count *= dim;
    std::normal_distribution<float> normal(static_cast<float>(centre), 0.3f);
    SampleTensor& tensor = tensors[name];
    tensor.dims = std::move(dims);
    for (std::int64_t i = 0; i < count; ++i) tensor.values.push_back(normal(random_));
  }
  SampleTensors tensors;

 private:
  std::mt19937 random_{7};
};

// llama, qwen2 or qwen3 with 6 query heads of size 4 and 2 key heads; q is wider than the stream.
inline SampleFolder sample_llama(const std::string& type, bool tied) {
  constexpr std::int64_t V = 29, C = 16, L = 2, H = 6, K = 2, D = 4, F = 20;
  RandomTensors random;
  random.add("model.embed_tokens.weight", {V, C});
  for (int l = 0; l < L; ++l) {
    const std::string block = fmt::format("model.layers.{}.", l);
    random.add(block + "self_attn.q_proj.weight", {H * D, C});
    random.add(block + "self_attn.k_proj.weight", {K * D, C});
    random.add(block + "self_attn.v_proj.weight", {K * D, C});
    random.add(block + "self_attn.o_proj.weight", {C, H * D});
    if (type == "qwen2") {
      random.add(block + "self_attn.q_proj.bias", {H * D});
      random.add(block + "self_attn.k_proj.bias", {K * D});
      random.add(block + "self_attn.v_proj.bias", {K * D});
    }
    if (type == "qwen3") {
      random.add(block + "self_attn.q_norm.weight", {D}, 1);
      random.add(block + "self_attn.k_norm.weight", {D}, 1);
    }
    random.add(block + "mlp.gate_proj.weight", {F, C});
    random.add(block + "mlp.up_proj.weight", {F, C});
    random.add(block + "mlp.down_proj.weight", {C, F});
    random.add(block + "input_layernorm.weight", {C}, 1);
    random.add(block + "post_attention_layernorm.weight", {C}, 1);
  }
  random.add("model.norm.weight", {C}, 1);
  if (!tied) random.add("lm_head.weight", {V, C});
  Json config = Json::object()
                    .set("model_type", type)
                    .set("architectures", Json::array({"ForCausalLM"}))
                    .set("vocab_size", V)
                    .set("hidden_size", C)
                    .set("num_hidden_layers", L)
                    .set("num_attention_heads", H)
                    .set("num_key_value_heads", K)
                    .set("head_dim", D)
                    .set("intermediate_size", F)
                    .set("max_position_embeddings", 32)
                    .set("hidden_act", "silu")
                    .set("rms_norm_eps", 1e-5)
                    .set("rope_theta", 500.0)
                    .set("tie_word_embeddings", tied)
                    .set("torch_dtype", "float32");
  return {std::move(config), std::move(random.tensors)};
}

inline SampleFolder sample_gpt2() {
  constexpr std::int64_t V = 31, C = 12, L = 2, F = 4 * C, T = 16;
  RandomTensors random;
  random.add("transformer.wte.weight", {V, C});
  random.add("transformer.wpe.weight", {T, C});
  for (int l = 0; l < L; ++l) {
    const std::string block = fmt::format("transformer.h.{}.", l);
    random.add(block + "ln_1.weight", {C}, 1), random.add(block + "ln_1.bias", {C});
    random.add(block + "attn.c_attn.weight", {C, 3 * C}), random.add(block + "attn.c_attn.bias", {3 * C});
    random.add(block + "attn.c_proj.weight", {C, C}), random.add(block + "attn.c_proj.bias", {C});
    random.add(block + "ln_2.weight", {C}, 1), random.add(block + "ln_2.bias", {C});
    random.add(block + "mlp.c_fc.weight", {C, F}), random.add(block + "mlp.c_fc.bias", {F});
    random.add(block + "mlp.c_proj.weight", {F, C}), random.add(block + "mlp.c_proj.bias", {C});
  }
  random.add("transformer.ln_f.weight", {C}, 1), random.add("transformer.ln_f.bias", {C});
  Json config = Json::object()
                    .set("model_type", "gpt2")
                    .set("vocab_size", V)
                    .set("n_positions", T)
                    .set("n_ctx", T)
                    .set("n_embd", C)
                    .set("n_layer", L)
                    .set("n_head", 3)
                    .set("n_inner", nullptr)
                    .set("activation_function", "gelu_new")
                    .set("layer_norm_epsilon", 1e-5)
                    .set("resid_pdrop", 0.1)
                    .set("scale_attn_weights", true);
  return {std::move(config), std::move(random.tensors)};
}

inline void write_tensors(const std::filesystem::path& path, const SampleTensors& tensors) {
  SafetensorsWriter writer;
  writer.set_metadata("format", "pt");
  for (const auto& [name, tensor] : tensors)
    writer.add(name, DType::f32, tensor.dims, std::as_bytes(std::span(tensor.values)));
  PosixFileOps ops;
  writer.write(ops, path, Existing::replace, WithDigest::no);
}

// Writes one file, or `shards` files with an index.
inline void write_folder(const std::filesystem::path& folder, const SampleFolder& sample, int shards = 1) {
  PosixFileOps ops;
  make_folders(ops, folder);
  write_file(ops, folder / "config.json", sample.config.dump(2), Existing::replace);
  if (shards == 1) return write_tensors(folder / "model.safetensors", sample.tensors);
  std::vector<SampleTensors> parts(static_cast<std::size_t>(shards));
  Json map = Json::object();
  int count = 0;
  for (const auto& [name, tensor] : sample.tensors) {
    const int shard = count++ % shards;
    parts[static_cast<std::size_t>(shard)][name] = tensor;
    map.set(name, fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards));
  }
  for (int i = 0; i < shards; ++i)
    write_tensors(folder / fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards),
                  parts[static_cast<std::size_t>(i)]);
  const Json index =
      Json::object().set("metadata", Json::object().set("total_size", 1)).set("weight_map", map);
  write_file(ops, folder / "model.safetensors.index.json", index.dump(2), Existing::replace);
}

}  // namespace thimble
