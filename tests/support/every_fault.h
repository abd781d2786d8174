// One writer, and everything that can go wrong with the disk below it.
//
//   expect_survives_every_fault({.folder = folder.path(), .write = [&](FileOps& ops) { write_it(ops); }, .named = "model"});
//
// A clean run counts the operations. Then each of them fails in turn, with EIO and with ENOSPC; the disk fills up at each
// and stays full; it dies at each; and the power goes after each. Every time: under every name is a content that a clean
// run puts there, or what was there before; the error names the file; nothing temporary stays behind (a dead disk and
// lost power excepted); no file stays open; and the next attempt ends with what a clean run ends with.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/file_ops.h"

namespace thimble {

struct FaultyWriting {
  std::filesystem::path folder;                  // the disk: what is in it is there before
  std::function<void(FileOps& ops)> write;       // must do the same every time
  std::function<void(FileOps& ops)> again = {};  // after a fault; empty: write
  std::string named;                             // every error says this
  std::vector<std::string> grows = {};           // parts of names: files that grow in place, or tell the time
  std::vector<std::string> may_stay = {};        // parts of names: hidden files that do no harm
  std::function<void()> expect_opens = {};       // after every fault: what is there can be read
  bool exchanges = true;                         // does the file system exchange two names?
  int every = 1;                                 // operations from one that fails to the next
  std::size_t power_states = 9;                  // that are looked at after each loss of power
};

void expect_survives_every_fault(const FaultyWriting& writing);

}  // namespace thimble
