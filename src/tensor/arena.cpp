#include "tensor/arena.h"

#include <fmt/format.h>

#include <string>

#include "base/error.h"
#include "base/table.h"

namespace thimble {

Arena::Arena(std::shared_ptr<DeviceRuntime> runtime, std::int64_t bytes, std::string_view what_for,
             std::string_view what_lowers_it)
    : bytes_(bytes) {
  if (bytes == 0) return;
  const auto refuse = [&](std::string_view found) {
    fail(Hint{std::string(what_lowers_it)}, "{} needs {} of {}memory, {}", what_for,
         in_bytes(static_cast<double>(bytes)), runtime->device() == Device::cuda ? "the GPU's " : "", found);
  };
  // Linux promises memory it does not have and kills later: ask first.
  const std::int64_t available = runtime->available_bytes();
  if (available > 0 && bytes > available)
    refuse(fmt::format("{} is available", in_bytes(static_cast<double>(available))));
  std::byte* block = runtime->allocate(bytes);
  if (!block) refuse("the system does not give it");
  block_ = {block, Release{std::move(runtime), bytes}};
}

FloatArena::FloatArena(std::shared_ptr<DeviceRuntime> runtime, std::int64_t count, std::string_view what_for,
                       std::string_view what_lowers_it)
    : runtime_(std::move(runtime)),
      arena_(runtime_, count * static_cast<std::int64_t>(sizeof(float)), what_for, what_lowers_it),
      image_(runtime_->device() == Device::cpu ? 0 : static_cast<std::size_t>(count)),
      floats_(image_.empty() ? on_device() : image_.data(), static_cast<std::size_t>(count)) {}

void FloatArena::fetch() {
  if (image_.empty()) return;
  runtime_->download(image_.data(), on_device(), arena_.bytes());
  runtime_->synchronise();
}

void FloatArena::send() {
  if (image_.empty()) return;
  runtime_->upload(on_device(), image_.data(), arena_.bytes());
  runtime_->synchronise();
}

}  // namespace thimble
