// The format's numbers for the types of values.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace thimble {

inline constexpr std::uint32_t kGgufString = 8, kGgufArray = 9;

inline constexpr std::array<std::string_view, 13> kGgufValueTypes = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};

// The same with the type as an argument: calls visit.operator()<T>() for the T of a scalar's number.
template <class Visit>
bool with_gguf_scalar(std::uint32_t type, Visit&& visit) {
  switch (type) {
    case 0:
      return visit.template operator()<std::uint8_t>(), true;
    case 1:
      return visit.template operator()<std::int8_t>(), true;
    case 2:
      return visit.template operator()<std::uint16_t>(), true;
    case 3:
      return visit.template operator()<std::int16_t>(), true;
    case 4:
      return visit.template operator()<std::uint32_t>(), true;
    case 5:
      return visit.template operator()<std::int32_t>(), true;
    case 6:
      return visit.template operator()<float>(), true;
    case 7:
      return visit.template operator()<bool>(), true;
    case kGgufString:
      return visit.template operator()<std::string>(), true;
    case 10:
      return visit.template operator()<std::uint64_t>(), true;
    case 11:
      return visit.template operator()<std::int64_t>(), true;
    case 12:
      return visit.template operator()<double>(), true;
    default:
      return false;
  }
}

template <class T>
inline constexpr bool kIsGgufArray = false;
template <class T>
inline constexpr bool kIsGgufArray<std::vector<T>> = true;

template <class T>
constexpr std::uint32_t gguf_value_type() {
  if constexpr (kIsGgufArray<T>) {
    return kGgufArray;
  } else {
    std::uint32_t number = 0;
    for (std::uint32_t type = 0; type < kGgufValueTypes.size(); ++type)
      with_gguf_scalar(type, [&]<class U>() {
        if constexpr (std::is_same_v<T, U>) number = type;
      });
    return number;
  }
}

}  // namespace thimble
