// Decoding on a GPU: results match the CPU, decoded log-probabilities match scored ones, and other
// requests do not change what model/model.h guarantees for a request.
#include <algorithm>
#include <cmath>
#include <random>

#include "config/builder.h"
#include "cuda/device.h"
#include "eval/small_model.h"
#include "infer/plain_sample.h"
#include "infer/run_requests.h"
#include "ops/attention.h"
#include "ops/table.h"
#include "tensor/tensor.h"
#include "tokenizer/tokenizer.h"

namespace thimble::decode_test {
namespace {

constexpr std::int64_t kContext = 200;
constexpr double kSameF32 = 5e-5;   // relative to a row's maximum logit: f32 sums in another order
constexpr double kSameBf16 = 0.04;  // the same with bf16, through all layers

std::vector<TokenId> random_prompt(std::mt19937& random, std::int64_t vocab_size, std::size_t length) {
  std::vector<TokenId> prompt(length);
  for (TokenId& token : prompt)
    token = static_cast<TokenId>(random() % static_cast<std::uint64_t>(vocab_size));
  return prompt;
}

class DecodingOnCuda : public testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    const auto gpu = find_gpu();
    if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
    gpu_ = std::make_unique<Context>(gpu.runtime);
  }

  std::unique_ptr<Model> model_on(const Context& context, DType dtype) const {
    return small_model(context, tokenizer_->vocab_size(), kContext, std::string(GetParam()).c_str(), dtype);
  }
  Request request(std::size_t length, float temperature, std::uint64_t seed = 0) {
    return {.prompt = random_prompt(random_, tokenizer_->vocab_size(), length),
            .sampling = {.temperature = temperature, .seed = seed},
            .max_tokens = kContext,
            .logprobs = 3};
  }

  std::unique_ptr<Context> gpu_;
  std::unique_ptr<Tokenizer> tokenizer_ = load_tokenizer("bytes");
  std::mt19937 random_{41};
};

TEST_P(DecodingOnCuda, SixtyFourGreedyTokensInF32MatchTheCpu) {
  const Context cpu;
  const auto cpu_model = model_on(cpu, DType::f32), gpu_model = model_on(*gpu_, DType::f32);
  for (const std::size_t length : {1u, 70u, 130u}) {
    Request greedy = request(length, 0);
    greedy.max_tokens = 64;
    Batcher batcher(*gpu_model, tokenizer_.get());
    const Sample expected = plain_sample(*cpu_model, *tokenizer_, greedy),
                 found = generate(batcher, greedy).at(0);
    EXPECT_EQ(ids_of(found.tokens), ids_of(expected.tokens)) << length;
  }
}

// Log-probabilities of a prompt and its completion: decoded, and scored as a complete sequence.
TEST_P(DecodingOnCuda, DecodedLogProbabilitiesMatchScoring) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    SCOPED_TRACE(dtype_name(dtype));
    const auto model = model_on(*gpu_, dtype);
    Request greedy = request(130, 0);
    greedy.score_prompt = true;
    Batcher batcher(*model, tokenizer_.get());
    const Sample sample = generate(batcher, greedy).at(0);
    std::vector<TokenScore> all = sample.prompt;
    all.insert(all.end(), sample.tokens.begin(), sample.tokens.end());
    std::vector<TokenId> tokens = ids_of(all);
    tokens.resize(kContext);
    const auto logits = model->score(grid_rows(model->config(), kContext, tokens), true).logits;
    const auto V = static_cast<std::size_t>(model->config().vocab_size);
    for (std::size_t t = 1; t < tokens.size(); ++t) {
      const auto row = std::span(logits).subspan((t - 1) * V, V);
      double total = 0;
      float largest = 1;
      for (const float logit : row) total += std::exp(logit), largest = std::max(largest, std::abs(logit));
      const double expected = row[static_cast<std::size_t>(tokens[t])] - std::log(total);
      ASSERT_NEAR(all[t].logprob, expected, (dtype == DType::f32 ? kSameF32 : kSameBf16) * largest) << t;
    }
  }
}

