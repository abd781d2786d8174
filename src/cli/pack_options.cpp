#include "cli/pack_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/table.h"
#include "base/text.h"
#include "cli/console.h"
#include "cli/option.h"
#include "cli/parse.h"
#include "data/data_folder.h"
#include "eval/eval_data.h"
#include "formats/artifact.h"

namespace thimble {

namespace {

constexpr Range<double> kClips = {.least = 1, .most = 1000};

Codec codec_from(const std::string& text) {
  return text == "zlib" ? Codec::zlib : text == "range" ? Codec::range : Codec::zstd;
}

void check_pack_flags(const Arguments& arguments) {
  for (const std::string& name : arguments.list("keep"))
    if (name.empty()) throw UsageError("--keep expects a part of a tensor name, found an empty string");
  if (arguments.given("clip") && arguments.given("clip-std"))
    throw UsageError("--clip and --clip-std cannot be combined");
  if (arguments.flag("gptq") && arguments.flag("no-gptq"))
    throw UsageError("--gptq and --no-gptq cannot be combined");
  const auto needs = [&](std::string_view name, std::string_view other) {
    if (arguments.given(name) && !arguments.given(other))
      throw UsageError(fmt::format("--{} needs --{}", name, other));
  };
  if (arguments.given("calibration-data") && arguments.text("calibrate") == "samples")
    throw UsageError("--calibrate samples and --calibration-data cannot be combined");
  needs("stride", "data");
  needs("val-tokens", "data");
  if (arguments.flag("search")) {
    if (!arguments.given("data")) throw UsageError("--search needs a text to measure on: pass --data");
    for (const std::string_view name : {"bits", "clip", "clip-std", "prune", "fit", "allow-over"})
      if (arguments.given(name))
        throw UsageError(fmt::format("--{} cannot be combined with --search, which chooses it", name));
  }
}

// The weights of an artifact are already quantized; they are quantized again only if a flag
// requests it.
bool is_left_as_packed(const Arguments& arguments, const ModelFile& model) {
  constexpr std::array<std::string_view, 7> kRounding = {"bits",           "clip", "clip-std", "embed-bits",
                                                         "embed-clip-std", "gptq", "search"};
  return model.format == "thimble" &&
         std::ranges::none_of(kRounding, [&](std::string_view name) { return arguments.given(name); });
}

// Keeps the quantized weights, and prunes only if --prune was given.
void leave_as_packed(const Arguments& arguments, const ModelFile& model, PackFlags& flags) {
  PackOptions& options = flags.request.options;
  check(options.keep.empty(), Hint{"add --bits N to quantize all other tensors again"},
        "--keep: the weights of {} are already quantized", model.path.string());
  flags.request.as_packed = true;
  if (!arguments.given("prune")) options.prune = 0;
}

void check_calibration_flags(const Arguments& arguments) {
  for (const std::string_view name : {"calibrate", "calibration-data", "calibration-tokens"})
    if (arguments.given(name)) throw UsageError(fmt::format("--{} needs --gptq", name));
}

// Rejects names that match no tensor, which are probably mistyped.
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
         "--keep {}: no tensor name contains this", name);
  }
}

// The text to calibrate on; empty: samples of the model.
std::filesystem::path calibration_text(const Arguments& arguments) {
  if (arguments.text("calibrate") == "samples") return {};
  if (arguments.given("calibration-data")) return arguments.path("calibration-data");
  const bool splits = arguments.given("data") && is_data_folder(arguments.path("data")) &&
                      !open_data_folder(arguments.path("data")).train.empty();
  if (splits) return arguments.path("data");
  check(!arguments.given("calibrate"),
        Hint{"use a folder of shards such as RUN/data, --calibration-data TEXT, or --calibrate samples"},
        "--calibrate data: --data has no training split");
  return {};
}

TokenSet open_calibration_set(const std::filesystem::path& path, const Tokenizer& tokenizer,
                              const Console& console, const Interrupt& interrupt) {
  if (!is_data_folder(path)) return open_eval_set(path, tokenizer, console.progress(), &interrupt);
  const DataFolder folder = open_data_folder(path);
  check_tokenizer(folder, tokenizer);
  check(!folder.train.empty(), "{} has no training shards", path.string());
  return open_split(folder, DataSplit::train, TokenMarks::of(tokenizer, folder.kind(), LossOn::all));
}

}  // namespace

