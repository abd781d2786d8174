// A small trained model, and ways to break it.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/files.h"
#include "formats/model_file.h"
#include "formats/safetensors.h"
#include "support/temp_folder.h"
#include "train/tiny_run.h"

namespace thimble {

// Trained once; tests work on copies.
class TrainedOnce : public TinyRun {
 public:
  static const TrainedOnce& get() {
    static const TrainedOnce trained;
    return trained;
  }

  std::filesystem::path text_run() const { return folder_ / "text"; }
  std::filesystem::path chat_run() const { return folder_ / "chat"; }
  // The data of the text run, whose validation split was scored.
  std::filesystem::path data() const { return text_run() / "data"; }

 private:
  TrainedOnce() {
    run(request("text"));
    run(chat_request("chat"));
  }
  void TestBody() override {}
};

struct Edit {
  std::map<std::string, std::string> metadata = {};  // new values; "": removed
  std::string tensor = {};                           // weight passed to `change`; "": every weight
  std::function<void(std::span<float>)> change = {};
  std::map<std::string, std::string> texts = {};  // new contents of byte tensors; "": removed
  WithDigest digest = WithDigest::yes;
};

// An edited copy. Its digests are valid (or absent), so only the content is wrong, not the
// container.
inline std::filesystem::path edited(const std::filesystem::path& run, const TempFolder& folder,
                                    const Edit& edit) {
  const SafetensorsFile file = SafetensorsFile::open(run / "last.safetensors");
  SafetensorsWriter writer;
  for (const auto& [key, value] : file.metadata()) {
    const auto other = edit.metadata.find(key);
    const std::string& text = other == edit.metadata.end() ? value : other->second;
    if (!text.empty()) writer.set_metadata(key, text);
  }
  for (const auto& [key, value] : edit.metadata)
    if (!file.find_metadata(key) && !value.empty()) writer.set_metadata(key, value);
  std::vector<std::vector<std::byte>> contents;
  contents.reserve(file.entries().size());
  for (const SafetensorsEntry& entry : file.entries()) {
    if (entry.name == kDigestTensor) continue;
    const auto text = edit.texts.find(entry.name);
    if (text != edit.texts.end() && text->second.empty()) continue;
    const auto bytes =
        text == edit.texts.end() ? file.bytes(entry.name) : std::as_bytes(std::span(text->second));
    contents.emplace_back(bytes.begin(), bytes.end());
    auto dims = entry.dims;
    if (text != edit.texts.end()) dims = {static_cast<std::int64_t>(bytes.size())};
    const bool weight = !entry.name.starts_with(kOptimizerPrefix) && !entry.name.starts_with(kThimblePrefix);
    if (edit.change && weight && (edit.tensor.empty() || entry.name == edit.tensor))
      edit.change({reinterpret_cast<float*>(contents.back().data()), contents.back().size() / sizeof(float)});
    writer.add(entry.name, file.dtype(entry.name), dims, contents.back());
  }
  PosixFileOps ops;
  const std::filesystem::path path = folder / "edited.safetensors";
  writer.write(ops, path, Existing::replace, edit.digest);
  return path;
}

}  // namespace thimble
