#include "data/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <set>

#include "base/error.h"
#include "data/shard.h"
#include "tokenizer/chat_layout.h"

namespace thimble {

namespace {

constexpr std::string_view kFormat = "thimble-data";
constexpr std::int64_t kVersion = 1;

// A JSON object that must have exactly the given keys.
class Fields {
 public:
  Fields(const Json& object, std::string where, std::initializer_list<std::string_view> keys)
      : where_(std::move(where)) {
    check(object.is_object(), "{}: expected an object", where_);
    object_ = &object.as_object();
    for (const auto& [key, value] : *object_)
      check(std::ranges::find(keys, key) != keys.end(), "{}: unexpected key '{}'", where_, key);
    for (const std::string_view key : keys) get(key);
  }

  const Json& get(std::string_view key) const {
    const Json* value = object_->find(key);
    check(value != nullptr, "{}: expected a key '{}'", where_, key);
    return *value;
  }
  const std::string& text(std::string_view key) const {
    return expect(key, get(key).is_string(), "a string").as_string();
  }
  std::uint64_t count(std::string_view key) const {
    const Json& value = expect(key, get(key).is_int() && get(key).as_int() >= 0, "a count");
    return static_cast<std::uint64_t>(value.as_int());
  }
  std::int64_t integer(std::string_view key) const {
    return expect(key, get(key).is_int(), "an integer").as_int();
  }
  const Json::Array& array(std::string_view key) const {
    return expect(key, get(key).is_array(), "an array").as_array();
  }
  std::string digest(std::string_view key) const {
    const std::string& hex = text(key);
    const bool good = hex.size() == 32 && hex.find_first_not_of("0123456789abcdef") == std::string::npos;
    check(good, "{}: expected 32 hexadecimal digits, found '{}'", path(key), hex);
    return hex;
  }
  // A plain file name, without a folder.
  std::string file(std::string_view key) const {
    const std::string& name = text(key);
    const bool good = !name.empty() && name != "." && name != ".." &&
                      name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
    check(good, "{}: expected a file name without a folder, found '{}'", path(key), name);
    return name;
  }
  std::string path(std::string_view key) const { return fmt::format("{}: {}", where_, key); }

 private:
  const Json& expect(std::string_view key, bool ok, std::string_view what) const {
    check(ok, "{}: expected {}", path(key), what);
    return get(key);
  }

