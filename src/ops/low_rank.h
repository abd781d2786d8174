// low_rank: adds a low-rank adapter (LoRA) to the result of a linear
//
//   y = x + scale h_p w_p^T          for the columns of each adapted part p
//
//   x  [N, O]    result of the linear     h  [N, A R]  its input times the adapters' first matrices
//   y  [N, O]                             w  [O', R]   the adapters' second matrices
//
// backward: dx <- dy    dh_p <- scale dy_p w_p    dw_p += scale dy_p^T h_p
//
// The linear may be a group of up to three (q;k;v or gate;up), whose results are parts of x:
// columns [0, widths[0]), the next widths[1], and so on. A of them have an adapter. w holds their
// rows in this order, O' in total, and h their R columns each. R is the rank.
//
// The sums of an element of y run over R in order, so forward has the same bits for any other rows
// of the call and any number of threads.
#pragma once

#include <array>
#include <cstdint>

#include "graph/op.h"
#include "graph/tape.h"

namespace thimble {

struct LowRankAttributes {
  float scale = 1;
  std::int32_t rank = 1;
  std::array<std::int32_t, 3> widths = {};  // of the parts; 0: no such part
  std::uint32_t adapted = 1;                // bit p: part p has an adapter
};

struct LowRank {
  Tensor x, h, w, y;
  Tensor dy, dx, dh, dw;
  bool add_dx, add_dh;
  LowRankAttributes at;

  explicit LowRank(const OpCall& c)
      : x(c.input(0)),
        h(c.input(1)),
        w(c.input(2)),
        y(c.output(0)),
        dy(c.d_output(0)),
        dx(c.d_input(0)),
        dh(c.d_input(1)),
        dw(c.d_input(2)),
        add_dx(c.adds(0)),
        add_dh(c.adds(1)),
        at(c.attributes.as<LowRankAttributes>()) {}

  // Calls visit(first column of x, count, first column of h, first row of w) for each adapted part.
  template <class Visit>
  void each_part(Visit visit) const {
    std::int64_t column = 0, row = 0, h_column = 0;
    for (std::size_t p = 0; p < at.widths.size(); column += at.widths[p++]) {
      if ((at.adapted >> p & 1u) == 0) continue;
      visit(column, std::int64_t{at.widths[p]}, h_column, row);
      row += at.widths[p];
      h_column += at.rank;
    }
  }
};

namespace cpu {
extern const Kernels kLowRank;
}  // namespace cpu

namespace op {

extern const OpDefinition kLowRank;

Value low_rank(Tape& tape, Value x, Value h, Value weight, const LowRankAttributes& attributes);

}  // namespace op

}  // namespace thimble
