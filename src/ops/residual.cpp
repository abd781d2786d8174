#include "ops/residual.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "ops/definition.h"

namespace thimble {

namespace {

// Checks that a scale has one value, or one per channel.
void check_scale(std::string_view op, const ShapeCheck& in, std::size_t i, std::int64_t rows,
                 std::int64_t width) {
  const Shape& shape = in.full(i, "scale");
  check(shape.rows == rows && (shape.cols == 1 || shape.cols == width),
        "[{}] expected scale [{}, 1] or [{}, {}], got {}", op, rows, rows, width, shape.text());
}

std::vector<Shape> add_scaled_shapes(std::span<const Shape> in, const Attributes&) {
  const ShapeCheck c("add_scaled", in, 2, 3);
  const Shape& x = c.rows(0, "x");
  c.rows(1, "branch", x.rows, x.cols);
  if (c.has(2)) check_scale("add_scaled", c, 2, 1, x.cols);
  return {x};
}

std::vector<Shape> residual_mix_shapes(std::span<const Shape> in, const Attributes&) {
  const ShapeCheck c("residual_mix", in, 3, 3);
  const Shape& x = c.rows(0, "x");
  c.rows(1, "x0", x.rows, x.cols);
  check_scale("residual_mix", c, 2, 2, x.cols);
  return {x};
}

std::vector<Shape> residual_norm_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const ShapeCheck c("residual_norm", in, 2, 4);
  const Shape& x = c.rows(0, "x");
  c.rows(1, "branch", x.rows, x.cols);
  if (c.has(2)) check_scale("residual_norm", c, 2, 1, x.cols);
  c.optional_vector(3, "weight", x.cols);
  check(attributes.as<ResidualNormAttributes>().eps >= 0, "[residual_norm] eps must not be negative");
  return {x, x, statistic(x)};
}

std::vector<Shape> gated_skip_shapes(std::span<const Shape> in, const Attributes&) {
  const ShapeCheck c("gated_skip", in, 4, 4);
  const Shape& x = c.rows(0, "x");
  c.rows(1, "skip", x.rows, x.cols);
  c.vector(2, "weight", x.cols);
  c.vector(3, "gate", x.cols);
  return {x};
}

struct AddScaledFormula {
  using View = AddScaled;

  template <class T>
  static void forward(const AddScaled& op) {
    for (std::int64_t n = 0; n < op.y.rows; ++n)
      for (std::int64_t c = 0; c < op.y.cols; ++c)
        op.y.row<T>(n)[c] = op.x.row<T>(n)[c] + T(op.factor) * scale<T>(op, c) * op.branch.row<T>(n)[c];
  }

  template <class T>
  static void backward(const AddScaled& op) {
    for (std::int64_t n = 0; n < op.dy.rows; ++n)
      for (std::int64_t c = 0; c < op.dy.cols; ++c) {
        const T dy = op.dy.row<T>(n)[c];
        if (op.dx) store(op.dx.row<T>(n)[c], dy, op.add_dx);
        if (op.dbranch) store(op.dbranch.row<T>(n)[c], T(op.factor) * scale<T>(op, c) * dy, op.add_dbranch);
        if (op.dscale)
          op.dscale.row<T>(0)[op.dscale.cols == 1 ? 0 : c] += T(op.factor) * dy * op.branch.row<T>(n)[c];
      }
  }

 private:
  template <class T>
  static T scale(const AddScaled& op, std::int64_t c) {
    return scale_at(op.scale ? op.scale.row<T>(0) : nullptr, op.scale.cols, c);
  }
};

struct ResidualMixFormula {
  using View = ResidualMix;

  template <class T>
  static void forward(const ResidualMix& op) {
    for (std::int64_t n = 0; n < op.y.rows; ++n)
      for (std::int64_t c = 0; c < op.y.cols; ++c)
        op.y.row<T>(n)[c] = mix<T>(op, 0, c) * op.x.row<T>(n)[c] + mix<T>(op, 1, c) * op.x0.row<T>(n)[c];
  }

