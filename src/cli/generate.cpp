#include "cli/option.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/signals.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "data/text_files.h"
#include "formats/model_file.h"
#include "infer/generate.h"

namespace thimble {

namespace {

constexpr std::int64_t kMostSlots = 64;  // samples generated concurrently
constexpr std::uint64_t kLongestPrompt = 64 << 20;

std::string prompt_from(const Arguments& arguments) {
  const bool file = arguments.given("prompt-file");
  if (file && arguments.given("PROMPT")) throw UsageError("expected PROMPT or --prompt-file, found both");
  if (!file && arguments.text("PROMPT") != "-") return arguments.text("PROMPT");
  std::string prompt = read_text_file(file ? arguments.text("prompt-file") : "-", kLongestPrompt);
  // Editors add a byte-order mark and a final newline, which are not part of the prompt.
  if (prompt.starts_with(kByteOrderMark)) prompt.erase(0, kByteOrderMark.size());
  if (prompt.ends_with('\n')) prompt.pop_back();
  if (prompt.ends_with('\r')) prompt.pop_back();
  return prompt;
}

std::pair<TokenId, float> bias_from(std::string_view text) {
  const std::size_t equals = std::min(text.find('='), text.size());
  const auto id = parse_number<TokenId>(text.substr(0, equals));
  const auto bias = parse_number<float>(text.substr(std::min(equals + 1, text.size())));
  if (!id || !bias) throw UsageError(fmt::format("--logit-bias expects ID=F, found '{}'", text));
  return {*id, *bias};
}

Request request_from(const Arguments& arguments, const Tokenizer& tokenizer, const std::string& prompt) {
  Request request = text_request(tokenizer, prompt);
  request.sampling = sampling_from(arguments);
  for (const std::string& text : arguments.list("logit-bias"))
    request.sampling.logit_bias.push_back(bias_from(text));
  request.samples = static_cast<int>(arguments.integer("samples", {.least = 1, .most = 1000}));
  request.max_tokens = arguments.integer("max-tokens", {.least = 1});
  request.min_tokens = arguments.integer("min-tokens", {.least = 0});
  request.stop_strings = arguments.list("stop");
  if (arguments.given("logprobs"))
    request.logprobs = static_cast<int>(arguments.integer("logprobs", {.least = 0, .most = kMaxTopLogprobs}));
  if (arguments.flag("ignore-eos")) std::swap(request.sampling.suppressed, request.stop_ids);
  return request;
}

Json as_json(const Tokenizer& tokenizer, TokenId id, float logprob) {
  return Json::object()
      .set("id", id)
      .set("token", bytes_of_token(tokenizer, id))
      .set("logprob", static_cast<double>(logprob));
}

Json as_json(const Tokenizer& tokenizer, const Sample& sample, bool logprobs) {
  Json tokens = Json::array(), scores = Json::array();
  for (const TokenScore& token : sample.tokens) {
    tokens.push(token.id);
    if (!logprobs) continue;
    Json top = Json::array();
    for (const auto& [id, logprob] : token.top) top.push(as_json(tokenizer, id, logprob));
    scores.push(as_json(tokenizer, token.id, token.logprob).set("top", top));
  }
  Json json = Json::object()
                  .set("text", sample.text)
                  .set("tokens", tokens)
                  .set("finish_reason", name_of(sample.finish));
  if (sample.stop_string) json.set("stop_string", *sample.stop_string);
  if (logprobs) json.set("logprobs", scores);
  return json;
}

struct Stats {
  std::int64_t prompt_tokens = 0, generated_tokens = 0;
  double first_token_seconds = 0, decode_seconds = 0;  // until the first token; from there to the end

  // Processing the prompt yields the first token.
  double prompt_rate() const { return rate(prompt_tokens, first_token_seconds); }
  double decode_rate() const { return rate(generated_tokens - 1, decode_seconds); }

