#include "cli/parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>

#include "base/error.h"
#include "base/text.h"
#include "cli/option.h"
#include "config/keys.h"

namespace thimble {

namespace {

std::string spelled(const Option& option) {
  return fmt::format("--{}", option.name);
}

// "auto, cpu or cuda"
std::string listed(const std::vector<std::string_view>& choices) {
  std::string text;
  for (std::size_t i = 0; i < choices.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == choices.size() ? " or " : ", ", choices[i]);
  return text;
}

Hint did_you_mean(std::string_view prefix, std::string_view word,
                  const std::vector<std::string_view>& candidates) {
  const std::string_view best = nearest(word, candidates);
  return best.empty() ? Hint{} : Hint{fmt::format("did you mean {}{}?", prefix, best)};
}

// "-3", "-.5", "- eggs" and "-" are values, "-n" and "--" are not.
bool looks_like_option(std::string_view word) {
  if (word.size() < 2 || word[0] != '-') return false;
  const bool number = (word[1] >= '0' && word[1] <= '9') || word[1] == '.';
  return !number && word[1] != ' ';
}

// "a whole number", "a number from 0 to 1", "a whole number of at least 1"
template <class T>
std::string expected(std::string_view kind, Range<T> range) {
  const Range<T> all;
  const bool below = range.least != all.least, above = range.most != all.most;
  if (below && above) return fmt::format("{} from {} to {}", kind, range.least, range.most);
  if (below) return fmt::format("{} of at least {}", kind, range.least);
  if (above) return fmt::format("{} of at most {}", kind, range.most);
  return std::string(kind);
}

void check_choice(const std::string& label, const std::vector<std::string_view>& choices,
                  const std::string& value) {
  if (choices.empty() || std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  throw UsageError(fmt::format("{} expects {}, found '{}'", label, listed(choices), value),
                   did_you_mean("", value, choices));
}

}  // namespace

// Reads the words from front to back; `at_` is the index of the current one.
class Parser {
 public:
  Parser(const Command& command, const std::vector<std::string>& words)
      : command_(command), options_(options_of(command)), words_(words), result_(command) {}

  Arguments run() {
    bool options_ended = false;
    for (; at_ < words_.size(); ++at_) {
      const std::string& word = words_[at_];
      if (options_ended || !looks_like_option(word))
        take_argument(word);
      else if (word == "--")
        options_ended = true;
      else if (word.starts_with("--"))
        take_long(std::string_view(word).substr(2));
      else
        take_short(word);
    }
    check_complete();
    return std::move(result_);
  }

 private:
  void take_long(std::string_view word) {
    const std::size_t equals = word.find('=');
    const std::string_view name = word.substr(0, equals);
    const Option* option = find([&](const Option& o) { return o.name == name; });
    if (!option) fail_unknown(fmt::format("--{}", name), name);
    if (equals == std::string_view::npos)
      store(*option, std::nullopt);
    else
      store(*option, std::string(word.substr(equals + 1)));
  }

  void take_short(std::string_view word) {
    const Option* option = find([&](const Option& o) { return o.letter == word[1]; });
    const bool foreign = word.size() > 2 && !synonym_of(word.substr(1)).empty();  // -ngl of llama.cpp
    if (!option || foreign) fail_unknown(word, foreign ? word.substr(1) : word.substr(1, 1));
    std::string_view rest = word.substr(2);
    if (rest.empty()) return store(*option, std::nullopt);
    if (rest.front() == '=') rest.remove_prefix(1);
    store(*option, std::string(rest));
  }

  // The name in this command of an option or argument that other programs call `word`.
  std::string_view synonym_of(std::string_view word) const {
    std::vector<std::string_view> names;
    for (const Option& option : options_) names.push_back(option.name);
    for (const Argument& argument : command_.arguments) names.push_back(argument.name);
    return synonym(word, names);
  }

  [[noreturn]] void fail_unknown(std::string_view typed, std::string_view word) const {
    std::vector<std::string_view> names;
    for (const Option& option : options_) names.push_back(option.name);
    const std::string_view ours = synonym_of(word);
    Hint hint;
    if (std::ranges::find(command_.arguments, ours, &Argument::name) != command_.arguments.end())
      hint = {fmt::format("{} is an argument: {}", ours, usage_of(command_))};
    else if (!ours.empty())
      hint = {fmt::format("did you mean --{}?", ours)};
    else if (word.size() > 1)
      hint = did_you_mean("--", word, names);
    if (hint.text.empty()) hint = setting_hint(word);
    throw UsageError(fmt::format("unknown option {} for '{}'", typed, command_.name), hint);
  }

  // For a setting that is given when a model is trained: -c of llama.cpp, --context.
  static Hint setting_hint(std::string_view word) {
    std::vector<std::string_view> keys;
    for (const Key& key : all_keys()) keys.push_back(key.dashed);
    const auto same = std::ranges::find(keys, word);
    const std::string_view key = same == keys.end() ? synonym(word, keys) : *same;
    return key.empty() ? Hint{} : Hint{fmt::format("--{} is an option of 'thimble train'", key)};
  }

  void store(const Option& option, std::optional<std::string> value) {
    const std::string label = spelled(option);
    std::vector<std::string>& values = result_.slots_.at(std::string(option.name)).values;
    if (option.is_flag()) {
      if (value) throw UsageError(fmt::format("{} takes no value, found '{}'", label, *value));
      values.assign(1, "");  // repeating a flag is allowed
      return;
    }
    if (!value) value = next_word(option);
    if (!values.empty() && !option.repeated)
      throw UsageError(fmt::format("{} is given twice, as '{}' and as '{}'", label, values.front(), *value));
    check_choice(label, option.choices, *value);
    values.push_back(*value);
  }

