// What ranks tell each other besides floats: texts, small records, and that something went wrong.
#pragma once

#include <exception>
#include <functional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "dist/communicator.h"

namespace thimble {

// The first rank's text, on all ranks.
void share_text(Communicator& ranks, std::string& text, const std::string& what,
                Patience patience = Patience::watched);

// Everyone's text, by rank.
std::vector<std::string> gather_texts(Communicator& ranks, std::string text, const std::string& what,
                                      Patience patience = Patience::watched);

// Everyone's record of plain numbers, by rank.
template <class Record>
requires std::is_trivially_copyable_v<Record> std::vector<Record> gather_records(Communicator& ranks,
                                                                                 const Record& own,
                                                                                 const std::string& what) {
  std::vector<Record> all(static_cast<std::size_t>(ranks.size()), own);
  std::vector<OwnedBytes> parts;
  for (int rank = 0; rank < ranks.size(); ++rank)
    parts.push_back(
        {rank, std::as_writable_bytes(std::span(all).subspan(static_cast<std::size_t>(rank), 1))});
  ranks.all_gather(parts, what);
  return all;
}

// Thrown on every rank when something failed on one of them: all know, all end, the first one says it. Not an Error:
// whoever catches it has to decide who speaks (on_ranks).
struct FailedTogether {
  std::exception_ptr error;  // on the first rank; on the others nullptr
};

// Runs the action on every rank, then asks everyone how it went. The action holds no collective. With one rank it is
// just run.
void together(Communicator& ranks, const std::string& what, const std::function<void()>& action,
              Patience patience = Patience::watched);

// What all ranks must agree on, by name. A difference is a FailedTogether that names the first rank that differs from
// rank 0, the name, and for texts of many lines the line.
void check_same(Communicator& ranks, const std::vector<std::pair<std::string, std::string>>& facts,
                const std::string& hint);

// Says an error that one rank alone knows of, and ends all ranks.
[[noreturn]] void abort_all(Communicator& ranks, const Error& error) noexcept;

// A program's body on all ranks. The first rank's exit code is the program's; an error that all know of is thrown by the
// first rank alone, an error that one rank alone knows of ends all of them (Communicator::abort).
int on_ranks(Communicator& ranks, const std::function<int()>& body);

}  // namespace thimble
