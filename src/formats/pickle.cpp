#include "formats/pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "tensor/tensor.h"

namespace thimble {

using Kind = PickleValue::Kind;

constexpr std::size_t kMaxValues = 1 << 20;  // a model needs a few dozen per tensor

// The stack machine that builds the tree of values.
class PickleMachine {
 public:
  PickleMachine(Pickle& out, std::span<const std::byte> bytes, std::span<const std::string_view> known)
      : out_(out), reader_(bytes, out.name_), known_(known) {}

  void run() {
    while (!stopped_) step(reader_.number<std::uint8_t>());
    check(reader_.left() == 0, "{}: {} bytes follow the end of the pickle", out_.name_, reader_.left());
    check(stack_.size() == 1 && marks_.empty(), "{}: expected one value at the end of the pickle, found {}",
          out_.name_, stack_.size());
    out_.root_ = stack_.front();
  }

 private:
  void push(PickleValue value) {
    check(out_.values_.size() < kMaxValues, "{}: the pickle has more than {} values", out_.name_, kMaxValues);
    out_.values_.push_back(std::move(value));
    stack_.push_back(out_.values_.size() - 1);
  }
  void push_integer(std::int64_t value) { push({.kind = Kind::integer, .integer = value}); }
  void push_text(std::uint64_t size) { push({.kind = Kind::text, .text = reader_.text(size)}); }
  void push_bytes(std::uint64_t size) { push({.kind = Kind::bytes, .bytes = reader_.take(size)}); }

