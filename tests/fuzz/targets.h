// Fuzz targets: each takes arbitrary bytes, as a file or request might contain.
//
// The bytes must be rejected with an Error, or the result must satisfy the target's invariants. A
// finding is anything else: a broken invariant, another exception, a sanitizer report, a timeout.
//
// To add a target: NAME_fuzz.cpp with fuzz_NAME(), a line here and in targets.cpp, and seeds in
// NAME_corpus/.
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
void fuzz_constraint(FuzzBytes bytes);
void fuzz_export(FuzzBytes bytes);
void fuzz_gguf(FuzzBytes bytes);
void fuzz_gguf_blocks(FuzzBytes bytes);
void fuzz_http(FuzzBytes bytes);
void fuzz_jinja(FuzzBytes bytes);
void fuzz_manifest(FuzzBytes bytes);
void fuzz_npz(FuzzBytes bytes);
void fuzz_parquet(FuzzBytes bytes);
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
const FuzzTarget* find_fuzz_target(std::string_view name);  // nullptr if there is none

// Not derived from Error, which means that input was rejected.
class BrokenInvariant : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};
inline void require(bool holds, const char* what) {
  if (!holds) throw BrokenInvariant(what);
}

inline std::string_view text_of(FuzzBytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace thimble
