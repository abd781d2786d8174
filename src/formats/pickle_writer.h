// Writes Python pickles of texts, numbers, tuples, dicts and named globals: what files of arrays are made of.
//
//   PickleWriter pickle(4);
//   pickle.begin_dict();
//   pickle.text("step"); pickle.integer(3);
//   pickle.end_dict();
//   std::string bytes = std::move(pickle).finish();
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "formats/little_endian.h"

namespace thimble {

class PickleWriter {
 public:
  explicit PickleWriter(std::uint8_t protocol) : out_{'\x80', static_cast<char>(protocol)} {}

  void none() { out_ += 'N'; }
  void boolean(bool value) { out_ += value ? '\x88' : '\x89'; }
  void integer(std::int64_t value) {
    if (value >= 0 && value < 256) {
      out_ += 'K';
      append_number(out_, static_cast<std::uint8_t>(value));
    } else {
      check(value >= std::numeric_limits<std::int32_t>::min() &&
                value <= std::numeric_limits<std::int32_t>::max(),
            "[pickle] {} is beyond 32 bits", value);
      out_ += 'J';
      append_number(out_, static_cast<std::int32_t>(value));
    }
  }
  void text(std::string_view value) {
    out_ += 'X';
    append_number(out_, static_cast<std::uint32_t>(value.size()));
    out_ += value;
  }
  void bytes(std::span<const std::byte> value) {
    out_ += 'B';
    append_number(out_, static_cast<std::uint32_t>(value.size()));
    out_.append(reinterpret_cast<const char*>(value.data()), value.size());
  }

  void mark() { out_ += '('; }
  void tuple() { out_ += 't'; }  // of what follows the mark
  template <class... Parts>
  void tuple_of(const Parts&... parts) {
    mark();
    (parts(), ...);
    tuple();
  }
  void begin_dict() { out_ += "}("; }
  void end_dict() { out_ += 'u'; }

  void global(std::string_view module, std::string_view name) {
    out_ += 'c';
    out_ += module;
    out_ += '\n';
    out_ += name;
    out_ += '\n';
  }
  void reduce() { out_ += 'R'; }
  void build() { out_ += 'b'; }
  void persistent() { out_ += 'Q'; }
  void put(std::uint8_t place) { (out_ += 'q') += static_cast<char>(place); }
  void get(std::uint8_t place) { (out_ += 'h') += static_cast<char>(place); }

  std::string finish() && {
    out_ += '.';
    return std::move(out_);
  }

 private:
  std::string out_;
};

}  // namespace thimble
