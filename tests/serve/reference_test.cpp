// Tests that docs/reference/http.md names every route of the server and every field that a route
// reads from a request, and docs/reference/metrics.md every metric with its type.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <string_view>

#include "base/files.h"
#include "serve/service.h"
#include "serve/test_server.h"
#include "support/run_binary.h"

namespace thimble {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxFileBytes = 1 << 20;

std::string http_reference() {
  return read_file(source_folder() / "docs/reference/http.md", kMaxFileBytes);
}

// The first group of every match of `pattern`.
std::set<std::string> matches_of(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match)
    found.insert(match->str(1));
  return found;
}

// The field names in a source file: string literals given to a method of a Fields object, or to a
// function together with such an object, and those of `harmless` and `kUnsupported`.
//
//   fields.number("temperature")   number(fields, "top_p", 1)   harmless("store", false)
std::set<std::string> fields_read(const std::string& source) {
  std::set<std::string> names = matches_of(source, R"re(\bharmless\(\s*"([^"]+)")re");
  for (const std::string& object : matches_of(source, R"re(\bFields\b&? (\w+)\b)re")) {
    names.merge(matches_of(source, "\\b" + object + R"re(\.\w+\(\s*"([^"]+)")re"));
    names.merge(matches_of(source, "\\(" + object + R"re(,\s*"([^"]+)")re"));
  }
  for (const std::string& list : matches_of(source, R"re(\bkUnsupported\S* = (\{[^}]*\}))re"))
    names.merge(matches_of(list, R"re("([^"]+)")re"));
  return names;
}

TEST(HttpReference, FieldsAreFoundInSources) {
  EXPECT_EQ(fields_read(R"re(void f(Fields& one) {
                               one.find("a"); one.required(
                                   "b"); number(one, "c", 1); other.find("no"); fail("no"); }
                             void g(const Json& json) {
                               const std::array kUnsupported = {"d",
                                                                "e"};
                               Fields two(json, "no"); two.boolean("f"); harmless("g", 1); })re"),
            (std::set<std::string>{"a", "b", "c", "d", "e", "f", "g"}));
}

// "POST /v1/completions", "GET /v1/models/NAME"
std::set<std::string> route_names() {
  std::set<std::string> names;
  for (const Route& route : all_routes()) {
    std::string name = fmt::format("{} {}", route.method, route.path);
    if (name.ends_with('*')) name.replace(name.size() - 1, 1, "NAME");
    names.insert(std::move(name));
  }
  return names;
}

TEST(HttpReference, NamesEveryRouteAndNoOther) {
  EXPECT_EQ(matches_of(http_reference(), "`((?:GET|POST) /[^`]*)`"), route_names());
}

TEST(HttpReference, NamesEveryFieldOfARequest) {
  const std::string page = http_reference();
  std::size_t found = 0;
  for (const auto& entry : fs::directory_iterator(source_folder() / "src/serve")) {
    if (entry.path().extension() != ".cpp") continue;
    for (const std::string& name : fields_read(read_file(entry.path(), kMaxFileBytes))) {
      ++found;
      EXPECT_NE(page.find("`" + name + "`"), page.npos) << "docs/reference/http.md does not name `" << name
                                                        << "`, which " << entry.path().filename() << " reads";
    }
  }
  EXPECT_GE(found, 60u) << "the scan of the sources finds too few fields";
}

// "counter tokens_predicted_total"
TEST(MetricsReference, NamesEveryMetricOfTheServerAndNoOther) {
  TestServer server;
  std::set<std::string> served, documented;
  const std::string text = get(server.port(), "/metrics").body;
  const std::regex type(R"re(# TYPE thimble_(\w+) (\w+))re");
  for (std::sregex_iterator match(text.begin(), text.end(), type), end; match != end; ++match)
    served.insert(match->str(2) + " " + match->str(1));

  std::string page = read_file(source_folder() / "docs/reference/metrics.md", kMaxFileBytes);
  page.erase(0, page.find("## Prometheus"));
  const std::regex row(R"re(\| `(\w+)[^`]*` \| (\w+) \|)re");
  for (std::sregex_iterator match(page.begin(), page.end(), row), end; match != end; ++match)
    documented.insert(match->str(2) + " " + match->str(1));
  EXPECT_EQ(served, documented);
  EXPECT_GE(served.size(), 10u);
}

}  // namespace
}  // namespace thimble
