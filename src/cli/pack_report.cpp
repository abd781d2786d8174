#include "cli/pack_report.h"

#include <fmt/format.h>

#include "base/table.h"
#include "cli/console.h"

namespace thimble {

namespace {

std::string commas(std::uint64_t value) {
  return with_commas(static_cast<long long>(value));
}

std::string verdict(std::uint64_t bytes, std::uint64_t budget) {
  return bytes <= budget ? fmt::format("fits, {} to spare", commas(budget - bytes))
                         : fmt::format("{} too many", commas(bytes - budget));
}

// What stands for no bytes, such as empty answers, still has a loss.
std::vector<std::string> as_row(const PackMeasurement& measured) {
  const Score &before = measured.before, &after = measured.after;
  const bool bytes = after.bytes > 0;
  return {bytes ? "bits per byte" : "nats per token",
          fmt::format("{:.4f} before, {:.4f} packed ({} tokens, context {}, stride {}, {})",
                      bytes ? before.bits_per_byte() : before.loss(),
                      bytes ? after.bits_per_byte() : after.loss(), with_commas(after.tokens),
                      measured.options.context, measured.options.stride,
                      measured.options.isolate ? "documents by themselves" : "as golf scores")};
}

// "own place", "search" or a number of deviations.
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

// What was packed, and of the rest what would have fitted.
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

}  // namespace

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
  facts.row({"file", fmt::format("{} bytes, {:.2f} bits per weight, {} of {} tensors quantised ({})",
                                 commas(report.bytes), report.bits_per_weight(), report.quantised_tensors(),
                                 report.tensors.size(), report.rule)});
  facts.row(
      {"predicted",
       fmt::format(
           "{} bytes, {:+.1f} %", commas(report.predicted_bytes),
           100 * (static_cast<double>(report.predicted_bytes) / static_cast<double>(report.bytes) - 1))});
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
  if (account.measured) facts.row(as_row(*account.measured));
  const std::string searched = account.search ? search_text(*account.search, report.budget) + "\n" : "";
  return searched + groups.text(page_width(0)) + "\n" + facts.text(page_width(0));
}

}  // namespace thimble