// Prompts are short, so no call has more rows than the batch-invariant kernels accept.
TEST_P(DecodingOnCuda, ARequestHasTheSameBitsAloneAndAmongEightOthers) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    SCOPED_TRACE(dtype_name(dtype));
    const auto model = model_on(*gpu_, dtype);
    std::vector<Request> requests;
    for (std::uint64_t seed = 0; seed < 9; ++seed) requests.push_back(request(1 + seed, 1, seed));
    for (Request& each : requests) each.max_tokens = 40;
    Batcher together(*model, tokenizer_.get(), {.slots = 9});
    const auto among = run_requests(together, requests);
    for (std::size_t i = 0; i < requests.size(); ++i)
      EXPECT_TRUE(std::ranges::equal(among[i].tokens, plain_sample(*model, *tokenizer_, requests[i]).tokens,
                                     same_bits))
          << i;
  }
}

// Prompts of various lengths. cuBLASLt computes prompts of more than 64 rows, so results may differ
// by rounding.
TEST_P(DecodingOnCuda, LogProbabilitiesMatchAmongLongPrompts) {
  const auto model = model_on(*gpu_, DType::bf16);
  std::vector<Request> requests;
  for (const std::size_t length : {1u, 150u, 64u, 17u, 3u, 90u, 65u, 128u})
    requests.push_back(request(length, 1, length));
  for (Request& each : requests) each.max_tokens = 1;
  Batcher together(*model, tokenizer_.get(), {.slots = 8});
  const auto among = run_requests(together, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    PlainDecoder alone(*model);
    const auto logits = alone.append(requests[i].prompt);
    const TokenScore expected = score_token(logits, among[i].tokens.at(0).id, 3, tokenizer_->vocab_size());
    const float largest =
        std::abs(*std::ranges::max_element(logits, {}, [](float l) { return std::abs(l); }));
    EXPECT_NEAR(among[i].tokens[0].logprob, expected.logprob, kSameBf16 * std::max(1.0f, largest)) << i;
  }
}

TEST_P(DecodingOnCuda, AReusedPrefixGivesTheSameTokens) {
  const auto model = model_on(*gpu_, DType::f32);
  Request first = request(100, 1, 1), second = request(50, 1, 2);
  first.max_tokens = second.max_tokens = 20;
  second.prompt.insert(second.prompt.begin(), first.prompt.begin(), first.prompt.begin() + 75);
  Request third = second;
  third.prompt.resize(80);
  Batcher batcher(*model, tokenizer_.get(), {.slots = 2});
  run_requests(batcher, {first});
  const auto samples = run_requests(batcher, {second, third});
  EXPECT_EQ(samples[0].usage.cached_tokens, 75);
  EXPECT_EQ(samples[1].usage.cached_tokens, 75);
  EXPECT_EQ(ids_of(samples[0].tokens), ids_of(plain_sample(*model, *tokenizer_, second).tokens));
  EXPECT_EQ(ids_of(samples[1].tokens), ids_of(plain_sample(*model, *tokenizer_, third).tokens));
}

INSTANTIATE_TEST_SUITE_P(, DecodingOnCuda, testing::ValuesIn(preset_names()), [](const auto& info) {
  std::string name(info.param);
  std::erase(name, '-');
  return name;
});

// Each number of rows has its own program and memory. Only the most recent programs are kept, and a
// program that is created again gives the same result.
TEST(RecordedOnCuda, KeepsOnlyTheMostRecentPrograms) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  const Context context(gpu.runtime);
  const auto model = small_model(context, 256, kContext, "golf", DType::bf16);
  KvCache cache = model->make_cache(1);
  const auto logits_of = [&](std::int32_t rows, std::int32_t num_logits) {
    std::vector<DecodeRow> inputs;
    for (std::int32_t i = 0; i < rows; ++i)
      inputs.push_back({.token = i % 100,
                        .previous = i > 0 ? (i - 1) % 100 : -1,
                        .before_previous = i > 1 ? (i - 2) % 100 : -1,
                        .position = i,
                        .slot = 0,
                        .wants_logits = i >= rows - num_logits});
    const Tensor logits = model->decode(decode_rows(model->config(), 1, inputs), cache);
    return std::vector<float>(logits.row<float>(0), logits.row<float>(0) + logits.count());
  };
  const std::vector<float> first = logits_of(2, 1);
  std::size_t most = 0, calls = 1;
  for (const std::int32_t rows : {2, 4, 8, 16, 32, 48, 64, 96, 128, 192})
    for (std::int32_t num_logits = 1; num_logits < rows; num_logits *= 2, ++calls) {
      logits_of(rows, num_logits);
      most = std::max(most, model->programs());
    }
  EXPECT_GT(calls, Model::kMostRecorded + 5) << "too few calls to evict a program";
  EXPECT_EQ(most, Model::kMostRecorded);
  EXPECT_EQ(logits_of(2, 1), first);
}

