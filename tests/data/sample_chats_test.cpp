#include "data/sample/corpus.h"

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "base/json.h"
#include "data/document.h"
#include "data/sample/world.h"

namespace thimble::sample {
namespace {

constexpr std::uint64_t kTraining = 8'000, kHeldOut = 2'000;

std::vector<Chat> chats(Split split, std::uint64_t seed, std::uint64_t count) {
  std::vector<Chat> made;
  for (std::uint64_t i = 0; i < count; ++i) made.push_back(make_chat(split, seed, i));
  return made;
}

TEST(SampleChats, DependOnlyOnSplitSeedAndIndex) {
  for (std::uint64_t i : {0u, 1u, 77u, 1'000'000u}) {
    EXPECT_EQ(make_chat(Split::train, 5, i).json(), make_chat(Split::train, 5, i).json());
    EXPECT_NE(make_chat(Split::train, 5, i).json(), make_chat(Split::train, 6, i).json());
  }
}

TEST(SampleChats, ParseAsConversations) {
  for (const Chat& chat : chats(Split::train, 1, 200)) {
    const Conversation turns = parse_conversation(parse_json(chat.json(), "chat"));
    ASSERT_EQ(turns.size(), 2 * chat.exchanges.size());
    for (std::size_t i = 0; i < turns.size(); ++i) {
      EXPECT_EQ(turns[i].role, i % 2 == 0 ? ChatRole::user : ChatRole::assistant);
      EXPECT_FALSE(turns[i].content.empty());
      EXPECT_EQ(turns[i].content.find_first_of("{}"), std::string::npos) << turns[i].content;
    }
  }
}

TEST(SampleChats, HeldOutFactsAreNotInTraining) {
  std::set<std::string> trained;
  for (std::uint64_t seed : {1u, 2u})
    for (const Chat& chat : chats(Split::train, seed, kTraining))
      trained.insert(chat.facts.begin(), chat.facts.end());
  for (std::uint64_t i = 0; i < 2'000; ++i) {
    const Tale tale = make_tale(Split::train, 1, i);
    trained.insert(tale.facts.begin(), tale.facts.end());
  }
  for (const Chat& chat : chats(Split::heldout, 1, kHeldOut)) {
    EXPECT_FALSE(chat.facts.empty()) << chat.json();
    for (const std::string& fact : chat.facts) EXPECT_FALSE(trained.contains(fact)) << fact;
  }
}

// Extracts combinations from the sentences, to check the splits without relying on Chat::facts.
std::set<std::string> combinations_in(const std::string& text) {
  static const std::regex kPatterns[] = {
      std::regex(R"([Tt]he (\w+) (\w+) (?:belongs to|stays with|lies beside|waits for) (\w+))"),
      std::regex(R"((\w+) (?:lives in|works near|waits outside|sleeps beyond) (\w+))"),
      std::regex(R"([Tt]he (\w+) (?:looks|seems|shines|glows) (\w+))"),
      std::regex(R"((\w+) (?:sells|wants|draws|hides) (\w+))"),
      std::regex(R"((\w+) (sings|reads|sleeps|dances|swims|cooks|paints|runs)\b(?! beyond))"),
      std::regex(R"((\w+) has (\w+) (\w+)\. (?:She|He|Then she|Then he) (\w+) (\w+))"),
      std::regex(R"(from (\w+) to (\w+))"),
      std::regex(R"((\w+) is taller than (\w+))"),
      std::regex(R"((?:am|is) (\w+)(?:\.| and) I like (\w+) (\w+)s)")};
  std::set<std::string> found;
  for (std::size_t p = 0; p < std::size(kPatterns); ++p)
    for (std::sregex_iterator match(text.begin(), text.end(), kPatterns[p]), end; match != end; ++match) {
      std::string words = std::to_string(p);
      for (std::size_t i = 1; i < match->size(); ++i) words += " " + (*match)[i].str();
      found.insert(words);
    }
  return found;
}

TEST(SampleChats, HeldOutWordCombinationsAreNotInTraining) {
  std::set<std::string> trained, held_out;
  for (const Chat& chat : chats(Split::train, 1, 2'000)) trained.merge(combinations_in(chat.json()));
  for (const Chat& chat : chats(Split::heldout, 1, 400)) held_out.merge(combinations_in(chat.json()));
  EXPECT_GT(trained.size(), 1'000u);
  EXPECT_GT(held_out.size(), 200u);
  for (const std::string& words : held_out) EXPECT_FALSE(trained.contains(words)) << words;
}

TEST(SampleChats, HeldOutPromptsVaryAndNoAnswerIsCommon) {
  std::set<std::string> prompts;
  std::map<std::string, int> answers;
  int total = 0;
  for (const Chat& chat : chats(Split::heldout, 1, kHeldOut)) {
    if (!prompts.insert(chat.prompt()).second) continue;
    ++answers[chat.exchanges.back().answer];
    ++total;
  }
  EXPECT_GE(prompts.size(), 1'000u);
  for (const auto& [answer, count] : answers) EXPECT_LT(count, total / 10) << answer;
}

TEST(SampleChats, QuestionsHaveManyForms) {
  std::map<std::string, int> begins;  // first two words of each question
  int turns = 0;
  for (const Chat& chat : chats(Split::train, 1, 5'000)) {
    turns += chat.exchanges.size() > 1;
    for (const Exchange& exchange : chat.exchanges) {
      const std::string& text = exchange.question;
      const std::size_t stop = text.rfind(". "), begin = stop == std::string::npos ? 0 : stop + 2;
      const std::size_t space = text.find(' ', text.find(' ', begin) + 1);
      ++begins[text.substr(begin, space - begin)];
    }
  }
  for (const char* kind : {"Who has", "What does", "Where is", "How many", "Count from", "Which is",
                           "What is", "Who is", "Do you", "What colour", "Where are", "What do"})
    EXPECT_GT(begins[kind], 20) << kind;
  EXPECT_GT(turns, 1'000) << "conversations with more than one exchange";
}

TEST(SampleChats, AreShort) {
  std::size_t longest = 0, total = 0;
  const auto made = chats(Split::train, 1, 2'000);
  for (const Chat& chat : made) {
    std::size_t bytes = 0;
    for (const Exchange& exchange : chat.exchanges)
      bytes += exchange.question.size() + exchange.answer.size();
    longest = std::max(longest, bytes);
    total += bytes;
  }
  EXPECT_LT(longest, 1'000u);
  EXPECT_LT(total / made.size(), 300u);
}

}  // namespace
}  // namespace thimble::sample
