#include "data/packing.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"

namespace thimble {

Packing::Packing(const TokenSet& set, std::int64_t T, LongDocuments long_documents) : T_(T) {
  check(T > 0 && T <= INT32_MAX, "rows of {} tokens", T);
  cut_documents(set, long_documents);
  check(!pieces_.empty(), "there are no documents, or only empty ones");
  check(pieces_.size() <= UINT32_MAX, "{} documents are more than can be packed", pieces_.size());

  std::vector<std::uint32_t> longest_first(pieces_.size());
  std::iota(longest_first.begin(), longest_first.end(), 0);
  std::ranges::stable_sort(longest_first, std::greater<>(),
                           [&](std::uint32_t i) { return pieces_[i].length; });
  const std::vector<std::uint32_t> row_of = fit_pieces(longest_first);

  // Pieces row after row, in the order of the data within a row: a counting sort.
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

// The row of each piece; row_begin_ gets its size.
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
  check(i < rows(), "row {} of {}", i, rows());
  return std::span(pieces_).subspan(row_begin_[i], row_begin_[i + 1] - row_begin_[i]);
}

double Packing::padding() const {
  return 1 - static_cast<double>(tokens_) / (static_cast<double>(rows()) * static_cast<double>(T_));
}

}  // namespace thimble
