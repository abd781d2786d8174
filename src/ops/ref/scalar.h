// What the reference needs of a number, for T = float, double and std::complex<double>.
//
// The complex-step derivative (f(x + ih) has imaginary part h f'(x), with no cancellation) needs analytic
// formulas; comparisons look at the real part, which is right away from the kink.
#pragma once

#include <cmath>
#include <complex>

namespace thimble::ref {

inline float real_part(float x) {
  return x;
}
inline double real_part(double x) {
  return x;
}
inline double real_part(std::complex<double> x) {
  return x.real();
}

// '=' or '+=', as the planner says.
template <class T>
void store(T& place, T value, bool add) {
  place = add ? place + value : value;
}

template <class T>
T sigmoid(T x) {
  return T(1) / (T(1) + std::exp(-x));
}

// y[i] for a vector that is absent (1), one shared value, or one value per i.
template <class T>
T scale_at(const T* scale, long cols, long i) {
  return scale ? scale[cols == 1 ? 0 : i] : T(1);
}

}  // namespace thimble::ref
