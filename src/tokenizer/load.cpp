#include <fmt/core.h>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "tokenizer/bpe_spec.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxTokenizerBytes = 256 << 20;
constexpr std::uint64_t kMaxConfigBytes = 64 << 20;

// "bos_token": "<s>" or {"content": "<s>", ...}
std::optional<std::string> named_token(const Json& config, std::string_view key) {
  const Json* value = config.find(key);
  if (!value || value->is_null()) return std::nullopt;
  if (value->is_string()) return value->as_string();
  if (const Json* content = value->find("content"); content && content->is_string())
    return content->as_string();
  return std::nullopt;
}

SpecialIds special_ids_beside(const fs::path& file, const Tokenizer& tokenizer) {
  const fs::path path = file.parent_path() / "tokenizer_config.json";
  if (!fs::is_regular_file(path)) return {};
  const Json config = parse_json(read_file(path, kMaxConfigBytes), path.string());
  auto id = [&](std::string_view key) -> std::optional<TokenId> {
    const auto text = named_token(config, key);
    return text ? tokenizer.id_of(*text) : std::nullopt;
  };
  return {id("bos_token"), id("eos_token"), id("unk_token"), id("pad_token")};
}

bool looks_like_json(std::string_view content) {
  const auto start = content.find_first_not_of(" \t\r\n");
  return start != content.npos && content[start] == '{';
}

fs::path file_in_folder(const fs::path& folder) {
  fs::path file = tokenizer_file_in(folder);
  check(!file.empty(), "{} holds neither tokenizer.json nor tokenizer.model", folder.string());
  return file;
}

}  // namespace

fs::path tokenizer_file_in(const fs::path& folder) {
  const fs::path json = folder / "tokenizer.json", pieces = folder / "tokenizer.model",
                 config = folder / "tokenizer_config.json";
  if (!fs::is_regular_file(pieces)) return fs::is_regular_file(json) ? json : fs::path();
  if (!fs::is_regular_file(json)) return pieces;
  if (!fs::is_regular_file(config)) return json;
  const Json settings = parse_json(read_file(config, kMaxConfigBytes), config.string());
  return settings.find(kSentencePieceKey) ? pieces : json;
}

std::unique_ptr<Tokenizer> load_tokenizer_bytes(std::string content, std::string_view name,
                                                const SpecialIds& known) {
  check(!content.empty(), "{} is empty; expected a tokenizer", name);
  if (!looks_like_json(content)) return load_sentencepiece(std::move(content), name);
  BpeSpec spec = parse_tokenizer_json(content, name);
  try {
    return make_bpe_tokenizer(std::move(spec), known, std::move(content));
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", name, error.what()), Hint{error.hint()}, error.where());
  }
}

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& path) {
  if (!fs::exists(path)) {
    if (path == "bytes") return make_bytes_tokenizer(special_tokens_for(false));
    if (path == "bytes:chat") return make_bytes_tokenizer(special_tokens_for(true));
  }
  const fs::path file = fs::is_directory(path) ? file_in_folder(path) : path;
  auto tokenizer = load_tokenizer_bytes(read_file(file, kMaxTokenizerBytes), file.string());
  tokenizer->prefer(special_ids_beside(file, *tokenizer));
  return tokenizer;
}

}  // namespace thimble
