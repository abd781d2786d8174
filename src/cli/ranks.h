// Commands that several ranks run together: `mpirun -n 4 thimble train ...`.
#pragma once

#include <memory>

#include "base/interrupt.h"
#include "cli/console.h"
#include "cli/option.h"
#include "dist/communicator.h"
#include "formats/model_file.h"
#include "train/data_settings.h"

namespace thimble {

class Arguments;

// --rank-timeout: how long a rank waits for another.
Option rank_timeout_option();

// The ranks that mpirun or srun started, joined; one where this process was started by itself. What fails here fails
// before ranks can talk: the first one says it, the others some seconds later, if they still can.
std::shared_ptr<Communicator> ranks_from(const Arguments& arguments);

// Ranks that were told different things do not get far: said at once, and by name.
void check_same_command(Communicator& ranks, const Arguments& arguments);

// What is said before ranks have met is said by the first, who ends the others; a rank that alone has something to say
// speaks some seconds later.
void let_first_rank_speak();

// As tokenizer_from; a tokenizer that is learned is learned by the first rank, for all.
std::shared_ptr<const Tokenizer> tokenizer_on_all(Communicator& ranks, const Arguments& arguments,
                                                  const DataSettings& data, const ModelFile* init,
                                                  Console& console, const Interrupt& interrupt);

}  // namespace thimble
