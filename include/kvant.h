/* kvant: an LLM inference engine whose KV cache is always compressed, and whose attention runs on the compressed bytes.
 *
 * Made by cbindgen from crates/kvant-capi; docs/c.md is the manual, examples/c has programs.
 *
 * Status. A function that can fail returns a kvant_status, KVANT_STATUS_OK (0) if it did not. kvant_error_message() then says, for
 * the thread that called, what was wrong, where, and what to do. Nothing aborts, and nothing is thrown.
 *
 * Pointers. None may be NULL unless its description says so; NULL where none may be is an error and no crash. A pointer that is not
 * NULL has to lead to what its type says. Text is UTF-8 and ends with a zero. What is passed to a function is read or written
 * while it runs and not kept; what a function lends says for how long.
 *
 * Handles. What a function makes (`kvant_x **x`) is freed once by kvant_x_free, when no other call is using it. It is NULL where the
 * function has failed. Freeing NULL does nothing.
 *
 * Versions. Structures with a struct_size may grow: set it to sizeof, and everything else to zero, before filling one in. A library
 * that is older than the header refuses fields that it does not know unless they are zero. See kvant_abi_version.
 */

#ifndef KVANT_H
#define KVANT_H

#include <stddef.h>
#include <stdint.h>

// The version of the binary interface that this header describes. It is raised when something that was there changes its
// meaning; what is added does not raise it.
#define KVANT_ABI_VERSION 1

// How a call ended. Values keep their meaning for ever; later versions may add some.
typedef enum {
    // All is well.
    KVANT_STATUS_OK = 0,
    // A pointer is NULL where none may be, a size does not fit, a name is unknown.
    KVANT_STATUS_INVALID_ARGUMENT = 1,
    // The system refused to read or write a file.
    KVANT_STATUS_IO = 2,
    // A file is not what it should be, or of a kind that kvant does not read.
    KVANT_STATUS_BAD_FILE = 3,
    // What was asked for cannot be had with this model or cache.
    KVANT_STATUS_UNSUPPORTED = 4,
    // Memory, or the part of it that was allowed, is full.
    KVANT_STATUS_OUT_OF_MEMORY = 5,
    // The context is full.
    KVANT_STATUS_CONTEXT_FULL = 6,
    // A number is NaN, infinite or too large to be stored.
    KVANT_STATUS_BAD_NUMBER = 7,
    // Another thread, a pass or a callback is using the handle.
    KVANT_STATUS_BUSY = 8,
    // The buffer is too small; the count says how large it has to be.
    KVANT_STATUS_BUFFER_TOO_SMALL = 9,
    // A saved session or sequence belongs to another model or cache.
    KVANT_STATUS_MISMATCH = 10,
    // kvant has a bug. The handle can be freed, and nothing else.
    KVANT_STATUS_INTERNAL = 11,
} kvant_status;

// What a callback is told.
typedef enum {
    // done of total tokens of the prompt have been read.
    KVANT_EVENT_KIND_PREFILL = 0,
    // More text: whole characters.
    KVANT_EVENT_KIND_TEXT = 1,
    // In a chat: more of what is thought before the answer.
    KVANT_EVENT_KIND_REASONING = 2,
    // In a chat: a call of the function `name`; text has its arguments, a JSON object.
    KVANT_EVENT_KIND_TOOL_CALL = 3,
} kvant_event_kind;

// Why a generation ended.
typedef enum {
    // The model ended it.
    KVANT_FINISH_END_OF_TEXT = 0,
    // One of the stop strings came up.
    KVANT_FINISH_STOP = 1,
    // As many tokens as asked for.
    KVANT_FINISH_MAX_TOKENS = 2,
    // No room for another token.
    KVANT_FINISH_CONTEXT_FULL = 3,
    // The callback, or kvant_session_cancel, stopped it.
    KVANT_FINISH_CANCELLED = 4,
} kvant_finish;

