#include "config/config.h"

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "config/builder.h"
#include "config/toml.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

// "message / hint" of the Error that the action throws, or "fine".
template <class Action>
std::string complaint(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.hint().empty() ? error.what() : fmt::format("{} / {}", error.what(), error.hint());
  }
  return "fine";
}

std::string complaint_about(const std::vector<std::string>& assignments) {
  return complaint([&] {
    ConfigBuilder settings;
    for (const std::string& assignment : assignments) settings.set(assignment);
    settings.resolve();
  });
}

TEST(KeyTable, DefaultsAreInRange) {
  for (const Key& key : all_keys()) {
    const KeyValue value = key.get(Config{});
    EXPECT_EQ(complaint([&] { checked_value(key, value, ""); }), "fine");
    EXPECT_FALSE(key.help.empty()) << key.name;
    EXPECT_EQ(find_key(key.name), &key);
  }
}

// A value in the range of the key that differs from the current one.
KeyValue another_value(const Key& key, const Config& config) {
  const KeyValue now = key.get(config);
  if (const auto* flag = std::get_if<bool>(&now)) return !*flag;
  if (key.type == KeyType::list) return std::string("1.5,2.0");
  if (std::holds_alternative<std::string>(now))
    return std::string(now == KeyValue(std::string(key.choices[0])) ? key.choices[1] : key.choices[0]);
  if (std::holds_alternative<std::int64_t>(now))
    return now == KeyValue(std::int64_t(key.least)) ? std::int64_t(key.most) : std::int64_t(key.least);
  return now == KeyValue(key.least) ? key.most : key.least;
}

TEST(KeyTable, EveryKeyChangesOnlyItsOwnMember) {
  for (const Key& key : all_keys()) {
    Config config;
    const KeyValue value = another_value(key, config);
    key.put(config, value);
    EXPECT_FALSE(config == Config{}) << key.name;
    for (const Key& other : all_keys())
      EXPECT_TRUE(other.get(config) == (&other == &key ? value : other.get(Config{})))
          << key.name << " changed " << other.name;
    EXPECT_EQ(config.model != ModelConfig{}, key.part == ConfigPart::model) << key.name;
    EXPECT_EQ(config.optimizer != OptimizerConfig{}, key.part == ConfigPart::optimizer) << key.name;
    EXPECT_EQ(config.train != TrainConfig{}, key.part == ConfigPart::training) << key.name;
    EXPECT_EQ(config.pack != PackConfig{}, key.part == ConfigPart::pack) << key.name;
  }
}

TEST(KeyTable, TextOfAValueReadsBackAsTheValue) {
  for (const Key& key : all_keys())
    for (const KeyValue& value : {key.get(Config{}), another_value(key, Config{})})
      EXPECT_TRUE(value_from_text(key, value_text(value), "") == value)
          << key.name << " " << value_text(value);
}

