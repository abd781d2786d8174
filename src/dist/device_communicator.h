// Sums between the cards of all ranks: NCCL, a plugin (nccl/).
//
// Work is queued, like everything on a device: sum() and gather() see what was queued before them and run beside what
// is queued after them; join() makes the device's queue wait for them. All three may be recorded (begin_capture). All
// ranks queue the same in the same order.
//
// For one number of ranks on one set of machines a sum has the same bits every time: NCCL is held to one algorithm (a
// ring), whose order does not depend on time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "tensor/device.h"

namespace thimble {

// Floats of the device's memory that a rank has and the others want.
struct OwnedFloats {
  int rank = 0;
  std::span<float> values;
};

class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual void sum(std::span<const std::span<float>> pieces) = 0;  // of the device's memory, in place
  virtual void gather(std::span<const OwnedFloats> parts) = 0;     // everyone gets what each rank owns
  virtual void join() = 0;
  virtual void check_errors() = 0;  // what went wrong meanwhile is thrown here
};

// What the plugins share with us: raised when a meaning changes.
inline constexpr std::uint32_t kDistAbi = 1;

struct NcclPlugin {
  std::uint32_t abi;
  const char* version;       // of thimble
  std::string (*library)();  // "NCCL 2.27.7"
  std::string (*make_id)();  // by rank 0; everyone joins with its bytes
  std::unique_ptr<DeviceCommunicator> (*join)(const std::string& id, int rank, int size,
                                              const std::shared_ptr<DeviceRuntime>& runtime);
};

}  // namespace thimble
