// Real tokenizer files of other people, read from beside the checkout.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/text_files.h"
#include "support/golden.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

inline std::string shared_text(std::string_view relative) {
  return read_text_file(shared_path(relative).value());
}

inline std::unique_ptr<Tokenizer> shared_tokenizer(std::string_view name) {
  return load_tokenizer_bytes(shared_text("fixtures/tokenizers/" + std::string(name) + "/tokenizer.json.zst"),
                              name);
}

inline std::vector<std::string> corpus_files() {
  return {"tinyshakespeare.txt",
          "tinystories_sample_944k.txt",
          "fineweb_edu_sample_1m.txt",
          "wiki.test.raw",
          "names.txt",
          "oasst1_chat.jsonl.zst",
          "alpaca_en_demo.json.zst",
          "udhr2_all_utf8.txt.zst"};
}

}  // namespace thimble
