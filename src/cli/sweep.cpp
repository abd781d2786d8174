// thimble sweep: checks the variants, shares their tokens, trains the runs, and reports.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/digest.h"
#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/parallel.h"
#include "base/signals.h"
#include "base/table.h"
#include "base/text.h"
#include "cli/console.h"
#include "cli/option.h"
#include "cli/parse.h"
#include "cli/train_inputs.h"
#include "data/data_folder.h"
#include "sweep/plan.h"
#include "sweep/report.h"
#include "sweep/results.h"
#include "sweep/runner.h"

namespace thimble {

Command train_command();

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxPlanBytes = 1 << 20;
constexpr std::uint64_t kMaxLogBytes = 1 << 26;
constexpr std::int64_t kMostJobs = 1024;
constexpr double kMemoryShare = 0.8;  // of the free memory, for runs side by side

// The cost of a variant, from `thimble train --dry-run`.
struct VariantCost {
  std::int64_t steps = 0, val_tokens = 0, memory_bytes = 0, available_bytes = 0, parameters = 0;
  std::string device;
};

std::vector<std::string> words_of(std::vector<std::string> first, const std::vector<std::string>& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

// The words of `thimble train` for a variant. The preset is always named, so that `train` does not
// choose settings by itself.
std::vector<std::string> words_for(const SweepVariant& variant, bool with_data) {
  std::vector<std::string> words = train_words(variant, with_data);
  if (!variant.option("preset") && !variant.option("init_model"))
    words.insert(words.begin(), {"--preset", std::string(kDefaultPreset)});
  return words;
}

// Plans a run of each variant. This checks what the file of the sweep cannot tell: data, models,
// and combinations of options.
std::vector<VariantCost> costs_of(const SweepPlan& plan, const std::string& device, const Console& console,
                                  const Interrupt& interrupt) {
  std::vector<VariantCost> costs;
  ProgressBar bar(console.progress(), "checking", "variants", plan.variants.size());
  for (const SweepVariant& variant : plan.variants) {
    check(variant.option("data") != nullptr,
          Hint{"write data = \"FILE\" in the section [base], or pass --data"}, "variant {} has no data",
          variant.name);
    try {
      const std::string text =
          output_of(words_of({"train", "--dry-run", "--json", "--device", device}, words_for(variant, true)),
                    interrupt);
      const Json report = parse_json(text, "the dry run");
      const Json &config = report.at("config"), &memory = report.at("memory_bytes");
      costs.push_back({.steps = config.at("steps").as_int(),
                       .val_tokens = config.at("val_tokens").as_int(),
                       .memory_bytes = memory.at("total").as_int(),
                       .available_bytes = memory.at("available").as_int(),
                       .parameters = report.at("parameters").at("total").as_int(),
                       .device = report.at("device").as_string()});
    } catch (const Interrupted&) {
      throw;
    } catch (const Error& error) {
      fail("variant {}: {}", variant.name, error.what());
    }
    bar.advance(1);
  }
  return costs;
}

// How many runs are trained side by side, and the threads of each.
struct Parallel {
  int jobs = 1, threads = 1;
};

Parallel parallel_from(const Arguments& arguments, const std::vector<VariantCost>& costs, std::size_t runs,
                       const fs::path& recorded) {
  std::optional<Parallel> before;  // of the first call, so that a resumed sweep gives the same bits
  if (fs::exists(recorded)) {
    const Json json = parse_json(read_file(recorded, kMaxPlanBytes), recorded.string());
    const auto count = [&](std::string_view key) {
      return static_cast<int>(std::clamp<std::int64_t>(json.at(key).as_int(), 1, kMostJobs));
    };
    before = {count("jobs"), count("threads")};
  }
  Parallel parallel;
  if (arguments.given("jobs")) {
    parallel.jobs = static_cast<int>(arguments.integer("jobs", {.least = 1, .most = kMostJobs}));
  } else if (before && !arguments.given("threads")) {
    parallel.jobs = before->jobs;
  } else if (costs.front().device == "cpu") {
    std::int64_t jobs = std::min<std::int64_t>(max_threads(), static_cast<std::int64_t>(runs));
    for (const VariantCost& cost : costs)
      if (cost.available_bytes > 0)
        jobs = std::min(jobs,
                        static_cast<std::int64_t>(kMemoryShare * static_cast<double>(cost.available_bytes)) /
                            std::max<std::int64_t>(1, cost.memory_bytes));
    parallel.jobs = static_cast<int>(std::max<std::int64_t>(1, jobs));
  }
  parallel.threads =
      before && !arguments.given("threads") ? before->threads : std::max(1, max_threads() / parallel.jobs);
  return parallel;
}

// The tokens that the runs of one or several variants share.
struct SharedData {
  std::vector<std::string> words;  // for `thimble train`
  fs::path held_out;               // empty: no validation data
  bool made_vocabulary = false;    // vocab_size was the size of the tokenizer to be trained
};

// Tokenizes the data of a variant into FOLDER/data, unless another variant or an earlier call has.
class DataSharing {
 public:
  DataSharing(const fs::path& folder, Console& console, const Interrupt& interrupt)
      : folder_(folder), console_(console), interrupt_(interrupt), train_(train_command()) {}

  const SharedData& of(const SweepVariant& variant) {
    const Arguments arguments = parse(train_, words_for(variant, true));
    const ConfigBuilder settings = settings_from(arguments);
    const NamedData named(arguments, &interrupt_);
    DataSettings source = data_from(arguments, settings.preset_name(), named);
    if (arguments.flag("skip-long")) source.longest_chat = settings.current().model.context;
    const auto spec = spec_from(arguments, settings, source);
    const std::string key = key_of(arguments, source, spec);
    const auto found = by_key_.find(key);
    return found != by_key_.end() ? found->second : by_key_[key] = open(arguments, source, spec, key);
  }

 private:
  static std::string key_of(const Arguments& arguments, const DataSettings& source,
                            const std::optional<TokenizerSpec>& spec) {
    DataSettings settings = source;
    settings.order = {};
    const bool is_default = !arguments.given("tokenizer") && !arguments.given("init");
    return settings.to_json() + (is_default ? "bytes" : arguments.text("tokenizer")) + "\n" +
           arguments.text("init") + "\n" + (spec ? std::to_string(spec->vocab_size) : "");
  }

  SharedData open(const Arguments& arguments, const DataSettings& source,
                  const std::optional<TokenizerSpec>& spec, const std::string& key) const {
    SharedData shared;
    shared.made_vocabulary = spec && !arguments.given("tokenizer");
    fs::path folder = source.data;
    if (is_data_folder(source.data)) {
      if (!source.val_data.empty()) shared.words = {"--val-data", source.val_data.string()};
    } else {
      constexpr std::size_t kDigits = 12;
      folder = fs::absolute(folder_ / "data" / digest_of(key).hex().substr(0, kDigits));
      if (!is_data_folder(folder)) build(arguments, source, spec, folder);
    }
    shared.words.insert(shared.words.begin(), {"--data", folder.string()});
    const DataFolder opened = open_data_folder(folder);
    if (!opened.files(DataSplit::val).empty()) shared.held_out = folder;
    if (is_data_folder(source.data) && !source.val_data.empty()) shared.held_out = source.val_data;
    return shared;
  }

  void build(const Arguments& arguments, const DataSettings& source, const std::optional<TokenizerSpec>& spec,
             const fs::path& folder) const {
    std::optional<ModelFile> init;
    if (arguments.given("init")) init = open_model(arguments.path("init"));
    const auto tokenizer =
        tokenizer_from(arguments, spec, source, init ? &*init : nullptr, console_, interrupt_);
    DataSettings settings = source;
    settings.layout = chat_layout_from(source, init ? &*init : nullptr);
    PosixFileOps ops;
    open_train_data({.settings = settings, .tokenizer = tokenizer, .build_in = folder}, ops, console_.log(),
                    console_.progress(), interrupt_);
  }

  const fs::path& folder_;
  Console& console_;
  const Interrupt& interrupt_;
  Command train_;
  std::map<std::string, SharedData> by_key_;
};

// Identifies the settings of a variant in its results.
std::string settings_digest(const SweepVariant& variant, const SweepPlan& plan) {
  std::vector<std::string> words = train_words(variant, true);
  words.emplace_back(plan.score == SweepScore::best ? "best" : "last");
  return digest_of(joined(words, "\n")).hex();
}

// A run that still has to be trained.
struct PlannedRun {
  std::size_t variant = 0;
  std::int64_t seed = 0;
};

// The runs without a result, every variant once before the second seed starts. Runs that failed are
// repeated.
std::vector<PlannedRun> missing_runs(const SweepPlan& plan, const std::vector<SweepResult>& results,
                                     const fs::path& folder) {
  std::vector<PlannedRun> missing;
  for (const std::int64_t seed : plan.seeds)
    for (std::size_t v = 0; v < plan.variants.size(); ++v) {
      const SweepVariant& variant = plan.variants[v];
      bool done = false;
      for (const SweepResult& result : results) {
        if (result.variant != variant.name || result.seed != seed) continue;
        check(result.digest == settings_digest(variant, plan),
              Hint{"give the variant another name, or choose another folder with -o"},
              "{} has a result of variant {} with other settings", folder.string(), variant.name);
        const bool packed = !plan.pack || std::isfinite(result.packed_bpb) || !result.finished();
        done = done || (result.status != kFailed && packed);
      }
      if (!done) missing.push_back({v, seed});
    }
  return missing;
}

SweepRun sweep_run(const SweepPlan& plan, const PlannedRun& planned, const VariantCost& cost,
                   const SharedData& data) {
  SweepVariant variant = plan.variants[planned.variant];
  if (data.made_vocabulary)
    std::erase_if(variant.settings, [](const SweepSetting& setting) { return setting.key == "vocab_size"; });
  const std::string* preset = variant.option("preset");
  const std::string seed = std::to_string(planned.seed);
  SweepRun run{.id = fmt::format("{}-{}", variant.name, planned.seed),
               .train = words_of(words_of(data.words, words_for(variant, false)), {"--seed", seed}),
               .steps = cost.steps,
               .val_tokens = cost.val_tokens,
               .held_out = data.held_out};
  run.facts = Json::object()
                  .set("variant", variant.name)
                  .set("base", planned.variant == 0)
                  .set("note", variant.note)
                  .set("preset", preset ? *preset : std::string(kDefaultPreset))
                  .set("settings", variant.changes_text())
                  .set("settings_digest", settings_digest(plan.variants[planned.variant], plan))
                  .set("score", plan.score == SweepScore::best ? "best" : "last")
                  .set("seed", planned.seed);
  Json words = Json::array();
  for (const std::string& word : train_words(plan.variants[planned.variant], true)) words.push(word);
  run.facts.set("train", words);
  return run;
}

// The folder of the sweep, which is new, empty, or already contains a sweep.
void check_folder(const fs::path& folder) {
  if (!fs::exists(folder)) return;
  const bool ours = fs::exists(folder / "results.jsonl") && fs::exists(folder / "sweep.toml");
  const fs::path foreign = foreign_entry(folder, [&](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();  // a killed sweep may have only these
    return ours || name == "results.jsonl" || name == ".sweep.toml.tmp";
  });
  check(foreign.empty(), Hint{"choose a new or empty folder with -o"}, "{} is not a sweep: it contains {}",
        folder.string(), foreign.filename().string());
}

std::string plan_text(const SweepPlan& plan, const std::vector<VariantCost>& costs,
                      const Parallel& parallel) {
  Table table({"variant", "parameters", "steps", "memory", "settings", "note"});
  for (std::size_t v = 0; v < plan.variants.size(); ++v) {
    const SweepVariant& variant = plan.variants[v];
    table.row({variant.name, with_commas(costs[v].parameters),
               costs[v].steps > 0 ? with_commas(costs[v].steps) : "-",
               in_bytes(static_cast<double>(costs[v].memory_bytes)), variant.changes_text(), variant.note});
  }
  const std::size_t runs = plan.variants.size() * plan.seeds.size();
  return table.text(page_width(0)) +
         fmt::format("{} variants x {} seeds = {} runs on {}, {} side by side, threads of each: {}\n",
                     plan.variants.size(), plan.seeds.size(), runs, costs.front().device, parallel.jobs,
                     parallel.threads);
}

Json plan_json(const SweepPlan& plan, const std::vector<VariantCost>& costs, const Parallel& parallel) {
  Json variants = Json::array(), seeds = Json::array();
  for (std::size_t v = 0; v < plan.variants.size(); ++v) {
    Json words = Json::array();
    for (const std::string& word : train_words(plan.variants[v], true)) words.push(word);
    variants.push(Json::object()
                      .set("name", plan.variants[v].name)
                      .set("note", plan.variants[v].note)
                      .set("settings", plan.variants[v].changes_text())
                      .set("train", words)
                      .set("parameters", costs[v].parameters)
                      .set("steps", costs[v].steps)
                      .set("memory_bytes", costs[v].memory_bytes));
  }
  for (const std::int64_t seed : plan.seeds) seeds.push(seed);
  return Json::object()
      .set("status", "dry_run")
      .set("variants", variants)
      .set("seeds", seeds)
      .set("jobs", parallel.jobs)
      .set("threads", parallel.threads)
      .set("device", costs.front().device);
}

SweepPlan plan_from(const Arguments& arguments, const std::string& text) {
  SweepChanges changes{.base = arguments.list("set"), .variants = arguments.list("variant")};
  if (arguments.given("data")) changes.base.push_back("data=" + arguments.text("data"));
  return parse_sweep(text, arguments.text("FILE"), changes);
}

// Trains what is missing. Returns the exit code.
int train_missing(const SweepPlan& plan, const std::string& text, const std::vector<VariantCost>& costs,
                  const Arguments& arguments, Console& console, const Interrupt& interrupt) {
  const fs::path folder = arguments.path("output");
  PosixFileOps ops;
  make_folders(ops, folder);
  ResultsFile results(ops, folder, console.log());
  const std::vector<PlannedRun> missing = missing_runs(plan, results.results(), folder);
  const Parallel parallel = parallel_from(arguments, costs, missing.size(), folder / "sweep.json");
  write_file(ops, folder / "sweep.toml", text, Existing::replace);
  write_file(ops, folder / "sweep.json",
             Json::object().set("jobs", parallel.jobs).set("threads", parallel.threads).dump(2) + "\n",
             Existing::replace);
  DataSharing data(folder, console, interrupt);
  std::vector<SweepRun> runs;
  for (const PlannedRun& planned : missing)
    runs.push_back(sweep_run(plan, planned, costs[planned.variant], data.of(plan.variants[planned.variant])));
  const std::size_t all = plan.variants.size() * plan.seeds.size();
  console.log().info("{} of {} runs are left, {} side by side, threads of each: {}", runs.size(), all,
                     parallel.jobs, parallel.threads);
  const SweepCounts counts = run_sweep(runs,
                                       {.folder = folder,
                                        .jobs = parallel.jobs,
                                        .threads = parallel.threads,
                                        .device = costs.front().device,
                                        .score = plan.score,
                                        .pack = plan.pack},
                                       results, ops, console.log(), console.progress(), interrupt);
  if (counts.interrupted) {
    console.log().warning("stopped; to continue, give the same command");
    return kExitInterrupted;
  }
  return counts.failed > 0 ? 1 : 0;
}

constexpr std::size_t kPlainWidth = 100;  // of a plot that is not in a terminal

void print_report(const SweepReport& report, const ReportStyle& style, Console& console) {
  if (console.json()) return console.print_json(report_json(report));
  console.print_foreign(report_text(report, style));
  if (style.form == ReportForm::text && report.variants.size() > 1)
    console.print_foreign("\n" + dot_plot_text(report_plot(report), page_width(kPlainWidth)));
}

int run_sweep_command(const Arguments& arguments, Console& console) {
  const Interrupt interrupt;
  const std::string text = read_file_or_pipe(arguments.path("FILE"), kMaxPlanBytes);
  const SweepPlan plan = plan_from(arguments, text);
  if (!arguments.flag("dry-run") && !arguments.given("output"))
    throw UsageError("-o is missing",
                     Hint{"name the folder of the sweep: thimble sweep FILE.toml -o FOLDER"});
  if (arguments.given("jobs")) arguments.integer("jobs", {.least = 1, .most = kMostJobs});
  if (arguments.given("output")) check_folder(arguments.path("output"));
  const std::vector<VariantCost> costs = costs_of(plan, arguments.text("device"), console, interrupt);
  if (arguments.flag("dry-run")) {
    const Parallel parallel = parallel_from(arguments, costs, plan.variants.size() * plan.seeds.size(), {});
    if (console.json())
      console.print_json(plan_json(plan, costs, parallel));
    else
      console.print(plan_text(plan, costs, parallel));
    return 0;
  }
  const int code = train_missing(plan, text, costs, arguments, console, interrupt);
  const fs::path folder = arguments.path("output");
  const std::vector<SweepResult> results = read_results(std::vector{folder}, Log::nowhere());
  if (!results.empty()) print_report(sweep_report(results, {}), {.width = page_width(0)}, console);
  return code;
}

std::vector<SweepResult> results_from(const Arguments& arguments, const Console& console) {
  const std::vector<std::string>& names = arguments.list("RESULTS");
  const std::vector<SweepResult> results =
      read_results(std::vector<fs::path>(names.begin(), names.end()), console.log());
  check(!results.empty(), "{} contains no results yet", names.front());
  return results;
}

ReportRequest request_from(const Arguments& arguments) {
  return {.base = arguments.text("base"), .steps = arguments.integer("steps", {.least = 0})};
}

int run_report(const Arguments& arguments, Console& console) {
  PosixFileOps ops;
  std::optional<Output> picture;
  if (arguments.given("output")) {
    picture = output_from(arguments, ops);
    if (picture->path.extension() != ".svg")
      throw UsageError(fmt::format("-o expects a file that ends in .svg, found {}", picture->path.string()));
  }
  if (console.json() && arguments.flag("markdown"))
    throw UsageError("--json and --markdown cannot be combined");
  const std::vector<SweepResult> results = results_from(arguments, console);
  const SweepReport report = sweep_report(results, request_from(arguments));
  if (picture) {
    make_folders(ops, folder_of(picture->path));
    write_file(ops, picture->path, dot_plot_svg(report_plot(report)), picture->existing);
  }
  print_report(report,
               {.form = arguments.flag("markdown") ? ReportForm::markdown : ReportForm::text,
                .width = page_width(0),
                .speed = arguments.flag("speed")},
               console);
  return 0;
}

// Writes record.json, config.toml and log.txt.
int run_record(const Arguments& arguments, Console& console) {
  PosixFileOps ops;
  const Output output = output_from(arguments, ops, Writes::folder);
  const std::vector<SweepResult> results = results_from(arguments, console);
  const SweepReport report = sweep_report(results, request_from(arguments));
  const std::string name = arguments.text("variant");
  const VariantSummary* const variant = report.find(name);
  check(variant && !variant->runs.empty() && !report.variants.front().runs.empty() && name != report.base,
        Hint{"list the variants with `thimble sweep report`"},
        "there are no results of '{}' and of another base", name);
  check(report.unit == "bits per byte", "a record needs bits per byte, but the results have none");
  check(variant->diverged + variant->failed == 0,
        "{} of the seeds of {} have no result, but a record counts all seeds",
        variant->diverged + variant->failed, name);
  std::string log;
  for (const SweepResult* run : variant->runs) {
    const fs::path folder = run->run;
    fs::path file = folder.parent_path().parent_path() / "logs" / folder.filename();
    if (!fs::exists(file += ".log")) file = folder.string() + ".log";  // as earlier versions named it
    if (fs::exists(file)) log += fmt::format("seed {}\n{}\n", run->seed, read_file(file, kMaxLogBytes));
  }
  const fs::path config = variant->runs.front()->run / "config.toml";
  check(fs::exists(config), "{} does not exist: a record needs the folders of the runs", config.string());
  const Json record = record_of(report, output.path.filename().string(), *variant);
  make_folders(ops, output.path);
  write_file(ops, output.path / "config.toml", read_file(config, kMaxPlanBytes), Existing::replace);
  write_file(ops, output.path / "log.txt", log, Existing::replace);
  write_file(ops, output.path / "record.json", record.dump(2) + "\n", Existing::replace);
  if (console.json()) {
    console.print_json(record);
  } else {
    const Json& p = record.at("p");
    console.print(fmt::format("{}: {:.4f} bits per byte, {:+.4f} against {}, p {}: {}\n",
                              output.path.string(), variant->moments.mean,
                              record.at("difference").as_double(), report.base,
                              p.is_null() ? "unknown" : fmt::format("{:.2g}", p.as_double()),
                              record.at("holds").as_bool() ? "a record" : "not a record by the rules"));
  }
  return 0;
}

Argument results_argument() {
  return {.name = "RESULTS", .help = "folders of sweeps, or their results.jsonl", .count = Count::many};
}

Option base_option() {
  return {.name = "base",
          .value = "NAME",
          .help = "variant to compare with",
          .shown_default = "the base of the sweep"};
}

Option steps_option() {
  return {.name = "steps", .value = "N", .initial = "0", .help = "only runs of N steps; 0: all"};
}

}  // namespace

Command sweep_command() {
  return {.name = "sweep",
          .summary = "train variants of a run with several seeds and compare them",
          .arguments = {{.name = "FILE", .help = "TOML file of base settings, variants and seeds"}},
          .options =
              {{.name = "output",
                .letter = 'o',
                .value = "FOLDER",
                .help = "folder of the sweep; the same command continues a sweep that was stopped"},
               {.name = "data", .value = "PATH", .help = "data of the base", .shown_default = "that of FILE"},
               {.name = "set",
                .value = "KEY=VALUE",
                .help = "a setting of the base; overrides FILE",
                .repeated = true},
               {.name = "variant",
                .value = "NAME",
                .help = "train only this variant and the base",
                .repeated = true,
                .shown_default = "all"},
               {.name = "jobs",
                .value = "N",
                .help = "runs side by side; they divide the threads",
                .shown_default = "by cores and memory; 1 on a GPU"},
               {.name = "dry-run", .help = "check and list the variants, then exit"},
               device_option(),
               common::threads(),
               common::json(),
               common::quiet()},
          .notes =
              "Every variant is checked before the first run starts. Runs that use the same text and "
              "tokenizer share their tokens.",
          .examples = {"thimble sweep rates.toml -o sweeps/rates", "thimble sweep rates.toml --dry-run",
                       "thimble sweep rates.toml --data book.txt --set steps=100 -o sweeps/short --jobs 4"},
          .run = run_sweep_command};
}

Command sweep_report_command() {
  return {
      .name = "sweep report",
      .summary = "compare the variants of a sweep with its base",
      .arguments = {results_argument()},
      .options =
          {base_option(),
           steps_option(),
           {.name = "output", .letter = 'o', .value = "FILE", .help = "also draw the results as FILE.svg"},
           {.name = "speed", .help = "also print tokens per second"},
           {.name = "markdown", .help = "print the table as Markdown"},
           common::force(),
           common::json(),
           common::quiet()},
      .notes =
          "A difference is decided if neither the choice of held-out documents (paired bootstrap) nor the "
          "seeds explain it: p, corrected for the number of variants (Holm), is below 0.05.",
      .examples = {"thimble sweep report sweeps/rates",
                   "thimble sweep report sweeps/rates --base lr=0.002 -o rates.svg",
                   "thimble sweep report records/ablation.jsonl --steps 500"},
      .run = run_report};
}

Command sweep_record_command() {
  return {.name = "sweep record",
          .summary = "write a variant's results and their test against the base as a record",
          .arguments = {results_argument()},
          .options = {{.name = "variant", .value = "NAME", .help = "variant of the record", .required = true},
                      base_option(),
                      steps_option(),
                      output_option("folder of the record"),
                      common::force(),
                      common::json(),
                      common::quiet()},
          .notes = "The folders of the runs must exist. records/README.md has the rule for records.",
          .examples = {"thimble sweep record sweeps/golf --variant golf-best -o records/golf-best"},
          .run = run_record};
}

}  // namespace thimble
