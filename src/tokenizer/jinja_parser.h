// The syntax tree of a Jinja template, and its parser. Only jinja.cpp evaluates it.
//
// The parser follows Jinja 3 with trim_blocks and lstrip_blocks, which is how Transformers renders
// chat templates: the newline after a block and the blanks before it are not part of the text.
// Statements outside the subset (block, extends, include, import, ...) are errors with their line.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace thimble::jinja {

// Throws an Error whose field is chat_template: "chat_template line 3: ...".
[[noreturn]] void fail_at(int line, std::string_view what);

// Values that make a tree too deep for recursion are rejected by the parser.
inline constexpr int kMaxHeight = 400;

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Argument {
  std::string name;  // empty: positional
  ExpressionPtr value;
};

enum class ExpressionKind {
  undefined,    // an absent bound of a slice, an absent `else` of a condition
  none,         //
  boolean,      // integer is 0 or 1
  integer,      //
  real,         //
  string,       // text
  name,         // text
  list,         // parts; also a tuple
  dict,         // parts: key, value, key, value, ...
  attribute,    // parts[0].text
  item,         // parts[0][parts[1]]
  slice,        // parts[0][parts[1]:parts[2]:parts[3]]
  call,         // parts[0](arguments)
  filter,       // parts[0] | text(arguments); no parts in a filter block
  test,         // parts[0] is text(arguments)
  unary,        // text is "not", "-" or "+"
  binary,       // text is the operator
  conditional,  // parts[0] if parts[1] else parts[2]
};

struct Expression {
  ExpressionKind kind = ExpressionKind::undefined;
  int line = 0;
  int height = 1;  // of the tree below
  std::string text = {};
  std::int64_t integer = 0;
  double real = 0;
  std::vector<ExpressionPtr> parts = {};
  std::vector<Argument> arguments = {};
};

struct Statement;
using Block = std::vector<Statement>;

struct Branch {
  ExpressionPtr condition;
  Block body;
};

enum class StatementKind {
  text,         // text
  output,       // {{ value }}
  assign,       // {% set targets = value %}; without value: the body, through the filter in `filter`
  attribute,    // {% set targets[0].text = value %}, for namespaces
  conditional,  // branches, otherwise
  loop,         // {% for targets in value if condition %} body, otherwise if there was no item
  macro,        // text is the name; parameters, body
  call,         // {% call(parameters) value %} body
  filter,       // {% filter ... %} body
  stop,         // {% break %}
  next,         // {% continue %}
  evaluate,     // {% do value %}
  generation,   // {% generation %} body
};

struct Statement {
  StatementKind kind = StatementKind::text;
  int line = 0;
  std::string text = {};
  std::vector<std::string> targets = {};
  ExpressionPtr value = {}, condition = {}, filter = {};
  std::vector<Argument> parameters = {};  // value: the default, or null
  std::vector<Branch> branches = {};
  Block body = {}, otherwise = {};
};

Block parse(std::string_view source);

}  // namespace thimble::jinja
