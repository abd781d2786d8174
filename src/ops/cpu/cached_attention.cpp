// cached_attention with Highway, and the choice of kernel for each call. Keys and values of all
// rows are appended first, then queries attend.
#include <cmath>
#include <cstring>

#include "ops/cpu/attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/cached_attention.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// cap tanh(x / cap); cap 0: x.
HWY_INLINE V32 capped(V32 x, float cap) {
  return cap > 0 ? hn::Mul(all(cap), tanh_lanes(hn::Mul(x, all(1 / cap)))) : x;
}

// The first of `keys` keys that the last one attends to.
HWY_INLINE std::int64_t first_key(const CachedAttention& op, std::int64_t keys) {
  return op.at.window > 0 ? std::max<std::int64_t>(0, keys - op.at.window) : 0;
}

// One query head over all keys of its slot, with an online softmax over blocks of keys that start
// at position 0. The order of sums therefore depends only on the position. `y` is the f32
// accumulator.
template <class T>
HWY_INLINE void attend(const CachedAttention& op, std::int64_t n, std::int64_t h, float* y) {
  constexpr std::int64_t kBlock = 64;
  const std::int64_t D = op.head_size(), column = h / op.group() * D;
  const std::int64_t slot = *op.slot.row<std::int32_t>(n) * std::int64_t{op.at.context};
  const std::int64_t keys = *op.position.row<std::int32_t>(n) + std::int64_t{1};
  const T* q = op.q.row<T>(n) + h * D;
  std::fill_n(y, D, 0.0f);
  float highest = -std::numeric_limits<float>::infinity(), sum = 0;
  const std::int64_t start = first_key(op, keys);
  for (std::int64_t begin = start; begin < keys; begin = (begin / kBlock + 1) * kBlock) {
    const std::int64_t count = std::min((begin / kBlock + 1) * kBlock, keys) - begin;
    const std::int64_t row = slot + begin % op.at.context;
    float weight[kBlock];
    float now = highest;
    for (std::int64_t m = 0; m < count; ++m) {
      weight[m] = op.at.scale * dot(q, op.k_cache.row<T>(row + m) + column, D);
      if (op.at.softcap > 0) weight[m] = hn::GetLane(capped(all(weight[m]), op.at.softcap));
      now = std::max(weight[m], now);
    }
    const float keep = begin == start ? 0.0f : std::exp(highest - now);
    sum *= keep;
    for_lanes(D, [&](auto at) HWY_ATTR { at.store(hn::Mul(at.load(y), all(keep)), y); });
    sum += sum_lanes(count, [&](auto at) HWY_ATTR {
      const V32 p = at.or_zero(exp_lanes(hn::Sub(at.load(weight), all(now))));
      at.store(p, weight);
      return p;
    });
    for (std::int64_t m = 0; m < count; ++m)
      add_multiple(weight[m], op.v_cache.row<T>(row + m) + column, y, D);
    highest = now;
  }
  for_lanes(D, [&](auto at) HWY_ATTR { at.store(hn::Div(at.load(y), all(sum)), op.y.row<T>(n) + h * D); });
}

constexpr int kLanes = static_cast<int>(hn::MaxLanes(F32()));

// Lane i is the sum of the lanes of v[i]. All are added in the same order.
HWY_INLINE V32 sums_of_each(const V32 (&v)[kLanes]) {
#if HWY_TARGET == HWY_AVX3
  __m512 two[8], four[4];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    two[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i].raw, v[2 * i + 1].raw),
                           _mm512_unpackhi_ps(v[2 * i].raw, v[2 * i + 1].raw));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(two[2 * i]), b = _mm512_castps_pd(two[2 * i + 1]);
    four[i] =
        _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  const auto join = [](__m512 a, __m512 b) HWY_ATTR {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
  };
  return V32{join(join(four[0], four[1]), join(four[2], four[3]))};
#elif HWY_TARGET == HWY_AVX2
  __m256 two[4], four[2];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    two[i] = _mm256_add_ps(_mm256_unpacklo_ps(v[2 * i].raw, v[2 * i + 1].raw),
                           _mm256_unpackhi_ps(v[2 * i].raw, v[2 * i + 1].raw));
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i)
    four[i] = _mm256_add_ps(_mm256_shuffle_ps(two[2 * i], two[2 * i + 1], 0x44),
                            _mm256_shuffle_ps(two[2 * i], two[2 * i + 1], 0xEE));
  return V32{_mm256_add_ps(_mm256_permute2f128_ps(four[0], four[1], 0x20),
                           _mm256_permute2f128_ps(four[0], four[1], 0x31))};
