#include "cli/libraries.h"

#include <fmt/format.h>
#include <utf8proc.h>
#include <xxhash.h>
#include <zlib.h>
#include <zstd.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#if __has_include(<histedit.h>)
#include <histedit.h>
#endif

#include "dist/plugins.h"
#include "ops/cpu/gemm.h"
#include "ops/kernel_choice.h"

namespace thimble {

namespace {

// 90100 -> "9.1.0"
std::string from_number(unsigned number) {
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

std::string pcre2_version() {
  char text[64] = {};  // "10.42 2022-12-11"
  pcre2_config(PCRE2_CONFIG_VERSION, text);
  const std::string version = text;
  return version.substr(0, version.find(' '));
}

// The library itself cannot tell; CMake has read it where it found the library.
std::optional<std::string> sentencepiece_version() {
#ifdef THIMBLE_SENTENCEPIECE_VERSION
  return THIMBLE_SENTENCEPIECE_VERSION;
#else
  return std::nullopt;
#endif
}

}  // namespace

std::vector<Library> libraries() {
  return {
      {"oneDNN", cpu::onednn_version()},
      {"Highway", highway_version()},
      {"OpenMP", _OPENMP >= 202011   ? "5.1"
                 : _OPENMP >= 201811 ? "5.0"
                                     : "4.5"},
      {"SentencePiece", sentencepiece_version()},
      {"zstd", ZSTD_versionString()},
      {"zlib", zlibVersion()},
      {"pcre2", pcre2_version()},
      {"utf8proc", utf8proc_version()},
#ifdef LIBEDIT_MAJOR
      {"libedit", fmt::format("{}.{}", LIBEDIT_MAJOR, LIBEDIT_MINOR)},
#endif
      {"fmt", from_number(FMT_VERSION)},
      {"xxhash", from_number(XXH_versionNumber())},
  };
}

std::vector<MissingLibrary> missing_libraries() {
  std::vector<MissingLibrary> missing;
  if (const PluginState mpi = mpi_state(); !mpi.available) missing.push_back({"MPI", mpi.text});
  if (const PluginState nccl = nccl_state(); !nccl.available) missing.push_back({"NCCL", nccl.text});
  return missing;
}

}  // namespace thimble
