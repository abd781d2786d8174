#include "dist/communicator.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <sstream>

#include "base/signals.h"

namespace thimble {

namespace {

constexpr std::uint64_t kLongestText = std::uint64_t{1} << 28;

std::span<std::byte> bytes_of(std::string& text) {
  return std::as_writable_bytes(std::span(text));
}

// The outcome of an action, in a form that can be sent to other ranks. packed() is empty if the
// action succeeded.
struct Outcome {
  std::string error, hint;
  std::exception_ptr thrown;

  std::string packed() const { return thrown ? (error.empty() ? "unknown error" : error) + '\0' + hint : ""; }
};

Outcome outcome_of(const std::function<void()>& action) {
  try {
    action();
    return {};
  } catch (const Error& error) {
    return {error.what(), error.hint(), std::current_exception()};
  } catch (const std::bad_alloc&) {
    return {"out of memory", "make the model, the batch or the context smaller", std::current_exception()};
  } catch (const std::exception& error) {
    return {error.what(), "", std::current_exception()};
  }
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The first line that differs: "steps = 20 there, steps = 30 on rank 0".
std::string difference(const std::string& there, const std::string& here) {
  const std::vector<std::string> theirs = lines_of(there), ours = lines_of(here);
  for (std::size_t i = 0; i < std::max(theirs.size(), ours.size()); ++i) {
    const std::string a = i < theirs.size() ? theirs[i] : "nothing",
                      b = i < ours.size() ? ours[i] : "nothing";
    if (a != b) return fmt::format("{} there, {} on rank 0", a, b);
  }
  return "the values differ";
}

using Facts = std::vector<std::pair<std::string, std::string>>;

std::string packed(const Facts& facts) {
  std::string text;
  for (const auto& [name, value] : facts) text += value + '\0';
  return text;
}

std::vector<std::string> unpacked(const std::string& text) {
  std::vector<std::string> values;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\0', at);
    values.push_back(text.substr(at, end - at));
    at = end == text.npos ? text.size() : end + 1;
  }
  return values;
}

}  // namespace

void share_text(Communicator& ranks, std::string& text, const std::string& what, Wait wait) {
  std::uint64_t size = text.size();
  ranks.broadcast(std::as_writable_bytes(std::span(&size, 1)), 0, what, wait);
  check(size <= kLongestText, "[ranks] {} is too long: {} bytes", what, size);
  text.resize(size);
  if (size > 0) ranks.broadcast(bytes_of(text), 0, what);
}

std::vector<std::string> gather_texts(Communicator& ranks, std::string text, const std::string& what,
                                      Wait wait) {
  std::vector<std::uint64_t> sizes(static_cast<std::size_t>(ranks.size()), text.size());
  std::vector<OwnedBytes> parts;
  for (int rank = 0; rank < ranks.size(); ++rank)
    parts.push_back(
        {rank, std::as_writable_bytes(std::span(sizes).subspan(static_cast<std::size_t>(rank), 1))});
  ranks.all_gather(parts, what, wait);
  std::vector<std::string> texts;
  for (const std::uint64_t size : sizes) {
    check(size <= kLongestText, "[ranks] {} is too long: {} bytes", what, size);
    texts.emplace_back(size, '\0');
  }
  texts[static_cast<std::size_t>(ranks.rank())] = std::move(text);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) parts[rank].bytes = bytes_of(texts[rank]);
  ranks.all_gather(parts, what);
  return texts;
}

void on_all_ranks(Communicator& ranks, const std::string& what, const std::function<void()>& action,
                  Wait wait) {
  if (ranks.size() == 1) return action();
  const Outcome own = outcome_of(action);
  const std::vector<std::string> all = gather_texts(ranks, own.packed(), what, wait);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    if (!ranks.first()) throw CollectiveFailure{nullptr};
    if (rank == 0) throw CollectiveFailure{own.thrown};
    const std::size_t border = all[rank].find('\0');
    throw CollectiveFailure{std::make_exception_ptr(Error(
        fmt::format("rank {}: {}", rank, all[rank].substr(0, border)), Hint{all[rank].substr(border + 1)}))};
  }
}

void check_same(Communicator& ranks, const Facts& facts, const std::string& hint) {
  if (ranks.size() == 1) return;
  const std::vector<std::string> all = gather_texts(ranks, packed(facts), "comparing settings");
  const std::vector<std::string> first = unpacked(all[0]);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const std::vector<std::string> other = unpacked(all[rank]);
    for (std::size_t i = 0; i < facts.size(); ++i) {
      const std::string there = i < other.size() ? other[i] : "", here = i < first.size() ? first[i] : "";
      if (there == here) continue;
      if (!ranks.first()) throw CollectiveFailure{nullptr};
      throw CollectiveFailure{
          std::make_exception_ptr(Error(fmt::format("rank {} differs from rank 0 in its {}: {}", rank,
                                                    facts[i].first, difference(there, here)),
                                        Hint{hint}))};
    }
  }
}

void abort_all(Communicator& ranks, const Error& error) noexcept {
  constexpr std::string_view kStart = "error:";
  std::string text = describe(error);
  if (!ranks.first() && text.starts_with(kStart))
    text.replace(0, kStart.size(), fmt::format("error: rank {}:", ranks.rank()));
  ranks.abort(text);
  std::terminate();  // g++ 12 does not recognize that abort() does not return
}

int on_ranks(Communicator& ranks, const std::function<int()>& body) {
  if (ranks.size() == 1) return body();
  try {
    const int code = body();
    ranks.barrier("shutdown", Wait::forever);  // rank 0 may still be working
    return ranks.first() ? code : 0;
  } catch (const CollectiveFailure& failed) {
    if (failed.error) std::rethrow_exception(failed.error);
    return 0;
  } catch (const Error& error) {
    abort_all(ranks, error);
  } catch (const std::exception& error) {
    abort_all(ranks, Error(error.what()));
  } catch (...) {
    abort_all(ranks, Error("the output was closed"));
  }
}

// The communicator of a single process, which exchanges nothing.

namespace {

class NothingPending final : public PendingSum {
 public:
  void wait() override {}
};

class SingleRank final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  double timeout_seconds() const override { return 0; }
  void broadcast(std::span<std::byte>, int, const std::string&, Wait) override {}
  void all_gather(std::span<const OwnedBytes>, const std::string&, Wait) override {}
  std::unique_ptr<PendingSum> start_sum(std::vector<std::span<float>>, const std::string&) override {
    return std::make_unique<NothingPending>();
  }
  void barrier(const std::string&, Wait) override {}
  [[noreturn]] void abort(const std::string& message) noexcept override {
    std::fprintf(stderr, "%s\n", message.c_str());
    std::_Exit(1);
  }
};

}  // namespace

std::shared_ptr<Communicator> single_rank() {
  return std::make_shared<SingleRank>();
}

}  // namespace thimble
