#include "dist/communicator.h"

#include <atomic>
#include <cmath>

#include "base/rng.h"
#include "dist/thread_transport.h"
#include "support/message_of.h"

namespace thimble {
namespace {

std::vector<float> values_of(int rank, std::size_t count) {
  Rng rng(7, static_cast<std::uint64_t>(rank), 1);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(rng.next_u64() % 100000) * 1e-3f - 37.0f;
  return values;
}

// The sum required by the contract: rank 0's value first, then rank 1's, ...
std::vector<float> sum_in_order(int size, std::size_t count) {
  std::vector<float> sum = values_of(0, count);
  for (int rank = 1; rank < size; ++rank) {
    const std::vector<float> other = values_of(rank, count);
    for (std::size_t i = 0; i < count; ++i) sum[i] += other[i];
  }
  return sum;
}

TEST(Communicator, SumsInRankOrderBitForBit) {
  for (const int size : {1, 2, 3, 4, 7})
    for (const std::size_t count : {std::size_t{1}, std::size_t{5}, std::size_t{1000}}) {
      const std::vector<float> expected = sum_in_order(size, count);
      on_threads(size, [&](Communicator& ranks) {
        // The order of arrival must not matter.
        std::this_thread::sleep_for(std::chrono::microseconds((ranks.rank() * 37 + 11) % 50 * 100));
        std::vector<float> values = values_of(ranks.rank(), count);
        ranks.start_sum({values}, "test")->wait();
        EXPECT_EQ(values, expected) << size << " ranks, rank " << ranks.rank();
      });
    }
}

TEST(Communicator, SumsOnlyTheGivenPieces) {
  on_threads(3, [&](Communicator& ranks) {
    std::vector<float> values = values_of(ranks.rank(), 100);
    const std::vector<float> before = values, whole = sum_in_order(3, 100);
    const std::span<float> all(values);
    ranks.start_sum({all.subspan(10, 7), all.subspan(50, 1), all.subspan(90, 10)}, "test")->wait();
    for (std::size_t i = 0; i < 100; ++i) {
      const bool summed = (i >= 10 && i < 17) || i == 50 || i >= 90;
      EXPECT_EQ(values[i], summed ? whole[i] : before[i]) << i;
    }
  });
}

TEST(Communicator, SumsRunInTheBackground) {
  std::atomic<bool> second_may_come = false;
  on_threads(2, [&](Communicator& ranks) {
    std::vector<float> a = {1}, b = {2};
    if (ranks.rank() == 1)
      while (!second_may_come) std::this_thread::yield();
    const auto first = ranks.start_sum({a}, "a"), second = ranks.start_sum({b}, "b");
    second_may_come = true;  // rank 0 gets here although rank 1 has not started
    second->wait();
    first->wait();
    EXPECT_EQ(a[0], 2);
    EXPECT_EQ(b[0], 4);
  });
}

TEST(Communicator, GathersThePartsOfAllRanks) {
  on_threads(3, [](Communicator& ranks) {
    std::vector<int> values = {-1, -1, -1, -1, -1};
    const std::vector<int> owner = {0, 1, 2, 0, 2};
    std::vector<OwnedBytes> parts;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (owner[i] == ranks.rank()) values[i] = static_cast<int>(i) * 10 + owner[i];
      parts.push_back({owner[i], std::as_writable_bytes(std::span(values).subspan(i, 1))});
    }
    ranks.all_gather(parts, "test");
    EXPECT_EQ(values, (std::vector<int>{0, 11, 22, 30, 42}));
  });
}

TEST(Communicator, BroadcastsTextsAndRecords) {
  on_threads(4, [](Communicator& ranks) {
    std::string text = ranks.first() ? "of rank 0" : "something else that is longer";
    share_text(ranks, text, "test");
    EXPECT_EQ(text, "of rank 0");
    EXPECT_EQ(gather_texts(ranks, std::string(static_cast<std::size_t>(ranks.rank()), 'x'), "test"),
              (std::vector<std::string>{"", "x", "xx", "xxx"}));
    EXPECT_EQ(gather_records(ranks, ranks.rank() * 2, "test"), (std::vector<int>{0, 2, 4, 6}));
    ranks.barrier("test");
  });
}

// The error reported by rank 0. The other ranks must know of it and report nothing.
std::string reported_error(int size, const std::function<void(Communicator&)>& body) {
  std::string text;
  std::atomic<int> failed = 0;
  on_threads(size, [&](Communicator& ranks) {
    try {
      body(ranks);
    } catch (const CollectiveFailure& failure) {
      ++failed;
      EXPECT_EQ(failure.error != nullptr, ranks.first());
      if (ranks.first()) text = message_of([&] { std::rethrow_exception(failure.error); });
    }
  });
  EXPECT_TRUE(failed == 0 || failed == size) << failed << " of " << size;
  return text;
}

TEST(Together, FailureOnOneRankFailsAllAndRankZeroReportsIt) {
  const auto failing_on = [](int which) {
    return [which](Communicator& ranks) {
      on_all_ranks(ranks, "test", [&] { check(ranks.rank() != which, Hint{"mend it"}, "it broke"); });
    };
  };
  EXPECT_EQ(reported_error(3, failing_on(-1)), "");
  EXPECT_EQ(reported_error(3, failing_on(0)), "it broke");
  EXPECT_EQ(reported_error(3, failing_on(2)), "rank 2: it broke");
}

TEST(Together, ReportsAnErrorWithAnEmptyMessage) {
  EXPECT_EQ(reported_error(3,
                           [](Communicator& ranks) {
                             on_all_ranks(ranks, "test", [&] {
                               if (ranks.rank() == 2) throw Error("");
                             });
                           }),
            "rank 2: unknown error");
}

TEST(Together, NamesTheRankAndTheLineThatDiffers) {
  EXPECT_EQ(reported_error(3,
                           [](Communicator& ranks) {
                             const std::string config =
                                 ranks.rank() == 2 ? "dim = 32\nlayers = 3\n" : "dim = 32\nlayers = 2\n";
                             check_same(ranks, {{"version", "1"}, {"config", config}}, "same flags");
                           }),
            "rank 2 differs from rank 0 in its config: layers = 3 there, layers = 2 on rank 0");
  EXPECT_EQ(reported_error(2, [](Communicator& ranks) { check_same(ranks, {{"version", "1"}}, ""); }), "");
}

// The watchdog's thread never returns from abort(), so the ranks of this test are not joined.
TEST(WatchdogOfRanks, NamesBothRanksAndTheCall) {
  const auto box = std::make_shared<Mailbox>();
  std::thread([box] {
    const auto ranks = make_message_communicator(
        [box] { return std::make_unique<ThreadTransport>(*box, 0, 3); }, {.timeout_seconds = 1});
    // Rank 2 answers, rank 1 does not.
    {
      const std::lock_guard lock(box->mutex);
      box->messages[{2, 0, 1}].push_back(std::vector<std::byte>(1));
    }
    ranks->barrier("a barrier");
  }).detach();
  std::unique_lock lock(box->mutex);
  ASSERT_TRUE(box->changed.wait_for(lock, std::chrono::seconds(200), [&] { return !box->aborted.empty(); }));
  EXPECT_EQ(box->aborted[0].substr(0, box->aborted[0].find('\n')),
            "error: rank 0 waited 1 s for rank 1 in 'a barrier'");
}

}  // namespace
}  // namespace thimble