TEST(KeyTable, HasAllKeys) {
  const char* names[] = {"vocab_size",
                         "context",
                         "layers",
                         "dim",
                         "heads",
                         "kv_heads",
                         "head_dim",
                         "mlp_hidden",
                         "mlp",
                         "norm",
                         "norm_eps",
                         "embed_norm",
                         "final_norm",
                         "layer_scale",
                         "position",
                         "rope_base",
                         "rope_dims",
                         "rope_direction",
                         "qk_norm",
                         "q_gain",
                         "q_gain_init",
                         "qkv_bias",
                         "bias",
                         "branch_scale",
                         "exclusive_attention",
                         "residual_mix",
                         "unet_skips",
                         "skip_gates",
                         "parallel_from",
                         "loop_first",
                         "loop_last",
                         "loop_count",
                         "loop_start",
                         "bigram_buckets",
                         "bigram_dim",
                         "smear_gate",
                         "init",
                         "tie_embeddings",
                         "logit_softcap",
                         "dropout",
                         "init_std",
                         "clip",
                         "embed_init_std",
                         "lr",
                         "embed_lr",
                         "head_lr",
                         "matrix_lr",
                         "scalar_lr",
                         "beta1",
                         "beta2",
                         "adam_eps",
                         "weight_decay",
                         "muon_momentum",
                         "muon_weight_decay",
                         "muon_steps",
                         "muon_momentum_start",
                         "schedule",
                         "warmup_steps",
                         "prime_steps",
                         "warmdown",
                         "muon_momentum_steps",
                         "min_lr",
                         "steps",
                         "epochs",
                         "max_seconds",
                         "batch_tokens",
                         "batch_size",
                         "span_tokens",
                         "micro_batch",
                         "dtype",
                         "seed",
                         "swa_start",
                         "swa_every",
                         "ema_decay",
                         "qat_bits",
                         "qat_start",
                         "patience",
                         "min_delta",
                         "target_val_loss",
                         "stop_on_divergence",
                         "val_every",
                         "val_tokens",
                         "keep",
                         "checkpoint_every",
                         "loss_on"};
  for (const char* name : names) EXPECT_NE(find_key(name), nullptr) << name;
}

TEST(Settings, LaterLayersWin) {
  TempFolder folder;
  const auto file = folder.write("mine.toml", "layers = 5\ndim = 320\n");
  ConfigBuilder settings;
  settings.preset("golf");
  settings.file(file);
  settings.set("dim=256");
  settings.set_flag(*find_key("rope_base"), "5e5");
  const Config config = settings.resolve();
  EXPECT_EQ(config.model.layers, 5);
  EXPECT_EQ(config.model.dim, 256);
  EXPECT_EQ(config.model.rope_base, 5e5);
  EXPECT_EQ(config.model.logit_softcap, 30);
  EXPECT_EQ(settings.origin("heads"), ConfigBuilder::Layer::preset);
  EXPECT_EQ(settings.origin("layers"), ConfigBuilder::Layer::file);
  EXPECT_EQ(settings.origin("dim"), ConfigBuilder::Layer::command);
  EXPECT_EQ(settings.origin("dropout"), ConfigBuilder::Layer::initial);
  EXPECT_FALSE(settings.given("heads"));
}

TEST(Settings, AFileMaySelectAPresetOnAnyLine) {
  ConfigBuilder settings;
  settings.toml("layers = 3\npreset = \"golf\"\n", "mine.toml");
  EXPECT_EQ(settings.resolve().model.layers, 3);
  EXPECT_EQ(settings.resolve().model.dim, 512);
  EXPECT_EQ(complaint([&] { settings.preset("llama"); }), "expected one preset, found 'golf' and 'llama'");
}

TEST(Settings, KeysThatExcludeEachOtherReplaceEachOther) {
  ConfigBuilder settings;
  settings.preset("golf");
  settings.set("batch_size=8");
  EXPECT_EQ(settings.resolve().train.batch_tokens, 8 * 1024);

  ConfigBuilder plus;
  plus.preset("golf-plus");
  plus.set("ema_decay=0.997");
  EXPECT_EQ(plus.resolve().train.swa_start, 0);

  ConfigBuilder epochs;
  epochs.preset("quick");
  epochs.set("epochs=2.5");
  EXPECT_EQ(epochs.resolve().train.steps, 0);
  EXPECT_EQ(complaint([&] { epochs.set("steps=10"); }), "--set: steps and epochs cannot both be set");

  ConfigBuilder both;
  both.set("batch_size=8");
  EXPECT_EQ(complaint([&] { both.set("batch_tokens=8192"); }),
            "--set: batch_tokens and batch_size cannot both be set");
}

