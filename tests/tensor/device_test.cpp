// The contract of DeviceRuntime, tested on the CPU, where work is complete when a call returns.
#include "tensor/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "tensor/arena.h"

namespace thimble {
namespace {

TEST(CpuRuntime, IsTheDefaultOfContext) {
  EXPECT_EQ(Context().runtime(), cpu_runtime());
  EXPECT_EQ(Context().device(), Device::cpu);
  EXPECT_FALSE(cpu_runtime()->facts().name.empty());
  EXPECT_GT(cpu_runtime()->available_bytes(), 0);
}

TEST(CpuRuntime, CopiesSynchronously) {
  const std::shared_ptr<DeviceRuntime> cpu = cpu_runtime();
  const Arena a(cpu, 4000, "a test", "test less"), b(cpu, 4000, "a test", "test less");
  EXPECT_TRUE(std::all_of(a.at(0), a.at(4000), [](std::byte byte) { return byte == std::byte{0}; }));
  PinnedBuffer out(cpu, 4000), back(cpu, 4000);
  ASSERT_EQ(out.as<std::int32_t>().size(), 1000u);
  std::iota(out.as<std::int32_t>().begin(), out.as<std::int32_t>().end(), 1);
  cpu->upload(a.at(0), out.data(), 4000);
  cpu->copy(b.at(0), a.at(0), 4000);
  cpu->zero(a.at(0), 4000);
  cpu->download(back.data(), b.at(0), 4000);
  EXPECT_TRUE(std::ranges::equal(out.as<std::int32_t>(), back.as<std::int32_t>()));
}

TEST(CpuRuntime, EventsAreDoneAndMeasureTime) {
  const auto before = cpu_runtime()->make_event(), after = cpu_runtime()->make_event();
  before->record();
  after->record();
  EXPECT_TRUE(after->done());
  EXPECT_GE(after->milliseconds_since(*before), 0);
}

TEST(CpuRuntime, RefusesGraphCapture) {
  EXPECT_THROW(cpu_runtime()->begin_capture(), Error);
  EXPECT_THROW(cpu_runtime()->end_capture(), Error);
}

TEST(PinnedBuffer, CanBeMovedAndEmpty) {
  PinnedBuffer first(cpu_runtime(), 64), second;
  first.as<float>()[3] = 7;
  second = std::move(first);
  EXPECT_EQ(second.as<float>()[3], 7);
  EXPECT_EQ(PinnedBuffer(cpu_runtime(), 0).bytes(), 0);
  EXPECT_EQ(PinnedBuffer().data(), nullptr);
}

}  // namespace
}  // namespace thimble
