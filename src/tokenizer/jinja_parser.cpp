#include "tokenizer/jinja_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/text.h"
#include "base/utf8.h"

namespace thimble::jinja {

void fail_at(int line, std::string_view what) {
  fail(Field{"chat_template"}, "chat_template line {}: {}", line, what);
}

namespace {

enum class TokenKind { text, open_output, open_statement, close, name, integer, real, string, symbol, end };

struct Token {
  TokenKind kind;
  int line;
  std::string text;
};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_name_character(char c) {
  return is_ascii_alnum(c) || c == '_';
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {
    if (source_.ends_with('\n')) source_.remove_suffix(1);
    if (source_.ends_with('\r')) source_.remove_suffix(1);
  }

  std::vector<Token> tokens() {
    while (at_ < source_.size()) {
      const std::size_t open = next_tag();
      text_until(open);
      if (open == source_.size()) break;
      move_to(open);
      const char kind = source_[at_ + 1];
      move_to(at_ + 2 + (at_ + 2 < source_.size() && (source_[at_ + 2] == '-' || source_[at_ + 2] == '+')));
      if (kind == '#')
        comment();
      else
        tag(kind == '{');
    }
    tokens_.push_back({TokenKind::end, line_, "the end of the template"});
    return std::move(tokens_);
  }

 private:
  void move_to(std::size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  std::size_t next_tag() const {
    for (std::size_t i = source_.find('{', at_); i < source_.size(); i = source_.find('{', i + 1))
      if (i + 1 < source_.size() && (source_[i + 1] == '%' || source_[i + 1] == '{' || source_[i + 1] == '#'))
        return i;
    return source_.size();
  }

  // The text before a tag at `open`, without what "{%-" and lstrip_blocks remove.
  void text_until(std::size_t open) {
    std::string_view text = source_.substr(at_, open - at_);
    const bool starts_line = at_ == 0 || source_[at_ - 1] == '\n';
    if (open + 2 < source_.size() && source_[open + 2] == '-') {
      text = trim_right(text);
    } else if (open < source_.size() && source_[open + 1] != '{' &&
               !(open + 2 < source_.size() && source_[open + 2] == '+')) {
      const std::size_t kept = text.find_last_not_of(" \t") + 1;  // npos + 1 is 0
      if (kept == 0 ? starts_line : text[kept - 1] == '\n') text = text.substr(0, kept);
    }
    if (!text.empty()) tokens_.push_back({TokenKind::text, line_, std::string(text)});
  }

  // After the closing mark of a tag: "-" removes all blanks, trim_blocks removes one newline.
  void after_tag(char before_mark, bool trims_newline) {
    std::size_t to = at_;
    if (before_mark == '-') {
      to = std::min(source_.find_first_not_of(kBlanks, at_), source_.size());
    } else if (trims_newline && before_mark != '+') {
      if (source_.substr(at_, 2) == "\r\n")
        to += 2;
      else if (source_.substr(at_, 1) == "\n")
        ++to;
    }
    move_to(to);
  }

  void comment() {
    const std::size_t close = source_.find("#}", at_);
    if (close == source_.npos) fail_at(line_, "a comment {# has no end #}");
    const char before = close > at_ ? source_[close - 1] : ' ';
    move_to(close + 2);
    after_tag(before, true);
  }

  void tag(bool output) {
    const int line = line_;
    const std::size_t first = tokens_.size();
    tokens_.push_back(
        {output ? TokenKind::open_output : TokenKind::open_statement, line_, output ? "{{" : "{%"});
    const std::string_view mark = output ? "}}" : "%}";
    int nesting = 0;
    while (true) {
      move_to(std::min(source_.find_first_not_of(kBlanks, at_), source_.size()));
      if (at_ == source_.size())
        fail_at(line, fmt::format("a tag {} has no end {}", output ? "{{" : "{%", mark));
      const char c = source_[at_];
      const bool sign = c == '-' || c == '+';
      if (nesting == 0 && source_.substr(at_ + (sign ? 1 : 0), 2) == mark) {
        tokens_.push_back({TokenKind::close, line_, std::string(mark)});
        move_to(at_ + (sign ? 3 : 2));
        const bool raw = tokens_.size() - first == 3 && tokens_[first + 1].text == "raw" && !output;
        if (raw) tokens_.resize(first, Token{TokenKind::end, 0, ""});
        after_tag(sign ? c : ' ', !output);
        if (raw) raw_text(line);
        return;
      }
      if (c == '(' || c == '[' || c == '{') ++nesting;
      if (c == ')' || c == ']' || c == '}') nesting = std::max(0, nesting - 1);
      expression_token(c);
    }
  }

  void raw_text(int line) {
    for (std::size_t open = source_.find("{%", at_); open != source_.npos;
         open = source_.find("{%", open + 2)) {
      std::size_t i = open + 2;
      if (i < source_.size() && source_[i] == '-') ++i;
      i = std::min(source_.find_first_not_of(kBlanks, i), source_.size());
      if (!source_.substr(i).starts_with("endraw")) continue;
      i = std::min(source_.find_first_not_of(kBlanks, i + 6), source_.size());
      const bool sign = i < source_.size() && source_[i] == '-';
      if (source_.substr(i + (sign ? 1 : 0), 2) != "%}") continue;
      text_until(open);
      move_to(i + (sign ? 3 : 2));
      after_tag(sign ? '-' : ' ', true);
      return;
    }
    fail_at(line, "{% raw %} has no {% endraw %}");
  }

  void expression_token(char c) {
    if (is_digit(c)) return number();
    if (is_name_character(c)) {
      std::size_t to = at_;
      while (to < source_.size() && is_name_character(source_[to])) ++to;
      return push(TokenKind::name, to);
    }
    if (c == '\'' || c == '"') return string(c);
    constexpr std::array<std::string_view, 6> kPairs = {"**", "//", "==", "!=", "<=", ">="};
    const std::string_view two = source_.substr(at_, 2);
    if (std::ranges::find(kPairs, two) != kPairs.end()) return push(TokenKind::symbol, at_ + 2);
    constexpr std::string_view kSymbols = "()[]{},.:|<>+-~*/%=";
    if (kSymbols.find(c) == kSymbols.npos)
      fail_at(line_,
              fmt::format("unexpected character '{}'", c >= ' ' && c < 127 ? std::string(1, c) : "\\x.."));
    push(TokenKind::symbol, at_ + 1);
  }

  void push(TokenKind kind, std::size_t to) {
    tokens_.push_back({kind, line_, std::string(source_.substr(at_, to - at_))});
    move_to(to);
  }

  void number() {
    std::size_t to = at_;
    const auto digits = [&] {
      while (to < source_.size() && is_digit(source_[to])) ++to;
    };
    digits();
    bool real = false;
    const bool index = !tokens_.empty() && tokens_.back().text == ".";  // items.0.name
    if (!index && to + 1 < source_.size() && source_[to] == '.' && is_digit(source_[to + 1])) {
      real = true;
      ++to;
      digits();
    }
    push(real ? TokenKind::real : TokenKind::integer, to);
  }

  void string(char quote) {
    const int line = line_;
    std::string text;
    std::size_t i = at_ + 1;
    while (i < source_.size() && source_[i] != quote) {
      if (source_[i] != '\\') {
        text += source_[i++];
        continue;
      }
      if (++i == source_.size()) break;
      i = escape(i, text);
    }
    if (i >= source_.size()) fail_at(line, "a string has no closing quote");
    tokens_.push_back({TokenKind::string, line, std::move(text)});
    move_to(i + 1);
  }

  // Appends the character of the escape sequence whose letter is at `i`. Returns the next place.
  std::size_t escape(std::size_t i, std::string& text) const {
    constexpr std::string_view kLetters = "ntrbfva\\'\"", kCodes = "\n\t\r\b\f\v\a\\'\"";
    const char c = source_[i];
    if (const std::size_t known = kLetters.find(c); known != kLetters.npos) {
      text += kCodes[known];
      return i + 1;
    }
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0 && i + digits < source_.size()) {
      std::uint32_t code = 0;
      const char* begin = source_.data() + i + 1;
      const auto [end, error] = std::from_chars(begin, begin + digits, code, 16);
      const bool surrogate = code >= 0xD800 && code < 0xE000;
      if (error == std::errc{} && end == begin + digits && code < 0x110000 && !surrogate) {
        append_utf8(text, code);
        return i + 1 + digits;
      }
    }
    text += '\\';  // as in Python, an unknown sequence stands for itself
    return i;
  }

  std::string_view source_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Block parse() {
    Block block = body({});
    if (peek().kind != TokenKind::end) unexpected("text or a tag");
    return block;
  }

 private:
  // Counts nested constructs, which the parser handles by recursion.
  struct Level {
    explicit Level(Parser& parser) : count(parser.nesting_) {
      if (++count > kMaxNesting) fail_at(parser.peek().line, "constructs are nested too deeply");
    }
    ~Level() { --count; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    int& count;
  };
  static constexpr int kMaxNesting = 100;

  const Token& peek(std::size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  Token take() { return at_ + 1 < tokens_.size() ? std::move(tokens_[at_++]) : tokens_.back(); }

  bool at_symbol(std::string_view text) const {
    return peek().kind == TokenKind::symbol && peek().text == text;
  }
  bool at_name(std::string_view text) const { return peek().kind == TokenKind::name && peek().text == text; }
  bool accept_symbol(std::string_view text) { return at_symbol(text) && (take(), true); }
  bool accept_name(std::string_view text) { return at_name(text) && (take(), true); }

  [[noreturn]] void unexpected(std::string_view expected) const {
    fail_at(peek().line, fmt::format("expected {}, found '{}'", expected, peek().text));
  }
  void expect_symbol(std::string_view text) {
    if (!accept_symbol(text)) unexpected(fmt::format("'{}'", text));
  }
  std::string expect_name() {
    if (peek().kind != TokenKind::name) unexpected("a name");
    return take().text;
  }
  void close() {
    if (peek().kind != TokenKind::close) unexpected("the end of the tag");
    take();
  }

  ExpressionPtr make(ExpressionKind kind, int line, std::string text = {}) const {
    auto node = std::make_unique<Expression>();
    node->kind = kind;
    node->line = line;
    node->text = std::move(text);
    return node;
  }

  template <class... Parts>
  ExpressionPtr join(ExpressionKind kind, int line, std::string text, Parts... parts) const {
    ExpressionPtr node = make(kind, line, std::move(text));
    (add_part(*node, std::move(parts)), ...);
    return node;
  }

  static void raise_height(Expression& node, const Expression& below) {
    node.height = std::max(node.height, below.height + 1);
    if (node.height > kMaxHeight) fail_at(node.line, "an expression is too long");
  }

  static void add_part(Expression& node, ExpressionPtr part) {
    raise_height(node, *part);
    node.parts.push_back(std::move(part));
  }

  // --- statements ---

  // Parses until one of the statements in `ends`, whose name is then the next token but one.
  Block body(std::span<const std::string_view> ends) {
    const Level level(*this);
    Block block;
    while (peek().kind != TokenKind::end) {
      const int line = peek().line;
      if (peek().kind == TokenKind::text) {
        block.push_back({.kind = StatementKind::text, .line = line, .text = take().text});
      } else if (peek().kind == TokenKind::open_output) {
        take();
        block.push_back({.kind = StatementKind::output, .line = line, .value = tuple(true)});
        close();
      } else {
        const Token& name = peek(1);
        if (name.kind == TokenKind::name && std::ranges::find(ends, name.text) != ends.end()) return block;
        take();
        block.push_back(statement(line));
      }
    }
    return block;
  }

  Block body_until(std::string_view end, int line, std::string_view construct) {
    const std::array<std::string_view, 1> ends = {end};
    Block block = body(ends);
    finish(end, line, construct);
    return block;
  }

  void finish(std::string_view end, int line, std::string_view construct) {
    if (peek().kind == TokenKind::end)
      fail_at(line, fmt::format("{{% {} %}} has no {{% {} %}}", construct, end));
    take();
    take();
    if (end == "endmacro" && peek().kind == TokenKind::name) take();  // {% endmacro name %}
    close();
  }

  // The body of {% else %}, or nothing if the next tag is `end`.
  Block else_body(std::string_view end) {
    if (peek().kind == TokenKind::end || peek(1).text != "else") return {};
    take();
    take();
    close();
    const std::array<std::string_view, 1> ends = {end};
    return body(ends);
  }

  Statement statement(int line) {
    if (peek().kind != TokenKind::name) unexpected("the name of a statement");
    const std::string name = take().text;
    if (name == "set") return assignment(line);
    if (name == "if") return conditional(line);
    if (name == "for") return loop(line);
    if (name == "macro") return macro(line);
    if (name == "call") return call(line);
    if (name == "filter") {
      Statement out{.kind = StatementKind::filter, .line = line};
      out.filter = filter_chain(nullptr);
      close();
      out.body = body_until("endfilter", line, name);
      return out;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) fail_at(line, fmt::format("{{% {} %}} is outside of a loop", name));
      close();
      return {.kind = name == "break" ? StatementKind::stop : StatementKind::next, .line = line};
    }
    if (name == "do") {
      Statement out{.kind = StatementKind::evaluate, .line = line, .value = expression()};
      close();
      return out;
    }
    if (name == "generation") {
      close();
      return {
          .kind = StatementKind::generation, .line = line, .body = body_until("endgeneration", line, name)};
    }
    if (name.starts_with("end") || name == "else" || name == "elif")
      fail_at(line, fmt::format("{{% {} %}} has no beginning", name));
    fail_at(line, fmt::format("the statement '{}' is not supported", name));
  }

  std::vector<std::string> targets() {
    const bool parentheses = accept_symbol("(");
    std::vector<std::string> names = {expect_name()};
    while (accept_symbol(","))
      if (peek().kind == TokenKind::name && !at_name("in")) names.push_back(take().text);
    if (parentheses) expect_symbol(")");
    return names;
  }

  Statement assignment(int line) {
    Statement out{.kind = StatementKind::assign, .line = line, .targets = targets()};
    if (accept_symbol(".")) {
      out.kind = StatementKind::attribute;
      out.text = expect_name();
    }
    if (accept_symbol("=")) {
      out.value = tuple(true);
      close();
      return out;
    }
    if (out.targets.size() > 1) unexpected("'='");
    if (at_symbol("|")) out.filter = filter_chain(nullptr);
    close();
    out.body = body_until("endset", line, "set");
    return out;
  }

  Statement conditional(int line) {
    constexpr std::array<std::string_view, 3> kEnds = {"elif", "else", "endif"};
    Statement out{.kind = StatementKind::conditional, .line = line};
    while (true) {
      ExpressionPtr condition = tuple(true);
      close();
      out.branches.push_back({std::move(condition), body(kEnds)});
      if (peek(1).text != "elif" || peek().kind == TokenKind::end) break;
      take();
      take();
    }
    out.otherwise = else_body(kEnds.back());
    finish("endif", line, "if");
    return out;
  }

  Statement loop(int line) {
    constexpr std::array<std::string_view, 2> kEnds = {"else", "endfor"};
    Statement out{.kind = StatementKind::loop, .line = line, .targets = targets()};
    if (!accept_name("in")) unexpected("'in'");
    out.value = tuple(false);
    if (accept_name("if")) out.condition = expression();
    if (at_name("recursive")) fail_at(line, "recursive loops are not supported");
    close();
    ++loops_;
    out.body = body(kEnds);
    --loops_;
    out.otherwise = else_body(kEnds.back());
    finish("endfor", line, "for");
    return out;
  }

  std::vector<Argument> parameters() {
    std::vector<Argument> out;
    expect_symbol("(");
    while (!accept_symbol(")")) {
      Argument parameter{expect_name(), nullptr};
      if (accept_symbol("=")) parameter.value = expression();
      out.push_back(std::move(parameter));
      if (!at_symbol(")")) expect_symbol(",");
    }
    return out;
  }

  // The body of a macro or call block, where {% break %} cannot end a loop around it.
  Block own_body(std::string_view end, int line, std::string_view construct) {
    const int loops = std::exchange(loops_, 0);
    Block block = body_until(end, line, construct);
    loops_ = loops;
    return block;
  }

  Statement macro(int line) {
    Statement out{.kind = StatementKind::macro, .line = line, .text = expect_name()};
    out.parameters = parameters();
    close();
    out.body = own_body("endmacro", line, "macro");
    return out;
  }

  Statement call(int line) {
    Statement out{.kind = StatementKind::call, .line = line};
    if (at_symbol("(")) out.parameters = parameters();
    out.value = expression();
    if (out.value->kind != ExpressionKind::call) fail_at(line, "{% call %} expects a call of a macro");
    close();
    out.body = own_body("endcall", line, "call");
    return out;
  }

  // --- expressions, from the weakest to the strongest operator ---

  ExpressionPtr tuple(bool conditions) {
    const int line = peek().line;
    ExpressionPtr first = conditions ? expression() : disjunction();
    if (!at_symbol(",")) return first;
    ExpressionPtr list = join(ExpressionKind::list, line, {}, std::move(first));
    while (accept_symbol(",") && peek().kind != TokenKind::close && !at_symbol(")"))
      add_part(*list, conditions ? expression() : disjunction());
    return list;
  }

  ExpressionPtr expression() {
    const Level level(*this);
    ExpressionPtr value = disjunction();
    while (at_name("if")) {
      const int line = take().line;
      ExpressionPtr condition = disjunction();
      ExpressionPtr otherwise = accept_name("else") ? expression() : make(ExpressionKind::undefined, line);
      value = join(ExpressionKind::conditional, line, {}, std::move(value), std::move(condition),
                   std::move(otherwise));
    }
    return value;
  }

  ExpressionPtr disjunction() {
    ExpressionPtr left = conjunction();
    while (at_name("or")) left = operation(std::move(left), &Parser::conjunction);
    return left;
  }

  ExpressionPtr conjunction() {
    ExpressionPtr left = negation();
    while (at_name("and")) left = operation(std::move(left), &Parser::negation);
    return left;
  }

  ExpressionPtr operation(ExpressionPtr left, ExpressionPtr (Parser::*right)()) {
    Token sign = take();
    return join(ExpressionKind::binary, sign.line, std::move(sign.text), std::move(left), (this->*right)());
  }

  ExpressionPtr negation() {
    const Level level(*this);
    if (!at_name("not")) return comparison();
    const int line = take().line;
    return join(ExpressionKind::unary, line, "not", negation());
  }

  ExpressionPtr comparison() {
    constexpr std::array<std::string_view, 6> kSigns = {"==", "!=", "<", "<=", ">", ">="};
    ExpressionPtr left = sum();
    while (true) {
      if (peek().kind == TokenKind::symbol && std::ranges::find(kSigns, peek().text) != kSigns.end()) {
        left = operation(std::move(left), &Parser::sum);
      } else if (at_name("in")) {
        left = operation(std::move(left), &Parser::sum);
      } else if (at_name("not") && peek(1).kind == TokenKind::name && peek(1).text == "in") {
        take();
        ExpressionPtr inside = operation(std::move(left), &Parser::sum);
        const int line = inside->line;
        left = join(ExpressionKind::unary, line, "not", std::move(inside));
      } else {
        return left;
      }
    }
  }

  ExpressionPtr sum() {
    ExpressionPtr left = concatenation();
    while (at_symbol("+") || at_symbol("-")) left = operation(std::move(left), &Parser::concatenation);
    return left;
  }

  ExpressionPtr concatenation() {
    ExpressionPtr left = product();
    while (at_symbol("~")) left = operation(std::move(left), &Parser::product);
    return left;
  }

  ExpressionPtr product() {
    ExpressionPtr left = power();
    while (at_symbol("*") || at_symbol("/") || at_symbol("//") || at_symbol("%"))
      left = operation(std::move(left), &Parser::power);
    return left;
  }

  ExpressionPtr power() {
    ExpressionPtr left = signed_value();
    while (at_symbol("**")) left = operation(std::move(left), &Parser::signed_value);
    return left;
  }

  ExpressionPtr signed_value() { return filters(unfiltered()); }

  ExpressionPtr unfiltered() {
    const Level level(*this);
    if (!at_symbol("-") && !at_symbol("+")) return postfix(primary());
    Token sign = take();
    return join(ExpressionKind::unary, sign.line, std::move(sign.text), unfiltered());
  }

  ExpressionPtr literal(ExpressionKind kind, std::int64_t integer = 0) {
    ExpressionPtr node = make(kind, take().line);
    node->integer = integer;
    return node;
  }

  ExpressionPtr primary() {
    const Token& token = peek();
    switch (token.kind) {
      case TokenKind::name:
        if (token.text == "true" || token.text == "True") return literal(ExpressionKind::boolean, 1);
        if (token.text == "false" || token.text == "False") return literal(ExpressionKind::boolean, 0);
        if (token.text == "none" || token.text == "None") return literal(ExpressionKind::none);
        return make(ExpressionKind::name, token.line, take().text);
      case TokenKind::integer: {
        const auto value = parse_number<std::int64_t>(token.text);
        if (!value) fail_at(token.line, "an integer is too large");
        return literal(ExpressionKind::integer, *value);
      }
      case TokenKind::real: {
        const auto value = parse_number<double>(token.text);
        if (!value) fail_at(token.line, "a number is too large");
        ExpressionPtr node = literal(ExpressionKind::real);
        node->real = *value;
        return node;
      }
      case TokenKind::string: {
        ExpressionPtr node = make(ExpressionKind::string, token.line, take().text);
        while (peek().kind == TokenKind::string) node->text += take().text;
        return node;
      }
      default:
        break;
    }
    if (at_symbol("(")) return parenthesis();
    if (at_symbol("[")) return list();
    if (at_symbol("{")) return dict();
    unexpected("an expression");
  }

  ExpressionPtr parenthesis() {
    const int line = take().line;
    if (accept_symbol(")")) return make(ExpressionKind::list, line);
    ExpressionPtr inside = tuple(true);
    expect_symbol(")");
    return inside;
  }

  ExpressionPtr list() {
    ExpressionPtr node = make(ExpressionKind::list, take().line);
    while (!accept_symbol("]")) {
      add_part(*node, expression());
      if (!at_symbol("]")) expect_symbol(",");
    }
    return node;
  }

  ExpressionPtr dict() {
    ExpressionPtr node = make(ExpressionKind::dict, take().line);
    while (!accept_symbol("}")) {
      add_part(*node, expression());
      expect_symbol(":");
      add_part(*node, expression());
      if (!at_symbol("}")) expect_symbol(",");
    }
    return node;
  }

  ExpressionPtr postfix(ExpressionPtr value) {
    while (true) {
      const int line = peek().line;
      if (at_symbol("(")) {
        ExpressionPtr node = join(ExpressionKind::call, line, {}, std::move(value));
        arguments(*node);
        value = std::move(node);
      } else if (accept_symbol(".")) {
        if (peek().kind == TokenKind::integer) {
          value = join(ExpressionKind::item, line, {}, std::move(value), primary());
        } else {
          value = join(ExpressionKind::attribute, line, expect_name(), std::move(value));
        }
      } else if (accept_symbol("[")) {
        value = subscript(std::move(value), line);
      } else {
        return value;
      }
    }
  }

  ExpressionPtr subscript(ExpressionPtr value, int line) {
    std::array<ExpressionPtr, 3> bounds;
    std::size_t count = 0;
    bool slice = false;
    while (!accept_symbol("]")) {
      if (accept_symbol(":")) {
        slice = true;
        if (++count == bounds.size()) unexpected("']'");
      } else if (!bounds[count]) {
        bounds[count] = expression();
      } else {
        unexpected("']'");
      }
    }
    if (!slice && !bounds[0]) fail_at(line, "an index [] is empty");
    if (!slice) return join(ExpressionKind::item, line, {}, std::move(value), std::move(bounds[0]));
    for (ExpressionPtr& bound : bounds)
      if (!bound) bound = make(ExpressionKind::undefined, line);
    return join(ExpressionKind::slice, line, {}, std::move(value), std::move(bounds[0]), std::move(bounds[1]),
                std::move(bounds[2]));
  }

  void arguments(Expression& node) {
    expect_symbol("(");
    while (!accept_symbol(")")) {
      if (at_symbol("*") || at_symbol("**"))
        fail_at(peek().line, "unpacking arguments with * is not supported");
      Argument argument;
      if (peek().kind == TokenKind::name && peek(1).kind == TokenKind::symbol && peek(1).text == "=") {
        argument.name = take().text;
        take();
      }
      argument.value = expression();
      raise_height(node, *argument.value);
      node.arguments.push_back(std::move(argument));
      if (!at_symbol(")")) expect_symbol(",");
    }
  }

  ExpressionPtr filters(ExpressionPtr value) {
    while (true) {
      if (at_symbol("|")) {
        value = filter_chain(std::move(value));
      } else if (at_name("is")) {
        value = test(std::move(value));
      } else if (at_symbol("(")) {
        value = postfix(std::move(value));
      } else {
        return value;
      }
    }
  }

  // A null `value` is the body of a block: the first filter then has no parts.
  ExpressionPtr filter_chain(ExpressionPtr value) {
    bool first = value == nullptr && !at_symbol("|");
    while (first || accept_symbol("|")) {
      first = false;
      ExpressionPtr node = make(ExpressionKind::filter, peek().line, expect_name());
      if (value) add_part(*node, std::move(value));
      if (at_symbol("(")) arguments(*node);
      value = std::move(node);
    }
    return value;
  }

  bool begins_test_argument() const {
    constexpr std::array<std::string_view, 7> kOperators = {"else", "or", "and", "if", "not", "in", "is"};
    switch (peek().kind) {
      case TokenKind::name:
        return std::ranges::find(kOperators, peek().text) == kOperators.end();
      case TokenKind::integer:
      case TokenKind::real:
      case TokenKind::string:
        return true;
      default:
        return at_symbol("[") || at_symbol("{");
    }
  }

  ExpressionPtr test(ExpressionPtr value) {
    const int line = take().line;
    const bool negated = accept_name("not");
    std::string name = at_symbol("==") || at_symbol("!=") ? take().text : expect_name();
    ExpressionPtr node = join(ExpressionKind::test, line, std::move(name), std::move(value));
    if (at_symbol("(")) {
      arguments(*node);
    } else if (begins_test_argument()) {
      Argument argument{{}, postfix(primary())};
      raise_height(*node, *argument.value);
      node->arguments.push_back(std::move(argument));
    }
    return negated ? join(ExpressionKind::unary, line, "not", std::move(node)) : std::move(node);
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0, loops_ = 0;
};

}  // namespace

Block parse(std::string_view source) {
  return Parser(Lexer(source).tokens()).parse();
}

}  // namespace thimble::jinja
