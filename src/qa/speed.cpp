#include "qa/speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/machine.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "model/params.h"
#include "model/rows.h"
#include "ops/cuda_plugin.h"
#include "ops/linear.h"
#include "tensor/arena.h"
#include "train/train_data.h"

namespace thimble {

namespace {

// Random tokens in the slots of a KV cache. The cache needs no clearing: a row attends only to
// positions before its own.
class RandomStreams {
 public:
  RandomStreams(Model& model, std::int64_t streams)
      : model_(model), cache_(model.make_cache(streams)), streams_(streams) {}

  void clear() {
    texts_.assign(static_cast<std::size_t>(streams_), {});
    cleared_at_ = seconds_now();
  }
  double seconds_since_clear() const { return seconds_now() - cleared_at_; }

  // Processes `count` more tokens of every stream, in as few calls as possible.
  void read(std::int64_t count) {
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t rows = std::min({count - done, model_.max_slot_rows(),
                                          std::max<std::int64_t>(model_.max_decode_rows() / streams_, 1)});
      step(rows);
      done += rows;
    }
  }

  // Processes the next `rows` tokens of every stream in one call, with logits of the last.
  void step(std::int64_t rows) {
    std::vector<DecodeRow> batch;
    for (std::int64_t slot = 0; slot < streams_; ++slot)
      for (std::int64_t i = 0; i < rows; ++i) batch.push_back(next_row(slot, i + 1 == rows));
    model_.decode(decode_rows(model_.config(), streams_, batch), cache_);
  }

 private:
  DecodeRow next_row(std::int64_t slot, bool wants_logits) {
    std::vector<std::int32_t>& text = texts_[static_cast<std::size_t>(slot)];
    text.push_back(
        static_cast<std::int32_t>(random_.below(static_cast<std::uint64_t>(model_.config().vocab_size))));
    const auto back = [&](std::size_t n) { return text.size() > n ? text[text.size() - 1 - n] : -1; };
    return {.token = text.back(),
            .previous = back(1),
            .before_previous = back(2),
            .position = static_cast<std::int32_t>(text.size() - 1),
            .slot = static_cast<std::int32_t>(slot),
            .wants_logits = wants_logits};
  }

  Model& model_;
  KvCache cache_;
  std::int64_t streams_;
  std::vector<std::vector<std::int32_t>> texts_;
  Rng random_{1};
  double cleared_at_ = 0;
};

std::string name_of(std::string_view test, const SpeedRequest& request) {
  std::string name = fmt::format("{}{}", test, request.tokens);
  if (request.depth > 0) name += fmt::format(" @ d{}", request.depth);
  return name;
}

// Times `work`; `before` runs before each repeat and is not timed.
Speed measure(std::string name, double tokens, std::int64_t repeats, const ProgressOutput& progress,
              const Interrupt* interrupt, const std::function<void()>& before,
              const std::function<void()>& work) {
  Speed speed{std::move(name), {}};
  ProgressBar bar(progress, speed.name, "repeats", static_cast<std::uint64_t>(repeats));
  for (std::int64_t i = 0; i < repeats; ++i) {
    if (interrupt) interrupt->throw_if_interrupted();
    before();
    const double start = seconds_now();
    work();
    speed.rates.push_back(tokens / (seconds_now() - start));
    bar.advance(1);
  }
  return speed;
}

void check_request(const Model& model, const SpeedRequest& request) {
  check(request.tokens > 0 && request.depth >= 0 && request.streams > 0 && request.repeats > 0,
        "[bench] expected positive numbers of tokens, streams and repeats");
  check(request.tokens + request.depth <= model.config().context, Hint{"pass a smaller --max-tokens"},
        "{} tokens exceed the model's context of {}", request.tokens + request.depth, model.config().context);
}

// On a GPU the second call of each size is captured, which takes longer.
int warm_ups(const Model& model) {
  return model.device() == Device::cpu ? 1 : 2;
}

using StreamsWork = std::function<void(RandomStreams&)>;

Speed speed_of(std::string_view name, Model& model, const SpeedRequest& request,
               const ProgressOutput& progress, const Interrupt* interrupt, const StreamsWork& warm_up,
               const StreamsWork& work) {
  check_request(model, request);
  RandomStreams streams(model, request.streams);
  const auto prepare = [&] {
    streams.clear();
    if (request.depth > 0) streams.read(request.depth);
  };
  for (int i = 0; i < warm_ups(model); ++i) {
    prepare();
    warm_up(streams);
  }
  return measure(name_of(name, request), static_cast<double>(request.tokens * request.streams),
                 request.repeats, progress, interrupt, prepare, [&] { work(streams); });
}

}  // namespace

double Speed::mean() const {
  return std::accumulate(rates.begin(), rates.end(), 0.0) / static_cast<double>(rates.size());
}

