// Models and sessions of the C interface (include/thimble.h).
#include <fmt/format.h>
#include <thimble.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/parallel.h"
#include "base/progress.h"
#include "base/signals.h"
#include "c/call.h"
#include "config/builder.h"
#include "config/config.h"
#include "config/toml.h"
#include "data/token_set.h"
#include "eval/score.h"
#include "formats/model_file.h"
#include "infer/batcher.h"
#include "infer/constraint.h"
#include "model/model.h"
#include "model/rows.h"
#include "ops/cuda_plugin.h"
#include "serve/completion_request.h"
#include "serve/fields.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

namespace {

// The options of thimble_open().
struct OpenOptions {
  std::string device = "auto";
  ComputeDType dtype = ComputeDType::automatic;
  int threads = 0;

  explicit OpenOptions(const char* text) {
    if (!text) return;
    try {
      read(parse_json(text, "the options"));
    } catch (const Error& error) {
      throw Invalid(error.what(), Hint{error.hint()});
    }
  }

  std::shared_ptr<DeviceRuntime> runtime() const {
    if (threads > 0) set_threads(threads);
    return device == "cpu" ? cpu_runtime() : device == "cuda" ? open_cuda() : choose_device().runtime;
  }

 private:
  void read(const Json& json) {
    for (const auto& [name, value] : json.as_object()) {
      if (name == "device") {
        device = value.as_string();
      } else if (name == "dtype") {
        ConfigBuilder builder;
        builder.set("dtype=" + value.as_string());
        dtype = builder.current().train.dtype;
      } else if (name == "threads") {
        check(value.as_int() >= 1 && value.as_int() <= kMostThreads, "threads is {}, expected 1 to {}",
              value.as_int(), kMostThreads);
        threads = static_cast<int>(value.as_int());
      } else {
        fail("unknown option '{}', expected device, dtype or threads", name);
      }
    }
    check(device == "auto" || device == "cpu" || device == "cuda",
          "device is '{}', expected auto, cpu or cuda", device);
  }

  static constexpr int kMostThreads = 4096;
};

}  // namespace

}  // namespace thimble

struct thimble_model {
  thimble_model(std::unique_ptr<thimble::MemoryFile> bytes, const char* path,
                const thimble::OpenOptions& options)
      : memory(std::move(bytes)),
        file(thimble::open_model(path, thimble::WeightsAs::stored)),
        tokenizer(thimble::open_tokenizer(file)),
        context(options.runtime()),
        model(thimble::make_model(file, context, thimble::compute_dtype(options.dtype, context.device()))) {
    served.name = file.path.filename().string();
    served.config = model.config();
    served.tokenizer = tokenizer.get();
    if (tokenizer) served.constraints = std::make_shared<thimble::ConstraintCompiler>(*tokenizer);
    if (tokenizer && !file.layout.empty()) served.layout.emplace(*tokenizer, file.layout);
  }

  const thimble::Tokenizer& words() const {
    if (!tokenizer)
      throw thimble::Invalid("the model has no tokenizer",
                             thimble::Hint{"put its tokenizer.json or tokenizer.model beside it"});
    return *tokenizer;
  }

  std::unique_ptr<thimble::MemoryFile> memory;  // null for a model that was opened by its path
  thimble::ModelFile file;
  std::unique_ptr<thimble::Tokenizer> tokenizer;
  thimble::Context context;
  thimble::Model model;
  thimble::ServedModel served;
  std::mutex decoding;  // the model decodes for one session at a time
  std::atomic<int> sessions = 0;
};

struct thimble_session {
  thimble_session(thimble_model& of, std::int64_t slots)
      : model(of), batcher(of.model, &of.words(), {.slots = slots}) {
    ++model.sessions;
  }
  ~thimble_session() { --model.sessions; }

  // A request of the caller: one request of the batcher for each prompt.
  struct Submitted {
    std::uint64_t id;
    bool logprobs;
    int samples;
    std::vector<thimble::RequestId> prompts;
  };

  thimble_model& model;
  thimble::Batcher batcher;
  std::mutex in_use;
  std::uint64_t last_id = 0;
  std::vector<Submitted> requests;
  thimble_poll poll = nullptr;
  void* poll_user = nullptr;
};

namespace thimble {

namespace {

// The model decodes for one thread at a time. A callback that calls back with the same model gets
// Busy instead of a deadlock.
class Decoding {
 public:
  explicit Decoding(thimble_model& model) : model_(model) { lock(); }
  ~Decoding() {
    if (held_) unlock();
  }
  Decoding(const Decoding&) = delete;
  Decoding& operator=(const Decoding&) = delete;

  void lock() {
    if (here_ == &model_)
      throw Busy("a callback may not use the model that the call uses",
                 Hint{"return from the callback first"});
    model_.decoding.lock();
    before_ = std::exchange(here_, &model_);
    held_ = true;
  }
  void unlock() {
    here_ = before_;
    held_ = false;
    model_.decoding.unlock();
  }

