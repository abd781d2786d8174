#include "base/json.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace thimble {
namespace {

using namespace std::string_view_literals;

constexpr std::int64_t kMinInt = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMaxInt = std::numeric_limits<std::int64_t>::max();
constexpr std::uint64_t kMaxUnsigned = std::numeric_limits<std::uint64_t>::max();

template <class Act>
std::string error_of(Act act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string error_in(std::string_view text, JsonLimits limits = {}) {
  return error_of([&] { parse_json(text, "x.json", limits); });
}

bool starts_with(const std::string& text, std::string_view start) {
  return text.starts_with(start);
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != text.npos;
}

Json sample() {
  return Json::object()
      .set("nothing", nullptr)
      .set("yes", true)
      .set("no", false)
      .set("least", kMinInt)
      .set("most", kMaxUnsigned)
      .set("tiny", 5e-324)
      .set("text", "a\"b\\c\n\x01 \xC3\xA9 \xF0\x9F\x98\x80")
      .set("list", Json::array({1, 2.5, "three", Json::array(), Json::object()}))
      .set("inner", Json::object().set("", 0).set("deep", Json::array({Json::array({Json::array()})})));
}

TEST(Json, RoundTripsThroughText) {
  for (const int indent : {0, 1, 2, 8}) {
    const std::string text = sample().dump(indent);
    const Json back = parse_json(text, "sample");
    EXPECT_EQ(back, sample()) << text;
    EXPECT_EQ(back.dump(indent), text);
  }
}

TEST(Json, LayoutIsFixed) {
  const Json json = Json::object().set("b", Json::array({1, "x"})).set("a", Json::object()).set("c", 1.0);
  EXPECT_EQ(json.dump(), R"({"b":[1,"x"],"a":{},"c":1.0})");
  EXPECT_EQ(json.dump(2), "{\n  \"b\": [\n    1,\n    \"x\"\n  ],\n  \"a\": {},\n  \"c\": 1.0\n}");
}

TEST(Json, MembersKeepInsertionOrderWhenReplaced) {
  Json json = Json::object();
  for (int i = 99; i >= 0; --i) json.set(fmt::format("key {}", i), i);
  json.set("key 50", "new").set("key 98", "new");
  ASSERT_EQ(json.size(), 100u);
  int expected = 99;
  for (const auto& [key, value] : json.as_object()) {
    EXPECT_EQ(key, fmt::format("key {}", expected));
    EXPECT_EQ(value, expected == 50 || expected == 98 ? Json("new") : Json(expected));
    EXPECT_EQ(json.find(key), &value);
    --expected;
  }
  EXPECT_EQ(json.find("key 100"), nullptr);
}

TEST(Json, CopiesOfLargeObjectsAreIndependent) {
  Json json = Json::object();
  for (int i = 0; i < 40; ++i) json.set(std::to_string(i), i);
  Json copy = json;
  copy.set("7", "changed").set("40", 40);
  EXPECT_EQ(json.at("7"), Json(7));
  EXPECT_EQ(json.find("40"), nullptr);
  EXPECT_EQ(copy.at("7"), Json("changed"));
  json = copy;
  EXPECT_EQ(json.at("40"), Json(40));
  EXPECT_EQ(json, copy);
}

TEST(Json, EqualityIgnoresOnlyTheOrderOfMembers) {
  EXPECT_EQ(parse_json(R"({"a":1,"b":[1,2]})", "x"), parse_json(R"({"b":[1,2],"a":1})", "x"));
  EXPECT_NE(parse_json("[1,2]", "x"), parse_json("[2,1]", "x"));
  EXPECT_NE(parse_json("1", "x"), parse_json("1.0", "x"));
  EXPECT_NE(parse_json(R"({"a":1})", "x"), parse_json(R"({"a":1,"b":2})", "x"));
  EXPECT_NE(parse_json(R"({"a":1})", "x"), parse_json(R"({"b":1})", "x"));
  EXPECT_NE(Json::object(), Json::array());
  EXPECT_EQ(Json(std::uint64_t{5}), Json(5));
}

TEST(Json, TypeErrorsNameTheExpectedAndTheFoundType) {
  EXPECT_EQ(error_of([] { Json("12").as_int(); }),
            "expected an integer of at most 64 bits, found the string \"12\"");
  EXPECT_EQ(error_of([] { Json(1.5).as_int(); }), "expected an integer of at most 64 bits, found 1.5");
  EXPECT_EQ(error_of([] { Json(kMaxUnsigned).as_int(); }),
            "expected an integer of at most 64 bits, found 18446744073709551615");
  EXPECT_EQ(error_of([] { Json(-1).as_uint(); }), "expected an integer of at least 0, found -1");
  EXPECT_EQ(error_of([] { Json(nullptr).as_double(); }), "expected a number, found null");
  EXPECT_EQ(error_of([] { Json(1).as_bool(); }), "expected true or false, found 1");
  EXPECT_EQ(error_of([] { Json(true).as_string(); }), "expected a string, found true");
  EXPECT_EQ(error_of([] { Json::object().as_array(); }), "expected an array, found an object of size 0");
  EXPECT_EQ(error_of([] {
              Json::array({1, 2}).as_object();
            }),
            "expected an object, found an array of size 2");
  EXPECT_EQ(error_of([] { Json::object().at("dim"); }), "the key \"dim\" is missing");
  EXPECT_EQ(error_of([] { Json(3).at("dim"); }), "expected an object with the key \"dim\", found 3");
  EXPECT_TRUE(contains(error_of([] { Json(3).set("dim", 1); }), "\"dim\""));
  EXPECT_TRUE(contains(error_of([] { Json(3).push(1); }), "found 3"));
  EXPECT_LT(error_of([] { Json(std::string(1'000'000, 'x')).as_int(); }).size(), 200u);
}

TEST(Json, ConvertsBetweenNumberTypes) {
  EXPECT_EQ(Json(7).as_uint(), 7u);
  EXPECT_EQ(Json(7).as_double(), 7.0);
  EXPECT_EQ(Json(kMaxUnsigned).as_uint(), kMaxUnsigned);
  EXPECT_EQ(Json(kMaxUnsigned).as_double(), 18446744073709551616.0);
  EXPECT_TRUE(Json(kMaxUnsigned).is_uint());
  EXPECT_FALSE(Json(kMaxUnsigned).is_int());
  EXPECT_FALSE(Json(-1).is_uint());
  EXPECT_TRUE(Json(0.5f).is_number());
}

TEST(Json, DoublesRoundTripExactly) {
  std::vector<double> values = {0.0,
                                -0.0,
                                1.0,
                                100000.0,
                                1e22,
                                1e23,
                                0.1,
                                1.0 / 3,
                                5e-324,
                                2.2250738585072014e-308,
                                std::numeric_limits<double>::max(),
                                9007199254740993.0,
                                18446744073709551616.0};
  for (std::uint64_t i = 0; i < 20'000; ++i) values.push_back(std::bit_cast<double>(i * 0x9E3779B97F4A7C15u));
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    const std::string text = Json(value).dump();
    const Json back = parse_json(text, "double");
    ASSERT_FALSE(back.is_uint() || back.is_int()) << text;
    ASSERT_EQ(std::bit_cast<std::uint64_t>(back.as_double()), std::bit_cast<std::uint64_t>(value)) << text;
  }
}

TEST(Json, EscapesOnlyControlCharactersNumerically) {
  EXPECT_EQ(Json("a\x1B\x7F\xC2\x80\xC2\x9B\xC2\x9F").dump(), R"("a\u001b\u007f\u0080\u009b\u009f")");
  EXPECT_EQ(Json("\xC2\xA0\xC3\x9B\xE2\x80\x9B").dump(), "\"\xC2\xA0\xC3\x9B\xE2\x80\x9B\"");
}

TEST(Json, WritesNonFiniteNumbersAsNull) {
  EXPECT_EQ(Json::array({NAN, INFINITY, -INFINITY}).dump(), "[null,null,null]");
}

TEST(Json, ParsesIntegersAtTheLimitsOf64Bits) {
  EXPECT_EQ(parse_json("-9223372036854775808", "x").as_int(), kMinInt);
  EXPECT_EQ(parse_json("9223372036854775807", "x").as_int(), kMaxInt);
  EXPECT_EQ(parse_json("9223372036854775808", "x").as_uint(), std::uint64_t{1} << 63);
  EXPECT_EQ(parse_json("18446744073709551615", "x").as_uint(), kMaxUnsigned);
  // Beyond 64 bits: occurs in published tokenizer_config.json files.
  const Json huge = parse_json("1000000000000000019884624838656", "x");
  EXPECT_EQ(huge.as_double(), 1e30);
  EXPECT_TRUE(contains(error_of([&] { huge.as_int(); }), "found 1e+30"));
}

TEST(Json, RefusesNumbersOutOfRange) {
  EXPECT_TRUE(starts_with(error_in("[1,\n 1e999]"), "x.json:2:")) << error_in("[1,\n 1e999]");
  EXPECT_TRUE(contains(error_in("-1e400"), "number overflow")) << error_in("-1e400");
  EXPECT_TRUE(contains(error_in(std::string(400, '9')), "number overflow"));
}

TEST(Json, RefusesInvalidNumbersAndLiterals) {
  for (const char* text :
       {"01",    "+1",      "1.",       ".5",  "1e",  "-",    "0x10",       "NaN",   "Infinity",
        "nul",   "True",    "'a'",      "1 2", "{}x", "[1,]", "{\"a\":1,}", "{a:1}", "{\"a\"}",
        "[1 2]", "// c\n1", "/* c */1", "]",   "",    " ",    ",",          "\"\t\""})
    EXPECT_TRUE(starts_with(error_in(text), "x.json:")) << text << " -> " << error_in(text);
  for (const std::string_view text : {"1\0"sv, "1\0 2"sv, "{}\0nonsense"sv, "\0"sv, "[1,\0]"sv, "\"\0\""sv})
    EXPECT_TRUE(starts_with(error_in(text), "x.json:1:")) << text;
}

TEST(Json, RefusesDuplicateKeysInEveryObject) {
  EXPECT_EQ(error_in("{\"a\": 1,\n  \"a\": 1}"), "x.json:2:5: the key \"a\" appears twice in one object");
  EXPECT_TRUE(contains(error_in(R"([{"b":{"c":1,"\u0063":2}}])"), "the key \"c\" appears twice"));
  EXPECT_TRUE(contains(error_in(R"({"a":{"x":1},"b":{"x":1},"a":0})"), "\"a\" appears twice"));
  EXPECT_EQ(error_in(R"({"a":{"a":{"a":1}},"b":[{"a":1},{"a":1}]})"), "no error");
}

TEST(Json, LimitsNestingDepth) {
  auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(error_in(nested(64)), "no error");
  EXPECT_EQ(error_in(nested(65)), "x.json:1:65: nested deeper than 64 levels");
  EXPECT_EQ(error_in(R"({"a":{"b":{}}})", {.max_depth = 2}), "x.json:1:11: nested deeper than 2 levels");
  EXPECT_EQ(error_in("[[],[],[]]", {.max_depth = 2}), "no error");
  EXPECT_TRUE(contains(error_in(std::string(10'000'000, '[')), "nested deeper"))
      << "a stack overflow, or slow";
}

TEST(Json, ErrorsContainLineAndColumn) {
  EXPECT_TRUE(starts_with(error_in("{\n  \"a\": 1,\n  b: 2\n}"), "x.json:3:3: "))
      << error_in("{\n  \"a\": 1,\n  b: 2\n}");
  EXPECT_TRUE(starts_with(error_in("[1, 2"), "x.json:1:6: ")) << error_in("[1, 2");
  EXPECT_TRUE(starts_with(error_in(""), "x.json:1:1: ")) << error_in("");
  EXPECT_TRUE(starts_with(error_in("{}\n\n]"), "x.json:3:1: ")) << error_in("{}\n\n]");
  EXPECT_FALSE(contains(error_in("["), "json.exception")) << error_in("[");
}

TEST(Json, ErrorMessagesAreShortAndPrintable) {
  EXPECT_LT(error_in("\"" + std::string(1'000'000, 'x')).size(), 1'000u);
  EXPECT_FALSE(contains(error_in("\"\xFF"), "\xFF"));
  EXPECT_FALSE(contains(error_in("\"\x1b[31m"), "\x1b"));
}

TEST(Json, RefusesTextTruncatedAnywhere) {
  for (const int indent : {0, 2}) {
    const std::string text = sample().dump(indent);
    for (std::size_t bytes = 0; bytes < text.size(); ++bytes) {
      // A copy of exactly this size, so that AddressSanitizer detects a read beyond the end.
      const std::vector<char> cut(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(bytes));
      EXPECT_TRUE(starts_with(error_in({cut.data(), cut.size()}), "x.json:")) << bytes;
    }
  }
}

TEST(Json, NeverCrashesOnAChangedByte) {
  const std::string text = sample().dump();
  const std::string_view bytes = "\0\x01\n \"\\/{}[]:,-+.09eEntfuxd\x7F\x80\xC3\xED\xF0\xFF"sv;
  for (std::size_t at = 0; at < text.size(); ++at)
    for (const char byte : bytes) {
      std::string changed = text;
      changed[at] = byte;
      const std::string message = error_in(changed);
      EXPECT_TRUE(message == "no error" || starts_with(message, "x.json:")) << message;
    }
}

TEST(Json, ParserRefusesInvalidUtf8) {
  for (const char* bytes :
       {"\xFF", "\x80", "\xC3", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80",
        "\xF8\x88\x80\x80\x80", "\\ud800", "\\udc00", "\\ud800\\u0041", "\\u12", "\\x"}) {
    const std::string quoted = fmt::format("[\"a{}\"]", bytes);
    EXPECT_TRUE(starts_with(error_in(quoted), "x.json:1:")) << quoted;
    EXPECT_TRUE(starts_with(error_in(fmt::format("{{\"{}\":1}}", bytes)), "x.json:1:")) << quoted;
  }
  EXPECT_EQ(parse_json(R"("\ud83d\ude00\u00e9\u0000")", "x").as_string(),
            std::string("\xF0\x9F\x98\x80\xC3\xA9\0", 7));
}

TEST(Json, WriterReplacesInvalidUtf8) {
  auto written = [](std::string_view text) { return parse_json(Json(text).dump(), "written").as_string(); };
  const std::string mark = "\xEF\xBF\xBD";
  EXPECT_EQ(written("a\xFFz"), "a" + mark + "z");
  EXPECT_EQ(written("\xC3"), mark);
  EXPECT_EQ(written("\xC3("), mark + "(");
  EXPECT_EQ(written("\xC0\x80"), mark + mark);
  EXPECT_EQ(written("\xED\xA0\x80"), mark + mark + mark);  // a surrogate
  EXPECT_EQ(written("\xF0\x9F\x98z"), mark + "z");         // a truncated character
  EXPECT_EQ(written("\xF4\x90\x80\x80"), mark + mark + mark + mark);
  EXPECT_EQ(written("\xE2\x82\xAC \xF0\x9F\x98\x80 \x7F"), "\xE2\x82\xAC \xF0\x9F\x98\x80 \x7F");
  EXPECT_EQ(Json::object().set("\xFF", 1).dump(), "{\"" + mark + "\":1}");
}

TEST(Json, WritesAnyPairOfBytesAsValidJson) {
  for (int first = 0; first < 256; ++first)
    for (int second = 0; second < 256; ++second) {
      const std::string text = {static_cast<char>(first), static_cast<char>(second), 'x'};
      const std::string dumped = Json(text).dump();
      const std::string back = parse_json(dumped, "pair").as_string();
      EXPECT_TRUE(back.ends_with("x"));
      if (first < 0x80 && second < 0x80) {
        EXPECT_EQ(back, text);
      }
      for (const char c : dumped) EXPECT_FALSE(static_cast<unsigned char>(c) < 0x20 || c == 0x7F);
    }
}

class Recorder : public JsonVisitor {
 public:
  void null() override { events += "null "; }
  void boolean(bool value) override { events += value ? "true " : "false "; }
  void integer(std::int64_t value) override { events += fmt::format("{} ", value); }
  void big_integer(std::uint64_t value) override { events += fmt::format("big:{} ", value); }
  void number(double value) override { events += fmt::format("number:{} ", value); }
  void string(std::string value) override { events += value + " "; }
  void start_object() override { events += "{ "; }
  void key(std::string key) override { events += key + ": "; }
  void end_object() override { events += "} "; }
  void start_array() override { events += "[ "; }
  void end_array() override { events += "] "; }

  std::string events;
};

TEST(JsonVisitor, ReceivesAllEventsInOrder) {
  Recorder recorder;
  visit_json(R"({"a":[null,true,-3,9223372036854775808,2.5,"s"],"b":{}})", "x", recorder);
  EXPECT_EQ(recorder.events, "{ a: [ null true -3 big:9223372036854775808 number:2.5 s ] b: { } } ");
}

TEST(JsonVisitor, IsAsStrictAsTheParser) {
  for (const char* text : {"[1] 2", R"({"a":1,"a":2})", "[", "\"\xFF\"", "1e999"}) {
    Recorder recorder;
    EXPECT_EQ(error_of([&] { visit_json(text, "x.json", recorder); }), error_in(text));
    EXPECT_NE(error_in(text), "no error");
  }
}

TEST(JsonVisitor, StopsByThrowing) {
  class Stopper : public JsonVisitor {
    void integer(std::int64_t value) override { check(value != 2, "stop at {}", value); }
  } stopper;
  EXPECT_EQ(error_of([&] { visit_json("[1,2,nonsense", "x", stopper); }), "stop at 2");
}

}  // namespace
}  // namespace thimble
