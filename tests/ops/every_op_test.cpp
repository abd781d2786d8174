// Instantiates the tests over the op table, for all ops.
#include "ops/op_harness.h"

namespace thimble {

INSTANTIATE_TEST_SUITE_P(, EveryOp, ::testing::ValuesIn([] {
                           std::vector<Op> ops;
                           for (const OpDefinition& def : every_op()) ops.push_back(&def);
                           return ops;
                         }()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace thimble
