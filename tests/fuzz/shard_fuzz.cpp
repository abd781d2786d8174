// Arbitrary bytes must give an Error or a valid shard: it has the number of tokens in its header,
// writing it again gives the same tokens, and training and scoring can read it.
//
// Few mutations keep a header of a kilobyte valid, so the input is also used as the tokens after a
// valid header; its first byte then selects the token width.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>

#include "base/error.h"
#include "data/shard.h"
#include "data/token_set.h"
#include "memory_file.h"
#include "support/simulated_disk.h"
#include "targets.h"

namespace thimble {

namespace {

constexpr std::array<std::int32_t, 2> kMagicU16 = {20240520, 1}, kMagicU32 = {20240801, 7},
                                      kMagicMarked = {20261120, 1};

std::string shard_of(FuzzBytes tokens, std::byte kind) {
  const bool wide = kind == std::byte{'w'} || kind == std::byte{'m'};
  const std::size_t count = tokens.size() / (wide ? 4 : 2);
  std::array<std::int32_t, kShardHeaderBytes / 4> header{};
  std::ranges::copy(kind == std::byte{'m'} ? kMagicMarked : wide ? kMagicU32 : kMagicU16, header.begin());
  header[2] = static_cast<std::int32_t>(count);
  std::string file(reinterpret_cast<const char*>(header.data()), kShardHeaderBytes);
  file += text_of(tokens.first(count * (wide ? 4 : 2)));
  return file;
}

void write_again(const ShardReader& shard, std::span<const std::int32_t> tokens, FuzzBytes bytes) {
  ShardWriter writer(shard.format() == ShardFormat::u16 ? 65536 : std::numeric_limits<std::int32_t>::max(),
                     shard.format());
  try {
    writer.add(tokens);
  } catch (const Error&) {  // ids above 2^31 are invalid
    return;
  }
  SimulatedDisk disk;
  disk.put_folder("/d");
  const Digest digest = writer.write(disk, "/d/shard.bin", Existing::refuse);
  const std::string written = disk.content("/d/shard.bin").value();
  require(digest == digest_of(written), "the writer returns the digest of the file");
  require(text_of(bytes).substr(kShardHeaderBytes) == std::string_view(written).substr(kShardHeaderBytes),
          "tokens are unchanged by a round trip");
}

// Reads rows in every way, from the first token of a set, the middle and the last.
void read_set(const TokenSet& set) {
  const std::vector<std::uint64_t> starts = set.document_starts();
  require(std::ranges::is_sorted(starts) && starts.front() == 0 && starts.back() < set.size(),
          "documents start within the set");
  constexpr std::int64_t T = 7;
  for (const std::uint64_t begin : {std::uint64_t{0}, set.size() / 2, set.size() - 1}) {
    Grid grid;
    set.append(begin, T, AfterLast::first_token, grid);
    set.append(begin, std::min<std::uint64_t>(T, set.size() - begin), AfterLast::bos, grid);
    const std::size_t filled = grid.input.size();
    set.append_window(begin, T, true, grid);
    require(grid.input.size() == filled + T && grid.target.size() == grid.input.size() &&
                grid.doc_start.size() == grid.input.size(),
            "a row has the requested length");
    require(grid.targets() <= std::ssize(grid.target), "targets are among the rows");
    require(grid.input.front() == set.at(begin), "a row begins at the requested token");
  }
}

void try_shard(FuzzBytes bytes) {
  const MemoryFile file(bytes);
  std::optional<ShardReader> shard;
  try {
    shard.emplace(file.path());
  } catch (const Error&) {
    return;
  }
  require(bytes.size() == kShardHeaderBytes + shard->tokens() * token_bytes(shard->format()),
          "the size of a shard is its header and its tokens");
  require(shard->digest() == digest_of(bytes), "a shard returns the digest of its file");
  std::vector<std::int32_t> tokens(shard->tokens());
  shard->copy(0, tokens);
  write_again(*shard, tokens, bytes);
  // A set refuses ids above 2^31, which are negative here.
  if (tokens.empty() || std::ranges::min(tokens) < 0) return;
  require(shard->at(tokens.size() - 1) == tokens.back(), "at() and copy() agree on the last token");

  const std::array files = {file.path(), file.path()};
  const ChatTokens chat{.bos = 0, .user = 1, .assistant = 2, .end_turn = 3, .system = 4};
  const bool marked = shard->format() == ShardFormat::marked;
  const TokenMarks marks{.bos = 0, .stored = marked};
  const TokenSet all = TokenSet::open(files, marks);
  require(all.size() == 2 * tokens.size(), "a set has the tokens of its shards");
  require(all.at(tokens.size()) == (marked ? without_marks(tokens.front()) : tokens.front()),
          "shards are concatenated");
  require(all.fingerprint() != TokenSet(tokens, marks).fingerprint(),
          "different sets have different fingerprints");
  read_set(all);
  if (marked)
    read_set(TokenSet::open(files, {.bos = 0, .stored = true, .marked_only = true}));
  else
    read_set(TokenSet::open(files, {.bos = 0, .answers_only = chat}));
}

}  // namespace

void fuzz_shard(FuzzBytes bytes) {
  try_shard(bytes);
  if (bytes.empty()) return;
  const std::string file = shard_of(bytes.subspan(1), bytes[0]);
  try_shard(std::as_bytes(std::span(file)));
}

}  // namespace thimble
