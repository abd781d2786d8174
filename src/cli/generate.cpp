#include "cli/option.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/signals.h"
#include "base/table.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "data/text_files.h"
#include "formats/model_file.h"
#include "infer/chat_context.h"
#include "infer/constraint.h"
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

// nullopt if the model was not trained on chats, or with a layout that is not supported.
std::optional<ChatLayout> chat_layout_of(const ModelFile& file, const Tokenizer& tokenizer) {
  if (file.layout.empty()) return std::nullopt;
  try {
    return ChatLayout(tokenizer, file.layout);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// A chat model learns only the assistant's words, so without a prompt it begins an answer.
Request answer_to_nothing(const ChatLayout& layout) {
  return {
      .prompt = layout.prompt({}), .min_tokens = 1, .stop_ids = chat_stop_ids(layout), .starts_text = true};
}

Request request_from(const Arguments& arguments, const Tokenizer& tokenizer, const std::string& prompt,
                     const std::optional<ChatLayout>& layout) {
  const bool answers = prompt.empty() && layout && !layout->is_template();
  Request request = answers ? answer_to_nothing(*layout) : text_request(tokenizer, prompt);
  request.slides = true;
  request.sampling = sampling_from(arguments);
  request.sampling.suppressed = textless_ids(tokenizer, request.stop_ids);
  for (const std::string& text : arguments.list("logit-bias"))
    request.sampling.logit_bias.push_back(bias_from(text));
  request.samples = static_cast<int>(arguments.integer("samples", {.least = 1, .most = 1000}));
  request.max_tokens = arguments.integer("max-tokens", {.least = 1});
  request.min_tokens = std::max(request.min_tokens, min_tokens_from(arguments));
  request.stop_strings = arguments.list("stop");
  if (arguments.given("logprobs"))
    request.logprobs = static_cast<int>(arguments.integer("logprobs", {.least = 0, .most = kMaxTopLogprobs}));
  if (arguments.flag("ignore-eos"))
    for (const TokenId id : std::exchange(request.stop_ids, {})) request.sampling.suppressed.push_back(id);
  return request;
}

Json as_json(const Tokenizer& tokenizer, TokenId id, float logprob) {
  return Json::object()
      .set("id", id)
      .set("token", bytes_of_token(tokenizer, id))
      .set("logprob", static_cast<double>(logprob));
}

Json as_json(const Tokenizer& tokenizer, const Sample& sample, std::uint64_t seed, bool logprobs) {
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
                  .set("finish_reason", name_of(sample.finish))
                  .set("tokens_dropped", sample.usage.dropped_tokens)
                  .set("seed", seed);
  if (sample.stop_string) json.set("stop_string", *sample.stop_string);
  if (logprobs) json.set("logprobs", scores);
  return json;
}

struct Stats {
  std::uint64_t seed = 0;  // of the first sample
  std::int64_t prompt_tokens = 0, generated_tokens = 0;
  double first_token_seconds = 0, decode_seconds = 0;  // until the first token; from there to the end

  // Processing the prompt yields the first token.
  double prompt_rate() const { return rate(prompt_tokens, first_token_seconds); }
  double decode_rate() const { return rate(generated_tokens - 1, decode_seconds); }

  static double rate(std::int64_t tokens, double seconds) {
    return tokens > 0 && seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  }
};

Stats stats_from(const std::vector<Sample>& samples, std::uint64_t seed, double seconds) {
  Stats stats{.seed = seed,
              .prompt_tokens = samples[0].usage.prompt_tokens,
              .first_token_seconds = samples[0].usage.seconds_to_first_token()};
  for (const Sample& sample : samples) stats.generated_tokens += sample.usage.generated_tokens;
  stats.decode_seconds = std::max(0.0, seconds - stats.first_token_seconds);
  return stats;
}

Json as_json(const Stats& stats) {
  return Json::object()
      .set("seed", stats.seed)
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
      "generated: {} tokens in {:.2f} s, {:.1f} tokens/s\n"
      "seed: {} (--seed {} repeats this)",
      stats.prompt_tokens, stats.prompt_rate(), 1000 * stats.first_token_seconds, stats.generated_tokens,
      stats.decode_seconds, stats.decode_rate(), stats.seed, stats.seed);
}

void print_all(const std::vector<Sample>& samples, const std::string& prompt, const Console& console) {
  // A blank line separates texts of several lines. Names, say, are printed one per line.
  const bool lines = std::ranges::none_of(
      samples, [&](const Sample& sample) { return (prompt + sample.text).find('\n') != std::string::npos; });
  for (std::size_t i = 0; i < samples.size(); ++i)
    console.print_foreign(fmt::format("{}{}{}\n", i > 0 && !lines ? "\n" : "", prompt, samples[i].text));
}

// Says on stderr what the model did not see, because the text that it wrote does not show it.
void tell_dropped(const std::vector<Sample>& samples, std::int64_t context, const Console& console) {
  std::int64_t most = 0;
  for (const Sample& sample : samples) most = std::max(most, sample.usage.dropped_tokens);
  if (most > 0)
    console.log().info("the context of {} tokens was full: the {} oldest tokens were dropped to continue",
                       with_commas(context), with_commas(most));
}

int run_generate(const Arguments& arguments, Console& console) {
  if (arguments.given("logprobs") && !console.json()) throw UsageError("--logprobs needs --json");
  if (arguments.flag("raw-logprobs") && !arguments.given("logprobs"))
    throw UsageError("--raw-logprobs needs --logprobs");
  std::string prompt = prompt_from(arguments);
  const ModelFile file = model_from(arguments, WeightsAs::stored, console.progress());
  const auto tokenizer = open_tokenizer(file);
  check(tokenizer != nullptr, "{} has no tokenizer", file.path.string());
  const Context context(device_from(arguments, console.log()));
  Model model = make_model(file, context, dtype_from(arguments, context.device(), console.log()));
  const auto layout = chat_layout_of(file, *tokenizer);
  Request request = request_from(arguments, *tokenizer, prompt, layout);
  ConstraintCompiler compiler(*tokenizer);
  request.constraint = constraint_from(arguments, compiler);
  request.raw_logprobs = arguments.flag("raw-logprobs");
  check_request(request, model.config(), tokenizer.get());  // before anything is printed
  Batcher batcher(model, tokenizer.get(), {.slots = std::min<std::int64_t>(request.samples, kMostSlots)});

  if (prompt.empty() && layout)
    console.log().info(
        "no prompt: a chat model then writes an answer to no question; `thimble chat {}` asks it",
        file.path.string());
  if (arguments.flag("no-display-prompt")) prompt.clear();
  const bool streams = !console.json() && request.samples == 1;
  if (streams) console.print_foreign(prompt);
  const auto show = [&](const Event& event) {
    if (streams && !event.text.empty()) console.print_foreign(event.text);
  };
  const Interrupt interrupt;
  const double start = seconds_now();
  const std::vector<Sample> samples = generate(batcher, request, show, &interrupt);
  const Stats stats = stats_from(samples, request.sampling.seed, seconds_now() - start);

  if (console.json()) {
    Json list = Json::array();
    for (std::size_t i = 0; i < samples.size(); ++i)
      list.push(as_json(*tokenizer, samples[i], request.sampling.seed + i, request.logprobs != kNoLogprobs));
    Json result = Json::object().set("samples", list);
    if (arguments.flag("stats")) result.set("stats", as_json(stats));
    console.print_json(result);
  } else if (streams) {
    console.print("\n");
  } else {
    print_all(samples, prompt, console);
  }
  tell_dropped(samples, model.config().context, console);
  if (arguments.flag("stats") && !console.json()) console.tell(as_text(stats));
  return interrupt.requested() ? kExitInterrupted : kExitDone;
}

}  // namespace