// The type of a number.
typedef enum {
    // IEEE 754, 32 bits.
    KVANT_DTYPE_F32 = 0,
    // IEEE 754, 16 bits.
    KVANT_DTYPE_F16 = 1,
    // bfloat16: the upper half of an f32.
    KVANT_DTYPE_BF16 = 2,
} kvant_dtype;

// What a codec is for: keys and values are kept in different ways.
typedef enum {
    // Keys, which queries score.
    KVANT_SIDE_KEY = 0,
    // Values, which are summed up.
    KVANT_SIDE_VALUE = 1,
} kvant_side;

// How weights are packed: in groups of 32 along a row, with a scale in f16.
typedef enum {
    // 4 bits and 16 for the scale of a group: 4.5 bits a weight.
    KVANT_WEIGHTS_INT4 = 0,
    // 8 bits and 16 for the scale of a group: 8.5 bits a weight.
    KVANT_WEIGHTS_INT8 = 1,
} kvant_weights;

// How text becomes tokens: any of these, added up.
typedef enum {
    // The text as it is.
    KVANT_TOKENIZE_PLAIN = 0,
    // With the tokens around it that the model expects around a whole text.
    KVANT_TOKENIZE_ADD_SPECIAL = 1,
    // Names of control tokens in it become those tokens. Not for text that a user wrote.
    KVANT_TOKENIZE_PARSE_SPECIAL = 2,
} kvant_tokenize;

// How the vectors of tokens become that of a text.
typedef enum {
    // Their mean.
    KVANT_POOLING_MEAN = 0,
    // That of the last token, which has seen all others.
    KVANT_POOLING_LAST = 1,
    // That of the first token (cls), which encoders teach to stand for the text.
    KVANT_POOLING_FIRST = 2,
    // As the model's files say; the mean where they do not.
    KVANT_POOLING_MODEL = 3,
} kvant_pooling;

// What all sequences of a model share: how their keys and values are kept, the memory they lie in, and what computes. Any
// number of threads may use it at once.
typedef struct kvant_cache kvant_cache;

// A codec of one side for heads of one width. Any number of threads may use it at once.
typedef struct kvant_codec kvant_codec;

// An open model. Any number of threads may use it at once.
typedef struct kvant_engine kvant_engine;

// A matrix of packed weights. Any number of threads may multiply with it at once.
typedef struct kvant_matrix kvant_matrix;

// A pass over the next tokens of some sequences, from kvant_pass_begin to kvant_pass_end.
typedef struct kvant_pass kvant_pass;

// Threads that compute, for caches and products. Any thread may use it at any time: who finds it at work computes alone.
typedef struct kvant_pool kvant_pool;

// What came of a generation. It never changes, and any number of threads may read it.
typedef struct kvant_reply kvant_reply;

// Chooses tokens from logits as a generation does: with its penalties, cuts and seed. One thread at a time may use it, and another
// one gets KVANT_STATUS_BUSY.
typedef struct kvant_sampler kvant_sampler;

// A sequence of a cache. One thread at a time may use it; another one, or a use while it is in a pass, gets KVANT_STATUS_BUSY.
typedef struct kvant_sequence kvant_sequence;

// A session. One thread at a time may use it, and another one gets KVANT_STATUS_BUSY; only kvant_session_cancel may be called at
// any time.
typedef struct kvant_session kvant_session;

// What a layer keeps. This structure never changes.
typedef struct {
    // Heads that own keys and values; query heads come in equal groups (GQA), one group to each.
    size_t kv_heads;
    // Channels of a key, and of a query.
    size_t key_dim;
    // Channels of a value.
    size_t value_dim;
    // Sliding window: how many tokens a query sees, itself included; 0 for all.
    size_t window;
} kvant_layer;

