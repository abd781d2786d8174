#include "ops/elementwise.h"

#include "base/rng.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/dropout.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// As many Philox blocks side by side as a vector has lanes.
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

// philox() of base/rng.h for `block` and those after it, in order.
HWY_INLINE void draw_words(std::uint64_t seed, std::uint64_t stream, std::uint64_t block,
                           std::uint32_t* words) {
  const auto same = [](std::uint64_t word)
                        HWY_ATTR { return hn::Set(U32(), static_cast<std::uint32_t>(word)); };
  Words c0 = hn::Add(same(block), hn::Iota(U32(), 0));
  const auto carried = hn::Lt(c0, same(block));  // past 2^32
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

// out = in * mask / (1 - p), or added to it.
void mask_rows(const Dropout& op, const Tensor& in, const Tensor& out, bool add, std::int64_t begin,
               std::int64_t end) {
  const std::uint64_t seed = op.seed_value();
  const auto threshold = hn::Set(U32(), static_cast<std::uint32_t>(dropout_threshold(op.at.p)));
  const V32 kept = all(1.0f / (1.0f - op.at.p));
  for (std::int64_t n = begin; n < end; ++n) {
    const Row x(in, n), y(out, n);
    std::int64_t done = 0;
    while (done < in.cols) {
      const auto place = static_cast<std::uint64_t>(n * in.cols + done);
      HWY_ALIGN std::uint32_t words[kWords];
      draw_words(seed, op.at.stream, place / 4, words);
      const auto skipped = static_cast<std::int64_t>(place % 4);  // words of the row before
      const std::int64_t count = std::min(in.cols - done, static_cast<std::int64_t>(kWords) - skipped);
      const float* draws = reinterpret_cast<const float*>(words + skipped);
      for_lanes(count, [&, from = x + done, to = y + done](auto at) HWY_ATTR {
        const auto dropped = hn::Lt(hn::BitCast(U32(), at.load(draws)), threshold);
        // Times 0, not "= 0": a NaN in a dropped place must stay visible.
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

HWY_EXPORT(mask_rows);

namespace {

void mask(const Dropout& op, const Tensor& in, const Tensor& out, bool add) {
  parallel_for(in.rows, rows_per_task(in.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(mask_rows)(op, in, out, add, begin, end);
  });
}

}  // namespace

void dropout_forward(const Context&, const OpCall& call) {
  const Dropout op(call);
  mask(op, op.x, op.y, false);
}

void dropout_backward(const Context&, const OpCall& call) {
  const Dropout op(call);
  mask(op, op.dy, op.dx, op.add_dx);
}

}  // namespace thimble::cpu
#endif
