#include "cli/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/nearest.h"
#include "base/table.h"
#include "cli/console.h"
#include "cli/device.h"
#include "cli/output.h"
#include "cli/parse.h"
#include "eval/eval_data.h"
#include "eval/score.h"
#include "formats/pack_model.h"
#include "train/recipe.h"

namespace thimble {

namespace {

constexpr int kDefaultBits = 8;

Clip clip_from(const std::string& text) {
  return text == "search" ? Clip::search : text == "deviation" ? Clip::deviation : Clip::standard;
}

PackRequest request_from(const Arguments& arguments) {
  PackRequest request;
  request.options.rule = {
      .bits = arguments.given("bits") ? static_cast<int>(arguments.integer("bits")) : kDefaultBits,
      .clip = clip_from(arguments.text("clip")),
      .deviations = static_cast<float>(arguments.number("deviations", {.least = 1, .most = 1000}))};
  if (request.options.rule.clip != Clip::deviation) request.options.rule.deviations = 0;
  if (arguments.given("prune")) request.options.prune = arguments.number("prune", {.least = 0, .most = 0.99});
  request.options.keep = arguments.list("keep");
  request.options.codec = arguments.text("codec") == "zlib" ? Codec::zlib : Codec::zstd;
  request.budget = static_cast<std::uint64_t>(arguments.integer("budget", {.least = 1}));
  request.code_bytes = static_cast<std::uint64_t>(
      arguments.integer("code-bytes", {.least = 0, .most = std::int64_t{1} << 40}));
  request.fit = arguments.flag("fit");
  return request;
}

// What was not asked for is as the preset wants it that the model was trained by.
void follow_preset(const Arguments& arguments, const TrainConfig& preset, PackRequest& request) {
  if (!arguments.given("bits") && preset.pack_bits > 0)
    request.options.rule.bits = static_cast<int>(preset.pack_bits);
  if (!arguments.given("prune")) request.options.prune = preset.pack_prune;
}

// Bits per byte before and after, measured in the same way.
struct Measurement {
  ScoreOptions options;
  DType dtype = DType::f32;
  Score before = {}, after = {};
};

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

Measurement measure(const ModelFile& before, const ModelFile& after, const Yardstick& yardstick,
                    const ScoreOptions& options, const Arguments& arguments, const Console& console,
                    const Interrupt& interrupt) {
  const Context context(yardstick.device);
  Measurement result{.options = options, .dtype = dtype_from(arguments, context.device())};
  const auto score = [&](const ModelFile& file) {
    Model model = make_model(file, context, result.dtype);
    return score_set(model, yardstick.bytes, yardstick.set, options, console.progress(), &interrupt);
  };
  result.before = score(before);
  result.after = score(after);
  return result;
}

Json as_json(const PackReport& report, const std::string& trained_with,
             const std::optional<Measurement>& measured) {
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
  const auto account = [&](std::uint64_t bytes) {
    return Json::object().set("bytes", bytes).set("fits", bytes <= report.budget);
  };
  Json json = Json::object()
                  .set("bytes", report.bytes)
                  .set("budget", report.budget)
                  .set("fits", report.fits())
                  .set("code_bytes", report.code_bytes)
                  .set("tokenizer_bytes", report.tokenizer_bytes)
                  .set("golf", account(report.golf_bytes()))
                  .set("self_contained", account(report.self_contained_bytes()))
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
  if (!trained_with.empty()) json.set("trained_with", trained_with);
  if (measured)
    json.set("tokens", measured->after.tokens)
        .set("val_bytes", measured->after.bytes)
        .set("context", measured->options.context)
        .set("stride", measured->options.stride)
        .set("protocol", measured->options.isolate ? "documents" : "golf")
        .set("dtype", dtype_name(measured->dtype));
  return json.set("groups", groups).set("errors", tensors);
}

std::string commas(std::uint64_t value) {
  return with_commas(static_cast<long long>(value));
}

std::string verdict(std::uint64_t bytes, std::uint64_t budget) {
  return bytes <= budget ? fmt::format("fits, {} to spare", commas(budget - bytes))
                         : fmt::format("{} too many", commas(bytes - budget));
}

// What stands for no bytes, such as empty answers, still has a loss.
std::vector<std::string> as_row(const Measurement& measured) {
  const Score &before = measured.before, &after = measured.after;
  const bool bytes = after.bytes > 0;
  return {bytes ? "bits per byte" : "nats per token",
          fmt::format("{:.4f} before, {:.4f} packed ({} tokens, context {}, stride {}, {})",
                      bytes ? before.bits_per_byte() : before.loss(),
                      bytes ? after.bits_per_byte() : after.loss(), with_commas(after.tokens),
                      measured.options.context, measured.options.stride,
                      measured.options.isolate ? "documents by themselves" : "as golf scores")};
}

std::string as_text(const PackReport& report, const std::string& trained_with,
                    const std::optional<Measurement>& measured) {
  Table groups({"group", "type", "weights", "bytes", "bits each", "error"});
  for (const PackReport::Group& group : report.groups)
    groups.row({group.name, std::string(name_of(group.storage)), with_commas(group.parameters),
                commas(group.bytes),
                fmt::format("{:.2f}",
                            8.0 * static_cast<double>(group.bytes) / static_cast<double>(group.parameters)),
                fmt::format("{:.2f}%", 100 * group.relative_error)});
  const std::uint64_t model = report.bytes - report.tokenizer_bytes;
  Table facts;
  if (!trained_with.empty()) facts.row({"trained with", trained_with});
  facts.row({"file", fmt::format("{} bytes, {:.2f} bits per weight, {} of {} tensors quantised ({})",
                                 commas(report.bytes), report.bits_per_weight(), report.quantised_tensors(),
                                 report.tensors.size(), report.rule)});
  facts.row({"before compression",
             fmt::format("{} bytes, {:.2f} times smaller than {}", commas(report.payload_bytes),
                         report.ratio(), commas(report.float_bytes))});
  if (report.quantised_tensors() == 0)
    facts.row(
        {"note", "no tensor is large enough for these bits; --bits 6 takes smaller ones than --bits 8"});
  if (report.pruned > 0) facts.row({"pruned", fmt::format("{} weights", with_commas(report.pruned))});
  facts.row({"golf's rule", fmt::format("code {} + model {} = {} of {}: {}", commas(report.code_bytes),
                                        commas(model), commas(report.golf_bytes()), commas(report.budget),
                                        verdict(report.golf_bytes(), report.budget))});
  facts.row(
      {"self-contained", fmt::format("with the tokenizer's {}: {} of {}: {}", commas(report.tokenizer_bytes),
                                     commas(report.self_contained_bytes()), commas(report.budget),
                                     verdict(report.self_contained_bytes(), report.budget))});
  if (measured) facts.row(as_row(*measured));
  return groups.text(page_width(0)) + "\n" + facts.text(page_width(0));
}

// Only checkpoints of a run say how they were trained.
std::string trained_with(const ModelFile& model) {
  return model.step ? recipe(model.config) : "";
}

void check_together(const Arguments& arguments) {
  if (arguments.given("deviations") && arguments.text("clip") != "deviation")
    throw UsageError("--deviations is for --clip deviation");
  for (const std::string_view name : {"stride", "val-tokens"})
    if (arguments.given(name) && !arguments.given("data"))
      throw UsageError(fmt::format("--{} is for --data", name));
}

// A name that is nobody's keeps nothing: it was mistyped.
void check_kept(const std::vector<std::string>& names, const ParamTable& table) {
  std::vector<std::string_view> known;
  for (const Param& param : table.all()) {
    const std::string_view name = param.name;
    known.push_back(name);
    for (std::size_t begin = 0; begin < name.size();) {
      const std::size_t end = std::min(name.find('.', begin), name.size());
      known.push_back(name.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  for (const std::string& name : names) {
    if (std::ranges::any_of(table.all(), [&](const Param& p) { return p.name.find(name) != p.name.npos; }))
      continue;
    const std::string_view best = nearest(name, known);
    fail(Hint{best.empty() ? "`thimble inspect MODEL` lists their names"
                           : fmt::format("did you mean '{}'?", best)},
         "--keep {}: no tensor has this in its name", name);
  }
}

void check_fits(const PackReport& report, bool fitted, bool allow_over) {
  check(report.fits() || allow_over,
        Hint{fmt::format("fewer --bits, {}a larger --budget, or --allow-over",
                         fitted ? "" : "--prune 0.03, --fit (zeroes the cheapest weights), ")},
        "nothing was written: code and artifact take {} bytes, the budget is {}",
        commas(report.self_contained_bytes()), commas(report.budget));
}

int run_pack(const Arguments& arguments, Console& console) {
  check_together(arguments);
  PosixFileOps ops;
  PackRequest request = request_from(arguments);
  const Output output = output_from(arguments, ops);
  const ModelFile model = open_model(arguments.path("MODEL"));
  check_kept(request.options.keep, ParamTable(model.config.model));
  follow_preset(arguments, model.config.train, request);
  const ScoreOptions scored = score_options(arguments, model.config);
  const Interrupt interrupt;
  const auto yardstick = open_yardstick(model, arguments, console, interrupt);
  const PackResult packed = pack_model(model, request, console.progress(), &interrupt);
  const bool writes = packed.report.fits() || arguments.flag("allow-over");
  std::optional<Measurement> measured;
  if (writes && yardstick)
    measured = measure(model, packed.loaded, *yardstick, scored, arguments, console, interrupt);
  if (writes) {
    make_folders(ops, folder_of(output.path));
    write_file(ops, output.path, packed.bytes, output.existing);
  }
  if (console.json())
    console.print_json(as_json(packed.report, trained_with(model), measured));
  else
    console.print(as_text(packed.report, trained_with(model), measured));
  check_fits(packed.report, request.fit, writes);
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
            .help = "of a quantised weight (default: the preset's pack_bits, or 8)",
            .choices = {"8", "6", "5"}},
           {.name = "clip",
            .initial = "standard",
            .help = "where rows are clipped: the rule's own place, the best of five, or at K deviations",
            .choices = {"standard", "search", "deviation"}},
           {.name = "deviations", .value = "K", .initial = "12.85", .help = "of --clip deviation"},
           {.name = "keep",
            .value = "NAME",
            .help = "tensors with this in their name stay f16",
            .repeated = true},
           {.name = "prune",
            .value = "F",
            .help = "zero the smallest fraction of each matrix (default: the preset's pack_prune, or 0)"},
           {.name = "codec", .initial = "zstd", .help = "level 22 or 9", .choices = {"zstd", "zlib"}},
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
      .examples = {"thimble pack runs/book -o book.thimble",
                   "thimble pack runs/golf-plus-1 --data shards -o golf.thimble",
                   "thimble pack runs/book --bits 6 --prune 0.03 --data val.txt --stride 64 -o book.thimble"},
      .run = run_pack};
}

}  // namespace thimble