// What a cache is to be. Set struct_size to sizeof, everything else to zero, then fill in.
typedef struct {
    // sizeof(kvant_cache_options).
    size_t struct_size;
    // How keys and values are kept: a policy such as "int4", "k=ch4,v=rot4g32" or "int8;layers 0-1:k=f16;recent=64", or the
    // path of a .kvplan file. NULL is "int4".
    const char *kv;
    // The layers, in the order of their numbers.
    const kvant_layer *layers;
    // How many there are.
    size_t layer_count;
    // The most tokens that a sequence may hold; 0 for no limit.
    size_t capacity;
    // The most bytes for the keys and values of all sequences together; 0 for what the machine, or the container, has.
    size_t memory;
    // What computes; NULL is the calling thread alone.
    const kvant_pool *pool;
} kvant_cache_options;

// Numbers that are read: (rows, heads, dim), where the last are always side by side. This structure never changes.
//
// A tensor (heads, tokens, dim), as most frameworks keep one sequence, has a row_stride of dim and a head_stride of tokens times
// dim.
typedef struct {
    // The first number.
    const void *data;
    // Numbers from there to the end of the memory: nothing beyond is read.
    size_t length;
    // Numbers from a row to the next; 0 for rows without gaps.
    size_t row_stride;
    // Numbers from a head to the next; 0 for heads without gaps.
    size_t head_stride;
    // A kvant_dtype.
    int32_t dtype;
} kvant_rows;

// The same for numbers that are written.
typedef struct {
    // The first number.
    void *data;
    // Numbers from there to the end of the memory: nothing beyond is written.
    size_t length;
    // Numbers from a row to the next; 0 for rows without gaps.
    size_t row_stride;
    // Numbers from a head to the next; 0 for heads without gaps.
    size_t head_stride;
    // A kvant_dtype.
    int32_t dtype;
} kvant_output;

// What can be asked for when a model is opened. Set struct_size to sizeof, everything else to zero, then fill in: zeros, like a
// NULL in place of the structure, are what `kvant run` does without flags.
typedef struct {
    // sizeof(kvant_open_options).
    size_t struct_size;
    // How keys and values are kept: "auto", a policy such as "int4", or the path of a .kvplan file. NULL for what suits the
    // model.
    const char *kv;
    // The most tokens of a session, prompt and answer together; 0 for what suits model and memory.
    size_t context;
    // Streaming attention (StreamingLLM) in place of a context: sinks and this many last tokens, without end. 0 for none.
    size_t window;
    // The most bytes for keys and values of a session; 0 for no limit.
    size_t kv_memory;
    // What weights are packed to that the file holds as plain numbers: "int4", "int8", or NULL for neither.
    const char *weights;
    // Threads that compute; 0 for as many as there are processors.
    size_t threads;
    // Not 0: weights, keys and values are pinned in memory.
    int32_t pinned;
    // Not 0: weights are multiplied with f32 in place of 8-bit activations, which is slower and a little closer to exact.
    int32_t exact_activations;
    // Further options by the names of `kvant run`'s flags, with underscores: a JSON object such as
    // {"device": "cuda", "sparse_v": 1e-4, "sinks": 8}. Fields above go before it; NULL for none.
    // The device is "cpu" unless it is named here.
    const char *settings;
} kvant_open_options;

// What is known of an open model. Set struct_size to sizeof before it is filled.
typedef struct {
    // sizeof(kvant_engine_info).
    size_t struct_size;
    // The most tokens of a session; SIZE_MAX with a window.
    size_t context;
    // Logits of a step: token ids are smaller.
    size_t vocabulary;
    // Threads that compute.
    size_t threads;
    // Bytes per token of a long context, scales and all.
    double bytes_per_token;
    // The token that begins a text; -1 for none.
    int64_t bos;
    // The token that ends a text; -1 for none. There may be more: see kvant_engine_is_end.
    int64_t eos;
    // 1 for a model with a chat template, 0 for one that only continues text.
    int32_t converses;
} kvant_engine_info;

// One turn of a conversation. This structure never changes.
typedef struct {
    // "system", "user", "assistant", "tool", or what else the template knows.
    const char *role;
    // What is said; NULL for a turn that only calls tools.
    const char *content;
    // Further fields as a JSON object: tool_calls, tool_call_id, name, reasoning_content. NULL for none.
    const char *fields;
} kvant_message;

