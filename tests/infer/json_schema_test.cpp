#include "infer/json_schema.h"

#include <cmath>

#include "base/error.h"
#include "support/message_of.h"

namespace thimble::json_schema_test {
namespace {

class Schema {
 public:
  explicit Schema(std::string_view schema) {
    const Expr root = json_schema_expr(*grammar_, schema);
    start_ = grammar_->finish(root);
  }

  bool possible() const { return start_ != kNothing; }
  bool accepts(std::string_view text) const {
    grammar_->allow_work(5'000'000);
    Expr state = start_;
    for (const char c : text) state = grammar_->step(state, static_cast<unsigned char>(c));
    return grammar_->accepts(state);
  }

 private:
  std::unique_ptr<Grammar> grammar_ = std::make_unique<Grammar>();
  Expr start_ = kNothing;
};

std::string error_of(std::string_view schema) {
  return message_of([&] { Schema{schema}; });
}

TEST(JsonSchema, PropertiesComeInTheOrderOfTheSchemaAndOthersAfterThem) {
  const Schema schema(
      R"({"properties": {"b": {"type": "null"}, "a": {"type": "null"}}, "required": ["c", "a"],
                          "type": "object"})");
  EXPECT_TRUE(schema.accepts(R"({"b": null, "a": null, "c": 1, "d": [2]})"));
  EXPECT_TRUE(schema.accepts(R"({"a":null,"c":{}})"));
  EXPECT_FALSE(schema.accepts(R"({"a": null, "b": null, "c": 1})")) << "another order";
  EXPECT_FALSE(schema.accepts(R"({"a": null, "a": null, "c": 1})")) << "twice";
  EXPECT_FALSE(schema.accepts(R"({"b": null, "c": 1})")) << "a is required";
  EXPECT_FALSE(schema.accepts(R"({"a": null, "c": 1, "\u0062": 2})")) << "b, spelled with an escape";
}

TEST(JsonSchema, WhiteSpaceIsBounded) {
  const Schema schema(R"({"type": "array", "items": {"type": "integer"}, "maxItems": 2})");
  for (const char* text : {"[]", "[ ]", "[1,2]", "[1, 2]", "[ 1, 2 ]", "[\n  1,\n\t2\n]"})
    EXPECT_TRUE(schema.accepts(text)) << text;
  for (const char* text : {" []", "[] ", "[1 ,2]", "[1,  2]", "[\n\n1]", "[\n                     1]"})
    EXPECT_FALSE(schema.accepts(text)) << text;
}

TEST(JsonSchema, StringsAllowEveryEscapeUnlessTheyHaveAPattern) {
  const Schema any(R"({"type": "string"})");
  EXPECT_TRUE(any.accepts(R"("a\/\u00e9\uD83D\ude00\n é")"));
  EXPECT_FALSE(any.accepts(R"("\ud83d")")) << "half a character";
  EXPECT_FALSE(any.accepts("\"\n\""));
  const Schema two(R"({"type": "string", "minLength": 2, "maxLength": 2})");
  EXPECT_TRUE(two.accepts(R"("\ud83d\ude00é")"));
  EXPECT_FALSE(two.accepts(R"("\ud83d\ude00")"));
  const Schema pattern(R"({"type": "string", "pattern": "^[a\"\\n]+$", "maxLength": 3})");
  EXPECT_TRUE(pattern.accepts(R"("a\"\n")"));
  EXPECT_FALSE(pattern.accepts(R"("aaaa")"));
  EXPECT_FALSE(pattern.accepts(R"("b")"));
}

// Every number of a grid against the comparison of doubles.
TEST(JsonSchema, BoundsOfNumbersAreExact) {
  std::vector<std::string> texts;
  for (const char* sign : {"", "-"})
    for (int i = 0; i <= 130; ++i)
      for (const char* fraction : {"", ".0", ".05", ".25", ".5", ".50", ".75", ".9"})
        texts.push_back(fmt::format("{}{}{}", sign, i, fraction));
  const std::vector<double> bounds = {-99.5, -10, -2.25, -0.5, 0, 0.05, 0.5, 1, 9.75, 10, 99, 101.25};
  for (const double least : bounds)
    for (const double most : bounds) {
      if (most < least) continue;
      const Schema inclusive(
          fmt::format(R"({{"type": "number", "minimum": {}, "maximum": {}}})", least, most));
      const Schema exclusive(fmt::format(
          R"({{"type": "number", "exclusiveMinimum": {}, "exclusiveMaximum": {}, "multipleOf": 0.25}})",
          least, most));
      for (const std::string& text : texts) {
        const double value = std::stod(text);
        ASSERT_EQ(inclusive.accepts(text), least <= value && value <= most)
            << text << " " << least << " " << most;
        if (text.ends_with(".0") || text.ends_with(".50")) continue;  // multiples allow few spellings
        ASSERT_EQ(exclusive.accepts(text), least < value && value < most && std::fmod(value, 0.25) == 0)
            << text << " " << least << " " << most;
      }
    }
  const Schema months(R"({"type": "integer", "minimum": 1, "exclusiveMaximum": 12.5})");
  for (int i = -20; i < 140; ++i) EXPECT_EQ(months.accepts(std::to_string(i)), i >= 1 && i <= 12) << i;
  // Longer numbers could change when they are read as doubles.
  EXPECT_TRUE(Schema(R"({"multipleOf": 2})").accepts("123456789012346"));
  EXPECT_FALSE(Schema(R"({"multipleOf": 2})").accepts("1234567890123456"));
  EXPECT_FALSE(months.accepts("01"));
  EXPECT_FALSE(months.accepts("1e0"));
}

TEST(JsonSchema, RecursionAndReferences) {
  const Schema tree(R"({"$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"},
      "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "required": ["v"],
      "additionalProperties": false}}, "$ref": "#/$defs/node"})");
  EXPECT_TRUE(tree.accepts(R"({"v": 1, "kids": [{"v": 2}, {"v": 3, "kids": [{"v": 4, "kids": []}]}]})"));
  EXPECT_FALSE(tree.accepts(R"({"v": 1, "kids": [{"kids": []}]})"));
  EXPECT_FALSE(
      Schema(R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})").possible())
      << "no end";
  EXPECT_EQ(error_of(R"({"$ref": "#"})"), "schema #: the schema refers to itself without end");
  EXPECT_NE(error_of(R"({"$ref": "#/$defs/x"})").find("leads to nothing"), std::string::npos);
  EXPECT_NE(error_of(R"({"$ref": "http://example.com/x"})").find("leads out"), std::string::npos);
}

TEST(JsonSchema, BranchesOfOneOfMustExcludeEachOther) {
  const Schema kinds(R"({"oneOf": [
      {"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["kind"]},
      {"type": "object", "properties": {"kind": {"const": "b"}, "y": {"type": "string"}}, "required": ["kind"]},
      {"type": "null"}]})");
  EXPECT_TRUE(kinds.accepts(R"({"kind": "b", "y": "1"})"));
  EXPECT_FALSE(kinds.accepts(R"({"kind": "b", "y": 1})"));
  EXPECT_TRUE(kinds.accepts("null"));
  EXPECT_NE(error_of(R"({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]})").find("oneOf"),
            std::string::npos);
  EXPECT_TRUE(
      Schema(R"({"oneOf": [{"type": "number", "maximum": 1}, {"type": "number", "exclusiveMinimum": 1}]})")
          .accepts("1.5"));
}

TEST(JsonSchema, UnsupportedAndWrongKeywordsAreErrorsWithTheirPath) {
  for (const auto& [schema, message] : std::vector<std::pair<std::string_view, std::string_view>>{
           {R"({"not": {}})", "schema #: the keyword 'not' is not supported"},
           {R"({"properties": {"a/b": {"items": {"contains": 1}}}})",
            "schema #/properties/a~1b/items: the keyword 'contains' is not supported"},
           {R"({"prefixItems": [true, {"if": {}}]})",
            "schema #/prefixItems/1: the keyword 'if' is not supported"},
           {R"({"propertis": {}})",
            "schema #: the keyword 'propertis' is not supported; did you mean 'properties'?"},
           {R"({"uniqueItems": true})", "schema #: the keyword 'uniqueItems' is not supported"},
           {R"({"format": "iri"})", "schema #: the format 'iri' is not supported"},
           {R"({"type": "text"})", "schema #: unknown type \"text\""},
           {R"({"minItems": 3, "maxItems": 2})", "schema #: minItems 3 is greater than maxItems 2"},
           {R"({"items": {"minimum": 2.5, "maximum": 2}})",
            "schema #/items: minimum 2.5 is greater than maximum 2"},
           {R"({"minLength": -1})", "schema #: minLength must be a whole number >= 0"},
           {R"x({"pattern": "(?=a)"})x",
            "schema #: pattern: regular expression:1:3: look-around and flags in a group are not supported"},
           {R"({"multipleOf": 0.12345})",
            "schema #: multipleOf 0.12345 is not supported: it needs more than 2000 states"},
           {R"([])", "schema #: a schema must be an object or a boolean"},
           {R"({"allOf": []})", "schema #: allOf must not be empty"},
       })
    EXPECT_EQ(error_of(schema), message) << schema;
  EXPECT_TRUE(error_of("{").starts_with("schema:1:"));
}

TEST(JsonSchema, HostileSchemasAreRefused) {
  std::string deep = "{}", wide;
  for (int i = 0; i < 70; ++i) deep = "{\"items\": " + deep + "}";
  EXPECT_TRUE(error_of(deep).starts_with("schema:")) << "nested too deeply for the parser";
  for (int i = 0; i < 12; ++i) wide += R"({"anyOf": [{"minimum": 1}, {"maximum": 2}, {"multipleOf": 3}]},)";
  EXPECT_NE(error_of(R"({"allOf": [)" + wide + R"(true]})").find("combinations"), std::string::npos);
  EXPECT_NE(error_of(R"({"pattern": ")" + std::string(1 << 19, 'a') + R"("})").find("bytes"),
            std::string::npos);
  std::string many;
  for (int i = 0; i < 3000; ++i) many += fmt::format(R"("p{}": true,)", i);
  EXPECT_NE(error_of(R"({"properties": {)" + many + R"("q": true}})").find("properties"), std::string::npos);
  for (const std::string_view use : {R"("items": )", R"("allOf": [)"}) {
    std::string chain = R"({"$ref": "#/$defs/d0", "$defs": {)";
    for (int i = 0; i < 3000; ++i)
      chain += fmt::format(R"("d{}": {{{}{{"$ref": "#/$defs/d{}"}}{}}},)", i, use, i + 1,
                           use.ends_with('[') ? "]" : "");
    EXPECT_NE(error_of(chain + R"("d3000": true}})").find("nested more than"), std::string::npos) << use;
  }
  EXPECT_FALSE(Schema(R"({"type": "integer", "allOf": [{"minimum": 5}, {"maximum": 4}]})").possible());
  EXPECT_FALSE(Schema(R"({"type": "string", "pattern": "^a{5}$", "maxLength": 4})").possible());
}

TEST(JsonSchema, LargeSchemasCompileWithinTheLimits) {
  std::string properties;
  for (int i = 0; i < 200; ++i)
    properties += fmt::format(R"({}"property_{}": {{"type": ["string", "null"], "maxLength": 100}})",
                              i > 0 ? "," : "", i);
  const Schema schema(R"({"type": "object", "properties": {)" + properties +
                      R"(}, "additionalProperties": false})");
  EXPECT_TRUE(schema.accepts(R"({"property_0": "a", "property_19": null, "property_199": "x"})"));
  EXPECT_FALSE(schema.accepts(R"({"property_19": "a", "property_0": null})"));
}

}  // namespace
}  // namespace thimble::json_schema_test
