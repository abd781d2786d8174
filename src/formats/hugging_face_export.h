// The formats hf and safetensors of `thimble export`: a Hugging Face folder, and one file of ours for inference alone.
#pragma once

#include "formats/export_model.h"

namespace thimble {

ExportReport export_hugging_face(FileOps& ops, const ModelFile& model, const ExportRequest& request);
ExportReport export_safetensors(FileOps& ops, const ModelFile& model, const ExportRequest& request);

}  // namespace thimble
