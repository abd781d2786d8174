// Opening the plugin, and everything that can be missing. These run without a GPU, too.
#include "base/error.h"
#include "cuda/device.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

std::string why_not(const std::filesystem::path& file) {
  try {
    load_cuda_plugin(file);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(CudaPlugin, AFileThatIsNotThereIsNamed) {
  const TempFolder folder;
  const std::string said = why_not(folder.path() / "libnothing.so");
  EXPECT_TRUE(said.starts_with("the CUDA plugin cannot be loaded: ")) << said;
  EXPECT_NE(said.find("libnothing.so"), std::string::npos) << said;
}

TEST(CudaPlugin, AnotherLibraryIsRefused) {
  EXPECT_EQ(why_not("libm.so.6"), "libm.so.6 is no CUDA plugin of thimble: it has no thimble_cuda_plugin");
}

TEST(CudaPlugin, ReportsTheReasonWithoutAGpu) {
  const DeviceChoice choice = choose_device();
  if (choice.runtime->device() == Device::cuda) GTEST_SKIP() << "there is a GPU: " << choice.reason;
  // No plugin, no driver or no GPU: which it is depends on the machine.
  const auto starts = [&](std::string_view text) { return choice.reason.starts_with(text); };
  EXPECT_TRUE(starts("there is no CUDA plugin") || starts("there is no NVIDIA driver") ||
              starts("there is an NVIDIA driver") || starts("the CUDA plugin cannot be loaded"))
      << choice.reason;
  EXPECT_EQ(choice.runtime, cpu_runtime());
  EXPECT_THROW(open_cuda(), Error);
}

}  // namespace
}  // namespace thimble