// How text is generated. Set struct_size to sizeof, everything else to zero, then fill in: zeros, like a NULL in place of the
// structure, always take the most likely token and go on until the model ends the text.
typedef struct {
    // sizeof(kvant_generate_options).
    size_t struct_size;
    // The most tokens to generate; 0 for as many as the context holds.
    size_t max_tokens;
    // Texts that end the generation; they are not part of it.
    const char *const *stop;
    // How many there are.
    size_t stop_count;
    // A JSON schema that the answer is kept to; NULL for none.
    const char *json_schema;
    // In a chat: functions that may be called, a JSON array in OpenAI's form; NULL for none.
    const char *tools;
    // In a chat: a JSON object for the template, such as {"enable_thinking": false}; NULL for none.
    const char *variables;
    // Makes a run repeatable; 0 picks a seed.
    uint64_t seed;
    // Flattens (above 1) or sharpens (below 1) the distribution; 0 always takes the most likely token.
    float temperature;
    // Keep the fewest most likely tokens whose probabilities reach this sum; 0 keeps all.
    float top_p;
    // Keep tokens at least this fraction as likely as the most likely one; 0 keeps all.
    float min_p;
    // Divides the positive and multiplies the negative logits of tokens in the history; 0 does nothing.
    float repetition_penalty;
    // Subtracted from a token's logit for each time it is in the history.
    float frequency_penalty;
    // Subtracted from a token's logit if it is in the history.
    float presence_penalty;
    // How many of the last tokens the penalties look at; 0 for 64.
    size_t penalty_window;
    // Keep only this many of the most likely tokens; 0 keeps all.
    size_t top_k;
    // Settings of the sampler by their names: a JSON object such as {"min_p": 0.05, "seed": 7}. They go before the fields above;
    // NULL for none.
    const char *settings;
} kvant_generate_options;

// Something that happens during a generation. Later versions may add fields at the end.
typedef struct {
    // Bytes of this structure.
    size_t struct_size;
    // What happens; values that you do not know are to be ignored.
    kvant_event_kind kind;
    // The text, UTF-8, with a zero at its end; as long as the callback runs.
    const char *text;
    // Bytes of the text, the zero not among them.
    size_t length;
    // The function that is called; NULL in other events.
    const char *name;
    // Tokens of the prompt that have been read.
    size_t done;
    // Tokens of the prompt.
    size_t total;
} kvant_event;

// Is told of a generation as it goes, on the thread that called; anything but 0 stops it. It must not throw, longjmp or free the
// session, and a use of the session gets KVANT_STATUS_BUSY.
typedef int32_t (*kvant_callback)(const kvant_event *event, void *user);

// How scores become weights. Set struct_size to sizeof, everything else to zero, then fill in.
typedef struct {
    // sizeof(kvant_attend_options).
    size_t struct_size;
    // One logit for every query head that takes part in the softmax and has no value (attention sinks of gpt-oss); NULL for
    // none.
    const float *sink_logits;
    // Multiplies q·k; 0 for 1/sqrt(key_dim).
    float scale;
    // Scaled scores s become cap · tanh(s / cap); 0 for none.
    float soft_cap;
} kvant_attend_options;

// Counts and times of a generation. Set struct_size to sizeof before it is filled.
typedef struct {
    // sizeof(kvant_reply_info).
    size_t struct_size;
    // Tokens that were chosen, the ending one included.
    size_t tokens;
    // Calls of functions: see kvant_reply_tool_call.
    size_t tool_calls;
    // Tokens of the prompt that the session held already.
    size_t reused;
    // Tokens of the prompt that were read.
    size_t prefilled;
    // Passes of one token each.
    size_t decoded;
    // Seconds to read the prompt.
    double prefill_seconds;
    // Seconds for the tokens after the first.
    double decode_seconds;
    // The seed that repeats it.
    uint64_t seed;
    // Why it ended.
    kvant_finish finish;
} kvant_reply_info;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/* Versions */

