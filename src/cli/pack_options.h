// What `thimble pack` was asked to do: its flags, and for what was not said the preset that the model was trained by.
#pragma once

#include "formats/pack_model.h"
#include "pack/gptq.h"

namespace thimble {

class Arguments;
class Console;
struct ModelFile;

struct PackFlags {
  PackRequest request;
  bool gptq = false;
};

// Throws UsageError for flags that do not go together.
PackFlags pack_flags(const Arguments& arguments);

// What was not asked for is as the preset wants it, or as an artifact has it; for names that --keep got wrong there is
// an Error.
void follow_preset(const Arguments& arguments, const ModelFile& model, PackFlags& flags);

// How the model's inputs came to be known, for the account: "131,072 tokens of shards".
struct Calibration {
  GptqFactors factors;
  std::string source;
};
Calibration calibration_from(const Arguments& arguments, const ModelFile& model, const Console& console,
                             const Interrupt& interrupt);

}  // namespace thimble
