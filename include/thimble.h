/* The C interface of thimble: the stable surface for other languages.
 *
 *     thimble_model *model;
 *     thimble_session *session;
 *     uint64_t id;
 *     if (thimble_open("chat.thimble", NULL, &model) != THIMBLE_OK) return complain();
 *     thimble_start(model, 1, &session);
 *     thimble_submit(session, "{\"prompt\": \"Once\", \"max_tokens\": 80}", THIMBLE_TEXT, &id);
 *     for (thimble_text events; thimble_step(session, &events) == THIMBLE_OK && events.size > 2;)
 *       show(events.data, events.size);                 // JSON: [{"text": " upon", ...}]
 *     thimble_stop(session);
 *     thimble_close(model);
 *
 * Every function that can fail returns a status; thimble_last_error() then has the message of this
 * thread's last failure. No function throws, exits or prints.
 *
 * Text is UTF-8 with a length; THIMBLE_TEXT in place of a length means "up to the NUL". Text that a
 * function returns is also terminated by a NUL. It is valid until the next call by the same thread.
 *
 * Threads: handles are independent. One model may have many sessions, in different threads: their
 * steps run one after the other. Two threads must not use the same session at the same time; the
 * second gets THIMBLE_BUSY. Closing a handle while another thread uses it is THIMBLE_BUSY where it
 * can be detected, and otherwise an error of the caller. Callbacks are called by the thread that
 * made the call, if nothing else is said, and must not call thimble with the same handle.
 *
 * Processes: the library belongs to the first process that uses it. After fork(), calls in the
 * child fail with THIMBLE_INVALID, because threads do not survive a fork.
 *
 * Versions are semantic: within a major version, functions are only added and JSON objects only
 * gain members. Before 1.0, a minor version may change both.
 *
 * docs/reference/c.md lists every wrong use and its status.
 */
#ifndef THIMBLE_H
#define THIMBLE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define THIMBLE_VERSION_MAJOR 0
#define THIMBLE_VERSION_MINOR 1
#define THIMBLE_VERSION_PATCH 0
#define THIMBLE_VERSION \
  (THIMBLE_VERSION_MAJOR * 1000000 + THIMBLE_VERSION_MINOR * 1000 + THIMBLE_VERSION_PATCH)

/* In place of a length: the text ends at its NUL. */
#define THIMBLE_TEXT ((size_t)-1)

typedef enum thimble_status {
  THIMBLE_OK = 0,
  THIMBLE_FAILED = 1,      /* a file, the memory, the system */
  THIMBLE_INVALID = 2,     /* a wrong argument: a null handle, an unknown setting */
  THIMBLE_DIVERGED = 3,    /* training diverged; what it learned before is in the run */
  THIMBLE_BUSY = 4,        /* another thread uses this handle, or it has sessions */
  THIMBLE_TOO_SMALL = 5,   /* the caller's array; the needed size has been stored */
  THIMBLE_INTERRUPTED = 130 /* by thimble_interrupt(), by Ctrl-C, or by a callback */
} thimble_status;

typedef struct thimble_model thimble_model;     /* weights and tokenizer */
typedef struct thimble_session thimble_session; /* requests in progress and their KV cache */
typedef struct thimble_training thimble_training; /* a run, step by step */
typedef struct thimble_file thimble_file;       /* bytes in memory that have a path */

typedef struct thimble_text {
  const char *data;
  size_t size; /* without the NUL */
} thimble_text;

typedef struct thimble_error {
  thimble_status status;
  const char *message; /* a sentence: what was expected and what was found */
  const char *hint;    /* what to do; may be empty */
  const char *field;   /* the setting that is wrong, such as "temperature"; may be empty */
} thimble_error;

/* Of this thread's last call that failed. Never NULL. */
const thimble_error *thimble_last_error(void);

/* THIMBLE_VERSION of the library. Its major version must be that of the header. */
uint32_t thimble_version(void);

/* Ends the commands of this process as Ctrl-C does: training saves its state first. May be called
 * by any thread and by signal handlers. */
void thimble_interrupt(void);

/* ---- models */

/* Opens a run folder, checkpoint, artifact, GGUF file or Hugging Face folder. `options` is NULL
 * or a JSON object: device ("cpu", "cuda" or "auto"), dtype ("auto", "f32", "bf16" or "f16"),
 * threads. */
thimble_status thimble_open(const char *path, const char *options, thimble_model **model);
/* Opens a model from the bytes of a checkpoint, artifact or GGUF file. They are copied. */
thimble_status thimble_open_bytes(const void *bytes, size_t size, const char *options,
                                  thimble_model **model);
/* NULL is allowed. A model that has sessions or is in use stays open: THIMBLE_BUSY. */
thimble_status thimble_close(thimble_model *model);

/* A JSON object: path, format, architecture, parameters, context, vocabulary, layers, dim, bos
 * and eos (token ids or null), chat, tokenizer, dtype, device, config (TOML). */
thimble_status thimble_facts(thimble_model *model, thimble_text *facts);

/* Text to token ids. `special`: write the marks around a text (usually bos), and read the names of
 * special tokens in it. Stores the number of tokens in *count, also if `capacity` is too small. */
thimble_status thimble_encode(thimble_model *model, const char *text, size_t size, int special,
                              int32_t *tokens, size_t capacity, size_t *count);
