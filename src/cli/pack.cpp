#include "cli/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/interrupt.h"
#include "base/table.h"
#include "cli/console.h"
#include "cli/device.h"
#include "cli/output.h"
#include "cli/pack_options.h"
#include "cli/pack_report.h"
#include "cli/parse.h"
#include "eval/eval_data.h"
#include "formats/pack_search.h"
#include "train/recipe.h"

namespace thimble {

namespace {

ScoreOptions score_options(const Arguments& arguments, const Config& config) {
  ScoreOptions options{.context = config.model.context,
                       .stride = std::min(config.train.pack_stride, config.model.context),
                       .val_tokens = arguments.integer("val-tokens", {.least = 0}),
                       .isolate = config.model.isolate};
  if (arguments.given("stride"))
    options.stride = arguments.integer("stride", {.least = 0, .most = options.context});
  if (options.stride == 0) options.stride = options.context;
  return options;
}

// What is scored, and where.
struct Yardstick {
  ByteTable bytes;
  TokenSet set;
  std::shared_ptr<DeviceRuntime> device;
};

// Nothing without --data. Opened before the work begins: a wrong name or a missing card must not cost minutes.
std::optional<Yardstick> open_yardstick(const ModelFile& model, const Arguments& arguments,
                                        const Console& console, const Interrupt& interrupt) {
  if (!arguments.given("data")) return std::nullopt;
  const auto tokenizer = open_tokenizer(model);
  check(tokenizer != nullptr, "{} has no tokenizer: bits per byte need one", model.path.string());
  return Yardstick{ByteTable(*tokenizer, static_cast<TokenId>(model.config.model.vocab_size)),
                   open_eval_set(arguments.path("data"), *tokenizer, console.progress(), &interrupt),
                   device_from(arguments, console.log())};
}

// Scores models on the yardstick, all of them alike.
class Scorer {
 public:
  Scorer(const Yardstick& yardstick, const ScoreOptions& options, const Arguments& arguments, const Log& log,
         const Interrupt& interrupt)
      : yardstick_(yardstick),
        options_(options),
        interrupt_(interrupt),
        context_(yardstick.device),
        dtype_(dtype_from(arguments, context_.device(), log)) {}

  Score score(const ModelFile& file, const ProgressOutput& progress) const {
    Model model = make_model(file, context_, dtype_);
    return score_set(model, yardstick_.bytes, yardstick_.set, options_, progress, &interrupt_);
  }
  PackMeasurement measure(const ModelFile& before, const ModelFile& after,
                          const ProgressOutput& progress) const {
    return {.options = options_,
            .dtype = dtype_,
            .before = score(before, progress),
            .after = score(after, progress)};
  }

 private:
  const Yardstick& yardstick_;
  ScoreOptions options_;
  const Interrupt& interrupt_;
  Context context_;
  DType dtype_;
};

// Only checkpoints of a run say how they were trained.
std::string trained_with(const ModelFile& model) {
  return model.step ? recipe(model.config) : "";
}

void check_fits(const PackReport& report, const PackRequest& request, bool allow_over) {
  constexpr int kFewestBits = 5;
  check(report.fits() || allow_over,
        Hint{fmt::format("{}{}a larger --budget, or --allow-over",
                         request.options.rule.bits > kFewestBits ? "fewer --bits, " : "",
                         request.fit ? "" : "--prune 0.03, --fit (zeroes the cheapest weights), ")},
        "nothing was written: code and artifact take {} bytes, the budget is {}",
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
  const auto yardstick = open_yardstick(model, arguments, console, interrupt);
  std::optional<Scorer> scorer;
  if (yardstick) scorer.emplace(*yardstick, scored, arguments, console.log(), interrupt);
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
      .summary = "squeeze a model into one small file",
      .arguments = {{.name = "MODEL",
                     .help = "run folder, checkpoint, artifact, GGUF or Hugging Face folder"}},
      .options =
          {{.name = "bits",
            .help = "of a quantised weight (default: an artifact's own rule, the preset's pack_bits, or 8; "
                    "with --gptq 6)",
            .choices = {"8", "6", "5"}},
           {.name = "clip",
            .help =
                "where rows are clipped: the rule's own place (default without --gptq), or the best of five",
            .choices = {"standard", "search"}},
           {.name = "clip-std",
            .value = "K",
            .help = "clip rows at K standard deviations (default with --gptq: 12.85)"},
           {.name = "embed-bits",
            .help = "of embedding and head (default with --gptq: 8)",
            .choices = {"8", "6", "5"}},
           {.name = "embed-clip-std",
            .value = "K",
            .help = "clip their rows at K standard deviations (default with --gptq: 20)"},
           {.name = "gptq",
            .help = "round columns one after another, each making up for the errors before it, on text that "
                    "the model "
                    "reads"},
           {.name = "no-gptq", .help = "not, whatever the preset says"},
           {.name = "calibrate",
            .help = "what it reads: the training split of --data (default where there is one), or its own "
                    "samples",
            .choices = {"data", "samples"}},
           {.name = "calibration-data",
            .value = "FILE",
            .help = "or this: text, chats or shards (their training split)"},
           {.name = "calibration-tokens", .value = "N", .initial = "131072", .help = "how much of it"},
           {.name = "search",
            .help = "try bits, clips and pruning, and keep what fits and scores best on --data"},
           {.name = "keep",
            .value = "NAME",
            .help = "tensors with this in their name stay f16",
            .repeated = true},
           {.name = "prune",
            .value = "F",
            .help = "zero the smallest fraction of each matrix (default: the preset's pack_prune, or 0)"},
           {.name = "codec",
            .help = "zstd at level 22, zlib at 9, or our range coder, smallest and slower to read (default: "
                    "an artifact's own, range where the preset has pack_range, or zstd)",
            .choices = {"zstd", "zlib", "range"}},
           {.name = "budget",
            .value = "N",
            .initial = "16000000",
            .help = "bytes of code and file; over it nothing is written"},
           {.name = "code-bytes",
            .value = "N",
            .initial = "0",
            .help = "bytes of code to count with the file"},
           {.name = "fit", .help = "zero the cheapest weights until it fits the budget"},
           {.name = "allow-over", .help = "write it even if it does not fit"},
           {.name = "data",
            .value = "FILE",
            .help = "text, chats or shards: measure bits per byte before and after"},
           {.name = "stride",
            .value = "N",
            .help = "tokens from one window of it to the next (default: the preset's pack_stride, or the "
                    "context)"},
           {.name = "val-tokens", .value = "N", .initial = "0", .help = "score at most so many; 0: all"},
           device_option(),
           {.name = "dtype",
            .initial = "auto",
            .help = "what to measure in; auto: as training does here",
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