// The version of the binary interface that the library has: to be compared with KVANT_ABI_VERSION by whoever loads it at run
// time.
uint32_t kvant_abi_version(void);

// The version of kvant, as text.
const char *kvant_version(void);

/* Errors */

// What the last call on this thread that failed has to say: what was wrong, where, and what to do. Empty before the first.
//
// The text is the library's, in UTF-8, and stays until the next call on this thread that fails.
const char *kvant_error_message(void);

/* The engine: a model and its words */

// Opens the model in a GGUF file or a folder of safetensors, with a cache that suits it and a context that fits in memory.
// Options may be NULL.
kvant_status kvant_engine_open(const char *path, const kvant_open_options *open, kvant_engine **engine);

// Tells what is known of an open model.
kvant_status kvant_engine_describe(const kvant_engine *engine, kvant_engine_info *info);

// How keys and values are kept, as text that lives as long as the engine; NULL for NULL.
const char *kvant_engine_kv(const kvant_engine *engine);

// Something that was decided when the model was opened and that people may want to know, such as a shorter context than usual:
// text that lives as long as the engine. NULL beyond the last.
const char *kvant_engine_note(const kvant_engine *engine, size_t index);

// Makes tokens of a text; `flags` are of kvant_tokenize. `count` gets how many there are, also where the buffer is too small;
// without a buffer (NULL and 0) that is all.
kvant_status kvant_engine_tokenize(const kvant_engine *engine,
                                   const char *prompt,
                                   int32_t flags,
                                   uint32_t *tokens,
                                   size_t capacity,
                                   size_t *count);

// Makes text of tokens, without control tokens, with a zero at its end. `length` gets its bytes, the zero not among them.
kvant_status kvant_engine_detokenize(const kvant_engine *engine,
                                     const uint32_t *tokens,
                                     size_t count,
                                     char *buffer,
                                     size_t capacity,
                                     size_t *length);

// Makes the tokens of a conversation whose next turn is the assistant's. `tools`, a JSON array in OpenAI's form, and `variables`,
// a JSON object for the template (such as {"enable_thinking": false}), may be NULL.
kvant_status kvant_engine_chat_prompt(const kvant_engine *engine,
                                      const kvant_message *messages,
                                      size_t message_count,
                                      const char *tools,
                                      const char *variables,
                                      uint32_t *tokens,
                                      size_t capacity,
                                      size_t *count);

// 1 for a token that ends a generation, 0 for any other.
int32_t kvant_engine_is_end(const kvant_engine *engine, uint32_t token);

// Frees an engine. Its sessions live on. NULL is nothing.
void kvant_engine_free(kvant_engine *engine);

// Makes a vector of length 1 of a text's tokens: what the last layer makes of them, in one. `pooling` is of kvant_pooling. `length` gets
// the numbers of a vector, also where the buffer is too small; without a buffer (NULL and 0) that is all. Sessions of the engine are
// not touched, and any number of threads may call this at once.
kvant_status kvant_engine_embed(const kvant_engine *engine,
                                const uint32_t *tokens,
                                size_t count,
                                int32_t pooling,
                                float *vector,
                                size_t capacity,
                                size_t *length);

/* Sessions of a model */

// Makes an empty session.
kvant_status kvant_session_new(const kvant_engine *engine, kvant_session **session);

// Makes another session that holds the same. Pages are shared, and only the newest tokens are copied.
kvant_status kvant_session_fork(const kvant_session *session, kvant_session **fork);

// Stops the generation that is under way, or else the next one: it ends with KVANT_FINISH_CANCELLED after the token, or the part of
// the prompt, that is being read. Any thread may call this at any time while the session lives. NULL is nothing.
void kvant_session_cancel(const kvant_session *session);

