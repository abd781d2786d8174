#include "data/read_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"

namespace thimble {

Packing::Packing(const TokenSet& set, std::int64_t T, LongDocuments long_documents) : T_(T) {
  check(T > 0 && T <= INT32_MAX, "expected rows of 1 or more tokens, found {}", T);
  cut_documents(set, long_documents);
  check(!pieces_.empty(), "there are no documents to pack, or all are empty");
  check(pieces_.size() <= UINT32_MAX, "cannot pack {} documents: too many", pieces_.size());

  std::vector<std::uint32_t> longest_first(pieces_.size());
  std::iota(longest_first.begin(), longest_first.end(), 0);
  std::ranges::stable_sort(longest_first, std::greater<>(),
                           [&](std::uint32_t i) { return pieces_[i].length; });
  const std::vector<std::uint32_t> row_of = fit_pieces(longest_first);

  // A counting sort by row; pieces within a row stay in the order of the data.
  for (const std::uint32_t row : row_of) ++row_begin_[row + 1];
  std::partial_sum(row_begin_.begin(), row_begin_.end(), row_begin_.begin());
  std::vector<std::uint64_t> next(row_begin_.begin(), row_begin_.end() - 1);
  std::vector<Piece> sorted(pieces_.size());
  for (std::size_t i = 0; i < pieces_.size(); ++i) sorted[next[row_of[i]]++] = pieces_[i];
  pieces_ = std::move(sorted);
}

void Packing::cut_documents(const TokenSet& set, LongDocuments long_documents) {
  const auto limit = static_cast<std::uint64_t>(T_);
  const std::vector<std::uint64_t> starts = set.document_starts();
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const std::uint64_t begin = starts[i], end = i + 1 < starts.size() ? starts[i + 1] : set.size();
    if (end - begin == 1 && set.at(begin) == set.marks().bos) continue;
    if (end - begin > limit) ++long_documents_;
    const std::uint64_t last = long_documents == LongDocuments::truncate ? std::min(end, begin + limit) : end;
    for (std::uint64_t at = begin; at < last; at += limit)
      pieces_.push_back({at, static_cast<std::uint32_t>(std::min(limit, last - at))});
    tokens_ += last - begin;
  }
}

// Returns the row of each piece and resizes row_begin_ for the number of rows.
std::vector<std::uint32_t> Packing::fit_pieces(std::span<const std::uint32_t> longest_first) {
  std::vector<std::uint32_t> row_of(pieces_.size());
  std::map<std::uint32_t, std::vector<std::uint32_t>> rows_with_room;
  std::uint32_t rows = 0;
  for (const std::uint32_t i : longest_first) {
    const std::uint32_t length = pieces_[i].length;
    const auto found = rows_with_room.lower_bound(length);
    auto room = static_cast<std::uint32_t>(T_);
    std::uint32_t row = rows;
    if (found == rows_with_room.end()) {
      ++rows;
    } else {
      room = found->first;
      row = found->second.back();
      found->second.pop_back();
      if (found->second.empty()) rows_with_room.erase(found);
    }
    row_of[i] = row;
    if (room > length) rows_with_room[room - length].push_back(row);
  }
  row_begin_.assign(std::size_t{rows} + 1, 0);
  return row_of;
}

std::span<const Piece> Packing::row(std::uint64_t i) const {
  check(i < rows(), "cannot read row {} of {}", i, rows());
  return std::span(pieces_).subspan(row_begin_[i], row_begin_[i + 1] - row_begin_[i]);
}

double Packing::padding() const {
  return 1 - static_cast<double>(tokens_) / (static_cast<double>(rows()) * static_cast<double>(T_));
}

namespace {

// In the order of the enum.
constexpr std::array<std::string_view, 6> kNames = {"sequential", "shuffled", "shifted",
                                                    "golf",       "golf-mlx", "packed"};

constexpr std::uint64_t kShiftStream = std::uint64_t{1} << 63;  // apart from the rounds of permuted()
constexpr int kRounds = 4;  // Luby and Rackoff: 4 rounds give a strong pseudo-random permutation

std::uint64_t feistel(std::uint64_t value, int half_bits, std::uint64_t seed, std::uint64_t epoch) {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = value >> half_bits, right = value & mask;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t mixed = philox(seed, epoch * kRounds + static_cast<std::uint64_t>(round), right)[0];
    left = std::exchange(right, left ^ (mixed & mask));
  }
  return left << half_bits | right;
}

}  // namespace

std::string_view name_of(ReadOrder order) {
  return kNames[static_cast<std::size_t>(order)];
}

ReadOrder read_order_named(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return static_cast<ReadOrder>(i);
  const std::string_view meant = nearest(name, kNames);
  fail(Hint{meant.empty() ? "" : fmt::format("did you mean {}?", meant)},
       "expected a read order (sequential, shuffled, shifted, golf, golf-mlx or packed), found '{}'", name);
}