#elif HWY_TARGET != HWY_SCALAR
  const F32 d;
  const auto add_halves = [&](V32 a, V32 b) HWY_ATTR {  // lanes a0 + a2, b0 + b2, a1 + a3, b1 + b3
    return hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  };
  const V32 low = add_halves(v[0], v[1]), high = add_halves(v[2], v[3]);
  return hn::Add(hn::ConcatLowerLower(d, high, low), hn::ConcatUpperUpper(d, high, low));
#else
  return v[0];
#endif
}

constexpr std::int64_t kKeys = 64;                  // keys per block: a multiple of all lane counts
constexpr std::int64_t kLines = kLinesInRegisters;  // the maximum per pass

template <int V>
struct Query {
  V32 q[V];

  template <class T>
  HWY_INLINE explicit Query(const T* from) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) q[v] = WholeVector{v * kLanes}.load(from);
  }
  template <class T>
  HWY_INLINE V32 products(const T* key) const {
    V32 sum = hn::Mul(q[0], WholeVector{0}.load(key));
#pragma GCC unroll 8
    for (int v = 1; v < V; ++v) sum = hn::MulAdd(q[v], WholeVector{v * kLanes}.load(key), sum);
    return sum;
  }
};

// The online softmax of one head over blocks of keys.
template <int V>
struct RunningHead {
  V32 y[V];
  float highest = -std::numeric_limits<float>::infinity(), sum = 0;
  alignas(64) float weight[kKeys];

  // weight[m] = scale q . k[m], capped; -infinity before the first key and past the last.
  template <class T, class Q>
  HWY_INLINE void score(const Q& query, const T* k, std::int64_t pitch, std::int64_t hidden,
                        std::int64_t count, const CachedAttentionAttributes& at) {
    for (std::int64_t first = 0; first < count; first += kLanes) {
      V32 products[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i)
        products[i] = query.products(k + std::min(first + i, count - 1) * pitch);
      const V32 scores = capped(hn::Mul(sums_of_each(products), all(at.scale)), at.softcap);
      const auto left = static_cast<std::size_t>(std::min<std::int64_t>(kLanes, count - first));
      const V32 none = all(-std::numeric_limits<float>::infinity());
      hn::StoreU(hn::IfThenElse(hn::FirstN(F32(), left), scores, none), F32(), weight + first);
    }
    std::fill_n(weight, hidden, -std::numeric_limits<float>::infinity());
  }

  HWY_INLINE void to_probabilities(std::int64_t count, bool first_block) {
    V32 now = all(highest);
    for (std::int64_t m = 0; m < count; m += kLanes) now = hn::Max(now, hn::LoadU(F32(), weight + m));
    now = all(max_of_lanes(now));
    V32 total = hn::Zero(F32());
    for (std::int64_t m = 0; m < count; m += kLanes) {
      const V32 p = exp_lanes(hn::Sub(hn::LoadU(F32(), weight + m), now));
      hn::StoreU(p, F32(), weight + m);
      total = hn::Add(total, p);
    }
    const float keep = first_block ? 0.0f : std::exp(highest - hn::GetLane(now));
    sum = sum * keep + sum_of_lanes(total);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) y[v] = hn::Mul(y[v], all(keep));
    highest = hn::GetLane(now);
  }
};

// y += values weighted by their probabilities, for parts of P vectors, whose accumulators fit into
// registers.
template <class T, int V, int H>
HWY_INLINE void add_values(RunningHead<V>* head, const T* values, std::int64_t pitch, std::int64_t hidden,
                           std::int64_t count) {
  constexpr int P = V < 8 ? V : 8;
  for (int part = 0; part < V; part += P) {
    V32 y[H][P];
#pragma GCC unroll 2
    for (int i = 0; i < H; ++i)
#pragma GCC unroll 8
      for (int v = 0; v < P; ++v) y[i][v] = head[i].y[part + v];
    for (std::int64_t m = hidden; m < count; ++m) {
      const T* value = values + m * pitch + part * kLanes;
#pragma GCC unroll 8
      for (int v = 0; v < P; ++v) {
        const V32 lanes = WholeVector{v * kLanes}.load(value);
#pragma GCC unroll 2
        for (int i = 0; i < H; ++i) y[i][v] = hn::MulAdd(all(head[i].weight[m]), lanes, y[i][v]);
      }
    }
#pragma GCC unroll 2
    for (int i = 0; i < H; ++i)
#pragma GCC unroll 8
      for (int v = 0; v < P; ++v) head[i].y[part + v] = y[i][v];
  }
}

