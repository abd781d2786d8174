// A GGUF as a MODEL: llama, qwen2, qwen3, and what we fold golf models into, apertus and talkie (fold.h).
//
// Every key is honoured, or known to change nothing, or refused by name: rope scaling, sliding windows, experts. So are
// tensors that are missing, of another shape, or not part of the model.
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

bool is_gguf(std::string_view first_bytes);  // the first 4 are enough

// WeightsAs::stored: integers of Q8_0 and Q4_0 stay integers, F16 and BF16 what they are (model_file.h).
// ModelFile::metadata holds every value as JSON (gguf_value_json).
ModelFile open_gguf(const std::filesystem::path& path, WeightsAs as = WeightsAs::floats);
ModelFile read_gguf(const GgufFile& file, WeightsAs as = WeightsAs::floats);

// Asking a GGUF for its settings. Every key is honoured, or known to change nothing, or refused by name: a model that
// runs but computes something else is worse than none.
class GgufQuestions {
 public:
  // `file` must outlive this. Problems are gathered: throw_problems() names them all at once.
  explicit GgufQuestions(const GgufFile& file) : file_(file) {}

  // nullptr when absent. What was asked for is taken: it is not refused below.
  const GgufValue* take(std::string_view key);

  std::optional<std::string> text(std::string_view key);
  std::optional<bool> flag(std::string_view key);
  // A whole number of any type that is not negative; an array of one number again and again counts as that number.
  std::optional<std::int64_t> count(std::string_view key);
  std::optional<double> number(std::string_view key);
  std::int64_t required_count(std::string_view key);
  double required_number(std::string_view key);
  template <class T>
  const std::vector<T>* list(std::string_view key, std::string_view what);

  void problem(std::string text) { problems_.push_back(std::move(text)); }
  // Keys that nobody took, except those that begin with one of these.
  void refuse_the_rest(std::span<const std::string_view> harmless);
  void throw_problems() const;

 private:
  const GgufFile& file_;
  std::set<std::string, std::less<>> taken_;
  std::vector<std::string> problems_;
};

// For messages: "10000", "\"llama\"", "[1024 of string]".
std::string gguf_value_text(const GgufValue& value);

// For `inspect`: the value itself; of an array with more than a hundred {"type": "string", "count": 1024}.
Json gguf_value_json(const GgufValue& value);

template <class T>
const std::vector<T>* GgufQuestions::list(std::string_view key, std::string_view what) {
  const GgufValue* value = take(key);
  const auto* found = value ? std::get_if<std::vector<T>>(value) : nullptr;
  if (value && !found)
    problem(std::string(key) + " is " + gguf_value_text(*value) + ", expected " + std::string(what));
  return found;
}

}  // namespace thimble
