// A conversation, as OpenAI's clients send it.
#pragma once

#include "tokenizer/conversation.h"

namespace thimble {

class Fields;

// Reads "messages": roles system, developer (the same), user and assistant; contents are strings or arrays of text
// parts. The last message is not the assistant's. Throws ApiError, naming the field.
Conversation parse_messages(Fields& fields);

}  // namespace thimble
