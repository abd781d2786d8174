// thimble pack: the report, as JSON or tables, and the command.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/signals.h"
#include "base/table.h"
#include "cli/console.h"
#include "cli/option.h"
#include "cli/pack_options.h"
#include "cli/parse.h"
#include "eval/eval_data.h"
#include "eval/score.h"
#include "formats/pack_model.h"
#include "train/reporter.h"

namespace thimble {

namespace {

// Bits per byte before and after packing.
struct PackMeasurement {
  ScoreOptions options;
  DType dtype = DType::f32;
  Score before = {}, after = {};
};

struct PackAccount {
  const PackReport& report;
  std::string trained_with = {};   // empty: unknown
  std::string calibrated_on = {};  // empty: no GPTQ
  std::optional<PackMeasurement> measured = {};
  const SearchResult* search = nullptr;
};

std::string commas(std::uint64_t value) {
  return with_commas(static_cast<long long>(value));
}

std::string verdict(std::uint64_t bytes, std::uint64_t budget) {
  return bytes <= budget ? fmt::format("fits, {} bytes left", commas(budget - bytes))
                         : fmt::format("{} bytes over", commas(bytes - budget));
}

// Targets without bytes, such as empty answers, have a loss but no bits per byte.
std::vector<std::string> as_row(const PackMeasurement& measured) {
  const Score &before = measured.before, &after = measured.after;
  const bool bytes = after.bytes > 0;
  return {bytes ? "bits per byte" : "nats per token",
          fmt::format("{:.4f} before, {:.4f} packed ({} tokens, context {}, stride {}, {})",
                      bytes ? before.bits_per_byte() : before.loss(),
                      bytes ? after.bits_per_byte() : after.loss(), with_commas(after.tokens),
                      measured.options.context, measured.options.stride,
                      measured.options.isolate ? "per document" : "one stream")};
}

// "standard", or a number of standard deviations.
std::string clip_text(const QuantiseRule& rule) {
  return rule.clip == Clip::deviation ? fmt::format("{:.4g} std", rule.deviations) : "standard";
}

Json search_json(const SearchResult& search) {
  Json tries = Json::array();
  for (const SearchTry& t : search.tries)
    tries.push(Json::object()
                   .set("bits", t.rule.bits)
                   .set("clip_std", t.rule.clip == Clip::deviation
                                        ? Json(static_cast<double>(t.rule.deviations))
                                        : Json())
                   .set("prune", t.prune)
                   .set("predicted_bytes", t.predicted_bytes)
                   .set("error", t.error)
                   .set("bytes", t.bytes ? Json(*t.bytes) : Json())
                   .set("val_bpb", t.score ? Json(*t.score) : Json()));
  return tries;
}

// The candidates that were packed, or that were predicted to fit.
std::string search_text(const SearchResult& search, std::uint64_t budget) {
  Table table({"bits", "clip", "pruned", "predicted", "bytes", "bits per byte", ""});
  for (std::size_t i = 0; i < search.tries.size(); ++i) {
    const SearchTry& t = search.tries[i];
    if (!t.bytes && t.predicted_bytes > budget) continue;
    table.row({fmt::format("{}", t.rule.bits), clip_text(t.rule), fmt::format("{:g} %", 100 * t.prune),
               commas(t.predicted_bytes), t.bytes ? commas(*t.bytes) : "-",
               t.score ? fmt::format("{:.4f}", *t.score) : "-",
               i == search.best      ? "best"
               : t.bytes && !t.score ? "too large"
                                     : ""});
  }
  return table.text(page_width(0));
}

Json as_json(const PackAccount& account) {
  const PackReport& report = account.report;
  const std::optional<PackMeasurement>& measured = account.measured;
  Json groups = Json::array(), tensors = Json::array();
  for (const PackReport::Group& group : report.groups)
    groups.push(Json::object()
                    .set("name", group.name)
                    .set("storage", name_of(group.storage))
                    .set("parameters", group.parameters)
                    .set("bytes", group.bytes));
  for (const PackReport::Tensor& tensor : report.tensors)
    tensors.push(Json::object()
                     .set("name", tensor.name)
                     .set("storage", name_of(tensor.storage))
                     .set("rms_error", tensor.error.rms)
                     .set("largest_error", tensor.error.largest)
                     .set("relative_error", tensor.error.relative));
  const bool has_bytes = measured && measured->after.bytes > 0;
  const auto fitting = [&](std::uint64_t bytes) {
    return Json::object().set("bytes", bytes).set("fits", bytes <= report.budget);
  };
  Json json = Json::object()
                  .set("bytes", report.bytes)
                  .set("predicted_bytes", report.predicted_bytes)
                  .set("budget", report.budget)
                  .set("fits", report.fits())
                  .set("code_bytes", report.code_bytes)
                  .set("tokenizer_bytes", report.tokenizer_bytes)
                  .set("golf", fitting(report.golf_bytes()))
                  .set("self_contained", fitting(report.self_contained_bytes()))
                  .set("rule", report.rule)
                  .set("bits_per_weight", report.bits_per_weight())
                  .set("parameters", report.parameters)
                  .set("pruned", report.pruned)
                  .set("tensors", report.tensors.size())
                  .set("quantised_tensors", report.quantised_tensors())
                  .set("float_bytes", report.float_bytes)
                  .set("payload_bytes", report.payload_bytes)
                  .set("ratio", report.ratio())
                  .set("val_bpb_before", has_bytes ? Json(measured->before.bits_per_byte()) : Json())
                  .set("val_bpb_after", has_bytes ? Json(measured->after.bits_per_byte()) : Json());
  if (!account.trained_with.empty()) json.set("trained_with", account.trained_with);
  if (!account.calibrated_on.empty()) json.set("calibrated_on", account.calibrated_on);
  if (account.search) json.set("search", search_json(*account.search));
  if (measured)
    json.set("tokens", measured->after.tokens)
        .set("val_bytes", measured->after.bytes)
        .set("context", measured->options.context)
        .set("stride", measured->options.stride)
        .set("protocol", measured->options.isolate ? "documents" : "golf")
        .set("dtype", dtype_name(measured->dtype));
  return json.set("groups", groups).set("errors", tensors);
}

std::string as_text(const PackAccount& account) {
  const PackReport& report = account.report;
  Table groups({"group", "type", "weights", "bytes", "bits each", "error"});
  for (const PackReport::Group& group : report.groups)
    groups.row({group.name, std::string(name_of(group.storage)), with_commas(group.parameters),
                commas(group.bytes),
                fmt::format("{:.2f}",
                            8.0 * static_cast<double>(group.bytes) / static_cast<double>(group.parameters)),
                fmt::format("{:.2f}%", 100 * group.relative_error)});
  const std::uint64_t model = report.bytes - report.tokenizer_bytes;
  Table facts;
  if (!account.trained_with.empty()) facts.row({"trained with", account.trained_with});
  if (!account.calibrated_on.empty()) facts.row({"calibrated on", account.calibrated_on});
  facts.row({"file", fmt::format("{} bytes, {:.2f} bits per weight, {} of {} tensors quantized ({})",
                                 commas(report.bytes), report.bits_per_weight(), report.quantised_tensors(),
                                 report.tensors.size(), report.rule)});
  facts.row(
      {"predicted",
       fmt::format(
           "{} bytes, {:+.1f} %", commas(report.predicted_bytes),
           100 * (static_cast<double>(report.predicted_bytes) / static_cast<double>(report.bytes) - 1))});
  facts.row({"before compression",
             fmt::format("{} bytes, {:.2f} times smaller than {} bytes of f32", commas(report.payload_bytes),
                         report.ratio(), commas(report.float_bytes))});
  if (report.quantised_tensors() == 0)
    facts.row(
        {"note",
         "no tensor is large enough to be quantized; --bits 6 quantizes smaller tensors than --bits 8"});
  if (report.pruned > 0) facts.row({"pruned", fmt::format("{} weights", with_commas(report.pruned))});
  facts.row(
      {"parameter-golf size", fmt::format("code {} + model {} = {} of {}: {}", commas(report.code_bytes),
                                          commas(model), commas(report.golf_bytes()), commas(report.budget),
                                          verdict(report.golf_bytes(), report.budget))});
  facts.row({"self-contained", fmt::format("plus tokenizer {} = {} of {}: {}", commas(report.tokenizer_bytes),
                                           commas(report.self_contained_bytes()), commas(report.budget),
                                           verdict(report.self_contained_bytes(), report.budget))});
  if (account.measured) facts.row(as_row(*account.measured));
  const std::string searched = account.search ? search_text(*account.search, report.budget) + "\n" : "";
  return searched + groups.text(page_width(0)) + "\n" + facts.text(page_width(0));
}

ScoreOptions score_options(const Arguments& arguments, const Config& config) {
  ScoreOptions options{.context = config.model.context,
                       .stride = std::min(config.pack.stride, config.model.context),
                       .val_tokens = arguments.integer("val-tokens", {.least = 0}),
                       .isolate = config.model.isolate};
  if (arguments.given("stride"))
    options.stride = arguments.integer("stride", {.least = 0, .most = options.context});
  if (options.stride == 0) options.stride = options.context;
  return options;
}

// The data to measure on, and the device.
struct Baseline {
  ByteTable bytes;
  TokenSet set;
  std::shared_ptr<DeviceRuntime> device;
};

// nullopt without --data. Called first, so that a wrong name or a missing GPU is reported before
// minutes of work.
std::optional<Baseline> open_baseline(const ModelFile& model, const Arguments& arguments,
                                      const Console& console, const Interrupt& interrupt) {
  if (!arguments.given("data")) return std::nullopt;
  const auto tokenizer = open_tokenizer(model);
  check(tokenizer != nullptr, "{} has no tokenizer, which is needed to measure bits per byte",
        model.path.string());
  return Baseline{ByteTable(*tokenizer, static_cast<TokenId>(model.config.model.vocab_size)),
                  open_eval_set(arguments.path("data"), *tokenizer, console.progress(), &interrupt),
                  device_from(arguments, console.log())};
}

// Measures models in the same way.
class Scorer {
 public:
  Scorer(const Baseline& baseline, const ScoreOptions& options, const Arguments& arguments, const Log& log,
         const Interrupt& interrupt)
      : baseline_(baseline),
        options_(options),
        interrupt_(interrupt),
        context_(baseline.device),
        dtype_(dtype_from(arguments, context_.device(), log)) {}

