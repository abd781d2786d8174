#include "eval/check.h"

#include <sys/wait.h>

#include <bit>
#include <cerrno>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "eval/small_model.h"
#include "support/message_of.h"
#include "support/temp_folder.h"

namespace thimble::check_test {
namespace {

constexpr CheckLimits kLimits{.seconds = 20, .jobs = 2};

CheckOutcome outcome_of(const std::string& command, const std::string& input = "",
                        const CheckLimits& limits = kLimits) {
  return Checker(command, limits).run(std::span(&input, 1), ProgressOutput::nowhere()).front();
}

void expect_no_child() {
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(PassAtK, EqualsTheShareOfAllSubsets) {
  for (int n = 1; n <= 9; ++n)
    for (int c = 0; c <= n; ++c)
      for (int k = 1; k <= n; ++k) {
        int subsets = 0, pass = 0;
        for (unsigned chosen = 0; chosen < (1u << n); ++chosen)
          if (std::popcount(chosen) == k) {
            ++subsets;
            pass += (chosen & ((1u << c) - 1)) != 0;  // the first c completions pass
          }
        EXPECT_NEAR(pass_at_k(n, c, k), static_cast<double>(pass) / subsets, 1e-12) << n << c << k;
      }
  EXPECT_THROW(pass_at_k(3, 1, 4), Error);
}

TEST(Checks, ExitCode0OfTheCommandPasses) {
  const Checker checker("grep -q good", kLimits);
  const std::vector<std::string> inputs = {"good", "bad", "$(echo good; exit 0)", "'; exit 0; '",
                                           "a\ngood\n"};
  std::vector<CheckResult> results;
  for (const CheckOutcome& outcome : checker.run(inputs, ProgressOutput::nowhere()))
    results.push_back(outcome.result);
  using enum CheckResult;
  EXPECT_EQ(results, (std::vector{passed, failed, passed, failed, passed}));
  expect_no_child();
}

TEST(Checks, LargeInputsAndEndlessErrorsDoNotBlock) {
  EXPECT_EQ(outcome_of("test $(wc -c) -eq 3000000 -o $? -eq 0", std::string(3000000, 'x')).result,
            CheckResult::passed);
  EXPECT_EQ(outcome_of("true", std::string(3000000, 'x')).result, CheckResult::passed) << "not read";
  const CheckOutcome verbose = outcome_of("head -c 300000 /dev/zero | tr '\\0' e >&2; echo end >&2; exit 7");
  EXPECT_EQ(verbose.exit_code, 7);
  EXPECT_EQ(verbose.error, std::string(196, 'e') + "end\n");
}

TEST(Checks, AreKilledWithTheirDescendantsAtTheTimeLimit) {
  const TempFolder folder;
  const std::string alive = (folder / "alive").string();
  const std::string nothing = "x";
  // The input is empty when the command is tried, and the process in the background keeps no pipe.
  const std::string command =
      "test -z \"$(cat)\" && exit; (trap '' TERM; sleep 0.4; touch " + alive + ") >&- 2>&- & sleep 30";
  const CheckOutcome outcome = outcome_of(command, nothing, {.seconds = 0.1});
  EXPECT_EQ(outcome.result, CheckResult::timed_out);
  expect_no_child();
  for (const double end = seconds_now() + 0.5; seconds_now() < end;) usleep(10000);
  EXPECT_FALSE(std::filesystem::exists(alive));
}

TEST(Checks, LimitTheMemory) {
  const CheckLimits small{.seconds = 20, .memory_bytes = 64 << 20};
  const std::string command = "dd if=/dev/zero of=/dev/null bs=200M count=1";
  EXPECT_EQ(outcome_of(command, "", small).result, CheckResult::out_of_memory);
  EXPECT_EQ(outcome_of(command).result, CheckResult::passed);
}

TEST(Checks, HaveAnEmptyFolderAndNoNetwork) {
  EXPECT_EQ(outcome_of("test -z \"$(ls -A)\" && echo 1 > file && cat file && test ! -s /dev/stdin").result,
            CheckResult::passed);
  const Checker checker("test $(tail -n +3 /proc/net/dev | wc -l) -eq 1", kLimits);  // lo
  if (!checker.cuts_network()) GTEST_SKIP() << "this system has no namespaces";
  const std::string input;
  EXPECT_EQ(checker.run(std::span(&input, 1), ProgressOutput::nowhere()).front().result, CheckResult::passed);
}

TEST(Checks, ACommandThatDoesNotExistIsAnError) {
  EXPECT_NE(message_of([] { Checker("no-such-program-7", kLimits); }).find("127"), std::string::npos);
  EXPECT_NE(message_of([] { Checker("/etc/passwd", kLimits); }).find("126"), std::string::npos);
  // A program that the input names is another matter.
  EXPECT_EQ(outcome_of("sh", "no-such-program-7\n").result, CheckResult::failed);
}

TEST(Checks, CtrlCEndsThem) {
  const Checker checker("test -z \"$(cat)\" || sleep 30", kLimits);
  const Interrupt interrupt;
  const std::vector<std::string> inputs(4, "x");
  const std::jthread user([] {
    usleep(50000);
    kill(getpid(), SIGTERM);
  });
  EXPECT_THROW(checker.run(inputs, ProgressOutput::nowhere(), &interrupt), Interrupted);
  expect_no_child();
}

TEST(CheckPrompts, AreReadFromJsonAndFromLines) {
  const TempFolder folder;
  const auto json = read_check_prompts(
      folder.write("p.jsonl",
                   "{\"prompt\": \"f:\", \"test\": \"check = f\", \"entry_point\": \"f\"}\n"
                   "{\"prompt\": \"\", \"stop\": [\"\\n\", \";\"]}\n"),
      0);
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0].prompt, "f:");
  EXPECT_EQ(json[0].test, "check = f\ncheck(f)\n");
  EXPECT_EQ(json[1].stops, (std::vector<std::string>{"\n", ";"}));
  const auto lines = read_check_prompts(folder.write("p.txt", "one\n\n two\nthree\n"), 2);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1].prompt, " two");
  for (const char* bad :
       {"{\"text\": \"a\"}", "{\"prompt\": 3}", "{\"prompt\": \"a\", \"stop\": \"b\"}", "7"}) {
    const auto file = folder.write("bad.jsonl", std::string("{\"prompt\": \"a\"}\n") + bad + "\n");
    EXPECT_NE(message_of([&] { read_check_prompts(file, 0); }).find("bad.jsonl:2"), std::string::npos) << bad;
  }
  EXPECT_THROW(read_check_prompts(folder.write("empty.txt", "\n"), 0), Error);
}

