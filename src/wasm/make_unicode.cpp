// Prints unicode_runs.h: what tokenizer/unicode_tables.cpp finds in utf8proc's tables, as runs of
// characters that are alike. The runtime contains it in place of the tables, which have 330 kB.
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

#include "tokenizer/unicode.h"

using namespace thimble;  // NOLINT: a program of one file

namespace {

constexpr char32_t kCodePoints = 0x110000;

void print_properties() {
  std::vector<std::uint16_t> properties(kCodePoints), kinds;
  read_char_properties(0, properties);
  std::puts(
      "// A character in the upper 21 bits, the index of its properties and those of its successors below.");
  std::puts("constexpr std::uint32_t kCharRuns[] = {");
  for (char32_t code = 0; code < kCodePoints; ++code) {
    if (code > 0 && properties[code] == properties[code - 1]) continue;
    std::size_t kind = 0;
    while (kind < kinds.size() && kinds[kind] != properties[code]) ++kind;
    if (kind == kinds.size()) kinds.push_back(properties[code]);
    std::printf("%u,\n", static_cast<unsigned>(code << 11 | kind));
  }
  std::puts("};\nconstexpr std::uint16_t kCharKinds[] = {");
  for (const std::uint16_t kind : kinds) std::printf("%u,\n", unsigned{kind});
  std::puts("};");
}

// A run: every `step`th of the characters from `first` to `last` is mapped to itself plus
// `distance`.
void print_case(const char* name, char32_t (*mapped)(char32_t)) {
  struct Run {
    char32_t first, last, step;
    std::int32_t distance;
  };
  std::vector<Run> runs;
  for (char32_t code = 0; code < kCodePoints; ++code) {
    const auto distance = static_cast<std::int32_t>(mapped(code)) - static_cast<std::int32_t>(code);
    if (distance == 0) continue;
    const char32_t gap = runs.empty() ? 0 : code - runs.back().last;
    const bool first_gap = !runs.empty() && runs.back().first == runs.back().last && gap <= 2;
    if (!runs.empty() && runs.back().distance == distance && (first_gap || gap == runs.back().step)) {
      runs.back().last = code;
      runs.back().step = gap;
    } else {
      runs.push_back({code, code, 1, distance});
    }
  }
  std::printf("constexpr CaseRun %s[] = {\n", name);
  for (const Run& run : runs)
    std::printf("{%u, %u, %u, %d},\n", static_cast<unsigned>(run.first), static_cast<unsigned>(run.last),
                static_cast<unsigned>(run.step), static_cast<int>(run.distance));
  std::puts("};");
}

}  // namespace

int main() {
  std::puts("struct CaseRun { char32_t first, last, step; std::int32_t distance; };");
  print_properties();
  print_case("kToLower", lower_case);
  print_case("kToUpper", upper_case);
}
