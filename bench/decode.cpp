// Generation speed of one model in every weight format, next to the memory bandwidth:
//
//   decode_bench [--only STORAGE] [--rows f32|bf16] [--repeats N] [--profile yes]
//                [--clock wall|cpu]
//
// The model is a Llama of 22 M weights (9 x 512, 8 heads over 4, F = 1024, V = 1024). prefill: a
// prompt of 512 tokens in one block. decode: 256 tokens after it, for 1 stream and for 8. A
// decoding step reads every weight once, shared by all streams, and the KV cache of each stream.
// GB/s of that is compared with a plain read of 44 MB by the same threads, measured in turns.
// Figures are medians. On a busy machine, --clock cpu measures processor time instead; use it with
// one thread (OMP_NUM_THREADS=1), because idle threads would count too.
#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "base/clock.h"
#include "base/error.h"
#include "base/parallel.h"
#include "base/table.h"
#include "config/builder.h"
#include "graph/op.h"
#include "model/model.h"
#include "ops/table.h"
#include "pack/pack_weights.h"
#include "pack/packed_tensor.h"

namespace thimble {

namespace {

struct Options {
  std::string only;
  DType rows = DType::bf16;
  int repeats = 5;
  bool profile = false;
  bool cpu_clock = false;
};

constexpr char kUsage[] =
    "decode_bench [--only STORAGE] [--rows f32|bf16] [--repeats N] [--profile yes] [--clock wall|cpu]";

Options parse(int argc, char** argv) {
  Options options;
  check(argc % 2 == 1, "usage: {}", kUsage);
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i], value = argv[i + 1];
    if (name == "--only")
      options.only = value;
    else if (name == "--rows" && (value == "f32" || value == "bf16"))
      options.rows = value == "f32" ? DType::f32 : DType::bf16;
    else if (name == "--repeats" && std::atoi(argv[i + 1]) > 0)
      options.repeats = std::atoi(argv[i + 1]);
    else if (name == "--profile" && value == "yes")
      options.profile = true;
    else if (name == "--clock" && (value == "wall" || value == "cpu"))
      options.cpu_clock = value == "cpu";
    else
      fail("unknown option {} {}; usage: {}", name, value, kUsage);
  }
  return options;
}

constexpr std::int64_t kPrompt = 512, kTokens = 256, kStreams = 8;

ModelConfig llama_22m() {
  ConfigBuilder settings;
  settings.preset("llama");
  for (const char* assignment :
       {"layers=9", "dim=512", "heads=8", "kv_heads=4", "mlp_hidden=1024", "vocab_size=1024", "context=1024"})
    settings.set(assignment);
  return settings.resolve().model;
}

struct Storage22m {
  const char* name;
  DType rows;  // dtype of computation
  std::shared_ptr<const StoredWeights> weights;
};

// The model in every weight format, as loaded from a file: floats are rounded to `rows`.
std::vector<Storage22m> storages(const ModelConfig& config, DType rows) {
  const ParamTable table(config);
  std::vector<float> floats(static_cast<std::size_t>(table.block_size()));
  initialize(table, 1, floats);
  const std::size_t count = table.all().size();
  const auto all_in = [&](WeightFormat format) {
    auto stored = std::make_shared<StoredWeights>(table, std::vector(count, format));
    for (const Param& param : table.all()) {
      const PackedTensor tensor{
          .storage = Storage::f32,
          .restored = DType::f32,
          .floats = {floats.begin() + param.offset, floats.begin() + param.offset + param.count()},
          .q = {},
          .scales = {}};
      store_tensor(param, tensor, stored->tensor(param));
    }
    return stored;
  };
  const auto packed = [&](int bits) {
    PackOptions options;
    options.rule.bits = bits;
    const auto tensors = pack_weights(table, floats, std::vector(count, DType::f32), options).tensors;
    std::vector<WeightFormat> formats;
    for (const PackedTensor& tensor : tensors) formats.push_back(stored_format(tensor));
    auto stored = std::make_shared<StoredWeights>(table, formats);
    for (std::size_t i = 0; i < count; ++i)
      store_tensor(table.all()[i], tensors[i], stored->tensor(table.all()[i]));
    return stored;
  };
  return {{"f32", DType::f32, all_in(WeightFormat::f32)},
          {"bf16", rows, all_in(WeightFormat::bf16)},
          {"f16", rows, stored_for_rows(table, all_in(WeightFormat::f16), rows)},
          {"int8", rows, packed(8)},
          {"int6", rows, packed(6)}};
}

class Clock {
 public:
  explicit Clock(bool cpu) : clock_(cpu ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC) {}

  template <class Work>
  double seconds_of(Work work) const {
    const double started = now();
    work();
    return now() - started;
  }

