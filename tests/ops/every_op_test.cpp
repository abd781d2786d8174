// The ops that tests over the table run on: all of them.
#include "ops/op_harness.h"

namespace thimble {

INSTANTIATE_TEST_SUITE_P(, EveryOp, ::testing::ValuesIn([] {
                           std::vector<Op> ops;
                           for (const OpDef& def : all_ops()) ops.push_back(def.op);
                           return ops;
                         }()),
                         [](const auto& info) { return std::string(op_def(info.param).name); });

}  // namespace thimble