// A head's part of a key is one or two cache lines, far from the next key's, so the hardware
// prefetcher detects no stream. While one block is scored, this prefetches the keys of the next
// block and the values of the current one.
template <class T>
HWY_INLINE void fetch_block(const T* next_keys, std::int64_t key_pitch, const T* values,
                            std::int64_t value_pitch, std::int64_t count, std::int64_t head_size) {
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t m = 0; m < count; ++m)
    for (std::int64_t d = 0; d < head_size; d += kLine) {
      __builtin_prefetch(next_keys + m * key_pitch + d);
      __builtin_prefetch(values + m * value_pitch + d);
    }
}

// Lines [first, last), at most kLines, of a run under one kv head, for head sizes of V whole
// vectors. A block of keys and values stays in cache while all lines use it. The sums of a line,
// and their order, depend only on its query and position.
template <class T, int V>
HWY_INLINE void some_lines(const CachedAttention& op, const QueryRun& run, std::int64_t kv,
                           std::int64_t first, std::int64_t last) {
  constexpr int kTogether = V <= 4 ? 2 : 1;  // heads whose accumulators fit into registers
  const std::int64_t D = V * kLanes, group = op.group();
  const std::int64_t slot = *op.slot.row<std::int32_t>(run.begin) * std::int64_t{op.at.context};
  const std::int64_t first_keys = *op.position.row<std::int32_t>(run.begin) + std::int64_t{1};
  const std::int64_t k_pitch = op.k_cache.stride, v_pitch = op.v_cache.stride;
  const T *all_keys = op.k_cache.row<T>(slot) + kv * D, *all_values = op.v_cache.row<T>(slot) + kv * D;
  const auto query_row = [&](std::int64_t line) { return run.begin + line / group; };
  const auto column = [&](std::int64_t line) { return (kv * group + line % group) * D; };

  RunningHead<V> heads[kLines];
  const auto head = [&](std::int64_t line) { return heads + (line - first); };
  for (std::int64_t line = first; line < last; ++line)
    for (V32& part : head(line)->y) part = hn::Zero(F32());
  const std::int64_t end = first_keys + run.count - 1;
  const std::int64_t start = first_key(op, first_keys + first / group) / kKeys * kKeys;
  for (std::int64_t begin = start; begin < end; begin += kKeys) {
    const T *k = all_keys + begin % op.at.context * k_pitch,
            *next_keys = all_keys + (begin + kKeys) % op.at.context * k_pitch,
            *values = all_values + begin % op.at.context * v_pitch;
    const auto hidden_keys = [&](std::int64_t line) {  // before the window
      return std::max<std::int64_t>(0, first_key(op, first_keys + line / group) - begin);
    };
    const auto visible_keys = [&](std::int64_t line) {  // 0 or less: none
      const std::int64_t count = std::min(kKeys, first_keys + line / group - begin);
      return hidden_keys(line) < count ? count : 0;
    };
    fetch_block(next_keys, k_pitch, values, v_pitch, std::min(kKeys, end - begin), D);
    for (std::int64_t line = first; line < last; ++line) {
      if (visible_keys(line) <= 0) continue;
      const Query<V> query(op.q.row<T>(query_row(line)) + column(line));
      head(line)->score(query, k, k_pitch, hidden_keys(line), visible_keys(line), op.at);
      head(line)->to_probabilities(visible_keys(line), begin <= first_key(op, first_keys + line / group));
    }
    for (std::int64_t line = first; line < last;) {
      const std::int64_t count = visible_keys(line);
      const std::int64_t hidden = hidden_keys(line);
      const bool several = line % group + kTogether <= group && line + kTogether <= last;
      if (count > 0) {
        if (several)
          add_values<T, V, kTogether>(head(line), values, v_pitch, hidden, count);
        else
          add_values<T, V, 1>(head(line), values, v_pitch, hidden, count);
      }
      line += several ? kTogether : 1;
    }
  }
  for (std::int64_t line = first; line < last; ++line)
    for (int v = 0; v < V; ++v)
      WholeVector{v * kLanes}.store(hn::Div(head(line)->y[v], all(head(line)->sum)),
                                    op.y.row<T>(query_row(line)) + column(line));
}

