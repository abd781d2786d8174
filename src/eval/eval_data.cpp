#include "eval/eval_data.h"

#include <algorithm>

#include "base/error.h"
#include "data/data_folder.h"
#include "data/document.h"
#include "data/encode.h"
#include "data/records.h"
#include "data/survey.h"
#include "infer/generate.h"
#include "tokenizer/chat_layout.h"

namespace thimble {

namespace {

Document checked_document(Record& record, const ReadOptions& options) {
  Document document = read_document(record, options);
  if (!document.problem.empty()) fail(Hint{document.hint}, "{}", document.problem);
  return document;
}

// Encodes every document with a leading bos. Documents may have any length, so they are encoded in
// pieces, as in `data build`.
void encode_texts(const DataSource& source, const ReadOptions& options, const Tokenizer& tokenizer,
                  const TokenSink& sink, const ProgressOutput& progress, const Interrupt* interrupt) {
  const BatchEncoder encoder(tokenizer, options, {});
  Mixture mixture({&source, 1}, options);
  ProgressBar bar(progress, "reading", "bytes", mixture.stored_bytes());
  for (auto batch = mixture.next_batch(); !batch.empty(); batch = mixture.next_batch()) {
    if (interrupt) interrupt->throw_if_interrupted();
    bar.update(mixture.stored_bytes_read());
    for (MixedRecord& mixed : batch) {  // throws for a bad record, which the encoder would skip
      mixed.record.raw = checked_document(mixed.record, options).text;
      mixed.record.json = false;
    }
    for (const EncodedRecord& encoded : encoder.encode(batch, std::vector<bool>(batch.size(), true)))
      for (const std::vector<TokenId>& part : encoded.parts) sink(part);
  }
}

// All texts of a source, concatenated.
std::string read_texts(const DataSource& source, const ProgressOutput& progress, const Interrupt* interrupt) {
  const ReadOptions options{.split = DocumentSplit::file};
  Mixture mixture({&source, 1}, options);
  ProgressBar bar(progress, "reading", "bytes", mixture.stored_bytes());
  std::string text;
  for (auto batch = mixture.next_batch(); !batch.empty(); batch = mixture.next_batch()) {
    if (interrupt) interrupt->throw_if_interrupted();
    bar.update(mixture.stored_bytes_read());
    for (MixedRecord& mixed : batch) text += checked_document(mixed.record, options).text;
  }
  return text;
}

// At most `limit` conversations; 0: all.
void for_each_chat(const DataSource& source, std::uint64_t limit, ReadOptions options,
                   const std::function<void(Conversation)>& action) {
  options.kind = DataKind::chat;
  options.assistant = assistant_in(std::span(&source, 1), options.assistant);
  RecordReader reader(source, options);
  std::uint64_t count = 0;
  while (limit == 0 || count < limit) {
    auto record = reader.next();
    if (!record) break;
    Document document = checked_document(*record, options);
    if (document.turns.empty()) continue;
    action(std::move(document.turns));
    ++count;
  }
  check(count > 0, "{} contains no conversation with an answer", source.name);
}

std::vector<Conversation> read_chats(const DataSource& source, std::uint64_t limit,
                                     const ReadOptions& options) {
  std::vector<Conversation> conversations;
  for_each_chat(source, limit, options,
                [&](Conversation turns) { conversations.push_back(std::move(turns)); });
  return conversations;
}

void encode_chats(const DataSource& source, const ReadOptions& options, const Tokenizer& tokenizer,
                  const TokenSink& sink, const Interrupt* interrupt) {
  const ChatLayout layout(tokenizer, options.layout);
  for_each_chat(source, 0, options, [&](const Conversation& turns) {
    if (interrupt) interrupt->throw_if_interrupted();
    LearnedConversation chat = layout.learned(turns);
    if (options.layout != kRolesLayout) add_marks(chat);
    sink(chat.ids);
  });
}

}  // namespace

TokenSet open_eval_set(const std::filesystem::path& path, const Tokenizer& tokenizer,
                       const ProgressOutput& progress, const Interrupt* interrupt, const ReadOptions& read) {
  if (is_data_folder(path)) {
    const DataFolder folder = open_data_folder(path);
    check_tokenizer(folder, tokenizer);
    check(!folder.val.empty(), Hint{"pass other text with --data"}, "{} has no validation shards",
          path.string());
    verify_shards(folder, std::vector{DataSplit::val}, progress, interrupt);
    return open_split(folder, DataSplit::val, folder.marks(tokenizer, LossOn::assistant), Digests::verified);
  }
  std::vector<std::int32_t> tokens;
  const auto add = [&](std::span<const TokenId> more) {
    tokens.insert(tokens.end(), more.begin(), more.end());
  };
  const DataKind kind = encode_data(path, tokenizer, add, progress, interrupt, read);
  check(!tokens.empty(), "{} is empty", path.string());
  return {std::move(tokens), TokenMarks::of(tokenizer, kind, LossOn::assistant, read.layout)};
}

DataKind encode_data(const std::filesystem::path& path, const Tokenizer& tokenizer, const TokenSink& sink,
                     const ProgressOutput& progress, const Interrupt* interrupt, const ReadOptions& read) {
  const DataSource source = find_source(path.string());
  const DataKind kind = detect_kind(source, read.text_field);
  check(kind == DataKind::chat || read.assistant.empty(), "--assistant applies only to chats");
  if (kind == DataKind::chat)
    encode_chats(source, read, tokenizer, sink, interrupt);
  else
    encode_texts(source, read, tokenizer, sink, progress, interrupt);
  return kind;
}

std::vector<std::int32_t> read_stream(const std::filesystem::path& path, const Tokenizer& tokenizer,
                                      const ProgressOutput& progress, const Interrupt* interrupt) {
  const auto check_kind = [&](DataKind kind) {
    check(kind == DataKind::text, Hint{"pass a text file"}, "{} contains conversations, expected text",
          path.string());
  };
  std::vector<std::int32_t> tokens;
  if (is_data_folder(path)) {
    check_kind(open_data_folder(path).kind());
    const TokenSet set = open_eval_set(path, tokenizer, progress, interrupt);
    const std::uint64_t skip = set.at(0) == set.marks().bos ? 1 : 0;
    tokens.resize(set.size() - skip);
    set.copy(skip, tokens);
    return tokens;
  }
  const DataSource source = find_source(path.string());
  check_kind(detect_kind(source));
  std::string all = read_texts(source, progress, interrupt);
  if (all.ends_with('\n')) all.pop_back();
  tokenizer.encode(all, tokens);
  return tokens;
}

std::vector<Conversation> read_conversations(const std::filesystem::path& path, std::uint64_t limit,
                                             const ReadOptions& read) {
  check(!is_data_folder(path), Hint{"pass the chats as JSON lines"},
        "{} is a folder of shards, expected conversations as text", path.string());
  const DataSource source = find_source(path.string());
  check(detect_kind(source) == DataKind::chat,
        Hint{"write one per line: {\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, ...]}"},
        "{} contains no conversations", path.string());
  return read_chats(source, limit, read);
}

namespace {

constexpr std::int64_t kSamplingSlots = 16;       // samples generated in one batch, one cache slot each
constexpr std::int64_t kSamplesPerRequest = 512;  // the batcher accepts at most 1000
constexpr float kTemperature = 0.8f;              // as in the parameter-golf records

std::int64_t windows_for(std::int64_t tokens, std::int64_t T) {
  return std::max<std::int64_t>(1, tokens / T);
}

// Returns tensors in host memory; tensors on a GPU are copied.
class HostRows {
 public:
  explicit HostRows(std::shared_ptr<DeviceRuntime> runtime) : runtime_(std::move(runtime)) {}

