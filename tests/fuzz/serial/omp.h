// Replaces OpenMP: fuzzers run on one thread, so that each input always takes the same path.
#pragma once

inline int omp_get_max_threads() {
  return 1;
}
inline int omp_get_thread_num() {
  return 0;
}
inline void omp_set_num_threads(int) {}
