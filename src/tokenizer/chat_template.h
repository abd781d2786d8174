// Chat layouts as others write them down: Jinja templates, in tokenizer_config.json and in GGUF files.
//
//   model.layout = layout_of_template(template_text);       // "chatml:You are a helpful assistant."
//   std::string jinja = jinja_template(layout.text());      // renders to the very ids of layout.prompt()
//
// Templates are recognised by the marks they print, as llama.cpp does it; they are not run. Tools, and what Llama
// 3.1 puts before a system prompt (dates), are left out.
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/chat_layout.h"

namespace thimble {

// A ChatLayoutText as text. A template that is none of ours gets the name it goes by ("gemma") or "unknown", which
// ChatLayout refuses.
std::string layout_of_template(std::string_view jinja);

// Takes `messages`, `bos_token` and `add_generation_prompt`, as Transformers and llama.cpp give them. On one line:
// nothing depends on how blank lines are treated.
std::string jinja_template(const ChatLayoutText& layout);

}  // namespace thimble
