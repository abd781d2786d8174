#include "cli/option.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/signals.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "formats/model_file.h"
#include "serve/service.h"

namespace thimble {

namespace {

constexpr std::uint64_t kLongestKeyFile = 1 << 20;
constexpr const char* kKeyVariable = "THIMBLE_API_KEY";

// Other users of the machine can see a key in a command line, but not one in the environment or a
// file.
//
// A key that no client can send is an error: the server would refuse everybody. An empty variable
// is one too: without it, the server would accept everybody.
std::vector<std::string> keys_from(const Arguments& arguments) {
  std::vector<std::string> keys;
  const auto add = [&](const std::string& key, const std::string& source) {
    if (const std::string_view why = unusable_key(key); !why.empty())
      throw UsageError(fmt::format("the API key from {} {}", source, why),
                       Hint{key.empty() ? "leave it out to serve without keys"
                                        : "use printable ASCII, as in: openssl rand -hex 24"});
    keys.push_back(key);
  };
  for (const std::string& key : arguments.list("api-key")) add(key, "--api-key");
  if (arguments.given("api-key-file")) {
    const std::vector<std::string> more =
        keys_in(read_file_or_pipe(arguments.path("api-key-file"), kLongestKeyFile));
    check(!more.empty(), "{} contains no key", arguments.text("api-key-file"));
    for (std::size_t i = 0; i < more.size(); ++i)
      add(more[i], fmt::format("{} (number {})", arguments.text("api-key-file"), i + 1));
  }
  if (const char* key = std::getenv(kKeyVariable))
    add(key, fmt::format("{} in the environment", kKeyVariable));
  return keys;
}

void warn_of_open_key_file(const Arguments& arguments, const Log& log) {
  using std::filesystem::perms;
  if (!arguments.given("api-key-file")) return;
  const perms open =
      std::filesystem::status(arguments.path("api-key-file")).permissions() & perms::others_read;
  if (open != perms::none)
    log.warning("{} is readable by all users of this machine; run chmod 600 on it",
                arguments.text("api-key-file"));
}

// Also for paths such as "." and "runs/chat/".
std::string name_of_model(const std::filesystem::path& path) {
  const std::filesystem::path whole = std::filesystem::absolute(path).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

// The layout for chats. A model whose chat template cannot be used is served without chats: it can
// still continue texts.
std::optional<ChatLayout> served_layout(const Arguments& arguments, const ModelFile& file,
                                        const Tokenizer& tokenizer, const Log& log) {
  const bool chosen = arguments.given("layout");
  if (file.layout.empty() && !chosen) return std::nullopt;
  try {
    ChatLayout layout = open_chat_layout(file, tokenizer, arguments.text("layout"));
    if (const std::string warning = layout.warning(); !warning.empty()) log.warning("{}", warning);
    return layout;
  } catch (const Error& error) {
    if (chosen) throw;
    log.warning("chats are disabled, because the model's chat layout cannot be used: {}", error.what());
    return std::nullopt;
  }
}

ServedModel served_from(const Arguments& arguments, const ModelFile& file, const Tokenizer& tokenizer,
                        const Log& log) {
  ServedModel served{.name = arguments.text("alias"),
                     .config = file.config.model,
                     .tokenizer = &tokenizer,
                     .defaults = sampling_from(arguments),
                     .created = unix_time()};
  if (arguments.given("seed")) served.seed = served.defaults.seed;
  if (!arguments.given("alias")) served.name = name_of_model(arguments.path("MODEL"));
  if (trim(served.name).empty()) throw UsageError("--alias must not be empty: clients show it as the model");
  served.layout = served_layout(arguments, file, tokenizer, log);
  return served;
}

ServerOptions server_options(const Arguments& arguments) {
  constexpr double kLongest = 1e6;
  const auto seconds = [&](std::string_view name) {
    return arguments.number(name, {.least = 0.001, .most = kLongest});
  };
  ServerOptions options;
  options.engine = {.slots = arguments.integer("slots", {.least = 1, .most = 1024}),
                    .queue = arguments.integer("queue", {.least = 0, .most = 100000})};
  options.http.host = arguments.text("host");
  options.http.port = static_cast<int>(arguments.integer("port", {.least = 0, .most = 65535}));
  options.http.max_connections =
      static_cast<int>(arguments.integer("max-connections", {.least = 1, .most = 10000}));
  options.http.limits.body_bytes =
      static_cast<std::size_t>(arguments.integer("max-body", {.least = 1024, .most = 1 << 30}));
  options.http.limits.head_seconds = seconds("header-timeout");
  options.http.limits.body_seconds = seconds("body-timeout");
  options.service.request_seconds = seconds("timeout");
  options.service.api_keys = keys_from(arguments);
  options.service.requests_per_second = arguments.number("rate-limit", {.least = 0, .most = kLongest});
  options.service.memory_bytes = static_cast<std::size_t>(
      arguments.integer("max-memory", {.least = 16 << 20, .most = std::int64_t{1} << 40}));
  if (options.http.limits.body_bytes > options.service.memory_bytes / 4)
    throw UsageError(fmt::format("--max-body must be at most a quarter of --max-memory, got {} and {}",
                                 options.http.limits.body_bytes, options.service.memory_bytes));
  options.service.log_prompts = arguments.flag("log-prompts");
  options.drain_seconds = seconds("drain-timeout");
  return options;
}

int run_serve(const Arguments& arguments, Console& console) {
  ServerOptions options = server_options(arguments);
  const ModelFile file = model_from(arguments, WeightsAs::stored, console.progress());
  const auto tokenizer = open_tokenizer(file);
  check(tokenizer != nullptr, "{} has no tokenizer, which serve needs", file.path.string());
  const Context context(device_from(arguments, console.log()));
  Model model = make_model(file, context, dtype_from(arguments, context.device(), console.log()));
  ServedModel served = served_from(arguments, file, *tokenizer, console.log());

  const Log& log = console.log();
  // JSON does not escape C1 control characters such as U+009B, which starts a terminal escape
  // sequence.
  options.service.access_log = [&log](const std::string& line) { log.info("{}", terminal_safe(line)); };
  warn_of_open_key_file(arguments, log);
  const bool keys = !options.service.api_keys.empty();
  const Interrupt interrupt;
  Server server(model, std::move(served), options);
  if (!server.loopback() && !keys)
    log.warning("{} is reachable from other machines without a key; pass --api-key-file", server.address());
  console.print(fmt::format("listening on http://{}\n", server.address()));
  server.run([&] { return interrupt.requested(); });
  log.info("stopped");
  return kExitDone;
}

}  // namespace

Command serve_command() {
  return {
      .name = "serve",
      .summary = "serve a model over HTTP: an OpenAI-style API and a web page",
      .arguments = {model_argument()},
      .options = with_sampling_options(
          {{.name = "host", .value = "ADDRESS", .initial = "127.0.0.1", .help = "address to listen on"},
           {.name = "port", .value = "N", .initial = "8080", .help = "port to listen on; 0: any free port"},
           {.name = "slots",
            .value = "N",
            .initial = "8",
            .help = "answers generated concurrently, as one batch"},
           {.name = "queue",
            .value = "N",
            .initial = "64",
            .help = "answers that may wait for a slot; further requests get status 503"},
           {.name = "api-key",
            .value = "KEY",
            .help = "key that clients must send; or set THIMBLE_API_KEY",
            .repeated = true},
           {.name = "api-key-file", .value = "FILE", .help = "file of keys, one per line"},
           {.name = "rate-limit",
            .value = "F",
            .initial = "0",
            .help = "requests per second per client; 0: no limit"},
           {.name = "alias",
            .value = "NAME",
            .help = "name of the model in the API",
            .shown_default = "its file name"},
           {.name = "layout",
            .help = "chat layout, if the model does not contain one",
            .choices = {"roles", "chatml", "llama3"}},
           {.name = "timeout",
            .value = "SECONDS",
            .initial = "600",
            .help = "maximum time for an answer, including the wait for a slot"},
           {.name = "header-timeout",
            .value = "SECONDS",
            .initial = "10",
            .help = "maximum time to receive the headers of a request"},
           {.name = "body-timeout",
            .value = "SECONDS",
            .initial = "30",
            .help = "maximum time to receive the body of a request"},
           {.name = "drain-timeout",
            .value = "SECONDS",
            .initial = "30",
            .help = "time to finish running answers on shutdown"},
           {.name = "max-body",
            .value = "BYTES",
            .initial = "4194304",
            .help = "maximum size of a request body"},
           {.name = "max-memory",
            .value = "BYTES",
            .initial = "1073741824",
            .help = "maximum memory for all requests and answers together, besides the model"},
           {.name = "max-connections",
            .value = "N",
            .initial = "512",
            .help = "maximum number of open connections"},
           {.name = "log-prompts", .help = "include prompts in the access log"},
           device_option(),
           common::dtype(),
           common::threads(),
           common::quiet()}),
      .examples = {"thimble serve runs/chat",
                   "thimble serve model.thimble --host 0.0.0.0 --api-key-file keys.txt"},
      .run = run_serve};
}

}  // namespace thimble
