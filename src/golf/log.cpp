#include "golf/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/machine.h"
#include "config/keys.h"

namespace thimble {

GolfLog::GolfLog(FileOps& ops, const std::filesystem::path& file, Print print)
    : ops_(ops), file_(ops.open_for_writing(file)), print_(std::move(print)) {
  try {
    ops_.truncate(file_, std::filesystem::file_size(file));  // sets the position to the end
    print_(file.string());
  } catch (...) {
    ops_.close(file_);
    throw;
  }
}

GolfLog::~GolfLog() {
  ops_.close(file_);
}

void GolfLog::line(std::string_view text) {
  print_(text);
  file_only(text);
}

void GolfLog::file_only(std::string_view text) {
  const std::string line = std::string(text) + '\n';
  auto rest = std::as_bytes(std::span(line));
  while (!rest.empty()) rest = rest.subspan(ops_.write(file_, rest));
}

namespace {

// As Python prints a float: 30.0, 0.04.
std::string python(double value) {
  return value_text(KeyValue(value));
}
std::string_view python(bool value) {
  return value ? "True" : "False";
}

std::string dataset_line(const GolfData& data) {
  if (!data.published_shards)
    return fmt::format("train_loader:dataset:{} train_shards:{}", data.name, data.train_shards);
  if (data.train_shards < *data.published_shards)
    return fmt::format(
        "WARNING: train_loader:subset dataset:{} train_shards:{}/{} new epochs will arrive sooner than the "
        "full "
        "dataset",
        data.name, data.train_shards, *data.published_shards);
  return fmt::format("train_loader:dataset:{} train_shards:{}/{}", data.name, data.train_shards,
                     *data.published_shards);
}

std::string tokenizer_line(const GolfSettings& golf) {
  return fmt::format("val_bpb:enabled tokenizer_kind=sentencepiece tokenizer_path={}", golf.tokenizer_text);
}

std::string val_loader_line(const GolfSettings& golf, const GolfData& data) {
  return fmt::format("val_loader:shards pattern={}/fineweb_val_*.bin tokens:{}", golf.data_text,
                     data.val_tokens);
}

std::int64_t tensors_of(const ParamTable& table, ParamGroup group) {
  return std::ranges::count(table.all(), group, &Param::group);
}

std::int64_t muon_tensors(const ParamTable& table, const OptimizerConfig& optimizer) {
  return optimizer.uses_muon() ? tensors_of(table, ParamGroup::matrix) : 0;
}

std::int64_t muon_rounds(const OptimizerConfig& optimizer) {
  return optimizer.muon_coefficients == MuonCoefficients::none ? 0 : optimizer.muon_steps;
}

std::vector<std::string> mlx_lines(const GolfSettings& golf, const GolfData& data, const ParamTable& table,
                                   DType compute) {
  const ModelConfig& model = golf.config.model;
  const OptimizerConfig& optimizer = golf.config.optimizer;
  const TrainConfig& train = golf.config.train;
  return {
      fmt::format("run_id:{}", golf.run_id),
      fmt::format("thimble_version:{}", version()),
      fmt::format("train_loader:shards pattern={}/fineweb_train_*.bin", golf.data_text),
      val_loader_line(golf, data),
      dataset_line(data),
      fmt::format("tokenizer_path:{}", golf.tokenizer_text),
      fmt::format(
          "model_params:{} vocab_size:{} layers:{} dim:{} heads:{} kv_heads:{} seq_len:{} tie_embeddings:{}",
          table.count(), model.vocab_size, model.layers, model.dim, model.heads, model.kv_heads,
          model.context, python(model.tie_embeddings)),
      fmt::format("iterations:{} train_batch_tokens:{} grad_accum_steps:{} microbatch_tokens:{} "
                  "microbatch_batch_size:{} val_batch_size:{} warmup_steps:{} max_wallclock_seconds:{:.3f}",
                  train.steps, golf.train_batch_tokens, golf.grad_accum_steps, golf.microbatch_tokens(),
                  golf.microbatch_tokens() / model.context, golf.val_batch_size, train.prime_steps,
                  golf.max_wallclock_seconds),
      fmt::format("mlx_max_microbatch_tokens:{}", golf.sub_batch_tokens),
      fmt::format(
          "optimizer:muon+adam muon_matrix_params:{} scalar_params:{} embed_lr:{} matrix_lr:{} scalar_lr:{} "
          "muon_momentum:{} muon_steps:{}",
          muon_tensors(table, optimizer), tensors_of(table, ParamGroup::scalar),
          python(optimizer.rate(ParamGroup::embedding)), python(optimizer.rate(ParamGroup::matrix)),
          python(optimizer.rate(ParamGroup::scalar)), python(optimizer.muon_momentum),
          muon_rounds(optimizer)),
      tokenizer_line(golf),
      fmt::format("compute_dtype:{} compile:True", compute == DType::bf16  ? "bfloat16"
                                                   : compute == DType::f16 ? "float16"
                                                                           : "float32"),
      "dtypes tok_emb:float32 linear_weight:float32 skip_weights:float32",
  };
}

std::vector<std::string> torch_lines(const GolfSettings& golf, const GolfData& data,
                                     const ParamTable& table) {
  const ModelConfig& model = golf.config.model;
  const OptimizerConfig& optimizer = golf.config.optimizer;
  const TrainConfig& train = golf.config.train;
  return {
      tokenizer_line(golf),
      fmt::format("train_loader:dataset:{} train_shards:{}", data.name, data.train_shards),
      val_loader_line(golf, data),
      fmt::format("model_params:{}", table.count()),
      fmt::format("world_size:{} grad_accum_steps:{}", golf.ranks, golf.grad_accum_steps / golf.ranks),
      "sdp_backends:cudnn=False flash=False mem_efficient=False math=False thimble=True",
      fmt::format("attention_mode:gqa num_heads:{} num_kv_heads:{}", model.heads, model.kv_heads),
      fmt::format("tie_embeddings:{} embed_lr:{} head_lr:{} matrix_lr:{} scalar_lr:{}",
                  python(model.tie_embeddings), python(optimizer.rate(ParamGroup::embedding)),
                  python(model.tie_embeddings ? 0.0 : optimizer.rate(ParamGroup::head)),
                  python(optimizer.rate(ParamGroup::matrix)), python(optimizer.rate(ParamGroup::scalar))),
      fmt::format(
          "train_batch_tokens:{} train_seq_len:{} iterations:{} warmup_steps:{} max_wallclock_seconds:{:.3f}",
          golf.train_batch_tokens, model.context, train.steps, train.prime_steps, golf.max_wallclock_seconds),
      fmt::format("seed:{}", train.seed),
  };
}

}  // namespace

std::vector<std::string> opening_lines(const GolfSettings& golf, const GolfData& data,
                                       const ParamTable& table, DType compute) {
  return golf.script == GolfScript::mlx ? mlx_lines(golf, data, table, compute)
                                        : torch_lines(golf, data, table);
}

std::string score_text(const Score& score) {
  return fmt::format("val_loss:{:.4f} val_bpb:{:.4f}", score.loss(), score.bits_per_byte());
}

std::string exact_score_text(const Score& score) {
  return fmt::format("val_loss:{:.8f} val_bpb:{:.8f}", score.loss(), score.bits_per_byte());
}

std::string raw_model_line(const GolfSettings& golf, std::uint64_t bytes) {
  return golf.script == GolfScript::mlx
             ? fmt::format("saved_model:{} bytes:{}", golf.raw_model().string(), bytes)
             : fmt::format("Serialized model: {} bytes", bytes);
}

std::string int8_line(const GolfSettings& golf, std::uint64_t bytes, std::uint64_t raw_bytes,
                      const Int8Stats& stats) {
  const bool mlx = golf.script == GolfScript::mlx;
  return fmt::format("{}{} bytes (payload:{} {}:{} payload_ratio:{:.2f}x)",
                     mlx ? "serialized_model_int8_zlib:" : "Serialized model int8+zlib: ", bytes,
                     stats.payload_bytes, mlx ? "raw_pickle" : "raw_torch", raw_bytes, stats.ratio());
}

std::string GolfLines::step_label(std::int64_t step) const {
  return fmt::format("step:{}/{}", step, golf_.config.train.steps);
}

std::string GolfLines::times(std::int64_t step) const {
  return fmt::format("train_time:{:.0f}ms step_avg:{:.2f}ms", milliseconds_,
                     milliseconds_ / static_cast<double>(std::max<std::int64_t>(step, 1)));
}

void GolfLines::primed(std::int64_t step, std::int64_t of) {
  constexpr std::int64_t kFew = 20, kEvery = 10;
  if (of <= kFew || step % kEvery == 0 || step == of) log_.line(fmt::format("warmup_step:{}/{}", step, of));
}

void GolfLines::step(const StepReport& report) {
  constexpr std::int64_t kFirst = 10;
  warn_of_epochs(report.position);
  milliseconds_ += 1000 * report.seconds;
  const std::int64_t every = golf_.train_log_every;
  if (every <= 0 || (report.step > kFirst && report.step % every != 0)) return;
  std::string line =
      fmt::format("{} train_loss:{:.4f} {}", step_label(report.step), report.result.loss, times(report.step));
  if (golf_.script == GolfScript::mlx)
    line += fmt::format(" tok_s:{:.0f}", static_cast<double>(golf_.train_batch_tokens) / report.seconds);
  log_.line(line);
}

namespace {

// `position` is that of the next step. At the start of an epoch, nothing of that epoch has been
// read yet.
std::uint64_t epochs_begun(const ReadPosition& position) {
  return position.next > 0 ? position.epoch + 1 : position.epoch;
}

}  // namespace

void GolfLines::resume(const ReadPosition& position, double seconds) {
  epochs_ = std::max(epochs_, epochs_begun(position));
  milliseconds_ = 1000 * seconds;
}

void GolfLines::warn_of_epochs(const ReadPosition& position) {
  const std::uint64_t begun = epochs_begun(position);
  while (epochs_ < begun)
    log_.line(fmt::format("WARNING: starting epoch:{} dataset:{} train_shards:{}", ++epochs_, data_.name,
                          data_.train_shards));
}

void GolfLines::validating(std::int64_t tokens_scored) {
  constexpr std::int64_t kEvery = 25;
  if (golf_.script != GolfScript::mlx) return;
  const std::int64_t size = golf_.val_batch_tokens, all = (data_.val_tokens + size - 1) / size;
  while (batches_ < all && tokens_scored >= std::min((batches_ + 1) * size, data_.val_tokens)) {
    ++batches_;
    if (all > 1 && (batches_ == 1 || batches_ == all || batches_ % kEvery == 0))
      log_.line(fmt::format("val_progress:{}/{}", batches_, all));
  }
}

void GolfLines::validation(const ValidationReport& report) {
  constexpr std::int64_t kShownEvery = 25;
  begin_validation();
  if (golf_.script == GolfScript::mlx && report.step % kShownEvery != 0 && !report.last) return;
  log_.line(fmt::format("{} {} {}", step_label(report.step), score_text(report.score), times(report.step)));
}

std::string GolfLines::stopping_early(std::int64_t step) const {
  return fmt::format("stopping_early: wallclock_cap train_time:{:.0f}ms {}", milliseconds_, step_label(step));
}

}  // namespace thimble