namespace {

std::vector<Option> with_constraint_options(std::vector<Option> own) {
  const std::vector<Option> constraints = constraint_options();
  own.insert(own.end(), constraints.begin(), constraints.end());
  return own;
}

}  // namespace

Command generate_command() {
  return {
      .name = "generate",
      .aliases = {"run"},
      .summary = "generate text from a prompt",
      .arguments = {model_argument(),
                    {.name = "PROMPT",
                     .help = "text to continue; -: read standard input (default: empty)",
                     .count = Count::optional}},
      .options = with_sampling_options(with_constraint_options(
          {{.name = "prompt-file",
            .value = "FILE",
            .help = "file that contains the prompt; a final newline is removed"},
           {.name = "samples",
            .letter = 'n',
            .value = "N",
            .initial = "1",
            .help = "number of samples; sample i, from 0, uses seed + i"},
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
           {.name = "raw-logprobs",
            .help =
                "with a constraint: print log-probabilities among all tokens instead of the allowed ones"},
           {.name = "no-display-prompt", .help = "do not print the prompt"},
           {.name = "stats", .help = "print speed and seed to stderr, or into the JSON"},
           device_option(),
           common::dtype(),
           common::threads(),
           common::json(),
           common::quiet()})),
      .notes =
          "When the context is full, the oldest tokens are dropped, except bos, until a quarter of it "
          "is free, and generation continues. A prompt longer than the context loses its beginning in "
          "the same way. Special tokens other than those that end a text are never generated. A blank line "
          "separates samples, unless each of them is one line.",
      .examples = {"thimble generate runs/book \"Once upon a time\" --max-tokens 100",
                   "thimble generate runs/book -n 8 --temperature 1 --stop . --json",
                   "thimble generate runs/book \"The answer is\" --choice \" yes, no\""},
      .run = run_generate};
}

}  // namespace thimble
