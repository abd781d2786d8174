#include "ops/table.h"

#include "ops/attention.h"
#include "ops/cast.h"
#include "ops/cuda_plugin.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/head_loss.h"
#include "ops/kernel_choice.h"
#include "ops/linear.h"
#include "ops/low_rank.h"
#include "ops/norm.h"
#include "ops/residual.h"
#include "ops/rope.h"

namespace thimble {

namespace {

constexpr const OpDefinition* kOps[] = {
    &op::kEmbedding,       &op::kSmear,      &op::kRmsNorm,   &op::kLayerNorm,
    &op::kLinear,          &op::kRope,       &op::kAttention, &op::kExclusiveAttention,
    &op::kCachedAttention, &op::kActivation, &op::kAddScaled, &op::kResidualMix,
    &op::kResidualNorm,    &op::kGatedSkip,  &op::kDropout,   &op::kGather,
    &op::kSoftcap,         &op::kHeadLoss,   &op::kCast,      &op::kFakeQuant,
    &op::kLowRank,
};

constexpr Backend kReference = {
    .name = "reference", .find = [](const OpDefinition& op) -> const Kernels* { return op.reference; }};
constexpr Backend kCpu = {.name = "cpu", .find = [](const OpDefinition& op) { return op.cpu; }};

}  // namespace

std::span<const OpDefinition* const> all_ops() {
  return kOps;
}

const Backend& reference_backend() {
  return kReference;
}

const Backend& cpu_backend() {
  apply_cpu_level();
  return kCpu;
}

const Backend& backend_of(Device device) {
  return device == Device::cuda ? cuda_backend() : cpu_backend();
}

}  // namespace thimble
