#include "tokenizer/jinja.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/utf8.h"
#include "tokenizer/jinja_value.h"

namespace thimble {

namespace jinja {

namespace {

enum class Flow { ahead, stop, next };  // stop and next: {% break %} and {% continue %}

class Evaluator {
 public:
  Evaluator(Workspace& workspace, Scope* global, const JinjaOptions& options)
      : workspace_(workspace), scope_(global), options_(options) {}

  Flow run(const Block& block, std::string& out) {
    const Workspace::Level level(workspace_);
    for (const Statement& statement : block) {
      workspace_.line = statement.line;
      workspace_.spend(1);
      if (const Flow flow = run(statement, out); flow != Flow::ahead) return flow;
    }
    return Flow::ahead;
  }

 private:
  // Evaluates names in another scope until the end of the block.
  struct Inside {
    Inside(Evaluator& evaluator, Scope* scope) : evaluator(evaluator), before(evaluator.scope_) {
      evaluator.scope_ = scope;
    }
    ~Inside() { evaluator.scope_ = before; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    Evaluator& evaluator;
    Scope* before;
  };

  void write(std::string& out, std::string_view text) {
    workspace_.take(text.size());
    out += text;
  }

  Flow run(const Statement& statement, std::string& out) {
    switch (statement.kind) {
      case StatementKind::text:
        write(out, statement.text);
        break;
      case StatementKind::output:
        write(out, text_of(workspace_, evaluate(*statement.value)));
        break;
      case StatementKind::assign:
        assign(statement);
        break;
      case StatementKind::attribute:
        set_attribute(statement);
        break;
      case StatementKind::conditional:
        for (const Branch& branch : statement.branches)
          if (evaluate(*branch.condition).truth()) return run(branch.body, out);
        return run(statement.otherwise, out);
      case StatementKind::loop:
        return loop(statement, out);
      case StatementKind::macro:
        bind(statement.text,
             Value(workspace_.callable({.macro = &statement, .scope = scope_, .name = statement.text})));
        break;
      case StatementKind::call:
        write(out, text_of(workspace_, call_block(statement)));
        break;
      case StatementKind::filter: {
        const Inside inside(*this, workspace_.scope(scope_));
        std::string body;
        const Flow flow = run(statement.body, body);
        write(out, text_of(workspace_, filtered(*statement.filter, workspace_.text(std::move(body)))));
        return flow;
      }
      case StatementKind::stop:
        return Flow::stop;
      case StatementKind::next:
        return Flow::next;
      case StatementKind::evaluate:
        evaluate(*statement.value);
        break;
      case StatementKind::generation: {
        write(out, options_.generation_begin);
        const Flow flow = run(statement.body, out);
        write(out, options_.generation_end);
        return flow;
      }
    }
    return Flow::ahead;
  }

  void bind(const std::string& name, Value value) {
    workspace_.take(sizeof(Value));
    scope_->names.insert_or_assign(name, std::move(value));
  }

  void bind_all(const std::vector<std::string>& names, const Value& value) {
    if (names.size() == 1) return bind(names[0], value);
    const List* list = value.list();
    if (!list || list->items.size() != names.size())
      workspace_.fail(fmt::format("expected a list of {} items to unpack, found {}", names.size(),
                                  list ? fmt::format("{} items", list->items.size()) : value.type()));
    for (std::size_t i = 0; i < names.size(); ++i) bind(names[i], list->items[i]);
  }

  Value assigned(const Statement& statement) {
    if (statement.value) return evaluate(*statement.value);
    std::string body;
    {
      const Inside inside(*this, workspace_.scope(scope_));
      run(statement.body, body);
    }
    Value text = workspace_.text(std::move(body));
    return statement.filter ? filtered(*statement.filter, text) : text;
  }

  void assign(const Statement& statement) { bind_all(statement.targets, assigned(statement)); }

  void set_attribute(const Statement& statement) {
    Value value = assigned(statement);
    const Value* target = scope_->find(statement.targets[0]);
    Dict* names = target ? target->dict() : nullptr;
    workspace_.line = statement.line;
    if (!names || !names->is_namespace)
      workspace_.fail(fmt::format("only attributes of a namespace can be set, and '{}' is {}",
                                  statement.targets[0], target ? target->type() : "undefined"));
    workspace_.take(sizeof(Value));
    names->set(statement.text, std::move(value));
  }