TEST(CheckedCompletions, AreCountedByPromptAndRepeatWithTheSeed) {
  const Context context;
  const auto tokenizer = load_tokenizer("bytes");
  const auto model = small_model(context, tokenizer->vocab_size(), 48);
  const std::vector<CheckPrompt> prompts = {{.prompt = "good"},
                                            {.prompt = "bad"},
                                            {.prompt = std::string(60, 'a')},
                                            {.prompt = "b", .test = "good"}};
  const auto score = [&](std::uint64_t seed, std::int64_t slots) {
    return score_checks(*model, *tokenizer, prompts, Checker("grep -aq ^good", kLimits),
                        {.sampling = {.temperature = 1, .seed = seed},
                         .samples = 3,
                         .max_tokens = 6,
                         .slots = slots,
                         .keep_failed = 9},
                        ProgressOutput::nowhere());
  };
  const CheckScore first = score(1, 32), again = score(1, 2), other = score(2, 32);
  EXPECT_EQ(first.passed, (std::vector<std::int64_t>{3, 0, 0, 3}));
  EXPECT_EQ(first.count(CheckResult::passed), 6);
  EXPECT_EQ(first.count(CheckResult::failed), 6);
  EXPECT_EQ(first.too_long, 1);
  EXPECT_EQ(first.pass_at(1), 0.5);
  ASSERT_EQ(first.failed.size(), 1u);
  EXPECT_EQ(first.failed[0].prompt, 1u);
  EXPECT_EQ(first.failed[0].text, again.failed[0].text);
  EXPECT_NE(first.failed[0].text, other.failed[0].text);
  EXPECT_THROW(score_checks(*model, *tokenizer, {}, Checker("true", kLimits), {}, ProgressOutput::nowhere()),
               Error);
}

}  // namespace
}  // namespace thimble::check_test
