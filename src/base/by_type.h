// For std::visit: one lambda for each type of a variant.
//
//   std::visit(ByType{[](int n) { ... }, [](const std::string& text) { ... }}, value);
#pragma once

namespace thimble {

template <class... Functions>
struct ByType : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
ByType(Functions...) -> ByType<Functions...>;

}  // namespace thimble