  Flow loop(const Statement& statement, std::string& out) {
    const Value source = evaluate(*statement.value);
    std::vector<Value> items = items_of(workspace_, source);
    Scope* scope = workspace_.scope(scope_);
    const Inside inside(*this, scope);
    if (statement.condition)
      std::erase_if(items, [&](const Value& item) {
        bind_all(statement.targets, item);
        return !evaluate(*statement.condition).truth();
      });
    scope->names.clear();
    if (items.empty()) return run(statement.otherwise, out);
    Loop* loop = workspace_.loop(std::move(items));
    for (loop->index = 0; loop->index < loop->items.size(); ++loop->index) {
      scope->names.clear();
      bind("loop", Value(loop));
      bind_all(statement.targets, loop->items[loop->index]);
      if (run(statement.body, out) == Flow::stop) break;
    }
    return Flow::ahead;
  }

  // --- calls ---

  Arguments arguments_of(const Expression& expression) {
    Arguments arguments;
    for (const Argument& argument : expression.arguments)
      if (argument.name.empty())
        arguments.positional.push_back(evaluate(*argument.value));
      else
        arguments.named.emplace_back(argument.name, evaluate(*argument.value));
    workspace_.line = expression.line;
    return arguments;
  }

  Value call_block(const Statement& statement) {
    Callable* body = workspace_.callable({.macro = &statement, .scope = scope_, .name = "caller"});
    const Value callee = evaluate(*statement.value->parts[0]);
    const Callable* const* macro = callee.as<Callable*>();
    if (!macro || !(*macro)->macro) workspace_.fail("{% call %} expects a macro");
    return run_macro(**macro, arguments_of(*statement.value), Value(body));
  }

  Value run_macro(const Callable& callable, const Arguments& given, const Value& caller) {
    const Statement& macro = *callable.macro;
    const Inside inside(*this, workspace_.scope(callable.scope));
    if (given.positional.size() > macro.parameters.size())
      workspace_.fail(fmt::format("'{}' takes {} arguments, found {}", callable.name, macro.parameters.size(),
                                  given.positional.size()));
    for (const auto& argument : given.named)
      if (std::ranges::find(macro.parameters, argument.first, &Argument::name) == macro.parameters.end())
        workspace_.fail(fmt::format("'{}' has no parameter '{}'", callable.name, argument.first));
    for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
      const Argument& parameter = macro.parameters[i];
      const Value* value = given.get(i, parameter.name);
      bind(parameter.name, value ? *value : parameter.value ? evaluate(*parameter.value) : Value());
    }
    if (!caller.is_undefined()) bind("caller", caller);
    std::string out;
    run(macro.body, out);
    return workspace_.text(std::move(out));
  }

  Value call(const Expression& expression) {
    const Expression& callee = *expression.parts[0];
    // A method comes before a member with its name, as in Python: {"items": 1}.items().
    if (callee.kind == ExpressionKind::attribute) {
      const Value self = evaluate(*callee.parts[0]);
      if (has_method(self, callee.text)) {
        const Arguments arguments = arguments_of(expression);
        return call_method(workspace_, callee.text, self, arguments);
      }
      return call(expression, attribute(self, callee.text), callee.text);
    }
    return call(expression, evaluate(callee), callee.text);
  }

  Value call(const Expression& expression, const Value& callee, std::string_view name) {
    const Callable* const* found = callee.as<Callable*>();
    workspace_.line = expression.line;
    if (!found) workspace_.fail(fmt::format("'{}' is {}, not a function", name, callee.type()));
    const Callable& callable = **found;
    const Arguments arguments = arguments_of(expression);
    if (callable.macro) return run_macro(callable, arguments, {});
    if (!callable.self.is_undefined())
      return call_method(workspace_, callable.name, callable.self, arguments);
    return call_function(callable.name, arguments);
  }

  Value call_function(std::string_view name, const Arguments& arguments) {
    if (name == "range") return range(arguments);
    if (name == "strftime_now") return workspace_.text(date(arguments));
    if (name == "namespace" || name == "dict") {
      Dict* made = workspace_.dict();
      made->is_namespace = name == "namespace";
      if (!arguments.positional.empty())
        if (const Dict* source = arguments.positional[0].dict())
          for (const auto& [key, value] : source->members) made->set(key, value);
      for (const auto& [key, value] : arguments.named) made->set(key, value);
      workspace_.take(made->members.size() * sizeof(Value));
      return Value(made);
    }
    const Value* message = arguments.get(0, "message");  // raise_exception
    fail(Field{"messages"}, "messages: the chat template rejects them: {}",
         message ? text_of(workspace_, *message) : "");
  }