 private:
  static inline thread_local const thimble_model* here_ = nullptr;
  thimble_model& model_;
  const thimble_model* before_ = nullptr;
  bool held_ = false;
};

// Never destroyed: a thread may call the interface while the process exits.
OpenHandles<thimble_model>& models() {
  static auto& models = *new OpenHandles<thimble_model>("model");
  return models;
}
OpenHandles<thimble_session>& sessions() {
  static auto& sessions = *new OpenHandles<thimble_session>("session");
  return sessions;
}

// Locks a session for one call.
class SessionUse {
 public:
  explicit SessionUse(thimble_session* session)
      : session_(sessions().at(session)), lock_(session_.in_use, std::try_to_lock) {
    if (!lock_) throw Busy("another thread is using this session", Hint{"use one session per thread"});
  }
  thimble_session* operator->() const { return &session_; }

 private:
  thimble_session& session_;
  std::unique_lock<std::mutex> lock_;
};

thimble_model& usable(thimble_model* model) {
  return models().at(model);
}

std::span<const TokenId> tokens_of(const thimble_model& model, const std::int32_t* tokens,
                                   std::size_t count) {
  expect(tokens != nullptr || count == 0, "the tokens are NULL");
  const std::int64_t most = model.model.config().context, vocabulary = model.model.config().vocab_size;
  if (count == 0 || count > static_cast<std::size_t>(most))
    throw Invalid(fmt::format("expected 1 to {} tokens, the model's context, found {}", most, count));
  for (std::size_t i = 0; i < count; ++i)
    if (tokens[i] < 0 || tokens[i] >= vocabulary)
      throw Invalid(fmt::format("token {} is {}, the vocabulary has {}", i, tokens[i], vocabulary));
  return {tokens, count};
}

void check_room(std::size_t needed, std::size_t size, const void* place) {
  if (size < needed)
    throw TooSmall(fmt::format("the array has room for {} values, expected {}", size, needed));
  expect(place != nullptr, "the array is NULL");
}

// nats[i]: of target[i], or 0 if that is -1.
Model::Scores scores_of(thimble_model& of, std::span<const TokenId> input, bool logits) {
  std::vector<TokenId> target(input.begin() + 1, input.end());
  target.push_back(-1);
  const Computing computing;
  const Decoding decoding(of);
  // One text, not documents: a bos inside does not end the attention.
  std::vector<std::uint8_t> starts(input.size(), 0);
  starts[0] = 1;
  const auto length = static_cast<std::int64_t>(input.size());
  return of.model.score(grid_rows(of.model.config(), length, input, target, starts), logits);
}

Json as_json(const thimble_session::Submitted& request, std::size_t prompt, const Event& event,
             const Tokenizer& tokenizer) {
  Json tokens = Json::array();
  for (const TokenScore& token : event.tokens) tokens.push(token.id);
  Json json = Json::object()
                  .set("request", request.id)
                  .set("choice", static_cast<std::int64_t>(prompt) * request.samples + event.sample)
                  .set("text", event.text)
                  .set("tokens", tokens);
  if (request.logprobs) {
    Json scores = Json::array();
    for (const TokenScore& token : event.tokens) {
      Json top = Json::array();
      for (const auto& [id, logprob] : token.top)
        top.push(Json::object()
                     .set("id", id)
                     .set("token", bytes_of_token(tokenizer, id))
                     .set("logprob", static_cast<double>(logprob)));
      scores.push(Json::object()
                      .set("id", token.id)
                      .set("logprob", static_cast<double>(token.logprob))
                      .set("top", top));
    }
    json.set("logprobs", scores);
  }
  if (!event.finish) return json;
  json.set("finish_reason", name_of(*event.finish))
      .set("usage", Json::object()
                        .set("prompt_tokens", event.usage.prompt_tokens)
                        .set("cached_tokens", event.usage.cached_tokens)
                        .set("generated_tokens", event.usage.generated_tokens)
                        .set("prompt_seconds", event.usage.prompt_seconds)
                        .set("decode_seconds", event.usage.decode_seconds));
  if (event.error) json.set("error", event.error->what());
  return json;
}

// The events of the next step. A step that processes a part of a prompt has none, which would look
// like the end, so it continues.
std::string events_of_step(thimble_session& session) {
  Json list = Json::array();
  {
    Decoding decoding(session.model);
    while (session.batcher.busy() && list.size() == 0) {
      for (const Event& event : session.batcher.step())
        for (const thimble_session::Submitted& request : session.requests)
          if (const auto at = std::ranges::find(request.prompts, event.request); at != request.prompts.end())
            list.push(as_json(request, static_cast<std::size_t>(at - request.prompts.begin()), event,
                              *session.model.tokenizer));
      if (list.size() > 0 || !session.batcher.busy() || !session.poll) continue;
      decoding.unlock();
      const int ends = session.poll(session.poll_user);
      decoding.lock();
      if (ends != 0) throw Interrupted();
    }
  }
  if (!session.batcher.busy()) session.requests.clear();
  return list.dump();
}

thimble_model* opened(std::unique_ptr<MemoryFile> bytes, const char* path, const char* options) {
  Interrupt::never_exit();
  const OpenOptions parsed(options);
  const Computing computing;
  return models().add(std::make_unique<thimble_model>(std::move(bytes), path, parsed));
}

constexpr std::uint32_t kMostSlots = 1024;

}  // namespace

}  // namespace thimble