// Brings the session to hold exactly these tokens: what it holds of them from the beginning is not read again. `logits` gets
// the logits after the last one, `length` their number (either may be NULL). They are the session's, until the next call that
// takes it.
kvant_status kvant_session_prefill(const kvant_session *session,
                                   const uint32_t *tokens,
                                   size_t count,
                                   const float **logits,
                                   size_t *length);

// Reads one more token. `logits` and `length` as in kvant_session_prefill.
kvant_status kvant_session_step(const kvant_session *session, uint32_t token, const float **logits, size_t *length);

// Goes back to at most `length` tokens. `left` (which may be NULL) gets how many are left: fewer where the cut lies inside a page
// that is encoded already, and those from there on have to be read again.
kvant_status kvant_session_rollback(const kvant_session *session, size_t length, size_t *left);

// Tells which tokens a session holds, as kvant_engine_tokenize tells them.
kvant_status kvant_session_tokens(const kvant_session *session, uint32_t *tokens, size_t capacity, size_t *count);

// Tells how many tokens a session holds, and how many bytes their keys and values take. Either may be NULL.
kvant_status kvant_session_size(const kvant_session *session, size_t *tokens, uint64_t *bytes);

// Saves what a session holds in a file, which is replaced as a whole or not at all. It holds what was said.
kvant_status kvant_session_save(const kvant_session *session, const char *path);

// Goes on where a saved session was left: what it held is held again, and nothing needs to be read. It has to be of the same
// model, cache and weights. `other_rounding` (which may be NULL) gets 1 if it was computed by another version or instruction
// set, so that answers may differ in a last bit, else 0. On failure nothing has changed.
kvant_status kvant_session_resume(const kvant_session *session, const char *path, int32_t *other_rounding);

// Frees a session. NULL is nothing.
void kvant_session_free(kvant_session *session);

// Continues a prompt: all tokens before the first new one, those that the session holds included, which are not read again.
// Options, callback and `reply` may be NULL; a reply is freed by the caller.
kvant_status kvant_session_generate(const kvant_session *session,
                                    const uint32_t *prompt,
                                    size_t count,
                                    const kvant_generate_options *generate_options,
                                    kvant_callback callback,
                                    void *user,
                                    kvant_reply **reply);

// Answers a conversation, which is given whole each time: what the session holds of it is not read again. The reply is split
// into reasoning, answer and tool calls. Options, callback and `reply` may be NULL; a reply is freed by the caller.
kvant_status kvant_session_chat(const kvant_session *session,
                                const kvant_message *messages,
                                size_t count,
                                const kvant_generate_options *generate_options,
                                kvant_callback callback,
                                void *user,
                                kvant_reply **reply);

/* Choosing tokens from logits */

// Makes a sampler with the sampling fields of the options (temperature, top_k, top_p, min_p, penalties, seed, settings); NULL
// always takes the most likely token. The other fields are for generations, and have to be zero.
kvant_status kvant_sampler_new(const kvant_generate_options *generate_options, kvant_sampler **sampler);

// Puts tokens into the history that the penalties look at: those of the prompt, if they are to count. Tokens that were chosen are
// in it already.
kvant_status kvant_sampler_accept(const kvant_sampler *sampler, const uint32_t *tokens, size_t count);

// Chooses the next token from the logits of the whole vocabulary, which stay as they are: those of kvant_session_step, or of an
// engine of one's own. With a seed the same logits give the same tokens, and those of a generation with that seed.
kvant_status kvant_sampler_sample(const kvant_sampler *sampler, const float *logits, size_t length, uint32_t *token);

// Frees a sampler. NULL is nothing.
void kvant_sampler_free(kvant_sampler *sampler);

/* What came of a generation */

// What was said, UTF-8 with a zero at its end, as long as the reply lives; NULL for NULL. `length` (which may be NULL) gets its
// bytes, the zero not among them.
const char *kvant_reply_text(const kvant_reply *reply, size_t *length);

// What was thought before the answer, in a chat, as kvant_reply_text tells the answer.
const char *kvant_reply_reasoning(const kvant_reply *reply, size_t *length);

