#include "base/signals.h"

#include <csignal>

namespace thimble {
namespace {

TEST(Interrupt, FirstSignalRequestsAStop) {
  Interrupt interrupt;
  EXPECT_FALSE(interrupt.requested());
  EXPECT_NO_THROW(interrupt.throw_if_interrupted());
  std::raise(SIGINT);
  EXPECT_TRUE(interrupt.requested());
  EXPECT_THROW(interrupt.throw_if_interrupted(), Interrupted);
}

TEST(Interrupt, IgnoredSignalsStayIgnored) {
  std::signal(SIGINT, SIG_IGN);  // as a shell does for background jobs
  {
    Interrupt interrupt;
    std::raise(SIGINT);
    EXPECT_FALSE(interrupt.requested());
    std::raise(SIGTERM);
    EXPECT_TRUE(interrupt.requested());
  }
  EXPECT_EQ(std::signal(SIGINT, SIG_DFL), SIG_IGN);
}

TEST(Interrupt, RepeatedSighupDoesNotExit) {
  const auto before = std::signal(SIGHUP, SIG_DFL);  // the caller of the tests may ignore it
  {
    Interrupt interrupt;
    std::raise(SIGHUP);
    EXPECT_TRUE(interrupt.requested());
    std::raise(SIGHUP);
  }
  std::signal(SIGHUP, before);
}

TEST(InterruptDeathTest, SecondSignalExitsImmediately) {
  EXPECT_EXIT(
      {
        Interrupt interrupt;
        std::raise(SIGTERM);
        std::raise(SIGINT);
      },
      testing::ExitedWithCode(130), "");
}

TEST(Interrupt, TaskScopeCanBeInterruptedRepeatedly) {
  Interrupt interrupt(Interrupt::Scope::task);
  std::raise(SIGINT);
  std::raise(SIGINT);
  EXPECT_TRUE(interrupt.requested());
  interrupt.forget();
  EXPECT_FALSE(interrupt.requested());
  std::raise(SIGINT);
  EXPECT_TRUE(interrupt.requested());
}

TEST(InterruptDeathTest, TaskScopeDoesNotHandleSigterm) {
  EXPECT_EXIT(
      {
        Interrupt interrupt(Interrupt::Scope::task);
        std::raise(SIGTERM);
      },
      testing::KilledBySignal(SIGTERM), "");
}

TEST(SaveSignal, IsReportedOnce) {
  const SaveSignal signal;
  EXPECT_FALSE(signal.taken());
  std::raise(SIGUSR1);
  EXPECT_TRUE(signal.taken());
  EXPECT_FALSE(signal.taken());
}

}  // namespace
}  // namespace thimble
