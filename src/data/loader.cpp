#include "data/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/table.h"

namespace thimble {

namespace {

bool is_golf(ReadOrder order) {
  return order == ReadOrder::golf || order == ReadOrder::golf_mlx;
}

}  // namespace

BatchLoader::BatchLoader(const TokenSet& set, const LoaderSettings& settings, const ModelConfig& config)
    : settings_(settings),
      config_(config),
      reader_(make_row_reader(set, settings_.rows)),
      isolate_(settings_.isolate.value_or(!is_golf(settings_.rows.order))) {
  check(isolate_ || settings_.rows.order != ReadOrder::packed,
        Hint{"remove isolate = false, or pass --order shuffled"},
        "isolate = false is not supported with packed rows");
  check(settings_.micro_batch >= 0, "expected micro_batch to be 0 or more, found {}", settings_.micro_batch);
  assign_rows();
}

BatchLoader::~BatchLoader() {
  stop_thread();
}

void BatchLoader::assign_rows() {
  const std::int64_t rank = settings_.rank, ranks = settings_.ranks;
  check(ranks > 0 && rank >= 0 && rank < ranks, "expected a rank from 0 to ranks - 1, found rank {} of {}",
        rank, ranks);
  const std::vector<std::int64_t> groups = reader_->groups();
  check(static_cast<std::int64_t>(groups.size()) % ranks == 0,
        Hint{"change batch_tokens, span_tokens or the number of ranks"},
        "a step has {} {}, which is not a multiple of the {} ranks", groups.size(),
        is_golf(settings_.rows.order) ? "spans" : "rows", ranks);
  std::int64_t row = 0;
  for (std::size_t group = 0; group < groups.size(); ++group)
    for (std::int64_t i = 0; i < groups[group]; ++i, ++row)
      if (static_cast<std::int64_t>(group) % ranks == rank) own_rows_.push_back(row);
}

Batch BatchLoader::read(ReadPosition begin) const {
  Grid step;
  Batch batch;
  batch.begin = batch.end = begin;
  reader_->read_step(batch.end, step);
  batch.targets = step.targets();
  check(batch.targets > 0,
        Hint{"pass a larger --batch-tokens to reach the next answer, or --loss-on all to learn from every "
             "token"},
        "the step that begins at position {} of epoch {} contains no target tokens", begin.next,
        begin.epoch + 1);
  batch.tokens = step.tokens;
  if (!isolate_) std::ranges::fill(step.doc_start, 0);
  cut_rows(step, batch);
  batch.warning = wrap_warning(batch.begin, batch.end);
  return batch;
}

void BatchLoader::cut_rows(const Grid& step, Batch& batch) const {
  const auto T = static_cast<std::size_t>(settings_.rows.T);
  const std::size_t rows_per_batch =
      settings_.micro_batch > 0 ? static_cast<std::size_t>(settings_.micro_batch) : own_rows_.size();
  const float weight = 1.0f / static_cast<float>(batch.targets);
  for (std::size_t begin = 0; begin < own_rows_.size(); begin += rows_per_batch) {
    Grid part;
    for (std::size_t i = begin; i < std::min(begin + rows_per_batch, own_rows_.size()); ++i) {
      const std::size_t at = static_cast<std::size_t>(own_rows_[i]) * T;
      const auto append = [&](const auto& from, auto& to) {
        to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(at),
                  from.begin() + static_cast<std::ptrdiff_t>(at + T));
      };
      append(step.input, part.input);
      append(step.target, part.target);
      append(step.doc_start, part.doc_start);
    }
    Rows rows = grid_rows(config_, settings_.rows.T, part.input, part.target, part.doc_start);
    for (std::size_t n = 0; n < rows.weight.size(); ++n) rows.weight[n] = rows.target[n] >= 0 ? weight : 0.0f;
    batch.micro_batches.push_back(std::move(rows));
  }
}

// An end position of {epoch, 0} means that nothing of that epoch has been read yet.
std::string BatchLoader::wrap_warning(const ReadPosition& begin, const ReadPosition& end) const {
  const std::uint64_t last_read = end.next > 0 ? end.epoch : end.epoch - 1;
  const bool starts = begin.next == 0 && begin.epoch > 0;
  if (last_read == begin.epoch && !starts) return {};
  const std::uint64_t unique = tokens_per_epoch(), seen = unique * last_read;
  return fmt::format("epoch {} begins: the data has {} tokens, {} have been processed so far", last_read + 1,
                     with_commas(static_cast<long long>(unique)), with_commas(static_cast<long long>(seen)));
}

void BatchLoader::seek(ReadPosition position) {
  check(position.next < reader_->units_per_epoch(),
        Hint{"resume with the data that the checkpoint was trained on"},
        "the checkpoint's data position is {}, but an epoch of this data has {}", position.next,
        reader_->units_per_epoch());
  stop_thread();
  position_ = position;
}

Batch BatchLoader::next() {
  Batch batch;
  if (!settings_.prefetch) {
    batch = read(position_);
  } else {
    if (!thread_.joinable()) start_thread();
    std::unique_lock lock(mutex_);
    wait_until_ready(changed_, lock, [&] { return ready_ || error_; });
    if (!ready_) std::rethrow_exception(error_);
    batch = std::move(*ready_);
    ready_.reset();
    changed_.notify_all();
  }
  position_ = batch.end;
  return batch;
}

void BatchLoader::start_thread() {
  thread_ = std::thread([this, position = position_]() mutable {
    try {
      while (true) {
        {
          std::unique_lock lock(mutex_);
          wait_until_ready(changed_, lock, [&] { return stopping_ || !ready_; });
          if (stopping_) return;
        }
        Batch batch = read(position);
        position = batch.end;
        const std::lock_guard lock(mutex_);
        ready_ = std::move(batch);
        changed_.notify_all();
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
      changed_.notify_all();
    }
  });
}

// Stops the thread and discards the batch it has prepared.
void BatchLoader::stop_thread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
  stopping_ = false;
  ready_.reset();
  error_ = nullptr;
}

}  // namespace thimble