// A call of a function: its name, and its arguments as a JSON object. Both live as long as the reply.
kvant_status kvant_reply_tool_call(const kvant_reply *reply, size_t index, const char **name, const char **arguments);

// Tells the tokens that were chosen, as kvant_engine_tokenize tells them.
kvant_status kvant_reply_tokens(const kvant_reply *reply, uint32_t *tokens, size_t capacity, size_t *count);

// Tells counts and times.
kvant_status kvant_reply_describe(const kvant_reply *reply, kvant_reply_info *info);

// Frees a reply. NULL is nothing.
void kvant_reply_free(kvant_reply *reply);

/* The compressed cache, for an engine of one's own */

// Makes a cache.
kvant_status kvant_cache_new(const kvant_cache_options *cache_options, kvant_cache **cache);

// Bytes per token of a long context, scales and all, over all layers; 0 for NULL.
double kvant_cache_bytes_per_token(const kvant_cache *cache);

// Bytes of memory that all sequences of the cache use together: pages that several share count once. 0 for NULL.
size_t kvant_cache_bytes(const kvant_cache *cache);

// Frees a cache. Its sequences live on. NULL is nothing.
void kvant_cache_free(kvant_cache *cache);

/* Sequences of a cache */

// Makes an empty sequence.
kvant_status kvant_sequence_new(const kvant_cache *cache, kvant_sequence **sequence);

// Makes another sequence that holds the same. Pages are shared, and only the newest tokens are copied.
kvant_status kvant_sequence_fork(const kvant_sequence *sequence, kvant_sequence **fork);

// Goes back to at most `length` tokens. `left` (which may be NULL) gets how many are left: fewer where the cut lies inside a
// page that is encoded already, and those from there on have to be appended again.
kvant_status kvant_sequence_rollback(const kvant_sequence *sequence, size_t length, size_t *left);

// Tells how many tokens a sequence holds, and how many bytes they take. Either may be NULL.
kvant_status kvant_sequence_size(const kvant_sequence *sequence, size_t *tokens, uint64_t *bytes);

// Saves a sequence in a file, which is replaced as a whole or not at all. `model` is any text that names what the keys and
// values were computed with: it has to be the same when the file is loaded.
kvant_status kvant_sequence_save(const kvant_sequence *sequence, const char *path, const char *model);

// Makes a sequence of what was saved. Its pages stay in the file, which is mapped: replace such a file, never write into it.
kvant_status kvant_sequence_load(const kvant_cache *cache, const char *path, const char *model, kvant_sequence **sequence);

// Frees a sequence. NULL is nothing.
void kvant_sequence_free(kvant_sequence *sequence);

/* Forward passes over sequences */

// Begins a pass over the next tokens of `count` sequences of a cache; sequence i brings tokens[i]. Then, for every layer,
// append keys and values and attend; then end the pass. Decoding and prefill are the same calls, and neither the size of chunks
// nor the other sequences of the pass change a bit of what a token gets.
kvant_status kvant_pass_begin(const kvant_cache *cache,
                              const kvant_sequence *const *sequences,
                              const size_t *tokens,
                              size_t count,
                              kvant_pass **pass);

// Takes a layer's keys, (tokens, kv heads, key_dim), normed and rotated as the model does, and values, (tokens, kv heads,
// value_dim): one kvant_rows for each sequence of the pass. Pages that are full are encoded.
//
// Sizes that do not fit change nothing. After any other failure, such as NaN, the pass can only be ended or abandoned, and
// none of its tokens count.
kvant_status kvant_pass_append(const kvant_pass *pass, size_t layer, const kvant_rows *keys, const kvant_rows *values);

// Attends to a layer with the queries, (tokens, query heads, key_dim), of the tokens that were appended to it: one kvant_rows and
// one kvant_output, (tokens, query heads, value_dim), for each sequence of the pass. Query heads come in equal groups, one group to
// a kv head. Options may be NULL.
kvant_status kvant_pass_attend(const kvant_pass *pass,
                               size_t layer,
                               size_t query_heads,
                               const kvant_rows *queries,
                               const kvant_output *outputs,
                               const kvant_attend_options *attend_options);

