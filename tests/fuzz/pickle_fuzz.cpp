// Any bytes at all are refused with an Error or are the int8 state of this very model, in a pickle or in a torch
// archive: then it can be written again, and reads back the same.

#include "base/error.h"
#include "config/builder.h"
#include "formats/int8_state.h"
#include "formats/npz.h"
#include "targets.h"

namespace thimble {

namespace {

const ParamTable& pickled_table() {
  static const ParamTable made = [] {
    ConfigBuilder settings;
    settings.preset("golf-mlx");
    for (const char* setting : {"vocab_size=4", "context=4", "layers=2", "dim=4", "heads=1", "kv_heads=1"})
      settings.set(setting);
    return ParamTable(settings.resolve().model);
  }();
  return made;
}

void try_state(std::span<const std::byte> bytes) {
  std::vector<PackedTensor> tensors;
  try {
    tensors = read_int8_state(bytes, "fuzz", pickled_table());
  } catch (const Error&) {
    return;
  }
  const std::string again = int8_state(pickled_table(), tensors, PickledBy::numpy);
  promise(read_int8_state(std::as_bytes(std::span(again)), "again", pickled_table()) == tensors,
          "a state comes back");
}

}  // namespace

void fuzz_pickle(FuzzBytes bytes) {
  try_state(bytes);
  // The same as the pickle of an archive: few mutations keep a checksum.
  ZipWriter zip(64);
  zip.add("archive/data.pkl", bytes);
  const std::string archive = std::move(zip).finish();
  try_state(std::as_bytes(std::span(archive)));
}

}  // namespace thimble
