// Exports a model to other formats. Every export is written, read back and compared with its
// source.
//
//   const ExportReport report = export_model(ops, file, "gguf", {.path = "model.gguf"});
//
// A format is one ExportFormat, defined in the file that writes it and listed in export_formats().
// open_model() must be able to read what it writes: before the output is renamed to its final name,
// its logits and the token ids of a text are compared with the source's. If the difference exceeds
// what rounding to the type explains, the export fails, and an existing file is not replaced.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/signals.h"
#include "formats/gguf_types.h"
#include "formats/model_file.h"

namespace thimble {

struct ExportRequest {
  std::filesystem::path path;
  Existing existing = Existing::refuse;
  std::optional<GgufType> type = {};     // of matrices; nullopt: the format's default
  std::string architecture = {};         // of a GGUF; empty: chosen automatically
  bool drop_softcap = false;             // export a golf model without its softcap: logits before the cap
  const Interrupt* interrupt = nullptr;  // checked once more before the output is renamed
  ProgressOutput progress = {};          // of writing the file, reading it back and comparing it
  Inspector inspect = {};  // set by export_model(); a format calls it before it renames its output
};

struct ExportReport {
  std::string format = {};   // name of the format; set by export_model()
  std::string architecture;  // as named by the target program: "qwen2"
  GgufType type;
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;
  std::vector<std::string> folded = {};  // switches folded into weights, one sentence each
  std::vector<std::string> notes = {};   // other remarks for the user, one sentence each
  // Measured logit_difference() and tolerated_difference(); set by export_model().
  double difference = 0, tolerance = 0;
};

struct ExportFormat {
  std::string_view name;
  std::string_view what;        // for help: "one file for llama.cpp"
  std::vector<GgufType> types;  // supported types; the first is the default
  // Fills in everything except difference and tolerance. request.type is one of `types`.
  ExportReport (*write)(FileOps& ops, const ModelFile& model, const ExportRequest& request);
  bool rounds_vectors = false;  // the type applies to all tensors, not only to matrices
  bool folder = false;          // the output is a folder, not a file
  bool folds = false;           // supports ExportRequest::architecture and drop_softcap
  bool adapters = false;        // writes only the adapters of a model opened with WeightsAs::stored
};

std::span<const ExportFormat> export_formats();
const ExportFormat& export_format(std::string_view name);

ExportReport export_model(FileOps& ops, const ModelFile& model, std::string_view format,
                          const ExportRequest& request);
ExportReport export_model(FileOps& ops, const ModelFile& model, const ExportFormat& format,
                          ExportRequest request);

// Distance between the logits of two models with the same vocabulary, over a few rows of random
// tokens: the root mean square difference, relative to the standard deviation of the first model's
// logits around the mean of each row. A NaN anywhere gives NaN.
// Advances `bar`, which may be null, by one for each of the two models.
double logit_difference(const ModelFile& first, const ModelFile& second, ProgressBar* bar = nullptr);

// f32 stores weights exactly; the remaining difference is summation order and rounding in folds.
inline constexpr double kExactDifference = 1e-4;

// The largest difference that rounding weights to this type explains: twice the measured effect of
// rounding on this model, plus kExactDifference.
double tolerated_difference(const ModelFile& model, GgufType type, bool rounds_vectors,
                            ProgressBar* bar = nullptr);

// Describes how the second model's tokenizer differs from the first's: it is missing, gives other
// ids for a text, or differs in whether it prepends bos. Empty if they agree.
std::string tokenizer_difference(const ModelFile& first, const ModelFile& second);

}  // namespace thimble
