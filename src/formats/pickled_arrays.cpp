#include "formats/pickled_arrays.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"
#include "base/half.h"
#include "base/joined.h"
#include "formats/little_endian.h"

namespace thimble {

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

// The sizes agree, or it is an Error.
PickledArray checked(PickledArray array, const std::string& name, std::string_view what) {
  check(array.bytes.size() == array.count() * width(array.element), "{}: {} is [{}] and has {} bytes", name,
        what, joined(array.dims, ", "), array.bytes.size());
  return array;
}

}  // namespace

std::size_t PickledArray::count() const {
  std::size_t count = 1;
  for (const std::int64_t dim : dims) count *= static_cast<std::size_t>(dim);
  return count;
}

std::vector<float> PickledArray::floats() const {
  check(element != Element::int8, "integers where floats are expected");
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
    check(!entry.deflated, "{}: {} is deflated, which torch.save never does", name, entry.name);
  for (const ZipEntry& entry : zip_->entries())
    if (entry.name.ends_with(kPickle)) {
      folder_ = entry.name.substr(0, entry.name.size() - kPickle.size());
      pickle_.emplace(storages_.emplace_back(zip_->read(entry)), name, kTorchGlobals);
      return;
    }
  fail("{} is a zip without data.pkl: torch.save did not write it", name);
}

PickledArray ArrayPickle::array(std::size_t value, std::string_view what) {
  return zip_ ? torch_array(value, what) : numpy_array(value, what);
}

std::vector<std::int64_t> ArrayPickle::dims(std::size_t value, std::string_view what) const {
  std::vector<std::int64_t> dims;
  std::uint64_t count = 1;
  for (const std::size_t item : pickle_->expect(value, Kind::tuple, what).items) {
    const std::int64_t dim = pickle_->integer(item, what);
    check(dim >= 0 && dims.size() < 8, "{}: the shape of {} is no shape", pickle_->name(), what);
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
  check(items.size() == 3, "{}: the type of {} does not say its byte order", pickle_->name(), what);
  const auto& state = pickle_->expect(items[2], Kind::tuple, what).items;
  check(state.size() >= 2, "{}: the type of {} does not say its byte order", pickle_->name(), what);
  const std::string_view order = pickle_->text(state[1], what);
  check(order == "<" || order == "|", "{}: {} is of byte order '{}', expected '<'", pickle_->name(), what,
        order);
  if (name == "i1") return Element::int8;
  if (name == "f2") return Element::f16;
  if (name == "f4") return Element::f32;
  fail("{}: {} is of type '{}', expected i1, f2 or f4", pickle_->name(), what, name);
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
    check(pickle_->text(arguments[3], what) == "C", "{}: {} lies column by column", pickle_->name(), what);
    return checked(std::move(array), pickle_->name(), what);
  }
  const bool newer = pickle_->is_call(value, "numpy._core.multiarray._reconstruct");
  pickle_->call(value, newer ? "numpy._core.multiarray._reconstruct" : "numpy.core.multiarray._reconstruct",
                3, what);
  const auto& items = pickle_->at(value).items;
  check(items.size() == 3, "{}: {} is empty", pickle_->name(), what);
  const auto state = pickle_->tuple(items[2], 5, what);  // version, shape, dtype, by columns, bytes
  array.dims = dims(state[1], what);
  array.element = numpy_element(state[2], what);
  check(pickle_->expect(state[3], Kind::boolean, what).integer == 0, "{}: {} lies column by column",
        pickle_->name(), what);
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
  check(type.starts_with("torch."), "{}: {} is stored as {}", pickle_->name(), what, type);
  array.dims = dims(arguments[2], what);
  check(pickle_->integer(arguments[1], what) == 0, "{}: {} is a part of a larger tensor", pickle_->name(),
        what);
  std::int64_t stride = 1;
  const auto strides = pickle_->tuple(arguments[3], array.dims.size(), what);
  for (std::size_t i = array.dims.size(); i-- > 0; stride *= array.dims[i])
    check(array.dims[i] == 1 || pickle_->integer(strides[i], what) == stride,
          "{}: {} does not lie row by row", pickle_->name(), what);
  const std::string entry = fmt::format("{}data/{}", folder_, pickle_->text(storage[2], what));
  const ZipEntry* found = zip_->find(entry);
  check(found, "{}: {} is missing", pickle_->name(), entry);
  check(found->bytes == array.count() * width(array.element), "{}: {} is [{}] and has {} bytes",
        pickle_->name(), what, joined(array.dims, ", "), found->bytes);
  array.bytes = storages_.emplace_back(zip_->read(*found));
  return checked(std::move(array), pickle_->name(), what);
}

}  // namespace thimble
