/* Opens a model and continues a text, token by token.
 *
 *     cc generate.c -lthimble -o generate
 *     ./generate chat.thimble "Once upon a time"
 */
#include <stdio.h>
#include <string.h>

#include "thimble.h"

static int complain(void) {
  const thimble_error *error = thimble_last_error();
  fprintf(stderr, "error: %s\n", error->message);
  if (error->hint[0]) fprintf(stderr, "hint: %s\n", error->hint);
  return 1;
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s MODEL PROMPT\n", argv[0]);
    return 2;
  }
  thimble_model *model = NULL;
  thimble_session *session = NULL;
  if (thimble_open(argv[1], NULL, &model) != THIMBLE_OK) return complain();
  if (thimble_start(model, 1, &session) != THIMBLE_OK) return complain();

  /* The prompt as tokens, so that it needs no escapes in JSON. */
  int32_t tokens[512];
  size_t count = 0;
  if (thimble_encode(model, argv[2], strlen(argv[2]), 1, tokens, 512, &count) != THIMBLE_OK) return complain();
  char request[8192];
  int end = snprintf(request, sizeof request, "{\"max_tokens\": 40, \"temperature\": 0, \"prompt\": [");
  for (size_t i = 0; i < count; ++i)
    end += snprintf(request + end, sizeof request - (size_t)end, i ? ", %d" : "%d", (int)tokens[i]);
  snprintf(request + end, sizeof request - (size_t)end, "]}");

  uint64_t id = 0;
  if (thimble_submit(session, request, THIMBLE_TEXT, &id) != THIMBLE_OK) return complain();
  for (;;) {
    thimble_text events;
    if (thimble_step(session, &events) != THIMBLE_OK) return complain();
    if (events.size == 2) break; /* "[]": done */
    puts(events.data);
  }
  thimble_stop(session);
  thimble_close(model);
  return 0;
}
