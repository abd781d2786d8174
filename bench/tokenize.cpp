// Tokenization speed next to Hugging Face's tokenizers (the Rust library, through npm) and
// SentencePiece, measured in one run on one machine:
//
//   tokenize_bench TOKENIZER TEXT [--model SP.model] [--peer bench/tokenize_peer.mjs]
//                  [--train-vocab N] [--work WORK]
//
// Figures are the best of several passes over the lines of TEXT, because the machine may be busy.
// "data build" is the complete command, from the file to shards that are synced to disk. --work
// encode or --work train does only that and prints a JSON object, for bench/tokenize_vs_hf, which
// takes turns with the peer.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "base/parallel.h"
#include "base/table.h"
#include "data/build.h"
#include "tokenizer/bpe_train.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

namespace {

constexpr int kPasses = 5;
constexpr std::size_t kEncodeBytes = 4'000'000;  // the peers are slow

struct Options {
  std::string tokenizer, text, model, peer, work;
  TokenId train_vocab = 0;
};

Options parse(int argc, char** argv) {
  check(argc >= 3,
        "usage: tokenize_bench TOKENIZER TEXT [--model SP.model] [--peer SCRIPT] [--train-vocab N] "
        "[--work encode|train]");
  Options options{argv[1], argv[2], "", "", "", 0};
  for (int i = 3; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    if (name == "--model") options.model = argv[i + 1];
    if (name == "--peer") options.peer = argv[i + 1];
    if (name == "--work") options.work = argv[i + 1];
    if (name == "--train-vocab") options.train_vocab = std::stoi(argv[i + 1]);
  }
  check(options.work.empty() || options.work == "encode" || options.work == "train",
        "--work expects encode or train, found '{}'", options.work);
  check(options.work != "train" || options.train_vocab > 0, "--work train needs --train-vocab");
  return options;
}

double best_seconds(const std::function<void()>& work) {
  double best = 1e300;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// Runs a command; the last line that the peer prints is one JSON object.
Json run_peer(const std::string& command) {
  std::string out;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  check(pipe != nullptr, "cannot run {}", command);
  std::array<char, 4096> buffer;
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe.get()))
    out.append(buffer.data(), count);
  const std::size_t start = out.rfind('{');
  check(start != out.npos, "the peer printed no result: {}", command);
  return parse_json(std::string_view(out).substr(start), "peer");
}

double encode_rate(const Tokenizer& tokenizer, const std::vector<std::string_view>& lines, std::size_t bytes,
                   int threads, std::size_t& tokens) {
  set_threads(threads);
  const double seconds = best_seconds([&] {
    tokens = 0;
    for (const auto& ids : encode_all(tokenizer, lines)) tokens += ids.size();
  });
  return static_cast<double>(bytes) / seconds / 1e6;
}

// Megabytes of text per second, from the file on disk.
double build_rate(const Options& options, const std::shared_ptr<const Tokenizer>& tokenizer, int threads) {
  set_threads(threads);
  const auto folder =
      std::filesystem::temp_directory_path() / fmt::format("thimble-bench-{}", std::random_device()());
  std::uint64_t bytes = 0;
  const double seconds = best_seconds([&] {
    const BuildResult built = build_dataset({.inputs = {options.text},
                                             .val_fraction = 0.1,
                                             .tokenizer = tokenizer,
                                             .folder = folder,
                                             .if_built = IfBuilt::replace},
                                            Log::nowhere(), ProgressOutput::nowhere());
    bytes = built.manifest.train.bytes + built.manifest.val.bytes;
  });
  std::filesystem::remove_all(folder);
  return static_cast<double>(bytes) / seconds / 1e6;
}

