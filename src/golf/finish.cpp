#include "golf/finish.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/error.h"
#include "eval/calibrate.h"
#include "formats/npz.h"
#include "formats/pack_model.h"
#include "pack/gptq.h"
#include "tokenizer/byte_table.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

class Finish {
 public:
  explicit Finish(const GolfFinish& parts)
      : parts_(parts), golf_(parts.golf), model_(open_model(parts.checkpoint)), table_(model_.config.model) {}

  Score run() {
    const bool torch = golf_.script == GolfScript::torch;
    if (torch) parts_.log.line(peak_memory());
    write_raw();
    write_int8();
    const Score score = validate_int8();
    write_own();
    return score;
  }

 private:
  static std::string peak_memory() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const long mebibytes = usage.ru_maxrss / 1024;
    return fmt::format("peak memory allocated: {} MiB reserved: {} MiB", mebibytes, mebibytes);
  }

  // train_gpt.py's outputs have one name for all runs, and are replaced; the others were found to be free.
  Existing existing() const {
    return parts_.around.force || golf_.script == GolfScript::torch ? Existing::replace : Existing::refuse;
  }

  void write_raw() {
    const bool torch = golf_.script == GolfScript::torch;
    const std::string bytes =
        torch ? torch_state_dict(table_, model_.weights) : npz_of(table_, model_.weights);
    write_file(parts_.ops, golf_.raw_model(), bytes, existing());
    parts_.log.line(raw_model_line(golf_, bytes.size()));
    if (!torch) return;
    parts_.log.line(fmt::format("Code size: {} bytes", parts_.around.code_bytes));
    parts_.log.line(fmt::format("Total submission size: {} bytes", bytes.size() + parts_.around.code_bytes));
  }

  void write_int8() {
    Int8Stats stats;
    const bool torch = golf_.script == GolfScript::torch;
    const std::vector<PackedTensor> tensors =
        quantise_int8_state(table_, model_.weights, golf_.keep_f32, stats);
    const std::string state = int8_state(table_, tensors, torch ? PickledBy::torch : PickledBy::numpy);
    const std::string bytes = int8_ptz(state);
    write_file(parts_.ops, golf_.int8_model(), bytes, existing());
    parts_.log.line(int8_line(golf_, bytes.size(), state.size(), stats));
    if (torch)
      parts_.log.line(
          fmt::format("Total submission size int8+zlib: {} bytes", bytes.size() + parts_.around.code_bytes));
  }

  Score validate_int8() {
    return validate(open_int8_state(golf_.int8_model(), model_.config), "int8_zlib", 0);
  }

  // Two lines, and what they say.
  Score validate(const ModelFile& file, std::string_view name, std::int64_t stride) {
    const Context context(parts_.around.device, parts_.around.log);
    Model model = make_model(file, context, parts_.compute);
    const ByteTable bytes(parts_.tokenizer, static_cast<TokenId>(file.config.model.vocab_size));
    const bool shown = stride == 0;  // val_progress counts windows that do not overlap
    const double started = seconds_now();
    parts_.lines.begin_validation();
    const Score score = score_set(model, bytes, parts_.val,
                                  {.stride = stride,
                                   .val_tokens = golf_.config.train.val_tokens,
                                   .isolate = file.config.model.isolate,
                                   .on_scored =
                                       [&](std::int64_t tokens) {
                                         if (shown) parts_.lines.validating(tokens);
                                       }},
                                  ProgressOutput::nowhere(), &parts_.around.interrupt);
    parts_.log.line(fmt::format("final_{}_roundtrip {} eval_time:{:.0f}ms", name, score_text(score),
                                1000 * (seconds_now() - started)));
    parts_.log.line(fmt::format("final_{}_roundtrip_exact {}", name, exact_score_text(score)));
    return score;
  }

  // The rules close the training data when the time is up: the model's own samples are all there is to calibrate on.
  GptqFactors factors_from_samples() {
    constexpr std::int64_t kTokens = 131072;
    const auto bos = parts_.tokenizer.special().bos;
    check(bos.has_value(), "pack_gptq: the tokenizer has no bos token for samples to begin with");
    const Context context(parts_.around.device, parts_.around.log);
    Model model = make_model(model_, context, parts_.compute);
    const Grid samples =
        sampled_windows(model, *bos, kTokens, 0, ProgressOutput::nowhere(), &parts_.around.interrupt);
    const Interrupt* interrupt = &parts_.around.interrupt;
    const ProgressOutput nowhere;
    return GptqFactors(calibrate(model, samples, nowhere, interrupt), nowhere, interrupt);
  }

  // Ours: the checkpoint is there already, the artifact is packed as the preset says.
  void write_own() {
    const TrainConfig& train = golf_.config.train;
    PackRequest request{.options = pack_options(train)};
    const GptqFactors factors = train.pack_gptq ? factors_from_samples() : GptqFactors();
    if (train.pack_gptq) request.options.gptq = &factors;
    request.code_bytes = parts_.around.code_bytes;
    const PackResult packed =
        pack_model(model_, request, ProgressOutput::nowhere(), &parts_.around.interrupt);
    write_file(parts_.ops, golf_.artifact(), packed.bytes,
               parts_.around.force ? Existing::replace : Existing::refuse);
    parts_.log.line(fmt::format("saved_checkpoint:{} bytes:{}", parts_.checkpoint.string(),
                                fs::file_size(parts_.checkpoint)));
    parts_.log.line(
        fmt::format("saved_artifact:{} bytes:{}", golf_.artifact().string(), packed.bytes.size()));
    if (golf_.plus)
      validate(open_model(golf_.artifact()),
               fmt::format("int{}_{}", request.options.rule.bits, name_of(request.options.codec)),
               train.pack_stride);
  }

  const GolfFinish& parts_;
  const GolfSettings& golf_;
  ModelFile model_;
  ParamTable table_;
};

}  // namespace

Score finish_golf(const GolfFinish& finish) {
  return Finish(finish).run();
}

}  // namespace thimble