 private:
  double now() const {
    timespec time{};
    clock_gettime(clock_, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
  clockid_t clock_;
};

// Streams that contain the same number of tokens and advance together.
class Streams {
 public:
  Streams(Model& model, std::int64_t count)
      : model_(model), cache_(model.config(), count, model.dtype()), count_(count) {}

  void prefill() {
    for (std::int64_t slot = 0; slot < count_; ++slot) {
      std::vector<DecodeRow> rows;
      for (std::int64_t t = 0; t < kPrompt; ++t) rows.push_back(row(slot, t));
      for (DecodeRow& one : rows) one.wants_logits = one.position + 1 == kPrompt;
      model_.decode(decode_rows(model_.config(), count_, rows), cache_);
    }
    position_ = kPrompt;
  }

  void step() {
    std::vector<DecodeRow> rows;
    for (std::int64_t slot = 0; slot < count_; ++slot) rows.push_back(row(slot, position_));
    model_.decode(decode_rows(model_.config(), count_, rows), cache_);
    ++position_;
  }

  void rewind_to_prompt() { position_ = kPrompt; }

 private:
  DecodeRow row(std::int64_t slot, std::int64_t t) const {
    const auto token = [&](std::int64_t at) {
      return at < 0 ? -1 : static_cast<std::int32_t>((at * 37 + slot * 11) % model_.config().vocab_size);
    };
    return {.token = token(t),
            .previous = token(t - 1),
            .before_previous = token(t - 2),
            .position = static_cast<std::int32_t>(t),
            .slot = static_cast<std::int32_t>(slot)};
  }

  Model& model_;
  KvCache cache_;
  std::int64_t count_, position_ = 0;
};

// Bandwidth of all threads reading a working set of 44 MB.
class Read {
 public:
  Read() : memory_(kBytes, "the bandwidth", "a smaller machine"), pool_(max_threads()) {
    std::memset(memory_.at(0), 1, kBytes);
  }

  double gigabytes_per_second(const Clock& clock) {
    constexpr int kTimes = 8;
    constexpr std::int64_t kPart = 1 << 16;
    const PoolScope scope(pool_);
    const double seconds = clock.seconds_of([&] {
      for (int i = 0; i < kTimes; ++i)
        parallel_for(kBytes, kPart,
                     [&](std::int64_t begin, std::int64_t end) { sum_ += sum_of(begin, end); });
    });
    return kTimes * double{kBytes} / seconds / 1e9;
  }

 private:
  using Line = std::uint64_t __attribute__((vector_size(64)));
  static constexpr std::int64_t kBytes = 44'040'192;  // a multiple of a part

  std::uint64_t sum_of(std::int64_t begin, std::int64_t end) const {
    Line a = {}, b = {};
    for (std::int64_t at = begin; at < end; at += 2 * static_cast<std::int64_t>(sizeof(Line))) {
      const auto* lines = reinterpret_cast<const Line*>(memory_.at(at));
      a += lines[0], b += lines[1];
    }
    return (a + b)[0];
  }

  Arena memory_;
  ThreadPool pool_;
  std::atomic<std::uint64_t> sum_ = 0;  // keeps the reads from being optimized away
};

std::string text_of(const Profile& profile) {
  Table table({"op", "calls", "ms", "us a call", "GB/s"});
  for (const auto& [key, time] : profile.times())
    table.row({std::string(key.first), fmt::format("{}", time.calls),
               fmt::format("{:.1f}", 1e3 * time.seconds),
               fmt::format("{:.1f}", 1e6 * time.seconds / static_cast<double>(time.calls)),
               fmt::format("{:.1f}", time.work.bytes / time.seconds / 1e9)});
  return table.text();
}

// Bytes that one step of `streams` reads, at the middle of a run.
double bytes_per_step(const ModelConfig& config, const StoredWeights& weights, DType rows,
                      std::int64_t streams) {
  const double per_position = static_cast<double>(2 * config.layers * config.kv_width() * dtype_bytes(rows));
  return static_cast<double>(weights.bytes()) +
         static_cast<double>(streams) * per_position * static_cast<double>(kPrompt + kTokens / 2);
}

void run(const Options& options) {
  const ModelConfig config = llama_22m();
  const Context context;
  const Clock clock(options.cpu_clock);
  Read read;
  Table table({"weights", "rows", "streams", "prefill tok/s", "decode tok/s", "MB a step", "GB/s",
               "read GB/s", "fraction"});
  for (const Storage22m& storage : storages(config, options.rows)) {
    if (!options.only.empty() && options.only != storage.name) continue;
    Model model(config, context, storage.rows, storage.weights);
    for (const std::int64_t count : {std::int64_t{1}, kStreams}) {
      Streams streams(model, count);
      streams.prefill();
      streams.step();
      std::vector<double> prefill, decode, reading;
      Profile profile;
      if (options.profile) model.set_profile(&profile);
      for (int repeat = 0; repeat < options.repeats; ++repeat) {
        prefill.push_back(clock.seconds_of([&] { streams.prefill(); }));
        if (options.profile && repeat == 0)
          fmt::print("{} {}, prefill\n{}\n", storage.name, count, text_of(std::exchange(profile, {})));
        streams.rewind_to_prompt();
        decode.push_back(clock.seconds_of([&] {
          for (std::int64_t t = 0; t < kTokens; ++t) streams.step();
        }));
        reading.push_back(read.gigabytes_per_second(clock));
      }
      model.set_profile(nullptr);
      const double bytes = bytes_per_step(config, *storage.weights, storage.rows, count);
      const double rate = bytes * static_cast<double>(kTokens) / median(decode) / 1e9,
                   limit = median(reading);
      const auto tokens_per_second = [&](std::int64_t tokens, const std::vector<double>& seconds) {
        return fmt::format("{:.0f}", static_cast<double>(count * tokens) / median(seconds));
      };
      table.row({storage.name, std::string(dtype_name(storage.rows)), fmt::format("{}", count),
                 tokens_per_second(kPrompt, prefill), tokens_per_second(kTokens, decode),
                 fmt::format("{:.1f}", bytes / 1e6), fmt::format("{:.1f}", rate),
                 fmt::format("{:.1f}", limit), fmt::format("{:.2f}", rate / limit)});
      if (options.profile)
        fmt::print("{} {}, decode and prefill\n{}\n", storage.name, count, text_of(profile));
    }
  }
  fmt::print("{} threads, medians of {}\n{}", max_threads(), options.repeats, table.text());
}

}  // namespace

}  // namespace thimble

int main(int argc, char** argv) {
  try {
    thimble::run(thimble::parse(argc, argv));
  } catch (const thimble::Error& error) {
    fmt::print(stderr, "{}\n", thimble::describe(error));
    return 1;
  }
}
