// Names that other programs use, for "did you mean" hints.
#include <algorithm>

#include "config/keys.h"

namespace thimble {

namespace {

struct Synonyms {
  std::string_view ours, theirs;  // theirs: separated by blanks
};

// A word may occur in several rows: the first whose name exists where it is used is suggested.
constexpr Synonyms kSynonyms[] = {
    // commands
    {"pack", "quantize quant compress"},
    {"quantize", "quantise quantization"},
    {"generate", "sample infer inference complete completion predict"},
    {"chat", "cli repl interactive"},
    {"serve", "server api"},
    {"train", "finetune fine-tune pretrain fit sft"},
    {"eval", "evaluate perplexity validate"},
    {"export", "convert"},
    {"inspect", "show info"},
    {"tokenizer encode", "tokenize encode"},
    {"tokenizer decode", "detokenize decode"},
    {"data build", "prepare preprocess"},
    {"bench", "benchmark llama-bench"},
    {"qa", "verify check test"},
    {"doctor", "system-info env"},
    {"--version", "version"},
    // arguments
    {"MODEL", "m model checkpoint ckpt hf"},
    {"PROMPT", "p prompt start"},
    // the model
    {"context",
     "c ctx ctx-size n-ctx num-ctx block-size seq-len seq-length sequence-length max-seq-len max-seq-length "
     "context-length max-position-embeddings n-positions model-max-length"},
    {"layers", "n-layer n-layers num-layers num-hidden-layers block-count"},
    {"heads", "n-head n-heads num-heads num-attention-heads head-count"},
    {"kv_heads", "n-kv-head n-kv-heads num-kv-heads num-key-value-heads"},
    {"dim", "n-embd d-model model-dim hidden-size hidden-dim embedding-length"},
    {"mlp_hidden", "intermediate-size n-inner d-ff ffn-dim"},
    {"mlp", "hidden-act activation-function activation"},
    {"rope_base", "rope-theta rope-freq-base"},
    {"norm_eps", "rms-norm-eps layer-norm-epsilon"},
    {"tie_embeddings", "tie-word-embeddings"},
    {"qkv_bias", "attention-bias"},
    {"dropout", "attention-dropout resid-pdrop"},
    {"init_std", "initializer-range"},
    {"vocab_size", "n-vocab"},
    // training
    {"steps", "max-iters max-steps num-steps train-steps num-iterations iterations iters lr-decay-iters"},
    {"epochs", "num-train-epochs num-epochs n-epochs"},
    {"lr", "learning-rate"},
    {"schedule", "lr-scheduler lr-scheduler-type"},
    {"warmup_steps", "warmup-iters num-warmup-steps"},
    {"warmdown", "warmdown-iters"},
    {"optimizer", "optim"},
    {"beta1", "adam-beta1"},
    {"beta2", "adam-beta2"},
    {"adam_eps", "adam-epsilon"},
    {"weight_decay", "wd"},
    {"clip", "grad-clip max-grad-norm gradient-clip"},
    {"batch_size", "b per-device-train-batch-size"},
    {"batch_tokens", "total-batch-size"},
    {"micro_batch", "gradient-accumulation-steps grad-accum-steps device-batch-size"},
    {"checkpoint_activations", "gradient-checkpointing"},
    {"val_every", "eval-interval eval-steps eval-every"},
    {"val_tokens", "eval-iters"},
    {"checkpoint_every", "save-interval save-steps save-every"},
    {"keep", "save-total-limit"},
    {"max_seconds", "max-time max-wallclock-seconds"},
    {"patience", "early-stopping-patience"},
    {"dtype", "bf16 fp16 torch-dtype precision"},
    {"loss_on", "completion-only"},
    {"output", "out-dir output-dir outfile out"},
    {"data", "dataset dataset-name train-file train-data corpus"},
    {"val-data", "validation-file val-file"},
    {"val-fraction", "validation-split val-split"},
    {"init", "init-from model-name-or-path base-model pretrained"},
    {"MODEL", "model-name-or-path"},
    {"resume", "resume-from-checkpoint"},
    {"tokenizer", "tokenizer-name"},
    {"tensorboard", "wandb-log report-to"},
    {"seed", "random-seed s"},
    // use of a model
    {"temperature", "temp do-sample"},
    {"max-tokens", "n-predict predict num-predict max-new-tokens max-length n n-gen n-prompt"},
    {"min-tokens", "min-new-tokens min-length"},
    {"samples", "num-samples num-return-sequences"},
    {"repeat-penalty", "repetition-penalty"},
    {"repeat-last-n", "repeat-penalty-last-n"},
    {"stop", "reverse-prompt r stop-sequence stop-strings"},
    {"prompt-file", "f file"},
    {"system", "system-prompt sys"},
    {"layout", "chat-template"},
    {"no-display-prompt", "no-echo"},
    {"threads", "t n-threads num-threads num-thread"},
    {"device", "n-gpu-layers gpu-layers ngl gpu cuda"},
    {"slots", "parallel np n-parallel"},
    {"alias", "served-model-name"},
    {"iterations", "repeat repetitions"},
    {"type", "quantization outtype"},
    {"bits", "n-bits wbits bits-per-weight"},
    {"budget", "max-bytes"},
    {"limit", "limit-samples"},
    {"memorized", "memorised memorization memorisation"},
    {"memorization", "memorisation memorized memorised"},
    {"stats", "verbose timings"},
    // commands and settings of chat
    {"quit", "bye exit"},
    {"retry", "regen regenerate"},
    {"load", "read open"},
    {"save", "write"},
    {"clear", "reset new"},
    {"set", "parameter"},
};

bool same_name(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](char x, char y) { return x == y || (x == '-' && y == '_') || (x == '_' && y == '-'); });
}

bool is_one_of(std::string_view word, std::string_view words) {
  while (!words.empty()) {
    const std::size_t end = std::min(words.find(' '), words.size());
    if (same_name(word, words.substr(0, end))) return true;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return false;
}

}  // namespace

std::string_view synonym(std::string_view word, std::span<const std::string_view> names) {
  for (const Synonyms& row : kSynonyms) {
    if (!is_one_of(word, row.theirs)) continue;
    const auto found =
        std::ranges::find_if(names, [&](std::string_view name) { return same_name(name, row.ours); });
    if (found != names.end()) return *found;
  }
  return {};
}

}  // namespace thimble
