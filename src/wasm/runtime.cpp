// The functions of thimble.wasm. One instance holds one model; web/thimble.mjs is their only
// caller, and documents what a page sees.
//
// Texts and bytes are passed as address and size in the instance's memory, which the caller
// allocates with malloc. A function that can fail returns 0 for success and 1 for failure; its
// result, or {"message", "hint", "field"}, is the JSON text at thimble_text(), thimble_text_size().
#include <emscripten/emscripten.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/machine.h"
#include "formats/artifact.h"
#include "formats/model_file.h"
#include "infer/batcher.h"
#include "infer/constraint.h"
#include "model/model.h"
#include "pack/range_codec.h"
#include "serve/completion_request.h"
#include "serve/fields.h"

// Provided by thimble.mjs. thimble_part fills the content of a part of the weights that a helper
// has decoded and returns 1, or returns 0: this instance decodes it. thimble_progress is called
// with the number of bytes that this instance has decoded since the last call.
extern "C" {
__attribute__((import_module("thimble"), import_name("part"))) int thimble_part(int index,
                                                                                std::byte* content);
__attribute__((import_module("thimble"), import_name("progress"))) void thimble_progress(std::size_t bytes);
}

namespace thimble {

namespace {

struct Opened {
  explicit Opened(ModelFile opened)
      : file(std::move(opened)), tokenizer(open_tokenizer(file)), model(make_model(file, context)) {
    served.name = "model";
    served.config = model.config();
    served.tokenizer = tokenizer.get();
    if (!tokenizer)
      throw Error("the model has no tokenizer", Hint{"put its tokenizer.json or tokenizer.model beside it"});
    served.constraints = std::make_shared<ConstraintCompiler>(*tokenizer);
    if (!file.layout.empty()) served.layout.emplace(*tokenizer, file.layout);
    // A prompt is read in small blocks, so that a page stays responsive and can stop it.
    batcher = std::make_unique<Batcher>(model, tokenizer.get(), BatcherOptions{.slots = 1});
  }

