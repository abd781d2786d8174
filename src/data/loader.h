// The loader: each call of next() returns the data of one optimizer step, ready for the model.
//
//   BatchLoader loader(set, {.rows = {.order = ReadOrder::shuffled, .T = 512, .step_rows = 64},
//                            .micro_batch = 8}, config);
//   loader.seek(checkpoint.position);
//   Batch batch = loader.next();
//   for (const Rows& rows : batch.micro_batches) model.add_gradients(rows, ..);
//   checkpoint.position = loader.position();
//
// The contents of a step depend only on the data, `rows` and the position, not on micro_batch or
// the number of ranks. A background thread prepares the next step; it runs no parallel loops.
// position() is the end of the batch returned last, so a resumed run continues there.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "data/read_order.h"
#include "data/token_set.h"
#include "model/rows.h"

namespace thimble {

struct LoaderSettings {
  RowSettings rows;
  std::int64_t micro_batch = 0;  // rows per micro-batch; 0: all rows of this rank
  // Keep documents from attending to each other; unset: true except for the golf orders.
  std::optional<bool> isolate = std::nullopt;
  std::int64_t rank = 0, ranks = 1;
  bool prefetch = true;
};

struct Batch {
  std::vector<Rows> micro_batches;  // this rank's rows; every weight is 1 / targets
  std::int64_t targets = 0;         // scored targets of the step, over all ranks
  std::int64_t tokens = 0;          // inputs of the step without padding, over all ranks
  ReadPosition begin, end;          // `end` is where the next step begins
  std::string warning;              // set when a new epoch begins, otherwise empty
};

class BatchLoader {
 public:
  // `set` must outlive the loader. Throws if the settings are inconsistent.
  BatchLoader(const TokenSet& set, const LoaderSettings& settings, const ModelConfig& config);
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // Rethrows errors of the background thread.
  Batch next();

  const ReadPosition& position() const { return position_; }  // where next() reads
  void seek(ReadPosition position);                           // throws if outside this data

  std::uint64_t tokens_per_epoch() const { return reader_->tokens_per_epoch(); }
  double padding() const { return reader_->padding(); }  // fraction of row positions

 private:
  Batch read(ReadPosition begin) const;
  void assign_rows();
  void cut_rows(const Grid& step, Batch& batch) const;
  std::string wrap_warning(const ReadPosition& begin, const ReadPosition& end) const;
  void start_thread();
  void stop_thread();

  const LoaderSettings settings_;
  const ModelConfig config_;
  const std::unique_ptr<const RowReader> reader_;
  std::vector<std::int64_t> own_rows_;  // indices of this rank's rows in a step
  bool isolate_;
  ReadPosition position_;

  // The background thread and what it shares with next().
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Batch> ready_;
  std::exception_ptr error_;
  bool stopping_ = false;
};

}  // namespace thimble
