// Opening the plugin, and the errors if something is missing. These tests also run without a GPU.
#include "base/error.h"
#include "cuda/device.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

std::string load_error(const std::filesystem::path& file) {
  try {
    load_cuda_plugin(file);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(CudaPlugin, ReportsTheNameOfAMissingFile) {
  const TempFolder folder;
  const std::string message = load_error(folder.path() / "libnothing.so");
  EXPECT_TRUE(message.starts_with("the CUDA plugin cannot be loaded: ")) << message;
  EXPECT_NE(message.find("libnothing.so"), std::string::npos) << message;
}

TEST(CudaPlugin, RejectsAnotherLibrary) {
  EXPECT_EQ(load_error("libm.so.6"),
            "libm.so.6 is not a CUDA plugin for thimble: it does not define thimble_cuda_plugin");
}

TEST(CudaPlugin, ReportsTheReasonWithoutAGpu) {
  const DeviceChoice choice = choose_device();
  if (choice.runtime->device() == Device::cuda) GTEST_SKIP() << "there is a GPU: " << choice.reason;
  // No plugin, no driver or no GPU, depending on the machine.
  const auto starts = [&](std::string_view text) { return choice.reason.starts_with(text); };
  EXPECT_TRUE(starts("cannot find the CUDA plugin") || starts("there is no suitable NVIDIA driver") ||
              starts("the NVIDIA driver is installed") || starts("the CUDA plugin cannot be loaded"))
      << choice.reason;
  EXPECT_EQ(choice.runtime, cpu_runtime());
  EXPECT_THROW(open_cuda(), Error);
}

}  // namespace
}  // namespace thimble
