// Any bytes at all are refused with an Error or are a file that keeps its promises: every tensor can be read, and a model
// that comes out of it has the size that its config says and gives the same weights when it is written again.
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "formats/gguf_import.h"
#include "formats/gguf_model.h"
#include "targets.h"

namespace thimble {

namespace {

std::optional<GgufFile> gguf_in(std::span<const std::byte> bytes) {
  try {
    return GgufFile::view(bytes, "fuzz");
  } catch (const Error&) {
    return std::nullopt;
  }
}

void read_gguf_tensors(const GgufFile& file) {
  for (const GgufEntry& entry : file.entries()) {
    std::vector<float> values(static_cast<std::size_t>(entry.count()));
    file.read_f32(entry.name, values);
    promise(file.bytes(entry.name).size() == entry.bytes, "a tensor has its bytes");
  }
}

void write_settings_again(const GgufFile& file) {
  GgufWriter writer;
  for (const auto& [key, value] : file.settings()) writer.set(key, value);
  const std::string bytes = writer.to_bytes();
  promise(
      GgufFile::view(std::as_bytes(std::span(bytes)), "again").settings().size() == file.settings().size(),
      "settings come back");
}

void read_gguf_model(const GgufFile& file) {
  std::optional<ModelFile> model;
  try {
    model = read_gguf(file);
  } catch (const Error&) {
    return;
  }
  const ParamTable table(model->config.model);
  promise(std::cmp_equal(model->weights.size(), table.block_size()), "every weight is there");
  try {
    promise(exported_model(*model).tensors.size() == table.all().size(), "every tensor goes out again");
  } catch (const Error&) {  // a folded one, or biases that llama.cpp has no place for
  }
}

}  // namespace

void fuzz_gguf(FuzzBytes bytes) {
  const auto file = gguf_in(bytes);
  if (!file) return;
  read_gguf_tensors(*file);
  // general.alignment makes a file of settings alone something else.
  if (!file->find_setting("general.alignment")) write_settings_again(*file);
  read_gguf_model(*file);
}

}  // namespace thimble
