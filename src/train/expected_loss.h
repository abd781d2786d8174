// The validation loss to expect from a run, in bits per byte, before it starts.
//
//   L  = H (E + A / N^a + B / D'^b)          H = k difficulty^h
//   D' = U + U R (1 - exp(-(D / U - 1) / R))  for D > U, else D
//
// N parameters; D bytes of text read, counting repeats; U different bytes of training text. D' is
// what the repeats are worth (Muennighoff et al. 2023): the second and third pass count almost as
// much as new text, further ones add little. The difficulty is the loss of a small reference model
// after a fixed number of steps on a sample of the text; train/run_plan.h measures it. The
// constants are fitted to 45 runs of 0.6 M to 95 M parameters; docs/lab/2026-11-scaling.md has the
// runs, the fit and its errors on other texts.
#pragma once

#include <cstdint>

namespace thimble {

struct LossFacts {
  double parameters = 0;
  double bytes_read = 0;       // with repeats
  double different_bytes = 0;  // of the training text
  double difficulty = 0;       // bits per byte of the reference model; 0: unknown
  bool is_estimated = false;   // difficulty: from n-grams, without training the reference model
};

struct ExpectedLoss {
  double bits_per_byte = 0;  // 0: unknown
  double low = 0, high = 0;  // about nine of ten runs end between them
};

// What `bytes_read` bytes are worth if only `different_bytes` of them are different.
double effective_bytes(double bytes_read, double different_bytes);

// Without a difficulty, nothing is known.
ExpectedLoss expected_loss(const LossFacts& facts);

}  // namespace thimble