TEST(Settings, AnLrFromTheUserIsTheRateOfEveryGroupNotSetByName) {
  for (const Preset& preset : all_presets()) {
    ConfigBuilder settings;
    settings.preset(preset.name);
    settings.set("scalar_lr=0.5");
    settings.set("lr=1e-5");
    const OptimizerConfig rates = settings.current().optimizer;
    for (const ParamGroup group : {ParamGroup::embedding, ParamGroup::head, ParamGroup::matrix})
      EXPECT_EQ(rates.rate(group), 1e-5) << preset.name;
    EXPECT_EQ(rates.rate(ParamGroup::scalar), 0.5) << preset.name;
  }
  ConfigBuilder file;
  file.toml("preset = \"quick\"\nmatrix_lr = 0.25\nlr = 0.125\n", "file");
  EXPECT_EQ(file.current().optimizer.rate(ParamGroup::matrix), 0.25) << "set by name in the file";
}

TEST(Settings, ABatchThatIsNotGivenFollowsTheContext) {
  const auto batch = [](const std::vector<std::string>& assignments) {
    ConfigBuilder settings;
    settings.preset("quick");  // 2048 tokens
    for (const std::string& assignment : assignments) settings.set(assignment);
    return settings.resolve().train.batch_tokens;
  };
  EXPECT_EQ(batch({"context=256"}), 2048);
  EXPECT_EQ(batch({"context=300"}), 1800);
  EXPECT_EQ(batch({"context=4096"}), 4096);
  EXPECT_EQ(complaint([&] {
              batch({"context=300", "batch_tokens=2048"});
            }),
            "batch_tokens (2048) must be divisible by context (300) / a step consists of complete rows of "
            "context tokens");
}

TEST(Settings, ErrorsNameFileLineAndKey) {
  const auto complaint_of = [](std::string_view text) {
    return complaint([&] { config_from_toml(text, "run/config.toml"); });
  };
  EXPECT_EQ(complaint_of("dim = 512\nrope_bas = 1.0\n"),
            "run/config.toml:2: unknown key 'rope_bas' / did you mean rope_base?");
  EXPECT_EQ(complaint_of("\n\nnorm = \"rmss\"\n"),
            "run/config.toml:3: norm expects rms, rms_weight or layer, found 'rmss' / did you mean rms?");
  EXPECT_EQ(complaint_of("dim = \"512\"\n"),
            "run/config.toml:1: dim expects a whole number from 1 to 65536, found the text \"512\" / "
            "write the value of dim without quotes");
  EXPECT_EQ(complaint_of("dim = 512.0\n"),
            "run/config.toml:1: dim expects a whole number from 1 to 65536, found '512.0'");
  EXPECT_EQ(complaint_of("rope_base = nan\n"),
            "run/config.toml:1: rope_base expects a number from 1 to 1000000000000, found 'nan'");
  EXPECT_EQ(complaint_of("[model]\ndim = 512\n"),
            "run/config.toml:1: model is a table, expected one value / write settings as lines: key = value");
  EXPECT_EQ(complaint_of("dim = 512 # [\n  dim = [1, 2]\n"),
            "run/config.toml:2: dim is a list, expected one value / write settings as lines: key = value");
  EXPECT_EQ(complaint_of("dim = {a = 1}\n"),
            "run/config.toml:1: dim is a table, expected one value / write settings as lines: key = value");
  for (const char* text : {"dim.a = 1\n", "  dim.\"b=c\".d = 1 # =\n", "dim . a = '.'\n"})
    EXPECT_TRUE(complaint_of(text).starts_with("run/config.toml:1: dim is a table, expected one value"))
        << complaint_of(text);
  EXPECT_EQ(complaint_of("dim = 1979-05-27\n"),
            "run/config.toml:1: dim is a date, expected one value / write settings as lines: key = value");
  for (const char* text : {"dim = 1------- 0,", "dim = 5 12 # 3\n", "dim\t=\t1979-05-27 \t07:32:00\r\n"})
    EXPECT_TRUE(complaint_of(text).starts_with("run/config.toml:1: dim is several words, expected one value"))
        << complaint_of(text);
  EXPECT_TRUE(complaint_of("dim = 512\ndim = 256\n").starts_with("run/config.toml:2: "));
  EXPECT_TRUE(complaint_of("dim = \n").starts_with("run/config.toml:1: "));
  EXPECT_TRUE(complaint_of(std::string(100000, '[')).starts_with("run/config.toml:1: "));
}

