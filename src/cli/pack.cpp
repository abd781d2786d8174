#include "cli/pack.h"

#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/table.h"
#include "cli/console.h"
#include "cli/output.h"
#include "cli/parse.h"
#include "eval/eval_data.h"
#include "eval/score.h"
#include "formats/pack_model.h"

namespace thimble {

namespace {

Clip clip_from(const std::string& text) {
  return text == "search" ? Clip::search : text == "deviation" ? Clip::deviation : Clip::standard;
}

PackRequest request_from(const Arguments& arguments) {
  PackRequest request;
  request.options.rule = {
      .bits = static_cast<int>(arguments.integer("bits")),
      .clip = clip_from(arguments.text("clip")),
      .deviations = static_cast<float>(arguments.number("deviations", {.least = 1, .most = 1000}))};
  if (request.options.rule.clip != Clip::deviation) request.options.rule.deviations = 0;
  request.options.prune = arguments.number("prune", {.least = 0, .most = 0.99});
  request.options.keep = arguments.list("keep");
  request.options.codec = arguments.text("codec") == "zlib" ? Codec::zlib : Codec::zstd;
  request.budget = static_cast<std::uint64_t>(arguments.integer("budget", {.least = 1}));
  request.code_bytes = static_cast<std::uint64_t>(
      arguments.integer("code-bytes", {.least = 0, .most = std::int64_t{1} << 40}));
  request.fit = arguments.flag("fit");
  return request;
}

double bits_per_byte(const ModelFile& file, const Arguments& arguments, const Console& console,
                     const Interrupt& interrupt) {
  const auto tokenizer = open_tokenizer(file);
  check(tokenizer != nullptr, "{} has no tokenizer: bits per byte need one", file.path.string());
  const Context context;
  Model model = make_model(file, context);
  const ByteTable bytes(*tokenizer, static_cast<TokenId>(model.config().vocab_size));
  const TokenSet set = open_eval_set(arguments.path("data"), *tokenizer);
  const ScoreOptions options{.val_tokens = arguments.integer("val-tokens", {.least = 0})};
  return score_set(model, bytes, set, options, console.progress(), &interrupt).bits_per_byte();
}

struct BitsPerByte {
  std::optional<double> before, after;
};

Json as_json(const PackReport& report, const BitsPerByte& bpb) {
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
  const auto account = [&](std::uint64_t bytes) {
    return Json::object().set("bytes", bytes).set("fits", bytes <= report.budget);
  };
  const auto optional = [](const std::optional<double>& value) { return value ? Json(*value) : Json(); };
  return Json::object()
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
      .set("val_bpb_before", optional(bpb.before))
      .set("val_bpb_after", optional(bpb.after))
      .set("groups", groups)
      .set("errors", tensors);
}

std::string commas(std::uint64_t value) {
  return with_commas(static_cast<long long>(value));
}

std::string verdict(std::uint64_t bytes, std::uint64_t budget) {
  return bytes <= budget ? fmt::format("fits, {} to spare", commas(budget - bytes))
                         : fmt::format("{} too many", commas(bytes - budget));
}

std::string as_text(const PackReport& report, const BitsPerByte& bpb) {
  Table groups({"group", "type", "weights", "bytes", "bits each", "error"});
  for (const PackReport::Group& group : report.groups)
    groups.row({group.name, std::string(name_of(group.storage)), with_commas(group.parameters),
                commas(group.bytes),
                fmt::format("{:.2f}",
                            8.0 * static_cast<double>(group.bytes) / static_cast<double>(group.parameters)),
                fmt::format("{:.2f}%", 100 * group.relative_error)});
  const std::uint64_t model = report.bytes - report.tokenizer_bytes;
  Table facts;
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
  if (bpb.before)
    facts.row({"bits per byte", fmt::format("{:.4f} before, {:.4f} packed", *bpb.before, *bpb.after)});
  return groups.text() + "\n" + facts.text();
}

void check_fits(const PackReport& report, bool allow_over) {
  check(report.fits() || allow_over,
        Hint{"fewer --bits, --prune 0.03, --fit (zeroes the cheapest weights), a larger --budget, or "
             "--allow-over"},
        "nothing was written: code and artifact take {} bytes, the budget is {}",
        commas(report.self_contained_bytes()), commas(report.budget));
}

int run_pack(const Arguments& arguments, Console& console) {
  PosixFileOps ops;
  const PackRequest request = request_from(arguments);
  const Output output = output_from(arguments, ops);
  const ModelFile model = open_model(arguments.path("MODEL"));
  const Interrupt interrupt;
  const PackResult packed = pack_model(model, request, console.progress(), &interrupt);
  const bool writes = packed.report.fits() || arguments.flag("allow-over");
  BitsPerByte bpb;
  if (writes && arguments.given("data")) {
    bpb.before = bits_per_byte(model, arguments, console, interrupt);
    bpb.after = bits_per_byte(packed.loaded, arguments, console, interrupt);
  }
  if (writes) write_file(ops, output.path, packed.bytes, output.existing);
  if (console.json())
    console.print_json(as_json(packed.report, bpb));
  else
    console.print(as_text(packed.report, bpb));
  check_fits(packed.report, writes);
  return 0;
}

}  // namespace

Command pack_command() {
  return {.name = "pack",
          .summary = "squeeze a model into one small file",
          .arguments = {{.name = "MODEL", .help = "run folder, checkpoint, artifact or Hugging Face folder"}},
          .options =
              {{.name = "bits", .initial = "8", .help = "of a quantised weight", .choices = {"8", "6", "5"}},
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
                .initial = "0",
                .help = "zero the smallest fraction of each matrix"},
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
               {.name = "val-tokens", .value = "N", .initial = "0", .help = "score at most so many; 0: all"},
               output_option("artifact to write, such as model.thimble"),
               common::force(),
               common::threads(),
               common::json(),
               common::quiet()},
          .examples = {"thimble pack runs/book -o book.thimble",
                       "thimble pack runs/golf --bits 6 --prune 0.03 --data val.txt -o golf.thimble"},
          .run = run_pack};
}

}  // namespace thimble
