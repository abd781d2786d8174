// What the C++ library of Debian's emscripten lacks. Every file of the WebAssembly runtime includes
// this header first (-include), so the shared sources need no adaptation. <omp.h> and
// <source_location> are empty files of the build folder.
#pragma once

#ifdef __cplusplus

#include <charconv>
#include <cstdlib>
#include <string>
#include <system_error>

// One thread: base/parallel.h runs its loops without OpenMP.
inline int omp_get_max_threads() {
  return 1;
}
inline int omp_get_thread_num() {
  return 0;
}
inline void omp_set_num_threads(int) {}

namespace std {

// clang 14 has no __builtin_source_location.
struct source_location {
  static constexpr source_location current(const char* file = __builtin_FILE(),
                                           const char* function = __builtin_FUNCTION(),
                                           unsigned line = __builtin_LINE()) noexcept {
    source_location at;
    at.file_ = file, at.function_ = function, at.line_ = line;
    return at;
  }
  constexpr const char* file_name() const noexcept { return file_; }
  constexpr const char* function_name() const noexcept { return function_; }
  constexpr unsigned line() const noexcept { return line_; }

 private:
  const char *file_ = "", *function_ = "";
  unsigned line_ = 0;
};

// libc++ parses only integers. The C library's strtod also rounds correctly; it accepts more
// (spaces, "+", hexadecimal), which is refused here.
template <class T>
requires(is_floating_point_v<T>) from_chars_result from_chars(const char* begin, const char* end, T& value) {
  const string text(begin, end);
  const size_t digit = text.starts_with('-') ? 1 : 0;
  const auto invalid = from_chars_result{begin, errc::invalid_argument};
  if (digit >= text.size() || text[digit] == '+' || text[digit] == '-' ||
      isspace(static_cast<unsigned char>(text[digit])))
    return invalid;
  if (text[digit] == '0' && digit + 1 < text.size() && (text[digit + 1] | 0x20) == 'x') {
    value = 0;
    return {begin + digit + 1, errc{}};
  }
  char* stop = nullptr;
  const double parsed = strtod(text.c_str(), &stop);
  if (stop == text.c_str()) return invalid;
  const char* at = begin + (stop - text.c_str());
  const T narrowed = static_cast<T>(parsed);
  if ((narrowed - narrowed != 0 && (text[digit] | 0x20) != 'i' && (text[digit] | 0x20) != 'n') ||
      (narrowed == 0 && text.find_first_of("123456789") < static_cast<size_t>(at - begin) &&
       text.find_first_of("123456789") < text.find_first_of("eE")))
    return {at, errc::result_out_of_range};
  value = narrowed;
  return {at, errc{}};
}

}  // namespace std

#endif
