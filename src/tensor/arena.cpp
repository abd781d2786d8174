#include "tensor/arena.h"

#include <fmt/format.h>

#include <string>

#include "base/error.h"
#include "base/table.h"

namespace thimble {

Arena::Arena(std::shared_ptr<DeviceRuntime> runtime, std::int64_t bytes, std::string_view purpose,
             std::string_view remedy)
    : bytes_(bytes) {
  if (bytes == 0) return;
  const auto refuse = [&](std::string_view found) {
    fail(Hint{std::string(remedy)}, "cannot allocate {} of {}memory for {}: {}",
         in_bytes(static_cast<double>(bytes)), runtime->device() == Device::cuda ? "the GPU's " : "", purpose,
         found);
  };
  // Linux overcommits memory and later kills the process, so check what is available before
  // allocating.
  const std::int64_t available = runtime->available_bytes();
  if (available > 0 && bytes > available)
    refuse(fmt::format("{} is available", in_bytes(static_cast<double>(available))));
  std::byte* block = runtime->allocate(bytes);
  if (!block) refuse("the allocation failed");
  block_ = {block, Release{std::move(runtime), bytes}};
}

FloatArena::FloatArena(std::shared_ptr<DeviceRuntime> runtime, std::int64_t count, std::string_view purpose,
                       std::string_view remedy)
    : runtime_(std::move(runtime)),
      arena_(runtime_, count * static_cast<std::int64_t>(sizeof(float)), purpose, remedy),
      image_(runtime_->device() == Device::cpu ? 0 : static_cast<std::size_t>(count)),
      floats_(image_.empty() ? on_device() : image_.data(), static_cast<std::size_t>(count)) {}

void FloatArena::fetch() {
  if (image_.empty()) return;
  runtime_->download(image_.data(), on_device(), arena_.bytes());
  runtime_->synchronize();
}

void FloatArena::send() {
  if (image_.empty()) return;
  runtime_->upload(on_device(), image_.data(), arena_.bytes());
  runtime_->synchronize();
}

}  // namespace thimble
