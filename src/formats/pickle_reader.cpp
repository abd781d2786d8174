#include "formats/pickle_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/error.h"
#include "base/joined.h"
#include "formats/little_endian.h"

namespace thimble {

using Kind = PickleValue::Kind;

constexpr std::size_t kMostValues = 1 << 20;  // a model has a few dozen for each of its tensors

// The stack machine that builds the tree.
class PickleMachine {
 public:
  PickleMachine(Pickle& out, std::span<const std::byte> bytes, std::span<const std::string_view> known)
      : out_(out), reader_(bytes, out.name_), known_(known) {}

  void run() {
    while (!stopped_) step(reader_.number<std::uint8_t>());
    check(reader_.left() == 0, "{}: {} bytes follow the end of the pickle", out_.name_, reader_.left());
    check(stack_.size() == 1 && marks_.empty(), "{}: the pickle ends with {} values", out_.name_,
          stack_.size());
    out_.root_ = stack_.front();
  }

 private:
  void push(PickleValue value) {
    check(out_.values_.size() < kMostValues, "{} is refused: its pickle has more than {} values", out_.name_,
          kMostValues);
    out_.values_.push_back(std::move(value));
    stack_.push_back(out_.values_.size() - 1);
  }
  void push_integer(std::int64_t value) { push({.kind = Kind::integer, .integer = value}); }
  void push_text(std::uint64_t size) { push({.kind = Kind::text, .text = reader_.text(size)}); }
  void push_bytes(std::uint64_t size) { push({.kind = Kind::bytes, .bytes = reader_.take(size)}); }