// Comparison with the CPU for caches that are split into parts, all head sizes with a specialized
// kernel, prompts among decoding rows, and padding rows.
struct LongCache {
  std::int64_t heads, kv_heads, size, context;
  std::int32_t window = 0;
  float softcap = 0;
  bool is_ring = false;  // the context is a multiple of 64 and at least window + 300
};

constexpr std::int64_t kSlots = 3;

// One call. Numbers are exact in bf16, so both dtypes get the same inputs.
struct CacheCall {
  std::vector<std::int32_t> slot, position;
  std::vector<float> q, k, v, keys, values;
};

std::vector<float> short_numbers(std::mt19937& random, std::int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = to_f32(to_bf16(normal(random)));
  return values;
}

// `prompt` rows of slot 0, the last row of slot 1, the first row of slot 2, and padding rows. Slots
// that are rings have been filled twice.
CacheCall make_call(const LongCache& shape, std::int64_t prompt, std::int64_t rows) {
  std::mt19937 random(3);
  const std::int64_t T = shape.context, kv = shape.kv_heads * shape.size,
                     end = shape.is_ring ? 3 * T - 40 : T;
  CacheCall call;
  call.slot = {1, 2};
  call.position = {static_cast<std::int32_t>(end - 1), 0};
  for (std::int64_t i = 0; i < prompt; ++i) {
    call.slot.push_back(0);
    call.position.push_back(static_cast<std::int32_t>(end - 30 - prompt + i));
  }
  call.slot.resize(static_cast<std::size_t>(rows), -1);
  call.position.resize(call.slot.size(), 0);
  call.q = short_numbers(random, rows * shape.heads * shape.size);
  call.k = short_numbers(random, rows * kv);
  call.v = short_numbers(random, rows * kv);
  call.keys = short_numbers(random, kSlots * T * kv);
  call.values = short_numbers(random, kSlots * T * kv);
  return call;
}

// Uploads host arrays as device tensors of a dtype.
class Uploader {
 public:
  explicit Uploader(const Context& context) : context_(context) {}

  Tensor operator()(const std::vector<float>& host, std::int64_t rows, std::int64_t cols, DType dtype) {
    if (dtype == DType::f32) return send(host.data(), rows, cols, dtype);
    std::vector<bf16> narrow;
    for (const float value : host) narrow.push_back(to_bf16(value));
    return send(narrow.data(), rows, cols, dtype);
  }
  Tensor operator()(const std::vector<std::int32_t>& host, std::int64_t rows) {
    return send(host.data(), rows, 1, DType::i32);
  }

 private:
  Tensor send(const void* host, std::int64_t rows, std::int64_t cols, DType dtype) {
    const std::int64_t bytes = rows * cols * dtype_bytes(dtype);
    blocks_.emplace_back(context_.runtime(), bytes, "a test", "");
    context_.runtime()->upload(blocks_.back().at(0), host, bytes);
    context_.runtime()->synchronize();
    return {blocks_.back().at(0), rows, cols, cols, dtype, context_.device()};
  }

  const Context& context_;
  std::vector<Arena> blocks_;
};

