#include "data/loader_rows.h"

#include <algorithm>

#include "base/error.h"

namespace thimble {

namespace {

// Orders that visit numbered rows, each once an epoch.
class NumberedRows : public RowReader {
 public:
  NumberedRows(const TokenSet& set, const RowSettings& settings) : set_(set), settings_(settings) {}

  void read_step(ReadPosition& position, Grid& grid) const override {
    const std::uint64_t rows = units_per_epoch();
    for (std::int64_t i = 0; i < settings_.step_rows; ++i) {
      const bool in_order = settings_.order == ReadOrder::sequential;
      append_row(in_order ? position.next : permuted(position.next, rows, settings_.seed, position.epoch),
                 grid);
      if (++position.next == rows) position = {position.epoch + 1, 0};
    }
  }

  std::vector<std::int64_t> groups() const override {
    return std::vector<std::int64_t>(static_cast<std::size_t>(settings_.step_rows), 1);
  }

 protected:
  virtual void append_row(std::uint64_t row, Grid& grid) const = 0;

  const TokenSet& set_;
  RowSettings settings_;
};

// Windows of T; a rest at the end of the set is not read.
class WindowRows final : public NumberedRows {
 public:
  WindowRows(const TokenSet& set, const RowSettings& settings)
      : NumberedRows(set, settings), T_(static_cast<std::uint64_t>(settings.T)) {
    check(units_per_epoch() > 0, Hint{"give more text, or a smaller context"},
          "the data has {} tokens, one row of context {} needs as many as that", set.size(), T_);
  }
  std::uint64_t units_per_epoch() const override { return set_.size() / T_; }
  std::uint64_t tokens_per_epoch() const override { return units_per_epoch() * T_; }

 private:
  void append_row(std::uint64_t row, Grid& grid) const override {
    set_.append(row * T_, T_, AfterLast::bos, grid);
  }

  std::uint64_t T_;
};

class PackedRows final : public NumberedRows {
 public:
  PackedRows(const TokenSet& set, const RowSettings& settings)
      : NumberedRows(set, settings), packing_(set, settings.T, settings.long_documents) {}
  std::uint64_t units_per_epoch() const override { return packing_.rows(); }
  std::uint64_t tokens_per_epoch() const override { return packing_.tokens(); }
  double padding() const override { return packing_.padding(); }

 private:
  void append_row(std::uint64_t row, Grid& grid) const override {
    const std::size_t end = grid.input.size() + static_cast<std::size_t>(settings_.T);
    for (const Piece& piece : packing_.row(row)) {
      const std::size_t start = grid.input.size();
      set_.append(piece.begin, piece.length, AfterLast::bos, grid);
      grid.doc_start[start] = 1;  // a piece of a long document begins without bos
    }
    // Each place of the padding is a document of its own, so that nothing is spent on its attention.
    grid.input.resize(end, set_.marks().bos);
    grid.target.resize(end, -1);
    grid.doc_start.resize(end, 1);
  }

  Packing packing_;
};

// The set as a ring, from which every span takes its inputs and one token more.
class GolfRows final : public RowReader {
 public:
  GolfRows(const TokenSet& set, const RowSettings& settings) : set_(set), T_(settings.T) {
    const std::int64_t step = settings.step_rows * T_;
    const std::int64_t span = settings.span_tokens > 0 ? settings.span_tokens : step;
    check(span % T_ == 0 && step % span == 0,
          "span_tokens {} must be whole rows of {} and divide the {} tokens of a step", span, T_, step);
    const std::int64_t sub_batch = settings.order == ReadOrder::golf_mlx
                                       ? std::max(settings.sub_batch_tokens / T_, std::int64_t{1})
                                       : span / T_;
    for (std::int64_t i = 0; i < step / span; ++i)
      for (std::int64_t left = span / T_; left > 0; left -= sub_batch)
        span_rows_.push_back(std::min(left, sub_batch));
  }

  void read_step(ReadPosition& position, Grid& grid) const override {
    for (const std::int64_t rows : span_rows_) {
      const auto inputs = static_cast<std::uint64_t>(rows * T_);
      set_.append(position.next, inputs, AfterLast::first_token, grid);
      position.next += inputs + 1;
      position.epoch += position.next / set_.size();
      position.next %= set_.size();
    }
  }

  std::uint64_t units_per_epoch() const override { return set_.size(); }
  std::uint64_t tokens_per_epoch() const override { return set_.size(); }
  std::vector<std::int64_t> groups() const override { return span_rows_; }

 private:
  const TokenSet& set_;
  std::int64_t T_;
  std::vector<std::int64_t> span_rows_;  // of one step
};

}  // namespace

std::unique_ptr<RowReader> make_row_reader(const TokenSet& set, const RowSettings& settings) {
  check(settings.T > 0 && settings.step_rows > 0, "steps of {} rows of {} tokens", settings.step_rows,
        settings.T);
  switch (settings.order) {
    case ReadOrder::sequential:
    case ReadOrder::shuffled:
      return std::make_unique<WindowRows>(set, settings);
    case ReadOrder::packed:
      return std::make_unique<PackedRows>(set, settings);
    case ReadOrder::golf:
    case ReadOrder::golf_mlx:
      return std::make_unique<GolfRows>(set, settings);
  }
  fail("unknown reading order");
}

}  // namespace thimble