  std::size_t pop() {
    check(stack_.size() > (marks_.empty() ? 0 : marks_.back()), "{}: the pickle takes from an empty stack",
          out_.name_);
    const std::size_t value = stack_.back();
    stack_.pop_back();
    return value;
  }
  std::vector<std::size_t> pop_to_mark() {
    check(!marks_.empty(), "{}: the pickle has no mark here", out_.name_);
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<std::size_t> items(begin, stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  PickleValue& top(Kind kind) {
    check(!stack_.empty() && stack_.size() > (marks_.empty() ? 0 : marks_.back()),
          "{}: the pickle takes from an empty stack", out_.name_);
    PickleValue& value = out_.values_[stack_.back()];
    check(value.kind == kind, "{}: expected a {} in the pickle, found a {}", out_.name_, name_of(kind),
          name_of(value.kind));
    return value;
  }

  void push_tuple(std::size_t size) {
    std::vector<std::size_t> items(size);
    for (std::size_t i = size; i-- > 0;) items[i] = pop();
    push({.kind = Kind::tuple, .items = std::move(items)});
  }

  void set_items(const std::vector<std::size_t>& items) {
    check(items.size() % 2 == 0, "{}: a dict of {} keys and values", out_.name_, items.size());
    PickleValue& dict = top(Kind::dict);
    dict.items.insert(dict.items.end(), items.begin(), items.end());
  }

  void push_global(std::string_view module, std::string_view name) {
    const std::string global = fmt::format("{}.{}", module.substr(0, 100), name.substr(0, 100));
    if (std::ranges::find(known_, global) == known_.end())
      fail(Hint{"a file of weights has no need of it: do not open it with Python's pickle either unless you "
                "trust it"},
           "{} is refused: its pickle asks for {}, which is not one of {}", out_.name_, global,
           joined(known_, ", "));
    push({.kind = Kind::global, .global = global});
  }

  std::string_view line() {
    std::string_view text;
    const std::size_t begin = reader_.at();
    auto rest = reader_;
    while (rest.number<char>() != '\n') {
    }
    text = reader_.text(rest.at() - begin);
    text.remove_suffix(1);
    return text;
  }

  void reduce() {
    const std::size_t arguments = pop(), global = pop();
    out_.expect(global, Kind::global, "what is called");
    out_.expect(arguments, Kind::tuple, "its arguments");
    push({.kind = Kind::call, .items = {global, arguments}});
  }

  void build() {
    const std::size_t state = pop();
    PickleValue& object = top(Kind::call);
    check(object.items.size() == 2, "{}: an object of the pickle is given two states", out_.name_);
    object.items.push_back(state);
  }

  void put(std::uint32_t place) {
    check(!stack_.empty(), "{}: the pickle remembers nothing", out_.name_);
    memo_[place] = stack_.back();
  }
  void get(std::uint32_t place) {
    const auto found = memo_.find(place);
    check(found != memo_.end(), "{}: the pickle asks for {}, which it never put", out_.name_, place);
    stack_.push_back(found->second);
  }

  // Two's complement of any length; what does not fit 64 bits is refused.
  void long1() {
    const auto bytes = reader_.take(reader_.number<std::uint8_t>());
    check(bytes.size() <= 8, "{}: an integer of {} bytes", out_.name_, bytes.size());
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i)
      value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
    if (!bytes.empty() && bytes.size() < 8 && std::to_integer<int>(bytes.back()) >= 0x80)
      value |= ~std::uint64_t{0} << (8 * bytes.size());
    push_integer(static_cast<std::int64_t>(value));
  }

  void step(std::uint8_t instruction) {
    if (!frame(instruction) && !plain(instruction) && !composed(instruction) && !remembered(instruction))
      fail("{} is refused: instruction 0x{:02x} at {} of its pickle has no place in a file of arrays",
           out_.name_, instruction, reader_.at() - 1);
  }

  bool frame(std::uint8_t instruction) {
    switch (instruction) {
      case 0x80: {
        const auto protocol = reader_.number<std::uint8_t>();
        check(protocol >= 2 && protocol <= 5, "{}: pickle protocol {}, expected 2 to 5", out_.name_,
              protocol);
        return true;
      }
      case 0x95:
        reader_.take(8);
        return true;
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case '.':
        stopped_ = true;
        return true;
      default:
        return false;
    }
  }

  bool plain(std::uint8_t instruction) {
    switch (instruction) {
      case 'N':
        push({});
        return true;
      case 0x88:
        push({.kind = Kind::boolean, .integer = 1});
        return true;
      case 0x89:
        push({.kind = Kind::boolean, .integer = 0});
        return true;
      case 'J':
        push_integer(reader_.number<std::int32_t>());
        return true;
      case 'K':
        push_integer(reader_.number<std::uint8_t>());
        return true;
      case 'M':
        push_integer(reader_.number<std::uint16_t>());
        return true;
      case 0x8a:
        long1();
        return true;
      case 'X':
        push_text(reader_.number<std::uint32_t>());
        return true;
      case 0x8c:
        push_text(reader_.number<std::uint8_t>());
        return true;
      case 0x8d:
        push_text(reader_.number<std::uint64_t>());
        return true;
      case 'B':
        push_bytes(reader_.number<std::uint32_t>());
        return true;
      case 'C':
        push_bytes(reader_.number<std::uint8_t>());
        return true;
      case 0x8e:
      case 0x96:
        push_bytes(reader_.number<std::uint64_t>());
        return true;
      default:
        return false;
    }
  }

  bool composed(std::uint8_t instruction) {
    switch (instruction) {
      case ')':
        push({.kind = Kind::tuple});
        return true;
      case 0x85:
        push_tuple(1);
        return true;
      case 0x86:
        push_tuple(2);
        return true;
      case 0x87:
        push_tuple(3);
        return true;
      case 't':
        push({.kind = Kind::tuple, .items = pop_to_mark()});
        return true;
      case '}':
        push({.kind = Kind::dict});
        return true;
      case 's': {
        const std::size_t value = pop(), key = pop();
        set_items({key, value});
        return true;
      }
      case 'u':
        set_items(pop_to_mark());
        return true;
      case 'c': {
        const std::string_view module = line(), name = line();
        push_global(module, name);
        return true;
      }
      case 0x93: {
        const std::size_t name = pop(), module = pop();
        push_global(out_.text(module, "a module"), out_.text(name, "a global"));
        return true;
      }
      case 'R':
        reduce();
        return true;
      case 'b':
        build();
        return true;
      case 'Q':
        push({.kind = Kind::persistent, .items = {pop()}});
        return true;
      default:
        return false;
    }
  }

  bool remembered(std::uint8_t instruction) {
    switch (instruction) {
      case 'q':
        put(reader_.number<std::uint8_t>());
        return true;
      case 'r':
        put(reader_.number<std::uint32_t>());
        return true;
      case 0x94:
        put(static_cast<std::uint32_t>(memo_.size()));
        return true;
      case 'h':
        get(reader_.number<std::uint8_t>());
        return true;
      case 'j':
        get(reader_.number<std::uint32_t>());
        return true;
      default:
        return false;
    }
  }

  Pickle& out_;
  ByteReader reader_;
  std::span<const std::string_view> known_;
  std::vector<std::size_t> stack_, marks_;
  std::unordered_map<std::uint32_t, std::size_t> memo_;
  bool stopped_ = false;
};

std::string_view name_of(Kind kind) {
  constexpr std::array<std::string_view, 10> kNames = {
      "None",  "boolean", "integer", "text", "string of bytes",
      "tuple", "dict",    "global",  "call", "persistent id"};
  return kNames[static_cast<std::size_t>(kind)];
}

Pickle::Pickle(std::span<const std::byte> bytes, std::string name,
               std::span<const std::string_view> known_globals)
    : name_(std::move(name)) {
  PickleMachine(*this, bytes, known_globals).run();
}

const PickleValue& Pickle::expect(std::size_t value, Kind kind, std::string_view what) const {
  check(at(value).kind == kind, "{}: {} is a {}, expected a {}", name_, what, name_of(at(value).kind),
        name_of(kind));
  return at(value);
}

std::string_view Pickle::text(std::size_t value, std::string_view what) const {
  return expect(value, Kind::text, what).text;
}

std::int64_t Pickle::integer(std::size_t value, std::string_view what) const {
  return expect(value, Kind::integer, what).integer;
}

std::span<const std::size_t> Pickle::tuple(std::size_t value, std::size_t size, std::string_view what) const {
  const auto& items = expect(value, Kind::tuple, what).items;
  check(items.size() == size, "{}: {} has {} parts, expected {}", name_, what, items.size(), size);
  return items;
}

std::span<const std::size_t> Pickle::call(std::size_t value, std::string_view global, std::size_t size,
                                          std::string_view what) const {
  check(is_call(value, global), "{}: {} is not made by {}", name_, what, global);
  return tuple(at(value).items[1], size, what);
}

bool Pickle::is_call(std::size_t value, std::string_view global) const {
  return at(value).kind == Kind::call && at(at(value).items[0]).global == global;
}

const std::size_t* Pickle::find(std::size_t dict, std::string_view key) const {
  const auto& items = expect(dict, Kind::dict, "what is searched").items;
  for (std::size_t i = 0; i < items.size(); i += 2)
    if (at(items[i]).kind == Kind::text && at(items[i]).text == key) return &items[i + 1];
  return nullptr;
}

}  // namespace thimble
