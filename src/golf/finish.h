// The end of a golf run: files, and what they score when they are read back.
#pragma once

#include <filesystem>

#include "base/files.h"
#include "data/token_set.h"
#include "golf/lines.h"
#include "golf/run.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

struct GolfFinish {
  const GolfSettings& golf;
  const GolfSurroundings& around;
  const Tokenizer& tokenizer;
  const TokenSet& val;
  std::filesystem::path checkpoint;  // the last one
  DType compute;
  GolfLines& lines;
  GolfLog& log;
  FileOps& ops;
};

// What the int8 file scores.
Score finish_golf(const GolfFinish& finish);

}  // namespace thimble
