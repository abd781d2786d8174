// Arrays inside of pickles, as numpy and torch put them there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/pickle_reader.h"
#include "formats/zip.h"

namespace thimble {

struct PickledArray {
  enum class Element { int8, f16, bf16, f32 };
  Element element = Element::f32;
  std::vector<std::int64_t> dims;
  std::span<const std::byte> bytes;  // as many as dims and element say, in C order

  std::size_t count() const;
  std::vector<float> floats() const;  // any element but int8
};

// A pickle of numpy arrays, or what torch.save writes (a zip). `bytes` must stay.
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
  std::string folder_;          // of the zip: "archive/"
  std::deque<std::vector<std::byte>> storages_;
  std::optional<Pickle> pickle_;
};

}  // namespace thimble