using namespace thimble;  // NOLINT: the functions below are outside of it, because their names are C's

const thimble_error* thimble_last_error(void) {
  return &last_error();
}

std::uint32_t thimble_version(void) {
  return THIMBLE_VERSION;
}

thimble_status thimble_open(const char* path, const char* options, thimble_model** model) {
  return guarded([&] {
    expect(path != nullptr, "the path is NULL");
    expect(model != nullptr, "the place for the model is NULL");
    *model = nullptr;
    check_process();
    *model = opened(nullptr, path, options);
  });
}

thimble_status thimble_open_bytes(const void* bytes, std::size_t size, const char* options,
                                  thimble_model** model) {
  return guarded([&] {
    expect(model != nullptr, "the place for the model is NULL");
    *model = nullptr;
    check_process();
    auto file = std::make_unique<MemoryFile>("model", bytes, size);
    const std::string path = file->path();
    *model = opened(std::move(file), path.c_str(), options);
  });
}

thimble_status thimble_close(thimble_model* model) {
  return guarded([&] {
    if (!model) return;
    thimble_model& closing = usable(model);
    if (const int count = closing.sessions)
      throw Busy(fmt::format("the model has {} session{}", count, count == 1 ? "" : "s"),
                 Hint{"call thimble_stop() first"});
    if (const std::unique_lock lock(closing.decoding, std::try_to_lock); !lock)
      throw Busy("another thread is using this model");
    models().take(model);
  });
}

thimble_status thimble_facts(thimble_model* model, thimble_text* facts) {
  return guarded([&] {
    thimble_model& of = usable(model);
    expect(facts != nullptr, "the place for the facts is NULL");
    const ModelConfig& config = of.model.config();
    const auto id_of = [&](std::optional<TokenId> SpecialIds::*which) {
      const std::optional<TokenId> id = of.tokenizer ? of.tokenizer->special().*which : std::nullopt;
      return id ? Json(*id) : Json();
    };
    *facts = returned(Json::object()
                          .set("path", of.file.path.string())
                          .set("format", of.file.format)
                          .set("architecture", of.file.architecture)
                          .set("parameters", of.model.params().count())
                          .set("context", config.context)
                          .set("vocabulary", config.vocab_size)
                          .set("layers", config.layers)
                          .set("dim", config.dim)
                          .set("bos", id_of(&SpecialIds::bos))
                          .set("eos", id_of(&SpecialIds::eos))
                          .set("chat", of.served.layout.has_value())
                          .set("tokenizer", of.tokenizer ? Json(name_of(of.tokenizer->kind())) : Json())
                          .set("dtype", dtype_name(of.model.dtype()))
                          .set("device", of.model.device() == Device::cuda ? "cuda" : "cpu")
                          .set("config", to_toml(of.file.config))
                          .dump());
  });
}

thimble_status thimble_encode(thimble_model* model, const char* text, std::size_t size, int special,
                              std::int32_t* tokens, std::size_t capacity, std::size_t* count) {
  return guarded([&] {
    const Tokenizer& tokenizer = usable(model).words();
    expect(count != nullptr, "the place for the number of tokens is NULL");
    *count = 0;
    const std::vector<TokenId> ids =
        tokenizer.encode(text_of(text, size), {.trusted = special != 0, .add_special = special != 0});
    *count = ids.size();
    if (ids.empty()) return;
    check_room(ids.size(), capacity, tokens);
    std::ranges::copy(ids, tokens);
  });
}

thimble_status thimble_decode(thimble_model* model, const std::int32_t* tokens, std::size_t count,
                              int special, thimble_text* text) {
  return guarded([&] {
    thimble_model& of = usable(model);
    expect(text != nullptr, "the place for the text is NULL");
    expect(tokens != nullptr || count == 0, "the tokens are NULL");
    *text = returned(of.words().decode({tokens, count}, {.keep_special = special != 0}));
  });
}