  template <class T>
  static void backward(const ResidualMix& op) {
    for (std::int64_t n = 0; n < op.dy.rows; ++n)
      for (std::int64_t c = 0; c < op.dy.cols; ++c) {
        const T dy = op.dy.row<T>(n)[c];
        if (op.dx) store(op.dx.row<T>(n)[c], mix<T>(op, 0, c) * dy, op.add_dx);
        if (op.dx0) store(op.dx0.row<T>(n)[c], mix<T>(op, 1, c) * dy, op.add_dx0);
        if (!op.dmix) continue;
        const std::int64_t column = op.dmix.cols == 1 ? 0 : c;
        op.dmix.row<T>(0)[column] += dy * op.x.row<T>(n)[c];
        op.dmix.row<T>(1)[column] += dy * op.x0.row<T>(n)[c];
      }
  }

 private:
  template <class T>
  static T mix(const ResidualMix& op, std::int64_t which, std::int64_t c) {
    return scale_at(op.mix.row<T>(which), op.mix.cols, c);
  }
};

struct ResidualNormFormula {
  using View = ResidualNorm;

  template <class T>
  static void forward(const ResidualNorm& op) {
    const std::int64_t C = op.x.cols;
    for (std::int64_t n = 0; n < op.x.rows; ++n) {
      T* s = op.s.row<T>(n);
      T squares = 0;
      for (std::int64_t c = 0; c < C; ++c) {
        s[c] = op.x.row<T>(n)[c] + scale<T>(op, c) * op.branch.row<T>(n)[c];
        squares += s[c] * s[c];
      }
      const T rstd = T(1) / std::sqrt(squares / T(C) + T(op.at.eps));
      for (std::int64_t c = 0; c < C; ++c)
        op.h.row<T>(n)[c] = T(op.at.norm_scale) * s[c] * rstd * (op.w ? op.w.row<T>(0)[c] : T(1));
      *op.rstd.row<T>(n) = rstd;
    }
  }

  template <class T>
  static void backward(const ResidualNorm& op) {
    const std::int64_t C = op.s.cols;
    for (std::int64_t n = 0; n < op.s.rows; ++n) {
      const T* s = op.s.row<T>(n);
      const T* dh = op.dh.row<T>(n);
      const T rstd = *op.rstd.row<T>(n);
      const auto g = [&](std::int64_t c) {
        return T(op.at.norm_scale) * dh[c] * (op.w ? op.w.row<T>(0)[c] : T(1));
      };
      T mean = 0;
      for (std::int64_t c = 0; c < C; ++c) mean += g(c) * s[c] * rstd / T(C);
      for (std::int64_t c = 0; c < C; ++c) {
        if (op.dw) op.dw.row<T>(0)[c] += T(op.at.norm_scale) * dh[c] * s[c] * rstd;
        const T ds = (op.ds ? op.ds.row<T>(n)[c] : T(0)) + rstd * (g(c) - s[c] * rstd * mean);
        if (op.dx) store(op.dx.row<T>(n)[c], ds, op.add_dx);
        if (op.dbranch) store(op.dbranch.row<T>(n)[c], scale<T>(op, c) * ds, op.add_dbranch);
        if (op.dscale) op.dscale.row<T>(0)[op.dscale.cols == 1 ? 0 : c] += ds * op.branch.row<T>(n)[c];
      }
    }
  }

 private:
  template <class T>
  static T scale(const ResidualNorm& op, std::int64_t c) {
    return scale_at(op.scale ? op.scale.row<T>(0) : nullptr, op.scale.cols, c);
  }
};

struct GatedSkipFormula {
  using View = GatedSkip;

  template <class T>
  static void forward(const GatedSkip& op) {
    for (std::int64_t n = 0; n < op.y.rows; ++n)
      for (std::int64_t c = 0; c < op.y.cols; ++c) {
        const T g = sigmoid(op.gate.row<T>(0)[c]);
        op.y.row<T>(n)[c] = g * op.x.row<T>(n)[c] + (T(1) - g) * op.w.row<T>(0)[c] * op.skip.row<T>(n)[c];
      }
  }

