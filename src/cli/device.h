// --device: where a command computes.
#pragma once

#include <memory>

#include "base/log.h"
#include "cli/option.h"
#include "tensor/device.h"

namespace thimble {

class Arguments;

// --device cpu|cuda|auto, for commands whose every part runs on a card. A card that is asked for and cannot be had is
// an error; auto takes one where there is one, and says what it took.
Option device_option();
// Of several cards the one with this number: the local rank's.
std::shared_ptr<DeviceRuntime> device_from(const Arguments& arguments, const Log& log, int card = 0);

// --dtype: what is computed in there.
DType dtype_from(const Arguments& arguments, Device device, const Log& log);

}  // namespace thimble