std::vector<float> attended(const Context& context, const LongCache& shape, const CacheCall& call,
                            std::int64_t rows, DType dtype) {
  const auto [H, K, D, T, window, softcap, is_ring] = shape;
  Uploader upload(context);
  const std::vector<float> before(static_cast<std::size_t>(rows * H * D), 7);
  const std::vector<Tensor> in = {upload(call.q, rows, H * D, dtype),
                                  upload(call.k, rows, K * D, dtype),
                                  upload(call.v, rows, K * D, dtype),
                                  upload(call.slot, rows),
                                  upload(call.position, rows),
                                  upload(call.keys, kSlots * T, K * D, dtype),
                                  upload(call.values, kSlots * T, K * D, dtype)};
  const std::vector<Tensor> out = {upload(before, rows, H * D, dtype)};
  const Attributes attributes = CachedAttentionAttributes{static_cast<std::int32_t>(H),
                                                          static_cast<std::int32_t>(K),
                                                          static_cast<std::int32_t>(T),
                                                          0.3f,
                                                          softcap,
                                                          window};
  const OpDefinition& def = op::kCachedAttention;
  const Backend& backend = backend_of(context.device());
  std::vector<Shape> shapes;
  for (const Tensor& tensor : in) shapes.push_back(tensor.shape());
  const std::int64_t bytes = std::max<std::int64_t>(64, backend.scratch_bytes(def, shapes, attributes));
  const Arena scratch(context.runtime(), bytes, "a test", "");
  const OpCall op{
      in, out, {}, {}, 0, attributes, Tensor{scratch.at(0), 1, bytes, bytes, DType::u8, context.device()}};
  validate_call(def, backend, op);
  backend.find(def)->forward(context, op);
  std::vector<std::byte> found(static_cast<std::size_t>(out[0].shape().bytes()));
  context.runtime()->download(found.data(), out[0].data, out[0].shape().bytes());
  context.runtime()->synchronize();
  std::vector<float> y(before.size());
  for (std::size_t i = 0; i < y.size(); ++i)
    y[i] = dtype == DType::f32 ? reinterpret_cast<const float*>(found.data())[i]
                               : to_f32(reinterpret_cast<const bf16*>(found.data())[i]);
  return y;
}

class LongCaches : public testing::TestWithParam<LongCache> {};

// Few rows, computed individually; and many rows, where prompts form tiles.
TEST_P(LongCaches, MatchTheCpu) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  const Context cpu, cuda(gpu.runtime);
  for (const auto& [prompt, rows] : {std::pair<std::int64_t, std::int64_t>(40, 43), {300, 330}}) {
    const CacheCall call = make_call(GetParam(), prompt, rows);
    const std::vector<float> expected = attended(cpu, GetParam(), call, prompt + 2, DType::f32);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(fmt::format("{} rows in {}", rows, dtype_name(dtype)));
      const std::vector<float> found = attended(cuda, GetParam(), call, rows, dtype);
      for (std::size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(found[i], expected[i], dtype == DType::f32 ? 2e-5 : 0.02) << i;
      for (std::size_t i = expected.size(); i < found.size(); ++i) ASSERT_EQ(found[i], 0) << "padding row";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    , LongCaches,
    testing::Values(LongCache{8, 4, 64, 1024}, LongCache{8, 2, 64, 1025}, LongCache{4, 4, 128, 3000},
                    LongCache{6, 2, 32, 2048}, LongCache{4, 1, 16, 1500}, LongCache{4, 2, 24, 1100},
                    LongCache{4, 1, 256, 1024}, LongCache{4, 2, 96, 1024}, LongCache{2, 2, 200, 1024},
                    LongCache{8, 4, 64, 3000, 700}, LongCache{8, 2, 128, 1100, 100, 4},
                    LongCache{4, 1, 256, 2100, 512}, LongCache{8, 4, 256, 1024, 65, 3},
                    LongCache{4, 2, 96, 1500, 20}, LongCache{4, 2, 24, 1100, 300, 2},
                    LongCache{8, 4, 64, 1536, 512, 0, true}, LongCache{4, 1, 256, 1536, 1200, 0, true},
                    LongCache{8, 2, 128, 448, 100, 4, true}, LongCache{6, 2, 24, 448, 130, 0, true}),
    [](const auto& info) {
      const LongCache& of = info.param;
      return fmt::format("{}of{}x{}at{}{}{}{}", of.heads, of.kv_heads, of.size, of.context,
                         of.window > 0 ? fmt::format("window{}", of.window) : "",
                         of.softcap > 0 ? "capped" : "", of.is_ring ? "ring" : "");
    });

}  // namespace
}  // namespace thimble::decode_test
