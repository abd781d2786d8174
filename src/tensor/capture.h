// Recording a device's queue, whatever happens.
#pragma once

#include <memory>

#include "base/error.h"
#include "tensor/device.h"

namespace thimble {

// What `work` queues, recorded. Where it throws, the recording is ended and dropped, so that the queue runs again.
template <class Work>
std::unique_ptr<DeviceGraph> capture(DeviceRuntime& runtime, const Work& work) {
  runtime.begin_capture();
  try {
    work();
  } catch (...) {
    try {
      runtime.end_capture();
    } catch (const Error&) {
      // A broken recording cannot become a graph; what broke it is told.
    }
    throw;
  }
  return runtime.end_capture();
}

}  // namespace thimble