  std::string where_;
  const Json::Object* object_ = nullptr;
};

ManifestTokenizer parse_tokenizer(const Json& json, std::string where) {
  const Fields fields(json, std::move(where), {"kind", "vocab_size", "bos", "eos", "digest", "file"});
  ManifestTokenizer tokenizer;
  tokenizer.kind = fields.text("kind");
  tokenizer.vocab_size = fields.integer("vocab_size");
  tokenizer.bos = fields.integer("bos");
  tokenizer.eos = fields.integer("eos");
  tokenizer.digest = fields.digest("digest");
  tokenizer.file = fields.file("file");
  const auto is_id = [&](std::int64_t id) { return id >= -1 && id < tokenizer.vocab_size; };
  check(tokenizer.vocab_size > 0 && tokenizer.vocab_size <= INT32_MAX, "{}: expected 1 to {}, found {}",
        fields.path("vocab_size"), INT32_MAX, tokenizer.vocab_size);
  check(is_id(tokenizer.bos) && is_id(tokenizer.eos), "{}: expected -1 or an id below the vocabulary size {}",
        fields.path("bos or eos"), tokenizer.vocab_size);
  return tokenizer;
}

ManifestSplit parse_split(const Json& json, const std::string& where) {
  const Fields fields(json, where, {"documents", "tokens", "bytes", "shards"});
  ManifestSplit split{fields.count("documents"), fields.count("tokens"), fields.count("bytes"), {}};
  std::set<std::string, std::less<>> names;
  std::uint64_t tokens = 0;
  for (const Json& item : fields.array("shards")) {
    const Fields shard(item, fmt::format("{}.shards[{}]", where, split.shards.size()),
                       {"file", "tokens", "digest"});
    split.shards.push_back({shard.file("file"), shard.count("tokens"), shard.digest("digest")});
    const ManifestShard& added = split.shards.back();
    check(added.tokens <= kMaxShardTokens, "{}: expected at most {} tokens per shard", shard.path("tokens"),
          kMaxShardTokens);
    check(names.insert(added.file).second, "{}: duplicate shard '{}'", shard.path("file"), added.file);
    tokens += added.tokens;
  }
  check(tokens == split.tokens, "{}: expected {}, the sum of its shards, found {}", fields.path("tokens"),
        tokens, split.tokens);
  return split;
}

Json split_to_json(const ManifestSplit& split) {
  Json shards = Json::array();
  for (const ManifestShard& shard : split.shards)
    shards.push(
        Json::object().set("file", shard.file).set("tokens", shard.tokens).set("digest", shard.digest));
  return Json::object()
      .set("documents", split.documents)
      .set("tokens", split.tokens)
      .set("bytes", split.bytes)
      .set("shards", std::move(shards));
}

bool has_our_format(const Json& json) {
  const Json* format = json.find("format");
  return format && *format == Json(kFormat);
}

}  // namespace

std::string_view name_of(DataKind kind) {
  return kind == DataKind::text ? "text" : "chat";
}

ManifestTokenizer ManifestTokenizer::of(const Tokenizer& tokenizer) {
  return {
      std::string(name_of(tokenizer.kind())), tokenizer.vocab_size(),   tokenizer.special().bos.value_or(-1),
      tokenizer.special().eos.value_or(-1),   tokenizer.digest().hex(), std::string(tokenizer.file_name())};
}

SpecialIds ManifestTokenizer::special() const {
  SpecialIds ids;
  if (bos >= 0) ids.bos = static_cast<TokenId>(bos);
  if (eos >= 0) ids.eos = static_cast<TokenId>(eos);
  return ids;
}

std::string Manifest::layout() const {
  const Json* layout = settings.find("layout");
  return layout && layout->is_string() ? layout->as_string() : std::string(kRolesLayout);
}

Json Manifest::to_json() const {
  Json source_list = Json::array(), dropped_counts = Json::object();
  for (const ManifestSource& source : sources)
    source_list.push(
        Json::object().set("path", source.path).set("bytes", source.bytes).set("digest", source.digest));
  for (const auto& [reason, documents] : dropped) dropped_counts.set(reason, documents);
  return Json::object()
      .set("format", kFormat)
      .set("version", kVersion)
      .set("name", name)
      .set("kind", name_of(kind))
      .set("tokenizer", Json::object()
                            .set("kind", tokenizer.kind)
                            .set("vocab_size", tokenizer.vocab_size)
                            .set("bos", tokenizer.bos)
                            .set("eos", tokenizer.eos)
                            .set("digest", tokenizer.digest)
                            .set("file", tokenizer.file))
      .set("settings", settings)
      .set("sources", std::move(source_list))
      .set("train", split_to_json(train))
      .set("val", split_to_json(val))
      .set("dropped", std::move(dropped_counts));
}

bool is_foreign_manifest(std::string_view text) {
  try {
    return !has_our_format(parse_json(text, kManifestFile));
  } catch (const Error&) {
    return false;
  }
}

Manifest Manifest::parse(std::string_view text, std::string_view where) {
  const Json json = parse_json(text, where);
  check(has_our_format(json), Hint{"create the data set with `thimble data build`"},
        "{}: expected \"format\": \"{}\"", where, kFormat);
  check(json.at("version") == Json(kVersion),
        Hint{"the file was written by another version of thimble: update thimble or rebuild the data"},
        "{}: expected version {}", where, kVersion);
  const std::string name(where);
  const Fields fields(
      json, name,
      {"format", "version", "name", "kind", "tokenizer", "settings", "sources", "train", "val", "dropped"});
  Manifest manifest;
  manifest.name = fields.file("name");  // also the prefix of shard names
  const std::string& kind = fields.text("kind");
  check(kind == "text" || kind == "chat", "{}: expected text or chat, found '{}'", fields.path("kind"), kind);
  manifest.kind = kind == "text" ? DataKind::text : DataKind::chat;
  manifest.tokenizer = parse_tokenizer(fields.get("tokenizer"), fields.path("tokenizer"));
  manifest.settings = fields.get("settings");
  check(manifest.settings.is_object(), "{}: expected an object", fields.path("settings"));
  for (const Json& item : fields.array("sources")) {
    const Fields source(item, fmt::format("{}: sources[{}]", where, manifest.sources.size()),
                        {"path", "bytes", "digest"});
    manifest.sources.push_back({source.text("path"), source.count("bytes"), source.digest("digest")});
  }
  manifest.train = parse_split(fields.get("train"), fields.path("train"));
  manifest.val = parse_split(fields.get("val"), fields.path("val"));
  check(fields.get("dropped").is_object(), "{}: expected an object", fields.path("dropped"));
  for (const auto& [reason, count] : fields.get("dropped").as_object()) {
    check(count.is_int() && count.as_int() >= 0, "{}: expected counts", fields.path("dropped"));
    manifest.dropped.emplace_back(reason, static_cast<std::uint64_t>(count.as_int()));
  }
  return manifest;
}

}  // namespace thimble
