// Fuzz targets: each takes any bytes at all, as a file or a request might bring them.
//
// Bytes are refused with an Error, or what comes of them keeps its promises. Whatever else happens is a finding: a broken
// promise, another exception, a sanitizer's complaint, too much memory or time.
//
// A new target: NAME_fuzz.cpp with fuzz_NAME(), its line here and in targets.cpp, seeds in NAME_corpus/.
#pragma once

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace thimble {

using FuzzBytes = std::span<const std::byte>;

void fuzz_artifact(FuzzBytes bytes);
void fuzz_chat(FuzzBytes bytes);
void fuzz_config(FuzzBytes bytes);
void fuzz_gguf(FuzzBytes bytes);
void fuzz_http(FuzzBytes bytes);
void fuzz_manifest(FuzzBytes bytes);
void fuzz_npz(FuzzBytes bytes);
void fuzz_pickle(FuzzBytes bytes);
void fuzz_safetensors(FuzzBytes bytes);
void fuzz_sentencepiece(FuzzBytes bytes);
void fuzz_shard(FuzzBytes bytes);
void fuzz_tokenizer(FuzzBytes bytes);

struct FuzzTarget {
  std::string_view name;
  void (*run)(FuzzBytes bytes);
};
std::span<const FuzzTarget> fuzz_targets();
const FuzzTarget* find_fuzz_target(std::string_view name);  // nullptr: none

// No Error: with those hostile bytes are refused.
class BrokenPromise : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};
inline void promise(bool kept, const char* what) {
  if (!kept) throw BrokenPromise(what);
}

inline std::string_view text_of(FuzzBytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace thimble
