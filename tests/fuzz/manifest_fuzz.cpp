// Any text at all is refused with an Error or is a manifest.json: its names stay in its folder, its counts add up, and it
// is the same when it is written and read again.
#include <optional>

#include "base/error.h"
#include "data/manifest.h"
#include "targets.h"

namespace thimble {

namespace {

void check_split(const ManifestSplit& split) {
  std::uint64_t tokens = 0;
  for (const ManifestShard& shard : split.shards) {
    promise(std::filesystem::path("folder") / shard.file == "folder/" + shard.file &&
                !std::filesystem::path(shard.file).has_parent_path(),
            "a shard lies in the manifest's folder");
    tokens += shard.tokens;
  }
  promise(tokens == split.tokens, "tokens are those of the shards");
}

}  // namespace

void fuzz_manifest(FuzzBytes bytes) {
  std::optional<Manifest> manifest;
  try {
    manifest = Manifest::parse(text_of(bytes), "fuzz");
  } catch (const Error&) {
    return;
  }
  check_split(manifest->train);
  check_split(manifest->val);
  promise(manifest->tokenizer.special().bos.value_or(0) < manifest->tokenizer.vocab_size, "bos is a token");
  promise(Manifest::parse(manifest->text(), "again") == *manifest, "a manifest comes back");
}

}  // namespace thimble
