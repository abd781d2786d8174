#include "base/version.h"

#include <fmt/format.h>

namespace thimble {

std::string_view version() {
  return THIMBLE_VERSION;
}

std::string_view build_type() {
#if defined(__SANITIZE_ADDRESS__)
  return THIMBLE_BUILD_TYPE " with AddressSanitizer";
#elif defined(__SANITIZE_THREAD__)
  return THIMBLE_BUILD_TYPE " with ThreadSanitizer";
#else
  return THIMBLE_BUILD_TYPE;
#endif
}

std::string compiler() {
#if defined(__clang__)
  return fmt::format("clang++ {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

}  // namespace thimble