double seconds_of_training(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  TextSource source({options.text}, {.split = DocumentSplit::line, .keep_line_end = true});
  train_bpe(source, {.vocab_size = options.train_vocab, .min_frequency = 1, .special_tokens = {}},
            ProgressOutput::nowhere());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Measures one kind of work and prints JSON.
void run_alone(const Options& options) {
  Json report = Json::object();
  if (options.work == "train") {
    report.set("seconds", seconds_of_training(options)).set("threads", max_threads());
  } else {
    const std::string text = read_text_file(options.text);
    const auto lines = lines_of(std::string_view(text).substr(0, kEncodeBytes));
    std::size_t bytes = 0, tokens = 0;
    for (const auto line : lines) bytes += line.size();
    const auto tokenizer = load_tokenizer(options.tokenizer);
    report.set("megabytes_per_second", encode_rate(*tokenizer, lines, bytes, max_threads(), tokens));
    report.set("tokens", tokens).set("threads", max_threads());
  }
  fmt::print("{}\n", report.dump());
}

void run(const Options& options) {
  const std::string text = read_text_file(options.text);
  const std::string_view sample = std::string_view(text).substr(0, kEncodeBytes);
  const std::vector<std::string_view> lines = lines_of(sample);
  std::size_t bytes = 0;
  for (const auto line : lines) bytes += line.size();
  const int cores = max_threads();

  Table table({"work", "threads", "MB/s", "against the peer"});
  auto row = [&](const std::string& work, int threads, double rate, double peer) {
    table.row({work, std::to_string(threads), fmt::format("{:.2f}", rate),
               peer > 0 ? fmt::format("{:.1f}x", rate / peer) : ""});
  };
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(options.tokenizer);
  std::map<int, double> peer_rate;
  for (const int threads : {1, cores}) {
    if (options.peer.empty() || peer_rate.contains(threads)) continue;
    const Json peer = run_peer(fmt::format("RAYON_NUM_THREADS={} node '{}' encode '{}' '{}' {}", threads,
                                           options.peer, options.tokenizer, options.text, kEncodeBytes));
    peer_rate[threads] = peer.at("megabytes_per_second").as_double();
    row("Hugging Face encode", threads, peer_rate[threads], 0);
  }
  for (const int threads : {1, cores}) {
    std::size_t tokens = 0;
    const double rate = encode_rate(*tokenizer, lines, bytes, threads, tokens);
    row("thimble encode", threads, rate, peer_rate[threads]);
    if (threads == cores) break;
  }
  set_threads(1);
  std::vector<TokenId> all;
  const double seconds_encode = best_seconds([&] {
    all.clear();
    tokenizer->encode(sample, all, {});
  });
  row("thimble encode, one text", 1, static_cast<double>(sample.size()) / seconds_encode / 1e6, peer_rate[1]);
  std::size_t decoded = 0;
  const double seconds_decode = best_seconds([&] { decoded = tokenizer->decode(all).size(); });
  row("thimble decode", 1, static_cast<double>(decoded) / seconds_decode / 1e6, 0);
  if (!options.model.empty()) {
    std::size_t tokens = 0;
    row("SentencePiece encode", 1, encode_rate(*load_tokenizer(options.model), lines, bytes, 1, tokens), 0);
  }
  for (const int threads : {1, cores}) {
    row("thimble data build", threads, build_rate(options, tokenizer, threads), 0);
    if (threads == cores) break;
  }
  set_threads(cores);
  if (options.train_vocab > 0) {
    const double seconds = seconds_of_training(options);
    double peer = 0;
    if (!options.peer.empty())
      peer =
          run_peer(fmt::format("node '{}' train '{}'", options.peer, options.text)).at("seconds").as_double();
    table.row({fmt::format("thimble train to {}", options.train_vocab), std::to_string(cores),
               fmt::format("{:.2f}", static_cast<double>(text.size()) / seconds / 1e6),
               peer > 0
                   ? fmt::format("{:.1f}x ({:.1f} s, Hugging Face {:.1f} s)", peer / seconds, seconds, peer)
                   : ""});
  }
  fmt::print("{}, {:.1f} MB in {} lines, best of {} passes\n{}", options.text,
             static_cast<double>(bytes) / 1e6, lines.size(), kPasses, table.text());
}

}  // namespace

}  // namespace thimble

int main(int argc, char** argv) {
  try {
    const thimble::Options options = thimble::parse(argc, argv);
    if (options.work.empty())
      thimble::run(options);
    else
      thimble::run_alone(options);
  } catch (const thimble::Error& error) {
    fmt::print(stderr, "{}\n", thimble::describe(error));
    return 1;
  }
}
