#include "cli/commands.h"

int main(int argc, char** argv) {
  return thimble::run_thimble(argc, argv);
}
