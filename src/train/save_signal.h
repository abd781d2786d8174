// SIGUSR1: "save now". The loop finishes its step, writes a checkpoint and goes on.
//
//   SaveSignal save;                 // installs the handler; the old one comes back when it goes
//   if (save.taken()) checkpoint();  // once per signal
#pragma once

namespace thimble {

class SaveSignal {
 public:
  SaveSignal();
  ~SaveSignal();
  SaveSignal(const SaveSignal&) = delete;
  SaveSignal& operator=(const SaveSignal&) = delete;

  bool taken() const;  // was there a signal since the last call?
};

}  // namespace thimble
