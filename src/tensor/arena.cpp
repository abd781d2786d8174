#include "tensor/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/machine.h"
#include "base/table.h"

namespace thimble {

void Arena::Unmap::operator()(std::byte* block) const {
  munmap(block, static_cast<std::size_t>(bytes));
}

Arena::Arena(std::int64_t bytes, std::string_view what_for, std::string_view what_lowers_it) : bytes_(bytes) {
  if (bytes == 0) return;
  const auto refuse = [&](std::string_view found) {
    fail(Hint{std::string(what_lowers_it)}, "{} needs {} of memory, {}", what_for,
         in_bytes(static_cast<double>(bytes)), found);
  };
  // Linux promises memory it does not have and kills later: ask first.
  const Machine machine = probe_machine();
  std::int64_t available = machine.available_bytes;
  if (machine.container_memory_bytes > 0) available = std::min(available, machine.container_memory_bytes);
  if (available > 0 && bytes > available)
    refuse(fmt::format("{} is available", in_bytes(static_cast<double>(available))));
  void* block = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) refuse("the system does not give it");
  madvise(block, static_cast<std::size_t>(bytes),
          MADV_HUGEPAGE);  // advice: fewer TLB misses where it is granted
  block_ = {static_cast<std::byte*>(block), Unmap{bytes}};
}

}  // namespace thimble
