// Which tokens the rows of a step hold, order by order. Everything is a function of the position.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/packing.h"
#include "data/token_set.h"
#include "data/window_order.h"

namespace thimble {

// Where reading goes on. `next` counts windows or packed rows within the epoch; for the golf orders, tokens.
struct ReadPosition {
  std::uint64_t epoch = 0, next = 0;
  bool operator==(const ReadPosition&) const = default;
};

struct RowSettings {
  ReadOrder order = ReadOrder::shuffled;
  std::int64_t T = 0;
  std::int64_t step_rows = 0;  // rows of one optimizer step, of all ranks together
  std::uint64_t seed = 0;
  std::int64_t span_tokens = 0;                       // golf orders; 0: the whole step is one span
  std::int64_t sub_batch_tokens = 8192;               // golf_mlx: MLX_MAX_MICROBATCH_TOKENS
  LongDocuments long_documents = LongDocuments::cut;  // packed
};

class RowReader {
 public:
  virtual ~RowReader() = default;

  // Appends the rows of the step that starts at `position`, and moves it to the next step.
  virtual void read_step(ReadPosition& position, Grid& grid) const = 0;

  // `next` of a position is below this.
  virtual std::uint64_t units_per_epoch() const = 0;
  virtual std::uint64_t tokens_per_epoch() const = 0;  // that are read, padding not counted
  virtual double padding() const { return 0; }         // fraction of places in rows that hold nothing

  // The rows of a step in groups that stay on one rank: row counts, in order. Group g is rank g mod ranks's.
  virtual std::vector<std::int64_t> groups() const = 0;
};

// `set` must outlive the reader. Settings that do not fit together are errors.
std::unique_ptr<RowReader> make_row_reader(const TokenSet& set, const RowSettings& settings);

}  // namespace thimble
