// GGUF, the container format of llama.cpp: typed keys and values, then tensors. Writes version 3,
// reads versions 2 and 3.
//
// Complete layout; all numbers are little-endian:
//
//   4 bytes "GGUF", u32 version, i64 number of tensors, i64 number of keys
//   keys     each: string, u32 type of the value, value
//   tensors  each: string, u32 number of dims, i64 dims (the first is contiguous), u32 type, u64
//            offset
//   zeros    up to a multiple of the alignment: general.alignment, or 32
//   data     each tensor at its offset, a multiple of the alignment, zero-padded up to the next
//
//   string   u64 length, then bytes         array   u32 type of elements, u64 count, then elements
//
// This API lists dims as everywhere in thimble, the contiguous one last: [rows, columns]. The file
// lists them in reverse; the order of the elements is the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/files.h"
#include "base/mapped_file.h"
#include "base/progress.h"
#include "formats/gguf_types.h"

namespace thimble {

// Scalars, then arrays, in the order of the type numbers of the format.
using GgufValue =
    std::variant<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::uint32_t, std::int32_t, float,
                 bool, std::string, std::uint64_t, std::int64_t, double, std::vector<std::uint8_t>,
                 std::vector<std::int8_t>, std::vector<std::uint16_t>, std::vector<std::int16_t>,
                 std::vector<std::uint32_t>, std::vector<std::int32_t>, std::vector<float>, std::vector<bool>,
                 std::vector<std::string>, std::vector<std::uint64_t>, std::vector<std::int64_t>,
                 std::vector<double>>;
using GgufSettings = std::vector<std::pair<std::string, GgufValue>>;  // in the file's order

inline constexpr std::uint64_t kGgufAlignment = 32;
inline constexpr std::size_t kMaxGgufName = 63;  // ggml allows 64 bytes with the terminating zero
inline constexpr std::size_t kMaxGgufDims = 4;

struct GgufEntry {
  std::string name;
  GgufType type;
  std::vector<std::int64_t> dims;
  std::uint64_t begin = 0, bytes = 0;  // within the data of its part
  std::size_t part = 0;

  std::int64_t count() const;  // elements
};

// A parsed file, or the parts of a model that llama-gguf-split has split: NAME-00001-of-00003.gguf
// and so on. The first part has the settings, and each part has tensors of its own. Parsing checks
// all sizes and offsets, so every accessor stays in bounds.
class GgufFile {
 public:
  // Maps the file, and if it is the first part also the other parts beside it; only headers are
  // read. Another part is an Error.
  static GgufFile open(const std::filesystem::path& path);
  // Parses a file in memory. The bytes are not copied: they must outlive the GgufFile.
  static GgufFile view(std::span<const std::byte> bytes, std::string name);
  // Adds the tensors of the next part. Throws an Error if it is not the next part of this model.
  void append(GgufFile part);
  std::size_t parts() const { return data_.size(); }
  // Number of parts according to the settings; 1 if they do not say. Throws an Error for a value
  // that is not a number from 1.
  std::size_t parts_expected() const;

  const std::string& name() const { return name_; }  // for messages
  // The mappings that contain all bytes, one per part; none after view().
  const std::vector<std::shared_ptr<const MappedFile>>& mappings() const { return mappings_; }
  void check_intact() const;  // throws an Error if a mapped file was truncated
  const GgufSettings& settings() const { return settings_; }
  const GgufValue* find_setting(std::string_view key) const;  // nullptr when absent

  const std::vector<GgufEntry>& entries() const { return entries_; }  // in the file's order
  const GgufEntry* find(std::string_view tensor) const;               // nullptr when absent
  const GgufEntry& at(std::string_view tensor) const;                 // throws an Error when absent
  std::span<const std::byte> bytes(std::string_view tensor) const;
  void read_f32(std::string_view tensor, std::span<float> values) const;  // converts from any type

 private:
  static GgufFile map(const std::filesystem::path& path);
  void parse(std::span<const std::byte> bytes);
  std::uint64_t split_number(std::string_view key, std::uint64_t fallback) const;

  std::string name_;
  GgufSettings settings_;
  std::map<std::string, std::size_t, std::less<>> keys_, tensors_;
  std::vector<GgufEntry> entries_;
  std::vector<std::shared_ptr<const MappedFile>> mappings_;
  std::vector<std::span<const std::byte>> data_;  // per part: in its mapping, or in the bytes of view()
};

// Collects keys and tensors, then writes the file. The same calls give the same bytes.
//
//   GgufWriter writer;
//   writer.set("general.architecture", std::string("llama"));
//   writer.add("token_embd.weight", GgufType::f16, {vocab_size, dim}, embedding);
//   writer.write(ops, path, Existing::refuse);
class GgufWriter {
 public:
  void set(std::string key, GgufValue value);
  // `values` must stay valid until they are written. Throws an Error if the type cannot represent
  // them.
  void add(std::string name, GgufType type, std::vector<std::int64_t> dims, std::span<const float> values);

  std::uint64_t bytes() const;  // of the complete file
  // Atomic: `path` becomes the complete file or is left unchanged.
  void write(FileOps& ops, const std::filesystem::path& path, Existing existing,
             const Inspector& inspect = {}, const ProgressOutput& progress = {}) const;
  std::string to_bytes() const;  // the same file in memory

 private:
  struct Item {
    GgufEntry entry;
    std::span<const float> values;
  };
  using Sink = std::function<void(std::span<const std::byte>)>;
  std::string header() const;
  void emit_data(const Sink& sink) const;

  GgufSettings settings_;
  std::vector<Item> items_;
  std::set<std::string, std::less<>> keys_, names_;
  std::uint64_t data_bytes_ = 0;
};

// Type numbers of values.
inline constexpr std::uint32_t kGgufString = 8, kGgufArray = 9;

inline constexpr std::array<std::string_view, 13> kGgufValueTypes = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};

// Calls visit.operator()<T>() with the C++ type of scalar type number `type`. Returns false if the
// number is not a scalar type.
template <class Visit>
bool with_gguf_scalar(std::uint32_t type, Visit&& visit) {
  switch (type) {
    case 0:
      return visit.template operator()<std::uint8_t>(), true;
    case 1:
      return visit.template operator()<std::int8_t>(), true;
    case 2:
      return visit.template operator()<std::uint16_t>(), true;
    case 3:
      return visit.template operator()<std::int16_t>(), true;
    case 4:
      return visit.template operator()<std::uint32_t>(), true;
    case 5:
      return visit.template operator()<std::int32_t>(), true;
    case 6:
      return visit.template operator()<float>(), true;
    case 7:
      return visit.template operator()<bool>(), true;
    case kGgufString:
      return visit.template operator()<std::string>(), true;
    case 10:
      return visit.template operator()<std::uint64_t>(), true;
    case 11:
      return visit.template operator()<std::int64_t>(), true;
    case 12:
      return visit.template operator()<double>(), true;
    default:
      return false;
  }
}

template <class T>
inline constexpr bool kIsGgufArray = false;
template <class T>
inline constexpr bool kIsGgufArray<std::vector<T>> = true;

template <class T>
constexpr std::uint32_t gguf_value_type() {
  if constexpr (kIsGgufArray<T>) {
    return kGgufArray;
  } else {
    std::uint32_t number = 0;
    for (std::uint32_t type = 0; type < kGgufValueTypes.size(); ++type)
      with_gguf_scalar(type, [&]<class U>() {
        if constexpr (std::is_same_v<T, U>) number = type;
      });
    return number;
  }
}

}  // namespace thimble