  template <class T>
  static void backward(const GatedSkip& op) {
    for (std::int64_t n = 0; n < op.dy.rows; ++n)
      for (std::int64_t c = 0; c < op.dy.cols; ++c) {
        const T g = sigmoid(op.gate.row<T>(0)[c]), w = op.w.row<T>(0)[c], dy = op.dy.row<T>(n)[c];
        const T x = op.x.row<T>(n)[c], skip = op.skip.row<T>(n)[c];
        if (op.dx) store(op.dx.row<T>(n)[c], g * dy, op.add_dx);
        if (op.dskip) store(op.dskip.row<T>(n)[c], (T(1) - g) * w * dy, op.add_dskip);
        if (op.dw) op.dw.row<T>(0)[c] += (T(1) - g) * dy * skip;
        if (op.dgate) op.dgate.row<T>(0)[c] += g * (T(1) - g) * dy * (x - w * skip);
      }
  }
};

}  // namespace

constinit const OpDefinition op::kAddScaled = {
    .name = "add_scaled",
    .inputs = {{{"x", is::differentiable | is::passes_gradient},
                {"branch", is::differentiable | is::saved},
                {"scale", is::differentiable | is::parameter | is::saved}}},
    .outputs = {{{.name = "y"}}},
    .shapes = add_scaled_shapes,
    .reference = &reference_kernels<AddScaledFormula>,
    .cpu = &cpu::kAddScaled};

constinit const OpDefinition op::kResidualMix = {
    .name = "residual_mix",
    .inputs = {{{"x", is::differentiable | is::saved},
                {"x0", is::differentiable | is::saved},
                {"mix", is::differentiable | is::parameter | is::saved}}},
    .outputs = {{{.name = "y"}}},
    .shapes = residual_mix_shapes,
    .reference = &reference_kernels<ResidualMixFormula>,
    .cpu = &cpu::kResidualMix};

constinit const OpDefinition op::kResidualNorm = {
    .name = "residual_norm",
    .inputs = {{{"x", is::differentiable},
                {"branch", is::differentiable | is::saved},
                {"scale", is::differentiable | is::parameter | is::saved},
                {"weight", is::differentiable | is::parameter | is::saved}}},
    .outputs = {{{.name = "stream", .saved = true},
                 {.name = "normed", .must_be_read = true},
                 {.name = "rstd", .saved = true}}},
    .shapes = residual_norm_shapes,
    .reference = &reference_kernels<ResidualNormFormula>,
    .cpu = &cpu::kResidualNorm};

constinit const OpDefinition op::kGatedSkip = {
    .name = "gated_skip",
    .inputs = {{{"x", is::differentiable | is::saved},
                {"skip", is::differentiable | is::saved},
                {"weight", is::differentiable | is::parameter | is::saved},
                {"gate", is::differentiable | is::parameter | is::saved}}},
    .outputs = {{{.name = "y"}}},
    .shapes = gated_skip_shapes,
    .reference = &reference_kernels<GatedSkipFormula>,
    .cpu = &cpu::kGatedSkip};

Value op::add_scaled(Tape& tape, Value x, Value branch, Value scale, float factor) {
  return tape.record(op::kAddScaled, {x, branch, scale}, AddScaledAttributes{factor})[0];
}

Value op::residual_mix(Tape& tape, Value x, Value x0, Value mix) {
  return tape.record(op::kResidualMix, {x, x0, mix})[0];
}

op::Residual op::residual_norm(Tape& tape, Value x, Value branch, Value scale, Value weight, float eps,
                               float norm_scale) {
  const auto out =
      tape.record(op::kResidualNorm, {x, branch, scale, weight}, ResidualNormAttributes{eps, norm_scale});
  return {out[0], out[1]};
}

Value op::gated_skip(Tape& tape, Value x, Value skip, Value weight, Value gate) {
  return tape.record(op::kGatedSkip, {x, skip, weight, gate})[0];
}

}  // namespace thimble
