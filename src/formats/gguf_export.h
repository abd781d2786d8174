// Every model that llama.cpp can run, as a GGUF: llama, qwen2 and qwen3 as they are, golf models folded (fold.h).
#pragma once

#include "formats/export_model.h"

namespace thimble {

ExportReport export_gguf(FileOps& ops, const ModelFile& model, const ExportRequest& request);

}  // namespace thimble
