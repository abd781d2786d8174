// Which documents are kept, and in which split.
#include "data/survey.h"

#include "base/error.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

struct Surveyed {
  Survey survey;
  std::string assignments;  // t, v or - for each document
};

class SurveyTest : public testing::Test {
 protected:
  Surveyed survey(const std::vector<std::string>& names, SurveyOptions options,
                  ReadOptions read = {.split = DocumentSplit::line}) {
    std::vector<DataSource> sources;
    for (const std::string& name : names) sources.push_back(find_source((folder_ / name).string()));
    PosixFileOps ops;
    Surveyed result{survey_sources(sources, read, options, ops, folder_ / "out/.digests",
                                   ProgressOutput::nowhere(), nullptr),
                    {}};
    for (std::uint64_t i = 0; i < result.survey.assignments.size(); ++i)
      result.assignments += "tv-"[static_cast<int>(result.survey.assignments[i])];
    return result;
  }
  void SetUp() override { std::filesystem::create_directories(folder_ / "out"); }

  TempFolder folder_;
};

TEST_F(SurveyTest, LastDocumentsBecomeValidationAndTheirCopiesAreDropped) {
  folder_.write("a.txt", "one\ntwo\nthree\ntwo\nfour\none\ntwo\n");
  const Surveyed last = survey({"a.txt"}, {.val_documents = 2});
  EXPECT_EQ(last.assignments, "--t-tvv");
  EXPECT_EQ(last.survey.in_validation, 3u);
  EXPECT_EQ(last.survey.duplicates, 0u);
  EXPECT_EQ(last.survey.source_documents, (std::vector<std::uint64_t>{7}));
  EXPECT_THROW(survey({"a.txt"}, {.val_documents = 7}), Error);
  EXPECT_EQ(folder_.files(), (std::vector<std::string>{"a.txt"}));  // the scratch file is removed
}

TEST_F(SurveyTest, SeparateSourcesBecomeValidation) {
  folder_.write("a.txt", "one\ntwo\n");
  folder_.write("b.txt", "two\nthree\nthree\n");
  EXPECT_EQ(survey({"a.txt", "b.txt"}, {.val_sources = 1}).assignments, "t-vvv");
  EXPECT_EQ(survey({"a.txt", "b.txt"}, {.val_sources = 1, .dedup = true}).assignments, "t-vv-");
}

TEST_F(SurveyTest, DedupKeepsTheFirstOfEqualDocuments) {
  folder_.write("a.txt", "one\ntwo\none\nthree\ntwo\none\n");
  EXPECT_EQ(survey({"a.txt"}, {}).assignments, "tttttt");
  const Surveyed once = survey({"a.txt"}, {.dedup = true});
  EXPECT_EQ(once.assignments, "tt-t--");
  EXPECT_EQ(once.survey.duplicates, 3u);
}

TEST_F(SurveyTest, ChoiceAmongManyDocumentsDoesNotDependOnTheOthers) {
  std::string some, more;
  for (int i = 0; i < 14000; ++i) more += fmt::format("line {}\n", i);
  for (int i = 0; i < 14000; i += 7) some += fmt::format("line {}\n", i);
  folder_.write("some.txt", some + some);
  folder_.write("more.txt", more);
  const std::string all = survey({"more.txt"}, {.val_fraction = 0.1}).assignments;
  const auto chosen = static_cast<double>(std::count(all.begin(), all.end(), 'v'));
  EXPECT_NEAR(chosen, 1400, 140);
  std::string expected;
  for (int i = 0; i < 14000; i += 7) expected += all[static_cast<std::size_t>(i)];
  EXPECT_EQ(survey({"some.txt"}, {.val_fraction = 0.1}).assignments, expected + expected);
}

