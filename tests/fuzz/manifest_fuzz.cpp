// Arbitrary text must give an Error or a valid manifest.json: file names stay in its folder, counts
// add up, and it is unchanged by writing and reading it.
#include <optional>

#include "base/error.h"
#include "data/manifest.h"
#include "targets.h"

namespace thimble {

namespace {

void check_split(const ManifestSplit& split) {
  std::uint64_t tokens = 0;
  for (const ManifestShard& shard : split.shards) {
    require(std::filesystem::path("folder") / shard.file == "folder/" + shard.file &&
                !std::filesystem::path(shard.file).has_parent_path(),
            "a shard is in the manifest's folder");
    tokens += shard.tokens;
  }
  require(tokens == split.tokens, "the token count is the sum of the shards");
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
  require(manifest->tokenizer.special().bos.value_or(0) < manifest->tokenizer.vocab_size, "bos is a token");
  require(Manifest::parse(manifest->text(), "again") == *manifest, "a manifest is unchanged by a round trip");
}

}  // namespace thimble
