// Finds the GPU for a test, or the reason why there is none.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "ops/cuda_plugin.h"

namespace thimble {

// A test that needs a GPU starts with: const auto gpu = find_gpu(); if (!gpu.runtime) GTEST_SKIP()
// << gpu.reason;
//
// Looks for the driver first: every test is a separate process, and opening the plugin without a
// driver took 0.25 s each. plugin_test.cpp tests the plugin itself.
inline DeviceChoice find_gpu() {
  if (void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL)) {
    dlclose(driver);
  } else {
    return {nullptr, "there is no NVIDIA driver (libcuda.so.1)"};
  }
  DeviceChoice choice = choose_device();
  if (choice.runtime->device() != Device::cuda) choice.runtime = nullptr;
  return choice;
}

}  // namespace thimble