  const std::string& next_word(const Option& option) {
    const std::string label = spelled(option);
    const std::string expected_value =
        option.choices.empty() ? std::string(option.value) : listed(option.choices);
    if (at_ + 1 >= words_.size())
      throw UsageError(
          fmt::format("{} needs a value ({}), found the end of the command line", label, expected_value));
    const std::string& word = words_[at_ + 1];
    if (looks_like_option(word))
      throw UsageError(fmt::format("{} needs a value ({}), found '{}'", label, expected_value, word),
                       Hint{fmt::format("if that is the value, write {}={}", label, word)});
    ++at_;
    return word;
  }

  void take_argument(const std::string& word) {
    if (argument_ >= command_.arguments.size())
      throw UsageError(
          fmt::format("'{}' expects {}, found an extra argument: '{}'", command_.name, how_many(), word));
    const Argument& argument = command_.arguments[argument_];
    check_choice(std::string(argument.name), argument.choices, word);
    result_.slots_.at(std::string(argument.name)).values.push_back(word);
    if (!argument.is_list()) ++argument_;
  }

  std::string how_many() const {
    const std::size_t count = command_.arguments.size();
    if (count == 0) return "no arguments";
    std::string names;
    for (const Argument& argument : command_.arguments) names += fmt::format(" {}", argument.name);
    return fmt::format("{} argument{} ({})", count, count == 1 ? "" : "s", names.substr(1));
  }

  void check_complete() const {
    for (const Argument& argument : command_.arguments)
      if (!argument.may_be_absent() && !result_.given(argument.name))
        throw UsageError(fmt::format("'{}' needs {}: {}", command_.name, argument.name, argument.help));
    for (const Option& option : options_)
      if (option.required && !result_.given(option.name))
        throw UsageError(fmt::format("'{}' needs {}{} {}: {}", command_.name,
                                     option.letter ? fmt::format("-{} or ", option.letter) : "",
                                     spelled(option), value_of(option), option.help));
  }

  template <class Predicate>
  const Option* find(Predicate matches) const {
    const auto found = std::find_if(options_.begin(), options_.end(), matches);
    return found == options_.end() ? nullptr : &*found;
  }

  const Command& command_;
  const std::vector<Option> options_;
  const std::vector<std::string>& words_;
  std::size_t at_ = 0;        // current word
  std::size_t argument_ = 0;  // next argument to fill
  Arguments result_;
};

Arguments parse(const Command& command, const std::vector<std::string>& words) {
  return Parser(command, words).run();
}

HelpRequest help_request(const std::vector<std::string>& words) {
  const auto end = std::find(words.begin(), words.end(), "--");
  if (std::find(words.begin(), end, "--help-all") != end) return HelpRequest::all;
  const bool usual = std::any_of(words.begin(), end,
                                 [](const std::string& word) { return word == "--help" || word == "-h"; });
  return usual ? HelpRequest::usual : HelpRequest::none;
}

Arguments::Arguments(const Command& command) {
  for (const Option& option : options_of(command))
    slots_[std::string(option.name)] = {spelled(option), std::string(option.initial), {}};
  for (const Argument& argument : command.arguments)
    slots_[std::string(argument.name)] = {std::string(argument.name), "", {}};
}

const Arguments::Slot& Arguments::slot(std::string_view name) const {
  const auto found = slots_.find(name);
  if (found == slots_.end()) throw std::logic_error(fmt::format("the command does not declare '{}'", name));
  return found->second;
}

std::string Arguments::given_text() const {
  std::string text;
  for (const auto& [name, slot] : slots_)
    for (const std::string& value : slot.values) text += fmt::format("{} {}\n", slot.label, value);
  return text;
}

bool Arguments::given(std::string_view name) const {
  return !slot(name).values.empty();
}

const std::string& Arguments::text(std::string_view name) const {
  const Slot& slot = this->slot(name);
  return slot.values.empty() ? slot.initial : slot.values.front();
}

const std::string& Arguments::value(std::string_view name) const {
  const Slot& slot = this->slot(name);
  if (slot.values.empty() && slot.initial.empty())
    throw std::logic_error(fmt::format("{} has no default and was not given", slot.label));
  return text(name);
}

void Arguments::refuse(std::string_view name, const std::string& expected) const {
  const std::string& text = value(name);
  throw UsageError(fmt::format("{} expects {}, found '{}'", slot(name).label, expected, text),
                   has_unknown_unit(text) ? Hint{std::string(kUnitsHint)} : Hint{});
}

std::int64_t Arguments::integer(std::string_view name, Range<std::int64_t> range) const {
  const auto number = parse_integer_with_unit(value(name));
  if (!number || *number < range.least || *number > range.most)
    refuse(name, expected("a whole number", range));
  return *number;
}

double Arguments::number(std::string_view name, Range<double> range) const {
  const auto number = parse_number_with_unit(value(name));
  if (!number || !std::isfinite(*number) || *number < range.least || *number > range.most)
    refuse(name, expected("a number", range));
  return *number;
}

const std::vector<std::string>& Arguments::list(std::string_view name) const {
  return slot(name).values;
}

}  // namespace thimble
