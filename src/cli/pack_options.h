// Turns the flags of `thimble pack` and the pack settings of the model's preset into a PackRequest.
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

// Throws UsageError for flags that cannot be combined.
PackFlags pack_flags(const Arguments& arguments);

// Fills in options that were not given, from the preset or from the artifact to be repacked.
// Throws an Error if no tensor matches a name in --keep.
void follow_preset(const Arguments& arguments, const ModelFile& model, PackFlags& flags);

// Calibration for GPTQ; `source` describes it in the report: "131,072 tokens of shards".
struct Calibration {
  GptqFactors factors;
  std::string source;
};
Calibration calibration_from(const Arguments& arguments, const ModelFile& model, const Console& console,
                             const Interrupt& interrupt);

}  // namespace thimble