thimble_status thimble_logits(thimble_model* model, const std::int32_t* tokens, std::size_t count,
                              float* logits, std::size_t size) {
  return guarded([&] {
    thimble_model& of = usable(model);
    const auto input = tokens_of(of, tokens, count);
    check_room(count * static_cast<std::size_t>(of.model.config().vocab_size), size, logits);
    std::ranges::copy(scores_of(of, input, true).logits, logits);
  });
}

thimble_status thimble_logprobs(thimble_model* model, const std::int32_t* tokens, std::size_t count,
                                float* logprobs, std::size_t size) {
  return guarded([&] {
    thimble_model& of = usable(model);
    const auto input = tokens_of(of, tokens, count);
    if (count == 1) return;
    check_room(count - 1, size, logprobs);
    const std::vector<float> nats = scores_of(of, input, false).nats;
    for (std::size_t i = 0; i + 1 < count; ++i) logprobs[i] = -nats[i];
  });
}

thimble_status thimble_score_text(thimble_model* model, const char* text, std::size_t size,
                                  thimble_progress progress, void* user, thimble_score* score) {
  return guarded([&] {
    thimble_model& of = usable(model);
    expect(score != nullptr, "the place for the score is NULL");
    *score = {};
    const Tokenizer& tokenizer = of.words();
    const TokenMarks marks = TokenMarks::of(tokenizer, DataKind::text, LossOn::all);
    std::vector<TokenId> tokens = {marks.bos};
    tokenizer.encode(text_of(text, size), tokens);
    const std::uint64_t total = tokens.size();
    const TokenSet set(std::move(tokens), marks);
    const ByteTable bytes(tokenizer, static_cast<TokenId>(of.model.config().vocab_size));
    ScoreOptions options{.isolate = of.model.config().isolate};
    options.on_scored = [&](std::int64_t done) {
      if (progress && progress(user, static_cast<std::uint64_t>(done), total) != 0) throw Interrupted();
    };
    const Computing computing;
    const Decoding decoding(of);
    const Score result = score_set(of.model, bytes, set, options, ProgressOutput::nowhere());
    *score = {result.nats, static_cast<std::uint64_t>(result.tokens), result.bytes};
  });
}

thimble_status thimble_start(thimble_model* model, std::uint32_t slots, thimble_session** session) {
  return guarded([&] {
    thimble_model& of = usable(model);
    expect(session != nullptr, "the place for the session is NULL");
    *session = nullptr;
    if (slots < 1 || slots > kMostSlots)
      throw Invalid(fmt::format("slots is {}, expected 1 to {}", slots, kMostSlots));
    const Decoding decoding(of);
    *session = sessions().add(std::make_unique<thimble_session>(of, slots));
  });
}

thimble_status thimble_stop(thimble_session* session) {
  return guarded([&] {
    if (!session) return;
    { const SessionUse use(session); }
    sessions().take(session);
  });
}

thimble_status thimble_submit(thimble_session* session, const char* request, std::size_t size,
                              std::uint64_t* id) {
  return guarded([&] {
    const SessionUse use(session);
    expect(id != nullptr, "the place for the id is NULL");
    *id = 0;
    const Json body = parse_body(text_of(request, size));
    const ServedModel& served = use->model.served;
    CompletionRequest parsed =
        body.find("messages") ? parse_chat_completion(body, served) : parse_text_completion(body, served);
    thimble_session::Submitted submitted{
        .id = session->last_id + 1, .logprobs = parsed.logprobs, .samples = parsed.samples, .prompts = {}};
    for (Request& prompt : parsed.prompts)
      submitted.prompts.push_back(session->batcher.submit(std::move(prompt)));
    session->requests.push_back(std::move(submitted));
    *id = ++session->last_id;
  });
}

thimble_status thimble_step(thimble_session* session, thimble_text* events) {
  return guarded([&] {
    const SessionUse use(session);
    expect(events != nullptr, "the place for the events is NULL");
    *events = returned(events_of_step(*session));
  });
}

thimble_status thimble_run(thimble_session* session, thimble_events events, void* user) {
  return guarded([&] {
    const SessionUse use(session);
    expect(events != nullptr, "the function for the events is NULL");
    while (use->batcher.busy()) {
      const std::string list = events_of_step(*session);
      if (events(user, list.c_str(), list.size()) != 0) throw Interrupted();
    }
  });
}

thimble_status thimble_set_poll(thimble_session* session, thimble_poll poll, void* user) {
  return guarded([&] {
    const SessionUse use(session);
    use->poll = poll, use->poll_user = user;
  });
}

thimble_status thimble_cancel(thimble_session* session, std::uint64_t id) {
  return guarded([&] {
    const SessionUse use(session);
    const auto found = std::ranges::find(session->requests, id, &thimble_session::Submitted::id);
    if (found == session->requests.end()) return;
    for (const RequestId prompt : found->prompts) session->batcher.cancel(prompt);
    session->requests.erase(found);
  });
}
