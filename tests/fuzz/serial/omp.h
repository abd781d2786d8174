// In place of OpenMP's: fuzzers run on one thread, where the same input takes the same way each time.
#pragma once

inline int omp_get_max_threads() {
  return 1;
}
inline int omp_get_thread_num() {
  return 0;
}
inline void omp_set_num_threads(int) {}