// Ends a pass and frees it, whatever this returns: its tokens count as held. Fails if a layer has not got them all, and then
// none count.
kvant_status kvant_pass_end(kvant_pass *pass);

// Takes back a pass and frees it: the sequences hold what they held before it. NULL is nothing.
void kvant_pass_abandon(kvant_pass *pass);

/* Page codecs: rows to pages, and attention's inner loops on them */

// Makes the codec that a spec such as "int4" or "k8v4" has for a side (a kvant_side) of heads with dim channels. Codecs that need a
// plan cannot be had alone.
kvant_status kvant_codec_new(const char *spec,
                             int32_t side,
                             size_t dim,
                             kvant_codec **codec);

// Tokens of a page; 0 for NULL.
size_t kvant_codec_page_tokens(const kvant_codec *codec);

// Bytes of a page, everything included; 0 for NULL.
size_t kvant_codec_page_bytes(const kvant_codec *codec);

// Encodes rows, (tokens, dim), into pages: length is page_bytes for every page_tokens tokens, rounded up. A last page that is not
// full is filled up with its last row. Heads of the rows given do not matter.
kvant_status kvant_codec_encode(const kvant_codec *codec, size_t tokens, const kvant_rows *rows, uint8_t *pages, size_t length);

// Decodes pages into out, (tokens, dim). Any bytes decode to something.
kvant_status kvant_codec_decode(const kvant_codec *codec,
                                size_t tokens,
                                const uint8_t *pages,
                                size_t length,
                                const kvant_output *out);

// Scores: out, (queries, tokens), gets the products of every query, (queries, dim), with every token, from the pages as they are.
kvant_status kvant_codec_scores(const kvant_codec *codec,
                                size_t tokens,
                                const uint8_t *pages,
                                size_t length,
                                size_t count,
                                const kvant_rows *queries,
                                const kvant_output *out);

// Sums up: out, (queries, dim), gets for every query the sum of all tokens, each times its weight, (queries, tokens), from the pages
// as they are.
kvant_status kvant_codec_accumulate(const kvant_codec *codec,
                                    size_t tokens,
                                    const uint8_t *pages,
                                    size_t length,
                                    size_t count,
                                    const kvant_rows *weights,
                                    const kvant_output *out);

// Frees a codec. NULL is nothing.
void kvant_codec_free(kvant_codec *codec);

/* Threads, and products with packed weights */

// Makes a pool of so many threads, the calling one included; 0 for as many as there are processors. They are started when
// they are first needed.
kvant_status kvant_pool_new(size_t threads, kvant_pool **pool);

// Frees a pool. What was made with it keeps its threads until it is freed too. NULL is nothing.
void kvant_pool_free(kvant_pool *pool);

// Quantises and packs a matrix, (rows, columns); columns are a multiple of 32. Heads of the rows given do not matter.
kvant_status kvant_matrix_new(int32_t format, size_t rows, size_t columns, const kvant_rows *weights, kvant_matrix **matrix);

// Multiplies: out, (tokens, rows), gets the products of every row of the matrix with every token of x, (tokens, columns). The
// activations are rounded to 8 bits in groups of 32. NaN and infinities make NaN of their token's products.
//
// A token gets the same bits alone and among others, with any number of threads. A pool of NULL is the calling thread alone.
kvant_status kvant_matrix_multiply(const kvant_matrix *matrix,
                                   const kvant_pool *pool,
                                   size_t tokens,
                                   const kvant_rows *x,
                                   const kvant_output *out);

// Bytes that a matrix takes; 0 for NULL.
size_t kvant_matrix_bytes(const kvant_matrix *matrix);

// Frees a matrix. NULL is nothing.
void kvant_matrix_free(kvant_matrix *matrix);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KVANT_H */
