#include "infer/batcher.h"

namespace thimble {
namespace {

using Tokens = std::vector<TokenId>;

void fill(Slots& slots, std::int64_t slot, const Tokens& tokens) {
  for (const TokenId token : tokens) slots.append(slot, token);
}

// One slot per text, used and released in order, slot 0 first.
Slots used_slots(const std::vector<Tokens>& texts) {
  Slots slots(static_cast<std::int64_t>(texts.size()));
  std::vector<std::int64_t> taken;
  for (const Tokens& text : texts) {
    taken.push_back(slots.take({}));
    fill(slots, taken.back(), text);
  }
  for (const std::int64_t slot : taken) slots.release(slot);
  return slots;
}

TEST(Slots, AreReusedForALongerPrompt) {
  Slots slots = used_slots({{1, 2, 3}, {1, 2, 3, 4}, {9}});
  const auto prefix = slots.longest_prefix(Tokens{1, 2, 3, 4, 5, 6});
  EXPECT_EQ(prefix.slot, 1);
  EXPECT_EQ(prefix.length, 4);
  EXPECT_EQ(slots.take(prefix), 1);
  EXPECT_EQ(slots.tokens(1), (Tokens{1, 2, 3, 4}));
}

TEST(Slots, AreTruncatedToTheCommonPrefix) {
  Slots slots = used_slots({{1, 2, 3, 4}});
  const auto prefix = slots.longest_prefix(Tokens{1, 2, 3, 7});
  EXPECT_EQ(slots.take(prefix), 0);
  EXPECT_EQ(slots.tokens(0), (Tokens{1, 2, 3}));
}

TEST(Slots, KeepThePrefixOfASlidWindowExceptItsLastToken) {
  Slots slots = used_slots({{1, 2, 3, 4}, {1, 5, 5, 5}});
  slots.keep_prefix_of(0, Tokens{1, 3, 4, 9});
  EXPECT_EQ(slots.tokens(0), Tokens{1});
  slots.keep_prefix_of(1, Tokens{1, 5, 5});
  EXPECT_EQ(slots.tokens(1), (Tokens{1, 5}));
}

// A ring of 8 positions, of which a row attends to 3.
TEST(Slots, ContinueFromAPrefixOnlyIfTheRingsHaveItsLastWindow) {
  Slots slots(2, {.rows = 8, .window = 3});
  slots.take({});
  fill(slots, 0, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});  // the ring has positions 4 to 11
  const auto length = [&](Tokens prompt) { return slots.longest_prefix(prompt).length; };
  EXPECT_EQ(length({0, 1, 2, 3, 4, 5, 99}), 6) << "position 6 attends to 4, 5 and itself";
  EXPECT_EQ(length({0, 1, 2, 3, 4, 99}), 0) << "position 5 attends to 3, which is overwritten";
  slots.release(0);
  // A truncated slot does not get its overwritten positions back.
  EXPECT_EQ(slots.take(slots.longest_prefix(Tokens{0, 1, 2, 3, 4, 5, 6, 99})), 0);
  EXPECT_EQ(slots.size(0), 7);
  EXPECT_EQ(length({0, 1, 2, 3, 4, 99}), 0);
  // A copy has what its source has.
  const auto prefix = slots.longest_prefix(Tokens{0, 1, 2, 3, 4, 5, 6, 50});
  EXPECT_EQ(slots.take(prefix), 1);
  slots.copied(1, prefix);
  slots.keep_prefix_of(0, Tokens{0, 9});
  EXPECT_EQ(slots.size(0), 0);
  EXPECT_EQ(length({0, 1, 2, 3, 4, 99}), 0);
  EXPECT_EQ(length({0, 1, 2, 3, 4, 5, 6}), 7);
  // An empty slot is written again from the start.
  fill(slots, 0, {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(length({0, 1, 99}), 2);
}

TEST(Slots, APrefixIsCopiedFromASlotInUse) {
  Slots slots = used_slots({{1, 2, 3}, {9}});
  EXPECT_EQ(slots.take(slots.longest_prefix(Tokens{1, 2, 3})), 0);
  const auto prefix = slots.longest_prefix(Tokens{1, 2, 5});
  EXPECT_EQ(prefix.slot, 0);
  EXPECT_EQ(slots.take(prefix), 1);
  EXPECT_EQ(slots.tokens(1), Tokens{});
  slots.copied(1, prefix);
  EXPECT_EQ(slots.tokens(1), (Tokens{1, 2}));
  EXPECT_EQ(slots.tokens(0), (Tokens{1, 2, 3}));
  EXPECT_EQ(slots.take({}), -1) << "no slot is free";
}

// A short common prefix is not worth discarding a long conversation.
TEST(Slots, AShortCommonPrefixDoesNotEvictALongText) {
  Slots slots = used_slots({{9}, {1, 2, 3, 4, 5, 6, 7}});
  const auto prefix = slots.longest_prefix(Tokens{1, 2, 8});
  EXPECT_EQ(prefix.slot, 1);
  EXPECT_EQ(slots.take(prefix), 0);
  EXPECT_EQ(slots.size(1), 7);
}

TEST(Slots, APromptWithoutAPrefixTakesTheLeastRecentlyUsedSlot) {
  Slots slots = used_slots({{1}, {2}, {3}});
  EXPECT_EQ(slots.take(slots.longest_prefix(Tokens{2})), 1);
  slots.release(1);
  EXPECT_EQ(slots.take({}), 0);
  EXPECT_EQ(slots.take({}), 2);
  EXPECT_EQ(slots.take({}), 1);
  EXPECT_EQ(slots.free_count(), 0);
}

TEST(Slots, AFreeSlotIsPreferredForEqualPrefixes) {
  Slots slots = used_slots({{1, 2}, {1, 2}});
  EXPECT_EQ(slots.take({0, 2}), 0);
  EXPECT_EQ(slots.longest_prefix(Tokens{1, 2, 3}).slot, 1);
}

}  // namespace
}  // namespace thimble
