// manifest.json: the contents of a folder of shards and how it was made. It is written last, so a
// folder with a manifest is complete.
//
//   {"format": "thimble-data", "version": 1, "name": "novels", "kind": "text",
//    "tokenizer": {"kind": "bpe", "vocab_size": 4096, "bos": 0, "eos": -1, "digest": "..",
//                  "file": "tokenizer.json"},
//    "settings": {...},
//    "sources": [{"path": "novels.txt", "bytes": 51234567, "digest": ".."}],
//    "train": {"documents": 10, "tokens": 999, "bytes": 4321,
//              "shards": [{"file": "novels_train_000000.bin", "tokens": 999, "digest": ".."}]},
//    "val": {...},
//    "dropped": {"duplicates": 3}}
//
// Parsing is strict: unknown or missing keys, inconsistent counts and names with a path are errors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

enum class DataKind { text, chat };
std::string_view name_of(DataKind kind);

inline constexpr std::string_view kManifestFile = "manifest.json";
inline constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{64} << 20;
inline constexpr std::size_t kMaxListedFiles = 1000;  // more become one entry

struct ManifestTokenizer {
  std::string kind;  // name_of(TokenizerKind)
  std::int64_t vocab_size = 0;
  std::int64_t bos = -1, eos = -1;  // -1: none; stored here because tokenizer files may omit them
  std::string digest;               // of Tokenizer::serialized(), as hex
  std::string file;                 // file name of a copy in the same folder

  static ManifestTokenizer of(const Tokenizer& tokenizer);
  SpecialIds special() const;
  bool operator==(const ManifestTokenizer&) const = default;
};

// A file, or an input with too many files to list.
struct ManifestSource {
  std::string path;
  std::uint64_t bytes = 0;  // stored size, that is, compressed for .zst and .gz
  std::string digest;       // of an input with many files: digest of their digests
  bool operator==(const ManifestSource&) const = default;
};

struct ManifestShard {
  std::string file;  // in the manifest's folder
  std::uint64_t tokens = 0;
  std::string digest;  // of the whole file
  bool operator==(const ManifestShard&) const = default;
};

struct ManifestSplit {
  std::uint64_t documents = 0;  // or conversations
  std::uint64_t tokens = 0;
  // Size of the encoded text. For chats this counts the contents of all roles, while bits per byte
  // counts only the assistant's (eval/score.h), so this is not the denominator of bits per byte.
  std::uint64_t bytes = 0;
  std::vector<ManifestShard> shards;
  bool operator==(const ManifestSplit&) const = default;
};

struct Manifest {
  std::string name;
  DataKind kind = DataKind::text;
  ManifestTokenizer tokenizer;
  Json settings = Json::object();  // of `data build`; used to decide whether a build can be resumed
  std::vector<ManifestSource> sources;
  ManifestSplit train, val;
  std::vector<std::pair<std::string, std::uint64_t>> dropped;  // reason, documents

  std::string layout() const;  // of chats: in the settings, if it is not thimble's own
  Json to_json() const;
  std::string text() const { return to_json().dump(1) + "\n"; }  // the file's content
  // `where` names the file in error messages.
  static Manifest parse(std::string_view text, std::string_view where);
  bool operator==(const Manifest&) const = default;
};

// Whether `text` is JSON written by another program. Invalid JSON returns false, because it may be
// a damaged thimble manifest.
bool is_foreign_manifest(std::string_view text);

}  // namespace thimble
