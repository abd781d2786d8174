// The loader: one call of next() is the data of one optimizer step, ready for the model.
//
//   BatchLoader loader(set, {.rows = {.order = ReadOrder::shuffled, .T = 512, .step_rows = 64, .seed = 1},
//                            .micro_batch = 8}, config);
//   loader.seek(checkpoint.position);
//   Batch batch = loader.next();
//   for (const Rows& rows : batch.micro_batches) model.add_gradients(rows, ..);  // weights 1 / batch.targets
//   checkpoint.position = loader.position();
//
// What a step reads depends on the data, the settings of rows and the position alone: not on micro_batch and
// not on the number of ranks. A thread prepares the next step meanwhile (it never enters a parallel loop);
// position() is that of the batch last handed out, so a resumed run reads on exactly where it stopped.
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
  std::int64_t micro_batch = 0;  // rows computed at a time; 0: all of the rank's
  // Documents from each other; unset: as the order does (golf does not).
  std::optional<bool> isolate = std::nullopt;
  std::int64_t rank = 0, ranks = 1;
  bool prefetch = true;
};

struct Batch {
  std::vector<Rows> micro_batches;  // this rank's rows; every weight is 1 / targets
  std::int64_t targets = 0;         // of the step, all ranks
  std::int64_t tokens = 0;          // the same: inputs, padding not counted
  ReadPosition begin, end;          // end: where the next step begins
  std::string warning;              // a sentence when the data begins again, else empty
};

class BatchLoader {
 public:
  // `set` must outlive the loader. Settings that do not fit together are errors.
  BatchLoader(const TokenSet& set, const LoaderSettings& settings, const ModelConfig& config);
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // What goes wrong in the thread is thrown here.
  Batch next();

  const ReadPosition& position() const { return position_; }  // of the batch that next() gives
  void seek(ReadPosition position);                           // one that this data cannot have is an error

  std::uint64_t tokens_per_epoch() const { return reader_->tokens_per_epoch(); }
  double padding() const { return reader_->padding(); }  // fraction of all places that hold nothing

 private:
  Batch read(ReadPosition begin) const;
  void deal_groups();
  void cut_rows(const Grid& step, Batch& batch) const;
  std::string wrap_warning(const ReadPosition& begin, const ReadPosition& end) const;
  void start_thread();
  void stop_thread();

  const LoaderSettings settings_;
  const ModelConfig config_;
  const std::unique_ptr<const RowReader> reader_;
  std::vector<std::int64_t> own_rows_;  // of a step: this rank's
  bool isolate_;
  ReadPosition position_;

  // The thread's, and what it shares with next().
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Batch> ready_;
  std::exception_ptr error_;
  bool stopping_ = false;
};

}  // namespace thimble