  ModelFile file;
  std::unique_ptr<Tokenizer> tokenizer;
  Context context;
  Model model;
  ServedModel served;
  std::unique_ptr<Batcher> batcher;
  RequestId request = 0;
  bool logprobs = false;
  std::size_t hidden = 0;  // leading tokens of a prompt that are not part of its text (bos)
};

std::unique_ptr<Opened> opened;
std::string text;                // the result of the last call
std::vector<std::byte> decoded;  // the result of thimble_decode()

// "thimble.sources=" and a digest (cmake/RuntimeSources.cmake), which `thimble export` searches in
// the file.
constexpr char kSources[] =
#include "runtime_sources.h"
    ;

Opened& model() {
  check(opened != nullptr, "no model is open");
  return *opened;
}

int failed(std::string_view message, std::string_view hint = {}, std::string_view field = {}) {
  text = Json::object().set("message", message).set("hint", hint).set("field", field).dump();
  return 1;
}

template <class Body>
int guarded(const Body& body) {
  try {
    text = body();
    return 0;
  } catch (const Error& error) {
    return failed(error.what(), error.hint(), error.field());
  } catch (const ApiError& error) {
    return failed(error.what(), {}, error.field());
  } catch (const std::bad_alloc&) {
    return failed("out of memory: a page can use at most 4 GB", "use a smaller model");
  } catch (const std::exception& error) {
    return failed(error.what());
  }
}

// Frees what the caller allocated.
struct Bytes {
  Bytes(std::byte* placed, std::size_t count) : data(placed), size(count) {}
  ~Bytes() { std::free(data); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  std::byte* data;
  std::size_t size;
  std::span<const std::byte> span() const { return {data, size}; }
  std::string_view view() const { return {reinterpret_cast<const char*>(data), size}; }
};

void decode(std::span<const std::byte> stored, Codec codec, std::span<std::byte> content) {
  if (content.empty()) return;
  if (codec == Codec::range) return range_decompress(stored, content, thimble_progress);
  decompress(stored, codec, content);
  thimble_progress(content.size());
}

Json json_bytes(std::string_view bytes) {
  Json array = Json::array();
  for (const char byte : bytes) array.push(static_cast<std::int64_t>(static_cast<unsigned char>(byte)));
  return array;
}

std::string facts(const Opened& of, std::size_t bytes) {
  const ModelConfig& config = of.model.config();
  Json metadata = Json::object();
  for (const auto& [key, value] : of.file.metadata) metadata.set(key, value);
  return Json::object()
      .set("architecture", of.file.architecture)
      .set("parameters", of.model.params().count())
      .set("bytes", bytes)
      .set("context", config.context)
      .set("vocabulary", config.vocab_size)
      .set("dtype", dtype_name(of.model.dtype()))
      .set("chat", of.served.layout.has_value())
      .set("metadata", metadata)
      .set("version", std::string(version()))
      .dump();
}

// The first token of a prompt has no log-probability.
Json as_json(const Opened& of, const TokenScore& token) {
  const auto scored = [&](TokenId id, float logprob) {
    return Json::object()
        .set("id", id)
        .set("bytes", json_bytes(bytes_of_token(*of.tokenizer, id)))
        .set("logprob", std::isnan(logprob) ? Json() : Json(static_cast<double>(logprob)));
  };
  if (!of.logprobs)
    return Json::object()
        .set("id", token.id)
        .set("bytes", json_bytes(bytes_of_token(*of.tokenizer, token.id)));
  Json top = Json::array();
  for (const auto& [id, logprob] : token.top) top.push(scored(id, logprob));
  return scored(token.id, token.logprob).set("top", top);
}

std::string as_json(const Opened& of, const Event& event) {
  Json tokens = Json::array(), prompt = Json::array();
  for (const TokenScore& token : event.tokens) tokens.push(as_json(of, token));
  for (std::size_t i = of.hidden; i < event.prompt.size(); ++i) prompt.push(as_json(of, event.prompt[i]));
  Json json = Json::object().set("text", event.text).set("tokens", tokens).set("prompt", prompt);
  if (event.error) json.set("error", event.error->what());
  if (event.finish)
    json.set("finish_reason", name_of(*event.finish))
        .set("prompt_tokens", event.usage.prompt_tokens)
        .set("generated_tokens", event.usage.generated_tokens);
  return json.dump();
}

std::string as_json(const Opened& of, const std::vector<Event>& events) {
  std::string list = "[";
  for (const Event& event : events) {
    if (list.size() > 1) list += ',';
    list += as_json(of, event);
  }
  return list + ']';
}

}  // namespace

}  // namespace thimble

using namespace thimble;  // NOLINT: the functions below are outside of it, because their names are C's

extern "C" {

EMSCRIPTEN_KEEPALIVE const char* thimble_text() {
  return text.data();
}
EMSCRIPTEN_KEEPALIVE std::size_t thimble_text_size() {
  return text.size();
}
EMSCRIPTEN_KEEPALIVE const char* thimble_sources() {
  return kSources;
}

// Opens an artifact; -> its facts.
EMSCRIPTEN_KEEPALIVE int thimble_open(std::byte* data, std::size_t size) {
  return guarded([&] {
    opened.reset();
    const PartReader reader = [](const ArtifactPart& part, std::size_t index) {
      std::vector<std::byte> content(part.raw_bytes);
      if (thimble_part(static_cast<int>(index), content.data()) == 0)
        decode(part.stored, part.codec, content);
      return content;
    };
    std::optional<Bytes> bytes(std::in_place, data, size);
    ModelFile file = read_artifact(bytes->span(), "the model", WeightsAs::stored, {}, reader).model;
    bytes.reset();  // the weights do not refer to the file
    opened = std::make_unique<Opened>(std::move(file));
    return facts(*opened, size);
  });
}

// The parts of an artifact, for the helpers that decode them:
// [{"offset", "bytes", "raw", "codec"}].
EMSCRIPTEN_KEEPALIVE int thimble_parts(const std::byte* data, std::size_t size) {
  return guarded([&] {
    Json list = Json::array();
    for (const ArtifactPart& part : read_parts({data, size}, "the model"))
      list.push(
          Json::object()
              .set("offset", part.stored.empty() ? 0 : static_cast<std::int64_t>(part.stored.data() - data))
              .set("bytes", static_cast<std::int64_t>(part.stored.size()))
              .set("raw", static_cast<std::int64_t>(part.raw_bytes))
              .set("codec", static_cast<std::int64_t>(part.codec)));
    return list.dump();
  });
}

// Decodes one part; its content is at thimble_decoded().
EMSCRIPTEN_KEEPALIVE int thimble_decode(int codec, std::byte* stored, std::size_t size, std::size_t raw) {
  return guarded([&] {
    const Bytes bytes{stored, size};
    decoded.resize(raw);
    decode(bytes.span(), static_cast<Codec>(codec), decoded);
    return std::string();
  });
}
EMSCRIPTEN_KEEPALIVE const std::byte* thimble_decoded() {
  return decoded.data();
}

// Starts a request: the body of /v1/chat/completions if it has "messages", else of /v1/completions.
EMSCRIPTEN_KEEPALIVE int thimble_submit(std::byte* data, std::size_t size) {
  return guarded([&] {
    const Bytes bytes{data, size};
    Opened& of = model();
    check(!of.batcher->busy(), "a completion is still running");
    const Json body = parse_body(bytes.view());
    CompletionRequest parsed = body.find("messages") ? parse_chat_completion(body, of.served)
                                                     : parse_text_completion(body, of.served);
    of.logprobs = parsed.logprobs;
    of.hidden = parsed.hidden_prompt_tokens.empty() ? 0 : parsed.hidden_prompt_tokens[0];
    of.request = of.batcher->submit(std::move(parsed.prompts.at(0)));
    return Json::object().set("tokens_dropped", parsed.tokens_dropped).dump();
  });
}

// One step of the model; -> a JSON array with at most a few events, empty while a prompt is read.
EMSCRIPTEN_KEEPALIVE int thimble_step() {
  return guarded([&] { return as_json(model(), model().batcher->step()); });
}

EMSCRIPTEN_KEEPALIVE int thimble_cancel() {
  return guarded([&] { return as_json(model(), model().batcher->cancel(model().request)); });
}

EMSCRIPTEN_KEEPALIVE int thimble_tokenize(std::byte* data, std::size_t size) {
  return guarded([&] {
    const Bytes bytes{data, size};
    Json ids = Json::array();
    for (const TokenId id : model().tokenizer->encode(bytes.view(), {.trusted = false, .add_special = false}))
      ids.push(id);
    return ids.dump();
  });
}

// `data`: 32-bit ids; -> the text itself, not JSON.
EMSCRIPTEN_KEEPALIVE int thimble_detokenize(std::byte* data, std::size_t size) {
  return guarded([&] {
    const Bytes bytes{data, size};
    const std::span ids(reinterpret_cast<const TokenId*>(data), size / sizeof(TokenId));
    for (const TokenId id : ids)
      check(id >= 0 && id < model().tokenizer->vocab_size(), "token {} is not in the vocabulary of {}", id,
            model().tokenizer->vocab_size());
    return model().tokenizer->decode(ids);
  });
}

}  // extern "C"
