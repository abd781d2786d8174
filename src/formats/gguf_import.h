// Reads a GGUF as a model: the families of architectures.h, and the architectures that golf models
// are folded into, apertus and talkie (fold.h).
//
// Every key is either used, known to be harmless, or rejected by name (experts, other kinds of RoPE
// scaling). Tensors that are missing, have the wrong shape or are not part of the model
// are errors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "formats/gguf.h"
#include "formats/model_file.h"

namespace thimble {

bool is_gguf(std::string_view first_bytes);                // needs the first 4 bytes
bool is_gguf_folder(const std::filesystem::path& folder);  // contains model.gguf, as Ollama's export does

// The file, or model.gguf in the folder, is mapped. With WeightsAs::stored (model_file.h), matrices
// of every type stay in its blocks, and the result keeps the mapping. ModelFile::metadata has every
// value as JSON (gguf_value_json).
ModelFile open_gguf(const std::filesystem::path& path, WeightsAs as = WeightsAs::floats,
                    const ProgressOutput& progress = {});
ModelFile read_gguf(const GgufFile& file, WeightsAs as = WeightsAs::floats,
                    const ProgressOutput& progress = {});

// Reads the settings of a GGUF and records which keys were read. Unread keys are rejected: a model
// that runs but computes something else is worse than an error.
class GgufKeyReader {
 public:
  // `file` must outlive the reader. Problems are collected; throw_problems() lists all of them in
  // one Error.
  explicit GgufKeyReader(const GgufFile& file) : file_(file) {}

  // Returns nullptr when absent. Marks the key as read, so reject_unread_keys() accepts it.
  const GgufValue* take(std::string_view key);

  std::optional<std::string> text(std::string_view key);
  std::optional<bool> flag(std::string_view key);
  // A non-negative integer of any type. An array that repeats one number counts as that number.
  std::optional<std::int64_t> count(std::string_view key);
  std::optional<double> number(std::string_view key);
  std::int64_t required_count(std::string_view key);
  double required_number(std::string_view key);
  template <class T>
  const std::vector<T>* list(std::string_view key, std::string_view what);

  void problem(std::string text) { problems_.push_back(std::move(text)); }
  // Adds a problem for every key that was not read and does not begin with one of these prefixes.
  void reject_unread_keys(std::span<const std::string_view> harmless);
  void throw_problems() const;

 private:
  const GgufFile& file_;
  std::set<std::string, std::less<>> taken_;
  std::vector<std::string> problems_;
};

// For error messages: "10000", "\"llama\"", "[1024 of string]".
std::string gguf_value_text(const GgufValue& value);

// For `inspect`: the value. An array of more than 100 elements gives its type and size instead:
// {"type": "string", "count": 1024}.
Json gguf_value_json(const GgufValue& value);

template <class T>
const std::vector<T>* GgufKeyReader::list(std::string_view key, std::string_view what) {
  const GgufValue* value = take(key);
  const auto* found = value ? std::get_if<std::vector<T>>(value) : nullptr;
  if (value && !found)
    problem(std::string(key) + " is " + gguf_value_text(*value) + ", expected " + std::string(what));
  return found;
}

}  // namespace thimble
