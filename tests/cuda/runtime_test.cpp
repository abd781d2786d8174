// The GPU as a DeviceRuntime: memory, copies, events, graphs.
#include <numeric>

#include "base/error.h"
#include "cuda/device.h"
#include "tensor/arena.h"

namespace thimble {
namespace {

class CudaRuntimeTest : public testing::Test {
 protected:
  void SetUp() override {
    const DeviceChoice gpu = find_gpu();
    if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
    runtime_ = gpu.runtime;
  }

  std::shared_ptr<DeviceRuntime> runtime_;
};

TEST_F(CudaRuntimeTest, ReportsFacts) {
  const DeviceFacts facts = runtime_->facts();
  EXPECT_FALSE(facts.name.empty());
  EXPECT_GE(facts.compute_major, 8);
  EXPECT_GT(facts.multiprocessors, 0);
  EXPECT_GT(facts.available_bytes, 0);
  EXPECT_LE(facts.available_bytes, facts.memory_bytes);
  RecordProperty("gpu", facts.name + ", " + facts.versions);
}

TEST_F(CudaRuntimeTest, CopiesAreCorrectAndArenasAreZeroed) {
  constexpr std::int64_t kCount = 100003, kBytes = kCount * 4;
  const Arena a(runtime_, kBytes, "a test", "test less"), b(runtime_, kBytes, "a test", "test less");
  PinnedBuffer out(runtime_, kBytes), back(runtime_, kBytes);
  runtime_->download(back.data(), a.at(0), kBytes);
  runtime_->synchronize();
  for (const std::int32_t word : back.as<std::int32_t>()) ASSERT_EQ(word, 0);

  std::iota(out.as<std::int32_t>().begin(), out.as<std::int32_t>().end(), 7);
  runtime_->upload(a.at(0), out.data(), kBytes);
  runtime_->copy(b.at(0), a.at(0), kBytes);
  runtime_->zero(a.at(0), kBytes);
  runtime_->download(back.data(), b.at(0), kBytes);
  runtime_->synchronize();
  EXPECT_TRUE(std::ranges::equal(out.as<std::int32_t>(), back.as<std::int32_t>()));
}

TEST_F(CudaRuntimeTest, ReportsOutOfMemory) {
  try {
    const Arena arena(runtime_, std::int64_t{1} << 50, "this test", "request less");
    ADD_FAILURE() << "a petabyte was allocated";
  } catch (const Error& error) {
    EXPECT_NE(std::string_view(error.what()).find("for this test"), std::string_view::npos) << error.what();
    EXPECT_EQ(error.hint(), "request less");
  }
}

TEST_F(CudaRuntimeTest, AGraphRunsAtEveryLaunch) {
  constexpr std::int64_t kBytes = 4096;
  const Arena from(runtime_, kBytes, "a test", "test less"), to(runtime_, kBytes, "a test", "test less");
  PinnedBuffer host(runtime_, kBytes), back(runtime_, kBytes);
  runtime_->begin_capture();
  runtime_->copy(to.at(0), from.at(0), kBytes);
  const std::unique_ptr<DeviceGraph> graph = runtime_->end_capture();
  EXPECT_EQ(graph->nodes(), 1);
  for (const std::int32_t value : {3, 4}) {
    std::ranges::fill(host.as<std::int32_t>(), value);
    runtime_->upload(from.at(0), host.data(), kBytes);
    graph->launch();
    runtime_->download(back.data(), to.at(0), kBytes);
    runtime_->synchronize();
    EXPECT_EQ(back.as<std::int32_t>()[100], value);
  }
}

TEST_F(CudaRuntimeTest, EventsReportCompletedWork) {
  const auto before = runtime_->make_event(), after = runtime_->make_event();
  const Arena block(runtime_, 64 << 20, "a test", "test less");
  before->record();
  runtime_->zero(block.at(0), block.bytes());
  after->record();
  after->wait();
  EXPECT_TRUE(before->done());
  EXPECT_TRUE(after->done());
  EXPECT_GT(after->milliseconds_since(*before), 0);
}

}  // namespace
}  // namespace thimble
