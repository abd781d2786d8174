// activation and dropout.
#include "ops/elementwise.h"

#include "base/rng.h"
#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/elementwise.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// 0 where x <= 0, else `value`. NaN propagates, because NaN <= 0 is false.
HWY_INLINE V32 where_positive(V32 x, V32 value) {
  return hn::IfThenZeroElse(hn::Le(x, hn::Zero(F32())), value);
}

// The tanh form's (1 + tanh(u)) / 2 = sigmoid(2u).
HWY_INLINE Sigmoid gelu_gate(V32 x) {
  const V32 inner = hn::MulAdd(hn::Mul(x, x), all(static_cast<float>(kGeluCubic)), all(1));
  return sigmoid_and_rest(hn::Mul(hn::Mul(all(static_cast<float>(2 * kGeluInner)), x), inner));
}

struct Relu {
  static HWY_INLINE V32 value(V32 x) { return where_positive(x, x); }
  static HWY_INLINE V32 slope(V32 x) { return hn::IfThenElse(hn::Eq(x, x), where_positive(x, all(1)), x); }
};

struct Relu2 {
  static HWY_INLINE V32 value(V32 x) { return where_positive(x, hn::Mul(x, x)); }
  static HWY_INLINE V32 slope(V32 x) { return where_positive(x, hn::Add(x, x)); }
};

struct LeakyRelu2 {
  static HWY_INLINE V32 value(V32 x) {
    const V32 square = hn::Mul(x, x);
    return hn::IfThenElse(hn::Le(x, hn::Zero(F32())), hn::Mul(all(0.25f), square), square);
  }
  static HWY_INLINE V32 slope(V32 x) {
    return hn::IfThenElse(hn::Le(x, hn::Zero(F32())), hn::Mul(all(0.5f), x), hn::Add(x, x));
  }
};

struct Gelu {
  static HWY_INLINE V32 value(V32 x) { return hn::Mul(x, gelu_gate(x).value); }
  static HWY_INLINE V32 slope(V32 x) {
    const Sigmoid s = gelu_gate(x);
    const V32 inner = hn::MulAdd(all(static_cast<float>(6 * kGeluInner * kGeluCubic)), hn::Mul(x, x),
                                 all(static_cast<float>(2 * kGeluInner)));
    return hn::MulAdd(hn::Mul(x, inner), hn::Mul(s.value, s.rest), s.value);
  }
};

template <class Kind>
HWY_INLINE void activate(const Activation& op, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.x, n), Row(op.y, n)}, [&](auto x, auto y) HWY_ATTR {
      for_lanes(op.y.cols, [&](auto at) HWY_ATTR { at.store(Kind::value(at.load(x)), y); });
    });
}

template <class Kind>
HWY_INLINE void activate_backward(const Activation& op, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.x, n), Row(op.dy, n), Row(op.dx, n)}, [&](auto x, auto dy, auto dx) HWY_ATTR {
      for_lanes(op.dy.cols, [&](auto at) HWY_ATTR {
        put(at, hn::Mul(at.load(dy), Kind::slope(at.load(x))), dx, op.add_dx);
      });
    });
}

struct Silu {
  static HWY_INLINE V32 value(V32 x) { return hn::Mul(x, sigmoid_lanes(x)); }
  static HWY_INLINE V32 slope(V32 x) {
    const Sigmoid s = sigmoid_and_rest(x);
    return hn::Mul(s.value, hn::MulAdd(x, s.rest, all(1)));
  }
};

template <class Kind>
HWY_INLINE void gated(const Activation& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t F = op.y.cols;
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.x, n), Row(op.y, n)}, [&](auto gates, auto y) HWY_ATTR {
      const auto ups = gates + F;
      for_lanes(F,
                [&](auto at) HWY_ATTR { at.store(hn::Mul(Kind::value(at.load(gates)), at.load(ups)), y); });
    });
}

template <class Kind>
HWY_INLINE void gated_backward(const Activation& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t F = op.dy.cols;
  for (std::int64_t n = begin; n < end; ++n)
    with_rows({Row(op.x, n), Row(op.dy, n), Row(op.dx, n)}, [&](auto gates, auto dy, auto dgates) HWY_ATTR {
      const auto ups = gates + F;
      const auto dups = dgates + F;
      for_lanes(F, [&](auto at) HWY_ATTR {
        const V32 gate = at.load(gates), gradient = at.load(dy);
        put(at, hn::Mul(hn::Mul(gradient, at.load(ups)), Kind::slope(gate)), dgates, op.add_dx);
        put(at, hn::Mul(gradient, Kind::value(gate)), dups, op.add_dx);
      });
    });
}

void activation_rows(const Activation& op, std::int64_t begin, std::int64_t end) {
  switch (op.kind) {
    case ActivationKind::relu:
      return activate<Relu>(op, begin, end);
    case ActivationKind::relu2:
      return activate<Relu2>(op, begin, end);
    case ActivationKind::leaky_relu2:
      return activate<LeakyRelu2>(op, begin, end);
    case ActivationKind::gelu:
      return activate<Gelu>(op, begin, end);
    case ActivationKind::swiglu:
      return gated<Silu>(op, begin, end);
    case ActivationKind::geglu:
      return gated<Gelu>(op, begin, end);
  }
}

void activation_backward_rows(const Activation& op, std::int64_t begin, std::int64_t end) {
  switch (op.kind) {
    case ActivationKind::relu:
      return activate_backward<Relu>(op, begin, end);
    case ActivationKind::relu2:
      return activate_backward<Relu2>(op, begin, end);
    case ActivationKind::leaky_relu2:
      return activate_backward<LeakyRelu2>(op, begin, end);
    case ActivationKind::gelu:
      return activate_backward<Gelu>(op, begin, end);
    case ActivationKind::swiglu:
      return gated_backward<Silu>(op, begin, end);
    case ActivationKind::geglu:
      return gated_backward<Gelu>(op, begin, end);
  }
}

