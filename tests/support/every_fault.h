// Tests a writer against every fault of the disk.
//
//   expect_survives_every_fault({.folder = folder.path(),
//                                .write = [&](FileOps& ops) { write_it(ops); },
//                                .named = "model"});
//
// A clean run counts the operations. Then each operation fails in turn with EIO and with ENOSPC,
// the disk becomes full at each and stays full, dies at each, and loses power after each. Every
// time the test checks that each file has a content that a clean run or the initial state has; that
// the error names the file; that no temporary file is left (except after death or power loss); that
// no file stays open; and that the next attempt ends like a clean run.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/file_ops.h"

namespace thimble {

struct FaultyWriting {
  std::filesystem::path folder;                  // its files are the initial state of the disk
  std::function<void(FileOps& ops)> write;       // must do the same every time
  std::function<void(FileOps& ops)> again = {};  // runs after a fault; empty: write
  std::string named;                             // every error message must contain this
  std::vector<std::string> grows = {};           // name parts of files that change every time
  std::vector<std::string> may_stay = {};        // name parts of hidden files that may stay
  std::function<void()> expect_opens = {};       // runs after every fault, to read the files
  bool exchanges = true;                         // whether the file system can exchange two names
  int every = 1;                                 // inject faults at every n-th operation
  std::size_t power_states = 9;                  // number of states checked per power loss
};

void expect_survives_every_fault(const FaultyWriting& writing);

}  // namespace thimble
