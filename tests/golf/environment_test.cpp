#include "golf/environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "model/params.h"
#include "support/message_of.h"

namespace thimble {
namespace {

GolfSettings settings(Variables environment, GolfScript script = GolfScript::mlx, bool plus = false) {
  return golf_settings({.script = script, .plus = plus, .environment = std::move(environment)});
}

std::string refusal(Variables environment, GolfScript script = GolfScript::mlx) {
  return message_of([&] { settings(std::move(environment), script); });
}

// Setting the variable of a table row changes the row's config key.
TEST(EveryVariable, SetsItsKey) {
  for (const GolfVariable& row : golf_variables()) {
    SCOPED_TRACE(std::string(row.name));
    if (row.key.empty()) continue;
    ASSERT_NE(find_key(row.key), nullptr);
    const std::string value = row.type == VariableType::flag     ? "1"
                              : row.name == "TRAIN_BATCH_TOKENS" ? "65536"
                              : row.name == "MODEL_DIM"          ? "256"
                              : row.name == "TRAIN_SEQ_LEN"      ? "512"
                              : row.name == "NUM_HEADS"          ? "16"
                              : row.name == "NUM_KV_HEADS"       ? "2"
                              : row.type == VariableType::integer || row.type == VariableType::length ? "7"
                                                                                                      : "0.5";
    const bool has_other_value = row.type != VariableType::flag && row.name != "ROPE_BASE";
    const GolfSettings golf = settings({{std::string(row.name), row.name == "ROPE_BASE" ? "500.5" : value}});
    const std::string now = value_text(find_key(row.key)->get(golf.config));
    if (has_other_value)
      EXPECT_EQ(std::stod(now), std::stod(value));
    else
      EXPECT_EQ(now, row.name == "ROPE_BASE" ? "500.5" : "true");
  }
}

TEST(GolfSettings, TrainToTheEndAsTheScriptsDo) {
  for (const GolfScript script : {GolfScript::mlx, GolfScript::torch})
    EXPECT_FALSE(settings({}, script).config.train.stop_on_divergence);
}

// The defaults in the table are the settings of a run without any variables.
TEST(EveryVariable, HasTheDefaultInTheTable) {
  for (const GolfScript script : {GolfScript::mlx, GolfScript::torch}) {
    const GolfSettings golf = settings({}, script);
    for (const GolfVariable& row : golf_variables()) {
      SCOPED_TRACE(std::string(row.name));
      if (row.key.empty() || row.initial(script) == kUnknown) continue;
      Config config = golf.config;
      if (row.key == "matrix_lr") config.optimizer.matrix_lr = config.optimizer.rate(ParamGroup::matrix);
      if (row.key == "scalar_lr") config.optimizer.scalar_lr = config.optimizer.rate(ParamGroup::scalar);
      const std::string now = value_text(find_key(row.key)->get(config));
      if (row.type == VariableType::flag)
        EXPECT_EQ(now, "true");
      else
        EXPECT_EQ(std::stod(now), std::stod(std::string(row.initial(script))));
    }
    EXPECT_EQ(golf.config.train.max_seconds, 600);
    EXPECT_EQ(golf.config.model.mlp_hidden, 1024);
    EXPECT_EQ(golf.config.optimizer.rate(ParamGroup::embedding), 0.05);
    EXPECT_EQ(golf.config.model.embed_init_std, 0.005);
    EXPECT_EQ(ParamTable(golf.config.model).count(), 17'059'912);
  }
}

TEST(GolfVariables, TheTableListsEveryVariable) {
  const std::string text = golf_variables_text();
  std::set<std::string_view> names;
  for (const GolfVariable& row : golf_variables()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_NE(text.find(row.name), text.npos);
    EXPECT_FALSE(row.meaning.empty());
  }
  // Variables without a config key.
  for (const char* name :
       {"DATA_PATH", "TOKENIZER_PATH", "RUN_ID", "OUT_DIR", "TRAIN_MAX_SEQ_LEN", "MLP_MULT", "TIED_EMBED_LR",
        "EMBED_LR", "HEAD_LR", "TIED_EMBED_INIT_STD", "LOGIT_CHUNK_TOKENS", "MLX_EAGER_EVAL",
        "GRAD_ACCUM_STEPS", "MLX_MAX_MICROBATCH_TOKENS", "TRAIN_LOG_EVERY", "VAL_BATCH_SIZE",
        "MAX_WALLCLOCK_SECONDS", "CONTROL_TENSOR_NAME_PATTERNS", "INT8_KEEP_FLOAT_FP32_NAME_PATTERNS"})
    EXPECT_TRUE(names.contains(name)) << name;
}

TEST(GolfSettings, TheTwoScriptsDiffer) {
  const GolfSettings mlx = settings({}), torch = settings({}, GolfScript::torch);
  EXPECT_EQ(mlx.config.model.norm_eps, 1e-6);
  EXPECT_EQ(torch.config.model.norm_eps, 1.1920929e-07);
  EXPECT_EQ(mlx.config.model.rope_direction, 1);
  EXPECT_EQ(torch.config.model.rope_direction, -1);
  EXPECT_EQ(mlx.config.train.val_every, 0);
  EXPECT_EQ(torch.config.train.val_every, 1000);
  EXPECT_EQ(mlx.config.train.span_tokens, 65536);
  EXPECT_EQ(mlx.sub_batch_tokens, 8192);
}

TEST(GolfSettings, ParsesNumbersLikePython) {
  EXPECT_EQ(settings({{"ITERATIONS", " 20_001 "}}).config.train.steps, 20001);
  EXPECT_EQ(settings({{"ADAM_EPS", "1e-7"}}).config.optimizer.adam_eps, 1e-7);
  EXPECT_EQ(refusal({{"ITERATIONS", "1e3"}}), "ITERATIONS is '1e3', expected an integer");
  EXPECT_EQ(refusal({{"ITERATIONS", ""}}), "ITERATIONS is '', expected an integer");
  EXPECT_EQ(refusal({{"MATRIX_LR", "fast"}}), "MATRIX_LR is 'fast', expected a number");
  EXPECT_EQ(refusal({{"TIE_EMBEDDINGS", "yes"}}), "TIE_EMBEDDINGS is 'yes', expected 0 or 1");
}

TEST(GolfSettings, DerivesSettingsFromSeveralVariables) {
  EXPECT_EQ(settings({{"MODEL_DIM", "256"}}).config.model.mlp_hidden, 512);
  EXPECT_EQ(settings({{"MODEL_DIM", "256"}, {"MLP_MULT", "3"}}).config.model.mlp_hidden, 768);
  EXPECT_EQ(settings({{"TRAIN_MAX_SEQ_LEN", "512"}}).config.model.context, 512);
  EXPECT_EQ(settings({{"TRAIN_MAX_SEQ_LEN", "512"}, {"TRAIN_SEQ_LEN", "256"}}).config.model.context, 256);
  EXPECT_EQ(settings({{"MAX_WALLCLOCK_SECONDS", "0"}}).config.train.max_seconds, 0);
  EXPECT_EQ(settings({{"MAX_WALLCLOCK_SECONDS", "-1"}}).config.train.max_seconds, 0);
  const GolfSettings untied = settings({{"TIE_EMBEDDINGS", "0"}}, GolfScript::torch);
  EXPECT_EQ(untied.config.optimizer.rate(ParamGroup::embedding), 0.6);
  EXPECT_EQ(untied.config.optimizer.rate(ParamGroup::head), 0.008);
  EXPECT_EQ(untied.config.model.embed_init_std, 1);
}

// Tokens of a micro-step that do not fill a row are dropped, like in token_chunks().
TEST(GolfSettings, TheMlxScriptReadsCompleteRows) {
  const GolfSettings golf =
      settings({{"TRAIN_BATCH_TOKENS", "5000"}, {"GRAD_ACCUM_STEPS", "2"}, {"TRAIN_SEQ_LEN", "512"}});
  EXPECT_EQ(golf.train_batch_tokens, 5000);
  EXPECT_EQ(golf.config.train.batch_tokens, 2 * 2048);
  EXPECT_EQ(golf.config.train.span_tokens, 2048);
}

TEST(GolfSettings, ALearningRateOfZeroIsZero) {
  const auto rate = [](Variables environment, ParamGroup group, GolfScript script = GolfScript::mlx) {
    return settings(std::move(environment), script).config.optimizer.rate(group);
  };
  EXPECT_EQ(rate({{"MATRIX_LR", "0"}}, ParamGroup::matrix), 0);
  EXPECT_EQ(rate({{"MATRIX_LR", "0"}}, ParamGroup::scalar), 0.04);
  EXPECT_EQ(rate({{"SCALAR_LR", "0.0"}}, ParamGroup::scalar), 0);
  EXPECT_EQ(rate({{"TIED_EMBED_LR", "0e5"}}, ParamGroup::embedding), 0);
  const Variables untied = {{"TIE_EMBEDDINGS", "0"}, {"EMBED_LR", "0"}, {"HEAD_LR", "0"}};
  EXPECT_EQ(rate(untied, ParamGroup::embedding, GolfScript::torch), 0);
  EXPECT_EQ(rate(untied, ParamGroup::head, GolfScript::torch), 0);
  for (const char* name : {"MATRIX_LR", "TIED_EMBED_LR"})
    EXPECT_EQ(refusal({{name, "-1"}}),
              fmt::format("{} is '-1', expected a learning rate of 0 or more", name));
}

// The scripts test these with > 0.
TEST(GolfSettings, NegativeLengthsAndNormsMeanNone) {
  const TrainConfig train =
      settings({{"WARMDOWN_ITERS", "-5"}, {"WARMUP_STEPS", "-1"}, {"VAL_LOSS_EVERY", "-3"}}).config.train;
  EXPECT_EQ(train.warmdown, 0);
  EXPECT_EQ(train.prime_steps, 0);
  EXPECT_EQ(train.val_every, 0);
  EXPECT_EQ(settings({{"GRAD_CLIP_NORM", "-1"}}).config.optimizer.clip, 0);
}

TEST(GolfSettings, NoNewtonSchulzIterationsStillMeansMuon) {
  for (const char* none : {"0", "-2"}) {
    const OptimizerConfig optimizer = settings({{"MUON_BACKEND_STEPS", none}}).config.optimizer;
    EXPECT_TRUE(optimizer.uses_muon());
    EXPECT_EQ(optimizer.muon_coefficients, MuonCoefficients::none);
  }
  EXPECT_EQ(settings({{"MUON_BACKEND_STEPS", "7"}}).config.optimizer.muon_steps, 7);
  EXPECT_EQ(refusal({{"MUON_BACKEND_STEPS", "21"}}).substr(0, 20), "MUON_BACKEND_STEPS: ");
  const GolfSettings flag = golf_settings({.environment = {{"MUON_BACKEND_STEPS", "0"}},
                                           .flags = [](ConfigBuilder& b) { b.set("muon_steps=3"); }});
  EXPECT_EQ(flag.config.optimizer.muon_steps, 3);
  EXPECT_EQ(flag.config.optimizer.muon_coefficients, MuonCoefficients::jordan);
}

TEST(GolfSettings, NoIterationsMeanNoStepWhateverTheTimeLimit) {
  for (const char* seconds : {"0", "600"}) {
    const GolfSettings golf = settings({{"ITERATIONS", "0"}, {"MAX_WALLCLOCK_SECONDS", seconds}});
    EXPECT_TRUE(golf.config.train.makes_no_step());
    EXPECT_EQ(golf.max_wallclock_seconds, std::stod(seconds)) << "as logged";
  }
}

TEST(GolfSettings, ASingleLayerHasNoSkip) {
  const ModelConfig model = settings({{"NUM_LAYERS", "1"}}).config.model;
  EXPECT_TRUE(model.unet_skips);
  EXPECT_EQ(ParamTable(model).find("skip_weights"), nullptr);
  EXPECT_EQ(ParamTable(model).count(), 524288 + 1835008 + 2056);
}

TEST(GolfSettings, TorchWritesItsFilesWhereTheUserSays) {
  const GolfSettings torch = settings({}, GolfScript::torch);
  EXPECT_EQ(torch.raw_model(), "final_model.pt");
  EXPECT_EQ(torch.int8_model(), "final_model.int8.ptz");
  const GolfSettings named = settings({{"OUT_DIR", "some/folder"}}, GolfScript::torch);
  EXPECT_EQ(named.raw_model(), "some/folder/final_model.pt");
  EXPECT_EQ(named.int8_model(), "some/folder/final_model.int8.ptz");
}

TEST(GolfSettings, FlagsOverrideVariables) {
  const GolfSettings golf =
      golf_settings({.environment = {{"ITERATIONS", "5"}, {"TRAIN_BATCH_TOKENS", "16384"}},
                     .flags = [](ConfigBuilder& builder) {
                       builder.set("steps=9");
                       builder.set("batch_tokens=32768");
                       builder.set("max_seconds=3");
                     }});
  EXPECT_EQ(golf.config.train.steps, 9);
  EXPECT_EQ(golf.config.train.batch_tokens, 32768);
  EXPECT_EQ(golf.max_wallclock_seconds, 3);
}

TEST(GolfSettings, PlusAddsTheTechniquesOfTheRecords) {
  const GolfSettings torch = settings({}, GolfScript::torch, true), mlx = settings({}, GolfScript::mlx, true);
  for (const GolfSettings* golf : {&torch, &mlx}) {
    EXPECT_GT(golf->config.model.bigram_buckets, 0);
    EXPECT_TRUE(golf->config.model.smear_gate);
    EXPECT_EQ(golf->config.model.mlp_hidden, 1536);
    EXPECT_EQ(golf->config.train.qat_bits, 8);
    EXPECT_EQ(golf->config.pack.bits, 6);
  }
  EXPECT_EQ(mlx.config.model.norm_eps, 1e-6);
  EXPECT_EQ(torch.config.model.norm_eps, 1.1920929e-07);
  EXPECT_EQ(settings({{"MODEL_DIM", "256"}}, GolfScript::mlx, true).config.model.mlp_hidden, 768);
}

// With the messages of the scripts where they have any.
TEST(GolfSettings, RejectsWhatTheScriptsReject) {
  EXPECT_EQ(refusal({{"NUM_HEADS", "7"}}), "model_dim must be divisible by num_heads: 512 / 7");
  EXPECT_EQ(refusal({{"NUM_KV_HEADS", "3"}}), "num_heads must be divisible by num_kv_heads: 8 / 3");
  EXPECT_EQ(refusal({{"MODEL_DIM", "24"}}), "head_dim must be even for RoPE: 3");
  EXPECT_EQ(refusal({{"VAL_BATCH_SIZE", "1024"}}),
            "VAL_BATCH_SIZE must provide at least one sequence; got VAL_BATCH_SIZE=1024, GRAD_ACCUM_STEPS=8, "
            "TRAIN_SEQ_LEN=1024");
  EXPECT_EQ(
      refusal({{"TRAIN_BATCH_TOKENS", "4096"}}),
      "token budget too small for seq_len=1024: TRAIN_BATCH_TOKENS=4096 in 8 micro-steps is 512 tokens each");
  EXPECT_EQ(refusal({{"TRAIN_BATCH_TOKENS", "9000"}}, GolfScript::torch),
            "TRAIN_BATCH_TOKENS=9000 in 8 micro-steps is 1125 tokens each, which is not a multiple of "
            "TRAIN_SEQ_LEN=1024");
  EXPECT_EQ(refusal({{"TIE_EMBEDDINGS", "0"}}), "train_gpt_mlx.py only supports tied embeddings");
  EXPECT_EQ(refusal({{"WORLD_SIZE", "8"}}, GolfScript::torch).substr(0, 15), "WORLD_SIZE is 8");
  EXPECT_EQ(refusal({{"RUN_ID", "../x"}}), "RUN_ID is '../x', expected a file name");
  for (const GolfScript script : {GolfScript::mlx, GolfScript::torch}) {
    EXPECT_EQ(refusal({{"LOGIT_SOFTCAP", "0"}}, script), "logit_softcap must be positive, got 0.0");
    EXPECT_EQ(refusal({{"LOGIT_SOFTCAP", "-2.5"}}, script), "logit_softcap must be positive, got -2.5");
  }
  EXPECT_EQ(refusal({{"GRAD_ACCUM_STEPS", "0"}}), "GRAD_ACCUM_STEPS is 0, expected 1 or more");
  EXPECT_EQ(refusal({{"MLP_MULT", "9223372036854775807"}}),
            "MLP_MULT is 9223372036854775807, expected 1 to 1024");
  for (const char* endless : {"inf", "nan"})
    EXPECT_EQ(refusal({{"MAX_WALLCLOCK_SECONDS", endless}}),
              fmt::format("MAX_WALLCLOCK_SECONDS is '{}', expected a number of seconds", endless));
  EXPECT_EQ(refusal({{"CONTROL_TENSOR_NAME_PATTERNS", "attn_scale,mlp"}}),
            "CONTROL_TENSOR_NAME_PATTERNS selects blocks.0.mlp.fc.weight to be trained by Adam, which is not "
            "supported");
}

TEST(GolfSettings, ReportsVariablesWithoutEffect) {
  EXPECT_EQ(settings({{"MLX_EAGER_EVAL", "0"}}).notes,
            std::vector<std::string>{"MLX_EAGER_EVAL does nothing: ops are always evaluated eagerly"});
  EXPECT_EQ(settings({{"EMBED_LR", "0.6"}}).notes,
            std::vector<std::string>{"EMBED_LR does nothing: train_gpt_mlx.py does not read it"});
  EXPECT_EQ(settings({{"GRAD_ACCUM_STEPS", "4"}}, GolfScript::torch).grad_accum_steps, 8);
  EXPECT_EQ(settings({{"GRAD_ACCUM_STEPS", "4"}}, GolfScript::torch).notes.size(), 1u);
  EXPECT_TRUE(settings({{"ITERATIONS", "10"}}).notes.empty());
}

TEST(GolfSettings, DetectsMistypedVariables) {
  const auto warnings = [](const char* name) { return settings({{name, "1"}}).warnings; };
  EXPECT_EQ(warnings("ITERATION"),
            std::vector<std::string>{"ITERATION is set but not used: did you mean ITERATIONS?"});
  EXPECT_EQ(warnings("MAX_WALLCLOCK_SECOND").size(), 1u);
  EXPECT_EQ(warnings("NUM_LAYER").size(), 1u);
  EXPECT_EQ(warnings("MUON_LR"), std::vector<std::string>{"MUON_LR is set but not used"});
  // Common variables are not reported.
  for (const char* name :
       {"HOME", "PATH", "LANG", "USER", "TERM", "PWD", "SHELL", "LOGNAME", "MAIL", "EDITOR",
        "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "OLDPWD", "HOSTNAME", "DISPLAY"})
    EXPECT_TRUE(warnings(name).empty()) << name;
}

TEST(GolfSettings, ReadsThePatternsOfTheInt8File) {
  EXPECT_EQ(settings({}).keep_f32.size(), 9u);
  EXPECT_EQ(settings({{"INT8_KEEP_FLOAT_FP32_NAME_PATTERNS", "q_gain,,skip"}}).keep_f32,
            (std::vector<std::string>{"q_gain", "skip"}));
}

}  // namespace
}  // namespace thimble
