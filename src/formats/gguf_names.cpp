#include "formats/gguf_names.h"

#include <fmt/format.h>

#include "base/error.h"

namespace thimble {

namespace {

using enum Role;

constexpr GgufName kTensorNames[] = {
    {token_embedding, "token_embd.weight"},
    {head, "output.weight"},
    {final_norm, "output_norm.weight"},
    {attn_norm, "blk.{}.attn_norm.weight"},
    {query, "blk.{}.attn_q.weight"},
    {query_bias, "blk.{}.attn_q.bias"},
    {key, "blk.{}.attn_k.weight"},
    {key_bias, "blk.{}.attn_k.bias"},
    {value, "blk.{}.attn_v.weight"},
    {value_bias, "blk.{}.attn_v.bias"},
    {query_norm, "blk.{}.attn_q_norm.weight"},
    {key_norm, "blk.{}.attn_k_norm.weight"},
    {attn_proj, "blk.{}.attn_output.weight"},
    {attn_proj_bias, "blk.{}.attn_output.bias"},
    {mlp_norm, "blk.{}.ffn_norm.weight"},
    {mlp_gate, "blk.{}.ffn_gate.weight"},
    {mlp_gate_bias, "blk.{}.ffn_gate.bias"},
    {mlp_up, "blk.{}.ffn_up.weight"},
    {mlp_up_bias, "blk.{}.ffn_up.bias"},
    {mlp_proj, "blk.{}.ffn_down.weight"},
    {mlp_proj_bias, "blk.{}.ffn_down.bias"},
};

}  // namespace

std::span<const GgufName> gguf_names() {
  return kTensorNames;
}

std::string GgufName::of(int layer) const {
  return fmt::format(fmt::runtime(name), layer);
}

std::string gguf_name(const Param& param) {
  for (const GgufName& known : kTensorNames)
    if (known.role == param.role) return known.of(param.layer);
  fail("[gguf] llama.cpp has no name for {}", param.name);
}

bool is_turned(Role role) {
  return role == query || role == key || role == query_bias || role == key_bias;
}

}  // namespace thimble