std::uint64_t permuted(std::uint64_t i, std::uint64_t count, std::uint64_t seed, std::uint64_t epoch) {
  check(i < count, "[order] cannot permute element {} of {}", i, count);
  const int half_bits = (std::bit_width(count - 1) + 1) / 2;
  // At least a quarter of the values are in range, so few rounds are needed. The loop ends because
  // the permutation's cycle through i returns to i, which is in range.
  std::uint64_t value = i;
  do value = feistel(value, half_bits, seed, epoch);
  while (value >= count);
  return value;
}

namespace {

// Base of the orders that visit numbered rows, each once per epoch.
class NumberedRows : public RowReader {
 public:
  NumberedRows(const TokenSet& set, const RowSettings& settings) : set_(set), settings_(settings) {}

  void read_step(ReadPosition& position, Grid& grid) const override {
    const std::uint64_t rows = units_per_epoch();
    for (std::int64_t i = 0; i < settings_.step_rows; ++i) {
      const bool in_order = settings_.order == ReadOrder::sequential;
      append_row(in_order ? position.next : permuted(position.next, rows, settings_.seed, position.epoch),
                 position.epoch, grid);
      if (++position.next == rows) position = {position.epoch + 1, 0};
    }
  }

  std::vector<std::int64_t> groups() const override {
    return std::vector<std::int64_t>(static_cast<std::size_t>(settings_.step_rows), 1);
  }

 protected:
  virtual void append_row(std::uint64_t row, std::uint64_t epoch, Grid& grid) const = 0;

  const TokenSet& set_;
  RowSettings settings_;
};

// Windows of T. A remainder shorter than T is not read. The order `shifted` treats the set as a
// ring: a model that sees a text many times predicts every token from another context each time,
// and reads another remainder.
class WindowRows final : public NumberedRows {
 public:
  WindowRows(const TokenSet& set, const RowSettings& settings)
      : NumberedRows(set, settings), T_(static_cast<std::uint64_t>(settings.T)) {
    check(units_per_epoch() > 0,
          Hint{fmt::format("set --context to {} or less, or add more text",
                           std::max<std::uint64_t>(1, set.size()))},
          "the training data has only {} tokens, but the context is {}: not even one row can be read",
          set.size(), T_);
  }
  std::uint64_t units_per_epoch() const override { return set_.size() / T_; }
  std::uint64_t tokens_per_epoch() const override { return units_per_epoch() * T_; }

 private:
  void append_row(std::uint64_t row, std::uint64_t epoch, Grid& grid) const override {
    const bool ring = settings_.order == ReadOrder::shifted;
    set_.append((row * T_ + shift(epoch)) % set_.size(), T_, ring ? AfterLast::first_token : AfterLast::bos,
                grid);
  }

  std::uint64_t shift(std::uint64_t epoch) const {
    if (settings_.order != ReadOrder::shifted || epoch == 0) return 0;
    const auto random = philox(settings_.seed, kShiftStream, epoch);
    return (std::uint64_t{random[1]} << 32 | random[0]) % set_.size();
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
  void append_row(std::uint64_t row, std::uint64_t /*epoch*/, Grid& grid) const override {
    const std::size_t end = grid.input.size() + static_cast<std::size_t>(settings_.T);
    for (const Piece& piece : packing_.row(row)) {
      const std::size_t start = grid.input.size();
      set_.append(piece.begin, piece.length, AfterLast::bos, grid);
      grid.doc_start[start] = 1;  // a later piece of a long document does not begin with bos
    }
    // Each padding token is a separate document, so that attention spends no time on it.
    grid.input.resize(end, set_.marks().bos);
    grid.target.resize(end, -1);
    grid.doc_start.resize(end, 1);
  }

  Packing packing_;
};

// The set as a ring: every span takes n inputs and one more token.
class GolfRows final : public RowReader {
 public:
  GolfRows(const TokenSet& set, const RowSettings& settings) : set_(set), T_(settings.T) {
    const std::int64_t step = settings.step_rows * T_;
    const std::int64_t span = settings.span_tokens > 0 ? settings.span_tokens : step;
    check(span % T_ == 0 && step % span == 0,
          "expected span_tokens to be a multiple of the context and to divide the step, found span {}, "
          "context {}, step {} tokens",
          span, T_, step);
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
  check(settings.T > 0 && settings.step_rows > 0,
        "expected at least 1 row of 1 token per step, found {} rows of {} tokens", settings.step_rows,
        settings.T);
  switch (settings.order) {
    case ReadOrder::sequential:
    case ReadOrder::shuffled:
    case ReadOrder::shifted:
      return std::make_unique<WindowRows>(set, settings);
    case ReadOrder::packed:
      return std::make_unique<PackedRows>(set, settings);
    case ReadOrder::golf:
    case ReadOrder::golf_mlx:
      return std::make_unique<GolfRows>(set, settings);
  }
  fail("unknown read order");
}

}  // namespace thimble
