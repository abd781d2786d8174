// Arbitrary bytes must give an Error or an int8 state of the model below, as a pickle or a torch
// archive, which is unchanged by writing and reading it.

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
  require(read_int8_state(std::as_bytes(std::span(again)), "again", pickled_table()) == tensors,
          "a state is unchanged by a round trip");
}

}  // namespace

void fuzz_pickle(FuzzBytes bytes) {
  try_state(bytes);
  // Also as the pickle of a valid archive, because few mutations keep a checksum.
  ZipWriter zip(64);
  zip.add("archive/data.pkl", bytes);
  const std::string archive = std::move(zip).finish();
  try_state(std::as_bytes(std::span(archive)));
}

}  // namespace thimble
