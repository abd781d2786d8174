// Arbitrary bytes must give an Error or a valid file: every tensor can be read, and a model read
// from it has the size of its config and can be exported again.
#include <optional>
#include <span>
#include <string>
#include <string_view>
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
    require(file.bytes(entry.name).size() == entry.bytes,
            "a tensor has as many bytes as its entry specifies");
  }
}

void write_settings_again(const GgufFile& file) {
  GgufWriter writer;
  for (const auto& [key, value] : file.settings()) writer.set(key, value);
  const std::string bytes = writer.to_bytes();
  require(
      GgufFile::view(std::as_bytes(std::span(bytes)), "again").settings().size() == file.settings().size(),
      "settings are unchanged by a round trip");
}

void read_gguf_model(const GgufFile& file) {
  std::optional<ModelFile> model;
  try {
    model = read_gguf(file);
  } catch (const Error&) {
    return;
  }
  const ParamTable table(model->config.model);
  require(std::cmp_equal(model->weights.size(), table.block_size()),
          "there are as many weights as the config requires");
  try {
    require(exported_model(*model).tensors.size() == table.all().size(), "every tensor is exported again");
  } catch (const Error&) {  // a folded model, or biases that llama.cpp does not support
  }
}

// Parts of a model, one after the other; each begins with the magic.
void read_parts(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::size_t second = text.find("GGUF", 1);
  if (second == text.npos) return;
  auto file = gguf_in(bytes.first(second)), part = gguf_in(bytes.subspan(second));
  if (!file || !part) return;
  const std::size_t tensors = file->entries().size() + part->entries().size();
  try {
    file->append(std::move(*part));
  } catch (const Error&) {
    return;
  }
  require(file->parts() == 2 && file->entries().size() == tensors, "every tensor of both parts is there");
  read_gguf_tensors(*file);
  read_gguf_model(*file);
}

}  // namespace

void fuzz_gguf(FuzzBytes bytes) {
  read_parts(bytes);
  const auto file = gguf_in(bytes);
  if (!file) return;
  read_gguf_tensors(*file);
  // With general.alignment, a file of settings alone would have another layout.
  if (!file->find_setting("general.alignment")) write_settings_again(*file);
  read_gguf_model(*file);
}

}  // namespace thimble