TEST_F(SurveyTest, FewDocumentsStillHaveAValidationSplit) {
  folder_.write("a.txt", "one\ntwo\nthree\n");
  EXPECT_EQ(survey({"a.txt"}, {.val_fraction = 0.001}).survey.assignments.count(Assignment::val), 1u);
  folder_.write("b.txt", "0123456789");
  const Surveyed one = survey({"b.txt"}, {.val_fraction = 0.2});
  EXPECT_EQ(one.assignments, "tv");
  EXPECT_EQ(one.survey.cuts, (std::vector<std::vector<std::uint64_t>>{{8}}));
  EXPECT_EQ(one.survey.source_documents, (std::vector<std::uint64_t>{2}));
  folder_.write("c.jsonl", "{\"text\": \"only one\"}");
  EXPECT_EQ(survey({"c.jsonl"}, {.val_fraction = 0.999}).assignments, "t");
}

// The bytes of validation and of training, with cut texts counted in their parts.
struct SplitBytes {
  double val = 0, all = 0;
};

SplitBytes bytes_of(const Surveyed& surveyed, const std::vector<std::string>& documents) {
  SplitBytes bytes;
  std::size_t number = 0;
  std::uint64_t begin = 0;
  auto cut = surveyed.survey.cuts[0].begin();
  for (const std::string& document : documents) {
    const auto size = static_cast<double>(document.size());
    bytes.all += size;
    if (cut != surveyed.survey.cuts[0].end() && *cut < begin + document.size()) {
      EXPECT_EQ(surveyed.assignments.substr(number, 2), "tv");
      bytes.val += static_cast<double>(begin + document.size() - *cut++);
      number += 2;
    } else if (surveyed.assignments[number++] == 'v') {
      bytes.val += size;
    }
    begin += document.size();
  }
  EXPECT_EQ(number, surveyed.assignments.size());
  return bytes;
}