  Score score(const ModelFile& file, const ProgressOutput& progress) const {
    Model model = make_model(file, context_, dtype_);
    return score_set(model, baseline_.bytes, baseline_.set, options_, progress, &interrupt_);
  }
  PackMeasurement measure(const ModelFile& before, const ModelFile& after,
                          const ProgressOutput& progress) const {
    return {.options = options_,
            .dtype = dtype_,
            .before = score(before, progress),
            .after = score(after, progress)};
  }

 private:
  const Baseline& baseline_;
  ScoreOptions options_;
  const Interrupt& interrupt_;
  Context context_;
  DType dtype_;
};

// Only checkpoints of a run record how they were trained.
std::string trained_with(const ModelFile& model) {
  return model.step ? recipe(model.config) : "";
}

void check_fits(const PackReport& report, const PackRequest& request, bool allow_over) {
  constexpr int kFewestBits = 5;
  check(report.fits() || allow_over,
        Hint{fmt::format("try {}{}a larger --budget, or --allow-over",
                         request.options.rule.bits > kFewestBits ? "fewer --bits, " : "",
                         request.fit ? "" : "--prune 0.03, --fit (zeroes the cheapest weights), ")},
        "nothing was written: code and artifact have {} bytes, but the budget is {}",
        with_commas(static_cast<long long>(report.self_contained_bytes())),
        with_commas(static_cast<long long>(report.budget)));
}

SearchResult search(const ModelFile& model, const PackRequest& request, const Scorer& scorer,
                    const Console& console, const Interrupt& interrupt) {
  const auto bits_per_byte = [&](const ModelFile& packed) {
    const Score score = scorer.score(packed, ProgressOutput::nowhere());
    return score.bytes > 0 ? score.bits_per_byte() : score.loss();
  };
  return search_packing(model, request, {}, bits_per_byte, console.progress(), &interrupt);
}

int run_pack(const Arguments& arguments, Console& console) {
  PackFlags flags = pack_flags(arguments);
  PosixFileOps ops;
  const Output output = output_from(arguments, ops);
  const ModelFile model = open_model(arguments.path("MODEL"));
  follow_preset(arguments, model, flags);
  const ScoreOptions scored = score_options(arguments, model.config);
  const Interrupt interrupt;
  const auto baseline = open_baseline(model, arguments, console, interrupt);
  std::optional<Scorer> scorer;
  if (baseline) scorer.emplace(*baseline, scored, arguments, console.log(), interrupt);
  Calibration calibration;
  if (flags.gptq) {
    calibration = calibration_from(arguments, model, console, interrupt);
    flags.request.options.gptq = &calibration.factors;
  }
  std::optional<SearchResult> found;
  if (arguments.flag("search")) found = search(model, flags.request, *scorer, console, interrupt);
  const PackResult packed =
      found ? std::move(found->packed) : pack_model(model, flags.request, console.progress(), &interrupt);
  const bool writes = packed.report.fits() || arguments.flag("allow-over");
  PackAccount account{
      .report = packed.report, .trained_with = trained_with(model), .calibrated_on = calibration.source};
  if (found) account.search = &*found;
  if (writes && scorer) account.measured = scorer->measure(model, packed.loaded, console.progress());
  if (writes) {
    make_folders(ops, folder_of(output.path));
    write_file(ops, output.path, packed.bytes, output.existing);
  }
  if (console.json())
    console.print_json(as_json(account));
  else
    console.print(as_text(account));
  check_fits(packed.report, flags.request, writes);
  return 0;
}

}  // namespace

Command pack_command() {
  return {
      .name = "pack",
      .summary = "quantize and compress a model into one file",
      .arguments = {model_argument()},
      .options =
          {{.name = "bits",
            .help = "bits per quantized weight",
            .choices = {"8", "6", "5"},
            .shown_default = "pack_bits of the preset, or 8; 6 with --gptq; unchanged for an artifact"},
           {.name = "clip",
            .help = "how rows are clipped: at a fixed percentile, or at the best of five candidates",
            .choices = {"standard", "search"},
            .shown_default = "standard without --gptq"},
           {.name = "clip-std",
            .value = "K",
            .help = "clip each row at K standard deviations",
            .shown_default = "12.85 with --gptq"},
           {.name = "embed-bits",
            .help = "bits per weight of the embedding and head",
            .choices = {"8", "6", "5"},
            .shown_default = "8 with --gptq"},
           {.name = "embed-clip-std",
            .value = "K",
            .help = "clip the rows of embedding and head at K standard deviations",
            .shown_default = "20 with --gptq"},
           {.name = "gptq",
            .help = "quantize with GPTQ, which compensates rounding errors on calibration text"},
           {.name = "no-gptq", .help = "do not use GPTQ, even if the preset does"},
           {.name = "calibrate",
            .help = "calibration text of GPTQ: the training split of --data, or samples of the model",
            .choices = {"data", "samples"},
            .shown_default = "data if --data has a training split"},
           {.name = "calibration-data",
            .value = "FILE",
            .help = "calibration text of GPTQ: text, chats or shards (their training split)"},
           {.name = "calibration-tokens",
            .value = "N",
            .initial = "131072",
            .help = "number of calibration tokens"},
           {.name = "search",
            .help = "search bits, clipping and pruning for the best result on --data that fits the budget"},
           {.name = "keep",
            .value = "NAME",
            .help = "store tensors whose name contains NAME as f16",
            .repeated = true},
           {.name = "prune",
            .value = "F",
            .help = "set this fraction of each matrix, the smallest weights, to zero",
            .shown_default = "pack_prune of the preset, or 0"},
           {.name = "codec",
            .help = "compression: zstd (level 22), zlib (level 9), or range, a range coder: smallest, slower "
                    "to read",
            .choices = {"zstd", "zlib", "range"},
            .shown_default = "zstd, or as in the preset or artifact"},
           {.name = "budget",
            .value = "N",
            .initial = "16000000",
            .help = "maximum size of code and file, in bytes; a larger file is not written"},
           {.name = "code-bytes",
            .value = "N",
            .initial = "0",
            .help = "bytes of code to count toward the budget"},
           {.name = "fit", .help = "set the least important weights to zero until the file fits the budget"},
           {.name = "allow-over", .help = "write the file even if it exceeds the budget"},
           {.name = "data",
            .value = "FILE",
            .help = "text, chats or shards to measure bits per byte on, before and after"},
           {.name = "stride",
            .value = "N",
            .help = "tokens between evaluation windows",
            .shown_default = "pack_stride of the preset, or the context"},
           {.name = "val-tokens",
            .value = "N",
            .initial = "0",
            .help = "maximum number of tokens to score; 0: all"},
           device_option(),
           {.name = "dtype",
            .initial = "auto",
            .help = "number format of the measurement; auto: as in training",
            .choices = {"auto", "f32", "bf16", "f16"}},
           output_option("artifact to write, such as model.thimble"),
           common::force(),
           common::threads(),
           common::json(),
           common::quiet()},
      .examples =
          {"thimble pack runs/book -o book.thimble",
           "thimble pack runs/golf-1 --gptq --data shards -o golf.thimble",
           "thimble pack runs/golf-1 --gptq --search --data shards --val-tokens 1000000 -o golf.thimble",
           "thimble pack runs/golf-plus-1 --data shards -o golf.thimble",
           "thimble pack runs/book --bits 6 --prune 0.03 --data val.txt --stride 64 -o book.thimble"},
      .run = run_pack};
}

}  // namespace thimble
