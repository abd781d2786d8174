// JSON texts as grammars: any object, or the instances of a JSON Schema (draft 2020-12).
//
// Supported keywords: type, enum, const; properties, patternProperties, additionalProperties,
// required, propertyNames, minProperties, maxProperties; prefixItems, items, minItems, maxItems;
// minLength, maxLength, pattern, format; minimum, maximum, exclusiveMinimum, exclusiveMaximum,
// multipleOf; allOf, anyOf, oneOf (if at most one branch can hold); $ref inside the schema, $defs,
// $anchor. Annotations have no effect. Any other keyword that applies is an Error with its path.
//
// Of the texts of an instance, the grammar contains those with
//
//   - properties in the order of the schema: of a schema's own "properties" first, then those of
//     $ref, allOf and the chosen branch of anyOf and oneOf, then other required ones, then others
//   - white space only after { [ , : and before } ], and only none, one space, or a newline and up
//     to 20 spaces or tabs
//   - integers without fraction, and numbers with bounds or multipleOf without exponent and with 15
//     digits, or as many as the bound has
//   - strings that have a pattern or format, and names of properties, with the shortest escapes
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "infer/grammar.h"
#include "infer/grammar_text.h"

namespace thimble {

Expr json_object_expr(Grammar& grammar);

// `schema` is JSON. Throws an Error that begins with "schema" and the path of the problem:
// "schema #/properties/age: minimum 5 is greater than maximum 3".
Expr json_schema_expr(Grammar& grammar, std::string_view schema);

// A decimal number without exponent: 12.5 is "12" and "5". Without leading and trailing zeros,
// except that the integer part of 0.5 is "0".
struct Decimal {
  bool negative = false;
  std::string integer = "0", fraction = {};
};
Decimal decimal_of(const Json& number);
bool less(const Decimal& a, const Decimal& b);

struct NumberLimits {
  struct Bound {
    Decimal value;
    bool exclusive = false;
  };
  bool integer = false;
  std::vector<Bound> least = {}, most = {};
  std::vector<Decimal> multiples = {};  // positive
};

struct StringLimits {
  std::uint32_t shortest = 0, longest = kUnbounded;  // characters
  std::vector<std::string> patterns = {}, formats = {};
};

// The lexical parts of JSON as expressions.
class JsonTerminals {
 public:
  explicit JsonTerminals(Grammar& grammar);

  Expr space() const { return space_; }
  Expr any_value() const { return value_; }    // a rule
  Expr any_object() const { return object_; }  // a rule
  Expr any_array() const { return array_; }    // a rule
  // A string with the shortest escapes; names of properties are of this kind.
  Expr plain_string() const { return plain_string_; }
  // Throws an Error about a pattern; kNothing if no string is within the limits.
  Expr string(const StringLimits& limits);
  // Throws an Error about a multiple with too many states.
  Expr number(const NumberLimits& limits);
  // The text of a value, with any allowed white space.
  Expr value(const Json& value);
  Expr literal(std::string_view text);  // a string
  // Names in which the pattern matches.
  Expr names_with(std::string_view pattern);

  static bool knows_format(std::string_view format);

 private:
  Expr spell(const CharSet& set);
  Expr magnitude(bool fraction);
  Expr at_least(const Decimal& bound, bool exclusive);
  Expr at_most(const Decimal& bound, bool exclusive);
  Expr signed_at_least(const NumberLimits::Bound& bound);
  Expr signed_at_most(const NumberLimits::Bound& bound);
  Expr multiple_of(const Decimal& step);
  Expr joined(char open, char close, Expr item);

  Grammar& grammar_;
  Expr space_ = kNothing, character_ = kNothing, plain_character_ = kNothing, plain_string_ = kNothing;
  std::map<std::string, Expr, std::less<>> names_;  // by pattern
  Expr value_ = kNothing, object_ = kNothing, array_ = kNothing;
};

}  // namespace thimble