template <class T, int V>
HWY_INLINE void attend_in_registers(const CachedAttention& op, const QueryRun& run, std::int64_t kv) {
  const std::int64_t lines = run.count * op.group();
  for (std::int64_t first = 0; first < lines; first += kLines)
    some_lines<T, V>(op, run, kv, first, std::min(first + kLines, lines));
}

// `y` is used for head sizes that are not 1, 2, 4, 8 or 16 whole vectors.
template <class T>
HWY_INLINE void attend_any(const CachedAttention& op, const QueryRun& run, std::int64_t kv, float* y) {
  const std::int64_t D = op.head_size(), G = op.group();
  switch (D % kLanes == 0 ? D / kLanes : 0) {
    case 1:
      return attend_in_registers<T, 1>(op, run, kv);
    case 2:
      return attend_in_registers<T, 2>(op, run, kv);
    case 4:
      return attend_in_registers<T, 4>(op, run, kv);
    case 8:
      return attend_in_registers<T, 8>(op, run, kv);
    case 16:
      return attend_in_registers<T, 16>(op, run, kv);
    default:
      for (std::int64_t n = run.begin; n < run.begin + run.count; ++n)
        for (std::int64_t h = kv * G; h < (kv + 1) * G; ++h) attend<T>(op, n, h, y);
  }
}

void attend_cached(const CachedAttention& op, const QueryRun& run, float* y) {
  for (std::int64_t kv = run.kv_begin; kv < run.kv_end; ++kv)
    op.q.dtype == DType::bf16 ? attend_any<bf16>(op, run, kv, y) : attend_any<float>(op, run, kv, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(attend_cached);

namespace {

void append_rows(const CachedAttention& op) {
  const auto row_bytes = [](const Tensor& tensor, std::int64_t row) {
    return static_cast<std::byte*>(tensor.data) + row * tensor.stride * dtype_bytes(tensor.dtype);
  };
  const auto bytes = static_cast<std::size_t>(op.k.cols * dtype_bytes(op.k.dtype));
  for (std::int64_t n = 0; n < op.q.rows; ++n) {
    const std::int64_t row = *op.slot.row<std::int32_t>(n) * std::int64_t{op.at.context} +
                             *op.position.row<std::int32_t>(n) % op.at.context;
    std::memcpy(row_bytes(op.k_cache, row), row_bytes(op.k, n), bytes);
    std::memcpy(row_bytes(op.v_cache, row), row_bytes(op.v, n), bytes);
  }
}

std::int64_t cached_attention_thread_bytes(std::int64_t head_size) {
  return std::max(head_size * static_cast<std::int64_t>(sizeof(float)),
                  cached_attention_bf16_bytes(head_size));
}

void cached_attention_forward(const Context&, const OpCall& call) {
  const CachedAttention op(call);
  append_rows(op);
  const ThreadScratch scratch(call.scratch, cached_attention_thread_bytes(op.head_size()),
                              "cached_attention");
  const bool in_pairs = cached_attention_in_bf16_pairs(op);
  const std::vector<QueryRun> runs =
      cached_attention_runs(op, in_pairs ? kLinesInPairs : kLinesInRegisters, max_threads());
  parallel_tasks(static_cast<std::int64_t>(runs.size()), [&](std::int64_t task) {
    const QueryRun& run = runs[static_cast<std::size_t>(task)];
    if (in_pairs) return cached_attention_bf16_run(op, run, scratch.mine());
    HWY_DYNAMIC_DISPATCH(attend_cached)(op, run, reinterpret_cast<float*>(scratch.mine()));
  });
}

std::int64_t cached_attention_scratch_bytes(std::span<const Shape> in, const Attributes& attributes) {
  const std::int64_t C = in[0].cols;
  return ThreadScratch::bytes(
      cached_attention_thread_bytes(C / attributes.as<CachedAttentionAttributes>().heads));
}

}  // namespace

constinit const Kernels kCachedAttention = {.forward = cached_attention_forward,
                                            .rows = dtypes({DType::f32, DType::bf16}),
                                            .scratch_bytes = cached_attention_scratch_bytes};

}  // namespace thimble::cpu
#endif