/* Token ids to text. `special`: write special tokens by name. The text may be invalid UTF-8. */
thimble_status thimble_decode(thimble_model *model, const int32_t *tokens, size_t count,
                              int special, thimble_text *text);

/* The logits after each token: `count` rows of the vocabulary's size. `size` is the size of
 * `logits` in floats. */
thimble_status thimble_logits(thimble_model *model, const int32_t *tokens, size_t count,
                              float *logits, size_t size);
/* The natural log-probability of each token after the first, given those before it: count - 1
 * values. */
thimble_status thimble_logprobs(thimble_model *model, const int32_t *tokens, size_t count,
                                float *logprobs, size_t size);

typedef struct thimble_score {
  double nats;     /* sum over all scored tokens */
  uint64_t tokens; /* scored */
  uint64_t bytes;  /* of the text that they stand for */
} thimble_score;
/* Returns 0 to continue. `done` counts tokens. */
typedef int (*thimble_progress)(void *user, uint64_t done, uint64_t total);
/* How well the model predicts a text: nats / ln 2 / bytes is its bits per byte, as printed by
 * `thimble eval`. `progress` may be NULL. */
thimble_status thimble_score_text(thimble_model *model, const char *text, size_t size,
                                  thimble_progress progress, void *user, thimble_score *score);

/* ---- generating text */

/* `slots` sequences are computed at a time; further ones wait. */
thimble_status thimble_start(thimble_model *model, uint32_t slots, thimble_session **session);
/* NULL is allowed. Ends the session's requests. */
thimble_status thimble_stop(thimble_session *session);

/* Queues a request: the body of a completion request of the HTTP API, with "prompt" (text or
 * tokens) or "messages", and any of its settings (docs/reference/http.md). */
thimble_status thimble_submit(thimble_session *session, const char *request, size_t size,
                              uint64_t *id);
/* Computes the next token of every request. `events` is a JSON array, empty ("[]") when no
 * request is left. Each element: request, choice, text, tokens, logprobs if requested; at the
 * end of a choice also finish_reason and usage. */
thimble_status thimble_step(thimble_session *session, thimble_text *events);
/* thimble_step() until no request is left. `events` receives the array of each step; a result other
 * than 0 ends the call with THIMBLE_INTERRUPTED, and the next call continues. */
typedef int (*thimble_events)(void *user, const char *json, size_t size);
thimble_status thimble_run(thimble_session *session, thimble_events events, void *user);
/* Ends a request. Unknown and finished requests are ignored. */
thimble_status thimble_cancel(thimble_session *session, uint64_t id);
/* A step that processes a long prompt calls `poll` between the parts of the prompt. If the
 * result is not 0, the step ends with THIMBLE_INTERRUPTED, and the next step continues. NULL: no
 * calls. */
typedef int (*thimble_poll)(void *user);
thimble_status thimble_set_poll(thimble_session *session, thimble_poll poll, void *user);

/* ---- commands and training */

typedef struct thimble_watch {
  void *user;
  /* A line for people. May be NULL. */
  void (*log)(void *user, const char *line, size_t size);
  /* Of training, a JSON object: {"event": "step", step, train_loss, grad_norm, lr_multiplier,
   * tokens, seconds} after each step, {"event": "validation", step, val_loss, val_bpb, best},
   * and {"event": "saved", step} after a checkpoint. A result other than 0 ends the run after
   * its state is saved. May be NULL. */
  int (*event)(void *user, const char *json, size_t size);
} thimble_watch;
/* Runs a command of the program in this process: {"train", "--data", "book.txt", "-o",
 * "runs/book"}. `output` is what the command prints, JSON if --json is among the words. One
 * command at a time: others wait. `watch` and `output` may be NULL. */
thimble_status thimble_command(const char *const *words, size_t count, const thimble_watch *watch,
                               thimble_text *output);

/* Makes a copy of bytes readable under a path that ends in `name`, for any argument that is a path:
 * --data, --config, --tokenizer. The end of the name tells the format, as that of a file does. */
thimble_status thimble_file_open(const char *name, const void *bytes, size_t size,
                                 thimble_file **file, thimble_text *path);
/* NULL is allowed. Frees the bytes; the path does not exist any more. */
thimble_status thimble_file_close(thimble_file *file);

/* Begins a run: `words` are options of `thimble train`, `config` settings as TOML or as a JSON
 * object, as in docs/reference/config.md, or NULL. Computes until the first event. `watch->log`
 * is called by the thread of the run, `watch->event` is not called. One run at a time, and no
 * commands until it has ended: THIMBLE_BUSY. */
thimble_status thimble_train_begin(const char *const *words, size_t count, const char *config,
                                   size_t config_size, const thimble_watch *watch,
                                   thimble_training **training);
/* Computes until the next event and returns it, as thimble_watch's; empty when the run has ended.
 * THIMBLE_INTERRUPTED after Ctrl-C or thimble_interrupt(): the state is saved. */
thimble_status thimble_train_next(thimble_training *training, thimble_text *event);
/* Writes a checkpoint of the steps made so far; after step 0 without a validation, of the first
 * step. */
thimble_status thimble_train_save(thimble_training *training);
/* Ends the run, saves its state and frees the handle. `result` is what `thimble train --json`
 * prints, and may be NULL. NULL as `training` is allowed. The status is that of the run. */
thimble_status thimble_train_end(thimble_training *training, thimble_text *result);

#ifdef __cplusplus
}
#endif

#endif
