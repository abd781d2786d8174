#include "cli/device.h"

#include <cstdlib>
#include <string_view>

#include "cli/parse.h"
#include "model/compute_dtype.h"
#include "ops/cuda_plugin.h"

namespace thimble {

namespace {

// A launcher that gives every rank a card of its own hides the others from it: what is left has number 0.
int visible_number(int card) {
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string_view cards = text ? text : "";
  return !cards.empty() && cards.find(',') == cards.npos ? 0 : card;
}

}  // namespace

Option device_option() {
  Option option = common::device();
  option.initial = "cpu";
  return option;
}

std::shared_ptr<DeviceRuntime> device_from(const Arguments& arguments, const Log& log, int card) {
  const std::string& device = arguments.text("device");
  if (device == "cpu") return cpu_runtime();
  if (device == "cuda") return open_cuda(visible_number(card));
  DeviceChoice choice = choose_device(visible_number(card));
  if (choice.runtime->device() == Device::cuda)
    log.info("computing on {}", choice.reason);
  else
    log.info("computing on the CPU: {}", choice.reason);
  return choice.runtime;
}

DType dtype_from(const Arguments& arguments, Device device, const Log& log) {
  const std::string& name = arguments.text("dtype");
  const ComputeDType wanted = name == "auto"  ? ComputeDType::automatic
                              : name == "f32" ? ComputeDType::f32
                              : name == "f16" ? ComputeDType::f16
                                              : ComputeDType::bf16;
  const std::string notice = dtype_notice(wanted, device, cpu_features());
  if (!notice.empty()) log.info("{}", notice);
  return compute_dtype(wanted, device);
}

}  // namespace thimble