// Inputs that made toml++ fail in fuzzing.
TEST(Settings, MalformedTablesAndNonAsciiTextAreErrors) {
  const auto complaint_of = [](std::string_view text) {
    return complaint([&] { ConfigBuilder().toml(text, "c"); });
  };
  EXPECT_EQ(complaint_of("dim = 64  # \xC3\xA9, \xFF and [more]\n"), "fine");
  EXPECT_EQ(complaint_of("mlp = \"relu2\"  # a \"quoted\" # {word}\n"), "fine");
  EXPECT_TRUE(complaint_of("mlp\xC3\x96lu2\n").starts_with("c:1: "));
  EXPECT_TRUE(complaint_of("mlp = \"relu\xC3\x96\"\n").starts_with("c:1: mlp expects "));
  EXPECT_TRUE(complaint_of("a = 1\n[ {y = 9820-05-27\n").starts_with("c:2: "));
  std::string parts = "a";
  for (int i = 0; i < 200'000; ++i) parts += ".a";
  EXPECT_TRUE(complaint_of(parts + " = 1\n").starts_with("c:1: a is a table"));
  EXPECT_TRUE(complaint_of(parts + "\n").starts_with("c:1: "));
  EXPECT_TRUE(complaint_of("\"a=b\"." + parts + " = 1\n").starts_with("c:1: \"a=b\" is a table"));
  EXPECT_TRUE(complaint_of("\"#\" = [ {\n").starts_with("c:1: "));
}

TEST(Settings, AFileMayBeginWithAByteOrderMark) {
  ConfigBuilder settings;
  settings.toml("\xEF\xBB\xBFlayers = 3\n", "mine.toml");
  EXPECT_EQ(settings.current().model.layers, 3);
  EXPECT_EQ(config_from_toml("\xEF\xBB\xBFsteps = 7\n", "run/config.toml").train.steps, 7);
}

TEST(Synonyms, AreFoundAmongTheNamesThatExist) {
  const std::vector<std::string_view> options = {"context", "max-tokens", "kv_heads"}, arguments = {"MODEL"};
  EXPECT_EQ(synonym("block-size", options), "context");
  EXPECT_EQ(synonym("block_size", options), "context");
  EXPECT_EQ(synonym("num_key_value_heads", options), "kv_heads");
  EXPECT_EQ(synonym("n", options), "max-tokens");
  EXPECT_EQ(synonym("m", options), "");
  EXPECT_EQ(synonym("m", arguments), "MODEL");
  EXPECT_EQ(synonym("", options), "");
  EXPECT_EQ(synonym("block", options), "");
  EXPECT_EQ(complaint_about({"n_layer=3"}), "--set: unknown key 'n_layer' / did you mean layers?");
  EXPECT_EQ(complaint_about({"hidden-size=3"}), "--set: unknown key 'hidden-size' / did you mean dim?");
}

TEST(Settings, InvalidAssignmentsAreErrors) {
  EXPECT_EQ(complaint_about({"rope-bas=1"}), "--set: unknown key 'rope-bas' / did you mean rope_base?");
  EXPECT_EQ(complaint_about({"layers"}), "--set expects key=value, found 'layers'");
  EXPECT_EQ(complaint_about({"=3"}), "--set expects key=value, found '=3'");
  EXPECT_EQ(complaint_about({"layers=99999999999999999999"}),
            "--set: layers expects a whole number from 1 to 1024, found '99999999999999999999'");
  EXPECT_EQ(complaint_about({"bias=yes"}), "--set: bias expects true or false, found 'yes'");
  EXPECT_EQ(complaint_about({"batch_tokens=524_288"}), "fine");
  EXPECT_EQ(
      complaint_about({"layers=4 GB"}),
      fmt::format("--set: layers expects a whole number from 1 to 1024, found '4 GB' / {}", kUnitsHint));
}

TEST(Settings, NumbersOfAssignmentsMayEndInAUnit) {
  ConfigBuilder settings;
  settings.set("steps=2.5k");
  settings.set("warmdown=1.2k");
  settings.set_flag(*find_key("max_seconds"), "1M");
  EXPECT_EQ(settings.current().train.steps, 2500);
  EXPECT_EQ(settings.current().train.warmdown, 1200);
  EXPECT_EQ(settings.current().train.max_seconds, 1e6);
  EXPECT_EQ(complaint_about({"layers=2k"}),
            "--set: layers expects a whole number from 1 to 1024, found '2000'");
}

TEST(Settings, WithoutEffectAreReported) {
  const auto idle = [](std::string_view file, const std::vector<std::string>& assignments) {
    ConfigBuilder settings;
    settings.toml(file, "settings.toml");
    for (const std::string& assignment : assignments) settings.set(assignment);
    std::string lines;
    for (const std::string& line : idle_settings(settings)) lines += (lines.empty() ? "" : "; ") + line;
    return lines;
  };
  EXPECT_EQ(
      idle("preset = \"golf\"", {"q_gain_init=5", "rope_dims=16", "muon_row_norm=true", "warmdown=0.2"}), "");
  EXPECT_EQ(idle("preset = \"golf\"", {"q_gain_init=5", "q_gain=none"}),
            "q_gain_init has no effect: q_gain is none");
  EXPECT_EQ(idle("position = \"learned\"", {"rope_dims=16", "muon_momentum=0.9", "warmdown=100"}),
            "rope_dims has no effect: position is not rope; muon_momentum has no effect: muon_steps is 0; "
            "warmdown has no effect: schedule is neither golf nor wsd");
  EXPECT_EQ(idle("", {"loop_first=1", "swa_every=10", "qat_start=0.5", "min_delta=0.1"}),
            "loop_first has no effect: loop_count is 0; swa_every has no effect: swa_start is 0; "
            "min_delta has no effect: patience is 0; qat_start has no effect: qat_bits is 0");
  EXPECT_EQ(idle("loop_first = 1", {}), "") << "a file may hold every key, as a run's config.toml does";
}

TEST(OptimizerConfig, AGroupHasItsOwnRateOrLrOrIsFrozen) {
  const OptimizerConfig config{.lr = 0.5, .matrix_lr = 0.25, .scalar_lr = kFrozen};
  EXPECT_EQ(config.rate(ParamGroup::embedding), 0.5);
  EXPECT_EQ(config.rate(ParamGroup::matrix), 0.25);
  EXPECT_EQ(config.rate(ParamGroup::scalar), 0);
}

TEST(Validation, ChecksConstraintsBetweenKeys) {
  EXPECT_EQ(complaint_about({"dim=500", "heads=8"}),
            "dim (500) must be divisible by heads (8) / change one of them, or set head_dim");
  EXPECT_EQ(complaint_about({"dim=500", "heads=8", "head_dim=64"}), "fine");
  EXPECT_EQ(complaint_about({"head_dim=63"}), "head_dim must be even for RoPE, found 63");
  EXPECT_EQ(complaint_about({"head_dim=63", "position=none"}), "fine");
  EXPECT_EQ(complaint_about({"head_dim=1", "position=none", "qk_norm=false", "q_gain=none"}), "fine");
  EXPECT_EQ(complaint_about({"head_dim=1", "position=none", "qk_norm=true"}),
            "qk_norm and q_gain need heads of at least 2 columns, found 1");
  EXPECT_EQ(complaint_about({"logit_softcap=-1"}), "--set: logit_softcap must not be negative, found -1");
  EXPECT_EQ(complaint_about({"heads=8", "kv_heads=3"}), "heads (8) must be divisible by kv_heads (3)");
  EXPECT_EQ(complaint_about({"rope_dims=7"}), "rope_dims must be even, found 7");
  EXPECT_EQ(complaint_about({"rope_dims=66"}), "rope_dims (66) must not exceed head_dim (64)");
  EXPECT_EQ(complaint_about({"rope_direction=0"}), "rope_direction must be 1 or -1, found 0");
  EXPECT_EQ(complaint_about({"bigram_buckets=1", "bigram_dim=8"}),
            "bigram_buckets must be at least 2 (one is for the first token), found 1");
  EXPECT_EQ(complaint_about({"bigram_buckets=64"}),
            "bigram_buckets (64) and bigram_dim (0) must be set together / set both, such as 4096 and 128, "
            "or neither");
  EXPECT_EQ(complaint_about({"bigram_dim=64"}),
            "bigram_buckets (0) and bigram_dim (64) must be set together / set both, such as 4096 and 128, "
            "or neither");
  EXPECT_EQ(complaint_about({"unet_skips=true", "layers=1"}), "fine") << "a single layer has no skip";
  EXPECT_EQ(complaint_about({"skip_gates=true"}), "skip_gates needs unet_skips = true");
  EXPECT_EQ(complaint_about({"parallel_from=4", "layers=4"}),
            "parallel_from (4) must be below layers (4), or -1 for none");
  EXPECT_EQ(complaint_about({"loop_first=2", "loop_last=1", "loop_count=1"}),
            "loop_first (2) must not exceed loop_last (1), which must be below layers (4)");
  EXPECT_EQ(complaint_about({"loop_last=4", "loop_count=1"}),
            "loop_first (0) must not exceed loop_last (4), which must be below layers (4)");
  EXPECT_EQ(complaint_about({"loop_last=3", "loop_count=256"}),
            "the layer loop unrolls to 1028 blocks, expected at most 1024");
  EXPECT_EQ(complaint_about({"loop_last=3", "loop_count=255"}), "fine");
  EXPECT_EQ(complaint_about({"loop_last=9"}), "fine") << "without a count there is no loop";
  EXPECT_EQ(complaint_about({"layer_scale=true", "norm=layer"}),
            "layer_scale needs norm = rms or rms_weight, found layer");
  EXPECT_TRUE(
      complaint_about({"head_lr=0.1"}).starts_with("head_lr (0.1) has no effect with tie_embeddings"));
  EXPECT_EQ(complaint_about({"head_lr=0.1", "tie_embeddings=false"}), "fine");
  EXPECT_EQ(complaint_about({"matrix_lr=-1"}), "fine");
  EXPECT_EQ(complaint_about({"matrix_lr=-0.5"}),
            "matrix_lr must be 0 (lr), a positive rate, or -1 (frozen), found -0.5");
  EXPECT_EQ(complaint_about({"qat_bits=7"}), "qat_bits must be 0 (off), 8, 6 or 5, found 7");
  EXPECT_EQ(complaint_about({"steps=0"}), "steps, epochs and max_seconds are all 0: set one of them");
  EXPECT_EQ(complaint_about({"batch_tokens=1000"}),
            "batch_tokens (1000) must be divisible by context (512) / a step consists of complete rows of "
            "context tokens");
  EXPECT_EQ(complaint_about({"batch_tokens=4096", "span_tokens=1536"}),
            "batch_tokens (4096) must be divisible by span_tokens (1536)");
}

// Sizes from a hostile checkpoint must not overflow products or exhaust memory.
TEST(Validation, RejectsAbsurdSizes) {
  EXPECT_TRUE(
      complaint_about({"layers=1024", "dim=65536", "heads=1024"}).starts_with("the model would have "));
  EXPECT_TRUE(
      complaint_about({"vocab_size=4194304", "dim=65536", "heads=64"}).starts_with("the model would have "));
  EXPECT_TRUE(
      complaint_about({"context=1048576", "head_dim=1024"}).starts_with("context (1048576) times rope_dims"));
  ModelConfig config = resolved(ModelConfig{});
  config.layers = -1;
  EXPECT_NE(complaint([&] { validate(config); }), "fine");
  config.layers = std::int64_t{1} << 62;
  EXPECT_NE(complaint([&] { validate(config); }), "fine");
  config = resolved(ModelConfig{});
  config.norm_eps = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(complaint([&] { validate(config); }), "fine");
}

TEST(Resolved, ReplacesZerosByDerivedValues) {
  ModelConfig model = resolved(ModelConfig{.dim = 320, .heads = 5});
  EXPECT_EQ(model.head_dim, 64);
  EXPECT_EQ(model.kv_heads, 5);
  EXPECT_EQ(model.rope_dims, 64);
  EXPECT_EQ(model.mlp_hidden, 896);  // 8/3 x 320 = 853.3
  EXPECT_EQ(resolved(ModelConfig{.dim = 320, .heads = 5, .mlp = MlpKind::relu2}).mlp_hidden, 640);
  EXPECT_EQ(resolved(ModelConfig{.dim = 320, .heads = 5, .mlp = MlpKind::gelu}).mlp_hidden, 1280);
  EXPECT_EQ(resolved(ModelConfig{.dim = 192, .heads = 3}).mlp_hidden, 512);  // 8/3 x 192 exactly
  EXPECT_EQ(resolved(ModelConfig{.position = PositionKind::learned}).rope_dims, 0);
}

TEST(Resolved, SpansAreAnEighthOfTheBatchIfThatIsANumberOfRows) {
  const auto span = [](std::int64_t batch_tokens) {
    return resolved(Config{.model = {.context = 64}, .train = {.batch_tokens = batch_tokens}})
        .train.span_tokens;
  };
  EXPECT_EQ(span(64 * 16), 128);
  EXPECT_EQ(span(64 * 12), 64 * 12);
  EXPECT_EQ(span(0), 128);  // 16 rows
}

TEST(Rates, FallBackToLr) {
  const OptimizerConfig optimizer{.lr = 0.04, .embed_lr = 0.05};
  EXPECT_EQ(optimizer.rate(ParamGroup::embedding), 0.05);
  EXPECT_EQ(optimizer.rate(ParamGroup::matrix), 0.04);
  EXPECT_EQ(optimizer.rate(ParamGroup::scalar), 0.04);
  EXPECT_EQ(optimizer.rate(ParamGroup::head), 0.04);
}

// Runs and checkpoints store the resolved config, so reading it must be exact.
TEST(Toml, RoundTripsConfigAndText) {
  Config config = resolved(Config{});
  config.model.norm_eps = 1.1920929e-07;
  config.model.rope_base = 1.0 / 3 + 10;
  config.optimizer.lr = 3e-4;
  config.train.seed = 9007199254740991;
  const std::string text = to_toml(config);
  const Config back = config_from_toml(text, "config.toml");
  EXPECT_TRUE(back == config);
  EXPECT_EQ(to_toml(back), text);
}

TEST(Toml, OfAModelContainsOnlyItsKeys) {
  const ModelConfig model = resolved(ModelConfig{.layers = 7});
  const std::string text = to_toml(model);
  EXPECT_NE(text.find("layers = 7\n"), text.npos);
  EXPECT_NE(text.find("mlp = \"swiglu\"\n"), text.npos);
  EXPECT_EQ(text.find("lr ="), text.npos);
  EXPECT_TRUE(config_from_toml(text, "x").model == model);
}

TEST(Json, ContainsEveryKeyWithItsType) {
  const Json json = to_json(resolved(Config{}));
  EXPECT_EQ(json.size(), all_keys().size());
  EXPECT_EQ(json.at("dim").as_int(), 256);
  EXPECT_EQ(json.at("mlp").as_string(), "swiglu");
  EXPECT_EQ(json.at("tie_embeddings").as_bool(), true);
  EXPECT_EQ(json.at("lr").as_double(), 1e-3);
}

}  // namespace
}  // namespace thimble
