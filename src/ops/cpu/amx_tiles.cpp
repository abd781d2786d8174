#include "ops/cpu/amx_tiles.h"

#if defined(__x86_64__) && defined(__linux__)

#include <sys/syscall.h>
#include <unistd.h>

#include <array>

namespace thimble::cpu::tiles {

namespace {

// Linux grants a process the tile registers (8 KiB per thread) on request.
bool permitted() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// The operand of ldtilecfg: palette 1, then bytes per row and rows of each tile.
struct alignas(64) Shapes {
  std::uint8_t palette = 1, start_row = 0;
  std::array<std::uint8_t, 14> reserved{};
  std::array<std::uint16_t, 16> row_bytes{64, 64, 64, 64, 64, 64, 64, 64};
  std::array<std::uint8_t, 16> rows{16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(Shapes) == 64);
constexpr Shapes kFullTiles;

}  // namespace

bool multiplies_bf16_tiles() {
  static const bool is_permitted = detected_cpu_level() == CpuLevel::amx && permitted();
  return is_permitted && cpu_features().amx_bf16;
}

Scope::Scope(bool enabled) : enabled_(enabled) {
  if (enabled_) asm volatile("ldtilecfg %0" : : "m"(kFullTiles));
}

Scope::~Scope() {
  if (enabled_) asm volatile("tilerelease" : : : "memory");
}

}  // namespace thimble::cpu::tiles

#else

namespace thimble::cpu::tiles {

bool multiplies_bf16_tiles() {
  return false;
}

Scope::Scope(bool enabled) : enabled_(enabled) {}
Scope::~Scope() = default;

}  // namespace thimble::cpu::tiles

#endif
