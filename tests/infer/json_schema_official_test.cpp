// The official tests of JSON Schema: which groups are supported, and whether the grammar of each
// agrees with every instance.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "data/text_files.h"
#include "infer/json_schema.h"
#include "support/run_binary.h"

namespace thimble {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> printed(const Json& value, std::size_t most);

// All orders of the members, because the grammar fixes one.
std::vector<std::string> printed_object(const Json& value, std::size_t most) {
  std::vector<std::vector<std::string>> members;
  for (const auto& [name, member] : value.as_object()) {
    std::string quoted;
    append_json_string(quoted, name);
    members.emplace_back();
    for (const std::string& text : printed(member, most)) members.back().push_back(quoted + ": " + text);
  }
  std::vector<std::size_t> order(members.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::vector<std::string> all;
  do {
    std::vector<std::string> texts = {"{"};
    for (std::size_t i = 0; i < order.size(); ++i) {
      std::vector<std::string> longer;
      for (const std::string& text : texts)
        for (const std::string& member : members[order[i]])
          longer.push_back(text + (i > 0 ? ", " : "") + member);
      texts = std::move(longer);
    }
    for (const std::string& text : texts) all.push_back(text + "}");
  } while (all.size() < most && std::ranges::next_permutation(order).found);
  return all;
}

// As JSON.stringify prints it, with a space after , and :.
std::vector<std::string> printed(const Json& value, std::size_t most) {
  if (value.is_object()) return printed_object(value, most);
  if (value.is_array()) {
    std::vector<std::string> texts = {"["};
    for (std::size_t i = 0; i < value.size(); ++i) {
      std::vector<std::string> longer;
      for (const std::string& text : texts)
        for (const std::string& item : printed(value.as_array()[i], most))
          if (longer.size() < most) longer.push_back(text + (i > 0 ? ", " : "") + item);
      texts = std::move(longer);
    }
    for (std::string& text : texts) text += "]";
    return texts;
  }
  if (value.is_number() && !value.is_int() && std::abs(value.as_double()) < 1e300 &&
      value.as_double() == std::floor(value.as_double()))
    return {fmt::format("{:.0f}", value.as_double())};
  return {value.dump()};
}

bool accepts(Grammar& grammar, Expr state, std::string_view text) {
  grammar.allow_work(2'000'000);
  for (const char c : text) state = grammar.step(state, static_cast<unsigned char>(c));
  return grammar.accepts(state);
}

struct Counts {
  int groups = 0, supported = 0, valid = 0, invalid = 0;
};

// Instances on which the grammar differs: formats are always checked, leap seconds are not
// generated, and numbers have at most 300 digits.
constexpr std::string_view kDifferences[] = {"only an annotation by default", "leap second",
                                             "optional overflow handling"};

// Files that are left out of the share of supported groups: they are about keywords of which none
// is supported.
bool is_counted(std::string_view file) {
  constexpr std::string_view kExcluded[] = {"dynamicRef", "unevaluated", "not.json", "contains",
                                            "Contains",   "if-then",     "refRemote"};
  return std::ranges::none_of(kExcluded, [&](std::string_view name) { return file.find(name) != file.npos; });
}

TEST(JsonSchemaOfficial, SupportedGroupsAgreeWithEveryInstance) {
  const fs::path path = source_folder().parent_path() / "shared/benchmarks/json-schema-2020-12.json.zst";
  if (!fs::exists(path)) GTEST_SKIP() << path << " is absent";
  const Json files = parse_json(read_text_file(path, 64 << 20), "tests", {.max_depth = 200});
  Counts counts;
  for (const auto& [file, groups] : files.as_object()) {
    for (const Json& group : groups.as_array()) {
      const bool counted = is_counted(file);
      counts.groups += counted;
      const std::string name = file + ": " + group.at("description").as_string();
      auto grammar = std::make_unique<Grammar>();
      Expr start = kNothing;
      try {
        start = grammar->finish(json_schema_expr(*grammar, group.at("schema").dump()));
      } catch (const Error& error) {
        EXPECT_TRUE(std::string_view(error.what()).starts_with("schema #")) << name << ": " << error.what();
        continue;
      }
      bool agrees = true;
      for (const Json& test : group.at("tests").as_array()) {
        const bool valid = test.at("valid").as_bool();
        const auto texts = printed(test.at("data"), 2000);
        const bool accepted = std::ranges::any_of(
            texts, [&](const std::string& text) { return accepts(*grammar, start, text); });
        ++(valid ? counts.valid : counts.invalid);
        if (accepted == valid) continue;
        agrees = false;
        const std::string description = test.at("description").as_string();
        const bool known = std::ranges::any_of(
            kDifferences, [&](std::string_view part) { return description.find(part) != description.npos; });
        EXPECT_TRUE(known) << name << " / " << description << ": " << texts.front()
                           << (accepted ? " is accepted" : " is refused");
      }
      counts.supported += counted && agrees;
    }
  }
  EXPECT_GE(10 * counts.supported, 6 * counts.groups) << counts.supported << " of " << counts.groups;
  RecordProperty("groups", counts.groups);
  RecordProperty("supported", counts.supported);
  RecordProperty("valid", counts.valid);
  RecordProperty("invalid", counts.invalid);
}

}  // namespace
}  // namespace thimble