TEST_F(SurveyTest, ValidationIsTheFractionOfTheBytesWhateverTheSizes) {
  const std::vector<std::vector<std::size_t>> cases = {
      {500'000, 500'000},                   // few large texts: each is cut
      {400'000, 80'000, 20'000},            //
      std::vector<std::size_t>(60, 200),    // documents too short to cut
      std::vector<std::size_t>(3000, 40),   // many
      {900'000, 100, 200, 50, 70, 90, 10},  // both
      {5'000, 6'000, 7'000, 8'000, 9'000}};
  for (const auto& sizes : cases) {
    std::vector<std::string> documents;
    std::string text;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      documents.push_back(fmt::format("{} ", i));
      documents.back().resize(sizes[i], static_cast<char>('a' + i % 26));
      text += documents.back() + "\n";
    }
    folder_.write("sizes.txt", text);
    for (const double fraction : {0.05, 0.1, 0.3}) {
      const SplitBytes bytes = bytes_of(survey({"sizes.txt"}, {.val_fraction = fraction}), documents);
      EXPECT_NEAR(bytes.val / bytes.all, fraction, 0.1 * fraction + 0.001) << sizes.size() << " " << sizes[0];
    }
  }
}

TEST_F(SurveyTest, EqualDocumentsAreInTheSameSplit) {
  const std::string longer(20'000, 'x');
  folder_.write("a.txt", "one\ntwo\n" + longer + "\nthree\n");
  const std::vector<std::string> twice = {"a.txt", "a.txt"};
  const Surveyed both = survey(twice, {.val_fraction = 0.1});
  EXPECT_EQ(both.assignments.substr(0, 5), both.assignments.substr(5));
  EXPECT_EQ(both.survey.cuts[0], both.survey.cuts[1]);
  EXPECT_EQ(both.survey.cut_documents, 2u);
  const Surveyed once = survey(twice, {.val_fraction = 0.1, .dedup = true});
  EXPECT_EQ(once.assignments.substr(5), "----");
  EXPECT_EQ(once.survey.cut_documents, 1u);

  std::string chats;
  for (int i = 0; i < 200; ++i) chats += "the same\n";
  folder_.write("same.txt", chats);
  EXPECT_EQ(survey({"same.txt"}, {.val_fraction = 0.1}).assignments, std::string(200, 't'));
  folder_.write("another.txt", chats + "another\n");
  EXPECT_EQ(survey({"another.txt"}, {.val_fraction = 0.1}).assignments, std::string(200, 't') + "v");
}

TEST_F(SurveyTest, InvalidUtf8AndShortLinesAreNoticed) {
  folder_.write("a.txt", "caf\xC3\xA9\nshort\n\nna\xEFve line\n");
  const Survey found = survey({"a.txt"}, {}, {}).survey;
  EXPECT_EQ(found.not_utf8, 1u);
  EXPECT_TRUE(found.first_not_utf8.ends_with("a.txt:1")) << found.first_not_utf8;
  EXPECT_EQ(found.lines.lines, 4u);
  EXPECT_EQ(found.lines.empty, 1u);
  EXPECT_EQ(found.lines.longest, 10u);
}

TEST_F(SurveyTest, BadRecordsAreErrorsUnlessSkipped) {
  folder_.write("a.jsonl", "{\"text\": \"x\"}\n{\"text\": 1}\n{\"text\": \"\"}\n{\"text\": \"y\"}\n{\n");
  try {
    survey({"a.jsonl"}, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("a.jsonl:2: expected \"text\" to be a string"),
              std::string::npos);
    EXPECT_NE(error.hint().find("--skip-bad"), std::string::npos);
  }
  const Surveyed skipped = survey({"a.jsonl"}, {.val_documents = 1, .skip_bad = true});
  EXPECT_EQ(skipped.assignments, "t--v-");
  EXPECT_EQ(skipped.survey.bad, 2u);
  EXPECT_EQ(skipped.survey.empty, 1u);
  EXPECT_NE(skipped.survey.first_problem.find("a.jsonl:2:"), std::string::npos);
}

TEST_F(SurveyTest, ConversationsWithoutAnswersAreDropped) {
  const std::string user = R"({"role": "user", "content": "q"})",
                    answer = R"({"role": "assistant", "content": "a"})";
  folder_.write("a.jsonl", fmt::format("[{0}]\n[{0},{1}]\n[{0},{1},{0}]\n[]\n", user, answer));
  const Surveyed chats = survey({"a.jsonl"}, {.dedup = true}, {.kind = DataKind::chat});
  EXPECT_EQ(chats.assignments, "-t--");  // after trimming, the third equals the second
  EXPECT_EQ(chats.survey.without_answer, 2u);
  EXPECT_EQ(chats.survey.with_turns_cut, 1u);
  EXPECT_EQ(chats.survey.duplicates, 1u);
}

// Long texts are read in pieces. Texts that differ in only one piece must not be equal.
TEST_F(SurveyTest, LongTextsAreComparedCompletely) {
  std::string text;
  while (text.size() < kMaxTextPieceBytes + 1000) text += "some words of text, ";
  folder_.write("a.txt", text + "x");
  folder_.write("b.txt", text + "y");
  folder_.write("c.txt", text + "x");
  text[0] = 'S';
  folder_.write("d.txt", text + "x");
  EXPECT_EQ(survey({"a.txt", "b.txt", "c.txt", "d.txt"}, {.dedup = true}, {.split = DocumentSplit::file})
                .assignments,
            "tt-t");
}

TEST(Duplicates, AreFoundAcrossSeveralTables) {
  TempFolder folder;
  PosixFileOps ops;
  DigestFile digests(ops, folder / "digests");
  Assignments assignments;
  constexpr std::uint64_t kDocuments = 2'300'000, kDistinct = 2'000'000;
  for (std::uint64_t i = 0; i < kDocuments; ++i) {
    const std::uint64_t content = i % kDistinct;
    digests.add(digest_of(std::as_bytes(std::span(&content, 1))));
    assignments.add(i >= kDocuments - 10 ? Assignment::val : Assignment::train);
  }
  digests.close();
  const DuplicateCounts counts = drop_duplicates(digests, true, assignments);
  EXPECT_EQ(counts.in_validation, 10u);
  EXPECT_EQ(counts.duplicates, kDocuments - kDistinct - 10);
  EXPECT_EQ(assignments.count(Assignment::train), kDistinct - 10);
  EXPECT_EQ(assignments[kDistinct - 1], Assignment::train);
  EXPECT_EQ(assignments[kDistinct], Assignment::dropped);
  EXPECT_EQ(assignments[kDocuments - kDistinct - 1], Assignment::dropped);  // equal to the last document
}

}  // namespace
}  // namespace thimble