  Tensor of(const Tensor& x) {
    if (x.device == Device::cpu) return x;
    const std::int64_t bytes = x.end_bytes() - x.begin_bytes();
    if (buffer_.bytes() < bytes) buffer_ = PinnedBuffer(runtime_, bytes);
    runtime_->download(buffer_.data(), x.data, bytes);
    runtime_->synchronize();
    Tensor host = x;
    host.data = buffer_.data();
    host.device = Device::cpu;
    return host;
  }

 private:
  std::shared_ptr<DeviceRuntime> runtime_;
  PinnedBuffer buffer_;
};

}  // namespace

Grid calibration_windows(const TokenSet& set, const ModelConfig& config, std::int64_t tokens) {
  const auto T = static_cast<std::uint64_t>(config.context);
  const auto most = static_cast<std::uint64_t>(windows_for(tokens, config.context));
  const std::uint64_t count = std::clamp<std::uint64_t>(set.size() / T, 1, most);
  Grid grid;
  for (std::uint64_t i = 0; i < count; ++i)
    set.append_window(set.size() / count * i, config.context, config.isolate, grid);
  return grid;
}

Grid sampled_windows(Model& model, TokenId bos, std::int64_t tokens, std::uint64_t seed,
                     const ProgressOutput& progress, const Interrupt* interrupt) {
  const std::int64_t T = model.config().context, count = windows_for(tokens, T);
  ProgressBar bar(progress, "sampling", "tokens", static_cast<std::uint64_t>(count * T));
  Batcher batcher(model, nullptr, {.slots = std::min(count, kSamplingSlots)});
  Grid grid;
  for (std::int64_t done = 0; done < count; done += kSamplesPerRequest) {
    // No stop ids: when a text ends, the model continues with the next one.
    Request request{
        .prompt = {bos},
        .sampling = {.temperature = kTemperature, .seed = seed + static_cast<std::uint64_t>(done)},
        .samples = static_cast<int>(std::min(kSamplesPerRequest, count - done)),
        .max_tokens = T - 1};
    const std::vector<Sample> samples = generate(
        batcher, std::move(request), [&](const Event& event) { bar.advance(event.tokens.size()); },
        interrupt);
    if (interrupt) interrupt->throw_if_interrupted();
    for (const Sample& sample : samples) {
      grid.input.push_back(bos);
      for (const TokenScore& token : sample.tokens) grid.input.push_back(token.id);
      grid.input.resize((grid.input.size() + static_cast<std::size_t>(T) - 1) / static_cast<std::size_t>(T) *
                            static_cast<std::size_t>(T),
                        bos);
    }
  }
  for (std::size_t i = 0; i < grid.input.size(); ++i) {
    const bool row_start = i % static_cast<std::size_t>(T) == 0;
    grid.doc_start.push_back(row_start || (model.config().isolate && grid.input[i] == bos));
  }
  grid.target.assign(grid.input.size(), -1);
  grid.tokens = static_cast<std::int64_t>(grid.input.size());
  return grid;
}

InputMoments calibrate(Model& model, const Grid& windows, const ProgressOutput& progress,
                       const Interrupt* interrupt) {
  const auto T = static_cast<std::size_t>(model.config().context);
  const std::size_t rows = windows.input.size() / T;
  check(rows > 0, "[calibrate] expected at least one window of text, found none");
  const auto batch_rows = std::max<std::size_t>(1, static_cast<std::size_t>(model.max_score_rows()) / T);
  ProgressBar bar(progress, "calibrating", "tokens", windows.input.size());
  InputMoments moments;
  HostRows host(model.runtime());
  for (std::size_t begin = 0; begin < rows; begin += batch_rows) {
    if (interrupt) interrupt->throw_if_interrupted();
    const std::size_t from = begin * T, count = std::min(batch_rows, rows - begin) * T;
    const Rows batch = grid_rows(
        model.config(), static_cast<std::int64_t>(T), std::span(windows.input).subspan(from, count),
        std::span(windows.target).subspan(from, count), std::span(windows.doc_start).subspan(from, count));
    model.observe_products(
        batch, [&](const ParamView& weight, const Tensor& x) { moments.add(weight, host.of(x)); });
    bar.advance(count);
  }
  return moments;
}

Score score_windows(Model& model, const Grid& windows, std::int64_t tokens, const ProgressOutput& progress,
                    const Interrupt* interrupt) {
  constexpr std::int64_t kAtATime = 1024;  // on the CPU; few enough that the bar moves
  const auto T = static_cast<std::size_t>(model.config().context);
  const std::size_t rows = windows.input.size() / T;
  const std::size_t used =
      std::min(rows, static_cast<std::size_t>(windows_for(tokens, model.config().context)));
  Score score;
  ProgressBar bar(progress, "scoring", "tokens", used * T);
  WindowScorer scorer(model, static_cast<std::int64_t>(T), model.device() == Device::cpu ? kAtATime : 0,
                      [&](const Window&, std::span<const float> nats) {
                        if (interrupt) interrupt->throw_if_interrupted();
                        for (const float own : nats) score.nats += double{own};
                        bar.advance(nats.size());
                      });
  for (std::size_t i = 0; i < used; ++i) {
    const std::size_t row = rows / used * i * T;
    for (std::size_t begin = row, end = row + 1; begin < row + T; begin = end++) {
      while (end < row + T && !windows.doc_start[end]) ++end;
      Window window;
      for (std::size_t at = begin; at < end; ++at) {
        window.input.push_back(windows.input[at]);
        window.target.push_back(at + 1 < end ? windows.input[at + 1] : -1);
      }
      score.tokens += static_cast<std::int64_t>(end - begin - 1);
      scorer.add(std::move(window));
    }
  }
  scorer.finish();
  check_finite(score);
  return score;
}

}  // namespace thimble