double Speed::deviation() const {
  if (rates.size() < 2) return 0;
  double squares = 0;
  for (const double rate : rates) squares += (rate - mean()) * (rate - mean());
  return std::sqrt(squares / static_cast<double>(rates.size() - 1));
}

Speed prefill_speed(Model& model, const SpeedRequest& request, const ProgressOutput& progress,
                    const Interrupt* interrupt) {
  const auto read = [&](RandomStreams& streams) { streams.read(request.tokens); };
  return speed_of("pp", model, request, progress, interrupt, read, read);
}

Speed decode_speed(Model& model, const SpeedRequest& request, const ProgressOutput& progress,
                   const Interrupt* interrupt) {
  std::vector<double> first_token_seconds;
  Speed speed = speed_of(
      "tg", model, request, progress, interrupt, [](RandomStreams& streams) { streams.step(1); },
      [&](RandomStreams& streams) {
        streams.step(1);
        first_token_seconds.push_back(streams.seconds_since_clear());
        for (std::int64_t i = 1; i < request.tokens; ++i) streams.step(1);
      });
  speed.first_token_seconds = median(first_token_seconds);
  return speed;
}

double prefill_flops(const Model& model, std::int64_t tokens, std::int64_t depth) {
  const ModelConfig& config = model.config();
  const ParamTable& params = model.params();
  const auto N = static_cast<double>(tokens);
  double pairs = 0;  // of a query and a key, in all layers
  for (std::int64_t n = depth + 1; n <= depth + tokens; ++n)
    pairs += keys_per_token(config, static_cast<double>(n), model.loop_on());
  return 2 * N * static_cast<double>(multiplied_elements(config, params, model.loop_on())) +
         4 * pairs * static_cast<double>(config.q_width()) + 2 * static_cast<double>(params.head().count());
}

double bytes_per_token(const Model& model, double positions) {
  const ModelConfig& config = model.config();
  const ParamTable& params = model.params();
  const double weights = static_cast<double>(params.count(ParamGroup::matrix) + params.head().count());
  const double cached =
      2 * keys_per_token(config, positions, model.loop_on()) * static_cast<double>(config.kv_width());
  return (weights + cached) * static_cast<double>(dtype_bytes(model.dtype()));
}

std::unique_ptr<Tokenizer> tokenizer_trained_on(std::string_view text, TokenId vocab_size,
                                                const ProgressOutput& progress, const Interrupt& interrupt) {
  const TemporaryFolder folder;
  PosixFileOps ops;
  DataSettings data;
  data.data = folder.path() / "text.txt";
  write_file(ops, data.data, text, Existing::refuse);
  return learn_tokenizer({TokenizerKind::bpe, vocab_size}, data, progress, interrupt);
}

double TokenizerSpeed::bytes_per_second() const {
  return speed.mean() * static_cast<double>(bytes) / static_cast<double>(tokens);
}

TokenizerSpeed tokenizer_speed(const Tokenizer& tokenizer, std::string_view text, std::int64_t repeats,
                               const ProgressOutput& progress, const Interrupt* interrupt) {
  check(!text.empty(), "[bench] expected a text to encode, found an empty one");
  TokenizerSpeed result;
  std::vector<TokenId> ids = tokenizer.encode(text);  // warm-up
  result.tokens = static_cast<std::int64_t>(ids.size());
  result.bytes = text.size();
  result.speed = measure(
      "encode", static_cast<double>(ids.size()), repeats, progress, interrupt, [&] { ids.clear(); },
      [&] { tokenizer.encode(text, ids); });
  return result;
}

namespace {

constexpr int kCopies = 20, kPasses = 5, kProducts = 10;

// Seconds per call: `calls` calls are queued between two events, so that none waits for the host.
double best_seconds(const Context& context, int repeats, int calls, const std::function<void()>& work) {
  const auto before = context.runtime()->make_event(), after = context.runtime()->make_event();
  double best = std::numeric_limits<double>::infinity();
  work();  // warm-up: creates plans and raises the clock rate
  for (int i = 0; i < repeats; ++i) {
    before->record();
    for (int call = 0; call < calls; ++call) work();
    after->record();
    after->wait();
    best = std::min(best, after->milliseconds_since(*before) / 1e3 / calls);
  }
  return best;
}

double seconds_of_product(const Context& context, const ProductShape& shape, std::int64_t N, DType dtype,
                          int repeats) {
  const std::int64_t O = shape.outputs, I = shape.inputs;
  const auto bytes = [&](std::int64_t rows, std::int64_t cols) {
    return align_up(rows * cols * dtype_bytes(dtype), 256);
  };
  const Arena arena(context.runtime(), bytes(N, I) + bytes(O, I) + bytes(N, O),
                    "the matrices of the benchmark", "measure fewer rows");
  const auto matrix = [&](std::int64_t offset, std::int64_t rows, std::int64_t cols) {
    return Tensor{arena.at(offset), rows, cols, cols, dtype, context.device()};
  };
  const Tensor in[] = {matrix(0, N, I), matrix(bytes(N, I), O, I)},
               out[] = {matrix(bytes(N, I) + bytes(O, I), N, O)};
  const OpCall call{in, out, {}, {}, 0, LinearAttributes{}, {}};
  validate_call(op::kLinear, cuda_backend(), call);
  const Kernel kernel = cuda_backend().find(op::kLinear)->forward;
  return best_seconds(context, repeats, kProducts, [&] { kernel(context, call); });
}

}  // namespace

