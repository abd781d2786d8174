// Python pickles, read as data: nothing is imported, called or executed.
//
// A pickle is a program for a small stack machine. Here its instructions only build a tree: a "call" is a node that
// names a global and its arguments, and what it means is for the caller to decide, who lists the globals that it
// knows. A global that is not on the list, or an instruction that files of arrays have no need of, is an Error that
// names it. No instruction makes more than one value, and there are at most a million of them.
//
// Instructions that are known: PROTO FRAME STOP MARK, NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1,
// BINUNICODE SHORT_BINUNICODE BINUNICODE8, BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8, EMPTY_TUPLE TUPLE TUPLE1
// TUPLE2 TUPLE3, EMPTY_DICT SETITEM SETITEMS, GLOBAL STACK_GLOBAL REDUCE BUILD BINPERSID, BINPUT LONG_BINPUT MEMOIZE
// BINGET LONG_BINGET.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

struct PickleValue {
  enum class Kind { none, boolean, integer, text, bytes, tuple, dict, global, call, persistent };

  Kind kind = Kind::none;
  std::int64_t integer = 0;    // boolean, integer
  std::string_view text = {};  // text
  std::string global = {};     // global: "numpy.dtype"
  std::span<const std::byte> bytes = {};
  // tuple: its items; dict: key, value, key, value ...; call: the global, its arguments (a tuple) and, if there was a
  // BUILD, its state; persistent: the id.
  std::vector<std::size_t> items = {};  // of Pickle
};

// Views into the bytes that were read, which must stay.
class Pickle {
 public:
  Pickle(std::span<const std::byte> bytes, std::string name, std::span<const std::string_view> known_globals);

  const std::string& name() const { return name_; }  // for messages
  std::size_t root() const { return root_; }
  const PickleValue& at(std::size_t value) const { return values_[value]; }

  // Each is an Error where the value is of another kind; `what` names it there.
  const PickleValue& expect(std::size_t value, PickleValue::Kind kind, std::string_view what) const;
  std::string_view text(std::size_t value, std::string_view what) const;
  std::int64_t integer(std::size_t value, std::string_view what) const;
  std::span<const std::size_t> tuple(std::size_t value, std::size_t size, std::string_view what) const;
  // The arguments of a call of that global; `size` of them.
  std::span<const std::size_t> call(std::size_t value, std::string_view global, std::size_t size,
                                    std::string_view what) const;
  bool is_call(std::size_t value, std::string_view global) const;
  // The value under a key of a dict; nullptr when absent.
  const std::size_t* find(std::size_t dict, std::string_view key) const;

 private:
  friend class PickleMachine;

  std::string name_;
  std::vector<PickleValue> values_;
  std::size_t root_ = 0;
};

std::string_view name_of(PickleValue::Kind kind);

}  // namespace thimble
