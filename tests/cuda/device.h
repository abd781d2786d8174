// The card under test, or why there is none.
#pragma once

#include <gtest/gtest.h>

#include "ops/cuda_plugin.h"

namespace thimble {

// A test that needs a card begins with: const auto card = find_card(); if (!card.runtime) GTEST_SKIP() << card.reason;
inline DeviceChoice find_card() {
  DeviceChoice choice = choose_device();
  if (choice.runtime->device() != Device::cuda) choice.runtime = nullptr;
  return choice;
}

}  // namespace thimble
