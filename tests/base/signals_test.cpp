#include "base/signals.h"

#include <csignal>

namespace thimble {
namespace {

TEST(Interrupt, FirstSignalRequestsAStop) {
  Interrupt interrupt;
  EXPECT_FALSE(interrupt.asked());
  EXPECT_NO_THROW(interrupt.throw_if_interrupted());
  std::raise(SIGINT);
  EXPECT_TRUE(interrupt.asked());
  EXPECT_THROW(interrupt.throw_if_interrupted(), Interrupted);
}

TEST(Interrupt, IgnoredSignalsStayIgnored) {
  std::signal(SIGINT, SIG_IGN);  // as a shell does for background jobs
  {
    Interrupt interrupt;
    std::raise(SIGINT);
    EXPECT_FALSE(interrupt.asked());
    std::raise(SIGTERM);
    EXPECT_TRUE(interrupt.asked());
  }
  EXPECT_EQ(std::signal(SIGINT, SIG_DFL), SIG_IGN);
}

TEST(Interrupt, RepeatedSighupDoesNotExit) {
  const auto before = std::signal(SIGHUP, SIG_DFL);  // the caller of the tests may ignore it
  {
    Interrupt interrupt;
    std::raise(SIGHUP);
    EXPECT_TRUE(interrupt.asked());
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
  EXPECT_TRUE(interrupt.asked());
  interrupt.forget();
  EXPECT_FALSE(interrupt.asked());
  std::raise(SIGINT);
  EXPECT_TRUE(interrupt.asked());
}

TEST(InterruptDeathTest, TaskScopeDoesNotHandleSigterm) {
  EXPECT_EXIT(
      {
        Interrupt interrupt(Interrupt::Scope::task);
        std::raise(SIGTERM);
      },
      testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace thimble
