// A model out into the world: written, read back, and compared with what it came from.
//
//   const ExportReport report = export_model(ops, file, "gguf", {.path = "model.gguf"});
//
// A format is one definition, in the file that writes it, and its line in export_formats(). Whatever it writes, open_model() must read: the logits of what was read back are
// compared with the source's before the output has its name, and so are the ids of a text; one that differs by more than
// its type explains never gets it. So what was there before is replaced by a good export or not at all.
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
  std::optional<GgufType> type = {};     // of matrices; absent: the format's own choice
  std::string architecture = {};         // of a GGUF; empty: chosen
  bool drop_softcap = false;             // of golf models: the logits before the cap are what is exported
  const Interrupt* interrupt = nullptr;  // asked once more before the output has its name
  Inspector inspect = {};  // export_model()'s: a format calls it before it gives the output its name
};

struct ExportReport {
  std::string format = {};   // its name; export_model() fills it in
  std::string architecture;  // in the words of whoever reads it: "qwen2"
  GgufType type;
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;
  std::vector<std::string> folded = {};  // switches that went into weights, a sentence each
  std::vector<std::string> notes = {};   // what else a user should know, a sentence each
  // Of logits, as measured, and the most that the type explains (below); export_model() fills them in.
  double difference = 0, tolerance = 0;
};

struct ExportFormat {
  std::string_view name;
  std::string_view what;        // for help: "one file for llama.cpp"
  std::vector<GgufType> types;  // that it knows; the first is its own choice
  // Writes all but the difference. request.type is one of `types`.
  ExportReport (*write)(FileOps& ops, const ModelFile& model, const ExportRequest& request);
  bool rounds_vectors = false;  // the type is of all tensors, not of matrices alone
  bool folder = false;          // what it writes is a folder, not a file
  bool folds = false;           // it knows ExportRequest::architecture and drop_softcap
};

std::span<const ExportFormat> export_formats();
const ExportFormat& export_format(std::string_view name);

ExportReport export_model(FileOps& ops, const ModelFile& model, std::string_view format,
                          const ExportRequest& request);
ExportReport export_model(FileOps& ops, const ModelFile& model, const ExportFormat& format,
                          ExportRequest request);

// How far the logits of two models of one vocabulary are from each other, over a few rows of random tokens: the root of
// the mean square difference, relative to the deviation of the first's logits from their mean in each row. NaN anywhere
// gives NaN.
double logit_difference(const ModelFile& first, const ModelFile& second);

// f32 holds weights exactly: what remains is the order of sums, and what folding rounds.
inline constexpr double kExactDifference = 1e-4;

// The most that rounding weights to this type explains: twice what it does to this model, and kExactDifference.
double tolerated_difference(const ModelFile& model, GgufType type, bool rounds_vectors);

// What is wrong with the second's tokenizer: it is not there, gives a text other ids than the first's, or differs in whether
// bos stands before one. Empty: nothing.
std::string tokenizer_difference(const ModelFile& first, const ModelFile& second);

}  // namespace thimble
