// The reference kernels as rows of the op table.
#pragma once

#include "ops/op.h"

namespace thimble::ref {

Kernels kernels(Op op);

}  // namespace thimble::ref
