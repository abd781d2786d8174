#include "formats/gguf_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "formats/gguf_values.h"
#include "formats/problems.h"
#include "formats/safetensors_header.h"

namespace thimble {

namespace {

template <class T>
constexpr bool kIsWhole = std::is_integral_v<T> && !std::is_same_v<T, bool>;

std::optional<std::int64_t> whole_of(const GgufValue& value) {
  return std::visit(
      []<class T>(const T& held) -> std::optional<std::int64_t> {
        if constexpr (kIsWhole<T>) {
          if (held >= T{0} && std::in_range<std::int64_t>(held)) return static_cast<std::int64_t>(held);
        } else if constexpr (kIsGgufArray<T>) {
          if constexpr (kIsWhole<typename T::value_type>)
            if (!held.empty() && std::ranges::count(held, held.front()) == std::ssize(held))
              return whole_of(GgufValue(held.front()));
        }
        return std::nullopt;
      },
      value);
}

// 1e-5 is written as the f32 next to it: the shortest text that means that f32 is what was meant.
double as_meant(float value) {
  double meant = value;
  const std::string text = fmt::format("{}", value);
  std::from_chars(text.data(), text.data() + text.size(), meant);
  return meant;
}

std::string key_problem(std::string_view key, const GgufValue& value, std::string_view expected) {
  return fmt::format("{} is {}, expected {}", key, gguf_value_text(value), expected);
}

}  // namespace

const GgufValue* GgufQuestions::take(std::string_view key) {
  taken_.emplace(key);
  return file_.find_setting(key);
}

std::optional<std::string> GgufQuestions::text(std::string_view key) {
  const GgufValue* value = take(key);
  if (!value) return std::nullopt;
  if (const auto* found = std::get_if<std::string>(value)) return *found;
  problem(key_problem(key, *value, "a string"));
  return std::nullopt;
}

std::optional<bool> GgufQuestions::flag(std::string_view key) {
  const GgufValue* value = take(key);
  if (!value) return std::nullopt;
  if (const auto* found = std::get_if<bool>(value)) return *found;
  problem(key_problem(key, *value, "a bool"));
  return std::nullopt;
}

std::optional<std::int64_t> GgufQuestions::count(std::string_view key) {
  const GgufValue* value = take(key);
  if (!value) return std::nullopt;
  const auto found = whole_of(*value);
  if (!found) problem(key_problem(key, *value, "a whole number"));
  return found;
}

std::optional<double> GgufQuestions::number(std::string_view key) {
  const GgufValue* value = take(key);
  if (!value) return std::nullopt;
  if (const auto* single = std::get_if<float>(value)) return as_meant(*single);
  if (const auto* wide = std::get_if<double>(value)) return *wide;
  problem(key_problem(key, *value, "an f32"));
  return std::nullopt;
}

std::int64_t GgufQuestions::required_count(std::string_view key) {
  if (!file_.find_setting(key)) problem(fmt::format("{} is missing", key));
  return count(key).value_or(0);
}

double GgufQuestions::required_number(std::string_view key) {
  if (!file_.find_setting(key)) problem(fmt::format("{} is missing", key));
  return number(key).value_or(0);
}

void GgufQuestions::refuse_the_rest(std::span<const std::string_view> harmless) {
  for (const auto& [key, value] : file_.settings()) {
    const bool known = taken_.contains(key) || std::ranges::any_of(harmless, [&](std::string_view start) {
                         return key.starts_with(start);
                       });
    if (!known) problem(fmt::format("{} = {} is not supported", quoted_name(key), gguf_value_text(value)));
  }
}

void GgufQuestions::throw_problems() const {
  check(problems_.empty(), Hint{"only what changes nothing is passed over"}, "{}: {}", file_.name(),
        listed(problems_));
}

Json gguf_value_json(const GgufValue& value) {
  constexpr std::size_t kMostShown = 100;
  const auto one = []<class T>(const T& held) -> Json {
    if constexpr (std::is_same_v<T, float>)
      return as_meant(held);
    else
      return held;
  };
  return std::visit(
      [&]<class T>(const T& held) -> Json {
        if constexpr (kIsGgufArray<T>) {
          using Item = typename T::value_type;
          if (held.size() > kMostShown)
            return Json::object()
                .set("type", kGgufValueTypes[gguf_value_type<Item>()])
                .set("count", held.size());
          Json array = Json::array();
          for (const auto& item : held) array.push(one(static_cast<const Item&>(item)));
          return array;
        } else {
          return one(held);
        }
      },
      value);
}

std::string gguf_value_text(const GgufValue& value) {
  return std::visit(
      []<class T>(const T& held) -> std::string {
        if constexpr (std::is_same_v<T, std::string>)
          return quoted_name(held);
        else if constexpr (kIsGgufArray<T>)
          return fmt::format("[{} of {}]", held.size(),
                             kGgufValueTypes[gguf_value_type<typename T::value_type>()]);
        else
          return fmt::format("{}", held);
      },
      value);
}

}  // namespace thimble