double gpu_bandwidth(const Context& context, std::int64_t buffer_bytes) {
  check(context.device() == Device::cuda, "[bench] expected a CUDA device");
  const std::int64_t half = std::max<std::int64_t>(align_up(buffer_bytes / 2, 256), 256);
  const Arena arena(context.runtime(), 2 * half, "the benchmark's buffer", "measure a smaller model");
  const double seconds = best_seconds(context, kPasses, kCopies,
                                      [&] { context.runtime()->copy(arena.at(half), arena.at(0), half); });
  return 2 * static_cast<double>(half) / seconds;
}

double gpu_seconds_of_products(const Context& context, std::span<const ProductShape> shapes, std::int64_t N,
                               DType dtype, int repeats) {
  double seconds = 0;
  for (const ProductShape& shape : shapes)
    seconds += shape.count * seconds_of_product(context, shape, N, dtype, repeats);
  return seconds;
}

namespace {

constexpr int kLeastPasses = 3;
constexpr std::int64_t kBlockBytes = 256;  // four of the widest vectors

using Vector16 = std::uint64_t __attribute__((vector_size(16)));
using Vector32 = std::uint64_t __attribute__((vector_size(32)));
using Vector64 = std::uint64_t __attribute__((vector_size(64)));

// Four vector sums: a scalar sum reads a cache at less than half of its speed.
template <class Vector>
__attribute__((always_inline)) inline std::uint64_t sum_of_vectors(const std::byte* at,
                                                                   const std::byte* end) {
  Vector sum[4] = {};
  for (; at < end; at += sizeof(sum)) {
    const auto* vectors = reinterpret_cast<const Vector*>(at);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sum[i] += vectors[i];
  }
  std::uint64_t total = 0;
  for (const Vector& one : sum)
    for (std::size_t lane = 0; lane < sizeof(Vector) / 8; ++lane) total += one[lane];
  return total;
}

using Sum = std::uint64_t (*)(const std::byte* at, const std::byte* end);

std::uint64_t sum_of_16(const std::byte* at, const std::byte* end) {
  return sum_of_vectors<Vector16>(at, end);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) std::uint64_t sum_of_32(const std::byte* at, const std::byte* end) {
  return sum_of_vectors<Vector32>(at, end);
}
__attribute__((target("avx512f"))) std::uint64_t sum_of_64(const std::byte* at, const std::byte* end) {
  return sum_of_vectors<Vector64>(at, end);
}

// Uses the same vector width as the kernels whose limit is measured.
Sum widest_sum() {
  return cpu_level() >= CpuLevel::avx512 ? sum_of_64 : cpu_level() >= CpuLevel::avx2 ? sum_of_32 : sum_of_16;
}
#else
Sum widest_sum() {
  return sum_of_16;
}
#endif

}  // namespace

double read_bandwidth(std::int64_t buffer_bytes, double seconds, const Interrupt* interrupt) {
  const std::int64_t count = std::max<std::int64_t>((buffer_bytes + kBlockBytes - 1) / kBlockBytes, 1);
  const std::int64_t piece = (count + max_threads() - 1) / max_threads();
  const Arena buffer(count * kBlockBytes, "a buffer to read", "measure a smaller model");
  // Without writing, all pages would be mapped to the same zero page.
  std::memset(buffer.at(0), 1, static_cast<std::size_t>(buffer.bytes()));
  const Sum sum = widest_sum();
  std::atomic<std::uint64_t> total = 0;  // keeps the compiler from removing the loads
  const auto pass = [&] {
    const double start = seconds_now();
    parallel_for(count, piece, [&](std::int64_t begin, std::int64_t end) {
      total +=
          sum(buffer.at(begin * kBlockBytes), buffer.at(begin * kBlockBytes) + (end - begin) * kBlockBytes);
    });
    return seconds_now() - start;
  };
  pass();  // warm-up: fills caches and raises the clock rate
  double best = pass();
  const double start = seconds_now();
  for (int i = 1; i < kLeastPasses || seconds_now() - start < seconds; ++i) {
    if (interrupt) interrupt->throw_if_interrupted();
    best = std::min(best, pass());
  }
  return static_cast<double>(kBlockBytes * count) / best;
}

}  // namespace thimble
