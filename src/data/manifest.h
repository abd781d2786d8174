// manifest.json: what a folder of shards holds and how it was made. It is written last, so its presence says
// that the folder is complete.
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
// Reading is strict: unknown or missing keys, counts that do not add up and names that leave the folder are
// errors.
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
inline constexpr std::size_t kMostListedFiles = 1000;  // of one input: more become one source

struct ManifestTokenizer {
  std::string kind;  // name_of(TokenizerKind)
  std::int64_t vocab_size = 0;
  std::int64_t bos = -1, eos = -1;  // -1: none. Kept here because a tokenizer's file need not say
  std::string digest;               // of Tokenizer::serialized(), as hex
  std::string file;                 // a copy that lies beside the manifest

  static ManifestTokenizer of(const Tokenizer& tokenizer);
  SpecialIds special() const;
  bool operator==(const ManifestTokenizer&) const = default;
};

// A file, or an input of too many files to list.
struct ManifestSource {
  std::string path;
  std::uint64_t bytes = 0;  // as they lie on the disk
  std::string digest;       // of many: of their digests
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
  // Of the text that the tokens stand for. Chat: of all contents, whoever says them; bits per byte count the
  // assistant's alone (eval/score.h), so this is not their denominator.
  std::uint64_t bytes = 0;
  std::vector<ManifestShard> shards;
  bool operator==(const ManifestSplit&) const = default;
};

struct Manifest {
  std::string name;
  DataKind kind = DataKind::text;
  ManifestTokenizer tokenizer;
  Json settings = Json::object();  // of `data build`: for people, and to know whether a build may go on
  std::vector<ManifestSource> sources;
  ManifestSplit train, val;
  std::vector<std::pair<std::string, std::uint64_t>> dropped;  // reason, documents

  Json to_json() const;
  std::string text() const { return to_json().dump(1) + "\n"; }  // the file
  // `where` names the file in errors.
  static Manifest parse(std::string_view text, std::string_view where);
  bool operator==(const Manifest&) const = default;
};

// JSON that something else than `data build` wrote. What is no JSON at all may be a damaged manifest of ours.
bool is_foreign_manifest(std::string_view text);

}  // namespace thimble