  Value range(const Arguments& arguments) {
    std::array<std::int64_t, 3> bounds = {0, 0, 1};
    const std::size_t count = arguments.positional.size();
    for (std::size_t i = 0; i < count && i < 3; ++i) {
      const auto bound = arguments.positional[i].integer();
      if (!bound)
        workspace_.fail(fmt::format("range() expects integers, found {}", arguments.positional[i].type()));
      bounds[count == 1 ? 1 : i] = *bound;
    }
    if (count == 0 || count > 3 || bounds[2] == 0)
      workspace_.fail("range() expects a stop, and a step other than 0");
    std::vector<Value> items;
    for (std::int64_t i = bounds[0]; bounds[2] > 0 ? i < bounds[1] : i > bounds[1];) {
      workspace_.spend(1);
      items.push_back(Value(i));
      if (__builtin_add_overflow(i, bounds[2], &i)) break;
    }
    return workspace_.list(std::move(items));
  }

  std::string date(const Arguments& arguments) {
    const Value* given = arguments.get(0, "format");
    if (!given || !given->text() || given->text()->size() > 256)
      workspace_.fail("strftime_now() expects a format of at most 256 bytes");
    std::tm local = {};
    localtime_r(&workspace_.now, &local);
    std::array<char, 4096> buffer{};
    return {buffer.data(), std::strftime(buffer.data(), buffer.size(), given->text()->c_str(), &local)};
  }

  // --- expressions ---

  Value filtered(const Expression& filter, Value input) {
    if (!filter.parts.empty()) input = filtered(*filter.parts[0], std::move(input));
    const Arguments arguments = arguments_of(filter);
    return apply_filter(workspace_, filter.text, input, arguments);
  }

  Value evaluate(const Expression& expression) {
    const Workspace::Level level(workspace_);
    workspace_.spend(1);
    workspace_.line = expression.line;
    const auto& parts = expression.parts;
    switch (expression.kind) {
      case ExpressionKind::undefined:
        return {};
      case ExpressionKind::none:
        return Value(None{});
      case ExpressionKind::boolean:
        return Value(expression.integer != 0);
      case ExpressionKind::integer:
        return Value(expression.integer);
      case ExpressionKind::real:
        return Value(expression.real);
      case ExpressionKind::string:
        return workspace_.text(expression.text);
      case ExpressionKind::name: {
        const Value* found = scope_->find(expression.text);
        return found ? *found : Value();
      }
      case ExpressionKind::list: {
        std::vector<Value> items;
        for (const ExpressionPtr& part : parts) items.push_back(evaluate(*part));
        return workspace_.list(std::move(items));
      }
      case ExpressionKind::dict:
        return dict(expression);
      case ExpressionKind::attribute:
        return attribute(evaluate(*parts[0]), expression.text);
      case ExpressionKind::item:
        return item(expression);
      case ExpressionKind::slice:
        return slice(expression);
      case ExpressionKind::call:
        return call(expression);
      case ExpressionKind::filter: {
        const Value input = evaluate(*parts[0]);
        const Arguments arguments = arguments_of(expression);
        return apply_filter(workspace_, expression.text, input, arguments);
      }
      case ExpressionKind::test: {
        const Value input = evaluate(*parts[0]);
        const Arguments arguments = arguments_of(expression);
        return Value(apply_test(workspace_, expression.text, input, arguments));
      }
      case ExpressionKind::unary:
        return unary(expression);
      case ExpressionKind::binary:
        return binary(expression);
      case ExpressionKind::conditional:
        return evaluate(evaluate(*parts[1]).truth() ? *parts[0] : *parts[2]);
    }
    return {};
  }

  Value dict(const Expression& expression) {
    Dict* made = workspace_.dict();
    for (std::size_t i = 0; i + 1 < expression.parts.size(); i += 2) {
      const Value key = evaluate(*expression.parts[i]);
      const auto number = key.as<std::int64_t>();
      if (!key.text() && !number)
        workspace_.fail(fmt::format("a key of a dict must be a string or an integer, found {}", key.type()));
      made->integer_keys = made->integer_keys || number;
      const std::string name = number ? std::to_string(*number) : *key.text();
      workspace_.take(2 * name.size() + sizeof(Value));
      made->set(name, evaluate(*expression.parts[i + 1]));
    }
    return Value(made);
  }

  Value attribute(const Value& object, std::string_view name) {
    if (const Loop* const* loop = object.as<Loop*>()) return (*loop)->attribute(name);
    if (const Dict* dict = object.dict())
      if (const Value* found = dict->find(name)) return *found;
    if (name == "length" && (object.text() || object.list()))
      return apply_filter(workspace_, "length", object, {});
    if (has_method(object, name)) {
      // The callable outlives the tree's text, because both live as long as the rendering.
      return Value(workspace_.callable({.name = name, .self = object}));
    }
    return {};
  }

