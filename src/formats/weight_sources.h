// Weights out of foreign files: one tensor of ours may lie in one of several files, under another name,
// transposed, or as a part of a larger tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors.h"
#include "model/params.h"

namespace thimble {

// Several safetensors files seen as one.
class TensorFiles {
 public:
  explicit TensorFiles(std::string name) : name_(std::move(name)) {}
  void add(SafetensorsFile file);  // a tensor that is there already is an Error

  const std::string& name() const { return name_; }  // for messages
  const std::vector<SafetensorsFile>& files() const { return files_; }
  const SafetensorsEntry* find(std::string_view tensor) const;  // nullptr when absent
  void read_f32(std::string_view tensor, std::span<float> values) const;

 private:
  struct Place {
    std::size_t file;
    const SafetensorsEntry* entry;
  };
  std::string name_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Place, std::less<>> places_;
};

// Where one tensor of the table comes from.
struct WeightSource {
  std::string name;                // empty: it is not in the file, and 0
  std::vector<std::int64_t> dims;  // of the whole tensor there
  bool transposed = false;         // [in, out] there, [out, in] here
  std::int64_t first = 0;          // our first row (or element of a vector) is its `first` output
};

// Every tensor under `prefix` + its own name, as it is.
std::vector<WeightSource> sources_by_name(const ParamTable& table, std::string_view prefix = {});

// The block of weights, laid out as the table says. `sources`: one per tensor, in the table's order.
// Everything missing, misshaped or left over is one Error that lists it all; `ignore` says what may be left
// over. The block is made after that: a config cannot ask for more memory than the files back.
std::vector<float> read_weights(const TensorFiles& files, const ParamTable& table,
                                std::span<const WeightSource> sources,
                                const std::function<bool(std::string_view)>& ignore);

}  // namespace thimble
