// Renders Jinja chat templates, as in tokenizer_config.json and GGUF files.
//
//   const JinjaTemplate chat(text);       // throws for a construct outside the subset
//   std::string prompt = chat.render(Json::object()
//                                        .set("messages", messages)
//                                        .set("bos_token", "<s>")
//                                        .set("add_generation_prompt", true));
//
// The subset is what chat templates use: expressions, set, if, for, macro, call, filter, break,
// continue, generation, namespaces, the filters, tests and methods of jinja_filters.cpp, and the
// functions range, namespace, dict, raise_exception and strftime_now. Output follows Jinja 3, but
// true and false are written in lower case, none as nothing, and lists and dicts as JSON, as
// @huggingface/jinja does.
//
// A template has no access to files, environment or program. It ends with an error after
// JinjaOptions::steps steps, so one that loops for ever is harmless. Errors have the field
// chat_template and name the line, except what the template itself raises with raise_exception:
// that is an error of the conversation and has the field messages.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace thimble {

namespace jinja {
struct Statement;
}  // namespace jinja

struct JinjaOptions {
  std::optional<std::time_t> now = {};  // for strftime_now; default: the current time
  std::uint64_t steps = 10'000'000;     // evaluated nodes, about a second
  std::uint64_t bytes = 256ull << 20;   // of all texts and lists made on the way
  // Written before and after each {% generation %} block, which Transformers' templates put around
  // what an assistant generates.
  std::string_view generation_begin = {}, generation_end = {};
};

class JinjaTemplate {
 public:
  explicit JinjaTemplate(std::string_view source);

  // `variables` must be an object. May be called by several threads.
  std::string render(const Json& variables, const JinjaOptions& options = {}) const;
  bool has_generation() const { return has_generation_; }  // whether there is such a block

 private:
  std::shared_ptr<const std::vector<jinja::Statement>> body_;
  bool has_generation_ = false;
};

}  // namespace thimble
