#include "ops/ref/kernels.h"

#include "base/error.h"
#include "ops/ref/activation.h"
#include "ops/ref/attention.h"
#include "ops/ref/cached_attention.h"
#include "ops/ref/cast.h"
#include "ops/ref/dropout.h"
#include "ops/ref/embedding.h"
#include "ops/ref/exclusive_attention.h"
#include "ops/ref/fake_quant.h"
#include "ops/ref/gated_skip.h"
#include "ops/ref/gather.h"
#include "ops/ref/head_loss.h"
#include "ops/ref/layernorm.h"
#include "ops/ref/linear.h"
#include "ops/ref/residual.h"
#include "ops/ref/rmsnorm.h"
#include "ops/ref/rope.h"
#include "ops/ref/smear.h"
#include "ops/ref/softcap.h"

namespace thimble::ref {

namespace {

// body(T{}) for the number type of the call.
template <class Body>
void by_dtype(const OpCall& call, Body body) {
  switch (const DType dtype = call.in[0].dtype) {
    case DType::f32:
      return body(float{});
    case DType::f64:
      return body(double{});
    case DType::c128:
      return body(std::complex<double>{});
    default:
      fail("[reference] works in f32, f64 or c128, got {}", dtype_name(dtype));
  }
}

template <class Ref>
void forward(const Context&, const OpCall& call) {
  by_dtype(call, [&](auto number) { Ref::template forward<decltype(number)>(typename Ref::View(call)); });
}

template <class Ref>
void backward(const Context&, const OpCall& call) {
  by_dtype(call, [&](auto number) { Ref::template backward<decltype(number)>(typename Ref::View(call)); });
}

constexpr DTypes kNumbers = dtypes({DType::f32, DType::f64, DType::c128});
constexpr DTypes kStorage = kNumbers | dtypes({DType::bf16, DType::f16});

template <class Ref>
constexpr Kernels both() {
  return {forward<Ref>, backward<Ref>, kNumbers};
}

}  // namespace

Kernels kernels(Op op) {
  switch (op) {
    case Op::embedding:
      return both<EmbeddingRef>();
    case Op::smear:
      return both<SmearRef>();
    case Op::rmsnorm:
      return both<RmsNormRef>();
    case Op::layernorm:
      return both<LayerNormRef>();
    case Op::linear:
      return both<LinearRef>();
    case Op::rope:
      return both<RopeRef>();
    case Op::attention:
      return both<AttentionRef>();
    case Op::exclusive_attention:
      return both<ExclusiveAttentionRef>();
    case Op::cached_attention:
      return {forward<CachedAttentionRef>, nullptr, kNumbers};
    case Op::activation:
      return both<ActivationRef>();
    case Op::add_scaled:
      return both<AddScaledRef>();
    case Op::residual_mix:
      return both<ResidualMixRef>();
    case Op::residual_norm:
      return both<ResidualNormRef>();
    case Op::gated_skip:
      return both<GatedSkipRef>();
    case Op::dropout:
      return both<DropoutRef>();
    case Op::gather:
      return both<GatherRef>();
    case Op::softcap:
      return both<SoftcapRef>();
    case Op::head_loss:
      return both<HeadLossRef>();
    case Op::cast:
      return {cast_forward, cast_backward, kStorage, true};
    case Op::fake_quant:
      return {forward<FakeQuantRef>, backward<FakeQuantRef>, kNumbers, true};
  }
  fail("[reference] op {} has no kernels", static_cast<int>(op));
}

}  // namespace thimble::ref