  Value item(const Expression& expression) {
    const Value object = evaluate(*expression.parts[0]), key = evaluate(*expression.parts[1]);
    workspace_.line = expression.line;
    if (const std::string* name = key.text()) {
      if (const Dict* dict = object.dict()) {
        const Value* found = dict->find(*name);
        return found ? *found : Value();
      }
      if (const Loop* const* loop = object.as<Loop*>()) return (*loop)->attribute(*name);
      return {};
    }
    const auto index = key.integer();
    if (const Dict* dict = object.mapping(); dict && dict->integer_keys && index) {
      const Value* found = dict->find(std::to_string(*index));
      return found ? *found : Value();
    }
    if (object.is_undefined() || object.is_none() || object.dict() || !index) {
      if (object.is_undefined() || index || key.is_undefined()) return {};
      workspace_.fail(fmt::format("{} cannot be an index of {}", key.type(), object.type()));
    }
    const auto at = [&](std::size_t size) {
      const std::int64_t place = *index < 0 ? *index + static_cast<std::int64_t>(size) : *index;
      return place < 0 ? size : std::min(static_cast<std::size_t>(place), size);
    };
    if (const List* list = object.list()) {
      const std::size_t place = at(list->items.size());
      return place < list->items.size() ? list->items[place] : Value();
    }
    if (const std::string* text = object.text()) {
      const std::vector<Value> characters = characters_of(workspace_, *text);
      const std::size_t place = at(characters.size());
      return place < characters.size() ? characters[place] : Value();
    }
    return {};
  }

  Value slice(const Expression& expression) {
    const Value object = evaluate(*expression.parts[0]);
    std::array<std::optional<std::int64_t>, 3> bounds;
    for (std::size_t i = 0; i < bounds.size(); ++i) {
      const Value bound = evaluate(*expression.parts[i + 1]);
      bounds[i] = bound.integer();
      if (!bounds[i] && !bound.is_undefined() && !bound.is_none())
        workspace_.fail(fmt::format("a bound of a slice must be an integer, found {}", bound.type()));
    }
    workspace_.line = expression.line;
    const std::string* text = object.text();
    if (!text && !object.list()) workspace_.fail(fmt::format("{} cannot be sliced", object.type()));
    const std::vector<Value> items = items_of(workspace_, object);
    const auto size = static_cast<std::int64_t>(items.size());
    const std::int64_t step = std::clamp<std::int64_t>(bounds[2].value_or(1), -size - 1, size + 1);
    if (step == 0) workspace_.fail("the step of a slice is 0");
    const std::int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
    const auto bound = [&](std::optional<std::int64_t> at, std::int64_t otherwise) {
      return at ? std::clamp(*at < 0 ? *at + size : *at, low, high) : otherwise;
    };
    const std::int64_t first = bound(bounds[0], step > 0 ? low : high),
                       last = bound(bounds[1], step > 0 ? high : low);
    std::vector<Value> kept;
    for (std::int64_t i = first; step > 0 ? i < last : i > last; i += step)
      kept.push_back(items[static_cast<std::size_t>(i)]);
    if (!text) return workspace_.list(std::move(kept));
    std::string out;
    for (const Value& character : kept) out += *character.text();
    return workspace_.text(std::move(out));
  }

  Value unary(const Expression& expression) {
    const Value value = evaluate(*expression.parts[0]);
    if (expression.text == "not") return Value(!value.truth());
    workspace_.line = expression.line;
    const int sign = expression.text == "-" ? -1 : 1;
    if (const auto whole = value.integer(); whole && *whole > INT64_MIN) return Value(sign * *whole);
    const auto real = value.number();
    if (!real) workspace_.fail(fmt::format("'{}' expects a number, found {}", expression.text, value.type()));
    return Value(sign * *real);
  }

  Value binary(const Expression& expression) {
    const std::string& sign = expression.text;
    const Value left = evaluate(*expression.parts[0]);
    if (sign == "and") return left.truth() ? evaluate(*expression.parts[1]) : left;
    if (sign == "or") return left.truth() ? left : evaluate(*expression.parts[1]);
    const Value right = evaluate(*expression.parts[1]);
    workspace_.line = expression.line;
    if (sign == "==") return Value(equal(workspace_, left, right));
    if (sign == "!=") return Value(!equal(workspace_, left, right));
    if (sign == "in") return Value(contains(workspace_, right, left));
    if (sign == "~") return workspace_.text(text_of(workspace_, left) + text_of(workspace_, right));
    if (sign == "<") return Value(compare(workspace_, left, right) < 0);
    if (sign == "<=") return Value(compare(workspace_, left, right) <= 0);
    if (sign == ">") return Value(compare(workspace_, left, right) > 0);
    if (sign == ">=") return Value(compare(workspace_, left, right) >= 0);
    if (sign == "+" && left.list() && right.list()) {
      std::vector<Value> items = items_of(workspace_, left);
      items.insert(items.end(), right.list()->items.begin(), right.list()->items.end());
      return workspace_.list(std::move(items));
    }
    if (sign == "+" && (left.text() || right.text()) && joins(left) && joins(right))
      return workspace_.text(text_of(workspace_, left) + text_of(workspace_, right));
    if (sign == "*" && left.text() && right.integer()) return repeated(*left.text(), *right.integer());
    if (sign == "%" && left.text()) {
      Arguments values;
      values.positional = right.list() ? right.list()->items : std::vector<Value>{right};
      return apply_filter(workspace_, "format", left, values);
    }
    return arithmetic(sign, left, right);
  }

