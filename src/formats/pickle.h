// Reads Python pickles as data: nothing is imported, called or executed.
//
// A pickle is a program for a small stack machine. Here its instructions only build a tree: a
// "call" is a node with a global and its arguments, which the caller interprets. The caller lists
// the globals it accepts; any other global, or an instruction that files of arrays do not need, is
// an Error that names it. Each instruction creates at most one value, and at most a million values
// are allowed.
//
// Supported instructions: PROTO FRAME STOP MARK, NONE NEWTRUE NEWFALSE BININT BININT1 BININT2
// LONG1, BINUNICODE SHORT_BINUNICODE BINUNICODE8, BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8,
// EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3, EMPTY_DICT SETITEM SETITEMS, GLOBAL STACK_GLOBAL REDUCE
// BUILD BINPERSID, BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "formats/npz.h"

namespace thimble {

struct PickleValue {
  enum class Kind { none, boolean, integer, text, bytes, tuple, dict, global, call, persistent };

  Kind kind = Kind::none;
  std::int64_t integer = 0;    // boolean, integer
  std::string_view text = {};  // text
  std::string global = {};     // global: "numpy.dtype"
  std::span<const std::byte> bytes = {};
  // Indices of other values. tuple: its items; dict: key, value, key, value ...; call: the global,
  // its arguments (a tuple) and, after a BUILD, its state; persistent: the id.
  std::vector<std::size_t> items = {};  // indices for Pickle::at()
};

// A parsed pickle. Texts and bytes are views of the input, which must outlive it.
class Pickle {
 public:
  Pickle(std::span<const std::byte> bytes, std::string name, std::span<const std::string_view> known_globals);

  const std::string& name() const { return name_; }  // for error messages
  std::size_t root() const { return root_; }
  const PickleValue& at(std::size_t value) const { return values_[value]; }

  // These throw an Error if the value is of another kind; `what` names the value in the message.
  const PickleValue& expect(std::size_t value, PickleValue::Kind kind, std::string_view what) const;
  std::string_view text(std::size_t value, std::string_view what) const;
  std::int64_t integer(std::size_t value, std::string_view what) const;
  std::span<const std::size_t> tuple(std::size_t value, std::size_t size, std::string_view what) const;
  // The arguments of a call of `global`, which must have exactly `size` of them.
  std::span<const std::size_t> call(std::size_t value, std::string_view global, std::size_t size,
                                    std::string_view what) const;
  bool is_call(std::size_t value, std::string_view global) const;
  // The value for a key of a dict; nullptr when absent.
  const std::size_t* find(std::size_t dict, std::string_view key) const;

 private:
  friend class PickleMachine;

  std::string name_;
  std::vector<PickleValue> values_;
  std::size_t root_ = 0;
};

std::string_view name_of(PickleValue::Kind kind);

// Writes Python pickles of texts, numbers, tuples, dicts and named globals, as needed for arrays:
// the same bytes that Python's pickle.dumps() writes, with its memo and, from protocol 4 on, its
// frames.
//
//   PickleWriter pickle(5);
//   pickle.dict(1, [&](std::size_t) { pickle.text("step"); pickle.integer(3); });
//   std::string bytes = std::move(pickle).finish();
//
// Python stores each object in the memo and writes a reference if it meets the same object again.
// Calls that can be stored return the index in the memo.
class PickleWriter {
 public:
  explicit PickleWriter(std::uint8_t protocol) : out_{'\x80', static_cast<char>(protocol)} {}

  void none() { opcode('N'); }
  void boolean(bool value) { opcode(value ? '\x88' : '\x89'); }
  void integer(std::int64_t value);
  std::size_t text(std::string_view value);
  // A writable buffer; needs protocol 5.
  std::size_t buffer(std::string_view bytes);
  std::size_t integers(std::span<const std::int64_t> values);  // a tuple

  // A tuple; each of `parts` writes one item.
  template <class... Parts>
  std::size_t tuple(const Parts&... parts) {
    begin_tuple(sizeof...(parts));
    (parts(), ...);
    return end_tuple(sizeof...(parts));
  }
  // A dict; item(i) writes a key and its value.
  void dict(std::size_t size, const std::function<void(std::size_t)>& item);

  void global(std::string_view module, std::string_view name);
  // function(*arguments); the two write a global and a tuple.
  template <class Function, class Arguments>
  std::size_t call(const Function& function, const Arguments& arguments) {
    begin_value();
    function();
    arguments();
    return end_call();
  }
  void build() { write("b"); }       // sets the state of the object below the top of the stack
  void persistent() { write("Q"); }  // the object whose id is on top of the stack

  // The object called `key`: write() writes it and returns its index, later calls refer to it.
  template <class Write>
  void shared(const std::string& key, const Write& write) {
    if (const auto known = shared_.find(key); known != shared_.end())
      get(known->second);
    else
      shared_.emplace(key, write());
  }
  void shared_text(std::string_view value) {
    shared("text " + std::string(value), [&] { return text(value); });
  }

  std::string finish() &&;

 private:
  bool is_framed() const { return out_[1] >= 4; }
  void begin_value();
  void write(std::string_view bytes);
  void write_large(std::string_view header, std::string_view bytes);
  void opcode(char code);
  void begin_tuple(std::size_t size);
  std::size_t end_tuple(std::size_t size);
  std::size_t end_call();
  std::size_t put();
  void get(std::size_t index);
  void end_frame();

  std::string out_;
  std::optional<std::size_t> frame_ = std::nullopt;  // start of the current frame
  bool unframed_ = false;
  std::size_t stored_ = 0;  // size of the memo
  std::map<std::string, std::size_t> shared_ = {};
};

// An array in a pickle, as numpy and torch store it.
struct PickledArray {
  enum class Element { int8, f16, bf16, f32 };
  Element element = Element::f32;
  std::vector<std::int64_t> dims;
  std::span<const std::byte> bytes;  // in C order, size checked against dims and element

  std::size_t count() const;
  std::vector<float> floats() const;  // any element type except int8
};

// A pickle of numpy arrays, or the zip that torch.save writes. `bytes` must outlive it.
class ArrayPickle {
 public:
  ArrayPickle(std::span<const std::byte> bytes, const std::string& name);

  const Pickle& pickle() const { return *pickle_; }
  PickledArray array(std::size_t value, std::string_view what);

 private:
  PickledArray numpy_array(std::size_t value, std::string_view what) const;
  PickledArray torch_array(std::size_t value, std::string_view what);
  std::vector<std::int64_t> dims(std::size_t value, std::string_view what) const;
  PickledArray::Element numpy_element(std::size_t dtype, std::string_view what) const;

  std::optional<ZipFile> zip_;  // torch
  std::string folder_;          // folder within the zip: "archive/"
  std::deque<std::vector<std::byte>> storages_;
  std::optional<Pickle> pickle_;
};

}  // namespace thimble