  static double rate(std::int64_t tokens, double seconds) {
    return tokens > 0 && seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  }
};

Stats stats_from(const std::vector<Sample>& samples, double seconds) {
  Stats stats{.prompt_tokens = samples[0].usage.prompt_tokens,
              .first_token_seconds = samples[0].usage.seconds_to_first_token()};
  for (const Sample& sample : samples) stats.generated_tokens += sample.usage.generated_tokens;
  stats.decode_seconds = std::max(0.0, seconds - stats.first_token_seconds);
  return stats;
}

Json as_json(const Stats& stats) {
  return Json::object()
      .set("prompt_tokens", stats.prompt_tokens)
      .set("generated_tokens", stats.generated_tokens)
      .set("first_token_seconds", stats.first_token_seconds)
      .set("decode_seconds", stats.decode_seconds)
      .set("prompt_tokens_per_second", stats.prompt_rate())
      .set("tokens_per_second", stats.decode_rate());
}

std::string as_text(const Stats& stats) {
  return fmt::format(
      "prompt: {} tokens, {:.0f} tokens/s, first token after {:.1f} ms\n"
      "generated: {} tokens in {:.2f} s, {:.1f} tokens/s",
      stats.prompt_tokens, stats.prompt_rate(), 1000 * stats.first_token_seconds, stats.generated_tokens,
      stats.decode_seconds, stats.decode_rate());
}

void print_all(const std::vector<Sample>& samples, const std::string& prompt, const Console& console) {
  for (std::size_t i = 0; i < samples.size(); ++i)
    console.print_foreign(fmt::format("{}{}{}\n", i > 0 ? "\n" : "", prompt, samples[i].text));
}

int run_generate(const Arguments& arguments, Console& console) {
  if (arguments.given("logprobs") && !console.json()) throw UsageError("--logprobs needs --json");
  std::string prompt = prompt_from(arguments);
  const ModelFile file = open_model(arguments.path("MODEL"), WeightsAs::stored);
  const auto tokenizer = open_tokenizer(file);
  check(tokenizer != nullptr, "{} has no tokenizer", file.path.string());
  const Context context(device_from(arguments, console.log()));
  Model model = make_model(file, context, dtype_from(arguments, context.device(), console.log()));
  const Request request = request_from(arguments, *tokenizer, prompt);
  check_request(request, model.config(), tokenizer.get());  // before anything is printed
  Batcher batcher(model, tokenizer.get(), {.slots = std::min<std::int64_t>(request.samples, kMostSlots)});

  if (arguments.flag("no-display-prompt")) prompt.clear();
  const bool streams = !console.json() && request.samples == 1;
  if (streams) console.print_foreign(prompt);
  const auto show = [&](const Event& event) {
    if (streams && !event.text.empty()) console.print_foreign(event.text);
  };
  const Interrupt interrupt;
  const double start = seconds_now();
  const std::vector<Sample> samples = generate(batcher, request, show, &interrupt);
  const Stats stats = stats_from(samples, seconds_now() - start);

  if (console.json()) {
    Json list = Json::array();
    for (const Sample& sample : samples)
      list.push(as_json(*tokenizer, sample, request.logprobs != kNoLogprobs));
    Json result = Json::object().set("samples", list);
    if (arguments.flag("stats")) result.set("stats", as_json(stats));
    console.print_json(result);
  } else if (streams) {
    console.print("\n");
  } else {
    print_all(samples, prompt, console);
  }
  if (arguments.flag("stats") && !console.json()) console.tell(as_text(stats));
  return interrupt.asked() ? kExitInterrupted : kExitDone;
}

}  // namespace

Command generate_command() {
  return {.name = "generate",
          .aliases = {"run"},
          .summary = "generate text from a prompt",
          .arguments = {model_argument(),
                        {.name = "PROMPT",
                         .help = "text to continue; -: read standard input (default: empty)",
                         .count = Count::optional}},
          .options = with_sampling_options(
              {{.name = "prompt-file",
                .value = "FILE",
                .help = "file that contains the prompt; a final newline is removed"},
               {.name = "samples",
                .letter = 'n',
                .value = "N",
                .initial = "1",
                .help = "number of samples; the seed of sample i is SEED + i"},
               {.name = "max-tokens",
                .value = "N",
                .initial = "256",
                .help = "maximum length of a sample, in tokens"},
               {.name = "min-tokens",
                .value = "N",
                .initial = "0",
                .help = "minimum length of a sample, in tokens"},
               {.name = "stop", .value = "TEXT", .help = "end the sample before this text", .repeated = true},
               {.name = "ignore-eos", .help = "do not stop at the end-of-text token"},
               {.name = "logit-bias",
                .value = "ID=F",
                .help = "add F (-100 to 100) to the logit of token ID",
                .repeated = true},
               {.name = "logprobs",
                .value = "N",
                .help = "with --json: print log-probabilities of each token and of the N most probable ones"},
               {.name = "no-display-prompt", .help = "do not print the prompt"},
               {.name = "stats", .help = "print the speed to stderr, or into the JSON"},
               device_option(),
               common::dtype(),
               common::threads(),
               common::json(),
               common::quiet()}),
          .examples = {"thimble generate runs/book \"Once upon a time\" --max-tokens 100",
                       "thimble generate runs/book -n 8 --temperature 1 --stop . --json"},
          .run = run_generate};
}

}  // namespace thimble