  static bool joins(const Value& value) { return value.text() || value.number(); }

  Value repeated(const std::string& text, std::int64_t count) {
    std::string out;
    for (std::int64_t i = 0; i < count && !text.empty(); ++i) {
      write(out, text);
      workspace_.spend(1);
    }
    return workspace_.text(std::move(out));
  }

  Value arithmetic(const std::string& sign, const Value& left, const Value& right) {
    if (const auto a = left.integer(), b = right.integer(); a && b)
      if (const auto whole = whole_result(sign, *a, *b)) return Value(*whole);
    const auto a = left.number(), b = right.number();
    if (!a || !b)
      workspace_.fail(fmt::format("'{}' is not defined for {} and {}", sign, left.type(), right.type()));
    if (sign == "+") return Value(*a + *b);
    if (sign == "-") return Value(*a - *b);
    if (sign == "*") return Value(*a * *b);
    if (sign == "**") return Value(std::pow(*a, *b));
    if (*b == 0) workspace_.fail("division by zero");
    if (sign == "/") return Value(*a / *b);
    const double floor = std::floor(*a / *b);
    return Value(sign == "//" ? floor : *a - floor * *b);
  }

  // nullopt if the result is not an integer of 64 bits. Division rounds down, as in Python.
  std::optional<std::int64_t> whole_result(const std::string& sign, std::int64_t a, std::int64_t b) {
    std::int64_t out = 0;
    if (sign == "+") return __builtin_add_overflow(a, b, &out) ? std::nullopt : std::optional(out);
    if (sign == "-") return __builtin_sub_overflow(a, b, &out) ? std::nullopt : std::optional(out);
    if (sign == "*") return __builtin_mul_overflow(a, b, &out) ? std::nullopt : std::optional(out);
    if (sign == "**") {
      const double power = std::pow(static_cast<double>(a), static_cast<double>(b));
      if (b < 0 || !(std::abs(power) < 9e15)) return std::nullopt;
      return static_cast<std::int64_t>(power);
    }
    if (b == 0 || sign == "/") return std::nullopt;
    if (b == -1) return sign == "%" ? std::optional<std::int64_t>(0) : whole_result("-", 0, a);
    const std::int64_t quotient = a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
    return sign == "//" ? quotient : a - quotient * b;
  }

  Workspace& workspace_;
  Scope* scope_;
  const JinjaOptions& options_;
};

bool contains_generation(const Block& block) {
  return std::ranges::any_of(block, [](const Statement& statement) {
    return statement.kind == StatementKind::generation || contains_generation(statement.body) ||
           contains_generation(statement.otherwise) ||
           std::ranges::any_of(statement.branches,
                               [](const Branch& branch) { return contains_generation(branch.body); });
  });
}

}  // namespace

}  // namespace jinja

JinjaTemplate::JinjaTemplate(std::string_view source)
    : body_(std::make_shared<const jinja::Block>(jinja::parse(source))),
      has_generation_(jinja::contains_generation(*body_)) {}

std::string JinjaTemplate::render(const Json& variables, const JinjaOptions& options) const {
  jinja::Workspace workspace({.steps = options.steps, .bytes = options.bytes});
  workspace.now = options.now.value_or(std::time(nullptr));
  jinja::Scope* functions = workspace.scope(nullptr);
  for (const std::string_view name : {"range", "namespace", "dict", "raise_exception", "strftime_now"})
    functions->names.emplace(name, jinja::Value(workspace.callable({.name = name})));
  jinja::Scope* global = workspace.scope(functions);
  for (const auto& [name, value] : variables.as_object())
    global->names.emplace(name, workspace.from_json(value));
  std::string out;
  jinja::Evaluator(workspace, global, options).run(*body_, out);
  return out;
}

}  // namespace thimble