// One Philox block per vector lane.
constexpr std::size_t kWords = 4 * hn::MaxLanes(U32());

#if HWY_TARGET == HWY_SCALAR

HWY_INLINE void draw_words(std::uint64_t seed, std::uint64_t stream, std::uint64_t block,
                           std::uint32_t* words) {
  const auto four = philox(seed, stream, block);
  std::copy(four.begin(), four.end(), words);
}

#else

using Words = hn::Vec<U32>;
using U64 = hn::Repartition<std::uint64_t, U32>;

struct Product {
  Words low, high;
};

HWY_INLINE Product multiply(Words a, Words b) {
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(U32(), hn::ShiftRight<32>(hn::BitCast(U64(), a))), b);
  return {hn::OddEven(hn::BitCast(U32(), hn::ShiftLeft<32>(odd)), hn::BitCast(U32(), even)),
          hn::OddEven(hn::BitCast(U32(), odd), hn::BitCast(U32(), hn::ShiftRight<32>(even)))};
}

// philox() of base/rng.h for `block` and the blocks after it, in order.
HWY_INLINE void draw_words(std::uint64_t seed, std::uint64_t stream, std::uint64_t block,
                           std::uint32_t* words) {
  const auto same = [](std::uint64_t word)
                        HWY_ATTR { return hn::Set(U32(), static_cast<std::uint32_t>(word)); };
  Words c0 = hn::Add(same(block), hn::Iota(U32(), 0));
  const auto carried = hn::Lt(c0, same(block));  // carry past 2^32
  Words c1 = hn::Add(same(block >> 32), hn::IfThenElseZero(carried, same(1)));
  Words c2 = same(stream), c3 = same(stream >> 32);
  Words key0 = same(seed), key1 = same(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const Product a = multiply(c0, same(0xD2511F53u)), b = multiply(c2, same(0xCD9E8D57u));
    c0 = hn::Xor(hn::Xor(b.high, c1), key0);
    c2 = hn::Xor(hn::Xor(a.high, c3), key1);
    c1 = b.low;
    c3 = a.low;
    key0 = hn::Add(key0, same(0x9E3779B9u));
    key1 = hn::Add(key1, same(0xBB67AE85u));
  }
  hn::StoreInterleaved4(c0, c1, c2, c3, U32(), words);
}

#endif

// out = in * mask / (1 - p), or out += in * mask / (1 - p).
void mask_rows(const Dropout& op, const Tensor& in, const Tensor& out, bool add, std::int64_t begin,
               std::int64_t end) {
  const std::uint64_t seed = op.seed_value();
  const auto threshold = hn::Set(U32(), static_cast<std::uint32_t>(dropout_threshold(op.at.p)));
  const V32 kept = all(1.0f / (1.0f - op.at.p));
  for (std::int64_t n = begin; n < end; ++n) {
    const Row x(in, n), y(out, n);
    std::int64_t done = 0;
    while (done < in.cols) {
      const auto element = static_cast<std::uint64_t>(n * in.cols + done);
      HWY_ALIGN std::uint32_t words[kWords];
      draw_words(seed, op.at.stream, element / 4, words);
      const auto skipped = static_cast<std::int64_t>(element % 4);  // words of the previous row
      const std::int64_t count = std::min(in.cols - done, static_cast<std::int64_t>(kWords) - skipped);
      const float* draws = reinterpret_cast<const float*>(words + skipped);
      for_lanes(count, [&, from = x + done, to = y + done](auto at) HWY_ATTR {
        const auto dropped = hn::Lt(hn::BitCast(U32(), at.load(draws)), threshold);
        // Multiply by 0 instead of storing 0, so that a NaN in a dropped element propagates.
        const V32 factor = hn::IfThenZeroElse(hn::RebindMask(F32(), dropped), kept);
        put(at, hn::Mul(at.load(from), factor), to, add);
      });
      done += count;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(activation_rows);
HWY_EXPORT(activation_backward_rows);
HWY_EXPORT(mask_rows);

namespace {

void activation_forward(const Context&, const OpCall& call) {
  const Activation op(call);
  parallel_for(op.x.rows, rows_per_task(op.x.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(activation_rows)(op, begin, end);
  });
}

void activation_backward(const Context&, const OpCall& call) {
  const Activation op(call);
  parallel_for(op.x.rows, rows_per_task(op.x.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(activation_backward_rows)(op, begin, end);
  });
}

void mask(const Dropout& op, const Tensor& in, const Tensor& out, bool add) {
  parallel_for(in.rows, rows_per_task(in.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(mask_rows)(op, in, out, add, begin, end);
  });
}

void dropout_forward(const Context&, const OpCall& call) {
  const Dropout op(call);
  mask(op, op.x, op.y, false);
}

void dropout_backward(const Context&, const OpCall& call) {
  const Dropout op(call);
  mask(op, op.dy, op.dx, op.add_dx);
}

}  // namespace

constinit const Kernels kActivation = {.forward = activation_forward,
                                       .backward = activation_backward,
                                       .rows = dtypes({DType::f32, DType::bf16}),
                                       .wide_gradients = true};
constinit const Kernels kDropout = {.forward = dropout_forward,
                                    .backward = dropout_backward,
                                    .rows = dtypes({DType::f32, DType::bf16}),
                                    .wide_gradients = true};

}  // namespace thimble::cpu
#endif