  std::size_t pop() {
    check(stack_.size() > (marks_.empty() ? 0 : marks_.back()), "{}: the pickle pops from an empty stack",
          out_.name_);
    const std::size_t value = stack_.back();
    stack_.pop_back();
    return value;
  }
  std::vector<std::size_t> pop_to_mark() {
    check(!marks_.empty(), "{}: the pickle pops to a mark that is missing", out_.name_);
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<std::size_t> items(begin, stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  PickleValue& top(Kind kind) {
    check(!stack_.empty() && stack_.size() > (marks_.empty() ? 0 : marks_.back()),
          "{}: the pickle pops from an empty stack", out_.name_);
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
    check(items.size() % 2 == 0, "{}: a dict in the pickle has an odd number of keys and values, {}",
          out_.name_, items.size());
    PickleValue& dict = top(Kind::dict);
    dict.items.insert(dict.items.end(), items.begin(), items.end());
  }

  void push_global(std::string_view module, std::string_view name) {
    const std::string global = fmt::format("{}.{}", module.substr(0, 100), name.substr(0, 100));
    if (std::ranges::find(known_, global) == known_.end())
      fail(Hint{"a file of weights does not need it: do not open the file with Python's pickle unless you "
                "trust it"},
           "{}: the pickle uses {}, which is not one of {}", out_.name_, global, joined(known_, ", "));
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
    out_.expect(global, Kind::global, "the callee");
    out_.expect(arguments, Kind::tuple, "the arguments");
    push({.kind = Kind::call, .items = {global, arguments}});
  }

  void build() {
    const std::size_t state = pop();
    PickleValue& object = top(Kind::call);
    check(object.items.size() == 2, "{}: an object in the pickle has two states", out_.name_);
    object.items.push_back(state);
  }

  void put(std::uint32_t slot) {
    check(!stack_.empty(), "{}: the pickle stores a memo from an empty stack", out_.name_);
    memo_[slot] = stack_.back();
  }
  void get(std::uint32_t slot) {
    const auto found = memo_.find(slot);
    check(found != memo_.end(), "{}: the pickle reads memo {}, which it never stored", out_.name_, slot);
    stack_.push_back(found->second);
  }

  // Two's complement of any length; values that do not fit 64 bits are rejected.
  void long1() {
    const auto bytes = reader_.take(reader_.number<std::uint8_t>());
    check(bytes.size() <= 8, "{}: an integer has {} bytes, expected at most 8", out_.name_, bytes.size());
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i)
      value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
    if (!bytes.empty() && bytes.size() < 8 && std::to_integer<int>(bytes.back()) >= 0x80)
      value |= ~std::uint64_t{0} << (8 * bytes.size());
    push_integer(static_cast<std::int64_t>(value));
  }

  void step(std::uint8_t instruction) {
    if (!frame(instruction) && !plain(instruction) && !composed(instruction) && !remembered(instruction))
      fail("{}: instruction 0x{:02x} at byte {} of the pickle is not supported", out_.name_, instruction,
           reader_.at() - 1);
  }

  bool frame(std::uint8_t instruction) {
    switch (instruction) {
      case 0x80: {
        const auto protocol = reader_.number<std::uint8_t>();
        check(protocol >= 2 && protocol <= 5, "{}: found pickle protocol {}, expected 2 to 5", out_.name_,
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
  check(is_call(value, global), "{}: {} is not a call of {}", name_, what, global);
  return tuple(at(value).items[1], size, what);
}

bool Pickle::is_call(std::size_t value, std::string_view global) const {
  return at(value).kind == Kind::call && at(at(value).items[0]).global == global;
}

const std::size_t* Pickle::find(std::size_t dict, std::string_view key) const {
  const auto& items = expect(dict, Kind::dict, "the searched value").items;
  for (std::size_t i = 0; i < items.size(); i += 2)
    if (at(items[i]).kind == Kind::text && at(items[i]).text == key) return &items[i + 1];
  return nullptr;
}

// The limits and the layout are those of CPython's _pickle.c.
namespace {

constexpr std::size_t kFrameHeader = 9, kSmallestFrame = 4, kFrameTarget = 64 * 1024, kDictBatch = 1000;

std::string with_number(char code, auto value) {
  std::string bytes(1, code);
  append_number(bytes, value);
  return bytes;
}

}  // namespace

// A frame ends before the value with which it would exceed its target.
void PickleWriter::begin_value() {
  if (frame_ && out_.size() - *frame_ - kFrameHeader >= kFrameTarget) end_frame();
}

void PickleWriter::write(std::string_view bytes) {
  if (is_framed() && !unframed_ && !frame_) {
    frame_ = out_.size();
    out_.append(kFrameHeader, '\0');
  }
  out_ += bytes;
}

void PickleWriter::end_frame() {
  if (!frame_) return;
  const std::uint64_t size = out_.size() - *frame_ - kFrameHeader;
  if (size < kSmallestFrame)
    out_.erase(*frame_, kFrameHeader);
  else
    out_.replace(*frame_, kFrameHeader, with_number('\x95', size));
  frame_.reset();
}

// Large values are written between frames.
void PickleWriter::write_large(std::string_view header, std::string_view bytes) {
  unframed_ = bytes.size() >= kFrameTarget;
  if (unframed_) end_frame();
  write(header);
  write(bytes);
  unframed_ = false;
}

void PickleWriter::opcode(char code) {
  begin_value();
  write({&code, 1});
}

void PickleWriter::integer(std::int64_t value) {
  check(
      value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max(),
      "[pickle] {} does not fit 32 bits", value);
  begin_value();
  if (value >= 0 && value < 1 << 8)
    write(with_number('K', static_cast<std::uint8_t>(value)));
  else if (value >= 0 && value < 1 << 16)
    write(with_number('M', static_cast<std::uint16_t>(value)));
  else
    write(with_number('J', static_cast<std::int32_t>(value)));
}

std::size_t PickleWriter::text(std::string_view value) {
  begin_value();
  const bool is_short = is_framed() && value.size() < 1 << 8;
  write_large(is_short ? with_number('\x8c', static_cast<std::uint8_t>(value.size()))
                       : with_number('X', static_cast<std::uint32_t>(value.size())),
              value);
  return put();
}

std::size_t PickleWriter::buffer(std::string_view bytes) {
  begin_value();
  write_large(with_number('\x96', std::uint64_t{bytes.size()}), bytes);
  return put();
}

void PickleWriter::begin_tuple(std::size_t size) {
  begin_value();
  if (size > 3) write("(");
}

std::size_t PickleWriter::end_tuple(std::size_t size) {
  constexpr std::string_view kCodes[] = {")", "\x85", "\x86", "\x87", "t"};
  write(kCodes[std::min<std::size_t>(size, 4)]);
  return size == 0 ? stored_ : put();  // the empty tuple is not stored
}

std::size_t PickleWriter::integers(std::span<const std::int64_t> values) {
  begin_tuple(values.size());
  for (const std::int64_t value : values) integer(value);
  return end_tuple(values.size());
}

void PickleWriter::dict(std::size_t size, const std::function<void(std::size_t)>& item) {
  opcode('}');
  put();
  if (size == 0) return;
  if (size == 1) {
    item(0);
    return write("s");
  }
  std::size_t begin = 0, end;
  do {  // a full last batch is followed by an empty one
    write("(");
    end = std::min(size, begin + kDictBatch);
    for (std::size_t i = begin; i < end; ++i) item(i);
    write("u");
  } while (end - std::exchange(begin, end) == kDictBatch);
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  shared(fmt::format("global {}.{}", module, name), [&] {
    begin_value();
    if (is_framed()) {
      text(module);
      text(name);
      write("\x93");
    } else {
      write(fmt::format("c{}\n{}\n", module, name));
    }
    return put();
  });
}

std::size_t PickleWriter::end_call() {
  write("R");
  return put();
}

std::size_t PickleWriter::put() {
  if (is_framed())
    write("\x94");
  else if (stored_ < 1 << 8)
    write(with_number('q', static_cast<std::uint8_t>(stored_)));
  else
    write(with_number('r', static_cast<std::uint32_t>(stored_)));
  return stored_++;
}

void PickleWriter::get(std::size_t index) {
  begin_value();
  write(index < 1 << 8 ? with_number('h', static_cast<std::uint8_t>(index))
                       : with_number('j', static_cast<std::uint32_t>(index)));
}

std::string PickleWriter::finish() && {
  write(".");
  end_frame();
  return std::move(out_);
}

namespace {

using Element = PickledArray::Element;
using Kind = PickleValue::Kind;

constexpr std::array<std::string_view, 6> kNumpyGlobals = {"numpy.core.multiarray._reconstruct",
                                                           "numpy._core.multiarray._reconstruct",
                                                           "numpy.core.numeric._frombuffer",
                                                           "numpy._core.numeric._frombuffer",
                                                           "numpy.ndarray",
                                                           "numpy.dtype"};
constexpr std::array<std::string_view, 6> kTorchGlobals = {
    "torch._utils._rebuild_tensor_v2", "collections.OrderedDict", "torch.CharStorage", "torch.HalfStorage",
    "torch.BFloat16Storage",           "torch.FloatStorage"};

std::size_t width(Element element) {
  return element == Element::int8 ? 1 : element == Element::f32 ? 4 : 2;
}

// Throws an Error unless the size in bytes matches dims and element type.
PickledArray checked(PickledArray array, const std::string& name, std::string_view what) {
  check(array.bytes.size() == array.count() * width(array.element),
        "{}: {} has shape [{}], which does not match its {} bytes", name, what, joined(array.dims, ", "),
        array.bytes.size());
  return array;
}

}  // namespace

std::size_t PickledArray::count() const {
  std::size_t count = 1;
  for (const std::int64_t dim : dims) count *= static_cast<std::size_t>(dim);
  return count;
}

std::vector<float> PickledArray::floats() const {
  check(element != Element::int8, "expected an array of floats, found integers");
  ByteReader reader(bytes, "an array");
  std::vector<float> values(count());
  for (float& value : values) {
    if (element == Element::f32)
      value = reader.number<float>();
    else if (element == Element::f16)
      value = to_f32(f16{reader.number<std::uint16_t>()});
    else
      value = to_f32(bf16{reader.number<std::uint16_t>()});
  }
  return values;
}

ArrayPickle::ArrayPickle(std::span<const std::byte> bytes, const std::string& name) {
  const std::string_view start(reinterpret_cast<const char*>(bytes.data()),
                               std::min<std::size_t>(bytes.size(), 4));
  if (!is_zip(start)) {
    pickle_.emplace(bytes, name, kNumpyGlobals);
    return;
  }
  constexpr std::string_view kPickle = "data.pkl";
  zip_.emplace(bytes, name);
  for (const ZipEntry& entry : zip_->entries())
    check(!entry.deflated, "{}: {} is compressed, which torch.save never does", name, entry.name);
  for (const ZipEntry& entry : zip_->entries())
    if (entry.name.ends_with(kPickle)) {
      folder_ = entry.name.substr(0, entry.name.size() - kPickle.size());
      pickle_.emplace(storages_.emplace_back(zip_->read(entry)), name, kTorchGlobals);
      return;
    }
  fail("{} is a zip without data.pkl, so it was not written by torch.save", name);
}

PickledArray ArrayPickle::array(std::size_t value, std::string_view what) {
  return zip_ ? torch_array(value, what) : numpy_array(value, what);
}

std::vector<std::int64_t> ArrayPickle::dims(std::size_t value, std::string_view what) const {
  std::vector<std::int64_t> dims;
  std::uint64_t count = 1;
  for (const std::size_t item : pickle_->expect(value, Kind::tuple, what).items) {
    const std::int64_t dim = pickle_->integer(item, what);
    check(dim >= 0 && dims.size() < 8, "{}: the shape of {} is not valid", pickle_->name(), what);
    dims.push_back(dim);
    check(dim == 0 || count <= std::numeric_limits<std::uint32_t>::max() / static_cast<std::uint64_t>(dim),
          "{}: {} is too large", pickle_->name(), what);
    count *= static_cast<std::uint64_t>(dim);
  }
  return dims;
}

PickledArray::Element ArrayPickle::numpy_element(std::size_t dtype, std::string_view what) const {
  const auto arguments = pickle_->call(dtype, "numpy.dtype", 3, what);
  const std::string_view name = pickle_->text(arguments[0], what);
  const auto& items = pickle_->at(dtype).items;
  check(items.size() == 3, "{}: the type of {} has no byte order", pickle_->name(), what);
  const auto& state = pickle_->expect(items[2], Kind::tuple, what).items;
  check(state.size() >= 2, "{}: the type of {} has no byte order", pickle_->name(), what);
  const std::string_view order = pickle_->text(state[1], what);
  check(order == "<" || order == "|", "{}: {} has byte order '{}', expected '<'", pickle_->name(), what,
        order);
  if (name == "i1") return Element::int8;
  if (name == "f2") return Element::f16;
  if (name == "f4") return Element::f32;
  fail("{}: {} has type '{}', expected i1, f2 or f4", pickle_->name(), what, name);
}

PickledArray ArrayPickle::numpy_array(std::size_t value, std::string_view what) const {
  PickledArray array;
  for (const std::string_view module : {"numpy.core.numeric", "numpy._core.numeric"}) {
    const std::string global = fmt::format("{}._frombuffer", module);
    if (!pickle_->is_call(value, global)) continue;
    const auto arguments = pickle_->call(value, global, 4, what);  // bytes, dtype, shape, order
    array.bytes = pickle_->expect(arguments[0], Kind::bytes, what).bytes;
    array.element = numpy_element(arguments[1], what);
    array.dims = dims(arguments[2], what);
    check(pickle_->text(arguments[3], what) == "C", "{}: {} is in Fortran order, expected C order",
          pickle_->name(), what);
    return checked(std::move(array), pickle_->name(), what);
  }
  const bool newer = pickle_->is_call(value, "numpy._core.multiarray._reconstruct");
  pickle_->call(value, newer ? "numpy._core.multiarray._reconstruct" : "numpy.core.multiarray._reconstruct",
                3, what);
  const auto& items = pickle_->at(value).items;
  check(items.size() == 3, "{}: {} is empty", pickle_->name(), what);
  const auto state = pickle_->tuple(items[2], 5, what);  // version, shape, dtype, Fortran order, bytes
  array.dims = dims(state[1], what);
  array.element = numpy_element(state[2], what);
  check(pickle_->expect(state[3], Kind::boolean, what).integer == 0,
        "{}: {} is in Fortran order, expected C order", pickle_->name(), what);
  array.bytes = pickle_->expect(state[4], Kind::bytes, what).bytes;
  return checked(std::move(array), pickle_->name(), what);
}

PickledArray ArrayPickle::torch_array(std::size_t value, std::string_view what) {
  const auto arguments = pickle_->call(value, "torch._utils._rebuild_tensor_v2", 6, what);
  const auto id = pickle_->expect(arguments[0], Kind::persistent, what).items[0];
  const auto storage = pickle_->tuple(id, 5, what);  // "storage", type, key, device, elements
  check(pickle_->text(storage[0], what) == "storage", "{}: {} has no storage", pickle_->name(), what);
  const std::string& type = pickle_->expect(storage[1], Kind::global, what).global;
  PickledArray array;
  array.element = type == "torch.CharStorage"       ? Element::int8
                  : type == "torch.HalfStorage"     ? Element::f16
                  : type == "torch.BFloat16Storage" ? Element::bf16
                                                    : Element::f32;
  check(type.starts_with("torch."), "{}: {} has storage type {}, expected one of torch", pickle_->name(),
        what, type);
  array.dims = dims(arguments[2], what);
  check(pickle_->integer(arguments[1], what) == 0,
        "{}: {} is a view into a larger tensor, expected a contiguous tensor", pickle_->name(), what);
  std::int64_t stride = 1;
  const auto strides = pickle_->tuple(arguments[3], array.dims.size(), what);
  for (std::size_t i = array.dims.size(); i-- > 0; stride *= array.dims[i])
    check(array.dims[i] == 1 || pickle_->integer(strides[i], what) == stride,
          "{}: {} is not contiguous in row-major order", pickle_->name(), what);
  const std::string entry = fmt::format("{}data/{}", folder_, pickle_->text(storage[2], what));
  const ZipEntry* found = zip_->find(entry);
  check(found, "{}: {} is missing", pickle_->name(), entry);
  check(found->bytes == array.count() * width(array.element),
        "{}: {} has shape [{}], which does not match its {} bytes", pickle_->name(), what,
        joined(array.dims, ", "), found->bytes);
  array.bytes = storages_.emplace_back(zip_->read(*found));
  return checked(std::move(array), pickle_->name(), what);
}

}  // namespace thimble
