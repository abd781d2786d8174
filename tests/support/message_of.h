// The message of the Error that an action throws.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"

namespace thimble {

inline std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace thimble