PackFlags pack_flags(const Arguments& arguments) {
  check_pack_flags(arguments);
  PackFlags flags;
  PackRequest& request = flags.request;
  request.options.keep = arguments.list("keep");
  request.budget = static_cast<std::uint64_t>(arguments.integer("budget", {.least = 1}));
  request.code_bytes = static_cast<std::uint64_t>(
      arguments.integer("code-bytes", {.least = 0, .most = std::int64_t{1} << 40}));
  request.fit = arguments.flag("fit");
  // Checked before the model is opened, to report a wrong number immediately.
  for (const std::string_view name : {"clip-std", "embed-clip-std"})
    if (arguments.given(name)) arguments.number(name, kClips);
  if (arguments.given("prune")) arguments.number("prune", {.least = 0, .most = 0.99});
  arguments.integer("calibration-tokens", {.least = 1, .most = std::int64_t{1} << 32});
  return flags;
}

void follow_preset(const Arguments& arguments, const ModelFile& model, PackFlags& flags) {
  PackOptions& options = flags.request.options;
  check_kept(options.keep, ParamTable(model.config.model));
  PackConfig requested = model.config.pack;
  if (arguments.flag("gptq")) requested.gptq = true;
  if (arguments.flag("no-gptq")) requested.gptq = false;
  if (arguments.given("bits")) requested.bits = arguments.integer("bits");
  if (arguments.given("clip-std")) requested.clip_std = arguments.number("clip-std", kClips);
  if (arguments.given("embed-bits")) requested.embed_bits = arguments.integer("embed-bits");
  if (arguments.given("embed-clip-std"))
    requested.embed_clip_std = arguments.number("embed-clip-std", kClips);
  if (arguments.given("prune")) requested.prune = arguments.number("prune");
  const PackOptions preset = pack_options(requested);
  options.rule = preset.rule;
  options.embedding = preset.embedding;
  options.prune = preset.prune;
  options.codec = arguments.given("codec")    ? codec_from(arguments.text("codec"))
                  : model.format == "thimble" ? artifact_codec(model.path)
                                              : preset.codec;
  flags.gptq = requested.gptq;
  if (!flags.gptq) check_calibration_flags(arguments);
  if (is_left_as_packed(arguments, model)) leave_as_packed(arguments, model, flags);
  if (arguments.given("clip"))
    options.rule = {.bits = options.rule.bits,
                    .clip = arguments.text("clip") == "search" ? Clip::search : Clip::standard};
}

Calibration calibration_from(const Arguments& arguments, const ModelFile& model, const Console& console,
                             const Interrupt& interrupt) {
  const auto tokenizer = open_tokenizer(model);
  check(tokenizer != nullptr, "{} has no tokenizer, which GPTQ calibration needs", model.path.string());
  const Context context(device_from(arguments, console.log()));
  Model reader = make_model(model, context, dtype_from(arguments, context.device(), console.log()));
  const std::int64_t tokens = arguments.integer("calibration-tokens");
  const std::filesystem::path text = calibration_text(arguments);
  Grid windows;
  if (text.empty()) {
    const auto bos = tokenizer->special().bos;
    check(bos.has_value(), Hint{"pass a text with --calibration-data"},
          "the tokenizer has no bos token to start samples with");
    windows = sampled_windows(reader, *bos, tokens, 0, console.progress(), &interrupt);
  } else {
    windows = calibration_windows(open_calibration_set(text, *tokenizer, console, interrupt), reader.config(),
                                  tokens);
  }
  const std::string read = with_commas(static_cast<long long>(windows.input.size()));
  return {
      GptqFactors(calibrate(reader, windows, console.progress(), &interrupt), console.progress(), &interrupt),
      text.empty() ? fmt::format("{} tokens generated by the model", read)
                   : fmt::format("{} tokens of {}", read, text.string())};
}

}  // namespace thimble
